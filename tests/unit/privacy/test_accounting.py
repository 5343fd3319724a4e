from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import gamma, norm

from cloister.core.errors import PlanError
from cloister.privacy import accounting
from cloister.privacy.accounting import (
    attacker_odds,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    pure_epsilon,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from cloister.privacy.budget import Budget
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RepeatedEvent,
    SampledGaussianEvent,
    mechanism_counts,
)
from cloister_lab.events import CoverEvent, cover_delta

NOTHING = ComposedEvent(())
MIXED = ComposedEvent((RepeatedEvent(LaplaceEvent(10), 7), RepeatedEvent(GaussianEvent(10), 7)))


def test_seven_gaussians_cost_the_measured_epsilon() -> None:
    event = RepeatedEvent(GaussianEvent(10), 7)
    assert accounting.epsilon(event, 1e-5) == pytest.approx(0.985770, abs=1e-6)


def test_seven_gaussians_and_seven_laplaces_cost_the_measured_epsilon() -> None:
    assert accounting.epsilon(MIXED, 1e-5) == pytest.approx(1.37261, abs=2e-5)


@pytest.mark.parametrize("sigma", [0.5, 4.0, 100.0])
@pytest.mark.parametrize("rounds", [1, 7])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_pld_and_gdp_agree_on_gaussian_schedules(sigma: float, rounds: int, delta: float) -> None:
    exact = accounting.epsilon(RepeatedEvent(GaussianEvent(sigma), rounds), delta)
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=exact / 20_000
    ).self_compose(rounds)
    numerical = pld.get_epsilon_for_delta(delta)
    assert exact <= numerical * (1 + 1e-9)
    assert numerical == pytest.approx(exact, rel=1e-4)


def test_mu_composes_as_a_root_of_squares() -> None:
    assert gdp_mu(ComposedEvent((GaussianEvent(1 / 3), GaussianEvent(1 / 4)))) == pytest.approx(5)
    assert gdp_mu(NOTHING) == 0
    assert gdp_mu(NonPrivateEvent()) == math.inf
    with pytest.raises(PlanError, match="LaplaceEvent"):
        gdp_mu(MIXED)


def test_rho_adds_up() -> None:
    assert zcdp_rho(GaussianEvent(2.0)) == pytest.approx(1 / 8)
    assert zcdp_rho(LaplaceEvent(2.0)) == pytest.approx(1 / 8)
    assert zcdp_rho(MIXED) == pytest.approx(0.07)
    assert zcdp_rho(ComposedEvent((MIXED, NonPrivateEvent()))) == math.inf


