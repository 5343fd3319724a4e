"""`auto` in few dimensions: a histogram of the whole box, then a few clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

import numpy as np

from cloister.hazmat.fixedpoint import from_grid
from cloister.task import INTERVAL_95, Block, Floats, GridState, Integers, Records, Released, State
from cloister.tasks.clustering.auto_rounds import (
    carry,
    cell_block,
    growing,
    lloyd_blocks,
    lloyd_contribution,
    read_lloyd,
    real,
    unknown,
)
from cloister.tasks.clustering.synopsis import (
    cell_centres,
    cluster_weighted,
    drop_empty_cells,
    nearest,
    project_to_simplex,
    sample_cells,
)
from cloister.tasks.shrinkage import empirical_bayes, james_stein

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
class GridRoute:
    """Histogram, then clipped Lloyd rounds.

    Parameters
    ----------
    n_clusters, n_features, nominal_n : int
    mu : float
        GDP parameter of the whole budget.
    frac_bits, public_seed : int
    """

    n_clusters: int
    n_features: int
    nominal_n: int
    mu: float
    frac_bits: int
    public_seed: int

    @property
    def _constants(self) -> _Constants:
        return _PLANE if self.n_features <= 2 else _SPACE

    @cached_property
    def bins(self) -> Integers:
        """Number of bins of each column: a function of the plan."""
        c, d = self._constants, self.n_features
        noise_std = 1 / (self.mu * sqrt(c.histogram))
        fine = c.cells * (self.nominal_n / noise_std) ** (2 * d / (2 + d))
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
        k = self.n_clusters
        return {
            **unknown(k, self.n_features),
            "counts": np.zeros(k),
            "counts_std": np.zeros(k),
            "radii": np.zeros(k),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the histogram, or sums and counts."""
        c, one = self._constants, 1 << self.frac_bits
        if t == 0:
            return (cell_block("cells", int(self.bins.prod()), one, c.histogram),)
        shares = growing(1 - c.histogram, c.growth, c.rounds)
        return lloyd_blocks(self.n_clusters, self.n_features, one, shares[t - 1], _COUNT_PART)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the words of round `t`."""
        one = 1 << self.frac_bits
        if t > 0:
            return lloyd_contribution(state, records, one)
        numbers = np.zeros(len(records), dtype=np.int64)
        for column, m in zip(records.T, self.bins, strict=True):
            places = np.minimum((column.astype(np.int64) + one) * m // (2 * one), m - 1)
            numbers = numbers * m + places
        return np.bincount(numbers, minlength=int(self.bins.prod())) * one

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Cluster the histogram, or move the centres."""
        if t == 0:
            return self._cluster(state, released["cells"])
        step = read_lloyd(state, released, self.frac_bits, floor=1.0)
        radii = np.maximum(real(state, "radii", self.frac_bits), 1 / (1 << self.frac_bits))
        if self.n_features <= 2:
            moves = self._bayes(step.sums, step.sum_std, step.counts, radii) / _UNDER
        else:
            moves = james_stein(step.sums, step.sum_std)
        centres = real(state, "centres", self.frac_bits) + moves * (radii / step.counts)[:, None]
        return carry(
            state,
            self.frac_bits,
            centres=np.clip(centres, -1, 1),
            counts=step.counts,
            counts_std=step.counts_std,
            **step.shown,
        )

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation in a column of each cluster, as the histogram has it."""
        radii = real(state, "radii", self.frac_bits)
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

    def _cluster(self, state: GridState, block: Released) -> State:
        k, d, seed = len(state["centres"]), self.n_features, self.public_seed
        noise_std = block.noise_std / (1 << self.frac_bits)
        noisy = from_grid(block.values, self.frac_bits)
        points = cell_centres(np.ones(d), self.bins)
        weights = project_to_simplex(noisy, self.nominal_n)
        sides = 2 / self.bins
        if d <= 2:
            if len(points) >= _MANY_CELLS:
                weights = drop_empty_cells(noisy, weights, noise_std, self.nominal_n)
            centres = cluster_weighted(
                points, weights, k, public_seed=seed, restarts=_PLANE_RESTARTS
            )
        else:
            samples = sample_cells(points, weights, sides, np.zeros(0), public_seed=seed)
            centres = cluster_weighted(
                samples, np.ones(len(samples)), k, public_seed=seed, restarts=_SPACE_RESTARTS
            )
        labels, squared = nearest(points, centres)
        counts = np.bincount(labels, weights, minlength=k).astype(np.float64)
        cells = np.maximum(np.bincount(labels[weights > 0], minlength=k), 1)
        within = np.bincount(labels, weights * squared, minlength=k) / np.maximum(counts, 1e-9)
        within += (sides**2).sum() / 12
        pooled = (counts * within).sum() / max(counts.sum(), 1e-9)
        trust = counts**2 / (counts**2 + (2 * noise_std) ** 2 * cells)
        radii = self._constants.radius * np.sqrt(trust * within + (1 - trust) * pooled)
        return carry(
            state,
            self.frac_bits,
            centres=np.clip(centres, -1, 1),
            counts=counts,
            counts_std=noise_std * np.sqrt(cells),
            radii=radii,
            sizes=counts,
            size_half_width=INTERVAL_95["gaussian"] * noise_std * np.sqrt(cells),
        )
