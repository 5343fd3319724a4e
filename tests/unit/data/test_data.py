"""Reading records: the same grid from every source, and nothing in a record stops it."""

from __future__ import annotations

import csv
import decimal
import gzip
import math
import os
import subprocess
import sys
import threading
import traceback
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import PicklingError, dumps
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloister import data
from cloister.core.compiled import can_order
from cloister.core.errors import DataError, PlanError
from cloister.data import Records, array_records, as_silos, check_file, header, read_source
from cloister.data.records import _Seal, default_rows, read_rows
from cloister.data.schema import Schema
from cloister.hazmat.fixedpoint import Grid

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"
KEY = bytes(range(32))
BOX = Grid(low=(0.0, -1.0), high=(10.0, 1.0))


def schema(*columns: dict[str, Any], **values: Any) -> Schema:
    rules = [{"type": "number", "min": 0, "max": 10, **column} for column in columns]
    return Schema(**{"dataset": "ward", "unit": "row", "columns": rules, **values})


def stacked(records: Records) -> NDArray[np.int32]:
    chunks = list(records)
    return np.concatenate(chunks) if chunks else np.empty((0, records.n_features), np.int32)


def values(records: Records, rules: Schema) -> list[list[float]]:
    """The records in data units, to the fineness of the grid."""
    grid = rules.grid()
    return np.round(grid.decode(stacked(records) / grid.one), 3).tolist()


# --- The same records from every source -----------------------------------------------------------

TWO = schema({"name": "a"}, {"name": "b", "min": -1, "max": 1})
ROWS = np.round(np.random.default_rng(1).uniform([-1, -1.2], [11, 1.2], size=(257, 2)), 3)


def text(delimiter: str, end: str = "\n", rows: NDArray[np.float64] = ROWS) -> str:
    lines = [f"note{delimiter}b{delimiter}a"]
    lines += [f'"x{delimiter} ""y"""{delimiter}{b!r}{delimiter} {a!r}' for a, b in rows.tolist()]
    return end.join(lines) + end


