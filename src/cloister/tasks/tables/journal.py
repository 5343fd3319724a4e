"""Displays of a table of columns by group, as journals print it, and of all its numbers.

The first table has texts, each rounded to the digits that the noise leaves. All other displays have
numbers with their intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite, log10

import numpy as np

from cloister.core.arrays import Floats, Results
from cloister.core.dates import nearest_day
from cloister.core.display import YEARS, Bars, Cell, Display, Estimate, Heatmap, PValue, Table
from cloister.core.numerals import NOT_KNOWN
from cloister.tasks.interval_tables import (
    CLIPPED,
    INTERVALS,
    NEAR_NOTE,
    OF_CUT,
    WITH_POPULATION,
    bars_of,
    bounds_near,
    in_days,
)
from cloister.tasks.preparation.ticks import AllTicks

ALL = "all records"
_SMD = "SMD"
_WELCH = ("Welch's t-test", "Welch's analysis of variance")
_TABLE = (
    "Means have the standard deviation and medians the quartiles, numbers of records their share. "
    "Digits follow the noise. {}No value is exact: the tables below have the intervals."
)
_COMPARED = (
    "SMD: difference to {by}={first}, over the root of the mean of both variances. p: {welch} for "
    "numbers, chi-squared test for categories, both with noise. "
)
_COUNTED = (
    "Records of a category counted alone have their own noise. Table 1 has the records of the "
    "group times the share, so that its numbers add up."
)
_BALANCED = (-0.1, 0.1)  # usual limits of a standardised difference
_HOLM = (
    "A p-value is the probability of a statistic at least this large, noise included, if groups "
    "were alike. Holm's correction covers all tests here together. Student's t-test is not "
    "computed, since it assumes equal variances."
)


@dataclass(frozen=True)
class Layout:
    """Names and places of the columns of a table by group.

    Parameters
    ----------
    by : str
        The column of groups; empty for a single group.
    groups : tuple of str
    numbers : tuple of int
        The columns of numbers.
    factors : mapping of int to (int, tuple of str)
        For each column of categories the place of its first one in results, and their names.
    dates : tuple of int
        The columns of dates.
    ticks : tuple
        Bounds and step of each column of numbers.
    hidden : str
        Why a standardised difference is not known.
    """

    columns: tuple[str, ...]
    by: str
    groups: tuple[str, ...]
    numbers: tuple[int, ...]
    factors: Mapping[int, tuple[int, tuple[str, ...]]]
    dates: tuple[int, ...]
    ticks: AllTicks = ()
    hidden: str = ""

    @property
    def others(self) -> tuple[str, ...]:
        """The groups that are compared to the first one."""
        return self.groups[1:]

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of all categories, with their column."""
        return tuple(
            f"{self.columns[j]}={name}" for j, (_, names) in self.factors.items() for name in names
        )

    @property
    def named(self) -> tuple[str, ...]:
        """Headings of the columns: all records, if there are groups, and each group."""
        of_groups = (f"{self.by}={name}" for name in self.groups)
        return (ALL, *of_groups) if self.by else self.groups

    def shown(self, j: int) -> tuple[int, ...]:
        """Return the places of the categories of a factor that a short table has: one of two."""
        first, names = self.factors[j]
        # The other share is the rest, and its difference has the opposite sign.
        return tuple(range(first + (len(names) == 2), first + len(names)))


def displays(layout: Layout, results: Results) -> Iterator[Display]:
    """Yield the table of a journal, a picture of differences, and all numbers."""
    yield _journal(layout, results)
    if layout.by:
        yield _balance(layout, results)
    yield from _groups(layout, results)
    if layout.by:
        yield from _differences(layout, results)
        yield _tests(layout, results)
    if "correlation" in results:
        names = tuple(layout.columns[j] for j in layout.numbers)
        found = Estimate.of(results, "correlation", labels=(names, names))
        yield Heatmap("Correlations in all groups", found, INTERVALS, (found.values + 1) / 2)


