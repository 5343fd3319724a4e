"""The last message of a party that stops: it ends the others, and names the class of its error.

The words of the error do not leave the party, as they may be for its owner alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

from cloister.core.errors import CloisterError, RemoteProtocolError, TransportError
from cloister.federation.transports.links import MOST_BYTES, Link

_STOP = b"cloister/1: this party stopped; "  # the start of no message of a step
_REASON = re.compile("[A-Za-z]{1,60}")


class Stopped(RemoteProtocolError):
    """Another party stopped, so this one does.

    Parameters
    ----------
    party, reason : str
        The party that stopped first, and the class of its error.
    """

    def __init__(self, party: str, reason: str) -> None:
        super().__init__(
            f"{party!r} stopped with {reason}; read its own message there, and agree on a new "
            "session id."
        )
        self.party, self.reason = party, reason


def stop(name: str, error: BaseException, links: Mapping[str, Link]) -> None:
    """Tell all peers that party `name` stops because of an error, or of another party's."""
    party, reason = (
        (error.party, error.reason) if isinstance(error, Stopped) else (name, type(error).__name__)
    )
    for link in links.values():
        with suppress(CloisterError):  # a peer that is gone needs no word
            link.send(_STOP + f"{reason} {party}".encode())


@contextmanager
def told(
    name: str, parties: Collection[str], links: Mapping[str, Link]
) -> Iterator[dict[str, Link]]:
    """Yield links of party `name` that raise :class:`Stopped`; an error inside stops the peers."""
    try:
        # Only inside, so that links of the caller stay as they are.
        yield {peer: _Told(link, peer, parties) for peer, link in links.items()}
    except BaseException as error:
        stop(name, error, links)
        raise


class _Told:
    """A link whose other end may stop."""

    def __init__(self, link: Link, peer: str, parties: Collection[str]) -> None:
        self._link, self._peer, self._parties = link, peer, parties

    def send(self, body: bytes) -> None:
        try:
            self._link.send(body)
        except TransportError:
            # The last message of the peer, before it closed the link, has the reason.
            with suppress(TransportError):
                while True:
                    self.receive()
            raise

    def receive(self, most: int = MOST_BYTES) -> bytes:
        # A caller that awaits a key allows fewer bytes than a last message has.
        body = self._link.receive(max(most, 200))
        if body.startswith(_STOP):
            reason, _, party = body[len(_STOP) :].decode(errors="replace").partition(" ")
            # Both words are the peer's, and are shown to people.
            known = party in self._parties and _REASON.fullmatch(reason)
            raise Stopped(party, reason) if known else Stopped(self._peer, "an error")
        return body
