"""A link between two parties that cannot dial each other, carried by the coordinator.

A message is its length and then frames of bounded size. Its content is sealed end to end before
(``cloister.shares.mpc.sealed``), so the coordinator cannot read it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace

from cloister.core.errors import RemoteProtocolError
from cloister.federation.transports.http import Stream, StreamClient
from cloister.federation.transports.links import (
    HEADER,
    MOST_BYTES,
    SLOWEST,
    Carrier,
    check_size,
    late,
)

VERSION = "cloister.relay.1"
FRAME_BYTES = 2**20


def relay_path(session: str, peer: str) -> str:
    """Return the coordinator's path for the link of a session to `peer`."""
    return f"/v1/relay/{session}/{peer}"


class RelayLink(Carrier):
    """One end of a link over the coordinator, on a stream that is open to :func:`relay_path`."""

    def __init__(self, stream: Stream, timeout: float) -> None:
        super().__init__(timeout, stream.outcome)
        self._stream = stream

    def receive(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message."""
        deadline = time.monotonic() + self.timeout
        first = self._frame(deadline)
        size = int.from_bytes(first[:HEADER], "big")
        check_size(size, most)
        # A large message may take longer than the time limit for its start.
        deadline += size / SLOWEST
        frames, came = [first[HEADER:]], len(first)
        while came < HEADER + size and frames[-1]:  # an empty frame ends every message
            frames.append(self._frame(deadline))
            came += len(frames[-1])
        if came != HEADER + size:
            raise RemoteProtocolError("a relayed message does not have its stated length.")
        return b"".join(frames)

    def _frame(self, deadline: float) -> bytes:
        frame = self._stream.receive_bytes(self._until(deadline))
        if frame is None:
            raise late(self.timeout)
        return frame

    def _begin(self, data: bytes) -> list[Future[None]]:
        starts = range(0, len(data), FRAME_BYTES)
        return [self._stream.begin(data[start : start + FRAME_BYTES]) for start in starts]

    def _hang_up(self) -> None:
        self._stream.close()


def relayed(client: StreamClient, session: str, peer: str, timeout: float) -> RelayLink:
    """Open this party's end of a link; the coordinator waits for the other end.

    Parameters
    ----------
    client : StreamClient
        Has the coordinator's address and this party's certificate.
    """
    limited = replace(client, max_message_bytes=FRAME_BYTES)
    return RelayLink(limited.connect(relay_path(session, peer), VERSION), timeout)
