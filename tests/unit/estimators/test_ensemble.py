"""The ensemble of silos' own models: what is combined, what it costs, and what it refuses."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import check_estimator

from cloister import (
    Budget,
    DPKMeans,
    DPNaiveBayes,
    DPRandomForestClassifier,
    DPSiloEnsemble,
    Ledger,
    PlanError,
    Schema,
)
from cloister.app.release import Release
from cloister.core.errors import BudgetExceeded, DataError
from cloister.data.schema import Column
from cloister.estimators import combined_probabilities
from cloister.privacy import accounting
from cloister.privacy.events import ComposedEvent
from cloister.testing import UNMET_CHECKS, zero_noise

DOUBLE = zero_noise(DPNaiveBayes)
OPTIONS: dict[str, Any] = {
    "epsilon": 1.0,
    "bounds": (-6, 6),
    "classes": ["a", "b"],
    "nominal_n": 300,
}


def silos(n: int = 3, rows: int = 300) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 2, rows) for _ in range(n)]
    tables = [rng.normal(2.0 * part[:, None], 1.0, (rows, 2)) for part in labels]
    return tables, [np.array(["a", "b"])[part] for part in labels]


def schema(most: int) -> Schema:
    return Schema(
        dataset="cards",
        unit="row",
        max_silos_per_person=most,
        columns=(
            Column(name="x0", type="number", min=-6, max=6),
            Column(name="x1", type="number", min=-6, max=6),
            Column(name="fraud", type="category", categories=("a", "b"), min=0, max=1),
        ),
    )


def frames() -> list[pd.DataFrame]:
    X, y = silos()
    return [
        pd.DataFrame(table, columns=["x0", "x1"]).assign(fraud=part)
        for table, part in zip(X, y, strict=True)
    ]


# --- what is combined


def test_probabilities_are_the_weighted_mean_of_the_silos_models() -> None:
    X, y = silos()
    model = DPSiloEnsemble(DOUBLE(**OPTIONS), weights=[1, 1, 2]).fit(X, y)
    alone = [DOUBLE(**OPTIONS).fit(*pair).predict_proba(X[0]) for pair in zip(X, y, strict=True)]
    expected = (alone[0] + alone[1] + 2 * alone[2]) / 4
    assert np.allclose(model.predict_proba(X[0]), expected)
    assert model.weights_.tolist() == [0.25, 0.25, 0.5]
    assert model.score(X[0], y[0]) > 0.8


def test_votes_count_models_not_probabilities() -> None:
    X, y = silos()
    model = DPSiloEnsemble(DOUBLE(**OPTIONS), combine="votes").fit(X, y)
    votes = np.mean([m.predict(X[0]) == "b" for m in model.models_], axis=0)
    assert np.allclose(model.predict_proba(X[0])[:, 1], votes)
    assert set(np.round(3 * votes)) <= {0, 1, 2, 3}


def test_an_ensemble_of_one_silo_is_its_model() -> None:
    X, y = silos(1)
    model = DPSiloEnsemble(DOUBLE(**OPTIONS)).fit(X[0], y[0])
    assert np.array_equal(
        model.predict_proba(X[0]), DOUBLE(**OPTIONS).fit(X[0], y[0]).predict_proba(X[0])
    )


def test_sizes_weigh_by_public_or_noisy_numbers_of_records() -> None:
    X, y = silos()
    X[2], y[2] = X[2][:150], y[2][:150]
    public = DPSiloEnsemble(DOUBLE(**OPTIONS), weights="sizes", nominal_n=[300, 300, 150])
    assert np.allclose(public.fit(X, y).weights_, [0.4, 0.4, 0.2])
    bought = DPSiloEnsemble(DOUBLE(**{**OPTIONS, "nominal_n": None}), weights="sizes").fit(X, y)
    assert np.allclose(bought.weights_, [0.4, 0.4, 0.2])  # the double counts without noise
    assert all(len(m.result_.spent.events) == 2 for m in bought.models_)  # the count is paid for


def test_models_that_silos_wrote_to_files_are_combined_without_them(tmp_path: Path) -> None:
    X, y = silos()
    model = DPSiloEnsemble(DPRandomForestClassifier(**OPTIONS, random_state=0)).fit(X, y)
    for i, one in enumerate(model.models_):
        one.save(tmp_path / f"{i}.json")
    read = [Release.load(tmp_path / f"{i}.json") for i in range(3)]
    values = np.insert(X[0], 2, 0.0, axis=1)
    records = read[0].plan.grid.encode(values)
    assert np.allclose(combined_probabilities(read, records), model.predict_proba(X[0]))


def test_costs_move_the_decision_and_not_the_probabilities() -> None:
    X, y = silos()
    model = DPSiloEnsemble(DOUBLE(**OPTIONS)).fit(X, y)
    before = model.predict_proba(X[0])
    model.costs = [[0, 1], [9, 0]]
    assert np.array_equal(model.predict_proba(X[0]), before)
    assert np.array_equal(model.predict(X[0]) == "b", 9 * before[:, 1] > before[:, 0])


# --- what it costs


def test_what_leaves_a_silo_is_a_private_release_of_its_own() -> None:
    X, y = silos()
    model = DPSiloEnsemble(DPNaiveBayes(**OPTIONS)).fit(X, y)
    for one in model.models_:
        assert one.plan_.profile == "local"
        assert len(one.plan_.silos) == 1
        assert one.plan_.budget is not None
        assert "not private" not in one.result_.noise
    assert len({one.plan_.run_id for one in model.models_}) == 3


def test_a_person_at_one_silo_pays_for_that_silo_only() -> None:
    X, y = silos()
    model = DPSiloEnsemble(DPNaiveBayes(**OPTIONS)).fit(X, y)
    assert model.spent_ == pytest.approx(1.0, rel=1e-4)
    assert model.spent_ <= 1.0 + 1e-9
    assert np.allclose(model.silo_spent_, 1.0, rtol=1e-4)
    assert "one silo" in model.describe()


@pytest.mark.parametrize("most", [2, 3, 5])
def test_a_person_at_several_silos_loses_no_more_than_the_budget(most: int) -> None:
    base = DPNaiveBayes(epsilon=1.0, bounds=schema(most), target="fraud", nominal_n=300)
    model = DPSiloEnsemble(base).fit(frames())
    assert (model.silo_spent_ < 0.75).all()
    assert 0.99 < model.spent_ <= 1.0 + 1e-9
    reached = [m.result_.spent for m in model.models_][:most]
    assert accounting.epsilon(ComposedEvent(tuple(reached)), model.delta_) <= 1.0 + 1e-9
    assert f"up to {min(most, 3)} silos" in model.describe()
    # the noise of one silo grows with the square root of the silos of a person, not with them
    alone = DPSiloEnsemble(base.set_params(bounds=schema(1))).fit(frames())
    ratio = _multiplier(model) / _multiplier(alone)
    assert ratio == pytest.approx(np.sqrt(min(most, 3)), rel=0.01)


def _multiplier(model: Any) -> float:
    """Return the noise of the first silo's release over what a record adds."""
    plan = model.models_[0].plan_
    (block,) = plan.task.blocks(0)
    return float(plan.noise_std(block) / np.sqrt(block.l2_squared))


