"""What an object, a moment or a word means, whatever class or type it is of."""

from __future__ import annotations

import datetime
import decimal
import fractions
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cloister.core.dates import decimal_years
from cloister.data import Labelled, check_file, read_source
from cloister.data.cells import CellType, _days_of, _digits, shown
from cloister.data.schema import Schema

YEARS = CellType("date", low=1900, high=2100)


def refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a cell's own code")


METHODS = ("__eq__", "__hash__", "__float__", "__str__", "__repr__", "__len__", "__iter__")
MORE = ("__index__", "__bool__", "encode", "strip", "isoformat", "replace", "bit_length", "imag")


def hostile(base: type, *value: Any) -> Any:
    """Make an object whose every method raises."""
    return type("Hostile", (base,), dict.fromkeys((*METHODS, *MORE), refuse))(*value)


class Meta(type):
    """A class whose classes can be neither compared nor hashed."""

    __eq__ = refuse
    __hash__ = None  # type: ignore[assignment]


itself: list[Any] = []
itself.append(itself)
deep: list[Any] = []
for _ in range(50_000):
    deep = [deep]
released = memoryview(b"1")
released.release()
OBJECTS: list[Any] = [
    *(hostile(object), hostile(float, 1.5), hostile(int, 1), hostile(str, "1"), hostile(list)),
    *(hostile(datetime.datetime, 2021, 7, 2), hostile(complex, 1), hostile(bytes, b"1")),
    *(Meta("C", (), {})(), itself, deep, {"a": deep}, [10**5000], 10**5000, -(10**5000)),
    *(released, memoryview(np.arange(4)[::2]), (i for i in range(3)), range(3), {1}, ..., slice(1)),
    *(np.datetime64("NaT"), np.timedelta64("NaT"), np.timedelta64(1, "s"), np.void(b"1")),
    *(np.array(1), np.array([1]), np.ma.masked, np.longdouble(1), np.clongdouble(1), np.str_("1")),
    *(np.datetime64(5, unit) for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")),
    *(np.datetime64(-5, unit) for unit in ("ps", "fs", "as", "10us")),
    *(np.datetime64(2**62, unit) for unit in ("Y", "M", "W", "D", "h", "s", "as")),
    *(datetime.datetime.min, datetime.datetime.max, datetime.date.min, datetime.date.max),
    *(pd.Timestamp.min, pd.Timestamp.max, pd.Period("2021"), pd.Interval(0, 1), pd.Timedelta(1)),
    *(pd.Timestamp(np.datetime64("20000-01-01", "s")), decimal.Decimal("1e999999")),
    *(decimal.Decimal("sNaN"), decimal.Decimal("-Infinity"), fractions.Fraction(10**400, 3)),
    *(
        complex("nan"),
        complex(1, float("nan")),
        "\ud800",
        "\0",
        b"\xff",
        object(),
        type,
        Exception(),
    ),
]
KINDS: list[dict[str, Any]] = [
    {"type": "number", "min": -10, "max": 10},
    {"type": "integer", "min": -10, "max": 10},
    {"type": "boolean"},
    {"type": "category", "categories": ["0", "1", "no", "True"]},
    {"type": "date", "min": "1990-01-01", "max": "2030-01-01"},
    {"type": "date", "min": "1990-01-01", "max": "2030-01-01", "format": "%d.%m.%Y"},
]


@pytest.mark.parametrize("rule", KINDS, ids=lambda rule: rule["type"])
def test_no_object_raises_and_all_containers_of_objects_agree(rule: dict[str, Any]) -> None:
    beside = {"name": "n", "type": "number", "min": 0, "max": 1}
    schema = Schema(dataset="d", unit="row", columns=[{"name": "x", **rule}, beside])
    numbers = [(i + 1) / 128 for i in range(len(OBJECTS))]
    column = np.empty(len(OBJECTS), dtype=object)
    for i, cell in enumerate(OBJECTS):
        column[i] = cell
    frame = pd.DataFrame({"x": pd.Series(column, dtype=object), "n": numbers})
    table = np.empty((len(OBJECTS), 2), dtype=object)
    table[:, 0], table[:, 1] = column, numbers
    rows = [[cell, number] for cell, number in zip(OBJECTS, numbers, strict=True)]
    found = [
        [row for chunk in read_source(source, schema) for row in chunk.tolist()]
        for source in (frame, table, rows, *([one] for one in rows))
    ]
    assert found[0] == found[1] == found[2] == list(itertools.chain(*found[3:]))
    assert 0 < len(found[0]) < len(OBJECTS)
    assert str(check_file(frame, schema))  # and no text of a cell raises either
    units = frame.rename(columns={"x": "who"}).assign(x=1)
    by_unit = schema.model_copy(update={"unit": "who", "max_rows": 1})
    assert sum(map(len, read_source(units, by_unit))) <= len(OBJECTS)


TICKS = {"h": 24, "m": 1440} | {
    unit: 86400 * 1000**i for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))
}


