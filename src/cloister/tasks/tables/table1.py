"""``Table1``: columns described by group, with differences and tests, from one noisy sum.

Tables of each column of categories by group are those of
:class:`~cloister.tasks.tables.tabulate.Tabulate`. In its group a record also adds what it adds to
:class:`~cloister.tasks.preparation.statistics.Statistics` and
:class:`~cloister.tasks.preparation.quantiles.Quantiles`.
:mod:`cloister.tasks.tables.comparison` has the estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Length, Positive, Range, Whole, declared
from cloister.core.display import Cell, Display, Estimate, Summary
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid, round_to_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import codes, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import (
    SAID,
    SIGNIFICANT,
    in_days,
    listing,
    number_of,
    precision,
    undated,
)
from cloister.tasks.options import Dates, build_task, noise_multiplier_for
from cloister.tasks.preparation.quantiles import Levels, Quantiles, usual_levels
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.preparation.ticks import AllTicks, ticks_of
from cloister.tasks.scores import as_results
from cloister.tasks.significance import holm
from cloister.tasks.state import part_of, prefixed
from cloister.tasks.tables import comparison, inference, journal
from cloister.tasks.tables.tabulate import Tabulate

_ONE = 1 << COUNT_BITS
_MOST_NUMBERS = 1 << 17
_USUAL = 1 / 3  # deviation of a normal number that fills its box, for forecasts; the box is [-1, 1]
_SQUARE = 1 / 3  # mean of x^2 in the box, likewise


@declared
class Table1(Gaussian):
    """Every column by group: mean (deviation) or number (share), differences and tests.

    Parameters
    ----------
    by : tuple of int
        The column whose categories are the groups; empty for one group of all records.
    categories : tuple of tuple of str
        Categories of each column; empty for a numeric column.
    medians, correlations : bool
        If True, quartiles by group and correlations of numbers are released, too. Each takes an
        equal share of the budget.
    most_noise : float
        A standardised difference is not known if its noise may have a larger deviation.
    levels : int
        Levels of each tree of counts, for quartiles.
    ticks : tuple
        Bounds and step of each numeric column, as of
        :class:`~cloister.tasks.preparation.quantiles.Quantiles`.
    dates : tuple of int
        Columns of dates, which are years with a fraction.

    Notes
    -----
    A record adds one to a cell of each of T tables, and ``(1, x, 2 x^2 - 1)`` of each of c numbers
    to its group. So its squared norm is at most ``T + 1 + 2 c``. It adds one to a cell of each
    level of each tree of its group, and products of numbers. docs/proofs/table1.md
    """

    name: ClassVar[str] = "table1"
    title: ClassVar[str] = "Who is in each group?"
    rounds: ClassVar[int] = 1
    usage: ClassVar[str] = "--by arm --medians"
    example: ClassVar[Example] = Example(
        MIXED, {"by": "smokes", "medians": True, "correlations": True, "most_noise": 1e6}
    )

    columnwise: ClassVar[Mapping[str, str]] = {
        "mean_half_width": "Expected error of a mean in groups of equal size (95 % of the noise)",
        "difference_half_width": "Expected error of a difference of two means in groups of equal "
        "size (95 % of the noise)",
    }
    forecast_note: ClassVar[str] = (
        "Errors refer to groups of equal size. In a group with half as many records, the errors of "
        "shares and means are twice as large."
    )

    @declared
    class Options:
        by: Annotated[
            str | None, "column whose categories are the groups; all are compared to the first"
        ] = None
        medians: Annotated[bool, "release medians and quartiles of numbers, too"] = False
        correlations: Annotated[bool, "release correlations of numbers, too"] = False
        most_noise: Annotated[
            Positive, "largest deviation of the noise of a standardised difference"
        ] = comparison.MOST_NOISE

    n_features: Whole
    by: Annotated[tuple[Annotated[int, Range(0)], ...], Length(0, 1)] = ()
    categories: tuple[tuple[str, ...], ...]
    medians: bool = False
    correlations: bool = False
    most_noise: Positive = comparison.MOST_NOISE
    levels: Levels = 4
    ticks: AllTicks = ()
    dates: Dates = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        if len(self.categories) != self.n_features or 1 in map(len, self.categories):
            raise PlanError(
                f"categories must be empty or at least 2 for each of {self.n_features} columns, "
                f"got {self.categories!r}."
            )
        if any(j >= self.n_features or not self.categories[j] for j in self.by):
            raise PlanError("by must be a column of categories; declare its groups in the schema.")
        if not (self.numbers or self.factors):
            raise PlanError("columns must have at least one other than by, got none; add one.")
        if (self.medians or self.correlations) and not self.numbers:
            raise PlanError("medians and correlations need a column of numbers; drop them.")
        if (words := sum(block.size for block in self.blocks(0))) > _MOST_NUMBERS:
            raise PlanError(
                f"columns must have at most {_MOST_NUMBERS:,} sums together, got {words:,}; use "
                "fewer of them, or group categories in the schema."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the task for all columns; raise PlanError if noise hides their differences."""
        by: tuple[int, ...] = ()
        of_group = facts.nominal_n
        if options.by is not None:
            by = (position(facts.columns, options.by, "by"),)
            of_group //= facts.columns[by[0]].levels or 1
        # Trees of a group have its records alone, so fewer levels fit them.
        numbers = [column for column in facts.columns if not column.levels]
        ticks = ticks_of(numbers, facts.frac_bits)
        levels = 1
        if options.medians:
            levels = usual_levels(replace(facts, nominal_n=max(of_group, 1)), len(numbers), ticks)
        task = build_task(cls, facts, options, by=by, levels=levels, ticks=ticks)
        # nominal_n is 1 until it is known from a noisy count.
        if by and facts.nominal_n > 1:
            block = task.blocks(0)[0]
            noise = noise_multiplier_for(facts) or 0.0
            noise *= sqrt(block.l2_squared / block.weight) / _ONE
            # From public numbers: a test of the real groups would reveal their sizes.
            error = task._noise_of_smd(noise, facts.nominal_n)
            if error > options.most_noise:
                least = ceil(facts.nominal_n * error / options.most_noise)
                raise PlanError(
                    "noise would hide the standardised differences: its deviation is "
                    f"{error:.2g}, and most_noise is {options.most_noise:g}; name fewer columns, "
                    f"raise epsilon or most_noise, or have nominal_n >= {least}."
                )
        return task

    def describe(self) -> str:
        more = [
            f" A second block has the numbers of records in {4**self.levels} cells of each number "
            "and group, and in coarser cells." * self.medians,
            " Another block has the products of each two numbers." * self.correlations,
        ]
        categories = (
            f"the number of records in each category of {counted(len(self.factors), 'column')}"
        )
        numbers = f"the sums of {counted(len(self.numbers), 'number')} and of squares"
        held = " and ".join([categories] * bool(self.factors) + [numbers] * bool(self.numbers))
        return (
            f"One sum with Gaussian noise holds, in {counted(self._n_groups, 'group')}, "
            f"{held or 'the number of records'}.{''.join(more)}"
        )

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Indices of the numeric columns."""
        return tuple(j for j, names in enumerate(self.categories) if not names)

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the columns of the forecasts in `columnwise`."""
        return self.numbers

    @cached_property
    def factors(self) -> tuple[int, ...]:
        """Indices of the columns of categories that are described."""
        return tuple(j for j, names in enumerate(self.categories) if names and j not in self.by)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return self.categories[self.by[0]] if self.by else (journal.ALL,)

    @property
    def _n_groups(self) -> int:
        return len(self.groups)

    @cached_property
    def _tables(self) -> Tabulate | None:
        """The task of the tables by group, all in the same unit; None without factors."""
        if not self.factors:
            return None
        return Tabulate(
            n_features=self.n_features,
            tables=tuple((*self.by, j) for j in self.factors),
            labels=self.categories,
            walls=((),) * self.n_features,
            words=(_ONE,) * len(self.factors),
            frac_bits=self.frac_bits,
        )

    def _statistics(self, covariance: bool) -> Statistics:
        """Return the task that sums numbers with their squares or products."""
        return Statistics(
            n_features=self.n_features,
            used=self.numbers,
            covariance=covariance,
            frac_bits=self.frac_bits,
        )

    @cached_property
    def _moments(self) -> Statistics:
        return self._statistics(False)

    @cached_property
    def _products(self) -> Statistics:
        return self._statistics(True)

    @cached_property
    def _trees(self) -> Quantiles:
        """The task that counts the records of one group in trees."""
        return Quantiles(
            n_features=self.n_features,
            used=self.numbers,
            levels=self.levels,
            rounds=1,  # a second, finer tree would divide the budget
            ticks=self.ticks,
            frac_bits=self.frac_bits,
        )

    @cached_property
    def _cells(self) -> GridState:
        """The cells of the trees, which are public and equal for all groups."""
        start = self._trees.start()
        return {name: round_to_grid(value, self.frac_bits) for name, value in start.items()}

    # The sum --------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the empty state before the sum."""
        state: dict[str, Floats] = {}
        for block in self.blocks(0):
            if block.name == "correlations":
                state |= prefixed("correlations.", self._products.start())
                continue
            shape = block.shape
            if block.name == "medians":  # the finest level alone is kept
                shape = (self._n_groups, *self._trees.start()["counts"].shape)
            state |= {f"{block.name}.values": np.zeros(shape), f"{block.name}.noise": np.zeros(1)}
        return state

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of tables, moments, medians and correlations that there are."""
        blocks: list[Block] = []
        if self._tables:
            blocks.append(replace(self._tables.blocks(0)[0], name="tables"))
        if self.numbers:
            # A record is in one group, so its bound is that of one group's sums.
            blocks += [self._by_group(self._moments.blocks(0)[0], "moments")]
        # A block of squared norm q and weight w has noise variance in proportion to q / w.
        whole = sum(block.l2_squared for block in blocks)
        extras: list[Block] = []
        if self.medians:
            extras.append(self._by_group(self._trees.blocks(0)[0], "medians"))
        if self.correlations:
            extras.append(replace(self._products.blocks(0)[0], name="correlations"))
        # Equal shares: whoever requests medians reads them as much as means.
        share = 1 / (1 + len(extras))
        return (
            *(replace(block, weight=share * block.l2_squared / whole) for block in blocks),
            *(replace(block, weight=share) for block in extras),
        )

    def _by_group(self, block: Block, name: str) -> Block:
        return replace(block, name=name, shape=(self._n_groups, block.size))

    def _group_of(self, records: Records) -> Integers:
        """Return the group of each record; a forged value is in the nearest one."""
        if not self.by:
            return np.zeros(len(records), dtype=np.int64)
        return codes(records[:, self.by[0]], self._n_groups, self.frac_bits)

    @cached_property
    def _grouped(self) -> tuple[tuple[Statistics | Quantiles, GridState], ...]:
        """The tasks whose sums are by group, with their states."""
        moments = ((self._moments, dict[str, Integers]()),) if self.numbers else ()
        return (*moments, *(((self._trees, self._cells),) if self.medians else ()))

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's elements of all blocks."""
        rows = [*self._tables.rows(0, state, records)] if self._tables else []
        group = self._group_of(records)
        for part, public in self._grouped:
            (own,) = part.rows(0, public, records)
            first = group * part.blocks(0)[0].size
            rows.append(
                Rows(own.cells + (first if own.cells.ndim == 1 else first[:, None]), own.values)
            )
        if self.correlations:
            rows += self._products.rows(0, state, records)
        return tuple(rows)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return all sums, one block after another."""
        group = self._group_of(records)
        # Copied once for moments and trees, which both need them.
        split = [records[group == g] for g in range(self._n_groups)]
        parts = [self._tables.contribute(0, state, records)] if self._tables else []
        parts += [task.contribute(0, public, of) for task, public in self._grouped for of in split]
        if self.correlations:
            parts.append(self._products.contribute(0, state, records))
        return np.concatenate(parts)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums of each block, and the deviation of their noise, in records."""
        after: dict[str, Floats] = {}
        for name, block in released.items():
            values, noise = block.in_records()
            # Raw counts of all levels would make the state larger than results need.
            if name == "medians":
                counts = [self._consistent(replace(block, values=own)) for own in block.values]
                values = np.stack(counts)
            if name == "correlations":
                updated = self._products.update(0, part_of(state, f"{name}."), {name: block})
                after |= prefixed(f"{name}.", updated)
            else:
                after |= {f"{name}.values": values, f"{name}.noise": np.array([noise])}
        return after

    def _consistent(self, trees: NoisyBlock) -> Floats:
        """Return the counts of the finest cells that fit all levels of a group's trees."""
        shaped = replace(trees, values=trees.values.reshape(self._trees.blocks(0)[0].shape))
        return self._trees.update(0, self._cells, {"trees": shaped})["counts"]

    # Forecasts ------------------------------------------------------------------------------------

    def _of_size(self, s: float) -> float:
        """Return the variance of the noise of a group's size, `s` being that of each sum."""
        # The mean of all sums that have it, weighted by the inverse of their variances.
        tables = sum(1 / len(self.categories[j]) for j in self.factors)
        return s**2 / (bool(self.numbers) + tables)

    def _noise_of_smd(self, s: float, nominal_n: int) -> float:
        """Return the forecast deviation of the noise of a standardised difference."""
        n = nominal_n / self._n_groups
        if self.numbers:
            return sqrt(2 * (s**2 + _SQUARE * self._of_size(s))) / n / _USUAL
        most = max(len(self.categories[j]) for j in self.factors)
        return sqrt(2 * most) * s / n  # of shares of one half, whose deviation is that, too

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return margins of error for equal groups.

        They are those of sizes, shares up to one half, means and their differences, and ranks.
        Means of squares are those of uniform numbers. No margin is that of a standardised
        difference: it depends on the deviation in its divisor, which no plan knows.
        """
        s, n, z = noise_std / _ONE, nominal_n / self._n_groups, INTERVAL_95["gaussian"]
        margins = {"count": np.array([z * sqrt(self._of_size(s))])}
        if self.factors:
            sizes = [len(self.categories[j]) for j in self.factors]
            shares = [inference.share_margin(z * s, size, n) for size in sizes]
            margins["share"] = np.array(shares)
        if self.numbers:
            half = grid.half_range[list(self.numbers)]
            margins["mean"] = z * sqrt(s**2 + _SQUARE * self._of_size(s)) / n * half
        if self.by and self.numbers:
            margins["difference"] = sqrt(2) * margins["mean"]
        found = {f"{name}_half_width": values for name, values in margins.items()}
        if self.medians:
            blocks = {block.name: block for block in self.blocks(0)}
            trees, first = blocks["medians"], self.blocks(0)[0]
            ratio = trees.l2_squared / trees.weight / (first.l2_squared / first.weight)
            of_trees = noise_std * sqrt(ratio)
            planned = self._trees.forecast(of_trees, max(round(n), 1), grid)
            found["rank_half_width"] = planned["rank_half_width"]
        return found

    # Estimates ------------------------------------------------------------------------------------

    def _noisy(self, state: GridState) -> tuple[float, list[Floats], Floats]:
        """Return the noise of a sum, the table of each factor, and the sums of each group."""
        real = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        tables: list[Floats] = []
        if self.factors:
            sizes = [len(self.categories[j]) for j in self.factors]
            ends = self._n_groups * np.cumsum(sizes)[:-1]
            tables = [
                part.reshape(self._n_groups, -1) for part in np.split(real["tables.values"], ends)
            ]
        s = real["moments.noise" if self.numbers else "tables.noise"]
        return float(s[0]), tables, real.get("moments.values", np.zeros((self._n_groups, 0)))

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the estimates of each group, differences to the first group, and tests.

        Returns
        -------
        dict
            ``group_counts`` of shape (n_groups,). For numbers, in data units: ``mean`` and
            ``deviation`` of shape (n_groups, n_numbers), with medians ``quantiles`` of shape
            (n_groups, n_numbers, 3). For the categories of all columns, one column after another:
            noisy ``counts``, possibly below 0, and ``shares`` of the group, of shape (n_groups,
            n_levels).

            With groups: ``group_shares`` of all records, of shape (n_groups,). ``overall_count`` of
            shape (1,) and ``overall_mean`` and so on describe all records; their shapes have no
            axis of groups. ``difference`` and ``smd``, of shape (n_groups - 1, n_numbers), and
            ``share_difference`` and ``share_smd`` of shape (n_groups - 1, n_levels). ``smd`` is
            the difference over the root of the mean of both variances. ``welch_statistic``,
            ``_df``, ``_p`` and ``_holm`` have the shape (n_numbers,), ``chi2_statistic`` and so on
            (n_factors,). Welch's statistic is t for two groups, else F with the degrees of freedom
            of its denominator. ``_holm`` is p after Holm's correction for all these tests.

            With correlations: ``correlation`` of shape (n_numbers, n_numbers), of all groups
            together.

            Intervals are ``_low``, ``_high``, ``_population_low``, ``_population_high``; those of
            deviations and correlations have noise alone.
        """
        s, tables, moments = self._noisy(state)
        trees = _Trees(state["medians.values"], state["medians.noise"]) if self.medians else None
        sizes = self._sizes(tables, moments)
        counts = inference.count_interval(sizes, sqrt(self._of_size(s))).mapped(np.ravel)
        results = counts.named("group_counts")
        results |= self._described(s, tables, moments, trees, grid)
        if self.by:
            # From the best sizes, which have less noise than any single sum.
            shares = inference.share_interval(sizes.T, sqrt(self._of_size(s)))
            results |= shares.mapped(np.ravel).named("group_shares")
            results |= self._overall(s, tables, moments, trees, grid)
            results |= self._compared(s, tables, moments, grid)
        if self.correlations:
            products = self._products.results(part_of(state, "correlations."), grid)
            results |= {k: part for k, part in products.items() if k.startswith("correlation")}
        return results

    def _described(
        self, s: float, tables: list[Floats], moments: Floats, trees: _Trees | None, grid: Grid
    ) -> dict[str, Floats]:
        """Return the description of each group, for any number of groups."""
        found: dict[str, Floats] = {}
        if self.numbers:
            noisy = self._moments_of(s, tables, moments)
            half, centre = (part[list(self.numbers)] for part in (grid.half_range, grid.centre))
            found |= noisy.means().mapped(lambda part: centre + half * part).named("mean")
            deviations = noisy.variances().mapped(
                lambda part: half * np.sqrt(np.maximum(part, 0.0))
            )
            found |= deviations.named("deviation")
        found |= _joined(
            {
                "counts": inference.count_interval(table, s),
                "shares": inference.share_interval(table, s),
            }
            for table in tables
        )
        return found | self._quartiles(trees, grid) if trees else found

    def _overall(
        self, s: float, tables: list[Floats], moments: Floats, trees: _Trees | None, grid: Grid
    ) -> dict[str, Floats]:
        """Return the description of all records; a sum over groups has the noise of all."""
        tables = [table.sum(axis=0, keepdims=True) for table in tables]
        moments = moments.sum(axis=0, keepdims=True)
        more = sqrt(self._n_groups)
        if trees:
            # Rounded up: on the grid, a deviation must not become smaller.
            noise = np.ceil(more * trees.noise).astype(np.int64)
            trees = _Trees(trees.counts.sum(axis=0, keepdims=True), noise)
        size = self._sizes(tables, moments)
        count = inference.count_interval(size, more * sqrt(self._of_size(s))).mapped(np.ravel)
        found = self._described(more * s, tables, moments, trees, grid)
        return count.named("overall_count") | {
            f"overall_{name}": values[0] for name, values in found.items()
        }

    def _compared(
        self, s: float, tables: list[Floats], moments: Floats, grid: Grid
    ) -> dict[str, Floats]:
        """Return differences of groups to the first one, and tests."""
        found: dict[str, Floats] = {}
        tests: dict[str, inference.Tested] = {}
        if self.numbers:
            groups = self._moments_of(s, tables, moments).groups()
            half = grid.half_range[list(self.numbers)]
            gap = comparison.difference(groups, 2.0)
            found |= gap.mapped(lambda part: half * part).named("difference")
            found |= comparison.standardised(groups, self.most_noise).named("smd")
            tests["welch"] = comparison.welch(groups)
        if self.factors:
            of_tables = [comparison.shares(table, s) for table in tables]
            found |= _joined(
                {
                    "share_difference": comparison.difference(groups, 1.0),
                    "share_smd": comparison.standardised(groups, self.most_noise),
                }
                for groups in of_tables
            )
            each = [inference.independence(table, s) for table in tables]
            parts = zip(*(vars(one).values() for one in each), strict=True)
            tests["chi2"] = inference.Tested(*map(np.array, parts))
        return found | _corrected(tests)

    def _moments_of(self, s: float, tables: list[Floats], moments: Floats) -> comparison.Moments:
        sums, waves = np.split(moments[:, 1:], 2, axis=1)
        sizes = self._sizes(tables, moments)
        return comparison.Moments(sizes, sums, waves, self._of_size(s), s**2)

    def _sizes(self, tables: list[Floats], moments: Floats) -> Floats:
        """Return the number of records in each group with the least noise; shape (n_groups, 1)."""
        whole, weights = moments[:, :1].sum(axis=1), float(bool(self.numbers))
        for table in tables:
            whole = whole + table.mean(axis=1)  # the sum, over the number of its cells
            weights += 1 / table.shape[1]
        return np.asarray(whole[:, None] / weights)

    def _quartiles(self, trees: _Trees, grid: Grid) -> dict[str, Floats]:
        """Return the quartiles of each number in each group."""
        groups = [
            self._trees.estimates({**self._cells, "counts": counts, "noise": trees.noise}, grid)
            for counts in trees.counts
        ]
        names = ("low", "high", "population_low", "population_high")
        ends = {f"quantiles_{name}": np.stack([one[name] for one in groups]) for name in names}
        return {"quantiles": np.stack([one["quantiles"] for one in groups]), **ends}

    def reasons(self, results: Results) -> Mapping[str, str]:
        """Return the reason why a standardised difference is not known."""
        hidden = f"its noise may have a deviation above {self.most_noise:g}, or groups hardly vary"
        return {"smd": hidden, "share_smd": hidden}

    # What is said ---------------------------------------------------------------------------------

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the columns that differ between groups, or the first columns."""
        if not self.by:
            return Summary(
                result=self._first(results, columns),
                reliability=_precise(results, undated(self.numbers, self.dates)),
            )
        names = [*(columns[j] for j in self.numbers), *(columns[j] for j in self.factors)]
        # All tests together, as Holm's correction has them.
        p = np.concatenate([results.get(f"{test}_holm", np.zeros(0)) for test in ("welch", "chi2")])
        unknown = int(np.isnan(p).sum())
        clear = [int(i) for i in np.argsort(p, kind="stable") if p[i] < SIGNIFICANT]
        group, of = columns[self.by[0]], self.groups
        parts: list[tuple[Cell, ...]] = []
        for i in clear[:SAID]:
            if len(of) == 2 and (gap := self._gap(results, i)):
                parts.append((f"{names[i]}{gap[0]} ", gap[1]))
            else:
                parts.append((f"{names[i]} (p {journal.p_text(p[i])})",))
        parts.sort(key=len, reverse=True)  # numbers first, which the first screen shows
        whom = f"Groups of {group} differ in "
        if len(of) == 2:
            whom = f"{group}={of[1]} less {group}={of[0]}: "
        more = f", and {len(clear) - SAID} more" if len(clear) > SAID else ""
        said: tuple[Cell, ...] = (whom, *listing(parts), f"{more}.")
        return Summary(
            result=said if clear else f"No column is shown to differ between groups of {group}.",
            reliability=f"{len(clear)} of {len(p)} columns differ at 5 %, after Holm's correction, "
            f"noise included{f'; {unknown} are not known' if unknown else ''}.",
            one_record=True,
        )

    def _gap(self, results: Results, i: int) -> tuple[str, Estimate] | None:
        """Return the difference of means, or of the shares of the second of two categories."""
        if i < len(self.numbers):
            is_date = self.numbers[i] in self.dates
            return "", journal.in_years(number_of(results, "difference", i), is_date)
        j = self.factors[i - len(self.numbers)]
        if len(self.categories[j]) != 2:
            return None
        place = self._starts[j] + 1
        return f"={self.categories[j][1]}, share", number_of(results, "share_difference", place)

    def _first(self, results: Results, columns: tuple[str, ...]) -> tuple[Cell, ...]:
        """Return the means, or without numbers the shares, of the first columns."""
        parts = [
            (f"mean {columns[j]} ", in_days(number_of(results, "mean", i), j in self.dates))
            for i, j in enumerate(self.numbers)
        ] or [
            (f"share of {columns[j]}={self.categories[j][0]} ", number_of(results, "shares", first))
            for j, first in self._starts.items()
        ]
        first, *rest = listing(parts[:SAID])
        return (f"{str(first)[:1].upper()}{str(first)[1:]}", *rest, ".")

    @cached_property
    def _starts(self) -> dict[int, int]:
        """The place of the first category of each factor among all categories."""
        sizes = [0, *(len(self.categories[j]) for j in self.factors)]
        return dict(zip(self.factors, np.cumsum(sizes).tolist(), strict=False))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the table of a journal, every number with its intervals, and pictures."""
        layout = journal.Layout(
            columns=columns,
            by=columns[self.by[0]] if self.by else "",
            groups=self.groups,
            numbers=self.numbers,
            factors={j: (first, self.categories[j]) for j, first in self._starts.items()},
            dates=self.dates,
            ticks=self.ticks,
            hidden=self.reasons(results)["smd"],
        )
        return tuple(journal.displays(layout, results))


