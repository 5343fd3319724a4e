"""``DPLogisticRegression`` and ``DPLinearRegression``, with scikit-learn's manners."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cloister.display import Between
from cloister.errors import PlanError
from cloister.estimators.base import PrivateClassifier, PrivateEstimator, grid_rows, read_labelled
from cloister.estimators.tables import Floats
from cloister.jobs import JobResult
from cloister.privacy.ledger import Ledger
from cloister.schema import Schema
from cloister.task import Task
from cloister.tasks.population import ENDS
from cloister.tasks.supervised.contrasts import combination, difference
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic


class DPLogisticRegression(PrivateClassifier):
    """Differentially private logistic regression over one table or over several silos.

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
    C : float, > 0
        Inverse strength of the penalty, as in scikit-learn, where numbers are scaled to ``[-1, 1]``
        by their public bounds; infinity for none. Intercepts are not penalised.
    class_weight : "balanced" or mapping of class to number, optional
        "balanced" weights are inverse to noisy class sizes.
    rounds : int, >= 3, optional
        Noisy sums; by default from the budget, `nominal_n` and the number of columns.
    clip : float in (0, 32], optional
        Length to which a record, centred and scaled, is shortened in the first gradients; by
        default shorter with more noise. The answer hardly depends on it.
    shrinkage : bool
        Whether coefficients that drown in noise are drawn toward 0.
    reference : mapping of column to category, optional
        That odds ratios are against in reports; by default a column's first.
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

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_, coef_low_, coef_high_ : ndarray of shape (n_outputs, n_columns)
        Data units, with 95 % intervals of the noise; one output for two classes, else one a class.
    coef_population_low_, coef_population_high_ : ndarray of shape (n_outputs, n_columns)
        95 % population intervals: noise and sampling, if the model is true. Very wide models have
        none.
    intercept_, intercept_low_, intercept_high_ : ndarray of shape (n_outputs,)
    feature_names_ : ndarray of shape (n_columns,)
        Columns of the design, such as ``age`` and ``sex=Female``.
    n_iter_ : int
    spent_, delta_ : float
    plan_ : Plan
    result_ : JobResult
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    Notes
    -----
    Neighbouring data sets differ by one record (or one unit of the schema) added or removed; its
    class is as private as all else. What the intervals say is in docs/how-to/regression.md.

    References
    ----------
    See :mod:`cloister.tasks.supervised.logistic`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 1000)
    >>> X = rng.normal(2 * y[:, None], 1, (2000, 2))
    >>> model = DPLogisticRegression(epsilon=1.0, bounds=(-5, 7), classes=[0, 1], nominal_n=2000)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    _task: ClassVar[type[Task]] = Logistic

    def __init__(
        self,
        *,
        epsilon: float,
        bounds: Any,
        target: str | None = None,
        classes: Any = None,
        C: float = 1.0,
        class_weight: str | Mapping[Any, float] | None = None,
        rounds: int | None = None,
        clip: float | None = None,
        shrinkage: bool = True,
        reference: Mapping[str, str] | None = None,
        nominal_n: int | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        frac_bits: int = 16,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.target = target
        self.classes = classes
        self.reference = reference
        self.C = C
        self.class_weight = class_weight
        self.rounds = rounds
        self.clip = clip
        self.shrinkage = shrinkage
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.frac_bits = frac_bits

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release a private model of the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is one silo each.
        y : array_like of shape (n_samples,), a list of these, or None
            None where `bounds` is a schema and X has the target.

        Returns
        -------
        DPLogisticRegression

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        self._check_parameters()
        schema, records, target = read_labelled(self, X, y, classes=self.classes)
        self._release(
            Logistic,
            schema,
            records,
            target=target,
            C=self.C,
            class_weight=self._weights(schema, target),
            rounds=self.rounds,
            clip=self.clip,
            shrinkage=self.shrinkage,
            reference=self.reference,
        )
        return self

    def _keep(self, result: JobResult) -> None:
        super()._keep(result)
        _set_coefficients(self)
        self.n_iter_: int = result.plan.rounds
        for end in ENDS:
            if f"coef{end}" in result.results:
                setattr(self, f"coef{end}_", result.results[f"coef{end}"])
                setattr(self, f"intercept{end}_", result.results[f"intercept{end}"])

    def odds_ratio(self, column: str, reference: str | None = None, label: Any = None) -> Between:
        """Return what one unit of a column, or one category instead of another, does to the odds.

        Parameters
        ----------
        column : str
            One of ``feature_names_``, such as ``"age"`` or ``"work=field"``.
        reference : str, optional
            Another one that it is compared with, such as ``"work=desk"``.
        label : object, optional
            One of ``classes_``, by default the last; its odds are against the first.

        Returns
        -------
        Between
            With both ends of the 95 % noise interval, and in `population` those of the interval
            that includes sampling.

        Raises
        ------
        PlanError
            If a name is not one of the model's, or the model is too wide to hold covariances.
        """
        check_is_fitted(self)
        names = [str(name) for name in self.feature_names_]
        if reference is None:
            weights = difference([*names, ""], column, "")
            weights[-1] = 0.0
        else:
            weights = np.append(difference(names, column, reference), 0.0)
        labels = self.classes_.tolist()
        if label is not None and label not in labels[1:]:
            raise PlanError(f"label must be a class besides the first, got {label!r}.")
        at = len(labels) - 1 if label is None else labels.index(label)
        task = self.plan_.task
        assert isinstance(task, Logistic)
        return task.odds_ratio(self.result_.results, weights, 0 if len(labels) == 2 else at)

    def _weights(self, schema: Schema, target: str) -> Any:
        """Return class weights by the schema's names of the classes."""
        if not isinstance(self.class_weight, Mapping):
            return self.class_weight
        names = next(c for c in schema.public if c.name == target).categories
        by_label = dict(zip(self.classes_.tolist(), names, strict=True))
        return {by_label.get(label, label): w for label, w in self.class_weight.items()}

    def decision_function(self, X: Any) -> Floats:
        """Return the log-odds of each record; shape (n_samples,) or (n_samples, n_classes)."""
        rows = grid_rows(self, X)
        task = self.plan_.task
        assert isinstance(task, Logistic)
        told = task.decision(self.result_.results, rows)
        return told[:, 0] if told.shape[1] == 1 else told

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record; shape (n_samples,)."""
        told = self.decision_function(X)
        best = (told > 0).astype(np.int64) if told.ndim == 1 else told.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels


class DPLinearRegression(RegressorMixin, PrivateEstimator):
    """Differentially private least squares, with a ridge if wanted.

    Parameters
    ----------
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high) or Schema
        Public bounds of each column, data units; never taken from the records.
    target : str, optional
        With a schema: the column of numbers that is to be told.
    target_bounds : (low, high), optional
        Without a schema: public bounds of y, required. What is outside is moved to the bound.
    alpha : float, >= 0
        Of the squared norm of the coefficients, as in scikit-learn's ``Ridge``, where numbers are
        scaled to ``[-1, 1]`` by their public bounds. The intercept is not penalised.
    clip : float in (0, 32], optional
        Most that a row, centred and scaled, counts for in the first model; by default shorter with
        more noise. The answer hardly depends on it.
    reference : mapping of column to category, optional
        That other categories are compared with in reports; by default a column's first.
    sandwich : bool
        Whether population intervals hold residuals whose variance depends on the columns; that
        takes 15 % of the budget.
    shrinkage, nominal_n, delta, ledger, dataset, frac_bits
        As in :class:`DPLogisticRegression`.

    Attributes
    ----------
    coef_, coef_low_, coef_high_ : ndarray of shape (n_columns,)
        Data units, with 95 % intervals of the noise about least squares on the same records. Those
        of categories sum to 0 over their column, as scikit-learn's on a one-hot design; compare
        two of them with :meth:`contrast`.
    coef_population_low_, coef_population_high_ : ndarray of shape (n_columns,)
        95 % population intervals: noise and sampling, for residuals of one variance, or with
        `sandwich` of any.
    intercept_, intercept_low_, intercept_high_ : float
    intercept_population_low_, intercept_population_high_ : float
    residual_std_, residual_std_low_, residual_std_high_ : float
        Standard deviation of the residuals with its 95 % interval, data units of the target.
    covariance_, sampling_covariance_ : ndarray of shape (n_columns + 1, n_columns + 1)
        Of coefficients and intercept: of the noise, and over samples of this size.
    feature_names_ : ndarray of shape (n_columns,)
    spent_, delta_ : float
    plan_ : Plan
    result_ : JobResult
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    References
    ----------
    See :mod:`cloister.tasks.supervised.linear`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 2))
    >>> y = 3 * X[:, 0] - X[:, 1] + rng.normal(0, 0.5, 5000)
    >>> model = DPLinearRegression(
    ...     epsilon=1.0, bounds=(-1, 1), target_bounds=(-6, 6), nominal_n=5000
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    _task: ClassVar[type[Task]] = Linear

    def __init__(
        self,
        *,
        epsilon: float,
        bounds: Any,
        target: str | None = None,
        target_bounds: Any = None,
        alpha: float = 0.0,
        clip: float | None = None,
        shrinkage: bool = True,
        sandwich: bool = False,
        reference: Mapping[str, str] | None = None,
        nominal_n: int | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        frac_bits: int = 16,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.target = target
        self.target_bounds = target_bounds
        self.alpha = alpha
        self.clip = clip
        self.shrinkage = shrinkage
        self.sandwich = sandwich
        self.reference = reference
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.frac_bits = frac_bits

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release a private model of the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is one silo each.
        y : array_like of shape (n_samples,), a list of these, or None
            None where `bounds` is a schema and X has the target.

        Returns
        -------
        DPLinearRegression

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        self._check_parameters()
        if not isinstance(self.bounds, Schema) and self.target_bounds is None:
            raise PlanError("target_bounds must be given: two public numbers that y lies between.")
        schema, records, target = read_labelled(self, X, y, target_bounds=self.target_bounds)
        self._release(
            Linear,
            schema,
            records,
            target=target,
            alpha=self.alpha,
            clip=self.clip,
            shrinkage=self.shrinkage,
            sandwich=self.sandwich,
            reference=self.reference,
        )
        drowned = self.result_.results["drowned"] > 0
        if drowned.any():
            names = ", ".join(map(str, self.feature_names_[drowned]))
            warnings.warn(
                f"nothing can be told of the coefficient of {names}: within its public bounds its "
                "values can hardly be told apart; give narrower bounds, or leave it out.",
                UserWarning,
                stacklevel=2,
            )
        return self

    def _keep(self, result: JobResult) -> None:
        super()._keep(result)
        _set_coefficients(self)
        results = result.results
        for end in ("", "_low", "_high", "_population_low", "_population_high"):
            setattr(self, f"coef{end}_", results[f"coef{end}"])
            setattr(self, f"intercept{end}_", float(results[f"intercept{end}"][0]))
        for end in ("", "_low", "_high"):
            setattr(self, f"residual_std{end}_", float(results[f"residual_std{end}"][0]))
        self.covariance_: Floats = results["covariance"]
        self.sampling_covariance_: Floats = results["sampling_covariance"]

    def contrast(self, level: str, reference: str) -> Between:
        """Return one coefficient less another, with intervals that know their covariance.

        Parameters
        ----------
        level, reference : str
            Two of ``feature_names_``, such as ``"work=field"`` and ``"work=desk"``.

        Returns
        -------
        Between
            Data units: the value, both ends of the 95 % noise interval, and in `population` those
            of the interval that includes sampling.

        Raises
        ------
        PlanError
            If a name is not one of the model's.
        """
        check_is_fitted(self)
        names = [str(name) for name in self.feature_names_]
        weights = np.append(difference(names, level, reference), 0.0)
        told = np.append(self.result_.results["coef"], self.intercept_)
        around = self.result_.results["around"]
        return combination(
            weights, told, self.covariance_, self.sampling_covariance_, around=around
        )

    def predict(self, X: Any) -> Floats:
        """Return the predicted target of each record; shape (n_samples,)."""
        rows = grid_rows(self, X)
        task = self.plan_.task
        assert isinstance(task, Linear)
        return task.predict(self.result_.results, rows)


def _set_coefficients(model: PrivateEstimator) -> None:
    """Set coefficients, intercepts, their intervals, and the names of the design's columns."""
    for name in ("coef", "intercept"):
        for end in ("", "_low", "_high"):
            setattr(model, f"{name}{end}_", model.result_.results[name + end])
    task = model.plan_.task
    assert isinstance(task, Logistic | Linear)
    model.feature_names_ = np.array(task.names[:-1], dtype=object)
