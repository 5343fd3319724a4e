"""`auto` in few dimensions: a histogram of the whole box, then a few clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, sqrt

import numpy as np

from cloister.arrays import Floats, GridState, Integers, Records, State
from cloister.task import Block, Released
from cloister.tasks.clustering.auto_rounds import (
    MovingCentres,
    Route,
    growing,
    lloyd_blocks,
    lloyd_contribution,
    placed,
    read_lloyd,
    still,
)
from cloister.tasks.clustering.synopsis import (
    cell_centres,
    cluster_weighted,
    drop_empty_cells,
    nearest,
    project_to_simplex,
    sample_cells,
)
from cloister.tasks.columns import count_cells
from cloister.tasks.shrinkage import empirical_bayes, james_stein
from cloister.tasks.state import read, written

_MOST_CELLS = 1 << 14
_MANY_CELLS = 40  # from which empty ones are dropped; among few, a full one is too dear to lose
_COUNT_PART = 0.15  # of a Lloyd round's budget
_PLANE_RESTARTS, _SPACE_RESTARTS = 30, 8


@dataclass(frozen=True)
class _Constants:
    """Where one to two dimensions and three to six differ; found on public data sets."""

    histogram: float  # share of the budget
    cells: float  # how fine the histogram is
    cells_per_cluster: int
    rounds: int
    growth: float  # of the budget from one Lloyd round to the next
    radius: float  # in root mean square distances of a cluster


_PLANE = _Constants(0.50, 0.25, 5, 2, 1.2, 1.0)
_SPACE = _Constants(0.45, 0.15, 3, 3, 1.6, 0.8)
_UNDER = 0.9  # clipping takes so much of a step, in the plane


@dataclass(frozen=True)
class GridRoute(Route):
    """Histogram, then clipped Lloyd rounds."""

    releases = (
        "the numbers of records in the cells of a public grid, then for each cluster a few times "
        "the number of its records and the sum of their shortened differences to its centre"
    )

    @property
    def _constants(self) -> _Constants:
        return _PLANE if self.n_features <= 2 else _SPACE

    @cached_property
    def bins(self) -> Integers:
        """Number of bins of each column: a function of the plan."""
        c, d = self._constants, self.n_features
        fine = c.cells * (self.nominal_n / self.noise_std(c.histogram)) ** (2 * d / (2 + d))
        cells = min(max(fine, c.cells_per_cluster * self.n_clusters), _MOST_CELLS)
        if d <= 2:
            return np.full(d, max(2, ceil(cells ** (1 / d) - 1e-9)), dtype=np.int64)
        bins = np.full(d, max(2 if d <= 4 else 1, floor(cells ** (1 / d) + 1e-9)), dtype=np.int64)
        for column in range(d):
            if bins.prod() < 0.9 * cells:
                bins[column] += 1
        return bins

    @property
    def rounds(self) -> int:
        """One histogram and the Lloyd rounds."""
        return 1 + self._constants.rounds

    def start(self) -> State:
        """Return a state in which nothing is known."""
        return written(MovingCentres(**still(self.n_clusters, self.n_features)))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the histogram, or sums and counts."""
        c = self._constants
        if t == 0:
            return (Block.of_units("cells", (int(self.bins.prod()),), c.histogram, one=self.one),)
        shares = growing(1 - c.histogram, c.growth, c.rounds)
        return lloyd_blocks(self, shares[t - 1], _COUNT_PART)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the elements of round `t`."""
        one = self.one
        if t > 0:
            return lloyd_contribution(state, records, one)
        columns, bins = range(self.n_features), self.bins.tolist()
        (counts,) = count_cells(records, [columns], bins, [True] * len(bins), self.frac_bits)
        return counts * one

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Cluster the histogram, or move the centres."""
        known = read(MovingCentres, state, self.frac_bits)
        if t == 0:
            return written(self._cluster(known, *released["cells"].real(self.frac_bits)))
        known, sums, sum_std = read_lloyd(self, known, released, floor=1.0)
        radii = np.maximum(known.radii, 1 / self.one)
        if self.n_features <= 2:
            moves = self._bayes(sums, sum_std, known.counts, radii) / _UNDER
        else:
            moves = james_stein(sums, sum_std)
        centres = known.centres + moves * (radii / known.counts)[:, None]
        return written(replace(known, centres=np.clip(centres, -1, 1)))

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation in a column of each cluster, as the histogram has it."""
        radii = read(MovingCentres, state, self.frac_bits).radii
        return radii / self._constants.radius / sqrt(self.n_features)

    def _bayes(self, sums: Floats, noise_std: float, counts: Floats, radii: Floats) -> Floats:
        mean_square = float((counts * radii**2).sum() / counts.sum())
        return empirical_bayes(
            sums,
            n_dims=self.n_features,
            factors=counts / radii,
            noise_std=noise_std,
            unit=sqrt(mean_square / self.n_features),
            prior_power=2.0,
            spreads=counts.mean() / counts * (radii / radii.mean()) ** 2,
        )

    def _cluster(self, known: MovingCentres, noisy: Floats, noise_std: float) -> MovingCentres:
        """Cluster the histogram, and set the radii of the Lloyd rounds."""
        k, sides = len(known.centres), 2 / self.bins
        points = cell_centres(np.ones(self.n_features), self.bins)
        weights = project_to_simplex(noisy, self.nominal_n)
        if self.n_features <= 2 and len(points) >= _MANY_CELLS:
            weights = drop_empty_cells(noisy, weights, noise_std, self.nominal_n)
        centres = self._centres_of(points, weights, k)
        labels, squared = nearest(points, centres)
        counts = np.bincount(labels, weights, minlength=k).astype(np.float64)
        cells = np.maximum(np.bincount(labels[weights > 0], minlength=k), 1)
        within = np.bincount(labels, weights * squared, minlength=k) / np.maximum(counts, 1e-9)
        within += (sides**2).sum() / 12
        pooled = (counts * within).sum() / max(counts.sum(), 1e-9)
        trust = counts**2 / (counts**2 + (2 * noise_std) ** 2 * cells)
        radii = self._constants.radius * np.sqrt(trust * within + (1 - trust) * pooled)
        return replace(placed(known, centres, counts, cells, noise_std), radii=radii)

    def _centres_of(self, points: Floats, weights: Floats, k: int) -> Floats:
        """Cluster the cells, or in space public points that lie in them as records might."""
        seed = self.public_seed
        if self.n_features <= 2:
            return cluster_weighted(points, weights, k, public_seed=seed, restarts=_PLANE_RESTARTS)
        samples = sample_cells(points, weights, 2 / self.bins, np.zeros(0), public_seed=seed)
        ones = np.ones(len(samples))
        return cluster_weighted(samples, ones, k, public_seed=seed, restarts=_SPACE_RESTARTS)
