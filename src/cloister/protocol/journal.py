"""What a party keeps so that it can be stopped at any moment: secrets, promises, charges.

A journal keeps a frame together with its charge, and every request that was answered with its
answer. A party is a function of its plan, its secret, its records and the requests it took; so a
party that was stopped reads its journal and is where it was.
:class:`cloister.privacy.ledger.Ledger` is the durable one; :class:`MemoryJournal` serves runs
inside one process, where a crash ends the run for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from cloister.core.errors import LedgerError, LocalProtocolError
from cloister.core.randomness import new_key
from cloister.privacy.chain import BEFORE_FIRST, SignedStatement, Statement
from cloister.privacy.events import Event


class AnswerJournal(Protocol):
    """Where a party, silo or aggregator, writes before it sends."""

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the frame committed for a round, if any."""

    def commit(
        self, *, job: str, round: int, event: Event, frame: bytes, request: bytes = b""
    ) -> bytes:
        """Charge `event` and keep `frame` as the answer to `request`, in one step.

        Returns
        -------
        bytes
            The frame that may leave: the one of the first commit.
        """

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Keep the answer to a request; return the one that was kept first."""

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Keep requests and answers in one step, up to the first that was answered otherwise.

        Returns
        -------
        tuple of bytes
            For each of them what :meth:`record` returns; nothing after that first one.
        """

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return requests and answers in the order in which they were kept."""


class HeadBook(Protocol):
    """What a silo knows of its own ledger and of those of its peers."""

    def head(self) -> str:
        """Return the hash that stands for everything that was ever charged here."""

    def statement(self, job: str, plan: str, events: Event) -> Statement:
        """Return what to sign of this journal in a job, by the digest and the cost of its plan."""

    def remember(self, statements: Iterable[SignedStatement]) -> None:
        """Keep what peers signed, the newest of each in each job."""

    def remembered(self, fingerprint: str, above: int = -1) -> tuple[SignedStatement, ...]:
        """Return the newest statement of a peer in each job, those of a greater height."""

    def seen_by(self, fingerprint: str) -> int:
        """Return the height of the newest head of this journal that a peer signed, or 0."""

    def check_statements(self, shown: Iterable[SignedStatement]) -> None:
        """Check that what its owner signed, as peers show it, is in the past of this journal."""

    def countersigned(self, head: str, signatures: Mapping[str, bytes]) -> None:
        """Keep what peers signed over our head; by fingerprint."""


class Journal(AnswerJournal, HeadBook, Protocol):
    """All that a silo keeps: answers, heads, and a secret for each job."""

    def commit(
        self,
        *,
        job: str,
        round: int,
        event: Event,
        frame: bytes,
        request: bytes = b"",
        heard: Iterable[SignedStatement] = (),
    ) -> bytes:
        """Charge and keep a frame, and :meth:`remember` what peers signed, in one step."""

    def secret(self, job: str) -> bytes:
        """Return the job's 32 secret bytes: made by the operating system, then always the same."""


class MemoryJournal:
    """A :class:`Journal` that lives as long as the process."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}
        self._frames: dict[tuple[str, int], bytes] = {}
        self._answers: dict[str, dict[bytes, bytes]] = {}
        self._peers: dict[str, dict[str, SignedStatement]] = {}

    def secret(self, job: str) -> bytes:
        """Return the job's secret."""
        return self._secrets.setdefault(job, new_key())

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the frame committed for a round, if any."""
        return self._frames.get((job, round))

    def commit(
        self,
        *,
        job: str,
        round: int,
        event: Event,
        frame: bytes,
        request: bytes = b"",
        heard: Iterable[SignedStatement] = (),
    ) -> bytes:
        """Keep the frame; a round has one frame for ever."""
        self.remember(heard)
        kept = self._frames.setdefault((job, round), frame)
        if kept != frame:
            raise LocalProtocolError(
                f"round {round} was already answered with other bytes; send those again."
            )
        if request:
            self.record(job, request, frame)
        return kept

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Keep the answer to a request; return the one that was kept first."""
        return self._answers.setdefault(job, {}).setdefault(request, answer)

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Keep answers up to the first that is another; return those that were kept first."""
        kept: list[bytes] = []
        for request, answer in answers:
            kept.append(self.record(job, request, answer))
            if kept[-1] != answer:
                break
        return tuple(kept)

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return requests and answers in the order in which they were kept."""
        return tuple(self._answers.get(job, {}).items())

    def head(self) -> str:
        """Return the head of an empty chain: nothing is charged here."""
        return BEFORE_FIRST

    def statement(self, job: str, plan: str, events: Event) -> Statement:
        """Return that of an empty chain."""
        return Statement("", "", job, plan, events, BEFORE_FIRST, 0)

    def remember(self, statements: Iterable[SignedStatement]) -> None:
        """Keep what peers signed, the newest of each in each job."""
        for one in statements:
            kept = self._peers.setdefault(one.fingerprint, {})
            earlier = kept.get(one.said.job)
            if earlier is None or earlier.said.height < one.said.height:
                kept[one.said.job] = one

    def remembered(self, fingerprint: str, above: int = -1) -> tuple[SignedStatement, ...]:
        """Return the newest statement of a peer in each job, those of a greater height."""
        kept = self._peers.get(fingerprint, {}).values()
        newest = sorted(kept, key=lambda one: (one.said.height, one.said.job))
        return tuple(one for one in newest if one.said.height > above)

    def seen_by(self, fingerprint: str) -> int:
        """Return 0: nobody signs an empty chain."""
        return 0

    def check_statements(self, shown: Iterable[SignedStatement]) -> None:
        """Refuse every statement but those of an empty chain."""
        if any(one.genuine and one.said.head != BEFORE_FIRST for one in shown):
            raise LedgerError("a journal in memory has no past; use a ledger with a path.")

    def countersigned(self, head: str, signatures: Mapping[str, bytes]) -> None:
        """Forget it: an empty chain needs no witness."""

    def __repr__(self) -> str:
        return f"MemoryJournal({len(self._frames)} frames)"
