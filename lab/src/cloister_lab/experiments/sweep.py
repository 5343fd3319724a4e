"""What the papers' k-means figures share: methods on tables or mixtures, one unit for each start.

All runs here are under the papers' convention (bounds, length and delta from the table), because
they are made to be compared with published figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from cloister_lab.experiments.compare import make_cell, run_repeat
from cloister_lab.experiments.datasets import BUNDLED, SUFFIXES, Dataset, load
from cloister_lab.experiments.run import Settings, TidyRow, Unit, Value

EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the papers."""

METHODS = ("lloyd", "sulloyd", "glloyd", "fastlloyd", "auto")
"""What FastLloyd's figures compare, and our own."""

NO_HOUSE = "Without House: the image's colours are not at hand, and are not made up"
"""Written on every figure whose original has that data set."""

_PROVENANCE = ("version", "commit", "machine", "stamp")  # the runner adds them
_SILOS = 2


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
        folder = self.data_dir
        return self.name in BUNDLED or (
            folder is not None and any((folder / f"{self.name}{s}").exists() for s in SUFFIXES)
        )


def tables(names: Sequence[str], settings: Settings) -> list[Named]:
    """Return those tables of a list that are asked for and at hand."""
    found = [Named(name, settings.data_dir) for name in names]
    return [t for t in found if t.exists and (not settings.only or t.name in settings.only)]


def sweep(
    sources: Sequence[Source],
    methods: Sequence[str],
    epsilons: Sequence[float],
    repeats: Mapping[str, int] | int,
    metrics: Collection[str] = (),
    options: Mapping[str, Value] | None = None,
    labels: Mapping[str, Value] | None = None,
) -> list[Unit]:
    """Return a unit for each source, method and repeat.

    Parameters
    ----------
    sources : sequence of Source
    methods : sequence of str
        Of `cloister_lab.experiments.compare.METHODS`.
    epsilons : sequence of float, > 0
    repeats : int, or mapping of the names of sources to int
        A mixture is drawn once; the repeat seeds the split into silos and the starting centres.
    metrics : collection of str
        Beside NICV.
    options : mapping, optional
        Of the method.
    labels : mapping, optional
        Columns put before those of the run.

    Returns
    -------
    list of Unit
        Those of a source follow each other, so that a process reads it once.
    """
    options, labels = dict(options or {}), dict(labels or {})
    shown = ",".join(f"{e:g}" for e in epsilons)
    extra = "".join(f" {name}={value}" for name, value in (labels | options).items())
    units = []
    for source in sources:
        for repeat in range(repeats if isinstance(repeats, int) else repeats[source.name]):
            for method in methods:
                key = f"{source.name} {method} e={shown} m={','.join(sorted(metrics))}{extra}"
                work = partial(
                    run_source, source, method, epsilons, repeat, metrics, options, labels
                )
                units.append(Unit(f"{key} r={repeat}", work))
    return units


def run_source(
    source: Source,
    method: str,
    epsilons: Sequence[float],
    repeat: int,
    metrics: Collection[str],
    options: Mapping[str, Value],
    labels: Mapping[str, Value],
) -> list[TidyRow]:
    """Run one method at all epsilons from one start; the optimum is scikit-learn's, if needed."""
    data = loaded(source)
    optimum = data.reference_nicv if {"cost_gap", "centroid_mse"} & set(metrics) else None
    cells = dict.fromkeys(make_cell(data, method, epsilon, _SILOS) for epsilon in epsilons)
    return [
        {
            **labels,
            **options,
            **{name: value for name, value in asdict(row).items() if name not in _PROVENANCE},
            "optimum": optimum,
        }
        for row in run_repeat(data, list(cells), repeat, metrics, **options)
    ]


@lru_cache(maxsize=2)
def loaded(source: Source) -> Dataset:
    """Return the records of a source; units of one source often follow each other in a process."""
    return source.dataset()
