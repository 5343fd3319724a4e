"""How tables, means and tests are shown: small counts are left out, all others have intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf

import numpy as np

from cloister.arrays import Flags, Results
from cloister.display import Bars, Between, Display, Heatmap, Table
from cloister.tasks.interval_tables import WITH_POPULATION, between
from cloister.tasks.state import part_of
from cloister.tasks.tables.inference import NO_BOUND, least_shown

_WRITTEN = 120  # cells that a table of the report has, one below the other
_BARS = 30
_TESTS = {"chi2": "independence", "trend": "trend"}
_RATIOS = {"odds_ratio": "odds ratio", "relative_risk": "relative risk"}
_HOLM = (
    "A p-value is the chance of such a statistic, noise included, if rows and columns had nothing "
    "to do with each other. After Holm's correction, all tests here may be looked at together."
)


def table_displays(
    names: Sequence[str], labels: Sequence[tuple[str, ...]], found: Results, minimum: float
) -> Iterator[Display]:
    """Yield pictures of the counts of a table, and its numbers one below the other."""
    title = f"Records by {' by '.join(names)}"
    hidden, absent, note = _hidden(
        np.minimum(found["counts"], found["shown"]), found["noise"], minimum
    )
    values, low, high = (
        np.where(hidden, np.nan, found[name]) for name in ("shown", "counts_low", "counts_high")
    )
    if len(names) == 1:
        yield Bars(title, labels[0], values, None, "records", note, low, high, absent)
    for k, label in enumerate(labels[2] if len(names) > 2 else ("",)[: len(names) - 1]):
        at = (..., k) if label else ...
        yield Heatmap(
            f"{title}: {label}" if label else title,
            labels[0],
            labels[1],
            values[at],
            note=note,
            low=low[at],
            high=high[at],
            absent=absent,
        )
    if values.size > _WRITTEN:
        return
    share, heading = ("row_shares", "share of its row") if len(names) > 1 else ("shares", "share")
    rows = tuple(
        (", ".join(cell), absent, "")
        if hidden.flat[i]
        else (
            ", ".join(cell),
            replace(between(found, "counts", i), value=float(found["shown"].flat[i])),
            between(found, share, i),
        )
        for i, cell in enumerate(product(*labels))
    )
    yield Table(f"{title}, with shares", (" by ".join(names), "records", heading), rows, note)


def mean_displays(
    names: Sequence[str], by: str, groups: Sequence[str], found: Results, minimum: float
) -> Iterator[Display]:
    """Yield a table of the means of each group, and bars of each column's."""
    title = f"Means by {by}" if by else "Means"
    sizes = found["group_counts"][:, 0]
    hidden, absent, note = _hidden(sizes, found["group_noise"], minimum)
    rows = tuple(
        (group, absent, *("" for _ in names))
        if hidden[i]
        else (
            group or "all records",
            between(found, "group_counts", i),
            *(
                replace(between(found, "means", i * len(names) + j), known=True)
                for j in range(len(names))
            ),
        )
        for i, group in enumerate(groups)
    )
    yield Table(title, ("group", "records", *names), rows, note)
    if 1 < len(groups) <= _BARS:
        for j, name in enumerate(names):
            values, low, high = (
                np.where(hidden, np.nan, found[f"means{end}"][:, j])
                for end in ("", "_low", "_high")
            )
            yield Bars(
                f"{title}: {name}", tuple(groups), values, None, name, note, low, high, absent
            )


def test_displays(
    tables: Mapping[str, tuple[Sequence[str], Sequence[tuple[str, ...]]]], results: Results
) -> Iterator[Table]:
    """Yield the tests of all tables, and ratios of those that have any.

    `tables` has names and labels of the columns, by what stands before the names of results.
    """
    tests, ratios = [], []
    for prefix, (names, labels) in tables.items():
        found, title = part_of(results, prefix), " by ".join(names)
        for name, text in (_TESTS | _RATIOS).items():
            if f"{name}_p" in found:
                ends = ("statistic", "df", "p", "holm")
                tests.append((title, text, *(float(found[f"{name}_{end}"][0]) for end in ends)))
            if name in _RATIOS and name in found:
                of = f"{names[1]}={labels[1][-1]}, {names[0]}={labels[0][-1]} over {labels[0][0]}"
                ratios.append((f"{text} of {of}", _ratio(between(found, name))))
    if ratios:
        yield Table("Ratios", ("ratio", "value"), tuple(ratios), WITH_POPULATION)
    if tests:
        headings = ("table", "test of", "statistic", "degrees of freedom", "p", "p after Holm")
        yield Table("Tests", headings, tuple(tests), _HOLM)


def _hidden(counts: np.ndarray, noise: np.ndarray, minimum: float) -> tuple[Flags, str, str]:
    """Return which cells are too small to be shown, what stands for them, and a note on it."""
    least = float(least_shown(noise[0], minimum))
    hidden = np.asarray(counts < least)
    if not hidden.any():
        return hidden, "", WITH_POPULATION
    absent = f"<{ceil(least)}"
    return (
        hidden,
        absent,
        f"{WITH_POPULATION} {absent}: a small noisy count, which says little. That it is left out "
        "protects nobody: the noise does, and totals may give it away.",
    )


def _ratio(cell: Between) -> Between:
    """Return a ratio, which stands out where 1 is not in its interval, with its open ends."""
    value, high, *wide = (
        inf if end >= NO_BOUND else end for end in (cell.value, cell.high, *(cell.population or ()))
    )
    known = not cell.low <= 1 <= high
    ends = (wide[0], wide[1]) if wide else None
    return Between(value, cell.low, high, population=ends, known=known)
