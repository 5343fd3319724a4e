"""Merges and splits of noisy clusters: two close centres become one, and a wide cluster gets two.

All inputs are released or public, so this is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from cloister.core.arrays import Floats
from cloister.tasks.clustering.synopsis import squared_distances

_SPLIT = 2 / pi  # share of a direction's variance that two halves of a Gaussian explain
_PAYS = 0.7  # smallest gain of a split over the cost of the merge that permits it
_LEAST = 0.3  # smallest share of the mean squared distance that a split leaves


@dataclass(frozen=True)
class Noisy:
    """Clusters with their second moments, as estimated from noisy sums.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features)
    counts : ndarray of shape (n_clusters,), positive
    squares : ndarray of shape (n_clusters,)
        Mean squared distance of a record to its centre.
    axes : ndarray of shape (n_features, n_axes)
        Orthonormal columns.
    moments : ndarray of shape (n_clusters, n_axes, n_axes)
        Sums of products of the records' differences to their centre, along the axes.
    moment_noise : ndarray of shape (n_clusters,)
        Standard deviation of the noise in the diagonal of the moments.
    centre_noise : ndarray of shape (n_clusters,)
        Expected squared length of the noise of a centre.
    """

    centres: Floats
    counts: Floats
    squares: Floats
    axes: Floats
    moments: Floats
    moment_noise: Floats
    centre_noise: Floats


def exchanged(noisy: Noisy) -> tuple[Floats, Floats]:
    """Return centres and squares after all merges that pay for a split elsewhere.

    Each cluster is merged or split once at most.
    """
    centres, squares, counts = noisy.centres.copy(), noisy.squares.copy(), noisy.counts
    variances, vectors = np.linalg.eigh(noisy.moments)
    # The largest eigenvalue of the noise alone is near this edge.
    edge = 2 * noisy.moment_noise * sqrt(noisy.axes.shape[1] / 2)
    gains = _SPLIT * np.maximum(variances[:, -1] - edge, 0)
    costs = _merge_costs(noisy)
    free = np.ones(len(centres), dtype=bool)
    for split in np.argsort(-gains, kind="stable").tolist():
        if not gains[split]:
            break
        if not free[split]:
            continue
        free[split] = False
        allowed = np.where(free[:, None] & free, costs, np.inf)
        i, j = map(int, np.unravel_index(allowed.argmin(), allowed.shape))
        if gains[split] < _PAYS * allowed[i, j]:  # never if no pair is left
            break
        free[[i, j]] = False
        kept, moved = (i, j) if counts[i] >= counts[j] else (j, i)
        both = counts[i] + counts[j]
        merged = counts[i] * squares[i] + counts[j] * squares[j] + costs[i, j]
        centres[kept] = (counts[i] * centres[i] + counts[j] * centres[j]) / both
        squares[kept] = merged / both
        explained = gains[split] / max(counts[split], 1.0)
        step = sqrt(explained) * (noisy.axes @ vectors[split, :, -1])
        centres[moved] = np.clip(centres[split] + step, -1, 1)
        centres[split] = np.clip(centres[split] - step, -1, 1)
        squares[[split, moved]] = max(squares[split] - explained, _LEAST * squares[split])
    return centres, squares


def _merge_costs(noisy: Noisy) -> Floats:
    """Return the cost of merging each pair, without the part that noise explains."""
    apart = squared_distances(noisy.centres, noisy.centres)
    noise = noisy.centre_noise[:, None] + noisy.centre_noise
    apart -= np.minimum(noise, apart / 2)
    counts = noisy.counts
    costs: Floats = apart * counts[:, None] * counts / (counts[:, None] + counts)
    np.fill_diagonal(costs, np.inf)
    return costs
