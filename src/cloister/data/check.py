"""What the rules of a schema find in a source: exact counts, for local eyes."""

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
    """Count what the schema's rules find in whatever `read_source` takes; local, not a release.

    Parameters
    ----------
    source, schema, columns
        As in `read_source`: a bad cell in another column than these leaves no row out.
    """
    rules = Rules.of(schema, used=None if columns is None else tuple(columns))
    table = open_by_schema(source, schema)
    layout = proposed_layout(source, schema.names)
    tally = Tally(table.label, schema, rules, layout=layout)
    limit = UnitLimit(rules.max_rows, spellings=True)
    for raw in table.chunks(default_rows(len(schema.names))):
        judged = rules.judge(raw)
        tally.add(raw, judged, limit.keep(raw.units, judged.usable))
        tally.spans(judged)
    return tally.report(limit)
