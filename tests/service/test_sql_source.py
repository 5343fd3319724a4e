"""Records from PostgreSQL, whose types are not those of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy

from cloister.core.errors import DataError
from cloister.data import SqlQuery, read_source
from cloister.data.schema import Schema

RULES = Schema(
    dataset="ward",
    unit="who",
    max_rows=1,
    columns=[
        {"name": "a", "type": "number", "min": 0, "max": 10},
        {"name": "b", "type": "integer", "min": -5, "max": 5, "missing": 0.0},
        {"name": "c", "type": "boolean"},
    ],
)
TABLE = """
CREATE TABLE visits (a numeric, b bigint, c boolean, who numeric, id uuid, key bytea, d date);
INSERT INTO visits VALUES
  (1.50, 3, true, 7, '00000000-0000-0000-0000-000000000001', '\\x01', '2026-01-01'),
  (2, NULL, false, 7.0, '00000000-0000-0000-0000-000000000001', '\\x01', '2026-01-01'),
  ('NaN', 1, true, 8, '00000000-0000-0000-0000-000000000002', '\\x02', NULL),
  (9.75, 9223372036854775807, true, 9, '00000000-0000-0000-0000-000000000003', '\\x03', NULL);
"""


@pytest.fixture
def url(new_database: Callable[[], str]) -> str:
    import psycopg

    made = new_database()
    with psycopg.connect(made.replace("+psycopg", "")) as connection:
        connection.execute(TABLE)
    return made


@pytest.mark.parametrize("who", ["who", "id", "key"])
def test_postgresql_reads_as_a_file_of_the_same_rows(url: str, tmp_path: Path, who: str) -> None:
    file = tmp_path / "ward.csv"
    file.write_text(
        "a,b,c,who\n1.5,3,true,7\n2,,false,7\nNaN,1,true,8\n9.75,9223372036854775807,true,9\n"
    )
    query = SqlQuery(url, f'SELECT a, b, c, {who} AS "who" FROM visits ORDER BY visits.who, a')
    read = np.concatenate(list(read_source(query, RULES, chunk_rows=2, memory_limit=0)))
    assert np.array_equal(read, np.concatenate(list(read_source(file, RULES))))
    assert len(read) == 2  # one row of 7, none of 8


def test_the_server_keeps_the_rows_and_gives_them_chunk_by_chunk(url: str) -> None:
    import psycopg

    asked: list[tuple[bool, int]] = []

    def note(_: Any, cursor: Any, *rest: Any) -> None:
        options = rest[2].execution_options
        asked.append((isinstance(cursor, psycopg.ServerCursor), options["max_row_buffer"]))

    query = SqlQuery(url, "SELECT a, b, c, who FROM visits")
    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    try:
        list(read_source(query, RULES, chunk_rows=2, memory_limit=0))
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)
    assert asked == [(True, 1), (True, 2), (True, 2)]  # the header, the first pass, another


def test_a_column_of_another_type_is_missing_cells(url: str) -> None:
    query = SqlQuery(url, "SELECT d AS a, b, c, who FROM visits WHERE who::text LIKE '7%'")
    assert list(read_source(query, RULES)) == []


def test_the_words_of_the_server_stay_with_it(url: str) -> None:
    query = SqlQuery(url, "SELECT d::text::int AS a, b, c, who FROM visits")
    with pytest.raises(DataError, match="failed: DataError") as caught:
        read_source(query, RULES)
    assert "2026-01" not in str(caught.value)  # bare digits could be in the database's name


def test_nothing_can_be_changed_by_a_query(url: str) -> None:
    with pytest.raises(DataError, match="failed: ProgrammingError"):
        read_source(SqlQuery(url, "DELETE FROM visits RETURNING a, b, c, who"), RULES)
