"""Docstrings are numpydoc with a little reStructuredText; this makes HTML of what Markdown leaves.

Roles (``:class:`X```) lose their prefix, citations (``[Key]_``, ``.. [Key] text``) their marks, and
a ``::`` before a literal block goes. Tables of the protocol come from the code that they drive,
those of measurements from what the scripts of ``benchmarks`` wrote.
``<!-- options of tasks -->`` becomes a table of the declared options of all tasks that ship,
``{{usage}}`` below the heading of a command its usage, with the options that it adds to those of
``cluster``, and ``<!-- template ROLE -->`` the settings that ``cloister config init`` writes.
Measurements of scripts that print a table are in ``measured/*.csv``. On pages that say how to do
something, the first use of a term leads to the glossary.
"""

from __future__ import annotations

import csv
import json
import re
from argparse import SUPPRESS, _SubParsersAction
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
_MEASURED = Path(__file__).parent / "measured"
_TABLE = re.compile(r"\{\{ table: (\w+) \}\}")
_RULES = (
    (re.compile(r":(?:class|func|meth|mod|attr|exc|data):(?=<code)"), ""),
    (re.compile(r"(<code[^>]*>)~(?:\w+\.)*(\w+)(?=</code>)"), r"\1\2"),
    (re.compile(r"\[(\w+)\]_"), r"[\1]"),
    (re.compile(r"(<p>|\n)\.\. (?=\[\w+\])"), r"\1"),
    (re.compile(r"<p>::</p>\n?"), ""),
)
_OPTIONS = "<!-- options of tasks -->"
_COMMAND = re.compile(r"(?<=^## )([\w-]+)\n\n\{\{usage\}\}", re.MULTILINE)
_TEMPLATE = re.compile(r"<!-- template (\w+) -->")
_SHARED = "cluster"  # its section lists the options that all commands over files have
_EVERYWHERE = {"-h", "--help", "--json", "--quiet", "--traceback"}
_MANY = 9
_GLOSSARY = "reference/words.md"
_APART = re.compile(r"<(/?)(?:a|code|pre|h\d|th|summary)\b")  # text that gets no link
# Words that sentences also use in another sense.
_COMMON = {"box", "estimate", "job", "opening", "record", "round", "share", "task"}


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


def _template(role: str) -> str:
    """Return the settings of a party that are written for a start."""
    text = files("cloister.cli.templates").joinpath(f"{role}.toml").read_text(encoding="utf-8")
    return f"```toml\n{text}```"


def _command(name: str) -> str:
    """Return the usage of a command, and a row for each option that it adds to those of all."""
    from cloister.cli import _parser
    from cloister.core.errors import PlanError

    def of(command: str) -> list[tuple[str, Any]]:
        found = _leaves(_parser([command]), "cloister")
        return [(path, leaf) for path, leaf in found if path.split()[1] == command]

    try:
        found = of(name)
    except PlanError as absent:  # the laboratory or an extra is not installed
        return f"*{absent}*"
    shared = {} if name == _SHARED else _helps(of(_SHARED)[0][1])
    usages: list[str] = []
    rows: dict[tuple[str, str], None] = {}
    for path, leaf in found:
        own = [a for a in _declared(leaf) if shared.get(a.option_strings[0]) != a.help]
        needed = [a for a in _declared(leaf) if a.required and a not in own]
        usages.append(" ".join([path, *_words(leaf, [*needed, *own])]))
        for action in own:
            meaning = leaf._get_formatter()._expand_help(action) if action.help else ""
            meaning = meaning.replace("|", r"\|")
            if meaning:
                rows[f"`{_written(action)}`", meaning] = None
    table = _table(("Option", "Meaning"), list(rows)) if rows else ""
    return "\n".join(["```text", *usages, "```", "", table])


