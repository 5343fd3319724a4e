"""Large messages in parts, each acknowledged, so that a slow line stays alive and loses nothing.

A ping waits behind everything that was sent before it. A message therefore travels in parts, and
the next part leaves when the other end has acknowledged the last. A part that took under a second
doubles the next one; a part that took over four halves it. So a ping waits a few seconds at most.

The other end keeps the beginning of a message when the connection is lost. Its first answer on the
next connection tells how much it has, and the rest follows. A message is recognised by its hash,
so only the same bytes go on.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from cloister.core.errors import TransportError

WHOLE = 2**14  # bytes of a message that travels at once
_SMALLEST, _LARGEST = 2**12, 2**22  # bytes of a part, which begins at the smallest
_QUICK, _SLOW = 1.0, 4.0  # seconds until an acknowledgement, below and above which parts change
_HASH_BYTES = 16
# Other kinds than those of messages: then hash, offset, size of the message; or hash, bytes held.
_PART, _HELD = 64, 65
_PART_HEADER = struct.Struct(f">B{_HASH_BYTES}sII")
_HELD_HEADER = struct.Struct(f">B{_HASH_BYTES}sI")


def _hash(message: bytes | bytearray) -> bytes:
    return blake2b(message, digest_size=_HASH_BYTES).digest()


@dataclass
class Incoming:
    """The beginning of a message from one sender, which outlives a connection.

    Parameters
    ----------
    most : int
        Limit of a message in bytes. No more memory is held.
    """

    most: int
    _hash: bytes = b""
    _held: bytearray = field(default_factory=bytearray, repr=False)

    def take(self, part: bytes) -> tuple[bytes, bytes | None]:
        """Return the acknowledgement of a part, and the message if it is complete.

        Raises
        ------
        TransportError
            If the part is malformed, follows no held part, or the message is too large.
        """
        if len(part) < _PART_HEADER.size:
            raise TransportError("a part of a message is cut.")
        _, name, offset, size = _PART_HEADER.unpack_from(part)
        end = offset + len(part) - _PART_HEADER.size
        if size > self.most:
            raise TransportError(f"messages must have at most {self.most} bytes, got {size}.")
        if name != self._hash:
            self._hash, self._held = name, bytearray()
        if not offset < end <= size or offset > len(self._held):
            raise TransportError("a part of a message is out of place.")
        if offset == len(self._held):
            self._held += memoryview(part)[_PART_HEADER.size :]
        held = _HELD_HEADER.pack(_HELD, name, len(self._held))
        if len(self._held) < size:
            return held, None
        message = bytes(self._held)
        self._hash, self._held = b"", bytearray()
        if len(message) != size or _hash(message) != name:
            raise TransportError("a message in parts differs from its hash.")
        return held, message


class Outgoing:
    """The sender of messages on one connection, in sequence.

    Parameters
    ----------
    carry : function of bytes
        Sends one frame.
    most : int
        Limit of a frame in bytes.

    Notes
    -----
    Everything runs in one event loop.
    """

    def __init__(self, carry: Callable[[bytes], Awaitable[None]], most: int) -> None:
        self._carry = carry
        self._turn = asyncio.Lock()
        self._largest = max(min(_LARGEST, most // 2), _SMALLEST)  # a part has a header, too
        self._part = _SMALLEST
        self._hash = b""
        self._answer: asyncio.Future[int] | None = None

    async def send(self, message: bytes) -> None:
        """Send a message; return when the other end has acknowledged it, if it goes in parts."""
        async with self._turn:
            if len(message) <= WHOLE:
                await self._carry(message)
                return
            loop, view, at = asyncio.get_running_loop(), memoryview(message), 0
            self._hash = _hash(message)
            while at < len(message):
                since, self._answer = loop.time(), loop.create_future()
                header = _PART_HEADER.pack(_PART, self._hash, at, len(message))
                await self._carry(header + view[at : at + self._part])
                held = await self._answer
                if not at < held <= len(message):
                    raise TransportError("an acknowledgement is out of place.")
                self._adapt(loop.time() - since)
                at = held

    def held(self, acknowledgement: bytes) -> None:
        """Note how much the other end holds; late acknowledgements have no effect."""
        if len(acknowledgement) != _HELD_HEADER.size:
            raise TransportError("an acknowledgement is cut.")
        _, name, held = _HELD_HEADER.unpack(acknowledgement)
        if name == self._hash and self._answer is not None and not self._answer.done():
            self._answer.set_result(held)

    def end(self, error: Exception) -> None:
        """Let a message under way fail, because the connection has ended."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _adapt(self, seconds: float) -> None:
        if seconds < _QUICK:
            self._part = min(2 * self._part, self._largest)
        elif seconds > _SLOW:
            self._part = max(self._part // 2, _SMALLEST)


async def whole(
    data: bytes, incoming: Incoming, outgoing: Outgoing, answer: Callable[[bytes], Awaitable[None]]
) -> bytes | None:
    """Handle a frame of a connection; return the message that it is or completes, if any."""
    kind = data[0] if data else None
    if kind == _PART:
        held, message = incoming.take(data)
        await answer(held)
        return message
    if kind == _HELD:
        outgoing.held(data)
        return None
    return data
