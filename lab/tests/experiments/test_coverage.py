"""Coverage of the noise intervals: the small version of the experiment, and mutants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cloister import Budget
from cloister.core.errors import PlanError
from cloister.protocol.task import GridState, NoisyBlock, State, Task
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.testing import SimulatedNoise, toy_task
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.coverage import (
    METHODS,
    Coverage,
    as_markdown,
    measure,
    pooled,
)
from cloister_lab.experiments.datasets import Dataset, min_max
from cloister_lab.experiments.run import (
    Settings,
    draw_experiment,
    run_experiment,
)
from cloister_lab.experiments.sweep import TASKS as COMPARED
from cloister_lab.tasks.balcan import Balcan
from cloister_lab.tasks.max_cover import MaxCoverHistogram

RUNS = 150


@pytest.fixture(scope="module")
def blobs() -> Dataset:
    """Four groups of unequal size, the smallest near its noise."""
    rng = np.random.default_rng(0)
    places = ((-0.7, -0.7, 900), (0.7, -0.6, 500), (-0.6, 0.7, 300), (0.7, 0.7, 60))
    X = np.concatenate([rng.normal((a, b), 0.1, (n, 2)) for a, b, n in places])
    return min_max(X, "blobs", 4)


@pytest.mark.parametrize("task", [GLloyd, FastLloyd, SuLloyd, Balcan, MaxCoverHistogram])
def test_intervals_hold_what_they_say(blobs: Dataset, task: type[Task]) -> None:
    # about 1,200 coordinates and 600 sizes: five standard errors are 0.031 and 0.045
    cell = measure(blobs, task, 1.0, runs=RUNS, noise=SimulatedNoise(3))
    assert cell.centre_trials + 2 * cell.empty == 2 * 4 * RUNS
    assert cell.size_trials == 4 * RUNS
    assert abs(cell.centres - 0.95) < 0.031
    assert abs(cell.sizes - 0.95) < 0.045


@dataclass(frozen=True, kw_only=True)
class Narrow(FastLloyd):
    """Claims intervals that are a quarter too narrow."""

    name = "narrow"

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        new = dict(super().update(t, state, released))
        middle, half = (new["low"] + new["high"]) / 2, (new["high"] - new["low"]) / 2
        return {**new, "low": middle - 0.75 * half, "high": middle + 0.75 * half}


@dataclass(frozen=True, kw_only=True)
class Shifted(FastLloyd):
    """Draws the interval around what it made of the mean, a centre shrunk to the middle."""

    name = "shifted"

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        new = dict(super().update(t, state, released))
        noisy = released["sums"].noise_std > 1
        way = -0.1 * new["centres"] * noisy
        return {**new, "low": new["low"] + way, "high": new["high"] + way}


@pytest.mark.parametrize("mutant", [Narrow, Shifted])
def test_wrong_intervals_are_caught(blobs: Dataset, mutant: type[Task]) -> None:
    cell = measure(blobs, mutant, 1.0, runs=RUNS, noise=SimulatedNoise(3))
    assert cell.centres < 0.9
    assert not cell.holds


def test_a_shrunk_centre_keeps_the_coverage_of_what_was_measured(blobs: Dataset) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Shrunk(FastLloyd):
        name = "shrunk"

        def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
            new = super().update(t, state, released)
            return {**new, "centres": new["centres"] * 0.9}

    cell = measure(blobs, Shrunk, 1.0, runs=RUNS, noise=SimulatedNoise(3))
    assert abs(cell.centres - 0.95) < 0.031
    assert cell.centre_inside < 0.8 * cell.centre_trials


def test_every_private_method_whose_noise_is_gaussian_is_measured() -> None:
    """The intervals of `auto` have the answer of k-means as their target: `verdicts`."""
    budget = Budget(1.0, 1e-6)
    tasks = [
        toy_task(task, n_features=2, nominal_n=1000, budget=budget, n_clusters=2)
        for task in COMPARED.values()
    ]
    assert {*METHODS, "auto"} == {task.name for task in tasks if task.mechanism == "gaussian"}


def test_the_small_experiment_writes_its_page(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path, repeats=2, only=("iris",))
    rows = run_experiment(EXPERIMENTS["coverage"], settings, quiet=True)
    assert [row["method"] for row in rows] == list(METHODS)
    (page,) = draw_experiment(EXPERIMENTS["coverage"], settings)
    text = page.read_text(encoding="utf-8")
    for method in METHODS:
        assert f"| **{method}** | all | 1 | 2 |" in text


def test_what_adds_no_noise_has_no_intervals(blobs: Dataset) -> None:
    with pytest.raises(PlanError, match="not private"):
        measure(blobs, Lloyd, 1.0, runs=1)


def test_cells_are_added_up_by_method_and_shown() -> None:
    cells = [
        Coverage("a", "m", 1.0, 10, 95, 100, 9, 10, 100, 0),
        Coverage("b", "m", 1.0, 10, 190, 200, 10, 10, 150, 3),
    ]
    assert list(pooled(cells)) == cells
    (total,) = pooled(cells, over_datasets=True)
    assert (total.runs, total.centres, total.sizes) == (20, 0.95, 0.95)
    page = as_markdown(cells, "the command")
    assert "Every method is inside." in page
    assert "| **m** | all | 1 | 20 | 95.00% ± 2.52% |" in page
    worse = [*cells, Coverage("c", "m", 1.0, 1, 0, 100, 0, 0, 0, 0)]
    assert "Not every method is inside." in as_markdown(worse, "the command")
