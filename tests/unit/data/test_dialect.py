"""Files that write the same records in other ways: what is read is the same, cell by cell."""

from __future__ import annotations

import encodings.aliases
import io
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloister.core.dates import decimal_years
from cloister.core.errors import DataError, PlanError
from cloister.data import check_file, read_rows, read_source, text
from cloister.data.cells import CellType
from cloister.data.dialect import Dialect, Recoded
from cloister.data.schema import Column, Schema, _is_charset

AGREED: dict[str, Any] = {
    "dataset": "ward",
    "unit": "row",
    "columns": [
        {"name": "größe", "type": "number", "min": 0, "max": 3000},
        {"name": "born", "type": "date", "min": date(1900, 1, 1), "max": "2030-01-01"},
        {"name": "sex", "type": "category", "categories": ["male", "female"]},
        {"name": "smoker", "type": "boolean"},
    ],
}
SPELT = [
    {},
    {"format": "%d.%m.%Y"},
    {"spellings": {"male": ["männlich", "1"], "female": ["weiblich", "2"]}},
    {"spellings": {"true": ["ja"], "false": ["nein"]}},
]
RECORDS = [[1234.5, 1962.0, 0, 1], [0.25, 2021 + 182 / 365, 1, 0], [-0.0, 2024.0, 0, 1]]


def written(**changes: Any) -> Schema:
    columns = [{**one, **also} for one, also in zip(AGREED["columns"], SPELT, strict=True)]
    return Schema(**{**AGREED, "columns": columns, **changes})


@pytest.mark.parametrize("encoding", ["utf-8", "latin1", "cp1252", "utf-16", "cp850"])
@pytest.mark.parametrize("sign", [".", " ", "'", ""])
def test_a_german_table_is_read_as_the_plain_one(tmp_path: Path, encoding: str, sign: str) -> None:
    rows = [
        "größe;born;sex;smoker",
        f" 1{sign}234,50;01.01.1962;männlich;ja",
        ",25;2.7.2021; 2 ;nein",
        "-0;1.1.2024;1.0;true",
    ]
    file = tmp_path / "t.csv"
    file.write_bytes("\r\n".join(rows).encode(encoding))
    named = encoding if encoding.startswith("cp") else ""  # the others are found
    schema = written(decimal=",", thousands=sign, encoding=named)
    assert read_rows(file, schema).tolist() == RECORDS
    report = check_file(file, schema)
    assert (report.used, report.causes) == (3, ())


def test_how_a_file_writes_is_no_part_of_what_silos_agree_on() -> None:
    mine = written(decimal=",", thousands=".", encoding="cp1252")
    assert mine.digest() == Schema(**AGREED).digest()
    assert Schema.model_validate(mine.model_dump()) == mine
    assert Schema(**AGREED).columns[1].min == 1900.0


@pytest.mark.parametrize("block", [64, 1 << 22])
def test_a_comma_is_found_wherever_it_comes_first(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", block)
    cells = ["1"] * 40 + ["1,5", "2.5", "1.234,5", "1.2.3", "x", ""]
    file = tmp_path / "t.csv"
    file.write_text("a;b\n" + "".join(f"{cell};0\n" for cell in cells))
    columns = [{"name": "a", "type": "number", "min": 0, "max": 2000}]
    schema = Schema(dataset="d", unit="row", decimal=",", thousands=".", columns=columns)
    found = read_rows(file, schema)[:, 0]
    assert np.array_equal(found, [1] * 40 + [1.5, 2.5, 1234.5] + [np.nan] * 3, equal_nan=True)
    assert check_file(file, schema).columns[0].type_errors == 2


@pytest.mark.parametrize(
    ("cell", "dialect", "number"),
    [
        ("1 234 567,5", Dialect(",", " "), "1234567.5"),
        ("1\u202f234", Dialect(",", " "), "1234"),
        ("12,34", Dialect(".", ","), "12,34"),  # no group of three: left as it is, no number
        ("1,234", Dialect(".", ","), "1234"),
        ("1.234", Dialect(","), "1.234"),
        ("1e5", Dialect(",", "."), "1e5"),
        ("1,5e-3", Dialect(","), "1.5e-3"),
        ("1,2,3", Dialect(","), "1,2,3"),
    ],
)
def test_marks_are_taken_for_what_they_are(cell: str, dialect: Dialect, number: str) -> None:
    cells = pa.array([cell.encode(), None], pa.large_binary())
    assert dialect.plain(cells).to_pylist() == [number.encode(), None]


def test_a_file_in_a_wrong_encoding_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"a,b\n1,\xff\xfe\n2,x\n")
    columns = [
        {"name": "a", "type": "number", "min": 0, "max": 9},
        {"name": "b", "type": "category", "categories": ["x", "y"]},
    ]
    for encoding in ("utf-8", "ascii", "shift_jis"):
        schema = Schema(dataset="d", unit="row", encoding=encoding, columns=columns)
        assert np.concatenate(list(read_source(file, schema))).shape == (1, 2)
    text = Recoded(io.BytesIO("ä€".encode("utf-16") * 3), "utf-16")
    assert text.read(1) + text.read() == "ä€\ufeffä€\ufeffä€".encode()