def p_text(p: float) -> str:
    """Return the text of a p-value within a sentence."""
    return PValue(p).text


def in_years(estimate: Estimate, is_date: bool) -> Estimate:
    """Return an estimate whose text is a length of time, if `is_date`."""
    return in_days(estimate, is_date, YEARS)


# The table of a journal ---------------------------------------------------------------------------


def _journal(layout: Layout, results: Results) -> Table:
    sizes, g = _by_column(layout, results, "group_counts"), len(layout.groups)
    smd = [f"{_SMD}, {other}" if g > 2 else _SMD for other in layout.others]
    tests = ("p", "p after Holm") if layout.by else ()
    counts = _texts(sizes)
    if layout.by:
        # From shares, so that the numbers of groups add up to that of all records.
        of_all, shares = float(sizes.values[0]), Estimate.of(results, "group_shares")
        counts[1:] = [_count(of_all, share) for share in shares.cells()]
    rows: list[tuple[Cell, ...]] = [("records", *counts, *[""] * (len(smd) + len(tests)))]
    for j in range(len(layout.columns)):
        if j in layout.numbers:
            rows += _rows_of_number(layout, results, j)
        elif j in layout.factors:
            i = tuple(layout.factors).index(j)
            for place in layout.shown(j):
                level = layout.levels[place]
                found = _by_column(layout, results, "shares")[:, place].cells()
                texts = [
                    _count(float(n), share) for n, share in zip(sizes.values, found, strict=True)
                ]
                gaps = _standardised(results, "share_smd", place) if layout.by else []
                # A test is of the whole column, so it is in the first row alone.
                p = _p_values(results, "chi2", i) if layout.by else []
                first = place == layout.shown(j)[0]
                rows.append((f"{level}, n (%)", *texts, *gaps, *(p if first else [""] * len(p))))
    compared = ""
    if layout.by:
        compared = _COMPARED.format(by=layout.by, first=layout.groups[0], welch=_WELCH[g > 2])
    title = f"Table 1: records by {layout.by}" if layout.by else "Table 1"
    note = _TABLE.format(compared)
    if any(NOT_KNOWN in row for row in rows):
        note = f"{note} {NOT_KNOWN}: an SMD, if {layout.hidden}."
    return Table(title, ("", *layout.named, *smd, *tests), tuple(rows), note)


def _by_column(layout: Layout, results: Results, name: str) -> Estimate:
    """Return the estimates of all records, if there are groups, and of each group."""
    groups = Estimate.of(results, name)
    if not layout.by:
        return groups
    of_all = f"overall_{'count' if name == 'group_counts' else name}"
    overall = Estimate.of(results, of_all)
    if name != "group_counts":
        overall = overall[None]
    return overall.followed_by(groups)


def _rows_of_number(layout: Layout, results: Results, j: int) -> Iterator[tuple[Cell, ...]]:
    """Yield the row of means and, if there is one, that of medians."""
    i, name, is_date = layout.numbers.index(j), layout.columns[j], j in layout.dates
    means, deviations = (_by_column(layout, results, key)[:, i] for key in ("mean", "deviation"))
    # A deviation within its noise may have any size, and 0 would look like equal records.
    hidden = np.where(deviations.is_distinct, deviations.values, np.nan)
    deviations = replace(deviations, values=hidden)
    texts = [
        mean if mean == NOT_KNOWN else f"{mean} ({deviation})"
        for mean, deviation in zip(_texts(means, is_date), _texts(deviations, most=9), strict=True)
    ]
    more: list[Cell] = []
    if layout.by:
        more = [*_standardised(results, "smd", i), *_p_values(results, "welch", i)]
    yield (f"{name}, mean (SD)", *texts, *more)
    if "quantiles" in results:
        found = _by_column(layout, results, "quantiles")[:, i]
        parts = (_texts(found[:, k], is_date) for k in range(3))
        texts = [f"{middle} [{low}, {high}]" for low, middle, high in zip(*parts, strict=True)]
        yield (f"{name}, median [IQR]", *texts, *[""] * len(more))


