"""Private forests of classes and of numbers, with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cloister.app.release import Release
from cloister.core.arrays import Floats, Integers
from cloister.core.errors import PlanError
from cloister.estimators.base import PrivateClassifier, PrivateRegressor
from cloister.estimators.tables import SiloData, grid_rows
from cloister.protocol.task import Regressor, Task
from cloister.tasks.supervised.forest import RandomForest
from cloister.tasks.supervised.forest_regression import ForestRegression

_NAMES = {
    "n_estimators": "n_trees",
    "max_depth": "depth",
    "max_features": "columns_per_tree",
    "learning_rate": "rate",
}
"""Options of the tasks by the names of scikit-learn."""


@dataclass(kw_only=True, eq=False, repr=False)
class DPRandomForestClassifier(PrivateClassifier):
    """Differentially private forest over one table or over several silos.

    Parameters
    ----------
    kind, bins
        As for :class:`~cloister.tasks.supervised.forest.RandomForest`.
    n_estimators : int in [1, 1000], optional
        Number of trees. By default 80 random trees, or 20 if the noise is very strong, or 40
        boosted trees.
    max_depth : int in [1, 10], optional
        Every tree has ``2**max_depth`` leaves; by default from the budget and `nominal_n`.
    max_features : int, >= 1, optional
        Number of columns that one tree uses; by default 1 or 2.
    learning_rate : float in (0, 1]
        Fraction of a Newton step that a boosted tree takes.
    class_weight : "balanced", mapping of class to float, or None
        Factors of the odds of each class, after the release; "balanced" uses the inverse of the
        noisy class sizes.
    costs : array_like of shape (n_classes, n_classes), optional
        ``costs[i][j]`` is the public cost of predicting class j if i is true. `predict` then
        returns the class with the least expected cost instead of the most probable one.
    prepare : sequence of (name, options), optional
        Preparation steps, such as ``[("bounds", {})]``, in one plan with one cost.
    random_state : int, RandomState or None
        Seed of the public trees. It never seeds noise.
    epsilon, bounds, target, classes, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateClassifier`.

    Attributes
    ----------
    feature_importances_ : ndarray of shape (n_features_in_,)
        Separation of the scores by splits on a column, from released sums; they sum to 1.
    class_count_, class_count_half_width_ : ndarray of shape (n_classes,)
        Noisy numbers of records, which may be negative, and the half-width of their intervals.
    leaf_sums_ : ndarray of shape (n_trees, n_leaves, n_classes) or (..., n_classes + 1)
        Noisy counts, or sums of gradients and, last, of curvature.
    leaf_half_width_ : ndarray of shape (n_classes,) or (n_classes + 1,)
        Half-width of the 95 % interval of every leaf.

    Notes
    -----
    Intervals are 95 % confidence intervals (privacy noise only).

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPRandomForestClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 2))
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)  # only both columns together predict y
    >>> model = DPRandomForestClassifier(
    ...     epsilon=1.0, bounds=(-1, 1), classes=[0, 1], nominal_n=4000, max_features=2,
    ...     random_state=0,
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.8)
    True
    """

    _task: ClassVar[type[Task]] = RandomForest
    _names: ClassVar[Mapping[str, str]] = _NAMES

    kind: str | None = None
    n_estimators: int | None = None
    max_depth: int | None = None
    max_features: int | None = None
    bins: int = 32
    learning_rate: float = 0.5
    class_weight: Any = None
    costs: Any = None
    prepare: Sequence[tuple[str, Mapping[str, Any]]] | None = None
    random_state: Any = None

    def _options(self, data: SiloData) -> dict[str, Any]:
        # Before the release, so that invalid costs waste no budget.
        checked_costs(self.costs, len(self.classes_))
        weights = by_name(self.class_weight, data, self.classes_)
        return {**super()._options(data), "class_weight": weights}

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self._set(_ATTRIBUTES)
        self.feature_importances_ = _importances(self._own_task, result)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record, or that with the least expected cost."""
        best = best_class(self.predict_proba(X), self.costs)  # first, since it raises before a fit
        return self.classes_[best]


@dataclass(kw_only=True, eq=False, repr=False)
class DPForestRegressor(PrivateRegressor):
    """Differentially private boosted forest that predicts numbers, over one or several silos.

    Parameters
    ----------
    n_estimators : int in [1, 1000]
        Number of trees, and of rounds after the first.
    max_depth : int in [1, 10], optional
        Every tree has ``2**max_depth`` leaves; by default from the budget and `nominal_n`.
    max_features : int, >= 1
        Number of columns that one tree uses; with 1 the effects of columns add up.
    bins : int in [2, 1024]
        As for :class:`~cloister.tasks.supervised.forest_regression.ForestRegression`.
    learning_rate : float in (0, 1]
        Share of a tree's values that is added to predictions.
    prepare : sequence of (name, options), optional
        Preparation steps, such as ``[("bounds", {})]``, in one plan with one cost.
    random_state : int, RandomState or None
        Seed of the public trees. It never seeds noise.
    epsilon, bounds, target, target_bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateRegressor`.

    Attributes
    ----------
    feature_importances_ : ndarray of shape (n_features_in_,)
        Separation of predictions by splits on a column, from released sums; they sum to 1.
    leaf_sums_, leaf_counts_ : ndarray of shape (n_trees, n_leaves)
        Noisy sums of clipped residuals, data units of the target, and noisy numbers of records.
    leaf_values_ : ndarray of shape (n_trees, n_leaves)
        What a prediction adds to `mean_` in a leaf, data units of the target.
    mean_, mean_low_, mean_high_ : float
        Noisy mean of the target with its 95 % confidence interval (privacy noise only).
    residual_clip_ : float
        Two noisy deviations of the target, to which residuals are clipped.

    Notes
    -----
    Predictions have no interval. :func:`~cloister.evaluate` releases R² and the root of the mean
    squared error on other records.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPForestRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 2))
    >>> y = X[:, 0] * X[:, 1]  # a linear model predicts nothing
    >>> model = DPForestRegressor(
    ...     epsilon=1.0, bounds=(-1, 1), target_bounds=(-1, 1), nominal_n=5000, random_state=0
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.7)
    True
    """

    _task: ClassVar[type[Task]] = ForestRegression
    _names: ClassVar[Mapping[str, str]] = _NAMES

    n_estimators: int = 80
    max_depth: int | None = None
    max_features: int = 2
    bins: int = 32
    learning_rate: float = 0.2
    prepare: Sequence[tuple[str, Mapping[str, Any]]] | None = None
    random_state: Any = None

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        task = self._own_task
        self._set({f"leaf_{name}_": f"leaf_{name}" for name in ("sums", "counts", "values")})
        for name in ("mean", "mean_low", "mean_high", "residual_clip"):
            setattr(self, f"{name}_", float(result.results[name][0]))
        self.feature_importances_ = _importances(task, result)

    def predict(self, X: Any) -> Floats:
        """Return the predicted target of each record; shape (n_samples,)."""
        rows = grid_rows(self, X)
        task = self.plan_.task
        assert isinstance(task, Regressor)
        return task.predict(self.result_.results, rows)


def _importances(task: Task, result: Release) -> Floats:
    """Return the importance of each column in scikit-learn's order, which excludes the target."""
    assert isinstance(task, RandomForest | ForestRegression)
    return np.delete(result.results["importance"], task.target)


