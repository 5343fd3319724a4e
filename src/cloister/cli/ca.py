"""``cloister ca``: the certificate authority of a federation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.cli.output import Output
from cloister.cli.parsers import actions
from cloister.core.display import Table
from cloister.federation.pki import Authority


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    init = add("init", "create an authority in a new folder", _init)
    init.add_argument("--name", required=True, metavar="NAME", help="name of the federation")
    renew = add("renew", "issue a new certificate for the same key", _renew)
    for action in (init, renew, add("list", "list issued and revoked certificates", _list)):
        action.add_argument("folder", type=Path, metavar="DIR")


def _init(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    authority = Authority.create(args.folder, args.name)
    out.say(f"created  {authority.path}")
    out.paragraph(
        "Keep ca.key on one machine and back it up offline. With it one can admit parties to the "
        "coordinator's port, but not to a cohort: each silo computes only with fingerprints that "
        "its owner pinned."
    )
    return {"folder": authority.path, "name": args.name}


def _renew(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    authority = Authority(args.folder)
    authority.renew()
    out.say(f"renewed  {authority.path}")
    out.paragraph(
        "Certificates issued so far stay valid. Each party receives the new one with its next "
        "grant: all parties must renew theirs before the old one expires."
    )
    return {"folder": authority.path}


def _list(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    # Includes revoked ones, which an operator must tell apart from valid ones.
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
    return {"folder": args.folder, "issued": issued}
