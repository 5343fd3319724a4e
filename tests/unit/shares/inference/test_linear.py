from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler

from cloister import DPLinearRegression, DPLogisticRegression, DPNaiveBayes, Schema
from cloister.core.errors import DataError, PlanError
from cloister.data.schema import Column
from cloister.shares.inference.linear import (
    Entry,
    Layout,
    LinearScorer,
    linear_scorer,
    mean_scorer,
)

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 8, (400, 3))
Y = (X @ [1.0, -2.0, 0.5] + RNG.normal(size=400) > 0).astype(int)
Y3 = np.digitize(X[:, 0], [0, 4])
BOUNDS = (-3, 8)
SCHEMA = Schema(
    dataset="t",
    unit="row",
    columns=(
        Column(name="age", type="number", min=0, max=90),
        Column(name="job", type="category", categories=["desk", "field", "none"]),
        Column(name="buys", type="category", categories=["no", "yes"]),
    ),
)
TABLE = pd.DataFrame(
    {
        "age": RNG.uniform(0, 90, 300),
        "job": RNG.choice(["desk", "field", "none"], 300),
        "buys": RNG.choice(["no", "yes"], 300),
    }
)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LinearRegression(), X[:, 0]),
        (make_pipeline(StandardScaler(), Ridge()), X[:, 1]),
        (LogisticRegression(), Y),
        (make_pipeline(MinMaxScaler(), StandardScaler(), LogisticRegression()), Y3),
    ],
)
def test_a_model_of_scikit_learn_keeps_its_predictions(model: Any, y: Any) -> None:
    model.fit(X, y)
    expected = model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)
    assert linear_scorer(model, BOUNDS).predict(X) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (DPNaiveBayes, {"numbers": "gaussian"}),
        (DPNaiveBayes, {"bins": 5}),
        (DPLogisticRegression, {}),
    ],
)
def test_a_private_classifier_keeps_its_predictions(kind: Any, options: Any) -> None:
    model = kind(epsilon=5.0, bounds=BOUNDS, classes=[0, 1, 2], nominal_n=400, **options)
    scorer = linear_scorer(model.fit(X, Y3))
    assert scorer.layout.classes == (0, 1, 2)
    assert scorer.predict(X) == pytest.approx(model.predict_proba(X), abs=1e-12)


@pytest.mark.parametrize("kind", [DPNaiveBayes, DPLogisticRegression])
def test_categories_become_entries(kind: Any) -> None:
    model = kind(epsilon=5.0, bounds=SCHEMA, target="buys", nominal_n=300).fit(TABLE)
    scorer = linear_scorer(model.result_)  # a saved model says the same
    assert scorer.layout.columns[1].categories == ("desk", "field", "none")
    assert scorer.predict(TABLE) == pytest.approx(model.predict_proba(TABLE), abs=1e-12)


def test_private_least_squares_keeps_its_predictions() -> None:
    model = DPLinearRegression(epsilon=5.0, bounds=BOUNDS, target_bounds=(-9, 9), nominal_n=400)
    model.fit(X, X[:, 0] - X[:, 1])
    assert linear_scorer(model).predict(X) == pytest.approx(model.predict(X), abs=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(2),
        GaussianNB(),
        make_pipeline(PolynomialFeatures(), LogisticRegression()),
        make_pipeline(MinMaxScaler(clip=True), LogisticRegression()),
        "a word",
    ],
)
def test_what_is_not_linear_is_refused(model: Any) -> None:
    with pytest.raises(PlanError, match="cannot be scored under encryption"):
        linear_scorer(model if isinstance(model, str) else model.fit(X, Y), BOUNDS)


