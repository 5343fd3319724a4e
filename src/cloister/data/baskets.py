"""Market baskets: each becomes a record of zeros and ones over the items of a public catalogue.

An item outside the catalogue is ignored, and an item that a basket names twice counts once. A
basket without any item of the catalogue is a record like the others.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from cloister.core.arrays import Flags, Integers
from cloister.core.errors import DataError, PlanError
from cloister.data.cells import CellType
from cloister.data.sources import PARQUET_SUFFIXES, Raw, Table, is_path, open_source
from cloister.data.text import BLOCK_BYTES, readable, split_fields
from cloister.data.units import one_unit, unit_name, unit_names

if TYPE_CHECKING:
    from cloister.data.schema import Schema

_LONG_ROWS = 65536  # rows of the layout "long" that are read in one step


@dataclass(frozen=True)
class Baskets:
    """A source of market baskets, read by a schema of boolean items, the public catalogue.

    Parameters
    ----------
    source : path, table, SqlQuery, or list of lists of items
        Layout "lines": a text file (also ``.gz``, ``.bz2``, ``.zst``), or the baskets in memory.
        Layout "long": any other table source; the rows of one basket may be anywhere in it.
    layout : {"lines", "long"}
        One basket per line with a delimiter between its items, or one item per row.
    basket, item : str, only for layout "long"
        The columns with the basket's identifier and with the item. A row without a basket is
        dropped.
    delimiter : str, one character, only for layout "lines"
        An item that contains it must be in double quotes. An empty line is an empty basket.

    Notes
    -----
    A record is one basket, so the unit of privacy is one basket. If people have several baskets,
    write a table of one row per basket with the items and a column that identifies the person. Read
    that table by a schema with a unit column. Lines are read in chunks; only the first 4 MiB of a
    line are read. Of a long table the items of all baskets are kept in memory, 8 bytes each.
    """

    source: Any = field(repr=False)
    layout: Literal["lines", "long"] = "lines"
    basket: str | None = None
    item: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        named = {name for name in (self.basket, self.item) if name}
        if len(named) != {"lines": 0, "long": 2}.get(self.layout):
            raise PlanError(
                "layout must be 'lines', or 'long' with the names of the columns basket and item, "
                f"got {self.layout!r}, {self.basket!r} and {self.item!r}."
            )
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n' or not self.delimiter.isascii():
            raise PlanError(
                "delimiter must be one ASCII character other than a quote or a line end, got "
                f"{self.delimiter!r}."
            )

    @classmethod
    def parse(cls, source: Any, text: str) -> Self:
        r"""Read ``lines``, ``lines:DELIMITER`` (``\t`` is a tab) or ``long:BASKET,ITEM``."""
        layout, colon, rest = text.partition(":")
        basket, comma, item = rest.partition(",")
        if layout == "long" and comma:
            return cls(source, "long", basket=basket.strip(), item=item.strip())
        if layout == "lines" and bool(colon) == bool(rest):
            return cls(source, delimiter=rest.replace("\\t", "\t") or ",")
        raise PlanError(
            f"baskets must be 'lines', 'lines:DELIMITER' or 'long:BASKET,ITEM', got {text!r}."
        )

    def table(self, items: Sequence[str]) -> Table:
        """Return the one-hot table over a catalogue that was checked before."""
        return _open_long(self, items) if self.layout == "long" else _open_lines(self, items)


def is_catalogue(schema: Schema) -> bool:
    """Return True if all columns are boolean, as in a catalogue of items."""
    return all(column.type == "boolean" for column in schema.columns)


def open_baskets(baskets: Baskets, schema: Schema) -> Table:
    """Return the one-hot table over the catalogue that a schema describes."""
    if not is_catalogue(schema):
        raise DataError(
            "baskets need a schema of boolean columns only, one for each item of the public "
            "catalogue; make it with catalogue_schema or 'cloister schema catalogue'."
        )
    if schema.unit != "row":
        raise DataError(
            f"baskets have no column {schema.unit!r}, the unit of the schema; give a table with "
            "this column and one row per basket."
        )
    return baskets.table(schema.names)


def proposed_layout(source: Any, items: Sequence[str]) -> str:
    """Return the layout that the first line of a file suggests to its owner; empty if none.

    The report proposes it if most items are outside the catalogue. It is never used automatically.
    """
    if not isinstance(source, Baskets) or not is_path(source.source) or source.layout != "lines":
        return ""
    line = next(_first_lines(Path(source.source)), b"").decode("utf-8", "replace").strip()
    for sign in filter(line.__contains__, ";,\t|"):
        names = [part.strip().strip('"') for part in line.split(sign)]
        if sign != source.delimiter and set(names) & set(items):
            return f"lines:{sign}".replace("\t", "\\t")
        if len(names) == 2 and all(names) and not set(names) & set(items):
            return f"long:{names[0]},{names[1]}"
    return ""


def _first_lines(path: Path) -> Iterator[bytes]:
    import pyarrow as pa

    if path.is_file():
        with readable(f"file {str(path)!r}"), pa.input_stream(str(path)) as stream:
            yield from _lines(stream)


def _open_long(baskets: Baskets, items: Sequence[str]) -> Table:
    item = str(baskets.item)
    rows = open_source(baskets.source, [item], baskets.basket, frozenset([item]))
    width = len(items)
    item_type = CellType("category", tuple((name, code) for code, name in enumerate(items)))

    def chunks(most: int) -> Iterator[Raw]:
        numbers: dict[str, int] = {}
        # A basket's rows may be anywhere, so all baskets are collected before the first is yielded.
        cells_of_chunks = [np.empty(0, dtype=np.int64)]  # basket number * width + item number
        bad_lines = unknown_items = n_items = 0
        for raw in rows.chunks(_LONG_ROWS):
            bad_lines += raw.bad_lines
            if raw.units is None:
                continue
            basket = _numbered(raw.units, numbers)
            codes, wrong = item_type.read(raw.cells[0])
            known = (basket >= 0) & np.isfinite(codes)
            cells = np.unique(basket[known] * width + codes[known].astype(np.int64))
            cells_of_chunks.append(cells)
            bad_lines += int((basket < 0).sum())
            unknown = (basket >= 0) & (False if wrong is None else wrong)
            unknown_items += int(unknown.sum())
            n_items += int((known | unknown).sum())
        cells = np.unique(np.concatenate(cells_of_chunks))
        for start in range(0, len(numbers), most):
            stop = min(start + most, len(numbers))
            low, high = np.searchsorted(cells, [start * width, stop * width])
            yield Raw(_one_hot(cells[low:high] - start * width, stop - start, width))
        yield Raw(
            np.empty((0, width)), bad_lines=bad_lines, items=n_items, unknown_items=unknown_items
        )

    return Table(rows.label, tuple(items), chunks, is_file=rows.is_file)


def _numbered(cells: Any, numbers: dict[str, int]) -> Integers:
    """Return the number of each row's basket, -1 for none; add new baskets to `numbers`."""
    spellings, places = unit_names(cells)
    names = [one_unit(name) if name else "" for name in spellings]
    baskets = [numbers.setdefault(name, len(numbers)) if name else -1 for name in names]
    # Place -1, a cell without a basket, selects the last entry.
    return np.asarray(np.array([*baskets, -1], dtype=np.int64)[places])


