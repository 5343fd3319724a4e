"""``Answer``: the first screen of a release as plain values, for a page that draws it itself."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from cloister.app.present import Presentation
from cloister.app.report import plots
from cloister.app.text import as_table, cell_text
from cloister.core.display import Table

MOST_ROWS = 15
"""Rows of the table; the report has all of them."""


class Answer(BaseModel):
    """Sentences, one picture and the main table of a release.

    Parameters
    ----------
    lines : tuple of (name, sentence)
        Those of :attr:`~cloister.app.present.Presentation.lines`.
    caption : str
        Title of the table.
    headings : tuple of str
    rows : tuple of tuple of str
        The first rows of the table.
    all_rows : int
        Number of rows in the report.
    picture, label : str
        The first picture as SVG and its alternative text; empty if there is none.
    width : int
        Width of the picture, pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lines: tuple[tuple[str, str], ...]
    caption: str = ""
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    all_rows: int = 0
    picture: str = ""
    label: str = ""
    width: int = 0


def answer_of(shown: Presentation) -> Answer:
    """Return the first screen of a presentation, which has released values alone."""
    values: dict[str, object] = {"lines": shown.lines}
    tables = [one for one in shown.displays if isinstance(one, Table)]
    pictures = [one for one in shown.displays if not isinstance(one, Table)]
    if pictures:
        picture = plots.draw(pictures[0], "answer")
        width = re.search(r"max-width:(\d+)px", picture)
        values |= {"picture": picture, "label": plots.alt_text(pictures[0])}
        values["width"] = int(width[1]) if width else 700
    if shown.displays:
        # A table of one row is often a number of records.
        longer = [table for table in tables if len(table.rows) > 1]
        table = as_table([*longer, *tables, *pictures][0])
        rows = tuple(tuple(map(cell_text, row)) for row in table.rows[:MOST_ROWS])
        values |= {"caption": table.title, "headings": table.headings, "rows": rows}
        values["all_rows"] = len(table.rows)
    return Answer.model_validate(values)
