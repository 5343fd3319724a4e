"""Intervals of noisy tables hold the truth, and tests reject it no more often than they say.

Each cell simulates fresh records and fresh noise, a thousand times and more. An interval must hold
the truth in 93 of 100, a test must reject independence in at most 7.5 of 100. A cell fails where
its count would have a chance of at most ``1e-6 / CELLS`` at exactly that rate: all cells together
would be wrong with probability 1e-6 at most. Seeds are fixed, so that nothing fails by chance at
all. Mutants are held to the same limits and break them: intervals and tests that do not know the
noise, a variance that takes no account of rare numbers at an end of the box, and shares that forget
the noise in the whole. The whole grid is ``benchmarks/tables.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cloister.app.job import run_job
from cloister.core.arrays import Floats
from cloister.core.display import Estimate
from cloister.data.schema import Schema
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.tasks.intervals import fieller
from cloister.tasks.scores import mean_interval
from cloister.tasks.tables import inference
from cloister.tasks.tables.tabulate import Tabulate
from cloister.testing import SimulatedNoise

CELLS = 200  # limits below, at most; and the chance of each is as small
LEVELS = np.array([0.4, 0.3, 0.2, 0.08, 0.02])
CASES = [(n, epsilon) for n in (200, 1000, 10_000) for epsilon in (0.1, 1.0, 4.0)]
Ends = tuple[Floats, Floats]


def noise(epsilon: float) -> float:
    return float(gaussian_noise_multiplier(epsilon, 1e-6))


def least(runs: int) -> float:
    """Return the number of hits that is too few for a rate of 0.93."""
    return float(stats.binom.ppf(1e-6 / CELLS, runs, 0.93))


def too_few(ends: Ends, truth: Any) -> bool:
    """Return whether intervals hold the truth too seldom, in the worst cell of a table."""
    low, high = ends
    hits = ((low <= truth + 1e-9) & (truth <= high + 1e-9)).reshape(len(low), -1)
    return bool(hits.sum(axis=0).min() < least(len(low)))


def both(found: Estimate) -> tuple[Ends, Ends]:
    assert found.population is not None
    return (found.low, found.high), found.population


def tables(n: int, shape: Floats, epsilon: float, runs: int = 2000) -> tuple[Floats, Floats, float]:
    """Return tables of fresh records, the same with noise, and the noise."""
    rng, s = np.random.default_rng(n), noise(epsilon)
    exact = rng.poisson(n * shape, (runs, *shape.shape)).astype(float)
    return exact, exact + rng.normal(0, s, exact.shape), s


@pytest.mark.parametrize(("n", "epsilon"), CASES)
def test_counts_hold(n: int, epsilon: float) -> None:
    _, _, s = tables(n, LEVELS, epsilon, 1)
    rng = np.random.default_rng(n)
    exact = rng.multinomial(n, LEVELS, 2000).astype(float)
    noisy = exact + rng.normal(0, s, exact.shape)
    narrow, wide = both(inference.count_interval(noisy, s, -1))
    assert not too_few(narrow, exact)
    assert not too_few(wide, n * LEVELS)
    half, _ = both(inference.count_interval(noisy, s / 2, -1))
    assert too_few(half, exact)


@pytest.mark.parametrize(("n", "epsilon"), CASES)
def test_shares_hold_and_classical_ones_do_not(n: int, epsilon: float) -> None:
    exact, noisy, s = tables(n, LEVELS, epsilon)
    narrow, wide = both(inference.share_interval(noisy, s))
    assert not too_few(narrow, exact / exact.sum(axis=1, keepdims=True))
    assert not too_few(wide, LEVELS)
    if epsilon < 4 and n * epsilon <= 1000:  # else sampling hides the noise
        _, classical = both(inference.share_interval(noisy, 1e-6))
        assert too_few(classical, LEVELS)


def test_a_share_knows_the_noise_in_the_whole() -> None:
    """Of 40 levels the sum has 6 times the noise of a cell."""
    p = np.r_[0.9, np.full(39, 0.1 / 39)]
    exact, noisy, s = tables(4000, p, 0.5)
    truth = exact / exact.sum(axis=1, keepdims=True)
    narrow, _ = both(inference.share_interval(noisy, s))
    assert not too_few(narrow, truth)
    whole = noisy.sum(axis=1, keepdims=True)
    forgets = fieller(noisy, whole, s**2, 0.0, 0.0, box=(0.0, 1.0))
    assert too_few(forgets, truth)


def moments(
    draw: Callable[[np.random.Generator, int], Floats], n: int, epsilon: float, runs: int
) -> tuple[list[Floats], Floats, float]:
    """Return noisy sums of groups, their exact means, and the noise."""
    rng, s = np.random.default_rng(n), noise(epsilon) * sqrt(3)
    sizes = rng.poisson(n, runs)
    x, group = draw(rng, int(sizes.sum())), np.repeat(np.arange(runs), sizes)
    exact = [np.bincount(group, part, runs) for part in (x, np.ones_like(x), 2 * x**2 - 1)]
    means = exact[0] / np.maximum(exact[1], 1)
    return [part + rng.normal(0, s, runs) for part in exact], means, s


def means_of(x: Floats, size: Floats, doubled: Floats, s: float) -> Estimate:
    return mean_interval(x, size, (doubled + size) / 2, s**2, s**2)


LAWS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float]] = {
    "skewed": (lambda rng, n: 2 * rng.beta(2, 5, n) - 1, 4 / 7 - 1),
    "rare end": (lambda rng, n: rng.choice([-1.0, 1.0], n, p=[0.9, 0.1]), -0.8),
    "narrow": (lambda rng, n: rng.uniform(0.2, 0.4, n), 0.3),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("n", "epsilon"), [(30, 4.0), (30, 0.5), (200, 1.0), (2000, 0.1)])
def test_means_hold(law: str, n: int, epsilon: float) -> None:
    draw, truth = LAWS[law]
    sums, exact, s = moments(draw, n, epsilon, 4000)
    narrow, wide = both(means_of(*sums, s))
    assert not too_few(narrow, exact)
    assert not too_few(wide, truth)
    classical, _ = both(means_of(*sums, 1e-6))
    assert too_few(classical, exact)


def test_a_variance_around_the_sample_misses_rare_numbers_at_an_end_of_the_box() -> None:
    draw, truth = LAWS["rare end"]
    sums, _, s = moments(draw, 30, 4.0, 40_000)
    _, wide = both(means_of(*sums, s))
    assert not too_few(wide, truth)
    x, size, squares = sums
    total = (squares + size) / 2
    alone = fieller(x, size, s**2 + total, s**2 + size, x, box=(-1.0, 1.0))
    assert too_few(alone, truth)


@pytest.mark.parametrize("kind", ["odds_ratio", "relative_risk"])
@pytest.mark.parametrize(("n", "events"), [(400, 0.4), (2000, 0.01), (10_000, 0.1)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_ratios_hold(kind: str, n: int, events: float, epsilon: float) -> None:
    risks = np.array([min(2 * events, 0.5), events])
    shape = 0.5 * np.stack([risks, 1 - risks], axis=1)
    (a, b), (c, d) = shape
    truth = a * d / (b * c) if kind == "odds_ratio" else risks[0] / risks[1]
    _, noisy, s = tables(n, shape, epsilon)
    function = getattr(inference, kind)
    _, wide = both(function(noisy, s)[0])
    assert not too_few(wide, truth)
    if s**2 > n * shape.min():  # noise is what matters
        _, classical = both(function(noisy, 1e-6)[0])
        assert too_few(classical, truth)


@pytest.mark.parametrize("kind", ["odds_ratio", "relative_risk"])
def test_ratios_of_very_small_numbers_hold(kind: str) -> None:
    shape = np.array([[0.001, 0.049], [0.019, 0.931]])  # of 3,000: 3 events in a group of 150
    (a, b), (c, d) = shape
    truth = a * d / (b * c) if kind == "odds_ratio" else a / (a + b) * (c + d) / c
    _, noisy, _ = tables(3000, shape, 4.0, 20_000)
    function = getattr(inference, kind)
    assert not too_few(both(function(noisy, noise(4.0))[0])[1], truth)


TABLES = {
    "2x2": np.outer([0.6, 0.4], [0.8, 0.2]),
    "3x4": np.outer([0.5, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]),
    "5x5": np.outer(LEVELS, LEVELS[::-1]),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("n", "epsilon"), CASES[3:])
def test_tests_reject_as_often_as_they_say(name: str, n: int, epsilon: float) -> None:
    rng, shape, s, runs = np.random.default_rng(n), TABLES[name], noise(epsilon), 2000
    exact = rng.multinomial(n, shape.ravel(), runs).reshape(runs, *shape.shape)
    noisy = exact + rng.normal(0, s, exact.shape)
    most = stats.binom.isf(1e-6 / CELLS, runs, 0.075)
    for test in (inference.independence, inference.trend):
        assert (test(noisy, s).p < 0.05).sum() <= most
    if n * epsilon <= 100:
        assert (inference.independence(noisy, 1e-6).p < 0.05).sum() > most


def test_a_whole_job_holds_with_a_nominal_number_that_is_wrong_and_weights() -> None:
    schema = Schema(
        dataset="grid",
        unit="row",
        columns=[
            {"name": "level", "type": "category", "categories": list("abcde")},
            {"name": "event", "type": "boolean"},
            {"name": "x", "type": "number", "min": -1, "max": 1},
        ],
    )
    rng, chance = np.random.default_rng(7), np.array([0.1, 0.1, 0.2, 0.3, 0.5])
    truths = {
        "table_1.row_shares": np.stack([1 - chance, chance], axis=1),
        "table_2.shares": LEVELS,
        "table_2.counts": 2000 * LEVELS,
        "means": (chance - 0.6)[:, None],
    }
    ends: dict[str, list[Ends]] = {name: [] for name in truths}
    for seed in range(250):
        level = rng.choice(5, rng.poisson(2000), p=LEVELS)
        event = rng.random(len(level)) < chance[level]
        x = chance[level] - 0.6 + rng.uniform(-0.3, 0.3, len(level))
        records = schema.grid().encode(np.column_stack([level, event, x]))
        found = run_job(
            Tabulate,
            schema,
            {"one": [records[::2]], "two": [records[1::2]]},
            epsilon=1.0,
            nominal_n=1000,
            noise=SimulatedNoise(seed),
            tables=[["level", "event"], ["level"]],
            means=["x"],
            by=["level"],
            weights=[4.0, 1.0],
        ).results
        for name, pairs in ends.items():
            low, high = (found[f"{name}_population_{end}"] for end in ("low", "high"))
            pairs.append((low, high))
    for name, pairs in ends.items():
        low, high = (np.stack(side) for side in zip(*pairs, strict=True))
        assert not too_few((low, high), truths[name]), name
