"""Survival curves, rates and tests from a noisy table of exits; all of it is post-processing.

The table ``exits`` has the shape ``(..., K, 2)``: in each of K intervals of time the number of
records that left with the event, and of those that left without it (censored). Intervals are open
on the left and closed on the right; the first begins at 0. Its words have independent Gaussian
noise of one deviation, in records, and may be negative. How many are at risk is a sum over the
intervals that follow, so that a record adds 1 to one word, whatever K is.

Values at the K + 1 edges of the intervals, the first of them 0, are :class:`Estimate`; between
edges they run straight. Two kinds of interval: that of the noise alone is for what the same
formula says of the exact table, the population interval holds sampling (Greenwood's variance), too.

Where the number at risk is not clear of its noise, nothing is known: from the first such interval
on, a curve keeps its last value, its lower end is the least possible one, and pictures end.

References
----------
.. [KM58] Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958.
.. [G26] Greenwood, "The natural duration of cancer", Reports on Public Health 33, 1926.
.. [M66] Mantel, "Evaluation of survival data and two new rank order statistics arising in its
   consideration", Cancer Chemotherapy Reports 50, 1966: the log-rank test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.arrays import Flags, Floats, Integers
from cloister.task import INTERVAL_95
from cloister.tasks.intervals import fieller
from cloister.tasks.scores import Estimate

CLEAR = 3.0
"""A curve goes on while the number at risk is more than so many deviations of its noise."""
CLEAR_TEST = 2.0
"""A test uses an interval while all groups have more at risk than so many deviations."""
_LEAST_HAZARD, _MOST_HAZARD = -0.5, 0.95  # of one interval
_Z = INTERVAL_95["gaussian"]
_TINY = 1e-12


def at_risk(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return how many are at risk in each interval, and the deviation of its noise.

    Half of those who are censored in an interval count as being at risk in it.

    Parameters
    ----------
    exits : ndarray of shape (..., K, 2)
    noise : float, >= 0
        Standard deviation of a word, in records.

    Returns
    -------
    risk : ndarray of shape (..., K)
    std : ndarray of shape (K,)
    """
    still = np.cumsum(exits.sum(axis=-1)[..., ::-1], axis=-1)[..., ::-1]
    words = 2.0 * np.arange(exits.shape[-2], 0, -1)
    return still - exits[..., 1] / 2, noise * np.sqrt(words)


def usable(risk: Floats, std: Floats, clear: float = CLEAR) -> Flags:
    """Return in which intervals, from the first one on, the number at risk is clear of noise."""
    return np.logical_and.accumulate(risk > np.maximum(clear * std, 1.0), axis=-1)


