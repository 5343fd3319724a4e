"""Cox regression: what it releases, checked against another implementation and at its edges."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import DPCoxApproximate, Schema, run_job
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import COUNT_BITS
from cloister.tasks.state import encode_state
from cloister.tasks.survival.cox_approximate import _WORTH, CoxApproximate
from cloister.tasks.survival.score import Series
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
# CoxPHFitter of lifelines 0.30.3 on `patients`, of whom nobody is followed beyond the horizon
LIFELINES = {
    "mild": (0.010581, -0.000459, -0.292665, 0.199543, 0.416569),
    "strong": (0.021345, -0.001143, -0.689237, 0.458622, 0.939585),
}
HORIZONS = {"mild": 13 * 60 / 18, "strong": 15 * 60 / 18}
SAMPLING = (0.0012, 0.0014, 0.0414, 0.048, 0.0528)  # and its standard errors of the first


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


def start_of(task: CoxApproximate) -> dict[str, np.ndarray]:
    return {name: round_to_grid(value, 16) for name, value in task.start().items()}


def released(table: pd.DataFrame | dict[str, Any], noise: Any = None, **changes: Any) -> Release:
    silos = table if isinstance(table, dict) else {"a": table}
    given = {"epsilon": 4.0, "nominal_n": 4000, "nominal_events": 2500, **OPTIONS, **changes}
    records = {name: read_source(part, SCHEMA) for name, part in silos.items()}
    return run_job(CoxApproximate, SCHEMA, records, delta=1e-6, noise=noise or ZeroNoise(), **given)


@pytest.mark.parametrize("top", [0.25, 1.0, 4.0])
def test_a_hazard_counts_as_much_at_any_height_up_to_one(top: float) -> None:
    unit, worth = CoxApproximate._scales(SimpleNamespace(order=2), top)  # type: ignore[arg-type]
    assert worth == pytest.approx(_WORTH / min(top, 1.0))
    assert unit**2 == pytest.approx(2 * max(1.0, top) ** 2 + 3 * (worth * top) ** 2)


def followed(months: list[float]) -> tuple[CoxApproximate, np.ndarray]:
    """Return a task of four intervals up to month 40 of 60, and records with the event."""
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
    return replace(plan.task, intervals=4), SCHEMA.grid().encode(table)


def test_whoever_is_there_at_the_horizon_was_followed_to_it() -> None:
    task, records = followed([0.0, 5.0, 10.5, 25.0, 39.9, 40.1, 50.0, 60.0])
    event, row, time = task._exits(records)
    assert event.tolist() == [1] * 8
    assert row.tolist() == [0, 0, 1, 2, 3, 4, 4, 4]
    assert np.allclose(time, [0, 0.5, 1.05, 2.5, 3.99, 4.01, 5, 5], atol=1e-3)


def test_a_residual_is_the_event_less_the_hazard_lived_through() -> None:
    """Between the ends of intervals the hazard is a line; beyond the last one it stays."""
    months = [0.0, 5.0, 12.0, 25.0, 33.0, 39.0, 45.0, 60.0]
    task, records = followed(months)
    hazard = np.array([0.0, 0.1, 0.15, 0.4, 0.9])
    state = replace(task._read(start_of(task)), hazard=hazard, last=4)
    lived = np.interp(months, [0, 10, 20, 30, 40], hazard)
    unit, _ = task._scales(0.9)
    known = {name: round_to_grid(value, 16) for name, value in encode_state(state).items()}
    for i, month in enumerate(months):
        residual = task.contribute(1, known, records[i : i + 1])[0] / (1 << COUNT_BITS) * unit
        assert residual == pytest.approx((month <= 40) - lived[i], abs=1e-3)


@pytest.mark.parametrize("strength", ["mild", "strong"])
def test_without_noise_it_is_what_lifelines_says(strength: str) -> None:
    """Within 0.01 for half of a column's range, and a percent more where effects are strong."""
    result = released(patients(1.0 if strength == "mild" else 2.4))
    task, found = result.plan.task, result.results
    assert isinstance(task, CoxApproximate)
    assert task.order == 4
    assert task.names == ("age", "weight", "treated", "stage=II", "stage=III")
    assert found["horizon"] == pytest.approx(HORIZONS[strength], abs=1e-3)
    gaps = np.abs(found["coef"] - LIFELINES[strength]) * task.units
    assert (gaps < 0.01 + 0.01 * np.abs(np.multiply(LIFELINES[strength], task.units))).all()
    inside = (found["coef_low"] < LIFELINES[strength]) & (LIFELINES[strength] < found["coef_high"])
    assert inside.all()
    assert not found["attenuated"].any()


