"""``Discretise``: columns of numbers as categories, cut at private quantiles.

A table wants few cells with many records in each. Where the cells of equal mass end is read from
trees of noisy counts; a value that many records share gets a bin of its own.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from cloister.arrays import Floats, GridState, Records, Results
from cloister.declared import declared
from cloister.display import Display, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.task import PublicColumn, PublicFacts
from cloister.tasks.columns import columns_of
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Keep, made
from cloister.tasks.preparation.quantiles import Quantiles, Refine, TreeLevels
from cloister.tasks.preparation.scaled import Measuring

PROBABILITIES = (*(i / 16 for i in range(1, 16)), 0.96, 0.98, 0.99)
"""Of the inner edges: without the last three, a column that is mostly 0 would have no tail."""
BINS = tuple(f"bin {i}" for i in range(1, len(PROBABILITIES) + 2))
"""The categories that a column of numbers becomes."""


@declared
class Discretise(Measuring):
    """Columns of numbers, each cut into bins at private quantiles.

    Parameters
    ----------
    quantiles : Quantiles
        At the inner edges' probabilities.
    names, categories : tuple, one entry for each column
        Those of its :class:`~cloister.task.PublicColumn`.

    Notes
    -----
    Every column has the same number of bins, whatever was released: of equal edges all but one bin
    are empty.
    """

    name: ClassVar[str] = "discretise"
    title: ClassVar[str] = "Bins of equal mass"
    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        keep: Keep = ()
        levels: TreeLevels = None
        refine: Refine = True

    quantiles: Quantiles
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        parts = (self.names, self.low, self.high, self.categories)
        if {len(part) for part in parts} != {self.n_features}:
            raise PlanError(
                f"names, low, high and categories must be those of {self.n_features} columns; "
                "design the task again."
            )
        if self.quantiles.probabilities != PROBABILITIES:
            raise PlanError("probabilities must be those of the bins; design the task again.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Cut every column of numbers that is not kept."""
        chosen = made(Quantiles.Options, facts, options, probabilities=PROBABILITIES)
        return made(cls, facts, options, quantiles=Quantiles.design(facts, chosen))

    @property
    def measuring(self) -> Quantiles:
        return self.quantiles

    def describe(self) -> str:
        return (
            f"{self.quantiles.describe()} Each silo then puts the values of {len(self.used)} "
            f"columns into {len(BINS)} bins that end at quantiles."
        )

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns after the change: bins in place of numbers."""
        columns = columns_of(self.names, self.low, self.high, self.categories)
        return tuple(
            PublicColumn(column.name, 0.0, len(BINS) - 1.0, BINS) if j in self.used else column
            for j, column in enumerate(columns)
        )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the quantiles with their intervals, and the edges of the bins.

        Returns
        -------
        dict
            What :meth:`.Quantiles.results` returns, and ``edges`` of shape (n_used, n_bins + 1),
            data units, rising; the outer ones are the public bounds. A value on an edge is in the
            upper bin, and a bin between equal edges has none.
        """
        found = self.quantiles.results(state, grid)
        inner = np.sort(list(map(_edges, found["quantiles"], found["walls"])), axis=1)
        box = self.used_box
        ends = np.stack([box.low, box.high], axis=1)
        return {**found, "edges": np.concatenate([ends[:, :1], inner, ends[:, 1:]], axis=1)}

    def transform(self, results: Results, records: Records) -> Records:
        """Return records whose used columns are bins."""
        changed, one, last = records.copy(), self.used_box.one, len(BINS) - 1
        walls = self.used_box.encode(results["edges"].T).T
        for j, own in zip(self.used, walls, strict=True):
            bins = np.searchsorted(own[1:-1], records[:, j], side="right")
            changed[:, j] = (2 * bins * one + last // 2) // last - one
        return changed

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of the bins, and the distributions."""
        rows = tuple(
            (columns[j], *edges.tolist())
            for j, edges in zip(self.used, results["edges"], strict=True)
        )
        headings = ("column", *(f"from {name}" for name in BINS), "to")
        note = "Where bins begin; the first and the last number are the public bounds."
        _, *curves = self.quantiles.displays(results, columns)
        return (Table("Bins", headings, rows, note), *curves)


def _edges(quantiles: Floats, walls: Floats) -> Floats:
    """Return the inner edges of the bins of a column.

    Quantiles within one cell of the tree are not told apart: the first of them moves to the cell's
    lower wall and the others to the upper one, so that a value which many records share is alone.
    """
    cells = np.clip(np.searchsorted(walls, quantiles, side="left") - 1, 0, len(walls) - 2)
    before = np.concatenate([[False], cells[1:] == cells[:-1]])
    after = np.concatenate([cells[1:] == cells[:-1], [False]])
    lower, upper = walls[cells], walls[cells + 1]
    edges: Floats = np.where(before, upper, np.where(after, lower, quantiles))
    return edges
