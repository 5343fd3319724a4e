"""The sides of a table: categories of a column, or bins of a column of numbers by public edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from cloister.core.arrays import Integers, Records
from cloister.core.declared import Ascending, Length
from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import codes, grid_of, position

Edges = Annotated[
    Mapping[str, Annotated[tuple[float, ...], Length(1), Ascending]],
    "public inner edges of the bins of a column of numbers, such as age=40,65; data units",
]


@dataclass(frozen=True)
class Axis:
    """What a column is cut into.

    Parameters
    ----------
    column : int
        Its place among the columns of the task.
    labels : tuple of str
        A name for each cell.
    walls : tuple of int, ascending
        Between neighbouring cells, in grid steps: a record on one is in the upper cell. None for
        a column of categories.
    """

    column: int
    labels: tuple[str, ...]
    walls: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def cells(self, records: Records, frac_bits: int) -> Integers:
        """Return the number of the cell that each record is in; int64 in ``[0, len(self) - 1]``."""
        values = records[:, self.column]
        if not self.walls:
            return codes(values, len(self), frac_bits)
        return np.searchsorted(np.array(self.walls), values, side="right").astype(np.int64)


def axes_of(
    columns: Sequence[PublicColumn],
    names: Sequence[str],
    edges: Mapping[str, Sequence[float]],
    frac_bits: int,
) -> tuple[Axis, ...]:
    """Return an axis for each named column; refuse one of numbers without public edges.

    Edges are rounded to the grid, as records are, so that a record on an edge is in the upper bin.
    """
    return tuple(_axis(columns, name, edges.get(name), frac_bits) for name in names)


def _axis(
    columns: Sequence[PublicColumn], name: str, edges: Sequence[float] | None, frac_bits: int
) -> Axis:
    at = position(columns, name, "columns")
    column = columns[at]
    if column.levels:
        if edges is not None:
            raise PlanError(f"edges are for columns of numbers, and {name!r} has categories.")
        return Axis(at, column.categories)
    if edges is None:
        raise PlanError(
            f"edges must be given for {name!r}, a column of numbers, such as {name}=10,20; "
            "from a guideline or a codebook, never from the records."
        )
    grid, texts = grid_of([column], frac_bits), [f"{edge:.10g}" for edge in edges]
    walls = tuple(grid.encode(np.array(edges)[:, None])[:, 0].tolist())
    inside = column.low < edges[0] and edges[-1] < column.high
    if not (inside and all(a < b for a, b in pairwise(walls))):
        raise PlanError(
            f"edges of {name!r} must rise strictly inside ({column.low:g}, {column.high:g}), by at "
            f"least a step of the grid, got {', '.join(texts)}."
        )
    between = (f"{a} to {b}" for a, b in pairwise(texts))
    return Axis(at, (f"below {texts[0]}", *between, f"{texts[-1]} or more"), walls)
