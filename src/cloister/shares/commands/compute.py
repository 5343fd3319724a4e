"""``cloister compute``: one party's part of a computation on secret shares."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloister.core.errors import DataError, PlanError
from cloister.core.files import write_text

if TYPE_CHECKING:
    from cloister.core.display import Table
    from cloister.federation.pki import KeyFolder
    from cloister.federation.settings import SiloSettings
    from cloister.federation.transports.links import Carrier
    from cloister.hazmat.ring import Words
    from cloister.shares.linking.found import Found
    from cloister.shares.mpc.parties import Account, Tagged
    from cloister.shares.mpc.session import Session

TRUST = "the dealer together with either server sees every table; wrong values are not detected."


class Output(Protocol):
    """A writer of lines for people, on the command line."""

    def say(self, text: str = "") -> None:
        """Write a line."""

    def warn(self, text: str) -> None:
        """Write a warning."""

    def warn_locally(self, text: str) -> None:
        """Write a warning on exact records, which the JSON document leaves out."""

    def pairs(self, *rows: tuple[str, str]) -> None:
        """Write names and values."""

    def paragraph(self, text: str) -> None:
        """Write text with line breaks between words."""

    def table(self, table: Table) -> None:
        """Write a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    one = parser.add_argument
    one("session", type=Path, metavar="SESSION", help="TOML or JSON, the same at every party")
    one("--as", dest="name", required=True, metavar="NAME", help="name of this party")
    one("--keys", type=Path, required=True, metavar="FOLDER", help="keys of this party; see enroll")
    files = "table of an owner: CSV, Parquet or .npy; may be repeated"
    one("--data", action="append", default=[], metavar="TABLE=FILE", help=files)
    settings = "silo.toml with the policy and the ledger of an owner, and a proxy to the relay"
    one("--settings", type=Path, metavar="FILE", help=settings)
    one(
        "--listen",
        metavar="HOST:PORT",
        help="address at which a server listens, if it differs from the session",
    )
    wait = "longest wait for a party to connect, and for its next message"
    one("--timeout", type=float, default=600.0, metavar="SECONDS", help=wait)
    one("--out", type=Path, metavar="FILE", help="results as JSON, at a receiver")
    report = "report of linked answers at a receiver, HTML or .md"
    one("--report", type=Path, metavar="FILE", help=report)


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Take part in a session and return its outcome; write the answers of linked tables."""
    # Imports wait until the command runs, so that its help starts without them.
    from cloister.core.memory import keep_freed_memory
    from cloister.federation.pki import KeyFolder
    from cloister.federation.settings import SiloSettings, load_role
    from cloister.shares.inference.programs import PROGRAMS
    from cloister.shares.mpc.parties import connected, take_part
    from cloister.shares.mpc.session import Session
    from cloister.shares.owner import require_frozen

    keep_freed_memory()  # of a process that ends with the session
    session = Session.load(args.session, PROGRAMS)
    _check(args, session)
    keys = KeyFolder(args.keys)
    # Another user with a copy of the key could act as this party.
    keys.check_private()
    identity = keys.identity()
    settings = load_role(args.settings, SiloSettings) if args.settings else None
    # The owner's policy decides before a table is read.
    owner = settings if session.tables_of(args.name) else None
    account = allowed(session, args.name, identity.fingerprint, owner) if owner else None
    tables = tables_of(session, args.name, args.data, owner, out)
    show(session, args.name, out)
    if owner is not None:
        require_frozen(session, tables, owner.keys)
        # Charged before a share leaves, so that a crash cannot forget a label.
        _count_labels(session, args.name, owner, tables)
    links = partial(
        connected,
        session,
        args.name,
        identity,
        timeout=args.timeout,
        listen=args.listen,
        relay=_relay(session, keys, settings.proxy if settings else None, args.timeout),
    )
    done = take_part(
        session, args.name, links, args.keys, tables=tables, account=account, identity=identity
    )
    document: dict[str, Any] = {
        "session": session.id,
        "digest": session.digest(),
        "program": session.program.name,
        "party": args.name,
        "opening": done.opening,
        "private": done.opening == "private",
        "note": done.mark,
    }
    if done.cost is not None:
        document |= {"rounds": done.cost.rounds, "bytes_sent": done.cost.bytes_sent}
    if done.results:
        document["results"] = _shown(session, done.results, args.report, out)
        if done.opening != "private":
            out.warn(done.mark)
    if args.out is not None:
        write_text(args.out, json.dumps(document, indent=1, allow_nan=False) + "\n")
        out.say(f"written  {args.out}")
    out.say("done     with the session; its id cannot be used again")
    return document


def _shown(
    session: Session, results: Mapping[str, Any], report: Path | None, out: Output
) -> dict[str, Any]:
    """Write results for people, and return them as JSON-able values."""
    from cloister.app.text import as_table, legend_of

    # A program may estimate from its words; others return numbers.
    if (estimate := getattr(session.program, "found", None)) is None:
        for what, values in results.items():
            # Eight values give an idea of a result; the file has all of them.
            shown = ", ".join(f"{value:g}" for value in values.ravel()[:8].tolist())
            out.say(f"{what:<8} {shown}" + (", ..." if values.size > 8 else ""))
        return {what: values.tolist() for what, values in results.items()}
    found: Found = estimate(results).after(session)
    if report is not None:
        found.report(report)
        out.say(f"written  {report}")
    tables = [as_table(shown) for shown in found.displays()]
    for table in tables:
        out.table(table)
    for text in (legend_of(tables), *found.remarks()):
        out.paragraph(text)
    return found.to_dict()


def _check(args: argparse.Namespace, session: Session) -> None:
    if args.name not in session.parties:
        raise PlanError(
            f"--as must be one of {', '.join(sorted(session.parties))}, got {args.name!r}."
        )
    for option, given, names in (
        ("--out", args.out, session.receivers),
        ("--report", args.report, session.receivers),
        ("--listen", args.listen, session.servers),
    ):
        if given is not None and args.name not in names:
            raise PlanError(f"{option} is for {', '.join(names)}, not for {args.name!r}.")
    if args.report is not None and not hasattr(session.program, "found"):
        raise PlanError(f"--report is for linked tables; {session.program.name!r} has --out alone.")
    if args.settings is None and session.tables_of(args.name):
        raise PlanError(
            "--settings must be given by an owner, since its policy must allow the session."
        )
    if not 0 < args.timeout < float("inf"):
        raise PlanError(f"--timeout must be a positive number of seconds, got {args.timeout:g}.")


def allowed(
    session: Session, name: str, fingerprint: str, settings: SiloSettings
) -> Account | None:
    """Ask an owner's policy; return where a private opening is charged."""
    from cloister.data.schema import Schema
    from cloister.federation.silo.policy import Policy
    from cloister.federation.silo.site import Site
    from cloister.shares.owner import account_of, refusal

    private = session.program.event() is not None
    reason = refusal(
        session,
        Policy(settings.policy),
        silo=name,
        fingerprint=fingerprint,
        peers=settings.pins()[0],
        schema=Schema.load(settings.schema_file) if private else None,
    )
    if reason is not None:
        raise PlanError(f"the policy refuses session {session.id}: {reason}")
    return account_of(Site.of(settings)) if private else None


