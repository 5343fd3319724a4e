"""Noise intervals of released ratios: intervals of an exact mean from a noisy sum and count.

The target is the value of the same statistic without noise, given the public state of the round.
It is the mean of a cluster before a centre is shrunk, shortened to a radius or folded into the
box. So ``low <= centre <= high`` need not hold for a changed centre. Without noise
(``noise_std=0``) both ends are the target.

A number of records is at least 0. A noisy count that is not well above its noise is uninformative
as a divisor, so the interval of its ratio is the whole box.

**Selection.** A ratio is known because noise left its divisor large, and divisors that seldom pass
are too large when they do. So an interval holds its target in 95 % of those runs in which the ratio
is known. Its ends are those of a normal number that is cut off [LSST16]_.

References
----------
.. [F54] Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
   Society B 16(2), 1954, section 3.
.. [LSST16] Lee, Sun, Sun and Taylor, "Exact post-selection inference, with application to the
   lasso", Annals of Statistics 44(3), 2016, section 5.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.protocol.task import INTERVAL_95, Mechanism

BOX = (-1.0, 1.0)
"""Bounds of every record and so of every mean of records, in grid coordinates."""
KNOWN = 2.5
"""Deviations of its noise that a divisor must exceed, so that its ratio is known."""
_CUT_OFF = 5.0  # deviations above the limit: a divisor this large is as if it always passed
_STEPS = 8
_QUANTILES = {  # solutions at deviations above the limit, see `beyond_limit`
    **{0.31: 1.96, 1.38: 3.03, 1.5: 2.841, 1.6: 2.716, 1.75: 2.561, 2.0: 2.37, 2.25: 2.238},
    **{2.5: 2.145, 3.0: 2.037, 3.5: 1.989, 4.0: 1.969, _CUT_OFF: 1.96},
}
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
    """Return the 95 % noise interval of ``origin + sum / count``, cut to its possible values.

    Parameters
    ----------
    sums : ndarray of shape (n_groups, n_features)
        Released sums in grid coordinates; with `origin`, sums of differences to it.
    counts : ndarray of shape (n_groups,)
        Released counts, in records; may be zero or negative.
    sum_std, count_std : float or ndarray that broadcasts to `sums`, >= 0
        Standard deviation of the independent noise in each sum and in each count, in their units.
    mechanism : {"gaussian", "laplace", "none"}
        Gaussian: Fieller's interval [F54]_, which is exact. Laplace: the first-order interval
        around the ratio, whose coverage is about 95 % while the count is well above its noise.
    origin : float or ndarray that broadcasts to `sums`
        Public origin of the sums, in grid coordinates.
    box : (low, high)
        Bounds of the target.

    Returns
    -------
    low, high : ndarray of the shape of `sums`
        ``low <= high``; the whole box for a count that is not above its noise, the nearest end
        for an interval that is wholly outside the box.
    """
    divisors = counts[:, None]
    ends = (box[0] - origin, box[1] - origin)
    if mechanism == "gaussian":
        low, high = fieller(sums, divisors, np.square(sum_std), np.square(count_std), box=ends)
    else:
        # Fieller's set requires normal noise.
        informative = above_noise(divisors, INTERVAL_95[mechanism] * np.asarray(count_std))
        floored = np.where(informative, np.maximum(divisors, 1.0), 1.0)
        ratios = sums / floored
        spread = INTERVAL_95[mechanism] * np.hypot(sum_std, ratios * count_std) / floored
        low = np.where(informative, np.clip(ratios - spread, *ends), ends[0])
        high = np.where(informative, np.clip(ratios + spread, *ends), ends[1])
    return origin + low, origin + high


def size_interval(count_std: float, mechanism: Mechanism = "gaussian") -> float:
    """Return the half-width of the 95 % interval of a count from its noise's deviation."""
    return INTERVAL_95[mechanism] * count_std


def above_noise(counts: Floats, half_width: float | Floats) -> Flags:
    """Return True for each noisy number of records whose 95 % interval is above 0."""
    return np.asarray(counts > half_width)


