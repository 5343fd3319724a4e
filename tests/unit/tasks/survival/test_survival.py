"""The task of survival: what its plan holds, what it refuses, what it counts, what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, PlanError, Schema, make_plan, run_job
from cloister.app.forecast import forecast_of, size_warnings
from cloister.app.release import Release
from cloister.app.report.notebook import release_frame
from cloister.app.report.plots import alt_text, draw
from cloister.app.text import as_table, cell_text
from cloister.cli import main
from cloister.core.display import Curve, Estimate, Table
from cloister.data import read_source
from cloister.protocol.task import PublicColumn
from cloister.tasks.survival.survival import Survival, _quarters
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


def with_times(**changes: object) -> Schema:
    """Return the schema with another column of times."""
    times = {"name": "months", "type": "number", "min": 0, "max": 60, **changes}
    return Schema(dataset="trial", unit="row", columns=[times, *SCHEMA.columns[1:]])


def test_the_plan_has_the_ticks_of_the_column_and_times_to_state() -> None:
    task = planned(**BY)
    assert task.groups == ("old", "new")
    assert task.at == (15.0, 30.0, 45.0, 60.0)
    assert len(task.horizon.ends) > 2000
    monthly = planned(with_times(type="integer"), **ASKED, tau=24.0, at=(6, 12))
    assert monthly.horizon.ends.tolist() == list(range(25))
    assert (monthly.at, monthly.groups) == ((6.0, 12.0), ("all records",))
    visits = planned(with_times(step=3.0), **ASKED)
    assert visits.horizon.ends.tolist() == list(range(0, 58, 3))
    later = planned(with_times(min=12.0), **ASKED)
    assert later.horizon.ends[0] > 12
    assert later.at == (24.0, 36.0, 48.0, 60.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "died", "event": "months"}, "time must be a numeric column"),
        ({"time": "months", "event": "drug"}, "the type boolean in the schema, which also reads 0"),
        ({**ASKED, "by": "months"}, "by must be a column of categories"),
        ({**ASKED, "by": "died"}, "must be different columns"),
        ({**ASKED, "by": "dose"}, "by must be a column of the schema"),
        ({**ASKED, "tau": 61.0}, "tau must be in"),
        ({**ASKED, "tau": -1.0}, "tau"),
        ({**ASKED, "at": (10.0, 61.0)}, "at must be times above 0 and up to the horizon, 60"),
        ({**ASKED, "at": (0.0, 10.0)}, "at must be times above 0"),
        ({**ASKED, "at": (10.0, 10.0)}, "at"),
        ({**ASKED, "edges": (10.0,)}, "edges"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        planned(**options)


def test_a_share_at_the_largest_tick_is_refused_since_events_there_do_not_count() -> None:
    """Of records followed until month 60, 'followed beyond 60' and the share of 59 were shown."""
    whole = with_times(type="integer")
    with pytest.raises(PlanError, match=r"at must be times below 60.*raise the max"):
        planned(whole, **ASKED, at=(30.0, 60.0))
    assert planned(whole, **ASKED, at=(30.0, 59.0)).at == (30.0, 59.0)
    higher = planned(with_times(type="integer", max=61), **ASKED, at=(60.0,))
    assert higher.horizon.ends[-1] == 60.0
    earlier = planned(whole, **ASKED, tau=48.0, at=(48.0,))
    assert earlier.at == (48.0,)


def test_the_report_says_that_an_event_at_the_largest_time_does_not_count() -> None:
    said = "The event of a record at 60 months, the max of the schema, does not count"
    for options, noted in ((BY, True), ({**BY, "tau": 48.0}, False)):
        found = ran(trial(), **options, epsilon=1e9)
        shown = planned(**options).displays(found.results, tuple(SCHEMA.names))
        group_table, stated = shown[0], next(d for d in shown if d.title.startswith("Shares at"))
        assert isinstance(group_table, Table)
        assert (said in group_table.note) == noted
        assert isinstance(stated, Table)
        # "Followed beyond" the end of a study had an interval above 0, and nobody was.
        assert ("followed beyond, or to 60" in stated.headings) == noted


def test_times_below_zero_are_refused() -> None:
    with pytest.raises(PlanError, match="min is at least 0"):
        planned(with_times(min=-1.0), **ASKED)


def test_a_date_is_no_time() -> None:
    """A median of 2023 years was released for the days on which persons left."""
    dates = with_times(type="date", min="2020-01-01", max="2026-01-01")
    with pytest.raises(PlanError, match="write the number of days between two dates"):
        planned(dates, **ASKED)


def test_a_plan_that_shows_nothing_says_so() -> None:
    for nominal_n, epsilon, warned in ((300, 0.2, True), (3000, 1.0, False)):
        budget = Budget(epsilon, 1e-6)
        plan = make_plan(Survival, SCHEMA, ["a"], budget=budget, nominal_n=nominal_n, **BY)
        said = size_warnings(plan)
        assert any("a curve would have a margin of error" in words for words in said) == warned


# What is released ---------------------------------------------------------------------------------


def test_who_is_at_the_top_of_the_box_may_have_been_moved_there() -> None:
    rows = {"months": [60.0, 75.0, 30.0, 30.0], "died": [True] * 4, "drug": ["old"] * 4}
    found = ran(pd.DataFrame(rows), **ASKED, epsilon=1e9).results
    assert found["stated_survival"][0, 2] == pytest.approx(0.5)
    assert found["stated_at_risk"][0, 2:] == pytest.approx([2, 2])


def test_rates_records_and_shares_are_those_of_pandas() -> None:
    table = trial()
    table["months"] = np.ceil(table["months"])
    silos = {"here": read_source(table, with_times(step=1.0))}
    given = {"epsilon": 1e9, "nominal_n": 3000, "noise": ZeroNoise(), "tau": 40.0, "at": (20.0,)}
    found = run_job(Survival, with_times(step=1.0), silos, **given, **BY).results
    for group, name in enumerate(("old", "new")):
        of = table[table.drug == name]
        told = (of.died & (of.months <= 40)).sum() / of.months.clip(upper=40).sum()
        assert found["rate"][group] == pytest.approx(told, rel=1e-6)
        assert found["records"][group] == pytest.approx(len(of))
        assert found["stated_at_risk"][group, 0] == pytest.approx((of.months > 20).sum())
        alive = np.prod(
            [
                1 - ((of.months == t) & of.died).sum() / max((of.months >= t).sum(), 1)
                for t in range(21)
            ]
        )
        assert found["stated_survival"][group, 0] == pytest.approx(alive, abs=1e-6)
    ratio = found["rate"][1] / found["rate"][0]
    assert found["rate_ratio"][0] == pytest.approx(ratio, rel=1e-6)
    assert found["log_rank_until"] == [40.0]


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
    widths = [(r["survival_high"] - r["survival_low"])[:, 1000].min() for r in (alone, wide)]
    assert 0 <= widths[0] < widths[1]


def test_a_test_without_enough_records_is_not_made() -> None:
    found = ran(trial(20), SimulatedNoise(0), **BY).results
    assert found["log_rank"].shape == found["log_rank_p"].shape == (1,)
    assert np.isnan([found["log_rank"], found["log_rank_p"]]).all()
    assert found["log_rank_until"] == [0.0]
    (shown,) = (d for d in planned(**BY).displays(found, SCHEMA.names) if "Log-rank" in d.title)
    assert [cell_text(row[1]) for row in shown.rows][1:] == ["not known", "not known"]


# What is shown ------------------------------------------------------------------------------------


def test_the_report_draws_curves_that_end_where_noise_takes_over() -> None:
    result = ran(trial(), SimulatedNoise(1), **BY, epsilon=0.3)
    groups, stated, curve, test = result.plan.task.displays(result.results, result.plan.columns)
    assert isinstance(curve, Curve)
    assert curve.steps
    assert curve.names == ("drug=old", "drug=new")
    assert curve.places[0] == 0
    assert (curve.estimate.values[:, 0] == 1).all()
    assert np.isnan(curve.estimate.values).any()
    assert len(curve.places) <= 241
    table = as_table(curve)
    wide = "population 95 %"
    assert table.headings == ("months", "drug=old", wide, "drug=new", wide)
    assert "" in table.rows[-1]
    svg = draw(curve, "a")
    assert "old" in svg
    assert "nan" not in svg.lower().replace("xmlns", "")
    assert "drug=old, drug=new" in alt_text(curve)
    keys = release_frame([groups, stated, curve, test]).index
    assert keys.is_unique
    assert (stated.title, f"drug=old, months {stated.rows[0][1]:g}", "share without died") in keys
    assert isinstance(groups, Table)
    assert len(groups.headings) == 5
    assert len(stated.rows) == 8
    assert "not known" in stated.rows[3]
    assert test.rows[0] == ("until months", float(result.results["log_rank_until"][0]))


def test_an_unreached_median_is_infinite_and_has_a_lower_end() -> None:
    table = trial()
    table["died"] &= table["months"] < 5
    result = ran(table, **ASKED)
    groups = result.plan.task.displays(result.results, result.plan.columns)[0]
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


def test_a_model_of_intervals_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Versions before had ends of intervals in the plan."""
    ran(trial(50), **ASKED).save(tmp_path / "model.json")
    kept = json.loads((tmp_path / "model.json").read_text())
    task = kept["plan"]["task"]
    del task["at"], task["tau"]
    (tmp_path / "model.json").write_text(
        json.dumps(kept | {"plan": kept["plan"] | {"task": {**task, "edges": [30.0, 60.0]}}})
    )
    with pytest.raises(PlanError, match="'edges', so it was written by another version"):
        Release.load(tmp_path / "model.json")


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
    assert "Shares at stated times" in shown
    assert "Log-rank" in shown
    report = (out / "report.html").read_text()
    assert "<svg" in report
    assert "Share still without the event: died" in report
    assert json.loads((out / "model.json").read_text())


