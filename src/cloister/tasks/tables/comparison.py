"""Means of groups, their differences and Welch's test, from noisy sums.

Every function takes raw noisy sums. `Errors` are variances of a mean and of a deviation squared,
and their covariance. Noise and sampling have independent errors, so both kinds add up.

References
----------
.. [W51] Welch, "On the comparison of several mean values: an alternative approach", Biometrika 38,
   1951. For two groups it is the square of Welch's t, with the same degrees of freedom.
.. [S46] Satterthwaite, "An approximate distribution of estimates of variance components",
   Biometrics Bulletin 2, 1946.
.. [HO85] Hedges and Olkin, "Statistical methods for meta-analysis", 1985, chapter 5: the error of a
   standardised difference.
.. [A09] Austin, "Balance diagnostics for comparing the distribution of baseline covariates", Stat.
   Med. 28, 2009: the pooled deviation is the root of the mean of both variances.
.. [Z08] Zou and Donner, "Construction of confidence limits about effect measures", Statistics in
   Medicine 27, 2008: limits of a function of independent numbers from the limits of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.core.display import Estimate, Interval
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import KNOWN, above_noise, beyond_limit, fieller
from cloister.tasks.scores import mean_interval, ratio
from cloister.tasks.tables.inference import Tested

MOST_NOISE = 0.25
"""Greatest deviation of the noise of a standardised difference that is known."""
_Z = INTERVAL_95["gaussian"]
_PART = 4.0  # of a variance: its lower end must be at least one such part
_FAR = 2.5  # deviations of noise to the least divisor, and half of those that it must exceed
_NOWHERE = (-np.inf, np.inf)
_TINY = 1e-12  # a variance is never 0, so that no weight is infinite


@dataclass(frozen=True)
class Errors:
    """Variances of means and of variances, and their covariances; shape (n_groups, n_columns)."""

    mean: Floats
    variance: Floats
    both: Floats


@dataclass(frozen=True)
class Groups:
    """Means and variances of columns in groups, with their errors.

    Parameters
    ----------
    sizes : ndarray of shape (n_groups, 1)
        Noisy numbers of records.
    known : ndarray of shape (n_groups, 1), bool
        True for a group whose size is above its noise.
    means, variances : ndarray of shape (n_groups, n_columns)
    noise, sampling : Errors
    ends : (low, high)
        Noise intervals of the means, not cut at bounds: errors of differences have none.
    most_noise : Errors, optional
        Errors that depend on sizes alone, by which a standardised difference is known or not.
    """

    sizes: Floats
    known: Flags
    means: Floats
    variances: Floats
    noise: Errors
    sampling: Errors
    ends: Interval
    most_noise: Errors | None = None

    @cached_property
    def total(self) -> Floats:
        """Variances of the means, of noise and sampling; infinite for a group that is unknown."""
        both = np.maximum(self.noise.mean + self.sampling.mean, _TINY)
        return np.where(self.known, both, np.inf)

    @cached_property
    def together(self) -> Floats:
        """Variances of the records of the first group and another one together."""
        whole = np.maximum(self.sizes[1:] + self.sizes[:1], 1.0)
        # Noise may make a size negative, and no group has a negative part.
        part = np.clip(self.sizes[1:] / whole, 0.0, 1.0)
        within = part * self.variances[1:] + (1 - part) * self.variances[:1]
        return np.asarray(within + part * (1 - part) * (self.means[1:] - self.means[:1]) ** 2)

    @cached_property
    def freedom(self) -> Floats:
        """Degrees of freedom of :attr:`total`.

        They are twice its square over its variance [S46]_, which also has the noise of the
        variances.
        """
        # The noise of a mean has a known variance, so it adds nothing here.
        n = np.maximum(self.sizes, 2.0)
        spread = 2 * self.sampling.mean**2 / (n - 1) + self.noise.variance / n**2
        found = 2 * self.total**2 / np.maximum(spread, _TINY**2)
        return np.where(self.known, found, 1.0)


@dataclass(frozen=True)
class Moments:
    """Noisy sums of numbers in ``[-1, 1]`` by group.

    Parameters
    ----------
    sizes : ndarray of shape (n_groups, 1)
        Numbers of records.
    sums, waves : ndarray of shape (n_groups, n_columns)
        Sums of ``x`` and of ``2 x^2 - 1``.
    of_size, of_sum : float
        Variances of the noise of a size, and of each other sum.
    """

    sizes: Floats
    sums: Floats
    waves: Floats
    of_size: float
    of_sum: float

    def means(self) -> Estimate:
        """Return the means with both intervals."""
        squares = (self.waves + self.sizes) / 2
        return mean_interval(self.sums, self.sizes, squares, self.of_sum, self.of_size)

    def variances(self) -> Estimate:
        """Return the variances of the samples with noise intervals.

        They are ``(n Q - S^2) / n^2`` with the sum of squares Q. Its noise is half that of the
        size and half that of the wave. The expected effect of noise on products is subtracted.
        """
        n, first, second = self.sizes, self.sums, (self.waves + self.sizes) / 2
        slope = second + n / 2  # derivative of the numerator by the size
        noise = (
            slope**2 * self.of_size + (n**2 / 4 + 4 * first**2) * self.of_sum,
            4 * n**2 * self.of_size,
            2 * n * slope * self.of_size,
        )
        found = ratio(
            n * second - first**2 + self.of_sum - self.of_size / 2,
            n * np.abs(n) - self.of_size,  # negative with n, so that the interval is the whole box
            noise,
        )
        return found.mapped(lambda part: part * _of_sample(n))

    def groups(self) -> Groups:
        """Return means and variances with errors of first order."""
        known = above_noise(self.sizes, KNOWN * self.of_size**0.5)
        # Any divisor does for the others, whose values are masked later.
        n = np.where(known, self.sizes, 1.0)
        means, wave = self.sums / n, self.waves / n
        # The mean changes by (dS - m dn) / n, the mean square by (dW - w dn) / (2 n).
        of_mean = (self.of_sum + means**2 * self.of_size) / n**2
        of_square = (self.of_sum + wave**2 * self.of_size) / (4 * n**2)
        together = means * wave * self.of_size / (2 * n**2)
        noise = Errors(
            of_mean,
            of_square + 4 * means**2 * of_mean - 4 * means * together,
            together - 2 * means * of_mean,
        )
        # The square of a noisy mean is too large by its variance.
        variances = ((wave + 1) / 2 - means**2 + of_mean) * _of_sample(n)
        # The covariance with the mean needs third powers, which the sum does not have.
        positive = np.maximum(variances, 0.0)
        sampling = Errors(
            positive / n, 2 * positive**2 / np.maximum(n - 1, 1.0), np.zeros_like(means)
        )
        ends = fieller(self.sums, self.sizes, self.of_sum, self.of_size, box=_NOWHERE)
        return Groups(self.sizes, known, means, variances, noise, sampling, ends)


def shares(counts: Floats, s: float) -> Groups:
    """Return the groups of a noisy table, groups by levels; a level is a column of 1 and 0."""
    levels = counts.shape[1]
    whole = counts.sum(axis=1, keepdims=True)
    known = above_noise(whole, KNOWN * s * levels**0.5)
    n = np.where(known, whole, 1.0)
    p = counts / n
    variances, slope = p * (1 - p), 1 - 2 * p

    def errors(of_share: Floats) -> Errors:
        return Errors(of_share, slope**2 * of_share, slope * of_share)

    # The noise of a cell is in the sum of its row, too.
    noise = errors(s**2 * (slope + levels * p**2) / n**2)
    sampling = errors(np.maximum(variances, 0.0) / n)
    rare = np.broadcast_to(s**2 / n**2, p.shape)  # of a share of 0, which no noise makes smaller
    ends = fieller(counts, whole, s**2, levels * s**2, s**2, box=_NOWHERE)
    return Groups(whole, known, p, variances, noise, sampling, ends, Errors(rare, rare, rare))


def difference(groups: Groups, most: float) -> Estimate:
    """Return the differences of means to the first group, all within ``[-most, most]``.

    Limits are those of a difference of independent numbers [Z08]_. The population interval is
    Welch's, with noise in the errors of the means.
    """
    from scipy.special import stdtrit

    value = groups.means[1:] - groups.means[:1]
    known = groups.known[1:] & groups.known[:1]
    # To first order, and further away where the size of a group is near its limit.
    first = _Z * np.sqrt(groups.noise.mean)
    below, above = (
        np.maximum(sign * (groups.means - end), first)
        for sign, end in zip((1, -1), groups.ends, strict=True)
    )
    away = np.hypot(below[1:], above[:1]), np.hypot(above[1:], below[:1])

    def ends(low: Floats, high: Floats) -> tuple[Floats, Floats]:
        return (
            np.where(known, np.clip(value - low, -most, most), -most),
            np.where(known, np.clip(value + high, -most, most), most),
        )

    total = groups.total[1:] + groups.total[:1]
    parts = groups.total[1:] ** 2 / groups.freedom[1:] + groups.total[:1] ** 2 / groups.freedom[:1]
    with np.errstate(invalid="ignore"):  # of a group that is not known
        quantile = np.asarray(stdtrit(total**2 / parts, 0.975), dtype=np.float64)
    of_sample = groups.sampling.mean[1:] + groups.sampling.mean[:1]
    reach = (np.hypot(part, quantile * np.sqrt(of_sample)) for part in away)
    narrow = Estimate(np.where(known, value, np.nan), *ends(*away))
    return replace(narrow, population=ends(*np.maximum(quantile * np.sqrt(total), [*reach])))


def standardised(groups: Groups, most_noise: float = MOST_NOISE) -> Estimate:
    """Return the differences of means to the first group, over the pooled deviation [A09]_.

    The errors have first order, with normal sampling errors of a variance [HO85]_. Away from 0 they
    are those of a pooled variance near its least value, and the interval also holds what follows
    from that value [Z08]_. Towards 0 they are those of a pooled variance near its greatest value.

    Whether a value is known depends on the variance of both groups together, which has less noise
    than that of a small group. A value is not known if, at the lower end of that variance and
    without a difference, its noise has a deviation above `most_noise`. Nor is it if that end is
    below a quarter of that variance, as for a category of few records. Nor is it if the pooled
    variance may be half as large, as for groups that hardly vary.
    """
    gap = groups.means[1:] - groups.means[:1]
    square = (groups.variances[1:] + groups.variances[:1]) / 2
    usable = groups.known[1:] & groups.known[:1] & (square > 0)
    square = np.where(usable, square, 1.0)
    value = gap / np.sqrt(square)

    def variance(errors: Errors, square: Floats, curved: float = 1.0) -> Floats:
        """Return the sum over both groups of the squared gradient times the errors.

        `curved` is the share of the errors of variances that counts.
        """
        d = gap / np.sqrt(square)
        parts = (
            errors.mean[k] / square
            + curved * d**2 / (16 * square**2) * errors.variance[k]
            - sign * d / (2 * square**1.5) * errors.both[k]
            for k, sign in ((slice(1, None), 1), (slice(0, 1), -1))
        )
        return np.maximum(sum(parts), 0.0)

    of_square = (groups.noise.variance[1:] + groups.noise.variance[:1]) / 4
    # Not by the variance that divides: where it seldom passes, it is too large when it does.
    likely, judged = groups.together, groups.most_noise or groups.noise
    of_likely = np.sqrt(judged.variance[1:] + judged.variance[:1]) / 2
    # To first order alone, a variance that is mostly noise would seem to be known. And of no
    # difference: a criterion that grows with the value would leave too small ones.
    limit = np.maximum(likely / _PART, (judged.mean[1:] + judged.mean[:1]) / most_noise**2)
    beyond = likely - _Z * of_likely - limit
    # A divisor within its noise would leave a value of any size.
    deviation = np.sqrt(of_square)
    known = usable & (beyond > 0) & (square > 2 * _FAR * deviation)
    # Where values are rarely known, noise has made the divisors of those that are too large, and
    # has moved their differences.
    by_divisor = square / np.maximum(deviation, _TINY) - 2 * _FAR
    above = np.minimum(by_divisor, beyond / np.maximum(of_likely, _TINY))
    selected = beyond_limit(np.where(known, above, 1.0))
    margin = np.maximum(selected, _FAR) * deviation
    least = np.where(known, square - margin, 1.0)
    greatest = np.where(known, square + _FAR * deviation, 1.0)
    # The true value may be as far from 0 as with the least variance.
    farther = np.abs(gap) * (1 / np.sqrt(least) - 1 / np.sqrt(square))

    def ends(*kinds: Errors) -> tuple[Floats, Floats]:
        def reach(divisor: Floats, curved: float = 1.0) -> Floats:
            between = np.sqrt(square * divisor)
            parts = [variance(errors, between, curved) for errors in kinds]
            return np.asarray(selected * np.sqrt(np.sum(parts, axis=0)))

        far = np.maximum(reach(least), np.hypot(reach(least, 0.0), farther))
        far, near = (np.where(known, part, np.inf) for part in (far, reach(greatest)))
        middle = np.where(known, value, 0.0)
        return (
            middle - np.where(gap < 0, far, near),
            middle + np.where(gap > 0, far, near),
        )

    # Without a bound: the number of deviations between two means may be any.
    narrow = Estimate(np.where(known, value, np.nan), *ends(groups.noise))
    return replace(narrow, population=ends(groups.noise, groups.sampling))


def welch(groups: Groups) -> Tested:
    """Test whether all groups have equal means, without equal variances [W51]_.

    The variance of a mean has noise and sampling. Without noise it is Welch's analysis of variance.
    The statistic of two groups is Welch's t, negative if the second mean is smaller. Groups that
    are not known are left out. With fewer than two others the test is not known.
    """
    from scipy.special import fdtrc

    # An unknown group has the weight 0, but would still count as a degree of freedom.
    many = groups.known.sum(axis=0) * np.ones(groups.means.shape[1])
    weights = 1 / groups.total
    whole = np.maximum(weights.sum(axis=0), _TINY)
    middle = (weights * groups.means).sum(axis=0) / whole
    lost = groups.known * (1 - weights / whole) ** 2 / groups.freedom
    lost = np.maximum(lost.sum(axis=0), _TINY)
    between = (weights * (groups.means - middle) ** 2).sum(axis=0)
    enough = many > 1
    k = np.where(enough, many, 2.0)
    statistic = between / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * lost)
    # Noise of a known variance adds freedom, but never more than records without noise have.
    most = np.maximum((groups.known * groups.sizes).sum(axis=0) - k, 1.0)
    df = np.minimum((k**2 - 1) / (3 * lost), most)
    p = fdtrc(k - 1, df, statistic)
    # Readers compare it with the t of other software, which has the sign of the difference.
    if len(groups.means) == 2:
        statistic = np.copysign(np.sqrt(statistic), groups.means[1] - groups.means[0])
    parts = statistic, df, p
    return Tested(*(np.where(enough, part, np.nan) for part in parts))


def _of_sample(n: Floats) -> Floats:
    """Return ``n / (n - 1)``; fewer than two records count as two."""
    n = np.maximum(n, 2.0)
    return np.asarray(n / (n - 1))
