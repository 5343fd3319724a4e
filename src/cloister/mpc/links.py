"""Carrying messages between two parties, whole and in order."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from cloister.errors import TransportError

TIMEOUT = 60.0  # seconds to wait for a message before the run ends


class Link(Protocol):
    """One party's end of a link to one other party."""

    def send(self, body: bytes) -> None:
        """Send a message; does not wait until the other party reads it."""
        ...

    def receive(self) -> bytes:
        """Return the next message.

        Raises
        ------
        TransportError
            If none comes in time, or the other party is gone.
        """
        ...


class _Queued:
    """An end of a link within one process."""

    def __init__(
        self, send: Callable[[bytes], None], inbox: SimpleQueue[bytes], timeout: float
    ) -> None:
        self.send = send
        self._inbox = inbox
        self._timeout = timeout

    def receive(self) -> bytes:
        try:
            return self._inbox.get(timeout=self._timeout)
        except Empty:
            raise TransportError(
                f"no message came within {self._timeout:g} s; see what the other party says."
            ) from None


def local_links(timeout: float = TIMEOUT) -> tuple[Link, Link]:
    """Return the two ends of a link within one process."""
    to_first: SimpleQueue[bytes] = SimpleQueue()
    to_second: SimpleQueue[bytes] = SimpleQueue()
    return (
        _Queued(to_second.put, to_first, timeout),
        _Queued(to_first.put, to_second, timeout),
    )
