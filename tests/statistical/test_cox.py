"""Cox regression: its intervals hold, also with strata, and an audit sees a twin.

Noise and records are seeded, so nothing here fails by chance. Limits are 4 binomial deviations from
what is claimed; the mutants are far beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.audit.runs import search
from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.data.schema import schema_of
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import NoisyBlock, PublicColumn
from cloister.tasks.survival.covariate_cells import CovariateCells
from cloister.tasks.survival.cox import Cox
from cloister.testing import toy_task
from cloister_lab.audit.mutants import CLAIM, FixedNoise

COLUMNS = (
    PublicColumn("time", 0.0, 40.0, step=1.0),
    PublicColumn("event", 0.0, 1.0, ("0", "1")),
    PublicColumn("treated", 0.0, 1.0, ("0", "1")),
    PublicColumn("stage", 0.0, 2.0, ("I", "II", "III")),
)
RUNS, N = 80, 5000
SLACK = 4 * np.sqrt(0.95 * 0.05 / RUNS)
EFFECTS = np.array([0.4, 0.3, 0.7])


def drawn(effects: Floats, rng: np.random.Generator) -> Floats:
    """Return time, event, treatment and stage of records."""
    treated, stage = rng.random(N) < 0.4, rng.choice(3, N, p=[0.5, 0.3, 0.2])
    x = np.column_stack([treated, stage == 1, stage == 2])
    time = np.ceil(rng.exponential(18, N) / np.exp(x @ effects))
    lost = np.ceil(rng.uniform(0, 39, N))
    return np.column_stack([np.minimum(time, lost), time <= lost, treated, stage])


def maximum(rows: Floats) -> Floats:
    """Return the maximum of Efron's likelihood."""
    order = np.argsort(-rows[:, 0], kind="stable")
    time, event = rows[order, 0], rows[order, 1] > 0
    x = np.column_stack([rows[order, 2], rows[order, 3] == 1, rows[order, 3] == 2])
    p = x.shape[1]
    b = np.zeros(p)
    for _ in range(6):
        products = (x[:, :, None] * x[:, None]).reshape(-1, p * p)
        sums = np.exp(x @ b)[:, None] * np.column_stack([np.ones(N), x, products])
        _, tick = np.unique(-time, return_inverse=True)
        at = tick[event]
        later = np.cumsum(sums, axis=0)[np.searchsorted(tick, at, side="right") - 1]
        tied = np.zeros((N, sums.shape[1]))
        np.add.at(tied, at, sums[event])
        part = (np.arange(at.size) - np.searchsorted(at, at)) / np.bincount(at)[at]
        each = later - part[:, None] * tied[at]
        mean = each[:, 1 : p + 1] / each[:, :1]
        spread = (each[:, p + 1 :] / each[:, :1]).sum(axis=0).reshape(p, p) - mean.T @ mean
        b = b + np.linalg.solve(spread, (x[event] - mean).sum(axis=0))
    return b


def released(task: Cox, rows: Floats, epsilon: float, rng: np.random.Generator) -> Results:
    """Return what the task makes of records, with Gaussian noise."""
    high = np.array([column.high for column in COLUMNS])
    grid = np.rint((2 * rows / high - 1) * (1 << 16)).astype(np.int32)
    (block,) = task.blocks(0)
    std = gaussian_noise_multiplier(epsilon, 1e-6) * block.l2_squared**0.5
    total = task.contribute(0, {}, grid)
    total = total + np.rint(rng.normal(0, std, len(total))).astype(np.int64)
    answer = {block.name: NoisyBlock(total.reshape(block.shape), float(std))}
    state = {k: round_to_grid(v, 16) for k, v in task.update(0, {}, answer).items()}
    return task.results(state, None)  # type: ignore[arg-type]


def planned(epsilon: float, kind: type[Cox] = Cox) -> Cox:
    return toy_task(
        kind,
        n_features=4,
        nominal_n=N,
        budget=Budget(epsilon, 1e-6),
        columns=COLUMNS,
        time="time",
        event="event",
    )


def shares(epsilon: float, effects: Floats, kind: type[Cox] = Cox) -> dict[str, float]:
    """Return how often intervals hold, the test rejects, and an effect is said to change."""
    task, rng = planned(epsilon, kind), np.random.default_rng(3)
    noise, population, rejected, changes = [], [], [], []
    for _ in range(RUNS):
        rows = drawn(effects, rng)
        found = released(task, rows, epsilon, rng)
        best = maximum(rows)
        for hits, end, value in ((noise, "", best), (population, "_population", effects)):
            hits.append((found[f"coef{end}_low"] <= value) & (value <= found[f"coef{end}_high"]))
        rejected.append(found["wald_p"][0] < 0.05)
        changes.append(found["effect_changes"] > 0)
    parts = {"noise": noise, "population": population, "rejected": rejected, "changes": changes}
    return {name: float(np.mean(part)) for name, part in parts.items()}


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_hold_and_the_test_finds_what_is_there(epsilon: float) -> None:
    found = shares(epsilon, EFFECTS)
    assert found["noise"] > 0.95 - SLACK / 3**0.5
    assert found["population"] > 0.95 - SLACK / 3**0.5
    assert found["rejected"] > 0.9
    assert found["changes"] < 0.01 + 4 * np.sqrt(0.01 / (3 * RUNS))


def test_where_nothing_matters_the_test_rejects_one_in_twenty() -> None:
    assert shares(1.0, np.zeros(3))["rejected"] < 0.05 + SLACK


class Deaf(Cox):
    """A mutant that assumes a third of the noise."""

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        less = {name: replace(of, noise_std=of.noise_std / 3) for name, of in released.items()}
        return super().update(t, state, less)


def test_a_mutant_that_knows_a_third_of_the_noise_fails() -> None:
    assert shares(1.0, EFFECTS, Deaf)["noise"] < 0.95 - 2 * SLACK


class Heavy(CovariateCells):
    """Cells in which a record counts one and a half times."""

    def shares(self, covariates: Records, stratum: Integers) -> tuple[Integers, Integers, Integers]:
        """Return shares with a sum that is too large."""
        cells, shares, split = super().shares(covariates, stratum)
        return cells, shares + shares // 2, split


class HeavyCox(Cox):
    """A twin whose shares do not add up."""

    @property
    def _cells(self) -> CovariateCells:  # type: ignore[override]  # a mutant
        return Heavy(self.levels, self.n_strata, self.frac_bits)


def test_an_audit_finds_a_twin_whose_shares_do_not_add_up_and_nothing_in_the_task() -> None:
    columns = (*COLUMNS[:2], PublicColumn("age", 20.0, 80.0))

    def excess(kind: type[Cox]) -> float:
        options = {"time": "time", "event": "event", "nominal_events": 50_000}
        about = {"budget": CLAIM, "nominal_n": 200}
        plan = make_plan(kind, schema_of(columns), ["silo"], **about, **options)
        return search(plan, "groups", FixedNoise("cox")).excess

    assert excess(Cox) <= 1
    assert excess(HeavyCox) > 1.2
