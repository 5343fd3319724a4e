"""A small part of the yardstick: released numbers beside the textbook's on a public table.

Draws and noise have seeds of their own, so a run gives the same numbers each time.
"""

from __future__ import annotations

import numpy as np
import pytest

from cloister_lab.experiments.yardstick.experiment import Cell, measure
from cloister_lab.experiments.yardstick.tables import TABLES

_DIABETES = next(table for table in TABLES if table.name == "diabetes")
_RUNS = 30


@pytest.mark.parametrize(
    "task", ["count", "statistics", "describe", "pca", "regression-evaluation"]
)
def test_intervals_hold_the_textbook_answer_and_are_not_wide(task: str) -> None:
    summary, *rows = measure(Cell(task, _DIABETES, 2000, 1.0, _RUNS))
    assert summary.refused == 0
    assert rows
    # At a true level of .95, a row below .8 has a probability of .003 before its seed is fixed.
    assert min(row.coverage for row in rows) >= 0.8
    assert np.mean([row.coverage for row in rows]) >= 0.93
    # The needed width is the greatest error but one of 30, so a single ratio is rough.
    assert np.median([row.width for row in rows]) <= 1.5
