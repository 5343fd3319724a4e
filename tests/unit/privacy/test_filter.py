from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from cloister.core.errors import BudgetExceeded, LedgerError, PlanError
from cloister.privacy import accounting, ledger_file
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    gdp_mu_for,
)
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RepeatedEvent,
    SampledGaussianEvent,
)
from cloister.privacy.filter import (
    SLACK,
    Cost,
    Limits,
    PricingRule,
    Split,
    cheapest_pricing,
    gdp_cover,
    tariffs,
    total,
)
from cloister.privacy.ledger import Ledger
from cloister_lab.events import CoverEvent, cover_pick_epsilon

Floats = NDArray[np.float64]
CAP = Budget(1.0, 1e-6)
MU = gdp_mu_for(CAP.epsilon, CAP.delta)
SPLITS = [Split(), Split(0.3), Split(0.5, 0.5), Split(0.2, 0.8), Split(1.0), Split(1.0, 1.0)]

# An analyst who chooses each job in the light of the ones before ----------------------------------


class Law:
    """The worst pair of distributions of a cost: its losses and its hockey-stick divergences."""

    def __init__(self, cost: Cost) -> None:
        self.mu, self.epsilon = math.sqrt(cost.mu_squared), cost.pure_epsilon
        self.failure = cost.failure_delta

    def losses(self, points: int) -> tuple[Floats, Floats]:
        """Return the losses under the first distribution, and their probabilities."""
        if self.mu:
            z = np.linspace(-9, 9, points)
            weights = stats.norm.pdf(z)
            return self.mu**2 / 2 + self.mu * z, weights / weights.sum()
        likely, kept = 1 / (1 + math.exp(-self.epsilon)), 1 - self.failure
        losses = np.array([self.epsilon, -self.epsilon, 1e3])  # a failure tells everything
        return losses, np.array([kept * likely, kept * (1 - likely), self.failure])

    def delta(self, x: Floats) -> Floats:
        """Return the largest P(S) - e**x Q(S)."""
        x = np.clip(x, -100, 100)
        if self.mu:
            a, b = self.mu / 2 - x / self.mu, -self.mu / 2 - x / self.mu
            return np.asarray(stats.norm.cdf(a) - np.exp(x) * stats.norm.cdf(b))
        likely = 1 / (1 + math.exp(-self.epsilon))
        kept = np.maximum(likely - np.exp(x) * (1 - likely), 0)
        kept += np.maximum(1 - likely - np.exp(x) * likely, 0)
        return np.asarray(self.failure + (1 - self.failure) * kept)


class Laplace(Law):
    """Laplace noise itself."""

    def delta(self, x: Floats) -> Floats:
        x = np.clip(x, -100, 100)
        inside = -np.expm1((np.clip(x, -self.epsilon, self.epsilon) - self.epsilon) / 2)
        return np.where(x >= -self.epsilon, inside, -np.expm1(np.minimum(x, 0)))


def uncovered(mu: float) -> float:
    """Return the largest epsilon whose cover is mu."""
    return math.log(stats.norm.cdf(mu / 2) / stats.norm.cdf(-mu / 2))


def choices(left: Cost, part: float = 1.0) -> Iterator[tuple[Law, Cost]]:
    """Yield the laws that a part of what is left pays for."""
    if left.mu_squared:
        cost = Cost(mu_squared=part * left.mu_squared)
        yield Law(cost), cost
        yield Law(Cost(pure_epsilon=uncovered(math.sqrt(cost.mu_squared)))), cost
    if left.pure_epsilon:
        cost = Cost(pure_epsilon=part * left.pure_epsilon)
        yield Law(cost), cost
    if left.pure_epsilon and left.failure_delta:
        cost += Cost(failure_delta=part * left.failure_delta)
        yield Law(cost), cost


def reached(limits: Limits, so_far: Cost, x: Floats, steps: int, points: int) -> Floats:
    """Return the delta at x of an analyst who chooses every step by what was told before it.

    Exact but for the sum over `points` that stands for a Gaussian loss.
    """
    left = limits.left(so_far)
    best = np.maximum(-np.expm1(np.minimum(x, 0)), 0)
    for law, _ in choices(left):
        best = np.maximum(best, law.delta(x))
    for part in (0.2, 0.5, 0.8) if steps > 1 else ():
        for law, cost in choices(left, part):
            losses, weights = law.losses(points)
            after = reached(limits, so_far + cost, x[..., None] - losses, steps - 1, points)
            best = np.maximum(best, after @ weights)
    return best


