"""SQLite files of a party: the ledger, a silo's jobs, a coordinator's jobs, a scorer's counts.

One rule holds for all of them. Only the owner of a file can read it. A commit is durable when it
returns: ``synchronous=FULL``, with a write-ahead log. A transaction takes the write lock when it
begins: to read, decide and then ask for the lock could fail half-way. A connection waits for a lock
for `BUSY_SECONDS`. Deleted content is overwritten.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloister.core.errors import LedgerError

BUSY_SECONDS = 30
# Without recursive triggers INSERT OR REPLACE would delete rows past the triggers on DELETE.
_PRAGMAS = ("synchronous=FULL", "secure_delete=ON", "recursive_triggers=ON")


def connect(file: Path | None, *, log: bool = False) -> sqlite3.Connection:
    """Open a file, or a database in memory if `file` is None.

    Parameters
    ----------
    log : bool
        Choose the write-ahead log, which the file keeps; not for a file of somebody else.
    """
    name = ":memory:" if file is None else file
    connection = sqlite3.connect(name, BUSY_SECONDS, check_same_thread=False)
    try:
        configure(connection, log=log)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def configure(
    connection: sqlite3.Connection, *, log: bool = False, exclusive: bool = False
) -> None:
    """Set what a connection keeps to.

    Parameters
    ----------
    exclusive : bool
        The first transaction locks the file until the process ends.
    """
    connection.isolation_level = None  # who begins a transaction says how
    first = ["locking_mode=EXCLUSIVE"] * exclusive + ["journal_mode=WAL"] * log
    for pragma in (*first, *_PRAGMAS):
        connection.execute(f"PRAGMA {pragma}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Hold the write lock, commit at the end, or roll back after an error."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield connection


def keep_private(file: str | os.PathLike[str]) -> None:
    """Create a file, or close it to others. SQLite gives its log the same mode."""
    path = os.fspath(file)
    with suppress(OSError):  # SQLite reports what is wrong with the file
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
def explained(
    name: str, *refusals: type[Exception], way_out: str = "check the file and its disk"
) -> Iterator[None]:
    """Raise a LedgerError in place of an error of SQLite, or of another library's `refusals`."""
    kinds: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError, *refusals)
    try:
        yield
    except kinds as error:
        raise LedgerError(
            f"{name} cannot be read or written ({cause_of(error)}), so nothing may be released; "
            f"{way_out}."
        ) from error


def cause_of(error: BaseException) -> str:
    """Return the first line of a driver's message, without the statement and its values."""
    if isinstance(error, UnicodeDecodeError):  # it would quote a byte
        return "text in it is not UTF-8"
    cause = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return cause.splitlines()[0].rstrip(".")
