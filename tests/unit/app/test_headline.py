"""The numbers of the first screen: those of the sentence, or of the first display with any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.app.headline import KeyNumber, key_numbers
from cloister.core.display import DATE, Bars, Curve, Display, Estimate, Heatmap, Table, around, bare
from cloister.core.display import between as interval


def one(value: float, low: float = 0.0, high: float = 9.0) -> Estimate:
    return interval(value, low, high)


def named(numbers: tuple[KeyNumber, ...]) -> list[tuple[str, str, float]]:
    return [(number.of, number.name, number.estimate.value) for number in numbers]


RECORDS = around(600.0, 12.0)


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        (
            ("Means: ", "age ", one(1), ", ", "weight ", one(2), "."),
            [("Means", "age"), ("Means", "weight")],
        ),
        (
            ("Bounds: ", "age ", one(1), " to ", one(2)),
            [("Bounds", "age"), ("Bounds", "age, up to")],
        ),
        (
            ("9 bins. Medians: ", "age ", one(1), ". The rest is ", one(2)),
            [("Medians", "age"), ("", "The rest")],
        ),
        (
            ("The first component has a share of ", one(1), " of the variance."),
            [("", "The first component, share")],
        ),
        (
            ("Most frequent: bread, a share of ", one(1), "."),
            [("Most frequent", "bread, share")],
        ),
        (("Half by: ", "a ", one(np.nan), ", ", "b ", one(2)), [("Half by", "b")]),
    ],
)
def test_the_numbers_of_a_sentence_have_its_words(
    sentence: tuple[str | Estimate, ...], found: list[tuple[str, str]]
) -> None:
    numbers = key_numbers(sentence, (), RECORDS)
    assert [(number.of, number.name) for number in numbers] == [*found, ("records", "in all")]


def test_three_are_the_most() -> None:
    sentence = tuple(part for i in range(5) for part in (f"n{i} ", one(i)))
    assert [number.name for number in key_numbers(sentence, (), RECORDS)] == ["n0", "n1", "n2"]


def test_without_a_sentence_the_first_display_with_numbers_answers() -> None:
    table = Table("T", ("", "mean", "n"), (("a", one(1), "x"), ("b", one(2), one(4))))
    labels = (("r",), ("c", "d"))
    two = np.array([[1.0, 2.0]])
    heat = Heatmap("H", Estimate(two, two - 1, two + 1, labels=labels))
    bars = Bars("B", Estimate(two[0], two[0] - 1, two[0] + 1, labels=(("c", "d"),)))
    curve = Curve("C", two[0], Estimate(two[0], two[0] - 1, two[0] + 1))
    count = Table("Noisy count", ("", "records"), (("all silos", RECORDS),))
    exact = Bars("B", bare(two[0], labels=(("c", "d"),)))
    shown: tuple[Display, ...] = (curve, count, exact, table, bars)
    rows = [("mean", "a", 1.0), ("mean", "b", 2.0), ("n", "b", 4.0)]
    assert named(key_numbers("no number", shown, RECORDS)) == rows
    assert named(key_numbers("", (heat, table), None)) == [("H", "r, c", 1.0), ("H", "r, d", 2.0)]
    assert named(key_numbers("", (bars,), None)) == [("B", "c", 1.0), ("B", "d", 2.0)]
    assert named(key_numbers("", (count,), RECORDS)) == [("records", "in all", 600.0)]
    assert key_numbers("", (curve, exact), None) == ()


def test_a_number_tells_its_interval_and_what_that_includes() -> None:
    wide = interval(5.0, 4.0, 6.0, population=(3.0, 7.0))
    assert KeyNumber("n", "", wide).texts == ("5.0", "[3.0, 7.0]", "")
    assert KeyNumber("n", "", wide).kind == "95 %, noise and sampling"
    noisy = around(5.0, 1.0, unit="records")
    assert KeyNumber("n", "", noisy).texts == ("5.0", "± 1.0", "records")
    assert KeyNumber("n", "", noisy).kind == "95 %, privacy noise"
    # The note of a picture tells whether its intervals include sampling.
    assert KeyNumber("n", "", noisy, drawn=True).kind == "95 %"
    year = replace(interval(2020.0, 2019.0, 2021.0), unit=DATE)
    assert KeyNumber("n", "", year).texts == ("2020-01-01", "[2019-01-01, 2021-01-01]", "")
    assert KeyNumber("n", "", around(5.0, 0.0)).kind == ""
    unclear = interval(5.0, 4.0, 6.0, distinct=False)
    assert [KeyNumber("n", "", x).unclear for x in (wide, unclear)] == [False, True]
    assert not KeyNumber("n", "", unclear, drawn=True).unclear
