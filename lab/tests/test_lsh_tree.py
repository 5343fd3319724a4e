"""``lshtree``: public cuts, the tree grown from noisy counts, and means of its leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import NoisyBlock
from cloister.testing import SimulatedNoise, toy_plan, toy_schema, toy_task
from cloister_lab.metrics import nicv
from cloister_lab.tasks.lsh_tree import BRANCH, LSHTree, grow

ONE = 1 << 16
BUDGET = Budget(1.0, 1e-6)


def designed(d: int = 2, k: int = 3, n: int = 5000, **options: Any) -> LSHTree:
    budget = options.pop("budget", BUDGET)
    return toy_task(LSHTree, n_features=d, nominal_n=n, budget=budget, n_clusters=k, **options)


def tree(**changes: Any) -> LSHTree:
    fields: dict[str, Any] = {
        "n_clusters": 2,
        "n_features": 2,
        "depth": 4,
        "min_size": 10,
        "max_leaves": 16,
        **changes,
    }
    return LSHTree(**fields)


def start(it: LSHTree) -> Any:
    return {name: round_to_grid(v, it.frac_bits) for name, v in it.start().items()}


# --- Design ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"depth": 0}, "depth"),
        ({"depth": 17}, "in .1, 16."),
        ({"depth": 10**9}, "in .1, 16."),
        ({"min_size": 0}, "min_size"),
        ({"max_leaves": 17}, "at most 16"),
        ({"max_leaves": 1.0}, "max_leaves"),
        ({"count_share": 0.0}, "count_share"),
        ({"count_share": 1.0}, "count_share"),
        ({"offset": -0.1}, "offset"),
        ({"offset": float("nan")}, "offset"),
        ({"mechanism": "none"}, "mechanism"),
        ({"public_seed": 1.5}, "public_seed"),
    ],
)
def test_fields_are_checked(change: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        tree(**change)


def test_the_tree_is_chosen_from_public_numbers() -> None:
    it = designed()
    # ten times the noise of a leaf's sum over the half diagonal: 10 sqrt(d) sigma / sqrt(0.9)
    assert it.min_size == 62
    assert it.max_leaves == -(-2 * 5000 // 62)
    assert it.depth == 9
    assert designed(n=100).min_size == 100 // 6  # half an equal cluster
    with pytest.raises(PlanError, match="budget is needed"):
        designed(budget=None)
    assert designed(budget=None, min_size=50).min_size == 50


@pytest.mark.parametrize("d", [1, 30, 784])
@pytest.mark.parametrize("n", [1, 100, 60_000, 10**9])
def test_any_table_gets_a_plan(d: int, n: int) -> None:
    it = designed(d=d, n=n, k=10)
    assert 1 <= it.max_leaves <= 1 << it.depth <= 1 << 16
    plan = toy_plan(it, silos=1, budget=BUDGET)
    assert plan.length(0) == 2 ** (it.depth + 1) - 2


# --- The tree -------------------------------------------------------------------------------------


def heap(*levels: list[float]) -> np.ndarray:
    return np.array([0.0, *(v for level in levels for v in level)])


def test_growing_by_hand() -> None:
    counts = heap([100], [60, 40], [35, 25, 38, 2])
    # 60 and 40 are cut, of the second's children one is dropped
    assert grow(counts, 10, 16) == [4, 5, 6]
    # none has three times 21 records
    assert grow(counts, 21, 16) == [2, 3]
    # the largest is cut first; then there is no room
    assert grow(counts, 10, 3) == [3, 4, 5]
    assert grow(counts, 10, 1) == [1]
    # a large node without a child that is kept is a leaf; so is a root
    assert grow(heap([100], [100, 0], [5, 5, 0, 0]), 10, 16) == [2]
    assert grow(heap([-3], [-1, -2], [0, 0, 0, 0]), 10, 16) == [1]


@given(seed=st.integers(0, 2**32), depth=st.integers(1, 6), most=st.integers(1, 64))
def test_leaves_are_disjoint_within_the_maximum_and_large(seed: int, depth: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.normal(0, 100, 2 << depth)
    leaves = grow(counts, 10, most)
    assert 1 <= len(leaves) <= most
    assert all(counts[leaf] >= 10 for leaf in leaves if leaf > 1)
    below = [
        leaf >> (leaf.bit_length() - other.bit_length()) == other
        for leaf in leaves
        for other in leaves
        if leaf.bit_length() > other.bit_length()
    ]
    assert not any(below)
    for leaf in leaves:
        while (leaf := leaf // 2) > 1:
            assert counts[leaf] >= BRANCH * 10


@given(seed=st.integers(0, 2**32), depth=st.integers(1, 8))
def test_a_node_holds_the_records_of_its_children(seed: int, depth: int) -> None:
    it = tree(depth=depth, max_leaves=1, public_seed=seed % 7)
    rng = np.random.default_rng(seed)
    table = rng.integers(-ONE, ONE + 1, (50, 2), dtype=np.int32)
    counts = np.concatenate([[0, 0], it.contribute(0, start(it), table) >> 16])
    for node in range(2, 1 << depth):
        assert counts[node] == counts[2 * node] + counts[2 * node + 1]
    assert counts[2] + counts[3] == 50


def test_cuts_through_the_middle_tell_directions_and_others_tell_distances() -> None:
    ray = np.array([[ONE // 8, ONE // 8], [ONE, ONE]], dtype=np.int32)
    published = [len(set(tree(depth=16, offset=0.0, public_seed=s)._codes(ray))) for s in range(20)]
    ours = [len(set(tree(depth=16, offset=0.5, public_seed=s)._codes(ray))) for s in range(20)]
    assert set(published) == {1}
    assert set(ours) == {2}


def test_leaves_sum_and_count_their_records_and_others_are_dropped() -> None:
    it = tree(depth=3, max_leaves=8)
    rng = np.random.default_rng(0)
    table = rng.integers(-ONE, ONE + 1, (200, 2), dtype=np.int32)
    codes = it._codes(table)
    state = start(it)
    leaves = np.zeros(8)
    leaves[:3] = [2, 12, 15]  # half of the box, and two of the deepest nodes: 100 and 111
    state = {**state, "leaves": round_to_grid(leaves, 16)}
    words = it.contribute(1, state, table).reshape(8, 3)
    for leaf, inside in enumerate((codes < 4, codes == 4, codes == 7)):
        assert words[leaf, :2].tolist() == table[inside].sum(axis=0).tolist()
        assert words[leaf, 2] == round(2**0.25 * ONE) * inside.sum()
    assert not words[3:].any()


def test_a_leaf_without_noise_is_its_mean() -> None:
    it = tree(n_clusters=1)
    rng = np.random.default_rng(0)
    table = rng.integers(-ONE, ONE + 1, (300, 2), dtype=np.int32)
    state = start(it)
    for t in range(2):
        (block,) = it.blocks(t)
        words = it.contribute(t, state, table).reshape(block.shape)
        new = it.update(t, state, {block.name: NoisyBlock(words, 0.0)})
        state = {name: round_to_grid(v, 16) for name, v in new.items()}
    kept = it._labels(state["leaves"] >> 16)[it._codes(table)] < it.max_leaves
    assert new["centres"][0] == pytest.approx(table[kept].mean(axis=0) / ONE, abs=1e-4)
    assert new["sizes"][0] == kept.sum()
    assert new["low"] == pytest.approx(new["high"])


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("d", [2, 10])
def test_clusters_are_found(mechanism: str, d: int) -> None:
    rng = np.random.default_rng(0)
    middles = rng.choice([-0.6, 0.6], (3, d))
    middles[1, 0], middles[2, 0] = -middles[0, 0], 0.0
    table = np.vstack([rng.normal(m, 0.05, (5000, d)) for m in middles]).clip(-1, 1)
    steps = np.round(table * ONE).astype(np.int32)
    plan = make_plan(
        LSHTree,
        toy_schema(d),
        ["a"],
        budget=Budget(10.0, 0.0 if mechanism == "laplace" else 1e-6),
        nominal_n=15000,
        n_clusters=3,
        mechanism=mechanism,
    )
    found = run_plan(plan, {"a": [steps]}, noise=SimulatedNoise(0)).results
    apart = nicv(table, table.mean(axis=0, keepdims=True))
    assert nicv(table, found["centres"]) < 0.1 * apart
    assert found["sizes"].sum() == pytest.approx(15000, rel=0.2)


def test_a_forecast_grows_with_the_noise() -> None:
    it = designed()
    grid = toy_schema(2).grid(16)
    small, large = (it.forecast(std * ONE, 5000, grid) for std in (1.0, 10.0))
    for name in ("half_width", "size_half_width"):
        assert (small[name] < large[name]).all()
