"""Whatever holds a table: its columns are checked first, then its rows are read in chunks."""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice, product
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.data.cells import all_plain, array_of, is_day, is_text, text_cells, unit_cells
from cloister.data.dialect import PLAIN, Dialect, Recoded
from cloister.dates import decimal_years
from cloister.errors import DataError

BLOCK_BYTES = 1 << 22  # of a text table; the longest line that can be read
PARQUET_SUFFIXES = (".parquet", ".pq")
_HEADER_BYTES = 1 << 20
_LOOK_BYTES = 1 << 18
# what says in a column of numbers that there is none; Arrow takes these as they are written
_NO_NUMBER = [
    blank + "".join(letters)
    for blank in ("", " ")
    for word in ("", "?", "-", "na", "n/a", "nan", "null", "none")
    for letters in product(*(dict.fromkeys((letter, letter.upper())) for letter in word))
]
_DELIMITERS = ",;\t|:~^ "
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
# by default Arrow reads the whole file ahead into memory
_IN_PARTS: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")


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


@dataclass(frozen=True)
class Raw:
    """Some rows as they were found: one matrix of numbers, or one array of cells per column."""

    cells: NDArray[Any] | list[Any]
    units: Any = None  # Arrow array, where the schema has a unit column
    bad_lines: int = 0
    unknown_items: int = 0  # of baskets, outside the catalogue


@dataclass(frozen=True)
class Table:
    """A source whose columns were checked: its rows can be read again and again."""

    label: str  # what messages call it
    names: tuple[str, ...]  # of the columns to be used
    chunks: Callable[[int], Iterator[Raw]]  # at most so many rows at a time
    is_file: bool = False
    most_rows: int = 0  # where a file says at once how many it has

    @property
    def n_columns(self) -> int:
        """How many features each row has."""
        return len(self.names)


def open_source(
    source: Any,
    names: Sequence[str] | None,
    unit: str | None,
    texts: frozenset[str] = frozenset(),
    dialect: Dialect = PLAIN,
) -> Table:
    """Find out what a source is and check its columns; `names` None means all of them.

    Columns in `texts` are those whose cells may be words. A text table leaves them as they are:
    "01" is a word as well as a number.
    """
    if is_path(source):
        return _open_path(Path(source), names, unit, texts, dialect)
    if isinstance(source, SqlQuery):
        return _open_query(source, names, unit)
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return _open_pandas(source, names, unit)
    if hasattr(source, "to_arrow") and hasattr(source, "columns"):  # polars
        source = source.to_arrow()
    if hasattr(source, "to_batches") and hasattr(source, "column_names"):
        return _open_arrow(source, names, unit)
    if is_dataset(source):
        return _open_dataset(source, names, unit)
    return _open_array(source, names, unit)


def is_path(source: Any) -> bool:
    """Return whether a source is the path of a file, as against a table."""
    return isinstance(source, str | os.PathLike)


def is_dataset(source: Any) -> bool:
    """Return whether a source is an Arrow dataset, which is read from its files each time."""
    return hasattr(source, "to_batches") and hasattr(source, "get_fragments")


