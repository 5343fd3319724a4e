"""The smallest task: one word, one round, counts on the fine lattice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.display import around
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.task import NoisyBlock, Task
from cloister.tasks.count import Count
from cloister.testing import Wire, check_task, toy_plan, toy_records, toy_task

GRID = Grid((-1, -1), (1, 1))


@given(st.integers(0, 50))
def test_a_record_adds_one_in_fine_units(rows: int) -> None:
    task = Count(n_features=2)
    records = np.zeros((rows, 2), dtype=np.int32)
    assert task.contribute(0, {}, records).tolist() == [rows * 65536]
    block = task.blocks(0)[0]
    assert (block.l1, block.l2_squared, block.shape) == (65536, 65536**2, (1,))


def test_its_laws_hold() -> None:
    check_task(Count(n_features=2), [np.zeros((6, 2), np.int32), np.empty((0, 2), np.int32)])
    assert isinstance(Count(n_features=2), Task)


@pytest.mark.parametrize("silos", [1, 2, 5])
def test_without_noise_the_count_is_exact(silos: int) -> None:
    plan = toy_plan(Count(n_features=2), silos=silos)
    states = Wire(plan, toy_records(plan, rows=41)).run()
    assert len(states) == silos
    for state in states:
        result = plan.task.results(state, GRID)
        assert result["count"].tolist() == [41 * silos]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_is_as_large_as_it_says(mechanism: str) -> None:
    plan = toy_plan(Count(n_features=2, mechanism=mechanism), budget=Budget(1.0, 1e-6))  # type: ignore[arg-type]
    wire = Wire(plan, toy_records(plan, rows=100), DiscreteNoise())
    result = plan.task.results(wire.run()[0], GRID)
    half_width = float(result["half_width"][0])
    scale = plan.noise_scale(plan.task.blocks(0)[0]) / 65536
    std = scale * (2**0.5 if mechanism == "laplace" else 1)
    # the law's own central 95 %: P(|z| > x) = exp(-x / scale) for Laplace
    exact = math.log(20) * scale if mechanism == "laplace" else 1.96 * scale
    assert half_width == pytest.approx(exact, rel=1e-3)
    # beyond 40 scales the Laplace law is below 1e-17
    assert abs(float(result["count"][0]) - 300) < 40 * scale
    assert plan.task.forecast(std * 65536, 300, GRID)["half_width"][0] == pytest.approx(
        half_width, rel=1e-4
    )


def test_a_negative_noisy_count_is_shown_as_it_is() -> None:
    task = Count(n_features=2)
    released = {"count": NoisyBlock(np.array([-3 << 16]), 1.0)}
    assert task.update(0, {}, released)["count"].tolist() == [-3]


def test_it_takes_no_option_it_does_not_use() -> None:
    options = {"n_features": 2, "nominal_n": 5, "budget": None}
    assert toy_task(Count, **options) == Count(n_features=2)
    with pytest.raises(PlanError, match="n_clusters"):
        toy_task(Count, **options, n_clusters=3)


def test_it_shows_one_table() -> None:
    task = Count(n_features=2)
    (table,) = task.displays({"count": np.array([5.0]), "half_width": np.array([2.0])}, ("a", "b"))
    assert table.rows == (("all silos", around(5.0, 2.0, normal=True)),)  # type: ignore[union-attr]
    assert "noise" in task.describe()
