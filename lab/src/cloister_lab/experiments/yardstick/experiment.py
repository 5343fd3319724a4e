"""Cells of the yardstick: a task on a table at a size and an epsilon, its units and its page."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister import Budget
from cloister.app.forecast import forecast_of
from cloister.app.job import make_plan
from cloister.core.errors import CloisterError
from cloister.core.randomness import public_generator
from cloister.data.schema import Schema
from cloister.privacy.budget import default_delta
from cloister.protocol.plan import Plan
from cloister.tasks import installed
from cloister.testing import rerun
from cloister_lab.experiments.records import (
    Key,
    TidyRow,
    load_tidy,
    not_measured,
    prose,
    write_page,
    write_table,
)
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of
from cloister_lab.experiments.yardstick import crosses, models, numbers, tables, times
from cloister_lab.experiments.yardstick.readings import (
    PLANNED,
    Judge,
    Question,
    Reading,
    Release,
    Target,
    Tests,
    readings,
)
from cloister_lab.experiments.yardstick.tables import Table
from cloister_lab.experiments.yardstick.tally import (
    Row,
    alarms_of,
    as_cells,
    failure,
    from_cells,
    is_known,
    needs_again,
    pending,
    rows_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

JUDGES: dict[str, Judge] = {
    judge.task: judge for family in (numbers, crosses, times, models) for judge in family.JUDGES
}
"""The judge of each task."""

SIZES, EPSILONS = (400, 2000, 20_000), (0.5, 1.0, 4.0)
SMALL_CELLS, _SMALL_TABLES = ((2000, 1.0),), 2
RUNS, SMALL_RUNS, RUNS_AGAIN = 100, 5, 400
_CELL = ("task", "dataset", "records", "epsilon")


@dataclass(frozen=True)
class Cell:
    """A task on draws of a table.

    Parameters
    ----------
    n : int
        Records of a draw.
    again : bool
        Runs with fresh noise and draws.
    """

    task: str
    table: Table
    n: int
    epsilon: float
    runs: int
    again: bool = False

    def generator(self, purpose: str, run: int) -> np.random.Generator:
        """Return the generator of a run."""
        again = "again" if self.again else "first"
        name = self.task, self.table.name, self.n, f"{self.epsilon:g}", again
        return public_generator("yardstick", *name, purpose, run)


# --- One cell -------------------------------------------------------------------------------------


def plan_of(question: Question, cell: Cell) -> Plan:
    """Return the plan of a question; the unit of privacy is a row, or a person of several."""
    table = cell.table
    unit = {"unit": table.person, "max_rows": table.rows} if table.person else {"unit": "row"}
    return make_plan(
        installed()[cell.task],
        Schema(dataset=table.name, columns=question.columns, **unit),
        ["silo"],
        budget=Budget(cell.epsilon, default_delta(cell.n)),
        nominal_n=cell.n,
        **question.options,
    )


def release_of(
    plan: Plan, question: Question, frame: DataFrame, rng: np.random.Generator
) -> Release:
    """Return a release about records, with simulated noise; a reader moves values to bounds."""
    values = frame[[column.name for column in question.columns]].to_numpy(float)
    low, high = (np.array([getattr(c, end) for c in question.columns]) for end in ("min", "max"))
    records = plan.grid.encode(np.clip(values, low, high))
    return Release(plan, forecast_of(plan), rerun(plan, records, rng), frame)


def measure(cell: Cell) -> list[Row]:
    """Run a cell: a row for each number, each test, and one for the cell with its refusals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of collinear or separated draws
        return _measured(cell)


def _measured(cell: Cell) -> list[Row]:
    judge = JUDGES[cell.task]
    population = judge.prepared(tables.read(cell.table), cell.table)
    question = judge.asks(cell.table, cell.n)
    try:
        plan = plan_of(question, cell)
    except CloisterError as error:
        said = f"plan: {error}"
        return [Row("", "cell", cell.runs, 0, 0, refused=cell.runs, sentence=said)]
    of_population = _answers(judge, population, cell.table)
    found: list[list[Reading]] = []
    said, refused = "", 0
    for run in range(cell.runs):
        rng = cell.generator("draw", run)
        frame = tables.draw(population, cell.table, cell.n, rng)
        try:
            release = release_of(plan, question, frame, rng)
        except CloisterError as error:
            said, refused = f"result: {error}", refused + 1
            continue
        of_draw = _answers(judge, frame, cell.table)
        size = len(frame) / len(population)
        found.append(readings(judge.released(release), of_draw, of_population, size))
    made = len(found)
    summary = Row("", "cell", cell.runs, made, made, refused=refused, sentence=said)
    alarms = _alarms(judge.tests, cell, plan, question, population) if judge.tests else []
    return [summary, *rows_of(found), *alarms]