def test_each_silos_ledger_pays_for_its_own_model(tmp_path: Path) -> None:
    X, y = silos()
    ledgers = [Ledger(tmp_path / f"{i}.db") for i in range(3)]
    for ledger in ledgers:
        ledger.open_dataset("cards", cap=Budget(1.1, 1e-6))
    base = DPNaiveBayes(**OPTIONS, dataset="cards")
    model = DPSiloEnsemble(base, ledgers=ledgers).fit(X, y)
    for ledger in ledgers:
        assert ledger.spent("cards") == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(BudgetExceeded):
        model.fit(X, y)


def test_all_models_have_one_delta() -> None:
    X, y = silos()
    base = DPNaiveBayes(**{**OPTIONS, "nominal_n": 10**7})
    model = DPSiloEnsemble(base).fit(X, y)
    assert {m.delta_ for m in model.models_} == {model.delta_}
    assert model.delta_ == pytest.approx(1 / (100 * 3 * 10**7))


# --- what it refuses


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"combine": "mean"}, "combine must be one of"),
        ({"weights": "big"}, "weights must be 'equal', 'sizes'"),
        ({"weights": [1, 2]}, "weights must be 'equal', 'sizes' or 3 numbers"),
        ({"weights": [0, 0, 0]}, "weights must be 'equal', 'sizes' or 3 numbers"),
        ({"weights": [1, 2, -1]}, "weights must be 'equal', 'sizes' or 3 numbers"),
        ({"nominal_n": [10]}, "nominal_n must be a list with one for each of 3 silos"),
        ({"ledgers": "file.db"}, "ledgers must be a list with one for each of 3 silos"),
        ({"costs": [[1]]}, "costs must be 2 rows"),
    ],
)
def test_a_wrong_parameter_is_refused_before_a_silo_releases(
    options: dict[str, Any], rule: str
) -> None:
    model = DPSiloEnsemble(DPNaiveBayes(**OPTIONS), **options)
    with pytest.raises(PlanError, match=re.escape(rule)):
        model.fit(*silos())
    assert not hasattr(model, "models_")


