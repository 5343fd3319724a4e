"""``Answer``: the first screen of a release as plain values, for a page that draws it itself."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from cloister.app.present import Presentation
from cloister.app.report import plots
from cloister.app.text import as_table, cell_text
from cloister.core.declared import declared
from cloister.core.display import Table
from cloister.core.errors import DataError
from cloister.core.files import read_json, write_text

MOST_ROWS = 15
"""Rows of the table; the report has all of them."""


@declared
class Answer:
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
    picture, label, title : str
        The first picture as SVG, its alternative text and title; empty if there is none.
    width : int
        Width of the picture, pixels.
    """

    lines: tuple[tuple[str, str], ...]
    caption: str = ""
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    all_rows: int = 0
    picture: str = ""
    label: str = ""
    width: int = 0
    title: str = ""

    def save(self, path: Path) -> None:
        """Write the answer as JSON."""
        write_text(path, json.dumps(asdict(self), ensure_ascii=False, allow_nan=False))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the answer in a file; raise DataError or PlanError if it holds none."""
        try:
            return cls(**read_json(path, "answer"))
        except TypeError:
            raise DataError(f"answer {str(path)!r} has other fields.") from None


def answer_of(shown: Presentation) -> Answer:
    """Return the first screen of a presentation, which has released values alone."""
    values: dict[str, Any] = {"lines": shown.lines}
    tables = [one for one in shown.displays if isinstance(one, Table)]
    pictures = [one for one in shown.displays if not isinstance(one, Table)]
    if pictures and plots.can_draw():
        picture = plots.draw(pictures[0], "answer")
        width = re.search(r"max-width:(\d+)px", picture)
        values |= {"picture": picture, "label": plots.alt_text(pictures[0])}
        values |= {"width": int(width[1]) if width else 700, "title": pictures[0].title}
    if shown.displays:
        # A table of one row is often a number of records.
        longer = [table for table in tables if len(table.rows) > 1]
        table = as_table([*longer, *tables, *pictures][0])
        rows = tuple(tuple(map(cell_text, row)) for row in table.rows[:MOST_ROWS])
        values |= {"caption": table.title, "headings": table.headings, "rows": rows}
        values["all_rows"] = len(table.rows)
    return Answer(**values)