CAPS = [Budget(1, 1e-6), Budget(1, 0.01), Budget(4, 1e-6), Budget(10, 1e-6), Budget(0.5, 1e-9)]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("cap", CAPS, ids=str)
def test_a_second_job_chosen_by_the_result_of_the_first_stays_within_the_cap(
    cap: Budget, split: Split
) -> None:
    found = reached(Limits(cap, split), Cost(), np.array(cap.epsilon), steps=2, points=1001)
    assert found <= cap.delta * (1 + 1e-5)


@pytest.mark.parametrize("split", [Split(), Split(0.3, 0.3), Split(0.7, 0.1)], ids=str)
def test_three_jobs_chosen_one_after_another_stay_within_the_cap(split: Split) -> None:
    found = reached(Limits(CAP, split), Cost(), np.array(CAP.epsilon), steps=3, points=101)
    assert found <= CAP.delta * (1 + 1e-5)


@pytest.mark.parametrize("cap", CAPS, ids=str)
def test_the_limits_are_used_up_and_not_wasted_by_gaussian_or_whole_jobs(cap: Budget) -> None:
    for split in (Split(), Split(1.0, 1.0)):
        found = reached(Limits(cap, split), Cost(), np.array(cap.epsilon), steps=2, points=1001)
        assert found == pytest.approx(cap.delta, rel=1e-5)


def composed_within(cap: Budget, first: Event, make: Callable[[float], Event]) -> float:
    """Return the largest number whose event, priced together with the first, is within the cap."""
    low, high = 1e-4, 10 * cap.epsilon
    for _ in range(30):
        middle = (low + high) / 2
        fits = accounting.epsilon(ComposedEvent((first, make(middle))), cap.delta) <= cap.epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


@pytest.mark.parametrize("cap", [Budget(1, 1e-6), Budget(4, 1e-6)], ids=str)
def test_a_ledger_that_composes_what_happened_fails_this_law(cap: Budget) -> None:
    mu = 0.2 * gdp_mu_for(cap.epsilon, cap.delta)
    first = GaussianEvent(1 / mu)
    second = composed_within(cap, first, lambda mu: GaussianEvent(1 / mu))
    third = composed_within(cap, first, lambda epsilon: LaplaceEvent(1 / epsilon))
    losses, weights = Law(Cost(mu_squared=mu**2)).losses(1001)
    gaussian = Law(Cost(mu_squared=second**2)).delta(cap.epsilon - losses)
    laplace = Laplace(Cost(pure_epsilon=third)).delta(cap.epsilon - losses)
    assert gaussian @ weights <= cap.delta * 1.001 >= laplace @ weights  # either, planned before
    assert np.maximum(gaussian, laplace) @ weights > 1.9 * cap.delta  # but not chosen afterwards
    limits, so_far = Limits(cap, Split()), Cost(mu_squared=mu**2)
    assert cheapest_pricing(GaussianEvent((1 + 1e-6) / second), [(limits, so_far)])
    assert cheapest_pricing(LaplaceEvent(1 / third), [(limits, so_far)]) is None


def test_an_analyst_with_a_choice_of_limits_would_pass_the_cap() -> None:
    """So limits are a box, not all sums that are worth the cap."""
    cap, mu = Budget(1, 1e-6), 0.2 * MU
    low, high = 0.0, 1.0
    for _ in range(50):  # as much pure epsilon as composes with the first job to the cap
        middle = (low + high) / 2
        fits = accounting.gdp_delta(mu, cap.epsilon - middle) <= cap.delta
        low, high = (middle, high) if fits else (low, middle)
    losses, weights = Law(Cost(mu_squared=mu**2)).losses(1001)
    gaussian = Law(Cost(mu_squared=MU**2 - mu**2)).delta(cap.epsilon - losses)
    pure = Law(Cost(pure_epsilon=low)).delta(cap.epsilon - losses)
    assert np.maximum(gaussian, pure) @ weights > 1.2 * cap.delta


# What a job is charged ----------------------------------------------------------------------------

multipliers = st.floats(0.5, 200.0)
mechanisms = st.one_of(
    st.builds(GaussianEvent, multipliers),
    st.builds(LaplaceEvent, multipliers),
    st.builds(SampledGaussianEvent, multipliers, st.floats(0.01, 0.99)),
)


