"""Measures of a classifier or regressor from noisy counts and sums, with intervals.

Every function here computes on released values and the public variance of their noise.
`probability` is the prediction for each score bin. A predicted class is compared with all others.

Most measures are ratios of two noisy numbers with known variances and covariance, so Fieller's set
is their interval. If the numerator or the denominator is not linear in the counts, its variance is
that of the linear part (the delta method). Counts are not cut at zero first, because sums of noisy
counts are unbiased and sums of cut counts are not. Only the measure itself is cut to its range.

**Sampling.** For a population interval, the count of each cell is an independent Poisson number of
its released size. A measure's sampling variance is therefore the variance of its linear part, with
counts in place of the variance of the noise. For the area under the curve this is the variance of
DeLong et al. [DDC88]_. A share of a whole has the binomial variance at the tested share (Wilson's
interval [W27]_).

References
----------
.. [DDC88] DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or more correlated
   receiver operating characteristic curves", Biometrics 44, 1988, section 3.
.. [W27] Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22,
   1927.
.. [HM82] Hanley and McNeil, "The meaning and use of the area under a receiver operating
   characteristic (ROC) curve", Radiology 143, 1982: the area as a share of pairs.
.. [C60] Cohen, "A coefficient of agreement for nominal scales", 1960.
.. [Z08] Zou and Donner, "Construction of confidence limits about effect measures", Statistics in
   Medicine 27, 2008: limits of a sum from the limits of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.display import Estimate, Interval, around
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import BOX, fieller
from cloister.tasks.population import Bounds, sampled

STRETCH = 4.0
"""Log-odds at the middle of each half of the score axis."""
LEAST_PROBABILITY = 1e-3
"""Log-loss uses probabilities clipped to ``[0.001, 0.999]``."""
GROUPS = 10
"""Largest number of rows of a calibration table."""
_TINY = 1e-300  # a divisor or an argument of the logarithm is never 0
_BLUR = 0.2  # error of the area by n_bins bins, times n_bins, where its scores are in few of them
_UNSEEN = 1.2  # deviation of the area's error by the bins, over blur / n_bins, of linear densities
_NOISE = (
    3.0  # variance of the area's noise, over n_bins (sigma / n)**2, one record in four positive
)
_LOG_LOSS, _BRIER = 1.2, 0.4  # deviations of both by the bins, times n_bins**2; measured
_BINS = (12, 256)  # minimum and maximum


Variances = tuple[Floats | float, Floats | float, Floats | float]
"""Variances of a numerator and of a denominator, and their covariance."""


def number_of_bins(noise_over_n: float) -> int:
    """Return the number of score bins for a release, even and in [12, 256].

    It is a function of the plan. The bins blur the area under the curve by at most about
    ``0.2 / bins``, and each bin adds noise. `noise_over_n` is the noise multiplier of the budget
    over the nominal number of records. The number minimises squared blur plus variance.
    """
    balanced: float = (2 * _BLUR**2 / (_NOISE * noise_over_n**2)) ** (1 / 3)
    return int(min(max(2 * ceil(balanced / 2), _BINS[0]), _BINS[1]))


def log_odds_to_unit(log_odds: Floats) -> Floats:
    """Map log-odds to the score axis ``[0, 1]``; even odds are at 0.5.

    The whole line is mapped, so extreme predictions keep their order.
    """
    return 0.5 + 0.5 * log_odds / (STRETCH + np.abs(log_odds))


def unit_to_probability(unit: Floats) -> Floats:
    """Return the probability at a point of the score axis, within ``[0.001, 0.999]``."""
    centred = 2 * unit - 1
    with np.errstate(divide="ignore"):  # the ends of the axis have infinite log-odds
        log_odds = STRETCH * centred / (1 - np.abs(centred))
    limit = np.log(1 / LEAST_PROBABILITY - 1)
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -limit, limit))))


def probability_bins(chosen: Floats, rest: Floats, n_bins: int) -> Integers:
    """Return the score bin of each record from the probability of a class and of the rest.

    Even odds are in the lower half: a class is predicted only if it is likelier than the rest.
    """
    # A model of another author may return NaN.
    pair = [np.clip(np.nan_to_num(part, nan=0.5), _TINY, 1.0) for part in (chosen, rest)]
    return unit_bins(log_odds_to_unit(np.log(pair[0]) - np.log(pair[1])), n_bins)


def unit_bins(unit: Floats, n_bins: int) -> Integers:
    """Return the bin of each point in ``[0, 1]``; a point between two bins is in the lower one."""
    return np.asarray(np.clip(np.ceil(unit * n_bins) - 1, 0, n_bins - 1).astype(np.int64))


# Ratios -------------------------------------------------------------------------------------------


def ratio(
    numerator: Floats,
    denominator: Floats,
    noise: Variances,
    sampling: Variances | None = None,
    box: Bounds = (0.0, 1.0),
) -> Estimate:
    """Return a ratio of noisy numbers with its 95 % interval, cut to its possible values.

    A value whose interval is the whole box is not known. The interval is that of
    :func:`~cloister.tasks.intervals.fieller`. With the variances of `sampling` the estimate has a
    population interval.
    """
    value = np.clip(numerator / np.maximum(denominator, 1.0), *box)
    narrow = known(Estimate(value, *fieller(numerator, denominator, *noise, box=box)), box)
    if sampling is None:
        return narrow
    both = (a + b for a, b in zip(noise, sampling, strict=True))
    wide = fieller(numerator, denominator, *both, box=box, noise=noise[1:])
    return replace(narrow, population=wide).joined(narrow)


def known(estimate: Estimate, box: Bounds) -> Estimate:
    """Return an estimate whose value is not a number where its interval is the whole box."""
    informed = (estimate.low > box[0]) | (estimate.high < box[1])
    return replace(estimate, values=np.where(informed, estimate.values, np.nan))


def middle_of(estimate: Estimate) -> Floats:
    """Return values, and the middle of the interval for a value that is not known."""
    unknown = np.isnan(estimate.values)
    return np.where(unknown, (estimate.low + estimate.high) / 2, estimate.values)


def share_of(
    part: Floats,
    whole: Floats,
    of_part: Floats | float,
    of_whole: Floats | float,
    both: Floats | float | None = None,
) -> Estimate:
    """Return the share of a noisy part of a noisy whole, from the variances of their noise.

    Their covariance is `both`, by default the variance of the part, whose noise is in the whole.
    Sampling adds the variance of a binomial number. That of ``X - p n`` is ``n p (1 - p)``, a
    polynomial in the tested share `p`. So without noise, Fieller's set is Wilson's [W27]_.
    """
    n = np.maximum(whole, 1.0)
    noise = of_part, of_whole, of_part if both is None else both
    return ratio(part, whole, noise, (0.0, -n, -n / 2))


def mean_interval(
    sums: Floats, counts: Floats, squares: Floats, var_sum: float, var_count: float
) -> Estimate:
    """Return the means of numbers in ``[-1, 1]`` from three noisy sums, which broadcast.

    Parameters
    ----------
    sums, counts, squares : ndarray
        Noisy sums of ``x``, of 1 and of ``x^2``.
    var_sum, var_count : float
        The variances of the noise in the first two.

    Notes
    -----
    The population interval holds all means m of the box with
    ``(S - m C)^2 <= z^2 (V(m) + var_sum + m^2 var_count)``. V(m) is the larger of the noisy sums of
    ``(x - m)^2`` and of ``x^2 - m x``, cut to ``[0, C]``. The first sum alone is too small for a
    rare number at an end of the box, if a sample has few of it. The second grows with m like the
    variance in this case. The set is computed from three of Fieller's sets without the cut.
    """
    size = np.maximum(counts, 0.0)

    def within(top: Floats | float, below: Floats | float, both: Floats | float) -> Interval:
        variances = var_sum + top, var_count + below, both
        return fieller(sums, counts, *variances, box=BOX, noise=(var_count, 0.0))

    narrow, most = within(0.0, 0.0, 0.0), within(size, 0.0, 0.0)
    first, second = within(squares, counts, sums), within(squares, 0.0, sums / 2)
    low = np.maximum(np.minimum(first[0], second[0]), most[0])
    high = np.minimum(np.maximum(first[1], second[1]), most[1])
    ends = np.minimum(narrow[0], low), np.maximum(narrow[1], high)
    value = np.clip(sums / np.maximum(counts, 1.0), *BOX)
    return known(Estimate(value, *narrow, population=ends), BOX)


def mean_of(parts: Estimate, *, same_records: bool = False) -> Estimate:
    """Return the mean of measures over the last axis; limits as in [Z08]_.

    The noises of the measures are independent. Their sampling errors are independent, too, unless
    `same_records` is True. The distances to the ends of population intervals then add up, as do
    those of measures that are not known. Those to ends that are cut to 0 or 1 add up, too: values
    near such an end are cut, so their errors are one-sided.
    """
    n, values, unknown = parts.values.shape[-1], middle_of(parts), np.isnan(parts.values)
    value = values.mean(axis=-1)

    def away(ends: Floats, together: bool) -> Floats:
        distances = np.abs(ends - values)
        adding = unknown | together | (ends <= 0) | (ends >= 1)
        added = (distances * adding).sum(axis=-1)
        squared = (distances**2 * ~adding).sum(axis=-1)
        return np.asarray((added + np.sqrt(squared)) / n)

    def between(low: Floats, high: Floats, together: bool) -> tuple[Floats, Floats]:
        below, above = away(low, together), away(high, together)
        return np.maximum(value - below, 0.0), np.minimum(value + above, 1.0)

    wide = None if parts.population is None else between(*parts.population, same_records)
    found = Estimate(value, *between(parts.low, parts.high, False), population=wide)
    return known(found, (0.0, 1.0))


# From a confusion matrix --------------------------------------------------------------------------


def confusion_measures(confusion: Floats, variance: float) -> dict[str, Estimate]:
    """Return all measures of a confusion matrix.

    Parameters
    ----------
    confusion : ndarray of shape (n_classes, n_classes)
        Noisy counts of records, truth by prediction; each has independent noise of `variance`.

    Returns
    -------
    dict
        ``accuracy``, ``balanced_accuracy``, ``macro_f1``, ``kappa`` [C60]_ of shape (), and
        ``precision``, ``recall``, ``f1`` of shape (n_classes,).
    """
    k = len(confusion)
    right = confusion.diagonal()
    of_truth, of_prediction = confusion.sum(axis=1), confusion.sum(axis=0)
    cells = np.maximum(confusion, 0.0)
    recall = share_of(right, of_truth, variance, k * variance)
    # 2 right / (row + column): the cell on the diagonal counts twice below, 2k - 2 others once
    twice = 2 * cells.diagonal() + cells.sum(axis=0) + cells.sum(axis=1)
    f1 = ratio(
        2 * right,
        of_truth + of_prediction,
        (4 * variance, (4 + 2 * k - 2) * variance, 4 * variance),
        (4 * cells.diagonal(), twice, 4 * cells.diagonal()),
    )
    return {
        "accuracy": share_of(right.sum(), confusion.sum(), k * variance, k**2 * variance),
        "balanced_accuracy": mean_of(recall),
        "macro_f1": _macro_f1(confusion, middle_of(f1), variance),
        "kappa": _kappa(confusion, variance),
        "precision": share_of(right, of_prediction, variance, k * variance),
        "recall": recall,
        "f1": f1,
    }


def _macro_f1(confusion: Floats, f1: Floats, variance: float) -> Estimate:
    """Return the mean F1 with a first-order interval, because the F1 scores share cells."""
    k = len(confusion)
    below = np.maximum(confusion.sum(axis=1) + confusion.sum(axis=0), 1.0)
    slope = 2 * np.eye(k) / below  # of right / below with respect to the diagonal
    slope = slope - (f1 / below)[:, None] - (f1 / below)[None, :]
    spread = INTERVAL_95["gaussian"] * np.sqrt(variance * (slope**2).sum()) / k
    value = f1.mean()
    noise = Estimate(value, np.maximum(value - spread, 0.0), np.minimum(value + spread, 1.0))
    noise = known(noise, (0.0, 1.0))
    return sampled(noise, (np.maximum(confusion, 0.0) * slope**2).sum() / k**2, (0.0, 1.0))


def _kappa(confusion: Floats, variance: float) -> Estimate:
    """Return Cohen's kappa ``(n hits - s) / (n n - s)`` with ``s`` the sum of row times column."""
    k = len(confusion)
    rows, columns, total = confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum()
    hits, chance = np.trace(confusion), rows @ columns
    slope_chance = columns[:, None] + rows[None, :]
    slope_top = hits + total * np.eye(k) - slope_chance
    slope_below = 2 * total - slope_chance
    # On average n n is too large by k k variances and s by k: a diagonal cell is in both factors.
    below = total**2 - chance - (k * k - k) * variance

    def moved(by: Floats | float) -> Variances:
        """Return the variances of numerator and denominator if `by` are those of the cells."""
        slopes = (slope_top**2, slope_below**2, slope_top * slope_below)
        top, bottom, both = ((by * slope).sum() for slope in slopes)
        return top, bottom, both

    sampling = moved(np.maximum(confusion, 0.0))
    return ratio(total * hits - chance, below, moved(variance), sampling, (-1.0, 1.0))


