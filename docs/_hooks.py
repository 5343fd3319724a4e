"""Docstrings are numpydoc with a little reStructuredText; this makes HTML of what Markdown leaves.

Roles (``:class:`X```) lose their prefix, citations (``[Key]_``, ``.. [Key] text``) their marks, and
a ``::`` before a literal block goes.
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


def on_page_content(html: str, **_: Any) -> str:
    """Rewrite one page's HTML."""
    for pattern, replacement in _RULES:
        html = pattern.sub(replacement, html)
    return html
