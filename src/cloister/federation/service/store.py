"""The coordinator's database: jobs, decisions, and the one answer of each round.

Every method is one transaction. An answer, with its survivor list in its header, and its charge
become durable together, before the answer is sent. A repeated request for the same round returns
the same bytes. Uploads are not stored: a silo sends the same bytes again. Noise and results are
never stored here, except results that silos sealed to readers.

The same code serves SQLite (one file, for small federations) and PostgreSQL. One coordinator uses
a database at a time: its one connection holds a lock that a killed process cannot keep.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from cloister.core import sqlite
from cloister.core.errors import LedgerError, LocalProtocolError
from cloister.federation.pki import Peer
from cloister.privacy.chain import canonical
from cloister.privacy.events import Event
from cloister.protocol.lifecycle import ENDED, ENDS, START, STATES, CoordinatorState, Step
from cloister.protocol.plan import Plan
from cloister.protocol.readers import Reader

VERSION = 1
_START_SECONDS = 2  # to wait for another coordinator that is about to end
_LOCK_NOT_AVAILABLE = "55P03"  # of PostgreSQL
_LOCK = 0x636C6F6973746572  # "cloister": the advisory lock of one coordinator on PostgreSQL


def _keys(**kinds: Any) -> list[sa.Column[Any]]:
    """Return the columns of these kinds that make up a table's primary key."""
    return [sa.Column(name, kind, primary_key=True) for name, kind in kinds.items()]


def _columns(**kinds: Any) -> list[sa.Column[Any]]:
    """Return columns of these kinds that are never empty."""
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


_METADATA = sa.MetaData()
_VERSION = sa.Table("schema_version", _METADATA, sa.Column("version", sa.Integer, primary_key=True))
_JOBS = sa.Table(
    "jobs",
    _METADATA,
    *_keys(id=sa.String(32)),
    sa.Column("number", sa.Integer, nullable=False, unique=True),  # the order of proposal
    *_columns(plan=sa.Text, proposer=sa.Text),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    *_columns(reason=sa.Text),
    sa.Column("approved", sa.Text, nullable=False),  # who takes part, fixed at the start
    *_columns(rounds=sa.Integer, rounds_done=sa.Integer),
    sa.Column("survivors", sa.Text, nullable=False),  # of the last round
    *_columns(proposed_at=sa.Float),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
)
_MEMBERS = sa.Table("members", _METADATA, *_keys(job=sa.String(32), silo=sa.Text))
_DECISIONS = sa.Table(
    "decisions",
    _METADATA,
    *_keys(job=sa.String(32), silo=sa.Text),
    *_columns(approved=sa.Boolean, reason=sa.Text, at=sa.Float),
)
_REFUSALS = sa.Table(
    "refusals",
    _METADATA,
    *_keys(job=sa.String(32), silo=sa.Text),
    *_columns(reason=sa.Text, at=sa.Float),
)
_ROUNDS = sa.Table(
    "rounds",
    _METADATA,
    *_keys(job=sa.String(32), round=sa.Integer),
    *_columns(event=sa.Text),
    sa.Column("frame", sa.LargeBinary, nullable=False),  # its header names the survivors
    *_columns(at=sa.Float),
)
_RECORDS = sa.Table(
    "records",
    _METADATA,
    *_keys(job=sa.String(32), request_hash=sa.String(64)),
    *_columns(number=sa.Integer, request=sa.LargeBinary, answer=sa.LargeBinary),
)
_BRIEFS = sa.Table(  # what lists and clocks need of a plan, and who has to answer for its length
    "briefs",
    _METADATA,
    *_keys(job=sa.String(32)),
    sa.Column("proposer", sa.Text, nullable=False, index=True),  # fingerprint
    *_columns(bytes=sa.Integer, plan=sa.Text),
)
_PEERS = sa.Table(
    "peers",
    _METADATA,
    *_keys(name=sa.Text),
    *_columns(fingerprint=sa.Text, not_after=sa.Float, seen_at=sa.Float),
)


