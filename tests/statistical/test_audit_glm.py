"""An audit of `glm` finds nothing, and finds a twin that adds more than it pays for.

The audit of the task itself draws fresh noise: it alarms by chance with probability at most 6e-8.
The twin adds too much in every run, whatever the noise is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.protocol.task import Block
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.rounds import LAST, NULL
from cloister.testing import check_task, toy_task

CLAIM = Budget(4.0, 1e-6)


class EachRecordTwice(GeneralizedLinear):
    """Adds each record twice."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return twice the sums."""
        return 2 * super().contribute(t, state, records)


class CurvatureIsCheap(GeneralizedLinear):
    """States a small part of the bound of curvatures."""

    rows = None

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return blocks with too small a bound."""
        return tuple(
            replace(b, l1=b.l1 // 4, l2_squared=b.l2_squared // 16) if b.name == "curvature" else b
            for b in super().blocks(t)
        )


class InTwoLayers(GeneralizedLinear):
    """Adds each record to the layers of two silos."""

    rows = None

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums with the first layer in the second one, too."""
        total = super().contribute(t, state, records)
        return total if t < LAST else np.maximum(total, self.to_silo_layer(t, self.silos[1], total))


def toy(
    kind: type[GeneralizedLinear], **options: object
) -> tuple[GeneralizedLinear, GridState, Records]:
    """Return the task, a state whose cuts are short, and a record at a corner."""
    example = GeneralizedLinear.example
    given = {"n_features": 4, "columns": example.columns, "nominal_n": 5000, "budget": CLAIM}
    task = toy_task(kind, **given, **example.options, **options)
    state = {name: np.ones(v.shape, dtype=np.int64) for name, v in task.start().items()}
    return task, state, np.full((1, 4), 1 << 16, dtype=np.int32)


def test_the_laws_find_a_twin_that_adds_too_much() -> None:
    task, state, corner = toy(EachRecordTwice)
    with pytest.raises(AssertionError):
        check_task(task, [corner], [state])


def test_the_laws_find_a_twin_that_fills_two_layers() -> None:
    about = {"by_silo": True, "silos": ("p", "q")}
    task, state, corner = toy(GeneralizedLinear, **about)
    check_task(task, [corner], [state])
    twin, _, _ = toy(InTwoLayers, **about)
    with pytest.raises(AssertionError):
        check_task(twin, [corner], [state])


def test_the_kernel_leaves_out_what_is_above_a_bound() -> None:
    task, state, corner = toy(CurvatureIsCheap)
    gradient, curvature = task.blocks(NULL)[:2]
    words = task.contribute(NULL, state, corner)
    assert words[: gradient.size].any()
    assert not words[gradient.size : gradient.size + curvature.size].any()


@pytest.mark.nightly
def test_an_audit_finds_a_twin_that_adds_too_much() -> None:
    options = GeneralizedLinear.example.options
    found = audit_task(EachRecordTwice, CLAIM, options=options, runs=40, words=100)
    assert "sensitivity" in {finding.check for finding in found.findings if finding.alarms}


@pytest.mark.nightly
def test_an_audit_finds_a_twin_that_fills_two_layers() -> None:
    options = {**GeneralizedLinear.example.options, "by_silo": True}
    found = audit_task(InTwoLayers, CLAIM, options=options, runs=40, words=100)
    # At the states of honest jobs: the look fills its ball there.
    assert "sizes" in {finding.check for finding in found.findings if finding.alarms}


@pytest.mark.nightly
@pytest.mark.parametrize("by_silo", [False, True])
def test_the_task_itself_passes(by_silo: bool) -> None:
    options = {**GeneralizedLinear.example.options, "by_silo": by_silo}
    found = audit_task(GeneralizedLinear, CLAIM, options=options, runs=100, words=200)
    assert not [finding for finding in found.findings if finding.alarms]
