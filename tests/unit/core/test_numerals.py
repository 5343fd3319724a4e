"""The text of numbers."""

from __future__ import annotations

import pytest

from cloister.core.numerals import counted


@pytest.mark.parametrize(
    ("n", "thing", "text"),
    [
        (0, "row", "no rows"),
        (1, "row", "1 row"),
        (2, "row", "2 rows"),
        (1200, "entry", "1,200 entries"),
        (1, "entry", "1 entry"),
        (2, "class", "2 classes"),
        (3, "day", "3 days"),
    ],
)
def test_things_are_counted_in_singular_and_plural(n: int, thing: str, text: str) -> None:
    assert counted(n, thing) == text
