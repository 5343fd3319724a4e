"""``LinkedTable``: a question about persons of several owners, its plan, and a run at a desk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloister.core.errors import PlanError
from cloister.core.randomness import new_nonce
from cloister.data.loss import warn_owner
from cloister.federation.transports.links import Link, local_links
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.shares.linking.analyses import Analysis
from cloister.shares.linking.columns import Side
from cloister.shares.linking.found import Found, Ran
from cloister.shares.linking.keys import Part
from cloister.shares.linking.merge import How
from cloister.shares.linking.program import Linked
from cloister.shares.linking.rows import Prepared
from cloister.shares.mpc.ending import Stopped, told
from cloister.shares.mpc.parties import Account, Outcome, take_part
from cloister.shares.mpc.session import Party, Session

_PATIENCE = 3600.0  # seconds that a party in this process waits for another one
_NEUTRAL = ("desk-dealer", "desk-server-0", "desk-server-1")


@dataclass(frozen=True, kw_only=True)
class LinkedTable:
    """Noisy answers about persons whose columns are at two or three owners.

    Parameters
    ----------
    key : str
        Name of the key, which the policies of the owners allow.
    parts : sequence of Part
        The rule of each part of the key, the same at every owner.
    sides : mapping of str to Side
        The table of each owner: public number of places, key columns, and columns with bounds.
    analyses : sequence of Analysis
        Such as :class:`~.analyses.Table` and :class:`~.analyses.Logistic`.
    epsilon, delta : float
        Budget of the whole run, charged to every owner.
    keys_per_person : int
        The most keys of one person. 1 if the key is a person's number.
    how : {"inner", "left", "union", "outer"}
    least_matches : int
        A smaller released size withholds all other answers.
    """

    key: str
    parts: Sequence[Part]
    sides: Mapping[str, Side]
    analyses: Sequence[Analysis]
    epsilon: float
    keys_per_person: int
    delta: float = 1e-6
    how: How = "inner"
    least_matches: int = 50

    def options(self) -> dict[str, Any]:
        """Return the options of the session file, JSON-able."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    @cached_property
    def program(self) -> Linked:
        """The program; it raises PlanError if the parameters do not fit together."""
        return Linked(**self.options())

    def run_here(
        self,
        tables: Mapping[str, Any],
        accounts: Mapping[str, Account] | None = None,
        max_loss: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
    ) -> Found:
        """Run all parties in this process, which sees all tables: for trials and for one owner.

        Parameters
        ----------
        tables : mapping of str to table or path
            The table of each owner.
        accounts : mapping of str to Account, optional
            Each owner's account, charged before its first share is sent. Give it, or a ledger.
        max_loss : float in [0, 1], optional
            Share of each owner's rows that may be left out: without a key, with an unreadable
            cell, or unlike an earlier row of their key. 5 % by default.
        ledger : Ledger or path, optional
            Charged once for all tables. Without it and without accounts, the cost is not added to
            that of other releases, and a warning names this.
        dataset : str, optional
            Data set in the ledger, required with it.

        Raises
        ------
        DataError, PlanError, BudgetExceeded
            Before any share is sent.
        """
        program, given = self.program, self._accounts(accounts, ledger, dataset)
        # Read before anything runs, so that a bad table costs nothing.
        ready = self._ready(tables, max_loss)
        identities = {name: Identity.new() for name in (*self.sides, *_NEUTRAL)}
        session = self._session(identities)
        paid = {name: given.get(name) or self._new_account(name) for name in self.sides}
        outcomes = _run(session, identities, ready, paid)
        found = program.found(outcomes[session.receivers[0]].results)
        return replace(found, ran=Ran(session, in_process=True, charged=bool(given)))

    def _ready(self, tables: Mapping[str, Any], max_loss: float | None) -> Mapping[str, Prepared]:
        """Return the rows of each owner, who is warned of lost rows and clips."""
        if not isinstance(tables, Mapping):
            shown = ", ".join(f"{name!r}: ..." for name in self.sides)
            raise PlanError(f"tables must name their owners, such as {{{shown}}}.")
        if set(tables) != set(self.sides):
            raise PlanError(f"tables must be those of {', '.join(self.sides)}, got {list(tables)}.")
        ready = {name: self.program.prepare(name, tables[name]) for name in self.sides}
        for name, rows in ready.items():
            rows.refuse_loss(name, max_loss)
            for notice in rows.notices(name):
                warn_owner(notice)
        return ready

    def _session(self, identities: Mapping[str, Identity]) -> Session:
        """Return a new session of the owners, who receive, and of neutral servers and dealer."""
        return Session(
            id=new_nonce(),
            program=self.program,
            options=self.options(),
            dealer=_NEUTRAL[0],
            servers=_NEUTRAL[1:],
            owners={name: name for name in self.sides},
            receivers=tuple(self.sides),
            parties={
                name: Party(fingerprint=identity.fingerprint, address="localhost:1")
                for name, identity in identities.items()
            },
        )

    def _accounts(
        self,
        accounts: Mapping[str, Account] | None,
        ledger: Ledger | str | Path | None,
        dataset: str | None,
    ) -> Mapping[str, Account]:
        if accounts is not None:
            if ledger is not None:
                raise PlanError("accounts must be given without a ledger; leave one of them out.")
            if strange := set(accounts) - set(self.sides):
                raise PlanError(
                    f"accounts must be of {', '.join(self.sides)}, got {sorted(strange)}; a "
                    "ledger would not be charged."
                )
            return accounts
        # On use, since a party's command needs no estimator.
        from cloister.estimators.release import account_of

        found = account_of(ledger, dataset)
        # Once, since neighbours differ by the rows of one person in all tables.
        return {next(iter(self.sides)): Account(found.ledger, found.dataset)} if found else {}

    def _new_account(self, name: str) -> Account:
        ledger = Ledger(None)
        ledger.open_dataset(name, cap=Budget(self.epsilon, self.delta), unit=self.key)
        return Account(ledger, name)


