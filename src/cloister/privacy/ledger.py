"""The ledger: the privacy spending on each data set, stored so that it can only grow.

Each owner of data has one file. Every fact is an *entry*: a line of canonical JSON, chained to the
previous one by SHA-256. All state follows from the chain. Before each decision, the ledger replays
the chain under the writer's lock. So it forgets no cost after a crash between two statements, with
a second process, or with an edited row.

A job first **reserves** its whole cost, which counts as spent until the job is **closed**. Each
round is then **committed**: its charge and the exact bytes that will leave become durable in one
transaction, before the first byte leaves. For a repeated request of the same round, the ledger
returns the same bytes and charges nothing.

Frames are stored outside the chain, which has only a keyed tag of each, so that they can be deleted
after a job. The same holds for the job's secret and its answers to other requests. An entry
contains no record, and no value that is computed from a record without the owner's key.

Peers sign the heads of each other's chains. In each round of a job over a network, each silo also
signs the last entry of its ledger and the cost of the job. Its peers store the newest such
*statement* of each job. A small file next to the ledger also has the newest head. A ledger that was
replaced by an older copy therefore raises, also if it closed the job before its first answer.
:meth:`Ledger.recover` then adds the missing jobs from the statements of its owner.

A file of an older format has fewer tables, and raises until
:func:`cloister.privacy.ledger_file.migrate` has added them in one transaction. Opening never
migrates a file, because programs of the older version cannot use it afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cloister.core.errors import BudgetExceeded, LedgerError, PlanError
from cloister.core.randomness import KEY_BYTES, new_key
from cloister.core.sqlite import check_pages, connect, explained, transaction
from cloister.privacy import accounting, ledger_file
from cloister.privacy.budget import Budget
from cloister.privacy.chain import (
    FORMAT,
    Entry,
    Job,
    JobRecord,
    SignedStatement,
    State,
    Statement,
    canonical,
)
from cloister.privacy.events import ComposedEvent, Event, NonPrivateEvent, holds, mechanism_counts
from cloister.privacy.filter import Cost, Limits, Split, cheapest_pricing, tariffs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Entry", "JobRecord", "Ledger", "SignedStatement", "Statement"]

_Bound: TypeAlias = tuple[str, str, Limits, Cost]  # owner of the cap, its name, limits, charges


class Ledger:
    """The durable record of privacy spending, which refuses releases above a cap.

    Parameters
    ----------
    path : path-like or None
        SQLite file, created with mode 0600 if it does not exist. It must be on a local disk, not on
        a network disk. None keeps the ledger in memory, until the process ends.
    behind : bool
        If True, open it even if it lacks entries that were written or signed before, to read it and
        to :meth:`recover`. It accepts no job and no round until it has caught up.

    Raises
    ------
    LedgerError
        If the file is not a ledger, is damaged, has an older format, or its chain does not verify.
        Also if it lacks the newest head, or a statement that peers showed, or if it has charges
        and the file of the head is missing.

    Notes
    -----
    Costs are keyed by (data set, study). They are composed over the whole life of a data set and
    converted once at its delta; epsilons of Gaussian jobs are never added up. Jobs may depend on
    earlier results, with any noise distribution, because the limits of a cap are fixed when the
    data set is opened (docs/proofs/ledger.md).

    Several threads and processes can use the ledger concurrently. It survives SIGKILL and, if the
    disk writes durably, power loss (WAL, ``synchronous=FULL``). It does not survive deletion, and
    the owner of the file can forge a whole chain. :meth:`check_head` finds both if peers kept a
    head. The file with the name of the ledger and ``.head`` has the head after the newest charge
    or change of a cap.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, behind: bool = False) -> None:
        # Absolute: a later change of the working directory must not lead to another ledger.
        self._path = None if path is None else Path(os.path.abspath(path))
        self._head_file = ledger_file.head_file(self._path or Path(os.devnull))
        if self._path is not None and not self._path.exists():
            ledger_file.create(self._path)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._file = self._identity()
        self._connection: sqlite3.Connection | None = None
        self._state = State()
        try:
            with self._guarded() as connection, transaction(connection):
                if self._path is None:
                    ledger_file.initialise(connection)
                check_pages(connection.execute, self._label)
                self._key = ledger_file.owner_key(connection, self._path)
                self._catch_up(connection)
                if not behind:
                    # A crash may have come between an entry and its head.
                    self._move_head(self._check_newest(connection))
        except LedgerError:
            self.dispose()
            raise

    def __repr__(self) -> str:
        return f"Ledger({str(self._path)!r})" if self._path else "Ledger(in memory, not kept)"

    @property
    def _label(self) -> str:
        """Name of the ledger in error messages."""
        return f"ledger {str(self._path)!r}" if self._path else "the ledger in memory"

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self  # a copy that could spend the same budget twice must not exist

    def __reduce__(self) -> tuple[type[Ledger], tuple[str]]:
        if self._path is None:
            raise LedgerError("an in-memory ledger cannot be stored or sent; give it a path.")
        return Ledger, (str(self._path),)

    def dispose(self) -> None:
        """Close the file, which a later call opens again. A ledger in memory is lost."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    # Caps ------------------------------------------------------------------------------------

    def open_dataset(
        self, dataset: str, *, cap: Budget, unit: str = "row", split: Split | None = None
    ) -> None:
        """Declare a data set with its lifetime cap; a repeated call changes nothing.

        Parameters
        ----------
        dataset : str
            The name in the owner's schema.
        cap : Budget
            Cap for all releases from this data set.
        unit : str
            Unit of privacy: "row", or the column whose values identify the protected units.
        split : Split, optional
            Division of the cap into limits, which cannot be changed later. By default the whole cap
            is for Gaussian noise, or for Laplace noise if ``cap.delta`` is 0.
            :meth:`Split.split_for` returns the split of a data set that is opened for one job.

        Raises
        ------
        LedgerError
            If the ledger has the data set with another cap, unit or split.
        """
        _check_name("dataset", dataset)
        _check_name("unit", unit)
        if not isinstance(cap, Budget):
            raise PlanError(f"cap must be a Budget such as Budget(2.0, delta=1e-6), got {cap!r}.")
        with self._transaction() as connection:
            opened = self._state.datasets.get(dataset)
            if opened is None:
                self._checked_head_file()
                shares = Split.default(cap) if split is None else split
                self._append(
                    connection,
                    "dataset",
                    dataset=dataset,
                    unit=unit,
                    cap=_fields(cap),
                    split=asdict(shares),
                )
            elif opened.unit != unit:
                raise LedgerError(
                    f"data set {dataset!r} has the unit of privacy {opened.unit!r}, got {unit!r}; "
                    "a unit cannot change."
                )
            elif opened.cap != cap:
                raise LedgerError(
                    f"data set {dataset!r} has the lifetime cap ({opened.cap}), got ({cap}); set "
                    f"cap_epsilon = {opened.cap.epsilon:g} and cap_delta = {opened.cap.delta:g} in "
                    "silo.toml, or change the ledger's with 'cloister budget cap' or change_cap."
                )
            elif split not in (None, opened.split):
                raise LedgerError(
                    f"data set {dataset!r} has the limits of {opened.split}, got {split}; they are "
                    "fixed when a data set is opened."
                )
        if opened is None:
            self._note_head()

    def change_cap(self, dataset: str, cap: Budget) -> None:
        """Change the lifetime cap of a data set by an entry of the chain.

        The limits follow, with the same split. The guarantee for the data set is then the largest
        cap that it ever had. The owner must not raise a cap because of results.
        """
        with self._transaction() as connection:
            if self._state.dataset(dataset).cap != cap:
                self._make_head_file()
                self._append(connection, "cap", dataset=dataset, cap=_fields(cap))
        self._note_head()

    def study_cap(self, dataset: str, study: str, cap: Budget) -> None:
        """Limit one study to a smaller cap within the lifetime cap, which does not change.

        Raises
        ------
        PlanError
            If ``cap`` has another delta than the data set, or a larger epsilon.
        """
        _check_name("study", study)
        with self._transaction() as connection:
            opened = self._state.dataset(dataset)
            # Limits of one delta can be compared; those of two deltas cannot.
            if cap.delta != opened.cap.delta or cap.epsilon > opened.cap.epsilon:
                raise PlanError(
                    f"the cap of study {study!r} must have the delta of data set {dataset!r} and "
                    f"at most its epsilon ({opened.cap}), got ({cap})."
                )
            if opened.study_epsilons.get(study) != cap.epsilon:
                self._make_head_file()
                self._append(
                    connection, "study_cap", dataset=dataset, study=study, epsilon=cap.epsilon
                )
        self._note_head()

    # Spending --------------------------------------------------------------------------------

    def content_tag(self, content: bytes) -> bytes:
        """Return the 32-byte HMAC of ``content`` (records, or a digest of them) under this ledger.

        Only the owner of the key can find out that two contents are equal.
        """
        return self._tag("content", content)

    def reserve(
        self,
        *,
        dataset: str,
        study: str,
        job: str,
        events: Event,
        content: bytes | None = None,
        confirm_same_content: bool = False,
        year_epsilon: float | None = None,
        task: str = "",
    ) -> None:
        """Reserve the whole cost of a job, which counts as spent until the job is closed.

        Parameters
        ----------
        events : Event
            All rounds of the job.
        content : bytes or None
            The records as bytes, or a digest of them; only a keyed tag is stored. With it, the job
            cannot be resumed with other records, and the same records under another name are found.
        confirm_same_content : bool
            If True, the owner confirms a second budget for another data set with the same content.
        year_epsilon : float or None
            Cap for the data set's jobs that are reserved in the current calendar year, in UTC by
            the clock of this machine. It has the delta and the split of the data set, and does not
            increase other caps.
        task : str
            The name of the task, for :meth:`tasks`; it is no part of the chain.

        Raises
        ------
        BudgetExceeded
            If the total of all commits, all open reservations and this one exceeds a limit of the
            lifetime cap, the study's cap or the year's cap. Also if an event has no noise.
        LedgerError
            If the data set is unknown, the job is closed or has other values, or the content
            belongs to another data set. Also if the clock is behind the last entry, or this ledger
            is behind a statement of its owner.

        Notes
        -----
        A repeated reservation of the same job with the same values resumes it without cost.
        """
        _check_name("study", study)
        _check_name("job", job)
        if holds(events, NonPrivateEvent):
            raise BudgetExceeded(
                f"job {job!r} has a release without noise, which no budget allows; run it on "
                "public data without a ledger."
            )
        tag = None if content is None else self.content_tag(content).hex()
        with self._transaction() as connection:
            opened = self._state.dataset(dataset)
            self._check_newest(connection)
            # Before clock and caps: a resumed job was admitted before, and has no further cost.
            if job in self._state.jobs:
                _check_resumed(self._state.jobs[job], dataset, study, events, tag)
                return
            # Under a second name the same records would have a second cap.
            other = self._state.other_owner(tag, dataset)
            if other is not None and not confirm_same_content:
                raise LedgerError(
                    f"data set {dataset!r} has the same content as {other!r}; use that name, or "
                    "confirm a second budget for the same records, as their owner: "
                    "--confirm-same-content of a command, confirm_same_content=True of an Account "
                    "or reserve; the fit of an estimator needs that name."
                )
            now = self._checked_now()
            so_far = self._state.cost(dataset)
            bounds = [(f"data set {dataset!r}", "lifetime cap", opened.limits(), so_far)]
            if study in opened.study_epsilons:
                limits = opened.limits(opened.study_epsilons[study])
                so_far = self._state.cost(dataset, study)
                bounds.append((f"study {study!r}", "cap", limits, so_far))
            if year_epsilon is not None:
                limits = opened.limits(year_epsilon)
                so_far = self._state.cost(dataset, year=now.year)
                bounds.append(
                    (f"data set {dataset!r} in {now.year}", "cap for a year", limits, so_far)
                )
            # Fixed before any result is known: a later choice of tariff would be adaptive.
            tariff = cheapest_pricing(events, [(limits, so_far) for _, _, limits, so_far in bounds])
            if tariff is None:
                raise BudgetExceeded(_refusal(job, events, bounds))
            self._append(
                connection,
                "reserve",
                at=ledger_file.text_of(now),
                dataset=dataset,
                study=study,
                job=job,
                events=events.to_dict(),
                content=tag,
                confirmed=other is not None,
                tariff=tariff.to_dict(),
            )
            if task:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {ledger_file.TASKS}")
                connection.execute(ledger_file.INSERT_TASK, (job, task))

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
        """Make a round's charge and its frame durable, in one transaction.

        Parameters
        ----------
        round : int, >= 0
        event : Event
            The event of the round; the rest of the reservation must contain it.
        frame : bytes
            The exact bytes that will leave. They must already be masked or contain noise.
        request : bytes
            The request that the frame answers, stored as by :meth:`record` unless it is empty.
        peer_statements : iterable of SignedStatement
            Statements to store as by :meth:`remember`.

        Returns
        -------
        bytes
            The bytes to send: ``frame``, or the frame of the first commit of this round. A repeated
            commit changes nothing and has no charge.

        Raises
        ------
        BudgetExceeded
            If the reservation does not cover the event.
        LedgerError
            If the job is unknown or closed, the round was committed with another event, or the
            request has another answer. Also if this ledger is behind a statement of its owner.
        """
        if isinstance(round, bool) or not isinstance(round, int) or round < 0:
            raise LedgerError(f"round must be an integer of at least 0, got {round!r}.")
        with self._transaction() as connection:
            _put_statements(connection, peer_statements)
            stored = self._commit(connection, job, round, event, bytes(frame), bytes(request))
        self._note_charge(job)
        return stored

    def _commit(
        self,
        connection: sqlite3.Connection,
        job: str,
        round: int,
        event: Event,
        frame: bytes,
        request: bytes,
    ) -> bytes:
        reserved = self._state.job(job)
        # Also for a closed job: a frame that has left may always leave again.
        if round in reserved.rounds:
            if reserved.rounds[round].event != event:
                raise LedgerError(
                    f"round {round} of job {job!r} was committed with another event; "
                    "a round has one meaning."
                )
            frame = self._stored(connection, job, round)
            if reserved.is_open:
                self._record_frame(connection, job, request, round, frame)
            return frame
        if not reserved.is_open:
            raise LedgerError(f"job {job!r} is closed; reserve a new job.")
        if not reserved.covers(event, round):
            raise BudgetExceeded(
                f"round {round} of job {job!r} exceeds the rest of its reservation; reserve a new "
                "job with all its events."
            )
        # An older copy of the file may lack a charge of this round, whose frame has left.
        self._check_newest(connection)
        self._make_head_file()
        self._append(
            connection,
            "charge",
            job=job,
            round=round,
            event=event.to_dict(),
            frame=self._frame_tag(job, round, frame),
        )
        connection.execute(ledger_file.INSERT_FRAME, (job, round, frame))
        self._record_frame(connection, job, request, round, frame)
        return frame

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the frame committed for a round, or None if the round was not committed.

        Raises
        ------
        LedgerError
            If the round was committed, and its frame is missing or was changed.
        """
        with self._transaction() as connection:
            reserved = self._state.jobs.get(job)
            if reserved is None or round not in reserved.rounds:
                return None
            frame = self._stored(connection, job, round)
        # A crash may have come between the charge and its head, and now the frame can leave.
        self._note_charge(job)
        return frame

    def is_frame(self, job: str, round: int, frame: bytes) -> bool:
        """Return True if a round was committed with this frame, which may be deleted since."""
        with self._caught_up():
            reserved = self._state.jobs.get(job)
            if reserved is None or round not in reserved.rounds:
                return False
            tag = reserved.rounds[round].frame_tag
        return hmac.compare_digest(self._frame_tag(job, round, frame), tag)

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Store an answer durably before it leaves; a request keeps its first answer.

        Parameters
        ----------
        request, answer : bytes
            The answer must already be masked or sealed, or be independent of records.

        Returns
        -------
        bytes
            The bytes to send: ``answer``, or the first stored one.

        Raises
        ------
        LedgerError
            If the job is unknown; if it is closed and the request is new; or if the answer was
            changed in the file.
        """
        return self.record_all(job, [(request, answer)])[0]

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Store answers durably in one transaction, up to the first with another earlier answer.

        Returns
        -------
        tuple of bytes
            The result of :meth:`record` for each of them, up to and with that first one.

        Raises
        ------
        LedgerError
            As :meth:`record`; then no answer is stored.
        """
        with self._transaction() as connection:
            reserved, stored = self._state.job(job), []
            for request, answer in ((bytes(a), bytes(b)) for a, b in answers):
                digest = hashlib.sha256(request).digest()
                earlier = self._answered(connection, job, digest)
                stored.append(answer if earlier is None else earlier)
                if stored[-1] != answer:
                    break
                if earlier is not None:
                    continue
                if not reserved.is_open:
                    raise LedgerError(
                        f"job {job!r} is closed and answers no new request; ignore it."
                    )
                self._insert_answer(connection, job, digest, request, answer, None)
        return tuple(stored)

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return the requests of a job and their answers, in the order of their storage.

        The result is empty for a job that is unknown or whose answers were deleted.

        Raises
        ------
        LedgerError
            If an answer is missing or was changed.
        """
        with self._transaction() as connection:
            return tuple(self._read_answers(connection, job))

    def secret(self, job: str) -> bytes:
        """Return the 32 secret bytes of a job, from which its masks and keys are derived.

        The operating system makes them on the first call. Later calls return the same bytes, until
        :meth:`forget_frames` deletes them.

        Raises
        ------
        LedgerError
            If the job is unknown, or closed and its secret was deleted or never made.
        """
        with self._transaction() as connection:
            reserved = self._state.job(job)
            row: tuple[bytes] | None = connection.execute(ledger_file.ONE_SECRET, (job,)).fetchone()
            if row is None:
                if not reserved.is_open:
                    raise LedgerError(f"job {job!r} is closed and has no secret; leave the job.")
                row = (new_key(),)
                connection.execute(ledger_file.INSERT_SECRET, (job, *row))
        return row[0]

    def close(self, job: str, *, whole: bool = False) -> None:
        """End a job: its committed rounds stay spent, and the rest of its reservation is returned.

        The price of a job that is priced as a whole is returned only if it committed no round.

        Parameters
        ----------
        whole : bool
            If True, return nothing. Use it if an older copy of the file was restored, which may
            lack rounds that have left.
        """
        with self._transaction() as connection:
            reserved = self._state.job(job)
            if not reserved.is_open:
                return
            # Answers precede every statement, so a peer's statement on this job is a later one.
            answer = connection.execute(ledger_file.ANY_ANSWER, (job,)).fetchone()
            if whole:
                self._append(connection, "close", job=job, whole=True)
            elif reserved.rounds or answer:
                self._append(connection, "close", job=job)
            else:
                self._append(connection, "close", job=job, unanswered=True)
        if whole:
            self._note_head()

    def forget_frames(self, job: str) -> None:
        """Delete the frames, answers and secret of a closed job, from the log file too.

        Its charges remain.

        Raises
        ------
        LedgerError
            If the job is open, since a lost reply must be sent again.
        """
        with self._transaction() as connection:
            if self._state.job(job).is_open:
                raise LedgerError(f"job {job!r} is open and may have to send again; close it.")
            for table in ledger_file.OF_JOBS:
                connection.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
        self._empty_log()  # the log still has the deleted rows

    # Statements and heads --------------------------------------------------------------------

    def statement(self, job: str, plan: str, events: Event) -> Statement:
        """Return the statement to sign in a job; `plan` is the digest of the job's plan."""
        with self._caught_up():
            reserved, state = self._state.job(job), self._state
            return Statement(
                reserved.dataset, reserved.study, job, plan, events, state.head, state.height
            )

    def remember(self, statements: Iterable[SignedStatement]) -> None:
        """Store the newest statement of each peer in each job; the caller verifies them first."""
        with self._transaction() as connection:
            _put_statements(connection, statements)

    def remembered(self, fingerprint: str, above: int = -1) -> tuple[SignedStatement, ...]:
        """Return the newest statement of a peer in each job, if its height is above `above`."""
        with self._transaction() as connection:
            query = ledger_file.STATEMENTS_ABOVE
            return ledger_file.read_statements(connection, query, (fingerprint, above))

    def shown_above(self, fingerprint: str) -> int:
        """Return the height above which a peer must show the statements of this ledger."""
        with self._transaction() as connection:
            rows = connection.execute(ledger_file.HEADS_SIGNED_BY, (fingerprint,))
            signed = max((self._state.heights.get(head, 0) for (head,) in rows), default=0)
            return self._state.shown_above(signed)

    def check_statements(self, shown: Iterable[SignedStatement]) -> None:
        """Raise if this ledger lacks an entry of a statement that peers show.

        Missing statements are stored for :meth:`recover`. Statements without a valid signature, or
        for a data set that is not in this ledger, are ignored.

        Parameters
        ----------
        shown : iterable of SignedStatement
            Statements by the owner's key; the caller checks the key.

        Raises
        ------
        LedgerError
            If it is behind: the file was rolled back, restored from a copy, or replaced.
        """
        with self._transaction() as connection:
            self._claim(connection, shown)
        # In a second transaction, since the first must be committed even if this one raises.
        with self._transaction() as connection:
            self._check_claims(connection)

    def recover(
        self, public: bytes, statements: Iterable[SignedStatement] = ()
    ) -> tuple[Statement, ...]:
        """Add every missing job that its owner signed a statement for, at its full price.

        No cap can refuse it, since the cost is already spent.

        Parameters
        ----------
        public : bytes of length 32
            The owner's public key; statements by another key are ignored.
        statements : iterable of SignedStatement
            Statements from peers, in addition to those that they showed in a job.

        Returns
        -------
        tuple of Statement
            The added statements, oldest first.

        Raises
        ------
        LedgerError
            If the head in the file next to the ledger is newer than all of them, or a statement
            contradicts the job of that name.
        """
        with self._transaction() as connection:
            self._claim(connection, statements)
        added: list[Statement] = []
        while True:  # one entry each time, so that a crash leaves the rest for the next call
            with self._transaction() as connection:
                missing = [claim for claim in self._missing(connection) if claim.public == public]
                if not missing:
                    break
                first = min(missing, key=lambda signed: signed.said.height)
                self._check_recoverable(first.said)
                self._append(
                    connection,
                    "recover",
                    statement=first.text,
                    signature=first.signature.hex(),
                    public=first.public.hex(),
                )
                added.append(first.said)
        with self._transaction() as connection:
            if self._is_plain_copy(self._read_head_file()):  # no job may continue from it
                self._append(connection, "copied")
        with self._transaction() as connection:
            connection.execute(ledger_file.FORGET_CLAIMS, ())
            head, height = self._read_head_file() or ("", 0)
            heights = self._state.heights
            newest = max((h for s, h in heights.items() if s not in self._state.heads), default=0)
            # A recovered statement that is at least as new as the lost head replaces it.
            if head not in heights and newest >= max(height, 1):
                self._write_head_file(self._state.head)
            elif newest and head and head not in heights:
                # Statements precede the rounds of their job, so the newest job has this, too.
                raise LedgerError(
                    f"{self._label} has the jobs of all statements, {len(added)} of them added "
                    f"now, but the head in {str(self._head_file)!r} is newer. Later entries are "
                    "rounds of these jobs, which are charged whole, or changes of caps, or jobs "
                    "that no statement shows; ask all peers for statements. If they have no more, "
                    "remove that file and set the caps again."
                )
            self._check_newest(connection)
        return tuple(added)

    def countersigned(self, head: str, signatures: Mapping[str, bytes]) -> None:
        """Store the peers' signatures of a head of this ledger; the caller verifies them first.

        From then on, a file without that head raises. The newest such head is also written to a
        file next to the ledger, so that an older copy of the ledger alone is found too.

        Parameters
        ----------
        head : str
            A present or earlier head of this ledger.

        Raises
        ------
        LedgerError
            If the head is not in the chain.
        """
        with self._transaction() as connection:
            self._check_in_chain(head)
            seq = self._state.heads[head]
            for fingerprint, signature in sorted(signatures.items()):
                row = (seq, fingerprint, head, bytes(signature))
                connection.execute(ledger_file.INSERT_OWN_HEAD, row)
            # Before the commit: the head is already durable, and other writers wait.
            last, _ = self._read_head_file() or ("", 0)
            if signatures and self._state.heads.get(last, 0) < seq:
                self._write_head_file(head)

    # Reading ---------------------------------------------------------------------------------

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets, in the order of their opening."""
        with self._caught_up():
            return tuple(self._state.datasets)

    def cap(self, dataset: str, study: str | None = None) -> Budget:
        """Return the lifetime cap, or the cap of one study."""
        with self._caught_up():
            opened = self._state.dataset(dataset)
            limit = opened.study_epsilons.get(study or "", opened.cap.epsilon)
            # The lifetime cap may have been lowered below that of the study.
            return Budget(min(limit, opened.cap.epsilon), opened.cap.delta)

    def study_caps(self, dataset: str) -> dict[str, Budget]:
        """Return the caps of the studies of a data set that have one."""
        with self._caught_up():
            studies = tuple(self._state.dataset(dataset).study_epsilons)
        return {study: self.cap(dataset, study) for study in studies}

    def unit(self, dataset: str) -> str:
        """Return the unit of privacy of a data set."""
        with self._caught_up():
            return self._state.dataset(dataset).unit

    def charged(self, dataset: str, study: str | None = None) -> ComposedEvent:
        """Return all committed or reserved events of a data set, or of one study on it."""
        with self._caught_up():
            self._state.dataset(dataset)
            return self._state.charged(dataset, study)

    def limits(self, dataset: str, study: str | None = None) -> Limits:
        """Return the limits of the lifetime cap, or of the cap of one study."""
        with self._caught_up():
            opened = self._state.dataset(dataset)
            return opened.limits(opened.study_epsilons.get(study or "", math.inf))

    def cost(self, dataset: str, study: str | None = None) -> Cost:
        """Return the total charge of a data set, or of one study on it.

        It includes commits and open reservations, and is compared with the limits.
        """
        with self._caught_up():
            self._state.dataset(dataset)
            return self._state.cost(dataset, study)

    def spent(self, dataset: str, study: str | None = None) -> float:
        """Return the epsilon, at the data set's delta, of a cap whose limits are :meth:`cost`.

        It is a guarantee for jobs that were planned beforehand. For jobs that depend on earlier
        results, the guarantee is the cap.
        """
        return self.limits(dataset).epsilon(self.cost(dataset, study))

    def remaining(self, dataset: str, study: str | None = None) -> float:
        """Return the largest epsilon of one more job at the data set's delta.

        It is for a Gaussian job, or for a pure or whole job if the limits admit more. Costs of
        Gaussian jobs compose, so this is more than the cap minus :meth:`spent`.
        """
        left = self.limits(dataset).epsilon_left(self.cost(dataset))
        if study is not None:
            limits = self.limits(dataset, study)
            left = min(left, limits.epsilon_left(self.cost(dataset, study)))
        return left

    def jobs(self, dataset: str | None = None) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, or of those on one data set, oldest first."""
        with self._caught_up():
            jobs = self._state.jobs.values()
            return tuple(job.record() for job in jobs if dataset in (None, job.dataset))

    def tasks(self) -> dict[str, str]:
        """Return the task of each job, if one was given with its reservation."""
        with self._transaction() as connection:
            known = connection.execute(ledger_file.HAS_TASKS).fetchone()
            rows = connection.execute(ledger_file.ALL_TASKS) if known else ()
            return {str(job): str(task) for job, task in rows}

    def to_frame(self, dataset: str | None = None) -> pd.DataFrame:
        """Return :meth:`jobs` as a table, with the epsilon of each job alone."""
        import pandas as pd

        rows = [
            (
                *(job.job, job.dataset, job.study, job.reserved_at, job.is_open, len(job.rounds)),
                accounting.epsilon(job.charged, self.limits(job.dataset).cap.delta),
            )
            for job in self.jobs(dataset)
        ]
        heads = ["job", "dataset", "study", "reserved_at", "is_open", "rounds", "epsilon"]
        return pd.DataFrame(rows, columns=heads).set_index("job")

    def entries(self) -> tuple[Entry, ...]:
        """Return the whole chain, oldest first."""
        with self._transaction() as connection:
            return tuple(ledger_file.read_entries(connection))

    def head(self) -> str:
        """Return the hash of the last entry: 64 hexadecimal digits that identify the chain.

        Peers sign it. It discloses nothing, because the first entry contains a random nonce.
        """
        with self._caught_up():
            return self._state.head

    def check_head(self, expected: str) -> None:
        """Check that ``expected``, an earlier head of this ledger, is in its chain.

        Raises
        ------
        LedgerError
            If it is missing: the file was rolled back, restored from a copy, or replaced.
        """
        with self._caught_up():
            self._check_in_chain(expected)

    def verify(self) -> None:
        """Read the whole file again and check every link, rule, trigger and frame.

        Raises
        ------
        LedgerError
            At the first error.
        """
        with self._transaction() as connection:
            # A new state, since the one in memory may hide a change of an earlier entry.
            state = State()
            for entry in ledger_file.read_entries(connection):
                state.apply(entry)
            if dict(connection.execute(ledger_file.ALL_TRIGGERS)) != ledger_file.TRIGGERS:
                raise LedgerError(f"the triggers that keep {self._label} append-only were changed.")
            stored = {
                (name, round): frame
                for name, round, frame in connection.execute(ledger_file.ALL_FRAMES)
            }
            for name, job in state.jobs.items():
                for round, charge in job.rounds.items():
                    frame = stored.pop((name, round), None)
                    # A closed job may have deleted its frames, but a stored frame must match.
                    if frame is None and not job.is_open:
                        continue
                    self._check_frame(name, round, frame, charge.frame_tag)
            if stored:
                raise LedgerError(
                    f"{self._label} has a frame that was never charged; restore its newest copy."
                )
            self._check_newest(connection)
            for signed in ledger_file.read_statements(connection, ledger_file.ALL_STATEMENTS):
                if not signed.genuine:
                    raise LedgerError(f"a peer's statement in {self._label} was changed.")
            for (job,) in connection.execute(ledger_file.JOBS_WITH_ANSWERS).fetchall():
                state.job(job)
                for _ in self._read_answers(connection, job):
                    pass
            for job, secret in connection.execute(ledger_file.ALL_SECRETS):
                if len(secret) != KEY_BYTES:
                    raise LedgerError(f"the secret of job {job!r} was changed; leave the job.")
                state.job(job)

    def export(self) -> dict[str, Any]:
        """Return the ledger as JSON-able values: entries, totals, and the peers' signatures.

        They contain no key, no secret, no frame and no answer.
        """
        with self._transaction() as connection:
            entries = tuple(ledger_file.read_entries(connection))
            own_heads = connection.execute(ledger_file.ALL_OWN_HEADS).fetchall()
            peers = ledger_file.read_statements(connection, ledger_file.ALL_STATEMENTS)
        return {
            "format": f"cloister-ledger/{FORMAT}",
            "head": entries[-1].hash,
            "datasets": {
                name: {
                    "unit": self.unit(name),
                    "cap": _fields(self.cap(name)),
                    "study_epsilons": {s: c.epsilon for s, c in self.study_caps(name).items()},
                    "split": asdict(self.limits(name).split),
                    "limits": asdict(self.limits(name).room),
                    "charged": {k: _finite(v) for k, v in asdict(self.cost(name)).items()},
                    "spent_epsilon": _finite(self.spent(name)),
                    "remaining_epsilon": self.remaining(name),
                }
                for name in self.datasets()
            },
            "countersigned": [
                {"seq": seq, "fingerprint": by, "head": head, "signature": signature.hex()}
                for seq, by, head, signature in own_heads
            ],
            "peers": [
                {
                    "fingerprint": peer.fingerprint,
                    "statement": peer.text,
                    "signature": peer.signature.hex(),
                    "public": peer.public.hex(),
                }
                for peer in peers
            ],
            "entries": [{"seq": e.seq, "hash": e.hash, "entry": e.fields} for e in entries],
        }

    # Clock -----------------------------------------------------------------------------------

    def confirm_clock(self) -> None:
        """Confirm that the clock is right, and was ahead when entries of a later time were written.

        The confirmation is an entry of the chain. Charges and the years in which they count do not
        change.
        """
        with self._transaction() as connection:
            self._checked_head_file()
            self._append(connection, "clock")
        self._note_head()

    # Copies ----------------------------------------------------------------------------------

    def backup(self, copy: str | os.PathLike[str]) -> None:
        """Write a consistent, verified copy of the ledger, of mode 0600, while it is in use.

        Parameters
        ----------
        copy : path-like
            A file that does not exist yet.

        Raises
        ------
        LedgerError
            If the ledger or the copy does not verify, the file exists or cannot be written, or
            the ledger is in memory.

        Notes
        -----
        No job may continue from a copy, because the copy lacks the frames that were sent since. So
        the copy ends all open jobs and counts their whole reservations as spent permanently. It has
        no frame, answer or secret of any job, and lacks later jobs.
        """
        if self._path is None:
            raise LedgerError("an in-memory ledger cannot be copied to a file; give it a path.")
        target = Path(os.path.abspath(copy))
        self.verify()
        if not ledger_file.build(target, self._write_copy):
            raise LedgerError(f"{str(target)!r} exists and is not replaced; give another name.")

    # Internals -------------------------------------------------------------------------------

    def _write_copy(self, path: Path) -> None:
        with self._guarded() as connection, closing(sqlite3.connect(path)) as target:
            connection.backup(target)
        copy = Ledger(path, behind=True)  # it has no file of its head
        # Under the temporary name, so that no process can use the copy before its jobs have ended.
        try:
            with copy._transaction() as connection:
                copy._append(connection, "copied")
                for table in ledger_file.OF_JOBS:
                    connection.execute(f"DELETE FROM {table}")
            copy._empty_log()
            copy.verify()
        finally:
            copy.dispose()

    def _empty_log(self, manner: str = "TRUNCATE") -> None:
        """Move the log into the file and truncate it; must be called outside a transaction."""
        with self._guarded() as connection:
            connection.execute(f"PRAGMA wal_checkpoint({manner})")

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        # A connection of SQLite must not be used after a fork.
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self._label} was opened in another process; open it again in this one."
            )
        with self._lock, explained(self._label):
            if self._connection is None:
                self._connection = connect(self._path)
            yield self._connection

    def _identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file, to find out if another file replaced it."""
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_dev, status.st_ino

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock, with the state replayed up to the last entry of any process."""
        with self._guarded() as connection, transaction(connection):
            self._catch_up(connection)
            yield connection

    @contextmanager
    def _caught_up(self) -> Iterator[None]:
        """Replay the state up to the last entry of any process, without a lock against writers."""
        with self._guarded() as connection:
            self._catch_up(connection)
            yield

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        if self._identity() != self._file:
            raise LedgerError(f"the file of {self._label} was removed or replaced; restore it.")
        # Read the last known entry again, to find out if the file was replaced meanwhile.
        with closing(ledger_file.read_entries(connection, self._state.seq)) as entries:
            if self._state.seq:
                last = next(entries, None)
                if last is None or last.hash != self._state.head:
                    raise LedgerError(
                        f"{self._label} was rolled back or replaced while it was open."
                    )
            for entry in entries:
                self._state.apply(entry)
        if not self._state.seq:
            raise LedgerError(f"{self._label} has lost all its entries; restore the newest file.")

    def _append(self, connection: sqlite3.Connection, kind: str, **fields: Any) -> None:
        # The state does not change here: it is replayed from the file after the commit.
        ledger_file.insert_entry(connection, self._state.seq + 1, self._state.head, kind, **fields)

    def _check_in_chain(self, head: str) -> None:
        if head not in self._state.heads:
            raise LedgerError(
                f"{self._label} does not contain the head that was signed for it, so it was rolled "
                "back or replaced; restore the newest file, or leave all jobs and inform peers."
            )

    def _missing(self, connection: sqlite3.Connection) -> list[SignedStatement]:
        """Return the claims that are not in this chain."""
        claims = ledger_file.read_statements(connection, ledger_file.ALL_CLAIMS)
        return [claim for claim in claims if self._is_missing(claim)]

    def _is_missing(self, signed: SignedStatement) -> bool:
        # The signature first, so that an unsigned text is ignored even if it is no statement.
        if not signed.genuine:
            return False
        statement = signed.said
        return statement.dataset in self._state.datasets and not self._state.contains(statement)

    def _claim(self, connection: sqlite3.Connection, shown: Iterable[SignedStatement]) -> None:
        for signed in filter(self._is_missing, shown):
            head, job = signed.said.head, signed.said.job
            row = (head, job, signed.text, signed.signature, signed.public)
            connection.execute(ledger_file.INSERT_CLAIM, row)

    def _check_claims(self, connection: sqlite3.Connection) -> None:
        if missing := self._missing(connection):
            raise LedgerError(
                f"{self._label} is behind {len(missing)} statements that its owner signed and "
                "peers hold, so it was rolled back or replaced; run 'cloister budget recover' on "
                "it, or restore the newest file."
            )

    def _check_recoverable(self, statement: Statement) -> None:
        reserved = self._state.jobs.get(statement.job)
        same = reserved is None or (reserved.dataset, mechanism_counts(reserved.events)) == (
            statement.dataset,
            mechanism_counts(statement.events),
        )
        # Checked before the entry is written: the replay would refuse it, and the whole file.
        if not same:
            raise LedgerError(
                f"{self._label} has job {statement.job!r} with another reservation than its owner "
                "signed for; restore the newest file."
            )

    def _check_newest(self, connection: sqlite3.Connection) -> str | None:
        """Check that the chain has the newest signed head and statements; return the stored head.

        It raises if the chain lacks one of them.
        """
        last = connection.execute(ledger_file.LAST_OWN_HEAD).fetchone()
        if last is not None and self._state.heads.get(last[1]) != last[0]:
            raise LedgerError(
                f"{self._label} has lost entries that peers counter-signed; restore the newest "
                "file."
            )
        self._check_claims(connection)
        return self._checked_head_file()

    def _checked_head_file(self) -> str | None:
        """Return the head in the file next to the ledger. Raise if the chain lacks it."""
        stored = self._read_head_file()
        if self._is_plain_copy(stored):
            raise LedgerError(
                f"{self._label} has charges, but {str(self._head_file)!r} is missing, so it is a "
                "plain copy that may lack newer charges; restore both files, or run 'cloister "
                "budget recover' on it."
            )
        if stored is None:
            return None
        if stored[0] not in self._state.heights:
            raise LedgerError(
                f"{self._label} is behind the head that was written last, kept in "
                f"{str(self._head_file)!r}, so it was rolled back or replaced; restore the newest "
                "file, or run 'cloister budget recover' with the statements of its peers; if all "
                "later charges and caps are lost permanently, remove that file first, and set the "
                "caps again."
            )
        return stored[0]

    def _is_plain_copy(self, stored: tuple[str, int] | None) -> bool:
        """Return True if no head is stored, which only a backup may lack after a charge."""
        return stored is None and self._path is not None and self._state.charged_since_copy

    def _read_head_file(self) -> tuple[str, int] | None:
        """Return the head in the file next to the ledger and its height, 0 if missing."""
        if self._path is None:
            return None
        try:
            text = self._head_file.read_bytes().decode("ascii", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"{str(self._head_file)!r} cannot be read: {error.strerror}; restore the right to "
                "read it."
            ) from error
        # Earlier versions wrote no height.
        head, _, height = text.strip().partition(" ")
        return head, int(height) if height.isascii() and height.isdigit() else 0

    def _write_head_file(self, head: str) -> None:
        if self._path is not None:
            ledger_file.overwrite(self._head_file, ledger_file.head_line(self._state, head))

    def _make_head_file(self) -> None:
        """Write the head before an entry that moves it, if no head is stored.

        No crash may leave such an entry without a head. Raise if the chain lacks the stored head.
        """
        if self._checked_head_file() is None:
            self._write_head_file(self._state.head)

    def _move_head(self, stored: str | None) -> None:
        """Write the last head, if the stored one is before an entry that no copy may lack."""
        if stored is not None and self._state.heights[stored] < self._state.kept:
            self._write_head_file(self._state.head)

    def _note_head(self) -> None:
        """Write the last head to the file next to the ledger, after the commit of its entry.

        A crash between the two leaves a head that the ledger has, and the next opening or
        :meth:`frame` completes the write. The lock of writers ensures that an older head never
        replaces a newer one.
        """
        if self._path is not None:
            with self._transaction():
                self._move_head(self._checked_head_file())

    def _note_charge(self, job: str) -> None:
        """Write the last head, before a frame of a job leaves.

        With a job's first frame, its reservation and charge move from the log into the file, so
        that a copy of the file alone has both.
        """
        if self._path is None:
            return
        self._note_head()
        if len(self._state.jobs[job].rounds) == 1:
            self._empty_log("FULL")

    def _checked_now(self) -> datetime:
        """Return the time. Raise if it is before that of an entry."""
        # A clock that was set back could reserve in a year whose cap is not yet used.
        now = ledger_file.utc_now()
        if ledger_file.text_of(now) < self._state.latest:
            raise LedgerError(
                f"the clock of this machine shows {ledger_file.text_of(now)}, but the last entry "
                f"of {self._label} has the time {self._state.latest}; set the clock, or, if it was "
                "wrong then, run 'cloister budget clock'."
            )
        return now

    def _record_frame(
        self, connection: sqlite3.Connection, job: str, request: bytes, round: int, frame: bytes
    ) -> None:
        """Store the request that a round's frame answers, if there is one."""
        if not request:
            return
        digest = hashlib.sha256(request).digest()
        stored = self._answered(connection, job, digest)
        if stored is None:
            self._insert_answer(connection, job, digest, request, None, round)
        elif stored != frame:
            raise LedgerError(
                f"the request of round {round} of job {job!r} has another answer; leave the job."
            )

    def _answered(self, connection: sqlite3.Connection, job: str, digest: bytes) -> bytes | None:
        """Return the stored answer to the request with this digest, or None."""
        row = connection.execute(ledger_file.ONE_ANSWER, (job, digest)).fetchone()
        return None if row is None else self._checked_answer(connection, job, *row)

    def _read_answers(
        self, connection: sqlite3.Connection, job: str
    ) -> Iterator[tuple[bytes, bytes]]:
        for place, row in enumerate(connection.execute(ledger_file.ANSWERS_OF, (job,)).fetchall()):
            number, _, request, *_ = row
            # A tag protects an answer from changes, and the numbers show that one was deleted.
            if number != place:
                raise LedgerError(f"an answer of job {job!r} is missing; leave the job.")
            yield request, self._checked_answer(connection, job, *row)

    def _insert_answer(
        self,
        connection: sqlite3.Connection,
        job: str,
        digest: bytes,
        request: bytes,
        answer: bytes | None,
        round: int | None,
    ) -> None:
        (number,) = connection.execute(ledger_file.NEXT_NUMBER, (job,)).fetchone()
        tag = self._answer_tag(job, number, round, digest, answer)
        connection.execute(
            ledger_file.INSERT_ANSWER,
            (job, number, digest, request, answer, round, tag),
        )

    def _checked_answer(
        self,
        connection: sqlite3.Connection,
        job: str,
        number: int,
        round: int | None,
        request: bytes,
        answer: bytes,
        tag: bytes,
    ) -> bytes:
        digest = hashlib.sha256(request).digest()
        if not hmac.compare_digest(self._answer_tag(job, number, round, digest, answer), tag):
            raise LedgerError(f"an answer of job {job!r} was changed; leave the job.")
        return answer if round is None else self._stored(connection, job, round)

    def _answer_tag(
        self, job: str, number: int, round: int | None, digest: bytes, answer: bytes | None
    ) -> bytes:
        label = canonical(["answer", job, number, round, digest.hex()])
        return self._tag(label, answer or b"")

    def _stored(self, connection: sqlite3.Connection, job: str, round: int) -> bytes:
        row = connection.execute(ledger_file.ONE_FRAME, (job, round)).fetchone()
        tag = self._state.jobs[job].rounds[round].frame_tag
        return self._check_frame(job, round, row and row[0], tag)

    def _check_frame(self, job: str, round: int, frame: bytes | None, tag: str) -> bytes:
        if frame is None:
            raise LedgerError(
                f"the frame of round {round} of job {job!r} is missing, and the round cannot be "
                "run again; leave the job."
            )
        if not hmac.compare_digest(self._frame_tag(job, round, frame), tag):
            raise LedgerError(
                f"the frame of round {round} of job {job!r} was changed; leave the job."
            )
        return frame

    def _frame_tag(self, job: str, round: int, frame: bytes) -> str:
        return self._tag(canonical(["frame", job, round]), frame).hex()

    def _tag(self, label: str, content: bytes) -> bytes:
        # The label ends with NUL and the digest has a fixed length, so each pair has its message.
        message = hashlib.sha256(content).digest()
        # The words are part of the format of the file, and not the name of a command.
        return hmac.digest(self._key, f"cloister ledger {label}\0".encode() + message, "sha256")