# From a score histogram ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreHistogram:
    """Noisy counts of records by score bin, for the members of a class and for all others."""

    others: Floats
    members: Floats
    cov_others: Floats  # of the noise, which is independent of the noise of the members
    cov_members: Floats


def consistent(
    counts: Floats, variance: float, totals: Floats, total_variance: float
) -> tuple[Floats, Floats]:
    """Return counts that combine noisy counts and noisy totals of equal runs, and their covariance.

    Each total covers equally many consecutive counts. The returned counts have the smallest
    variance among unbiased linear estimates.
    """
    length = len(counts) // len(totals)
    runs = counts.reshape(len(totals), length)
    both = length * variance + total_variance
    # Without any noise the counts and totals agree, and any gain is right.
    gain = variance / both if both > 0 else 1.0 / length
    adjusted = runs + gain * (totals - runs.sum(axis=1))[:, None]
    block = variance * (np.eye(length) - gain)
    covariance = np.kron(np.eye(len(totals)), block).astype(np.float64)
    return adjusted.ravel(), covariance


def area(scores: ScoreHistogram) -> tuple[Estimate, Floats]:
    """Return the area under the ROC curve, and the largest shift by its bins.

    Returns
    -------
    area : Estimate of shape ()
        Share of pairs (member, other) in the right order [HM82]_. The share of pairs in one bin is
        that for linear densities in each bin. It exceeds half if members become more frequent
        towards the upper neighbouring bin. Sums of pairs are unbiased, because the noises of
        members and others are independent. The interval also covers the area with half of the
        pairs in each bin, which is right for scores of few values. It allows for a random order
        in each bin, and for densities that are not linear.
    blur : ndarray of shape ()
        Bound on the distance of the area of the scores themselves to the area with half of the
        pairs in each bin. It holds for any scores, without noise.
    """
    others, members = scores.others, scores.members
    n_others, n_members = others.sum(), members.sum()
    pairs = np.maximum(n_others * n_members, 1.0)
    blur = np.clip(members @ others / (2 * pairs), 0.0, 0.5)
    return _pairs_area(scores, _STRAIGHT).joined(_pairs_area(scores, 0.0)), np.asarray(blur)


