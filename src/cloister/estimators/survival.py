"""``DPKaplanMeier`` and ``DPLogRank``: survival curves and tests over tables or silos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.display import ENDS
from cloister.core.errors import PlanError
from cloister.estimators.base import PrivateEstimator
from cloister.protocol.task import Task
from cloister.tasks.survival.survival import Survival

if TYPE_CHECKING:
    import pandas as pd

# Suffixes of the results with the ends of each kind of interval.
_KINDS = {"noise": ("_low", "_high"), "population": ENDS}
_CURVES, _STATED = ("survival", "cumulative_hazard"), ("stated_survival", "restricted_mean")
_NUMBERS = ("median", "rate", "rate_ratio")


@dataclass(kw_only=True, eq=False, repr=False)
class DPKaplanMeier(PrivateEstimator):
    """Survival curves, medians and incidence rates of groups, under one budget.

    Parameters
    ----------
    time, event, by : str
        Columns with the follow-up time, a boolean for the event at its end, and optionally the
        groups, each with a separate curve.
    tau : float, optional
        The public horizon of all curves; the largest time by default.
    at : sequence of float
        Times at which shares and restricted means are stated; quarters of the horizon by default.
    bounds : Schema
        A schema with a column of numbers from 0 and a boolean. The largest time should be above the
        longest follow-up, because a record at the bound counts as followed beyond it. Times that
        are integers, or have a `step`, are kept as they are.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    survival_, cumulative_hazard_ : DataFrame
        The share without the event, by Kaplan and Meier, and minus its logarithm. One row for each
        public time and one column for each group. NaN if too few records are at risk for the noise.
    stated_survival_, restricted_mean_ : DataFrame
        The share at the times of `at`, and the mean time without the event up to each of them.
    median_, rate_, rate_ratio_ : Series
        Values of each group. A median is infinite if it is not reached. A rate is the number of
        events per unit of time. Ratios are relative to the first group.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from cloister import DPKaplanMeier, Schema
    >>> rng = np.random.default_rng(0)
    >>> months, followed = rng.exponential(20, 5000), rng.uniform(10, 50, 5000)
    >>> table = {"months": np.minimum(months, followed), "died": months < followed}
    >>> columns = [
    ...     {"name": "months", "type": "number", "min": 0, "max": 60},
    ...     {"name": "died", "type": "boolean"},
    ... ]
    >>> schema = Schema(dataset="trial", unit="row", columns=columns)
    >>> model = DPKaplanMeier(
    ...     time="months", event="died", tau=40, epsilon=1.0, bounds=schema, nominal_n=5000
    ... )
    >>> bool(12 < model.fit(pd.DataFrame(table)).median_["all records"] < 16)
    True
    """

    _task: ClassVar[type[Task]] = Survival

    time: str
    event: str
    by: str | None = None
    tau: float | None = None
    at: Sequence[float] = ()

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        for name in (*_CURVES, *_STATED):
            setattr(self, f"{name}_", self._curves(name))
        for name in _NUMBERS:
            # With the groups as index, which the results do not have.
            setattr(self, f"{name}_", self.interval(of=name)["value"])

    def interval(self, kind: str = "population", *, of: str = "survival") -> pd.DataFrame:
        """Return values with their 95 % intervals.

        Parameters
        ----------
        kind : {"population", "noise"}
            Intervals for the population of the records, or for the value without noise.
        of : {"survival", "cumulative_hazard", "stated_survival", "restricted_mean", "median", \
"rate", "rate_ratio"}
            The first four have one row for each time and columns (group, end). The others have one
            row for each group; ratios are relative to the first group.
        """
        import pandas as pd

        names = [of + end for end in ("", *_KINDS.get(kind, ()))]
        if len(names) < 3 or of not in (*_CURVES, *_STATED, *_NUMBERS):
            raise PlanError(
                "kind must be noise or population, and of must be one of "
                f"{', '.join((*_CURVES, *_STATED, *_NUMBERS))}, got {kind!r} and {of!r}."
            )
        ends = ("value", "low", "high")
        if of == "cumulative_hazard":  # the upper end of the share is the lower end of the hazard
            names[1:] = names[:0:-1]
        if of not in _NUMBERS:
            curves = {end: self._curves(name) for end, name in zip(ends, names, strict=True)}
            joined = pd.concat(curves, axis=1).swaplevel(axis=1)
            return joined[[(group, end) for group in self._groups for end in ends]]
        values = {end: self.result_.results[name] for end, name in zip(ends, names, strict=True)}
        # The first group has no ratio to itself.
        return pd.DataFrame(values, self._groups[of == "rate_ratio" :])

    def predict(self, times: Any) -> pd.DataFrame:
        """Return the share without the event at some times; NaN if it is not known.

        A share holds from one public time to the next.
        """
        import pandas as pd

        at, known = np.atleast_1d(np.asarray(times, dtype=np.float64)), self.survival_
        place = np.searchsorted(known.index, at, side="right")
        outside = ~((at >= 0) & (at <= cast(Survival, self._own_task).tau))
        shares: dict[str, Floats] = {
            str(group): np.where(outside, np.nan, np.append(1.0, curve)[place])
            for group, curve in known.items()
        }
        return pd.DataFrame(shares, pd.Index(at, name=self.time))

    @property
    def _groups(self) -> list[str]:
        return list(cast(Survival, self._own_task).groups)

    def _curves(self, name: str) -> pd.DataFrame:
        """Return values by time and group; hazards follow from shares."""
        import pandas as pd

        results = self.result_.results
        times = results["at" if name.startswith(_STATED) else "times"]
        values = results[name.replace("cumulative_hazard", "survival")]
        if name.startswith("cumulative_hazard"):
            with np.errstate(divide="ignore"):  # the hazard of a share of 0 is infinite
                values = -np.log(values)
        return pd.DataFrame(values.T, pd.Index(times, name=self.time), self._groups)


@dataclass(kw_only=True, eq=False, repr=False)
class DPLogRank(DPKaplanMeier):
    """The log-rank test for a difference of survival curves of groups, with the curves.

    Its variance includes the noise, so that noise alone does not make a difference significant.

    Parameters
    ----------
    time, event, by, tau, at, bounds
        As for :class:`DPKaplanMeier`; `by` is required.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    statistic_, p_value_ : float
        Chi-square with `degrees_` degrees of freedom; NaN if no test was possible.
    degrees_ : int
    survival_, cumulative_hazard_, stated_survival_, restricted_mean_, median_, rate_, rate_ratio_
        As of :class:`DPKaplanMeier`.
    """

    # Required here: a test needs groups.
    by: str = field()

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self.statistic_, self.p_value_ = (
            # A model without groups has no test, and old models have an empty one.
            float(np.append(result.results.get(name, []), np.nan)[0])
            for name in ("log_rank", "log_rank_p")
        )
        self.degrees_ = len(self._groups) - 1