@dataclass(frozen=True)
class _Trees:
    """Counts of the finest cells by group, on the grid, and their noise."""

    counts: Integers
    noise: Integers


def _joined(parts: Iterable[Mapping[str, Estimate]]) -> dict[str, Floats]:
    """Return estimates of the categories of each column, one column after another."""
    each = list(map(as_results, parts))
    if not each:
        return {}
    return {name: np.concatenate([part[name] for part in each], axis=1) for name in each[0]}


def _precise(results: Results, counted: list[int]) -> str:
    return precision(
        Estimate.of(results, name)[..., counted if name == "mean" else slice(None)]
        for name in ("mean", "shares")
        if name in results
    )


def _corrected(tests: Mapping[str, inference.Tested]) -> dict[str, Floats]:
    """Return tests by the names of results, with p after Holm's correction for all of them."""
    if not tests:
        return {}
    p = np.concatenate([test.p for test in tests.values()])
    # A test that is not known rejects nothing, so it does not count.
    adjusted, known = np.full(len(p), np.nan), ~np.isnan(p)
    adjusted[known] = holm(p[known])
    ends = np.cumsum([len(test.p) for test in tests.values()])[:-1]
    found: dict[str, Floats] = {}
    for (name, test), corrected in zip(tests.items(), np.split(adjusted, ends), strict=True):
        parts = {**vars(test), "holm": corrected}
        found |= {f"{name}_{part}": values for part, values in parts.items()}
    return found
