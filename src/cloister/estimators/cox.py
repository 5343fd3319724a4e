"""``DPCox`` and ``DPCoxApproximate``: private Cox regression over a table or over silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cloister.app.release import Release
from cloister.core.arrays import Floats, Results
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.estimators.base import Explained, PrivateEstimator
from cloister.protocol.task import Task
from cloister.tasks.survival.cox import Cox
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.tasks.survival.usable_cells import REASONS


def _require_schema(model: PrivateEstimator) -> None:
    # Plain bounds have no booleans.
    if not isinstance(model.bounds, Schema):
        raise PlanError(
            "bounds must be a Schema with the columns of time, event and covariates, got "
            f"{type(model.bounds).__name__}."
        )


@dataclass(kw_only=True, eq=False, repr=False)
class DPCox(PrivateEstimator):
    """Differentially private Cox regression of up to three covariates, with hazard ratios.

    Parameters
    ----------
    time, event, covariates, strata, tau, nominal_events
        As for :class:`~cloister.tasks.survival.cox.Cox`; columns by name, and all other columns are
        covariates by default. `nominal_events` is a public number, half of `nominal_n` by default;
        never take it from the records.
    bounds : Schema
        A schema with a column of numbers, a boolean, and covariates. Numbers, categories and strata
        have at most 18 combinations, with 4 or more for a number.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    names_ : ndarray of str, shape (p,)
        Names of coefficients: a numeric column, or ``column=category`` against the first category.
    coef_, hazard_ratios_ : ndarray of shape (p,)
        For one data unit, or against the first category. Not a number if not known.
    confidence_intervals_, population_intervals_ : ndarray of shape (p, 2)
        Ends of 95 % intervals of `hazard_ratios_`, for the noise alone, and with sampling. Those of
        numeric columns are approximate.
    reasons_ : ndarray of str, shape (p,)
        Why a hazard ratio is not known, or an empty text.
    effect_changes_ : ndarray of bool, shape (p,)
        True if the hazard ratio changes with time, and the value is an average.
    hazard_ratios_early_, hazard_ratios_late_ : ndarray of shape (p,)
        For the first and the second half of the events.
    wald_p_ : float
        P-value of the test that all known hazard ratios are 1, which accounts for the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPCox, Schema
    >>> rng = np.random.default_rng(0)
    >>> treated = rng.random(5000) < 0.5
    >>> months = rng.exponential(np.where(treated, 60, 40))
    >>> table = {"treated": treated, "months": np.minimum(months, 50), "died": months < 50}
    >>> schema = Schema(
    ...     dataset="trial",
    ...     unit="row",
    ...     columns=[
    ...         {"name": "months", "type": "number", "min": 0, "max": 60},
    ...         {"name": "died", "type": "boolean"},
    ...         {"name": "treated", "type": "boolean"},
    ...     ],
    ... )
    >>> model = DPCox(epsilon=1.0, bounds=schema, time="months", event="died", nominal_n=5000)
    >>> import pandas as pd
    >>> bool(0.55 < model.fit(pd.DataFrame(table)).hazard_ratios_[0] < 0.77)
    True
    """

    _task: ClassVar[type[Task]] = Cox

    time: str
    event: str
    covariates: Sequence[str] = ()
    strata: str | None = None
    tau: float | None = None
    nominal_events: int | None = None

    _check = _require_schema

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        results, task = result.results, self._own_task
        assert isinstance(task, Cox)
        self.names_ = np.array(task.names, dtype=object)
        self._set({"coef_": "coef", "hazard_ratios_": "hazard_ratio"})
        self.hazard_ratios_early_ = results["hazard_ratio_early"]
        self.hazard_ratios_late_ = results["hazard_ratio_late"]
        self.confidence_intervals_ = _ends(results, "")
        self.population_intervals_ = _ends(results, "_population")
        self.reasons_ = np.array([REASONS[int(code)] for code in results["reason"]], dtype=object)
        self.effect_changes_ = np.asarray(results["effect_changes"] > 0)
        self.wald_p_ = float(results["wald_p"][0])


@dataclass(kw_only=True, eq=False, repr=False)
class DPCoxApproximate(PrivateEstimator):
    """Approximate hazard ratios of many covariates; use :class:`DPCox` for up to three.

    Parameters
    ----------
    time, event, nominal_events, covariates, tau
        As for :class:`~cloister.tasks.survival.cox_approximate.CoxApproximate`; columns by name,
        and all other columns are covariates by default. `nominal_events` is a public number; never
        take it from the records.
    bounds : Schema
        A schema with a column of numbers, a boolean, and covariates with at most 10 coefficients.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    names_ : ndarray of str, shape (p,)
        Names of coefficients: a numeric column, or ``column=category`` against the first category.
    coef_, hazard_ratios_ : ndarray of shape (p,)
        For one data unit, or against the first category. Not a number if not known.
    confidence_intervals_, population_intervals_ : ndarray of shape (p, 2)
        Ends of 95 % intervals of `hazard_ratios_`, for the noise alone, and with sampling.
    far_values_ : ndarray of bool, shape (p,)
        True for a number whose far values may put the hazard ratio outside its interval.
    wald_p_ : float
        P-value of the test that all known hazard ratios are 1, which accounts for the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPCoxApproximate, Schema
    >>> rng = np.random.default_rng(0)
    >>> age = rng.uniform(20, 80, 5000)
    >>> months = rng.exponential(60 * np.exp(-0.02 * (age - 50)))
    >>> table = {"age": age, "months": np.minimum(months, 40), "died": months < 40}
    >>> schema = Schema(
    ...     dataset="trial",
    ...     unit="row",
    ...     columns=[
    ...         {"name": "months", "type": "number", "min": 0, "max": 60},
    ...         {"name": "died", "type": "boolean"},
    ...         {"name": "age", "type": "number", "min": 20, "max": 80},
    ...     ],
    ... )
    >>> model = DPCoxApproximate(
    ...     epsilon=1.0, bounds=schema, time="months", event="died", nominal_n=5000,
    ...     nominal_events=2500,
    ... )
    >>> import pandas as pd
    >>> bool(1.01 < model.fit(pd.DataFrame(table)).hazard_ratios_[0] < 1.03)
    True
    """

    _task: ClassVar[type[Task]] = CoxApproximate
    _reasons: ClassVar[Mapping[str, str]] = {**Explained._reasons, **CoxApproximate.absent}

    time: str
    event: str
    nominal_events: int
    covariates: Sequence[str] = ()
    tau: float | None = None

    _check = _require_schema

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        results, task = result.results, self._own_task
        assert isinstance(task, CoxApproximate)
        self.names_ = np.array(task.names, dtype=object)
        self._set({"coef_": "coef", "hazard_ratios_": "hazard_ratio"})
        self.confidence_intervals_ = _ends(results, "")
        self.population_intervals_ = _ends(results, "_population")
        self.far_values_ = np.asarray(results["far_values"] > 0)
        self.wald_p_ = float(results["wald_p"][0])


def _ends(results: Results, kind: str) -> Floats:
    """Return the ends of intervals of hazard ratios; shape (p, 2)."""
    ends = [results[f"hazard_ratio{kind}_{side}"] for side in ("low", "high")]
    return np.stack(ends, axis=1)
