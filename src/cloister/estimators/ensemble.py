"""``DPSiloEnsemble``: a private model of each silo, with combined predictions.

No sum goes over silos, so no masks are needed, and a silo may join or leave at any time. Different
silos have different records. For a person with records at one silo, the cost is that of this silo's
release (parallel composition). For a person at several silos, the costs of their releases compose.

References
----------
.. [M09] McSherry, "Privacy Integrated Queries", SIGMOD 2009, theorem 4: parallel composition.
.. [DRS22] Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 84, 2022, corollary 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite, sqrt
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats, Records
from cloister.core.errors import PlanError
from cloister.data import as_silos
from cloister.data.schema import Schema
from cloister.estimators.base import Explained, PrivateClassifier, private_tags
from cloister.estimators.forest import best_class, checked_costs
from cloister.estimators.tables import declared_classes, grid_rows, label_parts, matched, unpaired
from cloister.privacy import accounting
from cloister.privacy.accounting import gdp_epsilon
from cloister.privacy.budget import default_delta
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import ComposedEvent
from cloister.protocol.task import Classifier

Combine = Literal["probabilities", "votes"]


def combined_probabilities(
    results: Sequence[Release],
    records: Records,
    *,
    weights: Sequence[float] | None = None,
    combine: Combine = "probabilities",
) -> Floats:
    """Return the shares of each class by the released models of several silos.

    Parameters
    ----------
    results : sequence of Release
        Releases of classifiers with the same columns and classes, such as from ``Release.load``.
    records : ndarray of shape (n_samples, n_features), int32
        Records on the grid of the models; the target column is ignored.
    weights : sequence of float >= 0, optional
        Public weights of the models; equal by default.
    combine : {"probabilities", "votes"}
        Average probabilities, or let each model vote for its most probable class.

    Returns
    -------
    ndarray of shape (n_samples, n_classes)

    Raises
    ------
    PlanError
        If a model is not a classifier, or models differ in classes or columns.
    """
    _check_combine(combine)
    tasks = [_classifier(result) for result in results]
    layouts = {
        (result.plan.columns, result.plan.grid, task.target, task.classes)
        for result, task in zip(results, tasks, strict=True)
    }
    if len(layouts) != 1:
        raise PlanError(
            "models must be at least one and have the same columns, bounds, target and classes, "
            f"got {len(layouts)} different layouts; use one schema."
        )
    # Public weights need no budget.
    shares = _checked_weights(weights, len(tasks))
    total = np.zeros((len(records), len(tasks[0].classes)))
    for result, task, share in zip(results, tasks, shares, strict=True):
        predicted = task.probabilities(result.results, records)
        total += share * (predicted if combine == "probabilities" else _votes(predicted))
    return total


_ONE_BASE = "give one unfitted base; each silo fits a copy of it, and models_ has the fitted models"


@dataclass(kw_only=True, eq=False, repr=False)
class DPSiloEnsemble(ClassifierMixin, Explained, BaseEstimator):
    """One private model for each silo, and their averaged probabilities or votes.

    Parameters
    ----------
    base : estimator
        A private classifier such as ``DPNaiveBayes(...)``. Its `epsilon` is the budget of one
        person over all silos together; its `ledger` must be None.
    combine : {"probabilities", "votes"}
    weights : "equal", "sizes", or sequence of float >= 0
        "sizes" uses each model's number of records: its public contract value or its noisy count.
    nominal_n : sequence of int, optional
        Public contract value for the number of records of each silo. By default that of `base` in
        every silo, or a noisy count if `base` has none.
    costs : array_like of shape (n_classes, n_classes), optional
        ``costs[i][j]`` is the public cost of predicting class j if i is true.
    ledgers : sequence of Ledger or path, optional
        One for each silo; each is charged only for the model of its silo.

    Attributes
    ----------
    models_ : list of estimator
        Models of one silo each; ``models_[i].save`` writes the release of that silo.
    weights_ : ndarray of shape (n_silos,)
    silo_spent_ : ndarray of shape (n_silos,)
        Epsilon of each silo's release.
    spent_ : float
        Largest epsilon of one person, at ``delta_``, over all silos that may have their records.
    delta_ : float
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int

    Notes
    -----
    Each release has a separate plan under profile "local". If the schema allows a person at m
    silos, each release gets the m-th part of the squared GDP parameter. Any m of them then compose
    to the budget.

    The model of a silo uses only its records, with the whole noise of a release. With few records,
    one joint model has less noise. If silos differ much, an average may fit no silo well.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPNaiveBayes, DPSiloEnsemble
    >>> rng = np.random.default_rng(0)
    >>> y = [np.repeat([0, 1], 500) for silo in range(3)]
    >>> X = [rng.normal(4 * labels[:, None], 1, (1000, 2)) for labels in y]
    >>> base = DPNaiveBayes(epsilon=1.0, bounds=(-5, 10), classes=[0, 1], nominal_n=1000)
    >>> model = DPSiloEnsemble(base).fit(X, y)
    >>> bool(model.score(X[0], y[0]) > 0.9), round(model.spent_, 2)
    (True, 1.0)
    """

    _reasons: ClassVar[Mapping[str, str]] = dict.fromkeys(("base_models", "estimators"), _ONE_BASE)

    base: Any = field(kw_only=False)
    combine: Combine = "probabilities"
    weights: Any = "equal"
    nominal_n: Sequence[int] | None = None
    costs: Any = None
    ledgers: Sequence[Any] | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release a private model of each silo.

        Parameters
        ----------
        X : list of tables or paths, one for each silo
            One table gives an ensemble of one model. Without `y`, it may be a list of pairs (X, y).
        y : list of array_like, or None
            None if the base has a schema and the tables have the target.

        Raises
        ------
        PlanError, DataError, BudgetExceeded
            Raised for each silo before its release.
        """
        X, y = unpaired(X, y)
        silos = as_silos(X)
        labels = [None] * len(silos) if y is None else label_parts(y, len(silos))
        self._check(len(silos))
        names: tuple[str, ...] = ()
        # Without a schema, the models must have the same columns in the same order.
        if not isinstance(self.base.bounds, Schema):
            silos, names, _ = matched(silos)
        sizes = self.nominal_n or [self.base.nominal_n] * len(silos)
        ledgers = self.ledgers or [None] * len(silos)
        changes = self._for_one_silo(sizes, labels)
        models = [
            clone(self.base).set_params(**changes, nominal_n=size, ledger=ledger)
            for size, ledger in zip(sizes, ledgers, strict=True)
        ]
        for model, table, targets in zip(models, silos, labels, strict=True):
            model._columns = names or None
            model.fit(table, targets)
        self._keep(models)
        return self

    def _for_one_silo(self, sizes: Sequence[Any], labels: Sequence[Any]) -> dict[str, Any]:
        """Return the parameters of each silo's model that differ from the base."""
        base, most = self.base, self._most_silos(len(sizes))
        delta = base.delta
        if delta is None:
            # One delta for all silos, because their guarantees compose for a person.
            delta = default_delta(None if None in sizes else sum(map(int, sizes)))
        changes: dict[str, Any] = {"delta": delta}
        if isinstance(base.bounds, Schema):
            # A silo's release uses only a person's rows at this silo.
            changes["bounds"] = base.bounds.model_copy(update={"max_silos_per_person": 1})
        if most > 1:  # squared GDP parameters add up under composition [DRS22]
            changes["epsilon"] = gdp_epsilon(gdp_mu_for(base.epsilon, delta) / sqrt(most), delta)
        if labels[0] is not None:  # over all silos, since a silo may lack a class
            changes["classes"] = declared_classes(labels, base.classes)
        return changes

    def _most_silos(self, n_silos: int) -> int:
        """Return the largest number of silos of an ensemble with records of one person."""
        bounds = self.base.bounds
        return min(bounds.max_silos_per_person if isinstance(bounds, Schema) else 1, n_silos)

    def _keep(self, models: list[Any]) -> None:
        self.models_ = models
        first = models[0]
        self.classes_: NDArray[Any] = first.classes_
        self.n_features_in_: int = first.n_features_in_
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(first, "feature_names_in_"):
            self.feature_names_in_ = first.feature_names_in_
        sizes = [float(model.plan_.nominal_n) for model in models]
        self.weights_ = _checked_weights(self.weights, len(models), sizes)
        self.delta_: float = first.delta_
        self.silo_spent_ = np.array([model.spent_ for model in models])
        # The worst case is a person at the silos with the largest costs.
        dearest = sorted(models, key=lambda model: -model.spent_)[: self._most_silos(len(models))]
        event = ComposedEvent(tuple(model.result_.spent for model in dearest))
        self.spent_: float = accounting.epsilon(event, self.delta_)

    def _check(self, n_silos: int) -> None:
        """Raise for invalid parameters before the first release."""
        if not isinstance(self.base, PrivateClassifier):
            raise PlanError(
                f"base must be a private classifier such as DPNaiveBayes, got {self.base!r}; "
                f"{_ONE_BASE}."
            )
        # One ledger would charge every silo's data set for the models of all.
        if getattr(self.base, "ledger", None) is not None:
            raise PlanError("ledger of the base must be None; give ledgers, one for each silo.")
        _check_combine(self.combine)
        for name in ("nominal_n", "ledgers"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str | int) or len(value) != n_silos):
                raise PlanError(
                    f"{name} must be a list with one for each of {n_silos} silos, got {value!r}."
                )
        # Before the first release, since a refusal after it would waste its budget.
        _checked_weights(self.weights, n_silos, [1.0] * n_silos)
        n_classes = getattr(self.base, "classes", None)
        if self.costs is not None and n_classes is not None and not isinstance(n_classes, str):
            checked_costs(self.costs, len(n_classes))

    def predict_proba(self, X: Any) -> Floats:
        """Return averaged probabilities, or shares of votes; shape (n_samples, n_classes)."""
        check_is_fitted(self)
        return combined_probabilities(
            [model.result_ for model in self.models_],
            grid_rows(self.models_[0], X),
            weights=self.weights_.tolist(),
            combine=self.combine,
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class with the largest share, or with the least expected cost."""
        best = best_class(self.predict_proba(X), self.costs)  # first, since it raises before a fit
        return self.classes_[best]

    def describe(self) -> str:
        """Return a description of the releases and of their costs for silos and persons."""
        check_is_fitted(self)
        costs = ", ".join(f"{spent:.4g}" for spent in self.silo_spent_)
        most = self._most_silos(len(self.models_))
        where = "one silo" if most == 1 else f"up to {most} silos"
        return (
            f"{len(self.models_)} silos released one model each, under a local plan, at epsilon "
            f"{costs}. A person's records are at {where}, so the cost for one person is at most "
            f"epsilon {self.spent_:.4g} at delta {self.delta_:.2g}. The silos sent no other values."
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show the models in notebooks, after their total cost."""
        # Before a fit, scikit-learn's representation.
        if not hasattr(self, "models_"):
            return dict(super()._repr_mimebundle_(**kwargs))
        models = "".join(model._repr_html_() for model in self.models_)
        text = f"<p>{escape(self.describe())}</p>{models}"
        return {"text/plain": repr(self), "text/html": text}

    def __sklearn_tags__(self) -> Any:
        return private_tags(super().__sklearn_tags__())


def _check_combine(combine: Any) -> None:
    if combine not in get_args(Combine):
        raise PlanError(f"combine must be one of {get_args(Combine)}, got {combine!r}.")


def _classifier(result: Release) -> Classifier:
    task = result.plan.task
    if not isinstance(task, Classifier):
        raise PlanError(f"every model must be a classifier, got one with task {task.name!r}.")
    return task


def _votes(probabilities: Floats) -> Floats:
    """Return 1 for each record's most probable class, else 0."""
    return np.asarray(np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)])


def _checked_weights(weights: Any, n: int, sizes: Sequence[float] = ()) -> Floats:
    """Return public weights that sum to 1; equal ones for None."""
    if weights is None or (isinstance(weights, str) and weights == "equal"):
        return np.full(n, 1 / n)
    try:
        sized = isinstance(weights, str) and weights == "sizes"
        values = [float(weight) for weight in (sizes if sized else weights)]
    except (TypeError, ValueError):
        values = []  # the check below reports them
    if len(values) != n or not all(isfinite(w) and w >= 0 for w in values) or sum(values) <= 0:
        raise PlanError(
            f"weights must be 'equal', 'sizes' or {n} numbers >= 0, not all 0, got {weights!r}."
        )
    return np.array(values) / sum(values)