def _leaves(parser: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parser of each action, with the words that lead to it."""
    groups = [a for a in parser._actions if isinstance(a, _SubParsersAction)]
    if not groups:
        yield path, parser
    for group in groups:
        for name, below in group.choices.items():
            yield from _leaves(below, f"{path} {name}")


def _words(leaf: Any, options: Sequence[Any]) -> Iterator[str]:
    """Yield the parts of a usage; of many options only those that must be given."""
    for action in leaf._actions:
        if not action.option_strings:
            value = _value_of(action)
            yield {"+": f"{value} [{value} ...]", "?": f"[{value}]", "*": f"[{value} ...]"}.get(
                action.nargs, value
            )
    yield from (_written(action) for action in options if action.required)
    more = [action for action in options if not action.required]
    yield from ["[options]"] if len(more) > _MANY else [f"[{_written(a)}]" for a in more]


def _written(action: Any) -> str:
    value = "" if action.nargs == 0 else _value_of(action)
    return f"{action.option_strings[0]} {value}".strip()


def _value_of(action: Any) -> str:
    return action.metavar or "|".join(map(str, action.choices or [action.dest.upper()]))


def _declared(leaf: Any) -> list[Any]:
    """Return the options of a command, without those of every command."""
    return [
        action
        for action in leaf._actions
        if {*action.option_strings} - _EVERYWHERE and action.help != SUPPRESS
    ]


def _helps(leaf: Any) -> dict[str, str]:
    return {action.option_strings[0]: action.help for action in _declared(leaf)}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put a table where a page asks for one: ``{{ table: NAME }}``."""
    if _OPTIONS in markdown:
        markdown = markdown.replace(_OPTIONS, _options_of_tasks())
    markdown = _COMMAND.sub(lambda found: f"{found[1]}\n\n{_command(found[1])}", markdown)
    markdown = _TEMPLATE.sub(lambda found: _template(found[1]), markdown)
    if _TABLE.search(markdown):
        tables = _tables() | measured()
        markdown = _TABLE.sub(lambda found: tables[found[1]], markdown)
    return markdown


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


def measured(folder: Path = _BENCHMARKS) -> dict[str, str]:
    """Return what benchmarks wrote: `machine`, `missed`, each section of a run, other scripts."""
    names = ("results", "federation", "fits", "methods", "curves")
    written = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    run = written["results"]
    sections: dict[str, list[Any]] = {"published": []}  # a run may have had no checkout of it
    for row in run["results"]:
        sections.setdefault(row["section"], []).append(row)
    return {
        "machine": _made(run),
        "missed": _beside(
            [
                row | {"what": f"{row['section']}: {row['what']}"}
                for row in run["results"]
                if row["holds"] is False
            ]
        ),
        **{name: _section(rows) for name, rows in sections.items()},
        **{path.stem: _printed(path) for path in sorted(_MEASURED.glob("*.csv"))},
        "loops": _loops(written["fits"]["loops"]),
        **{
            name: f"{_made(written[name])}\n\n{table(written[name]['results'])}"
            for name, table in (
                ("federation", _beside),
                ("fits", _fits),
                ("methods", _methods),
                ("curves", _curves),
            )
        },
    }


def _printed(path: Path) -> str:
    """Return the table that a script printed."""
    with path.open(encoding="utf-8", newline="") as lines:
        heading, *rows = csv.reader(lines)
    return _table(tuple(heading), [tuple(row) for row in rows])


def _made(document: Mapping[str, Any]) -> str:
    """Return when, where and with what a script ran, as far as it says so."""
    versions = {"Python": document["python"]} | document.get("versions", {})
    parts = (document.get("date"), document["machine"], *map(" ".join, versions.items()))
    return f"*{', '.join(filter(None, parts))}*"


def _beside(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each measurement."""
    lines = []
    for row in rows:
        what = ", ".join(filter(None, (row["what"], row.get("by"))))
        peer = "" if row["peer_value"] is None else f"{_value(row['peer_value'], row['unit'])}"
        ratio = "" if row["ratio"] is None else _value(row["ratio"], "×")
        verdict = {None: "", True: "holds", False: "**missed**"}[row["holds"]]
        asked = row.get("asked", row["bar"]).replace(" x", " ×")
        ours = _value(row["value"], row["unit"])
        lines.append((what, ours, row["peer"], peer, ratio, asked, verdict))
    return _table(("what", "ours", "peer", "its", "ratio", "bar", ""), lines)


def _section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a column for each way to compute it, if each measurement has one and a peer."""
    by_way = rows and all(row["by"] and row["peer"] for row in rows)
    return _ways(rows) if by_way else _beside(rows)


def _ways(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each problem and a column for each way to compute it."""
    ways = list(dict.fromkeys(row["by"] for row in rows))
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = lines.setdefault(row["what"], {"peer": _value(row["peer_value"], row["unit"])})
        mark = {None: "", True: "✓", False: f", **missed**: {row['asked']}"}[row["holds"]]
        cells[row["by"]] = f"{_value(row['value'], row['unit'])}, {row['ratio']:.2g} ×{mark}"
    return _table(
        ("", rows[0]["peer"], *ways),
        [(n, *(cells.get(way, "") for way in ("peer", *ways))) for n, cells in lines.items()],
    )


def _fits(rows: Sequence[Mapping[str, Any]]) -> str:
    peers = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    lines = []
    for row in rows:
        cells = [row["model"], f"{row['rows']:,}", _value(row["times"]["cloister"]["cpu"], "s")]
        for name in peers:
            taken = row["times"].get(name)
            cells += [_faster(taken["cpu"], 1 / row["ratios"][name]) if taken else ""]
        lines.append(tuple(cells))
    return _table(("model", "rows", "fit", *(f"{name}" for name in peers)), lines)


def _loops(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each loop over records, beside memory and the calls it is made of."""
    return _table(
        ("loop", "a record", "its bytes", "copied in", "times as long", "NumPy's calls alone"),
        [
            (
                row["loop"],
                _value(row["taken"], "ns"),
                f"{row['bytes']}",
                _value(row["memory"], "ns"),
                _value(row["ratio"], "×"),
                f"{row['calls']}: {_value(row['alone'], 'ns')}",
            )
            for row in rows
        ],
    )


def _methods(rows: Sequence[Mapping[str, Any]]) -> str:
    tables = list(dict.fromkeys(row["table"] for row in rows))
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        text = "refused"
        if taken := row["seconds"]:
            text = f"{_faster(taken, row['peer_seconds'] / taken)}, {row['megabytes']:.0f} MB"
        lines.setdefault(row["method"], {})[row["table"]] = text
    return _table(
        ("method", *tables),
        [(name, *(cells.get(table, "") for table in tables)) for name, cells in lines.items()],
    )


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each curve: where it is straight, and its last point."""
    return _table(
        ("over", "least cost", "within 1.5 times of it", "largest", "which takes"),
        [
            (
                row["what"],
                f"{_value(row['least'], 'ns')} a {row['unit']}",
                " to ".join(f"{end:,}" for end in row["flat"]),
                f"{row['numbers'][-1]:,}",
                _value(row["seconds"][-1], "s"),
            )
            for row in rows
        ],
    )


def _faster(seconds: float, ratio: float) -> str:
    return f"{_value(seconds, 's')}, {_value(ratio, '×')}"


def _value(value: float, unit: str) -> str:
    """Return three digits, and no exponent, of a number with its unit."""
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """Rewrite one page's HTML."""
    for pattern, replacement in _RULES:
        html = pattern.sub(replacement, html)
    if page.file.src_uri == _GLOSSARY:
        return re.sub(r"<li>(<strong>([\w ]+))", _with_id, html)
    if page.file.src_uri.startswith("how-to/"):
        return explained(html, files.get_file_from_path(_GLOSSARY).url_relative_to(page.file))
    return html


def _with_id(entry: re.Match[str]) -> str:
    return f'<li id="{_id(entry[2])}">{entry[1]}'


def _id(term: str) -> str:
    return term.replace(" ", "-")


def explained(html: str, address: str) -> str:
    """Return a page on which the first use of each term is a link to the glossary."""
    terms = _terms()
    words = "|".join(sorted(map(re.escape, terms), key=len, reverse=True))
    pattern = re.compile(rf"\b({words})(s?)\b", re.IGNORECASE)

    def link(found: re.Match[str]) -> str:
        first, meaning = terms.pop(found[1].lower(), ("", ""))
        target = f'{address}#{_id(first)}" title="{escape(meaning)}'
        return f'<a href="{target}">{found[0]}</a>' if first else found[0]

    parts, depth = [], 0
    for part in re.split(r"(<[^>]+>)", html):
        if tag := _APART.match(part):
            depth += -1 if tag[1] else 1
        parts.append(part if depth or part.startswith("<") else pattern.sub(link, part))
    return "".join(parts)


def _terms() -> dict[str, tuple[str, str]]:
    """Return the first name of its entry and the meaning of each term."""
    text = (Path(__file__).parent / _GLOSSARY).read_text(encoding="utf-8")
    found = {}
    for names, meaning in re.findall(r"^- \*\*(.+?)\*\*: (.*(?:\n  .*)*)", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|\s+", lambda m: m[1] or " ", meaning)
        first, *others = names.split(", ")
        found |= dict.fromkeys({first, *others} - _COMMON, (first, plain))
    return found
