"""Links over TCP: whole messages both ways at once, limits, and strangers at the door."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from cloister.errors import PlanError, RemoteProtocolError, TransportError
from cloister.hazmat.signing import Identity
from cloister.inference.programs import PROGRAMS
from cloister.mpc.links import Link
from cloister.mpc.parties import connected
from cloister.mpc.session import Session
from cloister.mpc.tcp import HELLO_BYTES, Listener, TcpLink, address_of, dial


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
    with pytest.raises(TransportError, match="closed it before the run was over"):
        second.receive()
    with pytest.raises(TransportError, match="closed"):
        first.send(b"more")


def test_a_message_that_does_not_come_or_stops_half_way_ends_the_wait(
    ends: tuple[TcpLink, TcpLink],
) -> None:
    first, second = ends
    second.timeout = 0.05
    with pytest.raises(TransportError, match=r"no message came within 0\.05 s"):
        second.receive()
    first._connection.send((10).to_bytes(8, "big") + b"half")
    with pytest.raises(TransportError, match="no message came"):
        second.receive()


def test_an_end_that_never_reads_is_noticed_by_the_sender(ends: tuple[TcpLink, TcpLink]) -> None:
    first, _ = ends
    first.timeout = 0.05
    first.send(bytes(8_000_000))
    assert first._writer is not None
    first._writer.join(5)
    with pytest.raises(TransportError, match="nothing was read within"):
        first.send(b"more")


def test_a_message_over_the_limit_is_refused_before_it_is_read(
    ends: tuple[TcpLink, TcpLink],
) -> None:
    first, second = ends
    second.limit = 1000
    first._connection.send((1 << 62).to_bytes(8, "big"))
    with pytest.raises(RemoteProtocolError, match="at most 1000 bytes"):
        second.receive()


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


def answer(link: Link, word: bytes) -> bytes:
    link.send(word)
    return link.receive()


def test_who_is_expected_comes_in_and_strangers_are_hung_up_on(address: str) -> None:
    listener = Listener(address, {"a", "b"}, as_is, 60.0)
    with closing(listener):
        for name, word in (("mallory", b"genuine"), ("a", b"liar"), ("x" * 5000, b"genuine")):
            stranger = dial(address, name, 60.0)
            with closing(stranger), pytest.raises(TransportError):
                answer(stranger, word)
        silent = socket.create_connection(address_of(address))
        good = [dial(address, name, 60.0) for name in ("a", "b")]
        for link in good:
            link.send(b"genuine")
        links = listener.links()
        assert set(links) == {"a", "b"}
        second = dial(address, "a", 60.0)
        with closing(second), pytest.raises(TransportError):
            answer(second, b"genuine")
        links["a"].send(b"hello")
        assert good[0].receive() == b"hello"
        silent.close()
        for link in good:
            link.close()


def test_who_does_not_come_is_named(address: str) -> None:
    listener = Listener(address, {"a"}, as_is, 0.05)
    with closing(listener), pytest.raises(TransportError, match="'a' did not come within"):
        listener.links()
    with (
        pytest.raises(TransportError, match="cannot listen"),
        socket.create_server(("", 0)) as busy,
    ):
        Listener(f"127.0.0.1:{busy.getsockname()[1]}", {"a"}, as_is)


def test_dialling_waits_for_a_server_that_starts_later(address: str) -> None:
    with pytest.raises(TransportError, match="nobody listens at"):
        dial(address, "a", 0.01)
    started: list[Listener] = []

    def start() -> None:
        time.sleep(0.1)
        started.append(Listener(address, {"a"}, as_is, 60.0))

    thread = threading.Thread(target=start)
    thread.start()
    link = dial(address, "a", 60.0)
    thread.join()
    link.send(b"genuine")
    assert set(started[0].links()) == {"a"}
    link.close()
    started[0].close()


@pytest.mark.parametrize("bad", ["", "host", "host:", ":80", "host:0", "host:65536", "host:x"])
def test_an_address_has_host_and_port(bad: str) -> None:
    with pytest.raises(PlanError, match="HOST:PORT"):
        address_of(bad)
    assert address_of("[::1]:80") == ("::1", 80)


def test_who_is_dialled_sends_no_large_message_before_it_has_shown_who_it_is() -> None:
    limits: list[int] = []

    class Carrier:
        limit = 1 << 30

        def send(self, body: bytes) -> None:
            pass

        def receive(self) -> bytes:
            limits.append(self.limit)
            raise TransportError("gone")

        def close(self, *, at_once: bool = False) -> None:
            pass

    identities = {name: Identity.new() for name in ("a", "b", "c", "d")}
    session = Session.from_dict(
        {
            "id": 32 * "a",
            "program": "vote",
            "options": {"voters": ["x", "y", "z"], "rows": 1, "classes": 2},
            "dealer": "c",
            "servers": ["a", "b"],
            "owners": {"x": "a", "y": "b", "z": "d"},
            "receivers": ["d"],
            "relay": "https://example.org:1",
            "parties": {n: {"fingerprint": i.fingerprint} for n, i in identities.items()},
        },
        PROGRAMS,
    )
    with (
        pytest.raises(TransportError),
        connected(session, "d", identities["d"], timeout=1.0, relay=lambda _: Carrier()),
    ):
        pass
    assert limits
    assert set(limits) == {HELLO_BYTES}
