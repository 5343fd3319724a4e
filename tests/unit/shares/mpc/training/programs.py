"""The training programs: each with records, its steps in the clear, and what it must refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares, NetworkOnShares

Floats = NDArray[np.float64]
OWNERS = ("north", "south", "west")


class Fixed:
    """Noise that records how it was drawn and returns the given values in turn."""

    label = "a test"

    def __init__(self, words: Sequence[int]) -> None:
        self.words = list(words)
        self.asked: list[tuple[str, int, int]] = []

    def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
        self.asked.append((kind, scale, size))
        return np.full(size, self.words[len(self.asked) % len(self.words)], np.int64)


def run_on_shares(
    model: Any, tables: Sequence[NDArray[np.uint64]], **options: Any
) -> dict[str, Floats]:
    """Return the numbers that both servers open, by name."""
    (first, second), _ = run_here(
        lambda server, *shares: model.run(server, dict(zip(model.owners, shares, strict=True))),
        *tables,
        timeout=20,
        **options,
    )
    return {name: decode(combine(first[name], second[name])) for name in first}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training program, and inputs that its laws are checked with."""

    model: Any
    parts: Sequence[tuple[NDArray[Any], ...]]
    """Records of each owner: features, and labels if the program has any."""
    trained: Callable[..., tuple[Floats, ...]]
    """Train on shares: a model, and the table of each owner."""
    clear: Callable[[Any], tuple[Floats, ...]]
    """Train in floats."""
    predicted: Callable[..., NDArray[Any]]
    """Predict by a model and what was trained."""
    changes: tuple[dict[str, Any], ...] = ({},)
    """Parameters of more models to train."""
    padded: Mapping[str, Any]
    """Parameters under which each table but the first has rows without a record."""
    bad_parameters: tuple[dict[str, Any], ...]
    bad_records: tuple[tuple[Any, ...], ...]

    def tables(self, model: Any) -> list[NDArray[np.uint64]]:
        return [model.table(*part) for part in self.parts]


# k-means: three blobs, far from the last two starts -----------------------------------------------

STARTS = ((1.0, 9.0), (9.0, 1.0), (2.0, 2.0), (9.9, 9.9), (0.1, 0.1))


def blobs() -> list[tuple[Floats]]:
    draw = np.random.default_rng(0)
    centres = np.array([[2.0, 8.0], [7.0, 3.0], [4.0, 4.0]])
    X = centres[draw.integers(3, size=150)] + draw.normal(0, 0.6, (150, 2))
    return [(part,) for part in np.split(X, [60, 100])]


def trained_centres(
    model: KMeansOnShares, tables: Sequence[NDArray[np.uint64]], **options: Any
) -> tuple[Floats]:
    return (model.model(run_on_shares(model, tables, **options)["centres"]),)


def clear_centres(model: KMeansOnShares) -> tuple[Floats]:
    X, centres = np.concatenate([X for (X,) in blobs()]), np.array(model.centres)
    for _ in range(model.iterations):
        label = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        for j in set(label.tolist()):
            centres[j] = X[label == j].mean(axis=0)
    return (centres,)


def nearest(model: KMeansOnShares, X: Floats, centres: Floats) -> NDArray[np.intp]:
    return ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)


KMEANS = Program(
    model=KMeansOnShares(
        owners=OWNERS,
        rows=60,
        low=(0.0, 0.0),
        high=(10.0, 10.0),
        centres=STARTS,
        iterations=3,
    ),
    parts=blobs(),
    trained=trained_centres,
    clear=clear_centres,
    predicted=nearest,
    padded={"rows": 60},
    bad_parameters=(
        {"centres": ()},
        {"centres": ((1.0,),)},
        {"iterations": 0},
        {"rows": 1 << 20},
        {"epsilon": -1.0},
        {"epsilon": 1e-9},
        {"owners": ("a", "a")},
    ),
    bad_records=((np.zeros((61, 2)),), (np.zeros((3, 3)),), ([[np.nan, 1.0]],)),
)


def cells() -> list[tuple[Floats]]:
    """Return the blobs with each cell at one of three owners, and NaN at the others."""
    X = np.concatenate([part for (part,) in blobs()])
    owner = np.random.default_rng(1).integers(3, size=X.shape)
    return [(np.where(owner == i, X, np.nan),) for i in range(3)]


CELLS = replace(
    KMEANS,
    model=replace(KMEANS.model, rows=150, partition="cells"),
    parts=cells(),
    padded={"rows": 160},
    bad_parameters=({"partition": "columns"},),
    bad_records=((np.zeros((151, 2)),), (np.zeros((3, 3)),), ([[1.2345, np.nan, 0.0]],)),
)

# Logistic regression ------------------------------------------------------------------------------

D = 4


