"""From the rows of a source to the records of one silo on the grid: the one door for records.

What a cell becomes depends on the cell, the schema and public settings, and on nothing else in the
source. Adding or removing one privacy unit changes at most ``max_rows`` records and no other one;
`docs/proofs/reader.md` is the proof.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.compiled import can_order, ordered
from cloister.core.errors import DataError, PlanError
from cloister.data.baskets import Baskets, is_catalogue, open_baskets, proposed_layout
from cloister.data.cache import GridCache
from cloister.data.cells import CellType
from cloister.data.dialect import Dialect
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
    is_path,
    open_source,
    settled,
)
from cloister.data.units import UnitLimit
from cloister.hazmat.fixedpoint import Contract

if TYPE_CHECKING:
    from cloister.hazmat.fixedpoint import Grid

MEMORY_LIMIT = 1 << 30  # bytes of grid records of one file that are kept; beyond, it is read again
_CHUNK_CELLS = 1 << 19


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """The records of one silo on the grid; iterate over them as often as you like.

    Each pass gives the same int32 chunks of shape (rows, n_features), read-only, in file order, or
    a `DataError` if a file that is read again has changed. It does not say how many records there
    are: that is for a paid count.
    """

    contract: Contract
    """By what they were read; a job of another contract refuses them."""
    _passes: Callable[[], Iterator[Chunk]]
    report: ReadingReport
    """What reading found: exact counts, for the owner alone."""
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
        """The report, as a tuple of one: records of several partitions have several."""
        return (self.report,)

    @cached_property
    def in_order(self) -> Records:
        """The same records in an order that saves time; these where they cannot be ordered.

        Made by the first pass, and once. Only for who sees no time that is not to be seen: how long
        sums take then depends on where records lie.
        """
        if not (self._kept and can_order()):
            return self

        @cache
        def tables() -> tuple[Chunk, ...]:
            parts = list(self)
            return (ordered(parts),) if parts else ()

        return replace(self, _passes=lambda: iter(tables()))

    def fingerprint(self, key: bytes) -> bytes:
        """Return 32 bytes that only the same data and the same key give, however chunked.

        Parameters
        ----------
        key : bytes, 16 to 64, secret of the owner
            Without it, the fingerprint says nothing about the records.

        Notes
        -----
        Keyed BLAKE2b over a digest of the grid integers of all columns and rows, also of those that
        a job leaves out, so that data are recognised in every job. Other bounds give another one.
        """
        if not 16 <= len(key) <= 64:
            raise PlanError(f"key must have 16 to 64 bytes, got {len(key)}; use new_key().")
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
) -> Records:
    """Read the records of one silo by the rules of a schema.

    Parameters
    ----------
    source : array, table, path, SqlQuery, Labelled, Baskets or Records
        See :mod:`cloister.data`. A table or file is matched by column name, other columns are left
        unread; an array or a list of rows has the schema's columns in the schema's order. Records
        that were read by this contract are returned as they are. What a cell means is the table of
        :mod:`cloister.data.cells`.
    columns : iterable of str, optional
        Those that a job uses, in the schema's order; all by default. A record is left out only for
        a bad cell in one of them.
    frac_bits : int
        The lattice has step ``2**-frac_bits``.
    chunk_rows : int, optional
        Largest number of records in a chunk; by default about half a million cells.
    memory_limit : int, bytes
        A file whose records take more than this on the grid is read again at every pass.
    cache_dir : path, optional
        A folder for the grid records of a file or query, whatever `memory_limit`: it is read once,
        takes no memory to speak of, and later changes of it do not count. They lie there unsealed
        and unencrypted, in a file without a name that ends with the records or the process; give a
        folder on an encrypted disk or in memory (tmpfs).
    on_rows : function of int, optional
        Called with the number of rows read so far, now and then, while the source is first read.
        For the eyes of the owner: it is an exact count.

    Raises
    ------
    DataError
        If the source cannot be read or lacks a column, or `cache_dir` cannot hold the records.
        Never for what a record holds.

    Notes
    -----
    With a unit column, bad rows are left out first; then the first ``max_rows`` rows of each unit
    in file order are kept. A record without a unit is dropped. Whether one is kept depends on
    records of its own unit alone, so a unit changes at most ``max_rows`` records.
    """
    contract = schema.contract(frac_bits, columns)  # refuses unknown columns before a file is read
    if isinstance(source, Records):
        contract.check(source)
        return source
    rules = Rules.of(schema, frac_bits, contract.columns)
    table = open_by_schema(source, schema)
    layout = proposed_layout(source, schema.names)
    reading = _Reading(table, rules, contract, Tally(table.label, schema, rules, on_rows, layout))
    return reading.records(chunk_rows, memory_limit, cache_dir)


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
        All of its columns are used, in their order; each must hold numbers.
    grid : Grid
        The public bounds of each column.
    chunk_rows, memory_limit, cache_dir
        As in `read_source`.
    """
    table = _open(source, None, None)
    if table.n_columns != grid.n_features:
        raise DataError(
            f"{table.label} has {table.n_columns} columns, but the bounds describe "
            f"{grid.n_features}; give one pair of bounds per column."
        )
    # built without its checks: a grid may be wider than a schema that people write
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
    """Return every cell of a source as it is: no schema, no clipping, no row left out.

    Parameters
    ----------
    source : array, table or path
    names : sequence of str, optional
        Columns to read, in this order; all of them by default.
    schema : Schema, optional
        Of exactly these columns: says which hold categories.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64, data units
        NaN where a cell holds no number; a category is its number, NaN if it is unknown. For
        local use: this is the data, not a release.
    """
    rules = Rules.of(schema) if schema else None
    number = CellType()

    def read(raw: Raw) -> Floats:
        if rules:
            return matrix(rules.read(raw)[0])
        is_matrix = isinstance(raw.cells, np.ndarray)
        return matrix(raw.cells if is_matrix else [number.read(part).values for part in raw.cells])

    return _all_rows(source, names, read, schema)


