"""Text tables: the header names the columns, and every line after it is one record.

What a line becomes depends on that line alone. A line end closes a record, also within quotes,
unless the settings declare `multiline`. A line whose quotes do not match, that has more fields than
the header or more than 4 MiB is left out alone; one that has fewer fields lacks its last cells,
which are missing. Empty lines are no records.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from cloister.core.errors import DataError
from cloister.data.cells import all_plain, array_of, text_of
from cloister.data.dialect import Dialect, Recoded

BLOCK_BYTES = 1 << 22  # of a text table; the longest line that can be read
_MOST_HEADER_BYTES = 1 << 28
_MOST_LINES = 10_000  # of one record, where cells may hold line ends
_DELIMITERS = ",;\t|:~^ "
# what says in a column of numbers that there is none; Arrow takes these as they are written
_NO_NUMBER = [
    blank + "".join(letters)
    for blank in ("", " ")
    for word in ("", "?", "-", "na", "n/a", "nan", "null", "none")
    for letters in product(*(dict.fromkeys((letter, letter.upper())) for letter in word))
]


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Turn a failure to read into a `DataError` that repeats nothing of the file's content."""
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, UnicodeError, pa.ArrowException):
        raise DataError(
            f"{label} cannot be read; it is damaged, no such file any more, or not of the kind its "
            "name says."
        ) from None


@dataclass(frozen=True)
class Header:
    """The first line of a text table, and how the lines after it are written."""

    names: tuple[str, ...]
    dialect: Dialect  # with a delimiter


def read_header(path: Path, label: str, dialect: Dialect, names: Sequence[str] | None) -> Header:
    """Read the first line of a text table, whatever its length.

    Unless the settings name a delimiter, it is the one that shows the most of the wanted names in
    this line, else the most names.
    """
    with readable(label), stream_of(path, "") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # it says so itself
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

    def worth(delimiter: str) -> tuple[int, bool, int]:
        found = _names(title, delimiter)
        return len(set(found) & set(names or ())), delimiter != " ", len(found)

    delimiter = dialect.delimiter or max(_DELIMITERS, key=worth)
    found = _names(title, delimiter)
    if not any(found):
        raise DataError(f"{label} is empty; its first line must name the columns.")
    return Header(found, replace(dialect, delimiter=delimiter))


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
    """Return the fields of a line without their quotes; one whose quote stays open ends with it."""
    fields, at = [], 0
    pattern = _field_pattern(delimiter)
    while at <= len(line):
        found = pattern.match(line, at)
        assert found is not None  # it matches nothing, too
        said = found["quoted"] if found["quoted"] is not None else found["open"]
        fields.append(found[0] if said is None else said.replace('""', '"'))
        at = found.end() + 1
    return fields


@cache
def _field_pattern(delimiter: str) -> re.Pattern[str]:
    d = re.escape(delimiter)
    inside = r'[^"]*+(?:""[^"]*+)*+'
    return re.compile(rf'"(?P<quoted>{inside})"(?={d}|\Z)|"(?P<open>{inside})\Z|[^{d}]*+')


def stream_of(path: Path, encoding: str) -> Any:
    """Return the bytes of a file, as UTF-8 if its encoding is known."""
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
        Of the columns to be read.
    numbers : list of bool
        Which of these hold numbers, where no text may be a word.
    """

    path: Path
    header: Header
    positions: list[int]
    numbers: list[bool]

    def batches(self, bad_lines: list[None]) -> Iterator[Any]:
        """Yield the records as Arrow batches, and put an entry in a list for each that is left out.

        Columns of numbers are read as such by Arrow, and as text from the first block on in which
        a cell is neither a plain number nor missing: the rules of `cloister.data.cells` decide.
        Fields are counted line by line from the first block on in which a line is too short.
        """
        import pyarrow as pa

        done, way = 0, _Way()
        while True:
            found, at, again = _Found(), 0, None
            try:
                for batch in self._read(way, found):
                    again = self._other_way(way, found, batch)
                    if again:
                        break
                    yield self._as_written(batch).slice(min(max(done - at, 0), batch.num_rows))
                    at += batch.num_rows
                    done = max(done, at)
            except pa.ArrowInvalid:
                if not way.numbers:
                    raise
                again = replace(way, numbers=False)
            if again is None and found.short:
                again = replace(way, padded=True)
            if again is None:
                bad_lines += [None] * found.bad
                return
            way = again

    def _as_written(self, batch: Any) -> Any:
        """Return a batch in which texts are UTF-8."""
        import pyarrow as pa

        if self.header.dialect.encoding:
            return batch
        columns = [_in_utf8(part) if pa.types.is_binary(part.type) else part for part in batch]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _other_way(self, way: _Way, found: _Found, batch: Any) -> _Way | None:
        """Return how the file must be read instead, if this batch was not read by the rules."""
        if found.short:
            return replace(way, padded=True)
        columns = zip(batch.columns, self.numbers, strict=True)
        if way.numbers and not all(
            all_plain(cells, array_of(cells)) for cells, is_number in columns if is_number
        ):
            return replace(way, numbers=False)
        return None

    def _read(self, way: _Way, found: _Found) -> Iterable[Any]:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        def skip(row: Any) -> str:
            found.bad += 1
            found.short |= row.actual_columns < row.expected_columns
            return "skip"

        dialect, width = self.header.dialect, len(self.header.names)
        lines = Lines(stream_of(self.path, dialect.encoding), dialect, width, padded=way.padded)
        if lines.is_empty:
            return ()
        number = pa.float64() if way.numbers else pa.binary()
        order = [str(position) for position in self.positions]
        types = [number if is_number else pa.binary() for is_number in self.numbers]
        return pacsv.open_csv(  # type: ignore[no-any-return]
            pa.PythonFile(lines, "r"),
            read_options=pacsv.ReadOptions(
                column_names=[str(position) for position in range(width)],
                # for lines that are filled up; it must hold the longest
                block_size=2 * BLOCK_BYTES + width,
                # Latin-1 never fails, and numbers read the same
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


def _in_utf8(cells: Any) -> Any:
    """Return texts of bytes that were read as Latin-1 as `text_of` has those bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.all(pc.string_is_ascii(cells.cast(pa.string()))).as_py() is not False:
        return cells
    encoded = cells.dictionary_encode()
    read = [word.decode().encode("latin1") for word in encoded.dictionary.to_pylist()]
    words = pa.array([text_of(word).encode() for word in read], pa.binary())
    return pa.DictionaryArray.from_arrays(encoded.indices, words).dictionary_decode()


