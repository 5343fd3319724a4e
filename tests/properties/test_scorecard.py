"""Scorecards: what one record adds is bounded by the plan, and any release has answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.protocol.task import Block
from cloister.tasks.tables.scorecard import Scorecard
from cloister.testing import check_task

from .cases import DESIGNS


class Twice(Scorecard):
    """A record on the edge of a bin is in the bins on both sides."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        on_edge = np.isin(records[:, 0], self.walls[0])
        below = records - np.int32(1)
        return super().contribute(t, state, records) + super().contribute(t, state, below[on_edge])


class FreeTables(Scorecard):
    """States the price of one table, and sends several."""

    rows = None  # the kernel alone: the core would leave out what it must show

    def blocks(self, t: int) -> tuple[Block, ...]:
        (block,) = super().blocks(t)
        return (replace(block, l1=self.words[0], l2_squared=self.words[0] ** 2),)


@pytest.mark.nightly  # the laws below find both in every change
@pytest.mark.parametrize("twin", [Twice, FreeTables])
def test_a_twin_that_adds_too_much_is_found_by_an_audit(twin: type[Scorecard]) -> None:
    options = Scorecard.example.options
    found = audit_task(twin, Budget(4.0, 1e-6), options=options, runs=60, words=200)
    assert "sensitivity" in {finding.check for finding in found.findings if finding.alarms}


@pytest.mark.parametrize("twin", [Twice, FreeTables])
def test_the_laws_find_it_too(twin: type[Scorecard]) -> None:
    task = replace(DESIGNS["scorecard, all"], task=twin).build()
    edge = np.full((3, task.n_features), task.walls[0][1], dtype=np.int32)
    with pytest.raises(AssertionError):
        check_task(task, [edge])
