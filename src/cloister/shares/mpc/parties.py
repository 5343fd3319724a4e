"""One party's part of a session: it shares tables, serves, deals or receives.

All messages use sealed links. Owners of some programs first agree on a secret. Then an owner sends
server 0 a key and server 1 a share for each of its tables. Then the servers run the program. Each
sends every receiver its refreshed shares of the results, and confirms the end to every owner and
receiver. A failing party sends the class of its error and closes its links; its peers then abort.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import BudgetExceeded, DataError, PlanError, RemoteProtocolError
from cloister.core.files import sync_folder
from cloister.federation.transports.links import Carrier, Link, link_to_self
from cloister.federation.transports.tcp import dial, let_in
from cloister.hazmat.prg import KEY_BYTES
from cloister.hazmat.ring import Words, from_bytes, to_bytes, to_integers
from cloister.hazmat.signing import Identity
from cloister.privacy.filter import cheapest_pricing
from cloister.shares.mpc.dealer import Dealer, Supply
from cloister.shares.mpc.ending import told
from cloister.shares.mpc.material import Shape, Sharing
from cloister.shares.mpc.opening import MARKS
from cloister.shares.mpc.program import Opening, Program
from cloister.shares.mpc.sealed import seal
from cloister.shares.mpc.secret import await_owners, owners_secret
from cloister.shares.mpc.server import Cost, Server
from cloister.shares.mpc.session import Session
from cloister.shares.mpc.shares import combine, decode, encode, expand_share, split

if TYPE_CHECKING:
    from cloister.privacy.events import Event
    from cloister.privacy.ledger import Ledger

PATIENCE = 600.0
"""Seconds to wait for a party to connect, and for its next message: at a receiver, for the run."""

_DONE = b"done"
SESSIONS = "share-sessions"
"""Folder with a file for each session, in the party's folder."""


class Tagged(Protocol):
    """An owner's rows that are ready but for tags under the owners' secret."""

    def content(self) -> bytes:
        """Return a digest of the rows."""

    def tagged(self, secret: bytes, session: str) -> Words:
        """Return the table to upload in a session of this id."""


@dataclass(frozen=True)
class Account:
    """The ledger account that pays an owner's part of a private opening.

    Parameters
    ----------
    dataset : str
        A data set of the ledger.
    year_epsilon : float, optional
        Cap of a calendar year.
    """

    ledger: Ledger
    dataset: str
    year_epsilon: float | None = None

    def reserve(self, session: Session, event: Event, tables: Mapping[str, Words | Tagged]) -> None:
        """Reserve the cost of a session; raise BudgetExceeded if it does not fit."""
        # The ledger binds a job to its records, so that one charge pays for one set of records.
        # Without tags, which a repetition of an interrupted session draws anew.
        content = hashlib.sha256()
        for rows in tables.values():
            content.update(to_bytes(rows) if isinstance(rows, np.ndarray) else rows.content())
        self.ledger.reserve(
            dataset=self.dataset,
            study="default",
            job=session.id,
            events=event,
            content=content.digest(),
            year_epsilon=self.year_epsilon,
            task=session.program.name,
        )

    def require_room(self, session: Session, event: Event) -> None:
        """Raise BudgetExceeded if the cost of a new session does not fit; charge nothing."""
        ledger, dataset = self.ledger, self.dataset
        if any(job.job == session.id for job in ledger.jobs(dataset)):
            return  # reserved by an interrupted run
        bounds = [
            (ledger.limits(dataset, study), ledger.cost(dataset, study))
            for study in (None, "default")
        ]
        if cheapest_pricing(event, bounds) is None:
            raise BudgetExceeded(
                f"session {session.id} costs more than {ledger.remaining(dataset, 'default'):.4g}, "
                f"the epsilon left for one more job on data set {dataset!r}; lower its epsilon."
            )

    def release(self, session: Session) -> None:
        """Return the reservation of a session before any share left; its id is used up."""
        self.ledger.close(session.id)

    def spend(self, session: Session, event: Event) -> None:
        """Charge the cost of a session; it stays charged if a message is lost."""
        digest = session.digest().encode()
        self.ledger.commit(job=session.id, round=0, event=event, frame=digest)
        self.ledger.close(session.id)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a party's part: decoded results at a receiver, the cost at a server."""

    opening: Opening
    results: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    cost: Cost | None = None

    @property
    def mark(self) -> str:
        """The text next to the results wherever they are displayed."""
        return MARKS[self.opening]


def words_of(program: Program, table: str, values: ArrayLike) -> Words:
    """Encode an owner's table as words of its public shape.

    A program with ``words(table, values)`` encodes and pads tables itself; for other programs the
    values must have the public shape.

    Raises
    ------
    DataError
        If the shape is wrong, or a value is not finite or too large.
    """
    own = getattr(program, "words", None)
    words: Words = encode(values) if own is None else own(table, values)
    _check_shape(table, words, program.tables()[table])
    return words


