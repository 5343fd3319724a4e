"""The text of a report as Markdown, which Pandoc and others turn into documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cloister.app.report.contents import Contents, Pairs
from cloister.app.text import cell_text
from cloister.core.display import Cell, Table
from cloister.core.html import clean

_LONG = 100  # rows of a table that follows the shorter ones, since a text does not scroll
# Brackets and digits stay readable: only a link needs "](", and only a line's begin makes a list.
_MARKS = re.compile(r"[\\`*_{<|~^$&]|(?<=\])[(:\[]")
_BEGINS = re.compile(r"^(\d+(?=[.)])|(?=[-+=:#>]))")


def as_markdown(contents: Contents) -> str:
    """Return a report as Markdown with tables of pipes; names cannot become marks or HTML."""
    return "\n\n".join(_parts(contents)) + "\n"


def _parts(report: Contents) -> Iterator[str]:
    yield f"# {_text(report.title)}"
    yield _text(", ".join((*report.about, report.today)))
    yield from (f"**{_text(warning)}**" for warning in report.warnings)
    yield from (_text(sentence) for _, sentence in report.lines)
    yield from _table(_numbers(report))
    yield "## Results"
    yield from map(_text, report.remarks)
    shown = (*([report.first] if report.first else []), *report.displays)
    for one in sorted(shown, key=lambda one: len(one.table.rows) > _LONG):
        yield f"### {_text(one.table.title)}"
        if one.table.note:  # that of the picture describes lines, which are not here
            yield _text(one.table.note)
        yield from _table(one.table)
    if report.unclear_note:
        yield _text(report.unclear_note)
    yield "## What was asked"
    yield from _pairs(report.asked)
    yield "## Privacy in plain words"
    yield from _pairs(report.cards)
    yield from (f"**{_text(question)}** {_text(answer)}" for question, answer in report.answers)
    yield "### Who saw what"
    yield from _table(report.sights)
    yield from map(_text, report.sight_remarks)
    yield "## Budget"
    yield from _pairs((*report.cost, *report.budget_lines))
    if report.cost and not report.budget_lines:
        yield _text(report.uncharged)
    yield "## Provenance"
    yield f"**{_text(_capital(report.verified[0]))}.** {_text(report.verified[1])}"
    yield from _pairs(report.facts)


def _numbers(report: Contents) -> Table:
    """Return the numbers of the first screen as a table."""
    rows = tuple((one.name, one.of, *one.texts, one.kind) for one in report.numbers)
    return Table("", ("", "of", "value", "interval", "unit", "which interval"), rows)


def _pairs(rows: Pairs) -> Iterator[str]:
    return _table(Table("", ("", ""), rows))


def _table(table: Table) -> Iterator[str]:
    """Yield a table, or nothing if it has no row."""
    if table.rows:
        rule = "|---" * len(table.headings) + "|"
        yield "\n".join([_row(table.headings), rule, *map(_row, table.rows)])


def _row(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(_line(cell_text(cell)) for cell in cells)} |"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(text: str) -> str:
    """Return a paragraph of which no part is a mark of Markdown."""
    return _BEGINS.sub(r"\1\\", _line(text))


def _line(text: str) -> str:
    return _MARKS.sub(r"\\\g<0>", " ".join(clean(text).split()))
