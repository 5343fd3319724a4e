"""From readings of many runs to rows, and from a row to its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

import numpy as np

from cloister_lab.experiments.records import TidyRow, number
from cloister_lab.experiments.yardstick.readings import Reading

LOW, LOW_AGAIN = 0.93, 0.90
"""Coverage below the first is measured again with fresh noise, and must then reach the second."""
WIDE = 1.7
"""Greatest width over the width that would have been needed."""
TYPE_ONE, BEYOND_EXACT = 0.075, 0.01
"""Greatest share of false alarms of a test at 5 %, or above that of the exact test."""
FEWEST = 20
"""Fewest known numbers of a row that is judged."""
RARELY = "listed in fewer than half of the runs"
_ALPHA = 0.05


@dataclass(frozen=True)
class Row:
    """What the runs of a cell say of one number.

    Parameters
    ----------
    kind : {"noise", "population", "test", "cell"}
        A test has p-values; a row of a cell counts its refusals.
    runs : int
        How often it was released, or asked for.
    known : int
        How often the release gave an interval.
    held : int
        How often that held the target, or how often a test did not reject.
    half, needed : float
        Mean half-width; and the 95 % quantile of the error, at least the mean gap of the answers:
        among tied values an estimate is exact or a whole gap off.
    planned, off : int
        How many intervals had a forecast, and how many were not as wide as planned.
    exact : float
        Share of rejections of the exact test on the same records.
    """

    name: str
    kind: str
    runs: int
    known: int
    held: int
    half: float = nan
    needed: float = nan
    exact: float = nan
    planned: int = 0
    off: int = 0
    refused: int = 0
    sentence: str = ""

    @property
    def coverage(self) -> float:
        """Share of known intervals that hold the target, or of tests that do not reject."""
        return self.held / self.known if self.known else nan

    @property
    def unknown(self) -> float:
        """Share of runs without an interval."""
        return 1 - self.known / self.runs if self.runs else nan

    @property
    def width(self) -> float:
        """Half-width over the one that would have held the target in 95 % of the runs."""
        return self.half / self.needed if self.needed > 0 else nan


def rows_of(runs: Sequence[Sequence[Reading]]) -> list[Row]:
    """Return a row for each number and kind, in the order of their first reading.

    Numbers that fewer than half of the runs list share a row. A rule is listed because its noisy
    support is large, so its own coverage given the listing is below that of all that are listed.
    """
    found: dict[tuple[str, str], list[Reading]] = {}
    for run in runs:
        for reading in run:
            found.setdefault((reading.name, reading.kind), []).append(reading)
    often = {key: of for key, of in found.items() if 2 * len(of) >= len(runs)}
    rare: dict[tuple[str, str], list[Reading]] = {}
    for (name, kind), of in found.items():
        if (name, kind) not in often:
            rare.setdefault((RARELY, kind), []).extend(of)
    return [_row(name, kind, of) for (name, kind), of in {**often, **rare}.items()]


def _row(name: str, kind: str, of: Sequence[Reading]) -> Row:
    known = [reading for reading in of if reading.known]
    if not known:
        return Row(name, kind, len(of), 0, 0)
    return Row(
        name,
        kind,
        len(of),
        len(known),
        sum(reading.held for reading in known),
        half=float(np.mean([reading.half for reading in known])),
        needed=float(
            max(
                np.quantile([reading.error for reading in known], 0.95),
                np.mean([reading.gap for reading in known]),
            )
        ),
        planned=sum(reading.planned is not None for reading in known),
        off=sum(reading.is_off_plan for reading in known),
    )


def alarms_of(
    released: Sequence[Mapping[str, float]], exact: Sequence[Mapping[str, float]]
) -> list[Row]:
    """Return a row for each test, from p-values on records whose null hypothesis is true."""
    names = dict.fromkeys(name for run in released for name in run)
    made = []
    for name in names:
        p = [run[name] for run in released if name in run]
        known = [value for value in p if not isnan(value)]
        held = sum(value > _ALPHA for value in known)
        alarms = [run[name] <= _ALPHA for run in exact if name in run]
        share = float(np.mean(alarms)) if alarms else nan
        made.append(Row(name, "test", len(p), len(known), held, exact=share))
    return made


def as_cells(row: Row) -> dict[str, str | int | float | None]:
    """Return a row as fields of a file, where what is not a number is empty."""
    return {
        name: None if isinstance(value, float) and isnan(value) else value
        for name, value in vars(row).items()
    }


def from_cells(cells: TidyRow) -> Row:
    """Return the row that a line of a file holds."""
    name, kind, sentence = (str(cells[key] or "") for key in ("name", "kind", "sentence"))
    counts = ("runs", "known", "held", "planned", "off", "refused")
    runs, known, held, planned, off, refused = (int(cells[key] or 0) for key in counts)
    half, needed, exact = (number(cells, key) for key in ("half", "needed", "exact"))
    found = (name, kind, runs, known, held, half, needed, exact, planned, off, refused, sentence)
    return Row(*found)


def is_known(row: Row) -> bool:
    """Return whether a row has enough intervals to show its coverage and width."""
    return row.known >= min(FEWEST, row.runs)


def needs_again(row: Row) -> bool:
    """Return whether the coverage of a row calls for fresh noise."""
    return row.known >= FEWEST and row.coverage < LOW


def pending(row: Row, again: Row | None) -> bool:
    """Return whether runs with fresh noise must decide on a row, and are not there."""
    return needs_again(row) and again is None


def failure(row: Row, again: Row | None = None) -> str:
    """Return how a row fails, or an empty text; low coverage alone is no failure yet.

    Parameters
    ----------
    again : Row, optional
        The same number in runs with fresh noise, which decide if the coverage was low.
    """
    if row.known < FEWEST:
        return ""
    if needs_again(row) and again is not None:
        if row.kind == "test":
            alarms = 1 - again.coverage
            # Without an exact test the comparison is with not a number, and false.
            if alarms > TYPE_ONE and not alarms <= again.exact + BEYOND_EXACT:
                return f"type I error {alarms:.3f}"
        elif again.coverage < LOW_AGAIN:
            return f"coverage {again.coverage:.3f}"
    width = (again or row).width
    return f"width {width:.2f}" if width > WIDE else ""
