"""``Horizon`` in Python: the estimators of its answers, and the same folder as the commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import (
    Budget,
    DataLossWarning,
    DPCox,
    DPKaplanMeier,
    DPKMeans,
    DPLogRank,
    DPNaiveBayes,
    DPTable,
    Horizon,
    Job,
    Ledger,
    Schema,
)
from cloister.cli import main
from cloister.core.errors import AccuracyWarning, DataError, LedgerError, PlanError
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise

KINDS = ("burn", "cut", "fall")
SCHEMA = Schema(
    dataset="visits",
    unit="patient",
    max_rows=1,
    columns=[
        {"name": "kind", "type": "category", "categories": list(KINDS)},
        {"name": "days", "type": "number", "min": 0, "max": 64},
        {"name": "healed", "type": "boolean"},
    ],
)
SILOS = ("north", "south")
pytestmark = pytest.mark.filterwarnings("ignore::cloister.core.errors.AccuracyWarning")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Horizon, "_new_noise", ZeroNoise)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("visits", cap=Budget(1.0, 1e-6), unit="patient")
    return {"epsilon": 1.0, "bounds": SCHEMA, "nominal_n": 4000, "ledger": ledger}


def week(number: int, silo: str = "north", n: int = 300) -> pd.DataFrame:
    draw = np.random.default_rng([number, len(silo)])
    kind = draw.choice(KINDS, n)
    return pd.DataFrame(
        {
            "patient": [f"{silo}-{number}-{i}" for i in range(n)],
            "kind": kind,
            "days": np.where(kind == "fall", draw.uniform(30, 60, n), draw.uniform(0, 30, n)),
            "healed": draw.random(n) < 0.8,
        }
    )


def both(number: int) -> dict[str, pd.DataFrame]:
    return {silo: week(number, silo) for silo in SILOS}


def test_answers_are_fitted_estimators_of_the_records_of_their_periods(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    model = DPTable("kind", **given)
    visits = Horizon.open(model, tmp_path / "weeks", periods=4, silos=SILOS)
    for number in (1, 2):
        visits.release(both(number))
    weeks = [pd.concat(both(number).values()) for number in (1, 2)]
    for found, records in ((visits.so_far_, pd.concat(weeks)), (visits.latest_, weeks[1])):
        expected = records["kind"].value_counts()[list(KINDS)]
        assert isinstance(found, DPTable)
        np.testing.assert_allclose(found.counts_, expected, atol=1e-3)
        assert found.spent_ == pytest.approx(1.0, abs=1e-3)
        assert found.interval("noise").shape == (3, 3)
        assert found.displays()
    course = visits.over_time()
    assert course["value"].loc[2, :, "burn", "records"].item() == visits.so_far_.counts_["burn"]
    assert list(course.loc[1].index) == list(course.loc[2].index)
    assert visits.changes_.empty
    assert visits.expected()["so far"] < visits.expected()["recounts"]
    assert repr(visits) == "Horizon('tabulate', 2 of 4 periods)"
    assert not hasattr(model, "counts_")  # the model that was given is not changed


def test_a_horizon_of_a_command_is_loaded_and_continued_by_it(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.app.report.plots.can_draw", lambda: False)  # pictures are slow
    folder, book = tmp_path / "weeks", tmp_path / "ledger.db"
    (tmp_path / "visits.toml").write_text(SCHEMA.to_toml())
    words = ["--silos", "north,south", "--periods", "3", "--schema", str(tmp_path / "visits.toml")]
    task = ["--task", "survival", "--set", "time=days", "--set", "event=healed", "--epsilon", "1"]
    book_of = ["--nominal-n", "4000", "--ledger", str(book), "--quiet"]
    assert main(["horizon", "open", str(folder), *words, *task, *book_of]) == 0
    visits = Horizon.load(folder, ledger=book)
    visits.release(both(1))
    for silo in SILOS:
        week(2, silo).to_csv(tmp_path / f"{silo}.csv", index=False)
    files = [str(tmp_path / f"{silo}.csv") for silo in SILOS]
    assert main(["horizon", "release", str(folder), "2", *files, "--ledger", str(book)]) == 0
    assert visits.n_periods_ == 2
    assert isinstance(visits.so_far_, DPKaplanMeier)
    assert visits.latest_.survival_.index.name == "days"
    model = DPLogRank(time="days", event="healed", by="kind", **given)
    with pytest.raises(PlanError, match="with which the horizon of task 'survival' was opened"):
        Horizon.load(folder, model=model)


def test_the_model_that_is_given_again_has_its_own_attributes(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    model = DPLogRank(time="days", event="healed", by="kind", **given)
    Horizon.open(model, tmp_path / "weeks", periods=2).release(week(1))
    assert Horizon.load(tmp_path / "weeks", model=model).so_far_.p_value_ < 0.01


def test_predictions_and_centres_follow_the_records(tmp_path: Path, given: dict[str, Any]) -> None:
    given["ledger"].change_cap("visits", Budget(4.0, 1e-6))
    model = DPNaiveBayes(target="kind", **given)
    known = Horizon.open(model, tmp_path / "classes", periods=2)
    known.release(week(1))
    new = pd.DataFrame({"days": [5.0, 50.0], "healed": [True, True]})
    assert known.so_far_.predict(new)[1] == "fall"
    numbers = Schema(
        dataset="visits", unit="patient", max_rows=1, columns=[SCHEMA.columns[1].model_dump()]
    )
    centres = DPKMeans(2, algorithm="glloyd", rounds=1, **{**given, "bounds": numbers})
    moved = Horizon.open(centres, tmp_path / "centres", periods=2, keep=0.8)
    moved.release(week(1)[["patient", "days"]])
    assert moved.so_far_.cluster_centers_.shape == (2, 1)
    assert not hasattr(moved, "latest_")


def test_a_job_has_a_horizon_without_an_estimator(tmp_path: Path, given: dict[str, Any]) -> None:
    job = Job(task=TASKS["describe"], schema=SCHEMA, silos=SILOS, epsilon=1.0, nominal_n=4000)
    visits = Horizon.open(job, tmp_path / "weeks", periods=2, ledger=given["ledger"])
    visits.release([week(1, silo) for silo in SILOS])
    assert "kind" in str(visits.so_far_.to_frame())
    loaded = Horizon.load(tmp_path / "weeks")
    pd.testing.assert_frame_equal(loaded.latest_.to_frame(), visits.latest_.to_frame())
    with pytest.raises(PlanError, match="needs a ledger"):
        loaded.release(both(2))


def test_persons_of_an_earlier_period_are_named_as_the_cause(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    visits = Horizon.open(DPTable("kind", **given), tmp_path / "weeks", periods=3)
    visits.release(week(1))
    with pytest.raises(DataError, match=r"300 of 300 rows .* earlier periods as max_periods") as no:
        visits.release(week(1))
    assert "max_rows" not in str(no.value)
    assert visits.n_periods_ == 1
    mixed = pd.concat([week(1)[:10], week(2)])
    with pytest.warns(DataLossWarning, match="10 of 310 rows have a unit that arrived"):
        visits.release(mixed)


def test_rows_may_be_left_out_as_the_model_accepts(tmp_path: Path, given: dict[str, Any]) -> None:
    visits = Horizon.open(DPTable("kind", max_loss=1.0, **given), tmp_path / "weeks", periods=2)
    table = week(1)
    table.loc[:149, "kind"] = "none"
    with pytest.warns(DataLossWarning, match="150 of 300 rows"):
        visits.release(table)
    assert visits.so_far_.counts_.sum() == pytest.approx(150, abs=1e-2)


def test_cox_regression_has_a_horizon(tmp_path: Path, given: dict[str, Any]) -> None:
    model = DPCox(time="days", event="healed", covariates=["kind"], **given)
    visits = Horizon.open(model, tmp_path / "weeks", periods=2)
    visits.release(week(1)).release(week(2))
    assert isinstance(visits.so_far_, DPCox)
    assert visits.over_time().loc[2].shape == visits.so_far_.to_frame().shape


def test_a_change_is_found_and_none_without_one(tmp_path: Path, given: dict[str, Any]) -> None:
    """Without noise, counts are equal in all weeks, and differ by all records in the last."""
    visits = Horizon.open(DPTable("kind", **given), tmp_path / "weeks", periods=9)
    for number in range(9):
        kinds = ["fall"] * 300 if number > 7 else [*KINDS] * 100
        visits.release(week(number).assign(kind=kinds))
        if number == 7:
            assert visits.changes_["changed"].tolist() == [False]
    assert visits.changes_["changed"].tolist() == [True]


def test_other_records_for_a_closed_period_are_refused(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    visits = Horizon.open(DPTable("kind", **given), tmp_path / "weeks", periods=2)
    visits.release(week(1))
    with pytest.raises(DataError, match=r"period 1 is closed: .* were not counted"):
        visits.release(week(2), period=1)
    assert visits.release(week(1), period=1).n_periods_ == 1
    visits.release(week(2))
    with pytest.warns(UserWarning, match="neither counted nor compared"):
        visits.release(week(3), period=1)


def test_an_interrupted_release_is_repeated_by_its_number(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = Horizon.open(DPTable("kind", **given), tmp_path / "weeks", periods=3)
    visits.release(week(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", _fails)  # after the draw, before the numbers are shown
        with pytest.raises(OSError, match="disk"):
            visits.release(week(2))
    with pytest.raises(PlanError, match="repeat it with period=2"):
        visits.release(week(3))
    assert visits.release(week(2), period=2).n_periods_ == 2
    assert visits.so_far_.counts_.sum() == pytest.approx(600, abs=1e-2)


def _fails(*_: object) -> None:
    raise OSError("disk")


def test_what_a_horizon_cannot_use_is_refused_unpaid(tmp_path: Path, given: dict[str, Any]) -> None:
    folder, ledger = tmp_path / "weeks", given["ledger"]
    by_row = SCHEMA.model_copy(update={"unit": "row", "max_rows": None})
    for model, message in (
        (DPTable("kind", **{**given, "nominal_n": None}), "nominal_n must be given"),
        (DPTable("kind", **{**given, "bounds": by_row}), "unit of privacy must be a column"),
        (DPTable("kind", **{**given, "ledger": None}), "needs a ledger"),
        (DPKMeans(2, **given), "a period of a horizon has one; .* or 'glloyd' with rounds=1"),
        ("tabulate", "must be an estimator of cloister or a Job"),
    ):
        with pytest.raises(PlanError, match=message):
            Horizon.open(model, folder, periods=3)  # type: ignore[arg-type]
    elsewhere = DPTable("kind", **{**given, "ledger": tmp_path / "other.db"})
    with pytest.raises(LedgerError, match="is missing"):
        Horizon.open(elsewhere, folder, periods=3)
    with pytest.raises(PlanError, match="must be a list of names"):
        Horizon.open(DPTable("kind", **given), folder, periods=3, silos="north")
    assert ledger.spent("visits") == 0
    assert not ledger.jobs()
    visits = Horizon.open(DPTable("kind", **given), folder, periods=3, silos=SILOS)
    with pytest.raises(DataError, match="no release yet"):
        _ = visits.so_far_
    for wrong in ({"north": week(1)}, week(1), [week(1)] * 3, {**both(1), "east": week(1)}):
        with pytest.raises(PlanError, match="must have the arrivals of the silos north, south"):
            visits.release(wrong)
    with pytest.raises(DataError, match="are left out"):
        visits.release({silo: table.assign(kind="none") for silo, table in both(1).items()})
    assert visits.release(both(1)).n_periods_ == 1
    with pytest.raises(PlanError, match=r"of must be one of so far"):
        visits.over_time("now")


def test_a_release_warns_of_missing_records(tmp_path: Path, given: dict[str, Any]) -> None:
    model = DPKaplanMeier(time="days", event="healed", **given)
    visits = Horizon.open(model, tmp_path / "weeks", periods=2)
    with pytest.warns(AccuracyWarning, match="nominal_n is 2,000"):
        visits.release(week(1, n=20))


def test_a_horizon_without_a_course_names_what_has_its_numbers(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    model = DPKaplanMeier(time="days", event="healed", **given)
    visits = Horizon.open(model, tmp_path / "weeks", periods=2)
    visits.release(week(1)).release(week(2))
    with pytest.raises(PlanError, match=r"over_time has its numbers, and so_far_.plot"):
        visits.plot()
    assert len(visits.over_time()) > 0


def test_the_course_is_drawn_and_reported(tmp_path: Path, given: dict[str, Any]) -> None:
    visits = Horizon.open(DPTable("kind", **given), tmp_path / "weeks", periods=2)
    visits.release(week(1)).release(week(2))
    assert len(visits.plot().lines) >= len(KINDS)
    visits.report(tmp_path / "report.html")
    assert "each period alone" in (tmp_path / "report.html").read_text()
