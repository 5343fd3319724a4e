"""``DPSynthesiser``: look-alike records in the words and units of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from cloister.app.jobs import JobResult
from cloister.core.arrays import Floats, Integers
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.data.schema import Column, Schema
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import SiloData, plain_schema
from cloister.protocol.task import Task
from cloister.tasks.preparation.discretise import Discretise
from cloister.tasks.preparation.pipeline import Pipeline
from cloister.tasks.synthesis.junction import Clique, Measured, Tree, drawn
from cloister.tasks.synthesis.synthesise import NOT_PEOPLE, Synthesise

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True, eq=False, repr=False)
class DPSynthesiser(PrivateEstimator):
    """Records that look like those of the silos, drawn from noisy tables alone.

    A column of numbers is cut into bins: at public `edges`, or at private quantiles, which take a
    tenth of the budget.

    Parameters
    ----------
    structure : {"pairs", "target", "star", "independent"}
        Which tables are measured: of the pairs that belong together; of these with the target, for
        records that a classifier is trained on; of each column with the target; of columns alone.
    target : str, optional
        The column of structure "target" or "star".
    edges : mapping of a column to numbers, optional
        Public inner edges of the bins of columns of numbers, data units.
    ordered : sequence of str
        Columns whose categories have an order.
    random_state : int
        Public; of the draws.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`. `nominal_n` is needed.

    Attributes
    ----------
    provenance_ : dict
        What was spent, which tables were measured, and with how much noise.

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

    structure: str = field(default="pairs", kw_only=False)
    target: str | None = None
    edges: Mapping[str, Sequence[float]] | None = None
    ordered: Sequence[str] = ()
    random_state: Any = 0

    def _options(self, data: SiloData) -> dict[str, Any]:
        """Return the options of the task, or the steps where columns of numbers are cut first."""
        own = super()._options(data)
        before = Synthesise.steps_before(data.schema.public, own)
        return {"steps": [*before, (Synthesise.name, own)]} if before else own

    def _task_of(self, options: dict[str, Any]) -> tuple[type[Task], dict[str, Any]]:
        return (Pipeline if "steps" in options else Synthesise), options

    @classmethod
    def _own_parameters(cls, result: JobResult) -> dict[str, Any] | None:
        task = _synthesis(result)[0]
        return {"structure": task.structure} if isinstance(task, Synthesise) else None

    def _keep(self, result: JobResult) -> None:
        super()._keep(result)
        self.provenance_ = provenance_of(result)

    def sample(self, rows: int | None = None, *, random_state: int | None = None) -> pd.DataFrame:
        """Return look-alike records; local, costs nothing.

        Parameters
        ----------
        rows : int, optional
            `nominal_n` if not given; never the number of records of a silo.
        random_state : int, optional
            Public; without it the plan's, so that every silo draws the same.
        """
        return records_of(self._released(), self._schema, rows, random_state)

    @property
    def _schema(self) -> Schema:
        given = self.bounds
        return given if isinstance(given, Schema) else plain_schema(given, self.plan_.columns, None)

    def intervals(self, columns: str | Sequence[str]) -> pd.DataFrame:
        """Return the noisy numbers of records in the cells of a table, with both intervals.

        They are of the measured table itself, not of records that were drawn: ``count`` and
        ``share``, each with ``_low`` and ``_high`` of the noise and the ends of the population
        interval. A PlanError is raised where no measured table has all the columns: what look-alike
        records say of others comes from the model, whose error nobody knows.
        """
        import pandas as pd

        from cloister.tasks.tables.inference import count_interval, share_interval

        names, at, table = self._together(columns)
        task, _ = _synthesis(self._released())
        labels = [task.labels[j] for j in at]
        found = count_interval(table.values, table.noise).named("count")
        found |= share_interval(table.values, table.noise, None).named("share")
        every = pd.MultiIndex.from_product(labels, names=names)
        index = every if len(names) > 1 else every.get_level_values(0)
        return pd.DataFrame({name: part.ravel() for name, part in found.items()}, index)

    def interval_of(
        self,
        statistic: Callable[[pd.DataFrame], float],
        columns: str | Sequence[str],
        draws: int = 20,
    ) -> pd.Series[float]:
        """Return a statistic of look-alike records, with its population interval.

        By the parametric bootstrap: other records are drawn from the model, their tables get noise
        as the released ones did, and the model is fitted again. Costs no privacy, but time.

        Parameters
        ----------
        statistic : function
            From a table of look-alike records of `columns` to a number.
        columns : str or sequence of str
            What it looks at: measured together, and not numbers; a PlanError is raised elsewhere.
            How numbers lie inside their bins was not measured.
        draws : int, >= 2
            Of the bootstrap.

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
        numbers = [one.name for one in schema.columns if not one.public.levels]
        if inside := [name for name in names if name in numbers]:
            raise PlanError(
                f"columns must be categories or booleans, got {inside[0]!r}: how its numbers lie "
                "inside their bins was not measured; ask for its bins with 'intervals', or for a "
                "mean with 'tabulate'."
            )
        task, results = _synthesis(result)
        tree, rows = task.tree(results), round(results["total"][0])
        alone = Tree(tree.shape(at), (tuple(range(len(at))),), (-1,))

        def value(laws: Sequence[Floats]) -> float:
            rng = public_generator("synthesise", "statistic", task.public_seed)
            levels = drawn(alone, [tree.marginal(laws, at)], rows, rng)
            return float(statistic(_in_words(result, schema, at, levels)))

        centre = value(tree.split(results["law"]))
        others = [value(laws) for laws in task.refits(results, draws)]
        half = stdtrit(draws - 1, 0.975) * np.std(others, ddof=1)
        # No cell of a law is below 0, so that rare ones are too large in the model, and larger yet
        # in what is fitted again: both ends hold with that bias and without it.
        ends = np.array([centre, 2 * centre - np.mean(others)])
        kinds = ("value", *(f"population_{end}" for end in ("low", "high")))
        return pd.Series([centre, ends.min() - half, ends.max() + half], kinds)

    def _together(self, columns: str | Sequence[str]) -> tuple[list[str], Clique, Measured]:
        """Return the table of columns that has the least noise; refuse those never together."""
        names = [columns] if isinstance(columns, str) else list(columns)
        task, results = _synthesis(self._released())
        reaching = self._own_columns
        if strange := [name for name in names if name not in reaching]:
            raise PlanError(f"columns must be of the release, got {strange[0]!r}.")
        at = tuple(reaching.index(name) for name in names)
        held = [one for one in task.measured(results) if set(at) <= set(one.columns)]
        if not held:
            raise PlanError(
                f"columns {', '.join(names)} were not measured together, so that no interval of "
                "theirs is known; ask for a table of them with 'tabulate'."
            )
        return names, at, min((one.over(at) for one in held), key=lambda one: one.noise)


def records_of(
    result: JobResult, schema: Schema, rows: int | None = None, seed: int | None = None
) -> pd.DataFrame:
    """Return look-alike records in the words and units of a schema; see `DPSynthesiser.sample`."""
    task, results = _synthesis(result)
    levels = task.draw(results, rows, seed)
    return _in_words(result, schema, range(task.n_features), levels, seed)


def _in_words(
    result: JobResult,
    schema: Schema,
    columns: Sequence[int],
    levels: Integers,
    seed: int | None = None,
) -> pd.DataFrame:
    """Return records of some columns, given by levels, in the words and units of a schema."""
    import pandas as pd

    task, _ = _synthesis(result)
    rng = public_generator("synthesise", "values", task.public_seed if seed is None else seed)
    edges, every = _edges_of(result), schema.select(result.plan.columns).columns
    steps = result.plan.grid.half_range / result.plan.grid.one
    found: dict[str, Any] = {}
    for j, own in zip(columns, levels.T, strict=True):
        column = every[j]
        if column.public.levels:
            words = (False, True) if column.type == "boolean" else column.categories
            kind = bool if column.type == "boolean" else object
            found[column.name] = np.array(words, dtype=kind)[own]
        else:
            found[column.name] = _inside(column, edges[j], own, float(steps[j]), rng)
    return pd.DataFrame(found)


def provenance_of(result: JobResult) -> dict[str, Any]:
    """Return what was spent on look-alike records, and what was measured for them."""
    task, results = _synthesis(result)
    names = result.plan.columns
    budget = result.plan.budget
    tables = [
        {"columns": tuple(names[j] for j in one.columns), "noise": float(one.noise)}
        for one in task.measured(results)
    ]
    return {
        "note": NOT_PEOPLE,
        "epsilon": result.epsilon(),
        "delta": budget.delta if budget else 0.0,
        "seed": task.public_seed,
        "measured": tables,
    }


def _synthesis(result: JobResult) -> tuple[Synthesise, Mapping[str, Floats]]:
    """Return the task of look-alike records, and what it released."""
    task = result.plan.task
    if isinstance(task, Pipeline):
        last = len(task.steps) - 1
        return cast(Synthesise, task.steps[last]), task.results_of(last, result.results)
    return cast(Synthesise, task), result.results


def _edges_of(result: JobResult) -> dict[int, Floats]:
    """Return where the bins of each column of numbers begin, and the last one ends; data units."""
    plan, found = result.plan, {}
    task, _ = _synthesis(result)
    low, half, one = plan.grid.low, plan.grid.half_range, plan.grid.one
    for j, walls in enumerate(task.walls):
        if walls:
            inner = np.array(walls) / one * half[j] + plan.grid.centre[j]
            found[j] = np.array([low[j], *inner, plan.grid.high[j]])
    for step in getattr(plan.task, "steps", ()):
        if isinstance(step, Discretise):
            found |= dict(zip(step.used, result.results["discretise.edges"], strict=True))
    return found


def _inside(
    column: Column, edges: Floats, bins: Integers, step: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Return a value for each record from inside its bin: of integers, one of them."""
    low, high, part = edges[bins], edges[bins + 1], rng.random(len(bins))
    values = low + part * (high - low)
    if column.type == "integer":  # records are rounded to the grid, so an edge may lie beside one
        first, last = np.ceil(low - step / 2), np.ceil(high - step / 2) - 1
        last = np.where(bins == len(edges) - 2, np.floor(column.max), last)
        among = first + np.floor(part * (last - first + 1))
        values = np.where(last >= first, among, np.rint((low + high) / 2))
        return np.clip(values, np.ceil(column.min), np.floor(column.max)).astype(np.int64)
    if column.type == "date":
        years = np.floor(values)
        first_day = (years.astype(np.int64) - 1970).astype("M8[Y]")
        begin, end = first_day.astype("M8[D]"), (first_day + 1).astype("M8[D]")
        days = (values - years) * (end - begin).astype(np.int64)
        return np.asarray(begin + np.floor(days).astype(np.int64))
    return np.asarray(values)
