"""``Standardise``: private means and deviations, and records scaled by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Results
from cloister.core.declared import Range, declared
from cloister.core.display import YEARS, Summary
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicFacts
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import in_days, number_of
from cloister.tasks.options import Keep, build_task
from cloister.tasks.preparation.scaled import Scaled
from cloister.tasks.preparation.statistics import Statistics

Reach = Annotated[
    float, Range(above=0, most=100), "deviations from the mean to the bound of the new box"
]
_FLOOR = 2.0**-8  # smallest deviation, as a share of half the box; for constant columns
_NAMED = 5  # columns of a warning


@declared
class Standardise(Scaled):
    """Columns of numbers less their means, divided by their deviations, within a public reach.

    Parameters
    ----------
    statistics : Statistics
        Statistics of the standardised columns; the other columns are unchanged.
    reach : float, > 0
        Largest distance to the mean in deviations; records are clipped to it.
    """

    name: ClassVar[str] = "standardise"
    title: ClassVar[str] = "Means and deviations"
    columnwise = Statistics.columnwise
    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        keep: Keep = ()
        reach: Reach = 4.0

    statistics: Statistics
    reach: Reach = 4.0

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Standardise every column of numbers except those in `keep`."""
        statistics = Statistics.design(facts, Statistics.Options(keep=options.keep))
        return build_task(cls, facts, options, statistics=statistics, reach=float(options.reach))

    @property
    def measuring(self) -> Statistics:
        return self.statistics

    @property
    def dates(self) -> tuple[int, ...]:
        """Columns of dates, which are years with a fraction."""
        return self.statistics.dates

    def describe(self) -> str:
        return (
            f"{self.statistics.describe()} Each silo then standardises "
            f"{counted(len(self.used), 'column')} of its records by them."
        )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the statistics and the scales of the columns.

        Returns
        -------
        dict
            The results of :meth:`.Statistics.results`, and ``scale`` of shape (n_used,), data
            units: the deviations, or a small share of the box if they are smaller.
        """
        statistics = self.statistics.results(state, grid)
        # A noisy variance may be 0, or nothing may be known: the job goes on with the box.
        mean, box = statistics["mean"], self.used_box
        return {
            **statistics,
            "mean": np.where(np.isnan(mean), box.centre, mean),
            "scale": np.fmax(statistics["deviation"], _FLOOR * box.half_range),
        }

    def doubts(self, results: Results, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield a warning of columns whose scale is mostly noise."""
        hidden = ~(results["deviation_low"] >= results["scale"] / 2)  # also if it is not known
        if hidden.any():
            names = np.array(columns)[list(self.used)][hidden].tolist()
            named, more = ", ".join(names[:_NAMED]), ", ..." * (len(names) > _NAMED)
            yield (
                f"the noise leaves the deviations of {named}{more} uncertain by a factor of two, "
                "so later steps may clip or shrink these columns; give narrower bounds from public "
                "knowledge or a larger epsilon, or omit this step: estimators here scale columns "
                "by their bounds."
            )

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the mean and the deviation of the first column."""
        first, many = self.used[0], len(self.used)
        is_date = first in self.statistics.dates
        return Summary(
            result=(
                f"{columns[first]} has the mean ",
                in_days(number_of(results, "mean"), is_date),
                " and the deviation ",
                in_days(number_of(results, "deviation"), is_date, YEARS),
                f"; {many} {'columns are' if many > 1 else 'column is'} standardised.",
            ),
            reliability=self.statistics.summary(results, columns, nominal_n, units).reliability,
        )

    def scaled(self, results: Results, values: Floats) -> Floats:
        """Return differences to the mean, in deviations, over `reach`."""
        # Over `reach`, because records of the grid are in [-1, 1].
        return (values - results["mean"]) / (results["scale"] * self.reach)
