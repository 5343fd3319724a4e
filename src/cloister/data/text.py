"""Text tables: the header names the columns, and every other line is one record.

The record of a line depends on that line alone. A line end closes a record, even within quotes,
unless the settings declare `multiline`. A line is excluded if its quotes do not match, if it has
more fields than the header, or if it is longer than 4 MiB. The last cells of a line with fewer
fields are missing. Empty lines are no records.
"""

from __future__ import annotations

import codecs
import io
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from cloister.core.errors import DataError
from cloister.data.cells import all_plain, array_of, text_of
from cloister.data.dialect import Dialect, Recoded

BLOCK_BYTES = 1 << 22  # of a text table; also the length of the longest line
_MOST_HEADER_BYTES = 1 << 28
_MOST_SECONDS = 1.0  # to wait for Arrow's thread, which takes a few milliseconds
_MOST_LINES = 10_000  # of one record, if cells may contain line ends
_DELIMITERS = ",;\t|:~^ "
# Words for no number in a column of numbers; Arrow compares them exactly, so all cases are listed.
_NO_NUMBER = [
    blank + "".join(letters)
    for blank in ("", " ")
    for word in ("", "?", "-", "na", "n/a", "nan", "null", "none")
    for letters in product(*(dict.fromkeys((letter, letter.upper())) for letter in word))
]


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Convert a failure to read into a `DataError` without content of the file."""
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, UnicodeError, pa.ArrowException):
        raise DataError(
            f"{label} cannot be read; it is damaged or removed, or its suffix does not match its "
            "format."
        ) from None


@dataclass(frozen=True)
class Header:
    """The column names in the first line of a text table, and the dialect of its lines."""

    names: tuple[str, ...]
    dialect: Dialect  # with a delimiter


def read_header(path: Path, label: str, dialect: Dialect, names: Sequence[str] | None) -> Header:
    """Return the header of a text table from its first line.

    Unless the settings name a delimiter, it is the one that yields the most of the wanted names in
    this line, else the most names.
    """
    with readable(label), stream_of(path, "") as stream:
        # A byte order mark of UTF-16 overrides the settings.
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            dialect = replace(dialect, encoding="utf-16")
    with readable(label), stream_of(path, dialect.encoding) as stream:
        line = _first_line(stream)
    if line is None:
        raise DataError(
            f"the first line of {label} is longer than {_MOST_HEADER_BYTES} bytes; it must name "
            "the columns."
        )
    try:
        title = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        title = line.decode("latin1")

    def score(delimiter: str) -> tuple[int, bool, int]:
        columns = _names(title, delimiter)
        # A blank last, because names may contain blanks.
        return len(set(columns) & set(names or ())), delimiter != " ", len(columns)

    delimiter = dialect.delimiter or max(_DELIMITERS, key=score)
    columns = _names(title, delimiter)
    if not any(columns):
        raise DataError(f"{label} is empty; its first line must name the columns.")
    return Header(columns, replace(dialect, delimiter=delimiter))


def _first_line(stream: Any) -> bytes | None:
    """Return the bytes before the first line end; None if there are too many."""
    start = bytearray()
    while block := stream.read(1 << 20):
        start += block
        if (end := re.search(rb"[\r\n]", start)) is not None:
            return bytes(start[: end.start()])
        if len(start) > _MOST_HEADER_BYTES:
            return None
    return bytes(start)


def _names(title: str, delimiter: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in split_fields(title, delimiter))


def split_fields(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line without quotes; the end of the line closes an open quote."""
    fields, at = [], 0
    pattern = _field_pattern(delimiter)
    while at <= len(line):
        match = pattern.match(line, at)
        assert match is not None  # the pattern also matches the empty string
        quoted = match["quoted"] if match["quoted"] is not None else match["open"]
        fields.append(match[0] if quoted is None else quoted.replace('""', '"'))
        at = match.end() + 1
    return fields


