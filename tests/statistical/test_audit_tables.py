"""An audit of tables finds nothing, and finds twins that add more than they pay for.

The audit of the task itself draws fresh noise: it alarms by chance with probability at most 6e-8.
Twins add too much in every run, whatever the noise is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.protocol.task import Block
from cloister.tasks.tables.tabulate import Tabulate
from cloister.testing import check_task

CLAIM = Budget(4.0, 1e-6)


class EdgeTwice(Tabulate):
    """A record on the edge of a bin is in the bins on both sides."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Count records on an edge once more, one step below it."""
        walls = {j: walls for j, walls in enumerate(self.walls) if walls}
        on_edge = np.zeros(len(records), dtype=bool)
        below = records.copy()
        for j, edges in walls.items():
            on_edge |= np.isin(records[:, j], edges)
            below[:, j] -= 1
        own = super().contribute(t, state, records)
        return own + super().contribute(t, state, below[on_edge])


class OneTableIsFree(Tabulate):
    """States the price of one table, and sends several."""

    rows = None  # the kernel alone: the core would leave out what it must show

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return a bound that forgets all but the first table."""
        (block,) = super().blocks(t)
        return (replace(block, l1=self.words[0], l2_squared=self.words[0] ** 2),)


@pytest.mark.parametrize("twin", [EdgeTwice, OneTableIsFree])
def test_a_twin_that_adds_too_much_is_found(twin: type[Tabulate]) -> None:
    found = audit_task(twin, CLAIM, options=Tabulate.example.options, runs=60, words=200)
    assert "sensitivity" in {finding.check for finding in found.findings if finding.alarms}


@pytest.mark.parametrize("twin", [EdgeTwice, OneTableIsFree])
def test_the_laws_find_it_too(twin: type[Tabulate]) -> None:
    from cloister.testing import toy_task

    options: Mapping[str, object] = Tabulate.example.options
    columns = Tabulate.example.columns
    task = toy_task(twin, n_features=4, columns=columns, nominal_n=300, budget=CLAIM, **options)
    edge = np.zeros((3, 4), dtype=np.int32)  # 50 of [0, 100] is in the middle
    with pytest.raises(AssertionError):
        check_task(task, [edge])


def test_the_task_itself_passes() -> None:
    found = audit_task(Tabulate, CLAIM, runs=200, words=400)
    assert not [finding for finding in found.findings if finding.alarms]
