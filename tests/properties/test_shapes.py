"""Shapes: a record adds what the proof has, and its removal changes sums within the bound."""

from __future__ import annotations

from bisect import bisect_right
from math import exp, isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.hazmat.fixedpoint import Grid
from cloister.tasks.supervised.shapes import Additive, ShapesClassifier

from .cases import DESIGNS, any_shapes

NAMES = [name for name in DESIGNS if name.startswith("shapes")]
ONE = 1 << 16


def plain_pair(task: ShapesClassifier, state: dict, record: list[int]) -> list[tuple[int, int]]:
    """Return the places of a record, and the integers that it adds there, for two classes."""
    numbers = iter(state["edges"].tolist())
    places, start = [], 0
    for j, size in zip(task.layout.used, task.layout.sizes, strict=True):
        if levels := len(task.categories[j]):
            # The nearest category, a tie upwards.
            place = ((record[j] + ONE) * (levels - 1) + ONE) // (2 * ONE)
        else:
            place = bisect_right(sorted(next(numbers)), min(record[j], ONE - 1))
        places.append(start + place)
        start += size
    score = (state["intercept"][0] + sum(state["effects"][place, 0] for place in places)) / ONE
    p = 1 / (1 + exp(-min(max(score, -30.0), 30.0)))
    active = [place for place, is_active in zip(places, state["active"], strict=True) if is_active]
    if not active:
        return []
    unit = isqrt(len(places) * ONE**2 // len(active))
    added = [int(((record[task.target] >= 0) - p) * unit), int(3.33 * (p * (1 - p)) * unit)]
    return [(2 * place + i, value) for place in active for i, value in enumerate(added)]


@given(data=st.data(), seed=st.integers(0, 9))
def test_sums_are_those_of_records_one_by_one(data: st.DataObject, seed: int) -> None:
    """As the proof has it, up to the last bit of an exponential before it is cut."""
    task = DESIGNS["shapes, 2 classes"].build()
    rows = st.tuples(st.integers(0, 8), st.just(5))
    cells = st.sampled_from([-ONE, -1, 0, 1, ONE]) | st.integers(-ONE, ONE)
    records = data.draw(arrays(np.int32, rows, elements=cells))
    for state in any_shapes(task, seed):
        plain = np.zeros(task.blocks(task.rounds - 1)[0].size, dtype=np.int64)
        for record in records.tolist():
            for word, value in plain_pair(task, state, record):
                plain[word] += value
        found = task.contribute(task.rounds - 1, state, records)
        assert np.abs(found - plain).max() <= len(records)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), seed=st.integers(0, 9))
def test_the_removal_of_a_record_changes_the_sums_within_the_bound(
    name: str, data: st.DataObject, seed: int
) -> None:
    """From cells in data units, in and out of the bounds, to the vector, in every round."""
    case = DESIGNS[name]
    task: Additive = case.build()
    grid = Grid(task.low, task.high)
    cells = st.floats(-1e9, 1e9) | st.integers(-5, 130).map(float)
    table = data.draw(arrays(np.float64, (4, case.width), elements=cells))
    records = grid.encode(table)
    for state in any_shapes(task, seed)[:2]:
        for t in range(task.rounds):
            ends = np.cumsum([block.size for block in task.blocks(t)])[:-1]
            change = task.contribute(t, state, records) - task.contribute(t, state, records[1:])
            for block, part in zip(task.blocks(t), np.split(change, ends), strict=True):
                assert sum(value**2 for value in part.tolist()) <= block.l2_squared
                assert np.abs(part).sum() <= block.l1
