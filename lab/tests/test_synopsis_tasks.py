"""The laws of all tasks of the laboratory: one for all of them.

What a record adds is bounded wherever it lies and whatever was released before; silos do not
change a sum; lengths come from the plan; and no released number, however odd, breaks a state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, make_plan
from cloister.app.in_process import run_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.plan import Plan
from cloister.protocol.task import Block, GridState, NoisyBlock, Task
from cloister.tasks import installed
from cloister.testing import Wire, ZeroNoise, check_task, toy_plan, toy_schema, toy_task
from cloister_lab.tasks.balcan import Balcan
from cloister_lab.tasks.dp_em import DPEM
from cloister_lab.tasks.feddp_init import FedDPInit
from cloister_lab.tasks.grid_synopsis import EUGkM, Hybrid
from cloister_lab.tasks.lsh_tree import LSHTree
from cloister_lab.tasks.max_cover import MaxCoverHistogram
from cloister_lab.tasks.one_round import OneRound
from cloister_lab.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

TASKS = installed()  # the laboratory's, too

ONE = 1 << 16
# name: the task and the options under which it has something to show
KINDS: dict[str, tuple[type[Task], dict[str, Any]]] = {
    "eugkm": (EUGkM, {}),
    "eugkm, gaussian": (EUGkM, {"mechanism": "gaussian", "negatives": "zero"}),
    "hybrid": (Hybrid, {"refine": True}),
    "hybrid, gaussian": (Hybrid, {"refine": True, "mechanism": "gaussian"}),
    "hybrid, one round": (Hybrid, {"refine": False}),
    "lshtree": (LSHTree, {}),
    "lshtree, laplace": (LSHTree, {"mechanism": "laplace", "offset": 0.0}),
    "feddp-init": (FedDPInit, {"reference_size": 12}),
    "feddp-init, margin": (FedDPInit, {"reference_size": 12, "margin": 0.7, "refine_rounds": 0}),
    "dpem": (DPEM, {"rounds": 2}),
    "dpem, diagonal": (DPEM, {"rounds": 2, "covariance": "diagonal"}),
    "balcan": (Balcan, {}),
    "maxcover-histogram": (MaxCoverHistogram, {}),
    "one-round": (OneRound, {}),
    "one-round, two levels": (OneRound, {"levels": 2}),
    "kmeans-guarantee-dp": (KMeansGuaranteeDP, {"rounds": 3}),
    "kmeans-guarantee-dp, wide": (
        KMeansGuaranteeDP,
        {"rounds": 2, "zone_share": 1.0, "concentration": 0.0, "relocate_empty": True},
    ),
    "subcluster-dp": (SubClusterDP, {"rounds": 4}),
    "subcluster-dp, relocated": (SubClusterDP, {"rounds": 6, "relocate_empty": True}),
    "subcluster-dp, by size": (SubClusterDP, {"rounds": 4, "by_size": True}),
    "subcluster-dp, one part": (SubClusterDP, {"rounds": 4, "internal_k": 1, "sub_share": 0.9}),
}
names = pytest.mark.parametrize("name", KINDS)
NEAR = ("balcan", "maxcover", "kmeans-guarantee", "subcluster")
"""Tasks with a round within a radius, where a corner adds less."""


def designed(name: str, k: int = 3, d: int = 2, seed: int = 0, frac_bits: int = 16) -> Any:
    kind, options = KINDS[name]
    law = options.get("mechanism", getattr(kind, "mechanism", "gaussian"))
    return toy_task(
        kind,
        n_features=d,
        nominal_n=300,
        budget=Budget(4.0, 0.0 if law == "laplace" else 1e-6),
        n_clusters=k,
        public_seed=seed,
        frac_bits=frac_bits,
        **options,
    )


def on_grid(it: Task, state: Mapping[str, np.ndarray]) -> GridState:
    return {name: round_to_grid(value, it.frac_bits) for name, value in state.items()}


def released(it: Task, t: int, words: np.ndarray, std: float = 0.0) -> dict[str, NoisyBlock]:
    found, offset = {}, 0
    for block in it.blocks(t):
        part = words[offset : offset + block.size]
        found[block.name] = NoisyBlock(part.reshape(block.shape), std * isqrt(block.l2_squared))
        offset += block.size
    return found


def states(it: Task, table: np.ndarray, seed: int, noise: float) -> list[GridState]:
    """The states before each round of a run on a table, with made-up noise, and the last one."""
    rng = np.random.default_rng(seed)
    found = [on_grid(it, it.start())]
    for t in range(it.rounds):
        words = it.contribute(t, found[-1], table)
        scale = max(block.l2_squared for block in it.blocks(t)) ** 0.5 * noise
        words = words + np.rint(rng.normal(0, scale, len(words))).astype(np.int64)
        new = it.update(t, found[-1], released(it, t, words, noise))
        found.append(on_grid(it, new))
    return found


def awkward(it: Any, state: GridState, seed: int, rows: int = 6) -> np.ndarray:
    """Corners, the middle, duplicates, bounds of cells and zones, records on centres and beside."""
    d, one = it.n_features, 1 << it.frac_bits
    rng = np.random.default_rng(seed)
    corners = rng.choice([-one, one], (3, d))
    walls = -one + 2 * one * np.arange(1, 5).repeat(d).reshape(4, d) // 5
    centres = np.clip(state["centres"], -one, one)
    inside = rng.integers(-one, one + 1, (rows, d))
    table = np.vstack(
        [
            np.full((2, d), one),
            np.full((1, d), -one),
            np.zeros((2, d), dtype=int),
            np.eye(1, d, dtype=int) * one,
            corners,
            walls,
            centres,
            centres + rng.integers(-1, 2, centres.shape),
            inside,
            inside[:2],
            *edges_of_zones(state),
        ]
    )
    return np.clip(table, -one, one).astype(np.int32)


def edges_of_zones(state: GridState) -> Iterator[np.ndarray]:
    """Records on parts of zones, between them, and on both sides of a zone's edge."""
    zones = (state[name] for name in ("centres", "zone_radius", "parts") if "parts" in state)
    for centre, radius, parts in zip(*zones, strict=True):
        inward, axis = np.where(centre > 0, -1, 1), np.eye(1, len(centre), dtype=np.int64)
        for step in (-2, -1, 0, 1):
            yield centre + inward[0] * (radius + step) * axis
        yield centre[None] + (inward * radius / np.sqrt(len(centre))).astype(np.int64)
        yield parts
        yield (parts[:1] + parts[-1:]) // 2