def test_without_noise_the_population_interval_has_the_standard_error() -> None:
    result = released(patients(), epsilon=1e6).results
    half = (result["coef_population_high"] - result["coef_population_low"]) / 2
    assert np.allclose(half / 1.96, SAMPLING, rtol=0.1)


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
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("edge", EDGES)
def test_no_records_make_it_say_nothing(edge: str, epsilon: float, noise: Any) -> None:
    """No NaN, no error: intervals are wide and the test rejects nothing that it does not know."""
    result = released(EDGES[edge](patients()), noise(), epsilon=epsilon)
    assert all(np.isfinite(value).all() for value in result.results.values())
    assert 0 <= result.results["score_p"][0] <= 1
    low, high = (result.results[f"hazard_ratio{end}"] for end in ("_low", "_high"))
    assert (low <= result.results["hazard_ratio"]).all()
    assert (result.results["hazard_ratio"] <= high).all()
    assert len(result.plan.task.displays(result.results, result.plan.columns)) == 3


def test_one_step_marks_strong_effects_and_a_series_does_not() -> None:
    strong = patients(2.4)
    assert released(strong, epsilon=0.5).results["attenuated"].any()
    shown = released(strong, epsilon=0.5)
    text = str(shown.plan.task.displays(shown.results, shown.plan.columns))
    assert "attenuated, interval not valid" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.1, "nominal_events": 100}, "nominal_events must be at least"),
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


def test_products_have_the_norm_of_powers_and_their_series_is_that_of_the_exponential() -> None:
    series = Series(3, 4)
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 9))
    products = series.products(x)
    squared = (x**2).sum(axis=0)
    assert np.allclose((products**2).sum(axis=0), sum(squared**k for k in range(5)))
    b = np.array([0.3, -0.2, 0.4])
    value, first, second = series.terms(b)
    lines = b @ x
    assert np.allclose(value @ products, 1 + lines + lines**2 / 2 + lines**3 / 6 + lines**4 / 24)
    near = (series.terms(b + np.array([1e-6, 0, 0]))[0] - value) / 1e-6
    assert np.allclose(near, first[:, 0], atol=1e-5)
    near = (series.terms(b + np.array([0, 1e-6, 0]))[1] - first) / 1e-6
    assert np.allclose(near, second[:, 1], atol=1e-5)
    middle = np.array([0.1, -0.4, 0.2])
    assert np.allclose(series.around(middle) @ products, series.products(x - middle[:, None]))


@pytest.mark.parametrize("order", [2, 4])
def test_the_noise_is_that_of_the_derivatives_also_where_curvature_is_held(order: int) -> None:
    """A direction in which all is noise is held: to it, noise in the sums hardly matters."""
    rng, of = np.random.default_rng(0), Series(2, order)
    x = rng.uniform(-0.7, 0.7, (2, 400)) * [[1.0], [0.05]]  # the second one hardly varies
    sums, residuals = of.products(x).sum(axis=1), np.array([4.0, 30.0, 6.0])
    std, sums_std = 5.0, 8.0
    found = of.solve(residuals, sums, std, sums_std, 0.0)

    def coef(moved: np.ndarray) -> np.ndarray:
        parts = np.split(moved, [residuals.size])
        return of.solve(*parts, std, sums_std, 0.0).coef

    both, step = np.concatenate([residuals, sums]), 1e-4
    noise = np.repeat([std, sums_std], [residuals.size, sums.size])
    moves = step * np.eye(both.size)
    slopes = np.array([(coef(both + m) - coef(both - m)) / (2 * step) for m in moves])
    told = (noise[:, None] * slopes).T @ (noise[:, None] * slopes)
    np.testing.assert_allclose(found.noise, told, rtol=0.1, atol=0.02 * told.max())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("order", [2, 4])
def test_whatever_noise_makes_of_the_sums_the_ends_are_numbers(order: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        of, size = Series(int(rng.integers(1, 4)), order), 10 ** rng.uniform(-1, 5)
        sums = rng.normal(rng.normal(0, size), size, len(of.exponents))
        noise = 10 ** rng.uniform(-3, 3, 2)
        found = of.solve(rng.normal(0, size, of.p + 1), sums, *noise, rng.uniform(0, 1))
        assert np.isfinite(found.coef).all()
        assert np.isfinite(found.ends).all()
        assert (found.ends >= 0).all()


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
    assert model.score_p_ < 1e-6
    assert list(model.names_) == ["age", "weight", "treated", "stage=II", "stage=III"]
    assert not model.attenuated_.any()


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


def test_a_time_beside_the_box_counts_as_the_end_of_the_box() -> None:
    task, records = followed([0.0, 60.0])
    state = replace(task._read(start_of(task)), hazard=np.array([0.0, 0.1, 0.15, 0.4, 0.9]), last=4)
    known = {name: round_to_grid(value, 16) for name, value in encode_state(state).items()}
    beside = records.copy()
    beside[:, task.time] *= 7
    for t in (0, 1):
        for one, other in zip(records, beside, strict=True):
            found = [task.contribute(t, known, row[None]) for row in (one, other)]
            assert (found[0] == found[1]).all()
