"""Intervals of noisy ratios: exact coverage, counts within their noise, and what the box does."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.protocol.task import INTERVAL_95, Mechanism
from cloister.tasks.intervals import KNOWN, differences, fieller, ratio_interval, size_interval
from cloister.tasks.preparation.statistics import _variance

Z = INTERVAL_95["gaussian"]


def one(total: float, count: float, **options: Any) -> tuple[float, float]:
    """The interval of one ratio."""
    fields: dict[str, Any] = {"sum_std": 1.0, "count_std": 1.0, **options}
    low, high = ratio_interval(np.array([[total]]), np.array([count]), **fields)
    return float(low[0, 0]), float(high[0, 0])


@given(
    st.floats(-60, 60), st.floats(-60, 60), st.floats(0.01, 9), st.floats(0.01, 9), st.floats(-1, 1)
)
def test_every_ratio_that_fits_is_inside(
    total: float, count: float, s: float, c: float, origin: float
) -> None:
    low, high = one(total, count, sum_std=s, count_std=c, origin=origin)
    assert -1 <= low <= high <= 1
    places = np.linspace(-1, 1, 401)
    ratios = places - origin
    slack = Z**2 * (s**2 + (ratios * c) ** 2) - (total - ratios * count) ** 2
    fits = places[slack > 1e-6]
    assert ((fits >= low - 1e-9) & (fits <= high + 1e-9)).all()
    misfits = slack < -1e-6
    # an end moves out by the quantile of a selected number, which is below 3
    most = 9 if count < (KNOWN + 5) * c else Z**2
    hull = places[(total - ratios * count) ** 2 <= most * (s**2 + (ratios * c) ** 2)]
    if count <= KNOWN * c:
        assert (low, high) == pytest.approx((-1, 1))
    elif fits.size:  # no wider than the hull of what fits
        assert low >= hull[0] - places[1] + places[0] - 1e-9
        assert high <= hull[-1] + places[1] - places[0] + 1e-9
    elif misfits.all():  # nothing fits between the walls, or less than a step of the mesh
        assert high - low < 0.006


@given(
    st.floats(-60, 60),
    st.floats(-60, 60),
    st.floats(0, 9),
    st.floats(0, 9),
    st.floats(-1, 1),
    st.sampled_from(["gaussian", "laplace", "none"]),
)
def test_a_count_that_is_not_above_its_noise_gives_the_whole_box(
    total: float, count: float, s: float, c: float, origin: float, law: Mechanism
) -> None:
    """Fieller squares the count, so that one well below 0 had a narrow interval."""
    ends = one(total, count, sum_std=s, count_std=c, origin=origin, mechanism=law)
    if count <= size_interval(c, law):
        assert ends == pytest.approx((-1, 1), abs=1e-12)


@pytest.mark.parametrize("size", [-3946.0, -3992.0])
def test_a_count_far_below_zero_is_no_knowledge(size: float) -> None:
    # of a report: noisy sizes of -3,946 +- 2,999 beside centres known to a hundredth of the box
    assert one(900.0, size, sum_std=40.0, count_std=1530.0) == (-1, 1)
    low, high = fieller(np.array([3e5]), np.array([size]), 40.0**2, 1530.0**2, box=(0.0, 5.0))
    assert (low[0], high[0]) == (0, 5)


@pytest.mark.parametrize("mean", [0.3, -0.9])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.9, 1.0])
def test_coverage_is_that_of_the_runs_in_which_a_ratio_is_known(share: float, mean: float) -> None:
    # 6,000 known of 60,000 draws or more, from a seed: four standard errors are 0.011 or less
    rng = np.random.default_rng(7)
    runs, s, c = 60_000, 0.7, 1.6
    size = c * (KNOWN + (NormalDist().inv_cdf(share) if share < 1 else 100.0))
    totals = size * mean + s * rng.normal(size=(runs, 1))
    counts = size + c * rng.normal(size=runs)
    wide = (-1e9, 1e9)
    low, high = ratio_interval(totals, counts, sum_std=s, count_std=c, box=wide)
    known = counts > KNOWN * c
    assert known.mean() == pytest.approx(share, abs=0.01)
    inside = ((low <= mean) & (mean <= high))[:, 0]
    assert inside[~known].all()
    assert inside[known].mean() > (0.95 if share > 0.2 else 0.9) - 0.011
    fits = (totals[:, 0] - mean * counts) ** 2 <= Z**2 * (s**2 + (mean * c) ** 2)
    assert inside[fits].all()
    if share == 1:
        assert (inside == fits).all()  # Fieller's set, which is exact
    if share == 0.1:  # Fieller's set holds less
        assert fits[known].mean() < min(0.93, inside[known].mean() - 0.01)


def test_the_first_order_interval_would_miss_what_this_covers() -> None:
    rng = np.random.default_rng(8)
    runs, size, mean, s, c = 40_000, 6.0, 0.9, 0.2, 1.3
    totals = size * mean + s * rng.normal(size=(runs, 1))
    counts = size + c * rng.normal(size=runs)
    low, high = ratio_interval(totals, counts, sum_std=s, count_std=c, box=(-9, 9))
    assert 0.946 < ((low <= mean) & (mean <= high)).mean() < 0.97
    ratios = totals / counts[:, None]
    spread = Z * np.hypot(s, ratios * c) / counts[:, None]
    assert (np.abs(ratios - mean) <= spread).mean() < 0.935


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "none"])
def test_without_noise_both_ends_are_the_ratio(mechanism: Mechanism) -> None:
    ends = one(1.5, 6.0, sum_std=0.0, count_std=0.0, mechanism=mechanism, origin=0.25)
    assert ends == pytest.approx((0.5, 0.5), abs=1e-12)


def test_a_count_that_says_nothing_leaves_the_whole_box() -> None:
    assert one(0.0, 0.0) == (-1, 1)
    assert one(0.1, -0.5) == (-1, 1)
    assert one(0.0, 0.0, sum_std=0.0, count_std=0.0) == (-1, 1)
    assert one(0.0, Z) == (-1, 1)  # where the quadratic becomes a line


def test_a_variance_over_a_count_below_zero_is_not_known_either() -> None:
    """Its denominator is the squared count, which lost the sign."""
    known = _variance(500.0, np.array([10.0]), np.array([300.0]), noise=25.0)
    assert known.high[0] - known.low[0] < 0.2
    unknown = _variance(-500.0, np.array([10.0]), np.array([300.0]), noise=25.0)
    assert (unknown.low[0], unknown.high[0]) == (0, 1)


def test_an_interval_beyond_the_wall_is_the_wall() -> None:
    assert one(300.0, 100.0) == (1, 1)
    assert one(-300.0, 100.0, origin=0.5) == (-1, -1)


def test_the_noise_may_differ_by_cluster_and_column() -> None:
    totals, counts = np.zeros((2, 3)), np.array([100.0, 400.0])
    sum_std = np.array([1.0, 2.0, 4.0])
    low, high = ratio_interval(totals, counts, sum_std=sum_std, count_std=np.array([[1.0], [2.0]]))
    half = (high - low) / 2
    assert half == pytest.approx(Z * sum_std / counts[:, None], rel=1e-3)


def test_sizes_have_the_quantile_of_their_law() -> None:
    assert size_interval(10.0) == pytest.approx(19.6)
    assert size_interval(10.0, "laplace") == pytest.approx(10 * np.log(20) / sqrt(2))
    assert size_interval(10.0, "none") == 0


def test_a_difference_is_one_only_beyond_the_noise_of_both() -> None:
    values = np.array([[0.0, 5.0], [10.0, 5.3], [20.0, 5.1]])
    half = np.array([[1.0, 1.0], [1.0, 1.0], [15.0, 1.0]])
    found = differences(values, values - half, values + half)
    assert found[:, 1].tolist() == [0.0, 0.0, 0.0]  # .3 apart, with intervals of 1
    # the noise of the first reaches no further than 7.6, of the last 15.1
    np.testing.assert_allclose(found[:, 0], [-1.0, 0.0, 0.0])
    np.testing.assert_allclose(
        differences(values, values, values)[:, 0], [-1.0, 0.0, 1.0]
    )  # without noise
    assert not differences(values[:1], values[:1] - 1, values[:1] + 1).any()
