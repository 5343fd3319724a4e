"""Check of a source by the rules of a schema: exact counts for local use, not a release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cloister.core.errors import PlanError
from cloister.data.baskets import proposed_layout
from cloister.data.doubts import sign_doubts
from cloister.data.reading import ReadingReport, Tally
from cloister.data.records import default_rows, open_by_schema
from cloister.data.remedies import Remedy
from cloister.data.rules import Rules
from cloister.data.units import UnitLimit, marks_of

if TYPE_CHECKING:
    from cloister.data.schema import Schema


def check_file(source: Any, schema: Schema, columns: Iterable[str] | None = None) -> ReadingReport:
    """Return the exact counts of a source under a schema's rules, for local use only.

    Parameters
    ----------
    source, schema, columns
        As in `read_source`. A bad cell in a column outside `columns` excludes no row.
    """
    rules = Rules.of(schema, used=None if columns is None else tuple(columns))
    table = open_by_schema(source, schema)
    layout = proposed_layout(source, schema.names)
    doubts = sign_doubts(source, schema)
    tally = Tally(table.label, schema, rules, layout=layout, doubts=doubts)
    # The owner reviews identifiers that merge into one unit, so their spellings are kept here.
    limit = UnitLimit(rules.max_rows, spellings=True)
    for raw in table.chunks(default_rows(len(schema.names))):
        judged = rules.judge(raw)
        marks = marks_of(judged.steps, judged.flags) if rules.max_rows else None
        tally.add(raw, judged, limit.keep(raw.units, judged.usable, marks))
        tally.spans(judged)
    return tally.report(limit)


def fitted(
    source: Any,
    schema: Schema,
    columns: Iterable[str] | None = None,
    *,
    accept: Callable[[Remedy, str], bool] = lambda remedy, why: False,
) -> tuple[Schema, tuple[Remedy, ...], ReadingReport]:
    """Return a schema for a source in another format, by the remedies of its reports.

    A remedy for cells that the reader did not understand is applied if it has one meaning. `accept`
    decides on the others: words that only resemble a category, 1 and 2 for a boolean, and
    doubts on cells that were read.

    Parameters
    ----------
    source, schema, columns
        As in `check_file`.
    accept : function of Remedy and str, optional
        Returns True to apply a remedy, whose reason quotes words of the file. By default none is.

    Returns
    -------
    schema : Schema
        With the same digest.
    remedies : tuple of Remedy
        The settings that were added, in their order.
    report : ReadingReport
        The last report, for local use only.
    """
    applied: tuple[Remedy, ...] = ()
    refused: tuple[Remedy, ...] = ()
    names = None if columns is None else tuple(columns)
    while True:
        report = check_file(source, schema, names)
        open_remedies = [
            (remedy, why, is_plain)
            for remedy, why, is_plain in _proposed(report, schema)
            if remedy.is_complete and remedy not in (*applied, *refused)
        ]
        if not open_remedies:
            return schema, applied, report
        # Those with one meaning first, since they may settle the others.
        remedy, why, is_plain = max(open_remedies, key=lambda one: one[2])
        value = {remedy.key: remedy.value}
        changes = value if remedy.column is None else {"columns": {remedy.column: value}}
        if is_plain or accept(remedy, why):
            with suppress(PlanError):  # it excludes an earlier one
                schema = schema.written_as(**changes)
                applied += (remedy,)
                continue
        refused += (remedy,)


def _proposed(report: ReadingReport, schema: Schema) -> Iterator[tuple[Remedy, str, bool]]:
    """Yield the remedies of a report with their reasons; True if one has a single meaning."""
    for column in report.columns:
        if not column.needed:
            continue
        if column.remedy:
            guesses = column.is_guess(schema[column.name].spellings)
            is_guess = guesses or (column.remedy.key == "spellings" and column.doubt)
            yield column.remedy, column.cause_and_remedy, not is_guess
        if column.doubt and column.doubt.remedy:
            yield column.doubt.remedy, column.doubt.sentence, False
