"""``cloister link``: plan, check and run an analysis of persons of several owners."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.shares.commands import compute
from cloister.shares.commands.compute import Output

if TYPE_CHECKING:
    from cloister.shares.linking.program import Linked
    from cloister.shares.mpc.session import Session

_LOCAL = "exact counts, for the owner of the file alone"
_COUNTED = {
    "persons": "persons",
    "places": "public number of places",
    "no_key": "rows without a key",
    "repeated": "rows after the first of a key",
    "differing": "of these, other than the first",
    "beyond": "rows of a further key of a person",
    "incomplete": "rows with a missing or unreadable cell",
}
"""The counts of a table in words; programs read their names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, summary: str, run: Any) -> argparse.ArgumentParser:
        text = f"{summary[0].upper()}{summary[1:]}."
        found = parsers.add_parser(name, help=summary, description=text)
        found.set_defaults(run=run)
        return found

    plan = action("plan", "show cost, noise, traffic and trust of a session, from its file", _plan)
    plan.add_argument("session", type=Path, metavar="SESSION", help="TOML or JSON")
    guess = "public guess of the number of linked persons, for warnings"
    plan.add_argument("--expected", type=int, default=0, metavar="N", help=guess)
    check = action("check", "count the rows of an owner's file, and freeze it for a run", _check)
    check.add_argument("session", type=Path, metavar="SESSION", help="TOML or JSON")
    check.add_argument("--as", dest="name", required=True, metavar="NAME", help="this party")
    settings = "silo.toml of the owner, with its schema and policy"
    check.add_argument("--settings", type=Path, required=True, metavar="FILE", help=settings)
    check.add_argument(
        "--data", action="append", default=[], metavar="TABLE=FILE", help="its table"
    )
    lost = "share of the rows that may be left out (default: 0.05)"
    check.add_argument("--max-loss", type=float, metavar="SHARE", help=lost)
    compute.add_arguments(action("run", "take part in a session of linked tables", _run))


def _load(path: Path) -> tuple[Session, Linked]:
    from cloister.shares.inference.programs import PROGRAMS
    from cloister.shares.linking.program import Linked
    from cloister.shares.mpc.session import Session

    session = Session.load(path, PROGRAMS)
    if not isinstance(session.program, Linked):
        raise PlanError(
            f"the session must be of program 'linked', got {session.program.name!r}; use "
            "cloister compute."
        )
    return session, session.program


def _plan(args: argparse.Namespace, out: Output) -> Mapping[str, Any]:
    """Show the effects of a session; no record is read."""
    from cloister.shares.linking.plan import approval, precision, traffic, warnings_for

    session, program = _load(args.session)
    sent, errors = traffic(program), list(precision(program))
    texts = {owner: approval(session, owner) for owner in dict.fromkeys(session.owners.values())}
    steps = {name: list(_steps(session, args.session, name)) for name in session.parties}
    out.pairs(
        ("session", session.id),
        ("digest", f"{session.digest()}  compare it with the other parties"),
        ("uploads", f"{sent.uploads / 1e6:.3g} MB"),
        ("join", f"about {sent.each_way / 1e6:.3g} MB each way, {counted(sent.rounds, 'round')}"),
        *(("answers", text) for text in errors),
        *((f"approval {owner}", text) for owner, text in texts.items()),
        *((f"at {name}", line) for name, lines in steps.items() for line in lines),
    )
    warnings = list(warnings_for(program, args.expected)) if args.expected else []
    for text in warnings:
        out.warn(text)
    return {
        "session": session.id,
        "digest": session.digest(),
        **sent._asdict(),
        "answers": errors,
        "approval": texts,
        "commands": steps,
        "doubts": warnings,
    }


def _steps(session: Session, path: Path, name: str) -> Iterator[str]:
    """Yield the commands of a party, with FILE, KEYS and SETTINGS for its own paths."""
    own = "".join(f" --settings SETTINGS --data {table}=FILE" for table in session.tables_of(name))
    file = shlex.quote(str(path))
    if own:
        yield f"cloister link check {file} --as {name}{own}"
    out = " --out result.json" if name in session.receivers else ""
    yield f"cloister link run {file} --as {name} --keys KEYS{own}{out}"


def _check(args: argparse.Namespace, out: Output) -> Mapping[str, Any]:
    """Read an owner's file as a run would, and record what it is; nothing is sent."""
    from cloister.federation.settings import SiloSettings, load_role
    from cloister.shares.linking.plan import approval
    from cloister.shares.linking.rows import Prepared
    from cloister.shares.owner import freeze

    session, _ = _load(args.session)
    if not session.tables_of(args.name):
        owners = ", ".join(session.owners.values())
        raise PlanError(f"--as must be one of the owners {owners}, got {args.name!r}.")
    _require_allowed(session, args)
    settings = load_role(args.settings, SiloSettings)
    tables = compute.tables_of(session, args.name, args.data, settings, out)
    document: dict[str, Any] = {"note": _LOCAL}
    for table, ready in tables.items():
        assert isinstance(ready, Prepared)
        out.pairs(*((f"{table}, {_COUNTED[name]}", f"{n:,}") for name, n in ready.counts.items()))
        ready.refuse_loss(table, args.max_loss)
        document[table] = ready.counts
        freeze(session, ready, settings.keys)
    compute.show(session, args.name, out)
    out.say(approval(session, args.name))
    out.say("frozen   a run refuses another table; check it again after a change")
    out.say(f"note     {_LOCAL}")
    return document


def _require_allowed(session: Session, args: argparse.Namespace) -> None:
    """Ask the owner's policy and ledger as a run does; nothing is charged."""
    from cloister.federation.pki import KeyFolder
    from cloister.federation.settings import SiloSettings, load_role

    settings, event = load_role(args.settings, SiloSettings), session.program.event()
    fingerprint = KeyFolder(settings.keys).identity().fingerprint
    account = compute.allowed(session, args.name, fingerprint, settings)
    if account is not None and event is not None:
        account.require_room(session, event)


def _run(args: argparse.Namespace, out: Output) -> Mapping[str, Any]:
    """Take part in a session, after the text that its owner approves by policy."""
    from cloister.shares.linking.plan import approval

    session, _ = _load(args.session)
    if args.name in session.owners.values():
        out.say(approval(session, args.name))
    return compute.run(args, out)
