"""Check that files that differ in one privacy unit become records that differ in that unit alone.

The check reads files of every kind, with and without the unit, as a silo does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloister.audit.emissions import Emitted, observe
from cloister.audit.findings import Finding
from cloister.audit.pairs import groups
from cloister.audit.sources import (
    CSV,
    KINDS,
    Kind,
    Row,
    header,
    insert,
    odd_rows,
    plain,
    rows_of,
    with_unit,
)
from cloister.data import read_source
from cloister.data.records import default_rows
from cloister.data.schema import Schema
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Records

ROWS = 200  # rows of a small file
CHUNK = 64  # rows per chunk, so that a small file has several chunks
MAX_ROWS = 2  # rows of a unit that is added to a schema without one
UNIT = "the unit more"
DIGESTS = ("frame", "memory", "model")
"""Channels whose lines have a digest in place of the content."""

_ODD = 5  # odd cells in a file

Options = Mapping[str, Any]
_SMALL: Options = {"chunk_rows": CHUNK}
_READS: tuple[Options, ...] = (
    _SMALL,
    {"chunk_rows": CHUNK, "memory_limit": 0},  # the file is read again in every pass
    {},
)


def check_reading(schema: Schema, grid: Grid, folder: Path) -> Finding:
    """Read files with and without one unit, and compare the records.

    The unit has more rows than its limit: in front, at the end, or spread over chunks and files. In
    further files it has one row with an odd cell.
    """
    worst, files, wrong = 0.0, 0, []
    for pair in _pairs(plain(schema), grid, folder):
        files += 1
        more = inserted(pair.base.records, pair.other.records)
        if 2 * len(pair.base.records) < pair.rows:
            lines = pair.base.emitted.lines
            wrong.append(f"{pair.name}: most of the records are lost {lines[:1]}")
        elif more is None:
            wrong.append(f"{pair.name}: the records of OTHER units changed")
        elif more > pair.limit:
            wrong.append(f"{pair.name}: {more} records of the unit count, {pair.limit} may")
        elif line := difference(pair.base.emitted, pair.other.emitted):
            wrong.append(f"{pair.name}: {line}")
        else:
            worst = max(worst, more / pair.limit)
    kinds = ", ".join(kind.name for kind in KINDS)
    evidence = (
        f"one unit more changed at most {worst:.0%} of the records that it may, and no other; "
        f"{files} sources ({kinds}), chunks of {CHUNK} to {default_rows(grid.n_features)} rows"
    )
    if wrong:
        evidence = f"{len(wrong)} of {files} sources ({kinds}) tell more than they may; {wrong[0]}"
    return Finding("reading", bool(wrong), evidence)


@dataclass(frozen=True)
class Read:
    """The records of a file, and the emissions of the reader."""

    records: Records
    emitted: Emitted


def read(source: Any, schema: Schema, frac_bits: int, options: Options) -> Read:
    """Read a file as a silo does."""

    def call() -> Records:
        records = read_source(source, schema, frac_bits=frac_bits, **options)
        return table_of(records, records.n_features)

    table, emitted = observe(call)
    none = np.zeros((0, len(schema.names)), dtype=np.int32)
    return Read(none if table is None else table, emitted)


def table_of(chunks: Iterable[Records], n_features: int) -> Records:
    """Return the records of all chunks as one table."""
    return np.concatenate([np.zeros((0, n_features), dtype=np.int32), *chunks])


@dataclass(frozen=True)
class _Pair:
    """Two files, the second with one additional unit."""

    name: str
    rows: int  # of the first file
    limit: int  # of records that the second may add
    base: Read
    other: Read


def _pairs(schema: Schema, grid: Grid, folder: Path) -> Iterator[_Pair]:
    """Yield pairs of files for a schema, and for the same columns with an artificial unit."""
    for contract in filter(None, (schema, with_unit(schema, MAX_ROWS))):
        for kind in KINDS:
            yield from _small(_Files(contract, grid, folder, kind))
    # Many rows per unit, because counting names of units takes most of the time.
    yield _large(_Files(with_unit(schema, ROWS) or schema, grid, folder, CSV))


@dataclass(frozen=True)
class _Files:
    """A writer and reader of files of one kind with one schema."""

    schema: Schema
    grid: Grid
    folder: Path
    kind: Kind

    def read(self, rows: Sequence[Row], options: Options) -> Read:
        """Write rows to a file and read it as a silo does."""
        source = self.kind.write(self.folder, header(self.schema), self.schema, rows)
        return read(source, self.schema, self.grid.frac_bits, options)


def _small(files: _Files) -> Iterator[_Pair]:
    schema, kind = files.schema, files.kind.name
    limit = schema.max_rows or 1
    base, extra = _rows(schema, files.grid, ROWS), unit_rows(schema, files.grid)
    for options in _READS:
        alone = files.read(base, options)
        for name, places in places_of(len(base), len(extra)).items():
            other = files.read(insert(base, extra, places), options)
            yield _Pair(f"{kind}, a unit {name}", len(base), limit, alone, other)
    alone = files.read(base, _SMALL)
    odd = list(odd_rows(schema, extra[0], files.kind))
    for few in (odd[i : i + _ODD] for i in range(0, len(odd), _ODD)):
        places = np.linspace(0, len(base), len(few)).astype(int).tolist()
        other = files.read(insert(base, few, places), _SMALL)
        allowed = schema.max_rows or len(few)  # without a unit column, each row is a unit
        yield _Pair(f"{kind}, odd cells {few!r}", len(base), allowed, alone, other)


def _large(files: _Files) -> _Pair:
    schema = files.schema
    base, extra = large_rows(schema, files.grid), unit_rows(schema, files.grid)
    places = places_of(len(base), len(extra))["spread"]
    limit = schema.max_rows or 1
    alone, other = (files.read(rows, {}) for rows in (base, insert(base, extra, places)))
    return _Pair("a large file", len(base), limit, alone, other)


def places_of(n_rows: int, n_extra: int) -> dict[str, list[int]]:
    """Return the positions at which the rows of a unit are inserted, by name of the layout."""
    spread = np.linspace(0, n_rows, n_extra).astype(int).tolist()
    return {"in front": [0] * n_extra, "at the end": [n_rows] * n_extra, "spread": spread}


def _rows(schema: Schema, grid: Grid, n: int) -> list[Row]:
    """Return rows around three places, with the largest allowed number of rows per unit."""
    limit = schema.max_rows or 1
    return rows_of(schema, grid, groups(n, grid.n_features), lambda i: f"u{i // limit}")


def unit_rows(schema: Schema, grid: Grid) -> list[Row]:
    """Return the rows of one unit, some outside the bounds: three more than its limit."""
    count = schema.max_rows + 3 if schema.max_rows else 1
    table = np.ones((count, grid.n_features)) * np.resize([1.0, -1.0, 0.5, 1.5, 0.0], (count, 1))
    return rows_of(schema, grid, table, lambda i: UNIT)


def large_rows(schema: Schema, grid: Grid) -> list[Row]:
    """Return the rows of a file with more than one chunk and block of bytes by default."""
    n = default_rows(grid.n_features) + ROWS
    few = _rows(schema, grid, ROWS)
    if not schema.unit_column:
        return [few[i % ROWS] for i in range(n)]
    limit = schema.max_rows or 1
    return [(*few[i % ROWS][:-1], f"u{i // limit}") for i in range(n)]


def inserted(base: Records, other: Records) -> int | None:
    """Return the number of rows of `other` in addition to `base`; None if a row is missing."""
    more, i = len(other) - len(base), 0
    if more < 0:
        return None
    for skipped in range(more + 1):
        same = (base[i:] == other[i + skipped : len(base) + skipped]).all(axis=1)
        if same.all():
            return more
        i += int(np.argmin(same))
    return None


def difference(base: Emitted, other: Emitted) -> str:
    """Return the first line that only one of two calls emitted; empty if there is none."""
    return first_difference(base.lines, other.lines)


def first_difference(base: Iterable[str], other: Iterable[str]) -> str:
    """Return a line that occurs more often in one sequence than in the other, shortened.

    A readable line takes precedence over a digest.
    """
    first, two = Counter(base), Counter(other)
    differing = [*(two - first).elements(), *(first - two).elements()]
    return min(differing, key=lambda line: (line.startswith(DIGESTS), line), default="")[:200]
