"""The number of records, means, variances and optional covariances, from one noisy sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import isqrt
from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Whole, declared
from cloister.core.display import YEARS, Display, Estimate, Heatmap, Summary, Table
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    POSITIVE,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Ranges,
    Rows,
)
from cloister.tasks import interval_tables, moments
from cloister.tasks.correlations import correlations_of, matrix_of
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Dates, Keep, build_task
from cloister.tasks.preparation.quantiles import Used, check_used, numbers_but
from cloister.tasks.scores import mean_interval, middle_of, ratio


@declared
class Statistics(Gaussian):
    """A noisy count with the means and variances of columns of numbers.

    Parameters
    ----------
    used : tuple of int
        Columns whose statistics are released.
    covariance : bool
        If True, covariances and correlations are released, too.

    Notes
    -----
    Let x in ``[-1, 1]^d`` be a record. Without covariances it adds 1 and, for each column, ``x``
    and ``2 x^2 - 1``, so its squared norm is at most ``1 + 2 d``. The latter uses the whole range,
    while a square uses half of it. With covariances it adds the packed products of ``(x, 1)``, see
    :func:`~cloister.tasks.moments.products_norm_squared`. docs/proofs/preparation.md
    """

    name: ClassVar[str] = "statistics"
    title: ClassVar[str] = "Means and deviations"
    rounds: ClassVar[int] = 1
    ranges: ClassVar[Ranges] = {"deviation": POSITIVE, "variance": POSITIVE}
    columnwise: ClassVar[Mapping[str, str]] = {
        "mean_half_width": "Largest expected error of a mean (95 % of the noise)"
    }

    example: ClassVar[Example] = Example(MIXED, {"covariance": True})

    @declared
    class Options:
        keep: Keep = ()
        covariance: Annotated[bool, "release the covariances of all pairs of columns, too"] = False

    n_features: Whole
    used: Used
    covariance: bool = False
    dates: Dates = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        check_used(self.used, self.n_features)
        if self.covariance:
            self._bits  # noqa: B018  # raises for too many columns

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Use every column of numbers except those in `keep`."""
        return build_task(cls, facts, options, used=numbers_but(facts.columns, options.keep))

    @cached_property
    def _bits(self) -> int:
        width = len(self.used) + 1
        return moments.lattice_bits(
            isqrt(moments.products_norm_squared(width, 0)) + 1, self.frac_bits
        )

    @property
    def _size(self) -> int:
        d = len(self.used)
        return moments.n_products(d + 1) if self.covariance else 1 + 2 * d

    def describe(self) -> str:
        more = ", and of the products of each two of them" * self.covariance
        return (
            f"The number of records, the sums of {counted(len(self.used), 'column')} and of their "
            "squares"
            f"{more} are released with Gaussian noise; they give means and variances."
        )

    def start(self) -> State:
        """Return zero sums."""
        return {"sums": np.zeros(self._size), "noise": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block with all sums, under one noise."""
        if self.covariance:
            width, bits = len(self.used) + 1, self._bits
            l1, l2 = moments.products_l1(width, bits), moments.products_norm_squared(width, bits)
            return (Block("products", (self._size,), l1, l2, 1.0),)
        return (Block.counting("moments", (self._size,), 1.0, self._size),)

    def _values(self, records: Records) -> Integers:
        """Return ``1, x, 2 x^2 - 1`` of each record in fine units, or ``x, 1`` for products."""
        values = records[:, list(self.used)].astype(np.int64)
        # In integers throughout: a bound on rounded values holds without a float argument.
        if self.covariance:
            x = nearest(values, self.frac_bits - self._bits)
            return np.concatenate([x, np.full((len(x), 1), 1 << self._bits)], axis=1)
        x = nearest(values, self.frac_bits - COUNT_BITS)
        squares = nearest(2 * x**2 - (1 << 2 * COUNT_BITS), COUNT_BITS)
        return np.concatenate([np.full((len(x), 1), 1 << COUNT_BITS), x, squares], axis=1)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return ``1, x, 2 x^2 - 1``, or the packed products of ``(x, 1)``."""
        values = self._values(records)
        return (Rows.dense(moments.products(values) if self.covariance else values),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of :meth:`rows`."""
        total = np.zeros(self._size, dtype=np.int64)
        for chunk in moments.chunks(records):
            values = self._values(chunk)
            total += moments.sum_products(values) if self.covariance else values.sum(axis=0)
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums in records."""
        (block,) = released.values()
        unit = 2 * self._bits if self.covariance else COUNT_BITS  # a product has twice the bits
        return {
            "sums": from_grid(block.values, unit),
            "noise": np.array([block.noise_std / (1 << unit)]),
        }

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the margin of error of the count, in records, and the largest of each mean.

        The error of a mean is that of its sum less the mean times that of the count, over the
        number of records. It is largest at an end of the box.
        """
        noise = noise_std / (1 << (2 * self._bits if self.covariance else COUNT_BITS))
        of_sum, of_count = (
            (noise / moments.PRODUCT, noise / moments.SQUARE) if self.covariance else (noise, noise)
        )
        mean = INTERVAL_95["gaussian"] * np.hypot(of_sum, of_count) / nominal_n
        return {
            "count_half_width": self._count_half_width(noise),
            "mean_half_width": np.minimum(mean, 1.0) * grid.half_range[list(self.used)],
        }

    def _count_half_width(self, noise: float) -> Floats:
        return np.array(
            [INTERVAL_95["gaussian"] * noise / (moments.SQUARE if self.covariance else 1)]
        )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return statistics in data units with their 95 % noise intervals.

        Returns
        -------
        dict
            ``count`` and ``count_half_width`` of shape (1,). ``mean``, ``variance`` and
            ``deviation``, each with ``_low`` and ``_high``, of shape (n_used,). The ends of the
            population interval of the mean, ``mean_population_low`` and ``mean_population_high``.
            With `covariance`, ``covariance`` and ``correlation``, each with ``_low`` and ``_high``,
            of shape (n_used, n_used).

        Notes
        -----
        Variances and covariances divide by the number of records less one. The released covariance
        is the nearest matrix without negative eigenvalues; its intervals are those of the original
        entries. A correlation is that of this matrix, moved into its own interval.
        """
        real = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        noise, d = float(real["noise"][0]), len(self.used)
        half, centre = (part[list(self.used)] for part in (grid.half_range, grid.centre))
        covariances: dict[str, Floats]
        if self.covariance:
            products = moments.unpack_products(real["sums"], d + 1)
            n = float(products[d, d])
            # Packed squares and products have different factors, so their noises differ, too.
            var_square, var_product = (noise / moments.SQUARE) ** 2, (noise / moments.PRODUCT) ** 2
            second = np.diag(products)[:d]
            mean = mean_interval(products[:d, d], products[d, d], second, var_product, var_square)
            both = _covariance(products, var_square, var_product)
            of_noise = np.full_like(products, var_product)
            np.fill_diagonal(of_noise, var_square)
            pairs = correlations_of(products, of_noise).mapped(matrix_of)
            covariances = _matrices(both, pairs, half, _of_sample(n))
            variance = both.mapped(np.diag)
        else:
            n, first, second = float(real["sums"][0]), *np.split(real["sums"][1:], 2)
            covariances = {}
            mean = mean_interval(first, np.asarray(n), (second + n) / 2, noise**2, noise**2)
            variance = _variance(n, first, (second + n) / 2, noise**2)
        # The estimate of a variance is unbiased and may be negative.
        variance = variance.mapped(lambda part: np.maximum(part, 0.0) * _of_sample(n))
        return {
            "count": np.array([n]),
            "count_half_width": self._count_half_width(noise),
            **mean.mapped(lambda part: centre + half * part).named("mean"),
            **variance.mapped(lambda part: half**2 * part).named("variance"),
            **variance.mapped(lambda part: half * np.sqrt(part)).named("deviation"),
            **covariances,
        }

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the means of the first columns."""
        means = Estimate.of(results, "mean")
        parts = interval_tables.listing(
            (f"{columns[j]} ", interval_tables.in_days(means[i], j in self.dates))
            for i, j in enumerate(self.used[: interval_tables.SAID])
        )
        both = [
            means[interval_tables.undated(self.used, self.dates)],
            Estimate.of(results, "deviation"),
        ]
        return Summary(result=("Means: ", *parts, "."), reliability=interval_tables.precision(both))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of means and deviations, and the correlations."""
        names = tuple(columns[j] for j in self.used)
        means, deviations = (
            interval_tables.cells_of(results, name) for name in ("mean", "deviation")
        )
        rows = tuple(
            (
                columns[j],
                interval_tables.in_days(mean, j in self.dates),
                interval_tables.in_days(deviation, j in self.dates, YEARS),
            )
            for j, mean, deviation in zip(self.used, means, deviations, strict=True)
        )
        shown: list[Display] = [
            interval_tables.table_of_count(results["count"], results["count_half_width"]),
            Table(
                "Means and deviations",
                ("column", "mean", "deviation"),
                rows,
                f"{interval_tables.WITH_POPULATION} {interval_tables.OF_CUT}",
            ),
        ]
        if "correlation" in results:
            correlation = Estimate.of(results, "correlation", labels=(names, names))
            shade = (correlation.values + 1) / 2
            shown.append(Heatmap("Correlations", correlation, interval_tables.INTERVALS, shade))
        return tuple(shown)


def nearest(values: NDArray[np.int64], bits: int) -> Integers:
    """Return values in steps ``2**bits`` times as wide, rounded; finer if `bits` is negative.

    Multiples of the wide step are unchanged, so values between two of them stay between them.
    """
    if bits <= 0:
        return values << -bits
    return (values + (1 << (bits - 1))) >> bits


def _of_sample(n: float) -> float:
    """Return ``n / (n - 1)``; fewer than two records count as two."""
    return max(n, 2.0) / (max(n, 2.0) - 1)


def _variance(n: float, first: Floats, second: Floats, noise: float) -> Estimate:
    """Return ``(n second - first^2) / n^2``, where `second` is half a sum plus half the count.

    All three sums have noise of equal variance. The noise of `second` has half of this variance,
    and half of the count's noise is in it. The expected effect of noise on products is subtracted.
    """
    slope = second + n / 2  # derivative of the numerator by the count
    return ratio(
        n * second - first**2 + noise / 2,
        np.asarray(n * abs(n) - noise),  # negative with n, so that the interval is the whole box
        (noise * (slope**2 + n**2 / 4 + 4 * first**2), noise * 4 * n**2, noise * 2 * n * slope),
    )


def _covariance(products: Floats, var_square: float, var_product: float) -> Estimate:
    """Return the covariance from products of (x, 1), entry by entry."""
    d = len(products) - 1
    n, first, second = float(products[d, d]), products[:d, d], products[:d, :d]
    same = np.eye(d)
    of_second = np.where(same > 0, var_square, var_product)
    # first_i first_j changes by both noises, a square by twice its own.
    moved = first[:, None] ** 2 + first[None, :] ** 2 + 2 * same * first**2
    return ratio(
        n * second - np.outer(first, first) + same * var_product,
        np.asarray(n * abs(n) - var_square),  # negative with n, as in `_variance`
        (
            n**2 * of_second + second**2 * var_square + moved * var_product,
            4 * n**2 * var_square,
            2 * n * second * var_square,
        ),
        box=(-1.0, 1.0),
    )


def _matrices(entries: Estimate, pairs: Estimate, half: Floats, factor: float) -> dict[str, Floats]:
    """Return covariance, times a factor, and correlation with intervals, in data units.

    A correlation is that of the nearest possible covariance, moved into its own interval.
    """
    possible = middle_of(entries)
    values, vectors = np.linalg.eigh(possible)
    if values[0] < 0:
        possible = (vectors * np.maximum(values, 0.0)) @ vectors.T
        # Removed negative eigenvalues increase variances, but in the box a variance is at most 1.
        most = np.sqrt(np.maximum(np.diag(possible), 1.0))
        possible = possible / np.outer(most, most)
    scale = factor * np.outer(half, half)
    variances = np.maximum(np.diag(possible), 1e-12)
    norm = np.sqrt(np.outer(variances, variances))
    unknown = np.isnan(entries.values)
    value = np.clip(possible / norm, pairs.low, pairs.high)
    correlation = replace(pairs, values=np.where(np.isnan(pairs.values), np.nan, value))
    return {
        "covariance": np.where(unknown, np.nan, possible * scale),
        "covariance_low": entries.low * scale,
        "covariance_high": entries.high * scale,
        **correlation.named("correlation"),
    }
