"""``cloister check``: what the rules of a schema find in a file; local."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.cli.options import add_baskets_argument, source_of
from cloister.cli.output import Output
from cloister.display import Table
from cloister.schema import Schema

FEW_USABLE = 4
"""Exit code where few rows of the file can be used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument("--schema", type=Path, required=True, help="the data contract")
    add_baskets_argument(parser)
    parser.epilog = f"exit code {FEW_USABLE} if few rows of the file can be used"


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Count what the rules find, exactly and for local eyes."""
    from cloister.data import LOCAL_NOTE, check_file

    report = check_file(source_of(args.file, args.baskets), Schema.load(args.schema))
    out.pairs(
        ("source", report.source),
        ("rows", f"{report.rows:,}"),
        ("rows used", f"{report.used:,}"),
        *((what, f"{count:,}") for what, count in report.counts() if count),
    )
    rows = tuple(
        (
            column.name,
            f"{column.out_of_range_share:.2%}",
            f"{column.missing:,}",
            f"{column.type_errors:,}",
            f"{column.unknown:,}",
            "constant" if column.constant else "",
        )
        for column in report.columns
    )
    headings = ("column", "out of range", "missing", "wrong type", "unknown category", "")
    out.table(Table("Columns", headings, rows))
    out.say(f"{LOCAL_NOTE.capitalize()}; keep them in this silo.")
    for cause in report.causes:
        if cause not in (report.doubt or ""):
            out.tell_owner(f"{cause}.")
    if report.doubt:
        out.tell_owner(report.doubt)
        out.code = FEW_USABLE
    return report.to_dict()
