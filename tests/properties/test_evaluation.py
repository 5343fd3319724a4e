"""The laws of evaluation: one cell for a record, the numbers of scikit-learn, honest refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, load_wine

from cloister import Budget, Schema, make_plan, run_job
from cloister.app.in_process import run_plan
from cloister.app.release import Release
from cloister.core.display import Bars, Heatmap, Table
from cloister.core.errors import PlanError
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier, Floats, PerSiloTask, Records, Regressor
from cloister.tasks import scores
from cloister.tasks.columns import in_batches
from cloister.tasks.evaluation.classification import Evaluation
from cloister.tasks.evaluation.cluster_quality import ClusterQuality
from cloister.tasks.evaluation.regression import RegressionEvaluation
from cloister.testing import SimulatedNoise, ZeroNoise
from cloister_lab.metrics import nicv

from .cases import EVALUATIONS, ONE, WEIGHTS, Line, LinearClasses, are_in_order

SILOS = ("north", "east", "south")


DOUBLES = {"linear-double": LinearClasses, "line-double": Line}


def schema_of(*columns: dict[str, Any]) -> Schema:
    return Schema(dataset="held-out", unit="row", columns=columns)


def number(name: str, low: float = -1.0, high: float = 1.0) -> dict[str, Any]:
    return {"name": name, "type": "number", "min": low, "max": high}


SCORED = schema_of({"name": "truth", "type": "boolean"}, number("score", 0.0, 1.0))
THREE = schema_of(
    number("a"),
    number("b"),
    {"name": "kind", "type": "category", "categories": ["x", "y", "z"]},
)


def scored_table(n: int = 3000, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.3
    log_odds = rng.normal(2.0 * truth - 1.5, 1.3)
    return np.column_stack([truth, 1 / (1 + np.exp(-log_odds))])


def three_table(n: int = 900, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (n, 2))
    odds = np.exp(2 * features @ WEIGHTS.T)
    draw = rng.random((n, 1)) * odds.sum(axis=1, keepdims=True)
    return np.column_stack([features, (draw > odds.cumsum(axis=1)).sum(axis=1)])


def of_three(**options: Any) -> Plan:
    model = LinearClasses(n_features=3, target=2, classes=("x", "y", "z"))
    return make_plan(
        Evaluation,
        THREE,
        options.pop("silos", ["one"]),
        budget=Budget(1.0, 1e-6),
        nominal_n=900,
        model=model,
        released={"weights": WEIGHTS},
        **options,
    )


def release(task: Any, schema: Schema, table: Floats, **options: Any) -> Release:
    records = schema.grid(16).encode(table)
    settings = {"epsilon": 1.0, "nominal_n": len(table), "noise": ZeroNoise(), **options}
    return run_job(task, schema, {"one": [records]}, **settings)


# What a record adds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("scores of two classes", {"confusion": (1, 2, 2), "scores": (1, 1, 2, 8)}),
        ("scores on any scale", {"scores": (1, 1, 2, 8)}),  # which say no class
        ("score and prediction", {"confusion": (1, 2, 2), "scores": (1, 1, 2, 8)}),
        ("predictions of four classes", {"confusion": (2, 4, 4)}),
        ("a model of three classes", {"confusion": (1, 3, 3), "scores": (1, 3, 2, 6)}),
    ],
)
def test_tables_are_those_of_what_is_known_of_a_record(
    name: str, tables: dict[str, tuple[int, ...]]
) -> None:
    assert {block.name: block.shape for block in EVALUATIONS[name].blocks(0)} == tables


def test_a_prediction_counts_where_the_score_says_another_class() -> None:
    record = np.array([[ONE, -ONE, ONE]], dtype=np.int32)  # of class 1, as predicted; score 0
    found = EVALUATIONS["score and prediction"].contribute(0, {}, record) // ONE
    assert found.tolist() == [0, 0, 0, 1, *[0] * 8, 1, *[0] * 7]


@pytest.mark.parametrize(
    ("score", "place"),
    [(-3.0, 0), (-1.0, 0), (-0.5, 1), (0.0, 3), (0.5, 5), (0.6, 6), (1.0, 7), (3.0, 7)],
)
def test_a_score_on_any_scale_is_in_one_of_equal_bins_and_beside_the_box_in_an_outer_one(
    score: float, place: int
) -> None:
    record = np.array([[ONE, round(score * ONE), 0]], dtype=np.int32)  # a member
    found = EVALUATIONS["scores on any scale"].contribute(0, {}, record) // ONE
    assert found.tolist() == [*[0] * 8, *(int(i == place) for i in range(8))]


class Unsure(LinearClasses):
    """A classifier that knows nothing of the first of three classes."""

    def probabilities(self, results: Mapping[str, Floats], records: Records) -> Floats:
        return np.tile([np.nan, 0.4, 0.2], (len(records), 1))


def test_what_a_model_does_not_know_is_a_class_like_all_others() -> None:
    model = Unsure(n_features=3, target=2, classes=("x", "y", "z"))
    task = replace(EVALUATIONS["a model of three classes"], model=model)
    confusion = task.contribute(0, {}, np.zeros((1, 3), dtype=np.int32))[:9] // ONE
    assert confusion.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_a_record_at_its_centre_has_the_best_silhouette() -> None:
    at_centre = np.array([[ONE, -ONE, ONE]], dtype=np.int32)  # the second of three, with 5 bins
    found = EVALUATIONS["centres"].contribute(1, {"reach": np.array([ONE])}, at_centre) // ONE
    assert found[9:].tolist() == [*[0] * 9, 1, *[0] * 5]


def test_a_truth_beside_the_box_is_that_at_its_edge() -> None:
    for side in (ONE, -ONE):
        both = np.array([[side, 0, 0], [3 * side, 0, 0]], dtype=np.int32)
        edge, beside = (
            EVALUATIONS["numbers"].contribute(0, {}, one[None]).tolist() for one in both
        )
        assert edge == beside


class Silent(Line):
    """A regressor whose predictions are no numbers."""

    def predict(self, results: Mapping[str, Floats], records: Records) -> Floats:
        return np.full(len(records), np.nan)


def test_a_prediction_that_is_no_number_has_no_error() -> None:
    task = replace(EVALUATIONS["a model of numbers"], model=Silent(n_features=3, target=2))
    found = task.contribute(0, {}, np.array([[0, 0, ONE // 2]], dtype=np.int32)) / ONE
    assert found[:6].tolist() == [1, 0, -1, -1, 0.5, -0.5]


@pytest.mark.parametrize("sign", [1, -1])
def test_an_error_beyond_the_bound_counts_as_the_bound(sign: int) -> None:
    far = np.array([[-sign * ONE, sign * ONE, 0]], dtype=np.int32)
    found = EVALUATIONS["numbers"].contribute(0, {}, far) / ONE
    assert found.tolist() == [1, sign, 1, 1, -sign, 1]


def test_a_probability_is_in_the_bin_of_its_log_odds() -> None:
    chosen = np.concatenate([np.linspace(0.001, 0.999, 999), [1.0, 0.0]])
    found = scores.probability_bins(chosen, 1 - chosen, 1 << 20)
    with np.errstate(divide="ignore"):
        odds = np.log(chosen[:-2] / (1 - chosen[:-2]))
    wanted = scores.unit_bins(scores.log_odds_to_unit(odds), 1 << 20)
    assert np.abs(found[:-2] - wanted).max() <= 1  # but for rounding of logarithms
    assert (np.diff(found[:-1]) >= 0).all()
    assert found[-1] < found[0]


@pytest.mark.parametrize(
    "released",
    [{"weights": WEIGHTS[:2]}, {"weights": WEIGHTS, "count": np.ones(1)}, {"count": np.ones(1)}],
)
def test_released_numbers_have_the_names_and_shapes_of_the_models_results(
    released: dict[str, Floats],
) -> None:
    model = LinearClasses(n_features=3, target=2, classes=("x", "y", "z"))
    with pytest.raises(PlanError, match="names and shapes"):
        Evaluation(n_features=3, classes=("x", "y", "z"), truth=2, model=model, released=released)


def test_a_model_that_answers_nonsense_stops_nobody() -> None:
    model = LinearClasses(n_features=3, target=2, classes=("x", "y", "z"))
    task = Evaluation(
        n_features=3,
        classes=("x", "y", "z"),
        truth=2,
        model=model,
        released={"weights": np.full((3, 2), 1e308)},  # exp of it is infinite, the share NaN
    )
    records = np.full((5, 3), ONE, dtype=np.int32)
    with np.errstate(all="ignore"):
        words = task.contribute(0, {}, records)
    assert words[:9].sum() == 5 << 16


@given(st.integers(0, 2**32 - 1))
def test_a_record_is_told_the_same_whoever_stands_beside_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(60, 3)) * 10.0 ** rng.integers(-3, 9, (60, 3))
    table = rng.integers(-ONE, ONE, (1100, 60)).astype(np.int32)
    whole = in_batches(lambda part: part @ weights, table)
    gone = int(rng.integers(1100))
    fewer = in_batches(lambda part: part @ weights, np.delete(table, gone, axis=0))
    np.testing.assert_array_equal(fewer, np.delete(whole, gone, axis=0))


# Equal to the clear -------------------------------------------------------------------------------


def exactly(task: Evaluation, table: Floats, schema: Schema) -> dict[str, Any]:
    """Return what a task releases if nothing is added and everybody knows that."""
    records = schema.grid(16).encode(table)
    words = task.contribute(0, {}, records).astype(np.float64) / ONE
    tables, at = {}, 0
    for block in task.blocks(0):
        tables[block.name] = words[at : at + block.size].reshape(block.shape)
        at += block.size
    state = {**tables, "noise": np.zeros(len(tables))}
    grid_state = {k: np.rint(v * ONE).astype(np.int64) for k, v in state.items()}
    return dict(task.results(grid_state, schema.grid(16)))


def test_measures_of_two_classes_are_those_of_scikit_learn() -> None:
    table = scored_table()
    truth, score = table[:, 0].astype(int), table[:, 1]
    task = make_plan(
        Evaluation, SCORED, ["one"], budget=Budget(1.0, 1e-6), nominal_n=3000,
        truth="truth", score="score", n_bins=64,
    ).task  # fmt: skip
    assert isinstance(task, Evaluation)
    found = exactly(task, table, SCORED)
    told = (score > 0.5).astype(int)
    np.testing.assert_array_equal(found["confusion"], metrics.confusion_matrix(truth, told))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(truth, told)
    exact = {
        "accuracy": metrics.accuracy_score(truth, told),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, told),
        "macro_f1": metrics.f1_score(truth, told, average="macro"),
        "kappa": metrics.cohen_kappa_score(truth, told),
        "precision": precision,
        "recall": recall,
        "f1": f1,
    }
    bins = task._answers(SCORED.grid(16).encode(table))[:, 0]
    for name, value in exact.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(found[f"{name}_low"], value, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(found[f"{name}_high"], value, rtol=1e-5, err_msg=name)
    area = metrics.roc_auc_score(truth, score)
    binned = metrics.roc_auc_score(truth, bins)
    assert abs(binned - area) < found["auc_blur"]
    assert abs(found["auc"] - area) < 1e-3
    # which of both it is, a smooth score's or one of few values, the counts do not tell
    assert found["auc_low"] < min(binned, area)
    assert found["auc_high"] > max(binned, area)
    cut = np.clip(score, 1e-3, 1 - 1e-3)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, cut), abs=2e-3)
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(truth, score), abs=2e-3)
    group = np.searchsorted(np.linspace(0, 64, 11).astype(int), bins, side="right") - 1
    for g in np.unique(group):
        assert found["calibration_observed"][0, g] == pytest.approx(truth[group == g].mean())


def test_measures_of_three_classes_are_those_of_scikit_learn() -> None:
    table = three_table()
    plan = of_three(n_bins=64)
    task = plan.task
    assert isinstance(task, Evaluation)
    records = THREE.grid(16).encode(table)
    told = LinearClasses(n_features=3, target=2, classes=("x", "y", "z")).probabilities(
        {"weights": WEIGHTS}, records
    )
    found = exactly(task, table, THREE)
    truth = table[:, 2].astype(int)
    matrix = metrics.confusion_matrix(truth, told.argmax(axis=1))
    np.testing.assert_array_equal(found["confusion"], matrix)
    for head in range(3):
        area = metrics.roc_auc_score(truth == head, told[:, head])
        assert found["auc"][head] == pytest.approx(area, abs=2e-3)
    macro = metrics.roc_auc_score(truth, told, multi_class="ovr")
    assert found["macro_auc"] == pytest.approx(macro, abs=2e-3)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, told), abs=5e-3)
    assert found["kappa"] == pytest.approx(
        metrics.cohen_kappa_score(truth, told.argmax(axis=1)), rel=1e-9
    )


def test_intervals_hold_the_area_of_scores_that_few_bins_hold() -> None:
    # Draws of few records: the order of scores in a bin is that of these few.
    for seed in range(8):
        rng = np.random.default_rng(seed)
        log_odds = rng.normal(-1.0, 0.4, 1000)
        truth = rng.random(1000) < 1 / (1 + np.exp(-1.0 - 2 * log_odds))
        table = np.column_stack([truth, 1 / (1 + np.exp(-log_odds))])[
            rng.integers(1000, size=20_000)
        ]
        found = release(
            Evaluation, SCORED, table, truth="truth", score="score", epsilon=4.0
        ).results
        area = metrics.roc_auc_score(table[:, 0], table[:, 1])
        assert found["auc_low"][0] <= area <= found["auc_high"][0]
        assert found["auc_high"][0] - found["auc_low"][0] < 0.01


def test_errors_of_a_regression_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    truth = rng.uniform(-2, 2, 2000)
    told = truth + rng.normal(0.1, 0.3, 2000)
    schema = schema_of(number("y", -3.0, 3.0), number("told", -4.0, 4.0))
    result = release(
        RegressionEvaluation, schema, np.column_stack([truth, told]),
        truth="y", prediction="told", epsilon=1e4,
    )  # fmt: skip
    found = result.results
    exact = {
        "mae": metrics.mean_absolute_error(truth, told),
        "rmse": metrics.root_mean_squared_error(truth, told),
        "bias": np.mean(told - truth),
        "r2": metrics.r2_score(truth, told),
    }
    for name, value in exact.items():
        assert found[name][0] == pytest.approx(value, abs=2e-3), name


def test_errors_beyond_half_the_range_of_the_target_are_counted_in_full() -> None:
    rng = np.random.default_rng(2)
    truth = np.minimum(15 + rng.exponential(9.0, 5000), 50.0)
    predicted = np.clip(truth.mean() + rng.normal(0, 1, 5000), 15.0, 50.0)
    assert np.mean(np.abs(predicted - truth) > 35 / 2) > 0.02
    found = release(
        RegressionEvaluation, schema_of(number("y", 15.0, 50.0), number("predicted", 15.0, 50.0)),
        np.column_stack([truth, predicted]), truth="y", prediction="predicted", epsilon=1.0,
    ).results  # fmt: skip
    exact = {
        "mae": metrics.mean_absolute_error(truth, predicted),
        "rmse": metrics.root_mean_squared_error(truth, predicted),
        "bias": np.mean(predicted - truth),
        "r2": metrics.r2_score(truth, predicted),
    }
    for name, value in exact.items():
        assert found[name][0] == pytest.approx(value, abs=0.01), name
        assert found[f"{name}_low"][0] <= value <= found[f"{name}_high"][0], name


@pytest.mark.parametrize(("load", "k"), [(load_iris, 3), (load_wine, 4)])
def test_quality_of_clusters_is_that_of_the_clear(load: Any, k: int) -> None:
    X = load().data
    names = [f"x{i}" for i in range(X.shape[1])]
    low, high = X.min(axis=0) - 0.1, X.max(axis=0) + 0.1
    schema = schema_of(
        *(number(n, float(a), float(b)) for n, a, b in zip(names, low, high, strict=True))
    )
    grid = schema.grid(16)
    Z = grid.normalise(X)
    clear = KMeans(k, n_init=3, random_state=0).fit(Z)
    centres = clear.cluster_centers_
    distances = np.sort(np.sqrt(((Z[:, None] - centres) ** 2).sum(axis=2)), axis=1)
    result = release(
        ClusterQuality, schema, X, epsilon=1e3, centres=grid.centre + centres * grid.half_range
    )
    found = result.results
    assert found["nicv"][0] == pytest.approx(nicv(Z, centres), rel=1e-3)
    simplified = (1 - distances[:, 0] / distances[:, 1]).mean()
    assert found["silhouette"][0] == pytest.approx(simplified, abs=0.01)
    exact = metrics.davies_bouldin_score(Z, clear.labels_)
    assert found["davies_bouldin"][0] == pytest.approx(exact, rel=2e-3)
    np.testing.assert_allclose(found["sizes"], np.bincount(clear.labels_), atol=1e-6)


def test_clusters_that_noise_hides_may_be_as_bad_as_can_be() -> None:
    schema, centres = schema_of(number("x"), number("y")), ((-0.5, -0.5), (0.5, 0.5))
    records = {"a": [np.zeros((20, 2), dtype=np.int32)]}
    plan = make_plan(
        ClusterQuality, schema, "a", budget=Budget(0.01, 1e-6), nominal_n=20, centres=centres
    )
    found = [run_plan(plan, records, noise=SimulatedNoise(seed)).results for seed in range(20)]
    truth = 0.5  # squared distance to a centre
    covered = [r["nicv_low"][0] <= truth <= r["nicv_high"][0] for r in found]
    assert np.mean(covered) >= 0.8
    apart = [r["davies_bouldin_high"][0] - r["davies_bouldin_low"][0] for r in found]
    assert min(apart) > 0.0
    assert np.median(apart) > 1.0


# One release for each silo ------------------------------------------------------------------------


def by_silo(schema: Schema, table: Floats, **options: Any) -> tuple[Plan, dict[str, Any], Any]:
    records = schema.grid(16).encode(table)
    parts = {silo: [records[i::3]] for i, silo in enumerate(SILOS)}
    plan = make_plan(
        Evaluation, schema, SILOS, budget=Budget(1.0, 1e-6), nominal_n=len(table),
        by_silo=True, **options,
    )  # fmt: skip
    return plan, parts, records


@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_each_silo_is_measured_on_its_own_records(profile: str) -> None:
    table = scored_table(900)
    options = {"truth": "truth", "score": "score", "profile": profile}
    plan, parts, _ = by_silo(SCORED, table, **options)
    assert isinstance(plan.task, PerSiloTask)
    found = run_plan(plan, parts, noise=ZeroNoise()).results
    for i in range(3):
        told = table[i::3, 1] > 0.5
        assert found["silo_accuracy"][i] == pytest.approx((told == table[i::3, 0]).mean())
    assert found["accuracy"][0] == pytest.approx(((table[:, 1] > 0.5) == table[:, 0]).mean())


def test_a_breakdown_costs_no_more_and_a_record_is_in_one_layer() -> None:
    plan, _, records = by_silo(SCORED, scored_table(30), truth="truth", score="score")
    pooled = make_plan(
        Evaluation, SCORED, SILOS, budget=Budget(1.0, 1e-6), nominal_n=30,
        truth="truth", score="score",
    )  # fmt: skip
    task = plan.task
    assert isinstance(task, Evaluation)
    for own, one in zip(task.blocks(0), pooled.task.blocks(0), strict=True):
        assert own.l2_squared == one.l2_squared
        assert plan.noise_scale(own) == pooled.noise_scale(one)
        assert own.size == 3 * one.size
    total = task.contribute(0, {}, records)
    for i, silo in enumerate(SILOS):
        moved = task.to_silo_layer(0, silo, total)
        assert moved.sum() == total.sum()
        matrix = moved[:12].reshape(3, 2, 2)
        assert [bool(layer.any()) for layer in matrix] == [j == i for j in range(3)]


def test_a_silo_declines_a_breakdown_unless_its_owner_allows_it() -> None:
    plan, _, _ = by_silo(SCORED, scored_table(30), truth="truth", score="score")
    allowed = Policy(
        PolicySettings(tasks=("evaluation",), profiles=("group",), max_epsilon_per_job=1.0)
    )
    [said] = list(allowed._what(plan))
    assert "breakdown by silo" in said
    asked = Policy(allowed.rules.model_copy(update={"allow_breakdown": True}))
    assert list(asked._what(plan)) == []
    pooled = replace(plan, task=replace(plan.task, silos=()), layout=None)
    assert list(allowed._what(pooled)) == []


# Plans --------------------------------------------------------------------------------------------


def test_a_plan_with_a_model_in_it_survives_its_text() -> None:
    plan = of_three(silos=SILOS, by_silo=True)
    again = Plan.from_dict(json.loads(plan.canonical_json()), {"evaluation": Evaluation, **DOUBLES})
    assert again == plan
    assert again.digest == plan.digest
    table = three_table(60)
    records = THREE.grid(16).encode(table)
    words = [p.task.contribute(0, {}, records) for p in (plan, again)]
    np.testing.assert_array_equal(*words)


def test_the_doubles_are_what_they_stand_for() -> None:
    assert isinstance(LinearClasses(n_features=3, target=2, classes=("x", "y", "z")), Classifier)
    assert isinstance(Line(n_features=3, target=2), Regressor)


LINE = Line(n_features=3, target=1)
REFUSED: dict[str, tuple[Any, Schema, dict[str, Any], str]] = {
    "no truth": (Evaluation, SCORED, {"score": "score"}, "truth must be a column"),
    "truth is a number": (Evaluation, SCORED, {"truth": "score", "score": "score"}, "categories"),
    "truth is not there": (Evaluation, SCORED, {"truth": "no", "score": "score"}, "truth must be"),
    "nothing told": (Evaluation, SCORED, {"truth": "truth"}, "either a model"),
    "score of three": (Evaluation, THREE, {"truth": "kind", "score": "a"}, "for two classes"),
    "odd bins": (Evaluation, SCORED, {"truth": "truth", "score": "score", "n_bins": 7}, "even"),
    "a regressor": (Evaluation, THREE, {"model": LINE, "released": {"w": 1}}, "a classifier"),
    "untrained": (RegressionEvaluation, THREE, {"model": LINE}, "released must be"),
    "not finite": (
        RegressionEvaluation,
        THREE,
        {"model": LINE, "released": {"w": np.nan}},
        "known numbers",
    ),
    "bound": (RegressionEvaluation, THREE, {"truth": "a", "prediction": "b", "bound": 0}, "bound"),
    "one centre": (ClusterQuality, SCORED, {"centres": [[0, 0]]}, "at least 2"),
    "centres of others": (ClusterQuality, SCORED, {"centres": [[0], [1]]}, "2 columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused_before_anything_is_spent(name: str) -> None:
    task, schema, options, says = REFUSED[name]
    with pytest.raises(PlanError, match=says):
        make_plan(task, schema, ["one"], budget=Budget(1.0, 1e-6), nominal_n=100, **options)


def test_bins_grow_with_the_records_and_depend_on_the_plan_alone() -> None:
    numbers = [scores.number_of_bins(4.0 / n) for n in (10, 300, 3000, 30_000, 10**7)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 12
    assert numbers[-1] == 256
    assert all(b % 2 == 0 for b in numbers)


# Pictures -----------------------------------------------------------------------------------------


def test_a_report_draws_errors_of_a_regression_with_both_ends_of_their_intervals() -> None:
    released = {
        **{"mae": 2.0, "mae_low": 1.5, "mae_high": 2.25, "rmse": 3.0, "rmse_low": 2.5},
        **{"rmse_high": 4.0, "bias": -1.0, "bias_low": -1.5, "bias_high": 0.5, "r2": 0.5},
        **{"r2_low": 0.25, "r2_high": 0.75, "bias_half_width": 1.0},
    }
    task = EVALUATIONS["numbers"]
    shown = task.displays({k: np.array([v]) for k, v in released.items()}, ("truth", "told"))
    (drawn,) = (display for display in shown if isinstance(display, Bars))
    assert drawn.estimate.values.tolist() == [2.0, 3.0, -1.0]
    assert drawn.estimate.low.tolist() == [1.5, 2.5, -1.5]
    assert drawn.estimate.high.tolist() == [2.25, 4.0, 0.5]


def test_a_report_shows_measures_matrix_curves_and_silos() -> None:
    plan, parts, _ = by_silo(SCORED, scored_table(900), truth="truth", score="score")
    result = run_plan(plan, parts, noise=SimulatedNoise(0))
    shown = plan.task.displays(result.results, plan.columns)
    titles = [display.title for display in shown]
    assert titles == [
        "Quality of the model",
        "Confusion matrix",
        "Each class",
        "ROC curve of true",
        "Calibration of true",
        "Each silo",
    ]
    assert isinstance(shown[0], Table)
    assert isinstance(shown[1], Heatmap)
    for result_of in (of_three(), plan):
        start = {k: np.zeros_like(v) for k, v in result_of.task.start().items()}
        state = {k: v.astype(np.int64) for k, v in start.items()}
        results = result_of.task.results(state, result_of.grid)
        assert are_in_order(results)
