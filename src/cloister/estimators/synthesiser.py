"""``DPSynthesiser``: synthetic records with the categories and units of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.data.schema import Schema
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import SiloData, plain_schema
from cloister.protocol.task import Task
from cloister.tasks.preparation.pipeline import Pipeline
from cloister.tasks.synthesis.junction import Clique, NoisyTable, Tree, drawn
from cloister.tasks.synthesis.lookalike import in_words, records_of, synthesis_of
from cloister.tasks.synthesis.synthesise import NOT_PEOPLE, Synthesise

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True, eq=False, repr=False)
class DPSynthesiser(PrivateEstimator):
    """Synthetic records similar to those of the silos, drawn from noisy tables alone.

    A numeric column is divided into bins, by public `edges` or by private quantiles, which take a
    tenth of the budget.

    Parameters
    ----------
    structure : {"pairs", "target", "star", "independent"}, optional
        The measured tables. "pairs": of pairs of dependent columns. "target": of these with the
        target, for records to train a classifier. "star": of each column with the target.
        "independent": of single columns. By default "pairs", or "independent" if noise would exceed
        the pairs.
    target : str, optional
        The column for structure "target" or "star".
    edges : mapping of a column to numbers, optional
        Public inner edges of the bins of numeric columns, data units.
    ordered : sequence of str
        Columns whose categories have an order.
    random_state : int
        Public seed of the draws.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`. `nominal_n` is required.

    Attributes
    ----------
    provenance_ : dict
        Epsilon and delta spent, and the measured tables with their noise.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from cloister import DPSynthesiser
    >>> age = np.random.default_rng(0).uniform(20, 80, 5000)
    >>> table = pd.DataFrame({"age": age, "income": 500 * age})
    >>> model = DPSynthesiser(epsilon=1.0, bounds=([0, 0], [100, 50_000]), nominal_n=5000)
    >>> alike = model.fit(table).sample(1000)
    >>> bool(alike["age"].corr(alike["income"]) > 0.9)
    True
    """

    _task: ClassVar[type[Task]] = Synthesise

    structure: str | None = field(default=None, kw_only=False)
    target: str | None = None
    edges: Mapping[str, Sequence[float]] | None = None
    ordered: Sequence[str] = ()
    random_state: Any = 0

    def _options(self, data: SiloData) -> dict[str, Any]:
        """Return the options of the task, or the steps if numeric columns are binned first."""
        options = super()._options(data)
        before = Synthesise.steps_before(data.schema.public, options)
        return {"steps": [*before, (Synthesise.name, options)]} if before else options

    def _task_of(self, options: dict[str, Any]) -> tuple[type[Task], dict[str, Any]]:
        return (Pipeline if "steps" in options else Synthesise), options

    @classmethod
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        # The synthesis may be the last step of a pipeline.
        task, _ = synthesis_of(result.plan, result.results)
        return {"structure": task.structure} if isinstance(task, Synthesise) else None

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self.provenance_ = provenance_of(result)

    def sample(self, rows: int | None = None, *, random_state: int | None = None) -> pd.DataFrame:
        """Return synthetic records; local, at no cost.

        Parameters
        ----------
        rows : int, optional
            Number of records, by default `nominal_n`; never the number of records of a silo.
        random_state : int, optional
            Public seed; by default that of the plan, so that every silo draws the same records.
        """
        released = self._released()
        return records_of(released.plan, released.results, self._schema, rows, random_state)

    @property
    def _schema(self) -> Schema:
        bounds = self.bounds
        if isinstance(bounds, Schema):
            return bounds
        return plain_schema(bounds, self.plan_.columns, None)

    def intervals(self, columns: str | Sequence[str]) -> pd.DataFrame:
        """Return the noisy numbers of records in the cells of a table, with both intervals.

        They come from the measured table, not from drawn records. The columns are ``count`` and
        ``share``, each with ``_low`` and ``_high`` of the noise and those of the population. A
        PlanError is raised if no measured table has all the columns. Synthetic records of other
        columns come from the model, whose error is unknown.
        """
        import pandas as pd

        from cloister.tasks.tables.inference import count_interval, share_interval

        names, at, table = self._together(columns)
        released = self._released()
        task, _ = synthesis_of(released.plan, released.results)
        # In the order of the requested columns.
        labels = [task.labels[j] for j in at]
        estimates = count_interval(table.values, table.noise).named("count")
        estimates |= share_interval(table.values, table.noise, None).named("share")
        cells = pd.MultiIndex.from_product(labels, names=names)
        index = cells if len(names) > 1 else cells.get_level_values(0)
        return pd.DataFrame({name: values.ravel() for name, values in estimates.items()}, index)

    def interval_of(
        self,
        statistic: Callable[[pd.DataFrame], float],
        columns: str | Sequence[str],
        draws: int = 20,
    ) -> pd.Series[float]:
        """Return a statistic of synthetic records, with its population interval.

        The interval comes from the parametric bootstrap. New records are drawn from the model,
        their tables get the noise of the released ones, and the model is fitted again. This takes
        time but no privacy budget.

        Parameters
        ----------
        statistic : function
            From a table of synthetic records of `columns` to a number.
        columns : str or sequence of str
            Columns that it uses. They must be measured together and not be numeric, else a
            PlanError is raised: the values of numbers inside their bins were not measured.
        draws : int, >= 2
            Number of bootstrap draws.

        Returns
        -------
        Series
            ``value``, ``population_low`` and ``population_high``.
        """
        import pandas as pd
        from scipy.special import stdtrit

        if draws < 2:
            raise PlanError(f"draws must be at least 2, got {draws}.")
        names, at, _ = self._together(columns)
        result, schema = self._released(), self._schema
        numeric = [column.name for column in schema.columns if not column.public.levels]
        if numbers := [name for name in names if name in numeric]:
            raise PlanError(
                f"columns must be categories or booleans, got {numbers[0]!r}, whose numbers inside "
                "a bin were not measured; use 'intervals' for its bins, or the task 'tabulate' for "
                "a mean."
            )
        task, results = synthesis_of(result.plan, result.results)
        tree, rows = task.tree(results), round(results["total"][0])
        single = Tree(tree.shape(at), (tuple(range(len(at))),), (-1,))

        def value(laws: Sequence[Floats]) -> float:
            # The same seed for each model, so that only the models differ.
            rng = public_generator("synthesise", "statistic", task.public_seed)
            levels = drawn(single, [tree.marginal(laws, at)], rows, rng)
            return float(statistic(in_words(result.plan, result.results, schema, at, levels)))

        centre = value(tree.split(results["law"]))
        others = [value(laws) for laws in task.refits(results, draws)]
        half = stdtrit(draws - 1, 0.975) * np.std(others, ddof=1)
        # Cells of a distribution are not negative, so rare cells are too large in the model, and
        # larger still after refitting. The interval covers both with and without this bias.
        ends = np.array([centre, 2 * centre - np.mean(others)])
        kinds = ("value", *(f"population_{end}" for end in ("low", "high")))
        return pd.Series([centre, ends.min() - half, ends.max() + half], kinds)

    def _together(self, columns: str | Sequence[str]) -> tuple[list[str], Clique, NoisyTable]:
        """Return the table with these columns and the least noise; raise if there is none."""
        names = [columns] if isinstance(columns, str) else list(columns)
        released = self._released()
        task, results = synthesis_of(released.plan, released.results)
        available = self._own_columns
        if unknown := [name for name in names if name not in available]:
            raise PlanError(f"columns must be some of {', '.join(available)}, got {unknown[0]!r}.")
        at = tuple(available.index(name) for name in names)
        tables = [table for table in task.measured(results) if set(at) <= set(table.columns)]
        if not tables:
            raise PlanError(
                f"columns {', '.join(names)} were not measured together, so their interval is "
                "unknown; release a table of them with 'tabulate'."
            )
        return names, at, min((table.over(at) for table in tables), key=lambda table: table.noise)


def provenance_of(result: Release) -> dict[str, Any]:
    """Return the budget of synthetic records and the tables measured for them."""
    task, results = synthesis_of(result.plan, result.results)
    names = result.plan.columns
    budget = result.plan.budget
    tables = [
        {"columns": tuple(names[j] for j in table.columns), "noise": float(table.noise)}
        for table in task.measured(results)
    ]
    return {
        "note": NOT_PEOPLE,
        "epsilon": result.epsilon(),
        "delta": budget.delta if budget else 0.0,
        "seed": task.public_seed,
        "measured": tables,
    }
