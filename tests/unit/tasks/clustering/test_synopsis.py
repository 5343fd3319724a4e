"""Clustering of public points: the fast loop against the plain one, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.arrays import Floats
from cloister.tasks.clustering.synopsis import _STEPS, _lloyd, cell_centres, squared_distances


def plain_lloyd(points: Floats, weights: Floats, centres: Floats) -> tuple[Floats, Floats]:
    """All distances of all starts in every step; sums in the order of the points."""
    restarts, k, d = centres.shape
    costs = np.full(restarts, np.inf)
    for _ in range(_STEPS):
        scores = (centres**2).sum(axis=2)[:, :, None] - 2 * centres @ points.T
        labels = scores.argmin(axis=1)
        nearest = np.take_along_axis(scores, labels[:, None, :], axis=1)[:, 0]
        fresh = (nearest + (points**2).sum(axis=1)) @ weights
        after = centres.copy()
        for r in range(restarts):
            counts = np.bincount(labels[r], weights, minlength=k)
            for column in range(d):
                sums = np.bincount(labels[r], weights * points[:, column], minlength=k)
                filled = counts > 0
                after[r, filled, column] = sums[filled] / counts[filled]
        centres = after
        settled = (fresh >= costs * (1 - 1e-5)).all()
        costs = np.minimum(costs, fresh)
        if settled:
            break
    return centres, costs


def check(points: Floats, weights: Floats, starts: Floats) -> None:
    found, expected = _lloyd(points, weights, starts), plain_lloyd(points, weights, starts)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


@given(
    n=st.sampled_from([1, 2, 40, 300]),
    d=st.integers(1, 9),
    k=st.integers(1, 12),
    restarts=st.integers(1, 6),
    coarse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_starts_that_rest_change_no_bit(
    n: int, d: int, k: int, restarts: int, coarse: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, d))
    if coarse:  # ties, twins and zeros of both signs
        points = np.round(points)
    weights = rng.choice([1e-9, 0.5, 1.0, 7.0], n)
    starts = points[rng.integers(0, n, (restarts, k))]  # the same point twice: an empty cluster
    check(points, weights, starts)


@pytest.mark.parametrize("k", [2, 30, 255, 256, 300])
def test_a_grid_full_of_ties_gives_the_same_bits(k: int) -> None:
    points = cell_centres(np.ones(2), np.array([24, 24]))
    rng = np.random.default_rng(k)
    weights = rng.exponential(size=len(points))
    check(points, weights, points[rng.integers(0, len(points), (4, k))])
    check(points, np.ones(len(points)), points[rng.integers(0, len(points), (4, k))])


def test_squared_distances_are_those_of_one_expression() -> None:
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(500, 3)), rng.normal(size=(40, 3))
    lengths = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
    expected = np.maximum(lengths - 2 * points @ centres.T, 0.0)
    assert squared_distances(points, centres).tobytes() == expected.tobytes()
