"""Noise intervals of released ratios: what a noisy sum over a noisy count says of the exact one.

For a task with Gaussian sums (two calls, both on released values, so free)::

    low, high = ratio_interval(sums, sizes, sum_std=s, count_std=c, mechanism="gaussian",
                               origin=centres)   # (k, d), cut to the box [-1, 1]
    half_width = size_interval(c, "gaussian")    # of each noisy size, symmetric

The target is the value the same statistic would have without noise, given the public state it
was asked with: the mean of the cluster, before a centre is shrunk, shortened to a radius or
folded into the box. So ``low <= centre <= high`` need not hold for a centre that was. Without
noise (``noise_std=0``) both ends are the target.

References
----------
.. [F54] Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
   Society B 16(2), 1954, section 3.
"""

from __future__ import annotations

import numpy as np

from cloister.tasks.base import INTERVAL_95, Floats, Mechanism

BOX = (-1.0, 1.0)
"""Where every record lies, in grid coordinates, and so every mean of records."""
_WIDEST = 1e9  # steps of it fit 64 bits


def ratio_interval(
    sums: Floats,
    counts: Floats,
    *,
    sum_std: float | Floats,
    count_std: float | Floats,
    mechanism: Mechanism = "gaussian",
    origin: float | Floats = 0.0,
    box: tuple[float, float] = BOX,
) -> tuple[Floats, Floats]:
    """Return the 95 % noise interval of ``origin + sum / count``, cut to what is possible.

    Parameters
    ----------
    sums : ndarray of shape (n_clusters, n_features)
        Released sums, in grid coordinates (differences to `origin`, if that is given).
    counts : ndarray of shape (n_clusters,)
        Released counts, in records; may be zero or negative.
    sum_std, count_std : float or ndarray that broadcasts to `sums`, >= 0
        Standard deviation of the independent noise in each sum and in each count, in their units.
    mechanism : {"gaussian", "laplace", "none"}
        Gaussian: Fieller's interval [F54]_, which is exact. Laplace: the first-order interval
        around the ratio, whose coverage is about 95 % while the count is well above its noise.
    origin : float or ndarray that broadcasts to `sums`
        Public point the sums are measured from, in grid coordinates.
    box : (low, high)
        Where the target must lie.

    Returns
    -------
    low, high : ndarray of the shape of `sums`
        ``low <= high``. A set without an end is cut at the wall of the box; one of two pieces is
        filled between them, and so covers more than 95 %. A set wholly outside the box is the
        wall nearest to it.
    """
    divisors = counts[:, None]
    walls = (box[0] - origin, box[1] - origin)
    if mechanism == "gaussian":
        low, high = fieller(sums, divisors, np.square(sum_std), np.square(count_std), walls=walls)
    else:
        floored = np.maximum(divisors, np.maximum(1.0, count_std))
        ratios = sums / floored
        spread = INTERVAL_95[mechanism] * np.hypot(sum_std, ratios * count_std) / floored
        low, high = np.clip(ratios - spread, *walls), np.clip(ratios + spread, *walls)
    return origin + low, origin + high


def size_interval(count_std: float, mechanism: Mechanism = "gaussian") -> float:
    """Return the half-width of the 95 % interval of a count whose noise has this deviation."""
    return INTERVAL_95[mechanism] * count_std


def round_up(half_width: Floats, frac_bits: int) -> Floats:
    """Return half-widths in grid coordinates as the state may hold them.

    The state is rounded to the grid, where the nearest step to a small half-width is 0.
    """
    one = 1 << frac_bits
    rounded: Floats = np.ceil(np.minimum(half_width, _WIDEST) * one) / one
    return rounded


def fieller(
    numerator: Floats,
    denominator: Floats,
    var_numerator: float | Floats,
    var_denominator: float | Floats,
    covariance: float | Floats = 0.0,
    *,
    walls: tuple[float | Floats, float | Floats],
) -> tuple[Floats, Floats]:
    """Return Fieller's 95 % set of a ratio of normal numbers [F54]_, cut to what is possible.

    Parameters
    ----------
    numerator, denominator : ndarray
        Noisy; they broadcast to each other, as all other parameters do.
    var_numerator, var_denominator, covariance : float or ndarray
        Of their noise.
    walls : (low, high)
        Least and greatest possible ratio.

    Returns
    -------
    low, high : ndarray
        ``walls[0] <= low <= high <= walls[1]``: the hull of the part of the set between the
        walls. A set wholly outside them is the wall nearest to it, or, of two pieces, both walls.
    """
    given = numerator, denominator, var_numerator, var_denominator, covariance, *walls
    top, below, var_top, var_below, both, left, right = np.broadcast_arrays(
        *(np.asarray(part, dtype=np.float64) for part in given)
    )
    # {r : (top - r below)^2 <= z (var_top - 2 r both + r^2 var_below)}, that is
    # {r : a r^2 - 2 b r + c <= 0}: an interval if a > 0, else the outside of one or the whole line
    z = INTERVAL_95["gaussian"] ** 2
    a, b = below**2 - z * var_below, top * below - z * both
    # b^2 - a c, without the terms that cancel
    discriminant = z * (var_top * below**2 + var_below * top**2 - 2 * both * top * below)
    discriminant += z**2 * (both**2 - var_top * var_below)
    root = np.sqrt(np.maximum(discriminant, 0.0))
    safe = np.where(a == 0, 1.0, a)
    first, second = np.sort(((b - root) / safe, (b + root) / safe), axis=0)
    # outside of (first, second): which of the two pieces has something between the walls
    two_sided = (a < 0) & (discriminant >= 0)
    has_left, has_right = first >= left, second <= right
    low = np.where(two_sided & ~has_left & has_right, second, left)
    high = np.where(two_sided & ~has_right & has_left, first, right)
    bounded = a > 0
    return (
        np.clip(np.where(bounded, first, low), left, right),
        np.clip(np.where(bounded, second, high), left, right),
    )