def _count_labels(
    session: Session, name: str, settings: SiloSettings, tables: Mapping[str, Words | Tagged]
) -> None:
    """Charge the labels that other receivers learn of this owner's tables, before a share leaves.

    Labels describe a model, so the policy limits their number for each receiver and table.
    """
    if session.program.opening != "label":
        return
    from cloister.shares.inference.limits import QueryLimit

    limit = QueryLimit(settings.policy.max_labels_per_receiver, settings.labels)
    # The content names the tables, so that a second session with them has no new limit.
    whole = b"".join(words.tobytes() for words in tables.values() if hasattr(words, "tobytes"))
    about = hashlib.sha256(whole).hexdigest()
    labels = sum(prod(shape) for shape in session.program.results().values())
    for receiver in session.receivers:
        if receiver != name:
            limit.charge(session.parties[receiver].fingerprint, about, labels)


def tables_of(
    session: Session, name: str, pairs: list[str], settings: SiloSettings | None, out: Output
) -> dict[str, Words | Tagged]:
    """Read a file for each of a party's tables, in their order; warn of lost rows and clips."""
    from cloister.data.schema import Schema
    from cloister.shares.mpc.parties import words_of

    own, shapes = session.tables_of(name), session.program.tables()
    # A pair without "=" has an empty file name, which is refused below.
    given = dict(pair.partition("=")[::2] for pair in pairs)
    if set(given) != set(own) or len(given) != len(pairs) or not all(given.values()):
        wanted = " ".join(f"--data {table}=FILE" for table in own) or "no --data"
        raise PlanError(f"data must be given once for each table of this party: {wanted}.")
    # A program that joins tables by their keys reads them by the owner's schema.
    if own and settings and (prepare := getattr(session.program, "prepare", None)):
        schema = Schema.load(settings.schema_file)
        ready = {table: prepare(table, Path(given[table]), schema) for table in own}
        for table, rows in ready.items():
            for notice in rows.notices(table):
                out.warn_locally(notice)
        return ready
    return {
        table: words_of(session.program, table, _read(Path(given[table]), len(shapes[table])))
        for table in own
    }


