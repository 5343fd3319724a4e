"""k-means of weighted points in whole numbers, against scikit-learn and Python's integers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cloister.core.arrays import Integers
from cloister.tasks.clustering.weighted import (
    ONE,
    WHOLE,
    cluster,
    cost,
    lloyd,
    on_lattice,
    parts_of,
    repaired,
)


def scattered(n: int, d: int, seed: int) -> tuple[Integers, Integers]:
    """Points everywhere, three in ten without a mass."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=n) * (rng.uniform(size=n) < 0.7)
    return on_lattice(rng.uniform(-1, 1, (n, d))), parts_of(weights)


def plain_cost(points: Integers, masses: Integers, centres: Integers) -> int:
    """Return the cost by Python's integers, which have no largest."""
    return sum(
        mass * min(sum((a - b) ** 2 for a, b in zip(p, c, strict=True)) for c in centres.tolist())
        for p, mass in zip(points.tolist(), masses.tolist(), strict=True)
    )


@pytest.mark.parametrize(("d", "k", "restarts"), [(1, 4, 4), (2, 6, 4), (3, 9, 16)])
def test_it_costs_what_the_best_of_many_runs_of_scikit_learn_does(
    d: int, k: int, restarts: int
) -> None:
    from sklearn.cluster import KMeans

    points, masses = scattered(400, d, seed=d)
    centres = cluster(points, masses, k, public_seed=1, restarts=restarts)
    best = KMeans(k, n_init=20, random_state=0).fit(points / ONE, sample_weight=masses)
    assert cost(points, masses, centres) <= 1.02 * best.inertia_ * ONE**2
    again = cluster(points, masses, k, public_seed=1, restarts=restarts)
    np.testing.assert_array_equal(centres, again)


def test_few_points_are_repeated_and_those_without_a_mass_are_none() -> None:
    points = on_lattice(np.eye(3))
    centres = cluster(points, np.array([1, 0, 2]), 4, public_seed=0, restarts=2)
    np.testing.assert_array_equal(centres, points[[0, 2, 0, 2]])


def test_masses_keep_their_ratio_and_make_up_the_whole() -> None:
    weights = np.random.default_rng(0).exponential(size=1000)
    masses = parts_of(weights)
    np.testing.assert_allclose(masses / WHOLE, weights / weights.sum(), atol=0.5 / WHOLE)
    assert abs(int(masses.sum()) - WHOLE) <= 500


@pytest.mark.parametrize("d", [1, 2, 7])
def test_a_cost_is_the_sum_that_python_makes(d: int) -> None:
    points, masses = scattered(200, d, seed=9)
    centres = points[:5]
    assert cost(points, masses, centres) == plain_cost(points, masses, centres) > 2**53


def test_the_largest_values_do_not_overflow() -> None:
    """Corners of seven columns: the whole mass lies in one, and a centre in the opposite."""
    corners = ONE * np.array(list(product((-1, 1), repeat=7)))
    whole = np.zeros(len(corners), dtype=np.int64)
    whole[-1] = WHOLE
    assert cost(corners, whole, corners[:1]) == 7 * (2 * ONE) ** 2 * WHOLE
    even = np.full(len(corners), WHOLE // len(corners))
    for centres in (corners[:1], corners[:3], repaired(corners, even, corners[:2])):
        assert cost(corners, even, centres) == plain_cost(corners, even, centres)
    masses = np.zeros_like(even)
    masses[[0, -1, 5]] = WHOLE // 2, WHOLE // 2 - 1, 1
    best = cluster(corners, masses, 2, public_seed=0, restarts=4)
    assert cost(corners, masses, best) <= 2 * (2 * ONE) ** 2  # the lone one is near the first


def balls(middles: Integers, std: float = ONE / 50) -> Integers:
    rng = np.random.default_rng(4)
    return np.concatenate([m + np.rint(rng.normal(0, std, (60, 2))) for m in middles]).astype(
        np.int64
    )


def test_two_centres_in_one_ball_and_one_for_two_are_mended() -> None:
    middles = ONE * np.array([[-3, -3], [3, 3], [3, -3], [-3, 3]]) // 4
    points = balls(middles)
    masses = np.ones(len(points), dtype=np.int64)
    # The first ball has two centres; the third and the fourth, far from it, share one
    stuck = lloyd(points, masses, np.array([points[0], points[1], middles[1], middles[2:].mean(0)]))
    assert cost(points, masses, stuck) > 10 * cost(points, masses, middles)
    mended = repaired(points, masses, stuck.astype(np.int64))
    nearest = np.abs(mended[:, None] - middles).max(axis=2).argmin(axis=0)
    np.testing.assert_allclose(mended[nearest], middles, atol=ONE / 100)


def test_nothing_is_moved_where_nothing_is_missed() -> None:
    middles = ONE * np.array([[-3, -3], [3, 3], [3, -3], [-3, 3]]) // 4
    points = balls(middles)
    masses = np.ones(len(points), dtype=np.int64)
    found = lloyd(points, masses, middles)
    np.testing.assert_array_equal(repaired(points, masses, found), found)
    np.testing.assert_array_equal(repaired(points, masses, found[:1]), found[:1])


def test_centres_are_rounded_means_and_one_without_a_mass_stays() -> None:
    points = on_lattice(np.array([[-0.5, 0.0], [-0.25, 0.1], [0.5, 0.5], [0.9, -0.9]]))
    masses = np.array([1, 3, 2, 0])
    centres = on_lattice(np.array([[-0.4, 0.0], [0.4, 0.4], [0.9, -0.8], [0.0, -1.0]]))
    found = lloyd(points, masses, centres)
    mean = np.rint((points[0] + 3 * points[1]) / 4)
    np.testing.assert_array_equal(found, [mean, points[2], centres[2], centres[3]])


def test_one_start_is_enough_for_many_balls() -> None:
    """Of 49, four starts of these five miss some unless they are repaired."""
    places = np.linspace(-0.9, 0.9, 7)
    middles = on_lattice(np.array(list(product(places, repeat=2))))
    points = balls(middles, ONE / 25)
    masses = np.ones(len(points), dtype=np.int64)
    least = cost(points, masses, lloyd(points, masses, middles))
    for seed in range(5):
        found = cluster(points, masses, 49, public_seed=seed, restarts=1)
        assert cost(points, masses, found) <= 1.001 * least


def test_a_repair_never_makes_it_worse() -> None:
    for seed in range(10):
        points, masses = scattered(200, 2, seed)
        found = lloyd(points, masses, points[:8])
        assert cost(points, masses, repaired(points, masses, found)) <= cost(points, masses, found)
