"""``DPTreatmentEffect``: the effect of a treatment, adjusted for covariates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cloister.app.release import Release
from cloister.core.display import Estimate
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.estimators.base import PrivateEstimator
from cloister.protocol.task import Task
from cloister.tasks.regression.effect import TreatmentEffect


@dataclass(kw_only=True, eq=False, repr=False)
class DPTreatmentEffect(PrivateEstimator):
    """Differentially private effect of a treatment on an outcome, adjusted for covariates.

    It is causal only if the covariates hold all common causes of treatment and outcome.

    Parameters
    ----------
    treatment, outcome, covariates, estimand, n_units
        As for :class:`~cloister.tasks.regression.effect.TreatmentEffect`; columns by name, and all
        other columns are covariates by default. `n_units` is a public number of records.
    bounds : Schema
        A schema with a treatment of two categories, and an outcome of numbers or two categories.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    ate_, ato_, naive_ : Estimate
        Average effect over all records, effect where both arms are likely, and the difference of
        means that is not adjusted, data units of the outcome. Each is a number with its 95 % noise
        interval, and in `population` the one with sampling. Not a number if noise hides a model.
    effect_ : Estimate
        That of `estimand`.
    names_ : ndarray of str, shape (p,)
        Covariates, one for each category.
    smd_before_, smd_after_ : Estimate of shape (p,)
        Standardised differences of both arms, without weights and with those of overlap; 95 %
        noise intervals.
    arm_sizes_ : ndarray of shape (2,)
        Noisy numbers of records without and with the treatment.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from cloister import DPTreatmentEffect, Schema
    >>> rng = np.random.default_rng(0)
    >>> ill = rng.uniform(-1, 1, 8000)
    >>> treated = rng.random(8000) < 0.5 + 0.3 * ill
    >>> score = treated - 2 * ill + rng.normal(0, 1, 8000)
    >>> table = {"ill": ill, "treated": treated, "score": score}
    >>> schema = Schema(
    ...     dataset="clinic",
    ...     unit="row",
    ...     columns=[
    ...         {"name": "ill", "type": "number", "min": -1, "max": 1},
    ...         {"name": "treated", "type": "boolean"},
    ...         {"name": "score", "type": "number", "min": -6, "max": 6},
    ...     ],
    ... )
    >>> model = DPTreatmentEffect(
    ...     epsilon=2.0, bounds=schema, treatment="treated", outcome="score", nominal_n=8000
    ... )
    >>> bool(abs(model.fit(pd.DataFrame(table)).effect_.value - 1) < 0.2)
    True
    """

    _task: ClassVar[type[Task]] = TreatmentEffect

    treatment: str
    outcome: str
    covariates: Sequence[str] = ()
    estimand: str = "ato"
    n_units: int | None = None

    def _check(self) -> None:
        # Plain bounds have no categories.
        if not isinstance(self.bounds, Schema):
            raise PlanError(
                "bounds must be a Schema with the columns of treatment, outcome and covariates, "
                f"got {type(self.bounds).__name__}."
            )

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        results, task = result.results, self._own_task
        assert isinstance(task, TreatmentEffect)
        self.ate_, self.ato_, self.naive_ = (
            Estimate.of(results, name)[0] for name in ("ate", "ato", "naive")
        )
        self.effect_ = self.ate_ if task.estimand == "ate" else self.ato_
        self.names_ = np.array(task.names, dtype=object)
        self.smd_before_ = Estimate.of(results, "smd_before")
        self.smd_after_ = Estimate.of(results, "smd_after")
        self.arm_sizes_ = results["arm_size"]
