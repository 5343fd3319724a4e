"""The text of an estimate, which Python prints."""

from __future__ import annotations

import numpy as np

from cloister.core.display import DATE, Estimate, around, between


def test_an_estimate_prints_its_interval_and_that_of_the_population() -> None:
    assert str(between(0.613, 0.58, 0.642)) == "0.613 [0.580, 0.642]"
    assert repr(around(3.0, 0.2)) == "3.00 ± 0.20"
    wide = between(-375.8, -398.3, -353.3, population=(-410.4, -341.1))
    assert str(wide) == "-376 [-398, -353], population [-410, -341]"
    hidden = between(1.0, 0.5, 1.5, population=(np.nan, np.nan))
    assert str(hidden) == "1.00 [0.50, 1.50], population not known"
    unknown = between(np.nan, -1.0, 1.0, population=(-1.0, 1.0))
    assert str(unknown) == "not known, population not known"
    assert str(between(1.0, 1.0, 1.0, population=(1.0, 1.0))) == "1"
    empty = np.array([])
    assert str(Estimate(empty, empty, empty)) == "[]"


def test_an_estimate_of_many_numbers_prints_each() -> None:
    values = np.array([1.0, 2.0])
    many = Estimate(values, values - 0.5, values + 0.5)
    assert str(many) == "[1.00 [0.50, 1.50], 2.00 [1.50, 2.50]]"
    day = Estimate(*np.array([2020.5, 2020.0, 2021.0]), unit=DATE)
    assert str(day) == "2020-07-02 [2020-01-01, 2021-01-01]"