def test_probabilities_that_are_no_softmax_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As older versions make them of two classes: a softmax of the score and its negative."""
    model = LogisticRegression().fit(X, Y)

    def of_both_signs(self: Any, rows: Any) -> Any:
        odds = np.exp(2 * self.decision_function(rows))
        return np.column_stack([1 / (1 + odds), odds / (1 + odds)])

    monkeypatch.setattr(LogisticRegression, "predict_proba", of_both_signs)
    with pytest.raises(PlanError, match="no softmax of its scores"):
        linear_scorer(model, BOUNDS)


def test_private_models_behind_other_steps_are_refused() -> None:
    model = DPNaiveBayes(
        epsilon=5.0,
        bounds=BOUNDS,
        classes=[0, 1],
        nominal_n=400,
        prepare=[("standardise", {})],
    )
    with pytest.raises(PlanError, match="cannot be scored under encryption"):
        linear_scorer(model.fit(X, Y))


SCORER = linear_scorer(LogisticRegression().fit(X, Y3), BOUNDS)


def test_a_saved_scorer_comes_back_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    SCORER.save(tmp_path / "model.json")
    assert LinearScorer.load(tmp_path / "model.json").digest == SCORER.digest
    assert (tmp_path / "model.json").stat().st_mode & 0o077 == 0
    with pytest.raises(DataError, match="File exists"):
        SCORER.save(tmp_path / "model.json")
    (tmp_path / "model.json").chmod(0o640)
    with pytest.raises(DataError, match="may be read by others"):
        LinearScorer.load(tmp_path / "model.json")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"weights": [[1.0]]},
        {"weights": [["a"]]},
        {"weights": [[float("nan")] * 3] * 2},
        {"layout": {}},
        {"layout": {"columns": [{"name": 1}], "frac_bits": 0}},
        {"layout": {"columns": [], "frac_bits": 0}},
        {"classes": [[1], [2], [3]]},
        {"classes": [0]},
        {"classes": [0, 1]},
        {"frac_bits": 2},
        {"more": 1},
    ],
)
def test_a_changed_file_of_a_scorer_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    SCORER.save(tmp_path / "model.json")
    document = json.loads((tmp_path / "model.json").read_text())
    of_layout = change.keys() & document["layout"].keys()
    (document["layout"] if of_layout else document).update(change)
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="must be a file 'cloister-linear/1'"):
        LinearScorer.load(tmp_path / "model.json")


@pytest.mark.parametrize("text", ["", "[]", "1", "[" * 100_000])
def test_what_is_no_scorer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    (tmp_path / "model.json").chmod(0o600)
    for name in ("model.json", "absent.json"):
        with pytest.raises(DataError, match="must be a file 'cloister-linear/1'"):
            LinearScorer.load(tmp_path / name)


def test_a_value_out_of_range_is_refused_without_being_named() -> None:
    for bad in (8.125, np.nan, np.inf):
        rows = X.copy()
        rows[7, 1] = bad
        with pytest.raises(DataError, match=r"'x1' must be finite and in \[-3, 8\]") as refused:
            SCORER.layout.encode(rows)
        assert "8.125" not in str(refused.value)
    for shape in ((4,), (4, 2), (0, 3)):
        with pytest.raises(DataError, match=r"2 dimensions|has 2 columns|at least one"):
            SCORER.layout.encode(np.zeros(shape))
    with pytest.raises(DataError, match="must be finite"):
        SCORER.layout.encode(np.array([["a", "b", "c"]]))


def test_an_unknown_category_is_refused_without_being_named() -> None:
    model = DPNaiveBayes(epsilon=5.0, bounds=SCHEMA, target="buys", nominal_n=300).fit(TABLE)
    layout = linear_scorer(model).layout
    for bad in ("secret", None, np.nan, 0.5):
        with pytest.raises(DataError, match="'job' must be one of") as refused:
            layout.encode(pd.DataFrame({"age": [3.0], "job": [bad]}))
        assert "secret" not in str(refused.value)
    with pytest.raises(DataError, match="'job' must be one of"):
        layout.encode(np.array([[3.0, 0.5]]))
    with pytest.raises(DataError, match="no column 'job'"):
        layout.encode(pd.DataFrame({"age": [3.0]}))


def test_an_ensemble_answers_with_its_mean_score() -> None:
    others = [linear_scorer(LogisticRegression(C=c).fit(X, Y3), BOUNDS) for c in (0.1, 10)]
    mean = mean_scorer([SCORER, *others]).scores(X)
    assert mean == pytest.approx(np.mean([s.scores(X) for s in (SCORER, *others)], axis=0))
    with pytest.raises(PlanError, match="same columns"):
        mean_scorer([SCORER, linear_scorer(LogisticRegression().fit(X, Y), BOUNDS)])


def test_a_scorer_shows_no_weights() -> None:
    assert str(SCORER.weights[0, 0])[:6] not in repr(SCORER)


def test_a_missing_cell_is_no_category_whatever_categories_are_called(tmp_path: Path) -> None:
    columns = (
        Entry("stage", 0, 2, ("nan", "None", "01")),
        Entry("age", 0, 90),
    )
    layout, file = Layout(columns=columns), tmp_path / "rows.csv"
    for missing in (None, np.nan, pd.NA):
        frame = pd.DataFrame({"age": [45.0], "stage": pd.Series([missing], dtype=object)})
        with pytest.raises(DataError, match="'stage' must be one of"):
            layout.encode(frame)
    file.write_text("stage,age\n01,45\nNone,0\n,45\n")
    with pytest.raises(DataError, match="'stage' must be one of"):
        layout.encode(file)
    file.write_text("stage,age\n01,45\nNone,0\n")
    assert layout.encode(file).tolist() == [[0, 1, 0], [1, 0, -1]]


def test_categories_that_look_like_numbers_are_read_by_name() -> None:
    columns = (
        Entry("stage", 0, 2, ("1", "2", "3")),
        Entry("age", 0, 90),
    )
    layout = Layout(columns=columns)
    expected = [[0, 0], [1, 0], [0, 1]]
    for stages in ([1, 2, 3], [1.0, 2.0, 3.0], ["1", "2", "3"]):
        frame = pd.DataFrame({"age": [45.0] * 3, "stage": stages})
        assert layout.encode(frame)[:, :2].tolist() == expected
    assert layout.encode(np.array([[1, 45], [2, 45], [3, 45]]))[:, :2].tolist() == expected
