"""The jobs that a silo received and the decisions on them: one SQLite file next to the ledger.

The agent and the owner's commands share it, each in a separate process. A job changes its state by
compare-and-set, so that a command and the agent cannot both decide. The ledger, not this file,
stores the budget of a job.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from cloister.core.errors import LedgerError, PlanError
from cloister.core.sqlite import check_pages, connect, explained, keep_private, transaction
from cloister.protocol.lifecycle import OPEN, UNDECIDED, SiloState, Step

# A running job is recorded in the audit file immediately, so these states precede every frame.
_BEFORE_FRAMES = ("", *UNDECIDED, SiloState.APPROVED, SiloState.DECLINED)
_BEGUN = (SiloState.RUNNING, SiloState.FINISHED)

_Answer = TypeVar("_Answer")
_FIELDS = ("id", "plan", "proposer", "received_at", "state", "reason", "decided_by")
# "noted" is the last state that is in the audit file.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS jobs (seq INTEGER NOT NULL, id TEXT NOT NULL, "
    "plan TEXT NOT NULL, proposer TEXT NOT NULL, received_at TEXT NOT NULL, "
    "state TEXT NOT NULL, reason TEXT NOT NULL, decided_by TEXT NOT NULL, "
    "noted TEXT NOT NULL, PRIMARY KEY (seq), UNIQUE (id))",
    "CREATE INDEX IF NOT EXISTS ix_jobs_state ON jobs (state)",
    # Silos that their own signatures convicted, as this silo verified.
    "CREATE TABLE IF NOT EXISTS convictions (fingerprint TEXT NOT NULL, silo TEXT NOT NULL, "
    "job TEXT NOT NULL, offence TEXT NOT NULL, PRIMARY KEY (fingerprint))",
)
_CONVICT = (
    "INSERT INTO convictions (fingerprint, silo, job, offence) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (fingerprint) DO NOTHING"
)
_JOBS = f"SELECT {', '.join(_FIELDS)} FROM jobs"
_INSERT = (
    f"INSERT INTO jobs ({', '.join(_FIELDS)}, noted) VALUES (?, ?, ?, ?, ?, ?, ?, '') "
    "ON CONFLICT (id) DO NOTHING"
)
_CHANGED = "the file of jobs was changed: a value has another type; restore its newest copy."


def _among(column: str, values: Collection[str]) -> str:
    """Return the condition that a column has one of some values, which are its parameters."""
    return f"{column} IN ({', '.join('?' * len(values))})"


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
        Canonical JSON of the plan in its first offer; the text of :func:`summary_row` for a job
        that the policy declined on arrival.
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
    def _of(cls, row: tuple[Any, ...]) -> Self:
        fields = dict(zip(_FIELDS, row, strict=True))
        try:
            proposer = json.loads(fields["proposer"])
            texts = (value for name, value in fields.items() if name != "proposer")
            if not isinstance(proposer, dict) or not all(isinstance(t, str) for t in texts):
                raise ValueError("texts, and a table of the proposer")
        except (TypeError, ValueError) as error:  # SQLite keeps any value in any column
            raise LedgerError(_CHANGED) from error
        return cls(**fields | {"proposer": proposer, "state": _state(fields["state"])})


def summary_row(plan: Mapping[str, Any], digest: bytes) -> str:
    """Return the stored part of a declined job's plan, which is bounded in length."""
    kept = {key: plan[key] for key in ("budget", "profile", "study")}
    name = {"name": plan["task"]["name"]}
    return json.dumps(
        {**kept, "task": name, "digest": digest.hex()}, sort_keys=True, allow_nan=False
    )


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
        keep_private(self.path)
        # Who reads waits for no writer, and is told by SQLite of what the other connection wrote.
        self._writing, self._reading = threading.Lock(), threading.Lock()
        with explained(self._name):
            self._writer = connect(self.path, log=True)
            self._reader = connect(self.path)
        self._version = -1
        self._known: dict[Any, Any] = {}  # what was read since the file last changed
        try:
            with self._write() as connection:
                check_pages(connection.execute, self._name)
                for statement in _TABLES:
                    connection.execute(statement)
        except LedgerError:
            self.dispose()
            raise

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def dispose(self) -> None:
        """Close the file."""
        self._reader.close()
        self._writer.close()

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
        """Keep a job that is new; return whether it was."""
        asked = json.dumps(dict(proposer), sort_keys=True, allow_nan=False)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._write() as connection:
            row = (job, plan, asked, now, state, reason, by)
            return bool(connection.execute(_INSERT, row).rowcount)

    def move(self, job: str, step: Step[SiloState], *, reason: str = "", by: str = "") -> bool:
        """Take a step with a job if it is where the step begins; return whether it was."""
        query = (
            "UPDATE jobs SET state = ?, reason = ?, "
            "decided_by = CASE ? WHEN '' THEN decided_by ELSE ? END "
            f"WHERE id = ? AND {_among('state', step.sources)}"
        )
        with self._write() as connection:
            values = (step.target, reason, by, by, job, *step.sources)
            return bool(connection.execute(query, values).rowcount)

    def get(self, job: str) -> Job | None:
        """Return a job, or None if it was never offered."""
        found = self._jobs_where("id = ?", job)
        return found[0] if found else None

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
            raise PlanError(f"job {start!r} has just been deleted, since it had ended.")
        return job

    def jobs(self) -> tuple[Job, ...]:
        """Return all jobs, oldest first."""
        return self._jobs_where("TRUE")

    def states(self, among: Collection[SiloState] = tuple(SiloState)) -> dict[str, SiloState]:
        """Return the state of each job that is in one of `among`, oldest first."""
        query = f"SELECT id, state FROM jobs WHERE {_among('state', among)} ORDER BY seq"
        return dict(self._read(query, *among, into=lambda row: (row[0], _state(row[1]))))

    def ran(self) -> frozenset[str]:
        """Return the jobs of which a frame may have left.

        The noted state decides, since an owner may have withdrawn the job since. A file that was
        copied before the note of a running job shows that job by its state alone.
        """
        noted, begun = _among("noted", _BEFORE_FRAMES), _among("state", _BEGUN)
        query = f"SELECT id FROM jobs WHERE NOT {noted} OR {begun}"
        return frozenset(self._read(query, *_BEFORE_FRAMES, *_BEGUN, into=lambda row: row[0]))

    def unreported(self) -> tuple[Job, ...]:
        """Return the jobs whose state changed since :meth:`note`, oldest first."""
        return self._jobs_where("noted <> state")

    def note(self, job: Job) -> None:
        """Remember that this state of a job is in the audit file."""
        with self._write() as connection:
            connection.execute("UPDATE jobs SET noted = ? WHERE id = ?", (job.state, job.id))

    def convict(self, fingerprint: str, silo: str, job: str, offence: str) -> None:
        """Keep the first conviction of a party."""
        with self._write() as connection:
            connection.execute(_CONVICT, (fingerprint, silo, job, offence))

    def convicted(self) -> dict[str, str]:
        """Return the offence of each convicted party, by fingerprint."""
        query = "SELECT fingerprint, offence, job FROM convictions ORDER BY fingerprint"
        text = "{} of job {}".format
        return dict(self._read(query, into=lambda row: (str(row[0]), text(*row[1:]))))

    def reinstate(self, silo: str) -> bool:
        """Forget the convictions of a silo by name; return False if there are none."""
        with self._write() as connection:
            gone = connection.execute("DELETE FROM convictions WHERE silo = ?", (silo,))
            return bool(gone.rowcount)

    def declined_since(self, seconds: float) -> int:
        """Return the number of declined jobs among those received in the last `seconds`."""
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        query = "SELECT count(*) FROM jobs WHERE state = ? AND received_at >= ?"
        values = (SiloState.DECLINED, since.isoformat(timespec="seconds"))
        with explained(self._name), self._reading:
            return int(self._reader.execute(query, values).fetchone()[0])

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
        query = "SELECT id FROM jobs WHERE {} AND noted = state ORDER BY seq DESC LIMIT -1 OFFSET ?"
        gone: list[str] = []
        with self._write() as connection:
            for states in ([SiloState.DECLINED], ended):
                old = connection.execute(query.format(_among("state", states)), (*states, keep))
                gone += [job for (job,) in old if job not in spare]
            connection.executemany("DELETE FROM jobs WHERE id = ?", [(job,) for job in gone])
        return len(gone)

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with explained(self._name), self._writing, transaction(self._writer) as connection:
            yield connection

    def _jobs_where(self, condition: str, *values: str) -> tuple[Job, ...]:
        return self._read(f"{_JOBS} WHERE {condition} ORDER BY seq", *values, into=Job._of)

    def _read(
        self, query: str, *values: str, into: Callable[[tuple[Any, ...]], _Answer]
    ) -> tuple[_Answer, ...]:
        """Return the converted rows; read only if something was written since."""
        with explained(self._name), self._reading:
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
            if version != self._version:
                self._version = version
                self._known.clear()
            if (query, values) not in self._known:
                rows = self._reader.execute(query, values)
                self._known[query, values] = tuple(map(into, rows))
            known: tuple[_Answer, ...] = self._known[query, values]
            return known
