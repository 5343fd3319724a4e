"""A line of a text table is one record, whatever the lines around it hold."""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.core.errors import DataError
from cloister.data import check_file, header, read_floats, read_source, read_words, text
from cloister.data.cells import CellType, text_of
from cloister.data.dialect import Dialect
from cloister.data.schema import Schema
from cloister.data.sources import open_source


def fields_of(line: bytes, delimiter: bytes) -> list[bytes] | None:
    """The rule once more in plain Python; None where quotes do not match."""
    fields: list[bytes] = []
    at = 0
    while True:
        if line[at : at + 1] == b'"':
            field = b""
            at += 1
            while True:
                end = line.find(b'"', at)
                if end < 0:
                    return None
                field, at = field + line[at:end], end + 1
                if line[at : at + 1] != b'"':
                    break
                field, at = field + b'"', at + 1
            if at < len(line) and line[at : at + 1] != delimiter:
                return None
        else:
            end = line.find(delimiter, at)
            end = len(line) if end < 0 else end
            field, at = line[at:end], end
        fields.append(field)
        if at >= len(line):
            return fields
        at += 1


def rows_of(body: bytes, width: int, delimiter: bytes, longest: int) -> list[list[bytes] | None]:
    """The record of each line that is not empty; None where it is none."""
    rows: list[list[bytes] | None] = []
    for line in filter(None, re.split(rb"\r\n|\r|\n", body)):
        fields = None if len(line) > longest else fields_of(line, delimiter)
        is_record = fields is not None and len(fields) <= width
        rows.append([*fields, *[b""] * (width - len(fields))] if fields and is_record else None)
    return rows


def read(path: Path, width: int, dialect: Dialect, *, words: bool) -> tuple[list[Any], int]:
    names = [f"c{j}" for j in range(width)]
    table = open_source(path, names, None, frozenset(names if words else ()), dialect)
    rows: list[Any] = []
    bad_lines = 0
    for raw in table.chunks(3):
        bad_lines += raw.bad_lines
        if isinstance(raw.cells, list):
            number = CellType(dialect=dialect)
            columns = [c.to_pylist() if words else number.read(c).values for c in raw.cells]
            rows += list(map(list, zip(*columns, strict=True)))
    return rows, bad_lines


PARTS = [
    "1",
    "2.5",
    "x",
    "\n",
    "\r",
    "\r\n",
    '"',
    '""',
    '","',
    " ",
    "na",
    "\0",
    "inf",
    "1e400",
    "é",
    "Ã¤",
]


@settings(
    max_examples=max(60, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.sampled_from([*PARTS, "DELIMITER", "DELIMITER"]), max_size=40).map("".join),
    st.integers(1, 3),
    st.sampled_from(",;\t| :"),
    st.sampled_from([1, 2, 3, 5, 8, 21, 1 << 22]),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.sampled_from(["utf-8", "latin1"]),
)
def test_each_line_is_read_by_itself_in_order_and_once(
    tmp_path: Path, body: str, width: int, delimiter: str, block: int, end: str, encoding: str
) -> None:
    """With blocks of a few bytes, so that reading starts again and lines are cut anywhere."""
    path = tmp_path / "t.csv"
    header = delimiter.join(f"c{j}" for j in range(width)) + end
    content = (header + body.replace("DELIMITER", delimiter)).encode(encoding)
    path.write_bytes(content)
    after = re.split(rb"\r\n|\r|\n", content, maxsplit=1)[1]
    dialect = Dialect(delimiter=delimiter)
    expected = rows_of(after, width, delimiter.encode(), block)
    kept = [row for row in expected if row is not None]
    with mock.patch.object(text, "BLOCK_BYTES", block):
        words, bad_lines = read(path, width, dialect, words=True)
        numbers, bad_again = read(path, width, dialect, words=False)
    assert words == [[text_of(cell).encode() for cell in row] for row in kept]
    assert bad_lines == bad_again == len(expected) - len(kept)
    said = [[CellType().read([cell]).values[0] for cell in row] for row in kept]
    assert np.array_equal(np.reshape(numbers, (-1, width)), np.reshape(said, (-1, width)), True)


