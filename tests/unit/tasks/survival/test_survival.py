"""The task of survival: what its plan holds, what it refuses, what it counts, what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, PlanError, Schema, make_plan, run_job
from cloister.app.forecast import size_warnings
from cloister.app.release import Release
from cloister.app.report.plots import alt_text, draw
from cloister.app.text import as_table, cell_text
from cloister.cli import main
from cloister.core.display import Curve, Estimate, Table
from cloister.data import read_source
from cloister.tasks.survival.survival import Survival
from cloister.testing import SimulatedNoise, ZeroNoise

SCHEMA = Schema(
    dataset="trial",
    unit="row",
    columns=[
        {"name": "months", "type": "number", "min": 0, "max": 60},
        {"name": "died", "type": "boolean"},
        {"name": "drug", "type": "category", "categories": ["old", "new"]},
    ],
)
ASKED = {"time": "months", "event": "died"}
BY = {**ASKED, "by": "drug"}


def trial(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    drug = rng.integers(0, 2, n)
    months, followed = rng.exponential(25 * (1 + 0.6 * drug)), rng.uniform(10, 59, n)
    return pd.DataFrame(
        {
            "months": np.minimum(months, followed),
            "died": months < followed,
            "drug": np.where(drug == 1, "new", "old"),
        }
    )


def ran(table: pd.DataFrame, noise: object | None = None, **options: object) -> Release:
    made = {"epsilon": 1.0, "nominal_n": 3000, **options}
    silos = {"here": read_source(table, SCHEMA)}
    return run_job(Survival, SCHEMA, silos, noise=noise or ZeroNoise(), **made)


def planned(schema: Schema = SCHEMA, **options: object) -> Survival:
    budget = Budget(float(options.pop("epsilon", 1.0)), 1e-6)
    nominal_n = int(options.pop("nominal_n", 3000))
    plan = make_plan(Survival, schema, ["a"], budget=budget, nominal_n=nominal_n, **options)
    assert isinstance(plan.task, Survival)
    return plan.task


# What is planned ----------------------------------------------------------------------------------


def test_intervals_are_equal_parts_of_the_horizon_and_fewer_with_more_noise() -> None:
    few, many = (planned(**BY, epsilon=epsilon).edges for epsilon in (0.1, 4.0))
    assert 4 == len(few) < len(many)
    np.testing.assert_allclose(np.diff([0, *many]), 60 / len(many))
    assert planned(**ASKED, intervals=3, tau=30.0).edges == (10.0, 20.0, 30.0)
    assert planned(**ASKED, edges=(1.0, 6.0), tau=24.0).edges == (1.0, 6.0, 24.0)
    assert planned(**ASKED).groups == ("all records",)


def test_intervals_that_end_before_the_least_time_are_left_out() -> None:
    later = SCHEMA.columns[0].model_copy(update={"min": 12.0})
    schema = SCHEMA.model_copy(update={"columns": (later, *SCHEMA.columns[1:])})
    assert planned(schema, **ASKED, intervals=6).edges == (20.0, 30.0, 40.0, 50.0, 60.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "died", "event": "months"}, "time must be a numeric column"),
        ({"time": "months", "event": "drug"}, "event must be a boolean column"),
        ({**ASKED, "by": "months"}, "by must be a column of categories"),
        ({**ASKED, "by": "died"}, "must be different columns"),
        ({**ASKED, "by": "dose"}, "by must be a column of the schema"),
        ({**ASKED, "tau": 61.0}, "edges must rise strictly inside"),
        ({**ASKED, "edges": (10.0, 60.0)}, "edges must be below the horizon"),
        ({**ASKED, "edges": (10.0, 10.0)}, "edges"),
        ({**ASKED, "edges": (10.0,), "intervals": 4}, "give one of them"),
        ({**ASKED, "edges": (0.0, 10.0)}, "edges must rise strictly inside"),
        ({**ASKED, "edges": tuple(0.0001 * k for k in range(1, 50))}, "one grid step"),
        ({**ASKED, "intervals": 0}, "intervals"),
        ({**ASKED, "tau": -1.0}, "tau"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        planned(**options)


def test_times_below_zero_are_refused() -> None:
    earlier = SCHEMA.columns[0].model_copy(update={"min": -1.0})
    schema = SCHEMA.model_copy(update={"columns": (earlier, *SCHEMA.columns[1:])})
    with pytest.raises(PlanError, match="min is at least 0"):
        planned(schema, **ASKED)


def test_a_plan_that_shows_nothing_says_so() -> None:
    for nominal_n, epsilon, warned in ((300, 0.2, True), (3000, 1.0, False)):
        budget = Budget(epsilon, 1e-6)
        plan = make_plan(Survival, SCHEMA, ["a"], budget=budget, nominal_n=nominal_n, **BY)
        said = size_warnings(plan)
        assert any("the middle of a curve would have a margin" in words for words in said) == warned


# What is counted ----------------------------------------------------------------------------------


def test_each_record_leaves_in_its_interval_or_beyond_the_horizon() -> None:
    rows = [
        (0.0, True, "old"),  # at the start
        (10.0, True, "old"),  # on an edge: before it
        (10.01, False, "old"),
        (30.0, True, "new"),  # the event as the horizon ends
        (30.0, False, "new"),  # there to the end
        (31.0, True, "new"),  # after it
        (60.0, True, "new"),
        (75.0, False, "old"),  # beyond all bounds: cut to them
    ]
    table = pd.DataFrame(rows, columns=["months", "died", "drug"])
    exits = ran(table, **BY, tau=30.0, intervals=3).results["exits"]
    assert exits[0].tolist() == [[2, 0], [0, 1], [0, 0], [1, 0]]
    assert exits[1].tolist() == [[0, 0], [0, 0], [1, 0], [3, 0]]


def test_who_is_at_the_top_of_the_box_may_have_been_moved_there() -> None:
    table = pd.DataFrame({"months": [60.0, 99.0], "died": [True, True], "drug": ["old", "old"]})
    exits = ran(table, **ASKED, intervals=2).results["exits"]
    assert exits[0].tolist() == [[0, 0], [0, 0], [2, 0]]


def test_the_table_is_that_of_pandas_and_rates_are_events_over_time() -> None:
    table = trial()
    found = ran(table, **BY, tau=40.0, intervals=8).results
    inside = table[(table.months <= 40)]
    row = pd.cut(inside.months, np.linspace(0, 40, 9), labels=False)
    counted = pd.crosstab([inside.drug, row], inside.died)
    for group, name in enumerate(("old", "new")):
        assert (found["exits"][group, :-1, 0] == counted.loc[name][True]).all()
        assert (found["exits"][group, :-1, 1] == counted.loc[name][False]).all()
    assert found["exits"].sum() == len(table)
    for group, name in enumerate(("old", "new")):
        of = table[table.drug == name]
        told = (of.died & (of.months <= 40)).sum() / of.months.clip(upper=40).sum()
        assert found["rate"][group] == pytest.approx(told, rel=5e-3)
    ratio = found["rate"][1] / found["rate"][0]
    assert found["rate_ratio"][0] == pytest.approx(ratio, rel=1e-6)


def test_silos_add_up_and_the_noise_is_in_every_interval() -> None:
    whole = trial()
    parts = {str(i): read_source(whole[i::3], SCHEMA) for i in range(3)}
    split = run_job(
        Survival, SCHEMA, parts, epsilon=1.0, nominal_n=3000, noise=ZeroNoise(), **BY
    ).results
    alone = ran(whole, **BY).results
    for name, value in alone.items():
        np.testing.assert_array_equal(split[name], value)
    wide = ran(whole, SimulatedNoise(0), **BY, epsilon=0.5).results
    widths = [(r["survival_high"] - r["survival_low"])[:, 1].min() for r in (alone, wide)]
    assert 0 < widths[0] < widths[1]


def test_a_test_without_enough_records_is_not_made() -> None:
    found = ran(trial(20), **BY, intervals=4).results
    assert found["log_rank"].size == found["log_rank_p"].size == 0
    task = planned(**BY, intervals=4)
    (shown,) = (d for d in task.displays(found, SCHEMA.names) if "Log-rank" in d.title)
    assert [row[1] for row in shown.rows][1:] == ["not testable", "not testable"]


# What is shown ------------------------------------------------------------------------------------


def test_the_report_draws_curves_that_end_where_noise_takes_over() -> None:
    result = ran(trial(), SimulatedNoise(1), **BY, epsilon=0.3)
    task = result.plan.task
    curve, groups, test = task.displays(result.results, result.plan.columns)
    assert isinstance(curve, Curve)
    assert curve.names == ("old", "new")
    ends = result.results["usable"]
    assert (np.isnan(curve.estimate.values).sum(axis=1) == len(curve.places) - 1 - ends).all()
    assert np.isnan(curve.estimate.values).any()
    table = as_table(curve)
    assert table.headings == ("months", "old", "population 95 %", "new", "population 95 %")
    assert len(table.rows) == len(curve.places)
    assert "" in table.rows[-1]
    svg = draw(curve, "a")
    assert "old" in svg
    assert "nan" not in svg.lower().replace("xmlns", "")
    assert "old, new" in alt_text(curve)
    assert isinstance(groups, Table)
    assert len(groups.headings) == 5
    assert test.rows[0][1] == f"{result.results['log_rank_intervals'][0]:.0f} of {len(task.edges)}"


def test_an_unreached_median_is_infinite_and_has_a_lower_end() -> None:
    table = trial()
    table["died"] &= table["months"] < 5
    result = ran(table, **ASKED)
    groups = result.plan.task.displays(result.results, result.plan.columns)[1]
    (row,) = groups.rows
    assert isinstance(row[2], Estimate)
    assert row[2].value == np.inf
    assert "∞" in as_table(groups).note
    assert re.fullmatch(r"∞ \[[\d.]+, no upper bound\]", cell_text(row[2]))


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    table = trial()
    table["died"] = False
    result = ran(table, **BY)
    result.save(tmp_path / "model.json")
    again = Release.load(tmp_path / "model.json")
    for name, value in result.results.items():
        np.testing.assert_array_equal(again.results[name], value)


def test_it_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for seed, name in enumerate(("north", "south")):
        files.append(str(tmp_path / f"{name}.csv"))
        trial(1500, seed).to_csv(files[-1], index=False)
    (tmp_path / "trial.toml").write_text(SCHEMA.to_toml())
    asked = ["--time", "months", "--event", "died", "--by", "drug"]
    ends = ["--cap-epsilon", "3", "--ledger", str(tmp_path / "ledger.db")]
    plan = ["--schema", str(tmp_path / "trial.toml"), "--epsilon", "1", "--nominal-n", "3000"]
    out = tmp_path / "out"
    assert main(["survival", *files, *plan, *asked, *ends, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Share still without the event: died" in shown
    assert "Log-rank" in shown
    assert "<svg" in (out / "report.html").read_text()
    assert json.loads((out / "model.json").read_text())