@pytest.mark.parametrize("unit", TICKS)
@pytest.mark.parametrize("ticks", [0, 1, -1, 2**62, -(2**62)])
def test_moments_of_every_unit_have_their_day(unit: str, ticks: int) -> None:
    moments = np.array([ticks], dtype=np.int64).view(f"M8[{unit}]")
    day = np.array([ticks // TICKS[unit]]).view("M8[D]")  # in whole numbers of Python
    twice = np.array([ticks // 2], dtype=np.int64).view(f"M8[2{unit}]")  # the same, or a tick less
    assert twice.astype(moments.dtype) == moments - ticks % 2
    assert YEARS.read(twice).values == YEARS.read(moments - ticks % 2).values
    for cells in (moments, list(moments), moments.astype(f">M8[{unit}]")):
        assert YEARS.read(cells).values.tolist() == decimal_years(day).tolist()
    words = CellType("category", (("1969-12-31 23:00:00", 0), ("1970-01-01", 1)))
    if unit == "h":
        assert words.read(np.array([-1, 0], dtype=np.int64).view("M8[h]")).values.tolist() == [0, 1]


def test_a_number_is_a_year_of_four_digits_or_within_the_bounds_or_a_date() -> None:
    kind = CellType("date", low=-50, high=50)
    for numbers, years in (
        ([1000, 1500.5, 9999.9, -50, 0.5, 50], [1000, 1500.5, 9999.9, -50, 0.5, 50]),
        ([999, 999.9, 10000, -50.5, 51, np.inf, np.nan], [np.nan] * 7),
        ([20210702, -20210702], [2021 + 182 / 365, np.nan]),
    ):
        found = kind.read(np.array(numbers))
        np.testing.assert_array_equal(found.values, years)
        assert found.wrong is not None
        assert found.wrong.tolist() == (np.isnan(years) & np.isfinite(numbers)).tolist()


def test_a_number_within_the_bounds_is_a_year_even_if_its_digits_are_a_date() -> None:
    wide = CellType("date", low=0, high=1e9)
    assert wide.read(np.array([20210702.0])).values.tolist() == [20210702.0]
    formatted = replace(wide, form="%d%m%Y")
    assert formatted.read(np.array([12072021.0, 5.0])).values.tolist() == [2021 + 192 / 365, 5.0]


def test_a_moment_is_the_category_that_a_text_table_writes() -> None:
    moment, day = datetime.datetime(2021, 7, 2, 13, 5, 59), datetime.date(2021, 7, 2)
    kind = CellType("category", (("2021-07-02 13:05:59", 1), ("2021-07-02", 2)))
    midnight = datetime.datetime(2021, 7, 2)
    assert kind.read([moment, day, midnight]).values.tolist() == [1, 2, 2]
    array = np.array([moment, midnight, midnight], "M8[ms]")
    for cells in (array, pa.array(array), list(array)):
        assert kind.read(cells).values.tolist() == [1, 2, 2]


def test_a_number_is_a_date_by_the_format_of_its_column() -> None:
    found = CellType("date", form="%d%m%y", low=1950, high=2049).read(np.array([120721.0, 999999]))
    np.testing.assert_array_equal(found.values, [2021 + 192 / 365, np.nan])


@pytest.mark.parametrize(
    ("cell", "low", "high", "year"),
    [
        ("01.01.45", 1920, 2010, 1945.0),  # strptime alone gives 2045
        ("01.01.45", 2000, 2060, 2045.0),
        ("01.01.68", 1950, 2049, 1968.0),
        ("01.01.45", 1900, 2100, np.nan),  # two centuries
        ("01.01.45", 1950, 1990, 2045.0),  # none: out of range
        ("29.02.00", 1890, 1950, 2000.0 + 59 / 366),  # 1900 had no such day
        ("1945-01-01", 2000, 2060, 1945.0),  # four digits in ISO 8601
    ],
)
def test_two_digits_of_a_year_are_in_the_century_of_the_bounds(
    cell: str, low: float, high: float, year: float
) -> None:
    found = CellType("date", form="%d.%m.%y", low=low, high=high).read(pa.array([cell]))
    np.testing.assert_allclose(found.values, [year])


@pytest.mark.parametrize(
    ("kind", "absent", "cells", "values"),
    [
        ("number", ("999", "-9"), ["1", "999", "999.0", "-9", "leer"], [1, *[np.nan] * 4]),
        ("date", ("9999-12-31",), ["2000-01-01", "9999-12-31"], [2000, np.nan]),
        ("boolean", ("no",), ["yes", "n", "0"], [1, np.nan, np.nan]),
    ],
)
def test_a_further_word_for_a_missing_cell_is_one_in_every_form(
    kind: str, absent: tuple[str, ...], cells: list[str], values: list[float]
) -> None:
    found = CellType(kind, absent=absent).read(pa.array(cells))
    np.testing.assert_array_equal(found.values, values)


@pytest.mark.parametrize("kind", ["category", "boolean", "number", "date"])
def test_a_word_of_absent_that_the_type_does_not_read_is_missing(kind: str) -> None:
    words = (("a", 0), ("b", 1)) if kind == "category" else ()
    cells = ["unknown", " unknown", "other", None]
    several: Any
    for several in (cells, pa.array(cells), pa.array(cells).dictionary_encode()):
        found = CellType(kind, words, absent=("unknown", "999")).read(several)
        assert found.wrong is not None
        assert found.wrong.tolist() == [False, False, True, False]
        assert np.isnan(found.values).all()


@pytest.mark.parametrize("word", ["inf", "-Infinity", "nan", "NaN"])
def test_a_text_that_says_no_finite_number_is_missing_among_numbers(word: str) -> None:
    found = CellType().read(pa.array(["1", word, None]))
    np.testing.assert_array_equal(found.values, [1, np.nan, np.nan])
    assert found.wrong is None or not found.wrong.any()


def test_a_truth_value_is_the_category_of_its_word_or_else_of_its_number() -> None:
    truths = np.array([False, True])
    for words, codes in (
        ((("0", 5), ("1", 6)), [5, 6]),
        ((("False", 7), ("1", 6), ("0", 5)), [7, 6]),
        ((("TRUE", 3), ("1", 6)), [np.nan, 3]),
    ):
        np.testing.assert_array_equal(CellType("category", words).read(truths).values, codes)


def test_a_number_beyond_all_floats_is_infinite() -> None:
    cells = [10**400, decimal.Decimal("-1e999"), fractions.Fraction(10**400, 3), "x"]
    assert CellType().read(cells[:3]).values.tolist() == [np.inf, -np.inf, np.inf]
    assert CellType().read(cells).values[:3].tolist() == [np.inf, -np.inf, np.inf]


def test_a_truth_value_is_no_date() -> None:
    found = YEARS.read(np.array([True, False]))
    np.testing.assert_array_equal(found.values, [np.nan, np.nan])
    assert found.wrong is not None
    assert found.wrong.tolist() == [True, True]


def test_days_have_whole_seconds_and_none_where_there_is_no_day() -> None:
    found = _days_of(np.array(["2021-07-02T13:05:01", "NaT", "1969-12-31T23:59:59"], "M8[s]"))
    assert found.seconds is not None
    assert found.seconds.dtype == np.int64
    assert found.seconds.tolist() == [47_101, 0, 86_399]
    np.testing.assert_array_equal(
        found.days, np.array(["2021-07-02", "NaT", "1969-12-31"], "M8[D]")
    )


def test_a_category_is_found_by_number_whatever_the_other_words_are() -> None:
    kind = CellType("category", (("male", 0), ("1", 0), ("female", 1), ("2", 1)))
    assert kind.read([1.0, 2, "1.0", "2e0", True]).values.tolist()[:4] == [0, 1, 0, 1]
    assert kind.read(np.array([2, 1, 3])).wrong.tolist() == [False, False, True]  # type: ignore[union-attr]


def test_arrow_types_that_store_a_cell_once_are_read_in_slices() -> None:
    words = pa.array(["1", None, "no"])
    for values in (words, words.cast(pa.string_view()), pa.array([1.0, None, 0.0])):
        ends = pa.RunEndEncodedArray.from_arrays([2, 3, 6], values)
        coded = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 2, 2, 2]), values)
        plain = pa.array([values[i].as_py() for i in (0, 0, 1, 2, 2, 2)])
        for kind in (CellType(), CellType("boolean"), CellType("category", (("no", 0), ("1", 1)))):
            for start, stop in itertools.combinations(range(7), 2):
                expected = kind.read(plain.slice(start, stop - start)).values
                for cells in (ends, coded):
                    found = kind.read(cells.slice(start, stop - start)).values
                    assert np.array_equal(found, expected, equal_nan=True)


def test_a_row_without_a_place_in_a_dictionary_is_a_missing_cell() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2]), pa.array(["1", "2", "x"]))
    for cells in (coded, coded.cast(pa.dictionary(pa.int8(), pa.large_string()))):
        found = CellType().read(cells)
        np.testing.assert_array_equal(found.values, [1, np.nan, 2, np.nan])
        assert found.wrong is not None
        assert found.wrong.tolist() == [False, False, False, True]


