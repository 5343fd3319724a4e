"""An audit of `shapes` finds nothing, and finds twins that add more than they pay for.

The audits of the tasks draw fresh noise: each alarms by chance with probability at most 6e-8. The
twins add too much in every run, whatever the noise is.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister.audit import audit_task
from cloister.core.arrays import GridState, Integers, Records
from cloister.privacy.budget import Budget
from cloister.tasks.supervised.shapes import Additive, ShapesClassifier
from cloister.tasks.supervised.shapes_regression import ShapesRegression
from cloister.testing import check_task, toy_task

CLAIM = Budget(4.0, 1e-6)


class LeftOutColumnsAreAdded(ShapesClassifier):
    """Gives active columns the norm of all, and adds to the others, too."""

    rows = None  # the kernel alone, which nothing checks

    def _added(
        self, state: GridState, records: Records
    ) -> tuple[list[Integers], Integers, Integers]:
        places, whole, active = super()._added(state, records)
        return places, whole, np.ones_like(active)


class CurvatureIsNotPaidFor(ShapesClassifier):
    """Adds the curvature once more after the check of the norm."""

    rows = None

    def _added(
        self, state: GridState, records: Records
    ) -> tuple[list[Integers], Integers, Integers]:
        places, whole, active = super()._added(state, records)
        whole[1] += np.sign(whole[0]) * whole[1]
        return places, whole * [[1], [3]], active


class CellsAreCountedTwice(ShapesClassifier):
    """Counts a record in its cell and in the first one."""

    rows = None

    def _counted(self, records: Records) -> Integers:
        counts = super()._counted(records)
        counts[:: self.cells] += len(records)
        return counts


TWINS = (CurvatureIsNotPaidFor, CellsAreCountedTwice)


def toy(kind: type[Additive]) -> tuple[Additive, GridState, Records]:
    """Return the task, a state with one active column, and records of both classes."""
    example = ShapesClassifier.example
    given = {"n_features": 4, "columns": example.columns, "nominal_n": 5000, "budget": CLAIM}
    task = toy_task(kind, **given, **example.options)
    state = {name: np.zeros(v.shape, dtype=np.int64) for name, v in task.start().items()}
    state["active"][0] = 1 << 16
    corners = np.full((2, 4), 1 << 16, dtype=np.int32)
    corners[1, 3] *= -1
    return task, state, corners


def test_the_laws_pass_the_task_and_find_its_twins() -> None:
    task, state, corners = toy(ShapesClassifier)
    check_task(task, [corners], [state])
    # An audit of a small example leaves out no column, so the laws alone find that twin.
    for twin in (*TWINS, LeftOutColumnsAreAdded):
        task, state, corners = toy(twin)
        with pytest.raises(AssertionError):
            check_task(task, [corners], [state])


@pytest.mark.nightly
@pytest.mark.parametrize("twin", TWINS)
def test_an_audit_finds_a_twin_that_adds_too_much(twin: type[ShapesClassifier]) -> None:
    found = audit_task(twin, CLAIM, options=twin.example.options, runs=40, words=100)
    assert {"sensitivity", "sizes"} & {
        finding.check for finding in found.findings if finding.alarms
    }


@pytest.mark.nightly
@pytest.mark.parametrize("task", [ShapesClassifier, ShapesRegression])
def test_the_tasks_themselves_pass(task: type[Additive]) -> None:
    found = audit_task(task, CLAIM, options=task.example.options, runs=100, words=200)
    assert not [finding for finding in found.findings if finding.alarms]
