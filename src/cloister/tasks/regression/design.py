"""Columns of a regression: their places from noisy counts, and the rows that follow.

Two noisy histograms give centre, deviation and reach of each number, one the share of each
category. Then a record is a row: differences to centres, times public scales, and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import sqrt

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.protocol.task import COUNT_BITS, Block, NoisyBlock, Rows
from cloister.tasks.columns import codes

TAILS = 4
"""Number of classes beyond a window on each side, each twice as wide as the one before."""
PLACES, SPREADS = range(2)
"""Rounds of counts."""

_FEWEST_BINS, _MOST_BINS = 16, 128
_FEW = 2.5  # units in a bin, in its noise
_SURE = 3.0  # deviations of noise, above which counts are relied on
_FAR = 2.5  # no column reaches farther than this in a row
_ALIKE, _STEPS = 0.8, 1.5  # share of records in one bin; deviation in bins
_SEEN = 2.0  # deviations of noise, above which a category is seen


@dataclass(frozen=True)
class Term:
    """A column of the model before its scale.

    Parameters
    ----------
    of : function of records
        For a number, its values in the box ``[-1, 1]``, of shape (n_samples,). For categories, the
        code of each record. The value of a record depends on this record alone.
    low, high : float, data units
        The values of a number at -1 and 1.
    levels : tuple of str
        Names of categories; empty for a number.
    """

    name: str
    of: Callable[[Records], Floats | Integers]
    low: float = 0.0
    high: float = 1.0
    levels: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """Number of entries in a row: one category is the reference and has none."""
        return max(len(self.levels) - 1, 1)

    def in_data_units(self, records: Records) -> Floats:
        """Return the values of a number, of shape (n_samples,)."""
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return np.asarray(middle + half * np.asarray(self.of(records), dtype=np.float64))


def term_of(column: int, levels: int, low: float, high: float, frac_bits: int) -> Term:
    """Return a column of records as a term; `levels` is 0 for a number."""
    if levels:
        of = partial(_codes, column, levels, frac_bits)
        return Term(str(column), of, levels=tuple(map(str, range(levels))))
    return Term(str(column), partial(_places, column, 1 << frac_bits), low, high)


# Functions with names: a task is sent to workers, and a fitted model is stored.


def _codes(column: int, levels: int, frac_bits: int, records: Records) -> Integers:
    return codes(records[:, column], levels, frac_bits)


def _places(column: int, one: int, records: Records) -> Floats:
    return records[:, column] / one


@dataclass(frozen=True)
class Placed:
    """Places and scales of columns: public after two rounds.

    Arrays have an entry for each slot of a row but the constant, unless stated otherwise. `reach`
    and `spread` are lengths in a row.
    """

    reference: Integers  # of each term: the most frequent category, 0 for a number
    window: Floats  # counted in the second round, of shape (n_numbers, 2)
    centre: Floats
    scale: Floats
    reach: Floats  # of the farthest value that stands out of the noise
    spread: Floats  # standard deviation
    shown: Floats  # 0 for a category that is not in the equations
    rare: Floats  # number of units with the rarer value of an indicator; 0 for a number
    target: Floats  # of shape (3,): centre, deviation and reach of the target
    exposed: float  # centre of the offset
    n: float  # noisy number of units, at least its noise
    n_std: float


@dataclass(frozen=True)
class Design:
    """Terms of a model with its target, and what is counted of them.

    Parameters
    ----------
    bins : int
        Number of bins of the box, and of a window in it.
    offset : Term, optional
        A number that is added to the margin; it is counted in the first round only.
    """

    terms: tuple[Term, ...]
    target: Term
    bins: int = 64
    offset: Term | None = None

    @cached_property
    def slots(self) -> tuple[slice, ...]:
        """Entries of each term in a row."""
        ends = list(accumulate((term.slots for term in self.terms), initial=0))
        return tuple(slice(*pair) for pair in pairwise(ends))

    @property
    def width(self) -> int:
        """Number of entries of a row; the constant 1 is the last."""
        return sum(term.slots for term in self.terms) + 1

    @cached_property
    def _counted(self) -> tuple[Term, ...]:
        """Terms of the first histogram."""
        return (*self.terms, self.target, *([self.offset] if self.offset else []))

    @cached_property
    def _numbers(self) -> tuple[Term, ...]:
        """Terms of the second histogram, the target last."""
        return tuple(term for term in (*self.terms, self.target) if not term.levels)

    # What is counted ------------------------------------------------------------------------------

    def enough_bins(self, units: int, multiplier: float, share: float) -> int:
        """Return a number of bins, each of which has enough of the units for its noise."""
        noise, bins = multiplier * sqrt(self.places[1] / share), _FEWEST_BINS
        # Doubled while it is exact: a logarithm may differ in its last bit between machines.
        while bins < _MOST_BINS and _FEW * bins * noise <= units:
            bins *= 2
        return bins

    def count_block(self, t: int, share: float) -> Block:
        """Return the block of a round of counts."""
        size, touched = self.spreads if t else self.places
        return Block.counting("spreads" if t else "places", (size,), share, touched)

    def count_rows(
        self,
        t: int,
        placed: Placed,
        records: Records,
        owner: Integers | None,
        share: Floats | None = None,
    ) -> Rows:
        """Return the rows of records to the block of counts.

        `owner` is the number of the unit of each record, None if each is one. A unit shares its
        counts between its records, equally unless `share` has their parts.
        """
        cells = self.cells_of_spreads(placed, records) if t else self.cells_of_places(records)
        part = np.full(len(records), 1 << COUNT_BITS, dtype=np.int64)
        if share is not None:
            part = np.trunc(part * share).astype(np.int64)
        elif owner is not None:
            part //= np.bincount(owner)[owner]
        return Rows(cells, np.repeat(part[:, None], cells.shape[1], axis=1))

    def read_counts(self, t: int, before: Placed, released: Mapping[str, NoisyBlock]) -> Placed:
        """Return places of columns from a round of counts."""
        words, noise_std = released["spreads" if t else "places"].in_records()
        if t == PLACES:
            return self.read_places(before, words, noise_std)
        return self.read_spreads(before, words.reshape(self.spreads[1], -1), noise_std)

    @property
    def places(self) -> tuple[int, int]:
        """Number of words of the first histogram, and of those that a record touches."""
        sizes = [len(term.levels) or self.bins for term in self._counted]
        return sum(sizes) + 1, len(sizes) + 1

    @property
    def spreads(self) -> tuple[int, int]:
        """Number of words of the second histogram, and of those that a record touches."""
        touched = max(len(self._numbers), 1)  # a block is never empty
        return touched * (self.bins + 2 * TAILS), touched

    def cells_of_places(self, records: Records) -> Integers:
        """Return the word of each column that a record touches; shape (n_samples, touched)."""
        cells, first = [], 0
        for term in self._counted:
            size = len(term.levels) or self.bins
            values = term.of(records)
            if not term.levels:
                values = np.floor((np.asarray(values) + 1) * (size / 2))
            cells.append(first + _whole(values, size))
            first += size
        return np.stack([*cells, np.full(len(records), first, dtype=np.int64)], axis=1)

    def cells_of_spreads(self, placed: Placed, records: Records) -> Integers:
        """Return the word of each number that a record touches; shape (n_samples, touched)."""
        size, cells = self.bins + 2 * TAILS, []
        for k, (term, window) in enumerate(zip(self._numbers, placed.window, strict=False)):
            found = np.searchsorted(_edges(window, self.bins)[1:-1], term.of(records), side="right")
            cells.append(k * size + _whole(found, size))
        if not cells:
            cells = [np.zeros(len(records), dtype=np.int64)]
        return np.stack(cells, axis=1)

    # What follows from counts ---------------------------------------------------------------------

    def unplaced(self) -> Placed:
        """Return the state before the first round."""
        p = self.width - 1
        zeros, ones = np.zeros(p), np.ones(p)
        return Placed(
            np.zeros(len(self.terms), dtype=np.int64),
            np.tile([-1.0, 1.0], (max(len(self._numbers), 1), 1)),
            *(zeros, ones, ones, ones, ones, zeros),
            target=np.array([0.0, 1.0, 1.0]),
            exposed=0.0,
            n=1.0,
            n_std=1.0,
        )

    def read_places(self, before: Placed, words: Floats, noise_std: float) -> Placed:
        """Return shares of categories, the number of units, and windows of numbers."""
        n = max(float(words[-1]), noise_std, 1.0)  # a divisor below
        sizes = [len(term.levels) or self.bins for term in self._counted]
        counts = np.split(words[:-1], np.cumsum(sizes)[:-1])
        ends = np.linspace(-1, 1, self.bins + 1)
        window, at = before.window.copy(), 0
        for term, found in zip((*self.terms, self.target), counts, strict=False):
            if not term.levels:
                first, last = _seen(found, noise_std)
                window[at] = ends[max(first - 1, 0)], ends[min(last + 2, self.bins)]
                at += 1
        placed = replace(before, window=window, n=n, n_std=noise_std)
        if self.target.levels:
            share = float(np.clip(counts[len(self.terms)][1] / n, 0.0, 1.0))
            placed = replace(placed, target=np.array([2 * share - 1, 1.0, 1.0]))
        if self.offset:
            first, last = _seen(counts[-1], noise_std)
            centre, _ = _moments(counts[-1], (ends[1:] + ends[:-1]) / 2, first, last)
            placed = replace(placed, exposed=centre)
        return self._with_categories(placed, counts, noise_std)

    def _with_categories(
        self, placed: Placed, counts: Sequence[Floats], noise_std: float
    ) -> Placed:
        reference, n = placed.reference.copy(), placed.n
        share = np.full(self.width - 1, 0.5)
        shown, rare = np.ones(self.width - 1), np.zeros(self.width - 1)
        of_category = np.zeros(self.width - 1, dtype=bool)
        for j, (term, part) in enumerate(zip(self.terms, self.slots, strict=True)):
            if term.levels:
                # Noise in the most frequent category is the smallest part of a difference to it.
                reference[j] = int(np.argmax(counts[j]))
                found = np.delete(counts[j], reference[j])
                share[part] = np.clip(found, noise_std, max(n - noise_std, noise_std)) / n
                shown[part] = (found > _SEEN * noise_std) & (found < n - _SEEN * noise_std)
                rare[part] = np.maximum(np.minimum(found, n - found), 0.0) + noise_std
                of_category[part] = True
        share = np.clip(share, 1e-6, 1 - 1e-6)
        deviation = 2 * np.sqrt(share * (1 - share))
        scale, reach, spread = _scaled(deviation, 2 * np.maximum(share, 1 - share))
        return replace(
            placed,
            reference=reference,
            centre=np.where(of_category, 2 * share - 1, 0.0),
            scale=scale,
            reach=reach,
            spread=spread,
            shown=shown,
            rare=rare,
        )

    def read_spreads(self, before: Placed, words: Floats, noise_std: float) -> Placed:
        """Return centre, scale, reach and deviation of all columns."""
        placed, at = before, 0
        arrays = [getattr(before, name).copy() for name in ("centre", "scale", "reach", "spread")]
        for term, part in zip((*self.terms, self.target), (*self.slots, None), strict=True):
            if term.levels:
                continue
            found = _place(words[at], before.window[at], self.bins, noise_std, before.n)
            at += 1
            if part is None:
                placed = replace(placed, target=np.array(found))
                continue
            centre, deviation, reach = np.array(found)[:, None]
            for array, value in zip(arrays, (centre, *_scaled(deviation, reach)), strict=True):
                array[part] = value
        return replace(placed, centre=arrays[0], scale=arrays[1], reach=arrays[2], spread=arrays[3])

    # Rows -----------------------------------------------------------------------------------------

    def rows(self, placed: Placed, records: Records) -> Floats:
        """Return rows of records, the constant last; shape (width, n_samples)."""
        rows = np.ones((self.width, len(records)))
        for j, (term, part) in enumerate(zip(self.terms, self.slots, strict=True)):
            values = term.of(records)
            places = range(part.start, part.stop)
            if not term.levels:
                rows[part.start] = values
            else:
                others = [k for k in range(len(term.levels)) if k != placed.reference[j]]
                for place, level in zip(places, others, strict=True):
                    rows[place] = np.where(values == level, 1.0, -1.0)
            for place in places:
                rows[place] -= placed.centre[place]
                rows[place] *= placed.scale[place] * placed.shown[place]
        return rows

    def reach_squared(self, placed: Placed, whole_box: bool = False) -> float:
        """Return a bound on the squared length of rows of values that were seen, or of the box."""
        # Values that noise hides are beyond the reach: only the box bounds them.
        far = placed.reach * placed.shown
        if whole_box:
            far = (1 + np.abs(placed.centre)) * placed.scale * placed.shown
        total = 1.0
        for term, part in zip(self.terms, self.slots, strict=True):
            if not term.levels:
                total += float(far[part] @ far[part])
                continue
            # A record has one category: it is far from one centre and near to the others.
            scale = placed.scale[part] * placed.shown[part]
            near = ((1 + placed.centre[part]) * scale) ** 2
            away = ((1 - placed.centre[part]) * scale) ** 2
            total += float(near.sum() + np.maximum(away - near, 0.0).max())
        return total

    def back(self, placed: Placed) -> Floats:
        """Return the matrix from weights of rows to coefficients, those of all categories.

        Numbers are those of the box ``[-1, 1]``. The shape is (n_coefficients, width); the constant
        is the last, and coefficients of reference categories are 0.
        """
        lines: list[Floats] = []
        constant = np.zeros(self.width)
        constant[-1] = 1.0
        for j, (term, part) in enumerate(zip(self.terms, self.slots, strict=True)):
            unit = np.eye(self.width)[part] * placed.scale[part, None]
            constant = constant - placed.centre[part] @ unit
            if term.levels:  # an indicator is (value + 1) / 2
                constant = constant - unit.sum(axis=0)
                unit = np.insert(2 * unit, int(placed.reference[j]), 0.0, axis=0)
            lines += list(unit)
        return np.array([*lines, constant])


def _whole(values: Floats | Integers, size: int) -> Integers:
    """Return cells, at most `size`; what is not a number is in the first."""
    return np.clip(np.nan_to_num(values), 0, size - 1).astype(np.int64)


def _edges(window: Floats, bins: int) -> Floats:
    """Return the ends of a window's bins and of the classes beyond it, from low to high."""
    low, high = np.sort(np.clip(window, -1.0, 1.0))
    beyond = (high - low) / 2 * (2.0 ** np.arange(1, TAILS + 1) - 1)
    return np.concatenate([low - beyond[::-1], np.linspace(low, high, bins + 1), high + beyond])


