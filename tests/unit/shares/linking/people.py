"""Two or three owners of tables with a known overlap, and the join in the clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cloister.shares.linking.columns import Column, Side
from cloister.shares.linking.keys import Part
from cloister.shares.linking.rows import prepare
from cloister.shares.mpc import run_here
from cloister.shares.mpc.material import Sharing

Words = NDArray[np.uint64]
PARTS = (Part(rule="digits", width=11),)
FIRST = (
    Column(name="group", categories=("a", "b", "c")),
    Column(name="x", high=1.0),
)
SECOND = (
    Column(name="shop", categories=("p", "q", "r", "s", "t")),
    Column(name="z", low=-1.0, high=3.0),
    Column(name="y", categories=("false", "true")),
)
THIRD = (Column(name="kind", categories=("u", "v")),)


def frames(n: int, m: int, overlap: float, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables of n and m persons, of whom a part of the smaller table is in both."""
    draw = np.random.default_rng(seed)
    common = round(overlap * min(n, m))
    ids = draw.choice(10**9, n + m - common, replace=False)
    first, second = ids[:n], np.concatenate([ids[:common], ids[n:]])
    one = pd.DataFrame({"id": first, "group": draw.choice(list("abc"), n), "x": draw.random(n)})
    other = pd.DataFrame(
        {
            "id": second,
            "shop": draw.choice(list("pqrst"), m),
            "z": draw.uniform(-1, 3, m),
            "y": draw.random(m) < 0.4,
        }
    )
    return one.sample(frac=1, random_state=seed), other.sample(frac=1, random_state=seed + 1)


def sides(*rows: int) -> tuple[Side, ...]:
    each = zip(rows, (FIRST, SECOND, THIRD)[: len(rows)], strict=True)
    return tuple(Side(rows=n, key=("id",), columns=own) for n, own in each)


def uploads(
    tables: Sequence[pd.DataFrame], own: Sequence[Side], secret: bytes = b"k" * 32
) -> list[Words]:
    return [
        prepare(side, PARTS, table).tagged(secret, "s")
        for table, side in zip(tables, own, strict=True)
    ]


def on_shares(program: Callable[..., Any], tables: Sequence[Words], **options: Any) -> Any:
    """Return what both servers of a program of uploads return, and the servers."""
    return run_here(
        lambda server, *shares: program(server, shares),
        *tables,
        sharing=Sharing.XOR,
        timeout=60,
        **options,
    )


def xor(pair: Any) -> Any:
    return pair[0] ^ pair[1]
