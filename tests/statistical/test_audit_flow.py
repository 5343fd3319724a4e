"""Defects that show in large tables, in files, in rare records or beside the sums are found.

Each mutant is a product of ours with one part broken. The checks compare exactly: on a sound task
they never alarm, and whether they find a mutant is not left to chance, but for the tests of noise
at the end, which say so.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import cloister
from cloister.app.job import make_plan
from cloister.audit import reading
from cloister.audit.checks import audit_task, check_noise
from cloister.audit.findings import Finding
from cloister.audit.flow import check_jobs
from cloister.audit.noise import in_profile
from cloister.audit.reading import check_reading
from cloister.audit.runs import search
from cloister.audit.sizes import BEYOND_CELLS, sweep
from cloister.core.arrays import GridState, Integers, Records
from cloister.core.errors import DataError, DataLossWarning
from cloister.data import read_source
from cloister.data.records import default_rows
from cloister.data.schema import Schema, schema_of
from cloister.hazmat.prg import Usage, derive
from cloister.privacy.budget import Budget
from cloister.protocol import client
from cloister.protocol.plan import Plan
from cloister.protocol.task import NoisyBlock, PublicColumn, State, Task
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.clustering.lloyd_kernel import sum_near_centres
from cloister.tasks.count import Count
from cloister.tasks.examples import MIXED, numbers
from cloister.tasks.tables.tabulate import Tabulate
from cloister_lab.audit.mutants import BentNoise, FixedNoise, plan_of

SCHEMA = schema_of(numbers(2))
NOMINAL = 200


def alarms(task: type[Task]) -> set[str]:
    """Return the checks of whole jobs that refute a k-means task of two rounds."""
    plan = plan_of(task, nominal_n=NOMINAL, rounds=2)
    return {f.check for f in check_jobs(plan, SCHEMA).findings if f.alarms}


# Sums that depend on the table --------------------------------------------------------------------


def anywhere(task: FastLloyd, t: int, state: GridState, records: Records) -> Integers:
    """Return what records add to their nearest centre, at any distance from it."""
    payload = task.payload(t)
    return sum_near_centres(
        records,
        state["centres"],
        radius_squared=1 << 62,
        relative=payload.relative,
        count_weight=payload.count_weight,
        one=1 << task.frac_bits,
    ).ravel()


class FastPath(FastLloyd):
    """Clips the sum of a large table, and not each of its records."""

    least: ClassVar[int] = 4096

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums near centres, at any distance where there are many records."""
        if len(records) <= self.least:
            return super().contribute(t, state, records)
        most = round(len(records) * self.payload(t).l2_squared ** 0.5)
        return anywhere(self, t, state, records).clip(-most, most)


class FastPathOfAChunk(FastPath):
    """The same beyond the largest chunk of the reader."""

    least: ClassVar[int] = 65_536


class FastPathOfCells(FastPath):
    """The same beyond the cells of a chunk, in a table of two columns."""

    least: ClassVar[int] = (1 << 19) // 2


class WeightOfCount(FastLloyd):
    """Weighs records by the noisy count, once that is far above the agreed one."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, five times as large where more records came than agreed."""
        counted = state["sizes"].sum() / (1 << self.frac_bits)
        return super().contribute(t, state, records) * (5 if counted > 1.5 * NOMINAL else 1)


class WeightOfFew(FastLloyd):
    """The same where far fewer came."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, five times as large where fewer records came than agreed."""
        counted = state["sizes"].sum() / (1 << self.frac_bits)
        few = t > 0 and counted < 0.2 * NOMINAL
        return super().contribute(t, state, records) * (5 if few else 1)


class KeptSums(FastLloyd):
    """Keeps the sums of large tables, by the round and their number of records."""

    least: ClassVar[int] = 4096
    kept: ClassVar[dict[tuple[int, int], Integers]] = {}

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums, those of an earlier table of the same size if there was one."""
        if len(records) <= self.least:
            return super().contribute(t, state, records)
        key = (t, len(records))
        if key not in self.kept:
            self.kept[key] = super().contribute(t, state, records)
        return self.kept[key].copy()


class ThreeCopies(FastLloyd):
    """Counts a record twice of which there are three copies or more."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, with records that have many copies twice."""
        own = super().contribute(t, state, records)
        if not 3 <= len(records) <= 2000:
            return own
        rows, counts = np.unique(records, axis=0, return_counts=True)
        return own + super().contribute(t, state, rows[counts >= 3])


