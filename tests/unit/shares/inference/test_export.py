"""What is exported predicts as the released model does, inside and outside of the bounds."""

from __future__ import annotations

import io
import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from cloister import (
    DPKMeans,
    DPLinearRegression,
    DPLogisticRegression,
    DPNaiveBayes,
    DPOutlierDetector,
    DPRandomForestClassifier,
    DPShapesClassifier,
    DPShapesRegressor,
    Schema,
)
from cloister.app.job import run_job
from cloister.app.release import Release
from cloister.core.errors import PlanError
from cloister.data.schema import Column
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import plain_schema
from cloister.shares.inference.export import to_onnx, to_sklearn
from cloister.tasks.preparation.pipeline import Pipeline
from cloister.testing import ZeroNoise

BITS = 24
"""Of the grid: what is left of its rounding is far below every tolerance here."""
NEAR = 1e-5
RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 8, (400, 3))
Y = (X @ [1.0, -2.0, 0.5] > 0).astype(int)
Y3 = np.digitize(X[:, 0], [0, 4])
NEW = RNG.uniform(-10, 15, (500, 3))  # more outside of the bounds than inside
PLAIN: dict[str, Any] = {"epsilon": 5.0, "bounds": (-3, 8), "nominal_n": 400, "frac_bits": BITS}
SCHEMA = Schema(
    dataset="t",
    unit="row",
    columns=(
        Column(name="age", type="number", min=0, max=90),
        Column(name="job", type="category", categories=["desk", "field", "none"]),
        Column(name="insured", type="boolean"),
        Column(name="buys", type="category", categories=["no", "yes"]),
    ),
)


