"""An audit of `treatment-effect` finds nothing, and finds twins that add more than they pay for.

The audit of the task itself draws fresh noise: it alarms by chance with probability at most 6e-8.
The twins add too much in every run, whatever the noise is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.protocol.task import Block
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.rounds import ROUNDS
from cloister.testing import check_task, toy_task

CLAIM = Budget(4.0, 1e-6)


class InBothArms(TreatmentEffect):
    """Adds each record to the balance of both arms."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums with those of each arm in the other one, too."""
        total = super().contribute(t, state, records)
        if t == ROUNDS:
            arms = total[-self.blocks(t)[-1].size :].reshape(2, -1)
            arms += arms[::-1].copy()
        return total


class ScoresAreCheap(TreatmentEffect):
    """States a small part of the bound of the average effect."""

    rows = None

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return blocks with too small a bound."""
        return tuple(
            replace(b, l1=b.l1 // 4, l2_squared=b.l2_squared // 16) if b.name == "ate" else b
            for b in super().blocks(t)
        )


def toy(kind: type[TreatmentEffect]) -> tuple[TreatmentEffect, GridState, Records]:
    """Return the task, a state whose cuts are short, and a record at a corner."""
    example = TreatmentEffect.example
    given = {"n_features": 4, "columns": example.columns, "nominal_n": 5000, "budget": CLAIM}
    task = toy_task(kind, **given, **example.options)
    state = {name: np.ones(v.shape, dtype=np.int64) for name, v in task.start().items()}
    return task, state, np.full((1, 4), 1 << 16, dtype=np.int32)


def test_the_laws_find_a_twin_that_adds_a_record_to_both_arms() -> None:
    task, state, corner = toy(TreatmentEffect)
    check_task(task, [corner], [state])
    twin, _, _ = toy(InBothArms)
    with pytest.raises(AssertionError):
        check_task(twin, [corner], [state])


def test_the_kernel_leaves_out_what_is_above_a_bound() -> None:
    task, state, corner = toy(ScoresAreCheap)
    words = task.contribute(ROUNDS, state, corner)
    assert not words[:3].any()
    assert words[3:].any()


@pytest.mark.nightly
def test_an_audit_finds_a_twin_that_adds_a_record_to_both_arms() -> None:
    options = TreatmentEffect.example.options
    found = audit_task(InBothArms, CLAIM, options=options, runs=40, words=100)
    assert "sensitivity" in {finding.check for finding in found.findings if finding.alarms}


@pytest.mark.nightly
def test_the_task_itself_passes() -> None:
    options = TreatmentEffect.example.options
    found = audit_task(TreatmentEffect, CLAIM, options=options, runs=100, words=200)
    assert not [finding for finding in found.findings if finding.alarms]
