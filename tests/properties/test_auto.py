"""The laws of ``auto``: what a record adds is bounded on every route, whatever was released."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import product
from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, DPKMeans, make_plan
from cloister.app.in_process import run_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.plan import Plan
from cloister.protocol.rows import summed
from cloister.protocol.task import GridState, NoisyBlock
from cloister.tasks import TASKS
from cloister.tasks.clustering.auto import Auto, EstimatedRoute
from cloister.tasks.clustering.auto_finder import FinderRoute
from cloister.tasks.clustering.auto_grid import GridRoute
from cloister.tasks.clustering.auto_mean import MeanRoute
from cloister.tasks.clustering.auto_pca import PcaRoute
from cloister.testing import (
    SimulatedNoise,
    ZeroNoise,
    ZeroNoiseKMeans,
    check_task,
    toy_schema,
    toy_task,
)
from cloister_lab.metrics import nicv

ONE = 1 << 16
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
ROUTES: dict[str, tuple[type, dict[str, int]]] = {
    "grid of the plane": (GridRoute, {"n_clusters": 4, "n_features": 2, "nominal_n": 400}),
    "grid of the space": (GridRoute, {"n_clusters": 5, "n_features": 3, "nominal_n": 300}),
    "directions": (PcaRoute, {"n_clusters": 3, "n_features": 5, "nominal_n": 1200}),
    "many clusters": (PcaRoute, {"n_clusters": 9, "n_features": 10, "nominal_n": 1700}),
    "candidates": (FinderRoute, {"n_clusters": 3, "n_features": 5, "nominal_n": 3000}),
    "candidates, few axes": (FinderRoute, {"n_clusters": 6, "n_features": 24, "nominal_n": 9000}),
    "a candidate a cluster": (FinderRoute, {"n_clusters": 22, "n_features": 8, "nominal_n": 1850}),
    "no radius": (PcaRoute, {"n_clusters": 2, "n_features": 4, "nominal_n": 90}),
    "mean": (MeanRoute, {"n_clusters": 3, "n_features": 40, "nominal_n": 40}),
    "one cluster": (MeanRoute, {"n_clusters": 1, "n_features": 2, "nominal_n": 400}),
}
ESTIMATED = ("directions", "candidates", "candidates, few axes")  # with rounds after the path
names = pytest.mark.parametrize("name", ROUTES)


def path_of(task: Auto) -> Any:
    """Return the rounds that end at the centres."""
    return task.route.path if isinstance(task.route, EstimatedRoute) else task.route


def designed(name: str, **fields: Any) -> Auto:
    kind, numbers = ROUTES[name]
    task = toy_task(Auto, budget=Budget(1.0, 1e-6), **numbers, **fields)
    assert type(path_of(task)) is kind
    assert isinstance(task.route, EstimatedRoute) == (name in ESTIMATED)
    return task


def on_grid(task: Auto, state: Mapping[str, np.ndarray]) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}


def noised(task: Auto, t: int, words: np.ndarray, rng: np.random.Generator, noise: float) -> Any:
    found, offset = {}, 0
    for block in task.blocks(t):
        part = words[offset : offset + block.size].reshape(block.shape)
        std = max(noise, 1e-3) * isqrt(block.l2_squared)
        drawn = np.rint(rng.normal(0, noise * isqrt(block.l2_squared), block.shape))
        found[block.name] = NoisyBlock(part + drawn.astype(np.int64), std)
        offset += block.size
    assert offset == len(words)
    return found


def walk(task: Auto, table: np.ndarray, noise: float) -> list[GridState]:
    """The state before each round of a run with made-up noise, and the last one."""
    rng = np.random.default_rng(0)
    states = [on_grid(task, task.start())]
    for t in range(task.rounds):
        words = task.contribute(t, states[-1], table)
        states.append(on_grid(task, task.update(t, states[-1], noised(task, t, words, rng, noise))))
    return states


def blobs(task: Auto, n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(7)
    middles = rng.uniform(-0.7, 0.7, (task.n_clusters, task.n_features))
    values = middles[rng.integers(task.n_clusters, size=n)] + rng.normal(
        0, 0.1, (n, task.n_features)
    )
    return np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)


def awkward(task: Auto, state: GridState) -> np.ndarray:
    """Corners, walls, the middle, centres, the mean and what lies just beside them."""
    d, rng = task.n_features, np.random.default_rng(1)
    rows = [
        np.full(d, ONE),
        np.full(d, -ONE),
        np.zeros(d),
        ONE * np.eye(d)[0],
        -ONE * np.eye(d)[-1],
    ]
    rows += list(state["centres"]) + list(np.clip(state["centres"] + 1, -ONE, ONE))
    rows += list(rng.integers(-ONE, ONE, (8, d), endpoint=True))
    rows += list(np.sign(rng.normal(size=(4, d))) * ONE)
    if "mean" in state:
        rows += [state["mean"], state["mean"] + np.eye(d, dtype=np.int64)[0]]
    return np.clip(np.array(rows), -ONE, ONE).astype(np.int32)


@names
@pytest.mark.parametrize("noise", [0.0, 3.0, 300.0])
def test_a_record_changes_each_block_by_at_most_its_bound(name: str, noise: float) -> None:
    task = designed(name)
    table = blobs(task)
    for t, state in enumerate(walk(task, table, noise)[:-1]):
        without = task.contribute(t, state, table)
        for record in awkward(task, state):
            alone = task.contribute(t, state, record[None])
            both = task.contribute(t, state, np.vstack([table, record]))
            np.testing.assert_array_equal(both - without, alone)
            offset = 0
            for block in task.blocks(t):
                part = [int(v) for v in alone[offset : offset + block.size]]
                assert sum(v * v for v in part) <= block.l2_squared, (t, block.name)
                assert sum(map(abs, part)) <= block.l1
                offset += block.size


@given(data=st.data(), name=st.sampled_from(sorted(ROUTES)))
def test_the_bound_holds_for_any_record_and_any_state(data: st.DataObject, name: str) -> None:
    task = designed(name)
    t = data.draw(st.integers(0, task.rounds - 1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    states = walk(task, blobs(task, 60), data.draw(st.sampled_from([0.1, 5.0, 1e4])))
    record = rng.integers(-ONE, ONE, (1, task.n_features), endpoint=True).astype(np.int32)
    words = task.contribute(t, states[t], record)
    offset = 0
    for block in task.blocks(t):
        assert (
            int((words[offset : offset + block.size].astype(object) ** 2).sum()) <= block.l2_squared
        )
        offset += block.size


@names
def test_the_bound_of_a_block_is_nearly_reached(name: str) -> None:
    """Noise is not larger than it must be: some record comes close to each bound."""
    task = designed(name)
    for t, state in enumerate(walk(task, blobs(task), 0.5)[:-1]):
        offset = 0
        for block in task.blocks(t):
            reached = max(
                int((task.contribute(t, state, r[None])[offset : offset + block.size] ** 2).sum())
                for r in awkward(task, state)
            )
            assert reached >= 0.93 * block.l2_squared, (t, block.name)
            offset += block.size


@names
@pytest.mark.parametrize("noise", [0.0, 3.0, 300.0])
def test_the_kernel_adds_what_the_rows_say(name: str, noise: float) -> None:
    task = designed(name)
    table = np.vstack([blobs(task), awkward(task, on_grid(task, task.start()))])
    for t, state in enumerate(walk(task, table, noise)[:-1]):
        rows = task.rows(t, state, table)
        sums = [summed(own, block) for own, block in zip(rows, task.blocks(t), strict=True)]
        np.testing.assert_array_equal(np.concatenate(sums), task.contribute(t, state, table))


@names
def test_silos_do_not_change_a_sum(name: str) -> None:
    task = designed(name)
    table = blobs(task)
    for t, state in enumerate(walk(task, table, 1.0)[:-1]):
        parts = sum(
            task.contribute(t, state, part) for part in (table[:7], table[7:90], table[90:])
        )
        np.testing.assert_array_equal(parts, task.contribute(t, state, table))
        empty = np.zeros((0, task.n_features), dtype=np.int32)
        assert not task.contribute(t, state, empty).any()


@names
def test_frames_are_functions_of_the_plan(name: str) -> None:
    """Whatever is released, rounds, lengths and weights stay; a task knows no records."""
    task = designed(name)
    weights = [block.weight for t in range(task.rounds) for block in task.blocks(t)]
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    rng = np.random.default_rng(5)
    tables = (blobs(task), np.zeros((50, task.n_features), np.int32), blobs(task)[:0])
    # In the gate every second pair: some tables meet no noise and much, the one of one point some.
    for table, noise in list(product(tables, (0.0, 50.0, 1e6)))[:: 1 if NIGHTLY else 2]:
        state = on_grid(task, task.start())
        shapes = {key: value.shape for key, value in state.items()}
        for t in range(task.rounds):
            words = task.contribute(t, state, table)
            assert len(words) == sum(block.size for block in task.blocks(t))
            state = on_grid(task, task.update(t, state, noised(task, t, words, rng, noise)))
            assert {key: value.shape for key, value in state.items()} == shapes
        assert np.abs(state["centres"]).max() <= ONE


def test_both_branches_of_the_directions_have_the_same_frames() -> None:
    task = designed("directions")
    seen = {}
    for what, noise in (("found", 0.01), ("nothing found", 1e5)):
        states = walk(task, blobs(task, 3000), noise)
        seen[what] = int(states[-1]["detected"][0]) >> 16
    assert seen["found"] > 0
    assert seen["nothing found"] == 0


@pytest.mark.parametrize("name", ["directions", "candidates", "candidates, few axes"])
def test_where_nothing_is_found_every_later_frame_carries_the_mean(name: str) -> None:
    task = designed(name)
    table = blobs(task)
    state = {**on_grid(task, task.start()), "radius": np.array([ONE])}
    for t in range(3, path_of(task).rounds):
        words = task.contribute(t, state, table)
        assert words[: task.n_features].any()
        assert not words[task.n_features :].any()


@names
@pytest.mark.parametrize("profile", ["local", "group", "pairwise"])
def test_every_profile_can_carry_it(name: str, profile: Any) -> None:
    _, numbers = ROUTES[name]
    options = {key: numbers[key] for key in ("n_clusters",)}
    plan = make_plan(
        Auto,
        toy_schema(numbers["n_features"]),
        ("a",) if profile == "local" else ("a", "b", "c"),
        budget=Budget(1.0, 1e-6),
        nominal_n=numbers["nominal_n"],
        profile=profile,
        fingerprints=["ed25519:" + 64 * c for c in "abc"] if profile == "pairwise" else (),
        **options,
    )
    again = Plan.from_dict(json.loads(plan.canonical_json()), TASKS)
    assert again.digest == plan.digest
    assert again.task == plan.task


@names
def test_three_silos_get_what_one_table_gets(name: str) -> None:
    _, numbers = ROUTES[name]
    results = []
    for silos in (1, 3):
        members = tuple("abc"[:silos])
        plan = make_plan(
            Auto,
            toy_schema(numbers["n_features"]),
            members,
            budget=Budget(1.0, 1e-6),
            nominal_n=numbers["nominal_n"],
            n_clusters=numbers["n_clusters"],
        )
        table = blobs(plan.task)  # type: ignore[arg-type]
        records = {silo: [table[i::silos]] for i, silo in enumerate(members)}
        results.append(run_plan(plan, records, noise=SimulatedNoise(3)).results)
    for key in results[0]:
        np.testing.assert_array_equal(results[0][key], results[1][key])


@names
def test_the_laws_of_tasks(name: str) -> None:
    task = designed(name)
    check_task(task, [blobs(task, 60)], walk(task, blobs(task), 1.0)[:2])


def test_without_noise_it_is_as_good_as_k_means() -> None:
    for name in ("grid of the plane", "grid of the space", "candidates", "many clusters"):
        _, numbers = ROUTES[name]
        task = designed(name)
        X = blobs(task, numbers["nominal_n"]) / ONE
        model = ZeroNoiseKMeans(
            numbers["n_clusters"], epsilon=100.0, bounds=(-1, 1), nominal_n=len(X), random_state=0
        ).fit(X)
        from sklearn.cluster import KMeans

        best = KMeans(numbers["n_clusters"], n_init=10, random_state=0).fit(X).cluster_centers_
        assert nicv(X, model.cluster_centers_) <= 1.3 * nicv(X, best), name


def test_the_route_depends_on_public_numbers_alone() -> None:
    base = {"budget": Budget(1.0, 1e-6), "n_features": 8}
    assert isinstance(path_of(toy_task(Auto, **base, n_clusters=3, nominal_n=40)), MeanRoute)
    assert isinstance(path_of(toy_task(Auto, **base, n_clusters=3, nominal_n=1_000)), PcaRoute)
    assert isinstance(path_of(toy_task(Auto, **base, n_clusters=3, nominal_n=10_000)), FinderRoute)
    four = {"budget": Budget(1.0, 1e-6), "n_features": 4}
    assert isinstance(path_of(toy_task(Auto, **four, n_clusters=9, nominal_n=200)), PcaRoute)
    small = {"budget": Budget(1.0, 1e-6), "n_features": 16, "nominal_n": 100}
    assert isinstance(path_of(toy_task(Auto, **small, n_clusters=2)), PcaRoute)
    assert isinstance(path_of(toy_task(Auto, **small, n_clusters=10)), MeanRoute)
    for d, route in ((3, GridRoute), (4, PcaRoute)):
        X = np.random.default_rng(0).uniform(-1, 1, (321, d))
        tasks = []
        for rows in (319, 320, 321):  # the table is not asked
            model = DPKMeans(4, epsilon=1.0, bounds=(-1, 1), nominal_n=320, random_state=0).fit(
                X[:rows]
            )
            tasks.append(model.plan_.task)
        assert isinstance(tasks[0], Auto)
        assert isinstance(path_of(tasks[0]), route)
        assert tasks[0] == tasks[1] == tasks[2]


@names
def test_a_bought_number_of_records_plans_it_too(name: str) -> None:
    _, numbers = ROUTES[name]
    task = designed(name)
    X = blobs(task, numbers["nominal_n"]) / ONE
    model = DPKMeans(numbers["n_clusters"], epsilon=1.0, bounds=(-1, 1)).fit(X)
    bought = model.plan_.task
    assert isinstance(bought, Auto)
    assert bought.nominal_n == model.plan_.nominal_n
    assert np.isfinite(model.cluster_centers_).all()
    assert model.spent_ <= 1.0


def test_numbers_that_make_no_sense_are_refused() -> None:
    good = {"n_clusters": 2, "n_features": 2, "nominal_n": 100, "mu": 0.3}
    Auto(**good)
    bad: list[dict[str, Any]] = [
        {"mu": 0.0},
        {"mu": float("inf")},
        {"mu": 1},
        {"nominal_n": 0},
        {"n_clusters": True},
        {"public_seed": 0.5},
    ]
    for change in bad:
        with pytest.raises(PlanError, match=next(iter(change))):
            Auto(**{**good, **change})
    with pytest.raises(PlanError, match="budget"):
        toy_task(Auto, n_features=2, nominal_n=10, budget=None)


def test_a_zero_noise_double_is_not_the_default() -> None:
    plan = make_plan(
        Auto, toy_schema(2), ("a",), budget=Budget(1.0, 1e-6), nominal_n=100, n_clusters=2
    )
    table = blobs(plan.task, 100)  # type: ignore[arg-type]
    assert run_plan(plan, {"a": [table]}, noise=ZeroNoise()).noise != "operating system"
