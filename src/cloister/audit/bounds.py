"""Exact bounds on a privacy claim from counts of events, with their error probabilities.

This module is independent of the audited method. A claim is a curve delta(epsilon): for neighbours
and every event E, ``P(E) - exp(epsilon) P'(E) <= delta(epsilon)``, in both directions.

References
----------
.. [SNJ23] Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
   arXiv:2305.08846.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from cloister.privacy import accounting
from cloister.privacy.events import Event
from cloister.protocol.task import Floats

PARTS = (1.0, 0.2, 0.05)
"""Fractions of delta(0) at which a curve is tested; there, few runs suffice."""

ENOUGH = 0.1
"""Fraction of a claim that runs must show; with less they have no power."""

THRESHOLDS = (1.0, 0.6, 0.25)
"""Thresholds of a score, as fractions of epsilon. A worst case attains the claim at epsilon. If the
noise is r times the scale that the score assumes, the best threshold is r^2 epsilon."""


def at_least(count: int, runs: int, alpha: float) -> float:
    """Return the Clopper-Pearson lower bound of a probability, wrong with probability `alpha`."""
    return float(stats.beta.ppf(alpha, count, runs - count + 1)) if count > 0 else 0.0


def at_most(count: int, runs: int, alpha: float) -> float:
    """Return the Clopper-Pearson upper bound of a probability, wrong with probability `alpha`."""
    return float(stats.beta.isf(alpha, count + 1, runs - count)) if count < runs else 1.0


@dataclass(frozen=True)
class Check:
    """One point of a claimed curve and one event, with its counts in two worlds.

    Parameters
    ----------
    epsilon, delta : float
        The point of the claim.
    likely, rare : int
        Number of runs in the event, of `runs` in the world where it is likely, and in the other.
    alpha : float
        Error probability of each of the two bounds.
    """

    epsilon: float
    delta: float
    likely: int
    rare: int
    runs: int
    alpha: float

    @property
    def seen(self) -> float:
        """The estimate of ``P(E) - exp(epsilon) P'(E)``."""
        return (self.likely - math.exp(self.epsilon) * self.rare) / self.runs

    @property
    def least_delta(self) -> float:
        """Lower bound on delta(epsilon), wrong with probability at most ``2 alpha``."""
        return self.least(self.alpha)

    def least(self, alpha: float) -> float:
        """Return a lower bound on delta(epsilon), wrong with probability at most ``2 alpha``."""
        low = at_least(self.likely, self.runs, alpha)
        high = at_most(self.rare, self.runs, alpha)
        return low - math.exp(self.epsilon) * high

    @property
    def alarms(self) -> bool:
        """True if the claim is refuted."""
        return self.least_delta > self.delta


def best_at_95(checks: Iterable[Check]) -> list[tuple[Check, float]]:
    """Return the check with the largest bound, and the bound, for each point of a claim.

    All lower bounds of one point together are wrong with probability at most 5 %.
    """
    by_point: dict[float, list[Check]] = {}
    for check in checks:
        by_point.setdefault(check.epsilon, []).append(check)
    best_checks = []
    for _, here in sorted(by_point.items()):
        # Two bounds for each check, and the best of several is chosen: a union bound.
        alpha = 0.05 / (2 * len(here))
        best = max(here, key=lambda check: check.least(alpha))
        best_checks.append((best, max(best.least(alpha), 0.0)))
    return best_checks


def points(event: Event) -> list[tuple[float, float]]:
    """Return the points (epsilon, delta) of a claim where delta is each of `PARTS` of delta(0)."""
    whole = accounting.delta(event, 0.0)
    epsilons = [
        accounting.epsilon(event, fraction * whole) if fraction < 1 else 0.0 for fraction in PARTS
    ]
    return [(epsilon, accounting.delta(event, epsilon)) for epsilon in epsilons]


def most_shown(checks: Iterable[Check]) -> tuple[Check, float]:
    """Return the check with the largest 95 % lower bound relative to its claim, and the bound."""
    # A claimed delta may be 0.
    return max(best_at_95(checks), key=lambda best: best[1] / max(best[0].delta, 1e-12))


def shown_part(checks: Sequence[Check]) -> float:
    """Return the largest 95 % lower bound as a fraction of the claimed delta at its point."""
    if not checks:
        return 0
    check, bound = most_shown(checks)
    return bound / max(check.delta, 1e-12)


