"""The jobs that a silo received and the decisions on them: one SQLite file next to the ledger.

The agent and the owner's commands share it, each in a separate process. A job changes its state by
compare-and-set, so that a command and the agent cannot both decide. The ledger, not this file,
stores the budget of a job.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from cloister.core.errors import LedgerError, PlanError
from cloister.privacy.database import (
    check_pages,
    columns,
    connect,
    explained,
    keep_private,
    keys,
    open_sqlite,
    reader,
)
from cloister.protocol.lifecycle import OPEN, UNDECIDED, SiloState, Step

# A running job is recorded in the audit file immediately, so these states precede every frame.
_BEFORE_FRAMES = ("", *UNDECIDED, SiloState.APPROVED, SiloState.DECLINED)

_Answer = TypeVar("_Answer")
_METADATA = sa.MetaData()
_JOBS = sa.Table(
    "jobs",
    _METADATA,
    *keys(seq=sa.Integer),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    *columns(plan=sa.Text, proposer=sa.Text, received_at=sa.Text),
    sa.Column("state", sa.Text, nullable=False, index=True),
    *columns(reason=sa.Text, decided_by=sa.Text),
    sa.Column("noted", sa.Text, nullable=False),  # the last state that is in the audit file
)
_STATES = sa.select(_JOBS.c.id, _JOBS.c.state).order_by(_JOBS.c.seq)
_UNNOTED = sa.select(_JOBS).where(_JOBS.c.noted != _JOBS.c.state).order_by(_JOBS.c.seq)


_CHANGED = "the file of jobs was changed: a value is of another kind; restore its newest copy."


def _state(value: Any) -> SiloState:
    if value not in tuple(SiloState):
        raise LedgerError(_CHANGED)
    return SiloState(value)


@dataclass(frozen=True)
class Job:
    """A job as received by this silo.

    Parameters
    ----------
    id : str, 32 hexadecimal digits
    plan : str
        Canonical JSON of the plan in its first offer; the text of :func:`in_brief` for a job that
        the policy declined on arrival.
    proposer : mapping
        The proposer, as sent by the coordinator.
    received_at : str
        UTC, ISO 8601.
    reason : str
        The reason of this state, which is sent to the coordinator.
    decided_by : str
        "owner", "standing rule", "policy", "ledger" or "coordinator".
    """

    id: str
    plan: str
    proposer: Mapping[str, Any]
    received_at: str
    state: SiloState
    reason: str = ""
    decided_by: str = ""

    @classmethod
    def _of(cls, row: sa.Row[Any]) -> Self:
        try:
            proposer = json.loads(row.proposer)
            fields = {**row._mapping, "proposer": proposer, "state": _state(row.state)}
            del fields["seq"]
            texts = (value for name, value in fields.items() if name != "proposer")
            if not isinstance(proposer, dict) or not all(isinstance(t, str) for t in texts):
                raise ValueError("texts, and a table of the proposer")
        except (TypeError, ValueError) as error:  # SQLite keeps any value in any column
            raise LedgerError(_CHANGED) from error
        del fields["noted"]
        return cls(**fields)


def in_brief(plan: Mapping[str, Any], digest: bytes) -> str:
    """Return the stored part of a declined job's plan, which is bounded in length."""
    kept = {key: plan[key] for key in ("budget", "profile", "study")}
    name = {"name": plan["task"]["name"]}
    return json.dumps({**kept, "task": name, "digest": digest.hex()}, sort_keys=True)


