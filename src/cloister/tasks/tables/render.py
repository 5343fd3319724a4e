"""Displays of tables, means and tests; small counts are suppressed, all others have intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np

from cloister.core.arrays import Flags, Floats, Results
from cloister.core.display import Display, Estimate, Heatmap, PValue, Table
from cloister.tasks.interval_tables import (
    OF_CUT,
    WITH_POPULATION,
    bars_of,
    cells_of,
    in_days,
    number_of,
)
from cloister.tasks.state import part_of
from cloister.tasks.tables.inference import least_shown

Sides = tuple[Sequence[str], Sequence[tuple[str, ...]]]
"""Names of the columns of a table, and of the levels of each."""
_WRITTEN, _BARS = 120, 30  # most cells of a table one below the other, and bars of a picture
_TESTS = {"chi2": "independence", "trend": "trend"}
_RATIOS = {"odds_ratio": "odds ratio", "relative_risk": "relative risk"}
_HOLM = (
    "A p-value is the probability of a statistic at least this large, noise included, if rows and "
    "columns were independent. Each statistic is divided by a variance with noise, so it is "
    "usually smaller than that of exact counts. Holm's correction covers all tests here together."
)


def table_displays(sides: Sides, found: Results, minimum: float) -> Iterator[Display]:
    """Yield pictures of the counts of a table, and a table with one cell per row."""
    names, labels = sides
    title = f"Records by {' by '.join(names)}"
    # Raw counts can be below the projected ones and the reverse; neither may be displayed if small.
    least = np.minimum(found["counts"], found["shown"])
    hidden, absent, note = _hidden(least, found["noise"], minimum)
    counts = cells_of({**found, "counts": found["shown"]}, "counts")
    if len(names) == 1:
        yield bars_of(title, labels[0], _kept(counts, hidden, absent), note, "records")
    ends = (found[name] for name in ("shown", "counts_low", "counts_high"))
    # NaN instead of a count: a heat map must not colour a cell that the table suppresses.
    cells = Estimate(*(np.where(hidden, np.nan, end) for end in ends))
    for k, label in enumerate(labels[2] if len(names) > 2 else ("",)[: len(names) - 1]):
        of, sheet = (f": {label}", cells[..., k]) if label else ("", cells)
        sides_of = replace(sheet, labels=(tuple(labels[0]), tuple(labels[1])))
        yield Heatmap(f"{title}{of}", sides_of, note, absent=absent)
    if hidden.size <= _WRITTEN:
        share = ("row_shares", "share of its row") if len(names) > 1 else ("shares", "share")
        both = (_kept(counts, hidden, absent), _kept(cells_of(found, share[0]), hidden, ""))
        rows = zip(map(", ".join, product(*labels)), *both, strict=True)
        headings = (" by ".join(names), "records", share[1])
        yield Table(f"{title}, with shares", headings, (*rows,), note)


def mean_displays(
    names: Sequence[str], by: Sides, found: Results, minimum: float, dates: Sequence[str] = ()
) -> Iterator[Display]:
    """Yield a table of the means of each group, and bars for each column but `dates`."""
    title, groups = " by ".join(["Means", *by[0]]), tuple(map(", ".join, product(*by[1])))
    hidden, absent, note = _hidden(found["group_counts"][:, 0], found["group_noise"], minimum)
    of_groups = Estimate.of(found, "means")
    # A mean may be 0 in data units, so 0 in its interval does not mean that it is only noise.
    means = list(replace(of_groups, distinct=np.ones(of_groups.values.shape, dtype=bool)).cells())
    columns = [
        _kept([in_days(m, name in dates) for m in means[j :: len(names)]], hidden, "")
        for j, name in enumerate(names)
    ]
    sizes = _kept(cells_of(found, "group_counts"), hidden, absent)
    rows = zip((group or "all records" for group in groups), sizes, *columns, strict=True)
    yield Table(title, ("group", "records", *names), (*rows,), f"{note} {OF_CUT}")
    if 1 < len(groups) <= _BARS:
        for name, column in zip(names, columns, strict=True):
            if name in dates:
                continue  # bars would begin in the year 0
            cells = [cell or absent for cell in column]
            yield bars_of(f"{title}: {name}", groups, cells, note, name)


def test_displays(tables: Mapping[str, Sides], results: Results) -> Iterator[Table]:
    """Yield the tests and the ratios of all tables, given by the prefix of their results."""
    tests: list[tuple[str | float, ...]] = []
    ratios: list[tuple[str | Estimate, ...]] = []
    for prefix, (names, labels) in tables.items():
        found, title = part_of(results, prefix), " by ".join(names)
        for name, text in (_TESTS | _RATIOS).items():
            if f"{name}_p" in found:
                ends = ("statistic", "df", "p", "holm")
                numbers = [float(found[f"{name}_{end}"][0]) for end in ends]
                tests.append((title, text, *numbers[:2], *map(PValue, numbers[2:])))
            if name in _RATIOS and name in found:
                of = f"{names[1]}={labels[1][-1]}, {names[0]}={labels[0][-1]} over {labels[0][0]}"
                ratios.append((f"{text} of {of}", number_of(found, name)))
    if ratios:
        yield Table("Ratios", ("ratio", "value"), tuple(ratios), WITH_POPULATION)
    if tests:
        headings = ("table", "test of", "statistic", "degrees of freedom", "p", "p after Holm")
        yield Table("Tests", headings, tuple(tests), _HOLM)


def _kept(cells: Sequence[Estimate], hidden: Flags, absent: str) -> list[Estimate | str]:
    return [absent if left else cell for cell, left in zip(cells, hidden.flat, strict=True)]


def _hidden(counts: Floats, noise: Floats, minimum: float) -> tuple[Flags, str, str]:
    """Return the mask of cells that are too small to display, their placeholder and a note."""
    least = float(least_shown(noise[0], minimum))
    hidden, absent = np.asarray(counts < least), f"<{ceil(least)}"
    # Stated in the report, since readers may take suppression for the protection.
    note = f"{WITH_POPULATION} {absent}: a noisy count too small to be informative. Suppression is "
    note += "cosmetic: privacy comes from the noise, and totals may reveal the value."
    return hidden, absent, note if hidden.any() else WITH_POPULATION
