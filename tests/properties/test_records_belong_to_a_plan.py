"""Records belong to a plan: what another contract read, or lies outside the box, adds nothing.

All of a task's bounds are proved for one lattice, one box and so many rows a unit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, Ledger, Schema, make_plan, run_job
from cloister.app.in_process import run_plan
from cloister.app.payment import Account
from cloister.core.errors import PlanError
from cloister.data import array_records, read_source
from cloister.data.schema import Column, schema_of
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.task import GridState, Task, records_in_box
from cloister.secagg.masks import NoMask
from cloister.tasks import installed
from cloister.tasks.count import Count
from cloister.tasks.examples import example_of
from cloister.testing import ZeroNoise, check_task, hostile_states, outside_the_box

TASKS = installed()  # the laboratory's, too

TABLE = pd.DataFrame({"x0": [0.5] * 50, "x1": [0.5] * 50, "person": ["a"] * 50})
FIELDS: dict[str, Any] = {"budget": Budget(1.0, 1e-6), "nominal_n": 100}


def schema(d: int = 2, high: float = 1.0, max_rows: int | None = None) -> Schema:
    columns = tuple(Column(name=f"x{i}", type="number", min=-1.0, max=high) for i in range(d))
    unit = "row" if max_rows is None else "person"
    return Schema(dataset="toy", unit=unit, columns=columns, max_rows=max_rows)


@pytest.mark.parametrize(
    ("planned", "read", "how", "word"),
    [
        (schema(), schema(), {"frac_bits": 20}, "frac_bits"),
        (schema(), schema(), {"frac_bits": 12}, "frac_bits"),
        (schema(), schema(high=2.0), {}, "bounds"),
        (schema(max_rows=1), schema(max_rows=50), {}, "max_rows"),
        (schema(max_rows=1), schema(), {}, "unit"),
        (schema(), schema(), {"columns": ["x0"]}, "columns"),
        (schema(), schema(d=2).model_copy(update={"max_silos_per_person": 2}), {}, "schema_digest"),
    ],
)
def test_records_read_by_another_contract_are_refused_before_anything_is_spent(
    planned: Schema, read: Schema, how: dict[str, Any], word: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("toy", cap=Budget(3.0, 1e-6), unit=planned.unit)
    account = Account(ledger, "toy")
    records = {"a": read_source(TABLE, read, **how)}
    before = ledger.head
    plan = make_plan(Count, planned, ["a"], **FIELDS)
    with pytest.raises(PlanError, match=f"their {word} differ"):
        run_plan(plan, records, account=account)
    with pytest.raises(PlanError, match=f"their {word} differ"):  # the noisy count is not paid for
        run_job(TASKS["fastlloyd"], planned, records, epsilon=1.0, n_clusters=2, account=account)
    with pytest.raises(PlanError, match=f"their {word} differ"):
        Client(plan, "a", records["a"], NoMask())
    assert ledger.head == before


def test_records_of_plain_bounds_fit_plans_of_rows_with_the_same_bounds_only() -> None:
    values = TABLE[["x0", "x1"]].to_numpy()
    rows, people = (make_plan(Count, s, ["a"], **FIELDS) for s in (schema(), schema(max_rows=1)))
    same = {"a": array_records(values, schema().grid())}
    assert run_plan(rows, same, noise=ZeroNoise()).results["count"] == [50]
    with pytest.raises(PlanError, match="their unit differ"):
        run_plan(people, same)
    with pytest.raises(PlanError, match="their bounds differ"):
        run_plan(rows, {"a": array_records(values, schema(high=2.0).grid())})


def test_records_outside_the_box_add_nothing_however_they_come() -> None:
    plan = make_plan(Count, schema(), ["a"], **FIELDS)
    one = plan.grid.one
    good = np.array([[one, -one], [0, 0], [1 - one, one]], dtype=np.int32)
    table = np.concatenate([good[:1], outside_the_box(2, 16), good[1:]])
    for source in ([table], [table[:3], table[3:]], lambda t, state: [table]):
        assert run_plan(plan, {"a": source}, noise=ZeroNoise()).results["count"] == [3]


@pytest.mark.parametrize(
    "table", [np.zeros((2, 2)), np.zeros((2, 2), dtype=np.int64), np.zeros(2, dtype=np.int32)]
)
def test_tables_that_are_not_of_grid_steps_are_refused(table: np.ndarray) -> None:
    plan = make_plan(Count, schema(), ["a"], **FIELDS)
    with pytest.raises(PlanError, match="records must be tables of int32 grid steps"):
        run_plan(plan, {"a": [table]})


def planned_task(word: str, *d: int) -> Plan:
    example = example_of(TASKS[word], *d)
    return make_plan(
        TASKS[word],
        schema_of(example.columns),
        ["a"],
        budget=Budget(1.0, 1e-6),
        nominal_n=1000,
        **example.options,
    )


def start(task: Task) -> GridState:
    return {name: round_to_grid(v, task.frac_bits) for name, v in task.start().items()}


def excess(task: Task, t: int, words: np.ndarray) -> float:
    """Return by how much one record's words exceed the norms of its round; at most 1 is right."""
    worst, offset = 0.0, 0
    for block in task.blocks(t):
        part = [int(v) for v in words[offset : offset + block.size]]
        offset += block.size
        l2 = sum(v * v for v in part) / block.l2_squared
        worst = max(worst, l2, sum(map(abs, part)) / block.l1)
    return worst


@pytest.mark.parametrize("word", sorted(w for w, task in TASKS.items() if task.private))
def test_no_task_exceeds_its_bound_for_records_outside_the_box_or_hostile_states(word: str) -> None:
    plan = planned_task(word)
    task, d = plan.task, plan.grid.n_features
    one = plan.grid.one
    corners = np.array([[one] * d, [-one] * d, [0] * d, [one - 1] * d], dtype=np.int32)
    table = np.concatenate([outside_the_box(d, plan.grid.frac_bits), corners])
    for state in (start(task), *hostile_states(task)):
        for t in sorted({0, 1, plan.rounds // 2, plan.rounds - 1} & set(range(plan.rounds))):
            for row in table:
                words = task.contribute(t, state, records_in_box(row[None], task.frac_bits))
                assert excess(task, t, words) <= 1, (t, row.tolist())


def test_a_task_without_the_rule_would_exceed_its_bound() -> None:
    """The mutant: the first round of `auto`, summed as records come."""
    task = planned_task("auto", 9).task
    row = outside_the_box(task.n_features, task.frac_bits)[1:2]
    assert excess(task, 0, task.contribute(0, start(task), row)) > 100
    assert (
        excess(task, 0, task.contribute(0, start(task), records_in_box(row, task.frac_bits))) == 0
    )


def test_check_task_feeds_records_outside_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    task = planned_task("auto", 9).task
    check_task(task, [np.zeros((1, task.n_features), dtype=np.int32)])
    module = sys.modules[check_task.__module__]
    monkeypatch.setattr(module, "records_of", lambda task, records: records)
    with pytest.raises(AssertionError, match=r"bound|the kernel must sum the rows"):
        check_task(task, [np.zeros((1, task.n_features), dtype=np.int32)])
