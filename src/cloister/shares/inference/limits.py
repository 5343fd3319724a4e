"""Limits on the rows that a caller may have scored, charged durably before any computation.

A caller with d + 1 scores knows a linear model of d entries. So only a limit below that protects
the weights from one caller; it does not protect them from callers that collude.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloister.core.errors import BudgetExceeded, PlanError
from cloister.core.sqlite import connect, explained, keep_private, transaction

_TABLE = """CREATE TABLE IF NOT EXISTS answered (
    caller TEXT NOT NULL, model TEXT NOT NULL, n_rows INTEGER NOT NULL, PRIMARY KEY (caller, model)
)"""
_HAD = "SELECT n_rows FROM answered WHERE caller = ? AND model = ?"
_CHARGE = """INSERT INTO answered VALUES (?, ?, ?)
    ON CONFLICT (caller, model) DO UPDATE SET n_rows = n_rows + excluded.n_rows"""


class QueryLimit:
    """A lifetime limit of rows for each caller and model.

    Parameters
    ----------
    rows : int, >= 1
        Largest number of rows; padded rows of a batch count, too.
    file : path
        An SQLite file that only its owner can read; threads and processes may share it.

    Raises
    ------
    LedgerError
        Here and later, if the file cannot be read or written.
    """

    def __init__(self, rows: int, file: Path | str) -> None:
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise PlanError(f"rows must be an integer >= 1, got {rows!r}.")
        self.rows, self._name = rows, f"the limit of queries {file}"
        # All threads share one connection, which has one transaction at a time.
        self._lock = threading.Lock()
        keep_private(file)
        with explained(self._name):
            self._connection = connect(Path(file), log=True)
        with self._transaction() as connection:
            connection.execute(_TABLE)

    def charge(self, caller: str, model: str, rows: int) -> None:
        """Charge rows to a caller, durably, or refuse all of them.

        Raises
        ------
        BudgetExceeded
            If the caller would exceed the limit; nothing is charged then.
        """
        # Within one transaction, so that two requests cannot both use the last rows.
        with self._transaction() as connection:
            had = _had(connection, caller, model)
            if had + rows <= self.rows:
                connection.execute(_CHARGE, (caller, model, rows))
                return
        raise BudgetExceeded(
            f"{caller!r} may have {self.rows} rows of this model scored and has had {had}, "
            f"so {rows} more are refused; ask its owner for a larger limit."
        )

    def left(self, caller: str, model: str) -> int:
        """Return the remaining number of rows of a caller."""
        with self._transaction() as connection:
            return max(0, self.rows - _had(connection, caller, model))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with explained(self._name), self._lock, transaction(self._connection) as connection:
            yield connection


def _had(connection: sqlite3.Connection, caller: str, model: str) -> int:
    found = connection.execute(_HAD, (caller, model)).fetchone()
    return found[0] if found else 0
