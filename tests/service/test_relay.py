"""The coordinator carries sealed links, and neither it nor the dealer learns what they say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, WebSocket
from numpy.typing import NDArray

from cloister.core.errors import CloisterError, RemoteProtocolError, TransportError
from cloister.federation.pki import (
    KeyFolder,
    client_context,
    local_federation,
    peer_of,
    server_context,
)
from cloister.federation.service.relay import Relays
from cloister.federation.service.server import Server as Port
from cloister.federation.service.server import peer_certificate
from cloister.federation.transports.http import StreamClient
from cloister.federation.transports.links import Link
from cloister.federation.transports.relay import FRAME_BYTES, RelayLink, relay_path, relayed
from cloister.hazmat.ring import from_bytes, to_bytes
from cloister.shares.inference.programs import PROGRAMS
from cloister.shares.mpc import Server, Supply, combine, encode, local_links, multiply
from cloister.shares.mpc.dealer import Dealer, _drawn
from cloister.shares.mpc.parties import connected, take_part
from cloister.shares.mpc.sealed import seal
from cloister.shares.mpc.session import Session
from cloister.shares.mpc.shares import expand_share, split

Words = NDArray[np.uint64]
SESSION = "0123456789abcdef" * 2
NAMES = ("north", "south", "dealer")
TIMEOUT = 60.0


@dataclass
class Coordinator:
    """A relay behind mutual TLS at a port of this machine; it keeps every byte it carries."""

    keys: Mapping[str, Path]
    relays: Relays
    port: int
    revoked: set[str]
    carried: list[tuple[str, str, bytes]] = field(default_factory=list)

    def client(self, name: str) -> StreamClient:
        url = f"https://127.0.0.1:{self.port}"
        return StreamClient(url, client_context(KeyFolder(self.keys[name])))

    def link(self, name: str, peer: str, session: str = SESSION) -> RelayLink:
        return relayed(self.client(name), session, peer, TIMEOUT)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return local_federation(tmp_path_factory.mktemp("federation"), NAMES)


@contextmanager
def serving(keys: Mapping[str, Path], **limits: Any) -> Iterator[Coordinator]:
    revoked: set[str] = set()

    def identify(scope: Mapping[str, Any]) -> str:
        name = peer_of(peer_certificate(scope) or b"").name
        if name in revoked:
            raise TransportError("revoked")
        return name

    app = FastAPI()
    relays = Relays(identify, **limits)

    @app.websocket("/v1/relay/{session}/{peer}")
    async def relay(websocket: WebSocket, session: str, peer: str) -> None:
        name = identify(websocket.scope)
        receive = websocket.receive

        async def noted() -> Any:
            event = await receive()
            if event.get("bytes"):
                coordinator.carried.append((name, peer, event["bytes"]))
            return event

        websocket.receive = noted  # type: ignore[method-assign]
        await relays.serve(websocket, name, session, peer)

    port = Port(app, "127.0.0.1:0", server_context(KeyFolder(keys["coordinator"])))
    coordinator = Coordinator(keys, relays, port.port, revoked)
    thread = threading.Thread(target=port.run)
    thread.start()
    try:
        yield coordinator
    finally:
        port.stop()
        thread.join()


@pytest.fixture(scope="module")
def coordinator(keys: Mapping[str, Path]) -> Iterator[Coordinator]:
    with serving(keys) as one:
        yield one


def both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    with ThreadPoolExecutor(2) as pool:
        results = pool.submit(first), pool.submit(second)
        return results[0].result(), results[1].result()


def test_large_messages_cross_both_ways_at_once(coordinator: Coordinator) -> None:
    ends = both(
        lambda: coordinator.link("north", "south"), lambda: coordinator.link("south", "north")
    )
    bodies = [np.random.default_rng(i).bytes(FRAME_BYTES * 6 + i) for i in (1, 2)]
    for end, body in zip(ends, bodies, strict=True):
        end.send(body)
        end.send(b"")
    assert ends[0].receive() == bodies[1]
    assert ends[1].receive() == bodies[0]
    assert ends[0].receive() == ends[1].receive() == b""
    ends[0].send(b"last")
    ends[0].close()
    assert ends[1].receive() == b"last"
    with pytest.raises(TransportError, match="the other end closed the link"):
        ends[1].receive()
    ends[1].close(at_once=True)


def test_what_the_first_end_says_waits_for_the_second(coordinator: Coordinator) -> None:
    """Most often the first has spoken before the second is there."""
    for number in range(10):
        session = f"{number:032x}"
        first = coordinator.link("north", "south", session)
        first.send(b"early")
        second = coordinator.link("south", "north", session)
        assert second.receive() == b"early"
        first.close()
        second.close()


def test_a_party_is_who_its_certificate_says(coordinator: Coordinator) -> None:
    """South cannot take north's place: its end is another link, whatever path it asks for."""
    north = coordinator.link("north", "south", 32 * "1")
    with pytest.raises(TransportError, match="a link must have two different parties"):
        coordinator.link("south", "south", 32 * "1").receive()
    dealer = coordinator.link("dealer", "south", 32 * "1")
    south = coordinator.link("south", "north", 32 * "1")
    north.send(b"for south")
    assert south.receive() == b"for south"
    for link in (north, south, dealer):
        link.close(at_once=True)


