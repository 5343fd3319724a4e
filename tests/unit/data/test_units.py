"""The name of a unit: one for each identifier, whatever holds it, and none for what is none."""

from __future__ import annotations

import datetime
import enum
import math
import sys
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cloister.data.sources import open_source
from cloister.data.units import as_text, one_unit, unit_name, unit_names

NOON = datetime.datetime(2021, 7, 2, 12, 30)
LONG = "12345678901234567890123456789012345678"


class Ward(str, enum.Enum):  # noqa: UP042  (which str writes as Ward.NORTH)
    NORTH = "north"


class Written(int):
    def __repr__(self) -> str:
        return "another"

    __str__ = __repr__


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("7", [7, 7.0, "7", " 7 ", b"7", Decimal("7.00"), np.int8(7), np.float32(7), Written(7)]),
        ("7", [memoryview(b"7"), bytearray(b"7"), np.str_("7"), np.bytes_(b"7"), np.longdouble(7)]),
        ("7", [7 + 0j, np.complex64(7)]),
        ("1000", [Decimal("1E+3"), 1e3, "1000"]),
        ("9007199254740991", [2.0**53 - 1, 2**53 - 1]),
        ("16777215", [np.float32(2**24 - 1), 2.0**24 - 1]),
        (LONG, [LONG, int(LONG), Decimal(LONG), Decimal(LONG + ".0")]),
        ("north", [Ward.NORTH, "north", b"north"]),
        ("True", [True, np.True_]),
        ("0xff", [b"\xff"]),
        ("2021-07-02", [NOON.date(), datetime.datetime(2021, 7, 2), np.datetime64("2021-07-02")]),
        (
            "2021-07-02",
            [pd.Timestamp("2021-07-02", tz="Asia/Tokyo"), np.datetime64("2021-07-02", "ns")],
        ),
        (
            "2021-07-02 12:30:00",
            [NOON, NOON.replace(tzinfo=datetime.UTC), np.datetime64(NOON, "m")],
        ),
        ("2021-07-02 12:30:00", [pd.Timestamp(NOON), np.datetime64(NOON, "ns")]),
        (
            "2021-07-02 12:30:00.5",
            [NOON.replace(microsecond=500000), np.datetime64(NOON, "ns") + 500_000_000],
        ),
        ("00000000-0000-0000-0000-000000000007", [uuid.UUID(int=7)]),
    ],
)
def test_an_identifier_has_one_name(name: str, cells: list[Any]) -> None:
    assert [unit_name(cell) for cell in cells] == [name] * len(cells)


@pytest.mark.parametrize(
    "cell",
    [
        *(None, pd.NA, pd.NaT, np.datetime64("NaT"), float("nan"), float("inf"), Decimal("NaN")),
        *("", "  ", b"", 2.0**53, np.float32(2**24), np.float16(2**11), 10**5000, "x" * 70_000),
        *(object(), Decimal("1e999999"), 1e300, np.ma.masked),
        *(-(2.0**53), -math.inf, np.float32(-math.inf), Decimal("0E-65536"), Decimal("0E+65536")),
    ],
    ids=lambda cell: type(cell).__name__,
)
def test_what_names_nobody_is_no_unit(cell: Any) -> None:
    assert unit_name(cell) is None


def named(cells: Any) -> list[str | None]:
    names, rows = unit_names(cells)
    return [names[row] if row >= 0 else None for row in rows.tolist()]


@pytest.mark.parametrize(
    "cells",
    [
        *(np.array([7, 2**11, np.nan], kind) for kind in (np.float16, np.float32, np.float64)),
        np.array([7, 2**63, 7], np.uint64),
        np.array(["2021-07-02T12:30", "NaT", "2021-07-02"], "M8[ns]"),
        np.array(["x", "7", "x"]),
        np.array([7, None, "7", b"\xff"], dtype=object),
    ],
    ids=lambda cells: str(cells.dtype),
)
def test_a_column_of_units_is_read_cell_by_cell(cells: Any) -> None:
    expected = [unit_name(cell) for cell in cells]
    assert named(cells) == named(list(cells)) == expected
    assert named(cells[::-1]) == expected[::-1]


