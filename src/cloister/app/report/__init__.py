"""The report: what was released, what it cost and who saw what, as one file that works offline.

Everything in it is computed from the result, whose numbers are public; no record, no count of
records and no duration can enter.
"""

from __future__ import annotations

from cloister.app.report.page import render_report, write_report
from cloister.app.text import (
    as_table,
    attacker_sentence,
    between,
    listed,
    number,
    plus_minus,
    strength_sentence,
)

__all__ = [
    "as_table",
    "attacker_sentence",
    "between",
    "listed",
    "number",
    "plus_minus",
    "render_report",
    "strength_sentence",
    "write_report",
]