def write(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(content.encode(encoding))
    return path


def gzipped(path: Path) -> Path:
    path.write_bytes(gzip.compress(text(",").encode()))
    return path


def parquet(path: Path) -> Path:
    pd.DataFrame({"b": ROWS[:, 1], "id": "x", "a": ROWS[:, 0]}).to_parquet(path)
    return path


def folder(path: Path) -> Path:
    """Two parts, the later one written first, its columns in another order."""
    path.mkdir()
    (path / "_SUCCESS").write_text("")
    pd.DataFrame({"b": ROWS[100:, 1], "a": ROWS[100:, 0]}).to_parquet(path / "part-1.parquet")
    pd.DataFrame({"a": ROWS[:100, 0], "b": ROWS[:100, 1]}).to_parquet(path / "part-0.parquet")
    return path


FRAME = pd.DataFrame({"b": ROWS[:, 1], "id": "x", "a": ROWS[:, 0]})
SOURCES: dict[str, Callable[[Path], Any]] = {
    "array": lambda _: ROWS,
    "fortran": lambda _: np.asfortranarray(ROWS),
    "objects": lambda _: ROWS.astype(object),
    "texts": lambda _: ROWS.astype(str),
    "rows": lambda _: ROWS.tolist(),
    "tuples": lambda _: [tuple(row) for row in ROWS.tolist()],
    "pandas": lambda _: FRAME,
    "pandas text": lambda _: FRAME.astype(str),
    "pandas object": lambda _: FRAME.astype(object),
    "pandas nullable": lambda _: FRAME.convert_dtypes(),
    "pandas arrow": lambda _: FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "pandas category": lambda _: FRAME.astype("category"),
    "pandas blank names": lambda _: FRAME.rename(columns={"a": " a "}),
    "polars": lambda _: pl.from_pandas(FRAME),
    "polars text": lambda _: pl.from_pandas(FRAME).cast(pl.String),
    "polars category": lambda _: pl.from_pandas(FRAME).cast(pl.String).cast(pl.Categorical),
    "arrow": lambda _: pa.Table.from_pandas(FRAME),
    "arrow decimal": lambda _: pa.table(
        {n: pa.array([decimal.Decimal(repr(v)) for v in FRAME[n].tolist()]) for n in "ab"}
    ),
    "comma": lambda p: write(p / "t.csv", text(",")),
    "semicolon": lambda p: write(p / "t.CSV", text(";")),
    "tab": lambda p: str(write(p / "t.tsv", text("\t"))),
    "bar": lambda p: write(p / "t.txt", text("|")),
    "windows": lambda p: write(p / "t.csv", text(";", "\r\n"), "utf-8-sig"),
    "no last newline": lambda p: write(p / "t.csv", text(",").rstrip()),
    "blank lines": lambda p: write(p / "t.csv", text(",", "\n\n")),
    "gzip": lambda p: gzipped(p / "t.csv.gz"),
    "parquet": lambda p: parquet(p / "t.parquet"),
    "folder": lambda p: folder(p / "parts"),
    "dataset": lambda p: pads.dataset(folder(p / "parts")),
    "dataset in memory": lambda _: pads.dataset(pa.Table.from_pandas(FRAME)),
    "dataset of text": lambda p: pads.dataset(write(p / "t.csv", text(",")), format="csv"),
}


@pytest.mark.parametrize(
    ("columns", "rows"),
    [(0, 65_536), (1, 65_536), (8, 65_536), (9, 58_254), (512, 1024), (513, 1024), (9999, 1024)],
)
def test_a_chunk_has_half_a_million_cells_or_1024_to_65_536_rows(columns: int, rows: int) -> None:
    assert default_rows(columns) == rows


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("chunk_rows", [None, 7, 100])
def test_every_source_gives_the_same_grid(
    tmp_path: Path, kind: str, chunk_rows: int | None
) -> None:
    expected, source = TWO.grid().encode(ROWS), SOURCES[kind](tmp_path)
    for memory_limit in (0, 1 << 20):
        records = read_source(source, TWO, chunk_rows=chunk_rows, memory_limit=memory_limit)
        found = stacked(records)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(stacked(records), expected)  # again and again
        assert all(len(chunk) <= (chunk_rows or len(ROWS)) for chunk in records)


def test_a_parquet_file_says_what_its_columns_are(tmp_path: Path) -> None:
    found = {
        "boolean": [pa.bool_()],
        "date": [pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("s", "UTC")],
        "integer": [pa.int8(), pa.uint64()],
        "number": [pa.float32(), pa.float64(), pa.decimal128(9, 2)],
        "category": [pa.string(), pa.large_binary(), pa.list_(pa.int8())],
    }
    kinds = {str(kind): (name, kind) for name, types in found.items() for kind in types}
    empty = pa.table({column: pa.array([], kind) for column, (_, kind) in kinds.items()})
    pq.write_table(empty, tmp_path / "t.PQ")
    expected = {column: {"type": name} for column, (name, _) in kinds.items()}
    assert data.declared_types(tmp_path / "t.PQ") == expected
    (tmp_path / "t.csv").write_text("a,b\n")
    assert data.declared_types(tmp_path / "t.csv") == {}
    assert data.declared_types(tmp_path / "none.parquet") == {}


def test_chunks_are_sealed_in_their_order_however_long_one_takes() -> None:
    ended, another = [], threading.Event()

    class Slow(_Seal):
        def _update(self, steps: Any, marked: Any) -> None:
            if steps == "first":
                another.wait(0.02)  # gives others a chance to go first, which they must not take
            else:
                another.set()
            ended.append(steps)

    seal = Slow(2)
    for steps in ("first", "second", "third"):
        seal.add(SimpleNamespace(steps=steps, marked=None))  # type: ignore[arg-type]
    seal.digest()
    assert ended == ["first", "second", "third"]
    threads = seal._worker._threads  # its own: another reading may have one at this time
    assert not any(thread.is_alive() for thread in threads), "it left its thread"


def test_records_in_memory_are_ordered_once_and_others_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_order():  # another order in place of that of the compiled package
        is_on = "cloister.data.records.can_order"
        monkeypatch.setattr(is_on, lambda: os.environ.get("CLOISTER_ORDERED") != "off")
        reverse = "cloister.data.records.ordered"
        monkeypatch.setattr(reverse, lambda tables: np.concatenate(tables)[::-1])
    records = read_source(ROWS, TWO, chunk_rows=100)
    (first,), (second,) = records.in_order, records.in_order
    assert first is second
    found = stacked(records)
    assert sorted(first.tolist()) == sorted(found.tolist())
    assert first.tolist() != found.tolist()
    assert list(read_source(ROWS[:0], TWO).in_order) == []
    again = read_source(write(tmp_path / "t.csv", text(",")), TWO, memory_limit=0)
    assert again.in_order is again
    monkeypatch.setenv("CLOISTER_ORDERED", "off")
    unordered = read_source(ROWS, TWO)
    assert unordered.in_order is unordered


def test_plain_bounds_read_all_columns_in_order(tmp_path: Path) -> None:
    expected = BOX.encode(ROWS)
    frame = pd.DataFrame(ROWS, columns=["any", "name"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    for source in (ROWS, ROWS.tolist(), frame, pl.from_pandas(frame), tmp_path / "t.csv"):
        np.testing.assert_array_equal(stacked(array_records(source, BOX)), expected)
    with pytest.raises(DataError, match="has 2 columns, but there are bounds for 1"):
        array_records(ROWS, Grid(low=(0.0,), high=(1.0,)))


def test_plain_bounds_clip_and_drop_records_with_a_missing_value() -> None:
    rows = [[99.0, -9.0], [math.nan, 0.0], [5.0, math.inf], [0.0, 1.0]]
    one = BOX.one
    assert stacked(array_records(rows, BOX)).tolist() == [[one, -one], [-one, one]]


def test_masked_and_integer_and_boolean_arrays_are_read_as_numbers() -> None:
    masked = np.ma.masked_array([[1, 0], [2, 1]], mask=[[False, True], [False, False]])
    assert len(stacked(array_records(masked, BOX))) == 1
    whole = stacked(array_records(np.array([[1.0, 0.0]]), BOX))
    for kind in (np.int8, np.uint64, np.bool_, np.float16, np.float32):
        np.testing.assert_array_equal(
            stacked(array_records(np.array([[1, 0]], dtype=kind), BOX)), whole
        )


def test_header_tells_names_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"age;weight, kg;x\n" + bytes(range(256)))
    assert header(tmp_path / "t.csv") == ("age", "weight, kg", "x")
    assert header(parquet(tmp_path / "t.parquet")) == ("b", "id", "a")
    assert header(FRAME) == ("b", "id", "a")
    assert header(pl.from_pandas(FRAME)) == ("b", "id", "a")
    assert header([[1.0, 2.0]]) == ("x0", "x1")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin1"])
def test_names_and_units_outside_ascii_are_read(tmp_path: Path, encoding: str) -> None:
    rules = schema({"name": "größe"}, unit="id", max_rows=1)
    path = write(tmp_path / "t.csv", "id,größe\nJürg,1\nJörg,2\nJürg,3\n", encoding)
    assert values(read_source(path, rules), rules) == [[1], [2]]


def test_delimiter_is_the_one_that_shows_the_schemas_names(tmp_path: Path) -> None:
    content = "unused|a;b one,c one\n9|1;5,7\n"
    path = write(tmp_path / "t.csv", content)
    rules = schema({"name": "b one,c one"})
    with pytest.raises(DataError, match="no column"):
        read_source(path, schema({"name": "b one,d"}))
    # with ';' the last field is 5,7: no number, so the record is dropped
    assert values(read_source(path, rules), rules) == []
    by_comma = schema({"name": "c one"})
    assert values(read_source(path, by_comma), by_comma) == [[7.0]]


# --- Rules, record by record ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({}, [10.0, 0.0, 2.5]),
        ({"out_of_range": "drop"}, [2.5]),
        ({"missing": "min"}, [10.0, 0.0, 0.0, 2.5]),
        ({"missing": "max"}, [10.0, 0.0, 10.0, 2.5]),
        ({"missing": "midpoint"}, [10.0, 0.0, 5.0, 2.5]),
        ({"missing": 4, "out_of_range": "drop"}, [4.0, 2.5]),
    ],
)
def test_missing_and_out_of_range_follow_the_rule(rule: dict[str, Any], kept: list[float]) -> None:
    rules = schema({"name": "a", **rule})
    rows = [[11.0], [-0.5], [math.nan], [2.5]]
    assert values(read_source(rows, rules), rules) == pytest.approx(np.array(kept)[:, None])


