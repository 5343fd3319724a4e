"""``cloister join``: from an invitation to a party that runs, with one conference call."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloister.cli.checks import OFFLINE, examined, show
from cloister.cli.output import Output, ask
from cloister.cli.site import Site
from cloister.core.errors import PlanError, TransportError
from cloister.core.files import write_text
from cloister.federation.joining import Invitation, Party
from cloister.federation.pki import make_folder
from cloister.federation.settings import load_settings

_PAUSE = 2.0  # seconds between two looks at who else has come


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("invitation", type=Path, metavar="FILE", help="the file you were sent")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="a silo's records: CSV, Parquet or a folder"
    )
    parser.add_argument("--confirm", metavar="WORDS", help="the words, as the others read them")
    parser.add_argument(
        "--wait", type=float, default=3600.0, metavar="S", help="seconds to wait for the others"
    )
    parser.add_argument("--again", action="store_true", help="forget an earlier try")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="put everything there; no user is made, nothing is started (analyst: ~/cloister)",
    )


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Join, wait for the others, compare the words, and set this party up."""
    invitation = Invitation.load(args.invitation)
    federation = invitation.federation
    site = Site.of(args.root, invitation.role)
    out.pairs(
        ("federation", federation.name),
        ("you are", f"{invitation.name} ({invitation.role})"),
        ("coordinator", federation.coordinator),
        ("silos", ", ".join(federation.silos)),
        ("analysts", ", ".join(federation.analysts) or "none"),
        *_settings(federation.settings),
    )
    data = _data(args.data) if invitation.role == "silo" else None
    make_folder(site.keys)
    party = Party(invitation, site.keys, again=args.again)
    _meet(party, args.wait, out)
    words = " ".join(party.words())
    out.say()
    out.say(f"    {words}")
    out.say()
    out.paragraph(
        "Call all other parties, in one conference call that the coordinator does not host. "
        "Everybody must read the same words in this order. If one does not, somebody has come in "
        "between: answer no."
    )
    document = {"name": invitation.name, "words": words, "confirmed": False}
    if args.confirm is None:
        answer = ask("Does everybody read the same words? [yes/no] ")
        if answer is None:
            places = {"--data": data, "--root": args.root}
            given = "".join(f" {option} {path}" for option, path in places.items() if path)
            out.say(f"Then: cloister join {args.invitation}{given} --confirm '{words}'")
            return document
        if answer.lower() != "yes":
            raise PlanError("words were not confirmed, so no key was pinned; tell the others.")
    elif args.confirm.lower().split() != words.split():
        raise PlanError(
            f"words here are {words!r}, got {args.confirm!r}; if they were not misread, somebody "
            "has come in between: no key was pinned."
        )
    _set_up(site, invitation, party.accept(), data, out)
    show(out, examined(load_settings(site.config), OFFLINE))
    return {**document, "confirmed": True, "config": site.config}


def _settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what this site is asked to agree to, a line for each setting."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", text) for inner, text in _settings(value))
        else:
            yield key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _data(given: Path | None) -> Path:
    """Return where the records are, which only the site knows."""
    path = given or Path(ask("File of records (CSV, Parquet, or a folder of Parquet): ") or "")
    if path == Path():
        raise PlanError("a silo needs its file of records; give --data FILE.")
    if not path.exists():
        raise PlanError(f"file of records {str(path)!r} does not exist; give another --data.")
    return path.absolute()


def _meet(party: Party, wait: float, out: Output) -> None:
    """Exchange messages with the coordinator until everybody's nonce is here."""
    if party.done:
        return
    from cloister.federation.service.client import Joining

    deadline = time.monotonic() + wait
    message: dict[str, Any] = {}
    waited_for: list[str] = []
    said = ""
    with Joining(party.invitation) as coordinator:
        while True:
            try:
                board = coordinator.post(message)
            except TransportError as error:  # not open yet, or the line is down
                if time.monotonic() > deadline:
                    raise
                if str(error) != said:
                    out.say(f"waiting: {(said := str(error))}")
                time.sleep(_PAUSE)
                continue
            message = party.answer(board)
            if party.done:
                return
            missing = [n for n in party.invitation.federation.roles if n not in board["entries"]]
            others = [name for name in missing if name != party.invitation.name]
            if others and others != waited_for:
                out.say(f"waiting for {', '.join(others)}")
                waited_for = others
            if time.monotonic() > deadline:
                raise TransportError(
                    "somebody has not joined yet; run the same command again, nothing is lost."
                )
            if others:
                time.sleep(_PAUSE)
            elif party.invitation.name in board["openings"]:
                time.sleep(_PAUSE / 10)


def _set_up(
    site: Site, invitation: Invitation, pins: dict[str, str], data: Path | None, out: Output
) -> None:
    """Write schema, settings and unit, and start the party where root may."""
    federation = invitation.federation
    schema = site.etc / "schema.toml"
    write_text(schema, federation.schema)
    schema.chmod(0o644)
    values: dict[str, Any] = {
        "role": invitation.role,
        "name": invitation.name,
        "coordinator": federation.coordinator,
        "keys": site.keys.name,
    }
    if invitation.role == "analyst":
        site.write(values, out)
        silos = ",".join(federation.silos)
        out.say(
            f"To propose a job: cloister jobs submit --config {site.config} "
            f"--schema {schema} --silos {silos} --help"
        )
        return
    make_folder(site.state)
    written = {
        "ledger": "ledger.db",
        "results": "results",
        "labels": "labels.db",
        "audit_log": "audit.jsonl",
    }
    values |= {
        "schema_file": schema.name,
        **{key: str(site.state / name) for key, name in written.items()},
        **federation.settings,
        "data": {"file": str(data)},
        "peers": {name: pins[name] for name in federation.silos if name != invitation.name},
        "analysts": {name: pins[name] for name in federation.analysts},
    }
    site.write(values, out)
    site.start(out, data)
