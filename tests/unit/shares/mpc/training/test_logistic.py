"""Logistic regression on shares: noise, what one record adds, and its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.shares.mpc import combine, run_here
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.training.tables import ONE, clamp, in_unit_ball, rescale

from .programs import LOGISTIC, D, Fixed, clear_weights, trained_weights

MODEL = LOGISTIC.model


def test_every_step_adds_the_noise_of_both_servers_to_the_summed_gradient() -> None:
    """Before truncation, on the lattice of products: 1.5 and -4 together are -2.5 everywhere."""
    model = replace(MODEL, epsilon=1.0)
    noise = Fixed([int(1.5 * 2**32)]), Fixed([-4 << 32])
    (found,) = trained_weights(model, LOGISTIC.tables(model), noise=noise)
    assert np.abs(found - clear_weights(model, -2.5)[0]).max() < 1e-3
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
            (last,) = trained_weights(model, [model.table([row], [label])], noise=noise)
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