def _one_hot(cells: Integers, rows: int, width: int) -> Flags:
    """Return a table that is True in the given cells, which are numbered row by row."""
    table = np.zeros(rows * width, dtype=bool)
    table[cells] = True
    return table.reshape(rows, width)


def _open_lines(baskets: Baskets, items: Sequence[str]) -> Table:
    if is_path(baskets.source):
        return _open_file(Path(baskets.source), baskets.delimiter, items)
    if not isinstance(baskets.source, Iterable) or not isinstance(baskets.source, Sized):
        raise DataError(
            "baskets must be a path or a list of lists of items, got a "
            f"{type(baskets.source).__name__}."
        )
    stored = baskets.source

    def chunks(rows: int) -> Iterator[Raw]:
        item_sets = (_of_objects(basket, baskets.delimiter) for basket in stored)
        return _chunked(item_sets, _places(items), rows)

    return Table("the list of baskets", tuple(items), chunks)


def _open_file(path: Path, delimiter: str, items: Sequence[str]) -> Table:
    import pyarrow as pa

    label = f"file {str(path)!r}"
    if not path.exists():
        raise DataError(f"{label} does not exist.")
    if path.is_dir() or path.suffix.lower() in PARQUET_SUFFIXES:
        raise DataError(
            f"{label} is not a text file with lines; use the layout 'long' or a one-hot table."
        )
    with readable(label), pa.input_stream(str(path)) as stream:
        start = stream.read(2)
    # Lines are split at single bytes, which UTF-16 does not allow.
    if start in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(
            f"{label} is in UTF-16, which baskets cannot be read from; save it as UTF-8."
        )

    def chunks(rows: int) -> Iterator[Raw]:
        with readable(label), pa.input_stream(str(path)) as stream:
            item_sets = (_of_line(line, delimiter.encode()) for line in _lines(stream))
            yield from _chunked(item_sets, _places(items), rows)

    return Table(label, tuple(items), chunks, is_file=True)


