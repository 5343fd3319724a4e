"""Survival: intervals hold as often as they say, tests err as often as they say, and audits pass.

All randomness is seeded, so nothing fails by chance. A share may be 4 binomial deviations off. The
mutants leave the noise out of the variance, as who takes noisy counts for counts does, or send
numbers at risk in place of exits; each fails clearly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest

from cloister.app.job import run_job
from cloister.audit import audit_task
from cloister.core.arrays import Floats, GridState, Integers, Records
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.tasks.survival import curves
from cloister.tasks.survival.survival import Survival
from cloister.testing import SimulatedNoise
from cloister_lab.audit.mutants import FixedNoise

RUNS, SAMPLES = 300, 1500
SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="months", type="number", min=0.0, max=40.0),
        Column(name="died", type="boolean"),
        Column(name="drug", type="category", categories=("old", "new")),
    ),
)
ASKED = {"time": "months", "event": "died", "by": "drug", "tau": 30.0}
EDGES = np.linspace(0, 1.5, 9)


def close(share: float, runs: int, at: float = 0.95) -> bool:
    return abs(share - at) <= 4 * np.sqrt(at * (1 - at) / runs)


def records(n: int = 3000) -> Records:
    rng = np.random.default_rng(5)
    drug = rng.integers(0, 2, n)
    months, followed = rng.exponential(20 + 10 * drug), rng.uniform(5, 39, n)
    columns = (np.minimum(months, followed), months < followed, drug)
    return SCHEMA.grid().encode(np.column_stack(columns).astype(np.float64))


@pytest.fixture(scope="module")
def releases() -> tuple[dict[str, Floats], list[dict[str, Floats]]]:
    """What the same records say without noise, and with noise many times over."""
    table = {"a": [records()]}
    given = {"nominal_n": 3000, **ASKED, "intervals": 8}
    exact = run_job(Survival, SCHEMA, table, epsilon=1e9, noise=SimulatedNoise(0), **given)
    noisy = (
        run_job(Survival, SCHEMA, table, epsilon=0.7, noise=SimulatedNoise(seed), **given)
        for seed in range(RUNS)
    )
    return dict(exact.results), [dict(one.results) for one in noisy]


@pytest.mark.parametrize("name", ["survival", "cumulative_hazard", "median", "rate", "rate_ratio"])
def test_a_noise_interval_holds_in_95_runs_of_100(
    name: str, releases: tuple[dict[str, Floats], list[dict[str, Floats]]]
) -> None:
    exact, noisy = releases
    low, high = (np.array([one[name + end] for one in noisy]) for end in ("_low", "_high"))
    shown = np.ones(low.shape, dtype=bool)
    if name in ("survival", "cumulative_hazard"):
        last = np.array([one["usable"] for one in noisy])
        shown = (np.arange(low.shape[2]) <= last[:, :, None]) & (np.arange(low.shape[2]) > 0)
    inside = (low - 1e-4 <= exact[name]) & (exact[name] <= high + 1e-4)
    # places of one curve go together, so each is looked at by itself
    for place in np.ndindex(low.shape[1:]):
        seen = shown[(slice(None), *place)]
        if seen.mean() > 0.9:
            assert close(inside[(slice(None), *place)][seen].mean(), int(seen.sum())), place


def exits_of(rng: np.random.Generator, runs: int, n: int, hazard: float = 1.0) -> Floats:
    """Return the exact exits of many samples at once; the horizon is 1.5."""
    time, followed = rng.exponential(1 / hazard, (runs, n)), rng.uniform(0.3, 2.5, (runs, n))
    seen = np.minimum(time, followed)
    row = np.where(seen > EDGES[-1], len(EDGES) - 1, np.searchsorted(EDGES, seen) - 1)
    words = curves.word_of(row, (time < followed).astype(int), len(EDGES) - 1)
    size = 2 * len(EDGES) - 1
    places = words + np.arange(runs)[:, None] * size
    counts = np.bincount(places.ravel(), minlength=runs * size).reshape(runs, size)
    return curves.table_of(counts.astype(np.float64))


def noisy(rng: np.random.Generator, exits: Floats, noise: float) -> Floats:
    """Return tables with noise in all numbers, one of them beyond the horizon."""
    size = (*exits.shape[:-2], 2 * len(EDGES) - 1)
    return exits + curves.table_of(rng.normal(0, noise, size))


def held(exits: Floats, noise: float, believed: float) -> float:
    """Return how often the population interval in the middle has the truth."""
    rng = np.random.default_rng(7)
    found = curves.kaplan_meier(noisy(rng, exits, noise), believed)
    low, high = (end[:, 4] for end in found.population)
    truth = np.exp(-EDGES[4])
    return float(((low <= truth) & (truth <= high)).mean())


@pytest.mark.parametrize("noise", [1.2, 8.0])
def test_a_population_interval_holds_and_one_without_the_noise_does_not(noise: float) -> None:
    exits = exits_of(np.random.default_rng(6), SAMPLES, 1000)
    assert close(held(exits, noise, noise), SAMPLES)
    if noise > 2:
        assert not close(held(exits, noise, 1e-9), SAMPLES)
        assert held(exits, noise, 1e-9) < 0.85


def rejected(noise: float, believed: float, hazard: float) -> float:
    """Return how often two groups are said to differ at 5 in 100."""
    rng = np.random.default_rng(8)
    groups = [exits_of(rng, SAMPLES, 700, rate) for rate in (1.0, hazard)]
    exits = np.stack(groups, axis=1)
    tests = (curves.log_rank(y, believed) for y in noisy(rng, exits, noise))
    return float(np.mean([test.p < 0.05 for test in tests]))


@pytest.mark.parametrize("noise", [0.0, 1.2, 8.0])
def test_the_log_rank_test_errs_in_5_of_100_and_sees_what_there_is(noise: float) -> None:
    assert close(rejected(noise, noise, 1.0), SAMPLES, 0.05)
    assert rejected(noise, noise, 1.5) > (0.6 if noise > 2 else 0.95)


def test_a_log_rank_test_that_does_not_know_of_the_noise_finds_what_is_not_there() -> None:
    assert rejected(8.0, 1e-9, 1.0) > 0.15


# The audit ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SendsAtRisk(Survival):
    """A broken twin: numbers at risk, as published methods send them, under the bound of exits."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        sent = super().contribute(t, state, records)
        table = curves.table_of(sent.reshape(len(self.groups), -1))
        risk = table[:, ::-1].cumsum(axis=1)[:, ::-1]
        return risk.reshape(len(self.groups), -1)[:, :-1].ravel()


@pytest.mark.parametrize(("task", "sound"), [(Survival, True), (SendsAtRisk, False)])
def test_an_audit_passes_and_finds_who_sends_numbers_at_risk(
    task: type[Survival], sound: bool
) -> None:
    job = count()
    audit = audit_task(
        task,
        Budget(1.0, 1e-6),
        runs=400 if sound else 100,
        canaries=60,
        words=800,
        make_noise=lambda: FixedNoise(f"survival {next(job)}"),
    )
    assert any(finding.alarms for finding in audit.findings) != sound