_STRAIGHT = 1 / 12  # E[U] for the density 1 + U on (-1/2, 1/2): the effect of a slope on a pair


def _pairs_area(scores: ScoreHistogram, slope: float) -> Estimate:
    """Return the area; pairs in one bin count half, plus `slope` times the neighbours' trend."""
    others, members = scores.others, scores.members
    n = len(others)
    # pairs of a member in bin i and another in bin j, in the right order
    order = np.tri(n, k=-1) + 0.5 * np.eye(n) + slope * (np.eye(n, k=-1) - np.eye(n, k=1))
    below, above = order @ others, members @ order
    n_others, n_members = others.sum(), members.sum()
    ones = np.ones(n)

    def moved(of_others: Floats, of_members: Floats) -> Variances:
        """Return the variances of right pairs and of all pairs, and their covariance."""
        parts = ((of_members, below, n_others * ones), (of_others, above, n_members * ones))
        return (
            sum(first @ cov @ first for cov, first, _ in parts),
            sum(second @ cov @ second for cov, _, second in parts),
            sum(first @ cov @ second for cov, first, second in parts),
        )

    counts = [np.maximum(part, 0.0) for part in (others, members)]
    # variance of the Mann-Whitney statistic in each bin, for a random order in the bin
    chance = float((counts[0] * counts[1] * (counts[0] + counts[1])).sum()) / 12
    # densities are not linear: half of the pairs in a bin may be in the right order, give or take
    # a share that falls with the width of bins
    chance += (_UNSEEN * float(counts[0] @ counts[1]) / (2 * n)) ** 2
    of_right, of_all, both = moved(scores.cov_others, scores.cov_members)
    noise, sampling = (of_right + chance, of_all, both), moved(*map(np.diag, counts))
    return ratio(members @ below, n_others * n_members, noise, sampling)


