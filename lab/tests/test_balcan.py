"""``Balcan``: cubes, search and recovery; and why the published code's recovery is not private."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, make_plan
from cloister.app.in_process import run_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.task import NoisyBlock
from cloister.testing import SimulatedNoise, check_task, toy_schema, toy_task
from cloister_lab.metrics import nicv
from cloister_lab.tasks.balcan import MAX_CELLS, Balcan, local_search
from cloister_lab.tasks.projection import ONE
from cloister_lab.tasks.recovery import Recovery

RNG = np.random.default_rng(1)
MIDDLES = np.array([[-0.6, -0.6], [0.6, 0.5], [0.6, -0.7]])
TABLE = np.vstack([RNG.normal(m, 0.07, (1500, 2)) for m in MIDDLES]).clip(-1, 1)
RECORDS = np.rint(TABLE * ONE).astype(np.int32)


def task(k: int = 3, d: int = 2, n: int = 4500, **options: Any) -> Balcan:
    return toy_task(
        Balcan, n_features=d, nominal_n=n, budget=Budget(2.0, 1e-6), n_clusters=k, **options
    )


# --- The published recovery -----------------------------------------------------------------------


def published_recovery_loss(epsilon: float, d: int, draws: int) -> np.ndarray:
    """Return privacy losses of the published code's recovery on a cell {x} against {x, -x}.

    It releases the mean of a cell with Laplace noise of scale ``range / (epsilon * n_cell)`` in
    every coordinate, with the exact n_cell. Here x has norm `range`, all coordinates alike.
    """
    x = np.full(d, 1 / math.sqrt(d))  # range is 1
    one, two = 1 / epsilon, 1 / (2 * epsilon)
    out = x + np.random.default_rng(0).laplace(0, one, (draws, d))
    alone = -np.log(2 * one) - np.abs(out - x) / one
    beside = -np.log(2 * two) - np.abs(out) / two
    return np.asarray((alone - beside).sum(axis=1))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_published_recovery_of_images_loses_hundreds_of_times_its_epsilon(epsilon: float) -> None:
    """The event "loss above 50" has probability near 1 on one table, below e^-50 on the other."""
    losses = published_recovery_loss(epsilon, 784, 400)
    assert (losses > 50).all()
    # by the numbers of the mechanism: a mean moves by up to 2 sqrt(d) range / n in L1
    worst = 2 * math.sqrt(784)
    assert worst == 56


def test_our_recovery_on_the_same_pair_stays_below_its_budget() -> None:
    """One row changes by a bounded vector, and the noise knows no size of any cluster."""
    recovery = Recovery.of(1, 784, 5, 16, 0)
    block = recovery.block(0)
    x = np.full((1, 784), ONE, dtype=np.int32)
    points = np.zeros((1, 5))
    state = {"centres": np.zeros((1, 784), dtype=np.int64)}
    alone = recovery.contribute(0, points, state, x)
    both = recovery.contribute(0, points, state, np.vstack([x, -x]))
    change = [int(v) for v in both - alone]
    assert sum(v * v for v in change) <= block.l2_squared


# --- Cubes ----------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), d=st.sampled_from([1, 2, 3, 5]), level=st.integers(1, 6))
def test_every_record_is_in_one_cube_and_in_its_parent(seed: int, d: int, level: int) -> None:
    it = Balcan(n_clusters=2, n_features=d, n_axes=d, levels=1, public_seed=seed)
    rng = np.random.default_rng(seed)
    points = rng.integers(-ONE, ONE + 1, (50, d))
    points[:2], points[2:4] = ONE, -ONE
    numbers = it._tree.cubes_of(points, level)
    assert numbers.min() >= 0
    assert numbers.max() < it._tree.cells(level)
    side = (1 << (level - 1)) + 1
    places = np.stack(np.unravel_index(numbers, (side,) * d), axis=1) + it._tree._first_place(level)
    gap = np.abs(points / ONE - it._tree._middles(places, level))
    assert gap.max() <= 2.0**-level * 2
    above = it._tree.cubes_of(points, level + 1)
    finer = np.stack(np.unravel_index(above, (2 * side - 1,) * d), axis=1)
    assert ((finer + it._tree._first_place(level + 1)) // 2 == places).all()


def counts_of(it: Balcan, records: np.ndarray) -> np.ndarray:
    state = {name: round_to_grid(value, 16) for name, value in it.start().items()}
    return it.contribute(0, state, records) / float(1 << 16)


def test_crowded_cubes_lie_where_the_records_are_and_hold_all_of_them() -> None:
    it = task()
    counts = counts_of(it, RECORDS)
    crowd = it._tree.crowded(counts, 1.0)
    points, weights = crowd.middles, crowd.weights(counts)
    assert weights.sum() == pytest.approx(4500, rel=0.05)
    heavy = points[weights > 20]
    near = np.sqrt(((heavy[:, None] - MIDDLES) ** 2).sum(axis=2)).min(axis=1)
    assert near.max() < 0.5


def test_pure_noise_makes_no_cube() -> None:
    """False alarm: below 0.02 for a fixed seed of the noise, and the seed is fixed."""
    it = task()
    (block, *_) = it.blocks(0)
    noise = SimulatedNoise(3).draw("gaussian", 10, block.size).astype(float)
    crowd = it._tree.crowded(noise, 10.0)
    assert len(crowd.nodes) <= 2
    assert crowd.weights(noise).max() <= 50


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 40])
def test_no_level_has_more_cubes_than_the_plan_allows(d: int) -> None:
    it = task(d=d, n=10**7)
    assert it._tree.cells(it.levels) <= MAX_CELLS
    assert it.blocks(0)[0].size == sum(it._tree.cells(i) for i in range(1, it.levels + 1))
    with pytest.raises(PlanError):
        Balcan(n_clusters=2, n_features=5, n_axes=5, levels=5)
    with pytest.raises(PlanError, match="levels"):
        Balcan(n_clusters=2, n_features=1, n_axes=1, levels=11)


# --- Search ---------------------------------------------------------------------------------------


def cost(points: np.ndarray, weights: np.ndarray, chosen: Any) -> float:
    squared = ((points[:, None] - points[list(chosen)]) ** 2).sum(axis=2)
    return float(weights @ squared.min(axis=1))


@given(seed=st.integers(0, 2**32), k=st.sampled_from([1, 2, 3]))
def test_no_single_swap_makes_the_found_centres_better(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.round(rng.uniform(-1, 1, (14, 2)), 3)
    weights = np.round(rng.exponential(50, 14))
    chosen = local_search(points, weights, k, public_seed=seed % 9)
    assert len(set(chosen.tolist())) == k
    found = cost(points, weights, chosen)
    for lost, other in itertools.product(range(k), range(14)):
        swapped = [*chosen[:lost], other, *chosen[lost + 1 :]]
        assert cost(points, weights, swapped) >= found - 0.05 * max(1.0, found / 50)
    best = min(cost(points, weights, c) for c in itertools.combinations(range(14), k))
    assert found <= 5 * best + 0.5  # the theorem of local search with single swaps


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_points_than_clusters_are_repeated(n: int) -> None:
    points = np.arange(n, dtype=float)[:, None]
    assert local_search(points, np.ones(n), 3, public_seed=0).tolist() == [i % n for i in range(3)]


def test_points_without_weight_are_no_obstacle() -> None:
    points = np.linspace(-1, 1, 6)[:, None]
    assert len(set(local_search(points, np.zeros(6), 2, public_seed=0).tolist())) == 2


# --- The whole ------------------------------------------------------------------------------------


def test_records_behind_a_projection_add_no_more_than_the_bounds() -> None:
    it = task(d=8, n=500)
    rng = np.random.default_rng(0)
    table = rng.integers(-ONE, ONE + 1, (12, 8)).astype(np.int32)
    table[:3], table[3] = ONE, -ONE
    state = {name: round_to_grid(value, 16) for name, value in it.start().items()}
    state["points"] = rng.integers(-ONE, ONE + 1, state["points"].shape)
    check_task(it, [table], [state])


@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_a_federation_finds_clusters(profile: Any) -> None:
    silos = ("a", "b", "c")
    plan = make_plan(
        Balcan,
        toy_schema(2),
        silos,
        budget=Budget(2.0, 1e-6),
        nominal_n=4500,
        n_clusters=3,
        profile=profile,
        collusion=1 if profile == "pairwise" else 0,
    )
    parts = np.array_split(np.random.default_rng(0).permutation(RECORDS), 3)
    result = run_plan(
        plan, {s: [p] for s, p in zip(silos, parts, strict=True)}, noise=DiscreteNoise()
    ).results
    assert nicv(TABLE, result["centres"]) < 1.5 * nicv(TABLE, MIDDLES)
    assert (result["low"] <= result["high"]).all()


def test_means_come_back_behind_a_projection() -> None:
    rng = np.random.default_rng(4)
    middles = rng.uniform(-0.8, 0.8, (3, 30))
    table = np.vstack([rng.normal(m, 0.05, (2000, 30)) for m in middles]).clip(-1, 1)
    plan = make_plan(
        Balcan, toy_schema(30), ["a"], budget=Budget(4.0, 1e-6), nominal_n=6000, n_clusters=3
    )
    records = np.rint(table * ONE).astype(np.int32)
    centres = run_plan(plan, {"a": [records]}, noise=SimulatedNoise(0)).results["centres"]
    alone = nicv(table, table.mean(axis=0, keepdims=True))
    assert nicv(table, centres) < 0.6 * alone


def test_an_update_with_nobody_keeps_a_state() -> None:
    it = task()
    (block,) = it.blocks(0)
    state = {name: round_to_grid(value, 16) for name, value in it.start().items()}
    nothing = NoisyBlock(np.zeros(block.shape, dtype=np.int64), 100.0)
    assert np.abs(it.update(0, state, {"cubes": nothing})["points"]).max() <= 1
