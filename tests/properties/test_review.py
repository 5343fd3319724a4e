"""Plans are written by others: one that lies about a bound is refused, or the bound holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.audit.checks import schema_of
from cloister.core.errors import PlanError
from cloister.data.schema import Column, Schema
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.plan import WITHOUT_LAYOUT, Plan
from cloister.protocol.summing import LocalStep
from cloister.protocol.task import GridState, NoisyBlock, PublicColumn, Task
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise, check_task

AGE, WEIGHT = PublicColumn("age", 0.0, 100.0), PublicColumn("weight", 0.0, 200.0)
SMOKES = PublicColumn("smokes", 0.0, 1.0, ("0", "1"))
WORK = PublicColumn("work", 0.0, 2.0, ("private", "state", "none"))
GRADE = PublicColumn("grade", 0.0, 4.0, tuple("abcde"))
BATCH = 1024  # rows that a released model is asked about at a time
BUDGET = Budget(1.0, 1e-6)
Document = dict[str, Any]


def planned(task: str, columns: tuple[PublicColumn, ...], **options: Any) -> Plan:
    schema = schema_of(columns)
    return make_plan(
        TASKS[task], schema, ("a", "b"), budget=BUDGET, nominal_n=1000, profile="group", **options
    )


def read(document: Document) -> Plan:
    """Read a plan as it comes to a silo."""
    return Plan.from_dict(json.loads(json.dumps(document)), TASKS)


def states(plan: Plan) -> list[GridState]:
    """States as updates make them of nothing, of noise, and of many records."""
    task, found = plan.task, []
    for seed, factor in enumerate((0.0, 1.0, 1e3)):
        rng = np.random.default_rng(seed)
        state = grid_state(task, task.start())
        for t in range(task.rounds):
            released = {}
            for block in task.blocks(t):
                noise = rng.normal(0, factor * plan.noise_scale(block), block.shape)
                released[block.name] = NoisyBlock(noise.astype(np.int64), plan.noise_std(block))
            state = grid_state(task, task.update(t, state, released))
        found.append(state)
    return found


def grid_state(task: Task, state: Any) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}


def worst(plan: Plan) -> list[np.ndarray]:
    """The middle and corners of the box, alone and together, and records between."""
    one, d = plan.grid.one, len(plan.columns)
    between = np.random.default_rng(0).integers(-one, one + 1, (3, d))
    table = np.array([[0] * d, [0] * d, [one] * d, [one] * d, [-one] * d, *between], dtype=np.int32)
    return [table, table[:1], table[2:3]]


def refused_or_kept(document: Document) -> None:
    """Check the laws of tasks, unless the plan is not read at all."""
    try:
        plan = read(document)
    except PlanError:
        return
    check_task(plan.task, worst(plan), states(plan))


def pipeline(*steps: tuple[str, dict[str, Any]], columns: Any = (AGE, WEIGHT)) -> Document:
    return planned("pipeline", columns, steps=steps, least_signal=0.0).to_dict()


def coarse_step(name: str, **options: Any) -> Document:
    """Let a step believe that records are a hundredth as large as they are."""
    columns = tuple(PublicColumn(f"x{j}", 0.0, 1.0) for j in range(4))
    document = pipeline((name, options), columns=columns)
    step = document["task"]["steps"][0]
    step.get("statistics", step)["frac_bits"] = 9
    return document


def no_deviation() -> Document:
    """Divide by nothing: a reach so small that mean and record differ by 0 of 0."""
    document = pipeline(("standardise", {}), ("statistics", {}))
    document["task"]["steps"][0]["reach"] = 5e-324
    return document


def no_scale() -> Document:
    document = pipeline(("pca", {"n_components": 2}), ("standardise", {}))
    document["task"]["steps"][0]["reach"] = 5e-324
    return document


def far_box(name: str) -> Document:
    """A box whose middle is beyond the largest float."""
    document = pipeline((name, {}), ("statistics", {}))
    for part in (document["task"], document["task"]["steps"][0]):
        part["low"], part["high"] = [1.7e308] * 2, [1.75e308] * 2
    return document


def far_centres() -> Document:
    """Centres whose squared distance to a record wraps below zero."""
    document = planned("cluster-quality", (AGE, WEIGHT), centres=((0, 0), (9, 9))).to_dict()
    document["task"]["centres"] = [[1 << 32, 0], [1 << 32, 5]]
    return document


def negative_counts() -> Document:
    """A box below zero, so that a record's counts are negative and their sum is small."""
    options = {"numbers": "counts", "most_counts": 300.0, "target": "smokes"}
    document = planned("naive-bayes", (AGE, WEIGHT, SMOKES), **options).to_dict()
    document["task"]["high"][0] = -1e6
    return document


