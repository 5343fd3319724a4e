"""Private linear, logistic and generalized linear models, with the interface of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.display import ENDS, Estimate
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.estimators.base import PrivateClassifier, PrivateRegressor
from cloister.estimators.forest import by_name
from cloister.estimators.tables import SiloData, grid_rows
from cloister.protocol.task import Task
from cloister.tasks.regression.expressions import names_in
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.imputed import ImputedRegression
from cloister.tasks.regression.parse import parse_formula
from cloister.tasks.supervised.contrasts import combination, difference
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic

_NOISE = ("", "_low", "_high")
_EVERY = (*_NOISE, *ENDS)
_NOT_IMPUTED = ("offset", "exposure", "weights", "formula")  # parameters that exclude it


@dataclass(kw_only=True, eq=False, repr=False)
class DPLogisticRegression(PrivateClassifier):
    """Differentially private logistic regression over one table or over several silos.

    Parameters
    ----------
    C, class_weight, rounds, clip, shrinkage, reference
        As for :class:`~cloister.tasks.supervised.logistic.Logistic`. Intercepts are not penalised.
        "balanced" weights are the inverse of noisy class sizes. The result depends little on
        `clip`. Odds ratios in reports are relative to the category `reference`.
    epsilon, bounds, target, classes, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateClassifier`.

    Attributes
    ----------
    coef_, coef_low_, coef_high_ : ndarray of shape (n_outputs, n_columns)
        Data units, with 95 % confidence intervals (privacy noise only). One output for two classes,
        otherwise one per class.
    coef_population_low_, coef_population_high_ : ndarray of shape (n_outputs, n_columns)
        95 % population intervals (noise and sampling), valid if the model is true. Absent for very
        wide models.
    intercept_, intercept_low_, intercept_high_ : ndarray of shape (n_outputs,)
    feature_names_ : ndarray of shape (n_columns,)
        Columns of the design, such as ``age`` and ``sex=Female``.
    n_iter_ : int

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

    C: float = 1.0
    class_weight: str | Mapping[Any, float] | None = None
    rounds: int | None = None
    clip: float | None = None
    shrinkage: bool = True
    reference: Mapping[str, str] | None = None

    def _options(self, data: SiloData) -> dict[str, Any]:
        # A plan has the schema's names of classes.
        weights = by_name(self.class_weight, data, self.classes_)
        return {**super()._options(data), "class_weight": weights}

    @property
    def _model(self) -> Logistic:
        task = self._own_task
        assert isinstance(task, Logistic)
        return task

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        names = [name + end for name in ("coef", "intercept") for end in _EVERY]
        self._set({f"{name}_": name for name in names})
        self.feature_names_ = np.array(self._model.names[:-1], dtype=object)
        # The number is fixed by the plan, so that it does not depend on records.
        self.n_iter_: int = result.plan.rounds

    def odds_ratio(self, column: str, reference: str | None = None, label: Any = None) -> Estimate:
        """Return the odds ratio of one unit of a column, or of one category against another.

        Parameters
        ----------
        column : str
            One of ``feature_names_``, such as ``"age"`` or ``"work=field"``.
        reference : str, optional
            Another of these names to compare with, such as ``"work=desk"``.
        label : object, optional
            One of ``classes_``, by default the last; its odds are relative to the first.

        Returns
        -------
        Estimate
            The value with its 95 % noise interval, and in `population` the interval that includes
            sampling.

        Raises
        ------
        PlanError
            If the model has no such name, or is too wide to have covariances.
        """
        model, names = self._model, [str(name) for name in self.feature_names_]
        if reference is None:
            # Against the intercept, whose own weight is then removed: the coefficient alone.
            weights = difference([*names, ""], column, "")
            weights[-1] = 0.0
        else:
            weights = np.append(difference(names, column, reference), 0.0)
        # The first class is the reference of all log-odds.
        labels = self.classes_.tolist()
        if label is not None and label not in labels[1:]:
            raise PlanError(f"label must be one of {labels[1:]}, got {label!r}.")
        at = len(labels) - 1 if label is None else labels.index(label)
        return model.odds_ratio(self.result_.results, weights, 0 if len(labels) == 2 else at)

    def decision_function(self, X: Any) -> Floats:
        """Return the log-odds of each record; shape (n_samples,) or (n_samples, n_classes)."""
        decision = self._model.decision(self.result_.results, grid_rows(self, X))
        # The shape that scikit-learn's tools expect for two classes.
        return decision[:, 0] if decision.shape[1] == 1 else decision

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record; shape (n_samples,)."""
        decision = self.decision_function(X)
        single = decision.ndim == 1
        best = (decision > 0).astype(np.int64) if single else decision.argmax(axis=1)
        return np.asarray(self.classes_[best])


@dataclass(kw_only=True, eq=False, repr=False)
class DPLinearRegression(PrivateRegressor):
    """Differentially private least squares, with an optional ridge penalty.

    Parameters
    ----------
    alpha, sandwich, clip, shrinkage, reference
        As for :class:`~cloister.tasks.supervised.linear.Linear`. The intercept is not penalised.
        The result depends little on `clip`.
    epsilon, bounds, target, target_bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateRegressor`.

    Attributes
    ----------
    coef_, coef_low_, coef_high_ : ndarray of shape (n_columns,)
        Data units, with 95 % confidence intervals (privacy noise only) for least squares on the
        same records. Those of categories sum to 0 over their column, as in scikit-learn for a
        one-hot design; compare two of them with :meth:`contrast`.
    coef_population_low_, coef_population_high_ : ndarray of shape (n_columns,)
        95 % population intervals (noise and sampling), for residuals of equal variance, or with
        `sandwich` of any variance.
    intercept_, intercept_low_, intercept_high_ : float
    intercept_population_low_, intercept_population_high_ : float
    residual_std_, residual_std_low_, residual_std_high_ : float
        Standard deviation of the residuals with its 95 % interval, data units of the target.
    covariance_, sampling_covariance_ : ndarray of shape (n_columns + 1, n_columns + 1)
        Covariance of coefficients and intercept, by noise and by sampling.
    feature_names_ : ndarray of shape (n_columns,)

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

    alpha: float = 0.0
    clip: float | None = None
    shrinkage: bool = True
    sandwich: bool = False
    reference: Mapping[str, str] | None = None

    def fit(self, X: Any, y: Any = None, **refused: Any) -> Self:
        """Release a private model of the records; see :meth:`PrivateSupervised.fit`.

        Warns
        -----
        UserWarning
            If a coefficient could not be estimated.
        """
        self._fit(X, y, **refused)
        # From released values, so a warning discloses nothing.
        drowned = self.result_.results["drowned"] > 0
        if drowned.any():
            names = ", ".join(map(str, self.feature_names_[drowned]))
            warnings.warn(
                f"the coefficient of {names} could not be estimated: its values hardly differ "
                "within the public bounds, or noise hides so few records; give narrower bounds, "
                "leave the column out, or raise epsilon.",
                UserWarning,
                stacklevel=2,
            )
        return self

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        names = [f"coef{end}" for end in _EVERY]
        self._set({f"{name}_": name for name in (*names, "covariance", "sampling_covariance")})
        numbers = [f"intercept{end}" for end in _EVERY] + [f"residual_std{end}" for end in _NOISE]
        for name in numbers:
            # Numbers, as in scikit-learn, not arrays of one.
            setattr(self, f"{name}_", float(result.results[name][0]))
        self.feature_names_ = np.array(self._model.names[:-1], dtype=object)

    @property
    def _model(self) -> Linear:
        task = self._own_task
        assert isinstance(task, Linear)
        return task

    def contrast(self, level: str, reference: str) -> Estimate:
        """Return the difference of two coefficients, with intervals that use their covariance.

        Parameters
        ----------
        level, reference : str
            Two of ``feature_names_``, such as ``"work=field"`` and ``"work=desk"``.

        Returns
        -------
        Estimate
            Data units: the value with its 95 % noise interval, and in `population` the interval
            that includes sampling.

        Raises
        ------
        PlanError
            If the model has no such name.
        """
        check_is_fitted(self)
        names = [str(name) for name in self.feature_names_]
        weights = np.append(difference(names, level, reference), 0.0)
        values = np.append(self.coef_, self.intercept_)
        # Intervals are about least squares, not about the shrunken coefficients.
        middle = self.result_.results["around"]
        return combination(
            weights, values, self.covariance_, self.sampling_covariance_, middle=middle
        )

    def predict(self, X: Any) -> Floats:
        """Return the predicted target of each record; shape (n_samples,)."""
        return self._model.predict(self.result_.results, grid_rows(self, X))