def test_a_recoded_stream_fills_its_buffer_and_reads_no_further_than_it_must() -> None:
    words = "ä€x" * 100
    stream, buffer = Recoded(io.BytesIO(words.encode("utf-16-le")), "utf-16-le"), bytearray(7)
    parts = []
    while n := stream.readinto(memoryview(buffer)):
        parts.append(bytes(buffer[:n]))
    assert b"".join(parts) == words.encode()
    assert [len(part) for part in parts] == [7] * 85 + [5]
    plain = io.BytesIO(b"abc" * 100)
    assert Recoded(plain, "ascii").readinto(memoryview(buffer)) == plain.tell() == 7
    assert io.BufferedReader(Recoded(io.BytesIO(b"\xe4"), "latin1")).read() == "ä".encode()


def test_signs_hold_in_a_column_in_which_every_cell_looks_plain() -> None:
    cells = pa.array(["1.234", "5.678", None])
    for dialect, numbers in (
        (Dialect(",", "."), [1234, 5678, np.nan]),
        (Dialect(","), [1.234, 5.678, np.nan]),
        (Dialect(), [1.234, 5.678, np.nan]),
    ):
        found = CellType(dialect=dialect).read(cells).values
        np.testing.assert_array_equal(found, numbers)


def test_typed_days_need_no_format(tmp_path: Path) -> None:
    schema = Schema(dataset="d", unit="row", columns=[Column(**AGREED["columns"][1])])
    days = pd.to_datetime(["1962-01-01", "2021-07-02 23:00", None], format="ISO8601")
    expected = [[1962.0], [2021 + 182 / 365], [np.nan]]
    frame = pd.DataFrame({"born": days})
    frame.to_parquet(tmp_path / "t.parquet")
    words = pd.DataFrame({"born": ["1962-01-01", "2021-07-02", "none"]})
    for source in (frame, pa.Table.from_pandas(frame), tmp_path / "t.parquet", words):
        assert np.array_equal(read_rows(source, schema), expected, equal_nan=True)
    assert decimal_years(np.array(["2020-12-31", "1969-01-01"], "M8[D]")).tolist() == [
        2020 + 365 / 366,
        1969.0,
    ]


@pytest.mark.parametrize("unit", ["row", "born"])
def test_moments_of_a_time_zone_that_does_not_exist_are_no_days_and_stop_nothing(
    tmp_path: Path, unit: str
) -> None:
    one = {"name": "a", "type": "number", "min": 0, "max": 9}
    columns = [one] if unit == "born" else [AGREED["columns"][1], one]
    rows = 1 if unit == "born" else None
    schema = Schema(dataset="d", unit=unit, max_rows=rows, columns=columns)
    for zone in ("Europe/Berlin", "Mars/Olympus"):
        moments = pa.array([0, 0, None], pa.timestamp("us", zone))
        table = pa.table({"born": moments, "a": [1.0, 2.0, 3.0]})
        pq.write_table(table, tmp_path / "t.parquet")
        for source in (table, tmp_path / "t.parquet"):
            report = check_file(source, schema)
            if unit == "born":  # as a unit, a moment needs no day
                assert (report.used, report.without_unit, report.beyond_max_rows) == (1, 1, 1)
            else:
                assert report.used == (2 if zone == "Europe/Berlin" else 0)
                assert report.columns[0].type_errors == (0 if zone == "Europe/Berlin" else 2)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32()])
def test_a_unit_that_is_no_day_of_python_is_a_unit_all_the_same(tmp_path: Path, kind: Any) -> None:
    far = 2**30 if kind == pa.date32() else 2**62
    values = pa.array([0, far, far, far - 1, 0], pa.int32() if kind == pa.date32() else pa.int64())
    table = pa.table({"day": values.view(kind), "a": [1.0, 2.0, 3.0, 4.0, 5.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    column = Column(name="a", type="number", min=0, max=9)
    schema = Schema(dataset="d", unit="day", max_rows=1, columns=[column])
    for chunk_rows in (1, 5):
        records = read_source(tmp_path / "t.parquet", schema, chunk_rows=chunk_rows)
        assert len(np.concatenate(list(records))) == 3


def test_a_workbook_is_read_as_its_first_sheet() -> None:
    file = Path(__file__).parent / "ward.xlsx"
    assert read_rows(file, written()).tolist() == RECORDS


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["31.12.1999", "1.2.2003"], "look like dates; set type"),
        (["1,5", "2,75"], "decimal comma"),
        (["1'234", "20'000"], "have signs between thousands"),
        (["70 kg", "81kg"], "have units after the numbers"),
        (["$1.05", "€ 2.10"], "have units before the numbers"),
        (["(2.60)", "(1)"], "brackets may mean negative numbers"),
        (["\u22124.16", "\u20131.1"], "minus sign is another sign"),
        (["\u22124,16", "1,67"], "decimal comma"),
        (["2021-03-04", "2022-03-04T10:00"], "with days as bounds"),
    ],
)
def test_the_likely_cause_is_said_in_words(cells: list[str], says: str) -> None:
    schema = Schema(
        dataset="d", unit="row", columns=[Column(name="a", type="number", min=0, max=9)]
    )
    (cause,) = check_file(pd.DataFrame({"a": [*cells, "5"]}), schema).causes
    assert says in cause  # it quotes cells, and is for their owner alone


