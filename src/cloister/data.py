"""Records in: tables and files become integers of the grid, by public rules, record by record.

Which columns a source has is checked before anything else, and a mistake there is a `DataError`.
What the records hold is never an error: a cell that is missing, of the wrong type or out of range
follows the schema's rule, so that nothing about a record can stop a job.

A source is an array, a list of rows, a pandas, polars or Arrow table, the path of a text table
(``.csv``, ``.tsv``, ``.txt``, ``.data``; also ``.gz``, ``.bz2``, ``.zst``) or of a Parquet file, or
a folder of Parquet files, or a `SqlQuery`. Text tables have one header line; their delimiter is
found in that line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cloister.errors import DataError, PlanError

if TYPE_CHECKING:
    from cloister.hazmat.fixedpoint import Grid
    from cloister.schema import Schema

Chunk = NDArray[np.int32]  # (up to chunk_rows, n_features), grid steps
_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]

MEMORY_LIMIT = 1 << 30  # bytes of grid records of one file that are kept; beyond, it is read again
LOCAL_NOTE = "local only: exact counts of the records, not a release"
_CHUNK_CELLS = 1 << 19
_BLOCK_BYTES = 1 << 22  # of a text table; the longest line that can be read
_HEADER_BYTES = 1 << 20
_DELIMITERS = ",;\t|:~^ "
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_NUMBER = r"\A\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\z"
_MISSING = r"(?i)\A\s*(na|n/a|nan|null|none|\?|-)?\s*\z"
_TRUE = r"(?i)\A\s*(true|t|yes|y)\s*\z"
_FALSE = r"(?i)\A\s*(false|f|no|n)\s*\z"


@dataclass(frozen=True, eq=False)
class Records:
    """The records of one silo on the grid; iterate over them as often as you like.

    Each pass gives the same int32 chunks of shape (rows, n_features), read-only, in file order. How
    many records there are is not told: that is for a paid count.

    Raises
    ------
    DataError
        During a pass, if a file that is read again is not what it was at first.
    """

    n_features: int
    _passes: Callable[[], Iterator[Chunk]] = field(repr=False)

    def __iter__(self) -> Iterator[Chunk]:
        return self._passes()

    def fingerprint(self, key: bytes) -> bytes:
        """Return 32 bytes that only the same records and the same key give, however chunked.

        Parameters
        ----------
        key : bytes, 16 to 64, secret of the owner
            Without it, the fingerprint tells nothing about the records.

        Notes
        -----
        Keyed BLAKE2b over the grid integers, so other bounds give another fingerprint. One pass.
        """
        if not 16 <= len(key) <= 64:
            raise PlanError(f"key must have 16 to 64 bytes, got {len(key)}; use new_key().")
        digest = hashlib.blake2b(
            self.n_features.to_bytes(8, "little"), key=key, digest_size=32, person=b"records"
        )
        for chunk in self:
            digest.update(_bytes_of(chunk))
        return digest.digest()


@dataclass(frozen=True)
class SqlQuery:
    """The rows that a database gives to a query; a source like a file with the same rows.

    Parameters
    ----------
    url : str
        A SQLAlchemy URL; it may hold a password and is never shown.
    query : str
        A SELECT with the schema's columns, as the database's driver takes it. With a unit column,
        let it ORDER BY something, so that the first ``max_rows`` rows of a unit are always the
        same ones.

    Notes
    -----
    The rows are fetched in chunks and nothing is committed, so that nothing can be changed.
    """

    url: str = field(repr=False)
    query: str = field(repr=False)


def read_source(
    source: Any,
    schema: Schema,
    *,
    frac_bits: int = 16,
    chunk_rows: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Records:
    """Read the records of one silo by the rules of a schema.

    Parameters
    ----------
    source : array, table, path or SqlQuery
        See the module. A table or file is matched by column name, other columns are left unread;
        an array must have the schema's columns in the schema's order.
        A line of a text table with a wrong number of fields is dropped.
    schema : Schema
    frac_bits : int
        The lattice has step ``2**-frac_bits``.
    chunk_rows : int, optional
        Largest number of records in a chunk; by default about half a million cells.
    memory_limit : int, bytes
        A file whose records take more than this on the grid is read again at every pass.

    Returns
    -------
    Records

    Raises
    ------
    DataError
        If the source cannot be read or lacks a column. Never for what a record holds.

    Notes
    -----
    With a unit column, the first ``max_rows`` usable records of each unit in file order are kept; a
    record without a unit is dropped. Whether one is kept depends on records of its own unit alone,
    so a unit changes at most ``max_rows`` records.
    """
    rules = _Rules.of_schema(schema, frac_bits)
    unit = None if schema.unit == "row" else schema.unit
    return _records(_open(source, schema.names, unit), rules, chunk_rows, memory_limit)


def array_records(
    source: Any,
    grid: Grid,
    *,
    chunk_rows: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Records:
    """Read records by plain bounds: clip, and drop a record that has a missing value.

    Parameters
    ----------
    source : array, table or path
        All of its columns are used, in their order; each must hold numbers.
    grid : Grid
        The public bounds of each column.
    chunk_rows, memory_limit
        As in `read_source`.

    Raises
    ------
    DataError
        If the source cannot be read or has another number of columns than the bounds.
    """
    table = _open(source, None, None)
    if table.n_columns != grid.n_features:
        raise DataError(
            f"{table.label} has {table.n_columns} columns, but the bounds describe "
            f"{grid.n_features}; give one pair of bounds per column."
        )
    return _records(table, _Rules.of_grid(grid), chunk_rows, memory_limit)


def read_floats(source: Any, names: Sequence[str] | None = None) -> _Floats:
    """Return every cell of a source as it is: no schema, no clipping, no row left out.

    Parameters
    ----------
    source : array, table or path
    names : sequence of str, optional
        Columns to read, in this order; all of them by default.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64, data units
        NaN where a cell holds no number. For local use: this is the data, not a release.

    Raises
    ------
    DataError
        If the source cannot be read or lacks a column.
    """
    table = _open(source, names, None)
    parts = [np.empty((0, table.n_columns))]
    for raw in table.chunks(_default_rows(table.n_columns)):
        cells = raw.cells
        if not isinstance(cells, np.ndarray):
            cells = np.column_stack([_numbers(column, False)[0] for column in cells])
        parts.append(cells)
    return np.concatenate(parts)


def header(source: Any) -> tuple[str, ...]:
    """Return the column names of a source and nothing else; arrays have x0, x1, ...

    Raises
    ------
    DataError
        If the source cannot be read.
    """
    return _open(source, None, None).names


def as_silos(data: Any) -> list[Any]:
    """Tell a list of silos from one silo's data.

    Parameters
    ----------
    data : list or tuple of tables and paths, or one silo's data
        A list of numbers, or of rows of numbers, is one silo.

    Returns
    -------
    list
        One source per silo.

    Raises
    ------
    DataError
        If the list is empty, or holds tables together with something else.
    """
    if not isinstance(data, list | tuple):
        return [data]
    if not data:
        raise DataError("data must hold at least one silo, got an empty list.")
    tables = [
        _is_path(part) or isinstance(part, SqlQuery) or len(getattr(part, "shape", ())) == 2
        for part in data
    ]
    if any(tables) and not all(tables):
        raise DataError(
            f"every silo must be a table or a path, but element {tables.index(False)} of the list "
            f"is a {type(data[tables.index(False)]).__name__}."
        )
    return list(data) if all(tables) else [data]


@dataclass(frozen=True)
class ColumnCheck:
    """Exact counts of one column: local only, not a release."""

    name: str
    missing: int
    type_errors: int
    out_of_range: int
    out_of_range_share: float  # of all rows
    constant: bool  # every value that is there is the same


@dataclass(frozen=True)
class CheckReport:
    """What `check_file` found: local only, exact counts of the records, not a release."""

    source: str
    rows: int
    used: int  # rows that the schema's rules leave
    bad_lines: int  # lines with more or fewer fields than the header; not among the rows
    without_unit: int  # rows dropped because the unit column is empty
    beyond_max_rows: int  # rows dropped because their unit has more than max_rows
    columns: tuple[ColumnCheck, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, marked as local."""
        return {"note": LOCAL_NOTE, **asdict(self)}

    def __str__(self) -> str:
        lines = [f"{self.source} ({LOCAL_NOTE})", f"{self.rows} rows, {self.used} used"]
        for count, what in (
            (self.bad_lines, "lines with a wrong number of fields"),
            (self.without_unit, "rows without a unit"),
            (self.beyond_max_rows, "rows beyond max_rows of their unit"),
        ):
            lines += [f"{count} {what}"] if count else []
        for column in self.columns:
            lines.append(
                f"{column.name}: {column.out_of_range_share:.2%} out of range, {column.missing} "
                f"missing, {column.type_errors} of the wrong type"
                + (", constant" if column.constant else "")
            )
        return "\n".join(lines)


