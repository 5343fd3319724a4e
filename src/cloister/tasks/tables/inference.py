"""Intervals and tests for noisy tables, which account for the noise.

Every function takes **raw** noisy counts, which may be below 0, and `s`, the standard deviation of
the independent Gaussian noise of each, in records. A noise interval is for the value of the same
records without noise. A population interval also treats the cells as independent Poisson numbers
(:mod:`cloister.tasks.population`). Counts that were cut at 0 or projected are for display only:
their noise no longer has mean 0, and a test of them is wrong.

References
----------
.. [F54] Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
   Society B 16(2), 1954, section 3.
.. [W27] Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22,
   1927.
.. [DSSC08] Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the l1-ball for
   learning in high dimensions", ICML 2008, figure 1.
.. [GLRV16] Gaboardi, Lim, Rogers and Vadhan, "Differentially private chi-squared hypothesis
   testing: goodness of fit and independence testing", ICML 2016: a test must include the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import Estimate, Interval
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import KNOWN, above_noise, fieller
from cloister.tasks.population import Bounds
from cloister.tasks.scores import Variances, share_of

_Z = INTERVAL_95["gaussian"]
_WALLS = (0.0, np.inf)
_ODDS, _RISKS = (  # the cells of 2 by 2 that are multiplied, in numerator and denominator
    np.array([[[int({i, j} in side) for j in range(4)] for i in range(4)] for side in pairs])
    for pairs in (([{0, 3}], [{1, 2}]), ([{0, 2}, {0, 3}], [{0, 2}, {1, 2}]))
)
_LEAST = 1e-6  # records of a level, so that none has a variance of 0
_CLEAR, _LEAST_SHARE = 5.0, 1e-3  # noises of a sum in its value; a share in a variance


@dataclass(frozen=True)
class Tested:
    """Statistic, degrees of freedom and p-value of a test; arrays of the same shape."""

    statistic: Floats
    df: Floats
    p: Floats


# Intervals ----------------------------------------------------------------------------------------


def count_interval(
    counts: Floats, s: float | Floats, axis: int | tuple[int, ...] | None = None
) -> Estimate:
    """Return noisy counts with both intervals, cut at 0; `s` broadcasts to them.

    The population interval is for the mean count in draws of as many records as the sum along an
    axis, or of all.
    """
    # It is all L >= 0 with (y - L)^2 <= z^2 (L (1 - L / N) + s^2): N times Wilson's interval if
    # s = 0, so that a count of 0 has an upper bound above 0.
    spread, square = (
        _Z * np.asarray(s),
        1 + _Z**2 / np.maximum(counts.sum(axis=axis, keepdims=True), 1.0),
    )
    middle = (counts + _Z**2 / 2) / square
    half_width = np.sqrt(np.maximum(middle**2 - (counts**2 - spread**2) / square, 0.0))
    ends = middle - half_width, middle + half_width
    # The count itself stays below 0 where the noise put it: cutting would bias sums of counts.
    estimate = Estimate(counts, counts - spread, counts + spread, population=ends)
    estimate = replace(estimate.mapped(lambda part: np.maximum(part, 0.0)), values=counts)
    return estimate.joined(replace(estimate, population=None))


def share_interval(
    counts: Floats, s: float | Floats, axis: int | tuple[int, ...] | None = -1
) -> Estimate:
    """Return the share of each cell in the sum along the last axis or axes; None takes all.

    The shares themselves are those of :func:`shown` counts, so that they sum to 1, except those
    that are not known. The intervals
    use the raw counts: Fieller's set [F54]_ and, for the population, Wilson's [W27]_ with noise,
    ``(a - p N)^2 <= z^2 (N p (1 - p) + s^2 (1 - 2 p + k p^2))`` for a table of k cells.
    """
    whole = counts.sum(axis=axis, keepdims=True)
    variance, cells = np.square(s), counts.size / whole.size
    estimate = share_of(counts, whole, variance, cells * variance)  # the noise of a cell is in both
    likely = shown(counts.reshape(whole.size, -1))
    shares = (likely / np.maximum(likely.sum(axis=1, keepdims=True), 1.0)).reshape(counts.shape)
    return replace(estimate, values=np.where(np.isnan(estimate.values), np.nan, shares))


def share_margin(margin: float, n_cells: int, n: float) -> float:
    """Return the forecast margin of a share of `n` records, the largest up to one half.

    Each of the `n_cells` counts of the share's sum has this margin. That of a share p has the
    square ``margin^2 ((1 - p)^2 + (n_cells - 1) p^2) / n^2``, largest at 0 or at one half.
    """
    return margin * max(1.0, sqrt(n_cells) / 2) / n


# Displayed counts ---------------------------------------------------------------------------------


def shown(counts: Floats) -> Floats:
    """Return the nearest counts of at least 0, along the last axis, that sum to the noisy sum.

    A sum below 1 counts as 1. This is the projection on the simplex of that size [DSSC08]_.
    """
    total = np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    falling = -np.sort(-counts, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - total) / np.arange(1, counts.shape[-1] + 1)
    last = (falling > excess).sum(axis=-1, keepdims=True) - 1
    return np.asarray(np.maximum(counts - np.take_along_axis(excess, last, axis=-1), 0.0))


def least_shown(s: float | Floats, minimum: float) -> Floats:
    """Return the count below which a cell is not displayed: the minimum, or twice its noise."""
    return np.asarray(np.maximum(minimum, 2 * np.asarray(s)))


# Tests --------------------------------------------------------------------------------------------


def independence(table: Floats, s: float | Floats) -> Tested:
    """Test whether rows and columns of a noisy table are independent.

    Parameters
    ----------
    table : ndarray of shape (..., n_rows, n_columns)
    s : float or ndarray of shape (...)

    Notes
    -----
    Let ``A = I - p 1'`` and ``B = I - q 1'`` for noisy margins p and q. If rows and columns are
    independent, the cells of ``A Y B'`` have the covariance
    ``N (diag p - pp') x (diag q - qq') + s^2 (A A') x (B B')``. The quadratic form of its inverse
    is chi-squared with ``(r - 1)(c - 1)`` degrees. Both terms are diagonal in the same directions.
    Without noise it is Pearson's statistic.
    """
    from scipy.special import chdtrc

    size, rows, columns = _margins(table)
    (left, a), (right, b) = map(_directions, (rows, columns))
    gaps = left @ table @ np.swapaxes(right, -1, -2)
    # Without the noise term, noise would be taken for dependence: a classical test of noisy counts
    # rejects independence far too often (docs/proofs/tables.md).
    variances = _scalar(size) + _scalar(s) ** 2 * a[..., :, None] * b[..., None, :]
    statistic = np.asarray((gaps**2 / variances).sum(axis=(-2, -1)))
    df = float((table.shape[-2] - 1) * (table.shape[-1] - 1))
    return Tested(statistic, np.full(statistic.shape, df), np.asarray(chdtrc(df, statistic)))


def trend(table: Floats, s: float | Floats) -> Tested:
    """Test for a trend between rows and columns, whose levels are ordered.

    Levels have the scores 0, 1, 2, ... The statistic is a standard normal number if rows and
    columns are independent. It is positive if higher rows go with higher columns. Without noise it
    is ``sqrt(n - 1)`` times the correlation of the scores, the linear-by-linear test.
    """
    size, *margins = _margins(table)
    scores = [np.arange(n, dtype=np.float64) for n in table.shape[-2:]]
    a, b = (
        score - (part * score).sum(axis=-1, keepdims=True)
        for part, score in zip(margins, scores, strict=True)
    )
    sampled = (margins[0] * a**2).sum(axis=-1) * (margins[1] * b**2).sum(axis=-1)
    sampled = sampled * size**2 / np.maximum(size - 1, 1.0)
    variance = sampled + np.square(s) * (a**2).sum(axis=-1) * (b**2).sum(axis=-1)
    return _normal(np.einsum("...i,...ij,...j->...", a, table, b), variance)


def odds_ratio(
    table: Floats, s: float | Floats, sampled: float = 1.0, together: float | Floats = 0.0
) -> tuple[Estimate, Tested]:
    """Return ``(a d) / (b c)`` of noisy tables ``[[a, b], [c, d]]``, and the test that it is 1.

    Parameters
    ----------
    s : float or ndarray that broadcasts to the table
        Deviation of the noise.
    sampled : {1, 0}
        1 if cells are Poisson numbers, 0 if they vary by noise alone.
    together : float or ndarray of shape (..., 2)
        Covariance of the noise of both cells of each row.

    Returns
    -------
    Estimate and Tested, without the last two axes
        An infinite value or upper end means that there is no upper bound. A value is not a number
        if the noise interval holds all ratios.
    """
    first, second = np.moveaxis(np.broadcast_to(together, table.shape[:-1]), -1, 0)
    products = np.moveaxis(table.prod(axis=-1), -1, 0)
    shared = products[0] * second + products[1] * first - first * second
    return _of_cells(_ODDS, table, s, sampled, _WALLS, shared)


def relative_risk(
    table: Floats, s: float | Floats, walls: Bounds = _WALLS
) -> tuple[Estimate, Tested]:
    """Return ``a / (a + b)`` over ``c / (c + d)`` of noisy tables ``[[a, b], [c, d]]``.

    Results are as in :func:`odds_ratio`, cut to bounds. The first column counts events, and each
    row is a group.
    """
    return _of_cells(_RISKS, table, s, 1.0, walls)


def ratio_of_pairs(
    forms: Floats,
    cells: Floats,
    noise: Floats,
    both: Floats,
    *,
    walls: Bounds,
    shared: Floats | float = 0.0,
) -> tuple[Estimate, Tested]:
    """Return a ratio of sums of products of two different cells, and the test that it is 1.

    Products of independent noisy cells are unbiased and have a known variance. So the interval is
    Fieller's [F54]_, also where cells are no larger than their noise.

    Parameters
    ----------
    forms : ndarray of shape (2, n, n)
        Numerator and denominator: symmetric, and 1 where a product of two cells counts.
    cells, noise, both : ndarray of shape (..., n)
        Noisy numbers, the variances of their noise, and those of noise and sampling together.
    shared : ndarray of shape (...) or float
        Covariance of both sums where noise of cells is not independent.
    """
    slopes = np.einsum("fij,...j->f...i", forms, cells)
    top, below = np.einsum("f...i,...i->f...", slopes, cells) / 2
    pairs = forms[[0, 1, 0]] * forms[[0, 1, 1]]

    def variances(v: Floats) -> Variances:
        """Return unbiased variances of both sums and their covariance.

        A variance is at least the one that cells of 0 would have.
        """
        # Subtracted, as the squared noisy cells in the first term are too large by their variance.
        least = np.einsum("kij,...i,...j->k...", pairs, v, v, optimize=True) / 2
        found = (slopes[[0, 1, 0]] * slopes[[0, 1, 1]] * v).sum(axis=-1) - least
        return np.maximum(found[0], least[0]), np.maximum(found[1], least[1]), found[2] + shared

    total = variances(both)
    own = variances(noise)
    low, high = _half_line(top, below, own, own, walls)
    positive = below > 0
    value = np.where(positive, np.clip(top / np.where(positive, below, 1.0), *walls), walls[1])
    known = (low > walls[0]) | (high < walls[1])
    estimate = Estimate(np.where(known, value, np.nan), low, high)
    found = replace(estimate, population=_half_line(top, below, total, own, walls)).joined(estimate)
    return found, _normal(top - below, total[0] + total[1] - 2 * np.asarray(total[2]))


def change(
    recent: Floats, before: Floats, noises: tuple[float, float], correlation: float
) -> Tested:
    """Test whether the shares of two disjoint sets of records are equal.

    Parameters
    ----------
    recent, before : ndarray of one shape
        Raw noisy counts of the two sets.
    noises : (float, float)
        Standard deviations of the noise of their counts.
    correlation : float in [-1, 1]
        Of the noises of a cell in both; they are independent between cells.

    Returns
    -------
    Tested
        Wald's statistic, with the errors of sampling and of noise. It is not known if one of the
        two has too few records for its noise.
    """
    from scipy.special import chdtrc

    a, b, k = recent.ravel(), before.ravel(), recent.size
    n, m, (s, r) = float(a.sum()), float(b.sum()), noises
    df = np.array(k - 1.0)
    if min(n / s, m / r) < _CLEAR * np.sqrt(k):
        return Tested(np.array(np.nan), df, np.array(np.nan))
    shares = np.maximum((a + b) / (n + m), _LEAST_SHARE)
    shares /= shares.sum()
    centring = np.eye(k) - shares[:, None]
    noise = (s / n) ** 2 + (r / m) ** 2 - 2 * correlation * (s / n) * (r / m)
    variance = (1 / n + 1 / m) * (np.diag(shares) - np.outer(shares, shares))
    variance += noise * centring @ centring.T
    # The differences add up to 0, so that the last one follows from the others.
    difference = (a / n - b / m)[:-1]
    statistic = np.asarray(difference @ np.linalg.solve(variance[:-1, :-1], difference))
    return Tested(statistic, df, np.asarray(chdtrc(df, statistic)))


def fits(test: str, shape: Sequence[int]) -> bool:
    """Return True if the test of this name fits a table of this shape."""
    return tuple(shape) == (2, 2) if test in RATIOS else test in _TESTS and len(shape) == 2


def outcome(test: str, table: Floats, s: float) -> dict[str, Floats]:
    """Return a test of noisy counts by the names of results, and the value of a ratio.

    A ratio compares the last row to the first, with the last column as the event.
    """
    parts: dict[str, Floats] = {}
    if test in RATIOS:
        # Reversed: the functions expect the event in the first column, the reference in the last
        # row.
        value, found = RATIOS[test](table[::-1, ::-1], s)
        parts = value.named(test)
    else:
        found = _TESTS[test](table, s)
    return parts | {f"{test}_{name}": np.atleast_1d(part) for name, part in vars(found).items()}


RATIOS: Mapping[str, Callable[[Floats, float], tuple[Estimate, Tested]]] = {
    "odds_ratio": odds_ratio,
    "relative_risk": relative_risk,
}
_TESTS = {"chi2": independence, "trend": trend}


def _margins(table: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the size of noisy tables and the shares of rows and columns, all above 0."""
    size = np.maximum(table.sum(axis=(-2, -1)), 1.0)
    margins = (np.maximum(shown(table.sum(axis=axis)), _LEAST) for axis in (-1, -2))
    rows, columns = (margin / margin.sum(axis=-1, keepdims=True) for margin in margins)
    return size, rows, columns


