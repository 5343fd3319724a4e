"""``cloister join``: set up and start a party from its invitation, with one conference call."""

from __future__ import annotations

import argparse
import shlex
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

_PAUSE = 2.0  # seconds between two requests to the board


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("invitation", type=Path, metavar="FILE", help="your invitation file")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="a silo's records: CSV, Parquet or a folder"
    )
    parser.add_argument(
        "--confirm", metavar="WORDS", help="the words that another party reads aloud"
    )
    parser.add_argument(
        "--wait", type=float, default=3600.0, metavar="S", help="seconds to wait for the others"
    )
    parser.add_argument("--again", action="store_true", help="discard an earlier attempt")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="folder for all files; no user is created, and no service is started "
        "(analyst: ~/cloister)",
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
    # Asked before the wait, so that a wrong path does not appear after an hour.
    data = _data(args.data) if invitation.role == "silo" else None
    make_folder(site.keys)
    party = Party(invitation, site.keys, again=args.again)
    _meet(party, args.wait, out)
    # Computed from the keys of all parties, so equal words mean equal keys.
    words = " ".join(party.words())
    out.say()
    out.say(f"    {words}")
    out.say()
    out.paragraph(
        "Call all other parties, in one conference call that the coordinator does not host. "
        "All parties must have the same words in this order. If one has other words, an attacker "
        "is in the connection: confirm nothing."
    )
    document = {"name": invitation.name, "words": words, "confirmed": False}
    # Typed, as a habit answers "yes" to every question.
    typed = args.confirm or ask("Type the words while another party reads its own: ")
    if typed is None:
        places = {"--data": data, "--root": args.root}
        options = [str(part) for pair in places.items() if pair[1] for part in pair]
        command = shlex.join(["cloister", "join", str(args.invitation), *options])
        # Without the words: they must come from the call.
        out.say(f"Then: {command} --confirm 'WORDS OF ANOTHER PARTY'")
        return document
    if typed.lower().split() != words.split():
        raise PlanError(
            f"words here are {words!r}, got {typed!r}, so no key was pinned; if they were not "
            "misread, an attacker is in the connection: inform the others."
        )
    _set_up(site, invitation, party.accept(), data, out)
    # The new site is checked immediately, while the owner is still there.
    show(out, examined(load_settings(site.config), OFFLINE))
    return {**document, "confirmed": True, "config": site.config}


def _settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting to which this site agrees."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", text) for inner, text in _settings(value))
        else:
            yield key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _data(option: Path | None) -> Path:
    """Return the path of the records, which the invitation cannot contain."""
    path = option or Path(ask("File of records (CSV, Parquet, or a folder of Parquet): ") or "")
    if path == Path():
        raise PlanError("a silo needs a file of records; give --data FILE.")
    if not path.exists():
        raise PlanError(f"file of records {str(path)!r} does not exist; give another --data.")
    return path.absolute()


def _meet(party: Party, wait: float, out: Output) -> None:
    """Exchange messages with the coordinator until the nonces of all parties are known."""
    if party.done:
        return
    from cloister.federation.service.client import Joining

    # Monotonic, because an adjustment of the clock must not end the wait.
    deadline = time.monotonic() + wait
    message: dict[str, Any] = {}
    shown: list[str] = []
    last_error = ""
    with Joining(party.invitation) as coordinator:
        while True:
            try:
                board = coordinator.post(message)
            except TransportError as error:  # the board is not open yet, or the network is down
                if time.monotonic() > deadline:
                    raise
                if str(error) != last_error:
                    out.say(f"waiting: {(last_error := str(error))}")
                time.sleep(_PAUSE)
                continue
            message = party.answer(board)
            if party.done:
                return
            missing = [n for n in party.invitation.federation.roles if n not in board["entries"]]
            others = [name for name in missing if name != party.invitation.name]
            if others and others != shown:
                out.say(f"waiting for {', '.join(others)}")
                shown = others
            if time.monotonic() > deadline:
                raise TransportError(
                    f"not joined yet: {', '.join(missing) or 'a party'}; run the same command "
                    "again, which continues from here."
                )
            if others:
                time.sleep(_PAUSE)
            # All entries are there, so only the last short steps remain.
            elif party.invitation.name in board["openings"]:
                time.sleep(_PAUSE / 10)


def _set_up(
    site: Site, invitation: Invitation, pins: dict[str, str], data: Path | None, out: Output
) -> None:
    """Write schema, settings and systemd unit; start the party if run as root."""
    federation = invitation.federation
    schema = site.etc / "schema.toml"
    # From the invitation, so that all sites have the same digest.
    write_text(schema, federation.schema)
    schema.chmod(0o644)  # the service's user must read it, and it is public
    values: dict[str, Any] = {
        "role": invitation.role,
        "name": invitation.name,
        "coordinator": federation.coordinator,
        "keys": site.keys.name,
    }
    # An analyst has no service and no records.
    if invitation.role == "analyst":
        site.write(values, out)
        places = ["--config", str(site.config), "--schema", str(schema)]
        silos = ["--silos", ",".join(federation.silos), "--help"]
        out.say(f"To propose a job: {shlex.join(['cloister', 'jobs', 'submit', *places, *silos])}")
        return
    make_folder(site.state)
    state_files = {
        "ledger": "ledger.db",
        "results": "results",
        "labels": "labels.db",
        "audit_log": "audit.jsonl",
    }
    values |= {
        "schema_file": schema.name,
        **{key: str(site.state / name) for key, name in state_files.items()},
        **federation.settings,
        "data": {"file": str(data)},
        # Pins come from the confirmed words, not from the coordinator.
        "peers": {name: pins[name] for name in federation.silos if name != invitation.name},
        "analysts": {name: pins[name] for name in federation.analysts},
    }
    site.write(values, out)
    site.start(out, data)