def check_file(source: Any, schema: Schema) -> CheckReport:
    """Count what the schema's rules meet in a source; local only, not a release.

    Parameters
    ----------
    source : path, or whatever `read_source` takes
    schema : Schema

    Raises
    ------
    DataError
        If the source cannot be read or lacks a column.
    """
    rules = _Rules.of_schema(schema)
    table = _open(source, schema.names, None if schema.unit == "row" else schema.unit)
    limit = _UnitLimit(rules.max_rows)
    d = len(schema.names)
    missing, wrong, outside = (np.zeros(d, dtype=np.int64) for _ in range(3))
    lowest, highest = np.full(d, np.inf), np.full(d, -np.inf)
    rows = used = bad_lines = 0
    for raw in table.chunks(_default_rows(d)):
        bad_lines += raw.bad_lines
        judged = rules.judge(raw)
        rows += len(judged.values)
        used += int(limit.keep(raw.units, judged.usable).sum())
        missing += (judged.missing & ~judged.wrong).sum(axis=0)
        wrong += judged.wrong.sum(axis=0)
        outside += judged.outside.sum(axis=0)
        there = np.where(judged.missing, np.nan, judged.values)
        lowest = np.fmin(lowest, np.fmin.reduce(there, axis=0, initial=np.inf))
        highest = np.fmax(highest, np.fmax.reduce(there, axis=0, initial=-np.inf))
    columns = tuple(
        ColumnCheck(
            name=name,
            missing=int(missing[j]),
            type_errors=int(wrong[j]),
            out_of_range=int(outside[j]),
            out_of_range_share=float(outside[j] / max(rows, 1)),
            constant=bool(lowest[j] == highest[j]),
        )
        for j, name in enumerate(schema.names)
    )
    return CheckReport(
        source=table.label,
        rows=rows,
        used=used,
        bad_lines=bad_lines,
        without_unit=limit.without_unit,
        beyond_max_rows=limit.beyond,
        columns=columns,
    )