def _run(
    session: Session,
    identities: Mapping[str, Identity],
    ready: Mapping[str, Prepared],
    paid: Mapping[str, Account],
) -> Mapping[str, Outcome]:
    """Run all parties of a session in threads, and return the outcome of each."""
    ends = _links(session)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(identities)) as pool:

        def part(name: str) -> Outcome:
            # Also an error before the links are used, which `take_part` does not tell.
            with told(name, session.parties, ends[name]):
                own = Path(folder, name)
                own.mkdir()
                return take_part(
                    session,
                    name,
                    lambda: nullcontext(ends[name]),
                    own,
                    tables={name: ready[name]} if name in ready else {},
                    account=paid.get(name),
                    identity=identities[name],
                )

        running = {name: pool.submit(part, name) for name in identities}
        errors = [error for one in running.values() if (error := one.exception())]
        if errors:
            # A party that stops ends the others, whose errors are no cause.
            raise min(errors, key=lambda one: isinstance(one, Stopped))
        return {name: one.result() for name, one in running.items()}


def _links(session: Session) -> Mapping[str, Mapping[str, Link]]:
    """Return each party's ends of links to its peers; not sealed, since all are one process."""
    ends: dict[str, dict[str, Link]] = {name: {} for name in session.parties}
    for name in ends:
        for peer in session.peers_of(name):
            if name < peer:
                ends[name][peer], ends[peer][name] = local_links(_PATIENCE)
    return ends


def _plain(value: Any) -> Any:
    """Return a value as JSON-able options, those of a frozen value without its defaults."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if not is_dataclass(value):
        return value
    kind = {"kind": value.kind} if isinstance(value, Analysis) else {}
    given = {one.name: getattr(value, one.name) for one in fields(value)}
    usual = {one.name: one.default for one in fields(value)}
    return kind | {name: _plain(part) for name, part in given.items() if part != usual[name]}
