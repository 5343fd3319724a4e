"""Experiments go on where they stopped, and every small one runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from cloister.core.errors import DataError, PlanError
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.records import (
    TidyRow,
    append_tidy,
    load_tidy,
    means_of,
)
from cloister_lab.experiments.run import (
    Experiment,
    Settings,
    Unit,
    draw_experiment,
    folder_of,
    run_experiment,
    shares,
)
from cloister_lab.experiments.sweep import Named, sweep


def work(notes: Path, name: str, rows: int) -> list[TidyRow]:
    """Note every call, so that a test sees what was run."""
    with notes.open("a") as file:
        file.write(name + "\n")
    return [{"dataset": name, "index": i, "nicv": 0.1 + i, "other": None} for i in range(rows)]


def experiment(notes: Path, sizes: dict[str, int]) -> Experiment:
    def units(settings: Settings) -> list[Unit]:
        return [Unit(name, partial(work, notes, name, size)) for name, size in sizes.items()]

    def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
        (out / "figure.txt").write_text(str(len(rows)))
        return [out / "figure.txt"]

    return Experiment("toy", "a toy", units, figures, 1, 1)


def calls(notes: Path) -> list[str]:
    return notes.read_text().split() if notes.exists() else []


def test_units_that_are_stored_are_not_run_again(tmp_path: Path) -> None:
    notes, settings = tmp_path / "notes", Settings(tmp_path / "out")
    first = run_experiment(experiment(notes, {"a": 2, "b": 1}), settings)
    assert calls(notes) == ["a", "b"]
    more = run_experiment(experiment(notes, {"a": 2, "c": 1, "b": 1}), settings)
    assert calls(notes) == ["a", "b", "c"]
    assert [row["dataset"] for row in more] == ["a", "a", "c", "b"]
    assert more[:2] == first[:2]


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_unit_that_was_cut_off_is_run_again_and_read_once(tmp_path: Path, cut: int) -> None:
    notes, settings = tmp_path / "notes", Settings(tmp_path / "out")
    toy = experiment(notes, {"a": 2, "b": 3})
    whole = run_experiment(toy, settings)
    stored = folder_of(toy, settings) / "runs.csv"
    stored.write_bytes(stored.read_bytes()[:-cut])
    assert run_experiment(toy, settings) == whole
    assert calls(notes) == ["a", "b", "b"]
    assert run_experiment(toy, settings) == whole
    assert calls(notes) == ["a", "b", "b"]


def test_a_unit_that_fails_leaves_what_ended_before_it(tmp_path: Path) -> None:
    notes, settings = tmp_path / "notes", Settings(tmp_path / "out")

    def units(_: Settings) -> list[Unit]:
        return [Unit("a", partial(work, notes, "a", 1)), Unit("b", partial(int, "x"))]  # type: ignore[arg-type]

    broken = Experiment("toy", "", units, lambda rows, out: [], 1, 1)
    with pytest.raises(ValueError, match="invalid literal"):
        run_experiment(broken, settings)
    run_experiment(experiment(notes, {"a": 1, "b": 1}), settings)
    assert calls(notes) == ["a", "b"]


def test_two_processes_make_the_rows_of_one(tmp_path: Path) -> None:
    def units(_: Settings) -> list[Unit]:  # without noise, so that rows can be compared
        return sweep([Named("iris")], ["lloyd"], [1.0], repeats=3)

    toy = Experiment("toy", "", units, lambda rows, out: [], 1, 1)
    one = run_experiment(toy, Settings(tmp_path / "one"))
    two = run_experiment(toy, Settings(tmp_path / "two", jobs=2))
    drawn = ("run_id", "plan_digest", "commit")  # of the working tree, which may move on
    assert [{k: v for k, v in row.items() if k not in drawn} for row in one] == [
        {k: v for k, v in row.items() if k not in drawn} for row in two
    ]
    assert [row["repeat"] for row in two] == [0, 1, 2]


def test_rows_say_where_and_by_what_they_were_made(tmp_path: Path) -> None:
    toy = experiment(tmp_path / "notes", {"a": 1})
    row = run_experiment(toy, Settings(tmp_path / "out"))[0]
    assert row["version"]
    assert row["machine"]
    assert "not a release" in str(row["stamp"])
    assert row["other"] is None
    assert row["nicv"] == 0.1


def test_rows_of_another_version_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, settings = tmp_path / "notes", Settings(tmp_path / "out")
    toy = experiment(notes, {"a": 1})
    run_experiment(toy, settings)
    monkeypatch.setattr("cloister_lab.experiments.run.version", lambda _: "99")
    with pytest.raises(DataError, match="run it first"):
        draw_experiment(toy, settings)
    run_experiment(toy, settings)
    assert calls(notes) == ["a", "a"]


def test_other_columns_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    append_tidy(file, [{"a": 1}])
    with pytest.raises(DataError, match="other columns"):
        append_tidy(file, [{"b": 1}])
    assert load_tidy(file) == [{"a": 1}]


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    toy = experiment(tmp_path / "notes", {"a": 1})
    with pytest.raises(PlanError, match="jobs must be >= 1, got 0"):
        run_experiment(toy, Settings(tmp_path, jobs=0))
    with pytest.raises(PlanError, match="repeats must be >= 1, got 0"):
        run_experiment(toy, Settings(tmp_path, repeats=0))
    with pytest.raises(PlanError, match="nothing to run"):
        run_experiment(experiment(tmp_path, {}), Settings(tmp_path))


def test_means_have_students_interval_and_leave_empty_fields_out() -> None:
    rows: list[TidyRow] = [{"m": "a", "x": v} for v in (1.0, 2.0, 3.0, None)]
    found = means_of(rows, ("m",), "x")["a",]
    assert (found.mean, found.runs) == (2.0, 3)
    assert found.half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_intervals_stay_in_the_range_of_the_values_and_narrow_with_more() -> None:
    near_one = [0.2, 1.0, 1.0, 1.0]
    rows: list[TidyRow] = [{"m": n, "x": v} for n in (1, 10) for v in near_one * n]
    few, many = (means_of([r for r in rows if r["m"] == n], ("m",), "x")[n,] for n in (1, 10))
    assert few.mean + few.half > 1 >= few.interval[1] >= many.interval[1] > few.mean
    assert 0.2 <= few.interval[0] < many.interval[0] < few.mean
    assert all(map(math.isnan, means_of(rows[:1], ("m",), "x")[1,].interval))
    # of three values the level that Student's law asks for is all of their range
    three = means_of([{"m": 1, "x": v} for v in (1.0, 2.0, 4.0)], ("m",), "x")[1,]
    assert three.interval == (1.0, 4.0)


def test_a_time_limit_keeps_first_repeats_and_the_rest_can_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("cloister_lab.experiments.run.monotonic", lambda: 60 * next(clock))
    notes = tmp_path / "notes"
    names = {f"{table}{repeat}": repeat for table in "ab" for repeat in range(3)}

    def units(_: Settings) -> list[Unit]:
        return [Unit(n, partial(work, notes, n, 1), repeat) for n, repeat in names.items()]

    toy = Experiment("toy", "a toy", units, lambda rows, out: [], 1, 1)
    short = run_experiment(toy, Settings(tmp_path, minutes=3.5))
    assert calls(notes) == ["a0", "b0", "a1"]
    assert [row["dataset"] for row in short] == ["a0", "a1", "b0"]
    run_experiment(toy, Settings(tmp_path, minutes=0))
    assert len(calls(notes)) == 3
    run_experiment(toy, Settings(tmp_path))
    assert sorted(calls(notes)) == sorted(names)
    with pytest.raises(PlanError, match="minutes must be >= 0, got -1"):
        run_experiment(toy, Settings(tmp_path, minutes=-1))


def test_minutes_are_dealt_by_length_and_what_is_left_over_passes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("cloister_lab.experiments.run.monotonic", lambda: now[0])
    short, long = (
        Experiment(name, "", lambda _: [], lambda *_: [], seconds, seconds)
        for name, seconds in (("a", 1), ("b", 2))
    )
    dealt = []
    for _, own in shares([short, long], Settings(Path(), minutes=30.0)):
        dealt.append(own.minutes)
        now[0] += 60.0  # ends early
    assert dealt == [10.0, 29.0]


SLOW_SMALL = 60.0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_small_experiment_runs_without_a_data_folder_and_draws_small_files(
    name: str, tmp_path: Path
) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.seconds_small <= SLOW_SMALL
    settings = Settings(tmp_path, repeats=1)
    rows = run_experiment(experiment, settings)
    files = draw_experiment(experiment, settings)
    assert rows
    assert files
    for file in files:
        assert file.parent == folder_of(experiment, settings)
        assert 0 < file.stat().st_size < 150_000
