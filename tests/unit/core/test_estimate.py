"""An estimate: its parts, its text and its arrays in results belong together."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.display import Estimate, around, bare, between

FINITE = st.floats(-1e6, 1e6)


def grid(**more: object) -> Estimate:
    values = np.arange(6.0).reshape(2, 3)
    ends = (values - 2.0, values + 2.0)
    return Estimate(values, values - 1.0, values + 1.0, population=ends, unit="days", **more)


def test_results_hold_an_estimate_under_a_name_and_give_it_back() -> None:
    named = grid().named("rate")
    names = ["rate", "rate_low", "rate_high", "rate_population_low", "rate_population_high"]
    assert list(named) == names
    again = Estimate.of(named, "rate", unit="days")
    assert all(np.array_equal(again.named("rate")[name], named[name]) for name in names)
    assert Estimate.of({"a": np.ones(2)}, "a").population is None
    assert np.isnan(Estimate.of({"a": np.ones(2)}, "a").low).all()


def test_cells_are_the_numbers_in_order_with_all_that_is_known_of_them() -> None:
    cells = list(grid(distinct=np.arange(6).reshape(2, 3) > 2).cells())
    assert [cell.value for cell in cells] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert cells[4].numbers == (4.0, 3.0, 5.0, 2.0, 6.0)
    assert [bool(cell.is_distinct) for cell in cells] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert {cell.unit for cell in cells} == {"days"}
    assert grid()[1].values.tolist() == [3.0, 4.0, 5.0]


@given(value=FINITE, margin=st.floats(0, 1e6))
def test_a_margin_and_its_two_ends_say_the_same_of_0(value: float, margin: float) -> None:
    found = around(value, margin)
    assert found.numbers == (value, value - margin, value + margin)
    if margin and value - margin < value + margin:
        assert bool(found.is_distinct) == bool(between(*found.numbers).is_distinct)


@pytest.mark.parametrize(
    ("cell", "clear"),
    [
        (between(1.0, 0.5, 1.5), True),
        (between(1.0, -0.5, 1.5), False),
        (between(0.0, 0.0, 0.0), True),
        (between(1.0, -0.5, 1.5, distinct=True), True),
        (between(1.0, 0.5, 1.5, distinct=False), False),
        (around(0.0, 0.0), True),
        (around(1.0, math.inf), False),
    ],
)
def test_a_number_is_clear_if_0_is_outside_or_its_task_says_so(cell: Estimate, clear: bool) -> None:
    assert bool(cell.is_distinct) is clear


def test_one_margin_is_that_of_all_values() -> None:
    found = around(np.zeros((2, 2)), 3.0, labels=(("a", "b"), ("c", "d")))
    assert found.margin is not None
    assert found.margin.shape == (2, 2)
    assert (found.high == 3.0).all()


def test_values_alone_have_no_ends() -> None:
    (cell,) = bare(np.ones(1)).cells()
    assert cell.value == 1.0
    assert np.isnan(cell.numbers[1:]).all()


def test_a_function_is_applied_to_values_and_all_ends() -> None:
    turned = grid().mapped(np.transpose)
    assert turned.values.shape == turned.low.shape == (3, 2)
    assert turned.population is not None
    assert turned.population[1].shape == (3, 2)


def test_joined_intervals_hold_both() -> None:
    wide = Estimate(np.zeros(1), np.array([-5.0]), np.array([0.5]))
    found = between(0.0, -1.0, 1.0, population=(-2.0, 2.0)).joined(wide)
    assert found.low.tolist() == [-5.0]
    assert found.high.tolist() == [1.0]
    assert found.population is not None
    assert [float(end[0]) for end in found.population] == [-5.0, 2.0]


def test_a_single_number_is_a_plain_one_for_json_and_formats() -> None:
    cell = between(1.5, 1.0, 2.0, population=(0.0, 3.0))
    assert json.loads(json.dumps(asdict(cell)))["low"] == 1.0
    assert cell == between(1.5, 1.0, 2.0, population=(0.0, 3.0))
    assert f"{cell.value:.2f} {cell.low:.2f}" == "1.50 1.00"
    with pytest.raises(ValueError, match="size 1"):
        _ = bare(np.ones(2)).value
