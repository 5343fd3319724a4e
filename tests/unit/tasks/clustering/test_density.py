"""Kernels against scipy's normal distribution, and densities of counts that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cloister.core.arrays import Floats
from cloister.tasks.clustering.surrogate import FINE, density, kernel, spread

UNITS = 1 << 12


@pytest.mark.parametrize(("bins", "cuts", "width"), [(1, 1, 1.0), (7, 1, 0.4), (5, 4, 2.5)])
def test_a_kernel_is_the_normal_distribution_in_the_parts_of_cells(
    bins: int, cuts: int, width: float
) -> None:
    found = kernel(bins, cuts, width)
    assert found.shape == (bins * cuts, bins)
    assert (found * UNITS == np.rint(found * UNITS)).all()
    assert (found.sum(axis=0) == 1).all()
    edges = np.arange(1, bins * cuts) / cuts
    middles = np.arange(bins) + 0.5
    below = stats.norm.cdf((edges[:, None] - middles) / width)
    np.testing.assert_allclose(np.cumsum(found, axis=0)[:-1], below, rtol=0, atol=0.51 / UNITS)


def test_kernels_spread_masses_as_whole_numbers_do() -> None:
    rng = np.random.default_rng(0)
    kernels = [kernel(m, cuts, 0.7) for m, cuts in ((5, 2), (4, 1), (3, 3))]
    masses = rng.integers(0, FINE // 60, (5, 4, 3)).astype(np.float64)
    whole = masses.astype(np.int64)
    for axis, each in enumerate(kernels):
        parts = (each * UNITS).astype(np.int64)
        summed = np.moveaxis(np.tensordot(parts, whole, (1, axis)), 0, axis)
        whole, rest = np.divmod(summed, UNITS)  # a half goes to the even neighbour
        whole += (2 * rest > UNITS) | ((2 * rest == UNITS) & (whole % 2 == 1))
    found = spread(kernels, masses)
    assert found.shape == (10, 4, 9)
    np.testing.assert_array_equal(found, whole)
    assert abs(found.sum() - masses.sum()) <= 0.5 * (120 + 120 + 360)


def smooth(rng: np.random.Generator, kernels: list[Floats], n: float) -> Floats:
    """Counts that such kernels make of a few cells."""
    masses = np.where(rng.uniform(size=(12, 10)) < 0.1, rng.exponential(size=(12, 10)), 0.0)
    return spread(kernels, np.rint(masses / masses.sum() * FINE)) * (n / FINE)


def test_without_noise_it_explains_counts_that_kernels_made() -> None:
    kernels = [kernel(12, 1, 0.8), kernel(10, 1, 0.6)]
    counts = smooth(np.random.default_rng(1), kernels, 5000)
    masses = density(counts, 0.0, kernels, 5000)
    explained = spread(kernels, masses) * (5000 / FINE)
    assert np.abs(explained - counts).sum() < 0.03 * counts.sum()


def test_with_noise_it_is_nearer_to_the_truth_than_the_counts_are() -> None:
    rng = np.random.default_rng(2)
    kernels = [kernel(12, 1, 0.8), kernel(10, 1, 0.6)]
    raw = fitted = 0.0
    for _ in range(5):
        counts = smooth(rng, kernels, 3000)
        noisy = counts + rng.normal(0, 20.0, counts.shape)
        explained = spread(kernels, density(noisy, 20.0, kernels, 3000)) * (3000 / FINE)
        raw += float(((np.maximum(noisy, 0) - counts) ** 2).sum())
        fitted += float(((explained - counts) ** 2).sum())
    assert fitted < 0.7 * raw


@pytest.mark.parametrize("noise_std", [0.0, 10.0, 1e4])
def test_masses_are_whole_and_together_those_of_all_records(noise_std: float) -> None:
    rng = np.random.default_rng(3)
    kernels = [kernel(12, 1, 0.8), kernel(10, 1, 0.6)]
    noisy = smooth(rng, kernels, 1000) + rng.normal(0, noise_std, (12, 10))
    masses = density(noisy, noise_std, kernels, 1000)
    assert masses.min() >= 0
    assert (masses == np.rint(masses)).all()
    assert masses.sum() == pytest.approx(FINE, abs=60)


@pytest.mark.parametrize("count", [0.0, -3.0])
def test_counts_that_show_nothing_give_equal_masses(count: float) -> None:
    kernels = [kernel(4, 1, 0.5)] * 2
    masses = density(np.full((4, 4), count), 1.0, kernels, 100)
    np.testing.assert_array_equal(masses, np.full((4, 4), FINE // 16))


@pytest.mark.parametrize(("noise_std", "total"), [(20.0, 15_000), (1e6, 100)])
def test_the_order_of_adding_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, noise_std: float, total: int
) -> None:
    """Another library of linear algebra may add from the other end; the bytes are the same."""
    rng = np.random.default_rng(5)
    kernels, fine = ([kernel(m, cuts, 0.6) for m in (9, 8, 7)] for cuts in (1, 2))
    noisy = rng.exponential(30.0, (9, 8, 7)) + rng.normal(0, noise_std, (9, 8, 7))
    usual, contracted = np.matmul, 0

    def both() -> bytes:
        masses = density(noisy, noise_std, kernels, total)
        return masses.tobytes() + spread(fine, masses).tobytes()

    def reversed_order(a: Floats, b: Floats) -> Floats:
        nonlocal contracted
        contracted += 1
        assert (b == np.rint(b)).all()
        found = np.asarray(usual(np.flip(a, 1).copy(), np.flip(b, 0).copy()))
        assert found.max() * UNITS < 2**53  # or a sum of products might be rounded
        return found

    before = both()
    monkeypatch.setattr(np, "matmul", reversed_order)
    assert both() == before
    assert contracted > 900