def test_columns_whose_type_another_library_chose_stop_nothing(tmp_path: Path) -> None:
    column = {"name": "x", "type": "number", "min": -10, "max": 10, "missing": "max"}
    schema = Schema(dataset="d", unit="row", columns=[column])
    wide = pl.DataFrame({"x": pl.Series([1, 2**100], dtype=pl.Int128)})
    durations = pd.to_timedelta([1, 2])  # whose numbers are nanoseconds
    truths = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))
    empty = np.empty((2, 0))
    for source, expected in (
        (wide, [[6554], [65536]]),
        (wide.lazy(), [[6554], [65536]]),
        (Labelled(empty, "x", durations), [[65536], [65536]]),
        (Labelled(empty, "x", np.array([1, 2], "m8[ns]")), [[65536], [65536]]),
        (np.array([["2021-07-02"], ["NaT"]], "M8[ns]"), [[65536], [65536]]),
        ([np.array(["2021-07-02"], "M8[ns]"), [1]], [[65536], [6554]]),
        (np.ma.masked_array(np.array([[5], [1]], "M8[ns]"), [[1], [0]]), [[65536], [65536]]),
        (pa.table({"x": truths}), [[6554], [0]]),
        ([], []),
    ):
        assert [row for chunk in read_source(source, schema) for row in chunk.tolist()] == expected


