"""Post-processing of released counts: estimation of a distribution, and its clustering.

All inputs are public numbers; the results are equal on every machine for the same seed.
"""

from __future__ import annotations

from math import erfc, log, pi, prod, sqrt

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.randomness import public_generator

_OCCUPIED = (0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.45, 0.65, 0.85, 0.97)  # candidate shares
_SURE = 0.5  # posterior probability above which a cell counts as occupied
_TRIALS = 4  # candidates per centre in greedy seeding
_STEPS = 40
_WORK = 4_000_000  # largest number of distances in memory at a time
_MOST_WORK, _LEAST_RESTARTS = 10_000_000, 4  # distances in a step of all restarts


def project_to_simplex(counts: Floats, total: float) -> Floats:
    """Return the Euclidean projection of noisy counts onto ``{w >= 0, sum w = total}``."""
    descending = np.sort(counts)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, len(counts) + 1)
    threshold = excess[np.flatnonzero(descending > excess)[-1]]
    return np.asarray(np.maximum(counts - threshold, 0.0))


def cluster_weighted(
    points: Floats, weights: Floats, n_clusters: int, *, public_seed: int, restarts: int = 8
) -> Floats:
    """Return centres of public weighted points: Lloyd from greedy k-means++, best of `restarts`.

    It does not call a library, because all parties must compute the same centres with any
    installed versions. The restarts run in parallel arrays; there are fewer for very many points
    and clusters. If fewer points than clusters have a weight, these points are repeated.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    weights : ndarray of shape (n_points,), >= 0
        At least one weight is positive.

    References
    ----------
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    used = weights > 0
    points, weights = points[used], weights[used]
    if len(points) <= n_clusters:
        return points[np.arange(n_clusters) % len(points)]
    rng = public_generator(public_seed, "restarts")
    size = len(points) * n_clusters
    restarts = min(restarts, max(_LEAST_RESTARTS, _MOST_WORK // size))
    batch = max(1, _WORK // size)
    best, best_cost = points[:n_clusters], np.inf
    for first in range(0, restarts, batch):
        starts = _seed(points, weights, n_clusters, min(batch, restarts - first), rng)
        centres, costs = _lloyd(points, weights, starts)
        if costs.min() < best_cost:
            best, best_cost = centres[costs.argmin()], float(costs.min())
    return best


def _seed(
    points: Floats, weights: Floats, k: int, restarts: int, rng: np.random.Generator
) -> Floats:
    """Choose starting centres far from each other; shape (restarts, k, n_features)."""
    rows = np.arange(restarts)
    chosen = np.empty((restarts, k), dtype=np.int64)
    chosen[:, 0] = rng.choice(len(points), restarts, p=weights / weights.sum())
    squared = squared_distances(points[chosen[:, 0]], points)
    for j in range(1, k):
        mass = np.cumsum(weights * squared, axis=1)
        draws = rng.uniform(size=(restarts, _TRIALS)) * mass[:, -1:]
        indices = np.array(
            [np.searchsorted(m, d, "right") for m, d in zip(mass, draws, strict=True)]
        )
        tried = np.minimum(indices, len(points) - 1)  # a draw may round to the whole mass
        distances = squared_distances(points[tried.ravel()], points)
        closer = np.minimum(squared[:, None, :], distances.reshape(restarts, _TRIALS, -1))
        good = (closer @ weights).argmin(axis=1)
        chosen[:, j], squared = tried[rows, good], closer[rows, good]
    return points[chosen]


def _lloyd(points: Floats, weights: Floats, centres: Floats) -> tuple[Floats, Floats]:
    """Run Lloyd's algorithm from several starts; return centres and costs."""
    # A start whose centres do not change in a step never changes again, so it is skipped.
    centres = centres.copy()
    restarts, k, d = centres.shape
    weighted = [np.tile(weights * column, restarts) for column in points.T]
    total, norms = np.tile(weights, restarts), (points**2).sum(axis=1)
    labels = np.empty((restarts, len(points)), dtype=np.int64)
    least = np.empty(labels.shape)
    costs, moving = np.full(restarts, np.inf), np.arange(restarts)
    for _ in range(_STEPS):
        squares, doubled = (centres**2).sum(axis=2), 2 * centres
        for r in moving:
            products = doubled[r] @ points.T
            scores = np.subtract(squares[r][:, None], products, out=products)
            labels[r], least[r] = _first_least(scores)
        fresh = (least + norms) @ weights
        slots = (labels[moving] + k * np.arange(len(moving))[:, None]).ravel()
        counts, *sums = (
            np.bincount(slots, part[: len(slots)], minlength=len(moving) * k)
            for part in (total, *weighted)
        )
        means = np.stack(sums, axis=-1) / np.where(counts > 0, counts, 1)[:, None]
        before = centres[moving]
        moved = np.where((counts > 0)[:, None], means, before.reshape(-1, d)).reshape(before.shape)
        centres[moving] = moved
        moving = moving[(moved != before).any(axis=(1, 2))]
        settled = (fresh >= costs * (1 - 1e-5)).all()
        costs = np.minimum(costs, fresh)
        if settled:
            break
    return centres, costs


