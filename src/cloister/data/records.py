"""The reader of a source's rows as the records of one silo on the grid, for every interface.

The grid value of a cell depends only on the cell, the schema and public settings. Adding or
removing one privacy unit changes at most ``max_rows`` records; `docs/proofs/reader.md` is the
proof.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.compiled import can_order, ordered
from cloister.core.errors import DataError, PlanError
from cloister.core.numerals import counted
from cloister.data.baskets import Baskets, is_catalogue, open_baskets, proposed_layout
from cloister.data.cache import GridCache
from cloister.data.cells import CellType
from cloister.data.dialect import Dialect
from cloister.data.doubts import sign_doubts
from cloister.data.encoding import ABSENT, OUTSIDE, StepTables
from cloister.data.reading import ReadingReport, Tally
from cloister.data.rules import Chunk, Judged, Marked, Rules, dialect_of, matrix
from cloister.data.schema import Column, Schema
from cloister.data.sources import (
    PARQUET_SUFFIXES,
    Labelled,
    Raw,
    SqlQuery,
    Table,
    is_dataset,
    is_frame,
    is_path,
    open_source,
    settled,
)
from cloister.data.text import readable
from cloister.data.units import Admits, UnitLimit, marks_of
from cloister.hazmat.fixedpoint import Contract

if TYPE_CHECKING:
    from cloister.hazmat.fixedpoint import Grid

MEMORY_LIMIT = 1 << 30  # bytes of grid records kept per file; a larger file is read again
_CHUNK_CELLS = 1 << 19


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """The records of one silo on the grid, which can be iterated repeatedly.

    Each pass yields the same read-only int32 chunks of shape (rows, n_features) in file order. It
    raises a `DataError` if a file that is read again has changed. The object does not disclose the
    number of records, which only a noisy count may release.
    """

    contract: Contract
    """The contract by which they were read; a job of another contract refuses them."""
    _passes: Callable[[], Iterator[Chunk]]
    report: ReadingReport
    """The reader's report: exact counts, for the owner alone."""
    _seal: bytes  # of all columns of all rows
    _kept: bool = False  # in memory, for every pass

    def __iter__(self) -> Iterator[Chunk]:
        return self._passes()

    def __repr__(self) -> str:
        return f"Records(n_features={self.n_features})"

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.contract.grid.n_features

    @property
    def reports(self) -> tuple[ReadingReport, ...]:
        """The report as a tuple of one, since records in partitions have several."""
        return (self.report,)

    @cached_property
    def in_order(self) -> Records:
        """The same records in an order that saves time; `self` if they cannot be ordered.

        The first pass orders them, once. The time of a sum then depends on the records, so use it
        only where no other party can measure this time.
        """
        if not (self._kept and can_order()):
            return self

        @cache
        def tables() -> tuple[Chunk, ...]:
            chunks = list(self)
            return (ordered(chunks),) if chunks else ()

        return replace(self, _passes=lambda: iter(tables()))

    def fingerprint(self, key: bytes) -> bytes:
        """Return 32 bytes that identify the data and the key, independent of the chunks.

        Parameters
        ----------
        key : bytes, 16 to 64, secret of the owner
            Without the key, the fingerprint discloses nothing about the records.

        Notes
        -----
        Keyed BLAKE2b over a digest of the grid integers of all columns and rows. It includes those
        that a job excludes, so that it identifies the data in every job. It depends on the bounds.
        """
        if not 16 <= len(key) <= 64:
            raise PlanError(
                f"key must have 16 to 64 bytes, got {len(key)}; create one with new_key()."
            )
        return hashlib.blake2b(self._seal, key=key, digest_size=32, person=b"records").digest()