def differences(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return the distance of each value to the mean of the others in its column, in [-1, 1].

    It is relative to the largest distance in the column, and 0 if it is within the 95 % noise of
    both.
    """
    if len(values) < 2:
        return np.zeros_like(values)
    others, half_width = len(values) - 1, (high - low) / 2
    gaps = values - (values.sum(axis=0) - values) / others
    squares = np.square(half_width)  # independent noises add in squares
    noise = np.sqrt(squares + (squares.sum(axis=0) - squares) / others**2)
    largest = np.abs(gaps).max(axis=0)
    relative: Floats = gaps / np.where(largest > 0, largest, 1)
    return np.where(np.abs(gaps) > noise, relative, 0.0)


def round_up(half_width: Floats, frac_bits: int) -> Floats:
    """Return half-widths in grid coordinates, rounded up to the grid of the state.

    The state itself is rounded to the nearest step, which is 0 for a small half-width.
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
    noise: tuple[float | Floats, float | Floats] | None = None,
    known: float = KNOWN,
) -> tuple[Floats, Floats]:
    """Return both ends of Fieller's 95 % set of a ratio of normal numbers [F54]_, cut to a box.

    All parameters broadcast to each other. If the denominator is not above its noise, the set is
    the whole box of possible ratios. If the set is wholly outside the box, both ends are the
    nearest end of the box.

    Parameters
    ----------
    var_numerator, var_denominator, covariance : float or ndarray
    noise : (variance, covariance), optional
        Those of the noise in the denominator, if the parameters above include sampling.
    known : float, > 1.96
        Deviations of its noise that the denominator must exceed.

    Notes
    -----
    The denominator is a number of records or a product of such numbers, so it is at least 0
    without its noise. Fieller's set ignores this: for a denominator well below 0 it is narrow.

    The error of ``numerator - r denominator`` goes with that of the denominator, which is above a
    limit. Given the part that does not, this error is normal and cut off at a known place
    [LSST16]_. That is the distance of the denominator from its limit, over the part of its error
    that goes with this one; :func:`beyond_limit` has the quantile.
    """
    arguments = numerator, denominator, var_numerator, var_denominator, covariance, *box
    top, below, var_top, var_below, both, left, right = (
        np.asarray(argument, dtype=np.float64) for argument in arguments
    )
    of_noise, together = (var_below, both) if noise is None else noise
    spread = np.sqrt(of_noise)
    above = below - known * spread

    def ends(z: float | Floats) -> tuple[Floats, Floats]:
        """Return both ends for a quantile of the normal law."""
        # {r : (top - r below)^2 <= z^2 (var_top - 2 r both + r^2 var_below)}, that is
        # {r : a r^2 - 2 b r + c <= 0}, an interval where a > 0
        z = z**2
        a, b = below**2 - z * var_below, top * below - z * both
        informative = (above > 0) & (a > 0)
        # b^2 - a c, without the terms that cancel: their rounding would exceed a small result
        discriminant = z * (var_top * below**2 + var_below * top**2 - 2 * both * top * below)
        discriminant += z**2 * (both**2 - var_top * var_below)
        root, a = np.sqrt(np.maximum(discriminant, 0.0)), np.where(informative, a, 1.0)
        return (
            np.where(informative, np.clip((b - root) / a, left, right), left),
            np.where(informative, np.clip((b + root) / a, left, right), right),
        )

    low, high = ends(INTERVAL_95["gaussian"])
    near = (above > 0) & (above < _CUT_OFF * spread)
    if not near.any():
        return low, high

    away = np.where(near, above / np.where(near, spread, 1.0), _CUT_OFF)
    most = beyond_limit(away)

    def farther(end: Floats, side: int) -> Floats:
        """Return an end moved out, where the error that would move it in was selected."""
        far, moved = ends(most)[side], np.zeros(())
        with np.errstate(invalid="ignore", divide="ignore"):  # an end may be infinite
            for _ in range(_STEPS):  # from outside, so that any number of steps is enough
                moved = together - far * of_noise
                deviation = np.sqrt(np.maximum(var_top - 2 * far * both + far**2 * var_below, 0.0))
                m = np.fmax(above * deviation / np.abs(moved), away)
                far = ends(np.minimum(beyond_limit(m), most))[side]
        outward = np.isnan(moved) | (moved < 0 if side else moved > 0)
        return np.where(near & outward, far, end)

    return farther(low, 0), farther(high, 1)


def beyond_limit(above: Floats) -> Floats:
    """Return the quantile of the far end of a normal number that is known above a limit only.

    `above` is its distance to the limit in deviations, above 0. The quantile q solves
    ``P(-q) = 0.025 P(above - q)``. It has no bound near the limit, so numbers that pass in fewer
    than 5 % of the runs are left out. So q is at most ``above + 1.65``, or 1.96 if that is less.
    """
    return np.asarray(np.interp(above, list(_QUANTILES), list(_QUANTILES.values())))
