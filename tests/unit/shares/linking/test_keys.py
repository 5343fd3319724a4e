"""One text for every way of writing a key, none for what is ambiguous, and tags under a secret."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.core.errors import PlanError
from cloister.shares.linking.keys import Part, keys_of, tags

SAME: dict[str, tuple[Part, str, list[Any]]] = {
    "digits": (
        Part(rule="digits", width=11),
        "00102034050",
        ["010 203-4050", "102034050", 102034050, 102034050.0, "102034050.0", np.int64(102034050)],
    ),
    "scripts": (Part(rule="digits"), "123", ["１２３", "١٢٣", b"123", " 123 "]),
    "text": (
        Part(rule="text"),
        "jose o brien",
        ["  JOSÉ  O'Brien ", "jose\u0301 o brien", "José_O-Brien"],
    ),
    "sharp s": (Part(rule="text"), "strasse", ["Straße", "STRASSE", "strasse"]),
    "code": (Part(rule="code"), "DE1234", ["de 12-34", "DE1234", "ＤＥ.1234"]),
    "date": (
        Part(rule="date"),
        "2003-02-01",
        [
            "2003-02-01",
            datetime.date(2003, 2, 1),
            datetime.datetime(2003, 2, 1, 13, 5),
            pd.Timestamp("2003-02-01 13:05"),
            np.datetime64("2003-02-01T13:05"),
        ],
    ),
    "email": (Part(rule="email"), "a@b.org", [" A@B.org ", "a@b.ORG"]),
}
NONE: list[tuple[Part, Any]] = [
    (Part(rule="digits"), 1.5),
    (Part(rule="digits"), float("nan")),
    (Part(rule="digits"), 2.0**53),
    (Part(rule="digits"), "12a"),
    (Part(rule="digits"), "1.2e9"),
    (Part(rule="digits"), ""),
    (Part(rule="digits"), None),
    (Part(rule="digits", width=11), "123456789012"),
    (Part(rule="date"), "01/02/2003"),
    (Part(rule="date"), "2003-02-30"),
    (Part(rule="date"), "20030201"),
    (Part(rule="date"), pd.NaT),
    (Part(rule="email"), "a@b"),
    (Part(rule="email"), "a\ud800@b.org"),
    (Part(rule="email"), "\u0378@b.org"),
    (Part(rule="code"), "Ä1"),
    (Part(rule="code"), np.datetime64("NaT")),  # of a table of days with an empty cell
    (Part(rule="text"), np.datetime64("NaT")),
    (Part(rule="text"), "\u0378"),
    (Part(rule="text"), "'-'"),
    (Part(rule="text"), "a" * 2000),
]


@pytest.mark.parametrize("name", SAME)
def test_all_ways_to_write_a_key_give_one_text(name: str) -> None:
    part, text, cells = SAME[name]
    assert [part.text_of(cell) for cell in cells] == [text] * len(cells)


@pytest.mark.parametrize(("part", "cell"), NONE, ids=str)
def test_what_is_no_key_or_could_be_two_is_none(part: Part, cell: Any) -> None:
    assert part.text_of(cell) is None


def test_a_key_of_several_parts_needs_all_of_them() -> None:
    parts = (Part(rule="text"), Part(rule="date"))
    columns = [["Ann", "Bob", None], ["2001-01-01", "1/2/2001", "2001-01-01"]]
    assert keys_of(columns, parts) == [("ann", "2001-01-01"), (), ()]
    with pytest.raises(PlanError, match="width"):
        Part(rule="text", width=3)


def test_tags_differ_by_parts_secret_and_session_and_leave_two_bits() -> None:
    secret = b"s" * 32
    keys = [("ab", "c"), ("a", "bc"), ("abc",)]
    found = tags(secret, "one", keys)
    assert len(set(found.tolist())) == 3
    assert (found & np.uint64(3) == 0).all()
    assert (tags(secret, "one", keys) == found).all()
    assert not (tags(secret, "two", keys) == found).any()
    assert not (tags(b"t" * 32, "one", keys) == found).any()
    assert tags(secret, "one", []).shape == (0,)
