"""From the rows of a source to the records of one silo on the grid."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Flags, Floats, Integers
from cloister.compiled import can_order, ordered
from cloister.data.baskets import Baskets, is_catalogue, open_baskets
from cloister.data.cache import GridCache
from cloister.data.cells import (
    Words,
    array_of,
    as_codes,
    as_numbers,
    as_years,
    decoded,
    one_unit,
    unit_name,
)
from cloister.data.dialect import PLAIN, Dialect
from cloister.data.encoding import (
    ABSENT,
    OUTSIDE,
    WRONG,
    CellFlags,
    CellRules,
    Columns,
    encode_columns,
)
from cloister.data.few_rows import Tally
from cloister.data.sources import (
    PARQUET_SUFFIXES,
    Raw,
    SqlQuery,
    Table,
    is_dataset,
    is_path,
    open_source,
)
from cloister.errors import DataError, PlanError
from cloister.hazmat.fixedpoint import Contract

if TYPE_CHECKING:
    from cloister.hazmat.fixedpoint import Grid
    from cloister.schema import Schema

Chunk = NDArray[np.int32]  # (up to chunk_rows, n_features), grid steps

MEMORY_LIMIT = 1 << 30  # bytes of grid records of one file that are kept; beyond, it is read again
LOCAL_NOTE = "local only: exact counts of the records, not a release"
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
    doubt: str | None = None
    """Why few rows of the source can be used, for its owner alone; None if most can."""
    _whole: Self | None = None  # where these are some columns of it, or have another order
    _kept: bool = False  # in memory, for every pass

    def __iter__(self) -> Iterator[Chunk]:
        return self._passes()

    def __repr__(self) -> str:
        return f"Records(n_features={self.n_features})"

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.contract.grid.n_features

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

        return replace(self, _passes=lambda: iter(tables()), _whole=self._whole or self)

    def fingerprint(self, key: bytes) -> bytes:
        """Return 32 bytes that only the same records and the same key give, however chunked.

        Parameters
        ----------
        key : bytes, 16 to 64, secret of the owner
            Without it, the fingerprint says nothing about the records.

        Notes
        -----
        Keyed BLAKE2b over the grid integers, so other bounds give another fingerprint. One pass.
        Records of some columns have that of all columns, so that data are recognised in every job.
        """
        if not 16 <= len(key) <= 64:
            raise PlanError(f"key must have 16 to 64 bytes, got {len(key)}; use new_key().")
        whole = self._whole or self
        # With the width: the same numbers in rows of another length are other records.
        digest = hashlib.blake2b(
            whole.n_features.to_bytes(8, "little"), key=key, digest_size=32, person=b"records"
        )
        for chunk in whole:
            digest.update(_bytes_of(chunk))
        return digest.digest()


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
    source : array, table, path, SqlQuery, Baskets or Records
        See the module. A table or file is matched by column name, other columns are left unread;
        an array must have the schema's columns in the schema's order. Records that were read by
        this contract are returned as they are.
        A line of a text table with a wrong number of fields is dropped. A cell of a category is
        that category's text, blanks around do not count; an unknown one is missing.
    columns : iterable of str, optional
        Those that a job uses, in the schema's order; all by default. The rules of the whole schema
        say which records count.
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
    With a unit column, the first ``max_rows`` usable records of each unit in file order are kept; a
    record without a unit is dropped. Whether one is kept depends on records of its own unit alone,
    so a unit changes at most ``max_rows`` records.
    """
    part = schema.contract(frac_bits, columns)  # refuses unknown columns before a file is read
    if isinstance(source, Records):
        part.check(source)
        return source
    rules, whole = Rules.of_schema(schema, frac_bits), schema.contract(frac_bits)
    table = open_by_schema(source, schema)
    tally = Tally(table.label, whole.columns, on_rows)
    records = _records(table, rules, whole, chunk_rows, memory_limit, cache_dir, tally)
    return records if part == whole else _part(records, part)


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
    contract = Contract(grid)
    rules, tally = Rules.of_grid(grid), Tally(table.label, contract.columns)
    return _records(table, rules, contract, chunk_rows, memory_limit, cache_dir, tally)


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
    rules = Rules.of_schema(schema) if schema else None

    def read(raw: Raw) -> Floats:
        if rules:
            return _matrix(rules.read(raw)[0])
        cells = raw.cells
        is_matrix = isinstance(cells, np.ndarray)
        return _matrix(cells if is_matrix else [as_numbers(part, False)[0] for part in cells])

    return _all_rows(source, names, read, schema)