def attainable(delta_at: Callable[[float], float], checks: Iterable[Check]) -> float:
    """Return the approximate value of :func:`shown_part` for a pair that attains the claim.

    Notes
    -----
    If a pair attains a curve, the event that attains ``delta(epsilon)`` has the probability
    ``-delta'(epsilon) exp(-epsilon)`` in the world in which it is rare.
    """
    attained = []
    for check in checks:
        step = 0.02
        slope = (delta_at(check.epsilon + step) - delta_at(check.epsilon)) / step
        rare = min(1.0, max(0.0, -slope) * math.exp(-check.epsilon))
        likely = min(1.0, check.delta + math.exp(check.epsilon) * rare)
        expected = (round(p * check.runs) for p in (likely, rare))
        attained.append(replace(check, **dict(zip(("likely", "rare"), expected, strict=True))))
    return shown_part(attained)


def compare(
    curve: list[tuple[float, float]], without: Floats, with_it: Floats, alpha: float
) -> list[Check]:
    """Compare scores of two worlds with points of a claim, in both directions.

    Parameters
    ----------
    without, with_it : ndarray of shape (runs,)
        Log-likelihood ratios; large values indicate the world with the record.
    alpha : float
        Largest probability that the whole comparison alarms on a true claim.
    """
    runs = len(without)
    # Points, thresholds, two directions, and two bounds in each: a union bound.
    each = alpha / (len(curve) * len(THRESHOLDS) * 2 * 2)
    checks = []
    for epsilon, delta in curve:
        for fraction in THRESHOLDS:
            for sign, likely, rare in ((1, with_it, without), (-1, without, with_it)):
                many, few = (int((sign * s > fraction * epsilon).sum()) for s in (likely, rare))
                checks.append(Check(epsilon, delta, many, few, runs, each))
    return checks


def guesses_p_value(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Return the largest probability of `correct` guesses or more under a claim [SNJ23]_.

    Each of `canaries` records is present by an independent fair coin. An attacker guesses the
    presence of `guesses` of them from one run. Theorem 5.2 bounds the number of correct guesses.

    Notes
    -----
    With W binomial(guesses, 1 / (1 + exp(-epsilon))) it is
    ``P(W >= correct) + 2 canaries delta a``, and a is the largest
    ``P(correct - i <= W < correct) / i`` over i from 1 to `correct`.
    """
    hit = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, hit))
    back = np.arange(1, correct + 1)
    below = np.cumsum(stats.binom.pmf(correct - back, guesses, hit))
    worst = float((below / back).max()) if correct else 0.0
    return min(1.0, tail + 2 * canaries * delta * worst)


def guesses_epsilon(correct: int, guesses: int, canaries: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that the guesses refute at `alpha`; 0 if they refute none."""
    low, high = 0.0, 30.0
    if guesses_p_value(correct, guesses, canaries, low, delta) >= alpha:
        return 0.0
    # `low` is always refuted, so the returned bound is never too large.
    for _ in range(50):
        middle = (low + high) / 2
        refuted = guesses_p_value(correct, guesses, canaries, middle, delta) < alpha
        low, high = (middle, high) if refuted else (low, middle)
    return low


def uniform_fit(places: Floats) -> dict[str, float]:
    """Test whether numbers are uniform in (0, 1) and independent.

    Returns
    -------
    dict of str to float
        p-values: *spread*, exact, of the squares of normal scores, most sensitive to a wrong scale.
        *ks*, by the bound of Dvoretzky, Kiefer, Wolfowitz and Massart. *bins*, Pearson's on ten.
    """
    n = places.size
    squares = float((stats.norm.ppf(places) ** 2).sum())
    spread = 2 * min(stats.chi2.cdf(squares, n), stats.chi2.sf(squares, n))
    ordered = np.sort(places)
    steps = np.arange(n + 1) / n
    distance = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    bins = max(1, min(10, n // 250))  # at least 250 per bin, so that chi-squared is accurate
    seen = np.bincount(np.minimum((places * bins).astype(np.int64), bins - 1), minlength=bins)
    pearson = ((seen - n / bins) ** 2).sum() / (n / bins)
    return {
        "spread": min(1.0, float(spread)),
        "ks": min(1.0, 2 * math.exp(-2 * n * float(distance) ** 2)),
        # Doubled: near 1e-10 the exact tail is up to 1.21 times the chi-squared tail.
        "bins": min(1.0, 2 * float(stats.chi2.sf(pearson, bins - 1))) if bins > 1 else 1.0,
    }


def correlation(left: Floats, right: Floats) -> float:
    """Return the p-value of independence of two equally long runs of normal numbers; exact."""
    r = float(left @ right / math.sqrt(float(left @ left) * float(right @ right)))
    return correlated(r, left.size)


def correlated(r: float, n: int) -> float:
    """Return the probability that the correlation of `n` pairs of normal numbers exceeds `r`."""
    if n < 3:
        return 1.0
    # With known mean 0, r^2 follows Beta(1/2, (n - 1)/2).
    return float(special.betainc((n - 1) / 2, 0.5, max(0.0, 1 - min(abs(r), 1.0) ** 2)))
