"""End-to-end sealed links between two parties that pinned each other's keys.

A carrier that knows the material of two servers could compute their values from an opening x - a
and the dealt a. So every message of a server is sealed, on every transport.

Both ends send a fresh X25519 key, then sign both keys, both names and the digest of the session
with their pinned Ed25519 keys. Each direction has a separate key. Message number n of a direction
is sealed under nonce n, with session, sender, receiver and n authenticated. A message that was
changed, repeated, omitted, swapped or redirected does not open.

References
----------
W. Diffie, P. van Oorschot, M. Wiener, "Authentication and authenticated key exchanges", 1992,
section 5 (station to station; here the signatures name both parties). RFC 7748, RFC 8032, RFC 8439.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cloister.core.errors import LocalProtocolError, RemoteProtocolError, TransportError
from cloister.core.randomness import new_key
from cloister.federation.transports.links import MOST_BYTES, Link
from cloister.hazmat import kex
from cloister.hazmat.prg import Usage, join
from cloister.hazmat.signing import PUBLIC_BYTES, SIGNATURE_BYTES, Identity, fingerprint_of, verify

_LABEL = b"cloister/1/share-link"


class SealedLink:
    """One end of a sealed link; see :func:`seal`."""

    def __init__(self, link: Link, keys: tuple[bytes, bytes], ends: tuple[str, str, str]) -> None:
        self._link = link
        self._sending, self._receiving = keys
        self._session, self._name, self._peer = ends
        self._sent = self._received = 0

    def send(self, body: bytes) -> None:
        """Seal and send a message without waiting for the other party to read it."""
        number, self._sent = self._sent, self._sent + 1
        about = self._about(self._name, self._peer, number)
        with _named(self._peer):
            self._link.send(kex.seal(self._sending, body, number, about))

    def receive(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message; see :meth:`Link.receive`.

        Raises
        ------
        RemoteProtocolError
            If it is not the unchanged next message of the other party in this session.
        """
        with _named(self._peer):
            box = self._link.receive(most + kex.SEAL_BYTES)
        # Counted at both ends and not sent, so that an omitted message is detected.
        number = self._received
        try:
            body = kex.unseal(
                self._receiving, box, number, self._about(self._peer, self._name, number)
            )
        except RemoteProtocolError:
            raise RemoteProtocolError(
                f"message {number} of {self._peer!r} was changed, repeated, out of order or not "
                f"sealed for {self._name!r} in this session; check the carrier of the link."
            ) from None
        self._received += 1
        return body

    def _about(self, sender: str, receiver: str, number: int) -> bytes:
        return join(
            (self._session.encode(), sender.encode(), receiver.encode(), number.to_bytes(8, "big"))
        )

    def __repr__(self) -> str:
        return f"SealedLink(to={self._peer!r}, sent={self._sent}, received={self._received})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("SealedLink holds keys and cannot be stored; connect again.")


@contextmanager
def _named(peer: str) -> Iterator[None]:
    """Add the other end's name to errors of the transport."""
    try:
        yield
    except TransportError as error:
        raise TransportError(f"link to {peer!r}: {error}") from error


def seal(
    link: Link, identity: Identity, name: str, peer: str, pin: str, session: str
) -> SealedLink:
    """Shake hands over a link and return it sealed; both ends call this.

    Parameters
    ----------
    link : Link
        A link over any transport, which may drop, change and read messages.
    name, peer : str
        Names of this party and the other.
    pin : str
        Fingerprint of the other party, compared out of band.
    session : str
        Digest of the session; both ends must have the same.

    Raises
    ------
    RemoteProtocolError
        If the other end differs from the pin, or has another session or other names.
    TransportError
        If the other end does not answer.
    """
    # With one key at both ends, a carrier could reflect a party's messages to itself.
    if name == peer or identity.fingerprint == pin:
        raise LocalProtocolError(
            f"a link must have two parties, got {name!r} at both ends or one key for both; "
            "give each party a different name and key."
        )
    private = new_key()
    mine = kex.public_of(private)
    with _named(peer):
        link.send(mine + identity.public)
        hello = link.receive(kex.PUBLIC_BYTES + PUBLIC_BYTES)
    theirs, public = hello[: kex.PUBLIC_BYTES], hello[kex.PUBLIC_BYTES :]
    if len(hello) != kex.PUBLIC_BYTES + PUBLIC_BYTES or fingerprint_of(public) != pin:
        raise RemoteProtocolError(
            f"the other end of the link to {peer!r} is not the party of the pinned fingerprint "
            f"{pin}; compare it with its owner."
        )
    # Names and both keys are signed, so that a signature fits one link and one direction only.
    here, there = (name.encode(), mine, identity.public), (peer.encode(), theirs, public)
    forth, back = (session.encode(), *here, *there), (session.encode(), *there, *here)
    with _named(peer):
        link.send(identity.sign(_LABEL, *forth))
        signature = link.receive(SIGNATURE_BYTES)
    if not verify(public, signature, _LABEL, *back):
        raise RemoteProtocolError(
            f"{peer!r} signed another session, other names or other keys than this party has; "
            "give all parties one session file."
        )
    sending, receiving = (
        kex.agree(private, theirs, Usage.LINK, join(said)) for said in (forth, back)
    )
    return SealedLink(link, (sending, receiving), (session, name, peer))