def probability_measures(scores: ScoreHistogram, probability: Floats) -> dict[str, Estimate]:
    """Return log-loss and Brier score of a class against the rest; shape ()."""
    return {
        "log_loss": _binary_loss(scores, -np.log(1 - probability), -np.log(probability), _LOG_LOSS),
        "brier": _binary_loss(scores, probability**2, (1 - probability) ** 2, _BRIER),
    }


def multiclass_log_loss(heads: Sequence[ScoreHistogram], probability: Floats) -> Estimate:
    """Return the mean of minus the log of the probability of the true class; shape ()."""
    loss = -np.log(probability)
    parts = [(head.members, head.cov_members, loss) for head in heads]
    cells = np.maximum(sum(head.members for head in heads), 0.0)
    return _mean_loss(parts, cells, loss, _LOG_LOSS)


def _binary_loss(
    scores: ScoreHistogram, of_others: Floats, of_members: Floats, blur: float
) -> Estimate:
    parts = (
        (scores.others, scores.cov_others, of_others),
        (scores.members, scores.cov_members, of_members),
    )
    cells = np.maximum(np.concatenate([scores.others, scores.members]), 0.0)
    return _mean_loss(parts, cells, np.concatenate([of_others, of_members]), blur)


def _mean_loss(
    parts: Sequence[tuple[Floats, Floats, Floats]], cells: Floats, losses: Floats, blur: float
) -> Estimate:
    """Return the mean over records of a loss, from counts, their covariance and losses of bins.

    `cells` and their `losses` describe the sample for the sampling variance. The deviation of the
    mean by the bins is `blur` over their squared number.
    """
    ones = np.ones(len(parts[0][0]))
    n = np.asarray(sum(counts.sum() for counts, _, _ in parts))
    noise = (
        sum(loss @ cov @ loss for _, cov, loss in parts) + (blur / len(ones) ** 2 * n) ** 2,
        sum(ones @ cov @ ones for _, cov, _ in parts),
        sum(loss @ cov @ ones for _, cov, loss in parts),
    )
    return ratio(
        np.asarray(sum(counts @ loss for counts, _, loss in parts)),
        n,
        noise,
        (cells @ losses**2, cells.sum(), cells @ losses),
        (0.0, float(losses.max())),
    )


