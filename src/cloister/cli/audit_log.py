"""``cloister audit-log``: check the audit file of a coordinator or a silo."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.cli.output import Output
from cloister.cli.parsers import actions
from cloister.federation.service.audit import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    check = actions(parser)("verify", "find lines that were changed, removed or moved", _verify)
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument(
        "--head",
        metavar="HASH",
        help="head shown by an earlier check; finds lines cut off the end since then",
    )


def _verify(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    lines, head = verify(args.file, args.head)
    out.say(f"{args.file}: {lines} lines, none changed, removed or moved")
    out.say(f"head {head}")
    if args.head is None:
        out.say("Keep the head elsewhere: with --head, the next check finds lines cut off the end.")
    return {"file": args.file, "lines": lines, "head": head}