class Slow:
    """A stream that gives a few bytes at a time."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._most = stream, most

    def read(self, size: int) -> Any:
        return self._stream.read(min(size, self._most))

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@settings(
    max_examples=max(30, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.sampled_from(["1", ",", "\n", "\r", "\r\n", '"', '""', '","', '"\n']), max_size=40)
)
def test_cells_of_several_lines_do_not_depend_on_where_a_block_ends(
    tmp_path: Path, parts: list[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"c0,c1\n" + "".join(parts).encode())
    found = []
    for most in (1, 2, 3, 1 << 20):
        slow = mock.patch.object(
            text, "stream_of", lambda path, _, n=most: Slow(path.open("rb"), n)
        )
        with slow, mock.patch.object(text, "BLOCK_BYTES", 512):
            found.append(read(path, 2, Dialect(delimiter=",", multiline=True), words=True))
    assert found == [found[0]] * len(found)


NUMBER = {"name": "a", "type": "number", "min": 0, "max": 9}


def kept(path: Path, **settings: Any) -> tuple[list[int], int]:
    """Return whole numbers of the column a, and how many lines were left out."""
    schema = Schema(dataset="d", unit="row", columns=[NUMBER], **settings)
    steps = [row for chunk in read_source(path, schema) for row in chunk]
    values = schema.grid().decode(np.array(steps).reshape(-1, 1) / 2**16)
    return values.round().astype(int).ravel().tolist(), check_file(path, schema).bad_lines


@pytest.mark.parametrize("before", [0, 1, 7, 60, 63, 64, 65])
def test_the_longest_line_is_the_same_wherever_it_stands(tmp_path: Path, before: int) -> None:
    """A block may begin with it or not, and it may be longer than what is read in one go."""
    path = tmp_path / "t.csv"
    with mock.patch.object(text, "BLOCK_BYTES", 64):
        for end in ("\n", "\r", "\r\n"):
            for length, count in ((64, 1), (65, 0), (100, 0), (129, 0), (1000, 0)):
                line = "3," + "x" * (length - 2)
                lines = ["a,b", *["1,y"] * before, line, *["2,z"] * 20]
                path.write_text(end.join(lines), newline="")
                assert kept(path) == ([1] * before + [3] * count + [2] * 20, 1 - count)


def test_a_record_of_several_lines_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with mock.patch.object(text, "BLOCK_BYTES", 64):
        for lines, expected in ((["x" * 20] * 2, 3), (["x" * 20] * 9, 0), (["x" * 99, "x"], 0)):
            cell = "\n".join(lines)
            path.write_text(f'a,b\n1,y\n3,"{cell}"\n2,z\n')
            assert [3] * (expected > 0) == [a for a in kept(path, multiline=True)[0] if a == 3]
            assert [a for a in kept(path, multiline=True)[0] if a < 3] == [1, 2]


@pytest.mark.parametrize(("last", "is_kept"), [(18, True), (19, False)])
def test_a_record_of_several_lines_has_their_bytes_and_line_ends(
    tmp_path: Path, last: int, is_kept: bool
) -> None:
    record = '3,"' + "x" * 20 + "\n" + "x" * 20 + "\n" + "x" * last + '"'
    assert (len(record) <= 64) is is_kept
    (tmp_path / "t.csv").write_text(f"a,b\n1,y\n{record}\n2,z\n")
    with mock.patch.object(text, "BLOCK_BYTES", 64):
        found = kept(tmp_path / "t.csv", multiline=True)[0]
    assert list(found) == ([1, 3, 2] if is_kept else [1, 2])


def test_a_line_may_end_one_cell_and_begin_another(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n"x\ny","z\nw"\n"1","2"\n')
    dialect = Dialect(delimiter=",", multiline=True)
    table = open_source(tmp_path / "t.csv", ["a", "b"], None, frozenset("ab"), dialect)
    found = [raw.cells for raw in table.chunks(10) if isinstance(raw.cells, list)]
    rows = [row for cells in found for row in zip(*(c.to_pylist() for c in cells), strict=True)]
    assert rows == [(b"x y", b"z w"), (b"1", b"2")]


@pytest.mark.parametrize("width", [15_000, 80_000])
def test_wide_tables_are_read_whole(tmp_path: Path, width: int) -> None:
    names = [f"ENSG{j:011d}" for j in range(width - 1)]
    path = tmp_path / "t.csv"
    cells = ",".join(["7"] * (width - 1))
    path.write_text(
        ",".join([*names, '"a"']) + f"\n{cells},1\n{cells}\n1\n{cells},2\n{cells},3,4\n"
    )
    assert kept(path) == ([1, 2], 1)
    path.write_text(",".join(["a", *names]) + f"\n1,{cells}\n2\n{cells},3,4\n")
    assert kept(path) == ([1, 2], 1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_lines_in_every_encoding(tmp_path: Path, encoding: str, packed: bool) -> None:
    body = '"a";"ö; x"\r\n1;"ü ""; y"\r\n\r\n2\r\n3;"open\r\n4;ß;5\r\n5;"two\nlines"\r\n6;'
    content = body.encode(encoding)
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    named = encoding if encoding in ("cp1252", "utf-16-le") else ""
    for block in (7, 1 << 22):
        with mock.patch.object(
            text, "BLOCK_BYTES", block if named == "" and block > 7 else 1 << 22
        ):
            assert kept(path, encoding=named) == ([1, 2, 6], 3)
            assert kept(path, encoding=named, multiline=True) == ([1, 2, 5, 6], 2)


@pytest.mark.parametrize(("cells", "passes"), [("1,2\n3,na\n,4\n", 1), ("1,2\nx,3\n", 2)])
def test_plain_numbers_are_read_in_one_pass(tmp_path: Path, cells: str, passes: int) -> None:
    """Of a file with another cell, what was read before is read again."""
    (tmp_path / "t.csv").write_text("c0,c1\n" + cells)
    with mock.patch.object(text, "Lines", wraps=text.Lines) as opened:
        rows, _ = read(tmp_path / "t.csv", 2, Dialect(delimiter=","), words=False)
    assert (len(rows), opened.call_count) == (cells.count("\n"), passes)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, -1])
def test_lines_are_given_in_pieces_of_any_size_and_none_is_lost(size: int) -> None:
    body = b'1,2\n"a,b",4\n,\n'
    dialect = Dialect(delimiter=",")
    lines = text.Lines(io.BytesIO(b"x,y\n" + body), dialect, 2, padded=False)
    assert lines.read(0) == b""
    pieces = list(iter(lambda: lines.read(size), b""))
    assert b"".join(pieces).lstrip(b"\n") == body
    assert size < 0 or max(map(len, pieces)) <= size
    assert size > 0 or len(pieces) == 1


@pytest.mark.parametrize("length", [5, 6, 7, 8])
def test_a_line_end_of_two_bytes_stays_one_wherever_a_block_ends(length: int) -> None:
    body = b"x" * length + b"\r\n"
    with mock.patch.object(text, "BLOCK_BYTES", 8):
        lines = text.Lines(io.BytesIO(b"x\n" + body), Dialect(delimiter=","), 1, padded=False)
        assert b"".join(iter(lines.read, b"")).lstrip(b"\n") == body


class Watched(io.BytesIO):
    """A stream that notes, at each read, what its reader keeps of a line."""

    reader: text.Lines | None = None

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.kept: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.kept.append(len(self.reader._rest) if self.reader else 0)
        return super().read(size)


def test_a_file_is_read_in_blocks_not_byte_by_byte() -> None:
    body = b"1,2\n" * 5_000
    stream = Watched(b"x,y\n" + body)
    with mock.patch.object(text, "BLOCK_BYTES", 1_000):
        lines = text.Lines(stream, Dialect(delimiter=","), 2, padded=False)
        assert b"".join(iter(lines.read, b"")).lstrip(b"\n") == body
    assert len(stream.kept) < 2 * len(body) / 1_000


def test_of_a_line_that_is_too_long_no_more_than_a_block_is_kept() -> None:
    stream = Watched(b"x\n1\n" + b"2" * 100 + b"\n3\n")
    with mock.patch.object(text, "BLOCK_BYTES", 8):
        stream.reader = lines = text.Lines(stream, Dialect(delimiter=","), 1, padded=False)
        found = b"".join(iter(lines.read, b""))
    assert found.split(b"\n") == [b"", b"1", b",", b"3", b""]
    assert max(stream.kept) == 9  # one more, which shows that it is too long


def test_a_header_without_a_line_end_has_no_lines() -> None:
    lines = text.Lines(io.BytesIO(b"x,y"), Dialect(delimiter=","), 2, padded=False)
    assert lines.is_empty
    assert lines.read() == b""


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_header_of_the_most_bytes_is_read_and_a_longer_one_refused(
    tmp_path: Path, end: str
) -> None:
    slow = mock.patch.object(text, "stream_of", lambda path, _: Slow(path.open("rb"), 8))
    path = tmp_path / "t.csv"
    with slow, mock.patch.object(text, "_MOST_HEADER_BYTES", 8):
        path.write_text("a,b,c,dd" + end, newline="")
        assert header(path) == ("a", "b", "c", "dd")
        path.write_text("a,b,c,ddd" + "x" * 8 + end, newline="")
        with pytest.raises(DataError, match="is longer than 8 bytes"):
            header(path)


def test_a_header_ends_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('b,"a\n1,2\n')
    assert kept(path) == ([2], 0)
    path.write_text('"b,a\n1,2\n')
    with pytest.raises(DataError, match="no column 'a'"):
        kept(path)
    assert text.split_fields('x,"y ""z"", w', ",") == ["x", 'y "z", w']
    assert text.split_fields('"x","y"z,""', ",") == ["x", '"y"z', ""]


def test_a_word_is_the_same_in_a_text_table_and_in_a_frame(tmp_path: Path) -> None:
    """Also one that another program broke: UTF-8 that was read as Latin-1, and written again."""
    words = ["Ã¤", "ä", "x"]
    column = {"name": "a", "type": "category", "categories": words}
    schema = Schema(dataset="d", unit="row", columns=[column])
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a", *words]), encoding="utf-8")
    for source in (path, pd.DataFrame({"a": words}), [[word] for word in words]):
        assert read_floats(source, ("a",), schema).tolist() == [[0], [1], [2]]
    assert list(read_words(path, ["a"])) == [(word,) for word in words]
    path.write_bytes("a\nä\nx\n".encode("latin1"))
    assert list(read_words(path, ["a"])) == [("ä",), ("x",)]


def test_words_of_a_workbook_are_read_row_by_row() -> None:
    words = list(read_words(Path(__file__).parent / "ward.xlsx", ["sex", "born"]))
    assert words == [("männlich", "1962-01-01"), ("2.0", "2.7.2021"), ("1.0", "1.1.2024")]


def test_a_table_that_is_left_early_is_not_read_on_by_other_threads(tmp_path: Path) -> None:
    (path := tmp_path / "t.csv").write_bytes(b"a\n" + b"1234567\n" * 1_000_000)
    read, blocks = text.Lines.read, list[bytes]()

    def spy(lines: text.Lines, size: int = -1) -> bytes:
        blocks.append(read(lines, size))
        return blocks[-1]

    head = text.read_header(path, "t", Dialect(delimiter=","), None)
    table = text.TextTable(path, head, [0], [True])
    with (
        mock.patch.object(text, "BLOCK_BYTES", 1 << 12),
        mock.patch.object(text.Lines, "read", spy),
    ):
        batches = table.batches([])
        next(batches)
        batches.close()
    assert blocks[-1] == b""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork repeats the end of Python quickly")
def test_python_ends_well_right_after_a_file_is_read(tmp_path: Path) -> None:
    """A thread of Arrow that still freed the file aborted a third of these processes."""
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 200)
    code = (
        "import os, sys, pyarrow.csv, pyarrow.compute\n"
        "from cloister.data import read_floats\n"
        "ends = []\n"
        "for _ in range(25):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        f"        read_floats({str(path)!r}, ['a', 'b'])\n"
        "        sys.exit(0)\n"
        "    ends.append(os.waitpid(child, 0)[1])\n"
        "print(ends)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == str([0] * 25), found.stderr
