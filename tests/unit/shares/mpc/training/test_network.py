"""A network of two layers on shares: right, padded, and exact only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import DataError, PlanError
from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.training import NetworkOnShares

MODEL = NetworkOnShares(
    owners=("north", "south", "west"),
    rows=40,
    low=(-1.0,) * 3,
    high=(1.0,) * 3,
    classes=3,
    hidden=6,
    steps=5,
    nominal_n=80,
)


def records() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (80, 3))
    return X, np.argmax(X + draw.normal(0, 0.1, X.shape), axis=1)


def tables(model: NetworkOnShares) -> list[NDArray[np.uint64]]:
    X, y = records()
    return [model.table(X[rows], y[rows]) for rows in np.split(np.arange(80), [40, 60])]


def trained(
    model: NetworkOnShares, tables: list[NDArray[np.uint64]]
) -> tuple[NDArray[np.float64], ...]:
    (first, second), _ = run_here(
        lambda server, *shares: model.run(server, dict(zip(model.owners, shares, strict=True))),
        *tables,
        timeout=20,
    )
    return tuple(decode(combine(first[name], second[name])) for name in ("first", "second"))


def in_the_clear(model: NetworkOnShares) -> tuple[NDArray[np.float64], ...]:
    X, y = records()
    one = np.ones((len(X), 1))
    design, wanted = np.hstack([X / np.sqrt(3), one]), np.eye(model.classes)[y]
    first, second = model.start()
    for _ in range(model.steps):
        raw = design @ first
        hidden = np.hstack([np.maximum(raw, 0), one])
        error = 1 / (1 + np.exp(-hidden @ second)) - wanted
        back = error @ second[:-1].T * (raw > 0)
        rate = model.step / model.nominal_n
        first, second = first - rate * design.T @ back, second - rate * hidden.T @ error
    return first, second


def test_training_on_shares_is_training_in_the_clear() -> None:
    found, clear = trained(MODEL, tables(MODEL)), in_the_clear(MODEL)
    for one, other in zip(found, clear, strict=True):
        assert np.abs(one - other).max() < 1e-3
    X, _ = records()
    labels = [MODEL.scores(X, *weights).argmax(axis=1) for weights in (found, clear)]
    assert (labels[0] == labels[1]).all()


def test_rows_that_are_not_there_change_nothing_whatever_lies_in_them() -> None:
    padded = tables(MODEL)
    draw = np.random.default_rng(3)
    for table in padded:
        missing = table[:, -1] == 0
        assert not table[missing].any()
        shape = (int(missing.sum()), table.shape[1] - 1)
        table[missing, :-1] = draw.integers(0, 2**64, size=shape, dtype=np.uint64)
    for one, other in zip(trained(MODEL, padded), in_the_clear(MODEL), strict=True):
        assert np.abs(one - other).max() < 1e-3


def test_only_an_exact_opening_is_offered() -> None:
    assert MODEL.opening == "exact"
    assert MODEL.event() is None
    assert not hasattr(MODEL, "epsilon")


@pytest.mark.parametrize(
    "change",
    [{"classes": 1}, {"hidden": 0}, {"hidden": 1 << 15}, {"steps": 0}, {"step": 0.0}, {"rows": 0}],
)
def test_bad_public_parameters_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        replace(MODEL, **change)


def test_a_step_too_small_for_the_ring_is_refused_before_a_row_is_shared() -> None:
    with pytest.raises(PlanError, match="a step must be larger"):
        replace(MODEL, step=1e-6, nominal_n=1 << 30)


def test_the_last_column_of_an_owners_file_is_the_class() -> None:
    X, y = (part[:40] for part in records())
    words = MODEL.words("north", np.column_stack([X, y]))
    assert (words == MODEL.table(X, y)).all()
    assert words.shape == MODEL.tables()["north"]


def test_bad_records_are_refused_before_they_are_shared() -> None:
    for X, y in (([[0.0] * 3], [3]), ([[0.0] * 3], [0.5]), ([[0.0] * 3], [0, 1])):
        with pytest.raises(DataError):
            MODEL.table(X, y)
