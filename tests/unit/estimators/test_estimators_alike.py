"""What holds for every private estimator: how it reads new records, and comes from a file."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cloister
from cloister import (
    DPPCA,
    HOME,
    Budget,
    DataError,
    DataLossWarning,
    DPBounds,
    DPForestRegressor,
    DPGeneralizedLinearRegressor,
    DPKMeans,
    DPLinearRegression,
    DPLogisticRegression,
    DPNaiveBayes,
    DPOutlierDetector,
    DPRandomForestClassifier,
    DPShapesClassifier,
    DPShapesRegressor,
    DPSiloEnsemble,
    DPStandardScaler,
    Ledger,
    PlanError,
    Schema,
)
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.prepare import _Preparing
from cloister.testing import zero_noise
from cloister_lab.estimators import CuratorKMeans

N = 400


def columns(missing: Any = "drop", number: Any = "drop") -> list[dict[str, Any]]:
    words = ["desk", "field", "none"]
    return [
        {"name": "age", "type": "number", "min": 0, "max": 100, "missing": number},
        {"name": "work", "type": "category", "categories": words, "missing": missing},
        {"name": "pay", "type": "number", "min": -3, "max": 9, "out_of_range": "drop"},
    ]


def schema(*last: dict[str, Any], **rules: Any) -> Schema:
    return Schema(dataset="toy", unit="row", columns=[*columns(**rules), *last])


def people(seed: int = 0) -> pd.DataFrame:
    """A table with one column more than the schema has, and in another order."""
    rng = np.random.default_rng(seed)
    ill = rng.random(N) < 0.4
    return pd.DataFrame(
        {
            "name": "nobody",
            "pay": rng.normal(3, 1, N).clip(-3, 9),
            "ill": np.where(ill, "yes", "no"),
            "work": rng.choice(["desk", "field", "none"], N),
            "age": rng.normal(40 + 20 * ill, 8).clip(0, 100),
            "risk": rng.normal(20 * ill, 2),
        }
    )


ILL = {"name": "ill", "type": "category", "categories": ["no", "yes"]}
RISK = {"name": "risk", "type": "number", "min": -20, "max": 60}
LAST: dict[Any, tuple[dict[str, Any], ...]] = {
    DPNaiveBayes: (ILL,),
    DPLogisticRegression: (ILL,),
    DPRandomForestClassifier: (ILL,),
    DPLinearRegression: (RISK,),
    DPForestRegressor: (RISK,),
    DPShapesClassifier: (ILL,),
    DPShapesRegressor: (RISK,),
    DPGeneralizedLinearRegressor: (RISK,),
}
SAVED = [
    DPBounds,
    DPForestRegressor,
    DPShapesClassifier,
    DPShapesRegressor,
    DPGeneralizedLinearRegressor,
    DPKMeans,
    DPLinearRegression,
    DPLogisticRegression,
    DPNaiveBayes,
    DPOutlierDetector,
    DPPCA,
    DPRandomForestClassifier,
    DPStandardScaler,
]
OF_TABLES = {
    "DPCox",
    "DPCoxApproximate",
    "DPKaplanMeier",
    "DPLogRank",
    "DPScorecard",
    "DPSynthesiser",
    "DPTable",
    "DPTreatmentEffect",
}
"""They are asked about no new records; their own tests save and load them."""
every = pytest.mark.parametrize("kind", SAVED)
REGRESSORS = (
    DPLinearRegression,
    DPGeneralizedLinearRegressor,
    DPForestRegressor,
    DPShapesRegressor,
)
FIRST = {DPKMeans: (2,), DPPCA: (2,), CuratorKMeans: (2,)}


def by_schema(kind: Any, **rules: Any) -> Any:
    last = LAST.get(kind, ())
    target = {"target": last[0]["name"]} if last else {}
    made = {"epsilon": 4.0, "nominal_n": N, "bounds": schema(*last, **rules), **target}
    return kind(*FIRST.get(kind, ()), **made)


def plain(kind: Any, **given: Any) -> Any:
    made: dict[str, Any] = {"epsilon": 4.0, "nominal_n": N, "bounds": ([0, -3], [100, 9])}
    if kind in REGRESSORS:
        made["target_bounds"] = (-20, 60)
    elif kind in LAST:
        made["classes"] = ["no", "yes"]
    return kind(*FIRST.get(kind, ()), **{**made, **given})


def answers(model: Any, X: Any) -> list[np.ndarray]:
    """Return all that a model says of records."""
    ways = ("predict", "predict_proba", "decision_function", "score_samples", "transform")
    return [np.asarray(getattr(model, way)(X)) for way in ways if hasattr(model, way)]


def assert_same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    assert a
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype.kind == other.dtype.kind


def learned(model: Any) -> set[str]:
    return {k for k in vars(model) if k.endswith("_") and not k.startswith("_")} - {"labels_"}


# New records --------------------------------------------------------------------------------------


def test_every_estimator_that_saves_is_looked_at() -> None:
    # Subclasses that this process has are no list: other tests make some, and load not all.
    ships = (getattr(cloister, name) for name in HOME)
    ours = {k.__name__ for k in ships if isinstance(k, type) and issubclass(k, PrivateEstimator)}
    assert ours - OF_TABLES == {kind.__name__ for kind in SAVED}


@pytest.mark.parametrize("kind", [*SAVED, CuratorKMeans])
def test_a_schema_reads_new_records_as_it_read_those_of_the_fit(kind: Any, tmp_path: Path) -> None:
    frame = people()
    model = by_schema(kind).fit(frame)
    frame.to_csv(tmp_path / "new.csv", index=False)
    wanted = answers(model, frame)
    assert_same(answers(model, frame[["work", "age", "pay"]]), wanted)  # no target, another order
    assert_same(answers(model, tmp_path / "new.csv"), wanted)


@pytest.mark.parametrize("kind", [*SAVED, CuratorKMeans])
@pytest.mark.parametrize(
    ("column", "cell"),
    [("work", "martian"), ("work", "?"), ("age", np.nan), ("pay", 99.0)],
)
def test_a_record_that_the_schema_drops_gets_no_answer(kind: Any, column: str, cell: Any) -> None:
    model, frame = by_schema(kind).fit(people()), people()
    frame[column] = frame[column].astype(object)
    frame.loc[[3, 17], column] = cell
    if issubclass(kind, _Preparing):  # the next step of a pipeline leaves them out
        rows = np.isnan(model.transform(frame)).all(axis=1)
        assert np.flatnonzero(rows).tolist() == [3, 17]
        return
    with pytest.raises(DataError, match=rf"^rows 3, 17 .*\['{column}'\]") as told:
        answers(model, frame)
    assert "martian" not in str(told.value)
    assert "99" not in str(told.value)


@pytest.mark.parametrize("kind", [*SAVED, CuratorKMeans])
def test_a_missing_value_is_what_the_schema_says(kind: Any) -> None:
    model = by_schema(kind, missing="none", number="max").fit(people())
    holes, filled = people(1).astype({"work": object}), people(1)
    holes.loc[5, "work"] = "martian"
    holes.loc[9, "work"] = None
    holes.loc[7, "age"] = np.nan
    filled.loc[[5, 9], "work"] = "none"
    filled.loc[7, "age"] = 100.0
    assert_same(answers(model, holes), answers(model, filled))


def test_an_ensemble_gives_no_answer_for_a_record_that_the_schema_drops() -> None:
    base = by_schema(DPNaiveBayes)
    model, frame = DPSiloEnsemble(base).fit([people(), people(1)]), people()
    frame.loc[3, "work"] = "martian"
    with pytest.raises(DataError, match="rows 3 "):
        model.predict(frame)


def test_names_of_columns_are_those_of_the_header_whatever_they_are() -> None:
    frame = pd.DataFrame({"column_names": [0.5, 0.5] * 50, "columns": 1.0})
    model = DPBounds(epsilon=1.0, bounds=(0, 1), nominal_n=100)
    assert model.fit(frame).feature_names_in_.tolist() == ["column_names", "columns"]
    plain = frame.set_axis(["x0", "x1"], axis=1)
    assert model.fit(plain).feature_names_in_.tolist() == ["x0", "x1"]
    assert not hasattr(model.fit(frame.to_numpy()), "feature_names_in_")
    numbered = frame.set_axis([0, 1], axis=1)
    assert not hasattr(model.fit(numbered), "feature_names_in_")


# Labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAST)
def test_a_target_and_y_are_not_both_given(kind: Any) -> None:
    frame = people()
    name = LAST[kind][0]["name"]
    y = frame[name]
    with pytest.raises(DataError, match="y must be None"):
        by_schema(kind).fit(frame, y)
    by_schema(kind).fit(frame.drop(columns=name), y)  # then it is the column
    with pytest.raises(PlanError, match="target is valid only with a schema"):
        plain(kind, target=name).fit(frame[["age", "pay"]], y)


@pytest.mark.parametrize("kind", [DPNaiveBayes, DPLogisticRegression, DPRandomForestClassifier])
def test_labels_of_no_class_are_not_fitted(kind: Any) -> None:
    X = people()[["age", "pay"]]
    y = np.tile([5, 6], N // 2)
    # None is known. Then some are, but too many are left out.
    with pytest.raises(DataError, match="no label of the classes"):
        plain(kind, classes=[0, 1]).fit(X, y)
    with pytest.raises(DataError, match=r"'6'.* not understood"):
        plain(kind, classes=[4, 5]).fit(X, y)
    with pytest.warns(DataLossWarning):
        plain(kind, classes=[4, 5], max_loss=0.5).fit(X, y)


# Files --------------------------------------------------------------------------------------------


@every
def test_a_model_of_a_schema_survives_its_file(kind: Any, tmp_path: Path) -> None:
    model, path = by_schema(kind).fit(people()), tmp_path / "m.json"
    model.save(path)
    again = kind.load(path, bounds=model.bounds)
    assert_same(answers(again, people(1)), answers(model, people(1)))
    assert learned(again) == learned(model)
    assert (again.spent_, again.delta_) == (model.spent_, model.delta_)
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    with pytest.raises(PlanError, match="the schema of the model's fit"):
        kind.load(path, bounds=schema(*LAST.get(kind, ()), missing="none"))
    if kind is not DPKMeans:  # which may be asked in numbers of its grid
        with pytest.raises(PlanError, match="the schema of the model's fit"):
            kind.load(path)


@every
def test_a_model_of_some_columns_reads_those_by_the_whole_schema(kind: Any, tmp_path: Path) -> None:
    model, path = by_schema(kind).fit(people()), tmp_path / "m.json"
    more = {"name": "extra", "type": "number", "min": 0, "max": 1}
    whole = Schema(dataset="toy", unit="row", columns=[more, *model.bounds.columns])
    plan = replace(model.plan_, schema_digest=whole.digest())
    replace(model.result_, plan=plan).save(path)
    again = kind.load(path, bounds=whole)
    assert_same(answers(again, people(1)), answers(model, people(1)))
    assert (again.n_features_in_, again.bounds) == (model.n_features_in_, whole)


CLASSIFIERS = [
    DPNaiveBayes,
    DPLogisticRegression,
    DPRandomForestClassifier,
    DPShapesClassifier,
]
LABELS = [["no", "yes"], ["yes", "no"], [0, 1], [9, 10], [0.0, 1.0], [False, True]]


@pytest.mark.parametrize(
    ("kind", "labels"),
    [(kind, labels) for kind in SAVED for labels in (LABELS if kind in CLASSIFIERS else [[0, 1]])],
)
def test_a_model_of_plain_bounds_survives_its_file(
    kind: Any, labels: list[Any], tmp_path: Path
) -> None:
    frame, path = people(), tmp_path / "m.json"
    classifies = kind in CLASSIFIERS
    for X in (frame[["age", "pay"]], frame[["age", "pay"]].to_numpy()):
        y = np.array(labels)[(frame["ill"] == "yes").to_numpy().astype(int)]
        told = frame["risk"] if kind in REGRESSORS else y
        model = plain(kind, **({"classes": labels} if classifies else {})).fit(X, told)
        model.save(path)
        again = kind.load(path)
        assert_same(answers(again, X), answers(model, X))
        assert learned(again) == learned(model)
        if classifies:
            assert again.score(X, y) == model.score(X, y)


def test_steps_before_survive_the_file(tmp_path: Path) -> None:
    X, y = people()[["age", "pay"]], people()["ill"]
    for kind in (DPNaiveBayes, DPRandomForestClassifier):
        model = plain(kind, prepare=[("bounds", {})]).fit(X, y)
        model.save(tmp_path / "m.json")
        assert_same(answers(kind.load(tmp_path / "m.json"), X), answers(model, X))


def test_what_a_file_does_not_tell_is_given_beside_it(tmp_path: Path) -> None:
    X, y = people()[["age", "pay"]], people()["ill"]
    model = plain(DPRandomForestClassifier, costs=[[0, 1], [50, 0]]).fit(X, y)
    model.save(tmp_path / "m.json")
    again = DPRandomForestClassifier.load(tmp_path / "m.json", costs=[[0, 1], [50, 0]])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    for wrong in ([3, 8], ["no"], ["no", "yes", "maybe"]):
        with pytest.raises(PlanError, match="classes must be the labels of the model"):
            DPRandomForestClassifier.load(tmp_path / "m.json", classes=wrong)


@pytest.mark.parametrize("labels", [["10", "9"], ["1", "2"], ["False", "True"], ["a ", "b"]])
def test_labels_that_a_file_cannot_tell_are_given_again_in_any_order(
    labels: list[str], tmp_path: Path
) -> None:
    X, ill = people()[["age", "pay"]], (people()["ill"] == "yes").to_numpy().astype(int)
    model = plain(DPNaiveBayes, classes=labels).fit(X, np.array(labels)[ill])
    model.save(tmp_path / "m.json")
    for given in (labels, labels[::-1]):
        again = DPNaiveBayes.load(tmp_path / "m.json", classes=given)
        assert_same(answers(again, X), answers(model, X))
    told = DPNaiveBayes.load(tmp_path / "m.json").predict(X)
    assert [str(label) for label in told.tolist()] == [p.strip() for p in model.predict(X)]


def test_classes_beside_a_schema_are_in_its_order(tmp_path: Path) -> None:
    model = by_schema(DPNaiveBayes).fit(people())
    model.save(tmp_path / "m.json")
    given = list(model.classes_)[::-1]
    again = DPNaiveBayes.load(tmp_path / "m.json", bounds=model.bounds, classes=given)
    assert_same(answers(again, people(1)), answers(model, people(1)))


def test_parameters_that_a_file_tells_are_those_of_the_fit(tmp_path: Path) -> None:
    X = people()[["age", "pay"]]
    model = plain(DPOutlierDetector, method="zscore", threshold=3.0, frac_bits=12).fit(X)
    model.save(tmp_path / "m.json")
    again = DPOutlierDetector.load(tmp_path / "m.json")
    for name in ("epsilon", "nominal_n", "method", "threshold", "frac_bits"):
        assert getattr(again, name) == getattr(model, name)


@every
def test_the_file_of_another_estimator_is_refused(kind: Any, tmp_path: Path) -> None:
    other = DPBounds if kind is not DPBounds else DPStandardScaler
    model = plain(other).fit(people()[["age", "pay"]])
    model.save(tmp_path / "m.json")
    with pytest.raises(DataError, match=f"^model has the task '{other._task.name}', not"):
        kind.load(tmp_path / "m.json")


# The ledger ---------------------------------------------------------------------------------------


def test_a_fit_with_a_bought_count_shows_two_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cloister.cli import main

    ledger = Ledger(tmp_path / "l.db")
    ledger.open_dataset("toy", cap=Budget(9.0, 1e-6))
    model = plain(DPBounds, nominal_n=None, ledger=ledger, dataset="toy")
    model.fit(people()[["age", "pay"]])
    jobs = {job.job for job in ledger.jobs()}
    idle = [job.job for job in ledger.jobs() if not job.rounds]
    ledger.dispose()
    assert main(["budget", "show", str(tmp_path / "l.db")]) == 0
    shown = capsys.readouterr().out
    assert model.plan_.run_id in shown
    assert len(idle) == 1
    assert idle[0] not in shown
    assert len({job for job in jobs if job in shown}) == 2


# --- a record that has no value, and a table without records ---

BOX = ([0.0, -3.0], [100.0, 9.0])


def fitted(estimator: Any, X: Any, y: Any) -> Any:
    return estimator.fit(X, y) if y is not None else estimator.fit(X)


def local(name: str) -> tuple[Any, bool]:
    """Return an estimator on plain bounds without noise, and whether it takes a target."""
    shared: dict[str, Any] = {"epsilon": 1.0, "bounds": BOX, "nominal_n": 50}
    match name:
        case "kmeans":
            return zero_noise(DPKMeans)(2, **shared, random_state=0), False
        case "curator":
            return zero_noise(CuratorKMeans)(2, **shared, algorithm="maxcover"), False
        case "scaler":
            return zero_noise(DPStandardScaler)(**shared), False
        case "bounds":
            return zero_noise(DPBounds)(**shared), False
        case "pca":
            return zero_noise(DPPCA)(1, **shared), False
        case "outliers":
            return zero_noise(DPOutlierDetector)(**shared), False
        case "linear":
            return zero_noise(DPLinearRegression)(**shared, target_bounds=(0, 1)), True
        case "logistic":
            return zero_noise(DPLogisticRegression)(**shared, classes=[0, 1]), True
        case "forest":
            forest = {"classes": [0, 1], "random_state": 0}
            return zero_noise(DPRandomForestClassifier)(**shared, **forest), True
    return zero_noise(DPNaiveBayes)(**shared, classes=[0, 1]), True


LOCAL = (
    "kmeans curator scaler bounds pca outliers linear logistic forest naive-bayes".split()  # noqa: SIM905
)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_without_a_value_is_left_out_of_a_fit_as_in_files(name: str, bad: float) -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 100, 50), rng.uniform(-3, 9, 50)])
    y = (X[:, 0] > 50).astype(float)
    spoilt, labels = np.vstack([X, [[bad, 1.0], [50.0, bad]]]), np.append(y, [1.0, 0.0])
    (one, target), (two, _) = local(name), local(name)
    fitted(one, X, y if target else None)
    fitted(two, spoilt, labels if target else None)
    assert one.result_.results.keys() == two.result_.results.keys() if name != "curator" else True
    for key in getattr(one.result_, "results", {}):
        # NaN, which is not known, is equal to itself here.
        np.testing.assert_array_equal(one.result_.results[key], two.result_.results[key], key)
    if name == "kmeans":
        assert two.labels_[-2:].tolist() == [-1, -1]
    if target:
        missing = np.append(y, [np.nan, np.nan])
        three = fitted(local(name)[0], np.vstack([X, X[:2]]), missing)
        for key in one.result_.results:
            np.testing.assert_array_equal(one.result_.results[key], three.result_.results[key], key)


@pytest.mark.parametrize("name", LOCAL)
def test_a_table_without_records_stops_no_fit(name: str) -> None:
    estimator, target = local(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the model is noise alone
        fitted(estimator, np.empty((0, 2)), np.empty(0) if target else None)
    every = np.full((3, 2), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        every_lost = local(name)[0].set_params(max_loss=1.0)
        fitted(every_lost, every, np.array([0.0, 1.0, 1.0]) if target else None)


def test_attributes_and_arguments_that_need_another_say_which() -> None:
    rows = np.random.default_rng(0).uniform([0, -3], [100, 9], (N, 2))
    model = plain(DPOutlierDetector).fit(rows)
    with pytest.raises(AttributeError, match="flagged_ is not released; fit with count_share > 0"):
        _ = model.flagged_
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = model.other
    with pytest.raises(PlanError, match="formula needs a schema as bounds"):
        plain(DPGeneralizedLinearRegressor, formula="y ~ x").fit(rows)
