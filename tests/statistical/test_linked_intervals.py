"""Intervals of linked tables: how often they hold the value without noise, and the true one.

The sums of an analysis are computed in the clear on generated tables and get the noise of two
servers, so that a thousand runs take seconds. The tables are not those on which the formulas were
chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.privacy.budget import Budget
from cloister.shares.linking import Analysis, Column, Correlation, Linear, Means, Side
from cloister.shares.linking.columns import TOP
from cloister.shares.linking.view import Frame
from cloister.tasks.moments import upper_half

pytestmark = [pytest.mark.statistical, pytest.mark.nightly]

COLUMNS = (
    Column(name="age", low=20.0, high=90.0),
    Column(name="income", low=0.0, high=10.0),
    Column(name="work", categories=("desk", "field")),
    Column(name="cost", low=-20.0, high=60.0),
)
KEY = ("id",)
FRAME = Frame(
    {
        "a": Side(rows=9, key=KEY, columns=COLUMNS[:2]),
        "b": Side(rows=9, key=KEY, columns=COLUMNS[2:]),
    },
    "inner",
)
BUDGET, RUNS = Budget(1.5, 1e-6), 300
LINEAR = Linear(of=("age", "income", "work"), target="cost")
CORRELATION = Correlation(of=("age", "income", "cost"))
MEANS = Means(number="cost", by="work")
COEFFICIENTS = np.array([0.2, 1.5, -4.0, 5.0])  # the constant last
Draw = Mapping[str, NDArray[Any]]


def people(draw: np.random.Generator, n: int) -> Draw:
    """Return skewed incomes that go with age, and costs within their bounds."""
    age = draw.uniform(20, 90, n)
    income = np.clip(draw.gamma(2.0, 1.0, n) + (age - 20) / 20, 0, 10)
    work = draw.integers(2, size=n)
    design = np.column_stack([age, income, work, np.ones(n)])
    cost = design @ COEFFICIENTS + draw.normal(0, 5, n)
    return {"age": age, "income": income, "work": work, "cost": cost}


def design(of: Draw, names: tuple[str, ...]) -> NDArray[np.int64]:
    columns = [
        np.where(of[name] == 1, TOP, -TOP)
        if FRAME.column(name).categories
        else 2 * FRAME.column(name).levels(of[name]).astype(np.int64) - TOP
        for name in names
    ]
    return np.stack([*columns, np.full(len(of["age"]), TOP)], axis=1)


def noisy(draw: np.random.Generator, one: Analysis, sums: NDArray[np.int64]) -> Any:
    """Return the estimates of sums with the noise of both servers."""
    sigma = one.noise(FRAME, BUDGET).sigma
    noise = np.rint(draw.normal(0, sigma, (2, *sums.shape))).sum(axis=0).astype(np.int64)
    return one.answer((sums + noise).view(np.uint64), FRAME, BUDGET).estimates


def holds(low: Any, high: Any, value: Any) -> NDArray[np.bool_]:
    return np.asarray((low <= value) & (value <= high))


@pytest.mark.parametrize("n", [6_000, 40_000])
def test_intervals_hold_the_value_without_noise_and_the_true_one(n: int) -> None:
    """300 runs of 3 to 4 numbers: below 0.90 or above 0.995 by chance in fewer than 1e-6."""
    draw = np.random.default_rng(n)
    found: dict[str, list[NDArray[np.bool_]]] = {}
    for _ in range(RUNS):
        of = people(draw, n)
        rows = design(of, LINEAR.names())
        one = noisy(draw, LINEAR, (rows.T @ rows)[upper_half(rows.shape[1])])["coefficients"]
        if not np.isnan(one.values).any():
            clear = np.column_stack([of["age"], of["income"], of["work"], np.ones(n)])
            exact = np.linalg.lstsq(clear, of["cost"], rcond=None)[0]
            found.setdefault("linear", []).append(holds(one.low, one.high, exact))
            found.setdefault("linear true", []).append(holds(*one.population, COEFFICIENTS))
        rows = design(of, CORRELATION.names())
        sums = (rows.T @ rows)[upper_half(rows.shape[1])]
        one = noisy(draw, CORRELATION, sums)["correlations"]
        exact = np.corrcoef([of["age"], of["income"], of["cost"]])
        off = np.triu_indices(3, 1)
        found.setdefault("correlation", []).append(holds(one.low, one.high, exact)[off])
        u = 2 * COLUMNS[3].levels(of["cost"]).astype(np.int64) - TOP
        parts = np.stack([np.full(n, TOP**2), u * TOP, 2 * u * u - TOP**2], axis=1)
        sums = np.stack([parts[of["work"] == k].sum(axis=0) for k in (0, 1)])
        one = noisy(draw, MEANS, sums)["means"]
        exact = np.array([of["cost"][of["work"] == k].mean() for k in (0, 1)])
        found.setdefault("means", []).append(holds(one.low, one.high, exact))
    shares = {name: float(np.mean(held)) for name, held in found.items()}
    assert all(0.90 < share < 0.995 for share in shares.values()), shares
    assert n < 40_000 or len(found["linear"]) == RUNS