def test_a_plan_states_the_width_by_the_share_of_records_that_are_not_censored() -> None:
    table = trial(8000)
    found = ran(table, SimulatedNoise(5), epsilon=1.0, nominal_n=8000, **BY)
    name = "survival_of_a_group_with_{}_of_all_records_not_censored_half_width"
    stated = forecast_of(found.plan)
    widths = [float(stated[name.format(share)][0]) for share in ("50%", "10%", "2%")]
    assert widths == sorted(widths)
    values, low, high = (found.results[f"stated_survival{end}"] for end in ("", "_low", "_high"))
    share = found.results["stated_at_risk"] / values / 8000
    clear = share > 0.05
    assert clear.sum() >= 4
    planned_width = widths[1] * 0.1 / share[clear]
    assert (np.abs(np.log((high - low)[clear] / 2 / planned_width)) < np.log(1.5)).all()
    few = make_plan(Survival, SCHEMA, ("a",), budget=Budget(1.0, 1e-6), nominal_n=400, **BY)
    assert forecast_of(few)[name.format("2%")][0] == np.inf


@pytest.mark.parametrize(
    ("high", "step", "tau", "at"),
    [
        (61.0, 1.0, None, (15.0, 30.0, 45.0, 60.0)),
        (61.0, 1.0, 48.0, (12.0, 24.0, 36.0, 48.0)),
        (6.1, 0.1, None, (1.5, 3.0, 4.5, 6.0)),
        (3.0, 1.0, None, (1.0, 2.0)),
        (60.0, 0.0, None, (15.0, 30.0, 45.0, 60.0)),
    ],
)
def test_shares_are_stated_at_ticks_within_the_follow_up(
    high: float, step: float, tau: float | None, at: tuple[float, ...]
) -> None:
    column = PublicColumn("months", 0.0, high, step=step)
    assert _quarters(column, tau or high) == pytest.approx(at)
