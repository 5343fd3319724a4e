"""Tables and means: what one record adds is bounded by the plan, whatever the record is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.privacy.budget import Budget
from cloister.protocol.task import NoisyBlock, PublicColumn
from cloister.tasks.tables.tabulate import Tabulate
from cloister.testing import check_task, hostile_states, toy_task

COLUMNS = (
    PublicColumn("age", 0.0, 100.0),
    PublicColumn("weight", 0.0, 200.0),
    PublicColumn("work", 0.0, 2.0, ("private", "state", "none")),
    PublicColumn("smokes", 0.0, 1.0, ("0", "1")),
    PublicColumn("ill", 0.0, 2.0, ("no", "mild", "bad")),
)
WIDTH = len(COLUMNS)
OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"tables": [["smokes"]]},
    "many": {"tables": [["work", "smokes"], ["ill"], ["smokes", "ill"]], "tests": ["chi2"]},
    "margins": {"tables": [["ill", "work"], ["smokes", "work", "ill"], ["smokes"]]},
    "bins": {"tables": [["age", "smokes"]], "edges": {"age": [18.0, 40.0, 65.0]}},
    "means": {"means": ["age", "weight"]},
    "all": {
        "tables": [["work", "age"], ["ill", "smokes"]],
        "edges": {"age": [50.0]},
        "means": ["weight", "age"],
        "by": ["age", "smokes"],
        "weights": [3.0, 1.0, 0.5],
    },
}


def designed(frac_bits: int = 16, **options: Any) -> Tabulate:
    found: Tabulate = toy_task(
        Tabulate,
        n_features=WIDTH,
        nominal_n=100_000,
        budget=Budget(1.0, 1e-6),
        columns=COLUMNS,
        frac_bits=frac_bits,
        **options,
    )
    return found


def worst(frac_bits: int) -> np.ndarray:
    """Corners, copies, edges of bins and their neighbours, and records beside the box."""
    one = 1 << frac_bits
    edge = int(np.rint((50.0 / 100 * 2 - 1) * one))
    rows = [[one] * 5, [one] * 5, [-one] * 5, [0] * 5, [one, -one, one, -one, one]]
    rows += [[edge + by] * 5 for by in (-1, 0, 1)]
    rows += [[1, one - 1, -1, 2, -2], [2**31 - 1] * 5, [-(2**31)] * 5]
    return np.array(rows, dtype=np.int32)


def added(task: Tabulate, records: np.ndarray) -> np.ndarray:
    return task.contribute(0, {k: np.zeros(v.shape, int) for k, v in task.start().items()}, records)


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_worst_records_keep_the_bounds_in_any_state(kind: str, frac_bits: int) -> None:
    task = designed(frac_bits, **OPTIONS[kind])
    rows = worst(frac_bits)
    tables = [rows, rows[:1], np.repeat(rows[:1], 9, 0), rows[:0]]
    check_task(task, tables, states=list(hostile_states(task)))


@pytest.mark.parametrize("kind", OPTIONS)
@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 6), st.just(WIDTH)), elements=st.integers(-17, 17)
    )
)
def test_any_records_keep_the_bounds(kind: str, records: np.ndarray) -> None:
    check_task(designed(4, **OPTIONS[kind]), [records])


@pytest.mark.parametrize("kind", OPTIONS)
@given(
    record=arrays(np.int32, (1, WIDTH), elements=st.integers(-(1 << 16), 1 << 16)),
)
def test_the_bound_is_reached_by_tables_and_nearly_by_means(kind: str, record: np.ndarray) -> None:
    task = designed(**OPTIONS[kind])
    (block,) = task.blocks(0)
    record[0, :2] = 1 << 16  # a corner, where means add most
    found = added(task, record).astype(object)
    assert (found**2).sum() == block.l2_squared
    assert np.abs(found).sum() == block.l1


@pytest.mark.parametrize("kind", OPTIONS)
@given(data=st.data())
def test_parts_of_any_split_sum_to_the_whole(kind: str, data: st.DataObject) -> None:
    task = designed(**OPTIONS[kind])
    records = np.random.default_rng(0).integers(-(1 << 16), (1 << 16) + 1, (300, WIDTH))
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=300, max_size=300)))
    records = records.astype(np.int32)
    parts = sum(added(task, records[owner == silo]) for silo in range(5))  # one silo is empty
    assert (parts == added(task, records)).all()


@pytest.mark.parametrize("kind", OPTIONS)
def test_lengths_are_of_the_plan(kind: str) -> None:
    task = designed(**OPTIONS[kind])
    (block,) = task.blocks(0)
    for rows in (worst(16), worst(16)[:0]):
        assert added(task, rows).shape == block.shape
        assert added(task, rows).dtype == np.int64


@pytest.mark.parametrize("kind", OPTIONS)
@given(scale=st.sampled_from([0.0, 1.0, 1e3, 1e6]), seed=st.integers(0, 99))
def test_any_release_has_results_without_gaps(kind: str, scale: float, seed: int) -> None:
    """Of nobody, of counts below 0, and where all is noise: numbers, in order, and a report."""
    from cloister.hazmat.fixedpoint import round_to_grid
    from cloister.testing import toy_plan

    task = designed(**OPTIONS[kind])
    plan = toy_plan(task, columns=tuple(c.name for c in COLUMNS))
    (block,) = task.blocks(0)
    words = np.rint(np.random.default_rng(seed).normal(0, scale * 2**16, block.shape))
    released = {"sums": NoisyBlock(words.astype(np.int64), scale * 2**16)}
    state = task.update(0, {}, released)
    found = task.results({k: round_to_grid(v, 16) for k, v in state.items()}, plan.grid)
    for name, value in found.items():
        assert np.isfinite(value).all(), name
        if name.endswith("_low"):
            assert (value <= found[name.removesuffix("low") + "high"]).all(), name
        if name.endswith(("_p", "_holm")):
            assert ((value >= 0) & (value <= 1)).all(), name
    assert task.displays(found, plan.columns)
