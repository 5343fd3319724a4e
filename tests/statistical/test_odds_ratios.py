"""Intervals of odds ratios hold those of scikit-learn on the same records, at the defaults.

Odds ratios are of numbers for one unit, of each category against the first and against the last of
its column, and for three classes against the first class. Each statement is about fixed records and
seeded noise, so nothing here fails by chance; the floors are those that 4 standard errors of a
share allow, 2 of the mean. Mutants take the odds against no class, and forget that the first
class is noisy, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from cloister.app.job import run_job
from cloister.app.release import Release
from cloister.core.display import Estimate
from cloister.data.schema import Column, Schema
from cloister.tasks.columns import Encoding
from cloister.tasks.supervised import logistic
from cloister.tasks.supervised.contrasts import combination, to_reference
from cloister.tasks.supervised.logistic import Logistic
from cloister.testing import SimulatedNoise

RUNS = 40
ERROR = np.sqrt(0.95 * 0.05 / RUNS)
N = 6000


def table(kind: str, k: int) -> tuple[Schema, np.ndarray]:
    """Return records on the grid; the last column is one of `k` classes."""
    rng = np.random.default_rng(11)
    if kind == "rare categories":
        kinds = [rng.choice(5, N, p=[0.5, 0.3, 0.14, 0.04, 0.02])]
        low, high, x = -5.0, 6.0, rng.normal(0.2 * kinds[0], 1)
        margins = 0.7 * x + np.array([0, 0.5, -1, 1, 2])[kinds[0]] - 1
    elif kind == "curved":  # the model is not true
        kinds = [rng.choice(4, N)]
        low, high, x = 0.0, 25.0, rng.gamma(2 + kinds[0], 1)
        margins = 0.15 * (x - 3) ** 2 / (1 + 0.1 * x) - 1
        margins += np.array([0, 0.5, -0.5, 1])[kinds[0]] * (x > 2)
    else:  # two columns of categories that go together
        first = rng.choice(3, N, p=[0.5, 0.3, 0.2])
        kinds = [first, (first + rng.choice(3, N, p=[0.6, 0.2, 0.2])) % 3]
        low, high, x = -4.0, 4.0, rng.normal(0.3 * first, 1)
        margins = 0.6 * x + np.array([0, 0.7, -0.4])[first] + np.array([0, -0.5, 0.9])[kinds[1]]
    of_class = np.column_stack([0 * x, margins, 0.5 * x - 0.3 * margins - 0.2])[:, :k]
    y = (of_class + rng.gumbel(size=of_class.shape)).argmax(axis=1)
    columns = [Column(name="x", type="number", min=low, max=high)]
    for j, codes in enumerate([*kinds, y]):
        names = tuple("abcde"[: codes.max() + 1])
        columns.append(Column(name=f"c{j}", type="category", categories=names))
    schema = Schema(dataset="toy", unit="row", columns=tuple(columns))
    return schema, schema.grid().encode(np.column_stack([x.clip(low, high), *kinds, y]))


@cache
def releases(kind: str, k: int, epsilon: float) -> tuple[list[Release], np.ndarray, np.ndarray]:
    """Return releases, the combinations of columns, and scikit-learn's log odds ratios of them."""
    schema, records = table(kind, k)
    *levels, _ = (column.levels for column in schema.public)
    last = [max(level - 1, 0) for level in levels]
    rows = np.concatenate(
        [to_reference(levels, chosen)[:-1] for chosen in ([0] * len(levels), last)]
    )
    rows = np.unique(rows[rows.any(axis=1)], axis=0)
    at = len(levels)
    coded = Encoding((*levels, k), 16, (at,)).rows(records)[:, :-1] / 2.0**16
    y = np.rint(schema.grid().decode(records / 2.0**16)[:, at])
    coef = LogisticRegression(C=1, tol=1e-10, max_iter=5000).fit(coded, y).coef_
    coef[:, 0] /= (schema.public[0].high - schema.public[0].low) / 2
    against = coef if k == 2 else coef[1:] - coef[0]
    found = [
        run_job(
            Logistic,
            schema,
            {"a": [records]},
            epsilon=epsilon,
            nominal_n=N,
            noise=SimulatedNoise(seed),
            target=schema.names[at],
        )
        for seed in range(RUNS)
    ]
    return found, rows, against @ rows[:, :-1].T


def covered(kind: str, k: int, epsilon: float) -> np.ndarray:
    """Return in which share of runs each odds ratio of scikit-learn is inside."""
    found, rows, wanted = releases(kind, k, epsilon)
    hits = []
    for result in found:
        task = result.plan.task
        assert isinstance(task, Logistic)
        told = [
            task.odds_ratio(result.results, row, output if k > 2 else 0)
            for output in range(1, len(wanted) + 1)
            for row in rows
        ]
        pairs = zip(told, np.exp(wanted).ravel(), strict=True)
        hits.append([between.low <= ratio <= between.high for between, ratio in pairs])
    return np.mean(hits, axis=0)


CURVED = ("curved", 3, 4.0)


@pytest.mark.parametrize(
    ("kind", "k", "epsilon"),
    [
        CURVED,
        ("rare categories", 2, 4.0),
        ("rare categories", 3, 4.0),
        ("two columns", 3, 1.0),
        ("two columns", 2, 4.0),
    ],
)
def test_odds_ratios_of_scikit_learn_are_inside(kind: str, k: int, epsilon: float) -> None:
    shares = covered(kind, k, epsilon)
    assert shares.min() >= 0.95 - 4 * ERROR
    assert shares.mean() >= 0.95 - 2 * ERROR


def _own_class(weights: np.ndarray) -> np.ndarray:
    """Return weights without those of the first of three classes."""
    return np.where(np.arange(len(weights)) < len(weights) // 3, 0.0, weights)


def test_odds_against_no_class_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "combination", lambda w, *rest: combination(_own_class(w), *rest))
    assert covered(*CURVED).mean() < 0.7


def test_a_first_class_without_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(weights: np.ndarray, values: np.ndarray, *covariances: Any) -> Estimate:
        value = float(weights @ values)
        own = combination(_own_class(weights), values, *covariances)
        low, high = (value + end - own.value for end in (own.low, own.high))
        return replace(own, values=np.float64(value), low=low, high=high)

    right = covered(*CURVED)
    monkeypatch.setattr(logistic, "combination", narrow)
    # intervals hold more than they must, so it is what they lose that tells
    assert covered(*CURVED).mean() < right.mean() - 0.02
