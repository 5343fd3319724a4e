"""cloister: private data mining for organisations that may not pool their records.

Start with :class:`DPKMeans`, or with the command ``cloister demo``. Importing this package opens no
socket, reads no file and no environment variable, and seeds nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cloister.errors import (
    AccuracyWarning,
    BudgetExceeded,
    CloisterError,
    DataError,
    LedgerError,
    LocalProtocolError,
    PlanError,
    PrivacyWarning,
    ProtocolError,
    RemoteProtocolError,
    TransportError,
    UncountedWarning,
)
from cloister.moved import install, old_name

if TYPE_CHECKING:
    from cloister.data import Baskets
    from cloister.estimators.association import RuleSet, mine_rules
    from cloister.estimators.ensemble import DPSiloEnsemble
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
    from cloister.jobs import Account, JobResult, make_plan, run_job, run_plan
    from cloister.privacy.budget import Budget
    from cloister.privacy.filter import Split
    from cloister.privacy.ledger import Ledger
    from cloister.protocol.plan import Plan
    from cloister.schema import Column, Schema, catalogue_schema
    from cloister.stability import Stability
    from cloister.task import Task
    from cloister.tasks import TASKS

# Loaded when first used, so that a silo without scikit-learn's needs does not pay for it.
_HOME = {
    "Account": "cloister.jobs",
    "Baskets": "cloister.data",
    "Budget": "cloister.privacy.budget",
    "Column": "cloister.schema",
    "DPKMeans": "cloister.estimators.kmeans",
    "DPStandardScaler": "cloister.estimators.prepare",
    "DPPCA": "cloister.estimators.prepare",
    "DPBounds": "cloister.estimators.prepare",
    "DPOutlierDetector": "cloister.estimators.outliers",
    "DPLinearRegression": "cloister.estimators.linear_model",
    "DPLogisticRegression": "cloister.estimators.linear_model",
    "DPNaiveBayes": "cloister.estimators.naive_bayes",
    "DPRandomForestClassifier": "cloister.estimators.forest",
    "DPSiloEnsemble": "cloister.estimators.ensemble",
    "FederatedLearner": "cloister.estimators.federated_learning",
    "JobResult": "cloister.jobs",
    "KSelection": "cloister.estimators.select_k",
    "Ledger": "cloister.privacy.ledger",
    "Measures": "cloister.estimators.measures",
    "Plan": "cloister.protocol.plan",
    "RuleSet": "cloister.estimators.association",
    "Schema": "cloister.schema",
    "TASKS": "cloister.tasks",
    "Split": "cloister.privacy.filter",
    "Task": "cloister.task",
    "cluster_quality": "cloister.estimators.measures",
    "dp_quantiles": "cloister.estimators.prepare",
    "dp_statistics": "cloister.estimators.prepare",
    "evaluate": "cloister.estimators.measures",
    "catalogue_schema": "cloister.schema",
    "make_plan": "cloister.jobs",
    "mine_rules": "cloister.estimators.association",
    "run_job": "cloister.jobs",
    "run_plan": "cloister.jobs",
    "Stability": "cloister.stability",
    "select_k": "cloister.estimators.select_k",
}

__all__ = [
    "DPPCA",
    "TASKS",
    "Account",
    "AccuracyWarning",
    "Baskets",
    "Budget",
    "BudgetExceeded",
    "CloisterError",
    "Column",
    "DPBounds",
    "DPKMeans",
    "DPLinearRegression",
    "DPLogisticRegression",
    "DPNaiveBayes",
    "DPOutlierDetector",
    "DPRandomForestClassifier",
    "DPSiloEnsemble",
    "DPStandardScaler",
    "DataError",
    "FederatedLearner",
    "JobResult",
    "KSelection",
    "Ledger",
    "LedgerError",
    "LocalProtocolError",
    "Measures",
    "Plan",
    "PlanError",
    "PrivacyWarning",
    "ProtocolError",
    "RemoteProtocolError",
    "RuleSet",
    "Schema",
    "Split",
    "Stability",
    "Task",
    "TransportError",
    "UncountedWarning",
    "catalogue_schema",
    "cluster_quality",
    "dp_quantiles",
    "dp_statistics",
    "evaluate",
    "make_plan",
    "mine_rules",
    "run_job",
    "run_plan",
    "select_k",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        return old_name(__name__, name)
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


install()
