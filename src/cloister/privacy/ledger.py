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
a job is over. Nothing in an entry is a record or is computed from one without the owner's key.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from cloister.errors import BudgetExceeded, LedgerError, PlanError
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import epsilon_left
from cloister.privacy.chain import (
    BEFORE_FIRST,
    FORMAT,
    Entry,
    Job,
    JobRecord,
    State,
    canonical,
    entry_hash,
)
from cloister.privacy.events import ComposedEvent, Event, NonPrivateEvent, holds
from cloister.randomness import new_key, new_nonce

__all__ = ["Entry", "JobRecord", "Ledger"]

BUSY_SECONDS = 30
# Rounding slack when a cost is compared with a cap: three events of a third each must fit in one.
SLACK = 1e-9

_METADATA = sa.MetaData()
_ENTRIES = sa.Table(
    "entries",
    _METADATA,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
_FRAMES = sa.Table(
    "frames",
    _METADATA,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("frame", sa.LargeBinary, nullable=False),
)
_OWNER = sa.Table(
    "owner",
    _METADATA,
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("key", sa.LargeBinary, nullable=False),
)
# The third trigger also stops INSERT OR REPLACE and gaps.
_TRIGGERS = {
    f"{table}_{name}": f"CREATE TRIGGER {table}_{name} BEFORE {when} "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    for table, name, when in (
        ("entries", "update", "UPDATE ON entries"),
        ("entries", "delete", "DELETE ON entries"),
        (
            "entries",
            "insert",
            "INSERT ON entries WHEN NEW.seq <> 1 + (SELECT COALESCE(MAX(seq), 0) FROM entries)",
        ),
        ("owner", "update", "UPDATE ON owner"),
        ("owner", "delete", "DELETE ON owner"),
        ("frames", "update", "UPDATE ON frames"),
    )
}


class Ledger:
    """The durable record of privacy spending, and its guard.

    Parameters
    ----------
    path : path-like or None
        SQLite file, made with mode 0600 if it does not exist; on a local disk, never a network
        one. None keeps the ledger in memory and forgets it with the process.

    Raises
    ------
    LedgerError
        If the file is not a ledger, or its chain does not verify.

    Notes
    -----
    Costs are keyed by (data set, study) and composed over the whole life of a data set, then
    converted once at the data set's delta; epsilons are never added up. Jobs may be chosen in the
    light of earlier results: Gaussian DP composes so. [ST22]_ The ledger serves several threads
    and several processes at once. It survives SIGKILL and, as far as the disk keeps its promises,
    power loss (WAL, ``synchronous=FULL``). It does not survive being deleted, and whoever owns
    the file can forge a whole chain: :meth:`check_head` finds both if peers kept a head.

    References
    ----------
    .. [ST22] Smith, Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy",
       arXiv:2210.17520.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(os.path.abspath(path))
        if self._path is not None and not self._path.exists():
            _create(self._path)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._file = self._identity()
        self._engine = _engine(self._path)
        self._state = State()
        try:
            with self._guarded(), self._engine.begin() as connection:
                if self._path is None:
                    _initialise(connection)
                self._key = _owner_key(connection, self)
                self._catch_up(connection)
        except LedgerError:
            self._engine.dispose()
            raise

    def __repr__(self) -> str:
        return f"Ledger({str(self._path)!r})" if self._path else "Ledger(in memory, not kept)"

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
            self._engine.dispose()

    # Caps ------------------------------------------------------------------------------------

    def open_dataset(self, dataset: str, *, cap: Budget, unit: str = "row") -> None:
        """Declare a data set with its lifetime cap; saying the same again changes nothing.

        Parameters
        ----------
        dataset : str
            The id in the owner's schema.
        cap : Budget
            For everything that is ever released from this data set.
        unit : str
            Unit of privacy: "row", or the column whose values name the protected units.

        Raises
        ------
        LedgerError
            If the data set is known with another cap or unit.
        """
        _check_name("dataset", dataset)
        _check_name("unit", unit)
        with self._transaction() as connection:
            known = self._state.datasets.get(dataset)
            if known is None:
                self._append(connection, "dataset", dataset=dataset, unit=unit, cap=_fields(cap))
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

    def change_cap(self, dataset: str, cap: Budget) -> None:
        """Give a data set another lifetime cap; the change is an entry like any other."""
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
    ) -> None:
        """Set aside everything a job may do; it counts as spent until the job is closed.

        Parameters
        ----------
        dataset, study, job : str
        events : Event
            All rounds of the job.
        content : bytes or None
            The records as bytes, or a digest of them; only a keyed tag is kept. With it the
            records of the job are frozen, and the same records under another name are noticed.
        confirm_same_content : bool
            The owner confirms that another data set with the same content is meant to have a
            budget of its own.

        Raises
        ------
        BudgetExceeded
            If all that was ever committed, all open reservations and this one, composed, exceed
            the lifetime cap or the cap of the study; or if an event has no noise.
        LedgerError
            If the data set is unknown, the job is known with other values or closed, or the
            content belongs to another data set.

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
            if job in self._state.jobs:
                _check_resumed(self._state.jobs[job], dataset, study, events, tag)
                return
            other = self._state.other_owner(tag, dataset)
            if other is not None and not confirm_same_content:
                raise LedgerError(
                    f"data set {dataset!r} has the same content as {other!r}; use that name, or "
                    "confirm that the same records get a second budget."
                )
            lifetime = self._state.charged(dataset)
            _check_cap(f"data set {dataset!r}", "lifetime cap", job, events, lifetime, known.cap)
            if study in known.study_epsilons:
                cap = Budget(known.study_epsilons[study], known.cap.delta)
                so_far = self._state.charged(dataset, study)
                _check_cap(f"study {study!r}", "cap", job, events, so_far, cap)
            self._append(
                connection,
                "reserve",
                dataset=dataset,
                study=study,
                job=job,
                events=events.to_dict(),
                content=tag,
                confirmed=other is not None,
            )

    def commit(self, *, job: str, round: int, event: Event, frame: bytes) -> bytes:
        """Make a round's charge and its frame durable, in one transaction.

        Parameters
        ----------
        job : str
        round : int, >= 0
        event : Event
            What the round does; it must be covered by what is left of the reservation.
        frame : bytes
            The exact bytes that will leave. They must be masked or noised already.

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
            If the job is unknown or closed, or the round was committed with another event.
        """
        if isinstance(round, bool) or not isinstance(round, int) or round < 0:
            raise LedgerError(f"round must be an integer of at least 0, got {round!r}.")
        frame = bytes(frame)
        with self._transaction() as connection:
            known = self._state.job(job)
            if round in known.rounds:
                if known.rounds[round].event != event:
                    raise LedgerError(
                        f"round {round} of job {job!r} was committed with another event; "
                        "a round has one meaning."
                    )
                return self._stored(connection, job, round)
            if not known.is_open:
                raise LedgerError(f"job {job!r} is closed; reserve a new job.")
            if not known.covers(event):
                raise BudgetExceeded(
                    f"round {round} of job {job!r} is not covered by what is left of its "
                    "reservation; reserve a new job with all its events."
                )
            self._append(
                connection,
                "charge",
                job=job,
                round=round,
                event=event.to_dict(),
                frame=self._frame_tag(job, round, frame),
            )
            connection.execute(_INSERT_FRAME, {"job": job, "round": round, "frame": frame})
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

    def close(self, job: str) -> None:
        """End a job: what it committed stays spent, the rest of its reservation is returned."""
        with self._transaction() as connection:
            if self._state.job(job).is_open:
                self._append(connection, "close", job=job)

    def forget_frames(self, job: str) -> None:
        """Delete the stored frames of a closed job, from the log file too; charges stay.

        Raises
        ------
        LedgerError
            If the job is open, since a lost reply could then not be sent again.
        """
        with self._transaction() as connection:
            if self._state.job(job).is_open:
                raise LedgerError(f"job {job!r} is open and may have to send again; close it.")
            connection.execute(sa.delete(_FRAMES).where(_FRAMES.c.job == job))
        with self._guarded():
            raw = self._engine.raw_connection()  # a checkpoint cannot run inside a transaction
            try:
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                raw.close()

    # Reading ---------------------------------------------------------------------------------

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets, in the order they were opened."""
        with self._transaction():
            return tuple(self._state.datasets)

    def cap(self, dataset: str, study: str | None = None) -> Budget:
        """Return the lifetime cap, or the cap that holds for one study."""
        with self._transaction():
            known = self._state.dataset(dataset)
            limit = known.study_epsilons.get(study or "", known.cap.epsilon)
            return Budget(min(limit, known.cap.epsilon), known.cap.delta)

    def unit(self, dataset: str) -> str:
        """Return the unit of privacy of a data set."""
        with self._transaction():
            return self._state.dataset(dataset).unit

    def charged(self, dataset: str, study: str | None = None) -> ComposedEvent:
        """Return everything committed or reserved on a data set, or by one study on it."""
        with self._transaction():
            self._state.dataset(dataset)
            return self._state.charged(dataset, study)

    def spent(self, dataset: str, study: str | None = None) -> float:
        """Return the epsilon of :meth:`charged` at the data set's delta."""
        return epsilon(self.charged(dataset, study), self.cap(dataset).delta)

    def remaining(self, dataset: str, study: str | None = None) -> float:
        """Return the largest epsilon of one more job at the data set's delta.

        For a Gaussian job, or a Laplace one if that delta is 0. Costs compose, so this is more
        than the cap less :meth:`spent`.
        """
        left = epsilon_left(self.charged(dataset), self.cap(dataset))
        if study is not None:
            left = min(left, epsilon_left(self.charged(dataset, study), self.cap(dataset, study)))
        return left

    def jobs(self, dataset: str | None = None) -> tuple[JobRecord, ...]:
        """Return what is known of all jobs, or of those on one data set, oldest first."""
        with self._transaction():
            known = self._state.jobs.values()
            return tuple(job.record() for job in known if dataset in (None, job.dataset))

    def entries(self) -> tuple[Entry, ...]:
        """Return the whole chain, oldest first."""
        with self._transaction() as connection:
            return tuple(_read_entries(connection))

    def head(self) -> str:
        """Return the hash of the last entry: 64 hexadecimal digits that stand for the chain.

        Peers sign it. It tells them nothing, because the first entry holds a random nonce.
        """
        with self._transaction():
            return self._state.head

    def check_head(self, expected: str) -> None:
        """Check that ``expected``, a head that this ledger once had, is part of its chain.

        Raises
        ------
        LedgerError
            If it is not: the file was rolled back, restored from a copy, or replaced.
        """
        with self._transaction():
            if expected not in self._state.heads:
                raise LedgerError(
                    f"{self!r} does not contain the head that was signed for it, so it was rolled "
                    "back or replaced; restore the newest file, or leave all jobs and tell peers."
                )

    def verify(self) -> None:
        """Read the whole file again and check every link, rule, trigger and frame.

        Raises
        ------
        LedgerError
            At the first thing that does not fit.
        """
        with self._transaction() as connection:
            state = State()
            for entry in _read_entries(connection):
                state.apply(entry)
            triggers = connection.execute(
                sa.text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            )
            if {row.name: row.sql for row in triggers} != _TRIGGERS:
                raise LedgerError(f"the triggers that keep {self!r} append-only were changed.")
            stored = {(row.job, row.round): row.frame for row in connection.execute(_ALL_FRAMES)}
            for name, job in state.jobs.items():
                for round, charge in job.rounds.items():
                    frame = stored.pop((name, round), None)
                    if frame is None and not job.is_open:
                        continue
                    self._check_frame(name, round, frame, charge.frame_tag)
            if stored:
                raise LedgerError(f"{self!r} holds a frame that was never charged.")

    def export(self) -> dict[str, Any]:
        """Return the ledger as JSON: every entry, the head and the totals; no key and no frame."""
        entries = self.entries()
        return {
            "format": f"cloister-ledger/{FORMAT}",
            "head": entries[-1].hash,
            "datasets": {
                name: {
                    "unit": self.unit(name),
                    "cap": _fields(self.cap(name)),
                    "spent_epsilon": self.spent(name),
                    "remaining_epsilon": self.remaining(name),
                }
                for name in self.datasets()
            },
            "entries": [{"seq": e.seq, "hash": e.hash, "entry": e.fields} for e in entries],
        }

    # Inside ----------------------------------------------------------------------------------

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise LedgerError(f"{self!r} was opened in another process; open it again in this one.")
        with self._lock:
            try:
                yield
            except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
                cause = getattr(error, "orig", None) or error
                raise LedgerError(
                    f"{self!r} cannot be read or written ({cause}), so nothing may be released; "
                    "check the file and its disk."
                ) from error

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
    def _transaction(self) -> Iterator[sa.Connection]:
        """Hold the write lock, with the state replayed up to the last entry of any process."""
        with self._guarded(), self._engine.begin() as connection:
            if self._identity() != self._file:
                raise LedgerError(f"the file of {self!r} was removed or replaced; restore it.")
            self._catch_up(connection)
            yield connection

    def _catch_up(self, connection: sa.Connection) -> None:
        # The last entry we know is read again: a file replaced under our feet is noticed.
        entries = _read_entries(connection, self._state.seq)
        if self._state.seq:
            last = next(entries, None)
            if last is None or last.hash != self._state.head:
                raise LedgerError(f"{self!r} was rolled back or replaced while it was open.")
        for entry in entries:
            self._state.apply(entry)
        if not self._state.seq:
            raise LedgerError(f"{self!r} has lost all its entries; restore the newest file.")

    def _append(self, connection: sa.Connection, kind: str, **fields: Any) -> None:
        # The state is not touched: it follows what the file holds after the commit, if any.
        _insert_entry(connection, self._state.seq + 1, self._state.head, kind, **fields)

    def _stored(self, connection: sa.Connection, job: str, round: int) -> bytes:
        frame = connection.execute(_ONE_FRAME, {"of_job": job, "of_round": round}).scalar()
        return self._check_frame(job, round, frame, self._state.jobs[job].rounds[round].frame_tag)

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
        message = hashlib.sha256(content).digest()
        return hmac.digest(self._key, f"cloister ledger {label}\0".encode() + message, "sha256")


def _check_cap(whose: str, what: str, job: str, events: Event, so_far: Event, cap: Budget) -> None:
    cost = epsilon(ComposedEvent((so_far, events)), cap.delta)
    if cost <= cap.epsilon * (1 + SLACK):
        return
    raise BudgetExceeded(
        f"job {job!r} would bring {whose} to epsilon={_shown(cost)} at delta={cap.delta:.3g}, "
        f"above its {what} of {cap.epsilon:.6g}; {epsilon_left(so_far, cap):.4g} is left for "
        "one more job, so lower its epsilon or close open jobs."
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


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name:
        raise LedgerError(f"{what} must be a text that is not empty, got {name!r}.")


def _fields(cap: Budget) -> dict[str, float]:
    return {"epsilon": cap.epsilon, "delta": cap.delta}


# How the chain is stored ---------------------------------------------------------------------

_ONE_FRAME = sa.select(_FRAMES.c.frame).where(
    _FRAMES.c.job == sa.bindparam("of_job"), _FRAMES.c.round == sa.bindparam("of_round")
)
_INSERT_FRAME = sa.insert(_FRAMES)
_INSERT_ENTRY = sa.insert(_ENTRIES)
_ALL_FRAMES = sa.select(_FRAMES.c.job, _FRAMES.c.round, _FRAMES.c.frame)
_ENTRIES_FROM = (
    sa.select(_ENTRIES.c.seq, _ENTRIES.c.body, _ENTRIES.c.hash)
    .where(_ENTRIES.c.seq >= sa.bindparam("first"))
    .order_by(_ENTRIES.c.seq)
)


def _read_entries(connection: sa.Connection, first: int = 1) -> Iterator[Entry]:
    rows: Iterable[Any] = connection.execute(_ENTRIES_FROM, {"first": first})
    return (Entry(row.seq, row.body, row.hash) for row in rows)


def _insert_entry(
    connection: sa.Connection, seq: int, previous: str, kind: str, **fields: Any
) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    body = canonical({"kind": kind, "at": now, **fields})
    row = {"seq": seq, "body": body, "hash": entry_hash(previous, body)}
    connection.execute(_INSERT_ENTRY, row)


def _engine(path: Path | None) -> sa.Engine:
    """Return an engine with one connection, which the ledger's own lock guards."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=None if path is None else str(path)),
        poolclass=StaticPool,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the "begin" event below says how to begin
        cursor = connection.cursor()
        for pragma in ("synchronous=FULL", "secure_delete=ON", "recursive_triggers=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # Take the write lock at once: to read, decide and then ask for it could fail half-way.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _create(path: Path) -> None:
    """Put a complete ledger at ``path``, or leave the one that somebody put there meanwhile.

    It is built under another name and linked, so that a half-made or emptied file is never taken
    for a new ledger.
    """
    fresh = path.with_name(f".{path.name}.{new_nonce()}.new")
    try:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        engine = _engine(fresh)
        try:
            raw = engine.raw_connection()
            raw.cursor().execute("PRAGMA journal_mode=WAL")
            raw.close()
            with engine.begin() as connection:
                _initialise(connection)
        finally:
            engine.dispose()
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
        _sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(
            f"ledger {str(path)!r} cannot be made: {error.strerror}; choose a folder on a local "
            "disk that you may write to."
        ) from error
    finally:
        fresh.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows keeps names durable by itself
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _initialise(connection: sa.Connection) -> None:
    _METADATA.create_all(connection)
    for trigger in _TRIGGERS.values():
        connection.exec_driver_sql(trigger)
    connection.execute(sa.insert(_OWNER), {"format": FORMAT, "key": new_key()})
    # The nonce keeps heads of equal histories apart, and makes a head a hiding commitment.
    _insert_entry(connection, 1, BEFORE_FIRST, "ledger", format=FORMAT, nonce=new_nonce())


def _owner_key(connection: sa.Connection, ledger: Ledger) -> bytes:
    if not sa.inspect(connection).has_table("owner"):
        raise LedgerError(f"{ledger!r} is not a ledger; give another path or remove the file.")
    owner = connection.execute(sa.select(_OWNER.c.format, _OWNER.c.key)).one()
    if owner.format != FORMAT:
        raise LedgerError(
            f"{ledger!r} has format {owner.format}, and this version reads format {FORMAT}."
        )
    key: bytes = owner.key
    return key