# --- From raw cells to the grid -------------------------------------------------------------------


@dataclass(frozen=True)
class _Raw:
    """Some rows as they were found: one float matrix, or one array of cells per column."""

    cells: _Floats | list[Any]
    units: Any = None  # Arrow array, where the schema has a unit column
    bad_lines: int = 0


@dataclass(frozen=True)
class _Judged:
    """Rows after the schema's rules; every mask has the shape of `values`, but for `usable`."""

    values: _Floats  # filled, not yet clipped
    missing: _Mask  # includes cells of the wrong type
    wrong: _Mask
    outside: _Mask
    usable: _Mask  # (rows,)


@dataclass(frozen=True)
class _Rules:
    """A schema as arrays, one entry per column."""

    grid: Grid
    fill: _Floats  # NaN: drop the record
    drop_outside: _Mask
    integer: _Mask
    boolean: _Mask
    max_rows: int | None = None

    @classmethod
    def of_schema(cls, schema: Schema, frac_bits: int = 16) -> Self:
        columns = schema.columns
        return cls(
            grid=schema.grid(frac_bits),
            fill=np.array([column.fill_value for column in columns]),
            drop_outside=np.array([column.out_of_range == "drop" for column in columns]),
            integer=np.array([column.type != "number" for column in columns]),
            boolean=np.array([column.type == "boolean" for column in columns]),
            max_rows=schema.max_rows,
        )

    @classmethod
    def of_grid(cls, grid: Grid) -> Self:
        no = np.zeros(grid.n_features, dtype=bool)
        fill = np.full(grid.n_features, np.nan)
        return cls(grid=grid, fill=fill, drop_outside=no, integer=no, boolean=no)

    def judge(self, raw: _Raw) -> _Judged:
        """Apply the rules for missing cells, types and range, each record by itself."""
        if isinstance(raw.cells, np.ndarray):
            values, wrong = raw.cells, np.zeros(raw.cells.shape, dtype=bool)
        else:
            pairs = [_numbers(c, bool(b)) for c, b in zip(raw.cells, self.boolean, strict=True)]
            values = np.column_stack([numbers for numbers, _ in pairs])
            wrong = np.column_stack([mask for _, mask in pairs])
        missing = ~np.isfinite(values)
        if self.integer.any():
            values = np.where(missing, 0.0, values)
            fraction = self.integer & (values != np.floor(values))
            other = self.boolean & (values != 0) & (values != 1)
            wrong |= (fraction | other) & ~missing
            missing |= wrong
        values = np.where(missing, self.fill, values)
        outside = (values < np.array(self.grid.low)) | (values > np.array(self.grid.high))
        unusable = np.isnan(values) | (outside & self.drop_outside)
        usable = ~np.asarray(unusable.any(axis=1))
        return _Judged(values, missing, wrong, outside, usable)

    def encode(self, raws: Iterable[_Raw]) -> Iterator[Chunk]:
        """Turn the raw chunks of one pass into chunks of the grid, none of them empty."""
        limit = _UnitLimit(self.max_rows)
        for raw in raws:
            judged = self.judge(raw)
            keep = limit.keep(raw.units, judged.usable)
            if keep.any():
                # clipped here already, so that no arithmetic of the grid can overflow
                chunk = self.grid.encode(
                    np.clip(judged.values[keep], self.grid.low, self.grid.high)
                )
                chunk.flags.writeable = False
                yield chunk


