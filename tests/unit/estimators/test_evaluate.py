"""``evaluate`` and ``cluster_quality``: models of ours, of others, tables, lists and mistakes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

import cloister.app.job
from cloister import Budget, DPKMeans, DPNaiveBayes, Ledger, Schema, cluster_quality, evaluate
from cloister.core.display import Curve, Heatmap
from cloister.core.errors import (
    BudgetExceeded,
    DataError,
    DataLossWarning,
    PlanError,
    PrivacyWarning,
)
from cloister.estimators.measures import Measures
from cloister.testing import ZeroNoise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 3))
TWO = (X[:, 0] + RNG.normal(size=3000) > 0).astype(int)
THREE = np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + 0.3 * X[:, 1], (-0.5, 0.5))]
NUMBER = X @ [1.0, 0.5, 0.0] + RNG.normal(0, 0.5, 3000)
TRAIN, TEST = slice(1500), slice(1500, None)


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloister.app.job, "DiscreteNoise", ZeroNoise)


def measured(model: Any, y: Any, **options: Any) -> Measures:
    settings = {"epsilon": 1.0, "nominal_n": 1500, **options}
    return evaluate(model, X[TEST], y[TEST], **settings)


@pytest.mark.usefixtures("without_noise")
def test_a_model_of_ours_is_measured_as_it_predicts() -> None:
    for y in (TWO, THREE):
        model = DPNaiveBayes(epsilon=50.0, bounds=(-4, 4), classes=list(np.unique(y)))
        model.fit(X[TRAIN], y[TRAIN])
        found = measured(model, y)
        told = model.predict(X[TEST])
        assert found["accuracy"].value == pytest.approx((told == y[TEST]).mean())
        assert found.confusion.sum() == 1500
        assert found.plan.task.released.keys() == model.result_.results.keys()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("without_noise")
def test_a_model_of_others_is_applied_by_each_silo() -> None:
    two = LogisticRegression().fit(X[TRAIN], TWO[TRAIN])
    parts = [np.arange(1500, 2000), np.arange(2000, 3000)]
    pooled = measured(two, TWO)
    split = evaluate(
        two, [X[p] for p in parts], [TWO[p] for p in parts], epsilon=1.0, nominal_n=1500
    )
    assert split["auc"] == pooled["auc"]
    three = GaussianNB().fit(X[TRAIN], THREE[TRAIN])
    exact = (three.predict(X[TEST]) == THREE[TEST]).mean()
    assert measured(three, THREE)["accuracy"].value == pytest.approx(exact)
    line = LinearRegression().fit(X[TRAIN], NUMBER[TRAIN])
    rmse = np.sqrt(np.mean((line.predict(X[TEST]) - NUMBER[TEST]) ** 2))
    found = measured(line, NUMBER, target_bounds=(-6, 6))
    assert found["rmse"].value == pytest.approx(rmse, rel=1e-3)


def test_measures_have_intervals_pictures_and_a_table() -> None:
    found = measured(LogisticRegression().fit(X[TRAIN], TWO[TRAIN]), TWO, epsilon=4.0)
    for name in ("accuracy", "auc", "kappa"):
        assert found[name].low < found[name].value < found[name].high
    kinds = {type(display) for display in found.displays()}
    assert {Heatmap, Curve} <= kinds
    frame = found.to_frame()
    assert list(frame.columns) == ["value", "low", "high", "population_low", "population_high"]
    wide = found["auc"].population
    assert wide is not None
    assert wide[0] < found["auc"].low < found["auc"].high < wide[1]
    assert {"auc", "precision[1]"} <= set(frame.index)
    assert found.spent <= 4.0
    with pytest.raises(KeyError):
        found["precision"]  # one of each class
    with pytest.raises(KeyError):
        found["rmse"]


def test_an_evaluation_is_charged_and_refused_like_a_fit() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("held-out", cap=Budget(1.2, 1e-5))
    model = LogisticRegression().fit(X[TRAIN], TWO[TRAIN])
    measured(model, TWO, ledger=ledger, dataset="held-out")
    with pytest.raises(BudgetExceeded):
        measured(model, TWO, ledger=ledger, dataset="held-out")
    ledger.dispose()


def test_clusters_of_an_estimator_or_given_ones_are_measured() -> None:
    groups = RNG.normal([[-0.5], [0.5]], 0.05, (2, 500)).reshape(-1, 1)
    # at epsilon 5 the noise of nicv, which is 0.0025, has a deviation of 0.005: too near to 0.02
    options: dict[str, Any] = {"epsilon": 50.0, "nominal_n": 1000}
    model = DPKMeans(2, bounds=(-1, 1), random_state=0, **options).fit(groups)
    ours = cluster_quality(model, groups, **options)
    given = cluster_quality([[-0.5], [0.5]], groups, bounds=(-1, 1), **options)
    for found in (ours, given):
        assert found["silhouette"].value > 0.8
        assert found["nicv"].value < 0.02


MISTAKES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no model": ("model", {}, PlanError, "fitted classifier or regressor"),
    "no bounds": (LinearRegression().fit(X, NUMBER), {}, PlanError, "target_bounds"),
    "bins": (DummyClassifier().fit(X, TWO), {"n_bins": 5}, PlanError, "n_bins"),
    "option": (DummyClassifier().fit(X, TWO), {"bin": 5}, PlanError, "options of task"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name: str) -> None:
    model, options, kind, says = MISTAKES[name]
    with pytest.raises(kind, match=says):
        measured(model, TWO, **options)


# Whose records ------------------------------------------------------------------------------------

WARD = Schema(
    dataset="ward",
    unit="patient",
    max_rows=2,
    max_silos_per_person=2,
    columns=(
        *({"name": f"x{j}", "type": "number", "min": -9.0, "max": 9.0} for j in range(3)),
        {"name": "ill", "type": "category", "categories": ["0", "1"]},
        {"name": "score", "type": "number", "min": -20.0, "max": 20.0},
    ),
)
VISITS = pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(
    ill=TWO, score=NUMBER, patient=np.arange(3000) // 3
)


@pytest.mark.usefixtures("without_noise")
def test_a_schema_says_whose_records_a_model_of_others_is_measured_on() -> None:
    table = VISITS[TEST]
    options: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 1000, "max_loss": 0.4}
    model = LogisticRegression().fit(VISITS[["x0", "x1", "x2"]][TRAIN], TWO[TRAIN])
    kept = (np.arange(3000) % 3 < 2)[TEST]
    exact = (model.predict(table[["x0", "x1", "x2"]]) == TWO[TEST])[kept]
    by_schema = evaluate(model, table, bounds=WARD, target="ill", **options)
    features = table.drop(columns=["ill", "score"])
    by_words = evaluate(model, features, TWO[TEST], unit="patient", max_rows=2, **options)
    for found in (by_schema, by_words):
        assert (found.plan.unit, found.plan.max_rows) == ("patient", 2)
        assert found["accuracy"].value == pytest.approx(exact.mean())
        assert found.confusion.sum() == kept.sum()
    assert by_schema.plan.max_silos_per_person == 2
    line = LinearRegression().fit(VISITS[["x0", "x1", "x2"]], NUMBER)
    number = evaluate(line, table, bounds=WARD, target="score", bound=3.0, **options)
    assert number["rmse"].value == pytest.approx(
        np.sqrt(np.mean((line.predict(table[["x0", "x1", "x2"]]) - NUMBER[TEST])[kept] ** 2)),
        rel=1e-3,
    )


def test_a_unit_of_several_records_pays_for_all_of_them() -> None:
    model = LogisticRegression().fit(X[TRAIN], TWO[TRAIN])
    table = pd.DataFrame(X[TEST]).assign(patient=np.arange(1500) // 3)
    options: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 1000, "delta": 1e-6}
    alone = evaluate(model, X[TEST], TWO[TEST], **options)
    many = evaluate(model, table, TWO[TEST], unit="patient", max_rows=3, **options)
    noise = [f.plan.noise_std(f.plan.task.blocks(0)[0]) for f in (alone, many)]
    assert noise[1] == pytest.approx(3 * noise[0], rel=1e-3)


def test_a_ledger_of_patients_takes_an_evaluation_by_patient_only() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("ward", cap=Budget(9.0, 1e-5), unit="patient")
    model = LogisticRegression().fit(VISITS[["x0", "x1", "x2"]][TRAIN], TWO[TRAIN])
    options: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 1000, "ledger": ledger}
    evaluate(model, VISITS, bounds=WARD, target="ill", max_loss=0.4, **options)
    with pytest.raises(PlanError, match="unit"):
        evaluate(model, X, TWO, dataset="ward", **options)
    ledger.dispose()


@pytest.mark.usefixtures("without_noise")
def test_a_model_of_ours_is_measured_by_another_schema_of_its_columns() -> None:
    plain = Schema(
        dataset="ward", unit="row", columns=WARD.columns[:4]
    )  # fmt: skip
    by_patient = Schema(dataset="ward", unit="patient", max_rows=1, columns=WARD.columns[:4])
    model = DPNaiveBayes(epsilon=9.0, bounds=plain, target="ill", nominal_n=1500)
    model.fit(VISITS[TRAIN])
    first: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 500, "max_loss": 0.7}
    found = evaluate(model, VISITS[TEST], bounds=by_patient, **first)
    assert (found.plan.unit, found.scored_by) == ("patient", "plan")
    assert found.confusion.sum() == 500
    with pytest.raises(PlanError, match="those of the schema"):
        evaluate(model, VISITS[TEST], unit="patient", epsilon=1.0, nominal_n=500)


@pytest.mark.usefixtures("without_noise")
def test_predictions_that_are_there_already_need_no_model() -> None:
    told = [TWO[:1000], 1 - TWO[1000:1500]]
    with pytest.warns(PrivacyWarning, match="assumes it"):
        found = evaluate(
            None, told, [TWO[:1000], TWO[1000:1500]], classes=[0, 1], epsilon=1.0, nominal_n=1500
        )
    assert found["accuracy"].value == pytest.approx(2 / 3)
    assert found.scored_by == "assumed"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "schema and unit": ({"bounds": WARD, "unit": "patient", "target": "ill"}, "omit them"),
    "no such unit": ({"unit": "ward", "max_rows": 1}, "no column 'ward'"),
    "no rows": ({"unit": "patient", "target": "ill"}, "max_rows is required"),
    "plain bounds": ({"bounds": (0, 1)}, "bounds must be a Schema"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_contract_is_one_sentence(name: str) -> None:
    options, says = WRONG[name]
    model = LogisticRegression().fit(X[TRAIN], TWO[TRAIN])
    with pytest.raises((PlanError, DataError), match=says):
        evaluate(model, VISITS, TWO, epsilon=1.0, nominal_n=3000, **options)


def test_truth_must_be_there_and_as_long() -> None:
    model = LogisticRegression().fit(X[TRAIN], TWO[TRAIN])
    with pytest.raises(DataError, match="give y for a model"):
        evaluate(model, X, epsilon=1.0, nominal_n=10)
    with pytest.raises(DataError, match="one label for each"):
        evaluate(model, X, TWO[:5], epsilon=1.0, nominal_n=10)


@pytest.mark.parametrize("kind", [GradientBoostingClassifier, LinearSVC])
def test_rows_that_the_model_refuses_are_left_out_and_counted(kind: Any) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 2))
    model = kind().fit(rows, rows[:, 0] > 0)
    rows[:20, 1] = np.nan
    with pytest.warns(DataLossWarning, match="20 of 1,000 rows"):
        evaluate(model, rows, rows[:, 0] > 0, epsilon=1.0, nominal_n=1000)
    rows[:100, 1] = np.nan
    with pytest.raises(DataError, match="100 of 1,000 rows"):
        evaluate(model, rows, rows[:, 0] > 0, epsilon=1.0, nominal_n=1000)


def test_scores_that_are_given_have_the_measures_of_the_model_that_gave_them() -> None:
    model = LogisticRegression().fit(X[TRAIN], TWO[TRAIN])
    by_model = measured(model, TWO)
    options: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 1500, "classes": [0, 1]}
    risk = model.predict_proba(X[TEST])[:, 1]
    with pytest.warns(PrivacyWarning, match="not given.* the guarantee assumes it\\.$"):
        found = evaluate(scores=risk, truth=TWO[TEST], **options)
    assert found.names == by_model.names
    assert found["auc"].value == pytest.approx(by_model["auc"].value, abs=0.05)
    with pytest.warns(PrivacyWarning, match="not given"):
        halves = evaluate(
            scores=[risk[:500], risk[500:]], truth=[TWO[TEST][:500], TWO[TEST][500:]], **options
        )
    assert halves["auc"].value == pytest.approx(by_model["auc"].value, abs=0.05)
    with pytest.raises(PlanError, match="one of them"):
        evaluate(scores=risk, predictions=risk, truth=TWO[TEST], **options)
    with pytest.raises(PlanError, match="classes must have two labels"):
        evaluate(scores=risk, truth=TWO[TEST], epsilon=1.0)


def test_a_measure_of_a_class_has_the_name_of_its_row() -> None:
    found = measured(LogisticRegression().fit(X[TRAIN], TWO[TRAIN]), TWO)
    frame = found.to_frame()
    values = [found[name].value for name in frame.index]
    np.testing.assert_array_equal(values, frame["value"])
    with pytest.raises(KeyError, match=r"recall\[0\]"):
        found["recall"]


def test_the_owner_hears_of_many_clipped_residuals() -> None:
    """A small bound gives errors that are too small."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1, (1000, 2))
    y = 100 * rows[:, 0] + rng.normal(0, 10, 1000)
    given = {"target_bounds": (-60, 160), "epsilon": 1.0, "nominal_n": 1000}
    model = LinearRegression().fit(rows, y)
    said = r"[23]\d\.\d% of the residuals are clipped to the bound 10"
    with pytest.warns(DataLossWarning, match=said):
        evaluate(model, rows, y, bound=10, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataLossWarning)
        evaluate(model, rows, y, bound=60, **given)
