"""Logistic regression on shares: right, padded, and bounded in what one record adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import DataError, PlanError
from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.training import LogisticOnShares
from cloister.shares.mpc.training.tables import ONE, clamp, in_unit_ball, rescale

D = 4
MODEL = LogisticOnShares(
    owners=("north", "south", "west"),
    rows=40,
    low=(-2.0,) * D,
    high=(2.0,) * D,
    steps=8,
    penalty=0.05,
    nominal_n=80,
)
SIZES = (40, 25, 15)


def records(seed: int = 0) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]]]:
    draw = np.random.default_rng(seed)
    X = draw.uniform(-2.5, 2.5, (sum(SIZES), D))  # some lie outside the box
    y = (X @ [1.0, -2.0, 0.5, 0.0] + draw.normal(size=len(X)) > 0.3).astype(int)
    ends = np.cumsum(SIZES)[:-1]
    return np.split(X, ends), np.split(y, ends)


def tables(model: LogisticOnShares) -> list[NDArray[np.uint64]]:
    return [model.table(X, y) for X, y in zip(*records(), strict=True)]


def trained(
    model: LogisticOnShares, tables: Sequence[NDArray[np.uint64]], **options: Any
) -> NDArray[np.float64]:
    (first, second), _ = run_here(
        lambda server, *shares: model.run(server, dict(zip(model.owners, shares, strict=True))),
        *tables,
        timeout=20,
        **options,
    )
    return decode(combine(first["weights"], second["weights"]))


def in_the_clear(model: LogisticOnShares, noise: float = 0.0) -> NDArray[np.float64]:
    """The same steps in floats; `noise` is added to each word of each summed gradient."""
    X, y = (np.concatenate(parts) for parts in records())
    rows = np.clip(X, -2, 2) / 2
    longest = np.maximum(model.radius or np.sqrt(D), np.linalg.norm(rows, axis=1))
    rows = rows / longest[:, None]
    design = np.hstack([rows, np.ones((len(rows), 1))])
    weights, free = np.zeros(D + 1), np.array([1.0] * D + [0.0])
    n = model.nominal_n or model.rows * len(model.owners)
    for _ in range(model.steps):
        gradient = design.T @ (1 / (1 + np.exp(-design @ weights)) - y) + noise
        weights = weights - model.step * (gradient / n + model.penalty * free * weights)
        weights = np.clip(weights, -model.bound, model.bound)
    return weights


@pytest.mark.parametrize(
    "change", [{"radius": 0.7}, {"penalty": 0.0, "nominal_n": 0}, {"bound": 1.0}]
)
def test_training_on_shares_is_training_in_the_clear(change: dict[str, Any]) -> None:
    model = replace(MODEL, **change)
    found, clear = trained(model, tables(model)), in_the_clear(model)
    assert np.abs(found - clear).max() < 1e-3
    X = np.concatenate(records()[0])
    coefficients, intercept = model.model(found)
    other, at = model.model(clear)
    inside = np.clip(X, -2, 2)
    assert ((inside @ coefficients + intercept > 0) == (inside @ other + at > 0)).all()


def test_rows_that_are_not_there_change_nothing_whatever_lies_in_them() -> None:
    """Random words in place of zeros: validity multiplies them out on shares."""
    wider = replace(MODEL, rows=60)
    padded = tables(wider)
    clear = in_the_clear(MODEL)
    draw = np.random.default_rng(3)
    for table in padded:
        missing = table[:, -1] == 0
        assert missing.any()
        assert not table[missing].any()
        shape = (int(missing.sum()), D + 1)
        table[missing, :-1] = draw.integers(0, 2**64, size=shape, dtype=np.uint64)
    assert np.abs(trained(wider, padded) - clear).max() < 1e-3


class Fixed:
    """Noise that says what it was asked for, and gives what it is told."""

    label = "a test"

    def __init__(self, words: Sequence[int]) -> None:
        self.words = list(words)
        self.asked: list[tuple[str, int, int]] = []

    def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
        self.asked.append((kind, scale, size))
        return np.full(size, self.words[len(self.asked) % len(self.words)], np.int64)


def test_every_step_adds_the_noise_of_both_servers_to_the_summed_gradient() -> None:
    """Before truncation, on the lattice of products: 1.5 and -4 together are -2.5 everywhere."""
    model = replace(MODEL, epsilon=1.0)
    noise = Fixed([int(1.5 * 2**32)]), Fixed([-4 << 32])
    found = trained(model, tables(model), noise=noise)
    assert np.abs(found - in_the_clear(model, -2.5)).max() < 1e-3
    assert model.noise is not None
    for source in noise:
        assert source.asked == [("gaussian", model.noise.sigma, D + 1)] * model.steps


def test_no_record_adds_more_than_the_stated_integer_whatever_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record alone, through steps that noise has thrown to the edges and over the ring's.

    And the bound is tight: one that is stated 5 % too low fails.
    """
    model = replace(
        MODEL, owners=("north",), rows=1, nominal_n=1, steps=6, epsilon=1.0, bound=1024.0
    )
    assert model.noise is not None
    found: list[int] = []
    add = NoiseOnShares.add

    def seen(self: NoiseOnShares, server: Any, sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
        (opened,) = server.open(sums)
        if server.index == 0:
            found.append(sum(int(v) ** 2 for v in opened.view(np.int64).ravel()))
        return add(self, server, sums)

    monkeypatch.setattr(NoiseOnShares, "add", seen)
    # To both edges of the weights, and to words that the arithmetic has no room for.
    far = [300 << 32, -(300 << 32), (1 << 62) + 1, -(1 << 63) + 3, (1 << 63) - 5, (5 << 50) + 7]
    for number, row in enumerate(([9.0] * D, [-9.0, 0.0, 0.0, 0.0], [0.3, 1.9, -0.7, 0.1])):
        for label in (0, 1):
            noise = Fixed(far[number:] + far), Fixed([0])
            last = trained(model, [model.table([row], [label])], noise=noise)
            assert np.abs(last).max() <= model.bound
    assert max(found) <= model.noise.record_squared
    assert isqrt(max(found)) > 0.95 * isqrt(model.noise.record_squared)


def test_rows_are_shortened_toward_zero_to_a_norm_of_one() -> None:
    draw = np.random.default_rng(1)
    X = np.vstack([draw.normal(0, 3, (3000, D)), np.eye(D) * 99, np.ones((1, D)) * 99])
    for radius in (0.1, 0.9, 2.0):
        rows = in_unit_ball(MODEL._grid, X, radius)
        norms = np.sqrt((rows.astype(object) ** 2).sum(axis=1).astype(float))
        assert ((rows.astype(object) ** 2).sum(axis=1) <= ONE**2).all()
        assert norms.max() > ONE - 3
        real = np.clip(X, -2, 2) / 2
        exact = real / np.maximum(np.linalg.norm(real, axis=1), radius)[:, None]
        assert np.abs(rows / ONE - exact).max() < 3 / ONE / radius
        assert (np.abs(rows) <= np.abs(np.rint(real * ONE)) / radius + 1e-6).all()


def test_a_cut_holds_for_every_word_of_the_ring() -> None:
    draw = np.random.default_rng(4)
    words = draw.integers(-(2**63), 2**63, 300)
    edges = [-(2**63), 2**63 - 1, -(2**62), 2**62, 1000, -1000, 1001, -1001, 0, 7]
    words = np.concatenate([words, edges, np.arange(-(2**63), -(2**63) + 2000, 97)])
    (first, second), _ = run_here(lambda s, x: clamp(s, x, 1000), words.view(np.uint64))
    found = combine(first, second).view(np.int64)
    assert (np.abs(found) <= 1000).all()
    small = (words > -(2**62)) & (words < 2**62)
    assert (found[small] == np.clip(words, -1000, 1000)[small]).all()


def test_a_factor_is_right_to_a_unit_at_the_edge_of_its_range() -> None:
    for factor, largest in ((3.7e-9, 2.0**45), (1e-7, 2.0**21), (5.0, 2.0**50)):
        x = np.array([largest, -largest, largest / 3, 0.0]).astype(np.int64)
        (first, second), _ = run_here(
            lambda s, v, f=factor, m=largest: rescale(s, v, f, m), x.view(np.uint64)
        )
        found = combine(first, second).view(np.int64)
        assert np.abs(found - x * factor).max() <= 1 + 1e-2 * largest * factor / 2


@pytest.mark.parametrize(
    "change",
    [
        {"owners": ()},
        {"owners": ("a", "a")},
        {"rows": 0},
        {"steps": 0},
        {"steps": 2.0},
        {"step": 0.0},
        {"step": float("nan")},
        {"penalty": -1.0},
        {"radius": 9.0},
        {"radius": 1e-309},  # a row of zeros divided by it would be no number, and -2^63 as one
        {"bound": 1e9},
        {"epsilon": -1.0},
        {"epsilon": 1e-9},
        {"delta": 0.0, "epsilon": 1.0},
        {"max_rows": 0, "epsilon": 1.0},
        {"high": (-2.0,) * D},
    ],
)
def test_bad_public_parameters_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        replace(MODEL, **change)


def test_bad_records_are_refused_before_they_are_shared_and_not_shown() -> None:
    X, y = np.full((41, D), 1.2345), np.zeros(41)
    bad_ones: tuple[Callable[[], Any], ...] = (
        lambda: MODEL.table(X, y),
        lambda: MODEL.table(X[:3], [0, 1, 2]),
        lambda: MODEL.table(X[:3], [0, 1, np.nan]),
        lambda: MODEL.table(X[:3], [0, 1]),
        lambda: MODEL.table(X[:3, :2], [0, 1, 1]),
        lambda: MODEL.table([[1.2345, np.nan, 0, 0]], [1]),
    )
    for bad in bad_ones:
        with pytest.raises(DataError) as refused:
            bad()
        assert "1.2345" not in str(refused.value)
        assert "41" not in str(refused.value)


def test_the_last_column_of_an_owners_file_is_the_label() -> None:
    X, y = (parts[0] for parts in records())
    words = MODEL.words("north", np.column_stack([X, y]))
    assert (words == MODEL.table(X, y)).all()
    assert words.shape == MODEL.tables()["north"]
    for no_table in (5.0, [1.0, 2.0]):
        with pytest.raises(DataError, match="table of 4 columns"):
            MODEL.words("north", no_table)


def test_the_opening_says_what_it_is_and_costs() -> None:
    assert (MODEL.opening, MODEL.event()) == ("exact", None)
    private = replace(MODEL, epsilon=2.0, max_rows=2, max_silos=3)
    assert private.opening == "private"
    assert private.noise is not None
    assert private.event() == private.noise.event()
    assert private.noise.records == 6
    assert private.noise.rounds == MODEL.steps


@pytest.mark.parametrize("change", [{"step": 1e-4, "nominal_n": 1 << 30}, {"penalty": 1e-18}])
def test_a_step_too_small_for_the_ring_is_refused_before_a_ledger_is_charged(
    change: dict[str, Any],
) -> None:
    options: dict[str, Any] = {"owners": ("a",), "rows": 4, "low": (0.0,), "high": (1.0,)}
    with pytest.raises(PlanError, match="a step must be larger"):
        LogisticOnShares(**options, epsilon=1.0, **change)
