"""Intervals of logistic coefficients hold scikit-learn's, at the defaults, also where the model
is not true.

Each statement is about fixed records and seeded noise, so the shares are the same every time; no
test can fail by chance. Mutants are caught: one takes margins from shortened rows, as a row that
is shortened as a whole would; one sums shortened rows to the end, whose answer is a weighted fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from cloister.app.job import run_job
from cloister.data.schema import Column, Schema
from cloister.tasks.columns import Encoding
from cloister.tasks.supervised import logistic
from cloister.tasks.supervised.frame import Frame, Whole
from cloister.tasks.supervised.logistic import Logistic
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
    elif kind == "heavy":
        tail, skewed = rng.standard_t(3, n).clip(-15, 15), np.exp(rng.normal(0, 0.9, n))
        values = np.column_stack([tail, skewed.clip(0, 30), rng.normal(size=n).clip(-5, 5)])
        margins = 0.8 * np.tanh(tail) + 0.5 * np.log(skewed) + 0.4 * values[:, 2] ** 2 - 0.5
        columns = [number("tail", -15, 15), number("skewed", 0, 30), number("even", -5, 5)]
    elif kind == "categories":
        kinds = rng.choice(5, n, p=[0.45, 0.3, 0.15, 0.07, 0.03])
        x = rng.normal(0.2 * kinds, 1).clip(-5, 6)
        values = np.column_stack([x, kinds, rng.integers(0, 2, n)])
        margins = x + np.array([0, 0.6, -0.8, 1, -1])[kinds] + 0.4 * values[:, 2] - 0.3
        columns = [
            number("x", -5, 6),
            Column(name="kind", type="category", categories=tuple("abcde")),
            Column(name="smokes", type="boolean"),
        ]
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


def released(
    schema: Schema, records: np.ndarray, epsilon: float, seed: int
) -> Mapping[str, np.ndarray]:
    return run_job(
        Logistic,
        schema,
        {"a": [records]},
        epsilon=epsilon,
        nominal_n=len(records),
        noise=SimulatedNoise(seed),
        target="y",
    ).results


def covered(kind: str, epsilon: float) -> np.ndarray:
    """Return in which share of runs each coefficient of scikit-learn is inside."""
    schema, records = table(kind)
    levels = tuple(column.levels for column in schema.public)
    design = Encoding(levels, 16, (len(levels) - 1,)).rows(records)[:, :-1] / 2.0**16
    grid = schema.grid()
    y = np.rint(grid.decode(records / grid.one)[:, -1])
    theirs = LogisticRegression(C=1, tol=1e-10, max_iter=5000).fit(design, y).coef_
    half = np.concatenate(
        [np.ones(c.levels) if c.levels else [(c.high - c.low) / 2] for c in schema.public[:-1]]
    )
    hits = []
    for seed in range(RUNS):
        found = released(schema, records, epsilon, seed)
        hits.append((found["coef_low"] * half <= theirs) & (theirs <= found["coef_high"] * half))
    return np.mean(hits, axis=0)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize(
    "kind", ["skewed", "rare", "nearly separable", "three classes", "heavy", "categories"]
)
def test_default_intervals_hold_the_coefficients_of_scikit_learn(kind: str, epsilon: float) -> None:
    shares = covered(kind, epsilon)
    assert shares.mean() >= 0.90
    assert shares.min() >= 0.80 - 1 / RUNS


def test_intervals_of_categories_say_something() -> None:
    schema, records = table("categories")
    found = released(schema, records, 4.0, 0)
    kinds = slice(1, 6)
    assert abs(found["coef"][0, kinds].sum()) < 1e-3
    assert (found["coef_high"] - found["coef_low"])[0, kinds].max() < 2


def test_shortened_rows_to_the_end_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "_FEWEST", 99)  # rounds from which gradients are of whole rows
    assert covered("heavy", 4.0).mean() < 0.8


def test_a_margin_of_the_shortened_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    margins = Frame.margins

    def shortened(frame: Frame, whole: Whole, weights: np.ndarray) -> np.ndarray:
        short = np.minimum(1, 1.55 / whole.length)
        return margins(frame, replace(whole, numbers=whole.numbers * short), weights)

    monkeypatch.setattr(Frame, "margins", shortened)
    assert covered("skewed", 4.0).mean() < 0.6
