"""One pass over blocks gives what the rules say cell by cell, to the last bit, however laid out."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloister import data
from cloister.data import array_records, check_file, encoding, read_floats, read_source, text
from cloister.data.cells import CellType, array_of
from cloister.data.encoding import (
    MISSING,
    OUTSIDE,
    WRONG,
    CellRules,
    StepTables,
    encode_columns,
)
from cloister.data.schema import Schema
from cloister.hazmat.fixedpoint import Grid


def plain(cell: Any, rules: CellRules, j: int) -> tuple[int, int]:
    """The step and the flag of one cell, written as the rules are said."""
    grid, x = rules.grid, float(np.float64(cell))
    low, high = grid.low[j], grid.high[j]
    value, flag = min(max(x, low), high), 0
    if not math.isfinite(x):
        flag = 1
    elif (rules.integer[j] and x != math.floor(x)) or (rules.boolean[j] and x not in (0.0, 1.0)):
        flag = 2
    elif x < low or x > high:
        flag = 4
    centre, half = (high + low) / 2, (high - low) / 2
    if flag in (1, 2):
        value = centre if math.isnan(rules.fill[j]) else float(rules.fill[j])
    step = round((value - centre) * (grid.one / half))  # Python's round takes ties to even, too
    return max(-grid.one, min(grid.one, step)), flag


def test_tables_of_a_reading_share_blocks_that_grow_to_eight_of_them() -> None:
    memory = StepTables()
    tables = [memory.take(10, 3) for _ in range(40)]
    for i, table in enumerate(tables):
        assert (table.shape, table.dtype) == ((10, 3), np.int32)
        table[:] = i
    assert [int(table[0, 0]) for table in tables] == list(range(40)), "no two lie on each other"
    blocks = [id(table.base) for table in tables]
    assert [blocks.count(block) for block in dict.fromkeys(blocks)] == [1, 1, 2, 4, 8, 8, 8, 8]
    assert memory.take(1000, 3).base.size == 3000, "one that is larger than all has a block alone"


def ulps(start: float, count: int) -> float:
    for _ in range(count):
        start = math.nextafter(start, math.inf)
    return start


@st.composite
def column_rules(draw: st.DrawFn) -> CellRules:
    boxes, fill, kinds = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["number", "number", "integer", "boolean"]))
        low = draw(st.sampled_from([-1.0, 1.0, 1e-100, -1e100, 3.7, 2.0**53]))
        high = draw(st.sampled_from([ulps(low, 1), ulps(low, 2), low + 2, low + 99.5, low + 1e90]))
        box = (low, max(high, ulps(low, 1)))
        box = (0.0, 1.0) if kind == "boolean" else draw(st.sampled_from([box, (-0.0, 9.0)]))
        boxes.append(box)
        fill.append(draw(st.sampled_from([math.nan, *box])))
        kinds.append(kind)
    lows, highs = zip(*boxes, strict=True)
    grid = Grid(lows, highs, draw(st.sampled_from([4, 16, 24])))
    kind_of = np.array(kinds)
    return CellRules(grid, np.array(fill), kind_of != "number", kind_of == "boolean")


SPECIAL = [0.0, -0.0, 1.0, 0.5, 1.5, 2.0, -1.0, 5e-324, 1e308, -1e308]
SPECIAL += [math.nan, math.inf, -math.inf]
DTYPES = ["f8", "f4", "f2", ">f8", "i8", "u8", "i1", "?"]


def cell_of(rules: CellRules, j: int, dtype: str) -> st.SearchStrategy[Any]:
    low, high = rules.grid.low[j], rules.grid.high[j]
    near = [low, high, (low + high) / 2]
    near += [math.nextafter(v, away) for v in (low, high) for away in (math.inf, -math.inf)]
    if np.dtype(dtype).kind == "f":
        return st.one_of(st.sampled_from([*SPECIAL, *near]), st.floats(), st.floats(low, high))
    if dtype == "?":
        return st.booleans()
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return st.one_of(st.integers(int(least), int(most)), st.integers(0, 3))


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.filterwarnings("ignore:overflow")
@given(column_rules(), st.data())
def test_each_cell_is_judged_and_encoded_by_itself(rules: CellRules, draws: st.DataObject) -> None:
    d, n = rules.grid.n_features, draws.draw(st.sampled_from([0, 1, 2, 3, 7]))
    dtypes = [draws.draw(st.sampled_from(DTYPES)) for _ in range(d)]
    columns = [
        np.array(draws.draw(st.lists(cell_of(rules, j, kind), min_size=n, max_size=n)), dtype=kind)
        for j, kind in enumerate(dtypes)
    ]
    expected = [[plain(cells[i], rules, j) for j, cells in enumerate(columns)] for i in range(n)]
    with np.errstate(all="ignore"):  # a NaN as an integer is some integer
        first = np.array([column.astype(dtypes[0]) for column in columns]).T  # Fortran order
    wide = np.zeros((2 * n, d + 1), dtype=dtypes[0])
    wide[::2, :d] = first
    matrix = [[plain(first[i, j], rules, j) for j in range(d)] for i in range(n)]
    tables: list[tuple[encoding.Columns, list[list[tuple[int, int]]]]] = [
        (columns, expected),
        ([column[::-1] for column in columns], expected[::-1]),
        (first, matrix),
        (np.ascontiguousarray(first), matrix),
        (wide[::2, :d], matrix),
    ]
    small = draws.draw(st.sampled_from([1, 2, 5, 1 << 14]))
    with (
        mock.patch.object(encoding, "_BLOCK_VALUES", small),
        mock.patch.object(encoding, "_COLUMN_ROWS", min(small, 4)),
    ):
        fresh = CellRules(rules.grid, rules.fill, rules.integer, rules.boolean)  # its own tiles
        for table, cells in tables:
            steps, flags = encode_columns(table, fresh)
            assert steps.shape == flags.shape == (n, d)
            assert (steps.dtype, flags.dtype) == (np.int32, np.uint8)
            assert steps.tolist() == [[step for step, _ in row] for row in cells]
            assert flags.tolist() == [[flag for _, flag in row] for row in cells]


@pytest.mark.usefixtures("each_instruction_set")
def test_the_flags_by_hand() -> None:
    rules = CellRules(
        Grid((0.0,) * 3, (4.0, 4.0, 1.0), 4),
        np.array([math.nan, 3.0, math.nan]),
        np.array([False, True, True]),
        np.array([False, False, True]),
    )
    table = np.array([[math.nan, 1.5, 2.0], [5.0, -1.0, 1.0], [-math.inf, math.nan, 0.0]])
    steps, flags = encode_columns(table, rules)
    assert steps.tolist() == [[0, 8, 0], [16, -16, 16], [0, 8, -16]]
    assert flags.tolist() == [[MISSING, WRONG, WRONG], [OUTSIDE, OUTSIDE, 0], [MISSING, MISSING, 0]]


def test_what_a_compiled_loop_supports_is_encoded_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a loop in its place, which is also there where nothing is compiled."""

    def loop(steps: Any, flags: Any, columns: Any, *, one: int, **rules: Any) -> None:
        cells = np.clip(np.stack(columns, axis=1), rules["low"], rules["high"])
        steps[:] = np.rint((cells - rules["centre"]) * rules["factor"]).clip(-one, one)
        flags[:] = 7

    monkeypatch.setattr(encoding, "has_columns", lambda columns: True)
    monkeypatch.setattr(encoding, "encode_into", loop)
    table, grid = np.array([[0.25, 3.0], [9.0, -0.5]]), Grid((0.0, -1.0), (1.0, 4.0))
    no = np.zeros(2, dtype=bool)
    steps, flags = encode_columns(table, CellRules(grid, np.full(2, math.nan), no, no))
    assert steps.tolist() == grid.encode(table).tolist()
    assert flags.tolist() == [[7, 7], [7, 7]]


