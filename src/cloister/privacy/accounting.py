"""The cost of events: one theorem per function, composed first and converted once.

Pure Gaussian schedules use Gaussian differential privacy, which is exact. All others use the
smallest of up to three valid bounds. These are the sum of their epsilons, zero-concentrated
differential privacy, and a numerical privacy loss distribution that rounds upwards.

All results hold for the continuous mechanisms. `calibration.lattice_sigma` makes the discrete
Gaussian noise of a release at least as private as the continuous noise that is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from types import UnionType
from typing import Any, TypeAlias

from cloister.core.declared import Range
from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget, checked, checked_delta, checked_epsilon
from cloister.privacy.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    LossEvent,
    Mechanism,
    NonPrivateEvent,
    SampledGaussianEvent,
    mechanism_counts,
)

_Counts: TypeAlias = tuple[tuple[Mechanism, int], ...]

# Width of the discretised privacy losses: this fraction of a closed-form epsilon at delta = 1e-6.
# The relative excess of the result is about 1e-4 (7000 Laplace events: 3e-5), and it takes tens of
# milliseconds.
_PLD_RESOLUTION = 1 / 20_000
_SAMPLED_RESOLUTION = 1 / 4_000  # with sampled mechanisms, whose losses take longer to compute
_SAMPLED_POINTS = 20_000  # approximate number of losses of one; for rare clients and little noise
_WIDEST = 700  # widest step of a grid; a float must hold its exponential

NUMERICAL = LaplaceEvent | LossEvent | SampledGaussianEvent
"""Mechanisms whose composition no GDP parameter describes exactly."""


def epsilon(event: Event, delta: float) -> float:
    """Return an epsilon for which ``event`` is (epsilon, delta)-DP; infinity if none holds.

    It is the smallest one for Gaussian events, and about 1e-4 above the smallest for all others.
    """
    delta = checked_delta(delta)
    counts = tuple(mechanism_counts(event).items())
    if not _has(counts, NUMERICAL):
        return gdp_epsilon(_gdp_mu(counts), delta)
    # The mechanisms are fixed beforehand, so each bound holds, and the least bound too.
    bounds = [_pure_epsilon(counts), zcdp_epsilon(_zcdp_rho(counts), delta)]
    if not _has(counts, LaplaceEvent | LossEvent):  # sampling never increases the cost
        bounds.append(gdp_epsilon(math.sqrt(2 * _zcdp_rho(counts)), delta))
    if delta > 0 and _width(counts) <= _WIDEST:
        bounds.append(float(_pld(counts).get_epsilon_for_delta(delta)))
    return min(bounds)


def delta(event: Event, epsilon: float) -> float:
    """Return a delta for which ``event`` is (epsilon, delta)-DP; the inverse of :func:`epsilon`."""
    epsilon = checked_epsilon(epsilon)
    counts = tuple(mechanism_counts(event).items())
    if not _has(counts, NUMERICAL):
        return gdp_delta(_gdp_mu(counts), epsilon)
    # A pure guarantee never fails, but the numerical bound cuts tails and would be above 0.
    if epsilon >= _pure_epsilon(counts):
        return 0.0
    bounds = [zcdp_delta(_zcdp_rho(counts), epsilon)]
    if not _has(counts, LaplaceEvent | LossEvent):
        bounds.append(gdp_delta(math.sqrt(2 * _zcdp_rho(counts)), epsilon))
    if _width(counts) <= _WIDEST:
        bounds.append(float(_pld(counts).get_delta_for_epsilon(epsilon)))
    return min(bounds)


def pure_epsilon(event: Event) -> float:
    """Return the epsilon of pure differential privacy: the sum over all Laplace events.

    ``math.inf`` if the event has any other mechanism.

    References
    ----------
    Dwork and Roth 2014, Theorems 3.6 and 3.16.
    """
    return _pure_epsilon(tuple(mechanism_counts(event).items()))


def gdp_mu(event: Event) -> float:
    """Return mu such that a Gaussian ``event`` is exactly mu-GDP.

    Notes
    -----
    One Gaussian mechanism is ``1 / noise_multiplier``-GDP, and mu composes as
    ``mu**2 = mu_1**2 + mu_2**2 + ...``, adaptively and without loss.

    References
    ----------
    Dong, Roth and Su, JRSS-B 2022, Theorem 2.7 and Corollary 3.3.
    """
    counts = tuple(mechanism_counts(event).items())
    for mechanism, _ in counts:
        if isinstance(mechanism, NUMERICAL):
            kind = type(mechanism).__name__
            raise PlanError(f"gdp_mu needs Gaussian events only, got a {kind}; use epsilon().")
    return _gdp_mu(counts)


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP; mu may be infinite.

    Notes
    -----
    With ``a = mu/2 - epsilon/mu`` and ``b = -mu/2 - epsilon/mu`` the formula is
    ``Phi(a) - exp(epsilon) Phi(b)``. Since ``exp(epsilon) phi(b) = phi(a)``, both terms share the
    factor ``exp(-a**2 / 2)``. The remaining scaled error functions neither overflow nor cancel for
    a small delta.

    References
    ----------
    Dong, Roth and Su, JRSS-B 2022, Corollary 2.13; Balle and Wang, ICML 2018, Theorem 8.
    """
    from scipy.special import erfc, erfcx  # not needed by a ledger that only charges rounds

    epsilon = checked_epsilon(epsilon)
    if mu <= 0:
        return 0.0
    ratio = epsilon / mu
    a, b = mu / 2 - ratio, -mu / 2 - ratio
    # Phi(x) = erfc(-x / sqrt(2)) / 2. Always b < 0, so its scaled function never overflows.
    shared = math.exp(-a * a / 2)
    if a < 0:
        difference = shared * (erfcx(-a / math.sqrt(2)) - erfcx(-b / math.sqrt(2)))
    else:
        # For large a the scaled first term would overflow; unscaled it is at least 1.
        difference = erfc(-a / math.sqrt(2)) - shared * erfcx(-b / math.sqrt(2))
    return max(0.0, float(difference) / 2)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-GDP implies (epsilon, delta)-DP; the inverse.

    It is rounded up to the next float at which the guarantee holds.
    """
    delta = checked_delta(delta)
    if mu <= 0:
        return 0.0
    if delta == 0:
        return math.inf
    # At epsilon 0, delta is the total variation distance, so this delta alone is enough.
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # The same mechanism is (mu**2 / 2)-zCDP; this larger epsilon bounds the search from above.
    return _first_true(
        lambda epsilon: gdp_delta(mu, epsilon) <= delta, 0.0, zcdp_epsilon(mu * mu / 2, delta)
    )


def zcdp_rho(event: Event) -> float:
    """Return rho such that ``event`` is rho-zCDP; rho adds up under composition.

    Notes
    -----
    A Gaussian mechanism has ``rho = 1 / (2 noise_multiplier**2)``; an epsilon-DP one has
    ``rho = epsilon**2 / 2``. A sampled Gaussian mechanism counts as one without sampling, which
    never costs less.

    References
    ----------
    Bun and Steinke, TCC 2016, Propositions 1.6, 1.4 and Lemma 1.7.
    """
    return _zcdp_rho(tuple(mechanism_counts(event).items()))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return ``rho + 2 sqrt(rho ln(1 / delta))``, an epsilon that rho-zCDP implies at ``delta``.

    References
    ----------
    Bun and Steinke, TCC 2016, Proposition 1.3.
    """
    delta = checked_delta(delta)
    if rho == 0:
        return 0.0
    if delta == 0:
        return math.inf
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return ``exp(-(epsilon - rho)**2 / (4 rho))``, the inverse of :func:`zcdp_epsilon`."""
    epsilon = checked_epsilon(epsilon)
    if rho == 0:
        return 0.0
    # Rho bounds the mean loss, and the tail bound holds only above the mean.
    if epsilon <= rho:
        return 1.0
    gap = epsilon - rho
    return math.exp(-gap * gap / (4 * rho))  # gap**2 raises for a large gap; a product does not


def attacker_odds(cost: Event | Budget, prior: float = 0.5) -> float:
    """Return a bound on the probability that an attacker guesses one unit's membership correctly.

    Parameters
    ----------
    cost : Event or Budget
        The event of a release, or only its guarantee (epsilon, delta). An event gives the tighter
        bound, since it determines the whole privacy profile.
    prior : float in (0, 1)
        The attacker's probability, before the release, that the unit is among the records.

    Returns
    -------
    float in [max(prior, 1 - prior), 1]
        Highest probability of a correct yes-or-no answer, for any other knowledge of the attacker.

    Notes
    -----
    With ``p = min(prior, 1 - prior)`` the bound is ``1 - p + p * delta(ln((1 - p) / p))``, where
    ``delta(.)`` is the privacy profile; for a Budget the profile is
    ``delta(x) = 1 - (1 - delta) (1 + e**x) / (1 + e**epsilon)``, never below ``delta`` for
    ``x >= epsilon``. At ``prior = 1/2`` a Budget gives ``(e**epsilon + delta) / (e**epsilon + 1)``.

    References
    ----------
    Kairouz, Oh and Viswanath, ICML 2015, Theorem 2.1; Balle, Barthe and Gaboardi, NeurIPS 2018.
    """
    prior = checked("prior", prior, Range(above=0, below=1))
    # The likelier answer alone is correct with probability 1 - rare; a release can add only `rare`.
    rare = min(prior, 1 - prior)
    threshold = math.log((1 - rare) / rare)
    if isinstance(cost, Budget):
        gap = 0.0
        if threshold < cost.epsilon:
            gap = -math.expm1(math.log1p(math.exp(threshold)) - _log1p_exp(cost.epsilon))
        profile = cost.delta + (1 - cost.delta) * gap
    else:
        profile = delta(cost, threshold)
    return 1 - rare + rare * profile


def _log1p_exp(x: float) -> float:
    # Without this form exp(x) overflows above 709, and a budget may have any epsilon.
    return x + math.log1p(math.exp(-x))


def _has(counts: _Counts, kind: type[Mechanism] | UnionType) -> bool:
    return any(isinstance(event, kind) for event, _ in counts)


def _gdp_mu(counts: _Counts) -> float:
    if _has(counts, NonPrivateEvent):
        return math.inf
    return math.sqrt(
        math.fsum(n * _inverse(e) ** 2 for e, n in counts if isinstance(e, GaussianEvent))
    )


def _pure_epsilon(counts: _Counts) -> float:
    if not all(isinstance(event, LaplaceEvent) for event, _ in counts):
        return math.inf
    return math.fsum(n * _inverse(event) for event, n in counts)


def _zcdp_rho(counts: _Counts) -> float:
    # All have rho = (1 / noise_multiplier)**2 / 2, sampled or not; a LossEvent has none.
    if _has(counts, NonPrivateEvent | LossEvent):
        return math.inf
    return math.fsum(n * _inverse(event) ** 2 for event, n in counts) / 2


def _rough_epsilon(counts: _Counts) -> float:
    """Return an epsilon by closed formulas, at delta = 1e-6 for each LossEvent and for the rest."""
    # It only sets the scale of a grid, so a poor value costs precision or time, never privacy.
    apart = LossEvent | SampledGaussianEvent
    rest = tuple((event, n) for event, n in counts if not isinstance(event, apart))
    sampled = math.fsum(n * _like_mu(e) ** 2 for e, n in counts if not isinstance(e, LossEvent))
    total = min(_pure_epsilon(rest), zcdp_epsilon(_zcdp_rho(rest), 1e-6))
    if _has(counts, SampledGaussianEvent):
        total = zcdp_epsilon(sampled / 2, 1e-6)
    return total + math.fsum(n * e.rough_epsilon() for e, n in counts if isinstance(e, LossEvent))


def _like_mu(event: Mechanism) -> float:
    """Return the approximate GDP parameter of one mechanism among many of its kind.

    References
    ----------
    Dong, Roth and Su, JRSS-B 2022, Corollary 5.4, approximately, for a sampled Gaussian mechanism.
    """
    mu = _inverse(event)
    # Above 20 the exponential may overflow, and sampling saves little.
    if not isinstance(event, SampledGaussianEvent) or mu > 20:
        return mu
    return min(mu, event.rate * math.sqrt(math.expm1(mu * mu)))


def _inverse(event: Mechanism) -> float:
    """Return sensitivity / noise, which is mu for a Gaussian and epsilon for a Laplace event."""
    if isinstance(event, NonPrivateEvent | LossEvent):
        return math.inf
    # Outside this range squares overflow or vanish; both replacements round the cost upwards.
    inverse = 1 / event.noise_multiplier
    return max(inverse, 1e-100) if inverse < 1e100 else math.inf


@lru_cache(maxsize=64)
def _pld(counts: _Counts) -> Any:
    """Return the pessimistic privacy loss distribution of all mechanisms except NonPrivateEvent.

    References
    ----------
    Doroshenko et al., PoPETs 2022, "Connect the dots", as implemented in dp_accounting.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    width = _width(counts)
    total = pld.identity(value_discretization_interval=width)
    if mu := _gdp_mu(counts):  # all Gaussians together are one, exactly
        total = total.compose(
            pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=width)
        )
    for event, n in counts:
        if isinstance(event, LaplaceEvent):
            single = pld.from_laplace_mechanism(
                event.noise_multiplier, value_discretization_interval=width
            )
        elif isinstance(event, SampledGaussianEvent):
            single = pld.from_gaussian_mechanism(
                event.noise_multiplier,
                sampling_prob=event.rate,
                value_discretization_interval=width,
            )
        elif isinstance(event, LossEvent):
            single = event.losses(width)
        else:
            continue
        total = total.compose(single.self_compose(n))
    return total


def _width(counts: _Counts) -> float:
    """Return the width of the discretised losses; a wider one never underestimates a cost."""
    rough = _rough_epsilon(counts)
    sampled = [event for event, _ in counts if isinstance(event, SampledGaussianEvent)]
    if not sampled:
        return _PLD_RESOLUTION * rough
    widths = [_SAMPLED_RESOLUTION * rough]
    for event in sampled:
        # Above 700 expm1 overflows, and ln(rate) is small compared with such a loss.
        furthest = _inverse(event) ** 2 / 2 + 10 * _inverse(event)  # a loss ten deviations out
        loss = furthest if furthest > 700 else math.log1p(event.rate * math.expm1(furthest))
        widths.append(loss / _SAMPLED_POINTS)
    # The widest bounds the points of each distribution: any width is safe, but a small one is slow.
    return max(widths)


def _first_true(predicate: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest x in (low, high] with ``predicate(x)``, False below and True above."""
    # The search ends at neighbouring floats and returns the one that holds, so it has no tolerance.
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if predicate(middle) else (middle, high)
    return high