class _UnitLimit:
    """Keep the first `max_rows` usable records of each unit, through all chunks of one pass."""

    def __init__(self, max_rows: int | None) -> None:
        self._max_rows = max_rows
        self._seen: dict[str, int] = {}
        self.without_unit = self.beyond = 0

    def keep(self, units: Any, usable: _Mask) -> _Mask:
        """Return which rows of the next chunk stay; `units` is an Arrow array or None."""
        if self._max_rows is None or not len(usable):
            return usable
        encoded = _plain(units).dictionary_encode()
        names = [_unit_name(value) for value in encoded.dictionary.to_pylist()]
        number = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        # two spellings of one unit share a number; -1 stands for no unit
        numbers = np.array([number.get(name or "", -1) for name in names] + [-1], dtype=np.int64)
        codes = numbers[np.asarray(encoded.indices.fill_null(-1))]
        self.without_unit += int((usable & (codes < 0)).sum())
        usable = usable & (codes >= 0)
        before = np.array([self._seen.get(name, 0) for name in number] + [0], dtype=np.int64)
        place = before[codes]
        place[usable] += _rank(codes[usable])
        keep: _Mask = usable & (place < self._max_rows)
        self.beyond += int((usable & ~keep).sum())
        added = np.bincount(codes[keep], minlength=len(number))
        for name, i in number.items():
            if added[i]:
                self._seen[name] = int(before[i] + added[i])
        return keep


