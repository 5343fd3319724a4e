"""Estimators and functions in the style of scikit-learn, over :mod:`cloister.tasks`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported here, because the module of the same name would otherwise hide the function.
from cloister.estimators.select_k import KSelection, select_k

if TYPE_CHECKING:
    from cloister.estimators.association import RuleSet, mine_rules
    from cloister.estimators.ensemble import DPSiloEnsemble, combined_probabilities
    from cloister.estimators.federated_learning import FederatedLearner
    from cloister.estimators.forest import DPForestRegressor, DPRandomForestClassifier
    from cloister.estimators.kmeans import DPKMeans
    from cloister.estimators.linear_model import DPLinearRegression, DPLogisticRegression
    from cloister.estimators.measures import Measures, cluster_quality, evaluate
    from cloister.estimators.naive_bayes import DPNaiveBayes
    from cloister.estimators.outliers import DPOutlierDetector
    from cloister.estimators.prepare import (
        DPPCA,
        DPBounds,
        DPStandardScaler,
        dp_describe,
        dp_quantiles,
        dp_statistics,
    )
    from cloister.estimators.shapes import DPShapesClassifier, DPShapesRegressor
    from cloister.estimators.survival import DPKaplanMeier, DPLogRank

# Loaded at first use, so that an import of one estimator does not import all.
_NAMES = {
    "association": "RuleSet mine_rules",
    "ensemble": "DPSiloEnsemble combined_probabilities",
    "federated_learning": "FederatedLearner",
    "forest": "DPForestRegressor DPRandomForestClassifier",
    "kmeans": "DPKMeans",
    "linear_model": "DPLinearRegression DPLogisticRegression",
    "measures": "Measures cluster_quality evaluate",
    "naive_bayes": "DPNaiveBayes",
    "outliers": "DPOutlierDetector",
    "prepare": "DPPCA DPBounds DPStandardScaler dp_describe dp_quantiles dp_statistics",
    "shapes": "DPShapesClassifier DPShapesRegressor",
    "survival": "DPKaplanMeier DPLogRank",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "DPPCA",
    "DPBounds",
    "DPForestRegressor",
    "DPKMeans",
    "DPKaplanMeier",
    "DPLinearRegression",
    "DPLogRank",
    "DPLogisticRegression",
    "DPNaiveBayes",
    "DPOutlierDetector",
    "DPRandomForestClassifier",
    "DPShapesClassifier",
    "DPShapesRegressor",
    "DPSiloEnsemble",
    "DPStandardScaler",
    "FederatedLearner",
    "KSelection",
    "Measures",
    "RuleSet",
    "cluster_quality",
    "combined_probabilities",
    "dp_describe",
    "dp_quantiles",
    "dp_statistics",
    "evaluate",
    "mine_rules",
    "select_k",
]


# Called only for names that are not loaded yet.
def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
