"""``DPNaiveBayes``: differentially private naive Bayes with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cloister.app.release import Release
from cloister.core.display import ENDS
from cloister.estimators.base import PrivateClassifier
from cloister.protocol.task import Task
from cloister.tasks.supervised.naive_bayes import NaiveBayes


@dataclass(kw_only=True, eq=False, repr=False)
class DPNaiveBayes(PrivateClassifier):
    """Differentially private naive Bayes over one table or over several silos.

    Parameters
    ----------
    numbers, bins, most_counts, smoothing
        As for :class:`~cloister.tasks.supervised.naive_bayes.NaiveBayes`: "binned" columns have a
        table of bins, "gaussian" ones a normal distribution, "counts" a multinomial distribution.
        Bins that do not differ beyond the noise are merged, and strong noise adds smoothing.
    prepare : sequence of (name, options), optional
        Preparation steps, such as ``[("standardise", {})]``, in one plan with one cost.
    epsilon, bounds, target, classes, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateClassifier`.

    Attributes
    ----------
    class_count_, class_count_half_width_ : ndarray of shape (n_classes,)
        Noisy numbers of records, which may be negative, and the half-width of their intervals.
    class_prior_, class_prior_low_, class_prior_high_ : ndarray of shape (n_classes,)
    feature_names_, feature_log_prob_ : ndarray of shape (n_cells,) and (n_classes, n_cells)
        Names of all cells of all tables, such as ``sex=Female`` and ``age 17 to 20``, and the
        logarithms of the probabilities that the model uses.
    feature_prob_, feature_prob_low_, feature_prob_high_ : ndarray of shape (n_classes, n_cells)
        Noisy share of each cell in its class, before smoothing.
    theta_, theta_low_, theta_high_, std_ : ndarray of shape (n_classes, n_columns), data units
        Means and standard deviations of the "gaussian" columns; absent if there are none.
    word_prob_, word_prob_low_, word_prob_high_ : ndarray of shape (n_classes, n_columns)
        Shares of the "counts" columns; absent if there are none.
    class_prior_population_low_, class_prior_population_high_, and so on
        Ends of population intervals of ``class_prior_``, ``feature_prob_`` and ``theta_``.

    Notes
    -----
    Intervals are 95 % confidence intervals (privacy noise only); population intervals also include
    sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPNaiveBayes
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 1000)
    >>> X = rng.normal(4 * y[:, None], 1, (2000, 2))
    >>> model = DPNaiveBayes(epsilon=1.0, bounds=(-5, 10), classes=[0, 1], nominal_n=2000)
    >>> bool(model.fit(X, y).score(X, y) > 0.95)
    True
    """

    _task: ClassVar[type[Task]] = NaiveBayes

    numbers: str | Mapping[str, str] = "binned"
    bins: int | None = None
    most_counts: float | None = None
    smoothing: float = 1.0
    prepare: Sequence[tuple[str, Mapping[str, Any]]] | None = None

    @classmethod
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        stored = super()._own_parameters(result)
        # The task has 0 without columns of counts.
        return stored and {**stored, "most_counts": stored["most_counts"] or None}

    def _keep(self, result: Release) -> None:
        """Set the fitted attributes; those of absent kinds of columns stay absent."""
        super()._keep(result)
        self._set(_ATTRIBUTES)
        task = self._own_task
        assert isinstance(task, NaiveBayes)
        # Names of cells, since each column has several.
        self.feature_names_ = np.array(task.cell_names(self._own_columns), dtype=object)


_INTERVALS = {
    "class_prior": "class_prior",
    "feature_prob": "cells",
    "theta": "means",
    "word_prob": "words",
}
_ATTRIBUTES = {
    "class_count_": "class_counts",
    "class_count_half_width_": "class_count_half_width",
    "feature_log_prob_": "log_cells",
    "std_": "stds",
    **{
        f"{a}{end}_": b + end for a, b in _INTERVALS.items() for end in ("", "_low", "_high", *ENDS)
    },
}
"""Attributes by the names of the task's results."""
