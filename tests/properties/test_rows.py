"""The rows of each task are its specification, and its kernel sums the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cloister.app.in_process import make_clients, run_clients
from cloister.app.job import make_plan
from cloister.core.arrays import GridState, Records
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.rows import sum_of_rows
from cloister.protocol.task import has_rows, records_in_box
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of, hostile_rounds
from cloister.testing import ZeroNoise, outside_the_box

OLD_CONTRACT = {  # rewritten later; until then their kernel is all that they have
    *(
        "cox",
        "fedavg",
        "fedavg-regression",
        "linear",
        "logistic",
        "pca",
        "survival",
    ),
}
WITH_ROWS = sorted(TASKS.keys() - OLD_CONTRACT)


def plan_of(name: str, **options: Any) -> Plan:
    case = example_of(TASKS[name])
    budget = Budget(2.0, 1e-6) if TASKS[name].private else None
    given = {"budget": budget, "nominal_n": 2000, **case.options, **options}
    return make_plan(TASKS[name], schema_of(case.columns), ("a", "b", "c"), **given)


def table_of(name: str, plan: Plan, rows: int = 120) -> Records:
    """Return records of the columns of a task: any of the box, its corners, and none of the box."""
    rng, one = np.random.default_rng(5), plan.grid.one
    table = np.empty((rows, plan.grid.n_features), dtype=np.int32)
    for j, column in enumerate(example_of(TASKS[name]).columns):
        share = rng.uniform(-1, 1, rows)
        if column.levels > 1:
            share = 2 * rng.integers(0, column.levels, rows) / (column.levels - 1) - 1
        table[:, j] = np.rint(share * one)
    table[:20] = np.clip(table[:20], -1, 1) * one
    return np.concatenate([table, outside_the_box(table.shape[1], plan.grid.frac_bits)])


def rounds_of(plan: Plan, table: Records) -> Iterator[tuple[int, GridState]]:
    """Yield each round with the state of a run, and rounds with states of a hostile aggregator."""
    clients = make_clients(plan, {silo: [table] for silo in plan.silos})
    for _ in run_clients(clients, ZeroNoise()):
        pass
    yield from enumerate(next(iter(clients.values())).history[:-1])
    places = list(hostile_rounds(plan.task))
    yield from places[:: max(1, len(places) // 12)]


def test_tasks_without_rows_are_those_that_are_rewritten_later() -> None:
    assert {name for name in TASKS if not has_rows(TASKS[name])} == OLD_CONTRACT


@pytest.mark.parametrize("name", WITH_ROWS)
def test_a_kernel_sums_what_the_rows_say(name: str) -> None:
    plan = plan_of(name)
    table = records_in_box(table_of(name, plan), plan.grid.frac_bits)
    seen = set()
    for t, state in rounds_of(plan, table):
        seen.add(t)
        for some in (table, table[:1], table[:0], np.repeat(table[3:5], 7, axis=0)):
            by_kernel = plan.task.contribute(t, state, some)
            assert (sum_of_rows(plan.task, t, state, some) == by_kernel).all(), (t, len(some))
    assert seen == set(range(plan.rounds))
