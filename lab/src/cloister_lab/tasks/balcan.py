"""``Balcan``: centres of crowded cubes as candidates, local search, then noisy means.

References
----------
.. [BDLMZ17] Balcan, Dick, Liang, Mou, Zhang, "Differentially Private Clustering in
   High-Dimensional Euclidean Spaces", ICML 2017, PMLR 70, Algorithms 1 to 3.
.. [GLMRT10] Gupta, Ligett, McSherry, Roth, Talwar, "Differentially Private Combinatorial
   Optimization", SODA 2010, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.declared import Range, Whole, declared
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.protocol.task import (
    COUNT_BITS,
    Block,
    Floats,
    Integers,
    NoisyBlock,
    PublicFacts,
)
from cloister.tasks.options import Clusters, PublicSeed, build_task
from cloister_lab.tasks.projection import BITS, ONE, usual_axes
from cloister_lab.tasks.recovery import Recovered

MAX_CELLS = 1 << 17  # of one level
MAX_LEVELS = 10
Levels = Annotated[int, Range(1, MAX_LEVELS)]
MAX_CUBES = 256  # of one level that are split further
MAX_SWAPS = 100
_GAIN = 1e-9  # a swap that saves a smaller part of the cost is none


@declared
class Balcan(Recovered):
    """k-means on the centres of cubes that hold many records [BDLMZ17]_, in two rounds.

    Parameters
    ----------
    levels : int in [1, 10]
        How often cubes are cut in half on every axis; the first has four times the half-width of
        the box as its side, so that it holds the box wherever it is shifted to.

    Notes
    -----
    The published partition asks about the cubes that the answers before have left, so the number
    of its questions depends on the records. Here all cubes of all levels are counted in one round,
    empty ones too, and thresholds are applied to what was released: no threshold costs anything,
    and there is no failure probability. The search runs on noisy counts and costs nothing either.
    Add/remove one record: it is in one cube of each level, whose count changes by one. The second
    round is the first of :class:`~cloister_lab.tasks.recovery.Recovery`.
    """

    name: ClassVar[str] = "balcan"
    rounds: ClassVar[int] = 2
    shares: ClassVar[tuple[float, ...]] = (0.5, 0.5)

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        n_axes: Annotated[Whole | None, "of the projection; by the published rule if None"] = None
        levels: Annotated[Levels | None, "of cubes; by the records if None"] = None
        public_seed: PublicSeed = 0

    levels: Levels

    def __post_init__(self) -> None:
        _ = self._recovery.block(0)  # its checks are ours
        if self._tree.cells(self.levels) > MAX_CELLS:
            raise PlanError(
                f"levels={self.levels} makes {self._tree.cells(self.levels)} cubes, a level has at "
                f"most {MAX_CELLS}; use fewer."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the projection, and as many levels as are allowed and worth it.

        As published, there are no more than ``ln(nominal_n)`` levels.
        """
        n_axes = options.n_axes or usual_axes(facts.n_features, facts.nominal_n)
        most = max(2, min(MAX_LEVELS, int(log(max(facts.nominal_n, 2)))))
        fits = [i for i in range(1, most + 1) if _side(i) ** n_axes <= MAX_CELLS]
        return build_task(cls, facts, options, n_axes=n_axes, levels=options.levels or max(fits))

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"The number of records in each cube of {self.levels} grids is released with Gaussian "
            f"noise, and {self.n_clusters} groups are made from these numbers. Then the sum and "
            "the number of the records of each group are released with Gaussian noise."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return a count for each cube of each level; then sums and counts of the groups."""
        if t > 0:
            return self._recovered(t)
        # A record is in one cube of each level, and adds `one` there.
        one, levels = 1 << COUNT_BITS, self.levels
        return (Block("cubes", (self._tree.size,), levels * one, levels * one**2, self.shares[0]),)

    def counts(self, projected: Integers) -> Iterator[Integers]:
        """Yield the numbers of records in the cubes of each level."""
        for level in range(1, self.levels + 1):
            cubes = self._tree.cubes_of(projected, level)
            yield np.bincount(cubes, minlength=self._tree.cells(level))

    def group(self, released: NoisyBlock) -> Floats:
        """Return middles of crowded cubes, chosen by local search."""
        one = float(1 << COUNT_BITS)
        counts = released.values / one
        crowd = self._tree.crowded(counts, released.noise_std / one)
        weights = crowd.weights(counts)
        points = crowd.middles
        return points[local_search(points, weights, self.n_clusters, public_seed=self.public_seed)]

    @cached_property
    def _tree(self) -> CubeTree:
        """The cubes."""
        return CubeTree(self.n_axes, self.levels, self.public_seed)


@dataclass(frozen=True)
class Crowd:
    """Cubes that hold records for sure, and the box, which is first.

    Parameters
    ----------
    middles : ndarray of shape (n_nodes, n_axes), in ``[-1, 1]``
    nodes, parents : ndarray of shape (n_nodes,), int64
        Place of each cube among all counts, -1 for the box; and which of these cubes holds it.
    """

    middles: Floats
    nodes: Integers
    parents: Integers

    def weights(self, counts: Floats) -> Floats:
        """Return how many records each cube holds beyond those of its own crowded parts.

        Nobody counts the box; it has the weight 1 if no other cube has any.

        Parameters
        ----------
        counts : ndarray of shape (size,), records, of all cubes
        """
        held = np.concatenate([[1.0], counts[self.nodes[1:]]])
        own = held.copy()
        np.subtract.at(own, self.parents[1:], held[1:])
        weights: Floats = np.maximum(own, 0.0)
        if not weights.any():
            weights[0] = 1.0
        return weights


@dataclass(frozen=True)
class CubeTree:
    """Cubes of halved sides over the box, laid with a random public shift [BDLMZ17]_.

    Parameters
    ----------
    levels : int in [1, 10]
        The first has cubes of four times the half-width of the box, cut in half on every axis.
    """

    n_axes: int
    levels: int
    public_seed: int

    @property
    def size(self) -> int:
        """Number of cubes of all levels that can hold a point of the box."""
        return sum(self.cells(level) for level in range(1, self.levels + 1))

    def cells(self, level: int) -> int:
        """Return the number of cubes of a level that can hold a point of the box."""
        return int(_side(level) ** self.n_axes)

    def cubes_of(self, projected: Integers, level: int) -> Integers:
        """Return the number of the cube of a level that each point is in; exact integers."""
        places = ((projected - self._corner) >> (BITS + 2 - level)) - self._first_place(level)
        numbers = np.zeros(len(projected), dtype=np.int64)
        for column in places.T:
            numbers = numbers * _side(level) + column
        return numbers

    def crowded(self, counts: Floats, noise: float) -> Crowd:
        """Return the cubes whose noisy count is above what noise alone reaches in an empty level.

        Parameters
        ----------
        counts : ndarray of shape (size,), records
        noise : float
            Standard deviation of each count.
        """
        cubes = np.zeros((1, self.n_axes), dtype=np.int64)
        middles = [self._middles(cubes, 0)]
        nodes, parents = [np.array([-1])], [np.array([-1])]
        first = start = 0  # place of the level's first cube among counts, and of its first parent
        for level in range(1, self.levels + 1):
            size, side = self.cells(level), _side(level)
            # Numbers of the children: twice the parent's place, and one more.
            corners = np.indices((2,) * self.n_axes).reshape(self.n_axes, -1).T
            children = (2 * cubes[:, None] + corners).reshape(-1, self.n_axes)
            owner = np.repeat(np.arange(start, start + len(cubes)), len(corners))
            places = children - self._first_place(level)
            inside = ((places >= 0) & (places < side)).all(axis=1)
            children, owner, places = children[inside], owner[inside], places[inside]
            node = first + np.ravel_multi_index(tuple(places.T), (side,) * self.n_axes)
            best = np.argsort(-counts[node], kind="stable")[:MAX_CUBES]
            kept = best[counts[node[best]] > noise * sqrt(2 * log(max(size, 2)))]
            if not len(kept):
                break
            first, start = first + size, start + len(cubes)
            cubes = children[kept]
            middles.append(self._middles(cubes, level))
            nodes.append(node[kept])
            parents.append(owner[kept])
        return Crowd(
            np.clip(np.concatenate(middles), -1.0, 1.0),
            np.concatenate(nodes),
            np.concatenate(parents),
        )

    def _first_place(self, level: int) -> Integers:
        """Return the first place on each axis, among ``2**level``, that the box reaches."""
        places: Integers = (-ONE - self._corner) >> (BITS + 2 - level)
        return places

    def _middles(self, places: Integers, level: int) -> Floats:
        """Return the middles of cubes, in coordinates of the box."""
        steps = self._corner + (2 * places + 1) * 2.0 ** (BITS + 1 - level)
        return steps / ONE

    @cached_property
    def _corner(self) -> Integers:
        """The lowest corner of the first cube, whose side is ``4 ONE``: a random public shift."""
        rng = public_generator(self.public_seed, "cubes", self.n_axes)
        return rng.integers(-3 * ONE + 1, -ONE, self.n_axes)


def _side(level: int) -> int:
    """Return on how many cubes of a level the box may lie, along an axis."""
    return (1 << (level - 1)) + 1


def local_search(points: Floats, weights: Floats, n_clusters: int, *, public_seed: int) -> Integers:
    """Return which of some public weighted points make the best centres that swaps can find.

    Fewer points than clusters are repeated. The start is distinct points at random, those with more
    weight more often.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_axes)
    weights : ndarray of shape (n_points,), >= 0

    Returns
    -------
    ndarray of shape (n_clusters,), int64

    Notes
    -----
    While one exchange of a centre for a point saves something, the one that saves most is made, at
    most 100 times. [GLMRT10]_ draws exchanges by the exponential mechanism, from exact costs.
    """
    n = len(points)
    if n <= n_clusters:
        return np.arange(n_clusters, dtype=np.int64) % n
    rng = public_generator(public_seed, "search")
    weights = np.rint(4 * weights) / 4  # so that sums are exact, the same on every machine
    chances = weights + 1e-9 * max(weights.max(), 1.0)
    chosen = rng.choice(n, n_clusters, replace=False, p=chances / chances.sum())
    squares = (points**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0.0)
    distances = np.rint(4096 * distances) / 4096
    rows = np.arange(n)
    for _ in range(MAX_SWAPS):
        to_chosen = distances[:, chosen]
        order = np.argsort(to_chosen, axis=1, kind="stable")
        label = order[:, 0]
        near = to_chosen[rows, label]
        second = to_chosen[rows, order[:, 1]] if n_clusters > 1 else np.full(n, np.inf)
        # A new centre saves what it is nearer; losing an old one moves its points to the second.
        saves = weights[:, None] * np.minimum(distances - near[:, None], 0.0)
        moves = weights[:, None] * (np.minimum(distances, second[:, None]) - near[:, None])
        member = np.eye(n_clusters)[label]
        changes = saves.sum(axis=0) + member.T @ (moves - saves)
        lost, found = np.unravel_index(changes.argmin(), changes.shape)
        if changes[lost, found] >= -_GAIN * (weights @ near):
            break
        chosen[lost] = found
    return chosen.astype(np.int64)
