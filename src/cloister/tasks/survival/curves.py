"""Survival curves, rates and tests from a noisy table of exits; all of it is post-processing.

The table ``exits`` has the shape ``(..., K + 1, 2)``: of each of K intervals of time, how many
records left with the event, and how many without it (censored). Intervals are open on the left
and closed on the right; the first begins at 0. **The last row is of those who were followed to the
end of all intervals**, whatever came then: it has one number, and 0. Numbers have independent
Gaussian noise of one deviation, in records, and may be negative. How many are at risk is a sum over
later rows, so that a record adds 1 to one number, whatever K is.

Curves are an :class:`~cloister.core.estimate.Estimate` at the K + 1 edges, the first of them 0;
between edges they run straight. The noise interval is for what the same formula says of the exact
table, the population interval holds sampling (Greenwood's variance), too. Where the number at risk
is not clear of its noise, nothing is known: from the first such interval on, a curve keeps its last
value, the end behind it is the farthest possible one, and pictures end.

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
from cloister.core.errors import PlanError
from cloister.core.estimate import Estimate
from cloister.protocol.task import INTERVAL_95, PublicColumn
from cloister.tasks.columns import position
from cloister.tasks.intervals import fieller
from cloister.tasks.tables.inference import NO_BOUND, odds_ratio

CLEAR = 3.5
"""A curve goes on while the number at risk is more than so many deviations of its noise."""
CLEAR_TEST = 2.0
"""A test uses an interval while all groups have more at risk than so many deviations."""
_LEAST_HAZARD, _MOST_HAZARD = -0.5, 0.95  # of one interval
_Z = INTERVAL_95["gaussian"]
_TINY = 1e-12


def followed(columns: Sequence[PublicColumn], time: str, event: str) -> tuple[int, int]:
    """Return the columns of how long a record was followed, and of whether the event ended that."""
    i, j = position(columns, time, "time"), position(columns, event, "event")
    if columns[i].levels or columns[i].low < 0:
        raise PlanError(f"time must be a column of numbers whose min is at least 0, got {time!r}.")
    if columns[j].categories != ("0", "1"):
        raise PlanError(f"event must be a column of true and false, got {event!r}.")
    return i, j


def word_of(row: Integers, event: Integers, intervals: int) -> Integers:
    """Return the number of a table to which each record adds 1, one after another."""
    return np.asarray(2 * row + ((event == 0) & (row < intervals)))


def table_of(words: Floats) -> Floats:
    """Return the table of exits, (..., K + 1, 2), from its 2 K + 1 numbers."""
    whole = np.concatenate([words, np.zeros_like(words[..., :1])], axis=-1)
    return whole.reshape(*words.shape[:-1], -1, 2)


def at_risk(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return how many are at risk in each interval, (..., K), and the deviation of its noise, (K,).

    Half of those who are censored in an interval count as being at risk in it.
    """
    still = np.cumsum(exits.sum(axis=-1)[..., ::-1], axis=-1)[..., :0:-1]
    words = 2.0 * np.arange(exits.shape[-2], 1, -1) - 1
    return still - exits[..., :-1, 1] / 2, noise * np.sqrt(words)


def usable(risk: Floats, std: Floats, clear: float = CLEAR) -> Flags:
    """Return in which intervals, from the first one on, the number at risk is clear of noise."""
    return np.logical_and.accumulate(risk > np.maximum(clear * std, 1.0), axis=-1)


