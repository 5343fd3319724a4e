"""Columns of categories: one number from every source, and no word in a cell stops a job."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.cases import are_in_order

from cloister.app.job import run_job
from cloister.data import SqlQuery, check_file, read_floats, read_source
from cloister.data.cells import CellType
from cloister.data.schema import Schema
from cloister.estimators.kmeans import DPKMeans
from cloister.tasks import TASKS

COLOURS = ("rouge", "vert foncé", "bleu", "?")
SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"
ADULT = Path(__file__).resolve().parents[3] / "lab/src/cloister_lab/experiments/schemas/adult.toml"


def schema(*columns: dict[str, Any]) -> Schema:
    return Schema(dataset="d", unit="row", columns=columns)


def category(name: str, *words: str, **rule: Any) -> dict[str, Any]:
    return {"name": name, "type": "category", "categories": words, **rule}


def decoded(source: Any, rules: Schema) -> list[list[float]]:
    """Return the records in data units; a category is its number."""
    grid = rules.grid()
    parts = [grid.decode(chunk / grid.one) for chunk in read_source(source, rules)]
    return np.round(np.concatenate(parts), 3).tolist() if parts else []


RULES = schema(
    category("colour", *COLOURS),
    category("grade", "1", "2", "10"),
    category("smoker", "False", "True"),
    {"name": "age", "type": "number", "min": 0, "max": 100},
)
FRAME = pd.DataFrame(
    {
        "note": ["a", "b", "c", "d", "e"],
        "age": [1.0, 2.0, 3.0, 4.0, 5.0],
        "smoker": [True, False, True, True, False],
        "grade": [10, 1, 2, 2, 1],
        "colour": ["bleu", "vert foncé", "?", "rouge", "rouge"],
    }
)
EXPECTED = [[2, 2, 1, 1], [1, 0, 0, 2], [3, 1, 1, 3], [0, 1, 1, 4], [0, 0, 0, 5]]


def written(path: Path, **options: Any) -> Path:
    FRAME.to_csv(path, index=False, **options)
    return path


def in_parquet(path: Path, table: Any) -> Path:
    pq.write_table(table, path)
    return path


def in_database(path: Path) -> SqlQuery:
    with sqlite3.connect(path) as database:
        FRAME.to_sql("t", database, index=False)
    return SqlQuery(f"sqlite:///{path}", "SELECT * FROM t")


ORDERED = FRAME[list(RULES.names)]
SOURCES: dict[str, Callable[[Path], Any]] = {
    "comma": lambda p: written(p / "t.csv"),
    "semicolon": lambda p: written(p / "t.txt", sep=";"),
    "tab": lambda p: written(p / "t.tsv", sep="\t"),
    "packed": lambda p: written(p / "t.csv.gz"),
    "byte order mark": lambda p: written(p / "t.csv", encoding="utf-8-sig"),
    "latin1": lambda p: written(p / "t.csv", encoding="latin1"),
    "quoted": lambda p: written(p / "t.csv", quoting=1),
    "parquet": lambda p: in_parquet(p / "t.parquet", pa.Table.from_pandas(FRAME)),
    "parquet dictionary": lambda p: in_parquet(
        p / "t.parquet", pa.Table.from_pandas(FRAME.astype("category"))
    ),
    "pandas": lambda _: FRAME,
    "pandas object": lambda _: FRAME.astype(object),
    "pandas text": lambda _: FRAME.astype(str),
    "pandas category": lambda _: FRAME.astype("category"),
    "pandas nullable": lambda _: FRAME.convert_dtypes(),
    "pandas arrow": lambda _: FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "pandas floats": lambda _: FRAME.astype({"grade": float, "smoker": float}),
    "pandas blanks": lambda _: FRAME.assign(colour="  " + FRAME["colour"] + "\t"),
    "polars": lambda _: pl.from_pandas(FRAME),
    "polars category": lambda _: pl.from_pandas(FRAME).with_columns(
        pl.col("colour").cast(pl.Categorical)
    ),
    "polars enum": lambda _: pl.from_pandas(FRAME).with_columns(
        pl.col("colour").cast(pl.Enum(sorted(COLOURS)))
    ),
    "arrow": lambda _: pa.Table.from_pandas(FRAME),
    "object array": lambda _: ORDERED.to_numpy(),
    "rows": lambda _: ORDERED.to_numpy().tolist(),
    "text array": lambda _: ORDERED.to_numpy().astype(str),
    "database": lambda p: in_database(p / "t.db"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_numbers(tmp_path: Path, kind: str) -> None:
    source = SOURCES[kind](tmp_path)
    assert decoded(source, RULES) == EXPECTED
    assert read_floats(source, RULES.names, RULES).tolist() == EXPECTED
    report = check_file(source, RULES)
    assert (report.rows, report.used) == (5, 5)
    assert [column.unknown for column in report.columns] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("rule", "expected"), [("drop", [[0.0], [1.0]]), ("b", [[0.0], [1.0], [1.0], [1.0], [1.0]])]
)
def test_unknown_and_missing_cells_follow_the_rule(rule: str, expected: list[list[float]]) -> None:
    rules = schema(category("x", "a", "b", missing=rule))
    for cells in (["a", "b", "B", None, "c d"], ["a ", " b", "", np.nan, "ab"]):
        frame = pd.DataFrame({"x": cells})
        assert decoded(frame, rules) == expected
        assert decoded(frame.astype("category"), rules) == expected
        assert decoded(pl.from_pandas(frame), rules) == expected
        assert np.isnan(read_floats(frame, ("x",), rules)[2:]).all()


@pytest.mark.parametrize("numbers", [[1, 3, 2], [1.0, 3.0, 2.0], [1.0, np.inf, 2.0]])
def test_a_number_that_no_category_says_is_unknown(numbers: list[float]) -> None:
    rules = schema(category("x", "2", "1"))
    for source in (np.array(numbers)[:, None], pd.DataFrame({"x": numbers})):
        assert decoded(source, rules) == [[1], [0]]


def test_a_word_wins_over_the_number_it_says() -> None:
    kind = CellType("category", (("1", 0), ("01", 1), ("1_0", 2)))
    codes, _ = kind.read(["01", "1", "1.0", "1_0", "10"])
    assert codes.tolist()[:4] == [1, 0, 0, 2]
    assert np.isnan(codes[4])


def test_words_of_missing_values_may_be_categories() -> None:
    rules = schema(category("x", "NA", "none", "?"))
    assert decoded(pd.DataFrame({"x": ["none", "?", "NA", None]}), rules) == [[1], [2], [0]]


def test_check_tells_unknown_words_from_missing_ones() -> None:
    rules = schema(category("x", "a", "b"), {"name": "y", "type": "number", "min": 0, "max": 1})
    frame = pd.DataFrame({"x": ["a", "c", "d", None, "?"], "y": ["1", "word", "1", "1", "1"]})
    x, y = check_file(frame, rules).columns
    assert (x.unknown, x.missing, x.type_errors) == (2, 2, 0)
    assert (y.unknown, y.missing, y.type_errors) == (0, 0, 1)
    assert "x: 0.00% out of range, 2 missing, 0 of the wrong type, 2 in no category" in str(
        check_file(frame, rules)
    )


cell = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.binary(max_size=6),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.just(pd.NaT),
    st.sampled_from(["a", " b ", "1", "1.0", "TRUE"]),
)


@given(st.lists(cell, min_size=1, max_size=8))
def test_no_cell_of_a_category_raises_and_each_is_read_by_itself(cells: list[Any]) -> None:
    for words in (("a", "b", "1"), ("true", "false"), ("nan", "inf", "-")):
        rules = schema(category("x", *words, missing=words[1]))
        frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
        together = decoded(frame, rules)
        assert len(together) == len(cells)
        assert together == [decoded(frame.iloc[[i]], rules)[0] for i in range(len(cells))]


def test_a_unit_and_a_target_are_columns_like_others(tmp_path: Path) -> None:
    rules = Schema(
        dataset="d",
        unit="who",
        max_rows=1,
        columns=[category("income", "<=50K", ">50K"), category("sex", "f", "m", missing="f")],
    )
    path = tmp_path / "t.csv"
    path.write_text("sex,who,income\nm,p,>50K\nm,p,<=50K\n,q,<=50K\nm,r,50K\n")
    assert decoded(path, rules) == [[1, 1], [0, 0]]


def counting_calls(read: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `read` returns and how many functions it calls: a time that no load changes."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = read()
    finally:
        sys.setprofile(before)
    return result, calls


@pytest.mark.skipif(not (SHARED / "adult_full.csv.gz").exists(), reason="needs the shared data")
def test_adult_is_read_whole_and_not_cell_by_cell() -> None:
    rules = Schema.load(ADULT)
    few = pd.read_csv(SHARED / "adult_full.csv.gz", nrows=1000).astype(object)
    few.iloc[0] = object()  # beside which every cell is looked at by itself
    _, calls = counting_calls(lambda: read_source(few, rules))  # Python's own cells, and imports
    assert calls > len(few)
    records, calls = counting_calls(lambda: read_source(SHARED / "adult_full.csv.gz", rules))
    assert calls < 48842  # not even one for each record; it takes 0.2 s on one core of a laptop
    assert sum(map(len, records)) == 48842
    report = check_file(SHARED / "adult_full.csv.gz", rules)
    assert sum(column.unknown + column.type_errors for column in report.columns) == 0


# --- Jobs over what holds nothing usable ----------------------------------------------------------


@pytest.mark.parametrize("rule", ["drop", "a"])
@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"word": ["?", None, "never heard"], "x": [np.nan, "nan", "y"]}, dtype=object),
        pd.DataFrame({"word": [np.nan] * 3, "x": [np.inf, np.nan, -np.inf]}),
        pd.DataFrame({"word": [], "x": []}),
        pd.DataFrame({"word": [None] * 3, "x": [None] * 3}, dtype="category"),
    ],
)
def test_missing_and_unknown_cells_never_stop_a_job(rule: str, frame: pd.DataFrame) -> None:
    rules = schema(
        category("word", "a", "b", missing=rule),
        {"name": "x", "type": "number", "min": 0, "max": 1, "missing": "min"},
    )
    records = {"bad": read_source(frame, rules), "worse": read_source(frame, rules)}
    for task, options in ((TASKS["count"], {}), (TASKS["auto"], {"n_clusters": 2})):
        options = {**options, "max_loss": 1.0}
        result = run_job(task, rules, records, epsilon=1.0, nominal_n=100, **options)
        assert are_in_order(result.results)


def test_clusters_of_a_table_with_words_are_those_of_their_numbers() -> None:
    rules = schema(
        category("word", "low", "high"), {"name": "x", "type": "number", "min": 0, "max": 1}
    )
    frame = pd.DataFrame({"x": [0.1, 0.9] * 200, "note": "-", "word": ["low", "high"] * 200})
    model = DPKMeans(2, epsilon=50.0, bounds=rules, nominal_n=400).fit(frame)
    assert len(set(model.labels_)) == 2
    assert (model.predict(frame) == model.labels_).all()