# --- Sensitivity ----------------------------------------------------------------------------------


@names
@given(
    seed=st.integers(0, 2**32),
    k=st.sampled_from([1, 2, 5]),
    d=st.sampled_from([1, 2, 5]),
    noise=st.sampled_from([0.0, 0.3, 30.0]),
    frac_bits=st.sampled_from([12, 16, 20]),
)
def test_one_record_changes_no_block_by_more_than_its_integer_bounds(
    name: str, seed: int, k: int, d: int, noise: float, frac_bits: int
) -> None:
    it = designed(name, k, d, seed % 5, frac_bits)
    one = 1 << frac_bits
    rng = np.random.default_rng(seed)
    cloud = rng.integers(-one, one + 1, (40, d)).astype(np.int32)
    *before, _ = states(it, cloud, seed, noise)
    for t, state in enumerate(before):
        check_round(it, t, state, awkward(it, state, seed))


def check_round(it: Task, t: int, state: GridState, table: np.ndarray) -> None:
    whole = it.contribute(t, state, table)
    for row in range(len(table)):
        change = whole - it.contribute(t, state, np.delete(table, row, axis=0))
        alone = it.contribute(t, state, table[row : row + 1])
        assert (change == alone).all(), "a record's part depends on the other records"
        for block, part in zip(it.blocks(t), cut(it, t, change), strict=True):
            steps = [int(v) for v in part]
            assert sum(v * v for v in steps) <= block.l2_squared, block.name
            assert sum(abs(v) for v in steps) <= block.l1, block.name