def hazards(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the part of those at risk that has the event, and the number at risk, at least 1.

    The part is cut to what can be worked with, but not at 0: noise is as often below as above.
    """
    risk = np.maximum(*np.broadcast_arrays(*at_risk(exits, noise)))
    risk = np.maximum(risk, 1.0)
    return np.clip(exits[..., :-1, 0] / risk, _LEAST_HAZARD, _MOST_HAZARD), risk


def kaplan_meier(exits: Floats, noise: float) -> Estimate:
    """Return the part of the records without the event at each edge [KM58]_; (..., K + 1).

    The value never rises; the ends of its intervals may, as those of each place by itself do.
    """
    alive = cumulative_hazard(exits, noise).mapped(lambda part: np.exp(-part))
    assert alive.population is not None
    return Estimate(alive.values, alive.high, alive.low, population=alive.population[::-1])


def cumulative_hazard(exits: Floats, noise: float) -> Estimate:
    """Return minus the logarithm of the curve at each edge; shape (..., K + 1).

    It is what the sum of hazards [NA]_ estimates, without the half of their squares that this
    misses in intervals as wide as these.

    Notes
    -----
    A step is ``-log(1 - h)``, its derivative by its events ``w = 1 / (R (1 - h))``. The sum up to
    an interval t has, in the events and in the censored of interval i, the derivatives
    ``w_i - a_i`` and ``h_i w_i / 2 - a_i`` for ``i <= t``, and ``-a_t`` for later ones, where
    ``a_i`` is the sum of ``h w`` up to i: with more at risk each step before is smaller.
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
    total = np.cumsum(-np.log1p(-hazard), axis=-1)
    last = usable(*at_risk(exits, noise)).sum(axis=-1, keepdims=True)
    smooth = total.copy()
    for at in np.ndindex(total.shape[:-1]):
        if end := int(last[at][0]):
            weights = 1 / (of_both[at][:end] + _TINY)
            smooth[at][:end] = isotonic_regression(total[at][:end], weights=weights).x

    def held(values: Floats, then: float | None = None) -> Floats:
        whole = np.concatenate([np.zeros_like(values[..., :1]), values], axis=-1)
        place = np.arange(whole.shape[-1])
        kept: Floats = np.take_along_axis(whole, np.minimum(place, last), axis=-1)
        return kept if then is None else np.where(place <= last, kept, then)

    noisy, wide = (
        (held(total - _Z * np.sqrt(v)), held(total + _Z * np.sqrt(v), np.inf))
        for v in (of_noise, of_both)
    )
    whole = Estimate(held(smooth), *noisy, population=wide)
    return whole.mapped(lambda part: np.maximum(part, 0.0))


def _doubt(exits: Floats, risk: Floats) -> Floats:
    """Return what the sum may be off by, as who leaves an interval does so at times that differ.

    Half of the censored are at risk if, within an interval, events are as late as they are. With
    densities that go on as between neighbours, it is a twelfth of their slopes' difference more.
    """
    events, censored = np.moveaxis(exits[..., :-1, :], -1, 0)
    if events.shape[-1] < 2:
        return np.zeros_like(events)
    slopes = np.gradient(exits[..., :-1, :], axis=-2)
    apart = censored * slopes[..., 0] - events * slopes[..., 1]
    return np.asarray(np.cumsum(apart / (12 * risk**2), axis=-1))


def quantile(edges: Floats, survival: Estimate, last: Integers, part: float = 0.5) -> Estimate:
    """Return when a part of the records has had the event, (groups,); infinite if that is unknown.

    `survival` has the shape (groups, K + 1), and `last` says how many intervals are
    :func:`usable`. A lower end is at most the last usable edge.
    """
    known = np.arange(len(edges)) <= last[:, None]

    def crossing(curve: Floats) -> Floats:
        below = (curve <= 1 - part) & known
        after = np.maximum(below.argmax(axis=1), 1)[:, None]
        left, right = (np.take_along_axis(curve, after - k, axis=1) for k in (1, 0))
        share = (left - (1 - part)) / np.maximum(left - right, _TINY)
        found = edges[after - 1] + share * (edges[after] - edges[after - 1])
        return np.where(below.any(axis=1), found[:, 0], np.inf)

    def ends(low: Floats, high: Floats) -> tuple[Floats, Floats]:
        final = np.maximum.accumulate(np.where(known, high, 0.0)[:, ::-1], axis=1)[:, ::-1]
        return np.minimum(crossing(low), edges[last]), crossing(final)

    assert survival.population is not None
    wide = ends(*survival.population)
    return Estimate(crossing(survival.values), *ends(survival.low, survival.high), population=wide)


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of two or more groups.

    `excess` are the events of each group but the first less those expected if all were alike, with
    their covariance by sampling and noise; `intervals` is how many are used.
    """

    excess: Floats
    covariance: Floats
    intervals: int

    @property
    def testable(self) -> bool:
        """Whether the table says anything at all."""
        return self.intervals > 0 and bool(np.linalg.eigvalsh(self.covariance)[0] > _TINY)

    @property
    def statistic(self) -> float:
        """Chi-square with as many degrees of freedom as `excess` has entries; of two, Z^2."""
        return float(self.excess @ np.linalg.solve(self.covariance, self.excess))

    @property
    def p(self) -> float:
        """How likely so large a statistic is if all groups are alike."""
        from scipy.special import chdtrc

        return float(chdtrc(len(self.excess), self.statistic))


def log_rank(exits: Floats, noise: float) -> LogRank:
    """Compare groups [M66]_, whose exits have the shape (groups, K + 1, 2); the variance has noise.

    Notes
    -----
    ``U_g = sum_j d_gj - D_j p_gj``, where ``p_gj`` is the part of group g in those at risk. By the
    events of group a in interval i it changes by ``(g is a) - p_gi``, and, as they were at risk
    before, by minus the sum of ``D_j ((g is a) - p_gj) / R_j`` up to i.
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
    slopes[1, ..., -1] = 0  # beyond the horizon there is one number
    room = np.clip((whole - total) / np.maximum(whole - 1, _TINY), 0, 1)
    drawn = np.maximum(total, 0) * room * part[1:] * change[:, 1:]
    covariance = drawn.sum(axis=2) + noise**2 * np.einsum("sgak,shak->gh", slopes, slopes)
    return LogRank(excess, covariance, int(used.sum()))


def rates(exits: Floats, edges: Floats, noise: float) -> tuple[Estimate, Estimate]:
    """Return events per unit of time of each group, and over that of the first group.

    Parameters
    ----------
    exits : ndarray of shape (groups, K + 1, 2)
    edges : ndarray of shape (K + 1,), data units

    Notes
    -----
    The time that a record was followed is taken for the middle of its row, moved to where more
    records leave, as its neighbours show. The sum of these times, and how far it was moved, are
    sums of noisy numbers; the latter counts as one more deviation. The time is
    taken for given, as it is of a Poisson number of events, but its noise is that of events, too.
    """
    lengths, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    moves = np.zeros_like(middles)
    if len(moves) > 1:
        moves = np.gradient(np.diag(1 / lengths), middles, axis=1) @ lengths**3 / 12
    times, leaving = np.append(middles + moves, edges[-1]), exits.sum(axis=2)
    events, time = exits[:, :-1, 0].sum(axis=1), leaving @ times
    of_events, both = noise**2 * len(moves), noise**2 * float(times[:-1].sum())
    of_time = noise**2 * float(2 * times @ times - times[-1] ** 2)
    of_time = of_time + (leaving[:, :-1] @ moves) ** 2
    noisy, wide = (
        fieller(events, time, of_events + sampled, of_time, both, box=(0.0, np.inf))
        for sampled in (0.0, np.maximum(events, 0))
    )
    value = np.maximum(events, 0) / np.maximum(time, edges[-1])
    found = Estimate(value, *noisy, population=wide)
    sides, deviations = (
        np.stack([part[1:], np.broadcast_to(part[0], part[1:].shape)], axis=1)
        for part in (
            np.stack([events, time], axis=1),
            np.sqrt(np.stack([np.full_like(of_time, of_events), of_time], axis=1)),
        )
    )
    ratios, _ = odds_ratio(sides, deviations, np.array([1.0, 0.0]), both)
    return found, ratios.mapped(lambda part: np.where(part < NO_BOUND, part, np.inf))


def usual_intervals(nominal_n: int, groups: int, noise: float) -> int:
    """Return how many intervals suit a plan: few where there is much noise, in [4, 60]."""
    return int(np.clip(round((nominal_n / (groups * max(noise, _TINY))) ** 0.4), 4, 60))