def _read(file: Path, dimensions: int) -> Any:
    """Return a file's numbers; a single column stands for a vector where one is wanted."""
    import numpy as np

    from cloister.data import read_floats

    if file.suffix == ".npy":
        try:
            # A pickle could run code of the file's author.
            values = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            # Only an OSError has this text, and only if the system gave a reason.
            why = getattr(error, "strerror", None) or "it is not an array of numbers"
            raise DataError(f"file {str(file)!r} cannot be read: {why}.") from None
    else:
        values = read_floats(file)
    if values.dtype.kind not in "biuf":  # booleans, integers and floats
        raise DataError(f"file {str(file)!r} must contain numbers only.")
    return values[:, 0] if dimensions == 1 and values.shape[1:] == (1,) else values


def _relay(
    session: Session, keys: KeyFolder, proxy: str | None, timeout: float
) -> Callable[[str], Carrier] | None:
    if session.relay is None:
        return None
    # An extra that is not installed is named here, before the parties are dialled.
    if find_spec("websockets") is None:
        raise PlanError("a relay needs WebSockets: pip install 'cloister[service]'.")
    from cloister.federation.pki import client_context
    from cloister.federation.transports.http import StreamClient
    from cloister.federation.transports.relay import relayed

    client = StreamClient(session.relay, client_context(keys), proxy=proxy)
    return lambda peer: relayed(client, session.id, peer, timeout)


def show(session: Session, name: str, out: Output) -> None:
    """Write all options of a session, and the roles of a party in it."""
    roles = {
        "dealer": name == session.dealer,
        "server 0": name == session.servers[0],
        "server 1": name == session.servers[1],
        f"owner of {', '.join(session.tables_of(name))}": bool(session.tables_of(name)),
        "receiver": name in session.receivers,
    }
    out.pairs(
        ("session", session.id),
        ("digest", f"{session.digest()}  compare it with the other parties"),
        ("program", f"{session.program.name}, opening {session.program.opening}"),
        *((f"  {key}", str(value)) for key, value in session.options.items()),
        ("owners", ", ".join(f"{who}: {what}" for what, who in session.owners.items())),
        ("receivers", ", ".join(session.receivers)),
        ("here", f"{name}: {', '.join(role for role, here in roles.items() if here)}"),
        ("trust", TRUST),
    )
