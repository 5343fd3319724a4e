"""``DPBounds``, ``DPStandardScaler``, ``DPPCA``, ``dp_quantiles`` and ``dp_statistics``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from cloister import (
    DPPCA,
    AccuracyWarning,
    BudgetExceeded,
    DPBounds,
    DPKMeans,
    DPLogisticRegression,
    DPStandardScaler,
    Ledger,
    PlanError,
    Schema,
    dp_quantiles,
    dp_statistics,
)
from cloister.data.schema import Column
from cloister.privacy.budget import Budget
from cloister.testing import UNMET_CHECKS, zero_noise

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(50, 5, 2000), RNG.uniform(0, 8, 2000)])
FRAME = pd.DataFrame({"age": X[:, 0], "visits": X[:, 1]})
BOX = {"bounds": ([0, -2], [100, 10]), "nominal_n": 2000}
MIXED = Schema(
    dataset="ward",
    unit="row",
    columns=(
        Column(name="age", type="number", min=0.0, max=100.0),
        Column(name="work", type="category", categories=("private", "state")),
    ),
)
ALL: list[Any] = [DPBounds, DPStandardScaler, DPPCA]


def made(kind: Any, **parameters: Any) -> Any:
    own = {"n_components": 1} if kind is DPPCA or kind.__name__ == "ZeroNoisePCA" else {}
    return kind(**{"epsilon": 1.0, **own, **BOX, **parameters})


def exact(kind: Any, **parameters: Any) -> Any:
    return made(zero_noise(kind), **{"epsilon": 1000.0, **parameters})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ALL)
def test_scikit_learns_checks_pass(kind: Any) -> None:
    estimator = exact(kind, epsilon=1e6, bounds=(-100, 100), nominal_n=100)
    results = check_estimator(
        estimator, expected_failed_checks=dict(UNMET_CHECKS), on_skip=None, on_fail="raise"
    )
    failed = {r["check_name"] for r in results if r["status"] not in ("passed", "skipped")}
    assert failed <= set(UNMET_CHECKS)


@pytest.mark.parametrize("kind", ALL)
def test_parameters_are_kept_as_they_were_given(kind: Any) -> None:
    model = made(kind)
    assert clone(model).get_params() == model.get_params()


def test_standardised_columns_are_scikit_learns_without_noise() -> None:
    model = exact(DPStandardScaler, reach=10.0).fit(X)
    wanted = StandardScaler().fit(X)
    np.testing.assert_allclose(model.mean_, wanted.mean_, rtol=1e-3)
    np.testing.assert_allclose(model.scale_, wanted.scale_, rtol=1e-3)
    np.testing.assert_allclose(model.transform(X), wanted.transform(X), atol=5e-3)
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), X, atol=0.02)


def test_bounds_are_quantiles_without_noise() -> None:
    model = exact(DPBounds, probabilities=(0.02, 0.98)).fit(X)
    wanted = np.quantile(X, [0.02, 0.98], axis=0)
    np.testing.assert_allclose([model.low_, model.high_], wanted, atol=0.3)
    inside = ((model.low_ < X) & (model.high_ > X)).all(axis=1)
    scaled = model.transform(X)
    assert np.abs(scaled).max() == 1.0
    np.testing.assert_allclose(model.inverse_transform(scaled[inside]), X[inside], atol=0.01)
    assert (model.low_interval_[:, 0] <= model.low_).all()


def test_components_are_scikit_learns_without_noise() -> None:
    table = load_breast_cancer().data
    bounds = (table.min(axis=0), table.max(axis=0))
    model = exact(DPPCA, n_components=3, bounds=bounds, clip=2.0, reach=10.0).fit(table)
    Z = model.plan_.grid.normalise(table)
    wanted = PCA(3).fit(Z)
    cosines = np.linalg.svd(model.components_ @ wanted.components_.T)[1]
    np.testing.assert_allclose(cosines, 1, atol=1e-4)
    signs = np.sign((model.components_ * wanted.components_).sum(axis=1))
    scores = wanted.transform(Z) * signs
    np.testing.assert_allclose(model.transform(table) * model.scale_, scores, atol=5e-3)
    back = model.plan_.grid.normalise(model.inverse_transform(model.transform(table)))
    np.testing.assert_allclose(back, wanted.inverse_transform(wanted.transform(Z)), atol=5e-3)


def test_categories_of_a_schema_pass_or_enter_one_by_one() -> None:
    frame = pd.DataFrame({"age": X[:, 0], "work": np.where(X[:, 1] > 4, "state", "private")})
    scaler = DPStandardScaler(epsilon=1.0, bounds=MIXED, nominal_n=2000).fit(frame)
    changed = scaler.transform(frame)
    assert scaler.get_feature_names_out().tolist() == ["age", "work"]
    np.testing.assert_array_equal(changed[:, 1], X[:, 1] > 4)
    directions = DPPCA(2, epsilon=1.0, bounds=MIXED, nominal_n=2000).fit(frame)
    assert directions.components_.shape == (2, 3)
    assert directions.get_feature_names_out().tolist() == ["pc1", "pc2"]
    with pytest.raises(PlanError, match="categories"):
        directions.inverse_transform(directions.transform(frame))


def test_a_pipeline_leaves_out_the_same_records_in_every_step() -> None:
    """Each step pays before the next one reads, so a step that refuses gaps loses the budget."""
    ill = X[:, 0] > 50
    gaps = FRAME.mask(pd.DataFrame({"age": False, "visits": np.arange(2000) % 10 == 0}))
    scaler = DPStandardScaler(epsilon=1000.0, bounds={"age": (0, 100), "visits": (-2, 10)})
    model = DPLogisticRegression(epsilon=1000.0, bounds=(-4, 4), classes=[False, True])
    steps = [step.set_params(nominal_n=1800, max_loss=0.1) for step in (scaler, model)]
    fitted = make_pipeline(*steps).fit(gaps, ill)
    complete = gaps["visits"].notna().to_numpy()
    scaled = fitted[0].transform(gaps)
    np.testing.assert_array_equal(np.isfinite(scaled).all(axis=1), complete)
    np.testing.assert_array_equal(scaled[complete], fitted[0].transform(gaps[complete]))
    assert fitted.score(gaps, ill) == fitted.score(gaps[complete], ill[complete]) > 0.9


def test_codes_of_categories_are_no_numbers_for_the_next_estimator() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": X[:, 0], "work": rng.choice(["a", "b", "c"], 2000)})
    risk = np.where(frame["work"] == "b", 0.9, 0.1)
    frame["ill"] = np.where(rng.random(2000) < risk, "yes", "no")
    public = {"age": (0, 100), "work": ["a", "b", "c"], "ill": ["no", "yes"]}
    schema = Schema.propose(frame, public)
    scaler = DPStandardScaler(epsilon=1.0, bounds=schema.select(["age", "work"]), nominal_n=2000)
    with pytest.warns(AccuracyWarning, match="'work'.*with its schema"):
        scaler.fit_transform(frame[["age", "work"]])
    model = DPLogisticRegression(epsilon=8.0, bounds=schema, target="ill", nominal_n=2000)
    model.fit(frame)
    assert model.score(frame, frame["ill"]) > 0.85  # by the codes 0, 1, 2: at most 2 of 3


def test_a_pipeline_of_scikit_learn_pays_one_ledger_for_every_step() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("ward", cap=Budget(3.0, 1e-6))
    paid: dict[str, Any] = {"nominal_n": 2000, "ledger": ledger, "dataset": "ward", "delta": 1e-6}
    model = make_pipeline(
        DPBounds(epsilon=0.5, bounds=(-1000, 1000), **paid),
        DPPCA(2, epsilon=0.5, bounds=(-1, 1), **paid),
        DPKMeans(3, epsilon=1.0, bounds=(-4, 4), **paid),
    ).fit(FRAME)
    assert model.predict(FRAME).shape == (2000,)
    assert model[:2].get_feature_names_out().tolist() == ["pc1", "pc2"]
    spent = ledger.spent("ward")
    assert 1.0 < spent < 2.0  # composed exactly: less than the sum
    with pytest.raises(BudgetExceeded):
        DPBounds(epsilon=3.0, bounds=(-1000, 1000), **paid).fit(FRAME)
    ledger.dispose()


@pytest.mark.parametrize("kind", ALL)
def test_silos_give_what_one_table_gives(kind: Any) -> None:
    pooled = exact(kind).fit(X)
    apart = exact(kind).fit([X[:300], X[300:1100], X[1100:]])
    np.testing.assert_array_equal(pooled.transform(X), apart.transform(X))


@pytest.mark.parametrize("kind", ALL)
def test_an_estimator_saves_what_it_released(kind: Any, tmp_path: Path) -> None:
    model = made(kind).fit(FRAME)
    assert 0.99 < model.spent_ <= 1.0
    assert model.feature_names_in_.tolist() == ["age", "visits"]
    model.save(tmp_path / "model.json")
    assert (tmp_path / "model.json").stat().st_size > 500


def test_quantiles_are_a_table_of_columns_and_probabilities() -> None:
    found = dp_quantiles(FRAME, [0.25, 0.75], epsilon=2.0, **BOX)
    assert found["quantiles"].shape == (2, 2)
    frame = found.to_frame()
    assert frame.index.names == ["column", "probability"]
    assert frame.loc[("age", 0.25), "value"] == found["quantiles"][0, 0]
    assert (frame["low"] <= frame["high"]).all()
    assert np.abs(frame["value"] - np.quantile(X, [0.25, 0.75], axis=0).T.ravel()).max() < 2
    assert 1.99 < found.spent <= 2.0
    assert found.displays()[0].title == "Quantiles"


def test_statistics_are_a_table_of_columns_and_numbers() -> None:
    found = dp_statistics([FRAME[:500], FRAME[500:]], epsilon=2.0, covariance=True, **BOX)
    assert found.columns == ("age", "visits")
    assert found["correlation"].shape == (2, 2)
    frame = found.to_frame()
    assert list(frame.loc["visits"].index) == ["mean", "variance", "deviation"]
    assert abs(frame.loc[("age", "mean"), "value"] - 50) < 2


def test_what_is_wrong_is_said_before_a_ledger_is_opened(tmp_path: Path) -> None:
    missing = tmp_path / "no.db"
    with pytest.raises(PlanError, match="bounds must be public"):
        DPBounds(epsilon=1.0, bounds="auto", ledger=missing, dataset="x").fit(X)
    with pytest.raises(PlanError, match="n_components"):
        DPPCA(0, epsilon=1.0, bounds=(0, 1), ledger=missing, dataset="x").fit(X)
    with pytest.raises(PlanError, match="probabilities"):
        dp_quantiles(X, [2.0], epsilon=1.0, bounds=(0, 1), nominal_n=10)
