"""The gap statistic of a noisy histogram: what it finds, and what noise must not make it find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloister.tasks.clustering.gap_statistic import GapCurve, gap_curve, objectives
from cloister.tasks.clustering.synopsis import cell_centres

BINS = np.array([12, 12])
POINTS = cell_centres(np.ones(2), BINS)
FROM_1_TO_8 = np.arange(1, 9)


def histogram(X: Any) -> Any:
    """Counts of the cells of the box."""
    places = np.clip(((np.asarray(X) + 1) / 2 * BINS).astype(int), 0, BINS - 1)
    return np.bincount(places[:, 0] * BINS[1] + places[:, 1], minlength=len(POINTS)).astype(float)


def groups(k: int, size: int = 400, spread: float = 0.07) -> Any:
    """Groups in a circle."""
    rng = np.random.default_rng(k)
    angles = 2 * np.pi * np.arange(k) / k
    middles = 0.7 * np.column_stack([np.cos(angles), np.sin(angles)]) * (k > 1)
    return np.concatenate([rng.normal(middle, spread, (size, 2)) for middle in middles])


def curve(counts: Any, noise_std: float, seed: int = 0, **changes: Any) -> GapCurve:
    rng = np.random.default_rng(100 + seed)
    fields: dict[str, Any] = {
        "noise_std": noise_std,
        "total": float(counts.sum()),
        "cell_variance": 2 * (2 / 12) ** 2 / 12,
        "candidates": FROM_1_TO_8,
        "public_seed": seed,
        **changes,
    }
    return gap_curve(POINTS, counts + noise_std * rng.normal(size=len(counts)), **fields)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("noise_std", [0.0, 5.0])
def test_groups_that_are_apart_are_counted(k: int, noise_std: float) -> None:
    chosen = [curve(histogram(groups(k)), noise_std, seed).chosen for seed in range(5)]
    assert chosen.count(k) >= 4, chosen


def test_what_has_no_groups_gives_the_fewest() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
    chosen = [curve(histogram(X), 8.0, seed).chosen for seed in range(8)]
    assert chosen.count(1) >= 6, chosen


def test_noise_alone_gives_the_fewest() -> None:
    # a reference without noise would see structure in every one of these
    chosen = [
        curve(np.full(len(POINTS), 1.0), 60.0, seed, candidates=np.arange(2, 9)).chosen
        for seed in range(8)
    ]
    assert chosen.count(2) >= 5, chosen


def test_the_band_holds_the_gap_and_is_not_symmetric() -> None:
    found = curve(histogram(groups(5)), 5.0)
    assert (found.low < found.gap).all()
    assert (found.gap < found.high).all()
    assert not np.allclose(found.gap - found.low, found.high - found.gap, rtol=0.05)
    wider = curve(histogram(groups(5)), 20.0)
    assert (wider.high - wider.low).mean() > 1.5 * (found.high - found.low).mean()


def test_the_same_counts_and_seed_give_the_same_answer() -> None:
    one, two = (curve(histogram(groups(3)), 5.0) for _ in range(2))
    for name in ("gap", "low", "high", "objective"):
        assert (getattr(one, name) == getattr(two, name)).all()


def test_more_centres_never_cost_more() -> None:
    rng = np.random.default_rng(3)
    points, weights = rng.normal(size=(300, 3)), rng.exponential(size=300)
    weights[::3] = 0
    costs = objectives(points, weights, np.arange(1, 40))
    assert (np.diff(costs) <= 1e-12).all()
    assert costs[0] == pytest.approx(
        np.average(
            ((points - np.average(points, axis=0, weights=weights)) ** 2).sum(1), weights=weights
        )
    )


def test_objectives_are_about_those_of_k_means() -> None:
    from sklearn.cluster import KMeans

    counts = histogram(groups(6, spread=0.15))
    mine = objectives(POINTS, counts, np.arange(1, 9))
    for k, cost in zip(range(1, 9), mine, strict=True):
        best = KMeans(k, n_init=10, random_state=0).fit(POINTS, sample_weight=counts)
        assert cost <= 1.1 * best.inertia_ / counts.sum()


def test_fewer_cells_than_centres_cost_nothing() -> None:
    weights = np.zeros(len(POINTS))
    weights[[3, 70]] = 5
    assert objectives(POINTS, weights, np.arange(1, 5))[1:] == pytest.approx(0, abs=1e-12)