@dataclass(frozen=True)
class _Way:
    """How Arrow is asked: for numbers or texts, of lines as they are or filled up with cells."""

    numbers: bool = True
    padded: bool = False


@dataclass
class _Found:
    """What Arrow met in a pass: lines that it left out, and whether one was too short."""

    bad: int = 0
    short: bool = False


class Lines(io.RawIOBase):
    """The lines after the header, so that no line changes how Arrow parses another one.

    A line that is no record becomes one with too many fields, which Arrow leaves out and counts.

    Parameters
    ----------
    width : int
        How many fields the header has.
    padded : bool
        Whether lines with fewer fields get empty ones.
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
        """Whether there is no line at all."""
        return not self._ready

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next lines; as many as fit, or a part of a line that is longer."""
        size = BLOCK_BYTES if size < 0 else size
        self._fill(min(size, BLOCK_BYTES))
        part, self._ready = self._ready[:size], self._ready[size:]
        return part

    def _fill(self, size: int) -> None:
        """Have at least one line ready, if there is one."""
        while not self._ready and not self._ended:
            # so much that only the first line can be longer than a block
            is_long = len(self._rest) > BLOCK_BYTES
            block = self._stream.read(size if is_long else max(size - len(self._rest), 1))
            self._ended = not block
            self._ready = self._cleaned(block)

    def _past_header(self) -> None:
        """Read up to the first line end; a byte order mark is part of the header."""
        while block := self._stream.read(BLOCK_BYTES):
            if (end := _END.search(block)) is not None:
                self._rest = block[end.start() :]  # its line end makes an empty line
                return
        self._ended = True

    def _cleaned(self, block: bytes) -> bytes:
        """Return the whole lines that a block completes."""
        text = self._rest + block
        # a last \r waits: it may be half of a line end
        stop = len(text) - text.endswith(b"\r")
        cut = (
            max(text.rfind(b"\n", 0, stop), text.rfind(b"\r", 0, stop)) + 1 if block else len(text)
        )
        lines, self._rest = text[:cut], text[cut:]
        if len(self._rest) > BLOCK_BYTES + 1:  # too long already: what follows is part of that line
            half = b"\r" if self._rest.endswith(b"\r") else b""
            self._rest = self._rest[: BLOCK_BYTES + 1] + half
        first = _END.search(lines)
        if (end := first.start() if first else len(lines)) > BLOCK_BYTES:
            before = b""
            while self._open:  # a record with such a line is too long, too
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
        """Return a line with empty fields in place of those that it lacks."""
        if not line:
            return line
        n = line.count(self._delimiter) + 1
        if b'"' in line:
            n = len(split_fields(line.decode("latin1"), self._delimiter.decode()))
        return line + self._delimiter * (self._width - n)

    def _matched(self, text: bytes) -> bytes:
        """Return lines in which all quotes match."""
        parts, at = [], 0
        while at < len(text):
            end = at if self._open else self._good.match(text, at).end()  # type: ignore[union-attr]
            parts.append(text[at:end])
            at = end
            if end < len(text):
                stop = _END.search(text, end)
                parts.append(self._continued(text[end : stop.start() if stop else len(text)]))
                at = stop.end() if stop else len(text)
        return b"".join(parts)

    def _continued(self, line: bytes) -> bytes:
        """Return what a line whose quotes do not match completes: one record, several or none."""
        if self._open:
            self._open.append(line)
            self._open_bytes += len(line) + 1
            if self._open_bytes > BLOCK_BYTES:
                return self._given_up()
            if self._closes.fullmatch(line):
                whole, self._open = b" ".join(self._open), []
                return whole + b"\n"
            goes_on = self._reopens.fullmatch(line) or b'"' not in line.replace(b'""', b"")
            return b"" if goes_on and len(self._open) < _MOST_LINES else self._given_up()
        if self._multiline and self._opens.fullmatch(line):
            self._open, self._open_bytes = [line], len(line)
            return b""
        return self._no_record + b"\n"

    def _given_up(self) -> bytes:
        """Leave out the line whose quote nothing closes, and read those after it again."""
        rest, self._open = self._open[1:], []
        return self._no_record + b"\n" + self._matched(b"\n".join([*rest, b""]))


_END = re.compile(rb"\r\n|[\r\n]")


@cache
def _line_patterns(delimiter: bytes) -> tuple[re.Pattern[bytes], ...]:
    """Return patterns of lines: with quotes that match; that open a quote, close it, or both."""
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