def test_day_numbers_of_a_spreadsheet_are_recognised() -> None:
    when = Column(name="a", type="date", min="2015-01-01", max="2025-01-01")
    schema = Schema(dataset="d", unit="row", columns=[when])
    (cause,) = check_file(pd.DataFrame({"a": ["43599", "43831.5"]}), schema).causes
    assert "day numbers of a spreadsheet" in cause


@pytest.mark.parametrize(("cells", "hints"), [("xx..", 1), ("xxxx", 0), ("xn..", 0), ("11.2", 0)])
def test_a_tick_or_a_blank_may_mean_yes_or_no(cells: str, hints: int) -> None:
    ticks = Column(name="a", type="boolean", spellings={"true": ("x",)})
    schema = Schema(dataset="d", unit="row", columns=[ticks])
    table = pd.DataFrame({"a": [cell.strip(".") for cell in cells]})
    found = check_file(table, schema).hints
    assert [('missing = "min"' in hint) for hint in found] == [True] * hints


def test_truth_values_in_a_column_of_categories_say_how_they_are_called() -> None:
    table = pd.DataFrame({"late": [True, False]})

    def checked(*categories: str) -> tuple[str, ...]:
        late = Column(name="late", type="category", categories=categories)
        return check_file(table, Schema(dataset="d", unit="row", columns=[late])).causes

    (cause,) = checked("no", "yes")
    assert "name the categories 'false' and 'true'" in cause
    assert not checked("false", "true")


def test_other_words_for_a_category_are_said(tmp_path: Path) -> None:
    schema = Schema(**{**AGREED, "columns": AGREED["columns"][2:3]})
    (cause,) = check_file(pd.DataFrame({"sex": ["male", "Females"]}), schema).causes
    assert 'spellings = { female = ["Females"] }' in cause


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"thousands": "."}, "thousands and decimal must differ, got '.'"),
        *(
            ({"encoding": name}, "encoding must be one that Python knows")
            for name in ("klingon", "base64", "idna", "unicode_escape", "rot13")
        ),
        ({"decimal": ";"}, "decimal must"),
    ],
)
def test_marks_that_cannot_be_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Schema(**{**AGREED, **changes})


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"type": "number", "format": "%Y"}, "format is valid only for"),
        ({"type": "boolean", "spellings": {"yes": ["ja"]}}, "spellings must have categories"),
        (
            {"type": "boolean", "spellings": {"true": ["ja"], "false": ["ja"]}},
            "belong to one category",
        ),
        ({"type": "date", "min": "1.1.1900"}, "min must be a public day such as 2020-01-31"),
    ],
)
def test_columns_that_cannot_be_are_refused(column: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Column(**{"name": "a", "min": 0, "max": 1, **column})


def test_without_the_extra_a_workbook_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "python_calamine", None)
    with pytest.raises(DataError, match=r"cloister\[excel\]"):
        read_rows(Path(__file__).parent / "ward.xlsx", written())


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_are_read_in_any_charset(seed: int) -> None:
    content = np.random.default_rng(seed).bytes(4096)
    names = {name for name in encodings.aliases.aliases.values() if _is_charset(name)}
    assert len(names) > 80
    for name in names:
        mark = "".encode(name)  # without which UTF-16 and UTF-32 refuse a file, before any record
        text = Recoded(io.BytesIO(mark + content), name).read()
        assert text.decode() == text.decode("utf-8", "replace")


def test_a_file_without_the_mark_of_its_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    column = Column(name="a", type="number", min=0, max=9)
    schema = Schema(dataset="d", unit="row", encoding="utf-32", columns=[column])
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "t.csv", schema)


@pytest.mark.parametrize("encoding", ["", "utf-16", "cp1252"])
@pytest.mark.parametrize(
    "cell", ["\u00e4" * 900_000, '"x, ""y"""', '"two\nlines"', '"' + "\u00e4" * 900_000 + '"']
)
def test_long_and_quoted_cells_are_read_in_any_encoding(
    tmp_path: Path, encoding: str, cell: str
) -> None:
    text = f'a,note\n1,"x"\n2,{cell}\n3,\n'  # with a quote, every cell is looked at
    (tmp_path / "t.csv").write_text(text, encoding=encoding or "utf-8")
    column = Column(name="a", type="number", min=0, max=9)
    schema = Schema(dataset="d", unit="row", encoding=encoding, multiline=True, columns=[column])
    assert read_rows(tmp_path / "t.csv", schema).tolist() == [[1], [2], [3]]
    one_line = schema.model_copy(update={"multiline": False})
    report = check_file(tmp_path / "t.csv", one_line)
    assert (report.used, report.bad_lines) == ((3, 0) if "\n" not in cell else (2, 1))
