"""What our estimators have in common: what they may spend, how they run, are saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.compiled import say_slow
from cloister.core.errors import DataError, PlanError
from cloister.data.schema import Schema
from cloister.estimators.release import BudgetParameters, release
from cloister.estimators.results import ReleaseMixin
from cloister.estimators.tables import (
    SiloData,
    as_labels,
    category_column,
    check_schema,
    grid_rows,
    plain_schema,
    read_labelled,
    read_silos,
)
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier, Task
from cloister.tasks.options import options_of
from cloister.tasks.preparation.pipeline import Pipeline

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger


_OF_COLUMNS = frozenset({"target", "group", "time", "event", "by", "covariates"})
"""Parameters that name columns, which a plan has by their places."""


def public_seed(random_state: Any) -> int:
    """Return the seed of public choices; noise takes none."""
    return int(check_random_state(random_state).randint(2**31 - 1))


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(ReleaseMixin, BaseEstimator):
    """An estimator whose fit is one private release.

    The parameters below are those of every estimator of ours; each adds its own. An estimator that
    has `prepare`, a list of (name, options) of steps such as ``[("standardise", {})]``, runs them
    before its own task, in one plan with one cost.

    Parameters
    ----------
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high), list of (low, high), mapping of names to (low, high), or Schema
        Public bounds of each column, data units; records are clipped to them. Never take them from
        the records. A tuple is of two numbers, for all columns, or of two sequences; a list has one
        tuple for each column. A schema also has categories, booleans and the privacy unit, and says
        what happens to missing values.
    nominal_n : int, optional
        Public contract value for the number of records. Without it, 2 % of the budget pay for a
        noisy count.
    delta : float, optional
        ``min(1e-6, 1 / (100 nominal_n))`` if not given, 1e-6 without `nominal_n`; the value used
        is in ``delta_``.
    ledger : Ledger or path, optional
        Where the fit is charged before it releases anything; it refuses to overspend. Without one
        nothing remembers what was spent.
    dataset : str, optional
        Name under which the ledger knows the data; a schema has its own.
    frac_bits : int in [4, 24]
        Records are rounded to multiples of ``2**-frac_bits`` of half a column's range.
    max_loss : float in [0, 1], optional
        Share of the rows of each silo that may be left out. By default 5 %, and no value of a
        target, event or group may lose all of its rows. Otherwise a fit raises a DataError before
        anything is spent; below the limit, a DataLossWarning says what is left out.

    Attributes
    ----------
    result_ : Release
    plan_ : Plan
    spent_ : float
        Epsilon spent, at ``delta_``.
    delta_ : float
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    Notes
    -----
    Neighbouring data sets differ by one record (or one unit of the schema) added or removed.
    """

    _task: ClassVar[type[Task]]  # of which a model is
    _names: ClassVar[Mapping[str, str]] = {}  # of options that scikit-learn calls otherwise
    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise
    _columns: ClassVar[Sequence[str] | None] = None  # that tables with names must have, in order

    epsilon: float
    bounds: Any
    nominal_n: int | None = None
    delta: float | None = None
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    frac_bits: int = 16
    max_loss: float | None = None

    def fit(self, X: Any, y: Any = None, **refused: Any) -> Self:
        """Release what the task says of the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is one silo each: their vectors are masked and summed as in a federation. Tables
            with names of columns are matched by name, arrays by place. Paths name CSV or Parquet
            files, which may be larger than memory. See :mod:`cloister.data` for other sources.
        y : array_like of shape (n_samples,), a list of these, or None
            Of an estimator that predicts, the target: None where `bounds` is a schema and X has it,
            or X is a list of pairs (X, y), one for each silo. Others ignore it. A record with a
            missing or impossible label is left out.
        refused
            Nothing else is taken. Of `sample_weight` the error says what to do instead.

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        self._fit(X, y, **refused)
        return self

    def _fit(self, X: Any, y: Any, **refused: Any) -> SiloData:
        """Check, read, release, keep; return what was read."""
        _refuse(refused)
        self._check()
        say_slow()
        spending = self._spending()
        data = self._read(X, y, spending)
        task, options = self._task_of(self._options(data))
        noise = type(self)._new_noise()
        self._keep(release(task, data, spending, noise=noise, **options))
        if data.names:
            self.feature_names_in_ = np.array(data.names, dtype=object)
        return data

    def _check(self) -> None:
        """Refuse what is wrong with the own parameters before a record is read."""

    def _spending(self) -> BudgetParameters:
        return BudgetParameters(**{f.name: getattr(self, f.name) for f in fields(BudgetParameters)})

    def _read(self, X: Any, y: Any, spending: BudgetParameters) -> SiloData:
        return read_silos(X, spending, names=self._columns)

    def _options(self, data: SiloData) -> dict[str, Any]:
        """Return the options that the task declares and the estimator or its data have."""
        own = self.get_params(deep=False)
        given = {self._names.get(name, name): value for name, value in own.items()}
        given["target"] = data.target or given.get("target")
        if "random_state" in own:
            given["public_seed"] = public_seed(own["random_state"])
        known = {option.name for option in options_of(self._kind)}
        chosen = {name: _plain(given[name]) for name in known & given.keys()}
        return {k: v for k, v in chosen.items() if v is not None}  # None: the task's own default

    @property
    def _kind(self) -> type[Task]:
        """The task that a fit runs."""
        return self._task

    def _task_of(self, options: dict[str, Any]) -> tuple[type[Task], dict[str, Any]]:
        """Return the task with its options, after the steps of `prepare` if there are any."""
        if steps := getattr(self, "prepare", None):
            return Pipeline, {"steps": [*steps, (self._kind.name, options)]}
        return self._kind, options

    def _keep(self, result: Release) -> None:
        """Set the fitted attributes, functions of a released result alone."""
        plan = result.plan
        self.result_ = result
        self.plan_: Plan = plan
        self.spent_: float = result.epsilon()
        self.delta_: float = plan.budget.delta if plan.budget else 0.0
        target = getattr(plan.task, "target", None)
        names = [name for j, name in enumerate(plan.columns) if j != target]
        self.n_features_in_: int = len(names)
        self.__dict__.pop("feature_names_in_", None)
        if names != [f"x{j}" for j in range(len(names))]:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _set(self, attributes: dict[str, str]) -> None:
        """Set attributes from the results of these names; those that are not there stay absent."""
        for name, key in attributes.items():
            self.__dict__.pop(name, None)
            if key in self.result_.results:
                setattr(self, name, self.result_.results[key])

    @property
    def _own_task(self) -> Task:
        """The fitted task itself, without the steps before it."""
        check_is_fitted(self)
        return _last_step(self.plan_.task)

    @property
    def _own_columns(self) -> tuple[str, ...]:
        """Names of the columns that reach the task itself."""
        task = self.plan_.task
        return task.last_step_columns if isinstance(task, Pipeline) else self.plan_.columns

    def save(self, path: str | Path) -> None:
        """Write the released model as JSON with the digest of its plan; it holds no records."""
        check_is_fitted(self)
        self.result_.save(path)

    @classmethod
    def load(cls, path: str | Path, *, bounds: Schema | None = None, **parameters: Any) -> Self:
        """Read a model to predict with; costs nothing.

        Parameters
        ----------
        path : path
            Written by :meth:`save`, or the ``model.json`` of a job.
        bounds : Schema, optional
            The contract of the fit, required if the fit had one; a file does not hold it. Only
            k-means may be asked without it, in the numbers of its grid.
        parameters
            Of the estimator, where the file does not hold them, such as `costs`; the others have
            their defaults. Labels of digits, or ``"True"`` and ``"False"``, become numbers or
            truth values unless they are given as `classes`.

        Raises
        ------
        DataError
            If the file is not a model of this estimator.
        PlanError
            If the schema is missing, or is not that of the model.
        """
        result = Release.load(path)
        plan = result.plan
        own = cls._own_parameters(result)
        if own is None or plan.budget is None:
            raise DataError(
                f"model holds the task {plan.task.name!r}, not {cls._holds()}; load it with the "
                "estimator that saved it."
            )
        agreed = {
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta,
            "nominal_n": plan.nominal_n,
            "frac_bits": plan.grid.frac_bits,
        }
        contract = cls._contract(plan, bounds)
        model = cls(**{**agreed, **own, **contract, **parameters})
        model._keep(result)
        return model

    @classmethod
    def _holds(cls) -> str:
        """Say which task a file of this estimator holds."""
        return repr(cls._task.name)

    @classmethod
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        """Return the own parameters that a file holds, or None if it is of another estimator."""
        names, task = set(cls._get_param_names()), result.plan.task
        own = _last_step(task) if "prepare" in names else task
        if type(own) is not cls._task:
            return None
        found = {name: getattr(own, name, None) for name in names - _OF_COLUMNS}
        return {k: v for k, v in found.items() if isinstance(v, bool | int | float | str)}

    @classmethod
    def _contract(cls, plan: Plan, schema: Schema | None) -> dict[str, Any]:
        """Return the parameters that say what the columns are: of a schema, or of plain bounds."""
        names: set[str] = set(cls._get_param_names())
        if schema is not None:
            check_schema(schema, plan)
            at = {k: getattr(plan.task, k, None) for k in names & _OF_COLUMNS}
            named = {
                k: tuple(plan.columns[i] for i in j)
                if isinstance(j, tuple)
                else (None if j is None else plan.columns[j])
                for k, j in at.items()
            }
            return {"bounds": schema, **named}
        target: int | None = getattr(plan.task, "target", None)
        low, high = plan.grid.low, plan.grid.high
        columns = list(plain_schema((low, high), plan.columns, None).columns)
        features = [j for j in range(len(columns)) if j != target]
        found: dict[str, Any] = {"bounds": tuple([end[j] for j in features] for end in (low, high))}
        if target is not None and isinstance(plan.task, Classifier):
            columns[target] = category_column(plan.columns[target], plan.task.classes)
        elif target is not None:
            found["target_bounds"] = (low[target], high[target])
        check_schema(Schema(dataset="unnamed", unit="row", columns=tuple(columns)), plan)
        return found

    def __sklearn_tags__(self) -> Any:
        return private_tags(super().__sklearn_tags__())


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse arguments that `fit` has not; `sample_weight` with the reason and a way out."""
    for name, value in given.items():
        if name != "sample_weight":
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise PlanError(
                "sample_weight must be None: a weight multiplies what one record changes, which "
                "the noise would not cover; leave out records of weight 0, and repeat rows for "
                "whole weights, with a schema whose unit names the record and whose max_rows is "
                "the largest weight."
            )


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, which a plan can hold."""
    return value.item() if isinstance(value, np.generic) else value


