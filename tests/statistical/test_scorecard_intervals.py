"""Intervals of scorecards hold the truth, and mutants that forget something do not.

Each cell simulates fresh records and fresh noise. A noise interval must hold what the same records
say without noise, a population interval what the law says, in 93 of 100. A cell fails where its
count would have a chance of at most ``1e-6 / CELLS`` at exactly that rate: all cells together would
be wrong with probability 1e-6 at most. Seeds are fixed. Mutants are held to the same limits and
break them: the noise's bias is left in, or the noise is left out of the variance. The whole grid is
``benchmarks/scorecards.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from scipy import stats

from cloister.app.job import run_job
from cloister.core.arrays import Floats, Records, Results
from cloister.core.display import ENDS, Estimate
from cloister.data.schema import Schema
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.noise import NoiseSource
from cloister.tasks.tables import risk
from cloister.tasks.tables.scorecard import Scorecard
from cloister.testing import SimulatedNoise, ZeroNoise

RUNS, CELLS, TABLES = 500, 200, 4  # limits below, at most; tables that share the budget
Measure = tuple[Callable[[Floats, float], Estimate], Callable[[Floats], Floats]]


@dataclass(frozen=True)
class Law:
    """Bins, how many records, how many have the event, and how strongly bins tell of it.

    Each bin has `falling` times the records of the one before.
    """

    bins: int
    n: int
    rate: float
    effect: float
    falling: float = 1.0

    @property
    def shape(self) -> Floats:
        """The probability of each cell."""
        p = self.falling ** np.arange(self.bins)
        p /= p.sum()
        q = p * np.exp(-self.effect * np.linspace(1, -1, self.bins))
        return np.stack([p * (1 - self.rate), q / q.sum() * self.rate], axis=1)


LAWS = {
    "nothing": Law(10, 10_000, 0.05, 0.0),
    "little": Law(10, 10_000, 0.05, 0.3),
    "much": Law(8, 5000, 0.2, 1.0),
    "few": Law(5, 1000, 0.2, 0.5),
    "many": Law(20, 50_000, 0.03, 0.5),
    "uneven": Law(8, 10_000, 0.03, 0.5, 0.4),
    "wide": Law(30, 60_000, 0.2, 0.0),
}


def shares(table: Floats) -> tuple[Floats, Floats]:
    p, q = (table / table.sum(axis=0)).T
    return p, q


def distance(table: Floats) -> Floats:
    p, q = shares(table)
    return np.abs(np.cumsum(p - q)).max(keepdims=True)


def gini(table: Floats) -> Floats:
    p, q = shares(table)
    return np.atleast_1d(q @ (np.tri(len(p), k=-1) - np.tri(len(p), k=-1).T) @ p)


MEASURES: dict[str, Measure] = {
    "woe": (risk.weights_of_evidence, lambda table: np.log(np.divide(*shares(table)))),
    "ks": (risk.kolmogorov, distance),
    "gini": (risk.gini, gini),
    "below": (risk.below, lambda table: np.cumsum(table, axis=0)[:-1] / table.sum(axis=0)),
}


def noise(epsilon: float) -> float:
    return float(gaussian_noise_multiplier(epsilon, 1e-6)) * TABLES**0.5


@cache
def tables(law: Law, epsilon: float) -> tuple[Floats, Floats]:
    """Return tables of fresh records, none of them empty, and the same with noise."""
    rng = np.random.default_rng(5)
    exact = rng.poisson(law.n * law.shape, (RUNS, law.bins, 2)).astype(float)
    return np.maximum(exact, 1), exact + rng.normal(0, noise(epsilon), exact.shape)


def too_few(hits: list[Floats]) -> bool:
    """Return whether intervals hold too seldom, on average over bins of equal standing."""
    rates, runs = np.array([np.mean(part) for part in hits]), len(hits)
    least = float(stats.binom.ppf(1e-6 / CELLS, runs, 0.93)) / runs
    return bool(rates.mean() < least)


def held(found: Estimate, exact: Floats, truth: Floats, inner: bool = False) -> tuple[Floats, ...]:
    """Return whether both intervals hold; `inner` leaves ends out, which are known."""
    assert found.population is not None
    part = slice(1, -1) if inner else slice(None)
    pairs = ((found.low, found.high, exact), (*found.population, truth))
    return tuple((low[part] <= at + 1e-9) & (at <= high[part] + 1e-9) for low, high, at in pairs)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", MEASURES)
def test_what_is_measured_holds(name: str, law: str, epsilon: float) -> None:
    measure, truth = MEASURES[name]
    of_all = truth(LAWS[law].shape)
    runs = [
        held(measure(noisy, noise(epsilon)), truth(exact), of_all, name == "below")
        for exact, noisy in zip(*tables(LAWS[law], epsilon), strict=True)
    ]
    narrow, wide = zip(*runs, strict=True)
    assert not too_few(list(narrow))
    assert not too_few(list(wide))


def jeffreys(table: Floats) -> Floats:
    p, q = shares(table)
    return np.atleast_1d(((p - q) * np.log(p / q)).sum())


def divergences(law: Law, epsilon: float) -> tuple[list[Floats], list[Floats]]:
    """Return whether the divergence of all bins is held, in runs where it is known."""
    s, truth = noise(epsilon), jeffreys(law.shape)
    runs = []
    for exact, noisy in zip(*tables(law, epsilon), strict=True):
        found = risk.divergence(noisy, s)
        if np.isfinite(found.values).all():
            runs.append(held(found, jeffreys(exact), truth))
    narrow, wide = zip(*runs, strict=True) if runs else ((), ())
    return list(narrow), list(wide)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("law", LAWS)
def test_information_and_stability_hold(law: str, epsilon: float) -> None:
    narrow, wide = divergences(LAWS[law], epsilon)
    # Where few runs know the number, noise chose them: counts are too large in these.
    if len(narrow) > RUNS / 3:
        assert not too_few(narrow)
        assert not too_few(wide)


def test_divergences_hold_where_counts_hardly_stand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A straight line says too little there, of how small and how large the number may be."""
    law = Law(5, 5000, 0.3, 2.0)

    def coverage() -> float:
        narrow, _ = divergences(law, 0.9)
        assert len(narrow) > RUNS / 4
        return float(np.mean(narrow))

    assert coverage() > 0.92
    monkeypatch.setattr(risk, "_along", lambda cells, variances, sign: -sign * np.inf)
    assert coverage() < 0.9


