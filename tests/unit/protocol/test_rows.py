"""The core sums rows and leaves out each one above a bound, whatever a task makes of a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import LocalProtocolError, PlanError
from cloister.protocol.rows import sum_of_rows, summed
from cloister.protocol.task import Block, Rows

LAST = np.iinfo(np.int64)
SIZE = 5


def block(l1: int = 6, l2_squared: int = 14, size: int = SIZE) -> Block:
    return Block("b", (size,), l1, l2_squared, 1.0)


def ints(*values: Any) -> Any:
    return np.array(values, dtype=np.int64)


def by_hand(cells: list[list[int]], values: list[list[int]], of: Block) -> list[int]:
    """Sum rows in Python's integers, by the rule itself."""
    total = [0] * of.size
    for at, row in zip(cells, values, strict=True):
        named = [cell for cell, value in zip(at, row, strict=True) if value]
        fits = all(0 <= cell < of.size for cell in at) and len(set(named)) == len(named)
        small = sum(map(abs, row)) <= of.l1 and sum(v * v for v in row) <= of.l2_squared
        for cell, value in zip(at, row, strict=True) if fits and small else ():
            total[cell] += value
    return total


NUMBERS = st.one_of(
    st.integers(-4, 4), st.sampled_from([int(LAST.min), int(LAST.max), 2**32, -(2**31)])
)


@given(st.data())
def test_every_row_is_summed_or_left_out_by_the_rule(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 3))
    row = st.lists(NUMBERS, min_size=width, max_size=width)
    values = data.draw(st.lists(row, min_size=1, max_size=6))
    place = st.integers(-1, SIZE)
    same = st.lists(place, min_size=width, max_size=width)
    cells = data.draw(st.lists(same, min_size=len(values), max_size=len(values)))
    bounds = st.sampled_from([(3, 4), (6, 14), (2**33, 2**66), (2**70, 2**140)])
    of = block(*data.draw(bounds))
    assert summed(Rows(ints(*cells), ints(*values)), of).tolist() == _wrapped(cells, values, of)
    starts = [at[0] for at in cells]
    runs = [[start + i for i in range(width)] for start in starts]
    assert summed(Rows(ints(*starts), ints(*values)), of).tolist() == _wrapped(runs, values, of)
    shared = [values[0]] * len(values)
    assert summed(Rows(ints(*cells), ints(*values[0])), of).tolist() == _wrapped(cells, shared, of)
    assert summed(Rows(ints(*starts), ints(*values[0])), of).tolist() == _wrapped(runs, shared, of)


def _wrapped(cells: list[list[int]], values: list[list[int]], of: Block) -> list[int]:
    """Return the sums as int64 holds them."""
    return [(total + 2**63) % 2**64 - 2**63 for total in by_hand(cells, values, of)]


def test_many_large_rows_are_summed_exactly() -> None:
    values = np.full((5000, 1), 2**47 + 1)
    of = block(2**60, 2**120, 1)
    assert summed(Rows(np.zeros(5000, np.int64), values), of).tolist() == [5000 * (2**47 + 1)]
    two = np.tile(ints([0], [1]), (2500, 1))
    found = summed(Rows(two, values), block(2**60, 2**120, 2))
    assert found.tolist() == [2500 * (2**47 + 1)] * 2


@pytest.mark.parametrize(
    "rows",
    [
        Rows(np.zeros(2), ints([1], [1])),
        Rows(ints(0, 0), np.ones((2, 1))),
        Rows(ints(0, 0), np.ones((2, 1), np.int32)),  # type: ignore[arg-type]
        Rows(ints([0, 1], [0, 1]), ints([1], [1])),
        Rows(ints(0, 0), ints([1], [1], [1])),
        Rows(ints([[0]]), ints([1])),
        Rows(ints(0), np.int64(1)),  # type: ignore[arg-type]
        Rows(ints(0), np.zeros((1, 0), np.int64)),
    ],
)
def test_rows_of_another_form_are_refused(rows: Rows) -> None:
    with pytest.raises(ValueError, match="rows"):
        summed(rows, block())


@dataclass(frozen=True)
class Odd:
    """A task that adds 1 for each record, and does something else with some of them."""

    how: str
    name: str = "odd"

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (block(1, 1, 1),)

    def rows(self, t: int, state: Any, records: Any) -> Any:
        match self.how:
            case "raises" if (records == 7).any():
                raise ValueError(f"cannot use {records}")
            case "refuses the state":
                raise PlanError("state must be another.")
            case "breaks":
                raise KeyError("none")
            case "two rows a record":
                records = np.repeat(records, 1 + (records[:, 0] == 7), axis=0)
            case "loud":
                return (Rows.dense(1 + 9 * (records == 7)),)
            case "two blocks":
                return (Rows.dense(np.ones_like(records)),) * 2
        return (Rows.dense(np.ones((len(records), 1), np.int64)),)


RECORDS = ints([1], [7], [2], [7], [3], [4])


@pytest.mark.parametrize(
    ("how", "total"), [("nothing", 6), ("raises", 4), ("loud", 4), ("two rows a record", 4)]
)
def test_a_record_that_a_task_cannot_use_adds_nothing_and_stops_nothing(
    how: str, total: int
) -> None:
    odd: Any = Odd(how)
    assert sum_of_rows(odd, 0, {}, RECORDS).tolist() == [total]
    assert sum_of_rows(odd, 0, {}, RECORDS[:0]).tolist() == [0]


def test_a_task_without_rows_of_no_records_stops_whatever_the_records_are() -> None:
    odd: Any = Odd("breaks")
    with pytest.raises(LocalProtocolError, match=r"makes no rows of round 0 \(KeyError\)"):
        sum_of_rows(odd, 0, {}, RECORDS)
    two: Any = Odd("two blocks")
    with pytest.raises(LocalProtocolError, match="ValueError"):
        sum_of_rows(two, 0, {}, RECORDS)
    state: Any = Odd("refuses the state")
    with pytest.raises(PlanError, match="state must be another"):
        sum_of_rows(state, 0, {}, RECORDS)
