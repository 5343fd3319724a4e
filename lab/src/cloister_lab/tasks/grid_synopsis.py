"""k-means on noisy counts of the cells of a grid: ``EUGkM`` and ``Hybrid``.

One noisy histogram of the box is all that ``EUGkM`` releases; its cells, weighted by their noisy
counts, are then clustered in public. ``Hybrid`` spends half of the budget on that and half on one
round of Lloyd from its centres, if that is expected to help. Both are for few columns.

References
----------
.. [SCLBJ16] Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016,
   sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from math import ceil, sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.declared import Whole, declared
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
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
from cloister.tasks.clustering.kmeans import (
    COUNT_IMPORTANCE,
    GLloyd,
    SuLloyd,
)
from cloister.tasks.clustering.synopsis import cluster_weighted, project_to_simplex
from cloister.tasks.intervals import BOX, ratio_interval
from cloister.tasks.options import Clusters, Noise, PublicSeed, build_task, require_budget
from cloister_lab.tasks.centres import Centres, Lloyds

Negatives = Literal["project", "zero"]

MAX_CELLS = 1 << 16  # more are slow to cluster, and no count would rise above its noise


@declared
class EUGkM(Centres):
    """k-means of a uniform grid's cells, weighted by noisy counts. [SCLBJ16]_ section 5.

    Parameters
    ----------
    cells_per_axis : int, >= 1
        Parts of each column's range; at most 65536 cells in all.
    mechanism : {"laplace", "gaussian"}
        Laplace is published; Gaussian also runs under the profile "pairwise".
    negatives : {"project", "zero"}
        What is done about noise in the counts: the nearest non-negative counts with the same sum,
        or, as published, negative ones become zero, which leaves half of the noise of empty cells.

    Notes
    -----
    Add/remove one record: one cell's count changes by one, so L1 and L2 sensitivity are one record.
    """

    name: ClassVar[str] = "eugkm"
    rounds: ClassVar[int] = 1

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        cells_per_axis: Annotated[Whole | None, "of the grid; by the published rule if None"] = None
        mechanism: Annotated[Noise, "law of the noise"] = "laplace"
        negatives: Annotated[Negatives, "what becomes of counts below 0"] = "project"
        public_seed: PublicSeed = 0

    cells_per_axis: Whole
    mechanism: Noise = "laplace"
    negatives: Negatives = "project"

    def __post_init__(self) -> None:
        if self.n_cells > MAX_CELLS:
            raise PlanError(
                f"cells_per_axis={self.cells_per_axis} makes {self.cells_per_axis}^"
                f"{self.n_features} cells, a grid has at most {MAX_CELLS}; a grid is for few "
                "columns, use fastlloyd or lshtree."
            )

    @property
    def n_cells(self) -> int:
        """Number of cells of the grid."""
        return int(self.cells_per_axis**self.n_features)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the grid by the published rule, unless it is given; see :func:`axis_cells`."""
        return build_task(
            cls,
            facts,
            options,
            cells_per_axis=options.cells_per_axis or usual_cells(facts, options),
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"The number of records in each of {self.n_cells} cells of a grid is released with "
            f"{self.mechanism.capitalize()} noise, and {self.n_clusters} centres are made from "
            "these numbers."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one count for each cell."""
        # A record is in one cell and adds `one` there: both norms are `one`.
        one = 1 << COUNT_BITS
        return (Block("counts", (self.n_cells,), l1=one, l2_squared=one**2, weight=1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the number of records in each cell, in fine units."""
        cells = cells_of(records, self.cells_per_axis, self.frac_bits)
        return np.bincount(cells, minlength=self.n_cells).astype(np.int64) << COUNT_BITS

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Cluster the middles of the cells, weighted by what their counts are likely to be."""
        block = released["counts"]
        counts, noise = block.values / float(1 << COUNT_BITS), block.noise_std / (1 << COUNT_BITS)
        points = cell_middles(self.n_features, self.cells_per_axis)
        weights = np.maximum(counts, 0.0)
        if self.negatives == "project" or not weights.any():
            weights = project_to_simplex(counts, max(1.0, counts.sum()))
        centres = cluster_weighted(points, weights, self.n_clusters, public_seed=self.public_seed)
        return self._with_intervals(centres, points, counts, noise)

    def _with_intervals(
        self, centres: Floats, points: Floats, counts: Floats, noise: float
    ) -> State:
        """Return the state: what the counts of each centre's cells say, and how surely."""
        k = self.n_clusters
        scores = (centres**2).sum(axis=1) - 2 * points @ centres.T
        labels = scores.argmin(axis=1)
        cells = np.bincount(labels, minlength=k)
        sizes: Floats = np.bincount(labels, weights=counts, minlength=k).astype(np.float64)
        offsets = points - centres[labels]
        sums, squares = np.zeros_like(centres), np.zeros_like(centres)
        np.add.at(sums, labels, counts[:, None] * offsets)
        np.add.at(squares, labels, offsets**2)
        low, high = ratio_interval(
            sums,
            sizes,
            sum_std=noise * np.sqrt(squares),
            count_std=noise * np.sqrt(cells)[:, None],
            mechanism=self.mechanism,
            origin=centres,
        )
        # The mean of the records in a cell is at most half a cell from its middle.
        wider = 1 / self.cells_per_axis
        return {
            "centres": centres,
            "low": np.maximum(low - wider, BOX[0]),
            "high": np.minimum(high + wider, BOX[1]),
            "sizes": sizes,
            "size_half_width": INTERVAL_95[self.mechanism] * noise * np.sqrt(cells),
        }

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths for clusters of equal size and equal parts of the box."""
        noise = INTERVAL_95[self.mechanism] * noise_std / (1 << COUNT_BITS)
        k, d = self.n_clusters, self.n_features
        error = noise * sqrt(_centre_variance(self.n_cells, k, d, nominal_n))
        half_width = min(error + 1 / self.cells_per_axis, 1.0)
        return {
            "half_width": half_width * grid.half_range,
            "size_half_width": np.array([noise * sqrt(max(1.0, self.n_cells / k))]),
        }


@declared
class Hybrid(Centres):
    """EUGkM, then one round of Lloyd from its centres. [SCLBJ16]_ section 6.

    Parameters
    ----------
    cells_per_axis, mechanism, negatives
        As in :class:`EUGkM`. The Lloyd round is SuLloyd's for Laplace noise, GLloyd's for Gaussian.
    refine : bool
        Whether there is a Lloyd round; it takes half of the budget (of epsilon for Laplace noise,
        of the squared GDP parameter for Gaussian).

    Notes
    -----
    Add/remove one record: as EUGkM in the first round, as SuLloyd or GLloyd in the second.
    """

    name: ClassVar[str] = "hybrid"

    @declared
    class Options(EUGkM.Options):
        """What a user may choose."""

        refine: Annotated[
            bool | None, "spend half of the budget on a Lloyd round; if that is better if None"
        ] = None

    cells_per_axis: Whole
    refine: bool
    mechanism: Noise = "laplace"
    negatives: Negatives = "project"

    def __post_init__(self) -> None:
        _ = self._synopsis, self._lloyd  # their checks are ours

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the grid, and whether half of the budget is better spent on a Lloyd round.

        Both are functions of public numbers: the round is left out if it is expected to be worse
        than the grid with the whole budget, see :meth:`prefers_lloyd`.
        """
        given = options.cells_per_axis
        task = build_task(
            cls,
            facts,
            options,
            cells_per_axis=given or usual_cells(facts, options, share=0.5),
            refine=True,
        )
        refine = options.refine
        if refine is None:
            refine = task.prefers_lloyd(facts.nominal_n, facts.budget)
        if refine:
            return task
        return replace(task, refine=False, cells_per_axis=given or usual_cells(facts, options))

    def prefers_lloyd(self, nominal_n: int, budget: Budget | None) -> bool:
        """Return whether one Lloyd round on half of the budget should beat the grid on all of it.

        The error of a Lloyd round is that of [SCLBJ16]_ section 4.2, summed over the centres; that
        of the grid is the noise of equally large clusters that share the cells equally.
        """
        k, d = self.n_clusters, self.n_features
        payload, one = self._lloyd.payload(0), 1 << self.frac_bits
        norm = payload.l1 if self.mechanism == "laplace" else sqrt(payload.l2_squared)
        noise = _count_std(budget, self.mechanism, share=0.5) * norm
        sums, counts = (noise / one) ** 2, (noise / payload.count_weight) ** 2
        lloyd = k**3 / nominal_n**2 * d * (sums + 4 * COUNT_IMPORTANCE**2 * counts)
        whole = _count_std(budget, self.mechanism)
        cells = axis_cells(d, k, nominal_n, whole) ** d
        synopsis = k * d * whole**2 * _centre_variance(cells, k, d, nominal_n)
        return lloyd <= synopsis

    @property
    def rounds(self) -> int:
        """Two, or one without the Lloyd round."""
        return 2 if self.refine else 1

    @cached_property
    def _synopsis(self) -> EUGkM:
        """The first round."""
        return EUGkM(**{field.name: getattr(self, field.name) for field in fields(EUGkM)})

    @cached_property
    def _lloyd(self) -> Lloyds:
        """The second round."""
        return self._one_round(SuLloyd if self.mechanism == "laplace" else GLloyd)

    def _of(self, t: int) -> EUGkM | Lloyds:
        """Return whose round `t` is; it is a first round there."""
        return self._synopsis if t == 0 else self._lloyd

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        if not self.refine:
            return self._synopsis.describe()
        return (
            f"{self._synopsis.describe()} Then the sum and the number of the records nearest to "
            "each of these are released with the same kind of noise."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return EUGkM's counts, then Lloyd's sums and counts, with equal weights."""
        (block,) = self._of(t).blocks(0)
        return (replace(block, weight=1 / self.rounds),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return EUGkM's vector, then Lloyd's."""
        return self._of(t).contribute(0, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return EUGkM's centres, then Lloyd's."""
        return self._of(t).update(0, state, released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the expected half-widths of the last round."""
        return self._of(self.rounds - 1).forecast(noise_std, nominal_n, grid)


def axis_cells(n_features: int, n_clusters: int, nominal_n: int, count_std: float) -> int:
    """Return into how many cells to cut each column's range. [SCLBJ16]_ section 5.2.

    Parameters
    ----------
    count_std : float, > 0
        Standard deviation of the noise in one cell's count, in records; the rule's epsilon is that
        of Laplace noise with this deviation.

    Returns
    -------
    int
        ``(nominal_n epsilon / 10)^(2 / (2 + n_features))``, rounded, but at least 2 and enough for
        a cell for each cluster, and at most what 65536 cells allow.
    """
    most = 1
    while (most + 1) ** n_features <= MAX_CELLS:
        most += 1
    if most < 2:
        raise PlanError(
            f"a grid over {n_features} columns would have at least 2^{n_features} cells, the most "
            f"is {MAX_CELLS}; use fastlloyd or lshtree for so many columns."
        )
    epsilon = sqrt(2) / count_std
    rule = round((nominal_n * epsilon / 10) ** (2 / (2 + n_features)))
    enough = ceil(n_clusters ** (1 / n_features) - 1e-9)
    return int(min(most, max(2, enough, rule)))


def cells_of(records: Records, cells_per_axis: int, frac_bits: int) -> Integers:
    """Return the number of the cell that each record is in, by exact integers.

    The last column's cell varies fastest; the upper bound of the box belongs to the last cell.
    """
    cells = np.zeros(len(records), dtype=np.int64)
    for column in records.T:
        steps = column.astype(np.int64) + (1 << frac_bits)
        axis = (steps * cells_per_axis) >> (frac_bits + 1)
        cells = cells * cells_per_axis + np.clip(axis, 0, cells_per_axis - 1)
    return cells


def cell_middles(n_features: int, cells_per_axis: int) -> Floats:
    """Return the middle of every cell in the order of :func:`cells_of`, grid coordinates."""
    axis = (2 * np.arange(cells_per_axis) + 1) / cells_per_axis - 1
    middles: Floats = axis[np.indices((cells_per_axis,) * n_features).reshape(n_features, -1).T]
    return middles


def usual_cells(facts: PublicFacts, options: EUGkM.Options, share: float = 1.0) -> int:
    """Return the cells of an axis for a part of the budget."""
    noise = _count_std(facts.budget, options.mechanism, share)
    return axis_cells(facts.n_features, options.n_clusters, facts.nominal_n, noise)


def _count_std(budget: Budget | None, mechanism: Mechanism, share: float = 1.0) -> float:
    """Return the deviation of noise in a count of sensitivity 1 on a part of the budget."""
    budget = require_budget(budget, "give it, or give cells_per_axis")
    if mechanism == "laplace":
        return sqrt(2) / (share * budget.epsilon)
    return gaussian_noise_multiplier(budget.epsilon, budget.delta) / sqrt(share)


def _centre_variance(cells: int, n_clusters: int, n_features: int, nominal_n: int) -> float:
    """Return the variance of a coordinate of a centre for noise of variance 1 in each count.

    A centre is the mean of equally many cells, spread evenly over an equal part of the box.
    """
    spread = (2 * n_clusters ** (-1 / n_features)) ** 2 / 12
    size = max(nominal_n / n_clusters, 1.0)
    return float(max(1.0, cells / n_clusters) * spread / size**2)