def _answers(judge: Judge, frame: DataFrame, table: Table) -> Mapping[str, Target]:
    """Return the textbook's numbers; without convergence it has none."""
    with suppress(ValueError):
        return judge.textbook(frame, table)
    return defaultdict(lambda: nan)


def _alarms(
    tests: Tests, cell: Cell, plan: Plan, question: Question, population: DataFrame
) -> list[Row]:
    """Return a row for each test, on draws whose null hypothesis is true."""
    released: list[Mapping[str, float]] = []
    exact: list[Mapping[str, float]] = []
    for run in range(cell.runs):
        rng = cell.generator("null", run)
        frame = tables.draw(population, cell.table, cell.n, rng)
        frame = permuted(frame, tests.moved(cell.table), rng)
        try:
            release = release_of(plan, question, frame, rng)
        except CloisterError:
            continue  # the draws above count refusals
        released.append(tests.p_values(release))
        with suppress(ValueError):  # without convergence the exact test has no answer
            exact.append(tests.exact(frame, cell.table))
    return alarms_of(released, exact)


def permuted(frame: DataFrame, columns: Sequence[str], rng: np.random.Generator) -> DataFrame:
    """Return records in which no other column depends on some columns."""
    order = rng.permutation(len(frame))
    return frame.assign(**{name: frame[name].to_numpy()[order] for name in columns})


# --- The experiment -------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return the cells of all tables at hand, and those whose coverage was low once more.

    Cells to be run again are read from the rows that are stored, so a second call has them.
    """
    chosen = tables.chosen(settings.only)
    present = [table for table in chosen if not table.absent]
    if not settings.full:
        present = present[:_SMALL_TABLES]
    able = {task: judge for task, judge in JUDGES.items() if not judge.absent}
    reasons = [*(table.absent for table in chosen), *(judge.absent for judge in JUDGES.values())]
    lacking = [reason for reason in reasons if reason]
    runs = settings.runs(RUNS, SMALL_RUNS)
    low = _low(load_tidy(settings.out / "runs.csv"))
    made = [
        unit
        for table in present
        for n, epsilon in (_cells(table) if settings.full else SMALL_CELLS)
        for unit in units_of(
            run_cell,
            task=[task for task, judge in able.items() if judge.suits(table)],
            table=[table],
            n=[n],
            epsilon=[epsilon],
            runs=[runs],
        )
    ]
    again = [
        unit
        for table in present
        for task, name, n, epsilon in low
        if name == table.name and task in able
        for unit in units_of(
            run_cell,
            task=[task],
            table=[table],
            n=[n],
            epsilon=[epsilon],
            runs=[RUNS_AGAIN],
            again=[True],
        )
    ]
    # With a number of minutes, first repeats go first: a shuffled order makes them a sample.
    order = public_generator("yardstick", "order").permutation(len(made)).tolist()
    shuffled = [replace(unit, repeat=rank) for unit, rank in zip(made, order, strict=True)]
    return [*shuffled, *again, *(Unit(reason, partial(skip, reason)) for reason in lacking)]


def _cells(table: Table) -> list[tuple[int, float]]:
    """Return a number of records and an epsilon for each size.

    A third of the tables has each pair, and each table has each size and each epsilon.
    """
    first = tables.TABLES.index(table)
    return [(n, EPSILONS[(first + i) % len(EPSILONS)]) for i, n in enumerate(SIZES)]


def _low(rows: Sequence[TidyRow]) -> list[tuple[str, str, int, float]]:
    """Return the cells of the first runs that have a number of low coverage."""
    found = {
        (
            str(row["task"]),
            str(row["dataset"]),
            int(row["records"] or 0),
            float(row["epsilon"] or 0),
        )
        for row in rows
        if row["again"] == 0 and needs_again(from_cells(row))
    }
    return sorted(found)


def run_cell(
    task: str, table: Table, n: int, epsilon: float, runs: int, again: bool = False
) -> list[TidyRow]:
    """Return the rows of a cell."""
    cell = Cell(task, table, n, epsilon, runs, again)
    return [_line(cell, row) for row in measure(cell)]


def skip(reason: str) -> list[TidyRow]:
    """Return a row that says what is left out, and why."""
    cell = Cell("", Table("", "", "", "seen", (), ()), 0, 0.0, 0)
    return [_line(cell, Row("", "cell", 0, 0, 0), skipped=reason)]


def _line(cell: Cell, row: Row, skipped: str | None = None) -> TidyRow:
    return {
        "task": cell.task,
        "dataset": cell.table.name,
        "look": cell.table.look,
        "persons": int(bool(cell.table.person)),
        "records": cell.n,
        "epsilon": cell.epsilon,
        "again": int(cell.again),
        **as_cells(row),
        "skipped": skipped,
    }


# --- The page -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A row of the first runs with its verdict."""

    line: TidyRow
    row: Row
    failure: str
    pending: bool


