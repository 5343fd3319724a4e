"""The 95 % noise intervals of coefficients hold about as often as they say.

Linear models are held to least squares on the same records, as scikit-learn gives them, at all
defaults: curved truths, columns with tails, correlated ones, wide bounds and rare categories. What
the intervals add for tails makes them hold more often than 95 % on most tables.

Each statement is about fixed records and fresh noise, and about the solution that the same plan has
without noise. Noise is seeded, so the shares are the same every time. The intervals take weights
for small before any data and add what the last round moved, so they may hold more often than 95 %.
With the default number of rounds a model of three classes has not quite arrived: one coefficient in
fifteen then held in 0.89 of 120 runs, and in 0.94 with 14 rounds. Both are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from cloister.app.job import run_job
from cloister.data.schema import Column, Schema
from cloister.tasks.columns import Encoding
from cloister.tasks.supervised import linear
from cloister.tasks.supervised.least_squares import Fit
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
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
    task = Logistic
    # no row is shortened, so that the solution does not depend on the noise of the first round
    options = {"nominal_n": N, "target": "y", "clip": 8.0}
    options |= {"C": 0.05}
    more = {"rounds": 100}
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


# --- linear models, at their defaults, against least squares

Columns = tuple[Schema, np.ndarray]


def numbers(values: np.ndarray, y: np.ndarray, low: float, high: float, most: float) -> Columns:
    columns = [
        Column(name=f"x{j}", type="number", min=low, max=high) for j in range(values.shape[1])
    ]
    last = Column(name="y", type="number", min=-most, max=most)
    schema = Schema(dataset="toy", unit="row", columns=(*columns, last))
    kept = np.column_stack([values.clip(low, high), y.clip(-most, most)])
    return schema, schema.grid().encode(kept)


def straight() -> Columns:
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.exponential(1, 5000), rng.normal(0, 1, 5000)])
    y = 2 * values[:, 0] - values[:, 1] + rng.normal(0, 1, 5000)
    return numbers(values, y, -10, 10, 60)


def curved() -> Columns:
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, (8000, 3))
    y = values[:, 0] ** 2 + values[:, 0] + values[:, 1] + rng.normal(0, 0.5, 8000)
    return numbers(values, y, -5, 5, 30)


def skewed() -> Columns:
    rng = np.random.default_rng(2)
    values = rng.lognormal(0, 0.7, (8000, 3))
    y = np.sqrt(values[:, 0]) + 0.3 * values[:, 1] + rng.normal(0, 0.5, 8000)
    return numbers(values, y, 0, 30, 20)


def correlated() -> Columns:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (8000, 1)) * 0.9 + rng.normal(0, 0.45, (8000, 4))
    y = values @ [1.0, -0.5, 0.3, 0.0] + rng.standard_t(3, 8000)
    return numbers(values, y, -5, 5, 15)


def wide() -> Columns:
    rng = np.random.default_rng(4)
    values = np.column_stack([rng.exponential(1, 5000), rng.uniform(0, 10, 5000)])
    y = 2 * values[:, 0] - values[:, 1] + rng.normal(0, 1, 5000)
    return numbers(values, y, -100, 100, 100)


def rare() -> Columns:
    rng = np.random.default_rng(5)
    kind = rng.choice(5, 8000, p=[0.5, 0.3, 0.14, 0.04, 0.02])
    x = rng.normal(0.2 * kind, 1)
    y = x + np.array([0, 0.5, -1, 1, 2])[kind] + rng.normal(0, 1, 8000)
    columns = (
        Column(name="x", type="number", min=-5, max=6),
        Column(name="kind", type="category", categories=tuple("abcde")),
        Column(name="y", type="number", min=-12, max=12),
    )
    schema = Schema(dataset="toy", unit="row", columns=columns)
    return schema, schema.grid().encode(np.column_stack([x.clip(-5, 6), kind, y.clip(-12, 12)]))


def least_squares(schema: Schema, records: np.ndarray) -> np.ndarray:
    """Return scikit-learn's coefficients for columns scaled to [-1, 1], back in data units."""
    levels = tuple(len(c.categories) if c.type == "category" else 0 for c in schema.columns)
    last = len(levels) - 1
    design = Encoding(levels, 16, (last,)).rows(records)[:, :-1] / 2.0**16
    y = schema.grid().decode(records / 2.0**16)[:, -1]
    half = [
        np.ones(k) if (k := levels[j]) else np.array([(c.max - c.min) / 2])
        for j, c in enumerate(schema.columns[:-1])
    ]
    coefficients: np.ndarray = LinearRegression().fit(design, y).coef_ / np.concatenate(half)
    return coefficients


def coverage(
    make: Callable[[], Columns], epsilon: float, **options: float
) -> tuple[np.ndarray, float]:
    """Return how often each interval holds, and which part of those without 0 has a wrong sign."""
    schema, records = make()
    wanted = least_squares(schema, records)
    held, wrong, without = [], 0, 0
    for seed in range(LINEAR_RUNS):
        found: Mapping[str, np.ndarray] = run_job(
            Linear,
            schema,
            {"a": [records]},
            epsilon=epsilon,
            nominal_n=len(records),
            noise=SimulatedNoise(seed),
            target="y",
            **options,
        ).results
        low, high = found["coef_low"], found["coef_high"]
        held.append((low <= wanted) & (wanted <= high))
        sure = (low > 0) | (high < 0)
        without += int(sure.sum())
        wrong += int((sure & (np.sign(low) != np.sign(wanted))).sum())
    return np.mean(held, axis=0), wrong / max(without, 1)


LINEAR_RUNS = 20


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("make", [straight, curved, skewed, correlated, wide, rare])
def test_default_intervals_hold_least_squares_whatever_the_truth(
    make: Callable[[], Columns], epsilon: float
) -> None:
    held, wrong = coverage(make, epsilon)
    assert held.mean() >= 0.9
    assert held.min() >= 0.8
    assert wrong <= 0.02


def test_intervals_of_the_first_model_alone_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: without the step over whole rows, shortened ones bias a curved truth."""

    def stays(self: Linear, now: Any) -> Fit:
        return Linear._first(self, now)

    monkeypatch.setattr(linear.Linear, "_last", stays)
    held, _ = coverage(skewed, 4.0, clip=1.5)
    assert held.mean() < 0.7
