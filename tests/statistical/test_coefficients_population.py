"""Population intervals of coefficients hold the truth where records came from.

Each run draws a fresh table from a known model, which the task's model can be, and fresh noise, at
the defaults. Categories are held to a reference, since single ones say nothing. Both are seeded, so
nothing here fails by chance; the floors are those that 4 standard errors of a share allow, 2 of the
mean over coefficients. The noise intervals of the same releases are the mutant: sampling left
out of them, they hold the truth far too seldom.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloister.app.job import run_job
from cloister.data.schema import Column, Schema
from cloister.tasks.supervised.contrasts import combination, to_reference
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.testing import SimulatedNoise

RUNS = 60
ERROR = np.sqrt(0.95 * 0.05 / RUNS)
WORK = np.array([0.0, 0.6, -0.8])
TRUE = np.array([0.04, 0.7, -0.5, *WORK, -1.9])  # against the first category, the intercept last
OTHER = np.array([0.02, -0.4, 0.0, 0.0, 0.3, 0.0, -1.3])  # of a third class
LEVELS = (0, 0, 0, 3)


def design(rng: Any, n: int) -> np.ndarray:
    """Return columns, the last of categories: even, normal, skewed, one rare and moved along."""
    work = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    x = (rng.normal(size=n) + 0.4 * (work == 2)).clip(-4, 4)
    return np.column_stack([rng.uniform(20, 90, n), x, rng.exponential(1.2, n).clip(0, 12), work])


def drawn(k: int, rng: Any, n: int) -> tuple[Schema, np.ndarray]:
    """Return records of a linear model, or of a logistic one of `k` classes."""
    columns = [
        Column(name=name, type="number", min=low, max=high)
        for name, low, high in (("age", 0, 100), ("x", -4, 4), ("skewed", 0, 12))
    ]
    columns.append(Column(name="work", type="category", categories=("a", "b", "c")))
    table = design(rng, n)
    one_hot = np.column_stack([table[:, :3], np.eye(3)[table[:, 3].astype(int)], np.ones(n)])
    if k == 0:
        y = (one_hot @ TRUE + rng.normal(0, 1, n)).clip(-8, 8)
        columns.append(Column(name="y", type="number", min=-8, max=8))
    else:
        margins = one_hot @ np.stack([0 * TRUE, TRUE, OTHER][:k]).T
        y = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
        columns.append(Column(name="y", type="category", categories=("p", "q", "r")[:k]))
    schema = Schema(dataset="toy", unit="row", columns=tuple(columns))
    return schema, schema.grid().encode(np.column_stack([table, y]))


def coverage(k: int, epsilon: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often population and noise intervals hold each true coefficient."""
    rng = np.random.default_rng(7)
    rows = to_reference(LEVELS, (0, 0, 0, 0))
    compared = np.flatnonzero(rows.any(axis=1))
    wide, narrow = [], []
    for seed in range(RUNS):
        schema, records = drawn(k, rng, n)
        result = run_job(
            Logistic if k else Linear,
            schema,
            {"a": [records]},
            epsilon=epsilon,
            nominal_n=n,
            noise=SimulatedNoise(seed),
            target="y",
        )
        found, task = result.results, result.plan.task
        pairs = []
        for output, truth in enumerate([TRUE, OTHER][: max(k - 1, 1)], start=1):
            for row in compared:
                if isinstance(task, Logistic):
                    told = task.odds_ratio(found, rows[row], output if k > 2 else 0)
                    pairs.append((np.exp(truth[row]), told))
                else:
                    values = np.append(found["coef"], found["intercept"])
                    covariances = found["covariance"], found["sampling_covariance"]
                    told = combination(rows[row], values, *covariances, middle=found["around"])
                    pairs.append((truth[row], told))
        wide.append([b.population[0] <= true <= b.population[1] for true, b in pairs])
        narrow.append([b.low <= true <= b.high for true, b in pairs])
        if k < 3:  # numbers are the same without a reference
            ends = [np.ravel(found[f"coef_population{end}"])[:3] for end in ("_low", "_high")]
            assert ((ends[0] <= TRUE[:3]) & (TRUE[:3] <= ends[1])).tolist() == wide[-1][:3]
    return np.mean(wide, axis=0), np.mean(narrow, axis=0)


