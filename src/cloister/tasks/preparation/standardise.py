"""``Standardise``: private means and deviations, and records in units of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Results
from cloister.core.declared import Range, declared
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicFacts
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.scaled import Scaled
from cloister.tasks.preparation.statistics import Statistics

Reach = Annotated[
    float, Range(above=0, most=100), "deviations from the mean to the bound of the new box"
]
_FLOOR = 2.0**-8  # of a deviation, as a part of half the box: what is flatter is noise


@declared
class Standardise(Scaled):
    """Columns of numbers, each less its mean, over its deviation, within a public reach.

    Parameters
    ----------
    statistics : Statistics
        Of the columns that are standardised. The others stay as they are.
    reach : float, > 0
        Deviations from the mean at which a record is cut.
    """

    name: ClassVar[str] = "standardise"
    title: ClassVar[str] = "Means and deviations"
    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        keep: Keep = ()
        reach: Reach = 4.0

    statistics: Statistics
    reach: Reach = 4.0

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Standardise every column of numbers that is not kept."""
        statistics = Statistics.design(facts, Statistics.Options(keep=options.keep))
        return build_task(cls, facts, options, statistics=statistics, reach=float(options.reach))

    @property
    def measuring(self) -> Statistics:
        return self.statistics

    def describe(self) -> str:
        return (
            f"{self.statistics.describe()} Each silo then expresses {len(self.used)} columns of "
            "its records in deviations from the mean."
        )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the statistics, and the scales made of them.

        Returns
        -------
        dict
            What :meth:`.Statistics.results` returns, and ``scale`` of shape (n_used,), data units:
            the deviations, or a small part of the box where they are smaller.
        """
        found = self.statistics.results(state, grid)
        return {**found, "scale": np.maximum(found["deviation"], _FLOOR * self.used_box.half_range)}

    def scaled(self, results: Results, values: Floats) -> Floats:
        """Return deviations from the mean, over `reach`."""
        return (values - results["mean"]) / (results["scale"] * self.reach)
