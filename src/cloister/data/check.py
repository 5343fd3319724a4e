"""Check of a source by the rules of a schema: exact counts for local use, not a release."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cloister.data.baskets import proposed_layout
from cloister.data.reading import ReadingReport, Tally
from cloister.data.records import default_rows, open_by_schema
from cloister.data.rules import Rules
from cloister.data.units import UnitLimit

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
    tally = Tally(table.label, schema, rules, layout=layout)
    # The owner reviews identifiers that merge into one unit, so their spellings are kept here.
    limit = UnitLimit(rules.max_rows, spellings=True)
    for raw in table.chunks(default_rows(len(schema.names))):
        judged = rules.judge(raw)
        tally.add(raw, judged, limit.keep(raw.units, judged.usable))
        tally.spans(judged)
    return tally.report(limit)
