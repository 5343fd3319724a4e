"""Intervals of logistic coefficients hold scikit-learn's, at the defaults, also where the model
is not true.

Each statement is about fixed records and seeded noise, so the shares are the same every time; no
test can fail by chance. The twin takes margins from shortened rows, as a row that is
shortened as a whole would, and is caught.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from cloister.jobs import run_job
from cloister.schema import Column, Schema
from cloister.tasks.columns import Encoding
from cloister.tasks.frame import Frame, Rows, Whole
from cloister.tasks.logistic import Logistic
from cloister.testing import SimulatedNoise

RUNS = 12


def number(name: str, low: float, high: float) -> Column:
    return Column(name=name, type="number", min=low, max=high)


def table(kind: str) -> tuple[Schema, np.ndarray]:
    """Return records on the grid; the last column is the class."""
    rng = np.random.default_rng(7)
    n = 5000
    words: tuple[str, ...] = ("no", "yes")
    if kind == "skewed":
        age, income = rng.gamma(9, 5, n).clip(0, 120), np.exp(rng.normal(10, 0.6, n)).clip(0, 2e5)
        values = np.column_stack([age, income])
        margins = 0.06 * (age - 50) + 0.001 * (age - 45) ** 2
        columns = [number("age", 0, 120), number("income", 0, 2e5)]
    elif kind == "rare":
        values = rng.normal(size=(n, 3)).clip(-4, 4)
        margins = values @ [0.7, -0.4, 0.2] - 3.9
        columns = [number(f"x{j}", -4, 4) for j in range(3)]
    elif kind == "nearly separable":
        values = rng.uniform(0, 10, (n, 3))
        margins = 60 * (3 * values[:, 0] - values[:, 1] + rng.normal(size=n) - 10)
        columns = [number(f"x{j}", 0, 10) for j in range(3)]
    else:
        values = rng.normal(size=(n, 3)).clip(-4, 4)
        words = ("p", "q", "r")
        margins = values @ rng.normal(size=(3, 3)) + 0.4 * values[:, :1] ** 2 * [1, 0, 0]
        columns = [number(f"x{j}", -4, 4) for j in range(3)]
    if margins.ndim == 1:
        y = (rng.random(n) < 1 / (1 + np.exp(-np.clip(margins, -500, 500)))).astype(int)
    else:
        y = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
    last = Column(name="y", type="category", categories=words)
    schema = Schema(dataset="toy", unit="row", columns=(*columns, last))
    return schema, schema.grid().encode(np.column_stack([values, y]))


def covered(kind: str, epsilon: float) -> np.ndarray:
    """Return in which share of runs each coefficient of scikit-learn is inside."""
    schema, records = table(kind)
    levels = tuple(column.levels for column in schema.public)
    design = Encoding(levels, 16, (len(levels) - 1,)).rows(records)[:, :-1] / 2.0**16
    grid = schema.grid()
    y = np.rint(grid.decode(records / grid.one)[:, -1])
    theirs = LogisticRegression(C=1, tol=1e-10, max_iter=5000).fit(design, y).coef_
    half = np.array([(c.high - c.low) / 2 for c in schema.public[:-1]])
    hits = []
    for seed in range(RUNS):
        found = run_job(
            Logistic,
            schema,
            {"a": [records]},
            epsilon=epsilon,
            nominal_n=len(records),
            noise=SimulatedNoise(seed),
            target="y",
        ).results
        hits.append((found["coef_low"] * half <= theirs) & (theirs <= found["coef_high"] * half))
    return np.mean(hits, axis=0)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("kind", ["skewed", "rare", "nearly separable", "three classes"])
def test_default_intervals_hold_the_coefficients_of_scikit_learn(kind: str, epsilon: float) -> None:
    shares = covered(kind, epsilon)
    assert shares.mean() >= 0.90
    assert shares.min() >= 0.80 - 1 / RUNS


def test_a_margin_of_the_shortened_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Frame.times

    def shortened(frame: Frame, whole: Whole, factor: np.ndarray) -> Rows:
        rows = times(frame, whole, factor)
        short = np.minimum(1, 1.55 / whole.length())
        return replace(rows, whole=replace(whole, numbers=whole.numbers * short))

    monkeypatch.setattr(Frame, "times", shortened)
    assert covered("skewed", 4.0).mean() < 0.6
