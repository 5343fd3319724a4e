"""Cox regression: its intervals hold, its test rejects as seldom as it says, an audit sees a twin.

Noise and records are seeded, so nothing here fails by chance. Limits are 4 binomial deviations from
what is claimed; the mutants are far beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.audit.runs import search
from cloister.core.arrays import Floats, Results
from cloister.data.schema import schema_of
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import NoisyBlock, PublicColumn
from cloister.tasks.examples import example_of
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.tasks.survival.score import Score, Series
from cloister.testing import toy_task
from cloister_lab.audit.mutants import CLAIM, FixedNoise

COLUMNS = (
    PublicColumn("time", 0.0, 1.0),
    PublicColumn("event", 0.0, 1.0, ("0", "1")),
    *(PublicColumn(f"x{j}", -1.0, 1.0) for j in range(3)),
)
RUNS = 300
SLACK = 4 * np.sqrt(0.95 * 0.05 / RUNS)
N = 4000
WEAK, NOTHING = np.array([0.25, -0.2, 0.1]), np.zeros(3)


def drawn(beta: Floats, rng: np.random.Generator) -> Floats:
    """Return time, event and covariates of records."""
    x = rng.uniform(-1, 1, (N, 3))
    time = rng.exponential(1, N) / (1.2 * np.exp(x @ beta))
    lost = rng.exponential(2, N)
    event = (time <= lost) & (time < 1)
    return np.column_stack([np.minimum(np.minimum(time, lost), 1.0), event, x])


def maximum(rows: Floats, horizon: float) -> Floats:
    """Return the maximum of the partial likelihood up to a horizon."""
    order = np.argsort(-rows[:, 0], kind="stable")
    time, event, x = rows[order, 0], rows[order, 1] > 0, rows[order, 2:]
    event &= time <= horizon
    b = np.zeros(3)
    for _ in range(8):
        w = np.exp(x @ b)
        whole = np.cumsum(w)[event]
        mean = np.cumsum(w[:, None] * x, axis=0)[event] / whole[:, None]
        products = np.cumsum(w[:, None, None] * x[:, :, None] * x[:, None], axis=0)[event]
        info = (products / whole[:, None, None]).sum(axis=0) - mean.T @ mean
        b = b + np.linalg.solve(info, (x[event] - mean).sum(axis=0))
    return b


def released(
    task: CoxApproximate, rows: Floats, epsilon: float, rng: np.random.Generator
) -> Results:
    """Return what the task makes of records, with Gaussian noise."""
    low = np.array([0.0, 0.0, -1.0, -1.0, -1.0])
    grid = np.rint((2 * (rows - low) / (1 - low) - 1) * (1 << 16)).astype(np.int32)
    state = {k: round_to_grid(v, 16) for k, v in task.start().items()}
    for t in range(task.rounds):
        (block,) = task.blocks(t)
        std = gaussian_noise_multiplier(epsilon, 1e-6) * (block.l2_squared / block.weight) ** 0.5
        total = task.contribute(t, state, grid)
        total = total + np.rint(rng.normal(0, std, len(total))).astype(np.int64)
        answer = {block.name: NoisyBlock(total.reshape(block.shape), float(std))}
        state = {k: round_to_grid(v, 16) for k, v in task.update(t, state, answer).items()}
    return task.results(state, None)  # type: ignore[arg-type]


def planned(epsilon: float, kind: type[CoxApproximate] = CoxApproximate) -> CoxApproximate:
    return toy_task(
        kind,
        n_features=5,
        nominal_n=N,
        budget=Budget(epsilon, 1e-6),
        columns=COLUMNS,
        time="time",
        event="event",
        nominal_events=2400,
    )


def shares(
    epsilon: float, beta: Floats, kind: type[CoxApproximate] = CoxApproximate
) -> dict[str, float]:
    """Return how often intervals of unmarked coefficients hold, and the test rejects."""
    task, rng = planned(epsilon, kind), np.random.default_rng(3)
    noise, population, rejected, kept = [], [], [], []
    for _ in range(RUNS):
        rows = drawn(beta, rng)
        found = released(task, rows, epsilon, rng)
        best = maximum(rows, float(found["horizon"][0]))
        for hits, end, value in ((noise, "", best), (population, "_population", beta)):
            hits.append((found[f"coef{end}_low"] <= value) & (value <= found[f"coef{end}_high"]))
        kept.append(found["attenuated"] == 0)
        rejected.append(found["score_p"][0] < 0.05)
    clear = np.array(kept)
    return {
        "noise": float(np.array(noise)[clear].mean()),
        "population": float(np.array(population)[clear].mean()),
        "rejected": float(np.mean(rejected)),
    }


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_hold_and_the_test_finds_what_is_there(epsilon: float) -> None:
    found = shares(epsilon, WEAK)
    assert planned(epsilon).order == (2 if epsilon < 2 else 4)
    assert found["noise"] > 0.95 - SLACK / 3**0.5
    assert found["population"] > 0.95 - SLACK / 3**0.5
    assert found["rejected"] > 0.9


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_where_nothing_matters_the_test_rejects_one_in_twenty(epsilon: float) -> None:
    assert shares(epsilon, NOTHING)["rejected"] < 0.05 + SLACK


@dataclass(frozen=True)
class Deaf(Series):
    """A mutant that halves the noise assumed in all sums."""

    def solve(
        self, residuals: Floats, sums: Floats, std: float, sums_std: float, drift: float
    ) -> Score:
        """Return the estimate with intervals that are too short."""
        return super().solve(residuals, sums, std / 2, sums_std / 2, drift)


class DeafCox(CoxApproximate):
    """Cox regression with it."""

    @property
    def _series(self) -> Series:  # type: ignore[override]
        return Deaf(len(self.names), self.order)


def test_a_mutant_that_knows_half_of_the_noise_fails_both() -> None:
    assert shares(4.0, WEAK, DeafCox)["noise"] < 0.95 - 2 * SLACK
    assert shares(0.5, NOTHING, DeafCox)["rejected"] > 0.05 + 2 * SLACK


class Longer(CoxApproximate):
    """A twin that multiplies residuals by covariates that nobody divided by their length."""

    @property
    def _length(self) -> float:  # type: ignore[override]
        return 0.5

    def _moments(self, known, x, residual, hazard):  # type: ignore[no-untyped-def]
        products = self._series.products(x / self._length)
        unit, worth = self._scales(float(known.hazard.max()))
        both = np.concatenate([residual * products[: 1 + len(x)], worth * hazard * products])
        return np.trunc(both * ((1 << 16) / unit)).sum(axis=1).astype(np.int64)


@pytest.mark.parametrize("nominal_events", [1000, 50_000])
def test_an_audit_finds_a_twin_without_bounds_and_nothing_in_the_task(nominal_events: int) -> None:
    case = example_of(CoxApproximate)
    options = {**case.options, "nominal_events": nominal_events}

    def excess(kind: type[CoxApproximate]) -> float:
        plan = make_plan(
            kind, schema_of(case.columns), ["silo"], budget=CLAIM, nominal_n=200, **options
        )
        return search(plan, "groups", FixedNoise("cox")).excess

    assert excess(CoxApproximate) <= 1
    assert excess(Longer) > 1.2


def test_a_plan_of_each_series_is_audited() -> None:
    case = example_of(CoxApproximate)
    orders = {
        make_plan(
            CoxApproximate,
            schema_of(case.columns),
            ["silo"],
            budget=Budget(1.0, 1e-6),
            nominal_n=200,
            **{**case.options, "nominal_events": events},
        ).task.order  # type: ignore[attr-defined]
        for events in (1000, 50_000)
    }
    assert orders == {2, 4}
    assert replace(planned(4.0), order=2).blocks(1)[0].size < planned(4.0).blocks(1)[0].size
