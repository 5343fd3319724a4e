"""Private principal components: a noisy mean, lengths about it, second moments and squares.

Records are shortened to a radius for the second moments, which give the components. The squares of
whole records along the components give the variances.

References
----------
.. [DTTZ14] Dwork, Talwar, Thakurta and Zhang, "Analyze Gauss: optimal bounds for
   privacy-preserving principal component analysis", STOC 2014, algorithm 1: noise on every entry
   of the matrix of second moments.
.. [AKMV19] Amin, Kulesza, Munoz Medina and Vassilvitskii, "Bounding user contributions: a
   bias-variance trade-off in differential privacy", ICML 2019: the best clip is exceeded by
   as many records as the noise amounts to.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import floor, isqrt, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Whole, declared
from cloister.core.display import Cell, Display, Estimate, Heatmap, Summary, Table, bare
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
)
from cloister.tasks.clipped import clip_to_unit
from cloister.tasks.columns import Encoding, columns_of, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import INTERVALS, number_of, precision
from cloister.tasks.intervals import ratio_interval, round_up, size_interval
from cloister.tasks.moments import (
    PRODUCT,
    SQUARE,
    chunks,
    n_products,
    sum_products,
    unpack_products,
    with_one_sign,
)
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.eigenvalues import Eigenvalues
from cloister.tasks.preparation.standardise import Reach

_MEAN, _LENGTHS, _PRODUCTS, _SQUARES = 0.1, 0.1, 0.4, 0.4  # shares of the budget
_LENGTH_BINS = 32  # of the lengths of records; each is 2**(1/4) times as long as the next
_BEYOND = 10.0  # records beyond the radius, over the noise in records: a shortened one turns little
# half-widths over the noise along a component, in forecasts; measured
_COMPONENTS = {"clear_components": 0.55, "components_that_noise_turns": 2.6}
_UNIT_BITS = 12  # bits of the length of a record at the radius
_WEIGHT_BITS = 14  # bits of a component's entries in the projection of records
_MOST_WIDTH = 512  # keeps the sums of a projection below 2**53
_UNKNOWN = 2.0**32  # noise of what is not released yet: above any number of records
_LEAST = 2.0**-6  # smallest deviation as a divisor of records


@declared
class PCA(Gaussian):
    """Directions with the largest variance, and the records in their coordinates.

    Parameters
    ----------
    kept : tuple of int
        Columns that are excluded and follow the components unchanged.
    clip : float, > 0
        Upper limit of the radius around the mean to which records are shortened for the components,
        as a share of ``sqrt(numbers + 2 categorical columns)``. From 2 on it is no limit.

    Notes
    -----
    Columns of numbers are in [-1, 1] over their box, a category is 0 or 1. Adding or removing one
    record changes four sums. First are its row and a count, each word by at most one. Second is a
    count of one length about the mean. Third are the products of a vector within a radius, whose
    packed norm is at most 5 times its squared length. Fourth are squares along the components and
    the rest of its squared length, whole numbers >= 0 with a bounded sum.
    docs/proofs/preparation.md
    """

    name: ClassVar[str] = "pca"
    title: ClassVar[str] = "Principal components"
    rounds: ClassVar[int] = 4

    example: ClassVar[Example] = Example(MIXED, {"n_components": 2})

    @declared
    class Options:
        n_components: Annotated[Whole | None, "directions; at most two if None"] = None
        keep: Keep = ()
        clip: Annotated[
            Positive, "upper limit of the radius of the components, as a share of half the diagonal"
        ] = 2.0
        reach: Reach = 4.0
        whiten: Annotated[bool, "divide each component by its own deviation"] = False

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    categories: tuple[tuple[str, ...], ...]
    kept: tuple[int, ...] = ()
    n_components: Whole = 2
    clip: Positive = 2.0
    reach: Reach = 4.0
    whiten: bool = False
    frac_bits: int = 16

    def __post_init__(self) -> None:
        if not self.n_components <= self.width <= _MOST_WIDTH:
            raise PlanError(
                "n_components must be at most the number of numbers and categories outside keep, "
                f"which must be at most {_MOST_WIDTH}, got {self.n_components} of {self.width}; "
                "change keep."
            )
        # The output has both, and a schema needs distinct names.
        if clash := {self.names[j] for j in self.kept} & set(self._labels):
            raise PlanError(f"column {min(clash)!r} has the name of a component; rename it.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Use every column except those in `keep`."""
        kept = tuple(sorted(position(facts.columns, name, "keep") for name in options.keep))
        width = Encoding(facts.levels, facts.frac_bits, kept).width - 1
        return build_task(
            cls,
            facts,
            options,
            kept=kept,
            n_components=options.n_components or max(1, min(2, width)),
            clip=float(options.clip),
            reach=float(options.reach),
        )

    @property
    def n_features(self) -> int:
        return len(self.names)

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding(tuple(map(len, self.categories)), self.frac_bits, self.kept)

    @cached_property
    def width(self) -> int:
        """Number of entries of a component: one for each column of numbers and each category."""
        return self._encoding.width - 1

    @cached_property
    def _public(self) -> tuple[PublicColumn, ...]:
        return columns_of(self.names, self.low, self.high, self.categories)

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(f"pc{i + 1}" for i in range(self.n_components))

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The components, in deviations, and then the columns in `keep`."""
        components = (PublicColumn(name, -self.reach, self.reach) for name in self._labels)
        return (*components, *(self._public[j] for j in self.kept))

    @cached_property
    def _half_diagonal(self) -> float:
        """Half the diagonal of the box, where two categories of a column differ by 1 each."""
        return sqrt(sum(2 if self.categories[j] else 1 for j in self._encoding.used))

    def describe(self) -> str:
        return (
            "The count and the sum of all records are released with noise, then the numbers of "
            f"records at {_LENGTH_BINS} ranges of distance from their mean. The sums of "
            f"{counted(n_products(self.width), 'product')} of {self.width} numbers and categories "
            f"about the mean give {self.n_components} principal components. The sums of squares "
            "along these give their variances. Each silo then projects its records onto the "
            "components."
        )

    def start(self) -> State:
        """Return the middle of the box and the first axes."""
        m, p = self.n_components, self.width
        return {
            **{name: np.zeros(p) for name in ("mean", "mean_low", "mean_high", "spectrum")},
            **{name: np.zeros(1) for name in ("count", "count_noise")},
            **{name: np.array([_UNKNOWN]) for name in ("products_noise", "squares_noise")},
            "squares": np.zeros(m + 1),
            "components": np.eye(m, p),
            "radius": np.ones(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the block of sums and count, of lengths, of products, or of squares."""
        one, unit, p = 1 << self.frac_bits, 1 << 2 * _UNIT_BITS, self.width
        if t == 0:
            entries = len(self._encoding.used) + 1
            return (Block.counting("sums", (p + 1,), _MEAN, entries, one),)
        if t == 1:
            return (Block.counting("lengths", (_LENGTH_BINS,), _LENGTHS),)
        if t == 2:
            # (sum |y_i|)^2 is at most p |y|^2, so products of two columns sum to (p - 1) / 2 of it.
            l1 = (2 * SQUARE + PRODUCT * (p - 1)) * unit // 2
            bound = (SQUARE * unit) ** 2
            return (Block("products", (n_products(p),), l1, bound, _PRODUCTS),)
        return (Block("squares", (self.n_components + 1,), unit, unit**2, _SQUARES),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sum of the rows, a histogram of lengths, sums of products or of squares.

        All but the first are about the released mean.
        """
        one = 1 << self.frac_bits
        mean = np.clip(state["mean"], -one, one)  # a hostile state may have any
        total = np.zeros(self.blocks(t)[0].size, dtype=np.int64)
        for chunk in chunks(records):
            rows = self._encoding.rows(chunk)
            away = rows[:, :-1] - mean
            if t == 0:
                total += rows.sum(axis=0, dtype=np.int64)
            elif t == 1:
                total += _lengths(away, self._radii(mean))
            elif t == 2:
                radius = max(1, int(state["radius"][0]))
                total += sum_products(rounded_to_unit(away, radius, 1 << _UNIT_BITS))
            else:
                weights = np.clip(state["components"], -one, one)
                whole = rounded_to_unit(away, self._longest(mean), 1 << _UNIT_BITS)
                total += squares_along(whole, weights, self.frac_bits).sum(axis=0)
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Set the mean, the radius, the components of the second moments, or their squares."""
        before = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        (block,) = released.values()
        if t == 0:
            return {**before, **self._mean(block)}
        if t == 1:
            return {**before, "radius": self._radius(state["mean"], block)}
        if t == 2:
            return {**before, **self._components(block, before["count"])}
        squares, noise = block.in_records(2 * _UNIT_BITS)
        return {
            **before,
            "squares": squares,
            "squares_noise": self._with_rounding(noise, before["count"]),
        }

    def _mean(self, block: NoisyBlock) -> dict[str, Floats]:
        totals, std = block.in_records(self.frac_bits)
        sums, count = totals[:-1], totals[-1:]
        low, high = ratio_interval(sums[None], count, sum_std=std, count_std=std)
        mean = sums / max(float(count[0]), 1.0, std)  # a count within its noise is uninformative
        return {
            "mean": np.clip(mean, -1, 1),
            "mean_low": low[0],
            "mean_high": high[0],
            "count": count,
            "count_noise": np.array([std]),
        }

    def _longest(self, mean: Integers) -> int:
        """Return the largest distance of a record from a point of the box, in grid steps."""
        one, total, place = 1 << self.frac_bits, 0, 0
        for j in self._encoding.used:
            levels = len(self.categories[j])
            own = mean[place : place + max(levels, 1)]
            place += len(own)
            # A category lies at 1 in one entry, farthest in that with the smallest mean.
            far = own @ own + one**2 - 2 * one * own.min() if levels else (one + abs(own[0])) ** 2
            total += int(far)
        return isqrt(total) + 1

    def _radii(self, mean: Integers) -> Integers:
        """Return the radii between the bins of lengths, the longest first, grid steps."""
        steps = 2.0 ** (-np.arange(_LENGTH_BINS) / 4)
        return np.maximum(np.floor(self._longest(mean) * steps), 1).astype(np.int64)

    def _radius(self, mean: Integers, block: NoisyBlock) -> Floats:
        """Return the radius that few records exceed, in proportion to the noise.

        There, noise and shortening together change the components least [AKMV19]_.
        """
        counts, std = block.in_records()
        beyond = np.cumsum(counts) - counts
        noise = SQUARE / PRODUCT * std * sqrt(_LENGTHS / _PRODUCTS)  # of a product, in records
        many = beyond > _BEYOND * 2 * sqrt(self.width) * noise
        last = int(many.argmax()) - 1 if many.any() else _LENGTH_BINS - 1
        one = 1 << self.frac_bits
        limit = max(1, floor(min(self.clip, 2.0) * self._half_diagonal * one))
        return np.minimum(self._radii(mean)[[last]], limit) / one

    def _components(self, block: NoisyBlock, count: Floats) -> dict[str, Floats]:
        products, noise = block.in_records(2 * _UNIT_BITS)
        values, vectors = np.linalg.eigh(unpack_products(products, self.width))
        return {
            "components": with_one_sign(vectors.T[::-1][: self.n_components]),
            "spectrum": values[::-1],
            "products_noise": self._with_rounding(noise / PRODUCT, count),
        }

    def _with_rounding(self, noise_std: float, count: Floats) -> Floats:
        """Return the deviation of noise and of rounded lengths, which have ``2**-12`` at most."""
        rounding = np.sqrt(np.maximum(count, 0)) / (1 << _UNIT_BITS)
        return round_up(np.hypot(noise_std, rounding), self.frac_bits)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return a range of half-widths of an explained variance, in squares of half a box.

        It is small for a component whose variance is far from those of others, and large if noise
        turns one into another. It grows with the largest distance from the mean. Each mean is
        assumed at a quarter of half the box from its middle.
        """
        squares = len(self._encoding.used) * (1 + 1 / 4) ** 2
        noise = INTERVAL_95["gaussian"] * noise_std / 4**_UNIT_BITS * squares / max(nominal_n, 1)
        return {
            f"explained_variance_of_{which}_half_width": np.array([min(times * noise, squares / 2)])
            for which, times in _COMPONENTS.items()
        }

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return mean, components and explained variances.

        Returns
        -------
        dict
            ``mean`` with ``mean_low`` and ``mean_high`` of shape (width,), ``components`` of shape
            (n_components, width): numbers from -1 to 1 over the box of their column, categories 0
            or 1. ``explained_variance`` and ``explained_variance_ratio`` of shape (n_components,)
            and ``total_variance`` of shape (1,), in the squares of these units, each with ``_low``
            and ``_high``. ``radius`` to which records are shortened for the components alone.
            ``scale``, the divisor of coordinates. ``count`` and ``count_half_width``, in records.

        Notes
        -----
        A variance is that of the records along its component, with the divisor n - 1. Its 95 %
        interval holds this variance and the eigenvalue of the records' covariance.
        """
        real = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        one = {name: float(value[0]) for name, value in real.items() if value.shape == (1,)}
        longest = (self._longest(state["mean"]) / (1 << self.frac_bits)) ** 2
        mean, components = real["mean"], real["components"]
        found = Eigenvalues(
            count=one["count"],
            count_std=one["count_noise"],
            squares=real["squares"] * longest,
            squares_std=one["squares_noise"] * longest,
            spectrum=real["spectrum"] * one["radius"] ** 2,
            products_std=one["products_noise"] * one["radius"] ** 2,
            places=np.append(components @ mean, np.linalg.norm(mean)),
            longest=longest,
        ).intervals()
        # The job goes on with the least scale, where nothing is known of a variance.
        positive = np.sqrt(np.fmax(found["explained_variance"], _LEAST**2))
        return {
            **{name: real[name] for name in ("mean", "mean_low", "mean_high", "components")},
            "radius": real["radius"],
            **found,
            # One scale for all components keeps distances, a scale for each one removes them.
            "scale": positive if self.whiten else np.full(len(positive), positive.max()),
            "count": real["count"],
            "count_half_width": np.array([size_interval(one["count_noise"])]),
        }

    def reasons(self, results: Results) -> dict[str, str]:
        """Return why variances and their shares are not known."""
        names = ("explained_variance", "explained_variance_ratio", "total_variance")
        return dict.fromkeys(names, "with this noise it may be any")

    def transform(self, results: Results, records: Records) -> Records:
        """Return coordinates along the components, and the columns in `keep`."""
        one = 1 << self.frac_bits
        mean = np.rint(results["mean"] * one).astype(np.int64)
        weights = np.rint(results["components"].T * (1 << _WEIGHT_BITS))
        changed = np.empty((len(records), len(self.output)), dtype=np.int32)
        factors = 1 / (results["scale"] * self.reach * (1 << _WEIGHT_BITS))
        place = 0
        for chunk in chunks(records):
            away = (self._encoding.rows(chunk)[:, :-1] - mean).astype(np.float64)
            # Integers below 2**53, so that no other record can change the last bit.
            coordinates = (away @ weights) * factors
            cut = np.rint(np.clip(coordinates, -one, one))
            changed[place : place + len(chunk), : self.n_components] = cut
            place += len(chunk)
        changed[:, self.n_components :] = records[:, list(self.kept)]
        return changed

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the first component: its share of the variance and its largest weight."""
        weights = results["components"][0]
        named = self._encoding.names(self._public)[int(np.abs(weights).argmax())]
        share = number_of(results, "explained_variance_ratio")
        result: tuple[Cell, ...] = (
            "The first component has a share of ",
            share,
            f" of the variance, most of {named}.",
        )
        if np.isnan(share.value):
            result = (f"The first component is mostly {named}; its share is not known.",)
        return Summary(
            result=result,
            reliability=precision([Estimate.of(results, "explained_variance")]),
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return explained variances and the components."""
        rows = tuple(
            (
                name,
                number_of(results, "explained_variance", i),
                number_of(results, "explained_variance_ratio", i),
            )
            for i, name in enumerate(self._labels)
        )
        heads = ("component", "variance", "share of the total")
        components = results["components"]
        largest = max(float(np.abs(components).max()), 1e-9)
        return (
            Table("Explained variance", heads, rows, INTERVALS),
            Heatmap(
                "Components",
                bare(components, labels=(self._labels, self._encoding.names(self._public)[:-1])),
                "Weight of each column, relative to half of its box.",
                components / largest,
            ),
        )


def _lengths(away: Integers, radii: Integers) -> Integers:
    """Count the records in each bin of lengths; the first is beyond the second of the radii."""
    squares = np.einsum("ij,ij->i", away, away)  # whole numbers
    shorter = np.searchsorted(radii[:0:-1] ** 2, squares)
    counts = np.bincount(len(radii) - 1 - shorter, minlength=len(radii))
    return counts.astype(np.int64) << COUNT_BITS


def squares_along(vectors: Integers, components: Integers, bits: int) -> Integers:
    """Return squares of vectors along components, and the rest of their squared lengths.

    Parameters
    ----------
    vectors : ndarray of shape (n_samples, width), int64
        At most ``2**12`` long.
    components : ndarray of shape (n_components, width), int64
        In steps of ``2**-bits``, at most 1.

    Returns
    -------
    ndarray of shape (n_samples, n_components + 1), int64
        Whole numbers >= 0 whose sum is the squared length, whatever the components are.
    """
    # Products of whole numbers below 2**53, so that no other record can change them.
    along = vectors.astype(np.float64) @ components.T.astype(np.float64)
    wanted = np.rint(np.square(along / (1 << bits))).astype(np.int64)
    rest = np.einsum("ij,ij->i", vectors, vectors)
    left = np.maximum(rest[:, None] - np.cumsum(wanted, axis=1), 0)
    ends = np.column_stack([rest, left])
    return np.column_stack([ends[:, :-1] - ends[:, 1:], ends[:, -1]])


def rounded_to_unit(differences: Integers, radius: int, unit: int) -> Integers:
    """Return differences clipped to a radius, in steps of ``1 / unit`` of it, rounded to nearest.

    A row that rounding would make longer than `unit` is truncated toward zero instead. So every
    squared norm is at most ``unit**2``.
    """
    # Rounding to nearest has less bias than truncation.
    cut = clip_to_unit(differences, radius, unit)
    real = differences.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", real, real))
    near = np.rint(real * (unit / np.maximum(lengths, radius))[:, None])
    fits = np.einsum("ij,ij->i", near, near) <= unit**2
    return np.where(fits[:, None], near, cut).astype(np.int64)