def _first_least(scores: Floats) -> tuple[Integers, Floats]:
    """Return argmin and min along the first axis."""
    # The function `argmin` is slow along the first axis.
    k = len(scores)
    least = np.minimum.reduce(scores, axis=0)
    places = np.arange(k, 0, -1, dtype=np.min_scalar_type(k))  # the first has the largest
    highest = np.maximum.reduce((scores == least) * places[:, None], axis=0)
    return k - highest.astype(np.int64), least


def cell_centres(half_spans: Floats, bins: Integers) -> Floats:
    """Return the middles of the cells of a box around zero; shape (n_cells, n_axes).

    The last axis varies fastest.
    """
    axes = [
        half * ((np.arange(m) + 0.5) * 2 / m - 1) for half, m in zip(half_spans, bins, strict=True)
    ]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def cubic_bins(sides: Floats, most: float) -> Integers:
    """Return numbers of bins for about cubic cells, at most `most` cells in all.

    Only the ratios of the sides of the box matter; a narrow axis gets one bin.
    """
    spans = sides.tolist()

    def bins(side: float) -> list[int]:
        return [max(1, round(span / side)) for span in spans]

    low, high = 1e-6 * max(spans), 100 * max(spans)
    for _ in range(60):
        side = sqrt(low * high)
        low, high = (side, high) if prod(bins(side)) > most else (low, side)
    return np.array(bins(high))


def drop_empty_cells(counts: Floats, weights: Floats, noise_std: float, total: float) -> Floats:
    """Set the weights of cells to zero that are likely empty, given their noisy counts.

    In the model a cell is empty with probability 1 - p. Otherwise its count is exponentially
    distributed, with the mean that gives the total. p maximises the likelihood of all noisy counts.
    Cells that are occupied with posterior probability above 0.5 keep their weight.

    Parameters
    ----------
    counts : ndarray of shape (n_cells,)
        Released counts; `noise_std` is the noise of each.
    weights : ndarray of shape (n_cells,), >= 0
        Projection of the counts onto the simplex of `total`.

    Returns
    -------
    ndarray of shape (n_cells,)
        Weights with the same total; `weights` itself if no cell would be left.
    """
    empty = -0.5 * (counts / noise_std) ** 2 - log(noise_std * sqrt(2 * pi))
    best, posterior = -np.inf, weights
    for p in _OCCUPIED:
        mean = total / (len(counts) * p)
        full = (
            -log(mean)
            + 0.5 * (noise_std / mean) ** 2
            - counts / mean
            + _log_normal_cdf(counts / noise_std - noise_std / mean)
        )
        both = np.logaddexp(log(1 - p) + empty, log(p) + full)
        if both.sum() > best:
            best, posterior = both.sum(), np.exp(log(p) + full - both)
    kept = np.where(posterior > _SURE, weights, 0.0)
    if kept.sum() <= 0:
        return weights
    return np.asarray(kept * (total / kept.sum()))


def _log_normal_cdf(x: Floats) -> Floats:
    """Return the logarithm of the normal distribution function, also for very negative `x`."""
    # Below about -38 the function itself underflows, so its asymptotic expansion is used.
    near = np.maximum(x, -30.0)
    tail = np.minimum(x, -30.0)
    cdf = np.array([erfc(value) for value in (-near / sqrt(2)).tolist()]) / 2
    far = -0.5 * tail**2 - np.log(-tail * sqrt(2 * pi))
    return np.where(x > -30.0, np.log(cdf), far)


def sample_cells(
    points: Floats,
    weights: Floats,
    sides: Floats,
    residual_stds: Floats,
    *,
    public_seed: int,
    n_points: int = 2000,
) -> Floats:
    """Draw public points: uniform in each cell, normal along axes without counts.

    Parameters
    ----------
    points : ndarray of shape (n_cells, n_axes)
        Middles of the cells; `sides` has the lengths of their sides.
    weights : ndarray of shape (n_cells,), >= 0
    residual_stds : ndarray of shape (n_more,)
        Standard deviations along further axes without released counts.

    Returns
    -------
    ndarray of shape (n_points, n_axes + n_more)
    """
    rng = public_generator(public_seed, "synopsis")
    chosen = points[rng.choice(len(points), n_points, p=weights / weights.sum())]
    inside = chosen + rng.uniform(-0.5, 0.5, chosen.shape) * sides
    residual = rng.normal(size=(n_points, len(residual_stds))) * residual_stds
    return np.hstack([inside, residual])


def nearest(points: Floats, centres: Floats) -> tuple[Integers, Floats]:
    """Return label and squared distance of the nearest centre of each public point."""
    squared = squared_distances(points, centres)
    labels: Integers = squared.argmin(axis=1)
    return labels, squared[np.arange(len(labels)), labels]


def squared_distances(points: Floats, centres: Floats) -> Floats:
    """Return the squared distance of each point to each centre; shape (n_points, n_centres)."""
    lengths: Floats = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
    lengths -= 2 * points @ centres.T
    return np.maximum(lengths, 0.0, out=lengths)  # cancellation may leave a negative square