def _put_statements(connection: sqlite3.Connection, statements: Iterable[SignedStatement]) -> None:
    for signed in statements:
        job, height = signed.said.job, signed.said.height
        row = (signed.fingerprint, job, height, signed.text, signed.signature, signed.public)
        connection.execute(ledger_file.PUT_STATEMENT, row)


def _refusal(job: str, events: Event, bounds: Sequence[_Bound]) -> str:
    """Return the message for a refused job: the cap, at the best tariff, and the rest of it."""
    nearest = tariffs(events, [limits for _, _, limits, _ in bounds])[0].cost(events)
    owner, name, limits, so_far = max(bounds, key=lambda bound: bound[2].share(bound[3] + nearest))
    cap, fitting = limits.cap, Split.split_for(events, limits.cap)
    # A job below the cap needs another split; a smaller epsilon would not help.
    if not limits.admits(Cost(), nearest) and cheapest_pricing(
        events, [(Limits(cap, fitting), Cost())]
    ):
        return (
            f"job {job!r} alone is within the {name} of {cap.epsilon:.6g} of {owner}, but not "
            f"within its limits ({limits.split}), which are fixed when a data set is opened; a job "
            f"with this noise needs a data set with the limits {fitting}."
        )
    # The caps of studies only divide the guarantee, so a larger one weakens nothing.
    way_out = "; its owner can change the cap with 'cloister budget cap --study'" * (name == "cap")
    return (
        f"job {job!r} would bring {owner} to epsilon={_shown(limits.epsilon(so_far + nearest))} at "
        f"delta={cap.delta:.3g}, above its {name} of {cap.epsilon:.6g}; "
        f"{limits.epsilon_left(so_far):.4g} is left for one more job, so lower its epsilon or "
        f"close open jobs{way_out}."
    )


def _check_resumed(job: Job, dataset: str, study: str, events: Event, tag: str | None) -> None:
    for name, before, now in (
        ("data set", job.dataset, dataset),
        ("study", job.study, study),
        ("list of events", job.events, events),
        ("content", job.content, tag),
    ):
        if before != now:
            raise LedgerError(
                f"job {job.job!r} was reserved with another {name}; use a new job id."
            )
    if not job.is_open:
        raise LedgerError(f"job {job.job!r} is closed; use a new job id.")


def _shown(cost: float) -> str:
    return f"{cost:.4g}" if math.isfinite(cost) else "infinity"


def _finite(value: float) -> float | None:
    """Return a number for JSON: infinity, as of an old ledger with a max cover, becomes None."""
    return value if math.isfinite(value) else None


def _check_name(field: str, name: str) -> None:
    if not isinstance(name, str) or not name:
        raise LedgerError(f"{field} must be a text that is not empty, got {name!r}.")


def _fields(cap: Budget) -> dict[str, float]:
    return {"epsilon": cap.epsilon, "delta": cap.delta}
