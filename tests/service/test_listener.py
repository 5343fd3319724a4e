"""Strangers who connect and go no further: how many, for how long, and who still gets in."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.federation.service import listener as door_module
from cloister.federation.service import server as server_module
from cloister.federation.service.client import Rest
from cloister.federation.service.listener import (
    ConnectionQuota,
    TlsListener,
    descriptors,
    network_of,
    room,
)
from cloister.federation.service.logs import JsonLines, RateLimitedLog, _Seldom

from .federation import SILOS
from .test_jobs import wait_for
from .test_network import Authority, Service, Silo

# Who is in a crowd ---------------------------------------------------------------------------


def test_a_full_crowd_sends_away_the_oldest_and_never_the_newest() -> None:
    crowd: ConnectionQuota[int] = ConnectionQuota(3, 3)
    assert [crowd.add(n, str(n)) for n in range(6)] == [None, None, None, 0, 1, 2]
    assert crowd.members() == (3, 4, 5)


def test_an_address_with_many_gives_way_to_one_with_few() -> None:
    crowd: ConnectionQuota[int] = ConnectionQuota(4, 4)
    crowd.add(0, "party")
    for n in range(1, 100):
        crowd.add(n, "stranger")
    assert 0 in crowd
    assert crowd.add(100, "another") == 97


def test_an_address_that_has_all_it_may_sends_away_its_own_oldest() -> None:
    crowd: ConnectionQuota[int] = ConnectionQuota(10, 2)
    assert [crowd.add(n, "one") for n in range(4)] == [None, None, 0, 1]
    assert crowd.remove(2)
    assert not crowd.remove(2)
    assert crowd.add(9, "one") is None


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcdef")), max_size=200))
def test_a_crowd_is_never_larger_than_it_may_be(moves: list[tuple[int, str]]) -> None:
    crowd: ConnectionQuota[int] = ConnectionQuota(7, 3)
    here: dict[int, str] = {}
    for member, address in moves:
        if member in here:
            assert crowd.remove(member)
            del here[member]
            continue
        left = crowd.add(member, address)
        here[member] = address
        if left is not None:
            del here[left]
        assert set(crowd.members()) == set(here)
        assert len(crowd) == len(here) <= 7
        assert max(list(here.values()).count(a) for a in "abcdef") <= 3


def test_one_network_of_ipv6_is_one_address() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2")
    assert network_of("2001:db8::1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth0")


# At an open door -----------------------------------------------------------------------------


def hello() -> bytes:
    """Return what a client of TLS says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def dial(port: int, number: int = 0, says: bytes = b"") -> socket.socket:
    """Connect from an address of loopback; say something if need be."""
    one = socket.socket()
    one.bind((f"127.{1 + number // 250}.0.{1 + number % 250}" if number else "127.0.0.1", 0))
    one.settimeout(60)
    one.connect(("127.0.0.1", port))
    one.sendall(says)
    return one


