"""``cloister enroll``: how a party comes by its keys and its certificate, and loses it."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloister.cli.output import Output, add_flags
from cloister.enrolment import (
    ROLES,
    Authority,
    KeyFolder,
    install,
    make_request,
    request_fingerprint,
)
from cloister.errors import DataError, PlanError
from cloister.html import clean

_KIND = "ed25519:"
_GROUP = 8  # digits read in one breath


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    request = actions.add_parser("request", help="make keys that stay here, and a public request")
    request.add_argument("--role", required=True, choices=ROLES)
    request.add_argument("--name", required=True, metavar="NAME")
    request.add_argument("--host", action="append", default=[], metavar="HOST", help="coordinator")
    request.add_argument(
        "--new-identity", action="store_true", help="another fingerprint, which all must pin anew"
    )
    request.add_argument("--out", type=Path, metavar="FILE", help="default: NAME.request.json")
    request.set_defaults(action=_request)
    approve = actions.add_parser("approve", help="authority: issue a certificate for a request")
    approve.add_argument("request", type=Path, metavar="REQUEST")
    chosen = approve.add_mutually_exclusive_group()
    chosen.add_argument("--fingerprint", metavar="F", help="as the party read it to you")
    chosen.add_argument("--yes", action="store_true", help="the fingerprint was compared")
    approve.add_argument("--days", type=int, default=365, metavar="N", help="default: %(default)s")
    approve.add_argument("--out", type=Path, metavar="FILE", help="default: NAME.grant.json")
    approve.set_defaults(action=_approve)
    put = actions.add_parser("install", help="put a granted certificate beside its keys")
    put.add_argument("grant", type=Path, metavar="GRANT")
    put.set_defaults(action=_install)
    revoke = actions.add_parser("revoke", help="authority: revoke the certificates of a name")
    revoke.add_argument("name", metavar="NAME")
    revoke.set_defaults(action=_revoke)
    show = actions.add_parser("show", help="this party's fingerprint, and when to renew")
    show.set_defaults(action=_show)
    for action in (request, put, show):
        action.add_argument("--keys", type=Path, required=True, metavar="KEYS", help="its folder")
    for action in (approve, revoke):
        action.add_argument("--ca", type=Path, required=True, metavar="DIR")
    for action in (request, approve, put, revoke, show):
        add_flags(action)


def run(args: argparse.Namespace) -> int:
    """Run the action; return the exit code."""
    args.action(args, Output.of(args))
    return 0


def _request(args: argparse.Namespace, out: Output) -> None:
    path: Path = args.out or Path(f"{args.name}.request.json")
    waited = KeyFolder(args.keys).pending()
    request = make_request(
        args.keys, args.role, args.name, args.host, new_identity=args.new_identity
    )
    _write(path, request)
    fingerprint = request_fingerprint(request)
    out.pairs([("request", str(path)), *_fingerprint_lines(fingerprint)])
    out.paragraph(
        "Send the request to whoever keeps the authority, and read the fingerprint to them and to "
        "every silo's owner by telephone. The keys stay here."
    )
    if waited:
        out.warn("an earlier request from this folder was not installed; its grant no longer fits.")
    if args.new_identity:
        out.warn(
            "this is a new identity, used once its grant is installed; every peer must pin its "
            "fingerprint before the next job."
        )
    out.document({"command": "enroll request", "file": path, "fingerprint": fingerprint})


def _approve(args: argparse.Namespace, out: Output) -> None:
    authority = Authority(args.ca)
    request = _read(args.request)
    fingerprint = request_fingerprint(request)
    lines = [("name", request["name"]), ("role", request["role"])]
    if hosts := request["hosts"]:
        lines.append(("reached at", ", ".join(map(str, hosts))))
    lines += _fingerprint_lines(fingerprint)
    out.pairs(lines)
    if args.fingerprint is not None:
        typed = "".join(args.fingerprint.split()).lower().removeprefix(_KIND)
        if f"{_KIND}{typed}" != fingerprint:
            raise PlanError(
                f"fingerprint of the request is {fingerprint!r}, got {args.fingerprint!r}; "
                "somebody changed the request, or it was misread."
            )
    elif not args.yes and not _asked(lines if args.json or args.quiet else []):
        raise PlanError("fingerprint was not confirmed, so nothing was issued; call the party.")
    grant = authority.approve(request, days=args.days)
    path: Path = args.out or Path(f"{request['name']}.grant.json")
    _write(path, grant)
    out.say(f"issued  {path}: send it back; it is public")
    out.document({"command": "enroll approve", "file": path, "fingerprint": fingerprint})


def _install(args: argparse.Namespace, out: Output) -> None:
    peer = install(args.keys, _read(args.grant))
    out.pairs(
        [
            ("installed for", f"{peer.name} ({peer.role})"),
            ("valid until", f"{peer.not_after:%Y-%m-%d}"),
            *_fingerprint_lines(peer.fingerprint),
        ]
    )
    out.document({"command": "enroll install", "name": peer.name, "fingerprint": peer.fingerprint})


def _revoke(args: argparse.Namespace, out: Output) -> None:
    authority = Authority(args.ca)
    entries = authority.revoke(args.name)
    out.say(f"revoked  {args.name}: {len(entries)} certificate{'s' * (len(entries) > 1)}")
    out.paragraph(
        f"Copy {authority.path / 'crl.pem'} into the coordinator's keys: it counts at once, "
        "for open connections too. If the coordinator itself was revoked, copy it into every "
        "party's keys. Every silo's owner must also take the fingerprint out of their own file: "
        "that is what keeps a party out of the next job."
    )
    out.document({"command": "enroll revoke", "name": args.name, "revoked": entries})


def _show(args: argparse.Namespace, out: Output) -> None:
    keys = KeyFolder(args.keys)
    fingerprint = keys.identity().fingerprint
    lines = _fingerprint_lines(fingerprint)
    document: dict[str, Any] = {"command": "enroll show", "fingerprint": fingerprint}
    if (keys.path / "tls.pem").is_file():
        peer = keys.peer()
        lines += [
            ("name", f"{peer.name} ({peer.role})"),
            ("valid until", f"{peer.not_after:%Y-%m-%d}"),
        ]
        document |= {"name": peer.name, "role": peer.role, "ends": peer.not_after.isoformat()}
        if peer.fingerprint != fingerprint:
            out.warn("the certificate is of an earlier identity; send the request, then install.")
        for warning in keys.expiry_warnings(datetime.now(UTC)):
            out.warn(warning)
    else:
        lines.append(("certificate", "none yet; send the request, then 'cloister enroll install'"))
    if keys.pending():
        lines.append(("asked for", "another certificate, not installed yet"))
    out.pairs(lines)
    out.document({**document, "pending": keys.pending()})


def _fingerprint_lines(fingerprint: str) -> list[tuple[str, str]]:
    digits = fingerprint.removeprefix(_KIND)
    spoken = " ".join(digits[i : i + _GROUP] for i in range(0, len(digits), _GROUP))
    return [("fingerprint", fingerprint), ("to read aloud", spoken)]


def _asked(unseen: list[tuple[str, str]]) -> bool:
    """Ask a person at a terminal, with what they have not seen yet; nobody there is no."""
    if not sys.stdin.isatty():
        return False
    sys.stderr.writelines(f"{name}: {clean(value)}\n" for name, value in unseen)
    sys.stderr.write("Did the party read you this fingerprint? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"file {str(path)!r} cannot be read: {error}.") from None
    if not isinstance(document, dict):
        raise DataError(f"file {str(path)!r} is not a request or grant.")
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"file {str(path)!r} cannot be written: {error.strerror}.") from None
