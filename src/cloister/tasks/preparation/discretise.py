"""``Discretise``: columns of numbers as categories, cut at private quantiles.

A table should have few cells with many records in each. The edges of cells with equal mass are
estimated from trees of noisy counts. A value that many records share gets a separate bin.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Records, Results
from cloister.core.declared import declared
from cloister.core.display import Display, Estimate, Summary, Table, bare
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicColumn, PublicFacts
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import SAID, in_days, listing, precision, undated
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.quantiles import (
    Quantiles,
    Refine,
    TreeLevels,
    thinned,
    with_intervals,
)
from cloister.tasks.preparation.scaled import Changing

PROBABILITIES = (*(i / 16 for i in range(1, 16)), 0.96, 0.98, 0.99)
"""Probabilities of the inner edges; the last three keep the tail of a column that is mostly 0."""
BINS = tuple(f"bin {i}" for i in range(1, len(PROBABILITIES) + 2))
"""The categories of a discretised column."""


@declared
class Discretise(Changing):
    """Columns of numbers, each divided into bins at private quantiles.

    Parameters
    ----------
    quantiles : Quantiles
        At the probabilities of the inner edges.

    Notes
    -----
    Every column has the same number of bins for any release; bins between equal edges are empty.
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
            raise PlanError(
                f"probabilities must be those of the {len(BINS)} bins, got "
                f"{len(self.quantiles.probabilities)} others; design the task again."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Discretise every column of numbers except those in `keep`."""
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
            The results of :meth:`.Quantiles.results`, and ``edges`` of shape (n_used, n_bins + 1),
            data units, ascending; the outer edges are the public bounds. A value on an edge is in
            the upper bin, and a bin between equal edges is empty.
        """
        quantiles = self.quantiles.estimates(state, grid)
        # Sorted, as the search in `transform` requires.
        inner = np.sort(list(map(_edges, quantiles["quantiles"], quantiles["walls"])), axis=1)
        box = self.used_box
        return {**thinned(quantiles), "edges": np.column_stack([box.low, inner, box.high])}

    def transform(self, results: Results, records: Records) -> Records:
        """Return records whose used columns are bins."""
        # Element by element, so that a bin depends on its own record alone.
        changed, one, last = records.copy(), self.used_box.one, len(BINS) - 1
        # On the grid, so that records are compared in exact integers.
        edges = self.used_box.encode(results["edges"].T).T
        for j, column_edges in zip(self.used, edges, strict=True):
            bins = np.searchsorted(column_edges[1:-1], records[:, j], side="right")
            changed[:, j] = (2 * bins * one + last // 2) // last - one  # rounded to nearest
        return changed

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the medians of the first columns."""
        found, middle = with_intervals(results), PROBABILITIES.index(0.5)
        parts = listing(
            (f"{columns[j]} ", in_days(found[i, middle], j in self.quantiles.dates))
            for i, j in enumerate(self.used[:SAID])
        )
        return Summary(
            result=(f"{len(BINS)} bins of each column, cut at quantiles. Medians: ", *parts, "."),
            reliability=precision([found[undated(self.used, self.quantiles.dates)]]),
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of the bins, and the distributions."""
        rows: tuple[tuple[str | Estimate, ...], ...] = tuple(
            (columns[j], *in_days(bare(edges), j in self.quantiles.dates).cells())
            for j, edges in zip(self.used, results["edges"], strict=True)
        )
        headings = ("column", *(f"from {name}" for name in BINS), "to")
        note = "Lower edges of the bins; the first and the last number are the public bounds."
        _, *curves = self.quantiles.displays(results, columns)
        return (Table("Bins", headings, rows, note), *curves)


def _edges(quantiles: Floats, walls: Floats) -> Floats:
    """Return the inner edges of the bins of a column.

    Quantiles within one cell of the tree cannot be distinguished. The first of them moves to the
    lower edge of the cell and the others to the upper one. So a value that many records share has
    a separate bin.
    """
    cells = np.clip(np.searchsorted(walls, quantiles, side="left") - 1, 0, len(walls) - 2)
    alike = np.diff(cells) == 0
    before, after = np.append(False, alike), np.append(alike, False)
    return np.select([before, after], [walls[cells + 1], walls[cells]], quantiles)
