"""The stages of ``auto``, each against a plain reference in floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import isqrt, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate, optimize, special

from cloister import Budget
from cloister.core.arrays import State
from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.protocol.task import Floats, GridState, Integers, NoisyBlock, Records
from cloister.tasks.clipped import bin_numbers, clip_to_unit, sum_clipped, sum_clipped_near
from cloister.tasks.clustering.auto import Auto, EstimatedRoute
from cloister.tasks.clustering.auto_finder import FinderKnown, FinderRoute, _far_groups
from cloister.tasks.clustering.auto_grid import GridRoute, _before_groups
from cloister.tasks.clustering.auto_mean import MeanRoute, spread_out
from cloister.tasks.clustering.auto_pca import PcaRoute
from cloister.tasks.clustering.auto_rounds import growing, lloyd_contribution
from cloister.tasks.clustering.surrogate import Surrogate
from cloister.tasks.clustering.synopsis import (
    cell_centres,
    cluster_weighted,
    cubic_bins,
    drop_empty_cells,
    nearest,
    project_to_simplex,
    sample_cells,
)
from cloister.tasks.clustering.weighted import WHOLE
from cloister.tasks.moments import PRODUCT, SQUARE, sum_products, unpack_products
from cloister.tasks.shrinkage import empirical_bayes, gains, james_stein
from cloister.tasks.state import decode_state, encode_state
from cloister.testing import toy_task

ONE = 1 << 16
RNG = np.random.default_rng(0)


def records(n: int, d: int, seed: int = 0) -> Records:
    drawn = np.random.default_rng(seed).integers(-ONE, ONE, (n, d), endpoint=True)
    return drawn.astype(np.int32)


def clipped(differences: Floats, radii: Floats | float) -> Floats:
    lengths = np.linalg.norm(differences, axis=1)
    return differences / np.maximum(lengths, radii)[:, None]


# --- What a record adds ---------------------------------------------------------------------------


@given(
    d=st.integers(1, 40),
    radius=st.integers(1, 4 * ONE),
    unit=st.sampled_from([256, 1 << 12, ONE, 1 << 20]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_clipped_vector_is_the_real_one_cut_toward_zero(
    d: int, radius: int, unit: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2 * ONE, 2 * ONE, (20, d), endpoint=True)
    vectors[:5] //= ONE // 3
    vectors[5] = 0
    found = clip_to_unit(vectors, radius, unit)
    real = unit * clipped(vectors.astype(np.float64), float(radius))
    zeroed = ~found.any(axis=1)
    close = np.abs(found) >= np.abs(real) - 1 - 1e-6
    assert (close.all(axis=1) | zeroed).all()
    assert (np.abs(found) <= np.abs(real) + 1e-6).all()
    assert all(sum(int(v) ** 2 for v in row) <= unit**2 for row in found)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 50])
def test_no_record_is_lost_to_the_bound_on_a_typical_table(d: int) -> None:
    """Zeroing is for what floats may get wrong; it must not bias a sum."""
    vectors = np.random.default_rng(d).integers(-ONE, ONE, (5000, d))
    assert clip_to_unit(vectors, 10, ONE).any(axis=1).mean() > 0.999
    axes = 5 * np.eye(d, dtype=np.int64)
    np.testing.assert_array_equal(clip_to_unit(axes, 1, ONE), ONE * np.eye(d, dtype=np.int64))


def test_clipped_sums_are_those_of_a_plain_loop() -> None:
    table, centres = records(3000, 4), records(5, 4, 1).astype(np.int64)
    radii = np.array([1, 1000, ONE // 2, ONE, 3 * ONE])
    sums, counts = sum_clipped_near(table, centres, radii, ONE)
    labels, _ = nearest(table / ONE, centres / ONE)
    real = clipped((table - centres[labels]).astype(np.float64), radii[labels].astype(np.float64))
    for j in range(5):
        assert counts[j] == (labels == j).sum()
        np.testing.assert_allclose(sums[j] / ONE, real[labels == j].sum(axis=0), atol=0.1)
    origin = centres[0]
    whole = clipped((table - origin).astype(np.float64), 1000.0).sum(axis=0)
    np.testing.assert_allclose(sum_clipped(table, origin, 1000, ONE) / ONE, whole, atol=0.1)


def test_a_radius_in_a_round_is_one_step_at_least() -> None:
    rows = np.array([[1, 0], [0, -3]], dtype=np.int32)
    for radius, length in ((0, 1), (1, 1), (2, 2), (3, 3)):
        radii, centres = np.array([radius]), np.zeros((1, 2), dtype=np.int64)
        found = lloyd_contribution({"centres": centres, "radii": radii}, rows, ONE)
        assert found.tolist() == [ONE // length, -ONE, 2 * ONE]


@pytest.mark.parametrize("radius", [0, -5])
def test_a_record_at_the_mean_adds_nothing_whatever_the_radius(radius: int) -> None:
    """And nothing is divided by 0."""
    task = Auto(n_clusters=3, n_features=4, nominal_n=1000, mu=1.0)
    state = {**on_grid(task, task.start()), "radius": np.array([radius])}
    with np.errstate(divide="raise", invalid="raise"):
        assert not task.contribute(2, state, np.zeros((5, 4), dtype=np.int32)).any()


def test_one_record_does_not_change_what_another_adds() -> None:
    """Not even in the last bit: each row alone gives what it gives in the table."""
    table, centres = records(400, 9), records(6, 9, 1).astype(np.int64)
    radii = np.full(6, ONE)
    whole = sum_clipped_near(table, centres, radii, ONE)
    rows = [sum_clipped_near(row[None], centres, radii, ONE) for row in table]
    np.testing.assert_array_equal(whole[0], sum(sums for sums, _ in rows))
    np.testing.assert_array_equal(whole[1], sum(counts for _, counts in rows))


def test_products_are_those_of_an_outer_product() -> None:
    rows = RNG.integers(-(1 << 12), 1 << 12, (1000, 6))
    packed = sum_products(rows)
    expected = rows.T @ rows
    np.testing.assert_array_equal(unpack_products(packed.astype(np.float64), 6), expected)
    upper = np.triu_indices(6)
    weights = np.where(upper[0] == upper[1], SQUARE, PRODUCT)
    np.testing.assert_array_equal(packed, expected[upper] * weights)
    assert PRODUCT**2 <= 2 * SQUARE**2  # or an integer bound would not hold


def test_a_cell_is_that_of_numpys_histogram() -> None:
    points = RNG.normal(size=(5000, 3))
    halves, bins = np.array([2.0, 1.0, 0.5]), np.array([7, 4, 1])
    edges = [np.linspace(-h, h, m + 1) for h, m in zip(halves, bins, strict=True)]
    inside = np.clip(points, -halves + 1e-9, halves - 1e-9)
    expected, _ = np.histogramdd(inside, edges)
    numbers = bin_numbers(points, halves, bins)
    found = np.bincount(numbers, minlength=int(bins.prod()))
    np.testing.assert_array_equal(found.reshape(bins), expected)
    middles = cell_centres(halves, bins)
    assert (np.abs(inside - middles[numbers]) <= halves / bins + 1e-9).all()


# --- Estimates ------------------------------------------------------------------------------------


def test_james_stein_is_better_than_what_it_shrinks() -> None:
    rng, raw, shrunk = np.random.default_rng(3), 0.0, 0.0
    truth = 0.3 * rng.normal(size=20)
    for _ in range(500):
        noisy = truth + 0.5 * rng.normal(size=20)
        raw += float(((noisy - truth) ** 2).sum())
        shrunk += float(((james_stein(noisy, 0.5) - truth) ** 2).sum())
    assert shrunk < 0.5 * raw
    assert not james_stein(np.full(10, 1e-9), 1.0).any()
    np.testing.assert_allclose(james_stein(truth, 1e-9), truth)


def test_empirical_bayes_is_the_posterior_mean_of_its_model() -> None:
    sums = np.array([[0.7, -0.3], [0.4, 0.2], [1.1, 0.6]])
    factors, spreads = np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.5, 2.0])
    noise_std, unit, power = 0.7, 0.9, 3.0

    def weight(log_scale: float) -> float:
        variance = (unit * np.exp(log_scale)) ** 2 * factors**2 * spreads + noise_std**2
        likelihood = np.prod(np.exp(-0.5 * (sums**2).sum(axis=1) / variance) / variance)
        return float(likelihood * np.exp(power * log_scale))

    def gain(log_scale: float, j: int) -> float:
        signal = (unit * np.exp(log_scale)) ** 2 * factors[j] ** 2 * spreads[j]
        return float(weight(log_scale) * signal / (signal + noise_std**2))

    ends = (np.log(3e-3), np.log(3.0))
    total = integrate.quad(weight, *ends)[0]
    expected = [integrate.quad(gain, *ends, args=(j,))[0] / total for j in range(3)]
    found = empirical_bayes(
        sums,
        n_dims=2,
        factors=factors,
        noise_std=noise_std,
        unit=unit,
        prior_power=power,
        spreads=spreads,
    )
    np.testing.assert_allclose(found, sums * np.array(expected)[:, None], rtol=0.03)
    nothing = empirical_bayes(
        sums,
        n_dims=0,
        factors=factors,
        noise_std=1.0,
        unit=1.0,
        prior_power=2.0,
        spreads=spreads,
    )
    np.testing.assert_array_equal(nothing, sums)


def test_gains_are_those_of_the_posterior_of_its_model() -> None:
    sums = np.array([[0.7, -0.3], [1.4, 0.2], [2.1, -0.6]])
    factors, variances, noise_std = np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.1, 0.2]), 0.7

    def signal(log_ratio: float) -> Floats:
        return np.asarray(np.exp(2 * log_ratio) * variances)

    def gain(log_ratio: float) -> Floats:
        seen = signal(log_ratio) * factors**2
        return np.asarray(seen / (seen + noise_std**2))

    def weight(log_ratio: float) -> float:
        variance = signal(log_ratio) * factors**2 + noise_std**2
        likelihood = np.prod(np.exp(-0.5 * (sums**2).sum(axis=1) / variance) / variance)
        return float(likelihood * np.exp(-0.5 * (log_ratio / 0.7) ** 2))

    def mean(value: Callable[[float], Floats]) -> Floats:
        ratios = np.linspace(-2.5, 2.5, 2001)
        weights = np.array([weight(u) for u in ratios])
        return np.asarray(weights @ np.array([value(u) for u in ratios]) / weights.sum())

    found, left = gains(sums, factors, variances, noise_std)
    np.testing.assert_allclose(found, mean(gain), rtol=1e-3)
    np.testing.assert_allclose(left, mean(lambda u: signal(u) * (1 - gain(u))), rtol=1e-3)


def test_all_is_signal_without_noise_and_little_where_noise_explains_it() -> None:
    ones = np.ones(3)
    found, left = gains(np.full((3, 2), 0.4), ones, ones, 0.0)
    np.testing.assert_allclose(found, 1)
    np.testing.assert_array_equal(left, 0)
    found, left = gains(np.full((3, 2), 0.4), ones, 1e-6 * ones, 1.0)
    assert (found < 1e-4).all()
    assert (left < 1e-4).all()
    alike, _ = gains(np.full((3, 2), 1.0), ones, ones, 1.0)
    larger, _ = gains(np.full((3, 2), 9.0), ones, ones, 1.0)  # errors are larger than was said
    assert (alike < 0.5).all()
    assert (larger > 0.9).all()


@given(st.lists(st.floats(-50, 100), min_size=1, max_size=12), st.floats(0.5, 500))
def test_the_projection_is_the_nearest_point_of_the_simplex(
    counts: list[float], total: float
) -> None:
    noisy = np.array(counts)
    found = project_to_simplex(noisy, total)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(total)
    # Lagrange: what is kept was moved by the same amount, what is not had less left than that
    moved = noisy[found > 0] - found[found > 0]
    assert np.ptp(moved) == pytest.approx(0, abs=1e-6)
    assert (noisy[found == 0] <= moved.min() + 1e-6).all()


@pytest.mark.parametrize(("noise", "has"), [(1.17, True), (1.19, False)])
def test_a_box_is_cut_where_the_noise_of_its_bins_is_below_a_tail(noise: float, has: bool) -> None:
    """In 9 columns a bin has three times the noise of one; it may be 0.59 of the tail."""
    route = SimpleNamespace(whole_box=False, n_features=9, noise_std=lambda _: noise, _tail=6.0)
    assert GridRoute.has_box.func(route) is has  # type: ignore[attr-defined]


def test_a_loose_box_is_cut_where_counts_rise_though_noise_hides_the_tail() -> None:
    """Records are in the bins 12 to 19 of 32; the noise of 12 empty bins exceeds the tail."""
    task, route = grid_task(15, 2, 5000)
    known = route._known(on_grid(task, task.start()))
    counts = np.zeros((2, 32))
    counts[:, 12:20] = 625.0
    noise_std = 85.0
    lows, highs = [], []
    for seed in range(50):
        noisy = counts + np.random.default_rng(seed).normal(size=counts.shape) * noise_std
        cut = route._box(known, noisy, noise_std)
        lows.append(cut.box_low)
        highs.append(cut.box_high)
    # The ends of the records are -1/4 and 1/4; a bin is 1/16.
    assert np.mean(np.abs(np.array(lows) + 0.25) <= 1 / 16) > 0.7
    assert np.mean(np.abs(np.array(highs) - 0.25) <= 1 / 16) > 0.7
    assert np.mean(np.array(lows) <= -0.25) >= 0.98
    assert np.mean(np.array(highs) >= 0.25) >= 0.98


def test_a_route_of_the_whole_box_has_no_round_that_finds_a_smaller_one() -> None:
    _, route = grid_task(3, 2, 20_000)
    whole = replace(route, whole_box=True)
    firsts = [each.blocks(0)[0].name for each in (route, whole)]
    assert firsts == ["tails", "cells"]
    assert sum(block.weight for t in range(whole.rounds) for block in whole.blocks(t)) == (
        pytest.approx(1)
    )


def test_cells_are_cubic_and_never_more_than_allowed() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        stds = rng.uniform(0.001, 1, rng.integers(1, 7))
        most = rng.uniform(1, 4096)
        bins = cubic_bins(stds, most)
        assert bins.min() >= 1
        assert bins.prod() <= most
    np.testing.assert_array_equal(cubic_bins(np.array([2.0, 1.0]), 200.0), [20, 10])
    np.testing.assert_array_equal(cubic_bins(np.array([1.0, 0.01]), 30.0), [30, 1])
    for scale in (1e-9, 1.0, 1e9):
        found = cubic_bins(scale * np.array([8.0, 4.0, 1.0]), 100_000.0)
        np.testing.assert_array_equal(found, [116, 58, 14])


def test_weighted_clustering_finds_what_k_means_finds() -> None:
    from sklearn.cluster import KMeans

    points = RNG.uniform(-1, 1, (300, 2))
    weights = RNG.exponential(size=300) * (RNG.uniform(size=300) < 0.7)
    centres = cluster_weighted(points, weights, 6, public_seed=1, restarts=30)
    best = KMeans(6, n_init=30, random_state=0).fit(points, sample_weight=weights)
    cost = float(weights @ nearest(points, centres)[1])
    assert cost <= 1.02 * best.inertia_
    again = cluster_weighted(points, weights, 6, public_seed=1, restarts=30)
    np.testing.assert_array_equal(centres, again)


def test_few_points_are_repeated_to_make_up_the_number() -> None:
    centres = cluster_weighted(np.eye(3), np.array([1.0, 0.0, 2.0]), 4, public_seed=0)
    np.testing.assert_array_equal(centres, np.eye(3)[[0, 2, 0, 2]])


def test_empty_cells_lose_their_weight_and_full_ones_keep_it() -> None:
    rng = np.random.default_rng(4)
    truth = np.where(rng.uniform(size=400) < 0.1, rng.exponential(100.0, 400), 0.0)
    noisy = truth + rng.normal(0, 5.0, 400)
    weights = project_to_simplex(noisy, truth.sum())
    kept = drop_empty_cells(noisy, weights, 5.0, truth.sum())
    assert kept.sum() == pytest.approx(truth.sum())
    assert (kept[truth > 50] > 0).all()
    assert (kept[truth == 0] > 0).mean() < 0.01 < (weights[truth == 0] > 0).mean()
    noise = rng.normal(0, 5.0, 400)  # nothing to keep is no reason to fail
    weights = project_to_simplex(noise, 10.0)
    assert drop_empty_cells(noise, weights, 5.0, 10.0).sum() == pytest.approx(10.0)


def test_the_normal_distribution_function_is_scipys() -> None:
    from cloister.tasks.clustering.synopsis import _log_normal_cdf

    places = np.array([-1e4, -300.0, -31.0, -29.0, -8.0, -1.0, 0.0, 3.0, 40.0])
    np.testing.assert_allclose(_log_normal_cdf(places), special.log_ndtr(places), rtol=2e-3)


def test_samples_lie_in_cells_as_often_as_their_weights_say() -> None:
    middles, sides = cell_centres(np.array([1.0, 1.0]), np.array([2, 2])), np.array([1.0, 1.0])
    weights = np.array([0.0, 1.0, 3.0, 0.0])
    samples = sample_cells(middles, weights, sides, np.array([0.5]), public_seed=3)
    cells, _ = nearest(samples[:, :2], middles)
    share = np.bincount(cells, minlength=4) / len(samples)
    np.testing.assert_allclose(share, [0, 0.25, 0.75, 0], atol=0.05)
    assert (np.abs(samples[:, :2] - middles[cells]) <= 0.5).all()
    assert samples[:, 2].std() == pytest.approx(0.5, rel=0.1)


# --- Routes ---------------------------------------------------------------------------------------


def without_noise(task: Auto, t: int, words: Integers) -> dict[str, NoisyBlock]:
    """What is released if the noise happens to be 0, though everybody thinks it was not."""
    found, offset = {}, 0
    for block in task.blocks(t):
        part = words[offset : offset + block.size].reshape(block.shape)
        std = isqrt(block.l2_squared) / (task.mu * sqrt(block.weight))
        found[block.name] = NoisyBlock(part, std)
        offset += block.size
    return found


def state_after(task: Auto, rounds: int, table: Records) -> GridState:
    state = {name: round_to_grid(v, task.frac_bits) for name, v in task.start().items()}
    for t in range(rounds):
        words = task.contribute(t, state, table)
        new = task.update(t, state, without_noise(task, t, words))
        state = {name: round_to_grid(v, task.frac_bits) for name, v in new.items()}
    return state


def directed(n: int, d: int) -> Records:
    """A table whose leading direction is (1, 1, 0, ...)."""
    rng = np.random.default_rng(8)
    values = 0.1 * rng.normal(size=(n, d)) + 0.2
    values[:, :2] += 0.35 * np.sign(rng.normal(size=(n, 1)))
    return np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)


def path_of(task: Auto) -> object:
    """Return the rounds that end at the centres."""
    return task.route.path if isinstance(task.route, EstimatedRoute) else task.route


def test_the_directions_are_those_of_the_clipped_covariance() -> None:
    table = directed(20_000, 5)
    task = toy_task(Auto, budget=Budget(2.0, 1e-6), n_features=5, nominal_n=20_000, n_clusters=2)
    assert isinstance(path_of(task), FinderRoute)
    state = state_after(task, 3, table)
    values = table / ONE
    np.testing.assert_allclose(state["mean"] / ONE, values.mean(axis=0), atol=0.02)
    start = state_after(task, 1, table)["mean"] / ONE
    radius = state_after(task, 2, table)["radius"][0] / ONE
    distances = np.linalg.norm(values - start, axis=1)
    assert (distances <= radius).mean() == pytest.approx(0.4, abs=0.1)
    y = radius * clipped(values - start, radius)
    variances, vectors = np.linalg.eigh(np.cov(y.T, bias=True))
    assert state["detected"][0] >= ONE
    found = state["directions"][:, 0] / ONE
    assert abs(float(found @ vectors[:, -1])) > 0.999
    assert found[np.abs(found).argmax()] > 0  # the sign is a rule, not a library's whim
    assert state["within"][0] / ONE == pytest.approx(variances.sum(), rel=0.05)


def test_the_frame_of_cells_holds_whatever_is_detected() -> None:
    for k, d, n in ((2, 4, 500), (7, 8, 4000), (12, 40, 100_000), (4, 5, 200)):
        task = toy_task(Auto, budget=Budget(1.0, 1e-6), n_features=d, nominal_n=n, n_clusters=k)
        route = path_of(task)
        assert isinstance(route, PcaRoute | FinderRoute)
        for axes in range(1, route.directions.axes + 1):
            for stds in (np.ones(axes), np.geomspace(1, 1e-3, axes)):
                assert (
                    cubic_bins(stds, route.directions.most_cells(axes)).prod()
                    <= route.directions.n_cells
                )
        assert route.directions.n_cells >= d  # or the branch that sees nothing would not fit


# By clusters, columns, records and mu: the route, its rounds, all its words, the shares of its
# first and of its last sum, and how often too large noise is. The route is that of the path.
DESIGNS: dict[tuple[int, int, int, float], tuple[type, int, int, float, float, float]] = {
    (2, 2, 10_000, 0.25): (GridRoute, 10, 232, 0.08, 0.0862876, 0.0),
    (3, 2, 300, 0.1): (GridRoute, 6, 75, 0.45, 0.125552, 0.0),
    (8, 1, 5_000, 0.5): (GridRoute, 10, 640, 0.08, 0.0862876, 0.0),
    (8, 3, 2_000, 0.05): (GridRoute, 6, 200, 0.45, 0.125552, 0.0),
    (30, 2, 1_000_000, 1.0): (GridRoute, 10, 2584, 0.08, 0.0862876, 0.0),
    (5, 3, 1_000, 0.02): (GridRoute, 4, 90, 0.45, 0.184331, 0.0),
    (4, 2, 3_000, 0.03): (GridRoute, 8, 114, 0.45, 0.10116, 0.0),
    (1, 5, 1_000, 0.25): (MeanRoute, 2, 12, 0.329, 0.611, 0.0),
    (9, 60, 300, 0.05): (MeanRoute, 2, 120, 0.35, 0.35, 3.76399),
    (2, 10, 10_000, 0.25): (FinderRoute, 14, 18835, 0.035, 0.0704, 0.00434629),
    (2, 10, 1_500, 0.25): (PcaRoute, 10, 233, 0.0717213, 0.0704, 0.0289752),
    (3, 10, 400, 0.1): (PcaRoute, 9, 283, 0.0819672, 0.114613, 0.332693),
    (5, 8, 10_000, 0.25): (FinderRoute, 14, 16403, 0.035, 0.0704, 0.00614658),
    (5, 8, 900, 0.25): (PcaRoute, 10, 434, 0.0819672, 0.110916, 0.0682953),
    (6, 100, 3_000, 0.25): (PcaRoute, 16, 12811, 0.0717213, 0.0704, 0.079352),
    (12, 30, 50_000, 0.5): (FinderRoute, 14, 64907, 0.035, 0.0704, 0.00184397),
    (12, 30, 1_500, 0.25): (PcaRoute, 14, 4701, 0.0819672, 0.0879797, 0.122932),
    (20, 8, 1_700, 0.25): (FinderRoute, 12, 5205, 0.04, 0.0639501, 0.0723127),
    (64, 64, 20_000, 1.0): (FinderRoute, 12, 141732, 0.04, 0.0639501, 0.00777487),
    (2, 4, 1_000, 0.1): (PcaRoute, 10, 114, 0.0717213, 0.0704, 0.0687208),
    (4, 5, 200, 0.1): (PcaRoute, 9, 181, 0.0819672, 0.114613, 0.543286),
}


@pytest.mark.parametrize("facts", DESIGNS, ids=str)
def test_silos_of_two_versions_design_the_same_rounds(facts: tuple[int, int, int, float]) -> None:
    """Else one refuses the plan of the other."""
    k, d, n, mu = facts
    task = Auto(n_clusters=k, n_features=d, nominal_n=n, mu=mu)
    blocks = [block for t in range(task.rounds) for block in task.blocks(t)]
    route, rounds, words, *numbers = DESIGNS[facts]
    assert type(path_of(task)) is route
    assert (task.rounds, sum(block.size for block in blocks)) == (rounds, words)
    found = [blocks[0].weight, blocks[-2].weight, task.drowned]
    assert found == pytest.approx(numbers, rel=1e-5)


def test_shares_grow_and_add_up() -> None:
    shares = growing(0.6, 1.2, 5)
    assert sum(shares) == pytest.approx(0.6)
    np.testing.assert_allclose(np.array(shares[1:]) / np.array(shares[:-1]), 1.2)


def one_cluster(epsilon: float, table: Records) -> tuple[Auto, Floats]:
    task = toy_task(
        Auto,
        budget=Budget(epsilon, 1e-6),
        n_features=table.shape[1],
        nominal_n=len(table),
        n_clusters=1,
    )
    assert isinstance(task.route, MeanRoute)
    state = state_after(task, task.rounds, table)
    return task, state["centres"][0] / ONE


def test_one_cluster_has_no_bias_where_there_is_little_noise() -> None:
    """Clipping pulls the mean of a lopsided table; with budget to spare nothing is clipped."""
    rng = np.random.default_rng(1)
    lopsided = np.where(rng.uniform(size=(20_000, 1)) < 0.9, -0.95, 0.95) * np.ones(4)
    table = np.rint(lopsided * ONE).astype(np.int32)
    truth = table.mean(axis=0) / ONE
    errors = [np.linalg.norm(one_cluster(e, table)[1] - truth) for e in (0.01, 5.0)]
    assert errors[1] < 1e-3 < errors[0]


def test_the_forecast_of_one_mean_is_what_the_results_say() -> None:
    table = records(4000, 3)
    task, _ = one_cluster(0.5, table)
    grid = Grid((-1.0,) * 3, (1.0,) * 3)
    last = task.blocks(task.rounds - 1)[0]
    noise_std = isqrt(last.l2_squared) / (task.mu * sqrt(last.weight))
    forecast = task.forecast(noise_std, len(table), grid)
    results: dict[str, Any] = dict(task.results(state_after(task, task.rounds, table), grid))
    half = (results["high"] - results["low"]) / 2
    np.testing.assert_allclose(forecast["half_width"], half[0], rtol=0.25)


def test_centres_of_the_mean_route_stand_around_it() -> None:
    for k in (1, 2, 3, 6):
        offsets = spread_out(k, 4, 0.3, 5)
        assert offsets.shape == (k, 4)
        assert not offsets[0].any()
        if k % 2 == 1:
            np.testing.assert_allclose(offsets.sum(axis=0), 0, atol=1e-12)
        np.testing.assert_array_equal(offsets, spread_out(k, 4, 0.3, 5))


def test_the_projection_agrees_with_a_general_solver() -> None:
    noisy = np.array([4.0, -2.0, 1.0, 0.5])
    solved = optimize.minimize(
        lambda w: ((w - noisy) ** 2).sum(),
        np.full(4, 1.0),
        bounds=[(0, None)] * 4,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 4.0},
    )
    np.testing.assert_allclose(project_to_simplex(noisy, 4.0), solved.x, atol=1e-4)


# --- Records outside the box of the candidates ----------------------------------------------------


def finder_task(epsilon: float = 4.0, n: int = 6000) -> tuple[Auto, FinderRoute]:
    budget = Budget(epsilon, 1e-6)
    task = toy_task(Auto, budget=budget, n_features=5, nominal_n=n, n_clusters=6)
    route = path_of(task)
    assert isinstance(route, FinderRoute)
    return task, route


def first_round_of_candidates(route: FinderRoute) -> int:
    return len(route.directions.stages)


def test_a_record_outside_the_box_counts_in_the_bin_of_its_farthest_column() -> None:
    task, route = finder_task()
    m, d, t = route.n_candidates, route.n_features, first_round_of_candidates(route)
    candidates = np.random.default_rng(2).integers(-ONE // 8, ONE // 8, (m, d))
    start = on_grid(task, task.start())
    margin = ONE // 2
    fields = {"candidates": candidates, "detected": np.array([ONE]), "margin": np.array([margin])}
    state = {**start, **fields}
    table = records(500, d)
    sums, counts, _ = route.rows(t, state, table)
    low, high = candidates.min(axis=0) - margin, candidates.max(axis=0) + margin
    for record, cell, row in zip(table.tolist(), counts.cells[:, 0], sums.cells, strict=True):
        beyond = [max(a - x, x - b, 0) for x, a, b in zip(record, low, high, strict=True)]
        column = beyond.index(max(beyond))
        bin_ = min((record[column] + ONE) * 8 // (2 * ONE), 7)
        assert cell == (m + 8 * column + bin_ if max(beyond) else row // d)
    assert (counts.cells < m).any()
    assert (counts.cells >= m).any()


@pytest.mark.parametrize("margin", [-4 * ONE, 0, 1 << 50])
def test_a_box_of_any_state_takes_one_word_of_each_record(margin: int) -> None:
    """Also an empty one, with its low side above its high side."""
    task, route = finder_task()
    t, d = first_round_of_candidates(route), route.n_features
    places = np.random.default_rng(3).integers(-(1 << 40), 1 << 40, (route.n_candidates, d))
    for candidates in (places >> 24, np.zeros_like(places)):
        fields = {"candidates": candidates, "margin": np.array([margin])}
        state = {**on_grid(task, task.start()), **fields, "detected": np.array([ONE])}
        block = route.blocks(t)[1]
        offset = route.blocks(t)[0].size
        for record in records(50, d):
            words = task.contribute(t, state, record[None])[offset : offset + block.size]
            assert sorted(words.tolist())[-2:] == [0, ONE]


def rare_flag(n: int) -> Records:
    """One cloud, and a hundredth of the records at the other end of one column."""
    rng = np.random.default_rng(4)
    values = np.clip(rng.normal(0, 0.1, (n, 5)), -1, 1)
    values[:, 2] = -0.9
    values[: n // 100, 2] = 0.9
    return np.rint(values * ONE).astype(np.int32)


def test_a_small_group_far_from_all_others_gets_a_centre() -> None:
    table = rare_flag(6000)
    task, route = finder_task(n=len(table))
    rng = np.random.default_rng(5)
    state = on_grid(task, task.start())
    for t in range(route.rounds):
        words = task.contribute(t, state, table)
        state = on_grid(task, task.update(t, state, noised(task, t, words, rng)))
    assert (state["centres"][:, 2] > 0.7 * ONE).sum() == 1
    assert state["centres"][:, 2].min() < -0.8 * ONE


def test_cells_that_noise_explains_are_no_points() -> None:
    task, _ = finder_task()
    known = decode_state(FinderKnown, on_grid(task, task.start()), task.frac_bits)
    noise = np.random.default_rng(6).normal(0, sqrt(3), (2000, known.far.size))
    found = [len(_far_groups(replace(known, far=far), 1.0)[0]) for far in noise]
    assert 0.05 < np.mean(found) < 0.15
    far = np.zeros(known.far.size)
    far[8 * 3 + 1] = 30.0
    points, counts = _far_groups(replace(known, far=far), 1.0)
    assert points.tolist() == [[0, 0, 0, -0.625, 0]]
    assert counts.tolist() == [5.0]


# --- The grid route -------------------------------------------------------------------------------


def noised(task: Auto, t: int, words: Integers, rng: np.random.Generator) -> dict[str, NoisyBlock]:
    """What is released with whole noise of the planned size."""
    plain = without_noise(task, t, words)
    return {
        name: NoisyBlock(
            block.values
            + np.rint(rng.normal(0, block.noise_std, block.values.shape)).astype(np.int64),
            block.noise_std,
        )
        for name, block in plain.items()
    }


def on_grid(task: Auto, state: State) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}


def grid_task(k: int, d: int, n: int, epsilon: float = 2.0) -> tuple[Auto, GridRoute]:
    budget = Budget(epsilon, 1e-6)
    task = toy_task(Auto, budget=budget, n_features=d, nominal_n=n, n_clusters=k)
    assert isinstance(task.route, GridRoute)
    return task, task.route


def heavy_tailed(n: int, d: int) -> Records:
    values = 0.1 * np.random.default_rng(3).standard_t(5, (n, d)) + 0.1
    return np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_points_that_answer_as_the_records_do_are_left_as_they_are(d: int) -> None:
    """Wherever the centres are: what moves masses is the difference of the answers."""
    k, n = 3, 1 << 12
    task, route = grid_task(k, d, n)
    table = np.random.default_rng(d).integers(-ONE, ONE, (n, d)).astype(np.int32)
    masses = np.full(n, WHOLE // n)
    known = route._known(on_grid(task, task.start()))
    known = replace(
        known,
        surrogate=Surrogate(table.astype(np.int64), masses, float(n)),
        centres=np.linspace(-0.9, 0.1, k)[:, None] * np.ones(d),  # no means of their clusters
        radii=np.full(k, 0.3),
        error_std=np.full(k, 0.2),
        counts=np.full(k, n / k),
        counts_std=np.full(k, float(n)),
    )
    t = task.rounds - 1
    state = on_grid(task, encode_state(known))
    words = task.contribute(t, state, table)
    exact = without_noise(task, t, words)
    released = {name: replace(block, noise_std=1.0) for name, block in exact.items()}
    after, _ = route._move(route._known(state), released)
    np.testing.assert_allclose(after.surrogate.masses, masses, rtol=0.01)


def test_the_box_leaves_out_a_part_of_each_tail_and_no_more() -> None:
    table = heavy_tailed(20_000, 2)
    task, route = grid_task(3, 2, 20_000)
    assert route.has_box
    state = on_grid(task, task.start())
    tails = NoisyBlock(task.contribute(0, state, table).reshape(2, -1), 0.0)
    found = task.update(0, state, {"tails": tails})
    low, high = found["box_low"], found["box_high"]
    values, step = table / ONE, 2 / 32
    assert ((low > -1) & (high < 1)).all()
    assert ((values < low).mean(axis=0) <= 0.03).all()
    assert ((values > high).mean(axis=0) <= 0.03).all()
    assert ((values < low + step).mean(axis=0) > 0.03).all()  # another bin would be too much
    assert ((values > high - step).mean(axis=0) > 0.03).all()


def test_the_box_holds_a_small_group_that_is_far() -> None:
    task, route = grid_task(5, 2, 6_000)
    assert route.has_box
    rng = np.random.default_rng(7)
    values = rng.normal(0, 0.1, (6_000, 2))
    values[:90, 1] += 0.8  # half of the records that a tail may have
    table = np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)
    state = on_grid(task, task.start())
    tails = NoisyBlock(task.contribute(0, state, table).reshape(2, -1), 5.0 * ONE)
    found = task.update(0, state, {"tails": tails})
    assert found["box_high"][1] > 0.6
    assert found["box_high"][0] < 0.5


def test_bins_are_cut_up_to_a_group_that_costs_too_much() -> None:
    counts = np.array([0.0, 2.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 90.0, 90.0])
    # Boxes that start in bin b lose the sum of squared distances of the records before.
    assert _before_groups(counts, 0.0, 1e9) == 10
    costs = [sum(n * (b - i + 0.5) ** 2 for i, n in enumerate(counts[: b + 1])) for b in range(10)]
    for b in range(1, 10):
        assert _before_groups(counts, 0.0, costs[b] - 0.01) == b
    assert _before_groups(counts, 3.0, 0.0) == 8  # noise hides the first group


def test_the_box_loses_no_cluster_where_there_are_many() -> None:
    task, route = grid_task(36, 2, 9_000)
    assert route.has_box
    middles = np.linspace(-0.4, 0.4, 6)
    places = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2)
    # one cluster stands out at either end: 1/36 of the records, less than 3 %
    places[0], places[-1] = (-0.7, -0.7), (0.7, 0.7)
    records = np.rint(np.repeat(places, 250, axis=0) * ONE).astype(np.int32)
    state = on_grid(task, task.start())
    tails = NoisyBlock(task.contribute(0, state, records).reshape(2, -1), 0.0)
    found = task.update(0, state, {"tails": tails})
    assert (found["box_low"] < -0.7).all()
    assert (found["box_high"] > 0.7).all()


@given(
    d=st.integers(1, 3),
    peak=st.floats(0, 1e9),
    bin_=st.integers(0, 31),
    seed=st.integers(0, 2**32 - 1),
    noise=st.sampled_from([0.0, 1.0, 1e3, 1e12]),
)
@example(d=1, peak=2e4, bin_=0, seed=0, noise=0.0)
@example(d=2, peak=2e4, bin_=16, seed=0, noise=0.0)
@example(d=3, peak=2e4, bin_=31, seed=0, noise=0.0)
def test_a_box_is_never_empty_or_larger_than_the_whole(
    d: int, peak: float, bin_: int, seed: int, noise: float
) -> None:
    task, _ = grid_task(2, d, 20_000)
    rng = np.random.default_rng(seed)
    counts = noise * rng.normal(size=(d, 32))
    counts[:, bin_] += peak
    values = np.rint(counts * ONE).astype(np.int64)
    state = on_grid(task, task.start())
    found = task.update(0, state, {"tails": NoisyBlock(values, noise * ONE)})
    low, high = found["box_low"], found["box_high"]
    assert (low >= -1).all()
    assert (high <= 1).all()
    assert (high - low >= 2 * 2 / 32).all()


def test_records_are_counted_between_public_distances_by_hand() -> None:
    """Nine edges, of which each is the root of two times the one before; here of 0.8 / 8 on."""
    task = Auto(n_clusters=3, n_features=4, nominal_n=1000, mu=1.0)
    edges = 0.8 * 2.0 ** (np.arange(-6, 3) / 2)
    state = {**on_grid(task, task.start()), "mean": np.zeros(4, dtype=np.int64)}
    lengths = np.outer(edges, (0.99, 1.01)).ravel() / 2  # of four equal parts
    table = np.rint(np.repeat(lengths[:, None], 4, axis=1) * ONE).astype(np.int32)
    assert task.contribute(1, state, table).tolist() == [ONE, *[2 * ONE] * 8, ONE]
    # (0.1 * ONE)**2 = 42,949,672.96 lies between the squares of these two lengths.
    near = np.array([[6552, 144, 14, 6], [6553, 86, 18, 12]], dtype=np.int32)
    assert (near.astype(np.int64) ** 2).sum(axis=1).tolist() == [42_949_672, 42_949_673]
    assert task.contribute(1, state, near).tolist() == [ONE, ONE, *[0] * 8]


@pytest.mark.parametrize("d", [1, 2, 3])
def test_records_are_counted_in_the_cells_of_numpys_histogram(d: int) -> None:
    task, route = grid_task(4, d, 3000)
    table = records(3000, d)
    rng = np.random.default_rng(1)
    low = rng.integers(-ONE, -ONE // 2, d)
    high = low + rng.integers(ONE // 2, ONE, d)
    state = {**on_grid(task, task.start()), "box_low": low, "box_high": high}
    half, bins = route.histogram_of(route._known(state))
    np.testing.assert_allclose(half, (high - low) / 2 / ONE)
    edges = [  # each side of a cell belongs to the cell above
        np.ceil(a + np.arange(m + 1) * (b - a) / m) for a, b, m in zip(low, high, bins, strict=True)
    ]
    inside = np.clip(table, low, high - 1)
    expected, _ = np.histogramdd(inside, edges)
    found = task.contribute(int(route.has_box), state, table)
    assert len(found) == route.n_cells
    np.testing.assert_array_equal(found[: bins.prod()].reshape(bins), ONE * expected)
    assert not found[bins.prod() :].any()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_frame_holds_the_cells_of_every_box(d: int) -> None:
    rng = np.random.default_rng(d)
    for k, n, epsilon in product((2, 7, 100), (100, 5000, 1_000_000), (0.1, 2.0)):
        task, route = grid_task(k, d, n, epsilon)
        same, again = grid_task(k, d, n, epsilon)
        layout = [same.blocks(t) for t in range(same.rounds)]
        assert [task.blocks(t) for t in range(task.rounds)] == layout
        assert again.n_cells == route.n_cells <= min(60 * k, 4096)
        assert route.n_cells >= min(5 * k, 512)
        assert sum(block.weight for blocks in layout for block in blocks) == pytest.approx(1)
        start = on_grid(task, task.start())
        for _ in range(3):
            low = rng.integers(-ONE, 0, d)
            high = low + rng.integers(1, ONE, d)
            known = route._known({**start, "box_low": low, "box_high": high})
            assert 1 <= route.histogram_of(known)[1].prod() <= route.n_cells
    assert route.has_box
    assert not grid_task(2, d, 50, 0.1)[1].has_box


def regular(name: str) -> Floats:
    """Middles of equal balls at the corners of a regular body."""
    if name == "hexagon":
        angles = np.arange(6) * np.pi / 3
        return 0.6 * np.column_stack([np.cos(angles), np.sin(angles)])
    if name == "cube":
        return 0.5 * np.array(list(product((-1, 1), repeat=3)))
    golden = (1 + sqrt(5)) / 2
    corners = [(0.0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    return 0.35 * np.array([np.roll(corner, shift) for corner in corners for shift in range(3)])


@pytest.mark.parametrize("body", ["hexagon", "cube", "icosahedron"])
def test_equal_balls_at_regular_places_are_all_found(body: str) -> None:
    middles = regular(body)
    k, d = middles.shape
    task, _ = grid_task(k, d, 80 * k)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = np.repeat(middles, 80, axis=0) + rng.normal(0, 0.06, (80 * k, d))
        table = np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)
        state = on_grid(task, task.start())
        for t in range(task.rounds):
            words = task.contribute(t, state, table)
            state = on_grid(task, task.update(t, state, noised(task, t, words, rng)))
        distances = np.linalg.norm(state["centres"][:, None] / ONE - middles, axis=2)
        assert sorted(distances.argmin(axis=1).tolist()) == list(range(k)), seed
        assert distances.min(axis=1).max() < 0.15, seed


@pytest.mark.parametrize(("noise", "counted"), [(99.9, True), (100.0, False)])
def test_distances_are_counted_where_noise_is_below_an_eighth_of_the_records(
    noise: float, counted: bool
) -> None:
    route = SimpleNamespace(nominal_n=800, noise_std=lambda _: noise)
    shares = PcaRoute._shares.func(route)  # type: ignore[attr-defined]
    assert ("radius" in shares) is counted
    assert sum(shares.values()) == pytest.approx(1)


def test_no_side_of_a_box_has_more_than_a_million_bins() -> None:
    assert cubic_bins(np.array([8.0, 1e-9]), 1e12).tolist() == [1_000_000, 1]
