"""``DPOutlierDetector``: unusual records by released statistics, flagged where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cloister.errors import PlanError
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import Floats, new_rows, read_silos
from cloister.jobs import JobResult
from cloister.privacy.ledger import Ledger
from cloister.task import Task
from cloister.tasks.patterns.outliers import Outliers


class DPOutlierDetector(OutlierMixin, PrivateEstimator):
    """Outliers by differentially private statistics of one table or of several silos.

    Only statistics are released. `predict` and its kin work on the given records alone, in this
    process: their answers are exact and not private.

    Parameters
    ----------
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high) or Schema
        Public bounds of each column. With a schema, its columns of numbers are looked at.
    method : {"robust", "zscore", "mahalanobis", "density"}
        Distance from the median in quartile ranges; from the mean in deviations; from the mean by
        the covariance of all columns; how empty the cells are that a record falls into. "robust"
        alone finds narrow columns in wide bounds.
    threshold : float in (0, 10]
        Beyond so many deviations of a normal law a record is an outlier.
    count_share : float in [0, 1)
        Part of the budget that buys the noisy number of outliers; 0 for none.
    group : str, optional
        Column of a schema by whose categories outliers are counted; needs `count_share`.
    min_group : float, >= 0
        Noisy counts of groups below this are not shown.
    nominal_n, delta, ledger, dataset, frac_bits
        As for :class:`~cloister.DPKMeans`.
    random_state : int, RandomState or None
        Seeds the public pictures of "density" only. Noise takes no seed.

    Attributes
    ----------
    location_, spread_ : ndarray of shape (n_used,), data units
        Mean and deviation, or median and quartile range over 1.349, of the columns looked at.
    covariance_ : ndarray of shape (n_used, n_used)
        Only for "mahalanobis".
    offset_ : float
        ``decision_function(X) = score_samples(X) - offset_``.
    flagged_ : ndarray of shape (1,) or (n_groups,)
        Noisy numbers of outliers, if asked for; 0 for groups that are not shown.
    result_, plan_, spent_, delta_, n_features_in_, feature_names_in_
        As for :class:`~cloister.DPKMeans`.

    References
    ----------
    :mod:`cloister.tasks.patterns.outliers`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPOutlierDetector
    >>> X = np.random.default_rng(0).normal(50, 5, (5000, 2))
    >>> model = DPOutlierDetector(epsilon=1.0, bounds=(0, 100), nominal_n=5000, threshold=4).fit(X)
    >>> model.predict([[50, 50], [95, 50]]).tolist()
    [1, -1]
    """

    _task: ClassVar[type[Task]] = Outliers

    def __init__(
        self,
        *,
        epsilon: float,
        bounds: Any,
        method: str = "robust",
        threshold: float = 2.0,
        count_share: float = 0.0,
        group: str | None = None,
        min_group: float = 0.0,
        nominal_n: int | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        frac_bits: int = 16,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.method = method
        self.threshold = threshold
        self.count_share = count_share
        self.group = group
        self.min_group = min_group
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.frac_bits = frac_bits
        self.random_state = random_state

    def fit(self, X: Any, y: object = None) -> Self:
        """Release the statistics.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is one silo each.
        y : ignored

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        self._check_parameters()
        schema, records, _ = read_silos(self, X, frac_bits=int(self.frac_bits))
        self._release(
            Outliers,
            schema,
            records,
            method=self.method,
            threshold=float(self.threshold),
            count_share=float(self.count_share),
            group=self.group,
            min_group=float(self.min_group),
            public_seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        return self

    def _keep(self, result: JobResult) -> None:
        super()._keep(result)
        found = result.results
        self.location_: Floats = found["location"]
        self.spread_: Floats = found["spread"]
        if "covariance" in found:
            self.covariance_: Floats = found["covariance"]
        if "flagged" in found:
            self.flagged_: Floats = found["flagged"]
        self.offset_ = -float(found["cutoff"][0])

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return minus how unusual each record is; local, exact for the given X, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        rows = self.plan_.grid.encode(new_rows(self, X))
        task = self.plan_.task
        if not isinstance(task, Outliers):
            raise PlanError(f"task of the model must be 'outliers', got {task.name!r}.")
        return -task.scores(self.result_.results, rows)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return `score_samples` less `offset_`: below zero for outliers.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return -1 for outliers and 1 for others; local, exact for the given X.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples,), int64
        """
        return np.where(self.decision_function(X) < 0, -1, 1).astype(np.int64)
