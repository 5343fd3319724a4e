"""Intervals of treatment effects hold what they name, on tables that were seen twice.

Records and noise are drawn from seeds, so a test is the same in every run.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import Floats
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.weighing import ESTIMANDS
from cloister.testing import SimulatedNoise

pytestmark = pytest.mark.nightly
N, REPEATS = 8000, 40


def expit(margin: Floats) -> Floats:
    return 1 / (1 + np.exp(-margin))


def number(name: str, low: float, high: float) -> Column:
    return Column(name=name, type="number", min=low, max=high)


def boolean(name: str) -> Column:
    return Column(name=name, type="boolean")


def costs(rng: np.random.Generator) -> np.ndarray:
    """Return records with a long tail of the outcome, and a true effect of -0.8."""
    x = np.column_stack([rng.integers(18, 90, N), rng.choice(3, N, p=[0.6, 0.3, 0.1])])
    ill, age = (rng.random(N) < 0.15) * 1.0, (x[:, 0] - 54) / 20
    t = (rng.random(N) < expit(-0.5 + 0.5 * age + 0.6 * (x[:, 1] == 2))) * 1.0
    y = np.exp(1.5 + 0.3 * age + 0.4 * ill) * rng.gamma(2, 0.5, N) - 0.8 * t + 2
    return np.column_stack([x, ill, t, y.clip(0, 60)])


def a_wrong_propensity(rng: np.random.Generator) -> np.ndarray:
    """Return records whose propensity is no logistic model, and a true effect of 1."""
    a, b, c = rng.normal(0, 1, N).clip(-3, 3), rng.uniform(-2, 2, N), (rng.random(N) < 0.5) * 1.0
    t = (rng.random(N) < expit(-0.6 + 0.6 * a + 0.4 * b**2)) * 1.0
    y = t + a + 0.5 * b + rng.normal(0, 1, N)
    return np.column_stack([a, b, c, t, y.clip(-9, 9)])


TABLES = {
    costs: (
        (
            *(number("age", 18, 90), Column(name="b", type="category", categories=tuple("xyz"))),
            *(boolean("c"), boolean("t"), number("y", 0, 60)),
        ),
        -0.8,
    ),
    a_wrong_propensity: (
        (number("a", -3, 3), number("b", -2, 2), boolean("c"), boolean("t"), number("y", -9, 9)),
        1.0,
    ),
}


@pytest.mark.parametrize("draw", TABLES)
def test_population_intervals_hold_the_true_effect(draw: object) -> None:
    columns, truth = TABLES[draw]  # type: ignore[index]  # a key of it
    schema = Schema(dataset="toy", unit="row", columns=columns)
    about = {"budget": Budget(1.0, 1e-6), "nominal_n": N, "treatment": "t", "outcome": "y"}
    plan = make_plan(TreatmentEffect, schema, ("p",), **about)
    held = {name: [] for name in ESTIMANDS}
    for i in range(REPEATS):
        cells = draw(np.random.default_rng([31, i]))  # type: ignore[operator]
        records = {"p": [plan.grid.encode(cells)]}
        results = run_plan(plan, records, noise=SimulatedNoise(3000 + i)).results
        for name, found in held.items():
            ends = [results[f"{name}_population_{side}"][0] for side in ("low", "high")]
            # An interval that is not known is endless, and counts as one that fails.
            found.append(-np.inf < ends[0] <= truth <= ends[1] < np.inf)
    assert all(np.mean(found) >= 0.9 for found in held.values()), held
