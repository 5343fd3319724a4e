"""Cox regression: what one record adds is bounded by the plan, and is the same in any company."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.core.arrays import GridState, Integers, Records
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import COUNT_BITS, NoisyBlock, PublicColumn
from cloister.tasks.survival.cox import Cox
from cloister.testing import check_task, hostile_states, toy_task

COLUMNS = (
    PublicColumn("months", 0.0, 60.0),
    PublicColumn("died", 0.0, 1.0, ("0", "1")),
    PublicColumn("age", 18.0, 90.0),
    PublicColumn("treated", 0.0, 1.0, ("0", "1")),
    PublicColumn("stage", 0.0, 3.0, ("I", "II", "III", "IV")),
)


def designed(
    frac_bits: int = 16,
    budget: float = 4.0,
    columns: int = 5,
    nominal_n: int = 5000,
    kind: type[Cox] = Cox,
) -> Cox:
    """Return a task with products of four covariates, or of two where the budget is small."""
    return toy_task(
        kind,
        n_features=columns,
        nominal_n=nominal_n,
        budget=Budget(budget, 1e-6),
        columns=COLUMNS[:columns],
        frac_bits=frac_bits,
        time="months",
        event="died",
        nominal_events=nominal_n // 2,
    )


def worst(frac_bits: int, columns: int = 5) -> Records:
    """Corners, copies, the middle, and records that lie beside the box."""
    one = 1 << frac_bits
    rows = [
        [one, one, one, one, one],
        [one, one, one, one, one],
        [one - 1, -one, -one, -one, -one],
        [one - 1, -one, one, one, 0],
        [-one, one, one, -one, one],
        [-one, one, -one, one, -one],
        [0, 0, 0, 0, 0],
        [2**31 - 1] * 5,
        [-(2**31)] * 5,
    ]
    return np.array(rows, dtype=np.int32)[:, :columns]


def after_exits(task: Cox, cells: Integers) -> GridState:
    numbers = cells.ravel()[: task.blocks(0)[0].size].astype(np.int64)
    answer = {"exits": NoisyBlock(numbers << COUNT_BITS, 0.0)}
    state = task.update(0, {k: round_to_grid(v, 16) for k, v in task.start().items()}, answer)
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}


def many_exits(task: Cox) -> GridState:
    """Return the state after exits by which the hazard reaches its top."""
    return after_exits(task, np.full((task.intervals + 1, 2), [300, 10]))


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("budget", [0.5, 4.0])
def test_the_worst_records_keep_the_bounds_in_any_state(frac_bits: int, budget: float) -> None:
    task = designed(frac_bits, budget)
    assert task.order == (2 if budget < 1 else 4)
    check_task(task, [worst(frac_bits), worst(frac_bits)[:1]], states=list(hostile_states(task)))


def test_a_state_from_nowhere_does_not_break_the_bounds() -> None:
    task = designed()
    rng = np.random.default_rng(0)
    most = np.iinfo(np.int64).max // 4
    start = task.start()
    states = [
        {name: rng.integers(-most, most, value.shape) for name, value in start.items()},
        {name: np.full(value.shape, most) for name, value in start.items()},
        {name: np.full(value.shape, -most) for name, value in start.items()},
    ]
    check_task(task, [worst(16)], states=states)


@settings(max_examples=25)
@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 5), st.just(5)), elements=st.integers(-16, 16)
    ),
    cells=arrays(np.int64, (40, 2), elements=st.integers(-5000, 5000)),
)
def test_any_records_keep_the_bounds_after_any_exits(records: Records, cells: Integers) -> None:
    task = designed(4)
    check_task(task, [records], states=[after_exits(task, cells)])


@pytest.mark.parametrize("columns", [3, 4, 5])
@pytest.mark.parametrize("budget", [0.5, 4.0])
def test_the_bound_is_nearly_reached_so_no_noise_is_wasted(columns: int, budget: float) -> None:
    task = designed(budget=budget, columns=columns)
    state = many_exits(task)
    records = worst(16, columns)
    added = [task.contribute(1, state, records[i : i + 1]).astype(object) for i in range(6)]
    assert max((a**2).sum() for a in added) > 0.99 * task.blocks(1)[0].l2_squared


@pytest.mark.parametrize("budget", [0.5, 4.0])
def test_a_record_adds_the_same_in_any_company(budget: float) -> None:
    """Also past the size of a part of the records, in any layout, and nobody adds nothing."""
    task = designed(budget=budget)
    state = many_exits(task)
    rng = np.random.default_rng(0)
    records = rng.integers(-(1 << 16), (1 << 16) + 1, (2100, 5), dtype=np.int32)
    for t in (0, 1):
        whole = task.contribute(t, state, records)
        alone = sum(task.contribute(t, state, records[i : i + 1]) for i in range(40))
        assert (alone + task.contribute(t, state, records[40:]) == whole).all()
        parts = [records[:7], records[7:1500], records[:0], records[1500:]]
        assert (sum(task.contribute(t, state, part) for part in parts) == whole).all()
        assert (task.contribute(t, state, np.asfortranarray(records)) == whole).all()
        assert not task.contribute(t, state, records[:0]).any()


def test_frames_are_a_function_of_the_plan() -> None:
    task = designed()
    state = after_exits(task, np.zeros((task.intervals + 1, 2)))
    for at in (state, many_exits(task)):
        assert task.contribute(1, at, worst(16)).shape == (task.blocks(1)[0].size,)
    assert sum(block.weight for t in (0, 1) for block in task.blocks(t)) == 1.0


def test_a_vector_that_is_not_checked_is_noticed() -> None:
    """The mutant divides by half of the length, and leaves out the check of the norm."""

    @dataclass(frozen=True, kw_only=True)
    class Unchecked(Cox):
        def _scales(self, top: float) -> tuple[float, float]:
            length, worth = super()._scales(top)
            return length / 2, worth

        def _moments(self, known, x, residual, hazard):  # type: ignore[no-untyped-def]  # a twin
            products = self._series.products(x / self._length)
            length, worth = self._scales(float(known.hazard.max()))
            both = np.concatenate([residual * products[: 1 + len(x)], worth * hazard * products])
            return np.trunc(both * ((1 << COUNT_BITS) / length)).sum(axis=1).astype(np.int64)

    task = designed(kind=Unchecked)
    with pytest.raises(AssertionError, match="L2 bound"):
        check_task(task, [worst(16)], states=[many_exits(task)])
