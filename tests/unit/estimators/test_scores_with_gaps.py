"""A score leaves out the records that a fit leaves out, and says how many."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

from cloister import (
    DataError,
    DataLossWarning,
    DPGeneralizedLinearRegressor,
    DPKMeans,
    DPLinearRegression,
    DPLogisticRegression,
    DPNaiveBayes,
    DPRandomForestClassifier,
    PlanError,
    Schema,
    evaluate,
)

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(600, 3)).clip(-4, 4), columns=["a", "b", "c"])
LABELS = (FRAME["a"] > 0).astype(int)
GAPS = FRAME.mask(pd.DataFrame({"a": [False] * 600, "b": np.arange(600) % 50 == 0, "c": False}))
PLAIN: dict[str, Any] = {"epsilon": 1e6, "bounds": (-4, 4), "nominal_n": 400}
SUPERVISED = [
    DPLogisticRegression(classes=[0, 1], **PLAIN),
    DPNaiveBayes(classes=[0, 1], **PLAIN),
    DPRandomForestClassifier(classes=[0, 1], n_estimators=2, **PLAIN),
    DPLinearRegression(target_bounds=(0, 1), **PLAIN),
]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("model", SUPERVISED, ids=lambda model: type(model).__name__)
def test_a_cross_validation_of_a_table_with_gaps_has_scores(model: Any) -> None:
    assert np.isfinite(cross_val_score(model, GAPS, LABELS, cv=2)).all()


def test_a_search_over_an_array_with_gaps_has_scores() -> None:
    search = GridSearchCV(SUPERVISED[0], {"epsilon": [1e5, 1e6]}, cv=2)
    assert np.isfinite(search.fit(GAPS.to_numpy(), LABELS.to_numpy()).best_score_)


def test_a_score_is_that_of_the_complete_rows_and_warns_of_the_others() -> None:
    complete = GAPS.notna().all(axis=1)
    for model in SUPERVISED:
        fitted = model.fit(GAPS, LABELS)
        with pytest.warns(DataLossWarning, match=r"12 of 600 rows .* a cell of 'b' is missing"):
            found = fitted.score(GAPS, LABELS)
        assert found == fitted.score(GAPS[complete], LABELS[complete])
        weights = np.where(complete, RNG.random(600), 7.0)
        assert fitted.score(GAPS, LABELS, sample_weight=weights) == pytest.approx(
            fitted.score(GAPS[complete], LABELS[complete], sample_weight=weights[complete])
        )
    groups = DPKMeans(2, **PLAIN).fit(GAPS)
    with pytest.warns(DataLossWarning, match="12 of 600 rows"):
        assert groups.score(GAPS) == groups.score(GAPS[complete])


@pytest.mark.parametrize("table", [polars.DataFrame, pyarrow.Table.from_pandas, np.asarray])
def test_tables_of_other_libraries_are_scored_alike(table: Any) -> None:
    model = SUPERVISED[0].fit(GAPS, LABELS)
    with pytest.warns(DataLossWarning, match="12 of 600 rows"):
        assert model.score(table(GAPS), LABELS) == model.score(GAPS, LABELS)


def test_a_missing_label_is_left_out_and_no_record_at_all_is_an_error() -> None:
    model = SUPERVISED[0].fit(FRAME, LABELS)
    some = LABELS.astype(object).mask(np.arange(600) < 9)
    with pytest.warns(DataLossWarning, match=r"9 of 600 rows .* a cell of the target is missing"):
        model.score(FRAME, some.tolist())
    with pytest.warns(DataLossWarning, match=r"20 of 600 .* a cell of 'b', the target is missing"):
        model.score(GAPS, some.tolist())  # both lack the first row
    with pytest.raises(DataError, match="600 of 600 rows"):
        model.score(FRAME, [None] * 600)


@pytest.mark.parametrize("rule", ["drop", "midpoint"])
def test_by_a_schema_the_truth_may_be_a_column(rule: str) -> None:
    numbers = [
        {"name": name, "type": "number", "min": -4, "max": 4, "missing": rule} for name in "abc"
    ]
    schema = Schema(dataset="x", unit="row", columns=[*numbers, {"name": "ill", "type": "boolean"}])
    model = DPLogisticRegression(epsilon=1e6, bounds=schema, target="ill", nominal_n=400)
    table = GAPS.assign(ill=LABELS)
    assert np.isfinite(cross_val_score(model, table, cv=2)).all()
    fitted = model.fit(table)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fitted.score(table) == fitted.score(GAPS, LABELS)
    if rule == "drop":
        with pytest.raises(DataError, match=r"rows 0, 50.*'b'.*fill these cells"):
            fitted.predict(table)
    lost = [one for one in caught if one.category is DataLossWarning]
    assert len(lost) == (2 if rule == "drop" else 0)


def test_a_scorer_that_predicts_every_row_says_why_it_cannot() -> None:
    with pytest.warns(UserWarning, match=r"(?s)Scoring failed.*X has NaN.*remove such rows"):
        found = cross_val_score(SUPERVISED[0], GAPS, LABELS, cv=2, scoring="roc_auc")
    assert np.isnan(found).all()


def test_a_model_of_a_formula_is_scored_and_measured_with_the_target_in_its_table() -> None:
    schema = Schema.propose(FRAME, {"a": (-4, 4), "b": (-4, 4), "c": (-4, 4)}, dataset="d")
    how: dict[str, Any] = {"epsilon": 1e4, "bounds": schema, "nominal_n": 400}
    model = DPGeneralizedLinearRegressor(formula="a ~ b + c", **how).fit(FRAME)
    assert model.score(FRAME) == model.score(FRAME[["b", "c"]], FRAME["a"])
    assert np.isfinite(cross_val_score(model, FRAME, cv=2)).all()
    found = evaluate(model, FRAME, epsilon=1e4, nominal_n=600)["r2"]
    assert found.low <= model.score(FRAME) <= found.high
    # Predictions of an expression are not in the units of its column.
    of_expression = DPGeneralizedLinearRegressor(formula="exp(a) ~ b", **how).fit(FRAME)
    with pytest.raises(DataError, match="y is required"):
        of_expression.score(FRAME)


def test_a_model_whose_residuals_are_not_known_is_measured() -> None:
    schema = Schema.propose(FRAME, {"a": (-4, 4), "b": (-4, 4), "c": (-4, 4)}, dataset="d")
    how: dict[str, Any] = {"epsilon": 1e4, "bounds": schema, "nominal_n": 600}
    model = DPGeneralizedLinearRegressor(target="a", **how).fit(FRAME)
    model.result_.results["residual_std_high"][:] = np.inf
    assert evaluate(model, FRAME, epsilon=1e4, nominal_n=600)["rmse"].value > 0
    model.result_.results["coef"][:] = np.nan
    with pytest.raises(PlanError, match="known numbers"):
        evaluate(model, FRAME, epsilon=1e4, nominal_n=600)
