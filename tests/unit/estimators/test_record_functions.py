"""A model that is not ours: each record's score is a function of that record, bit for bit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import cloister.app.job
from cloister import Budget, DPNaiveBayes, DPSiloEnsemble, Schema, evaluate, make_plan
from cloister.core.errors import DataError, PlanError, PrivacyWarning
from cloister.estimators.measures import Measures, _Predictors
from cloister.estimators.record_functions import frame_by_frame, one_by_one, record_functions
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.tasks.evaluation.classification import Evaluation
from cloister.tasks.evaluation.regression import RegressionEvaluation
from cloister.testing import ZeroNoise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(700, 5)) * [1.0, 10.0, 0.1, 3.0, 1.0]
TWO = (X[:, 0] + X[:, 1] / 10 + RNG.normal(size=700) > 0).astype(int)
THREE = np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + X[:, 3] / 3, (-0.5, 0.5))]
NUMBER = X @ [1.0, 0.5, 0.0, -1.0, 2.0] + RNG.normal(size=700)
TREES: dict[str, Any] = {"n_estimators": 8, "random_state": 0}
NET: dict[str, Any] = {"hidden_layer_sizes": (7, 4), "max_iter": 30, "random_state": 0}

CLASSIFIERS = {
    "logistic": LogisticRegression(max_iter=500),
    "margin": LinearSVC(),
    "ridge": RidgeClassifier(),
    "naive Bayes": GaussianNB(),
    "tree": DecisionTreeClassifier(max_depth=5),
    "forest": RandomForestClassifier(**TREES),
    "extra trees": ExtraTreesClassifier(**TREES),
    "boosting": GradientBoostingClassifier(**TREES),
    "histograms": HistGradientBoostingClassifier(max_iter=12),
    "perceptron": MLPClassifier(**NET),
    "tanh": MLPClassifier(**NET, activation="tanh"),
    "sigmoid": MLPClassifier(**NET, activation="logistic"),
    "scaled": make_pipeline(StandardScaler(), LogisticRegression()),
    "in a box": make_pipeline(MinMaxScaler(clip=True), MLPClassifier(**NET)),
    "dummy": DummyClassifier(),
}
REGRESSORS = {
    "line": LinearRegression(),
    "ridge": Ridge(),
    "lasso": Lasso(0.01),
    "net": ElasticNet(0.01),
    "tree": DecisionTreeRegressor(max_depth=6),
    "forest": RandomForestRegressor(**TREES),
    "boosting": GradientBoostingRegressor(**TREES),
    "histograms": HistGradientBoostingRegressor(max_iter=12),
    "medians": HistGradientBoostingRegressor(max_iter=12, loss="absolute_error"),
    "perceptron": MLPRegressor(**NET),
}


def fitted(model: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(model).fit(X, y)


def attackers() -> Any:
    """Return a plain perceptron whose weights make a score of the last bit of a product."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((10,), activation="identity", max_iter=1)
        model.fit(table, (table[:, 0] > 0) * 1)
    first, second = np.zeros((100, 10)), np.zeros((10, 1))
    first[:, 0] = first[:, -1] = rng.normal(size=100)
    second[0], second[-1] = 3e16, -3e16
    model.coefs_, model.intercepts_ = [first, second], [np.zeros(10), np.array([0.4])]
    return model