def roc_curve(scores: ScoreHistogram) -> tuple[Floats, Estimate]:
    """Return the ROC curve at the edges of bins: n_bins + 1 false and true positive rates.

    Rates never decrease; each point has its own interval, which includes its rate.
    """
    false_rate = _tail_shares(scores.others, scores.cov_others)
    true_rate = _tail_shares(scores.members, scores.cov_members)
    rising = np.fmax.accumulate(true_rate.values)  # noise can make a rate fall
    # A rate that was raised may be above the interval of its own counts. One without records has
    # no value.
    raised = around(np.where(np.isnan(rising), true_rate.low, rising), 0.0)
    true_rate = replace(true_rate, values=rising).joined(raised)
    return np.fmax.accumulate(false_rate.values), true_rate


def _tail_shares(counts: Floats, covariance: Floats) -> Estimate:
    """Return the share of the counts in the last 0, 1, 2, ... bins."""
    n = len(counts)
    tails = np.tril(np.ones((n + 1, n)), -1)[:, ::-1]
    of_tails = np.einsum("ib,bc,ic->i", tails, covariance, tails, optimize=True)
    both = tails @ covariance.sum(axis=1)
    return share_of(tails @ counts, counts.sum(), of_tails, covariance.sum(), both)


def calibration(scores: ScoreHistogram, probability: Floats) -> tuple[Floats, Estimate]:
    """Return predicted and observed frequencies of at most ten groups of scores.

    The prediction is the mean probability of the group's bins, weighted by noisy counts; it is
    within the bounds of the group. The observed frequency is the share of members.
    """
    n = len(probability)
    edges = np.linspace(0, n, min(GROUPS, n) + 1).astype(int)
    groups = np.zeros((len(edges) - 1, n))
    for group, (first, last) in enumerate(pairwise(edges)):
        groups[group, first:last] = 1.0
    both = np.maximum(scores.others + scores.members, 0.0) + 1e-9  # an empty group has a mean
    predicted = (groups @ (both * probability)) / (groups @ both)
    var_members = np.einsum("gb,bc,gc->g", groups, scores.cov_members, groups, optimize=True)
    var_others = np.einsum("gb,bc,gc->g", groups, scores.cov_others, groups, optimize=True)
    parts, whole = groups @ scores.members, groups @ (scores.members + scores.others)
    return predicted, share_of(parts, whole, var_members, var_members + var_others)


