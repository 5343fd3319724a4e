"""Sources: what is a frame, what is read once, and cells that keep their kind."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from cloister.core.errors import DataError
from cloister.data import read_source
from cloister.data.records import FEW_ROWS, _Seal, read_words
from cloister.data.rules import Rules
from cloister.data.schema import Column, Schema
from cloister.data.sources import (
    Labelled,
    Raw,
    SqlQuery,
    _result,
    find_columns,
    in_memory,
    is_frame,
    is_table,
    open_source,
    settled,
)

DAY = Column(name="day", type="date", min="2020-01-01", max="2020-12-31")
X = Column(name="x", type="number", min=0, max=10)
ILL = Column(name="ill", type="category", categories=("true", "false"))


def records(source: object, *columns: Column) -> list[list[int]]:
    found = read_source(source, Schema(dataset="d", unit="row", columns=columns))
    return np.concatenate([np.empty((0, len(columns)), dtype=np.int32), *found]).tolist()


def test_a_frame_says_the_names_of_its_columns_by_either_word() -> None:
    class Named:
        column_names = ("a", "b")

    class Shaped:
        columns, shape = ("a", "b"), (0, 2)

    class Unshaped:
        columns = ("a", "b")

    assert [is_frame(kind()) for kind in (Named, Shaped, Unshaped)] == [True, True, False]
    assert not is_frame(np.zeros((2, 2)))
    assert not is_frame([[1.0, 2.0]])


def test_what_can_be_read_once_is_read_and_what_is_lazy_is_worked_out() -> None:
    table = pa.table({"a": [1.0, 2.0]})
    for source in (table.to_reader(), pl.from_arrow(table).lazy()):  # type: ignore[union-attr]
        found = settled(source)
        assert isinstance(found, pa.Table)
        assert found.to_pydict() == {"a": [1.0, 2.0]}
    rows = [[1.0], [2.0]]
    assert settled(rows) is rows
    assert settled(table) is table


def test_a_table_in_memory_stays_what_it_is_though_it_can_be_collected() -> None:
    class Collectable:
        columns, shape = ("x",), (2, 1)
        __arrow_c_stream__ = pa.table({"x": [1.0, 2.0]}).__arrow_c_stream__

        def collect(self) -> list[object]:
            raise AssertionError("only a lazy frame is collected")

    source = Collectable()
    assert settled(source) is source
    assert records(source, X) == records([[1.0], [2.0]], X)


@pytest.mark.parametrize("name", ["collect", "get_fragments", "to_batches", "columns"])
def test_one_attribute_of_a_table_makes_no_table(name: str) -> None:
    source = type("Other", (), {name: lambda self: pa.table({"x": [1.0]})})()
    with pytest.raises(DataError, match="must be a table with 2 dimensions"):
        records(source, X)


def test_a_table_of_arrow_is_not_copied_and_a_batch_of_it_is_a_table() -> None:
    table = pa.table({"x": [1.0, 2.0]})
    assert in_memory(table) is table
    assert records(table.to_batches()[0], X) == records([[1.0], [2.0]], X)


@pytest.mark.parametrize(
    ("absent", "listed"),
    [
        ("b", "'b'"),
        ("bcdef", "'b', 'c', 'd', 'e', 'f'"),
        ("bcdefg", "'b', 'c', 'd', 'e', 'f', ..."),
    ],
)
def test_columns_that_lack_are_listed_up_to_five(absent: str, listed: str) -> None:
    with pytest.raises(DataError) as caught:
        find_columns("the file", ["a"], ["a", *absent], None)
    assert f"the file has no column {listed}; correct" in str(caught.value)
    assert "schema.select([...])" in str(caught.value)


def test_a_part_of_a_schema_is_proposed_only_if_a_column_is_there() -> None:
    with pytest.raises(DataError) as caught:
        find_columns("the file", ["a"], ["b", "c"], None)
    assert "select" not in str(caught.value)


def test_truth_values_under_a_mask_stay_truth_values() -> None:
    """A category takes them for the words true and false, which a number is not."""
    truths = np.ma.array([[True], [False], [True]], mask=[[False], [False], [True]])
    assert records(truths, ILL) == records([[True], [False], [None]], ILL)
    assert len(records(truths, ILL)) == 2


def test_numbers_under_a_mask_stay_a_table_of_numbers() -> None:
    """It is read at once, where objects are read one by one."""
    masked = np.ma.array([[1.0], [2.0]], mask=[[True], [False]])
    (raw,) = open_source(masked, None, None).chunks(10)
    assert isinstance(raw.cells, np.ndarray)
    np.testing.assert_array_equal(raw.cells, [[np.nan], [2.0]])


def test_two_chunks_wait_for_their_seal() -> None:
    rules, seal = Rules.of(Schema(dataset="d", unit="row", columns=(X,))), _Seal(1)
    for i in range(5):
        seal.add(rules.judge(Raw(np.full((FEW_ROWS, 1), float(i)))))
        assert len(seal._waiting) == min(i + 1, 2)
    assert len(seal.digest()) == 32


def test_a_seal_is_the_same_whichever_thread_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows come before many, between them and after them."""
    rules = Rules.of(Schema(dataset="d", unit="row", columns=(X,)))
    found = []
    for few in (0, FEW_ROWS, 10**9):
        monkeypatch.setattr("cloister.data.records.FEW_ROWS", few)
        seal = _Seal(1)
        for number, rows in enumerate((1, FEW_ROWS, 2, 2 * FEW_ROWS, FEW_ROWS, 3)):
            cells = np.linspace(-1, 1, rows)[:, None] + number
            cells[0] = np.nan
            seal.add(rules.judge(Raw(cells)))
        found.append(seal.digest())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_rows_of_moments_are_read_like_their_table(unit: str) -> None:
    days = np.array([["2020-02-03"], ["2020-11-12"]], dtype=f"M8[{unit}]")
    assert records(list(days), DAY) == records(days, DAY)
    assert len(records(days, DAY)) == 2


