"""What the rules of a schema find in a source: exact counts, for local eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.data.reading import ReadingReport, Tally
from cloister.data.records import default_rows, open_by_schema
from cloister.data.rules import Rules
from cloister.data.units import UnitLimit

if TYPE_CHECKING:
    from cloister.schema import Schema


def check_file(source: Any, schema: Schema) -> ReadingReport:
    """Count what the schema's rules find in whatever `read_source` takes; local, not a release."""
    rules = Rules.of(schema)
    table = open_by_schema(source, schema)
    tally, limit = Tally(table.label, schema, rules), UnitLimit(rules.max_rows, spellings=True)
    for raw in table.chunks(default_rows(len(schema.names))):
        judged = rules.judge(raw)
        tally.add(raw, judged, limit.keep(raw.units, judged.usable))
        tally.spans(judged)
    return tally.report(limit)