# Of a regression ----------------------------------------------------------------------------------


def regression_measures(
    sums: Floats, variance: float, bound: float, half_range: float
) -> dict[str, Estimate]:
    """Return ``bias``, ``mae``, ``rmse`` in data units, and ``r2``, at least -1; shape ().

    Parameters
    ----------
    sums : ndarray of shape (6,)
        Noisy sums of 1, ``r``, ``2 |r| - 1``, ``2 r**2 - 1``, ``y`` and ``2 y**2 - 1``. Here ``r``
        is the clipped residual over `bound` and ``y`` is the target on the grid, both in
        ``[-1, 1]``. Each sum has independent noise of `variance`.
    bound, half_range : float, data units
        Bound of a residual, and half the range of the target.
    """
    n, residual, _, _, y, _ = map(np.asarray, sums)
    absolute, squared, y_squared = (np.asarray((part + n) / 2) for part in sums[[2, 3, 5]])
    size, square_sum = np.maximum(n, 1.0), np.maximum(squared, 0.0)

    half = variance / 2  # of a halved sum, which has the noise of the number of records, too

    def mean(total: Floats, of_squares: Floats, noise: Variances, least: float = 0.0) -> Estimate:
        """Return a mean from a sum and, for the sample, the sum of squares."""
        return ratio(total, n, noise, (of_squares, size, total), (least, 1.0))

    fourth = _kurtosis(absolute / size, square_sum / size) * square_sum**2 / size
    square = mean(squared, fourth, (half, variance, half))
    # 1 - R2 = n sum r^2 / (n sum y^2 - (sum y)^2), in the units of y; a noisy square is too
    # large by the variance, and so are products of n with twice a halved sum
    per = (bound / half_range) ** 2
    above, spread = per * (n * squared - half), n * y_squared - half - y**2 + variance
    slopes = squared + n / 2, y_squared + n / 2  # of both with respect to n, without `per`
    noise = (
        variance * per**2 * (slopes[0] ** 2 + n**2 / 4),
        variance * (slopes[1] ** 2 + n**2 / 4 + 4 * y**2),
        variance * per * slopes[0] * slopes[1],
    )
    unexplained = ratio(above, spread, noise, box=(0.0, 2.0))
    of_residuals = np.maximum(fourth / square_sum**2 - 1 / size, 0.0) if square_sum > 0 else 0.0
    # Relative variances of both sums, which share the part of the target that is not explained.
    of_target, u = (_NORMAL - 1) / size, middle_of(unexplained)
    shared = _SHARED * np.minimum(u, 1 / np.maximum(u, _TINY))
    relative = of_residuals + of_target - 2 * shared * np.sqrt(of_residuals * of_target)
    unexplained = sampled(unexplained, u**2 * relative, (0.0, 2.0))
    turned = unexplained.mapped(lambda part: 1 - part)
    wide = turned.population and turned.population[::-1]
    mae = mean(absolute, square_sum, (half, variance, half))
    return {
        "bias": scaled(mean(residual, square_sum, (variance, variance, 0.0), -1.0), bound),
        "mae": scaled(mae, bound),
        "rmse": scaled(_at_least(square.mapped(np.sqrt), mae), bound),
        "r2": Estimate(turned.values, turned.high, turned.low, population=wide),
    }


