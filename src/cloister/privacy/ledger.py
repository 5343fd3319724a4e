"""The ledger: what has been spent on each data set, kept so that it can only grow.

One file per owner of data. Every fact is an *entry*: a line of canonical JSON, chained to the one
before by SHA-256. The chain is the only truth; what has been spent is worked out by replaying it,
under the writer's lock, before anything is decided. So a crash between any two statements, a
second process, or an edited row cannot make it forget a cost.

A job first **reserves** everything it may do; that counts as spent until the job is **closed**.
Each round is then **committed**: its charge and the exact bytes that will leave become durable in
one transaction, before the first byte leaves. Asked again for the same round, the ledger returns
the same bytes and charges nothing.

Frames lie beside the chain, which holds only a keyed tag of each, so that they can be deleted when
a job is over. So do the job's secret and its answers to other requests. Nothing in an entry is a
record or is computed from one without the owner's key.

Peers sign the heads of each other's chains. In a job over a network each silo also signs, again
and again, where its own ledger stands and what the job may cost; its peers keep the newest such
*statement* of each job. The newest head lies in a small file beside the ledger, too. So a ledger
that was put back to an older copy is refused, until :meth:`Ledger.recover` has taken every job that
it lacks from what its owner signed.

A file of an older format has fewer tables. It is refused until
:func:`cloister.privacy.ledger_file.migrate` has added them, in one transaction: never as a side
effect of opening, because a program that only knows the older one cannot use the file afterwards.
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
from typing import Any, TypeAlias

from cloister.core.errors import BudgetExceeded, LedgerError, PlanError
from cloister.core.randomness import KEY_BYTES, new_key
from cloister.core.sqlite import check_pages, connect, explained, transaction
from cloister.privacy import ledger_file
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

__all__ = ["Entry", "JobRecord", "Ledger", "SignedStatement", "Statement"]

_Bound: TypeAlias = tuple[str, str, Limits, Cost]  # whose, which cap, its limits, charged so far


class Ledger:
    """The durable record of privacy spending, and its guard.

    Parameters
    ----------
    path : path-like or None
        SQLite file, made with mode 0600 if it does not exist; on a local disk, never a network
        one. None keeps the ledger in memory and forgets it with the process.
    behind : bool
        Open it also if it is behind what was written or signed before, to look at it and to
        :meth:`recover`. It takes no job and no round until it has caught up.

    Raises
    ------
    LedgerError
        If the file is not a ledger, is damaged, has an older format, its chain does not verify,
        or it lacks the newest head beside it or a statement that peers showed.

    Notes
    -----
    Costs are keyed by (data set, study) and composed over the whole life of a data set, then
    converted once at the data set's delta; epsilons of Gaussian jobs are never added up. Jobs may
    be chosen in the light of earlier results, whatever their laws, because the limits of a cap
    are fixed when the data set is opened (docs/proofs/ledger.md). The ledger serves several threads
    and several processes at once. It survives SIGKILL and, as far as the disk keeps its promises,
    power loss (WAL, ``synchronous=FULL``). It does not survive being deleted, and whoever owns
    the file can forge a whole chain: :meth:`check_head` finds both if peers kept a head. The head
    after the newest charge also lies beside it, in a file named as the ledger and ``.head``.

    """

    def __init__(self, path: str | os.PathLike[str] | None, *, behind: bool = False) -> None:
        # Absolute: a later change of the working directory must not lead to another ledger.
        self._path = None if path is None else Path(os.path.abspath(path))
        self._beside = Path(f"{self._path or os.devnull}.head")  # where the newest head lies
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
                    self._check_newest(connection)
        except LedgerError:
            self.dispose()
            raise

    def __repr__(self) -> str:
        return f"Ledger({str(self._path)!r})" if self._path else "Ledger(in memory, not kept)"

    @property
    def _label(self) -> str:
        """How errors name it."""
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
        """Let go of the file. A ledger in memory is forgotten; another opens again when needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    # Caps ------------------------------------------------------------------------------------

    def open_dataset(
        self, dataset: str, *, cap: Budget, unit: str = "row", split: Split | None = None
    ) -> None:
        """Declare a data set with its lifetime cap; saying the same again changes nothing.

        Parameters
        ----------
        dataset : str
            The id in the owner's schema.
        cap : Budget
            For everything that is ever released from this data set.
        unit : str
            Unit of privacy: "row", or the column whose values name the protected units.
        split : Split, optional
            How the cap is cut into limits, which is fixed from now on. By default all of it is
            for Gaussian noise, or for Laplace noise if ``cap.delta`` is 0.
            :meth:`Split.split_for` returns the split of a data set that is opened for one job.

        Raises
        ------
        LedgerError
            If the data set is known with another cap, unit or split.
        """
        _check_name("dataset", dataset)
        _check_name("unit", unit)
        with self._transaction() as connection:
            known = self._state.datasets.get(dataset)
            if known is None:
                cut = Split.default(cap) if split is None else split
                self._append(
                    connection,
                    "dataset",
                    dataset=dataset,
                    unit=unit,
                    cap=_fields(cap),
                    split=asdict(cut),
                )
            elif known.unit != unit:
                raise LedgerError(
                    f"data set {dataset!r} has the unit of privacy {known.unit!r}, got {unit!r}; "
                    "a unit cannot change."
                )
            elif known.cap != cap:
                raise LedgerError(
                    f"data set {dataset!r} has the lifetime cap ({known.cap}), got ({cap}); "
                    "use change_cap to change it."
                )
            elif split not in (None, known.split):
                raise LedgerError(
                    f"data set {dataset!r} has the limits of {known.split}, got {split}; they are "
                    "fixed when a data set is opened."
                )

    def change_cap(self, dataset: str, cap: Budget) -> None:
        """Give a data set another lifetime cap; the change is an entry like any other.

        The limits follow, cut as before. What holds for the data set is then the largest cap that
        it ever had: a promise of its owner, who must not raise it because of results.
        """
        with self._transaction() as connection:
            if self._state.dataset(dataset).cap != cap:
                self._append(connection, "cap", dataset=dataset, cap=_fields(cap))

    def study_cap(self, dataset: str, study: str, cap: Budget) -> None:
        """Limit one study to a part of the lifetime cap; it never adds to it.

        Raises
        ------
        PlanError
            If ``cap`` has another delta than the data set, or a larger epsilon.
        """
        _check_name("study", study)
        with self._transaction() as connection:
            known = self._state.dataset(dataset)
            if cap.delta != known.cap.delta or cap.epsilon > known.cap.epsilon:
                raise PlanError(
                    f"the cap of study {study!r} must have the delta of data set {dataset!r} and "
                    f"at most its epsilon ({known.cap}), got ({cap})."
                )
            if known.study_epsilons.get(study) != cap.epsilon:
                self._append(
                    connection, "study_cap", dataset=dataset, study=study, epsilon=cap.epsilon
                )

    # Spending --------------------------------------------------------------------------------

    def content_tag(self, content: bytes) -> bytes:
        """Return the 32-byte HMAC of ``content`` (records, or a digest of them) under this ledger.

        It tells the owner that two contents are equal, and tells nobody else anything.
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
    ) -> None:
        """Set aside everything a job may do; it counts as spent until the job is closed.

        Parameters
        ----------
        events : Event
            All rounds of the job.
        content : bytes or None
            The records as bytes, or a digest of them; only a keyed tag is kept. With it the
            records of the job are frozen, and the same records under another name are noticed.
        confirm_same_content : bool
            The owner confirms that another data set with the same content is meant to have a
            budget of its own.
        year_epsilon : float or None
            A cap for the data set's jobs reserved in the current calendar year (UTC, by this
            machine's clock), at the data set's delta and cut into limits as the lifetime cap is.
            It never adds to the other caps.

        Raises
        ------
        BudgetExceeded
            If all that was ever committed, all open reservations and this one together exceed the
            limits of the lifetime cap, of the cap of the study or of that of the year; or if an
            event has no noise.
        LedgerError
            If the data set is unknown, the job is known with other values or closed, the content
            belongs to another data set, the clock is behind the last entry, or this ledger is
            behind a statement of its owner.

        Notes
        -----
        Reserving the same job again with the same values resumes it and costs nothing.
        """
        _check_name("study", study)
        _check_name("job", job)
        if holds(events, NonPrivateEvent):
            raise BudgetExceeded(
                f"job {job!r} would release something without noise, which no budget allows; "
                "run it on public data without a ledger."
            )
        tag = None if content is None else self.content_tag(content).hex()
        with self._transaction() as connection:
            known = self._state.dataset(dataset)
            self._check_newest(connection)
            # Before clock and caps: a job that is resumed was admitted once and costs nothing more.
            if job in self._state.jobs:
                _check_resumed(self._state.jobs[job], dataset, study, events, tag)
                return
            # The same records under a second name would have a second cap.
            other = self._state.other_owner(tag, dataset)
            if other is not None and not confirm_same_content:
                raise LedgerError(
                    f"data set {dataset!r} has the same content as {other!r}; use that name, or "
                    "confirm that the same records get a second budget."
                )
            now = self._checked_now()
            bounds = [
                (f"data set {dataset!r}", "lifetime cap", known.limits(), self._state.cost(dataset))
            ]
            if study in known.study_epsilons:
                limits = known.limits(known.study_epsilons[study])
                so_far = self._state.cost(dataset, study)
                bounds.append((f"study {study!r}", "cap", limits, so_far))
            if year_epsilon is not None:
                limits, so_far = (
                    known.limits(year_epsilon),
                    self._state.cost(dataset, year=now.year),
                )
                bounds.append(
                    (f"data set {dataset!r} in {now.year}", "cap for a year", limits, so_far)
                )
            # Fixed now, before a result is seen: a choice of tariff afterwards would be adaptive.
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
            What the round does; it must be covered by what is left of the reservation.
        frame : bytes
            The exact bytes that will leave. They must be masked or noised already.
        request : bytes
            What the frame answers; kept with it as by :meth:`record`, unless it is empty.
        peer_statements : iterable of SignedStatement
            Kept with it as by :meth:`remember`.

        Returns
        -------
        bytes
            What must be sent: ``frame``, or the frame of the first commit of this round, which
            then stays as it was and is not charged again.

        Raises
        ------
        BudgetExceeded
            If the reservation does not cover the event.
        LedgerError
            If the job is unknown or closed, the round was committed with another event, the
            request was answered with something else, or this ledger is behind a statement of its
            owner.
        """
        if isinstance(round, bool) or not isinstance(round, int) or round < 0:
            raise LedgerError(f"round must be an integer of at least 0, got {round!r}.")
        with self._transaction() as connection:
            _put_statements(connection, peer_statements)
            kept = self._commit(connection, job, round, event, bytes(frame), bytes(request))
        self._note_head()
        return kept

    def _commit(
        self,
        connection: sqlite3.Connection,
        job: str,
        round: int,
        event: Event,
        frame: bytes,
        request: bytes,
    ) -> bytes:
        known = self._state.job(job)
        # Before the job is asked whether it is open: what left once may always leave again.
        if round in known.rounds:
            if known.rounds[round].event != event:
                raise LedgerError(
                    f"round {round} of job {job!r} was committed with another event; "
                    "a round has one meaning."
                )
            frame = self._stored(connection, job, round)
            if known.is_open:
                self._record_frame(connection, job, request, round, frame)
            return frame
        if not known.is_open:
            raise LedgerError(f"job {job!r} is closed; reserve a new job.")
        if not known.covers(event):
            raise BudgetExceeded(
                f"round {round} of job {job!r} is not covered by what is left of its "
                "reservation; reserve a new job with all its events."
            )
        self._check_newest(connection)
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
            If the round was committed and its frame is gone or was changed.
        """
        with self._transaction() as connection:
            known = self._state.jobs.get(job)
            if known is None or round not in known.rounds:
                return None
            return self._stored(connection, job, round)

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Make an answer durable before it leaves; the first answer to a request is the only one.

        Parameters
        ----------
        request, answer : bytes
            The answer must be masked or sealed already, or say nothing of a record.

        Returns
        -------
        bytes
            What must be sent: ``answer``, or the one that was kept first.

        Raises
        ------
        LedgerError
            If the job is unknown; if it is closed and the request is new; or if the answer was
            changed in the file.
        """
        return self.record_all(job, [(request, answer)])[0]

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Make answers durable in one transaction, up to the first that was another before.

        Returns
        -------
        tuple of bytes
            For each of them what :meth:`record` returns; nothing after that first one.

        Raises
        ------
        LedgerError
            As :meth:`record`; none of them is kept then.
        """
        with self._transaction() as connection:
            known, kept = self._state.job(job), []
            for request, answer in ((bytes(a), bytes(b)) for a, b in answers):
                digest = hashlib.sha256(request).digest()
                earlier = self._answered(connection, job, digest)
                kept.append(answer if earlier is None else earlier)
                if kept[-1] != answer:
                    break
                if earlier is not None:
                    continue
                if not known.is_open:
                    raise LedgerError(
                        f"job {job!r} is closed and answers no new request; ignore it."
                    )
                self._insert_answer(connection, job, digest, request, answer, None)
        return tuple(kept)

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return the requests of a job and their answers, in the order in which they were kept.

        Raises
        ------
        LedgerError
            If one is gone or was changed. A job that is unknown or forgotten has none.
        """
        with self._transaction() as connection:
            return tuple(self._read_answers(connection, job))

    def secret(self, job: str) -> bytes:
        """Return the 32 secret bytes of a job, from which its masks and keys are derived.

        They are made by the operating system on the first call and are the same on every later
        one, until :meth:`forget_frames` deletes them.

        Raises
        ------
        LedgerError
            If the job is unknown, or closed and its secret was deleted or never made.
        """
        with self._transaction() as connection:
            known = self._state.job(job)
            kept: tuple[bytes] | None = connection.execute(
                ledger_file.ONE_SECRET, (job,)
            ).fetchone()
            if kept is None:
                if not known.is_open:
                    raise LedgerError(f"job {job!r} is closed and has no secret; leave the job.")
                kept = (new_key(),)
                connection.execute(ledger_file.INSERT_SECRET, (job, *kept))
        return kept[0]

    def close(self, job: str, *, whole: bool = False) -> None:
        """End a job: what it committed stays spent, the rest of its reservation is returned.

        Nothing is returned of a job that is priced as a whole, unless it committed no round.

        Parameters
        ----------
        whole : bool
            Return nothing: rounds may have left that this file does not know, because an older
            copy of it was put back.
        """
        with self._transaction() as connection:
            if self._state.job(job).is_open:
                self._append(connection, "close", job=job, **({"whole": True} if whole else {}))

    def forget_frames(self, job: str) -> None:
        """Delete the frames, answers and secret of a closed job, from the log file too.

        Charges stay.

        Raises
        ------
        LedgerError
            If the job is open, since a lost reply could then not be sent again.
        """
        with self._transaction() as connection:
            if self._state.job(job).is_open:
                raise LedgerError(f"job {job!r} is open and may have to send again; close it.")
            for table in ledger_file.OF_JOBS:
                connection.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
        self._empty_log()  # which still has what was deleted

    # Statements and heads --------------------------------------------------------------------

    def statement(self, job: str, plan: str, events: Event) -> Statement:
        """Return what to sign of this ledger in a job; `plan` is the digest of the job's plan."""
        with self._caught_up():
            known, state = self._state.job(job), self._state
            return Statement(
                known.dataset, known.study, job, plan, events, state.head, state.height
            )

    def remember(self, statements: Iterable[SignedStatement]) -> None:
        """Keep what peers signed, the newest of each in each job; verify it before."""
        with self._transaction() as connection:
            _put_statements(connection, statements)

    def remembered(self, fingerprint: str, above: int = -1) -> tuple[SignedStatement, ...]:
        """Return the newest statement of a peer in each job, those of a greater height."""
        with self._transaction() as connection:
            query = ledger_file.STATEMENTS_ABOVE
            return ledger_file.read_statements(connection, query, (fingerprint, above))

    def height_signed_by(self, fingerprint: str) -> int:
        """Return the height of the newest head of this ledger that a peer signed, or 0."""
        with self._transaction() as connection:
            rows = connection.execute(ledger_file.HEADS_SIGNED_BY, (fingerprint,))
            return max((self._state.heights.get(head, 0) for (head,) in rows), default=0)

    def check_statements(self, shown: Iterable[SignedStatement]) -> None:
        """Check that this ledger is not behind what its owner signed, as peers show it.

        What it lacks is kept, for :meth:`recover`. Statements that nobody signed, and those of a
        data set that is not in this ledger, are ignored.

        Parameters
        ----------
        shown : iterable of SignedStatement
            By the owner's key; the caller knows it.

        Raises
        ------
        LedgerError
            If it is behind: the file was rolled back, restored from a copy, or replaced.
        """
        with self._transaction() as connection:
            self._claim(connection, shown)
        # In a second transaction, since the first must be kept although this one raises.
        with self._transaction() as connection:
            self._check_claims(connection)

    def recover(
        self, public: bytes, statements: Iterable[SignedStatement] = ()
    ) -> tuple[Statement, ...]:
        """Take in every job that this ledger lacks and its owner signed for, at its full price.

        Parameters
        ----------
        public : bytes of length 32
            The owner's public key; what another key signed is ignored.
        statements : iterable of SignedStatement
            From peers, besides those that they showed in a job.

        Returns
        -------
        tuple of Statement
            What was taken in, oldest first. No cap is asked: what is spent is spent.

        Raises
        ------
        LedgerError
            If the head beside the ledger is newer than all of them, or a statement does not fit
            the job of that name.
        """
        with self._transaction() as connection:
            self._claim(connection, statements)
        taken: list[Statement] = []
        while True:  # an entry at a time: a crash leaves the rest for the next call
            with self._transaction() as connection:
                lacking = [one for one in self._lacking(connection) if one.public == public]
                if not lacking:
                    break
                first = min(lacking, key=lambda one: one.said.height)
                self._check_recoverable(first.said)
                self._append(
                    connection,
                    "recover",
                    statement=first.text,
                    signature=first.signature.hex(),
                    public=first.public.hex(),
                )
                taken.append(first.said)
        with self._transaction() as connection:
            connection.execute(ledger_file.FORGET_CLAIMS, ())
            head, height = self._head_beside() or ("", 0)
            newest = max((h for s, h in self._state.heights.items() if not self._own(s)), default=0)
            if head not in self._state.heights and newest >= max(height, 1):
                self._put_head_beside(self._state.head)
            self._check_newest(connection)
        return tuple(taken)

    def countersigned(self, head: str, signatures: Mapping[str, bytes]) -> None:
        """Keep what peers signed over a head of this ledger; verify the signatures before.

        From then on a file without that head is refused. The newest such head is also written
        beside the ledger, so that this holds if the ledger alone is replaced by an older copy.

        Parameters
        ----------
        head : str
            A head that this ledger has or had.

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
            # Beside the ledger first: the head is durable already, and other writers wait.
            beside, _ = self._head_beside() or ("", 0)
            if signatures and self._state.heads.get(beside, 0) < seq:
                self._put_head_beside(head)

    # Reading ---------------------------------------------------------------------------------

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets, in the order they were opened."""
        with self._caught_up():
            return tuple(self._state.datasets)

    def cap(self, dataset: str, study: str | None = None) -> Budget:
        """Return the lifetime cap, or the cap that holds for one study."""
        with self._caught_up():
            known = self._state.dataset(dataset)
            limit = known.study_epsilons.get(study or "", known.cap.epsilon)
            return Budget(min(limit, known.cap.epsilon), known.cap.delta)

    def unit(self, dataset: str) -> str:
        """Return the unit of privacy of a data set."""
        with self._caught_up():
            return self._state.dataset(dataset).unit

    def charged(self, dataset: str, study: str | None = None) -> ComposedEvent:
        """Return everything committed or reserved on a data set, or by one study on it."""
        with self._caught_up():
            self._state.dataset(dataset)
            return self._state.charged(dataset, study)

    def limits(self, dataset: str, study: str | None = None) -> Limits:
        """Return the limits of the lifetime cap, or of the cap that holds for one study."""
        with self._caught_up():
            known = self._state.dataset(dataset)
            return known.limits(known.study_epsilons.get(study or "", math.inf))

    def cost(self, dataset: str, study: str | None = None) -> Cost:
        """Return what everything committed or reserved on a data set, or by one study, is charged.

        This is what is compared with the limits.
        """
        with self._caught_up():
            self._state.dataset(dataset)
            return self._state.cost(dataset, study)

    def spent(self, dataset: str, study: str | None = None) -> float:
        """Return the epsilon, at the data set's delta, of a cap whose limits are :meth:`cost`.

        For jobs that were planned beforehand it is a guarantee of its own. For jobs that were
        chosen in the light of results, what is guaranteed is the cap.
        """
        return self.limits(dataset).epsilon(self.cost(dataset, study))

    def remaining(self, dataset: str, study: str | None = None) -> float:
        """Return the largest epsilon of one more job at the data set's delta.

        For a Gaussian job, or for a pure or whole one if the limits leave more for that. Costs of
        Gaussian jobs compose, so this is more than the cap less :meth:`spent`.
        """
        left = self.limits(dataset).epsilon_left(self.cost(dataset))
        if study is not None:
            limits = self.limits(dataset, study)
            left = min(left, limits.epsilon_left(self.cost(dataset, study)))
        return left

    def jobs(self, dataset: str | None = None) -> tuple[JobRecord, ...]:
        """Return what is known of all jobs, or of those on one data set, oldest first."""
        with self._caught_up():
            known = self._state.jobs.values()
            return tuple(job.record() for job in known if dataset in (None, job.dataset))

    def entries(self) -> tuple[Entry, ...]:
        """Return the whole chain, oldest first."""
        with self._transaction() as connection:
            return tuple(ledger_file.read_entries(connection))

    def head(self) -> str:
        """Return the hash of the last entry: 64 hexadecimal digits that stand for the chain.

        Peers sign it. It tells them nothing, because the first entry holds a random nonce.
        """
        with self._caught_up():
            return self._state.head

    def check_head(self, expected: str) -> None:
        """Check that ``expected``, a head that this ledger once had, is part of its chain.

        Raises
        ------
        LedgerError
            If it is not: the file was rolled back, restored from a copy, or replaced.
        """
        with self._caught_up():
            self._check_in_chain(expected)

    def verify(self) -> None:
        """Read the whole file again and check every link, rule, trigger and frame.

        Raises
        ------
        LedgerError
            At the first thing that does not fit.
        """
        with self._transaction() as connection:
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
                    # A closed job may have forgotten its frames; one that is still there must fit.
                    if frame is None and not job.is_open:
                        continue
                    self._check_frame(name, round, frame, charge.frame_tag)
            if stored:
                raise LedgerError(f"{self._label} holds a frame that was never charged.")
            self._check_newest(connection)
            for one in ledger_file.read_statements(connection, ledger_file.ALL_STATEMENTS):
                if not one.genuine:
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
        """Return the ledger as JSON: every entry, the totals, and what peers signed.

        It holds no key, no secret, no frame and no answer.
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
        """Say that the clock is right now, and was ahead when later entries were written.

        The owner's word is an entry like any other. Nothing that was charged changes, nor the
        year in which it counts.
        """
        with self._transaction() as connection:
            self._append(connection, "clock")

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
        Nobody may go on with a job from a copy, because what was sent since is not in it. So the
        copy ends all jobs that are open: it counts their whole reservations as spent for ever,
        and holds no frame, answer or secret of any job. Jobs reserved after the copy was made are
        not in it.
        """
        if self._path is None:
            raise LedgerError("an in-memory ledger cannot be copied to a file; give it a path.")
        target = Path(os.path.abspath(copy))
        self.verify()
        if not ledger_file.build(target, self._write_copy):
            raise LedgerError(f"{str(target)!r} exists and is never replaced; give another name.")

    # Inside ----------------------------------------------------------------------------------

    def _write_copy(self, path: Path) -> None:
        with self._guarded() as connection, closing(sqlite3.connect(path)) as target:
            connection.backup(target)
        copy = Ledger(path)
        try:
            with copy._transaction() as connection:
                copy._append(connection, "copied")
                for table in ledger_file.OF_JOBS:
                    connection.execute(f"DELETE FROM {table}")
            copy._empty_log()
            copy.verify()
        finally:
            copy.dispose()

    def _empty_log(self) -> None:
        """Move the log into the file and cut it to nothing; not inside a transaction."""
        with self._guarded() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self._label} was opened in another process; open it again in this one."
            )
        with self._lock, explained(self._label):
            if self._connection is None:
                self._connection = connect(self._path)
            yield self._connection

    def _identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file, so that a file put in its place is noticed."""
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
        """Look at the state after the last entry of any process; nobody is kept from writing."""
        with self._guarded() as connection:
            self._catch_up(connection)
            yield

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        if self._identity() != self._file:
            raise LedgerError(f"the file of {self._label} was removed or replaced; restore it.")
        # The last entry we know is read again: a file replaced under our feet is noticed.
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
        # The state is not touched: it follows what the file holds after the commit, if any.
        ledger_file.insert_entry(connection, self._state.seq + 1, self._state.head, kind, **fields)

    def _check_in_chain(self, head: str) -> None:
        if head not in self._state.heads:
            raise LedgerError(
                f"{self._label} does not contain the head that was signed for it, so it was rolled "
                "back or replaced; restore the newest file, or leave all jobs and tell peers."
            )

    def _own(self, head: str) -> bool:
        return head in self._state.heads

    def _lacking(self, connection: sqlite3.Connection) -> list[SignedStatement]:
        """Return the claims that this chain does not hold."""
        claims = ledger_file.read_statements(connection, ledger_file.ALL_CLAIMS)
        return [one for one in claims if self._is_lacking(one)]

    def _is_lacking(self, one: SignedStatement) -> bool:
        if not one.genuine:
            return False
        said = one.said
        return said.dataset in self._state.datasets and said.head not in self._state.heights

    def _claim(self, connection: sqlite3.Connection, shown: Iterable[SignedStatement]) -> None:
        for one in filter(self._is_lacking, shown):
            row = (one.said.head, one.said.job, one.text, one.signature, one.public)
            connection.execute(ledger_file.INSERT_CLAIM, row)

    def _check_claims(self, connection: sqlite3.Connection) -> None:
        if lacking := self._lacking(connection):
            raise LedgerError(
                f"{self._label} is behind {len(lacking)} statements that its owner signed and "
                "peers hold, so it was rolled back or replaced; run 'cloister budget recover' on "
                "it, or restore the newest file."
            )

    def _check_recoverable(self, said: Statement) -> None:
        known = self._state.jobs.get(said.job)
        same = known is None or (known.dataset, mechanism_counts(known.events)) == (
            said.dataset,
            mechanism_counts(said.events),
        )
        if not same:
            raise LedgerError(
                f"{self._label} has job {said.job!r} with another reservation than its owner "
                "signed for; restore the newest file."
            )

    def _check_newest(self, connection: sqlite3.Connection) -> None:
        """Check that the newest heads, here and beside the file, and our statements are here."""
        last = connection.execute(ledger_file.LAST_OWN_HEAD).fetchone()
        if last is not None and self._state.heads.get(last[1]) != last[0]:
            raise LedgerError(
                f"{self._label} has lost entries that peers counter-signed; restore the newest "
                "file."
            )
        self._check_claims(connection)
        self._checked_beside()

    def _checked_beside(self) -> str | None:
        """Return the head beside the ledger, after checking that it is here."""
        beside = self._head_beside()
        if beside is None:
            return None
        if beside[0] not in self._state.heights:
            raise LedgerError(
                f"{self._label} is behind the head that was written last, kept in "
                f"{str(self._beside)!r}, so it was rolled back or replaced; restore the newest "
                "file, or run 'cloister budget recover' with what its peers hold, or remove that "
                "file if all later spending is lost for good."
            )
        return beside[0]

    def _head_beside(self) -> tuple[str, int] | None:
        """Return the head beside the ledger and its height, 0 if it is not told."""
        if self._path is None:
            return None
        try:
            text = self._beside.read_bytes().decode("ascii", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"{str(self._beside)!r} cannot be read: {error.strerror}; give back the right to."
            ) from error
        head, _, height = text.strip().partition(" ")
        return head, int(height) if height.isascii() and height.isdigit() else 0

    def _put_head_beside(self, head: str) -> None:
        if self._path is not None:
            line = f"{head} {self._state.heights[head]}\n"
            ledger_file.replace_file(self._beside, line.encode())

    def _note_head(self) -> None:
        """Write the last head beside the ledger.

        After the commit of its entry, so that a crash between the two leaves a head that the
        ledger has; under the lock of writers, so that an older one never replaces a newer.
        """
        if self._path is None:
            return
        with self._transaction():
            if self._checked_beside() != self._state.head:
                self._put_head_beside(self._state.head)

    def _checked_now(self) -> datetime:
        """Return the time, unless it is before that of an entry."""
        now = ledger_file.utc_now()
        if ledger_file.text_of(now) < self._state.latest:
            raise LedgerError(
                f"the clock of this machine shows {ledger_file.text_of(now)}, and the last entry "
                f"of {self._label} is of {self._state.latest}; set the clock, or, if it was wrong "
                "then, run 'cloister budget clock'."
            )
        return now

    def _record_frame(
        self, connection: sqlite3.Connection, job: str, request: bytes, round: int, frame: bytes
    ) -> None:
        """Keep the request that a round's frame answers, if there is one."""
        if not request:
            return
        digest = hashlib.sha256(request).digest()
        kept = self._answered(connection, job, digest)
        if kept is None:
            self._insert_answer(connection, job, digest, request, None, round)
        elif kept != frame:
            raise LedgerError(
                f"the request of round {round} of job {job!r} was answered with something else; "
                "leave the job."
            )

    def _answered(self, connection: sqlite3.Connection, job: str, digest: bytes) -> bytes | None:
        """Return what was answered to the request of this digest, if anything."""
        row = connection.execute(ledger_file.ONE_ANSWER, (job, digest)).fetchone()
        return None if row is None else self._checked_answer(connection, job, *row)

    def _read_answers(
        self, connection: sqlite3.Connection, job: str
    ) -> Iterator[tuple[bytes, bytes]]:
        for place, row in enumerate(connection.execute(ledger_file.ANSWERS_OF, (job,)).fetchall()):
            number, _, request, *_ = row
            if number != place:
                raise LedgerError(f"an answer of job {job!r} is gone; leave the job.")
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
                f"the frame of round {round} of job {job!r} is gone, and the round cannot be "
                "run again; leave the job."
            )
        if not hmac.compare_digest(self._frame_tag(job, round, frame), tag):
            raise LedgerError(f"the frame of round {round} of job {job!r} was changed.")
        return frame

    def _frame_tag(self, job: str, round: int, frame: bytes) -> str:
        return self._tag(canonical(["frame", job, round]), frame).hex()

    def _tag(self, label: str, content: bytes) -> bytes:
        # The label ends with NUL and the digest has one length: no two pairs give the same message.
        message = hashlib.sha256(content).digest()
        return hmac.digest(self._key, f"cloister budget {label}\0".encode() + message, "sha256")


