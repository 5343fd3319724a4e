"""Population intervals: what they add to noise intervals, and the column a report gives them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.text import as_table
from cloister.core.display import Table, between
from cloister.tasks.population import population_interval

NUMBERS = st.floats(-1e3, 1e3)


@given(NUMBERS, NUMBERS, NUMBERS, st.floats(0, 1e6))
def test_a_population_interval_holds_the_noise_interval(
    value: float, low: float, high: float, variance: float
) -> None:
    low, high = sorted((low, high))
    found = population_interval(*map(np.array, (value, low, high)), variance)
    assert found[0] <= low + 1e-9
    assert found[1] >= high - 1e-9


def test_variances_of_noise_and_sampling_add_up() -> None:
    noise, sampling = 3.0, 4.0
    low, high = population_interval(
        np.array([10.0]), np.array([10 - 1.96 * noise]), np.array([10 + 1.96 * noise]), sampling**2
    )
    assert (high - low) / 2 == pytest.approx(1.96 * 5.0)
    low, high = population_interval(
        np.array([0.5]), np.array([0.4]), np.array([0.6]), 1.0, box=(0.0, 1.0)
    )
    assert (low, high) == (0.0, 1.0)


def test_a_table_shows_population_intervals_in_a_column_of_their_own() -> None:
    table = Table(
        "measures",
        ("", "value", "other"),
        (
            ("auc", between(0.8, 0.79, 0.81, population=(0.75, 0.85)), between(1.0, 0.0, 2.0)),
            ("kappa", between(0.5, 0.4, 0.6), "no"),
        ),
    )
    shown = as_table(table)
    assert shown.headings == ("", "value", "population 95 %", "other")
    assert [row[2] for row in shown.rows] == ["[0.750, 0.850]", ""]
    assert [len(row) for row in shown.rows] == [4, 4]
    plain = Table("measures", ("", "value"), (("kappa", between(0.5, 0.4, 0.6)),))
    assert as_table(plain) == plain


def test_what_is_not_known_at_all_has_no_bound_and_no_warning() -> None:
    value = np.full(3, np.nan)
    low, high = np.array([-np.inf, 0.0, -np.inf]), np.array([np.inf, np.inf, 0.0])
    with np.errstate(all="raise"):
        left, right = population_interval(value, low, high, np.full(3, 0.1))
    assert np.isinf(left).tolist() == [True, False, True]
    assert np.isinf(right).tolist() == [True, True, False]
