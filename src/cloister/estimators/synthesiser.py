"""``DPSynthesiser``: look-alike records in the words and units of a schema."""

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
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        task, _ = synthesis_of(result.plan, result.results)
        return {"structure": task.structure} if isinstance(task, Synthesise) else None

    def _keep(self, result: Release) -> None:
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
        released = self._released()
        return records_of(released.plan, released.results, self._schema, rows, random_state)

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
        released = self._released()
        task, _ = synthesis_of(released.plan, released.results)
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
        task, results = synthesis_of(result.plan, result.results)
        tree, rows = task.tree(results), round(results["total"][0])
        alone = Tree(tree.shape(at), (tuple(range(len(at))),), (-1,))

        def value(laws: Sequence[Floats]) -> float:
            rng = public_generator("synthesise", "statistic", task.public_seed)
            levels = drawn(alone, [tree.marginal(laws, at)], rows, rng)
            return float(statistic(in_words(result.plan, result.results, schema, at, levels)))

        centre = value(tree.split(results["law"]))
        others = [value(laws) for laws in task.refits(results, draws)]
        half = stdtrit(draws - 1, 0.975) * np.std(others, ddof=1)
        # No cell of a law is below 0, so that rare ones are too large in the model, and larger yet
        # in what is fitted again: both ends hold with that bias and without it.
        ends = np.array([centre, 2 * centre - np.mean(others)])
        kinds = ("value", *(f"population_{end}" for end in ("low", "high")))
        return pd.Series([centre, ends.min() - half, ends.max() + half], kinds)

    def _together(self, columns: str | Sequence[str]) -> tuple[list[str], Clique, NoisyTable]:
        """Return the table of columns that has the least noise; refuse those never together."""
        names = [columns] if isinstance(columns, str) else list(columns)
        released = self._released()
        task, results = synthesis_of(released.plan, released.results)
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


def provenance_of(result: Release) -> dict[str, Any]:
    """Return what was spent on look-alike records, and what was measured for them."""
    task, results = synthesis_of(result.plan, result.results)
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