def _seen(counts: Floats, noise_std: float) -> tuple[int, int]:
    """Return the first and the last bin with counts above their noise."""
    least = _SURE * noise_std * np.sqrt(np.arange(1, len(counts) + 1))
    up, down = np.cumsum(counts) > least, np.cumsum(counts[::-1]) > least
    first, last = int(up.argmax()), len(counts) - 1 - int(down.argmax())
    return min(first, last), max(first, last)


def _moments(counts: Floats, middles: Floats, first: int, last: int) -> tuple[float, float]:
    """Return mean and deviation of the bins from the first to the last."""
    weights = np.maximum(counts[first : last + 1], 1e-9)
    middles = middles[first : last + 1]
    centre = float(np.average(middles, weights=weights))
    return centre, sqrt(float(np.average((middles - centre) ** 2, weights=weights)))


def _place(
    counts: Floats, window: Floats, bins: int, noise_std: float, n: float
) -> tuple[float, float, float]:
    """Return centre, deviation and reach of a number in its box, from its second histogram."""
    ends = _edges(window, bins)
    step = float(ends[TAILS + 1] - ends[TAILS])
    in_box = (ends[1:] > -1 - 1e-12) & (ends[:-1] < 1 + 1e-12)
    counts, low, high = counts[in_box], ends[:-1][in_box], ends[1:][in_box]
    low, high = np.clip(low, -1, 1), np.clip(high, -1, 1)
    first, last = _seen(counts, noise_std)
    centre, deviation = _moments(counts, (low + high) / 2, first, last)
    seen = np.maximum(counts[first : last + 1], 0.0)
    most = float(seen.max()) / max(float(seen.sum()), 1e-9)
    hidden = 0.0
    if most > _ALIKE and deviation < _STEPS * step:
        # Of one value in nearly all records, so many may be hidden at the far end of the box.
        hidden = min(sqrt(_SURE * noise_std / n), 1.0) * (1 + abs(centre)) / 2
    deviation = max(deviation, step / sqrt(12), hidden, 1e-9)
    return centre, deviation, max(float(high[last]) - centre, centre - float(low[first]), deviation)


def _scaled(deviation: Floats, reach: Floats) -> tuple[Floats, Floats, Floats]:
    """Return scale, and reach and deviation in a row.

    The scale minimises the sum of the variances of standardised coefficients, for rows that are cut
    to the length of the farthest. No column makes a row much longer.
    """
    steep = np.maximum(reach / deviation, 1.0)
    scale = np.minimum(1 / (deviation * np.sqrt(steep)), _FAR / reach)
    return scale, reach * scale, deviation * scale
