"""What a server, alone or with a receiver, could find out from a private training."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.privacy.noise import DiscreteNoise
from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares, NetworkOnShares

RUNS, D = 5, 255
MODEL = LogisticOnShares(
    owners=("north",),
    rows=1,
    low=(-1.0,) * D,
    high=(1.0,) * D,
    steps=1,
    nominal_n=1,
    epsilon=300.0,
    bound=1024.0,
)
THERE = MODEL.table([[1.0] * D], [0])
GONE = np.zeros_like(THERE)


class Known(DiscreteNoise):
    """The draws of a server that looks at them, or that draws too little."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.drawn: list[NDArray[np.int64]] = []

    def draw(self, kind: Any, scale: int, size: int) -> NDArray[np.int64]:
        scale = max(1, int(self.factor * scale))
        self.drawn.append(super().draw(kind, scale, size))
        return self.drawn[-1]


def found(table: NDArray[np.uint64], other: float) -> NDArray[np.float64]:
    """Return the gradient that final models show to server 0, which takes its own noise off.

    In deviations of the other server's draw; a row for each run, with new noise on each word.
    """
    known, unknown = Known(), Known(other)

    def repeated(server: Any, share: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.stack([MODEL.run(server, {"north": share})["weights"] for _ in range(RUNS)])

    pair, _ = run_here(repeated, table, noise=(known, unknown), timeout=60)
    weights = decode(combine(*pair))
    assert MODEL.noise is not None
    sums: NDArray[np.float64] = -weights / MODEL.step * 2.0**32 - np.stack(known.drawn)
    return sums / MODEL.noise.sigma


def worlds(other: float) -> tuple[float, float]:
    """Return spread, and distance in spreads, of runs with the record and of runs without."""
    with_it, without = found(THERE, other), found(GONE, other)
    spread = sqrt((with_it.var(axis=0, ddof=1) + without.var(axis=0, ddof=1)).mean() / 2)
    record = np.append(np.full(D, sqrt(1 / D)), 1.0) / sqrt(2)
    return spread, float((with_it.mean(axis=0) - without.mean(axis=0)) @ record) / spread


def test_a_server_with_the_final_model_tells_a_record_as_well_as_the_plan_says() -> None:
    """Two worlds, five runs of 256 words each; a residual of a half, from weights of zero.

    The spread has 2048 degrees of freedom: beyond 6/sqrt(2 * 2048) = 9.4 % in 2e-9 of runs. The
    distance is about 10, its standard error sqrt(2/5 + 10^2/4096) = 0.65: beyond 6 in 2e-9.
    Noise of 0.8 of its scale is 20 % off in the spread and missed in fewer than 1e-15 of runs.
    """
    assert MODEL.noise is not None
    expected = 0.5 * sqrt(2) * 2.0**32 / MODEL.noise.sigma
    assert 8 < expected < 12
    spread, distance = worlds(1.0)
    assert abs(spread - 1) < 0.094
    assert abs(distance - expected) < 6 * sqrt(2 / RUNS + expected**2 / 4096)
    weaker, _ = worlds(0.8)
    assert abs(weaker - 1) > 0.094
    _, sure = worlds(0.0)
    assert sure > 100 * expected


PROGRAMS = {
    "logistic": replace(MODEL, rows=6, steps=2, penalty=0.1, epsilon=5.0),
    "kmeans": KMeansOnShares(
        owners=("north",),
        rows=8,
        low=(-1.0,),
        high=(1.0,),
        centres=((-0.5,), (0.0,), (0.5,)),
        iterations=1,
        epsilon=5.0,
    ),
    "network": NetworkOnShares(
        owners=("north",), rows=8, low=(-1.0,), high=(1.0,), hidden=3, steps=1
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_each_server_sees_of_a_training_is_uniform_and_has_one_shape(name: str) -> None:
    """No record, or rows at the edge: beyond 8 deviations of a chi-square below 1e-10 a view."""
    program: Any = PROGRAMS[name]
    shape = program.tables()["north"]
    edge = np.full(shape, 1 << 16, np.uint64)
    edge[:, -1] = 1
    shapes = set()
    for table in (np.zeros(shape, np.uint64), edge):
        seen: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(3):
            before = [len(view) for view in seen]
            run_here(
                lambda server, share: program.run(server, {"north": share}),
                table,
                watch=[view.append for view in seen],
            )
            for view, start in zip(seen, before, strict=True):
                shapes.add(tuple(words.shape for words in view[start:]))
        for view in seen:
            # Single bits come one a byte; all else are whole words.
            body = [w if w.dtype == np.uint64 else np.packbits(w[: w.size // 8 * 8]) for w in view]
            joined = np.concatenate([np.ascontiguousarray(w).view(np.uint8).ravel() for w in body])
            counts = np.bincount(joined, minlength=256)
            chi = ((counts - joined.size / 256) ** 2 / (joined.size / 256)).sum()
            assert (chi - 255) / sqrt(2 * 255) < 8
    assert len(shapes) == 1, "what is sent must not depend on records"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_survives_json_so_that_all_parties_run_the_same(name: str) -> None:
    program: Any = PROGRAMS[name]
    options = json.loads(json.dumps({f.name: getattr(program, f.name) for f in fields(program)}))
    again = type(program)(**options)
    assert again == program
    assert (again.opening, again.event()) == (program.opening, program.event())
