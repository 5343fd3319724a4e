"""``plan`` of an estimator before a fit, and a schema proposed from names and types."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cloister import (
    DPCox,
    DPKaplanMeier,
    DPKMeans,
    DPLinearRegression,
    DPLogisticRegression,
    DPNaiveBayes,
    DPStandardScaler,
    DPTable,
    Ledger,
    Schema,
)
from cloister.core.errors import DataError, PlanError
from cloister.data.schema import Column
from cloister.privacy.budget import Budget

COLUMNS: list[dict[str, Any]] = [
    {"name": "days", "type": "number", "min": 0, "max": 100},
    {"name": "dead", "type": "boolean"},
    {"name": "sex", "type": "category", "categories": ["f", "m"]},
]
WARD = Schema(dataset="ward", unit="row", columns=COLUMNS)
PAID: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 4000}


@pytest.mark.parametrize(
    "model",
    [
        DPKaplanMeier(time="days", event="dead", by="sex", bounds=WARD, **PAID),
        DPCox(time="days", event="dead", bounds=WARD, **PAID),
        DPTable([["sex", "dead"]], bounds=WARD, **PAID),
        DPLogisticRegression(target="dead", bounds=WARD, **PAID),
        DPLinearRegression(target="days", bounds=WARD, **PAID),
        DPKMeans(2, bounds={"a": (0, 1), "b": (0, 2)}, **PAID),
    ],
)
def test_a_plan_is_that_of_the_fit(model: Any) -> None:
    planned = model.plan(silos=2)
    assert not [name for name in vars(model) if name.endswith("_")]  # it is not fitted
    assert (planned.cost.epsilon, planned.plan.nominal_n) == (1.0, 4000)
    assert len(planned.plan.silos) == 2
    assert all(np.all(np.asarray(values) > 0) for values in planned.margins.values())
    assert planned.describe() == repr(planned)
    assert "cost: epsilon=1" in repr(planned)


def test_a_fit_runs_the_plan() -> None:
    X = np.random.default_rng(0).uniform(0, 1, (400, 2))
    y = (X[:, 0] > 0.5).astype(int)
    for model in (
        DPNaiveBayes(epsilon=1.0, bounds=(0, 1), nominal_n=400, classes=[0, 1]),
        DPLinearRegression(epsilon=1.0, bounds=(0, 1), nominal_n=400, target_bounds=(0, 1)),
    ):
        planned = model.plan(X).plan
        fitted = model.fit(X, y).plan_
        assert (planned.rounds, planned.budget) == (fitted.rounds, fitted.budget)
        assert planned.schema_digest == fitted.schema_digest
        assert planned.task == fitted.task
        assert model.plan(X).plan.task == planned.task  # after a fit, too
        assert model.plan_ is fitted


def test_a_plan_without_a_number_of_records_knows_no_error() -> None:
    planned = DPKMeans(2, epsilon=1.0, bounds=(0, 1)).plan(["a", "b"])
    assert planned.margins == {}
    assert "not known without nominal_n" in repr(planned)


@pytest.mark.parametrize("ask", [DPCox.plan, DPCox.fit])
def test_a_number_of_records_is_asked_for_where_a_count_cannot_replace_it(ask: Any) -> None:
    model = DPCox(epsilon=1.0, bounds=WARD, time="days", event="dead")
    table = pd.DataFrame({"days": [1.0, 2.0], "dead": [True, False], "sex": ["f", "m"]})
    with pytest.raises(PlanError, match="nominal_n must be given for task 'cox'"):
        ask(model, table)
    wrong = DPCox(epsilon=1.0, bounds=WARD, time="sex", event="dead")
    with pytest.raises(PlanError, match="time") as error:  # which no number of records mends
        ask(wrong, table)
    assert "nominal_n" not in str(error.value)


def test_a_plan_warns_and_refuses_as_a_fit_would(tmp_path: Path) -> None:
    small = DPKMeans(2, epsilon=0.01, bounds=(0, 1), nominal_n=100).plan(["a"])
    assert small.warnings
    assert small.warnings[0] in repr(small)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("ward", cap=Budget(1.5, 1e-6), unit="row")
    for epsilon, refused in ((1.0, False), (2.0, True)):
        model = DPTable([["dead"]], epsilon=epsilon, bounds=WARD, nominal_n=4000, ledger=ledger)
        planned = model.plan()
        assert bool(planned.refusal) == refused
    assert "epsilon 1.5 left" in repr(planned)
    other = DPTable([["dead"]], **PAID, bounds=WARD, ledger=ledger, dataset="other").plan()
    assert "other" in other.refusal
    assert ledger.spent("ward") == 0
    with pytest.raises(PlanError, match="columns are known"):
        DPKMeans(2, epsilon=1.0, bounds=(0, 1)).plan()
    with pytest.raises(PlanError, match="classes"):
        DPNaiveBayes(**PAID, bounds=(0, 1)).plan(["a"])


FRAME = pd.DataFrame(
    {
        "who": ["x"],
        "age": [5],
        "mark": [0.5],
        "ill": [True],
        "seen": pd.to_datetime(["2020-01-01"]),
        "sex": pd.Categorical(["f"]),
    }
)
BOUNDS = {
    "age": (0, 120),
    "mark": "0..1",
    "seen": (date(2010, 1, 1), "2030-01-01"),
    "sex": ["f", "m"],
}


@pytest.mark.parametrize("form", [lambda f: f, pa.Table.from_pandas, pl.from_pandas])
def test_a_schema_is_proposed_from_names_and_types(form: Any) -> None:
    table = form(FRAME)
    found = Schema.propose(table, BOUNDS, dataset="d", unit="who", max_rows=2)
    assert [column.type for column in found.columns] == [
        "integer", "number", "boolean", "date", "category",
    ]  # fmt: skip
    assert (found.unit, found.max_rows, found.columns[3].min) == ("who", 2, 2010.0)
    named = {**BOUNDS, "who": None}  # the unit is no column of a schema, and needs no entry
    assert Schema.propose(table, named, dataset="d", unit="who", max_rows=2) == found
    assert found.columns[4].categories == ("f", "m")
    with pytest.raises(PlanError, match=r"'who' \(category\), 'age' \(integer\), 'mark'") as error:
        Schema.propose(table)
    assert "'ill'" not in str(error.value)
    assert "'x'" not in str(error.value)


@pytest.mark.parametrize("tables", [[FRAME, FRAME], {"a": FRAME}])
def test_a_schema_is_proposed_from_one_table(tables: Any) -> None:
    with pytest.raises(DataError, match=r"got a (list|dict); give one frame or file"):
        Schema.propose(tables)


def test_a_plan_has_the_epsilon_for_a_wanted_error() -> None:
    model = DPStandardScaler(epsilon=1.0, bounds={"age": (0, 100)}, nominal_n=5000)
    found = model.plan(want={"age": 0.5})
    assert found.cost is not None
    assert found.cost.epsilon < 1
    assert 0.45 < found.margins["mean_half_width"][0] <= 0.501
    assert model.epsilon == 1.0
    with pytest.raises(PlanError, match="want needs nominal_n"):
        DPStandardScaler(epsilon=1.0, bounds={"age": (0, 100)}).plan(want={"age": 0.5})


def test_a_schema_finds_a_column_by_name() -> None:
    schema = Schema.propose(FRAME[["age"]], {"age": (0, 120)})
    assert schema["age"].max == 120
    with pytest.raises(KeyError, match="no column 'town'; the schema has age"):
        schema["town"]


def test_a_proposal_reads_no_value_and_no_list_of_categories(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"'sex' \(category\)"):
        Schema.propose(FRAME[["sex"]])
    FRAME.to_parquet(tmp_path / "t.parquet")
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    some = {**BOUNDS, "who": None}
    assert Schema.propose(tmp_path / "t.parquet", some).columns[0].type == "integer"
    text = Schema.propose(tmp_path / "t.csv", {**some, "ill": "yes-no"})
    assert [column.type for column in text.columns][:3] == ["number", "number", "boolean"]
    for pair in ([0, 120], np.array([0, 120])):
        (age,) = Schema.propose(FRAME[["age"]], {"age": pair}).columns
        assert (age.type, age.min, age.max) == ("integer", 0.0, 120.0)
    (seen,) = Schema.propose(FRAME[["seen"]], {"seen": ["2010-01-01", "2026-01-01"]}).columns
    assert (seen.type, seen.min) == ("date", 2010.0)
    assert Schema.propose(FRAME[["age"]], {"age": ["1", "2"]}).columns[0].categories == ("1", "2")
    for given in ({0: "no", 1: "yes"}, {"f", "m"}, 5):
        with pytest.raises(PlanError, match=r"'sex' must be .low, high., a list of categories"):
            Schema.propose(FRAME[["sex"]], {"sex": given})
    with pytest.raises(PlanError, match="no column 'town'"):
        Schema.propose(FRAME, {"town": (0, 1)})
    with pytest.raises(DataError, match="named columns"):
        Schema.propose(np.zeros((2, 2)))


def test_two_days_are_bounds_of_dates_where_a_frame_declares_no_type() -> None:
    frame = pd.DataFrame({"seen": ["2020-03-01", "2021-04-02"], "group": ["2020", "2021"]})
    days, groups = ("2019-01-01", "2023-01-01"), ("2020", "2021")
    schema = Schema.propose(frame, {"seen": days, "group": groups})
    assert [column.type for column in schema.columns] == ["date", "category"]


@pytest.mark.parametrize("pair", [(0, 1), [0, 1], (0.0, 1.0), (False, True)])
def test_truth_values_with_the_bounds_of_an_array_stay_truth_values(pair: Any) -> None:
    """An event and a class must not be numbers."""
    (ill,) = Schema.propose(FRAME[["ill"]], {"ill": pair}).columns
    assert ill.type == "boolean"


def test_a_plan_takes_the_silos_of_a_fit() -> None:
    frames = [pd.DataFrame({"a": np.zeros(n), "b": np.zeros(n)}) for n in (4, 6)]
    model = DPKMeans(2, bounds=(0, 1), **PAID)
    for silos in (frames, [frame.to_numpy() for frame in frames]):
        planned = model.plan(silos).plan
        assert (len(planned.silos), len(planned.columns)) == (2, 2)
    assert len(model.plan(frames[:1], silos=3).plan.silos) == 3
    labelled = [(frame, [0] * len(frame)) for frame in frames]
    assert len(DPNaiveBayes(bounds=(0, 1), classes=[0, 1], **PAID).plan(labelled).plan.silos) == 2
    with pytest.raises(PlanError, match="silos must be 2, as in X, or omitted, got 3"):
        model.plan(frames, silos=3)
    with pytest.raises(DataError, match="silo 1 also has 'c'"):
        model.plan([frames[0], frames[1].assign(c=0.0)])


def test_the_proposed_call_for_words_among_bounds_works() -> None:
    table = pd.DataFrame({"age": [1.0], "ill": [True]})
    bounds: dict[str, Any] = {"age": (0, 100), "ill": bool}
    with pytest.raises(PlanError, match="bounds of 'ill' are no numbers") as caught:
        DPKMeans(2, bounds=bounds, **PAID).fit(table)
    call = str(caught.value).partition("for example ")[2].rpartition(" (tables")[0]
    schema = eval(call, {"Schema": Schema, "table": table})
    assert [column.type for column in schema.columns] == ["number", "boolean"]


def test_a_proposed_schema_has_rules_for_missing_cells() -> None:
    table = pd.DataFrame({"age": [1.0], "sex": ["f"]})
    bounds: dict[str, Any] = {"age": (0, 9), "sex": ["f", "m"]}
    schema = Schema.propose(table, bounds, missing={"age": "keep"})
    assert [column.missing for column in schema.columns] == ["keep", "drop"]
    with pytest.raises(PlanError, match="no column 'size'"):
        Schema.propose(table, bounds, missing={"size": "keep"})
    with pytest.raises(PlanError) as caught:
        Schema.propose(table)
    asked = "give bounds={'age': (low, high), 'sex': a list of categories}"
    assert asked in str(caught.value)


def test_a_rule_for_no_column_is_refused_with_the_form_of_one() -> None:
    frame = pd.DataFrame({"age": [50.0]})
    with pytest.raises(
        PlanError, match=r"missing must be a mapping .*\{'age': 'keep'\}, got 'keep'"
    ):
        Schema.propose(frame, {"age": (0, 120)}, missing="keep")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"bounds must be a mapping .*\{'age': \(0, 120\)\}, got"):
        Schema.propose(frame, [(0, 120)])  # type: ignore[arg-type]


def test_a_printed_schema_is_its_file() -> None:
    assert str(WARD) == WARD.to_toml()


def test_a_schema_is_represented_without_defaults() -> None:
    assert eval(repr(WARD), {"Schema": Schema, "Column": Column}) == WARD
    assert "spellings" not in repr(DPKMeans(2, epsilon=1.0, bounds=WARD))


def test_a_plan_takes_the_arguments_of_a_fit() -> None:
    X, y = np.zeros((9, 2)), np.arange(9) % 3
    model = DPNaiveBayes(epsilon=1.0, bounds=(0, 1), nominal_n=400, classes="in_y")
    listed = DPNaiveBayes(epsilon=1.0, bounds=(0, 1), nominal_n=400, classes=[0, 1, 2])
    expected = listed.plan(X).plan.task
    assert model.plan(X, y).plan.task == expected
    assert model.plan([X, X], [y, y]).plan.task == expected
    assert model.plan([(X, y), (X, y)]).plan.task == expected
    assert model.classes == "in_y"
    with pytest.raises(PlanError, match="classes='in_y' needs y"):
        model.plan(X)


def test_missing_cells_that_are_kept_name_the_task_that_completes_them() -> None:
    frame = pd.DataFrame({"a": [np.nan] * 50 + [1.0] * 50, "b": np.linspace(0, 1, 100)})
    schema = Schema.propose(frame, {"a": (0, 2), "b": (0, 1)}, missing={"a": "keep"})
    model = DPLinearRegression(target="b", bounds=schema, **PAID)
    with pytest.raises(
        DataError, match=r"GeneralizedLinearRegressor\(missing='impute'\), completes"
    ):
        model.fit(frame)