@dataclass(frozen=True)
class StoredJob:
    """A stored job; its plan is complete, or reduced to the fields for lists."""

    id: str
    plan: Mapping[str, Any]
    proposer: Mapping[str, str]
    state: CoordinatorState
    reason: str
    approved: tuple[str, ...]
    rounds: int
    rounds_done: int
    survivors: tuple[str, ...]
    proposed_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the members in the plan's order."""
        return tuple(self.plan["silos"])

    @property
    def readers(self) -> tuple[str, ...]:
        """Return the fingerprints of the readers of its result."""
        return tuple(Reader(**reader).fingerprint for reader in self.plan.get("readers", ()))

    @property
    def ended(self) -> bool:
        """True if the job has ended."""
        return self.state in ENDED


def concerns(job: StoredJob, caller: Peer) -> bool:
    """Return True if a party may see a job completely; other analysts see its outline."""
    match caller.role:
        case "coordinator":
            return True
        case "silo" if caller.name in job.silos:
            return True
    # By fingerprint: a name can be enrolled again with another key.
    return caller.fingerprint in (job.proposer.get("fingerprint"), *job.readers)


@dataclass(frozen=True)
class Kept:
    """The stored jobs of one proposer, oldest first.

    Parameters
    ----------
    open : int
        Number of jobs that have not ended.
    bytes : mapping of str to int
        Length of each plan.
    """

    open: int
    bytes: Mapping[str, int]
    ended: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """The decision of a silo on a job."""

    silo: str
    approved: bool
    reason: str
    at: float


@dataclass(frozen=True)
class SeenSilo:
    """A silo that was connected at least once, as named in its certificate."""

    name: str
    fingerprint: str
    not_after: datetime
    seen_at: float


def reach(url: str) -> str:
    """Return the version of the PostgreSQL server at a URL; create and lock nothing there."""
    name = "of this URL"
    try:
        address = sa.make_url(url)
        public = sa.URL.create(address.get_backend_name(), host=address.host, port=address.port)
        name = repr(str(public.set(database=address.database)))
        engine = sa.create_engine(
            address, poolclass=sa.NullPool, connect_args={"connect_timeout": sqlite.BUSY_SECONDS}
        )
        with engine.connect() as connection:
            _check_keeps(connection.exec_driver_sql)
            version = connection.exec_driver_sql("SHOW server_version").scalar_one()
    except (sa.exc.SQLAlchemyError, ImportError, ValueError) as error:
        # A library's message may repeat a password that is in a wrong part of the URL.
        cause = (
            sqlite.cause_of(error) if isinstance(error, sa.exc.DBAPIError) else type(error).__name__
        )
        raise LedgerError(f"database {name} cannot be reached: {cause}.") from None
    return f"PostgreSQL {version}"


