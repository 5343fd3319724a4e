"""The resend cache: what left once leaves again as the same bytes, and is charged once.

A journal keeps a frame together with its charge. :class:`cloister.privacy.ledger.Ledger` is the
durable one; :class:`MemoryJournal` serves runs inside one process, where a crash ends the run for
everybody.
"""

from __future__ import annotations

from typing import Protocol

from cloister.errors import LocalProtocolError
from cloister.privacy.events import Event


class Journal(Protocol):
    """Where a party writes a frame and its charge before the frame leaves."""

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the frame committed for a round, if any."""
        ...

    def commit(self, *, job: str, round: int, event: Event, frame: bytes) -> bytes:
        """Charge `event` and keep `frame`, in one step; return the frame that may leave."""
        ...


class MemoryJournal:
    """A journal that lives as long as the process."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int], bytes] = {}

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the frame committed for a round, if any."""
        return self._frames.get((job, round))

    def commit(self, *, job: str, round: int, event: Event, frame: bytes) -> bytes:
        """Keep the frame; a round has one frame for ever."""
        kept = self._frames.setdefault((job, round), frame)
        if kept != frame:
            raise LocalProtocolError(
                f"round {round} was already answered with other bytes; send those again."
            )
        return kept

    def __repr__(self) -> str:
        return f"MemoryJournal({len(self._frames)} frames)"