def read_source(
    source: Any,
    schema: Schema,
    *,
    columns: Iterable[str] | None = None,
    frac_bits: int = 16,
    chunk_rows: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
    cache_dir: str | os.PathLike[str] | None = None,
    on_rows: Callable[[int], None] | None = None,
    admits: Admits | None = None,
) -> Records:
    """Read the records of one silo by the rules of a schema.

    Parameters
    ----------
    source : array, table, path, SqlQuery, Labelled, Baskets or Records
        See :mod:`cloister.data`. Columns of a table or file are matched by name, and other columns
        are not read. An array or a list of rows must have the schema's columns in the schema's
        order. Records that were read by this contract are returned unchanged. The table of
        :mod:`cloister.data.cells` defines the meaning of a cell.
    columns : iterable of str, optional
        Columns that a job uses, in the schema's order; all by default. Only a bad cell in one of
        them excludes a record.
    frac_bits : int
        The lattice has step ``2**-frac_bits``.
    chunk_rows : int, optional
        Largest number of records in a chunk; by default about half a million cells.
    memory_limit : int, bytes
        A file whose records take more than this on the grid is read again in every pass.
    cache_dir : path, optional
        A folder for the grid records of a file or query, for any `memory_limit`. The source is then
        read once and needs almost no memory, and its later changes are ignored. The records are
        stored without seal or encryption, in a file without a name that exists as long as the
        records and the process. Use a folder on an encrypted disk or in memory (tmpfs).
    on_rows : function of int, optional
        Called repeatedly with the number of rows read so far, while the source is first read. It is
        an exact count, for the owner alone.
    admits : function of str, optional
        Whether the rows of a unit are read at all, see :class:`~cloister.data.units.UnitLimit`.

    Raises
    ------
    DataError
        If the source cannot be read or lacks a column, or `cache_dir` cannot store the records.
        Never because of the content of a record.

    Notes
    -----
    With a unit column, bad rows are excluded first. Then the first ``max_rows`` rows of each unit
    in file order are kept. A record without a unit is dropped. The choice depends only on records
    of the same unit, so a unit changes at most ``max_rows`` records.
    """
    contract = schema.contract(frac_bits, columns)  # raises for unknown columns before reading
    if isinstance(source, Records):
        contract.check(source)
        return source
    rules = Rules.of(schema, frac_bits, contract.columns)
    table = open_by_schema(source, schema)
    layout = proposed_layout(source, schema.names)
    doubts = sign_doubts(source, schema)
    tally = Tally(table.label, schema, rules, on_rows, layout, doubts)
    return _Reading(table, rules, contract, tally, admits).records(
        chunk_rows, memory_limit, cache_dir
    )