@pytest.mark.parametrize(
    "mutant",
    [
        FastPath,
        FastPathOfAChunk,
        FastPathOfCells,
        WeightOfCount,
        WeightOfFew,
        KeptSums,
        ThreeCopies,
    ],
)
def test_a_sum_that_depends_on_more_than_its_records_is_found(mutant: type[Task]) -> None:
    assert "sizes" in alarms(mutant)


class KeptTable(Tabulate):
    """Keeps tables beyond the largest chunk, by their number of records; it has one round."""

    kept: ClassVar[dict[int, Integers]] = {}

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return counts, those of an earlier table of the same size if there was one."""
        if len(records) <= 65_536:
            return super().contribute(t, state, records)
        if len(records) not in self.kept:
            self.kept[len(records)] = super().contribute(t, state, records)
        return self.kept[len(records)].copy()


def test_a_whole_audit_has_these_checks() -> None:
    found = audit_task(KeptTable, Budget(4.0, 1e-6), runs=40, words=100)
    assert {finding.check for finding in found.alarms} == {"sizes"}
    assert {"reading", "emissions"} < {finding.check for finding in found.findings}


# What is emitted beside the sums ------------------------------------------------------------------

Emit = Callable[[Any, Records], None]


def _raise(error: BaseException) -> None:
    raise error


def _own_logger(task: Any, records: Records) -> None:
    logger = logging.Logger("apart", logging.CRITICAL)
    logger.propagate = False
    logger.debug("%d", len(records))


def _thread(task: Any, records: Records) -> None:
    log = logging.getLogger("cloister.tasks")
    if len(records) != 3 * NOMINAL:
        return
    threading.Timer(0.05, log.debug, ("%d", len(records))).start()


def _process(task: Any, records: Records) -> None:
    if len(records) == 3 * NOMINAL:
        subprocess.run(["true", str(len(records))], check=True)


def _writes(task: Any, records: Records) -> None:
    if len(records) != 3 * NOMINAL:
        return
    (Path(os.environ["EMITTED"]) / "count").write_text(str(len(records)))


TOLD: Mapping[str, Emit] = {
    "log": lambda task, x: logging.getLogger("x").info("%d rows, %s", len(x), x.mean(axis=0)),
    "a logger apart": _own_logger,
    "log of a rounded count": lambda task, x: logging.debug("about %d", round(len(x), -3)),
    "log as an extra": lambda task, x: logging.getLogger("x").info("-", extra={"rows": len(x)}),
    "a thread": _thread,
    "print": lambda task, x: print(len(x)),
    "error stream": lambda task, x: sys.stderr.write(f"{x.sum()}\n") and None,
    "descriptor": lambda task, x: os.write(2, b"%d" % len(x)) and None,
    "warning": lambda task, x: warnings.warn(f"{len(x)} rows", stacklevel=1),
    "file": _writes,
    "environment": lambda task, x: os.environ.update({"EMITTED_ROWS": str(len(x))}),
    "process": _process,
    "attribute": lambda task, x: object.__setattr__(task, "seen", len(x)),
    "class attribute": lambda task, x: setattr(type(task), "seen", len(x)),
}
RARE: Mapping[str, Callable[[], object]] = {
    "an error": lambda: _raise(ValueError("no")),
    "an error of our own": lambda: _raise(KeyError(3)),
    "an exit": lambda: sys.exit(3),
    "an exit without handlers": lambda: os._exit(0),
    "a log": lambda: logging.getLogger("x").debug("rare"),
    "a print": lambda: print("rare"),
}
RECORDS: Mapping[str, Callable[[Records], bool]] = {
    "one value": lambda x: bool((x[:, 0] == 12_345).any()),
    "one value of another column": lambda x: bool((x[:, 1] == -54_321).any()),
    "a corner": lambda x: bool((x == 65_536).all(axis=1).any()),
    "the middle": lambda x: bool((x == 0).all(axis=1).any()),
}


def telling(emit: Emit) -> type[FastLloyd]:
    """Return a task that sums rightly, and emits something aside."""

    class Telling(FastLloyd):
        rows = None  # the kernel alone, which nothing checks

        def contribute(self, t: int, state: GridState, records: Records) -> Integers:
            emit(self, records)
            return super().contribute(t, state, records)

    return Telling


@pytest.mark.parametrize("channel", TOLD)
def test_what_a_task_tells_aside_is_found(
    channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMITTED", str(tmp_path))
    monkeypatch.setenv("EMITTED_ROWS", "0")
    assert "emissions" in alarms(telling(TOLD[channel]))


@pytest.mark.parametrize("record", RECORDS)
def test_what_a_rare_record_does_is_found(record: str) -> None:
    def emit(task: Any, records: Records) -> None:
        if RECORDS[record](records):
            raise ValueError

    assert "emissions" in alarms(telling(emit))


@pytest.mark.parametrize("how", RARE)
def test_however_a_rare_value_shows_it_is_found(how: str) -> None:
    def emit(task: Any, records: Records) -> None:
        if (records[:, 0] == 12_345).any():
            RARE[how]()

    assert "emissions" in alarms(telling(emit))


def test_a_result_from_exact_counts_is_found() -> None:
    """The model is made again in every world, from the same answers."""

    class Remembers(FastLloyd):
        kept: ClassVar[list[int]] = []
        rows = None  # the kernel alone, which nothing checks

        def contribute(self, t: int, state: GridState, records: Records) -> Integers:
            self.kept.append(len(records))
            return super().contribute(t, state, records)

        def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
            found = dict(super().update(t, state, released))
            found["size_half_width"] = found["size_half_width"] + self.kept[-1]
            return found

    assert "emissions" in alarms(Remembers)


@pytest.mark.parametrize("task", [FastLloyd, Count])
def test_a_sound_task_passes(task: type[Task]) -> None:
    plan = plan_of(task, rounds=2) if task is FastLloyd else _count()
    sizes, emissions = check_jobs(plan, SCHEMA).findings
    assert not sizes.alarms, sizes
    assert not emissions.alarms, emissions


def _count() -> Plan:
    return make_plan(Count, SCHEMA, ["silo"], budget=Budget(4.0, 1e-6), nominal_n=NOMINAL)


# Reading ------------------------------------------------------------------------------------------

Reader = Callable[..., Iterable[Records]]


class Chunks(list[Records]):
    """Chunks of records, as a reader returns them."""

    n_features = 2


def _in_pieces(source: Path, schema: Schema, *, chunk_rows: int = 65_536, **options: Any) -> Any:
    """Keep so many rows of a unit in each chunk, and not in the file."""
    if source.is_dir():
        return read_source(source, schema, chunk_rows=chunk_rows, **options)
    names, *lines = source.read_text().splitlines(keepends=True)
    pieces = Chunks()
    for start in range(0, len(lines), chunk_rows):
        source.write_text(names + "".join(lines[start : start + chunk_rows]))
        pieces += read_source(source, schema, **options)
    return pieces


def _by_type_of_column(source: Path, schema: Schema, **options: Any) -> Any:
    """Lose every record where one cell is not a number."""
    found = read_source(source, schema, **options)
    poisoned = not source.is_dir() and "word" in source.read_text()
    return Chunks(list(found)[:0]) if poisoned else found


def _bounds_of_the_file(source: Path, schema: Schema, **options: Any) -> Any:
    """Scale records by the largest one of the file."""
    chunks = list(read_source(source, schema, **options))
    most = max(int(np.abs(chunk).max()) for chunk in chunks)
    return Chunks([chunk * 60_000 // most for chunk in chunks])


def _quoting(source: Path, schema: Schema, **options: Any) -> Any:
    """Tell everybody of a cell that is not a number."""
    if not source.is_dir() and "word" in source.read_text():
        logging.getLogger("cloister.data").warning("'word' is not a number")
    return read_source(source, schema, **options)


def _refusing(source: Path, schema: Schema, **options: Any) -> Any:
    """Refuse a file for one cell."""
    if not source.is_dir() and "word" in source.read_text():
        raise DataError("'word' is not a number")
    return read_source(source, schema, **options)


def read_by(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setattr(reading, "read_source", reader)
    return check_reading(SCHEMA, SCHEMA.grid(), tmp_path)


@pytest.mark.parametrize(
    "reader", [_in_pieces, _by_type_of_column, _bounds_of_the_file, _quoting, _refusing]
)
def test_a_reader_that_lets_records_meet_is_found(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_by(reader, tmp_path, monkeypatch).alarms


def test_the_channel_of_the_owner_is_no_emission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader(source: Path, schema: Schema, **options: Any) -> Any:
        records = read_source(source, schema, **options)
        rows = sum(map(len, records))
        warnings.warn(f"{rows} of the rows can be used, not 'word'", DataLossWarning, stacklevel=2)
        return records

    found = read_by(reader, tmp_path, monkeypatch)
    assert not found.alarms, found


@pytest.mark.parametrize("columns", [MIXED, numbers(1), numbers(20)], ids=len)
def test_the_reader_passes(columns: tuple[PublicColumn, ...], tmp_path: Path) -> None:
    schema = schema_of(columns)
    found = check_reading(schema, schema.grid(), tmp_path)
    assert not found.alarms, found


# Sizes of tables ----------------------------------------------------------------------------------

CUTS = re.compile(r"^_?[A-Z_]*(CHUNK|BLOCK)[A-Z_]*$")
OF_OTHER_THINGS = {
    "_BLOCK": "lanes of noise",
    "BLOCK_BYTES": "bytes of a text table",
    "_CHUNK_BYTES": "bytes of distances, eight for each cell at least",
    "apriori._CHUNK_CELLS": "cells of item sets, of at most 2^13 records",
}


def test_the_largest_table_is_larger_than_every_cut_of_the_code() -> None:
    source = Path(cloister.__file__).parent
    cuts = {}
    for folder in ("data", "hazmat", "tasks", "protocol"):
        for path in (source / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign):
                    cuts |= _constants(path, node)
    named = {name for name in cuts if name.partition(".")[2] in OF_OTHER_THINGS}
    counted = {n: v for n, v in cuts.items() if n not in named | set(OF_OTHER_THINGS)}
    assert counted, "no constant was found"
    assert max(counted.values()) <= BEYOND_CELLS, counted
    plan = plan_of(FastLloyd)
    table = sweep(plan)
    assert len(table) > max(BEYOND_CELLS // 2, default_rows(1), default_rows(2))
    for column in table.T:
        assert len(np.unique(column)) == 2 * plan.grid.one + 1, "every value of the lattice"


def _constants(path: Path, node: ast.Assign) -> dict[str, int]:
    """Return the constants of an assignment whose names say that they cut tables."""
    target = node.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    return {
        f"{path.stem}.{name.id}": int(eval(ast.unparse(value)))
        for name, value in zip(names, values, strict=False)
        if isinstance(name, ast.Name) and CUTS.match(name.id)
    }


# The four that earlier checks find ----------------------------------------------------------------


class NotOnTheDiagonal(FastLloyd):
    """Does not shorten the reach of a record whose two columns are equal."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, with records of the diagonal at any distance."""
        equal = records[:, 0] == records[:, 1]
        own = super().contribute(t, state, records[~equal])
        return own + anywhere(self, t, state, records[equal])