def _at_least(estimate: Estimate, less: Estimate) -> Estimate:
    """Return an estimate of a number that is not less than another, nor are its intervals."""
    low, high = (np.maximum(part, less.low) for part in (estimate.low, estimate.high))
    values = np.clip(np.maximum(estimate.values, less.values), low, high)
    ends, far = estimate.population, less.population
    wide = ends and far and (np.maximum(ends[0], far[0]), np.maximum(ends[1], far[0]))
    return Estimate(values, low, high, population=wide)


_NORMAL = 3.0  # kurtosis of the normal distribution
# of the correlation of squared residuals and squared distances of the target, which is 1 - R2 for
# normal numbers and less if the size of a residual depends on the prediction
_SHARED = 0.8


def _kurtosis(absolute: Floats, squared: Floats) -> Floats:
    """Return the fourth moment over the squared second, from E|r| and E r^2.

    ``3 (2 E r^2 / (pi (E|r|)^2))**3`` is 3 for normal residuals. For densities ``exp(-|r|^b)`` it
    is within 4 % of the truth, from the Laplace distribution (6) to the uniform one (1.8). For
    residuals within ``[-1, 1]`` it is at most ``1 / E r^2``.
    """
    flat = np.maximum(2 * squared / (np.pi * np.maximum(absolute**2, _TINY)), 0.0)
    most = 1 / np.maximum(squared, _TINY)
    return np.asarray(np.clip(_NORMAL * flat**3, 1.0, np.maximum(most, 1.0)))


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return a measure in other units; the factor is above 0."""
    return estimate.mapped(lambda part: factor * part)


def as_results(measures: Mapping[str, Estimate]) -> dict[str, Floats]:
    """Return every measure with the ends of its intervals, under the names of results."""
    return {key: part for name, m in measures.items() for key, part in m.named(name).items()}
