"""What events cost: one theorem per function, composed first and converted once.

Pure Gaussian schedules use Gaussian differential privacy, which is exact. All others use the
smallest of three valid bounds, as far as they exist: the sum of their epsilons, zero-concentrated
differential privacy, and a numerical privacy loss distribution that rounds upwards.

All results hold for the continuous mechanisms. `calibration.lattice_sigma` makes the discrete
Gaussian noise that we draw worth the continuous noise that is counted.
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
# The result is then too high by about 1e-4 of itself (7000 Laplace events: 3e-5) and takes tens
# of milliseconds.
_PLD_RESOLUTION = 1 / 20_000
_SAMPLED_RESOLUTION = 1 / 4_000  # with sampled mechanisms, whose losses take longer to work out
_SAMPLED_POINTS = 20_000  # of the losses of one of them, about; rare clients with little noise
_WIDEST = 700  # of the steps of a grid, whose exponentials a float must hold

NUMERICAL = LaplaceEvent | LossEvent | SampledGaussianEvent
"""Mechanisms whose composition no GDP parameter describes exactly."""


def epsilon(event: Event, delta: float) -> float:
    """Return an epsilon for which ``event`` is (epsilon, delta)-DP; infinity if none holds.

    It is the smallest one for Gaussian events; a little above it, about 1e-4, for all others.
    """
    delta = checked_delta(delta)
    counts = tuple(mechanism_counts(event).items())
    if not _has(counts, NUMERICAL):
        return gdp_epsilon(_gdp_mu(counts), delta)
    # Each bound holds by itself, because the mechanisms are fixed beforehand: so does the least.
    bounds = [_pure_epsilon(counts), zcdp_epsilon(_zcdp_rho(counts), delta)]
    if not _has(counts, LaplaceEvent | LossEvent):  # sampling never costs more than none
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
    # A pure guarantee never fails; the numerical one, with its cut tails, could say otherwise.
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

    ``math.inf`` if the event holds anything else.

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
    factor ``exp(-a**2 / 2)``; taking it out leaves scaled error functions, which neither overflow
    nor cancel where delta is small.

    References
    ----------
    Dong, Roth and Su, JRSS-B 2022, Corollary 2.13; Balle and Wang, ICML 2018, Theorem 8.
    """
    from scipy.special import erfc, erfcx  # a ledger that only charges rounds never needs it

    epsilon = checked_epsilon(epsilon)
    if mu <= 0:
        return 0.0
    ratio = epsilon / mu
    a, b = mu / 2 - ratio, -mu / 2 - ratio
    # Phi(x) = erfc(-x / sqrt(2)) / 2, and b < 0 always, so its scaled function never overflows.
    shared = math.exp(-a * a / 2)
    if a < 0:
        difference = shared * (erfcx(-a / math.sqrt(2)) - erfcx(-b / math.sqrt(2)))
    else:
        # Scaled, the first term would overflow for large a; here it is at least 1 and needs none.
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
    # At epsilon 0 delta is the total variation distance: delta alone pays for all.
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # The same mechanism is (mu**2 / 2)-zCDP, and that looser epsilon bounds the search from above.
    return _first_true(
        lambda epsilon: gdp_delta(mu, epsilon) <= delta, 0.0, zcdp_epsilon(mu * mu / 2, delta)
    )


