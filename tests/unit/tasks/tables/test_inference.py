"""What noisy tables say, where noise is nothing: what the textbook says of the same table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cloister.core.arrays import Floats
from cloister.tasks.scores import mean_interval
from cloister.tasks.tables.inference import (
    count_interval,
    fits,
    independence,
    least_shown,
    odds_ratio,
    outcome,
    relative_risk,
    share_interval,
    shown,
    trend,
)

TINY = 1e-9
TABLE = np.array([[2600.0, 1500.0, 900.0], [2400.0, 1600.0, 1000.0]])
WORK = np.array([[1.0, 2, 1, 0], [3, 3, 6, 1], [10, 10, 14, 9], [6, 7, 12, 11]])
EMPTY = np.array([[12.0, 0.0], [20.0, 18.0], [15.0, 11.0]])  # a cell without records
TWO = np.array([[520.0, 4480.0], [380.0, 4620.0]])


def test_a_count_has_wilsons_interval_times_all_records_and_none_of_noise() -> None:
    counts = np.array([0.0, 40.0, 900.0])
    found = count_interval(counts, TINY)
    np.testing.assert_allclose(found.low, counts, atol=1e-6)
    assert found.population is not None
    for i, count in enumerate(counts):
        wilson = stats.binomtest(int(count), 940).proportion_ci(method="wilson")
        assert found.population[0][i] == pytest.approx(940 * wilson.low, abs=1e-3)
        assert found.population[1][i] == pytest.approx(940 * wilson.high, abs=1e-3)


def test_all_records_have_no_sampling_error_and_counts_of_noise_some_interval() -> None:
    found = count_interval(np.array([2000.0]), 10.0)
    assert found.population is not None
    np.testing.assert_allclose(np.ravel(found.population), [1980, 2020], atol=2.5)
    odd = count_interval(np.array([-30.0, 1020.0]), 10.0)  # one count above the sum of all
    assert odd.population is not None
    assert (odd.population[0] <= odd.population[1]).all()


def test_a_share_has_wilsons_interval() -> None:
    counts = np.array([[30.0, 70.0], [0.0, 50.0]])
    found = share_interval(counts, TINY)
    assert found.population is not None
    for (i, j), count in np.ndenumerate(counts):
        result = stats.binomtest(int(count), int(counts[i].sum()))
        wilson = result.proportion_ci(method="wilson")
        assert found.population[0][i, j] == pytest.approx(wilson.low, abs=1e-4)
        assert found.population[1][i, j] == pytest.approx(wilson.high, abs=1e-4)
    np.testing.assert_allclose(found.values.sum(axis=1), 1)


def test_a_share_of_several_axes_is_of_the_whole_table() -> None:
    counts = np.random.default_rng(0).poisson(40, (3, 4, 2)).astype(float)
    found = share_interval(counts, 2.0, (0, 1, 2))
    flat = share_interval(counts.ravel(), 2.0)
    assert found.values.sum() == pytest.approx(1)
    np.testing.assert_allclose(found.values.ravel(), flat.values)
    np.testing.assert_allclose(found.low.ravel(), flat.low)


def test_a_mean_has_nearly_students_interval() -> None:
    x = np.random.default_rng(1).beta(2, 5, 500) * 2 - 1
    sums = [np.array([part.sum()]) for part in (x, np.ones_like(x), x**2)]
    found = mean_interval(*sums, TINY**2, TINY**2)
    assert found.population is not None
    student = stats.ttest_1samp(x, 0).confidence_interval()
    assert found.values[0] == pytest.approx(x.mean())
    assert found.population[0][0] == pytest.approx(student.low, abs=0.003)
    assert found.population[1][0] == pytest.approx(student.high, abs=0.003)
    assert found.high[0] - found.low[0] < 1e-6


def test_what_is_shown_is_the_nearest_possible_table() -> None:
    noisy = np.array([12.0, -3.0, 0.5, 30.0])
    found = shown(noisy)
    assert found.sum() == pytest.approx(39.5)
    assert found.min() == 0
    rng = np.random.default_rng(0)
    others = rng.dirichlet(np.ones(4), 2000) * 39.5
    assert ((found - noisy) ** 2).sum() <= ((others - noisy) ** 2).sum(axis=1).min()
    assert shown(np.array([-5.0, -7.0])).sum() == pytest.approx(1)


def test_a_small_count_is_below_the_minimum_or_twice_its_noise() -> None:
    assert least_shown(1.0, 5.0) == 5
    assert least_shown(4.0, 5.0) == 8


@pytest.mark.parametrize("table", [TABLE, WORK, EMPTY])
def test_independence_is_pearsons_test(table: Floats) -> None:
    found = independence(table, TINY)
    pearson = stats.chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(pearson.statistic, rel=1e-6)
    assert found.df == pearson.dof
    assert found.p == pytest.approx(pearson.pvalue, rel=1e-5)


def test_independence_is_the_quadratic_form_of_its_covariance() -> None:
    """Of noisy cells, by the Kronecker product of both sides, whichever entries are kept."""
    rng, s = np.random.default_rng(2), 9.0
    y = rng.multinomial(900, np.outer([0.5, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]).ravel())
    table = y.reshape(3, 4) + rng.normal(0, s, (3, 4))
    size = table.sum()
    p, q = (shown(table.sum(axis=axis)) for axis in (1, 0))
    p, q = p / p.sum(), q / q.sum()
    a, b = np.eye(3) - p[:, None], np.eye(4) - q[:, None]
    gaps = (a @ table @ b.T)[:2, :3].ravel()
    kept = [4 * i + j for i in range(2) for j in range(3)]
    full = size * np.kron(np.diag(p) - np.outer(p, p), np.diag(q) - np.outer(q, q))
    full += s**2 * np.kron(a @ a.T, b @ b.T)
    expected = gaps @ np.linalg.solve(full[np.ix_(kept, kept)], gaps)
    assert independence(table, s).statistic == pytest.approx(expected, rel=1e-8)
    stacked = independence(np.stack([table, table]), np.array([s, 2 * s]))
    assert stacked.statistic[0] == pytest.approx(expected)
    assert stacked.statistic[1] < stacked.statistic[0]


@pytest.mark.parametrize("table", [TABLE, WORK, EMPTY])
def test_trend_is_the_linear_by_linear_test(table: Floats) -> None:
    row, column = (
        np.repeat(part.ravel(), table.ravel().astype(int)) for part in np.indices(table.shape)
    )
    exact = np.corrcoef(row, column)[0, 1] * np.sqrt(len(row) - 1)
    found = trend(table, TINY)
    assert found.statistic == pytest.approx(exact, rel=1e-6)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(exact)), rel=1e-5)
    for turned in (table[:, ::-1], table[::-1]):
        assert trend(turned, 5.0).statistic == pytest.approx(-trend(table, 5.0).statistic)


def test_an_odds_ratio_has_nearly_the_exact_interval() -> None:
    found, test = odds_ratio(TWO, TINY)
    exact = stats.contingency.odds_ratio(TWO.astype(int))
    assert found.values == pytest.approx(exact.statistic, rel=0.001)
    assert found.population is not None
    ends = exact.confidence_interval()
    assert found.population[0] == pytest.approx(ends.low, rel=0.05)
    assert found.population[1] == pytest.approx(ends.high, rel=0.05)
    assert test.p < 1e-4


def test_a_relative_risk_has_nearly_koopmans_interval() -> None:
    found, _ = relative_risk(TWO, TINY)
    koopman = stats.contingency.relative_risk(520, 5000, 380, 5000)
    assert found.values == pytest.approx(koopman.relative_risk)
    assert found.population is not None
    ends = koopman.confidence_interval()
    assert found.population[0] == pytest.approx(ends.low, rel=0.01)
    assert found.population[1] == pytest.approx(ends.high, rel=0.01)


def test_a_ratio_over_noise_has_a_lower_bound_only() -> None:
    table = np.array([[400.0, 300.0], [3.0, 500.0]])
    found, _ = odds_ratio(table, 5.0)
    assert found.population is not None
    for low, high in ((found.low, found.high), found.population):
        assert 10 < low < 1000
        assert high == np.inf
    nothing, test = odds_ratio(np.full((2, 2), -3.0), 20.0)
    assert np.isnan(nothing.values)
    assert (nothing.low, nothing.high) == (0, np.inf)
    assert test.p > 0.5


def test_a_test_fits_tables_of_two_columns_and_a_ratio_those_of_two_levels() -> None:
    assert fits("chi2", (3, 4))
    assert not fits("chi2", (3, 4, 2))
    assert not fits("odds_ratio", (2, 3))
    assert not fits("median", (2, 2))
    assert set(outcome("trend", TABLE, 2.0)) == {"trend_statistic", "trend_df", "trend_p"}
    risk = outcome("relative_risk", TWO, TINY)
    assert risk["relative_risk"][0] == pytest.approx((4620 / 5000) / (4480 / 5000))
