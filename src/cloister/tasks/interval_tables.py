"""Tables of released values with their intervals, as reports and command lines show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cloister.core.arrays import Floats, Results
from cloister.core.display import Bars, Curve, Table
from cloister.core.estimate import Estimate, around
from cloister.tasks.population import POPULATION_NOTE

INTERVALS = "[ , ] are 95 % confidence intervals (privacy noise only)."
MARGINS = "± is the margin of error of a 95 % confidence interval (privacy noise only)."
WITH_POPULATION = f"{INTERVALS} {POPULATION_NOTE}"


def number_of(results: Results, name: str, i: int = 0) -> Estimate:
    """Return the i-th number of a result with both ends of its intervals."""
    found = Estimate.of(results, name)
    return found[np.unravel_index(i, found.values.shape)]


def cells_of(results: Results, name: str) -> list[Estimate]:
    """Return all numbers of a result, the last axis varying fastest."""
    return list(Estimate.of(results, name).cells())


def bars_of(
    title: str,
    names: Iterable[str],
    cells: Sequence[Estimate | str],
    note: str = INTERVALS,
    unit: str = "",
) -> Bars:
    """Return a bar for each cell, with its ends; text stands where a number is left out."""
    ends = ([getattr(cell, end, np.nan) for cell in cells] for end in ("values", "low", "high"))
    estimate = Estimate(*map(np.array, ends), labels=(tuple(names),), unit=unit)
    absent = next((cell for cell in cells if isinstance(cell, str)), "not a number")
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
    """Return a table with a column for each result, by its heading, and a row for each entry."""
    cells = zip(rows, *(cells_of(results, name) for name in columns.values()), strict=True)
    return Table(title, (corner, *columns), (*cells,), note)


def table_of_measures(
    title: str, measures: Mapping[str, str], results: Results, note: str
) -> Table:
    """Return a table with a row for each result of one number, by its name."""
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
) -> Curve:
    """Return the i-th row of a result over places, or all its columns, with bands of intervals."""
    found = Estimate.of(results, name)
    part = found.mapped(np.transpose) if i is None else found[i]
    labels = (names, ()) if names else ()
    return Curve(title, places, replace(part, axes=axes[:1], labels=labels, unit=axes[1]), note)


def table_of_count(count: Floats, half_width: Floats) -> Table:
    """Return a table of the noisy number of records."""
    cell = around(count[0], half_width[0])
    return Table("Noisy count", ("", "records"), (("all silos", cell),), MARGINS)
