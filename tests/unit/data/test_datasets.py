"""Arrow datasets: files of Arrow's own making, filters and folders that hold a column."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from cloister.core.errors import DataError
from cloister.data import Records, as_silos, header, read_floats, read_source
from cloister.data.schema import Column, Schema
from cloister.data.sources import open_source

TWO = Schema(
    dataset="d",
    unit="row",
    columns=(
        Column(name="a.b", type="number", min=0, max=10),
        Column(name="year", type="integer", min=2000, max=2030),
    ),
)
PEOPLE = TWO.model_copy(update={"unit": "who", "max_rows": 2})
ROWS = pa.table(
    {
        "year": [2024, 2025, 2024, 2025, 2024],
        "a.b": [1.5, None, 2.5, 11.0, 3.5],
        "who": ["x", "y", "x", "y", "x"],
    }
)


@pytest.fixture
def by_year(tmp_path: Path) -> pads.Dataset:
    """A folder in which the year is in the names of folders only."""
    options = {"partitioning": ["year"], "partitioning_flavor": "hive", "format": "parquet"}
    pads.write_dataset(ROWS, tmp_path / "years", **options)
    return pads.dataset(tmp_path / "years", partitioning="hive")


def stacked(records: Records) -> np.ndarray:
    return np.concatenate([*records, np.empty((0, records.n_features), np.int32)])


def test_a_column_may_be_in_the_names_of_folders(by_year: pads.Dataset) -> None:
    in_order = ROWS.take([0, 2, 4, 1, 3])
    for schema in (TWO, PEOPLE):
        expected = stacked(read_source(in_order, schema))
        for limit in (0, 1 << 20):
            records = read_source(by_year, schema, chunk_rows=2, memory_limit=limit)
            assert all(len(chunk) <= 2 for chunk in records)
            assert np.array_equal(stacked(records), expected)
    assert set(header(by_year)) == {"a.b", "year", "who"}
    assert read_floats(by_year, ["year"]).tolist() == [[2024]] * 3 + [[2025]] * 2


def test_a_filter_holds(by_year: pads.Dataset) -> None:
    some = by_year.filter(pads.field("year") == 2024)
    expected = stacked(read_source(ROWS.take([0, 2, 4]), TWO))
    assert np.array_equal(stacked(read_source(some, TWO)), expected)


def test_datasets_are_silos(by_year: pads.Dataset) -> None:
    assert as_silos([by_year, by_year]) == [by_year, by_year]
    assert as_silos(by_year) == [by_year]


def test_with_a_cache_a_dataset_is_read_once(by_year: pads.Dataset, tmp_path: Path) -> None:
    (folder := tmp_path / "cache").mkdir()
    cached = read_source(by_year, TWO, cache_dir=folder)
    again, expected = read_source(by_year, TWO, memory_limit=0), stacked(cached)
    assert np.array_equal(stacked(again), expected)
    for file in by_year.files:
        Path(file).unlink()
    assert np.array_equal(stacked(cached), expected)
    assert not any(folder.iterdir())
    with pytest.raises(DataError, match="the Arrow dataset cannot be read"):
        stacked(again)


def test_a_dataset_without_a_column_is_refused(by_year: pads.Dataset) -> None:
    with pytest.raises(DataError, match=r"the Arrow dataset has no column 'b'"):
        read_source(
            by_year, TWO.model_copy(update={"columns": (Column(name="b", type="boolean"),)})
        )


def test_memory_does_not_grow_with_a_dataset(tmp_path: Path) -> None:
    """A consumer may be slower than the disk, as one that sums records is."""
    table = pa.table({"a": np.random.default_rng(0).random(2_400_000)})  # 19.2 MB
    (folder := tmp_path / "parts").mkdir()
    options = {"row_group_size": 20_000, "compression": "none", "use_dictionary": False}
    for i in range(8):
        pq.write_table(table.slice(300_000 * i, 300_000), folder / f"{i}.parquet", **options)
    pool, most = pa.default_memory_pool(), 0
    chunks = open_source(pads.dataset(folder), ("a",), None).chunks
    before = pool.bytes_allocated()
    for _ in chunks(5_000):
        time.sleep(0.002)
        most = max(most, pool.bytes_allocated() - before)
    assert most < 2_000_000  # at most 0.2 MB were seen, one row group, with load and without
