"""Naive Bayes: what one record adds is bounded by the plan, whatever the record is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from .cases import DESIGNS


@given(
    records=arrays(np.int32, (1, 6), elements=st.integers(-(1 << 16), 1 << 16)),
    other=st.integers(-(1 << 16), 1 << 16),
)
def test_a_table_moves_equally_far_whatever_the_category(records: np.ndarray, other: int) -> None:
    """So the length of what is sent says nothing, and the bound holds with equality."""
    case = DESIGNS["naive Bayes, binned"]
    task = case.build(bins=5)
    state = case.start(task)
    changed = records.copy()
    changed[0, 3] = other
    first, second = (task.contribute(0, state, r).astype(object) for r in (records, changed))
    assert (first**2).sum() == (second**2).sum() == task.blocks(0)[0].l2_squared
