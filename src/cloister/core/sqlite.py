"""SQLite files of a party: the ledger, a silo's jobs, a coordinator's jobs, a scorer's counts.

All files follow the same rules. Only the owner of a file can read it. A commit is durable when it
returns: ``synchronous=FULL``, with a write-ahead log. A transaction takes the write lock when it
begins, since a later request for the lock could fail. A connection waits for a lock for
`BUSY_SECONDS`. Deleted content is overwritten.
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
# Without recursive triggers, INSERT OR REPLACE deletes rows without the triggers on DELETE.
_PRAGMAS = ("synchronous=FULL", "secure_delete=ON", "recursive_triggers=ON")


def connect(file: Path | None, *, log: bool = False) -> sqlite3.Connection:
    """Open a file, or a database in memory if `file` is None.

    Parameters
    ----------
    log : bool
        Choose the write-ahead log, which the file keeps. Do not use it for another party's file.
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
    """Set the isolation, locking and durability of a connection.

    Parameters
    ----------
    exclusive : bool
        If True, the first transaction locks the file until the process ends.
    """
    connection.isolation_level = None  # the driver would begin transactions without the lock
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
    """Create a private file, or remove other users' access. SQLite's log gets the same mode."""
    path = os.fspath(file)
    with suppress(OSError):  # SQLite reports the error of the file
        if not os.path.exists(path):  # closing an open file would release SQLite's locks on it
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        for file_path in (path, f"{path}-wal", f"{path}-shm"):
            if os.path.exists(file_path):
                os.chmod(file_path, os.stat(file_path).st_mode & 0o700)


def check_pages(execute: Callable[[str], Any], name: str) -> None:
    """Raise a LedgerError if SQLite finds damage in a file, before anything is read from it."""
    (result,) = execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise LedgerError(f"{name} is damaged ({result}); restore its newest copy.")


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
    if isinstance(error, UnicodeDecodeError):  # its message would quote a byte of the file
        return "text in it is not UTF-8"
    cause = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return cause.splitlines()[0].rstrip(".")
