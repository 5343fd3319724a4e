"""``cloister audit-log``: check the audit file of a coordinator or a silo."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from cloister.cli.output import Output, add_flags
from cloister.service.audit import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("verify", help="find any line that was changed, removed or moved")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument(
        "--head",
        metavar="HASH",
        help="the head that an earlier check showed; finds lines that were cut off the end since",
    )
    add_flags(check)


def run(args: argparse.Namespace) -> int:
    """Check the file; return the exit code."""
    out = Output.of(args)
    lines, head = verify(args.file, args.head)
    out.say(f"{os.fspath(args.file)}: {lines} lines, none changed, removed or moved")
    out.say(f"head {head}")
    if args.head is None:
        out.say("Note the head elsewhere: with --head, the next check finds lines cut off the end.")
    out.document({"command": "audit-log verify", "file": args.file, "lines": lines, "head": head})
    return 0
