"""Survival: a record adds one public column of integers, shifted, and attains the bounds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.core.arrays import GridState, Integers, Records
from cloister.protocol.task import COUNT_BITS, NoisyBlock
from cloister.tasks.survival import running
from cloister.tasks.survival.survival import Survival
from cloister.testing import check_task

from .cases import DESIGNS, on_grid

ONE = 1 << COUNT_BITS
SURVIVAL = [name for name in DESIGNS if name.startswith("survival")]
GROUPS = DESIGNS["survival, groups"]


@pytest.mark.parametrize("name", SURVIVAL)
@given(record=arrays(np.int32, (1, 3), elements=st.integers(-(1 << 16) - 1, (1 << 16) + 1)))
def test_a_record_adds_one_public_column_at_the_place_of_its_cell(
    name: str, record: Records
) -> None:
    """The sums are in reversed order of cells, so the column begins there and is cut at the end."""
    task = DESIGNS[name].build()
    added = task.contribute(0, DESIGNS[name].start(task), record)
    rows = added.reshape(-1, len(task.horizon.ends) + 1)
    (touched,) = np.flatnonzero(rows.any(axis=1))
    place = int(np.flatnonzero(rows[touched])[0])
    column = running.column(rows.shape[1])
    assert (rows[touched, place:] == column[: len(column) - place]).all()
    (block,) = task.blocks(0)
    assert (block.l1, block.l2_squared) == (column.sum(), (column**2).sum())


@given(
    counts=arrays(np.int64, (2, 2, 60), elements=st.integers(0, 1 << 20)),
    seed=st.integers(0, 99),
)
def test_neighbours_differ_by_one_column_and_words_are_exact_integers(
    counts: Integers, seed: int
) -> None:
    more = counts.copy()
    more[tuple(np.random.default_rng(seed).integers(counts.shape))] += 1
    change = running.encoded(more) - running.encoded(counts)
    column = running.column(60)
    assert (change**2).sum() <= (column**2).sum()
    assert np.abs(change).sum() <= column.sum()
    # The product with the matrix itself, in integers of Python.
    last = [sum(int(w) * int(x) for w, x in zip(column, row, strict=True)) for row in counts[0]]
    assert running.encoded(counts)[0, :, -1].tolist() == last


@pytest.mark.parametrize("name", SURVIVAL)
@pytest.mark.parametrize("scale", [0, 1, 30, 3000, 1e12])
def test_any_release_has_a_curve_that_falls_and_intervals_in_order(name: str, scale: float) -> None:
    """Whatever noise, or an enemy, makes of the sums: no warning, and no end is crossed."""
    case, rng = DESIGNS[name], np.random.default_rng(0)
    task = case.build()
    (block,) = task.blocks(0)
    for mean in (-100, 0, 5, 100):
        words = np.rint(rng.normal(mean, scale, block.shape) * ONE).astype(np.int64)
        answer = {block.name: NoisyBlock(words, ONE * max(scale, 1.0))}
        state = on_grid(task, task.update(0, case.start(task), answer))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found: Any = task.results(state, None)
        for key in ("survival", "median", "rate", "restricted_mean", "stated_survival"):
            for kind in ("", "_population"):
                low, high = (found[f"{key}{kind}_{end}"] for end in ("low", "high"))
                assert not (low > high).any()
        assert not (np.diff(found["survival"], axis=1) > 0).any()
        assert not (found["survival"] > 1).any()
        assert len(task.displays(found, ("months", "died", "stage"))) >= 3


# Broken twins -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SendsAtRisk(Survival):
    """A broken twin: it sends how many are at risk, as published methods do."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        counts = running.decoded(super().contribute(t, state, records).reshape(-1, self._cells))
        risk = np.rint(counts).astype(np.int64)[:, ::-1].cumsum(axis=1)[:, ::-1]
        return risk.ravel()


@dataclass(frozen=True, kw_only=True)
class CountsTwice(Survival):
    """A broken twin: it counts an event among all exits, too, which is a second column."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        sent = super().contribute(t, state, records).reshape(-1, 2, self._cells)
        sent[:, 1] += sent[:, 0]
        return sent.ravel()


@pytest.mark.parametrize("twin", [SendsAtRisk, CountsTwice])
def test_a_second_column_or_numbers_at_risk_break_the_bound(twin: type[Survival]) -> None:
    task = replace(GROUPS, task=twin).build()
    with pytest.raises(AssertionError, match="bound of 'exits'"):
        check_task(task, [GROUPS.worst(task)])
