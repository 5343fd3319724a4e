"""``DPSiloEnsemble``: a private model from each silo, and their predictions combined.

Nothing is summed over silos, so no masks are needed and a silo may come or go at any time. Records
of different silos are different records: a person whose records are at one silo only loses what
that silo's release costs (parallel composition). A person at several silos loses each of theirs.

References
----------
.. [M09] McSherry, "Privacy Integrated Queries", SIGMOD 2009, theorem 4: parallel composition.
.. [DRS22] Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 84, 2022, corollary 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite, sqrt
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats, Records
from cloister.core.errors import PlanError
from cloister.data import as_silos
from cloister.data.schema import Schema
from cloister.estimators.base import private_tags
from cloister.estimators.forest import best_class, checked_costs
from cloister.estimators.tables import IN_Y, grid_rows, label_parts, label_set, matched, unpaired
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
        Of classifiers of the same columns and classes, such as ``Release.load`` reads.
    records : ndarray of shape (n_samples, n_features), int32
        On the grid of the models; the target column is not looked at.
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
    alike = {
        (result.plan.columns, result.plan.grid, task.target, task.classes)
        for result, task in zip(results, tasks, strict=True)
    }
    if len(alike) != 1:
        raise PlanError(
            "models must be at least one and have the same columns, bounds, target and classes, "
            f"got {len(alike)} kinds; use one schema."
        )
    shares = _checked_weights(weights, len(tasks))
    total = np.zeros((len(records), len(tasks[0].classes)))
    for result, task, share in zip(results, tasks, shares, strict=True):
        predicted = task.probabilities(result.results, records)
        total += share * (predicted if combine == "probabilities" else _votes(predicted))
    return total


@dataclass(kw_only=True, eq=False, repr=False)
class DPSiloEnsemble(ClassifierMixin, BaseEstimator):
    """One private model for each silo, and their averaged probabilities or votes.

    Parameters
    ----------
    base : estimator
        A private classifier such as ``DPNaiveBayes(...)``. Its `epsilon` is what one person may
        lose to all silos together; its own `ledger` must be None.
    combine : {"probabilities", "votes"}
    weights : "equal", "sizes", or sequence of float >= 0
        "sizes" takes each model's number of records: its public contract value, or the noisy count
        it paid for.
    nominal_n : sequence of int, optional
        Public contract value for the number of records of each silo. By default that of `base` in
        every silo, and a noisy count where `base` has none.
    costs : array_like of shape (n_classes, n_classes), optional
        ``costs[i][j]`` is the public cost of predicting class j where i is true.
    ledgers : sequence of Ledger or path, optional
        One for each silo, which alone is charged for its model.

    Attributes
    ----------
    models_ : list of estimator
        Fitted to one silo each; ``models_[i].save`` writes what that silo releases.
    weights_ : ndarray of shape (n_silos,)
    silo_spent_ : ndarray of shape (n_silos,)
        Epsilon of each silo's release.
    spent_ : float
        Epsilon that one person loses at most, at ``delta_``, over the silos they may be at.
    delta_ : float
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int

    Notes
    -----
    Each release is a plan of its own under profile "local". If the schema says that a person may be
    at m silos, each release gets the m-th part of the squared GDP parameter, so that any m of them
    compose to the budget.

    A silo's model sees that silo's records only, with all of its noise. Where records are few, one
    joint model has less noise; where silos differ much, an average may fit none of them.

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
            One table is an ensemble of one model. It may be a list of pairs (X, y) without `y`.
        y : list of array_like, or None
            None where the base has a schema and the tables have the target.

        Raises
        ------
        PlanError, DataError, BudgetExceeded
            Each silo's, before that silo has released anything.
        """
        X, y = unpaired(X, y)
        silos = as_silos(X)
        labels = [None] * len(silos) if y is None else label_parts(y, len(silos))
        self._check(len(silos))
        names: tuple[str, ...] = ()
        if not isinstance(self.base.bounds, Schema):
            silos, names, _ = matched(silos)
        sizes = self.nominal_n or [self.base.nominal_n] * len(silos)
        ledgers = self.ledgers or [None] * len(silos)
        changes = self._for_one_silo(sizes, labels)
        models = [
            clone(self.base).set_params(**changes, nominal_n=size, ledger=ledger)
            for size, ledger in zip(sizes, ledgers, strict=True)
        ]
        for model, table, part in zip(models, silos, labels, strict=True):
            model._columns = names or None
            model.fit(table, part)
        self._keep(models)
        return self

    def _for_one_silo(self, sizes: Sequence[Any], labels: Sequence[Any]) -> dict[str, Any]:
        """Return the parameters in which the model of each silo differs from the base."""
        base, most = self.base, self._most_silos(len(sizes))
        delta = base.delta
        if delta is None:
            delta = default_delta(None if None in sizes else sum(map(int, sizes)))
        changes: dict[str, Any] = {"delta": delta}
        if isinstance(
            base.bounds, Schema
        ):  # for a silo's own release a person's rows there are all
            changes["bounds"] = base.bounds.model_copy(update={"max_silos_per_person": 1})
        if most > 1:
            changes["epsilon"] = gdp_epsilon(gdp_mu_for(base.epsilon, delta) / sqrt(most), delta)
        if isinstance(base.classes, str) and base.classes == IN_Y and labels[0] is not None:
            changes["classes"] = label_set(labels)
        return changes

    def _most_silos(self, n_silos: int) -> int:
        """Return at how many silos of an ensemble one person may be."""
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
        dearest = sorted(models, key=lambda model: -model.spent_)[: self._most_silos(len(models))]
        event = ComposedEvent(tuple(model.result_.spent for model in dearest))
        self.spent_: float = accounting.epsilon(event, self.delta_)

    def _check(self, n_silos: int) -> None:
        """Refuse what is wrong before a silo has released anything."""
        if getattr(self.base, "ledger", None) is not None:
            raise PlanError("ledger of the base must be None; give ledgers, one for each silo.")
        _check_combine(self.combine)
        for name in ("nominal_n", "ledgers"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, str | int) or len(given) != n_silos):
                raise PlanError(f"{name} must be one for each of {n_silos} silos, got {given!r}.")
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
        """Return the class of the largest share, or of the least expected cost."""
        best = best_class(self.predict_proba(X), self.costs)  # says if nothing was fitted
        return self.classes_[best]

    def describe(self) -> str:
        """Say in plain words what was released, and what it cost each silo and each person."""
        check_is_fitted(self)
        costs = ", ".join(f"{spent:.4g}" for spent in self.silo_spent_)
        most = self._most_silos(len(self.models_))
        where = "one silo" if most == 1 else f"up to {most} silos"
        return (
            f"{len(self.models_)} silos released a model each, under a local plan, at epsilon "
            f"{costs}. A person's records are at {where}, so one person loses at most epsilon "
            f"{self.spent_:.4g} at delta {self.delta_:.2g}. Nothing else left a silo."
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show the models in notebooks, after what they cost together."""
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
        raise PlanError(f"every model must be a classifier, got one of task {task.name!r}.")
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
        given = [float(weight) for weight in (sizes if sized else weights)]
    except (TypeError, ValueError):
        given = []
    if len(given) != n or not all(isfinite(w) and w >= 0 for w in given) or sum(given) <= 0:
        raise PlanError(
            f"weights must be 'equal', 'sizes' or {n} numbers >= 0, not all 0, got {weights!r}."
        )
    return np.array(given) / sum(given)