def read_rows(source: Any, schema: Schema) -> Floats:
    """Return every row of a source as the rules of a schema have it, none left out.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64, data units
        Missing cells are filled, nothing is clipped. NaN where a cell is the reason why the schema
        drops its record. For local use: this is the data, not a release.
    """
    rules = Rules.of_schema(schema)

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
        if raw.bad_lines and is_path(source):
            raise DataError(
                f"{table.label} has lines with a wrong number of fields; mend or remove them, so "
                "that rows can be counted."
            )
        parts.append(read(raw))
    return np.concatenate(parts)


def read_words(path: str | os.PathLike[str], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of some columns of a file as words, row by row; for local use."""
    table = open_source(path, names, None, frozenset(names))
    for raw in table.chunks(default_rows(table.n_columns)):
        columns = (part.tolist() if isinstance(part, np.ndarray) else part for part in raw.cells)
        yield from zip(*(map(_word, column) for column in columns), strict=True)


def _word(cell: Any) -> str:
    cell = cell.as_py() if hasattr(cell, "as_py") else cell
    text = cell.decode(errors="replace") if isinstance(cell, bytes) else cell
    return "" if text is None else str(text)


def header(source: Any) -> tuple[str, ...]:
    """Return the column names of a source and nothing else; arrays have x0, x1, ..."""
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

    A list of numbers, or of rows of numbers, is one silo.
    """
    if not isinstance(data, list | tuple):
        return [data]
    if not data:
        raise DataError("data must hold at least one silo, got an empty list.")
    tables = [
        is_path(part)
        or is_dataset(part)
        or isinstance(part, SqlQuery | Baskets | Records)
        or len(getattr(part, "shape", ())) == 2
        for part in data
    ]
    if any(tables) and not all(tables):
        raise DataError(
            f"every silo must be a table or a path, but element {tables.index(False)} of the list "
            f"is a {type(data[tables.index(False)]).__name__}."
        )
    return list(data) if all(tables) else [data]


@dataclass(frozen=True)
class _Judged:
    """Rows after the schema's rules, none left out."""

    cells: Columns
    steps: Chunk
    flags: CellFlags
    usable: Flags  # (rows,)

    @property
    def values(self) -> Floats:
        """The cells as numbers, not yet filled or clipped."""
        return _matrix(self.cells)


def _matrix(cells: Columns) -> Floats:
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64)
    return np.stack(cells, axis=1, dtype=np.float64)


