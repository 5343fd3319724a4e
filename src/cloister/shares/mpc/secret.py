"""A secret of all owners of a session, which neither servers nor the dealer learn.

The first owner draws it and sends it to each other owner. When all are ready to send shares, it
tells them to go on. No owner is charged before, so one that is refused costs the others nothing.
Owners have no link to each other unless one of them is a server. Else server 0 carries seven
frames for each pair: both owners seal a link through it, as all links are sealed, and it sees
ciphertext alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloister.core.errors import PlanError, RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.federation.transports.links import Link
from cloister.hazmat.prg import KEY_BYTES
from cloister.hazmat.signing import Identity
from cloister.shares.mpc.sealed import seal
from cloister.shares.mpc.session import Session

_READY = b"ready"


def owners_secret(
    session: Session, name: str, ends: Mapping[str, Link], identity: Identity | None
) -> tuple[bytes | None, dict[str, Link]]:
    """Return the secret at an owner, fresh for the session, and its links to other owners.

    Owners and server 0 call it before any share is sent. Other parties get None.

    Raises
    ------
    RemoteProtocolError
        If the other owner differs from its pin, or server 0 changes a frame.
    """
    first, others, apart = _owners(session)
    relay = session.servers[0]
    secret = new_key() if name == first else None
    links: dict[str, Link] = {}
    # All parties go through the pairs in one order, so no one waits in a circle.
    for other in others:
        if name == relay and other in apart:
            _carry(ends[first], ends[other])
        if name not in (first, other):
            continue
        peer = other if name == first else first
        links[peer] = (
            _through(session, name, peer, ends[relay], identity) if other in apart else ends[peer]
        )
        if secret is None:
            secret = links[peer].receive(KEY_BYTES)
            if len(secret) != KEY_BYTES:
                raise RemoteProtocolError(f"{first!r} sent a secret of another length; start anew.")
        else:
            links[peer].send(secret)
    return secret, links


def await_owners(
    session: Session, name: str, ends: Mapping[str, Link], links: Mapping[str, Link]
) -> None:
    """Return when all owners are ready: each one tells the first, which then tells each.

    Parameters
    ----------
    links : mapping
        Of :func:`owners_secret`.
    """
    first, others, apart = _owners(session)
    # First all others to the first, then back, so that none goes on before the last is ready.
    pairs = [
        *((other, first, other) for other in others),
        *((first, other, other) for other in others),
    ]
    for sender, receiver, other in pairs:
        if name == session.servers[0] and other in apart:
            ends[receiver].send(ends[sender].receive())
        if name == sender:
            links[receiver].send(_READY)
        elif name == receiver and links[sender].receive() != _READY:
            raise RemoteProtocolError(f"{sender!r} sent no word that it is ready; start anew.")


def _owners(session: Session) -> tuple[str, list[str], set[str]]:
    """Return the first owner, the others, and those of them without a link to it."""
    first, *others = dict.fromkeys(session.owners[table] for table in session.program.tables())
    apart = {other for other in others if {first, other}.isdisjoint(session.servers)}
    return first, others, apart


def _through(session: Session, name: str, peer: str, link: Link, identity: Identity | None) -> Link:
    """Return a sealed link to another owner over one to server 0."""
    if identity is None:
        raise PlanError("owners of this program agree on a secret; give the owner's identity.")
    return seal(link, identity, name, peer, session.parties[peer].fingerprint, session.digest())


def _carry(first: Link, other: Link) -> None:
    """Carry the two frames of each end of a handshake, and then the sealed secret."""
    for _ in range(2):
        frame, answer = first.receive(), other.receive()
        other.send(frame)
        first.send(answer)
    other.send(first.receive())
