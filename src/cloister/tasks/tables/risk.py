"""Measures of a scorecard from noisy tables: evidence, information, separation, fairness.

Every function takes **raw** noisy counts, which may be below 0, and `s`, the standard deviation of
the independent noise of each. A noise interval is for the value of the same records without noise.
A population interval also treats cells as independent Poisson numbers, whose variance is their
size.

**Bias.** Information values, stability indices and Kolmogorov-Smirnov distances are convex, so
noise and sampling increase them on average. The mean of a quadratic form of the errors is
subtracted. The noise's mean is subtracted from the value and its noise interval, and the mean of
noise and sampling from the population interval. Such a number varies like chi-squared near 0 and
like a normal number far from it. So an interval holds all values `t` within 1.96 deviations of the
estimate, with the variance that the estimate would have at `t` [W27]_.

**Not known.** A logarithm of a share needs a count well above its noise. Without one the number is
not known. Bins are not joined, since the divergence of fewer bins is another number.

References
----------
.. [W27] Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22,
   1927: an interval by the variance at the tested value.
.. [S06] Siddiqi, "Credit Risk Scorecards", Wiley 2006: weight of evidence, information value,
   population stability index.
.. [HPS16] Hardt, Price and Srebro, "Equality of opportunity in supervised learning", NIPS 2016.
.. [ZD08] Zou and Donner, "Construction of confidence limits about effect measures", Statistics in
   Medicine 27, 2008: limits of a difference from those of its parts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.core.display import Estimate, Interval
from cloister.core.randomness import public_generator
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import KNOWN, above_noise
from cloister.tasks.scores import ratio, share_of
from cloister.tasks.tables.inference import ratio_of_pairs, relative_risk

_Z = INTERVAL_95["gaussian"]
_CLEAR = 5.0  # deviations of the noise that both columns must exceed for a distance of them
_LEAST = 1.2  # deviations of the noise, of a count whose logarithm is known
_HALF = 0.5  # records: a noisy count below it is one of none
_DRAWS, _STEPS = 1000, 8


def _unknown(low: float, high: float) -> Estimate:
    """Return a number that is not known; its interval holds all possible values."""
    value, *ends = (np.full(1, end) for end in (np.nan, low, high))
    return Estimate(value, *ends, population=(ends[0], ends[1]))


def clear(counts: Floats, s: float) -> Flags:
    """Return True for each noisy count that is well above its noise and above half a record."""
    # Just above the noise, the interval of a logarithm would have an end far away.
    return above_noise(counts, max(KNOWN * s, _HALF))


# Ratios of shares ---------------------------------------------------------------------------------


def weights_of_evidence(table: Floats, s: float) -> Estimate:
    """Return ``ln`` of a bin's share of records without the event over its share with it [S06]_.

    Parameters
    ----------
    table : ndarray of shape (n_bins, 2)
        Counts without the event, and with it.

    Returns
    -------
    Estimate of shape (n_bins,)
        A value is not a number where a count is not well above its noise. An infinite end means
        that there is no bound on this side.

    Notes
    -----
    Limits are those of a difference of logarithms [ZD08]_. Those of the two shares are Fieller's,
    and Wilson's for the population. Lower ends of shares are those of their inverse, whose divisor
    is the count that must be above its noise.
    """
    columns = table.T[::-1]  # the difference is to the first
    wholes = columns.sum(axis=1, keepdims=True)
    n, whole = np.maximum(wholes, 1.0), len(table) * s**2
    shares = share_of(columns, wholes, s**2, whole)
    inverse = ratio(wholes, columns, (whole, s**2, s**2), (-n, 0.0, -n / 2), (1.0, np.inf))
    # A logarithm has no end at a count of 0. A smaller one is known in 10 % of the runs at most.
    least = np.where(clear(columns, s), _LEAST * s / n, 0.0)
    low, wide = (1 / end for end in (inverse.high, (inverse.population or (0, inverse.high))[1]))
    ends = shares.population or (shares.low, shares.high)
    shares = replace(
        shares,
        low=np.maximum(np.minimum(low, shares.low), least),
        population=(np.maximum(np.minimum(wide, ends[0]), least), ends[1]),
    )
    with np.errstate(divide="ignore"):
        logs = shares.mapped(np.log)
    values = np.where(np.isfinite(logs.values), logs.values, logs.high)
    found = _to_first(replace(logs, values=values), np.inf)[0]
    return replace(found, values=np.where(clear(table, s).all(axis=1), found.values, np.nan))


def compared(counts: Floats, cut: int, s: float) -> dict[str, Estimate]:
    """Return rates of groups, and their differences and ratios to the first [HPS16]_.

    Parameters
    ----------
    counts : ndarray of shape (n_groups, n_decisions)
    cut : int
        The first decision that selects.
    """
    selected, totals = counts[:, cut:].sum(axis=1), counts.sum(axis=1)
    noise = s**2 * np.array([counts.shape[1] - cut, cut])
    rates = share_of(selected, totals, noise[0], noise.sum())
    sides = np.column_stack([selected, totals - selected])
    pairs = np.stack([sides, np.broadcast_to(sides[0], sides.shape)], axis=1)[1:]
    ratios, _ = relative_risk(pairs, np.sqrt(noise))
    return {"": rates, "_difference": _to_first(rates, 1.0), "_ratio": ratios}


def _to_first(numbers: Estimate, most: float) -> Estimate:
    """Return differences to the first number, whose error is independent [ZD08]_.

    One that is not known has the ends ``-most`` and `most`.
    """
    value = numbers.values
    gap = value[1:] - value[0]

    def ends(low: Floats, high: Floats) -> Interval:
        below, above = value - low, high - value
        first, last = gap - np.hypot(below[1:], above[0]), gap + np.hypot(above[1:], below[0])
        return np.where(np.isnan(first), -most, first), np.where(np.isnan(last), most, last)

    narrow = numbers.low, numbers.high
    return Estimate(gap, *ends(*narrow), population=ends(*(numbers.population or narrow)))


# Divergences --------------------------------------------------------------------------------------


def divergence(table: Floats, s: float) -> Estimate:
    """Return ``sum of (p - q) ln(p / q)`` of both columns.

    It is the information value of bins if the columns are records without the event and with it.
    It is the population stability index if they are two populations [S06]_. It is not known, with
    an interval of all possible values, if a count is not well above its noise. Without records in
    a cell it is infinite.
    """
    if not clear(table, s).all():
        return _unknown(0.0, np.inf)
    noise = np.full(table.shape, s**2)
    value, gradient, curvature = _jeffreys(table)

    def around(variances: Floats) -> Estimate:
        spread = variances.T.ravel()
        turned = curvature * spread
        linear, least = float(gradient**2 @ spread), float((turned * turned.T).sum()) / 2
        # H is the curvature and V the variances: the bias is tr(HV)/2, and the variance at 0 is
        # tr(HVHV)/2, as of a quadratic form of normal errors.
        found = _convex(value, turned.trace() / 2, linear, least)
        # The quadratic is too flat below, where counts rise. Above, where they fall, it is wrong,
        # and used only where there is no way up.
        low, high = (_along(table, variances, sign) for sign in (-1, 1))
        upper = np.where(high > value, high, found.high)
        return replace(found, low=np.minimum(found.low, low), high=upper)

    narrow, wide = around(noise), around(table + noise)
    found = replace(narrow, population=(wide.low, wide.high))
    return found.mapped(lambda part: np.maximum(part, 0.0))


def _along(cells: Floats, variances: Floats, sign: int) -> float:
    """Return the divergence of counts 1.96 deviations away, up or down the gradient by `sign`.

    The way is in short steps, since the gradient of small counts changes with them.
    """
    for _ in range(_STEPS):
        _, gradient, _ = _jeffreys(cells)
        slopes = gradient.reshape(2, -1).T
        deviation = float(np.sqrt((slopes**2 * variances).sum()))
        if deviation == 0:
            break
        # At least one record, where the logarithms are finite.
        cells = np.maximum(cells + sign * _Z / _STEPS * variances * slopes / deviation, 1.0)
    return _jeffreys(cells)[0]


def _jeffreys(cells: Floats) -> tuple[float, Floats, Floats]:
    """Return the divergence of two columns of counts, its gradient and its second derivatives.

    Derivatives are with respect to the counts, those of the first column before the second.
    """
    sizes, n = cells.sum(axis=0), len(cells)
    p, q = shares = (cells / sizes).T
    slopes = np.log(p / q) + 1 - q / p, np.log(q / p) + 1 - p / q
    # Derivatives of shares by counts, and the term that the curvature of shares adds.
    jacobian, share_term = np.zeros((2, 2 * n, 2 * n))
    for k, (share, slope) in enumerate(zip(shares, slopes, strict=True)):
        at, mean = slice(k * n, (k + 1) * n), share @ slope
        jacobian[at, at] = (np.eye(n) - share[:, None]) / sizes[k]
        share_term[at, at] = (2 * mean - slope[:, None] - slope) / sizes[k] ** 2
    mixed = -np.diag(1 / p + 1 / q)
    hessian = np.block([[np.diag(1 / p + q / p**2), mixed], [mixed, np.diag(1 / q + p / q**2)]])
    value = float((p - q) @ np.log(p / q))
    return value, np.concatenate(slopes) @ jacobian, jacobian.T @ hessian @ jacobian + share_term


def _convex(value: float, bias: float, linear: float, least: float) -> Estimate:
    """Return a convex number without its bias, and the interval that its variance allows.

    Parameters
    ----------
    bias : float
        Mean contribution of the errors to `value`.
    linear, least : float
        Variance by the gradient, which is proportional to the number, and variance at 0.
    """
    # All t with (near - t)^2 <= z^2 (slope t + least), solved for t. An interval by the variance at
    # the estimate would be far too wide near 0.
    near = value - bias
    slope = linear / value if value > 0 else 0.0
    middle = near + _Z**2 * slope / 2
    reach = _Z * np.sqrt(max(slope * near + (_Z * slope) ** 2 / 4 + least, 0.0))
    return Estimate(*(np.maximum([end], 0.0) for end in (near, middle - reach, middle + reach)))


# Separation by an ordered score -------------------------------------------------------------------


def below(table: Floats, s: float) -> Estimate:
    """Return the share of each column below each edge; shape (n_bins + 1, n_columns)."""
    n = len(table)
    sums = np.concatenate([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
    cells = np.arange(n + 1.0)[:, None]
    shares = share_of(sums, sums[-1], cells * s**2, n * s**2)
    # A distribution function never decreases; noise may.
    shares = replace(shares, values=np.fmax.accumulate(shares.values, axis=0))
    outer = (cells == 0) | (cells == n)  # shares of 0 and 1, known without noise
    return shares.mapped(lambda part: np.where(outer, cells / n, part))


def gain(table: Floats, s: float, rising: bool) -> tuple[Estimate, Floats]:
    """Return the share of events in the riskiest 0, 1, 2, ... bins, and their share of records.

    `rising` is True if higher bins are riskier. Both have shape (n_bins + 1,).
    """
    riskiest = table[::-1] if rising else table
    reach = below(riskiest.sum(axis=1, keepdims=True), s).values[:, 0]
    return below(riskiest, s).mapped(lambda part: part[:, 1]), reach


def kolmogorov(table: Floats, s: float) -> Estimate:
    """Return the largest distance of the columns' distributions at an edge; shape (1,).

    Its square is reduced by its bias, from public normal draws of the errors around the released
    distances. The lower end is also reduced by the mean of the draws at distance 0. This allows
    for several edges with nearly equal distances, of which noise chose the largest.
    """
    n, sizes = len(table), table.sum(axis=0)
    if (sizes <= _CLEAR * s * np.sqrt(n)).any():
        return _unknown(0.0, 1.0)
    shares = np.cumsum(table, axis=0)[:-1] / sizes
    gaps = shares[:, 0] - shares[:, 1]
    steps = (np.tri(n)[:-1, :, None] - shares[:, None]) / sizes * (1.0, -1.0)  # edge, bin, column
    # A public seed: all parties compute the same interval, and the draws hide nothing.
    draws = public_generator(0, "distances").normal(size=(_DRAWS, n, 2))
    value, at = float((gaps**2).max()), int(np.abs(gaps).argmax())

    def around(variances: Floats) -> Estimate:
        errors = np.einsum("dbk,ebk->de", draws * np.sqrt(variances), steps, optimize=True)
        bias = float(((gaps + errors) ** 2).max(axis=1).mean()) - value
        variance = float((steps[at] ** 2 * variances).sum())
        # At distance 0 the maximum is not normal, so its spread comes from a quantile.
        at_zero = (errors**2).max(axis=1)
        average = float(at_zero.mean())
        least = (float(np.quantile(at_zero, 0.95)) - average) / _Z
        found, low = (
            _convex(value, b, 4 * value * variance, least**2) for b in (bias, bias + average)
        )
        return replace(found, low=np.minimum(low.low, found.values)).mapped(np.sqrt)

    noise = np.full(table.shape, s**2)
    narrow, wide = around(noise), around(np.maximum(table, 0.0) + noise)
    found = replace(narrow, population=(wide.low, wide.high))
    return found.mapped(lambda part: np.minimum(part, 1.0))


def gini(table: Floats, s: float) -> Estimate:
    """Return the Gini coefficient of the bins: two times the area under the curve, less 1.

    It is positive if records with the event are in higher bins. Pairs in the same bin count 0.
    """
    n = len(table)
    if (table.sum(axis=0) <= 0).any():
        return _unknown(-1.0, 1.0)
    # Numerator and denominator are bilinear in independent noisy columns, so both are unbiased.
    order, every = np.tri(n, k=-1) - np.tri(n, k=-1).T, np.ones((n, n))
    forms = [np.kron([[0, 0], [1, 0]], part) for part in (order, every)]
    cells, noise = table.T.ravel(), np.full(2 * n, s**2)
    pairs = np.array([part + part.T for part in forms])
    found, _ = ratio_of_pairs(
        pairs, cells, noise, np.maximum(cells, 0.0) + noise, walls=(-1.0, 1.0)
    )
    return found.mapped(np.atleast_1d)
