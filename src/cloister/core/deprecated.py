"""All public names that moved, with their new places: one list, kept for one release.

Importing ``cloister`` installs a finder. ``import cloister.tasks.balcan`` then yields the current
module and a `DeprecationWarning` with its name. If a name left a module that still exists, the
``__getattr__`` of that module calls :func:`resolve`. Names that moved to the laboratory require the
package ``cloister-lab``; without it, an ImportError names the command to install it.
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
"""Command that installs the laboratory."""

# Old modules that are now in a folder, under their old last name.
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
"""Old and current names of modules; the submodules of a package move with it."""

# Names that the package itself had before it kept the forty that most programs need.
_OFF_THE_TOP = {
    "cloister.app.in_process": "run_plan",
    "cloister.app.payment": "Account",
    "cloister.app.release": "Release",
    "cloister.core.errors": """LedgerError LocalProtocolError ProtocolError RemoteProtocolError
        TransportError UncountedWarning""",
    "cloister.data.schema": "Column catalogue_schema",
    "cloister.estimators.association": "RuleSet",
    "cloister.estimators.measures": "Measures",
    "cloister.estimators.select_k": "KSelection",
    "cloister.privacy.filter": "Split",
    "cloister.protocol.task": "Task",
    "cloister.tasks": "TASKS",
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
        f"{module}.{old}": f"cloister.core.display.{name}"
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
"""Old and current places of names whose old module still exists."""

STAY = {"cloister.tasks.kmeans"}
"""Old names without a warning, since checks outside this repository import them."""


def resolve(module: str, name: str) -> Any:
    """Return the value of an old name of a module; the body of a module's ``__getattr__``.

    Raises
    ------
    AttributeError, ImportError
        If the module never had the name, or it moved to the laboratory, which is not installed.
    """
    old = f"{module}.{name}"
    if old not in NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, today = NAMES[old].rpartition(".")
    # Before the warning: a name that cannot be imported must not be advertised.
    value = getattr(_module(old, home), today)
    _warn(old, NAMES[old], stacklevel=4)
    return value


def _module(old: str, today: str) -> ModuleType:
    """Import the current module. Raise an ImportError with the remedy if it is not installed."""
    try:
        return import_module(today)
    except ModuleNotFoundError as error:
        if error.name != LAB:
            raise  # another module is missing, so the hint would be wrong
        raise ImportError(
            f"{old} is part of the laboratory now; {INSTALL_LAB_HINT}.", name=old
        ) from None


def _warn(old: str, today: str, stacklevel: int) -> None:
    sentence = f"{old} is {today} now; the old name goes with the next release."
    warnings.warn(sentence, DeprecationWarning, stacklevel)


class _MovedModules(MetaPathFinder, Loader):
    """Finder of modules under old names; ``sys.modules`` has the module under both names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _today(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        today = _today(old)
        # The same module under both names, so that its classes exist once.
        sys.modules[old] = _module(old, today)
        if old not in STAY:
            _warn(old, today, stacklevel=3)


class _DissolvedPackages(MetaPathFinder, Loader):
    """Finder of removed packages, as empty ones: Python imports a package before its modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        holds = any(old.startswith(f"{fullname}.") for old in MODULES)
        return ModuleSpec(fullname, self, is_package=True) if holds else None

    def exec_module(self, module: ModuleType) -> None:
        pass


def _today(old: str) -> str:
    """Return the current name of a module that moved, alone or with its package, or ``""``."""
    if old in MODULES:
        return MODULES[old]
    package, _, name = old.rpartition(".")
    return f"{MODULES[package]}.{name}" if package in MODULES else ""


def install() -> None:
    """Let Python find modules under their old names; called by ``import cloister``."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        # First, or a submodule of a package that moved would be loaded a second time.
        sys.meta_path.insert(0, _MovedModules())
        sys.meta_path.append(_DissolvedPackages())  # last, so that existing packages are found
