"""Cox regression from a table: a record adds shares with a constant sum of one public column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cloister.core.arrays import GridState, Integers, Records
from cloister.tasks.survival import running
from cloister.tasks.survival.covariate_cells import CovariateCells
from cloister.tasks.survival.cox import Cox
from cloister.testing import check_task

from .cases import DESIGNS

NUMBER = DESIGNS["cox, a number"]
ALL = [name for name in DESIGNS if name.startswith("cox, ")]


@pytest.mark.parametrize("name", ALL)
def test_neighbours_differ_by_at_most_the_bound(name: str) -> None:
    """A record adds the same alone and among other records."""
    case = DESIGNS[name]
    task = case.build()
    (block,) = task.blocks(0)
    records = np.concatenate([case.worst(task), case.between(16, 60)])
    alone = [task.contribute(0, {}, row[None]) for row in records]
    norms = [int((words.astype(object) ** 2).sum()) for words in alone]
    assert max(norms) == block.l2_squared
    assert max(int(np.abs(words).sum()) for words in alone) <= block.l1
    whole = task.contribute(0, {}, records)
    for row in range(0, len(records), 9):
        less = task.contribute(0, {}, np.delete(records, row, axis=0))
        np.testing.assert_array_equal(whole - less, alone[row])


@pytest.mark.parametrize("name", ALL)
def test_cells_add_up_to_the_release_without_covariates(name: str) -> None:
    case = DESIGNS[name]
    task = case.build()
    records = case.between(16, 200)
    words = task.contribute(0, {}, records)
    size = np.prod(task._shape)
    together = words[:size].reshape(task._shape).sum(axis=0)
    times, event = records[:, task.time], records[:, task.event]
    counts = task._horizon.exits(np.zeros(200, dtype=np.int64), 1, times, event)[0]
    np.testing.assert_array_equal(together, running.encoded(counts) << task._cells.bits)


@dataclass(frozen=True)
class Whole(CovariateCells):
    """A mutant whose records add a full share to both knots."""

    def shares(self, covariates: Records, stratum: Integers) -> tuple[Integers, Integers, Integers]:
        cells, shares, split = super().shares(covariates, stratum)
        return cells, np.full_like(shares, 1 << self.bits), split


def test_shares_that_do_not_add_up_are_noticed() -> None:
    class Doubled(Cox):
        @property
        def _cells(self) -> CovariateCells:  # type: ignore[override]  # a mutant
            return Whole(self.levels, self.n_strata, self.frac_bits)

    task = replace(NUMBER, task=Doubled).build()
    with pytest.raises(AssertionError, match="bound"):
        check_task(task, [NUMBER.worst(task)])


def test_numbers_at_risk_in_place_of_exits_are_noticed() -> None:
    class AtRisk(Cox):
        def contribute(self, t: int, state: GridState, records: Records) -> Any:
            words = super().contribute(t, state, records)
            size = np.prod(self._shape)
            sums = words[:size].reshape(self._shape).cumsum(axis=-1).ravel()
            return np.concatenate([sums, words[size:]])

    task = replace(NUMBER, task=AtRisk).build()
    with pytest.raises(AssertionError, match="bound"):
        check_task(task, [NUMBER.worst(task)])


def test_products_of_shares_cost_less_than_splitting_saves() -> None:
    """A record halfway between knots has a smaller norm, with the products of its shares."""
    task = NUMBER.build()
    (block,) = task.blocks(0)
    knots = 2 * (1 << 16) // 16
    rows = np.array([[1 << 16, 1 << 16, step, 0, 0, 0] for step in range(0, knots + 1, 64)])
    rows[:, 0] = 0
    norms = [
        int((task.contribute(0, {}, row[None].astype(np.int32)).astype(object) ** 2).sum())
        for row in rows
    ]
    assert norms[0] == norms[-1] == max(norms) <= block.l2_squared
    assert min(norms) == norms[len(norms) // 2]