def take_part(
    session: Session,
    name: str,
    links: Callable[[], AbstractContextManager[Mapping[str, Link]]],
    folder: Path,
    *,
    tables: Mapping[str, Words | Tagged] | None = None,
    account: Account | None = None,
    identity: Identity | None = None,
) -> Outcome:
    """Run one party's part of a session, in all its roles.

    Semi-honest; the dealer together with either server sees every table.

    Parameters
    ----------
    links : callable
        Opens the sealed links to :meth:`Session.peers_of`, such as :func:`connected`.
    folder : Path
        Folder of this party only; it records the sessions in which the party took part.
    tables : mapping of ndarray, uint64
        Tables of an owner, of the public shapes; see :func:`words_of`. A program with an owners'
        secret takes rows that are ready but for tags under it.
    account : Account
        Account of an owner if the opening is private, charged before the first share is sent.
    identity : Identity
        Of an owner that agrees on a secret with owners to which it has no link.

    Raises
    ------
    PlanError, DataError
        Before anything is sent: for a wrong table, a missing ledger, or a used session.
    BudgetExceeded
        Likewise, if the ledger refuses.
    RemoteProtocolError
        If another party violates the protocol, or as :class:`.ending.Stopped` if one stops. A
        charge remains, and the session cannot be used again.
    """
    given = _checked(session, name, tables or {}, account)
    event = session.program.event() if given else None
    if (folder / SESSIONS / session.id).exists():  # said now, not when all others have come
        raise _used(session)
    with links() as opened, told(name, session.parties, opened) as ends:
        ends[name] = link_to_self()
        if account is not None and event is not None:
            account.reserve(session, event, given)
        try:
            # Owners with a secret wait here until all have reserved and are ready.
            words = _tagged(session, name, ends, given, identity)
        except BaseException:
            if account is not None and event is not None:
                account.release(session)
            raise
        _use_once(folder, session)
        if account is not None and event is not None:
            account.spend(session, event)  # before the first share leaves
        # A server may also be an owner or a receiver, so each part below runs if it applies.
        first, second = (ends[server] for server in session.servers)
        if name == session.dealer:
            Dealer((first, second)).serve()
            return Outcome(session.program.opening)
        for table in words.values():
            key, rest = split(table, _sharing(session))
            first.send(key)
            second.send(to_bytes(rest.ravel()))
        serves = name in session.servers
        cost = _serve(session, session.servers.index(name), ends) if serves else None
        results = _receive(session, ends) if name in session.receivers else {}
        for server in () if serves else session.servers:
            if ends[server].receive() != _DONE:
                raise RemoteProtocolError(
                    f"{server!r} did not confirm that it is done; check its log."
                )
        return Outcome(session.program.opening, results, cost)


def _sharing(session: Session) -> Sharing:
    sharing: Sharing = getattr(session.program, "sharing", Sharing.SUM)
    return sharing


def _tagged(
    session: Session,
    name: str,
    ends: Mapping[str, Link],
    tables: Mapping[str, Words | Tagged],
    identity: Identity | None,
) -> dict[str, Words]:
    """Return an owner's tables as words, with tags under the owners' secret if there is one."""
    has_secret = getattr(session.program, "has_secret", False) and name != session.dealer
    secret, links = owners_secret(session, name, ends, identity) if has_secret else (None, {})
    words: dict[str, Words] = {}
    for table, rows in tables.items():
        if secret is not None and not isinstance(rows, np.ndarray):
            rows = rows.tagged(secret, session.id)
        assert isinstance(rows, np.ndarray)
        _check_shape(table, rows, session.program.tables()[table])
        words[table] = rows
    if has_secret:
        await_owners(session, name, ends, links)
    return words


def _checked(
    session: Session, name: str, tables: Mapping[str, Words | Tagged], account: Account | None
) -> dict[str, Words | Tagged]:
    """Return the tables of a party, in the order of the program."""
    if name not in session.parties:
        raise PlanError(f"{name!r} is not a party of the session; use one of its names.")
    own = session.tables_of(name)
    if set(tables) != set(own):
        raise PlanError(f"{name!r} must give the tables {list(own)}, got {list(tables)}.")
    for table, words in tables.items():
        if isinstance(words, np.ndarray):
            _check_shape(table, words, session.program.tables()[table])
    private = session.program.event() is not None
    # A program that names its opening private without a cost would charge no ledger.
    if (session.program.opening == "private") != private:
        raise PlanError(
            "a program must have a cost if its opening is private, and no cost otherwise."
        )
    if own and private and account is None:
        raise PlanError("a private opening is charged; give the owner's ledger.")
    return {table: tables[table] for table in own}


def _check_shape(table: str, words: Words, shape: Shape) -> None:
    if words.shape != tuple(shape):
        raise DataError(f"table {table!r} must have shape {tuple(shape)}, got {words.shape}.")


