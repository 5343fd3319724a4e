"""Docstrings are numpydoc with a little reStructuredText; this makes HTML of what Markdown leaves.

Roles (``:class:`X```) lose their prefix, citations (``[Key]_``, ``.. [Key] text``) their marks, and
a ``::`` before a literal block goes. The tables of the protocol come from the code that they drive.
"""

from __future__ import annotations

import re
from typing import Any

_TABLE = re.compile(r"\{\{ table: (\w+) \}\}")
_RULES = (
    (re.compile(r":(?:class|func|meth|mod|attr|exc|data):(?=<code)"), ""),
    (re.compile(r"(<code[^>]*>)~(?:\w+\.)*(\w+)(?=</code>)"), r"\1\2"),
    (re.compile(r"\[(\w+)\]_"), r"[\1]"),
    (re.compile(r"(<p>|\n)\.\. (?=\[\w+\])"), r"\1"),
    (re.compile(r"<p>::</p>\n?"), ""),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of the protocol where a page asks for one: ``{{ table: NAME }}``."""
    return _TABLE.sub(lambda found: _tables()[found[1]], markdown)


def _tables() -> dict[str, str]:
    from cloister.protocol.exchanges import EXCHANGES
    from cloister.protocol.lifecycle import COORDINATOR, SILO

    steps = ("what happens", "from", "to", "durable first", "then sent")
    frames = ("the aggregator sends", "a silo answers", "part", "what is in them", "durable first")
    return {
        "coordinator": _table(steps, [_step(row) for row in COORDINATOR]),
        "silo": _table(steps, [_step(row) for row in SILO]),
        "exchanges": _table(
            frames, [(e.request.name, e.answer.name, e.part, e.sent, e.durable) for e in EXCHANGES]
        ),
    }


def _step(step: Any) -> tuple[str, ...]:
    sources = ", ".join(str(source) for source in step.sources)
    return step.event, sources, str(step.target), step.durable, step.sent


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def on_page_content(html: str, **_: Any) -> str:
    """Rewrite one page's HTML."""
    for pattern, replacement in _RULES:
        html = pattern.sub(replacement, html)
    return html