def array_records(
    source: Any,
    grid: Grid,
    *,
    chunk_rows: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Records:
    """Read records by plain bounds: clip, and drop a record that has a missing value.

    Parameters
    ----------
    source : array, table or path
        All of its columns are used, in their order; each must contain numbers.
    grid : Grid
        The public bounds of each column.
    chunk_rows, memory_limit, cache_dir
        As in `read_source`.
    """
    table = _open(source, None, None)
    if table.n_columns != grid.n_features:
        raise DataError(
            f"{table.label} has {counted(table.n_columns, 'column')}, but there are bounds for "
            f"{grid.n_features}; give one pair of bounds per column."
        )
    # Built without validation, because a grid may have wider bounds than a schema allows.
    columns = tuple(
        Column.model_construct(name=name, type="number", min=low, max=high)
        for name, low, high in zip(table.names, grid.low, grid.high, strict=True)
    )
    schema = Schema.model_construct(columns=columns)
    rules = Rules.of(schema, grid.frac_bits)
    reading = _Reading(table, rules, Contract(grid), Tally(table.label, schema, rules))
    return reading.records(chunk_rows, memory_limit, cache_dir)


def read_floats(
    source: Any, names: Sequence[str] | None = None, schema: Schema | None = None
) -> Floats:
    """Return every cell of a source as a number, without clipping and without excluding rows.

    Parameters
    ----------
    source : array, table or path
    names : sequence of str, optional
        Columns to read, in this order; all of them by default.
    schema : Schema, optional
        A schema of exactly these columns, which defines their types.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64, data units
        NaN if a cell is no number; a category is its number, NaN if it is unknown. For local use:
        this is the data, not a release.
    """
    rules = Rules.of(schema) if schema else None
    if schema and (names is None or tuple(names) == schema.names):
        names = schema.headers  # the names of these columns in the file
    number = CellType()

    def read(raw: Raw) -> Floats:
        if rules:
            return matrix(rules.read(raw)[0])
        is_matrix = isinstance(raw.cells, np.ndarray)
        return matrix(
            raw.cells if is_matrix else [number.read(cells).values for cells in raw.cells]
        )

    return _all_rows(source, names, read, schema)


def read_rows(source: Any, schema: Schema) -> Floats:
    """Return every row of a source under the rules of a schema, without excluding rows.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64, data units
        Missing cells are filled, and no cell is clipped. NaN if the schema drops a record because
        of the cell. For local use: this is the data, not a release.
    """
    rules = Rules.of(schema)

    def read(raw: Raw) -> Floats:
        judged = rules.judge(raw)
        values = np.where(judged.flags & ABSENT, rules.cells.fill, judged.values)
        return np.where(judged.flags & OUTSIDE & rules.fatal, np.nan, values)

    return _all_rows(source, schema.headers, read, schema)


def _all_rows(
    source: Any,
    names: Sequence[str] | None,
    read: Callable[[Raw], Floats],
    schema: Schema | None,
) -> Floats:
    """Return every row, so that row n of the result belongs to row n of the source."""
    table = _open(source, names, schema)
    chunks = [np.empty((0, table.n_columns))]
    for raw in table.chunks(default_rows(table.n_columns)):
        # A line without a record would shift all results after it by one row.
        if raw.no_record is not None or (raw.bad_lines and is_path(source)):
            raise DataError(
                f"{table.label} has rows with too many fields or open quotes; correct or remove "
                "them, so that each result matches its row."
            )
        chunks.append(read(raw))
    return np.concatenate(chunks)


def read_words(path: str | os.PathLike[str], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of some columns of a file as texts, row by row; for local use."""
    for row in read_cells(path, names):
        yield tuple("" if cell is None else str(cell) for cell in row)


def read_cells(
    source: Any, names: Sequence[str], schema: Schema | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of some columns of a table or file, row by row; for local use.

    Cells of a text file are texts, also where all look like numbers. The schema defines how the
    file is written; it need not have these columns.
    """
    dialect = Dialect() if schema is None else dialect_of(schema)
    table = open_source(source, names, None, frozenset(names), dialect)
    for raw in table.chunks(default_rows(table.n_columns)):
        yield from zip(*(map(_cell, column) for column in raw.cells), strict=True)


def _cell(cell: Any) -> Any:
    cell = cell.as_py() if hasattr(cell, "as_py") else cell
    return cell.decode(errors="replace") if isinstance(cell, bytes) else cell


def header(source: Any, encoding: str = "") -> tuple[str, ...]:
    """Return only the column names of a source; those of an array are x0, x1, ...

    The encoding of a text table is detected unless `encoding` is given.
    """
    try:
        "".encode(encoding or "utf-8")
    except (LookupError, ValueError):
        raise DataError(
            f"encoding must be one that Python knows, such as 'cp1252', got {encoding!r}."
        ) from None
    if encoding and is_path(source):
        return open_source(source, None, None, dialect=Dialect(encoding=encoding)).names
    return _open(source, None, None).names


def declared_types(path: Path) -> dict[str, dict[str, str]]:
    """Return the column types that a Parquet file declares, as ``{name: {"type": ...}}``.

    The values are not read. The result of another file is empty.
    """
    if path.suffix.lower() not in PARQUET_SUFFIXES or not path.is_file():
        return {}
    import pyarrow.parquet as pq
    import pyarrow.types as types

    def kind(declared: Any) -> str:
        if types.is_boolean(declared):
            return "boolean"
        if types.is_date(declared) or types.is_timestamp(declared):
            return "date"
        if types.is_integer(declared):
            return "integer"
        is_number = types.is_floating(declared) or types.is_decimal(declared)
        return "number" if is_number else "category"

    with readable(f"file {str(path)!r}"):
        return {field.name: {"type": kind(field.type)} for field in pq.read_schema(path)}


def empty_table(names: Iterable[str]) -> Any:
    """Return a table with these columns and no row."""
    import pyarrow as pa

    return pa.table({name: pa.array([], pa.float64()) for name in names})


def column_kinds(source: Any) -> dict[str, str]:
    """Return the declared type of each column of a table; "" if the source declares none.

    No value is read, and no list of categories that a container keeps, since it may come from the
    records.
    """
    if is_path(source):
        known = declared_types(Path(source))
        return {name: known.get(name, {}).get("type", "") for name in header(source)}
    types: Iterable[tuple[Any, Any]]
    if hasattr(source, "collect_schema"):  # polars, also lazy
        types = source.collect_schema().items()
    elif not is_frame(source):
        raise DataError(
            f"a table with named columns is needed, got a {type(source).__name__}; give one frame "
            "or file, such as that of one silo."
        )
    elif hasattr(type(source), "column_names"):
        types = zip(source.schema.names, source.schema.types, strict=True)
    else:
        types = source.dtypes.items()
    return {str(name): kind_named(str(kind)) for name, kind in types}


def kind_named(kind: str) -> str:
    """Return the schema's type for the name of a container's type."""
    starts = {
        "boolean": ("bool",),
        "integer": ("int", "uint"),
        "number": ("float", "double", "halffloat", "decimal"),
        "date": ("date", "timestamp"),
    }
    name = kind.lower()
    return next((own for own, words in starts.items() if name.startswith(words)), "category")


def as_silos(data: Any) -> list[Any]:
    """Return one source per silo from a list of tables and paths, or from one silo's data.

    A list of numbers, or of rows of numbers, is one silo. A source that can be read only once, such
    as a lazy table, is read here.
    """
    # A sparse array of scipy is a mapping, too.
    if isinstance(data, Mapping) and not hasattr(data, "shape"):
        raise DataError(
            "X must be a table, a path, or a list of these with one for each silo, got a "
            f"{type(data).__name__}; give list(X.values()) for tables by name of their silo."
        )
    if not isinstance(data, list | tuple):
        return [settled(data)]
    if not data:
        raise DataError("data must have at least one silo, got an empty list.")
    silos = [settled(source) for source in data]
    tables = [
        is_path(source)
        or is_dataset(source)
        or isinstance(source, SqlQuery | Baskets | Labelled | Records)
        or len(getattr(source, "shape", ())) == 2
        for source in silos
    ]
    if any(tables) and not all(tables):
        raise DataError(
            f"every silo must be a table or a path, but element {tables.index(False)} of the list "
            f"is a {type(data[tables.index(False)]).__name__}."
        )
    return silos if all(tables) else [data]


@dataclass(frozen=True)
class _Reading:
    """A source whose columns were found, with the rules that encode its rows."""

    table: Table
    rules: Rules
    contract: Contract
    tally: Tally
    admits: Admits | None = None

    def records(
        self,
        chunk_rows: int | None,
        memory_limit: int,
        cache_dir: str | os.PathLike[str] | None,
    ) -> Records:
        """Encode the source once; keep the result, or only a digest of a large file."""
        table, n_features = self.table, self.contract.grid.n_features
        rows = default_rows(table.n_columns) if chunk_rows is None else chunk_rows
        if rows < 1:
            raise PlanError(f"chunk_rows must be at least 1, got {rows}.")
        limit, seal = UnitLimit(self.rules.max_rows, self.admits), _Seal(table.n_columns)
        first = self.encoded(rows, limit, seal, self.tally)
        if cache_dir is not None and table.is_file:
            file = GridCache(cache_dir, table.most_rows * n_features)
            stored = file.filled(first, n_features)
            starts = range(0, len(stored), rows)
            return self._as(limit, seal, lambda: (stored[i : i + rows] for i in starts))
        kept: list[Chunk] = []
        size, fits = 0, True
        for chunk in first:
            size += chunk.nbytes
            fits = not (table.is_file and size > memory_limit)
            kept.append(chunk)
            if not fits:
                kept.clear()
        if fits:
            chunks = tuple(kept)
            return self._as(limit, seal, lambda: iter(chunks), kept=True)
        expected = seal.digest()

        def read_again() -> Iterator[Chunk]:
            seal = _Seal(table.n_columns)
            yield from self.encoded(rows, UnitLimit(self.rules.max_rows, self.admits), seal)
            # The end of a pass is early enough, because its sum is not sent before.
            if seal.digest() != expected:
                raise DataError(
                    f"{table.label} changed while it was in use, but records must stay the same "
                    "during a job; start a new job, with a cache_dir if the rows have no fixed "
                    "order."
                )

        return self._as(limit, seal, read_again)

    def _as(
        self,
        limit: UnitLimit,
        seal: _Seal,
        passes: Callable[[], Iterator[Chunk]],
        *,
        kept: bool = False,
    ) -> Records:
        return Records(self.contract, passes, self.tally.report(limit), seal.digest(), kept)

    def encoded(
        self, rows: int, limit: UnitLimit, seal: _Seal, tally: Tally | None = None
    ) -> Iterator[Chunk]:
        """Yield the records of one pass, in non-empty chunks."""
        positions = np.flatnonzero(self.rules.used)
        every = bool(self.rules.used.all())
        tables = StepTables()
        for raw in self.table.chunks(rows):
            judged = self.rules.judge(raw, tables)
            # Before rows are excluded, so that the seal is the same for every choice of columns.
            seal.add(judged)
            counts_rows = tally is not None and self.rules.max_rows is not None
            marks = marks_of(judged.steps, judged.flags) if counts_rows else None
            keep = limit.keep(raw.units, judged.usable, marks)
            if tally:
                tally.add(raw, judged, keep)
            if keep.any():
                chunk = judged.steps if every else judged.steps[:, positions]
                chunk = np.ascontiguousarray(chunk if keep.all() else chunk[keep])
                chunk.flags.writeable = False  # a task must not change the records of later rounds
                yield chunk


FEW_ROWS = 1000  # of a chunk that needs no second thread


class _Seal:
    """A digest of all rows of a source on the grid, including those that no job uses.

    A second thread computes it, because it would slow the reading by a third. That of a few rows
    takes less time than a thread needs to start.
    """

    def __init__(self, n_columns: int) -> None:
        # Includes the width, because the same numbers in rows of another length differ.
        self._steps = hashlib.sha256(n_columns.to_bytes(8, "little"))
        self._marked = hashlib.sha256()
        self._rows = 0
        self._worker = ThreadPoolExecutor(1, "cloister-seal")
        self._waiting: deque[Future[None]] = deque()

    def add(self, judged: Judged) -> None:
        """Add the rows of a chunk."""
        if len(judged.steps) < FEW_ROWS and not self._waiting:
            self._update(judged.steps, judged.marked)
            return
        self._waiting.append(self._worker.submit(self._update, judged.steps, judged.marked))
        while len(self._waiting) > 2:  # otherwise chunks would accumulate in memory
            self._waiting.popleft().result()

    def _update(self, steps: Chunk, marked: Marked) -> None:
        self._steps.update(_bytes_of(steps))
        cells = np.empty(
            len(marked.rows), dtype=[("row", "<i8"), ("column", "<i4"), ("flag", "u1")]
        )
        cells["row"], cells["column"] = marked.rows + self._rows, marked.columns
        cells["flag"] = marked.flags
        self._marked.update(cells.tobytes())
        self._rows += len(steps)

    def digest(self) -> bytes:
        """Return 32 bytes without a key, which therefore stay in this process."""
        while self._waiting:
            self._waiting.popleft().result()
        self._worker.shutdown()
        return hashlib.sha256(self._steps.digest() + self._marked.digest()).digest()


def open_by_schema(source: Any, schema: Schema) -> Table:
    """Open a source and find the columns and the unit of a schema in it."""
    if isinstance(source, Baskets):
        return open_baskets(source, schema)
    try:
        return open_source(
            source,
            schema.headers,
            schema.unit_in_file,
            _texts(schema),
            dialect_of(schema),
        )
    except DataError as error:
        if not (is_path(source) and is_catalogue(schema)):
            raise
        reason = str(error)
    # Baskets are never guessed, because the first line of a table is a header.
    raise DataError(
        f"{reason[:-1]}; if the file has baskets, declare them with Baskets(path), "
        "--baskets lines or --baskets long:BASKET,ITEM."
    )


def _texts(schema: Schema) -> frozenset[str]:
    words = ("category", "boolean", "date")
    columns = zip(schema.columns, schema.headers, strict=True)
    return frozenset(header for column, header in columns if column.type in words)


def _open(source: Any, names: Sequence[str] | None, schema: Schema | None) -> Table:
    """Open a source and find the given columns, or all."""
    if not isinstance(source, Baskets):
        if schema is None:
            return open_source(source, names, None)
        return open_source(source, names, None, _texts(schema), dialect_of(schema))
    if names is None:
        raise DataError("baskets have no column names; give a schema of their items.")
    return source.table(names)


def default_rows(n_columns: int) -> int:
    """Return the default number of rows in a chunk."""
    return min(max(_CHUNK_CELLS // max(n_columns, 1), 1024), 65536)


def _bytes_of(chunk: Chunk) -> memoryview:
    # In one byte order, so that a fingerprint is the same on every machine.
    return chunk.astype("<i4", copy=False).reshape(-1).data