def test_one_bad_cell_drops_its_own_record_only() -> None:
    rules = schema({"name": "a"}, {"name": "b", "missing": 3}, {"name": "c"})
    rows = [[1, 1, 1], [math.nan, 2, 2], [3, math.nan, 3], [4, 4, math.nan]]
    assert values(read_source(rows, rules), rules) == [[1, 1, 1], [3, 3, 3]]


@pytest.mark.parametrize(
    ("kind", "cells", "kept"),
    [
        (
            "number",
            "1 +2 3. .5 1e1 -0 1e999 nan inf NA x 0x1 1_0 1,5 --1 true 5e 1d2",
            [1, 2, 3, 0.5, 10, 0, 1],
        ),
        ("integer", "1 2.0 2.5 1e1 x true FALSE yes", [1, 2, 10, 1, 0]),
        ("boolean", "1 0 1.0 2 0.5 true FALSE Yes n x NA -1", [1, 0, 1, 1, 0, 1, 0]),
    ],
)
@pytest.mark.parametrize("form", ["csv", "pandas", "array", "rows"])
def test_a_cell_of_a_wrong_type_is_missing(
    tmp_path: Path, kind: str, cells: str, kept: list[float], form: str
) -> None:
    bounds = {"min": 0, "max": 1} if kind == "boolean" else {}
    rules = schema({"name": "a", "type": kind, **bounds})
    source: Any = [[cell] for cell in cells.split()]
    if form == "csv":
        source = write(tmp_path / "t.csv", "z\ta\n" + "".join(f"9\t{c}\n" for c in cells.split()))
    elif form == "pandas":
        source = pd.DataFrame({"a": cells.split()})
    elif form == "array":
        source = np.array(source)
    assert values(read_source(source, rules), rules) == [[value] for value in kept]


def test_typed_columns_obey_the_type_rule_too() -> None:
    whole = schema({"name": "a", "type": "integer"})
    flag = schema({"name": "a", "type": "boolean", "min": 0, "max": 1})
    for make in (pd.DataFrame, pl.DataFrame, pa.table):
        numbers = make({"a": [1.0, 1.5, 0.0, math.nan, math.inf]})
        assert values(read_source(numbers, whole), whole) == [[1], [0]]
        assert values(read_source(numbers, flag), flag) == [[1], [0]]
        truths = make({"a": [True, False, None]})
        assert values(read_source(truths, flag), flag) == [[1], [0]]
    nullable = pd.DataFrame({"a": pd.array([3, None, 4], dtype="Int64")})
    assert values(read_source(nullable, whole), whole) == [[3], [4]]


def test_python_objects_in_a_column_are_read_or_missing() -> None:
    class Odd:
        pass

    cells = [1, 2.5, "3", decimal.Decimal("4"), b"5", np.float32(6), np.int64(7), True, 8 + 0j]
    bad = [None, pd.NA, pd.NaT, Odd(), [8], {"a": 9}, 1j, 10**400, "", "\ud800", b"\xff"]
    rules = schema({"name": "a"})
    frame = pd.DataFrame({"a": pd.Series([*cells, *bad], dtype=object)})
    expected = [[1], [2.5], [3], [4], [5], [6], [7], [1], [8]]
    assert values(read_source(frame, rules), rules) == expected


def test_the_grid_integer_of_a_record_depends_on_that_record_alone() -> None:
    """D12: no minimum, maximum or mean of the data enters."""
    alone = stacked(array_records(ROWS[:1], BOX))
    among = stacked(array_records(np.vstack([ROWS, [[1e9, -1e9]]]), BOX))
    np.testing.assert_array_equal(among[:1], alone)


def test_a_line_with_the_letter_x_is_a_line(tmp_path: Path) -> None:
    """D24: the published loader drops it."""
    rules = schema({"name": "a"})
    path = write(tmp_path / "t.csv", "who,a\nxavier,1\nmax,2\n# x,3\n")
    assert values(read_source(path, rules), rules) == [[1], [2], [3]]


def test_a_long_line_is_dropped_and_a_short_one_lacks_its_last_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'a,b\n1,2\n3\n4,5,6\n,7\n"5"\n8,9\n')
    rules = schema({"name": "a"}, {"name": "b"})
    assert values(read_source(path, rules), rules) == [[1, 2], [8, 9]]
    filled = schema({"name": "a"}, {"name": "b", "missing": 4})
    assert values(read_source(path, filled), filled) == [[1, 2], [3, 4], [5, 4], [8, 9]]
    rows = [[1, 2], (3,), [4, 5, 6], [None, 7], np.array([5.0]), 17, None, "8,9", [], [8, 9]]
    assert values(read_source(rows, rules), rules) == [[1, 2], [8, 9]]
    assert values(read_source(rows, filled), filled) == [[1, 2], [3, 4], [5, 4], [8, 9]]
    report = check_file(rows, filled)
    assert (report.rows, report.used, report.bad_lines) == (10, 4, 4)


def test_rows_that_are_answered_line_by_line_lack_none(tmp_path: Path) -> None:
    """The prediction of the n-th row of a file would stand beside another row."""
    rules = schema({"name": "a"}, {"name": "b"})
    path = write(tmp_path / "t.csv", "a,b\n1,2\n4,5,6\n8,9\n")
    for ask in (lambda: data.read_rows(path, rules), lambda: data.read_floats(path)):
        with pytest.raises(DataError, match="too many fields or open quotes"):
            ask()


def test_quoted_fields_may_hold_delimiters_and_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'note,a\n"1,2\n3,4","5"\n"say ""hi""",6\n"7,",7\n')
    several = schema({"name": "a"}, multiline=True)
    assert values(read_source(path, several), several) == [[5], [6], [7]]
    rules = schema({"name": "a"})  # a line end closes a record
    assert values(read_source(path, rules), rules) == [[6], [7]]
    report = check_file(path, rules)
    assert (report.rows, report.used, report.bad_lines) == (4, 2, 2)


@pytest.mark.parametrize("content", ["a,b", "a,b\n", "a,b\n\n\n", "a,b\r\n"])
def test_a_file_without_records_is_a_silo_without_records(tmp_path: Path, content: str) -> None:
    rules = schema({"name": "a"}, {"name": "b"})
    records = read_source(write(tmp_path / "t.csv", content), rules)
    assert list(records) == []
    assert len(records.fingerprint(KEY)) == 32
    assert check_file(tmp_path / "t.csv", rules).rows == 0


