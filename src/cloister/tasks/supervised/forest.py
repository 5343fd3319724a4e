"""A forest of public trees whose leaves are noisy sums: one sum for all trees, or one for each.

*Random*: every tree counts the classes in its leaves, all trees in one round. *Boosted*: one tree
per round. Its leaves sum the gradients of the log-loss of the previous trees, and the curvature,
and its values are Newton steps. Trees depend on no record, so only sums cost privacy.

References
----------
.. [FI17] Fletcher, Islam, "Differentially private random decision forests using smooth
   sensitivity", Expert Systems with Applications 78, 2017: forests of random splits.
.. [MCWJ22] Maddock, Cormode, Wang, Maple, Jha, "Federated Boosted Decision Trees with Differential
   Privacy", CCS 2022, sections 4 and 5: boosting of totally random trees with Newton updates.
.. [NCGK21] Nori, Caruana, Bu, Shen, Kulkarni, "Accuracy, Interpretability, and Differential
   Privacy via Explainable Boosting", ICML 2021: trees on few columns, used in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Range, Share, declared
from cloister.core.display import Bars, Display, Summary, Table, around, bare
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import categories_of, count_cells, exact_sums, in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import SAID
from cloister.tasks.options import PublicSeed, Target, build_task, noise_multiplier_for
from cloister.tasks.significance import found, how_sure
from cloister.tasks.state import decode_state, encode_state
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
from cloister.tasks.supervised.target import (
    ClassWeight,
    Features,
    check_classes,
    check_columns,
    check_weights,
    weights_of,
)

Kind = Literal["random", "boosted"]
"""All trees in one round, or one tree per round on the gradients of the previous trees."""

Trees = Annotated[int, Range(1, 1000)]
Depth = Annotated[int, Range(1, 10)]
Columns = Annotated[int, Range(1, 1 << 20)]
Bins = Annotated[int, Range(2, 1024)]
Levels = tuple[Annotated[int, Range(0, 1 << 16)], ...]

_ONE = 1 << COUNT_BITS
MOST_SUMS = 1 << 20
_Z = INTERVAL_95["gaussian"]
_ENOUGH = 800  # records over noise of one count, from which boosting is better
_FAINT = 50  # the same ratio, below which more trees add more noise than information
_TREES: Mapping[str, int] = {"boosted": 40, "random": 80, "faint": 20}
_STEP_VARIANCE = 0.1  # prior variance of a full Newton step of a leaf
_SPLIT_VARIANCE = 0.03  # prior variance of the change of a share between a node and its child
_LEAST_SHARE = 0.01  # of a class in a leaf, so that its logarithm is finite
_MOST_SCORE = 30.0


NOTE = "± is the margin of error of a 95 % confidence interval (privacy noise only)."


@dataclass(frozen=True)
class _Leaves:
    """The public state: the sums in the leaves, in records, and the noise of each."""

    leaves: Floats
    noise: float = 0.0


@declared
class RandomForest(Gaussian):
    """A classifier of public trees on few columns each, with noisy sums in their leaves.

    Parameters
    ----------
    n_features : int
        Number of columns, including the target.
    levels : tuple of int
        Number of categories of each column; 0 for numbers.
    depth : int in [1, 10]
        Every tree has ``2**depth`` leaves.
    bins : int in [2, 1024]
        Bins of equal width of a numeric column; splits are between them.
    rate : float in (0, 1]
        Share of a Newton step that a boosted tree takes.
    class_weight : tuple of float
        Factors of the odds of each class after the release; empty for none.
    balanced : bool
        If True, classes are weighted by one over their noisy size instead, also after the release.
    """

    name: ClassVar[str] = "forest"

    example: ClassVar[Example] = Example(
        MIXED, {"target": "smokes", "kind": "boosted", "n_trees": 3, "depth": 3}
    )

    @declared
    class Options:
        target: Target
        kind: Annotated[
            Kind | None, "independent or boosted trees; chosen from the noise by default"
        ] = None
        n_trees: Annotated[Trees | None, "if None 80, 40 boosted, or 20 with much noise"] = None
        depth: Annotated[Depth | None, "of a tree; if None, limited by the noise of leaves"] = None
        columns_per_tree: Annotated[Columns | None, "columns of a tree; one or two if None"] = None
        bins: Annotated[Bins, "of a numeric column"] = 32
        rate: Annotated[Share, "share of a boosted tree's step that is taken"] = 0.5
        class_weight: ClassWeight = None
        public_seed: PublicSeed = 0

    n_features: Features
    target: int
    classes: tuple[str, ...]
    levels: Levels
    kind: Kind = "random"
    n_trees: Trees = 80
    depth: Depth = 4
    columns_per_tree: Columns = 2
    bins: Bins = 32
    rate: Share = 0.5
    class_weight: tuple[Positive, ...] = ()
    balanced: bool = False
    public_seed: int = 0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        check_columns(self.n_features, self.target, levels=self.levels)
        check_classes(self.classes, self.levels[self.target])
        check_weights(self.class_weight, self.classes)
        (leaves,) = self.blocks(0)
        if leaves.size > MOST_SUMS:
            raise PlanError(
                f"a round of the forest must have at most {MOST_SUMS} sums, got {leaves.size}; "
                "use fewer or less deep trees."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the kind and the size of the trees from public numbers.

        Trees are boosted if the records are at least 800 times the noise of one count at the whole
        budget. Their depth is the largest at which leaves of equal size exceed their noise. They
        use one column, or two if there are enough records.
        """
        classes = categories_of(facts.columns, options.target)
        clear = facts.nominal_n / (noise_multiplier_for(facts) or 1.0)
        kind = options.kind or ("boosted" if clear >= _ENOUGH else "random")
        faint = kind == "random" and clear < _FAINT
        n_trees = options.n_trees or _TREES["faint" if faint else kind]
        depth = options.depth or _usual_depth(kind, clear / sqrt(n_trees))
        return build_task(
            cls,
            facts,
            options,
            target=position(facts.columns, options.target),
            classes=classes,
            kind=kind,
            n_trees=n_trees,
            depth=depth,
            columns_per_tree=options.columns_per_tree
            or (1 if kind == "boosted" and depth < 5 else 2),
            class_weight=weights_of(options.class_weight, classes),
            balanced=options.class_weight == "balanced",
        )

    def describe(self) -> str:
        trees = (
            f"{self.n_trees} public trees of {2**self.depth} leaves on up to "
            f"{counted(self.columns_per_tree, 'column')} each"
        )
        if self.kind == "random":
            return f"A forest of {trees}: every leaf's noisy count of each class, in one sum."
        return (
            f"A forest of {trees}, one tree per round: every leaf's noisy sum of gradients of the "
            "log-loss of the previous trees, and of their curvature."
        )

    # The trees ------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """One for all trees, or one for each."""
        return 1 if self.kind == "random" else self.n_trees

    @property
    def _cells(self) -> list[int]:
        """Categories or bins of each column."""
        return [size or self.bins for size in self.levels]

    @property
    def _binned(self) -> list[bool]:
        return [size == 0 for size in self.levels]

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """The public trees; the same for every party."""
        return grow(
            self._cells,
            self._binned,
            skip=self.target,
            n_trees=self.n_trees,
            depth=self.depth,
            columns_per_tree=self.columns_per_tree,
            public_seed=self.public_seed,
        )

    @cached_property
    def _reached(self) -> Floats:
        """1 for a leaf with at least one cell, else 0; shape (n_trees, n_leaves)."""
        return reached_leaves(self.trees, self.depth)

    @property
    def _width(self) -> int:
        """Number of sums in a leaf: the classes, and the curvature of boosted trees."""
        return len(self.classes) + (self.kind == "boosted")

    @property
    def _curvature(self) -> int:
        """Weight of a record's curvature: the largest one that does not increase the bound."""
        # The joint norm of gradient and curvature stays sqrt(2): lemma of docs/proofs/forest.md.
        return 2 if len(self.classes) == 2 else 1

    # The sums -------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state before the first round, with empty leaves."""
        leaves = np.zeros((self.n_trees, 1 << self.depth, self._width))
        return encode_state(_Leaves(leaves))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: the leaves of all trees, or those of tree `t`.

        A record counts once in one leaf of each tree, or adds its gradient and curvature to one
        leaf. The joint norm of these is at most the square root of 2.
        """
        leaves, width = 1 << self.depth, self._width
        if self.kind == "random":
            shape = (self.n_trees, leaves, width)
            return (Block.counting("leaves", shape, 1.0, self.n_trees),)
        l1 = (2 + self._curvature) * _ONE
        return (Block("leaves", (leaves, width), l1, 2 * _ONE**2, 1.0 / self.n_trees),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's leaves in all trees, or its gradient and curvature in tree `t`."""
        coded, width = self._coded(records), self._width
        if self.kind == "random":
            label = coded[self.target].astype(np.int64)
            size = width << self.depth
            leaves = (tree.leaves(coded) for tree in self.trees)
            at = [i * size + leaf * width + label for i, leaf in enumerate(leaves)]
            return (Rows.at(at, [1 << COUNT_BITS] * len(at)),)
        now = decode_state(_Leaves, state, self.frac_bits)
        values = self._values(now.leaves[:t], now.noise)
        added = self._gradients(_softmax(self._scores(values, coded)), coded[self.target])
        leaf = self.trees[t].leaves(coded).astype(np.int64)
        return (Rows(leaf * width, added.T.astype(np.int64)),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the leaves' weighted counts, or their sums of gradients and curvature."""
        if self.kind == "random":
            return self._counts(records).ravel() << COUNT_BITS
        now = decode_state(_Leaves, state, self.frac_bits)
        values = self._values(now.leaves[:t], now.noise)
        total = np.zeros((self._width, 1 << self.depth), dtype=np.int64)
        for part in in_cache(records):
            coded = self._coded(part)
            leaf = self.trees[t].leaves(coded)
            added = self._gradients(_softmax(self._scores(values, coded)), coded[self.target])
            total += [exact_sums(leaf, whole, total.shape[1]) for whole in added]
        return total.T.ravel()

    def _coded(self, records: Records) -> list[Integers]:
        return coded_columns(records, self.levels, self.bins, self.frac_bits)

    def _counts(self, records: Records) -> Integers:
        """Return the number of records of each class in each leaf of each tree."""
        leaves, width = 1 << self.depth, self._width
        counts = np.zeros((self.n_trees, leaves * width), dtype=np.int64)
        # Counted once for all trees on the same columns; each cell is in one leaf of each.
        tables = [(*self.trees[same[0]].columns, self.target) for same in self._same_columns]
        tables_of_cells = count_cells(records, tables, self._cells, self._binned, self.frac_bits)
        for cells, same in zip(tables_of_cells, self._same_columns, strict=True):
            for i in same:
                place = self.trees[i].leaf[:, None] * width + np.arange(width)
                counts[i] = exact_sums(place.ravel(), cells, leaves * width)
        return counts.reshape(self.n_trees, leaves, width)

    @cached_property
    def _same_columns(self) -> tuple[list[int], ...]:
        """Groups of the numbers of trees on the same columns."""
        return same_columns(self.trees)

    def _gradients(self, probabilities: Floats, labels: Integers) -> Floats:
        """Return the integers that records add to leaves; shape (n_classes + 1, n_samples)."""
        whole = np.empty((len(probabilities) + 1, len(labels)))
        np.subtract(np.arange(len(probabilities))[:, None] == labels, probabilities, out=whole[:-1])
        squared = np.zeros(len(labels))
        for part in probabilities:
            squared += part**2
        whole[-1] = self._curvature * (1.0 - squared)
        whole *= _ONE
        np.trunc(whole, out=whole)
        # The bound holds by the proof. It is checked, as the exponential of a library may be wrong.
        kept = (np.einsum("ij,ij->j", whole, whole) <= 2 * _ONE**2) & (
            np.abs(whole).sum(axis=0) <= (2 + self._curvature) * _ONE
        )
        whole[:, ~kept] = 0.0  # assigned, since a NaN times zero is NaN
        return whole

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the leaves including those of this round, in records."""
        new_leaves, noise = released["leaves"].in_records()
        leaves = new_leaves
        if self.kind == "boosted":
            leaves = decode_state(_Leaves, state, self.frac_bits).leaves
            leaves[t] = new_leaves
            leaves[t, :, -1] /= self._curvature
        return encode_state(_Leaves(leaves, noise))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the half-widths of the 95 % noise intervals of leaves and class sizes."""
        noise = noise_std / _ONE
        return {
            "leaf_half_width": self._half_width(noise),
            "class_half_width": np.full(len(self.classes), self._class_half_width(noise)),
        }

    def _half_width(self, noise: float) -> Floats:
        widths = np.full(self._width, _Z * noise)
        if self.kind == "boosted":
            widths[-1] /= self._curvature
        return widths

    def _class_half_width(self, noise: float) -> float:
        # A class size is a sum over the leaves with cells: of all trees, or of the first boosted.
        reached = self._reached.sum(axis=1)
        if self.kind == "random":
            sums = float(reached.sum()) / self.n_trees**2
        else:
            sums = float(reached[0]) * (1 + 1 / (self._curvature * (len(self.classes) - 1)) ** 2)
        return _Z * noise * sqrt(sums)

    # The model ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the forest with its noise intervals.

        Returns
        -------
        dict
            ``leaves`` of random trees, shape (n_trees, 2**depth, n_classes), are the noisy counts
            of each class. Those of boosted trees, shape (n_trees, 2**depth, n_classes + 1), are the
            noisy sums of gradients and, last, of curvature. ``leaf_half_width`` of shape
            (n_classes,) or (n_classes + 1,) is that of the 95 % interval of every leaf.
            ``class_sizes`` and ``class_half_width`` have the shape (n_classes,), in records.
            ``importance`` of shape (n_features,) sums to 1: the separation of scores by the splits
            on a column.
        """
        now = decode_state(_Leaves, state, self.frac_bits)
        leaves, noise = now.leaves, now.noise
        return {
            "leaves": leaves,
            "leaf_half_width": self._half_width(noise),
            "class_sizes": self._class_sizes(leaves),
            "class_half_width": np.full(len(self.classes), self._class_half_width(noise)),
            "importance": self._importance(leaves, noise),
        }

    def probabilities(self, results: Results, records: Records) -> Floats:
        coded = self._coded(records)
        leaves = np.asarray(results["leaves"])
        noise = float(results["leaf_half_width"][0]) / _Z
        shares = _softmax(self._scores(self._values(leaves, noise), coded)).T
        if self.balanced:
            # Weights after the release cost nothing, since the class sizes are noisy.
            shares = shares / np.maximum(results["class_sizes"], 1.0)
        elif self.class_weight:
            shares = shares * np.array(self.class_weight)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def _scores(self, values: Integers, coded: Sequence[Integers]) -> Floats:
        """Return the sum of the values of each record's leaves; shape (n_classes, n_samples)."""
        scores = sum_values(values, self.trees, self._same_columns, coded)
        return np.ascontiguousarray(scores.T) / _ONE

    def _values(self, leaves: Floats, noise: float) -> Integers:
        """Return the values of leaves for the score of each class, in ``2**-16``."""
        # Integers, whose sum over trees does not depend on the order of addition.
        of_kind = self._log_odds if self.kind == "random" else self._steps
        return np.rint(of_kind(leaves, noise) * _ONE).astype(np.int64)

    def _steps(self, leaves: Floats, noise: float) -> Floats:
        """Return Newton steps, shrunk by their share of noise.

        Gradients are the curvature times the step, plus their sampling spread and the noise. The
        best linear estimate of a step of known variance is ridge regression.
        """
        k = len(self.classes)
        gradients, mass = leaves[..., :-1], np.maximum(leaves[..., -1:], 0.0)
        gradients = gradients - gradients.mean(axis=-1, keepdims=True)  # exact gradients sum to 0
        slope = mass / (k - 1)  # mean curvature of a direction
        spread = noise**2 * (1 - 1 / k) + mass / k
        unit = slope**2 * _STEP_VARIANCE + spread
        steps = slope * _STEP_VARIANCE * gradients / np.where(unit > 0, unit, 1.0)
        return np.asarray(self.rate * steps * self._reached[: len(leaves), :, None])

    def _log_odds(self, leaves: Floats, noise: float) -> Floats:
        """Return the contribution of each leaf to the logarithms of the classes' shares.

        From the root down, each node's shares are shrunk to those of its parent, more if its counts
        are small relative to their noise. All trees count the same records, so the noisy totals of
        the classes are averaged, and differences spread over the leaves, by least squares.
        """
        reached = self._reached[..., None]
        counts = leaves * reached
        totals, sizes = counts.sum(axis=1), reached.sum(axis=1)
        root = totals.mean(axis=0)
        counts = counts + reached * ((root - totals) / sizes)[:, None, :]
        prior = _shares(root, max(1.0, float(root.sum())))
        shares = np.broadcast_to(prior, (self.n_trees, 1, len(prior)))
        for level in range(1, self.depth + 1):
            shape = (self.n_trees, 1 << level, -1)
            here = counts.reshape(*shape, len(prior)).sum(axis=2)
            sums = reached.reshape(shape).sum(axis=2)[..., None]
            shares = np.repeat(shares, 2, axis=1)
            size = np.maximum(here.sum(axis=2, keepdims=True), 1.0)
            spread = (shares * (1 - shares)).mean(axis=2, keepdims=True)
            # The noise variance of here - shares * size, averaged over classes.
            noisy = sums * noise**2 * (1 + (shares**2).sum(axis=2, keepdims=True) - 2 / len(prior))
            gain = size * _SPLIT_VARIANCE / (size**2 * _SPLIT_VARIANCE + noisy + size * spread)
            shares = _shares(shares + gain * (here - shares * here.sum(axis=2, keepdims=True)), 1.0)
        moved = np.log(shares) - np.log(prior)
        return np.asarray(moved * self._part + np.log(prior) / self.n_trees)

    @property
    def _part(self) -> float:
        """The weight of a random tree's evidence.

        In total each column counts at most once, as if columns were independent. They are not, so
        many trees count less.
        """
        looks = sum(len(tree.columns) for tree in self.trees)
        return min((self.n_features - 1) / looks, 1 / sqrt(self.n_trees))

    def _class_sizes(self, leaves: Floats) -> Floats:
        """Return the noisy number of records of each class."""
        sums = (leaves * self._reached[..., None]).sum(axis=1)
        if self.kind == "random":
            return np.asarray(sums.mean(axis=0))
        # Before the first tree all classes are equally likely, so its sums are linear in the sizes.
        k = len(self.classes)
        return np.asarray(sums[0, :-1] + sums[0, -1] / (k - 1))

    def _importance(self, leaves: Floats, noise: float) -> Floats:
        """Return the separation of scores by the splits on each column, weighted by leaf sizes."""
        values = self._values(leaves, noise) / _ONE
        mass = np.maximum(leaves.sum(axis=2) if self.kind == "random" else leaves[..., -1], 0.0)
        return separations(self.trees, mass * self._reached, values, self.n_features)

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the columns that separate the classes."""
        noise = float(results["leaf_half_width"][0]) / _Z
        p = self._separation_p(np.asarray(results["leaves"]), noise)
        classes = f"the classes of {columns[self.target]}"
        known = np.flatnonzero(~np.isnan(p))
        places = known[found(p[known])]
        result = f"No column is shown to separate {classes}."
        if len(places):
            first = ", ".join(columns[j] for j in places[:SAID])
            result = f"Columns that separate {classes} most clearly: {first}."
        return Summary(
            result=result,
            reliability=how_sure(len(places), len(known), f"columns separate {classes}"),
            one_record=True,
        )

    def _separation_p(self, leaves: Floats, noise: float) -> Floats:
        """Return the p-value of each column that splits the root of a tree, else NaN.

        A split counts if all splits above it are on its column, so that its halves differ in this
        column only. The smallest p-value of a column counts, as many times as it has tests.
        """
        # Two classes are one test.
        of_classes = len(self.classes) if len(self.classes) > 2 else 1
        return split_p_values(
            self.trees, leaves, noise, self._deviates, self.n_features, of_classes
        )

    def _deviates(self, halves: Floats, noise: float) -> Floats:
        """Return the largest deviate of the classes in the halves of nodes, shape (..., 2, width).

        If a split does not matter, each half has its share of every class, or of the gradients of
        the trees before. The error has the noise of both halves, and the sampling variance of a
        share of a finite number.
        """
        k = len(self.classes)
        sums = halves[..., :k]
        size = sums.sum(axis=-1, keepdims=True)
        if self.kind == "boosted":
            # Exact gradients sum to 0, so that two classes are one test.
            sums, size = sums - sums.mean(axis=-1, keepdims=True), halves[..., k:]
        total, n = sums.sum(axis=-2), np.maximum(size.sum(axis=-2), 1.0)
        left, part = np.clip(size[..., 0, :] / n, 0.0, 1.0), total / n
        if self.kind == "boosted":  # at least the variance of a class, given the probabilities
            variance, parts = np.full_like(part, 0.5), 1 - 1 / k + part**2
        else:
            part = np.clip(part, 0.0, 1.0)
            variance, parts = part * (1 - part), (1 - part) ** 2 + (k - 1) * part**2
        error = n * left * (1 - left) * variance + noise**2 * (left**2 + (1 - left) ** 2) * parts
        z = (sums[..., 0, :] - left * total) / np.sqrt(np.maximum(error, 1e-300))
        return np.asarray(np.abs(z).max(axis=-1))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return class sizes and the most important columns."""
        importance = results["importance"]
        order = [int(j) for j in np.argsort(-importance, kind="stable") if j != self.target][:20]
        counts = around(results["class_sizes"], results["class_half_width"], normal=True)
        sizes = tuple(zip(self.classes, counts.cells(), strict=True))
        shares, names = importance[order], tuple(columns[j] for j in order)
        margin = float(results["leaf_half_width"][0])
        sums = "each count" if self.kind == "random" else "each sum of gradients"
        return (
            Table("Classes", ("class", "records"), sizes, NOTE),
            Bars(
                "Columns by importance",
                bare(shares, labels=(names,)),
                f"Separation of scores by splits on a column, from {counted(self.n_trees, 'tree')} "
                f"of {2**self.depth} leaves; the margin of error of {sums} in a leaf is "
                f"{margin:.4g}, from privacy noise only.",
            ),
        )


def _softmax(scores: Floats) -> Floats:
    """Return the probabilities of scores of shape (n_classes, n_samples)."""
    powers: Floats = scores - scores.max(axis=0)
    np.exp(np.maximum(powers, -_MOST_SCORE, out=powers), out=powers)
    total = np.zeros(scores.shape[1:])
    for part in powers:  # class by class: the sum of a record must not depend on the others
        total += part
    powers /= total
    return powers


def _shares(values: Floats, total: float) -> Floats:
    """Return shares, cut at a hundredth, that sum to 1 over the last axis."""
    floored = np.clip(values / total, _LEAST_SHARE, 1.0)
    return np.asarray(floored / floored.sum(axis=-1, keepdims=True))


def _usual_depth(kind: Kind, signal: float) -> int:
    """Return the largest depth at which leaves of equal size exceed their noise."""
    smallest, largest, minimum = (3, 5, 4.0) if kind == "boosted" else (2, 4, 1.0)
    return max([h for h in range(smallest, largest + 1) if signal / 2**h >= minimum] or [smallest])
