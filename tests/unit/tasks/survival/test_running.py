"""The running-sum release: exact integers, an exact inverse, and the noise of sums."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.protocol.task import COUNT_BITS
from cloister.tasks.survival import running


def test_the_square_of_the_matrix_is_the_matrix_of_running_sums() -> None:
    column = running.column(100) / (1 << COUNT_BITS)
    np.testing.assert_allclose(np.convolve(column, column)[:100], 1.0, atol=2e-3)
    block = running.block_of("exits", 4, 4096, 1.0)
    assert block.size == 4 * 4096
    assert block.l2_squared / (1 << 2 * COUNT_BITS) == pytest.approx(3.713, abs=2e-3)


@pytest.mark.parametrize("cells", [1, 2, 61, 4096])
def test_counts_come_back_from_their_sums(cells: int) -> None:
    counts = np.random.default_rng(0).integers(0, 1000, (3, 2, cells))
    sums = running.encoded(counts)
    assert sums.dtype == np.int64
    np.testing.assert_allclose(
        running.decoded(sums / (1 << COUNT_BITS)), counts, atol=1e-9 * counts.sum()
    )


def test_the_variance_of_any_sum_is_that_of_simulated_noise() -> None:
    """With 20,000 draws of a seed; the relative deviation of a variance is 1 %."""
    rng, cells = np.random.default_rng(1), 50
    gradients = np.stack([np.arange(cells) >= 30, rng.normal(size=cells)]).astype(float)
    rows = running.weights_of(gradients)
    drawn = running.decoded(rng.standard_normal((20_000, cells))) @ gradients.T
    np.testing.assert_allclose(np.cov(drawn.T), rows @ rows.T, rtol=0.05, atol=0.05)


def test_later_counts_have_little_noise() -> None:
    """A number at risk: 4 deviations of a released sum at 4,096 cells, where a table has 64."""
    later = running.weights_of(np.ones(4096))
    assert np.sqrt(later @ later) * np.sqrt(3.713) < 4


def test_a_block_ends_in_the_middle_of_a_level() -> None:
    events = np.array([0.0, 1.0, 4.0, 4.0, 4.0, 4.0, 9.0, 9.5])
    assert running.cuts_of(events, 3.0).tolist() == [0, 4, 6, 7]
    assert running.cuts_of(events, 20.0).tolist() == [0, 7]
    assert running.cuts_of(events[:2], 0.5).tolist() == [0, 1]
