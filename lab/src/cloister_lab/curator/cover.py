"""How many records each ball of a grid holds, and an exact draw of one ball.

The centres are the points of a cubic grid, far too many to list: balls that hold nobody are only
counted. All numbers are integers, so a record is in a ball or not, whatever else is in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, frexp, gamma, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from cloister.core.randomness import ByteSource
from cloister.protocol.task import Floats, Integers
from cloister_lab.tasks.projection import ONE

WEIGHT_BITS = 160
"""The largest weight of a draw is 2**160; see docs/proofs/max_cover.md, section 4."""

_DENSE_CELLS = 1 << 27  # up to so many balls have a number each
_CHUNK_LINES = 1 << 21


@dataclass(frozen=True)
class BallGrid:
    """Balls of one radius around the points of a cubic grid in ``[-1, 1]^n_axes``.

    Parameters
    ----------
    step, radius : int, >= 1
        Spacing of the grid and radius of the balls, in steps of ``1 / ONE``.
    """

    n_axes: int
    step: int
    radius: int

    @classmethod
    def covering(cls, n_axes: int, radius: float) -> BallGrid:
        """Return the published grid: spacing ``radius / sqrt(n_axes)``, balls twice the radius."""
        return cls(n_axes, int(radius * ONE / sqrt(n_axes)), int(2 * radius * ONE))

    @property
    def half(self) -> int:
        """Number of grid points on an axis to either side of zero."""
        return ONE // self.step

    @property
    def side(self) -> int:
        """Number of grid points on an axis."""
        return 2 * self.half + 1

    @property
    def size(self) -> int:
        """Number of balls."""
        return int(self.side**self.n_axes)

    @property
    def breaks(self) -> float:
        """About how often the number of points changes for one point, line by line."""
        m = self.n_axes - 1
        return float(2 * pi ** (m / 2) / gamma(m / 2 + 1) * (self.radius / self.step) ** m)

    def centre(self, number: int) -> Integers:
        """Return the centre of a ball, the last axis counted fastest; shape (n_axes,)."""
        places = []
        for _ in range(self.n_axes):
            number, place = divmod(number, self.side)
            places.append((place - self.half) * self.step)
        return np.array(places[::-1], dtype=np.int64)

    def holds(self, points: Integers, centre: Integers) -> NDArray[np.bool_]:
        """Tell which points are in the ball around a centre."""
        inside: NDArray[np.bool_] = ((points - centre) ** 2).sum(axis=1) <= self.radius**2
        return inside


class Cover:
    """The number of points in every ball of a grid, as points are taken away.

    Balls are kept in slabs of one place on the first axis. On the last axis a ball's number of
    points only changes where some point's chord begins or ends.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_axes), int64, steps of ``1 / ONE``
    """

    def __init__(self, grid: BallGrid, points: Integers) -> None:
        self.grid = grid
        self.points = points
        self._slab_size = grid.size // grid.side if grid.n_axes > 1 else grid.size
        n_slabs = grid.size // self._slab_size
        # Of more balls only those are kept where the number changes, unless that takes more room.
        self._dense = grid.size <= max(_DENSE_CELLS, 3 * grid.breaks * len(points))
        self._breaks: list[Integers] = []
        self._counts: list[NDArray[np.int32]] = []
        self._histograms: list[Integers] = []
        for slab in range(n_slabs):
            begin, end = self._chords(slab, points)
            edges = np.concatenate([np.zeros(1, dtype=np.int64), begin, end])
            self._breaks.append(np.zeros(0, dtype=np.int64) if self._dense else np.unique(edges))
            self._counts.append(np.cumsum(self._changes(slab, begin, end)).astype(np.int32))
            self._histograms.append(self._histogram(slab))

    def histogram(self) -> Integers:
        """Return how many balls hold 0, 1, 2, ... points."""
        total = np.zeros(max(len(found) for found in self._histograms), dtype=np.int64)
        for found in self._histograms:
            total[: len(found)] += found
        return total

    def ball(self, count: int, rank: int) -> int:
        """Return the number of the ball that is the `rank`-th, from 0, to hold `count` points."""
        for slab, found in enumerate(self._histograms):
            of_slab = int(found[count]) if count < len(found) else 0
            if rank < of_slab:
                return slab * self._slab_size + self._place(slab, count, rank)
            rank -= of_slab
        raise IndexError(f"fewer balls hold {count} points.")

    def remove(self, centre: Integers) -> None:
        """Take away the points in the ball around a centre."""
        inside = self.grid.holds(self.points, centre)
        gone, self.points = self.points[inside], self.points[~inside]
        if not len(gone):
            return
        for slab, counts in enumerate(self._counts):
            begin, end = self._chords(slab, gone)
            if not len(begin):
                continue
            counts -= np.cumsum(self._changes(slab, begin, end)).astype(np.int32)
            self._histograms[slab] = self._histogram(slab)

    def _changes(self, slab: int, begin: Integers, end: Integers) -> Integers:
        """Return by how much the number of points changes at each ball, or break, of a slab."""
        size, breaks = self._slab_size, self._breaks[slab]
        if not self._dense:
            size = len(breaks)
            begin, end = np.searchsorted(breaks, begin), np.searchsorted(breaks, end)
        changes: Integers = np.bincount(begin, minlength=size + 1)
        changes -= np.bincount(end, minlength=size + 1)
        return changes[:size]

    def _lengths(self, slab: int) -> Integers:
        """Return how many balls lie between the breaks of a slab."""
        return np.diff(self._breaks[slab], append=self._slab_size)

    def _histogram(self, slab: int) -> Integers:
        """Return how many balls of a slab hold 0, 1, 2, ... points."""
        weights = None if self._dense else self._lengths(slab)
        found: Integers = np.bincount(self._counts[slab], weights=weights).astype(np.int64)
        return found

    def _place(self, slab: int, count: int, rank: int) -> int:
        """Return the place in its slab of the `rank`-th ball there that holds `count` points."""
        matches = np.flatnonzero(self._counts[slab] == count)
        if self._dense:
            return int(matches[rank])
        upto = np.cumsum(self._lengths(slab)[matches])
        run = int(np.searchsorted(upto, rank, side="right"))
        before = int(upto[run - 1]) if run else 0
        return int(self._breaks[slab][matches[run]]) + rank - before

    def _chords(self, slab: int, points: Integers) -> tuple[Integers, Integers]:
        """Return where the balls that hold each point begin and end, line by line, in a slab."""
        grid = self.grid
        left = np.full(len(points), float(grid.radius**2))
        real = points.astype(np.float64)
        if grid.n_axes > 1:
            left -= (real[:, 0] - (slab - grid.half) * grid.step) ** 2
            real = real[:, 1:]
        near = left >= 0
        real, left = real[near], left[near]
        parts = [(np.zeros(0, dtype=np.int64),) * 2]
        lines = min(grid.side, 2 * grid.radius // grid.step + 1) ** max(grid.n_axes - 2, 0)
        rows = max(1, _CHUNK_LINES // lines)
        for first in range(0, len(real), rows):
            parts.append(_lines(real[first : first + rows], left[first : first + rows], grid))
        begin, end = (np.concatenate(of) for of in zip(*parts, strict=True))
        return begin, end


def _lines(points: Floats, left: Floats, grid: BallGrid) -> tuple[Integers, Integers]:
    """Return first and one past the last ball on each line of the last axis that holds a point.

    `left` is what earlier axes leave of the squared radius. Everything is an integer below 2**53,
    also where it is stored as a float: sums, roots' integer parts and quotients' are exact.
    """
    flat = np.zeros(len(points))
    n_axes = points.shape[1]
    for axis in range(n_axes):
        reach = np.floor(np.sqrt(left))
        low = np.maximum(np.ceil((points[:, axis] - reach) / grid.step), -grid.half)
        high = np.minimum(np.floor((points[:, axis] + reach) / grid.step), grid.half)
        if axis == n_axes - 1:
            hit = low <= high
            base = flat[hit] * grid.side + grid.half
            begin, end = base + low[hit], base + high[hit] + 1
            return begin.astype(np.int64), end.astype(np.int64)
        numbers = np.maximum(high - low + 1, 0).astype(np.int64)
        owner = np.repeat(np.arange(len(points)), numbers)
        before = np.cumsum(numbers) - numbers
        place = low[owner] + (np.arange(len(owner)) - before[owner])
        left = left[owner] - (points[owner, axis] - grid.step * place) ** 2
        flat = flat[owner] * grid.side + (place + grid.half)
        points = points[owner]
    raise AssertionError("a grid has an axis")


def count_weights(histogram: Sequence[int] | Integers, pick_epsilon: float) -> list[int]:
    """Return the weight of all balls with 0, 1, 2, ... points in the exponential mechanism.

    The histogram says how many balls hold so many points. Weights are in proportion to ``number *
    exp(pick_epsilon * points / 2)``, the exponential rounded down to a multiple of ``2**-160`` of
    the largest one and at least one such step.
    """
    numbers = [int(number) for number in histogram]
    most = max(points for points, number in enumerate(numbers) if number)
    return [
        number * _scaled_exp(pick_epsilon * (points - most) / 2) if number else 0
        for points, number in enumerate(numbers)
    ]


def _scaled_exp(exponent: float) -> int:
    """Return ``exp(exponent) * 2**160`` rounded down, at least 1; the exponent is <= 0."""
    fraction, power = frexp(exp(exponent))
    shift = WEIGHT_BITS + power - 53
    mantissa = int(fraction * (1 << 53))
    return max(1, mantissa << shift if shift >= 0 else mantissa >> -shift)


def draw_below(bound: int, rand: ByteSource) -> int:
    """Draw an integer in ``[0, bound)``, every one exactly as likely."""
    bits = bound.bit_length()
    size = (bits + 7) // 8
    while True:
        value = int.from_bytes(rand(size), "little") >> (8 * size - bits)
        if value < bound:
            return value


def draw_ball(cover: Cover, pick_epsilon: float, rand: ByteSource) -> int:
    """Draw a ball with probability in proportion to ``exp(pick_epsilon * points / 2)``.

    One that holds nobody may come up as any other. `rand` gives uniform secret bytes.
    """
    histogram = cover.histogram()
    weights = count_weights(histogram, pick_epsilon)
    ticket = draw_below(sum(weights), rand)
    for points, weight in enumerate(weights):
        if ticket < weight:
            return cover.ball(points, ticket % int(histogram[points]))
        ticket -= weight
    raise AssertionError("the ticket is below the sum")


def pick_centres(
    points: Integers,
    grids: Sequence[BallGrid],
    picks: int,
    pick_epsilon: float,
    rand: ByteSource,
) -> Iterator[Integers]:
    """Yield the centres of `picks` balls of each grid; what a ball holds is gone for good.

    There are always so many, also when nobody is left. Points and centres are in steps of
    ``1 / ONE``.
    """
    for grid in grids:
        cover = Cover(grid, points)
        for _ in range(picks):
            centre = grid.centre(draw_ball(cover, pick_epsilon, rand))
            cover.remove(centre)
            yield centre
        points = cover.points