def test_a_row_is_a_list_whatever_else_it_says_of_itself() -> None:
    class Odd(list[float]):
        ndim = 2

    assert records([Odd([1.0]), [2.0]], X) == records([[1.0], [2.0]], X)


def test_a_view_of_bytes_and_a_table_among_rows_are_no_rows() -> None:
    assert records([[1.0], memoryview(b"2"), np.array([[3.0]])], X) == records([[1.0]], X)


def test_a_column_of_pandas_may_have_a_method_of_the_name_of_an_accessor() -> None:
    class Cells(pd.Series):
        def cat(self) -> None:
            raise AssertionError("only a column of categories has codes")

        @property
        def _constructor(self) -> type[Cells]:
            return Cells

    class Frame(pd.DataFrame):
        _constructor_sliced = Cells

    frame = pd.DataFrame({"x": [1.0, 2.0], "ill": pd.Series(["true", "false"], dtype=object)})
    assert records(Frame(frame), X, ILL) == records(frame, X, ILL)


def test_every_column_of_a_schema_must_be_there() -> None:
    rules = Rules.of(Schema(dataset="d", unit="row", columns=(X, ILL)))
    with pytest.raises(ValueError, match="zip"):
        rules.read(Raw([[1.0, 2.0]]))


def test_a_matrix_of_numbers_has_the_words_that_they_write() -> None:
    """Not only numbers: a category is looked up by its word."""
    grade = Column(name="grade", type="category", categories=("5", "7"))
    matrix = np.array([[1.0, 5.0], [2.0, 7.0], [3.0, 6.0]])
    assert records(matrix, X, grade) == records([[1.0, "5"], [2.0, "7"]], X, grade)


LABELS: dict[str, Any] = {
    "list": ["true", "false", None],
    "tuple": ("true", "false", None),
    "array": np.array(["true", "false", None], dtype=object),
    "column": np.array([["true"], ["false"], [None]], dtype=object),
    "masked": np.ma.array([True, False, True], mask=[False, False, True]),
    "pandas": pd.Series(["true", "false", None]),
    "frame": pd.DataFrame({"any name": ["true", "false", None]}),
    "polars": pl.Series(["true", "false", None]),
    "arrow": pa.array(["true", "false", None]),
    "chunks": pa.chunked_array([["true"], ["false", None]]),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_beside_a_table_are_one_column_in_whatever_they_come(labels: Any) -> None:
    table = np.array([[1.0], [2.0], [3.0]])
    beside = Labelled(table, "ill", labels)
    assert records(beside, X, ILL) == records([[1.0, "true"], [2.0, "false"]], X, ILL)


def test_labels_beside_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n1\n2\n")
    with pytest.raises(DataError, match=r"labels in memory .* as column 'ill'"):
        records(Labelled(tmp_path / "t.csv", "ill", ["true", "false"]), X, ILL)


@pytest.mark.parametrize("chunk_rows", [2, 4])
@pytest.mark.parametrize("names", [("ill", "x"), ("x", "ill")])
@pytest.mark.parametrize("labels", [["true"] * 4, ["true"] * 7])
def test_labels_of_another_number_of_rows_are_refused(
    labels: list[str], names: tuple[str, str], chunk_rows: int
) -> None:
    columns = {"ill": ILL, "x": X}
    rules = Schema(dataset="d", unit="row", columns=tuple(columns[name] for name in names))
    table = pd.DataFrame({"x": np.arange(6.0)})
    with pytest.raises(DataError, match=f"got {len(labels)} cells"):
        read_source(Labelled(table, "ill", labels), rules, chunk_rows=chunk_rows)


@pytest.mark.parametrize(
    "labels",
    [
        pd.DataFrame({"a": ["true", "false"], "b": ["false", "true"]}),
        pl.DataFrame({"a": ["true", "false"], "b": ["false", "true"]}),
        np.array([["true", "false"], ["false", "true"]], dtype=object),
        np.array([["true", "false"], ["false", "true"]]),
        np.array([[1.0, 2.0], [3.0, 4.0]]),
    ],
    ids=["pandas", "polars", "objects", "texts", "numbers"],
)
def test_labels_of_two_columns_are_refused(labels: object) -> None:
    with pytest.raises(DataError, match="must be a single column"):
        records(Labelled(pd.DataFrame({"x": [1.0, 2.0]}), "ill", labels), X, ILL)


def test_a_table_is_known_by_the_end_of_its_name() -> None:
    names = ["t.csv", "T.CSV", "t.tsv.gz", "t.x.data.zst", "t.parquet", "t.pq", "a.b.xlsx"]
    assert all(is_table(Path(name)) for name in names)
    others = ["t", "t.gz", "csv", "t.parquet.gz", "t.csv.gz.x", "t.doc", "t.csv.zip", ".gz"]
    assert not any(is_table(Path(name)) for name in others)


def test_a_file_is_opened_by_the_end_of_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "t.2024.parquet")
    assert records(tmp_path / "t.2024.parquet", X) == records([[1.0], [2.0]], X)
    ward = Path(__file__).parent / "ward.xlsx"
    shutil.copy(ward, tmp_path / "t.2024.xlsx")
    found = [list(read_words(path, ["sex"])) for path in (tmp_path / "t.2024.xlsx", ward)]
    assert found[0] == found[1] != []


