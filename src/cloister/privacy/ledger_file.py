"""The file of a ledger: its tables, what is asked of them, how it is made and migrated.

What the entries mean, and what may be charged, is in :mod:`cloister.privacy.ledger`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from cloister.errors import LedgerError
from cloister.privacy.chain import (
    BEFORE_FIRST,
    FORMAT,
    Entry,
    SignedStatement,
    State,
    canonical,
    link,
)
from cloister.privacy.database import columns, explained, keys, open_sqlite, sync_folder
from cloister.randomness import new_key, new_nonce

METADATA = sa.MetaData()
ENTRIES = sa.Table(
    "entries",
    METADATA,
    *keys(seq=sa.Integer),
    *columns(body=sa.Text, hash=sa.Text),
)
FRAMES = sa.Table(
    "frames",
    METADATA,
    *keys(job=sa.Text, round=sa.Integer),
    *columns(frame=sa.LargeBinary),
)
# An answer that is the frame of a round is kept once, as that round.
ANSWERS = sa.Table(
    "answers",
    METADATA,
    *keys(job=sa.Text, number=sa.Integer),
    *columns(digest=sa.LargeBinary, request=sa.LargeBinary),
    sa.Column("answer", sa.LargeBinary),
    sa.Column("round", sa.Integer),
    *columns(tag=sa.LargeBinary),
    sa.UniqueConstraint("job", "digest"),
)
SECRETS = sa.Table(
    "secrets",
    METADATA,
    *keys(job=sa.Text),
    *columns(secret=sa.LargeBinary),
)
_OF_SIGNED = {"text": sa.Text, "signature": sa.LargeBinary, "public": sa.LargeBinary}
# What peers said of their ledgers: the newest word of each in each job.
STATEMENTS = sa.Table(
    "statements",
    METADATA,
    *keys(fingerprint=sa.Text, job=sa.Text),
    *columns(height=sa.Integer, **_OF_SIGNED),
)
# What the owner signed and this ledger lacks, as peers showed it.
CLAIMS = sa.Table(
    "claims",
    METADATA,
    *keys(head=sa.Text, job=sa.Text),
    *columns(**_OF_SIGNED),
)
OWN_HEADS = sa.Table(
    "own_heads",
    METADATA,
    *keys(seq=sa.Integer, fingerprint=sa.Text),
    *columns(head=sa.Text, signature=sa.LargeBinary),
)
OWNER = sa.Table(
    "owner",
    METADATA,
    *columns(format=sa.Integer, key=sa.LargeBinary),
)
# The third trigger also stops INSERT OR REPLACE and gaps.
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
    """Return the time; the one place where the clock enters."""
    return datetime.now(UTC)


def text_of(time: datetime) -> str:
    """Return a time as entries write it."""
    return time.isoformat(timespec="seconds")


def _insert(table: sa.Table, verb: str = "INSERT") -> str:
    """Return the statement that puts a row into a table, its values in the order of columns."""
    names = ", ".join(column.name for column in table.columns)
    return f"{verb} INTO {table.name} ({names}) VALUES ({', '.join('?' for _ in table.columns)})"


# What each round needs is said to the driver itself, which takes a tenth of the time.
_ANSWER, _SIGNED = "number, round, request, answer, tag", "text, signature, public"
_NEWER = ", ".join(f"{name} = excluded.{name}" for name in ("height", *_SIGNED.split(", ")))
ONE_FRAME = "SELECT frame FROM frames WHERE job = ? AND round = ?"
INSERT_FRAME = _insert(FRAMES)
ENTRIES_FROM = "SELECT seq, body, hash FROM entries WHERE seq >= ? ORDER BY seq"
INSERT_ENTRY = _insert(ENTRIES)
ONE_ANSWER = f"SELECT {_ANSWER} FROM answers WHERE job = ? AND digest = ?"
ANSWERS_OF = f"SELECT {_ANSWER} FROM answers WHERE job = ? ORDER BY number"
NEXT_NUMBER = "SELECT COALESCE(MAX(number) + 1, 0) FROM answers WHERE job = ?"
INSERT_ANSWER = _insert(ANSWERS)
JOBS_WITH_ANSWERS = sa.select(ANSWERS.c.job).distinct()
ONE_SECRET = sa.select(SECRETS.c.secret).where(SECRETS.c.job == sa.bindparam("of_job"))
INSERT_SECRET = sa.insert(SECRETS)
ALL_SECRETS = sa.select(SECRETS)
STATEMENTS_ABOVE = (
    f"SELECT {_SIGNED} FROM statements WHERE fingerprint = ? AND height > ? ORDER BY height, job"
)
ALL_STATEMENTS = f"SELECT {_SIGNED} FROM statements ORDER BY fingerprint, height, job"
PUT_STATEMENT = (
    f"{_insert(STATEMENTS)} ON CONFLICT (fingerprint, job) DO UPDATE SET {_NEWER} "
    "WHERE excluded.height > statements.height"
)
ALL_CLAIMS = f"SELECT {_SIGNED} FROM claims ORDER BY job, head"
INSERT_CLAIM = _insert(CLAIMS, "INSERT OR IGNORE")
FORGET_CLAIMS = "DELETE FROM claims"
ALL_OWN_HEADS = sa.select(OWN_HEADS).order_by(OWN_HEADS.c.seq, OWN_HEADS.c.fingerprint)
LAST_OWN_HEAD = ALL_OWN_HEADS.order_by(None).order_by(OWN_HEADS.c.seq.desc()).limit(1)
HEADS_SIGNED_BY = sa.select(OWN_HEADS.c.head).where(OWN_HEADS.c.fingerprint == sa.bindparam("by"))
INSERT_OWN_HEAD = sa.insert(OWN_HEADS).prefix_with("OR IGNORE")
TRIGGER_NAMES = sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
OF_JOBS = (FRAMES, ANSWERS, SECRETS)  # what lies beside the chain until a job is over
ALL_FRAMES = sa.select(FRAMES.c.job, FRAMES.c.round, FRAMES.c.frame)


def run(connection: sa.Connection, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
    """Run a statement in the transaction of `connection`."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver.execute(statement, values)


