"""A public stand-in for the records: weighted points, corrected by what is released of them.

The cost of centres is linear in the density of the records. So the centres that are best for the
expected density are the best in expectation, and k-means may run on points of that density instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.clustering.weighted import ONE, lloyd, means, on_lattice, parts_of, repaired

_RIDGE = 0.02  # of a column's variance in a cluster, by which each variance is taken for larger


@dataclass(frozen=True)
class Surrogate:
    """Points with masses that stand for so many records."""

    points: Integers  # (n_points, n_features), steps of the lattice
    masses: Integers
    records: float

    def improved(self, centres: Floats) -> Floats:
        """Return better centres of the points, by Lloyd's algorithm and by moving single ones."""
        used = self.masses > 0
        points, masses = self.points[used], self.masses[used]
        found = lloyd(points, masses, on_lattice(centres))
        return np.asarray(repaired(points, masses, found) / ONE)


@dataclass(frozen=True)
class Partition:
    """How a surrogate lies around centres; all in grid coordinates and records.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features)
    least : float, > 0
        No cluster is taken for smaller.
    """

    surrogate: Surrogate
    centres: Floats
    least: float

    @cached_property
    def labels(self) -> Integers:
        """The nearest centre of each point."""
        return nearest_centres(self.surrogate.points.astype(np.int32), on_lattice(self.centres))

    @cached_property
    def differences(self) -> Floats:
        """Each point less its centre."""
        return (self.surrogate.points - on_lattice(self.centres)[self.labels]) / ONE

    @cached_property
    def counts(self) -> Floats:
        """Records of each cluster."""
        return np.maximum(self._sum(np.ones(len(self.labels))), self.least)

    @cached_property
    def within(self) -> Floats:
        """Mean squared distance to the centre."""
        return self._sum((self.differences**2).sum(axis=1)) / self.counts

    @cached_property
    def pooled(self) -> float:
        """Mean squared distance of all records to their centres."""
        return float((self.counts * self.within).sum() / self.counts.sum())

    def answer(self, radii: Floats) -> tuple[Floats, Floats]:
        """Return what the points would say in a Lloyd round, and how much of a move it would say.

        Returns
        -------
        sums : ndarray of shape (n_clusters, n_features), in units of each cluster's radius
            Of differences that are clipped as those of records are.
        follows : ndarray of shape (n_clusters,), in [0.2, 1]
            A clipped difference does not follow a move of the centre in its own direction.
        """
        lengths = np.sqrt((self.differences**2).sum(axis=1))
        radius = radii[self.labels]
        longest = np.maximum(lengths, radius)
        sums = self._sums(self.differences / longest[:, None])
        across = 1 - 1 / self.differences.shape[1]
        part = np.where(lengths <= radius, 1.0, radius / longest * across)
        return sums, np.clip(self._sum(part) / self.counts, 0.2, 1.0)

    def corrected(self, moves: Floats, counts: Floats) -> Surrogate:
        """Return the surrogate of which each cluster has another mean and another count.

        Masses are tilted, w exp(a.x) nearly, as the means of a normal cluster's density move.
        """
        middles = self._sums(self.differences) / self.counts[:, None]
        centred = self.differences - middles[self.labels]
        d = centred.shape[1]
        covariance = np.stack([self._sums(centred * x[:, None]) for x in centred.T], axis=1)
        covariance = covariance / self.counts[:, None, None]
        covariance += (_RIDGE * self.pooled / d + 1e-9) * np.eye(d)
        slopes = _solved(covariance, on_lattice(moves) / ONE)
        tilt = np.maximum(1 + (slopes[self.labels] * centred).sum(axis=1) / 4, 0.05)
        tilt *= tilt  # (1 + u / 4)**4 is near exp(u), and the same on every machine
        tilt = np.minimum(tilt * tilt, 50.0)
        shares = self._masses * (counts / self.counts)[self.labels] * tilt
        return replace(self.surrogate, masses=parts_of(shares), records=float(shares.sum()))

    def means(self, surrogate: Surrogate) -> Floats:
        """Return the means of these clusters in a surrogate of other masses."""
        found = means(surrogate.points, surrogate.masses, self.labels, self.centres * ONE)
        return np.asarray(found / ONE)

    @cached_property
    def _masses(self) -> Floats:
        total = float(self.surrogate.masses.sum())
        return np.asarray(self.surrogate.masses * (self.surrogate.records / total))

    def _sum(self, values: Floats) -> Floats:
        k = len(self.centres)
        return np.bincount(self.labels, self._masses * values, k).astype(np.float64)

    def _sums(self, rows: Floats) -> Floats:
        return np.stack([self._sum(column) for column in rows.T], axis=-1)


def _solved(matrices: Floats, values: Floats) -> Floats:
    """Solve positive definite systems by elimination, in the same order on every machine."""
    rest = np.concatenate([matrices, values[..., None]], axis=-1)
    for j in range(values.shape[-1]):
        rest[:, j] /= rest[:, j, j, None]
        others = [i for i in range(values.shape[-1]) if i != j]
        rest[:, others] -= rest[:, others, j, None] * rest[:, j, None]
    return rest[..., -1]
