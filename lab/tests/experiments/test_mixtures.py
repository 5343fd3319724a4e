"""The clusters of a mixture are as far apart as asked, by its own measure and by others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister_lab.experiments.datasets import load
from cloister_lab.experiments.mixtures import G2, Mixture, nearest_separations, separation


@pytest.mark.parametrize("asked", [0.16, 0.5, -0.2])
@pytest.mark.parametrize(("d", "k"), [(2, 5), (2, 40), (8, 9)])
def test_every_cluster_is_as_far_from_its_nearest_neighbour_as_asked(
    asked: float, d: int, k: int
) -> None:
    means, covariances = Mixture(10 * k, d, k, asked, seed=3).clusters()
    np.testing.assert_allclose(nearest_separations(means, covariances), asked, atol=1e-9)


def test_separation_is_the_best_of_all_projections() -> None:
    rng = np.random.default_rng(0)
    angles = np.linspace(0, np.pi, 20_001)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(20):
        first, second = (a @ a.T + 0.01 * np.eye(2) for a in rng.standard_normal((2, 2, 2)))
        gap = rng.standard_normal(2) * 4
        spread = 1.959964 * sum(
            np.sqrt(np.einsum("ai,ij,aj->a", directions, c, directions)) for c in (first, second)
        )
        along = np.abs(directions @ gap)
        best = ((along - spread) / (along + spread)).max()
        found = separation(np.zeros(2), first, gap, second)
        assert best - 1e-12 <= found <= best + 1e-6


def test_separation_of_round_clusters_has_a_closed_form() -> None:
    # unit circles ten apart: the gap is 10 - 2 z, and both span 10 + 2 z
    z = 1.959963984540054
    found = separation(np.zeros(3), np.eye(3), np.array([10.0, 0, 0]), np.eye(3))
    assert found == pytest.approx((10 - 2 * z) / (10 + 2 * z), rel=1e-12)


def test_drawn_records_show_the_separation_that_was_asked() -> None:
    # A projection chosen from the parameters, quantiles from the records: sizes of 40,000 put a
    # quantile within 0.02 standard deviations, so J within 0.01.
    mixture = Mixture(80_000, 2, 2, 0.3, equal=True)
    records = mixture.draw()
    means, covariances = mixture.clusters()
    assert len(means) == 2
    angles = np.linspace(0, np.pi, 361)
    best = -1.0
    for direction in np.stack([np.cos(angles), np.sin(angles)], axis=1):
        first, second = (part @ direction for part in np.split(records, 2))
        if first.mean() > second.mean():
            first, second = second, first
        low, high = np.quantile(first, [0.025, 0.975]), np.quantile(second, [0.025, 0.975])
        best = max(best, (high[0] - low[1]) / (high[1] - low[0]))
    assert best == pytest.approx(0.3, abs=0.01)
    for part, mean, covariance in zip(np.split(records, 2), means, covariances, strict=True):
        np.testing.assert_allclose(part.mean(axis=0), mean, atol=0.1)
        np.testing.assert_allclose(np.cov(part.T), covariance, atol=0.3)


def test_sizes_are_in_the_ratio_one_to_k_and_add_up() -> None:
    assert Mixture(600, 2, 3, 0.2).sizes == (100, 200, 300)
    assert Mixture(600, 2, 3, 0.2, equal=True).sizes == (200, 200, 200)
    assert sum(Mixture(1001, 2, 7, 0.2).sizes) == 1001


def test_sizes_that_vary_stay_within_their_part_of_the_mean() -> None:
    mixture = Mixture(2048, 2, 16, 0.5, equal=True, vary=0.3)
    assert len(set(mixture.sizes)) > 8
    assert all(0.7 * 128 - 1 <= size <= 1.3 * 128 + 1 for size in mixture.sizes)
    assert len(mixture.draw()) == sum(mixture.sizes)
    assert mixture.sizes == Mixture(2048, 2, 16, 0.5, equal=True, vary=0.3).sizes


def test_drawn_pairs_of_gaussians_have_the_law_of_the_published_ones(shared_data: Path) -> None:
    published = load("g2mg_64_30", convention="fastlloyd-paper", data_dir=shared_data)
    drawn = G2(64).dataset()
    assert drawn.records.shape == published.records.shape
    apart, spread = (
        [float(of(data)) for data in (drawn, published)]
        for of in (
            lambda data: np.abs(np.diff(data.reference_centres, axis=0)).mean(),
            lambda data: data.reference_nicv,
        )
    )
    # a column is scaled by its own least and largest value
    assert apart[0] == pytest.approx(apart[1], rel=0.05)
    assert spread[0] == pytest.approx(spread[1], rel=0.05)


def test_outliers_come_last_and_reach_beyond_the_clusters() -> None:
    plain, far = Mixture(2000, 2, 4, 0.2), Mixture(2000, 2, 4, 0.2, outliers=200)
    assert len(plain.draw()) == 2000
    records = far.draw()
    assert len(records) == 2200
    inside, outside = records[:2000], records[2000:]
    spread = np.abs(outside - inside.mean(axis=0)) / inside.std(axis=0)
    assert spread.max() <= 4
    assert (spread > 2.5).any(axis=1).mean() > 0.4


def test_a_mixture_is_a_function_of_its_public_parameters() -> None:
    first, again = (Mixture(300, 3, 4, 0.2, 5, seed=7) for _ in range(2))
    assert np.array_equal(first.draw(), again.draw())
    assert not np.array_equal(first.draw(), Mixture(300, 3, 4, 0.2, 5, seed=8).draw())
    data = first.dataset()
    assert (data.n_clusters, data.nominal_n, data.convention) == (4, 305, "fastlloyd-paper")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="n_clusters must be in"):
        Mixture(3, 2, 4, 0.2)
    with pytest.raises(PlanError, match="separation must be in"):
        Mixture(30, 2, 4, 1.0)
