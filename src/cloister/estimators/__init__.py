"""The scikit-learn face; the kernels stay in :mod:`cloister.tasks`."""

from __future__ import annotations

from cloister.estimators.association import RuleSet, mine_rules
from cloister.estimators.ensemble import DPSiloEnsemble, combined_probabilities
from cloister.estimators.federated_learning import FederatedLearner
from cloister.estimators.forest import DPRandomForestClassifier
from cloister.estimators.kmeans import DPKMeans
from cloister.estimators.linear_model import DPLinearRegression, DPLogisticRegression
from cloister.estimators.measures import Measures, cluster_quality, evaluate
from cloister.estimators.naive_bayes import DPNaiveBayes
from cloister.estimators.outliers import DPOutlierDetector
from cloister.estimators.prepare import (
    DPPCA,
    DPBounds,
    DPStandardScaler,
    dp_quantiles,
    dp_statistics,
)
from cloister.estimators.select_k import KSelection, select_k

__all__ = [
    "DPPCA",
    "DPBounds",
    "DPKMeans",
    "DPLinearRegression",
    "DPLogisticRegression",
    "DPNaiveBayes",
    "DPOutlierDetector",
    "DPRandomForestClassifier",
    "DPSiloEnsemble",
    "DPStandardScaler",
    "FederatedLearner",
    "KSelection",
    "Measures",
    "RuleSet",
    "cluster_quality",
    "combined_probabilities",
    "dp_quantiles",
    "dp_statistics",
    "evaluate",
    "mine_rules",
    "select_k",
]