def fewer_classes() -> Document:
    """A model that tells more classes than the evaluation has cells for."""
    columns = (AGE, WEIGHT, GRADE)
    model = planned("logistic", columns, target="grade", rounds=3)
    state = grid_state(model.task, model.task.start())
    weights = np.random.default_rng(0).integers(-9 << 16, 9 << 16, state["weights"].shape)
    released = model.task.results({**state, "weights": weights}, model.grid)
    options = {"model": model.task, "released": released}
    document = planned("evaluation", columns, **options).to_dict()
    document["task"]["classes"] = ["a", "b", "c"]
    return document


def by_turns(first: float, second: float, width: int) -> list[list[float]]:
    """A row of numbers for each place in a batch, where one row is meant for all."""
    rows = np.full((BATCH, width), first)
    rows[1::2] = second
    return rows.tolist()


def answers_by_place(truth: PublicColumn) -> Document:
    """Released numbers that let a record's answer depend on how many come before it."""
    columns = (AGE, WORK, truth)
    last = ("logistic", {"target": "smokes", "rounds": 3})
    if not truth.categories:
        last = ("linear", {"target": "weight"})
    steps = (("standardise", {"keep": (truth.name,)}), last)
    model = planned("pipeline", columns, steps=steps, least_signal=0.0)
    state = grid_state(model.task, model.task.start())
    results = model.task.results(state, model.grid)
    released = {key: np.nan_to_num(value) for key, value in results.items()}  # as if all are known
    released["grid_coef"] = np.zeros(np.shape(released["grid_coef"]))
    released["grid_coef"][..., 0] = 90.0
    name = "evaluation" if truth.categories else "regression-evaluation"
    document = planned(name, columns, model=model.task, released=released).to_dict()
    document["task"]["released"]["standardise.mean"] = by_turns(-1e3, 1e3, 1)
    return document


def class_sizes_by_place() -> Document:
    columns = (AGE, WEIGHT, SMOKES)
    options = {"target": "smokes", "kind": "random", "n_trees": 2, "depth": 2}
    model = planned("forest", columns, class_weight="balanced", **options)
    released = model.task.results(grid_state(model.task, model.task.start()), model.grid)
    plan = planned("evaluation", columns, model=model.task, released=released)
    document = plan.to_dict()
    sizes = np.array(by_turns(1.0, 1e6, 2))
    sizes[:, 1] = sizes[::-1, 1]
    document["task"]["released"]["class_sizes"] = sizes.tolist()
    return document


