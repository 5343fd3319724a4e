"""Survival: a record is in one cell of the table of exits, and the bound is always attained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.core.arrays import GridState, Integers, Records
from cloister.protocol.task import COUNT_BITS, NoisyBlock
from cloister.tasks.survival import curves
from cloister.tasks.survival.survival import Survival
from cloister.testing import check_task

from .cases import DESIGNS, on_grid

ONE = 1 << COUNT_BITS
GROUPS = DESIGNS["survival, groups"]


@pytest.mark.parametrize("intervals", [1, 4, 60])
@given(record=arrays(np.int32, (1, 3), elements=st.integers(-(1 << 16), 1 << 16)))
def test_every_record_adds_one_to_one_cell_whatever_the_number_of_intervals(
    intervals: int, record: Records
) -> None:
    task = GROUPS.build(intervals=intervals)
    added = task.contribute(0, GROUPS.start(task), record)
    assert sorted(added)[-2:] == [0, ONE]
    assert added.sum() == ONE
    (block,) = task.blocks(0)
    assert (block.l1, block.l2_squared) == (ONE, ONE**2)


@pytest.mark.parametrize("name", [name for name in DESIGNS if name.startswith("survival")])
def test_any_release_has_a_curve_that_falls_and_intervals_in_order(name: str) -> None:
    """Whatever noise, or an enemy, makes of the table: nothing is NaN, and no end is crossed."""
    case, rng = DESIGNS[name], np.random.default_rng(0)
    task = case.build()
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
            state = on_grid(task, task.update(0, case.start(task), answer))
            found = task.results(state, grid)
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
    twin = replace(GROUPS, task=SendsAtRisk).build()
    with pytest.raises(AssertionError, match="L2 bound of 'exits'"):
        check_task(twin, [GROUPS.worst(twin)])
