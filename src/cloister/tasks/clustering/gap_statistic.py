"""The number of clusters of a noisy histogram: the gap statistic with noise in both terms.

For each number of clusters the histogram's k-means objective is compared with that of a histogram
without clusters. The latter is uniform over the same region, with *the same noise and the same
projection*. Otherwise the noise itself would look like structure. Everything is post-processing of
released counts; all randomness is public and seeded.

References
----------
.. [TWH01] Tibshirani, Walther, Hastie, "Estimating the number of clusters in a data set via the gap
   statistic", Journal of the Royal Statistical Society B 63(2), 2001, sections 3 and 4.
.. [LVV03] Likas, Vlassis, Verbeek, "The global k-means clustering algorithm", Pattern Recognition
   36(2), 2003, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.randomness import public_generator
from cloister.tasks.clustering.synopsis import project_to_simplex, squared_distances

REPEATS = 24  # simulated histograms of each kind
BAND = 0.90
LEAST = 0.05  # smallest gain in the log objective that justifies more clusters, even without noise
_REGION = 0.01  # share of the mass outside the region, at each end of each axis
_LLOYD_STEPS = 10
_SEEDS = 50  # candidate positions for a new centre


@dataclass(frozen=True)
class GapCurve:
    """The gap of each candidate number of clusters, and the one chosen.

    Parameters
    ----------
    candidates : ndarray of shape (n_candidates,), int64
        Ascending.
    gap, low, high : ndarray of shape (n_candidates,)
        Difference of the log objectives without clusters and of the histogram, and its 90 % band
        by noise and sampling; the band is not symmetric.
    objective : ndarray of shape (n_candidates,)
        Mean squared distance of the histogram to its nearest centre, in the unit of its points.
    """

    candidates: Integers
    gap: Floats
    low: Floats
    high: Floats
    objective: Floats
    chosen: int


def gap_curve(
    points: Floats,
    counts: Floats,
    *,
    noise_std: float,
    total: float,
    cell_variance: float,
    candidates: Integers,
    public_seed: int,
) -> GapCurve:
    """Choose the number of clusters of a noisy histogram.

    Parameters
    ----------
    points : ndarray of shape (n_cells, n_axes)
        Middles of the cells.
    counts : ndarray of shape (n_cells,)
        Released counts of records. `noise_std` is the noise of each, and `total` is the public
        number of all records.
    cell_variance : float, > 0
        Mean squared distance of a record to the middle of its cell, if it is uniform in the cell.
    candidates : ndarray of shape (n_candidates,), int64
        Ascending numbers of clusters.

    Notes
    -----
    The choice is the smallest candidate whose gap is close to the largest gap. It is lower by at
    most one standard deviation of their difference, or by 5 % of the objective. The deviation
    includes the noise of the release, sampling, and the noise of the reference. A histogram without
    structure beyond the noise gives the smallest candidate.
    """
    rng = public_generator(public_seed, "gap")

    def logs(weights: Floats) -> Floats:
        return np.log(objectives(points, weights, candidates) + cell_variance)

    def repeat(expected: Floats) -> Floats:
        """Return the log objectives of simulated histograms with the same noise."""
        shape = (REPEATS, len(points))
        drawn = rng.poisson(expected, shape) + noise_std * rng.normal(size=shape)
        return np.array([logs(project_to_simplex(row, total)) for row in drawn])

    weights = project_to_simplex(counts, total)
    region = _region(points, weights)
    reference = repeat(np.where(region, total / region.sum(), 0.0))
    again = repeat(weights)
    seen = logs(weights)
    gap = reference.mean(axis=0) - seen
    # Centred: simulated counts have noise twice, which shifts the mean of the objective.
    errors = again - again.mean(axis=0)
    tail = (1 - BAND) / 2
    best = int(gap.argmax())
    lost = np.hypot(
        (reference - reference[:, [best]]).std(axis=0, ddof=1),
        (again - again[:, [best]]).std(axis=0, ddof=1),
    )
    return GapCurve(
        candidates=candidates,
        gap=gap,
        low=gap - np.quantile(errors, 1 - tail, axis=0),
        high=gap - np.quantile(errors, tail, axis=0),
        objective=np.exp(seen),
        chosen=int(candidates[np.flatnonzero(gap >= gap[best] - np.maximum(lost, LEAST))[0]]),
    )


def objectives(points: Floats, weights: Floats, candidates: Integers) -> Floats:
    """Return the weighted mean squared distance to k centres for each candidate k.

    Centres are added one by one, each where it reduces the objective most, and moved by Lloyd's
    algorithm in between [LVV03]_. So there is no seed, and the curve decreases. Candidates are
    ascending and at least 1.
    """
    used = weights > 0
    points, weights = points[used], weights[used] / weights.sum()
    centres, nearest = np.zeros((0, points.shape[1])), np.zeros(0)
    costs = []
    for _ in range(int(candidates[-1])):
        added = weights @ points
        if len(centres):
            # Only the heaviest contributions to the cost are tried, which bounds the work.
            seeds = points[np.argsort(-weights * nearest, kind="stable")[:_SEEDS]]
            gains = weights @ np.maximum(nearest[:, None] - squared_distances(points, seeds), 0.0)
            added = seeds[int(gains.argmax())]
        centres, nearest = _lloyd(points, weights, np.vstack([centres, added]))
        costs.append(float(weights @ nearest))
    return np.array(costs)[candidates - 1]


def _lloyd(points: Floats, weights: Floats, centres: Floats) -> tuple[Floats, Floats]:
    """Run Lloyd's algorithm; return the centres and each point's squared distance to them."""
    labels = np.full(len(points), -1)
    weighted = (weights[:, None] * points).T
    for _ in range(_LLOYD_STEPS):
        squared = squared_distances(points, centres)
        before, labels = labels, squared.argmin(axis=1)
        if (labels == before).all():
            break
        mass = np.bincount(labels, weights=weights, minlength=len(centres))
        sums = np.array([np.bincount(labels, row, minlength=len(centres)) for row in weighted]).T
        filled = mass > 0
        centres = np.where(filled[:, None], sums / np.where(filled, mass, 1.0)[:, None], centres)
    else:
        squared = squared_distances(points, centres)
    return centres, squared.min(axis=1)


def _region(points: Floats, weights: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return True for each cell in the box with nearly all of the mass along each axis."""
    inside = np.ones(len(points), dtype=np.bool_)
    for column in points.T:
        order = np.argsort(column, kind="stable")
        mass = np.cumsum(weights[order]) / weights.sum()
        first, last = np.searchsorted(mass, (_REGION, 1 - _REGION))
        edges = column[order[[first, min(int(last), len(order) - 1)]]]
        inside &= (column >= edges[0]) & (column <= edges[1])
    return inside
