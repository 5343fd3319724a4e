"""Market baskets: one record each, whatever they hold, however they are written."""

from __future__ import annotations

import bz2
import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import DataError, PlanError
from cloister.data import (
    Baskets,
    SqlQuery,
    array_records,
    as_silos,
    check_file,
    header,
    read_floats,
    read_source,
)
from cloister.data import baskets as module
from cloister.data.schema import Schema, catalogue_schema
from cloister.hazmat.fixedpoint import Grid

ITEMS = ("milk", "bread, white", "café", "7")
RULES = catalogue_schema(ITEMS, dataset="shop")
TEXT = 'milk,"bread, white"\ncafé , milk,milk\n\ntea\n"bread, white",7,tea,café\n'
TABLE = [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]
LONG = [
    *((5, "tea"), (3, "milk"), (7, "café"), (3, "bread, white"), (9, None), (7, "milk")),
    *((11, "tea"), (13, "7"), (13, "café"), (7, "milk"), (13, "bread, white"), (None, "milk")),
]
LONG_TABLE = [[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]
FRAME = pd.DataFrame(LONG, columns=["receipt", "item"])
SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def test_baskets_have_no_header_in_any_encoding() -> None:
    for encoding in ("", "latin1"):
        with pytest.raises(DataError, match="baskets have no column names"):
            header(Baskets([["milk"]], "lines"), encoding)


def test_a_layout_is_proposed_to_the_owner_of_a_file_read_by_another(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", b"milk;7\ntea;milk\n")
    report = read_source(Baskets(path, "lines", delimiter=","), RULES).report
    assert report.layout == "lines:;"


def test_baskets_are_proposed_for_a_file_and_not_for_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", TEXT.encode())
    with pytest.raises(DataError, match="--baskets lines"):
        read_source(path, RULES)
    with pytest.raises(DataError, match="has no column") as caught:
        read_source(FRAME, RULES)
    assert "--baskets" not in str(caught.value)
    numbers = [{"name": "a", "type": "number", "min": 0, "max": 1}]
    with pytest.raises(DataError, match="has no column") as caught:
        read_source(path, Schema(dataset="d", unit="row", columns=numbers))
    assert "--baskets" not in str(caught.value)


def test_rows_without_a_basket_are_no_reason_to_refuse_all_baskets() -> None:
    baskets = Baskets(FRAME, "long", basket="receipt", item="item")
    assert read_floats(baskets, ITEMS).tolist() == LONG_TABLE


def table(source: Any, rules: Schema = RULES, **options: Any) -> list[list[int]]:
    """Return the records as zeros and ones."""
    chunks = list(read_source(source, rules, **options))
    if not chunks:
        return []
    found = np.concatenate(chunks)
    assert set(np.unique(found)) <= {-(1 << 16), 1 << 16}
    return (found > 0).astype(int).tolist()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


LINES: dict[str, Callable[[Path], Any]] = {
    "text": lambda p: Baskets(write(p / "b.txt", TEXT.encode())),
    "no last newline": lambda p: Baskets(write(p / "b.csv", TEXT.strip().encode())),
    "windows": lambda p: Baskets(
        write(p / "b.txt", b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    ),
    "latin1": lambda p: Baskets(str(write(p / "b.data", TEXT.encode("latin1")))),
    "gzip": lambda p: Baskets(write(p / "b.txt.gz", gzip.compress(TEXT.encode()))),
    "bzip2": lambda p: Baskets(write(p / "b.txt.bz2", bz2.compress(TEXT.encode()))),
    "tab": lambda p: Baskets(
        write(p / "b", TEXT.replace(",", "\t").replace("\t white", ", white").encode()),
        delimiter="\t",
    ),
    "lists": lambda _: Baskets(
        [
            ["milk", "bread, white"],
            ("café ", "milk", "milk"),
            [],
            None,
            [7.0, "bread, white", "café"],
        ]
    ),
    "texts": lambda _: Baskets(TEXT.splitlines()),
    "series": lambda _: Baskets(pd.Series(TEXT.splitlines())),
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("chunk_rows", [None, 2])
def test_lines_become_one_record_each(tmp_path: Path, kind: str, chunk_rows: int | None) -> None:
    for memory_limit in (0, 1 << 20):
        source = LINES[kind](tmp_path)
        found = table(source, chunk_rows=chunk_rows, memory_limit=memory_limit)
        assert found == TABLE
    assert read_floats(source, ITEMS).tolist() == TABLE


def in_database(path: Path) -> SqlQuery:
    with sqlite3.connect(path) as database:
        FRAME.to_sql("sales", database, index=False)
    return SqlQuery(f"sqlite:///{path}", "SELECT item, receipt FROM sales ORDER BY rowid")


def saved(frame: Any, method: str, path: Path) -> Path:
    getattr(frame, method)(path, index=False)
    return path


LONGS: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda _: FRAME,
    "pandas category": lambda _: FRAME.astype("category"),
    "pandas nullable": lambda _: FRAME.convert_dtypes(),
    "polars": lambda _: pl.from_pandas(FRAME),
    "csv": lambda p: saved(FRAME, "to_csv", p / "b.csv"),
    "packed": lambda p: saved(FRAME, "to_csv", p / "b.csv.gz"),
    "parquet": lambda p: saved(FRAME, "to_parquet", p / "b.parquet"),
    "database": lambda p: in_database(p / "b.db"),
}


@pytest.mark.parametrize("kind", LONGS)
@pytest.mark.parametrize("chunk_rows", [None, 2])
def test_rows_of_one_basket_may_be_anywhere(
    tmp_path: Path, kind: str, chunk_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Baskets(LONGS[kind](tmp_path), "long", basket="receipt", item="item")
    for long_rows in (3, 65536):
        monkeypatch.setattr(module, "_LONG_ROWS", long_rows)
        for memory_limit in (0, 1 << 20):
            found = table(source, chunk_rows=chunk_rows, memory_limit=memory_limit)
            assert found == LONG_TABLE


def test_items_that_are_numbers_are_read_by_their_names() -> None:
    frame = pd.DataFrame({"b": [1, 1, 2], "i": [7, 8, 9]})
    rules = catalogue_schema(["9", "7"], dataset="shop")
    assert table(Baskets(frame, "long", basket="b", item="i"), rules) == [[0, 1], [1, 0]]
    spelled = frame.assign(b=[f"0{number}.0" for number in frame["b"]])
    both = pd.concat([frame.astype({"b": str}), spelled])
    assert table(Baskets(both, "long", basket="b", item="i"), rules) == [[0, 1], [1, 0]]


def test_a_one_hot_table_needs_no_word(tmp_path: Path) -> None:
    frame = pd.DataFrame(TABLE, columns=list(ITEMS))
    frame.astype(bool).to_csv(tmp_path / "t.csv", index=False)
    assert table(frame) == table(frame.astype(bool)) == table(tmp_path / "t.csv") == TABLE


def test_the_same_baskets_have_the_same_fingerprint(tmp_path: Path) -> None:
    key = bytes(16)
    sources = [LINES[kind](tmp_path) for kind in ("gzip", "lists")]
    found = {
        read_source(source, RULES, chunk_rows=n).fingerprint(key)
        for source in sources
        for n in (1, 9)
    }
    assert found == {read_source(np.array(TABLE), RULES).fingerprint(key)}


basket = st.lists(st.sampled_from([*ITEMS, "tea", "", "MILK"]), max_size=6)


@given(st.lists(basket, min_size=1, max_size=8), st.data())
def test_a_basket_more_is_one_record_more_and_touches_no_other(
    found: list[list[str]], data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(found) - 1))
    whole, rest = table(Baskets(found)), table(Baskets(found[:gone] + found[gone + 1 :]))
    assert rest == whole[:gone] + whole[gone + 1 :]
    assert whole == [[int(item in basket) for item in ITEMS] for basket in found]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(ITEMS)), max_size=20), st.integers(0, 4)
)
def test_a_basket_less_of_a_long_table_touches_no_other(
    rows: list[tuple[int, str]], gone: int
) -> None:
    def read(some: list[tuple[int, str]]) -> dict[int, list[int]]:
        frame = pd.DataFrame(some, columns=["b", "i"]).astype({"b": int, "i": str})
        found = table(Baskets(frame, "long", basket="b", item="i"))
        return dict(zip(dict.fromkeys(b for b, _ in some), found, strict=True))

    whole, rest = read(rows), read([row for row in rows if row[0] != gone])
    assert rest == {number: row for number, row in whole.items() if number != gone}


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=6))
def test_no_line_raises_and_each_is_one_record(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("b") / "b.txt"
    path.write_bytes(b"milk\n" + b"".join(line + b"\n" for line in lines) + b"milk\n")
    found = table(Baskets(path))
    assert len(found) == len(lines) + 2
    assert found[0] == found[-1] == [1, 0, 0, 0]


def test_an_open_quote_and_an_endless_line_end_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    content = b'"milk\nmilk,' + b"x," * 1000 + b"7\n7\n"
    assert table(Baskets(write(tmp_path / "b.txt", content))) == [
        [1, 0, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
    ]


def test_a_streamed_file_of_baskets_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "b.txt", TEXT.encode())
    records = read_source(Baskets(path), RULES, memory_limit=0)
    write(path, TEXT.replace("tea", "7").encode())
    with pytest.raises(DataError, match="changed while it was in use"):
        list(records)


def test_no_basket_is_a_silo_without_records(tmp_path: Path) -> None:
    empty = pd.DataFrame({"b": [], "i": []})
    assert table(Baskets(empty, "long", basket="b", item="i")) == []
    assert table(Baskets(write(tmp_path / "b.txt", b""))) == table(Baskets([])) == []


def test_check_counts_what_is_not_in_the_catalogue(tmp_path: Path) -> None:
    report = check_file(LINES["text"](tmp_path), RULES)
    assert (report.rows, report.used, report.unknown_items, report.bad_lines) == (5, 5, 2, 0)
    long = check_file(Baskets(FRAME, "long", basket="receipt", item="item"), RULES)
    assert (long.rows, long.unknown_items, long.bad_lines) == (7, 2, 1)
    assert "2 items outside the catalogue" in str(long)


def test_baskets_are_never_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "b.txt.gz", gzip.compress(b"tea,milk\nmilk\n"))
    with pytest.raises(DataError, match=r"no column .*--baskets lines or --baskets long") as caught:
        read_source(path, RULES)
    assert "tea" not in str(caught.value)


