"""``OneRound``: counts and sums of cubes in one round, and centres from both.

References
----------
.. [CGKM21] Chang, Ghazi, Kumar, Manurangsi, "Locally Private k-Means in One Round", ICML 2021,
   PMLR 139. Its oracles for counts and sums are secure sums here, as [DHK24]_ section 4.2.2
   suggests.
.. [DHK24] Diaa, Humphries, Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and Tunable
   k-Means Clustering with Differential Privacy", arXiv:2405.02437.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import log, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.declared import Whole, declared
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
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
from cloister.tasks.clustering.clusters import expected_half_widths
from cloister.tasks.intervals import ratio_interval
from cloister.tasks.options import Clusters, PublicSeed, build_task
from cloister_lab.tasks.balcan import MAX_LEVELS, Crowd, CubeTree, Levels, local_search
from cloister_lab.tasks.centres import Centres
from cloister_lab.tasks.projection import Projection, usual_axes
from cloister_lab.tasks.sums import sum_by_label

MAX_WORDS = 1 << 18  # of the round


@declared
class OneRound(Centres):
    """k-means from the counts and sums of cubes of a projection, in one round [CGKM21]_.

    Parameters
    ----------
    n_axes : int in [1, 5]
        Axes of the public projection; all columns if there are no more than five.
    levels : int in [1, 10]
        How often cubes are cut in half on every axis.

    Notes
    -----
    The published net is made anew from the noisy counts of its parents; here cubes of all levels
    are public, and counted in the same round. Add/remove one record: it is in one cube of each
    level. It adds a count there, and itself, which is inside the box. Which cubes make a cluster is
    chosen from the noisy counts alone, so the noise of the sums does not bias the choice. Sizes are
    of the counts that chose: some 90 % of their intervals hold.
    """

    name: ClassVar[str] = "one-round"
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1
    shares: ClassVar[tuple[float, float]] = (0.5, 0.5)
    """Parts of the budget of counts and of sums, as published."""

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        n_axes: Annotated[Whole | None, "of the projection; by the published rule if None"] = None
        levels: Annotated[Levels | None, "of cubes; by the records if None"] = None
        public_seed: PublicSeed = 0

    n_axes: Whole
    levels: Levels

    def __post_init__(self) -> None:
        words = self._tree.size * (self.n_features + 1)
        if words > MAX_WORDS:
            raise PlanError(
                f"levels={self.levels} makes {words} numbers, a round has at most {MAX_WORDS}; "
                "use fewer."
            )
        _ = self._projection  # its checks are ours

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the projection, and as many levels as are allowed and worth it."""
        n_axes = options.n_axes or usual_axes(facts.n_features, facts.nominal_n)
        most = max(2, min(MAX_LEVELS, int(log(max(facts.nominal_n, 2)))))
        fits = [
            level
            for level in range(1, most + 1)
            if CubeTree(n_axes, level, 0).size * (facts.n_features + 1) <= MAX_WORDS
        ]
        levels = options.levels or max(fits, default=1)
        return build_task(cls, facts, options, n_axes=n_axes, levels=levels)

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"The number and the sum of the records in each cube of {self.levels} grids are "
            f"released with Gaussian noise, and {self.n_clusters} centres are made from them."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return a count for each cube of each level, and the sums of its records."""
        one, levels = 1 << COUNT_BITS, self.levels
        # The squared norm of a record in the box, once a level; each level has its own cubes.
        squares = levels * self.n_features << 2 * self.frac_bits
        size = self._tree.size
        most = levels * self.n_features << self.frac_bits
        return (
            Block("counts", (size,), levels * one, levels * one**2, self.shares[0]),
            Block("sums", (size, self.n_features), most, squares, self.shares[1]),
        )

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the numbers, in fine units, and the sums of the records in each cube."""
        projected = self._projection(records)
        counts, sums = [], []
        for level in range(1, self.levels + 1):
            cubes, cells = self._tree.cubes_of(projected, level), self._tree.cells(level)
            counts.append(np.bincount(cubes, minlength=cells).astype(np.int64) << COUNT_BITS)
            sums.append(sum_by_label(records, cubes, cells).ravel())
        return np.concatenate([*counts, *sums])

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Group crowded cubes by their counts, and divide the sums of a group by its count."""
        return self.measure(state, self.group(released["counts"]), released)

    def group(self, released: NoisyBlock) -> Floats:
        """Return how often each cube is added to each cluster, from noisy counts."""
        one = float(1 << COUNT_BITS)
        counts = released.values / one
        crowd = self._tree.crowded(counts, released.noise_std / one)
        weights = crowd.weights(counts)
        chosen = local_search(crowd.middles, weights, self.n_clusters, public_seed=self.public_seed)
        gaps = ((crowd.middles[:, None] - crowd.middles[chosen]) ** 2).sum(axis=2)
        parts = np.zeros((self.n_clusters, self._tree.size))
        parts[:, crowd.nodes[1:]] = _parts(crowd, gaps.argmin(axis=1), self.n_clusters)
        return parts

    def measure(self, state: GridState, parts: Floats, released: Mapping[str, NoisyBlock]) -> State:
        """Return the mean of each group of cubes, with its interval."""
        one, scale = float(1 << COUNT_BITS), float(1 << self.frac_bits)
        sums = parts @ (released["sums"].values / scale)
        sizes = parts @ (released["counts"].values / one)
        spread = np.sqrt((parts**2).sum(axis=1))  # noise of a group, in those of one cube
        size_std = spread * released["counts"].noise_std / one
        sum_std = spread * released["sums"].noise_std / scale
        floor = np.maximum(1.0, size_std)
        low, high = ratio_interval(
            sums, sizes, sum_std=sum_std[:, None], count_std=size_std[:, None]
        )
        means = sums / np.maximum(sizes, floor)[:, None]
        known = (sizes > floor)[:, None]  # else the public start stays
        centres = np.where(known, means, self._real(state)["centres"])
        return {
            "centres": np.clip(centres, -1.0, 1.0),
            "low": low,
            "high": high,
            "sizes": sizes,
            "size_half_width": INTERVAL_95["gaussian"] * size_std,
        }

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths for groups of equal size that are one cube each."""
        counts, sums = self.blocks(0)
        ratio = sqrt(counts.l2_squared / counts.weight / (sums.l2_squared / sums.weight))
        return expected_half_widths(
            nominal_n / self.n_clusters,
            grid,
            sum_std=noise_std / (1 << self.frac_bits),
            count_std=noise_std * ratio / (1 << COUNT_BITS),
            mechanism=self.mechanism,
        )

    @cached_property
    def _tree(self) -> CubeTree:
        """The cubes."""
        return CubeTree(self.n_axes, self.levels, self.public_seed)

    @cached_property
    def _projection(self) -> Projection:
        """Where a record's cubes are looked up."""
        return Projection(self.n_features, self.n_axes, self.frac_bits, self.public_seed)


def _parts(crowd: Crowd, labels: Integers, n_clusters: int) -> Floats:
    """Return by how much the totals of each crowded cube enter those of each cluster.

    A cube adds its total to its cluster and takes it from that of the cube around it, so that a
    record counts once. Shape (n_clusters, n_nodes - 1); the box has no total.
    """
    own = np.eye(n_clusters)[labels]
    around = np.where(crowd.parents[1:, None] > 0, own[crowd.parents[1:]], 0.0)
    parts: Floats = (own[1:] - around).T
    return parts