def test_a_ledger_of_the_base_would_charge_one_silo_for_all() -> None:
    with pytest.raises(PlanError, match="ledger of the base must be None"):
        DPSiloEnsemble(DPNaiveBayes(**OPTIONS, ledger="x.db")).fit(*silos())


def test_silos_need_the_same_columns_and_one_list_of_labels_each() -> None:
    X, y = silos()
    with pytest.raises(DataError, match="y must be a list of 3 arrays"):
        DPSiloEnsemble(DPNaiveBayes(**OPTIONS)).fit(X, y[:2])
    named = [pd.DataFrame(X[0], columns=names) for names in (["p", "q"], ["q", "r"])]
    with pytest.raises(DataError, match="same columns: silo 1 lacks 'p' and also has 'r'"):
        DPSiloEnsemble(DPNaiveBayes(**OPTIONS)).fit(named, y[:2])


def test_labels_in_y_are_those_of_all_silos() -> None:
    X, y = silos()
    y[0] = np.full(len(y[0]), "a")  # a silo that has never seen the other class
    model = DPSiloEnsemble(DOUBLE(**{**OPTIONS, "classes": "in_y"})).fit(X, y)
    assert model.classes_.tolist() == ["a", "b"]
    assert all(m.classes_.tolist() == ["a", "b"] for m in model.models_)


def test_models_of_other_columns_or_tasks_are_not_combined() -> None:
    X, y = silos()
    model = DPNaiveBayes(**OPTIONS).fit(X[0], y[0])
    other = DPNaiveBayes(**{**OPTIONS, "bounds": (-7, 7)}).fit(X[0], y[0])
    clusters = DPKMeans(2, epsilon=1.0, bounds=(-6, 6), nominal_n=300).fit(X[0])
    records = model.plan_.grid.encode(np.zeros((3, 3)))
    with pytest.raises(PlanError, match="same columns, bounds"):
        combined_probabilities([model.result_, other.result_], records)
    with pytest.raises(PlanError, match="must be a classifier"):
        combined_probabilities([clusters.result_], records)
    with pytest.raises(PlanError, match="at least one"):
        combined_probabilities([], records)


@pytest.mark.parametrize(
    "ensemble",
    [DPSiloEnsemble, pytest.param(zero_noise(DPSiloEnsemble), marks=pytest.mark.nightly)],
)
def test_scikit_learns_checks_pass(ensemble: type[Any]) -> None:
    options: dict[str, Any] = {
        "epsilon": 1e6,
        "bounds": (-100, 100),
        "classes": "in_y",
        "nominal_n": 100,
    }
    model = ensemble(DOUBLE(**options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(model, expected_failed_checks=dict(UNMET_CHECKS), on_skip=None)
