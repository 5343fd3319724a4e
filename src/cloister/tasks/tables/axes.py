"""Axes of tables: categories of a column, or bins of a numeric column by public edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from cloister.core.arrays import Integers, Records
from cloister.core.dates import nearest_day
from cloister.core.declared import Ascending, Length
from cloister.core.errors import PlanError, choosing
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import codes, grid_of, position

Edges = Annotated[
    Mapping[str, Annotated[tuple[float, ...], Length(1), Ascending]],
    "public inner edges of the bins of a numeric column, such as age=40,65; data units",
]


@dataclass(frozen=True)
class Axis:
    """Cells of one column in a table.

    Parameters
    ----------
    column : int
        Index of the column among the columns of the task.
    labels : tuple of str
        A name for each cell.
    walls : tuple of int, ascending
        Bounds between neighbouring cells, in grid steps; a record on a bound is in the upper cell.
        Empty for a column of categories.
    """

    column: int
    labels: tuple[str, ...]
    walls: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def cells(self, records: Records, frac_bits: int) -> Integers:
        """Return the cell number of each record; int64 in ``[0, len(self) - 1]``."""
        values = records[:, self.column]
        if not self.walls:
            return codes(values, len(self), frac_bits)
        # side="right": a record on an edge is in the upper bin, as its label "... or more" states.
        return np.searchsorted(np.array(self.walls), values, side="right").astype(np.int64)


def axes_of(
    columns: Sequence[PublicColumn],
    names: Sequence[str],
    edges: Mapping[str, Sequence[float]],
    frac_bits: int,
) -> tuple[Axis, ...]:
    """Return an axis for each named column; raise PlanError for a numeric one without edges.

    Edges are rounded to the grid, as records are, so that a record on an edge is in the upper bin.
    """
    return tuple(_axis(columns, name, edges.get(name), frac_bits) for name in names)


def _axis(
    columns: Sequence[PublicColumn], name: str, edges: Sequence[float] | None, frac_bits: int
) -> Axis:
    index = position(columns, name, "columns")
    column = columns[index]
    if column.levels:
        if edges is not None:
            raise PlanError(f"edges are for numeric columns, and {name!r} has categories; drop it.")
        return Axis(index, column.categories)
    if edges is None:  # no default: edges computed from records would reveal them without noise
        raise PlanError(
            f"edges must be given for {name!r}, a numeric column, such as {name}=10,20; take them "
            f"from a guideline or a codebook, never from the records{choosing('edges')}."
        )
    grid = grid_of([column], frac_bits)
    texts = [str(nearest_day(edge)) if column.date else f"{edge:.10g}" for edge in edges]
    walls = tuple(grid.encode(np.array(edges)[:, None])[:, 0].tolist())
    in_bounds = column.low < edges[0] and edges[-1] < column.high
    # Compared on the grid: edges that round to one step would enclose a bin without any value.
    if not (in_bounds and all(a < b for a, b in pairwise(walls))):
        raise PlanError(
            f"edges of {name!r} must rise strictly inside ({column.low:g}, {column.high:g}), by at "
            f"least one grid step, got {', '.join(texts)}."
        )
    between = (f"{a} to {b}" for a, b in pairwise(texts))
    return Axis(index, (f"below {texts[0]}", *between, f"{texts[-1]} or more"), walls)