@pytest.mark.parametrize("name", ["divergence", "kolmogorov"])
def test_a_mutant_that_leaves_the_bias_in_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = risk._convex
    monkeypatch.setattr(risk, "_convex", lambda value, bias, *rest: real(value, 0.0, *rest))
    if name == "divergence":
        narrow, wide = divergences(LAWS["wide"], 0.5)
    else:
        truth = distance(LAWS["wide"].shape)
        runs = [
            held(risk.kolmogorov(noisy, noise(0.5)), distance(exact), truth)
            for exact, noisy in zip(*tables(LAWS["wide"], 0.5), strict=True)
        ]
        narrow, wide = map(list, zip(*runs, strict=True))
    assert too_few(narrow) or name == "kolmogorov"  # of these records the distance is not 0
    assert too_few(wide)


@pytest.mark.parametrize("name", ["woe", "gini", "below"])
def test_a_mutant_that_leaves_the_noise_out_is_found(name: str) -> None:
    measure, truth = MEASURES[name]
    of_all = truth(LAWS["few"].shape)
    runs = [
        held(measure(noisy, 0.3 * noise(0.5)), truth(exact), of_all, name == "below")
        for exact, noisy in zip(*tables(LAWS["few"], 0.5), strict=True)
    ]
    narrow, _ = zip(*runs, strict=True)
    assert too_few(list(narrow))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("n", [1000, 20_000])
def test_rates_of_groups_hold(n: int, epsilon: float) -> None:
    rng, rates = np.random.default_rng(3), np.array([0.7, 0.55, 0.62])
    sizes = np.array([0.5, 0.3, 0.2])
    shape = sizes[:, None] * np.stack([1 - rates, rates], axis=1)
    s = noise(epsilon)

    def apart(rates: Floats) -> dict[str, Floats]:
        others = rates[1:]
        return {"": rates, "_difference": others - rates[0], "_ratio": others / rates[0]}

    hits: dict[str, list[tuple[Floats, ...]]] = {name: [] for name in apart(rates)}
    for _ in range(RUNS):
        exact = rng.poisson(n * shape).astype(float)
        found = risk.compared(exact + rng.normal(0, s, exact.shape), 1, s)
        own = apart(exact[:, 1] / exact.sum(axis=1))
        for name, part in found.items():
            hits[name].append(held(part, own[name], apart(rates)[name]))
    for name, runs in hits.items():
        narrow, wide = zip(*runs, strict=True)
        assert not too_few(list(narrow)), name
        assert not too_few(list(wide)), name


SCHEMA = Schema(
    dataset="grid",
    unit="row",
    columns=[
        {"name": "score", "type": "number", "min": 0, "max": 1},
        {"name": "year", "type": "category", "categories": ["old", "new"]},
        {"name": "sex", "type": "category", "categories": ["m", "f"]},
        {"name": "default", "type": "boolean"},
    ],
)


def people(rng: np.random.Generator, n: int) -> Records:
    year, sex = rng.integers(0, 2, n), rng.integers(0, 2, n)
    score = rng.beta(2 + 0.4 * year, 2 - 0.2 * sex, n)
    default = rng.random(n) < 0.35 - 0.25 * score
    return SCHEMA.grid().encode(np.column_stack([score, year, sex, default]))


def released(records: Records, noise: NoiseSource, epsilon: float = 1.0) -> Results:
    options = {"edges": {"score": [0.3, 0.5, 0.7]}, "over": "year", "group": "sex"}
    return run_job(
        Scorecard,
        SCHEMA,
        {"one": [records[::2]], "two": [records[1::2]]},
        **{"epsilon": epsilon, "delta": 1e-6, "nominal_n": 5000, "noise": noise},
        **{"target": "default", "characteristics": ["score"], "decision": "score", "cutoff": 0.5},
        **options,
    ).results


def test_a_whole_job_holds_with_a_nominal_number_that_is_wrong() -> None:
    rng, runs = np.random.default_rng(2), 200
    everybody = released(people(rng, 1_000_000), ZeroNoise(), 1e6)
    names = [name[:-4] for name in everybody if name.endswith("_low")]
    names = [name for name in names if not name.endswith("_population")]
    assert len(names) == 14
    hits: dict[str, list[tuple[Floats, ...]]] = {name: [] for name in names}
    for seed in range(runs):
        records = people(rng, 7000)
        exact, found = released(records, ZeroNoise(), 1e6), released(records, SimulatedNoise(seed))
        for name in names:
            low, high, *wide = (found[name + end] for end in ("_low", "_high", *ENDS))
            own = (low <= exact[name] + 1e-3) & (exact[name] <= high + 1e-3)
            law = (wide[0] <= everybody[name] + 1e-3) & (everybody[name] <= wide[1] + 1e-3)
            hits[name].append((own, law))
    least = float(stats.binom.ppf(1e-6 / CELLS, runs, 0.93)) / runs
    for name, pairs in hits.items():
        for part in zip(*pairs, strict=True):
            assert np.mean(part, axis=0).min() >= least, name