@given(st.floats(1e-6, 12.0), st.floats(-13.0, 13.0))
def test_a_pure_mechanism_tells_less_than_the_gaussian_one_that_covers_it(
    epsilon: float, x: float
) -> None:
    at = np.array(x)
    worst, cover = Law(Cost(pure_epsilon=epsilon)), Law(Cost(mu_squared=gdp_cover(epsilon) ** 2))
    assert worst.delta(at) <= cover.delta(at) + 1e-9


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 5.0])
def test_a_smaller_cover_would_tell_less(epsilon: float) -> None:
    x = np.array(0.0)
    smaller = Law(Cost(mu_squared=(0.999 * gdp_cover(epsilon)) ** 2))
    assert smaller.delta(x) < Law(Cost(pure_epsilon=epsilon)).delta(x)


def test_covers_are_known_numbers_without_a_jump() -> None:
    assert gdp_cover(0.0) == 0
    assert gdp_cover(1.0) == pytest.approx(2 * stats.norm.ppf(math.e / (1 + math.e)), rel=1e-12)
    assert gdp_cover(9.99e-5) <= gdp_cover(1e-4) == pytest.approx(1.2533141e-4, rel=1e-7)
    assert gdp_cover(1e6) == math.inf
    assert 0.18 < uncovered(MU) < 0.2  # the largest pure job under the default limits of (1, 1e-6)


@given(st.floats(0.5, 50.0), st.floats(0.01, 0.99), st.floats(0.0, 5.0))
@settings(max_examples=8, deadline=None)
def test_sampled_clients_tell_less_than_the_same_noise_without_coins(
    multiplier: float, rate: float, epsilon: float
) -> None:
    sampled = accounting.delta(SampledGaussianEvent(multiplier, rate), epsilon)
    cost = PricingRule("apart").cost(SampledGaussianEvent(multiplier, rate))
    assert cost == Cost(mu_squared=pytest.approx(multiplier**-2))
    # A numerical distribution rounds up.
    assert sampled <= accounting.gdp_delta(1 / multiplier, epsilon) * 1.01 + 1e-9


PLAIN = LaplaceEvent(1e-4)  # whose cover has no finite mu


def test_mechanisms_go_to_the_limits_of_their_law() -> None:
    mixed = ComposedEvent((GaussianEvent(2.0), RepeatedEvent(LaplaceEvent(10.0), 3)))
    assert PricingRule("apart").cost(mixed) == Cost(pytest.approx(0.3), 0.25)
    assert PricingRule("covered").cost(mixed) == Cost(
        0, pytest.approx(0.25 + 3 * gdp_cover(0.1) ** 2)
    )
    whole = PricingRule("whole", 0.7, 1e-7)
    assert whole.cost(mixed) == whole.cost(GaussianEvent(2.0)) == Cost(0.7, 0, 1e-7)
    assert whole.cost(ComposedEvent(())) == Cost()


@pytest.mark.parametrize("tariff", [PricingRule("apart"), PricingRule("covered")])
@pytest.mark.parametrize("event", [NonPrivateEvent(), CoverEvent(0.01), GaussianEvent(1e-200)])
def test_what_has_no_finite_cost_is_beyond_all_limits(event: Event, tariff: PricingRule) -> None:
    for epsilon in (1e9, 1e308):
        for split in (Split(), Split(0.5, 0.5)):
            assert not Limits(Budget(epsilon, 0.5), split).admits(Cost(), tariff.cost(event))
    assert not Limits(Budget(1e308, 0.5), Split()).admits(
        Cost(), PricingRule("covered").cost(PLAIN)
    )


@given(st.lists(mechanisms, min_size=1, max_size=3), st.floats(0.1, 5.0))
@settings(max_examples=8, deadline=None)
def test_a_whole_job_is_charged_what_it_is_worth_at_its_delta(
    events: list[Event], epsilon: float
) -> None:
    limits, job = Limits(Budget(2 * epsilon, 1e-5), Split(0.5, 0.5)), ComposedEvent(tuple(events))
    for tariff in tariffs(job, [limits]):
        if tariff.kind == "whole":
            assert accounting.epsilon(job, tariff.delta) <= tariff.epsilon
            part = limits.share(tariff.cost(job))
            assert tariff.epsilon <= part * epsilon * (1 + 1e-9)
            assert tariff.delta <= part * limits.room.failure_delta * (1 + 1e-9)