@dataclass(frozen=True)
class Rules:
    """A schema as arrays, one entry per column."""

    cells: CellRules
    fatal: CellFlags  # the flags of a cell that drop its record
    words: tuple[Words, ...]  # of the categories of each column, empty for numbers
    dates: tuple[str | None, ...]  # how each column writes its dates, None if it has none
    dialect: Dialect = PLAIN
    max_rows: int | None = None

    @classmethod
    def of_schema(cls, schema: Schema, frac_bits: int = 16) -> Self:
        """Return the rules of a schema."""
        columns = schema.columns
        cells = CellRules(
            grid=schema.grid(frac_bits),
            fill=np.array([column.fill_value for column in columns]),
            integer=np.array([column.type not in ("number", "date") for column in columns]),
            boolean=np.array([column.type == "boolean" for column in columns]),
        )
        drop_outside = np.array([column.out_of_range == "drop" for column in columns])
        return cls(
            cells=cells,
            fatal=np.isnan(cells.fill) * ABSENT | drop_outside * OUTSIDE,
            words=tuple(column.words for column in columns),
            dates=tuple(column.format if column.type == "date" else None for column in columns),
            dialect=_dialect(schema),
            max_rows=schema.max_rows,
        )

    @classmethod
    def of_grid(cls, grid: Grid) -> Self:
        """Return the rules of plain bounds: clip, and drop a record with a missing value."""
        d = grid.n_features
        no = np.zeros(d, dtype=bool)
        cells = CellRules(grid=grid, fill=np.full(d, np.nan), integer=no, boolean=no)
        return cls(cells=cells, fatal=np.full(d, ABSENT), words=((),) * d, dates=(None,) * d)

    def read(self, raw: Raw) -> tuple[Columns, Flags | None]:
        """Return cells as numbers, NaN where there is none, and which texts are of a wrong type."""
        if isinstance(raw.cells, np.ndarray):
            if not any(self.words):
                return raw.cells, None
            raw = replace(raw, cells=list(raw.cells.T))
        pairs = [
            as_codes(cells, words)
            if words
            else as_numbers(cells, bool(boolean), self.dialect)
            if form is None
            else as_years(cells, form)
            for cells, boolean, words, form in zip(
                raw.cells, self.cells.boolean, self.words, self.dates, strict=True
            )
        ]
        columns = [numbers for numbers, _ in pairs]
        if all(wrong is None for _, wrong in pairs):
            return columns, None
        right = np.zeros(len(columns[0]), dtype=bool)
        return columns, np.stack([right if w is None else w for _, w in pairs], axis=1)

    def judge(self, raw: Raw) -> _Judged:
        """Apply the rules for missing cells, types and range, each record by itself."""
        cells, wrong = self.read(raw)
        steps, flags = encode_columns(cells, self.cells)
        if wrong is not None:
            flags |= wrong * WRONG
        usable: Flags = np.ones(len(steps), dtype=bool)
        if np.bitwise_or.reduce(flags, axis=None) & np.bitwise_or.reduce(self.fatal):
            by_column = (flags & self.fatal).T.copy()  # several times as fast as along the rows
            usable = np.logical_not(by_column.any(axis=0))
        return _Judged(cells, steps, flags, usable)

    def encode(self, raws: Iterable[Raw], tally: Tally | None = None) -> Iterator[Chunk]:
        """Turn the raw chunks of one pass into chunks of the grid, none of them empty."""
        limit = UnitLimit(self.max_rows)
        for raw in raws:
            judged = self.judge(raw)
            before = limit.without_unit
            keep = limit.keep(raw.units, judged.usable)
            if tally:
                unnamed = limit.without_unit - before
                tally.add(raw, judged.flags, int(judged.usable.sum()) - unnamed)
            if keep.any():
                chunk = judged.steps if keep.all() else judged.steps[keep]
                chunk.flags.writeable = False
                yield chunk


class UnitLimit:
    """Keep the first `max_rows` usable records of each unit, through all chunks of one pass.

    Parameters
    ----------
    max_rows : int or None
    known_as : function of str
        Names for which it returns the same are one unit.
    """

    def __init__(self, max_rows: int | None, known_as: Callable[[str], str] = one_unit) -> None:
        self._max_rows = max_rows
        self._known_as = known_as
        self._seen: dict[str, int] = {}
        self.without_unit = self.beyond = 0

    def keep(self, units: Any, usable: Flags) -> Flags:
        """Return which rows of the next chunk stay; `units` is an Arrow array or None."""
        if self._max_rows is None or not len(usable):
            return usable
        encoded = decoded(units).dictionary_encode()
        written = (unit_name(value) for value in encoded.dictionary.to_pylist())
        names = [self._known_as(name) if name else None for name in written]
        number = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        # two spellings of one unit share a number; -1 stands for no unit
        numbers = np.array([number.get(name or "", -1) for name in names] + [-1], dtype=np.int64)
        codes = numbers[array_of(encoded.indices, absent=-1)]
        self.without_unit += int((usable & (codes < 0)).sum())
        usable = usable & (codes >= 0)
        before = np.array([self._seen.get(name, 0) for name in number] + [0], dtype=np.int64)
        place = before[codes]
        place[usable] += _rank(codes[usable])
        keep: Flags = usable & (place < self._max_rows)
        self.beyond += int((usable & ~keep).sum())
        added = np.bincount(codes[keep], minlength=len(number))
        for name, i in number.items():
            if added[i]:
                self._seen[name] = int(before[i] + added[i])
        return keep


