"""Cox regression: what it releases, checked against another implementation and at its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import DPCoxApproximate, Schema, run_job
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.app.report.notebook import release_frame
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.privacy.budget import Budget
from cloister.tasks.survival.cox_approximate import CoxApproximate, common_hazard
from cloister.testing import SimulatedNoise, ZeroNoise, zero_noise

SCHEMA = Schema(
    dataset="trial",
    unit="row",
    columns=[
        {"name": "months", "type": "number", "min": 0, "max": 60},
        {"name": "died", "type": "boolean"},
        {"name": "age", "type": "number", "min": 20, "max": 80},
        {"name": "weight", "type": "number", "min": 40, "max": 140},
        {"name": "treated", "type": "boolean"},
        {"name": "stage", "type": "category", "categories": ["I", "II", "III"]},
    ],
)
OPTIONS: dict[str, Any] = {"time": "months", "event": "died"}
# CoxPHFitter of lifelines 0.30.3 on `patients`
LIFELINES = {
    "mild": (0.01035, -0.001138, -0.279507, 0.183632, 0.435254),
    "strong": (0.021511, -0.00109, -0.680409, 0.462578, 0.948577),
}
SAMPLING = (0.00117, 0.00134, 0.04004, 0.04646, 0.051)  # and its standard errors of the first


def patients(strength: float = 1.0, n: int = 4000) -> pd.DataFrame:
    """Return simulated patients."""
    rng = np.random.default_rng(11)
    age, weight = rng.uniform(20, 80, n), np.clip(rng.normal(75, 15, n), 40, 140)
    treated, stage = rng.random(n) < 0.5, rng.choice(3, n, p=[0.4, 0.35, 0.25])
    risk = 0.008 * (age - 50) - 0.3 * treated + 0.18 * stage
    dies = rng.exponential(30 / np.exp(strength * risk))
    lost = rng.exponential(60, n)
    months = np.minimum(np.minimum(dies, lost), 59)
    return pd.DataFrame(
        {
            "months": months,
            "died": (dies <= lost) & (dies < 59),
            "age": age,
            "weight": weight,
            "treated": treated,
            "stage": np.array(["I", "II", "III"])[stage],
        }
    )


def released(table: pd.DataFrame | dict[str, Any], noise: Any = None, **changes: Any) -> Release:
    silos = table if isinstance(table, dict) else {"a": table}
    given = {"epsilon": 4.0, "nominal_n": 4000, "nominal_events": 2500, **OPTIONS, **changes}
    records = {name: read_source(part, SCHEMA) for name, part in silos.items()}
    return run_job(CoxApproximate, SCHEMA, records, delta=1e-6, noise=noise or ZeroNoise(), **given)


def followed(months: list[float]) -> tuple[CoxApproximate, np.ndarray]:
    """Return a task up to month 40 of 60, and records with the event."""
    options = {**OPTIONS, "tau": 40.0, "covariates": ("age",)}
    plan = make_plan(
        CoxApproximate,
        SCHEMA,
        ["a"],
        budget=Budget(4.0, 1e-6),
        nominal_n=4000,
        nominal_events=2500,
        **options,
    )
    assert isinstance(plan.task, CoxApproximate)
    table = np.array([[month, 1.0, 50.0, 90.0, 0.0, 0.0] for month in months])
    return plan.task, SCHEMA.grid().encode(table)


def test_whoever_is_there_at_the_horizon_was_followed_to_it() -> None:
    task, records = followed([0.0, 5.0, 39.9, 40.1, 50.0, 60.0])
    time, event = task._exits(records)
    assert event.tolist() == [True] * 3 + [False] * 3
    assert np.allclose(time, [0, 0.125, 0.9975, 1, 1, 1], atol=1e-4)


def test_the_common_hazard_is_that_of_nelson_and_aalen() -> None:
    """Without noise, within a cell's width; all that is left belongs to the last block."""
    rng, ends = np.random.default_rng(0), (np.arange(65) / 64) ** 2
    time = rng.exponential(0.5, 200_000)
    place = np.floor(np.sqrt(np.minimum(time, 1.0)) * 64).astype(int)
    exits = np.stack([np.bincount(place, minlength=65), np.zeros(65)], axis=1).astype(float)
    exits[-1] = exits[-1, ::-1]
    hazard, events = common_hazard(exits, ends, 0.0)
    assert np.allclose(hazard, ends / 0.5, atol=0.02)
    assert events.sum() == pytest.approx(exits[:, 0].sum(), rel=1e-3)


@pytest.mark.parametrize("noise", [1.0, 50.0, 1e4])
def test_any_noise_leaves_a_hazard_that_grows(noise: float) -> None:
    rng, ends = np.random.default_rng(0), (np.arange(65) / 64) ** 2
    for _ in range(50):
        hazard, events = common_hazard(rng.normal(5, noise, (65, 2)), ends, noise)
        assert np.isfinite(hazard).all()
        assert (np.diff(hazard) >= 0).all()
        assert (events > 0).all()


@pytest.mark.parametrize("strength", ["mild", "strong"])
def test_without_noise_it_is_what_lifelines_says(strength: str) -> None:
    """Within a seventh of the error of sampling of the mild table."""
    result = released(patients(1.0 if strength == "mild" else 2.4), epsilon=1e6)
    task, found = result.plan.task, result.results
    assert isinstance(task, CoxApproximate)
    assert task.names == ("age", "weight", "treated", "stage=II", "stage=III")
    assert (np.abs(found["coef"] - LIFELINES[strength]) < 0.15 * np.array(SAMPLING)).all()
    inside = (found["coef_low"] < LIFELINES[strength]) & (LIFELINES[strength] < found["coef_high"])
    assert inside.all()
    assert not found["far_values"].any()


