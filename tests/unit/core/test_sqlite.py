"""One rule for every SQLite file of a party: private, durable, and refused in one sentence."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from cloister.core.errors import LedgerError
from cloister.core.sqlite import (
    check_pages,
    configure,
    connect,
    explained,
    keep_private,
    transaction,
)


def test_a_connection_keeps_to_the_rule(tmp_path: Path) -> None:
    wanted = {"synchronous": 2, "secure_delete": 1, "recursive_triggers": 1, "journal_mode": "wal"}
    with closing(connect(tmp_path / "a.db", log=True)) as connection:
        for pragma, value in wanted.items():
            assert connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)
        assert connection.isolation_level is None


def test_only_an_exclusive_connection_keeps_the_file(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        configure(connection, log=True, exclusive=True)
        assert connection.execute("PRAGMA locking_mode").fetchone() == ("exclusive",)
    with closing(connect(tmp_path / "a.db")) as connection:
        assert connection.execute("PRAGMA locking_mode").fetchone() == ("normal",)


def test_a_transaction_is_whole_or_nothing_and_locks_at_once(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "a.db", log=True)) as connection:
        with transaction(connection):
            connection.execute("CREATE TABLE t (x)")
            connection.execute("INSERT INTO t VALUES (1)")
        with suppress(ZeroDivisionError), transaction(connection):
            connection.execute("DELETE FROM t")
            raise ZeroDivisionError
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
        with closing(sqlite3.connect(tmp_path / "a.db", 0, isolation_level=None)) as other:
            with transaction(connection), pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.execute("BEGIN IMMEDIATE")


def test_a_file_and_its_log_are_closed_to_others(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.touch(mode=0o644)
    keep_private(file)
    with closing(connect(file, log=True)) as connection:
        connection.execute("CREATE TABLE t (x)")
        assert {path.name for path in tmp_path.iterdir()} == {"a.db", "a.db-wal", "a.db-shm"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    keep_private(tmp_path / "missing" / "a.db")  # SQLite says what is wrong


def test_damage_and_refusals_are_one_sentence_without_values(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database, but long enough to look like one" * 20)
    with (
        pytest.raises(LedgerError, match="the file x cannot be read or written"),
        explained("the file x"),
    ):
        connect(tmp_path / "a.db", log=True)
    with closing(connect(None)) as connection:
        check_pages(connection.execute, "it")
        connection.execute("CREATE TABLE t (x UNIQUE)")
        with pytest.raises(LedgerError) as caught, explained("it", way_out="ask"):
            connection.executemany("INSERT INTO t VALUES (?)", [("secret",), ("secret",)])
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith("ask.")


def test_errors_of_another_library_are_explained_where_it_is_named() -> None:
    with pytest.raises(LedgerError), explained("it", OSError):
        raise OSError("no")
    with pytest.raises(OSError, match="no"), explained("it"):
        raise OSError("no")


@pytest.mark.parametrize("byte", [0, 50, 4095])
def test_a_flipped_byte_of_the_first_page_is_found_or_changes_nothing(
    tmp_path: Path, byte: int
) -> None:
    file = tmp_path / "a.db"
    with closing(connect(file)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (1)")
    content = bytearray(file.read_bytes())
    content[byte] ^= 255
    file.write_bytes(content)
    try:
        with explained("it"), closing(connect(file)) as connection:
            check_pages(connection.execute, "it")
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    except LedgerError:
        assert os.path.exists(file)