def _put_statements(connection: sqlite3.Connection, statements: Iterable[SignedStatement]) -> None:
    for one in statements:
        said = one.said
        row = (one.fingerprint, said.job, said.height, one.text, one.signature, one.public)
        connection.execute(ledger_file.PUT_STATEMENT, row)


def _refusal(job: str, events: Event, bounds: Sequence[_Bound]) -> str:
    """Say which cap refuses a job, at the tariff that comes nearest, and what is left of it."""
    nearest = tariffs(events, [limits for _, _, limits, _ in bounds])[0].cost(events)
    whose, what, limits, so_far = max(bounds, key=lambda bound: bound[2].share(bound[3] + nearest))
    cap, fitting = limits.cap, Split.split_for(events, limits.cap)
    if not limits.admits(Cost(), nearest) and cheapest_pricing(
        events, [(Limits(cap, fitting), Cost())]
    ):
        return (
            f"job {job!r} by itself is within the {what} of {cap.epsilon:.6g} of {whose}, but not "
            f"within its limits ({limits.split}), which are fixed when a data set is opened; they "
            f"would have to be those of {fitting} for a job with such noise."
        )
    return (
        f"job {job!r} would bring {whose} to epsilon={_shown(limits.epsilon(so_far + nearest))} at "
        f"delta={cap.delta:.3g}, above its {what} of {cap.epsilon:.6g}; "
        f"{limits.epsilon_left(so_far):.4g} is left for one more job, so lower its epsilon or "
        "close open jobs."
    )


def _check_resumed(known: Job, dataset: str, study: str, events: Event, tag: str | None) -> None:
    for what, before, now in (
        ("data set", known.dataset, dataset),
        ("study", known.study, study),
        ("list of events", known.events, events),
        ("content", known.content, tag),
    ):
        if before != now:
            raise LedgerError(
                f"job {known.job!r} was reserved with another {what}; use a new job id."
            )
    if not known.is_open:
        raise LedgerError(f"job {known.job!r} is closed; use a new job id.")


def _shown(cost: float) -> str:
    return f"{cost:.4g}" if math.isfinite(cost) else "infinity"


def _finite(value: float) -> float | None:
    """Return a number as JSON has it: infinity, of an old ledger with a max cover, is null."""
    return value if math.isfinite(value) else None


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name:
        raise LedgerError(f"{what} must be a text that is not empty, got {name!r}.")


def _fields(cap: Budget) -> dict[str, float]:
    return {"epsilon": cap.epsilon, "delta": cap.delta}
