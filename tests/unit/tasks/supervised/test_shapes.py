"""Additive models: their sums by hand, the lemmas of their bounds, and what they find."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from cloister import DPShapesClassifier, DPShapesRegressor, PlanError, Schema
from cloister.app.forecast import plan_warnings
from cloister.app.job import make_plan, run_job
from cloister.app.release import Release
from cloister.data.schema import Column
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier, Regressor
from cloister.tasks.supervised.shape_functions import Layout, edges_from
from cloister.tasks.supervised.shapes import Additive, ShapesClassifier
from cloister.tasks.supervised.shapes_regression import ShapesRegression
from cloister.testing import SimulatedNoise, ZeroNoise, zero_noise

ONE = 1 << 16
SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="a", type="number", min=-1, max=1),
        Column(name="b", type="number", min=-1, max=1),
        Column(name="work", type="category", categories=("w", "x", "y", "z"), min=0, max=3),
        Column(name="ill", type="category", categories=("no", "yes"), min=0, max=1),
        Column(name="grade", type="category", categories=("p", "q", "r"), min=0, max=2),
        Column(name="days", type="number", min=0, max=60),
    ),
)
COLUMNS = ("a", "b", "work")


def table(n: int = 4000, seed: int = 0) -> np.ndarray:
    """Return grid records: a curve of a, a line of b and jumps of work decide the targets."""
    rng = np.random.default_rng(seed)
    a, b, work = rng.uniform(-1, 1, n), rng.uniform(-1, 1, n), rng.integers(0, 4, n)
    score = 4 * np.abs(a) - 2 + b + np.array([-1, 0, 0, 1])[work]
    ill = rng.random(n) < expit(score)
    grade = np.digitize(score + rng.logistic(0, 0.3, n), [-1, 1])
    days = np.clip(30 + 5 * score + rng.normal(0, 3, n), 0, 60)
    rows = np.column_stack([a, b, work, ill, grade, days]).astype(float)
    return SCHEMA.grid().encode(rows)


def effects(records: np.ndarray) -> list[np.ndarray]:
    """Return the true effects of each record on the log-odds of ill."""
    a, b, work = records[:, :3].T / ONE
    return [4 * np.abs(a), b, np.array([-1.0, 0, 0, 1])[np.rint((work + 1) * 1.5).astype(int)]]


def planned(target: str, nominal_n: int = 4000, epsilon: float = 1.0, **options: Any) -> Plan:
    kind = ShapesRegression if target == "days" else ShapesClassifier
    return make_plan(
        kind,
        SCHEMA,
        ["a"],
        columns=[*COLUMNS, target],
        budget=Budget(epsilon, 1e-6),
        nominal_n=nominal_n,
        **{"target": target, **options},
    )


def designed(target: str = "ill", nominal_n: int = 4000, **options: Any) -> Additive:
    task = planned(target, nominal_n, **options).task
    assert isinstance(task, Additive)
    return task


def run(
    records: np.ndarray, target: str = "ill", silos: int = 1, noise: Any = None, **options: Any
) -> Release:
    at = [*SCHEMA.names].index(target)
    used = np.ascontiguousarray(records[:, [0, 1, 2, at]])
    parts = {f"silo-{i}": [used[i::silos]] for i in range(silos)}
    return run_job(
        ShapesRegression if target == "days" else ShapesClassifier,
        SCHEMA,
        parts,
        columns=[*COLUMNS, target],
        target=target,
        nominal_n=max(len(records), 1000),
        noise=noise or ZeroNoise(),
        **{"epsilon": 1.0, **options},
    )


def scores(result: Release, records: np.ndarray, target: str = "ill") -> Any:
    task, used = result.plan.task, records[:, [0, 1, 2, [*SCHEMA.names].index(target)]]
    if isinstance(task, Classifier):
        return task.probabilities(result.results, used)
    assert isinstance(task, Regressor)
    return task.predict(result.results, used)


# --- bounds


def test_the_weight_of_curvature_is_free_for_two_classes() -> None:
    p = np.linspace(0, 1, 1_000_001)
    assert ((1 - p) ** 2 * (1 + 3.33**2 * p**2)).max() <= 1
    assert ((1 - p) ** 2 * (1 + 3.34**2 * p**2)).max() > 1


def test_the_weight_of_curvature_is_free_for_several_classes() -> None:
    rng = np.random.default_rng(0)
    for k in (3, 4, 9):
        p = rng.dirichlet(np.full(k, 0.3), 200_000)
        y = np.eye(k)[rng.integers(0, k, len(p))]
        squared = ((y - p) ** 2 + (2 * p * (1 - p)) ** 2).sum(axis=1)
        assert squared.max() <= 2
        assert squared.max() > 1.9


@pytest.mark.parametrize("target", ["ill", "grade", "days"])
def test_active_columns_share_the_whole_bound(target: str) -> None:
    """A record has one norm however many columns have sums, up to the rounding of integers."""
    task, records = designed(target), table(1)[:, [0, 1, 2, 3]]
    records[:, 3] = ONE
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    state["intercept"][-1] = -30 * ONE
    found = []
    for active in ([1, 1, 1], [1, 0, 1], [0, 1, 0]):
        state["active"] = np.array(active) * ONE
        words = task.contribute(task.rounds - 1, state, records).astype(float)
        assert np.count_nonzero(words) >= sum(active)
        found.append((words**2).sum())
    (block,) = task.blocks(task.rounds - 1)
    assert max(found) <= block.l2_squared
    np.testing.assert_allclose(found, found[0], rtol=1e-4)


# --- sums


@pytest.mark.parametrize("target", ["ill", "grade", "days"])
def test_silos_together_release_what_the_pooled_records_would(target: str) -> None:
    records = table(803)
    pooled, parted = run(records, target), run(records, target, silos=3)
    for left, right in zip(pooled.history, parted.history, strict=True):
        assert all(np.array_equal(left[name], right[name]) for name in left)


def test_the_first_sums_are_those_of_equal_shares_by_hand() -> None:
    task, records = designed(bins=4), table(500)[:, [0, 1, 2, 3]]
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    sums = task.contribute(0, state, records).reshape(-1, 2) / ONE
    label = records[:, 3] > 0
    bins = [np.minimum((records[:, j] / ONE + 1) * 2, 3).astype(int) for j in (0, 1)]
    bins.append(((records[:, 2] / ONE + 1) * 1.5).round().astype(int))
    for i, at in enumerate(bins):
        part = sums[4 * i : 4 * i + 4]
        np.testing.assert_allclose(part[:, 0], np.bincount(at, label - 0.5))
        np.testing.assert_allclose(part[:, 1], np.bincount(at) * 3.33 / 4, rtol=1e-4)


def test_edges_have_bins_in_the_tail_and_at_the_quarters() -> None:
    layout = Layout((0, 2), 1, 4, True, 16)
    counts = np.zeros((1, 512))
    counts[0, :4] = 900  # nearly all records are in four of 512 cells
    counts[0, 4:] = 1
    (edges,) = edges_from(counts, layout)
    assert len(edges) == layout.n_edges == 6
    assert {-0.5, 0.0, 0.5} <= set(edges)
    assert (edges[edges < 1] > -1 + 4 / 256).sum() >= 3
    assert (np.diff(edges) >= 0).all()


# --- models without noise


def test_effects_are_nearer_to_the_truth_than_those_of_a_regression_on_the_same_bins() -> None:
    """Without noise, and with independent columns; the smooth prior is what helps."""
    records = table(8000)
    result = run(records, n_rounds=30, bins=8, epsilon=30.0)
    task = result.plan.task
    assert isinstance(task, ShapesClassifier)
    found = result.results["effects"][:, 0]
    edges = np.rint(result.results["edges"] * ONE).astype(np.int64)
    places = task.layout.places(edges, records[:, :4])
    X = np.hstack([np.eye(len(found))[at] for at in places])
    fitted = LogisticRegression(C=1e6, max_iter=2000, tol=1e-9).fit(X, records[:, 3] > 0)
    exact = fitted.coef_[0].reshape(3, -1).sum(axis=0)
    ours, theirs = [], []
    for at, true in zip(places, effects(records), strict=True):
        mean = np.bincount(at, true - true.mean()) / np.maximum(np.bincount(at), 1)
        ours.append(np.std(found[at] - mean[at]))
        theirs.append(np.std(exact[at] - mean[at]))
    assert np.mean(ours) < np.mean(theirs)
    assert max(ours) < 0.1


@pytest.mark.parametrize(("target", "least"), [("ill", 0.8), ("grade", 0.75)])
def test_a_classifier_finds_a_curve_that_no_straight_line_shows(target: str, least: float) -> None:
    result = run(table(), target)
    test = table(2000, 1)
    at = [*SCHEMA.names].index(target)
    truth = np.rint((test[:, at] / ONE + 1) / 2 * (2 if target == "grade" else 1)).astype(int)
    found = scores(result, test, target)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (found.argmax(axis=1) == truth).mean() > least - 0.1
    for k in range(found.shape[1]):
        assert roc_auc_score(truth == k, found[:, k]) > least - 0.05


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_regression_finds_the_curve_in_the_units_of_the_target(family: str) -> None:
    result, test = run(table(), "days", family=family), table(2000, 1)
    days = 30 + 30 * test[:, 5] / ONE
    found = scores(result, test, "days")
    assert 1 - ((found - days) ** 2).sum() / ((days - days.mean()) ** 2).sum() > 0.75
    assert found.min() >= 0
    assert found.max() <= 60
    work = result.results["effects"][-4:, 0]
    assert work[3] - work[0] == pytest.approx(10 if family == "gaussian" else 10 / 30, rel=0.25)


def test_predictions_do_not_look_at_the_target() -> None:
    records = table(200)
    for target, at in (("ill", 3), ("days", 5)):
        result, blind = run(records, target), records.copy()
        blind[:, at] = -ONE
        assert np.array_equal(scores(result, records, target), scores(result, blind, target))


@pytest.mark.parametrize("target", ["ill", "grade", "days"])
def test_no_records_and_noise_alone_raise_nothing(target: str) -> None:
    for noise in (ZeroNoise(), SimulatedNoise(0)):
        result = run(table(0), target, noise=noise)
        assert np.isfinite(scores(result, table(20), target)).all()
        assert all(np.isfinite(value).all() for value in result.results.values())


# --- with noise


def simulated(kind: Any, seed: int) -> Any:
    class Simulated(kind):
        _new_noise = staticmethod(lambda: SimulatedNoise(seed))

    return Simulated


def test_columns_without_effect_stay_without_one() -> None:
    """Of 60 columns in 10 fits, seven at most may be found by a posterior of 95 %."""
    rng = np.random.default_rng(0)
    found = 0
    for seed in range(10):
        X, y = rng.uniform(-1, 1, (3000, 6)), rng.integers(0, 2, 3000)
        model = simulated(DPShapesClassifier, seed)(
            epsilon=1.0, bounds=(-1, 1), classes=[0, 1], nominal_n=3000
        ).fit(X, y)
        found += int((np.delete(model.result_.results["no_effect"], -1) < 0.05).sum())
        assert model.predict_proba(X)[:, 1].std() < 0.05
    assert found <= 7


def test_bands_hold_the_mean_effects_of_independent_columns() -> None:
    records = table(6000)
    truth = effects(records)
    held = []
    for seed in range(6):
        result = run(records, noise=SimulatedNoise(seed), epsilon=1.0)
        task, found = result.plan.task, result.results
        assert isinstance(task, ShapesClassifier)
        edges = np.rint(found["edges"] * ONE).astype(np.int64)
        for at, true in zip(task.layout.places(edges, records[:, :4]), truth, strict=True):
            means = np.bincount(at, true - true.mean()) / np.maximum(np.bincount(at), 1)
            inside = (found["band_low"][:, 0][at] <= means[at]) & (
                means[at] <= found["band_high"][:, 0][at]
            )
            held.append(inside.mean())
    assert np.mean(held) > 0.93


# --- the plan


@pytest.mark.parametrize(
    ("nominal_n", "rounds", "bins", "cells"),
    [
        (200, 3, 8, 0),
        (600, 4, 16, 512),
        (1000, 5, 16, 512),
        (2500, 5, 32, 512),
        (9000, 7, 32, 512),
    ],
)
def test_the_plan_chooses_sums_and_bins_by_records_over_noise(
    nominal_n: int, rounds: int, bins: int, cells: int
) -> None:
    task = designed(nominal_n=nominal_n)
    assert (task.rounds, task.bins) == (rounds, bins)
    assert bool(task.cells) == bool(cells)
    assert sum(block.weight for t in range(rounds) for block in task.blocks(t)) == pytest.approx(1)


def test_a_plan_with_few_records_names_regression() -> None:
    for target, named in (("ill", "logistic regression"), ("days", "linear regression")):
        few, many = planned(target, 150), planned(target, 4000)
        assert any("hides every effect" in w for w in plan_warnings(planned(target, 20), SCHEMA))
        assert any(f"{named} is as good or better" in text for text in plan_warnings(few, SCHEMA))
        assert not any(named in text for text in plan_warnings(many, SCHEMA))


@pytest.mark.parametrize(
    ("target", "options", "rule"),
    [
        ("ill", {"n_rounds": 31}, "n_rounds must be an integer in [1, 30]"),
        ("ill", {"bins": 1}, "bins must be an integer in [2, 512]"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_spent(
    target: str, options: dict[str, Any], rule: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(rule)):
        designed(target, **options)


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        (ShapesClassifier, {"target": "age"}, "target must be a column"),
        (ShapesClassifier, {"target": "a"}, "classes must be the categories of the target"),
        (ShapesRegression, {"target": "work"}, "target must be a numeric column"),
        (ShapesRegression, {"target": "a", "family": "poisson"}, "of at least 0, got -1"),
    ],
)
def test_a_target_of_the_wrong_type_is_refused(
    kind: type[Additive], options: dict[str, Any], rule: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(rule)):
        make_plan(kind, SCHEMA, ["a"], budget=Budget(1.0, 1e-6), nominal_n=4000, **options)


# --- estimators


def test_estimators_show_effects_and_importance() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 3))
    y = X[:, 0] ** 2 + 0.5 * X[:, 1]
    model = zero_noise(DPShapesRegressor)(
        epsilon=2.0, bounds=(-1, 1), target_bounds=(-1, 2), nominal_n=4000
    ).fit(X, y)
    assert model.score(X, y) > 0.9
    assert np.argsort(-model.feature_importances_).tolist()[2] == 2
    assert model.intercept_[0] == pytest.approx(y.mean(), abs=0.05)
    first, *pictures = model.plan_.task.displays(model.result_.results, model.plan_.columns)
    assert first.names[:2] in (("x0", "x1"), ("x1", "x0"))
    assert all("approximate" in picture.note for picture in pictures)
    # No picture has intervals, whose ends a report would call 95 %.
    assert all(np.isnan(picture.estimate.low).all() for picture in pictures)