def _rank(codes: Integers) -> Integers:
    """Return how often each entry's value occurred before it."""
    order = np.argsort(codes, kind="stable")
    arranged = codes[order]
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(arranged, arranged)
    return rank


def _records(
    table: Table,
    rules: Rules,
    contract: Contract,
    chunk_rows: int | None,
    memory_limit: int,
    cache_dir: str | os.PathLike[str] | None,
    tally: Tally,
) -> Records:
    """Encode a source once; keep the result, or seal a file that is too large to keep."""
    rows = default_rows(table.n_columns) if chunk_rows is None else chunk_rows
    if rows < 1:
        raise PlanError(f"chunk_rows must be at least 1, got {rows}.")
    first = rules.encode(table.chunks(rows), tally)
    if cache_dir is not None and table.is_file:
        file = GridCache(cache_dir, table.most_rows * table.n_columns)
        stored = file.filled(first, table.n_columns)
        return Records(contract, lambda: _cut(stored, rows), tally.doubt())
    kept: list[Chunk] = []
    seal, size, fits = hashlib.sha256(), 0, True  # twice as fast as BLAKE2 where processors know it
    for chunk in first:
        kept.append(chunk)
        size += chunk.nbytes
        fits = fits and not (table.is_file and size > memory_limit)
        if not fits:  # what is kept needs no seal
            for part in kept:
                seal.update(_bytes_of(part))
            kept.clear()
    if fits:
        chunks = tuple(kept)
        return Records(contract, lambda: iter(chunks), tally.doubt(), _kept=True)
    expected = seal.digest()

    def read_again() -> Iterator[Chunk]:
        found = hashlib.sha256()
        for chunk in rules.encode(table.chunks(rows)):
            found.update(_bytes_of(chunk))
            yield chunk
        # At the end of a pass is soon enough: its sum has not left yet.
        if found.digest() != expected:
            raise DataError(
                f"{table.label} changed while it was in use; records are frozen when a job "
                "starts, so start a new job, with a cache_dir if rows come in no fixed order."
            )

    return Records(contract, read_again, tally.doubt())


def _cut(table: Chunk, rows: int) -> Iterator[Chunk]:
    return (table[start : start + rows] for start in range(0, len(table), rows))


def _part(records: Records, contract: Contract) -> Records:
    """Return records of which each pass gives some of the columns."""
    wanted = frozenset(contract.columns)
    positions = [i for i, name in enumerate(records.contract.columns) if name in wanted]

    def passes() -> Iterator[Chunk]:
        for chunk in records:
            part = np.ascontiguousarray(chunk[:, positions])
            part.flags.writeable = False
            yield part

    return Records(contract, passes, records.doubt, records, records._kept)


def open_by_schema(source: Any, schema: Schema) -> Table:
    """Find the columns of a schema, and its unit, in a source."""
    if isinstance(source, Baskets):
        return open_baskets(source, schema)
    try:
        return open_source(
            source, schema.names, schema.unit_column, _texts(schema), _dialect(schema)
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


def _dialect(schema: Schema) -> Dialect:
    return Dialect(schema.decimal, schema.thousands, schema.encoding)


def _open(source: Any, names: Sequence[str] | None, schema: Schema | None) -> Table:
    """Find columns in a source: those named, or all."""
    if not isinstance(source, Baskets):
        if schema is None:
            return open_source(source, names, None)
        return open_source(source, names, None, _texts(schema), _dialect(schema))
    if names is None:
        raise DataError("baskets have no columns of their own; give a schema of their items.")
    return source.table(names)


def default_rows(n_columns: int) -> int:
    """Return how many rows a chunk has where nobody says so."""
    return min(max(_CHUNK_CELLS // max(n_columns, 1), 1024), 65536)


def _bytes_of(chunk: Chunk) -> memoryview:
    # In one byte order, so that a fingerprint is the same on every machine.
    return chunk.astype("<i4", copy=False).reshape(-1).data
