"""The 95 % noise intervals of coefficients hold about as often as they say.

Each statement is about fixed records and fresh noise, and about the solution that the same plan has
without noise. Noise is seeded, so the shares are the same every time. The intervals take weights
for small before any data and add what the last round moved, so they may hold more often than 95 %.
With the default number of rounds a model of three classes has not quite arrived: one coefficient in
fifteen then held in 0.89 of 120 runs, and in 0.94 with 14 rounds. Both are here.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister.jobs import run_job
from cloister.schema import Column, Schema
from cloister.tasks.linear import Linear
from cloister.tasks.logistic import Logistic
from cloister.testing import SimulatedNoise, ZeroNoise

RUNS = 60
N = 10_000
X = tuple(Column(name=f"x{i}", type="number", min=-1.0, max=1.0) for i in range(3))
WORK = Column(name="work", type="category", categories=("a", "b", "c"))


def table(k: int) -> tuple[Schema, np.ndarray]:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.4, (N, 3)) @ np.array([[1, 0.3, 0], [0, 1, 0.2], [0, 0, 0.5]])
    values, work = values.clip(-1, 1), rng.integers(0, 3, N)
    if k:
        margins = values @ rng.normal(0, 1.2, (k, 3)).T
        margins += 0.4 * (work == 1)[:, None] * np.arange(k) - 0.3 * np.arange(k)
        y = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
        last = Column(name="y", type="category", categories=tuple("pqrs"[:k]))
    else:
        y = values @ [0.5, -0.3, 0.2] + 0.2 * (work == 1) + rng.normal(0, 0.2, N)
        last = Column(name="y", type="number", min=-2.0, max=2.0)
    schema = Schema(dataset="toy", unit="row", columns=(*X, WORK, last))
    return schema, schema.grid().encode(np.column_stack([values, work, y]))


ONE = np.sqrt(0.95 * 0.05 / RUNS)


@pytest.mark.parametrize(
    ("k", "epsilon", "rounds", "least"),
    [
        (0, 0.5, None, 0.95 - 4 * ONE),
        (0, 5.0, None, 0.95 - 4 * ONE),
        (2, 0.5, None, 0.95 - 4 * ONE),
        (2, 5.0, None, 0.95 - 4 * ONE),
        (3, 2.0, 14, 0.95 - 4 * ONE),
        (3, 2.0, None, 0.89 - 4 * ONE),
    ],
)
def test_intervals_of_coefficients_hold(
    k: int, epsilon: float, rounds: int | None, least: float
) -> None:
    schema, records = table(k)
    task = Logistic if k else Linear
    # no row is shortened, so that the solution does not depend on the noise of the first round
    options = {"nominal_n": N, "target": "y", "clip": 8.0}
    options |= {"C": 0.05} if k else {"alpha": 20.0}
    more = {"rounds": 100} if k else {}
    chosen = {"rounds": rounds} if rounds else {}
    exact = run_job(
        task, schema, {"a": [records]}, epsilon=1e9, noise=ZeroNoise(), **options, **more
    ).results
    hits = []
    for seed in range(RUNS):
        found = run_job(
            task,
            schema,
            {"a": [records]},
            epsilon=epsilon,
            noise=SimulatedNoise(seed),
            **options,
            **chosen,
        ).results
        within = [
            (found[f"{name}_low"] <= exact[name]) & (exact[name] <= found[f"{name}_high"])
            for name in ("coef", "intercept")
        ]
        hits.append(np.concatenate([part.ravel() for part in within]))
    shares = np.mean(hits, axis=0)
    assert shares.mean() > 0.95 - 2 * ONE / np.sqrt(shares.size)
    assert shares.min() > least
    width = found["coef_high"] - found["coef_low"]
    assert (width < 4).all(), "an interval that says nothing holds always"
