"""The forest: sums against plain counting, over silos, with noise, its model, and its estimator."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator

from cloister import DPRandomForestClassifier, Ledger, PlanError, Schema
from cloister.app.job import make_plan, run_job
from cloister.app.release import Release
from cloister.core.errors import BudgetExceeded
from cloister.data.schema import Column
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier
from cloister.tasks import TASKS
from cloister.tasks.supervised.forest import _SPLIT_VARIANCE, _STEP_VARIANCE, RandomForest
from cloister.testing import UNMET_CHECKS, SimulatedNoise, ZeroNoise, zero_noise

KINDS = ["random", "boosted"]
SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="a", type="number", min=-1, max=1),
        Column(name="b", type="number", min=0, max=10),
        Column(name="work", type="category", categories=("w", "x", "y", "z"), min=0, max=3),
        Column(name="ill", type="category", categories=("no", "mild", "bad"), min=0, max=2),
    ),
)


def table(n: int = 600, seed: int = 0) -> np.ndarray:
    """Return grid records whose class depends on all columns together."""
    rng = np.random.default_rng(seed)
    a, b, work = rng.uniform(-1, 1, n), rng.uniform(0, 10, n), rng.integers(0, 4, n)
    score = a * (b - 5) / 2 + (work == 2) + rng.normal(0, 0.3, n)
    ill = np.digitize(score, [0.0, 0.8])
    return SCHEMA.grid().encode(np.column_stack([a, b, work, ill]).astype(float))


def run(records: np.ndarray, silos: int = 1, noise: Any = None, **options: Any) -> Release:
    parts = {f"silo-{i}": [records[i::silos]] for i in range(silos)}
    chosen: dict[str, Any] = {"epsilon": 1.0, "target": "ill", "n_trees": 6, "depth": 3, **options}
    return run_job(
        RandomForest, SCHEMA, parts, nominal_n=len(records), noise=noise or ZeroNoise(), **chosen
    )


def task_of(result: Release) -> RandomForest:
    task = result.plan.task
    assert isinstance(task, RandomForest)
    return task


def designed(nominal_n: int = 1000, epsilon: float = 1.0, **options: Any) -> RandomForest:
    plan = make_plan(
        RandomForest,
        SCHEMA,
        ["a"],
        budget=Budget(epsilon, 1e-6),
        nominal_n=nominal_n,
        **{"target": "ill", **options},
    )
    assert isinstance(plan.task, RandomForest)
    return plan.task


# --- without noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("silos", [2, 5])
def test_silos_together_release_what_the_pooled_records_would(kind: str, silos: int) -> None:
    records = table(203)
    pooled, parted = run(records, kind=kind), run(records, silos, kind=kind)
    for left, right in zip(pooled.history, parted.history, strict=True):
        assert all(np.array_equal(left[name], right[name]) for name in left)
    predicted, again = (task_of(r).probabilities(r.results, records) for r in (pooled, parted))
    assert np.array_equal(predicted, again)


def test_leaves_of_random_trees_count_the_classes() -> None:
    records = table()
    result = run(records, kind="random", columns_per_tree=1, bins=8)
    task = task_of(result)
    one = 1 << 16
    codes = {
        0: np.clip((records[:, 0].astype(int) + one) // (one // 4), 0, 7),
        1: np.clip((records[:, 1].astype(int) + one) // (one // 4), 0, 7),
        2: np.rint((records[:, 2] + one) / (2 * one) * 3).astype(int),
    }
    labels = np.rint((records[:, 3] + one) / one).astype(int)
    for tree, leaves in zip(task.trees, result.results["leaves"], strict=True):
        leaf = tree.leaf[codes[tree.columns[0]]]
        expected = np.zeros((8, 3))
        np.add.at(expected, (leaf, labels), 1)
        assert np.array_equal(leaves, expected)
    assert np.allclose(result.results["class_sizes"], np.bincount(labels))


def test_leaves_of_boosted_trees_sum_gradients_of_the_forest_before_them() -> None:
    records = table()
    result = run(records, kind="boosted", n_trees=3)
    task = task_of(result)
    labels = np.rint((records[:, 3] + (1 << 16)) / (1 << 16)).astype(int)
    one_hot = np.eye(3)[labels]
    for t, before in enumerate(result.history[:-1]):
        # the forest of the rounds before: later trees are still zero, and so add nothing
        shares = task.probabilities(before, records) if t else np.full((600, 3), 1 / 3)
        leaves = result.results["leaves"][t]
        assert np.allclose(leaves[:, :3].sum(axis=0), (one_hot - shares).sum(axis=0), atol=0.05)
        assert np.isclose(leaves[:, 3].sum(), (1 - (shares**2).sum(axis=1)).sum(), atol=0.05)
    assert np.allclose(result.results["class_sizes"], np.bincount(labels), atol=0.05)


def test_a_gradient_that_breaks_the_bound_is_none() -> None:
    """No probabilities make one; the bound is a fact about integers all the same."""
    result = run(table(), kind="boosted", n_trees=1)
    shares = np.array([[0.5, -0.05, np.nan], [0.25, 1.2, 0.5], [0.25, -0.15, 0.5]])
    found = task_of(result)._gradients(shares, np.zeros(3, dtype=np.int64)) / (1 << 16)
    assert found[:, 0].tolist() == [0.5, -0.25, -0.25, 1 - 0.375]
    assert (1.05**2 + 1.2**2 + 0.15**2) > 2
    assert not found[:, 1:].any()


def test_a_newton_step_is_shrunk_by_its_spread_and_by_noise_by_hand() -> None:
    """Of 3 classes: a slope of 4 / 2, and a spread of 2**2 (1 - 1/3) + 4 / 3, which is 4."""
    task = task_of(run(table(), kind="boosted", n_trees=1))
    leaves = np.zeros((1, len(task._reached[0]), 4))
    leaves[0, 0] = [4.0, 1.0, -2.0, 4.0]  # less their mean: 3, 0, -3
    found = task._steps(leaves, 2.0)[0]
    step = task.rate * task._reached[0, 0] * 2 * _STEP_VARIANCE * 3 / (4 * _STEP_VARIANCE + 4)
    np.testing.assert_allclose(found[0], [step, 0, -step], atol=1e-12)
    assert not found[1:].any()


def test_shares_of_a_leaf_are_drawn_to_those_of_all_by_spread_and_noise_by_hand() -> None:
    """The draw is the part of (I - s 1') x that is no noise, as a linear guess has it."""
    task = task_of(run(table(), kind="random", n_trees=1, depth=1))
    leaves, noise = np.array([[[40.0, 10.0, 0.0], [10.0, 20.0, 20.0]]]), 5.0
    prior = np.array([0.5, 0.3, 0.2])
    drawn = np.eye(3) - np.outer(prior, np.ones(3))
    of_noise = noise**2 * np.trace(drawn @ drawn.T) / 3
    of_chance = 50 * (0.5 * 0.5 + 0.3 * 0.7 + 0.2 * 0.8) / 3
    of_change = 50**2 * _SPLIT_VARIANCE
    gain = of_change / (of_change + of_noise + of_chance) / 50
    shares = prior + gain * leaves[0] @ drawn.T
    moved = np.log(shares / prior) * task._part
    np.testing.assert_allclose(task._log_odds(leaves, noise)[0], moved + np.log(prior), rtol=1e-12)


def test_shares_of_a_tree_do_not_depend_on_how_another_one_parts_the_records() -> None:
    task = designed(kind="random", n_trees=2, depth=2)
    assert task._reached.all()
    counts = np.random.default_rng(0).integers(0, 99, (4, 3)).astype(float)
    sizes = counts.sum(axis=0)
    mixed = np.outer([1.0, 0.0, 0.0, 0.0], sizes)  # all records in one leaf
    apart = np.diag(np.append(sizes, 0.0))[:, :3]  # a leaf for each class
    found = [task._log_odds(np.stack([counts, other]), 2.0) for other in (mixed, apart)]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    assert not np.allclose(found[0][1], found[1][1])


def test_a_class_has_at_least_a_hundredth_of_one_record_where_there_is_hardly_one() -> None:
    task = task_of(run(table(), kind="random", n_trees=1, depth=1))
    for root in ([0.8, 0.0102, 0.15], [0.8, 0.0098, 0.15]):
        leaves = np.array([[root, np.zeros(3)]])
        shares = np.maximum(root, 0.01)
        expected = np.log(shares / shares.sum())
        np.testing.assert_allclose(task._log_odds(leaves, 1e9)[0, 0], expected, atol=1e-9)


def test_a_random_tree_gives_its_part_of_evidence_for_each_look_at_a_column() -> None:
    """Of three columns; and never more than the root of all trees."""
    for trees in (2, 16):
        task = designed(n_trees=trees, depth=3)
        looks = sum(len(tree.columns) for tree in task.trees)
        assert task._part == pytest.approx(min(3 / looks, 1 / np.sqrt(trees)))
    assert task._part < 0.25


@pytest.mark.parametrize("kind", KINDS)
def test_a_forest_learns_what_no_single_column_tells(kind: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    model = zero_noise(DPRandomForestClassifier)(
        epsilon=8.0,
        bounds=(-1, 1),
        classes=[0, 1],
        nominal_n=4000,
        kind=kind,
        max_features=2,
        max_depth=5,
        random_state=0,
    )
    assert model.fit(X, y).score(X, y) > 0.85
    single = model.set_params(max_features=1)
    assert single.fit(X, y).score(X, y) < 0.65


def test_empty_silos_one_class_and_no_records_raise_nothing() -> None:
    for kind in KINDS:
        for records in (table(0), table(1), table(300)[table(300)[:, 3] < 0]):
            parts = {"a": [records], "b": [records[:0]]}
            result = run_job(
                RandomForest,
                SCHEMA,
                parts,
                epsilon=1.0,
                nominal_n=10,
                target="ill",
                kind=kind,
                n_trees=3,
                noise=SimulatedNoise(0),
            )
            shares = task_of(result).probabilities(result.results, table(20))
            assert np.isfinite(shares).all()
            assert np.allclose(shares.sum(axis=1), 1)


# --- with noise


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_leaves_and_class_sizes_cover(kind: str) -> None:
    records = table(400)
    labels = np.rint((records[:, 3] + (1 << 16)) / (1 << 16)).astype(int)
    leaf_hits, size_hits = [], []
    for seed in range(60):
        result = run(records, noise=SimulatedNoise(seed), kind=kind, n_trees=4)
        task, found = task_of(result), result.results
        for t in range(task.rounds):
            state = result.history[t]
            asked = {
                "leaves": round_to_grid(state["leaves"], 16),
                "noise": round_to_grid(state["leaf_half_width"][:1] / 1.96, 16),
            }
            exact = task.contribute(t, asked, records) / 2**16
            width = found["leaves"].shape[-1]
            if kind == "boosted":
                exact = exact.reshape(8, width) / np.array([1, 1, 1, task._curvature])
                seen = found["leaves"][t]
            else:
                exact, seen = exact.reshape(4, 8, width), found["leaves"]
            leaf_hits.append(np.abs(seen - exact) <= found["leaf_half_width"])
        error = np.abs(found["class_sizes"] - np.bincount(labels))
        size_hits.append(error <= found["class_half_width"])
    assert 0.93 < np.mean([hit.mean() for hit in leaf_hits]) < 0.97
    assert 0.88 < np.mean(size_hits) <= 1.0  # 180 of them: 4 deviations
    if kind == "random":
        assert np.mean(size_hits) < 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_forecast_is_what_comes(kind: str) -> None:
    result = run(table(100), noise=SimulatedNoise(1), kind=kind)
    plan, task = result.plan, task_of(result)
    block = task.blocks(task.rounds - 1)[0]
    forecast = task.forecast(plan.noise_std(block), 100, plan.grid)
    assert set(forecast) == {"leaf_half_width", "class_half_width"}
    for name, value in forecast.items():
        assert np.allclose(value, result.results[name], rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_alone_is_not_told_as_a_model(kind: str) -> None:
    """With far too little budget a forest says what it knows: next to nothing."""
    records = table(300)
    spread = []
    for seed in range(5):
        result = run(records, noise=SimulatedNoise(seed), kind=kind, epsilon=0.01)
        spread.append(task_of(result).probabilities(result.results, records).std(axis=0).mean())
    assert np.mean(spread) < 0.1


def test_more_budget_tells_more_on_real_records() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    train, test, known, truth = train_test_split(X, y, random_state=0, stratify=y)
    bounds = (np.zeros(30), np.ceil(np.abs(X).max(axis=0) * 10) / 10)

    class Simulated(DPRandomForestClassifier):
        _new_noise = staticmethod(lambda: SimulatedNoise(3))

    def auc(epsilon: float) -> float:
        model = Simulated(
            epsilon=epsilon, bounds=bounds, classes=[0, 1], nominal_n=400, random_state=0
        )
        return float(roc_auc_score(truth, model.fit(train, known).predict_proba(test)[:, 1]))

    assert auc(4.0) > 0.97
    assert auc(1.0) > 0.93
    assert auc(0.01) < auc(4.0)


# --- weights and costs


def test_class_weights_multiply_the_odds_and_cost_no_privacy() -> None:
    records = table()
    plain = run(records, kind="random")
    weighted = run(records, kind="random", class_weight={"bad": 5.0})
    first = task_of(plain).probabilities(plain.results, records)
    second = task_of(weighted).probabilities(weighted.results, records)
    odds = (second[:, 2] / second[:, 0]) / (first[:, 2] / first[:, 0])
    assert np.allclose(odds, 5)
    assert np.array_equal(plain.results["leaves"], weighted.results["leaves"])
    assert plain.epsilon() == weighted.epsilon()
    balanced = run(records, kind="random", class_weight="balanced")
    third = task_of(balanced).probabilities(balanced.results, records)
    sizes = plain.results["class_sizes"]
    odds = (third[:, 2] / third[:, 0]) / (first[:, 2] / first[:, 0])
    assert np.allclose(odds, sizes[0] / sizes[2])


def test_costs_choose_the_class_of_least_expected_cost() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 2))
    y = np.where(X[:, 0] + rng.normal(0, 0.5, 800) > 0.6, "bad", "good")
    model = zero_noise(DPRandomForestClassifier)(
        epsilon=4.0, bounds=(-1, 1), classes=["bad", "good"], nominal_n=800, random_state=0
    ).fit(X, y)
    careless = (model.predict(X) == "bad").mean()
    model.costs = [[0, 5], [1, 0]]  # to tell a bad one good costs five times as much
    careful = (model.predict(X) == "bad").mean()
    assert careful > careless + 0.1
    shares = model.predict_proba(X)
    assert np.array_equal(model.predict(X) == "bad", shares[:, 1] < 5 * shares[:, 0])


# --- the plan


def test_the_plan_chooses_the_kind_by_records_over_noise() -> None:
    assert designed(1000).kind == "random"
    assert designed(1000).rounds == 1
    assert designed(50000).kind == "boosted"
    assert designed(50000).rounds == 40
    assert designed(1000, epsilon=0.05).n_trees < designed(1000).n_trees
    assert designed(1000).depth > designed(100).depth
    assert designed(50000, kind="random").kind == "random"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"target": "age"}, "target must be a column"),
        ({"target": "a"}, "must be a column of categories"),
        ({"kind": "deep"}, "kind must be one of"),
        ({"n_trees": 0}, "n_trees must be an integer in [1, 1000]"),
        ({"depth": 11}, "depth must be an integer in [1, 10]"),
        ({"bins": 1}, "bins must be an integer"),
        ({"columns_per_tree": 0}, "columns_per_tree must be"),
        ({"rate": 0.0}, "rate must be in (0, 1]"),
        ({"class_weight": [1.0]}, "class_weight must be 3 numbers"),
        ({"class_weight": [1.0, 0.0, 1.0]}, "a number > 0"),
        ({"class_weight": {"worse": 2.0}}, "class_weight must name classes"),
        ({"class_weight": "heavy"}, "class_weight must be 'balanced'"),
        ({"kind": "random", "n_trees": 1000, "depth": 10}, "at most 1048576 sums"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_spent(
    options: dict[str, Any], rule: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(rule)):
        designed(**options)


def test_a_target_alone_is_refused() -> None:
    alone = Schema(dataset="t", unit="row", columns=SCHEMA.columns[3:])
    with pytest.raises(PlanError, match="other than the target"):
        make_plan(RandomForest, alone, ["a"], budget=Budget(1, 1e-6), nominal_n=100, target="ill")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_and_its_model_survive_json(kind: str) -> None:
    result = run(table(100), kind=kind, class_weight=[1.0, 2.0, 3.0])
    plan = Plan.from_dict(json.loads(json.dumps(result.plan.to_dict())), TASKS)
    assert plan.task == result.plan.task
    assert plan.digest == result.plan.digest
    again = Release.from_dict(json.loads(json.dumps(result.to_dict())))
    records = table(50)
    predicted, reread = (task_of(r).probabilities(r.results, records) for r in (result, again))
    assert np.array_equal(predicted, reread)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_classifier_that_does_not_look_at_the_target(kind: str) -> None:
    result = run(table(), kind=kind)
    assert isinstance(result.plan.task, Classifier)
    records = table(50)
    blind = records.copy()
    blind[:, 3] = 0
    first, second = (task_of(result).probabilities(result.results, r) for r in (records, blind))
    assert np.array_equal(first, second)
    assert first.shape == (50, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_importance_finds_the_columns_that_tell(kind: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 5))
    y = (X[:, 3] > 0.2).astype(int)
    model = zero_noise(DPRandomForestClassifier)(
        epsilon=4.0,
        bounds=(-1, 1),
        classes=[0, 1],
        nominal_n=2000,
        kind=kind,
        max_features=1,
        random_state=0,
    ).fit(X, y)
    assert model.feature_importances_.shape == (5,)
    assert np.isclose(model.feature_importances_.sum(), 1)
    assert model.feature_importances_[3] > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_shows_classes_and_importance(kind: str) -> None:
    result = run(table(), kind=kind)
    classes, importance = task_of(result).displays(result.results, SCHEMA.names)
    assert [row[0] for row in classes.rows] == ["no", "mild", "bad"]
    assert set(importance.names) == {"a", "b", "work"}
    assert np.isnan(importance.estimate.low).all()  # the numbers are noisy, so none is exact
    shares = importance.estimate.values.tolist()
    assert sorted(shares, reverse=True) == shares
    assert ("one sum" in task_of(result).describe()) == (kind == "random")


# --- the estimator

# Each compares two fits, which draw two noises; the zero-noise double passes them.
COMPARES_TWO_FITS = dict.fromkeys(
    (
        "check_fit_idempotent",
        "check_classifier_data_not_an_array",
        "check_supervised_y_2d",
        "check_supervised_y_no_nan",
    ),
    "two fits draw two noises",
)
OPTIONS: dict[str, Any] = {
    "epsilon": 1e6,
    "bounds": (-100, 100),
    "classes": "in_y",
    "nominal_n": 100,
    "random_state": 0,
}


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass_but_for_those_that_compare_two_fits() -> None:
    check_estimator(
        DPRandomForestClassifier(n_estimators=20, **OPTIONS),
        expected_failed_checks={**COMPARES_TWO_FITS, **UNMET_CHECKS},
        on_skip=None,
        on_fail="raise",
    )


# Boosted trees pass the test above, which has the checks of one fit.
@pytest.mark.parametrize("kind", ["random", pytest.param("boosted", marks=pytest.mark.nightly)])
def test_without_noise_all_of_scikit_learns_checks_pass(kind: str) -> None:
    double = zero_noise(DPRandomForestClassifier)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(
            double(**{**OPTIONS, "bounds": (-20, 20), "kind": kind, "n_estimators": 20}),
            expected_failed_checks=dict(UNMET_CHECKS),
            on_skip=None,
        )


def test_a_schema_names_columns_categories_and_the_target(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    work = rng.choice(["w", "x", "y", "z"], 500)
    frame = pd.DataFrame(
        {
            "a": rng.uniform(-1, 1, 500),
            "b": rng.uniform(0, 10, 500),
            "work": work,
            "ill": np.where(work == "x", "bad", "no"),
        }
    )
    model = DPRandomForestClassifier(
        epsilon=8.0, bounds=SCHEMA, target="ill", nominal_n=500, random_state=0
    ).fit([frame[:250], frame[250:]])
    assert model.plan_.profile == "group"
    assert model.classes_.tolist() == ["no", "mild", "bad"]
    assert (model.predict(frame.drop(columns="ill")) == frame["ill"]).mean() > 0.9
    assert np.abs(model.class_count_[1]) < 3 * model.class_count_half_width_[1]
    model.save(tmp_path / "model.json")
    assert Release.load(tmp_path / "model.json").plan.task == model.plan_.task


def test_a_ledger_is_charged_and_refuses(tmp_path: Path) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (100, 2))
    y = (X[:, 0] > 0).astype(int)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("ward", cap=Budget(1.1, 1e-6))
    model = DPRandomForestClassifier(
        epsilon=1.0,
        bounds=(-1, 1),
        classes=[0, 1],
        nominal_n=100,
        ledger=ledger,
        dataset="ward",
    )
    assert model.fit(X, y).spent_ <= 1.0
    with pytest.raises(BudgetExceeded):
        model.fit(X, y)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"costs": [[0, 1]]}, "costs must be 2 rows of 2"),
        ({"costs": [[0, np.nan], [1, 0]]}, "costs must be 2 rows of 2"),
        ({"class_weight": {7: 2.0}}, "class_weight must name classes"),
        ({"classes": None}, "classes must be the public list"),
        ({"kind": "deep"}, "kind must be one of"),
    ],
)
def test_a_wrong_parameter_is_refused(options: dict[str, Any], rule: str) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    model = DPRandomForestClassifier(
        **{"epsilon": 1.0, "bounds": (-1, 1), "classes": [0, 1], "nominal_n": 20, **options}
    )
    with pytest.raises(PlanError, match=re.escape(rule)):
        model.fit(X, (X[:, 0] > 0).astype(int))
    assert not hasattr(model, "result_")