def test_zcdp_conversion_equals_the_measured_table() -> None:
    assert zcdp_epsilon(zcdp_rho(GaussianEvent(48.089)), 1e-5) == pytest.approx(0.1, rel=1e-4)
    assert zcdp_epsilon(zcdp_rho(GaussianEvent(4.90056)), 1e-5) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("rho", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_zcdp_delta_inverts_zcdp_epsilon(rho: float, delta: float) -> None:
    assert zcdp_delta(rho, zcdp_epsilon(rho, delta)) == pytest.approx(delta)


def test_zcdp_has_its_limits() -> None:
    assert zcdp_epsilon(0.0, 0.0) == 0
    assert zcdp_epsilon(0.5, 0.0) == math.inf
    assert zcdp_delta(0.0, 0.0) == 0
    assert zcdp_delta(0.5, 0.5) == 1
    assert zcdp_epsilon(math.inf, 0.5) == math.inf
    assert zcdp_delta(math.inf, 1e300) == 1
    assert zcdp_delta(0.5, 1e300) == 0


@pytest.mark.parametrize("sigma", [0.4, 1.0, 20.0])
def test_zcdp_never_claims_less_than_gdp(sigma: float) -> None:
    event = GaussianEvent(sigma)
    for delta in (1e-9, 1e-5, 1e-2):
        exact = accounting.epsilon(event, delta)
        assert exact <= zcdp_epsilon(zcdp_rho(event), delta)


def test_pure_epsilons_add_up_at_delta_zero() -> None:
    event = RepeatedEvent(LaplaceEvent(4.0), 3)
    assert pure_epsilon(event) == 0.75
    assert accounting.epsilon(event, 0.0) == 0.75
    assert pure_epsilon(MIXED) == math.inf
    assert accounting.epsilon(MIXED, 0.0) == math.inf


def test_many_laplaces_cost_less_than_the_sum() -> None:
    event = RepeatedEvent(LaplaceEvent(100.0), 400)
    assert accounting.epsilon(event, 1e-6) < 0.4 * pure_epsilon(event)


@pytest.mark.parametrize("eps", [0.02, 1.0, 8.0])
def test_one_laplace_has_its_textbook_privacy_profile(eps: float) -> None:
    event = LaplaceEvent(1 / eps)
    for share in (0.0, 0.3, 0.9):
        exact = -math.expm1((share - 1) * eps / 2)
        found = accounting.delta(event, share * eps)
        assert found >= exact * (1 - 1e-9)
        assert found == pytest.approx(exact, rel=1e-3)


def test_doing_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    for delta in (0.0, 1e-6):
        assert accounting.epsilon(NOTHING, delta) == 0
        assert accounting.epsilon(NonPrivateEvent(), delta) == math.inf
        assert accounting.epsilon(ComposedEvent((MIXED, NonPrivateEvent())), delta) == math.inf
    assert accounting.delta(NOTHING, 0.0) == 0
    assert accounting.delta(NonPrivateEvent(), 100.0) == 1
    assert accounting.delta(ComposedEvent((MIXED, NonPrivateEvent())), 100.0) == 1


@pytest.mark.parametrize("kind", [GaussianEvent, LaplaceEvent])
def test_absurd_noise_is_never_free_and_never_breaks(kind: type[GaussianEvent]) -> None:
    assert accounting.epsilon(kind(1e-200), 1e-6) == math.inf
    assert accounting.epsilon(kind(1e200), 0.0) > 0
    assert accounting.epsilon(kind(1e200), 1e-6) < 1e-90


@pytest.mark.parametrize(
    ("multiplier", "cost"),
    [
        *((1e-101, math.inf), (0.98e-100, math.inf), (1e-100, math.inf), (1.02e-100, 1e100 / 1.02)),
        *((0.98e100, 1e-100 / 0.98), (1e100, 1e-100), (1.02e100, 1e-100), (1e300, 1e-100)),
    ],
)
def test_costs_whose_squares_floats_cannot_hold_are_rounded_up(
    multiplier: float, cost: float
) -> None:
    assert 1 / 1e-100 == 1e100
    for found in (pure_epsilon(LaplaceEvent(multiplier)), gdp_mu(GaussianEvent(multiplier))):
        assert found == pytest.approx(cost, rel=1e-14, abs=0)


def test_gdp_epsilon_inverts_gdp_delta() -> None:
    for mu in (0.01, 0.3, 2.0, 9.0):
        for delta in (1e-12, 1e-6, 1e-4):
            assert gdp_delta(mu, gdp_epsilon(mu, delta)) == pytest.approx(delta, rel=1e-9)
    assert gdp_epsilon(0.5, 0.5) == 0  # delta is above the total variation distance
    assert gdp_epsilon(0.5, gdp_delta(0.5, 0.0)) == 0
    assert gdp_epsilon(0.5, 0.0) == gdp_epsilon(math.inf, 0.5) == math.inf


def test_gdp_epsilon_is_the_least_at_which_delta_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "gdp_delta", lambda mu, eps: 1e-6 if eps >= 0.7 else 0.1)
    assert gdp_epsilon(2.0, 1e-6) == 0.7


