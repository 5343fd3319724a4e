"""Private principal components: a noisy mean, then noisy second moments about it.

References
----------
.. [DTTZ14] Dwork, Talwar, Thakurta and Zhang, "Analyze Gauss: optimal bounds for
   privacy-preserving principal component analysis", STOC 2014, algorithm 1: noise on every entry
   of the matrix of second moments.
.. [W12] Weyl's inequality: an eigenvalue moves by no more than the largest one of what is added.
.. [V18] Vershynin, "High-dimensional probability", 2018, theorems 5.2.2 and 7.2.11 (Gaussian
   concentration; comparison of Sudakov and Fernique): how large the eigenvalues of noise are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import floor, log, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Whole, declared
from cloister.core.display import Display, Heatmap, Table
from cloister.core.errors import PlanError
from cloister.core.estimate import bare
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicColumn, PublicFacts
from cloister.tasks.clipped import chunks, clip_to_unit
from cloister.tasks.columns import Encoding, columns_of, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import INTERVALS, number_of
from cloister.tasks.intervals import ratio_interval, round_up, size_interval
from cloister.tasks.moments import PRODUCT, SQUARE, n_products, sum_products, unpack_products
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.standardise import Reach

_MEAN_SHARE = 0.15
_UNIT_BITS = 12  # a record at the radius is a vector of so many bits
_WEIGHT_BITS = 14  # of a component's entries where records are projected
_MOST_WIDTH = 512
_LEAST = 2.0**-6  # of a deviation that records are divided by
_TAIL = sqrt(2 * log(1 / 0.025))  # of a concentrated variable, so that 2.5 % are beyond


@declared
class PCA(Gaussian):
    """Directions in which records vary most, and records in their coordinates.

    Parameters
    ----------
    kept : tuple of int
        Columns that take no part and follow the components unchanged.
    clip : float, > 0
        A record further from the mean than this part of ``sqrt(numbers + 2 categorical columns)``
        is shortened to that; from 2 on none is.

    Notes
    -----
    Columns of numbers count from -1 to 1 over their box, a category is 0 or 1. Add/remove one
    record: it adds its row and a count, at most one for each column and one more; then the products
    of a vector of at most `clip`'s radius, whose packed norm is 5 times its squared length.
    docs/proofs/preparation.md
    """

    name: ClassVar[str] = "pca"
    title: ClassVar[str] = "Principal components"
    rounds: ClassVar[int] = 2

    example: ClassVar[Example] = Example(MIXED, {"n_components": 2})

    @declared
    class Options:
        n_components: Annotated[Whole | None, "directions; at most two if None"] = None
        keep: Keep = ()
        clip: Annotated[Positive, "radius around the mean, as a part of half the diagonal"] = 0.3
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
                "n_components must be at most the numbers and categories that are not kept, of "
                f"which there must be at most {_MOST_WIDTH}, got {self.n_components} of "
                f"{self.width}; keep other columns."
            )
        if clash := {self.names[j] for j in self.kept} & set(self._labels):
            raise PlanError(f"column {min(clash)!r} has the name of a component; rename it.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Take every column that is not kept."""
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
        """Number of numbers and categories, the entries of a component."""
        return self._encoding.width - 1

    @cached_property
    def _public(self) -> tuple[PublicColumn, ...]:
        return columns_of(self.names, self.low, self.high, self.categories)

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(f"pc{i + 1}" for i in range(self.n_components))

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The components, in deviations, and then the columns that were kept."""
        components = (PublicColumn(name, -self.reach, self.reach) for name in self._labels)
        return (*components, *(self._public[j] for j in self.kept))

    @cached_property
    def _radius(self) -> int:
        """Length to which records are shortened, grid steps."""
        used = self._encoding.used
        squares = sum(2 if self.categories[j] else 1 for j in used)
        return max(1, floor(min(self.clip, 2.0) * sqrt(squares) * (1 << self.frac_bits)))

    def describe(self) -> str:
        return (
            f"The number and the sum of all records are released with noise, then the "
            f"{n_products(self.width)} products of {self.width} numbers and categories about their "
            f"mean; {self.n_components} principal components are made of them, in which each silo "
            "then expresses its records."
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
        """Return sums and count; then products."""
        if t == 0:
            one, entries = 1 << self.frac_bits, len(self._encoding.used) + 1
            return (Block.counting("sums", (self.width + 1,), _MEAN_SHARE, entries, one),)
        unit, p = 1 << 2 * _UNIT_BITS, self.width
        # (sum |y_i|)^2 is at most p |y|^2, so products of two columns are at most (p - 1) / 2 of it
        l1 = (2 * SQUARE + PRODUCT * (p - 1)) * unit // 2
        bound = (SQUARE * unit) ** 2
        return (Block("products", (n_products(p),), l1, bound, 1 - _MEAN_SHARE),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums of rows with a last 1; or sums of products about the released mean."""
        size = self.width + 1 if t == 0 else n_products(self.width)
        total = np.zeros(size, dtype=np.int64)
        for part in chunks(records):
            rows = self._encoding.rows(part)
            if t == 0:
                total += rows.sum(axis=0, dtype=np.int64)
            else:
                away = rows[:, :-1] - state["mean"]
                total += sum_products(rounded_to_unit(away, self._radius, 1 << _UNIT_BITS))
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the mean; or the components of the second moments."""
        known = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if t == 0:
            return {**known, **self._mean(released["sums"])}
        return {**known, **self._components(known, released["products"])}

    def _mean(self, block: NoisyBlock) -> dict[str, Floats]:
        totals, std = block.in_records(self.frac_bits)
        sums, count = totals[:-1], totals[-1:]
        low, high = ratio_interval(sums[None], count, sum_std=std, count_std=std)
        mean = sums / max(float(count[0]), 1.0, std)
        return {
            "mean": np.clip(mean, -1, 1),
            "mean_low": low[0],
            "mean_high": high[0],
            "count": count,
            "count_noise": np.array([std]),
        }

    def _scale(self, n: float) -> float:
        """Return what an integer of the released products is, over `n` records."""
        return (self._radius / (1 << self.frac_bits)) ** 2 / 4.0**_UNIT_BITS / n

    def _components(self, known: State, block: NoisyBlock) -> dict[str, Floats]:
        scale = self._scale(max(float(known["count"][0]), 1.0, float(known["count_noise"][0])))
        moments = unpack_products(block.values.astype(np.float64) * scale, self.width)
        values, vectors = np.linalg.eigh(moments)
        first = vectors.T[::-1][: self.n_components]
        at = np.abs(first).argmax(axis=1)
        first = first * np.sign(first[np.arange(len(first)), at])[:, None]  # one sign for everybody
        return {
            "components": first,
            "variances": values[::-1][: self.n_components],
            "total": np.array([max(float(np.trace(moments)), float(values[-1]))]),
            "spread": round_up(self._half_width(block.noise_std * scale), self.frac_bits),
        }

    def _half_width(self, noise_std: float) -> Floats:
        """Return what is at least the 97.5 % point of the largest eigenvalue of the noise.

        Entries beside the diagonal have the deviation s, those on it at most sqrt(2) s: the largest
        eigenvalue is 2 s sqrt(p) on average, at most, and varies like a normal variable of
        deviation sqrt(2) s, at most. [V18]_
        """
        beside = noise_std / PRODUCT
        return np.array([beside * (2 * sqrt(self.width) + _TAIL * sqrt(2))])

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return how far noise may move an explained variance; squares of half a box."""
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
            ``explained_variance_ratio`` of shape (n_components,), in the squares of these units;
            ``explained_variance_half_width`` and ``total_variance`` of shape (1,); ``scale``, what
            coordinates are divided by; ``count`` and ``count_half_width``, in records.

        Notes
        -----
        The interval of an explained variance is of the eigenvalue that the same moments have
        without noise; it holds for all at once [W12]_, and is wider than 95 % needs.
        """
        found = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        values, spread = found["variances"], found["spread"]
        total = np.maximum(found["total"], 4.0**-self.frac_bits)
        positive = np.sqrt(np.maximum(values, _LEAST**2))
        return {
            **{name: found[name] for name in ("mean", "mean_low", "mean_high", "components")},
            "explained_variance": np.maximum(values, 0.0),
            "explained_variance_low": np.maximum(values - spread, 0.0),
            "explained_variance_high": np.maximum(values + spread, 0.0),
            "explained_variance_half_width": spread,
            "explained_variance_ratio": np.clip(values / total, 0.0, 1.0),
            "total_variance": total,
            "scale": positive if self.whiten else np.full(len(values), positive[0]),
            "count": found["count"],
            "count_half_width": np.array([size_interval(float(found["count_noise"][0]))]),
        }

    def transform(self, results: Results, records: Records) -> Records:
        """Return coordinates along the components, and the columns that were kept."""
        one = 1 << self.frac_bits
        mean = np.rint(results["mean"] * one).astype(np.int64)
        weights = np.rint(results["components"].T * (1 << _WEIGHT_BITS))
        changed = np.empty((len(records), len(self.output)), dtype=np.int32)
        factors = 1 / (results["scale"] * self.reach * (1 << _WEIGHT_BITS))
        place = 0
        for part in chunks(records):
            away = (self._encoding.rows(part)[:, :-1] - mean).astype(np.float64)
            # whole numbers below 2**53, so that no other record can change the last bit
            coordinates = (away @ weights) * factors
            cut = np.rint(np.clip(coordinates, -one, one))
            changed[place : place + len(part), : self.n_components] = cut
            place += len(part)
        changed[:, self.n_components :] = records[:, list(self.kept)]
        return changed

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return explained variances and the components."""
        shares = results["explained_variance_ratio"].tolist()
        rows = tuple(
            (name, number_of(results, "explained_variance", i), shares[i])
            for i, name in enumerate(self._labels)
        )
        note = f"{INTERVALS} They hold for all components at once."
        heads = ("component", "variance", "part of the total")
        components = results["components"]
        largest = max(float(np.abs(components).max()), 1e-9)
        return (
            Table("Explained variance", heads, rows, note),
            Heatmap(
                "Components",
                bare(components, labels=(self._labels, self._encoding.names(self._public)[:-1])),
                "How much each column counts, over half of its box.",
                components / largest,
            ),
        )


def rounded_to_unit(differences: Integers, radius: int, unit: int) -> Integers:
    """Return differences shortened to a radius, in steps of ``1 / unit`` of it, rounded to nearest.

    A row that rounding would make longer than `unit` is cut toward zero instead, so that every
    squared norm is at most ``unit**2``.
    """
    cut = clip_to_unit(differences, radius, unit)
    real = differences.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", real, real))
    near = np.rint(real * (unit / np.maximum(lengths, radius))[:, None])
    fits = np.einsum("ij,ij->i", near, near) <= unit**2
    return np.where(fits[:, None], near, cut).astype(np.int64)
