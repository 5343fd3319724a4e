"""Noise on shares: what is really added, what it is worth, and who knows how much of it."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from cloister.core.errors import PlanError
from cloister.privacy.accounting import epsilon
from cloister.privacy.events import GaussianEvent
from cloister.privacy.noise import DiscreteNoise
from cloister.shares.mpc import Server, run_here
from cloister.shares.mpc.opening import MARKS, NoiseOnShares

NOISE = NoiseOnShares(1.0, 1e-6, rounds=20, record_squared=2 * 2**64)
SIZE = 30_000


class Weak(DiscreteNoise):
    """A broken twin: draws less than it is asked for."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def draw(self, kind: Any, scale: int, size: int) -> NDArray[np.int64]:
        if not self.factor:
            return np.zeros(size, np.int64)
        return super().draw(kind, int(self.factor * scale), size)


def drawn(noise: Any) -> list[NDArray[np.float64]]:
    """Return what each server adds to its share, over sigma."""

    def added(server: Server, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return NOISE.add(server, x) - x

    shares, _ = run_here(added, np.zeros(SIZE, np.uint64), noise=noise)
    return [share.view(np.int64) / NOISE.sigma for share in shares]


def check(draws: list[NDArray[np.float64]]) -> None:
    """Refuse draws that are not two independent normal ones of variance 1, so 2 together.

    With n draws a variance is off by sqrt(2/n) = 0.8 %; six of it: 2e-9 each, three of them. A
    correlation is off by 1/sqrt(n): six of it, 2e-9. The largest distance of the empirical law
    exceeds 3.4/sqrt(n) with probability below 2 exp(-2 * 3.4^2) = 2e-10, twice.
    """
    apart = 6 * sqrt(2 / SIZE)
    for draw in draws:
        assert abs(draw.var() - 1) < apart, "variance of one server"
        law = norm.cdf(np.sort(draw))
        assert np.abs(law - np.arange(SIZE) / SIZE).max() < 3.4 / sqrt(SIZE), "law of one server"
    assert abs((draws[0] + draws[1]).var() - 2) < 2 * apart, "variance of both"
    assert abs(np.corrcoef(draws[0], draws[1])[0, 1]) < 6 / sqrt(SIZE), "servers draw apart"


def test_each_server_adds_the_whole_noise_and_both_are_independent() -> None:
    """False alarms: below 1e-8 in all."""
    check(drawn((None, None)))


@pytest.mark.parametrize(
    "broken",
    [
        (Weak(0.95), Weak(0.95)),
        (None, Weak(0.95)),
        (Weak(1 / sqrt(2)), Weak(1 / sqrt(2))),  # half the variance each: one may be corrupted
        (None, Weak(0.0)),
        (Weak(0.0), None),
    ],
)
def test_weaker_noise_is_found(broken: Any) -> None:
    """Sigma 5 % low moves the variance by 9.75 %, twelve deviations: missed below 1e-8."""
    with pytest.raises(AssertionError, match=r"variance of|law of"):
        check(drawn(broken))


def test_noise_that_both_servers_share_is_found() -> None:
    """If they drew from one key, each would know it all."""
    draw = drawn((None, None))[0]
    with pytest.raises(AssertionError):
        check([draw, draw])


def test_what_is_charged_is_the_noise_of_one_server_over_what_a_unit_adds() -> None:
    noise = NoiseOnShares(1.0, 1e-6, rounds=20, record_squared=2 * 2**64, records=3)
    assert noise.sensitivity == 3 * (int(sqrt(2) * 2**32) + 1)
    event = noise.event()
    assert event.count == 20
    assert isinstance(event.event, GaussianEvent)
    assert event.event.noise_multiplier == pytest.approx(noise.sigma / noise.sensitivity)
    assert 0.999 < epsilon(event, 1e-6) <= 1.0
    # Three records of a unit cost three times the noise.
    assert noise.sigma == pytest.approx(3 * NOISE.sigma, rel=1e-6)


def test_noise_that_cannot_be_drawn_or_paid_is_refused() -> None:
    with pytest.raises(PlanError, match="larger epsilon"):
        NoiseOnShares(0.001, 1e-6, 20, 2 * 2**64)
    with pytest.raises(PlanError):
        NoiseOnShares(1.0, 0.0, 20, 2 * 2**64)


def test_every_kind_of_opening_has_a_sentence_and_an_exact_one_says_what_it_is_not() -> None:
    assert set(MARKS) == {"label", "exact", "private"}
    assert "NOT a private release" in MARKS["exact"]
