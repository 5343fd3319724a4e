"""Tables and charts of released values with their intervals, for reports and commands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cloister.core.arrays import Floats, Results
from cloister.core.dates import nearest_day
from cloister.core.display import DATE, Bars, Cell, Curve, Estimate, Table, around
from cloister.core.numerals import NOT_KNOWN
from cloister.tasks.population import POPULATION_NOTE

SIGNIFICANT = 0.05
"""A summary calls a difference shown below this p-value."""
SAID = 3
"""A summary names so many columns."""
_EXACT = 0.1  # of its value: the half-width of a number that a summary calls exact
INTERVALS = "[ , ] are 95 % confidence intervals (privacy noise only)."
MARGINS = "± is the margin of error of a 95 % confidence interval (privacy noise only)."
WITH_POPULATION = f"{INTERVALS} {POPULATION_NOTE}"
OF_CUT = (
    "A value beyond the bounds of its column counts at the bound, so means describe cut values."
)
"""The note of means. Their intervals do not allow for what the bounds cut away."""
CLIPPED = "clipped to"
"""The heading of :func:`bounds_near`."""
NEAR_NOTE = "'clipped to' has the bounds of a column if one is within 3 deviations of the mean."
"""The note of such a column."""
_NEAR = 3  # deviations from a mean: beyond a bound farther away, a bell has 0.1 % of its values


def number_of(results: Results, name: str, i: int = 0) -> Estimate:
    """Return the i-th number of a result with its intervals."""
    estimate = Estimate.of(results, name)
    return estimate[np.unravel_index(i, estimate.values.shape)]


def in_days(estimate: Estimate, is_date: bool, unit: str = DATE) -> Estimate:
    """Return an estimate whose text is a date, or with `YEARS` a length of time, if it is one."""
    return replace(estimate, unit=unit) if is_date else estimate


def bounds_near(mean: float, deviation: float, ends: Sequence[float], is_date: bool) -> str:
    """Return both public bounds as text if one is within 3 deviations of the mean, else ""."""
    low, high, *_ = ends
    # A deviation that is not known says nothing of the bounds.
    if not min(mean - low, high - mean) < _NEAR * deviation:
        return ""
    return " to ".join(str(nearest_day(end)) if is_date else f"{end:g}" for end in (low, high))


def listing(parts: Iterable[Sequence[Cell]]) -> tuple[Cell, ...]:
    """Return parts of a sentence with commas between them."""
    joined: list[Cell] = []
    for part in parts:
        joined += [*([", "] if joined else []), *part]
    return tuple(joined)


def undated(columns: Sequence[int], dates: Collection[int]) -> list[int]:
    """Return the places of columns without dates, since a tenth of 2024 is 202 years."""
    return [place for place, j in enumerate(columns) if j not in dates]


def precision(estimates: Iterable[Estimate]) -> str:
    """Return a sentence on how many numbers have a short interval, or "" without numbers."""
    ends = [one.of_population for one in estimates]
    widths = np.concatenate([[0.0] * 0, *(np.ravel(one.high - one.low) / 2 for one in ends)])
    values = np.concatenate([[0.0] * 0, *(np.abs(np.ravel(one.values)) for one in ends)])
    if not len(values):
        return ""
    exact = int(np.count_nonzero(widths <= _EXACT * values))
    return (
        f"{exact} of {len(values)} numbers are exact to a tenth of their value (95 %, with "
        "noise and sampling)."
    )


def cells_of(results: Results, name: str) -> list[Estimate]:
    """Return all numbers of a result, the last axis varying fastest."""
    return list(Estimate.of(results, name).cells())


def bars_of(
    title: str,
    names: Iterable[str],
    cells: Sequence[Estimate | str],
    note: str | None = None,
    unit: str = "",
) -> Bars:
    """Return a bar with its intervals for each cell; a cell without a number has a text.

    By default, the note names what the intervals cover, if that is noise alone. With population
    intervals, the report writes a note for the drawing, and another for its numbers.
    """
    arrays = tuple(
        np.array([getattr(cell, part, np.nan) for cell in cells])
        for part in ("values", "low", "high")
    )
    found = [cell for cell in cells if isinstance(cell, Estimate)]
    wide = None
    if any(cell.population for cell in found):
        none = (np.nan, np.nan)
        pairs = [getattr(cell, "population", None) or none for cell in cells]
        wide = (np.array([low for low, _ in pairs]), np.array([high for _, high in pairs]))
    if note is None:
        note = "" if wide else INTERVALS
    # A chart draws NaN as a gap; the text in the gap comes from the first cell without a number.
    null = found[0].null if found else 0.0
    estimate = Estimate(*arrays, population=wide, labels=(tuple(names),), unit=unit, null=null)
    absent = next((cell for cell in cells if isinstance(cell, str)), NOT_KNOWN)
    return Bars(title, estimate, note, absent)


def table_of(
    title: str,
    rows: Sequence[str],
    columns: Mapping[str, str],
    results: Results,
    note: str,
    *,
    corner: str = "",
) -> Table:
    """Return a table with a column per result and a row per entry.

    `columns` maps the heading of a column to the name of a result.
    """
    cells = zip(rows, *(cells_of(results, name) for name in columns.values()), strict=True)
    return Table(title, (corner, *columns), (*cells,), note)


def table_of_measures(
    title: str, measures: Mapping[str, str], results: Results, note: str
) -> Table:
    """Return a table with a row per scalar result; `measures` maps its text to its name."""
    rows = tuple((text, number_of(results, name)) for text, name in measures.items())
    return Table(title, ("measure", "value"), rows, note)


def curve_of(
    title: str,
    places: Floats,
    results: Results,
    name: str,
    i: int | None = None,
    *,
    axes: tuple[str, str],
    note: str,
    names: tuple[str, ...] = (),
    dates: bool = False,
) -> Curve:
    """Return the curve of the i-th row of a result over `places`, with bands of its intervals.

    Without `i`, the curves of all columns of the result are returned.
    """
    estimate = Estimate.of(results, name)
    shown = estimate.mapped(np.transpose) if i is None else estimate[i]
    labels = (names, ()) if names else ()
    named = replace(shown, axes=axes[:1], labels=labels, unit=axes[1])
    return Curve(title, places, named, note, dates=dates)


def table_of_count(count: Floats, half_width: Floats) -> Table:
    """Return a table of the noisy number of records."""
    # The interval of a count is symmetric, so the margin of error is its half-width.
    cell = around(count[0], half_width[0], normal=True)
    return Table("Noisy count", ("", "records"), (("all silos", cell),), MARGINS)
