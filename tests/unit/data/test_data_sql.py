"""Records from a database: the same as from a file of the same rows, and no secret in an error."""

from __future__ import annotations

import csv
import sqlite3
import subprocess
import sys
import traceback
import tracemalloc
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister import data
from cloister.core.errors import DataError
from cloister.data import Records, SqlQuery, as_silos, check_file, header, read_source
from cloister.data.schema import Schema
from cloister.data.units import unit_name

KEY = bytes(range(32))
SECRET = "hunter2"
COLUMNS = [
    {"name": "a", "type": "number", "min": 0, "max": 10},
    {"name": "b", "type": "integer", "min": -5, "max": 5, "missing": "midpoint"},
    {"name": "c", "type": "boolean", "missing": 0.0},
]
ROW = Schema(dataset="ward", unit="row", columns=COLUMNS)
UNIT = Schema(dataset="ward", unit="who", max_rows=2, columns=COLUMNS)
ALL = "SELECT c, who, b, a, note FROM visits ORDER BY rowid"
Rows = Sequence[tuple[Any, Any, Any, Any]]
ROWS: Rows = [
    (1.5, 3, 1, "ann"),
    (None, 3, 1, "ann"),
    (0.1 + 0.2, None, 0, "bob"),
    (1e-300, -9, None, "ann"),
    (12, 4, 1, None),
    (2.25, 1.5, 1, "bob"),
    ("3.5", " 2 ", "yes", " ann "),
    ("n/a", 2, "no", "cid"),
    ("lots", 2, 2, "cid"),
    (1e308, 2**62, 1, ""),
    (7, 0, 1, 7),
    (7.0, 0, 1, 7.0),
    (7, 0, 1, "7"),
]


def database(path: Path, rows: Rows) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE IF EXISTS visits")
        connection.execute("CREATE TABLE visits (a, b, c, who, note)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, 'x')", rows)
    connection.close()
    return f"sqlite:///{path}"


def table(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["note", "who", "a", "b", "c"])
        # a file writes the units of one person in one way, whatever type a database gives them
        whole = [int(who) if isinstance(who, float) else who for *_, who in rows]
        writer.writerows(("x", who, a, b, c) for (a, b, c, _), who in zip(rows, whole, strict=True))
    return path


def chunks(records: Records) -> np.ndarray:
    return np.concatenate([*records, np.empty((0, records.n_features), np.int32)])


@pytest.mark.parametrize("schema", [ROW, UNIT])
@pytest.mark.parametrize("chunk_rows", [None, 1, 4])
@pytest.mark.parametrize("memory_limit", [data.MEMORY_LIMIT, 0])
def test_a_query_reads_as_a_file_of_the_same_rows(
    tmp_path: Path, schema: Schema, chunk_rows: int | None, memory_limit: int
) -> None:
    query = SqlQuery(database(tmp_path / "w.db", ROWS), ALL)
    file = table(tmp_path / "w.csv", ROWS)
    options = {"chunk_rows": chunk_rows, "memory_limit": memory_limit}
    read, expected = read_source(query, schema, **options), read_source(file, schema, **options)
    assert read.fingerprint(KEY) == expected.fingerprint(KEY)
    assert np.array_equal(chunks(read), chunks(expected))
    assert np.array_equal(chunks(read), chunks(read))  # as often as you like
    assert 0 < len(chunks(read)) < len(ROWS)
    assert max(len(chunk) for chunk in read) <= (chunk_rows or len(ROWS))


CELL = st.one_of(
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1, 11),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-6, 12),
    st.sampled_from(["", "1", " 2.5", "true", "NA", "x", "1e3", "0x10"]),
)
WHO = st.one_of(st.none(), st.sampled_from(["ann", "bob", "é", ""]), st.integers(0, 3))


