"""An owner that uploads any words: what its table does to the records of another owner."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cloister.shares.mpc import matmul

from .programs import KMEANS, LOGISTIC, Program, run_on_shares

PROGRAMS = {"logistic": LOGISTIC, "kmeans": KMEANS}


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
