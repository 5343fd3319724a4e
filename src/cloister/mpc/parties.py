"""One party's part of a session: gives tables, serves, deals or receives.

All messages travel over sealed links. In order: an owner sends server 0 a key and server 1 a share
for each of its tables; the servers run the program; each sends every receiver its refreshed shares
of the results, and every owner and receiver the word that it is done. Who stops hangs up, so that
all others stop too.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, NDArray

from cloister.errors import DataError, PlanError, RemoteProtocolError, TransportError
from cloister.hazmat.prg import KEY_BYTES
from cloister.hazmat.ring import Words, from_bytes, to_bytes, to_integers
from cloister.hazmat.signing import Identity
from cloister.mpc.dealer import Dealer, Supply
from cloister.mpc.material import Shape
from cloister.mpc.opening import MARKS
from cloister.mpc.program import Opening, Program
from cloister.mpc.sealed import seal
from cloister.mpc.server import Cost, Server
from cloister.mpc.session import Session
from cloister.mpc.shares import combine, decode, encode, expand_share, split
from cloister.privacy.database import sync_folder
from cloister.transports.links import Carrier, Link, link_to_self
from cloister.transports.tcp import Listener, dial

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger

PATIENCE = 600.0
"""Seconds to wait for a party to come, and for its next message: at a receiver, for the run."""

_LAST_WORD = 1.0  # seconds more for who dials in vain to say why
_DONE = b"done"
_USED = "share-sessions"  # a file for each session, in the party's folder


@dataclass(frozen=True)
class Account:
    """Where an owner's part of a private opening is charged.

    Parameters
    ----------
    dataset, study : str
        Of the ledger, which knows the data set.
    year_epsilon : float, optional
        Cap of a calendar year.
    """

    ledger: Ledger
    dataset: str
    study: str = "default"
    year_epsilon: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What a party has after its part.

    Parameters
    ----------
    results : dict of ndarray
        By name, decoded; empty for who receives nothing.
    opening : str
        What the results are.
    cost : Cost or None
        Of a server.
    items : int
        Dealt by the dealer.
    """

    opening: Opening
    results: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    cost: Cost | None = None
    items: int = 0

    @property
    def mark(self) -> str:
        """What is said of the results wherever they are shown."""
        return MARKS[self.opening]