def _directions(shares: Floats) -> tuple[Floats, Floats]:
    """Return combinations of levels of mean 0 and variance 1 under `shares`, and noise variances.

    The combinations have shape (..., n - 1, n). Noise of variance 1 in each level has the second
    array as its variances along them, and no covariances.
    """
    n = shares.shape[-1]
    centred = (np.eye(n) - shares[..., :, None]) / np.sqrt(shares)[..., :, None]
    _, lengths, directions = np.linalg.svd(centred)  # the last direction is that of `shares`
    lengths = lengths[..., : n - 1]
    return lengths[..., None] * directions[..., : n - 1, :], lengths**2


def _scalar(value: float | Floats) -> Floats:
    return np.asarray(value)[..., None, None]


def _of_cells(
    forms: Floats,
    table: Floats,
    s: float | Floats,
    sampled: float,
    walls: Bounds,
    shared: Floats | float = 0.0,
) -> tuple[Estimate, Tested]:
    noise = np.square(s)
    # One more than was counted: a sample that is low by chance would underestimate its variance.
    both = np.maximum(table + 1, 0.0) * sampled + noise
    flat = (part.reshape(*part.shape[:-2], 4) for part in np.broadcast_arrays(table, noise, both))
    return ratio_of_pairs(forms, *flat, walls=walls, shared=shared)


