"""Differences between silos: textbook results without noise, and intervals that hold with it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.core.display import Bars, Table
from cloister.tasks.regression.sites import (
    displays_of,
    effects_of,
    heterogeneity,
    random_intercept,
    results_of,
)


def rows(seed: int, silos: int, n: int, tau: float = 0.1, confounded: float = 0.0) -> list[Floats]:
    """Return rows ``(1, x, x, y)`` of each silo; the effect of the first x is 0.025."""
    rng, made = np.random.default_rng(seed), []
    for i in range(silos):
        size = int(n * (0.5 + rng.random()))
        first = np.where(rng.random(size) < 0.2 + 0.6 * i / (silos - 1), 1.0, -1.0)
        second = rng.uniform(-1, 1, size)
        y = 0.025 * first + 0.075 * second + rng.normal(0, tau) + rng.normal(0, 0.15, size)
        y += confounded * (i / (silos - 1) - 0.5)
        made.append(np.column_stack([np.ones(size), first, second, y]))
    return made


def fixed(tables: list[Floats]) -> tuple[Floats, Floats, Floats]:
    """Return two slopes, the intercept of each silo, and their covariance by least squares."""
    pooled, k = np.vstack(tables), len(tables)
    design = np.column_stack(
        [pooled[:, 1:3], np.eye(k)[np.repeat(np.arange(k), [len(t) for t in tables])]]
    )
    coef = np.linalg.lstsq(design, pooled[:, 3], rcond=None)[0]
    rest = pooled[:, 3] - design @ coef
    variance = float(rest @ rest) / (len(rest) - len(coef))
    return coef[:2], coef[2:], variance * np.linalg.inv(design.T @ design)


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
        model = mixed.MixedLM(pooled[:, 3], pooled[:, [1, 2, 0]], groups)
        expected = model.fit(reml=True, method="powell")
    slopes, intercepts, covariance = fixed(tables)
    found = random_intercept(slopes, intercepts, np.zeros_like(covariance), covariance)
    # Statsmodels estimates the variance of a record together with that of silos.
    np.testing.assert_allclose(found.coef, expected.fe_params, atol=0.02 * expected.bse_fe.min())
    assert found.silos.tau2 == pytest.approx(float(expected.cov_re[0, 0]), rel=0.03, abs=3e-5)
    assert np.sqrt(np.diag(found.sampling)) == pytest.approx(expected.bse_fe, rel=0.1)
    assert found.silos.tau2_low <= found.silos.tau2 <= found.silos.tau2_high
    assert not found.noise.any()


def test_intervals_of_noise_hold_the_model_without_noise() -> None:
    """Seeded: of 80 draws of the noise, as many as a 95 % interval should miss at most."""
    slopes, intercepts, covariance = fixed(rows(2, 8, 2000))
    noise = 4 * covariance
    exact = random_intercept(slopes, intercepts, 0 * noise, covariance)
    rng, hits, errors = np.random.default_rng(0), np.zeros(3), []
    for _ in range(80):
        noisy = rng.multivariate_normal(np.concatenate([slopes, intercepts]), noise)
        found = random_intercept(noisy[:2], noisy[2:], noise, covariance)
        hits += np.abs(found.coef - exact.coef) <= 1.96 * np.sqrt(np.diag(found.noise))
        errors.append(found.coef - exact.coef)
        assert found.silos.tau2_low <= exact.silos.tau2 <= found.silos.tau2_high
    assert hits.min() >= 70
    ratio = np.sqrt(np.diag(found.noise)) / np.std(errors, axis=0)  # nor are they too wide
    assert ratio == pytest.approx(np.ones(3), abs=0.2)


def test_a_confounded_effect_is_right() -> None:
    """Silos that treat more have larger targets: pooled least squares would be 0.06 off."""
    slopes, intercepts, covariance = fixed(rows(1, 8, 2000, 0.1, confounded=0.3))
    found = random_intercept(slopes, intercepts, covariance, covariance)
    assert found.coef[0] == pytest.approx(0.025, abs=0.004)


def test_units_of_the_target_change_units_of_the_result() -> None:
    slopes, intercepts, covariance = fixed(rows(4, 6, 200))
    one = random_intercept(slopes, intercepts, covariance, covariance)
    wide = 64 * covariance
    other = random_intercept(8 * slopes, 8 * intercepts, wide, wide)
    np.testing.assert_allclose(other.coef, 8 * one.coef, rtol=1e-5)
    assert other.silos.tau2 == pytest.approx(64 * one.silos.tau2, rel=1e-4)


def test_a_silo_that_is_not_known_is_left_out() -> None:
    slopes, intercepts, covariance = fixed(rows(3, 6, 400))
    found = random_intercept(slopes, intercepts, covariance, covariance)
    hidden, mark = intercepts.copy(), np.ones(len(covariance))
    hidden[4], mark[6] = np.nan, np.nan
    less = covariance * np.outer(mark, mark)
    without = random_intercept(slopes, hidden, less, less)
    assert without.silos.silos == 5
    assert without.coef == pytest.approx(found.coef, abs=0.1)
    slopes[0], mark = np.nan, np.ones(len(covariance))
    mark[0] = np.nan
    less = covariance * np.outer(mark, mark)
    slope = random_intercept(slopes, intercepts, less, less)
    assert np.isnan(slope.coef).tolist() == [True, False, False]
    assert np.isnan(np.diag(slope.noise)).tolist() == [True, False, False]


def test_two_silos_have_no_known_variance() -> None:
    slopes, intercepts, covariance = fixed(rows(3, 2, 100))
    found = random_intercept(slopes, intercepts, covariance, covariance)
    assert np.isnan(found.coef).all()
    assert (found.silos.low, found.silos.high) == (-np.inf, np.inf)
    assert (found.silos.tau2_low, found.silos.tau2_high) == (0.0, np.inf)


# A meta-analysis ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_is_that_of_a_meta_analysis_with_this_variance(seed: int) -> None:
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    rng = np.random.default_rng(seed)
    values, variance = rng.normal(1, 0.5, 9), rng.uniform(0.01, 0.1, 9)
    found = heterogeneity(values, np.zeros((9, 9)), np.diag(variance))
    # Their estimate of Paule and Mandel is near that of restricted maximum likelihood.
    expected = meta.combine_effects(values, variance, method_re="iterated")
    assert found.mean == pytest.approx(expected.mean_effect_re, abs=0.01)
    assert found.tau2 == pytest.approx(expected.tau2, rel=0.35)
    weights = 1 / (variance + found.tau2)
    assert found.mean == pytest.approx(weights @ values / weights.sum())
    assert found.high - found.mean >= 2.306 / np.sqrt(weights.sum())  # t, 8 degrees of freedom
    assert found.tau2_low <= found.tau2 <= found.tau2_high


def test_heterogeneity_is_not_taken_from_the_noise() -> None:
    rng, with_noise, usual = np.random.default_rng(0), [], []
    sampling, noise = 0.02 * np.eye(8), 0.08 * np.eye(8)
    for _ in range(200):
        values = rng.normal(1, np.sqrt(0.25 + 0.02 + 0.08), 8)
        found = heterogeneity(values, noise, sampling)
        with_noise.append(found.i2)
        usual.append(found.tau2 / (found.tau2 + 0.1))
    assert np.median(with_noise) == pytest.approx(0.25 / 0.27, abs=0.03)
    assert np.median(usual) < 0.8


def test_intervals_of_a_meta_analysis_cover_also_if_estimates_share_noise() -> None:
    rng, mean, between = np.random.default_rng(1), 0, 0
    for _ in range(300):
        variance = rng.uniform(0.02, 0.3, 8)
        shared = 0.05 * np.ones((8, 8)) + np.diag(variance / 2)
        values = rng.normal(1, np.sqrt(0.1 + variance)) + rng.normal(0, np.sqrt(0.05))
        found = heterogeneity(values, shared, np.diag(variance / 2))
        mean += found.low <= 1 <= found.high
        between += found.tau2_low <= 0.1 <= found.tau2_high
    assert mean / 300 >= 0.92
    assert 0.92 <= between / 300 <= 0.98


def test_the_share_of_the_variance_between_silos_is_as_uncertain_as_that_variance() -> None:
    # The noise is ten times the sampling error, so the noisy estimates say nothing of the share.
    found = heterogeneity(np.array([-4.7, -2.6, -2.7]), np.diag([1.0, 1.8, 11.0]), 0.09 * np.eye(3))
    assert found.i2_low < 0.05
    assert found.i2_high > 0.9
    assert found.i2_low <= found.i2 <= found.i2_high
    assert found.i2_high == pytest.approx(found.tau2_high / (found.tau2_high + 0.09))


@pytest.mark.filterwarnings("error")
def test_estimates_without_an_error_of_sampling_give_no_warning() -> None:
    """Before the last round of a model it is 0."""
    found = heterogeneity(np.array([1.0, 2.0, 4.0]), np.eye(3), np.zeros((3, 3)))
    assert found.i2_high == 1.0


def test_equal_estimates_have_no_variance_but_an_interval() -> None:
    found = heterogeneity(np.ones(5), np.zeros((5, 5)), 0.04 * np.eye(5))
    assert (found.tau2, found.tau2_low, found.i2) == (0.0, 0.0, 0.0)
    assert found.high - found.low == pytest.approx(2 * 2.776445 * np.sqrt(0.04 / 5))


# From coefficients of a fit -----------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    names: tuple[str, ...]
    sites: tuple[str, ...] = ("A", "B", "C")


CROSSED = Model(
    ("t", "site=A", "site=B", "site=C", "age", "site=B:t", "site=C:t", "arm=x:site=C", "intercept")
)


def results(model: Model, coef: list[float], unknown: int | None = None) -> dict[str, Floats]:
    values, covariance = np.array(coef), np.diag(np.linspace(0.01, 0.02, len(coef)))
    if unknown is not None:
        values[unknown] = np.nan
        covariance[unknown] = covariance[:, unknown] = np.nan
    assert len(values) == len(model.names)
    return {
        "coef": values[:-1], "intercept": values[-1:],
        "covariance": covariance, "sampling_covariance": 2 * covariance,
    }  # fmt: skip


def test_effects_of_silos_are_sums_of_coefficients() -> None:
    found = effects_of(CROSSED)
    assert set(found) == {"", "t", "arm=x"}
    values = np.array([1.0, 0, 2, 3, 9, 0.1, 0.2, 5, 50])
    assert (found[""] @ values).tolist() == [50, 52, 53]
    assert (found["t"] @ values).tolist() == [1.0, 1.1, 1.2]
    released = results_of(CROSSED, results(CROSSED, values.tolist()))
    assert released["site_effect"].shape == (2, 3)
    assert released["site_effect"][0] == pytest.approx([1.0, 1.1, 1.2])
    variance = np.array([0.01, 0.01 + 0.01625, 0.01 + 0.0175])  # of t, and of t and its products
    half = (released["site_effect_high"] - released["site_effect_low"])[0] / 2
    assert half == pytest.approx(1.96 * np.sqrt(variance), rel=1e-3)
    ends = [released[f"site_effect{end}"][0] for end in ("_population_low", "_low", "", "_high")]
    assert all((a <= b).all() for a, b in pairwise(ends))


def test_displays_show_silos_their_mean_and_what_is_not_known() -> None:
    values = [1.0, 0, 2, 3, 9, 0.1, 0.2, 5, 50]
    released = results_of(CROSSED, results(CROSSED, values, unknown=6))
    forest, _, spread = displays_of(CROSSED, released)
    assert isinstance(forest, Bars)
    assert forest.points
    assert forest.names == ("A", "B", "C", "mean of silos")
    assert np.isnan(forest.estimate.values).tolist() == [False, False, True, True]
    assert isinstance(spread, Table)
    assert spread.rows[0] == ("t", "not known", "not known")


def test_silos_that_differ_in_the_intercept_alone_have_a_mixed_model() -> None:
    model = Model(("arm=a", "t", "site=A", "site=B", "site=C", "intercept"))
    given = results(model, [0, 1.0, 0, 2, 4, 50])
    given["covariance"][0, 0] = given["sampling_covariance"][0, 0] = 0.0
    given["reference"] = np.array([1.0, 0, 1, 0, 0])
    released = results_of(model, given)
    assert released["mixed_coef"].tolist() == pytest.approx([0.0, 1.0, 52.0], abs=0.01)
    assert released["site_tau"][0] == pytest.approx(2.0, rel=0.05)
    table, _ = displays_of(model, {**given, **released})
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["arm=a", "t", "intercept"]
    assert table.rows[0][1] == "reference"  # as in the table of the same model with terms of silos
    two = Model(("t", "site=A", "site=B", "intercept"), ("A", "B"))
    assert results_of(two, results(two, [1.0, 0, 2, 50])) == {}
    assert not list(displays_of(two, {}))
