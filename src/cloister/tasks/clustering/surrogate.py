"""A public surrogate for the records: weighted points, corrected by released sums.

The points are those of the density of noisy counts in the cells of a box: normal kernels with
masses >= 0. Sums over cells are computed in whole numbers. So the result does not depend on the
order of addition, nor on the library that multiplies matrices.

The cost of centres is linear in the density of the records. So the best centres for the expected
density are the best in expectation, and k-means may run on points of that density instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import erf, fsum, sqrt

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.clustering.weighted import ONE, lloyd, means, on_lattice, parts_of, repaired

FINE = 1 << 30
"""Units of all masses together."""

_UNITS = 1 << 12  # units of a kernel
_EXACT = 1 << 40  # total mass up to which products with a kernel have exact sums
_STEPS = 100
_RIDGE = 0.02  # share of the pooled variance that is added to each variance


@dataclass(frozen=True)
class Surrogate:
    """Points with masses that represent `records` records."""

    points: Integers  # (n_points, n_features), steps of the lattice
    masses: Integers
    records: float

    def improved(self, centres: Floats) -> Floats:
        """Return centres of the points improved by Lloyd's algorithm and by single moves."""
        used = self.masses > 0
        points, masses = self.points[used], self.masses[used]
        better = lloyd(points, masses, on_lattice(centres))
        return np.asarray(repaired(points, masses, better) / ONE)


@dataclass(frozen=True)
class Partition:
    """The partition of a surrogate by its nearest centres, in grid coordinates and records.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features)
    least : float, > 0
        Minimum size of a cluster.
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
        """Difference of each point to its centre."""
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
        """Return the sums of the points in a Lloyd round, and their response to a move.

        Returns
        -------
        sums : ndarray of shape (n_clusters, n_features), in units of each cluster's radius
            Sums of differences, clipped like those of records.
        follows : ndarray of shape (n_clusters,), in [0.2, 1]
            Change of a mean per move of the centre. A clipped difference does not change with a
            move in its own direction.
        """
        lengths = np.sqrt((self.differences**2).sum(axis=1))
        radius = radii[self.labels]
        longest = np.maximum(lengths, radius)
        sums = self._sums(self.differences / longest[:, None])
        # A clipped difference changes with a move in every direction but one.
        across = 1 - 1 / self.differences.shape[1]
        response = np.where(lengths <= radius, 1.0, radius / longest * across)
        return sums, np.clip(self._sum(response) / self.counts, 0.2, 1.0)

    def corrected(self, moves: Floats, counts: Floats) -> Surrogate:
        """Return the surrogate with moved means and new counts of its clusters.

        Masses are tilted by about ``exp(a.x)``, as the density of a normal cluster with a moved
        mean. Moving the points as a block would tear the density at the borders of clusters.
        """
        middles = self._sums(self.differences) / self.counts[:, None]
        centred = self.differences - middles[self.labels]
        d = centred.shape[1]
        covariance = np.stack([self._sums(centred * x[:, None]) for x in centred.T], axis=1)
        covariance = covariance / self.counts[:, None, None]
        # Regularised: a cluster of few points may have a singular covariance.
        covariance += (_RIDGE * self.pooled / d + 1e-9) * np.eye(d)
        slopes = _solved(covariance, on_lattice(moves) / ONE)
        tilt = np.maximum(1 + (slopes[self.labels] * centred).sum(axis=1) / 4, 0.05)
        tilt *= tilt  # (1 + u / 4)**4 approximates exp(u) and is the same on every machine
        tilt = np.minimum(tilt * tilt, 50.0)
        shares = self._masses * (counts / self.counts)[self.labels] * tilt
        return replace(self.surrogate, masses=parts_of(shares), records=float(shares.sum()))

    def means(self, surrogate: Surrogate) -> Floats:
        """Return the means of these clusters in a surrogate with other masses."""
        centres = means(surrogate.points, surrogate.masses, self.labels, self.centres * ONE)
        return np.asarray(centres / ONE)

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
    # A LAPACK solver may differ in the last bits between libraries.
    rest = np.concatenate([matrices, values[..., None]], axis=-1)
    for j in range(values.shape[-1]):
        rest[:, j] /= rest[:, j, j, None]
        others = [i for i in range(values.shape[-1]) if i != j]
        rest[:, others] -= rest[:, others, j, None] * rest[:, j, None]
    return rest[..., -1]


def kernel(bins: int, cuts: int, width: float) -> Floats:
    """Return the share of each cell's normal kernel in each section of an axis.

    Parameters
    ----------
    bins, cuts : int
        Numbers of cells, and of equal sections of each cell.
    width : float
        Standard deviation of the kernel, in cells.

    Returns
    -------
    ndarray of shape (bins * cuts, bins)
        Multiples of ``2**-12``. Each column sums to 1, because the mass beyond an end is added to
        the outermost section.
    """
    size = bins * cuts
    steps = range(1 - size, size)  # of an edge from the low end of a cell
    scale = cuts * width * sqrt(2)
    below = np.array([_UNITS * (1 + erf((step - cuts / 2) / scale)) / 2 for step in steps])
    edges = np.arange(1, size)[:, None] - cuts * np.arange(bins)
    parts = np.rint(below)[edges + size - 1]
    return np.asarray(np.diff(parts, axis=0, prepend=0, append=_UNITS) / _UNITS)


def spread(kernels: Sequence[Floats], masses: Floats) -> Floats:
    """Apply a kernel along each axis of whole masses with a sum below `_EXACT`, and round."""
    shape = [len(each) for each in kernels]
    for each in kernels:  # each step transforms the first axis and moves it to the end
        masses = np.rint(np.matmul(each, masses.reshape(each.shape[1], -1))).T
    return masses.reshape(shape)


def density(counts: Floats, noise_std: float, kernels: Sequence[Floats], total: float) -> Floats:
    """Return whole masses of the cells' kernels that fit noisy counts; their sum is about `FINE`.

    It is a least-squares fit with masses >= 0 by multiplicative steps. The variance of a count is
    that of its noise plus that of a Poisson number.

    Parameters
    ----------
    counts : ndarray with an axis for each kernel
    noise_std : float
    kernels : sequence of ndarray of shape (n_bins, n_bins)
    total : float
        Number of records.

    References
    ----------
    Lee and Seung, "Algorithms for non-negative matrix factorization", NIPS 2000.
    """
    back = [each.T for each in kernels]
    above, below = np.maximum(counts, 0.0), np.maximum(-counts, 0.0)
    alike = np.full(counts.shape, float(FINE // counts.size))
    if not above.any():
        return alike
    masses = alike.copy()
    for step in range(1, _STEPS + 1):
        expected = spread(kernels, np.rint(masses)) * (total / FINE)
        variance = np.maximum(noise_std**2 + expected, 1e-9)
        wanted, had = above / variance, (expected + below) / variance
        scale = FINE / max(wanted.max(), had.max())
        masses *= spread(back, np.rint(wanted * scale))
        masses /= np.maximum(spread(back, np.rint(had * scale)), 1.0)
        # Multiplicative steps do not preserve the total, which must stay below `_EXACT`.
        if step % 10 == 0 or np.rint(masses).sum() >= _EXACT:
            masses *= FINE / max(fsum(masses.ravel()), 1.0)
    whole = np.rint(masses)
    return whole if whole.any() else alike
