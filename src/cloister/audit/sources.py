"""Artificial tables as files and frames: rows of cells, odd cells, units with several rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import isnan
from pathlib import Path
from typing import Any

from cloister.data.schema import Column, Schema
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Floats

Row = tuple[str, ...]
"""The cells of a record as text, in the order of the schema; the unit last, if there is one."""

ODD_CELLS = (
    *("", " ", "nan", "inf", "-inf", "1e999", "-1e999", "1e-999", "9" * 40, "NULL", "-", "?"),
    *("true", "0x10", "1,5", "1e5", "a word", "'", 'a "quote"', "two\nlines", "a,b;c\td", "\u00e4"),
    *("\uff11", "-0", "1_000", "2021-07-02", "1 2"),
)
"""Cells without a number, or with a number far outside of most bounds."""

_NOTE, _NOTE_CELL = "note of the audit", "x" * 64
"""A column that no job reads; it makes a large file exceed one block of bytes."""


@dataclass(frozen=True)
class Kind:
    """A kind of file, or a frame in memory.

    Parameters
    ----------
    write : function of a folder, the names of the columns, the schema and the rows
        Returns a source for `read_source`.
    words : bool
        True if a column of numbers can hold any text.
    """

    name: str
    write: Callable[[Path, Sequence[str], Schema, Sequence[Row]], Any]
    words: bool


def header(schema: Schema) -> tuple[str, ...]:
    """Return the names of the columns of a file: those of the schema, then its unit."""
    unit = schema.unit_column
    return (*schema.names, unit) if unit else schema.names


def plain(schema: Schema) -> Schema:
    """Return the schema for files that write numbers and text in the default format."""
    return schema.model_copy(update={"decimal": ".", "thousands": "", "encoding": ""})


def with_unit(schema: Schema, max_rows: int) -> Schema | None:
    """Return the schema with an additional column as its privacy unit; None if it has a unit."""
    if schema.unit != "row":
        return None
    unit = "person of the audit"
    return Schema(**{**dict(schema), "unit": unit, "max_rows": max_rows})


def rows_of(
    schema: Schema, grid: Grid, table: Floats, units: Callable[[int], str] = "u{}".format
) -> list[Row]:
    """Return the cells of records.

    Parameters
    ----------
    table : ndarray of shape (n, n_features)
        Coordinates in ``[-1, 1]``; a missing cell is not a number.
    units : function of int
        Name of the unit of each row, used if the schema has a unit column.
    """
    values = grid.decode(table)
    columns = [
        [_cell(column, value) for value in values[:, j].tolist()]
        for j, column in enumerate(schema.columns)
    ]
    if schema.unit_column:
        columns.append([units(i) for i in range(len(table))])
    return list(zip(*columns, strict=True))


def _cell(column: Column, value: float) -> str:
    """Return the text of a cell in the format of its column."""
    if isnan(value):
        return ""
    inside = min(max(value, column.min), column.max)
    match column.type:
        case "number":
            return repr(value)  # also outside the bounds, as the reader must clip it
        case "integer":
            return str(round(inside))
        case "boolean":
            return ("false", "true")[round(inside)]
        case "category":
            return column.categories[round(inside)]
        case "date":
            year = int(inside)
            day = date(year, 1, 1) + timedelta(days=int((inside - year) * 365))
            return day.strftime(column.format) if column.format else day.isoformat()


def insert(rows: Sequence[Row], extra: Sequence[Row], places: Sequence[int]) -> list[Row]:
    """Insert each extra row before the row at its place, in order."""
    merged: list[Row] = []
    before = 0
    for place, row in sorted(zip(places, extra, strict=True)):
        merged += [*rows[before:place], row]
        before = place
    return [*merged, *rows[before:]]


def odd_rows(schema: Schema, row: Row, kind: Kind) -> Iterator[Row]:
    """Yield the row with one odd cell, each odd cell once, cycling through the columns."""
    fits = [cell for cell in ODD_CELLS if kind.words or _as_float(cell) is not None or not cell]
    for number, cell in enumerate(fits):
        j = number % len(schema.names)
        yield (*row[:j], cell, *row[j + 1 :])


def _write_csv(folder: Path, names: Sequence[str], schema: Schema, rows: Sequence[Row]) -> Path:
    path = folder / "records.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*names, _NOTE))
        writer.writerows((*row, _NOTE_CELL) for row in rows)
    return path


def _write_parquet(folder: Path, names: Sequence[str], schema: Schema, rows: Sequence[Row]) -> Path:
    """Write a folder of two files, so that both contain rows of a unit."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    path = folder / "records"
    path.mkdir(exist_ok=True)
    numbers = [j for j, column in enumerate(schema.columns) if column.type in ("number", "integer")]
    types = {name: pa.float64() if j in numbers else pa.string() for j, name in enumerate(names)}
    how = pyarrow.csv.ConvertOptions(column_types=types, null_values=[""])
    half = len(rows) // 2
    for number, file_rows in enumerate((rows[:half], rows[half:])):
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(names)
        for row in file_rows:
            writer.writerow([_number(cell) if j in numbers else cell for j, cell in enumerate(row)])
        # pa.array would import pandas, which is slow.
        cells = pyarrow.csv.read_csv(io.BytesIO(text.getvalue().encode()), convert_options=how)
        pq.write_table(cells, path / f"{number}.parquet")
    return path


def _make_frame(folder: Path, names: Sequence[str], schema: Schema, rows: Sequence[Row]) -> Any:
    """Return a frame whose columns have the types that pandas infers from their cells."""
    import pandas as pd

    types = [column.type for column in schema.columns] + ["category"] * (
        len(names) - len(schema.names)
    )
    columns = [
        [_object(cell, kind) for cell in cells]
        for cells, kind in zip(zip(*rows, strict=True), types, strict=True)
    ]
    return pd.DataFrame(dict(zip(names, columns or [[] for _ in names], strict=True)))


def _object(cell: str, kind: str) -> Any:
    """Return the Python object of a cell in a frame."""
    if kind == "boolean" and cell in ("false", "true"):
        return cell == "true"
    if kind in ("number", "integer") and (value := _as_float(cell)) is not None:
        return int(value) if kind == "integer" and value.is_integer() else value
    return cell or None


def _number(cell: str) -> str:
    """Return the text of a number for a Parquet file; empty if the cell is no number."""
    value = _as_float(cell)
    return "" if value is None else repr(value)


def _as_float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


CSV = Kind("CSV", _write_csv, words=True)
PARQUET = Kind("Parquet", _write_parquet, words=False)
FRAME = Kind("pandas", _make_frame, words=True)
KINDS = (CSV, PARQUET, FRAME)