def test_a_workbook_without_cells_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    ward = Path(__file__).parent / "ward.xlsx"
    with zipfile.ZipFile(ward) as full, zipfile.ZipFile(path, "w") as empty:
        for name in full.namelist():
            before, _, after = full.read(name).partition(b"<sheetData>")
            empty.writestr(name, before + after.partition(b"</sheetData>")[2])
    with pytest.raises(DataError, match=r"t\.xlsx' is empty; the first row must name the columns"):
        records(path, X)


def test_a_file_without_an_ending_is_of_no_known_kind(tmp_path: Path) -> None:
    for name in ("table", "table.gz", "table.doc"):
        (tmp_path / name).write_text("x\n1\n")
        with pytest.raises(DataError, match="has no known suffix"):
            records(tmp_path / name, X)


def test_a_folder_holds_the_parquet_files_in_it_and_below(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    names = ["a.parquet", "below/b.PQ", ".hidden.parquet", "_draft.parquet", "below/_c.pq"]
    for i, name in enumerate(names):
        pq.write_table(pa.table({"x": [float(i)]}), tmp_path / name)
    (tmp_path / "notes.txt").write_text("no table")
    (tmp_path / "below/_SUCCESS").touch()
    assert records(tmp_path, X) == records([[0.0], [1.0]], X)


def test_words_that_are_not_utf8_are_shown_as_far_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([b"caf\xe9", None], pa.binary()), "b": ["x", "y"]})
    pq.write_table(table, tmp_path / "t.parquet")
    found = list(read_words(tmp_path / "t.parquet", ["a", "b"]))
    assert found == [("caf\N{REPLACEMENT CHARACTER}", "x"), ("", "y")]


def test_a_header_may_have_columns_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,,ill\n1,a,true\n2,b,false\n")
    assert records(tmp_path / "t.csv", X, ILL) == records([[1.0, "true"], [2.0, "false"]], X, ILL)


@pytest.mark.parametrize("filtered", [False, True])
def test_a_dataset_is_not_read_ahead_into_memory(tmp_path: Path, filtered: bool) -> None:
    """By default Arrow holds 16 batches of 4 files, and the whole of a file."""
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "t.parquet")
    dataset = pyarrow.dataset.dataset(tmp_path)
    asked: list[dict[str, Any]] = []

    class Watched:
        schema, format = dataset.schema, dataset.format

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def get_fragments(self) -> Any:
            if filtered:
                return dataset.filter(pyarrow.dataset.field("x") > 0).get_fragments()
            return map(Watched, dataset.get_fragments())

        def to_batches(self, **options: Any) -> Any:
            asked.append(options)
            return self.inner.to_batches(**options)

    assert records(Watched(dataset), X) == records([[1.0], [2.0]], X)
    (options,) = asked
    assert options["batch_readahead"] == options["fragment_readahead"] == 1
    assert options["use_threads"] is False  # threads read ahead as far as they can
    assert options["fragment_scan_options"].use_buffered_stream
    assert not options["fragment_scan_options"].pre_buffer


def test_a_database_is_asked_without_showing_parameters(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x REAL)")
    connection.close()
    with _result(SqlQuery(f"sqlite:///{path}", "SELECT x FROM t"), 10) as (_, result):
        assert result.connection.engine.hide_parameters