class Store:
    """The coordinator's database; an :class:`~cloister.protocol.journal.AnswerJournal` of all jobs.

    Parameters
    ----------
    url : str
        ``sqlite:///FILE`` or ``postgresql+psycopg://...``; missing tables are created.

    Raises
    ------
    LedgerError
        If the database cannot be used, is newer than this version, is in use by another
        coordinator, or is configured to lose committed transactions.

    Notes
    -----
    Threads of one process may share a store; its single connection serves one transaction after
    the other. SQLite runs with WAL and ``synchronous=FULL``; keep the file on a local disk.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = _engine(url)
        except (sa.exc.ArgumentError, ModuleNotFoundError) as error:
            raise LedgerError(
                "database must be sqlite:///FILE or postgresql+psycopg://HOST/NAME, with the "
                f"extra 'postgres' for the latter: {sqlite.cause_of(error)}."
            ) from error
        self._name = self._engine.url.render_as_string(hide_password=True)
        self._label = f"database {self._name!r}"
        try:
            with self._transaction() as connection:
                _initialise(connection, self._label)
        except LedgerError as error:
            self._engine.dispose()
            if _is_locked(error.__cause__):
                raise LedgerError(
                    f"{self._label} is in use by another coordinator; stop that one, or use "
                    "another database."
                ) from error
            raise

    def __repr__(self) -> str:
        return f"Store({self._name!r})"

    def close(self) -> None:
        """Release the database, so that another coordinator may use it."""
        self._engine.dispose()

    def check(self) -> None:
        """Raise :class:`LedgerError` if the database does not answer."""
        with self._transaction() as connection:
            connection.execute(sa.select(_VERSION.c.version))

    # The journal of the aggregator ----------------------------------------------------------

    def frame(self, job: str, round: int) -> bytes | None:
        """Return the answer committed for a round, if any."""
        with self._transaction() as connection:
            row = connection.execute(_ONE_ROUND, {"of_job": job, "of_round": round}).first()
        return None if row is None else bytes(row.frame)

    def commit(
        self, *, job: str, round: int, event: Event, frame: bytes, request: bytes = b""
    ) -> bytes:
        """Make a round's charge and its answer durable; return the answer that may be sent.

        A second call for the same round returns the first answer and changes nothing.

        Raises
        ------
        LedgerError
            If the round was committed with another event, or nothing could be written.
        LocalProtocolError
            If the job is not running, so that no answer of it may be sent.
        """
        charge = canonical(event.to_dict())
        with self._transaction() as connection:
            of_round = {"of_job": job, "of_round": round}
            row = connection.execute(_STATE_AND_ROUND, of_round).first()
            if row is not None and row.frame is not None:
                # A plan that changed under a job would charge other amounts than silos do.
                if row.event != charge:
                    raise LedgerError(
                        f"round {round} of job {job!r} was committed with another event; "
                        "a round has one meaning."
                    )
                return bytes(row.frame)
            state = "unknown" if row is None else row.state
            if state != "running":
                raise LocalProtocolError(
                    f"round {round} of job {job!r} cannot be answered: the job is {state}, not "
                    "running."
                )
            values = {"job": job, "round": round, "event": charge, "frame": frame, "at": _now()}
            connection.execute(_INSERT_ROUND, values)
            if request:
                _record(connection, job, request, frame)
        return frame

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Store the answer to a request; return the answer that was stored first."""
        return self.record_all(job, [(request, answer)])[0]

    def record_all(self, job: str, answers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
        """Store answers up to the first that differs; return those that were stored first."""
        kept: list[bytes] = []
        with self._transaction() as connection:
            for request, answer in answers:
                kept.append(_record(connection, job, request, answer))
                if kept[-1] != answer:
                    break
        return tuple(kept)

    def recorded(self, job: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return all requests and answers of a job, in the order of storage."""
        query = (
            sa.select(_RECORDS.c.request, _RECORDS.c.answer)
            .where(_RECORDS.c.job == job)
            .order_by(_RECORDS.c.number)
        )
        return tuple((bytes(row.request), bytes(row.answer)) for row in self._all(query))

    # Jobs -------------------------------------------------------------------------------------

    def propose(self, job: str, plan: Mapping[str, Any], proposer: Mapping[str, str]) -> bool:
        """Add a proposed job; return False if its id was used before."""
        rounds = Plan.from_dict(plan).rounds
        with self._transaction() as connection:
            known = connection.execute(sa.select(_JOBS.c.id).where(_JOBS.c.id == job)).first()
            if known is not None:
                return False
            # Not a time, as two jobs may arrive within one tick of a clock.
            last = connection.execute(sa.select(sa.func.max(_JOBS.c.number))).scalar_one()
            connection.execute(
                sa.insert(_JOBS),
                {
                    "id": job,
                    "number": (last or 0) + 1,
                    "plan": canonical(plan),
                    "proposer": canonical(proposer),
                    "state": "proposed",
                    "reason": "",
                    "approved": "[]",
                    "rounds": rounds,
                    "rounds_done": 0,
                    "survivors": "[]",
                    "proposed_at": _now(),
                },
            )
            connection.execute(
                sa.insert(_MEMBERS), [{"job": job, "silo": silo} for silo in plan["silos"]]
            )
            connection.execute(
                sa.insert(_BRIEFS), _brief(job, canonical(plan), canonical(proposer))
            )
        return True

    def kept(self, fingerprint: str) -> Kept:
        """Return the stored jobs of one proposer."""
        query = (
            sa.select(_JOBS.c.id, _JOBS.c.state, _BRIEFS.c.bytes)
            .join(_BRIEFS, _BRIEFS.c.job == _JOBS.c.id)
            .where(_BRIEFS.c.proposer == fingerprint)
            .order_by(_JOBS.c.number)
        )
        rows = self._all(query)
        ended = tuple(row.id for row in rows if row.state in ENDED)
        return Kept(len(rows) - len(ended), {row.id: int(row.bytes) for row in rows}, ended)

    def ended_before(self, at: float) -> tuple[str, ...]:
        """Return the jobs that ended before a time, in seconds since 1970."""
        query = sa.select(_JOBS.c.id).where(_JOBS.c.state.in_(ENDED), _JOBS.c.ended_at < at)
        return tuple(row.id for row in self._all(query))

    def forget(self, jobs: Sequence[str]) -> None:
        """Delete all data of jobs that ended; ignore other jobs."""
        with self._transaction() as connection:
            for job in jobs:
                if _state(connection, job) in ENDED:
                    connection.execute(sa.delete(_JOBS).where(_JOBS.c.id == job))
                    for table in _OF_A_JOB:
                        connection.execute(sa.delete(table).where(table.c.job == job))

    def job(self, job: str, *, brief: bool = False) -> StoredJob | None:
        """Return a job by id, or None; with a reduced plan if `brief`."""
        with self._transaction() as connection:
            row = connection.execute(_ONE_JOB[brief], {"of_job": job}).first()
        return None if row is None else _stored(row)

    def jobs(
        self,
        *,
        states: tuple[CoordinatorState, ...] = STATES,
        silo: str | None = None,
        limit: int = 1000,
        brief: bool = False,
    ) -> tuple[StoredJob, ...]:
        """Return the newest jobs in `states`, optionally of one member, newest first.

        With `brief` they have reduced plans, which is fast.
        """
        query = _query(brief).where(_JOBS.c.state.in_(states))
        if silo is not None:
            query = query.join(_MEMBERS, _MEMBERS.c.job == _JOBS.c.id).where(
                _MEMBERS.c.silo == silo
            )
        newest = query.order_by(_JOBS.c.number.desc()).limit(limit)
        return tuple(map(_stored, self._all(newest)))

    def open_jobs(self) -> tuple[tuple[str, CoordinatorState, float], ...]:
        """Return id, state and time of proposal of open jobs, without reading their plans."""
        query = sa.select(_JOBS.c.id, _JOBS.c.state, _JOBS.c.proposed_at)
        rows = self._all(query.where(_JOBS.c.state.not_in(ENDED)))
        return tuple((row.id, row.state, row.proposed_at) for row in rows)

    def declined_by(self, silo: str) -> frozenset[str]:
        """Return the jobs that a silo declined."""
        query = sa.select(_DECISIONS.c.job).where(
            _DECISIONS.c.silo == silo, _DECISIONS.c.approved.is_(False)
        )
        return frozenset(row.job for row in self._all(query))

    def decide(self, job: str, silo: str, approved: bool, reason: str) -> bool:
        """Store a member's decision while the job waits for it; the last one counts.

        Returns False, and changes nothing, once the job is no longer proposed.
        """
        with self._transaction() as connection:
            if _state(connection, job) != "proposed":
                return False
            said = {"approved": approved, "reason": reason, "at": _now()}
            _put(connection, _DECISIONS, job=job, silo=silo, **said)
        return True

    def decisions(self, job: str) -> tuple[Decision, ...]:
        """Return the decisions of the members of a job so far."""
        query = sa.select(_DECISIONS).where(_DECISIONS.c.job == job).order_by(_DECISIONS.c.silo)
        return tuple(
            Decision(row.silo, bool(row.approved), row.reason, row.at) for row in self._all(query)
        )

    def start(self, job: str, approved: tuple[str, ...]) -> bool:
        """Fix the participants and start a proposed job; return False if it is not proposed."""
        return self._take(job, START, approved=canonical(approved), started_at=_now())

    def end(self, job: str, state: CoordinatorState, reason: str = "") -> bool:
        """End an open job; return False if it had ended already."""
        return self._take(job, ENDS[state], reason=reason, ended_at=_now())

    def progress(self, job: str, rounds_done: int, survivors: tuple[str, ...]) -> None:
        """Store the progress of a running job, which is for display only."""
        values = {"rounds_done": rounds_done, "survivors": canonical(survivors)}
        with self._transaction() as connection:
            connection.execute(_PROGRESS, {"of_job": job, **values})

    def answer_to(self, job: str, request: bytes) -> bytes | None:
        """Return one of the answers that :meth:`recorded` returns, or None."""
        with self._transaction() as connection:
            return _answer_to(connection, job, request)

    def refuse(self, job: str, silo: str, reason: str) -> None:
        """Store the reason of a silo's refusal of a frame; the last reason counts."""
        with self._transaction() as connection:
            _put(connection, _REFUSALS, job=job, silo=silo, reason=reason, at=_now())

    def forget_refusal(self, job: str, silo: str) -> None:
        """Delete the refusal of a silo, whose reason is gone."""
        its = (_REFUSALS.c.job == job, _REFUSALS.c.silo == silo)
        with self._transaction() as connection:
            connection.execute(sa.delete(_REFUSALS).where(*its))

    def refusals(self, job: str) -> Mapping[str, str]:
        """Return the last refusal of each silo in a job."""
        query = sa.select(_REFUSALS.c.silo, _REFUSALS.c.reason).where(_REFUSALS.c.job == job)
        return {row.silo: row.reason for row in self._all(query.order_by(_REFUSALS.c.silo))}

    # People and numbers -----------------------------------------------------------------------

    def seen(self, name: str, fingerprint: str, not_after: datetime) -> None:
        """Store the certificate with which a silo connected."""
        shown = {"fingerprint": fingerprint, "not_after": not_after.timestamp()}
        with self._transaction() as connection:
            _put(connection, _PEERS, name=name, **shown, seen_at=_now())

    def silos(self) -> tuple[SeenSilo, ...]:
        """Return every silo that ever connected, by name."""
        return tuple(
            SeenSilo(
                row.name, row.fingerprint, datetime.fromtimestamp(row.not_after, UTC), row.seen_at
            )
            for row in self._all(sa.select(_PEERS).order_by(_PEERS.c.name))
        )

    def counts(self) -> tuple[Mapping[CoordinatorState, int], int]:
        """Return the number of jobs in each state, and of answered rounds of all jobs."""
        by_state = sa.select(_JOBS.c.state, sa.func.count()).group_by(_JOBS.c.state)
        with self._transaction() as connection:
            found = {state: int(count) for state, count in connection.execute(by_state)}
            rounds = connection.execute(
                sa.select(sa.func.count()).select_from(_ROUNDS)
            ).scalar_one()
        return {state: found.get(state, 0) for state in STATES}, int(rounds)

    # Inside -----------------------------------------------------------------------------------

    def _all(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        with self._transaction() as connection:
            return connection.execute(query).all()

    def _take(self, job: str, step: Step[CoordinatorState], **values: Any) -> bool:
        """Apply a step to a job that is in one of its sources; return False otherwise."""
        here = sa.and_(_JOBS.c.id == job, _JOBS.c.state.in_(step.sources))
        change = sa.update(_JOBS).where(here).values(state=step.target, **values)
        with self._transaction() as connection:
            return bool(connection.execute(change).rowcount)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        way_out = "check the server, its disk, and whether another coordinator uses it"
        refusals = sqlite.explained(self._label, sa.exc.SQLAlchemyError, way_out=way_out)
        with refusals, self._engine.begin() as connection:
            yield connection


_ONE_ROUND = sa.select(_ROUNDS.c.event, _ROUNDS.c.frame).where(
    _ROUNDS.c.job == sa.bindparam("of_job"), _ROUNDS.c.round == sa.bindparam("of_round")
)
_INSERT_ROUND = sa.insert(_ROUNDS)
_STATE_AND_ROUND = (  # one question where each round asks two
    sa.select(_JOBS.c.state, _ROUNDS.c.event, _ROUNDS.c.frame)
    .outerjoin_from(
        _JOBS,
        _ROUNDS,
        sa.and_(_ROUNDS.c.job == _JOBS.c.id, _ROUNDS.c.round == sa.bindparam("of_round")),
    )
    .where(_JOBS.c.id == sa.bindparam("of_job"))
)
_PROGRESS = (
    sa.update(_JOBS)
    .where(_JOBS.c.id == sa.bindparam("of_job"), _JOBS.c.state == "running")
    .values(rounds_done=sa.bindparam("rounds_done"), survivors=sa.bindparam("survivors"))
)


_OF_A_JOB = (_MEMBERS, _DECISIONS, _REFUSALS, _ROUNDS, _RECORDS, _BRIEFS)
_IN_BRIEF = ("silos", "profile", "study", "budget", "readers", "min_silos")


def _query(brief: bool) -> sa.Select[Any]:
    if not brief:
        return sa.select(_JOBS)
    light = [column for column in _JOBS.c if column.name != "plan"]
    return sa.select(*light, _BRIEFS.c.plan).join(_BRIEFS, _BRIEFS.c.job == _JOBS.c.id)


_OF_JOB: sa.BindParameter[str] = sa.bindparam("of_job")
_ONE_JOB = {brief: _query(brief).where(_JOBS.c.id == _OF_JOB) for brief in (False, True)}
_ONE_STATE = sa.select(_JOBS.c.state).where(_JOBS.c.id == _OF_JOB)
_ONE_ANSWER = sa.select(_RECORDS.c.answer).where(
    _RECORDS.c.job == _OF_JOB, _RECORDS.c.request_hash == sa.bindparam("of_request")
)
_NUMBER_OF_ANSWERS = (
    sa.select(sa.func.count()).select_from(_RECORDS).where(_RECORDS.c.job == _OF_JOB)
)
_INSERT_ANSWER = sa.insert(_RECORDS)


def _brief(job: str, plan: str, proposer: str) -> dict[str, Any]:
    """Return the row of a job in the table of briefs, from its stored texts."""
    whole = json.loads(plan)
    kept = {name: whole[name] for name in _IN_BRIEF if name in whole}  # old plans: no readers
    kept["task"] = {"name": whole["task"]["name"]}
    return {
        "job": job,
        "proposer": json.loads(proposer).get("fingerprint", ""),
        "bytes": len(plan),
        "plan": canonical(kept),
    }


def _put(connection: sa.Connection, table: sa.Table, **values: Any) -> None:
    """Insert a row, or replace the row with the same key."""
    key = (column == values[column.name] for column in table.primary_key)
    connection.execute(sa.delete(table).where(*key))
    connection.execute(sa.insert(table), values)


def _state(connection: sa.Connection, job: str) -> str | None:
    state: str | None = connection.execute(_ONE_STATE, {"of_job": job}).scalar_one_or_none()
    return state


def _answer_to(connection: sa.Connection, job: str, request: bytes) -> bytes | None:
    """Return the stored answer to a request, or None."""
    key = hashlib.sha256(request).hexdigest()
    of_request = {"of_job": job, "of_request": key}
    kept: bytes | None = connection.execute(_ONE_ANSWER, of_request).scalar_one_or_none()
    return None if kept is None else bytes(kept)


def _record(connection: sa.Connection, job: str, request: bytes, answer: bytes) -> bytes:
    """Store the answer to a request, or return the stored one."""
    if (kept := _answer_to(connection, job, request)) is not None:
        return kept
    key = hashlib.sha256(request).hexdigest()
    number = connection.execute(_NUMBER_OF_ANSWERS, {"of_job": job}).scalar_one()
    values = {"job": job, "request_hash": key, "number": number}
    connection.execute(_INSERT_ANSWER, {**values, "request": request, "answer": answer})
    return answer


@contextmanager
def _as_written() -> Iterator[None]:
    """Raise LedgerError if the stored data of a job are malformed, for example by a bit flip."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise LedgerError("a job in the database was changed; restore its newest copy.") from error


def _stored(row: Any) -> StoredJob:
    found = {name: row._mapping[name] for name in _KEPT}
    with _as_written():
        for name in ("plan", "proposer", "approved", "survivors"):
            found[name] = json.loads(found[name])
        found |= {name: tuple(found[name]) for name in ("approved", "survivors")}
    return StoredJob(**found)


_KEPT = [field.name for field in fields(StoredJob)]


def _now() -> float:
    return datetime.now(UTC).timestamp()


# Opening the database ------------------------------------------------------------------------


def _is_locked(error: BaseException | None) -> bool:
    """Return True if a database refused because another connection holds it."""
    cause = getattr(error, "orig", None)
    codes = (getattr(cause, name, None) for name in ("sqlite_errorcode", "sqlstate"))
    return any(code in (sqlite3.SQLITE_BUSY, _LOCK_NOT_AVAILABLE) for code in codes)


def _engine(url: str) -> sa.Engine:
    """Return an engine with one connection, which holds the lock of the coordinator."""
    address = sa.make_url(url)
    kind = address.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise sa.exc.ArgumentError(f"{kind!r} is not supported")
    if kind == "sqlite" and address.database in (None, "", ":memory:"):
        raise sa.exc.ArgumentError("a coordinator in memory would forget what it released")
    # One connection: threads wait for each other, and it holds the lock until the process ends.
    one: dict[str, Any] = {
        "poolclass": QueuePool,
        "pool_size": 1,
        "max_overflow": 0,
        "pool_timeout": 60,
    }
    if kind == "sqlite":
        file = Path(str(address.database))
        sqlite.keep_private(file)
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(file)),
            connect_args={"timeout": _START_SECONDS, "check_same_thread": False},
            hide_parameters=True,
            **one,
        )
        sa.event.listen(engine, "connect", _open_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = sa.create_engine(
        address,
        pool_pre_ping=True,  # a database server may restart under us
        connect_args={"connect_timeout": sqlite.BUSY_SECONDS},
        hide_parameters=True,
        **one,
    )
    # A later connection may have to wait until the server notices that an earlier one is gone.
    waits = chain([_START_SECONDS], repeat(sqlite.BUSY_SECONDS))
    sa.event.listen(engine, "connect", lambda one, _: _open_postgresql(one, next(waits)))
    return engine


def _open_sqlite(connection: Any, _record: Any) -> None:
    sqlite.configure(connection, log=True, exclusive=True)


def _begin_sqlite(connection: sa.Connection) -> None:
    driver = connection.connection.driver_connection  # in a tenth of the engine's time
    assert driver is not None
    driver.execute("BEGIN IMMEDIATE")


def _check_keeps(execute: Callable[[str], Any]) -> None:
    """Check that a PostgreSQL server keeps committed transactions."""
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if execute(f"SELECT current_setting('{setting}')").fetchone()[0] == "off":
            raise LedgerError(
                f"the PostgreSQL server runs with {setting} off and may forget what was "
                "released; switch it on."
            )


def _open_postgresql(connection: Any, seconds: int) -> None:
    with connection.cursor() as cursor:
        _check_keeps(cursor.execute)
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", (f"{seconds}s",))
        cursor.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    connection.commit()


def _initialise(connection: sa.Connection, name: str) -> None:
    """Create the tables of an empty database, or check the version of existing ones."""
    if connection.dialect.name == "sqlite":
        sqlite.check_pages(connection.exec_driver_sql, name)
    if not sa.inspect(connection).has_table(_VERSION.name):
        _METADATA.create_all(connection)
        connection.execute(sa.insert(_VERSION), {"version": VERSION})
        return
    found = connection.execute(sa.select(_VERSION.c.version)).scalar_one()
    if found != VERSION:
        raise LedgerError(
            f"{name} has version {found} and this coordinator reads {VERSION}; use "
            f"{'a newer' if found > VERSION else 'an older'} cloister, or another database."
        )
    _METADATA.create_all(connection)  # a database made before there were briefs
    without = sa.select(_JOBS.c.id).where(_JOBS.c.id.not_in(sa.select(_BRIEFS.c.job)))
    for job in connection.execute(without).scalars().all():
        one = sa.select(_JOBS.c.plan, _JOBS.c.proposer).where(_JOBS.c.id == job)
        row = connection.execute(one).one()
        with _as_written():
            brief = _brief(job, row.plan, row.proposer)
        connection.execute(sa.insert(_BRIEFS), brief)
