"""Intervals of correlations where the noise is as strong as the spread of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.tasks.correlations import (
    correlation_interval,
    correlations_of,
    matrix_of,
    with_sampling,
)

RUNS = 4000
Floats = NDArray[np.float64]


def noisy(rho: float, noise_of_square: float, mean: float = 0.0) -> tuple[Floats, Floats]:
    """Return sums of runs and their covariances, for a first column of little spread.

    The means of both columns are apart by twice the given one, so errors of the sums go together.
    """
    n, s = 3000.0, 20.0
    a, b = np.sqrt(s / noise_of_square / n), 0.5
    moments = [a**2 + mean**2, rho * a * b - mean**2, mean, b**2 + mean**2, -mean, 1.0]
    drawn = n * np.array(moments)[:, np.newaxis]
    drawn = drawn + s * np.random.default_rng(1).normal(size=(6, RUNS))
    xx, xy, x, yy, y, count = drawn
    mx, my, one, none = x / count, y / count, np.ones(RUNS), np.zeros(RUNS)
    slopes = np.array(
        [
            [none, one, -my, none, -mx, mx * my],
            [one, none, -2 * mx, none, none, mx**2],
            [none, none, none, one, -2 * my, my**2],
        ]
    )
    sums = np.array([xy - x * my, xx - x * mx, yy - y * my])
    return sums, s**2 * np.einsum("iak,jak->ijk", slopes, slopes)


def first_order(sums: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """Return the interval that it replaces: from the slopes at the sums, on Fisher's scale."""
    c, v1, v2 = sums
    with np.errstate(invalid="ignore"):
        norm = np.sqrt(v1 * v2)
        value = c / norm
        slopes = np.array([1 / norm, -value / 2 / v1, -value / 2 / v2])
        inside = np.clip(value, -0.999999, 0.999999)
        error = np.sqrt(np.einsum("ik,jk,ijk->k", slopes, slopes, noise)) / (1 - inside**2)
    low, high = (np.tanh(np.arctanh(inside) + sign * 1.96 * error) for sign in (-1, 1))
    known = np.isfinite(value) & (error < 1)
    return np.where(known, low, -1), np.where(known, high, 1)


def covered(ends: tuple[Any, Any], rho: float) -> float:
    return float(((ends[0] <= rho) & (rho <= ends[1])).mean())


@pytest.mark.parametrize("mean", [0.0, 0.6])
@pytest.mark.parametrize("noise_of_square", [1.0, 0.5, 0.2, 0.05])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.5, 0.99])
def test_intervals_hold_the_correlation_also_in_strong_noise(
    rho: float, noise_of_square: float, mean: float
) -> None:
    """The draws are the same in each run; the deviation of a share of 4000 is 0.0035."""
    given = noisy(rho, noise_of_square, mean)
    assert covered(correlation_interval(*given), rho) > 0.94


def test_an_interval_of_first_order_is_too_narrow() -> None:
    given = noisy(0.9, 0.5)
    assert covered(first_order(*given), 0.9) < 0.9
    assert covered(correlation_interval(*given), 0.9) > 0.94


def test_in_weak_noise_the_interval_is_that_of_first_order() -> None:
    given = noisy(0.5, 0.002, 0.3)
    for found, clear in zip(correlation_interval(*given), first_order(*given), strict=True):
        assert np.abs(found - clear).max() < 0.002


def test_a_square_within_its_noise_or_below_it_makes_nothing_known() -> None:
    sums = np.array([[1.0, 1.0], [1.0, -9.0], [100.0, 100.0]])
    noise = np.tile(np.eye(3)[:, :, np.newaxis], 2)
    low, high = correlation_interval(sums, noise)
    assert low.tolist() == [-1, -1]
    assert high.tolist() == [1, 1]


def test_sampling_widens_both_sides_in_squares() -> None:
    value, low, high = np.array([0.0, 0.5, 0.3]), np.array([0.0, 0.4, -1]), np.array([0.0, 0.7, 1])
    ends = with_sampling(value, low, high, 103.0)
    clear = np.tanh(0.196)
    assert np.allclose([ends[0][0], ends[1][0]], [-clear, clear])
    assert ends[0][1] < 0.4
    assert ends[1][1] > 0.7
    assert [ends[0][2], ends[1][2]] == [-1, 1]


def test_correlations_of_a_count_within_its_noise_are_not_known() -> None:
    moments = np.array([[5.0, 4.0, 0.0], [4.0, 5.0, 0.0], [0.0, 0.0, 20.0]])
    for count, is_known in ((20.0, True), (2.0, False), (-20.0, False)):
        moments[2, 2] = count
        found = correlations_of(moments, np.full((3, 3), 1.0 if count < 20 else 0.01))
        assert np.isfinite(found.values).item() == is_known
        assert is_known or (found.low.item(), found.high.item()) == (-1, 1)


def test_without_noise_correlations_are_those_of_the_records() -> None:
    """For more pairs than are computed at once."""
    records = np.random.default_rng(2).normal(size=(200, 100)) + 0.3
    rows = np.column_stack([records, np.ones(200)])
    found = correlations_of(rows.T @ rows, np.zeros((101, 101))).mapped(matrix_of)
    exact = np.corrcoef(records.T)
    for part in (found.values, found.low, found.high):
        np.testing.assert_allclose(part, exact, atol=1e-6)