def test_gdp_epsilon_is_finite_where_floats_can_hold_it() -> None:
    """It tends to mu**2 / 2, the mean of the loss."""
    assert gdp_epsilon(4.4e153, 1e-6) == pytest.approx(4.4e153**2 / 2, rel=1e-9)


@pytest.mark.parametrize("event", [MIXED, RepeatedEvent(LaplaceEvent(50.0), 100)])
def test_delta_inverts_epsilon(event: Event) -> None:
    for delta in (1e-10, 1e-6, 1e-3):
        eps = accounting.epsilon(event, delta)
        assert accounting.delta(event, eps) == pytest.approx(delta, rel=1e-6)


def test_delta_is_never_above_a_closed_form() -> None:
    """The numerical one cuts its tails, and counts what it cuts as lost."""
    pure = RepeatedEvent(LaplaceEvent(4.0), 3)
    assert accounting.delta(pure, 0.74) > 0
    assert [accounting.delta(pure, eps) for eps in (0.75, 0.76, 50.0)] == [0, 0, 0]
    assert 0 < accounting.delta(MIXED, 4.0) <= zcdp_delta(zcdp_rho(MIXED), 4.0) < 1e-20


@pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
def test_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(PlanError, match="delta"):
        accounting.epsilon(MIXED, delta)


def test_epsilon_outside_its_range_is_refused() -> None:
    with pytest.raises(PlanError, match="epsilon"):
        accounting.delta(MIXED, -1.0)


# Max covers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("pick_epsilon", [0.02, 0.5, 2.0, 6.0])
def test_a_max_cover_is_as_private_as_two_exponential_variables(
    pick_epsilon: float, added: bool
) -> None:
    """Their likelihood ratio is monotone, so the best event is a ray; here one of many is it."""
    ends, r = np.linspace(0, 40, 1_000_001), math.exp(pick_epsilon / 2)
    without, with_it = np.exp(-ends), np.exp(-r * ends)  # of the rays from there on
    for eps in (-4.0, -0.5 * pick_epsilon, -0.2, 0.0, 0.1, 0.5 * pick_epsilon, 1.0, 5.0):
        if added:
            best = ((1 - with_it) - math.exp(eps) * (1 - without)).max()
        else:
            best = (without - math.exp(eps) * with_it).max()
        best = max(best, 1 - math.exp(eps), 0.0)  # the sure event, and none
        assert cover_delta(pick_epsilon, eps, added=added) == pytest.approx(best, abs=1e-8)


def test_a_record_that_is_added_to_a_max_cover_never_shows_more_than_half_of_epsilon() -> None:
    """Then delta is 0, and it is never below, however floats round."""
    for pick_epsilon in np.arange(0.05, 10, 0.05).tolist():
        half = pick_epsilon / 2
        assert cover_delta(pick_epsilon, half, added=True) == 0
        below = [half * (1 - i * 4e-16) for i in range(1, 6)]
        assert all(0 <= cover_delta(pick_epsilon, eps, added=True) < 1e-11 for eps in below)


@pytest.mark.parametrize(("pick_epsilon", "covers"), [(1.0, 1), (0.4, 3)])
def test_covers_compose_like_sums_of_exponential_variables(
    pick_epsilon: float, covers: int
) -> None:
    log_r, a, r = pick_epsilon / 2, math.expm1(pick_epsilon / 2), math.exp(pick_epsilon / 2)
    event = RepeatedEvent(CoverEvent(pick_epsilon), covers)
    for eps in (0.0, 0.3 * log_r, 2 * log_r, 8 * a):
        far, near = (eps + covers * log_r) / a, max(0.0, covers * log_r - eps) / a
        exact = max(
            gamma.sf(far, covers) - math.exp(eps) * gamma.sf(r * far, covers),
            gamma.cdf(r * near, covers) - math.exp(eps) * gamma.cdf(near, covers),
        )
        found = accounting.delta(event, eps)
        assert exact * (1 - 1e-9) <= found <= exact * 1.002


