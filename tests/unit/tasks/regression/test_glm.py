"""The task of the engine: units, silos, rare columns, references, refusals and predictions."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import Records, Results
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN
from cloister.data.schema import Column, Schema
from cloister.estimators.linear_model import DPGeneralizedLinearRegressor
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import Regressor, UnitTask
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.rounds import LAST, PLACES, ROUNDS
from cloister.testing import UNMET_CHECKS, SimulatedNoise, ZeroNoise, hostile_states, zero_noise

N = 8000
EXACT = 1e7  # of epsilon: hardly any noise, so that nothing is cut


def number(name: str, low: float, high: float) -> Column:
    return Column(name=name, type="number", min=low, max=high)


COLUMNS = (
    number("x", -1, 1),
    number("age", 0, 10),
    Column(name="ill", type="boolean"),
    Column(name="arm", type="category", categories=("a", "b", "c")),
    number("time", 0, 4),
)
TARGETS = {
    "gaussian": number("y", -3, 3),
    "binomial": Column(name="y", type="boolean"),
    "poisson": number("y", 0, 20),
    "negative-binomial": number("y", 0, 40),
    "gamma": number("y", 0, 40),
}


@cache
def table(family: str) -> tuple[np.ndarray, np.ndarray]:
    """Return cells, codes for categories, and the design of a textbook with the constant last."""
    rng = np.random.default_rng(1)
    x, age, time = rng.uniform(-1, 1, N), rng.uniform(0, 10, N), rng.uniform(0.2, 4, N)
    ill, arm = (rng.random(N) < 0.4) * 1.0, rng.choice(3, N, p=[0.5, 0.3, 0.2])
    margin = 0.4 * x - 0.04 * age - 0.4 * ill + 0.3 * (arm == 1)
    mean = np.exp(margin)
    y = {
        "gaussian": lambda: margin + rng.normal(0, 0.5, N),
        "binomial": lambda: (rng.random(N) < 1 / (1 + 1 / mean)) * 1.0,
        "poisson": lambda: rng.poisson(mean * time),
        "negative-binomial": lambda: rng.poisson(mean * rng.gamma(2, 0.5, N)),
        "gamma": lambda: mean * rng.gamma(3, 1 / 3, N),
    }[family]()
    cells = np.column_stack([x, age, ill, arm, time, y])
    design = np.column_stack([x, age, ill, arm == 1, arm == 2, np.ones(N)])
    return cells, design.astype(float)


def plan_of(
    family: str,
    epsilon: float = 2.0,
    columns: Any = COLUMNS,
    unit: str = "row",
    silos: tuple[str, ...] = ("p",),
    **options: Any,
) -> Plan:
    schema = Schema(dataset="toy", unit=unit, columns=(*columns, TARGETS[family]))
    return make_plan(
        GeneralizedLinear,
        schema,
        silos,
        budget=Budget(epsilon, 1e-6),
        nominal_n=N,
        target="y",
        family=family,
        **options,
    )


def released(plan: Plan, cells: np.ndarray, noise: Any = None, silos: int = 1) -> Results:
    records = plan.grid.encode(cells)
    parts = {silo: [records[i::silos]] for i, silo in enumerate(plan.silos)}
    return run_plan(plan, parts, noise=noise or ZeroNoise()).results


COVARIATES = ("x", "age", "ill", "arm")


@pytest.mark.parametrize("family", TARGETS)
def test_three_steps_without_noise_are_nearly_at_the_maximum(family: str) -> None:
    """They are at most 0.002 standard errors away, with what the grid of records changes."""
    cells, design = table(family)
    exposed = {"exposure": "time"} if family == "poisson" else {}
    plan = plan_of(family, EXACT, covariates=COVARIATES, alpha=0.5, **exposed)
    results = released(plan, cells)
    model = plan.task.model.family
    offset = np.log(cells[:, 4]) if exposed else 0.0
    weights = np.zeros(6)
    for _ in range(30):
        residual, weight = model.score(design @ weights + offset, cells[:, -1])
        hessian = (design.T * weight) @ design
        weights += np.linalg.solve(hessian, design.T @ residual)
    error = np.sqrt(np.diag(np.linalg.inv(hessian)))
    found = np.append(results["coef"][[0, 1, 3, 5, 6]], results["intercept"])
    assert np.abs((found - weights) / error).max() < 2e-3
    assert results["reference"].tolist() == [0, 0, 1, 0, 1, 0, 0]


def test_a_reference_moves_coefficients_and_the_intercept_only() -> None:
    cells, _ = table("gaussian")
    usual = released(plan_of("gaussian", covariates=COVARIATES), cells)
    other = released(plan_of("gaussian", covariates=COVARIATES, reference={"arm": "c"}), cells)
    arm = slice(4, 7)
    assert other["reference"][arm].tolist() == [0, 0, 1]
    moved = usual["coef"][arm] - usual["coef"][6]
    assert other["coef"][arm] == pytest.approx(moved)
    assert other["intercept"] == pytest.approx(usual["intercept"] + usual["coef"][6])
    records = plan_of("gaussian").grid.encode(cells)
    task = plan_of("gaussian", covariates=COVARIATES).task
    again = replace(task, reference=(0, 0, 0, 2))
    assert isinstance(task, Regressor)
    assert again.predict(other, records) == pytest.approx(task.predict(usual, records))


# Units --------------------------------------------------------------------------------------------

PERSON = Column(
    name="person",
    type="integer",
    min=0,
    max=999,
    missing="drop",
    out_of_range="drop",
)


@cache
def of_persons() -> tuple[Plan, Records]:
    """Return a plan whose units are persons, and 1,000 of them with 8 rows each, not in order."""
    cells, _ = table("gaussian")
    person = np.random.default_rng(4).permutation(np.repeat(np.arange(1000.0), 8))
    cells = np.column_stack([person, cells])
    plan = plan_of("gaussian", columns=(PERSON, *COLUMNS), unit="person", rows_of_unit=8)
    return plan, plan.grid.encode(cells)


def test_a_person_is_one_unit_and_the_sandwich_is_the_default() -> None:
    plan, _ = of_persons()
    assert isinstance(plan.task, UnitTask)
    assert plan.by_client is plan.task
    assert plan.task.sandwich
    assert "person" not in plan.task.names
    assert plan_of("gaussian").by_client is None  # rows are read in chunks


def test_all_rows_of_a_person_change_each_block_by_its_bound_at_most() -> None:
    _, records = of_persons()
    persons: dict[str, Any] = {"columns": (PERSON, *COLUMNS), "unit": "person", "rows_of_unit": 8}
    plan = plan_of("gaussian", silos=("p", "q"), by_silo=True, **persons)
    task, rng = plan.task, np.random.default_rng(0)
    states = [*hostile_states(task)][::3]
    one = plan.grid.one
    extreme = rng.choice([-one, one], (40, records.shape[1])).astype(np.int32)
    reached: dict[str, float] = {}
    for rows in (records[:40], extreme, np.repeat(extreme[:1], 40, axis=0)):
        rows = rows.copy()
        rows[:, 0] = records[0, 0]
        others = records[records[:, 0] != records[0, 0]][:200]
        for state in states:
            for t in range(task.rounds):
                table_ = np.concatenate([others[:100], rows, others[100:]])
                change = task.contribute(t, state, table_) - task.contribute(t, state, others)
                ends = np.cumsum([block.size for block in task.blocks(t)])[:-1]
                for block, words in zip(task.blocks(t), np.split(change, ends), strict=True):
                    norm = int((words.astype(object) ** 2).sum())
                    assert norm <= block.l2_squared
                    assert int(np.abs(words.astype(object)).sum()) <= block.l1
                    name = f"{t} {block.name}"
                    reached[name] = max(reached.get(name, 0.0), norm / block.l2_squared)
    assert min(reached.values()) > 0.5, reached


def test_a_unit_adds_the_same_wherever_its_rows_are() -> None:
    plan, records = of_persons()
    order = np.argsort(records[:, 0], kind="stable")
    state = next(iter(hostile_states(plan.task)))
    for t in range(ROUNDS):
        mixed, sorted_ = (plan.task.contribute(t, state, r) for r in (records, records[order]))
        assert (mixed == sorted_).all()
    half = records[records[:, 0] < 0], records[records[:, 0] >= 0]
    parts = sum(plan.task.contribute(LAST, state, part) for part in half)
    assert (parts == plan.task.contribute(LAST, state, records)).all()


def test_units_share_one_count_of_each_column() -> None:
    plan, records = of_persons()
    words = plan.task.contribute(PLACES, next(iter(hostile_states(plan.task))), records)
    assert words[-1] == 1000 << 16


def test_population_intervals_know_that_rows_of_a_person_are_alike() -> None:
    """Without noise the sandwich is that of persons, about 2.5 times as wide as that of rows."""
    rng = np.random.default_rng(6)
    person = np.repeat(np.arange(1000.0), 8)
    between = np.repeat(rng.uniform(-1, 1, 1000), 8)
    y = np.clip(0.5 * between + np.repeat(rng.normal(0, 0.5, 1000), 8), -3, 3)
    y = np.clip(y + rng.normal(0, 0.2, N), -3, 3)
    columns = (PERSON, number("x", -1, 1))
    width = {}
    for unit in ("row", "person"):
        plan = plan_of("gaussian", EXACT, columns=columns, unit=unit, covariates=("x",))
        results = released(plan, np.column_stack([person, between, y]))
        width[unit] = np.sqrt(results["sampling_covariance"][0, 0])
    exact = 0.5 / np.sqrt(1000 / 3)  # deviation of a person over the root of the sum of squares
    assert width["person"] == pytest.approx(exact, rel=0.15)
    assert width["row"] < 0.5 * width["person"]


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
def test_a_wrong_number_of_rows_of_a_unit_costs_width_and_no_truth(rows: int) -> None:
    """Counts of sizes correct a public guess: without noise the estimate is least squares."""
    _, design = table("gaussian")
    cells, _ = table("gaussian")
    person = np.repeat(np.arange(1000.0), 8)
    plan = plan_of(
        "gaussian",
        EXACT,
        columns=(PERSON, *COLUMNS),
        unit="person",
        rows_of_unit=rows,
        covariates=COVARIATES,
    )
    results = released(plan, np.column_stack([person, cells]))
    exact, *_ = np.linalg.lstsq(design, cells[:, -1], rcond=None)
    at = [0, 1, 3, 5, 6]
    error = np.sqrt(np.diag(results["sampling_covariance"]))[at]
    assert (np.abs(results["coef"][at] - exact[:5]) < 0.1 * error).all()


# Noise --------------------------------------------------------------------------------------------


def half_widths(share: float, seed: int) -> tuple[Results, np.ndarray, tuple[Any, ...]]:
    """Return results with a rare boolean, half-widths of the two numbers, and displays."""
    rng = np.random.default_rng(seed)
    rare = np.zeros(N)
    rare[: round(share * N)] = 1.0
    a, b = rng.normal(0, 1, N), rng.normal(0, 2, N)
    y = np.clip(a - 0.5 * b + 2 * rare + rng.normal(0, 1, N), -12, 12)
    columns = (number("a", -5, 5), number("b", -10, 10), Column(name="c", type="boolean"))
    schema = Schema(dataset="toy", unit="row", columns=(*columns, number("y", -12, 12)))
    budget = Budget(1.0, 1e-6)
    plan = make_plan(GeneralizedLinear, schema, ("p",), budget=budget, nominal_n=N, target="y")
    cells = np.column_stack([np.clip(a, -5, 5), np.clip(b, -10, 10), rare, y])
    results = released(plan, cells, SimulatedNoise(seed))
    width = (results["coef_high"] - results["coef_low"])[:2] / 2
    return results, width, plan.task.displays(results, plan.columns)


def test_a_rare_column_is_not_known_and_widens_no_other() -> None:
    ratios = []
    for seed in range(3):
        _, without, _ = half_widths(0.4, seed)
        results, rare, displays = half_widths(0.002, seed)
        ratios.append(np.median(rare / without))
        assert np.isnan(results["coef"][3])
        assert (results["coef_low"][3], results["coef_high"][3]) == (-np.inf, np.inf)
        assert np.isnan(results["covariance"][3]).all()
        cells = {row[0]: row[1] for row in displays[0].rows}
        assert cells["c=true"] == NOT_KNOWN
        assert "not known" in displays[0].note
    assert np.median(ratios) < 1.5


@pytest.mark.parametrize(("epsilon", "bounded"), [(8.0, True), (0.5, False)])
def test_the_residual_deviation_holds_that_of_skewed_residuals(
    epsilon: float, bounded: bool
) -> None:
    """Squares beyond the cut are part of it; where noise hides them, it has no upper bound."""
    rng = np.random.default_rng(5)
    x, costs = rng.normal(0, 1, N).clip(-5, 5), rng.exponential(4, N)
    y = np.clip(10 + 2 * x + costs, 0, 200)
    schema = Schema(dataset="toy", unit="row", columns=(number("x", -5, 5), number("y", 0, 200)))
    budget, design = Budget(epsilon, 1e-6), np.column_stack([x, np.ones(N)])
    plan = make_plan(GeneralizedLinear, schema, ("p",), budget=budget, nominal_n=N, target="y")
    left = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    truth = np.sqrt(left @ left / (N - 2))
    for seed in range(3):
        results = released(plan, np.column_stack([x, y]), SimulatedNoise(seed))
        low, high = results["residual_std_low"][0], results["residual_std_high"][0]
        assert low <= truth <= high
        assert np.isfinite(high) == bounded
        assert results["sampling_covariance"][0, 0] > 0.9 * truth**2 / (x @ x)


def test_bars_of_numbers_are_for_their_whole_range() -> None:
    """In data units, the bars of two columns would not be in one unit."""
    plan = plan_of("gaussian", EXACT, covariates=COVARIATES)
    results = released(plan, table("gaussian")[0])
    table_, bars = plan.task.displays(results, plan.columns)
    cells = {row[0]: row[1] for row in table_.rows}
    drawn = dict(zip(bars.estimate.labels[0], bars.estimate.values, strict=True))
    assert drawn["age"] == pytest.approx(10 * cells["age"].value)
    assert drawn["arm=b"] == pytest.approx(cells["arm=b"].value)
    assert "whole range" in bars.title


def test_results_that_are_known_hold_least_squares() -> None:
    cells, design = table("gaussian")
    exact = np.linalg.lstsq(design, cells[:, -1], rcond=None)[0]
    plan, hits = plan_of("gaussian", covariates=COVARIATES), []
    for seed in range(12):
        results = released(plan, cells, SimulatedNoise(seed))
        at = [0, 1, 3, 5, 6]
        low, high = results["coef_low"][at], results["coef_high"][at]
        hits.append((low <= exact[:5]) & (exact[:5] <= high))
        assert results["coef"][at] == pytest.approx(exact[:5], abs=0.15)
    assert np.mean(hits) > 0.9


# Plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"family": "poisson"}, "lower bound"),
        ({"family": "binomial"}, "two categories"),
        ({"target": "ill"}, "numbers"),
        ({"offset": "time", "exposure": "age"}, "exclude"),
        ({"weights": "arm"}, "weights must be a column of numbers"),
        ({"exposure": "x", "family": "gaussian"}, "exposure must be"),
        ({"covariates": ("x", "x")}, "different columns"),
        ({"epsilon": 0.05}, "nominal_n must be at least"),
        ({"nominal_n": 400}, "nominal_n must be at least"),
        ({"nominal_n": 1}, "nominal_n must be given, at least"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    schema = Schema(dataset="toy", unit="row", columns=(*COLUMNS, TARGETS["gaussian"]))
    given: dict[str, Any] = {"target": "y", "nominal_n": N, "epsilon": 2.0, **options}
    budget = Budget(given.pop("epsilon"), 1e-6)
    with pytest.raises(PlanError, match=words):
        make_plan(GeneralizedLinear, schema, ("p",), budget=budget, **given)


def test_a_plan_names_the_number_of_records_that_would_be_enough() -> None:
    schema = Schema(dataset="toy", unit="row", columns=(*COLUMNS, TARGETS["gaussian"]))
    budget = Budget(0.5, 1e-6)
    with pytest.raises(PlanError) as error:
        make_plan(GeneralizedLinear, schema, ("p",), budget=budget, target="y", nominal_n=100)
    enough = int(str(error.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    for n, fits in ((enough, True), (enough - 1, False)):
        given: dict[str, Any] = {"budget": budget, "target": "y", "nominal_n": n}
        if fits:
            assert make_plan(GeneralizedLinear, schema, ("p",), **given).nominal_n == n
        else:
            with pytest.raises(PlanError):
                make_plan(GeneralizedLinear, schema, ("p",), **given)


def test_weights_of_records_are_those_of_repeated_records() -> None:
    """A weight of a half is half a record: all weights are parts of their upper bound."""
    cells, _ = table("gaussian")
    cells = np.column_stack([cells[:, :4], 1.0 + (np.arange(N) % 2), cells[:, 5]])
    columns = (*COLUMNS[:4], number("w", 0, 2))
    plan = plan_of("gaussian", EXACT, columns=columns, weights="w")
    weighted = released(plan, cells)
    twice = np.concatenate([cells, cells[1::2]])
    plain = released(plan_of("gaussian", EXACT, columns=columns, covariates=COVARIATES), twice)
    assert weighted["coef"] == pytest.approx(plain["coef"], abs=1e-4)


# The estimator ------------------------------------------------------------------------------------


def test_the_estimator_predicts_means_and_survives_a_file(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N, 2))
    y = rng.poisson(np.exp(0.5 * X[:, 0]))
    kind = zero_noise(DPGeneralizedLinearRegressor)
    about: dict[str, Any] = {"epsilon": 2.0, "bounds": (-1, 1), "target_bounds": (0, 12)}
    model = kind(family="poisson", nominal_n=N, **about).fit(X, y)
    assert model.coef_ == pytest.approx([0.5, 0], abs=0.05)
    assert model.predict(X[:5]) == pytest.approx(np.exp(0.5 * X[:5, 0]), rel=0.1)
    assert model.feature_names_.tolist() == ["x0", "x1"]
    assert model.covariance_.shape == (3, 3)
    model.save(tmp_path / "model.json")
    again = kind.load(tmp_path / "model.json")
    assert again.family == "poisson"
    assert (again.predict(X) == model.predict(X)).all()


def test_the_estimator_requires_bounds_of_the_target() -> None:
    with pytest.raises(PlanError, match="target_bounds"):
        DPGeneralizedLinearRegressor(epsilon=1.0, bounds=(-1, 1)).fit(np.zeros((9, 1)), np.zeros(9))


def test_the_estimator_follows_scikit_learn() -> None:
    model = zero_noise(DPGeneralizedLinearRegressor)(
        epsilon=1e6, target_bounds=(-1000, 1000), bounds=(-100, 100), nominal_n=200
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, expected_failed_checks=dict(UNMET_CHECKS), on_fail=None)
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []
