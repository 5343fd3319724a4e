"""``DPTable``: counts, shares and means by group as tables of pandas, with intervals and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from cloister.arrays import Floats
from cloister.errors import PlanError
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import SiloData
from cloister.jobs import JobResult
from cloister.task import Task
from cloister.tasks.population import ENDS
from cloister.tasks.state import part_of
from cloister.tasks.tables.tabulate import Tabulate, fits, tested

if TYPE_CHECKING:
    import pandas as pd

_CELLS = ("counts", "shares", "row_shares")
_KINDS = {"noise": ("_low", "_high"), "population": ENDS}


@dataclass(kw_only=True, eq=False, repr=False)
class DPTable(PrivateEstimator):
    """Count records in tables of up to three columns, under one budget.

    Parameters
    ----------
    columns : str, sequence of str, or sequence of such sequences
        Of one table, or of several.
    means, by, edges, weights, minimum
        As for :class:`~cloister.tasks.tables.tabulate.Tabulate`: means of columns of numbers by
        group, the bins of columns of numbers, how the budget is divided, what reports leave out.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits
        As for every :class:`~cloister.estimators.base.PrivateEstimator`; categories need a schema.

    Attributes
    ----------
    counts_, shares_ : Series or DataFrame, or a dictionary of them for several tables
        Noisy counts, which may be below 0, and shares of the whole table, which sum to 1. Of two
        columns, a table as of ``pandas.crosstab``.
    means_ : DataFrame
        A row for each group and a column for each mean; absent without `means`.

    Examples
    --------
    >>> import pandas as pd
    >>> from cloister import DPTable, Schema
    >>> people = pd.DataFrame({"smokes": [0, 0, 1, 1] * 500, "ill": [0, 0, 0, 1] * 500})
    >>> columns = [{"name": name, "type": "boolean"} for name in people]
    >>> schema = Schema(dataset="ward", unit="row", columns=columns)
    >>> found = DPTable(["smokes", "ill"], epsilon=1.0, bounds=schema, nominal_n=2000).fit(people)
    >>> found.counts_.shape, bool(found.test("chi2")["p"] < 0.001)
    ((2, 2), True)
    """

    _task: ClassVar[type[Task]] = Tabulate

    columns: Any = field(kw_only=False)
    means: Sequence[str] = ()
    by: Sequence[str] = ()
    edges: Mapping[str, Sequence[float]] | None = None
    weights: Sequence[float] | None = None
    minimum: float = 5.0

    def _options(self, data: SiloData) -> dict[str, Any]:
        given = [self.columns] if isinstance(self.columns, str) else list(self.columns)
        one = bool(given) and all(isinstance(part, str) for part in given)
        return {**super()._options(data), "tables": [given] if one else given}

    def _keep(self, result: JobResult) -> None:
        super()._keep(result)
        self.counts_, self.shares_ = self._all("counts"), self._all("shares")
        self.__dict__.pop("means_", None)
        if self._own.means:
            self.means_ = self._means("means")

    @property
    def _own(self) -> Tabulate:
        return cast(Tabulate, self._own_task)

    def interval(
        self, kind: str = "population", *, of: str = "counts", table: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Return values with both ends of their 95 % intervals, a row for each cell.

        Parameters
        ----------
        kind : {"population", "noise"}
            Of what the records were drawn from, or of what they would say without noise.
        of : {"counts", "shares", "row_shares", "means"}
            Row shares are along the second column.
        table : sequence of str, optional
            The columns of one table, where there are several.
        """
        import pandas as pd

        if kind not in _KINDS:
            raise PlanError(f"kind must be one of {tuple(_KINDS)}, got {kind!r}.")
        names = dict(zip(("value", "low", "high"), (of, *(of + end for end in _KINDS[kind]))))
        if of == "means":
            return pd.DataFrame({end: self._means(name).stack() for end, name in names.items()})
        frame = self._frame(self._place(table))
        if of not in frame:
            raise PlanError(f"of must be counts, shares, row_shares or means, got {of!r}.")
        return frame[list(names.values())].set_axis(list(names), axis=1)

    def test(self, name: str = "chi2", *, table: Sequence[str] | None = None) -> pd.Series[Any]:
        """Return a test of a table of two columns; it knows the noise, and costs nothing.

        Parameters
        ----------
        name : {"chi2", "trend", "odds_ratio", "relative_risk"}
            Any difference; levels that rise together; ratios of tables of two levels by two.
        table : sequence of str, optional
            The columns of one table, where there are several.

        Returns
        -------
        Series
            ``statistic``, ``df``, ``p``; of a ratio ``value`` and the ends of both intervals.
        """
        import pandas as pd

        i = self._place(table)
        counts, noise = (self._result(i)[key] for key in ("counts", "noise"))
        if not fits(name, counts.shape):
            raise PlanError(f"test {name!r} does not fit a table of {counts.shape} cells.")
        found = tested(name, counts, float(noise[0]))
        keys = [key.removeprefix(name).strip("_") or "value" for key in found]
        return pd.Series([float(part[0]) for part in found.values()], keys, name=name)

    def to_frame(self) -> pd.DataFrame:
        """Return counts and shares of each cell with all ends; of several tables, one by one."""
        import pandas as pd

        frames = [self._frame(i) for i in range(len(self._own.tables))]
        if len(frames) == 1:
            return frames[0]
        flat = [f.set_axis([", ".join(np.atleast_1d(c)) for c in f.index]) for f in frames]
        return pd.concat(flat, keys=map(" by ".join, self._tables), names=["table", "cell"])

    @property
    def _tables(self) -> list[tuple[str, ...]]:
        return [tuple(self.plan_.columns[j] for j in table) for table in self._own.tables]

    def _place(self, table: Sequence[str] | None) -> int:
        tables = self._tables
        wanted = (table,) if isinstance(table, str) else tuple(table or ())
        if table is None and len(tables) == 1:
            wanted = tables[0]
        if wanted not in tables:
            raise PlanError(f"table must be one of {tables}, got {table!r}.")
        return tables.index(wanted)

    def _result(self, i: int) -> dict[str, Floats]:
        return part_of(self.result_.results, f"table_{i + 1}.")

    def _frame(self, i: int) -> pd.DataFrame:
        """Return all numbers of the cells of a table."""
        import pandas as pd

        found = {k: v.ravel() for k, v in self._result(i).items() if k.startswith(_CELLS)}
        return pd.DataFrame(found, self._index(self._own.tables[i]))

    def _index(self, table: Sequence[int]) -> pd.Index[Any]:
        import pandas as pd

        labels = [self._own.labels[j] for j in table]
        names = [self.plan_.columns[j] for j in table]
        if len(table) == 1:
            return pd.Index(labels[0], name=names[0])
        return pd.MultiIndex.from_product(labels, names=names) if table else pd.Index(["all"])

    def _all(self, of: str) -> Any:
        """Return a result of each table; of the only one, if there is just one."""
        found = {}
        for i, names in enumerate(self._tables):
            cells = self._frame(i)[of]
            found[names] = cells.unstack(sort=False) if len(names) == 2 else cells
        return next(iter(found.values())) if len(found) == 1 else found

    def _means(self, name: str) -> pd.DataFrame:
        import pandas as pd

        if name not in self.result_.results:
            raise PlanError("means are not in this release; fit with means.")
        names = [self.plan_.columns[j] for j in self._own.means]
        return pd.DataFrame(self.result_.results[name], self._index(self._own.by), names)