@pytest.mark.usefixtures("each_instruction_set")
def test_many_blocks_are_the_grid_of_the_whole_table() -> None:
    X = np.random.default_rng(0).normal(0, 1, (40_000, 3))
    grid = Grid((-1.0, -2.0, 0.0), (1.0, 2.0, 1.0))
    for dtype in (np.float32, np.float64):
        table = X.astype(dtype)
        expected = grid.encode(table)
        frame = pd.DataFrame(table, columns=["a", "b", "c"])
        for source in (table, np.asfortranarray(table), frame, pa.Table.from_pandas(frame)):
            found = np.concatenate(list(array_records(source, grid, chunk_rows=30_000)))
            np.testing.assert_array_equal(found, expected)


# --- What a text says -----------------------------------------------------------------------------

_BLANK = rb"[ \t\n\r\f]*"
_SAYS_NUMBER = re.compile(_BLANK + rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?" + _BLANK)
_NOTHING = rb"(na|n/a|nan|nat|<na>|null|none|\?|-|[+-]?inf|[+-]?infinity)?"
_SAYS_NOTHING = re.compile(_BLANK + _NOTHING + _BLANK, re.IGNORECASE)
_SAYS_TRUTH = re.compile(_BLANK + rb"((?P<true>true)|false)" + _BLANK, re.IGNORECASE)
_SAYS_YES = re.compile(_BLANK + rb"((?P<true>true|t|yes|y)|false|f|no|n)" + _BLANK, re.IGNORECASE)


def meaning(text: bytes, boolean: bool = False) -> tuple[float, bool]:
    """The number that a text says, NaN if none, and whether it is of a wrong type."""
    if _SAYS_NUMBER.fullmatch(text):
        number = float(text)
        if boolean:
            return (abs(number), False) if number in (0, 1) else (math.nan, math.isfinite(number))
        return number, False
    if truth := (_SAYS_YES if boolean else _SAYS_TRUTH).fullmatch(text):
        return float(truth["true"] is not None), False
    return math.nan, not _SAYS_NOTHING.fullmatch(text)


WORDS = [
    "0",
    "-0",
    "7",
    "007",
    "+2",
    "3.",
    ".5",
    "1e1",
    "1E-3",
    "-1.5e+2",
    "1e999",
    "-1e999",
    "1e-999",
    "0.1",
    "123456789012345678901234567890",
    "2.2250738585072011e-308",
    "9007199254740993",
    ".",
    "-",
    "+",
    "e",
    "1e",
    "1e+",
    "--1",
    "1,5",
    "1_0",
    "0x1",
    "0x1p3",
    "1d2",
    "1f",
    "x",
    "true",
    "TRUE",
    "t",
    "Yes",
    "F",
    "no",
    "inf",
    "-inf",
    "+inf",
    "Inf",
    "infinity",
    "-Infinity",
    "INF",
    "nan",
    "-nan",
    "+nan",
    "NaN",
    "nan(1)",
    "nan()",
    "na",
    "NA",
    "nA",
    "n/a",
    "N/A",
    "null",
    "NULL",
    "Null",
    "none",
    "None",
    "?",
    "??",
    "#N/A",
    "1.#IND",
    "1.#QNAN",
    "NULLL",
]
word = st.one_of(
    st.sampled_from(["", " ", *WORDS]),
    st.builds(
        lambda text, before, after: before + text + after,
        st.sampled_from(WORDS),
        st.sampled_from(["", " ", "  "]),
        st.sampled_from(["", " ", "  "]),
    ),
    st.text("0123456789+-.eE naifNAIF?x", max_size=6),
    st.floats(allow_nan=False).map(repr),
)


def same(found: NDArray[Any], expected: list[float]) -> None:
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@given(
    st.lists(st.one_of(st.none(), word, st.sampled_from(["1\v", "\f1\n", "1\x00", "é", "１"]))),
    st.booleans(),
)
def test_texts_say_the_same_alone_and_among_others(words: list[str | None], boolean: bool) -> None:
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        column = pa.array(words, pa.string()).cast(kind)
        expected = [(math.nan, False) if w is None else meaning(w.encode(), boolean) for w in words]
        for at in range(min(len(words), 3)):
            values, wrong = CellType("boolean" if boolean else "number").read(column.slice(at))
            same(values, [value for value, _ in expected[at:]])
            assert (np.zeros(len(values)) if wrong is None else wrong).tolist() == [
                wrong for _, wrong in expected[at:]
            ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(word, word), max_size=25),
    plain_rows=st.integers(0, 40),
    block=st.sampled_from([160, 1 << 22]),
    quoted=st.booleans(),
)
def test_a_text_table_says_what_its_cells_say(
    tmp_path: Path, rows: list[tuple[str, str]], plain_rows: int, block: int, quoted: bool
) -> None:
    """Blocks that Arrow reads as numbers, then the block with the first odd cell, and the rest."""
    rows = [("1.5", "NA")] * plain_rows + rows
    mark = '"' if quoted else ""
    path = tmp_path / "t.csv"
    lines = [f"z;{mark}{a}{mark};{mark}{b}{mark}\n" for a, b in rows]
    path.write_text("z;a;b\n" + "".join([*lines, "bad;1;2;3\n", "z;5;6\n"]))
    with mock.patch.object(text, "BLOCK_BYTES", block):
        found = [meaning(cell.encode()) for row in [*rows, ("5", "6")] for cell in row]
        columns = [{"name": n, "type": "number", "min": -1e9, "max": 1e9} for n in "ab"]
        rules = Schema(dataset="d", unit="row", columns=columns)
        report = check_file(path, rules)
        values = np.array([value for value, _ in found]).reshape(-1, 2)
        wrong = np.array([wrong for _, wrong in found]).reshape(-1, 2)
        missing = ~np.isfinite(values) & ~wrong
        assert (report.rows, report.bad_lines) == (len(values) + 1, 1)
        assert [c.type_errors for c in report.columns] == wrong.sum(axis=0).tolist()
        assert [c.missing for c in report.columns] == missing.sum(axis=0).tolist()
        records = list(read_source(path, rules))
        kept = values[np.isfinite(values).all(axis=1)]
        np.testing.assert_array_equal(np.concatenate(records), rules.grid().encode(kept))
        path.write_text(path.read_text().replace("bad;1;2;3\n", ""))
        np.testing.assert_array_equal(read_floats(path, ("a", "b")), values)


