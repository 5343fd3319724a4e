"""Large messages in parts: whole at the other end, never much under way, nothing sent twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core.errors import TransportError
from cloister.federation.transports import parts
from cloister.federation.transports.parts import WHOLE, Incoming, Outgoing, whole

MOST = 2**24


@dataclass
class Line:
    """A line of a rate in bytes per second, on a clock of its own, with its two ends.

    It is cut for good after `cut` bytes.
    """

    incoming: Incoming
    rate: float = 1e9
    cut: float = float("inf")
    carried: list[int] = field(default_factory=list)  # bytes of each frame
    arrived: list[bytes] = field(default_factory=list)
    now: float = 0.0

    async def send(self, message: bytes, most: int = MOST) -> None:
        loop = asyncio.get_running_loop()
        loop.time = lambda: self.now  # type: ignore[method-assign]
        await self.end(most)(message)

    def end(self, most: int = MOST) -> Callable[[bytes], Awaitable[None]]:
        async def answer(data: bytes) -> None:
            assert await whole(data, self.incoming, outgoing, answer) is None

        async def carry(data: bytes) -> None:
            self.carried.append(len(data))
            self.now += len(data) / self.rate
            if sum(self.carried) > self.cut:
                raise ConnectionError
            if (message := await whole(data, self.incoming, outgoing, answer)) is not None:
                self.arrived.append(message)

        outgoing = Outgoing(carry, most)
        return outgoing.send


@settings(max_examples=30, deadline=None)
@given(size=st.integers(0, 400_000), most=st.sampled_from([2**15, 2**19, MOST]))
def test_a_message_arrives_as_it_was_sent(size: int, most: int) -> None:
    # The first byte is the kind of a message, which is never that of a part.
    message, line = b"\x01" + os.urandom(size), Line(Incoming(MOST))
    asyncio.run(line.send(message, most))
    assert line.arrived == [message]
    assert max(line.carried) <= max(most, WHOLE)
    assert (len(line.carried) == 1) == (len(message) <= WHOLE)


@pytest.mark.parametrize(
    ("rate", "size", "longest"),
    [(1e3, 131_000, 4.2), (5e3, 131_000, 2.0), (1e5, 4_000_000, 2.0), (1e8, 10**7, 0.1)],
)
def test_a_ping_waits_for_one_part_of_a_few_seconds(rate: float, size: int, longest: float) -> None:
    line = Line(Incoming(MOST), rate)
    asyncio.run(line.send(os.urandom(size)))
    assert max(line.carried) / rate < longest
    assert len(line.carried) < 130
    assert sum(line.carried) < 1.01 * size + 100  # what the headers cost


@settings(max_examples=30, deadline=None)
@given(size=st.integers(WHOLE + 1, 400_000), cuts=st.lists(st.floats(0, 1), max_size=4))
def test_a_message_goes_on_where_its_line_was_cut(size: int, cuts: list[float]) -> None:
    message, incoming, sent = os.urandom(size), Incoming(MOST), 0
    for share in cuts:
        line = Line(incoming, cut=share * (size - len(incoming._held)))
        with pytest.raises(ConnectionError):
            asyncio.run(line.send(message))
        sent += sum(line.carried[:-1])
        assert line.arrived == []
    line = Line(incoming)
    asyncio.run(line.send(message))
    assert line.arrived == [message]
    # A connection sends one part before it hears how much is held.
    again = (len(cuts) + 1) * 2**12
    assert sent + sum(line.carried) <= size + again + 25 * 100


def test_another_message_begins_anew_and_the_cut_one_is_forgotten() -> None:
    incoming = Incoming(MOST)
    one, two = os.urandom(100_000), os.urandom(100_000)
    with pytest.raises(ConnectionError):
        asyncio.run(Line(incoming, cut=60_000).send(one))
    line = Line(incoming)
    asyncio.run(line.send(two))
    assert line.arrived == [two]
    assert incoming._held == b""


def test_messages_of_several_senders_do_not_mix() -> None:
    async def all_at_once() -> Line:
        line = Line(Incoming(MOST))
        send = line.end()
        await asyncio.gather(*(send(message) for message in messages))
        return line

    messages = [b"\x01" + os.urandom(size) for size in (100_000, 3, 200_000, 20_000)]
    assert asyncio.run(all_at_once()).arrived == messages


def test_a_sender_is_told_that_its_connection_has_ended() -> None:
    async def lost() -> None:
        async def carry(data: bytes) -> None:
            asyncio.get_running_loop().call_soon(outgoing.end, ConnectionError())

        outgoing = Outgoing(carry, MOST)
        await outgoing.send(bytes(WHOLE + 1))

    with pytest.raises(ConnectionError):
        asyncio.run(lost())


def part(name: bytes, offset: int, size: int, body: bytes) -> bytes:
    return parts._PART_HEADER.pack(parts._PART, name, offset, size) + body


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"\x40"], "is cut"),
        ([part(b"a" * 16, 0, MOST + 1, b"x")], f"at most {MOST} bytes, got {MOST + 1}"),
        ([part(b"a" * 16, 0, 10, b"")], "out of place"),
        ([part(b"a" * 16, 0, 1, b"xy")], "out of place"),
        ([part(b"a" * 16, 1, 10, b"x")], "out of place"),
        ([part(b"a" * 16, 0, 10, b"xyz"), part(b"b" * 16, 3, 10, b"x")], "out of place"),
        ([part(b"a" * 16, 0, 3, b"xyz")], "differs from its hash"),
        ([part(b"a" * 16, 0, 9, b"xyz"), part(b"a" * 16, 0, 2, b"xy")], "differs from its hash"),
    ],
)
def test_malformed_parts_are_refused(frames: list[bytes], why: str) -> None:
    incoming = Incoming(MOST)
    for frame in frames[:-1]:
        incoming.take(frame)
    with pytest.raises(TransportError, match=why):
        incoming.take(frames[-1])


@pytest.mark.parametrize("held", [0, WHOLE + 2, 2**32 - 1])
def test_an_acknowledgement_out_of_place_ends_the_message(held: int) -> None:
    async def acknowledged() -> None:
        async def carry(data: bytes) -> None:
            name = parts._PART_HEADER.unpack_from(data)[1]
            outgoing.held(parts._HELD_HEADER.pack(parts._HELD, bytes(16), 1))  # of another message
            outgoing.held(parts._HELD_HEADER.pack(parts._HELD, name, held))
            outgoing.held(parts._HELD_HEADER.pack(parts._HELD, name, 1))  # which is late

        outgoing = Outgoing(carry, MOST)
        with pytest.raises(TransportError, match="is cut"):
            outgoing.held(b"\x41")
        await outgoing.send(bytes(WHOLE + 1))

    with pytest.raises(TransportError, match="out of place"):
        asyncio.run(acknowledged())


def test_a_part_that_is_held_already_changes_nothing() -> None:
    incoming = Incoming(MOST)
    first = part(b"a" * 16, 0, 10, b"xyz")
    assert incoming.take(first) == incoming.take(first)
    assert incoming._held == b"xyz"
