"""The table of a job's life: nothing ends twice, nothing is stuck, no step is twice there."""

from __future__ import annotations

from itertools import chain

import pytest

from cloister.protocol.lifecycle import (
    COORDINATOR,
    ENDED,
    GRANTED,
    MEANING,
    OPEN,
    RESERVE,
    SILO,
    STATES,
    UNDECIDED,
    SiloState,
    Step,
)

PARTIES = {
    "coordinator": (COORDINATOR, set(STATES), set(ENDED)),
    "silo": (SILO, set(SiloState), set(SiloState) - set(OPEN)),
}
FIRST = {"coordinator": set(), "silo": {SiloState.WAITING}}  # a silo's job may begin as others, too


@pytest.mark.parametrize("party", PARTIES)
def test_a_job_that_ended_takes_no_step(party: str) -> None:
    steps, _, ended = PARTIES[party]
    assert not ended & set(chain.from_iterable(step.sources for step in steps))


@pytest.mark.parametrize("party", PARTIES)
def test_every_state_is_reached_and_every_open_one_can_be_left(party: str) -> None:
    steps, states, ended = PARTIES[party]
    assert {step.target for step in steps} | FIRST[party] == states
    assert set(chain.from_iterable(step.sources for step in steps)) == states - ended


def test_a_silo_grants_only_what_its_ledger_reserved() -> None:
    ways: list[Step[SiloState]] = [step for step in SILO if step.target in GRANTED]
    assert [step for step in ways if set(step.sources) & set(UNDECIDED)] == [RESERVE]


def test_no_two_rows_are_of_one_event() -> None:
    for steps in (COORDINATOR, SILO):
        assert len({step.event for step in steps}) == len(steps)


def test_every_state_at_the_coordinator_means_something_else() -> None:
    assert MEANING.keys() == set(STATES)
    assert len(set(MEANING.values())) == len(STATES)
