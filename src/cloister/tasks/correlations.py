"""Intervals of correlations of columns whose spread may be as small as the noise of its sum.

A correlation is rho = c / sqrt(v1 v2) for a sum of products c and sums of squares v1, v2, about the
means. If noise may double v1, an interval of first order is far too narrow. But with
w = v2 / (v1 + v2), two numbers are 0 that are linear in c, v1 and v2::

    2 sqrt(w (1 - w)) c - rho (w v1 + (1 - w) v2)
    w v1 - (1 - w) v2

An interval has each rho for which, with some w, both are within their normal noise. Their squared
deviations then add up to at most 1.96^2, the bound of a profile likelihood [VM88]_. For one w
these rho are Fieller's set of a ratio.

References
----------
.. [VM88] Venzon and Moolgavkar, "A method for computing profile-likelihood-based confidence
   intervals", Applied Statistics 37, 1988.
"""

from __future__ import annotations

from math import isqrt, sqrt

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import Estimate, Interval
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import BOX, KNOWN, fieller
from cloister.tasks.scores import known

_Z = INTERVAL_95["gaussian"]
_PLACES = 33  # values of w
_TOGETHER = 4096  # pairs, whose places fit in a few megabytes
_INSIDE = 0.999999  # a value on a scale that is infinite at 1
_LEAST = 1e-12  # variance of noise in records, below the rounding of a sum


def correlations_of(moments: Floats, variances: Floats) -> Estimate:
    """Return the correlations of each two columns with their 95 % noise intervals; shape (k,).

    The pairs are in the order of ``numpy.triu_indices(d, 1)``.

    Parameters
    ----------
    moments : ndarray of shape (d + 1, d + 1)
        Noisy sums of products of (x, 1), where x has d columns.
    variances : ndarray of the same shape
        Those of the independent noise of each sum.
    """
    sums, noise = _about_means(moments, np.maximum(variances, _LEAST))
    product, one, other = sums
    # A noisy square is 0 or less where nothing is known.
    value = product / np.sqrt(np.maximum(one, 1e-150) * np.maximum(other, 1e-150))
    parts = range(0, max(len(value), 1), _TOGETHER)
    at = [slice(first, first + _TOGETHER) for first in parts]
    found = [correlation_interval(sums[:, part], noise[..., part]) for part in at]
    low, high = (np.concatenate(ends) for ends in zip(*found, strict=True))
    return known(Estimate(np.clip(value, low, high), low, high), BOX)


def matrix_of(pairs: Floats) -> Floats:
    """Return the symmetric matrix of pairs of columns, with 1 on the diagonal."""
    d = (isqrt(8 * len(pairs) + 1) + 1) // 2
    i, j = np.triu_indices(d, 1)
    matrix = np.eye(d)
    matrix[i, j] = matrix[j, i] = pairs
    return matrix


def _about_means(moments: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Return sums of products and squares about the means, and covariances of their noise.

    Their shapes are (3, k) and (3, 3, k), as for :func:`correlation_interval`.
    """
    d = len(moments) - 1
    i, j = np.triu_indices(d, 1)
    # The sums behind each pair: its product, both squares, both sums and the count.
    at = (
        np.array([i, i, j, i, j, np.full_like(i, d)]),
        np.array([j, i, j, *[np.full_like(i, d)] * 3]),
    )
    product, square, other_square, first, other_first, n = moments[at]
    of_each = variances[at]
    # A count within its noise is uninformative, and a square of 0 leaves nothing known.
    counted = n > KNOWN * np.sqrt(of_each[5])
    n = np.where(counted, n, 1.0)
    x, y = first / n, other_first / n
    one, none = np.ones_like(x), np.zeros_like(x)
    slopes = np.array(
        [
            [one, none, none, -y, -x, x * y],
            [none, one, none, -2 * x, none, x**2],
            [none, none, one, none, -2 * y, y**2],
        ]
    )
    # The square of a noisy sum exceeds that of the exact one by the variance of its noise.
    about = (
        product - x * y * n,
        square - (x**2 * n - of_each[3] / n),
        other_square - (y**2 * n - of_each[4] / n),
    )
    return np.where(counted, about, 0.0), np.einsum("iak,jak,ak->ijk", slopes, slopes, of_each)


def correlation_interval(sums: Floats, noise: Floats) -> Interval:
    """Return both ends of the 95 % noise interval of correlations; the whole box if not known.

    Parameters
    ----------
    sums : ndarray of shape (3, k)
        Noisy c, v1 and v2 of k pairs.
    noise : ndarray of shape (3, 3, k)
        Covariances of their noise.
    """
    _, v1, v2 = sums
    of_total = noise[1:, 1:].sum(axis=(0, 1)), noise[2, 1:].sum(axis=0)
    w = np.linspace(*fieller(v2, v1 + v2, noise[2, 2], *of_total, box=(0.0, 1.0)), _PLACES)
    none = np.zeros_like(w)
    # Factors of c, v1 and v2.
    gap = np.stack([none, w, w - 1])
    parts = np.stack([2 * np.sqrt(w * (1 - w)), none, none]), np.stack([none, w, 1 - w])

    def together(one: Floats, other: Floats) -> Floats:
        return np.asarray(np.einsum("iwk,jwk,ijk->wk", one, other, noise))

    def value(one: Floats) -> Floats:
        return np.asarray(np.einsum("iwk,ik->wk", one, sums))

    of_gap = together(gap, gap)
    # Without the error of the gap, which is known if w is.
    top, below = (one - together(one, gap) / of_gap * gap for one in parts)
    left = 1 - value(gap) ** 2 / of_gap / _Z**2
    variances = together(top, top), together(below, below), together(top, below)
    low, high = fieller(
        value(top),
        value(below),
        *(np.maximum(left, 0.0) * one for one in variances),
        box=BOX,
        noise=variances[1:],
    )
    lowest = np.where(left > 0, low, np.inf).min(axis=0)
    highest = np.where(left > 0, high, -np.inf).max(axis=0)
    # A square that is below 0 beyond its noise leaves no place.
    is_any = lowest <= highest
    return np.where(is_any, lowest, BOX[0]), np.where(is_any, highest, BOX[1])


def with_sampling(value: Floats, low: Floats, high: Floats, n: float) -> Interval:
    """Return both ends with the error of a sample of n persons, too.

    It does not depend on the value on Fisher's scale. There the two errors add in squares on each
    side, as in [Z08]_ of :mod:`cloister.tasks.scores`.
    """
    inside = np.clip(value, -_INSIDE, _INSIDE)
    with np.errstate(divide="ignore"):  # an end may be 1
        at, *ends = np.arctanh([inside, low, high])
    below, above = (np.hypot(end - at, _Z / sqrt(max(n, 4.0) - 3)) for end in ends)
    return np.tanh(at - below), np.tanh(at + above)