def zcdp_rho(event: Event) -> float:
    """Return rho such that ``event`` is rho-zCDP; rho adds up under composition.

    Notes
    -----
    A Gaussian mechanism has ``rho = 1 / (2 noise_multiplier**2)``; an epsilon-DP one has
    ``rho = epsilon**2 / 2``. A sampled Gaussian mechanism counts as one that is not sampled, which
    is never cheaper.

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
    # Rho bounds the mean loss, and the tail bound says nothing below the mean.
    if epsilon <= rho:
        return 1.0
    gap = epsilon - rho
    return math.exp(-gap * gap / (4 * rho))  # as a power the square would overflow


def attacker_odds(cost: Event | Budget, prior: float = 0.5) -> float:
    """Return a bound on how often any attacker guesses membership of one unit correctly.

    Parameters
    ----------
    cost : Event or Budget
        What was released, or only the (epsilon, delta) that it promises. An event gives the
        tighter bound, since it knows the whole privacy profile.
    prior : float in (0, 1)
        The attacker's probability, before the release, that the unit is among the records.

    Returns
    -------
    float in [max(prior, 1 - prior), 1]
        Highest possible probability of a right yes-or-no answer, whatever else the attacker knows.

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
    # Who always gives the likelier answer is right with 1 - rare; only the rest can be gained.
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
    # exp(x) would overflow above 709, and a budget may have any epsilon.
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
    # It only sets the scale of a grid: a poor value costs precision or time, never privacy.
    apart = LossEvent | SampledGaussianEvent
    rest = tuple((event, n) for event, n in counts if not isinstance(event, apart))
    sampled = math.fsum(n * _like_mu(e) ** 2 for e, n in counts if not isinstance(e, LossEvent))
    total = min(_pure_epsilon(rest), zcdp_epsilon(_zcdp_rho(rest), 1e-6))
    if _has(counts, SampledGaussianEvent):
        total = zcdp_epsilon(sampled / 2, 1e-6)
    return total + math.fsum(n * e.rough_epsilon() for e, n in counts if isinstance(e, LossEvent))


def _like_mu(event: Mechanism) -> float:
    """Return the GDP parameter to which many mechanisms of this kind tend; only a guide.

    For a sampled Gaussian mechanism: Dong, Roth and Su, JRSS-B 2022, Corollary 5.4, roughly.
    """
    mu = _inverse(event)
    # Above 20 the exponential soon overflows, and sampling saves too little to care.
    if not isinstance(event, SampledGaussianEvent) or mu > 20:
        return mu
    return min(mu, event.rate * math.sqrt(math.expm1(mu * mu)))


def _inverse(event: Mechanism) -> float:
    """Return sensitivity / noise, which is mu for a Gaussian and epsilon for a Laplace event."""
    if isinstance(event, NonPrivateEvent | LossEvent):
        return math.inf
    # Outside this range squares would overflow or vanish; both ends round the cost upwards.
    inverse = 1 / event.noise_multiplier
    return max(inverse, 1e-100) if inverse < 1e100 else math.inf


@lru_cache(maxsize=64)
def _pld(counts: _Counts) -> Any:
    """Return the pessimistic privacy loss distribution of all mechanisms but NonPrivateEvent.

    By connect the dots (Doroshenko et al., PoPETs 2022) of dp_accounting.
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
            one = pld.from_laplace_mechanism(
                event.noise_multiplier, value_discretization_interval=width
            )
        elif isinstance(event, SampledGaussianEvent):
            one = pld.from_gaussian_mechanism(
                event.noise_multiplier,
                sampling_prob=event.rate,
                value_discretization_interval=width,
            )
        elif isinstance(event, LossEvent):
            one = event.losses(width)
        else:
            continue
        total = total.compose(one.self_compose(n))
    return total


def _width(counts: _Counts) -> float:
    """Return the width of the discretised losses; a wider one costs a little more, never less."""
    rough = _rough_epsilon(counts)
    sampled = [event for event, _ in counts if isinstance(event, SampledGaussianEvent)]
    if not sampled:
        return _PLD_RESOLUTION * rough
    widths = [_SAMPLED_RESOLUTION * rough]
    for event in sampled:
        # Above 700 expm1 overflows, and ln(rate) is small beside such a loss.
        furthest = _inverse(event) ** 2 / 2 + 10 * _inverse(event)  # a loss ten deviations out
        loss = furthest if furthest > 700 else math.log1p(event.rate * math.expm1(furthest))
        widths.append(loss / _SAMPLED_POINTS)
    # The widest keeps the points of each law few: any width is safe, a narrow one only slow.
    return max(widths)


def _first_true(predicate: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest x in (low, high] with ``predicate(x)``, false below and true above."""
    # It ends at neighbouring floats, and the end that holds is returned: no tolerance is left over.
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if predicate(middle) else (middle, high)
    return high