@given(st.lists(st.tuples(CELL, CELL, CELL, WHO), max_size=20), st.sampled_from([ROW, UNIT]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_read_the_same_from_a_database_and_a_file(
    tmp_path: Path, rows: Rows, schema: Schema
) -> None:
    query = SqlQuery(database(tmp_path / "w.db", rows), ALL)
    file = table(tmp_path / "w.csv", rows)
    assert np.array_equal(
        chunks(read_source(query, schema, chunk_rows=3)), chunks(read_source(file, schema))
    )


def test_the_counts_of_a_check_are_those_of_the_file(tmp_path: Path) -> None:
    query = SqlQuery(database(tmp_path / "w.db", ROWS), ALL)
    found, expected = check_file(query, UNIT), check_file(table(tmp_path / "w.csv", ROWS), UNIT)
    assert found.columns == expected.columns
    assert (found.rows, found.used, found.beyond_max_rows, found.without_unit) == (
        expected.rows,
        expected.used,
        expected.beyond_max_rows,
        expected.without_unit,
    )
    assert found.source == f"database 'sqlite:///{tmp_path}/w.db'"


def test_the_unit_of_a_person_has_one_spelling_whatever_its_type() -> None:
    same = [7, 7.0, "7", " 7 ", b"7", Decimal("7.0"), Decimal("7"), memoryview(b"7")]
    assert {unit_name(value) for value in same} == {"7"}
    assert len({unit_name(v) for v in (b"\xff", b"\xfe", "x")}) == 3
    twice = [Decimal("1.50"), Decimal("1.5")]
    assert {unit_name(value) for value in twice} == {"1.5"}


def test_a_text_that_is_no_utf8_is_a_missing_cell_and_stops_nothing(tmp_path: Path) -> None:
    url = database(tmp_path / "w.db", ROWS[:1])
    with sqlite3.connect(tmp_path / "w.db") as connection:
        for _ in range(3):
            connection.execute(
                "INSERT INTO visits VALUES (CAST(x'ff31' AS TEXT), 1, 1, CAST(x'ff' AS TEXT), 'x')"
            )
        for _ in range(3):
            connection.execute("INSERT INTO visits VALUES (1, 1, 1, CAST(x'fe' AS TEXT), 'x')")
    connection.close()
    assert len(chunks(read_source(SqlQuery(url, ALL), ROW))) == 4
    assert len(chunks(read_source(SqlQuery(url, ALL), UNIT))) == 3  # two units, one has no value


def test_the_drivers_own_signs_in_a_query_are_left_alone(tmp_path: Path) -> None:
    url = database(tmp_path / "w.db", ROWS[:3])
    query = "SELECT a, b, c FROM visits WHERE who LIKE 'a%' AND note <> ':x' AND '%s' <> '?'"
    assert len(chunks(read_source(SqlQuery(url, query), ROW))) == 1


def test_an_empty_result_is_no_mistake(tmp_path: Path) -> None:
    url = database(tmp_path / "w.db", [])
    assert list(read_source(SqlQuery(url, ALL), ROW)) == []


def test_only_the_names_of_columns_are_asked_for_a_header(tmp_path: Path) -> None:
    query = SqlQuery(database(tmp_path / "w.db", ROWS), ALL)
    assert header(query) == ("c", "who", "b", "a", "note")
    assert as_silos([query, query]) == [query, query]


def test_a_query_cannot_change_the_database(tmp_path: Path) -> None:
    url = database(tmp_path / "w.db", ROWS)
    with pytest.raises(DataError, match="returns no rows; write a SELECT"):
        read_source(SqlQuery(url, "DELETE FROM visits"), ROW)
    returning = SqlQuery(url, "DELETE FROM visits RETURNING a, b, c")
    assert len(chunks(read_source(returning, ROW))) > 0
    connection = sqlite3.connect(tmp_path / "w.db")
    assert connection.execute("SELECT count(*) FROM visits").fetchone() == (len(ROWS),)
    connection.close()


def test_rows_that_change_while_a_job_runs_are_noticed(tmp_path: Path) -> None:
    url = database(tmp_path / "w.db", ROWS)
    records = read_source(SqlQuery(url, ALL), ROW, memory_limit=0)
    with sqlite3.connect(tmp_path / "w.db") as connection:
        connection.execute("UPDATE visits SET a = 2.5 WHERE a = 1.5")
    connection.close()
    with pytest.raises(DataError, match="changed while it was in use"):
        list(records)
    kept = read_source(SqlQuery(url, ALL), ROW)
    before = chunks(kept)
    database(tmp_path / "w.db", ROWS)
    assert np.array_equal(chunks(kept), before)  # small ones are kept, and frozen


def test_with_a_cache_a_query_runs_once_and_needs_no_order(tmp_path: Path) -> None:
    url = database(tmp_path / "w.db", [(i / 10, 1, 1, "x") for i in range(64)])
    query = SqlQuery(url, "SELECT a, b, c FROM visits ORDER BY random()")
    with pytest.raises(DataError, match=r"changed while it was in use.* cache_dir"):
        list(read_source(query, ROW, memory_limit=0))
    records = read_source(query, ROW, memory_limit=0, cache_dir=tmp_path)
    (tmp_path / "w.db").unlink()
    assert np.array_equal(chunks(records), chunks(records))
    assert len(chunks(records)) == 64


def test_a_large_table_is_read_in_chunks(tmp_path: Path) -> None:
    rows = [(i % 10, 1, 1, "x" * 100) for i in range(60_000)]
    query = SqlQuery(database(tmp_path / "w.db", rows), ALL)
    read_source(query, ROW, chunk_rows=10)  # imports
    del rows
    tracemalloc.start()
    records = read_source(query, ROW, chunk_rows=500, memory_limit=0)
    assert sum(len(chunk) for chunk in records) == 60_000
    assert tracemalloc.get_traced_memory()[1] < 4 << 20  # all of it takes 12 MiB and more
    tracemalloc.stop()


def test_a_driver_is_asked_for_rows_chunk_by_chunk(tmp_path: Path) -> None:
    query, asked = SqlQuery(database(tmp_path / "w.db", ROWS), ALL), list[Any]()

    def note(*about: Any) -> None:
        options = about[4].execution_options
        asked.append((options["stream_results"], options["max_row_buffer"]))

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    try:
        read_source(query, ROW, chunk_rows=3)
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)
    assert asked == [(True, 1), (True, 3)]  # the header, and the rows


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "query", "said"),
    [
        ("sqlite:///{}/w.db", "SELECT a, b FROM visits", "has no column 'c'"),
        ("sqlite:///{}/w.db", "SELECT a, b, c, c FROM visits", "more than one column 'c'"),
        ("sqlite:///{}/w.db", "SELECT a FROM x", "the query of database .* failed: Operational"),
        ("sqlite:///{}/w.db", "SELECT json(note) AS a, b, c FROM visits", "failed: Operational"),
        ("sqlite:///{}/w.db", "SELECT 1; SELECT 2", "failed: "),
        ("sqlite:///{}/none.db", "SELECT 1", "none.db' does not exist; check the url"),
        ("sqlite://", "SELECT 1", "does not exist; check the url"),
        (f"sqlite:///u:{SECRET}@w.db", "SELECT 1", "does not exist"),
        (f"nothing {SECRET}", "SELECT 1", "the database cannot be opened: ArgumentError"),
        (f"oracle9://u:{SECRET}@h/d", "SELECT 1", "cannot be opened: NoSuchModuleError"),
        (f"mysql+none://u:{SECRET}@h/d", "SELECT 1", "cannot be opened: NoSuchModuleError"),
        (f"mssql://u:{SECRET}@h/d", "SELECT 1", "cannot be opened: ModuleNotFoundError"),
        (f"postgresql+psycopg://u:{SECRET}@h:x/d", "SELECT 1", "cannot be opened: "),
        (
            f"postgresql+psycopg://u:{SECRET}@127.0.0.1:9/d?password={SECRET}",
            "SELECT 1",
            "the query of database 'postgresql://127.0.0.1/d' failed: OperationalError",
        ),
    ],
)
def test_an_error_tells_no_password_and_no_record(
    tmp_path: Path, url: str, query: str, said: str
) -> None:
    database(tmp_path / "w.db", [("TELLTALE", "TELLTALE", "TELLTALE", "TELLTALE")])
    if "psycopg" in url:
        pytest.importorskip("psycopg")
    with pytest.raises(DataError, match=said) as caught:
        list(read_source(SqlQuery(url.format(tmp_path), query), ROW))
    shown = str(caught.value)
    assert shown.endswith(".")
    if "///u:" not in url:  # there, it is the name of a file
        everything = shown + "".join(traceback.format_exception(caught.value))
        assert SECRET not in everything.replace(url, "")
    assert "TELLTALE" not in shown
    assert not (tmp_path / "none.db").exists()


def test_a_query_shows_neither_its_url_nor_its_words() -> None:
    shown = repr(SqlQuery(f"postgresql://u:{SECRET}@h/d", "SELECT x WHERE name = 'ann'"))
    assert SECRET not in shown
    assert "ann" not in shown


def test_pandas_and_sqlalchemy_are_imported_only_where_they_are_needed() -> None:
    code = (
        "import sys; from cloister.data import SqlQuery; SqlQuery('', ''); "
        "print(*sorted({'pandas', 'sqlalchemy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
