"""Describe: what one record adds is bounded by the plan, and the bound is attained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.tasks.tables.describe import Describe
from cloister.testing import check_task

from .cases import DESIGNS

CASE = DESIGNS["describe, levels of the plan"]


def test_shares_ranks_and_means_have_one_margin_of_error() -> None:
    task = CASE.build()
    words = {b.name: b.l2_squared / b.weight for b in task.blocks(0)}
    assert words["tables"] == pytest.approx(words["moments"])
    assert words["trees"] < words["tables"]
    assert sum(b.weight for b in task.blocks(0)) == pytest.approx(1)


@dataclass(frozen=True, kw_only=True)
class Loud(Describe):
    """A record counts twice in its tables."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        found = super().contribute(t, state, records)
        found[: task_cells(self)] *= 2
        return found


def task_cells(task: Describe) -> int:
    return sum(map(len, task.categories))


def test_a_mutant_is_caught_by_the_laws() -> None:
    loud = replace(CASE, task=Loud).build()
    with pytest.raises(AssertionError):
        check_task(loud, [CASE.worst(loud)])


@pytest.mark.nightly
def test_a_mutant_is_caught_by_an_audit() -> None:
    audit = audit_task(Loud, Budget(4.0, 1e-5), runs=100, words=2000, canaries=50)
    assert any(finding.alarms for finding in audit.findings)