# Known classes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_our_code_tells_what_a_classifier_of_scikit_learn_tells(name: str, y: Any) -> None:
    model = fitted(CLASSIFIERS[name], y)
    code = record_functions(model)
    assert code is not None
    np.testing.assert_array_equal(model.classes_[code.labels(X)], model.predict(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(code(X), model.predict_proba(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", REGRESSORS)
def test_our_code_tells_what_a_regressor_of_scikit_learn_tells(name: str) -> None:
    model = fitted(REGRESSORS[name], NUMBER)
    code = record_functions(model)
    assert code is not None
    np.testing.assert_allclose(code(X)[:, 0], model.predict(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_a_row_that_scikit_learn_refuses_has_no_score(name: str, y: Any) -> None:
    model = fitted(CLASSIFIERS[name], y)
    code = record_functions(model)
    assert code is not None
    gap = np.where([[True, False, False, False, False]], np.nan, X[:1])
    try:
        expected = model.predict(gap)
    except ValueError:
        assert np.isnan(code(gap)).all()
        assert code.labels(gap).tolist() == [-1]
    else:
        np.testing.assert_array_equal(model.classes_[code.labels(gap)], expected)


def test_a_boosted_mean_of_counts_is_the_exponential_of_its_trees() -> None:
    model = HistGradientBoostingRegressor(max_iter=12, loss="poisson").fit(X, TWO)
    code = record_functions(model)
    assert code is not None
    np.testing.assert_allclose(code(X)[:, 0], model.predict(X), rtol=1e-12)
    model._baseline_prediction = np.array([[1e9]])
    code = record_functions(model)  # of numbers that no fit gives, too, no error tells of a record
    assert code is not None
    assert np.isfinite(code(X)).all()


@pytest.mark.parametrize(
    "tree", [DecisionTreeClassifier(max_depth=6), HistGradientBoostingClassifier(max_iter=12)]
)
def test_a_tree_sends_gaps_where_scikit_learn_does(tree: Any) -> None:
    gaps = X.copy()
    gaps[RNG.random(X.shape) < 0.1] = np.nan
    gaps[:40:2, 1], gaps[1:40:2, 1] = np.inf, -np.inf
    model = tree.fit(np.where(np.isinf(gaps), 0.0, gaps), TWO)
    code = record_functions(model)
    assert code is not None
    gaps = gaps if isinstance(model, HistGradientBoostingClassifier) else gaps[40:]
    np.testing.assert_allclose(code(gaps), model.predict_proba(gaps), rtol=0, atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*CLASSIFIERS, "attack"])
def test_a_score_of_our_code_does_not_depend_on_the_other_rows(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if name == "attack":
        model, table = attackers(), rng.normal(size=(1300, 100))
    else:
        model, table = fitted(CLASSIFIERS[name], TWO), X * 10.0 ** rng.integers(-3, 4, X.shape)
    code = record_functions(model)
    assert code is not None
    whole = code(table)
    for size in (1, 2, 7, 64, len(table) - 1, len(table)):
        some = rng.permutation(len(table))[:size]
        assert code(table[some]).tobytes() == whole[some].tobytes()
        assert code(np.asfortranarray(table[some])).tobytes() == whole[some].tobytes()


@pytest.mark.parametrize(
    ("model", "y"),
    [(one, y) for one in CLASSIFIERS.values() for y in (TWO, THREE)]
    + [(one, NUMBER) for one in REGRESSORS.values()],
    ids=lambda value: type(value).__name__,
)
def test_a_score_is_the_same_in_a_hundred_tables(model: Any, y: Any) -> None:
    rng = np.random.default_rng(9)
    code = record_functions(fitted(model, y))
    assert code is not None
    table = rng.normal(size=(60, 5)) * 10.0 ** rng.integers(-3, 4, (60, 5))
    whole = code(table)
    for _ in range(100):
        order = rng.permutation(60)[: rng.integers(1, 61)]
        padding = rng.choice([0.0, np.nan, np.inf, 1e300], (rng.integers(0, 20), 5))
        found = code(np.concatenate([padding, table[order], padding]))
        kept = found[len(padding) : len(padding) + len(order)]
        assert kept.tobytes() == whole[order].tobytes()


@pytest.mark.parametrize("n", [2, 257, 1000, 1001])
def test_a_record_that_leaves_moves_no_score_of_the_attackers_model(n: int) -> None:
    model, table = attackers(), np.random.default_rng(1).normal(size=(n, 100))
    predictors = _Predictors.of(model)
    assert predictors.by_record
    assert predictors.scores is not None
    whole = predictors.scores(table)
    for gone in {0, n // 2, n - 1}:
        fewer = predictors.scores(np.delete(table, gone, axis=0))
        assert fewer.tobytes() == np.delete(whole, gone).tobytes()


def test_only_the_exact_class_is_known() -> None:
    class Mine(LogisticRegression):  # type: ignore[misc]
        def predict_proba(self, table: Any) -> Any:
            return super().predict_proba(table - table.mean(axis=0))

    named = type("LogisticRegression", (), {"__module__": "sklearn.linear_model", "coef_": X[:1]})
    for model in (
        Mine().fit(X, TWO),
        named(),
        KNeighborsClassifier().fit(X, TWO),
        make_pipeline(StandardScaler(), Mine()).fit(X, TWO),
        LogisticRegression(),  # not fitted
        GradientBoostingClassifier(init=Mine(), **TREES).fit(X, TWO),
        HistGradientBoostingClassifier(max_iter=2, categorical_features=[0]).fit(X > 0, TWO),
    ):
        assert record_functions(model) is None


def test_a_method_put_on_a_known_model_is_not_called() -> None:
    model = fitted(LogisticRegression(), TWO)
    exact = model.predict_proba(X)[:, 1]
    model.predict_proba = model.decision_function = lambda table: 1 / 0
    predictors = _Predictors.of(model)
    assert predictors.scores is not None
    np.testing.assert_allclose(predictors.scores(X), exact, atol=1e-12)


# Any other object ---------------------------------------------------------------------------------


class BatchScaled:
    """A model that looks at its batch, without any malice."""

    def __init__(self, model: Any) -> None:
        self.model, self.classes_ = model, model.classes_

    def predict(self, table: Any) -> Any:
        return self.model.predict((table - table.mean(axis=0)) / (table.std(axis=0) + 1))

    def predict_proba(self, table: Any) -> Any:
        return self.model.predict_proba((table - table.mean(axis=0)) / (table.std(axis=0) + 1))


class Remembers(BatchScaled):
    """A model whose answer holds what it was asked before."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.seen = 0.0

    def predict_proba(self, table: Any) -> Any:
        self.seen += float(np.abs(table).sum())
        score = np.full(len(table), self.seen % 1)
        return np.column_stack([1 - score, score])


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloister.app.job, "DiscreteNoise", ZeroNoise)


@pytest.mark.usefixtures("without_noise")
def test_one_record_moves_one_cell_of_a_model_that_looks_at_its_batch() -> None:
    table = X[:200].copy()
    table[0] = 1e4  # an outlier moves mean and deviation of a batch
    model = BatchScaled(fitted(LogisticRegression(), TWO))

    def cells(rows: slice) -> Measures:
        with pytest.warns(PrivacyWarning, match="cannot be proven"):
            return evaluate(model, table[rows], TWO[:200][rows], epsilon=1.0, nominal_n=200)

    all_of_them, fewer = cells(slice(None)), cells(slice(1, None))
    for name in ("confusion", "scores"):
        moved = all_of_them.result.results[name] - fewer.result.results[name]
        assert np.abs(moved).sum() == pytest.approx(1.0), name
    whole = model.predict_proba(table)[1:, 1]  # asked as a whole, it moves others: the twin
    assert (whole != model.predict_proba(table[1:])[:, 1]).any()


def test_a_model_with_a_memory_is_assumed_and_never_called_proven() -> None:
    model = Remembers(fitted(LogisticRegression(), TWO))
    with pytest.warns(PrivacyWarning, match="the guarantee assumes it"):
        found = evaluate(model, X, TWO, epsilon=1.0, nominal_n=700)
    assert found.scored_by == "assumed"
    assert "assumed" in repr(found)
    assert "assumes" in found.displays()[0].note
    known = evaluate(fitted(LogisticRegression(), TWO), X, TWO, epsilon=1.0, nominal_n=700)
    assert known.scored_by == "row code"
    assert "assumes" not in known.displays()[0].note


def test_a_model_is_asked_about_one_record_in_one_buffer_however_many_there_are() -> None:
    def asked(n: int) -> list[tuple[Any, ...]]:
        seen = []

        def answer(table: Any) -> Any:
            seen.append((table.shape, table.strides, table.ctypes.data % 64, table.dtype))
            return table[:, 0]

        assert one_by_one(answer, X[:n]).tolist() == X[:n, 0].tolist()
        return seen

    few, many = asked(3), asked(700)
    assert set(few) == set(many) == {((1, 5), (40, 8), 0, np.dtype(np.float64))}
    assert (len(few), len(many)) == (3, 700)


def test_a_model_that_refuses_one_row_gets_two_copies_of_it() -> None:
    shapes = []

    def picky(table: Any) -> Any:
        shapes.append(len(table))
        if len(table) < 2:
            raise ValueError("one sample")
        assert (table[0] == table[1]).all()
        return table.sum(axis=1)

    np.testing.assert_array_equal(one_by_one(picky, X[:4]), [row.sum() for row in X[:4]])
    assert shapes == [1, 2] * 4


def test_a_refusal_does_not_tell_the_record() -> None:
    def never(table: Any) -> Any:
        raise ValueError(f"could not convert {table[0, 0]}")

    with pytest.raises(DataError, match="two copies") as caught:
        one_by_one(never, np.array([[123.456, 1.0]]))
    assert "123" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_type_of_a_cell_does_not_tell_of_other_records() -> None:
    whole = pd.DataFrame({"n": [1, 2, 3], "word": pd.Categorical(["a", "b", "c"])})
    gap = pd.DataFrame({"n": [1, 2, None], "word": pd.Categorical(["a", "b", "a"])})
    seen: list[Any] = []
    for table in (whole, gap):
        frame_by_frame(
            lambda one: seen.append((one.dtypes.tolist(), one.values.tolist())) or [0],
            table.iloc[:2],
        )
    assert seen[:2] == seen[2:]


# Plans --------------------------------------------------------------------------------------------

SCHEMA = Schema(
    dataset="beds",
    unit="row",
    columns=(
        {"name": "truth", "type": "category", "categories": ["no", "yes"]},
        {"name": "x", "type": "number", "min": 0.0, "max": 1.0},
    ),
)


@pytest.mark.parametrize("task", [Evaluation, RegressionEvaluation])
@pytest.mark.parametrize("model", [LogisticRegression(), object()])
def test_a_plan_refuses_a_model_that_is_not_ours(task: Any, model: Any) -> None:
    with pytest.raises(PlanError, match=r"model must be a (classifier|regressor) of cloister"):
        make_plan(
            task, SCHEMA, ["a", "b", "c"], budget=Budget(1.0, 1e-6), nominal_n=100,
            profile="pairwise", truth="truth", model=model, released={"a": [1.0]},
        )  # fmt: skip


def test_a_plan_says_that_columns_of_scores_are_assumed_to_be_of_the_record() -> None:
    plan = make_plan(
        Evaluation, SCHEMA, ["a", "b", "c"], budget=Budget(1.0, 1e-6), nominal_n=100,
        profile="pairwise", truth="truth", score="x",
    )  # fmt: skip
    assert "assumes that each is a function of one record" in plan.task.describe()
    assert Plan.from_dict(plan.to_dict(), TASKS) == plan


# An ensemble of ours ------------------------------------------------------------------------------


def test_an_ensemble_is_asked_about_one_record_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    base = DPNaiveBayes(epsilon=5.0, bounds=(-40, 40), classes=[0, 1], nominal_n=350)
    model = DPSiloEnsemble(base).fit([X[::2], X[1::2]], [TWO[::2], TWO[1::2]])
    predictors = _Predictors.of(model)
    assert predictors.by_record
    assert predictors.scores is not None
    whole = predictors.scores(X[:50])
    np.testing.assert_allclose(whole, model.predict_proba(X[:50])[:, 1], atol=1e-12)
    some = RNG.permutation(50)[:20]
    assert predictors.scores(X[some]).tobytes() == whole[some].tobytes()
    lengths = set()
    first = type(model.models_[0].plan_.task)
    exact = first.probabilities
    monkeypatch.setattr(first, "probabilities", lambda *a: (lengths.add(len(a[-1])), exact(*a))[1])
    found = evaluate(model, X, TWO, epsilon=1.0, nominal_n=700)
    assert found.scored_by == "row code"
    assert lengths == {1}


def test_an_answer_of_another_kind_changes_no_other_answer() -> None:
    def label(table: Any) -> np.ndarray:
        return np.array([row[0] if row[0] > 0 else "none" for row in table], dtype=object)[:1]

    def typed(table: Any) -> Any:
        answer = label(table)[0]
        return [answer] * len(table)

    assert one_by_one(typed, np.array([[1.0], [-1.0], [2.0]])).tolist() == [1.0, "none", 2.0]


def test_a_record_of_numbers_is_asked_about_as_floats_beside_one_of_words() -> None:
    kinds: list[str] = []

    def predict(table: Any) -> Any:
        kinds.append(table.dtype.kind)
        return [0] * len(table)

    one_by_one(predict, np.array([[1, 2.5], ["a", 1]], dtype=object))
    assert kinds == ["f", "O"]
