"""Scorecards: what one record adds is bounded by the plan, and any release has answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import Block, NoisyBlock, PublicColumn
from cloister.tasks.tables.scorecard import Scorecard
from cloister.testing import check_task, hostile_states, toy_plan, toy_task

COLUMNS = (
    PublicColumn("score", 0.0, 100.0),
    PublicColumn("home", 0.0, 2.0, ("own", "rent", "other")),
    PublicColumn("year", 0.0, 2.0, ("2023", "2024", "2025")),
    PublicColumn("sex", 0.0, 1.0, ("0", "1")),
    PublicColumn("default", 0.0, 1.0, ("0", "1")),
)
WIDTH = len(COLUMNS)
EDGES = {"score": (30.0, 50.0, 80.0)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"characteristics": ("home", "sex")},
    "score": {"characteristics": ("score",), "edges": EDGES},
    "years": {"characteristics": ("score", "home", "year"), "edges": EDGES, "over": "year"},
    "groups": {"characteristics": ("home",), "group": "year", "decision": "sex"},
    "all": {"edges": EDGES, "over": "year", "group": "sex", "decision": "score", "cutoff": 50.0},
}


def designed(kind: str, frac_bits: int = 16, task: type[Scorecard] = Scorecard) -> Scorecard:
    options = {"least_signal": 0.0, **OPTIONS[kind]}
    if kind == "all":
        options["characteristics"] = ("score", "home", "sex")
    facts = {"n_features": WIDTH, "nominal_n": 10_000, "frac_bits": frac_bits, "columns": COLUMNS}
    return toy_task(task, **facts, budget=Budget(1.0, 1e-6), target="default", **options)


def worst(frac_bits: int) -> Records:
    """Corners, copies, edges of bins and their neighbours, and records beside the box."""
    one = 1 << frac_bits
    edge = int(np.rint((80.0 / 100 * 2 - 1) * one))
    rows = [[one] * 5, [one] * 5, [-one] * 5, [0] * 5, [1] * 5, [-1] * 5]
    rows += [[edge + by] * 5 for by in (-1, 0, 1)]
    return np.array([*rows, [2**31 - 1] * 5, [-(2**31)] * 5], dtype=np.int32)


def added(task: Scorecard, records: Records) -> Integers:
    state = {k: np.zeros(v.shape, dtype=np.int64) for k, v in task.start().items()}
    return task.contribute(0, state, records)


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_worst_records_keep_the_bounds_in_any_state(kind: str, frac_bits: int) -> None:
    task, rows = designed(kind, frac_bits), worst(frac_bits)
    tables = [rows, rows[:1], np.repeat(rows[:1], 9, 0), rows[:0]]
    check_task(task, tables, states=list(hostile_states(task)))


@pytest.mark.parametrize("kind", OPTIONS)
@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 6), st.just(WIDTH)), elements=st.integers(-17, 17)
    )
)
def test_any_records_keep_the_bounds_and_each_attains_them(kind: str, records: Records) -> None:
    task = designed(kind, 4)
    check_task(task, [records])
    (block,) = task.blocks(0)
    found = added(task, records[:1]).astype(object)
    if (np.abs(records[:1]) <= 16).all():
        assert (np.abs(found).sum(), (found**2).sum()) == (block.l1, block.l2_squared)


@pytest.mark.parametrize("kind", OPTIONS)
def test_parts_of_a_split_sum_to_the_whole_and_lengths_are_of_the_plan(kind: str) -> None:
    task, rng = designed(kind), np.random.default_rng(0)
    records = rng.integers(-(1 << 16), (1 << 16) + 1, (300, WIDTH)).astype(np.int32)
    whole = added(task, records)
    for _ in range(20):
        owner = rng.integers(0, 4, 300)  # the last silo is empty
        assert (sum(added(task, records[owner == silo]) for silo in range(5)) == whole).all()
    assert added(task, records[:0]).shape == whole.shape == task.blocks(0)[0].shape


@pytest.mark.parametrize("kind", OPTIONS)
@given(
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    mean=st.sampled_from([0, 5, 100, -100]),
    seed=st.integers(0, 99),
)
def test_any_release_has_results_without_gaps(
    kind: str, scale: float, mean: int, seed: int
) -> None:
    """Of nobody, of counts below 0, and where all is noise: numbers, in order, and a report."""
    task = designed(kind)
    plan = toy_plan(task, columns=tuple(c.name for c in COLUMNS))
    (block,) = task.blocks(0)
    words = np.rint(np.random.default_rng(seed).normal(mean, scale, block.shape) * 2**16)
    state = task.update(0, {}, {"sums": NoisyBlock(words.astype(np.int64), scale * 2**16)})
    found = task.results({k: round_to_grid(v, 16) for k, v in state.items()}, plan.grid)
    for name, value in found.items():
        assert np.isfinite(value).all(), name
        if name.endswith("_low"):
            assert (value <= found[name.removesuffix("low") + "high"] + 1e-12).all(), name
    assert task.displays(found, plan.columns)


class Twice(Scorecard):
    """A record on the edge of a bin is in the bins on both sides."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        on_edge = np.isin(records[:, 0], self.walls[0])
        below = records - np.int32(1)
        return super().contribute(t, state, records) + super().contribute(t, state, below[on_edge])


class FreeTables(Scorecard):
    """States the price of one table, and sends several."""

    rows = None  # the kernel alone: the core would leave out what it must show

    def blocks(self, t: int) -> tuple[Block, ...]:
        (block,) = super().blocks(t)
        return (replace(block, l1=self.words[0], l2_squared=self.words[0] ** 2),)


@pytest.mark.parametrize("twin", [Twice, FreeTables])
def test_a_twin_that_adds_too_much_is_found_by_an_audit(twin: type[Scorecard]) -> None:
    options = Scorecard.example.options
    found = audit_task(twin, Budget(4.0, 1e-6), options=options, runs=60, words=200)
    assert "sensitivity" in {finding.check for finding in found.findings if finding.alarms}


@pytest.mark.parametrize("twin", [Twice, FreeTables])
def test_the_laws_find_it_too(twin: type[Scorecard]) -> None:
    edge = np.full((3, WIDTH), designed("all").walls[0][1], dtype=np.int32)
    with pytest.raises(AssertionError):
        check_task(designed("all", task=twin), [edge])
