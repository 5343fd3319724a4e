"""``cloister check``: what the rules of a schema find in a file; local."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.app.files import schemas_of, source_of
from cloister.cli.options import add_baskets_argument, add_max_loss_argument, add_reading_argument
from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.data.schema import Schema

TOO_MUCH_LOST = 4
"""Exit code where more rows are left out than a run at a desk or a silo accepts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument("--schema", type=Path, required=True, help="the data contract")
    add_baskets_argument(parser)
    add_reading_argument(parser)
    add_max_loss_argument(parser)
    parser.epilog = f"exit code {TOO_MUCH_LOST} if more rows are left out than --max-loss accepts"


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Count what the rules find, exactly and for local eyes."""
    from cloister.data import LOCAL_NOTE, check_file, is_above
    from cloister.data.loss import check_max_loss

    check_max_loss(args.max_loss)
    schemas = schemas_of(Schema.load(args.schema), [args.file], args.reading, others=True)
    report = check_file(source_of(args.file, args.baskets), schemas[args.file])
    out.pairs(
        ("source", report.source),
        ("rows", f"{report.rows:,}"),
        ("rows used", f"{report.used:,}"),
        ("rows left out", f"{report.lost:,} ({report.row_share:.1%})"),
        *((what, f"{count:,}") for what, count in report.counts() if count),
    )
    rows = tuple(
        (
            column.name,
            f"{column.lost:,}",
            f"{column.missing:,}",
            f"{column.type_errors:,}",
            f"{column.unknown:,}",
            f"{column.out_of_range_share:.2%}",
            "constant" if column.constant else "",
        )
        for column in report.columns
    )
    headings = ("column", "rows left out", "missing", "wrong type", "unknown category")
    out.table(Table("Columns", (*headings, "out of range", ""), rows))
    for names in report.merged_units:
        out.say(f"one unit: {', '.join(map(repr, names))}")
    out.say(f"{LOCAL_NOTE.capitalize()}; keep them in this silo.")
    for sentence in report.sentences():
        out.warn_locally(sentence)
    too_much = is_above(report, args.max_loss)
    if too_much:
        out.warn_locally("That is more than a run accepts; mend it, or accept it with --max-loss.")
    if too_much or not report.rows:
        out.code = TOO_MUCH_LOST
    return {**report.to_dict(), "lost": report.lost, "too_much_lost": too_much}