def _places(items: Sequence[str]) -> dict[bytes, int]:
    """Return the column of each item, by the bytes that a file may contain for it."""
    places = {}
    for j, item in enumerate(items):
        with suppress(UnicodeEncodeError):
            places[item.encode("latin1")] = j
    return places | {item.encode(): j for j, item in enumerate(items)}


def _lines(stream: Any) -> Iterator[bytes]:
    """Yield each line, cut to the longest length, so that no line makes another unreadable."""
    file = io.BufferedReader(stream)
    first = True
    while line := file.readline(BLOCK_BYTES):
        rest = line
        while len(rest) == BLOCK_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(BLOCK_BYTES)
        yield line.removeprefix(b"\xef\xbb\xbf") if first else line
        first = False


def _of_line(line: bytes, delimiter: bytes) -> set[bytes]:
    """Return the items of a line; an open quote ends with the line."""
    parts: Iterable[bytes] = line.split(delimiter)
    if b'"' in line:
        fields = split_fields(line.decode("latin1").strip("\r\n"), delimiter.decode())
        parts = [field.encode("latin1") for field in fields]
    return {item for part in parts if (item := part.strip())}


def _of_objects(basket: Any, delimiter: str) -> set[bytes]:
    """Return the items of a basket in memory: a list, or text like a line of a file."""
    if isinstance(basket, str | bytes):
        line = basket.encode("utf-8", "replace") if isinstance(basket, str) else basket
        return _of_line(line, delimiter.encode())
    names = map(unit_name, basket) if isinstance(basket, Iterable) else ()
    return {name.encode("utf-8", "replace") for name in names if name}


def _chunked(baskets: Iterator[set[bytes]], places: dict[bytes, int], rows: int) -> Iterator[Raw]:
    """Yield baskets as rows of zeros and ones."""
    width = 1 + max(places.values())
    while chunk := list(islice(baskets, rows)):
        known = [[places[item] for item in basket if item in places] for basket in chunk]
        lengths = [len(columns) for columns in known]
        columns = np.fromiter((j for row in known for j in row), dtype=np.int64, count=sum(lengths))
        cells = np.repeat(np.arange(len(chunk)), lengths) * width + columns
        items = sum(map(len, chunk))
        yield Raw(
            _one_hot(cells, len(chunk), width), items=items, unknown_items=items - sum(lengths)
        )
