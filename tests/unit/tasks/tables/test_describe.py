"""Describe without noise is pandas' describe; what it shows and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import PlanError, Schema, dp_describe, run_job
from cloister.app.forecast import expected
from cloister.app.release import Release
from cloister.core.display import Bars, Curve, Table
from cloister.core.numerals import NOT_KNOWN
from cloister.data import read_source
from cloister.data.schema import Column
from cloister.tasks import TASKS
from cloister.tasks.interval_tables import CLIPPED, NEAR_NOTE
from cloister.testing import SimulatedNoise, ZeroNoise

SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="age", type="number", min=0.0, max=100.0),
        Column(
            name="work",
            type="category",
            categories=("private", "state", "none", "unknown"),
            missing="unknown",
        ),
        Column(name="height", type="number", min=100.0, max=220.0, missing="midpoint"),
        Column(name="smokes", type="boolean"),
    ),
)


def table(n: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "age": rng.gamma(6, 7, n).clip(0, 100),
            "work": rng.choice(["private", "state", "none", None], n, p=[0.6, 0.25, 0.1, 0.05]),
            "height": rng.normal(170, 9, n),
            "smokes": rng.random(n) < 0.2,
        }
    )


def described(frame: pd.DataFrame, schema: Schema = SCHEMA, **options: Any) -> Release:
    half = len(frame) // 2
    silos = {
        name: read_source(part, schema) for name, part in (("a", frame[:half]), ("b", frame[half:]))
    }
    given = {"epsilon": 1.0, "nominal_n": len(frame), "noise": ZeroNoise(), **options}
    return run_job(TASKS["describe"], schema, silos, **given)


def test_without_noise_it_is_pandas_describe() -> None:
    frame = table()
    result = described(frame, levels=6)
    found = result.results
    expected = frame[["age", "height"]].describe()
    assert found["count"] == pytest.approx(len(frame), abs=1e-3)
    assert found["mean"] == pytest.approx(expected.loc["mean"], abs=1e-3)
    assert found["deviation"] == pytest.approx(frame[["age", "height"]].std(), abs=2e-2)
    cells = np.array([100.0, 120.0]) / 4**6
    assert (np.abs(found["quantiles"].T - expected.loc["25%":"75%"]) < cells).all().all()
    shares = frame["work"].fillna("unknown").value_counts(normalize=True)
    assert found["shares"][:4] == pytest.approx(
        shares[list(SCHEMA.columns[1].categories)], abs=1e-4
    )
    assert found["shares"][5] == pytest.approx(frame["smokes"].mean(), abs=1e-4)
    assert found["shares_low"] == pytest.approx(found["shares"], abs=0.05)


def test_a_missing_cell_drops_its_record_unless_the_schema_has_a_place_for_it() -> None:
    frame = table()
    frame.loc[:99, "age"] = np.nan
    frame.loc[100:299, "height"] = np.nan
    found = described(frame, max_loss=0.1).results
    assert found["count"] == pytest.approx(2900, abs=1e-2)
    unknown = frame["work"][100:].isna().mean()
    assert found["shares"][3] == pytest.approx(unknown, abs=1e-4)


def test_population_intervals_hold_the_sampling_of_every_number() -> None:
    """Without noise they are the classical ones."""
    frame = table()
    found = described(frame, levels=6, epsilon=1e6).results
    n, age = len(frame), frame["age"]
    half = (found["mean_population_high"] - found["mean_population_low"]) / 2
    assert half[0] == pytest.approx(1.96 * age.std() / np.sqrt(n), rel=0.01)
    half = (found["deviation_population_high"] - found["deviation_population_low"]) / 2
    kurtosis = ((age - age.mean()) ** 4).mean() / age.var() ** 2
    assert half[0] == pytest.approx(1.96 * age.std() * np.sqrt((kurtosis - 1) / 4 / n), rel=0.03)
    low, high = (found[f"quantiles_population_{end}"][0, 1] for end in ("low", "high"))
    rank = 1.96 * np.sqrt(0.25 / n)
    assert (age < low).mean() == pytest.approx(0.5 - rank, abs=0.005)
    assert (age < high).mean() == pytest.approx(0.5 + rank, abs=0.005)


def test_every_column_has_a_row_and_a_picture() -> None:
    result = described(table())
    shown = result.plan.task.displays(result.results, result.plan.columns)
    overview = next(one for one in shown if one.title == "All columns")
    assert isinstance(overview, Table)
    assert [row[0] for row in overview.rows] == list(SCHEMA.names)
    assert overview.rows[1][1] == "private"
    pictures = [one for one in shown if isinstance(one, Bars | Curve)]
    assert [one.title.rsplit(" ")[-1] for one in pictures] == list(SCHEMA.names)
    assert "schema" in overview.note


def test_numbers_alone_have_no_columns_of_categories() -> None:
    result = described(table(), SCHEMA.model_copy(update={"columns": SCHEMA.columns[:3:2]}))
    shown = result.plan.task.displays(result.results, result.plan.columns)
    overview = next(one for one in shown if one.title == "All columns")
    assert isinstance(overview, Table)
    assert overview.headings[:3] == ("column", "mean", "deviation")
    assert {len(row) for row in overview.rows} == {len(overview.headings)}


def test_a_deviation_that_noise_hides_is_not_known() -> None:
    """Its estimate of 0 would say that all records are alike."""
    result = described(table())
    results = {**result.results}
    results["deviation"], results["deviation_low"] = np.zeros((2, len(results["deviation"])))
    shown = result.plan.task.displays(results, result.plan.columns)
    overview, every = (
        next(one for one in shown if one.title == title)
        for title in ("All columns", "Every number")
    )
    at = overview.headings.index("deviation")
    assert {row[at] for row in overview.rows if row[at]} == {NOT_KNOWN}
    spread = next(cell for name, cell in every.rows if name.endswith(", deviation"))
    assert (spread.value, spread.high > 0) == (0.0, True)  # its interval is shown there


@pytest.mark.parametrize("left", [(), (1, 3), (0, 2), (1,)])
def test_nobody_one_kind_of_columns_and_absurd_noise_give_intervals(
    left: tuple[int, ...],
) -> None:
    columns = tuple(SCHEMA.columns[j] for j in left or range(4))
    schema = Schema(dataset="toy", unit="row", columns=columns)
    empty = table()[:0]
    for epsilon in (100.0, 0.3):
        options = {"nominal_n": 3000, "noise": None, "epsilon": epsilon}
        result = described(empty, schema, **{k: v for k, v in options.items() if v is not None})
        for name, value in result.results.items():
            known = name not in ("shares", "mean", "deviation", "deviation_population_high")
            assert np.isfinite(value).all() or not known, name
            if name.endswith("_low") and "half" not in name:
                assert (value <= result.results[name[:-4] + "_high"]).all()
        result.plan.task.displays(result.results, result.plan.columns)


def test_a_budget_that_says_nothing_and_too_many_cells_are_refused_before_it_is_spent() -> None:
    with pytest.raises(PlanError, match="epsilon must leave a share a margin of error"):
        described(table(), epsilon=0.01)
    wide = tuple(Column(name=f"c{j}", type="number", min=0.0, max=1.0) for j in range(30))
    with pytest.raises(PlanError, match="at most 131072 sums"):
        described(
            pd.DataFrame(columns=[c.name for c in wide]),
            Schema(dataset="t", unit="row", columns=wide),
            levels=6,
            nominal_n=10**6,
        )


def test_no_interval_of_a_share_or_a_mean_is_much_wider_than_its_forecast() -> None:
    result = described(table(), noise=SimulatedNoise(0))
    plan, found = result.plan, result.results
    said = plan.task.forecast(plan.noise_std(plan.task.blocks(0)[0]), plan.nominal_n, plan.grid)
    shares, means = ((found[f"{of}_high"] - found[f"{of}_low"]) / 2 for of in ("shares", "mean"))
    small = shares[found["shares"] < 0.5]
    assert 0.8 < small.max() / said["share_half_width"][0] < 1.05
    assert np.all(
        (means / said["mean_half_width"] > 0.6) & (means / said["mean_half_width"] < 1.05)
    )
    titles = {shown.title: [row[0] for row in shown.rows] for shown in expected(plan)}
    assert titles["Largest expected error of a mean (95 % of the noise)"] == ["age", "height"]


def test_the_function_has_a_row_for_each_column_and_every_interval() -> None:
    found = dp_describe(table(), epsilon=2.0, bounds=SCHEMA, nominal_n=3000)
    frame = found.to_frame()
    summary = frame.loc["All columns"]["value"].unstack()
    assert sorted(summary.index) == sorted(SCHEMA.names)
    shares = {f"most frequent {top}, its share" for top in ("private", "false")}
    assert set(summary.columns) == {*shares, "mean", "deviation", "25 %", "50 %", "75 %"}
    assert summary.loc["smokes", "most frequent false, its share"] > 0.7
    assert np.isnan(summary.loc["work", "mean"])
    assert frame.loc["Every number", "population_low"].notna().all()
    assert found.columns == SCHEMA.names
    assert found["mean"].shape == (2,)


def test_a_table_of_the_report_has_a_row_for_each_column() -> None:
    found = dp_describe(table(), epsilon=2.0, bounds=SCHEMA, nominal_n=3000)
    frame = found.to_frame("All columns")
    assert sorted(frame.index) == sorted(SCHEMA.names)
    assert frame.loc["smokes", "most frequent"] == "false"
    assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", frame.loc["age", "mean"])
    with pytest.raises(PlanError, match=r"title must be one of .*'All columns'.*, got 'Every'"):
        found.to_frame("Every")


@pytest.mark.parametrize(("low", "high", "said"), [(30, 55, "30 to 55"), (-300, 500, "")])
@pytest.mark.parametrize("task", ["describe", "table1"])
def test_bounds_that_may_cut_values_are_beside_mean_and_deviation(
    task: str, low: float, high: float, said: str
) -> None:
    column = Column(name="age", type="number", min=low, max=high)
    schema = Schema(dataset="toy", unit="row", columns=(column,))
    silos = {name: read_source(table(n)[["age"]], schema) for name, n in (("a", 3000), ("b", 200))}
    options: dict[str, Any] = {
        "epsilon": 9.0,
        "nominal_n": 3200,
        "noise": ZeroNoise(),
        "max_loss": 1.0,
    }
    result = run_job(TASKS[task], schema, silos, **options)
    shown = result.plan.task.displays(result.results, result.plan.columns)
    overview = next(one for one in shown if one.title in ("All columns", "Numbers by group"))
    assert isinstance(overview, Table)
    assert dict(zip(overview.headings, overview.rows[0], strict=True)).get(CLIPPED, "") == said
    assert (NEAR_NOTE in overview.note) == bool(said)
