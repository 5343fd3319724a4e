"""One record more changes no other record, and stops nothing, whatever holds it and its odd cell.

The grid: every source form × declared type × base cells × odd cell × position. Reading a table with
one record more must give the records of the table without it, and at most one besides.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import os
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloister.data import Labelled, SqlQuery, read_source
from cloister.errors import DataError
from cloister.schema import Schema

UTC = datetime.UTC
DAY = datetime.date(2021, 7, 2)
NOON = datetime.datetime(2021, 7, 2, 12, 30)

# Cells that a record may hold, by name.
ODD: dict[str, Any] = {
    "None": None,
    "NaN": math.nan,
    "NaT": pd.NaT,
    "NA": pd.NA,
    "infinity": math.inf,
    "-infinity": -math.inf,
    "-0.0": -0.0,
    "denormal": 5e-324,
    "2**53+1": 2**53 + 1,
    "10**400": 10**400,
    "1e308": 1e308,
    "True": True,
    "np.False_": np.False_,
    "1": 1,
    "0.5": 0.5,
    "float32": np.float32(0.1),
    "decimal": decimal.Decimal("1.50"),
    "decimal sNaN": decimal.Decimal("sNaN"),
    "fraction": fractions.Fraction(1, 3),
    "complex": 1j,
    "real complex": 1 + 0j,
    "word": "zzz",
    "number word": " 1 ",
    "true word": "True",
    "empty": "",
    "blank": "  ",
    "unicode": "ö\u200b",
    "surrogate": "\ud800",
    "comma": "1,5",
    "quote": '"1',
    "line end": "1\n2",
    "bytes": b"7",
    "bytes not UTF-8": b"\xff\xfe",
    "date": DAY,
    "moment": NOON,
    "moment with zone": NOON.replace(tzinfo=UTC),
    "np.datetime64": np.datetime64("2021-07-02"),
    "date word": "2021-07-02",
    "duration": datetime.timedelta(days=1),
    "time": datetime.time(12),
    "list": [1, 2],
    "dict": {"a": 1},
    "object": object,
    "uuid": uuid.UUID(int=7),
}

# What the other records hold, by name: ways in which containers choose a type for a column.
BASES: dict[str, list[Any]] = {
    "bools": [True, False, True, True],
    "ints": [0, 1, 1, 0],
    "floats": [0.0, 1.0, 0.25, 1.0],
    "float32s": list(np.array([0.0, 1.0, 0.1, 1.0], dtype=np.float32)),
    "digits": ["0", "1", "1", "0"],
    "words": ["no", "yes", "no", "yes"],
    "days": [DAY, DAY.replace(year=2001), DAY, DAY.replace(month=1)],
    "moments": [NOON, NOON.replace(year=2001), NOON, NOON.replace(month=1)],
}
TYPES: dict[str, dict[str, Any]] = {
    "number": {"type": "number", "min": -10, "max": 10},
    "number filled": {"type": "number", "min": -10, "max": 10, "missing": "midpoint"},
    "integer": {"type": "integer", "min": -10, "max": 10},
    "boolean": {"type": "boolean"},
    "boolean spelled": {"type": "boolean", "spellings": {"true": ["yes"], "false": ["2"]}},
    "category 0 1": {"type": "category", "categories": ["0", "1"]},
    "category no yes": {"type": "category", "categories": ["no", "yes"]},
    "category truth": {"type": "category", "categories": ["False", "True"]},
    "category day": {"type": "category", "categories": ["2021-07-02", "2001-07-02"]},
    "date": {"type": "date", "min": "1990-01-01", "max": "2030-01-01"},
}


def schema_of(kind: str) -> Schema:
    beside = {"name": "n", "type": "number", "min": 0, "max": 1}
    return Schema(dataset="d", unit="row", columns=[{"name": "x", **TYPES[kind]}, beside])


def rows_of(cells: Sequence[Any]) -> list[list[Any]]:
    """Each record has a number of its own, so that no two records are alike."""
    return [[cell, (i + 1) / 64] for i, cell in enumerate(cells)]


def frame_of(rows: list[list[Any]], **options: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {"x": pd.Series([r[0] for r in rows], **options), "n": [r[1] for r in rows]}
    )


def written(rows: list[list[Any]], folder: Path) -> Path:
    """Write a text table as a careful program does, in quotes where need be."""

    def field(cell: Any) -> bytes:
        if cell is None or cell is pd.NA or cell is pd.NaT:
            return b""
        text = cell if isinstance(cell, bytes) else str(cell).encode("utf-8", "replace")
        special = any(sign in text for sign in (b",", b'"', b"\n"))
        return b'"' + text.replace(b'"', b'""') + b'"' if special else text

    path = folder / "t.csv"
    lines = [b"x,n", *(b",".join(map(field, row)) for row in rows)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def in_arrow(rows: list[list[Any]]) -> pa.Table:
    cells = [row[0] for row in rows]
    if any(isinstance(cell, np.datetime64) for cell in cells):
        raise TypeError("Arrow's inference ends the process on some of these")
    table = pa.table({"x": cells, "n": [r[1] for r in rows]})
    for cell, held in zip(cells, table["x"].to_pylist(), strict=True):
        if held != cell and held == held and not (held is None and isinstance(cell, float)):
            raise TypeError("Arrow's inference changes a cell, such as a float beside a duration")
    return table


def in_parquet(rows: list[list[Any]], folder: Path) -> Path:
    pq.write_table(in_arrow(rows), folder / "t.parquet")
    return folder / "t.parquet"


def in_database(rows: list[list[Any]], folder: Path) -> SqlQuery:
    file = folder / "t.db"
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as connection:
        connection.executescript("pragma synchronous = off; pragma journal_mode = off")
        connection.execute("create table t(x, n)")
        connection.executemany("insert into t values (?, ?)", rows)
    return SqlQuery(f"sqlite:///{file}", "select x, n from t order by rowid")


Form = Callable[[list[list[Any]], Path], Any]
FORMS: dict[str, Form] = {
    "list of rows": lambda rows, _: rows,
    "tuple of rows": lambda rows, _: tuple(map(tuple, rows)),
    "object array": lambda rows, _: _objects(rows),
    "array": lambda rows, _: np.array(rows),
    "pandas": lambda rows, _: frame_of(rows),
    "pandas objects": lambda rows, _: frame_of(rows, dtype=object),
    "pandas own types": lambda rows, _: frame_of(rows).convert_dtypes(),
    "pandas arrow": lambda rows, _: frame_of(rows).convert_dtypes(dtype_backend="pyarrow"),
    "pandas categories": lambda rows, _: frame_of(rows).astype({"x": "category"}),
    "polars": lambda rows, _: pl.from_arrow(in_arrow(rows)),
    "polars lazy": lambda rows, _: pl.from_arrow(in_arrow(rows)).lazy(),
    "arrow": lambda rows, _: in_arrow(rows),
    "arrow stream": lambda rows, _: in_arrow(rows).to_reader(),
    "parquet": in_parquet,
    "text": written,
    "database": in_database,
    "labels": lambda rows, _: Labelled(np.array([[r[1]] for r in rows]), "x", [r[0] for r in rows]),
    "labels of pandas": lambda rows, _: Labelled(
        pd.DataFrame({"n": [r[1] for r in rows]}), "x", pd.Series([r[0] for r in rows])
    ),
}
CHANGES_CELLS = {  # containers that give all cells one type before we see them
    "array": "NumPy gives all cells one type: text beside a text, complex beside a complex number",
}
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 7  # of the grid, in a change


def _objects(rows: list[list[Any]]) -> np.ndarray:
    table = np.empty((len(rows), 2), dtype=object)
    for i, row in enumerate(rows):
        table[i, 0], table[i, 1] = row
    return table


def records(source: Any, schema: Schema, chunk_rows: int | None = None) -> Counter[tuple[int, ...]]:
    chunks = [chunk.tolist() for chunk in read_source(source, schema, chunk_rows=chunk_rows)]
    return Counter(tuple(row) for chunk in chunks for row in chunk)


@pytest.mark.parametrize("form", FORMS)
def test_one_record_more_changes_no_other(form: str, tmp_path: Path) -> None:
    tried, changed = 0, []
    for at, (base, kind, odd) in enumerate(product(BASES, TYPES, ODD)):
        if at % STEP:
            continue
        schema, rows = schema_of(kind), rows_of(BASES[base])
        place = at // STEP % (len(rows) + 1)
        more = [*rows[:place], [ODD[odd], 63 / 64], *rows[place:]]
        try:
            source = FORMS[form](more, tmp_path)
        except Exception:  # the container refuses the cell, so no record holds it
            continue
        try:
            found = records(source, schema)
        except DataError:
            assert form in CHANGES_CELLS
            continue
        without = records(FORMS[form](rows, tmp_path), schema)
        tried += 1
        if without - found or (found - without).total() > 1:
            changed.append((base, kind, odd, place))
    assert tried > 500 / STEP
    if form not in CHANGES_CELLS:
        assert not changed
