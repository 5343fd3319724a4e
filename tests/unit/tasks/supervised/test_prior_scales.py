"""Where numbers lie and how far they spread, from noisy counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.protocol.task import COUNT_BITS
from cloister.tasks.supervised.frame import Frame
from cloister.tasks.supervised.prior_scales import BINS, TAILS, edges, spread_of, window_of

N = 20_000
NOISE = 40.0
COLUMNS = {
    "normal": lambda rng: rng.normal(size=N),
    "exponential": lambda rng: rng.exponential(size=N) - 1,
    "uniform": lambda rng: rng.uniform(-1.7, 1.7, N),
    "lognormal": lambda rng: np.exp(rng.normal(0, 0.8, N)) - 1,
    "two values": lambda rng: rng.choice([-1.0, 1.0], N),
    "counts": lambda rng: rng.poisson(1.0, N) - 1.0,
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("width", [3.5, 10, 30, 100])
@pytest.mark.parametrize("middle", [0.0, 0.6])
def test_two_histograms_find_a_column_in_a_box_of_any_width(
    name: str, width: float, middle: float
) -> None:
    rng = np.random.default_rng(1)
    values = np.clip(COLUMNS[name](rng) / width + middle, -1, 1)
    counts = np.histogram(values, np.linspace(-1, 1, BINS + 1))[0] + rng.normal(0, NOISE, BINS)
    window = np.array(window_of(counts, NOISE, N))
    between = edges(*window)
    between[0], between[-1] = -np.inf, np.inf
    counts = np.histogram(values, between)[0] + rng.normal(0, NOISE, BINS + 2 * TAILS)
    found = spread_of(counts, window, NOISE, N)
    true = values.std()
    assert not found.alike
    assert 0.4 * true < found.deviation < 2.5 * true
    assert abs(found.centre - values.mean()) < true
    assert found.square < 3 * true**2


def test_a_column_of_one_value_is_alike() -> None:
    rng = np.random.default_rng(2)
    counts = rng.normal(0, NOISE, BINS)
    counts[20] += N
    window = np.array(window_of(counts, NOISE, N))
    inside = rng.normal(0, NOISE, BINS + 2 * TAILS)
    inside[TAILS + BINS // 2] += N
    found = spread_of(inside, window, NOISE, N)
    assert found.alike
    assert found.deviation**2 == pytest.approx(NOISE * np.sqrt(BINS) / N)


@pytest.mark.parametrize(
    "window", [(-1 << 16, 1 << 16), (0, 4096), (4096, 0), (7, 7), (-(1 << 62), 1 << 62)]
)
def test_a_record_is_in_one_bin_of_each_column_whatever_the_window(window: tuple[int, int]) -> None:
    frame = Frame((0, 3, 0), 16, (), 1.0)
    one = 1 << 16
    corners = np.array([[-one, -one, 0], [one, one, 5], [0, 0, one], [4096, one, -one]], np.int32)
    placed = replace(frame.unplaced(), window=np.array([window, window]) / one)
    for record in corners:
        words = frame.count_spreads(placed, record[None]).reshape(2, -1)
        assert (words.sum(axis=1) == 1 << COUNT_BITS).all()
        assert (np.count_nonzero(words, axis=1) == 1).all()
        words = frame.count_places(record[None])
        assert words.sum() == frame.places_block(1.0).l1
        assert (words**2).sum() == frame.places_block(1.0).l2_squared


def test_both_ends_of_the_box_are_in_its_bins() -> None:
    frame = Frame((0,), 16, (), 1.0)
    one = 1 << 16
    words = frame.count_places(np.array([[-one], [one]], np.int32)) >> COUNT_BITS
    assert words.tolist() == [1, *[0] * (BINS - 2), 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_records_apart_from_a_frequent_value_count_although_noise_hides_them(seed: int) -> None:
    """A sixth of the records is spread over so many bins that no count of them is sure."""
    rng = np.random.default_rng(seed)
    n, noise = 2000, 26.0
    values = np.where(rng.random(n) < 0.83, -1.0, rng.uniform(-0.9, -0.1, n))
    counts = np.histogram(values, np.linspace(-1, 1, BINS + 1))[0] + rng.normal(0, noise, BINS)
    window = np.array(window_of(counts, noise, n))
    between = edges(*window)
    between[0], between[-1] = -np.inf, np.inf
    counts = np.histogram(values, between)[0] + rng.normal(0, noise, BINS + 2 * TAILS)
    assert spread_of(counts, window, noise, n).deviation > values.std()
