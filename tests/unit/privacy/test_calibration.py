from __future__ import annotations

import math

import mpmath
import pytest

from cloister.core.errors import PlanError
from cloister.privacy.accounting import epsilon, gdp_delta
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import (
    MARGIN,
    gaussian_noise_multiplier,
    gdp_budget,
    gdp_mu_for,
    gdp_part,
    laplace_noise_multiplier,
    lattice_noise_multiplier,
    lattice_sigma,
)
from cloister.privacy.events import (
    GaussianEvent,
    LaplaceEvent,
    RepeatedEvent,
)

GRID = [
    (eps, delta)
    for eps in (1e-3, 1e-2, 0.1, 1, 4, 20, 50)
    for delta in (1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.9)
]


def exact_delta(mu: float, eps: float) -> mpmath.mpf:
    """The textbook formula in 60 digits, where it does not cancel."""
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(mu), mpmath.mpf(eps)
        tail = mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
        return mpmath.ncdf(mu / 2 - eps / mu) - tail


@pytest.mark.parametrize(
    ("eps", "delta", "sigma"),
    [
        (0.1, 1e-5, 30.7496),
        (0.5, 1e-5, 7.0318),
        (1, 1e-5, 3.7306),
        (1, 1e-6, 4.2247),
        (4, 1e-6, 1.1935),
        (2, 1e-5, 1.99381),
        (10, 1e-5, 0.49989),
    ],
)
def test_sigma_equals_the_conformance_table(eps: float, delta: float, sigma: float) -> None:
    assert gaussian_noise_multiplier(eps, delta) == pytest.approx(sigma, abs=6e-5)


@pytest.mark.parametrize(
    ("n", "sigmas"),
    [
        (150, (16.46, 4.44, 2.49)),
        (5000, (28.53, 6.62, 3.54)),
        (48842, (34.82, 7.78, 4.09)),
        (10000, (30.54, 6.99, 3.71)),
        (25000, (33.06, 7.46, 3.94)),
    ],
)
def test_sigma_at_the_papers_delta_equals_the_conformance_table(
    n: int, sigmas: tuple[float, ...]
) -> None:
    delta = 1 / (n * math.log(n))
    for eps, sigma in zip((0.1, 0.5, 1), sigmas, strict=True):
        assert gaussian_noise_multiplier(eps, delta) == pytest.approx(sigma, abs=6e-3)


@pytest.mark.parametrize(("eps", "delta"), GRID)
def test_the_root_agrees_with_sixty_digit_arithmetic(eps: float, delta: float) -> None:
    assert float(exact_delta(gdp_mu_for(eps, delta), eps) / delta) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize(("eps", "delta"), GRID)
def test_noise_is_rounded_up_and_by_no_more_than_the_margin(eps: float, delta: float) -> None:
    sigma = gaussian_noise_multiplier(eps, delta)
    assert exact_delta(1 / sigma, eps) < delta
    assert exact_delta((1 + 1.01 * MARGIN) / sigma, eps) > delta


@pytest.mark.parametrize(("eps", "delta"), GRID)
def test_epsilon_inverts_calibration_and_never_exceeds_it(eps: float, delta: float) -> None:
    spent = epsilon(GaussianEvent(gaussian_noise_multiplier(eps, delta)), delta)
    assert spent <= eps
    assert spent == pytest.approx(eps, rel=1e-2)  # a large delta hardly depends on epsilon


@pytest.mark.parametrize("eps", [1e-8, 1e-6, 500, 1e6])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-9])
def test_extreme_budgets_stay_on_the_safe_side(eps: float, delta: float) -> None:
    assert exact_delta(1 / gaussian_noise_multiplier(eps, delta), eps) <= delta


def test_the_margin_is_a_part_in_a_million() -> None:
    for eps, delta in GRID:
        product = gaussian_noise_multiplier(eps, delta) * gdp_mu_for(eps, delta)
        assert product == pytest.approx(1 + 1e-6, rel=1e-12)


@pytest.mark.parametrize(
    ("multiplier", "sensitivity", "sigma"),
    [(0.1, 1.0, 3), (0.0, 1.0, 2), (1.0, 3.0, 4), (2.0, 10.0, 21), (3.0, 7.0, 22)],
)
def test_noise_on_the_lattice_has_four_more_of_variance_by_hand(
    multiplier: float, sensitivity: float, sigma: int
) -> None:
    assert lattice_sigma(multiplier, sensitivity) == sigma
    back = lattice_noise_multiplier(sigma, sensitivity)
    assert back == pytest.approx(math.sqrt(sigma**2 - 4) / sensitivity, rel=1e-15)
    assert back >= multiplier


def test_the_root_is_the_last_float_that_is_allowed() -> None:
    for mu, eps in ((0.3, 1.0), (1.0, 2.0), (0.05, 0.1)):
        delta = gdp_delta(mu, eps)
        assert gdp_mu_for(eps, delta) >= mu, "a delta that is just reached is allowed"
        assert gdp_budget(mu, delta).epsilon < eps, "and is no budget that is exceeded"
        assert gdp_budget(mu, delta).epsilon == pytest.approx(eps, rel=1e-9)
        assert gdp_budget(mu, delta).delta == delta


@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (4.0, 1e-3)])
def test_a_part_of_a_budget_has_its_share_of_squared_mu(eps: float, delta: float) -> None:
    budget = Budget(eps, delta)
    assert gdp_part(budget, 1.0).epsilon == pytest.approx(eps, rel=1e-9)
    for share in (0.25, 0.9, 10.0):
        part = gdp_part(budget, share)
        assert part.delta == delta
        ratio = gdp_mu_for(part.epsilon, delta) / gdp_mu_for(eps, delta)
        assert ratio**2 == pytest.approx(share, rel=1e-6)


def test_noise_for_which_delta_alone_would_do_has_no_budget() -> None:
    alone = gdp_delta(1e-3, 0.0)
    for delta in (alone, 2 * alone):
        with pytest.raises(PlanError, match=r"delta=.* alone would pay for it"):
            gdp_budget(1e-3, delta)
    assert gdp_budget(1e-3, 0.99 * alone).epsilon < 1e-3


def test_t_equal_releases_need_sqrt_t_times_the_noise() -> None:
    sigma = gaussian_noise_multiplier(1.0, 1e-6) * math.sqrt(7)
    assert epsilon(RepeatedEvent(GaussianEvent(sigma), 7), 1e-6) == pytest.approx(1, rel=1e-5)


def test_gaussian_noise_cannot_be_pure() -> None:
    with pytest.raises(PlanError, match="delta must be above 0"):
        gaussian_noise_multiplier(1.0, 0.0)


@pytest.mark.parametrize("eps", [0.0, -1.0, math.inf, math.nan])
def test_calibration_refuses_a_meaningless_epsilon(eps: float) -> None:
    with pytest.raises(PlanError, match="epsilon"):
        gaussian_noise_multiplier(eps, 1e-6)
    with pytest.raises(PlanError, match="epsilon"):
        laplace_noise_multiplier(eps)


def test_laplace_noise_is_one_over_epsilon() -> None:
    assert laplace_noise_multiplier(0.25) == 4.0
    assert epsilon(LaplaceEvent(laplace_noise_multiplier(0.25)), 0.0) == 0.25


def test_gdp_delta_has_its_limits() -> None:
    assert gdp_delta(0.0, 1.0) == 0
    assert gdp_delta(math.inf, 1.0) == 1
    assert gdp_delta(1e-300, 1.0) == 0
    assert gdp_delta(1e-320, 1.0) == 0  # epsilon / mu overflows
    assert gdp_delta(1e300, 1.0) == 1
