"""Encoder of columns of numbers as grid records: one pass flags, clips and rounds each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Floats, Records
from cloister.core.compiled import encode_into, has_columns
from cloister.hazmat.fixedpoint import Grid

Columns = NDArray[Any] | Sequence[NDArray[Any]]
"""A table of numbers of any real types: shape (rows, n_features), or one array per column."""
CellFlags = NDArray[np.uint8]
"""Defects of each cell, shape (rows, n_features): a sum of the three bits, or 0."""

MISSING, WRONG, OUTSIDE = np.uint8(1), np.uint8(2), np.uint8(4)
ABSENT = MISSING | WRONG  # no usable number: the cell is filled in, or its record is dropped
_BLOCK_VALUES = 1 << 14  # 128 KiB of floats, so that the steps of a block stay in the CPU cache
_COLUMN_ROWS = 256  # least rows per block, so that the calls are a small cost for wide tables
_TABLES = 8  # the most tables in a block of memory


@dataclass(frozen=True, eq=False)
class CellRules:
    """The rules of a schema for the cells of each column.

    Parameters
    ----------
    fill : ndarray of shape (n_features,), float64, data units, within the bounds
        Replaces a cell without a usable number; NaN if the record is dropped.
    integer, boolean : ndarray of shape (n_features,), bool
        Columns whose cells must be whole, and those of them whose cells must be 0 or 1.
    """

    grid: Grid
    fill: Floats
    integer: Flags
    boolean: Flags

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The rules of each column as arrays of shape (n_features,)."""
        grid = self.grid
        return {
            "low": np.array(grid.low),
            "high": np.array(grid.high),
            "centre": grid.centre,
            "factor": grid.one / grid.half_range,
            "known": np.where(np.isnan(self.fill), grid.centre, self.fill),
            "integer": self.integer,
            "boolean": self.boolean,
        }

    @cached_property
    def tiles(self) -> tuple[NDArray[Any], ...]:
        """The rules of each column, repeated for each row of a block, for one loop over cells."""
        rows = max(_COLUMN_ROWS, _BLOCK_VALUES // self.grid.n_features)
        return tuple(np.tile(rule, rows) for rule in self.columns.values())


class StepTables:
    """Memory for the tables of one reading, in blocks that grow to at most eight tables.

    A system maps a block of 16 MiB in large pages, in half the time of eight separate tables. A
    block is freed with the last of its tables.
    """

    def __init__(self) -> None:
        self._left: Records = np.empty(0, dtype=np.int32)
        self._taken = 0

    def take(self, rows: int, columns: int) -> Records:
        """Return an uninitialised table of shape (rows, columns), int32."""
        size = rows * columns
        if len(self._left) < size:
            self._left = np.empty(max(size, min(self._taken, _TABLES * size)), dtype=np.int32)
        table, self._left = self._left[:size], self._left[size:]
        self._taken += size
        return table.reshape(rows, columns)


def encode_columns(
    columns: Columns, rules: CellRules, tables: StepTables | None = None
) -> tuple[Records, CellFlags]:
    """Return the grid record of every row and the defects of its cells; exclude no row.

    Parameters
    ----------
    tables : StepTables, optional
        Memory for the records.

    Returns
    -------
    steps : ndarray of shape (rows, n_features), int32, in ``[-one, one]``
    flags : ndarray of shape (rows, n_features), uint8

    Notes
    -----
    A cell ``x`` is converted to float64, to nearest, ties to even. For a column with
    ``low, high, fill`` the result is exact to the last bit, in IEEE double precision::

        centre, half = (high + low) / 2, (high - low) / 2
        factor = one / half
        MISSING  if x is NaN or infinite
        WRONG    else if integer and floor(x) != x, or boolean and x is neither 0 nor 1
        OUTSIDE  else if x < low or x > high
        value  = fill, or centre if fill is NaN, if MISSING or WRONG
               = min(max(x, low), high)          otherwise
        step   = min(max(rint((value - centre) * factor), -one), one)

    Difference and product are rounded one after the other, never fused; rint takes ties to even.
    """
    matrix = isinstance(columns, np.ndarray)
    by_column = list(columns.T) if isinstance(columns, np.ndarray) else columns
    d, one = rules.grid.n_features, rules.grid.one
    n = len(columns) if matrix else len(columns[0])
    steps = (tables or StepTables()).take(n, d)
    flags = np.zeros((n, d), dtype=np.uint8)
    if has_columns(by_column):
        encode_into(steps, flags, by_column, one=one, **rules.columns)
        return steps, flags
    rows = max(1 if matrix else _COLUMN_ROWS, _BLOCK_VALUES // d)
    low, high, centre, factor, known, integer, boolean = rules.tiles
    typed = bool(rules.integer.any())
    for start in range(0, n, rows):
        block = slice(start, start + rows)
        if matrix:
            cells = np.ascontiguousarray(columns[block], dtype=np.float64).reshape(-1)
        else:
            slices = [column[block] for column in columns]
            cells = np.stack(slices, axis=1, dtype=np.float64).reshape(-1)
        size = len(cells)
        value = np.maximum(cells, low[:size])
        np.minimum(value, high[:size], out=value)
        moved = value != cells  # also True where a cell is NaN
        if typed or moved.any():
            defects = np.where(np.isfinite(cells), moved * OUTSIDE, MISSING)
            if typed:
                wrong = integer[:size] & (np.floor(cells) != cells)
                wrong |= boolean[:size] & (cells != 0) & (cells != 1)
                defects[wrong & (defects != MISSING)] = WRONG
            np.copyto(value, known[:size], where=(defects & ABSENT).astype(np.bool_))
            flags[block] = defects.reshape(-1, d)
        value -= centre[:size]
        value *= factor[:size]
        step = steps[block].reshape(-1)
        step[:] = np.rint(value, out=value)
        # If a box is only a few float64 numbers wide, rounding may put its bounds outside the grid.
        np.clip(step, -one, one, out=step)
    return steps, flags
