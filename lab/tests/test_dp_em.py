"""``dpem``: whole-number responsibilities, moments, and mixtures that are mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import NoisyBlock
from cloister.testing import SimulatedNoise, ZeroNoise, toy_plan, toy_schema, toy_task
from cloister_lab.tasks.dp_em import DPEM, RESPONSIBILITY, SMALLEST_STD, responsibilities

ONE = 1 << 16
BUDGET = Budget(1.0, 1e-6)


def designed(d: int = 2, k: int = 3, **options: Any) -> DPEM:
    return toy_task(DPEM, n_features=d, nominal_n=1000, budget=BUDGET, n_clusters=k, **options)


def start(it: DPEM) -> Any:
    return {name: round_to_grid(v, it.frac_bits) for name, v in it.start().items()}


def one_round(it: DPEM, state: Any, table: np.ndarray) -> Any:
    (block,) = it.blocks(0)
    words = it.contribute(0, state, table).reshape(block.shape)
    return it.update(0, state, {block.name: NoisyBlock(words, 0.0)})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"rounds": 0}, "rounds"),
        ({"moment_bits": 3}, "moment_bits"),
        ({"moment_bits": 13}, "in .4, 12."),
        ({"covariance": "round"}, "covariance"),
        ({"public_seed": None}, "public_seed"),
    ],
)
def test_fields_are_checked(change: dict[str, Any], match: str) -> None:
    fields: dict[str, Any] = {"n_clusters": 2, "n_features": 2, "moment_bits": 6, **change}
    with pytest.raises(PlanError, match=match):
        DPEM(**fields)


def test_products_of_many_columns_are_left_out() -> None:
    assert designed(8).covariance == "full"
    assert designed(9).covariance == "diagonal"
    assert designed(8).blocks(0)[0].shape == (3, 1 + 8 + 36)
    assert designed(784).blocks(0)[0].shape == (3, 1 + 784 + 784)
    for d in (1, 8, 32, 784):
        toy_plan(designed(d), silos=64, budget=BUDGET)
    with pytest.raises(PlanError, match="fewer columns"):
        designed(200, covariance="full")


# --- Responsibilities -----------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), k=st.integers(1, 8), far=st.sampled_from([10, 1000, 10**9]))
def test_responsibilities_are_shares_of_a_whole(seed: int, k: int, far: int) -> None:
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-far, far, (30, k))
    shared = responsibilities(exponents)
    assert (shared >= 0).all()
    assert (shared.sum(axis=1) == RESPONSIBILITY).all()
    above = (exponents - exponents.min(axis=1, keepdims=True)) / 64
    exact = np.exp(-above) / np.exp(-above).sum(axis=1, keepdims=True)
    assert np.abs(shared / RESPONSIBILITY - exact).max() <= 1 / RESPONSIBILITY + 1e-3


def test_responsibilities_are_those_of_the_mixture() -> None:
    it = designed(3, 4, public_seed=2)
    rng = np.random.default_rng(0)
    rows = rng.integers(-(1 << it.moment_bits), (1 << it.moment_bits) + 1, (200, 3))
    base = rng.normal(size=(4, 3, 3)) * 0.3
    state = {
        **it.start(),
        "weights": np.array([0.1, 0.2, 0.3, 0.4]),
        "covariances": base @ np.swapaxes(base, 1, 2) + 0.05 * np.eye(3),
    }
    shared = responsibilities(
        it._exponents({n: round_to_grid(v, 16) for n, v in state.items()})(rows)
    )
    mixture = GaussianMixture(4)
    mixture.weights_, mixture.means_ = state["weights"], state["centres"]
    mixture.covariances_ = state["covariances"]
    mixture.precisions_cholesky_ = np.linalg.cholesky(np.linalg.inv(state["covariances"]))
    exact = mixture.predict_proba(rows / (1 << it.moment_bits))
    assert np.abs(shared / RESPONSIBILITY - exact).max() < 0.05
    assert np.abs(shared / RESPONSIBILITY - exact).mean() < 0.01


# --- Rounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_one_component_has_the_moments_of_all_records(covariance: Any) -> None:
    it = designed(2, 1, covariance=covariance)
    rng = np.random.default_rng(0)
    table = rng.multivariate_normal([0.2, -0.1], [[0.04, 0.02], [0.02, 0.05]], 3000).clip(-1, 1)
    new = one_round(it, start(it), np.round(table * ONE).astype(np.int32))
    assert new["sizes"] == pytest.approx([3000])
    assert new["weights"] == pytest.approx([1.0])
    assert new["centres"][0] == pytest.approx(table.mean(axis=0), abs=1e-3)
    spread = np.cov(table.T)
    expected = spread if covariance == "full" else np.diag(spread)
    assert new["covariances"][0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("rounds", "close"), [(1, 0.004), (20, 0.01)])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_rounds_without_noise_are_those_of_expectation_maximisation(
    covariance: Any, rounds: int, close: float
) -> None:
    it = designed(2, 3, covariance=covariance, rounds=rounds, public_seed=1)
    rng = np.random.default_rng(0)
    table = np.vstack(
        [
            rng.multivariate_normal(m, [[0.02, s * 0.01], [s * 0.01, 0.02]], 2000)
            for m, s in (([-0.5, -0.5], 1), ([0.5, -0.3], -1), ([0.1, 0.6], 0))
        ]
    ).clip(-1, 1)
    plan = toy_plan(it, silos=1, budget=Budget(1e4, 1e-6))
    steps = np.round(table * ONE).astype(np.int32)
    found = run_plan(plan, {plan.silos[0]: [steps]}, noise=ZeroNoise()).results
    begin = it.start()
    mixture = GaussianMixture(
        3,
        covariance_type="full" if covariance == "full" else "diag",
        weights_init=begin["weights"],
        means_init=begin["centres"],
        precisions_init=np.linalg.inv(begin["covariances"])
        if covariance == "full"
        else 1 / begin["covariances"],
        max_iter=rounds,
        tol=0,
    )
    with pytest.warns(match="did not converge"):
        mixture.fit(table)
    assert found["centres"] == pytest.approx(mixture.means_, abs=close)
    assert found["weights"] == pytest.approx(mixture.weights_, abs=close)
    assert found["covariances"] == pytest.approx(mixture.covariances_, abs=close)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_what_is_released_is_a_mixture_however_loud_the_noise(
    covariance: Any, epsilon: float
) -> None:
    it = designed(3, 4, covariance=covariance)
    plan = toy_plan(it, silos=1, budget=Budget(epsilon, 1e-6))
    rng = np.random.default_rng(0)
    table = rng.integers(-ONE, ONE + 1, (100, 3), dtype=np.int32)
    for seed in range(5):
        result = run_plan(plan, {plan.silos[0]: [table]}, noise=SimulatedNoise(seed))
        for found in result.history:
            assert found["weights"].sum() == pytest.approx(1.0, abs=1e-3)
            assert (found["weights"] > 0).all()
            spread = found["covariances"]
            values = np.linalg.eigvalsh(spread) if covariance == "full" else spread
            assert values.min() >= 0.9 * SMALLEST_STD**2
            assert values.max() <= 3.001
            assert np.abs(found["centres"]).max() <= 1


def test_covariances_come_in_the_units_of_the_table() -> None:
    it = designed(2, 1)
    schema = toy_schema(2)
    grid = schema.grid(16)
    wide = type(grid)(low=(0.0, -50.0), high=(20.0, 50.0), frac_bits=16)
    state = start(it)
    plain, scaled = it.results(state, grid), it.results(state, wide)
    assert scaled["covariances"][0] == pytest.approx(
        plain["covariances"][0] * np.outer([10, 50], [10, 50])
    )
    flat = designed(2, 1, covariance="diagonal")
    found = flat.results(start(flat), wide)["covariances"]
    assert found == pytest.approx(np.array([[100 / 3, 2500 / 3]]), rel=1e-3)


@pytest.mark.parametrize("d", [1, 2, 12])
def test_clusters_are_found(d: int) -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[-0.6], [0.6]]) * np.ones(d)
    table = np.vstack([rng.normal(m, 0.1, (10_000, d)) for m in middles]).clip(-1, 1)
    steps = np.round(table * ONE).astype(np.int32)
    plan = make_plan(
        DPEM, toy_schema(d), ["a"], budget=Budget(5.0, 1e-6), nominal_n=20_000, n_clusters=2
    )
    found = run_plan(plan, {"a": [steps]}, noise=SimulatedNoise(0)).results
    order = np.argsort(found["centres"][:, 0])
    assert found["centres"][order] == pytest.approx(middles, abs=0.03)
    assert found["weights"] == pytest.approx([0.5, 0.5], abs=0.02)
    means = np.array([part.mean(axis=0) for part in np.split(table, 2)])
    grid = 1 / (1 << plan.task.moment_bits)  # type: ignore[attr-defined]
    assert (found["low"][order] - grid <= means).all()
    assert (means <= found["high"][order] + grid).all()
    spread = found["covariances"]
    variances = spread if spread.ndim == 2 else np.diagonal(spread, axis1=1, axis2=2)
    assert variances == pytest.approx(np.full((2, d), 0.01), abs=0.01)