def test_frames_over_the_limit_and_too_many_ends_are_refused(keys: Mapping[str, Path]) -> None:
    with serving(keys, most_of_one=2, idle=600.0) as one:
        first = one.link("north", "south")
        again = one.link("north", "south")  # takes the place of the one before
        with pytest.raises(TransportError, match="the other end closed the link"):
            first.receive()
        other = one.link("north", "dealer")
        with pytest.raises(TransportError, match="too many links"):
            one.link("north", "x").receive()
        other._stream.begin(bytes(FRAME_BYTES + 1))
        with pytest.raises(TransportError, match="exceeded its limit"):
            other.receive()
        again.close(at_once=True)


def test_a_lonely_end_and_a_revoked_party_are_hung_up_on(keys: Mapping[str, Path]) -> None:
    with serving(keys, idle=0.05) as one, pytest.raises(TransportError, match="no frame came for"):
        one.link("north", "south").receive()
    with serving(keys) as one:
        link = one.link("north", "south")
        one.revoked.add("north")
        with pytest.raises(TransportError, match="enrolled"):
            link.receive()
        assert asyncio.run(_length(one.relays)) == 0


async def _length(relays: Relays) -> int:
    for _ in range(1000):
        if not len(relays):
            break
        await asyncio.sleep(0.01)
    return len(relays)


def test_a_service_that_has_no_relay_says_so(coordinator: Coordinator) -> None:
    with pytest.raises(TransportError):
        coordinator.client("north").connect("/v1/other", "cloister.relay.1")
    assert relay_path(SESSION, "south") == f"/v1/relay/{SESSION}/south"


def test_a_relayed_message_that_lies_about_its_length_is_refused(coordinator: Coordinator) -> None:
    north = coordinator.link("north", "south", 32 * "2")
    south = coordinator.link("south", "north", 32 * "2")
    size = (2).to_bytes(8, "big")
    for frames in (
        [bytes(3)],
        [(1 << 60).to_bytes(8, "big")],
        [size + b"abc"],
        [size + b"a", b""],
        [size + b"a", b"bc"],
    ):
        for frame in frames:
            north._stream.begin(frame)
        with pytest.raises(RemoteProtocolError):
            south.receive()
    for link in (north, south):
        link.close(at_once=True)


