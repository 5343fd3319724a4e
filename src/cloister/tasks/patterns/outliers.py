"""Outlier detection: statistics are released, flags are not.

The silos release the location and the spread of the records, by the rounds of
:class:`~cloister.tasks.preparation.statistics.Statistics` or of
:class:`~cloister.tasks.preparation.quantiles.Quantiles`.
A silo computes the scores of its records from these public numbers alone. Flags are computed
locally and are never released. A last round may release their number, in all or by group.

References
----------
.. [WH31] Wilson and Hilferty, "The distribution of chi-square", PNAS 17, 1931: the cube root of
   chi-square is nearly normal.
.. [P16] Pevný, "Loda: lightweight on-line detector of anomalies", Machine Learning 102, 2016: many
   weak histograms of random projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, PartBelowOne, Range, Whole, declared
from cloister.core.display import YEARS, Bars, Display, Estimate, Summary, Table, around
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.calibration import gdp_part
from cloister.protocol.rows import summed
from cloister.protocol.task import COUNT_BITS, INTERVAL_95, Block, NoisyBlock, PublicFacts, Rows
from cloister.tasks.columns import categories_of, codes, in_batches, position
from cloister.tasks.examples import CATEGORY, NUMBER, OTHER_NUMBER, Example
from cloister.tasks.interval_tables import INTERVALS, MARGINS, in_days, listing
from cloister.tasks.options import PublicSeed, build_task, noise_multiplier_for
from cloister.tasks.preparation.quantiles import Quantiles, quantiles_of
from cloister.tasks.preparation.scaled import Measuring
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.scores import as_results, middle_of
from cloister.tasks.state import part_of, prefixed

Method = Literal["zscore", "mahalanobis", "robust", "density"]
Threshold = Annotated[float, Range(above=0, most=10)]

_QUARTILES = (0.25, 0.5, 0.75)
_IQR = 1.3489795003921636  # quartile range of a normal distribution, in deviations
_VIEWS, _REACH = 8, 4.0  # largest number of projections; half the width of each, in deviations
_CELLS = (6, 32)  # minimum and maximum along each side of a projection
_PER_CELL = 3.0  # records in an average cell, in deviations of its noise
_RARITIES = 64  # bins for the scores of the density method
_DENSITY = (0.3, 0.4, 0.3)  # shares of its budget: quartiles, cells, scores
_USUAL = "usual."  # prefix of the state and the results of the measuring task


def _cells_along(facts: PublicFacts, used: int, n_views: int) -> int:
    """Return the number of cells along each side of a projection, from the noise of counts."""
    if (multiplier := noise_multiplier_for(facts, pure=True)) is None:
        return _CELLS[0]
    noise = multiplier * sqrt(n_views / _DENSITY[1])
    per_picture = facts.nominal_n / (_PER_CELL * noise)
    along = per_picture if used == 1 else sqrt(per_picture)
    return int(min(max(along, _CELLS[0]), _CELLS[1]))


@declared
class Outliers(Measuring):
    """Statistics for outlier scores of records.

    Parameters
    ----------
    usual : Statistics or Quantiles
        The task of the first rounds, which measures location and spread of columns of numbers.
    method : {"zscore", "mahalanobis", "robust", "density"}
        "zscore": distance to the mean in deviations of each column. "mahalanobis": the same with
        the covariance of all. "robust": distance to the median in quartile ranges. "density":
        sparsity of the record's cells in public projections.
    threshold : float, > 0
        A record with a larger score is an outlier, in deviations of a normal distribution; see
        `scores`.
    group : int or None
        Column with the categories `group_names` by which outliers are counted.
    min_group : float, >= 0
        A smaller noisy count of a group is not displayed.
    n_views, n_cells : int
        Numbers of projections and of cells along a side of each, for the density method.
    """

    name: ClassVar[str] = "outliers"
    title: ClassVar[str] = "What is unusual"

    example: ClassVar[Example] = Example(
        (NUMBER, OTHER_NUMBER, CATEGORY), {"count_share": 0.2, "group": "work"}
    )

    @declared
    class Options:
        method: Annotated[Method, "how records are compared with the others"] = "robust"
        threshold: Annotated[
            Threshold,
            "flag records with a score above this, in standard deviations of a normal law",
        ] = 2.0
        count_share: Annotated[
            PartBelowOne, "share of the budget to count flagged records; 0: no count"
        ] = 0.0
        group: Annotated[str | None, "column of categories to count by"] = None
        min_group: Annotated[AtLeastZero, "hide counts below this"] = 0.0
        public_seed: PublicSeed = 0

    usual: Statistics | Quantiles
    method: Method
    threshold: Threshold = 2.0
    count_share: PartBelowOne = 0.0
    group: int | None = None
    group_names: tuple[str, ...] = ()
    min_group: AtLeastZero = 0.0
    n_views: Whole = 1
    n_cells: Whole = 16
    public_seed: int = 0

    def __post_init__(self) -> None:
        # A plan may come from another party, so the fields are checked against the method.
        if not self._fits:
            raise PlanError(
                f"usual must be the task that method {self.method!r} requires for "
                f"{len(self.low)} columns, got {self.usual.name!r} with other fields; design the "
                "task again."
            )
        if self.group is not None and not self.count_share:
            raise PlanError(
                "count_share must be above 0 for a count by group, got 0; give it a share."
            )
        there = self.group is None or 0 <= self.group < self.n_features
        if not there or (self.group is None) != (not self.group_names):
            raise PlanError(
                f"group must be in [0, {self.n_features}) and have group_names, got {self.group} "
                f"with {len(self.group_names)}; design the task again."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the columns of numbers and, for "density", cells with counts above their noise."""
        used = facts.levels.count(0)
        n_views = 1 if used <= 2 else min(_VIEWS, used)  # one projection shows two columns fully
        group, density = options.group, options.method == "density"
        return build_task(
            cls,
            facts,
            options,
            usual=cls._usual(facts, options),
            group=None if group is None else position(facts.columns, group, "group"),
            group_names=() if group is None else categories_of(facts.columns, group),
            n_views=n_views,
            n_cells=_cells_along(facts, used, n_views) if density else _CELLS[0],
        )

    @classmethod
    def _usual(cls, facts: PublicFacts, options: Options) -> Statistics | Quantiles:
        """Return the measuring task, designed for its share of the budget."""
        part = (1 - options.count_share) * (_DENSITY[0] if options.method == "density" else 1.0)
        if facts.budget is not None and part < 1:
            facts = replace(facts, budget=gdp_part(facts.budget, part))
        if options.method in ("zscore", "mahalanobis"):
            pairs = options.method == "mahalanobis"
            return Statistics.design(facts, Statistics.Options(covariance=pairs))
        return Quantiles.design(facts, Quantiles.Options(probabilities=_QUARTILES))

    @property
    def _fits(self) -> bool:
        """True if the first rounds measure the statistics of the method."""
        usual = self.usual
        if usual.n_features != len(self.low) or len(self.low) != len(self.high):
            return False
        if self.method in ("zscore", "mahalanobis"):
            return isinstance(usual, Statistics) and usual.covariance == (
                self.method == "mahalanobis"
            )
        return isinstance(usual, Quantiles) and usual.probabilities == _QUARTILES

    @property
    def measuring(self) -> Statistics | Quantiles:
        """The task that measures location and spread."""
        return self.usual

    @property
    def rounds(self) -> int:
        """Number of rounds: those of `usual`, two for "density", and one for an optional count."""
        return self.usual.rounds + len(self._own)

    @cached_property
    def _own(self) -> tuple[Block, ...]:
        """The block of each round after those of `usual`."""
        v, rest = self.n_views, 1 - self.count_share
        blocks = []
        if self.method == "density":
            # A record is in one cell of each projection, and then in one bin of scores.
            blocks = [
                Block.counting("cells", (v, self._cells), rest * _DENSITY[1], v),
                Block.counting("rarities", (_RARITIES,), rest * _DENSITY[2]),
            ]
        if self.count_share:
            shape = (max(1, len(self.group_names)),)
            blocks.append(Block.counting("flagged", shape, self.count_share))
        return tuple(blocks)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.low, self.high, self.frac_bits)

    def describe(self) -> str:
        d = len(self.used)
        how = {
            "zscore": f"means and deviations of {counted(d, 'column')}",
            "mahalanobis": f"means and covariances of {counted(d, 'column')}",
            "robust": f"medians and quartiles of {counted(d, 'column')}",
            "density": f"medians and quartiles of {counted(d, 'column')}, the count of records in "
            f"each cell of {self.n_views} public projections, and a histogram of their scores",
        }[self.method]
        count = ""
        if self.count_share:
            count = " Also released is the number of flagged records" + (
                f" of each of {counted(len(self.group_names), 'group')}" * (self.group is not None)
            )
            count += "."
        return f"Released with noise: {how}. Records are flagged locally only.{count}"

    def start(self) -> State:
        return {
            **prefixed(_USUAL, self.usual.start()),
            **{block.name: np.zeros(block.shape) for block in self._own},
            "noise": np.zeros(len(self._own) or 1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        if t >= self.usual.rounds:
            return (self._own[t - self.usual.rounds],)
        part = (1 - self.count_share) * (_DENSITY[0] if self.method == "density" else 1.0)
        blocks = self.usual.blocks(t)  # weights that sum to 1, so all weights do, too
        return tuple(replace(block, weight=block.weight * part) for block in blocks)

    @property
    def _cells(self) -> int:
        """Number of cells of a projection, which is a line for a single column."""
        return self.n_cells if len(self.used) == 1 else self.n_cells**2

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the rows of `usual`, a cell of each projection, a bin of scores, or a flag."""
        if t < self.usual.rounds:
            return self.usual.rows(t, part_of(state, _USUAL), records)
        results, name = self.results(state, self._grid), self._own[t - self.usual.rounds].name
        one = 1 << COUNT_BITS
        if name == "cells":
            # Products of matrices may round by the table's length; see `in_batches`.
            cells = in_batches(lambda part: self._cells_of(results, part), records)
            numbers = [i * self._cells + column for i, column in enumerate(cells.T)]
            return (Rows.at(numbers, [one] * len(numbers)),)
        rarity = self.scores(results, records)
        if name == "rarities":
            low, width = self._rarity_bins(results)
            # Clipped: a record with any score is in exactly one bin.
            bins = np.clip((rarity - low) / width, 0, _RARITIES - 1).astype(np.int64)
            return (Rows.at([bins], [one]),)
        flags = (rarity > results["cutoff"][0]).astype(np.int64)[:, None] << COUNT_BITS
        if self.group is None:
            return (Rows.dense(flags),)
        groups = codes(records[:, self.group], len(self.group_names), self.frac_bits)
        return (Rows.at([groups], flags),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sum of the rows, in fine units."""
        if t < self.usual.rounds:
            return self.usual.contribute(t, part_of(state, _USUAL), records)
        # Rows of this class: a twin in an audit has none, so that only its kernel is used.
        (rows,), (block,) = Outliers.rows(self, t, state, records), self.blocks(t)
        return summed(rows, block)

    @cached_property
    def _axes(self) -> Floats:
        """Two orthogonal directions for each projection; shape (n_views, 2, n_used)."""
        d = len(self.used)
        if d <= 2:
            return np.eye(2, d)[None]
        # Two random directions of each projection: many weak histograms, as in [P16]_.
        rng = public_generator("outliers", "pictures", self.public_seed, d)
        drawn = [np.linalg.qr(rng.normal(size=(d, 2))) for _ in range(self.n_views)]
        # Libraries differ in the signs of a QR factorisation, and silos need the same cells.
        return np.stack([(q * np.sign(np.diag(r))).T for q, r in drawn])

    def _standardised(self, results: Results, records: Records) -> Floats:
        """Return the difference of each column to its location, in units of its spread."""
        values = np.clip(records[:, list(self.used)] / (1 << self.frac_bits), -1.0, 1.0)
        away = values - (results["location"] - self.used_box.centre) / self.used_box.half_range
        return away / (results["spread"] / self.used_box.half_range)

    def _cells_of(self, results: Results, records: Records) -> Integers:
        """Return each record's cell in each projection; shape (n_samples, n_views)."""
        m = self.n_cells
        values = self._standardised(results, records)
        cells = []
        for axes in self._axes:
            positions = (values @ axes.T / _REACH + 1) / 2 * m
            # Values beyond the projection are in its outermost cells.
            steps = np.clip(positions.astype(np.int64), 0, m - 1)
            cells.append(steps[:, 0] if len(self.used) == 1 else steps[:, 0] * m + steps[:, 1])
        return np.stack(cells, axis=1)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the released values in records; counts of groups below the limit are dropped."""
        kept = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if t < self.usual.rounds:
            after = self.usual.update(t, part_of(state, _USUAL), released)
            return {**kept, **prefixed(_USUAL, after)}
        ((name, block),) = released.items()
        kept[name], kept["noise"][t - self.usual.rounds] = block.in_records()
        # Here and not in `results`: a hidden count is then in no state, history or report.
        if name == "flagged" and self.group is not None:
            kept[name] = np.where(kept[name] >= self.min_group, kept[name], 0.0)
        return kept

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the margin of error of the number of outliers, if it is released."""
        if not self.count_share:
            return {}
        return {
            "flagged_half_width": np.array(
                [INTERVAL_95["gaussian"] * noise_std / (1 << COUNT_BITS)]
            )
        }

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the statistics for scores of records, in data units.

        Returns
        -------
        dict
            ``location`` and ``spread`` of shape (n_used,): mean and deviation, or median and
            quartile range over 1.349. ``..._low`` and ``..._high``, the ends of their 95 % noise
            intervals. ``usual.NAME``, the results of `usual`. For "mahalanobis"
            ``covariance``. For "density" ``cells`` of shape (n_views, n_cells_of_a_view), ``floor``
            (smaller counts are noise) and ``rarities``. ``cutoff`` of shape (1,): a record with a
            larger score is an outlier. With `count_share`, ``flagged`` and ``flagged_half_width``.
            With groups ``shown``, 0 if the noisy count is below the limit; ``flagged`` is then 0,
            too.
        """
        tables = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        usual = self.usual.results(part_of(state, _USUAL), self._grid)
        values = {
            "cutoff": np.array([self.threshold]),
            **self._places(usual),
            **prefixed(_USUAL, usual),
        }
        if self.method == "density":
            values |= self._density(tables)
        if self.count_share:
            half_width = INTERVAL_95["gaussian"] * tables["noise"][-1]
            values["flagged"] = tables["flagged"]
            values["flagged_half_width"] = np.array([half_width])
            if self.group is not None:
                limit = max(self.min_group, 2.0**-self.frac_bits)
                values["shown"] = (tables["flagged"] >= limit).astype(np.float64)
        return values

    def _places(self, usual: Results) -> dict[str, Floats]:
        """Return location, spread and covariance of the records, in data units."""
        if isinstance(self.usual, Quantiles):
            first, location, third = (
                Estimate(*(usual[name][:, i] for name in ("quantiles", "low", "high")))
                for i in range(len(_QUARTILES))
            )
            # The interval of a range reaches from the nearest to the farthest ends of both. Errors
            # must not add in squares: with few records an estimate may be far inside its interval.
            widths = third.values - first.values, third.low - first.high, third.high - first.low
            spread = Estimate(*(width / _IQR for width in widths))
        else:
            # Scores need a place: without a mean it is the middle of the box.
            location, spread = (
                replace(found, values=middle_of(found))
                for found in (Estimate.of(usual, name) for name in ("mean", "deviation"))
            )
        # A spread below the uncertainty of the location is indistinguishable from 0. The interval
        # is of the spread itself, which may be as small.
        step = self.used_box.half_range * 2.0**-self.frac_bits
        least = np.maximum(location.high - location.low, step)
        lower = np.maximum(spread.low, step)
        ends = np.maximum(spread.values, least), lower, np.maximum(spread.high, least)
        places = as_results({"location": location, "spread": Estimate(*ends)})
        if "covariance" in usual:
            places["covariance"] = _definite(usual, places["spread"])
        return places

    def _density(self, tables: Results) -> dict[str, Floats]:
        """Return the cells, the noise level of their counts, and the cutoff of scores."""
        std = float(tables["noise"][0])
        density = {
            "cells": tables["cells"],
            "floor": np.array([max(std, 1.0)]),
            "rarities": tables["rarities"],
        }
        low, width = self._rarity_bins(density)
        edges = np.linspace(low, low + width * _RARITIES, _RARITIES + 1)
        (middle, upper), *_ = quantiles_of(
            edges[None], tables["rarities"][None], 0.0, _QUARTILES[1:]
        ).values
        beyond = middle + self.threshold * max(upper - middle, width) / (_IQR / 2)
        # No cell is rarer than a cell with noise alone, so a larger cutoff would flag no record.
        return {**density, "cutoff": np.array([min(beyond, low + width * (_RARITIES - 1))])}

    def _rarity_bins(self, results: Results) -> tuple[float, float]:
        """Return the lower end of the bins of scores and their width, functions of results."""
        low = -np.log2(self._cells)
        records = max(float(results["cells"].sum(axis=1).mean()), 1.0)
        high = max(np.log2(records / self._cells / float(results["floor"][0])), low + 1.0)
        return float(low), float(high - low) * (1 + 1e-9) / _RARITIES

    def scores(self, results: Results, records: Records) -> Floats:
        """Return the outlier score of each record; local and exact, not a release.

        Parameters
        ----------
        results : mapping
            The results of :meth:`results`.
        records : ndarray of shape (n_samples, n_features), int32

        Returns
        -------
        ndarray of shape (n_samples,)
            "zscore" and "robust": the largest distance of a column, in deviations. "mahalanobis":
            the normal score [WH31]_ of the squared distance. "density": the binary logarithm of the
            average cell's count over that of the record's cell, averaged over projections [P16]_.
            Its cutoff is `threshold` deviations above the median of the released scores.
        """
        # Guards against the table's length only, see `in_batches`.
        return in_batches(lambda part: self._scores(results, part), records)

    def _scores(self, results: Results, records: Records) -> Floats:
        away = self._standardised(results, records)
        if self.method == "density":
            cells = np.maximum(results["cells"], results["floor"][0])
            average = np.maximum(results["cells"].sum(axis=1), 1.0) / self._cells
            rarity = np.log2(average[:, None] / cells)
            cells_of_records = self._cells_of(results, records)
            return np.asarray(rarity[np.arange(self.n_views), cells_of_records].mean(axis=1))
        if self.method != "mahalanobis":
            return np.asarray(np.abs(away).max(axis=1))
        # Of standardised columns, so that the system is well conditioned.
        correlation = results["covariance"] / np.outer(results["spread"], results["spread"])
        squared = (away * np.linalg.solve(correlation, away.T).T).sum(axis=1)
        ninth = 2 / (9 * len(self.used))
        return np.asarray((np.cbrt(squared / len(self.used)) - (1 - ninth)) / sqrt(ninth))

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the number of outliers, if it is released, and the usual values."""
        usual = self.usual.summary(part_of(results, _USUAL), columns, nominal_n, units)
        if not self.count_share:
            return usual
        counts = around(results["flagged"], results["flagged_half_width"], normal=True)
        names = [f"{name}: " for name in self.group_names] or [""]
        visible = results.get("shown", np.ones(len(names)))
        least = f"below {self.min_group:g}" if self.min_group else "none shown"
        parts = listing(
            (name, least if not seen else count if count.is_distinct else "none shown")
            for name, count, seen in zip(names, counts.cells(), visible, strict=True)
        )
        return replace(usual, result=("Outliers: ", *parts, ". ", *usual.result))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return displays of location and spread, and of the number of outliers."""
        quartiles = isinstance(self.usual, Quantiles)
        names_of = ("median", "IQR / 1.349") if quartiles else ("mean", "deviation")
        place, size = (Estimate.of(results, name) for name in ("location", "spread"))
        rows = tuple(
            (columns[j], in_days(place[i], is_date), in_days(size[i], is_date, YEARS))
            for i, j in enumerate(self.used)
            for is_date in [j in self.usual.dates]
        )
        note = f"{INTERVALS} Scores of records are computed locally only."
        shown: list[Display] = [Table("Location and spread", ("column", *names_of), rows, note)]
        shown += self.usual.displays(part_of(results, _USUAL), columns)
        if self.method == "density":
            low, width = self._rarity_bins(results)
            names = tuple(f"{low + width * (i + 0.5):.2f}" for i in range(_RARITIES))
            note = f"Records beyond {results['cutoff'][0]:.2f} are outliers."
            rarities = Estimate(*(results["rarities"],) * 3, labels=(names,))
            shown.append(Bars("Scores of records", rarities, note))
        if self.count_share:
            spread = float(results["flagged_half_width"][0])
            names = self.group_names or ("all",)
            visible = results.get("shown", np.ones(len(names)))
            counts = tuple(
                (name, around(count, spread, normal=True) if seen else f"below {self.min_group:g}")
                for name, count, seen in zip(names, results["flagged"], visible, strict=True)
            )
            shown.append(Table("Outliers", ("", "records"), counts, f"Noisy numbers. {MARGINS}"))
        return tuple(shown)


def _definite(usual: Results, spread: Floats) -> Floats:
    """Return the covariance with all eigenvalues raised to at least the level of its noise."""
    # A noisy eigenvalue may be negative, and a distance by its inverse meaningless.
    units = np.outer(spread, spread)
    noise = (usual["covariance_high"] - usual["covariance_low"]).diagonal() / spread**2
    least = max(float(noise.max()) / (2 * INTERVAL_95["gaussian"]), 2.0**-32)
    values, vectors = np.linalg.eigh(np.nan_to_num(usual["covariance"]) / units)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T * units)