@dataclass(kw_only=True, eq=False, repr=False)
class DPGeneralizedLinearRegressor(PrivateRegressor):
    """Differentially private regression of a mean: numbers, shares, counts and costs.

    Parameters
    ----------
    family : {"gaussian", "binomial", "poisson", "negative-binomial", "gamma"}
        Distribution of the target. Its link is the identity, the logit, or else the logarithm.
    covariates, offset, exposure, weights, alpha, sandwich, reference, rows_of_unit, n_units
        As for :class:`~cloister.tasks.regression.glm.GeneralizedLinear`; columns by name, and all
        other columns are covariates by default. `alpha` is the over-dispersion of negative binomial
        counts, `rows_of_unit` and `n_units` are public numbers.
    by_silo : bool
        Whether 2 % of the budget show if coefficients would change with the term ``site``; only for
        several silos, and without that term.
    formula : str, optional
        Target and terms in place of `target`, `covariates`, `offset`, `exposure` and `reference`,
        such as ``"y ~ age + C(arm) + site + offset(log(t))"``; see
        :func:`~cloister.tasks.regression.parse.parse_formula`. It needs a schema.
    missing : {"drop", "impute"}
        What is done with a record that lacks a cell of a column with the rule ``missing = "keep"``
        in the schema: leave it out, or complete it, see
        :class:`~cloister.tasks.regression.imputed.ImputedRegression`.
    epsilon, bounds, target, target_bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateRegressor`.

    Attributes
    ----------
    coef_, coef_low_, coef_high_ : ndarray of shape (n_columns,)
        Data units, with 95 % confidence intervals (privacy noise only) for the maximum of the
        likelihood of the same records. A category is compared with its reference, by default the
        most frequent one, or the first one in a formula. Not a number if noise hides a coefficient.
    coef_population_low_, coef_population_high_ : ndarray of shape (n_columns,)
        95 % population intervals (noise and sampling).
    intercept_, intercept_low_, intercept_high_ : float
    intercept_population_low_, intercept_population_high_ : float
    coef_shrunk_, intercept_shrunk_ : ndarray of shape (n_columns,), and float
        The coefficients of predictions: drawn to 0 as far as the noise requires.
    covariance_, sampling_covariance_ : ndarray of shape (n_columns + 1, n_columns + 1)
        Covariance of coefficients and intercept, by noise and by sampling.
    feature_names_ : ndarray of shape (n_columns,)
    site_change_, site_change_low_, site_change_high_ : ndarray of shape (n_columns,)
        Only with `by_silo` and several silos: how far coefficients would move with the term
        ``site``, with 95 % intervals of noise and sampling.
    lacking_, lacking_low_, lacking_high_ : ndarray of shape (n_incomplete,)
        Only with imputed cells: the share of records that lack each column, with its interval.
    missing_information_ : ndarray of shape (n_columns,)
        Only with imputed cells: the part of the variance over samples that they add.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPGeneralizedLinearRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (8000, 2))
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0]))
    >>> model = DPGeneralizedLinearRegressor(
    ...     family="poisson", epsilon=2.0, bounds=(-1, 1), target_bounds=(0, 10), nominal_n=8000
    ... )
    >>> bool(abs(model.fit(X, y).coef_[0] - 0.5) < 0.2)
    True
    """

    _task: ClassVar[type[Task]] = GeneralizedLinear
    _other_tasks: ClassVar[tuple[type[Task], ...]] = (ImputedRegression,)

    family: str = "gaussian"
    covariates: Sequence[str] = ()
    offset: str | None = None
    exposure: str | None = None
    weights: str | None = None
    alpha: float = 1.0
    sandwich: bool | None = None
    reference: Mapping[str, str] | None = None
    rows_of_unit: int = 1
    n_units: int | None = None
    by_silo: bool = True  # whoever has the records of all silos may compare them
    formula: str | None = None
    missing: str = "drop"

    @property
    def _kind(self) -> type[Task]:
        return ImputedRegression if self.missing == "impute" else GeneralizedLinear

    @property
    def _named_target(self) -> str | None:
        if self.formula is None:
            return self.target
        named = names_in(parse_formula(self.formula).target)
        # An expression of two columns is refused when the task is designed.
        return min(named, default=None)

    @property
    def _scored_target(self) -> str | None:
        """The column that predictions are compared with, unless the target is an expression."""
        name = self._named_target
        is_column = self.formula is None or parse_formula(self.formula).target == ("column", name)
        return name if is_column else None

    def _options(self, data: SiloData) -> dict[str, Any]:
        options = super()._options(data)
        if self.formula is not None:
            options["formula"] = parse_formula(self.formula).to_dict()
        return options

    def _check(self) -> None:
        if self.missing not in ("drop", "impute"):
            raise PlanError(f"missing must be 'drop' or 'impute', got {self.missing!r}.")
        if self.missing == "impute" and (more := [n for n in _NOT_IMPUTED if getattr(self, n)]):
            raise PlanError(f"missing='impute' has no {more[0]}; remove it.")
        if not isinstance(self.bounds, Schema) and self.formula is not None:
            raise PlanError(
                "formula needs a schema as bounds, whose columns it names; give "
                "bounds=Schema.propose(table, {...}) and fit the table without y."
            )
        super()._check()

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        names = [*(f"coef{end}" for end in _EVERY), "coef_shrunk"]
        names += [name for name in result.results if name.startswith("site_change")]
        names += ["covariance", "sampling_covariance", "missing_information"]
        names += [f"lacking{end}" for end in _NOISE]
        self._set({f"{name}_": name for name in names})
        for name in [*(f"intercept{end}" for end in _EVERY), "intercept_shrunk"]:
            setattr(self, f"{name}_", float(result.results[name][0]))
        self.feature_names_ = np.array(self._model.names[:-1], dtype=object)

    @property
    def _model(self) -> GeneralizedLinear:
        task = self._own_task
        task = task.analysis if isinstance(task, ImputedRegression) else task
        assert isinstance(task, GeneralizedLinear)
        return task

    def predict(self, X: Any, silo: str | None = None) -> Floats:
        """Return the predicted mean of the target of each record; shape (n_samples,).

        `silo` is the silo of all records, if the formula has the term ``site``.
        """
        task = self._model if silo is None else self._model.at_silo(silo)
        return task.predict(self.result_.results, grid_rows(self, X))