@pytest.fixture(autouse=True)
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run compare the same models."""
    monkeypatch.setattr(PrivateEstimator, "_new_noise", ZeroNoise)


def table(rows: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "job": RNG.choice(["desk", "field", "none"], rows),  # found by name, not by place
            "insured": RNG.choice([True, False], rows),
            "age": RNG.uniform(-50, 200, rows),
        }
    )


TABLE = table(300)
BUYS = np.where(TABLE["age"] + 90 * TABLE["insured"] > 100, "yes", "no")
BY_SCHEMA = {**PLAIN, "bounds": SCHEMA, "target": "buys", "nominal_n": 300}


def by_onnx(body: bytes, rows: Any) -> dict[str, NDArray[Any]]:
    """Return the outputs of an ONNX model by the reference that comes with ONNX."""
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(body)
    given = {}
    for j, (name, kind) in enumerate(
        zip(reference.input_names, reference.input_types, strict=True)
    ):
        column = rows[[name]].to_numpy() if hasattr(rows, "columns") else rows[:, [j]]
        text = kind.tensor_type.elem_type == 8
        given[name] = column.astype(object if text else np.float64)
    return dict(zip(reference.output_names, reference.run(None, given), strict=True))


def clear(shares: NDArray[Any]) -> NDArray[Any]:
    """Return which rows no rounding moves from one class to another."""
    two = np.sort(shares, axis=1)[:, -2:]
    found: NDArray[Any] = two[:, 1] - two[:, 0] > 100 * NEAR
    assert found.mean() > 0.9
    return found


@pytest.mark.parametrize(
    ("model", "rows", "labels", "new"),
    [
        (DPLogisticRegression(**PLAIN, classes=[0, 1]), X, Y, NEW),
        (DPLogisticRegression(**PLAIN, classes=[0, 1, 2]), X, Y3, NEW),
        (DPLogisticRegression(**BY_SCHEMA), TABLE, BUYS, table(200)),
        (DPNaiveBayes(**PLAIN, classes=[0, 1, 2], numbers="gaussian"), X, Y3, NEW),
        (DPNaiveBayes(**PLAIN, classes=["a", "b"], bins=5), X, np.array(["a", "b"])[Y], NEW),
        (DPNaiveBayes(**BY_SCHEMA), TABLE, BUYS, table(200)),
        (DPNaiveBayes(**BY_SCHEMA, prepare=[("standardise", {})]), TABLE, BUYS, table(200)),
        (
            DPNaiveBayes(
                **PLAIN, classes=[0, 1], bins=4, prepare=[("standardise", {}), ("bounds", {})]
            ),
            X,
            Y,
            NEW,
        ),
        (
            DPNaiveBayes(**PLAIN, classes=[0, 1], numbers="gaussian", prepare=[("bounds", {})]),
            X,
            Y,
            NEW,
        ),
        (DPShapesClassifier(**PLAIN, classes=["a", "b"]), X, np.array(["a", "b"])[Y], NEW),
        (DPShapesClassifier(**PLAIN, classes=[0, 1, 2], bins=5), X, Y3, NEW),
        (DPShapesClassifier(**BY_SCHEMA), TABLE, BUYS, table(200)),
        (DPShapesClassifier(**BY_SCHEMA, prepare=[("standardise", {})]), TABLE, BUYS, table(200)),
    ],
)
def test_an_exported_classifier_gives_the_same_probabilities_and_labels(
    model: Any, rows: Any, labels: Any, new: Any
) -> None:
    model.fit(rows, labels)
    shares, sure = model.predict_proba(new), clear(model.predict_proba(new))
    pipeline = joblib.load(io.BytesIO(pickle.dumps(to_sklearn(model))))
    assert pipeline.predict_proba(new) == pytest.approx(shares, abs=NEAR)
    assert (pipeline.predict(new) == model.predict(new))[sure].all()
    assert pipeline.classes_.tolist() == model.classes_.tolist()
    found = by_onnx(to_onnx(model), new)
    assert found["probabilities"] == pytest.approx(shares, abs=NEAR)
    assert (found["prediction"] == model.predict(new))[sure].all()


@pytest.mark.parametrize("by_name", [False, True])
def test_an_exported_regression_gives_the_same_numbers(by_name: bool) -> None:
    rows, new = (pd.DataFrame(part, columns=list("abc")) if by_name else part for part in (X, NEW))
    model = DPLinearRegression(**PLAIN, target_bounds=(-9, 9)).fit(rows, X[:, 0] - X[:, 1])
    expected = model.predict(new)
    assert np.ptp(expected) > 1
    assert to_sklearn(model).predict(new) == pytest.approx(expected, abs=NEAR)
    assert by_onnx(to_onnx(model), new)["prediction"] == pytest.approx(expected, abs=NEAR)


@pytest.mark.parametrize("algorithm", ["auto", "fastlloyd"])
def test_exported_kmeans_gives_the_same_clusters(algorithm: str) -> None:
    model = DPKMeans(4, algorithm=algorithm, **{**PLAIN, "frac_bits": 16}).fit(X)
    sure = clear(-model.transform(np.clip(NEW, -3, 8)))
    pipeline, expected = to_sklearn(model), model.predict(NEW)[sure]
    assert len(set(expected)) > 1
    assert (pipeline.predict(NEW)[sure] == expected).all()
    assert (by_onnx(to_onnx(model), NEW)["prediction"][sure] == expected).all()
    middle, half = 2.5, 5.5
    found = pipeline[-1].cluster_centers_ * half + middle
    assert found == pytest.approx(model.cluster_centers_)


def test_exported_kmeans_after_a_step_gives_the_cluster_of_the_scaled_record() -> None:
    """Of a file with both, which no estimator reads."""
    schema = plain_schema((-3, 8), ("a", "b", "c"), None)
    steps = [("standardise", {}), ("auto", {"n_clusters": 3})]
    records = {"silo": [schema.grid().encode(X)]}
    result = run_job(
        Pipeline, schema, records, epsilon=5.0, nominal_n=400, noise=ZeroNoise(), steps=steps
    )
    task: Any = result.plan.task
    reached = task.steps[0].transform(task.results_of(0, result.results), schema.grid().encode(NEW))
    centres = task.last_step_grid.normalise(result.results["centres"]) * task.last_step_grid.one
    distances = np.linalg.norm(reached[:, None] - centres, axis=2) / task.last_step_grid.one
    sure, expected = clear(-distances), distances.argmin(axis=1)
    new = pd.DataFrame(NEW, columns=list("abc"))
    assert len(set(expected)) == 3
    assert (to_sklearn(result).predict(new) == expected)[sure].all()
    assert (by_onnx(to_onnx(result), new)["prediction"] == expected)[sure].all()


def test_a_saved_model_is_exported_with_the_words_of_its_plan(tmp_path: Any) -> None:
    model = DPLogisticRegression(**BY_SCHEMA).fit(TABLE, BUYS)
    model.save(tmp_path / "model.json")
    pipeline = to_sklearn(Release.load(tmp_path / "model.json"))
    assert pipeline.predict(TABLE).tolist() == to_sklearn(model).predict(TABLE).tolist()
    assert pipeline.classes_.tolist() == ["no", "yes"]


def test_a_saved_model_predicts_numbers_as_the_model_does(tmp_path: Any) -> None:
    """Its file has them as text, which no measure compares with numbers."""
    model = DPLogisticRegression(**PLAIN, classes=[0, 1]).fit(X, Y)
    model.save(tmp_path / "model.json")
    saved = Release.load(tmp_path / "model.json")
    pipeline = to_sklearn(saved)
    assert pipeline.score(X, Y) == pytest.approx(model.score(X, Y), abs=0.05)
    assert by_onnx(to_onnx(saved), NEW)["prediction"].dtype.kind == "i"


def test_an_exported_model_takes_years_for_dates_and_refuses_days() -> None:
    """The nanoseconds of a day would all be clipped to the largest year."""
    day = {"name": "day", "type": "date", "min": "2020-01-01", "max": "2023-01-01"}
    schema = Schema(dataset="t", unit="row", columns=[day, SCHEMA.columns[3]])
    days = pd.date_range("2020-01-01", "2023-01-01", freq="D")
    years = 2020 + (days - days[0]).days / 365.33
    table = pd.DataFrame({"day": days, "buys": np.where(years > 2021, "yes", "no")})
    given: dict[str, Any] = {"epsilon": 5.0, "bounds": schema, "target": "buys", "nominal_n": 1000}
    model = DPLogisticRegression(**given).fit(table)
    exported = to_sklearn(model)
    expected = model.predict_proba(table[["day"]])
    found = exported.predict_proba(pd.DataFrame({"day": years}))
    assert np.abs(found - expected).max() < 0.02  # leap years
    assert expected[:, 1].max() > 0.9 > 0.1 > expected[:, 1].min()
    with pytest.raises(TypeError, match="Cannot cast DatetimeArray"):
        exported.predict(table[["day"]])


def test_no_score_is_made_of_an_unknown_category() -> None:
    model = DPLogisticRegression(**BY_SCHEMA).fit(TABLE, BUYS)
    strange = TABLE.assign(job="astronaut")
    with pytest.raises(ValueError, match="unknown categories"):
        to_sklearn(model).predict(strange)
    assert np.isnan(by_onnx(to_onnx(model), strange)["probabilities"]).all()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (DPRandomForestClassifier(**PLAIN, classes=[0, 1]), "'forest'"),
        (DPOutlierDetector(**PLAIN), "'outliers'"),
        (DPShapesRegressor(**PLAIN, target_bounds=(0, 1)), "'shapes-regression'"),
        (
            DPNaiveBayes(**PLAIN, classes=[0, 1], prepare=[("pca", {"n_components": 2})]),
            "'pca'",
        ),
    ],
)
@pytest.mark.parametrize("export", [to_sklearn, to_onnx])
def test_what_has_no_such_form_is_refused_with_a_way_out(
    model: Any, said: str, export: Any
) -> None:
    with pytest.raises(PlanError, match=f"(?s){said}.*score with cloister predict"):
        export(model.fit(X, Y))


def test_what_cloister_did_not_release_is_refused() -> None:
    with pytest.raises(PlanError, match="must be one that cloister released, got a str"):
        to_sklearn("model.json")


def test_a_column_with_the_name_of_an_output_is_refused_by_onnx_alone() -> None:
    rows = pd.DataFrame(X, columns=["prediction", "b", "c"])
    model = DPKMeans(2, **{**PLAIN, "frac_bits": 16}).fit(rows)
    assert len(to_sklearn(model).predict(rows)) == len(rows)
    with pytest.raises(PlanError, match="'prediction' is the name of an output"):
        to_onnx(model)
