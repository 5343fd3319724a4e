"""``cloister schema``: draft the data contract from public facts, and validate it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cloister.cli.output import Output, add_flags
from cloister.errors import DataError, PlanError
from cloister.schema import FILL_IN, Schema, init_schema
from cloister.tasks.base import Table


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
    validate = actions.add_parser("validate", help="check a schema and show its digest")
    validate.add_argument("schema", type=Path, metavar="S")
    validate.set_defaults(action=_validate)
    add_flags(validate)


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
            column.min,
            column.max,
            column.measure,
            str(column.missing),
            column.out_of_range,
        )
        for column in schema.columns
    )
    headings = ("column", "type", "min", "max", "measure", "missing", "out of range")
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
