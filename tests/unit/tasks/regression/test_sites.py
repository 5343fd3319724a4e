"""Differences between silos: textbook results without noise, and intervals that hold with it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.tasks.moments import PRODUCT, SQUARE
from cloister.tasks.regression.sites import (
    meta_analysis,
    noise_of_equations,
    random_intercept,
    silo_estimates,
)


def rows(seed: int, silos: int, n: int, tau: float = 0.1, slope: float = 0.0) -> list[Floats]:
    """Return rows ``(1, x, x, y)`` of each silo; the effect of the first x is 0.025."""
    rng, made = np.random.default_rng(seed), []
    for i in range(silos):
        size = int(n * (0.5 + rng.random()))
        first = np.where(rng.random(size) < 0.2 + 0.6 * i / (silos - 1), 1.0, -1.0)
        second = rng.uniform(-1, 1, size)
        effect = 0.025 + slope * rng.normal()
        y = effect * first + 0.075 * second + rng.normal(0, tau) + rng.normal(0, 0.15, size)
        made.append(np.column_stack([np.ones(size), first, second, y]))
    return made


def released(
    tables: list[Floats], products_std: float, sums_std: float, seed: int
) -> tuple[Floats, Floats]:
    """Return noisy products of all records and noisy sums of each silo."""
    rng = np.random.default_rng(seed)
    exact = sum((table.T @ table for table in tables), np.zeros((4, 4)))
    sums = np.array([table.sum(axis=0) for table in tables])
    return exact + symmetric_noise(rng, products_std), sums + rng.normal(0, sums_std, sums.shape)


def symmetric_noise(rng: np.random.Generator, std: float, size: int = 4) -> Floats:
    noise = rng.normal(0, std, (size, size))
    upper = np.triu(noise, 1) * SQUARE / PRODUCT
    return np.asarray(upper + upper.T + np.diag(np.diag(noise)))


# A random intercept -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silos", "n", "tau"), [(8, 200, 0.1), (5, 50, 0.0), (12, 80, 0.015), (20, 30, 0.05), (3, 9, 1)]
)
def test_without_noise_it_is_the_mixed_model_of_statsmodels(silos: int, n: int, tau: float) -> None:
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    tables = rows(silos, silos, n, tau)
    pooled, groups = np.vstack(tables), np.repeat(np.arange(silos), [len(t) for t in tables])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a variance at its boundary
        model = mixed.MixedLM(pooled[:, 3], pooled[:, :3], groups)
        expected = model.fit(reml=True, method="powell")
    found = random_intercept(*released(tables, 0.0, 0.0, 0), 0.0, 0.0)
    np.testing.assert_allclose(found.coef, expected.fe_params, atol=2e-3 * expected.bse_fe.min())
    assert found.tau2 == pytest.approx(float(expected.cov_re[0, 0]), rel=5e-3, abs=2e-6)
    assert found.residual == pytest.approx(float(expected.scale), rel=1e-3)
    assert np.sqrt(np.diag(found.sampling)) == pytest.approx(expected.bse_fe, rel=0.05)
    assert found.tau2_low <= found.tau2 <= found.tau2_high
    assert not found.noise.any()


def test_slopes_within_silos_are_those_with_an_indicator_of_each_silo() -> None:
    tables = rows(1, 6, 100)
    pooled, groups = np.vstack(tables), np.repeat(np.arange(6), [len(t) for t in tables])
    design = np.column_stack([pooled[:, 1:3], np.eye(6)[groups]])
    expected = np.linalg.lstsq(design, pooled[:, 3], rcond=None)[0][:2]
    found = random_intercept(*released(tables, 0.0, 0.0, 0), 0.0, 0.0)
    np.testing.assert_allclose(found.within, expected, rtol=1e-9)


def test_intervals_of_noise_hold_the_model_without_noise() -> None:
    """Seeded: of 60 draws of the noise, as many as a 95 % interval should miss at most."""
    tables = rows(2, 8, 2000)
    exact = random_intercept(*released(tables, 0.0, 0.0, 0), 0.0, 0.0)
    hits, inside, errors = np.zeros(3), np.zeros(2), []
    for seed in range(60):
        found = random_intercept(*released(tables, 23.0, 13.0, seed), 23.0, 13.0)
        width = 1.96 * np.sqrt(np.diag(found.noise))
        hits += np.abs(found.coef - exact.coef) <= width
        inside += np.abs(found.within - exact.within) <= 1.96 * np.sqrt(np.diag(found.within_noise))
        errors.append(found.coef - exact.coef)
        assert found.tau2_low <= exact.tau2 <= found.tau2_high
    assert hits.min() >= 52
    assert inside.min() >= 52
    # Not too wide either.
    ratio = np.sqrt(np.diag(found.noise)) / np.std(errors, axis=0)
    assert ratio == pytest.approx(np.ones(3), abs=0.35)


def test_a_confounded_effect_is_right() -> None:
    effects = []
    for seed in range(12):
        tables = rows(seed, 8, 2000)
        for i, table in enumerate(tables):
            table[:, 3] += 0.15 * (i - 3.5) / 3.5  # sicker silos treat more
        effects.append(random_intercept(*released(tables, 23.0, 13.0, seed), 23.0, 13.0).coef[1])
    assert np.mean(effects) == pytest.approx(0.025, abs=0.002)


def test_what_the_noise_hides_is_not_known() -> None:
    tables = rows(3, 4, 20)
    found = random_intercept(*released(tables, 500.0, 500.0, 1), 500.0, 500.0)
    assert np.isnan(found.coef).all()
    assert np.isnan(found.within).all()
    assert (found.tau2_low, found.tau2_high) == (0.0, np.inf)
    with pytest.raises(PlanError, match="three or more silos"):
        random_intercept(*released(tables[:2], 0.0, 0.0, 1), 0.0, 0.0)


def test_units_of_the_target_change_units_of_the_result() -> None:
    tables = rows(4, 6, 200)
    scaled = [table * np.array([1, 1, 1, 8.0]) for table in tables]
    one, other = (random_intercept(*released(t, 0.0, 0.0, 0), 0.0, 0.0) for t in (tables, scaled))
    np.testing.assert_allclose(other.coef, 8 * one.coef, rtol=1e-5)
    assert other.tau2 == pytest.approx(64 * one.tau2, rel=1e-4)


def test_noise_of_equations_is_that_of_packed_products() -> None:
    vector, rng = np.array([-0.4, 0.2, 1.0]), np.random.default_rng(0)
    draws = np.array([symmetric_noise(rng, 2.0, 3) @ vector for _ in range(40_000)])
    np.testing.assert_allclose(noise_of_equations(vector, 2.0), np.cov(draws.T), atol=0.15)


# Estimates of each silo ---------------------------------------------------------------------------


def test_without_noise_each_silo_has_least_squares() -> None:
    tables = rows(5, 4, 150)
    found = silo_estimates(np.array([t.T @ t for t in tables]), 0.0)
    for i, table in enumerate(tables):
        coef, left, *_ = np.linalg.lstsq(table[:, :3], table[:, 3], rcond=None)
        np.testing.assert_allclose(found.coef[i], coef, rtol=1e-9)
        inverse = np.linalg.inv(table[:, :3].T @ table[:, :3])
        expected = left[0] / (len(table) - 3) * np.diag(inverse)
        np.testing.assert_allclose(found.sampling[i], expected, rtol=1e-9)
        assert found.records[i] == len(table)
    assert not found.noise.any()


def test_intervals_of_silos_hold_their_least_squares() -> None:
    tables = rows(6, 8, 2000)
    products, rng = np.array([t.T @ t for t in tables]), np.random.default_rng(7)
    exact, hits = silo_estimates(products, 0.0).coef, []
    for _ in range(40):
        noisy = products + np.array([symmetric_noise(rng, 17.0) for _ in tables])
        found = silo_estimates(noisy, 17.0)
        hits.append(np.abs(found.coef - exact) <= 1.96 * np.sqrt(found.noise))
    assert 0.92 <= np.mean(hits) <= 0.98


def test_a_small_silo_is_not_known_and_is_left_out() -> None:
    tables = rows(8, 6, 3000)
    tables[2] = tables[2][:10]
    products, rng = np.array([t.T @ t for t in tables]), np.random.default_rng(1)
    found = silo_estimates(products + np.array([symmetric_noise(rng, 17.0) for _ in tables]), 17.0)
    assert np.isnan(found.coef[2]).all()
    joined = meta_analysis(found.coef[:, 1], found.noise[:, 1], found.sampling[:, 1])
    assert joined.silos == 5
    assert joined.low < joined.mean < joined.high


# A meta-analysis ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_it_is_that_of_dersimonian_and_laird(seed: int) -> None:
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    rng = np.random.default_rng(seed)
    values, variance = rng.normal(1, 0.5, 9), rng.uniform(0.01, 0.1, 9)
    expected = meta.combine_effects(values, variance, method_re="dl")
    found = meta_analysis(values, np.zeros(9), variance)
    assert found.mean == pytest.approx(expected.mean_effect_re)
    assert found.tau2 == pytest.approx(expected.tau2)
    assert found.i2 == pytest.approx(expected.i2)
    stretch = max(expected.scale_hksj_re, 1.0)
    half = 2.306004 * np.sqrt(stretch / expected.weights_re.sum())  # t, 8 degrees of freedom
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    assert found.tau2_low <= found.tau2 <= found.tau2_high


def test_heterogeneity_is_not_taken_from_the_noise() -> None:
    rng, with_noise, usual = np.random.default_rng(0), [], []
    for _ in range(200):
        sampling, noise = np.full(8, 0.02), np.full(8, 0.08)
        values = rng.normal(1, np.sqrt(0.25 + 0.02 + 0.08), 8)
        found = meta_analysis(values, noise, sampling)
        with_noise.append(found.i2)
        usual.append(found.tau2 / (found.tau2 + 0.1))
    assert np.median(with_noise) == pytest.approx(0.25 / 0.27, abs=0.03)
    assert np.median(usual) < 0.8


def test_intervals_of_a_meta_analysis_cover() -> None:
    rng, mean, between = np.random.default_rng(1), 0, 0
    for _ in range(300):
        variance = rng.uniform(0.02, 0.3, 8)
        found = meta_analysis(rng.normal(1, np.sqrt(0.1 + variance)), variance / 2, variance / 2)
        mean += found.low <= 1 <= found.high
        between += found.tau2_low <= 0.1 <= found.tau2_high
    assert 0.92 <= mean / 300 <= 0.99
    assert 0.92 <= between / 300 <= 0.98


def test_too_few_known_estimates_are_refused() -> None:
    with pytest.raises(PlanError, match="two or more silos"):
        meta_analysis(np.array([1.0, np.nan]), np.ones(2), np.ones(2))


def test_equal_estimates_have_no_variance_but_an_interval() -> None:
    found = meta_analysis(np.ones(5), np.zeros(5), np.full(5, 0.04))
    assert (found.tau2, found.tau2_low, found.i2) == (0.0, 0.0, 0.0)
    assert found.high - found.low == pytest.approx(2 * 2.776445 * np.sqrt(0.04 / 5))
