"""Rules of an owner of tables for sessions, and the account of its private openings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from cloister.core.errors import PlanError
from cloister.core.files import read_bytes, write_text
from cloister.data.schema import Schema
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy, listed, refused_members
from cloister.federation.silo.site import Site
from cloister.hazmat.ring import Words
from cloister.privacy.accounting import epsilon
from cloister.shares.linking.program import Linked
from cloister.shares.mpc.parties import SESSIONS, Account, Tagged, sessions_of
from cloister.shares.mpc.program import Program
from cloister.shares.mpc.session import Session


def refusal(
    session: Session,
    policy: Policy,
    *,
    silo: str,
    fingerprint: str,
    peers: Mapping[str, str],
    schema: Schema | None = None,
) -> str | None:
    """Return the first reason not to share records in a session, in one sentence, or None.

    Parameters
    ----------
    policy : Policy
        The owner's.
    silo, fingerprint : str
        This silo's name in the session and the fingerprint of its identity.
    peers : mapping of name to fingerprint
        What the owner pinned; every party of the session must be among them.
    schema : Schema
        This silo's own, for a private opening.
    """
    program, rules = session.program, policy.rules
    private = program.opening == "private"
    members = {name: party.fingerprint for name, party in session.parties.items()}
    checks = (
        refused_members(members, silo, fingerprint, peers, "session"),
        _program(program, rules),
        _receivers(session, rules),
        _others(session, silo, rules),
        policy.refused_study("default") if private else (),
        _link(session, silo, schema, rules),
        _price(program, schema, rules) if private else (),
    )
    return next((reason for check in checks for reason in check), None)


def account_of(site: Site) -> Account:
    """Return the silo's ledger, with its caps, for private openings on shares."""
    ledger, rules, dataset = site.ledger(), site.settings.policy, site.schema.dataset
    site.policy.cap_study(ledger, dataset, "default")
    return Account(ledger, dataset, year_epsilon=rules.max_epsilon_per_year)


def freeze(session: Session, table: Tagged, folder: Path) -> None:
    """Record the table that an owner checked for a session; a run uses no other.

    Parameters
    ----------
    folder : Path
        Of the owner's keys.
    """
    # A digest: a second copy of the records would need the protection of the first.
    write_text(sessions_of(folder) / _checked(session), _digest(session, table))


def require_frozen(session: Session, tables: Mapping[str, Words | Tagged], folder: Path) -> None:
    """Raise PlanError if a table of persons is not the one that was checked, or none was."""
    note = folder / SESSIONS / _checked(session)
    for table in tables.values():
        # Tables of numbers have their public shape, and no row that is left out.
        if isinstance(table, np.ndarray):
            continue
        if not note.exists():
            why = "was not checked for this session"
        elif read_bytes(note, "note of the check") != _digest(session, table).encode():
            why = "or the session changed after its check"
        else:
            continue
        raise PlanError(f"the table {why}; run 'cloister link check' and approve what it shows.")


def _checked(session: Session) -> str:
    return f"{session.id}.checked"


def _digest(session: Session, table: Tagged) -> str:
    # With the session, whose columns and prices the owner approved together with the rows.
    return hashlib.sha256(session.digest().encode() + table.content()).hexdigest()


def _program(program: Program, rules: PolicySettings) -> Iterator[str]:
    if program.name not in rules.secure_programs:
        yield (
            f"program {program.name!r} is not among those allowed here: "
            f"{listed(rules.secure_programs)}; the owner can add it to secure_programs."
        )
    if program.opening == "exact" and not rules.allow_exact_opening:
        yield (
            f"program {program.name!r} opens an exact function of the records, which is not a "
            "private release; the owner must set allow_exact_opening."
        )


def _others(session: Session, silo: str, rules: PolicySettings) -> Iterator[str]:
    """Refuse an exact result over few owners: a sum of two tells each of them the other's."""
    others = len(set(session.owners.values()) - {silo})
    if session.program.opening == "exact" and others < rules.min_other_silos:
        yield (
            f"an exact opening must have tables of at least {rules.min_other_silos} "
            f"other owners, got {others}; the owner can lower min_other_silos."
        )


def _link(
    session: Session, silo: str, schema: Schema | None, rules: PolicySettings
) -> Iterator[str]:
    """Refuse a join by another key, with another owner or of other columns than the owner set."""
    program = session.program
    if not isinstance(program, Linked):
        return
    own = program.frame.sides[session.tables_of(silo)[0]]
    # The bound counts joined rows of a key, so the ledger must count the same.
    if schema is None or schema.unit not in own.key:
        yield f"a linked table is charged by its key: the schema must have unit {own.key[0]!r}."
        return
    others = set(session.owners.values()) - {silo}
    # Whoever guesses a further part of the key learns whether a person has it.
    columns = {column.name for column in own.columns} | set(own.key) - {schema.unit}
    for option, asked, allowed in (
        ("link_keys", {program.key}, rules.link_keys),
        ("link_with", others, rules.link_with),
        ("link_columns", columns, rules.link_columns),
    ):
        if strange := sorted(asked - set(allowed)):
            yield f"{strange[0]!r} is not among {option} here: {listed(allowed)}; add it there."


def _receivers(session: Session, rules: PolicySettings) -> Iterator[str]:
    # Results that leave the owners are a publication, which the policy has to allow.
    strange = [name for name in session.receivers if name not in session.owners.values()]
    if strange and not rules.allow_publish:
        yield (
            f"receiver {strange[0]!r} gives no table; the owner must set allow_publish for "
            "results of parties that are not owners."
        )


def _price(program: Program, schema: Schema | None, rules: PolicySettings) -> Iterator[str]:
    event, cap = program.event(), rules.max_epsilon_per_job
    if event is None or schema is None:
        yield f"program {program.name!r} must have the cost and the unit of its private opening."
        return
    if cap is None:
        yield "no epsilon is allowed for a job here; the owner must set max_epsilon_per_job."
        return
    cost = epsilon(event, rules.max_delta)
    # The negated form refuses a cost of NaN too.
    if not cost <= cap:
        yield (
            f"epsilon must be at most {cap:g}, the cap of a job here, got {cost:.3g} at delta "
            f"{rules.max_delta:g}."
        )
    if isinstance(program, Linked):
        return  # it keeps to its keys of a unit, and a person is at all owners by intent
    if schema.unit != "row":  # nothing here keeps to max_rows of a person
        yield f"a private opening on shares counts rows, but the unit here is {schema.unit!r}."
    for name, own in (
        ("max_rows", schema.max_rows or 1),
        ("max_silos", schema.max_silos_per_person),
    ):
        if (asked := getattr(program, name, 1)) != own:
            yield f"{name} of the program must be {own}, as in this schema, got {asked}."