class Counted(ssl.SSLContext):
    """Counts how often TLS was begun."""

    begun = 0

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        type(self).begun += 1
        return super().wrap_bio(*args, **kwargs)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def at_the_door(
    authority: Authority, act: Callable[[TlsListener, int], Any], **limits: Any
) -> tuple[TlsListener, list[object]]:
    """Open a door, act in another thread, and return the door and who came through."""
    came: list[object] = []

    class Guest(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            came.append(transport.get_extra_info("ssl_object").getpeercert(True))
            transport.write(b"welcome")
            transport.close()

    async def run() -> TlsListener:
        Counted.begun = 0
        context = Counted(ssl.PROTOCOL_TLS_SERVER)
        authority.context("op", ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(authority._folder / f"op-{ssl.PROTOCOL_TLS_SERVER}.pem")
        context.load_verify_locations(authority._folder / "ca.pem")
        listener = socket.create_server(("127.0.0.1", 0), backlog=door_module.BACKLOG)
        door = TlsListener(listener, context, Guest, **limits)
        door.open()
        try:
            await asyncio.to_thread(act, door, listener.getsockname()[1])
        finally:
            door.close()
        return door

    return asyncio.run(run()), came


def welcomed(authority: Authority, port: int) -> bool:
    """Come with a certificate of the federation; return whether that worked."""
    context = authority.context("a", ssl.PROTOCOL_TLS_CLIENT)
    with (
        socket.create_connection(("127.0.0.1", port), 60) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        return tls.recv(7) == b"welcome"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("says", [b"", hello()], ids=["silent", "hello"])
def test_who_is_enrolled_comes_in_however_many_strangers_wait(
    authority: Authority, says: bytes, shared: bool
) -> None:
    held: list[socket.socket] = []
    crowds: list[tuple[int, int]] = []

    def act(door: TlsListener, port: int) -> None:
        for burst in range(5):
            for n in range(60):
                held.append(dial(port, 0 if shared else 1 + 60 * burst + n, says))
            assert welcomed(authority, port)
            crowds.append((len(door.silent), len(door.shaking)))

    door, came = at_the_door(authority, act, silent=(40, 20), shaking=(16, 8))
    assert len(came) == 5
    assert None not in came
    assert all(silent <= 40 and shaking <= 16 for silent, shaking in crowds)
    for one in held:
        one.close()
    assert len(door.silent) == 0


def test_for_who_is_silent_no_tls_is_begun(authority: Authority) -> None:
    def act(door: TlsListener, port: int) -> None:
        held = [dial(port, n) for n in range(1, 100)]
        wait_for(lambda: len(door.silent) == len(held))
        assert Counted.begun == 0
        assert welcomed(authority, port)
        assert Counted.begun == 1
        for one in held:
            one.close()
        wait_for(lambda: len(door.silent) == 0)
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"SSH-2.0\r\n"):
            with dial(port, 1, words) as other, suppress(ConnectionError):
                assert other.recv(100) == b"", "who speaks something else is hung up on"
        assert Counted.begun == 1

    at_the_door(authority, act)


@pytest.mark.parametrize("says", [b"", hello()], ids=["silent", "hello"])
def test_who_goes_no_further_is_hung_up_on(authority: Authority, says: bytes) -> None:
    def act(door: TlsListener, port: int) -> None:
        with dial(port, 1, says) as one, suppress(ConnectionError):
            while one.recv(10_000):  # the server's part of the handshake, and then the end
                pass
        wait_for(lambda: len(door.silent) == len(door.shaking) == 0)

    at_the_door(authority, act, seconds=0.2)


def test_a_door_without_descriptors_pauses_and_opens_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_PAUSE", 0.01)
    failures: list[int] = []

    class Exhausted:
        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def __getattr__(self, name: str) -> Any:
            return getattr(self._listener, name)

        def accept(self) -> Any:
            if len(failures) < 30:
                failures.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return self._listener.accept()

    def act(door: TlsListener, port: int) -> None:
        door._listener = Exhausted(door._listener)  # type: ignore[assignment]
        assert welcomed(authority, port)

    at_the_door(authority, act)
    assert len(failures) == 30


# What is written down ------------------------------------------------------------------------


def test_what_happens_again_and_again_is_due_once_a_minute_with_a_count() -> None:
    now = [0.0]
    seldom = RateLimitedLog(60.0, clock=lambda: now[0])
    assert [seldom.since("a") for _ in range(5)] == [0, None, None, None, None]
    assert seldom.since("b") == 0
    now[0] = 59.9
    assert seldom.since("a") is None
    now[0] = 60.0
    assert [seldom.since("a"), seldom.since("a"), seldom.since("b")] == [5, None, 0]
    for number in range(5000):
        seldom.since(str(number))
    assert len(seldom._last) <= 1000


def test_what_a_stranger_can_repeat_is_logged_once_a_minute() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(_Seldom())
    for name, times in (("asyncio", 1000), ("uvicorn.error", 500), ("cloister.app.jobs", 3)):
        for number in range(times):
            message = f"socket.accept() out of system resource\nsocket: <{number}>"
            handler.handle(logging.getLogger(name).makeRecord(name, 40, "", 0, message, (), None))
    names = [json.loads(line)["logger"] for line in stream.getvalue().splitlines()]
    assert names == ["asyncio", "uvicorn.error", *3 * ["cloister.app.jobs"]]


def test_both_crowds_leave_most_descriptors_to_parties() -> None:
    assert room((20_000, 20_000)) == room(None) == ((512, 256), (128, 64))
    for now in (64, 256, 1024, 4096):
        (silent, _), (shaking, _) = room((now, 1 << 20))
        assert 0 < silent + shaking <= now * 3 / 8


def test_the_descriptor_limit_is_raised_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[0]), before[1]))
        now, most = descriptors() or (0, 0)
        assert now == min(1024, before[0])
        assert descriptors(raised=True) == (most, most)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Behind the door -----------------------------------------------------------------------------


