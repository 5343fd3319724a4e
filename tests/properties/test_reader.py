"""One record more changes no other record, and stops nothing, whatever holds it and its odd cell.

The grid: every source form × declared type × base cells × odd cell × position. Reading a table with
one record more must give the records of the table without it, and at most one besides. The second
grid has one unit more, whose rows are spread over chunks, files and blocks. `docs/proofs/reader.md`
is what these laws are for.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import importlib.util
import math
import os
import sqlite3
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest import mock
from xml.sax.saxutils import escape
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.core.errors import DataError
from cloister.data import Labelled, SqlQuery, read_source, text
from cloister.data.schema import Schema
from cloister.data.units import one_unit, unit_name

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


@cache
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
        if isinstance(cell, bool | np.bool_) is not isinstance(held, bool):
            raise TypeError("Arrow's inference makes a number of a truth value beside floats")
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
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 17  # of the grid, in a change


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

    @cache
    def without_one_more(base: str, kind: str) -> Counter[tuple[int, ...]]:
        return records(FORMS[form](rows_of(BASES[base]), tmp_path), schema_of(kind))

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
        without = without_one_more(base, kind)
        tried += 1
        if without - found or (found - without).total() > 1:
            changed.append((base, kind, odd, place))
    assert tried > 500 / STEP
    if form not in CHANGES_CELLS:
        assert not changed


# --- The same cells in every container ------------------------------------------------------------

# Per declared type: cells that every container can hold, and that none changes.
CELLS: dict[str, list[Any]] = {
    "number": [1.5, -2.0, None, 11.0, 0.1, 1e-300],
    "number filled": [1, None, 3, -4, 2**40, 0],
    "integer": [1.0, 2.5, None, -3.0, 1e300, 0.0],
    "boolean": [True, False, None, True],
    "boolean spelled": ["yes", "no", "2", None, "TRUE", " n ", "x"],
    "category 0 1": [0, 1, None, 2],
    "category no yes": ["yes", " no", "No", None, "?", "ö"],
    "category truth": [True, False, None],
    "category day": [DAY, DAY.replace(year=2001), None, DAY.replace(month=1)],
    "date": [NOON, NOON.replace(year=2001, hour=0, minute=0), None, NOON.replace(year=1960)],
}


def in_workbook(rows: list[list[Any]], folder: Path) -> Path:
    """Write the least workbook there is; its second style is that of moments."""

    def cell(value: Any) -> str:
        match value:
            case None:
                return "<c/>"
            case bool():
                return f'<c t="b"><v>{value:d}</v></c>'
            case int() | float():
                return f"<c><v>{value!r}</v></c>"
            case datetime.date():
                since = np.datetime64(value, "s") - np.datetime64("1899-12-30", "s")
                return f'<c s="1"><v>{float(since / np.timedelta64(1, "D"))!r}</v></c>'
        return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in [["x", "n"], *rows])
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="s" sheetId="1" r:id="s"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="s" Type="{office}/worksheet" Target="worksheets/s.xml"/>'
        f'<Relationship Id="t" Type="{office}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": f'<styleSheet xmlns="{main}"><cellXfs><xf numFmtId="0"/>'
        '<xf numFmtId="22"/></cellXfs></styleSheet>',
        "xl/worksheets/s.xml": f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData>'
        "</worksheet>",
    }
    with zipfile.ZipFile(folder / "t.xlsx", "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return folder / "t.xlsx"


def in_duckdb(rows: list[list[Any]], _: Path) -> Any:
    import duckdb

    return duckdb.from_arrow(in_arrow(rows))


SAME_FORMS = {name: form for name, form in FORMS.items() if name not in CHANGES_CELLS}
if importlib.util.find_spec("python_calamine"):
    SAME_FORMS["workbook"] = in_workbook
if importlib.util.find_spec("duckdb"):
    SAME_FORMS["duckdb"] = in_duckdb


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("form", SAME_FORMS)
def test_the_same_cells_give_the_same_records_in_every_container(
    form: str, kind: str, tmp_path: Path
) -> None:
    schema, rows = schema_of(kind), rows_of(CELLS[kind])
    if form == "database" and kind == "category day":
        rows = [[cell and cell.isoformat(), n] for cell, n in rows]  # SQLite has no days
    expected = records(rows, schema)
    assert expected
    for chunk_rows in (None, 1, 2):
        assert records(SAME_FORMS[form](rows, tmp_path), schema, chunk_rows) == expected


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", "UTC"])
def test_a_moment_is_on_the_day_of_its_own_clock_in_every_container(
    zone: str, tmp_path: Path
) -> None:
    """The last and the first hours of a year, on either side of 1970."""
    clocks = [
        datetime.datetime(year, month, day, hour, 30, tzinfo=ZoneInfo(zone))
        for year in (1968, 2021)
        for month, day, hour in ((12, 31, 23), (1, 1, 0), (7, 2, 12))
    ]
    column = {"name": "x", "type": "date", "min": "1960-01-01", "max": "2030-01-01"}
    number = {"name": "n", "type": "number", "min": 0, "max": 1}
    schema = Schema(dataset="d", unit="row", columns=[column, number])
    expected = records(rows_of([clock.date() for clock in clocks]), schema)
    rows = rows_of(clocks)
    moments = pd.Series(clocks).astype(f"datetime64[us, {zone}]")
    frame = pd.DataFrame({"x": moments, "n": [row[1] for row in rows]})
    table = pa.Table.from_pandas(frame)
    pq.write_table(table, tmp_path / "z.parquet")
    sources: list[Any] = [
        *(FORMS[form](rows, tmp_path) for form in ("list of rows", "object array", "text")),
        *(frame, frame.astype({"x": object}), frame.astype({"x": "category"})),
        *(frame.convert_dtypes(dtype_backend="pyarrow"), table, tmp_path / "z.parquet"),
        *(frame.astype({"x": f"datetime64[{unit}, {zone}]"}) for unit in ("s", "ms", "ns")),
        *(pl.from_pandas(frame), pl.from_pandas(frame).lazy()),
        Labelled(frame[["n"]], "x", frame["x"]),
        Labelled(frame[["n"]], "x", clocks),
    ]
    for source in sources:
        assert records(source, schema) == expected


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow", "parquet", "text", "database"])
def test_the_order_of_columns_does_not_count(form: str, tmp_path: Path) -> None:
    columns = [
        {"name": name, **TYPES[kind]}
        for name, kind in (("a", "number"), ("b", "category no yes"), ("c", "date"))
    ]
    schema = Schema(dataset="d", unit="who", max_rows=2, columns=columns)
    cells = {
        "a": [1.0, 2.0, None, 4.0, 5.0],
        "b": ["no", "yes", "no", "x", "yes"],
        "c": ["2021-07-02", "2001-01-01", "2001-01-01", "2002-01-01", "2003-01-01"],
        "who": ["p", "p", "q", "q", "p"],
        "unused": ["z", None, "1", '"', ","],
    }
    found = []
    for names in (["a", "b", "c", "who", "unused"], ["unused", "who", "c", "b", "a"]):
        frame = pd.DataFrame({name: cells[name] for name in names})
        source: Any = frame
        if form == "polars":
            source = pl.from_pandas(frame)
        elif form == "arrow":
            source = pa.Table.from_pandas(frame)
        elif form == "parquet":
            frame.to_parquet(source := tmp_path / "t.parquet")
        elif form == "text":
            frame.to_csv(source := tmp_path / "t.csv", index=False)
        elif form == "database":
            with sqlite3.connect(tmp_path / "t.db") as connection:
                frame.to_sql("t", connection, if_exists="replace", index=False)
            source = SqlQuery(f"sqlite:///{tmp_path / 't.db'}", "select * from t order by rowid")
        found.append(records(source, schema))
    assert found[0] == found[1]
    assert found[0].total() == 2


# --- Neighbours of a unit -------------------------------------------------------------------------

MAX_ROWS = 2
WHO: dict[str, list[Any]] = {  # identifiers of the units that stay
    "ints": [1, 2, 3],
    "floats": [1.0, 2.5, 4.0],
    "words": ["ann", "bob", "eve"],
    "days": [DAY, DAY.replace(year=2001), DAY.replace(month=1)],
    "moments": [NOON, NOON.replace(year=2001), NOON.replace(month=1)],
    "bools": [True, False, True],
}
UNITS = Schema(
    dataset="d",
    unit="who",
    max_rows=MAX_ROWS,
    columns=[
        {"name": "x", "type": "number", "min": -10, "max": 10},
        {"name": "n", "type": "number", "min": 0, "max": 1},
    ],
)
Rows = list[list[Any]]


def columns_of(rows: Rows) -> dict[str, list[Any]]:
    return {name: [row[j] for row in rows] for j, name in enumerate(("who", "x", "n"))}


def units_in_arrow(rows: Rows) -> pa.Table:
    checked = [in_arrow([[row[j], row[2]] for row in rows])["x"] for j in (0, 1)]
    return pa.table({"who": checked[0], "x": checked[1], "n": [row[2] for row in rows]})


def units_in_text(rows: Rows, folder: Path) -> Path:
    path = written([[row[0], row[1]] for row in rows], folder)  # who and x, quoted where need be
    lines = path.read_bytes().split(b"\n")
    if len(lines) != len(rows) + 2:
        raise TypeError("a cell with a line end; see the law of lines")
    numbers = [str(row[2]).encode() for row in rows]
    body = [line + b"," + n for line, n in zip(lines[1:], numbers, strict=False)]
    path.write_bytes(b"\n".join([b"who,x,n", *body, b""]))
    return path


def units_in_folder(rows: Rows, folder: Path) -> Path:
    """Three files, so that each chooses its own types."""
    (folder / "parts").mkdir(exist_ok=True)
    for i in range(3):
        part = rows[len(rows) * i // 3 : len(rows) * (i + 1) // 3]
        pq.write_table(units_in_arrow(part), folder / "parts" / f"{i}.parquet")
    return folder / "parts"


def units_in_database(rows: Rows, folder: Path) -> SqlQuery:
    if any(isinstance(row[0], bool) for row in rows):
        raise TypeError("SQLite makes numbers of truth values")
    file = folder / "u.db"
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as connection:
        connection.executescript("pragma synchronous = off; pragma journal_mode = off")
        connection.execute("create table t(who, x, n)")
        connection.executemany("insert into t values (?, ?, ?)", rows)
    return SqlQuery(f"sqlite:///{file}", "select who, x, n from t order by rowid")


UNIT_FORMS: dict[str, Callable[[Rows, Path], Any]] = {
    "pandas": lambda rows, _: pd.DataFrame(columns_of(rows)),
    "pandas objects": lambda rows, _: pd.DataFrame(columns_of(rows), dtype=object),
    "pandas own types": lambda rows, _: pd.DataFrame(columns_of(rows)).convert_dtypes(),
    "pandas arrow": lambda rows, _: pd.DataFrame(columns_of(rows)).convert_dtypes(
        dtype_backend="pyarrow"
    ),
    "pandas categories": lambda rows, _: pd.DataFrame(columns_of(rows)).astype({"who": "category"}),
    "arrow": lambda rows, _: units_in_arrow(rows),
    "polars": lambda rows, _: pl.from_arrow(units_in_arrow(rows)),
    "folder": units_in_folder,
    "text": units_in_text,
    "text in blocks": units_in_text,
    "database": units_in_database,
}


@pytest.mark.parametrize("form", UNIT_FORMS)
def test_one_unit_more_changes_at_most_max_rows_and_no_other_unit(
    form: str, tmp_path: Path
) -> None:
    block = 24 if form == "text in blocks" else 1 << 22
    tried, changed = 0, []
    for at, (base, odd, is_who) in enumerate(product(WHO, ODD, (True, False))):
        if at % STEP:
            continue
        ann, bob, eve = WHO[base]
        # of ann the first row cannot be used, and more than the rest are there
        few = [(ann, None), (bob, 1), (ann, 2), (eve, 3), (ann, 4), (bob, None), (ann, 5), (bob, 6)]
        rows = [[who, x, (i + 1) / 64] for i, (who, x) in enumerate(few)]
        who = ODD[odd] if is_who else "new"
        more = [who, 1.0 if is_who else ODD[odd]]
        places = (0, 3, 4, 8) if at % 2 else (8, 1, 1, 1)
        with_unit = [list(row) for row in rows]
        for i, place in enumerate(sorted(places, reverse=True)):
            with_unit.insert(place, [*more, (60 + i) / 64])
        name = one_unit(unit_name(who) or "")
        own = {row[2] for row in rows if one_unit(unit_name(row[0]) or "") == name}
        if isinstance(who, bool | np.bool_ | int | float | complex):
            # pandas' categories store True and 1 as one
            own |= {row[2] for row in rows if row[0] == who}
        chunk_rows = (1, 2, 3, None)[at % 4]
        try:
            source = UNIT_FORMS[form](with_unit, tmp_path)
        except Exception:  # the container refuses the cell, so no record holds it
            continue
        with mock.patch.object(text, "BLOCK_BYTES", block):
            found = records(source, UNITS, chunk_rows)
            without = records(UNIT_FORMS[form](rows, tmp_path), UNITS, chunk_rows)
        tried += 1
        lost, gained = without - found, found - without
        ours = {round((n * 2 - 1) * 2**16) for n in (*own, *(i / 64 for i in range(60, 64)))}
        if (
            lost.total() > MAX_ROWS
            or gained.total() > MAX_ROWS
            or not {row[1] for row in chain(lost, gained)} <= ours
        ):
            changed.append((base, odd, is_who, chunk_rows))
    assert tried > 40 / STEP  # Arrow refuses most mixtures
    assert not changed


# --- A line is one record -------------------------------------------------------------------------

LINES = [
    b"no,1,0.1",
    b'"yes",2,0.2',
    b"",
    b"no",
    b"yes,4,0.4",
    b'"yes, ",5,0.5',
    b"no,6,0.6,",
    b"\xff,7",
]
LINES_SCHEMA = Schema(
    dataset="d",
    unit="row",
    columns=[
        {"name": "c", **TYPES["category no yes"], "missing": "no"},
        {"name": "x", **TYPES["number filled"]},
        {"name": "n", "type": "number", "min": 0, "max": 1, "missing": "max"},
    ],
)


@given(
    st.one_of(st.binary(max_size=60), st.text('",\r\n 1ex\0', max_size=30).map(str.encode)),
    st.integers(0, len(LINES)),
    st.sampled_from([32, 64, 1 << 22]),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_between_two_lines_change_no_other_record(
    tmp_path: Path, inserted: bytes, place: int, block: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([b"c,x,n", *LINES]) + b"\n")
    lines = len(inserted.replace(b"\r", b"\n").split(b"\n"))
    with mock.patch.object(text, "BLOCK_BYTES", block):
        without = records(path, LINES_SCHEMA)
        path.write_bytes(b"\n".join([b"c,x,n", *LINES[:place], inserted, *LINES[place:]]) + b"\n")
        found = records(path, LINES_SCHEMA, 2)
    assert not without - found
    assert (found - without).total() <= lines
