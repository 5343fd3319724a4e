"""``Discretise``: columns of numbers as categories, cut at private quantiles.

A table wants few cells with many records in each. Where the cells of equal mass end is read from
trees of noisy counts; a value that many records share gets a bin of its own.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Records, Results
from cloister.core.declared import declared
from cloister.core.display import Display, Table
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicColumn, PublicFacts
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.quantiles import Quantiles, Refine, TreeLevels
from cloister.tasks.preparation.scaled import Changing

PROBABILITIES = (*(i / 16 for i in range(1, 16)), 0.96, 0.98, 0.99)
"""Of the inner edges: without the last three, a column that is mostly 0 would have no tail."""
BINS = tuple(f"bin {i}" for i in range(1, len(PROBABILITIES) + 2))
"""The categories that a column of numbers becomes."""


@declared
class Discretise(Changing):
    """Columns of numbers, each cut into bins at private quantiles.

    Parameters
    ----------
    quantiles : Quantiles
        At the inner edges' probabilities.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles.probabilities != PROBABILITIES:
            raise PlanError("probabilities must be those of the bins; design the task again.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Cut every column of numbers that is not kept."""
        chosen = build_task(Quantiles.Options, facts, options, probabilities=PROBABILITIES)
        return build_task(cls, facts, options, quantiles=Quantiles.design(facts, chosen))

    @property
    def measuring(self) -> Quantiles:
        return self.quantiles

    def describe(self) -> str:
        return (
            f"{self.quantiles.describe()} Each silo then puts the values of {len(self.used)} "
            f"columns into {len(BINS)} bins that end at quantiles."
        )

    def changed(self, name: str) -> PublicColumn:
        return PublicColumn(name, 0.0, len(BINS) - 1.0, BINS)

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
        return {**found, "edges": np.column_stack([box.low, inner, box.high])}

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
    alike = np.diff(cells) == 0
    before, after = np.append(False, alike), np.append(alike, False)
    return np.select([before, after], [walls[cells + 1], walls[cells]], quantiles)