@pytest.mark.parametrize(
    ("k", "epsilon", "n"),
    [(0, 1.0, 5000), (0, 20.0, 20_000), (2, 1.0, 5000), (2, 4.0, 5000), (3, 8.0, 5000)],
)
def test_population_intervals_hold_the_model_that_records_were_drawn_from(
    k: int, epsilon: float, n: int
) -> None:
    wide, narrow = coverage(k, epsilon, n)
    assert wide.min() >= 0.95 - 4 * ERROR
    assert wide.mean() >= 0.95 - 2 * ERROR
    if epsilon >= 4:  # noise is smaller than what sampling does
        assert narrow.mean() < 0.75
        assert narrow.min() < 0.95 - 4 * ERROR


def heavy(rng: Any, n: int) -> tuple[Schema, np.ndarray]:
    """Return records of a logistic model whose bounds are loose, so that a penalty counts."""
    table = rng.standard_t(3, (n, 2)).clip(-15, 15)
    y = table @ HEAVY - 0.5 + rng.logistic(size=n) > 0
    columns = [Column(name=f"x{j}", type="number", min=-15, max=15) for j in range(2)]
    columns.append(Column(name="y", type="category", categories=("p", "q")))
    schema = Schema(dataset="toy", unit="row", columns=tuple(columns))
    return schema, schema.grid().encode(np.column_stack([table, y]))


HEAVY = np.array([0.5, -0.8])


@pytest.mark.parametrize(
    ("penalised", "least", "most"), [(False, 0.95 - 4 * ERROR, 1), (True, 0, 0.5)]
)
def test_population_intervals_do_not_hold_what_a_penalty_does(
    penalised: bool, least: float, most: float
) -> None:
    """As docs/how-to/regression.md says; without a penalty they hold the truth."""
    rng = np.random.default_rng(5)
    held = []
    for seed in range(RUNS):
        schema, records = heavy(rng, 5000)
        found = run_job(
            Logistic,
            schema,
            {"a": [records]},
            epsilon=1.0,
            nominal_n=5000,
            noise=SimulatedNoise(seed),
            target="y",
            C=1.0 if penalised else float("inf"),
        ).results
        ends = found["coef_population_low"][0], found["coef_population_high"][0]
        held.append((ends[0] <= HEAVY) & (ends[1] >= HEAVY))
    shares = np.mean(held, axis=0)
    assert least <= shares.min()
    assert shares.max() <= most


def uneven(rng: Any, n: int) -> tuple[Schema, np.ndarray]:
    """Return records of a linear model whose residuals spread further far from the middle."""
    x = rng.normal(size=(n, 2)).clip(-5, 5)
    y = (x @ [1.0, -0.5] + rng.normal(size=n) * (0.2 + x[:, 0] ** 2)).clip(-60, 60)
    columns = [Column(name=f"x{j}", type="number", min=-5, max=5) for j in range(2)]
    columns.append(Column(name="y", type="number", min=-60, max=60))
    schema = Schema(dataset="toy", unit="row", columns=tuple(columns))
    return schema, schema.grid().encode(np.column_stack([x, y]))


@pytest.mark.parametrize(
    ("sandwich", "low", "high"), [(True, 0.95 - 4 * ERROR, 1.0), (False, 0.0, 0.8)]
)
def test_the_sandwich_holds_residuals_of_uneven_variance(
    sandwich: bool, low: float, high: float
) -> None:
    """Without it, intervals for one variance are the mutant that is caught."""
    rng, held = np.random.default_rng(11), []
    for seed in range(RUNS):
        schema, records = uneven(rng, 8_000)
        found = run_job(
            Linear,
            schema,
            {"a": [records]},
            epsilon=20.0,
            nominal_n=len(records),
            noise=SimulatedNoise(seed),
            target="y",
            sandwich=sandwich,
        ).results
        ends = found["coef_population_low"][0], found["coef_population_high"][0]
        held.append(ends[0] <= 1.0 <= ends[1])
    assert low <= np.mean(held) <= high
