"""``cloister schema``: draft the data contract from public facts, validate and compare it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloister.cli.output import Output, ask
from cloister.cli.parsers import actions
from cloister.core.dates import nearest_day
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError
from cloister.core.files import write_text
from cloister.core.numerals import counted
from cloister.data import declared_types, header
from cloister.data.schema import (
    FILL_IN,
    Column,
    Schema,
    catalogue_schema,
    differences,
    init_schema,
    read_cell,
)

_SHOWN = 6  # categories of a column on the screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    init = add("init", "draft a schema from your answers; values are never read", _init)
    init.add_argument(
        "columns",
        metavar="COLUMNS|FILE",
        help="column names separated by commas, or a file whose header names them",
    )
    init.add_argument(
        "--codebook", type=Path, help="CSV or TOML with name, type, min, max, categories, ..."
    )
    init.add_argument("--dataset", help="your name for the data")
    init.add_argument("--out", type=Path, metavar="S", help="default: standard output")
    catalogue = add(
        "catalogue", "write the schema of baskets from a public list of items", _catalogue
    )
    catalogue.add_argument("items", type=Path, metavar="FILE", help="one item per line")
    catalogue.add_argument("--dataset", required=True, help="your name for the data")
    catalogue.add_argument("--out", type=Path, required=True, metavar="S")
    for action in (
        add("validate", "check a schema and show its digest", _validate),
        add("hash", "show the digest that all silos must agree on", _hash),
    ):
        action.add_argument("schema", type=Path, metavar="S")
    diff = add("diff", "show the differences of two schemas", _diff)
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")


def _init(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    # Types in a Parquet file's metadata are not values of records.
    known = declared_types(Path(args.columns))
    # Without a person, open entries become placeholders.
    if args.codebook is not None or not sys.stdin.isatty():
        text = init_schema(_names(args.columns), args.codebook or known, dataset=args.dataset)
    else:
        text = _asked(_names(args.columns), known, args.dataset, out)
    missing = text.count(f'"{FILL_IN}')
    if args.out is None:
        out.raw(text)
    else:
        # Never overwrites a schema that was completed by hand.
        write_text(args.out, text, new=True)
        out.say(f"written  {args.out}")
    if args.out is not None and not missing:
        out.say(f"Next: cloister check FILE --schema {args.out}")
    if missing:
        out.warn(
            f"{missing} entries contain {FILL_IN!r}; complete them from a codebook, not the data."
        )
    return {"file": args.out, "to_fill_in": missing, "schema": text}


def _asked(
    names: Sequence[str], known: Mapping[str, Mapping[str, Any]], dataset: str | None, out: Output
) -> str:
    """Draft a schema from a person's answers at the terminal."""
    out.say("Take bounds and categories from a codebook or a guideline, never from the records.")
    dataset = dataset or ask("Your name for the data: ")
    unit = ask("Column that identifies the person (Enter if each row is another person): ") or ""
    if unit and unit not in names:
        raise PlanError(f"the unit of privacy must be one of {', '.join(names)}, got {unit!r}.")
    limit = ask(f"Maximum number of rows of one {unit} at a silo (Enter: 1): ") if unit else ""
    if limit and not limit.isdecimal():
        raise PlanError(f"max_rows must be a number of rows, got {limit!r}.")
    answers = {
        name: _asked_column(name, known.get(name, {}).get("type", ""), out)
        for name in names
        if name != unit
    }
    entries = {name: entry for name, entry in answers.items() if entry}
    if not entries:
        raise PlanError("a schema must have at least one column; describe at least one.")
    unit, rows = (unit, int(limit or 1)) if unit else ("row", None)
    return init_schema(list(entries), entries, dataset=dataset, unit=unit, max_rows=rows)


