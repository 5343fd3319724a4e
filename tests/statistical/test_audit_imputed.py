"""An audit of `imputed-regression` tries records that lack cells, and finds nothing.

The audit of the task itself draws fresh noise: it alarms by chance with probability at most 6e-8.
Its mutants are those of the laboratory, which other tests catch.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.audit import audit_task
from cloister.audit.edges import hard_records
from cloister.audit.pairs import encoded, pairs, tables
from cloister.audit.sizes import tried
from cloister.core.arrays import Records
from cloister.core.randomness import public_generator
from cloister.data.schema import schema_of
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import NO_VALUE, Task
from cloister.tasks.examples import example_of
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.imputed import ImputedRegression

CLAIM = Budget(4.0, 1e-6)


def plan(task: type[Task] = ImputedRegression) -> Plan:
    example = example_of(task)
    columns = schema_of(example.columns)
    return make_plan(task, columns, ["p"], budget=CLAIM, nominal_n=200, **example.options)


def lacked(records: Records, of: Plan) -> set[tuple[bool, ...]]:
    """Return which of the incomplete columns records lack; no other cell may be missing."""
    columns = list(of.task.incomplete)  # type: ignore[attr-defined]
    assert not (np.delete(records, columns, axis=1) == NO_VALUE).any()
    return set(map(tuple, (records[:, columns] == NO_VALUE).tolist()))


def test_records_that_lack_each_cell_and_both_are_tried() -> None:
    audited = plan()
    every = {(a, b) for a in (False, True) for b in (False, True)}
    state = {name: round_to_grid(v, 16) for name, v in audited.task.start().items()}
    assert lacked(tried(audited), audited) == every
    assert lacked(hard_records(audited, 0, state, public_generator("hard")), audited) == every
    assert lacked(encoded(audited.grid, tables(audited)["groups"]), audited) == every
    assert lacked(pairs(audited)[-1].extra, audited) == {(True, True)}


def test_a_task_that_completes_no_cell_is_tried_without_missing_ones() -> None:
    audited = plan(TreatmentEffect)
    assert (np.abs(tried(audited)) <= audited.grid.one).all()
    assert len(pairs(audited)) == len(pairs(plan())) - 1


@pytest.mark.nightly
def test_the_task_itself_passes() -> None:
    options = ImputedRegression.example.options
    found = audit_task(ImputedRegression, CLAIM, options=options, runs=100, words=200)
    assert not [finding for finding in found.findings if finding.alarms]
