"""Sources of tables: their columns are first found by name, then their rows are read in chunks.

A source passes on cells as it stores them. Only `cloister.data.cells` gives them a meaning, so no
source uses the type of a whole column to interpret a cell.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags
from cloister.core.errors import AbsentColumns, DataError
from cloister.core.numerals import counted
from cloister.data.cells import Coded
from cloister.data.dialect import PLAIN, Dialect
from cloister.data.text import TextTable, read_header, readable
from cloister.data.units import as_text

PARQUET_SUFFIXES = (".parquet", ".pq")
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
# By default Arrow reads the whole file ahead into memory.
_IN_PARTS: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class SqlQuery:
    """The rows of a database query; a source like a file with the same rows.

    Parameters
    ----------
    url : str
        A SQLAlchemy URL; it may contain a password and is never displayed.
    query : str
        A SELECT with the schema's columns, in the SQL of the database's driver. With a unit column,
        use ORDER BY, so that the first ``max_rows`` rows of a unit are always the same.

    Notes
    -----
    The rows are fetched in chunks. The transaction is never committed, so the query cannot change
    the database.
    """

    url: str = field(repr=False)
    query: str = field(repr=False)


@dataclass(frozen=True)
class Labelled:
    """A table in memory with one more column, for example its labels.

    Parameters
    ----------
    table : array, frame or list of rows
    name : str
        Name of the additional column.
    cells : array_like of shape (n_rows,)
    """

    table: Any = field(repr=False)
    name: str
    cells: Any = field(repr=False)

    @cached_property
    def column(self) -> Any:
        """The cells in a form that can be sliced."""
        return _column_cells(self.cells)


@dataclass(frozen=True)
class Raw:
    """Some rows of a source: one matrix of numbers, or the cells of each column."""

    cells: NDArray[Any] | list[Any]
    units: Any = None  # cells of the unit column, if the schema has one
    bad_lines: int = 0
    items: int = 0  # of baskets
    unknown_items: int = 0  # of these, outside the catalogue
    no_record: Flags | None = None  # rows that only keep the positions of the others


@dataclass(frozen=True)
class Table:
    """A source whose columns were found; its rows can be read repeatedly."""

    label: str  # name of the source in messages
    names: tuple[str, ...]  # of the columns to be used
    chunks: Callable[[int], Iterator[Raw]]  # of the largest number of rows per chunk
    is_file: bool = False
    most_rows: int = 0  # upper bound, if the metadata of a file contain one

    @property
    def n_columns(self) -> int:
        """Number of features of each row."""
        return len(self.names)


def open_source(
    source: Any,
    names: Sequence[str] | None,
    unit: str | None,
    texts: frozenset[str] = frozenset(),
    dialect: Dialect = PLAIN,
) -> Table:
    """Open a source of any kind and find its columns; `names` None means all of them.

    The cells of columns in `texts` may be words. A text table keeps these unchanged, since "01" is
    a word as well as a number.
    """
    if isinstance(source, Labelled):
        return _open_labelled(source, names, unit, texts, dialect)
    if is_path(source):
        return _open_path(Path(source), names, unit, texts, dialect)
    if isinstance(source, SqlQuery):
        return _open_query(source, names, unit)
    if _is_pandas(source):
        return _open_pandas(source, names, unit)
    if is_dataset(source):  # before in_memory, which would load all of it
        return _open_dataset(source, names, unit)
    source = in_memory(source)
    if hasattr(type(source), "column_names"):
        return _open_arrow(source, names, unit)
    return _open_array(source, names, unit)


def is_path(source: Any) -> bool:
    """Return True if a source is the path of a file instead of a table."""
    return isinstance(source, str | os.PathLike)


def is_dataset(source: Any) -> bool:
    """Return True if a source is an Arrow dataset, which is read from its files in each pass."""
    return hasattr(source, "to_batches") and hasattr(source, "get_fragments")


def is_frame(source: Any) -> bool:
    """Return True if a source is a table in memory whose columns have names."""
    # The class, because objects of pandas and DuckDB also have their columns as attributes.
    kind = type(source)
    return hasattr(kind, "column_names") or (hasattr(kind, "columns") and hasattr(kind, "shape"))


def _is_pandas(source: Any) -> bool:
    return hasattr(type(source), "iloc") and hasattr(type(source), "columns")


def settled(source: Any) -> Any:
    """Return a lazy or one-pass table as a table of Arrow, and any other source unchanged."""
    import pyarrow as pa

    kind = type(source)
    is_lazy = hasattr(kind, "collect_schema") and hasattr(kind, "collect")
    if is_lazy or hasattr(kind, "fetchall") or isinstance(source, pa.RecordBatchReader):
        return in_memory(source)
    return source


def in_memory(source: Any) -> Any:
    """Return a table of polars, DuckDB or Arrow as a table of Arrow, others unchanged."""
    import pyarrow as pa

    kind = type(source)
    if hasattr(kind, "collect") and hasattr(kind, "collect_schema"):  # a lazy frame of polars
        source = source.collect()
        kind = type(source)
    # polars infers 128-bit integers, a type that Arrow does not support.
    if wide := [name for name, kind in _types_of(source) if kind in ("Int128", "UInt128")]:
        source = source.cast(dict.fromkeys(wide, str))
    if isinstance(source, pa.Table) or _is_pandas(source):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if hasattr(kind, "__arrow_c_stream__") and hasattr(kind, "columns"):
        return pa.RecordBatchReader.from_stream(source).read_all()
    if isinstance(source, pa.RecordBatchReader):
        return source.read_all()
    return source


def _types_of(source: Any) -> list[tuple[str, str]]:
    """Return the columns of a frame of polars and their types; none for other sources."""
    is_polars = type(source).__module__.startswith("polars.") and hasattr(source, "schema")
    return [(name, str(kind)) for name, kind in source.schema.items()] if is_polars else []


def find_columns(
    label: str, found: Sequence[Any], names: Sequence[str] | None, unit: str | None
) -> tuple[list[int], tuple[str, ...]]:
    """Return the positions of the needed columns (the unit last) and the names of the features.

    Names match without surrounding blanks and in any Unicode composition of their letters.
    """
    available = [_composed(str(name).strip()) for name in found]
    names = tuple(available if names is None else names)
    needed = (*names, unit) if unit is not None else names
    wanted = [_composed(name) for name in needed]
    times = Counter(available)  # a damaged header may have 10^5 names
    if absent := [name for name in wanted if not times[name]]:
        listed = ", ".join(repr(name) for name in absent[:5]) + (", ..." if absent[5:] else "")
        found = similar_columns(absent, available)
        has = f" (it has {', '.join(repr(name) for name in found[:5])})" if found else ""
        of_unit = unit is not None and absent == [_composed(unit)]
        key, place = ("unit_header", "") if of_unit else ("header", " of the column")
        setting = (
            f"{key} = {json.dumps(found[0], ensure_ascii=False, allow_nan=False)}"
            if found
            else f"'{key}'"
        )
        # A frame of fewer columns is usual in Python, and no header needs correction then.
        others = len(needed) > len(absent) and not of_unit
        part = " For the other columns alone, use schema.select([...]) or --columns." * others
        raise AbsentColumns(
            f"{label} has no column {listed}{has}; correct the header (of a text, its first "
            f"line), the delimiter or the schema, or set {setting}{place} in the schema or "
            f"the reading settings.{part}"
        )
    if repeated := [name for name in wanted if times[name] > 1]:
        raise DataError(f"{label} has more than one column {repeated[0]!r}; rename all but one.")
    places = {name: i for i, name in enumerate(available)}
    return [places[name] for name in wanted], names


_UNIT_AT_END = re.compile(r"(\([^()]*\)|\[[^][]*\])\s*$")


def similar_columns(absent: Iterable[str], available: Iterable[str]) -> list[str]:
    """Return the columns that differ from absent ones only by case, accents, spaces and signs.

    A unit in brackets at the end of an available name is ignored, too.
    """
    letters = {_letters(name) for name in absent} - {""}
    return [
        name
        for name in available
        # Not of absent names: kilograms must not be taken for pounds.
        if letters & {_letters(name), _letters(_UNIT_AT_END.sub("", name))}
    ]


def _letters(name: str) -> str:
    """Return the letters and digits of a name, without case and accents."""
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    return "".join(c for c in apart if unicodedata.category(c)[0] in "LN")


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


# Tables in memory ---------------------------------------------------------------------------------


def _open_array(source: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    """Open an array or a list of rows, whose columns are in the schema's order."""
    label = "the array"
    if hasattr(source, "toarray"):
        raise DataError("sparse data are not supported; give a dense table.")
    if unit is not None:
        raise DataError(
            f"an array has no column names, so it has no unit column {unit!r}; give a table or a "
            "file."
        )
    if isinstance(source, list | tuple) and (any(map(_is_row, source)) or (names and not source)):
        return _open_rows(source, names)
    X = np.asanyarray(source)
    if X.ndim != 2:
        raise DataError(
            f"records must be a table with 2 dimensions (rows, columns), got {X.ndim}. Reshape "
            "your data."
        )
    if X.dtype.kind not in "biufOUSM":
        raise DataError(
            f"records must be real numbers, got the data type {X.dtype}; convert the array."
        )
    names = _names_of(label, X.shape[1], names)

    def chunks(rows: int) -> Iterator[Raw]:
        for start in range(0, len(X), rows):
            block = X[start : start + rows]
            is_masked = isinstance(block, np.ma.MaskedArray)
            if X.dtype.kind in "OUSM" or (is_masked and X.dtype.kind == "b"):
                yield Raw([_listed(column) for column in block.T])
            elif is_masked:
                yield Raw(np.ma.filled(block.astype(np.float64), np.nan))
            else:
                yield Raw(np.asarray(block))

    return Table(label, names, chunks)


