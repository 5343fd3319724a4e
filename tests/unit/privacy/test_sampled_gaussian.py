"""Rounds with sampled units: priced between bounds made here, calibrated, kept in the ledger.

No test here is random.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from cloister.core.errors import BudgetExceeded, PlanError
from cloister.privacy import accounting, calibration
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    sampled_noise_multiplier,
)
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    RepeatedEvent,
    SampledGaussianEvent,
    event_from_dict,
    mechanism_counts,
)
from cloister.privacy.filter import Split
from cloister.privacy.ledger import Ledger

CASES = [(1.0, 0.1, 10), (0.7, 0.5, 5), (3.0, 0.05, 20), (5.0, 0.9, 20)]


def bracket(z: float, q: float, rounds: int, epsilon: float) -> tuple[float, float]:
    """Return bounds of delta from the loss distribution, rounded down and up; both directions.

    Independent of the product: masses of small cells of the released number, and their losses.
    """
    edges = np.linspace(-12 * z, 1 + 12 * z, 400_001)
    none = np.diff(norm.cdf(edges / z))
    one = np.diff(norm.cdf((edges - 1) / z))
    mixed = (1 - q) * none + q * one

    def ratio(x: np.ndarray) -> np.ndarray:
        return np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))

    low, high = ratio(edges[:-1]), ratio(edges[1:])
    width = epsilon / (100 * rounds)
    found = []
    for mass, down, up in ((mixed, low, high), (none, -high, -low)):
        deltas = []
        for losses, rounder in ((down, np.floor), (up, np.ceil)):
            steps = rounder(losses / width).astype(int)
            first = steps.min()
            pmf = np.bincount(steps - first, weights=mass)
            size = 1 << math.ceil(math.log2(rounds * len(pmf) + 1))
            total = np.fft.irfft(np.fft.rfft(pmf, size) ** rounds, size)
            loss = (np.arange(size) + rounds * first) * width
            over = loss > epsilon
            deltas.append(float((total[over] * -np.expm1(epsilon - loss[over])).sum()))
        found.append(deltas)
    lower, upper = (max(pair) for pair in zip(*found, strict=True))
    return lower, upper


@pytest.mark.parametrize(("z", "q", "rounds"), CASES)
def test_the_price_lies_between_independent_bounds(z: float, q: float, rounds: int) -> None:
    event = RepeatedEvent(SampledGaussianEvent(z, q), rounds)
    for delta in (1e-2, 1e-4):
        epsilon = accounting.epsilon(event, delta)
        lower, _ = bracket(z, q, rounds, epsilon)
        assert lower <= delta
        looser, _ = bracket(z, q, rounds, 0.96 * epsilon)
        assert looser > delta, "and it is not much too high"


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.3), (0.5, 0.01), (4.0, 0.999)])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0])
def test_one_round_has_the_closed_form(z: float, q: float, epsilon: float) -> None:
    e = math.exp(epsilon)
    cut = z * z * math.log((e - 1 + q) / q) + 0.5
    with_it = (1 - q - e) * norm.sf(cut / z) + q * norm.sf((cut - 1) / z)
    # the other way round the loss is -log(1 - q + q exp(..)), at most -log(1 - q)
    without = 0.0
    if epsilon < -math.log1p(-q):
        cut = z * z * math.log((1 / e - 1 + q) / q) + 0.5
        without = norm.cdf(cut / z) * (1 - e * (1 - q)) - e * q * norm.cdf((cut - 1) / z)
    found = accounting.delta(SampledGaussianEvent(z, q), epsilon)
    assert max(with_it, without) * (1 - 1e-9) <= found <= max(with_it, without) * 1.001 + 1e-9


@pytest.mark.parametrize("rounds", [1, 20])
def test_sampling_everybody_costs_what_no_sampling_costs(rounds: int) -> None:
    for z in (0.8, 2.0, 20.0):
        plain = accounting.epsilon(RepeatedEvent(GaussianEvent(z), rounds), 1e-6)
        event = RepeatedEvent(SampledGaussianEvent(z, 1 - 1e-9), rounds)
        assert 0.999 * plain <= accounting.epsilon(event, 1e-6) <= plain
        plain = accounting.delta(RepeatedEvent(GaussianEvent(z), rounds), 1.0)
        assert 0.999 * plain <= accounting.delta(event, 1.0) <= plain


def test_sampling_nobody_costs_nothing() -> None:
    costs = [
        accounting.epsilon(RepeatedEvent(SampledGaussianEvent(1.0, q), 50), 1e-5)
        for q in (0.3, 0.1, 1e-2, 1e-3, 1e-5)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 1e-2


def test_sampling_never_costs_more_and_noise_never_hurts() -> None:
    for z in (0.6, 1.0, 3.0):
        plain = accounting.epsilon(RepeatedEvent(GaussianEvent(z), 10), 1e-6)
        costs = [
            accounting.epsilon(RepeatedEvent(SampledGaussianEvent(y, 0.2), 10), 1e-6)
            for y in (z, 1.2 * z, 2 * z)
        ]
        assert plain > costs[0] > costs[1] > costs[2]


def test_renyi_divergences_give_a_looser_bound() -> None:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    for z, q, rounds in CASES:
        accountant = RdpAccountant()
        one = PoissonSampledDpEvent(q, GaussianDpEvent(z))
        accountant.compose(SelfComposedDpEvent(one, rounds))
        ours = accounting.epsilon(RepeatedEvent(SampledGaussianEvent(z, q), rounds), 1e-6)
        assert 0.6 * accountant.get_epsilon(1e-6) < ours < accountant.get_epsilon(1e-6)


@pytest.mark.parametrize(
    ("budget", "rate", "rounds"), [((1.0, 1e-6), 0.1, 20), ((4.0, 1e-5), 0.5, 8)]
)
def test_the_noise_that_is_found_costs_the_budget_and_no_more(
    budget: tuple[float, float], rate: float, rounds: int
) -> None:
    weights = [1 / rounds] * rounds
    found = sampled_noise_multiplier(*budget, rate, weights)
    event = RepeatedEvent(SampledGaussianEvent(found * math.sqrt(rounds), rate), rounds)
    assert 0.99 * budget[0] < accounting.epsilon(event, budget[1]) <= budget[0]
    assert found < gaussian_noise_multiplier(*budget)


def test_a_round_never_has_less_noise_than_can_be_priced() -> None:
    """A fifth of the sensitivity in each round, however large the budget."""
    assert sampled_noise_multiplier(50.0, 1e-6, 0.01, [0.25] * 4) == 0.2 * math.sqrt(0.25)


SEARCHES = [
    (1.0, 0.1, (0.05,) * 20),
    (2.0, 0.3, (0.05,) * 8 + (0.15,) * 4),
    (20.0, 0.001, (0.9, 0.1)),  # the guess is below the least noise that can be priced
    (4.0, 0.9, (1.0,)),  # the guess is above the noise of rounds without coins
]


def searched(budget: Budget, rate: float, weights: tuple[float, ...]) -> float:
    """Return what the search finds, and leave nothing in its cache."""
    return float(calibration._sampled.__wrapped__(budget, rate, weights))


@pytest.mark.parametrize(("epsilon", "rate", "weights"), SEARCHES)
@pytest.mark.parametrize("place", [-1.0, 0.01, 0.3, 0.6, 0.99, 2.0])
def test_a_search_ends_a_thousandth_above_the_least_noise_that_is_enough(
    epsilon: float,
    rate: float,
    weights: tuple[float, ...],
    place: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With made-up prices, under which any noise may be the first that is enough."""
    budget, most = Budget(epsilon, 1e-6), gaussian_noise_multiplier(epsilon, 1e-6)
    least = 0.2 * math.sqrt(max(weights))
    enough = least * (most / least) ** place

    def price(event: Event, delta: float) -> float:
        assert delta == 1e-6
        squares = 0.0
        for round, n in mechanism_counts(event).items():
            assert isinstance(round, SampledGaussianEvent)
            assert round.rate == rate
            assert round.noise_multiplier >= 0.2 * (1 - 1e-12), "it takes too long to be priced"
            squares += n / round.noise_multiplier**2
        found = 1 / math.sqrt(squares)  # weights sum to 1
        assert found < most, "it is enough without coins"
        # Prices are numerical, so one that is too near to the budget is none that it allows.
        return epsilon * (1 - 1e-4) if found >= enough else epsilon * (1 - 0.99e-4)

    monkeypatch.setattr(calibration, "priced", price)
    found = searched(budget, rate, weights)
    if place < 0:
        assert found == least
    elif place > 1:
        assert found == most
    else:
        assert enough * (1 - 1e-12) <= found <= 1.001 * enough