@cache
def _field_pattern(delimiter: str) -> re.Pattern[str]:
    d = re.escape(delimiter)
    inside = r'[^"]*+(?:""[^"]*+)*+'
    return re.compile(rf'"(?P<quoted>{inside})"(?={d}|\Z)|"(?P<open>{inside})\Z|[^{d}]*+')


def stream_of(path: Path, encoding: str) -> Any:
    """Return the bytes of a file, recoded as UTF-8 if its encoding is known."""
    import pyarrow as pa

    stream = pa.input_stream(str(path))
    return Recoded(stream, encoding) if encoding else stream


@dataclass(frozen=True)
class TextTable:
    """The records of a text table.

    Parameters
    ----------
    header : Header
    positions : list of int
        Positions of the columns to be read.
    numbers : list of bool
        True for each of these that is numeric, so that no cell is a word.
    """

    path: Path
    header: Header
    positions: list[int]
    numbers: list[bool]

    def batches(self, bad_lines: list[None]) -> Iterator[Any]:
        """Yield the records as Arrow batches; add an entry to `bad_lines` for each excluded line.

        Arrow reads columns of numbers as numbers. From the first block with a cell that is neither
        a plain number nor missing, it reads them as text for the rules of `cloister.data.cells`.
        Fields are counted line by line from the first block in which a line is too short.
        """
        import pyarrow as pa

        done, mode = 0, _Mode()
        while True:
            counts, at, again = _LineCounts(), 0, None
            try:
                for batch in self._read(mode, counts):
                    again = self._other_mode(mode, counts, batch)
                    if again:
                        break
                    # A file is read again from its start, so rows yielded before are skipped.
                    yield self._as_written(batch).slice(min(max(done - at, 0), batch.num_rows))
                    at += batch.num_rows
                    done = max(done, at)
            except pa.ArrowInvalid:
                if not mode.numbers:
                    raise
                again = replace(mode, numbers=False)
            if again is None and counts.short:
                again = replace(mode, padded=True)
            if again is None:
                bad_lines += [None] * counts.bad
                return
            mode = again

    def _as_written(self, batch: Any) -> Any:
        """Return a batch in which texts are UTF-8."""
        import pyarrow as pa

        if self.header.dialect.encoding:
            return batch
        columns = [_in_utf8(cells) if pa.types.is_binary(cells.type) else cells for cells in batch]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _other_mode(self, mode: _Mode, counts: _LineCounts, batch: Any) -> _Mode | None:
        """Return the mode to use instead, if the mode of this batch violated the rules."""
        if counts.short:
            return replace(mode, padded=True)
        columns = zip(batch.columns, self.numbers, strict=True)
        if mode.numbers and not all(
            all_plain(cells, array_of(cells)) for cells, is_number in columns if is_number
        ):
            return replace(mode, numbers=False)
        return None

    def _read(self, mode: _Mode, counts: _LineCounts) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        def skip(row: Any) -> str:
            counts.bad += 1
            counts.short |= row.actual_columns < row.expected_columns
            return "skip"

        dialect, width = self.header.dialect, len(self.header.names)
        lines = Lines(stream_of(self.path, dialect.encoding), dialect, width, padded=mode.padded)
        if lines.is_empty:
            return
        number = pa.float64() if mode.numbers else pa.binary()
        order = [str(position) for position in self.positions]
        types = [number if is_number else pa.binary() for is_number in self.numbers]
        freed = tuple(map(_freed, (lines, skip)))
        reader = pacsv.open_csv(
            pa.PythonFile(lines, "r"),
            read_options=pacsv.ReadOptions(
                column_names=[str(position) for position in range(width)],
                # A block must contain the longest line, with the fields that are added to it.
                block_size=2 * BLOCK_BYTES + width,
                # Latin-1 decodes any bytes, and does not change numbers.
                encoding="utf8" if dialect.encoding else "latin1",
            ),
            parse_options=pacsv.ParseOptions(delimiter=dialect.delimiter, invalid_row_handler=skip),
            convert_options=pacsv.ConvertOptions(
                include_columns=order,
                column_types=dict(zip(order, types, strict=True)),
                null_values=_NO_NUMBER,
                strings_can_be_null=False,
                decimal_point=dialect.decimal,
            ),
        )
        try:
            yield from reader
        finally:
            # A thread of Arrow reads ahead. Python aborts if it ends while that thread calls it or
            # frees what it called.
            lines.end()
            with suppress(pa.ArrowInvalid):
                deque(reader, maxlen=0)
            del reader, lines, skip
            for event in freed:
                event.wait(_MOST_SECONDS)


