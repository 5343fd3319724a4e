"""``Describe``: a summary of every column of a schema, from one noisy sum.

A column of categories is summed in a table, a numeric column in a tree of counts and two moments.
Sums and estimates are those of :class:`~cloister.tasks.tables.tabulate.Tabulate`,
:class:`~cloister.tasks.preparation.quantiles.Quantiles` and
:class:`~cloister.tasks.preparation.statistics.Statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import compress
from math import ceil, sqrt
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Whole, declared
from cloister.core.display import ENDS, YEARS, Display, Estimate, Summary, Table
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN, counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    POSITIVE,
    SHARE,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Ranges,
    Rows,
)
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import (
    CLIPPED,
    INTERVALS,
    NEAR_NOTE,
    OF_CUT,
    SAID,
    WITH_POPULATION,
    bars_of,
    bounds_near,
    cells_of,
    curve_of,
    in_days,
    listing,
    number_of,
    precision,
    table_of_count,
    undated,
)
from cloister.tasks.options import Dates, build_task, noise_multiplier_for
from cloister.tasks.population import sampled
from cloister.tasks.preparation.quantiles import (
    Levels,
    Probabilities,
    Quantiles,
    TreeLevels,
    running_variance,
    usual_levels,
)
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.preparation.ticks import AllTicks, ticks_of
from cloister.tasks.state import part_of, prefixed
from cloister.tasks.tables.inference import share_margin
from cloister.tasks.tables.tabulate import Tabulate

_MOST_WORDS = 1 << 17
_PICTURES, _BARS = 40, 30  # limits of a report's length: columns with a picture, bars of a picture
_MISSING = (
    "Before counting, a missing cell drops its record or is filled in, as the schema declares. "
    "Missing cells have a share only if the schema has a category for them."
)
_BAND = "The band is the 95 % confidence interval (privacy noise only) at each point."


@declared
class Describe(Gaussian):
    """Shares of categories, and quantiles, means and deviations of numbers, for every column.

    Parameters
    ----------
    categories : tuple of tuple of str
        Categories of each column; empty for a numeric column.
    levels : int
        Levels of each tree of counts, whose finest level has ``4**levels`` cells.
    ticks : tuple
        Bounds and step of each numeric column, as of
        :class:`~cloister.tasks.preparation.quantiles.Quantiles`.
    dates : tuple of int
        Columns of dates, which are years with a fraction.

    Notes
    -----
    Add/remove one record: it adds one to a cell of each table and of each level of each tree. It
    adds ``(1, x, 2 x^2 - 1)`` for each of D numeric columns. Squared norms are the number of
    tables, ``D levels`` and at most ``1 + 2 D``. The budget is split so that a cell, a running sum
    of a tree, on average, and a sum of values have the same margin of error.
    docs/proofs/describe.md
    """

    name: ClassVar[str] = "describe"
    title: ClassVar[str] = "What is in these files"
    rounds: ClassVar[int] = 1
    ranges: ClassVar[Ranges] = {"shares": SHARE, "deviation": POSITIVE}
    usage: ClassVar[str] = "--probabilities 0.1,0.5,0.9"
    absent: ClassVar[Mapping[str, str]] = {"by": "task table1 (dp_table1) compares groups"}
    columnwise: ClassVar[Mapping[str, str]] = Statistics.columnwise
    example: ClassVar[Example] = Example(MIXED, {"widest": 1e6})

    @declared
    class Options:
        probabilities: Annotated[Probabilities, "of the quantiles"] = (0.25, 0.5, 0.75)
        levels: TreeLevels = None
        widest: Annotated[Positive, "largest margin of error of a share that is released"] = 0.5

    n_features: Whole
    categories: tuple[tuple[str, ...], ...]
    probabilities: Probabilities = (0.25, 0.5, 0.75)
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
        if (words := sum(block.size for block in self.blocks(0))) > _MOST_WORDS:
            raise PlanError(
                f"columns must have at most {_MOST_WORDS} sums together, got {words}; describe "
                "fewer of them, group categories in the schema, or choose fewer levels."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the task for all columns; raise PlanError if the noise would exceed `widest`."""
        levels = options.levels or 1  # without numeric columns there is no tree
        numbers = [column for column in facts.columns if not column.levels]
        ticks = ticks_of(numbers, facts.frac_bits)
        if options.levels is None and numbers:
            levels = usual_levels(facts, facts.n_features, ticks)
        task = build_task(cls, facts, options, levels=levels, ticks=ticks)
        first = task.blocks(0)[0]
        noise = (noise_multiplier_for(facts) or 0.0) * sqrt(first.l2_squared / first.weight)
        margin = INTERVAL_95["gaussian"] * noise / (1 << COUNT_BITS) / facts.nominal_n
        # nominal_n is 1 until it is known from a noisy count.
        if facts.nominal_n > 1 and margin > options.widest:
            raise PlanError(
                f"epsilon must leave a share a margin of error of at most {options.widest:g}, got "
                f"{margin:.2g} for {counted(facts.n_features, 'column')}; describe fewer, raise "
                f"epsilon, or have nominal_n >= {ceil(facts.nominal_n * margin / options.widest)}."
            )
        return task

    def describe(self) -> str:
        categories = (
            f"the number of records in each category of {counted(len(self._tables), 'column')}"
        )
        numbers = (
            f"the number in each of {4**self.levels} cells of "
            f"{counted(len(self.numbers), 'number')} and in coarser cells, with sums of values and "
            "squares"
        )
        held = " and ".join([categories] * bool(self._tables) + [numbers] * bool(self.numbers))
        return f"One sum with Gaussian noise holds {held}."

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Indices of the numeric columns."""
        return tuple(j for j, names in enumerate(self.categories) if not names)

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the columns of the forecasts in `columnwise`."""
        return self.numbers

    @cached_property
    def _tables(self) -> tuple[tuple[int], ...]:
        return tuple((j,) for j, names in enumerate(self.categories) if names)

    @cached_property
    def _parts(self) -> Mapping[str, Tabulate | Statistics | Quantiles]:
        """The tasks that sum and estimate each kind of column, by the names of their blocks."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in ("n_features", "frac_bits")}
        parts: dict[str, Tabulate | Statistics | Quantiles] = {}
        if tables := self._tables:
            # Equal elements give the cells of all columns the same noise.
            words, walls = (1 << COUNT_BITS,) * len(tables), ((),) * self.n_features
            axes: dict[str, Any] = {"labels": self.categories, "walls": walls}
            parts["tables"] = Tabulate(tables=tables, words=words, **axes, **shared)
        if self.numbers:
            shared["used"] = self.numbers
            parts["moments"] = Statistics(**shared)
            # One round: a second, finer tree would divide the budget (docs/proofs/describe.md).
            shared |= {"probabilities": self.probabilities, "levels": self.levels}
            shared["ticks"] = self.ticks
            parts["trees"] = Quantiles(rounds=1, **shared)
        return parts

    # The sum --------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the empty state before the sum."""
        parts = self._parts.items()
        return {k: v for n, part in parts for k, v in prefixed(f"{n}.", part.start()).items()}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of tables, moments and trees with their shares of the budget."""
        blocks = {name: part.blocks(0)[0] for name, part in self._parts.items()}
        prices = {name: float(block.l2_squared) for name, block in blocks.items()}
        # A quantile is read from running sums, so the margin to equalise is that of a mean one: its
        # variance relative to that of one count.
        if "trees" in prices:
            prices["trees"] *= float(running_variance(self.levels)[0].mean())
        # A block of squared norm q and weight w has noise variance in proportion to q / w, so
        # weights in proportion to q give all blocks the same noise.
        whole = sum(prices.values())
        return tuple(
            replace(block, name=name, weight=prices[name] / whole) for name, block in blocks.items()
        )

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's elements of tables, moments and trees."""
        parts = self._parts.items()
        return tuple(row for n, p in parts for row in p.rows(0, part_of(state, f"{n}."), records))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return all sums, one block after another."""
        parts = self._parts.items()
        return np.concatenate([p.contribute(0, part_of(state, f"{n}."), records) for n, p in parts])

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums in records."""
        after: dict[str, Floats] = {}
        for name, part in self._parts.items():
            updated = part.update(0, part_of(state, f"{name}."), {name: released[name]})
            after |= prefixed(f"{name}.", updated)
        return after

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the largest margins of a share, and of means; without categories that of a rank.

        That of a rank is an average.
        """
        margin = INTERVAL_95["gaussian"] * noise_std / (1 << COUNT_BITS)
        most = max(map(len, self.categories), default=0)
        name = "share" if self._tables else "rank"
        found = {f"{name}_half_width": np.array([share_margin(margin, most, nominal_n)])}
        if moments := self._parts.get("moments"):
            of_moments = moments.forecast(noise_std, nominal_n, grid)  # its words have equal noise
            found["mean_half_width"] = of_moments["mean_half_width"]
        return found

    # Estimates ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the estimates of each column.

        Returns
        -------
        dict
            ``count`` and ``count_half_width`` of shape (1,). For all categories, one column after
            another: ``counts``, noisy and possibly negative, and ``shares``. For numeric columns,
            in data units: ``mean`` and ``deviation`` of shape (n_numbers,) and ``quantiles`` of
            shape (n_numbers, n_probabilities). ``walls`` are bounds of cells and ``distribution``
            is the share of the records below each, both of shape (n_numbers, n_cells + 1). All but
            ``counts`` and ``walls`` have 95 % noise intervals, ``_low`` and ``_high``. Shares,
            means, deviations and quantiles also have population intervals.
        """
        of = {n: p.results(part_of(state, f"{n}."), grid) for n, p in self._parts.items()}
        estimates: dict[str, Floats] = {}
        if self._tables:
            tables = [part_of(of["tables"], f"table_{i + 1}.") for i in range(len(self._tables))]
            # The sum of each table estimates the number of records. Its variance grows with the
            # number of cells, so the weighted mean of all tables has the least noise.
            weights = np.array([1 / table["counts"].size for table in tables])
            sums = [table["counts"].sum() for table in tables]
            margin = INTERVAL_95["gaussian"] * tables[0]["noise"] / sqrt(weights.sum())
            count = np.array([weights @ sums / weights.sum()])
            estimates = {"count": count, "count_half_width": margin}
            names = ("counts", *(f"shares{end}" for end in ("", "_low", "_high", *ENDS)))
            estimates |= {name: np.concatenate([table[name] for table in tables]) for name in names}
        return estimates | _of_numbers(of["moments"], of["trees"]) if self.numbers else estimates

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the first columns: means of numbers, and the most frequent categories."""
        shares = iter(Estimate.of(results, "shares").cells() if self._tables else ())
        parts: list[tuple[str | Estimate, ...]] = []
        for j, (name, labels) in enumerate(zip(columns, self.categories, strict=True)):
            if labels:
                top = max(
                    zip(labels, [next(shares) for _ in labels], strict=True),
                    key=lambda pair: np.nan_to_num(pair[1].value, nan=-1.0),
                )
                known = (f"most often {name} is {top[0]}, a share of ", top[1])
                unknown = (f"most frequent {name} not known",)
                parts.append(unknown if np.isnan(top[1].value) else known)
            else:
                mean = number_of(results, "mean", self.numbers.index(j))
                parts.append((f"mean {name} ", in_days(mean, j in self.dates)))
        first, *rest = listing(parts[:SAID])
        counted = undated(self.numbers, self.dates)
        return Summary(
            result=(f"{str(first)[:1].upper()}{str(first)[1:]}", *rest, "."),
            reliability=precision(
                Estimate.of(results, name)[counted if name in ("mean", "quantiles") else ...]
                for name in ("mean", "deviation", "quantiles", "shares")
                if name in results
            ),
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return an overview, a table of all estimates, and a picture of each column."""
        rows: list[tuple[str | Estimate, ...]] = []
        near = self._bounds_near(results)
        estimates: list[tuple[str, Estimate]] = []
        pictures: list[Display] = []
        percent = [f"{100 * p:.3g} %" for p in self.probabilities]
        clip = (CLIPPED,) * any(near)
        headings = ("column", "most frequent", "its share", "mean", "deviation", *clip, *percent)
        n, shares = len(percent), iter(cells_of(results, "shares") if self._tables else ())
        for j, (name, labels) in enumerate(zip(columns, self.categories, strict=True)):
            if labels:
                named = [f"{name}={label}" for label in labels]
                cells = [next(shares) for _ in labels]
                order = sorted(range(len(labels)), key=lambda k: -cells[k].value)
                blank, top = [""] * (2 + len(clip) + n), order[0]
                rows.append((name, labels[top], replace(cells[top], population=None), *blank))
                few = sorted(order[:_BARS])  # the most frequent ones, in the order of the schema
                bars = [labels[k] for k in few], [cells[k] for k in few]
                pictures.append(bars_of(f"Shares of {name}", *bars, unit="share of the records"))
            else:
                i, is_date = self.numbers.index(j), j in self.dates
                named = [f"{name}, {of}" for of in ("mean", "deviation", *percent)]
                mean, deviation = (number_of(results, of, i) for of in ("mean", "deviation"))
                places = [mean, *cells_of(results, "quantiles")[i * n : i * n + n]]
                first, *others = (in_days(place, is_date) for place in places)
                cells = [first, in_days(deviation, is_date, YEARS), *others]
                first, spread, *others = (replace(cell, population=None) for cell in cells)
                # Noise may leave no variance at all, which is no statement on the records.
                known = NOT_KNOWN if spread.value <= 0 < spread.high else spread
                rows.append((name, "", "", first, known, *near[i : i + len(clip)], *others))
                title, axes = f"Distribution of {name}", (name, "share of the records below")
                curve = results["walls"][i], results, "distribution", i
                pictures.append(curve_of(title, *curve, axes=axes, note=_BAND, dates=is_date))
            estimates += zip(named, cells, strict=True)
        note = f"{WITH_POPULATION} {OF_CUT}" if self.numbers else WITH_POPULATION
        cut = NEAR_NOTE if clip else ""
        used = [any(row[k] != "" for row in rows) for k in range(len(headings))]
        lines = tuple(tuple(compress(cells, used)) for cells in rows)
        return (
            table_of_count(results["count"], results["count_half_width"]),
            Table(
                "All columns",
                tuple(compress(headings, used)),
                lines,
                f"{_MISSING} {INTERVALS} {cut}".strip(),
            ),
            Table("Every number", ("", "value"), tuple(estimates), note),
            *pictures[:_PICTURES],
        )

    def _bounds_near(self, results: Results) -> list[str]:
        """Return the bounds of each numeric column that may cut many of its values, or ""."""
        return (
            [
                bounds_near(mean, deviation, ends, j in self.dates)
                for j, mean, deviation, ends in zip(
                    self.numbers, results["mean"], results["deviation"], self.ticks, strict=True
                )
            ]
            if self.ticks
            else []
        )