def hazards(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the part of those at risk that has the event, and the number at risk, at least 1.

    The part is cut to what can be worked with, but not at 0: noise is as often below as above.
    """
    risk, std = at_risk(exits, noise)
    risk = np.maximum(risk, np.maximum(std, 1.0))
    return np.clip(exits[..., 0] / risk, _LEAST_HAZARD, _MOST_HAZARD), risk


def kaplan_meier(exits: Floats, noise: float) -> Estimate:
    """Return the part of the records without the event at each edge [KM58]_; (..., K + 1).

    The value never rises; the ends of its intervals may, as those of each place by itself do.
    """
    hazard, risk = hazards(exits, noise)
    weight = 1 / (risk * (1 - hazard))
    total, of_noise, of_sampling = _running(-np.log1p(-hazard), hazard, weight, noise)
    last = usable(*at_risk(exits, noise)).sum(axis=-1)
    smooth = _never_falling(total, 1 / (of_noise + of_sampling + _TINY), last)

    def band(variance: Floats) -> tuple[Floats, Floats]:
        spread = _Z * np.sqrt(variance)
        low, high = (np.clip(np.exp(-(total + side * spread)), 0, 1) for side in (1, -1))
        return _held(low, last, 1.0, 0.0), _held(high, last, 1.0)

    value = _held(np.exp(-smooth), last, 1.0)
    return Estimate(value, *band(of_noise), population=band(of_noise + of_sampling))


def nelson_aalen(exits: Floats, noise: float) -> Estimate:
    """Return the cumulative hazard at each edge; shape (..., K + 1), as :func:`kaplan_meier`."""
    hazard, risk = hazards(exits, noise)
    total, of_noise, of_sampling = _running(hazard, hazard, 1 / risk, noise)
    last = usable(*at_risk(exits, noise)).sum(axis=-1)
    smooth = _never_falling(total, 1 / (of_noise + of_sampling + _TINY), last)

    def band(variance: Floats) -> tuple[Floats, Floats]:
        spread = _Z * np.sqrt(variance)
        low, high = (np.maximum(total + side * spread, 0) for side in (-1, 1))
        return _held(low, last, 0.0), _held(high, last, 0.0, np.inf)

    value = _held(smooth, last, 0.0)
    return Estimate(value, *band(of_noise), population=band(of_noise + of_sampling))


def _running(
    steps: Floats, hazard: Floats, weight: Floats, noise: float
) -> tuple[Floats, Floats, Floats]:
    """Return running sums of steps of a hazard, and their variances by noise and by sampling.

    `weight` is the derivative of a step by its number of events. The sum up to an interval t has,
    in the events and in the censored of interval i, the derivatives ``w_i - a_i`` and
    ``h_i w_i / 2 - a_i`` for ``i <= t``, and ``-a_t`` for later ones, where ``a_i`` is the sum of
    ``h w`` up to i: more records at risk make each step before smaller.
    """
    moved = np.cumsum(hazard * weight, axis=-1)
    own = (weight - moved) ** 2 + (hazard * weight / 2 - moved) ** 2
    later = np.arange(hazard.shape[-1])[::-1]
    of_noise = noise**2 * (np.cumsum(own, axis=-1) + 2 * later * moved**2)
    of_sampling = np.cumsum(np.maximum(hazard, 0) * weight, axis=-1)
    return np.cumsum(steps, axis=-1), of_noise, of_sampling


def _never_falling(values: Floats, weights: Floats, last: Integers) -> Floats:
    """Return the nearest function that never falls, and is not below 0; up to `last` only."""
    from scipy.optimize import isotonic_regression

    found = values.copy()
    for at in np.ndindex(values.shape[:-1]):
        end = last[at]
        if end:
            found[at][:end] = isotonic_regression(values[at][:end], weights=weights[at][:end]).x
    return np.maximum(found, 0.0)


def _held(values: Floats, last: Integers, start: float, then: float | None = None) -> Floats:
    """Return values at edges, `start` before them; after `last` the last one, or `then`."""
    whole = np.concatenate([np.full_like(values[..., :1], start), values], axis=-1)
    place, end = np.arange(whole.shape[-1]), last[..., None]
    kept: Floats = np.take_along_axis(whole, np.minimum(place, end), axis=-1)
    return kept if then is None else np.where(place <= end, kept, then)


def quantile(edges: Floats, survival: Estimate, last: Integers, part: float = 0.5) -> Estimate:
    """Return when a part of the records has had the event; infinite where that is not known.

    Parameters
    ----------
    edges : ndarray of shape (K + 1,)
    survival : Estimate of shape (groups, K + 1)
    last : ndarray of shape (groups,)
        How many intervals are :func:`usable`.
    part : float in (0, 1)

    Returns
    -------
    Estimate of shape (groups,)
        The lower end is at most the last usable edge.
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
    return Estimate(
        crossing(survival.value),
        *ends(survival.low, survival.high),
        population=ends(*survival.population),
    )


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of two or more groups; not testable without an interval that is used.

    Parameters
    ----------
    excess : ndarray of shape (groups - 1,)
        Events of each group but the first less those expected if all groups were alike.
    covariance : ndarray of shape (groups - 1, groups - 1)
        Of sampling and of noise, if all groups are alike.
    intervals : int
        How many are used.
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
    """Compare groups [M66]_, whose exits have the shape (groups, K, 2), with noise in the variance.

    Notes
    -----
    ``U_g = sum_j d_gj - D_j p_gj``, where ``p_gj`` is the part of group g in those at risk. By the
    events of group a in interval i it changes by ``(g is a) - p_gi``, and, as they were at risk
    before, by minus the sum of ``D_j ((g is a) - p_gj) / R_j`` up to i.
    """
    risk, std = at_risk(exits, noise)
    used = usable(risk, std, CLEAR_TEST).all(axis=0)
    risk = np.where(used, risk, 1.0)
    whole, events = risk.sum(axis=0), exits[..., 0] * used
    total, part = events.sum(axis=0), risk / whole
    excess = (events - total * part).sum(axis=1)[1:]
    change = (np.eye(len(risk))[1:, :, None] - part[1:, None, :]) * used
    before = np.cumsum(total / whole * change, axis=2)
    slopes = np.stack([change - before, total / (2 * whole) * change - before])
    room = np.clip((whole - total) / np.maximum(whole - 1, _TINY), 0, 1)
    drawn = np.maximum(total, 0) * room * part[1:] * change[:, 1:]
    covariance = drawn.sum(axis=2) + noise**2 * np.einsum("sgak,shak->gh", slopes, slopes)
    return LogRank(excess, covariance, int(used.sum()))


def rates(person_time: Floats, noise: float) -> Estimate:
    """Return events per unit of time, from (..., 2) noisy numbers of events and units of time."""
    events, time = person_time[..., 0], person_time[..., 1]
    ends = [
        fieller(events, time, noise**2 + sampled, noise**2, box=(0.0, np.inf))
        for sampled in (0.0, np.maximum(events, 0))
    ]
    return Estimate(np.maximum(events, 0) / np.maximum(time, 1.0), *ends[0], population=ends[1])


def rate_ratios(person_time: Floats, noise: float) -> Estimate:
    """Return the rate of each group over that of the first, from (groups, 2); (groups - 1,).

    Products of independent noisy numbers are right on average. The variance of the product of x
    and y is estimated without bias by ``x^2 v_y + y^2 v_x - v_x v_y``.
    """
    (events, *_), (time, *_) = person_time.T
    others = person_time[1:]
    first, second = others[:, 0] * time, events * others[:, 1]

    def product(x: Floats, of_x: Floats, y: Floats) -> Floats:
        both = of_x * noise**2
        return np.maximum(x**2 * noise**2 + y**2 * of_x - both, both)

    ends = []
    for sampled in (0.0, 1.0):
        of_others = noise**2 + sampled * np.maximum(others[:, 0], 0)
        of_first = noise**2 + sampled * np.maximum(events, 0)
        variances = product(others[:, 0], of_others, time), product(events, of_first, others[:, 1])
        ends.append(fieller(first, second, *variances, box=(0.0, np.inf)))
    value = np.maximum(first, 0) / np.maximum(second, 1.0)
    return Estimate(value, *ends[0], population=ends[1])


def usual_intervals(nominal_n: int, groups: int, noise: float) -> int:
    """Return how many intervals suit a plan: few where there is much noise, in [4, 60]."""
    return int(np.clip(round((nominal_n / (groups * max(noise, _TINY))) ** 0.4), 4, 60))