def words_of(program: Program, table: str, values: ArrayLike) -> Words:
    """Return an owner's table as words of its public shape.

    A program with ``words(table, values)`` encodes and pads by itself; for any other the values
    must have the public shape.

    Raises
    ------
    DataError
        If the shape is another, or a value is not finite or too large.
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
    tables: Mapping[str, Words] | None = None,
    account: Account | None = None,
) -> Outcome:
    """Do one party's part of a session, all its roles.

    Semi-honest; the dealer together with either server sees every table.

    Parameters
    ----------
    name : str
        Which party this is.
    links : callable
        Opens the sealed links to :meth:`Session.peers_of`, such as :func:`connected`.
    folder : Path
        Of this party alone; keeps which sessions it took part in.
    tables : mapping of ndarray, uint64
        What an owner gives, of the public shapes; see :func:`words_of`.
    account : Account
        Of an owner, where the opening is private. It is charged before the first share leaves.

    Raises
    ------
    PlanError, DataError
        Before anything is sent: for a wrong table, a missing ledger, or a session that was used.
    BudgetExceeded
        Likewise, if the ledger refuses.
    RemoteProtocolError, TransportError
        If another party breaks the protocol or stops. What was charged stays charged, and the
        session cannot be used again.
    """
    given = _checked(session, name, tables or {}, account)
    if (folder / _USED / session.id).exists():  # said now, not when all others have come
        raise _used(session)
    with links() as opened:
        ends = {**opened, name: link_to_self()}
        if given and (event := session.program.event()) is not None and account is not None:
            content = hashlib.sha256(b"".join(to_bytes(words) for words in given.values()))
            account.ledger.reserve(
                dataset=account.dataset,
                study=account.study,
                job=session.id,
                events=event,
                content=content.digest(),
                year_epsilon=account.year_epsilon,
            )
            _use_once(folder, session)
            # Spend, then release. Nothing is sent again: what is lost on the way stays charged.
            digest = session.digest().encode()
            account.ledger.commit(job=session.id, round=0, event=event, frame=digest)
            account.ledger.close(session.id)
        else:
            _use_once(folder, session)
        if name == session.dealer:
            items = Dealer((ends[session.servers[0]], ends[session.servers[1]])).serve()
            return Outcome(session.program.opening, items=items)
        for words in given.values():
            key, rest = split(words)
            ends[session.servers[0]].send(key)
            ends[session.servers[1]].send(to_bytes(rest.ravel()))
        cost = (
            _serve(session, session.servers.index(name), ends) if name in session.servers else None
        )
        results = _receive(session, ends) if name in session.receivers else {}
        if cost is None:
            for server in session.servers:
                if ends[server].receive() != _DONE:
                    raise RemoteProtocolError(f"{server!r} did not say that it is done; ask it.")
        return Outcome(session.program.opening, results, cost)


def _checked(
    session: Session, name: str, tables: Mapping[str, Words], account: Account | None
) -> dict[str, Words]:
    """Return what a party gives, in the order of the program."""
    if name not in session.parties:
        raise PlanError(f"{name!r} is no party of the session; use one of its names.")
    own = session.tables_of(name)
    if set(tables) != set(own):
        raise PlanError(f"{name!r} must give the tables {list(own)}, got {list(tables)}.")
    for table, words in tables.items():
        _check_shape(table, words, session.program.tables()[table])
    event = session.program.event()
    if (session.program.opening == "private") != (event is not None):
        raise PlanError("a program must have a cost where its opening is private, and only there.")
    if own and event is not None and account is None:
        raise PlanError("a private opening is charged; give the owner's ledger.")
    return {table: tables[table] for table in own}


def _check_shape(table: str, words: Words, shape: Shape) -> None:
    if words.shape != tuple(shape):
        raise DataError(f"table {table!r} must have shape {tuple(shape)}, got {words.shape}.")


def _serve(session: Session, index: int, ends: Mapping[str, Link]) -> Cost:
    """Collect the shares, run the program, send the shares of its results."""
    program, other = session.program, session.servers[1 - index]
    shares: dict[str, Words] = {}
    for table, shape in program.tables().items():
        owner = session.owners[table]
        body = ends[owner].receive()
        if index == 0 and len(body) != KEY_BYTES:
            raise RemoteProtocolError(f"{owner!r} must send a key of {KEY_BYTES} bytes first.")
        shares[table] = (
            expand_share(body, tuple(shape))
            if index == 0
            else from_bytes(body, prod(shape)).reshape(shape)
        )
    server = Server(index, ends[other], Supply(index, ends[session.dealer]))
    results = program.run(server, shares)
    found = {what: words.shape for what, words in results.items()}
    if found != {what: tuple(shape) for what, shape in program.results().items()}:
        raise PlanError(f"program {program.name!r} gave other results than it declares; mend it.")
    fresh = [server.refresh(results[what]) for what in program.results()]
    for name in session.receivers:
        for words in fresh:
            ends[name].send(to_bytes(words.ravel()))
    server.supply.close()
    for name in session.clients():
        ends[name].send(_DONE)
    return server.cost


def _receive(session: Session, ends: Mapping[str, Link]) -> dict[str, NDArray[Any]]:
    shares = [
        {
            what: from_bytes(ends[name].receive(), prod(shape)).reshape(shape)
            for what, shape in session.program.results().items()
        }
        for name in session.servers
    ]
    return {
        what: _values(session.program, what, combine(words, shares[1][what]))
        for what, words in shares[0].items()
    }


def _values(program: Program, what: str, words: Words) -> NDArray[Any]:
    """Return opened words as numbers; a program with ``values(result, words)`` says how."""
    own = getattr(program, "values", None)
    if own is not None:
        found: NDArray[Any] = own(what, words)
        return found
    return to_integers(words) if program.opening == "label" else decode(words)


def _use_once(folder: Path, session: Session) -> None:
    """Record durably that this party takes part in a session; refuse a second time."""
    used = folder / _USED
    try:
        used.mkdir(mode=stat.S_IRWXU, exist_ok=True)
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
    """Connect a party to its peers over TCP or the relay, seal every link, close all at the end.

    Parameters
    ----------
    timeout : float
        Seconds; see :data:`PATIENCE`.
    listen : str, optional
        HOST:PORT to listen at, where that is not the address that others dial.
    relay : callable
        Opens a link to a peer over the coordinator, for a session with one.

    Raises
    ------
    PlanError
        If the identity is not that of `name` in the session.
    TransportError, RemoteProtocolError
        If somebody does not come, or is not who was pinned.
    """
    if identity.fingerprint != session.parties[name].fingerprint:
        raise PlanError(
            f"the session has {session.parties[name].fingerprint} for {name!r}, this identity is "
            f"{identity.fingerprint}; use its keys, or agree on another session."
        )
    digest = session.digest()

    def sealed(peer: str, link: Link) -> Link:
        return seal(link, identity, name, peer, session.parties[peer].fingerprint, digest)

    def reach(peer: str, server: str | None) -> Link:
        if server is not None:
            carrier: Carrier = dial(session.parties[server].address or "", name, timeout)
        elif relay is not None:
            carrier = relay(peer)
        else:
            raise PlanError("the session needs a relay; connect over the coordinator.")
        stack.push(_closes(carrier))
        if over.is_set():
            carrier.close(at_once=True)
        return sealed(peer, carrier)

    listens = {peer: session.listener(name, peer) for peer in session.peers_of(name)}
    arriving = [peer for peer, server in listens.items() if server == name]
    over = Event()
    with ExitStack() as stack:
        stack.callback(over.set)  # last of all
        ends: dict[str, Future[Link]] = {}
        if arriving:
            address = listen or session.parties[name].address or ""
            listener = Listener(address, arriving, sealed, timeout)
            stack.push(_closes(listener))
            ends |= listener.arrivals
        # Each in a thread of its own, or three could wait in a ring.
        ends |= {
            peer: _in_background(partial(reach, peer, server))
            for peer, server in listens.items()
            if server != name
        }
        done, late = wait(ends.values(), timeout + _LAST_WORD, FIRST_EXCEPTION)
        for end in done:
            end.result()  # or what went wrong
        if late:
            missing = next(peer for peer, end in ends.items() if end in late)
            raise TransportError(
                f"{missing!r} did not come within {timeout:g} s; start it with the same session "
                "file."
            )
        yield {peer: end.result() for peer, end in ends.items()}


def _in_background(work: Callable[[], Link]) -> Future[Link]:
    """Call something in a thread that does not hold up the end of the process."""
    future: Future[Link] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _closes(link: Carrier | Listener) -> Callable[..., None]:
    """Return what closes a link at the end of a block: at once after an error."""
    return lambda kind, error, trace: link.close(at_once=error is not None)
