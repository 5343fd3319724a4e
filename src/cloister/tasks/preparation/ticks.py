"""Ticks of a column: the multiples of its step between its public bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn

_TINY = 1e-9  # of a step, for the rounding of a quotient
_APART = 4  # grid steps between two ticks, so that an edge between them divides the records
_DIGITS = 12  # of a tick, since 3 * 0.1 is not 0.3


AllTicks = tuple[tuple[float, float, float], ...]
"""The numbers of :class:`Ticks` of each used column."""


@dataclass(frozen=True)
class Ticks:
    """The public numbers that define the values of a column.

    Parameters
    ----------
    low, high : float, data units, ``low < high``
        Bounds of the column. A record beyond a bound was moved to it.
    step : float, data units, >= 0
        Every value between the bounds is a multiple of it; 0 if any number is possible.
    """

    low: float
    high: float
    step: float

    @property
    def _ends(self) -> tuple[int, int]:
        """The first and the last tick, in steps."""
        return ceil(self.low / self.step - _TINY), floor(self.high / self.step + _TINY)

    @property
    def many(self) -> int:
        """Number of ticks."""
        first, last = self._ends
        return last - first + 1

    def between(self, edges: Floats) -> Floats:
        """Return edges of cells, each moved to the middle between two ticks, but for both ends.

        Both are in the coordinates of the box, in [-1, 1]. Equal edges enclose empty cells.
        """
        if not self.step:
            return edges
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return np.hstack([-1.0, ((self._after(edges) - 0.5) * self.step - middle) / half, 1.0])

    def cells(self, edges: Floats, rounding: float) -> tuple[Floats, Floats, Floats]:
        """Return edges of cells, and the least and the greatest value in each, in data units.

        Parameters
        ----------
        edges : ndarray of shape (n_cells + 1,)
            In the coordinates of the box; of a column with a step, results of :meth:`between`.
        rounding : float
            Half a grid step in these coordinates: a record may be so far beyond its cell.
        """
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        if not self.step:
            least, greatest = edges[:-1] - rounding, edges[1:] + rounding
            ends = edges, np.maximum(least, -1.0), np.minimum(greatest, 1.0)
            edges, least, greatest = (middle + half * end for end in ends)
            return edges, least, greatest
        after = self._after(edges)
        # The first and the last cell have the records at the bounds, which may be no ticks.
        return (
            np.hstack([self.low, self._rounded(after - 0.5), self.high]),
            np.hstack([self.low, self._rounded(after)]),
            np.hstack([self._rounded(after - 1), self.high]),
        )

    def nearest(self, values: Floats) -> Floats:
        """Return the tick that is nearest to each value, data units."""
        if not self.step:
            return values
        return self._rounded(np.clip(np.rint(values / self.step), *self._ends))

    def _after(self, edges: Floats) -> Floats:
        """Return the tick above each inner edge, in steps; the first tick is below all."""
        first, last = self._ends
        values = (self.high + self.low) / 2 + (self.high - self.low) / 2 * edges[1:-1]
        return np.clip(np.rint(values / self.step + 0.5), first + 1, last)

    def _rounded(self, ticks: Floats) -> Floats:
        decimals = _DIGITS - ceil(log10(max(abs(self.low), abs(self.high))))
        return np.round(ticks * self.step, decimals)


def ticks_of(columns: Sequence[PublicColumn], frac_bits: int) -> AllTicks:
    """Return bounds and step of each column; no step where the grid does not separate ticks."""
    ticks = []
    for column in columns:
        low, high, step = column.low, column.high, column.step
        apart = 2 * step / (high - low) * 2**frac_bits >= _APART
        ticks.append((low, high, step if apart and Ticks(low, high, step).many > 1 else 0.0))
    return tuple(ticks)


def check_ticks(ticks: AllTicks, n_used: int) -> None:
    """Raise PlanError unless each used column has valid bounds and a step, or none has."""
    # A plan may come from another party.
    valid = all(
        low < high and step >= 0 and (not step or Ticks(low, high, step).many > 1)
        for low, high, step in ticks
    )
    if len(ticks) not in (0, n_used) or not valid:
        raise PlanError(
            f"ticks must be (low, high, step) of each of {n_used} columns, with at least two "
            f"multiples of the step, got {ticks}; design the task again."
        )