def test_tables_without_records_are_silos_without_records() -> None:
    for source in (np.empty((0, 2)), FRAME.iloc[:0], pl.from_pandas(FRAME.iloc[:0])):
        assert list(read_source(source, TWO)) == []
        assert check_file(source, TWO).used == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.one_of(st.binary(max_size=80), st.text('0123456789.-+eE,"\n\r xNa', max_size=80)))
def test_no_content_of_a_text_table_raises(tmp_path: Path, body: bytes | str) -> None:
    path = tmp_path / "t.csv"
    encoded = body if isinstance(body, bytes) else body.encode()
    path.write_bytes(b"a,b,id\n" + encoded)
    rules = schema({"name": "a"}, {"name": "b", "missing": "min"}, unit="id", max_rows=1)
    one = rules.grid().one
    for several in (False, True):
        rules = rules.model_copy(update={"multiline": several})
        for chunk in read_source(path, rules, chunk_rows=2, memory_limit=0):
            assert np.abs(chunk).max() <= one
        check_file(path, rules)


@pytest.mark.parametrize("line", ['5,5,"unclosed', '5,"5"5,x', '5,5,"a\n'])
@pytest.mark.parametrize("before", [0, 1, 20])
def test_a_quote_that_does_not_match_drops_its_own_line_alone(
    tmp_path: Path, line: str, before: int
) -> None:
    lines = ["1,1,x"] * before + [line] + ["1,1,x"] * 20
    path = write(tmp_path / "t.csv", "a,b,id\n" + "\n".join(lines))
    for several in (False, True):  # what opens and is never closed ends with its line, too
        rules = TWO.model_copy(update={"multiline": several})
        report = check_file(path, rules)
        assert (report.rows, report.used, report.bad_lines) == (before + 21, before + 20, 1)
        assert len(stacked(read_source(path, rules))) == before + 20


@given(note=st.text(max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_csv_writer_wrote_adds_one_record_a_row(tmp_path: Path, note: str) -> None:
    path = tmp_path / "t.csv"
    rows = [[0.25, -0.5, note], [0.5, 0.5, ""]]
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([["a", "b", "note"], *rows])
    assert sum(len(chunk) for chunk in read_source(path, TWO)) == len(rows)


cell_values = st.one_of(
    st.none(), st.floats(), st.integers(), st.text(max_size=4), st.booleans(), st.binary(max_size=3)
)


@given(rows=st.lists(st.tuples(cell_values, cell_values, cell_values), max_size=8))
def test_no_content_of_a_table_raises(rows: list[tuple[Any, Any, Any]]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b", "id"], dtype=object)
    rules = schema({"name": "a"}, {"name": "b", "type": "boolean", "min": 0, "max": 1})
    by_unit = schema({"name": "a", "missing": 1}, unit="id", max_rows=2)
    for used in (rules, by_unit):
        for chunk in read_source(frame, used):
            assert np.abs(chunk).max() <= used.grid().one
        check_file(frame, used)


@given(
    rows=st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=8),
    low=st.floats(-1e100, 0.9e100),
)
def test_numbers_of_any_size_stay_in_the_box(rows: list[tuple[float, float]], low: float) -> None:
    rules = schema({"name": "a", "min": low, "max": 1e100}, {"name": "b", "missing": "max"})
    with np.errstate(all="raise"):
        for chunk in read_source(np.array(rows), rules):
            assert np.abs(chunk).max() <= rules.grid().one


# --- The unit of privacy --------------------------------------------------------------------------


def visits(max_rows: int, **rule: Any) -> Schema:
    return schema({"name": "a", "max": 100, **rule}, unit="id", max_rows=max_rows)


def first_rows(ids: Sequence[Any], numbers: Sequence[float], max_rows: int) -> list[list[float]]:
    """The public rule, said once more in plain Python."""
    seen: dict[Any, int] = defaultdict(int)
    kept = []
    for who, number in zip(ids, numbers, strict=True):
        if who is None or math.isnan(number):
            continue
        seen[who] += 1
        if seen[who] <= max_rows:
            kept.append([number])
    return kept


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.sampled_from(["ann", "bob", "eve"])),
            st.one_of(st.just(math.nan), st.integers(0, 100).map(float)),
        ),
        min_size=1,
        max_size=30,
    ),
    max_rows=st.integers(1, 3),
    chunk_rows=st.integers(1, 31),
)
def test_the_first_rows_of_each_unit_are_kept_through_all_chunks(
    tmp_path: Path, rows: list[tuple[str | None, float]], max_rows: int, chunk_rows: int
) -> None:
    ids, numbers = zip(*rows, strict=True)
    rules, expected = visits(max_rows), first_rows(ids, numbers, max_rows)
    frame = pd.DataFrame({"id": pd.Series(ids, dtype=object), "a": numbers})
    frame.to_csv(tmp_path / "t.csv", index=False)
    pl.from_pandas(frame).write_parquet(tmp_path / "t.parquet", row_group_size=4)
    for source in (frame, pl.from_pandas(frame), tmp_path / "t.csv", tmp_path / "t.parquet"):
        for limit in (0, 1 << 20):
            records = read_source(source, rules, chunk_rows=chunk_rows, memory_limit=limit)
            assert values(records, rules) == expected
            assert values(records, rules) == expected  # the count starts anew at each pass
            assert all(len(chunk) for chunk in records)


def test_removing_a_unit_removes_at_most_max_rows_and_touches_no_other() -> None:
    generator = np.random.default_rng(5)
    frame = pd.DataFrame({"id": generator.integers(0, 9, 200), "a": np.arange(200) / 2})
    rules = visits(3)
    whole = values(read_source(frame, rules), rules)
    for who in range(9):
        without = values(read_source(frame[frame["id"] != who], rules), rules)
        gone = [row for row in whole if row not in without]
        assert [row for row in whole if row in without] == without
        assert 0 < len(gone) <= 3


