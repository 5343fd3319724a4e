"""``cloister schema``: draft the data contract from public facts, and validate it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloister.cli.output import Output, add_flags
from cloister.display import Table
from cloister.errors import DataError, PlanError
from cloister.schema import FILL_IN, Schema, catalogue_schema, differences, init_schema

_SHOWN = 6  # categories of a column on the screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    init = actions.add_parser("init", help="draft a schema; values are never looked at")
    init.add_argument(
        "columns",
        metavar="COLUMNS|FILE",
        help="names with commas between, or a file whose header has them",
    )
    init.add_argument("--codebook", type=Path, help="CSV or TOML with name, type, min, max, ...")
    init.add_argument("--dataset", help="your own name for the data")
    init.add_argument("--out", type=Path, metavar="S", help="default: standard output")
    init.set_defaults(action=_init)
    add_flags(init)
    catalogue = actions.add_parser(
        "catalogue", help="make the schema of market baskets from a public list of items"
    )
    catalogue.add_argument("items", type=Path, metavar="FILE", help="one item on each line")
    catalogue.add_argument("--dataset", required=True, help="your own name for the data")
    catalogue.add_argument("--out", type=Path, required=True, metavar="S")
    catalogue.set_defaults(action=_catalogue)
    add_flags(catalogue)
    validate = actions.add_parser("validate", help="check a schema and show its digest")
    validate.add_argument("schema", type=Path, metavar="S")
    validate.set_defaults(action=_validate)
    add_flags(validate)
    digest = actions.add_parser("hash", help="show the digest that all silos have to agree on")
    digest.add_argument("schema", type=Path, metavar="S")
    digest.set_defaults(action=_hash)
    add_flags(digest)
    diff = actions.add_parser("diff", help="what two schemas do not agree on")
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")
    diff.set_defaults(action=_diff)
    add_flags(diff)


def run(args: argparse.Namespace) -> int:
    """Run the action; return the exit code."""
    code: int = args.action(args, Output.of(args))
    return code


def _init(args: argparse.Namespace, out: Output) -> int:
    text = init_schema(_names(args.columns), args.codebook, dataset=args.dataset)
    missing = text.count(f'"{FILL_IN}')
    if args.out is None:
        if not (args.json or args.quiet):
            sys.stdout.write(text)
    else:
        _write_new(args.out, text)
        out.say(f"written  {args.out}")
    if missing:
        out.warn(f"{missing} entries say {FILL_IN!r}; complete them from a codebook, not the data.")
    out.document(
        {"command": "schema init", "file": args.out, "to_fill_in": missing, "schema": text}
    )
    return 0


def _names(columns: str) -> list[str]:
    """Return names from a text, or from the header of the file that the text names."""
    if Path(columns).exists():
        from cloister.data import header

        return list(header(columns))
    names = [name.strip() for name in columns.split(",")]
    if not all(names) or (len(names) == 1 and Path(columns).suffix):
        raise DataError(f"columns must be names with commas between, or a file, got {columns!r}.")
    return names


def _write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet; an agreed schema is never overwritten."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise PlanError(
            f"schema {os.fspath(path)!r} exists already; remove it or give another --out."
        ) from None
    except OSError as error:
        raise PlanError(
            f"schema {os.fspath(path)!r} cannot be written: {error.strerror}."
        ) from None


def _catalogue(args: argparse.Namespace, out: Output) -> int:
    schema = catalogue_schema(args.items, dataset=args.dataset)
    _write_new(args.out, schema.to_toml())
    out.say(f"written  {args.out}: {len(schema.columns)} items")
    out.pairs([("digest", schema.digest())])
    out.document(
        {
            "command": "schema catalogue",
            "file": args.out,
            "items": len(schema.columns),
            "digest": schema.digest(),
        }
    )
    return 0


def _validate(args: argparse.Namespace, out: Output) -> int:
    schema = Schema.load(args.schema)
    out.pairs(
        [
            ("data set", schema.dataset),
            ("unit of privacy", schema.describe_unit()),
            ("digest", schema.digest()),
        ]
    )
    rows = tuple(
        (
            column.name,
            column.type,
            "" if column.categories else column.min,
            "" if column.categories else column.max,
            _words(column.categories) or column.measure,
            str(column.missing),
            column.out_of_range,
        )
        for column in schema.columns
    )
    headings = ("column", "type", "min", "max", "measure", "missing", "out of range")
    if any(column.categories for column in schema.columns):
        headings = (*headings[:4], "measure or categories", *headings[5:])
    out.table(Table("Columns", headings, rows))
    out.document(
        {
            "command": "schema validate",
            "dataset": schema.dataset,
            "digest": schema.digest(),
            "schema": schema.agreed(),
        }
    )
    return 0


def _words(categories: Sequence[str]) -> str:
    """Write categories in a cell of a table."""
    shown = ", ".join(categories[:_SHOWN])
    return f"{shown}, and {len(categories) - _SHOWN} more" if categories[_SHOWN:] else shown


def _hash(args: argparse.Namespace, out: Output) -> int:
    digest = Schema.load(args.schema).digest()
    out.say(digest)
    out.document({"command": "schema hash", "schema": args.schema, "digest": digest})
    return 0


def _diff(args: argparse.Namespace, out: Output) -> int:
    """Show what differs; as other tools that compare, return 1 where something does."""
    first, second = Schema.load(args.first), Schema.load(args.second)
    found = differences(first, second)
    digests = {str(args.first): first.digest(), str(args.second): second.digest()}
    out.pairs(list(digests.items()))
    if found:
        rows = tuple((name or "(schema)", key, _cell(a), _cell(b)) for name, key, a, b in found)
        headings = ("column", "key", str(args.first), str(args.second))
        out.table(Table("Differences", headings, rows))
    else:
        out.say("The schemas agree.")
    keys = ("column", "key", "first", "second")
    out.document(
        {
            "command": "schema diff",
            "same": not found,
            "digests": digests,
            "differences": [dict(zip(keys, row, strict=True)) for row in found],
        }
    )
    return 1 if found else 0


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