def judged(rows: Sequence[TidyRow]) -> list[Judged]:
    """Return the rows of the first runs with their verdicts."""
    again = {_key(line): from_cells(line) for line in rows if line["again"] == 1}
    found = []
    for line in rows:
        if line["again"] == 0 and not line["skipped"]:
            row, fresh = from_cells(line), again.get(_key(line))
            found.append(Judged(line, row, failure(row, fresh), pending(row, fresh)))
    return found


def _key(line: TidyRow) -> Key:
    return tuple(line[name] for name in (*_CELL, "name", "kind"))


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write the page, and the rows that fail as a table."""
    found = judged(rows)
    failed = [_failed(each) for each in found if each.failure]
    page = write_page(out / "yardstick.md", as_lines(rows, command_of("yardstick", out)))
    return [page, write_table(out / "yardstick-failed.csv", failed)] if failed else [page]


def as_lines(rows: Sequence[TidyRow], command: str) -> list[str]:
    """Return the page of results."""
    found = judged(rows)
    failed = [each for each in found if each.failure]
    refusals = [_refused(each) for each in found if each.row.refused]
    values = {
        "command": command,
        "planned": PLANNED,
        "looks": " and ".join(sorted({str(each.line["look"]) for each in found})),
        "datasets": _listed(found),
        "persons": _listed([each for each in found if each.line["persons"]]),
    }
    return [
        *prose("yardstick", _by_task(found), **values),
        *prose("yardstick-failed", _named(failed), failed=len(failed)),
        *(prose("yardstick-refused", refusals) if refusals else []),
        *not_measured(rows, "{skipped}"),
    ]


def _named(failed: Sequence[Judged]) -> Iterator[dict[str, Any]]:
    """Yield a line for each task, table and kind, which names its numbers that fail."""
    lines: dict[Key, dict[str, list[str]]] = {}
    for each in failed:
        place = f"{each.failure} at {each.line['records']}, {each.line['epsilon']:g}"
        key = (each.line["task"], each.line["dataset"], each.row.kind)
        lines.setdefault(key, {}).setdefault(each.row.name, []).append(place)
    for (task, dataset, kind), of in lines.items():
        names = "; ".join(f"{name} ({', '.join(places)})" for name, places in of.items())
        yield {"task": task, "dataset": dataset, "kind": kind, "names": names}


def _listed(found: Sequence[Judged]) -> str | None:
    return ", ".join(dict.fromkeys(str(each.line["dataset"]) for each in found)) or None


def _by_task(found: Sequence[Judged]) -> Iterator[dict[str, Any]]:
    """Yield the summary of each task and kind; a task that always refuses has one line, too."""
    tasks: dict[str, list[Judged]] = {}
    for each in found:
        tasks.setdefault(str(each.line["task"]), []).append(each)
    for task, of in tasks.items():
        kinds = dict.fromkeys(each.row.kind for each in of if each.row.kind != "cell")
        for kind in kinds or ("-",):
            yield _summary(task, kind, of)


def _summary(task: str, kind: str, of: Sequence[Judged]) -> dict[str, Any]:
    own = [each for each in of if each.row.kind == kind]
    shown = [each.row for each in own if is_known(each.row)]
    cells = [each.row for each in of if each.row.kind == "cell"]
    coverage, width = ([getattr(row, name) for row in shown] for name in ("coverage", "width"))
    planned, off = (sum(getattr(row, name) for row in shown) for name in ("planned", "off"))
    return {
        "task": task,
        "kind": kind,
        "cells": len(cells),
        "rows": len(own),
        "worst": _least(coverage),
        "median": _median(coverage),
        "widest": _most(width),
        "width": _median(width),
        "unknown": _median([each.row.unknown for each in own]),
        "refused": sum(row.refused for row in cells),
        "off": off / planned if planned else None,
        "pending": sum(each.pending for each in own),
        "failed": sum(bool(each.failure) for each in own),
    }


def _numbers(values: Sequence[float]) -> list[float]:
    return [value for value in values if not isnan(value)]


def _least(values: Sequence[float]) -> float | None:
    return min(_numbers(values), default=None)


def _most(values: Sequence[float]) -> float | None:
    return max(_numbers(values), default=None)


def _median(values: Sequence[float]) -> float | None:
    kept = _numbers(values)
    return float(np.median(kept)) if kept else None


def _failed(each: Judged) -> dict[str, Any]:
    line, row = each.line, each.row
    return {
        **{name: line[name] for name in _CELL},
        **{"name": row.name, "kind": row.kind, "failure": each.failure},
        **{"coverage": _known(row.coverage), "width": _known(row.width)},
    }


def _known(value: float = nan) -> float | None:
    return None if isnan(value) else value


def _refused(each: Judged) -> dict[str, Any]:
    row = each.row
    return {**{n: each.line[n] for n in _CELL}, "refused": row.refused, "sentence": row.sentence}
