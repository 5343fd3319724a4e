"""Broken on purpose: a choice by exact tables, and vectors that say what was chosen, are caught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.audit.checks import check_replay
from cloister.audit.runs import search
from cloister.core.errors import CloisterError
from cloister.data.schema import schema_of
from cloister.protocol.plan import Plan
from cloister.protocol.task import GridState, Integers, NoisyBlock, Records, State
from cloister.tasks.synthesis.synthesise import Part, Synthesise
from cloister.testing import Wire, check_task, hostile_states
from cloister_lab.audit.mutants import CLAIM, FixedNoise

_SEEN: list[Integers] = []


@dataclass(frozen=True, kw_only=True)
class ChoosesExactly(Synthesise):
    """Measures noisy tables, but chooses by the exact ones, as methods do that own the records."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        words = super().contribute(t, state, records)
        if t == 1 and len(records):
            _SEEN.append(words)
        return words

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        if t == 1 and _SEEN:
            released = {"pairs": NoisyBlock(_SEEN[-1], released["pairs"].noise_std)}
        return super().update(t, state, released)


@dataclass(frozen=True, kw_only=True)
class Grows(Synthesise):
    """Sends as many words as the chosen tables have cells."""

    rows = None  # the kernel alone: the core would leave out what it must show

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        words = super().contribute(t, state, records)
        used = np.flatnonzero(words)
        return words[: used[-1] + 1] if t == 2 and len(used) else words


@dataclass(frozen=True, kw_only=True)
class ForgetsToShare(Synthesise):
    """Takes the whole bound for each chosen table."""

    def _word(self, part: Part, tables: int) -> int:
        return super()._word(part, 1 if part == "tables" else tables)


def plan_of(kind: type[Synthesise]) -> Plan:
    example = Synthesise.example
    schema = schema_of(example.columns)
    return make_plan(kind, schema, ["silo"], budget=CLAIM, nominal_n=100, **example.options)


def records_of(plan: Plan, rows: int = 60) -> Records:
    """Return records of which the choice finds something: columns that say the same."""
    one = plan.grid.one
    values = np.random.default_rng(0).integers(-one, one + 1, (rows, 1))
    return np.repeat(values, plan.grid.n_features, axis=1).astype(np.int32)


def test_a_choice_by_exact_tables_does_not_follow_from_what_was_released() -> None:
    assert not check_replay(plan_of(Synthesise)).alarms
    assert check_replay(plan_of(ChoosesExactly)).alarms


def test_a_vector_that_grows_with_what_is_chosen_is_refused() -> None:
    plan = plan_of(Grows)
    check_task(plan_of(Synthesise).task, [records_of(plan)], list(hostile_states(plan.task)))
    with pytest.raises(AssertionError):
        check_task(plan.task, [records_of(plan)], list(hostile_states(plan.task)))
    with pytest.raises(CloisterError):
        Wire(plan, {"silo": records_of(plan)}).run()


def test_more_than_the_bound_is_found() -> None:
    assert search(plan_of(ForgetsToShare), "groups", FixedNoise("tables")).excess > 1
    honest = search(plan_of(Synthesise), "groups", FixedNoise("tables"))
    assert honest.excess <= 1
    assert honest.adds_up