@pytest.mark.parametrize(
    ("kind", "cells", "expected"),
    [
        (pa.float32(), [7, 2**24, None], ["7", None, None]),
        (pa.decimal128(38, 0), [Decimal(LONG), None], [LONG, None]),
        (pa.decimal256(50, 2), [Decimal("7.00")], ["7"]),
        (pa.string_view(), ["7", None, "x"], ["7", None, "x"]),
        (pa.binary(1), [b"7", None, b"\xff"], ["7", None, "0xff"]),
        (pa.list_(pa.int8()), [[1], None, [1]], ["[1]", None, "[1]"]),
        (pa.timestamp("ns"), [NOON, None], ["2021-07-02 12:30:00", None]),
        (pa.timestamp("us", "Asia/Tokyo"), [NOON], ["2021-07-02 21:30:00"]),
        (pa.timestamp("us", "Mars/Olympus"), [0], ["1970-01-01"]),
        (pa.date32(), [NOON.date(), None], ["2021-07-02", None]),
        (pa.date64(), [NOON.date()], ["2021-07-02"]),
        (pa.date32(), [3_000_000], ["10183-09-21"]),  # Python has no such day
        (pa.duration("s"), [1 << 62], [str(1 << 62)]),  # nor such a time
        (pa.time32("s"), [datetime.time(12)], ["12:00:00"]),
        (pa.bool_(), [True, None], ["True", None]),
        (pa.null(), [None], [None]),
    ],
    ids=str,
)
def test_arrow_units_have_the_names_of_their_objects(
    kind: Any, cells: list[Any], expected: list[str | None]
) -> None:
    column = pa.array(cells, kind)
    assert named(column) == expected
    assert [named(column.slice(i, 1))[0] for i in range(len(cells))] == expected
    coded = pa.DictionaryArray.from_arrays(pa.array([None, *range(len(cells))]), column)
    assert named(coded) == [None, *expected]
    ends = pa.RunEndEncodedArray.from_arrays([i + 2 for i in range(len(cells))], column)
    assert named(ends) == [expected[0], *expected]
    assert named(ends.slice(1)) == expected


def test_units_that_are_stored_once_in_two_ways_have_their_names() -> None:
    words = pa.array(["7", None, "x"]).dictionary_encode()
    assert named(pa.RunEndEncodedArray.from_arrays([2, 3, 4], words)) == ["7", "7", None, "x"]


def test_a_cell_of_a_text_table_that_is_null_has_no_place() -> None:
    coded = as_text(pa.array([b"7", None, b"7", b"x"], pa.binary()))
    assert (coded.distinct, coded.places.tolist()) == (["7", "x"], [0, -1, 0, 1])


def test_a_whole_number_may_be_as_long_as_any_identifier() -> None:
    before = sys.get_int_max_str_digits()
    assert unit_name(10**50_000) is None  # by default Python does not write it
    try:
        sys.set_int_max_str_digits(0)
        assert unit_name(10**50_000) == "1" + "0" * 50_000
        assert unit_name(10**70_000) is None
    finally:
        sys.set_int_max_str_digits(before)


def test_polars_and_pandas_give_the_names_of_their_cells() -> None:
    days = pd.Series([NOON, None, NOON]).dt.tz_localize("Asia/Tokyo")
    assert named(days.dt.tz_localize(None).to_numpy()) == named(days.tolist())
    assert named(pl.Series(["7", None], dtype=pl.Categorical).to_arrow()) == ["7", None]


def test_a_moment_has_one_name_beside_one_whose_own_clock_is_beyond_its_type() -> None:
    ends = [pd.Timestamp("2021-07-02 12:30:00.5"), pd.Timestamp.max]
    moments = pd.Series(ends).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    frame = pd.DataFrame({"x": [1.0, 2.0], "id": moments})

    def units(part: pd.DataFrame) -> list[str | None]:
        return [
            name for raw in open_source(part, ["x"], "id").chunks(2) for name in named(raw.units)
        ]

    assert units(frame) == [*units(frame[:1]), *units(frame[1:])]
    assert units(frame)[0] == "2021-07-02 21:30:00.5"


def test_spellings_of_one_unit() -> None:
    same = ["7", "7.0", "07", "+7", "7\u00a0", "\uff17", "\u0667", "\u200b7", "7\ufe0f"]
    assert {one_unit(name) for name in same} == {"7"}
    assert {one_unit(name) for name in ("-0", "0", "+0.0")} == {"0"}
    assert one_unit("9" * 5000) == "9" * 5000
    assert len({one_unit(name) for name in ("7", "-7", "7.5", "x7", "7 1", "A", "a")}) == 7
