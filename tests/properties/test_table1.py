"""Table 1: a record adds to the sums of one group, and the bounds are attained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.protocol.task import Block
from cloister.tasks.tables.table1 import Table1
from cloister.testing import check_task

from .cases import DESIGNS

CASE = DESIGNS["table1, all"]


def test_tables_and_moments_have_equal_noise_and_extras_equal_shares() -> None:
    blocks = {block.name: block for block in CASE.build().blocks(0)}
    tables, moments = blocks["tables"], blocks["moments"]
    assert tables.l2_squared / tables.weight == pytest.approx(moments.l2_squared / moments.weight)
    assert tables.weight + moments.weight == pytest.approx(1 / 3)
    assert blocks["medians"].weight == blocks["correlations"].weight == pytest.approx(1 / 3)


def test_a_group_changes_by_its_own_records_alone() -> None:
    task = CASE.build()
    (j,) = task.by
    records = np.array(CASE.between(16, 300))
    records[:, j] = -(1 << 16)  # the first group
    ends = np.cumsum([block.size for block in task.blocks(0)])[:-1]
    parts = np.split(task.contribute(0, CASE.start(task), records), ends)
    for block, part in zip(task.blocks(0), parts, strict=True):
        if block.name in ("moments", "medians"):
            first, *others = part.reshape(block.shape)
            assert first.any()
            assert not np.any(others)


@dataclass(frozen=True, kw_only=True)
class InEveryGroup(Table1):
    """A record is in the trees of all groups, at the price of one."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        own = super().contribute(t, state, records)
        blocks = self.blocks(0)
        at = [block.name for block in blocks].index("medians")
        ends = np.cumsum([block.size for block in blocks])
        trees = own[ends[at - 1] : ends[at]].reshape(blocks[at].shape)
        trees[:] = trees.sum(axis=0)
        return own


@dataclass(frozen=True, kw_only=True)
class SquaresAreFree(Table1):
    """States the price of numbers without their squares."""

    rows = None

    def blocks(self, t: int) -> tuple[Block, ...]:
        price = (1 + len(self.numbers)) << 32
        return tuple(
            replace(block, l2_squared=price) if block.name == "moments" else block
            for block in super().blocks(t)
        )


@pytest.mark.parametrize("mutant", [InEveryGroup, SquaresAreFree])
def test_a_mutant_is_caught_by_the_laws(mutant: type[Table1]) -> None:
    built = replace(CASE, task=mutant).build()
    with pytest.raises(AssertionError):
        check_task(built, [CASE.worst(built)])


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", [InEveryGroup, SquaresAreFree])
def test_a_mutant_is_caught_by_an_audit(mutant: type[Table1]) -> None:
    audit = audit_task(mutant, Budget(4.0, 1e-5), runs=60, words=2000, canaries=20)
    assert any(finding.alarms for finding in audit.findings)


@pytest.mark.nightly
def test_the_task_itself_passes() -> None:
    """The audit draws fresh noise: it alarms by chance with probability at most 6e-8."""
    audit = audit_task(Table1, Budget(4.0, 1e-5), runs=200, words=400)
    assert not [finding for finding in audit.findings if finding.alarms]