def private_tags(tags: Any) -> Any:
    """Return scikit-learn's tags of an estimator with fresh noise in every fit."""
    tags.input_tags.sparse = False
    tags.non_deterministic = True
    return tags


def _last_step(task: Task) -> Task:
    return task.steps[-1] if isinstance(task, Pipeline) else task


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSupervised(PrivateEstimator):
    """An estimator that predicts one column.

    Parameters
    ----------
    target : str, optional
        With a schema: the column that is predicted.
    """

    target: str | None = None

    def _read(self, X: Any, y: Any, spending: BudgetParameters) -> SiloData:
        known = {k: getattr(self, k, None) for k in ("target", "classes", "target_bounds")}
        return read_labelled(X, y, spending, **known, names=self._columns)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateSupervised):
    """What every classifier of ours predicts, from what its task released.

    Parameters
    ----------
    classes : sequence or "in_y"
        Without a schema: the public labels, or the statement that the set of labels in y is public.
        A record of another class is left out.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)

    Notes
    -----
    The class of a record is as private as all else.
    """

    classes: Any = None

    def _read(self, X: Any, y: Any, spending: BudgetParameters) -> SiloData:
        data = super()._read(X, y, spending)
        self.classes_: NDArray[Any] = np.array([]) if data.classes is None else data.classes
        return data

    @classmethod
    def load(cls, path: str | Path, *, bounds: Schema | None = None, **parameters: Any) -> Self:
        """Read a model to predict with; costs nothing. See :meth:`PrivateEstimator.load`."""
        model = super().load(path, bounds=bounds, **parameters)
        task = model.plan_.task
        assert isinstance(task, Classifier)
        if bounds is None:
            model.classes_ = _loaded_classes(parameters.get("classes"), task.classes)
            model.classes = model.classes_.tolist()
        else:
            model.classes_ = as_labels(task.classes)
        return model

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, (n_samples, n_classes); local, costs nothing."""
        rows = grid_rows(self, X)
        task = self.plan_.task
        assert isinstance(task, Classifier)
        return task.probabilities(self.result_.results, rows)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of :meth:`predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record; shape (n_samples,)."""
        best = self.predict_proba(X).argmax(axis=1)  # first: it says if nothing was fitted
        return np.asarray(self.classes_[best])


def _loaded_classes(given: Any, categories: Sequence[str]) -> NDArray[Any]:
    """Return labels in the order of the categories that stand for them in a model."""
    if given is None:
        return np.array(as_labels(categories).tolist())
    labels = np.unique(np.asarray(given))
    by_category = {str(label).strip(): label for label in labels.tolist()}
    if by_category.keys() != set(categories):
        raise PlanError(
            f"classes must be given as the labels of the model, {list(categories)}, got {given!r}."
        )
    return np.array([by_category[name] for name in categories], dtype=labels.dtype)
