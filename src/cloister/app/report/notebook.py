"""Release in a notebook: a short page, a data frame for further computation, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING

from cloister.app.present import present
from cloister.app.release import Release
from cloister.app.report import plots
from cloister.app.text import BRACKETS_NOTE, UNCLEAR_NOTE, as_table, cell_text
from cloister.core.dates import as_days
from cloister.core.display import DATE, Bars, Curve, Display, Estimate, Heatmap, Table
from cloister.core.errors import PlanError
from cloister.core.html import page
from cloister.core.numerals import day, number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LEGEND = f"{BRACKETS_NOTE} {UNCLEAR_NOTE}"
_PLACE = ("table", "row", "column")
_MARK = "mark"
_NUMBERS = ("value", "low", "high", "population_low", "population_high")


def release_html(name: str, release: Release) -> str:
    """Return the values of a release, its cost and which values differ from noise, as HTML."""
    plan, presentation = release.plan, present(release)
    facts = [("unit of privacy", plan.unit_in_words()), ("noise from", release.noise)]
    if plan.budget:
        cost = ("epsilon", number(release.epsilon())), ("delta", f"{plan.budget.delta:.2g}")
        facts = [*cost, *facts]
    remarks = [remark[:1].upper() + remark[1:] for remark in presentation.remarks]
    said = (*presentation.warnings, presentation.result, presentation.reliability, *remarks)
    return displays_html(f"{name} ({plan.task.name})", facts, said, presentation.displays)


def displays_html(
    title: str,
    facts: Sequence[tuple[str, str]],
    remarks: Sequence[str],
    displays: Sequence[Display],
) -> str:
    """Return displays as HTML, below named facts and sentences."""
    return page(
        "notebook.html",
        title=title,
        facts=facts,
        remarks=[*remarks, _LEGEND],
        tables=[as_table(display) for display in without_repeats(displays)],
        cell_text=cell_text,
    )


def release_frame(displays: Sequence[Display]) -> pd.DataFrame:
    """Return each number of the displays as a row, with both ends of its 95 % interval."""
    # Imported here: a report and a command need no data frame.
    import pandas as pd

    rows = [
        (display.title, row, column, *_written(cell), marks.get(row, ""))
        for display in without_repeats(displays)
        for marks in [_marks(display)]
        for row, column, cell in _cells(display)
    ]
    frame = pd.DataFrame(rows, columns=[*_PLACE, *_NUMBERS, _MARK]).set_index(list(_PLACE))
    # Most tasks have no population intervals or marks, and empty columns would hide the others.
    shown = _NUMBERS if frame["population_low"].notna().any() else _NUMBERS[:3]
    return frame[[*shown, *[_MARK] * bool(frame[_MARK].any())]]


def table_frame(displays: Sequence[Display], title: str) -> pd.DataFrame:
    """Return the display with a title as a table of texts, as in a report."""
    import pandas as pd

    tables = {shown.title: shown for shown in without_repeats(displays)}
    if title not in tables:
        raise PlanError(f"title must be one of {list(tables)}, got {title!r}.")
    table = as_table(tables[title])
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    frame = pd.DataFrame(rows, columns=list(table.headings))
    return frame.set_index(table.headings[0])


def release_axes(displays: Sequence[Display], title: str | None = None) -> Axes:
    """Draw the display with a title, or the first picture, and return its axes."""
    pictures = {shown.title: shown for shown in displays if not isinstance(shown, Table)}
    chosen = next(iter(pictures), "") if title is None else title
    if chosen not in pictures:
        raise PlanError(
            f"title must be one of {list(pictures)}, got {chosen!r}; to_frame has every number."
            if pictures
            else "this release has no picture; to_frame has its numbers."
        )
    figure = plots.figure_of(pictures[chosen])
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    figure.axes[0].set_title(chosen)
    if mpl.__version_info__ >= (3, 11):
        plt.figure(figure)  # a notebook shows figures of pyplot; older ones refuse another figure
    return figure.axes[0]


def without_repeats(displays: Sequence[Display]) -> Iterator[Display]:
    """Yield the tables, and the pictures with a number that is in no table."""
    # A page of a notebook is short, and several tasks show one result twice.
    seen: set[tuple[str, tuple[float, ...]]] = set()
    for display in sorted(displays, key=lambda shown: not isinstance(shown, Table)):
        cells = [(row, heading, _numbers(cell)) for row, heading, cell in _cells(display)]
        values = {(row, numbers) for row, _, numbers in cells}
        if isinstance(display, Table) or not values <= seen:
            yield display
        # A picture has one name for a row and a column of a table.
        seen |= values | {(f"{row}, {heading}", numbers) for row, heading, numbers in cells}


def _cells(display: Display) -> Iterator[tuple[str, str, float | Estimate]]:
    """Yield row, column and value of each number of a display."""
    match display:
        case Table():
            keys, first = _row_keys(display)
            for key, row in zip(keys, display.rows, strict=True):
                cells = list(zip(display.headings, row, strict=True))
                for (before, named), (heading, cell) in pairwise(cells[first - 1 :]):
                    if not isinstance(cell, str):
                        # "its" is the text before, which has no number and no place in a frame.
                        of = f"{before} {named}, " if heading.startswith("its ") else ""
                        yield key, f"{of}{heading}", cell
        case Heatmap() | Bars() | Curve():
            name, *headings = display.headings
            seen = set[float]()
            for place, numbers in display.numbers():
                if not isinstance(place, str):
                    if place in seen:  # a cell of no width has its place twice
                        continue
                    seen.add(place)
                    dates = isinstance(display, Curve) and display.dates
                    place = f"{name} {day(place) if dates else number(place)}"
                for heading, cell in zip(headings, numbers, strict=True):
                    if isinstance(display, Heatmap) or not isnan(cell.value):
                        yield place, heading, cell
        # Scatter and Graph are omitted: their numbers are in other displays.


def _marks(display: Display) -> dict[str, str]:
    """Return the texts without a heading, such as "interval not valid", by the row of a table."""
    if not isinstance(display, Table):
        return {}
    keys, first = _row_keys(display)
    texts = (
        [
            cell
            for heading, cell in zip(display.headings[first:], row[first:], strict=True)
            if not heading and isinstance(cell, str)
        ]
        for row in display.rows
    )
    return {key: "; ".join(filter(None, found)) for key, found in zip(keys, texts, strict=True)}


def _row_keys(table: Table) -> tuple[list[str], int]:
    """Return a name of each row, and the number of columns in it: as few as make names unique."""
    keys = [cell_text(row[0]) for row in table.rows]
    for j, heading in enumerate(table.headings[1:], 1):
        cells = [row[j] for row in table.rows]
        if len(set(keys)) == len(keys) or any(isinstance(cell, Estimate) for cell in cells):
            return keys, j
        keys = [f"{k}, {heading} {cell_text(c)}" for k, c in zip(keys, cells, strict=True)]
    return keys, len(table.headings)


def _written(cell: float | Estimate) -> tuple[float | date, ...]:
    """Return the numbers of a cell; those of a date as days, where they are known."""
    values = _numbers(cell)
    if not isinstance(cell, Estimate) or cell.unit != DATE:
        return values
    return as_days(values)


def _numbers(cell: float | Estimate) -> tuple[float, ...]:
    """Return a value, and both ends of its interval and population interval; nan if absent."""
    value, *ends = cell.numbers if isinstance(cell, Estimate) else (float(cell),)
    known = [nan if isnan(end) else end for end in ends]  # this nan is equal to itself in a tuple
    return (value, *known, *(nan,) * (4 - len(ends)))