def _asked_column(name: str, declared: str, out: Output) -> dict[str, Any]:
    """Return a person's valid entry for a column; empty if the column is left out."""
    out.say(f"\n{name}" + (f"  ({declared}, as the file declares)" if declared else ""))
    kinds = {kind[0]: kind for kind in ("number", "integer", "boolean", "category", "date")}
    # An invalid entry is asked for again, so that earlier answers are not lost.
    while kind := ask("  number, integer, boolean, category or date (Enter to leave it out): "):
        entry: dict[str, Any] = {"type": kinds.get(kind[0].lower(), kind)}
        if entry["type"] == "category":
            listed = ask("  all categories, separated by commas: ") or ""
            # The same rules as for a codebook.
            entry["categories"] = read_cell("categories", listed, "category")
        elif entry["type"] != "boolean":
            for bound, word in (("min", "lowest"), ("max", "highest")):
                answer = ask(f"  {word} possible value: ") or ""
                entry[bound] = read_cell(bound, answer, entry["type"])
        if entry["type"] == "date":
            entry["format"] = ask("  format, such as %d.%m.%Y (Enter for 2021-07-02): ") or ""
        try:
            Column(name=name, **entry)
            return entry
        except PlanError as error:
            out.warn(str(error))
    return {}


def _names(columns: str) -> list[str]:
    """Return column names from a list in text, or from the header of a file."""
    if Path(columns).exists():
        return list(header(columns))
    names = [name.strip() for name in columns.split(",")]
    # One name with a suffix is a file that does not exist.
    if not all(names) or (len(names) == 1 and Path(columns).suffix):
        raise DataError(f"columns must be names separated by commas, or a file, got {columns!r}.")
    return names


def _catalogue(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    schema = catalogue_schema(args.items, dataset=args.dataset)
    write_text(args.out, schema.to_toml(), new=True)
    out.say(f"written  {args.out}: {counted(len(schema.columns), 'item')}")
    out.pairs(("digest", schema.digest()))
    return {
        "file": args.out,
        "items": len(schema.columns),
        "digest": schema.digest(),
    }


def _validate(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    schema = Schema.load(args.schema)
    out.pairs(
        ("data set", schema.dataset),
        ("unit of privacy", schema.describe_unit()),
        ("digest", schema.digest()),
    )
    rows = tuple(
        (
            column.name,
            column.type,
            *_bounds(column),
            _listed(column.categories) or column.measure,
            str(column.missing),
            column.out_of_range,
        )
        for column in schema.columns
    )
    # The bounds of categories are only their numbers.
    headings = ("column", "type", "min", "max", "measure", "missing", "out of range")
    if any(column.categories for column in schema.columns):
        headings = (*headings[:4], "measure or categories", *headings[5:])
    out.table(Table("Columns", headings, rows))
    return {
        "dataset": schema.dataset,
        "digest": schema.digest(),
        "schema": schema.agreed(),
    }


def _bounds(column: Column) -> tuple[float | str, float | str]:
    """Return the bounds of a column for cells of a table; those of a date as days."""
    if column.categories:
        return "", ""
    if column.type == "date":
        return str(nearest_day(column.min)), str(nearest_day(column.max))
    return column.min, column.max


def _listed(categories: Sequence[str]) -> str:
    """Return categories as text for a cell of a table."""
    shown = ", ".join(categories[:_SHOWN])
    return f"{shown}, and {len(categories) - _SHOWN} more" if categories[_SHOWN:] else shown


def _hash(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    digest = Schema.load(args.schema).digest()
    out.say(digest)
    return {"schema": args.schema, "digest": digest}


def _diff(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Show the differences of two schemas; the exit code is 1 if there are any, as in diff."""
    first, second = Schema.load(args.first), Schema.load(args.second)
    facts = differences(first, second)
    digests = {str(args.first): first.digest(), str(args.second): second.digest()}
    out.pairs(*digests.items())
    if facts:
        rows = tuple((name or "(schema)", key, _cell(a), _cell(b)) for name, key, a, b in facts)
        headings = ("column", "key", str(args.first), str(args.second))
        out.table(Table("Differences", headings, rows))
    else:
        out.say("The schemas agree.")
    keys = ("column", "key", "first", "second")
    out.code = 1 if facts else 0
    return {
        "same": not facts,
        "digests": digests,
        "differences": [dict(zip(keys, row, strict=True)) for row in facts],
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