def test_spellings_of_one_unit_are_one_unit(tmp_path: Path) -> None:
    rules = visits(1)
    mixed = pd.DataFrame({"id": [7, 7.0, "7", " 7 ", b"7", np.int64(7)], "a": range(6)})
    assert values(read_source(mixed, rules), rules) == [[0]]
    quoted = write(tmp_path / "t.csv", 'id,a\n7,0\n"7",1\n 7 ,2\n8,3\n')
    assert values(read_source(quoted, rules), rules) == [[0], [3]]


def test_whole_numbers_as_text_are_one_unit_however_they_are_written(tmp_path: Path) -> None:
    same = ["7", "7.0", "07", "7\u00a0", "\u200b7", "+7", "0007.00", "\uff17", "\u0667", "7\ufe0f"]
    others = ["8", "-7", "70", "7.5", "x7", "7 1"]
    rules = visits(1)
    frame = pd.DataFrame({"id": [*same, *others], "a": range(len(same) + len(others))})
    kept = values(read_source(frame, rules), rules)
    assert kept == [[0], *([len(same) + i] for i in range(len(others)))]
    report = check_file(frame, rules)
    # blanks around never made two of one
    merged = tuple(way for way in same if way != "7\u00a0")
    assert (report.beyond_max_rows, report.merged_units) == (len(same) - 1, (merged,))
    assert "one unit: '7', '7.0', '07'" in str(report)
    text = write(tmp_path / "t.csv", "id,a\n7,0\n7,1\n07,2\nx,3\n")
    report = check_file(text, rules)
    assert (report.used, report.beyond_max_rows, report.merged_units) == (2, 2, (("7", "07"),))


def test_words_that_look_alike_are_one_unit_and_none_is_no_unit() -> None:
    rules = visits(1)
    words = ["Mu\u0308ller", "M\u00fcller", "M\u00fcl\u00adler", "\u200b", "muller"]
    frame = pd.DataFrame({"id": words, "a": range(len(words))})
    assert values(read_source(frame, rules), rules) == [[0], [4]]


def test_long_identifiers_are_not_rounded() -> None:
    rules, first = visits(1), 10**17
    frame = pd.DataFrame({"id": [first, first + 1, first], "a": [1, 2, 3]})
    assert values(read_source(frame, rules), rules) == [[1], [2]]
    assert values(read_source(frame.astype({"id": object}), rules), rules) == [[1], [2]]
    assert values(read_source(pa.Table.from_pandas(frame), rules), rules) == [[1], [2]]


def test_records_without_a_unit_are_dropped() -> None:
    rules = visits(5)
    for ids in ([None, "", "  ", "x"], [math.nan, None, pd.NA, 1], [pd.NaT, None, None, "y"]):
        frame = pd.DataFrame({"id": pd.Series(ids, dtype=object), "a": range(4)})
        assert values(read_source(frame, rules), rules) == [[3]]
    empty = pa.table({"id": pa.nulls(2), "a": [1, 2]})
    assert values(read_source(empty, rules), rules) == []


def test_rows_are_as_the_rules_have_them_and_nan_where_one_drops_its_record() -> None:
    rows = np.array([[5.0, 0.5], [11.0, 0.5], [math.nan, 3.0]])
    columns = [{"name": "a", "missing": "max"}, {"name": "b", "min": -1, "max": 1}]
    assert read_rows(rows, schema(*columns)).tolist() == [[5, 0.5], [11, 0.5], [10, 3]]
    found = read_rows(rows, schema(*({**one, "out_of_range": "drop"} for one in columns)))
    np.testing.assert_array_equal(found, [[5, 0.5], [math.nan, 0.5], [10, math.nan]])


def test_a_row_that_is_too_long_is_no_row_to_be_counted() -> None:
    rows = [[1, 0.5], [2, 0.5, 7], [3, 0.5]]
    assert values(read_source(rows, TWO), TWO) == [[1, 0.5], [3, 0.5]]
    for read in (data.read_floats, lambda source: read_rows(source, TWO)):
        with pytest.raises(DataError, match="rows with too many fields"):
            read(rows)


def test_dropped_records_do_not_use_up_a_units_rows() -> None:
    rules = visits(1, out_of_range="drop")
    frame = pd.DataFrame({"id": [1, 1, 1], "a": [math.nan, 101.0, 7.0]})
    assert values(read_source(frame, rules), rules) == [[7]]


# --- Fingerprints and files that change -----------------------------------------------------------


def test_fingerprint_depends_on_records_order_and_key_only(tmp_path: Path) -> None:
    base = read_source(ROWS, TWO).fingerprint(KEY)
    path = write(tmp_path / "t.csv", text(";"))
    for chunk_rows in (1, 10, 1000):
        for limit in (0, 1 << 20):
            read = read_source(path, TWO, chunk_rows=chunk_rows, memory_limit=limit)
            assert read.fingerprint(KEY) == base
    other = ROWS.copy()
    other[200, 1] = 0.123
    assert read_source(other, TWO).fingerprint(KEY) != base
    assert read_source(ROWS[::-1], TWO).fingerprint(KEY) != base
    assert read_source(ROWS[:-1], TWO).fingerprint(KEY) != base
    assert read_source(ROWS, TWO).fingerprint(bytes(32)) != base


def test_fingerprint_is_the_same_in_every_version() -> None:
    """Or a ledger would not know the data again."""
    rows = [[1, 0.5], [math.nan, 0], [20, -1]]
    known = "2c5d7e30f0af9c5e17953aba50208b5518154fb0309eceac7a86154c787c3f45"
    assert read_source(np.array(rows), TWO).fingerprint(KEY).hex() == known


def test_fingerprint_depends_on_which_cells_are_missing_and_on_no_chunk() -> None:
    rows = ROWS.copy()
    rows[[3, 77, 200], [0, 1, 0]] = np.nan
    base = read_source(rows, TWO).fingerprint(KEY)
    assert base != read_source(ROWS, TWO).fingerprint(KEY)
    for chunk_rows in (1, 10, 100):
        assert read_source(rows, TWO, chunk_rows=chunk_rows).fingerprint(KEY) == base
    rows[[77, 78], 1] = rows[[78, 77], 1]
    assert read_source(rows, TWO).fingerprint(KEY) != base


def test_a_header_is_read_in_an_encoding_that_python_knows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "größe,b\n1,2\n", "cp850")
    assert header(path, "cp850") == ("größe", "b")
    for source in (path, ROWS):
        with pytest.raises(
            DataError, match=r"encoding must be one that Python knows, .* got 'kling"
        ):
            header(source, "klingon")


