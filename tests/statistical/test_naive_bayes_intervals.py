"""The 95 % noise intervals of naive Bayes hold as often as they say, in small and large classes.

Each statement is about fixed records and fresh noise. Noise is seeded, so the shares are the same
every time. A share may be 4 binomial deviations below 95 %. Intervals that are cut at what is
possible hold more often, so that only the mean over all of a kind is held down, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.job import run_job
from cloister.data.schema import Column, Schema
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister.testing import SimulatedNoise

RUNS = 300
SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="work", type="category", categories=("a", "b", "c")),
        Column(name="x", type="number", min=0.0, max=10.0),
        Column(name="z", type="number", min=-1.0, max=1.0),
        Column(name="n", type="number", min=0.0, max=9.0),
        Column(name="m", type="number", min=0.0, max=9.0),
        Column(name="ill", type="category", categories=("no", "mild", "bad")),
    ),
)
OPTIONS = {
    "target": "ill",
    "numbers": {"z": "gaussian", "n": "counts", "m": "counts"},
    "most_counts": 18.0,
    "bins": 5,
    "nominal_n": 4000,
}


def records(n: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(5)
    ill = rng.choice(3, n, p=[0.8, 0.17, 0.03])
    columns = (
        rng.integers(0, 3, n),
        rng.uniform(0, 10, n),
        np.clip(rng.normal(0.3 * ill - 0.2, 0.3), -1, 1),
        rng.poisson(2, n),
        rng.poisson(1 + ill),
        ill,
    )
    return SCHEMA.grid().encode(np.column_stack(columns))


@pytest.fixture(scope="module")
def hits() -> dict[str, np.ndarray]:
    """How often each released number's interval has the exact one, by name."""
    table = {"a": [records()]}
    exact = run_job(
        NaiveBayes, SCHEMA, table, epsilon=1e9, noise=SimulatedNoise(0), **OPTIONS
    ).results
    names = {"class_prior": "class_prior", "cells": "cells", "means": "means", "words": "words"}
    counted: dict[str, np.ndarray] = {
        name: np.zeros_like(exact[name]) for name in (*names, "class_counts")
    }
    for seed in range(RUNS):
        found = run_job(
            NaiveBayes, SCHEMA, table, epsilon=0.5, noise=SimulatedNoise(seed), **OPTIONS
        ).results
        for name in names:
            low, high = found[f"{name}_low"] - 1e-5, found[f"{name}_high"] + 1e-5
            counted[name] += (low <= exact[name]) & (exact[name] <= high)
        error = np.abs(found["class_counts"] - exact["class_counts"])
        counted["class_counts"] += error <= found["class_count_half_width"]
    return {name: value / RUNS for name, value in counted.items()}


@pytest.mark.parametrize("name", ["class_counts", "class_prior", "cells", "means", "words"])
def test_an_interval_holds_in_95_runs_of_100(name: str, hits: dict[str, np.ndarray]) -> None:
    shares = hits[name]
    one = np.sqrt(0.95 * 0.05 / RUNS)
    assert shares.min() > 0.95 - 4 * one
    assert 0.95 - 2 * one < shares.mean() < 0.975


def test_a_small_class_has_wider_intervals_of_its_cells() -> None:
    found = run_job(
        NaiveBayes, SCHEMA, {"a": [records()]}, epsilon=0.5, noise=SimulatedNoise(0), **OPTIONS
    ).results
    width = (found["cells_high"] - found["cells_low"]).mean(axis=1)
    assert width[0] < width[1] < width[2]
