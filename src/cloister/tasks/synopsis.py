"""What is done with released counts: make them a distribution, and cluster it.

Everything here is post-processing of public numbers, the same on every machine for the same seed.
"""

from __future__ import annotations

import numpy as np

from cloister.tasks.base import Floats


def project_to_simplex(counts: Floats, total: float) -> Floats:
    """Return the nearest non-negative counts that add up to a public total.

    Parameters
    ----------
    counts : ndarray of shape (n_cells,)
        Noisy, so some are negative.
    total : float, > 0

    Returns
    -------
    ndarray of shape (n_cells,)
        The Euclidean projection on ``{w >= 0, sum w = total}``.
    """
    descending = np.sort(counts)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, len(counts) + 1)
    threshold = excess[np.flatnonzero(descending > excess)[-1]]
    projected: Floats = np.maximum(counts - threshold, 0.0)
    return projected


def cluster_weighted(
    points: Floats, weights: Floats, n_clusters: int, *, public_seed: int, restarts: int = 8
) -> Floats:
    """Return centres of public weighted points: k-means with greedy seeding, best of `restarts`.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    weights : ndarray of shape (n_points,), >= 0
        At least one is positive.
    n_clusters : int, >= 1
        If fewer points have a weight, those points are repeated.
    public_seed : int
    restarts : int, >= 1

    Returns
    -------
    ndarray of shape (n_clusters, n_features)
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    used = weights > 0
    points, weights = points[used], weights[used]
    if len(points) <= n_clusters:
        return points[np.arange(n_clusters) % len(points)]
    model = KMeans(n_clusters, n_init=restarts, random_state=public_seed, copy_x=False)
    with threadpool_limits(1):  # sums in one order
        model.fit(points, sample_weight=weights)
    centres: Floats = model.cluster_centers_
    return centres