def test_fingerprint_tells_the_shape_apart() -> None:
    line = Grid(low=(0.0,), high=(10.0,))
    square = Grid(low=(0.0, 0.0), high=(10.0, 10.0))
    flat = array_records([[1.0], [2.0]], line).fingerprint(KEY)
    assert array_records([[1.0, 2.0]], square).fingerprint(KEY) != flat


@pytest.mark.parametrize("size", [0, 15, 65])
def test_fingerprint_refuses_a_key_of_a_wrong_size(size: int) -> None:
    with pytest.raises(PlanError, match=f"got {size}"):
        array_records(ROWS, BOX).fingerprint(bytes(size))


def test_fingerprint_takes_a_key_of_16_to_64_bytes() -> None:
    found = {array_records(ROWS, BOX).fingerprint(bytes(size)) for size in (16, 17, 63, 64)}
    assert sorted(map(len, found)) == [32] * 4


def test_a_table_in_memory_is_read_once_however_large_it_is() -> None:
    table = ROWS.copy()
    records = read_source(table, TWO, memory_limit=0)
    expected = stacked(records)
    table[:] = 0
    np.testing.assert_array_equal(stacked(records), expected)


def test_a_file_is_read_again_if_its_records_are_a_byte_too_many(tmp_path: Path) -> None:
    size = stacked(read_source(ROWS, TWO)).nbytes
    for limit, is_kept in ((size, True), (size - 1, False)):
        path = write(tmp_path / "t.csv", text(","))
        records = read_source(path, TWO, memory_limit=limit)
        path.unlink()
        if is_kept:
            assert len(stacked(records)) == len(ROWS)
        else:
            with pytest.raises(DataError, match="cannot be read"):
                list(records)


def test_a_small_file_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", text(","))
    records = read_source(path, TWO)
    expected = stacked(records)
    path.unlink()
    np.testing.assert_array_equal(stacked(records), expected)


@pytest.mark.parametrize("kind", ["comma", "gzip", "parquet", "folder"])
def test_a_streamed_file_that_changes_is_noticed(tmp_path: Path, kind: str) -> None:
    path = SOURCES[kind](tmp_path)
    records = read_source(path, TWO, memory_limit=0)
    before = records.fingerprint(KEY)
    changed = ROWS.copy()
    changed[128, 0] = 5.5
    table = pd.DataFrame({"a": changed[:, 0], "b": changed[:, 1]})
    file = path / "part-1.parquet" if kind == "folder" else path
    original = file.read_bytes()
    if kind == "folder":
        table[100:].to_parquet(file)
    elif kind == "parquet":
        pd.DataFrame({"b": changed[:, 1], "id": "x", "a": changed[:, 0]}).to_parquet(file)
    else:
        content = text(",", rows=changed).encode()
        file.write_bytes(gzip.compress(content) if kind == "gzip" else content)
    with pytest.raises(DataError, match="changed while it was in use"):
        list(records)
    file.write_bytes(original)  # the same content again: no harm
    assert records.fingerprint(KEY) == before
    file.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(records)


def test_a_row_added_to_a_streamed_file_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", text(","))
    records = read_source(path, TWO, memory_limit=0)
    with path.open("a") as file:
        file.write("x,0.5,5\n")
    with pytest.raises(DataError, match="changed"):
        list(records)


def test_a_streamed_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).uniform(0, 1, (40_000, 2))
    columns = {"a": table[:, 0], "b": table[:, 1]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4_000)
    monkeypatch.setattr("cloister.data.encoding._BLOCK_VALUES", 64)  # so that rules are small
    tracemalloc.start()
    try:
        records = read_source(tmp_path / "t.parquet", TWO, chunk_rows=400, memory_limit=20_000)
        assert sum(len(chunk) for chunk in records) == 40_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000  # its grid records take 320,000 bytes


# --- What must not happen -------------------------------------------------------------------------


def test_encoding_an_array_takes_no_more_memory_than_the_array() -> None:
    X = np.zeros((200_000, 10), dtype=np.float32)
    grid = Grid(low=(-1.0,) * 10, high=(1.0,) * 10)
    tracemalloc.start()
    try:
        records = array_records(X, grid, chunk_rows=4_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(chunk) for chunk in records) == len(X)
    assert peak < 1.3 * X.nbytes


def test_chunks_cannot_be_written_and_do_not_share_the_callers_memory() -> None:
    X = ROWS.copy()
    records = array_records(X, BOX)
    before = stacked(records)
    X[:] = 0
    np.testing.assert_array_equal(stacked(records), before)
    chunk = next(iter(records))
    with pytest.raises(ValueError, match="read-only"):
        chunk[0, 0] = 1


@pytest.mark.parametrize("memory_limit", [1 << 30, 1])
def test_some_columns_are_those_of_the_same_records(tmp_path: Path, memory_limit: int) -> None:
    rules = schema(
        {"name": "a"}, {"name": "b"}, {"name": "c", "out_of_range": "drop"}, unit="who", max_rows=1
    )
    file = tmp_path / "ward.csv"
    file.write_text("c,a,b,who\n1,2,3,x\n99,4,5,y\n6,7,,z\n8,9,10,w\n0,0,0,w\n")

    def read(*columns: str, **options: Any) -> Records:
        return read_source(
            file, rules, columns=columns, memory_limit=memory_limit, chunk_rows=2, **options
        )

    whole = read_source(file, rules)
    assert values(whole, rules) == [[2, 3, 1], [9, 10, 8]]
    some = read("c", "a")
    assert some.n_features == 2
    for _ in range(2):  # z lacks b only, which is not used
        assert values(some, rules.select(["a", "c"])) == [[2, 1], [7, 6], [9, 8]]
    assert values(read("b"), rules.select(["b"])) == [[3], [5], [10]]  # y is bad in c alone
    assert check_file(file, rules).used == 2
    assert not any(chunk.flags.writeable for chunk in some)
    assert some.fingerprint(KEY) == read("b").fingerprint(KEY) == whole.fingerprint(KEY)
    assert stacked(read("a", "b", "c")).tolist() == stacked(whole).tolist()
    with pytest.raises(PlanError, match="the schema has no column 'd'"):
        read("a", "d")


