"""How many rows a caller may have scored: counted durably, before anything is computed.

A linear model of d columns is known to whoever has d + 1 scores, so a limit below that is the only
thing that keeps its weights from one caller; it does not keep them from callers who join.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import BudgetExceeded, PlanError
from cloister.privacy.database import explained, keep_private, open_sqlite


@dataclass(frozen=True)
class QueryLimit:
    """At most so many rows for each caller of each model, over all time.

    Parameters
    ----------
    rows : int, >= 1
        Rows of public batches, so a padded row counts.
    file : path
        An SQLite file, for its owner alone.

    Notes
    -----
    A charge is on the disk before the answer is made. Threads and processes may share a file.
    """

    rows: int
    file: Path | str
    _engine: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise PlanError(f"rows must be an integer >= 1, got {self.rows!r}.")
        keep_private(self.file)
        with explained(self._name):
            engine = open_sqlite(Path(self.file))
            with engine.begin() as connection:
                connection.exec_driver_sql(
                    "CREATE TABLE IF NOT EXISTS answered (caller TEXT NOT NULL, "
                    "model TEXT NOT NULL, n_rows INTEGER NOT NULL, PRIMARY KEY (caller, model))"
                )
        object.__setattr__(self, "_engine", engine)

    @property
    def _name(self) -> str:
        return f"the limit of queries {self.file}"

    def charge(self, caller: str, model: str, rows: int) -> None:
        """Count rows for a caller, or refuse all of them.

        Raises
        ------
        BudgetExceeded
            If the caller would have more rows than allowed; nothing is counted then.
        LedgerError
            If the file cannot be read or written.
        """
        with explained(self._name), self._engine.begin() as connection:
            had = self._answered(connection, caller, model)
            if had + rows <= self.rows:
                connection.exec_driver_sql(
                    "INSERT INTO answered VALUES (?, ?, ?) ON CONFLICT (caller, model) "
                    "DO UPDATE SET n_rows = n_rows + excluded.n_rows",
                    (caller, model, rows),
                )
                return
        raise BudgetExceeded(
            f"{caller!r} may have {self.rows} rows of this model scored and has had {had}, "
            f"so {rows} more are refused; ask its owner for a larger limit."
        )

    def left(self, caller: str, model: str) -> int:
        """Return how many rows a caller may still have scored."""
        with explained(self._name), self._engine.begin() as connection:
            return max(0, self.rows - self._answered(connection, caller, model))

    @staticmethod
    def _answered(connection: Any, caller: str, model: str) -> int:
        query = "SELECT n_rows FROM answered WHERE caller = ? AND model = ?"
        found = connection.exec_driver_sql(query, (caller, model)).scalar()
        return int(found or 0)