@pytest.fixture
def service(sqlite_url: str, tmp_path: Path, authority: Authority) -> Iterator[Service]:
    running = Service(sqlite_url, tmp_path, authority)
    yield running
    running.stop()
    running.kept.close()


def port_of(service: Service) -> int:
    return int(service.address.rpartition(":")[2])


def test_open_streams_and_the_analyst_do_not_notice_a_thousand_strangers(
    service: Service, authority: Authority
) -> None:
    silos = [
        Silo(name, service.address, authority.context(name, ssl.PROTOCOL_TLS_CLIENT))
        for name in SILOS[:2]
    ]
    wait_for(lambda: service.hub.connected() == SILOS[:2])
    streams = dict(service.hub._streams)
    held, words = [], hello()
    for number in range(1, 1001):
        held.append(dial(port_of(service), number, words if number % 2 else b""))
    with Rest(service.address, authority.context("ana", ssl.PROTOCOL_TLS_CLIENT)) as rest:
        assert rest.jobs() == []
    silos.append(Silo("c", service.address, authority.context("c", ssl.PROTOCOL_TLS_CLIENT)))
    wait_for(lambda: service.hub.connected() == SILOS)
    assert {name: service.hub._streams[name] for name in SILOS[:2]} == streams, "the same ones"
    for silo in silos:
        silo.close()
    for one in held:
        one.close()


def tls(service: Service, authority: Authority) -> ssl.SSLSocket:
    context = authority.context("ana", ssl.PROTOCOL_TLS_CLIENT)
    raw = socket.create_connection(("127.0.0.1", port_of(service)), 60)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "byte by byte"])
def test_a_request_whose_head_does_not_arrive_is_hung_up_on(
    service: Service, authority: Authority, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    monkeypatch.setattr(server_module, "_IDLE", 0.2)
    with tls(service, authority) as party:
        party.settimeout(0.05)
        try:
            for _ in range(1200):
                if drips:
                    party.sendall(b"G")
                try:
                    if party.recv(100) == b"":
                        return
                except TimeoutError:
                    continue
        except (ConnectionError, ssl.SSLError):
            return
    raise AssertionError("it is still connected after a minute")


def test_one_certificate_has_so_many_connections_and_no_more(
    request: pytest.FixtureRequest, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MOST_OF_ONE", 3)
    monkeypatch.setattr(server_module, "_IDLE", 3600)
    service: Service = request.getfixturevalue("service")
    context = authority.context("ana", ssl.PROTOCOL_TLS_CLIENT)
    parties = []
    for _ in range(3):
        raw = socket.create_connection(("127.0.0.1", port_of(service)), 60)
        parties.append(context.wrap_socket(raw, server_hostname="127.0.0.1"))
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for party in parties:
        party.sendall(ask)
        assert party.recv(12) == b"HTTP/1.1 200"
    raw = socket.create_connection(("127.0.0.1", port_of(service)), 60)
    fourth = context.wrap_socket(raw, server_hostname="127.0.0.1")
    with fourth, suppress(ConnectionError, ssl.SSLError):
        fourth.sendall(ask)
        assert fourth.recv(12) == b""
    with tls(service, authority) as another:  # a certificate of its own, though the same name
        another.sendall(ask)
        assert another.recv(12) == b"HTTP/1.1 200"
    for party in parties:
        party.close()


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(
    service: Service, authority: Authority
) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked"
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with tls(service, authority) as party:
        party.sendall(head + b"\r\n\r\n0\r\n\r\n" + smuggled)
        answer = b""
        with suppress(ConnectionError, ssl.SSLError):
            while more := party.recv(10_000):
                answer += more
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"not both" in answer
