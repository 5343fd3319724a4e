"""Survival curves, rates and tests from noisy exits in fine cells of time, by post-processing.

The array ``exits`` of shape ``(2, cells + 1)`` holds noisy numbers of exits in each cell of time.
The first row is for exits with the event, and the second one for censored records. The last cell is
for records beyond all cells. Numbers come from :func:`~cloister.tasks.survival.running.decoded`, so
each sum over later cells has little noise. Records that are censored in a cell are at risk in it,
as in textbooks.

A single cell has more noise than events. So cells are joined to **blocks**, whose number of events
is taken as released. The monotone regression of all sums distributes it over the cells of a block.
A block holds enough events for the noise, and a block is one cell if there are few cells.

References
----------
.. [KM58] Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958.
.. [G26] Greenwood, "The natural duration of cancer", Reports on Public Health 33, 1926.
.. [BC82] Brookmeyer and Crowley, "A confidence interval for the median survival time", Biometrics
   38, 1982.
.. [M66] Mantel, "Evaluation of survival data and two new rank order statistics arising in its
   consideration", Cancer Chemotherapy Reports 50, 1966: the log-rank test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.display import Estimate
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import fieller
from cloister.tasks.survival import running
from cloister.tasks.survival.times import Horizon
from cloister.tasks.tables.inference import odds_ratio

_CLEAR = 3.5  # deviations of its noise that the number at risk of a curve must exceed
_BLOCKS = 200  # most blocks of a curve; fewer cells than that are their own blocks
_EVENTS = 8.0  # least number of events in a block, in deviations of a released sum
_MOST_BIAS = 0.02  # of a block, so that the correction stays small where little is known
_LEAST_HAZARD, _MOST_HAZARD = -0.5, 0.95  # of one cell, so that log(1 - hazard) is finite
_SURE = 2.5  # deviations below a hazard, where the greatest of many such ends is used
_PLACES = 120  # at which the variance is computed; it is interpolated between them
_Z = INTERVAL_95["gaussian"]
_TINY = 1e-12
_FOLLOWED = 4.0  # deviations of its noise that the follow-up time of a rate must exceed


@dataclass(frozen=True)
class Curve:
    """The curve of one group.

    Parameters
    ----------
    exits : ndarray of shape (2, cells + 1)
    noise : float
        Deviation of the noise in a released sum, in records.
    blocks : int or None
        Most blocks; None for no limit but the noise.
    """

    exits: Floats
    noise: float
    blocks: int | None = _BLOCKS

    @cached_property
    def at_risk(self) -> Floats:
        """Released number at risk at each cell, and of the records beyond all cells."""
        return np.cumsum(self.exits.sum(axis=0)[::-1])[::-1]

    @cached_property
    def risk_noise(self) -> Floats:
        """Deviation of the noise of each number at risk, a sum of two rows."""
        return np.asarray(self.noise * np.sqrt(2) * running.tail_deviations(self._cells + 1))

    @property
    def _cells(self) -> int:
        return int(self.exits.shape[1]) - 1

    @cached_property
    def _monotone(self) -> tuple[Floats, Floats]:
        """Monotone regressions of the events before each cell, and of the numbers at risk."""
        from scipy.optimize import isotonic_regression

        before = np.append(0.0, np.cumsum(self.exits[0, :-1]))
        events = np.maximum(isotonic_regression(before).x, 0.0)
        risk = isotonic_regression(self.at_risk, increasing=False).x
        return events, np.maximum(risk, _TINY)

    @cached_property
    def usable(self) -> int:
        """Number of cells, from the first on, after which enough records are still at risk."""
        events, risk = self._monotone
        left = risk[:-1] - np.diff(events)
        clear = left > np.maximum(_CLEAR * self.risk_noise[:-1], 1.0)
        return int(np.logical_and.accumulate(clear).sum())

    @cached_property
    def cuts(self) -> Integers:
        """First cell of each block, and the end of the last block."""
        last = self.usable
        if self.blocks is not None and self._cells <= self.blocks:
            return np.arange(last + 1)
        events = self._monotone[0][: last + 1]
        # Without noise at least more than nothing, also in sums so large that 1 is their rounding.
        least = max(_EVENTS * self.noise, _TINY * max(events[-1], 1.0))
        if self.blocks is not None:
            least = max(least, events[-1] / self.blocks)
        return running.cuts_of(events, least)

    @cached_property
    def _block(self) -> Integers:
        """The block of each usable cell."""
        return np.repeat(np.arange(len(self.cuts) - 1), np.diff(self.cuts))

    def _within(self, steps: Floats) -> Floats:
        """Return the shares of usable cells in the total of their block."""
        steps = steps[: self.usable]
        totals = np.bincount(self._block, steps, minlength=len(self.cuts) - 1)[self._block]
        equal = 1 / np.diff(self.cuts)[self._block]
        return np.where(totals > 0, steps / np.where(totals > 0, totals, 1.0), equal)

    @cached_property
    def _shares(self) -> tuple[Floats, Floats]:
        """Share of a block's events in each cell, and of its exits in the cells before."""
        events, risk = self._monotone
        leaving = self._within(-np.diff(risk))
        before = np.cumsum(leaving) - leaving - self._block
        return self._within(np.diff(events)), np.maximum(before, 0.0)

    @cached_property
    def events(self) -> Floats:
        """Events in each usable cell."""
        last, whole = self.usable, self.exits[0]
        of_blocks = np.bincount(self._block, whole[:last], minlength=len(self.cuts) - 1)
        return np.asarray(of_blocks[self._block] * self._shares[0])

    def within_blocks(self, sums: Floats) -> Floats:
        """Return numbers at risk in usable cells, between those at the ends of blocks."""
        first, end = sums[..., self.cuts[:-1]], sums[..., self.cuts[1:]]
        return np.asarray(
            first[..., self._block] + (end - first)[..., self._block] * self._shares[1]
        )

    @cached_property
    def risk(self) -> Floats:
        """Records at risk in each usable cell, at least one."""
        least = np.maximum(self.risk_noise[self.cuts[:-1]], 1.0)[self._block]
        return np.maximum(self.within_blocks(self.at_risk), least)

    @cached_property
    def hazard(self) -> Floats:
        """Hazard of each usable cell; it may be negative."""
        # Not cut at 0: sums of noisy hazards are unbiased, sums of hazards cut at 0 are not.
        return np.clip(self.events / self.risk, _LEAST_HAZARD, _MOST_HAZARD)

    @cached_property
    def _weight(self) -> Floats:
        """Derivative of a cell's ``-log(1 - hazard)`` by its events."""
        return np.asarray(1 / (self.risk * (1 - np.maximum(self.hazard, 0.0))))

    @cached_property
    def block_noise(self) -> tuple[Floats, Floats, Floats]:
        """Of each block: variance of events, covariance with the number at risk, its variance."""
        if not self.noise:
            return (np.zeros(len(self.cuts) - 1),) * 3
        own, later = (np.zeros((len(self.cuts) - 1, self._cells + 1)) for _ in range(2))
        for b, (first, end) in enumerate(zip(self.cuts, self.cuts[1:], strict=False)):
            own[b, first:end] = later[b, first:] = 1.0
        own, later = (self.noise * running.weights_of(part) for part in (own, later))
        both = (own**2).sum(axis=1), (own * later).sum(axis=1), 2 * (later**2).sum(axis=1)
        return both

    @cached_property
    def _summed_hazard(self) -> Floats:
        """Minus the logarithm of the curve after each usable cell; noise may make it fall."""
        if not self.usable:
            return np.zeros(0)
        steps = -np.log1p(-self.hazard)
        # The mean error of a block by the noise of its events and of its number at risk.
        of_events, both, of_risk = self.block_noise
        first, blocks = self.cuts[:-1], len(self.cuts) - 1
        risk = self.risk[first]
        hazard = np.bincount(self._block, self.hazard, minlength=blocks)
        curved = (self._shares[0] / (1 - np.maximum(self.hazard, 0.0))) ** 2
        curved = np.bincount(self._block, curved, minlength=blocks)
        error = (hazard * of_risk - both + of_events * curved / 2) / risk**2
        steps[self.cuts[1:] - 1] -= np.clip(error, -_MOST_BIAS, _MOST_BIAS)
        return np.asarray(np.cumsum(steps))

    @cached_property
    def cumulative_hazard(self) -> Floats:
        """Minus the logarithm of the curve after each usable cell; it never falls."""
        from scipy.optimize import isotonic_regression

        if not self.usable:
            return np.zeros(0)
        return np.maximum(isotonic_regression(self._summed_hazard).x, 0.0)

    @cached_property
    def _places(self) -> Integers:
        """Usable cells at which variances are computed."""
        last = self.usable
        if last <= _PLACES:
            return np.arange(last)
        hazard = self.cumulative_hazard
        rising = np.searchsorted(hazard, np.linspace(0, hazard[-1], _PLACES // 2))
        even = np.linspace(0, last - 1, _PLACES // 2).astype(np.int64)
        return np.unique(np.clip(np.concatenate([rising, even]), 0, last - 1))

    @cached_property
    def _moved(self) -> Floats:
        """Change of the cumulative hazard up to each cell by a record at risk in all of it."""
        moved = np.cumsum(self.hazard * self._weight)
        return np.append(moved, np.full(self._cells + 1 - len(moved), moved[-1:].sum()))

    @cached_property
    def deviations(self) -> tuple[Floats, Floats]:
        """Deviation of the cumulative hazard by noise, and with sampling [G26]_.

        Notes
        -----
        Let ``w_i`` be the derivative of step i by its events, and ``a_t`` the sum of ``h w`` up to
        t. A record that leaves in cell i was at risk before. So the sum up to t has the derivative
        ``-a_min(i, t)`` by it. For an event in a cell ``i <= t`` it is ``w_i`` more.
        """
        places, last = self._places, self.usable
        if not last:
            return np.zeros(0), np.zeros(0)
        cells = np.arange(self._cells + 1)
        without = -self._moved[np.minimum(cells, places[:, None])]
        own = np.append(self._weight, np.zeros(len(cells) - last))
        with_event = without + (cells <= places[:, None]) * own
        of_noise = self.variance(with_event, without)
        sampling = np.cumsum(np.maximum(self.hazard, 0) * self._weight)
        every = np.interp(np.arange(last), places, of_noise)
        return np.sqrt(every), np.sqrt(every + sampling)

    def variance(self, by_events: Floats, by_censored: Floats) -> Floats:
        """Return the variance by noise of statistics with some derivatives by the exits."""
        parts = (running.weights_of(part) for part in (by_events, by_censored))
        return np.asarray(self.noise**2 * sum((part**2).sum(axis=-1) for part in parts))

    def survival(self) -> Estimate:
        """Return the share without the event after each cell [KM58]_; NaN if it is not known."""
        value = self.cumulative_hazard
        # It never falls, so a later hazard is at least what an earlier one surely is.
        ends = [
            (
                np.maximum(value - _Z * std, np.maximum.accumulate(value - _SURE * std)),
                value + _Z * std,
            )
            for std in self.deviations
        ]
        whole = Estimate(value, *ends[0], population=ends[1])
        alive = whole.mapped(lambda part: np.exp(-np.maximum(part, 0.0)))
        assert alive.population is not None
        turned = Estimate(alive.values, alive.high, alive.low, population=alive.population[::-1])
        unknown = np.full(self._cells - self.usable, np.nan)
        return turned.mapped(lambda part: np.concatenate([part, unknown]))

    def quantile(self, horizon: Horizon, part: float = 0.5) -> Estimate:
        """Return the first time after which a part had the event [BC82]_; infinite if unknown."""
        level, last = -np.log1p(-part) - _TINY, self.usable
        value = self.cumulative_hazard

        def reached(hazard: Floats, times: Floats) -> float:
            above = np.flatnonzero(hazard >= level)
            return float(times[above[0]]) if len(above) else np.inf

        def left(hazard: Floats) -> float:
            # One cell after the last that may be below the level.
            below = np.flatnonzero(hazard < level)
            after = int(below[-1]) + 1 if len(below) else 0
            return float(horizon.ends[after]) if after < last else np.inf

        lows, highs = [], []
        for std in self.deviations:
            latest = float(horizon.ends[last - 1]) if last else horizon.low
            lows.append(min(reached(value + _Z * std, horizon.starts), latest))
            highs.append(left(value - _Z * std))
        found = reached(value, horizon.middles)
        noise, population = (
            (np.array(low), np.array(high)) for low, high in zip(lows, highs, strict=True)
        )
        return Estimate(np.array(found), *noise, population=population)

    def restricted_mean(self, horizon: Horizon, upto: float) -> Estimate:
        """Return the mean time without the event up to a time; NaN if the curve ends before it."""
        cells = int(np.searchsorted(horizon.ends, upto, side="right"))
        if cells > self.usable:
            unknown = np.array(np.nan)
            return Estimate(unknown, unknown, unknown, population=(unknown, unknown))
        at = np.append(horizon.middles[:cells], upto)
        # Of the counts as released: their mean over time has the variance below, while places of
        # events by monotone regression have more, and a mean error.
        moved_by = (self.exits[0, : self.usable] - self.events) * self._weight
        hazard = self._summed_hazard + np.cumsum(moved_by) + self.deviations[0] ** 2 / 2
        alive = np.exp(-hazard[:cells])
        value = at[0] + alive @ np.diff(at)
        # The area after a cell changes with the cumulative hazard there.
        area = alive * np.diff(at)
        later = np.append(area[::-1].cumsum()[::-1], np.zeros(self._cells + 1 - cells))
        moved = np.append(area * self._moved[:cells], np.zeros(self._cells + 1 - cells)).cumsum()
        before = np.append(0.0, moved[:-1])
        without = later * self._moved + before
        own = np.append(self._weight, np.zeros(len(later) - self.usable))
        noise = float(self.variance(without - later * own, without))
        last = self.usable
        sampling = (later[:last] ** 2 * np.maximum(self.hazard, 0) * self._weight).sum()
        ends = [_Z * np.sqrt(variance) for variance in (noise, noise + sampling)]
        # The sum may fall by noise, so its mean may exceed what is possible.
        whole = Estimate(
            value, value - ends[0], value + ends[0], population=(value - ends[1], value + ends[1])
        )
        return whole.mapped(lambda part: np.clip(part, 0.0, upto))


@dataclass(frozen=True)
class _Followed:
    """Events and follow-up time of a group, with variances and the covariance of both."""

    events: float
    time: float
    noise: Floats  # (variance of events, of time, covariance)
    sampling: Floats

    @classmethod
    def of(cls, exits: Floats, noise: float, times: Floats) -> _Followed:
        counted = np.append(np.ones(len(times) - 1), 0.0)
        own, both = noise * running.weights_of(np.stack([counted, times]))
        # One more than was counted, as in tables: few events by chance have too little variance.
        events = max(float(exits[0] @ counted) + 1, 0.0)
        time, squares = float(exits.sum(axis=0) @ times), float(exits.sum(axis=0) @ times**2)
        # Events and times of a record go together, and so do their sums over a sample.
        together = max(float(exits[0] @ (counted * times)), 0.0)
        return cls(
            float(exits[0] @ counted),
            time,
            np.array([own @ own, 2 * both @ both, own @ both]),
            np.array([events, max(squares, 0.0), together]),
        )


def rates(exits: Floats, noise: float, times: Floats) -> tuple[Estimate, Estimate]:
    """Return events per unit of time of each group, and their ratios to the first group.

    They are not a number, with intervals of all that is possible, where the time is within its
    noise.

    Parameters
    ----------
    exits : ndarray of shape (groups, 2, cells + 1)
    times : ndarray of shape (cells + 1,), data units
        Follow-up time of a record in each cell. It is exact for cells that are ticks.
    """
    groups = [_Followed.of(own, noise, times) for own in exits]
    events, time = (np.array([getattr(g, name) for g in groups]) for name in ("events", "time"))
    of_noise = np.array([group.noise for group in groups]).T
    of_both = of_noise + np.array([group.sampling for group in groups]).T

    def ends(variances: Floats) -> tuple[Floats, Floats]:
        noise, box = (of_noise[1], of_noise[2]), (0.0, np.inf)
        return fieller(events, time, *variances, box=box, noise=noise, known=_FOLLOWED)

    # Over a time within its noise, a rate of any size would be possible.
    known = time > np.maximum(_FOLLOWED * np.sqrt(of_noise[1]), _TINY)
    value = np.where(known, np.maximum(events, 0) / np.where(known, time, 1.0), np.nan)
    estimate = _where(known, Estimate(value, *ends(of_noise), population=ends(of_both)))
    # A ratio of rates is events x time over time x events, the products of an odds ratio.
    numbers = np.stack([events, time], axis=-1)
    pairs = np.stack([numbers[1:], np.broadcast_to(numbers[0], numbers[1:].shape)], axis=1)

    def ratios(variances: Floats) -> Estimate:
        own = np.sqrt(variances[:2]).T
        deviations = np.stack([own[1:], np.broadcast_to(own[0], own[1:].shape)], axis=1)
        first = np.broadcast_to(variances[2, 0], variances[2, 1:].shape)
        return odds_ratio(pairs, deviations, 0.0, np.stack([variances[2, 1:], first], axis=-1))[0]

    narrow, whole = ratios(of_noise), ratios(of_both)
    both = replace(narrow, population=(whole.low, whole.high))
    return estimate, _where(known[1:] & known[0], both)


def _where(known: Flags, estimate: Estimate) -> Estimate:
    """Return an estimate that is not known elsewhere: any number of at least 0 is possible."""

    def ends(low: Floats, high: Floats) -> tuple[Floats, Floats]:
        return np.where(known, low, 0.0), np.where(known, high, np.inf)

    found = Estimate(np.where(known, estimate.values, np.nan), *ends(estimate.low, estimate.high))
    return replace(found, population=ends(*(estimate.population or (found.low, found.high))))


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of two or more groups.

    `excess` are the events of each group but the first, minus the events expected if all groups
    were alike. `covariance` is that of sampling and noise, and `until` the number of cells used.
    """

    excess: Floats
    covariance: Floats
    until: int

    @property
    def testable(self) -> bool:
        """True if at least one cell is used and the covariance has full rank."""
        return self.until > 0 and bool(np.linalg.eigvalsh(self.covariance)[0] > _TINY)

    @property
    def statistic(self) -> float:
        """Chi-square with a degree of freedom per entry of `excess`; NaN if not testable."""
        if not self.testable:
            return np.nan
        return float(self.excess @ np.linalg.solve(self.covariance, self.excess))

    @property
    def p(self) -> float:
        """Probability of a statistic at least this large if all groups are alike, or NaN."""
        from scipy.special import chdtrc

        return float(chdtrc(len(self.excess), self.statistic))


def log_rank(exits: Floats, noise: float) -> LogRank:
    """Compare groups [M66]_ whose exits have the shape (groups, 2, cells + 1), including the noise.

    Notes
    -----
    ``U_g = sum_j d_gj - D_j p_gj``, where ``p_gj`` is the share of group g in the records at risk.
    Its derivative by the events of group a in cell i is ``(g is a) - p_gi``. As these were at risk
    before, the sum of ``D_j ((g is a) - p_gj) / R_j`` up to i is subtracted. The test continues
    while enough records of all groups together are at risk.
    """
    groups = len(exits)
    # Blocks by the noise alone: a limit on their number would bias the test without noise.
    whole = Curve(exits.sum(axis=0), noise * np.sqrt(groups), blocks=None)
    last, total, risk = whole.usable, whole.events, whole.risk
    later = exits.sum(axis=1)[:, ::-1].cumsum(axis=1)[:, ::-1]
    at_risk = whole.within_blocks(later)
    part = at_risk / np.maximum(at_risk.sum(axis=0), 1.0)
    excess = exits[:, 0, :last].sum(axis=1) - part @ total
    # The mean error by the common noise of events and numbers at risk.
    first = whole.cuts[:-1]
    both = whole.block_noise[1] / groups / risk[first] if last else np.zeros(0)
    excess += (both * (1 - groups * part[:, first])).sum(axis=1)
    kept = np.clip(part, 0.0, 1.0)
    drawn = total * np.clip((risk - total) / np.maximum(risk - 1, _TINY), 0.0, 1.0)
    # The hypergeometric variance of sampling; that of the noise follows from the gradient.
    sampling = np.diag(kept @ drawn) - (kept * drawn) @ kept.T
    change = np.eye(groups)[1:, :, None] - part[1:, None, :]
    before = np.cumsum(total / risk * change, axis=2)
    rest = exits.shape[2] - last
    before = np.concatenate([before, np.repeat(before[..., -1:], rest, axis=2)], axis=2)
    change = np.pad(change, ((0, 0), (0, 0), (0, rest)))
    slopes = running.weights_of(np.stack([change - before, -before])) if last else before[None]
    of_noise = noise**2 * np.einsum("sgak,shak->gh", slopes, slopes)
    return LogRank(excess[1:], sampling[1:, 1:] + of_noise, last)
