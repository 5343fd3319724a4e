"""The rows of a regression as integers: centred, scaled, clipped, and summed exactly.

Two noisy histograms give the location and scale of each column. Then a record is a row ``z``:
differences to the released centre, numbers divided by their released spread, clipped to a public
length. Rows are integers on the lattice ``2**-20``. The summed products of rows, and rows times
residuals, are cut toward zero on a coarser lattice, so that no norm grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, frexp, sqrt
from typing import Annotated, Any

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.declared import Range
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import from_grid
from cloister.protocol.task import COUNT_BITS, INTERVAL_95, Block, NoisyBlock, PublicFacts
from cloister.tasks.columns import Encoding, codes, exact_sums
from cloister.tasks.moments import PRODUCT, SQUARE, n_products, unpack_products
from cloister.tasks.options import noise_multiplier_for
from cloister.tasks.supervised.least_squares import EDGES
from cloister.tasks.supervised.prior_scales import BINS, TAILS, edges, spread_of, window_of

LONGEST = 32.0
Clip = Annotated[float, Range(above=0, most=LONGEST)]
"""Largest length to which a row is clipped: products of two entries stay below 2**53."""
MOST_COLUMNS = 2048

# Lattices. Centres of categories are coarse, so that products of two fit the coarsest products.
_ROW, _TABLE, _RESIDUAL = 20, 3, 24
_FACTOR = _ROW - _TABLE  # of a row's clipping factor: times a table it is on the lattice of rows
_CHUNK = 1 << 13  # rows at a time: they stay in the cache, and sums stay below 2**53
_OF_CATEGORY = 0.6  # mean squared distance of an indicator to its mean
_SHORT, _NOISY = 0.6, 0.012  # share of the typical squared length at this noise or more


@dataclass(frozen=True)
class Placed:
    """Location and scale of columns: the public state after two rounds.

    Arrays have the shape (width,), except `window`, of shape (n_numbers, 2).
    """

    centre: Floats
    scale: Floats  # a row is the difference to the centre times the scale
    square: Floats  # its mean square, according to noisy counts
    alike: Floats  # 1 for a number with hardly two different values
    window: Floats  # the interval that the second round counts
    n: float = 1.0  # noisy number of records, at least its noise
    n_std: float = 0.0

    @property
    def records(self) -> dict[str, Floats]:
        """The noisy number of records with its half-width, as results."""
        half_width = INTERVAL_95["gaussian"] * self.n_std
        return {"records": np.array([self.n]), "records_half_width": np.array([half_width])}

    def at(self, entries: Integers) -> Placed:
        """Return location and scale of some entries of a row."""
        names = ("centre", "scale", "square", "alike")
        return replace(self, **{name: getattr(self, name)[entries] for name in names})


@dataclass(frozen=True)
class Whole:
    """Some records as rows before clipping."""

    numbers: Floats  # (n_numbers, n_samples): numeric columns; the constant 1 is the last
    categories: tuple[Integers, ...]  # codes of each column of categories
    tables: tuple[Integers, ...]  # entries of each code, times 2**3: its indicator minus the centre

    @cached_property
    def fixed(self) -> Integers:
        """Squared length of the entries of categories, in steps of ``2**-6``."""
        squared = np.zeros(self.numbers.shape[1], dtype=np.int64)
        for table, found in zip(self.tables, self.categories, strict=True):
            squared += (table**2).sum(axis=1)[found]
        return squared

    @cached_property
    def length(self) -> Floats:
        """Lengths of the rows."""
        total = self.fixed / 4.0**_TABLE
        squared = np.empty_like(total)
        for values in self.numbers:  # entry by entry: a length must not depend on other records
            total += np.multiply(values, values, out=squared)
        return np.sqrt(total, out=total)

    def without(self, number: int) -> Whole:
        """Return the rows without one of their numbers."""
        return replace(self, numbers=np.delete(self.numbers, number, axis=0))


@dataclass(frozen=True)
class Rows:
    """Some records as clipped rows, with integers in floats that hold them exactly."""

    factor: Floats  # clipping factor of each row, times 2**17
    numbers: Floats  # as those of `whole`, times 2**20
    whole: Whole


@dataclass(frozen=True)
class Frame:
    """Centre, scale and length of the rows of a table with numbers and categories.

    Parameters
    ----------
    levels : tuple of int
        Number of categories of each column of the schema, 0 for numbers.
    skip : tuple of int
        Columns that are left out, for example a target.
    clip : float in (0, 32]
        Length to which rows are clipped.
    low, high : tuple of float, data units
        The box; only for coefficients in data units.
    """

    levels: tuple[int, ...]
    frac_bits: int
    skip: tuple[int, ...]
    clip: float
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.width > MOST_COLUMNS:
            raise PlanError(
                f"columns must make a design of at most {MOST_COLUMNS} columns, got {self.width}; "
                "join rare categories."
            )

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding(self.levels, self.frac_bits, self.skip)

    def of_used(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of columns that are not left out, from one for each column."""
        return tuple(values[j] for j in self._encoding.used)

    @cached_property
    def used_levels(self) -> tuple[int, ...]:
        """Levels of the columns that are not left out."""
        return self.of_used(self.levels)

    @cached_property
    def width(self) -> int:
        """Number of entries of a row, including the constant."""
        return self._encoding.width

    @cached_property
    def _layout(self) -> tuple[tuple[int, int], ...]:
        """Column of the schema and first entry in a row, for each used column."""
        layout, place = [], 0
        for j in self._encoding.used:
            layout.append((j, place))
            place += self.levels[j] or 1
        return tuple(layout)

    @cached_property
    def _numbers(self) -> tuple[tuple[int, int], ...]:
        return tuple((j, place) for j, place in self._layout if not self.levels[j])

    @cached_property
    def _categories(self) -> tuple[tuple[int, slice], ...]:
        return tuple(
            (j, slice(place, place + self.levels[j])) for j, place in self._layout if self.levels[j]
        )

    @cached_property
    def number_places(self) -> Integers:
        """Entries of a row that are numbers, without the constant."""
        return np.array([place for _, place in self._numbers], dtype=np.int64)

    @cached_property
    def _places(self) -> list[int]:
        """Entries of a row that hold `Whole.numbers`."""
        return [*self.number_places.tolist(), self.width - 1]

    def place_of(self, column: int) -> int:
        """Return the first entry in a row of a column of the schema."""
        return dict(self._layout)[column]

    @property
    def room(self) -> int:
        """Bits of a record's contribution: fits 100 silos with 16 ``frac_bits``, 7 with 24."""
        return 16 + self.frac_bits // 2

    # the first two rounds: location and scale of columns

    def unplaced(self) -> Placed:
        """Return the state before the first round."""
        zeros, ones = np.zeros(self.width), np.ones(self.width)
        return Placed(zeros, ones, ones, zeros, np.zeros((len(self._numbers), 2)))

    def places_block(self, weight: float, labels: int = 0) -> Block:
        """Return the block of counts of bins of numbers, categories, labels and all records."""
        touched = len(self._layout) + (labels > 0) + 1
        size = self.width - 1 + len(self._numbers) * (BINS - 1) + labels + 1
        return Block.counting("places", (size,), weight, touched)

    def count_places(
        self, records: Records, labels: Integers | None = None, n_labels: int = 0
    ) -> Integers:
        """Return the counts of :meth:`places_block`."""
        box = np.tile([-1.0, 1.0], (len(self._numbers), 1))
        counts = [self._count_bins(box, records)[:, TAILS:-TAILS].ravel()]
        for j, _ in self._categories:
            found = codes(records[:, j], self.levels[j], self.frac_bits)
            counts.append(np.bincount(found, minlength=self.levels[j]))
        if labels is not None:
            counts.append(np.bincount(labels, minlength=n_labels))
        return np.concatenate([*counts, [len(records)]]).astype(np.int64) << COUNT_BITS

    def read_places(self, before: Placed, released: NoisyBlock) -> Placed:
        """Return centres of categories, windows of numbers, and the number of records.

        The number of records is at least its noise.
        """
        values, noise_std = released.in_records()
        # It is a divisor below: a number near 0 would amplify the noise.
        n = max(float(values[-1]), noise_std, 1.0)
        place = len(self._numbers) * BINS
        bins = values[:place].reshape(-1, BINS)
        window = np.array([window_of(counts, noise_std, n) for counts in bins]).reshape(-1, 2)
        centre, lattice = np.zeros(self.width), float(1 << min(_TABLE, self.frac_bits))
        for _, part in self._categories:
            levels = part.stop - part.start
            centre[part] = np.clip(values[place : place + levels] / n, 0, 1)
            centre[part] = np.rint(centre[part] * lattice) / lattice
            place += levels
        return replace(before, centre=centre, window=window, n=n, n_std=noise_std)

    def spreads_block(self, weight: float) -> Block:
        """Return the block of numbers of records by their bin of the windows."""
        touched = max(len(self._numbers), 1)  # a block is never empty
        return Block.counting("spreads", (touched, BINS + 2 * TAILS), weight, touched)

    def count_spreads(self, placed: Placed, records: Records) -> Integers:
        """Return the counts of :meth:`spreads_block`."""
        if not self._numbers:
            return np.zeros(self.spreads_block(1.0).size, dtype=np.int64)
        return self._count_bins(placed.window, records).ravel() << COUNT_BITS

    def read_spreads(self, before: Placed, released: NoisyBlock) -> Placed:
        """Return location and scale of all columns; numbers are scaled by their deviation."""
        values, noise_std = released.in_records()
        centre, scale = before.centre.copy(), np.ones(self.width)
        alike, square = np.zeros(self.width), centre * (1 - centre)
        for counts, window, place in zip(values, before.window, self.number_places, strict=False):
            found = spread_of(counts, window, noise_std, before.n)
            centre[place], scale[place] = found.centre, 1 / found.deviation
            square[place], alike[place] = found.square * scale[place] ** 2, found.alike
        return replace(before, centre=centre, scale=scale, square=square, alike=alike)

    def _count_bins(self, window: Floats, records: Records) -> Integers:
        """Return the numbers of records in the bins of windows and beyond, column by column."""
        one = 1 << self.frac_bits
        total = np.zeros((len(self._numbers), BINS + 2 * TAILS), dtype=np.int64)
        for counts, ends, (j, _) in zip(total, window, self._numbers, strict=True):
            low, high = np.clip(ends * one, -one, one).tolist()
            between = np.floor(edges(low - 0.5, max(low, high) + 0.5)[1:-1])  # whole steps
            # Sorting is several times faster than comparing all records with every edge.
            column = np.sort(records[:, j])
            within = np.searchsorted(column, between.astype(column.dtype), side="right")
            counts[:] = np.diff(within, prepend=0, append=len(records))
        return total

    # the rows

    def whole(self, placed: Placed, records: Records) -> Iterator[tuple[slice, Whole]]:
        """Yield chunks of the records as rows before clipping, with their slices."""
        one, at = 1 << self.frac_bits, self.number_places
        centre, scale = placed.centre[at, None] * one, placed.scale[at, None] / one
        tables = self._tables(placed)
        for first in range(0, len(records), _CHUNK):
            where = slice(first, first + _CHUNK)
            part = records[where]
            numbers = np.ones((len(self._numbers) + 1, len(part)))
            for values, (j, _) in zip(numbers, self._numbers, strict=False):
                values[:] = part[:, j]
            numbers[:-1] -= centre
            numbers[:-1] *= scale
            found = (codes(part[:, j], self.levels[j], self.frac_bits) for j, _ in self._categories)
            yield where, Whole(numbers, tuple(found), tables)

    def _tables(self, placed: Placed) -> tuple[Integers, ...]:
        """Return the entries of each category of each column, in steps of ``2**-3``."""
        steps = np.rint(placed.centre * (1 << _TABLE)).astype(np.int64)
        return tuple(
            (np.eye(self.levels[j], dtype=np.int64) << _TABLE) - steps[part]
            for j, part in self._categories
        )

    def rows(self, whole: Whole, length: float) -> Rows:
        """Return rows clipped to a length, in units in which that is `clip`."""
        return self.times(whole, self.clip / np.maximum(whole.length, length))

    def times(self, whole: Whole, factor: Floats) -> Rows:
        """Return rows times real factors as integers; one that is longer than `clip` becomes 0."""
        # Toward zero: rounding up could make a row longer than `clip`, and such a row becomes 0.
        steps = np.trunc((1 << _FACTOR) * factor)
        numbers = whole.numbers * (steps * (1 << (_ROW - _FACTOR)))
        np.trunc(numbers, out=numbers)
        # Exact: floats hold integers up to 2**53, and rounding brings no sum of squares above that
        # back below the bound, which is at most 2**50.
        norms = np.einsum("ij,ij->j", numbers, numbers) + steps * steps * whole.fixed
        keep = norms <= self.norm_squared
        if not keep.all():
            numbers[:, ~keep] = 0.0
            steps[~keep] = 0.0
        return Rows(steps, numbers, whole)

    @property
    def norm_squared(self) -> int:
        """Largest squared norm of a row, in steps of ``2**-20``."""
        return floor(self.clip * (1 << _ROW)) ** 2

    def longest(self, placed: Placed) -> float:
        """Return a length that no row of the box exceeds."""
        at = self.number_places
        farthest = (1 + np.abs(placed.centre[at])) * placed.scale[at]
        squared = 1.0 + farthest @ farthest
        for _, part in self._categories:
            centre = placed.centre[part]
            squared += float(centre @ centre + 1 - 2 * centre.min())
        return sqrt(squared)

    def margins(self, whole: Whole, weights: Floats) -> Floats:
        """Return the products of whole rows with weights; shape (n_outputs, n_samples).

        Entry by entry, so that the margin of a record does not depend on the others. `weights` have
        the shape (n_outputs, width).
        """
        margins = np.zeros((len(weights), whole.numbers.shape[1]))
        product = np.empty(margins.shape[1])
        for margin, row in zip(margins, weights, strict=True):
            for part, table, found in self._coded(whole):
                margin += (table / (1 << _TABLE) * row[part]).sum(axis=1)[found]
            for values, place in zip(whole.numbers, self._places, strict=True):
                margin += np.multiply(values, row[place], out=product)
        return margins

    def _coded(self, whole: Whole) -> Iterator[tuple[slice, Integers, Integers]]:
        """Yield the entries in a row of each column of categories, its table and its codes."""
        parts = (part for _, part in self._categories)
        return zip(parts, whole.tables, whole.categories, strict=True)

    # sums of rows

    def row_block(self, weight: float) -> Block:
        """Return the block of sums of rows that :meth:`times` made."""
        return _block("gradient", (self.width,), self.norm_squared, weight)

    def sum_rows(self, rows: Rows) -> Integers:
        """Return the exact sum of rows, in steps of ``2**-20``; shape (width,)."""
        total = np.zeros(self.width, dtype=np.int64)
        total[self._places] = rows.numbers.sum(axis=1).astype(np.int64)
        for part, table, found in self._coded(rows.whole):
            total[part] = exact_sums(found, rows.factor, len(table)) @ table
        return total

    # rows times residuals

    def gradient_bits(self, residual: float) -> int:
        """Return the fineness of sums of rows times residuals of at most this norm."""
        return self.room - max(0, _ceil_log2(self.clip * residual))

    def gradient_block(self, outputs: int, residual_squared: float, weight: float) -> Block:
        """Return the block of the gradients of each output.

        `residual_squared` bounds the squared norm of a record's residuals.
        """
        bits = self.gradient_bits(sqrt(residual_squared))
        largest = ceil(residual_squared * 4**_RESIDUAL)  # of whole residuals squared and summed
        l2_squared = -(-largest * self.norm_squared // 4 ** (_ROW + _RESIDUAL - bits))
        return _block("gradient", (outputs, self.width), l2_squared, weight)

    def sum_gradients(self, rows: Rows, residuals: Floats, residual_squared: float) -> Integers:
        """Return the exact sum of each row times its residuals; shape (n_outputs, width).

        Records whose `residuals`, of shape (n_outputs, n_samples), are longer than their bound
        add 0.
        """
        bits = self.gradient_bits(sqrt(residual_squared))
        whole = np.trunc(residuals * (1 << _RESIDUAL))
        whole *= (whole**2).sum(axis=0) <= ceil(residual_squared * 4**_RESIDUAL)
        down = 0.5 ** (_ROW + _RESIDUAL - bits)
        total = np.zeros((len(residuals), self.width), dtype=np.int64)
        for output, residual in zip(total, whole, strict=True):
            residual *= down
            output[self._places] = _cut_product(rows.numbers, residual).sum(axis=1)
            shortened = _cut_product(rows.factor, residual)
            for part, table, found in self._coded(rows.whole):
                output[part] = exact_sums(found, shortened, len(table)) @ table
        return total

    # products of rows

    @property
    def products_bits(self) -> int:
        """Fineness of the products."""
        return self.room - _ceil_log2(SQUARE * max(self.clip, 1.0) ** 2)

    def products_block(self, weight: float, name: str = "products") -> Block:
        """Return the block of products of two entries of a row."""
        # Entries are at most |z_a z_b| on their lattice, so their norm is at most |z|^2.
        down = 2 * _ROW - self.products_bits
        l2_squared = SQUARE**2 * (-(-(self.norm_squared**2) // 4**down))
        return _block(name, (n_products(self.width),), l2_squared, weight)

    def curvature_block(self, outputs: int, bound: float, weight: float) -> Block:
        """Return the block of weighted products; a record's weights have at most norm `bound`."""
        down = 2 * _ROW - self.products_bits
        largest = ceil((bound * (1 << _RESIDUAL)) ** 2)  # of whole weights squared and summed
        l2_squared = SQUARE**2 * (-(-largest * self.norm_squared**2 // 4 ** (down + _RESIDUAL)))
        return _block("curvature", (outputs, n_products(self.width)), l2_squared, weight)

    def sum_curvature(self, rows: Rows, weights: Floats, bound: float) -> Integers:
        """Return the exact sums of products times each weight; shape (n_outputs, n_products).

        Records whose `weights`, of shape (n_outputs, n_samples) and >= 0, are longer than `bound`
        add 0.
        """
        whole = np.trunc(weights * (1 << _RESIDUAL))
        whole *= (whole**2).sum(axis=0) <= ceil((bound * (1 << _RESIDUAL)) ** 2)
        return np.stack([self.sum_row_products(rows, weight) for weight in whole])

    def sum_row_products(self, rows: Rows, weights: Floats | None = None) -> Integers:
        """Return the exact sums of products ``i <= j``, packed as in :mod:`.moments`.

        Each record's products are multiplied by its weight, an integer on the lattice of residuals.
        """
        numbers, factor = rows.numbers, rows.factor
        if weights is not None:  # cut once more, so that products stay below 2**53
            weights = weights * 0.5**_RESIDUAL
            numbers, factor = _cut_product(numbers, weights), _cut_product(factor, weights)
        down = 0.5 ** (2 * _ROW - self.products_bits)
        numbers, factor = numbers * down, factor * down
        total = np.zeros((self.width, self.width), dtype=np.int64)
        for a, place in enumerate(self._places):
            others = self._places[a:]
            total[place, others] = _cut_product(rows.numbers[a], numbers[a:]).sum(axis=1)
            total[others, place] = total[place, others]
        squared, mixed = _cut_product(rows.factor, factor), _cut_product(rows.factor, numbers)
        coded = list(self._coded(rows.whole))
        for a, (part, table, found) in enumerate(coded):
            for values, place in zip(mixed, self._places, strict=True):
                total[part, place] = exact_sums(found, values, len(table)) @ table
                total[place, part] = total[part, place]
            for other, far, found_far in coded[a:]:
                shape = (len(table), len(far))
                counts = exact_sums(found * len(far) + found_far, squared, len(table) * len(far))
                products = table.T @ counts.reshape(shape) @ far
                total[part, other], total[other, part] = products, products.T
        upper = np.triu_indices(self.width)
        return total[upper] * np.where(upper[0] == upper[1], SQUARE, PRODUCT)

    def unpack(self, released: NoisyBlock, unit: float = 1.0) -> tuple[Floats, float]:
        """Return matrices of products of rows over `unit` squared, and their off-diagonal noise."""
        raw = unpack_products(from_grid(released.values, self.products_bits), self.width)
        std = released.noise_std / (1 << self.products_bits) / PRODUCT
        return raw / unit**2, std / unit**2

    # coefficients in data units

    @property
    def _half_ranges(self) -> Floats:
        return np.asarray(np.subtract(self.high, self.low) / 2, dtype=np.float64)

    @property
    def _middles(self) -> Floats:
        return np.asarray(np.add(self.high, self.low) / 2, dtype=np.float64)

    @cached_property
    def half_boxes(self) -> Floats:
        """Half the range of each number, 1 for a category and the intercept; shape (width,)."""
        boxes = np.ones(self.width)
        for j, place in self._numbers:
            boxes[place] = self._half_ranges[j]
        return boxes

    def to_data(self, placed: Placed) -> Floats:
        """Return the matrix from weights of rows to coefficients in data units, constant last."""
        return self._to_columns(placed, self._half_ranges, self._middles)

    def to_half_boxes(self, placed: Placed) -> Floats:
        """Return :meth:`to_data` for columns over half their box; the intercept is the same.

        Its numbers have the same size in any unit of the data, so that they may be rounded.
        """
        ones = np.ones(len(self.levels))
        return self._to_columns(placed, ones, self._middles / self._half_ranges)

    def to_grid(self, placed: Placed) -> Floats:
        """Return :meth:`to_data` for numbers in ``[-1, 1]``."""
        return self._to_columns(placed, np.ones(len(self.levels)), np.zeros(len(self.levels)))

    def _to_columns(self, placed: Placed, half_range: Floats, middle: Floats) -> Floats:
        matrix = np.diag(placed.scale).astype(np.float64)
        matrix[-1] = -placed.centre * placed.scale
        matrix[-1, -1] = 1.0
        for j, place in self._numbers:
            matrix[place] /= half_range[j]
            matrix[-1] -= matrix[place] * middle[j]
        return matrix

    def predict(self, coefficients: Floats, records: Records) -> Floats:
        """Return the design of grid records times coefficients; shape (n_samples, n_outputs)."""
        predicted = np.tile(coefficients[:, -1], (len(records), 1))
        for j, part in self._categories:
            found = codes(records[:, j], self.levels[j], self.frac_bits)
            predicted += coefficients[:, part].T[found]
        for j, place in self._numbers:
            values = from_grid(records[:, j].astype(np.int64), self.frac_bits)
            predicted += values[:, None] * coefficients[:, place]
        return predicted


def _cut_product(left: Floats, right: Floats) -> Floats:
    """Return products cut toward zero, in one array."""
    product = left * right
    return np.trunc(product, out=product)


def _block(name: str, shape: tuple[int, ...], l2_squared: int, weight: float) -> Block:
    """Return a block of this squared norm, and of the L1 norm that follows."""
    size = int(np.prod(shape))
    return Block(name, shape, ceil(sqrt(size) * sqrt(l2_squared)) + 1, l2_squared, weight)


def solve(
    curvature: Floats, penalty: Floats, target: Floats, noise_std: float, spread: Floats
) -> tuple[Floats, Floats]:
    """Return the solution of noisy equations with a prior, and its covariance.

    The equations are ``(curvature + diag(penalty)) w = target + noise`` for each row of `target`.
    The prior of `w` has mean 0 and deviation `spread`. Without noise the result is the exact
    solution.
    """
    system = (curvature + np.diag(penalty)) * spread  # of w / spread
    left, values, right = np.linalg.svd(system)
    tiny = 1e-12 * max(float(values[0]), 1e-300)
    variance = max(noise_std, tiny) ** 2
    filtered = values / (values**2 + variance)
    mean = ((target @ left) * filtered) @ right * spread
    kept = right.T * (variance / (values**2 + variance))
    covariance = (kept @ right) * np.outer(spread, spread)
    return mean, covariance


def noise_of_mean(width: int, facts: PublicFacts) -> float:
    """Return the norm of the noise of a mean of rows of length 1 at the whole budget."""
    return sqrt(width) * (noise_multiplier_for(facts) or 0.0) / facts.nominal_n


def usual_square(levels: Sequence[int]) -> float:
    """Return the mean squared length of rows whose numbers are divided by their deviation."""
    return 1.0 + sum(_OF_CATEGORY if level else 1.0 for level in levels)


def row_length(levels: Sequence[int], relative_noise: float) -> float:
    """Return a clipping length for rows: short with much noise, rarely effective with little.

    `relative_noise` is that of :func:`noise_of_mean`.
    """
    stretch = _SHORT * max(1.0, _NOISY / max(relative_noise, 1e-12)) ** 0.5
    return min(sqrt(stretch * usual_square(levels)), LONGEST)


def edge_at(place: int) -> float:
    """Return the upper end of a class of sizes; numbers out of range are clipped."""
    return float(EDGES[min(max(place, 0), len(EDGES) - 1)])


def sizes_block(name: str, weight: float, kinds: int = 1) -> Block:
    """Return the block of numbers of records by the class of their size, for each kind."""
    shape = (kinds, len(EDGES)) if kinds > 1 else (len(EDGES),)
    return Block.counting(name, shape, weight, kinds)


def count_sizes(sizes: Floats) -> Integers:
    """Return the numbers of sizes in each class, weighted like counts."""
    found = np.minimum(np.searchsorted(EDGES, sizes), len(EDGES) - 1)
    return np.bincount(found, minlength=len(EDGES)).astype(np.int64) << COUNT_BITS


def _ceil_log2(value: float) -> int:
    """Return the least integer n with ``2**n >= value``, for a value above 0; exact.

    A logarithm near an integer may be rounded to either side of it, on another machine differently.
    """
    mantissa, exponent = frexp(value)  # value = mantissa * 2**exponent, mantissa in [0.5, 1)
    return exponent - (mantissa == 0.5)
