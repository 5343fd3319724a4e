"""Correlations of numbers as noisy tables show them, and those of the records that are drawn.

Noise blurs the law, and values are uniform inside a bin, whatever the other column is. So numbers
that are drawn depend on each other less than those of the silos. Both correlations follow from the
release, so a comparison of them costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from cloister.core.arrays import Floats, Integers

_TERMS = 40  # of the series
_CORRELATIONS = np.linspace(-1.0, 1.0, 401)


def correlation_in(table: Floats, noise: float) -> tuple[float, float]:
    """Return the correlation of the columns of a noisy table, and the deviation of its noise.

    The deviation is that at a correlation of 0; noise in the margins can double it elsewhere. The
    cells of both columns are in order. Each has the mean of the normal distribution inside it
    as its score, so that the shape of a column has no influence. The mean product of scores of
    normal numbers with correlation r is a series in r, by Mehler's formula. The result is the r
    with the product in the table.
    """
    first, second = (np.maximum(table.sum(axis=axis), 1.0) for axis in (1, 0))
    (a, of_a), (b, of_b) = _scores(first), _scores(second)
    products, total = np.outer(a, b), max(float(table.sum()), 1.0)
    powers = _CORRELATIONS[:, None] ** np.arange(1, _TERMS + 1)
    value = np.interp((products * table).sum() / total, powers @ (of_a * of_b), _CORRELATIONS)
    spread = noise * np.sqrt((products**2).sum()) / total
    return float(value), float(spread / (of_a[0] * of_b[0]))  # the slope is least at 0


def _scores(counts: Floats) -> tuple[Floats, Floats]:
    """Return the mean of a normal number in cells of these sizes, and its Hermite coefficients."""
    shares = counts / counts.sum()
    below = np.clip(np.cumsum(shares)[:-1], 1e-9, 1 - 1e-9)
    ends = np.array([NormalDist().inv_cdf(share) for share in below.tolist()])
    # Orthonormal polynomials times the density, whose integrals over cells are differences.
    waves = [np.exp(-(ends**2) / 2) / np.sqrt(2 * np.pi)]
    for k in range(1, _TERMS):
        before = waves[-2] * np.sqrt(k - 1) if k > 1 else 0.0
        waves.append((ends * waves[-1] - before) / np.sqrt(k))
    cells = [-np.diff(wave, prepend=0.0, append=0.0) for wave in waves]
    scores = cells[0] / shares
    return scores, np.array([cell @ scores / np.sqrt(k + 1) for k, cell in enumerate(cells)])


def correlations_of(drawn: Integers, edges: Mapping[int, Floats]) -> dict[tuple[int, int], float]:
    """Return the correlation of each pair of columns whose values are uniform inside their bins.

    Parameters
    ----------
    drawn : ndarray of shape (n_features, rows)
        The level of each record in every column.
    edges : mapping of the index of a column to ndarray
        The edges of its bins, both ends included.
    """
    columns = sorted(edges)
    middles = [((ends := edges[j])[1:] + ends[:-1])[drawn[j]] / 2 for j in columns]
    inside = [float((np.diff(edges[j])[drawn[j]] ** 2).mean()) / 12 for j in columns]
    covariance = np.atleast_2d(np.cov(middles, ddof=0)) + np.diag(inside)
    deviations = np.sqrt(np.maximum(np.diag(covariance), np.finfo(np.float64).tiny))
    found = covariance / np.outer(deviations, deviations)
    return {
        (i, j): float(found[a, b])
        for a, i in enumerate(columns)
        for b, j in enumerate(columns)
        if i < j
    }