def _of_numbers(moments: Results, trees: Results) -> dict[str, Floats]:
    """Return the estimates of numeric columns, and the number of records."""
    results = {k: v for k, v in moments.items() if k.startswith(("mean", "deviation"))}
    # The sampling variance of a variance is its square times (kurtosis - 1) / n; moments hold no
    # fourth powers, so the kurtosis comes from the cells of the tree.
    masses, walls = np.diff(trees["distribution"], axis=1), trees["walls"]
    offsets = (walls[:, 1:] + walls[:, :-1]) / 2 - moments["mean"][:, None]
    offsets = (offsets / (walls[:, -1:] - walls[:, :1])) ** 2
    second, fourth = (np.maximum((masses * offsets**k).sum(axis=1), 1e-12) for k in (1, 2))
    count = np.maximum(trees["count"], 1.0)
    # The kurtosis of n values is in [1, n]; noise can move the ratio outside.
    kurtosis = np.clip(fourth * masses.sum(axis=1) / second**2, 1.0, count)
    spread = results["deviation"] ** 2 * (kurtosis - 1) / (4 * count)
    spread = np.nan_to_num(spread, nan=np.inf)  # without a deviation nothing is known of its error
    deviation = replace(Estimate.of(results, "deviation"), population=None)
    results |= sampled(deviation, spread, (0.0, np.inf)).named("deviation")
    ends = ("low", "high", "population_low", "population_high")
    results |= {f"quantiles_{k}" if k in ends else k: part for k, part in trees.items()}
    del results["rank_half_width"]
    return results
