"""Naive Bayes: what one record adds is bounded by the plan, whatever the record is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister.testing import check_task, toy_task

COLUMNS = (
    PublicColumn("age", 0.0, 100.0),
    PublicColumn("visits", 0.0, 30.0),
    PublicColumn("calls", 0.0, 9.0),
    PublicColumn("work", 0.0, 2.0, ("private", "state", "none")),
    PublicColumn("smokes", 0.0, 1.0, ("0", "1")),
    PublicColumn("ill", 0.0, 2.0, ("no", "mild", "bad")),
)
OPTIONS = {
    "binned": {"numbers": "binned"},
    "gaussian": {"numbers": "gaussian"},
    "counts": {"numbers": {"visits": "counts", "calls": "counts"}, "most_counts": 5.0},
    "few counts": {"numbers": {"visits": "counts", "calls": "counts"}, "most_counts": 1000.0},
    "all": {"numbers": {"age": "gaussian"}, "bins": 7},
}


def designed(frac_bits: int = 16, **options: object) -> NaiveBayes:
    return toy_task(
        NaiveBayes,
        n_features=len(COLUMNS),
        nominal_n=1000,
        budget=Budget(1.0, 1e-6),
        columns=COLUMNS,
        target="ill",
        frac_bits=frac_bits,
        **options,
    )


def worst(frac_bits: int) -> np.ndarray:
    """Corners, copies, the middle, and records that lie beside the box."""
    one = 1 << frac_bits
    return np.array(
        [
            [one] * 6,
            [one] * 6,
            [-one] * 6,
            [0] * 6,
            [one, -one] * 3,
            [one, one, -one, one, -one, one],
            [1, one - 1, -1, 2, -2, 0],
            [2**31 - 1] * 6,
            [-(2**31)] * 6,
        ],
        dtype=np.int32,
    )


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_worst_records_keep_the_bounds(kind: str, frac_bits: int) -> None:
    task = designed(frac_bits, **OPTIONS[kind])
    check_task(
        task, [worst(frac_bits), worst(frac_bits)[:1], np.repeat(worst(frac_bits)[:1], 9, 0)]
    )


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_record_adds_the_same_in_any_company(kind: str) -> None:
    """Also past the size of a part of the records, in any layout, and nobody adds nothing."""
    task = designed(**OPTIONS[kind])
    one = 1 << 16
    records = np.random.default_rng(0).integers(-one, one + 1, ((1 << 14) + 7, 6), dtype=np.int32)
    whole = task.contribute(0, task.start(), records)
    alone = sum(task.contribute(0, task.start(), records[i : i + 1]) for i in range(30))
    assert (alone + task.contribute(0, task.start(), records[30:]) == whole).all()
    assert (task.contribute(0, task.start(), np.asfortranarray(records)) == whole).all()
    assert not task.contribute(0, task.start(), records[:0]).any()


@pytest.mark.parametrize("kind", OPTIONS)
@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 6), st.just(6)), elements=st.integers(-16, 16)
    )
)
def test_any_records_keep_the_bounds(kind: str, records: np.ndarray) -> None:
    check_task(designed(4, **OPTIONS[kind]), [records])


@pytest.mark.parametrize("kind", ["binned", "gaussian", "all", "few counts"])
def test_the_bound_is_nearly_reached_so_no_noise_is_wasted(kind: str) -> None:
    task = designed(**OPTIONS[kind])
    (block,) = task.blocks(0)
    state = {name: np.zeros(v.shape, np.int64) for name, v in task.start().items()}
    corner = np.full((1, 6), 1 << 16, dtype=np.int32)
    added = task.contribute(0, state, corner).astype(object)
    assert (added**2).sum() > (0.6 if kind == "few counts" else 0.99) * block.l2_squared


@given(
    records=arrays(np.int32, (1, 6), elements=st.integers(-(1 << 16), 1 << 16)),
    other=st.integers(-(1 << 16), 1 << 16),
)
def test_a_table_moves_equally_far_whatever_the_category(records: np.ndarray, other: int) -> None:
    """So the length of what is sent says nothing, and the bound holds with equality."""
    task = designed(bins=5)
    state = {name: np.zeros(v.shape, np.int64) for name, v in task.start().items()}
    changed = records.copy()
    changed[0, 3] = other
    first, second = (task.contribute(0, state, r).astype(object) for r in (records, changed))
    assert (first**2).sum() == (second**2).sum() == task.blocks(0)[0].l2_squared
