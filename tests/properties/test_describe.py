"""Describe: what one record adds is bounded by the plan, and the bound is attained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks.examples import BOOLEAN, CATEGORY, NUMBER, OTHER_NUMBER
from cloister.tasks.tables.describe import Describe
from cloister.testing import check_task, hostile_states, toy_task

KINDS = {
    "all": (NUMBER, CATEGORY, OTHER_NUMBER, BOOLEAN),
    "numbers": (NUMBER, OTHER_NUMBER),
    "categories": (CATEGORY, BOOLEAN),
}


def designed(columns: tuple[PublicColumn, ...], frac_bits: int = 16, **given: Any) -> Describe:
    facts = {"nominal_n": 1000, "budget": Budget(1.0, 1e-6), "frac_bits": frac_bits}
    return toy_task(Describe, n_features=len(columns), columns=columns, **{**facts, **given})


def worst(columns: int, frac_bits: int) -> Records:
    one = 1 << frac_bits
    rows = [[one], [one], [-one], [0], [1], [-1], [one - 1], [2**31 - 1], [-(2**31)]]
    return np.repeat(np.array(rows, dtype=np.int32), columns, axis=1)


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_records_keep_the_bounds(kind: str, frac_bits: int) -> None:
    task = designed(KINDS[kind], frac_bits, levels=3)
    rows = worst(len(KINDS[kind]), frac_bits)
    check_task(task, [rows, rows[:0], np.repeat(rows[:1], 9, 0)], list(hostile_states(task)))


@given(
    records=arrays(
        np.int32, st.tuples(st.integers(0, 6), st.just(4)), elements=st.integers(-16, 16)
    )
)
def test_any_records_keep_the_bounds(records: Records) -> None:
    check_task(designed(KINDS["all"], 4, levels=2), [records])


@pytest.mark.parametrize("kind", KINDS)
def test_a_corner_attains_the_bound_of_every_block(kind: str) -> None:
    task = designed(KINDS[kind])
    added = task.contribute(0, grid(task), worst(len(KINDS[kind]), 16)[:1]).astype(object)
    place = 0
    for block in task.blocks(0):
        part = added[place : place + block.size]
        assert (part**2).sum() == block.l2_squared
        place += block.size
    assert place == len(added)


def test_the_sums_of_silos_are_those_of_pooled_records_in_any_split() -> None:
    task = designed(KINDS["all"])
    records = np.random.default_rng(0).integers(-(1 << 16), (1 << 16) + 1, (999, 4), dtype=np.int32)
    parts = np.split(records, [0, 100, 101, 700])
    whole = task.contribute(0, grid(task), records)
    assert (sum(task.contribute(0, grid(task), part) for part in parts) == whole).all()


def test_shares_ranks_and_means_have_one_margin_of_error() -> None:
    task = designed(KINDS["all"])
    words = {b.name: b.l2_squared / b.weight for b in task.blocks(0)}
    assert words["tables"] == pytest.approx(words["moments"])
    assert words["trees"] < words["tables"]
    assert sum(b.weight for b in task.blocks(0)) == pytest.approx(1)


@dataclass(frozen=True, kw_only=True)
class Loud(Describe):
    """A record counts twice in its tables."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        found = super().contribute(t, state, records)
        found[: task_cells(self)] *= 2
        return found


def task_cells(task: Describe) -> int:
    return sum(map(len, task.categories))


def test_a_mutant_is_caught_by_the_laws_and_by_an_audit() -> None:
    columns = KINDS["all"]
    with pytest.raises(AssertionError):
        check_task(loud(columns), [worst(4, 16)])
    audit = audit_task(Loud, Budget(4.0, 1e-5), runs=100, words=2000, canaries=50)
    assert any(finding.alarms for finding in audit.findings)


def loud(columns: tuple[PublicColumn, ...]) -> Loud:
    own = designed(columns)
    return Loud(**{field.name: getattr(own, field.name) for field in fields(own)})


def grid(task: Describe) -> GridState:
    return {name: np.round(v * 65536).astype(np.int64) for name, v in task.start().items()}
