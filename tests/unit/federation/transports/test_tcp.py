"""Links over TCP: whole messages both ways at once, limits, and strangers at the door."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import PlanError, RemoteProtocolError, TransportError
from cloister.federation.transports.links import MOST_BYTES, Carrier, Link
from cloister.federation.transports.tcp import STRANGERS, TcpLink, address_of, dial, let_in
from cloister.hazmat.signing import Identity
from cloister.shares.inference.programs import PROGRAMS
from cloister.shares.mpc.parties import connected
from cloister.shares.mpc.session import Session


@pytest.fixture
def ends() -> Iterator[tuple[TcpLink, TcpLink]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    first, second = TcpLink(dialled, 60.0), TcpLink(accepted, 60.0)
    with closing(first), closing(second):
        yield first, second


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def test_both_ends_send_megabytes_before_either_reads(ends: tuple[TcpLink, TcpLink]) -> None:
    bodies = [np.random.default_rng(i).bytes(8_000_000) for i in (1, 2)]
    for end, body in zip(ends, bodies, strict=True):
        end.send(body)
        end.send(b"")
        end.send(b"after")
    for end, body in zip(ends, bodies[::-1], strict=True):
        assert end.receive() == body
        assert end.receive() == b""
        assert end.receive() == b"after"


def test_closing_sends_what_waits(ends: tuple[TcpLink, TcpLink]) -> None:
    first, second = ends
    body = bytes(4_000_000)
    first.send(body)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(second.receive)
        first.close()
        assert len(found.result()) == len(body)
    with pytest.raises(TransportError, match="closed the link before the run ended"):
        second.receive()
    with pytest.raises(TransportError, match="broken"):
        first.send(b"more")


def test_a_message_that_does_not_come_or_stops_half_way_ends_the_wait(
    ends: tuple[TcpLink, TcpLink],
) -> None:
    first, second = ends
    second.timeout = 0.05
    with pytest.raises(TransportError, match=r"no message came within 0\.05 s"):
        second.receive()
    first._writing.send((10).to_bytes(8, "big") + b"half")
    with pytest.raises(TransportError, match="no message came"):
        second.receive()


def test_an_end_that_never_reads_is_noticed_by_the_sender(ends: tuple[TcpLink, TcpLink]) -> None:
    first, _ = ends
    first.timeout = 0.05
    first.send(bytes(8_000_000))
    assert isinstance(first._leaving[0].exception(5), TransportError)
    with pytest.raises(TransportError, match="nothing was read within"):
        first.send(b"more")


def test_a_message_over_the_limit_is_refused_before_it_is_read(
    ends: tuple[TcpLink, TcpLink],
) -> None:
    first, second = ends
    first._writing.send((1 << 62).to_bytes(8, "big"))
    with pytest.raises(RemoteProtocolError, match="at most 1000 bytes"):
        second.receive(1000)


def test_an_end_that_is_gone_is_named(ends: tuple[TcpLink, TcpLink]) -> None:
    first, second = ends
    second.close(at_once=True)

    def send_on() -> None:
        for _ in range(100):
            first.send(bytes(100_000))

    with pytest.raises(TransportError):
        send_on()


def as_is(name: str, link: Link) -> Link:
    """Seal nothing: who says "liar" fails."""
    if link.receive() != b"genuine":
        raise RemoteProtocolError("not who was pinned")
    return link


@contextmanager
def letting_in(address: str, *expected: str) -> Iterator[Future[dict[str, tuple[TcpLink, Link]]]]:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(let_in, address, expected, as_is, 60.0)
        yield found
        for link, _ in found.result(60).values():
            link.close(at_once=True)


def answer(link: Link, word: bytes) -> bytes:
    link.send(word)
    return link.receive()


def test_who_is_expected_comes_in_and_strangers_are_hung_up_on(address: str) -> None:
    with letting_in(address, "a", "b") as found, ExitStack() as stack:
        for name, word in (("mallory", b"genuine"), ("a", b"liar"), ("x" * 5000, b"genuine")):
            stranger = dial(address, name, 60.0)
            with closing(stranger), pytest.raises(TransportError):
                answer(stranger, word)
        stack.enter_context(socket.create_connection(address_of(address)))  # it says nothing
        first = stack.enter_context(closing(dial(address, "a", 60.0)))
        first.send(b"genuine")
        time.sleep(0.1)
        second = stack.enter_context(closing(dial(address, "a", 60.0)))
        with pytest.raises(TransportError):
            answer(second, b"genuine")
        other = stack.enter_context(closing(dial(address, "b", 60.0)))
        other.send(b"genuine")
        links = {name: link for name, (_, link) in found.result(60).items()}
        assert set(links) == {"a", "b"}
        links["a"].send(b"hello")
        assert first.receive() == b"hello"
        with pytest.raises(TransportError, match="no server listens"):
            dial(address, "a", 0.01)


def test_strangers_who_take_their_time_keep_nobody_out(address: str) -> None:
    """More of them than are kept, each silent or half-way through its name."""
    with letting_in(address, "a") as found, ExitStack() as stack:
        stack.enter_context(closing(dial(address, "mallory", 60.0)))  # the door is open
        slow = [
            stack.enter_context(socket.create_connection(address_of(address)))
            for _ in range(STRANGERS + 5)
        ]
        for one in slow[::2]:
            one.sendall((1).to_bytes(8, "big"))
        slow[0].settimeout(5)  # it may take 10 s for each message
        assert slow[0].recv(1) == b"", "the first is sent away"
        good = stack.enter_context(closing(dial(address, "a", 60.0)))
        good.send(b"genuine")
        assert set(found.result(5)) == {"a"}


def test_a_port_that_is_taken_is_named() -> None:
    with (
        pytest.raises(TransportError, match="cannot listen"),
        socket.create_server(("", 0)) as busy,
    ):
        let_in(f"127.0.0.1:{busy.getsockname()[1]}", {"a"}, as_is)


def test_dialling_waits_for_a_server_that_starts_later(address: str) -> None:
    with pytest.raises(TransportError, match="no server listens at"):
        dial(address, "a", 0.01)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(dial, address, "a", 60.0)
        time.sleep(0.1)
        with letting_in(address, "a") as found, closing(early.result(60)) as link:
            link.send(b"genuine")
            assert set(found.result(60)) == {"a"}


@pytest.mark.parametrize("bad", ["", "host", "host:", ":80", "host:0", "host:65536", "host:x"])
def test_an_address_has_host_and_port(bad: str) -> None:
    with pytest.raises(PlanError, match="HOST:PORT"):
        address_of(bad)
    assert address_of("[::1]:80") == ("::1", 80)


def session(identities: Mapping[str, Identity], **changes: Any) -> Session:
    fields = {
        "id": 32 * "a",
        "program": "vote",
        "options": {"voters": ["x", "y", "z"], "rows": 1, "classes": 2},
        "dealer": "c",
        "servers": ["a", "b"],
        "owners": {"x": "a", "y": "b", "z": "d"},
        "receivers": ["d"],
        "relay": "https://example.org:1",
        "parties": {n: {"fingerprint": i.fingerprint} for n, i in identities.items()},
    }
    return Session.from_dict(fields | changes, PROGRAMS)


def test_who_does_not_come_is_named(address: str) -> None:
    """By the server that waits, and by whoever dials it in vain."""
    keys = {name: Identity.new() for name in ("a", "b", "c", "d")}
    parties = {name: {"fingerprint": key.fingerprint} for name, key in keys.items()}
    of = session(keys, parties=parties | {"a": parties["a"] | {"address": address}})
    for name, says in (
        ("a", "'b' did not connect within"),
        ("c", f"no server listens at {address}"),
    ):
        with (
            pytest.raises(TransportError, match=says),
            connected(of, name, keys[name], timeout=0.05),
        ):
            pass


def test_who_is_dialled_sends_no_large_message_before_it_has_shown_who_it_is() -> None:
    limits: list[int] = []

    class Noted(Carrier):
        def receive(self, most: int = MOST_BYTES) -> bytes:
            limits.append(most)
            raise TransportError("gone")

        def _begin(self, data: bytes) -> list[Future[None]]:
            return []

        def _hang_up(self) -> None:
            pass

    identities = {name: Identity.new() for name in ("a", "b", "c", "d")}
    with (
        pytest.raises(TransportError),
        connected(
            session(identities), "d", identities["d"], timeout=1.0, relay=lambda _: Noted(1.0)
        ),
    ):
        pass
    assert limits
    assert max(limits) <= 64
