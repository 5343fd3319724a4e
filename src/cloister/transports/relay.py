"""A link between two parties that neither can be dialled, carried by the coordinator.

A message is its length and then frames of bounded size. What travels is sealed end to end before
(``cloister.mpc.sealed``): whoever carries it reads nothing.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloister.errors import RemoteProtocolError, TransportError
from cloister.transports.http import Stream, StreamClient

VERSION = "cloister.relay.1"
FRAME_BYTES = 2**20
_HEADER = 8


def relay_path(session: str, peer: str) -> str:
    """Return where the coordinator carries the link of a session to `peer`."""
    return f"/v1/relay/{session}/{peer}"


class RelayLink:
    """One end of a link over the coordinator.

    Parameters
    ----------
    stream : Stream
        Open to :func:`relay_path`.
    timeout : float
        Seconds to wait for a message, or for what was sent to leave at the end.
    limit : int
        Largest message that is taken in, in bytes.
    """

    def __init__(self, stream: Stream, timeout: float, limit: int = (1 << 30) + (1 << 16)) -> None:
        self.timeout, self.limit = timeout, limit
        self._stream = stream
        self._leaving: deque[Future[Any]] = deque()

    def send(self, body: bytes) -> None:
        """Send a message in the background.

        Raises
        ------
        TransportError
            If one before it could not be sent.
        """
        while self._leaving and self._leaving[0].done():
            self._stream.outcome(self._leaving.popleft())
        view = memoryview(len(body).to_bytes(_HEADER, "big") + body)
        for start in range(0, len(view), FRAME_BYTES):
            self._leaving.append(self._stream.begin(bytes(view[start : start + FRAME_BYTES])))

    def receive(self) -> bytes:
        """Return the next message, or raise TransportError if none comes in time."""
        first = self._frame(self.timeout)
        size = int.from_bytes(first[:_HEADER], "big")
        if len(first) < _HEADER or size > self.limit:
            raise RemoteProtocolError(
                f"a relayed message must have at most {self.limit} bytes and begin with its length."
            )
        parts, left = [first[_HEADER:]], size - len(first) + _HEADER
        while left > 0:
            parts.append(self._frame(self.timeout))
            left -= len(parts[-1]) or left + 1  # an empty frame never ends a message
        if left:
            raise RemoteProtocolError("a relayed message is longer or shorter than it says.")
        return b"".join(parts)

    def close(self, *, at_once: bool = False) -> None:
        """Hang up, when all that was sent has left or at once."""
        deadline = time.monotonic() + (0 if at_once else self.timeout)
        with suppress(TransportError, TimeoutError):
            for one in self._leaving:
                self._stream.outcome(one, max(0.0, deadline - time.monotonic()))
        self._stream.close()

    def _frame(self, timeout: float) -> bytes:
        frame = self._stream.receive_bytes(timeout)
        if frame is None:
            raise TransportError(
                f"no message came within {timeout:g} s; see what the other party says."
            )
        return frame


def relayed(client: StreamClient, session: str, peer: str, timeout: float) -> RelayLink:
    """Open this party's end of a link; the coordinator waits for the other end.

    Parameters
    ----------
    client : StreamClient
        Says which coordinator, and with which certificate.
    """
    limited = replace(client, max_message_bytes=FRAME_BYTES)
    return RelayLink(limited.connect(relay_path(session, peer), VERSION), timeout)