def _serve(session: Session, index: int, ends: Mapping[str, Link]) -> Cost:
    """Collect the shares, run the program, and send the shares of its results."""
    program, other = session.program, session.servers[1 - index]
    shares = {
        table: _share(ends[session.owners[table]], index, shape)
        for table, shape in program.tables().items()
    }
    server = Server(index, ends[other], Supply(index, ends[session.dealer]))
    results = program.run(server, shares)
    # Receivers decode by the declared shapes, so a wrong program must fail at the servers.
    shapes = {what: tuple(shape) for what, shape in program.results().items()}
    if shapes != {what: words.shape for what, words in results.items()}:
        raise PlanError(
            f"program {program.name!r} returned other results than it declares; correct it."
        )
    # Shares of results may depend on shares that a receiver knows as an owner.
    fresh = [server.refresh(results[what]) for what in shapes]
    for name in session.receivers:
        for words in fresh:
            ends[name].send(to_bytes(words.ravel()))
    server.supply.close()
    for name in session.clients():
        ends[name].send(_DONE)
    return server.cost


def _share(link: Link, index: int, shape: Shape) -> Words:
    """Return a server's share of a table from its owner."""
    if index == 1:
        return from_bytes(link.receive(), prod(shape)).reshape(shape)
    if len(key := link.receive()) != KEY_BYTES:
        raise RemoteProtocolError(
            f"server 0 must get a key of {KEY_BYTES} bytes for each table, got {len(key)}."
        )
    return expand_share(key, tuple(shape))


def _receive(session: Session, ends: Mapping[str, Link]) -> dict[str, NDArray[Any]]:
    program = session.program
    shares = [
        [from_bytes(ends[name].receive(), prod(s)).reshape(s) for s in program.results().values()]
        for name in session.servers
    ]
    return {
        what: _values(program, what, combine(*both))
        for what, both in zip(program.results(), zip(*shares, strict=True), strict=True)
    }


def _values(program: Program, what: str, words: Words) -> NDArray[Any]:
    """Return opened words as numbers, with ``values(result, words)`` of the program if any."""
    # Labels have no fraction bits.
    plain = to_integers if program.opening == "label" else decode
    own = getattr(program, "values", lambda _, words: plain(words))
    return own(what, words)


def sessions_of(folder: Path) -> Path:
    """Return the folder of a party's sessions, which it alone can read."""
    own = folder / SESSIONS
    try:
        own.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    except OSError as error:
        raise DataError(f"folder {str(own)!r} cannot be made: {error.strerror}.") from None
    return own


def _use_once(folder: Path, session: Session) -> None:
    """Record durably that this party takes part in a session; raise PlanError the second time."""
    used = sessions_of(folder)
    try:
        with (used / session.id).open("x") as note:
            note.write(session.digest() + "\n")
            note.flush()
            os.fsync(note.fileno())
        sync_folder(used)
    except FileExistsError:
        raise _used(session) from None
    except OSError as error:
        raise DataError(f"folder {str(folder)!r} cannot be written: {error.strerror}.") from None


def _used(session: Session) -> PlanError:
    return PlanError(
        f"session {session.id} was used here already, and a second run would be a new query; "
        "agree on a new id."
    )


# Connecting ---------------------------------------------------------------------------------------


@contextmanager
def connected(
    session: Session,
    name: str,
    identity: Identity,
    *,
    timeout: float = PATIENCE,
    listen: str | None = None,
    relay: Callable[[str], Carrier] | None = None,
) -> Iterator[dict[str, Link]]:
    """Connect a party to its peers over TCP or the relay; seal all links and close them at the end.

    Parameters
    ----------
    listen : str, optional
        HOST:PORT to listen at, if it differs from the address that others dial.
    relay : callable
        Opens a link to a peer over the coordinator, for a session with one.

    Raises
    ------
    PlanError
        If the identity is not that of `name` in the session.
    TransportError, RemoteProtocolError
        If a party does not connect, or differs from its pin.
    """
    if identity.fingerprint != session.parties[name].fingerprint:
        raise PlanError(
            f"the session has {session.parties[name].fingerprint} for {name!r}, this identity is "
            f"{identity.fingerprint}; use its keys, or agree on another session."
        )
    digest = session.digest()

    def sealed(peer: str, link: Link) -> Link:
        return seal(link, identity, name, peer, session.parties[peer].fingerprint, digest)

    def reach(peer: str) -> Carrier:
        if (server := session.listener(name, peer)) is not None:
            return dial(session.parties[server].address or "", name, timeout)
        if relay is None:
            raise PlanError("the session needs a relay; connect through the coordinator.")
        return relay(peer)

    arriving = [peer for peer in session.peers_of(name) if session.listener(name, peer) == name]
    links: dict[str, Link] = {}
    with ExitStack() as stack:
        for peer in session.peers_of(name):  # one after the other: their order allows it
            if peer not in arriving:
                carrier = reach(peer)
                stack.push(_closes(carrier))
                links[peer] = sealed(peer, carrier)
        address = listen or session.parties[name].address
        if arriving and address is not None:
            for peer, (carrier, link) in let_in(address, arriving, sealed, timeout).items():
                stack.push(_closes(carrier))
                links[peer] = link
        yield links


def _closes(link: Carrier) -> Callable[..., None]:
    """Return the exit function of a link, which closes it immediately after an error."""
    return lambda kind, error, trace: link.close(at_once=error is not None)
