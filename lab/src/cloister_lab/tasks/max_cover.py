"""Max cover on noisy counts: what a federation can do of ``MaxCover``.

The exponential mechanism needs counts that nobody may see. So the silos release noisy counts of
the cells of a few coarse grids instead; balls of cells are then picked greedily, in public.

References
----------
.. [NCX21] Nguyen, Chaturvedi, Xu, "Differentially Private k-Means via Exponential Mechanism and
   Max Cover", AAAI 2021, arXiv:2009.01220, Algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.declared import Range, Whole, declared
from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import (
    COUNT_BITS,
    Block,
    Floats,
    Integers,
    NoisyBlock,
    PublicFacts,
)
from cloister.tasks.clustering.synopsis import cluster_weighted, nearest, project_to_simplex
from cloister.tasks.options import Clusters, PublicSeed, build_task
from cloister_lab.tasks.grid_synopsis import cell_middles, cells_of
from cloister_lab.tasks.projection import BITS, usual_axes
from cloister_lab.tasks.recovery import Recovered

MAX_CELL_BITS = 16  # a grid has at most 2**16 cells
MAX_FINENESS = 6
Fineness = Annotated[int, Range(2, MAX_FINENESS)]
_UNITS = 16  # counts are rounded to this part of a record, so that sums are the same everywhere


@declared
class MaxCoverHistogram(Recovered):
    """k-means by max cover on noisy counts of cells, in three rounds.

    Parameters
    ----------
    fineness : int in [2, 6]
        The finest grid has ``2**fineness`` cells on an axis, at most 65536 in all; the next ones
        have half as many, down to four.

    Notes
    -----
    Add/remove one record: it is in one cell of each grid, whose count changes by one. Asking for
    the number of records in each *ball* would cost far more, since balls overlap: instead,
    neighbouring noisy cells are added up by whoever reads them. The rounds after it are those of
    :class:`~cloister_lab.tasks.recovery.Recovery`.
    """

    name: ClassVar[str] = "maxcover-histogram"
    rounds: ClassVar[int] = 3
    shares: ClassVar[tuple[float, ...]] = (0.4, 0.3, 0.3)

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        n_axes: Annotated[Whole | None, "of the projection; by the published rule if None"] = None
        fineness: Annotated[Fineness | None, "halvings of an axis; by the records if None"] = None
        public_seed: PublicSeed = 0

    fineness: Fineness

    def __post_init__(self) -> None:
        _ = self._recovery.block(0), self._recovery.block(1)  # their checks are ours
        if self.fineness * self.n_axes > MAX_CELL_BITS:
            raise PlanError(
                f"fineness={self.fineness} makes 2^{self.fineness * self.n_axes} cells, a grid has "
                f"at most 2^{MAX_CELL_BITS}; use a coarser one."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the projection by the published rule, and the finest grid that is worth it.

        That is one with at most two cells for each record.
        """
        n_axes = options.n_axes or usual_axes(facts.n_features, facts.nominal_n)
        bits = min(MAX_CELL_BITS, (2 * facts.nominal_n).bit_length() - 1)
        return build_task(
            cls,
            facts,
            options,
            n_axes=n_axes,
            fineness=options.fineness or max(2, min(MAX_FINENESS, bits // n_axes)),
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        cells = " + ".join(str(side**self.n_axes) for side in self._sides)
        return (
            f"The number of records in each of {cells} cells is released with Gaussian noise, and "
            f"{self.n_clusters} groups are made from these numbers. Then the sum and the number of "
            "the records of each group are released with Gaussian noise, twice."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return a count for each cell of each grid; then sums and counts of the groups."""
        if t > 0:
            return self._recovered(t)
        # A record is in one cell of each grid, and adds `one` there.
        one, grids = 1 << COUNT_BITS, len(self._sides)
        size = sum(side**self.n_axes for side in self._sides)
        return (Block("cells", (size,), grids * one, grids * one**2, self.shares[0]),)

    def error_orders(self, plan: Plan) -> Iterator[tuple[str, float]]:
        """Yield the order of the error that the paper states."""
        if plan.budget is not None and plan.budget.delta:
            order = published_order(self.n_clusters, len(plan.columns), plan.nominal_n, plan.budget)
            yield (
                "order of max cover (Nguyen and others, AAAI 2021), all constants 1, no bound",
                order,
            )

    def counts(self, projected: Integers) -> Iterator[Integers]:
        """Yield the numbers of records in the cells of each grid."""
        for side in self._sides:
            cells = cells_of(projected.astype(np.int32), side, BITS)
            yield np.bincount(cells, minlength=side**self.n_axes)

    def group(self, released: NoisyBlock) -> Floats:
        """Return centres of balls of cells, grouped by the records that they hold."""
        ends = np.cumsum([side**self.n_axes for side in self._sides])[:-1]
        noisy = np.split(released.values / float(1 << COUNT_BITS), ends)
        counts = [project_to_simplex(cells, max(1.0, cells.sum())) for cells in noisy]
        nobody = np.zeros(self.n_axes)  # if no ball holds even a part of a record
        balls: Floats = np.array(list(self._pick(counts)) or [nobody])
        cells = cell_middles(self.n_axes, self._sides[0])
        labels, _ = nearest(cells, balls)
        weights = np.zeros(len(balls))
        np.add.at(weights, labels, counts[0])
        return cluster_weighted(balls, weights, self.n_clusters, public_seed=self.public_seed)

    def _pick(self, counts: list[Floats]) -> Iterator[Floats]:
        """Yield centres of balls that hold most of what no ball before holds."""
        taken: list[tuple[Floats, float]] = []
        for side, cells in zip(self._sides, counts, strict=True):
            middles, reach = cell_middles(self.n_axes, side), self._reach * 2 / side
            left = np.rint(cells * _UNITS)
            for centre, before in taken:
                left[((middles - centre) ** 2).sum(axis=1) <= before**2] = 0
            for _ in range(self.n_clusters):
                held = _held(left.reshape((side,) * self.n_axes), reach).ravel()
                if held.max() <= 0:
                    break
                centre = middles[held.argmax()]
                yield centre
                taken.append((centre, reach))
                left[((middles - centre) ** 2).sum(axis=1) <= reach**2] = 0

    @property
    def _reach(self) -> float:
        """Radius of a ball in cells: it holds its own cell and about eight more.

        The published balls are ``2 sqrt(n_axes)`` cells wide to either side. That is cheap where
        balls are counted without noise; here the noise of every cell in a ball adds up.
        """
        return 1.001 * max(1.0, 2 / sqrt(self.n_axes))  # beyond the corner, not on it

    @property
    def _sides(self) -> list[int]:
        """Cells on an axis of each grid, the finest first."""
        return [1 << bits for bits in range(self.fineness, 1, -1)]


def _held(cells: Floats, reach: float) -> Floats:
    """Return for each cell the sum of the cells whose middles are within `reach`.

    The whole array is 2 wide. Sums are whole numbers: rounding takes away the error of the
    transforms, which differs by machine.
    """
    side, n_axes = cells.shape[0], cells.ndim
    span = min(side - 1, int(reach * side / 2 + 1e-9))
    axis = np.arange(-span, span + 1) * (2 / side)
    squared = np.sum(np.meshgrid(*[axis**2] * n_axes, indexing="ij"), axis=0)
    ball = np.where(squared <= reach**2, 1.0, 0.0)
    shape = (side + 2 * span,) * n_axes
    axes = tuple(range(n_axes))
    both = np.fft.rfftn(cells, shape, axes) * np.fft.rfftn(ball, shape, axes)
    middle = (slice(span, span + side),) * n_axes
    held: Floats = np.rint(np.fft.irfftn(both, shape, axes)[middle])
    return held


def published_order(n_clusters: int, n_features: int, nominal_n: int, budget: Budget) -> float:
    """Return the additive error of [NCX21]_'s abstract with every constant 1: an order, no bound.

    ``diameter**2 * (k log(n)**2 log(1/delta) + k sqrt(d log(1/delta))) / epsilon``.
    """
    if budget.delta == 0:
        raise PlanError("the published order needs a delta above 0, got 0.")
    heavy = log(1 / budget.delta)
    terms = log(nominal_n) ** 2 * heavy + sqrt(n_features * heavy)
    return 4 * n_features * n_clusters * terms / budget.epsilon
