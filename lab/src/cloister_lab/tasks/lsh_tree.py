"""k-means on the leaves of a tree of public half-spaces: ``LSHTree``.

Public hyperplanes, one for each level, cut the box again and again. Noisy counts say which nodes
of the tree hold enough records to go on. Its leaves are then summed and counted afresh, and their
noisy means, weighted by the new counts, are clustered in public.

References
----------
.. [CK21] Chang, Kamath, "Practical Differentially Private Clustering", Google Research blog, 2021,
   and the library it presents, ``learning/clustering`` of google/differential-privacy.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import cached_property
from math import ceil, log2, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.declared import AtLeastZero, Probability, Range, Whole, declared
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import (
    COUNT_BITS,
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    NoisyBlock,
    PublicFacts,
    Records,
    State,
)
from cloister.tasks.clustering.synopsis import cluster_weighted
from cloister.tasks.intervals import BOX, ratio_interval, size_interval
from cloister.tasks.options import Clusters, Noise, PublicSeed, build_task, require_budget
from cloister_lab.tasks.centres import Centres
from cloister_lab.tasks.sums import drop_long, sum_by_label

MAX_DEPTH = 16  # every node of every level is counted
Depth = Annotated[int, Range(1, MAX_DEPTH)]
BRANCH = 3  # a node of this many smallest leaves is cut
_MOST_NUMBERS = 1 << 20  # of all leaves' sums: more leaves are not worth sending
_PLANE_BITS = 12  # normals of the planes are rounded to this


@declared
class LSHTree(Centres):
    """k-means of noisy leaf means of a tree of half-spaces [CK21]_, in two rounds.

    Parameters
    ----------
    depth : int in [1, 16]
        Number of levels below the root.
    min_size : int, >= 1
        A node with fewer noisy records is dropped; one with three times as many is cut.
    max_leaves : int in [1, 2**depth]
        The largest nodes are cut first, until there are so many leaves.
    offset : float, >= 0, grid coordinates
        Planes pass the middle of the box at distances up to this. The published ones all go
        through it (0), and so tell directions apart, not distances.

    Notes
    -----
    The published tree asks level by level, with as many questions as there are nodes alive. Here
    all nodes of all levels are counted in one round and the tree is grown from what was released,
    so that every length is a function of the plan. Add/remove one record: it is in one node of each
    level, so the counts change by ``depth`` ones, and in at most one leaf, whose sum changes by
    the record, at most half the diagonal of the box, and whose count changes by one.

    Leaves are kept for large noisy counts, so these are too large on average. They only choose the
    leaves; sizes and means come from the second round's counts, whose noise is its own.
    """

    name: ClassVar[str] = "lshtree"
    rounds: ClassVar[int] = 2

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        depth: Annotated[Depth | None, "levels of the tree; by the noise if None"] = None
        min_size: Annotated[Whole | None, "records of a leaf; by the noise if None"] = None
        max_leaves: Annotated[Whole | None, "of the tree; by the noise if None"] = None
        count_share: Annotated[Probability, "part of the budget for the tree"] = 0.1
        offset: Annotated[AtLeastZero, "of planes from the middle, in its spread"] = 0.5
        mechanism: Annotated[Noise, "law of the noise"] = "gaussian"
        public_seed: PublicSeed = 0

    depth: Depth
    min_size: Whole
    max_leaves: Whole
    count_share: Probability = 0.1
    offset: AtLeastZero = 0.5
    mechanism: Noise = "gaussian"

    def __post_init__(self) -> None:
        if self.max_leaves > 1 << self.depth:
            raise PlanError(
                f"max_leaves must be at most {1 << self.depth}, as many as depth={self.depth} "
                f"allows, got {self.max_leaves}."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the tree from the noise it will meet, but for what is given.

        A leaf must be so large that the noise of its mean is a tenth of the half diagonal, as
        published (for sums without counts), or hold half of an equal cluster if that is less; a
        level is worth counting if nodes of equal size are not much smaller than a leaf.
        """
        d, n, k = facts.n_features, facts.nominal_n, options.n_clusters
        min_size = options.min_size
        if min_size is None:
            noise = _sum_noise(facts.budget, options.mechanism, d, 1 - options.count_share)
            min_size = max(1, min(int(10 * noise), n // (2 * k)))
        levels = ceil(log2(max(2, k, n / min_size))) + 2
        depth = options.depth or min(MAX_DEPTH, levels)
        wanted = min(ceil(2 * n / min_size), _MOST_NUMBERS // d)
        return build_task(
            cls,
            facts,
            options,
            n_clusters=k,
            n_features=d,
            depth=depth,
            min_size=min_size,
            max_leaves=options.max_leaves or min(1 << depth, max(k, wanted)),
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"The number of records in each node of a tree of {self.depth} public cuts is released "
            f"with {self.mechanism.capitalize()} noise, then the sum of the records in each of at "
            f"most {self.max_leaves} parts of the box, and their number; {self.n_clusters} centres "
            "are made from these numbers."
        )

    def start(self) -> State:
        """Return sphere-packing centres and a tree that is its root; no size is known yet."""
        leaves = np.zeros(self.max_leaves)
        leaves[0] = 1
        return {**super().start(), "leaves": leaves}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the counts of all nodes but the root, then sums and counts of the leaves."""
        if t == 0:
            # A record is in one node of each level, and adds `one` there.
            one = 1 << COUNT_BITS
            nodes = (2 << self.depth) - 2
            depth = self.depth
            return (Block("counts", (nodes,), depth * one, depth * one**2, self.count_share),)
        # It is in at most one leaf; a corner of the box is the longest record.
        one, d, word = 1 << self.frac_bits, self.n_features, self._count_word
        shape, l1, l2_squared = (self.max_leaves, d + 1), d * one + word, d * one**2 + word**2
        return (Block("sums", shape, l1, l2_squared, 1 - self.count_share),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the records in each node, in fine units; then sum and count of each leaf."""
        codes = self._codes(records)
        if t == 0:
            level = np.bincount(codes, minlength=1 << self.depth).astype(np.int64)
            levels = [level]
            while len(level) > 2:
                level = level.reshape(-1, 2).sum(axis=1)
                levels.append(level)
            return np.concatenate(levels[::-1]) << COUNT_BITS
        (block,) = self.blocks(t)
        labels = self._labels(state["leaves"] >> self.frac_bits)[codes]
        drop_long(labels, records, block.l2_squared - self._count_word**2, self.max_leaves)
        sums = sum_by_label(records, labels, self.max_leaves)
        # A label behind the last leaf is dropped.
        counts = np.bincount(labels, minlength=self.max_leaves + 1)[: self.max_leaves]
        return np.column_stack([sums, counts.astype(np.int64) * self._count_word]).ravel()

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Grow the tree from the counts; then cluster the means of its leaves."""
        real = self._real(state)
        if t == 0:
            counts = np.zeros(2 << self.depth)
            counts[2:] = released["counts"].values / float(1 << COUNT_BITS)
            counts[1] = counts[2] + counts[3]
            leaves = grow(counts, self.min_size, self.max_leaves)
            padded = np.zeros(self.max_leaves)
            padded[: len(leaves)] = leaves
            return {**real, "leaves": padded}
        block = released["sums"]
        centres, groups = self.group(state["leaves"], block)
        return {**real, "centres": centres, **self.measure(groups, block)}

    def group(self, leaves: Integers, block: NoisyBlock) -> tuple[Floats, Integers]:
        """Cluster the noisy means of the leaves.

        Returns
        -------
        centres : ndarray of shape (n_clusters, n_features)
        groups : ndarray of shape (max_leaves,), int64
            The centre each leaf is given to; `n_clusters` for none.
        """
        used = leaves > 0
        sums, counts = self._split(block.values[used])
        weights = np.maximum(counts, max(1.0, block.noise_std / self._count_word))
        means = np.clip(sums / weights[:, None], *BOX)
        centres = cluster_weighted(means, weights, self.n_clusters, public_seed=self.public_seed)
        scores = (centres**2).sum(axis=1) - 2 * means @ centres.T
        groups = np.full(self.max_leaves, self.n_clusters)
        groups[used] = scores.argmin(axis=1)
        return centres, groups

    def measure(self, groups: Integers, block: NoisyBlock) -> State:
        """Return sizes and intervals of groups of leaves, as from :meth:`group`."""
        totals = np.zeros((self.n_clusters + 1, self.n_features + 1), dtype=np.int64)
        np.add.at(totals, groups, block.values)
        sums, sizes = self._split(totals[:-1])
        leaves = np.bincount(groups, minlength=self.n_clusters + 1)[:-1]
        count_std = block.noise_std / self._count_word
        low, high = ratio_interval(
            sums,
            sizes,
            sum_std=block.noise_std / (1 << self.frac_bits) * np.sqrt(leaves)[:, None],
            count_std=count_std * np.sqrt(leaves)[:, None],
            mechanism=self.mechanism,
        )
        return {
            "low": low,
            "high": high,
            "sizes": sizes,
            "size_half_width": size_interval(count_std, self.mechanism) * np.sqrt(leaves),
        }

    def _split(self, rows: Integers) -> tuple[Floats, Floats]:
        """Return sums in grid coordinates, and counts in records."""
        return from_grid(rows[:, :-1], self.frac_bits), rows[:, -1] / self._count_word

    @property
    def _count_word(self) -> int:
        """What a record adds to the count of its leaf.

        It makes least of ``(d + w^2) (1 + 1 / w^2)``, the variance of a mean at a corner of the box
        under Gaussian noise.
        """
        return round((1 << self.frac_bits) * sqrt(sqrt(self.n_features)))

    @cached_property
    def _planes(self) -> tuple[Integers, Integers]:
        """Normals, shape (depth, n_features), and thresholds, shape (depth,), of the cuts."""
        rng = public_generator(self.public_seed, self.name, self.depth, self.n_features)
        normals = rng.normal(size=(self.depth, self.n_features))
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        thresholds = self.offset * rng.uniform(-1, 1, self.depth)
        one = 1 << _PLANE_BITS
        return (
            np.rint(normals * one).astype(np.int64),
            np.rint(thresholds * (one << self.frac_bits)).astype(np.int64),
        )

    def _codes(self, records: Records) -> Integers:
        """Return the deepest node of each record: a bit for each cut, the first one highest."""
        normals, thresholds = self._planes
        # Products and sums are integers below 2**53, so the side of a record is its own affair.
        heights = records.astype(np.float64) @ normals.T.astype(np.float64)
        codes = np.zeros(len(records), dtype=np.int64)
        for height, threshold in zip(heights.T, thresholds, strict=True):
            codes = 2 * codes + (height >= threshold)
        return codes

    def _labels(self, leaves: Integers) -> Integers:
        """Return the leaf that each deepest node belongs to; `max_leaves` for a dropped one."""
        labels = np.full(1 << self.depth, self.max_leaves)
        for label, leaf in enumerate(leaves.tolist()):
            if leaf > 0:
                below = self.depth + 1 - leaf.bit_length()
                first = (leaf << below) - (1 << self.depth)
                labels[first : first + (1 << below)] = label
        return labels

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths for clusters of equal size that share all leaves."""
        leaves = sqrt(max(1.0, self.max_leaves / self.n_clusters))
        count_std = leaves * noise_std / self._count_word
        low, high = ratio_interval(
            np.zeros((1, self.n_features)),
            np.array([max(nominal_n / self.n_clusters, 1.0)]),
            sum_std=leaves * noise_std / (1 << self.frac_bits),
            count_std=count_std,
            mechanism=self.mechanism,
        )
        return {
            "half_width": (high - low)[0] / 2 * grid.half_range,
            "size_half_width": np.array([size_interval(count_std, self.mechanism)]),
        }


def grow(counts: Floats, min_size: float, max_leaves: int) -> list[int]:
    """Return the leaves of a tree grown from noisy counts; only public numbers are looked at.

    Parameters
    ----------
    counts : ndarray of shape (2 * n_deepest,)
        Of node ``i``, whose children are ``2 i`` and ``2 i + 1``; node 1 is the root.
    min_size : float
        Children with fewer are dropped; a node with `BRANCH` times as many is cut.

    Returns
    -------
    list of int
        At least 1 and at most `max_leaves` nodes, none below another, in ascending order.
    """
    leaves: list[int] = []
    waiting = [(-np.inf, 1)]  # the largest comes first, of equals the first
    while waiting:
        size, node = heapq.heappop(waiting)
        room = len(leaves) + len(waiting) + 2 <= max_leaves
        large = -size >= BRANCH * min_size
        children: list[int] = []
        if room and large and 2 * node + 1 < len(counts):
            children = [c for c in (2 * node, 2 * node + 1) if counts[c] >= min_size]
        if not children:
            leaves.append(node)
        for child in children:
            heapq.heappush(waiting, (-float(counts[child]), child))
    return sorted(leaves)


def _sum_noise(budget: Budget | None, mechanism: Mechanism, n_features: int, share: float) -> float:
    """Return the L2 norm of the noise of a sum over the half diagonal, on a part of the budget."""
    budget = require_budget(budget, "give it, or give min_size")
    if mechanism == "laplace":  # scale d / epsilon for a record of L1 norm d
        return sqrt(2) * n_features / (share * budget.epsilon)
    multiplier = gaussian_noise_multiplier(budget.epsilon, budget.delta)
    return sqrt(n_features) * multiplier / sqrt(share)
