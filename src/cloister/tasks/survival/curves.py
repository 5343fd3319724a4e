"""Survival curves, rates and tests from a noisy table of exits, by post-processing.

The table ``exits`` has the shape ``(..., K + 1, 2)``. For each of K intervals of time it holds the
numbers of records that left with the event and without it (censored). Intervals are open on the
left and closed on the right; the first begins at 0. **The last row counts the records followed to
the end of all intervals**, with or without a later event: it has one number, and 0. Numbers have
independent Gaussian noise of one deviation, in records, and may be negative. The number at risk is
a sum over later rows, so that a record adds 1 to one number for every K.

Curves are an :class:`~cloister.core.display.Estimate` at the K + 1 edges, the first of them 0, and
linear between edges. The noise interval is for the result of the same formula on the exact table.
The population interval also holds sampling (Greenwood's variance). A curve is unknown where the
number at risk is not well above its noise. From the first such interval on, the curve keeps its
last value, its interval extends to the farthest possible value, and pictures end.

References
----------
.. [KM58] Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958.
.. [G26] Greenwood, "The natural duration of cancer", Reports on Public Health 33, 1926.
.. [NA] Nelson, "Theory and applications of hazard plotting for censored failure data",
   Technometrics 14, 1972, and Aalen, "Nonparametric inference for a family of counting processes",
   Annals of Statistics 6, 1978.
.. [M66] Mantel, "Evaluation of survival data and two new rank order statistics arising in its
   consideration", Cancer Chemotherapy Reports 50, 1966: the log-rank test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.display import Estimate
from cloister.core.errors import PlanError
from cloister.protocol.task import INTERVAL_95, PublicColumn
from cloister.tasks.columns import position
from cloister.tasks.intervals import fieller
from cloister.tasks.tables.inference import NO_BOUND, odds_ratio

CLEAR = 3.5
"""A curve continues while the number at risk exceeds this many deviations of its noise."""
CLEAR_TEST = 2.0
"""A test uses an interval while the number at risk in all groups exceeds this many deviations."""
_LEAST_HAZARD, _MOST_HAZARD = -0.5, 0.95  # of one interval, so that log(1 - hazard) is finite
_Z = INTERVAL_95["gaussian"]
_TINY = 1e-12


def followed(columns: Sequence[PublicColumn], time: str, event: str) -> tuple[int, int]:
    """Return the indices of the columns of follow-up time and of the event."""
    i, j = position(columns, time, "time"), position(columns, event, "event")
    if columns[i].levels or columns[i].low < 0:
        raise PlanError(f"time must be a numeric column whose min is at least 0, got {time!r}.")
    if columns[j].categories != ("0", "1"):
        raise PlanError(f"event must be a boolean column, got {event!r}.")
    return i, j


def word_of(row: Integers, event: Integers, intervals: int) -> Integers:
    """Return the index of the number of a table to which each record adds 1."""
    # The last row has a single number, for records with and without a later event.
    return np.asarray(2 * row + ((event == 0) & (row < intervals)))


def table_of(words: Floats) -> Floats:
    """Return the table of exits, (..., K + 1, 2), from its 2 K + 1 numbers."""
    whole = np.concatenate([words, np.zeros_like(words[..., :1])], axis=-1)
    return whole.reshape(*words.shape[:-1], -1, 2)


def at_risk(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the number at risk in each interval, (..., K), and the deviation of its noise, (K,).

    Half of the records that are censored in an interval count as being at risk in it.
    """
    # Sums over later rows: a table of numbers at risk would have K times the squared norm.
    still = np.cumsum(exits.sum(axis=-1)[..., ::-1], axis=-1)[..., :0:-1]
    words = 2.0 * np.arange(exits.shape[-2], 1, -1) - 1
    return still - exits[..., :-1, 1] / 2, noise * np.sqrt(words)


def usable(risk: Floats, std: Floats, clear: float = CLEAR) -> Flags:
    """Return the mask of intervals, from the first on, whose number at risk is above its noise."""
    return np.logical_and.accumulate(risk > np.maximum(clear * std, 1.0), axis=-1)


