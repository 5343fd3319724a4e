"""A sealed link carries the next message of the pinned party, or nothing."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cloister.core.errors import (
    CloisterError,
    LocalProtocolError,
    RemoteProtocolError,
    TransportError,
)
from cloister.federation.transports.links import Link
from cloister.hazmat import kex
from cloister.hazmat.signing import Identity
from cloister.shares.mpc import local_links
from cloister.shares.mpc.sealed import SealedLink, seal

A, B, C = Identity.new(), Identity.new(), Identity.new()


class Carrier:
    """A link on which a stranger sits: it keeps all that is sent, and delivers what it likes."""

    def __init__(self, link: Link) -> None:
        self.link, self.receive = link, link.receive
        self.change: Callable[[bytes], bytes] = lambda body: body
        self.kept: list[bytes] = []

    def send(self, body: bytes) -> None:
        self.kept.append(body)
        self.link.send(self.change(body))


def pair(
    session: tuple[str, str] = ("s", "s"),
    names: tuple[tuple[str, str], tuple[str, str]] = (("a", "b"), ("b", "a")),
    pins: tuple[str, str] = (B.fingerprint, A.fingerprint),
    change: Callable[[bytes], bytes] = lambda body: body,
) -> tuple[SealedLink, SealedLink, Carrier, Link]:
    """Return two sealed ends, what carries from the first, and the raw end of the second."""
    ours, theirs = local_links(60)
    carrier = Carrier(ours)
    carrier.change = change
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(seal, theirs, B, *names[1], pins[1], session[1])
        try:
            mine = seal(carrier, A, *names[0], pins[0], session[0])
        except CloisterError:
            carrier.link.send(b"")  # nobody waits for the signature of an end that gave up
            other.exception()
            raise
        carrier.change = lambda body: body
        return mine, other.result(), carrier, theirs


def test_messages_arrive_whole_and_in_order_both_ways() -> None:
    mine, other, carrier, _ = pair()
    large = np.random.default_rng(1).bytes(3_000_000)
    for body in (b"", b"one", large):
        mine.send(body)
        other.send(body[::-1])
        assert other.receive() == body
        assert mine.receive() == body[::-1]
    assert len(carrier.kept[-1]) == len(large) + 16
    assert large[:64] not in carrier.kept[-1]


def test_a_message_that_was_changed_does_not_open() -> None:
    mine, other, carrier, _ = pair()
    for position in (0, 5, -1):

        def flip(body: bytes, at: int = position) -> bytes:
            changed = bytearray(body)
            changed[at] ^= 1
            return bytes(changed)

        carrier.change = flip
        mine.send(b"twelve bytes")
        with pytest.raises(RemoteProtocolError, match="message 0 of 'a' was changed"):
            other.receive()
    carrier.change = lambda body: body[:-1]
    mine.send(b"twelve bytes")
    with pytest.raises(RemoteProtocolError):
        other.receive()


def test_a_message_that_is_repeated_swapped_or_left_out_does_not_open() -> None:
    mine, other, carrier, _ = pair()
    carrier.kept.clear()
    mine.send(b"one")
    mine.send(b"two")
    assert other.receive() == b"one"
    assert other.receive() == b"two"
    first, second = carrier.kept
    for again in (first, second):
        carrier.link.send(again)
        with pytest.raises(RemoteProtocolError, match="repeated, out of order"):
            other.receive()
    mine.send(b"lost")
    other._link.receive()  # it is dropped on the way
    mine.send(b"next")
    with pytest.raises(RemoteProtocolError, match="message 2 of 'a'"):
        other.receive()


def test_a_message_that_is_sent_back_or_elsewhere_does_not_open() -> None:
    mine, _, carrier, raw = pair()
    _, elsewhere, other_carrier, _ = pair()
    carrier.kept.clear()
    mine.send(b"for b")
    raw.send(carrier.kept[0])
    with pytest.raises(RemoteProtocolError, match="of 'b' was changed"):
        mine.receive()
    other_carrier.link.send(carrier.kept[0])  # the same parties and number, another handshake
    with pytest.raises(RemoteProtocolError, match="not sealed for 'b' in this session"):
        elsewhere.receive()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pins": (C.fingerprint, A.fingerprint)}, "is not the party of the pinned fingerprint"),
        ({"session": ("s", "t")}, "signed another session"),
        ({"names": (("a", "b"), ("c", "a"))}, "signed another session, other names"),
        ({"names": (("a", "b"), ("b", "c"))}, "signed another session, other names"),
    ],
)
def test_another_party_session_or_name_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=re.escape(says)):
        pair(**changes)  # type: ignore[arg-type]


def test_a_handshake_that_was_changed_is_refused() -> None:
    """Whoever puts its own key in place of a party's cannot sign it."""
    private = bytes(range(32))

    def in_the_middle(body: bytes) -> bytes:
        return (
            kex.public_of(private) + body[32:]
            if len(body) == 64 and body[32:] == A.public
            else body
        )

    with pytest.raises(CloisterError):
        pair(change=in_the_middle)
    for length in (0, 32, 63, 65):
        ours, theirs = local_links(0.1)
        theirs.send(bytes(length))
        with pytest.raises(RemoteProtocolError, match=r"pinned fingerprint|at most 64 bytes"):
            seal(ours, A, "a", "b", B.fingerprint, "s")


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little")])
def test_a_key_that_makes_the_secret_predictable_is_refused(point: bytes) -> None:
    """The pinned party itself sends it, signed: the link would be open to everybody."""
    ours, theirs = local_links(60)

    def cheat() -> None:
        hello = theirs.receive()
        theirs.send(point + B.public)
        parts = [b"b", point, B.public, b"a", hello[:32], hello[32:]]
        theirs.send(B.sign(b"cloister/1/share-link", b"s", *parts))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(cheat)
        with pytest.raises(RemoteProtocolError, match="public key is invalid"):
            seal(ours, A, "a", "b", B.fingerprint, "s")


def test_one_party_at_both_ends_is_refused() -> None:
    ours, _ = local_links(0.1)
    for peer, pin in (("a", B.fingerprint), ("b", A.fingerprint)):
        with pytest.raises(LocalProtocolError, match="two parties"):
            seal(ours, A, "a", peer, pin, "s")


def test_what_a_transport_says_names_the_other_end() -> None:
    mine, _, carrier, _ = pair()
    carrier.link.timeout = 0.01  # type: ignore[attr-defined]
    with pytest.raises(TransportError, match="link to 'b': no message came"):
        mine.receive()


def test_a_sealed_link_is_never_stored_and_shows_no_key() -> None:
    mine, other, _, _ = pair()
    assert mine._sending == other._receiving != mine._receiving == other._sending
    with pytest.raises(TypeError, match="cannot be stored"):
        pickle.dumps(mine)
    assert repr(mine) == "SealedLink(to='b', sent=0, received=0)"
