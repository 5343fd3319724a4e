"""Links between two parties: whole messages, in order, with sends that do not block.

Links are neither secret nor authenticated: every link is sealed before it is used
(``cloister.shares.mpc.sealed``).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from cloister.core.errors import RemoteProtocolError, TransportError

TIMEOUT = 60.0  # seconds to wait for a message before the run ends
MOST_BYTES = (1 << 30) + (1 << 16)
"""Largest size of a message: the largest item of material, and its seal."""
SLOWEST = 1e6
"""Smallest average rate of a message in transit, bytes per second."""
HEADER = 8
"""Bytes of the length in front of a message, on carriers without message boundaries."""


class Link(Protocol):
    """One party's end of a link to one other party."""

    def send(self, body: bytes) -> None:
        """Send a message without waiting for the other party to read it.

        Raises
        ------
        TransportError
            If the other party is gone, or did not accept an earlier message in time.
        """

    def receive(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message.

        Raises
        ------
        TransportError
            If none arrives in time, or the other party is gone.
        RemoteProtocolError
            If it has more than `most` bytes, which are then not read.
        """


class Carrier(Link, ABC):
    """An end of a link between machines; subclasses send and receive the bytes.

    Parameters
    ----------
    timeout : float
        Seconds to wait for a message, or for the other end to accept one.
    check : callable
        Raises a TransportError if a send of :meth:`_begin` failed.
    """

    def __init__(
        self, timeout: float, check: Callable[[Future[None]], object] = Future.result
    ) -> None:
        self.timeout = timeout
        self._check = check
        self._leaving: deque[Future[None]] = deque()

    def send(self, body: bytes) -> None:
        """Send a message in the background."""
        while self._leaving and self._leaving[0].done():
            self._check(self._leaving.popleft())
        self._leaving.extend(self._begin(len(body).to_bytes(HEADER, "big") + body))

    def close(self, *, at_once: bool = False) -> None:
        """Close the link, after all messages were sent or immediately."""
        # Closing must not lose a message that `send` accepted.
        wait(self._leaving, 0 if at_once else self.timeout)
        self._hang_up()

    def _until(self, deadline: float) -> float:
        """Return the seconds until a deadline; raise TransportError if it has passed."""
        if (seconds := deadline - time.monotonic()) <= 0:
            raise late(self.timeout)
        return seconds

    @abstractmethod
    def _begin(self, data: bytes) -> Iterable[Future[None]]:
        """Start to send, after earlier sends; return the sends that are not complete."""

    @abstractmethod
    def _hang_up(self) -> None: ...


# The length comes from the other party, so TCP links check it before they allocate memory.
def check_size(size: int, most: int) -> None:
    """Raise RemoteProtocolError for a message that is too large."""
    if size > most:
        raise RemoteProtocolError(
            f"a message must have at most {most} bytes here, got one of {size}; compute in smaller "
            "batches."
        )


def late(timeout: float) -> TransportError:
    """Return the error for a message that did not arrive in time."""
    return TransportError(
        f"no message came within {timeout:g} s; check the log of the other party."
    )


@dataclass
class _Queued:
    """An end of a link within one process."""

    outbox: SimpleQueue[bytes]
    inbox: SimpleQueue[bytes]
    timeout: float

    def send(self, body: bytes) -> None:
        self.outbox.put(body)

    def receive(self, most: int = MOST_BYTES) -> bytes:
        try:
            body = self.inbox.get(timeout=self.timeout)
        except Empty:
            raise late(self.timeout) from None
        check_size(len(body), most)
        return body


def local_links(timeout: float = TIMEOUT) -> tuple[Link, Link]:
    """Return the two ends of a link within one process."""
    one: SimpleQueue[bytes] = SimpleQueue()
    other: SimpleQueue[bytes] = SimpleQueue()
    return _Queued(one, other, timeout), _Queued(other, one, timeout)


def link_to_self() -> Link:
    """Return the link of a party to itself, which receives its own messages."""
    box: SimpleQueue[bytes] = SimpleQueue()
    return _Queued(box, box, 0.0)