@given(mechanisms, st.sampled_from(SPLITS))
@settings(max_examples=8, deadline=None)
def test_a_tariff_survives_json_and_the_cheapest_one_is_taken(event: Event, split: Split) -> None:
    limits = Limits(Budget(2.0, 1e-6), split)
    known = tariffs(event, [limits])
    assert [PricingRule.from_dict(tariff.to_dict()) for tariff in known] == known
    shares = [limits.share(tariff.cost(event)) for tariff in known]
    assert shares == sorted(shares)
    taken = cheapest_pricing(event, [(limits, Cost())])
    assert taken == (known[0] if shares[0] <= 1 + SLACK else None)


def test_a_limit_that_is_used_up_leaves_the_others() -> None:
    limits = Limits(Budget(1.0, 1e-6), Split(0.5))
    small = LaplaceEvent(1e3)
    # Many small Laplace releases compose like Gaussian ones, so they are charged so first.
    assert cheapest_pricing(small, [(limits, Cost())]) == PricingRule("covered")
    assert cheapest_pricing(LaplaceEvent(4.0), [(limits, Cost())]) == PricingRule("apart")
    assert cheapest_pricing(small, [(limits, Cost(pure_epsilon=0.5))]) == PricingRule("covered")
    full = Cost(mu_squared=limits.room.mu_squared)
    assert cheapest_pricing(small, [(limits, full)]) == PricingRule("apart")
    assert cheapest_pricing(GaussianEvent(1e4), [(limits, full)]) is None
    assert limits.epsilon_left(full) == 0.5


# Limits -------------------------------------------------------------------------------------------


def test_limits_are_the_stated_parts_of_the_cap() -> None:
    room = Limits(Budget(2.0, 1e-6), Split(0.25, 0.5)).room
    assert (room.pure_epsilon, room.failure_delta) == (0.5, 5e-7)
    assert room.mu_squared == gdp_mu_for(1.5, 5e-7) ** 2
    assert Limits(CAP, Split()).room == Cost(0, MU**2, 0)
    assert Limits(CAP, Split(1.0, 1.0)).room == Cost(1.0, 0, 1e-6)
    assert Limits(Budget(1.0, 0.0), Split.default(Budget(1.0, 0.0))).room == Cost(1.0, 0, 0)
    assert Limits(Budget(1.0, 0.0), Split()).room == Cost()


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, True, "1"])
def test_a_share_is_a_part(share: float) -> None:
    for given_ in ((share, 0.0), (0.0, share)):
        with pytest.raises(PlanError, match=r"share of a cap must be a number in \[0, 1\]"):
            Split(*given_)
    with pytest.raises(PlanError, match="uses both"):
        Split(0.0, 0.1)
    with pytest.raises(PlanError, match="tariff"):
        PricingRule("free")  # type: ignore[arg-type]


@given(st.integers(1, 300), st.floats(0.05, 30.0), st.floats(-12.0, -1.0), st.randoms())
def test_gaussian_jobs_that_sum_to_mu_exactly_are_accepted_and_nothing_beside(
    jobs: int, epsilon: float, log_delta: float, random: np.random.RandomState
) -> None:
    limits = Limits(Budget(epsilon, 10.0**log_delta), Split())
    weights = [random.uniform(0.1, 1.0) for _ in range(jobs)]
    so_far, mu = Cost(), gdp_mu_for(epsilon, 10.0**log_delta)
    for weight in weights:
        event = GaussianEvent(math.sqrt(sum(weights) / weight) / mu)
        tariff = cheapest_pricing(event, [(limits, so_far)])
        assert tariff == PricingRule("apart")
        so_far += tariff.cost(event)
    assert limits.epsilon(so_far) == pytest.approx(epsilon, rel=1e-6)
    assert cheapest_pricing(GaussianEvent(1e4 / mu), [(limits, so_far)]) is None


