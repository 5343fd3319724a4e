"""All tables, labels and predictions come in by one door: matched by name, read cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from cloister import (
    DPPCA,
    DPForestRegressor,
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
    FederatedLearner,
    cluster_quality,
    dp_statistics,
    evaluate,
    mine_rules,
)
from cloister.core.errors import DataError, PlanError
from cloister.estimators.tables import plain_schema
from cloister.testing import zero_noise

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(0, 1, (N, 3))
Y = (X[:, 0] + 0.5 * RNG.normal(size=N) > 0).astype(int)
Z = X @ [1.0, 2.0, 3.0]
FRAME = pd.DataFrame(X, columns=list("abc"))
COMMON: dict[str, Any] = {"epsilon": 4.0, "bounds": (-4, 4), "nominal_n": N}
CLASSES: dict[str, Any] = {**COMMON, "classes": [0, 1]}
HALF = N // 2

FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "polars lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "arrow": pa.Table.from_pandas,
    "arrow stream": lambda frame: pa.Table.from_pandas(frame).to_reader(),
}
LABELLED: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "naive Bayes": (zero_noise(DPNaiveBayes)(**CLASSES), Y, lambda m: m.predict_proba(FRAME)),
    "logistic": (zero_noise(DPLogisticRegression)(**CLASSES), Y, lambda m: m.coef_),
    "forest": (
        zero_noise(DPRandomForestClassifier)(**CLASSES, random_state=0),
        Y,
        lambda m: m.predict_proba(FRAME),
    ),
    "forest of numbers": (
        zero_noise(DPForestRegressor)(**COMMON, target_bounds=(-15, 15), random_state=0),
        Z,
        lambda m: m.predict(FRAME),
    ),
    "shapes": (
        zero_noise(DPShapesClassifier)(**COMMON, classes=[0, 1]),
        Y,
        lambda m: m.predict_proba(FRAME),
    ),
    "shapes of numbers": (
        zero_noise(DPShapesRegressor)(**COMMON, target_bounds=(-15, 15)),
        Z,
        lambda m: m.predict(FRAME),
    ),
    "linear": (
        zero_noise(DPLinearRegression)(**COMMON, target_bounds=(-15, 15)),
        Z,
        lambda m: m.coef_,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", LABELLED)
def test_silos_with_labels_are_matched_by_the_names_of_their_columns(kind: str, form: str) -> None:
    model, y, learned = LABELLED[kind]
    pooled = learned(model.fit([FRAME[:HALF], FRAME[HALF:]], [y[:HALF], y[HALF:]]))
    swapped = FORMS[form](FRAME[HALF:][["b", "a", "c"]])
    np.testing.assert_array_equal(
        learned(model.fit([FRAME[:HALF], swapped], [y[:HALF], y[HALF:]])), pooled
    )


OTHER = {
    "lacks 'b'": FRAME[HALF:][["a", "c"]],
    "lacks 'b' and also has 'zz'": FRAME[HALF:].rename(columns={"b": "zz"}),
    "also has 'zz'": FRAME[HALF:].assign(zz=0.0),
}


@pytest.mark.parametrize("difference", OTHER)
def test_a_silo_of_other_columns_is_refused_with_their_names(difference: str) -> None:
    silos, labels = [FRAME[:HALF], OTHER[difference]], [Y[:HALF], Y[HALF:]]
    asks: list[Callable[[], Any]] = [
        lambda: LABELLED["naive Bayes"][0].fit(silos, labels),
        lambda: LABELLED["linear"][0].fit(silos, labels),
        lambda: DPKMeans(2, **COMMON).fit(silos),
        lambda: DPStandardScaler(**COMMON).fit(silos),
        lambda: DPPCA(2, **COMMON).fit(silos),
        lambda: DPOutlierDetector(**COMMON).fit(silos),
        lambda: dp_statistics(silos, **COMMON),
        lambda: DPSiloEnsemble(DPNaiveBayes(**CLASSES)).fit(silos, labels),
        lambda: mine_rules([silo > 0 for silo in silos], epsilon=1.0, nominal_n=N),
        lambda: cluster_quality([[0.0] * 3], silos, **COMMON),
        lambda: FederatedLearner(LogisticRegression(), epsilon=1.0).fit(
            list(zip(silos, labels, strict=True))
        ),
    ]
    for ask in asks:
        with pytest.raises(DataError, match=f"silo 1 {difference}"):
            ask()


@pytest.mark.filterwarnings("ignore")
def test_a_model_is_measured_on_columns_of_the_same_names() -> None:
    model = LABELLED["naive Bayes"][0].fit(FRAME, Y)
    ask = {"epsilon": 1e6, "nominal_n": N}
    right = evaluate(model, [FRAME[:HALF], FRAME[HALF:]], [Y[:HALF], Y[HALF:]], **ask)
    for silos in (
        [FRAME[:HALF], FRAME[HALF:][["c", "b", "a"]]],
        [FRAME[:HALF][["c", "b", "a"]], FRAME[HALF:]],
    ):
        found = evaluate(model, silos, [Y[:HALF], Y[HALF:]], **ask)
        assert abs(found["auc"].value - right["auc"].value) < 1e-3
    for theirs in (LogisticRegression().fit(FRAME, Y), LogisticRegression().fit(X, Y)):
        right = evaluate(theirs, [FRAME[:HALF], FRAME[HALF:]], [Y[:HALF], Y[HALF:]], **ask)
        swapped = [FRAME[:HALF], FRAME[HALF:][["c", "b", "a"]]]
        found = evaluate(theirs, swapped, [Y[:HALF], Y[HALF:]], **ask)
        assert abs(found["auc"].value - right["auc"].value) < 1e-3


def test_centres_are_measured_on_columns_of_the_same_names() -> None:
    model = zero_noise(DPKMeans)(2, **COMMON, random_state=0).fit(FRAME * [1, 0.1, 0.1])
    ask = {"epsilon": 1e6, "nominal_n": N}
    table = FRAME * [1, 0.1, 0.1]
    values = [
        cluster_quality(model, t, **ask)["nicv"].value for t in (table, table[["c", "b", "a"]])
    ]
    assert abs(values[0] - values[1]) < 1e-3


@pytest.mark.filterwarnings("ignore")
def test_an_ensemble_matches_columns_by_name() -> None:
    base = zero_noise(DPNaiveBayes)(**CLASSES)
    labels = [Y[:HALF], Y[HALF:]]
    right = DPSiloEnsemble(base).fit([FRAME[:HALF], FRAME[HALF:]], labels)
    found = DPSiloEnsemble(base).fit([FRAME[:HALF], FRAME[HALF:][["c", "a", "b"]]], labels)
    np.testing.assert_array_equal(found.predict_proba(FRAME), right.predict_proba(FRAME))


def test_rules_are_of_items_of_the_same_names() -> None:
    table = FRAME > 0
    ask = {"epsilon": 1e6, "nominal_n": N, "min_support": 0.01}
    right = mine_rules([table[:HALF], table[HALF:]], **ask).itemsets
    found = mine_rules([table[:HALF], table[HALF:][["c", "a", "b"]]], **ask).itemsets
    # Supports of 400 rows; the noise is below a hundredth of a row.
    expected = {s.items: pytest.approx(s.support, abs=1e-3) for s in right}
    assert {s.items: s.support for s in found} == expected


# Labels -------------------------------------------------------------------------------------------

WORDS = np.where(Y, "b", "a")
ONE = np.arange(N) == 7
ODD: list[Any] = [
    None,
    np.nan,
    pd.NA,
    pd.NaT,
    "SECRET-77",
    0.5,
    b"\xff",
    [1],
    {"a": 1},
    1j,
    10**400,
]
HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda cells: cells,
    "objects": lambda cells: _objects(cells),
    "pandas": lambda cells: pd.Series(cells, dtype=object),
    "pandas with an index": lambda cells: pd.Series(cells, dtype=object, index=range(N, 0, -1)),
    "categories": lambda cells: pd.Series(cells, dtype=object).astype("category"),
    "strings": lambda cells: pd.Series(cells, dtype="string"),
}


def _objects(cells: list[Any]) -> np.ndarray:
    found = np.empty(len(cells), dtype=object)
    found[:] = cells
    return found


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("odd", ODD, ids=[str(i) for i in range(len(ODD))])
def test_an_odd_label_drops_its_record_only(holder: str, odd: Any) -> None:
    for labels, classes in ((WORDS.tolist(), ["a", "b"]), (Y.tolist(), [0, 1])):
        cells = [odd if is_odd else cell for cell, is_odd in zip(labels, ONE, strict=True)]
        try:
            y = HOLDERS[holder](cells)
        except (TypeError, ValueError):
            return  # no such container
        model = zero_noise(DPNaiveBayes)(epsilon=2.0, bounds=(-4, 4), nominal_n=N, classes=classes)
        found = model.fit(X, y).predict_proba(X)
        right = model.fit(X[~ONE], np.array(labels)[~ONE]).predict_proba(X)
        np.testing.assert_allclose(found, right)


@pytest.mark.parametrize("odd", ODD[:8], ids=[str(i) for i in range(8)])
def test_an_odd_target_drops_its_record_and_is_not_quoted(odd: Any) -> None:
    model = zero_noise(DPLinearRegression)(**COMMON, target_bounds=(-15, 15))
    y = _objects([odd if is_odd else value for value, is_odd in zip(Z, ONE, strict=True)])
    right = model.fit(X[~ONE], Z[~ONE]).coef_
    if isinstance(odd, float) and odd == 0.5:
        right = model.fit(X, np.where(ONE, 0.5, Z)).coef_
    np.testing.assert_allclose(model.fit(X, y).coef_, right)


@pytest.mark.filterwarnings("ignore")
def test_odd_truths_and_predictions_drop_their_records_only() -> None:
    ask: dict[str, Any] = {"epsilon": 1e6, "nominal_n": N}
    theirs = LogisticRegression().fit(X, WORDS)
    right = evaluate(theirs, X[~ONE], WORDS[~ONE], **ask)["accuracy"].value
    predicted = theirs.predict(X)
    for odd in ODD:
        y = _objects([odd if is_odd else cell for cell, is_odd in zip(WORDS, ONE, strict=True)])
        assert abs(evaluate(theirs, X, y, **ask)["accuracy"].value - right) < 1e-3
        p = _objects([odd if is_odd else cell for cell, is_odd in zip(predicted, ONE, strict=True)])
        found = evaluate(predictions=p, truth=WORDS, classes=["a", "b"], **ask)
        assert abs(found["accuracy"].value - right) < 1e-3
        numbers = _objects([odd if is_odd else cell for cell, is_odd in zip(Z, ONE, strict=True)])
        found = evaluate(predictions=Z, truth=numbers, target_bounds=(-15, 15), **ask)
        assert found["rmse"].value < 0.1


def test_the_set_of_labels_in_y_leaves_out_missing_ones() -> None:
    for labels in (
        pd.Series(WORDS, dtype="string").mask(ONE),
        _objects([None if is_odd else cell for cell, is_odd in zip(WORDS, ONE, strict=True)]),
        WORDS,
    ):
        model = DPNaiveBayes(epsilon=2.0, bounds=(-4, 4), nominal_n=N, classes="in_y")
        assert model.fit(X, labels).classes_.tolist() == ["a", "b"]
    numbers = DPNaiveBayes(epsilon=2.0, bounds=(-4, 4), nominal_n=N, classes="in_y")
    assert numbers.fit(X, np.where(ONE, np.nan, Y)).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    "truths",
    [
        lambda y: y,
        lambda y: [*y.tolist()],
        lambda y: pd.Series(y),
        lambda y: pd.Series(y, dtype="boolean").mask(ONE),
        lambda y: pl.Series(y),
        lambda y: pa.array(y),
    ],
    ids=["numpy", "list", "pandas", "pandas with gaps", "polars", "arrow"],
)
@pytest.mark.filterwarnings("ignore")  # on rows with gaps
def test_labels_of_a_boolean_type_need_no_classes(truths: Callable[[Any], Any]) -> None:
    y = truths(Y > 0)
    forest = partial(DPRandomForestClassifier, random_state=0)
    for kind in (DPNaiveBayes, DPLogisticRegression, forest, DPShapesClassifier):
        model = kind(**COMMON)
        assert model.plan(X, y).plan.task == kind(**COMMON, classes=[False, True]).plan(X).plan.task
        assert model.fit(X, y).classes_.tolist() == [False, True]
        assert model.predict(X).dtype == np.bool_
    both = DPSiloEnsemble(DPNaiveBayes(**COMMON)).fit([X, X], [y, y])
    assert both.classes_.tolist() == [False, True]


def test_the_classes_of_a_boolean_y_are_not_those_of_its_values() -> None:
    y = np.ones(N, dtype=np.bool_)
    assert DPNaiveBayes(**COMMON).fit(X, y).classes_.tolist() == [False, True]
    with pytest.raises(PlanError, match="classes must be the public list"):
        DPNaiveBayes(**COMMON).fit(X, [None, *y[1:].tolist()])
    clients = [(X[:HALF], y[:HALF]), (X[HALF:], y[HALF:])]
    learner = FederatedLearner(SGDClassifier(random_state=0), epsilon=5.0, rounds=1)
    assert learner.fit(clients).model_.classes_.tolist() == [False, True]


def test_missing_labels_have_a_remedy() -> None:
    y = np.where(np.arange(N) % 10, Y, np.nan)
    with pytest.raises(
        DataError, match=r"40 missing.*or these rows if it is the target(.|\n)*max_loss"
    ):
        DPNaiveBayes(**CLASSES).fit(X, y)


def test_a_name_is_no_y() -> None:
    with pytest.raises(DataError, match=r"y must be the labels, got the text 'c'.*target='c'"):
        DPLinearRegression(target_bounds=(0, 1), **NAMED).fit(FRAME[["a", "b"]], "c")


def test_y_has_a_label_for_each_record() -> None:
    with pytest.raises(DataError, match=f"got {N} records and 3 labels"):
        DPNaiveBayes(**CLASSES).fit(X, Y[:3])
    with pytest.raises(DataError, match="1d array"):
        DPNaiveBayes(**CLASSES).fit(X, np.stack([Y, Y], axis=1))


# Bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bounds",
    [
        [(18, 100), (300, 850)],
        {"score": (300, 850), "age": (18, 100)},
        {"age": [18, 100], "score": np.array([300, 850])},
        (np.array([18, 300]), np.array([100, 850])),
    ],
)
def test_bounds_have_one_meaning_each(bounds: Any) -> None:
    columns = plain_schema(bounds, ("age", "score"), None).columns
    assert [(column.min, column.max) for column in columns] == [(18, 100), (300, 850)]


def test_labels_of_other_classes_and_tables_by_name_are_refused_with_a_remedy() -> None:
    with pytest.raises(DataError, match=r"y has no label of the classes \['no', 'yes'\]"):
        DPNaiveBayes(**{**CLASSES, "classes": ["no", "yes"]}).fit(X, Y)
    with pytest.raises(DataError, match=r"got a dict; give list\(X.values\(\)\)"):
        DPNaiveBayes(**CLASSES).fit({"a": X}, Y)


@pytest.mark.parametrize("words", [["u", "v"], ("2019-01-01", "2023-01-01"), "0..9"])
def test_words_and_dates_as_bounds_name_the_column_and_the_call(words: Any) -> None:
    bounds = {"age": (18, 100), "score": words}
    with pytest.raises(PlanError, match="bounds of 'score' are no numbers") as caught:
        plain_schema(bounds, ("age", "score"), None)
    assert f"Schema.propose(table, {bounds!r})" in str(caught.value)


def test_only_numbers_are_bounds_of_all_columns() -> None:
    columns = plain_schema((0, [1, 2, 3]), ("a", "b", "c"), None).columns
    assert [(column.min, column.max) for column in columns] == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(
    "bounds",
    [
        (1, 2, 3),
        [(18, 100), (300, 850, 900)],
        {"age": (18, 100), "score": 850},
        "ab",
        None,
        5,
    ],
)
def test_other_forms_of_bounds_are_refused(bounds: Any) -> None:
    with pytest.raises(PlanError, match="bounds must be public numbers"):
        plain_schema(bounds, ("age", "score"), None)


@pytest.mark.parametrize(
    "bounds",
    [
        ((18, 80), (40, 200)),
        ([18, 80], [40, 200]),
        [[18, 80], [40, 200]],
        np.array([[18, 80], [40, 200]]),
    ],
)
def test_two_sequences_that_could_be_pairs_are_refused(bounds: Any) -> None:
    with pytest.raises(
        PlanError, match=r"(?s)two meanings.*write \[\(18.0, 80.0\), \(40.0, 200.0\)\]"
    ):
        plain_schema(bounds, ("age", "weight"), None)


def test_two_sequences_that_cannot_be_pairs_are_lower_and_upper_bounds() -> None:
    columns = plain_schema(([60, 40], [220, 140]), ("systolic", "diastolic"), None).columns
    assert [(column.min, column.max) for column in columns] == [(60, 220), (40, 140)]


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ({"age": (18, 100)}, "bounds lacks 'score'; the columns are 'age', 'score'"),
        (
            {"age": (18, 100), "score": (300, 850), "more": (0, 1)},
            "bounds also has 'more'; the columns are 'age', 'score'",
        ),
        ([(18, 100)], "2 columns .'age', 'score'., got 1 lower and 1 upper"),
        (([18], [100]), "2 columns .'age', 'score'., got 1 lower and 1 upper"),
        (([18, 300], [100]), "got 2 lower and 1 upper"),
    ],
)
def test_bounds_of_other_columns_name_them(bounds: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plain_schema(bounds, ("age", "score"), None)


def test_a_loaded_model_fits_again_in_bounds_that_could_be_pairs(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [30.0] * N, "weight": [90.0] * N})
    public: dict[str, Any] = {"epsilon": 4.0, "bounds": [(18, 80), (40, 200)], "nominal_n": N}
    for model in (DPKMeans(1, **public), DPNaiveBayes(classes=[0, 1], **public)):
        model.fit(table, Y).save(tmp_path / "m.json")
        clone(type(model).load(tmp_path / "m.json")).fit(table, Y)


NAMED: dict[str, Any] = {"bounds": {"a": (-4, 4), "b": (-4, 4)}, "epsilon": 1.0, "nominal_n": N}


def test_one_table_is_required_where_silos_would_be_refused_after_a_fit() -> None:
    silos = [FRAME[:HALF][["a", "b"]], FRAME[HALF:][["a", "b"]]]
    model = DPKMeans(2, **NAMED)
    scaler = DPStandardScaler(**NAMED)
    for ask in (model.fit_predict, model.fit_transform, make_pipeline(scaler, model).fit):
        with pytest.raises(DataError, match=r"X must be one table for fit_.*got a list of 2"):
            ask(silos)
    assert not hasattr(model, "result_")
    assert not hasattr(scaler, "result_")
    model.fit(silos)
    scaler.fit(silos)
    for later in (model.predict, model.transform, scaler.transform):
        with pytest.raises(DataError, match=r"X must be one table for predictions.*list of 2"):
            later(silos)
        with pytest.raises(DataError, match="got a dict of 1"):
            later({"silo": silos[0]})


@pytest.mark.filterwarnings("ignore")
def test_silos_of_centres_can_be_cross_validated() -> None:
    silos = [FRAME[i::4][["a", "b"]] for i in range(4)]
    model = DPKMeans(2, **NAMED).fit(silos)
    assert model.score(silos) == pytest.approx(sum(map(model.score, silos)))
    assert np.isfinite(cross_val_score(DPKMeans(2, **NAMED), silos, cv=2)).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "model",
    [
        DPNaiveBayes(classes=[0, 1], **NAMED),
        DPLinearRegression(target_bounds=(0, 1), **NAMED),
    ],
)
def test_silos_with_a_truth_can_be_cross_validated(model: Any) -> None:
    """Each fit is paid for, so a score that fails afterwards is lost."""
    tables, truths = ([part[i::4] for i in range(4)] for part in (FRAME[["a", "b"]], Y))
    fitted = clone(model).fit(tables, truths)
    together = fitted.score(pd.concat(tables), np.concatenate(truths))
    assert fitted.score(tables, truths) == pytest.approx(together)
    assert fitted.score(list(zip(tables, truths, strict=True))) == pytest.approx(together)
    weights = [np.arange(len(truth)) for truth in truths]
    weighted = fitted.score(pd.concat(tables), np.concatenate(truths), np.concatenate(weights))
    assert fitted.score(tables, truths, weights) == pytest.approx(weighted)
    assert np.isfinite(cross_val_score(model, tables, truths, cv=2)).all()
    with pytest.raises(DataError, match="list with the truth of each silo"):
        fitted.score(tables)


def test_bounds_by_name_select_columns_of_new_records_by_name() -> None:
    model = DPKMeans(2, **NAMED).fit(FRAME[["a", "b"]])
    labels = model.predict(FRAME[["a", "b"]])
    for table in (FRAME, FRAME[["b", "c", "a"]], pl.from_pandas(FRAME[["b", "a"]])):
        np.testing.assert_array_equal(model.predict(table), labels)
    with pytest.raises(ValueError, match="Feature names"):
        model.predict(FRAME[["a"]])
    with pytest.raises(PlanError, match=r"add them to bounds, or select the columns \['a', 'b'\]"):
        DPKMeans(2, **NAMED).fit(FRAME)