class Store:
    """The file of jobs, made with mode 0600; safe for several threads and processes.

    Raises
    ------
    LedgerError
        If the file cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        self._name = f"the file of jobs {str(self.path)!r}"
        # Plans name columns and proposers, which other accounts need not see.
        with explained(self._name):
            keep_private(self.path)
            self._engine = open_sqlite(self.path)
            with self._engine.begin() as connection:
                check_pages(connection.exec_driver_sql, self._name)
                _METADATA.create_all(connection)
            self._watch = connect(self.path)
        self._lock = threading.Lock()
        self._version = -1
        self._read: dict[Any, Any] = {}  # what was read since the file last changed

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def dispose(self) -> None:
        """Close the file."""
        self._watch.close()
        self._engine.dispose()

    def add(
        self,
        job: str,
        plan: str,
        proposer: Mapping[str, Any],
        state: SiloState,
        *,
        reason: str = "",
        by: str = "",
    ) -> bool:
        """Store a new job; return False if it exists already."""
        row = {
            "id": job,
            "plan": plan,
            "proposer": json.dumps(dict(proposer), sort_keys=True),
            "received_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "state": state,
            "reason": reason,
            "decided_by": by,
            "noted": "",
        }
        with self._transaction() as connection:
            if connection.execute(_STATES.where(_JOBS.c.id == job)).first():
                return False
            connection.execute(sa.insert(_JOBS), row)
            return True

    def move(self, job: str, step: Step[SiloState], *, reason: str = "", by: str = "") -> bool:
        """Apply a step to a job that is in one of its sources; return False otherwise."""
        new: dict[str, Any] = {"state": step.target, "reason": reason}
        if by:
            new["decided_by"] = by
        here = sa.and_(_JOBS.c.id == job, _JOBS.c.state.in_(step.sources))
        with self._transaction() as connection:
            return bool(connection.execute(sa.update(_JOBS).where(here).values(new)).rowcount)

    def get(self, job: str) -> Job | None:
        """Return a job, or None if it was never offered."""

        def read(connection: sa.Connection) -> Job | None:
            row = connection.execute(sa.select(_JOBS).where(_JOBS.c.id == job)).first()
            return None if row is None else Job._of(row)

        return self._remembered(job, read)

    def state(self, job: str) -> SiloState | None:
        """Return the state of a job, or None if it was never offered."""
        known = self.get(job)
        return None if known is None else known.state

    def find(self, start: str) -> Job:
        """Return the one job whose id begins with `start`."""
        # An empty text is the beginning of every id.
        found = [job for job in self.states() if job.startswith(start)] if start else []
        if len(found) != 1:
            raise PlanError(
                f"job {start!r} is {'not known' if not found else 'not unique'} here; "
                "see 'cloister jobs list'."
            )
        job = self.get(found[0])
        if job is None:
            raise PlanError(f"job {start!r} was forgotten this very moment; it had ended.")
        return job

    def jobs(self) -> tuple[Job, ...]:
        """Return all jobs, oldest first."""
        with self._transaction(write=False) as connection:
            return tuple(map(Job._of, connection.execute(sa.select(_JOBS).order_by(_JOBS.c.seq))))

    def states(self, among: Collection[SiloState] = tuple(SiloState)) -> dict[str, SiloState]:
        """Return the state of each job that is in one of `among`, oldest first."""

        def read(connection: sa.Connection) -> dict[str, SiloState]:
            chosen = connection.execute(_STATES.where(_JOBS.c.state.in_(among)))
            return {row.id: _state(row.state) for row in chosen}

        return dict(self._remembered(tuple(among), read))

    def ran(self) -> frozenset[str]:
        """Return the jobs that may have sent a frame, judged by their recorded states."""
        query = sa.select(_JOBS.c.id).where(_JOBS.c.noted.not_in(_BEFORE_FRAMES))
        with self._transaction(write=False) as connection:
            return frozenset(connection.execute(query).scalars())

    def unnoted(self) -> tuple[Job, ...]:
        """Return the jobs whose state changed since :meth:`note`, oldest first."""
        return self._remembered("unnoted", lambda c: tuple(map(Job._of, c.execute(_UNNOTED))))

    def note(self, job: Job) -> None:
        """Record that this state of a job is in the audit file."""
        noted = sa.update(_JOBS).where(_JOBS.c.id == job.id).values(noted=job.state)
        with self._transaction() as connection:
            connection.execute(noted)

    def declined_since(self, seconds: float) -> int:
        """Return the number of declined jobs among those received in the last `seconds`."""
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        query = sa.select(sa.func.count()).where(
            _JOBS.c.state == SiloState.DECLINED,
            _JOBS.c.received_at >= since.isoformat(timespec="seconds"),
        )
        with self._transaction(write=False) as connection:
            return int(connection.execute(query).scalar_one())

    def prune(self, keep: int, spare: Collection[str] = ()) -> int:
        """Delete all but the newest declined jobs, and all but the newest of other ended jobs.

        Parameters
        ----------
        keep : int
            Number of jobs of each kind to keep.
        spare : collection of str
            Jobs that are never deleted.

        Returns
        -------
        int
            Number of deleted jobs. A job is kept until its last state is in the audit file.
        """
        ended = [state for state in SiloState if state not in (*OPEN, SiloState.DECLINED)]
        gone: list[str] = []
        with self._transaction() as connection:
            for states in ([SiloState.DECLINED], ended):
                of_these = sa.and_(_JOBS.c.state.in_(states), _JOBS.c.noted == _JOBS.c.state)
                old = sa.select(_JOBS.c.id).where(of_these).order_by(_JOBS.c.seq.desc())
                gone += connection.execute(old.offset(keep)).scalars()
            gone = [job for job in gone if job not in spare]
            for job in gone:
                connection.execute(sa.delete(_JOBS).where(_JOBS.c.id == job))
        return len(gone)

    def _remembered(self, question: Any, read: Callable[[sa.Connection], _Answer]) -> _Answer:
        """Return a cached answer unless a connection of any process has written since."""
        with explained(self._name), self._lock:
            # SQLite changes this number when another connection commits; reading it is cheap.
            version = self._watch.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:
                self._version = version
                self._read.clear()
            if question in self._read:
                kept: _Answer = self._read[question]
                return kept
        with self._transaction(write=False) as connection:
            answer = read(connection)
        with self._lock:
            if version == self._version:
                self._read[question] = answer
        return answer

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sa.Connection]:
        engine = self._engine if write else reader(self._engine)
        with explained(self._name), engine.begin() as connection:
            yield connection
