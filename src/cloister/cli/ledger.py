"""The actions of ``cloister budget`` on the file of a ledger."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloister.cli.output import Output
from cloister.cli.parsers import Run
from cloister.core.errors import LedgerError
from cloister.core.files import write_text
from cloister.core.numerals import counted
from cloister.federation.pki import KeyFolder
from cloister.privacy.ledger import Ledger, SignedStatement
from cloister.privacy.ledger_file import migrate

Document = Mapping[str, Any] | None
_FORMAT = "cloister-statements/1"
_RESTORE = (
    "A copy lacks all charges and changes of caps after its creation. So a silo restored from it "
    "leaves its running jobs, their whole reservations stay charged, and its peers notice that it "
    "is behind. To restore, stop the silo, remove the ledger and its files with the endings -wal "
    "and -shm, and put the copy in its place. A copy that is behind is refused until 'cloister "
    "budget recover' has added the charges that its peers know. The file with the ending .head "
    "guards later charges: remove it only if 'cloister budget recover' asks for that."
)


def add_ledger_actions(add: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the actions on a ledger's file; return the parser of ``export``."""
    backup = add(
        "backup", "copy the ledger consistently, even while the silo runs", on_ledger(_backup)
    )
    backup.add_argument("--out", type=Path, required=True, metavar="COPY", help="a new file")
    statements = add(
        "statements",
        "write the statements that a peer signed, for that peer",
        on_ledger(_statements),
    )
    statements.add_argument(
        "--of", required=True, metavar="FINGERPRINT", help="fingerprint of the peer, as pinned"
    )
    statements.add_argument(
        "--out", type=Path, required=True, metavar="STATEMENTS", help="a new file"
    )
    recover = add(
        "recover", "add the jobs that an older copy lacks", on_ledger(_recover, behind=True)
    )
    recover.add_argument("--keys", type=Path, metavar="DIR", help="the silo's keys")
    recover.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        default=[],
        metavar="STATEMENTS",
        help="files of statements from peers, in addition to those received in jobs",
    )
    export = add("export", "write every entry of the ledger as JSON", on_ledger(_export))
    export.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    others = (
        add("verify", "check every entry, answer and counter-signed head", on_ledger(_verify)),
        add("migrate", "convert a file of an earlier version", _migrate),
        add(
            "clock", "confirm that the clock is right now and was ahead earlier", on_ledger(_clock)
        ),
    )
    for action in (backup, statements, recover, *others):
        action.add_argument("ledger", type=Path, metavar="FILE")
    return export


def on_ledger(action: Callable[..., Document], *, behind: bool = False) -> Run:
    """Return a command that opens the existing ledger for an action of (args, ledger, out)."""

    def run(args: argparse.Namespace, out: Output) -> Document:
        if not args.ledger.is_file():  # Ledger() would create an empty one
            raise LedgerError(
                f"ledger {str(args.ledger)!r} does not exist; give the path of its file."
            )
        # Only recovery may open a copy that is behind the newest head.
        ledger = Ledger(args.ledger, behind=behind)
        try:
            return action(args, ledger, out)
        finally:
            ledger.dispose()

    return run


def _export(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    ledger.verify()
    text = json.dumps(ledger.export(), indent=1, allow_nan=False) + "\n"
    if args.out is None:
        # The export is the result itself, so --json changes nothing.
        if not args.quiet:
            sys.stdout.write(text)
        return None
    write_text(args.out, text)
    out.say(f"written  {args.out}")
    return {"file": args.out}


def _backup(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    ledger.backup(args.out)
    out.say(f"written  {args.out}, every entry verified")
    out.paragraph(_RESTORE)
    return {"ledger": args.ledger, "file": args.out}


def _verify(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    ledger.verify()
    head, count = ledger.head(), len(ledger.entries())
    out.say(f"ledger {args.ledger}: all {counted(count, 'entry')} verified, head {head}")
    return {"ledger": args.ledger, "entries": count, "head": head}


def _statements(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    statements = ledger.remembered(args.of)
    if not statements:
        raise LedgerError(
            f"ledger {str(args.ledger)!r} has no statement of {args.of}; check the fingerprint."
        )
    rows = [
        {"text": stmt.text, "signature": stmt.signature.hex(), "public": stmt.public.hex()}
        for stmt in statements
    ]
    document = {"format": _FORMAT, "statements": rows}
    write_text(args.out, json.dumps(document, indent=1, allow_nan=False), new=True)
    out.say(f"written  {args.out}, {counted(len(statements), 'statement')} of {args.of}")
    return {"file": args.out, "statements": len(statements)}


def _recover(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    statements = [statement for source in args.sources for statement in _read(source)]
    # Only statements of the silo's own key count, so a peer cannot add charges.
    public = KeyFolder(args.keys).identity().public if args.keys else b""
    added = ledger.recover(public, statements)
    jobs = sorted({statement.job for statement in added})
    for job in jobs:
        out.say(f"added  {job}, at the full price of its reservation")
    out.say(f"ledger {args.ledger} now has every known job; missing jobs added: {len(jobs)}")
    if jobs:  # peers hold statements on jobs alone
        caps = "; ".join(f"{name} {ledger.cap(name)}" for name in ledger.datasets())
        out.paragraph(
            f"Changes of caps are not recovered. The caps are now: {caps}. If one was changed "
            "later, change it again with 'cloister budget cap'."
        )
    return {"ledger": args.ledger, "jobs": jobs}


def _clock(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    ledger.confirm_clock()
    at = ledger.entries()[-1].fields["at"]
    out.say(f"recorded  the clock is right at {at}; later times in older entries were wrong")
    return {"ledger": args.ledger, "at": at}


def _read(source: Path) -> list[SignedStatement]:
    """Return the statements in a peer's file; the ledger verifies their signatures."""
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            # Caught below, with the other defects of such a file.
            raise ValueError("another format")
        return [
            SignedStatement(
                str(row["text"]), bytes.fromhex(row["signature"]), bytes.fromhex(row["public"])
            )
            for row in document["statements"]
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise LedgerError(
            f"{str(source)!r} is not a file of 'cloister budget statements'; request one from the "
            "peer."
        ) from error


def _migrate(args: argparse.Namespace, out: Output) -> Document:
    # Ledger() cannot open an older file, so this action is not under on_ledger.
    changed = migrate(args.ledger)
    ledger = Ledger(args.ledger)
    try:
        ledger.verify()
    finally:
        ledger.dispose()
    result = "migrated, every entry verified" if changed else "already has this version's format"
    out.say(f"ledger {args.ledger}: {result}")
    return {"ledger": args.ledger, "changed": changed}
