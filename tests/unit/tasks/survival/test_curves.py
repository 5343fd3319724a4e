"""Survival statistics without noise are those of textbooks, and with any noise they stay numbers.

Numbers of lifelines are those of its version 0.30.3, of its data set of 432 men who left prison.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.tasks.survival import curves, running
from cloister.tasks.survival.times import Horizon

WEEKS = 52
# arrests in each week, of those without and with financial aid; all others were followed to the end
ARRESTS = (
    "1 1 1 1 1 1 0 2 0 1 1 0 1 2 0 1 3 2 1 1 2 0 1 2 3 3 2 2 0 1 1 1 2 0 1 0 2 1 1 3 0 0 4 2 1 1 "
    "1 1 2 1 0 4",
    "0 0 0 0 0 0 1 3 2 0 1 2 0 1 2 1 0 1 1 4 0 1 0 2 0 0 0 0 0 1 0 1 0 2 3 3 2 0 1 1 0 2 0 0 1 3 "
    "0 1 3 2 0 0",
)
FREE = (150, 168)
HORIZON = Horizon(low=1, high=60, tau=WEEKS, step=1)


def rossi() -> Floats:
    """Return the exits of both groups by week."""
    exits = np.zeros((2, 2, WEEKS + 1))
    for group, (weeks, free) in enumerate(zip(ARRESTS, FREE, strict=True)):
        exits[group, 0, :-1] = [int(week) for week in weeks.split()]
        exits[group, 1, -1] = free
    return exits


def censored(exits: Floats) -> Floats:
    """Return the exits with more records, some of which are censored in each cell."""
    exits = 10 * exits
    exits[:, 1, :-1] += np.arange(exits.shape[2] - 1) % 5
    return exits


# Without noise ------------------------------------------------------------------------------------


def test_the_curve_is_that_of_kaplan_and_meier() -> None:
    curve = curves.Curve(rossi().sum(axis=0), 0.0)
    told = [0.99074, 0.97222, 0.95602, 0.9375, 0.90741, 0.88889, 0.86574, 0.85417]
    told += [0.8287, 0.80324, 0.78472, 0.76389, 0.73611]
    alive = curve.survival()
    np.testing.assert_allclose(alive.values[3::4], told, atol=6e-6)
    np.testing.assert_allclose(alive.low, alive.high, atol=1e-9)
    assert curve.usable == WEEKS


def test_the_population_band_is_that_of_greenwood() -> None:
    exits = censored(rossi()).sum(axis=0)
    found = curves.Curve(exits, 0.0).survival()
    risk = exits.sum(axis=0)[::-1].cumsum()[::-1][:-1]
    events = exits[0, :-1]
    np.testing.assert_allclose(found.values, np.cumprod(1 - events / risk), rtol=1e-9)
    spread = np.exp(1.95996 * np.sqrt(np.cumsum(events / (risk * (risk - events)))))
    low, high = found.population
    np.testing.assert_allclose(found.values / low, spread, rtol=1e-4)
    np.testing.assert_allclose(high, np.minimum(1, found.values * spread), rtol=1e-4)


def test_the_log_rank_test_is_that_of_lifelines() -> None:
    test = curves.log_rank(rossi(), 0.0)
    assert test.testable
    assert test.until == WEEKS
    assert test.statistic == pytest.approx(3.837569576549052, abs=1e-9)
    assert test.p == pytest.approx(0.050116117409005845, abs=1e-9)


@pytest.mark.parametrize("step", [0.0, 1.0, 6.0])
def test_lifelines_agrees_on_data_with_ties_and_censoring(
    oracle: Callable[[str], Any], step: float
) -> None:
    """On ticks to 1e-6; without a step, where cells end."""
    lifelines, statistics = oracle("lifelines"), oracle("lifelines.statistics")
    utils = oracle("lifelines.utils")
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 3000)
    time, followed = rng.exponential(20 + 4 * group), rng.uniform(5, 59, 3000)
    event, seen = time < followed, np.minimum(time, followed)
    horizon = Horizon(low=0, high=61, tau=36, step=step)
    if step:
        seen = np.ceil(seen / step) * step
    records = np.rint((seen / 61 * 2 - 1) * horizon.one).astype(np.int32)
    exits = horizon.exits(group, 3, records, np.where(event, 1, -1) * horizon.one)
    exits = exits.astype(float)
    close = 1e-6 if step else 4e-3
    for g in range(3):
        own, late = seen[group == g], seen[group == g] > 36
        fitted = lifelines.KaplanMeierFitter().fit(own, event[group == g] & ~late)
        curve = curves.Curve(exits[g], 0.0)
        truth = fitted.survival_function_at_times(horizon.ends).to_numpy()
        np.testing.assert_allclose(curve.survival().values, truth[: len(horizon.ends)], atol=close)
        median = fitted.median_survival_time_
        assert curve.quantile(horizon).value == pytest.approx(median, rel=close * 4)
        told = utils.restricted_mean_survival_time(fitted, t=24.0)
        assert curve.restricted_mean(horizon, 24.0).value == pytest.approx(told, rel=close)
    stopped = event & (seen <= 36)
    told = statistics.multivariate_logrank_test(np.minimum(seen, 36.001), group, stopped)
    found = curves.log_rank(exits, 0.0)
    assert found.statistic == pytest.approx(told.test_statistic, rel=1e-6 if step else 0.02)


def test_a_test_of_groups_is_the_same_whatever_their_order() -> None:
    both = rossi()
    three = np.concatenate([both, both[:1] / 2])
    for noise in (0.0, 2.0):
        told = curves.log_rank(three, noise)
        for order in ([2, 0, 1], [1, 2, 0], [0, 2, 1]):
            again = curves.log_rank(three[order], noise)
            assert again.statistic == pytest.approx(told.statistic, rel=1e-9)


# The variance of noise is that of derivatives -----------------------------------------------------


def numeric_variance(exits: Floats, noise: float, of: Callable[[Floats], float]) -> float:
    """Return the variance of a smooth number by the noise of the released sums."""
    slopes = np.zeros_like(exits)
    for at in np.ndindex(exits.shape):
        step = np.zeros_like(exits)
        step[at] = 1e-3
        slopes[at] = (of(exits + step) - of(exits - step)) / 2e-3
    return float(noise**2 * (running.weights_of(slopes) ** 2).sum())


NOISE = 1e-3  # so that each week is a block, whose mean error is far below the rest


@pytest.mark.parametrize("place", [0, 20, 51])
def test_the_noise_of_a_curve(place: int) -> None:
    exits = censored(rossi()).sum(axis=0)
    found = curves.Curve(exits, NOISE).deviations[0][place]
    numeric = numeric_variance(
        exits, NOISE, lambda moved: float(curves.Curve(moved, NOISE)._summed_hazard[place])
    )
    assert found**2 == pytest.approx(numeric, rel=1e-3)


@pytest.mark.parametrize("upto", [10.0, 51.5])
def test_the_noise_of_a_restricted_mean(upto: float) -> None:
    exits = censored(rossi()).sum(axis=0)
    found = curves.Curve(exits, NOISE).restricted_mean(HORIZON, upto)
    numeric = numeric_variance(
        exits, NOISE, lambda moved: curves.Curve(moved, NOISE).restricted_mean(HORIZON, upto).value
    )
    assert ((found.high - found.low) / 2 / 1.95996) ** 2 == pytest.approx(numeric, rel=1e-3)


def test_the_noise_of_the_test_of_groups() -> None:
    exits = censored(rossi())
    told, bare = (curves.log_rank(exits, noise) for noise in (NOISE, 0.0))
    numeric = numeric_variance(
        exits, NOISE, lambda moved: float(curves.log_rank(moved, NOISE).excess[0])
    )
    more = float(told.covariance[0, 0] - bare.covariance[0, 0])
    assert more == pytest.approx(numeric, rel=1e-2)


def test_the_noise_of_rates_and_their_ratio_knows_what_events_and_times_have_in_common() -> None:
    exits, times = censored(rossi()), HORIZON.middles
    rates = curves.rates(exits, 0.5, times)
    for i, found in enumerate(rates):

        def value(moved: Floats, i: int = i) -> float:
            return float(curves.rates(moved, 0.5, times)[i].values[0])

        spread = 2 * 1.95996 * np.sqrt(numeric_variance(exits, 0.5, value))
        assert found.high[0] - found.low[0] == pytest.approx(spread, rel=2e-2)
        assert found.population[0][0] < found.low[0] < value(exits) < found.high[0]
        assert found.high[0] < found.population[1][0]
    turned = curves.rates(exits[::-1], 0.5, times)[1]
    assert turned.values[0] == pytest.approx(1 / rates[1].values[0])
    assert turned.low[0] == pytest.approx(1 / rates[1].high[0])


def test_a_rate_is_events_over_the_time_that_all_were_followed() -> None:
    exits = censored(rossi())
    found, _ = curves.rates(exits, 0.0, HORIZON.middles)
    weeks = np.append(np.arange(1, WEEKS + 1), WEEKS)
    told = exits[:, 0, :-1].sum(axis=1) / (exits.sum(axis=1) @ weeks)
    np.testing.assert_allclose(found.values, told, rtol=1e-12)


# Where little is known ----------------------------------------------------------------------------


def test_a_curve_ends_before_few_are_at_risk_and_nothing_is_known_beyond() -> None:
    exits = np.array([[30.0, 30, 5, 4, 0], [5, 5, 2, 1, 3]])
    curve = curves.Curve(exits, 4.0)
    assert curve.usable == 1
    found = curve.survival()
    assert np.isnan(found.values).tolist() == [False, True, True, True]
    assert np.isnan(found.population[1]).tolist() == [False, True, True, True]
    horizon = Horizon(low=1, high=9, tau=4, step=1)
    assert curve.restricted_mean(horizon, 1.5).value > 1
    assert np.isnan(curve.restricted_mean(horizon, 2.0).value)
    median = curve.quantile(horizon)
    assert (median.value, median.high) == (np.inf, np.inf)
    assert median.low == 1.0


def test_a_median_is_the_tick_after_which_half_had_the_event_and_its_ends_hold_it() -> None:
    horizon = Horizon(low=1, high=9, tau=6, step=1)
    exits = np.array([[10.0, 20, 30, 20, 10, 0, 0], [0, 0, 0, 0, 0, 0, 10]])
    assert curves.Curve(exits, 0.0).quantile(horizon).value == 3
    assert curves.Curve(exits, 0.0).quantile(horizon, 0.1).value == 1
    found = curves.Curve(100 * exits, 20.0).quantile(horizon)
    assert found.population[0] <= found.low <= 3 <= found.high <= found.population[1]


def test_a_rate_over_a_time_within_its_noise_is_not_known() -> None:
    exits = np.zeros((2, 2, 6))
    exits[0, 0, 0] = 3.0
    rates, ratios = curves.rates(exits, 5.0, np.arange(1.0, 7.0))
    for found in (rates, ratios):
        assert np.isnan(found.values).all()
        assert (found.low == 0).all()
        assert (found.high == np.inf).all()
        assert (found.population[1] == np.inf).all()


ODD = {
    "nothing": np.zeros((2, 2, 5)),
    "negative": np.full((2, 2, 5), -20.0),
    "one group empty": np.stack([np.full((2, 5), 30.0), np.zeros((2, 5))]),
    "all censored": np.stack([np.array([[0.0] * 5, [50.0] * 5])] * 2),
    "all at once": np.stack([np.array([[900.0, 0, 0, 0, 0], [0.0] * 5])] * 2),
    "negative events": np.stack([np.array([[-9.0, -9, -9, -9, 300], [0.0] * 5])] * 2),
    "one cell": np.full((2, 2, 2), 40.0),
    "many cells": np.random.default_rng(0).normal(0, 1e12, (2, 2, 900)),
    "so large that one is their rounding": np.full((2, 2, 900), 1e13),
}


@pytest.mark.parametrize("noise", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("name", ODD)
def test_odd_tables_give_numbers_or_say_that_nothing_is_known(name: str, noise: float) -> None:
    exits = ODD[name]
    cells = exits.shape[2] - 1
    horizon = Horizon(low=0.5, high=cells + 2, tau=cells + 0.5, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for own in exits:
            curve = curves.Curve(own, noise)
            found = curve.survival()
            assert (np.isnan(found.values) == (np.arange(cells) >= curve.usable)).all()
            median = curve.quantile(horizon)
            for estimate in (found, median, curve.restricted_mean(horizon, 1.0)):
                assert not (estimate.low > estimate.high).any()
                assert not (estimate.population[0] > estimate.population[1]).any()
            assert not np.isnan(median.numbers).any()
        curves.rates(exits, noise, horizon.middles)
        test = curves.log_rank(exits, noise)
        assert np.isfinite(test.covariance).all()
        if test.testable:
            assert 0 <= test.p <= 1
    if name in ("nothing", "negative", "all at once"):
        assert not test.testable