def test_a_session_runs_over_the_coordinator_alone(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """No party can be dialled; both servers own a table and receive the sum."""
    keys = {name: KeyFolder(coordinator.keys[name]).identity() for name in NAMES}
    document = {
        "id": 32 * "5",
        "program": "sum",
        "options": {"inputs": ["x", "y"], "shape": [3]},
        "dealer": "dealer",
        "servers": ["north", "south"],
        "owners": {"x": "north", "y": "south"},
        "receivers": ["north", "south"],
        "parties": {name: {"fingerprint": key.fingerprint} for name, key in keys.items()},
        "relay": f"https://127.0.0.1:{coordinator.port}",
    }
    session = Session.from_dict(document, PROGRAMS)
    own = {"x": encode([1.0, 2.0, 3.0]), "y": encode([0.5, 0.5, -3.0])}

    def part(name: str) -> dict[str, NDArray[Any]]:
        (tmp_path / name).mkdir()
        return take_part(
            session,
            name,
            lambda: connected(
                session,
                name,
                keys[name],
                timeout=TIMEOUT,
                relay=lambda peer: coordinator.link(name, peer, session.id),
            ),
            tmp_path / name,
            tables={table: own[table] for table in session.tables_of(name)},
        ).results

    with ThreadPoolExecutor(3) as pool:
        done = dict(zip(NAMES, pool.map(part, NAMES), strict=True))
    assert done["north"]["sum"].tolist() == done["south"]["sum"].tolist() == [1.5, 2.5, 0.0]
    assert done["dealer"] == {}


# What the dealer could do with every byte the coordinator relays --------------------------------


def run_over(coordinator: Coordinator, session: str, *, sealed: bool) -> tuple[Words, Dealer]:
    """Multiply two secret tables; both servers talk through the coordinator, who is the dealer."""
    identities = {name: KeyFolder(coordinator.keys[name]).identity() for name in NAMES}
    to_dealer, to_servers = zip(*(local_links(TIMEOUT) for _ in range(2)), strict=True)
    dealer = Dealer(to_servers)
    splits = [split(SECRET) for _ in range(2)]

    def serve(index: int) -> Words:
        name, peer = ("north", "south")[index], ("south", "north")[index]
        raw = coordinator.link(name, peer, session)
        pin = identities[peer].fingerprint
        link: Link = seal(raw, identities[name], name, peer, pin, session) if sealed else raw
        server = Server(index, link, Supply(index, to_dealer[index]))
        shares = [expand_share(k, r.shape) if index == 0 else r for k, r in splits]
        result = multiply(server, *shares)
        server.supply.close()
        raw.close()
        return result

    with ThreadPoolExecutor(1) as pool:
        dealing = pool.submit(dealer.serve)
        product = combine(*both(lambda: serve(0), lambda: serve(1)))
        dealing.result()
    assert (product == SECRET * SECRET).all()
    return product, dealer


SECRET = encode(np.array([[52.0, 1.0, -3.25], [37.0, 0.0, 8.5]]))


def what_the_dealer_reads(coordinator: Coordinator, dealer: Dealer) -> list[Words]:
    """Return all that openings of x - a, taken from what was carried, and the dealt a give.

    The dealer knows each mask. It takes every window of the carried bytes for one server's opening
    and every window for the other's.
    """
    from cloister.shares.mpc.material import Product

    kind = Product("multiply", SECRET.shape, SECRET.shape)
    masks = [_drawn(key, index, 0, kind) for index, key in enumerate(dealer._keys)]
    a = combine(masks[0][0], masks[1][0])
    size = SECRET.nbytes
    windows = {
        name: [
            from_bytes(body[start : start + size], SECRET.size).reshape(SECRET.shape)
            for sender, _, body in coordinator.carried
            if sender == name
            for start in range(len(body) - size + 1)
        ]
        for name in ("north", "south")
    }
    return [x + y + a for x in windows["north"] for y in windows["south"]]


def test_the_dealer_cannot_read_the_rows_from_every_byte_that_is_relayed(
    coordinator: Coordinator,
) -> None:
    """The dealer and the coordinator together: all bytes carried, all masks dealt.

    A wrong window gives the secret with probability 2^-384.
    """
    coordinator.carried.clear()
    _, dealer = run_over(coordinator, 32 * "3", sealed=True)
    found = what_the_dealer_reads(coordinator, dealer)
    assert found, "the coordinator carried what the servers opened"
    assert not any((rows == SECRET).any() for rows in found)
    plain = to_bytes(SECRET.ravel())
    assert not any(plain in body for _, _, body in coordinator.carried)


def test_without_seals_the_dealer_reads_the_rows_exactly(coordinator: Coordinator) -> None:
    """The broken twin of the test above: the same dealer, the same bytes, no seals."""
    coordinator.carried.clear()
    _, dealer = run_over(coordinator, 32 * "4", sealed=False)
    found = what_the_dealer_reads(coordinator, dealer)
    assert any((rows == SECRET).all() for rows in found)


def test_the_dealer_in_the_middle_is_refused(coordinator: Coordinator) -> None:
    """It controls the relay and puts its own handshake in place of a server's."""
    identities = {name: KeyFolder(coordinator.keys[name]).identity() for name in NAMES}
    ours, theirs = local_links(TIMEOUT)
    pin = identities["south"].fingerprint

    def impostor() -> None:
        to, mine = identities["north"].fingerprint, identities["dealer"]
        with pytest.raises(CloisterError):  # the other end hangs up on it
            seal(theirs, mine, "south", "north", to, "s")

    def honest() -> None:
        with pytest.raises(RemoteProtocolError, match="not the party of the pinned"):
            seal(ours, identities["north"], "north", "south", pin, "s")
        ours.send(b"")

    both(impostor, honest)
