"""The public cells of time: ticks of a column, or cells at every scale."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.tasks.survival.times import Horizon


def steps_of(horizon: Horizon, times: list[float] | Floats) -> Floats:
    grid = Grid(np.array([horizon.low]), np.array([horizon.high]), horizon.frac_bits)
    return grid.encode(np.array(times, dtype=np.float64)[:, None])[:, 0]


def exits(horizon: Horizon, times: list[float], events: list[bool]) -> Floats:
    event = np.where(events, horizon.one, -horizon.one).astype(np.int32)
    table = np.zeros(len(times), np.int64)
    return horizon.exits(table, 1, steps_of(horizon, times), event)[0]


@pytest.mark.parametrize("step", [0.1, 0.25, 1.0, 7.0])
def test_cells_are_the_ticks_also_where_floats_are_not_exact(step: float) -> None:
    horizon = Horizon(low=0, high=61, tau=48, step=step)
    ticks = np.arange(int(48 / step + 1e-9) + 1) * step
    np.testing.assert_array_equal(horizon.ends, ticks)
    np.testing.assert_array_equal(horizon.middles[:-1], ticks)
    # Each tick as a file has it, in its own cell.
    written = [float(f"{tick:.2f}") for tick in ticks]
    assert (exits(horizon, written, [True] * len(written))[0, :-1] == 1).all()


def test_a_record_leaves_at_its_tick_or_beyond() -> None:
    horizon = Horizon(low=0, high=10, tau=6, step=2)
    times = [0.0, 2.0, 3.9, 6.0, 6.1, 8.0, 10.0]
    assert exits(horizon, times, [True] * 7).tolist() == [[1, 1, 1, 1, 0], [0, 0, 0, 0, 3]]
    assert exits(horizon, times, [False] * 7).tolist() == [[0] * 5, [1, 1, 1, 1, 3]]


def test_the_top_of_the_box_is_no_tick_as_records_may_have_been_clipped_to_it() -> None:
    horizon = Horizon(low=0, high=0.3, tau=0.3, step=0.1)  # 3 * 0.1 is above 0.3
    assert horizon.ends.tolist() == [0.0, 0.1, 0.2]
    assert exits(horizon, [0.3, 9.0], [True, True])[1, -1] == 2


def test_many_ticks_are_joined_in_equal_numbers_and_the_last_is_shorter() -> None:
    horizon = Horizon(low=1, high=99, tau=11, step=1, most=4)
    assert horizon.starts.tolist() == [1, 4, 7, 10]
    assert horizon.ends.tolist() == [3, 6, 9, 11]
    assert horizon.middles.tolist() == [2, 5, 8, 10.5, 11]
    days = Horizon(low=0, high=1e9, tau=1e9, step=1, most=Horizon.most_for(2))
    assert len(days.ends) <= 4096
    assert Horizon.most_for(80) == (1 << 17) // 80 - 1


@pytest.mark.parametrize("frac_bits", [8, 16, 24])
@pytest.mark.parametrize("low", [0.0, 5.0, 59.9])
def test_cells_without_a_step_are_short_at_every_scale(frac_bits: int, low: float) -> None:
    horizon = Horizon(low=low, high=60, tau=60, most=2500, frac_bits=frac_bits)
    ends = horizon.ends
    assert (np.diff(horizon.walls) > 0).all()
    assert (np.diff(ends) > 0).all()
    assert ends[0] > low
    assert ends[-1] == 60
    finest = (60 - low) / (1 << (frac_bits - 1))  # a grid step
    assert (np.diff(ends) <= np.maximum(0.016 * ends[1:], 60 / 2048) + 2 * finest).all()
    np.testing.assert_array_equal(horizon.starts[1:], ends[:-1])
    fewer = Horizon(low=low, high=60, tau=60, most=50, frac_bits=frac_bits)
    assert len(fewer.ends) <= 50
    assert fewer.ends[-1] == 60


def test_a_time_is_in_the_cell_that_ends_with_it() -> None:
    horizon = Horizon(low=0, high=60, tau=60)
    place = 2000
    inside = (horizon.starts[place] + horizon.ends[place]) / 2
    found = exits(horizon, [0.0, inside, float(horizon.ends[place])], [True] * 3)
    assert found[0, 0] == 1
    assert found[0, place] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tau": 61.0}, "tau must be in"),
        ({"low": 10.0, "tau": 10.0}, "tau must be in"),
        ({"low": 59.2, "step": 1.0, "tau": 59.8}, "tau must leave ticks"),
        ({"step": 0.1, "frac_bits": 8}, "that the grid separates"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Horizon(**{"low": 0.0, "high": 60.0, "tau": 60.0, **options})