def read_rows(source: Any, schema: Schema) -> Floats:
    """Return every row of a source as the rules of a schema have it, none left out.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64, data units
        Missing cells are filled, nothing is clipped. NaN where a cell is the reason why the schema
        drops its record. For local use: this is the data, not a release.
    """
    rules = Rules.of(schema)

    def read(raw: Raw) -> Floats:
        judged = rules.judge(raw)
        values = np.where(judged.flags & ABSENT, rules.cells.fill, judged.values)
        return np.where(judged.flags & OUTSIDE & rules.fatal, np.nan, values)

    return _all_rows(source, schema.names, read, schema)


def _all_rows(
    source: Any,
    names: Sequence[str] | None,
    read: Callable[[Raw], Floats],
    schema: Schema | None,
) -> Floats:
    """Return every row: what is said of the n-th must be of the n-th line of a file."""
    table = _open(source, names, schema)
    parts = [np.empty((0, table.n_columns))]
    for raw in table.chunks(default_rows(table.n_columns)):
        if raw.no_record is not None or (raw.bad_lines and is_path(source)):
            raise DataError(
                f"{table.label} has rows with too many fields or open quotes; mend or remove them, "
                "so that rows can be counted."
            )
        parts.append(read(raw))
    return np.concatenate(parts)


def read_words(path: str | os.PathLike[str], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of some columns of a file as words, row by row; for local use."""
    table = open_source(path, names, None, frozenset(names))
    for raw in table.chunks(default_rows(table.n_columns)):
        yield from zip(*(map(_word, column) for column in raw.cells), strict=True)


def _word(cell: Any) -> str:
    cell = cell.as_py() if hasattr(cell, "as_py") else cell
    text = cell.decode(errors="replace") if isinstance(cell, bytes) else cell
    return "" if text is None else str(text)


def header(source: Any, encoding: str = "") -> tuple[str, ...]:
    """Return the column names of a source and nothing else; arrays have x0, x1, ...

    A text table is read in an `encoding` if one is given, and else found out.
    """
    try:
        "".encode(encoding or "utf-8")
    except LookupError:
        raise DataError(f"encoding must be one that Python knows, got {encoding!r}.") from None
    if encoding and is_path(source):
        return open_source(source, None, None, dialect=Dialect(encoding=encoding)).names
    return _open(source, None, None).names


def declared_types(path: Path) -> dict[str, dict[str, str]]:
    """Return what a Parquet file declares of its columns, as ``{name: {"type": ...}}``.

    Its values are not read; other files declare nothing.
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

    return {field.name: {"type": kind(field.type)} for field in pq.read_schema(path)}


def as_silos(data: Any) -> list[Any]:
    """Return one source per silo, of a list of tables and paths or of one silo's data.

    A list of numbers, or of rows of numbers, is one silo. What can be read only once, such as a
    lazy table, is read here.
    """
    if not isinstance(data, list | tuple):
        return [settled(data)]
    if not data:
        raise DataError("data must hold at least one silo, got an empty list.")
    silos = [settled(part) for part in data]
    tables = [
        is_path(part)
        or is_dataset(part)
        or isinstance(part, SqlQuery | Baskets | Labelled | Records)
        or len(getattr(part, "shape", ())) == 2
        for part in silos
    ]
    if any(tables) and not all(tables):
        raise DataError(
            f"every silo must be a table or a path, but element {tables.index(False)} of the list "
            f"is a {type(data[tables.index(False)]).__name__}."
        )
    return silos if all(tables) else [data]


@dataclass(frozen=True)
class _Reading:
    """A source whose columns were found, with the rules by which its rows become records."""

    table: Table
    rules: Rules
    contract: Contract
    tally: Tally

    def records(
        self,
        chunk_rows: int | None,
        memory_limit: int,
        cache_dir: str | os.PathLike[str] | None,
    ) -> Records:
        """Encode the source once; keep the result, or remember how a large file looked."""
        table, n_features = self.table, self.contract.grid.n_features
        rows = default_rows(table.n_columns) if chunk_rows is None else chunk_rows
        if rows < 1:
            raise PlanError(f"chunk_rows must be at least 1, got {rows}.")
        limit, seal = UnitLimit(self.rules.max_rows), _Seal(table.n_columns)
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
            found = _Seal(table.n_columns)
            yield from self.encoded(rows, UnitLimit(self.rules.max_rows), found)
            # At the end of a pass is soon enough: its sum has not left yet.
            if found.digest() != expected:
                raise DataError(
                    f"{table.label} changed while it was in use; records are frozen when a job "
                    "starts, so start a new job, with a cache_dir if rows come in no fixed order."
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
        """Yield the records of one pass, in chunks that are not empty."""
        positions = np.flatnonzero(self.rules.used)
        every = bool(self.rules.used.all())
        tables = StepTables()
        for raw in self.table.chunks(rows):
            judged = self.rules.judge(raw, tables)
            seal.add(judged)
            keep = limit.keep(raw.units, judged.usable)
            if tally:
                tally.add(raw, judged, keep)
            if keep.any():
                chunk = judged.steps if every else judged.steps[:, positions]
                chunk = np.ascontiguousarray(chunk if keep.all() else chunk[keep])
                chunk.flags.writeable = False
                yield chunk


class _Seal:
    """A digest of all rows of a source on the grid, also of those that no job uses.

    It is worked out beside the reading, which it would slow by a third.
    """

    def __init__(self, n_columns: int) -> None:
        # With the width: the same numbers in rows of another length are other records.
        self._steps = hashlib.sha256(n_columns.to_bytes(8, "little"))
        self._marked = hashlib.sha256()
        self._rows = 0
        self._worker = ThreadPoolExecutor(1, "cloister-seal")
        self._waiting: deque[Future[None]] = deque()

    def add(self, judged: Judged) -> None:
        """Add the rows of a chunk."""
        self._waiting.append(self._worker.submit(self._update, judged.steps, judged.marked))
        while len(self._waiting) > 2:  # or chunks would wait in memory
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
        """Return 32 bytes; unkeyed, so they stay in this process."""
        while self._waiting:
            self._waiting.popleft().result()
        self._worker.shutdown()
        return hashlib.sha256(self._steps.digest() + self._marked.digest()).digest()


def open_by_schema(source: Any, schema: Schema) -> Table:
    """Find the columns of a schema, and its unit, in a source."""
    if isinstance(source, Baskets):
        return open_baskets(source, schema)
    try:
        return open_source(
            source, schema.names, schema.unit_column, _texts(schema), dialect_of(schema)
        )
    except DataError as error:
        if not (is_path(source) and is_catalogue(schema)):
            raise
        reason = str(error)
    raise DataError(  # baskets are never guessed: their first line would be a header
        f"{reason[:-1]}; a file of baskets is read as such where that is said, with "
        "Baskets(path), --baskets lines or --baskets long:BASKET,ITEM."
    )


def _texts(schema: Schema) -> frozenset[str]:
    words = ("category", "boolean", "date")
    return frozenset(column.name for column in schema.columns if column.type in words)


def _open(source: Any, names: Sequence[str] | None, schema: Schema | None) -> Table:
    """Find columns in a source: those named, or all."""
    if not isinstance(source, Baskets):
        if schema is None:
            return open_source(source, names, None)
        return open_source(source, names, None, _texts(schema), dialect_of(schema))
    if names is None:
        raise DataError("baskets have no columns of their own; give a schema of their items.")
    return source.table(names)


def default_rows(n_columns: int) -> int:
    """Return how many rows a chunk has where nobody says so."""
    return min(max(_CHUNK_CELLS // max(n_columns, 1), 1024), 65536)


def _bytes_of(chunk: Chunk) -> memoryview:
    # In one byte order, so that a fingerprint is the same on every machine.
    return chunk.astype("<i4", copy=False).reshape(-1).data
