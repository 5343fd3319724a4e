"""Survival: a record is in one cell of the table of exits, and the bound is always attained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.core.arrays import GridState, Integers, Records
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import COUNT_BITS, NoisyBlock, PublicColumn
from cloister.tasks.survival import curves
from cloister.tasks.survival.survival import Survival
from cloister.testing import check_task, hostile_states, toy_task

COLUMNS = (
    PublicColumn("months", 2.0, 60.0),
    PublicColumn("died", 0.0, 1.0, ("0", "1")),
    PublicColumn("stage", 0.0, 2.0, ("I", "II", "III")),
)
OPTIONS: dict[str, dict[str, object]] = {
    "all": {},
    "groups": {"by": "stage"},
    "intervals": {"by": "stage", "intervals": 7},
    "edges": {"edges": (10.0, 50.0), "tau": 55.0},
}
ONE = 1 << COUNT_BITS


def designed(frac_bits: int = 16, kind: type[Survival] = Survival, **options: object) -> Survival:
    return toy_task(
        kind,
        n_features=3,
        nominal_n=1000,
        budget=Budget(1.0, 1e-6),
        columns=COLUMNS,
        frac_bits=frac_bits,
        time="months",
        event="died",
        **options,
    )


def begun(task: Survival) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in task.start().items()}


def worst(frac_bits: int) -> Records:
    """Corners, copies, the middle, and records that lie beside the box."""
    one = 1 << frac_bits
    rows = [
        [one, one, one],
        [one, one, one],
        [one, -one, 0],
        [one - 1, one, -one],
        [-one, one, one],
        [-one, -one, -one],
        [0, 0, 0],
        [1, -1, 2],
        [2**31 - 1] * 3,
        [-(2**31)] * 3,
    ]
    return np.array(rows, dtype=np.int32)


def on_edges(task: Survival) -> Records:
    """Records on each edge and a step beside it, with the event and without."""
    low, high = COLUMNS[0].low, COLUMNS[0].high
    places = (np.array(task.edges) - low) / (high - low) * 2 - 1
    steps = np.rint(places * (1 << task.frac_bits))
    steps = np.concatenate([steps - 1, steps, np.minimum(steps + 1, 1 << task.frac_bits)])
    both = [[(step, side, side) for step in steps] for side in (-1, 1)]
    return np.concatenate(both).astype(np.int32)


@pytest.mark.parametrize("frac_bits", [8, 16, 24])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_worst_records_keep_the_bounds_in_any_state(kind: str, frac_bits: int) -> None:
    task = designed(frac_bits, **OPTIONS[kind])
    tables = [worst(frac_bits), np.repeat(worst(frac_bits)[:1], 9, 0), on_edges(task)]
    check_task(task, tables, states=list(hostile_states(task)))


@pytest.mark.parametrize("kind", OPTIONS)
@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 6), st.just(3)), elements=st.integers(-256, 256)
    )
)
def test_any_records_keep_the_bounds(kind: str, records: Records) -> None:
    check_task(designed(8, **OPTIONS[kind]), [records])


@pytest.mark.parametrize("intervals", [1, 4, 60])
@given(record=arrays(np.int32, (1, 3), elements=st.integers(-(1 << 16), 1 << 16)))
def test_every_record_adds_one_to_one_cell_whatever_the_number_of_intervals(
    intervals: int, record: Records
) -> None:
    task = designed(by="stage", intervals=intervals)
    added = task.contribute(0, begun(task), record)
    assert sorted(added)[-2:] == [0, ONE]
    assert added.sum() == ONE
    (block,) = task.blocks(0)
    assert (block.l1, block.l2_squared) == (ONE, ONE**2)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_record_adds_the_same_in_any_company(kind: str) -> None:
    """Also past the size of a part of the records, in any layout, and nobody adds nothing."""
    task = designed(**OPTIONS[kind])
    one, state = 1 << 16, begun(task)
    records = np.random.default_rng(0).integers(-one, one + 1, ((1 << 14) + 7, 3), dtype=np.int32)
    whole = task.contribute(0, state, records)
    alone = sum(task.contribute(0, state, records[i : i + 1]) for i in range(30))
    assert (alone + task.contribute(0, state, records[30:]) == whole).all()
    assert (task.contribute(0, state, np.asfortranarray(records)) == whole).all()
    assert not task.contribute(0, state, records[:0]).any()


@pytest.mark.parametrize("kind", OPTIONS)
def test_lengths_are_of_the_plan_and_any_release_gives_finite_answers(kind: str) -> None:
    """Whatever noise, or an enemy, makes of the table: nothing is NaN, and no end is crossed."""
    task, rng = designed(**OPTIONS[kind]), np.random.default_rng(0)
    grid = None
    for scale in (0, 1, 30, 3000, 1e12):
        for mean in (-100, 0, 5, 100):
            answer = {
                block.name: NoisyBlock(
                    np.rint(rng.normal(mean, scale, block.shape) * ONE).astype(np.int64),
                    ONE * max(scale, 1.0),
                )
                for block in task.blocks(0)
            }
            state = task.update(0, begun(task), answer)
            on_grid = {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}
            found = task.results(on_grid, grid)
            assert not any(np.isnan(value).any() for value in found.values())
            for name in ("survival", "median", "cumulative_hazard"):
                assert (found[f"{name}_low"] <= found[f"{name}_high"]).all()
            assert (np.diff(found["survival"], axis=1) <= 0).all()
            assert ((found["survival"] >= 0) & (found["survival"] <= 1)).all()
            assert len(task.displays(found, ("months", "died", "stage"))) >= 2


@dataclass(frozen=True, kw_only=True)
class SendsAtRisk(Survival):
    """A broken twin: it sends how many are at risk, as others do, under the bound of exits."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        sent = super().contribute(t, state, records)
        table = curves.table_of(sent.reshape(len(self.groups), -1))
        risk = table[:, ::-1].cumsum(axis=1)[:, ::-1]
        return risk.reshape(len(self.groups), -1)[:, :-1].ravel()


def test_who_sends_numbers_at_risk_breaks_the_bound() -> None:
    with pytest.raises(AssertionError, match="L2 bound of 'exits'"):
        check_task(designed(kind=SendsAtRisk, by="stage"), [worst(16)])
