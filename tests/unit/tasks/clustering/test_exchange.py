"""Merges and splits of noisy clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.arrays import Floats
from cloister.tasks.clustering.auto_finder import Noisy, exchanged

SPREAD = 0.05


def noisy_of(points: Floats, centres: Floats) -> Noisy:
    """Return the exact clusters of points, without noise."""
    labels = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    k, d = centres.shape
    counts = np.maximum(np.bincount(labels, minlength=k), 0.5)
    away = points - centres[labels]
    moments = np.zeros((k, d, d))
    np.add.at(moments, labels, away[:, :, None] * away[:, None, :])
    return Noisy(
        centres=centres,
        counts=counts,
        squares=np.einsum("kii->k", moments) / counts,
        axes=np.eye(d),
        moments=moments,
        moment_noise=np.zeros(k),
        centre_noise=np.zeros(k),
    )


def cost(points: Floats, centres: Floats) -> float:
    return float(((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum())


def balls(middles: Floats, n: int = 200, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return np.repeat(middles, n, axis=0) + rng.normal(0, SPREAD, (n * len(middles), 2))


MIDDLES = np.array([[-0.6, 0.0], [0.5, 0.4], [0.5, -0.4]])


def test_a_centre_that_two_groups_share_takes_one_from_a_group_with_two() -> None:
    points = balls(MIDDLES)
    # Two centres halve the first group; the third lies between the others.
    wrong = np.array([[-0.6, 0.03], [-0.6, -0.03], [0.5, 0.0]])
    found, squares = exchanged(noisy_of(points, wrong))
    order = np.lexsort((-found[:, 1], found[:, 0].round(1)))
    np.testing.assert_allclose(found[order], MIDDLES, atol=0.15)
    assert cost(points, found) < 0.3 * cost(points, wrong)
    assert squares.max() < 0.5 * noisy_of(points, wrong).squares.max()


def test_right_centres_stay() -> None:
    noisy = noisy_of(balls(MIDDLES), MIDDLES)
    found, squares = exchanged(noisy)
    np.testing.assert_array_equal(found, MIDDLES)
    np.testing.assert_array_equal(squares, noisy.squares)


def test_a_variance_below_the_edge_of_the_noise_is_no_reason_to_split() -> None:
    wrong = np.array([[-0.6, 0.03], [-0.6, -0.03], [0.5, 0.0]])
    noisy = noisy_of(balls(MIDDLES), wrong)
    largest = np.linalg.eigvalsh(noisy.moments)[:, -1].max()
    for part, moves in ((0.51, False), (0.4, True)):  # the edge is 2 deviations for two axes
        loud = replace(noisy, moment_noise=np.full(3, part * largest))
        assert (exchanged(loud)[0] != wrong).any() is np.bool_(moves)


def test_noise_of_centres_is_no_distance() -> None:
    """The distance of two centres in a group may be noise alone, which costs nothing to merge."""
    points = balls(MIDDLES)
    wrong = np.array([[-0.6, 0.12], [-0.6, -0.12], [0.5, 0.2]])  # each half is too far out
    noisy = replace(noisy_of(points, wrong), moments=noisy_of(points, wrong).moments * 0.03)
    quiet, _ = exchanged(noisy)
    loud, _ = exchanged(replace(noisy, centre_noise=np.full(3, 0.1)))
    np.testing.assert_array_equal(quiet, wrong)
    assert (loud != wrong).any()


@pytest.mark.parametrize("k", [1, 2])
def test_too_few_clusters_have_nothing_to_exchange(k: int) -> None:
    points = balls(MIDDLES)
    noisy = noisy_of(points, MIDDLES[:k])
    np.testing.assert_array_equal(exchanged(noisy)[0], MIDDLES[:k])


@given(k=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_any_numbers_give_centres_in_the_box_and_squares_above_zero(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    moments = rng.normal(size=(k, 3, 3))
    noisy = Noisy(
        centres=rng.uniform(-1, 1, (k, 4)),
        counts=rng.exponential(size=k) + 1e-3,
        squares=rng.exponential(size=k) + 1e-6,
        axes=np.linalg.qr(rng.normal(size=(4, 3)))[0],
        moments=moments + moments.transpose(0, 2, 1),
        moment_noise=rng.exponential(0.1, k),
        centre_noise=rng.exponential(0.1, k),
    )
    before = noisy.centres.copy()
    found, squares = exchanged(noisy)
    assert np.abs(found).max() <= 1
    assert (squares > 0).all()
    np.testing.assert_array_equal(noisy.centres, before)  # the input is not changed
    # Every move needs three clusters: two that merge, and one that splits.
    assert (found != before).any(axis=1).sum() <= 3 * (k // 3)
