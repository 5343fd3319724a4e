"""``cloister ca``: the certificate authority of a federation."""

from __future__ import annotations

import argparse
from pathlib import Path

from cloister.cli.output import Output, add_flags
from cloister.display import Table
from cloister.enrolment import Authority


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    init = actions.add_parser("init", help="make an authority in a new folder")
    init.add_argument("--name", required=True, metavar="NAME", help="of the federation")
    init.set_defaults(action=_init)
    renewed = actions.add_parser("renew", help="another certificate for the same key")
    renewed.set_defaults(action=_renew)
    shown = actions.add_parser("list", help="what it issued, and what is revoked")
    shown.set_defaults(action=_list)
    for action in (init, renewed, shown):
        action.add_argument("folder", type=Path, metavar="DIR")
        add_flags(action)


def run(args: argparse.Namespace) -> int:
    """Run the action; return the exit code."""
    args.action(args, Output.of(args))
    return 0


def _init(args: argparse.Namespace, out: Output) -> None:
    authority = Authority.create(args.folder, args.name)
    out.say(f"made  {authority.path}")
    out.paragraph(
        "Keep ca.key on one machine and back it up offline. Whoever has it can admit parties to "
        "the coordinator's port, but to no cohort: silos compute only with fingerprints they "
        "pinned themselves."
    )
    out.document({"command": "ca init", "folder": authority.path, "name": args.name})


def _renew(args: argparse.Namespace, out: Output) -> None:
    authority = Authority(args.folder)
    authority.renew()
    out.say(f"renewed  {authority.path}")
    out.paragraph(
        "Certificates that it issued stay valid. Each party gets the new one with its next grant: "
        "let all of them renew theirs before the old one ends."
    )
    out.document({"command": "ca renew", "folder": authority.path})


def _list(args: argparse.Namespace, out: Output) -> None:
    issued = Authority(args.folder).issued()
    rows = tuple(
        (
            entry["name"],
            entry["role"],
            "revoked" if entry["revoked"] else f"until {entry['ends'][:10]}",
            entry["fingerprint"],
        )
        for entry in issued
    )
    out.table(Table("Certificates", ("name", "role", "valid", "fingerprint"), rows))
    out.document({"command": "ca list", "folder": args.folder, "issued": issued})
