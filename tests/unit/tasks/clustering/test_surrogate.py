"""The surrogate of the records against plain loops and what it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.tasks.clustering.surrogate import Partition, Surrogate, _solved
from cloister.tasks.clustering.weighted import ONE, on_lattice, parts_of

RECORDS = 5000.0


def partition(d: int, seed: int = 0) -> Partition:
    """Four unlike normal clusters, and centres beside their middles."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-0.6, 0.6, (4, d))
    stds = rng.uniform(0.05, 0.15, (4, d))
    labels = rng.integers(4, size=3000)
    points = on_lattice(np.clip(rng.normal(middles[labels], stds[labels]), -1, 1))
    surrogate = Surrogate(points, parts_of(rng.exponential(size=3000)), RECORDS)
    return Partition(surrogate, middles + rng.uniform(-0.03, 0.03, (4, d)), 1.0)


def shares(surrogate: Surrogate, found: Partition) -> Floats:
    masses = surrogate.masses * (surrogate.records / surrogate.masses.sum())
    return np.array([masses[found.labels == j].sum() for j in range(4)])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_corrected_cluster_has_the_mean_and_the_count_it_was_asked_for(d: int) -> None:
    found = partition(d)
    rng = np.random.default_rng(1)
    stds = np.sqrt(found.within / d)[:, None]
    moves = 0.05 * stds * rng.choice([-1, 1], (4, d))
    counts = found.counts * np.array([1.0, 1.3, 0.6, 0.9])
    fresh = found.corrected(moves, counts)
    np.testing.assert_array_equal(fresh.points, found.surrogate.points)
    moved = found.means(fresh) - found.means(found.surrogate)
    np.testing.assert_allclose(moved, moves, rtol=0.1, atol=1 / ONE)
    np.testing.assert_allclose(shares(fresh, found), counts, rtol=0.01)
    assert fresh.records == pytest.approx(counts.sum(), rel=0.01)


def test_a_surrogate_of_which_nothing_is_asked_stays_as_it_is() -> None:
    found = partition(2)
    same = found.corrected(np.zeros((4, 2)), found.counts)
    np.testing.assert_allclose(same.masses, found.surrogate.masses, atol=1)
    assert same.records == pytest.approx(RECORDS)


def test_an_answer_is_that_of_records_which_lie_as_the_points_do() -> None:
    found = partition(3)
    radii = np.array([0.05, 0.12, 0.2, 5.0])
    sums, follows = found.answer(radii)
    expected, part, counts = np.zeros((4, 3)), np.zeros(4), np.zeros(4)
    total = found.surrogate.masses.sum()
    lattice = np.rint(found.centres * ONE)
    for point, mass in zip(found.surrogate.points, found.surrogate.masses, strict=True):
        j = int(((point - lattice) ** 2).sum(axis=1).argmin())
        difference = (point - lattice[j]) / ONE
        length = float(np.linalg.norm(difference))
        weight = mass * RECORDS / total
        expected[j] += weight * difference / max(radii[j], length)
        part[j] += weight * (1.0 if length <= radii[j] else 2 / 3 * radii[j] / length)
        counts[j] += weight
    np.testing.assert_allclose(sums, expected, atol=1e-9 * RECORDS)
    np.testing.assert_allclose(follows, np.clip(part / counts, 0.2, 1), rtol=1e-9)
    np.testing.assert_allclose(found.counts, counts, rtol=1e-9)
    assert follows[3] == 1
    assert follows[0] < follows[1]


def test_an_answer_follows_a_move_as_far_as_it_says() -> None:
    """Against the difference quotient: each centre is moved a little along each column."""
    found = partition(2)
    radii, step = np.full(4, 0.15), 1 / 256
    follows = found.answer(radii)[1]
    sums = [found.answer(radii)[0]]
    quotients = np.zeros(4)
    for axis in range(2):
        shift = step * np.eye(2)[axis]
        fixed = Partition(found.surrogate, found.centres - shift, 1.0)
        fixed.__dict__["labels"] = found.labels  # who is near whom stays, as in the derivative
        moved = (fixed.answer(radii)[0] - sums[0])[:, axis] * radii / step
        quotients += moved / found.counts / 2
    np.testing.assert_allclose(follows, quotients, atol=0.05)


def test_nothing_is_clipped_where_radii_are_huge() -> None:
    found = partition(2)
    sums, follows = found.answer(np.full(4, 1e3))
    assert (follows == 1).all()
    means = found.centres + sums * 1e3 / found.counts[:, None]
    np.testing.assert_allclose(means, found.means(found.surrogate), atol=2 / ONE)


def test_clusters_are_as_wide_as_they_are() -> None:
    found = partition(2)
    masses = found.surrogate.masses.astype(np.float64)
    squared = ((found.surrogate.points / ONE - found.centres[found.labels]) ** 2).sum(axis=1)
    expected = [
        np.average(squared[found.labels == j], weights=masses[found.labels == j]) for j in range(4)
    ]
    np.testing.assert_allclose(found.within, expected, rtol=1e-3)
    assert found.pooled == pytest.approx(np.average(squared, weights=masses), rel=1e-3)


def test_no_cluster_is_taken_for_smaller_than_the_least() -> None:
    empty = Surrogate(on_lattice(np.full((3, 2), 0.5)), np.array([1, 1, 1]), 30.0)
    found = Partition(empty, np.array([[0.5, 0.5], [-0.5, -0.5]]), 4.0)
    np.testing.assert_allclose(found.counts, [30.0, 4.0])
    np.testing.assert_array_equal(found.means(empty), found.centres)


def test_improved_centres_are_the_means_of_what_is_near_them() -> None:
    found = partition(2, seed=3)
    centres = found.surrogate.improved(found.centres)
    again = Partition(found.surrogate, centres, 1.0)
    np.testing.assert_allclose(again.means(found.surrogate), centres, atol=1 / ONE)
    assert again.pooled < found.pooled


def test_systems_are_solved_as_by_numpy() -> None:
    rng = np.random.default_rng(2)
    for d in (1, 2, 3):
        roots = rng.normal(size=(6, d, d))
        matrices = roots @ roots.transpose(0, 2, 1) + 0.01 * np.eye(d)
        values = rng.normal(size=(6, d))
        expected = np.linalg.solve(matrices, values[..., None])[..., 0]
        np.testing.assert_allclose(_solved(matrices, values), expected, rtol=1e-9)