def test_a_max_cover_has_an_epsilon_at_a_tiny_delta() -> None:
    """Its losses are cut where next to nothing of them is left."""
    exact = math.expm1(1.0) * math.log((1 - math.exp(-1.0)) / 1e-13) - 1.0
    assert exact <= accounting.epsilon(CoverEvent(2.0), 1e-13) <= 1.002 * exact


def bounds_of_delta(parts: Sequence[tuple[np.ndarray, ...]], epsilon: float) -> list[float]:
    """Return bounds from cells of independent losses: masses, and the losses at their ends."""
    width, found = 4e-3, []
    for end, rounder in ((1, np.floor), (2, np.ceil)):
        pmf, first = np.ones(1), 0
        for part in parts:
            places = rounder(part[end] / width).astype(int)
            pmf = np.convolve(pmf, np.bincount(places - places.min(), weights=part[0]))
            first += int(places.min())
        losses = (first + np.arange(len(pmf))) * width
        over = losses > epsilon
        found.append(float((pmf[over] * -np.expm1(epsilon - losses[over])).sum()))
    return found


def test_a_max_cover_and_sampled_noise_compose_in_each_direction_by_itself() -> None:
    """With and without a record; one with the other would be another price."""
    pick_epsilon, z, q = 2.0, 1.0, 0.2
    r, a = math.exp(pick_epsilon / 2), math.expm1(pick_epsilon / 2)
    waits, noised = np.linspace(0, 20, 20_001), np.linspace(-8, 9, 20_001)
    none = np.diff(norm.cdf(noised / z))
    mixed = (1 - q) * none + q * np.diff(norm.cdf((noised - 1) / z))
    sampled = np.log1p(q * np.expm1((2 * noised - 1) / (2 * z * z)))
    cover = pick_epsilon / 2 - a * waits
    added = [
        (-np.diff(np.exp(-r * waits)), cover[1:], cover[:-1]),
        (mixed, sampled[:-1], sampled[1:]),
    ]
    removed = [
        (-np.diff(np.exp(-waits)), -cover[:-1], -cover[1:]),
        (none, -sampled[1:], -sampled[:-1]),
    ]
    event = ComposedEvent((CoverEvent(pick_epsilon), SampledGaussianEvent(z, q)))
    for eps in (0.5, 1.2, 3.0):
        lower, upper = map(max, *(bounds_of_delta(parts, eps) for parts in (added, removed)))
        assert lower <= accounting.delta(event, eps) <= 1.002 * upper


@pytest.mark.parametrize("pick_epsilon", [28.0, 100.0, 701.0, 1500.0, 1e300])
def test_a_max_cover_whose_losses_overflow_hides_nothing(pick_epsilon: float) -> None:
    for event in (CoverEvent(pick_epsilon), ComposedEvent((CoverEvent(pick_epsilon), MIXED))):
        assert accounting.epsilon(event, 1e-6) == math.inf
        assert accounting.delta(event, 1e9) == 1


@pytest.mark.parametrize("pick_epsilon", [27.655, 27.66])
def test_losses_are_priced_up_to_steps_whose_exponential_a_float_can_hold(
    pick_epsilon: float,
) -> None:
    event, exact = CoverEvent(pick_epsilon), math.expm1(pick_epsilon / 2) * math.log(1e6)
    assert steps(event) == pytest.approx(700, abs=1)
    if steps(event) < 700:
        assert accounting.epsilon(event, 1e-6) == pytest.approx(exact, rel=1e-3)
        assert accounting.delta(event, exact) == pytest.approx(1e-6, rel=1e-2)
    else:
        assert accounting.epsilon(event, 1e-6) == math.inf
        assert accounting.delta(event, exact) == 1


