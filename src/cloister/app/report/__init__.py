"""The report: the released values, their cost and the parties' views, as one offline file.

It is computed from the result alone, whose numbers are public. It contains no record, no exact
count of records and no duration.
"""

from __future__ import annotations

from cloister.app.report.page import render_report, write_report
from cloister.app.text import as_table, attacker_sentence, listed, strength_sentence
from cloister.core.numerals import between, number, plus_minus

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
