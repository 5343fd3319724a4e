"""Limits on the rows that a caller may have scored, charged durably before any computation.

A caller with d + 1 scores knows a linear model of d entries. So only a limit below that protects
the weights from one caller; it does not protect them from callers that collude.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloister.core.errors import BudgetExceeded, PlanError
from cloister.privacy.database import explained, keep_private, open_sqlite

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
        keep_private(file)
        self._engine = open_sqlite(Path(file))
        with explained(self._name), self._engine.begin() as connection:
            connection.exec_driver_sql(_TABLE)

    def charge(self, caller: str, model: str, rows: int) -> None:
        """Charge rows to a caller, durably, or refuse all of them.

        Raises
        ------
        BudgetExceeded
            If the caller would exceed the limit; nothing is charged then.
        """
        with explained(self._name), self._engine.begin() as connection:
            # Within one transaction, so that two requests cannot both use the last rows.
            had = self._had(connection, caller, model)
            if had + rows <= self.rows:
                connection.exec_driver_sql(_CHARGE, (caller, model, rows))
                return
        raise BudgetExceeded(
            f"{caller!r} may have {self.rows} rows of this model scored and has had {had}, "
            f"so {rows} more are refused; ask its owner for a larger limit."
        )

    def left(self, caller: str, model: str) -> int:
        """Return the remaining number of rows of a caller."""
        with explained(self._name), self._engine.begin() as connection:
            return max(0, self.rows - self._had(connection, caller, model))

    @staticmethod
    def _had(connection: Any, caller: str, model: str) -> int:
        return connection.exec_driver_sql(_HAD, (caller, model)).scalar() or 0
