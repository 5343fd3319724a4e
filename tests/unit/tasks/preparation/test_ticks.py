"""Quantiles of columns whose values are multiples of a step."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.data.schema import Column, schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks import TASKS
from cloister.tasks.preparation.quantiles import Quantiles, _clearest, running_variance
from cloister.tasks.preparation.ticks import Ticks, ticks_of
from cloister.testing import rerun

GRID = 2.0**-17


def test_edges_lie_between_ticks_and_cells_end_at_ticks() -> None:
    ticks = Ticks(0.0, 4.0, 1.0)
    edges = ticks.between(np.linspace(-1, 1, 9))
    np.testing.assert_allclose((edges + 1) * 2, [0, 0.5, 1.5, 1.5, 1.5, 2.5, 3.5, 3.5, 4])
    walls, least, greatest = ticks.cells(np.round(edges, 5), GRID)
    assert walls.tolist() == [0, 0.5, 1.5, 1.5, 1.5, 2.5, 3.5, 3.5, 4]
    filled = np.diff(walls) > 0
    assert least[filled].tolist() == greatest[filled].tolist() == [0, 1, 2, 3, 4]


def test_a_cell_of_several_ticks_reaches_from_the_first_to_the_last() -> None:
    ticks = Ticks(0.0, 15.0, 1.0)
    edges = ticks.between(np.linspace(-1, 1, 5))
    _, least, greatest = ticks.cells(edges, GRID)
    assert least[1:].tolist() == (greatest[:-1] + 1).tolist()
    assert (least[0], greatest[-1]) == (0, 15)


def test_a_tick_is_the_number_that_a_reader_writes() -> None:
    ticks = Ticks(0.0, 1.0, 0.1)
    _, least, _ = ticks.cells(ticks.between(np.linspace(-1, 1, 65)), GRID)
    assert 0.3 in least.tolist()  # 3 * 0.1 is another float
    assert ticks.nearest(np.array([0.31, 7.0, -7.0])).tolist() == [0.3, 1.0, 0.0]


def test_bounds_that_are_no_ticks_stay_possible_values() -> None:
    """A value beyond a bound was moved to it."""
    ticks = Ticks(0.4, 3.6, 1.0)
    _, least, greatest = ticks.cells(ticks.between(np.linspace(-1, 1, 5)), GRID)
    assert (least[0], greatest[-1]) == (0.4, 3.6)
    assert ticks.many == 3


def test_a_column_without_a_step_keeps_its_edges() -> None:
    edges = np.linspace(-1, 1, 5)
    ticks = Ticks(0.0, 8.0, 0.0)
    assert ticks.between(edges) is edges
    walls, least, greatest = ticks.cells(edges, GRID)
    assert walls.tolist() == [0, 2, 4, 6, 8]
    np.testing.assert_allclose((least[1], greatest[0]), (2 - 4 * GRID, 2 + 4 * GRID))
    assert ticks.nearest(edges) is edges


def test_a_step_that_the_grid_does_not_separate_is_none() -> None:
    columns = [PublicColumn(n, 0.0, high, (), 1.0) for n, high in (("a", 20.0), ("b", 1e6))]
    assert [
        step for *_, step in ticks_of([*columns, PublicColumn("c", 0.0, 0.5, (), 1.0)], 16)
    ] == [*(1.0, 0.0, 0.0)]


def test_a_column_that_is_filled_in_between_ticks_has_no_step() -> None:
    column = {"name": "x", "type": "integer", "min": 0, "max": 7}
    assert Column(**column).public.step == 1
    assert Column(**column, missing=3.0).public.step == 1
    assert Column(**column, missing="midpoint").public.step == 0


def test_of_equal_edges_the_one_with_the_least_noise_is_read() -> None:
    inner, _ = running_variance(2)
    edges = np.array([np.repeat([0.0, 1.0, 2.0, 3.0], [1, 6, 9, 1])])
    (found,) = _clearest(edges)
    assert found[[0, -1]].tolist() == [0, 16]
    assert set(found[1:7]) == {1 + int(np.argmin(inner[1:7]))}
    assert set(found[7:16]) == {7 + int(np.argmin(inner[7:16]))}


@pytest.mark.parametrize(
    "ticks",
    [((0.0, 5.0, 1.0),) * 2, ((5.0, 0.0, 1.0),), ((0.0, 5.0, -1.0),), ((0.1, 0.2, 1.0),)],
)
def test_ticks_of_a_plan_that_no_column_has_are_refused(ticks: tuple[()]) -> None:
    with pytest.raises(PlanError, match="ticks must be"):
        Quantiles(n_features=1, used=(0,), ticks=ticks)


def test_each_tick_has_a_cell_and_no_second_tree_if_there_are_few() -> None:
    for high, rounds, levels in ((12.0, 1, 2), (60.0, 1, 3), (3000.0, 2, 5)):
        plan = make_plan(
            TASKS["quantiles"],
            schema_of([PublicColumn("x", 0.0, high, (), 1.0)]),
            ["a"],
            budget=Budget(1.0, 1e-6),
            nominal_n=2000,
        )
        task = plan.task
        assert isinstance(task, Quantiles)
        assert (task.rounds, task.levels) == (rounds, levels)


def released(
    task: str, columns: list[PublicColumn], X: Floats, runs: int
) -> list[dict[str, Floats]]:
    plan = make_plan(
        TASKS[task], schema_of(columns), ["a"], budget=Budget(1.0, 1e-6), nominal_n=len(X)
    )
    rng, records = np.random.default_rng(0), plan.grid.encode(X)
    prefix = "quantiles_" if task == "describe" else ""
    named = {"value": "quantiles", "low": f"{prefix}low", "high": f"{prefix}high"}
    return [
        {key: found[name] for key, name in named.items()}
        for found in (rerun(plan, records, rng) for _ in range(runs))
    ]


@pytest.mark.parametrize("task", ["quantiles", "describe"])
def test_intervals_of_integers_are_ticks_and_hold_the_quantiles_of_numpy(task: str) -> None:
    """Seeded. Without ticks an interval has the width of a cell though the value is one number."""
    rng = np.random.default_rng(3)
    X = np.column_stack(
        [
            rng.poisson(2.3, 2000).clip(0, 20),
            rng.integers(18, 90, 2000),
            np.rint(rng.gamma(4, 120, 2000)).clip(0, 3000),
            rng.integers(0, 21, 2000) / 2,
        ]
    )
    boxes = (("n", 0, 20, 1), ("age", 18, 90, 1), ("pay", 0, 3000, 1), ("points", 0, 10, 0.5))
    columns = [PublicColumn(n, float(a), float(b), (), float(s)) for n, a, b, s in boxes]
    truth = np.quantile(X, (0.25, 0.5, 0.75), axis=0).T
    runs = released(task, columns, X, 100)
    for found in runs:
        for part in found.values():
            assert (np.mod(part, [[1], [1], [1], [0.5]]) == 0).all()
        assert (found["low"] <= found["value"]).all()
        assert (found["value"] <= found["high"]).all()
    held = np.mean([(r["low"] <= truth) & (truth <= r["high"]) for r in runs], axis=0)
    assert held.min() >= 0.93
    half = np.mean([(r["high"] - r["low"]) / 2 for r in runs], axis=0)
    needed = np.quantile([np.abs(r["value"] - truth) for r in runs], 0.95, axis=0)
    assert (half[1:] <= 1.7 * np.maximum(needed[1:], [[1.0], [1.0], [0.5]])).all()
    assert (half[0] <= 0.5).all()  # one number of children, or two
