"""Base classes of tasks that measure columns of numbers and transform records accordingly."""

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
    """A task whose first rounds are those of a task that measures columns of numbers.

    Parameters
    ----------
    low, high : tuple of float, data units
        Bounds of all columns.
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
    """A measuring task whose results transform the used columns of records.

    Parameters
    ----------
    names, categories : tuple, one entry for each column
        The fields of its :class:`~cloister.protocol.task.PublicColumn`.
    """

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        # The fields come from a plan, which another party may have written.
        fields = (self.names, self.low, self.high, self.categories)
        if lengths := {len(values) for values in fields} - {self.n_features}:
            raise PlanError(
                f"names, low, high and categories must have {self.n_features} entries each, got "
                f"{min(lengths)}; design the task again."
            )

    @abstractmethod
    def changed(self, name: str) -> PublicColumn:
        """Return the transformed column of a used column with this name."""

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns after the transformation."""
        # A function of the plan alone: the next step is designed before any release.
        columns = columns_of(self.names, self.low, self.high, self.categories)
        return tuple(
            self.changed(column.name) if j in self.used else column
            for j, column in enumerate(columns)
        )


@declared
class Scaled(Changing):
    """A measuring task whose results scale columns of numbers."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """The largest value of a scaled column."""

    @abstractmethod
    def scaled(self, results: Results, values: Floats) -> Floats:
        """Return the used columns, converted from data units to shares of `reach`."""

    def changed(self, name: str) -> PublicColumn:
        return PublicColumn(name, -self.reach, self.reach)

    def transform(self, results: Results, records: Records) -> Records:
        """Return records whose used columns are scaled and clipped to `reach`."""
        # Element by element: no other record may change the last bit of a row.
        grid, changed = self.used_box, records.copy()
        scaled = self.scaled(results, grid.decode(records[:, self.used] / grid.one))
        # Clipped and rounded to the grid, so that the bounds of the next step hold.
        changed[:, self.used] = np.rint(np.clip(scaled, -1, 1) * grid.one)
        return changed