def _listed(column: Any) -> Any:
    """Return a NumPy column in a form in which each cell keeps its kind."""
    if column.dtype.kind != "M":
        return column.tolist()
    # tolist() would turn moments of nanoseconds into numbers.
    return column.filled(np.datetime64("NaT")) if isinstance(column, np.ma.MaskedArray) else column


def _is_row(row: Any) -> bool:
    if isinstance(row, list | tuple) or not hasattr(type(row), "ndim"):
        return isinstance(row, list | tuple)
    return not isinstance(row, memoryview) and row.ndim == 1


def _names_of(label: str, n_columns: int, names: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(names or (f"x{j}" for j in range(n_columns)))
    if n_columns != len(names):
        raise DataError(
            f"{label} has {counted(n_columns, 'column')}, but the schema has {len(names)}; give "
            "the schema's columns in its order."
        )
    return names


def _open_rows(source: Sequence[Any], names: Sequence[str] | None) -> Table:
    """Open a list of rows, each of which is read independently.

    NumPy would give all cells one type. A row that is too short has missing last cells. A row that
    is too long, or an element that is no row, is no record.
    """
    label = "the list of rows"
    if names is None:  # the most frequent number of cells
        widths = Counter(map(_width, source)).most_common()
        names = _names_of(label, widths[0][0], None)
    names = tuple(names)

    def chunks(rows: int) -> Iterator[Raw]:
        for start in range(0, len(source), rows):
            block = source[start : start + rows]
            bad = np.array([not 0 <= _width(row) <= len(names) for row in block], dtype=np.bool_)
            filled = [
                [None] * len(names)
                if is_bad
                else [*_cells_of(row), *[None] * (len(names) - _width(row))]
                for row, is_bad in zip(block, bad.tolist(), strict=True)
            ]
            columns = [list(column) for column in zip(*filled, strict=True)]
            yield Raw(columns, no_record=bad if bad.any() else None)

    return Table(label, names, chunks)


def _width(row: Any) -> int:
    return len(row) if _is_row(row) else -1


def _cells_of(row: Any) -> list[Any]:
    return row.tolist() if isinstance(row, np.ndarray) and row.dtype.kind != "M" else list(row)


def _open_pandas(frame: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    label = "the table"
    positions, names = find_columns(label, list(frame.columns), names, unit)

    def chunks(rows: int) -> Iterator[Raw]:
        columns = [frame.iloc[:, position] for position in positions]
        for start in range(0, len(frame), rows):
            cells = [_pandas_cells(column.iloc[start : start + rows]) for column in columns]
            yield Raw(cells, cells.pop() if unit is not None else None)

    return Table(label, names, chunks)


def _pandas_cells(column: Any) -> Any:
    """Return the cells of a pandas column unchanged, as objects unless their type is explicit."""
    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "biufM":
        return column.to_numpy()
    if hasattr(kind, "tz"):  # the day of a moment is that of its own clock
        return _own_clock(column)
    if hasattr(kind, "categories") and hasattr(column, "cat"):
        places = column.cat.codes.to_numpy().astype(np.int64)
        return Coded(kind.categories.tolist(), places)
    if hasattr(kind, "pyarrow_dtype"):
        cells = column.array.__arrow_array__()
        return cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells
    if getattr(kind, "kind", "") == "f":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return column.tolist()


def _own_clock(column: Any) -> Any:
    """Return the moments of a pandas column by the clock of its zone."""
    try:
        return column.dt.tz_localize(None).to_numpy()
    except (ValueError, OverflowError):  # the local time of one cell exceeds the range of its type
        if len(column) > 1:
            return [cell for i in range(len(column)) for cell in _own_clock(column.iloc[i : i + 1])]
        return column.dt.as_unit("s").dt.tz_localize(None).to_numpy()


def _open_arrow(table: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    label = "the table"
    positions, names = find_columns(label, table.column_names, names, unit)

    def chunks(rows: int) -> Iterator[Raw]:
        return _slices(table.select(positions).to_batches(max_chunksize=rows), rows, unit)

    return Table(label, names, chunks)


def _open_dataset(dataset: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    from pyarrow.dataset import ParquetFileFormat, ParquetFragmentScanOptions

    label, schema = "the Arrow dataset", dataset.schema
    positions, names = find_columns(label, schema.names, names, unit)
    columns = [schema.names[position] for position in positions]
    # With threads, Arrow reads ahead of a slow consumer without bound.
    options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
    if isinstance(getattr(dataset, "format", None), ParquetFileFormat):
        options["fragment_scan_options"] = ParquetFragmentScanOptions(
            use_buffered_stream=True, **_IN_PARTS
        )

    def chunks(rows: int) -> Iterator[Raw]:
        with readable(label):
            for part in _parts(dataset):
                # The fragments of a dataset need not all have its columns.
                which = {} if part is dataset else {"schema": schema}
                batches = part.to_batches(columns=columns, batch_size=rows, **which, **options)
                yield from _slices(batches, rows, unit)

    return Table(label, names, chunks, is_file=True)


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the fragments of a dataset in order, those of Parquet one row group at a time.

    A scan of several row groups reads ahead, on a busy machine by megabytes.
    """
    try:
        fragments = dataset.get_fragments()
    except ValueError:  # Arrow does not list the fragments of a dataset with a filter
        yield dataset
        return
    for fragment in fragments:
        yield from fragment.split_by_row_group() if hasattr(fragment, "row_groups") else [fragment]


def _open_labelled(
    source: Labelled,
    names: Sequence[str] | None,
    unit: str | None,
    texts: frozenset[str],
    dialect: Dialect,
) -> Table:
    """Open a table in memory with one more column, at its end or at its position in `names`."""
    table_names = None if names is None else [name for name in names if name != source.name]
    table = open_source(source.table, table_names, unit, texts, dialect)
    if table.is_file:
        raise DataError(
            "labels in memory cannot be matched to the rows of a file; add them to the file as "
            f"column {source.name!r}."
        )
    names = (*table.names, source.name) if names is None else tuple(names)
    at, labels = names.index(source.name), source.column

    def chunks(rows: int) -> Iterator[Raw]:
        start = 0
        for raw in table.chunks(rows):
            cells = raw.cells
            columns = list(cells.T) if isinstance(cells, np.ndarray) else list(cells)
            stop = start + (len(columns[0]) if columns else len(labels))
            _check_lengths(source, stop, stop <= len(labels))
            columns.insert(at, _sliced(labels, start, stop))
            start = stop
            yield replace(raw, cells=columns)
        _check_lengths(source, start, start == len(labels))

    return Table(table.label, names, chunks)


def _check_lengths(source: Labelled, rows: int, is_right: bool) -> None:
    if not is_right:
        raise DataError(
            f"column {source.name!r} must have one cell for each row, got {len(source.column)} "
            f"cells for at least {rows} rows; give both of the same records."
        )


def _column_cells(cells: Any) -> Any:
    """Return one separate column of cells, in a form that can be sliced."""
    shape: tuple[int, ...] = tuple(getattr(cells, "shape", ()))
    if len(shape) > 1 and shape[1:] != (1,):
        raise DataError(f"labels must be a single column, got shape {shape}; select one column.")
    if hasattr(cells, "iloc"):
        return cells.iloc[:, 0] if hasattr(cells, "columns") else cells
    if hasattr(cells, "to_arrow"):  # polars
        cells = cells.to_arrow()
    if hasattr(cells, "combine_chunks"):
        cells = cells.combine_chunks()
    if hasattr(cells, "null_count"):
        return cells
    if isinstance(cells, list | tuple):
        return list(cells)
    column = np.asanyarray(cells)
    column = column[:, 0] if column.ndim == 2 else column
    return _listed(column) if isinstance(column, np.ma.MaskedArray) else column


def _sliced(cells: Any, start: int, stop: int) -> Any:
    if hasattr(cells, "iloc"):
        return _pandas_cells(cells.iloc[start:stop])
    return cells[start:stop]


def _slices(batches: Iterable[Any], rows: int, unit: str | None) -> Iterator[Raw]:
    """Yield Arrow batches, whose last column may be the unit, as slices of at most `rows` rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            columns = list(batch.slice(start, rows).columns)
            units = columns.pop() if unit is not None else None
            yield Raw(columns, units)


# Files --------------------------------------------------------------------------------------------


def is_table(path: Path) -> bool:
    """Return True if the suffix of a file is that of a supported table."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        return len(suffixes) > 1 and suffixes[-2] in _TEXT_SUFFIXES
    return bool(suffixes) and suffixes[-1] in (*_TEXT_SUFFIXES, *PARQUET_SUFFIXES, ".xlsx")


def is_text_table(source: Any) -> bool:
    """Return True if a source is the path of a text file that exists."""
    if not is_path(source) or not Path(source).is_file():
        return False
    suffixes = [suffix.lower() for suffix in Path(source).suffixes]
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in _TEXT_SUFFIXES


def _open_path(
    path: Path,
    names: Sequence[str] | None,
    unit: str | None,
    texts: frozenset[str],
    dialect: Dialect,
) -> Table:
    """Open a file by its suffix."""
    if not path.exists():
        raise DataError(f"file {str(path)!r} does not exist.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if path.is_dir() or (suffixes and suffixes[-1] in PARQUET_SUFFIXES):
        return _open_parquet(path, names, unit)
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        suffixes.pop()
    if suffixes and suffixes[-1] in _TEXT_SUFFIXES:
        return _open_text(path, names, unit, texts, dialect)
    if suffixes and suffixes[-1] == ".xlsx":
        return _open_workbook(path, names, unit)
    raise DataError(
        f"file {str(path)!r} has no known suffix; its name must end in "
        f"{', '.join((*_TEXT_SUFFIXES, *PARQUET_SUFFIXES, '.xlsx'))}, and text may be packed "
        f"as {', '.join(_PACKED_SUFFIXES)}."
    )


def _open_workbook(path: Path, names: Sequence[str] | None, unit: str | None) -> Table:
    """Open the first sheet of a workbook, whose first row names the columns."""
    label = f"file {str(path)!r}"
    try:
        import python_calamine
    except ImportError:
        raise DataError(
            f"{label} is a workbook; run pip install 'cloister[excel]', or save its sheet as CSV."
        ) from None
    try:
        rows = python_calamine.load_workbook(path).get_sheet_by_index(0).to_python()
    except (OSError, python_calamine.CalamineError, IndexError):
        raise DataError(
            f"{label} cannot be read; it is damaged or not a workbook. Save it again, or as CSV."
        ) from None
    if not rows:
        raise DataError(f"{label} is empty; the first row must name the columns.")
    positions, names = find_columns(label, rows.pop(0), names, unit)

    def chunks(most: int) -> Iterator[Raw]:
        for start in range(0, len(rows), most):
            sheet_columns = list(zip(*rows[start : start + most], strict=True))
            columns = [list(sheet_columns[position]) for position in positions]
            yield Raw(columns, columns.pop() if unit is not None else None)

    return Table(label, names, chunks)


def _open_query(source: SqlQuery, names: Sequence[str] | None, unit: str | None) -> Table:
    with _result(source, 1) as (label, result):
        positions, names = find_columns(label, list(result.keys()), names, unit)

    def chunks(rows: int) -> Iterator[Raw]:
        with _result(source, rows) as (_, result):
            for block in result.partitions(rows):
                result_columns = list(zip(*block, strict=True))
                columns = [list(result_columns[position]) for position in positions]
                yield Raw(columns, columns.pop() if unit is not None else None)

    return Table(label, names, chunks, is_file=True)


@contextmanager
def _result(source: SqlQuery, rows: int) -> Iterator[tuple[str, Any]]:
    """Run a query and yield a label and its result; then roll back any changes."""
    import sqlalchemy as sa

    label = "the database"
    try:
        url = sa.make_url(source.url)
        sqlite = url.get_backend_name() == "sqlite"
        # Without user and password, because messages and logs contain the label.
        public = sa.URL.create(url.get_backend_name(), host=url.host, database=url.database)
        label = f"database {str(public)!r}"
        engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)
    except (sa.exc.ArgumentError, ImportError, ValueError) as error:
        raise DataError(
            f"{label} cannot be opened: {type(error).__name__}; url must be a SQLAlchemy URL with "
            "an installed driver, for PostgreSQL from pip install 'cloister[postgres]'."
        ) from None
    if sqlite and not Path(url.database or "").is_file():  # SQLite would create an empty database
        raise DataError(f"{label} does not exist; check the url.")
    try:
        with engine.connect() as connection:
            if sqlite:  # text that is not UTF-8 must not stop a job
                connection.connection.driver_connection.text_factory = bytes  # type: ignore[union-attr]
            result = connection.execution_options(
                stream_results=True, max_row_buffer=rows, no_parameters=True
            ).exec_driver_sql(source.query)
            if not result.returns_rows:
                raise DataError(f"the query of {label} returns no rows; write a SELECT.")
            yield label, result
    except sa.exc.SQLAlchemyError as error:  # its text may quote a record
        raise DataError(
            f"the query of {label} failed: {type(error).__name__}; try it with the database's own "
            "client."
        ) from None


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder and its subfolders, in sorted order."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in PARQUET_SUFFIXES and not file.name.startswith((".", "_"))
    )


def _open_parquet(path: Path, names: Sequence[str] | None, unit: str | None) -> Table:
    import pyarrow.parquet as pq

    label = f"file {str(path)!r}"
    files = [path]
    if path.is_dir():
        files = parquet_files(path)
        if not files:
            raise DataError(f"folder {str(path)!r} has no Parquet file; give another folder.")
    wanted = names  # after the first file, its columns are required of the others
    labels: list[list[str]] = []
    most_rows = 0
    for file in files:
        with readable(label), pq.ParquetFile(file) as opened:
            file_names = opened.schema_arrow.names
            most_rows += opened.metadata.num_rows
        positions, wanted = find_columns(label, file_names, wanted, unit)
        labels.append([file_names[position] for position in positions])

    def chunks(rows: int) -> Iterator[Raw]:
        for file, columns in zip(files, labels, strict=True):
            with readable(label), pq.ParquetFile(file, **_IN_PARTS) as opened:
                batches = opened.iter_batches(batch_size=rows, columns=columns)
                yield from _slices((batch.select(columns) for batch in batches), rows, unit)

    return Table(label, tuple(wanted or ()), chunks, is_file=True, most_rows=most_rows)


def _open_text(
    path: Path,
    names: Sequence[str] | None,
    unit: str | None,
    texts: frozenset[str],
    dialect: Dialect,
) -> Table:
    label = f"file {str(path)!r}"
    header = read_header(path, label, dialect, names)
    positions, names = find_columns(label, header.names, names, unit)
    numbers = [name not in texts for name in names] + [False] * (unit is not None)
    file = TextTable(path, header, positions, numbers)

    def chunks(rows: int) -> Iterator[Raw]:
        bad_lines: list[None] = []
        with readable(label):
            for raw in _slices(file.batches(bad_lines), rows, unit):
                yield raw if unit is None else replace(raw, units=as_text(raw.units))
        yield Raw(np.empty((0, len(names))), bad_lines=len(bad_lines))

    return Table(label, names, chunks, is_file=True)
