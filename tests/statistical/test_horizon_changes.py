"""The test for a change in a horizon: false alarms in a year, and how often it finds a shift.

A year has 52 periods of about 300 records in 8 categories at epsilon 1. After each period from the
eighth on, the last 4 are compared with all before, at the level .05 / 52. Runs have seeds, so that
no test fails by chance.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.horizon import Encoding
from cloister.tasks.tables.inference import change

pytestmark = pytest.mark.statistical
SHARES = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.07, 0.05, 0.03])
PERIODS, WINDOW, SHIFTED, PER_PERIOD = 52, 4, 26, 300
ENCODING = Encoding.of(PERIODS)
DEVIATION = gaussian_noise_multiplier(1.0, 1e-6) * ENCODING.sensitivity_squared**0.5


def looks() -> list[tuple[int, Floats, Floats]]:
    """Return the weights of released vectors in both sets of each look."""
    found = []
    for t in range(2 * WINDOW, PERIODS + 1):
        recent = np.arange(t) >= t - WINDOW
        found.append((t, *ENCODING.weights(np.stack([recent, ~recent]).astype(float))))
    return found


LOOKS = looks()


def first_alarm(draw: np.random.Generator, shift: float) -> int | None:
    """Return the number of periods at the first alarm of a year."""
    later = SHARES + shift * (np.eye(8)[-1] - np.eye(8)[0])
    sums = np.stack(
        [
            draw.multinomial(draw.poisson(PER_PERIOD), SHARES if t < SHIFTED else later)
            for t in range(PERIODS)
        ]
    )
    released = ENCODING.matrix @ sums + draw.normal(0, DEVIATION, sums.shape)
    for t, recent, before in LOOKS:
        lengths = float(np.linalg.norm(recent)), float(np.linalg.norm(before))
        p = change(
            recent @ released[:t],
            before @ released[:t],
            (DEVIATION * lengths[0], DEVIATION * lengths[1]),
            float(recent @ before) / lengths[0] / lengths[1],
        ).p
        if p < 0.05 / PERIODS:
            return t
    return None


@pytest.mark.nightly
def test_a_year_without_a_change_has_few_alarms() -> None:
    draw, runs = np.random.default_rng(20261129), 600
    alarms = sum(first_alarm(draw, 0.0) is not None for _ in range(runs))
    assert 0.03 <= alarms / runs <= 0.07


@pytest.mark.nightly
def test_a_shift_of_a_twentieth_is_found() -> None:
    draw, runs = np.random.default_rng(20261130), 400
    found = [first_alarm(draw, 0.05) for _ in range(runs)]
    assert sum(t is not None and t > SHIFTED for t in found) / runs >= 0.95


def test_a_large_shift_is_found_within_a_month() -> None:
    alarm = first_alarm(np.random.default_rng(5), 0.1)
    assert alarm is not None
    assert SHIFTED < alarm <= SHIFTED + 4


def test_too_few_records_are_not_tested() -> None:
    few = change(np.full(8, 3.0), np.full(8, 900.0), (5.0, 9.0), 0.0)
    assert np.isnan(few.p)
