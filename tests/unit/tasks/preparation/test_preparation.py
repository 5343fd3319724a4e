"""Quantiles, bounds, statistics, standardising, principal components, and pipelines of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from inspect import getattr_static
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.decomposition import PCA as Exact

from cloister import Budget, PlanError, Schema, make_plan, run_job
from cloister.app.in_process import run_plan
from cloister.app.present import present
from cloister.app.release import Release
from cloister.app.report.page import write_report
from cloister.data.schema import Column, schema_of
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.plan import Plan
from cloister.protocol.task import INTERVAL_95, Classifier, PublicColumn, Regressor, Transformer
from cloister.tasks import TASKS
from cloister.tasks.moments import products_norm_squared
from cloister.tasks.preparation.discretise import _edges
from cloister.tasks.preparation.eigenvalues import Eigenvalues
from cloister.tasks.preparation.pca import squares_along
from cloister.tasks.preparation.quantiles import (
    Quantiles,
    _crossing,
    _first,
    agreeing,
    made_rising,
    quantiles_of,
    running_variance,
)
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.state import part_of
from cloister.testing import SimulatedNoise, ZeroNoise, toy_schema

NUMBERS = (PublicColumn("age", 0.0, 100.0), PublicColumn("weight", 0.0, 200.0))
MIXED = (*NUMBERS, PublicColumn("work", 0.0, 2.0, ("private", "state", "none")))


def numbers_schema(low: Sequence[float], high: Sequence[float]) -> Schema:
    columns = tuple(
        Column(name=f"x{j}", type="number", min=float(a), max=float(b))
        for j, (a, b) in enumerate(zip(low, high, strict=True))
    )
    return Schema(dataset="t", unit="row", columns=columns)


def planned(
    word: str, schema: Schema, *, epsilon: float = 1.0, nominal_n: int = 2000, **options: Any
) -> Plan:
    budget = Budget(epsilon, 1e-6)
    return make_plan(TASKS[word], schema, ["a"], budget=budget, nominal_n=nominal_n, **options)


def exact(
    word: str, schema: Schema, X: np.ndarray, *, epsilon: float = 1000.0, **options: Any
) -> Release:
    """Run without noise, planned for so little that nothing is corrected for it."""
    plan = planned(word, schema, epsilon=epsilon, **options)
    return run_plan(plan, {"a": [plan.grid.encode(X)]}, noise=ZeroNoise())


def on_grid(grid: Grid, X: np.ndarray) -> np.ndarray:
    return grid.decode(grid.encode(X) / grid.one)


# --- trees


def test_agreeing_counts_are_the_least_squares_of_a_design_matrix() -> None:
    rng = np.random.default_rng(0)
    noisy = [rng.normal(size=(1, 4**level)) for level in (1, 2, 3)]
    design = np.concatenate(
        [np.kron(np.eye(4**level), np.ones(4 ** (3 - level))) for level in (1, 2, 3)]
    )
    wanted = np.linalg.lstsq(design, np.concatenate([part[0] for part in noisy]), rcond=None)[0]
    np.testing.assert_allclose(agreeing(noisy)[0], wanted, atol=1e-12)


def test_trees_of_the_same_records_get_one_total() -> None:
    rng = np.random.default_rng(1)
    found = agreeing([rng.normal(size=(3, 4**level)) for level in (1, 2)])
    np.testing.assert_allclose(found.sum(axis=1), found.sum() / 3)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_variance_of_running_sums_is_that_of_the_estimate(depth: int) -> None:
    n = 4**depth
    words = np.eye(sum(4**level for level in range(1, depth + 1)))
    ends = np.cumsum([4**level for level in range(1, depth)])
    estimate = np.concatenate([agreeing([p[None] for p in np.split(w, ends)]) for w in words])
    sums = np.cumsum(estimate, axis=1)
    inner, total = running_variance(depth)
    of_sums = (sums**2).sum(axis=0)
    np.testing.assert_allclose(total, of_sums[-1])
    np.testing.assert_allclose(inner[1:] + (np.arange(1, n + 1) / n) ** 2 * total, of_sums)


@pytest.mark.parametrize("trees", [1, 3])
def test_the_interval_of_a_quantile_is_of_all_cells_that_noise_allows_by_hand(trees: int) -> None:
    """Of four cells each; trees have one total, which is known from the noise of all."""
    rng, edges = np.random.default_rng(trees), np.tile(np.arange(5.0), (trees, 1))
    shares, leaves = [0.1, 0.5, 0.8], np.arange(4 * trees)
    for _ in range(30):
        cells = rng.integers(1, 30, 4)
        counts, noise = (
            np.stack([rng.permutation(cells) for _ in range(trees)]),
            rng.uniform(0.3, 4),
        )
        found = quantiles_of(edges, counts.astype(float), noise, shares)
        assert found.population is not None
        for tree, j, sampled in np.ndindex(trees, 3, 2):
            share, allowed = shares[j], []
            for i in range(5):
                # the first i cells, less their part of the tree's total, more it of the common one
                own = (leaves // 4 == tree) * ((leaves % 4 < i) - i / 4)
                variance = noise**2 * ((own + (i / 4 - share) / trees) ** 2).sum()
                variance += sampled * share * (1 - share) * cells.sum()
                gap = counts[tree, :i].sum() - share * cells.sum()
                reach = INTERVAL_95["gaussian"] * np.sqrt(variance)
                allowed.append((gap + reach >= 0, gap - reach <= 0))
            first = [above for above, _ in allowed].index(True)
            last = 4 - [below for _, below in allowed[::-1]].index(True)
            low, high = found.population if sampled else (found.low, found.high)
            assert (low[tree, j], high[tree, j]) == (max(first - 1, 0), min(last + 1, 4))


def test_without_noise_a_quantile_at_an_edge_is_in_either_of_its_cells() -> None:
    edges, even = np.arange(5.0)[None], np.ones((1, 4))
    found = quantiles_of(edges, even, 0.0, (0.25, 0.5, 0.75))
    assert found.values.tolist() == [[1.0, 2.0, 3.0]]
    assert (found.low.tolist(), found.high.tolist()) == ([[0.0, 1.0, 2.0]], [[2.0, 3.0, 4.0]])


def test_quantiles_in_one_cell_move_to_its_ends_and_others_stay() -> None:
    walls = np.arange(5.0)
    assert _edges(np.array([0.5, 1.2, 1.4, 1.6, 3.5]), walls).tolist() == [0.5, 1.0, 2.0, 2.0, 3.5]
    assert _edges(np.array([-1.0, 0.0, 4.0, 9.0]), walls).tolist() == [0.0, 1.0, 3.0, 4.0]


def test_running_sums_that_noise_lets_fall_are_made_to_rise_halfway_between() -> None:
    falling = np.array([[[0.0, 3.0, 1.0, 2.0], [-1.0, -2.0, 4.0, 4.0]]])
    assert made_rising(falling).tolist() == [[[0, 2, 2, 2.5], [-1.5, -1.5, 4, 4]]]


def test_a_place_is_the_first_that_is_true_and_the_last_where_none_is() -> None:
    true = np.array([[[False, True, True], [False] * 3, [True] * 3, [False, False, True]]])
    assert _first(true).tolist() == [[1, 2, 0, 2]]


@pytest.mark.parametrize(
    ("excess", "place"),
    [
        *(
            ([0.0, 1.0, 2.0], 10),
            ([1.0, 1.0, 2.0], 10),
            ([-1.0, 1.0, 2.0], 12),
            ([-3.0, 1.0, 2.0], 13),
        ),
        *(([-3.0, -1.0, 1.0], 17), ([-3.0, -2.0, -1.0], 20), ([-1.0, 0.0, 0.0], 14)),
    ],
)
def test_a_quantile_is_where_the_line_between_two_edges_crosses(
    excess: list[float], place: float
) -> None:
    assert _crossing(np.array(excess), np.array([10.0, 14.0, 20.0])) == place


def test_quantiles_of_no_records_are_the_first_edge_to_the_last_digit() -> None:
    edges = np.array([[-0.8, -0.4, 0.0, 0.3, 0.6], [-1.0, -0.5, 0.0, 0.5, 1.0]])
    found = quantiles_of(edges, np.zeros((2, 4)), 0.0, (0.25, 0.5))
    assert found.values.tolist() == [[-0.8, -0.8], [-1.0, -1.0]]


def test_edges_of_fewer_trees_than_have_counts_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        quantiles_of(np.arange(5.0)[None], np.ones((2, 4)), 0.0, (0.5,))


# --- quantiles and bounds


def test_a_record_is_in_the_last_cell_that_begins_at_it_or_before() -> None:
    task = planned("quantiles", schema_of(NUMBERS[:1]), levels=2, refine=False).task
    one = 1 << 16
    state = {name: np.rint(v * one).astype(np.int64) for name, v in task.start().items()}
    records = np.array([[-one], [-one // 2], [-1], [0], [one // 2], [one]], dtype=np.int32)
    found = task.contribute(0, state, records) // one
    assert found[:4].tolist() == [1, 2, 1, 2]
    assert np.flatnonzero(found[4:]).tolist() == [0, 4, 7, 8, 12, 15]


def test_quantiles_without_noise_are_exact_to_a_cell() -> None:
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(40, 10, 3000), rng.exponential(20, 3000)])
    probabilities = (0.05, 0.3, 0.5, 0.95)
    found = exact("quantiles", schema_of(NUMBERS), X, probabilities=probabilities).results
    wanted = np.quantile(X, probabilities, axis=0).T
    ranks = [[np.mean(x < q) for q in row] for x, row in zip(X.T, found["quantiles"], strict=True)]
    np.testing.assert_allclose(ranks, [probabilities] * 2, atol=0.005)
    assert (found["low"] <= wanted).all()
    assert (wanted <= found["high"]).all()
    assert found["count"][0] == 3000
    below = np.array(
        [[np.mean(x < w) for w in walls] for x, walls in zip(X.T, found["walls"], strict=True)]
    )
    np.testing.assert_allclose(found["distribution"], below, atol=1e-3)


def test_a_second_tree_sees_what_a_public_box_is_too_wide_for() -> None:
    rng = np.random.default_rng(3)
    schema = numbers_schema([-1e4], [1e4])
    X = rng.normal(70, 5, (4000, 1))
    wanted = np.quantile(X, [0.25, 0.5, 0.75])
    off = []
    for refine in (False, True):
        plan = planned("quantiles", schema, refine=refine)
        runs = [
            run_plan(plan, {"a": [plan.grid.encode(X)]}, noise=SimulatedNoise(s)) for s in range(5)
        ]
        off.append(np.mean([np.abs(r.results["quantiles"] - wanted).mean() for r in runs]))
    assert off[1] < 0.2
    assert off[0] > 10 * off[1]


def test_records_are_clipped_to_private_bounds_and_stretched() -> None:
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.uniform(20, 30, 2000), rng.uniform(0, 200, 2000)])
    X[0] = 95.0
    result = exact("bounds", schema_of(NUMBERS), X, probabilities=[0.02, 0.98])
    low, high = result.results["lower"], result.results["upper"]
    np.testing.assert_allclose([low, high], result.results["quantiles"].T, rtol=1e-12)
    task = result.plan.task
    assert isinstance(task, Transformer)
    assert [(c.low, c.high) for c in task.output] == [(-1, 1), (-1, 1)]
    changed = task.transform(result.results, result.plan.grid.encode(X)) / result.plan.grid.one
    wanted = np.clip(2 * (X - low) / (high - low) - 1, -1, 1)
    np.testing.assert_allclose(changed, wanted, atol=2e-3)
    assert changed[0, 0] == 1.0


def test_bounds_keep_away_from_ends_that_noise_hides() -> None:
    tails = [
        planned("bounds", toy_schema(2), epsilon=epsilon).task.quantiles.probabilities[0]  # type: ignore[attr-defined]
        for epsilon in (0.05, 0.5, 50.0)
    ]
    assert 0.25 >= tails[0] > tails[1] > tails[2] == 0.01


def test_a_constant_column_or_no_record_at_all_is_no_error() -> None:
    for rows in (0, 500):
        X = np.full((rows, 2), 37.0)
        for word in ("quantiles", "bounds", "statistics", "standardise", "pca"):
            result = exact(word, schema_of(NUMBERS), X)
            unknown = {name for name, v in result.results.items() if not np.isfinite(v).all()}
            left = {"mean"} if word == "statistics" else set()  # records are still standardised
            of_nobody = {"variance", "deviation", *left} if "deviation" in result.results else set()
            if word == "pca":
                share = "explained_variance_ratio"  # of no variance at all
                of_nobody = {"explained_variance", "total_variance", share}
                assert unknown == ({share} if rows else of_nobody)
                continue
            assert unknown == (set() if rows else of_nobody), word
    found = exact("quantiles", schema_of(NUMBERS), np.full((500, 2), 37.0)).results
    np.testing.assert_allclose(found["quantiles"], 37.0, atol=0.05)


def test_bounds_of_a_box_finer_than_numbers_leave_records_on_the_grid() -> None:
    result = exact("bounds", numbers_schema([1e16], [1e16 + 2]), np.full((100, 1), 1e16))
    assert (result.results["lower"] < result.results["upper"]).all()
    task, one = result.plan.task, result.plan.grid.one
    assert isinstance(task, Transformer)
    changed = task.transform(result.results, np.array([[-one], [0], [one]], dtype=np.int32))
    assert np.abs(changed.astype(np.int64)).max() <= one


# --- statistics and standardising


@pytest.mark.parametrize("covariance", [False, True])
def test_statistics_without_noise_are_numpys(covariance: bool) -> None:
    X = load_wine().data[:, :5]
    schema = numbers_schema(X.min(axis=0) - 1, X.max(axis=0) + 1)
    result = exact("statistics", schema, X, covariance=covariance)
    found, Z = result.results, on_grid(result.plan.grid, X)
    spread = Z.std(axis=0, ddof=1)
    assert found["count"][0] == len(X)
    assert np.abs((found["mean"] - Z.mean(axis=0)) / spread).max() < 1e-3
    np.testing.assert_allclose(found["deviation"], spread, rtol=2e-3)
    np.testing.assert_allclose(found["variance"], spread**2, rtol=4e-3)
    if covariance:
        wanted = np.cov(Z.T)
        assert np.abs((found["covariance"] - wanted) / np.outer(spread, spread)).max() < 2e-3
        np.testing.assert_allclose(found["correlation"], np.corrcoef(Z.T), atol=3e-3)


def test_the_interval_of_a_deviation_holds_that_of_pandas_where_noise_is_small() -> None:
    """A divisor of n would be 0.3 % too low, and outside."""
    X = load_wine(as_frame=True).data.iloc[:, :5]
    schema = numbers_schema(X.min() - 1, X.max() + 1)
    data = {"one": [schema.grid().encode(X.to_numpy())]}
    given = {"epsilon": 1e6, "nominal_n": len(X), "noise": SimulatedNoise(1)}
    found = run_job(TASKS["statistics"], schema, data, **given).results
    wide = found["deviation_high"] - found["deviation_low"]
    assert (np.abs(found["deviation"] - X.std()) <= wide).all()  # four deviations of the noise
    assert (np.abs(found["deviation"] - X.std(ddof=0)) > wide).all()


def test_standardised_records_have_mean_zero_and_deviation_one() -> None:
    X = load_wine().data[:, :5]
    result = exact("standardise", numbers_schema(X.min(axis=0) - 1, X.max(axis=0) + 1), X)
    task = result.plan.task
    assert isinstance(task, Transformer)
    changed = task.transform(result.results, result.plan.grid.encode(X))
    Z = Grid([c.low for c in task.output], [c.high for c in task.output]).decode(
        changed / (1 << 16)
    )
    np.testing.assert_allclose(Z.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(Z.std(axis=0, ddof=1), 1, atol=0.01)


def test_variances_that_may_be_any_are_not_known() -> None:
    def found(noise: float) -> dict[str, np.ndarray]:
        sums = {
            "squares": np.array([300.0, 100.0, 50.0]),
            "spectrum": np.array([300.0, 100.0, 50.0]),
        }
        noises = {"squares_std": noise, "products_std": noise, "count_std": 1.0}
        places = np.array([0.1, 0.1, 0.2])
        return Eigenvalues(count=1000.0, places=places, longest=4.0, **sums, **noises).intervals()

    for name in ("explained_variance", "explained_variance_ratio", "total_variance"):
        assert np.isfinite(found(1.0)[name]).all()
        assert np.isnan(found(1e5)[name]).all()


def test_the_first_sentence_of_standardise_has_the_mean_and_the_deviation() -> None:
    X = load_wine(as_frame=True).data.iloc[:, :2]
    result = exact("standardise", numbers_schema(X.min() - 1, X.max() + 1), X.to_numpy())
    mean, deviation = (result.results[name][0] for name in ("mean", "deviation"))
    said = present(result).result
    assert said.startswith(f"{result.plan.columns[0]} has the mean {mean:.2f} [")
    assert f"the deviation {deviation:.4f} [" in said
    assert said.endswith("; 2 columns are standardised. Intervals [ , ]: noise and sampling.")


@pytest.mark.parametrize(("columns", "bits"), [(2, 10), (12, 8), (206, 6)])
def test_products_of_columns_lie_on_the_finest_lattice_with_norms_below_2_24(
    columns: int, bits: int
) -> None:
    task = Statistics(n_features=columns, used=tuple(range(columns)), covariance=True)
    assert task._bits == bits
    below, next_one = (products_norm_squared(columns + 1, b) for b in (bits, bits + 1))
    assert below < 1 << 48 <= next_one


def test_a_part_of_a_state_has_its_own_names_and_no_others() -> None:
    state = {"first.mean": np.zeros(1), "first.count": np.ones(1), "second.mean": np.ones(2)}
    assert part_of(state, "first.") == {"mean": state["first.mean"], "count": state["first.count"]}


# --- principal components


def test_clip_limits_the_radius_to_a_share_of_a_root_where_a_category_counts_twice() -> None:
    X = np.random.default_rng(1).uniform([0, 0, 0], [100, 200, 2.9], (500, 3)) // 1
    for clip, length in ((0.5, 1.0), (0.3, 0.6)):  # of 1 + 1 + 2 squares
        result = exact("pca", schema_of(MIXED), X, clip=clip)
        assert result.results["radius"] == int(length * (1 << 16)) / (1 << 16)


def test_the_radius_falls_where_few_records_lie_beyond_it_in_proportion_to_noise() -> None:
    rng = np.random.default_rng(2)
    near, far = rng.normal(0, 0.05, (5000, 3)), rng.uniform(-1, 1, (20, 3))
    it = planned("pca", toy_schema(3), epsilon=4.0, nominal_n=5020)
    for records, wanted in ((near, (0.1, 0.3)), (np.tile(far, (250, 1)), (0.8, 3.0))):
        grid = it.grid.encode(np.concatenate([records, far]))
        radius = run_plan(it, {"a": [grid]}, noise=SimulatedNoise(0)).results["radius"]
        assert wanted[0] < radius[0] < wanted[1]


def test_components_without_noise_are_those_of_scikit_learn() -> None:
    X = load_breast_cancer().data
    schema = numbers_schema(X.min(axis=0), X.max(axis=0))
    result = exact("pca", schema, X, n_components=4)
    found, grid = result.results, result.plan.grid
    Z = grid.normalise(X)
    wanted = Exact(4).fit(Z)
    np.testing.assert_allclose(
        np.abs(np.sum(found["components"] * wanted.components_, axis=1)), 1, atol=1e-4
    )
    cosines = np.linalg.svd(found["components"] @ wanted.components_.T)[1]
    np.testing.assert_allclose(cosines, 1, atol=1e-4)
    for name in ("explained_variance", "explained_variance_ratio"):
        np.testing.assert_allclose(found[name], getattr(wanted, f"{name}_"), rtol=5e-4)
    np.testing.assert_allclose(found["total_variance"], Z.var(axis=0, ddof=1).sum(), rtol=1e-4)
    task = result.plan.task
    assert isinstance(task, Transformer)
    changed = task.transform(found, grid.encode(X))
    scores = (Z - found["mean"]) @ found["components"].T
    wanted_steps = np.clip(scores / np.sqrt(wanted.explained_variance_[0]) / 4, -1, 1)
    np.testing.assert_allclose(changed / grid.one, wanted_steps, atol=2e-3)


def test_categories_enter_components_one_by_one_and_kept_columns_follow() -> None:
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(50, 9, 900), rng.normal(90, 9, 900), rng.integers(0, 3, 900)])
    result = exact("pca", schema_of(MIXED), X, n_components=2, keep=["weight"])
    task = result.plan.task
    assert isinstance(task, Transformer)
    assert result.results["components"].shape == (2, 4)  # age and three words
    assert [c.name for c in task.output] == ["pc1", "pc2", "weight"]
    shown = list(task.displays(result.results, result.plan.columns))
    assert shown[-1].estimate.labels[1] == ("age", "work=private", "work=state", "work=none")  # type: ignore[union-attr]


def test_the_interval_of_a_variance_is_not_of_width_zero() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
    it = planned("pca", toy_schema(2), epsilon=1e6, n_components=2)
    result = run_plan(it, {"a": [it.grid.encode(X)]}, noise=SimulatedNoise(0))
    found = result.results
    assert (found["explained_variance_low"] < found["explained_variance_high"]).all()


def test_variances_are_of_whole_records_however_short_those_of_the_components_are() -> None:
    X = load_iris().data
    schema = numbers_schema(X.min(axis=0), X.max(axis=0))
    result = exact("pca", schema, X, n_components=2, clip=0.05)
    Z, found = result.plan.grid.normalise(X), result.results
    along = np.var(Z @ found["components"].T, axis=0, ddof=1)
    np.testing.assert_allclose(found["explained_variance"], along, rtol=1e-3)
    values = Exact(2).fit(Z).explained_variance_
    assert (found["explained_variance_low"] <= values + 1e-4).all()
    assert (values <= found["explained_variance_high"] + 1e-4).all()


@pytest.mark.parametrize("wide", [1, 1 << 16])
def test_squares_along_any_components_add_up_to_squared_lengths(wide: int) -> None:
    rng = np.random.default_rng(wide)
    vectors = rng.integers(-2000, 2001, (300, 4))
    turned = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    found = squares_along(vectors, np.rint(turned[:3] * wide).astype(np.int64), 16)
    assert found.min() >= 0
    np.testing.assert_array_equal(found.sum(axis=1), np.square(vectors).sum(axis=1))
    if wide > 1:
        np.testing.assert_allclose(found[:, 0], (vectors @ turned[0]) ** 2, atol=4000)


def test_a_count_within_its_noise_leaves_every_variance_unknown() -> None:
    it = planned("pca", toy_schema(2), epsilon=0.1, n_components=2, nominal_n=50)
    X = np.random.default_rng(0).uniform(-1, 1, (3, 2))
    found = run_plan(it, {"a": [it.grid.encode(X)]}, noise=SimulatedNoise(3)).results
    assert found["count"] < found["count_half_width"]
    assert (found["explained_variance_low"] == 0).all()
    assert (found["explained_variance_high"] >= 2).all()


def test_white_coordinates_have_one_deviation_each() -> None:
    X = load_wine().data
    schema = numbers_schema(X.min(axis=0), X.max(axis=0))
    result = exact("pca", schema, X, n_components=3, whiten=True, reach=5.0)
    task = result.plan.task
    assert isinstance(task, Transformer)
    changed = task.transform(result.results, result.plan.grid.encode(X)) / (1 << 16) * 5
    np.testing.assert_allclose(changed.std(axis=0), 1, atol=0.01)


# --- pipelines


def three_groups(rows: int = 600) -> np.ndarray:
    """Groups that a box a hundred times too wide hides."""
    rng = np.random.default_rng(6)
    centres = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]])
    return centres[np.arange(rows) % 3] + rng.normal(0, 0.05, (rows, 2))


def test_a_pipeline_of_one_step_is_that_step() -> None:
    X = three_groups()
    options = {"n_clusters": 3, "rounds": 3, "public_seed": 1}
    alone = exact("fastlloyd", toy_schema(2), X, **options)
    piped = exact("pipeline", toy_schema(2), X, steps=[("fastlloyd", options)])
    assert piped.results.keys() == alone.results.keys()
    for key in alone.results:
        np.testing.assert_array_equal(piped.results[key], alone.results[key], key)
    assert piped.spent == alone.spent


def test_a_pipeline_without_noise_is_its_steps_one_after_another() -> None:
    X = three_groups()
    schema = numbers_schema([-100, -100], [100, 100])
    last = ("fastlloyd", {"n_clusters": 3, "rounds": 2, "estimate": False})
    steps = [("bounds", {"refine": False}), ("standardise", {}), last]
    piped = exact("pipeline", schema, X, steps=steps, nominal_n=2000, epsilon=50)
    task: Any = piped.plan.task
    records, columns = piped.plan.grid.encode(X), schema.public
    for i, (word, step) in enumerate(zip(("bounds.", "standardise.", ""), task.steps, strict=True)):
        plan = Plan(
            task=step,
            silos=("a",),
            grid=Grid([c.low for c in columns], [c.high for c in columns]),
            columns=tuple(c.name for c in columns),
            budget=Budget(50, 1e-6),
            nominal_n=2000,
            profile="local",
        )
        own = run_plan(plan, {"a": [records]}, noise=ZeroNoise())
        shown = (("quantiles",), ("mean", "scale"), ("centres",))[i]
        for key in shown:
            np.testing.assert_allclose(
                piped.results[word + key], own.results[key], atol=1e-3, err_msg=key
            )
        if i < 2:
            records, columns = step.transform(own.results, records), step.output


def test_private_bounds_find_the_groups_that_a_wide_box_hides() -> None:
    X = three_groups(3000)
    schema = numbers_schema([-1000, -1000], [1000, 1000])
    last = ("auto", {"n_clusters": 3})
    found = {}
    for name, steps in {"wide": [last], "bounded": [("bounds", {}), last]}.items():
        plan = planned("pipeline", schema, epsilon=2, nominal_n=3000, steps=steps)
        records = plan.grid.encode(X)
        result = run_plan(plan, {"a": [records]}, noise=SimulatedNoise(1))
        task: Any = plan.task
        centres = result.results["centres"]
        if name == "bounded":
            low, high = (result.results[f"bounds.{end}"] for end in ("lower", "upper"))
            centres = low + (centres + 1) / 2 * (high - low)
        away = ((X[:, None] - centres[None]) ** 2).sum(axis=2).min(axis=1)
        found[name] = away.mean()
        assert task.names == ("x0", "x1")
    assert found["bounded"] < 0.05 < found["wide"]


def test_shares_are_parts_of_the_squared_gdp_parameter_and_the_whole_is_the_budget() -> None:
    steps = [("bounds", {}), ("standardise", {}), ("fastlloyd", {"n_clusters": 2})]
    plan = planned("pipeline", toy_schema(2), steps=steps, shares=[0.2, 0.3, 0.5])
    result = run_plan(plan, {"a": [plan.grid.encode(three_groups())]})
    assert 0.99 < result.epsilon() <= 1.0
    weights = [
        sum(b.weight for t in range(first, last) for b in plan.task.blocks(t))
        for first, last in ((0, 2), (2, 3), (3, plan.rounds))
    ]
    np.testing.assert_allclose(weights, [0.2, 0.3, 0.5])
    words = plan.describe()
    assert "Step 1 of 3 (20% of the budget)" in words
    assert "Step 3 of 3 (50% of the budget)" in words
    assert "epsilon" in str(plan.budget)


def test_results_and_displays_of_every_step_are_there_once() -> None:
    steps = [("bounds", {}), ("bounds", {}), ("count", {})]
    result = exact("pipeline", toy_schema(2), three_groups(), steps=steps)
    assert {
        "bounds.quantiles",
        "bounds-2.quantiles",
        "count",
        "half_width",
    } <= result.results.keys()
    titles = [e.title for e in result.plan.task.displays(result.results, result.plan.columns)]
    assert titles.count("Private bounds") == 2
    assert titles[0] == "Noisy count"


def test_a_pipeline_does_what_its_last_step_can_do() -> None:
    columns = (*NUMBERS, PublicColumn("smokes", 0.0, 1.0, ("0", "1")))
    rng = np.random.default_rng(7)
    ill = rng.integers(0, 2, 800)
    X = np.column_stack([rng.normal(40 + 20 * ill, 4), rng.normal(80, 9, 800), ill])
    steps: list[Any] = [
        ["standardise", {}],
        ["pca", {"n_components": 2}],
        ["naive-bayes", {"target": "smokes"}],
    ]
    result = exact("pipeline", schema_of(columns), X, steps=steps, epsilon=8)
    task = result.plan.task
    assert isinstance(task, Classifier)
    assert not isinstance(task, Regressor)
    # isinstance looks so from Python 3.12 on, and takes a property for there whatever it raises
    assert getattr_static(task, "probabilities", None) is not None
    assert getattr_static(task, "predict", None) is None
    assert deepcopy(task) == task
    assert (task.target, task.classes) == (2, ("0", "1"))
    records = result.plan.grid.encode(X)
    told = task.probabilities(result.results, records)
    np.testing.assert_allclose(told.sum(axis=1), 1)
    assert (told.argmax(axis=1) == ill).mean() > 0.95
    clusters = planned("pipeline", toy_schema(2), steps=[("fastlloyd", {"n_clusters": 2})]).task
    assert not isinstance(clusters, Classifier | Regressor)


def test_a_report_is_in_the_units_of_the_last_step(tmp_path: Path) -> None:
    steps = [("pca", {"n_components": 1}), ("fastlloyd", {"n_clusters": 3, "rounds": 2})]
    result = exact("pipeline", toy_schema(2), three_groups(), steps=steps)
    assert result.results["centres"].shape == (3, 1)
    assert result.plan.task.last_step_columns == ("pc1",)  # type: ignore[attr-defined]
    write_report(result, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in ("pc1", "How far the centres moved", "Explained variance"):
        assert words in page


def test_a_budget_too_small_is_told_with_what_would_fit() -> None:
    steps = [("standardise", {}), ("pca", {}), ("fastlloyd", {"n_clusters": 2})]
    with pytest.raises(
        PlanError, match=r"budget too small for step 1, 'standardise'.*'fastlloyd' alone"
    ) as caught:
        planned("pipeline", toy_schema(8), epsilon=0.2, nominal_n=200, steps=steps)
    words = str(caught.value)
    epsilon = 1.05 * float(words.split("epsilon >= ")[1].split(" ")[0])
    nominal_n = int(words.split("nominal_n >= ")[1].split(" ")[0])
    assert planned("pipeline", toy_schema(8), epsilon=epsilon, nominal_n=200, steps=steps)
    assert planned("pipeline", toy_schema(8), epsilon=0.2, nominal_n=nominal_n, steps=steps)
    anyway = {"steps": steps, "least_signal": 0}
    assert planned("pipeline", toy_schema(8), epsilon=0.2, nominal_n=200, **anyway)


# --- what is refused


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("quantiles", {"probabilities": [0.5, 1.0]}, "probabilities must be .* in"),
        ("quantiles", {"keep": ["height"]}, "keep must be a column of the schema"),
        ("quantiles", {"keep": ["age", "weight"]}, "at least one column of numbers"),
        ("quantiles", {"levels": 9}, "levels must be an integer in"),
        ("bounds", {"probabilities": [0.9, 0.1]}, "the lower first"),
        ("statistics", {"keep": ["age", "weight"]}, "at least one column of numbers"),
        ("standardise", {"keep": ["age", "weight"]}, "at least one column of numbers"),
        ("standardise", {"reach": 0}, "reach must be in"),
        ("pca", {"n_components": 6}, "n_components must be at most"),
        ("pca", {"keep": ["age", "weight", "work"]}, "got 1 of 0"),
        ("pca", {"clip": 0}, "clip must be > 0"),
        ("pca", {"keep": ["height"]}, "keep must be a column of the schema"),
        ("pipeline", {"steps": []}, "steps must be a sequence of 1 or more"),
        ("pipeline", {"steps": [["nothing", {}]]}, "a step must be one of .*linear"),
        (
            "pipeline",
            {"steps": [["polish", {}], ["count", {}]]},
            "one of bounds, discretise, pca, standardise before the last one, got 'polish'",
        ),
        (
            "pipeline",
            {"steps": [["count", {}], ["count", {}]]},
            "one of bounds, discretise, pca, standardise before the last one, got 'count'",
        ),
        ("pipeline", {"steps": [["lloyd", {"n_clusters": 2, "rounds": 1}]]}, "got 'lloyd'"),
        ("pipeline", {"steps": [["count", {"depth": 3}]]}, "do not fit: it has no option"),
        (
            "pipeline",
            {"steps": [["bounds", {}], ["count", {}]], "shares": [1.0]},
            "shares must have",
        ),
        ("pipeline", {"steps": [["bounds", {}], ["count", {}]], "shares": [0.7, 0.7]}, "shares"),
    ],
)
def test_what_cannot_work_is_refused_in_words(
    word: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        planned(word, schema_of(MIXED), **options)


@pytest.mark.parametrize(
    ("excess", "zero"),
    [
        *(([-1.0, 3.0, 9.0], 1.0), ([-6.0, -2.0, 2.0], 6.0), ([-3.0, 0.0, 1.0], 4.0)),
        *(([0.0, 1.0, 2.0], 0.0), ([2.0, 3.0, 4.0], 0.0), ([-3.0, -2.0, -1.0], 8.0)),
    ],
)
def test_a_line_between_edges_crosses_zero_where_it_does(excess: list[float], zero: float) -> None:
    assert _crossing(np.array(excess), np.array([0.0, 4.0, 8.0])) == zero


def test_shares_below_a_value_hold_where_cells_are_empty() -> None:
    """Sums that rise are too low before an empty run of cells, and too high after it."""
    rng, runs, n, noise = np.random.default_rng(4), 1500, 4**4, 8.0
    exact = rng.multinomial(2000, rng.dirichlet(np.full(n, 0.3)))
    task = Quantiles(n_features=1, used=(0,), levels=4, rounds=1)
    truth, held = np.append(0, np.cumsum(exact))[64:256:64] / 2000, []
    for _ in range(runs):
        levels = [exact.reshape(1, 4**k, -1).sum(axis=2) for k in range(1, 5)]
        counts = agreeing([level + rng.normal(0, noise, level.shape) for level in levels])
        state = {"counts": counts, "walls": np.linspace(-1, 1, n + 1)[None], "noise": [noise]}
        steps = {name: np.rint(np.array(v) * 2**16).astype(int) for name, v in state.items()}
        found = task.results(steps, Grid([0.0], [1.0]))
        low, high = (found[f"distribution_{end}"][0, 64:256:64] for end in ("low", "high"))
        held.append((low <= truth) & (truth <= high))
    assert 0.93 < np.mean(held) < 0.97  # the seed is fixed


def test_a_rising_function_is_the_middle_of_those_around() -> None:
    found = made_rising(np.array([[1.0, 3.0, 2.0, 5.0], [4.0, 0.0, 1.0, 1.0]]))
    assert found.tolist() == [[1.0, 2.5, 2.5, 5.0], [2.0, 2.0, 2.5, 2.5]]
