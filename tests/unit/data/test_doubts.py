"""Cells with two meanings: the owner is asked before a file is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.core.errors import DataError
from cloister.data import check_file, loss_notice, read_rows, refuse_loss
from cloister.data.check import fitted
from cloister.data.schema import Schema

AMOUNT = {"name": "amount", "type": "number", "min": 0, "max": 100_000}
RATIO = {"name": "ratio", "type": "number", "min": 0, "max": 10}


def schema(*columns: dict[str, Any], **more: Any) -> Schema:
    return Schema(dataset="x", unit="row", columns=columns or (AMOUNT,), **more)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "settings", "doubt"),
    [
        (["amount", "1.250", "900", "12.300"], {}, "may be thousands"),
        (["amount", "1.250", "900"], {"decimal": ","}, "may be thousands"),
        (["amount", '"1,250"', "900"], {"decimal": ",", "delimiter": ","}, "may be thousands"),
        (["amount", "1.250", "0.900"], {"decimal": ",", "thousands": "."}, "may be decimals"),
        (["amount", "1.250", "900"], {"decimal": ",", "thousands": "."}, ""),  # declared
        (["amount", "1.250", "0.9"], {}, ""),  # another cell decides
        (["amount", "1.25", "900"], {}, ""),
        (["amount;n", "1.250;0.5"], {}, ""),  # a column that is not read decides nothing
        (["amount", "1.250", "1.250,5"], {"decimal": ",", "thousands": "."}, ""),
    ],
)
def test_a_sign_before_three_digits_is_in_doubt_until_something_decides(
    tmp_path: Path, lines: list[str], settings: dict[str, str], doubt: str
) -> None:
    report = check_file(written(tmp_path, *lines), schema(**settings))
    assert bool(doubt) == bool(report.doubts) or lines[0] == "amount;n"
    if not doubt:
        return
    assert doubt in report.doubts[0]
    assert "'1.250'" in report.doubts[0] or "'1,250'" in report.doubts[0]
    with pytest.raises(DataError, match=doubt):
        refuse_loss([report])
    refuse_loss([report], max_loss=0.05)  # the owner's consent
    assert doubt in loss_notice(report)


def test_the_bounds_or_a_step_decide(tmp_path: Path) -> None:
    path = written(tmp_path, "ratio", "1.250", "9.300")
    assert not check_file(path, schema(RATIO)).doubts
    path = written(tmp_path, "amount", "1.250", "9.300")
    assert not check_file(path, schema({**AMOUNT, "step": 0.001})).doubts


@pytest.mark.parametrize(
    ("cells", "column", "word"),
    [
        ([20, 999, 30], {"type": "number", "min": 0, "max": 120}, "'999'"),
        ([20, -9, 30, -9], {"type": "integer", "min": 0, "max": 120}, "'-9'"),
        (["2001-01-01", "9999-12-31"], {"type": "date", "min": 2000.0, "max": 2020.0}, "9999"),
        ([20, 121, 121, 30], {"type": "number", "min": 0, "max": 120}, ""),
        ([20, 999, 30], {"type": "number", "min": 0, "max": 120, "out_of_range": "drop"}, ""),
        ([20, 999, 30], {"type": "number", "min": 0, "max": 120, "absent": ["999"]}, ""),
        ([500, 600, 700], {"type": "number", "min": 0, "max": 120}, ""),
        ([1950, 0, 1990], {"type": "integer", "min": 1850, "max": 2025}, "'0'"),
        ([1, 0, 4], {"type": "integer", "min": 1, "max": 9}, ""),
        ([1, 2, 2, 1], {"type": "boolean"}, "'2'"),
    ],
)
def test_a_code_for_a_missing_cell_is_not_clipped_in_silence(
    cells: list[Any], column: dict[str, Any], word: str
) -> None:
    report = check_file(pd.DataFrame({"x": cells}), schema({"name": "x", **column}))
    assert bool(report.doubts) == bool(word)
    assert word in " ".join(report.doubts)


@pytest.mark.parametrize(
    ("others", "code", "is_hinted"),
    [(range(17), 99, True), (range(17), -9, True), (range(9), 9, False), (range(95), 99, False)],
)
def test_a_code_within_the_bounds_is_named_and_stops_nothing(
    others: range, code: int, is_hinted: bool
) -> None:
    wide = {"name": "x", "type": "integer", "min": -10, "max": 120}
    report = check_file(pd.DataFrame({"x": [*others, *[code] * 3]}), schema(wide))
    assert bool(report.hints) == is_hinted
    assert not report.doubts
    assert not is_hinted or f'absent = ["{code}"]' in report.hints[0]
    assert not check_file(pd.DataFrame({"x": [*others, code]}), schema(wide)).hints  # once


def test_a_spelling_for_another_file_does_not_invert_this_one() -> None:
    other = {"name": "x", "type": "boolean", "spellings": {"true": ["2"], "false": ["1"]}}
    cells: list[Any]
    for cells in ([1, 0], ["1", "no"], [1.0, 0.0], [True, False, 1]):
        (doubt,) = check_file(pd.DataFrame({"x": cells}), schema(other)).doubts
        assert "are both read as" in doubt
    for cells in ([1, 2], ["2", "yes", "1"], [1], ["no", "2"]):
        assert not check_file(pd.DataFrame({"x": cells}), schema(other)).doubts, cells


def test_a_line_of_totals_is_no_record(tmp_path: Path) -> None:
    columns = [{**AMOUNT, "name": name} for name in "abc"]
    path = written(tmp_path, "a,b,c", "1,2,3", "4,5,6", "Total,,9")
    (doubt,) = check_file(path, schema(*columns), ["c"]).doubts
    assert "last row" in doubt
    assert not check_file(path, schema(*columns), ["b", "c"]).doubts  # not used by this job
    assert not check_file(written(tmp_path, "a,b,c", "1,,", "4,5,6"), schema(*columns), "a").doubts


@pytest.mark.parametrize(
    ("word", "spellings", "is_taken"),
    [
        ("PA", {}, False),  # another plastic, which resembles PLA
        ("grade 3", {}, False),
        ("pla", {}, True),
        ("Grade-2", {}, True),
        ("pla", {"grade 2": ["PA"]}, True),  # the owner's word is no guess
    ],
)
def test_a_word_that_only_resembles_a_category_needs_consent(
    word: str, spellings: dict[str, list[str]], is_taken: bool
) -> None:
    column = {"name": "x", "type": "category", "categories": ["PLA", "grade 2"]}
    agreed = schema({**column, "spellings": spellings})
    _, remedies, report = fitted(pd.DataFrame({"x": ["PLA", "PLA", word]}), agreed)
    assert bool(remedies) == is_taken
    assert report.lost == 1 - is_taken
    assert "spellings" in str(report.remedies) or is_taken


def test_remedies_with_one_meaning_are_applied_and_others_need_consent(tmp_path: Path) -> None:
    columns = [
        AMOUNT,
        {"name": "ill", "type": "boolean"},
        {"name": "sex", "type": "category", "categories": ["female", "male"]},
    ]
    lines = ["amount;ill;sex", "1.250,5;J;f", "999999;N;m", "3;J;f"]
    path, agreed = written(tmp_path, *lines), schema(*columns)
    found, remedies, report = fitted(path, agreed)
    assert found.digest() == agreed.digest()
    assert {remedy.key for remedy in remedies} == {"decimal", "thousands", "spellings"}
    assert report.lost == 3
    heard: list[str] = []
    found, _, report = fitted(path, agreed, accept=lambda _, why: heard.append(why) is None)
    assert (report.used, report.doubts) == (2, ())
    assert any("'f'" in why for why in heard)
    assert any("'999999'" in why for why in heard)
    rows = read_rows(path, found)
    np.testing.assert_array_equal(rows, [[1250.5, 1, 0], [np.nan, 0, 1], [3, 1, 0]])