def test_records_do_not_tell_how_many_they_are() -> None:
    records = array_records(ROWS, BOX)
    assert repr(records) == "Records(n_features=2)"
    assert not hasattr(records, "__len__")
    with pytest.raises((TypeError, AttributeError, PicklingError), match="pickle"):
        dumps(records)


def test_importing_reads_nothing_and_stays_light() -> None:
    """D23: no side effects; the heavy libraries come with the first file."""
    code = (
        "import os, sys\n"
        "def no(*_): raise AssertionError\n"
        "os.listdir = os.scandir = no\n"
        "import cloister.data, cloister_lab.metrics\n"
        "heavy = {'pandas', 'pyarrow', 'polars', 'sklearn', 'scipy', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(data.__file__).parents[3])},
    )
    assert found.stdout.strip() == "[]"


# --- Mistakes that are told before anything is spent ----------------------------------------------


def test_wrong_columns_are_a_data_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,c\n1,2\n")
    for source in (path, pd.DataFrame({"a": [1]}), pl.DataFrame({"a": [1]}), pa.table({"a": [1]})):
        with pytest.raises(DataError, match="has no column 'b'; correct the header"):
            read_source(source, TWO)
        with pytest.raises(DataError, match="has no column 'id'"):
            read_source(source, visits(1))
    twice = write(tmp_path / "u.csv", "a,b,a\n1,2,3\n")
    for source in (twice, pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])):
        with pytest.raises(DataError, match="more than one column 'a'"):
            read_source(source, TWO)


def test_a_folder_part_without_a_column_is_a_data_error(tmp_path: Path) -> None:
    folder(tmp_path / "parts")
    pd.DataFrame({"a": [1.0]}).to_parquet(tmp_path / "parts" / "part-2.parquet")
    with pytest.raises(DataError, match="has no column 'b'"):
        read_source(tmp_path / "parts", TWO)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([1.0, 2.0], "2 dimensions .*, got 1. Reshape your data"),
        (pd.Series([1.0]), "2 dimensions .*, got 1"),
        (pl.Series([1.0]), "2 dimensions .*, got 1"),
        (pa.chunked_array([[1.0]]), "2 dimensions .*, got 1"),
        (np.zeros((2, 2, 2)), "2 dimensions .*, got 3"),
        (5.0, "2 dimensions .*, got 0"),
        (np.zeros((2, 3)), "the array has 3 columns, but the schema has 2"),
        (np.zeros((2, 2), complex), "must be real numbers"),
        (np.zeros((2, 2), "V4"), "must be real numbers"),
        (np.zeros((2, 2), "timedelta64[s]"), "must be real numbers"),
    ],
)
def test_what_is_no_table_is_a_data_error(source: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_source(source, TWO)


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((1, 2), "datetime64[s]"),
        np.zeros((1, 2), "datetime64[ns]"),
        pd.DataFrame({"a": [1], "b": pd.to_timedelta([1])}),
        pd.DataFrame({"a": [1], "b": pd.period_range("2021", periods=1, freq="D")}),
        pd.DataFrame({"a": [1], "b": pd.interval_range(0, 1)}),
        pd.DataFrame({"a": [1], "b": pd.to_datetime(["2021-07-02"])}),
        pa.table({"a": [1], "b": [[1, 2]]}),
        pa.table({"a": [1], "b": pa.array([1], pa.duration("s"))}),
        pa.table({"a": [1], "b": pa.array([2**62], pa.timestamp("us"))}),
        pa.table({"a": [1], "b": pa.array([1], pa.timestamp("us", "Mars/Olympus"))}),
        pa.table({"a": [1], "b": pa.array([1], pa.time32("s"))}),
        pl.DataFrame({"a": [1], "b": [{"x": 1}]}),
    ],
    ids=lambda source: str(
        source.dtypes["b"] if isinstance(source, pd.DataFrame) else type(source)
    ),
)
def test_what_is_no_number_is_a_cell_of_a_wrong_type(source: Any) -> None:
    """The type of a column is that of its cells, so it stops no job either."""
    filled = {"missing": 1, "min": -1, "max": 1}
    rules = schema({"name": "a", **filled}, {"name": "b", **filled})
    assert values(read_source(source, rules), rules)[0][1] == 1
    assert list(read_source(source, TWO)) == []
    assert check_file(source, TWO).columns[1].type_errors == 1


def test_sparse_data_are_refused_with_the_way_out() -> None:
    import scipy.sparse

    with pytest.raises(DataError, match="give a dense table"):
        read_source(scipy.sparse.eye_array(2, format="csr"), TWO)


def test_a_unit_needs_a_named_column_of_names() -> None:
    with pytest.raises(DataError, match="it has no unit column 'id'"):
        read_source([[1.0]], visits(1))