def find_columns(
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


def _open_array(source: Any, names: Sequence[str] | None, unit: str | None) -> Table:
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

    def chunks(rows: int) -> Iterator[Raw]:
        for start in range(0, len(X), rows):
            part = X[start : start + rows]
            if X.dtype.kind in "OUS":
                yield Raw([text_cells(column) for column in np.asarray(part).T.tolist()])
            elif isinstance(part, np.ma.MaskedArray):
                yield Raw(np.ma.filled(part.astype(np.float64), np.nan))
            else:
                yield Raw(np.asarray(part))

    return Table(label, names, chunks)


def _open_pandas(frame: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    label = "the table"
    positions, names = find_columns(label, list(frame.columns), names, unit)
    for position, name in zip(positions, names, strict=False):
        kind = frame.dtypes.iloc[position].kind
        if kind not in "biufOUSM":
            raise DataError(
                f"column {name!r} of {label} must hold numbers, got the data type "
                f"{frame.dtypes.iloc[position]}."
            )

    def cells(column: Any, rows: slice) -> Any:
        if isinstance(column, np.ndarray):
            return column[rows]
        if column.dtype.kind == "M":
            return decimal_years(column.iloc[rows].to_numpy("M8[D]"))
        if column.dtype.kind not in "biuf":
            return text_cells(column.iloc[rows].tolist())
        return column.iloc[rows].to_numpy(dtype=np.float64, na_value=np.nan)

    def chunks(rows: int) -> Iterator[Raw]:
        columns = [frame.iloc[:, position] for position in positions]
        people = columns.pop() if unit is not None else None
        columns = [
            column.to_numpy()
            if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf"
            else column
            for column in columns
        ]
        for start in range(0, len(frame), rows):
            part = slice(start, start + rows)
            units = unit_cells(people.iloc[part].tolist()) if people is not None else None
            yield Raw([cells(column, part) for column in columns], units)

    return Table(label, names, chunks)


def _open_arrow(table: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    label = "the table"
    positions, names = find_columns(label, table.column_names, names, unit)
    _check_types(label, table.schema, positions, unit)

    def chunks(rows: int) -> Iterator[Raw]:
        return _slices(table.select(positions).to_batches(max_chunksize=rows), rows, unit)

    return Table(label, names, chunks)


def _open_dataset(dataset: Any, names: Sequence[str] | None, unit: str | None) -> Table:
    from pyarrow.dataset import ParquetFileFormat, ParquetFragmentScanOptions

    label, found = "the Arrow dataset", dataset.schema
    positions, names = find_columns(label, found.names, names, unit)
    _check_types(label, found, positions, unit)
    columns = [found.names[position] for position in positions]
    # in the order of the files, and no further ahead than need be
    options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
    if isinstance(getattr(dataset, "format", None), ParquetFileFormat):
        options["fragment_scan_options"] = ParquetFragmentScanOptions(
            use_buffered_stream=True, **_IN_PARTS
        )

    def chunks(rows: int) -> Iterator[Raw]:
        with readable(label):
            batches = dataset.to_batches(columns=columns, batch_size=rows, **options)
            yield from _slices(batches, rows, unit)

    return Table(label, names, chunks, is_file=True)


def is_table(path: Path) -> bool:
    """Return whether a file's name is that of a table which can be read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        return len(suffixes) > 1 and suffixes[-2] in _TEXT_SUFFIXES
    return bool(suffixes) and suffixes[-1] in (*_TEXT_SUFFIXES, *PARQUET_SUFFIXES, ".xlsx")


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
        f"file {str(path)!r} is of no known kind; it must end in "
        f"{', '.join((*_TEXT_SUFFIXES, *PARQUET_SUFFIXES, '.xlsx'))}, text also packed as .gz."
    )


def _open_workbook(path: Path, names: Sequence[str] | None, unit: str | None) -> Table:
    """Open the first sheet of a workbook, whose first row names the columns."""
    label = f"file {str(path)!r}"
    try:
        import python_calamine
    except ImportError:
        raise DataError(
            f"{label} is a workbook; pip install 'cloister[excel]', or save its sheet as CSV."
        ) from None
    try:
        rows = python_calamine.load_workbook(path).get_sheet_by_index(0).to_python()
    except (OSError, python_calamine.CalamineError, IndexError):
        raise DataError(f"{label} cannot be read; it is damaged, or no workbook.") from None
    if not rows:
        raise DataError(f"{label} is empty; the first row must name the columns.")
    positions, names = find_columns(label, rows.pop(0), names, unit)

    def chunks(most: int) -> Iterator[Raw]:
        for start in range(0, len(rows), most):
            found = list(zip(*rows[start : start + most], strict=True))
            columns = [found[position] for position in positions]
            people = columns.pop() if unit is not None else ()
            units = unit_cells(people) if unit is not None else None
            yield Raw([text_cells(column) for column in columns], units)

    return Table(label, names, chunks)


def _open_query(source: SqlQuery, names: Sequence[str] | None, unit: str | None) -> Table:
    with _result(source, 1) as (label, result):
        positions, names = find_columns(label, list(result.keys()), names, unit)

    def chunks(rows: int) -> Iterator[Raw]:
        with _result(source, rows) as (_, result):
            for part in result.partitions(rows):
                found = list(zip(*part, strict=True))
                columns = [found[position] for position in positions]
                people = map(one_spelling, columns.pop() if unit is not None else ())
                units = unit_cells(people) if unit is not None else None
                yield Raw([_database_cells(column) for column in columns], units)

    return Table(label, names, chunks, is_file=True)


@contextmanager
def _result(source: SqlQuery, rows: int) -> Iterator[tuple[str, Any]]:
    """Run a query and yield a label and its rows; whatever it changed is undone."""
    import sqlalchemy as sa

    label = "the database"
    try:
        url = sa.make_url(source.url)
        sqlite = url.get_backend_name() == "sqlite"
        # Without user and password, since messages and logs show it.
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
            if sqlite:  # text that is not UTF-8 must not stop a job
                connection.connection.driver_connection.text_factory = bytes  # type: ignore[union-attr]
            result = connection.execution_options(
                stream_results=True, max_row_buffer=rows, no_parameters=True
            ).exec_driver_sql(source.query)
            if not result.returns_rows:
                raise DataError(f"the query of {label} returns no rows; write a SELECT.")
            yield label, result
    except sa.exc.SQLAlchemyError as error:  # its text may repeat a record
        raise DataError(
            f"the query of {label} failed: {type(error).__name__}; try it with the database's own "
            "client."
        ) from None


def _database_cells(cells: tuple[Any, ...]) -> Any:
    if set(map(type, cells)) <= {float, int, NoneType}:  # the common case, at a tenth of the price
        with suppress(OverflowError):
            return np.array(cells, dtype=np.float64)
    return text_cells(cells)


def one_spelling(cell: Any) -> Any:
    """Give a unit one spelling, where a database may give a value several."""
    if isinstance(cell, memoryview | bytearray):
        return bytes(cell)
    if isinstance(cell, Decimal) and cell.is_finite():
        return int(cell) if cell == cell.to_integral_value() else cell.normalize()
    return cell


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder and of those in it, in order."""
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
            raise DataError(f"folder {str(path)!r} holds no Parquet file.")
    wanted = names
    labels: list[list[str]] = []
    most_rows = 0
    for file in files:
        with readable(label), pq.ParquetFile(file) as opened:
            found = opened.schema_arrow
            most_rows += opened.metadata.num_rows
        positions, wanted = find_columns(label, found.names, wanted, unit)
        _check_types(label, found, positions, unit)
        labels.append([found.names[position] for position in positions])

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
    with readable(label), _stream(path, "") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # it says so itself
            dialect = replace(dialect, encoding="utf-16")
    with readable(label), _stream(path, dialect.encoding) as stream:
        start = stream.read(_HEADER_BYTES)
    line = (start.splitlines() or [b""])[0]
    body = start[len(line) :].strip()
    try:
        title = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        title = line.decode("latin1")
    delimiter, found = _split_header(title, names)
    if not any(found):
        raise DataError(f"{label} is empty; its first line must name the columns.")
    positions, names = find_columns(label, found, names, unit)
    numbers = [name not in texts for name in names] + [False] * (unit is not None)
    _check_quotes(path, dialect.encoding, label, delimiter, line)
    file = _TextFile(path, dialect, delimiter, len(found), positions, numbers)

    def chunks(rows: int) -> Iterator[Raw]:
        if not body:
            return
        bad_lines: list[None] = []
        with readable(label):
            yield from _slices(file.batches(bad_lines), rows, unit)
        yield Raw(np.empty((0, len(positions) - (unit is not None))), bad_lines=len(bad_lines))

    return Table(label, names, chunks, is_file=True)


@dataclass(frozen=True)
class _TextFile:
    path: Path
    dialect: Dialect
    delimiter: str
    n_columns: int  # of the file
    positions: list[int]  # of the columns to be read
    numbers: list[bool]  # which of these hold numbers

    def batches(self, bad_lines: list[None]) -> Iterator[Any]:
        """Yield the rows as Arrow batches, and put an entry in a list for each line skipped.

        Columns of numbers are read as such by Arrow, and as text from the first block on in which
        a cell is neither a plain number nor missing: the rules of `cloister.data.cells` decide.
        """
        import pyarrow as pa

        skipped: list[None] = []
        done = 0
        with suppress(pa.ArrowInvalid):
            for batch in self._read(pa.float64(), skipped):
                columns = zip(batch.columns, self.numbers, strict=True)
                found = [cells for cells, is_number in columns if is_number]
                if not all(all_plain(cells, array_of(cells)) for cells in found):
                    break
                yield batch
                done += 1
            else:
                bad_lines += skipped
                return
        # Arrow cuts the same blocks again, so as many are done.
        yield from islice(self._read(pa.binary(), bad_lines), done, None)

    def _read(self, number: Any, skipped: list[None]) -> Any:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        def skip(_: Any) -> str:
            skipped.append(None)
            return "skip"

        order = [str(position) for position in self.positions]
        types = [number if is_number else pa.binary() for is_number in self.numbers]
        encoding = self.dialect.encoding
        return pacsv.open_csv(
            pa.PythonFile(_stream(self.path, encoding), "r") if encoding else str(self.path),
            read_options=pacsv.ReadOptions(
                skip_rows=1,
                column_names=[str(position) for position in range(self.n_columns)],
                block_size=BLOCK_BYTES,
                # Latin-1 never fails; numbers read the same, names stay apart
                encoding="utf8" if encoding else "latin1",
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=order,
                column_types=dict(zip(order, types, strict=True)),
                null_values=_NO_NUMBER,
                strings_can_be_null=False,
                decimal_point=self.dialect.decimal,
            ),
        )


def _stream(path: Path, encoding: str) -> Any:
    """Return the bytes of a file, as UTF-8 if its encoding is known."""
    import pyarrow as pa

    stream = pa.input_stream(str(path))
    return Recoded(stream, encoding) if encoding else stream


def _check_quotes(path: Path, encoding: str, label: str, delimiter: str, header: bytes) -> None:
    """Refuse a table whose quotes do not match: one such line would swallow those after it.

    What a CSV writer wrote passes, whatever the records hold, so this says nothing about them.
    """
    with readable(label), _stream(path, encoding) as stream:
        if header.count(b'"') % 2 == 0:  # names in quotes of their own tell nothing of the rest
            stream.read(len(header))
        block = bytearray(_LOOK_BYTES)
        while (n := stream.readinto(block)) and block.find(b'"', 0, n) < 0:
            pass
        if not n:
            return
    # A cell of a record may be as long as a line. The limit is the process's, so it is only raised.
    csv.field_size_limit(max(csv.field_size_limit(), BLOCK_BYTES))
    with readable(label), _stream(path, encoding) as stream:
        text = io.TextIOWrapper(stream, encoding="latin1", newline="")
        try:
            for _ in csv.reader(text, delimiter=delimiter, strict=True):
                pass
        except csv.Error:
            raise DataError(
                f"{label} has a quoted field that does not end as it should, or a line longer than "
                f"{BLOCK_BYTES} bytes; export it again with a CSV writer."
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


def _slices(batches: Iterable[Any], rows: int, unit: str | None) -> Iterator[Raw]:
    """Cut Arrow batches, whose last column is the unit if there is one, to at most `rows` rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            columns = list(batch.slice(start, rows).columns)
            units = columns.pop() if unit is not None else None
            yield Raw(columns, units)


def _check_types(label: str, found: Any, positions: Sequence[int], unit: str | None) -> None:
    """Refuse columns that by their declared type hold no numbers, and units that are no names."""
    import pyarrow as pa
    import pyarrow.types as types

    for place, position in enumerate(positions):
        kind = found.types[position]
        kind = kind.value_type if types.is_dictionary(kind) else kind
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        plain = plain or types.is_decimal(kind) or types.is_null(kind)
        plain = plain or is_text(kind) or is_day(kind)
        if unit is not None and place == len(positions) - 1:
            if types.is_nested(kind):
                raise DataError(f"unit column {unit!r} of {label} must hold names, got {kind}.")
        elif not plain:
            raise DataError(
                f"column {found.names[position]!r} of {label} must hold numbers, got {kind}."
            )
        if types.is_timestamp(kind) and kind.tz:
            try:
                pa.scalar(0, kind).cast(pa.date32())
            except pa.ArrowInvalid:
                raise DataError(
                    f"column {found.names[position]!r} of {label} is in the time zone {kind.tz!r}, "
                    "which is not known here; write its moments in UTC."
                ) from None


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Turn a failure to read into a `DataError` that repeats nothing of the file's content."""
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, UnicodeError, pa.ArrowException):
        raise DataError(
            f"{label} cannot be read; it is damaged, no such file any more, not of the kind its "
            f"name says, or has a line longer than {BLOCK_BYTES} bytes."
        ) from None
