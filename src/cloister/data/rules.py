"""A schema as rules for cells, which encode each row of a source independently."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Floats
from cloister.data.cells import CellType
from cloister.data.dialect import Dialect
from cloister.data.encoding import (
    ABSENT,
    OUTSIDE,
    WRONG,
    CellFlags,
    CellRules,
    Columns,
    StepTables,
    encode_columns,
)
from cloister.protocol.task import NO_VALUE

if TYPE_CHECKING:
    from cloister.data.schema import Schema
    from cloister.data.sources import Raw

Chunk = NDArray[np.int32]  # (up to chunk_rows, n_features), grid steps


class Marked(NamedTuple):
    """Cells that have flags, in the order of their rows."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    flags: CellFlags

    @classmethod
    def of(cls, flags: CellFlags) -> Self:
        """Find the cells that have flags."""
        at = np.flatnonzero(flags.view(np.bool_))
        return cls(*np.divmod(at, flags.shape[1]), flags.reshape(-1)[at])


@dataclass(frozen=True)
class Judged:
    """All rows of a chunk under the rules of a schema, including unusable ones."""

    cells: Columns
    steps: Chunk
    flags: CellFlags
    marked: Marked
    usable: Flags  # (rows,)

    @property
    def values(self) -> Floats:
        """The cells as numbers, not yet filled or clipped."""
        return matrix(self.cells)


@dataclass(frozen=True)
class Rules:
    """A schema as arrays, one entry per column.

    Parameters
    ----------
    cells : CellRules
    fatal : ndarray of shape (n_features,), uint8
        The flags of a cell that drop its record.
    kept : ndarray of shape (n_features,), uint8
        The flags of a cell that has the value `NO_VALUE` of the task protocol.
    types : tuple of CellType
        Type of the cells of each column.
    used : ndarray of shape (n_features,), bool
        Columns that a job uses; a bad cell in another column drops no record.
    max_rows : int, optional
        Number of usable rows of one unit that are kept.
    """

    cells: CellRules
    fatal: CellFlags
    kept: CellFlags
    types: tuple[CellType, ...]
    used: Flags
    max_rows: int | None = None

    @classmethod
    def of(cls, schema: Schema, frac_bits: int = 16, used: tuple[str, ...] | None = None) -> Self:
        """Return the rules of a schema, for a job that uses some of its columns or all."""
        columns = schema.columns
        names = frozenset(schema.names if used is None else used)
        cells = CellRules(
            grid=schema.grid(frac_bits),
            fill=np.array([column.fill_value for column in columns]),
            integer=np.array([column.type not in ("number", "date") for column in columns]),
            boolean=np.array([column.type == "boolean" for column in columns]),
        )
        keeps = np.array([column.keeps_missing for column in columns])
        drop_outside = np.array([column.out_of_range == "drop" for column in columns])
        dialect = dialect_of(schema)
        return cls(
            cells=cells,
            fatal=(np.isnan(cells.fill) & ~keeps) * ABSENT | drop_outside * OUTSIDE,
            kept=keeps * ABSENT,
            types=tuple(CellType.of(column, dialect) for column in columns),
            used=np.array([column.name in names for column in columns]),
            max_rows=schema.max_rows,
        )

    @cached_property
    def dropping(self) -> CellFlags:
        """The flags of a cell in each column that exclude its record from the job."""
        return np.where(self.used, self.fatal, 0).astype(np.uint8)

    def read(self, raw: Raw) -> tuple[Columns, Flags | None]:
        """Return cells as numbers, NaN for a missing one, and flags for a wrong type."""
        is_matrix = isinstance(raw.cells, np.ndarray)
        # The encoder takes a matrix of numbers in one pass, without a copy per column.
        plain = [kind.kind in ("number", "integer") and not kind.absent for kind in self.types]
        if is_matrix and all(plain):
            return raw.cells, None
        columns = list(raw.cells.T) if isinstance(raw.cells, np.ndarray) else raw.cells
        reads = [kind.read(cells) for kind, cells in zip(self.types, columns, strict=True)]
        values = [read.values for read in reads]
        if all(read.wrong is None for read in reads):
            return values, None
        no_wrong = np.zeros(len(values[0]), dtype=bool)
        wrong = [no_wrong if read.wrong is None else read.wrong for read in reads]
        return values, np.stack(wrong, axis=1)

    def judge(self, raw: Raw, tables: StepTables | None = None) -> Judged:
        """Apply the rules for missing cells, types and range to each record independently."""
        cells, wrong = self.read(raw)
        steps, flags = encode_columns(cells, self.cells, tables)
        if wrong is not None:
            flags |= wrong * WRONG
        usable: Flags = np.ones(len(steps), dtype=bool)
        # Few cells have flags, so the rules below look only at these.
        marked = Marked.of(flags)
        absent = (marked.flags & self.kept[marked.columns]) != 0
        steps[marked.rows[absent], marked.columns[absent]] = NO_VALUE
        usable[marked.rows[(marked.flags & self.dropping[marked.columns]) != 0]] = False
        if raw.no_record is not None:
            usable &= ~raw.no_record
        return Judged(cells, steps, flags, marked, usable)


def matrix(cells: Columns) -> Floats:
    """Return columns of numbers as one table."""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64)
    return np.stack(cells, axis=1, dtype=np.float64)


def dialect_of(schema: Schema) -> Dialect:
    """Return the dialect of the text tables that a schema describes."""
    return Dialect(
        schema.decimal, schema.thousands, schema.encoding, schema.delimiter, schema.multiline
    )
