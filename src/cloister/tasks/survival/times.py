"""Public cells of time: the ticks of a column with a step, or fine cells at every scale."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil, floor
from typing import Annotated

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.declared import Positive, Range, Whole, declared
from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import codes, grid_of, position

MOST_CELLS = 4096
_FIRST_OCTAVE, _OCTAVE = 1024, 64  # cells in the upper half of the horizon; least in any octave
_OCTAVES = 12
_MOST_WORDS = 1 << 17  # of a release
_TINY = 1e-9  # of a tick, for the rounding of a quotient


def followed(columns: Sequence[PublicColumn], time: str, event: str) -> tuple[int, int]:
    """Return the indices of the columns of follow-up time and of the event."""
    i, j = position(columns, time, "time"), position(columns, event, "event")
    if columns[i].date:
        raise PlanError(
            f"time must be the length of the follow-up, got the dates {time!r}; write the number "
            "of days between two dates into a column, such as (end - start).dt.days of a frame."
        )
    if columns[i].levels or columns[i].low < 0:
        raise PlanError(f"time must be a numeric column whose min is at least 0, got {time!r}.")
    if not columns[j].is_boolean:
        raise PlanError(
            f"event must be a boolean column, got {event!r}; give it the type boolean in the "
            "schema, which also reads 0 and 1 ('yes-no' in Schema.propose)."
        )
    return i, j


def coefficients_of(columns: Sequence[PublicColumn]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the name and the unit of each coefficient of covariates.

    A number has the unit of half its box. Each category but the first has a coefficient relative to
    the first, with the unit 1; so has a boolean.
    """
    named = [
        (name, 1.0 if column.levels else (column.high - column.low) / 2)
        for column in columns
        for name in (
            [column.name]
            if column.is_boolean or not column.levels
            else [f"{column.name}={label}" for label in column.categories[1:]]
        )
    ]
    return tuple(name for name, _ in named), tuple(unit for _, unit in named)


@declared
class Horizon:
    """The public numbers that define the cells of time.

    Parameters
    ----------
    low, high : float, ``0 <= low < high``
        Bounds of the column, data units. A record at `high` may have been clipped to it, so it is
        followed beyond all cells.
    tau : float in (low, high]
        Records with a longer follow-up are followed beyond all cells.
    step : float, >= 0
        Step of the column; each of its multiples is a cell. If 0, cells are at most 1.6 % of their
        time long, or a two-thousandth of `tau`.
    most : int
        Largest number of cells. If the column has more ticks, a cell joins equally many.
    """

    low: Annotated[float, Range(0)]
    high: float
    tau: Positive
    step: Annotated[float, Range(0)] = 0.0
    most: Whole = MOST_CELLS
    frac_bits: int = 16

    def __post_init__(self) -> None:
        if not self.low < self.tau <= self.high:
            raise PlanError(
                f"tau must be in ({self.low:g}, {self.high:g}], the bounds of the times, got "
                f"{self.tau:g}."
            )
        if not len(self.ends) or (np.diff(self.walls) <= 0).any():
            raise PlanError(
                f"tau must leave ticks of {self.step:g} between the bounds "
                f"({self.low:g}, {self.high:g}) that the grid separates, got {self.tau:g}; use "
                "narrower bounds or more bits of the grid."
            )

    @staticmethod
    def most_for(tables: int) -> int:
        """Return the largest number of cells for a number of tables of exits."""
        return min(MOST_CELLS, _MOST_WORDS // tables - 1)

    @property
    def one(self) -> int:
        """The grid value of `high`."""
        return 1 << self.frac_bits

    @cached_property
    def _joined(self) -> tuple[Floats, Floats]:
        """First and last tick of each cell of a column with a step."""
        first, last = ceil(self.low / self.step - _TINY), floor(self.tau / self.step + _TINY)
        last = min(last, ceil(self.high / self.step - _TINY) - 1)  # at the bound: beyond all cells
        each = max(1, -(-(last - first + 1) // self.most))
        ticks = np.arange(first, last + 1, each, dtype=np.float64)
        return ticks * self.step, np.minimum(ticks + (each - 1), last) * self.step

    @cached_property
    def ends(self) -> Floats:
        """The last time of each cell, data units; shape (cells,)."""
        if self.step:
            return self._joined[1]
        octaves: list[Floats] = []
        for k in range(_OCTAVES):
            cells = max(_FIRST_OCTAVE >> k, _OCTAVE)
            octaves.append(self.tau * 2.0**-k * (1 - np.arange(cells) / (2 * cells)))
        rest = np.arange(_OCTAVE, 0, -1) / _OCTAVE * (self.tau * 2.0**-_OCTAVES)
        ends = np.sort(np.concatenate([*octaves, rest]))
        ends = ends[ends > self.low]
        # Of cells that the grid does not separate, the last one counts.
        _, reversed_place = np.unique(self._steps_of(ends)[::-1], return_index=True)
        ends = ends[::-1][reversed_place]
        each = max(1, -(-len(ends) // self.most))
        return np.asarray(ends[::-1][::each][::-1])

    @cached_property
    def starts(self) -> Floats:
        """The first time of each cell: its first tick, or the end of the cell before it."""
        if self.step:
            return self._joined[0]
        return np.append(self.low, self.ends[:-1])

    @cached_property
    def middles(self) -> Floats:
        """The mean time of each cell, and `tau` for the records beyond; shape (cells + 1,)."""
        return np.append((self.starts + self.ends) / 2, self.tau)

    @cached_property
    def walls(self) -> Integers:
        """Ends of cells in grid steps; a record on one is in the cell before it."""
        return self._steps_of(self.ends)

    def _steps_of(self, times: Floats) -> Integers:
        grid = grid_of([PublicColumn("", self.low, self.high)], self.frac_bits)
        return np.asarray(grid.encode(times[:, None])[:, 0], dtype=np.int64)

    def exits(
        self,
        table: Integers,
        tables: int,
        times: Records,
        event: Records,
        weights: Integers | None = None,
    ) -> Integers:
        """Return the number of records that leave in each cell, with the event and without it.

        Parameters
        ----------
        table : ndarray of shape (n_samples,)
            The table of each record.
        times, event : ndarray of shape (n_samples,), grid steps
        weights : ndarray of shape (n_samples,), optional
            What each record adds in place of 1; sums are exact below 2**53.

        Returns
        -------
        ndarray of shape (tables, 2, cells + 1)
            A record counts once. The last cell of the second row is for records beyond all cells.
        """
        size = len(self.walls) + 1
        # Grid integers, so that a record adds to the same element on every machine.
        cell = np.searchsorted(self.walls, times, side="left")
        cell[times >= self.one] = size - 1
        without = (codes(event, 2, self.frac_bits) == 0) | (cell == size - 1)
        place = (2 * table + without) * size + cell
        counts = np.bincount(place, weights, minlength=2 * tables * size)
        return counts.astype(np.int64, copy=False).reshape(tables, 2, size)
