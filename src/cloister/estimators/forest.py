"""``DPRandomForestClassifier``: a private forest with scikit-learn's manners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from cloister.errors import PlanError
from cloister.estimators.base import PrivateClassifier, read_labelled
from cloister.estimators.tables import Floats
from cloister.jobs import JobResult
from cloister.privacy.ledger import Ledger
from cloister.task import Task
from cloister.tasks.supervised.forest import RandomForest


class DPRandomForestClassifier(PrivateClassifier):
    """Differentially private forest over one table or over several silos.

    Parameters
    ----------
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high) or Schema
        Public bounds of each column, data units; never taken from the records. A schema also has
        categories, booleans, the target, and what happens to missing values.
    target : str, optional
        With a schema: the column of the class.
    classes : sequence or "in_y"
        Without a schema: the public labels, or the statement that the set of labels in y is public.
        A record of another class is left out.
    kind : {"random", "boosted"}, optional
        Counts of all trees in one round, or a tree a round on the gradients of those before. By
        default boosted where there are many records for the budget.
    n_estimators : int in [1, 1000], optional
        Trees. By default 80 random, or 20 where noise is very strong, or 40 boosted ones.
    max_depth : int in [1, 10], optional
        Every tree has ``2**max_depth`` leaves; by default from the budget and `nominal_n`.
    max_features : int, >= 1, optional
        Columns that one tree looks at; by default 1 or 2.
    bins : int in [2, 1024]
        Bins of equal width of each column of numbers; splits are at their walls.
    learning_rate : float in (0, 1]
        Part of a Newton step that a boosted tree takes.
    class_weight : "balanced", mapping of class to float, or None
        What the odds of each class are multiplied by, after the release; "balanced" takes one over
        the noisy class sizes.
    costs : array_like of shape (n_classes, n_classes), optional
        ``costs[i][j]`` is the public cost of telling class j where i is true. `predict` then tells
        the class of the least expected cost instead of the most probable one.
    prepare : sequence of (name, options), optional
        Steps before, such as ``[("bounds", {})]``: one plan, one cost.
    nominal_n : int, optional
        Public contract value for the number of records. Without it, 2 % of the budget pay for a
        noisy count.
    delta : float, optional
        ``min(1e-6, 1 / (100 nominal_n))`` if not given, 1e-6 without `nominal_n`.
    ledger : Ledger or path, optional
        Where the fit is charged before it releases anything; it refuses to overspend.
    dataset : str, optional
        Name under which the ledger knows the data; a schema has its own.
    frac_bits : int in [4, 24]
        Records are rounded to multiples of ``2**-frac_bits`` of half a column's range.
    random_state : int, RandomState or None
        Seed of the public trees. It never seeds noise.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    feature_importances_ : ndarray of shape (n_features_in_,)
        How far splits on a column part the scores, from released sums; they sum to 1.
    class_count_, class_count_half_width_ : ndarray of shape (n_classes,)
        Noisy numbers of records, which may be negative, and the half-width of their intervals.
    leaf_sums_ : ndarray of shape (n_trees, n_leaves, n_classes) or (..., n_classes + 1)
        Noisy counts, or sums of gradients and last of curvature.
    leaf_half_width_ : ndarray of shape (n_classes,) or (n_classes + 1,)
        Of the 95 % interval of every leaf.
    spent_, delta_ : float
    plan_ : Plan
    result_ : JobResult
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    Notes
    -----
    Neighbouring data sets differ by one record (or one unit of the schema) added or removed; its
    class is as private as all else. Intervals have 95 % of the noise; they do not cover sampling.

    References
    ----------
    See :mod:`cloister.tasks.supervised.forest`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPRandomForestClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 2))
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)  # no single column tells anything
    >>> model = DPRandomForestClassifier(
    ...     epsilon=1.0, bounds=(-1, 1), classes=[0, 1], nominal_n=4000, max_features=2,
    ...     random_state=0,
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.8)
    True
    """

    _task: ClassVar[type[Task]] = RandomForest

    def __init__(
        self,
        *,
        epsilon: float,
        bounds: Any,
        target: str | None = None,
        classes: Any = None,
        kind: str | None = None,
        n_estimators: int | None = None,
        max_depth: int | None = None,
        max_features: int | None = None,
        bins: int = 32,
        learning_rate: float = 0.5,
        class_weight: Any = None,
        costs: Any = None,
        prepare: Sequence[tuple[str, Mapping[str, Any]]] | None = None,
        nominal_n: int | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        frac_bits: int = 16,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.target = target
        self.classes = classes
        self.kind = kind
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.max_features = max_features
        self.bins = bins
        self.learning_rate = learning_rate
        self.class_weight = class_weight
        self.costs = costs
        self.prepare = prepare
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.frac_bits = frac_bits
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release a private forest of the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is one silo each.
        y : array_like of shape (n_samples,), a list of these, or None
            None where `bounds` is a schema and X has the target.

        Returns
        -------
        DPRandomForestClassifier

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        self._check_parameters()
        schema, records, target = read_labelled(self, X, y, classes=self.classes)
        checked_costs(self.costs, len(self.classes_))
        self._release(
            RandomForest,
            schema,
            records,
            target=target,
            kind=self.kind,
            n_trees=self.n_estimators,
            depth=self.max_depth,
            columns_per_tree=self.max_features,
            bins=self.bins,
            rate=self.learning_rate,
            class_weight=_by_position(self.class_weight, self.classes_),
            public_seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        return self

    def _keep(self, result: JobResult) -> None:
        super()._keep(result)
        found = result.results
        self.leaf_sums_: Floats = found["leaves"]
        self.leaf_half_width_: Floats = found["leaf_half_width"]
        self.class_count_: Floats = found["class_sizes"]
        self.class_count_half_width_: Floats = found["class_half_width"]
        own = self._own_task
        assert isinstance(own, RandomForest)
        self.feature_importances_: Floats = np.delete(found["importance"], own.target)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record, or the one of least expected cost."""
        told = best_class(self.predict_proba(X), self.costs)
        labels: NDArray[Any] = self.classes_[told]
        return labels


def checked_costs(costs: Any, n_classes: int) -> Floats | None:
    """Return a matrix of costs of telling one class where another is true.

    Raises
    ------
    PlanError
        If it is not a square of finite numbers, one row for each class.
    """
    if costs is None:
        return None
    try:
        matrix = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.shape != (n_classes, n_classes) or not np.isfinite(matrix).all():
        raise PlanError(
            f"costs must be {n_classes} rows of {n_classes} finite numbers, costs[true][told], got "
            f"{costs!r}."
        )
    return matrix


def best_class(probabilities: Floats, costs: Any = None) -> NDArray[np.int64]:
    """Return the most probable class, or the one of least expected cost; shape (n_samples,)."""
    matrix = checked_costs(costs, probabilities.shape[1])
    best: NDArray[np.int64] = (
        probabilities.argmax(axis=1) if matrix is None else (probabilities @ matrix).argmin(axis=1)
    )
    return best


def _by_position(weights: Any, classes: NDArray[Any]) -> Any:
    """Return weights in the order of the classes."""
    if not isinstance(weights, Mapping):
        return weights
    if unknown := [label for label in weights if label not in classes.tolist()]:
        raise PlanError(f"class_weight must name classes of {classes}, got {unknown[0]!r}.")
    return [float(weights.get(label, 1.0)) for label in classes.tolist()]
