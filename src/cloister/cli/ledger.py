"""``cloister ledger``: keep a ledger file safe."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cloister.cli import budget
from cloister.cli.output import Output, add_flags
from cloister.enrolment import KeyFolder
from cloister.errors import LedgerError
from cloister.privacy.ledger import Ledger, SignedStatement
from cloister.privacy.ledger_file import migrate

_FORMAT = "cloister-statements/1"
_RESTORE = (
    "A copy does not know what was sent after it was made. So a silo that is restored from it "
    "leaves its running jobs, and the whole of their reservations stays charged; its peers notice "
    "that it is behind. To restore, stop the silo, remove the ledger and the files beside it that "
    "end in -wal and -shm, and put the copy in its place. A copy that is behind is refused until "
    "'cloister ledger recover' has taken in what its peers hold; the file that ends in .head may "
    "be removed only if all later spending is lost for good."
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
    told = actions.add_parser("statements", help="write what a peer signed, for that peer")
    told.add_argument(
        "--of", required=True, metavar="FINGERPRINT", help="the peer's, as it is pinned"
    )
    told.add_argument("--out", type=Path, required=True, metavar="STATEMENTS", help="a new file")
    told.set_defaults(action=_statements)
    recover = actions.add_parser("recover", help="take in jobs that an older copy lacks")
    recover.add_argument("--keys", type=Path, required=True, metavar="DIR", help="the silo's keys")
    recover.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        default=[],
        metavar="STATEMENTS",
        help="files of peers, besides what they showed in jobs",
    )
    recover.set_defaults(action=_recover, behind=True)
    clock = actions.add_parser("clock", help="say that the clock is right, and was ahead before")
    clock.set_defaults(action=_clock)
    for action in (backup, exported, verify, older, told, recover, clock):
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


def _statements(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    held = ledger.remembered(args.of)
    if not held:
        raise LedgerError(f"ledger {str(args.ledger)!r} has no statement of {args.of}; check it.")
    rows = [
        {"text": one.text, "signature": one.signature.hex(), "public": one.public.hex()}
        for one in held
    ]
    try:
        with args.out.open("x", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "statements": rows}, file, indent=1)
    except OSError as error:
        raise LedgerError(
            f"{str(args.out)!r} cannot be written: {error.strerror}; give another name."
        ) from error
    out.say(f"written  {args.out}, {len(held)} statements of {args.of}")
    out.document({"command": "ledger statements", "file": args.out, "statements": len(held)})
    return 0


def _recover(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    statements = [one for source in args.sources for one in _read(source)]
    taken = ledger.recover(KeyFolder(args.keys).identity().public, statements)
    jobs = sorted({said.job for said in taken})
    for job in jobs:
        out.say(f"taken in  {job}, at the full price of its reservation")
    out.say(f"ledger {args.ledger} is behind nothing that is known: {len(jobs)} jobs were missing")
    out.document({"command": "ledger recover", "ledger": args.ledger, "jobs": jobs})
    return 0


def _clock(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    ledger.confirm_clock()
    at = ledger.entries()[-1].fields["at"]
    out.say(f"noted  the clock is right at {at}; entries of a later time were written too early")
    out.document({"command": "ledger clock", "ledger": args.ledger, "at": at})
    return 0


def _read(source: Path) -> list[SignedStatement]:
    """Read a file of a peer; whether a statement is genuine, the ledger says."""
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise ValueError("another format")
        return [
            SignedStatement(
                str(row["text"]), bytes.fromhex(row["signature"]), bytes.fromhex(row["public"])
            )
            for row in document["statements"]
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise LedgerError(
            f"{str(source)!r} is no file of 'cloister ledger statements'; ask the peer for it."
        ) from error


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
