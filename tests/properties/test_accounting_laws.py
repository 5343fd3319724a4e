"""Laws of accounting, over all events: what is composed how must not change what it costs."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.privacy import accounting
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RepeatedEvent,
    event_from_dict,
    mechanism_counts,
)

multipliers = st.floats(0.2, 500.0)
gaussians = st.builds(GaussianEvent, multipliers)
mechanisms = gaussians | st.builds(LaplaceEvent, multipliers)
deltas = st.sampled_from([1e-9, 1e-6, 1e-3])


def nested(leaves: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.recursive(
        leaves,
        lambda events: (
            st.builds(ComposedEvent, st.lists(events, max_size=3).map(tuple))
            | st.builds(RepeatedEvent, events, st.integers(0, 5))
        ),
        max_leaves=4,
    )


gaussian_events = nested(gaussians)
noisy_events = nested(mechanisms)
all_events = nested(mechanisms | st.just(NonPrivateEvent()))

exact = settings(max_examples=max(60, settings().max_examples), deadline=None)
numerical = settings(  # a privacy loss distribution takes tens of milliseconds
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@numerical
@given(all_events, st.integers(0, 12), deltas)
def test_repeating_costs_the_same_as_composing_copies(event: Event, n: int, delta: float) -> None:
    repeated, copies = RepeatedEvent(event, n), ComposedEvent((event,) * n)
    assert accounting.epsilon(repeated, delta) == accounting.epsilon(copies, delta)
    assert accounting.delta(repeated, 0.5) == accounting.delta(copies, 0.5)
    assert accounting.pure_epsilon(repeated) == accounting.pure_epsilon(copies)
    assert accounting.zcdp_rho(repeated) == accounting.zcdp_rho(copies)


@exact
@given(gaussian_events, st.integers(0, 300), deltas)
def test_repeating_gaussians_costs_the_same_as_composing_copies(
    event: Event, n: int, delta: float
) -> None:
    repeated, copies = RepeatedEvent(event, n), ComposedEvent((event,) * n)
    assert accounting.gdp_mu(repeated) == accounting.gdp_mu(copies)
    assert accounting.epsilon(repeated, delta) == accounting.epsilon(copies, delta)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(3.7),
        LaplaceEvent(0.3),
        NonPrivateEvent(),
        ComposedEvent(()),
        ComposedEvent((GaussianEvent(2.0), LaplaceEvent(3.0))),
        RepeatedEvent(LaplaceEvent(7.0), 3),
    ],
)
def test_ten_of_each_kind_cost_the_same_repeated_or_listed(event: Event) -> None:
    repeated, copies = RepeatedEvent(event, 10), ComposedEvent((event,) * 10)
    for delta in (0.0, 1e-6):
        assert accounting.epsilon(repeated, delta) == accounting.epsilon(copies, delta)


@numerical
@given(st.lists(noisy_events, max_size=4), st.randoms(use_true_random=False), deltas)
def test_order_and_nesting_do_not_change_a_cost(
    events: list[Event], random: object, delta: float
) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    cost = accounting.epsilon(ComposedEvent(tuple(events)), delta)
    assert accounting.epsilon(ComposedEvent(tuple(shuffled)), delta) == cost
    nested = ComposedEvent((ComposedEvent(tuple(events)),))
    assert accounting.epsilon(nested, delta) == cost


@numerical
@given(noisy_events, noisy_events, deltas)
def test_doing_more_never_costs_less(first: Event, second: Event, delta: float) -> None:
    alone = accounting.epsilon(first, delta)
    both = accounting.epsilon(ComposedEvent((first, second)), delta)
    assert both >= alone * (1 - 1e-3)  # two numerical results, each at most a little too high


@exact
@given(gaussian_events, gaussian_events, deltas)
def test_doing_more_gaussians_never_costs_less(first: Event, second: Event, delta: float) -> None:
    both = accounting.epsilon(ComposedEvent((first, second)), delta)
    assert both >= accounting.epsilon(first, delta)


@numerical
@given(noisy_events, deltas)
def test_epsilon_is_enough_for_its_delta(event: Event, delta: float) -> None:
    eps = accounting.epsilon(event, delta)
    assert accounting.delta(event, eps) <= delta * (1 + 1e-6)


@numerical
@given(noisy_events, deltas)
def test_epsilon_is_within_every_closed_form(event: Event, delta: float) -> None:
    eps = accounting.epsilon(event, delta)
    assert 0 <= eps <= accounting.pure_epsilon(event)
    assert eps <= accounting.zcdp_epsilon(accounting.zcdp_rho(event), delta) * (1 + 1e-9)


@exact
@given(all_events)
def test_json_round_trip_is_exact(event: Event) -> None:
    again = event_from_dict(json.loads(json.dumps(event.to_dict())))
    assert again == event
    assert mechanism_counts(again) == mechanism_counts(event)


@exact
@given(st.floats(1e-3, 50.0), st.floats(-12.0, -1.0), st.integers(1, 500))
def test_a_calibrated_schedule_stays_within_its_budget(
    eps: float, log_delta: float, rounds: int
) -> None:
    delta = 10.0**log_delta
    sigma = gaussian_noise_multiplier(eps, delta) * math.sqrt(rounds)
    spent = accounting.epsilon(RepeatedEvent(GaussianEvent(sigma), rounds), delta)
    assert eps * (1 - 1e-3) <= spent <= eps