def _half_line(
    top: Floats, below: Floats, variances: Variances, noise: Variances, walls: Bounds
) -> Interval:
    """Return the ends of Fieller's set between two bounds, from all variances and the noise's."""
    # Where the denominator is within its noise, the set of the inverse may still give a lower
    # bound.
    var_top, var_below, covariance = variances
    low, high = fieller(top, below, var_top, var_below, covariance, box=walls, noise=noise[1:])
    box = 1 / walls[1], 1 / walls[0] if walls[0] > 0 else np.inf
    turned = noise[0], noise[2]
    _, last = fieller(below, top, var_below, var_top, covariance, box=box, noise=turned)
    limits = KNOWN * np.sqrt(noise[1]), _Z * np.sqrt(var_below)
    unbounded = ~above_noise(below, np.maximum(*limits))
    better = unbounded & (last > box[0]) & (last < box[1])
    return np.where(better, 1 / np.where(better, last, 1.0), low), high


def _normal(value: Floats, variance: Floats) -> Tested:
    """Return the two-sided test of a normal number with mean 0."""
    from scipy.special import ndtr

    # The floor keeps the statistic finite, and 0 for a value of 0, where there is no variance.
    statistic = np.asarray(value / np.sqrt(np.maximum(variance, 1e-12)))
    return Tested(statistic, np.ones(statistic.shape), np.asarray(2 * ndtr(-np.abs(statistic))))