@given(mechanisms, st.floats(0.05, 20.0), st.sampled_from([1e-9, 1e-6, 1e-2]))
def test_what_is_left_of_limits_can_be_spent_and_no_more(
    event: Event, epsilon: float, delta: float
) -> None:
    limits, so_far = Limits(Budget(epsilon, delta), Split()), PricingRule("covered").cost(event)
    left = limits.epsilon_left(so_far)
    if not limits.admits(Cost(), so_far):
        assert left == 0
    elif left > 1e-6:
        job = GaussianEvent(gaussian_noise_multiplier(left, delta))
        assert cheapest_pricing(job, [(limits, so_far)]) == PricingRule("apart")
    rest, room = limits.left(so_far).mu_squared, limits.room.mu_squared
    if rest > 1e-3 * room:  # else a thousandth of it is within the slack
        assert (
            cheapest_pricing(GaussianEvent(1 / (1.001 * math.sqrt(rest))), [(limits, so_far)])
            is None
        )


@given(st.lists(mechanisms, max_size=5), st.sampled_from(SPLITS))
def test_what_is_spent_reaches_the_cap_only_with_its_limits(
    events: list[Event], split: Split
) -> None:
    limits = Limits(Budget(3.0, 1e-6), split)
    so_far = total(PricingRule("apart").cost(event) for event in events)
    if limits.admits(Cost(), so_far):
        assert limits.epsilon(so_far) <= 3.0 * (1 + 1e-6)
    assert limits.epsilon(limits.room) == pytest.approx(3.0)
    assert limits.epsilon(Cost()) == 0


# The ledger ---------------------------------------------------------------------------------------

COVER = CoverEvent(cover_pick_epsilon(0.3, 3e-7))
FAMILIES: dict[str, Event] = {
    "gaussian": RepeatedEvent(GaussianEvent(2 / MU), 4),
    "laplace": RepeatedEvent(LaplaceEvent(5.0), 5),
    "exponential": RepeatedEvent(COVER, 2),
    "sampled": RepeatedEvent(SampledGaussianEvent(1.85, 0.2), 2),
    "mixed": ComposedEvent((COVER, LaplaceEvent(5.0), GaussianEvent(10.0))),
    "noisy count": ComposedEvent(
        (LaplaceEvent(50.0), GaussianEvent(gaussian_noise_multiplier(0.98, 1e-6)))
    ),
}


JUNE = datetime(2025, 6, 30, tzinfo=UTC)  # no year ends while this runs


