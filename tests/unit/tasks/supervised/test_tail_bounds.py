"""Where sizes of gradients are cut, and what that takes away."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.tasks.supervised.least_squares import EDGES
from cloister.tasks.supervised.tail_bounds import cut_of_sizes

END = int(np.searchsorted(EDGES, 100.0))


def counted(sizes: np.ndarray) -> np.ndarray:
    found = np.minimum(np.searchsorted(EDGES, sizes), len(EDGES) - 1)
    return np.bincount(found, minlength=len(EDGES)).astype(np.float64)


def test_without_noise_nothing_is_cut() -> None:
    sizes = np.random.default_rng(0).exponential(size=5000)
    cut, influence = cut_of_sizes(counted(sizes), 0.0, 1e-6, 0, END)
    assert EDGES[cut] > 0.9 * sizes.max()
    assert influence * EDGES[cut] < 1e-3 * sizes.sum()


@pytest.mark.parametrize("noise", [4.0, 15.0])
@pytest.mark.parametrize("kind", ["light", "exponential", "heavy", "few far ones"])
def test_what_is_cut_off_is_hardly_more_than_told(kind: str, noise: float) -> None:
    rng, held, cuts = np.random.default_rng(1), [], []
    for _ in range(40):
        sizes = np.abs(rng.normal(size=8000))
        if kind == "exponential":
            sizes = rng.exponential(size=8000)
        elif kind == "heavy":
            sizes = rng.pareto(3.0, 8000).clip(0, 90)
        elif kind == "few far ones":
            sizes[: int(noise)] *= 5
        counts = counted(sizes) + rng.normal(0, noise, len(EDGES))
        cut, influence = cut_of_sizes(counts, noise, 0.9 * noise, 0, END)
        lost = np.maximum(sizes - EDGES[cut], 0).sum() / EDGES[cut]
        held.append(lost <= 0.5 * influence + 0.9 * noise)  # as an interval takes it
        cuts.append(EDGES[cut])
    assert np.mean(held) >= 0.9
    if kind == "light":  # a cut that is far out holds always
        assert np.median(cuts) < 8


def test_a_cut_is_within_its_ends() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        counts = rng.normal(0, 1e3, len(EDGES))
        cut, influence = cut_of_sizes(counts, 1e3, 2e3, 70, END)
        assert 70 <= cut <= END
        assert 0 <= influence < np.inf
