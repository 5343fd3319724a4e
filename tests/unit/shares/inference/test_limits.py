from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloister.core.errors import BudgetExceeded, LedgerError, PlanError
from cloister.shares.inference.limits import QueryLimit


def test_a_caller_gets_its_rows_and_no_more(tmp_path: Path) -> None:
    limit = QueryLimit(10, tmp_path / "limit.db")
    limit.charge("a", "m", 7)
    with pytest.raises(BudgetExceeded, match="10 rows of this model scored and has had 7"):
        limit.charge("a", "m", 4)
    assert limit.left("a", "m") == 3  # a refusal counts nothing
    limit.charge("a", "m", 3)
    limit.charge("b", "m", 10)
    limit.charge("a", "other", 10)


def test_what_was_answered_outlives_the_process(tmp_path: Path) -> None:
    QueryLimit(10, tmp_path / "limit.db").charge("a", "m", 8)
    again = QueryLimit(10, tmp_path / "limit.db")
    assert again.left("a", "m") == 2
    with pytest.raises(BudgetExceeded):
        again.charge("a", "m", 3)
    assert (tmp_path / "limit.db").stat().st_mode & 0o077 == 0


def test_threads_together_get_no_more_than_one(tmp_path: Path) -> None:
    limit = QueryLimit(20, tmp_path / "limit.db")

    def ask(_: int) -> int:
        try:
            limit.charge("a", "m", 3)
        except BudgetExceeded:
            return 0
        return 3

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(24))) == 18


@pytest.mark.parametrize("rows", [0, True, 1.5])
def test_a_limit_is_a_whole_number(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(PlanError, match="rows must be an integer"):
        QueryLimit(rows, tmp_path / "limit.db")


def test_a_broken_file_answers_nobody(tmp_path: Path) -> None:
    (tmp_path / "limit.db").write_bytes(b"no database, but long enough to look like one" * 20)
    with pytest.raises(LedgerError):
        QueryLimit(10, tmp_path / "limit.db")
