"""Every public name that moved, and where it is now: one list, kept for one release.

Importing ``cloister`` installs a finder, so ``import cloister.tasks.balcan`` yields the module of
today and a `DeprecationWarning` that names it. A name that left a module which still exists is
resolved by that module's ``__getattr__``, through :func:`resolve`. What moved to the laboratory
needs the package ``cloister-lab``; without it, one sentence says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LAB = "cloister_lab"
INSTALL_LAB_HINT = "pip install cloister-lab (from a clone: pip install ./lab)"
"""How to get the laboratory."""

# Old modules that are in a folder now, under their old last name.
_FOLDERS = {
    "cloister.tasks.clustering": """kmeans kmeans_init lloyd_kernel auto auto_grid auto_mean
        auto_pca auto_rounds gap_statistic select_k synopsis clusters""",
    "cloister.tasks.supervised": """linear logistic least_squares frame contrasts
        naive_bayes class_tables forest forest_trees fedavg local_training""",
    "cloister.tasks.patterns": "apriori supports outliers",
    "cloister.tasks.preparation": "bounds quantiles standardise statistics pca pipeline",
    "cloister.tasks.evaluation": "cluster_quality",
    "cloister_lab.tasks": """balcan dp_em feddp_init grid_synopsis lsh_tree max_cover subcluster
        projection recovery""",
}
MODULES: dict[str, str] = {
    f"cloister.tasks.{name}": f"{folder}.{name}"
    for folder, names in _FOLDERS.items()
    for name in names.split()
} | {
    "cloister.tasks.tails": "cloister.tasks.supervised.tail_bounds",
    "cloister.tasks.spreads": "cloister.tasks.supervised.prior_scales",
    "cloister.tasks.base": "cloister.protocol.task",
    "cloister.tasks.rules": "cloister.tasks.patterns.association",
    "cloister.tasks.evaluate": "cloister.tasks.evaluation.classification",
    "cloister.tasks.evaluate_regression": "cloister.tasks.evaluation.regression",
    "cloister.tasks.evaluated": "cloister.tasks.evaluation.layers",
    "cloister.transports.flare": "cloister.federation.flare.transport",
    "cloister.transports.flare_kit": "cloister.federation.flare.kit",
    "cloister.service.flare": "cloister.federation.flare.controller",
    "cloister.silo.flare": "cloister.federation.flare.executor",
    "cloister.cli.doubts": "cloister.app.forecast",
    "cloister.cli.ranks": "cloister.cli.mpi",
    "cloister.cli.compare": "cloister_lab.experiments.compare",
    "cloister.cli.experiments": "cloister_lab.commands.experiments",
    "cloister.report.words": "cloister.app.text",
    "cloister.audit.words": "cloister.audit.noise_laws",
    "cloister.audit.walls": "cloister.audit.edges",
    "cloister.audit.curators": "cloister_lab.audit.curators",
    "cloister.audit.twins": "cloister_lab.audit.mutants",
    "cloister.audit.adversary": "cloister_lab.audit.adversary",
    "cloister.data.doubt": "cloister.data.reading",
    "cloister.data.few_rows": "cloister.data.reading",
    "cloister.estimators.evaluate": "cloister.estimators.measures",
    "cloister.estimators.rules": "cloister.estimators.association",
    "cloister.estimators.curator": "cloister_lab.estimators",
    "cloister.curator": "cloister_lab.curator",
    "cloister.experiments": "cloister_lab.experiments",
    "cloister.metrics": "cloister_lab.metrics",
    "cloister.parties": "cloister_lab.parties",
}
"""Old modules and those of today; the submodules of a package move with it."""

# Names that the package itself had before it kept the forty that most programs need.
_OFF_THE_TOP = {
    "cloister.app.in_process": "run_plan",
    "cloister.app.payment": "Account",
    "cloister.app.release": "Release",
    "cloister.core.errors": """LedgerError LocalProtocolError ProtocolError RemoteProtocolError
        TransportError UncountedWarning""",
    "cloister.data.schema": "catalogue_schema",
    "cloister.estimators.association": "RuleSet",
    "cloister.estimators.measures": "Measures",
    "cloister.estimators.select_k": "KSelection",
    "cloister.privacy.filter": "Split",
    "cloister.protocol.task": "Task",
    "cloister.tasks": "TASKS",
    "cloister.tasks.clustering.stability": "Stability",
}
_CLASSES = {
    "cloister.protocol.task": "Block",
    "cloister.tasks.count": "Count",
    "cloister.tasks.clustering.auto": "Auto",
    "cloister.tasks.clustering.kmeans": "FastLloyd GLloyd Lloyd SuLloyd",
    "cloister.tasks.clustering.select_k": "SelectK",
    "cloister.tasks.evaluation.classification": "Evaluation",
    "cloister.tasks.evaluation.cluster_quality": "ClusterQuality",
    "cloister.tasks.evaluation.regression": "RegressionEvaluation",
    "cloister.tasks.patterns.apriori": "Apriori",
    "cloister.tasks.patterns.outliers": "Outliers",
    "cloister.tasks.preparation.bounds": "Bounds",
    "cloister.tasks.preparation.pca": "PCA",
    "cloister.tasks.preparation.pipeline": "Pipeline",
    "cloister.tasks.preparation.quantiles": "Quantiles",
    "cloister.tasks.preparation.standardise": "Standardise",
    "cloister.tasks.preparation.statistics": "Statistics",
    "cloister.tasks.supervised.fedavg": "FedAvg FedAvgRegression",
    "cloister.tasks.supervised.forest": "RandomForest",
    "cloister.tasks.supervised.linear": "Linear",
    "cloister.tasks.supervised.logistic": "Logistic",
    "cloister.tasks.supervised.naive_bayes": "NaiveBayes",
    "cloister_lab.tasks.balcan": "Balcan",
    "cloister_lab.tasks.dp_em": "DPEM",
    "cloister_lab.tasks.feddp_init": "FedDPInit",
    "cloister_lab.tasks.grid_synopsis": "EUGkM Hybrid",
    "cloister_lab.tasks.lsh_tree": "LSHTree",
    "cloister_lab.tasks.max_cover": "MaxCoverHistogram",
    "cloister_lab.tasks.subcluster": "KMeansGuaranteeDP SubClusterDP",
}
NAMES: dict[str, str] = (
    {
        f"cloister.tasks.{name}": f"{module}.{name}"
        for module, names in _CLASSES.items()
        for name in names.split()
    }
    | {
        f"cloister.{name}": f"{module}.{name}"
        for module, names in _OFF_THE_TOP.items()
        for name in names.split()
    }
    | {
        f"cloister.protocol.task.{name}": f"cloister.core.display.{name}"
        for name in ["Bars", "Curve", "Graph", "Heatmap", "Scatter", "Table"]
    }
    | {
        f"{module}.{old}": f"cloister.core.estimate.{name}"
        for module in ("cloister.core.display", "cloister.protocol.task")
        for old, name in {"Between": "between", "Measured": "around"}.items()
    }
    | {
        "cloister.protocol.task.ByClient": "cloister.protocol.task.UnitTask",
        "cloister.protocol.task.ByUnit": "cloister.protocol.task.UnitTask",
        "cloister.protocol.task.BySilo": "cloister.protocol.task.PerSiloTask",
        "cloister.protocol.task.FINE": "cloister.protocol.task.COUNT_BITS",
        "cloister.protocol.task.Released": "cloister.protocol.task.NoisyBlock",
        "cloister.tasks.Released": "cloister.protocol.task.NoisyBlock",
        "cloister.protocol.task.Exhibit": "cloister.core.display.Display",
        "cloister.core.display.Exhibit": "cloister.core.display.Display",
        "cloister.JobResult": "cloister.app.release.Release",
        "cloister.CuratorKMeans": "cloister_lab.estimators.CuratorKMeans",
        "cloister.audit.audit_method": "cloister_lab.audit.curators.audit_method",
    }
)
"""Old names and those of today, in modules that still exist."""

STAY = {"cloister.tasks.kmeans"}
"""Names that checks of others import: they stay, and no warning is given."""


def resolve(module: str, name: str) -> Any:
    """Return what a module's name of old stands for; the body of a module's ``__getattr__``.

    Raises
    ------
    AttributeError, ImportError
        If the module never had the name, or it moved to the laboratory, which is not installed.
    """
    old = f"{module}.{name}"
    if old not in NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, today = NAMES[old].rpartition(".")
    value = getattr(_module(old, home), today)
    _warn(old, NAMES[old], stacklevel=4)
    return value


def _module(old: str, today: str) -> ModuleType:
    """Import the module of today, or say what it needs."""
    try:
        return import_module(today)
    except ModuleNotFoundError as error:
        if error.name != LAB:
            raise
        raise ImportError(
            f"{old} is part of the laboratory now; {INSTALL_LAB_HINT}.", name=old
        ) from None


def _warn(old: str, today: str, stacklevel: int) -> None:
    sentence = f"{old} is {today} now; the old name goes with the next release."
    warnings.warn(sentence, DeprecationWarning, stacklevel)


class _MovedModules(MetaPathFinder, Loader):
    """Finds modules under their old names; ``sys.modules`` then holds today's under both."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _today(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        today = _today(old)
        sys.modules[old] = _module(old, today)
        if old not in STAY:
            _warn(old, today, stacklevel=3)


class _DissolvedPackages(MetaPathFinder, Loader):
    """Finds packages that are gone, as empty ones: Python looks in them for what moved."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        holds = any(old.startswith(f"{fullname}.") for old in MODULES)
        return ModuleSpec(fullname, self, is_package=True) if holds else None

    def exec_module(self, module: ModuleType) -> None:
        pass


def _today(old: str) -> str:
    """Return today's name of a module that moved, by itself or within its package, or ``""``."""
    if old in MODULES:
        return MODULES[old]
    package, _, name = old.rpartition(".")
    return f"{MODULES[package]}.{name}" if package in MODULES else ""


def install() -> None:
    """Let Python find modules under their old names; called by ``import cloister``."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        # first, or a submodule of a package that moved would be loaded a second time
        sys.meta_path.insert(0, _MovedModules())
        sys.meta_path.append(_DissolvedPackages())  # last: the packages of today are found before