def hazards(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the hazard of each interval, and the number at risk, at least 1."""
    # Not cut at 0: sums of noisy hazards are unbiased, sums of hazards cut at 0 are not.
    risk = np.maximum(*np.broadcast_arrays(*at_risk(exits, noise)))
    risk = np.maximum(risk, 1.0)
    return np.clip(exits[..., :-1, 0] / risk, _LEAST_HAZARD, _MOST_HAZARD), risk


def kaplan_meier(exits: Floats, noise: float) -> Estimate:
    """Return the share of the records without the event at each edge [KM58]_; (..., K + 1).

    The value never rises. The ends of its intervals may, since each edge has a separate interval.
    """
    alive = cumulative_hazard(exits, noise).mapped(lambda part: np.exp(-part))
    assert alive.population is not None
    return Estimate(alive.values, alive.high, alive.low, population=alive.population[::-1])


def cumulative_hazard(exits: Floats, noise: float) -> Estimate:
    """Return minus the logarithm of the curve at each edge; shape (..., K + 1).

    The sum of hazards [NA]_ estimates the same, but misses half of their squares in wide intervals.

    Notes
    -----
    A step is ``-log(1 - h)``, and its derivative by its events is ``w = 1 / (R (1 - h))``. Let
    ``a_i`` be the sum of ``h w`` up to i: with more at risk each earlier step is smaller. For
    ``i <= t`` the sum up to an interval t has the derivative ``w_i - a_i`` by the events of
    interval i, and ``h_i w_i / 2 - a_i`` by its censored records. For later intervals both are
    ``-a_t``.
    """
    from scipy.optimize import isotonic_regression

    hazard, risk = hazards(exits, noise)
    weight = 1 / (risk * (1 - hazard))
    moved = np.cumsum(hazard * weight, axis=-1)
    own = (weight - moved) ** 2 + (hazard * weight / 2 - moved) ** 2
    later = 2 * np.arange(hazard.shape[-1], 0, -1) - 1
    of_noise = noise**2 * (np.cumsum(own, axis=-1) + later * moved**2)
    of_noise = of_noise + _doubt(exits, risk) ** 2
    of_both = of_noise + np.cumsum(np.maximum(hazard, 0) * weight, axis=-1)  # [G26]_
    # Hazards may be negative, so the sum may fall; isotonic regression makes the value monotone.
    # The intervals keep the sum itself, whose noise is known.
    total = np.cumsum(-np.log1p(-hazard), axis=-1)
    last = usable(*at_risk(exits, noise)).sum(axis=-1, keepdims=True)
    smooth = total.copy()
    for at in np.ndindex(total.shape[:-1]):
        if end := int(last[at][0]):
            weights = 1 / (of_both[at][:end] + _TINY)
            smooth[at][:end] = isotonic_regression(total[at][:end], weights=weights).x

    def held(values: Floats, beyond: float | None = None) -> Floats:
        padded = np.concatenate([np.zeros_like(values[..., :1]), values], axis=-1)
        index = np.arange(padded.shape[-1])
        kept: Floats = np.take_along_axis(padded, np.minimum(index, last), axis=-1)
        return kept if beyond is None else np.where(index <= last, kept, beyond)

    noisy, wide = (
        (held(total - _Z * np.sqrt(v)), held(total + _Z * np.sqrt(v), np.inf))
        for v in (of_noise, of_both)
    )
    whole = Estimate(held(smooth), *noisy, population=wide)
    return whole.mapped(lambda part: np.maximum(part, 0.0))


def _doubt(exits: Floats, risk: Floats) -> Floats:
    """Return the possible error of the sum due to different exit times within intervals.

    Half of the censored are at risk if events and censoring have the same density in an interval.
    If both densities continue their slopes, the number at risk changes by a twelfth of the slopes'
    difference.
    """
    events, censored = np.moveaxis(exits[..., :-1, :], -1, 0)
    if events.shape[-1] < 2:
        return np.zeros_like(events)
    slopes = np.gradient(exits[..., :-1, :], axis=-2)
    slope_difference = censored * slopes[..., 0] - events * slopes[..., 1]
    return np.asarray(np.cumsum(slope_difference / (12 * risk**2), axis=-1))


def quantile(edges: Floats, survival: Estimate, last: Integers, part: float = 0.5) -> Estimate:
    """Return the time when a part of the records had the event, (groups,); infinite if unknown.

    `survival` has the shape (groups, K + 1), and `last` is the number of :func:`usable` intervals.
    A lower end is at most the last usable edge.
    """
    usable_edges = np.arange(len(edges)) <= last[:, None]

    def crossing(curve: Floats) -> Floats:
        below = (curve <= 1 - part) & usable_edges
        after = np.maximum(below.argmax(axis=1), 1)[:, None]
        left, right = (np.take_along_axis(curve, after - k, axis=1) for k in (1, 0))
        share = (left - (1 - part)) / np.maximum(left - right, _TINY)
        time = edges[after - 1] + share * (edges[after] - edges[after - 1])
        return np.where(below.any(axis=1), time[:, 0], np.inf)

    def ends(low: Floats, high: Floats) -> tuple[Floats, Floats]:
        # Ends may rise again: the upper end of the time is after the last edge above the level.
        final = np.maximum.accumulate(np.where(usable_edges, high, 0.0)[:, ::-1], axis=1)[:, ::-1]
        return np.minimum(crossing(low), edges[last]), crossing(final)

    assert survival.population is not None
    wide = ends(*survival.population)
    return Estimate(crossing(survival.values), *ends(survival.low, survival.high), population=wide)


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of two or more groups.

    `excess` are the events of each group but the first, minus the events expected if all groups
    were alike. `covariance` is that of sampling and noise, and `intervals` the number of intervals
    used.
    """

    excess: Floats
    covariance: Floats
    intervals: int

    @property
    def testable(self) -> bool:
        """True if at least one interval is used and the covariance has full rank."""
        return self.intervals > 0 and bool(np.linalg.eigvalsh(self.covariance)[0] > _TINY)

    @property
    def statistic(self) -> float:
        """Chi-square with one degree of freedom per entry of `excess`; Z^2 for two groups."""
        return float(self.excess @ np.linalg.solve(self.covariance, self.excess))

    @property
    def p(self) -> float:
        """Probability of a statistic at least this large if all groups are alike."""
        from scipy.special import chdtrc

        return float(chdtrc(len(self.excess), self.statistic))


def log_rank(exits: Floats, noise: float) -> LogRank:
    """Compare groups [M66]_ whose exits have the shape (groups, K + 1, 2), including the noise.

    Notes
    -----
    ``U_g = sum_j d_gj - D_j p_gj``, where ``p_gj`` is the share of group g in the records at risk.
    Its derivative by the events of group a in interval i is ``(g is a) - p_gi``. As these were at
    risk before, the sum of ``D_j ((g is a) - p_gj) / R_j`` up to i is subtracted.
    """
    risk, std = at_risk(exits, noise)
    used = np.append(usable(risk, std, CLEAR_TEST).all(axis=0), False)
    risk = np.where(used, np.pad(risk, ((0, 0), (0, 1))), 1.0)
    whole, events = risk.sum(axis=0), exits[..., 0] * used
    total, part = events.sum(axis=0), risk / whole
    excess = (events - total * part).sum(axis=1)[1:]
    change = (np.eye(len(risk))[1:, :, None] - part[1:, None, :]) * used
    before = np.cumsum(total / whole * change, axis=2)
    slopes = np.stack([change - before, total / (2 * whole) * change - before])
    slopes[1, ..., -1] = 0  # beyond the horizon the second number is 0 and has no noise
    room = np.clip((whole - total) / np.maximum(whole - 1, _TINY), 0, 1)
    # The hypergeometric variance of sampling; that of the noise follows from the gradient.
    drawn = np.maximum(total, 0) * room * part[1:] * change[:, 1:]
    covariance = drawn.sum(axis=2) + noise**2 * np.einsum("sgak,shak->gh", slopes, slopes)
    return LogRank(excess, covariance, int(used.sum()))


def rates(exits: Floats, edges: Floats, noise: float) -> tuple[Estimate, Estimate]:
    """Return events per unit of time of each group, and their ratios to the first group.

    Parameters
    ----------
    exits : ndarray of shape (groups, K + 1, 2)
    edges : ndarray of shape (K + 1,), data units

    Notes
    -----
    The follow-up time of a record is the middle of its row, moved by the slope that neighbouring
    rows show. The sum of these times and the sum of the moves are sums of noisy numbers. The second
    sum counts as one more deviation of the first. For the population interval the events are a
    Poisson number and the time is fixed. Its noise is correlated with that of the events.
    """
    lengths, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    moves = np.zeros_like(middles)
    if len(moves) > 1:
        moves = np.gradient(np.diag(1 / lengths), middles, axis=1) @ lengths**3 / 12
    times, leaving = np.append(middles + moves, edges[-1]), exits.sum(axis=2)
    events, time = exits[:, :-1, 0].sum(axis=1), leaving @ times
    of_events, covariance = noise**2 * len(moves), noise**2 * float(times[:-1].sum())
    of_time = noise**2 * float(2 * times @ times - times[-1] ** 2)
    of_time = of_time + (leaving[:, :-1] @ moves) ** 2
    noisy, wide = (
        fieller(events, time, of_events + sampled, of_time, covariance, box=(0.0, np.inf))
        for sampled in (0.0, np.maximum(events, 0))
    )
    # At least one record over the whole horizon, since noise may leave less.
    value = np.maximum(events, 0) / np.maximum(time, edges[-1])
    estimate = Estimate(value, *noisy, population=wide)
    pairs, deviations = (
        np.stack([part[1:], np.broadcast_to(part[0], part[1:].shape)], axis=1)
        for part in (
            np.stack([events, time], axis=1),
            np.sqrt(np.stack([np.full_like(of_time, of_events), of_time], axis=1)),
        )
    )
    # A ratio of rates is events x time over time x events, the products of an odds ratio.
    ratios, _ = odds_ratio(pairs, deviations, np.array([1.0, 0.0]), covariance)
    return estimate, ratios.mapped(lambda part: np.where(part < NO_BOUND, part, np.inf))


def usual_intervals(nominal_n: int, groups: int, noise: float) -> int:
    """Return a number of intervals in [4, 60]; the more noise, the fewer."""
    return int(np.clip(round((nominal_n / (groups * max(noise, _TINY))) ** 0.4), 4, 60))