@pytest.mark.parametrize("cells", [["b", "a", "c"], [b"b", b"a", b"c"]])
def test_an_array_of_words_is_read_like_their_list(cells: list[Any]) -> None:
    kind = CellType("category", (("a", 0), ("b", 1)))
    for array in (cells, np.array(cells), np.array(cells, dtype=object)):
        found = kind.read(array)
        np.testing.assert_array_equal(found.values, [1, 0, np.nan])
        assert found.wrong is not None
        assert found.wrong.tolist() == [False, False, True]


TEXTS = ("utf8", "large_utf8", "string_view", "binary", "large_binary", "binary_view")


@pytest.mark.parametrize("kind", [getattr(pa, name)() for name in TEXTS] + [pa.binary(3)], ids=str)
def test_every_arrow_type_of_texts_is_text(kind: pa.DataType) -> None:
    texts = pa.array(["1.5", None, "abc", "2e1"]).cast(pa.binary())
    found = CellType().read(texts.cast(kind) if kind != pa.binary() else texts)
    np.testing.assert_array_equal(found.values, [1.5, np.nan, np.nan, 20.0])
    assert found.wrong is not None
    assert found.wrong.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (20210702.0, "20210702"),
        (-3.0, "-3"),
        (0.5, "0.5"),
        (9.9e15, "99" + 14 * "0"),
        (1e16, "1e+16"),
        (-1e16, "-1e+16"),
    ],
)
def test_a_number_has_the_digits_that_a_text_table_has(number: float, text: str) -> None:
    assert _digits(number) == text


def test_what_an_arrow_type_of_somebody_is_made_of_is_read() -> None:
    words = CellType("category", (("true", 5), ("false", 7), ("1", 0)))
    truths = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    np.testing.assert_array_equal(words.read(truths).values, [5, 7, np.nan])
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", "true", None]))
    np.testing.assert_array_equal(words.read(texts).values, [0, 5, np.nan])


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_a_moment_at_the_end_of_a_types_range_is_a_moment(zone: str) -> None:
    """Its own clock is beyond what pandas can hold."""
    ends = [pd.Timestamp.min, pd.Timestamp("2021-12-31 23:30"), pd.Timestamp.max]
    moments = pd.Series(ends).dt.tz_localize("UTC").dt.tz_convert(zone)
    column = {"name": "x", "type": "date", "min": "1990-01-01", "max": "2030-01-01"}
    schema = Schema(dataset="d", unit="row", columns=[column])
    frame = pd.DataFrame({"x": moments})
    whole = [row for chunk in read_source(frame, schema) for row in chunk.tolist()]
    alone = [chunk.tolist()[0] for i in range(3) for chunk in read_source(frame.iloc[[i]], schema)]
    assert whole == alone
    assert whole[0] == [-65536]
    assert whole[2] == [65536]


def test_a_cell_is_shown_to_its_owner_whatever_it_is() -> None:
    assert [shown(cell) for cell in (b"\xe4 ", " x", pa.scalar(1), 1.5)] == ["ä", "x", "1", "1.5"]
    assert shown(hostile(object)) == "(Hostile)"
    assert shown(deep) == "(list)"
    assert shown(pa.scalar(2**62, pa.timestamp("us"))).startswith("(")
