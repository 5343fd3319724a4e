"""Noise for a budget: the inverse of :mod:`accounting`, rounded towards more noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from cloister.core.errors import PlanError
from cloister.privacy.accounting import epsilon as priced
from cloister.privacy.accounting import gdp_delta
from cloister.privacy.budget import Budget
from cloister.privacy.events import ComposedEvent, RepeatedEvent, SampledGaussianEvent

# Added to every Gaussian multiplier; it covers all rounding of the search.
MARGIN = 1e-6
_SMOOTHING = 2  # lattice steps, see lattice_sigma
# Prices of sampled rounds are numerical, so the search aims slightly below the budget.
_SEARCH_MARGIN, _SEARCH_STEP = 1e-4, 1e-3
_LEAST_MULTIPLIER = 0.2  # of a sampled round: with less noise the losses take too long to compute


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise std / L2 sensitivity that gives (epsilon, delta)-DP.

    It is for one release; each of ``T`` equal releases needs ``sqrt(T)`` times as much.

    Notes
    -----
    It holds for any neighbouring relation, if the sensitivity is stated for that relation. The
    result is the root of the analytic formula, at most a relative 1e-6 above it. The classic bound
    ``sqrt(2 ln(1.25 / delta)) / epsilon`` adds more noise, and is wrong above epsilon = 1.

    References
    ----------
    Balle and Wang, ICML 2018, Theorem 8 and Algorithm 1.
    """
    return (1 + MARGIN) / gdp_mu_for(epsilon, delta)


def sampled_noise_multiplier(
    epsilon: float, delta: float, rate: float, weights: Sequence[float]
) -> float:
    """Return a noise std / L2 sensitivity for rounds that sample their units.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all rounds together.
    rate : float in (0, 1)
        Probability that a unit takes part in a round, by an independent secret coin.
    weights : sequence of float, > 0, that sum to 1
        A round of weight w has noise of the result divided by ``sqrt(w)``. Pricing is faster with
        few different weights.

    Returns
    -------
    float
        At most a thousandth above the smallest multiplier that the accountant accepts, and at most
        :func:`gaussian_noise_multiplier`, which needs no coins.

    Notes
    -----
    It is a search with :func:`cloister.privacy.accounting.epsilon`, which prices the rounds by
    their numerical privacy loss distribution. It takes seconds, so only the designer of a plan
    runs it; the other parties price the multiplier in the plan.
    """
    return _sampled(Budget(epsilon, delta), rate, tuple(weights))


@lru_cache(maxsize=64)
def _sampled(budget: Budget, rate: float, weights: tuple[float, ...]) -> float:
    epsilon, delta = budget.epsilon, budget.delta
    times = Counter(weights)

    def enough(multiplier: float) -> bool:
        rounds = ComposedEvent(
            tuple(
                RepeatedEvent(SampledGaussianEvent(multiplier / math.sqrt(w), rate), n)
                for w, n in times.items()
            )
        )
        return priced(rounds, budget.delta) <= budget.epsilon * (1 - _SEARCH_MARGIN)

    most = gaussian_noise_multiplier(epsilon, delta)
    # The heaviest round has the least noise, so it sets the lower end of the search.
    # `most` needs no price: a sampled round costs no more than one without sampling.
    least = _LEAST_MULTIPLIER * math.sqrt(max(weights))
    # The requirement of many equal rounds in the limit; see `accounting._like_mu`.
    mu_squared = (gdp_mu_for(epsilon, delta) / rate) ** 2 / len(weights)
    guess = 1 / math.sqrt(len(weights) * math.log1p(mu_squared))
    low = high = min(most, max(least, guess))
    # A price is slow and the guess is near: steps of a tenth find a bracket, which is then halved.
    while high < most and not enough(high):
        low, high = high, min(most, 1.1 * high)
    while high == low > least and enough(low := max(least, low / 1.1)):
        high = low
    while high > low * (1 + _SEARCH_STEP):
        # Geometric, because the step is relative; `high` is always enough.
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def gdp_mu_for(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta)-DP.

    References
    ----------
    Dong, Roth and Su, JRSS-B 2022, Corollary 2.13.
    """
    budget = Budget(epsilon, delta)
    if budget.delta == 0:
        raise PlanError("delta must be above 0 for Gaussian noise, got 0.0; use Laplace noise.")
    return _mu_for(budget)


@lru_cache(maxsize=256)  # every party of a job needs the same value several times
def _mu_for(budget: Budget) -> float:
    def allowed(mu: float) -> bool:
        return gdp_delta(mu, budget.epsilon) <= budget.delta

    return last_true(allowed)


def gdp_part(budget: Budget, share: float) -> Budget:
    """Return the budget of a `share` of a budget, as Gaussian releases divide it.

    `share` is a share of the squared GDP parameter, which adds up exactly over releases: 10 means
    ten such budgets. Delta is unchanged. A share that is too small for any epsilon above 0 is a
    PlanError.
    """
    return gdp_budget(gdp_mu_for(budget.epsilon, budget.delta) * math.sqrt(share), budget.delta)


def gdp_budget(mu: float, delta: float) -> Budget:
    """Return the smallest budget at `delta` that allows Gaussian releases of total `mu`.

    Mu is the GDP parameter: sensitivity over noise std of one release. If epsilon 0 is enough,
    there is no such budget, and a PlanError is raised.
    """
    if gdp_delta(mu, 0.0) <= delta:
        raise PlanError(
            f"noise is so strong that delta={delta:.3g} alone would pay for it; use fewer steps or "
            "a larger epsilon."
        )
    return Budget(last_true(lambda epsilon: gdp_delta(mu, epsilon) > delta), delta)


def lattice_sigma(noise_multiplier: float, l2_sensitivity: float) -> int:
    """Return the integer parameter of discrete Gaussian noise for a noise multiplier.

    Sensitivity and result are in lattice steps; the result is rounded up.

    Notes
    -----
    Up to a factor of 1e-33, discrete Gaussian noise of parameter s can be computed from continuous
    noise of variance ``s**2 - 4`` (docs/proofs/kmeans.md). So a variance of 4 is added, which the
    cost does not count.
    """
    return math.ceil(math.hypot(noise_multiplier * l2_sensitivity, _SMOOTHING))


def lattice_noise_multiplier(sigma: int, l2_sensitivity: float) -> float:
    """Return the noise multiplier of discrete Gaussian noise, the inverse of `lattice_sigma`."""
    return math.sqrt(sigma**2 - _SMOOTHING**2) / l2_sensitivity


def laplace_noise_multiplier(epsilon: float) -> float:
    """Return the Laplace scale / L1 sensitivity that gives epsilon-DP: ``1 / epsilon``.

    References
    ----------
    Dwork and Roth 2014, Theorem 3.6.
    """
    return 1 / Budget(epsilon, 0.0).epsilon


def last_true(predicate: Callable[[float], bool]) -> float:
    """Return the largest x > 0 with ``predicate(x)``, which is True below a point, False above."""
    # The order of magnitude is unknown, so doubling and halving find the bracket.
    # The end for which the predicate holds is returned.
    low = 1.0
    while not predicate(low):
        low /= 2
    high = 2 * low
    while predicate(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if predicate(middle) else (low, middle)
    return low