def _standardised(results: Results, name: str, i: int) -> list[Cell]:
    found = Estimate.of(results, name)[:, i]
    return [f"{value:.2f}" if isfinite(value) else NOT_KNOWN for value in found.values.tolist()]


def _p_values(results: Results, test: str, i: int) -> list[Cell]:
    return [PValue(results[f"{test}_{part}"][i]) for part in ("p", "holm")]


def _count(size: float, share: Estimate) -> str:
    """Return the number of records of a category and its share of a group, as a text."""
    if not isfinite(share.value):
        return NOT_KNOWN
    # From the share, so that the numbers of a column add up to that of the group.
    margin = _margin(share)
    number = _rounded(max(size, 0.0) * share.value, max(size, 0.0) * margin)
    return f"{number} ({_rounded(100 * share.value, max(100 * margin, 0.1))} %)"


def _texts(row: Estimate, is_date: bool = False, most: int = 0) -> list[str]:
    """Return the numbers of a row as texts, all with the digits of the least certain one.

    At most `most` digits before the point are rounded.
    """
    # One number of digits in a row, as journals print it.
    values = row.values.tolist()
    margin = max((_margin(c) for c in row.cells() if isfinite(c.value)), default=np.nan)
    if is_date:
        return [str(nearest_day(value)) if isfinite(value) else NOT_KNOWN for value in values]
    return [_rounded(value, margin, most) if isfinite(value) else NOT_KNOWN for value in values]


def _margin(cell: Estimate) -> float:
    """Return half the width of a noise interval."""
    return float(cell.high - cell.low) / 2


def _rounded(value: float, margin: float, most: int = 0) -> str:
    """Return a number whose last digit is the first one of its margin of error, at most."""
    # More digits than the noise leaves would look exact.
    if not 0 < margin < np.inf:
        return f"{value:.4g}"
    decimals = min(max(-most, -floor(log10(margin))), 9)
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"


# All numbers --------------------------------------------------------------------------------------


def _balance(layout: Layout, results: Results) -> Bars:
    """Return the picture of standardised differences, which journals call a Love plot."""
    # With sampling: readers look for groups that differ, not for records that do.
    several = len(layout.others) > 1
    names: list[str] = []
    cells: list[Estimate] = []
    for j, column in enumerate(layout.columns):
        key, places = "smd", [layout.numbers.index(j)] if j in layout.numbers else []
        if j in layout.factors:
            key, places = "share_smd", [*layout.shown(j)]
        for place in places:
            name = column if key == "smd" else layout.levels[place]
            found = Estimate.of(results, key)[:, place].of_population
            names += [f"{name}, {other}" if several else name for other in layout.others]
            cells += found.cells()
    title = f"Standardised differences to {layout.by}={layout.groups[0]}"
    note = "Lines are 95 % confidence intervals (noise and sampling). Dashed lines are at ±0.1."
    unit = "difference in standard deviations"
    return replace(bars_of(title, names, cells, note, unit), points=True, marks=_BALANCED)


