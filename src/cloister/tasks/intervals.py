"""Noise intervals of released ratios: what a noisy sum over a noisy count says of the exact one.

The target is the value the same statistic would have without noise, given the public state it
was asked with: the mean of the cluster, before a centre is shrunk, shortened to a radius or
folded into the box. So ``low <= centre <= high`` need not hold for a centre that was. Without
noise (``noise_std=0``) both ends are the target.

A number of records is at least 0, so a noisy one that is not above its noise says nothing of what
it divides: its interval is the whole box.

References
----------
.. [F54] Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
   Society B 16(2), 1954, section 3.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.protocol.task import INTERVAL_95, Mechanism

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
    sums : ndarray of shape (n_groups, n_features)
        Released sums, in grid coordinates (differences to `origin`, if that is given).
    counts : ndarray of shape (n_groups,)
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
        ``low <= high``; the whole box for a count that is not above its noise, the nearest end
        for a set wholly outside the box.
    """
    divisors = counts[:, None]
    ends = (box[0] - origin, box[1] - origin)
    if mechanism == "gaussian":
        low, high = fieller(sums, divisors, np.square(sum_std), np.square(count_std), box=ends)
    else:
        known = above_noise(divisors, INTERVAL_95[mechanism] * np.asarray(count_std))
        floored = np.where(known, np.maximum(divisors, 1.0), 1.0)
        ratios = sums / floored
        spread = INTERVAL_95[mechanism] * np.hypot(sum_std, ratios * count_std) / floored
        low = np.where(known, np.clip(ratios - spread, *ends), ends[0])
        high = np.where(known, np.clip(ratios + spread, *ends), ends[1])
    return origin + low, origin + high


def size_interval(count_std: float, mechanism: Mechanism = "gaussian") -> float:
    """Return the half-width of the 95 % interval of a count whose noise has this deviation."""
    return INTERVAL_95[mechanism] * count_std


def above_noise(counts: Floats, half_width: float | Floats) -> Flags:
    """Return where a noisy number of records stands out: its 95 % interval lies above 0."""
    return np.asarray(counts > half_width)


def differences(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return how far each value is from the mean of the others in its column, in [-1, 1].

    Relative to the largest in the column; 0 where the noise of both, at 95 %, could have made it.
    """
    if len(values) < 2:
        return np.zeros_like(values)
    others, half_width = len(values) - 1, (high - low) / 2
    gaps = values - (values.sum(axis=0) - values) / others
    squares = np.square(half_width)
    noise = np.sqrt(squares + (squares.sum(axis=0) - squares) / others**2)
    largest = np.abs(gaps).max(axis=0)
    found: Floats = gaps / np.where(largest > 0, largest, 1)
    return np.where(np.abs(gaps) > noise, found, 0.0)


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
    box: tuple[float | Floats, float | Floats],
) -> tuple[Floats, Floats]:
    """Return both ends of Fieller's 95 % set of a ratio of normal numbers [F54]_, cut to a box.

    All parameters broadcast to each other; the variances are of the noise. The set is the whole box
    of possible ratios where the denominator is not above its noise, and the nearest end where the
    set lies wholly outside.

    Notes
    -----
    The denominator is a number of records or a product of such, so it is at least 0 without its
    noise. The set itself does not know that: of a denominator well below 0 it would be narrow.
    """
    given = numerator, denominator, var_numerator, var_denominator, covariance, *box
    top, below, var_top, var_below, both, left, right = (
        np.asarray(part, dtype=np.float64) for part in given
    )
    # {r : (top - r below)^2 <= z (var_top - 2 r both + r^2 var_below)}, that is
    # {r : a r^2 - 2 b r + c <= 0}, an interval where a > 0
    z = INTERVAL_95["gaussian"] ** 2
    a, b = below**2 - z * var_below, top * below - z * both
    known = (below > 0) & (a > 0)
    # b^2 - a c, without the terms that cancel
    discriminant = z * (var_top * below**2 + var_below * top**2 - 2 * both * top * below)
    discriminant += z**2 * (both**2 - var_top * var_below)
    root, a = np.sqrt(np.maximum(discriminant, 0.0)), np.where(known, a, 1.0)
    return (
        np.where(known, np.clip((b - root) / a, left, right), left),
        np.where(known, np.clip((b + root) / a, left, right), right),
    )
