"""``Standardise``: private means and deviations, and records in units of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.declared import Range, declared
from cloister.display import Display
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.task import (
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    PublicFacts,
    Records,
    Released,
    State,
)
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Keep, made
from cloister.tasks.preparation.statistics import Statistics

Reach = Annotated[float, Range(above=0, most=100)]
_FLOOR = 2.0**-8  # of a deviation, as a part of half the box: what is flatter is noise


@declared
class Standardise:
    """Columns of numbers, each less its mean, over its deviation, within a public reach.

    Parameters
    ----------
    statistics : Statistics
        Of the columns that are standardised. The others stay as they are.
    categories : tuple of tuple of str
        Of each column; empty for numbers.
    reach : float, > 0
        Deviations from the mean at which a record is cut.
    """

    name: ClassVar[str] = "standardise"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        """What a user may choose."""

        keep: Keep = ()
        reach: Annotated[Reach, "deviations from the mean to the wall of the new box"] = 4.0

    statistics: Statistics
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    categories: tuple[tuple[str, ...], ...]
    reach: Reach = 4.0

    def __post_init__(self) -> None:
        if len(self.names) != self.n_features:
            raise PlanError(
                f"names must be those of {self.n_features} columns, got {len(self.names)}."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Standardise every column of numbers that is not kept."""
        return made(
            cls,
            facts,
            options,
            statistics=Statistics.design(facts, Statistics.Options(keep=options.keep)),
            reach=float(options.reach),
        )

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.statistics.n_features

    @property
    def frac_bits(self) -> int:
        """Fineness of the grid."""
        return self.statistics.frac_bits

    @property
    def used(self) -> tuple[int, ...]:
        """Columns that are standardised."""
        return self.statistics.used

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns; standardised ones in deviations."""
        return tuple(
            PublicColumn(name, -self.reach, self.reach)
            if j in self.used
            else PublicColumn(name, self.low[j], self.high[j], self.categories[j])
            for j, name in enumerate(self.names)
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"{self.statistics.describe()} Each silo then expresses {len(self.used)} columns of "
            "its records in deviations from the mean."
        )

    def start(self) -> State:
        """Return the state of the statistics."""
        return self.statistics.start()

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of the statistics."""
        return self.statistics.blocks(t)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of the statistics."""
        return self.statistics.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the statistics."""
        return self.statistics.update(t, state, released)

    @cached_property
    def _grid(self) -> Grid:
        """The box of the used columns."""
        low, high = (tuple(ends[j] for j in self.used) for ends in (self.low, self.high))
        return Grid(low, high, self.frac_bits)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return what the statistics expect."""
        return self.statistics.forecast(noise_std, nominal_n, grid)

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the statistics, and the scales made of them.

        Returns
        -------
        dict
            What :meth:`.Statistics.results` returns, and ``scale`` of shape (n_used,), data units:
            the deviations, or a small part of the box where they are smaller.
        """
        found = self.statistics.results(state, grid)
        return {**found, "scale": np.maximum(found["deviation"], _FLOOR * self._grid.half_range)}

    def transform(self, results: Mapping[str, Floats], records: Records) -> Records:
        """Return records whose used columns are deviations from the mean over `reach`."""
        changed = records.copy()
        values = self._grid.decode(records[:, self.used] / self._grid.one)
        scaled = (values - results["mean"]) / (results["scale"] * self.reach)
        changed[:, self.used] = np.rint(np.clip(scaled, -1, 1) * self._grid.one)
        return changed

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return the displays of the statistics."""
        return self.statistics.displays(results, columns)
