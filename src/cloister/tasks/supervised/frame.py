"""The rows of a regression on integers: centred, scaled, clipped, and summed exactly.

Two noisy histograms tell where each column lies and how far it spreads. From then on a record is a
row ``z``: differences to the released centre, numbers divided by their released spread, the whole
shortened to a public length. Rows are integers on the lattice ``2**-20``; what is summed (products
of rows, or rows times residuals) is cut toward zero on a coarser lattice, so that no norm grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log2, sqrt
from typing import Annotated

import numpy as np

from cloister.declared import Range
from cloister.display import Bars
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.task import Block, Floats, GridState, Integers, Records, Released
from cloister.tasks.columns import Encoding, codes
from cloister.tasks.moments import PRODUCT, SQUARE, n_products, unpack_products
from cloister.tasks.supervised.least_squares import EDGES
from cloister.tasks.supervised.spreads import BINS, TAILS, edges, spread_of, window_of

LONGEST = 32.0
Clip = Annotated[float, Range(above=0, most=LONGEST)]
"""Largest length a row may be shortened to: products of two entries stay below 2**53."""
MOST_COLUMNS = 2048

# Lattices. Centres of categories are coarse, so that products of two fit the coarsest products.
_ROW, _TABLE, _RESIDUAL = 20, 3, 24
_FACTOR = _ROW - _TABLE  # of a row's shortening: times a table it is on the lattice of rows
SUM_BITS = 16
"""Fineness of the first round."""
_SHOWN = 20
_CHUNK = 1 << 14  # rows at a time: they stay in the cache, and sums stay below 2**53


@dataclass(frozen=True)
class Whole:
    """Some records as rows before they are shortened.

    Parameters
    ----------
    numbers : ndarray of shape (n_numbers, n_samples)
        Entries of columns of numbers; the constant 1 is the last.
    categories : tuple of ndarray of shape (n_samples,), int64
        Numbers of the categories.
    fixed : ndarray of shape (n_samples,), int64
        Squared length of the entries of categories, in steps of ``2**-6``.
    """

    numbers: Floats
    categories: tuple[Integers, ...]
    fixed: Integers

    def length(self, without: int | None = None) -> Floats:
        """Return the lengths of the rows, one of their numbers left out if wanted."""
        squared = self.fixed / 4.0**_TABLE
        for at, values in enumerate(self.numbers):  # one by one, whoever else is there
            if at != without:
                squared = squared + values * values
        return np.asarray(np.sqrt(squared))


@dataclass(frozen=True)
class Rows:
    """Some records as shortened rows, with integers in floats that hold them exactly.

    Parameters
    ----------
    factor : ndarray of shape (n_samples,)
        By how much the row was shortened, times ``2**17``.
    numbers : ndarray of shape (n_numbers, n_samples)
        Entries of columns of numbers, times ``2**20``; the constant 1 is the last.
    whole : Whole
        The rows before they were shortened.
    """

    factor: Floats
    numbers: Floats
    whole: Whole

    @property
    def categories(self) -> tuple[Integers, ...]:
        """Numbers of the categories."""
        return self.whole.categories


@dataclass(frozen=True)
class Frame:
    """Centre, scale and length of the rows of a table with numbers and categories.

    Parameters
    ----------
    levels : tuple of int
        Of each column of the schema: 0 for numbers, else the number of categories.
    frac_bits : int
    skip : tuple of int
        Columns that are left out, such as a target.
    clip : float in (0, 32]
        Rows are shortened to this length.
    """

    levels: tuple[int, ...]
    frac_bits: int
    skip: tuple[int, ...]
    clip: float

    def __post_init__(self) -> None:
        if self.width > MOST_COLUMNS:
            raise PlanError(
                f"columns make a design of {self.width} columns, at most {MOST_COLUMNS} are "
                "possible; join rare categories."
            )

    @cached_property
    def _used(self) -> tuple[int, ...]:
        return Encoding(self.levels, self.frac_bits, self.skip).used

    @cached_property
    def width(self) -> int:
        """Entries of a row, the constant included."""
        return Encoding(self.levels, self.frac_bits, self.skip).width

    @cached_property
    def _layout(self) -> tuple[tuple[int, int], ...]:
        """Column of the schema and first entry in a row, of each column that is used."""
        layout, place = [], 0
        for j in self._used:
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
        """Entries of a row that are numbers, the constant not among them."""
        return np.array([place for _, place in self._numbers], dtype=np.int64)

    def place_of(self, column: int) -> int:
        """Return the first entry in a row of a column of the schema."""
        return dict(self._layout)[column]

    def half_boxes(self, low: Floats, high: Floats) -> Floats:
        """Return half the range of each number, 1 for a category; shape (width - 1,)."""
        boxes = np.ones(self.width - 1)
        for j, place in self._numbers:
            boxes[place] = (high[j] - low[j]) / 2
        return boxes

    @property
    def room(self) -> int:
        """Bits of what a record may add: fits 100 silos with 16 ``frac_bits``, 7 with 24."""
        return 16 + self.frac_bits // 2

    # the first two rounds: where the columns lie

    def places_block(self, weight: float, labels: int = 0) -> Block:
        """Return the block of counts of categories, of bins of numbers, of labels and records."""
        one, touched = 1 << SUM_BITS, len(self._layout) + (labels > 0) + 1
        size = self.width - 1 + len(self._numbers) * (BINS - 1) + labels + 1
        return Block("places", (size,), touched * one, touched * one**2, weight)

    def count_places(
        self, records: Records, labels: Integers | None = None, n: int = 0
    ) -> Integers:
        """Return the counts of the first round; `labels` are counted in `n` words."""
        box = np.tile([-1 << self.frac_bits, 1 << self.frac_bits], (len(self._numbers), 1))
        counts = [self._count_bins(box, records)[:, TAILS:-TAILS].ravel()]
        for j, _ in self._categories:
            found = codes(records[:, j], self.levels[j], self.frac_bits)
            counts.append(np.bincount(found, minlength=self.levels[j]))
        if labels is not None:
            counts.append(np.bincount(labels, minlength=n))
        return np.concatenate([*counts, [len(records)]]).astype(np.int64) << SUM_BITS

    def read_places(self, released: Released) -> dict[str, Floats]:
        """Return ``centre`` of categories, ``window`` of numbers, and ``n``.

        A number of records below its noise is taken for the noise.
        """
        values, noise_std = noisy_counts(released)
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
        return {"centre": centre, "window": window, "n": np.array([n])}

    def spreads_block(self, weight: float) -> Block:
        """Return the block of numbers of records by their bin of the windows."""
        one, touched = 1 << SUM_BITS, max(len(self._numbers), 1)  # a block has words
        shape = (touched, BINS + 2 * TAILS)
        return Block("spreads", shape, touched * one, touched * one**2, weight)

    def count_spreads(self, state: GridState, records: Records) -> Integers:
        """Return the counts of :meth:`spreads_block`."""
        if not self._numbers:
            return np.zeros(self.spreads_block(1.0).size, dtype=np.int64)
        return self._count_bins(state["window"], records).ravel() << SUM_BITS

    def read_spreads(self, now: Mapping[str, Floats], released: Released) -> dict[str, Floats]:
        """Return ``centre``, ``scale``, ``square`` and ``alike`` of each entry of a row.

        Numbers are divided by their deviation; ``square`` is their mean square after that, as far
        as it is seen, and ``alike`` is 1 where hardly two values are seen to differ.
        """
        values, noise_std = noisy_counts(released)
        centre, n = now["centre"].copy(), float(now["n"][0])
        scale, alike, square = np.ones(self.width), np.zeros(self.width), centre * (1 - centre)
        for counts, window, (_, place) in zip(values, now["window"], self._numbers, strict=False):
            found = spread_of(counts, window, noise_std, n)
            centre[place], scale[place] = found.centre, 1 / found.deviation
            square[place], alike[place] = found.square * scale[place] ** 2, found.alike
        return {"centre": centre, "scale": scale, "square": square, "alike": alike}

    def _count_bins(self, window: Integers, records: Records) -> Integers:
        """Return how many records are in each part of the windows and beyond, column by column."""
        one = 1 << self.frac_bits
        total = np.zeros((len(self._numbers), BINS + 2 * TAILS), dtype=np.int64)
        for counts, ends, (j, _) in zip(total, window, self._numbers, strict=True):
            low, high = np.clip(ends, -one, one).tolist()
            between = edges(low - 0.5, max(low, high) + 0.5)[1:-1]  # whole steps of the grid
            found = np.searchsorted(between, records[:, j])
            counts += np.bincount(found, minlength=len(counts))
        return total

    # the rows

    def rows(self, whole: Whole, length: float) -> Rows:
        """Return rows shortened to a length, in units in which that is `clip`."""
        return self.times(whole, self.clip / np.maximum(whole.length(), length))

    def longest(self, state: Mapping[str, Floats]) -> float:
        """Return a length that no row of the box exceeds."""
        at = self.number_places
        farthest = (1 + np.abs(state["centre"][at])) * state["scale"][at]
        squared = 1.0 + farthest @ farthest
        for _, part in self._categories:
            centre = state["centre"][part]
            squared += float(centre @ centre + 1 - 2 * centre.min())
        return sqrt(squared)

    @property
    def norm_squared(self) -> int:
        """Largest squared norm of a row, in steps of ``2**-20``."""
        return floor(self.clip * (1 << _ROW)) ** 2

    @property
    def _cats(self) -> tuple[int, ...]:
        return tuple(j for j, _ in self._categories)

    def _tables(self, state: GridState) -> list[Integers]:
        """Return the rows of each category, in steps of ``2**-3``: its indicator minus centre."""
        tables = []
        for j, part in self._categories:
            centre = np.rint(from_grid(state["centre"][part], self.frac_bits) * (1 << _TABLE))
            eye = np.eye(self.levels[j], dtype=np.int64) << _TABLE
            tables.append(eye - centre.astype(np.int64))
        return tables

    def margins(self, state: GridState, whole: Whole, weights: Floats) -> Floats:
        """Return the products of whole rows with weights; shape (n_outputs, n_samples).

        Entry by entry, so that the margin of a record does not depend on the others.

        Parameters
        ----------
        state : mapping
        whole : Whole
        weights : ndarray of shape (n_outputs, width)
        """
        margins = np.zeros((len(weights), len(whole.fixed)))
        tables = self._tables(state)
        for margin, row in zip(margins, weights, strict=True):
            for (_, part), table, found in zip(
                self._categories, tables, whole.categories, strict=True
            ):
                margin += (table / (1 << _TABLE) * row[part]).sum(axis=1)[found]
            for values, place in zip(whole.numbers, self._places, strict=True):
                margin += values * row[place]
        return margins

    # rows times residuals

    def gradient_bits(self, residual: float) -> int:
        """Return the fineness of sums of rows times residuals of at most this norm."""
        return self.room - max(0, ceil(log2(self.clip * residual)))

    def gradient_block(self, outputs: int, residual_squared: float, weight: float) -> Block:
        """Return the block of the gradients of each output.

        `residual_squared` bounds the squared norm of a record's residuals.
        """
        bits = self.gradient_bits(sqrt(residual_squared))
        largest = ceil(residual_squared * 4**_RESIDUAL)  # of whole residuals squared and summed
        l2_squared = -(-largest * self.norm_squared // 4 ** (_ROW + _RESIDUAL - bits))
        size = outputs * self.width
        return Block("gradient", (outputs, self.width), _l1(size, l2_squared), l2_squared, weight)

    def sum_gradients(
        self, state: GridState, rows: Rows, residuals: Floats, residual_squared: float
    ) -> Integers:
        """Return the exact sum of each row times its residuals; shape (n_outputs, width).

        Parameters
        ----------
        state : mapping
        rows : Rows
        residuals : ndarray of shape (n_outputs, n_samples)
        residual_squared : float
            Records whose residuals are longer count as nothing.
        """
        bits = self.gradient_bits(sqrt(residual_squared))
        whole = np.trunc(residuals * (1 << _RESIDUAL))
        whole *= (whole**2).sum(axis=0) <= ceil(residual_squared * 4**_RESIDUAL)
        down = 0.5 ** (_ROW + _RESIDUAL - bits)
        total = np.zeros((len(residuals), self.width), dtype=np.int64)
        places = [*self.number_places, self.width - 1]
        tables = self._tables(state)
        for output, residual in zip(total, whole, strict=True):
            output[places] = np.trunc(rows.numbers * (residual * down)).sum(axis=1)
            shortened = np.trunc(rows.factor * (residual * down))
            for (j, part), table, found in zip(
                self._categories, tables, rows.categories, strict=True
            ):
                by = np.bincount(found, weights=shortened, minlength=self.levels[j])
                output[part] = by.astype(np.int64) @ table
        return total

    # products of rows

    @property
    def products_bits(self) -> int:
        """Fineness of the products."""
        return self.room - ceil(log2(SQUARE * max(self.clip, 1.0) ** 2))

    def products_block(self, weight: float) -> Block:
        """Return the block of products of two entries of a row."""
        # entries are at most |z_a z_b| on their lattice, so all of them at most |z|^2
        down = 2 * _ROW - self.products_bits
        l2_squared = SQUARE**2 * (-(-(self.norm_squared**2) // 4**down))
        size = n_products(self.width)
        return Block("products", (size,), _l1(size, l2_squared), l2_squared, weight)

    def curvature_block(self, outputs: int, bound: float, weight: float) -> Block:
        """Return the block of weighted products; a record's weights have at most norm `bound`."""
        down = 2 * _ROW - self.products_bits
        largest = ceil((bound * (1 << _RESIDUAL)) ** 2)  # of whole weights squared and summed
        l2_squared = SQUARE**2 * (-(-largest * self.norm_squared**2 // 4 ** (down + _RESIDUAL)))
        size = outputs * n_products(self.width)
        shape = (outputs, n_products(self.width))
        return Block("curvature", shape, _l1(size, l2_squared), l2_squared, weight)

    def sum_curvature(
        self, state: GridState, rows: Rows, weights: Floats, bound: float
    ) -> Integers:
        """Return the exact sums of products times each weight; shape (n_outputs, n_products).

        Parameters
        ----------
        state : mapping
        rows : Rows
        weights : ndarray of shape (n_outputs, n_samples), >= 0
        bound : float
            Records whose weights are longer count as nothing.
        """
        whole = np.trunc(weights * (1 << _RESIDUAL))
        whole *= (whole**2).sum(axis=0) <= ceil((bound * (1 << _RESIDUAL)) ** 2)
        sums = [self.sum_row_products(state, rows, weight) for weight in whole]
        return np.stack(sums)

    def read_curvature(self, released: Released, unit: float) -> tuple[Floats, float]:
        """Return matrices of products of rows, and the noise of their entries."""
        raw = unpack_products(from_grid(released.values, self.products_bits), self.width)
        std = released.noise_std / (1 << self.products_bits) / PRODUCT
        return raw / unit**2, std / unit**2

    def sum_row_products(
        self, state: GridState, rows: Rows, weights: Floats | None = None
    ) -> Integers:
        """Return the exact sums of products ``i <= j``, packed as in :mod:`.moments`.

        Each record's products are multiplied by its weight, an integer on the lattice of residuals.
        """
        down = 0.5 ** (2 * _ROW - self.products_bits)
        numbers, factor = rows.numbers, rows.factor
        if weights is not None:  # cut once more, so that products stay below 2**53
            numbers = np.trunc(numbers * (weights * 0.5**_RESIDUAL))
            factor = np.trunc(factor * (weights * 0.5**_RESIDUAL))
        total = np.zeros((self.width, self.width), dtype=np.int64)
        places = [*self.number_places, self.width - 1]
        for a, left in enumerate(places):
            for b, right in enumerate(places[a:], a):
                entry = np.trunc(rows.numbers[a] * (numbers[b] * down)).sum()
                total[left, right] = total[right, left] = int(entry)
        tables = self._tables(state)
        squared = np.trunc(rows.factor * (factor * down))
        mixed = [np.trunc(rows.factor * (values * down)) for values in numbers]
        for a, (j, part) in enumerate(self._categories):
            found, levels = rows.categories[a], self.levels[j]
            for values, place in zip(mixed, places, strict=True):
                by = np.bincount(found, weights=values, minlength=levels).astype(np.int64)
                total[part, place] = total[place, part] = by @ tables[a]
            for b in range(a, len(self._categories)):
                k, other = self._categories[b]
                both = found * self.levels[k] + rows.categories[b]
                cells = np.bincount(both, weights=squared, minlength=levels * self.levels[k])
                counts = cells.astype(np.int64).reshape(levels, self.levels[k])
                products = tables[a].T @ counts @ tables[b]
                total[part, other], total[other, part] = products, products.T
        upper = np.triu_indices(self.width)
        packed: Integers = total[upper] * np.where(upper[0] == upper[1], SQUARE, PRODUCT)
        return packed

    def read_products(self, released: Released) -> tuple[Floats, float]:
        """Return the matrix of products without its negative part, and its noise off the diagonal.

        The sums are of rows, so the matrix without noise has no negative part.
        """
        raw, noise_std = self.unpack(released)
        values, vectors = np.linalg.eigh(raw)
        matrix = (vectors * np.maximum(values, 0)) @ vectors.T
        return matrix, noise_std

    def unpack(self, released: Released) -> tuple[Floats, float]:
        """Return the matrix of products as released, and its noise off the diagonal."""
        raw = unpack_products(from_grid(released.values, self.products_bits), self.width)
        return raw, released.noise_std / (1 << self.products_bits) / PRODUCT

    # rows as they are, shortened by a factor of each record's own

    def whole(self, state: GridState, records: Records) -> Iterator[tuple[slice, Whole]]:
        """Yield parts of the records as rows that are not shortened, with where they are."""
        one = 1 << self.frac_bits
        scale, tables = from_grid(state["scale"], self.frac_bits), self._tables(state)
        for first in range(0, len(records), _CHUNK):
            where = slice(first, first + _CHUNK)
            part = records[where]
            numbers = np.ones((len(self._numbers) + 1, len(part)))
            for at, (j, place) in enumerate(self._numbers):
                numbers[at] = (part[:, j] - state["centre"][place]) * (scale[place] / one)
            found = tuple(codes(part[:, j], self.levels[j], self.frac_bits) for j in self._cats)
            fixed = np.zeros(len(part), dtype=np.int64)
            for table, codes_ in zip(tables, found, strict=True):
                fixed += (table**2).sum(axis=1)[codes_]
            yield where, Whole(numbers, found, fixed)

    def told(self, state: GridState, whole: Whole, weights: Floats) -> Floats:
        """Return the products of whole rows with weights; shape (n_samples,)."""
        told: Floats = self.margins(state, whole, weights[None])[0]
        return told

    def times(self, whole: Whole, factor: Floats) -> Rows:
        """Return rows times real factors as integers; one that is longer than `clip` becomes 0."""
        steps = np.trunc((1 << _FACTOR) * factor)
        numbers = np.trunc(whole.numbers * (steps * (1 << (_ROW - _FACTOR))))
        # the law, in exact integers, after a bound that keeps them exact
        limit = float(self.clip * (1 << _ROW) + 1)
        small = (np.abs(numbers) <= limit).all(axis=0) & (np.abs(steps) <= limit)
        numbers, steps = numbers * small, steps * small
        whole_steps = steps.astype(np.int64)
        norms = (numbers.astype(np.int64) ** 2).sum(axis=0) + whole_steps**2 * whole.fixed
        keep = norms <= self.norm_squared
        return Rows(steps * keep, numbers * keep, whole)

    @property
    def _places(self) -> list[int]:
        """Entries of a row that hold `Whole.numbers`."""
        return [*(place for _, place in self._numbers), self.width - 1]

    def row_block(self, weight: float) -> Block:
        """Return the block of sums of rows that :meth:`times` made."""
        l2_squared = self.norm_squared
        return Block("gradient", (self.width,), _l1(self.width, l2_squared), l2_squared, weight)

    def sum_rows(self, state: GridState, rows: Rows) -> Integers:
        """Return the exact sum of rows, in steps of ``2**-20``."""
        total = np.zeros(self.width, dtype=np.int64)
        total[self._places] = rows.numbers.sum(axis=1).astype(np.int64)
        for (j, part), table, found in zip(
            self._categories, self._tables(state), rows.categories, strict=True
        ):
            by = np.bincount(found, weights=rows.factor, minlength=self.levels[j])
            total[part] = by.astype(np.int64) @ table
        return total

    # back to the users' units

    def to_columns(self, state: Mapping[str, Floats], half_range: Floats, middle: Floats) -> Floats:
        """Return the matrix from weights of rows to coefficients in data units.

        Parameters
        ----------
        state : mapping
            With ``centre`` and ``scale``, real numbers.
        half_range, middle : ndarray of shape (n_features,)
            Of each column of the schema; 1 and 0 for coefficients on the grid.

        Returns
        -------
        ndarray of shape (width, width)
            The constant is the last.
        """
        matrix = np.diag(state["scale"]).astype(np.float64)
        matrix[-1] = -state["centre"] * state["scale"]
        matrix[-1, -1] = 1.0
        for j, place in self._numbers:
            matrix[place] /= half_range[j]
            matrix[-1] -= matrix[place] * middle[j]
        return matrix

    def to_half_boxes(self, state: Mapping[str, Floats], low: Floats, high: Floats) -> Floats:
        """Return :meth:`to_columns` for columns over half their box; the intercept is the same.

        Its numbers are of one size in any unit of the data, so that they may be rounded.
        """
        half_range, middle = (high - low) / 2, (high + low) / 2
        return self.to_columns(state, np.ones_like(half_range), middle / half_range)

    def predict(self, coefficients: Floats, records: Records) -> Floats:
        """Return the design of grid records times coefficients; shape (n_samples, n_outputs)."""
        told = np.tile(coefficients[:, -1], (len(records), 1))
        for j, part in self._categories:
            found = codes(records[:, j], self.levels[j], self.frac_bits)
            told += coefficients[:, part].T[found]
        for j, place in self._numbers:
            told += (
                from_grid(records[:, j].astype(np.int64), self.frac_bits)[:, None]
                * (coefficients[:, place])
            )
        return told


def solve(
    curvature: Floats, penalty: Floats, target: Floats, noise_std: float, spread: Floats
) -> tuple[Floats, Floats]:
    """Return what noisy equations say of their solution, and the covariance that is left.

    The equations are ``(curvature + diag(penalty)) w = target + noise``; before them, `w` is taken
    to be near 0 with deviation `spread`. Without noise it is the solution itself.

    Parameters
    ----------
    curvature : ndarray of shape (width, width)
    penalty, spread : ndarray of shape (width,)
    target : ndarray of shape (n_outputs, width)
    noise_std : float

    Returns
    -------
    mean : ndarray of shape (n_outputs, width)
    covariance : ndarray of shape (width, width)
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


NOTE = (
    "[ , ] are 95 % of the noise, about the solution without it. A population interval also holds "
    "the chance that brought these records here, if the model is true."
)


def check_columns(
    levels: Sequence[int], low: Sequence[float], high: Sequence[float], n_features: int
) -> None:
    """Refuse a plan that does not say the same of each column."""
    if not len(levels) == len(low) == len(high) == n_features:
        raise PlanError("levels, low and high need one entry for each column.")


def check_references(reference: Sequence[int], levels: Sequence[int]) -> None:
    """Refuse reference categories that are not one of each column's."""
    known = len(reference) == len(levels)
    if not known or not all(0 <= r < max(n, 1) for r, n in zip(reference, levels, strict=True)):
        raise PlanError(f"reference needs a category of each column, got {tuple(reference)!r}.")


def noise_of_mean(width: int, budget: Budget | None, nominal_n: int) -> float:
    """Return the norm of the noise that the whole budget leaves in a mean of rows of length 1."""
    if budget is None:
        return 0.0
    multiplier = gaussian_noise_multiplier(budget.epsilon, budget.delta)
    return sqrt(width) * multiplier / nominal_n


def coefficient_bars(
    title: str, names: tuple[str, ...], values: Floats, spread: Floats, unit: str
) -> Bars:
    """Return a picture of the largest coefficients."""
    best = np.argsort(-np.abs(values), kind="stable")[:_SHOWN]
    return Bars(title, tuple(names[i] for i in best), values[best], spread[best], unit, NOTE)


def usual_square(levels: Sequence[int]) -> float:
    """Return the mean squared length of rows whose numbers are divided by their deviation.

    `levels` are those of the columns: 0 for numbers, else the number of categories.
    """
    return 1.0 + sum(_OF_CATEGORY if level else 1.0 for level in levels)


def row_length(levels: Sequence[int], relative_noise: float) -> float:
    """Return a length for rows: with much noise short, with little hardly any is shortened.

    Parameters
    ----------
    levels : sequence of int
        Of the columns: 0 for numbers, else the number of categories.
    relative_noise : float
        Norm of the noise of a mean of rows of length 1.
    """
    typical = usual_square(levels)
    stretch = _SHORT * max(1.0, _NOISY / max(relative_noise, 1e-12)) ** 0.5
    return min(sqrt(stretch * typical), LONGEST)


def edge_at(place: Floats) -> float:
    """Return the upper end of a class of sizes, whatever number is given for it."""
    return float(EDGES[int(np.clip(place[0], 0, len(EDGES) - 1))])


def count_sizes(sizes: Floats) -> Integers:
    """Return how many sizes are in each class, in words of the first round's fineness."""
    found = np.minimum(np.searchsorted(EDGES, sizes), len(EDGES) - 1)
    return np.bincount(found, minlength=len(EDGES)).astype(np.int64) << SUM_BITS


_OF_CATEGORY = 0.6  # mean squared distance of an indicator to its mean
_SHORT, _NOISY = 0.6, 0.012  # of the typical length, down to which noise


def noisy_counts(released: Released) -> tuple[Floats, float]:
    """Return released counts, and the noise of each."""
    return from_grid(released.values, SUM_BITS), released.noise_std / (1 << SUM_BITS)


def _l1(size: int, l2_squared: int) -> int:
    """Return a bound on the L1 norm of so many words of this norm."""
    return ceil(sqrt(size) * sqrt(l2_squared)) + 1
