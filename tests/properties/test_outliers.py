"""The laws of outlier detection: bounded statistics, planted outliers found, flags stay local."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm
from sklearn.covariance import EllipticEnvelope, EmpiricalCovariance
from sklearn.utils.estimator_checks import estimator_checks_generator

from cloister import Budget, DPOutlierDetector, Schema, make_plan, run_job
from cloister.app.release import Release
from cloister.core.errors import DataError, PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.plan import Plan
from cloister.protocol.task import INTERVAL_95
from cloister.tasks import TASKS
from cloister.tasks.count import Count
from cloister.tasks.patterns.outliers import Outliers, _definite
from cloister.testing import UNMET_CHECKS, SimulatedNoise, ZeroNoise, zero_noise

from .cases import DESIGNS

ONE = 1 << 16
METHODS = ("zscore", "mahalanobis", "robust", "density")
methods = pytest.mark.parametrize("method", METHODS)
ZeroNoiseDetector = zero_noise(DPOutlierDetector)


def schema_of(n: int, low: float = -12.0, high: float = 12.0, group: bool = False) -> Schema:
    columns: list[dict[str, Any]] = [
        {"name": f"x{j}", "type": "number", "min": low, "max": high} for j in range(n)
    ]
    if group:
        columns.append({"name": "ward", "type": "category", "categories": ["a", "b", "c"]})
    return Schema(dataset="wards", unit="row", columns=columns)


def planted(n: int = 4000, d: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """Correlated normal records, of which 2 % are far away."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(d, d)) / np.sqrt(d)
    X = rng.normal(size=(n, d)) @ mix
    far = rng.random(n) < 0.02
    X[far] = rng.choice((-1, 1), (far.sum(), d)) * rng.uniform(6, 9, (far.sum(), d))
    return X, far


def release(X: Any, schema: Schema, **options: Any) -> Release:
    settings = {"epsilon": 2.0, "nominal_n": len(X), "noise": ZeroNoise(), **options}
    return run_job(Outliers, schema, {"one": [schema.grid(16).encode(X)]}, **settings)


@pytest.mark.parametrize(("columns", "pictures"), [(1, 1), (2, 1), (4, 4)])
def test_a_picture_is_a_line_of_cells_for_one_column_else_a_square(
    columns: int, pictures: int
) -> None:
    facts = {"budget": Budget(2.0, 1e-6), "nominal_n": 4000}
    plan = make_plan(Outliers, schema_of(columns), ["one"], **facts, method="density")
    assert isinstance(plan.task, Outliers)
    cells = plan.task.n_cells
    (shape,) = [b.shape for t in range(plan.rounds) for b in plan.blocks(t) if b.name == "cells"]
    assert shape == (pictures, cells if columns == 1 else cells**2)


def test_bins_of_rarities_reach_from_all_in_one_cell_to_cells_of_noise() -> None:
    """In bits: of 2**5 cells, from -5 on, and over one bit at least."""
    facts = {"budget": Budget(2.0, 1e-6), "nominal_n": 4000}
    task = make_plan(Outliers, schema_of(1), ["one"], **facts, method="density").task
    assert isinstance(task, Outliers)
    assert task.n_cells == 32
    for records, floor, high in ((3200.0, 0.5, np.log2(200)), (32.0, 50.0, -4.0), (0.0, 1.0, -4.0)):
        results = {"cells": np.full((1, 32), records / 32), "floor": np.array([floor])}
        low, width = task._rarity_bins(results)
        assert (low, low + 64 * width) == (-5.0, pytest.approx(high))
        assert high < low + 64 * width  # the rarest score is within the last bin


def test_squared_distances_of_normal_records_have_normal_scores() -> None:
    """By Wilson and Hilferty, to a twentieth."""
    schema, facts = schema_of(3), {"budget": Budget(2.0, 1e-6), "nominal_n": 4000}
    task = make_plan(Outliers, schema, ["one"], **facts, method="mahalanobis").task
    assert isinstance(task, Outliers)
    share = np.array([0.5, 0.9, 0.99, 0.999])
    records = np.zeros((4, 3))
    records[:, 1] = 2 + 0.5 * np.sqrt(chi2.ppf(share, 3))
    results = {"location": np.array([0, 2, 0]), "spread": np.array([1, 0.5, 1])}
    results["covariance"] = np.diag(results["spread"] ** 2)
    scores = task.scores(results, schema.grid(16).encode(records))
    np.testing.assert_allclose(scores, norm.ppf(share), atol=0.05)


