"""The rows that records contribute to a round, and the core's check of their norms.

A task maps records to :class:`~cloister.protocol.task.Rows`, one for each record. :func:`summed`
adds them up and leaves out each row above a bound of its block. The sensitivity of a sum then does
not rest on the task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isqrt
from typing import Literal

import numpy as np

from cloister.core.arrays import Flags, GridState, Integers, Records
from cloister.core.errors import CloisterError, LocalProtocolError
from cloister.protocol.task import Block, Rows, Task

Manner = Literal["kernel", "rows", "single"]
"""How records are summed: by the fast kernel, by rows, or by the row of each record alone."""
MANNERS: tuple[Manner, ...] = ("kernel", "rows", "single")
"""From the fastest to the one that rests on least."""

_VALUES = 1 << 22  # integers of rows in memory at a time
_INT64 = 2**63
_EXACT = 2**53  # float64 adds integers below this without rounding


def summed(rows: Rows, block: Block) -> Integers:
    """Return the sum of all rows of a block, shape (block.size,), int64, exact.

    A row adds nothing if it is above the L1 or L2 bound of the block. Nor does a row that names a
    cell outside the block, or a cell twice.
    """
    cells, values = rows.cells, rows.values
    keep = kept(rows, block)
    if not keep.all():
        cells = cells[keep]
        values = values[keep] if values.ndim == 2 else values
    total = np.zeros(block.size, dtype=np.int64)
    if not len(cells):
        return total
    if cells.ndim == 1:
        starts, label = np.unique(cells, return_inverse=True)
        sums = _sums_by_label(label, values, len(starts))
        np.add.at(total, starts[:, None] + np.arange(values.shape[-1]), sums)
        return total
    for column in range(cells.shape[1]):
        value = values[column] if values.ndim == 1 else values[:, column]
        total += _counted(cells[:, column], value, block.size)
    return total


def kept(rows: Rows, block: Block) -> Flags:
    """Return a flag of each row that :func:`summed` adds, shape (m,)."""
    cells, values = rows.cells, rows.values
    _check_form(cells, values)
    return _within_bounds(values, block) & _within_block(cells, values, block.size)


MakeRows = Callable[[Records], Sequence[Rows]]
"""From records to their rows for each block of a round."""


def sum_of_rows(
    task: Task, t: int, state: GridState, records: Records, make: MakeRows | None = None
) -> Integers:
    """Return the sums of round `t` by the rows of a task, its blocks one after another.

    A record whose row the task cannot make adds nothing, and stops nothing: an error would be an
    answer about records.

    Parameters
    ----------
    make : function of records, optional
        ``task.rows`` in this round and state unless given.

    Raises
    ------
    LocalProtocolError
        If the task cannot make rows of no records, so that its code or the plan is wrong.
    """
    make = make or partial(task.rows, t, state)  # type: ignore[attr-defined]  # an optional member
    blocks = task.blocks(t)
    total = np.zeros(sum(block.size for block in blocks), dtype=np.int64)
    # so few at a time that rows as long as the whole vector do not fill the memory
    size = max(64, _VALUES // max(1, len(total)))
    for first in range(0, max(1, len(records)), size):
        part = records[first : first + size]
        try:
            total += _sums(make, part, blocks)
        except Exception:  # of any kind: a task is another's code
            _check_none(task, t, make, records[:0], blocks)
            total += _sums_of_those_that_work(make, part, blocks)
    return total


def _check_none(task: Task, t: int, make: MakeRows, none: Records, blocks: Sequence[Block]) -> None:
    """Raise an error if the task fails without records, too."""
    try:
        _sums(make, none, blocks)
    except CloisterError:  # a public state that the task refuses
        raise
    except Exception as error:
        raise LocalProtocolError(
            f"task {task.name!r} makes no rows of round {t} ({type(error).__name__}); the plan or "
            "the task is not right."
        ) from None


def _sums_of_those_that_work(make: MakeRows, records: Records, blocks: Sequence[Block]) -> Integers:
    """Return the sums of the records of which the task makes rows, found by halving."""
    try:
        return _sums(make, records, blocks)
    except Exception:
        if len(records) <= 1:
            return np.zeros(sum(block.size for block in blocks), dtype=np.int64)
        half = len(records) // 2
        first = _sums_of_those_that_work(make, records[:half], blocks)
        return first + _sums_of_those_that_work(make, records[half:], blocks)


def _sums(make: MakeRows, records: Records, blocks: Sequence[Block]) -> Integers:
    rows = make(records)
    if len(rows) != len(blocks) or any(len(one.cells) != len(records) for one in rows):
        raise ValueError("a task must return rows for each block, one for each record")
    return np.concatenate([summed(*pair) for pair in zip(rows, blocks, strict=True)])


def _check_form(cells: Integers, values: Integers) -> None:
    """Raise a ValueError unless both are int64 of shapes that belong together."""
    if cells.dtype != np.int64 or values.dtype != np.int64:
        raise ValueError(f"rows must be int64, got {cells.dtype} and {values.dtype}")
    width = values.shape[-1] if values.ndim else 0
    fits = values.ndim == 1 or (values.ndim == 2 and len(values) == len(cells))
    if not (fits and width and cells.ndim in (1, 2) and cells.shape[1:] in ((), (width,))):
        raise ValueError(f"rows of shapes {cells.shape} and {values.shape} do not fit")


def _within_bounds(values: Integers, block: Block) -> Flags:
    """Return a flag of each row within both bounds; of shape (m,), or (1,) if all are the same.

    All is exact: norms that int64 may not hold are computed in Python's integers.
    """
    table = np.atleast_2d(values)
    largest = isqrt(block.l2_squared)  # no element of a row may be larger
    # The smallest int64 has no absolute value, so both ends are compared.
    small: Flags = np.asarray(((table <= largest) & (table >= -largest)).all(axis=1))
    table = np.where(small[:, None], table, 0)
    peak = int(np.abs(table).max(initial=0))
    exact = table if peak * peak * table.shape[1] < _INT64 else table.astype(object)
    l1, l2_squared = np.abs(exact).sum(axis=1), (exact * exact).sum(axis=1)
    return np.asarray(small & (l1 <= block.l1) & (l2_squared <= block.l2_squared), dtype=bool)


def _within_block(cells: Integers, values: Integers, size: int) -> Flags:
    """Return a flag of each row that names cells of the block only, each once; of shape (m,)."""
    if cells.ndim == 1:
        return np.asarray((cells >= 0) & (cells <= size - values.shape[-1]))
    inside = ((cells >= 0) & (cells < size)).all(axis=1)
    rising: Flags = np.asarray((cells[:, 1:] > cells[:, :-1]).all(axis=1))
    if not rising.all():
        # A cell to which nothing is added may be named again: each such entry gets its own.
        alone = size + np.arange(cells.shape[1])
        named = np.sort(np.where(values == 0, alone, cells)[~rising], axis=1)
        rising[~rising] = (named[:, 1:] > named[:, :-1]).all(axis=1)
    return np.asarray(inside & rising)


def _sums_by_label(label: Integers, values: Integers, n_labels: int) -> Integers:
    """Return the sum of the rows of each label, shape (n_labels, w)."""
    if values.ndim == 1:
        return np.bincount(label, minlength=n_labels)[:, None] * values
    if n_labels == 1:
        return np.asarray(values.sum(axis=0, keepdims=True))
    columns = [_counted(label, column, n_labels) for column in values.T]
    return np.stack(columns, axis=1)


def _counted(cells: Integers, value: Integers | np.int64, size: int) -> Integers:
    """Return the sum of the values at each cell, shape (size,), int64, exact."""
    if np.ndim(value) == 0:
        return np.bincount(cells, minlength=size) * value
    peak = max(int(value.max()), -int(value.min()))
    if peak * len(cells) < _EXACT:
        return np.bincount(cells, value, size).astype(np.int64)
    total = np.zeros(size, dtype=np.int64)
    np.add.at(total, cells, value)
    return total
