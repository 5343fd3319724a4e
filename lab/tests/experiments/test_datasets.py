from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from cloister.core.errors import DataError, PlanError
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import default_delta
from cloister_lab.experiments.datasets import BUNDLED, load, min_max, title

TABLE = np.array([[0.0, 10.0], [1.0, 30.0], [4.0, 20.0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = "a,b\n" + "\n".join(",".join(map(str, row)) for row in TABLE) + "\n"
    (tmp_path / "small.csv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


@pytest.fixture
def schema() -> Schema:
    columns = tuple(Column(name=n, type="number", min=0.0, max=40.0) for n in "ab")
    return Schema(dataset="small", unit="row", columns=columns)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_bounds_are_public_and_clip_nothing(name: str) -> None:
    data = load(name)
    values = data.values
    assert np.abs(values).max() <= 1
    # what lies on a wall was not moved there
    from_sklearn = min_max_values(name)
    low = np.array([column.min for column in data.schema.columns])
    high = np.array([column.max for column in data.schema.columns])
    assert (from_sklearn >= low).all()
    assert (from_sklearn <= high).all()


def min_max_values(name: str) -> np.ndarray:
    from sklearn import datasets

    return np.asarray(getattr(datasets, BUNDLED[name].loader)().data)


@pytest.mark.parametrize("name", BUNDLED)
def test_public_convention_takes_neither_bounds_nor_size_from_the_table(name: str) -> None:
    data = load(name)
    assert data.nominal_n == BUNDLED[name].nominal_n
    assert data.delta == default_delta(data.nominal_n)
    assert data.schema == BUNDLED[name].schema(name, data.schema.names)


def test_a_file_needs_its_schema_and_nominal_n(folder: Path, schema: Schema) -> None:
    with pytest.raises(PlanError, match="schema of 'small' must be given"):
        load("small", data_dir=folder, n_clusters=2, nominal_n=3)
    with pytest.raises(PlanError, match="nominal_n of 'small' must be given"):
        load("small", data_dir=folder, n_clusters=2, schema=schema)
    data = load("small", data_dir=folder, n_clusters=2, schema=schema, nominal_n=5)
    np.testing.assert_allclose(data.values, TABLE / 20 - 1, atol=2**-16)


def test_papers_convention_scales_by_the_table_and_counts_it(folder: Path) -> None:
    data = load("small", data_dir=folder, n_clusters=2, convention="fastlloyd-paper")
    np.testing.assert_allclose(data.values, [[-1, -1], [-0.5, 1], [1, 0]], atol=2**-16)
    assert data.nominal_n == 3
    assert data.delta == pytest.approx(1 / (3 * math.log(3)))


def test_papers_convention_refuses_public_numbers(folder: Path, schema: Schema) -> None:
    with pytest.raises(PlanError, match="read from the table"):
        load("small", data_dir=folder, n_clusters=2, convention="fastlloyd-paper", schema=schema)


def test_papers_convention_leaves_out_incomplete_rows_and_keeps_constant_columns() -> None:
    data = min_max(np.array([[0.0, 5.0], [np.nan, 9.0], [2.0, 5.0]]), "t", 1)
    assert data.values.tolist() == [[-1, -1], [1, -1]]


def test_cluster_counts_of_the_literature_or_given(folder: Path) -> None:
    assert load("iris").n_clusters == 3
    assert load("iris", n_clusters=4).n_clusters == 4
    with pytest.raises(PlanError, match="n_clusters of 'small'"):
        load("small", data_dir=folder, convention="fastlloyd-paper")


def test_an_unknown_name_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match="neither a file"):
        load("no-such", data_dir=folder)


def test_title_is_the_name_without_folder_and_suffix() -> None:
    assert [title(n) for n in ("iris", "x/y.csv", "x/y.csv.gz", "y.parquet")] == ["iris", *"yyy"]
