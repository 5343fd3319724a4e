"""Links between two parties: whole messages, in order, and nobody waits to send.

Nothing here is secret or authenticated: every link is sealed before it is used
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
"""Of one message: the largest item of material, and what seals it."""
SLOWEST = 1e6
"""Bytes a second that a message in transit must make, on average."""
HEADER = 8
"""Bytes of a message's length in front of it, where what carries it has no messages."""


class Link(Protocol):
    """One party's end of a link to one other party."""

    def send(self, body: bytes) -> None:
        """Send a message; does not wait until the other party reads it.

        Raises
        ------
        TransportError
            If the other party is gone, or did not take one before in time.
        """

    def receive(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message.

        Raises
        ------
        TransportError
            If none comes in time, or the other party is gone.
        RemoteProtocolError
            If it has more than `most` bytes; those are not taken in.
        """


class Carrier(Link, ABC):
    """An end of a link between machines, for subclasses that say how bytes leave and come.

    Parameters
    ----------
    timeout : float
        Seconds to wait for a message to come, or for the other end to take one.
    check : callable
        Raises a TransportError if what :meth:`_begin` returned could not be sent.
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
        """Hang up, when all that was sent has left or at once."""
        wait(self._leaving, 0 if at_once else self.timeout)
        self._hang_up()

    def _until(self, deadline: float) -> float:
        """Return the seconds until a deadline, or say that no message came."""
        if (seconds := deadline - time.monotonic()) <= 0:
            raise late(self.timeout)
        return seconds

    @abstractmethod
    def _begin(self, data: bytes) -> Iterable[Future[None]]:
        """Begin to send, after what was begun before; return what is not done yet."""

    @abstractmethod
    def _hang_up(self) -> None: ...


def check_size(size: int, most: int) -> None:
    """Refuse a message that is too large."""
    if size > most:
        raise RemoteProtocolError(
            f"a message must have at most {most} bytes here, got one of {size}; compute in smaller "
            "batches."
        )


def late(timeout: float) -> TransportError:
    """Return what is said when no message came."""
    return TransportError(f"no message came within {timeout:g} s; see what the other party says.")


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
    """Return the link of a party to itself: what it sends, it receives."""
    box: SimpleQueue[bytes] = SimpleQueue()
    return _Queued(box, box, 0.0)
