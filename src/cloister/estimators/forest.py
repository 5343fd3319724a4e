"""``DPRandomForestClassifier``: a private forest that works like scikit-learn's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cloister.app.release import Release
from cloister.core.arrays import Floats, Integers
from cloister.core.errors import PlanError
from cloister.estimators.base import PrivateClassifier
from cloister.estimators.tables import SiloData
from cloister.protocol.task import Task
from cloister.tasks.supervised.forest import RandomForest


@dataclass(kw_only=True, eq=False, repr=False)
class DPRandomForestClassifier(PrivateClassifier):
    """Differentially private forest over one table or over several silos.

    Parameters
    ----------
    kind, bins
        As for :class:`~cloister.tasks.supervised.forest.RandomForest`.
    n_estimators : int in [1, 1000], optional
        Trees. By default 80 random, or 20 where noise is very strong, or 40 boosted ones.
    max_depth : int in [1, 10], optional
        Every tree has ``2**max_depth`` leaves; by default from the budget and `nominal_n`.
    max_features : int, >= 1, optional
        Columns that one tree looks at; by default 1 or 2.
    learning_rate : float in (0, 1]
        Part of a Newton step that a boosted tree takes.
    class_weight : "balanced", mapping of class to float, or None
        What the odds of each class are multiplied by, after the release; "balanced" takes one over
        the noisy class sizes.
    costs : array_like of shape (n_classes, n_classes), optional
        ``costs[i][j]`` is the public cost of predicting class j where i is true. `predict` then
        returns the class of the least expected cost instead of the most probable one.
    prepare : sequence of (name, options), optional
        Steps before, such as ``[("bounds", {})]``: one plan, one cost.
    random_state : int, RandomState or None
        Seed of the public trees. It never seeds noise.
    epsilon, bounds, target, classes, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateClassifier`.

    Attributes
    ----------
    feature_importances_ : ndarray of shape (n_features_in_,)
        How far splits on a column part the scores, from released sums; they sum to 1.
    class_count_, class_count_half_width_ : ndarray of shape (n_classes,)
        Noisy numbers of records, which may be negative, and the half-width of their intervals.
    leaf_sums_ : ndarray of shape (n_trees, n_leaves, n_classes) or (..., n_classes + 1)
        Noisy counts, or sums of gradients and last of curvature.
    leaf_half_width_ : ndarray of shape (n_classes,) or (n_classes + 1,)
        Of the 95 % interval of every leaf.

    Notes
    -----
    Intervals are 95 % confidence intervals (privacy noise only).

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPRandomForestClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 2))
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)  # no single column says anything
    >>> model = DPRandomForestClassifier(
    ...     epsilon=1.0, bounds=(-1, 1), classes=[0, 1], nominal_n=4000, max_features=2,
    ...     random_state=0,
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.8)
    True
    """

    _task: ClassVar[type[Task]] = RandomForest
    _names: ClassVar[Mapping[str, str]] = {
        "n_estimators": "n_trees",
        "max_depth": "depth",
        "max_features": "columns_per_tree",
        "learning_rate": "rate",
    }

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
        checked_costs(self.costs, len(self.classes_))
        weights = by_name(self.class_weight, data, self.classes_)
        return {**super()._options(data), "class_weight": weights}

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self._set(_ATTRIBUTES)
        own = self._own_task
        assert isinstance(own, RandomForest)
        importance = result.results["importance"]
        self.feature_importances_: Floats = np.delete(importance, own.target)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record, or the one of least expected cost."""
        best = best_class(self.predict_proba(X), self.costs)  # says if nothing was fitted
        return self.classes_[best]


_ATTRIBUTES = {
    "leaf_sums_": "leaves",
    "leaf_half_width_": "leaf_half_width",
    "class_count_": "class_sizes",
    "class_count_half_width_": "class_half_width",
}
"""Attributes by the names of the task's results."""


def checked_costs(costs: Any, n_classes: int) -> Floats | None:
    """Return a matrix of costs of predicting one class where another is true, if it is one."""
    if costs is None:
        return None
    try:
        matrix = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.shape != (n_classes, n_classes) or not np.isfinite(matrix).all():
        raise PlanError(
            f"costs must be {n_classes} rows of {n_classes} finite numbers, "
            f"costs[true][predicted], got {costs!r}."
        )
    return matrix


def best_class(probabilities: Floats, costs: Any = None) -> Integers:
    """Return the most probable class, or the one of least expected cost; shape (n_samples,)."""
    matrix = checked_costs(costs, probabilities.shape[1])
    best: Integers = (
        probabilities.argmax(axis=1) if matrix is None else (probabilities @ matrix).argmin(axis=1)
    )
    return best


def by_name(weights: Any, data: SiloData, classes: NDArray[Any]) -> Any:
    """Return weights of labels as weights of the schema's names of the classes."""
    if not isinstance(weights, Mapping):
        return weights
    names = next(c for c in data.schema.public if c.name == data.target).categories
    by_label = dict(zip(classes.tolist(), names, strict=True))
    return {by_label.get(label, label): weight for label, weight in weights.items()}
