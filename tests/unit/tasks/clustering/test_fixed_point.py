"""Intervals and verdicts from a surrogate, on public clouds whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.tasks.clustering.fixed_point import (
    DETERMINED,
    MOST_COORDINATES,
    NOT_DETERMINED,
    NUMBERS_ONLY,
    Judgement,
    Response,
    _Cloud,
    judge,
)
from cloister.tasks.clustering.surrogate import Surrogate
from cloister.tasks.clustering.weighted import ONE, on_lattice

Floats = NDArray[np.float64]
SIZE = 30_000


def surrogate(points: Floats) -> Surrogate:
    """Return the histogram of public points in square cells, as a route leaves it."""
    cells, counts = np.unique(np.floor(points * 40), axis=0, return_counts=True)
    return Surrogate(on_lattice((cells + 0.5) / 40), counts.astype(np.int64), float(len(points)))


def blobs(centres: list[list[float]], spread: float, seed: int = 0) -> Floats:
    generator = np.random.default_rng(seed)
    places = np.array(centres)[generator.integers(len(centres), size=SIZE)]
    return np.clip(places + generator.normal(size=places.shape) * spread, -0.99, 0.99)


def judged(points: Floats, centres: Floats, std: float = 0.001, **more: float) -> Judgement:
    k = len(centres)
    return judge(
        surrogate(points),
        centres,
        path_std=np.full(k, std),
        last_std=np.full(centres.shape, std),
        moved=np.zeros(centres.shape),
        unseen_std=np.full(centres.shape, more.get("unseen", 0.0)),
        size_errors=np.full(k, 0.02),
        clear=np.full(k, more.get("clear", True)),
        public_seed=1,
    )


def cloud_of(points: Floats, centres: Floats) -> _Cloud:
    return _Cloud(on_lattice(points), on_lattice(centres))


def response_of(cloud: _Cloud) -> Response:
    return Response.of(cloud.derivative(), cloud.counts, cloud.fixed.shape)


FAR = [[-0.6, -0.6], [0.6, -0.5], [0.0, 0.6]]
ROUND = [[0.0, 0.0]]


def means(points: Floats, centres: Floats) -> Floats:
    # A product of matrices: no table of all differences of points and centres.
    labels = ((centres**2).sum(axis=1) - 2 * (points @ centres.T)).argmin(axis=1)
    return np.stack([points[labels == j].mean(axis=0) for j in range(len(centres))])


@pytest.mark.parametrize("columns", [2, 3])
def test_the_derivative_is_that_of_finite_differences(columns: int) -> None:
    generator = np.random.default_rng(columns)
    places = np.array([[-0.4, -0.3, 0.2], [0.4, -0.3, 0.0], [0.0, 0.4, -0.2]])[:, :columns]
    points = places[generator.integers(3, size=400_000)]
    points = np.clip(points + generator.normal(size=points.shape) * 0.3, -1, 1)
    centres = places
    for _ in range(30):
        centres = means(points, centres)
    size = centres.size
    expected = np.zeros((size, size))
    for i in range(size):
        step = np.zeros(size)
        step[i] = 0.02
        move = step.reshape(centres.shape)
        expected[:, i] = (
            means(points, centres + move) - means(points, centres - move)
        ).ravel() / 0.04
    found = cloud_of(points, centres).derivative()
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_two_halves_of_a_round_cloud_turn_freely() -> None:
    points = blobs(ROUND, 0.3)
    halves = means(points, np.array([[-0.2, 0.0], [0.2, 0.0]]))
    response = response_of(cloud_of(points, halves))
    assert response.eigenvalues.max() > 0.9
    # The error of the turn is that of its own mean many times over; the other one stays small.
    amplified = response.amplified(np.full((2, 2), 1.0), 0.98)
    assert (amplified[:, 1] > 3 * amplified[:, 0]).all()
    assert response.part(0.9).sum() == pytest.approx(1.0)


def test_far_clusters_do_not_move_each_other() -> None:
    response = response_of(cloud_of(blobs(FAR, 0.05), np.array(FAR)))
    assert np.abs(response.eigenvalues).max() < 1e-9
    np.testing.assert_allclose(response.amplified(np.full((3, 2), 4.0), 0.98), 2.0)


def test_far_clusters_are_determined_and_their_intervals_hold() -> None:
    points = blobs(FAR, 0.08)
    centres = np.array(FAR) + 0.01
    found = judged(points, centres, std=0.005)
    assert found.verdict.tolist() == [DETERMINED] * 3
    assert (np.abs(means(points, centres) - centres) <= found.half_width).all()
    assert (found.half_width >= 1.95 * 0.005).all()


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("shape", ["normal", "box", "stretched"])
def test_no_part_of_a_cloud_is_determined(k: int, shape: str) -> None:
    generator = np.random.default_rng(k)
    points = {
        "normal": generator.normal(size=(SIZE, 2)) * 0.25,
        "box": generator.uniform(-0.9, 0.9, (SIZE, 2)),
        "stretched": generator.normal(size=(SIZE, 2)) * [0.1, 0.3],
    }[shape]
    points = np.clip(points, -0.99, 0.99)
    from sklearn.cluster import KMeans

    centres = KMeans(k, n_init=5, random_state=0).fit(points).cluster_centers_
    assert DETERMINED not in judged(points, centres).verdict


def test_a_stretched_cloud_has_numbers_and_no_gap() -> None:
    points = blobs(ROUND, 1.0, seed=3) * 0 + np.random.default_rng(3).normal(size=(SIZE, 2)) * [
        0.3,
        0.05,
    ]
    found = judged(np.clip(points, -0.99, 0.99), np.array([[-0.24, 0.0], [0.24, 0.0]]))
    assert found.verdict.tolist() == [NUMBERS_ONLY] * 2


def test_a_cloud_in_one_column_has_no_numbers() -> None:
    points = np.clip(np.random.default_rng(4).normal(size=(SIZE, 1)) * 0.3, -0.99, 0.99)
    assert judged(points, np.array([[-0.24], [0.24]])).verdict.tolist() == [NOT_DETERMINED] * 2
    far = judged(blobs([[-0.6], [0.5]], 0.08), np.array([[-0.6], [0.5]]))
    assert far.verdict.tolist() == [DETERMINED] * 2


def test_a_cluster_within_its_noise_is_not_determined() -> None:
    found = judged(blobs(FAR, 0.08), np.array(FAR), clear=False)
    assert found.verdict.tolist() == [NOT_DETERMINED] * 3


def test_wide_intervals_are_not_determined() -> None:
    assert judged(blobs(FAR, 0.08), np.array(FAR), std=0.3).verdict.tolist() == [0, 0, 0]


def test_far_records_within_the_noise_widen_the_intervals_of_all_clusters_they_border() -> None:
    points = np.clip(np.random.default_rng(3).normal(size=(SIZE, 2)) * [0.3, 0.05], -0.99, 0.99)
    halves = np.array([[-0.24, 0.0], [0.24, 0.0]])
    wide = judged(points, halves, unseen=0.02).half_width[:, 0]
    # Each half moves by more than its own mean, since their border moves with the other one.
    assert (wide > 2 * 1.96 * 0.5 * 0.02).all()
    assert (judged(points, halves).half_width[:, 0] < 0.3 * wide).all()


def test_a_poor_optimum_determines_nothing() -> None:
    corners = [[-0.7, -0.7], [-0.7, 0.7], [0.7, -0.7], [0.7, 0.7]]
    points = blobs(corners, 0.05)
    poor = np.array([[-0.7, -0.74], [-0.7, -0.66], [-0.7, 0.7], [0.7, 0.0]])
    assert judged(points, poor).verdict.tolist() == [NOT_DETERMINED] * 4
    assert judged(points, np.array(corners)).verdict.tolist() == [DETERMINED] * 4


def test_the_density_between_two_centres() -> None:
    apart = cloud_of(blobs([[-0.5, 0.0], [0.5, 0.0]], 0.08), np.array([[-0.5, 0.0], [0.5, 0.0]]))
    assert apart.density_between().tolist() == [0.0, 0.0]
    line = np.random.default_rng(0).uniform(-1, 1, (SIZE, 2)) * [0.9, 0.2]
    together = cloud_of(line, np.array([[-0.45, 0.0], [0.45, 0.0]])).density_between()
    assert together == pytest.approx([1.0, 1.0], abs=0.1)


def test_equal_centres_have_no_border() -> None:
    cloud = cloud_of(blobs(ROUND, 0.3), np.zeros((2, 2)))
    assert np.isfinite(cloud.derivative()).all()
    assert cloud.density_between().tolist() == [0.0, 0.0]


def test_too_many_coordinates_are_not_judged() -> None:
    k = MOST_COORDINATES // 2 + 1
    found = judged(blobs(FAR, 0.1), np.random.default_rng(0).uniform(-1, 1, (k, 2)))
    assert not found.verdict.any()
    assert (found.half_width == 2).all()


def test_a_surrogate_without_mass_is_not_judged() -> None:
    empty = Surrogate(np.zeros((5, 2), np.int64), np.zeros(5, np.int64), 0.0)
    found = judge(
        empty,
        np.zeros((2, 2)),
        path_std=np.ones(2),
        last_std=np.ones((2, 2)),
        moved=np.zeros((2, 2)),
        unseen_std=np.zeros((2, 2)),
        size_errors=np.full(2, 0.02),
        clear=np.ones(2, dtype=bool),
        public_seed=0,
    )
    assert not found.verdict.any()


def test_a_judgement_repeats() -> None:
    points, centres = blobs(FAR, 0.15), np.array(FAR)
    first, second = judged(points, centres), judged(points, centres)
    np.testing.assert_array_equal(first.half_width, second.half_width)
    np.testing.assert_array_equal(first.verdict, second.verdict)


def test_points_of_one_place_stay_there() -> None:
    one = Surrogate(np.full((1, 2), ONE // 2), np.array([1 << 20]), 100.0)
    found = judge(
        one,
        np.full((2, 2), 0.5),
        path_std=np.full(2, 0.01),
        last_std=np.full((2, 2), 0.01),
        moved=np.zeros((2, 2)),
        unseen_std=np.zeros((2, 2)),
        size_errors=np.full(2, 0.02),
        clear=np.ones(2, dtype=bool),
        public_seed=0,
    )
    assert np.isfinite(found.half_width).all()
    assert not found.verdict.any()


def test_one_centre_has_no_border() -> None:
    with np.errstate(all="raise"):
        derivative = cloud_of(blobs([[0.0, 0.0]], 0.1)[:500], np.zeros((1, 2))).derivative()
    assert np.array_equal(derivative, np.zeros((2, 2)))