def test_without_noise_the_population_interval_has_the_standard_error() -> None:
    result = released(patients(), epsilon=1e6).results
    half = (result["coef_population_high"] - result["coef_population_low"]) / 2
    assert np.allclose(half / 1.96, SAMPLING, rtol=0.1)


def test_a_number_with_far_values_is_marked() -> None:
    table = patients()
    table["weight"] = np.where(np.arange(4000) < 60, 139.0, 45 + table["weight"] / 100)
    shown = released(table)
    assert shown.results["far_values"].tolist() == [0, 1, 0, 0, 0]
    displays = shown.plan.task.displays(shown.results, shown.plan.columns)
    assert "far values, interval not valid" in str(displays)
    frame = release_frame(displays).loc["Approximate hazard ratios of died"]
    assert frame["mark"].tolist() == ["", "far values, interval not valid", "", "", ""]
    assert "mark" not in release_frame(displays[2:])


def test_silos_say_bit_for_bit_what_they_say_together() -> None:
    table = patients()
    parts = {"a": table[:7], "b": table[7:2900], "c": table[2900:], "d": table[:0]}
    whole, split = released(table), released(parts)
    for name, value in whole.results.items():
        assert (split.results[name] == value).all(), name


EDGES = {
    "nobody": lambda t: t[:0],
    "one": lambda t: t[:1],
    "all censored": lambda t: t.assign(died=False),
    "all die at once": lambda t: t.assign(died=True, months=0.0),
    "all at the top": lambda t: t.assign(months=60.0),
    "all alike": lambda t: t.assign(age=50.0, weight=70.0, treated=True, stage="II"),
}


@pytest.mark.parametrize("noise", [ZeroNoise, lambda: SimulatedNoise(1)])
@pytest.mark.parametrize("edge", EDGES)
def test_no_records_make_it_say_nothing(edge: str, noise: Any) -> None:
    """Values are not known or have intervals, and the test rejects nothing that is not known."""
    result = released(EDGES[edge](patients()), noise())
    found = result.results
    known = np.isfinite(found["coef"])
    assert 0 <= found["wald_p"][0] <= 1
    low, high = (found[f"hazard_ratio{end}"] for end in ("_low", "_high"))
    assert (low <= high).all()
    assert (low[~known] == 0).all()
    assert np.isinf(high[~known]).all()
    assert (low[known] <= found["hazard_ratio"][known]).all()
    assert len(result.plan.task.displays(found, result.plan.columns)) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.1, "nominal_events": 100}, "nominal_events must be at least .* for 5"),
        ({"time": "died", "event": "died"}, "time must be a numeric column"),
        ({"event": "stage"}, "event must be a boolean column"),
        ({"tau": 61.0}, "tau must be in"),
        ({"covariates": ("age", "age")}, "different columns"),
        ({"covariates": ("age", "months")}, "different columns"),
        ({"covariates": ("height",)}, "covariates must be a column"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        released(patients(), **changes)


def test_more_than_ten_coefficients_are_refused() -> None:
    wide = [{"name": f"x{j}", "type": "number", "min": 0, "max": 1} for j in range(11)]
    schema = Schema(dataset="d", unit="row", columns=[*SCHEMA.columns[:2], *wide])
    with pytest.raises(PlanError, match="at most 10 coefficients, got 11"):
        run_job(
            CoxApproximate,
            schema,
            {"a": np.zeros((0, 13), dtype=np.int32)},
            epsilon=4.0,
            nominal_n=10**6,
            nominal_events=10**6,
            noise=ZeroNoise(),
            **OPTIONS,
        )


def test_the_estimator_says_what_the_task_says() -> None:
    table = patients()
    model = zero_noise(DPCoxApproximate)(
        epsilon=4.0, bounds=SCHEMA, nominal_n=4000, nominal_events=2500, delta=1e-6, **OPTIONS
    ).fit(table)
    task = released(table).results
    assert (model.coef_ == task["coef"]).all()
    assert np.allclose(np.exp(model.coef_), model.hazard_ratios_)
    assert (model.confidence_intervals_[:, 0] < model.hazard_ratios_).all()
    assert (model.population_intervals_[:, 1] > model.confidence_intervals_[:, 1]).all()
    assert model.wald_p_ < 1e-6
    assert list(model.names_) == ["age", "weight", "treated", "stage=II", "stage=III"]
    assert not model.far_values_.any()
    frame = model.to_frame()["value"]
    chart = frame.loc["Approximate hazard ratios", "weight, half of its range"].iloc[0]
    assert chart == pytest.approx(model.hazard_ratios_[1] ** model.plan_.task.units[1])


def test_a_saved_model_predicts_as_before(tmp_path: Any) -> None:
    table = patients()
    model = DPCoxApproximate(
        epsilon=4.0, bounds=SCHEMA, nominal_n=4000, nominal_events=2500, **OPTIONS
    )
    model.fit(table).save(tmp_path / "model.json")
    again = DPCoxApproximate.load(tmp_path / "model.json", bounds=SCHEMA)
    assert (again.coef_ == model.coef_).all()
    assert again.time == "months"
    assert again.covariates[0] == "age"


def test_bounds_must_be_a_schema() -> None:
    with pytest.raises(PlanError, match="bounds must be a Schema"):
        DPCoxApproximate(epsilon=1.0, bounds=(0, 1), nominal_events=5, **OPTIONS).fit(patients())
