"""Docstrings are numpydoc with a little reStructuredText; this makes HTML of what Markdown leaves.

Roles (``:class:`X```) lose their prefix, citations (``[Key]_``, ``.. [Key] text``) their marks, and
a ``::`` before a literal block goes. Where a page says
``<!-- options of tasks -->``, it shows a table of what every task that ships declares.
"""

from __future__ import annotations

import re
from typing import Any

_RULES = (
    (re.compile(r":(?:class|func|meth|mod|attr|exc|data):(?=<code)"), ""),
    (re.compile(r"(<code[^>]*>)~(?:\w+\.)*(\w+)(?=</code>)"), r"\1\2"),
    (re.compile(r"\[(\w+)\]_"), r"[\1]"),
    (re.compile(r"(<p>|\n)\.\. (?=\[\w+\])"), r"\1"),
    (re.compile(r"<p>::</p>\n?"), ""),
)
_OPTIONS = "<!-- options of tasks -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table of options where a page asks for it."""
    return markdown.replace(_OPTIONS, _options_of_tasks()) if _OPTIONS in markdown else markdown


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


def on_page_content(html: str, **_: Any) -> str:
    """Rewrite one page's HTML."""
    for pattern, replacement in _RULES:
        html = pattern.sub(replacement, html)
    return html
