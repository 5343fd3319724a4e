"""What experiments on k-means share: methods by name, one release, tables, units of work."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.errors import PlanError, PrivacyWarning
from cloister.core.randomness import public_generator
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.plan import Plan
from cloister.protocol.task import Floats, Task
from cloister.tasks import installed
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister_lab import metrics as measures
from cloister_lab.curator import METHODS as CURATORS
from cloister_lab.experiments.datasets import BUNDLED, SUFFIXES, Dataset, load
from cloister_lab.experiments.records import Key, TidyRow, Value, number
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.lloyd import nearest

_NAMES = (
    *("lloyd", "sulloyd", "glloyd", "fastlloyd", "auto", "eugkm", "hybrid", "lshtree"),
    *(
        "feddp-init",
        "dpem",
        "balcan",
        "maxcover-histogram",
        "one-round",
        "kmeans-guarantee-dp",
        "subcluster-dp",
    ),
)
TASKS: dict[str, type[Task]] = {name: installed()[name] for name in _NAMES}
"""Every task that clusters, by name."""

EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the papers."""

METHODS = ("lloyd", "sulloyd", "glloyd", "fastlloyd", "auto")
"""What FastLloyd's figures compare, and our own; they run on tables of any width."""

_OF_LABELS = ("bcss", "davies_bouldin", "calinski_harabasz", "silhouette", "dunn")
METRICS = ("nicv", "centroid_mse", "cost_gap", "empty_clusters", *_OF_LABELS)
"""Columns of a row that hold a metric."""

NO_HOUSE = "Without House: the image's colours are not at hand, and are not made up"
"""Written on every figure whose original has that data set."""

_PAPER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "sulloyd": {"post": "none"},
    "glloyd": {"post": "none"},
}
_SILHOUETTE_SAMPLE = 2000
_SILOS = 2


# --- One release ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What one run released.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features), coordinates of the box
    facts : mapping
        Columns of its row: ``rounds``, ``noise`` and ``plan_digest``.
    """

    centres: Floats
    facts: Mapping[str, Value]


def private(method: str) -> bool:
    """Return whether what a method releases is private."""
    return (CURATORS[method] if method in CURATORS else TASKS[method]).private


def takes_epsilon(method: str) -> bool:
    """Return whether a method has an epsilon, even if it does not keep its promise."""
    return method in CURATORS or private(method)


def plan_of(
    data: Dataset, method: str, epsilon: float, seed: int, silos: int = _SILOS, **options: Any
) -> Plan:
    """Write the plan of one run; the seed is that of the public starting centres.

    Options of the method come before those of the papers.

    Raises
    ------
    PlanError
        If the method is not known, or not for such a table.
    """
    if method not in TASKS:
        raise PlanError(f"methods must be among {list(TASKS)}, got {method!r}.")
    task = TASKS[method]
    papers = _PAPER_OPTIONS.get(method, {}) if data.convention == "fastlloyd-paper" else {}
    budget = Budget(epsilon, delta_of(data, method)) if task.private else None
    options = {"n_clusters": data.n_clusters, **papers, **options}
    return plan_for(task, data, budget, seed, silos, **options)


def plan_for(
    task: type[Task], data: Dataset, budget: Budget | None, seed: int, silos: int, **options: Any
) -> Plan:
    """Write a plan of any task over a table; all options are the task's own."""
    if task is FastLloyd:  # the published method has no estimation after its rounds
        options = {"estimate": False, **options}
    return make_plan(
        task,
        data.schema,
        [f"silo-{index}" for index in range(silos)],
        budget=budget,
        nominal_n=data.nominal_n,
        public_seed=seed,
        **options,
    )


def delta_of(data: Dataset, method: str) -> float:
    """Return the delta of a method: 0 if it is pure, 1 if it is not private."""
    if not private(method):
        return 1.0
    pure = getattr(TASKS.get(method), "mechanism", "") == "laplace"
    return 0.0 if pure else data.delta


def release(
    data: Dataset, method: str, epsilon: float, seed: int, silos: int = _SILOS, **options: Any
) -> Answer:
    """Run a task over silos of equal size, dealt anew by the seed, or a curator's method."""
    if method in CURATORS:
        return _of_curator(data, method, epsilon, seed, **options)
    plan = plan_of(data, method, epsilon, seed, silos, **options)
    order = public_generator(seed, "split", data.name).permutation(len(data.records))
    parts = np.array_split(data.records[order], silos)
    result = run_plan(plan, {s: [part] for s, part in zip(plan.silos, parts, strict=True)})
    return Answer(
        plan.grid.normalise(result.results["centres"]),
        {"rounds": plan.rounds, "noise": result.noise, "plan_digest": plan.digest.hex()},
    )


def _of_curator(data: Dataset, method: str, epsilon: float, seed: int, **options: Any) -> Answer:
    grid, source = data.schema.grid(), DiscreteNoise()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # rows and figures say so
        designed = CURATORS[method].design(
            n_clusters=data.n_clusters,
            n_features=grid.n_features,
            nominal_n=data.nominal_n,
            budget=Budget(epsilon, data.delta),
            frac_bits=grid.frac_bits,
            public_seed=seed,
            **options,
        )
        centres = designed.release(data.records, source)
    return Answer(centres, {"rounds": 1, "noise": source.label, "plan_digest": None})