@pytest.mark.parametrize(
    ("epsilon", "rate", "rounds"), [(1.0, 0.1, 20), (1.0, 0.01, 100), (8.0, 0.05, 10)]
)
@pytest.mark.parametrize(("off", "prices"), [(1 / 1.3, 11), (0.95, 9), (1.05, 9), (1.3, 11)])
def test_a_search_prices_nine_times_where_its_guess_is_near(
    epsilon: float,
    rate: float,
    rounds: int,
    off: float,
    prices: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A price may take a second. In the limit of many rounds it is as here, with noise `off`."""
    asked = []

    def price(event: Event, delta: float) -> float:
        ((round, n),) = mechanism_counts(event).items()
        asked.append(round)
        mu = rate * math.sqrt(n * math.expm1((off / round.noise_multiplier) ** 2))  # type: ignore[union-attr]
        return accounting.gdp_epsilon(mu, delta)

    monkeypatch.setattr(calibration, "priced", price)
    searched(Budget(epsilon, 1e-6), rate, (1 / rounds,) * rounds)
    assert len(asked) <= prices


def test_rounds_of_different_shares_cost_the_budget_together() -> None:
    weights = [0.05] * 8 + [0.15] * 4
    found = sampled_noise_multiplier(2.0, 1e-6, 0.3, weights)
    event = ComposedEvent(tuple(SampledGaussianEvent(found / math.sqrt(w), 0.3) for w in weights))
    assert 1.98 < accounting.epsilon(event, 1e-6) <= 2.0


def test_the_event_survives_json_and_has_one_order() -> None:
    one, other = SampledGaussianEvent(1.0, 0.1), SampledGaussianEvent(1.0, 0.2)
    both = ComposedEvent((one, RepeatedEvent(other, 3)))
    assert event_from_dict(json.loads(json.dumps(both.to_dict()))) == both
    orders = [mechanism_counts(ComposedEvent(pair)) for pair in ((one, other), (other, one))]
    assert list(orders[0]) == list(orders[1])


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(PlanError):
        SampledGaussianEvent(1.0, rate)


def test_no_gdp_parameter_and_no_pure_epsilon_is_claimed() -> None:
    event = SampledGaussianEvent(1.0, 0.1)
    with pytest.raises(PlanError):
        accounting.gdp_mu(event)
    assert accounting.pure_epsilon(event) == math.inf
    assert accounting.epsilon(event, 0.0) == math.inf


def test_a_ledger_prices_sampled_rounds_beside_others() -> None:
    ledger, cap = Ledger(None), Budget(1.5, 1e-6)
    ledger.open_dataset("phones", cap=cap, unit="silo", split=Split(0.5, 0.5))
    rounds = RepeatedEvent(SampledGaussianEvent(4.0, 0.1), 20)
    ledger.reserve(dataset="phones", study="s", job="j", events=rounds)
    spent = ledger.spent("phones")
    assert accounting.epsilon(rounds, 1e-6) < spent <= 0.75
    assert spent < accounting.epsilon(RepeatedEvent(GaussianEvent(4.0), 20), 1e-6) / 3
    left = ledger.remaining("phones")
    assert 0 < left < 0.75
    more = GaussianEvent(gaussian_noise_multiplier(left, 1e-6))
    ledger.reserve(dataset="phones", study="s", job="beside", events=more)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(dataset="phones", study="s", job="k", events=RepeatedEvent(rounds, 4))
    ledger.close("beside")
    for round in range(20):
        ledger.commit(job="j", round=round, event=SampledGaussianEvent(4.0, 0.1), frame=b"x")
    ledger.close("j")
    assert ledger.spent("phones") == pytest.approx(spent)