def _rank(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each entry's value occurred before it."""
    order = np.argsort(codes, kind="stable")
    arranged = codes[order]
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(arranged, arranged)
    return rank


def _unit_name(value: Any) -> str | None:
    """Write a unit as text, the same for 7, 7.0, b"7" and " 7 "; None where there is none."""
    if value is None or _is_na(value):
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"0x{value.hex()}"  # two identifiers that are not text must not become one
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    return str(value).strip() or None


def _records(table: _Table, rules: _Rules, chunk_rows: int | None, memory_limit: int) -> Records:
    """Encode a source once; keep the result, or seal a file that is too large to keep."""
    rows = _default_rows(table.n_columns) if chunk_rows is None else chunk_rows
    if rows < 1:
        raise PlanError(f"chunk_rows must be at least 1, got {rows}.")
    kept: list[Chunk] = []
    seal, size, fits = hashlib.blake2b(), 0, True
    for chunk in rules.encode(table.chunks(rows)):
        size += chunk.nbytes
        fits = fits and not (table.is_file and size > memory_limit)
        if fits:
            kept.append(chunk)
        else:
            kept.clear()
        if table.is_file:
            seal.update(_bytes_of(chunk))
    if fits:
        stored = tuple(kept)
        return Records(table.n_columns, lambda: iter(stored))
    expected = seal.digest()

    def read_again() -> Iterator[Chunk]:
        found = hashlib.blake2b()
        for chunk in rules.encode(table.chunks(rows)):
            found.update(_bytes_of(chunk))
            yield chunk
        if found.digest() != expected:
            raise DataError(
                f"{table.label} changed while it was in use; records are frozen when a job "
                "starts, so start a new job."
            )

    return Records(table.n_columns, read_again)


def _default_rows(n_columns: int) -> int:
    return min(max(_CHUNK_CELLS // max(n_columns, 1), 1024), 65536)


def _bytes_of(chunk: Chunk) -> bytes:
    return chunk.astype("<i4", copy=False).tobytes()


# --- Cells ----------------------------------------------------------------------------------------


def _numbers(cells: Any, boolean: bool) -> tuple[_Floats, _Mask]:
    """Read one column of cells as float64, NaN where there is none; mark cells of a wrong type."""
    if isinstance(cells, np.ndarray):
        return cells, np.zeros(len(cells), dtype=bool)
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = _plain(cells)
    if not _is_text(cells.type):
        if pa.types.is_boolean(cells.type):
            cells = cells.cast(pa.uint8())
        return _floats(cells), np.zeros(len(cells), dtype=bool)

    def says(pattern: str) -> _Mask:
        found = pc.match_substring_regex(texts, pattern=pattern).fill_null(False)
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)

    texts = cells.cast(pa.large_binary())
    is_number = says(_NUMBER)
    if is_number.all():  # the common case, at a third of the price
        return _floats(pc.ascii_trim_whitespace(cells.cast(pa.large_string()))), ~is_number
    is_missing = says(_MISSING) | np.asarray(cells.is_null(), dtype=bool)
    # only what matched is read as text: the rest need not even be valid UTF-8
    digits = pc.if_else(pa.array(is_number), texts, pa.scalar(b"nan", pa.large_binary()))
    values = _floats(pc.ascii_trim_whitespace(digits.cast(pa.large_string())))
    if boolean:
        true, false = says(_TRUE), says(_FALSE)
        values = np.where(true, 1.0, np.where(false, 0.0, values))
        is_number = is_number | true | false
    return values, ~is_number & ~is_missing


def _floats(cells: Any) -> _Floats:
    """Convert an Arrow array of numbers or of digits; null becomes NaN."""
    import pyarrow as pa

    numbers = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64)


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _text(cell: Any) -> bytes | None:
    """Write one Python object as the cell of a text table would say it."""
    if cell is None or _is_na(cell) or isinstance(cell, bytes):
        return cell if isinstance(cell, bytes) else None
    if isinstance(cell, bool | np.bool_):
        return b"true" if cell else b"false"
    if isinstance(cell, Real):  # but not decimal.Decimal, which says itself as text
        try:
            return repr(float(cell)).encode()
        except OverflowError:
            return None
    return str(cell).encode("utf-8", "replace")


def _is_na(cell: Any) -> bool:
    """Tell pandas' NA and NaT, which must not be compared."""
    return type(cell).__name__ in ("NAType", "NaTType")


def _text_cells(cells: Iterable[Any]) -> Any:
    import pyarrow as pa

    return pa.array([_text(cell) for cell in cells], type=pa.large_binary())


def _unit_cells(cells: Iterable[Any]) -> Any:
    import pyarrow as pa

    names = (_unit_name(cell) for cell in cells)
    encoded = [None if name is None else name.encode("utf-8", "replace") for name in names]
    return pa.array(encoded, type=pa.large_binary())


def _plain(cells: Any) -> Any:
    """Undo an Arrow dictionary."""
    import pyarrow as pa

    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


# --- Sources --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """A source whose columns were checked: its rows can be read again and again."""

    label: str  # what messages call it
    names: tuple[str, ...]  # of the columns to be used
    chunks: Callable[[int], Iterator[_Raw]]  # at most so many rows at a time
    is_file: bool = False

    @property
    def n_columns(self) -> int:
        return len(self.names)


def _open(source: Any, names: Sequence[str] | None, unit: str | None) -> _Table:
    """Find out what a source is and check its columns; `names` None means all of them."""
    if _is_path(source):
        return _open_path(Path(source), names, unit)
    if isinstance(source, SqlQuery):
        return _open_query(source, names, unit)
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return _open_pandas(source, names, unit)
    if hasattr(source, "to_arrow") and hasattr(source, "columns"):  # polars
        source = source.to_arrow()
    if hasattr(source, "to_batches") and hasattr(source, "column_names"):
        return _open_arrow(source, names, unit)
    return _open_array(source, names, unit)


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def _positions(
    label: str, found: Sequence[Any], names: Sequence[str] | None, unit: str | None
) -> tuple[list[int], tuple[str, ...]]:
    """Return where the needed columns (the unit last) stand, and the names of the features."""
    have = [str(name).strip() for name in found]
    names = tuple(have if names is None else names)
    needed = (*names, unit) if unit is not None else names
    if absent := [name for name in needed if name not in have]:
        listed = ", ".join(repr(name) for name in absent[:5]) + (", ..." if absent[5:] else "")
        raise DataError(
            f"{label} has no column {listed}; mend the header, the delimiter or the schema."
        )
    if twice := [name for name in needed if have.count(name) > 1]:
        raise DataError(f"{label} has more than one column {twice[0]!r}; rename all but one.")
    return [have.index(name) for name in needed], names


def _open_array(source: Any, names: Sequence[str] | None, unit: str | None) -> _Table:
    label = "the array"
    if hasattr(source, "toarray"):
        raise DataError("sparse data are not supported; give a dense table.")
    if unit is not None:
        raise DataError(
            f"an array has no column {unit!r}, the unit of the schema; give a table or a file."
        )
    try:
        X = np.asanyarray(source)
    except ValueError:
        raise DataError("rows must all have the same number of cells.") from None
    if X.ndim != 2:
        raise DataError(
            f"records must be a table with 2 dimensions (rows, columns), got {X.ndim}; reshape "
            "your data."
        )
    if X.dtype.kind not in "biufOUS":
        raise DataError(f"records must be real numbers, got the data type {X.dtype}.")
    names = tuple(names or (f"x{j}" for j in range(X.shape[1])))
    if X.shape[1] != len(names):
        raise DataError(
            f"the array has {X.shape[1]} columns, but the schema has {len(names)}; give the "
            "schema's columns in its order."
        )

    def chunks(rows: int) -> Iterator[_Raw]:
        for start in range(0, len(X), rows):
            part = X[start : start + rows]
            if X.dtype.kind in "OUS":
                yield _Raw([_text_cells(column) for column in np.asarray(part).T.tolist()])
            else:
                numbers = part.astype(np.float64)
                yield _Raw(np.asarray(np.ma.filled(numbers, np.nan)))

    return _Table(label, names, chunks)


def _open_pandas(frame: Any, names: Sequence[str] | None, unit: str | None) -> _Table:
    label = "the table"
    positions, names = _positions(label, list(frame.columns), names, unit)
    for position, name in zip(positions, names, strict=False):
        kind = frame.dtypes.iloc[position].kind
        if kind not in "biufOUS":
            raise DataError(
                f"column {name!r} of {label} must hold numbers, got the data type "
                f"{frame.dtypes.iloc[position]}."
            )

    def cells(column: Any) -> Any:
        if column.dtype.kind not in "biuf":
            return _text_cells(column.tolist())
        if isinstance(column.dtype, np.dtype):
            return column.to_numpy().astype(np.float64)
        return column.to_numpy(dtype=np.float64, na_value=np.nan)

    def chunks(rows: int) -> Iterator[_Raw]:
        for start in range(0, len(frame), rows):
            part = [frame.iloc[start : start + rows, position] for position in positions]
            units = _unit_cells(part.pop().tolist()) if unit is not None else None
            yield _Raw([cells(column) for column in part], units)

    return _Table(label, names, chunks)


def _open_arrow(table: Any, names: Sequence[str] | None, unit: str | None) -> _Table:
    label = "the table"
    positions, names = _positions(label, table.column_names, names, unit)
    _check_types(label, table.schema, positions, unit)

    def chunks(rows: int) -> Iterator[_Raw]:
        return _slices(table.select(positions).to_batches(max_chunksize=rows), rows, unit)

    return _Table(label, names, chunks)


def _open_path(path: Path, names: Sequence[str] | None, unit: str | None) -> _Table:
    """Tell files by their suffix."""
    if not path.exists():
        raise DataError(f"file {str(path)!r} does not exist.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if path.is_dir() or (suffixes and suffixes[-1] in _PARQUET_SUFFIXES):
        return _open_parquet(path, names, unit)
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        suffixes.pop()
    if suffixes and suffixes[-1] in _TEXT_SUFFIXES:
        return _open_text(path, names, unit)
    raise DataError(
        f"file {str(path)!r} is of no known kind; it must end in "
        f"{', '.join((*_TEXT_SUFFIXES, *_PARQUET_SUFFIXES))}, text also packed as .gz."
    )


def _open_query(source: SqlQuery, names: Sequence[str] | None, unit: str | None) -> _Table:
    with _result(source, 1) as (label, result):
        positions, names = _positions(label, list(result.keys()), names, unit)

    def chunks(rows: int) -> Iterator[_Raw]:
        with _result(source, rows) as (_, result):
            for part in result.partitions(rows):
                found = list(zip(*part, strict=True))
                columns = [found[position] for position in positions]
                people = map(_one_spelling, columns.pop() if unit is not None else ())
                units = _unit_cells(people) if unit is not None else None
                yield _Raw([_database_cells(column) for column in columns], units)

    return _Table(label, names, chunks, is_file=True)


@contextmanager
def _result(source: SqlQuery, rows: int) -> Iterator[tuple[str, Any]]:
    """Run a query and yield a label and its rows; whatever it changed is undone."""
    import sqlalchemy as sa

    label = "the database"
    try:
        url = sa.make_url(source.url)
        sqlite = url.get_backend_name() == "sqlite"
        public = sa.URL.create(url.get_backend_name(), host=url.host, database=url.database)
        label = f"database {str(public)!r}"
        engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)
    except (sa.exc.ArgumentError, ImportError, ValueError) as error:
        raise DataError(
            f"{label} cannot be opened: {type(error).__name__}; url must be a SQLAlchemy URL whose "
            "driver is installed, for PostgreSQL with pip install 'cloister[postgres]'."
        ) from None
    if sqlite and not Path(url.database or "").is_file():  # SQLite would make an empty one
        raise DataError(f"{label} does not exist; check the url.")
    try:
        with engine.connect() as connection:
            if sqlite:  # a text that is no UTF-8 must not stop a job
                connection.connection.driver_connection.text_factory = bytes  # type: ignore[union-attr]
            result = connection.execution_options(
                stream_results=True, max_row_buffer=rows, no_parameters=True
            ).exec_driver_sql(source.query)
            if not result.returns_rows:
                raise DataError(f"the query of {label} returns no rows; write a SELECT.")
            yield label, result
    except sa.exc.SQLAlchemyError as error:  # its words may repeat a record
        raise DataError(
            f"the query of {label} failed: {type(error).__name__}; try it with the database's own "
            "client."
        ) from None


def _database_cells(cells: tuple[Any, ...]) -> Any:
    if set(map(type, cells)) <= {float, int, NoneType}:  # the common case, at a tenth of the price
        with suppress(OverflowError):
            return np.array(cells, dtype=np.float64)
    return _text_cells(cells)


def _one_spelling(cell: Any) -> Any:
    """Give a unit one spelling, where a database may give a value several."""
    if isinstance(cell, memoryview | bytearray):
        return bytes(cell)
    if isinstance(cell, Decimal) and cell.is_finite():
        return int(cell) if cell == cell.to_integral_value() else cell.normalize()
    return cell


def _open_parquet(path: Path, names: Sequence[str] | None, unit: str | None) -> _Table:
    import pyarrow.parquet as pq

    label = f"file {str(path)!r}"
    files = [path]
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in _PARQUET_SUFFIXES and not file.name.startswith((".", "_"))
        )
        if not files:
            raise DataError(f"folder {str(path)!r} holds no Parquet file.")
    wanted = names
    labels: list[list[str]] = []
    for file in files:
        with _readable(label), pq.ParquetFile(file) as opened:
            found = opened.schema_arrow
        positions, wanted = _positions(label, found.names, wanted, unit)
        _check_types(label, found, positions, unit)
        labels.append([found.names[position] for position in positions])

    def chunks(rows: int) -> Iterator[_Raw]:
        for file, columns in zip(files, labels, strict=True):
            with _readable(label), pq.ParquetFile(file) as opened:
                batches = opened.iter_batches(batch_size=rows, columns=columns)
                yield from _slices((batch.select(columns) for batch in batches), rows, unit)

    return _Table(label, tuple(wanted or ()), chunks, is_file=True)