def two_classes() -> list[tuple[Floats, NDArray[np.int64]]]:
    draw = np.random.default_rng(0)
    X = draw.uniform(-2.5, 2.5, (80, D))  # some lie outside the box
    y = (X @ [1.0, -2.0, 0.5, 0.0] + draw.normal(size=len(X)) > 0.3).astype(int)
    return list(zip(np.split(X, [40, 65]), np.split(y, [40, 65]), strict=True))


def trained_weights(
    model: LogisticOnShares, tables: Sequence[NDArray[np.uint64]], **options: Any
) -> tuple[Floats]:
    return (run_on_shares(model, tables, **options)["weights"],)


def clear_weights(model: LogisticOnShares, noise: float = 0.0) -> tuple[Floats]:
    """The same steps in floats; `noise` is added to each value of each summed gradient."""
    X, y = (np.concatenate(parts) for parts in zip(*two_classes(), strict=True))
    rows = np.clip(X, -2, 2) / 2
    longest = np.maximum(model.radius or np.sqrt(D), np.linalg.norm(rows, axis=1))
    rows = rows / longest[:, None]
    design = np.hstack([rows, np.ones((len(rows), 1))])
    weights, free = np.zeros(D + 1), np.array([1.0] * D + [0.0])
    last = weights
    n = model.nominal_n or model.rows * len(model.owners)
    for _ in range(model.steps):
        gradient = design.T @ (1 / (1 + np.exp(-design @ weights)) - y) + noise
        moved = weights - model.step * (gradient / n + model.penalty * free * weights)
        moved = moved + model.momentum * (weights - last)
        last, weights = weights, np.clip(moved, -model.bound, model.bound)
    return (weights,)


def beyond_the_plane(model: LogisticOnShares, X: Floats, weights: Floats) -> NDArray[np.bool_]:
    coefficients, intercept = model.model(weights)
    return np.clip(X, -2, 2) @ coefficients + intercept > 0


MANY = np.full((41, D), 1.2345)
LOGISTIC = Program(
    model=LogisticOnShares(
        owners=OWNERS,
        rows=40,
        low=(-2.0,) * D,
        high=(2.0,) * D,
        steps=8,
        penalty=0.05,
        nominal_n=80,
    ),
    parts=two_classes(),
    trained=trained_weights,
    clear=clear_weights,
    predicted=beyond_the_plane,
    changes=({"radius": 0.7}, {"penalty": 0.0, "nominal_n": 0}, {"bound": 1.0}, {"momentum": 0.8}),
    padded={"rows": 60},
    bad_parameters=(
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
        {"momentum": 1.0},
        {"epsilon": -1.0},
        {"epsilon": 1e-9},
        {"delta": 0.0, "epsilon": 1.0},
        {"max_rows": 0, "epsilon": 1.0},
        {"high": (-2.0,) * D},
    ),
    bad_records=(
        (MANY, np.zeros(41)),
        (MANY[:3], [0, 1, 2]),
        (MANY[:3], [0, 1, np.nan]),
        (MANY[:3], [0, 1]),
        (MANY[:3, :2], [0, 1, 1]),
        ([[1.2345, np.nan, 0, 0]], [1]),
    ),
)

# A network of two layers --------------------------------------------------------------------------


def three_classes() -> list[tuple[Floats, NDArray[np.int64]]]:
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (80, 3))
    y = np.argmax(X + draw.normal(0, 0.1, X.shape), axis=1)
    return list(zip(np.split(X, [40, 60]), np.split(y, [40, 60]), strict=True))


def trained_layers(
    model: NetworkOnShares, tables: Sequence[NDArray[np.uint64]], **options: Any
) -> tuple[Floats, ...]:
    opened = run_on_shares(model, tables, **options)
    return opened["first"], opened["second"]


def clear_layers(model: NetworkOnShares) -> tuple[Floats, ...]:
    X, y = (np.concatenate(parts) for parts in zip(*three_classes(), strict=True))
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


NETWORK = Program(
    model=NetworkOnShares(
        owners=OWNERS,
        rows=40,
        low=(-1.0,) * 3,
        high=(1.0,) * 3,
        classes=3,
        hidden=6,
        steps=5,
        nominal_n=80,
    ),
    parts=three_classes(),
    trained=trained_layers,
    clear=clear_layers,
    predicted=lambda model, X, *layers: model.scores(X, *layers).argmax(axis=1),
    padded={"rows": 40},
    bad_parameters=(
        {"classes": 1},
        {"hidden": 0},
        {"hidden": 1 << 15},
        {"steps": 0},
        {"step": 0.0},
        {"rows": 0},
    ),
    bad_records=(([[0.0] * 3], [3]), ([[0.0] * 3], [0.5]), ([[0.0] * 3], [0, 1])),
)

PROGRAMS = {"kmeans": KMEANS, "cells": CELLS, "logistic": LOGISTIC, "network": NETWORK}
