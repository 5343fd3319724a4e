"""A file may name columns in another way: its reading settings give their headers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.core.errors import DataError, PlanError
from cloister.data import check_file, read_floats, read_rows, read_source
from cloister.data.schema import Schema, reading_file
from cloister.data.sources import similar_columns

COLUMNS: Any = [
    {"name": "age", "type": "number", "min": 0, "max": 120},
    {"name": "sex", "type": "category", "categories": ["female", "male"]},
]
AGREED = Schema(dataset="x", unit="pid", max_rows=1, columns=COLUMNS)
GERMAN = AGREED.written_as(
    unit_header="Patient",
    columns={"sex": {"header": "Geschlecht", "spellings": {"male": ["m"]}}},
)


def test_a_file_with_other_headers_is_read_under_the_same_contract(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("Geschlecht;Patient;age\nm;7;50\nfemale;8;1.250\n")
    assert GERMAN.digest() == AGREED.digest()
    np.testing.assert_array_equal(read_rows(path, GERMAN), [[50, 1], [1.25, 0]])
    assert read_source(path, GERMAN).contract == AGREED.contract()
    assert check_file(path, GERMAN).columns[1].name == "sex"
    assert read_source(pd.read_csv(path, sep=";"), GERMAN).report.used == 2
    assert 'header = "Geschlecht"' in reading_file({"a.csv": GERMAN})
    assert 'unit_header = "Patient"' in reading_file({"a.csv": GERMAN})


@pytest.mark.parametrize("written", ["Sex", "SEX ", "s-e_x", "S\u00e9x", "Sex (m/f)", "sex [m/f]"])
def test_a_lacking_column_names_the_similar_header_and_its_setting(
    tmp_path: Path, written: str
) -> None:
    (path := tmp_path / "b.csv").write_text(f"pid,age,{written}\n1,2,male\n", "utf-8")
    with pytest.raises(DataError, match=r"no column 'sex' \(it has") as caught:
        read_source(path, AGREED)
    setting = re.search('set (header = ".*") of', str(caught.value))
    assert setting
    own = AGREED.written_as(columns={"sex": tomllib.loads(setting[1])})
    assert read_source(path, own).report.used == 1


def test_a_lacking_unit_names_the_similar_header_and_its_setting(tmp_path: Path) -> None:
    (path := tmp_path / "b.csv").write_text("PID,age,sex\n1,2,male\n", "utf-8")
    with pytest.raises(DataError, match=r"no column 'pid' \(it has") as caught:
        read_source(path, AGREED)
    setting = re.search(
        r'set (unit_header = ".*") in the schema or the reading settings\.$', str(caught.value)
    )
    assert setting
    assert read_source(path, AGREED.written_as(**tomllib.loads(setting[1]))).report.used == 1


def test_a_column_in_one_unit_is_no_spelling_of_one_in_another() -> None:
    assert similar_columns(["weight"], ["Weight (kg)", "weight (net) (lb)"]) == ["Weight (kg)"]
    assert not similar_columns(["weight (kg)"], ["weight (lb)", "weight"])
    assert not similar_columns(["()"], ["(kg)", "[]"])


def test_two_columns_must_not_have_one_header() -> None:
    with pytest.raises(PlanError, match="different headers"):
        AGREED.written_as(columns={"sex": {"header": "age"}})


@pytest.mark.parametrize("names", [None, ("sex",)])
def test_cells_are_read_by_the_headers_of_the_schema(
    tmp_path: Path, names: tuple[str, ...] | None
) -> None:
    (path := tmp_path / "a.csv").write_text("Fall,Geschlecht\n1,m\n2,female\n")
    sex = {"name": "sex", "type": "category", "categories": ["female", "male"]}
    german = {**sex, "header": "Geschlecht", "spellings": {"male": ["m"]}}
    schema = Schema(dataset="d", unit="row", columns=[german])
    assert read_floats(path, names, schema).tolist() == [[1.0], [0.0]]
