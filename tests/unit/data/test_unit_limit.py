"""The limit of rows a unit, worked out by hand: names, spellings, counts over chunks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloister.data.units import UnitLimit, one_unit, unit_name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (7, "7"),
        (7.0, "7"),
        (-0.0, "0"),
        (7.5, "7.5"),
        (math.inf, None),
        (math.nan, None),
        (None, None),
        (" 7 ", "7"),
        ("  ", None),
        ("", None),
        (b"7", "7"),
        (b"\xff\x00", "0xff00"),
    ],
)
def test_the_name_of_a_unit_by_hand(value: Any, name: str | None) -> None:
    assert unit_name(value) == name


def test_an_identifier_has_at_most_65536_characters() -> None:
    assert unit_name("x" * 65536) == "x" * 65536
    assert unit_name("x" * 65537) is None


def test_identifiers_that_show_nothing_are_no_unit_written_in_two_ways() -> None:
    limit = UnitLimit(1, spellings=True)
    keep = limit.keep(["\u200b", "\u200b\u200b"], np.ones(2, dtype=bool))
    assert not keep.any()
    assert limit.merged == ()


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("007", "7"),
        ("+7", "7"),
        ("-7", "-7"),
        ("-007.0", "-7"),
        ("-0", "0"),
        ("00", "0"),
        ("7.5", "7.5"),
        ("-x", "-x"),
        ("a\x01b", "ab"),
        ("\x007", "7"),
        ("\x01", "\x01"),  # a key of bytes that shows nothing is a unit all the same
        ("\x01\x02", "\x01\x02"),
    ],
)
def test_the_spelling_of_a_unit_by_hand(name: str, unit: str) -> None:
    assert one_unit(name) == unit


def test_a_limit_counts_over_chunks_by_hand() -> None:
    limit = UnitLimit(2)
    first = limit.keep(pa.array(["a", "b", None, "a", "a"]), np.array([1, 1, 1, 0, 1], bool))
    assert first.tolist() == [True, True, False, False, True]
    second = limit.keep(pa.array(["b", "a", "07", "7", "7.0"]), np.ones(5, bool))
    assert second.tolist() == [True, False, True, True, False]
    assert (limit.without_unit, limit.beyond) == (1, 2)
    assert {type(limit.without_unit), type(limit.beyond)} == {int}  # as JSON takes them
    assert limit.keep(pa.array(["b"]), np.ones(1, bool)).tolist() == [False]


def test_a_unit_that_is_not_admitted_keeps_no_row() -> None:
    asked: list[str] = []

    def admits(unit: str) -> bool:
        asked.append(unit)
        return unit != "7"

    limit = UnitLimit(1, admits)
    kept = limit.keep(pa.array(["a", "07", "b", None]), np.array([1, 1, 0, 1], bool))
    assert kept.tolist() == [True, False, False, False]
    # A unit without a usable row did not arrive, and is not asked for.
    assert asked == ["a", "7"]
    assert (limit.beyond, limit.not_admitted) == (0, 1)
    # A row beyond max_rows of a unit that is not admitted is lost for the same reason.
    assert not limit.keep(pa.array(["7", "a", "7"]), np.ones(3, bool)).any()
    assert (limit.beyond, limit.not_admitted) == (1, 3)


def test_no_limit_keeps_what_can_be_used() -> None:
    usable = np.array([True, False])
    assert UnitLimit(None).keep(None, usable) is usable