def _open_text(path: Path, names: Sequence[str] | None, unit: str | None) -> _Table:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    label = f"file {str(path)!r}"
    with _readable(label), pa.input_stream(str(path)) as stream:
        start = stream.read(_HEADER_BYTES)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{label} is UTF-16; save it as UTF-8.")
    line = (start.splitlines() or [b""])[0]
    body = start[len(line) :].strip()
    try:
        title = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        title = line.decode("latin1")
    delimiter, found = _split_header(title, names)
    if not any(found):
        raise DataError(f"{label} is empty; its first line must name the columns.")
    positions, names = _positions(label, found, names, unit)
    order = [str(position) for position in positions]
    _check_quotes(path, label, delimiter)

    def chunks(rows: int) -> Iterator[_Raw]:
        bad: list[None] = []

        def skip(_: Any) -> str:
            bad.append(None)
            return "skip"

        if not body:
            return
        with _readable(label), pa.input_stream(str(path)) as stream:
            batches = pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(
                    skip_rows=1,
                    column_names=[str(position) for position in range(len(found))],
                    block_size=_BLOCK_BYTES,
                    encoding="latin1",  # never fails; numbers read the same, names stay apart
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip
                ),
                convert_options=pacsv.ConvertOptions(
                    include_columns=order,
                    column_types=dict.fromkeys(order, pa.binary()),
                    strings_can_be_null=False,
                ),
            )
            yield from _slices(batches, rows, unit)
        yield _Raw(np.empty((0, len(positions) - (unit is not None))), bad_lines=len(bad))

    return _Table(label, names, chunks, is_file=True)


