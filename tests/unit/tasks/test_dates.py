"""Results about dates are written as days; arrays and JSON keep years with a fraction."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from cloister import Schema, dp_describe, dp_quantiles, dp_statistics
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.app.present import present
from cloister.app.release import Release
from cloister.app.text import as_table, cell_text
from cloister.core.dates import as_days, decimal_years, nearest_day
from cloister.core.display import DATE, Curve, between
from cloister.privacy.budget import Budget
from cloister.tasks import TASKS
from cloister.tasks.clustering.clusters import estimates_of
from cloister.tasks.supervised.contrasts import effects_of
from cloister.testing import SimulatedNoise

DAYS = np.arange("2019-01-01", "2025-01-01", dtype="M8[D]")
SCHEMA = Schema(
    dataset="visits",
    unit="row",
    columns=[
        {"name": "seen", "type": "date", "min": "2015-01-01", "max": "2030-01-01"},
        {"name": "ill", "type": "boolean"},
    ],
)


def test_a_day_is_that_of_its_decimal_year() -> None:
    days = np.arange("1999-12-01", "2025-02-01", dtype="M8[D]")
    assert [nearest_day(year) for year in decimal_years(days)] == days.tolist()
    assert nearest_day(2021 - 1e-9) == date(2021, 1, 1)
    assert nearest_day(-5.0) == date(1, 1, 1)
    assert as_days([2021.0, np.inf]) == (date(2021, 1, 1), np.inf)


def test_an_estimate_of_a_date_is_written_with_days_for_ends() -> None:
    found = replace(between(2021.5, 2021.0, 2022.0), unit=DATE)
    assert cell_text(found) == "2021-07-02 [2021-01-01, 2022-01-01]"
    assert cell_text(replace(between(2021.5, 2021.5, 2021.5), unit=DATE)) == "2021-07-02"
    nothing = replace(between(np.nan, -np.inf, np.inf), unit=DATE)
    assert cell_text(nothing) == "not known [-∞, ∞]"


def records(n: int = 2000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"seen": rng.choice(DAYS, n).astype(str), "ill": rng.random(n) < 0.5})


def released(task: str, **options: object) -> Release:
    budget = Budget(1.0, 1e-6)
    plan = make_plan(TASKS[task], SCHEMA, ["a"], budget=budget, nominal_n=2000, **options)
    table = records()
    years = decimal_years(table["seen"].to_numpy("M8[D]"))
    rows = plan.grid.encode(np.column_stack([years, table["ill"]]))
    return run_plan(plan, {"a": [rows]}, noise=SimulatedNoise(0))


@pytest.mark.parametrize(
    ("task", "options"),
    [
        *(("describe", {}), ("quantiles", {}), ("statistics", {}), ("bounds", {})),
        *(("discretise", {}), ("standardise", {})),
        *(("outliers", {}), ("outliers", {"method": "zscore"})),
        ("tabulate", {"means": ("seen",), "by": ("ill",)}),
        *(("auto", {"n_clusters": 2}), ("fastlloyd", {"n_clusters": 2})),
        *(("naive-bayes", {"target": "ill", "numbers": n}) for n in ("gaussian", "binned")),
    ],
)
def test_text_says_days(task: str, options: dict[str, object]) -> None:
    shown = present(released(task, **options))
    cells = [cell_text(c) for d in shown.displays for row in as_table(d).rows for c in row]
    cells = [text.removeprefix("seen ") for text in cells]
    days = [text for text in cells if text.startswith("20") and text[4:5] == "-"]
    assert days
    assert not any(text.startswith("2,02") for text in cells)  # a year as a number
    if task in ("describe", "quantiles", "statistics"):
        assert " 202" in shown.result
        assert "2,02" not in shown.result
    if task in ("describe", "statistics", "outliers"):
        assert any(text.endswith("] years") for text in cells)
    curves = [display for display in shown.displays if isinstance(display, Curve)]
    assert all(curve.dates for curve in curves)


def test_bins_of_dates_are_named_by_days() -> None:
    edges = {"seen": (2020.0, 2022.5)}
    task = released("tabulate", tables=(("seen",),), edges=edges).plan.task
    labels = task.labels[0]  # type: ignore[attr-defined]  # of this task
    assert labels == ("below 2020-01-01", "2020-01-01 to 2022-07-02", "2022-07-02 or more")


def test_frames_have_days_and_arrays_years() -> None:
    given = {"epsilon": 5.0, "bounds": SCHEMA, "nominal_n": 2000}
    found = dp_statistics(records(), **given)
    assert 2015 < found["mean"][0] < 2030
    frame = found.to_frame()
    assert isinstance(frame.loc[("seen", "mean"), "value"], date)
    assert 1 < frame.loc[("seen", "deviation"), "value"] < 3
    assert isinstance(dp_quantiles(records(), **given).to_frame().iloc[0]["low"], date)
    described = dp_describe(records(), **given).to_frame()
    assert isinstance(described.loc[("All columns", "seen", "mean"), "high"], date)


def test_means_without_a_table_have_a_sentence() -> None:
    shown = present(released("tabulate", means=("seen",), by=("ill",)))
    assert shown.result.startswith("Mean seen: false 202")


def test_edges_of_bins_have_as_many_digits_as_a_bin_needs() -> None:
    schema = Schema(
        dataset="visits",
        unit="row",
        columns=[
            {"name": "age", "type": "number", "min": 17, "max": 90},
            {"name": "pay", "type": "number", "min": 0, "max": 7_000_000},
            *SCHEMA.columns,
        ],
    )
    budget = Budget(1.0, 1e-6)
    options = {"target": "ill", "bins": 23}
    plan = make_plan(TASKS["naive-bayes"], schema, ["a"], budget=budget, nominal_n=2000, **options)
    names = plan.task.cell_names(schema.names)  # type: ignore[attr-defined]  # of this task
    assert names[:2] == ("age 17 to 20.2", "age 20.2 to 23.3")
    assert names[23:25] == ("pay 0 to 300000", "pay 300000 to 610000")


@pytest.mark.parametrize("task", ["logistic", "glm"])
def test_a_coefficient_of_a_date_is_a_change_per_year(task: str) -> None:
    options = {"family": "binomial", "n_units": 2000} if task == "glm" else {}
    table = present(released(task, target="ill", **options)).displays[0]
    assert "seen (per year)" in [row[0] for row in as_table(table).rows]


@pytest.mark.parametrize(
    ("task", "covariate"), [("cox", "seen, per year"), ("cox-approximate", "seen (per year)")]
)
def test_a_hazard_ratio_of_a_date_is_that_of_a_year(task: str, covariate: str) -> None:
    """It has no days: a ratio is no date."""
    columns = [{"name": "months", "type": "number", "min": 0, "max": 60}, *SCHEMA.columns]
    schema = Schema(dataset="visits", unit="row", columns=columns)
    options = {"time": "months", "event": "ill", "covariates": ("seen",), "nominal_events": 4000}
    budget = Budget(4.0, 1e-6)
    plan = make_plan(TASKS[task], schema, ["a"], budget=budget, nominal_n=9000, **options)
    rng = np.random.default_rng(0)
    seen, months = rng.uniform(2019, 2025, 9000), rng.uniform(1, 59, 9000)
    rows = plan.grid.encode(np.column_stack([months, seen, rng.random(9000) < 0.5]))
    shown = present(run_plan(plan, {"a": [rows]}, noise=SimulatedNoise(0)))
    (row,) = as_table(shown.displays[0]).rows
    assert row[0] == covariate
    assert not cell_text(row[1]).startswith("20")


def test_a_centre_that_is_not_determined_is_rounded_by_the_spread_of_its_column() -> None:
    """One digit of a year would be the day 2000-01-01."""
    centres = np.array([[2012.4, 33.6], [2021.8, 64.7]])
    results = {
        "centres": centres,
        "low": centres - 0.3,
        "high": centres + 0.3,
        "sizes": np.array([900.0, 900.0]),
        "size_half_width": np.array([20.0, 20.0]),
        "verdict": np.zeros(2),
    }
    found, _ = estimates_of(results, ("seen", "age"))
    assert found.values.tolist() == [[2012.0, 30.0], [2022.0, 60.0]]
    results["centres"] = centres[:1].repeat(2, axis=0)
    assert estimates_of(results, ("seen", "age"))[0].values[0].tolist() == [2012.4, 33.6]
    wide = {**results, "centres": np.array([[-0.52], [0.41]])}
    wide |= {"low": np.full((2, 1), -1.0), "high": np.ones((2, 1))}
    assert estimates_of(wide, ("x",))[0].values.ravel().tolist() == [-0.5, 0.4]


def test_a_sentence_counts_years() -> None:
    half_boxes = np.array([7.5, 50.0, 1.0])
    names, _ = effects_of(["seen", "weight", "intercept"], (0, 0), (0, 0), half_boxes, ["seen"])
    assert names == ["seen (per year)", "weight (per 10)"]
