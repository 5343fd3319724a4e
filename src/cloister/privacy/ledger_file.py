"""The file of a ledger: its tables, queries, creation and migration.

The meaning of entries and the rules of charges are in :mod:`cloister.privacy.ledger`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from cloister.core.errors import LedgerError
from cloister.core.files import sync_folder
from cloister.core.randomness import new_key, new_nonce
from cloister.core.sqlite import connect, explained, transaction
from cloister.privacy.chain import (
    BEFORE_FIRST,
    FORMAT,
    Entry,
    SignedStatement,
    State,
    canonical,
    link,
)

# An answer that is the frame of a round is stored once, as that round. `statements` has the newest
# statement of each peer in each job. `claims` has statements of this owner that peers showed and
# that the ledger lacks.
# `tasks` are notes for the owner, outside the chain; a file of an earlier version lacks the table.
TASKS = "tasks (job TEXT NOT NULL PRIMARY KEY, task TEXT NOT NULL)"
TABLES = (
    "entries (seq INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "frames (job TEXT NOT NULL, round INTEGER NOT NULL, frame BLOB NOT NULL, "
    "PRIMARY KEY (job, round))",
    "answers (job TEXT NOT NULL, number INTEGER NOT NULL, digest BLOB NOT NULL, "
    "request BLOB NOT NULL, answer BLOB, round INTEGER, tag BLOB NOT NULL, "
    "PRIMARY KEY (job, number), UNIQUE (job, digest))",
    "secrets (job TEXT NOT NULL PRIMARY KEY, secret BLOB NOT NULL)",
    "statements (fingerprint TEXT NOT NULL, job TEXT NOT NULL, height INTEGER NOT NULL, "
    "text TEXT NOT NULL, signature BLOB NOT NULL, public BLOB NOT NULL, "
    "PRIMARY KEY (fingerprint, job))",
    "claims (head TEXT NOT NULL, job TEXT NOT NULL, text TEXT NOT NULL, "
    "signature BLOB NOT NULL, public BLOB NOT NULL, PRIMARY KEY (head, job))",
    "own_heads (seq INTEGER NOT NULL, fingerprint TEXT NOT NULL, head TEXT NOT NULL, "
    "signature BLOB NOT NULL, PRIMARY KEY (seq, fingerprint))",
    "owner (format INTEGER NOT NULL, key BLOB NOT NULL)",
    TASKS,
)
# The third trigger also refuses INSERT OR REPLACE and gaps.
TRIGGERS = {
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
        ("answers", "update", "UPDATE ON answers"),
        ("secrets", "update", "UPDATE ON secrets"),
        ("own_heads", "update", "UPDATE ON own_heads"),
        ("own_heads", "delete", "DELETE ON own_heads"),
    )
}


def utc_now() -> datetime:
    """Return the time; the only use of the clock, so that tests can replace it."""
    return datetime.now(UTC)


def text_of(time: datetime) -> str:
    """Return a time as text, in the form of entries."""
    return time.isoformat(timespec="seconds")


def _insert(table: str, columns: str, verb: str = "INSERT") -> str:
    """Return the SQL statement that inserts a row, with values in the order of columns."""
    marks = ", ".join("?" for _ in columns.split(", "))
    return f"{verb} INTO {table} ({columns}) VALUES ({marks})"


_ANSWER, _SIGNED = "number, round, request, answer, tag", "text, signature, public"
_NEWER = ", ".join(f"{name} = excluded.{name}" for name in ("height", *_SIGNED.split(", ")))
ONE_FRAME = "SELECT frame FROM frames WHERE job = ? AND round = ?"
ALL_FRAMES = "SELECT job, round, frame FROM frames"
INSERT_FRAME = _insert("frames", "job, round, frame")
ENTRIES_FROM = "SELECT seq, body, hash FROM entries WHERE seq >= ? ORDER BY seq"
INSERT_ENTRY = _insert("entries", "seq, body, hash")
ONE_ANSWER = f"SELECT {_ANSWER} FROM answers WHERE job = ? AND digest = ?"
ANSWERS_OF = f"SELECT {_ANSWER} FROM answers WHERE job = ? ORDER BY number"
ANY_ANSWER = "SELECT 1 FROM answers WHERE job = ? LIMIT 1"
NEXT_NUMBER = "SELECT COALESCE(MAX(number) + 1, 0) FROM answers WHERE job = ?"
INSERT_ANSWER = _insert("answers", "job, number, digest, request, answer, round, tag")
JOBS_WITH_ANSWERS = "SELECT DISTINCT job FROM answers"
ONE_SECRET = "SELECT secret FROM secrets WHERE job = ?"
ALL_SECRETS = "SELECT job, secret FROM secrets"
INSERT_SECRET = _insert("secrets", "job, secret")
STATEMENTS_ABOVE = (
    f"SELECT {_SIGNED} FROM statements WHERE fingerprint = ? AND height > ? ORDER BY height, job"
)
ALL_STATEMENTS = f"SELECT {_SIGNED} FROM statements ORDER BY fingerprint, height, job"
PUT_STATEMENT = (
    f"{_insert('statements', f'fingerprint, job, height, {_SIGNED}')} "
    f"ON CONFLICT (fingerprint, job) DO UPDATE SET {_NEWER} "
    "WHERE excluded.height > statements.height"
)
ALL_CLAIMS = f"SELECT {_SIGNED} FROM claims ORDER BY job, head"
INSERT_CLAIM = _insert("claims", f"head, job, {_SIGNED}", "INSERT OR IGNORE")
FORGET_CLAIMS = "DELETE FROM claims"
ALL_OWN_HEADS = "SELECT seq, fingerprint, head, signature FROM own_heads ORDER BY seq, fingerprint"
LAST_OWN_HEAD = "SELECT seq, head FROM own_heads ORDER BY seq DESC LIMIT 1"
HEADS_SIGNED_BY = "SELECT head FROM own_heads WHERE fingerprint = ?"
INSERT_OWN_HEAD = _insert("own_heads", "seq, fingerprint, head, signature", "INSERT OR IGNORE")
ALL_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
ALL_TASKS = "SELECT job, task FROM tasks"
HAS_TASKS = "SELECT 1 FROM sqlite_master WHERE name = 'tasks'"
INSERT_TASK = _insert("tasks", "job, task", "INSERT OR IGNORE")
OF_JOBS = ("frames", "answers", "secrets")  # tables outside the chain, kept until a job ends


def read_entries(connection: sqlite3.Connection, first: int = 1) -> Generator[Entry, None, None]:
    """Yield the entries of the chain in order, from the number `first`."""
    for seq, body, digest in connection.execute(ENTRIES_FROM, (first,)):
        _check_types((seq, int), (body, str), (digest, str))
        yield Entry(seq, body, digest)


def read_statements(
    connection: sqlite3.Connection, query: str, values: tuple[Any, ...] = ()
) -> tuple[SignedStatement, ...]:
    """Return the statements that a query selects."""
    rows = connection.execute(query, values).fetchall()
    for text, signature, public in rows:
        _check_types((text, str), (signature, bytes), (public, bytes))
    return tuple(SignedStatement(*row) for row in rows)


def _check_types(*values: tuple[Any, type]) -> None:
    """Raise for a value of another type than this version writes."""
    # SQLite stores any value in any column, whatever type the column declares.
    if not all(type(value) is wanted for value, wanted in values):
        raise LedgerError("the file was changed: a value has another type; restore its copy.")


def insert_entry(
    connection: sqlite3.Connection, seq: int, previous: str, kind: str, **fields: Any
) -> None:
    """Append an entry to the chain."""
    body = canonical({"kind": kind, "at": text_of(utc_now()), **fields})
    connection.execute(INSERT_ENTRY, (seq, body, link(body, previous)))


def create(path: Path) -> None:
    """Create a ledger at ``path``, unless another process created one meanwhile."""

    def write(fresh: Path) -> None:
        with closing(connect(fresh, log=True)) as connection, transaction(connection):
            initialise(connection)

    build(path, write)


def build(path: Path, write: Callable[[Path], None]) -> bool:
    """Create a complete ledger at ``path``; return False if the path already exists.

    It is built under another name and then linked, so that an incomplete or empty file is never
    used as a ledger.
    """
    fresh = path.with_name(f".{path.name}.{new_nonce()}.new")
    try:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        write(fresh)
        try:
            # A link, unlike a rename, never replaces an existing file.
            os.link(fresh, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(
            f"ledger {str(path)!r} cannot be made: {error.strerror}; choose a writable folder on "
            "a local disk."
        ) from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):  # the last three exist after an error only
            fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file atomically: after a crash it has the old content or the new one."""
    fresh = path.with_name(f".{path.name}.{new_nonce()}.new")
    try:
        with open(fresh, "xb", opener=partial(os.open, mode=0o600)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or the name could be durable before its content
        os.replace(fresh, path)
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(
            f"{str(path)!r} cannot be written: {error.strerror}; check the folder and its disk."
        ) from error
    finally:
        fresh.unlink(missing_ok=True)


def head_file(path: Path) -> Path:
    """Return the file next to a ledger that has its newest head."""
    return path.with_name(f"{path.name}.head")


def head_line(state: State, head: str) -> bytes:
    """Return the content of that file: a head and its height."""
    return f"{head} {state.heights[head]}\n".encode()


def overwrite(path: Path, content: bytes) -> None:
    """Write a small file whose content never gets shorter; create it atomically.

    A later write is in place and not flushed. A power loss may bring an earlier content back.
    """
    try:
        with open(path, "r+b") as file:
            file.write(content)
    except FileNotFoundError:
        replace_file(path, content)
    except OSError as error:
        raise LedgerError(
            f"{str(path)!r} cannot be written: {error.strerror}; check the folder and its disk."
        ) from error


def _make_tables(connection: sqlite3.Connection) -> None:
    """Create the tables and triggers that are missing."""
    for table in TABLES:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    # A file of an older format already has some of them.
    existing = dict(connection.execute(ALL_TRIGGERS))
    for name, trigger in TRIGGERS.items():
        if name not in existing:
            connection.execute(trigger)


def initialise(connection: sqlite3.Connection) -> None:
    """Create the tables and the first entry."""
    _make_tables(connection)
    connection.execute(_insert("owner", "format, key"), (FORMAT, new_key()))
    # The nonce makes heads of equal histories differ, and a head a hiding commitment.
    insert_entry(connection, 1, BEFORE_FIRST, "ledger", format=FORMAT, nonce=new_nonce())


def read_owner(connection: sqlite3.Connection, path: Path | None) -> tuple[int, bytes]:
    """Return format and key of a ledger. Raise a LedgerError if the file is not a ledger."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'owner'").fetchone():
        raise LedgerError(f"{str(path)!r} is not a ledger; give another path or remove the file.")
    format, key = connection.execute("SELECT format, key FROM owner").fetchone()
    return format, key


def owner_key(connection: sqlite3.Connection, path: Path | None) -> bytes:
    """Return the key of a ledger of this version's format."""
    format, key = read_owner(connection, path)
    if format > FORMAT:
        raise LedgerError(
            f"ledger {str(path)!r} has format {format}, but this version reads formats up "
            f"to {FORMAT}; use a newer version."
        )
    if format < FORMAT:
        raise LedgerError(
            f"ledger {str(path)!r} has format {format}, but this version needs format {FORMAT}; "
            "stop all programs that use it and run 'cloister budget migrate' on it."
        )
    return key


def migrate(path: str | os.PathLike[str]) -> bool:
    """Convert a ledger file to this version's format, in one transaction without loss.

    Returns
    -------
    bool
        False if the file already had that format.

    Raises
    ------
    LedgerError
        If the file is not a ledger, is newer than this version, is in use for too long, or its
        chain does not verify.

    Notes
    -----
    Tables are added, and no entry changes. Earlier versions then refuse the file. Heads of peers
    in format 2 are no longer used; the peers' next statements replace them.
    """
    file = Path(os.path.abspath(path))
    if not file.is_file():
        raise LedgerError(f"ledger {str(file)!r} does not exist; check its path.")
    with (
        explained(f"ledger {str(file)!r}"),
        closing(connect(file)) as connection,
        transaction(connection),
    ):
        format, _ = read_owner(connection, file)
        if format >= FORMAT:
            owner_key(connection, file)
            return False
        state = State()
        for entry in read_entries(connection):
            state.apply(entry)
        # Earlier versions wrote no file of the head; without it, charges are those of a plain copy.
        if not (beside := head_file(file)).exists():
            overwrite(beside, head_line(state, state.head))
        # The trigger forbids this change, and is created again below.
        connection.execute("DROP TRIGGER IF EXISTS owner_update")
        connection.execute("UPDATE owner SET format = ?", (FORMAT,))
        _make_tables(connection)
    return True