def test_mistakes_are_told_before_anything_is_read(tmp_path: Path) -> None:
    numbers = Schema(
        dataset="d", unit="row", columns=[{"name": "x", "type": "number", "min": 0, "max": 1}]
    )
    with pytest.raises(DataError, match="boolean columns only"):
        read_source(Baskets([["x"]]), numbers)
    people = RULES.model_copy(update={"unit": "who", "max_rows": 2})
    with pytest.raises(DataError, match="no column 'who', the unit"):
        read_source(Baskets([["milk"]]), people)
    with pytest.raises(DataError, match="no column 'till'"):
        read_source(Baskets(FRAME, "long", basket="till", item="item"), RULES)
    with pytest.raises(DataError, match="does not exist"):
        read_source(Baskets(tmp_path / "none.txt"), RULES)
    with pytest.raises(DataError, match="is not a text file with lines"):
        read_source(Baskets(saved(FRAME, "to_parquet", tmp_path / "b.parquet")), RULES)
    with pytest.raises(DataError, match="UTF-16"):
        read_source(Baskets(write(tmp_path / "w.txt", "milk\n".encode("utf-16"))), RULES)
    with pytest.raises(DataError, match="a path or a list of lists"):
        read_source(Baskets(7), RULES)
    for call in (header, lambda source: array_records(source, Grid(low=(0.0,), high=(1.0,)))):
        with pytest.raises(DataError, match="baskets have no column names"):
            call(Baskets([["milk"]]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "wide"}, "layout must be 'lines', or 'long' with the names of"),
        (
            {"layout": "long", "basket": "b"},
            "the names of the columns basket and item, got 'long', 'b' and None",
        ),
        ({"layout": "long", "basket": "b", "item": "b"}, "got 'long', 'b' and 'b'"),
        ({"item": "i"}, "got 'lines', None and 'i'"),
        ({"delimiter": ", "}, "one ASCII character"),
        ({"delimiter": '"'}, "one ASCII character"),
    ],
)
def test_a_wrong_description_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Baskets("b.txt", **options)


