"""The laws of choosing how many clusters: frames and bounds of ``auto``, whatever is chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isqrt
from typing import Any

import numpy as np
import pytest

from cloister import Budget, make_plan
from cloister.app.in_process import run_plan
from cloister.app.report.page import render_report
from cloister.app.text import as_table
from cloister.core.display import Bars, Curve, Heatmap, Scatter, Table
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.plan import Plan
from cloister.protocol.task import GridState, NoisyBlock
from cloister.tasks import TASKS
from cloister.tasks.clustering.auto_routes import route_of
from cloister.tasks.clustering.select_k import SelectK
from cloister.testing import SimulatedNoise, check_task, toy_schema, toy_task

ONE = 1 << 16
SHAPES: dict[str, tuple[int, int]] = {  # columns, nominal_n: each of auto's routes
    "grid of the plane": (2, 2000),
    "grid of the space": (3, 300),
    "directions": (5, 4000),
    "mean": (40, 40),
}
names = pytest.mark.parametrize("name", SHAPES)


def designed(name: str, **fields: Any) -> SelectK:
    d, n = SHAPES[name]
    numbers = {"min_clusters": 2, "max_clusters": 7, **fields}
    return toy_task(SelectK, n_features=d, nominal_n=n, budget=Budget(2.0, 1e-6), **numbers)


def groups(k: int, d: int, n: int, seed: int = 5) -> Any:
    """Groups of equal size, far from each other."""
    rng = np.random.default_rng(seed)
    if d == 2:
        angles = 2 * np.pi * np.arange(k) / k
        middles = 0.7 * np.column_stack([np.cos(angles), np.sin(angles)])
    else:
        corners = rng.permutation(2 ** min(d, 10))[:k]  # different ones
        middles = 0.7 * (2.0 * (corners[:, None] >> np.arange(d) & 1) - 1)
    values = np.repeat(middles, n // k, axis=0)
    values = values + rng.normal(0, 0.07, values.shape)
    return np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)


def walk(task: SelectK, records: Any, noise: float, seed: int = 0) -> list[GridState]:
    """The state before each round, with noise of so many sensitivities, and the last one."""
    rng = np.random.default_rng(seed)
    states = [_on_grid(task.start())]
    for t in range(task.rounds):
        words, released, offset = task.contribute(t, states[-1], records), {}, 0
        for block in task.blocks(t):
            part = words[offset : offset + block.size].reshape(block.shape)
            std = noise * isqrt(block.l2_squared)
            drawn = np.rint(rng.normal(0, std, block.shape)).astype(np.int64)
            released[block.name] = NoisyBlock(part + drawn, std)
            offset += block.size
        states.append(_on_grid(task.update(t, states[-1], released)))
    return states


def _on_grid(state: Mapping[str, Any]) -> GridState:
    return {name: round_to_grid(value, 16) for name, value in state.items()}


def chosen(state: GridState) -> int:
    return int(state["k"][0]) >> 16


@names
@pytest.mark.parametrize("k", [2, 4])
def test_what_a_record_adds_is_bounded_whatever_was_chosen(name: str, k: int) -> None:
    task = designed(name)
    d, n = SHAPES[name]
    states = walk(task, groups(k, d, min(n, 800)), 3.0)
    centre = states[-1]["centres"][0].astype(np.int32)  # where the unused centres lie, too
    worst = np.array([[ONE] * d, [-ONE] * d, [ONE, -ONE] * (d // 2) + [0] * (d % 2)])
    table = np.vstack([worst, worst[:1], np.clip([centre, centre, centre + 1], -ONE, ONE)])
    for t, state in enumerate(states[:-1]):
        check_task(_Round(task, t), [table.astype(np.int32)], [state])


class _Round:
    """One round of a task, so that only the state which belongs to it is tried."""

    def __init__(self, task: SelectK, t: int) -> None:
        self._task, self._t = task, t
        self.frac_bits, self.rounds = task.frac_bits, 1
        self.n_features, self.mechanism = task.n_features, task.mechanism

    def start(self) -> Any:
        return self._task.start()

    def blocks(self, t: int) -> Any:
        return self._task.blocks(self._t)

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Any) -> Any:
        return self._task.contribute(self._t, state, records)

    def results(self, *_: Any) -> Any:
        raise PlanError("one round has no results.")


@names
def test_frames_are_those_of_auto_for_the_largest_number(name: str) -> None:
    task = designed(name)
    d, n = SHAPES[name]
    auto = route_of(7, d, n, task.mu, 16, 0, whole_box=True)
    assert task.rounds == auto.rounds
    for t in range(task.rounds):
        assert task.blocks(t) == auto.blocks(t)
    for k in (2, 4):
        for t, state in enumerate(walk(task, groups(k, d, min(n, 800)), 0.01)[:-1]):
            words = task.contribute(t, state, groups(k, d, 50))
            assert len(words) == sum(block.size for block in auto.blocks(t))
            assert {name: value.shape for name, value in state.items()} == {
                name: value.shape for name, value in task.start().items()
            }


@pytest.mark.parametrize("name", ["grid of the plane", "directions"])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_groups_that_are_apart_are_found_and_stay_chosen(name: str, k: int) -> None:
    task = designed(name)
    d, n = SHAPES[name]
    states = walk(task, groups(k, d, n), 3.0)
    numbers = [chosen(state) for state in states]
    assert numbers[0] == 0
    assert numbers[-1] == k
    assert set(numbers) == {0, k}
    results = task.results(states[-1], toy_schema(d).grid())
    assert results["centres"].shape == results["low"].shape == (k, d)
    assert results["sizes"] == pytest.approx(n / k, abs=80)


@pytest.mark.parametrize("name", ["grid of the plane", "directions"])
def test_no_record_belongs_to_a_cluster_that_is_not_used(name: str) -> None:
    task = designed(name)
    d, n = SHAPES[name]
    records = groups(3, d, n)
    states = walk(task, records, 3.0)
    last = task.rounds - 1
    words = task.contribute(last, states[last], records)
    sums, _ = task.blocks(last)
    rows = words[: sums.size].reshape(sums.shape)
    assert chosen(states[last]) == 3
    assert not rows[3:].any()
    assert not words[sums.size :][3:].any()
    assert words[sums.size :].sum() == len(records) * ONE


def test_where_nothing_stands_out_the_fewest_are_taken_and_said_so() -> None:
    for name in ("mean", "directions"):
        task = designed(name)
        d, _ = SHAPES[name]
        flat = np.random.default_rng(0).integers(-ONE // 9, ONE // 9, (60, d)).astype(np.int32)
        states = walk(task, flat, 400.0)
        assert chosen(states[-1]) == 2
        results = task.results(states[-1], toy_schema(d).grid())
        assert results["centres"].shape == (2, d)
        (curve, *_) = task.displays(results, tuple(f"x{j}" for j in range(d)))
        assert "No structure exceeds" in curve.note or name == "directions"
        assert "determines no cluster; `auto` with the chosen number may" in curve.note
        assert not results["verdict"].any()
        assert np.isnan(results["half_width"]).all()
        assert (results["noise"] == toy_schema(d).grid().half_range).all()


def test_the_curve_is_shown_with_the_number_chosen() -> None:
    task = designed("grid of the plane", max_clusters=4)
    states = walk(task, groups(4, 2, 2000), 3.0)
    results = task.results(states[-1], toy_schema(2).grid())
    displays = task.displays(results, ("a", "b"))
    assert [type(e) for e in displays] == [Curve, Table, Heatmap, Scatter, Bars]
    assert "4 is the largest number allowed" in displays[0].note
    assert [row[0] for row in as_table(displays[0]).rows] == ["2", "3", "4 (chosen)"]
    assert task.results(_on_grid(task.start()), toy_schema(2).grid()) == {"k": np.zeros(1)}


@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_silos_choose_together_and_the_plan_has_one_budget(profile: Any) -> None:
    records = groups(3, 2, 1800)
    parts = {f"silo-{i}": [records[i::3]] for i in range(3)}
    budget = Budget(2.0, 1e-6)
    plan = make_plan(
        TASKS["selectk"], toy_schema(2), parts, budget=budget, nominal_n=2000, profile=profile
    )
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())), TASKS)
    assert again.digest == plan.digest
    result = run_plan(plan, parts, noise=SimulatedNoise(3))
    assert result.results["k"] == [3]
    assert result.results["centres"].shape == (3, 2)
    assert result.epsilon() == pytest.approx(2.0, rel=1e-3)
    page = render_report(result)
    assert "How many clusters" in page
    assert "3 (chosen)" in page


@pytest.mark.parametrize(
    "fields",
    [
        {"min_clusters": 0},
        {"min_clusters": 7},
        {"max_clusters": 257},
        {"min_clusters": 2.0},
        {"max_clusters": True},
        {"frac_bits": 40},
    ],
)
def test_numbers_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        designed("grid of the plane", **fields)
