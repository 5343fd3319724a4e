"""``cloister federation enroll``: request, approve, install and revoke certificates."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloister.cli.output import Output, ask
from cloister.cli.parsers import actions
from cloister.core.errors import DataError, PlanError
from cloister.core.files import read_json, write_text
from cloister.core.numerals import counted
from cloister.federation.pki import (
    ROLES,
    Authority,
    KeyFolder,
    install,
    make_request,
    request_fingerprint,
)

_KIND = "ed25519:"
_GROUP = 8  # digits in a group, to be read aloud


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    request = add("request", "create local keys and a public request", _request)
    request.add_argument("--role", required=True, choices=ROLES)
    request.add_argument("--name", required=True, metavar="NAME")
    request.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="host name of a coordinator or scorer; may be repeated",
    )
    request.add_argument(
        "--new-identity",
        action="store_true",
        help="create a new fingerprint, which every party must pin again",
    )
    request.add_argument("--out", type=Path, metavar="FILE", help="default: NAME.request.json")
    approve = add("approve", "authority: issue a certificate for a request", _approve)
    approve.add_argument("request", type=Path, metavar="REQUEST")
    chosen = approve.add_mutually_exclusive_group()
    chosen.add_argument("--fingerprint", metavar="F", help="fingerprint that the party read to you")
    chosen.add_argument(
        "--yes", action="store_true", help="confirm that you compared the fingerprint"
    )
    approve.add_argument("--days", type=int, default=365, metavar="N", help="default: %(default)s")
    approve.add_argument("--out", type=Path, metavar="FILE", help="default: NAME.grant.json")
    install = add("install", "store an issued certificate with its keys", _install)
    install.add_argument("grant", type=Path, metavar="GRANT")
    revoke = add("revoke", "authority: revoke the certificates of a name", _revoke)
    revoke.add_argument("name", metavar="NAME")
    show = add("show", "show this party's fingerprint and date of renewal", _show)
    for action in (request, install, show):
        action.add_argument("--keys", type=Path, required=True, metavar="KEYS", help="keys folder")
    for action in (approve, revoke):
        action.add_argument(
            "--ca", type=Path, required=True, metavar="DIR", help="folder of the authority"
        )


def _request(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    path: Path = args.out or Path(f"{args.name}.request.json")
    had_pending = KeyFolder(args.keys).pending()  # before make_request, which replaces it
    request = make_request(
        args.keys, args.role, args.name, args.host, new_identity=args.new_identity
    )
    write_text(path, _as_text(request))
    fingerprint = request_fingerprint(request)
    out.pairs(("request", str(path)), *_fingerprint_lines(fingerprint))
    out.paragraph(
        "Send the request to the operator of the authority. Read the fingerprint to the operator "
        "and to every silo's owner by telephone. The keys stay here."
    )
    if had_pending:
        # Its key was overwritten by the new one.
        out.warn("this request replaces an earlier one, whose grant can no longer be installed.")
    if args.new_identity:
        out.warn(
            "this is a new identity, in use after its grant is installed; every peer must pin its "
            "fingerprint before the next job."
        )
    return {"file": path, "fingerprint": fingerprint}


def _approve(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    authority = Authority(args.ca)
    request = _read(args.request)
    fingerprint = request_fingerprint(request)
    lines = [("name", request["name"]), ("role", request["role"])]
    if hosts := request["hosts"]:
        lines.append(("reached at", ", ".join(map(str, hosts))))
    lines += _fingerprint_lines(fingerprint)
    out.pairs(*lines)
    if args.fingerprint is not None:
        typed = "".join(args.fingerprint.split()).lower().removeprefix(_KIND)
        if f"{_KIND}{typed}" != fingerprint:
            raise PlanError(
                f"fingerprint of the request is {fingerprint!r}, got {args.fingerprint!r}; "
                "the request was changed or the fingerprint misread: call the party."
            )
    elif not args.yes and not _confirmed([] if out.for_people else lines):
        raise PlanError(
            "fingerprint was not confirmed, so no certificate was issued; call the party."
        )
    # After the comparison: a request may have been replaced on its way.
    grant = authority.approve(request, days=args.days)
    path: Path = args.out or Path(f"{request['name']}.grant.json")
    write_text(path, _as_text(grant))
    out.say(f"issued  {path}: send it to the party; it is public")
    return {"file": path, "fingerprint": fingerprint}


def _install(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    peer = install(args.keys, _read(args.grant))
    out.pairs(
        ("installed for", f"{peer.name} ({peer.role})"),
        ("valid until", f"{peer.not_after:%Y-%m-%d}"),
        *_fingerprint_lines(peer.fingerprint),
    )
    return {"name": peer.name, "fingerprint": peer.fingerprint}


def _revoke(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    authority = Authority(args.ca)
    entries = authority.revoke(args.name)
    out.say(f"revoked  {args.name}: {counted(len(entries), 'certificate')}")
    out.paragraph(
        f"Copy {authority.path / 'crl.pem'} into the coordinator's keys folder: it takes effect "
        "immediately, also for open connections. If the coordinator itself was revoked, copy it "
        "into every party's keys folder. Every silo's owner must also remove the fingerprint from "
        "the silo's configuration file, which excludes the party from the next job."
    )
    return {"name": args.name, "revoked": entries}


def _show(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    keys = KeyFolder(args.keys)
    fingerprint = keys.identity().fingerprint
    lines = _fingerprint_lines(fingerprint)
    document: dict[str, Any] = {"fingerprint": fingerprint}
    if (keys.path / "tls.pem").is_file():
        peer = keys.peer()
        lines += [
            ("name", f"{peer.name} ({peer.role})"),
            ("valid until", f"{peer.not_after:%Y-%m-%d}"),
        ]
        document |= {"name": peer.name, "role": peer.role, "ends": peer.not_after.isoformat()}
        if peer.fingerprint != fingerprint:
            out.warn("the certificate has an earlier identity; send the request, then install.")
        for warning in keys.expiry_warnings(datetime.now(UTC)):
            out.warn(warning)
    else:
        lines.append(
            ("certificate", "none yet; send the request, then 'cloister federation enroll install'")
        )
    # Two keys exist now, and the old one stays in use until the grant is installed.
    if keys.pending():
        lines.append(("requested", "another certificate, not installed yet"))
    out.pairs(*lines)
    return {**document, "pending": keys.pending()}


def _fingerprint_lines(fingerprint: str) -> list[tuple[str, str]]:
    digits = fingerprint.removeprefix(_KIND)
    spoken = " ".join(digits[i : i + _GROUP] for i in range(0, len(digits), _GROUP))
    return [("fingerprint", fingerprint), ("to read aloud", spoken)]


def _confirmed(unseen: list[tuple[str, str]]) -> bool:
    """Return True if a person confirms, given the lines not shown yet; False without a terminal."""
    shown = "".join(f"{name}: {value}\n" for name, value in unseen)
    answer = ask(f"{shown}Did the party read you this fingerprint? [y/N] ")
    # No answer counts as no, so a script cannot approve by accident.
    return (answer or "").lower() in ("y", "yes")


def _read(path: Path) -> dict[str, Any]:
    document = read_json(path, "file")
    if not isinstance(document, dict):
        raise DataError(f"file {str(path)!r} is not a request or grant; give the right file.")
    return document


def _as_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