_ATTRIBUTES = {
    "leaf_sums_": "leaves",
    "leaf_half_width_": "leaf_half_width",
    "class_count_": "class_sizes",
    "class_count_half_width_": "class_half_width",
}
"""Attributes by the names of the task's results."""


def checked_costs(costs: Any, n_classes: int) -> Floats | None:
    """Return the cost matrix ``costs[true][predicted]``, or None; raise if it is invalid."""
    if costs is None:
        return None
    try:
        matrix = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        # The shape check below reports it.
        matrix = np.empty(0)
    if matrix.shape != (n_classes, n_classes) or not np.isfinite(matrix).all():
        raise PlanError(
            f"costs must be {n_classes} rows of {n_classes} finite numbers, "
            f"costs[true][predicted], got {costs!r}."
        )
    return matrix


def best_class(probabilities: Floats, costs: Any = None) -> Integers:
    """Return the class of highest probability or least expected cost; shape (n_samples,)."""
    matrix = checked_costs(costs, probabilities.shape[1])
    best: Integers = (
        probabilities.argmax(axis=1) if matrix is None else (probabilities @ matrix).argmin(axis=1)
    )
    return best


def by_name(weights: Any, data: SiloData, classes: NDArray[Any]) -> Any:
    """Return weights by label as weights by the schema's names of the classes."""
    if not isinstance(weights, Mapping):
        return weights
    # A plan has the schema's names, but users know their labels.
    names = next(c for c in data.schema.public if c.name == data.target).categories
    by_label = dict(zip(classes.tolist(), names, strict=True))
    return {by_label.get(label, label): weight for label, weight in weights.items()}
