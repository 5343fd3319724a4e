"""``DPOutlierDetector``: local flags of unusual records by released statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin

from cloister.app.release import Release
from cloister.core.arrays import Floats, Integers
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.tables import new_rows
from cloister.protocol.task import Task
from cloister.tasks.patterns.outliers import Outliers


@dataclass(kw_only=True, eq=False, repr=False)
class DPOutlierDetector(OutlierMixin, PrivateEstimator):
    """Outlier detection by differentially private statistics of one table or of several silos.

    Only statistics are released. `predict` and the other methods use the given records in this
    process, so their results are exact and not private.

    Parameters
    ----------
    method, threshold, count_share, group, min_group
        As for :class:`~cloister.tasks.patterns.outliers.Outliers`. Only "robust" is suitable for
        narrow columns in wide bounds.
    random_state : int, RandomState or None
        Seed of the public projections of "density" only; the noise has no seed.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`; only numeric columns of a
        schema are used.

    Attributes
    ----------
    location_, spread_ : ndarray of shape (n_used,), data units
        Mean and deviation, or median and quartile range over 1.349, of the columns in use.
    covariance_ : ndarray of shape (n_used, n_used)
        Only for "mahalanobis".
    offset_ : float
        ``decision_function(X) = score_samples(X) - offset_``.
    flagged_ : ndarray of shape (1,) or (n_groups,)
        Noisy numbers of outliers, if requested; 0 for groups that are not shown.

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

    method: str = "robust"
    threshold: float = 2.0
    count_share: float = 0.0
    group: str | None = None
    min_group: float = 0.0
    random_state: Any = None

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        names = ("location", "spread", "covariance", "flagged")
        self._set({f"{name}_": name for name in names})
        # Negative, because scikit-learn's scores are larger for usual records.
        self.offset_ = -float(result.results["cutoff"][0])

    def __getattr__(self, name: str) -> Any:
        if name == "flagged_" and "result_" in self.__dict__:
            raise AttributeError("flagged_ is not released; fit with count_share > 0.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the negative outlier score of each record, (n_samples,); local and exact."""
        rows = new_rows(self, X)
        task = cast(Outliers, self.plan_.task)
        return -task.scores(self.result_.results, self.plan_.grid.encode(rows))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return `score_samples` minus `offset_`, negative for outliers; shape (n_samples,)."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> Integers:
        """Return -1 for outliers and 1 for others; local, exact for the given X."""
        # The labels of scikit-learn's outlier detectors.
        return np.where(self.decision_function(X) < 0, -1, 1).astype(np.int64)