def cut(it: Task, t: int, words: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([block.size for block in it.blocks(t)])[:-1]
    return np.split(words, ends)


@pytest.mark.parametrize(
    "name", [name for name in KINDS if "margin" not in name and not name.startswith(NEAR)]
)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_bounds_are_no_larger_than_what_a_corner_adds(name: str, d: int) -> None:
    it = designed(name, 1, d)  # so that all of it goes to one cluster
    corner = np.full((1, d), ONE, dtype=np.int32)
    before = states(it, np.repeat(corner, 50, axis=0), 0, 0.0)
    for t in range(it.rounds):
        added = it.contribute(t, before[t], corner)
        for block, part in zip(it.blocks(t), cut(it, t, added), strict=True):
            steps = [int(v) for v in part]
            assert sum(v * v for v in steps) >= 0.99 * block.l2_squared
            if getattr(it, "mechanism", "") == "laplace":
                assert sum(map(abs, steps)) >= 0.99 * block.l1


@names
def test_the_conformance_suite_for_tasks_passes(name: str) -> None:
    it = designed(name)
    seen = states(it, awkward(it, on_grid(it, it.start()), 1), 2, 0.3)
    check_task(it, [awkward(it, seen[-1], 3)], seen[1:])


@pytest.mark.parametrize("kind", [LSHTree, FedDPInit, DPEM, EUGkM, Balcan, OneRound])
def test_a_task_that_understates_its_bounds_is_caught(kind: Any) -> None:
    """So that the tests above can fail."""

    @dataclass(frozen=True, kw_only=True)
    class Liar(kind):  # type: ignore[misc]
        def blocks(self, t: int) -> tuple[Block, ...]:
            *others, block = super().blocks(t)
            return (*others, replace(block, l2_squared=block.l2_squared * 9 // 10))

    honest = designed(kind.name)
    liar = Liar(**{field.name: getattr(honest, field.name) for field in fields(honest)})
    corners = np.full((3, 2), ONE, dtype=np.int32)
    with pytest.raises(AssertionError, match="L2 bound"):
        check_task(liar, [corners])


@pytest.mark.parametrize("name", ["kmeans-guarantee-dp", "subcluster-dp"])
def test_every_round_that_understates_its_bounds_is_caught(name: str) -> None:
    honest = designed(name)

    @dataclass(frozen=True, kw_only=True)
    class Liar(type(honest)):  # type: ignore[misc]
        def blocks(self, t: int) -> tuple[Block, ...]:
            (block,) = super().blocks(t)
            return (replace(block, l2_squared=block.l2_squared * 6 // 10),)

    liar = Liar(**{field.name: getattr(honest, field.name) for field in fields(honest)})
    rng = np.random.default_rng(0)
    cloud = rng.integers(-ONE, ONE + 1, (300, 2)).astype(np.int32)
    for t, state in enumerate(states(honest, cloud, 0, 0.0)[:-1]):
        with pytest.raises(AssertionError):
            check_round(liar, t, state, np.vstack([cloud, awkward(honest, state, 0)]))


# --- Silos ----------------------------------------------------------------------------------------


class Quiet(Plan):
    """A plan that believes its noise to be zero."""

    def noise_std(self, block: Block, survivors: int | None = None) -> float:
        return 0.0


@names
@given(seed=st.integers(0, 2**32), silos=st.sampled_from([2, 3, 5]), rows=st.integers(0, 80))
def test_silos_get_bit_for_bit_what_one_table_gives(
    name: str, seed: int, silos: int, rows: int
) -> None:
    it = designed(name, seed=seed % 3)
    rng = np.random.default_rng(seed)
    table = rng.integers(-ONE, ONE + 1, (rows, 2), dtype=np.int32)
    owner = rng.integers(0, silos, rows)
    plan = toy_plan(it, silos=silos, budget=budget_of(it))
    plan = Quiet(**{field: getattr(plan, field) for field in plan.__dataclass_fields__})
    wire = Wire(plan, {silo: table[owner == i] for i, silo in enumerate(plan.silos)})
    final = states(it, table, 0, 0.0)[-1]
    for state in wire.run():
        assert state.keys() == final.keys()
        assert all(np.array_equal(state[key], final[key]) for key in final)


def budget_of(it: Task) -> Budget:
    return Budget(4.0, 0.0 if it.mechanism == "laplace" else 1e-6)


@names
@given(seed=st.integers(0, 2**32))
def test_lengths_and_rounds_are_those_of_the_plan_whatever_the_records(
    name: str, seed: int
) -> None:
    it = designed(name, k=4, d=3, seed=seed % 4)
    plan = toy_plan(it, silos=1, budget=budget_of(it))
    rng = np.random.default_rng(seed)
    tables = [
        np.zeros((0, 3), dtype=np.int32),
        np.full((200, 3), ONE, dtype=np.int32),
        rng.integers(-ONE, ONE + 1, (50, 3), dtype=np.int32),
    ]
    for table in tables:
        before = states(it, table, seed, float(rng.choice([0, 1, 100])))
        shapes = {key: value.shape for key, value in before[0].items()}
        for t in range(plan.rounds):
            assert it.contribute(t, before[t], table).shape == (plan.length(t),)
            assert {key: value.shape for key, value in before[t + 1].items()} == shapes


# --- Released numbers may be anything -------------------------------------------------------------


@names
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("fill", [0, -1, 1, "low", "high", "noise"])
def test_no_release_makes_a_state_that_is_not_finite_or_leaves_the_box(
    name: str, d: int, fill: Any
) -> None:
    it = designed(name, k=4, d=d)
    state = on_grid(it, it.start())
    rng = np.random.default_rng(0)
    for t in range(it.rounds):
        size, extreme = sum(block.size for block in it.blocks(t)), 1 << 45
        words = {
            "low": np.full(size, -extreme),
            "high": np.full(size, extreme),
            "noise": np.rint(rng.normal(0, extreme, size)),
        }.get(fill, np.full(size, fill if isinstance(fill, int) else 0))
        new = it.update(t, state, released(it, t, words.astype(np.int64), 3.0))
        assert all(np.isfinite(value).all() for value in new.values())
        assert np.abs(new["centres"]).max() <= 1
        assert (new["low"] <= new["high"]).all()
        state = on_grid(it, new)


@names
@pytest.mark.parametrize("silos", [1, 3])
def test_nobody_at_all_gives_an_answer_like_any_other(name: str, silos: int) -> None:
    it = designed(name)
    plan = toy_plan(it, silos=silos, budget=budget_of(it))
    nobody = np.zeros((0, 2), dtype=np.int32)
    result = run_plan(plan, {silo: [nobody] for silo in plan.silos})
    assert result.results["centres"].shape == (3, 2)
    assert all(np.isfinite(value).all() for value in result.results.values())
    assert np.abs(result.results["centres"]).max() <= 1


# --- Plans ----------------------------------------------------------------------------------------


@names
def test_weights_add_up_to_the_budget_and_no_more_is_spent(name: str) -> None:
    it = designed(name)
    weights = [block.weight for t in range(it.rounds) for block in it.blocks(t)]
    assert sum(weights) == pytest.approx(1.0)
    plan = toy_plan(it, silos=1, budget=budget_of(it))
    result = run_plan(plan, {plan.silos[0]: [np.zeros((5, 2), dtype=np.int32)]})
    assert 3.99 < result.epsilon() <= 4.0


@names
def test_a_plan_survives_json(name: str) -> None:
    it = designed(name)
    plan = toy_plan(it, budget=budget_of(it))
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())), installed())
    assert again.digest == plan.digest
    assert again.task == it


@names
def test_gaussian_tasks_run_under_pairwise_masks_and_laplace_is_refused(name: str) -> None:
    kind, options = KINDS[name]
    it = designed(name)
    arguments: dict[str, Any] = {
        "budget": budget_of(it),
        "nominal_n": 300,
        "profile": "pairwise",
        "n_clusters": 3,
        **options,
    }
    silos = ("a", "b", "c")
    if it.mechanism == "laplace":
        with pytest.raises(PlanError, match="pairwise"):
            make_plan(kind, toy_schema(2), silos, **arguments)
        return
    plan = make_plan(kind, toy_schema(2), silos, **arguments)
    rng = np.random.default_rng(0)
    records = {s: [rng.integers(-ONE, ONE + 1, (100, 2), dtype=np.int32)] for s in silos}
    result = run_plan(plan, records)
    assert np.isfinite(result.results["centres"]).all()


@names
def test_the_public_seed_and_nothing_else_changes_what_is_made_of_a_release(name: str) -> None:
    table = np.random.default_rng(0).integers(-ONE, ONE + 1, (60, 2), dtype=np.int32)
    one, two = (states(designed(name, seed=5), table, 7, 0.3)[-1] for _ in range(2))
    assert all(np.array_equal(one[key], two[key]) for key in one)


def test_they_are_in_the_registry() -> None:
    for kind, _ in KINDS.values():
        assert TASKS[kind.name] is kind
        assert kind.private
        assert kind.profiles == {"local", "group", "pairwise"}


def test_zero_noise_says_that_it_is_not_private() -> None:
    it = designed("dpem")
    plan = toy_plan(it, silos=1, budget=budget_of(it))
    table = np.zeros((5, 2), dtype=np.int32)
    assert "not private" in run_plan(plan, {plan.silos[0]: [table]}, noise=ZeroNoise()).noise