def _freed(target: object) -> threading.Event:
    """Return an event that is set when nothing refers to `target`."""
    event = threading.Event()
    weakref.finalize(target, event.set).atexit = False
    return event


def _in_utf8(cells: Any) -> Any:
    """Return texts that were decoded as Latin-1 as `text_of` decodes their bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.all(pc.string_is_ascii(cells.cast(pa.string()))).as_py() is not False:
        return cells
    encoded = cells.dictionary_encode()
    read = [word.decode().encode("latin1") for word in encoded.dictionary.to_pylist()]
    words = pa.array([text_of(word).encode() for word in read], pa.binary())
    return pa.DictionaryArray.from_arrays(encoded.indices, words).dictionary_decode()


@dataclass(frozen=True)
class _Mode:
    """The mode of Arrow's reader: numbers or texts, original or padded lines."""

    numbers: bool = True
    padded: bool = False


@dataclass
class _LineCounts:
    """The number of lines that Arrow skipped in a pass; `short` if one had too few fields."""

    bad: int = 0
    short: bool = False


class Lines(io.RawIOBase):
    """The lines after the header, prepared so that no line affects how Arrow parses another.

    A line that is no record becomes a line with too many fields, which Arrow skips and counts.

    Parameters
    ----------
    width : int
        Number of fields in the header.
    padded : bool
        If True, empty fields are added to lines with too few.
    """

    def __init__(self, stream: Any, dialect: Dialect, width: int, *, padded: bool) -> None:
        self._stream, self._width, self._padded = stream, width, padded
        self._delimiter, self._multiline = dialect.delimiter.encode(), dialect.multiline
        self._no_record = self._delimiter * width
        self._good, self._opens, self._closes, self._reopens = _line_patterns(self._delimiter)
        self._rest = b""  # of a line whose end was not read yet
        self._open: list[bytes] = []  # lines of a record that is in quotes
        self._open_bytes = 0
        self._ready, self._ended = b"", False
        self._past_header()
        self._fill(BLOCK_BYTES)

    @property
    def is_empty(self) -> bool:
        """True if there is no line after the header."""
        return not self._ready

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next lines, as many as fit, or a part of a longer line."""
        size = BLOCK_BYTES if size < 0 else size
        self._fill(min(size, BLOCK_BYTES))
        block, self._ready = self._ready[:size], self._ready[size:]
        return block

    def end(self) -> None:
        """Give no further lines."""
        self._ready, self._ended = b"", True

    def _fill(self, size: int) -> None:
        """Read until at least one line is ready, or the stream ends."""
        while not self._ready and not self._ended:
            # Limited so that only the first line can be longer than a block.
            is_long = len(self._rest) > BLOCK_BYTES
            block = self._stream.read(size if is_long else max(size - len(self._rest), 1))
            self._ended |= not block  # it may have been ended meanwhile
            self._ready = self._cleaned(block)

    def _past_header(self) -> None:
        """Skip the header up to the first line end, including a byte order mark."""
        while block := self._stream.read(BLOCK_BYTES):
            if (end := _END.search(block)) is not None:
                self._rest = block[end.start() :]  # the line end gives an empty line, no record
                return
        self._ended = True

    def _cleaned(self, block: bytes) -> bytes:
        """Return the complete lines after a block is added."""
        text = self._rest + block
        # A last \r stays in the rest, because it may be the first half of \r\n.
        stop = len(text) - text.endswith(b"\r")
        cut = (
            max(text.rfind(b"\n", 0, stop), text.rfind(b"\r", 0, stop)) + 1 if block else len(text)
        )
        lines, self._rest = text[:cut], text[cut:]
        if len(self._rest) > BLOCK_BYTES + 1:  # a line that is too long need not be kept whole
            half = b"\r" if self._rest.endswith(b"\r") else b""
            self._rest = self._rest[: BLOCK_BYTES + 1] + half
        first = _END.search(lines)
        if (end := first.start() if first else len(lines)) > BLOCK_BYTES:
            before = b""
            while self._open:  # a record with such a line is also too long
                before += self._given_up()
            lines = before + self._no_record + lines[end:]
        if b'"' in lines or self._open:
            lines = self._matched(lines)
        while not block and self._open:
            lines += self._given_up()
        if self._padded:
            lines = b"\n".join(map(self._filled_up, _END.split(lines)))
        return lines

    def _filled_up(self, line: bytes) -> bytes:
        """Return a line padded with empty fields to the width of the header."""
        if not line:
            return line
        n = line.count(self._delimiter) + 1
        if b'"' in line:
            n = len(split_fields(line.decode("latin1"), self._delimiter.decode()))
        return line + self._delimiter * (self._width - n)

    def _matched(self, text: bytes) -> bytes:
        """Return lines in which all quotes match."""
        pieces, at = [], 0
        while at < len(text):
            end = at if self._open else self._good.match(text, at).end()  # type: ignore[union-attr]
            pieces.append(text[at:end])
            at = end
            if end < len(text):
                stop = _END.search(text, end)
                pieces.append(self._continued(text[end : stop.start() if stop else len(text)]))
                at = stop.end() if stop else len(text)
        return b"".join(pieces)

    def _continued(self, line: bytes) -> bytes:
        """Return the records that a line with unmatched quotes completes: none, one or several."""
        if self._open:
            self._open.append(line)
            self._open_bytes += len(line) + 1
            if self._open_bytes > BLOCK_BYTES:
                return self._given_up()
            if self._closes.fullmatch(line):
                record, self._open = b" ".join(self._open), []
                return record + b"\n"
            is_inside = self._reopens.fullmatch(line) or b'"' not in line.replace(b'""', b"")
            return b"" if is_inside and len(self._open) < _MOST_LINES else self._given_up()
        if self._multiline and self._opens.fullmatch(line):
            self._open, self._open_bytes = [line], len(line)
            return b""
        return self._no_record + b"\n"

    def _given_up(self) -> bytes:
        """Exclude the line whose quote is never closed, and parse the lines after it again."""
        rest, self._open = self._open[1:], []
        return self._no_record + b"\n" + self._matched(b"\n".join([*rest, b""]))


_END = re.compile(rb"\r\n|[\r\n]")


@cache
def _line_patterns(delimiter: bytes) -> tuple[re.Pattern[bytes], ...]:
    """Return patterns of lines: with matching quotes; that open a quote, close it, or both."""
    d = re.escape(delimiter)
    quoted = rb'"[^"\r\n]*+(?:""[^"\r\n]*+)*+'
    one = rb"(?:" + quoted + rb'"|[^"\r\n' + d + rb"][^\r\n" + d + rb"]*+|)"
    more = rb"(?:" + d + one + rb")*+"
    tail = rb'[^"]*+(?:""[^"]*+)*+"'
    return (
        re.compile(rb"(?:" + one + more + rb"(?:[\r\n]|\Z))*+"),
        re.compile(rb"(?:" + one + d + rb")*+" + quoted),
        re.compile(tail + more),
        re.compile(tail + rb"(?:" + d + one + rb")*" + d + quoted),
    )