FORGED: dict[str, Callable[[], Document]] = {
    "a step on a coarser grid: standardise": lambda: coarse_step("standardise"),
    "a step on a coarser grid: statistics": lambda: coarse_step("statistics"),
    "a step on a coarser grid: pca": lambda: coarse_step("pca"),
    "standardise over a deviation of 0": no_deviation,
    "pca over a deviation of 0": no_scale,
    "standardise in a box beyond floats": lambda: far_box("standardise"),
    "bounds in a box beyond floats": lambda: far_box("bounds"),
    "centres far outside the box": far_centres,
    "counts below zero": negative_counts,
    "more classes told than there are": fewer_classes,
    "a class by the place in a batch": lambda: answers_by_place(SMOKES),
    "a number by the place in a batch": lambda: answers_by_place(WEIGHT),
    "class sizes by the place in a batch": class_sizes_by_place,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", FORGED)
def test_a_plan_that_lies_is_refused_or_its_bounds_hold(case: str) -> None:
    refused_or_kept(FORGED[case]())


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_word_is_never_spread_over_a_longer_block(
    chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy would add one count to every word of a block that was declared too long.

    Rows name the cells that a record counts in, so that the others stay empty.
    """
    document = planned("outliers", (AGE, WEIGHT), method="density").to_dict()
    document["task"] |= {"n_views": 400, "n_cells": 1}  # of a plane there is one view
    del document["layout"]  # which would give it away
    plan = read({**document, "protocol": WITHOUT_LAYOUT, "publish": False})
    table = np.full((3, 2), 1 << 16, dtype=np.int32)
    records = {silo: [table] * chunks for silo in ("a", "b")}
    sums: list[Any] = []
    checked = LocalStep.checked

    def spy(self: LocalStep, parts: Any) -> Any:
        found = checked(self, parts)
        sums.append((self.t, found[0]))
        return found

    monkeypatch.setattr(LocalStep, "checked", spy)
    run_plan(plan, records, noise=ZeroNoise())
    cells = [values for t, values in sums if plan.task.blocks(t)[0].name == "cells"]
    assert [values.size for values in cells] == [400, 400]
    assert [np.count_nonzero(values) for values in cells] == [chunks, chunks]


@pytest.mark.parametrize("used", [[0.0], [True, False], [0, 2], [-1]])
@pytest.mark.parametrize("task", ["statistics", "quantiles"])
def test_columns_that_are_no_places_are_refused_before_records_are_read(
    task: str, used: list[float]
) -> None:
    """Else a silo stops where it has a record, and goes on where it has none."""
    document = planned(task, (AGE, WEIGHT)).to_dict()
    document["task"]["used"] = used
    with pytest.raises(PlanError):
        read(document)


@pytest.mark.parametrize("frac_bits", [16, 22, 24])
def test_counts_far_above_their_limit_keep_the_bounds(frac_bits: int) -> None:
    options = {"numbers": "counts", "most_counts": 1e-5, "target": "smokes"}
    plan = planned("naive-bayes", (AGE, WEIGHT, SMOKES), frac_bits=frac_bits, **options)
    check_task(plan.task, worst(plan), states(plan))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_flat_column_on_a_coarse_grid_keeps_the_bounds() -> None:
    """The smallest deviation must not become 0 on the grid of the state."""
    columns = tuple(PublicColumn(f"x{j}", 0.0, 1.0) for j in range(16))
    steps = (("standardise", {}), ("statistics", {}))
    plan = planned("pipeline", columns, steps=steps, least_signal=0.0, frac_bits=7)
    check_task(plan.task, worst(plan), states(plan))


def of_patients() -> Plan:
    patient = Column(name="patient", type="integer", min=0.0, max=9999.0, out_of_range="drop")
    others = [Column(name=c.name, type="number", min=c.low, max=c.high) for c in (AGE, WEIGHT)]
    columns = [patient, *others, Column(name="smokes", type="boolean")]
    return make_plan(
        TASKS["fedavg"],
        Schema(dataset="visits", unit="patient", columns=columns),
        ("a", "b"),
        budget=BUDGET,
        nominal_n=1000,
        target="smokes",
        n_clients=50,
        rounds=3,
    )


def moved_by_a_patient(plan: Plan) -> float:
    """Return how far a patient of many visits moves the sum, over the bound."""
    visits = [[7, age, 2 * age, age > 50] for age in range(0, 100, 2)]
    others = [[8, 90, 180, 0], [9, 4, 4, 1]]
    task, state = plan.task, grid_state(plan.task, plan.task.start())
    before, after = (
        task.contribute(0, state, plan.grid.encode(np.array(rows, dtype=float)))
        for rows in (others, visits + others)
    )
    (block,) = task.blocks(0)
    squared = sum(int(v) ** 2 for v in after - before)
    return float((squared / block.l2_squared) ** 0.5)


def test_a_patient_of_many_visits_is_one_client() -> None:
    assert 0.5 < moved_by_a_patient(of_patients()) <= 1


@pytest.mark.parametrize(
    ("task", "inner"),
    [("standardise", "statistics"), ("bounds", "quantiles"), ("outliers", "usual")],
)
def test_a_task_inside_another_is_of_the_kind_that_protects_rows(task: str, inner: str) -> None:
    """Where an update of a client is summed instead, one row may turn it round."""
    columns = (PublicColumn("patient", 0.0, 9999.0), AGE, WEIGHT, SMOKES)
    document = planned(task, columns).to_dict()
    document["task"][inner] = of_patients().to_dict()["task"]
    with pytest.raises(PlanError):
        read(document)


@pytest.mark.parametrize("column", [1, 2, -2, -4])
def test_clients_are_told_apart_by_the_unit_and_no_other_column(column: int) -> None:
    """Else each visit of a patient would count as a client of its own."""
    document = of_patients().to_dict()
    document["task"]["client_column"] = column
    try:
        plan = read(document)
    except PlanError:
        return
    assert moved_by_a_patient(plan) <= 1


def test_clients_that_the_grid_cannot_tell_apart_are_refused() -> None:
    """Where two patients become one, taking one away moves an update to the other's."""
    document = deepcopy(of_patients().to_dict())
    document["task"]["frac_bits"] = document["grid"]["frac_bits"] = 8
    with pytest.raises(PlanError):
        read(document)
