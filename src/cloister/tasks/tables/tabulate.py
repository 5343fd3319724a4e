"""``Tabulate``: noisy tables of counts with public cells, and means by group.

One noisy sum holds all tables and all means. Intervals of counts, shares and means, and all tests,
account for the noise (:mod:`cloister.tasks.tables.inference`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import product
from math import floor, prod, sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Length, Positive, Range, Whole, declared
from cloister.core.display import Display, Estimate, PValue, Summary
from cloister.core.errors import PlanError, raise_if_any
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    POSITIVE,
    SHARE,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Ranges,
    Rows,
)
from cloister.tasks.columns import position
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
from cloister.tasks.options import build_task, noise_multiplier_for
from cloister.tasks.scores import mean_interval
from cloister.tasks.significance import holm
from cloister.tasks.state import part_of, prefixed
from cloister.tasks.supervised.class_tables import centred_moments, moments_of
from cloister.tasks.tables import inference, render
from cloister.tasks.tables.axes import Axis, Edges, axes_of

Tests = Literal["chi2", "trend", "odds_ratio", "relative_risk"]
_MOST_CELLS, _MOST_NUMBERS, _MOST_COLUMNS = 20_000, 1 << 17, 3
_ONE = 1 << COUNT_BITS
_Columns = tuple[Annotated[int, Range(0)], ...]


@declared
class Tabulate(Gaussian):
    """Noisy tables of up to three columns, and means of numeric columns by group.

    Parameters
    ----------
    tables : tuple of tuple of int
        Columns of each requested table. A table whose columns are all in another table is not
        measured, but summed from the other one.
    labels : tuple of tuple of str
        Names of the levels of each column of the job; empty if no table needs them.
    walls : tuple of tuple of int, grid steps
        Bounds between the bins of each numeric column in a table.
    means, by : tuple of int
        Columns whose means are released, and columns whose levels form the groups.
    words : tuple of int
        The integer that a record adds to its cell of each measured table. With means, the last one
        is the largest integer that it adds to a sum of its group.
    minimum : float
        Noisy counts below it, or below twice their noise, are not displayed in reports.
    tests : tuple of {"chi2", "trend", "odds_ratio", "relative_risk"}
        Computed for every table of two columns that they fit, without a cost in budget.
    dates : tuple of int
        Columns of dates, which are years with a fraction.

    Notes
    -----
    A record adds a word to one cell of each measured table, and a word times
    ``(1, x, 2 x^2 - 1)`` to its group. Every cell of the schema is released, also if it holds no
    record. docs/proofs/tables.md
    """

    name: ClassVar[str] = "tabulate"
    title: ClassVar[str] = "How many, and does it differ?"
    rounds: ClassVar[int] = 1
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(("shares", "row_shares"), SHARE),
        **dict.fromkeys(("counts", "group_counts"), POSITIVE),
    }
    usage: ClassVar[str] = "--tables sex,diabetes --tables smoker --tests chi2"
    columnwise: ClassVar[Mapping[str, str]] = {
        "mean_half_width": "Expected error of a mean in groups of equal size (95 % of the noise)"
    }
    forecast_note: ClassVar[str] = (
        "Shares refer to the records of a row, in a table of several columns. In a row with half "
        "the records of an average one, the error is twice as large."
    )

    example: ClassVar[Example] = Example(
        MIXED,
        {
            "tables": [["work", "smokes"], ["age"]],
            "edges": {"age": [50]},
            "means": ["weight"],
            "by": ["smokes"],
            "tests": ["chi2"],
            "least_signal": 0.0,
        },
    )

    @declared
    class Options:
        tables: Annotated[tuple[tuple[str, ...], ...], "columns of each table, 1 to 3"] = ()
        means: Annotated[tuple[str, ...], "numeric columns whose means are released"] = ()
        by: Annotated[tuple[str, ...], "up to 2 columns whose levels form groups for means"] = ()
        edges: Edges = field(default_factory=dict)
        weights: Annotated[
            tuple[Positive, ...],
            "shares of the budget of each measured table, then of the means; equal by default",
        ] = ()
        minimum: Annotated[AtLeastZero, "smaller noisy counts are not displayed in reports"] = 5.0
        tests: Annotated[tuple[Tests, ...], "for each table of two columns that they fit"] = ()
        least_signal: Annotated[
            AtLeastZero, "least number of records per cell of a table, in multiples of its noise"
        ] = 1.0

    n_features: Whole
    tables: tuple[Annotated[_Columns, Length(1)], ...]
    labels: tuple[tuple[str, ...], ...]
    walls: tuple[tuple[int, ...], ...]
    means: _Columns = ()
    by: _Columns = ()
    words: tuple[Annotated[int, Range(1, 1 << 20)], ...]
    minimum: AtLeastZero = 5.0
    tests: tuple[Tests, ...] = ()
    dates: _Columns = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        raise_if_any(self._rules())

    def _rules(self) -> Iterator[str]:
        """Yield a message for each violated rule."""
        groups, measured, n = (*self.tables, self.by), len(self._measured), self.n_features
        used = {j for side in groups for j in side}
        if not (self.tables or self.means):
            yield (
                "tables or means must be given, such as tables=[['sex', 'smokes']], in Python "
                "DPTable(['sex', 'smokes']); got neither."
            )
        if max(used | {*self.means}) >= n or not n == len(self.labels) == len(self.walls):
            yield f"'labels' and 'walls' must have an entry for each of {n} columns."
        for j in used:
            names, walls = len(self.labels[j]), self.walls[j]
            if names < 2 or len(walls) not in (0, names - 1) or list(walls) != sorted({*walls}):
                yield f"column {j} must have 2 levels or more, and rising bounds between bins."
        for i, shape in enumerate(self._shapes, start=1):
            if len(shape) > _MOST_COLUMNS:
                yield (
                    f"table {i} must have 1 to {_MOST_COLUMNS} columns, got {len(shape)}; for the "
                    "joint distribution of more, use the task 'synthesise'."
                )
            if prod(shape) > _MOST_CELLS:
                yield (
                    f"table {i} must have at most {_MOST_CELLS:,} cells, got {prod(shape):,}; join "
                    "levels in the schema, or name fewer columns."
                )
        if any(len(set(names)) < len(names) for names in (*groups, self.tables, self.means)):
            yield "tables must be different; each table, means and by must name a column only once."
        if len(self.by) > 2 or (self.by and not self.means):
            yield f"by must name 1 or 2 columns and needs means, got {len(self.by)} columns."
        if self._size > _MOST_NUMBERS:
            yield (
                f"all tables and means of a job must have at most {_MOST_NUMBERS:,} numbers, got "
                f"{self._size:,}; request fewer of them, or use several jobs."
            )
        if len(self.words) != measured + bool(self.means):
            yield (
                f"weights must be one for each of {measured} measured tables"
                f"{' and one for the means' * bool(self.means)}, got {len(self.words)}; a table "
                "whose columns are all in another table is not measured, but summed from that."
            )
        for test in self.tests:
            if not any(inference.fits(test, shape) for shape in self._shapes):
                levels = " of two levels each" * (test in inference.RATIOS)
                yield f"test {test!r} needs a table of two columns{levels}; add one, or drop it."

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the axes of all tables; raise PlanError if noise would exceed their cells."""
        columns, frac_bits = facts.columns, facts.frac_bits
        names = tuple(dict.fromkeys(name for t in (*options.tables, options.by) for name in t))
        if strangers := sorted(set(options.edges) - set(names)):
            raise PlanError(f"edges must name columns in tables or by, got {strangers[0]!r}.")
        axes = {axis.column: axis for axis in axes_of(columns, names, options.edges, frac_bits)}
        sides = [axes.get(j, Axis(j, ())) for j in range(len(columns))]
        tables = tuple(_places(columns, table, "tables") for table in options.tables)
        means = _places(columns, options.means, "means")
        if wrong := [columns[j].name for j in means if columns[j].levels]:
            raise PlanError(
                f"means must name numeric columns, got {wrong[0]!r}, which has categories; "
                "count these in a table."
            )
        weights = options.weights or (1.0,) * (len(_measured(tables)) + bool(means))
        # All sums have the same noise, so the size of a table's word sets its precision: the root
        # of its weight, since squared words add up to the squared norm of a record.
        part = len(weights) / sum(weights or (1.0,))
        task = build_task(
            cls,
            facts,
            options,
            tables=tables,
            means=means,
            by=_places(columns, options.by, "by"),
            labels=tuple(axis.labels for axis in sides),
            walls=tuple(axis.walls for axis in sides),
            words=tuple(max(floor(_ONE * sqrt(part * weight)), 1) for weight in weights),
        )
        if facts.nominal_n > 1:  # 1 until it is known from a noisy count
            task._check_noise(noise_multiplier_for(facts) or 0.0, facts, options.least_signal)
        return task

    def _check_noise(self, multiplier: float, facts: PublicFacts, least: float) -> None:
        """Raise PlanError if the mean number of records per cell is too small for the noise."""
        # From `nominal_n`, which is public: a test of the real cells would reveal them.
        unit = multiplier * sqrt(self.blocks(0)[0].l2_squared)
        for table, s in zip((*self.tables, self.by), self._noises(unit), strict=True):
            mean = facts.nominal_n / prod(self._shape(table))
            if mean < least * s:
                named = " by ".join(facts.names[j] for j in table) or "means"
                raise PlanError(
                    f"noise would hide the table of {named}: a cell has {mean:.3g} records on "
                    f"average, and noise of {s:.3g}; join levels, request fewer tables or means, "
                    "or raise epsilon."
                )

    def describe(self) -> str:
        """Describe the counts and sums of the task."""
        sums = [f"the number of records in each of {max(self._ends, default=0):,} cells of tables"]
        if self.means:
            moments = f"the sums of {counted(len(self.means), 'column')} and of their squares"
            sums.append(f"the size of {counted(self._n_groups, 'group')}, with {moments}")
        sums = sums[not self.tables :]
        return f"Silos sum {' and '.join(sums)}; every number has noise, including empty cells."

    # Requested and measured tables ----------------------------------------------------------------

    def _shape(self, table: Sequence[int]) -> tuple[int, ...]:
        return tuple(len(self.labels[j]) for j in table)

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [self._shape(table) for table in self.tables]

    @cached_property
    def _measured(self) -> tuple[int, ...]:
        return _measured(self.tables)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Ends of the cells of each measured table in the vector of sums."""
        return tuple(np.cumsum([prod(self._shapes[i]) for i in self._measured], dtype=int).tolist())

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the columns of the forecasts in `columnwise`."""
        return self.means

    @property
    def _n_groups(self) -> int:
        return prod(self._shape(self.by))

    @property
    def _width(self) -> int:
        """Number of sums of a group; 0 without means."""
        return (1 + 2 * len(self.means)) * bool(self.means)

    @property
    def _size(self) -> int:
        return max(self._ends, default=0) + self._n_groups * self._width

    @cached_property
    def _sources(self) -> tuple[tuple[int, int], ...]:
        """Number of the most precise measured table for each table, and its cells per cell."""
        shapes, sources = self._shapes, []
        for i, table in enumerate(self.tables):
            merged = {
                k: prod(shapes[m]) // prod(shapes[i])
                for k, m in enumerate(self._measured)
                if set(table) <= set(self.tables[m])
            }
            # A sum of m cells with noise s / word each has the variance m (s / word)^2.
            sources.append(min(merged.items(), key=lambda pair: pair[1] / self.words[pair[0]] ** 2))
        return tuple(sources)

    def _noises(self, unit: float) -> list[float]:
        """Return the noise of a cell of each table, and of the sums of groups, in records.

        `unit` is the noise of the block in its integers. Without means the last number is 0.
        """
        tables = [unit / self.words[k] * sqrt(merged) for k, merged in self._sources]
        return [*tables, unit / self.words[-1] * bool(self.means)]

    def _noisy(self, state: GridState) -> tuple[list[Floats], Floats, list[float]]:
        """Return the noisy cells of each table, all sums of each group, and :meth:`_noises`."""
        values, unit = (from_grid(state[k], self.frac_bits) * _ONE for k in ("values", "noise"))
        *measured, groups = np.split(values, self._ends)
        tables = []
        for table, (k, _) in zip(self.tables, self._sources, strict=True):
            source = self.tables[self._measured[k]]
            cells = measured[k].reshape(self._shape(source)) / self.words[k]
            axes = "abc"[: len(source)], "".join("abc"[source.index(j)] for j in table)
            tables.append(np.einsum("->".join(axes), cells))  # sums over columns outside the table
        groups = groups.reshape(self._n_groups, self._width) / self.words[-1]
        return tables, groups, self._noises(float(unit[0]))

    # The sum --------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the empty state before the sum."""
        return {"values": np.zeros(self._size), "noise": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: the cells of all measured tables, then the sums of all groups."""
        # A record adds a word to one cell of each table, and at most a word to each sum of its
        # group.
        added = [*self.words[: len(self._measured)], *self.words[-1:] * self._width]
        return (Block("sums", (self._size,), sum(added), sum(a**2 for a in added), 1.0),)

    def _cells_of(self, records: Records) -> Callable[[Sequence[int]], Integers]:
        """Return a function from a table to the cell of each record in it."""
        places = {
            j: Axis(j, self.labels[j], self.walls[j]).cells(records, self.frac_bits)
            for j in {j for table in (*self.tables, self.by) for j in table}
        }

        def cells(table: Sequence[int]) -> Integers:
            cell = np.zeros(len(records), dtype=np.int64)
            for j in table:  # the last column varies fastest, as in the C order of `reshape`
                cell = cell * len(self.labels[j]) + places[j]
            return cell

        return cells

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's words in cells of measured tables and in sums of its group."""
        cells, starts = self._cells_of(records), [0, *self._ends]
        places = [starts[k] + cells(self.tables[i]) for k, i in enumerate(self._measured)]
        words = [np.full(len(records), self.words[k]) for k in range(len(self._measured))]
        if self.means:
            word = self.words[-1]
            first = starts[-1] + cells(self.by) * self._width
            places += [first + place for place in range(self._width)]
            words.append(np.full(len(records), word))
            for j in self.means:
                words += moments_of(records[:, j], word, self.frac_bits)
        return (Rows.at(places, np.stack(words, axis=1)),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the cells of all measured tables and the sums of all groups."""
        cells = self._cells_of(records)
        parts = [
            self.words[k] * np.bincount(cells(self.tables[i]), minlength=prod(self._shapes[i]))
            for k, i in enumerate(self._measured)
        ]
        if self.means:
            group, n, word = cells(self.by), self._n_groups, self.words[-1]
            sums = [
                centred_moments(group, records[:, j], n, word, self.frac_bits) for j in self.means
            ]
            sizes = word * np.bincount(group, minlength=n)
            parts.append(np.column_stack([sizes, *sums]).ravel())
        return np.concatenate(parts).astype(np.int64)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums in units of records."""
        (sums,) = released.values()
        values, noise = sums.in_records()
        return {"values": values, "noise": np.array([noise])}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return margins of error of counts, shares, and means of equal groups.

        As in the report, shares are those of equal rows of a table of several columns.
        """
        *tables, groups = (INTERVAL_95["gaussian"] * s for s in self._noises(noise_std))
        halves = [
            inference.share_margin(z, shape[-1], nominal_n / prod(shape[:-1]))
            for z, shape in zip(tables, self._shapes, strict=True)
        ]
        means = groups * self._n_groups / nominal_n * grid.half_range[list(self.means)]
        margins = {"count": np.array(tables), "share": np.array(halves), "mean": means}
        return {f"{name}_half_width": values for name, values in margins.items() if len(values)}

    # Estimates ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return counts, shares, means and tests, with 95 % intervals of noise and of population.

        Returns
        -------
        dict
            The i-th table, from 1, has the prefix ``table_i.``. Of its shape are noisy ``counts``,
            which may be below 0, ``shown``, the nearest possible counts, and ``shares`` of the
            table. With more than one column it has ``row_shares`` along the last one. Of shape (1,)
            is ``noise``, the deviation of a count.

            Each test that fits has ``chi2_statistic``, ``_df``, ``_p`` and ``_holm``: p after
            Holm's correction for all tests of the job. A ratio of a table of two levels by two also
            has a value. ``relative_risk`` is the share of the second column's last level in the
            last row, divided by its share in the first row.

            Groups have ``means``, data units, of shape (n_groups, n_means), ``group_counts`` of
            shape (n_groups, 1) and ``group_noise``. Intervals are ``_low``, ``_high``,
            ``_population_low``, ``_population_high``.
        """
        tables, groups, (*noises, s) = self._noisy(state)
        results: dict[str, Floats] = {}
        for i, (counts, noise) in enumerate(zip(tables, noises, strict=True)):
            results |= prefixed(f"table_{i + 1}.", self._answers(counts, noise))
        # Over all tables, as a reader looks at the tests of a job together.
        if tests := [name[:-2] for name in results if name.endswith("_p")]:
            adjusted = holm(np.concatenate([results[f"{name}_p"] for name in tests]))
            results |= {f"{name}_holm": adjusted[k : k + 1] for k, name in enumerate(tests)}
        if self.means:
            size, x, squares = groups[:, :1], groups[:, 1::2], groups[:, 2::2]
            centre, half = (part[list(self.means)] for part in (grid.centre, grid.half_range))
            # Grid coordinates are in [-1, 1], which the interval of a mean relies on. The sum of
            # squares of x is that of (2 x^2 - 1) plus the size, halved.
            means = mean_interval(x, size, (squares + size) / 2, s**2, s**2)
            results |= means.mapped(lambda part: centre + half * part).named("means")
            results |= inference.count_interval(size, s).named("group_counts")
            results["group_noise"] = np.array([s])
        return results

    def changes(
        self, recent: GridState, before: GridState, correlation: float
    ) -> dict[str, Floats]:
        """Return the p-value of equal shares in two disjoint sets of records, for each table.

        `correlation` is that of the noises of a sum in both states; it is 0 for two releases.
        """
        (new, _, s), (old, _, r) = self._noisy(recent), self._noisy(before)
        return {
            f"table_{i + 1}": inference.change(new[i], old[i], (s[i], r[i]), correlation).p
            for i in range(len(self.tables))
        }

    def _answers(self, counts: Floats, s: float) -> dict[str, Floats]:
        """Return the estimates of a noisy table, with the tests that fit it."""
        results = {
            "noise": np.array([s]),
            "shown": inference.shown(counts.ravel()).reshape(counts.shape),
            **inference.count_interval(counts, s).named("counts"),
            **inference.share_interval(counts, s, None).named("shares"),
        }
        if counts.ndim > 1:
            results |= inference.share_interval(counts, s).named("row_shares")
        for test in self.tests:
            if inference.fits(test, counts.shape):
                results |= inference.outcome(test, counts, s)
        return results

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the tests, or the largest cell of the first table."""
        if tests := [name for name in results if name.endswith("_holm")]:
            p = np.array([results[name][0] for name in tests])
            shown = int(np.count_nonzero(p < SIGNIFICANT))
            unknown = int(np.isnan(p).sum())
            # The clearest one, where any is known.
            first = tests[int(np.nanargmin(p)) if unknown < len(p) else 0].removesuffix("_holm")
            table = self.tables[int(first.partition(".")[0].removeprefix("table_")) - 1]
            named = " by ".join(columns[j] for j in table)
            plain = PValue(results[f"{first}_p"][0]).text
            ratio = [(", ", number_of(results, first))] if first in results else []
            test = _TESTS[first.partition(".")[2]]
            return Summary(
                result=(
                    f"{named}, {test}: p {plain}",
                    *(part for two in ratio for part in two),
                    ".",
                ),
                reliability=f"{shown} of {len(tests)} tests find a difference at 5 %, after Holm's "
                f"correction, noise included{f'; {unknown} are not known' if unknown else ''}.",
            )
        if not self.tables:
            groups = [", ".join(of) for of in product(*(self.labels[j] for j in self.by))]
            means = Estimate.of(results, "means")
            parts = [
                (f"{group or 'all records'} ", in_days(means[i, 0], self.means[0] in self.dates))
                for i, group in enumerate(groups[:SAID])
            ]
            return Summary(
                result=(f"Mean {columns[self.means[0]]}: ", *listing(parts), "."),
                reliability=precision([means[:, undated(self.means, self.dates)]]),
            )
        cells = Estimate.of(results, "table_1.shares")
        top = np.unravel_index(int(np.nanargmax(cells.values)), cells.values.shape)
        named = ", ".join(
            f"{columns[j]} {self.labels[j][k]}" for j, k in zip(self.tables[0], top, strict=True)
        )
        first = " of the first table" if len(self.tables) > 1 else ""
        # A sentence on all numbers counts those of every table, and means.
        shares = [Estimate.of(results, f"table_{i + 1}.shares") for i in range(len(self.tables))]
        counted = undated(self.means, self.dates)
        of_means = [Estimate.of(results, "means")[:, counted]] if counted else []
        return Summary(
            result=(f"The largest cell{first} is ", f"{named}, a share of ", cells[top], "."),
            reliability=precision([*shares, *of_means]),
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a picture and the estimates of each table, means by group, and tests."""

        def sides(table: Sequence[int]) -> render.Sides:
            return [columns[j] for j in table], [self.labels[j] for j in table]

        named = {f"table_{i}.": sides(table) for i, table in enumerate(self.tables, start=1)}
        displays: list[Display] = []
        for prefix, of in named.items():
            displays += render.table_displays(of, part_of(results, prefix), self.minimum)
        if self.means:
            names = [columns[j] for j in self.means]
            dates = [columns[j] for j in self.dates]
            displays += render.mean_displays(names, sides(self.by), results, self.minimum, dates)
        return (*displays, *render.test_displays(named, results))


_TESTS = {
    "chi2": "chi-square test",
    "trend": "test of trend",
    "odds_ratio": "odds ratio",
    "relative_risk": "relative risk",
}


def _measured(tables: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the indices of tables that are not margins of others; of equal ones, the first."""
    # A margin is summed from its table: to measure it would increase the norm of each record.
    sets = [frozenset(table) for table in tables]
    return tuple(
        i
        for i, columns in enumerate(sets)
        if columns not in sets[:i] and not any(columns < other for other in sets)
    )


def _places(columns: Sequence[PublicColumn], names: Sequence[str], role: str) -> tuple[int, ...]:
    return tuple(position(columns, name, role) for name in names)