def read_entries(connection: sa.Connection, first: int = 1) -> Iterator[Entry]:
    """Read the chain from an entry on, in order."""
    for seq, body, found in run(connection, ENTRIES_FROM, (first,)):
        _check_types((seq, int), (body, str), (found, str))
        yield Entry(seq, body, found)


def read_statements(
    connection: sa.Connection, query: str, values: tuple[Any, ...] = ()
) -> tuple[SignedStatement, ...]:
    """Read the statements that a query finds."""
    found = run(connection, query, values).fetchall()
    for text, signature, public in found:
        _check_types((text, str), (signature, bytes), (public, bytes))
    return tuple(SignedStatement(*row) for row in found)


def _check_types(*values: tuple[Any, type]) -> None:
    """Refuse what this version never wrote: SQLite keeps any value in any column."""
    if not all(type(value) is wanted for value, wanted in values):
        raise LedgerError("the file was changed: a value is of another kind; restore its copy.")


def insert_entry(
    connection: sa.Connection, seq: int, previous: str, kind: str, **fields: Any
) -> None:
    """Put one more entry on the chain."""
    body = canonical({"kind": kind, "at": text_of(utc_now()), **fields})
    run(connection, INSERT_ENTRY, (seq, body, link(body, previous)))


def open_engine(path: Path | None, *, new: bool = False) -> sa.Engine:
    """Return an engine with one connection, which the ledger's own lock guards."""
    return open_sqlite(path, log=new, poolclass=StaticPool)


def create(path: Path) -> None:
    """Put a new ledger at ``path``, or leave the one that somebody put there meanwhile."""

    def write(fresh: Path) -> None:
        engine = open_engine(fresh, new=True)
        try:
            with engine.begin() as connection:
                initialise(connection)
        finally:
            engine.dispose()

    build(path, write)


