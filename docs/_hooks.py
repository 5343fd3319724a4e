"""Docstrings are numpydoc with a little reStructuredText; this makes HTML of what Markdown leaves.

Roles (``:class:`X```) lose their prefix, citations (``[Key]_``, ``.. [Key] text``) their marks, and
a ``::`` before a literal block goes. Tables of the protocol come from the code that they drive.
Where a page says ``<!-- options of tasks -->``, it shows what every task that ships declares.
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
_OPTIONS = "<!-- options of tasks -->"


def _options_of_tasks() -> str:
    """Return a row for each option of each task that ships."""
    from cloister.tasks import TASKS
    from cloister.tasks.options import options_of

    rows = ["| Task | Option | May be | Default | Meaning |", "|---|---|---|---|---|"]
    for name, task in TASKS.items():
        for one in options_of(task):
            default = "must be given" if one.required else f"`{one.default!r}`"
            cells = (f"`{name}`", f"`{one.name}`", one.rule, default, one.help)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of the protocol where a page asks for one: ``{{ table: NAME }}``."""
    if _OPTIONS in markdown:
        markdown = markdown.replace(_OPTIONS, _options_of_tasks())
    return _TABLE.sub(lambda found: _tables()[found[1]], markdown)


def _tables() -> dict[str, str]:
    from cloister.protocol.exchanges import EXCHANGES
    from cloister.protocol.lifecycle import COORDINATOR, SILO
    from cloister.protocol.messages import FRAMES

    steps = ("what happens", "from", "to", "durable first", "then sent")
    exchanged = ("the aggregator sends", "a silo answers", "part", "contents", "durable first")
    return {
        "coordinator": _table(steps, [_step(row) for row in COORDINATOR]),
        "silo": _table(steps, [_step(row) for row in SILO]),
        "exchanges": _table(
            exchanged,
            [(e.request.name, e.answer.name, e.part, e.sent, e.durable) for e in EXCHANGES],
        ),
        "frames": _table(("kind", "frame", "body"), [_frame(one) for one in FRAMES.values()]),
    }


def _step(step: Any) -> tuple[str, ...]:
    sources = ", ".join(str(source) for source in step.sources)
    return step.event, sources, str(step.target), step.durable, step.sent


def _frame(message: Any) -> tuple[str, ...]:
    from cloister.protocol.messages import body_of

    body = "; ".join(f"`{name}`: {part.rule}" for name, part in body_of(message).items())
    return str(int(message.kind)), message.kind.name, body or "nothing"


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def on_page_content(html: str, **_: Any) -> str:
    """Rewrite one page's HTML."""
    for pattern, replacement in _RULES:
        html = pattern.sub(replacement, html)
    return html