def test_a_max_cover_that_shows_next_to_nothing_is_never_free_and_never_breaks() -> None:
    weak = CoverEvent(5e-324)  # half of it is 0 as a float
    assert accounting.epsilon(weak, 0.0) == math.inf
    assert accounting.epsilon(weak, 1e-6) < 1e-90
    assert accounting.delta(weak, 0.0) > 0
    assert steps(weak) == pytest.approx(0.5e-100 / 20_000, rel=1e-9, abs=0)
    both = accounting.epsilon(ComposedEvent((weak, MIXED)), 1e-6)
    assert both == pytest.approx(accounting.epsilon(MIXED, 1e-6), rel=1e-4)


@pytest.mark.parametrize("multiplier", [1e-8, 1e-50])
def test_next_to_no_noise_has_its_closed_price(multiplier: float) -> None:
    """Of losses so large no grid is made, but the sum and the GDP parameter are known."""
    pure, sampled = LaplaceEvent(multiplier), SampledGaussianEvent(multiplier, 0.5)
    assert accounting.epsilon(pure, 1e-6) == 1 / multiplier
    assert [accounting.delta(pure, eps) for eps in (1.0, 1 / multiplier)] == [1, 0]
    plain = gdp_epsilon(1 / multiplier, 1e-6)
    assert accounting.epsilon(sampled, 1e-6) == pytest.approx(plain)
    assert [accounting.delta(sampled, eps) for eps in (1.0, 2 * plain)] == [1, 0]


# The steps of numerical losses ----------------------------------------------------------------


def steps(*events: Event) -> float:
    """Return how wide the steps of the losses of some events are."""
    return accounting._width(tuple(mechanism_counts(ComposedEvent(events)).items()))


def test_a_step_is_a_20_000th_of_an_epsilon_at_a_millionth() -> None:
    """A narrower one takes longer, a wider one costs more than need be."""
    assert steps(RepeatedEvent(LaplaceEvent(2.0), 3)) == pytest.approx(1.5 / 20_000)
    many = RepeatedEvent(LaplaceEvent(100.0), 400)
    assert steps(many) == pytest.approx(zcdp_epsilon(zcdp_rho(many), 1e-6) / 20_000)
    assert steps(MIXED) == pytest.approx(zcdp_epsilon(0.07, 1e-6) / 20_000)


def test_a_step_of_covers_is_a_20_000th_of_their_epsilons_and_of_the_rest() -> None:
    alone = 20_000 * steps(CoverEvent(1.0))
    assert cover_delta(1.0, alone, added=False) == pytest.approx(1e-6)
    assert steps(RepeatedEvent(CoverEvent(1.0), 3)) == pytest.approx(3 * alone / 20_000)
    rest = RepeatedEvent(LaplaceEvent(2.0), 3)
    assert steps(CoverEvent(1.0), rest) == pytest.approx((alone + 1.5) / 20_000)
    # Of a weak one delta is below a millionth at half of its epsilon already.
    weak = CoverEvent(1e-6)
    assert cover_delta(1e-6, 5e-7, added=False) < 1e-6
    assert steps(weak) == pytest.approx(5e-7 / 20_000)
    assert math.isfinite(steps(CoverEvent(700.0)))


def test_a_step_of_sampled_rounds_is_a_4_000th_of_the_epsilon_to_which_they_tend() -> None:
    mu = 0.1 * math.sqrt(math.exp(0.25) - 1)  # of one, in the limit of many
    rounds = RepeatedEvent(SampledGaussianEvent(2.0, 0.1), 10)
    assert steps(rounds) == pytest.approx(zcdp_epsilon(5 * mu**2, 1e-6) / 4_000)
    both = 5 * mu**2 + 0.5 / 4
    assert steps(rounds, GaussianEvent(2.0)) == pytest.approx(zcdp_epsilon(both, 1e-6) / 4_000)
    # Sampled often, they cost what they cost unsampled.
    often = RepeatedEvent(SampledGaussianEvent(1.0, 0.9), 10)
    assert steps(often) == pytest.approx(zcdp_epsilon(5.0, 1e-6) / 4_000)
    cover = 20_000 * steps(CoverEvent(1.0))
    assert steps(rounds, CoverEvent(1.0)) == pytest.approx(steps(rounds) + cover / 4_000)


