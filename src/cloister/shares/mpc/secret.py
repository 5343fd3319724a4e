"""A secret of all owners of a session, which neither servers nor the dealer learn.

The first owner draws it and sends it to each other owner. Owners have no link to each other unless
one of them is a server. Else server 0 carries five frames for each pair: both owners seal a link
through it, as all links are sealed, and it sees ciphertext alone.
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


def owners_secret(
    session: Session, name: str, ends: Mapping[str, Link], identity: Identity | None
) -> bytes | None:
    """Return the secret at an owner, fresh for the session; None at other parties.

    Owners and server 0 call it before any share is sent.

    Raises
    ------
    RemoteProtocolError
        If the other owner differs from its pin, or server 0 changes a frame.
    """
    first, *others = dict.fromkeys(session.owners[table] for table in session.program.tables())
    # All parties go through the pairs in one order, so no one waits in a circle.
    relay = session.servers[0]
    secret = new_key() if name == first else None
    for other in others:
        have_link = not {first, other}.isdisjoint(session.servers)
        if name == relay and not have_link:
            _carry(ends[first], ends[other])
        if name not in (first, other):
            continue
        peer = other if name == first else first
        link = ends[peer] if have_link else _through(session, name, peer, ends[relay], identity)
        if secret is None:
            secret = link.receive(KEY_BYTES)
            if len(secret) != KEY_BYTES:
                raise RemoteProtocolError(f"{first!r} sent a secret of another length; start anew.")
        else:
            link.send(secret)
    return secret


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
