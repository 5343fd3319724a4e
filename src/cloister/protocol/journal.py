"""The durable state of a party, which survives a crash at any moment: secrets, answers, charges.

A journal stores a frame together with its charge, and every request together with its answer. The
state of a party is a function of its plan, its secret, its records and the requests it answered.
So a restarted party restores its state from the journal.
:class:`cloister.privacy.ledger.Ledger` is the durable implementation. :class:`MemoryJournal` serves
runs inside one process, in which a crash ends the run for all parties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from cloister.core.errors import LedgerError, LocalProtocolError
from cloister.core.randomness import new_key
from cloister.privacy.chain import BEFORE_FIRST, SignedStatement, Statement
from cloister.privacy.events import Event


class AnswerJournal(Protocol):
    """The storage that a party, silo or aggregator, writes before it sends."""

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the frame committed for a round, if any."""

    def commit(
        self, *, job: str, round: int, event: Event, frame: bytes, request: bytes = b""
    ) -> bytes:
        """Charge `event` and store `frame` as the answer to `request`, in one step.

        Returns
        -------
        bytes
            The frame that may be sent: the frame of the first commit.
        """

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Store the answer to a request; return the answer that was stored first."""

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Store requests and answers in one step, up to the first with another stored answer.

        Returns
        -------
        tuple of bytes
            The result of :meth:`record` for each of them, ending with that first one.
        """

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return requests and answers in the order in which they were stored."""


class HeadBook(Protocol):
    """A silo's knowledge of its own ledger's head and of its peers' statements."""

    # Peers keep signed heads of each other's ledgers. A silo that restores an old copy of its
    # ledger, and so forgets charges, is found out in its next job.

    def head(self) -> str:
        """Return the hash of the chain of all charges in this journal."""

    def statement(self, job: str, plan: str, events: Event) -> Statement:
        """Return the statement to sign for a job, from the digest and the cost of its plan."""

    def remember(self, statements: Iterable[SignedStatement]) -> None:
        """Store peers' statements, the newest of each peer in each job."""

    def remembered(self, fingerprint: str, above: int = -1) -> tuple[SignedStatement, ...]:
        """Return the newest statement of a peer in each job, for heights greater than `above`."""

    def shown_above(self, fingerprint: str) -> int:
        """Return the height above which a peer must show the statements of this journal."""

    def check_statements(self, shown: Iterable[SignedStatement]) -> None:
        """Check that this journal contains the owner's statements that peers return."""

    def countersigned(self, head: str, signatures: Mapping[str, bytes]) -> None:
        """Store peers' signatures of this journal's head, by fingerprint."""


class Journal(AnswerJournal, HeadBook, Protocol):
    """The complete durable state of a silo: answers, heads, and a secret for each job."""

    def commit(
        self,
        *,
        job: str,
        round: int,
        event: Event,
        frame: bytes,
        request: bytes = b"",
        peer_statements: Iterable[SignedStatement] = (),
    ) -> bytes:
        """Charge and store a frame, and :meth:`remember` peers' statements, in one step."""

    def secret(self, job: str) -> bytes:
        """Return the job's 32 secret bytes, drawn from the operating system on the first call."""


class MemoryJournal:
    """A :class:`Journal` that lasts as long as the process."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}  # by job
        self._frames: dict[tuple[str, int], bytes] = {}  # by job and round
        self._answers: dict[str, dict[bytes, bytes]] = {}  # by job, then by request
        self._peers: dict[str, dict[str, SignedStatement]] = {}  # by fingerprint, then by job

    def secret(self, job: str) -> bytes:
        """Return the job's secret."""
        # setdefault is atomic, so two threads get the same secret.
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
        peer_statements: Iterable[SignedStatement] = (),
    ) -> bytes:
        """Store the one frame of a round."""
        self.remember(peer_statements)
        kept = self._frames.setdefault((job, round), frame)
        # A second frame under the same pad would reveal the difference of two vectors.
        if kept != frame:
            raise LocalProtocolError(
                f"round {round} was already answered with other bytes; send those again."
            )
        if request:
            self.record(job, request, frame)
        return kept

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Store the answer to a request; return the answer that was stored first."""
        return self._answers.setdefault(job, {}).setdefault(request, answer)

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Store answers up to the first that differs; return those that were stored first."""
        kept: list[bytes] = []
        for request, answer in answers:
            kept.append(self.record(job, request, answer))
            # Later answers follow from this one, so they must not be stored with another.
            if kept[-1] != answer:
                break
        return tuple(kept)

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return requests and answers in the order in which they were stored."""
        return tuple(self._answers.get(job, {}).items())

    def head(self) -> str:
        """Return the head of an empty chain, as this journal charges nothing."""
        return BEFORE_FIRST

    def statement(self, job: str, plan: str, events: Event) -> Statement:
        """Return the statement of an empty chain."""
        return Statement("", "", job, plan, events, BEFORE_FIRST, 0)

    def remember(self, statements: Iterable[SignedStatement]) -> None:
        """Store peers' statements, the newest of each peer in each job."""
        for statement in statements:
            kept = self._peers.setdefault(statement.fingerprint, {})
            earlier = kept.get(statement.said.job)
            if earlier is None or earlier.said.height < statement.said.height:
                kept[statement.said.job] = statement

    def remembered(self, fingerprint: str, above: int = -1) -> tuple[SignedStatement, ...]:
        """Return the newest statement of a peer in each job, for heights greater than `above`."""
        kept = self._peers.get(fingerprint, {}).values()
        # Sorted, so that repeated answers have the same bytes; the job breaks ties of the height.
        newest = sorted(kept, key=lambda statement: (statement.said.height, statement.said.job))
        return tuple(statement for statement in newest if statement.said.height > above)

    def shown_above(self, fingerprint: str) -> int:
        """Return 0, as peers sign no empty chain."""
        return 0

    def check_statements(self, shown: Iterable[SignedStatement]) -> None:
        """Raise LedgerError for every statement except those of an empty chain."""
        if any(statement.genuine and statement.said.head != BEFORE_FIRST for statement in shown):
            raise LedgerError("a journal in memory has no past; use a ledger with a path.")

    def countersigned(self, head: str, signatures: Mapping[str, bytes]) -> None:
        """Discard the signatures, as an empty chain needs no witness."""

    def __repr__(self) -> str:
        return f"MemoryJournal({len(self._frames)} frames)"