def test_a_unit_may_be_of_any_type_and_none_is_none() -> None:
    table = pa.table({"a": [1, 2, 3, 4], "id": [[1], None, [1], [2]]})
    assert values(read_source(table, visits(1)), visits(1)) == [[1], [4]]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.csv", None, "does not exist"),
        ("t.ods", b"PK", "no known suffix; its name must end in .csv"),
        ("t.xlsx", b"PK", "is damaged or not a workbook"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n\n1,2\n", "is empty"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot be read"),
        ("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 99999)[:-300], "cannot be read"),
        ("t.parquet", b"a,b\n1,2\n", "cannot be read"),
    ],
)
def test_an_unusable_file_is_named(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read_source(path, TWO)
    assert name in str(caught.value)


def test_a_folder_without_parquet_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no Parquet file"):
        read_source(tmp_path, TWO)


def test_an_error_repeats_nothing_of_the_records(tmp_path: Path) -> None:
    planted = "PLANTED4711"
    body = f'a,b\n1,{planted}\n2,"{planted}{"z" * (1 << 23)}\n3,4\n'
    for source in (write(tmp_path / "t.csv", body), [[planted, "1"], ["1"]]):
        assert planted not in repr(read_source(source, TWO))
    packed = gzip.compress(body.encode())[:-300]
    (tmp_path / "t.csv.gz").write_bytes(packed)
    for source in (tmp_path / "t.csv.gz", [planted, "1"], pd.DataFrame({"a": [planted]})):
        with pytest.raises(DataError) as caught:
            read_source(source, TWO)
        assert planted not in "".join(traceback.format_exception(caught.value))


def test_chunk_rows_must_be_positive() -> None:
    with pytest.raises(PlanError, match="chunk_rows must be at least 1, got 0"):
        array_records(ROWS, BOX, chunk_rows=0)


# --- Silos ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one",
    [
        ROWS,
        ROWS.tolist(),
        [tuple(row) for row in ROWS.tolist()],
        list(ROWS),
        [1.0, 2.0],
        [[[1.0]], [[2.0]]],
        "a.csv",
        Path("a.csv"),
        FRAME,
        pl.from_pandas(FRAME),
        np.zeros((2, 2, 2)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_one_table_is_one_silo(one: Any) -> None:
    silos = as_silos(one)
    assert len(silos) == 1
    assert silos[0] is one


@pytest.mark.parametrize(
    "several",
    [
        [ROWS, ROWS],
        (ROWS, FRAME, pl.from_pandas(FRAME), pa.Table.from_pandas(FRAME), "a.csv", Path("b")),
        ["a.csv", "b.parquet"],
        ["a.csv"],
        [ROWS],
    ],
    ids=len,
)
def test_a_list_of_tables_and_paths_is_a_list_of_silos(several: Any) -> None:
    silos = as_silos(several)
    assert [id(silo) for silo in silos] == [id(part) for part in several]


def test_a_list_of_tables_and_something_else_is_a_data_error() -> None:
    with pytest.raises(DataError, match="element 1 of the list is a list"):
        as_silos([ROWS, [1.0, 2.0]])
    with pytest.raises(DataError, match="at least one silo"):
        as_silos([])


# --- The local check ------------------------------------------------------------------------------


def test_check_counts_by_hand(tmp_path: Path) -> None:
    rules = schema(
        {"name": "a"},
        {"name": "b", "type": "integer", "missing": 0, "out_of_range": "drop"},
        {"name": "c", "missing": 5},
        unit="id",
        max_rows=2,
    )
    lines = [
        "id,a,b,c",
        "p,1,1,3",
        "p,2,x,3",  # b: wrong type, filled
        "p,3,3,3",  # beyond max_rows
        "q,11,4,3",  # a: out of range, clipped
        "q,-1,12,3",  # b: out of range, dropped
        "q,,2.5,3",  # a: missing, dropped
        ",5,5,NA",  # no unit
        "r,5,5",  # c: missing, filled
        "r,5,5,5,5",  # not a line of this table
    ]
    report = check_file(write(tmp_path / "t.csv", "\n".join(lines)), rules)
    assert (report.rows, report.used, report.bad_lines) == (9, 4, 1)
    assert (report.lost, report.row_share) == (5, 5 / 9)  # one of them beyond max_rows
    assert (report.without_unit, report.beyond_max_rows, report.repeated) == (1, 1, 0)
    a, b, c = report.columns
    assert (a.name, a.missing, a.type_errors, a.out_of_range) == ("a", 1, 0, 2)
    assert (b.missing, b.type_errors, b.out_of_range, b.constant) == (0, 2, 1, False)
    assert (c.missing, c.type_errors, c.out_of_range, c.constant) == (2, 0, 0, True)
    assert a.out_of_range_share == pytest.approx(2 / 9)
    assert len(stacked(read_source(tmp_path / "t.csv", rules))) == report.used


def test_check_says_that_it_is_local() -> None:
    report = check_file(FRAME, TWO)
    assert report.to_dict()["note"] == data.LOCAL_NOTE
    assert "local only: exact counts of the records, not a release" in str(report)
    assert report.to_dict()["columns"][0]["name"] == "a"


@pytest.mark.parametrize("kind", SOURCES)
def test_check_finds_the_same_in_every_source(tmp_path: Path, kind: str) -> None:
    report = check_file(SOURCES[kind](tmp_path), TWO)
    outside = ((ROWS < [0, -1]) | (ROWS > [10, 1])).sum(axis=0)
    assert [column.out_of_range for column in report.columns] == outside.tolist()
    assert (report.rows, report.used, report.bad_lines) == (257, 257, 0)


# --- Public data ----------------------------------------------------------------------------------


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the public benchmark data are not beside this checkout")
    return path


def test_adult_with_its_text_columns_is_read_whole() -> None:
    path = shared("adult_full.csv.gz")
    rules = schema(
        {"name": "age", "type": "integer", "max": 120},
        {"name": "hours_per_week", "type": "integer", "max": 168},
        {"name": "capital_gain", "max": 1e5},
    )
    frame = pd.read_csv(path)[list(rules.names)]
    expected = rules.grid().encode(frame.to_numpy())
    for limit in (0, 1 << 30):
        np.testing.assert_array_equal(
            stacked(read_source(path, rules, memory_limit=limit)), expected
        )
    report = check_file(path, rules)
    assert (report.rows, report.used) == (48842, 48842)
    assert not any(column.type_errors or column.missing for column in report.columns)


def test_a_column_with_words_that_are_not_understood_is_not_called_constant(
    tmp_path: Path,
) -> None:
    smoker = {"name": "smoker", "type": "boolean", "min": 0, "max": 1}
    path = write(tmp_path / "t.csv", "smoker\nno\nsi\nno\n")
    assert not check_file(path, schema(smoker)).columns[0].constant
    known = schema({**smoker, "spellings": {"false": ["si"]}})
    assert check_file(path, known).columns[0].constant


def test_a_column_of_words_counts_as_type_errors_not_as_a_failure() -> None:
    path = shared("adult_full.csv.gz")
    report = check_file(path, schema({"name": "workclass"}))
    (column,) = report.columns
    assert report.used == 0
    assert column.type_errors + column.missing == report.rows == 48842
    assert column.missing > 0  # '?' is how this file writes a missing value
    assert not column.constant


def test_binary_identifiers_that_are_not_text_stay_apart(tmp_path: Path) -> None:
    ids = [bytes([128 + i, 0, 7, 255 - i]) for i in range(100)]
    table = pa.table({"a": np.linspace(0, 1, 100), "id": pa.array(ids, type=pa.binary())})
    pq.write_table(table, tmp_path / "t.parquet")
    rules = schema({"name": "a"}, unit="id", max_rows=1)
    assert sum(len(chunk) for chunk in read_source(tmp_path / "t.parquet", rules)) == 100
