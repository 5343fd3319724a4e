"""Approximate Cox regression: its intervals hold, and parts that were taken away are missed.

Noise and records are seeded, so nothing here fails by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.audit import audit_task
from cloister.core.arrays import Floats, GridState, Integers, Records
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks.regression.engine import Gradient, Solution
from cloister.tasks.regression.newton import Fitted
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.testing import SimulatedNoise

COLUMNS = (
    PublicColumn("time", 0.0, 1.25),
    PublicColumn("event", 0.0, 1.0, ("0", "1")),
    *(PublicColumn(f"x{j}", -4.0, 4.0) for j in range(3)),
    PublicColumn("late", 0.0, 1.0, ("0", "1")),
)
BETA = np.array([0.6, -0.4, 0.2, 0.5])
RUNS, N = 20, 10_000
CLAIM = Budget(4.0, 1e-6)


def drawn(rng: np.random.Generator) -> Floats:
    """Return time, event and covariates; records that came late are followed for a shorter time."""
    x = np.clip(rng.normal(0, 1, (N, 3)), -4, 4)
    late = rng.random(N) < 0.4
    all_of = np.column_stack([x, late])
    time = 0.5 * rng.exponential(1, N) ** 1.5 / np.exp(1.5 * (all_of @ BETA))
    followed = np.where(late, rng.uniform(0, 0.5, N), rng.uniform(0.3, 1.2, N))
    return np.column_stack([np.minimum(time, followed), time <= followed, all_of])


def maximum(rows: Floats) -> Floats:
    """Return the maximum of the partial likelihood, where no times are tied."""
    order = np.argsort(-rows[:, 0], kind="stable")
    event, x = rows[order, 1] > 0, rows[order, 2:]
    b = np.zeros(x.shape[1])
    for _ in range(9):
        w = np.exp(x @ b)
        whole = np.cumsum(w)[event]
        mean = np.cumsum(w[:, None] * x, axis=0)[event] / whole[:, None]
        products = np.cumsum(w[:, None, None] * x[:, :, None] * x[:, None], axis=0)[event]
        info = (products / whole[:, None, None]).sum(axis=0) - mean.T @ mean
        b = b + np.linalg.solve(info, (x[event] - mean).sum(axis=0))
    return b


def shares(kind: type[CoxApproximate], epsilon: float) -> tuple[float, float, float]:
    """Return how often both intervals hold, and the half-width over root mean square errors."""
    rng, plan = np.random.default_rng(1), None
    noise, population, errors, halves = [], [], [], []
    for run in range(RUNS):
        rows = drawn(rng)
        plan = plan or make_plan(
            kind,
            schema_of(COLUMNS),
            ("a",),
            budget=Budget(epsilon, 1e-6),
            nominal_n=N,
            time="time",
            event="event",
            nominal_events=N // 2,
        )
        records = {"a": [plan.grid.encode(rows)]}
        found = run_plan(plan, records, noise=SimulatedNoise(run)).results
        best = maximum(rows)
        for hits, end, value in ((noise, "", best), (population, "_population", BETA)):
            hits.append((found[f"coef{end}_low"] <= value) & (value <= found[f"coef{end}_high"]))
        errors.append(found["coef"] - best)
        halves.append((found["coef_high"] - found["coef_low"]) / 2)
    width = np.median(halves, axis=0) / 1.96 / np.sqrt(np.mean(np.square(errors), axis=0))
    return float(np.mean(noise)), float(np.mean(population)), float(np.median(width))


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_hold(epsilon: float) -> None:
    noise, population, width = shares(CoxApproximate, epsilon)
    assert noise >= 0.92
    assert population >= 0.9
    assert width < 2.5


class Deaf(CoxApproximate):
    """Knows a third of the noise."""

    def _moved(self, fit: Fitted, gradient: Gradient, last: bool = False) -> Solution:
        found = super()._moved(fit, gradient, last)
        return replace(found, noise=found.noise / 9)


@pytest.mark.nightly
def test_a_mutant_that_knows_a_third_of_the_noise_fails() -> None:
    assert shares(Deaf, 1.0)[0] < 0.85


class EachRecordTwice(CoxApproximate):
    """Adds each record twice."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return twice the sums."""
        return 2 * super().contribute(t, state, records)


@pytest.mark.nightly
def test_an_audit_finds_a_twin_that_adds_too_much_and_nothing_in_the_task() -> None:
    options = CoxApproximate.example.options
    found = audit_task(EachRecordTwice, CLAIM, options=options, runs=40, words=100)
    assert "sensitivity" in {finding.check for finding in found.findings if finding.alarms}
    found = audit_task(CoxApproximate, CLAIM, runs=100, words=200)
    assert not [finding.check for finding in found.findings if finding.alarms]
