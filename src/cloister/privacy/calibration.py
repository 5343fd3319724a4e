"""From a budget to noise: the inverse of :mod:`accounting`, rounded towards more noise."""

from __future__ import annotations

from collections.abc import Callable

from cloister.errors import PlanError
from cloister.privacy.accounting import gdp_delta
from cloister.privacy.budget import Budget

# Added to every Gaussian multiplier. It covers the gap between continuous accounting and the
# discrete Gaussian on a lattice of 2**-8 of the sensitivity or finer (below 1e-7), and all
# rounding of the search itself.
MARGIN = 1e-6


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise std / L2 sensitivity that gives (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon : float, > 0
    delta : float in (0, 1)

    Returns
    -------
    float
        For one release; ``T`` equal releases need ``sqrt(T)`` times as much each.

    Notes
    -----
    Any neighbouring relation, as long as the sensitivity is stated for it. Exact up to a relative
    1e-6 on the safe side: the root of the analytic formula, not the classic bound
    ``sqrt(2 ln(1.25 / delta)) / epsilon``, which wastes noise and is wrong above epsilon = 1.

    References
    ----------
    Balle and Wang, ICML 2018, Theorem 8 and Algorithm 1.
    """
    return (1 + MARGIN) / gdp_mu_for(epsilon, delta)


def gdp_mu_for(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta)-DP.

    References
    ----------
    Dong, Roth and Su, JRSS-B 2022, Corollary 2.13.
    """
    budget = Budget(epsilon, delta)
    if budget.delta == 0:
        raise PlanError("delta must be above 0 for Gaussian noise, got 0.0; use Laplace noise.")

    def allowed(mu: float) -> bool:
        return gdp_delta(mu, budget.epsilon) <= budget.delta

    return _last_true(allowed)


def laplace_noise_multiplier(epsilon: float) -> float:
    """Return the Laplace scale / L1 sensitivity that gives epsilon-DP: ``1 / epsilon``.

    References
    ----------
    Dwork and Roth 2014, Theorem 3.6.
    """
    return 1 / Budget(epsilon, 0.0).epsilon


def _last_true(predicate: Callable[[float], bool]) -> float:
    """Return the largest x > 0 with ``predicate(x)``; it is true below some point, false above."""
    low = 1.0
    while not predicate(low):
        low /= 2
    high = 2 * low
    while predicate(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if predicate(middle) else (low, middle)
    return low