def book(ledger: Ledger, job: str, events: Event, **other: object) -> None:
    where: dict[str, object] = {"dataset": "d", "study": "s", **other}
    ledger.reserve(job=job, events=events, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_job_whose_price_is_the_cap_is_accepted_by_a_ledger_opened_for_it(name: str) -> None:
    events, ledger = FAMILIES[name], Ledger(None)
    cap = Budget(accounting.epsilon(events, 1e-6), 1e-6)
    ledger.open_dataset("d", cap=cap, split=Split.split_for(events, cap))
    book(ledger, "j", events)
    assert ledger.spent("d") == pytest.approx(cap.epsilon, rel=1e-6)
    assert ledger.remaining("d") == pytest.approx(0, abs=1e-5 * cap.epsilon)
    for event in (events, GaussianEvent(1e3), LaplaceEvent(1e3)):
        with pytest.raises(BudgetExceeded):
            book(ledger, "k", event)
    smaller = Budget(0.99 * cap.epsilon, cap.delta)
    ledger.open_dataset("e", cap=smaller, split=Split.split_for(events, smaller))
    with pytest.raises(BudgetExceeded):
        book(ledger, "k", events, dataset="e")


@pytest.mark.parametrize("name", ["laplace", "exponential", "sampled", "mixed", "noisy count"])
def test_a_refusal_by_limits_that_do_not_suit_the_job_names_those_that_do(name: str) -> None:
    events, ledger = FAMILIES[name], Ledger(None)
    cap = Budget(accounting.epsilon(events, 1e-6), 1e-6)
    ledger.open_dataset("d", cap=cap)
    with pytest.raises(BudgetExceeded) as caught:
        book(ledger, "j", events)
    assert str(Split()) in str(caught.value)
    assert str(Split.split_for(events, cap)) in str(caught.value)
    assert str(caught.value).count(". ") == 0


@given(
    st.sampled_from([Split(), Split(0.4, 0.4), Split(1.0), Split(0.7)]),
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "commit", "close"]),
            st.integers(0, 5),
            st.sampled_from(
                [
                    GaussianEvent(9.0),
                    GaussianEvent(30.0),
                    LaplaceEvent(8.0),
                    LaplaceEvent(50.0),
                    SampledGaussianEvent(12.0, 0.1),
                    CoverEvent(0.02),
                ]
            ),
        ),
        max_size=25,
    ),
)
@settings(
    max_examples=max(10, settings().max_examples // 2),  # each is up to 25 entries of a ledger
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it sets the same each time
)
def test_no_interleaving_of_jobs_passes_the_limits_or_lowers_what_was_done(
    monkeypatch: pytest.MonkeyPatch, split: Split, steps: list[tuple[str, int, Event]]
) -> None:
    monkeypatch.setattr(ledger_file, "utc_now", lambda: JUNE)
    ledger, rounds = Ledger(None), count()
    ledger.open_dataset("d", cap=CAP, split=split)
    limits, done = ledger.limits("d"), Cost()
    for what, number, event in steps:
        job = f"j{number}"
        try:
            if what == "reserve":
                book(ledger, job, RepeatedEvent(event, 2), year_epsilon=0.9)
            elif what == "commit":
                ledger.commit(job=job, round=next(rounds), event=event, frame=b"x")
            else:
                ledger.close(job)
        except (BudgetExceeded, LedgerError):
            continue
        # What was really done, at the tariffs of its jobs, worked out anew.
        records = ledger.jobs()
        once = [r for r in records if r.rounds]
        assert total(r.cost for r in records) == ledger.cost("d")
        assert limits.admits(Cost(), ledger.cost("d"))
        assert ledger.limits("d").epsilon(ledger.cost("d")) <= 0.9 * (1 + 1e-6)
        now = total(r.tariff.cost(r.charged) for r in once if not r.is_open)
        assert now.pure_epsilon >= done.pure_epsilon
        assert now.mu_squared >= done.mu_squared
        done = now


def test_a_whole_job_that_began_stays_charged_and_one_that_did_not_is_free() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("d", cap=CAP, split=Split(1.0, 1.0))
    for job, rounds in (("never", 0), ("began", 1)):
        book(ledger, job, RepeatedEvent(CoverEvent(0.02), 2))
        reserved = ledger.cost("d")
        assert reserved.pure_epsilon > 0
        for round in range(rounds):
            ledger.commit(job=job, round=round, event=CoverEvent(0.02), frame=b"x")
        ledger.close(job)
        assert ledger.cost("d") == (reserved if rounds else Cost())


def test_study_and_year_caps_are_limits_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "utc_now", lambda: JUNE)
    ledger = Ledger(None)
    ledger.open_dataset("d", cap=Budget(4.0, 1e-6), split=Split(1.0, 1.0))
    ledger.study_cap("d", "s", CAP)
    assert ledger.limits("d", "s") == Limits(CAP, Split(1.0, 1.0))
    mixed = FAMILIES["mixed"]
    price = accounting.epsilon(mixed, 1e-6)
    ledger.study_cap("d", "exact", Budget(price, 1e-6))
    book(ledger, "a", mixed, study="exact")  # whose price is the cap of its study
    assert ledger.cost("d", "exact").pure_epsilon == pytest.approx(price, rel=1e-6)
    with pytest.raises(BudgetExceeded, match="study 'exact'"):
        book(ledger, "b", LaplaceEvent(1e4), study="exact")
    for number in range(2):
        book(ledger, f"y{number}", LaplaceEvent(2.5), study="t", year_epsilon=price + 0.8)
    with pytest.raises(BudgetExceeded, match="cap for a year"):
        book(ledger, "y", LaplaceEvent(1e3), study="t", year_epsilon=price + 0.8)
    book(ledger, "y", LaplaceEvent(1e3), study="t")


def test_limits_are_fixed_when_a_data_set_is_opened() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("d", cap=CAP, split=Split(0.25, 0.5))
    head = ledger.head()
    ledger.open_dataset("d", cap=CAP, split=Split(0.25, 0.5))
    ledger.open_dataset("d", cap=CAP)
    assert ledger.head() == head
    with pytest.raises(LedgerError, match=r"pure share 0\.25, failure share 0\.5.*fixed"):
        ledger.open_dataset("d", cap=CAP, split=Split(0.3, 0.5))
    ledger.change_cap("d", Budget(2.0, 1e-6))
    assert ledger.limits("d") == Limits(Budget(2.0, 1e-6), Split(0.25, 0.5))
