"""``cloister ledger``: keep a ledger file safe."""

from __future__ import annotations

import argparse
from pathlib import Path

from cloister.cli import budget
from cloister.cli.output import Output, add_flags
from cloister.privacy.ledger import Ledger
from cloister.privacy.ledger_file import migrate

_RESTORE = (
    "A copy does not know what was sent after it was made. So a silo that is restored from it "
    "leaves its running jobs, and the whole of their reservations stays charged; its peers notice "
    "that it is behind. To restore, stop the silo, remove the ledger and the files beside it that "
    "end in -wal and -shm, and put the copy in its place; the file that ends in .head refuses a "
    "copy that is behind, and may go only if the newest ledger is lost for good."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    backup = actions.add_parser("backup", help="a consistent copy, also while the silo runs")
    backup.add_argument("--out", type=Path, required=True, metavar="COPY", help="a new file")
    backup.set_defaults(action=_backup)
    exported = budget.add_export(actions)
    verify = actions.add_parser("verify", help="check every entry, answer and counter-signed head")
    verify.set_defaults(action=_verify)
    older = actions.add_parser("migrate", help="bring a file of an earlier version to this one")
    older.set_defaults(action=None)
    for action in (backup, exported, verify, older):
        action.add_argument("ledger", type=Path, metavar="FILE")
        add_flags(action)


def run(args: argparse.Namespace) -> int:
    """Run the action on a ledger, which must exist; return the exit code."""
    return _migrate(args) if args.action is None else budget.run(args)


def _backup(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    ledger.backup(args.out)
    out.say(f"written  {args.out}, every entry verified")
    out.paragraph(_RESTORE)
    out.document({"command": "ledger backup", "ledger": args.ledger, "file": args.out})
    return 0


def _verify(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    ledger.verify()
    head, count = ledger.head(), len(ledger.entries())
    out.say(f"ledger {args.ledger}: all {count} entries verified, head {head}")
    out.document(
        {"command": "ledger verify", "ledger": args.ledger, "entries": count, "head": head}
    )
    return 0


def _migrate(args: argparse.Namespace) -> int:
    # An older file cannot be opened before this, so this is the one action that gets none.
    out = Output.of(args)
    changed = migrate(args.ledger)
    ledger = Ledger(args.ledger)
    try:
        ledger.verify()
    finally:
        ledger.dispose()
    what = "migrated, every entry verified" if changed else "has this version's format already"
    out.say(f"ledger {args.ledger}: {what}")
    out.document({"command": "ledger migrate", "ledger": args.ledger, "changed": changed})
    return 0