def test_no_direction_of_a_covariance_is_narrower_than_its_noise() -> None:
    covariance, noise, spread = np.diag([4.0, 1e-9]), 0.03, np.array([2.0, 1.0])
    margin = noise * INTERVAL_95["gaussian"] * np.outer(spread, spread)
    usual = {"covariance": covariance}
    usual |= {"covariance_low": covariance - margin, "covariance_high": covariance + margin}
    np.testing.assert_allclose(_definite(usual, spread), np.diag([4.0, noise]), atol=1e-12)


def made_up(monkeypatch: pytest.MonkeyPatch, beyond: float, **options: Any) -> list[int]:
    """Return what two records add in the last round, if they score so far beyond the cutoff."""
    facts = {"budget": Budget(2.0, 1e-6), "nominal_n": 4000}
    task = make_plan(Outliers, schema_of(2), ["one"], **facts, **options).task
    state = {name: round_to_grid(value, 16) for name, value in task.start().items()}

    def scores(self: Outliers, results: Any, records: Any) -> Any:
        return np.full(len(records), results["cutoff"][0] + beyond)

    monkeypatch.setattr(Outliers, "scores", scores)
    found = task.contribute(task.rounds - 1, state, np.zeros((2, 2), dtype=np.int32))
    return (found // ONE).tolist()


@pytest.mark.parametrize(("beyond", "place"), [(1e12, 63), (-1e12, 0)])
def test_the_rarest_and_the_most_usual_records_are_in_the_outer_bins(
    beyond: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made_up(monkeypatch, beyond, method="density")
    assert found == [2 * (i == place) for i in range(64)]


@pytest.mark.parametrize(("beyond", "flagged"), [(0.0, 0), (1e-6, 2)])
def test_a_record_at_the_cutoff_is_not_flagged(
    beyond: float, flagged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made_up(monkeypatch, beyond, method="zscore", count_share=0.2) == [flagged]


def test_flags_are_counted_by_the_category_of_their_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"budget": Budget(2.0, 1e-6), "nominal_n": 4000, "count_share": 0.2, "group": "ward"}
    task = make_plan(Outliers, schema_of(2, group=True), ["one"], **facts).task
    state = {name: round_to_grid(value, 16) for name, value in task.start().items()}
    monkeypatch.setattr(Outliers, "scores", lambda _, results, records: records[:, 0] / ONE * 9)
    table = [(1, -1), (1, 0), (0, 0), (1, 1), (1, 1), (-1, 1)]  # whether far, and the ward
    records = np.array([(far * ONE, 0, ward * ONE) for far, ward in table], dtype=np.int32)
    assert (task.contribute(task.rounds - 1, state, records) // ONE).tolist() == [1, 1, 2]


def quality(result: Release, X: Any, far: Any) -> tuple[float, float]:
    """Return recall and precision of the flags."""
    task = result.plan.task
    assert isinstance(task, Outliers)
    score = task.scores(result.results, result.plan.grid.encode(X))
    flagged = score > result.results["cutoff"][0]
    right = (flagged & far).sum()
    return right / far.sum(), right / max(flagged.sum(), 1)


# What a record adds -------------------------------------------------------------------------------


# Good answers -------------------------------------------------------------------------------------


def test_without_noise_the_statistics_are_the_exact_ones() -> None:
    X, _ = planted()
    schema = schema_of(4)
    found = release(X, schema, method="zscore").results
    np.testing.assert_allclose(found["location"], X.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(found["spread"], X.std(axis=0), atol=5e-3)
    found = release(X, schema, method="robust").results
    quartiles = np.quantile(X, (0.25, 0.75), axis=0)
    np.testing.assert_allclose(found["location"], np.median(X, axis=0), atol=0.05)
    np.testing.assert_allclose(found["spread"], np.ptp(quartiles, axis=0) / 1.349, atol=0.1)
    found = release(X, schema, method="mahalanobis", epsilon=1e4).results
    exact = EmpiricalCovariance().fit(X)
    np.testing.assert_allclose(found["covariance"], exact.covariance_, atol=0.03)


def test_distances_by_covariance_order_records_as_scikit_learn_does() -> None:
    X, _ = planted()
    result = release(X, schema_of(4), method="mahalanobis", epsilon=1e4)
    task = result.plan.task
    assert isinstance(task, Outliers)
    score = task.scores(result.results, result.plan.grid.encode(X))
    exact = EmpiricalCovariance().fit(X).mahalanobis(X)
    assert np.corrcoef(np.argsort(np.argsort(score)), np.argsort(np.argsort(exact)))[0, 1] > 0.999


@pytest.mark.parametrize(
    ("method", "recall", "precision"),
    [("zscore", 0.95, 0.8), ("mahalanobis", 0.95, 0.9), ("robust", 0.99, 0.6)],
)
def test_planted_outliers_are_found(method: str, recall: float, precision: float) -> None:
    X, far = planted(20_000)
    schema = schema_of(4)
    for noise in (ZeroNoise(), SimulatedNoise(1)):
        found = quality(release(X, schema, method=method, threshold=3.0, noise=noise), X, far)
        assert found[0] >= recall, (method, found)
        assert found[1] >= precision, (method, found)


def test_the_robust_method_finds_narrow_columns_in_a_box_a_thousand_times_as_wide() -> None:
    X, far = planted(4000)
    schema = schema_of(4, -4000.0, 4000.0)
    found = quality(release(X, schema, threshold=3.5, noise=SimulatedNoise(0)), X, far)
    assert found[0] >= 0.99
    assert found[1] >= 0.6


def test_the_robust_method_finds_what_a_robust_covariance_finds() -> None:
    X, far = planted(6000)
    clear = EllipticEnvelope(contamination=0.02, random_state=0).fit(X).predict(X) < 0
    theirs = (clear & far).sum() / far.sum()
    ours = quality(release(X, schema_of(4), threshold=3.5, noise=SimulatedNoise(0)), X, far)
    assert ours[0] >= theirs - 0.05


def test_density_finds_records_between_clusters_where_means_see_nothing() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(0, 0.4, (30_000, 2)) + 4 * rng.choice((-1, 1), (30_000, 1))
    far = np.arange(len(X)) < 200
    X[far] = rng.normal((2.5, -2.5), 0.3, (200, 2))
    schema = schema_of(2, -8.0, 8.0)
    recall = {
        method: quality(
            release(X, schema, method=method, noise=SimulatedNoise(0), threshold=2.0), X, far
        )[0]
        for method in ("robust", "density")
    }
    assert recall["density"] > 0.8
    assert recall["robust"] < 0.2


def test_density_finds_scattered_records_in_many_columns() -> None:
    X, far = planted(20_000)
    X[far] = np.random.default_rng(5).uniform(-12, 12, (far.sum(), 4))
    for noise in (ZeroNoise(), SimulatedNoise(2)):
        found = quality(release(X, schema_of(4), method="density", noise=noise), X, far)
        print(found)
        assert found[0] >= 0.7
        assert found[1] >= 0.2


# Numbers of outliers ------------------------------------------------------------------------------


def test_the_count_is_that_of_the_flags() -> None:
    X, _ = planted(1500)
    result = release(X, schema_of(4), count_share=0.2, method="mahalanobis", epsilon=50.0)
    task = result.plan.task
    assert isinstance(task, Outliers)
    flagged = task.scores(result.results, result.plan.grid.encode(X)) > 2.0
    assert result.results["flagged"][0] == flagged.sum()


def test_small_groups_are_not_shown_and_nothing_of_them_is_kept() -> None:
    X, far = planted(3000)
    ward = np.where(far, np.where(np.arange(3000) % 40 == 0, 1, 0), 2)
    schema = schema_of(4, group=True)
    result = release(
        np.column_stack([X, ward]), schema,
        count_share=0.3, group="ward", min_group=20.0, threshold=4.0, epsilon=20.0,
        noise=SimulatedNoise(0),
    )  # fmt: skip
    assert result.results["shown"].tolist() == [1.0, 0.0, 0.0]
    assert (result.results["flagged"][1:] == 0).all()
    for state in result.history:
        assert (state["flagged"][1:] == 0).all()
    table = result.plan.task.displays(result.results, result.plan.columns)[-1]
    assert "below 20" in str(table)


# The estimator ------------------------------------------------------------------------------------


def _checks() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            check
            for method in METHODS
            for check in estimator_checks_generator(
                ZeroNoiseDetector(
                    epsilon=1e6, bounds=(-100, 100), nominal_n=100, method=method, threshold=1.5
                )
            )
        ]
    left_out = {"check_array_api_input", *UNMET_CHECKS}
    return [c for c in found if getattr(c[1], "func", c[1]).__name__ not in left_out]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "check"),
    _checks(),
    ids=lambda c: getattr(c, "method", None) or getattr(c, "func", c).__name__,
)
def test_each_of_scikit_learns_checks_passes_without_noise(estimator: Any, check: Any) -> None:
    check(estimator)


@methods
def test_predict_flags_what_the_score_says(method: str) -> None:
    X, _ = planted(2000)
    model = DPOutlierDetector(epsilon=2.0, bounds=(-12, 12), nominal_n=2000, method=method)
    flags = model.fit_predict(X)
    assert set(np.unique(flags)) <= {-1, 1}
    np.testing.assert_array_equal(flags == -1, model.score_samples(X) < model.offset_)
    assert model.spent_ <= 2.0
    assert not any(isinstance(v, np.ndarray) and len(v) == 2000 for v in vars(model).values())


def test_a_result_survives_its_file(tmp_path: Any) -> None:
    X, _ = planted(500)
    model = DPOutlierDetector(epsilon=2.0, bounds=(-12, 12), nominal_n=500, method="density")
    model.fit(X).save(tmp_path / "m.json")
    again = Release.load(tmp_path / "m.json")
    rows = again.plan.grid.encode(X)
    task = again.plan.task
    assert isinstance(task, Outliers)
    np.testing.assert_array_equal(-task.scores(again.results, rows), model.score_samples(X))
    assert Plan.from_dict(again.plan.to_dict(), TASKS).digest == model.plan_.digest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "median"}, "method must be one of"),
        ({"threshold": 0.0}, "threshold must be in"),
        ({"count_share": 1.0}, "count_share must be in"),
        ({"group": "ward"}, "count_share must be above 0"),
        ({"group": "x0", "count_share": 0.1}, "categories"),
        ({"min_group": -1.0}, "min_group must be"),
    ],
)
def test_a_mistake_is_told_before_anything_is_spent(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        release(np.zeros((5, 3)), schema_of(2, group=True), **options)


@pytest.mark.parametrize("method", ["zscore", "mahalanobis"])
def test_a_plan_whose_first_rounds_tell_something_else_is_refused(method: str) -> None:
    robust, other = (DESIGNS[f"outliers, {name}"].build() for name in ("robust", method))
    for usual in (robust.usual, Count(n_features=4), replace(other.usual, n_features=5)):
        with pytest.raises(PlanError, match="usual must"):
            replace(other, usual=usual)
    with pytest.raises(PlanError, match="usual must"):
        replace(robust, usual=other.usual)


def test_categories_alone_have_no_outliers() -> None:
    words = {"name": "w", "type": "category", "categories": ["a", "b"]}
    schema = Schema(dataset="w", unit="row", columns=[words])
    with pytest.raises(PlanError, match="at least one column of numbers"):
        make_plan(Outliers, schema, ["one"], budget=Budget(1.0, 1e-6), nominal_n=10)


def test_what_is_no_table_is_refused() -> None:
    model = DPOutlierDetector(epsilon=1.0, bounds=(0, 1), nominal_n=10)
    with pytest.raises(DataError):
        model.fit([["a"], ["b"]])


def test_a_spread_is_at_least_the_noise_of_its_place_and_its_interval_may_be_lower() -> None:
    box = SimpleNamespace(half_range=np.array([1.0, 1.0, 1.0]))
    task = SimpleNamespace(usual=None, used_box=box, frac_bits=4)
    usual = {
        **{
            "mean": np.zeros(3),
            "mean_low": np.full(3, -0.1),
            "mean_high": np.array([0.1, 0.1, -0.1]),
        },
        **{"deviation": np.array([0.5, 0.05, 0.01]), "deviation_low": np.array([0.1, 0.0, 0.0])},
        "deviation_high": np.array([0.6, 0.3, 0.02]),
    }
    found = Outliers._places(task, usual)  # type: ignore[arg-type]
    np.testing.assert_allclose(found["spread"], [0.5, 0.2, 1 / 16])
    # The interval is of the spread itself, which may be smaller than the divisor of scores.
    np.testing.assert_allclose(found["spread_low"], [0.1, 1 / 16, 1 / 16])
    np.testing.assert_allclose(found["spread_high"], [0.6, 0.3, 1 / 16])