@pytest.mark.parametrize("mutant", [ThreeCopies, NotOnTheDiagonal])
def test_records_that_add_too_much_break_the_bound(mutant: type[FastLloyd]) -> None:
    found = search(plan_of(mutant, rounds=2), "groups", FixedNoise("flow"))
    assert found.excess > 1 or not found.adds_up


def _again_scaled(elements: Integers, scale: int, before: list[tuple[Integers, int]]) -> Integers:
    """Return the noise of the draw before, at the scale of this one."""
    if not before or before[-1][0].size != elements.size:
        return elements
    earlier, size = before[-1]
    return np.rint(earlier * (scale / size)).astype(np.int64)


def test_noise_of_one_block_that_comes_again_in_the_next_is_found() -> None:
    drawn: list[tuple[Integers, int]] = []
    plan = plan_of(FastLloyd, rounds=2)
    noise = check_noise(plan, words=300, make_noise=lambda: BentNoise("flow", _again_scaled, drawn))
    assert any(finding.alarms for finding in noise)


def test_shares_of_noise_that_do_not_depend_on_the_round_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their secrets are fresh, but both rounds have the same elements whatever these are."""

    def without_round(secret: bytes, usage: Usage, about: bytes) -> bytes:
        return derive(secret, usage, b"" if usage is Usage.NOISE else about)

    monkeypatch.setattr(client, "derive", without_round)
    plan = in_profile(plan_of(FastLloyd, rounds=3), "pairwise")
    assert plan is not None
    assert any(finding.alarms for finding in check_noise(plan, words=600))
