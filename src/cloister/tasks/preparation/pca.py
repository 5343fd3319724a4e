"""Private principal components: a noisy mean, then noisy second moments about it.

References
----------
.. [DTTZ14] Dwork, Talwar, Thakurta and Zhang, "Analyze Gauss: optimal bounds for
   privacy-preserving principal component analysis", STOC 2014, algorithm 1: noise on every entry
   of the matrix of second moments.
.. [W12] Weyl's inequality: an eigenvalue changes at most by the largest eigenvalue of the noise.
.. [V18] Vershynin, "High-dimensional probability", 2018, theorems 5.2.2 and 7.2.11 (Gaussian
   concentration; comparison of Sudakov and Fernique): the size of the eigenvalues of noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import floor, log, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Whole, declared
from cloister.core.display import Display, Heatmap, Table, bare
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicColumn, PublicFacts
from cloister.tasks.clipped import chunks, clip_to_unit
from cloister.tasks.columns import Encoding, columns_of, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import INTERVALS, number_of
from cloister.tasks.intervals import ratio_interval, round_up, size_interval
from cloister.tasks.moments import (
    PRODUCT,
    SQUARE,
    n_products,
    sum_products,
    unpack_products,
    with_one_sign,
)
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.standardise import Reach

_MEAN_SHARE = 0.15  # of the budget
_UNIT_BITS = 12  # bits of the length of a record at the radius
_WEIGHT_BITS = 14  # bits of a component's entries in the projection of records
_MOST_WIDTH = 512  # keeps the sums of a projection below 2**53
_LEAST = 2.0**-6  # smallest deviation as a divisor of records
_TAIL = sqrt(2 * log(1 / 0.025))  # a concentrated variable exceeds it with 2.5 % probability


@declared
class PCA(Gaussian):
    """Directions with the largest variance, and the records in their coordinates.

    Parameters
    ----------
    kept : tuple of int
        Columns that are excluded and follow the components unchanged.
    clip : float, > 0
        Radius around the mean as a share of ``sqrt(numbers + 2 categorical columns)``; records
        beyond it are clipped to it. From 2 on no record is.

    Notes
    -----
    Columns of numbers are in [-1, 1] over their box, a category is 0 or 1. Adding or removing one
    record first changes its row and a count, by at most one for each column and one more. Then it
    changes the products of a vector within the radius of `clip`, whose packed norm is at most 5
    times its squared length. docs/proofs/preparation.md
    """

    name: ClassVar[str] = "pca"
    title: ClassVar[str] = "Principal components"
    rounds: ClassVar[int] = 2

    example: ClassVar[Example] = Example(MIXED, {"n_components": 2})

    @declared
    class Options:
        n_components: Annotated[Whole | None, "directions; at most two if None"] = None
        keep: Keep = ()
        clip: Annotated[Positive, "radius around the mean, as a share of half the diagonal"] = 0.3
        reach: Reach = 4.0
        whiten: Annotated[bool, "divide each component by its own deviation"] = False

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    categories: tuple[tuple[str, ...], ...]
    kept: tuple[int, ...] = ()
    n_components: Whole = 2
    clip: Positive = 0.3
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
    def _radius(self) -> int:
        """Length to which records are clipped, grid steps."""
        used = self._encoding.used
        # Two records differ in at most two categories of a column, by 1 each.
        squares = sum(2 if self.categories[j] else 1 for j in used)
        return max(1, floor(min(self.clip, 2.0) * sqrt(squares) * (1 << self.frac_bits)))

    def describe(self) -> str:
        return (
            f"The count and the sum of all records are released with noise, then the sums of "
            f"{n_products(self.width)} products of {self.width} numbers and categories about their "
            f"mean; they give {self.n_components} principal components, and each silo then "
            "projects its records onto these."
        )

    def start(self) -> State:
        """Return the middle of the box and the first axes."""
        m, p = self.n_components, self.width
        return {
            **{name: np.zeros(p) for name in ("mean", "mean_low", "mean_high")},
            **{name: np.zeros(1) for name in ("count", "count_noise", "spread")},
            "components": np.eye(m, p),
            "variances": np.ones(m),
            "total": np.ones(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the block of sums and count, or the block of products."""
        if t == 0:
            one, entries = 1 << self.frac_bits, len(self._encoding.used) + 1
            return (Block.counting("sums", (self.width + 1,), _MEAN_SHARE, entries, one),)
        unit, p = 1 << 2 * _UNIT_BITS, self.width
        # (sum |y_i|)^2 is at most p |y|^2, so products of two columns sum to (p - 1) / 2 of |y|^2.
        l1 = (2 * SQUARE + PRODUCT * (p - 1)) * unit // 2
        bound = (SQUARE * unit) ** 2
        return (Block("products", (n_products(p),), l1, bound, 1 - _MEAN_SHARE),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums of rows that end with 1, or sums of products about the released mean."""
        size = self.width + 1 if t == 0 else n_products(self.width)
        total = np.zeros(size, dtype=np.int64)
        for chunk in chunks(records):
            rows = self._encoding.rows(chunk)
            if t == 0:
                total += rows.sum(axis=0, dtype=np.int64)
            else:
                away = rows[:, :-1] - state["mean"]
                total += sum_products(rounded_to_unit(away, self._radius, 1 << _UNIT_BITS))
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Set the mean, or the components of the second moments."""
        before = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if t == 0:
            return {**before, **self._mean(released["sums"])}
        return {**before, **self._components(before, released["products"])}

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

    def _scale(self, n: float) -> float:
        """Return the size of an integer step of the released products, over `n` records."""
        return (self._radius / (1 << self.frac_bits)) ** 2 / 4.0**_UNIT_BITS / n

    def _components(self, before: State, block: NoisyBlock) -> dict[str, Floats]:
        scale = self._scale(max(float(before["count"][0]), 1.0, float(before["count_noise"][0])))
        moments = unpack_products(block.values.astype(np.float64) * scale, self.width)
        values, vectors = np.linalg.eigh(moments)
        return {
            "components": with_one_sign(vectors.T[::-1][: self.n_components]),
            "variances": values[::-1][: self.n_components],
            "total": np.array([max(float(np.trace(moments)), float(values[-1]))]),
            "spread": round_up(self._half_width(block.noise_std * scale), self.frac_bits),
        }

    def _half_width(self, noise_std: float) -> Floats:
        """Return an upper bound on the 97.5 % quantile of the largest eigenvalue of the noise.

        Entries off the diagonal have deviation s, those on it at most sqrt(2) s. The mean of the
        largest eigenvalue is at most 2 s sqrt(p). Its variation is at most that of a normal
        variable with deviation sqrt(2) s [V18]_.
        """
        off_diagonal = noise_std / PRODUCT
        # A diagonal entry is packed with the factor 5, an other one with 7: 7/5 is below sqrt(2).
        return np.array([off_diagonal * (2 * sqrt(self.width) + _TAIL * sqrt(2))])

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the half-width of an explained variance, in squares of half a box."""
        half_width = self._half_width(noise_std * self._scale(max(nominal_n, 1)))
        return {"explained_variance_half_width": half_width}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return mean, components and explained variances.

        Returns
        -------
        dict
            ``mean`` with ``mean_low`` and ``mean_high`` of shape (width,), ``components`` of shape
            (n_components, width): numbers from -1 to 1 over the box of their column, categories 0
            or 1. ``explained_variance`` with ``_low`` and ``_high`` and
            ``explained_variance_ratio`` of shape (n_components,), in the squares of these units.
            ``explained_variance_half_width`` and ``total_variance`` of shape (1,). ``scale``, the
            divisor of coordinates. ``count`` and ``count_half_width``, in records.

        Notes
        -----
        The interval of an explained variance covers the eigenvalue of the same moments without
        noise. It holds for all eigenvalues simultaneously [W12]_, and is wider than 95 % requires.
        """
        real = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        values, spread = real["variances"], real["spread"]
        total = np.maximum(real["total"], 4.0**-self.frac_bits)
        positive = np.sqrt(np.maximum(values, _LEAST**2))
        return {
            **{name: real[name] for name in ("mean", "mean_low", "mean_high", "components")},
            "explained_variance": np.maximum(values, 0.0),
            "explained_variance_low": np.maximum(values - spread, 0.0),
            "explained_variance_high": np.maximum(values + spread, 0.0),
            "explained_variance_half_width": spread,
            "explained_variance_ratio": np.clip(values / total, 0.0, 1.0),
            "total_variance": total,
            # One scale for all components keeps distances, a scale for each one removes them.
            "scale": positive if self.whiten else np.full(len(values), positive[0]),
            "count": real["count"],
            "count_half_width": np.array([size_interval(float(real["count_noise"][0]))]),
        }

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

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return explained variances and the components."""
        shares = results["explained_variance_ratio"].tolist()
        rows = tuple(
            (name, number_of(results, "explained_variance", i), shares[i])
            for i, name in enumerate(self._labels)
        )
        note = f"{INTERVALS} They hold for all components simultaneously."
        heads = ("component", "variance", "share of the total")
        components = results["components"]
        largest = max(float(np.abs(components).max()), 1e-9)
        return (
            Table("Explained variance", heads, rows, note),
            Heatmap(
                "Components",
                bare(components, labels=(self._labels, self._encoding.names(self._public)[:-1])),
                "Weight of each column, relative to half of its box.",
                components / largest,
            ),
        )


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
