"""``cloister check``: a local count of the cells that break a schema's rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.app.files import schemas_of, source_of
from cloister.cli.options import (
    add_baskets_argument,
    add_max_loss_argument,
    add_reading_argument,
    comma_separated,
)
from cloister.cli.output import Output
from cloister.data.schema import Schema

TOO_MUCH_LOST = 4
"""Exit code if more rows are left out than a run at a desk or a silo accepts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument("--schema", type=Path, required=True, help="the data contract")
    parser.add_argument(
        "--columns",
        type=comma_separated,
        metavar="NAME,NAME,...",
        help="columns of the schema that a job will use (default: all)",
    )
    add_baskets_argument(parser)
    add_reading_argument(parser)
    add_max_loss_argument(parser)
    parser.epilog = f"exit code {TOO_MUCH_LOST} if more rows are left out than --max-loss accepts"


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Show exact counts of the rows and cells that break the rules, for local use only."""
    from cloister.data.loss import check_max_loss

    # Before a file is read, which may take minutes.
    check_max_loss(args.max_loss)
    schemas = schemas_of(Schema.load(args.schema), args.files, args.reading, others=True)
    found: dict[str, Any] = {}
    for file in args.files:
        if found:
            out.say()
        found[str(file)] = _checked(file, schemas[file], args, out)
    # A file alone is the document, as a silo's owner checks it.
    return next(iter(found.values())) if len(found) == 1 else {"files": found}


def _checked(file: Path, schema: Schema, args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Show the counts of one file, set the exit code, and return the document."""
    from cloister.data import LOCAL_NOTE, check_file, is_above

    # By default all columns count, since those of a later job are not known here, nor its task.
    source = source_of(file, args.baskets)
    if args.columns:
        schema.select({*args.columns} | {schema.unit} & {*schema.names})  # refuses other names
    report = check_file(source, schema, args.columns).for_task()
    out.pairs(*report.described())
    out.table(report.table())
    for names in report.merged_units:
        out.say(f"one unit: {', '.join(map(repr, names))}")
    out.say(f"{LOCAL_NOTE.capitalize()}; keep them in this silo.")
    # They quote cells, so no document repeats them.
    for sentence in (*report.sentences(), *report.clips, *report.hints):
        out.warn_locally(sentence)
    doubtful = bool(report.doubts) and args.max_loss is None
    too_much = is_above(report, args.max_loss) or doubtful
    if too_much:
        out.warn_locally(
            "This is more than a run accepts; correct it, or accept it with --max-loss."
        )
    # The same limit as a run has, so that a script can check files before a job.
    if too_much or not report.rows:
        out.code = TOO_MUCH_LOST
    return {**report.to_dict(), "lost": report.lost, "too_much_lost": too_much}
