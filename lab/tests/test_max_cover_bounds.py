"""Bounds of max cover hold where the optimum is known; the lower bound is reached."""

from __future__ import annotations

from itertools import combinations
from math import exp, log

import numpy as np
import pytest

from cloister.app.least_error import least_error, sites_error
from cloister.core.errors import PlanError
from cloister.core.randomness import SecretStream
from cloister.hazmat.ring import Integers
from cloister.privacy.budget import Budget
from cloister.tasks.clustering.synopsis import cluster_weighted, project_to_simplex
from cloister_lab.curator.bounds import (
    ball_bound,
    count_loss,
    greedy_share,
    group_bound,
    main,
    pick_loss,
)
from cloister_lab.curator.cover import BallGrid, Cover, count_weights, pick_centres
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.tasks.max_cover import published_order
from cloister_lab.tasks.projection import ONE, nearest_point

RNG = np.random.default_rng(5)
SURE = 1e-9  # probability of a false alarm in each test of a draw
BUDGET = Budget(4.0, 1e-6)


def method(k: int, d: int, n: int, budget: Budget = BUDGET) -> MaxCover:
    return MaxCover.design(n_clusters=k, n_features=d, nominal_n=n, budget=budget)


def error(points: np.ndarray, centres: np.ndarray) -> float:
    return float(((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum())


def table(k: int, d: int, n: int, spread: float) -> Integers:
    """Return points of k groups, the i-th, (k + i)-th, ... in the i-th."""
    middles = RNG.uniform(-0.8, 0.8, (k, d))
    points = middles[np.arange(n) % k] + RNG.normal(0, spread, (n, d))
    return np.rint(points.clip(-1, 1) * ONE).astype(np.int64)


# --- One pick, and greedy picks -------------------------------------------------------------------


def test_the_loss_of_a_pick_is_the_law_of_its_weights() -> None:
    """One ball holds 900 records and 4,999 hold fewer: the chance of these is at most beta."""
    pick_epsilon, beta, balls = 0.1, 1e-3, 5000
    loss = pick_loss(balls, pick_epsilon, beta)
    histogram = np.zeros(901, dtype=np.int64)
    histogram[900] = 1
    histogram[int(900 - loss)] = balls - 1
    weights = count_weights(histogram, pick_epsilon)
    chance = 1 - weights[900] / sum(weights)
    assert 0.9 * beta < chance <= beta


@pytest.mark.parametrize("k", [1, 2, 3])
def test_greedy_picks_miss_no_more_than_their_share_of_the_best_cover(k: int) -> None:
    grid = BallGrid.covering(2, 0.25)
    points = RNG.integers(-ONE, ONE, (60, 2))
    cover = Cover(grid, points)
    centres = [grid.centre(number) for number in range(0, grid.size, 7)]
    held = [set(np.flatnonzero(grid.holds(points, centre)).tolist()) for centre in centres]
    best = max(len(set().union(*some)) for some in combinations(held, k))
    for _ in range(k):
        fullest = len(cover.histogram()) - 1
        cover.remove(grid.centre(cover.ball(fullest, 0)))
    covered = len(points) - len(cover.points)
    assert covered >= (1 - greedy_share(k, k)) * best


# --- Balls and groups -----------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "d", "spread"), [(1, 1, 0.0), (3, 2, 0.0), (3, 2, 0.05)])
def test_drawn_balls_are_within_their_bound(k: int, d: int, spread: float) -> None:
    n = 20_000
    points = table(k, d, n, spread)
    ours = method(k, d, n)
    bound = ball_bound(ours, n, SURE)
    # Any centres are at least the optimum, so this is no weaker than the statement of the proof.
    optimum = error(points / ONE, np.array([points[i::k].mean(axis=0) for i in range(k)]) / ONE)
    picks = np.array(
        list(pick_centres(points, ours.grids, k, ours.pick_epsilon, SecretStream())),
        dtype=np.float64,
    )
    assert error(points / ONE, picks / ONE) <= bound.factor * optimum + bound.additive
    assert bound.additive < 4 * d * n / 5  # the bound says something
    assert optimum == 0 or spread > 0


def test_weights_after_the_projection_are_within_their_bound() -> None:
    ours = method(4, 2, 20_000)
    m = ours.n_clusters * ours.n_radii
    true = RNG.multinomial(20_000, RNG.dirichlet(np.full(m, 0.2))).astype(np.float64)
    noisy = true + RNG.laplace(0, ours.count_multiplier, m)  # seeded: simulated noise
    found = project_to_simplex(noisy, max(1.0, noisy.sum()))
    assert 0 < np.abs(found - true).sum() <= count_loss(ours, SURE)


def test_groups_of_balls_are_within_their_bound() -> None:
    k, d, n = 3, 2, 20_000
    points = table(k, d, n, 0.02)
    ours = method(k, d, n)
    picks: Integers = np.array(
        list(pick_centres(points, ours.grids, k, ours.pick_epsilon, SecretStream()))
    )
    balls = picks / ONE
    counts = np.bincount(nearest_point(points, balls), minlength=len(balls)).astype(float)
    centres = cluster_weighted(balls, counts, k, public_seed=0)
    optimum = error(points / ONE, np.array([points[i::k].mean(axis=0) for i in range(k)]) / ONE)
    bound = group_bound(ours, n, SURE, solver=8 * (log(k) + 2))
    assert error(points / ONE, centres) <= bound.factor * optimum + bound.additive


def test_bounds_are_stronger_with_a_larger_budget_and_weaker_with_more_certainty() -> None:
    weak, strong = (ball_bound(method(3, 2, 10_000, Budget(e, 1e-6)), 10_000) for e in (0.5, 8.0))
    assert strong.additive < weak.additive
    assert strong.factor == weak.factor
    surer = ball_bound(method(3, 2, 10_000), 10_000, 1e-9)
    assert surer.additive > ball_bound(method(3, 2, 10_000), 10_000).additive
    assert group_bound(method(3, 2, 10_000), 10_000).additive > surer.additive


def test_a_projection_has_no_bound() -> None:
    with pytest.raises(PlanError, match="at most five columns"):
        ball_bound(method(3, 30, 10_000), 10_000)


# --- What no method can do ------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "d", "epsilon"), [(2, 1, 0.5), (3, 1, 0.1), (4, 2, 1.0)])
def test_one_cluster_has_the_error_of_randomised_response(
    side: int, d: int, epsilon: float
) -> None:
    """No smaller bound can hold: this private answer to 'which site' is wrong as often."""
    records, sites = 3, side**d
    wrong = (sites - 1) / (sites - 1 + exp(2 * records * epsilon))
    least = sites_error(1, d, side, records, Budget(epsilon, 0.0))
    assert least == pytest.approx(records * wrong / (side - 1) ** 2)


def test_sites_must_be_more_than_clusters() -> None:
    with pytest.raises(PlanError, match="below the number of sites, got 8 of 8"):
        sites_error(8, 3, 2, 1, Budget(1.0, 1e-9))


def test_the_best_sites_grow_with_columns_and_clusters_and_fall_with_epsilon() -> None:
    def of(k: int, d: int, epsilon: float) -> float:
        return least_error(k, d, Budget(epsilon, 1e-9), 10_000)

    assert 0 < of(4, 2, 1.0) < of(4, 8, 1.0) < of(8, 8, 1.0) < of(8, 8, 0.1)
    # With many columns about k d log(2) / 2 epsilon, times at least a half.
    assert of(4, 40, 0.1) > 4 * 40 * log(2) / (2 * 0.1) / 2 * 0.5
    assert of(8, 4, 1.0) >= sites_error(8, 4, 2, 1, Budget(1.0, 1e-9))
    assert least_error(8, 1, Budget(1.0, 1e-9), 7) == 0  # fewer records than clusters


def test_delta_of_a_group_can_make_a_bound_say_nothing() -> None:
    assert sites_error(1, 1, 2, 1000, Budget(1.0, 1e-6)) == 0
    assert sites_error(1, 1, 2, 3, Budget(1.0, 1e-6)) < sites_error(1, 1, 2, 3, Budget(1.0, 0.0))


def test_the_published_order_is_its_formula() -> None:
    budget = Budget(2.0, exp(-4.0))
    # The squared diameter of the box is 4 d; log(n)^2 log(1 / delta) = 36 and sqrt(d 4) = 6.
    assert published_order(5, 9, round(exp(3)), budget) == pytest.approx(
        4 * 9 * 5 * (log(20) ** 2 * 4 + 6) / 2
    )


def test_the_calculator_prints_all_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    main(["-k", "3", "-d", "2", "-n", "10000", "--epsilon", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [
        "largest possible error",
        "every method, on some table",
        "published order",
        "max cover, balls",
        "max cover, groups",
    ]
    assert lines[0].endswith("8e+04")
