"""A generalized linear model of a formula: its columns, its hospital, and its plan."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import Job, Trust
from cloister.app.question import facts_of
from cloister.cli.options import task_options
from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.estimators.linear_model import DPGeneralizedLinearRegressor
from cloister.estimators.measures import evaluate
from cloister.protocol.layout import Layout
from cloister.protocol.plan import Plan
from cloister.protocol.task import SitedTask
from cloister.tasks.regression.formula import design_of
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.testing import SimulatedNoise, ZeroNoise, check_task, hostile_states, zero_noise

pytest.importorskip("formulaic")

from cloister.tasks.regression.parse import parse_formula

SCHEMA = Schema(
    dataset="wards",
    unit="row",
    columns=[
        {"name": "treated", "type": "boolean"},
        {"name": "age", "type": "number", "min": 20, "max": 80},
        {"name": "arm", "type": "category", "categories": ["a", "b", "c"]},
        {"name": "t", "type": "number", "min": 0.5, "max": 10},
        {"name": "y", "type": "number", "min": 20, "max": 80},
        {"name": "events", "type": "integer", "min": 0, "max": 30},
    ],
)
SILOS = tuple(f"ward {i}" for i in range(8))


def tables(seed: int, n: int = 2000) -> dict[str, pd.DataFrame]:
    """Return records of each silo: sicker hospitals treat more, and the effect is 1."""
    rng, made = np.random.default_rng(seed), {}
    for i, silo in enumerate(SILOS):
        frame = pd.DataFrame({"treated": rng.random(n) < 0.2 + 0.6 * i / 7})
        frame["age"], frame["t"] = rng.uniform(20, 80, n), rng.uniform(0.5, 10, n)
        frame["arm"] = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
        mean = 50 + frame.treated + 0.05 * (frame.age - 50) + 3 * (i - 3.5) / 3.5
        frame["y"] = mean + np.log(frame.t) * (frame.arm == "b") + rng.normal(0, 3, n)
        frame["events"] = rng.poisson(frame.t * np.exp(-1 + 0.01 * (frame.age - 50)))
        made[silo] = frame
    return made


def plan_of(text: str, target: str = "y", **given: Any) -> Plan:
    options = {"formula": parse_formula(text).to_dict(), "target": target}
    epsilon = given.pop("epsilon", 1.0)
    job = Job(
        task=GeneralizedLinear, schema=SCHEMA, silos=SILOS, options={**options, **given},
        epsilon=epsilon, delta=1e-6, nominal_n=16_000, trust=Trust(profile="group"),
    )  # fmt: skip
    return job.plan


def encoded(seed: int) -> dict[str, Any]:
    from cloister.data import read_source

    return {silo: read_source(frame, SCHEMA) for silo, frame in tables(seed).items()}


def pooled(seed: int, text: str) -> tuple[tuple[str, ...], Floats, Floats]:
    """Return names and values of the design of all silos, and the target."""
    design, parts, targets = design_of(parse_formula(text), SCHEMA.public, SILOS), [], []
    names: tuple[str, ...] = ()
    grid = SCHEMA.grid(16)
    for silo, frame in tables(seed).items():
        numbers = frame.assign(arm=frame.arm.map({"a": 0, "b": 1, "c": 2}).astype(float))
        rows = grid.decode(grid.encode(numbers[list(SCHEMA.names)].astype(float)) / 65536)
        table = dict(zip(SCHEMA.names, rows.T, strict=True))
        names, matrix = design.matrix(table, silo)
        parts.append(matrix)
        targets.append(design.target.values(table, silo))
    return names, np.concatenate(parts), np.concatenate(targets)


@pytest.mark.parametrize(
    "text",
    [
        "y ~ treated + age + site",
        "y ~ treated*arm + I(age**2) + log(t):arm + site",
        "log(y) ~ treated + bs(age, knots=[40, 60]) + C(site, Treatment('ward 3'))",
        "y ~ treated:site + age + cut(t, edges=[2, 5])",
    ],
)
def test_without_noise_it_is_least_squares_on_the_design(text: str) -> None:
    plan = plan_of(text, epsilon=1e4)
    found = run_plan(plan, encoded(1), noise=ZeroNoise()).results
    names, matrix, target = pooled(1, text)
    expected = dict(zip(names, np.linalg.lstsq(matrix, target, rcond=None)[0], strict=True))
    task = plan.task
    assert isinstance(task, GeneralizedLinear)
    coefficients = dict(zip(task.names, [*found["coef"], *found["intercept"]], strict=True))
    for name, value in expected.items():
        assert coefficients[name] == pytest.approx(value, abs=2e-2 * max(1, abs(value))), name


def test_a_confounded_effect_is_one_with_the_site_and_far_away_without() -> None:
    exact = np.linalg.lstsq(*pooled(0, "y ~ treated + age + site")[1:], rcond=None)[0][1]
    records = encoded(0)
    for text, low, high in (("y ~ treated + age + site", 0.8, 1.2), ("y ~ treated + age", 2.2, 3)):
        found = run_plan(plan_of(text), records, noise=SimulatedNoise(3)).results
        assert low < found["coef"][0] < high
        holds = found["coef_low"][0] <= exact <= found["coef_high"][0]
        assert holds == ("site" in text)


def test_counts_with_an_exposure() -> None:
    plan = plan_of("events ~ age + exposure(t)", "events", family="poisson", epsilon=8.0)
    found = run_plan(plan, encoded(2), noise=SimulatedNoise(1)).results
    assert found["coef"][0] == pytest.approx(0.01, abs=0.003)


def test_an_option_beside_a_formula_is_refused_with_its_term() -> None:
    with pytest.raises(PlanError, match=r"terms, such as .* exposure\(months\)"):
        plan_of("events ~ age", "events", family="poisson", exposure="t")


def test_the_plan_has_terms_and_no_text() -> None:
    text = "y ~ treated + log(t) + site"
    plan = plan_of(text)
    written = plan.canonical_json()
    assert text not in written
    assert "here" not in json.loads(written)["task"]
    again = Plan.from_dict(json.loads(written), {"glm": GeneralizedLinear})
    assert again.canonical_json() == written
    task = again.task_at("ward 2")
    assert isinstance(task, GeneralizedLinear)
    assert task.here == "ward 2"
    assert Layout.of(task).same_as(plan.layout)
    assert isinstance(plan.task, SitedTask)


def test_an_approver_reads_target_and_terms_of_a_formula() -> None:
    """Of all that is asked, only the option named them, as lists of lists without an end."""
    said = plan_of("log(y) ~ treated*age + offset(log(t))").task.describe()
    of = "'log(y)' on 'treated', 'age', 'treated:age' with the offset 'log(t)'"
    assert said.startswith(f"A gaussian regression of {of}. ")
    assert " of 'y' on no column. " in plan_of("y ~ 1").task.describe()


def test_formulas_of_other_terms_are_other_texts() -> None:
    def option_in(text: str) -> str:
        return dict(facts_of(plan_of(text), SCHEMA))["option formula"]

    assert option_in("y ~ treated + age") != option_in("y ~ treated:age")
    assert option_in("y ~ treated:age").endswith("terms = ((column by treated) by (column by age))")


def test_a_formula_may_have_the_intercept_alone() -> None:
    found = run_plan(plan_of("y ~ 1", epsilon=1e4), encoded(1), noise=ZeroNoise()).results
    mean = np.mean([frame.y.mean() for frame in tables(1).values()])
    assert found["intercept"][0] == pytest.approx(mean, abs=0.05)


def test_a_plan_without_a_formula_is_as_before() -> None:
    job = Job(
        task=GeneralizedLinear, schema=SCHEMA, silos=SILOS, options={"target": "y"}, epsilon=1.0,
        nominal_n=16_000,
    )  # fmt: skip
    assert not {"formula", "columns", "here"} & json.loads(job.plan.canonical_json())["task"].keys()
    assert job.plan.task_at("ward 0") == job.plan.task


@pytest.mark.parametrize(
    ("text", "target", "given", "says"),
    [
        ("y ~ age", "t", {}, "the column on the left"),
        ("I(y + t) ~ age", "y", {}, "the column on the left"),
        ("y ~ age - 1", "y", {}, "must have an intercept"),
        ("y ~ age", "y", {"covariates": ("age",)}, "part of the formula"),
        ("y ~ age", "y", {"offset": "t"}, "part of the formula"),
        ("y ~ y + age", "y", {}, "different columns"),
        ("y ~ age + weight", "y", {}, "'weight'"),
        ("y ~ site:arm:treated:cut(t, edges=[1, 2, 3, 4])", "y", {}, "at most 60 columns"),
    ],
)
def test_formulas_that_do_not_fit_are_refused_before_anything_is_spent(
    text: str, target: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError) as refused:
        plan_of(text, target, **given)
    assert says in str(refused.value)


@pytest.mark.filterwarnings("error::cloister.core.errors.DataLossWarning")
def test_a_cell_that_the_formula_does_not_use_excludes_no_record() -> None:
    frame = tables(5)[SILOS[0]]
    frame.loc[::2, "t"] = np.nan
    about: dict[str, Any] = {"epsilon": 1e4, "delta": 1e-6, "bounds": SCHEMA, "nominal_n": 2000}
    model = zero_noise(DPGeneralizedLinearRegressor)(formula="y ~ treated + age", **about)
    assert model.plan().plan.columns == model.fit(frame).plan_.columns == ("treated", "age", "y")
    by_name = zero_noise(DPGeneralizedLinearRegressor)(
        target="y", covariates=("treated", "age"), **about
    )
    assert by_name.fit(frame).coef_[1:] == pytest.approx(model.coef_, rel=1e-3)
    measured = evaluate(model, frame, target="y", epsilon=1e4, delta=1e-6, nominal_n=2000)
    assert measured.plan.columns == model.plan_.columns


def test_the_estimator_takes_a_formula(tmp_path: Path) -> None:
    model = zero_noise(DPGeneralizedLinearRegressor)(
        formula="y ~ treated + age + site", epsilon=1e4, delta=1e-6, bounds=SCHEMA,
        nominal_n=16_000,
    )  # fmt: skip
    frames = list(tables(4).values())
    model.fit(frames)
    assert model.feature_names_.tolist()[:2] == ["treated", "age"]
    assert model.coef_[0] == pytest.approx(1.0, abs=0.25)
    first, last = (model.predict(frames[0].head(50), silo=f"silo-{i}") for i in (0, 7))
    assert np.mean(last - first) == pytest.approx(6, abs=0.5)
    model.save(tmp_path / "model.json")
    (tmp_path / "wards.toml").write_text(SCHEMA.to_toml())
    again = DPGeneralizedLinearRegressor.load(
        tmp_path / "model.json", bounds=tmp_path / "wards.toml"
    )
    assert np.array_equal(again.predict(frames[0].head(50), silo="silo-0"), first)
    assert again.predict(frames[0][["treated", "age"]].head(50), silo="silo-0") == pytest.approx(
        first
    )
    with pytest.raises(PlanError, match="need a silo"):
        model.predict(frames[0])
    with pytest.raises(PlanError, match="must be one of silo-0"):
        model.predict(frames[0], silo="ward 9")


def test_a_command_reads_a_formula() -> None:
    text = "log(y) ~ age + site"
    found = task_options(GeneralizedLinear, [f"formula={text}", "family=gaussian"])
    assert found == {
        "target": "y", "formula": parse_formula(text).to_dict(), "family": "gaussian"
    }  # fmt: skip
    with pytest.raises(PlanError, match="print"):
        task_options(GeneralizedLinear, ["formula=print(1)(y) ~ age"])


def test_a_forged_design_is_refused() -> None:
    plan = plan_of("y ~ treated + age")
    task = plan.task
    assert isinstance(task, GeneralizedLinear)
    assert task.formula is not None
    first, second = task.formula["terms"]
    second = [*second[:3], ["eval", "age"], *second[4:]]
    with pytest.raises(PlanError):
        replace(task, formula={**task.formula, "terms": [first, second]})


@pytest.mark.parametrize("silo", ["ward 5", ""])
def test_the_laws_hold_at_every_silo_and_state(silo: str) -> None:
    plan = plan_of("y ~ treated*arm + log(t):arm + site + bs(age, knots=[50])")
    assert isinstance(plan.task, GeneralizedLinear)
    task = plan.task.at_silo(silo) if silo else plan.task
    one = 1 << 16
    corners = np.array(
        [[one] * 6, [-one] * 6, [0] * 6, [one, -one] * 3, [1, one - 1, -1, 2, -2, 0]],
        dtype=np.int32,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few records use half of a bound
        check_task(task, [corners], tuple(hostile_states(task)))