def _groups(layout: Layout, results: Results) -> Iterator[Table]:
    """Yield means and deviations, shares, and quartiles of all records and of each group."""
    columns: list[Iterable[str | Estimate]] = [
        layout.named,
        _by_column(layout, results, "group_counts").cells(),
    ]
    if layout.by:
        columns.append(("", *Estimate.of(results, "group_shares").cells()))
    heads = ("group", "records", "share")[: len(columns)]
    yield Table("Groups", heads, tuple(zip(*columns, strict=True)), WITH_POPULATION)
    if layout.numbers:
        rows: list[tuple[str | Estimate, ...]] = [
            (f"{layout.columns[j]}, {group}", *_of_number(layout, results, k, i))
            for i, j in enumerate(layout.numbers)
            for k, group in enumerate(layout.named)
        ]
        quartiles = ("lower quartile", "median", "upper quartile") * ("quantiles" in results)
        headings = ("column and group", "mean", "deviation", CLIPPED, *quartiles)
        note = f"{WITH_POPULATION} {OF_CUT} {NEAR_NOTE}"
        if not any(row[3] for row in rows):  # an empty column would push others off a screen
            headings, rows = headings[:3] + headings[4:], [row[:3] + row[4:] for row in rows]
            note = f"{WITH_POPULATION} {OF_CUT}"
        yield Table("Numbers by group", headings, tuple(rows), note)
    if layout.factors:
        counts, shares = (_by_column(layout, results, name) for name in ("counts", "shares"))
        cells = [
            (f"{level}, {group}", counts[k, i], shares[k, i])
            for i, level in enumerate(layout.levels)
            for k, group in enumerate(layout.named)
        ]
        headings = ("category and group", "records, counted alone", "share of the group")
        yield Table("Shares by group", headings, tuple(cells), f"{WITH_POPULATION} {_COUNTED}")


def _of_number(layout: Layout, results: Results, k: int, i: int) -> list[str | Estimate]:
    """Return mean, deviation, near bounds, and with medians the quartiles, of a group."""
    is_date = layout.numbers[i] in layout.dates
    places = [_by_column(layout, results, "mean")[k, i]]
    if "quantiles" in results:
        places += _by_column(layout, results, "quantiles")[k, i].cells()
    # A mean may be 0 in data units, so 0 in its interval does not mean that it is only noise.
    first, *rest = (in_days(replace(one, distinct=np.array(True)), is_date) for one in places)
    deviation = _by_column(layout, results, "deviation")[k, i]
    ends = layout.ticks[i] if layout.ticks else (-np.inf, np.inf)
    near = bounds_near(places[0].value, deviation.value, ends, is_date)
    return [first, in_years(deviation, is_date), near, *rest]


def _differences(layout: Layout, results: Results) -> Iterator[Table]:
    named = [f"{layout.by}={other}" for other in layout.others]
    headings = ("column and group", "difference", "standardised")
    kinds: tuple[tuple[str, Sequence[str], str, str], ...] = (
        ("means", [layout.columns[j] for j in layout.numbers], "difference", "smd"),
        ("shares", layout.levels, "share_difference", "share_smd"),
    )
    for what, names, key, standardised in kinds:
        if names:
            gaps, scaled = (Estimate.of(results, of) for of in (key, standardised))
            rows = [
                (f"{name}, {group}", in_years(gaps[k, i], _is_date(layout, what, i)), scaled[k, i])
                for i, name in enumerate(names)
                for k, group in enumerate(named)
            ]
            title = f"Differences of {what} to {layout.by}={layout.groups[0]}"
            yield Table(title, headings, tuple(rows), WITH_POPULATION)


def _is_date(layout: Layout, what: str, i: int) -> bool:
    return what == "means" and layout.numbers[i] in layout.dates


def _tests(layout: Layout, results: Results) -> Table:
    kinds: tuple[tuple[str, Sequence[int], str], ...] = (
        ("welch", layout.numbers, _WELCH[len(layout.groups) > 2]),
        ("chi2", tuple(layout.factors), "chi-squared test"),
    )
    rows: list[tuple[Cell, ...]] = []
    for key, columns, test in kinds:
        for i, j in enumerate(columns):
            parts: list[Floats] = [results[f"{key}_{part}"][i] for part in ("statistic", "df")]
            p = _p_values(results, key, i)
            rows.append((layout.columns[j], test, *map(float, parts), *p))
    headings = ("column", "test", "statistic", "degrees of freedom", "p", "p after Holm")
    return Table("Tests", headings, tuple(rows), _HOLM)
