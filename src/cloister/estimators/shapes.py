"""Private additive models of classes and of numbers, with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.estimators.base import PrivateClassifier, PrivateRegressor
from cloister.estimators.tables import grid_rows
from cloister.protocol.task import Regressor, Task
from cloister.tasks.supervised.shapes import Additive, ShapesClassifier
from cloister.tasks.supervised.shapes_regression import ShapesRegression


@dataclass(kw_only=True, eq=False, repr=False)
class DPShapesClassifier(PrivateClassifier):
    """Differentially private additive model: one effect for each bin of each column.

    Parameters
    ----------
    n_rounds, bins
        As for :class:`~cloister.tasks.supervised.shapes.ShapesClassifier`.
    prepare : sequence of (name, options), optional
        Preparation steps, such as ``[("bounds", {})]``, in one plan with one cost.
    epsilon, bounds, target, classes, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateClassifier`.

    Attributes
    ----------
    feature_importances_ : ndarray of shape (n_features_in_,)
        Root of the mean squared effect of a column on the log-odds.
    intercept_ : ndarray of shape (n_scores,)
        Log-odds of the second class without effects; with three classes or more, a score for each.
    effects_, band_low_, band_high_ : ndarray of shape (n_places, n_scores)
        Effects of all bins and categories of all columns, with approximate ends.
    edges_ : ndarray of shape (n_numbers, n_edges)
        Edges between bins of the columns of numbers, data units.

    Notes
    -----
    Where effects are straight lines, or with few records, logistic regression is as good or better.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPShapesClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 2))
    >>> y = (np.abs(X[:, 0]) + 0.2 * X[:, 1] > 0.5).astype(int)  # no straight line predicts y
    >>> model = DPShapesClassifier(epsilon=1.0, bounds=(-1, 1), classes=[0, 1], nominal_n=5000)
    >>> bool(model.fit(X, y).score(X, y) > 0.8)
    True
    """

    _task: ClassVar[type[Task]] = ShapesClassifier

    n_rounds: int | None = None
    bins: int | None = None
    prepare: Sequence[tuple[str, Mapping[str, Any]]] | None = None

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self._set(_ATTRIBUTES)
        self.feature_importances_ = _importances(self._own_task, result)


@dataclass(kw_only=True, eq=False, repr=False)
class DPShapesRegressor(PrivateRegressor):
    """Differentially private additive regression: one effect for each bin of each column.

    Parameters
    ----------
    family, n_rounds, bins
        As for :class:`~cloister.tasks.supervised.shapes_regression.ShapesRegression`.
    prepare : sequence of (name, options), optional
        Preparation steps, such as ``[("bounds", {})]``, in one plan with one cost.
    epsilon, bounds, target, target_bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateRegressor`.

    Attributes
    ----------
    feature_importances_ : ndarray of shape (n_features_in_,)
        Root of the mean squared effect of a column.
    intercept_ : ndarray of shape (1,)
        Prediction without effects; for family "poisson" its logarithm.
    effects_, band_low_, band_high_ : ndarray of shape (n_places, 1)
        Effects of all bins and categories of all columns, with approximate ends.
    edges_ : ndarray of shape (n_numbers, n_edges)
        Edges between bins of the columns of numbers, data units.
    residual_clip_ : float
        Length to which residuals are clipped, data units.

    Notes
    -----
    Where effects are straight lines, or with few records, linear regression is as good or better.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPShapesRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 2))
    >>> y = X[:, 0] ** 2 + 0.2 * X[:, 1]
    >>> model = DPShapesRegressor(
    ...     epsilon=1.0, bounds=(-1, 1), target_bounds=(-1, 2), nominal_n=5000
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.7)
    True
    """

    _task: ClassVar[type[Task]] = ShapesRegression

    family: str = "gaussian"
    n_rounds: int | None = None
    bins: int | None = None
    prepare: Sequence[tuple[str, Mapping[str, Any]]] | None = None

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self._set(_ATTRIBUTES)
        # A plain number, as in other regressors, since it has one entry.
        self.residual_clip_ = float(result.results["residual_clip"][0])
        self.feature_importances_ = _importances(self._own_task, result)

    def predict(self, X: Any) -> Floats:
        """Return the predicted target of each record; shape (n_samples,)."""
        rows = grid_rows(self, X)
        # The whole task, since a pipeline prepares the records first.
        task = self.plan_.task
        assert isinstance(task, Regressor)
        return task.predict(self.result_.results, rows)


_ATTRIBUTES = {f"{name}_": name for name in ("effects", "band_low", "band_high", "edges")} | {
    "intercept_": "intercept"
}
"""Attributes by the names of the task's results."""


def _importances(task: Task, result: Release) -> Floats:
    """Return the importance of each column in scikit-learn's order, which excludes the target."""
    assert isinstance(task, Additive)
    return np.delete(result.results["importance"], task.target)
