"""Starting centres: public, spread, inside the box, and the same for every party."""

from __future__ import annotations

import inspect
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.tasks.clustering import kmeans_init
from cloister.tasks.clustering.kmeans_init import min_separation, sphere_packing


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_centres_are_in_the_box_and_apart(k: int, d: int, seed: int) -> None:
    centres = sphere_packing(k, d, seed)
    assert centres.shape == (k, d)
    assert np.isfinite(centres).all()
    assert np.abs(centres).max() <= 1
    assert min_separation(centres) > 0


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 2**31))
def test_the_same_seed_gives_every_party_the_same_centres(k: int, d: int, seed: int) -> None:
    first = sphere_packing(k, d, seed)
    first[0] = 99  # a caller cannot spoil what others get
    kmeans_init._sphere_packing.cache_clear()
    again = sphere_packing(k, d, seed)
    assert np.abs(again).max() <= 1
    assert not np.array_equal(again, sphere_packing(k, d, seed + 1))


def test_one_centre_is_the_middle() -> None:
    assert sphere_packing(1, 3).tolist() == [[0, 0, 0]]


def test_starts_take_no_records() -> None:
    parameters = list(inspect.signature(sphere_packing).parameters)
    assert parameters == ["n_clusters", "n_features", "public_seed"]


@pytest.mark.parametrize(
    ("k", "d", "least"),
    # D17: halving alone reaches 0.25 for (15, 2), the largest feasible radius alone collapses the
    # centres of (10, 784) to a separation of 1.84
    [(15, 2, 0.35), (10, 784, 10.0), (2, 1, 0.8), (3, 1, 0.5), (100, 2, 0.12), (2, 2, 0.9)],
)
def test_centres_are_as_far_apart_as_a_search_finds(k: int, d: int, least: float) -> None:
    assert min(min_separation(sphere_packing(k, d, seed)) for seed in range(5)) >= least


def test_packed_spheres_do_not_meet_nor_leave_the_box() -> None:
    rng = np.random.default_rng(0)
    for radius in (0.1, 0.2, 0.3):
        centres = kmeans_init._pack(4, 2, radius, rng)
        assert centres is not None
        assert np.abs(centres).max() <= 1 - radius
        assert min_separation(centres) >= 2 * radius


def test_a_radius_that_cannot_fit_is_given_up() -> None:
    rng = np.random.default_rng(0)
    assert kmeans_init._pack(2, 1, 1.5, rng) is None
    assert kmeans_init._pack(5, 1, 0.9, rng) is None


def test_there_are_always_centres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans_init, "_pack", lambda *args: None)
    kmeans_init._sphere_packing.cache_clear()
    try:
        centres = sphere_packing(5, 2, 1)
    finally:
        kmeans_init._sphere_packing.cache_clear()
    assert centres.shape == (5, 2)
    assert np.abs(centres).max() <= 1


def test_separation_of_one_centre_is_infinite() -> None:
    assert min_separation(np.zeros((1, 2))) == np.inf
    assert min_separation(np.array([[0.0, 0], [3, 4], [3, 5]])) == 1


def test_many_centres_take_no_minute() -> None:
    start = process_time()  # other processes of the machine take nothing of it
    sphere_packing(1000, 2, 12345)
    assert process_time() - start < 10  # it takes 0.6 s; the cubic version took 20 s
