"""An owner that uploads any words: what its table does to the records of another owner."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.shares.mpc import dealer, matmul
from cloister.shares.mpc import shares as shares_of
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares

from .programs import KMEANS, LOGISTIC, Program, run_on_shares

Words = NDArray[np.uint64]
PROGRAMS = {"logistic": LOGISTIC, "kmeans": KMEANS}
SUMS = (*PROGRAMS, "cells")


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_upload_of_one_owner_enlarges_a_record_of_another(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random words in place of a table, through all steps: the other's terms keep their bound."""
    program: Program = PROGRAMS[name]
    model = replace(program.model, owners=("bad", "good"), rows=60, epsilon=1.0)
    model = replace(model, steps=3) if name == "logistic" else model
    good = model.table(*program.parts[0])
    draw = np.random.default_rng(0)
    lengths: list[int] = []

    def seen(server: Any, x: Any, y: Any) -> Any:
        if x.shape[1] == y.shape[0] == 120:  # the sum over all records
            left, right = server.open(x[:, 60:].copy(), y[60:].copy())
            # Each record's term is the product of its column and its row.
            squares = [sum(int(v) ** 2 for v in part.view(np.int64)) for part in (*left.T, *right)]
            lengths.extend(a * b for a, b in zip(squares[:60], squares[60:], strict=True))
        return matmul(server, x, y)

    monkeypatch.setattr(import_module(type(model).__module__), "matmul", seen)
    for words in (
        draw.integers(0, 2**64, good.shape, dtype=np.uint64),
        np.full(good.shape, 1 << 40, np.uint64),
        np.full(good.shape, 2**64 - 1, np.uint64),
    ):
        run_on_shares(model, [words, good])
    assert model.noise is not None
    assert 0 < max(lengths) <= model.noise.record_squared


# Whole sums, at any state -------------------------------------------------------------------------


def any_words(draw: np.random.Generator, shape: tuple[int, ...], kind: int) -> Words:
    """Return an upload of one of six kinds, from random words to a record with a wrong validity."""
    powers = np.left_shift(np.uint64(1), draw.integers(0, 64, shape).astype(np.uint64))
    small = draw.integers(-(1 << 16), (1 << 16) + 1, shape).astype(np.int64).view(np.uint64)
    whole = draw.integers(0, 2**64, shape, dtype=np.uint64)
    if kind == 3:  # a little, and the top bit of the ring
        return small % np.uint64(4) + (powers << np.uint64(63))
    if kind >= 4:
        small[:, -1] = whole[:, -1] if kind == 4 else 1
        small[:, -2] = whole[:, -2] if kind == 5 else small[:, -2]
        return small
    return (whole, powers, np.uint64(0) - powers)[kind]


def sums_of_rounds(model: Any, tables: list[Words], seed: int) -> list[Words]:
    """Return each round's sum without noise, at public states; all coins are those of the seed."""
    module = import_module(type(model).__module__)
    shares: tuple[list[Words], list[Words]] = ([], [])
    calls = [count(), count()]

    def add(self: NoiseOnShares, server: Any, sums: Words) -> Words:
        shares[server.index].append(sums.copy())
        return sums

    def state(server: Any, x: Words, bound: int) -> Words:
        draw = np.random.default_rng((seed, next(calls[server.index])))
        edges = draw.choice([-bound, bound], x.shape)
        words = np.where(draw.random(x.shape) < 0.5, edges, draw.integers(-bound, bound, x.shape))
        return words.astype(np.int64).view(np.uint64) * np.uint64(server.index == 0)

    keys = (sha256(f"{seed} {i}".encode()).digest() for i in count())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseOnShares, "add", add)
        patch.setattr(module, "clamp", state)
        # The state is given, so no cluster keeps its own.
        patch.setattr(module, "select", lambda server, bit, x, y: x, raising=False)
        for place in (dealer, shares_of):
            patch.setattr(place, "new_key", lambda: next(keys))
        run_on_shares(model, tables)
    return [one + other for one, other in zip(*shares, strict=True)]


def most_added(name: str, uploads: range) -> float:
    """Return the most that a record adds to a round beside any upload, over its squared bound."""
    box: Any = {"owners": ("bad", "good"), "rows": 6, "low": (-1.0,) * 3, "high": (1.0,) * 3}
    worst = 0.0
    for seed in uploads:
        draw = np.random.default_rng(seed)
        X = draw.choice([-1.0, 1.0, 0.3], (6, 3))
        if name == "logistic":
            radius, bound = draw.choice([0.0, 0.5]), draw.choice([1.0, 32.0, 1024.0])
            more = {"steps": 2, "radius": float(radius), "bound": float(bound)}
            model: Any = LogisticOnShares(**box, **more, epsilon=1.0)
            good = model.table(X, draw.integers(0, 2, 6))
        else:
            centres = tuple(map(tuple, draw.uniform(-1, 1, (3, 3)).tolist()))
            partition = "cells" if name == "cells" else "rows"
            model = KMeansOnShares(
                **box, centres=centres, iterations=2, epsilon=1.0, partition=partition
            )
            if name == "cells":
                X[draw.random(X.shape) < 0.2] = np.nan
            good = model.table(X)
        less = good.copy()
        less[draw.integers(6)] = 0
        bad = any_words(draw, good.shape, seed % 6)
        rounds = [sums_of_rounds(model, [bad, table], seed) for table in (good, less)]
        for with_it, without in zip(*rounds, strict=True):
            added = (with_it - without).view(np.int64).ravel()
            worst = max(worst, sum(int(v) ** 2 for v in added) / model.noise.record_squared)
    return worst


@pytest.mark.parametrize("name", SUMS)
def test_a_record_changes_no_sum_by_more_than_its_bound(name: str) -> None:
    assert 0.2 < most_added(name, range(6)) <= 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUMS)
def test_none_of_a_thousand_uploads_enlarges_what_a_record_changes(name: str) -> None:
    assert 0.99 < most_added(name, range(1000)) <= 1
