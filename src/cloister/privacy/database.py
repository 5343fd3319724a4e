"""How a party's SQLite files are opened: the ledger, a silo's jobs, a coordinator's jobs.

One rule for all of them. A file is for its owner alone. A commit is on the disk when it returns:
``synchronous=FULL``, with a write-ahead log. A transaction
takes the write lock when it begins, since to read, decide and then ask for the lock could fail
half-way; one that says that it only reads takes none. Whoever finds the file locked waits
`BUSY_SECONDS`. What is deleted is overwritten.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.core.errors import LedgerError

if TYPE_CHECKING:  # a ledger needs no engine, which takes half a second to load
    import sqlalchemy as sa

BUSY_SECONDS = 30
# Without recursive triggers INSERT OR REPLACE would delete rows past the triggers on DELETE.
PRAGMAS = ("synchronous=FULL", "secure_delete=ON", "recursive_triggers=ON")
_LOG = "journal_mode=WAL"
_READS = "reads"


def keys(**kinds: Any) -> list[sa.Column[Any]]:
    """Return the columns of these kinds that make up a table's primary key."""
    import sqlalchemy as sa

    return [sa.Column(name, kind, primary_key=True) for name, kind in kinds.items()]


def columns(**kinds: Any) -> list[sa.Column[Any]]:
    """Return columns of these kinds that are never empty."""
    import sqlalchemy as sa

    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def open_sqlite(file: Path, *, exclusive: bool = False, **pool: Any) -> sa.Engine:
    """Return an engine for a file.

    Parameters
    ----------
    exclusive : bool
        The first transaction takes the file, and the end of the process gives it back.
    **pool
        Which connections there are, as :func:`sqlalchemy.create_engine` takes it.
    """
    import sqlalchemy as sa

    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        hide_parameters=True,
        **pool,
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        _configure(connection, ["locking_mode=EXCLUSIVE"] * exclusive + [_LOG])

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        reads = connection.get_execution_options().get(_READS)
        driver = connection.connection.driver_connection  # in a tenth of the engine's time
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def connect(file: Path | None, *, log: bool = False) -> sqlite3.Connection:
    """Return a connection without an engine, whose transactions take a tenth of the time.

    Parameters
    ----------
    file : Path or None
        None keeps everything in memory.
    log : bool
        Whether to choose the write-ahead log, which the file keeps; not for a file that may be
        somebody else's.
    """
    name = ":memory:" if file is None else file
    connection = sqlite3.connect(name, BUSY_SECONDS, check_same_thread=False)
    _configure(connection, [_LOG] * log)
    return connection


def _configure(connection: sqlite3.Connection, first: Sequence[str]) -> None:
    connection.isolation_level = None  # who begins a transaction says how
    for pragma in (*first, *PRAGMAS):
        connection.execute(f"PRAGMA {pragma}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock, commit at the end, or take everything back after an error."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


def reader(engine: sa.Engine) -> sa.Engine:
    """Return the same engine for transactions that only read."""
    return engine.execution_options(**{_READS: True})


def keep_private(file: str | os.PathLike[str]) -> None:
    """Make a file, or close it to others: SQLite gives its log the same mode."""
    path = os.fspath(file)
    with suppress(OSError):  # what is wrong with it, SQLite says
        if not os.path.exists(path):  # to open and close it would take its locks from another
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        for part in (path, f"{path}-wal", f"{path}-shm"):
            if os.path.exists(part):
                os.chmod(part, os.stat(part).st_mode & 0o700)


def check_pages(execute: Callable[[str], Any], name: str) -> None:
    """Let SQLite look for damage in a file before anything is read from it."""
    (found,) = execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise LedgerError(f"{name} is damaged ({found}); restore its newest copy.")


@contextmanager
def explained(name: str, way_out: str = "check the file and its disk") -> Iterator[None]:
    """Turn what a database says into our own error."""
    try:
        yield
    except _refusals() as error:
        raise LedgerError(
            f"{name} cannot be read or written ({cause_of(error)}), so nothing may be released; "
            f"{way_out}."
        ) from error


def _refusals() -> tuple[type[Exception], ...]:
    """Return the errors of engines and drivers; called only when there is an error."""
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError, sqlite3.Error, UnicodeDecodeError


def cause_of(error: BaseException) -> str:
    """Return the first line of what the driver said, without the statement and its values."""
    if isinstance(error, UnicodeDecodeError):  # it would quote a byte
        return "text in it is not UTF-8"
    cause = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return cause.splitlines()[0].rstrip(".")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows keeps names durable by itself
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
