"""The movement that stability foretells is that of real reruns, with noise of the real kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from cloister import DPKMeans
from cloister.protocol.task import Floats

MIDDLES = np.array([[-0.6, -0.6], [0.6, 0.5], [0.6, -0.7]])
X = np.random.default_rng(0).normal(MIDDLES, 0.1, (1000, 3, 2)).reshape(-1, 2)

PAIRS = 40
TRIALS = PAIRS * MIDDLES.size
FALSE_ALARM = 2e-8  # of each of six bounds; a broken twin passes more seldom

# A movement that is 20 % too small is exceeded by 11.7 % of normal differences, and half of one
# that is 50 % too large by 14.1 %: so much may be wrong of 50 reruns and of released sizes.
TOO_SMALL, TOO_LARGE = 0.117, 0.141
MOST = int(binom.isf(FALSE_ALARM, TRIALS, TOO_SMALL))
LEAST = int(binom.ppf(FALSE_ALARM, TRIALS, TOO_LARGE))


def fit(algorithm: str) -> Any:
    options = {"epsilon": 1.0, "bounds": (-1, 1), "nominal_n": 3000, "random_state": 0}
    return DPKMeans(3, **options, algorithm=algorithm).fit(X)


def in_order(centres: Floats) -> Floats:
    """The centres in the order of the groups, which are far from each other."""
    apart = np.linalg.norm(MIDDLES[:, None] - centres, axis=2)
    return centres[apart.argmin(axis=1)]


def holds(moves: Floats, apart: Floats) -> bool:
    """Whether so many real pairs of reruns are further apart as 95 % and half of it allow."""
    return (apart > moves).sum() <= MOST and (apart > moves / 2).sum() >= LEAST


@pytest.mark.parametrize("algorithm", ["auto", "fastlloyd", "glloyd"])
def test_real_reruns_move_as_far_as_foretold(algorithm: str) -> None:
    model = fit(algorithm)
    again = model.stability(100)
    assert (again.found == 1).all()
    moves = again.moves[np.linalg.norm(MIDDLES[:, None] - model.cluster_centers_, axis=2).argmin(1)]
    real = np.array([in_order(fit(algorithm).cluster_centers_) for _ in range(2 * PAIRS)])
    apart = np.abs(real[::2] - real[1::2])
    assert holds(moves, apart)
    # twins: of a quarter of the noise, and of four times as much
    assert not holds(moves / 4, apart)
    assert not holds(4 * moves, apart)


def test_the_bounds_leave_room_between_right_and_broken() -> None:
    # of a movement that is 50 % too large, and of one that is 20 % too small
    assert binom.cdf(MOST, TRIALS, 0.462) < 1e-7  # P(|Z| > 1.5 * 1.96 / 4)
    assert binom.sf(LEAST - 1, TRIALS, 0.0017) < 1e-7  # P(|Z| > 0.8 * 4 * 1.96 / 2)
