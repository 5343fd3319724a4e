"""Survival statistics without noise are those of textbooks, and with any noise they stay numbers.

Numbers of lifelines are those of its version 0.30.3, of its data set of 432 men who left prison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.tasks.survival import curves

WEEKS = 52
# arrests in each week, of those without and with financial aid; all others were followed to the end
ARRESTS = (
    "1 1 1 1 1 1 0 2 0 1 1 0 1 2 0 1 3 2 1 1 2 0 1 2 3 3 2 2 0 1 1 1 2 0 1 0 2 1 1 3 0 0 4 2 1 1 "
    "1 1 2 1 0 4",
    "0 0 0 0 0 0 1 3 2 0 1 2 0 1 2 1 0 1 1 4 0 1 0 2 0 0 0 0 0 1 0 1 0 2 3 3 2 0 1 1 0 2 0 0 1 3 "
    "0 1 3 2 0 0",
)
FREE = (150, 168)


def rossi() -> Floats:
    """Return the exits of both groups by week."""
    exits = np.zeros((2, WEEKS + 1, 2))
    for group, (weeks, free) in enumerate(zip(ARRESTS, FREE, strict=True)):
        exits[group, :-1, 0] = [int(week) for week in weeks.split()]
        exits[group, -1, 0] = free
    return exits


def coarse(exits: Floats, weeks: int) -> Floats:
    """Return the exits of intervals of some weeks."""
    parts = exits[..., :-1, :].reshape(*exits.shape[:-2], -1, weeks, 2).sum(axis=-2)
    return np.concatenate([parts, exits[..., -1:, :]], axis=-2)


def test_the_curve_is_that_of_kaplan_and_meier_where_times_are_edges() -> None:
    whole = rossi().sum(axis=0)
    curve = curves.kaplan_meier(whole, 0.0).values
    told = [1.0, 0.99074, 0.97222, 0.95602, 0.9375, 0.90741, 0.88889, 0.86574, 0.85417]
    told += [0.8287, 0.80324, 0.78472, 0.76389, 0.73611]
    np.testing.assert_allclose(curve[::4], told, atol=6e-6)
    hazard = curves.cumulative_hazard(whole, 0.0).values
    told = [0.0, 0.00929, 0.02808, 0.04485, 0.06436, 0.09684, 0.11738, 0.14368, 0.15711]
    told += [0.18724, 0.2183, 0.24153, 0.26832, 0.30513]
    np.testing.assert_allclose(hazard[::4], told, atol=2e-3)  # Nelson and Aalen's sum


def test_wider_intervals_leave_the_curve_where_it_is_without_censoring() -> None:
    whole = rossi().sum(axis=0)
    fine, wide = (curves.kaplan_meier(part, 0.0).values for part in (whole, coarse(whole, 13)))
    np.testing.assert_allclose(wide, fine[::13], atol=1e-12)


def test_the_log_rank_test_is_that_of_lifelines_where_times_are_edges() -> None:
    test = curves.log_rank(rossi(), 0.0)
    assert test.testable
    assert test.intervals == WEEKS
    assert test.statistic == pytest.approx(3.837569576549052, abs=1e-9)
    assert test.p == pytest.approx(0.050116117409005845, abs=1e-9)


@pytest.mark.parametrize("weeks", [1, 4, 13])
def test_a_test_of_groups_is_the_same_whatever_their_order(weeks: int) -> None:
    both = coarse(rossi(), weeks)
    three = np.concatenate([both, both[:1] / 2])
    for noise in (0.0, 2.0):
        told = curves.log_rank(three, noise)
        for order in ([2, 0, 1], [1, 2, 0], [0, 2, 1]):
            again = curves.log_rank(three[order], noise)
            assert again.statistic == pytest.approx(told.statistic, rel=1e-9)


def test_lifelines_agrees_on_data_with_ties_and_censoring(oracle: Callable[[str], Any]) -> None:
    lifelines = oracle("lifelines")
    rng = np.random.default_rng(0)
    time, followed = rng.exponential(20, 3000), rng.uniform(5, 40, 3000)
    edges = np.linspace(0, 30, 121)
    seen, event = np.minimum(time, followed), time < followed
    place = np.minimum(np.searchsorted(edges, seen) - 1, 120)
    words = np.bincount(curves.word_of(place, event.astype(int), 120), minlength=241)
    exits = curves.table_of(words.astype(float))
    fitted = lifelines.KaplanMeierFitter().fit(seen, event)
    truth = fitted.survival_function_at_times(edges).to_numpy()
    np.testing.assert_allclose(curves.kaplan_meier(exits, 0.0).values, truth, atol=5e-4)


# Intervals ----------------------------------------------------------------------------------------


def numeric_spread(exits: Floats, noise: float, of: Callable[[Floats], float]) -> float:
    """Return the deviation of a smooth number of independent noisy ones, by its derivatives."""
    found = 0.0
    for at in np.ndindex(exits.shape):
        if at[-2:] != (exits.shape[-2] - 1, 1):  # beyond the horizon there is one number
            step = np.zeros_like(exits)
            step[at] = 1e-3
            found += ((of(exits + step) - of(exits - step)) / 2e-3) ** 2
    return float(noise * np.sqrt(found))


def test_the_noise_band_is_that_of_the_derivatives() -> None:
    exits = coarse(rossi().sum(axis=0), 13)
    exits[:-1, 1] = [8, 11, 7, 9]
    found = curves.kaplan_meier(exits, 3.0)
    for place in (1, 2, 3, 4):
        std = np.log(found.high[place] / found.low[place]) / (2 * 1.96)

        def total(moved: Floats, last: int = place) -> float:
            return float(-np.log1p(-curves.hazards(moved, 3.0)[0])[:last].sum())

        assert std == pytest.approx(numeric_spread(exits, 3.0, total), rel=1e-3)


def test_the_test_of_groups_has_the_variance_of_its_derivatives() -> None:
    exits = coarse(rossi(), 13)
    exits[:, :-1, 1] = [[8, 11, 7, 9], [5, 9, 11, 3]]
    told, noise = curves.log_rank(exits, 3.0), 3.0
    bare = curves.log_rank(exits, 1e-9)
    of = numeric_spread(exits, noise, lambda y: float(curves.log_rank(y, noise).excess[0]))
    more = float(told.covariance[0, 0] - bare.covariance[0, 0])
    assert more == pytest.approx(of**2, rel=1e-3)


def test_without_noise_the_population_band_is_that_of_greenwood() -> None:
    whole = rossi().sum(axis=0)
    found = curves.kaplan_meier(whole, 0.0)
    events, risk = whole[:-1, 0], curves.at_risk(whole, 0.0)[0]
    variance = np.cumsum(events / (risk * (risk - events)))
    low, high = found.population
    spread = np.exp(1.96 * np.sqrt(variance))
    np.testing.assert_allclose(high[1:], np.minimum(1, found.values[1:] * spread), rtol=1e-4)
    np.testing.assert_allclose(found.values[1:] / low[1:], spread, rtol=1e-4)
    np.testing.assert_allclose(found.low, found.high, atol=1e-9)


def test_where_too_few_are_at_risk_the_curve_is_held_and_its_lower_end_falls() -> None:
    exits = np.array([[30.0, 5], [30, 5], [5, 2], [4, 1], [0, 3]])
    known = curves.usable(*curves.at_risk(exits, 4.0))
    assert known.tolist() == [True, True, False, False]
    found = curves.kaplan_meier(exits, 4.0)
    assert found.values[2] == found.values[3] == found.values[4]
    assert (found.low[3:] == 0).all()
    assert (found.population[0][3:] == 0).all()
    assert (found.high[2:] == found.high[2]).all()


def test_a_median_is_where_the_curve_and_its_ends_cross_or_is_unknown() -> None:
    edges = np.arange(5.0)
    table = np.stack([np.diff([0, 10, 30, 60, 80, 100]), np.zeros(5)], axis=1)
    curve = curves.kaplan_meier(table[None], 0.0)
    assert curves.quantile(edges, curve, np.array([4])).values[0] == pytest.approx(2 + 20 / 30)
    assert curves.quantile(edges, curve, np.array([4]), 0.1).values[0] == pytest.approx(1.0)
    unknown = curves.quantile(edges, curve, np.array([2]))
    assert unknown.values[0] == unknown.high[0] == np.inf
    assert unknown.low[0] == 2.0
    nothing = curves.quantile(edges, curve, np.array([0]))
    assert (nothing.values[0], nothing.low[0], nothing.high[0]) == (np.inf, 0.0, np.inf)


def test_noisy_ends_of_a_median_hold_it() -> None:
    table = np.array([[[40.0, 10]] * 9 + [[60, 10]]])
    edges = np.arange(10.0)
    found = curves.quantile(edges, curves.kaplan_meier(table, 5.0), np.array([9]))
    assert found.population[0][0] < found.low[0] < found.values[0]
    assert found.values[0] < found.high[0] < found.population[1][0]


# Tables that no records have ----------------------------------------------------------------------

ODD = {
    "nothing": np.zeros((2, 5, 2)),
    "negative": np.full((2, 5, 2), -20.0),
    "one group empty": np.stack([np.full((5, 2), 30.0), np.zeros((5, 2))]),
    "all censored": np.stack([np.tile([0.0, 50.0], (5, 1))] * 2),
    "all at once": np.stack([np.array([[900.0, 0]] + [[0, 0]] * 4)] * 2),
    "negative events": np.stack([np.array([[-9.0, 0]] * 4 + [[300, 0]])] * 2),
    "one interval": np.full((2, 2, 2), 40.0),
}


@pytest.mark.parametrize("noise", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("name", ODD)
def test_odd_tables_give_numbers_or_say_that_nothing_can_be_tested(name: str, noise: float) -> None:
    exits = ODD[name]
    edges = np.arange(float(exits.shape[1]))
    last = curves.usable(*curves.at_risk(exits, noise)).sum(axis=-1)
    survival = curves.kaplan_meier(exits, noise)
    hazard = curves.cumulative_hazard(exits, noise)
    median = curves.quantile(edges, survival, last)
    for found in (survival, hazard, median):
        ends = (found.values, found.low, found.high, *found.population)
        assert not any(np.isnan(end).any() for end in ends)
        assert (found.low <= found.high).all()
    test = curves.log_rank(exits, noise)
    assert np.isfinite(test.covariance).all()
    if test.testable:
        assert 0 <= test.p <= 1
    else:
        assert name != "one interval"
    if name in ("nothing", "negative", "one group empty"):
        assert not test.testable


# Rates --------------------------------------------------------------------------------------------


EDGES = np.linspace(0, 8, 5)
RISKS = np.array(
    [
        [[150.0, 10], [90, 10], [60, 10], [40, 10], [200, 0]],
        [[90, 20], [60, 20], [50, 20], [40, 20], [300, 0]],
    ]
)


def test_a_rate_is_events_over_the_time_that_all_were_followed() -> None:
    rng = np.random.default_rng(0)
    time, followed = rng.exponential(5, 200_000), rng.uniform(0, 16, 200_000)
    seen, event = np.minimum(time, followed), time < followed
    row = np.minimum(np.searchsorted(EDGES, seen) - 1, 4)
    words = curves.word_of(row, event.astype(int), 4)
    exits = curves.table_of(np.bincount(words, minlength=9).astype(float))
    exact = (event & (seen <= 8)).sum() / np.minimum(seen, 8).sum()
    found, _ = curves.rates(exits[None], EDGES, 0.0)
    assert found.values[0] == pytest.approx(exact, rel=2e-3)
    assert found.low[0] < exact < found.high[0]  # rows are long: their middles are not certain
    fine = np.linspace(0, 8, 401)
    row = np.minimum(np.searchsorted(fine, seen) - 1, 400)
    words = np.bincount(curves.word_of(row, event.astype(int), 400), minlength=801)
    found, _ = curves.rates(curves.table_of(words.astype(float))[None], fine, 0.0)
    np.testing.assert_allclose(found.low, found.high, rtol=1e-4)
    spread = 1.96 * np.sqrt((event & (seen <= 8)).sum()) / np.minimum(seen, 8).sum()
    low, high = found.population
    assert (high[0] - low[0]) / 2 == pytest.approx(spread, rel=1e-2)
    one, _ = curves.rates(np.array([[[300.0, 100], [100, 0]]]), np.array([0.0, 4.0]), 0.0)
    assert one.values[0] == pytest.approx(300 / (400 * 2 + 100 * 4))


def test_intervals_of_rates_know_that_events_and_times_have_noise_in_common() -> None:
    whole, ratios = curves.rates(RISKS, EDGES, 2.0)
    bare = curves.rates(RISKS, EDGES, 0.0)  # the middles of rows are not certain

    def rate(exits: Floats) -> float:
        return float(curves.rates(exits, EDGES, 0.0)[0].values[0])

    def ratio(exits: Floats) -> float:
        return float(curves.rates(exits, EDGES, 0.0)[1].values[0])

    for found, exact, of in zip((whole, ratios), bare, (rate, ratio), strict=True):
        of_noise = 1.96 * numeric_spread(RISKS, 2.0, of)
        spread = np.hypot(of_noise, (exact.high[0] - exact.low[0]) / 2)
        assert found.high[0] - found.low[0] == pytest.approx(2 * spread, rel=2e-2)
        assert found.low[0] < of(RISKS) < found.high[0]
        assert found.population[0][0] < found.low[0]
        assert found.high[0] < found.population[1][0]


def test_a_ratio_of_rates_turns_over_with_its_groups() -> None:
    one, other = (curves.rates(table, EDGES, 3.0)[1] for table in (RISKS, RISKS[::-1]))
    rates = curves.rates(RISKS, EDGES, 3.0)[0].values
    assert one.values[0] == pytest.approx(rates[1] / rates[0])
    assert one.values[0] == pytest.approx(1 / other.values[0])
    assert one.low[0] == pytest.approx(1 / other.high[0])
    assert one.population[1][0] == pytest.approx(1 / other.population[0][0])


def test_a_group_without_time_has_no_upper_bound() -> None:
    exits = np.zeros((2, 5, 2))
    exits[0, 0] = 3.0
    rates, ratios = curves.rates(exits, EDGES, 5.0)
    assert (rates.high == np.inf).all()
    assert (ratios.high == np.inf).all()


@pytest.mark.parametrize(
    ("n", "groups", "noise", "intervals"),
    [(300, 1, 36.0, 4), (1000, 1, 4.2, 9), (10_000, 1, 4.2, 22), (10_000, 2, 4.2, 17)],
)
def test_fewer_intervals_suit_more_noise(n: int, groups: int, noise: float, intervals: int) -> None:
    assert curves.usual_intervals(n, groups, noise) == intervals
    assert curves.usual_intervals(10**9, 1, 0.0) == 60