def _check_quotes(path: Path, label: str, delimiter: str) -> None:
    """Refuse a table whose quotes do not match: one such line would swallow those after it.

    What a CSV writer wrote passes, whatever the records hold, so this tells nothing about them.
    """
    import pyarrow as pa

    with _readable(label), pa.input_stream(str(path)) as stream:
        while (part := stream.read(_BLOCK_BYTES)) and b'"' not in part:
            pass
        if not part:
            return
    with _readable(label), pa.input_stream(str(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="latin1", newline="")
        try:
            for _ in csv.reader(text, delimiter=delimiter, strict=True):
                pass
        except csv.Error:
            raise DataError(
                f"{label} has a quoted field that does not end as it should; export it again with "
                "a CSV writer."
            ) from None


def _split_header(line: str, names: Sequence[str] | None) -> tuple[str, list[str]]:
    """Find the delimiter that shows the most of the wanted names, else the most names."""

    def split(delimiter: str) -> list[str]:
        return [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]

    def worth(delimiter: str) -> tuple[int, bool, int]:
        found = split(delimiter)
        return len(set(found) & set(names or ())), delimiter != " ", len(found)

    best = max(_DELIMITERS, key=worth)
    return best, split(best)


def _slices(batches: Iterable[Any], rows: int, unit: str | None) -> Iterator[_Raw]:
    """Cut Arrow batches, whose last column is the unit if there is one, to at most `rows` rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            columns = list(batch.slice(start, rows).columns)
            units = columns.pop() if unit is not None else None
            yield _Raw(columns, units)


def _check_types(label: str, found: Any, positions: Sequence[int], unit: str | None) -> None:
    """Refuse columns that by their declared type hold no numbers, and units that are no names."""
    import pyarrow.types as types

    for place, position in enumerate(positions):
        kind = found.types[position]
        kind = kind.value_type if types.is_dictionary(kind) else kind
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        plain = plain or types.is_decimal(kind) or types.is_null(kind) or _is_text(kind)
        if unit is not None and place == len(positions) - 1:
            if types.is_nested(kind):
                raise DataError(f"unit column {unit!r} of {label} must hold names, got {kind}.")
        elif not plain:
            raise DataError(
                f"column {found.names[position]!r} of {label} must hold numbers, got {kind}."
            )


@contextmanager
def _readable(label: str) -> Iterator[None]:
    """Turn a failure to read into a `DataError` that repeats nothing of the file's content."""
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, pa.ArrowException):
        raise DataError(
            f"{label} cannot be read; it is damaged, no such file any more, not of the kind its "
            f"name says, or has a line longer than {_BLOCK_BYTES} bytes."
        ) from None
