"""A job is followed from its plan and what it released; a task that remembers comes out different.

Nothing here is left to chance: a replay is the same to the last bit, or it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cloister.audit.checks import check_replay
from cloister.protocol.replay import replay_elsewhere
from cloister.protocol.task import COUNT_BITS, Block, Floats, GridState, Integers, Records, Rows
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.custom import task
from cloister.testing import toy_plan
from cloister_lab.audit.mutants import FixedNoise, RemembersJobs, RemembersLast, plan_of

Grid = object
_SEEN: list[Integers] = []


@dataclass(frozen=True, kw_only=True)
class InItself(FastLloyd):
    """Keeps its last sums in the value itself."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        words = super().contribute(t, state, records)
        object.__setattr__(self, "_words", words)
        return words

    def results(self, state: GridState, grid: Grid) -> dict[str, Floats]:
        found = dict(super().results(state, grid))  # type: ignore[arg-type]  # a grid
        kept = getattr(self, "_words", np.zeros(1))
        return {**found, "sizes": found["sizes"] + kept[-1] / 2**40}


@dataclass(frozen=True, kw_only=True)
class ByState(FastLloyd):
    """Keeps all sums by the state that they were made at: another job does not change them."""

    _kept = {}  # noqa: RUF012  # the defect: a class that remembers

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        words = super().contribute(t, state, records)
        if len(records):
            self._kept.setdefault((t, state["centres"].tobytes()), words)
        return words

    def update(self, t, state, released):  # type: ignore[no-untyped-def]
        found = dict(super().update(t, state, released))
        kept = self._kept.get((t, state["centres"].tobytes()), np.zeros(1))
        return {**found, "sizes": found["sizes"] + kept[-1] / 2**20}


@task
class Tally:
    """Has no state before its round, and no results without one."""

    name = "tally"

    def blocks(self, t):  # type: ignore[no-untyped-def]
        return (Block.counting("n", (1,), 1.0),)

    def rows(self, t, state, records):  # type: ignore[no-untyped-def]
        return (Rows.at([np.zeros(len(records), np.int64)], [1 << COUNT_BITS]),)

    def update(self, t, state, released):  # type: ignore[no-untyped-def]
        return {"n": released["n"].in_records()[0]}

    def results(self, state, grid):  # type: ignore[no-untyped-def]
        return {"n": state["n"] / 2**16}


def test_an_honest_task_comes_out_the_same_everywhere() -> None:
    found = check_replay(plan_of(FastLloyd, rounds=2))
    assert not found.alarms
    assert "fresh interpreter" in found.evidence


@pytest.mark.parametrize("mutant", [RemembersLast, RemembersJobs, InItself, ByState])
def test_a_task_that_remembers_is_found_out(mutant: type[FastLloyd]) -> None:
    for _ in range(2 if mutant is ByState else 1):  # also when it remembers an audit before
        assert check_replay(plan_of(mutant, rounds=2)).alarms


def test_a_class_that_nobody_can_import_is_followed_in_this_interpreter() -> None:
    def make() -> type[FastLloyd]:
        return type("Remembers", (RemembersLast,), {"__module__": __name__})

    plan = plan_of(make(), rounds=2)
    assert replay_elsewhere(plan, [], np.zeros((0, 2), np.int32)) is None
    assert check_replay(plan, make_noise=lambda: FixedNoise("here")).alarms


def test_a_task_whose_results_need_a_state_is_replayed() -> None:
    found = check_replay(toy_plan(Tally(n_features=2), silos=1))
    assert not found.alarms
    assert "fresh interpreter" in found.evidence
