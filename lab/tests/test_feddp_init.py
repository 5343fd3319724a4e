"""``feddp-init``: axes, votes, a start; and what the published code's first stage leaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.events import GaussianEvent
from cloister.protocol.task import Block, NoisyBlock
from cloister.tasks.moments import (
    PRODUCT,
    SQUARE,
    lattice_bits,
    n_products,
    products_l1,
    products_norm_squared,
    sum_products,
    unpack_products,
)
from cloister.testing import SimulatedNoise, ZeroNoise, check_task, toy_plan, toy_schema, toy_task
from cloister_lab.metrics import nicv
from cloister_lab.tasks.feddp_init import FedDPInit, main_axes, nearest_two
from cloister_lab.tasks.sums import ceil_sqrt, sum_by_label

ONE = 1 << 16
BUDGET = Budget(1.0, 1e-6)


def designed(d: int = 2, k: int = 3, **options: Any) -> FedDPInit:
    return toy_task(FedDPInit, n_features=d, nominal_n=1000, budget=BUDGET, n_clusters=k, **options)


def start(it: FedDPInit) -> Any:
    return {name: round_to_grid(v, it.frac_bits) for name, v in it.start().items()}


# --- What the published code leaks ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "true_epsilon"),
    [(sqrt(7), 2.9), (11.0, 15.0)],  # the published bounds: rows with seven ones; Gaussian data
)
def test_noise_for_the_norm_of_a_row_is_too_little_for_its_outer_product(
    bound: float, true_epsilon: float
) -> None:
    """Published: rows are clipped to `bound`, noise is for that, and the sum moves by its square.

    The pair: any data, and the same with one row of norm `bound` more.
    """
    row = np.full(7, bound / sqrt(7))
    nobody, somebody = np.zeros((0, 7)), row[None]
    change = np.linalg.norm(somebody.T @ somebody - nobody.T @ nobody)
    assert change == pytest.approx(bound**2)
    published_std = bound * gaussian_noise_multiplier(1.0, 1e-6)
    spent = epsilon(GaussianEvent(published_std / change), 1e-6)
    assert spent == pytest.approx(true_epsilon, rel=0.05)
    corrected = epsilon(GaussianEvent(published_std * bound / change), 1e-6)
    assert corrected == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("d", [2, 7])
def test_a_first_stage_with_the_published_bound_is_caught(d: int) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Published(FedDPInit):
        def blocks(self, t: int) -> tuple[Block, ...]:
            (block,) = super().blocks(t)
            if t > 0:
                return (block,)
            # |x| in place of |x|^2, in the same units
            rooted = SQUARE**2 * self.n_features << (4 * self.product_bits)
            return (replace(block, l2_squared=rooted),)

    honest = designed(d)
    fields = {name: getattr(honest, name) for name in ("n_clusters", "n_features", "components")}
    corner = np.full((1, d), ONE, dtype=np.int32)
    check_task(honest, [corner])
    with pytest.raises(AssertionError, match="L2 bound of 'products'"):
        check_task(Published(**fields, product_bits=honest.product_bits), [corner])


# --- Products -------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), d=st.integers(1, 6), bits=st.integers(4, 12))
def test_products_are_within_their_bounds_and_a_corner_reaches_them(
    seed: int, d: int, bits: int
) -> None:
    one = 1 << bits
    rng = np.random.default_rng(seed)
    row = rng.integers(-one, one + 1, (1, d))
    corner = rng.choice([-one, one], (1, d))
    squared, l1 = (
        [int((v.astype(object) ** 2).sum()) for v in (sum_products(row), sum_products(corner))],
        [int(np.abs(v).sum()) for v in (sum_products(row), sum_products(corner))],
    )
    assert squared[0] <= squared[1] == products_norm_squared(d, bits)
    assert l1[0] <= l1[1] == products_l1(d, bits)
    # less than the outer product's norm, |y|^2, in the units of squares
    assert squared[0] <= (SQUARE * int((row**2).sum())) ** 2
    assert PRODUCT**2 < 2 * SQUARE**2


@given(seed=st.integers(0, 2**32), d=st.integers(1, 6))
def test_unpacking_gives_the_matrix_back(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-4096, 4097, (30, d))
    weights = rng.integers(0, 65, 30)
    assert len(sum_products(rows)) == n_products(d)
    plain = unpack_products(sum_products(rows).astype(np.float64), d)
    assert np.array_equal(plain, rows.T @ rows)
    weighted = unpack_products(sum_products(rows, weights).astype(np.float64), d)
    assert np.array_equal(weighted, (rows * weights[:, None]).T @ rows)
    labels = rng.integers(0, 4, 30)
    by_hand = np.array([rows[labels == j].sum(axis=0) for j in range(3)])
    assert np.array_equal(sum_by_label(rows.astype(np.int32), labels, 3), by_hand)


def test_the_lattice_leaves_room_in_the_ring() -> None:
    for d in (1, 2, 10, 100, 784):
        bits = designed(d).product_bits
        assert 4 <= bits <= 12
        (block,) = designed(d).blocks(0)
        assert isqrt(block.l2_squared) <= 1 << 24
        toy_plan(designed(d), silos=64, budget=BUDGET)
    assert lattice_bits(1, 8) == 8
    with pytest.raises(PlanError, match="fewer columns"):
        lattice_bits(1 << 17, 16)
    assert [ceil_sqrt(v) for v in (0, 1, 2, 4, 5)] == [0, 1, 2, 2, 3]


def test_records_are_cut_toward_zero_before_they_are_multiplied() -> None:
    it = designed(1, 1)
    step = 1 << (16 - it.product_bits)
    table = np.array([[step - 1], [1 - step], [step], [-step - 1]], dtype=np.int32)
    words = [int(it.contribute(0, start(it), table[i : i + 1])[0]) for i in range(4)]
    assert words == [0, 0, SQUARE, SQUARE]


def test_main_axes_are_those_of_the_largest_eigenvalues_with_one_sign() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = turn @ np.diag([-5.0, 1.0, 9.0, 3.0]) @ turn.T
    axes = main_axes(matrix, 2)
    assert np.abs(axes @ turn[:, [2, 3]]) == pytest.approx(np.eye(2), abs=1e-9)
    assert (axes[np.arange(2), np.abs(axes).argmax(axis=1)] > 0).all()
    assert main_axes(np.zeros((3, 3)), 2).shape == (2, 3)


def test_nearest_two_by_hand() -> None:
    points = np.array([[0], [10]])
    rows = np.array([[1], [4], [5], [6], [20]])
    labels, near = nearest_two(rows, points, 0.5)
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert near.tolist() == [True, False, False, False, True]
    assert nearest_two(rows, points)[1].all()
    assert nearest_two(rows, points[:1], 0.5)[1].all()


# --- The task -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"components": 0}, "components"),
        ({"components": 3}, "components must be at most 2"),
        ({"margin": 0.0}, "margin"),
        ({"margin": 1.1}, "margin"),
        ({"refine_rounds": -1}, "refine_rounds"),
        ({"reference_size": 2}, "at least n_clusters=3"),
        ({"reference_size": 1001}, "reference_size"),
        ({"reference": [[0.0, 0.0]] * 2}, "at least n_clusters=3"),
        ({"reference": [[0.0]] * 5}, "2 values"),
        ({"reference": [[0.0, 1.5]] * 5}, r"\[-1, 1\]"),
        ({"reference": [[0.0, float("nan")]] * 5}, "each a number"),
        ({"reference": [[0.0, 0.0]] * 1001}, "at most 1000"),
        ({"frac_bits": 24, "n_clusters": 100}, "frac_bits"),
    ],
)
def test_options_are_checked(change: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        designed(**{"k": change.pop("n_clusters", 3), **change})


def test_rounds_and_weights_are_those_of_the_stages() -> None:
    for refine in (0, 1, 4):
        it = designed(refine_rounds=refine)
        assert it.rounds == 3 + refine
        weights = [block.weight for t in range(it.rounds) for block in it.blocks(t)]
        assert weights == [1 / it.rounds] * it.rounds


def test_public_points_are_used_and_are_part_of_the_plan() -> None:
    rng = np.random.default_rng(0)
    public = rng.uniform(-1, 1, (40, 2)).tolist()
    it = designed(reference=public)
    assert it.blocks(1)[0].shape == (40,)
    assert it.reference == tuple(map(tuple, public))
    with_points, without = (
        toy_plan(i, silos=1, budget=BUDGET, run_id="0" * 32) for i in (it, designed())
    )
    assert with_points.digest != without.digest
    one, two = (designed(public_seed=seed)._reference for seed in (1, 2))
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("margin", [1.0, 0.9])
@pytest.mark.parametrize("d", [1, 2, 8])
def test_clusters_are_found_and_better_public_points_help(d: int, margin: float) -> None:
    rng = np.random.default_rng(d)
    middles = np.full((3, d), -0.6)
    middles[1], middles[2] = 0.6, 0.0
    middles[2, 0] = 0.1
    table = np.vstack([rng.normal(m, 0.06, (1500, d)) for m in middles]).clip(-1, 1)
    steps = np.round(table * ONE).astype(np.int32)
    public = rng.normal(np.repeat(middles, 20, axis=0), 0.1).clip(-1, 1)
    plan = make_plan(
        FedDPInit,
        toy_schema(d),
        ["a"],
        budget=Budget(8.0, 1e-6),
        nominal_n=4500,
        n_clusters=3,
        margin=margin,
        reference=public.tolist(),
    )
    found = run_plan(plan, {"a": [steps]}, noise=SimulatedNoise(1)).results
    assert nicv(table, found["centres"]) < 1.2 * nicv(table, middles)
    assert np.sort(found["sizes"]) == pytest.approx([1500] * 3, abs=150)


def test_an_empty_cluster_starts_where_the_public_points_are() -> None:
    """Published: at the ratio of two noises."""
    it = designed(2, 2, reference=[[-0.5, -0.5], [0.5, 0.5]], refine_rounds=0)
    state = start(it)
    anchored = {**state, "centres": round_to_grid(np.array([[-0.5, -0.5], [0.5, 0.5]]), 16)}
    word = it._lloyd.payload(0).count_weight
    values = np.array([[-250 * ONE, -250 * ONE, 500 * word], [9 * ONE, -7 * ONE, -2 * word]])
    new = it.update(2, anchored, {"sums": NoisyBlock(values, 5.0 * ONE)})
    assert new["centres"][0] == pytest.approx([-0.5, -0.5])
    assert new["centres"][1] == pytest.approx([0.5, 0.5])
    assert new["sizes"] == pytest.approx([500, -2])


def test_without_noise_the_start_is_the_means_of_the_nearest_records() -> None:
    it = designed(2, 2, reference=[[-0.5, -0.5], [0.5, 0.5], [0.6, 0.5]], refine_rounds=0)
    rng = np.random.default_rng(0)
    left = rng.normal(-0.5, 0.05, (300, 2))
    right = rng.normal(0.5, 0.05, (300, 2))
    steps = np.round(np.vstack([left, right]) * ONE).astype(np.int32)
    state = start(it)
    for t in range(it.rounds):
        (block,) = it.blocks(t)
        words = it.contribute(t, state, steps).reshape(block.shape)
        new = it.update(t, state, {block.name: NoisyBlock(words, 0.0)})
        state = {name: round_to_grid(v, 16) for name, v in new.items()}
    order = np.argsort(new["centres"][:, 0])
    assert new["centres"][order[0]] == pytest.approx(left.mean(axis=0), abs=1e-3)
    assert new["centres"][order[1]] == pytest.approx(right.mean(axis=0), abs=1e-3)
    assert new["sizes"] == pytest.approx([300, 300])


def test_zero_noise_runs_in_a_group_as_alone() -> None:
    it = designed(3, 2)
    rng = np.random.default_rng(0)
    table = rng.integers(-ONE, ONE + 1, (90, 3), dtype=np.int32)
    alone = toy_plan(it, silos=1, budget=BUDGET)
    group = toy_plan(it, silos=3, budget=BUDGET)
    one = run_plan(alone, {alone.silos[0]: [table]}, noise=ZeroNoise()).results
    three = run_plan(
        group,
        {silo: [part] for silo, part in zip(group.silos, np.array_split(table, 3), strict=True)},
        noise=ZeroNoise(),
    ).results
    assert all(np.array_equal(one[name], three[name]) for name in one)