def measure(data: Dataset, centres: Floats, metrics: Collection[str]) -> dict[str, Value]:
    """Return NICV and the other metrics asked for; exact on data, not a release.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features), coordinates of the box
    metrics : collection of str
        Of `METRICS`; the others are None.
    """
    values = data.values
    nicv = measures.nicv(values, centres)
    labels = nearest(values, centres)

    def of(name: str) -> float:
        match name:
            case "nicv":
                return nicv
            case "centroid_mse":
                return measures.centroid_mse(centres, data.reference_centres)
            case "cost_gap":
                return measures.cost_gap(nicv, data.reference_nicv)
            case "empty_clusters":
                return float(measures.empty_clusters(values, centres))
            case "silhouette":
                return measures.silhouette(values, labels, sample_size=_SILHOUETTE_SAMPLE)
        return float(getattr(measures, name)(values, labels))

    return {name: of(name) if name in {"nicv", *metrics} else None for name in METRICS}


def run_once(
    data: Dataset,
    method: str,
    epsilon: float,
    seed: int,
    metrics: Collection[str] = (),
    silos: int = _SILOS,
    **options: Any,
) -> TidyRow:
    """Run a task once and measure it on the data; the seed is also the number of the repeat."""
    answer = release(data, method, epsilon, seed, silos, **options)
    return {
        "dataset": data.name,
        "method": method,
        "epsilon": float(epsilon) if takes_epsilon(method) else math.inf,
        "delta": delta_of(data, method),
        "silos": silos,
        "n_clusters": data.n_clusters,
        "nominal_n": data.nominal_n,
        "convention": data.convention,
        "schema_digest": data.schema.digest()[:16],
        "repeat": seed,
        **measure(data, answer.centres, metrics),
        "n_features": data.records.shape[1],
        **answer.facts,
    }


# --- Tables and units -----------------------------------------------------------------------------


class Source(Protocol):
    """Where records come from; small, can be pickled, and can be a key."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """What the data set is called."""

    def dataset(self) -> Dataset:
        """Return the records on the grid, under the papers' convention."""


@dataclass(frozen=True)
class Named:
    """A table in a data folder, or one that ships with scikit-learn."""

    name: str
    data_dir: Path | None = None

    def dataset(self) -> Dataset:
        """Read the table."""
        return load(self.name, convention="fastlloyd-paper", data_dir=self.data_dir)

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        found = Settings(Path(), data_dir=self.data_dir).file(self.name, SUFFIXES)
        return self.name in BUNDLED or found is not None


def tables(names: Sequence[str], settings: Settings) -> list[Named]:
    """Return those tables of a list that are asked for and at hand."""
    found = [Named(name, settings.data_dir) for name in names]
    return [table for table in found if table.exists and settings.wants(table.name)]


def sweep(
    sources: Sequence[Source],
    methods: Sequence[str],
    epsilons: Sequence[float],
    repeats: Mapping[str, int] | int,
    metrics: Collection[str] = (),
    options: Mapping[str, Value] | None = None,
    labels: Mapping[str, Value] | None = None,
) -> list[Unit]:
    """Return a unit for each source, method and repeat; those of a source follow each other.

    Parameters
    ----------
    repeats : int, or mapping of the names of sources to int
        A mixture is drawn once; the repeat seeds the split into silos and the starting centres.
    metrics : collection of str
        Beside NICV.
    options, labels : mapping, optional
        Options of the method, and columns put before those of the run.
    """
    return [
        unit
        for source in sources
        for unit in units_of(
            run_source,
            source=[source],
            repeat=range(repeats if isinstance(repeats, int) else repeats[source.name]),
            method=methods,
            epsilons=[tuple(epsilons)],
            metrics=[tuple(sorted(metrics))],
            labels=[labels or {}],
            options=[options or {}],
        )
    ]


def run_source(
    source: Source,
    method: str,
    epsilons: Sequence[float],
    repeat: int,
    metrics: Collection[str],
    options: Mapping[str, Value] | None = None,
    labels: Mapping[str, Value] | None = None,
    silos: int = _SILOS,
) -> list[TidyRow]:
    """Run one method at all epsilons from one start; the optimum is scikit-learn's, if needed."""
    data = loaded(source)
    optimum = data.reference_nicv if {"cost_gap", "centroid_mse"} & set(metrics) else None
    options = options or {}
    return [
        {
            **(labels or {}),
            **options,
            **run_once(data, method, epsilon, repeat, metrics, silos, **options),
            "optimum": optimum,
        }
        for epsilon in (epsilons if takes_epsilon(method) else epsilons[:1])
    ]


@lru_cache(maxsize=2)
def loaded(source: Source) -> Dataset:
    """Return the records of a source; units of one source often follow each other in a process."""
    return source.dataset()


def areas(rows: Sequence[TidyRow]) -> list[TidyRow]:
    """Return the first row of each table, method and repeat with its area under NICV over epsilon.

    Runs of fewer than two finite epsilons have none, and are left out.
    """
    runs: dict[Key, list[TidyRow]] = {}
    for row in rows:
        if math.isfinite(number(row, "epsilon")):
            runs.setdefault((row["dataset"], row["method"], row["repeat"]), []).append(row)
    found: list[TidyRow] = []
    for run in runs.values():
        points = sorted((number(row, "epsilon"), number(row, "nicv")) for row in run)
        if len(points) > 1:
            area = measures.nicv_area(*zip(*points, strict=True))
            found.append({**run[0], "epsilon": None, "area": area})
    return found
