"""What a design refuses before a plan exists: budgets, sizes and classes that do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.tasks.count import Count
from cloister.tasks.examples import example_of


def plan_of(name: str, delta: float, **options: Any) -> Plan:
    example = example_of(TASKS[name], n_features=2, n_clusters=3)
    return make_plan(
        TASKS[name],
        schema_of(example.columns),
        ("silo",),
        budget=Budget(1.0, delta),
        nominal_n=10_000,
        **{**example.options, **options},
    )


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].private])
def test_gaussian_noise_has_no_pure_budget(name: str) -> None:
    if plan_of(name, 1e-6).layout.mechanism != "gaussian":
        assert plan_of(name, 0.0).budget == Budget(1.0, 0.0)
        return
    with pytest.raises(PlanError, match="delta must be"):
        plan_of(name, 0.0)


@pytest.mark.parametrize("cells", [10**9, 10**30, 1, -1])
def test_a_plan_chooses_no_memory_that_its_sums_do_not_show(cells: int) -> None:
    task = plan_of("naive-bayes", 1e-6).task
    with pytest.raises(PlanError, match="cells must be"):
        replace(task, cells=(*task.cells[: task.target], cells, *task.cells[task.target + 1 :]))


def test_a_class_that_is_no_task_is_named_before_a_plan_is_made() -> None:
    class Old:
        name: ClassVar[str] = "old"
        exhibits = Count.displays

    for member in ("private", "profiles", "rounds", "design", "describe", "start", "blocks"):
        setattr(Old, member, getattr(Count, member))
    for member in ("contribute", "update", "forecast", "results"):
        setattr(Old, member, getattr(Count, member))
    with pytest.raises(PlanError, match=r"no 'displays' \(it was called 'exhibits'\)"):
        make_plan(
            Old,  # type: ignore[arg-type]
            schema_of(example_of(Count, n_features=2, n_clusters=3).columns),
            ("silo",),
            budget=Budget(1.0, 1e-6),
            nominal_n=100,
        )