def test_words_of_missing_values_may_be_categories_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\nNA,1\n?,NA\nnone,3\n,4\n")
    a = {"name": "a", "type": "category", "categories": ("NA", "none", "?")}
    b = {"name": "b", "type": "number", "min": 0, "max": 9}
    rules = Schema(dataset="d", unit="row", columns=[a, b])
    nan = math.nan
    expected = [[0, 1], [2, nan], [1, 3], [nan, 4]]
    np.testing.assert_array_equal(read_floats(path, rules.names, rules), expected)


def test_words_of_a_category_and_truth_values_stay_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n01,true,1\n1,0,2\n1.0,No,3\n10,1e0,4\n")
    columns = [
        {"name": "a", "type": "category", "categories": ("1", "01"), "missing": "1"},
        {"name": "b", "type": "boolean"},
        {"name": "c", "type": "integer", "min": 0, "max": 9},
    ]
    rules = Schema(dataset="d", unit="row", columns=columns)
    nan = math.nan
    np.testing.assert_array_equal(
        read_floats(path, rules.names, rules), [[1, 1, 1], [0, 0, 2], [0, 0, 3], [nan, 1, 4]]
    )


# --- Arrow columns --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float16(), pa.float32()),
        *(pa.float64(), pa.bool_(), pa.decimal128(5, 1), pa.null()),
    ],
    ids=str,
)
def test_arrow_columns_are_read_as_they_lie_in_memory(kind: pa.DataType) -> None:
    for cells in ([], [None], [1, 0, None, 1, None, 0, 1, 1, 0, None, 1], [1, 0, 1]):
        cells = [None] * len(cells) if kind == pa.null() else cells
        column = pa.array(cells, pa.null() if kind == pa.null() else pa.float32())
        column = (column.cast(pa.int8()) if kind == pa.bool_() else column).cast(kind)
        for start in range(len(cells) + 1):
            expected = [math.nan if c is None else float(c) for c in cells[start:]]
            np.testing.assert_array_equal(array_of(column.slice(start)), expected)


def test_reading_a_file_does_not_import_pandas(tmp_path: Path) -> None:
    columns = {"a": [1.0, None, 3.0], "b": ["x", "y", None], "c": ["true", "no", "?"]}
    table = pa.table({**columns, "who": ["p", "q", "q"], "d": ["1", "odd", "2"]})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a,b,c,d,who\n1,x,true,1,p\n,y,no,odd,q\n3,,?,2,q\n")
    code = (
        "import sys\n"
        "from cloister.data import read_source\n"
        "from cloister.data.schema import Schema\n"
        "number = dict(type='number', min=0, max=9, missing='min')\n"
        "words = dict(name='b', type='category', categories=('x', 'y'), missing='x')\n"
        "truth = dict(name='c', type='boolean', missing='min')\n"
        "columns = [dict(name='a', **number), words, truth, dict(name='d', **number)]\n"
        "rules = Schema(dataset='d', unit='who', max_rows=2, columns=columns)\n"
        "for path in sys.argv[1:]:\n"
        "    assert sum(map(len, read_source(path, rules))) == 3\n"
        "print('pandas' in sys.modules)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t.csv"), str(tmp_path / "t.parquet")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(data.__file__).parents[2])},
    )
    assert found.stdout.strip() == "False"
