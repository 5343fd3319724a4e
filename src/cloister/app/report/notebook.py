"""What a notebook shows of a release: a short page, a table to compute with, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from cloister.app.present import present
from cloister.app.release import Release
from cloister.app.report import plots
from cloister.app.text import (
    UNCLEAR_NOTE,
    as_table,
    bar_cells,
    cell_text,
    number,
)
from cloister.core.display import Bars, Between, Curve, Display, Heatmap, Measured, Table
from cloister.core.errors import PlanError
from cloister.core.html import page

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LEGEND = f"± and [ , ] are 95 % confidence intervals (privacy noise only). {UNCLEAR_NOTE}"
_PLACE = ("table", "row", "column")
_NUMBERS = ("value", "low", "high", "population_low", "population_high")


def release_html(name: str, release: Release) -> str:
    """Return the values of a release, its cost and which values differ from noise, as HTML."""
    plan, shown = release.plan, present(release)
    facts = [("unit of privacy", plan.unit_in_words()), ("noise from", release.noise)]
    if plan.budget:
        cost = ("epsilon", number(release.epsilon())), ("delta", f"{plan.budget.delta:.2g}")
        facts = [*cost, *facts]
    remarks = [remark[:1].upper() + remark[1:] for remark in shown.remarks]
    return page(
        "notebook.html",
        title=f"{name} ({plan.task.name})",
        facts=facts,
        remarks=[*shown.warnings, shown.result, shown.reliability, *remarks, _LEGEND],
        tables=[as_table(display) for display in _without_repeats(shown.displays)],
        cell_text=cell_text,
    )


def release_frame(displays: Sequence[Display]) -> pd.DataFrame:
    """Return each number of the displays as a row, with both ends of its 95 % interval."""
    import pandas as pd

    rows = [
        (display.title, *place, *_numbers(cell))
        for display in _without_repeats(displays)
        for *place, cell in _cells(display)
    ]
    frame = pd.DataFrame(rows, columns=[*_PLACE, *_NUMBERS]).set_index(list(_PLACE))
    return frame if frame["population_low"].notna().any() else frame[list(_NUMBERS[:3])]


def release_axes(displays: Sequence[Display], title: str | None = None) -> Axes:
    """Draw the display of a title, or else the first picture; return its axes."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    pictures = {shown.title: shown for shown in displays if not isinstance(shown, Table)}
    chosen = next(iter(pictures), "") if title is None else title
    if chosen not in pictures:
        raise PlanError(
            f"title must be one of {list(pictures)}, got {chosen!r}; to_frame has every number."
            if pictures
            else "this release has no picture; to_frame has its numbers."
        )
    figure = plots.figure_of(pictures[chosen])
    figure.axes[0].set_title(chosen)
    if mpl.__version_info__ >= (3, 11):
        plt.figure(figure)  # a notebook shows what pyplot knows; older ones know their own only
    return figure.axes[0]


def _without_repeats(displays: Sequence[Display]) -> Iterator[Display]:
    """Yield the tables, and the pictures whose numbers are in no table before them."""
    seen: set[tuple[str, tuple[float, ...]]] = set()
    for display in sorted(displays, key=lambda shown: not isinstance(shown, Table)):
        found = {(row, _numbers(cell)) for row, _, cell in _cells(display)}
        if isinstance(display, Table) or not found <= seen:
            yield display
        seen |= found


def _cells(display: Display) -> Iterator[tuple[str, str, float | Measured | Between]]:
    """Yield row, column and value of each number of a display."""
    match display:
        case Table():
            for name, *cells in display.rows:
                for heading, cell in zip(display.headings[1:], cells, strict=True):
                    if not isinstance(cell, str):
                        yield cell_text(name), heading, cell
        case Heatmap(values=values, margin=margin, low=low, high=high):
            for (i, j), at in np.ndenumerate(values):
                value: float | Measured | Between = float(at)
                if low is not None and high is not None:
                    value = Between(float(at), float(low[i, j]), float(high[i, j]))
                elif margin is not None:
                    value = Measured(float(at), float(margin[i, j]))
                yield display.rows[i], display.columns[j], value
        case Bars(names=names):
            for name, cell in zip(names, bar_cells(display), strict=True):
                if not isinstance(cell, str):
                    yield name, display.unit or "value", cell
        case Curve(axes=(x, y), names=names):
            for place, stop in zip(display.places.tolist(), display.cells(), strict=True):
                for heading, cell in zip(names or (y or "value",), stop, strict=True):
                    if not isinstance(cell, str):
                        yield f"{x or 'x'} {number(place)}", heading, cell
        # a Scatter or a Graph is drawn from the numbers of other displays


def _numbers(cell: float | Measured | Between) -> tuple[float, ...]:
    """Return a value and both ends of its interval and of the population's; nan for none."""
    match cell:
        case Between(population=population):
            return cell.value, cell.low, cell.high, *(population or (nan, nan))
        case Measured(value=value, margin=margin):
            return value, value - margin, value + margin, nan, nan
        case _:
            return float(cell), nan, nan, nan, nan