def build(path: Path, write: Callable[[Path], None]) -> bool:
    """Put a complete ledger at ``path``; return False if something is there already.

    It is built under another name and linked, so that a half-made or emptied file is never taken
    for a ledger.
    """
    fresh = path.with_name(f".{path.name}.{new_nonce()}.new")
    try:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        write(fresh)
        try:
            # A link, unlike a rename, never replaces what is there.
            os.link(fresh, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(
            f"ledger {str(path)!r} cannot be made: {error.strerror}; choose a folder on a local "
            "disk that you may write to."
        ) from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):  # all but the first after an error only
            fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file: after a crash it is the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{new_nonce()}.new")
    try:
        descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(
            f"{str(path)!r} cannot be written: {error.strerror}; check the folder and its disk."
        ) from error
    finally:
        fresh.unlink(missing_ok=True)


def initialise(connection: sa.Connection) -> None:
    """Make the tables and the first entry."""
    METADATA.create_all(connection)
    for trigger in TRIGGERS.values():
        connection.exec_driver_sql(trigger)
    connection.execute(sa.insert(OWNER), {"format": FORMAT, "key": new_key()})
    # The nonce keeps heads of equal histories apart, and makes a head a hiding commitment.
    insert_entry(connection, 1, BEFORE_FIRST, "ledger", format=FORMAT, nonce=new_nonce())


def read_owner(connection: sa.Connection, path: Path | None) -> sa.Row[int, bytes]:
    """Return format and key of a ledger, or say that it is none."""
    if not sa.inspect(connection).has_table("owner"):
        raise LedgerError(f"{str(path)!r} is not a ledger; give another path or remove the file.")
    return connection.execute(sa.select(OWNER.c.format, OWNER.c.key)).one()


def owner_key(connection: sa.Connection, path: Path | None) -> bytes:
    """Return the key of a ledger of this version's format."""
    owner = read_owner(connection, path)
    if owner.format > FORMAT:
        raise LedgerError(
            f"ledger {str(path)!r} has format {owner.format}, and this version knows formats up "
            f"to {FORMAT}; use a newer version."
        )
    if owner.format < FORMAT:
        raise LedgerError(
            f"ledger {str(path)!r} has format {owner.format}, and this version needs format "
            f"{FORMAT}; stop what uses it and run 'cloister ledger migrate' on it."
        )
    key: bytes = owner.key
    return key


def migrate(path: str | os.PathLike[str]) -> bool:
    """Bring a ledger file to this version's format, in one transaction; nothing is lost.

    Returns
    -------
    bool
        False if it had that format already.

    Raises
    ------
    LedgerError
        If the file is not a ledger, is newer than this version, is in use for too long, or its
        chain does not verify.

    Notes
    -----
    Tables are added, and no entry changes. Earlier versions refuse the file then. Heads of peers
    that format 2 kept are not asked for any more; the peers' next statements stand in for them.
    """
    file = Path(os.path.abspath(path))
    if not file.is_file():
        raise LedgerError(f"ledger {str(file)!r} does not exist; check its path.")
    engine = open_engine(file)
    try:
        with explained(f"ledger {str(file)!r}"), engine.begin() as connection:
            owner = read_owner(connection, file)
            if owner.format >= FORMAT:
                owner_key(connection, file)
                return False
            state = State()
            for entry in read_entries(connection):
                state.apply(entry)
            METADATA.create_all(connection)
            # It forbids just this change, and is made again below.
            connection.exec_driver_sql("DROP TRIGGER IF EXISTS owner_update")
            connection.execute(sa.update(OWNER).values(format=FORMAT))
            there = set(connection.execute(TRIGGER_NAMES).scalars())
            for name, trigger in TRIGGERS.items():
                if name not in there:
                    connection.exec_driver_sql(trigger)
    finally:
        engine.dispose()
    return True
