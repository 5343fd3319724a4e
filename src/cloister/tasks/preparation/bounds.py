"""``Bounds``: private bounds of columns, and records clipped to them.

A public box that is much wider than the records wastes budget, because the noise of every later
step is proportional to its width. Two private quantiles are narrower bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Self, cast

import numpy as np

from cloister.core.arrays import Floats, GridState, Results
from cloister.core.declared import Ascending, Probability, declared
from cloister.core.display import Cell, Display, Summary, Table
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicFacts
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import SAID, in_days, listing, precision, undated
from cloister.tasks.options import Keep, build_task, noise_multiplier_for
from cloister.tasks.preparation.quantiles import Quantiles, Refine, TreeLevels, with_intervals
from cloister.tasks.preparation.scaled import Scaled

_USUAL = (0.01, 0.99)
_BEYOND, _MOST = 2.0, 0.25  # distance of a bound to the end in deviations of noise; its maximum
_NARROWEST = 64  # smallest distance of a bound to the middle, grid steps; for constant columns


@declared
class Bounds(Scaled):
    """Columns of numbers, clipped to two private quantiles and stretched to the box.

    Parameters
    ----------
    quantiles : Quantiles
        At the two probabilities.
    """

    name: ClassVar[str] = "bounds"
    title: ClassVar[str] = "Private bounds"
    reach: ClassVar[float] = 1.0
    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        probabilities: Annotated[
            Annotated[tuple[Probability, Probability], Ascending] | None,
            "of the quantiles that become the box; if None, 1 % and 99 % as far as noise permits",
        ] = None
        keep: Keep = ()
        levels: TreeLevels = None
        refine: Refine = True

    quantiles: Quantiles

    def __post_init__(self) -> None:
        super().__post_init__()
        pair = cast(tuple[float, float], self.quantiles.probabilities)
        self.Options(probabilities=pair)  # its declaration validates the pair

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Bound every column of numbers except those in `keep`."""
        probabilities = options.probabilities or _USUAL
        chosen = build_task(Quantiles.Options, facts, options, probabilities=probabilities)
        quantiles = Quantiles.design(facts, chosen)
        noise = noise_multiplier_for(facts)
        if options.probabilities is None and noise is not None:
            # A rank that is closer to the end than its noise cannot be estimated.
            rank = quantiles.rank_noise(noise, facts.nominal_n)
            tail = max(_USUAL[0], min(_BEYOND * rank, _MOST))
            quantiles = replace(quantiles, probabilities=(tail, 1 - tail))
        return build_task(cls, facts, options, quantiles=quantiles)

    @property
    def measuring(self) -> Quantiles:
        return self.quantiles

    def describe(self) -> str:
        low, high = self.quantiles.probabilities
        return (
            f"{self.quantiles.describe()} Each silo then clips {counted(len(self.used), 'column')} "
            f"to the quantiles {low:g} and {high:g} and stretches them to the whole box."
        )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the quantiles with their intervals, and the bounds.

        Returns
        -------
        dict
            The results of :meth:`.Quantiles.results`, and ``lower`` and ``upper`` of shape
            (n_used,), data units: the quantiles, extended if they are nearly equal.
        """
        quantiles = self.quantiles.results(state, grid)
        low, high = quantiles["quantiles"].T
        box = self.used_box
        # Constant columns need a box, too: a transformation never stops a job.
        half = np.maximum((high - low) / 2, _NARROWEST / box.one * box.half_range)
        lower, upper = (low + high) / 2 - half, (low + high) / 2 + half
        # Far from zero, floats may be coarser than the grid, and equal bounds would divide by 0.
        return {
            **quantiles,
            "lower": lower,
            "upper": np.maximum(upper, np.nextafter(lower, np.inf)),
        }

    def scaled(self, results: Results, values: Floats) -> Floats:
        """Return values mapped linearly, with the bounds at -1 and 1."""
        low, high = results["lower"], results["upper"]
        return (values - (low + high) / 2) * (2 / (high - low))

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the two bounds of the first columns."""
        found = with_intervals(results)
        parts: list[tuple[Cell, ...]] = []
        for i, j in enumerate(self.used[:SAID]):
            low, high = (in_days(found[i, k], j in self.quantiles.dates) for k in (0, 1))
            parts.append((f"{columns[j]} ", low, " to ", high))
        counted = found[undated(self.used, self.quantiles.dates)]
        return Summary(result=("Bounds: ", *listing(parts), "."), reliability=precision([counted]))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of the bounds, and the other displays of quantiles."""
        table, *curves = super().displays(results, columns)
        return (replace(cast(Table, table), title="Private bounds"), *curves)
