"""The shapes in which readers of a course call first: pairs, predictions, lists of baskets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from cloister import (
    Baskets,
    Budget,
    DPForestRegressor,
    DPKMeans,
    DPLinearRegression,
    DPLogisticRegression,
    DPNaiveBayes,
    DPRandomForestClassifier,
    DPShapesClassifier,
    DPShapesRegressor,
    DPSiloEnsemble,
    FederatedLearner,
    Ledger,
    Schema,
    cluster_quality,
    dp_quantiles,
    dp_statistics,
    evaluate,
    mine_rules,
    select_k,
)
from cloister.core.errors import PlanError, PrivacyWarning
from cloister.estimators.release import BudgetParameters
from cloister.testing import zero_noise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 2))
Y = (X[:, 0] > 0).astype(int)
HALVES = (slice(300), slice(300, None))
PAIRS = [(X[half], Y[half]) for half in HALVES]
GOODS = ["bread", "milk", "tea"]


def learner(kind: Any) -> Any:
    public: dict[str, Any] = {"target_bounds": (0, 1)}
    if kind not in (DPLinearRegression, DPForestRegressor, DPShapesRegressor):
        public = {"classes": [0, 1]}
    if kind in FORESTS:
        public["random_state"] = 0
    return zero_noise(kind)(epsilon=1.0, bounds=(-4, 4), nominal_n=600, **public)


FORESTS = [DPRandomForestClassifier, DPForestRegressor]
SHAPES = [DPShapesClassifier, DPShapesRegressor]
LEARNERS = [DPNaiveBayes, DPLogisticRegression, DPLinearRegression, *FORESTS, *SHAPES]


# Pairs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_list_of_pairs_is_one_silo_each(kind: Any) -> None:
    lists = learner(kind).fit([X[half] for half in HALVES], [Y[half] for half in HALVES])
    pairs = learner(kind).fit(PAIRS)
    assert pairs.plan_.silos == ("silo-0", "silo-1")
    assert (pairs.predict(X) == lists.predict(X)).all()
    alone = learner(kind).fit([(X, Y)])
    assert alone.plan_.silos == ("silo-0",)


def test_pairs_of_frames_and_lists_are_pairs() -> None:
    frames = [(pd.DataFrame(X[half], columns=["a", "b"]), Y[half]) for half in HALVES]
    assert learner(DPNaiveBayes).fit(frames).feature_names_in_.tolist() == ["a", "b"]
    lists = [(X[half].tolist(), Y[half].tolist()) for half in HALVES]
    fitted = learner(DPNaiveBayes).fit(PAIRS)
    assert (learner(DPNaiveBayes).fit(lists).predict(X) == fitted.predict(X)).all()
    columns: list[dict[str, Any]] = [
        {"name": name, "type": "number", "min": -4, "max": 4} for name in "ab"
    ]
    columns.append({"name": "y", "type": "category", "categories": ["0", "1"]})
    schema = Schema(dataset="d", unit="row", columns=columns)
    model = DPNaiveBayes(epsilon=1.0, bounds=schema, target="y", nominal_n=600).fit(frames)
    assert model.plan_.silos == ("silo-0", "silo-1")


def test_rows_that_are_tuples_of_two_cells_are_no_pairs() -> None:
    rows = [tuple(row) for row in X.tolist()]
    assert learner(DPNaiveBayes).fit(rows, Y).plan_.silos == ("silo-0",)


def test_an_ensemble_and_an_evaluation_take_pairs() -> None:
    model = DPSiloEnsemble(learner(DPNaiveBayes)).fit(PAIRS)
    assert len(model.models_) == 2
    found = evaluate(model.models_[0], PAIRS, epsilon=1.0, nominal_n=600)
    assert found.plan.silos == ("silo-0", "silo-1")


# Predictions and truth ----------------------------------------------------------------------------


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloister.app import job
    from cloister.testing import ZeroNoise

    monkeypatch.setattr(job, "DiscreteNoise", ZeroNoise)


@pytest.mark.usefixtures("without_noise")
def test_predictions_are_measured_against_the_truth() -> None:
    told = np.where(np.arange(600) % 10 == 0, 1 - Y, Y)
    public: dict[str, Any] = {"classes": [0, 1], "epsilon": 1.0, "nominal_n": 600}
    with pytest.warns(PrivacyWarning, match="model is not given, so it cannot be proven"):
        found = evaluate(predictions=told, truth=Y, **public)
    assert found["accuracy"].value == pytest.approx(0.9)
    with pytest.warns(PrivacyWarning):
        silos = evaluate(
            predictions=[told[h] for h in HALVES], truth=[Y[h] for h in HALVES], **public
        )
    assert silos["accuracy"] == found["accuracy"]
    with pytest.warns(PrivacyWarning):
        numbers = evaluate(
            predictions=X[:, 0] + 0.5, truth=X[:, 0], target_bounds=(-5, 5), epsilon=1.0
        )
    assert numbers["rmse"].value == pytest.approx(0.5, rel=1e-3)


def test_predictions_stand_for_model_and_records() -> None:
    for given in ({"X": X, "predictions": Y, "truth": Y}, {"predictions": Y}, {"truth": Y}):
        with pytest.raises(PlanError, match="replace model, X and y"):
            evaluate(**given, classes=[0, 1], epsilon=1.0)
    with pytest.raises(PlanError, match=r"target_bounds are required.*give classes"):
        evaluate(predictions=Y, truth=Y, epsilon=1.0)


# Baskets ------------------------------------------------------------------------------------------


def mined(baskets: Any, **more: Any) -> Any:
    return mine_rules(baskets, catalogue=GOODS, epsilon=1.0, nominal_n=400, max_size=1, **more)


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_a_list_of_baskets_is_one_silo(kind: Any) -> None:
    lists = [kind(basket) for basket in (["bread", "milk"], ["tea"], ["milk", "jam"], [])] * 100
    found = mined(lists)
    assert found.plan.silos == ("silo-0",)
    expected = mined(Baskets([list(basket) for basket in lists]))
    for name, value in expected.result.results.items():
        np.testing.assert_array_equal(found.result.results[name], value)
    assert {s.items: s.counted for s in found.itemsets}["milk",] == pytest.approx(0.5, abs=0.1)


def test_the_catalogue_of_baskets_is_public() -> None:
    with pytest.raises(PlanError, match="give a catalogue"):
        mine_rules([["bread", "milk"], ["tea"]], epsilon=1.0)


def test_what_baskets_hold_changes_neither_silos_nor_columns() -> None:
    for lists in ([["bread"], []], [[], []], [["jam"], ["jam"]], [["bread", None], ["tea"]]):
        plan = mined(lists, max_loss=1.0).plan
        assert plan.silos == ("silo-0",)
        assert plan.columns == tuple(GOODS)


def test_a_list_of_lists_of_baskets_is_a_list_of_silos() -> None:
    assert mined([[["bread"], ["milk"]], [["tea"]]]).plan.silos == ("silo-0", "silo-1")
    with pytest.raises(PlanError, match="one list of baskets for each silo"):
        mined([[["bread"], ["milk"]], ["tea"]])
    assert mined([Baskets([["bread"]]), Baskets([])]).plan.silos == ("silo-0", "silo-1")


def test_rows_of_zeros_and_ones_are_a_table() -> None:
    assert mined([[1, 0, 1], [0, 0, 1]]).plan.columns == tuple(GOODS)


# What may be spent --------------------------------------------------------------------------------


def test_a_spending_holds_numbers_that_can_be_agreed_on() -> None:
    given: dict[str, Any] = {"epsilon": 1.0, "bounds": (0, 1)}
    spending = BudgetParameters(**given, nominal_n=np.int64(5), frac_bits=np.uint8(12))
    assert (type(spending.nominal_n), type(spending.frac_bits)) == (int, int)
    for wrong in ({"nominal_n": 2.5}, {"nominal_n": 0}, {"frac_bits": True}):
        with pytest.raises(PlanError, match=f"{next(iter(wrong))} must be an integer >= 1"):
            BudgetParameters(**given, **wrong)
    with pytest.raises(AttributeError):
        spending.epsilon = 2.0  # type: ignore[misc]
    with pytest.raises(PlanError, match="dataset is required"):
        BudgetParameters(**given, ledger="ledger.db").account()


FUNCTIONS: dict[str, Any] = {
    "dp_statistics": lambda **given: dp_statistics(X, bounds=(-4, 4), **given),
    "dp_quantiles": lambda **given: dp_quantiles(X, bounds=(-4, 4), **given),
    "select_k": lambda **given: select_k(X, range(2, 4), bounds=(-4, 4), **given),
    "cluster_quality": lambda **given: cluster_quality(X[:2], X, bounds=(-4, 4), **given),
    "evaluate": lambda **given: evaluate(LogisticRegression().fit(X, Y), X, Y, **given),
    "mine_rules": lambda **given: mine_rules([["tea"]], catalogue=GOODS, **given),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_spends_what_it_was_given_where_it_was_told(name: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("d", cap=Budget(9.0, 1e-3))
    given: dict[str, Any] = {"ledger": ledger, "dataset": "d", "frac_bits": 12}
    found = FUNCTIONS[name](epsilon=3.0, delta=2e-4, nominal_n=500, **given)
    assert found.plan.budget == Budget(3.0, 2e-4)
    assert (found.plan.nominal_n, found.plan.grid.frac_bits) == (500, 12)
    assert ledger.jobs()[0].dataset == "d"
    assert ledger.spent("d") > 0
    ledger.dispose()


def test_parameters_are_shared_and_stored_as_they_are_given() -> None:
    from dataclasses import fields

    # The columns follow from other parameters.
    shared = {field.name for field in fields(BudgetParameters)} - {"columns"}
    for kind in LEARNERS:
        model = learner(kind)
        assert shared < set(model.get_params())
        assert vars(model).keys() == model.get_params().keys()


# Parameters of scikit-learn -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_iter", "have the parameter rounds"),
        ("tol", "no fit stops early"),
        ("n_init", "budget"),
    ],
)
def test_a_parameter_that_only_scikit_learns_has_is_explained(name: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"DPKMeans has no parameter {name!r}: .*{said}"):
        DPKMeans(2, epsilon=1.0, bounds=(0, 1), **{name: 5})
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        DPKMeans(2, epsilon=1.0, bounds=(0, 1), **{"k": 2})


def test_a_schema_without_a_target_says_where_the_truth_belongs() -> None:
    table = pd.DataFrame({"age": np.linspace(20, 80, 60)})
    ill = np.arange(60) % 2 == 0
    model = DPLogisticRegression(
        epsilon=1.0, bounds=Schema.propose(table, {"age": (0, 100)}), classes=[False, True]
    )
    with pytest.raises(PlanError, match="declare this column in the schema, also if its values"):
        model.fit(table, ill)


def test_the_items_of_rules_are_a_catalogue() -> None:
    with pytest.raises(PlanError, match="are the parameter catalogue, got 'items'"):
        mine_rules([["tea"]], items=["tea"], epsilon=1.0)


def test_rounds_are_accepted_or_explained_by_the_algorithm() -> None:
    given: dict[str, Any] = {"epsilon": 1.0, "bounds": (-4, 4), "nominal_n": 600}
    model = zero_noise(DPKMeans)(2, algorithm="sulloyd", rounds=3, **given).fit(X)
    assert model.n_iter_ == 3
    with pytest.raises(PlanError, match=r"rounds must be omitted for algorithm 'auto'.*fastlloyd"):
        DPKMeans(2, rounds=3, **given).fit(X)
    assert FederatedLearner(LogisticRegression(), epsilon=1.0, rounds=3).rounds == 3
    with pytest.raises(TypeError, match=r"no parameter 'max_iter': rounds is the number"):
        FederatedLearner(LogisticRegression(), epsilon=1.0, **{"max_iter": 3})


def test_an_ensemble_has_one_base_and_says_so() -> None:
    for name in ("base_models", "estimators"):
        with pytest.raises(TypeError, match=f"no parameter {name!r}: give one unfitted base"):
            DPSiloEnsemble(**{name: [learner(DPNaiveBayes)]})
    for base in ([learner(DPNaiveBayes)], learner(DPForestRegressor), LogisticRegression()):
        with pytest.raises(PlanError, match=r"(?s)base must be a private .*one unfitted base"):
            DPSiloEnsemble(base).fit(PAIRS)