@pytest.mark.parametrize(
    ("multiplier", "rate", "furthest"),
    [(1.0, 1e-6, 10.5), (0.25, 1e-6, 48.0), (0.2, 1e-6, 62.5), (0.05, 1e-100, 400.0)],
)
def test_losses_of_a_rare_client_have_20_000_steps(
    multiplier: float, rate: float, furthest: float
) -> None:
    """The furthest loss is that of ten deviations, less what the coin hides."""
    loss = math.log(1 - rate + rate * math.exp(furthest))
    rare = SampledGaussianEvent(multiplier, rate)
    assert steps(rare) == pytest.approx(loss / 20_000)
    assert steps(SampledGaussianEvent(100.0, 1e-6), rare) == pytest.approx(loss / 20_000)


@pytest.mark.parametrize("multiplier", [1 / 20.1, 1 / 28, 1 / 29, 0.01])
def test_with_very_little_noise_sampling_saves_too_little_to_count(multiplier: float) -> None:
    """Neither does any exponential overflow."""
    found = steps(SampledGaussianEvent(multiplier, 1e-100))
    assert found == pytest.approx(zcdp_epsilon(0.5 / multiplier**2, 1e-6) / 4_000)


# What an attacker can do ----------------------------------------------------------------------


def test_attacker_wins_with_the_randomised_response_rate() -> None:
    assert attacker_odds(Budget(1.0, 0.0)) == pytest.approx(math.e / (1 + math.e))
    assert attacker_odds(Budget(math.log(3), 0.2)) == pytest.approx((3 + 0.2) / 4)
    assert attacker_odds(Budget(1000.0, 0.0)) == 1


def test_attacker_on_a_gaussian_wins_with_phi_of_half_mu() -> None:
    assert attacker_odds(GaussianEvent(0.5)) == pytest.approx(0.5 * math.erfc(-1 / math.sqrt(2)))


def test_attacker_on_a_laplace_does_better_with_less_noise() -> None:
    assert attacker_odds(LaplaceEvent(1.0)) == pytest.approx(1 - math.exp(-0.5) / 2, rel=1e-4)


@pytest.mark.parametrize("prior", [0.01, 0.3, 0.5, 0.9])
def test_attacker_learns_nothing_from_nothing_and_all_from_everything(prior: float) -> None:
    assert attacker_odds(NOTHING, prior) == max(prior, 1 - prior)
    assert attacker_odds(NonPrivateEvent(), prior) == pytest.approx(1.0)


@pytest.mark.parametrize("prior", [0.05, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("delta", [0.0, 0.1])
def test_attacker_bound_is_the_best_corner_of_the_error_region(prior: float, delta: float) -> None:
    eps = 1.5
    middle = (1 - delta) / (1 + math.exp(eps))
    corners = [(0.0, 1 - delta), (middle, middle), (1 - delta, 0.0)]
    best = max((1 - prior) * (1 - fpr) + prior * (1 - fnr) for fpr, fnr in corners)
    assert attacker_odds(Budget(eps, delta), prior) == pytest.approx(best)


@pytest.mark.parametrize("prior", [0.02, 0.5])
def test_attacker_bound_of_an_event_is_within_that_of_its_budget(prior: float) -> None:
    for event in (GaussianEvent(1.0), MIXED):
        budget = Budget(accounting.epsilon(event, 1e-6), 1e-6)
        assert attacker_odds(event, prior) <= attacker_odds(budget, prior)


@pytest.mark.parametrize("prior", [0.0, 1.0, -1.0, math.nan])
def test_attacker_needs_a_prior_strictly_between_zero_and_one(prior: float) -> None:
    with pytest.raises(PlanError, match="prior"):
        attacker_odds(GaussianEvent(1.0), prior)
