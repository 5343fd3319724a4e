"""cloister: private data mining for organisations that may not pool their records.

Start with :class:`DPKMeans`, or with the command ``cloister demo``. Importing this package opens no
socket, reads no file and no environment variable, and seeds nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cloister.errors import (
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
)

if TYPE_CHECKING:
    from cloister.estimators.curator import CuratorKMeans
    from cloister.estimators.kmeans import DPKMeans
    from cloister.estimators.select_k import KSelection, select_k
    from cloister.jobs import Account, JobResult, make_plan, run_job, run_plan
    from cloister.privacy.budget import Budget
    from cloister.privacy.ledger import Ledger
    from cloister.protocol.plan import Plan
    from cloister.schema import Column, Schema
    from cloister.tasks import TASKS, Task

# Loaded when first used, so that a silo without scikit-learn's needs does not pay for it.
_HOME = {
    "Account": "cloister.jobs",
    "Budget": "cloister.privacy.budget",
    "Column": "cloister.schema",
    "CuratorKMeans": "cloister.estimators.curator",
    "DPKMeans": "cloister.estimators.kmeans",
    "JobResult": "cloister.jobs",
    "KSelection": "cloister.estimators.select_k",
    "Ledger": "cloister.privacy.ledger",
    "Plan": "cloister.protocol.plan",
    "Schema": "cloister.schema",
    "TASKS": "cloister.tasks",
    "Task": "cloister.tasks",
    "make_plan": "cloister.jobs",
    "run_job": "cloister.jobs",
    "run_plan": "cloister.jobs",
    "select_k": "cloister.estimators.select_k",
}

__all__ = [
    "TASKS",
    "Account",
    "Budget",
    "BudgetExceeded",
    "CloisterError",
    "Column",
    "CuratorKMeans",
    "DPKMeans",
    "DataError",
    "JobResult",
    "KSelection",
    "Ledger",
    "LedgerError",
    "LocalProtocolError",
    "Plan",
    "PlanError",
    "PrivacyWarning",
    "ProtocolError",
    "RemoteProtocolError",
    "Schema",
    "Task",
    "TransportError",
    "make_plan",
    "run_job",
    "run_plan",
    "select_k",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cloister' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
