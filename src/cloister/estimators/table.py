"""``DPTable``: counts, shares and means by group as pandas tables, with intervals and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from cloister.app.release import Release
from cloister.core.display import ENDS
from cloister.core.errors import PlanError
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import SiloData
from cloister.protocol.task import Task
from cloister.tasks.state import part_of
from cloister.tasks.tables.inference import fits, outcome
from cloister.tasks.tables.tabulate import Tabulate

if TYPE_CHECKING:
    import pandas as pd

_KINDS = {"noise": ("_low", "_high"), "population": ENDS}


@dataclass(kw_only=True, eq=False, repr=False)
class DPTable(PrivateEstimator):
    """Count records in tables of up to three columns, under one budget.

    Parameters
    ----------
    columns : str, sequence of str, or sequence of such sequences
        Columns of one table, or of several.
    means, by, edges, weights, minimum
        As for :class:`~cloister.tasks.tables.tabulate.Tabulate`. They define means of numeric
        columns by group, bins of numeric columns, budget shares, and the smallest reported count.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`; categories need a schema.

    Attributes
    ----------
    counts_ : Series or DataFrame, or a dictionary of them for several tables
        Noisy counts, which may be negative. For two columns, a table as from ``pandas.crosstab``.

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

    columns: Any = field(default=(), kw_only=False)
    means: str | Sequence[str] = ()
    by: str | Sequence[str] = ()
    edges: Mapping[str, Sequence[float]] | None = None
    weights: Sequence[float] | None = None
    minimum: float = 5.0

    def _options(self, data: SiloData) -> dict[str, Any]:
        columns = [self.columns] if isinstance(self.columns, str) else list(self.columns)
        is_one_table = bool(columns) and all(isinstance(name, str) for name in columns)
        # One name may be a text, as in `columns`.
        named = {
            key: [name] for key in ("means", "by") if isinstance(name := getattr(self, key), str)
        }
        tables = [columns] if is_one_table else columns
        return {**super()._options(data), **named, "tables": tables}

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        counts = {names: self.to_frame(names)["counts"] for names in self._tables}
        # A level's order is that of the schema, which sorting would lose.
        shaped = {n: c.unstack(sort=False) if len(n) == 2 else c for n, c in counts.items()}
        self.counts_: Any = next(iter(shaped.values())) if len(shaped) == 1 else shaped

    def interval(
        self,
        kind: str = "population",
        *,
        of: str = "counts",
        table: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return values with their 95 % intervals, one row for each cell.

        Parameters
        ----------
        kind : {"population", "noise"}
            Intervals for the population of the records, or for the value without noise.
        of : {"counts", "shares", "row_shares"} or the name of a column in `means`
            Row shares are along the last column.
        table : str or sequence of str, optional
            The columns of one table, if there are several; "means" for the groups of means.
        """
        names = [self._own_columns[j] for j in cast(Tabulate, self._own_task).means]
        frame = self.to_frame("means" if of in names else self._tables[self._place(table)])
        if kind not in _KINDS or of not in frame:
            raise PlanError(
                f"kind must be one of {', '.join(_KINDS)}, and of must be counts, shares, "
                f"row_shares or a column of means, got {kind!r} and {of!r}."
            )
        ends = [of, *(of + end for end in _KINDS[kind])]
        return frame[ends].set_axis(["value", "low", "high"], axis=1)

    def test(
        self, name: str = "chi2", *, table: str | Sequence[str] | None = None
    ) -> pd.Series[Any]:
        """Return a test of a table of two columns, which accounts for the noise, at no cost.

        Parameters
        ----------
        name : {"chi2", "trend", "odds_ratio", "relative_risk"}
            Test for any difference, for a common trend of levels, or a ratio of a 2 by 2 table.
        table : sequence of str, optional
            The columns of one table, if there are several.

        Returns
        -------
        Series
            ``statistic``, ``df``, ``p``; for a ratio ``value`` and the ends of both intervals.
        """
        import pandas as pd

        result = part_of(self.result_.results, f"table_{self._place(table) + 1}.")
        if not fits(name, result["counts"].shape):
            raise PlanError(
                f"test {name!r} is not possible for a table of shape {result['counts'].shape}; "
                "choose another test."
            )
        values = outcome(name, result["counts"], float(result["noise"][0]))
        keys = [key.removeprefix(name).strip("_") or "value" for key in values]
        return pd.Series([float(value[0]) for value in values.values()], keys, name=name)

    def to_frame(self, table: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Return all numbers with all intervals, one row for each cell or each group of "means".

        If there are means or several tables, and none is named, the result has the numbers of the
        report.
        """
        import pandas as pd

        task, columns = cast(Tabulate, self._own_task), self._own_columns
        results = self.result_.results
        if table is None and (task.means or len(task.tables) != 1):
            return super().to_frame()
        if table == "means" and task.means:
            axes = task.by
            values = {
                columns[j] + end: means
                for end, groups in part_of(results, "means").items()
                for j, means in zip(task.means, groups.T, strict=True)
            }
        else:
            i = self._place(table)
            axes, result = task.tables[i], part_of(results, f"table_{i + 1}.")
            # Other results, such as tests, have one number for the whole table.
            values = {k: v.ravel() for k, v in result.items() if v.shape == result["counts"].shape}
        labels, names = [task.labels[j] for j in axes], [columns[j] for j in axes]
        if len(axes) == 1:
            return pd.DataFrame(values, pd.Index(labels[0], name=names[0]))
        cells = pd.MultiIndex.from_product(labels, names=names) if axes else pd.Index(["all"])
        return pd.DataFrame(values, cells)

    @property
    def _tables(self) -> list[tuple[str, ...]]:
        task = cast(Tabulate, self._own_task)
        return [tuple(self._own_columns[j] for j in table) for table in task.tables]

    def _place(self, table: str | Sequence[str] | None) -> int:
        tables = self._tables
        wanted = (table,) if isinstance(table, str) else tuple(table or ())
        # A single table need not be named.
        if table is None and len(tables) == 1:
            return 0
        if wanted not in tables:
            raise PlanError(f"table must be one of {tables}, got {table!r}.")
        return tables.index(wanted)
