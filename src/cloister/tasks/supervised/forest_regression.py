"""A forest of public trees for numbers: each tree sums what the trees before it leave unexplained.

The first round sums the target and its square, which give its mean, and a clip from its deviation.
Then there is one tree per round. Its leaves hold the number of records, and the sum of their
clipped residuals; its values are shrunken noisy means. Trees depend on no record, so only sums cost
privacy.

References
----------
.. [MCWJ22] Maddock, Cormode, Wang, Maple, Jha, "Federated Boosted Decision Trees with Differential
   Privacy", CCS 2022, sections 4 and 5: boosting of totally random trees.
.. [F01] Friedman, "Greedy function approximation: a gradient boosting machine", Annals of
   Statistics 29(5), 2001, section 4.1: boosting of least squares, and shrinkage.
.. [F54] Fieller, "Some problems in interval estimation", JRSS B 16(2), 1954: intervals of ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Annotated, ClassVar, NamedTuple, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Share, declared
from cloister.core.display import Bars, Display, Estimate, Summary, Table, around, bare
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import exact_sums, in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import SAID
from cloister.tasks.options import PublicSeed, Target, build_task, noise_multiplier_for
from cloister.tasks.significance import found, how_sure
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.forest import MOST_SUMS, NOTE, Bins, Columns, Depth, Levels, Trees
from cloister.tasks.supervised.forest_trees import (
    Tree,
    coded_columns,
    grow,
    reached_leaves,
    same_columns,
    separations,
    split_p_values,
    sum_values,
)
from cloister.tasks.supervised.target import Features, check_columns, check_number

_ONE = 1 << COUNT_BITS
_COUNTED = 1 << COUNT_BITS - 2  # of a record in its leaf
_FINE = 1 << 24  # of the values of leaves
_Z = INTERVAL_95["gaussian"]
_FIRST = 0.05  # share of the budget for the target and its square
_CLIP = 2.0  # deviations of the target
_LEAST_CLIP, _MOST_CLIP = 2.0**-10, 2.0
_VALUE_VARIANCE = 0.05  # most prior variance of the mean residual of a leaf, in units of the clip
_SPREAD = 8.0  # prior variance over that of means so far: less learns too little in a tree
_RESIDUAL_VARIANCE = 0.25  # at most, as the clip is two deviations or the whole range
_TREES, _RATE = 80, 0.2
_DEPTHS = ((8000, 5), (1000, 4), (0, 3))
"""Records over the noise of one count, and the depth of trees from there on."""


@dataclass(frozen=True)
class _Sums:
    """The public state; sums of the target and of residuals are in units of half its range."""

    target: Floats  # number of records, sums of target and squared target
    leaves: Floats  # sum of residuals over the clip, and number of records
    target_noise: float = 0.0
    noise: float = 0.0


class _Scale(NamedTuple):
    """The released scale of the target, in units of half its range."""

    records: float
    mean: float
    clip: float


@declared
class ForestRegression(Gaussian):
    """A regression of public trees on few columns each, one tree per round.

    Parameters
    ----------
    n_features : int
        Number of columns, including the target.
    levels : tuple of int
        Number of categories of each column; 0 for numbers.
    low, high : tuple of float
        The box, data units.
    depth : int in [1, 10]
        Every tree has ``2**depth`` leaves.
    bins : int in [2, 1024]
        Bins of equal width of a numeric column; splits are between them.
    rate : float in (0, 1]
        Share of a tree's values that is added to predictions.

    Notes
    -----
    Residuals are clipped to two deviations of the target, from the first round. A prediction is in
    the public range of the target. It has no interval. Privacy is proven in docs/proofs/forest.md.
    """

    name: ClassVar[str] = "forest-regression"

    example: ClassVar[Example] = Example(MIXED, {"target": "weight", "n_trees": 3, "depth": 3})

    @declared
    class Options:
        target: Target
        n_trees: Annotated[Trees, "number of trees, and of rounds after the first"] = _TREES
        depth: Annotated[Depth | None, "of a tree; if None, 3 to 5 by the noise"] = None
        columns_per_tree: Annotated[Columns, "columns of a tree"] = 2
        bins: Annotated[Bins, "of a numeric column"] = 32
        rate: Annotated[Share, "share of a tree's values that is taken"] = _RATE
        public_seed: PublicSeed = 0

    n_features: Features
    target: int
    levels: Levels
    low: tuple[float, ...]
    high: tuple[float, ...]
    n_trees: Trees = _TREES
    depth: Depth = 4
    columns_per_tree: Columns = 2
    bins: Bins = 32
    rate: Share = _RATE
    public_seed: int = 0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        columns = {"levels": self.levels, "low": self.low, "high": self.high}
        check_columns(self.n_features, self.target, **columns)
        check_number(self.levels[self.target])
        if (sums := self.start()["leaves"].size) > MOST_SUMS:
            raise PlanError(
                f"a forest must have at most {MOST_SUMS} sums, got {sums}; use fewer or less deep "
                "trees."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the depth of trees from public numbers."""
        # Deeper trees have more leaves, whose counts must be above their noise.
        clear = facts.nominal_n / (noise_multiplier_for(facts) or 1.0)
        return build_task(
            cls,
            facts,
            options,
            target=position(facts.columns, options.target),
            levels=facts.levels,
            depth=options.depth or next(depth for least, depth in _DEPTHS if clear >= least),
        )

    def describe(self) -> str:
        return (
            f"A forest of {self.n_trees} public trees of {2**self.depth} leaves on up to "
            f"{counted(self.columns_per_tree, 'column')} each. The first sum holds the target and "
            "its square. Then there is one tree per round: every leaf's noisy number of records, "
            "and their noisy sum of residuals of the previous trees, clipped by the deviation of "
            "the target."
        )

    # The trees ------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """One for the target, and one for each tree."""
        return 1 + self.n_trees

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """The public trees; the same for every party."""
        return grow(
            [size or self.bins for size in self.levels],
            [size == 0 for size in self.levels],
            skip=self.target,
            n_trees=self.n_trees,
            depth=self.depth,
            columns_per_tree=self.columns_per_tree,
            public_seed=self.public_seed,
        )

    @cached_property
    def _reached(self) -> Floats:
        return reached_leaves(self.trees, self.depth)

    @cached_property
    def _same_columns(self) -> tuple[list[int], ...]:
        return same_columns(self.trees)

    # The sums -------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state before the first round, with empty leaves."""
        leaves = np.zeros((self.n_trees, 1 << self.depth, 2))
        return encode_state(_Sums(target=np.zeros(3), leaves=leaves))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the sums of the target, or the leaves of tree ``t - 1``.

        A record adds itself, its target and the square of it, each at most 1; or its clipped
        residual of at most 1, and a quarter of a count.
        """
        if t == 0:
            return (Block("target", (3,), 3 * _ONE, 3 * _ONE**2, _FIRST),)
        shape, weight = (1 << self.depth, 2), (1 - _FIRST) / self.n_trees
        return (Block("leaves", shape, _ONE + _COUNTED, _ONE**2 + _COUNTED**2, weight),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's powers of the target, or its residual and count in a leaf."""
        if t == 0:
            return (Rows.dense(self._powers(records)),)
        coded = self._coded(records)
        residuals = self._residuals(t, decode_state(_Sums, state, self.frac_bits), records, coded)
        added = np.stack([residuals, np.full_like(residuals, _COUNTED)], axis=1)
        return (Rows(self.trees[t - 1].leaves(coded) * 2, added),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of powers of the target, or of residuals and counts in leaves."""
        if t == 0:
            return np.asarray(self._powers(records).sum(axis=0))
        now = decode_state(_Sums, state, self.frac_bits)
        leaves = 1 << self.depth
        total = np.zeros((leaves, 2), dtype=np.int64)
        for part in in_cache(records):
            coded = self._coded(part)
            leaf = self.trees[t - 1].leaves(coded)
            total[:, 0] += exact_sums(leaf, self._residuals(t, now, part, coded), leaves)
            total[:, 1] += np.bincount(leaf, minlength=leaves) * _COUNTED
        return total.ravel()

    def _coded(self, records: Records) -> list[Integers]:
        return coded_columns(records, self.levels, self.bins, self.frac_bits)

    def _target(self, records: Records) -> Floats:
        """Return the target of each record in [-1, 1], also of a forged record."""
        return np.clip(from_grid(records[:, self.target].astype(np.int64), self.frac_bits), -1, 1)

    def _powers(self, records: Records) -> Integers:
        y = self._target(records)
        # Towards zero: a rounded value must not exceed the bound of its block.
        return np.trunc(np.stack([np.ones_like(y), y, y**2], axis=1) * _ONE).astype(np.int64)

    def _residuals(
        self, t: int, now: _Sums, records: Records, coded: Sequence[Integers]
    ) -> Integers:
        """Return the clipped residual of each record after the trees before round `t`."""
        scale = self._scale(now.target, now.target_noise)
        # Only the leaves of trees before: those of later ones are zeros.
        values = self._values(now.leaves[: t - 1], now.noise, scale)
        left = (self._target(records) - self._predicted(values, scale, coded)) / scale.clip
        return np.trunc(np.clip(left, -1, 1) * _ONE).astype(np.int64)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with the sums of this round."""
        now = decode_state(_Sums, state, self.frac_bits)
        if t == 0:
            target, noise = released["target"].in_records()
            return encode_state(replace(now, target=target, target_noise=noise))
        leaves, noise = released["leaves"].in_records()
        now.leaves[t - 1] = leaves * [1, _ONE / _COUNTED]
        return encode_state(replace(now, noise=noise))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the half-widths of the number of records and of that in a leaf.

        The error of predictions is not known: it depends on the target.
        """
        (first,), (last,) = self.blocks(0), self.blocks(1)
        of_target = sqrt(first.l2_squared * last.weight / (last.l2_squared * first.weight))
        return {
            "records_half_width": np.array([_Z * noise_std * of_target / _ONE]),
            "leaf_count_half_width": np.array([_Z * noise_std / _COUNTED]),
        }

    # The model ------------------------------------------------------------------------------------

    def _scale(self, target: Floats, noise: float) -> _Scale:
        """Return the noisy number and mean of records, and the clip of residuals."""
        records = max(float(target[0]), 1.0)
        mean = min(max(float(target[1]) / records, -1.0), 1.0)
        # At least its noise, since a clip near 0 would cut every residual.
        variance = max(float(target[2]) / records - mean**2, noise / records, 0.0)
        clip = min(max(_CLIP * sqrt(variance), _LEAST_CLIP), _MOST_CLIP)
        return _Scale(records, mean, clip)

    def _values(self, leaves: Floats, noise: float, scale: _Scale) -> Integers:
        """Return the values of leaves, in ``2**-24`` of half the range of the target.

        The sum of residuals of a leaf is its size times their mean, plus sampling spread and noise.
        The best linear estimate of a mean of known variance is ridge regression. All trees count
        the same records, so the difference to their number spreads over the leaves.
        """
        reached = self._reached[: len(leaves)]
        sizes = leaves[..., 1] * reached
        short = (scale.records - sizes.sum(axis=1)) / np.maximum(reached.sum(axis=1), 1.0)
        sizes = np.maximum(sizes + short[:, None], 0.0) * reached
        # If noise sets the clip, residuals are far smaller, and an unshrunk model would be noise.
        # Each tree takes the spread of its sums and of those before, which silos know.
        spread = (reached * (leaves[..., 0] ** 2 - noise**2)).sum(axis=1).cumsum()
        squares = (sizes**2).sum(axis=1).cumsum()
        variance = np.clip(_SPREAD * spread / np.maximum(squares, 1.0), 0.0, _VALUE_VARIANCE)
        prior = variance[:, None]
        unit = sizes**2 * prior + noise**2 + sizes * _RESIDUAL_VARIANCE
        means = sizes * prior * leaves[..., 0] / np.where(unit > 0, unit, 1.0)
        # Integers, whose sum over trees does not depend on the order of addition.
        values = np.rint(self.rate * scale.clip * np.clip(means, -1, 1) * _FINE)
        return np.asarray(values[..., None], dtype=np.int64)

    def _predicted(self, values: Integers, scale: _Scale, coded: Sequence[Integers]) -> Floats:
        """Return predictions in [-1, 1]; shape (n_samples,)."""
        sums = sum_values(values, self.trees, self._same_columns, coded)[:, 0]
        return np.clip(scale.mean + sums / _FINE, -1, 1)

    @property
    def _half_range(self) -> float:
        return (self.high[self.target] - self.low[self.target]) / 2

    def _in_data_units(self, values: Floats) -> Floats:
        return self.low[self.target] + (values + 1) * self._half_range

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the forest with its noise intervals.

        Returns
        -------
        dict
            Of shape (1,): ``records`` with ``records_half_width``, ``mean`` of the target with
            ``mean_low`` and ``mean_high``, and ``residual_clip``, data units. Of shape
            (n_trees, 2**depth): ``leaf_sums`` of clipped residuals, ``leaf_counts`` of records, and
            ``leaf_values``, which predictions add to the mean. ``leaf_sum_half_width`` and
            ``leaf_count_half_width``, of shape (1,), are margins of error. ``importance`` of shape
            (n_features,) sums to 1: the separation of values by the splits on a column.
        """
        now = decode_state(_Sums, state, self.frac_bits)
        scale = self._scale(now.target, now.target_noise)
        values = self._values(now.leaves, now.noise, scale)
        unit = scale.clip * self._half_range
        sizes = np.maximum(now.leaves[..., 1], 0.0) * self._reached
        low, high = _ratio_ends(float(now.target[1]), float(now.target[0]), now.target_noise)
        # The interval holds the ratio itself, up to rounding, unless there are hardly any records.
        middle = min(max(scale.mean, low), high)
        ends = self._in_data_units(np.array([middle, low, high]))
        return {
            "records": now.target[:1],
            "records_half_width": np.array([_Z * now.target_noise]),
            "mean": ends[:1],
            "mean_low": ends[1:2],
            "mean_high": ends[2:],
            "residual_clip": np.array([unit]),
            "leaf_sums": now.leaves[..., 0] * unit,
            "leaf_sum_half_width": np.array([_Z * now.noise * unit]),
            "leaf_counts": now.leaves[..., 1],
            "leaf_count_half_width": np.array([_Z * now.noise * _ONE / _COUNTED]),
            "leaf_values": values[..., 0] * (self._half_range / _FINE),
            "importance": separations(self.trees, sizes, values / _FINE, self.n_features),
        }

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted target of grid records; shape (n_samples,), data units."""
        # The same integers as in the rounds, so that an answer does not depend on other records.
        values = np.rint(results["leaf_values"] * (_FINE / self._half_range)).astype(np.int64)
        mean = (float(results["mean"][0]) - self.low[self.target]) / self._half_range - 1
        sums = sum_values(values[..., None], self.trees, self._same_columns, self._coded(records))
        return self._in_data_units(np.clip(mean + sums[:, 0] / _FINE, -1, 1))

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the columns that the target depends on."""
        unit = float(results["residual_clip"][0])
        leaves = np.stack([results["leaf_sums"] / unit, results["leaf_counts"]], axis=2)
        noise = float(results["leaf_sum_half_width"][0]) / (_Z * unit)
        p = split_p_values(self.trees, leaves, noise, _deviates, self.n_features)
        target = columns[self.target]
        known = np.flatnonzero(~np.isnan(p))
        places = known[found(p[known])]
        result = f"No column is shown to separate values of {target}."
        if len(places):
            first = ", ".join(columns[j] for j in places[:SAID])
            result = f"Columns that separate values of {target} most clearly: {first}."
        return Summary(
            result=result,
            reliability=how_sure(len(places), len(known), f"columns separate values of {target}"),
            one_record=True,
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the mean of the target and the most important columns."""
        importance = results["importance"]
        order = [int(j) for j in np.argsort(-importance, kind="stable") if j != self.target][:20]
        records = around(results["records"], results["records_half_width"], normal=True)
        rows = zip(
            ("records", "mean"), (*records.cells(), Estimate.of(results, "mean")[0]), strict=True
        )
        shares, names = importance[order], tuple(columns[j] for j in order)
        margin, clip = (float(results[n][0]) for n in ("leaf_sum_half_width", "residual_clip"))
        return (
            Table(f"Target {columns[self.target]}", ("", "value"), tuple(rows), NOTE),
            Bars(
                "Columns by importance",
                bare(shares, labels=(names,)),
                "Separation of predictions by splits on a column, from "
                f"{counted(self.n_trees, 'tree')} of {2**self.depth} leaves; residuals are clipped "
                f"to {clip:.4g}, and the margin of error of their sum in a leaf is {margin:.4g}, "
                "from privacy noise only. Predictions have no interval.",
            ),
        )


def _ratio_ends(total: float, records: float, noise: float) -> tuple[float, float]:
    """Return the 95 % interval of a mean in [-1, 1] from a noisy sum and number [F54]_.

    It holds all means whose sum is within its noise of the noisy one.
    """
    a = (_Z * noise) ** 2
    if records <= 0 or records**2 <= a:
        return -1.0, 1.0
    middle, apart = total * records, _Z * noise * sqrt(max(records**2 + total**2 - a, 0.0))
    ends = [(middle + sign * apart) / (records**2 - a) for sign in (-1, 1)]
    low, high = (min(max(end, -1.0), 1.0) for end in ends)
    return low, high


def _deviates(halves: Floats, noise: float) -> Floats:
    """Return the deviate of the residuals in the halves of nodes, shape (..., 2, 2).

    If a split does not matter, each half has its share of the residuals. The error has the noise of
    both halves, and the sampling variance, of clipped residuals at most 1 each.
    """
    sums, sizes = halves[..., 0], halves[..., 1]
    n = np.maximum(sizes.sum(axis=-1), 1.0)
    left, mean = np.clip(sizes[..., 0] / n, 0.0, 1.0), sums.sum(axis=-1) / n
    counted = 1 + (mean * _ONE / _COUNTED) ** 2
    error = n * left * (1 - left) + noise**2 * (left**2 + (1 - left) ** 2) * counted
    z = (sums[..., 0] - left * sums.sum(axis=-1)) / np.sqrt(np.maximum(error, 1e-300))
    return np.asarray(np.abs(z))
