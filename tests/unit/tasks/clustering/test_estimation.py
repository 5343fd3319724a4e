"""The rounds after a path: cells of records, derivatives by counts, intervals and verdicts."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.arrays import GridState
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.task import NoisyBlock
from cloister.tasks.clustering.auto import Auto, EstimatedRoute
from cloister.tasks.clustering.clusters import unknown
from cloister.tasks.clustering.estimation import (
    _BINS,
    Estimation,
    _better_elsewhere,
    _Borders,
    can_determine,
)
from cloister.tasks.clustering.fixed_point import DETERMINED, NOT_DETERMINED, Response
from cloister.tasks.clustering.lloyd_kernel import nearest_centres, two_nearest

Floats = NDArray[np.float64]
BITS = 16
ONE = 1 << BITS
PLACES = np.array([[-0.5, -0.5, 0, 0], [0.5, -0.4, 0.1, 0], [0, 0.6, 0, -0.1]])


def estimation(k: int, d: int = 4, steps: int = 1) -> Estimation:
    return Estimation(k, d, BITS, 0.045, (0.08,) * steps)


def table(places: Floats, spread: float, n: int = 20_000, seed: int = 0) -> NDArray[np.int32]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(len(places), size=n)
    values = places[labels] + generator.normal(size=(n, places.shape[1])) * spread
    return np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)


def at(rounds: Estimation, centres: Floats) -> GridState:
    """Return the state of a path that ended at some centres."""
    state = {**rounds.start(), **unknown(*centres.shape), "centres": centres}
    return {name: round_to_grid(value, BITS) for name, value in state.items()}


def after(
    rounds: Estimation, centres: Floats, records: NDArray[np.int32], mu: float, seed: int = 0
) -> dict[str, Floats]:
    """Return the last state in grid coordinates, with the noise of a GDP parameter."""
    generator, state = np.random.default_rng(seed), at(rounds, centres)
    for r in range(rounds.rounds):
        words, released, place = rounds.contribute(r, state, records), {}, 0
        for block in rounds.blocks(r):
            std = np.sqrt(block.l2_squared / block.weight) / mu
            own = words[place : place + block.size].reshape(block.shape)
            noise = np.rint(generator.normal(0, std, block.shape)).astype(np.int64)
            released[block.name] = NoisyBlock(own + noise, std)
            place += block.size
        state = {
            name: round_to_grid(value, BITS)
            for name, value in rounds.update(r, state, released).items()
        }
    return {name: value / ONE for name, value in state.items()}


# --- Records --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("k", [1, 2, 5, 8, 40])
def test_the_two_nearest_centres_are_those_of_all_distances(k: int) -> None:
    generator = np.random.default_rng(k)
    records = generator.integers(-6, 7, (3000, 3)).astype(np.int32)  # many ties
    centres = generator.integers(-6, 7, (k, 3))
    apart = ((records[:, None] - centres) ** 2).sum(axis=2)
    order = np.argsort(apart, axis=1, kind="stable")
    first, second, least, more = two_nearest(records, centres)
    np.testing.assert_array_equal(first, order[:, 0])
    np.testing.assert_array_equal(first, nearest_centres(records, centres))
    np.testing.assert_array_equal(second, order[:, min(1, k - 1)])
    np.testing.assert_array_equal(least, apart[np.arange(3000), first])
    np.testing.assert_array_equal(more, apart[np.arange(3000), second])


def test_a_look_counts_distances_and_borders() -> None:
    rounds, records = estimation(3), table(PLACES, 0.3, 2000)
    state = at(rounds, PLACES)
    centres = state["centres"]
    distances, borders = np.zeros((3, _BINS), int), np.zeros((3, 3), int)
    for record in records.astype(int):
        squares = [int(((record - c) ** 2).sum()) for c in centres]
        p, q = np.argsort(squares, kind="stable")[:2]
        bounds = [(16 * ONE**2) >> b for b in range(_BINS - 1, -1, -1)]
        distances[p, sum(bound < squares[p] for bound in bounds)] += 1
        apart = int(((centres[p] - centres[q]) ** 2).sum())
        borders[p, q] += 10 * (squares[q] - squares[p]) < 3 * apart
    words = rounds.contribute(0, state, records) // ONE
    np.testing.assert_array_equal(words, [*distances.ravel(), *borders.ravel()])
    assert distances.sum() == 2000
    assert 0 < borders.sum() < 2000


def test_centres_at_one_place_have_no_border() -> None:
    rounds = estimation(3)
    state = at(rounds, np.zeros((3, 4)))
    words = rounds.contribute(0, state, table(PLACES, 0.3, 100))
    assert not words[3 * _BINS :].any()


# --- Derivatives ----------------------------------------------------------------------------------


def response(records: NDArray[np.int32], centres: Floats) -> tuple[Response, _Borders]:
    """Return the response by exact counts."""
    rounds = estimation(len(centres), centres.shape[1])
    words = rounds.contribute(0, at(rounds, centres), records) / ONE
    k = len(centres)
    labels = nearest_centres(records, np.rint(centres * ONE).astype(np.int64))
    counts = np.bincount(labels, minlength=k).astype(np.float64)
    squares = ((records / ONE - centres[labels]) ** 2).sum(axis=1)
    known = {
        "centres": centres,
        "look_squares": np.bincount(labels, squares, k) / counts,
        "look_borders": words[k * _BINS :].reshape(k, k),
    }
    borders = _Borders.of(known, counts, 0.0)
    return Response.of(borders.derivative(), counts, centres.shape), borders


def means(points: Floats, centres: Floats) -> Floats:
    labels = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    return np.stack([points[labels == j].mean(axis=0) for j in range(len(centres))])


def test_the_derivative_is_near_that_of_finite_differences() -> None:
    """Counts tell how much lies at a border, and not in which directions along it."""
    records = table(PLACES, 0.3, 200_000)
    points, centres = records / ONE, PLACES
    for _ in range(20):
        centres = means(points, centres)
    expected = np.zeros((12, 12))
    for i in range(12):
        step = np.zeros(12)
        step[i] = 0.03
        move = step.reshape(3, 4)
        change = means(points, centres + move) - means(points, centres - move)
        expected[:, i] = change.ravel() / 0.06
    _, borders = response(records, centres)
    found = borders.derivative()
    assert np.linalg.norm(found - expected) < 0.3 * np.linalg.norm(expected)


def test_two_halves_of_a_round_cloud_turn_and_are_crowded() -> None:
    """They turn freely; with the mean variance of all directions the eigenvalue is below one."""
    records = table(np.zeros((1, 4)), 0.25)
    halves = means(records / ONE, np.array([[-0.2, 0, 0, 0], [0.2, 0, 0, 0]]))
    found, borders = response(records, halves)
    assert found.eigenvalues.max() > 0.7
    assert (borders.crowd() > 0.5).all()


def test_far_clusters_do_not_move_each_other() -> None:
    records = table(PLACES, 0.05)
    found, borders = response(records, PLACES)
    assert np.abs(found.eigenvalues).max() < 1e-9
    assert not borders.crowd().any()


# --- The answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2])
def test_the_centres_move_to_the_fixed_point(steps: int) -> None:
    records = table(PLACES, 0.1)
    fixed = means(records / ONE, PLACES)
    away = fixed + 0.05 * np.random.default_rng(2).normal(size=fixed.shape)
    found = after(estimation(3, steps=steps), away, records, mu=50.0)
    assert np.abs(found["centres"] - fixed).max() < 0.2 * np.abs(away - fixed).max()
    assert ((found["low"] <= fixed) & (fixed <= found["high"])).all()


def test_groups_are_determined_and_halves_of_a_cloud_are_not() -> None:
    for seed in range(5):
        found = after(estimation(3), PLACES, table(PLACES, 0.08, seed=seed), 0.5, seed)
        assert (found["verdict"] == DETERMINED).all()
        records = table(np.zeros((1, 4)), 0.25, seed=seed)
        halves = means(records / ONE, np.array([[-0.2, 0, 0, 0], [0.2, 0, 0, 0]]))
        found = after(estimation(2), halves, records, 0.5, seed)
        assert (found["verdict"] == NOT_DETERMINED).all()


def test_records_beyond_the_radius_widen_the_interval() -> None:
    near = table(PLACES, 0.03, 3000)
    far = np.random.default_rng(1).uniform(-ONE, ONE, (60, 4)).astype(np.int32)
    records = np.vstack([near, far])
    fixed = PLACES
    for _ in range(20):
        fixed = means(records / ONE, fixed)
    found = after(estimation(3), fixed, records, 1.0)
    plain = after(estimation(3), fixed, near, 1.0)
    assert ((found["low"] <= fixed) & (fixed <= found["high"])).all()
    wider = (found["high"] - found["low"]).mean() / (plain["high"] - plain["low"]).mean()
    assert wider > 1.2


@pytest.mark.parametrize("mu", [1e-4, 0.01, 1.0, 1e3])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_an_interval_holds_its_centre_whatever_is_released(mu: float, k: int) -> None:
    for seed in range(5):
        generator = np.random.default_rng([seed, k])
        centres = generator.uniform(-1, 1, (k, 4))
        if seed == 1:
            centres[:] = centres[0]
        records = table(generator.uniform(-1, 1, (3, 4)), 0.1, 200, seed)[: 0 if seed == 2 else 200]
        found = after(estimation(k), centres, records, mu, seed)
        assert all(np.isfinite(value).all() for value in found.values())
        assert (found["low"] <= found["centres"]).all()
        assert (found["centres"] <= found["high"]).all()
        assert (np.abs(found["centres"]) <= 1).all()
        assert set(found["verdict"]) <= {DETERMINED, NOT_DETERMINED}


def test_a_merge_and_a_split_concern_three_clusters() -> None:
    generator = np.random.default_rng(4)
    for k, _ in product(range(1, 6), range(20)):
        centres, counts = generator.normal(size=(k, 2)), generator.uniform(1, 9, k)
        savings = generator.uniform(0, 6, k)
        expected = np.zeros(k, dtype=bool)
        for a, b in combinations(range(k), 2):
            cost = counts[a] * counts[b] / (counts[a] + counts[b])
            cost *= ((centres[a] - centres[b]) ** 2).sum()
            for split in set(range(k)) - {a, b}:
                if cost < savings[split]:
                    expected[[a, b, split]] = True
        np.testing.assert_array_equal(_better_elsewhere(centres, counts, savings), expected)


def test_the_rounds_are_in_a_plan_where_they_can_determine_a_cluster() -> None:
    numbers = {"n_clusters": 3, "n_features": 6, "mu": 0.25}
    assert isinstance(Auto(**numbers, nominal_n=5000).route, EstimatedRoute)
    assert not isinstance(Auto(**numbers, nominal_n=600).route, EstimatedRoute)
    assert can_determine(3, 6, 5000, 0.25, 0.045)
    assert not can_determine(3, 6, 600, 0.25, 0.045)
    assert can_determine(3, 6, 600, 2.5, 0.045)  # more budget
    assert not can_determine(100, 7, 10**9, 1.0, 0.045)  # more coordinates than can be judged
