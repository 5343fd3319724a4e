"""Tasks that measure columns of numbers, and then express records in units of what they found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import declared
from cloister.core.display import Display
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicColumn, Rows
from cloister.tasks.columns import columns_of
from cloister.tasks.preparation.quantiles import Quantiles
from cloister.tasks.preparation.statistics import Statistics


@declared
class Measuring(Gaussian, ABC):
    """A task whose first rounds are those of one that measures columns of numbers.

    Parameters
    ----------
    low, high : tuple of float, data units
        The box of all columns.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    @abstractmethod
    def measuring(self) -> Quantiles | Statistics:
        """The task that measures the columns."""

    @property
    def n_features(self) -> int:
        return self.measuring.n_features

    @property
    def frac_bits(self) -> int:
        return self.measuring.frac_bits

    @property
    def used(self) -> tuple[int, ...]:
        """Columns of numbers that are measured."""
        return self.measuring.used

    @cached_property
    def used_box(self) -> Grid:
        """The public box of the used columns."""
        low, high = (tuple(ends[j] for j in self.used) for ends in (self.low, self.high))
        return Grid(low, high, self.frac_bits)

    @property
    def rounds(self) -> int:
        return self.measuring.rounds

    def start(self) -> State:
        return self.measuring.start()

    def blocks(self, t: int) -> tuple[Block, ...]:
        return self.measuring.blocks(t)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        return self.measuring.rows(t, state, records)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        return self.measuring.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        return self.measuring.update(t, state, released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        return self.measuring.forecast(noise_std, nominal_n, grid)

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        return self.measuring.displays(results, columns)


@declared
class Changing(Measuring):
    """The rounds of a task that measures, and records whose used columns its results change.

    Parameters
    ----------
    names, categories : tuple, one entry for each column
        Those of its :class:`~cloister.protocol.task.PublicColumn`.
    """

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        parts = (self.names, self.low, self.high, self.categories)
        if lengths := {len(part) for part in parts} - {self.n_features}:
            raise PlanError(
                f"names, low, high and categories must be those of {self.n_features} columns, got "
                f"{min(lengths)}; design the task again."
            )

    @abstractmethod
    def changed(self, name: str) -> PublicColumn:
        """Return what a used column of this name becomes."""

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns after the change."""
        columns = columns_of(self.names, self.low, self.high, self.categories)
        return tuple(
            self.changed(column.name) if j in self.used else column
            for j, column in enumerate(columns)
        )


@declared
class Scaled(Changing):
    """Columns of numbers, scaled by what was measured."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """The largest value of a scaled column."""

    @abstractmethod
    def scaled(self, results: Results, values: Floats) -> Floats:
        """Return the used columns, from data units to parts of `reach`."""

    def changed(self, name: str) -> PublicColumn:
        return PublicColumn(name, -self.reach, self.reach)

    def transform(self, results: Results, records: Records) -> Records:
        """Return records whose used columns are scaled, and cut at `reach`."""
        grid, changed = self.used_box, records.copy()
        scaled = self.scaled(results, grid.decode(records[:, self.used] / grid.one))
        changed[:, self.used] = np.rint(np.clip(scaled, -1, 1) * grid.one)
        return changed
