from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from cloister.core.errors import PlanError
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    LossEvent,
    NonPrivateEvent,
    RepeatedEvent,
    event_from_dict,
    holds,
    mechanism_counts,
)

NESTED = ComposedEvent(
    (
        RepeatedEvent(ComposedEvent((GaussianEvent(0.1), LaplaceEvent(1 / 3))), 7),
        GaussianEvent(math.pi),
        NonPrivateEvent(),
        ComposedEvent(()),
    )
)


@pytest.mark.parametrize("event", [*NESTED.events, NESTED])
def test_json_round_trip_is_exact(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"event": "exponential"},
        {"event": "gaussian"},
        {"event": "gaussian", "noise_multiplier": 1.0, "note": "x"},
        {"event": "gaussian", "noise_multiplier": "1"},
        {"event": "gaussian", "noise_multiplier": None},
        {"event": "non_private", "noise_multiplier": 1.0},
        {"event": "composed"},
        {"event": "composed", "events": [3]},
        {"event": "composed", "events": 3},
        {"event": "repeated", "count": 2},
        {"event": "repeated", "count": 2.0, "of": {"event": "non_private"}},
        [],
        [["event", "non_private"]],
        "gaussian",
        None,
    ],
)
def test_unknown_descriptions_are_refused(data: Any) -> None:
    with pytest.raises(PlanError):
        event_from_dict(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "must be a JSON object, got list"),
        ({"event": "gaussian"}, "'gaussian' has missing, unknown or ill-typed keys"),
        ({"event": "composed"}, "'composed' has missing, unknown or ill-typed keys"),
        ({"event": "magic"}, "kind of an event .*, got 'magic'"),
    ],
)
def test_a_refused_description_says_what_is_wrong(data: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        event_from_dict(data)


@pytest.mark.parametrize("kind", [GaussianEvent, LaplaceEvent])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "1", True])
def test_noise_multiplier_must_be_positive_and_finite(kind: Any, value: float) -> None:
    with pytest.raises(PlanError, match="noise_multiplier"):
        kind(value)


@pytest.mark.parametrize("count", [-1, 1.5, True, 2**53 + 1])
def test_count_must_be_a_count(count: int) -> None:
    with pytest.raises(PlanError, match="count"):
        RepeatedEvent(GaussianEvent(1.0), count)


def test_only_events_can_be_composed() -> None:
    with pytest.raises(PlanError, match="an event is needed"):
        ComposedEvent((1.0,))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="an event is needed"):
        RepeatedEvent("gaussian", 2)  # type: ignore[arg-type]


def test_a_composition_is_a_value_of_its_own() -> None:
    parts: list[Event] = [GaussianEvent(1.0), LaplaceEvent(2.0)]
    event = ComposedEvent(parts)  # type: ignore[arg-type]
    same = ComposedEvent(tuple(parts))
    parts.clear()
    assert event == same
    assert len({event, same, ComposedEvent(same.events[:1])}) == 2


def test_counts_multiply_through_repetition_and_add_through_composition() -> None:
    pair = ComposedEvent((GaussianEvent(1.0), RepeatedEvent(LaplaceEvent(2.0), 3)))
    event = ComposedEvent((RepeatedEvent(pair, 5), GaussianEvent(1)))
    assert mechanism_counts(event) == {GaussianEvent(1.0): 6, LaplaceEvent(2.0): 15}


def test_repeating_zero_times_is_doing_nothing() -> None:
    assert mechanism_counts(RepeatedEvent(NonPrivateEvent(), 0)) == {}


def test_holds_looks_inside() -> None:
    assert holds(NESTED, NonPrivateEvent)
    assert not holds(RepeatedEvent(GaussianEvent(1.0), 3), LaplaceEvent)


def test_events_and_budgets_need_no_scipy() -> None:
    code = (
        "import sys, cloister.privacy.events, cloister.privacy.budget;"
        "sys.exit(bool({'scipy', 'dp_accounting', 'sqlalchemy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mechanism_of_another_package_must_define_its_losses() -> None:
    class Unfinished(LossEvent):
        pass

    with pytest.raises(NotImplementedError):
        Unfinished().rough_epsilon()
    with pytest.raises(NotImplementedError):
        Unfinished().losses(0.1)
