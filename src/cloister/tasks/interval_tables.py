"""Tables of released values with their intervals, as reports and command lines show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cloister.core.arrays import Floats, Results
from cloister.core.display import Bars, Between, Curve, Measured, Table
from cloister.tasks.population import ENDS, POPULATION_NOTE

INTERVALS = "[ , ] are 95 % confidence intervals (privacy noise only)."
MARGINS = "± is the margin of error of a 95 % confidence interval (privacy noise only)."
WITH_POPULATION = f"{INTERVALS} {POPULATION_NOTE}"


def between(results: Results, name: str, i: int = 0) -> Between:
    """Return the i-th number of a result with both ends of its intervals."""

    def numbers(*ends: str) -> list[float]:
        return [float(results[name + end].ravel()[i]) for end in ends if name + end in results]

    value, low, high = numbers("", "_low", "_high")
    wide = numbers(*ENDS)
    return Between(value, low, high, population=(wide[0], wide[1]) if wide else None)


def cells_of(results: Results, name: str) -> list[Between]:
    """Return all numbers of a result, the last axis varying fastest."""
    return [between(results, name, i) for i in range(results[name].size)]


def bars_of(
    title: str,
    names: Iterable[str],
    cells: Sequence[Between | str],
    note: str = INTERVALS,
    unit: str = "",
) -> Bars:
    """Return a bar for each cell, with its ends; text stands where a number is left out."""
    value, low, high = (
        np.array([getattr(cell, end, np.nan) for cell in cells]) for end in ("value", "low", "high")
    )
    absent = next((cell for cell in cells if isinstance(cell, str)), "not a number")
    return Bars(title, tuple(names), value, None, unit, note, low, high, absent)


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
    rows = tuple((text, between(results, name)) for text, name in measures.items())
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
    value, low, high, *wide = (
        results[name + end].T if i is None else results[name + end][i]
        for end in ("", "_low", "_high", *ENDS)
        if name + end in results
    )
    population = (wide[0], wide[1]) if wide else None
    curve = Curve(title, places, value, low, high, axes=axes, note=note, names=names)
    return replace(curve, population=population)


def table_of_count(count: Floats, half_width: Floats) -> Table:
    """Return a table of the noisy number of records."""
    cell = Measured(float(count[0]), float(half_width[0]))
    return Table("Noisy count", ("", "records"), (("all silos", cell),), MARGINS)