def test_words_describe_baskets_and_show_none() -> None:
    assert Baskets.parse("b", "lines") == Baskets("b")
    assert Baskets.parse("b", "lines:;") == Baskets("b", delimiter=";")
    assert Baskets.parse("b", r"lines:\t") == Baskets("b", delimiter="\t")
    assert Baskets.parse("b", "long:no, item") == Baskets("b", "long", basket="no", item="item")
    for words in ("", "lines:", "long", "long:a", "rows", "Lines", "long:,b"):
        with pytest.raises(PlanError):
            Baskets.parse("b", words)
    assert "milk" not in repr(Baskets([["milk"]]))


def test_baskets_are_silos_like_files() -> None:
    one, two = Baskets([["milk"]]), Baskets("b.txt")
    assert as_silos(one) == [one]
    assert as_silos([one, two, "t.csv"]) == [one, two, "t.csv"]


@pytest.mark.skipif(not (SHARED / "groceries.txt.gz").exists(), reason="needs the shared data")
def test_groceries_are_read_whole() -> None:
    path = SHARED / "groceries.txt.gz"
    lines = [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    rules = catalogue_schema(sorted({item for line in lines for item in line}), dataset="shop")
    found = np.array(table(Baskets(path), rules))
    assert found.shape == (9835, 169)
    assert found.sum() == sum(len(set(line)) for line in lines)
    assert check_file(Baskets(path), rules).unknown_items == 0
