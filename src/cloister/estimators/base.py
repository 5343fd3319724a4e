"""The base classes of all estimators: their budget, fit, storage and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cloister.app.job import Job, columns_used
from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.capability import CAPABILITIES
from cloister.core.compiled import say_slow
from cloister.core.errors import CloisterError, DataError, PlanError, choosing
from cloister.data import as_silos, is_frame
from cloister.data.records import empty_table
from cloister.data.schema import Schema
from cloister.estimators.plans import FitPlan, plan_of_fit
from cloister.estimators.release import BudgetParameters, check_whole, job_for, release
from cloister.estimators.results import ReleaseMixin
from cloister.estimators.tables import (
    SiloData,
    as_labels,
    category_column,
    check_schema,
    declared_classes,
    grid_rows,
    is_list_of_tables,
    label_parts,
    matched,
    plain_schema,
    read_labelled,
    read_silos,
    scored_rows,
    unpaired,
)
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier, Task
from cloister.tasks.options import options_of
from cloister.tasks.preparation.pipeline import Pipeline

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger


_OF_COLUMNS = frozenset(
    {"target", "group", "time", "event", "by", "covariates", "offset", "exposure", "weights"}
    | {"treatment", "outcome"}
)
"""Parameters that name columns, which a plan identifies by position."""
_REASONS: Mapping[str, str] = {
    "max_iter": "each round costs budget, so a plan fixes their number; some methods have the "
    "parameter rounds",
    "tol": "a plan fixes the number of rounds, so no fit stops early",
    "n_init": "each start would cost budget; there is one",
    "n_jobs": "each silo sums its own records",
    "warm_start": "each fit is a release with its own cost",
}
"""Parameters of scikit-learn that no estimator here has, and why."""


def public_seed(random_state: Any) -> int:
    """Return the seed of public choices; the noise has no seed."""
    return int(check_random_state(random_state).randint(2**31 - 1))


class _OfConstructor:
    """The signature of a class: that of its constructor."""

    def __get__(self, _: object, owner: type) -> Signature:
        found = signature(owner.__init__)  # type: ignore[misc]  # of a class, not an instance
        return found.replace(parameters=list(found.parameters.values())[1:])


class Explained:
    """A base of estimators that explain why they lack a parameter of other libraries."""

    _reasons: ClassVar[Mapping[str, str]] = _REASONS
    # Python 3.11.2 would take that of __new__ for a class that inherits its constructor.
    __signature__ = _OfConstructor()

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        """Raise TypeError with the reason for a parameter that only other libraries have."""
        known = cls._get_param_names()  # type: ignore[attr-defined]  # of every BaseEstimator
        for name in parameters.keys() & cls._reasons.keys() - set(known):
            raise TypeError(f"{cls.__name__} has no parameter {name!r}: {cls._reasons[name]}.")
        made: Self = super().__new__(cls)
        return made


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(ReleaseMixin, Explained, BaseEstimator):
    """An estimator whose fit is one private release.

    Every estimator of this package has the parameters below and adds others. Some have `prepare`, a
    list of (name, options) of steps such as ``[("standardise", {})]``. These run before the task of
    the estimator, in one plan with one cost.

    Parameters
    ----------
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high), list of (low, high), mapping of names to (low, high), or Schema
        Public bounds of each column, data units; records are clipped to them. Never take them from
        the records. A tuple has two numbers, for all columns, or two sequences; a list has one
        tuple for each column. For two columns, sequences that could be pairs are refused, but not
        arrays. A schema also has categories, booleans, the privacy unit and rules for missing
        values.
    nominal_n : int, optional
        Public contract value for the number of records. If omitted, 2 % of the budget is spent on a
        noisy count.
    delta : float, optional
        By default ``min(1e-6, 1 / (100 nominal_n))``, or 1e-6 without `nominal_n`. ``delta_`` is
        the value used.
    ledger : Ledger or path, optional
        The ledger that charges the fit before its release and refuses to exceed the budget. Without
        a ledger no cost is recorded.
    dataset : str, optional
        Name of the data in the ledger; by default that of the schema.
    frac_bits : int in [4, 24]
        Records are rounded to multiples of ``2**-frac_bits`` of half a column's range.
    max_loss : float in [0, 1], optional
        Share of the rows of each silo that may be left out. By default 5 %, and each value of a
        target, event or group must keep at least one row. Otherwise a fit raises a DataError before
        any budget is spent. Below the limit, a DataLossWarning reports the rows left out.

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

    _task: ClassVar[type[Task]]  # of the model
    _other_tasks: ClassVar[tuple[type[Task], ...]] = ()  # that it may have instead
    _names: ClassVar[Mapping[str, str]] = {}  # of options with other names in scikit-learn
    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise
    _columns: ClassVar[Sequence[str] | None] = None  # required of tables with names, in order

    epsilon: float
    bounds: Any
    nominal_n: int | None = None
    delta: float | None = None
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    frac_bits: int = 16
    max_loss: float | None = None

    def fit(self, X: Any, y: Any = None, **refused: Any) -> Self:
        """Release the task's results for the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list has one element per silo, whose vectors are masked and summed as in a federation.
            Tables with column names are matched by name, arrays by position. Paths name CSV or
            Parquet files, which may be larger than memory. See :mod:`cloister.data` for other
            sources.
        y : array_like of shape (n_samples,), a list of these, or None
            The target of an estimator that predicts; other estimators ignore it. None if `bounds`
            is a schema and X has the target, or if X is a list of pairs (X, y), one for each silo.
            A record with a missing or impossible label is left out.
        refused
            Other arguments raise an error. For `sample_weight` it names an alternative.

        Raises
        ------
        PlanError, DataError
            Before any budget is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        self._fit(X, y, **refused)
        return self

    def plan(
        self,
        X: Any = None,
        y: Any = None,
        *,
        silos: int | None = None,
        want: Mapping[str, float] | None = None,
    ) -> FitPlan:
        """Return the cost, the expected error and the refusals of a fit, at no cost.

        Parameters
        ----------
        X : as for `fit`, or sequence of str, optional
            Only the names or the number of its columns are read; texts in a list are names. By
            default they are those of the schema or of a mapping in `bounds`.
        y : as for `fit`, optional
            Only its set of labels is read, and only with ``classes="in_y"``.
        silos : int >= 1, optional
            Number of silos of the fit; by default that of X, or 1.
        want : mapping of str to float, optional
            Wanted half-widths by a name of `margins` or a column. The plan then has the least
            epsilon that is expected to give them, in place of that of the estimator.

        Returns
        -------
        FitPlan
            It prints as text; `margins` are the half-widths by name, and `cost` is the budget.

        Raises
        ------
        PlanError
            If the fit would raise it, or the columns are not known.

        Examples
        --------
        >>> from cloister import DPKMeans
        >>> model = DPKMeans(2, epsilon=1.0, bounds={"age": (0, 100)}, nominal_n=5000)
        >>> print(model.plan().cost)
        epsilon=1, delta=1e-06
        """
        tables = _tables_of(X)
        count = len(tables) or 1 if silos is None else silos
        check_whole(silos=count)
        if len(tables) > 1 and count != len(tables):
            raise PlanError(f"silos must be {len(tables)}, as in X, or omitted, got {silos}.")
        _, labels = unpaired(X, y)
        job, spending = self._job([f"silo-{i}" for i in range(count)], tables or X, labels)
        return plan_of_fit(job, spending, want)

    def _job(
        self, silos: Sequence[str], X: Any = None, labels: Any = None
    ) -> tuple[Job, BudgetParameters]:
        """Return the job of a fit of named silos, from the names of columns and public labels."""
        model = copy(self)  # since reading may set attributes of a fitted model
        # An empty table has no labels from which public ones could be known.
        if labels is not None and hasattr(model, "classes"):
            parts = label_parts(labels, len(silos))
            model.__dict__["classes"] = declared_classes(parts, model.classes)
        model._check()
        spending = model._spending()
        empty, has_labels = self._empty(X, spending)
        y: Any = [[]] * len(silos) if has_labels else None
        data = model._read([empty] * len(silos), y, spending)
        task, options = model._task_of(model._options(data))
        return replace(job_for(task, data, spending, options), silos=tuple(silos)), spending

    def _empty(self, X: Any, spending: BudgetParameters) -> tuple[Any, bool]:
        """Return a table without rows, and True if a fit also needs labels."""
        schema, has_labels = spending.schema, isinstance(self, PrivateSupervised)
        if schema is not None:
            units = [schema.unit_column] if schema.unit_column else []
            return empty_table([*schema.names, *units]), False
        if X is None:
            if not isinstance(self.bounds, Mapping):
                raise PlanError("X must be given, or bounds by name, so that columns are known.")
            names: Sequence[str] = list(self.bounds)
        elif isinstance(X, list | tuple) and all(isinstance(name, str) for name in X):
            names = X
        else:
            silos, names, _ = matched(X, self._columns)
            if not is_frame(silos[0]) and hasattr(silos[0], "shape"):
                return np.empty((0, len(names))), has_labels
        return empty_table(names), has_labels

    def _fit(self, X: Any, y: Any, **refused: Any) -> SiloData:
        """Run a fit and return the data that were read."""
        _refuse(refused)
        self._check()
        say_slow()  # warns once if the compiled loops are missing
        spending = self._spending()
        data = self._read(X, y, spending)
        task, options = self._task_of(self._options(data))
        # A class attribute, so that only a test can replace the noise.
        noise = type(self)._new_noise()
        # Attributes come from the released result alone, so no record can leak into a fitted model.
        self._keep(release(task, data, spending, noise=noise, **options))
        # As scikit-learn requires, only for a frame whose columns have names.
        if data.names:
            self.feature_names_in_ = np.array(data.names, dtype=object)
        return data

    def _check(self) -> None:
        """Raise for invalid parameters of the subclass before a record is read."""

    def _spending(self) -> BudgetParameters:
        own = {
            f.name: getattr(self, f.name) for f in fields(BudgetParameters) if f.name != "columns"
        }
        return BudgetParameters(**own, columns=self._used_columns())

    def _used_columns(self) -> tuple[str, ...] | None:
        """Return the columns of a schema that the parameters name; None for all, as a command."""
        schema, row = self.bounds, CAPABILITIES.get(self._kind.name)
        if not (isinstance(schema, Schema) and row and row.only) or getattr(self, "prepare", None):
            return None
        target = getattr(self, "_named_target", None)
        return columns_used(self._kind, self._options(SiloData(schema, {}, target=target)), schema)

    def _read(self, X: Any, y: Any, spending: BudgetParameters) -> SiloData:
        return read_silos(X, spending, names=self._columns)

    def _options(self, data: SiloData) -> dict[str, Any]:
        """Return the options of the task, from the estimator's parameters and its data."""
        parameters = self.get_params(deep=False)
        values = {self._names.get(name, name): value for name, value in parameters.items()}
        values["target"] = data.target or values.get("target")
        if "random_state" in parameters:
            values["public_seed"] = public_seed(parameters["random_state"])
        declared = {option.name for option in options_of(self._kind)}
        options = {name: _plain(values[name]) for name in declared & values.keys()}
        return {k: v for k, v in options.items() if v is not None}  # None means the task's default

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
        """Set the fitted attributes, which depend only on the released result."""
        plan = result.plan
        self.result_ = result
        self.plan_: Plan = plan
        self.spent_: float = result.epsilon()
        self.delta_: float = plan.budget.delta if plan.budget else 0.0
        # scikit-learn does not count the target as a feature.
        target = getattr(plan.task, "target", None)
        names = [name for j, name in enumerate(plan.columns) if j != target]
        self.n_features_in_: int = len(names)
        self.__dict__.pop("feature_names_in_", None)
        # Generated names are not set, because scikit-learn would then require them of new tables.
        if names != [f"x{j}" for j in range(len(names))]:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _set(self, attributes: dict[str, str]) -> None:
        """Set attributes from the named results; delete those without a result."""
        for name, key in attributes.items():
            self.__dict__.pop(name, None)  # it may remain from an earlier fit
            if key in self.result_.results:
                setattr(self, name, self.result_.results[key])

    @property
    def _own_task(self) -> Task:
        """The fitted task without its preparation steps."""
        check_is_fitted(self)
        return _last_step(self.plan_.task)

    @property
    def _own_columns(self) -> tuple[str, ...]:
        """Names of the columns after the preparation steps."""
        task = self.plan_.task
        return task.last_step_columns if isinstance(task, Pipeline) else self.plan_.columns

    def save(self, path: str | Path) -> None:
        """Write the released model as JSON without records, and its words to ``PATH.sums``."""
        check_is_fitted(self)
        self.result_.save(path)

    @classmethod
    def load(
        cls, path: str | Path, *, bounds: Schema | str | Path | None = None, **parameters: Any
    ) -> Self:
        """Load a model for predictions, at no cost.

        Parameters
        ----------
        path : path
            Written by :meth:`save`, or the ``model.json`` of a job.
        bounds : Schema or path of one, optional
            The schema of the fit, required if the fit had one, since the file does not contain it.
            Only k-means can predict without it, for numbers of its grid.
        parameters
            Parameters of the estimator that the file does not contain, such as `costs`; the others
            have their defaults. Labels of digits, or ``"True"`` and ``"False"``, become numbers or
            truth values unless they are given as `classes`.

        Raises
        ------
        DataError
            If the file is not a model of this estimator.
        PlanError
            If the schema is missing, or is not that of the model.
        """
        return cls._of(Release.load(path), bounds, **parameters)

    @classmethod
    def _of(
        cls, result: Release, bounds: Schema | str | Path | None = None, **parameters: Any
    ) -> Self:
        """Return the fitted estimator of a release; the parameters are those of `load`."""
        plan = result.plan
        stored = cls._own_parameters(result)
        if stored is None or plan.budget is None:
            raise DataError(
                f"model has the task {plan.task.name!r}, not {cls._holds()}; load it with the "
                "estimator that saved it."
            )
        agreed = {
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta,
            "nominal_n": plan.nominal_n,
            "frac_bits": plan.grid.frac_bits,
        }
        schema = Schema.load(bounds) if isinstance(bounds, str | Path) else bounds
        if not isinstance(schema, Schema | None):
            raise PlanError(
                f"bounds must be a schema or its path, got {schema!r}; omit bounds if the fit had "
                "no schema, since the file contains them."
            )
        contract = cls._contract(plan, schema)
        model = cls(**{**agreed, **stored, **contract, **parameters})
        try:
            model._keep(result)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, CloisterError):
                raise
            raise DataError("results of the model do not fit its task; use the original.") from None
        return model

    @classmethod
    def _holds(cls) -> str:
        """Return the name of the task in a file of this estimator, for messages."""
        return repr(cls._task.name)

    @classmethod
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        """Return the estimator's parameters in a file, or None for another estimator's file."""
        names, task = set(cls._get_param_names()), result.plan.task
        last = _last_step(task) if "prepare" in names else task
        # Exactly this class: a subclass may have other results.
        if type(last) not in (cls._task, *cls._other_tasks):
            return None
        values = {name: getattr(last, name, None) for name in names - _OF_COLUMNS}
        # Others, such as tuples of columns, have another form in a plan than as a parameter.
        return {k: v for k, v in values.items() if isinstance(v, bool | int | float | str)}

    @classmethod
    def _contract(cls, plan: Plan, schema: Schema | None) -> dict[str, Any]:
        """Return the parameters on the columns, from a schema or from the plan's bounds."""
        names: set[str] = set(cls._get_param_names())
        if schema is not None:
            # Another schema would decode the released numbers with other bounds.
            check_schema(schema, plan)
            positions = {k: getattr(plan.task, k, None) for k in names & _OF_COLUMNS}
            named = {
                k: tuple(plan.columns[i] for i in j)
                if isinstance(j, tuple)
                else (None if j is None else plan.columns[j])
                for k, j in positions.items()
            }
            return {"bounds": schema, **named}
        target: int | None = getattr(plan.task, "target", None)
        low, high = plan.grid.low, plan.grid.high
        columns = list(plain_schema((low, high), plan.columns, None).columns)
        features = [j for j in range(len(columns)) if j != target]
        bounds: dict[str, Any] = {"bounds": [(low[j], high[j]) for j in features]}
        if target is not None and isinstance(plan.task, Classifier):
            columns[target] = category_column(plan.columns[target], plan.task.classes)
        elif target is not None:
            bounds["target_bounds"] = (low[target], high[target])
        # A plan with another schema needs the schema itself, which the file does not contain.
        check_schema(Schema(dataset="unnamed", unit="row", columns=tuple(columns)), plan)
        return bounds

    def __sklearn_tags__(self) -> Any:
        return private_tags(super().__sklearn_tags__())


def _tables_of(X: Any) -> list[Any]:
    """Return the table of each silo of a fit without their labels; none for names of columns."""
    if X is None or (isinstance(X, list | tuple) and all(isinstance(name, str) for name in X)):
        return []
    # A single table is not read, even if it is lazy.
    is_many = isinstance(X, list | tuple | Mapping)
    return as_silos(unpaired(X, None)[0]) if is_many else [X]


def _refuse(arguments: Mapping[str, Any]) -> None:
    """Raise for unknown arguments of `fit`; for `sample_weight`, name an alternative."""
    for name, value in arguments.items():
        if name != "sample_weight":
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise PlanError(
                "sample_weight must be None: a weight multiplies the influence of a record, which "
                "the noise would not cover; leave out records of weight 0, and repeat rows for "
                "integer weights, with a schema whose unit identifies the record and whose "
                "max_rows is the largest weight."
            )


def _plain(value: Any) -> Any:
    """Return a value that an immutable plan can store as JSON: a Python number, or a tuple."""
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def private_tags(tags: Any) -> Any:
    """Return scikit-learn's tags of an estimator with fresh noise in every fit."""
    tags.input_tags.sparse = False
    # scikit-learn's checks compare repeated fits of other estimators.
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
        With a schema: name of the column to predict.
    """

    target: str | None = None

    def _read(self, X: Any, y: Any, spending: BudgetParameters) -> SiloData:
        about = {k: getattr(self, k, None) for k in ("classes", "target_bounds")}
        about["target"] = self._named_target
        return read_labelled(X, y, spending, **about, names=self._columns)

    @property
    def _named_target(self) -> str | None:
        """The name of the column to predict, if there is a schema."""
        return self.target


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateSupervised):
    """A classifier that predicts from the release of its task.

    Parameters
    ----------
    classes : sequence or "in_y", optional
        Without a schema: the public labels, or "in_y" to state that the set of labels in y is
        public. A record of another class is left out. A boolean y needs none.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)

    Notes
    -----
    The guarantee covers the class of a record like its other values.
    """

    classes: Any = None

    def _read(self, X: Any, y: Any, spending: BudgetParameters) -> SiloData:
        data = super()._read(X, y, spending)
        # Set before the release, because `_options` may need it.
        self.classes_: NDArray[Any] = np.array([]) if data.classes is None else data.classes
        return data

    @classmethod
    def _of(
        cls, result: Release, bounds: Schema | str | Path | None = None, **parameters: Any
    ) -> Self:
        model = super()._of(result, bounds, **parameters)
        task = model.plan_.task
        assert isinstance(task, Classifier)
        if bounds is None:
            model.classes_ = _loaded_classes(parameters.get("classes"), task.classes)
            # So that the loaded model can be cloned and fitted again.
            model.classes = model.classes_.tolist()
        else:
            model.classes_ = as_labels(task.classes)
        return model

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, (n_samples, n_classes); local, at no cost."""
        rows = grid_rows(self, X)
        task = self.plan_.task
        assert isinstance(task, Classifier)
        return task.probabilities(self.result_.results, rows)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of :meth:`predict_proba`."""
        # A probability that underflows to 0 must not give minus infinity.
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record; shape (n_samples,)."""
        best = self.predict_proba(X).argmax(axis=1)  # first, since it raises before a fit
        return np.asarray(self.classes_[best])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy; exact for these records, so its publication is another release.

        X is one table, or a list of these as for a fit, so that silos can be cross-validated.
        Records that a fit leaves out are left out with a warning. `y` may be None if X has the
        column `target`.
        """
        from sklearn.metrics import accuracy_score  # a fit needs none

        return _score(accuracy_score, self, X, y, sample_weight)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateSupervised):
    """A regressor that predicts from the release of its task.

    Parameters
    ----------
    target_bounds : (low, high), optional
        Public bounds of y, required without a schema. Values outside are clipped to them.
    """

    target_bounds: Any = None

    def _check(self) -> None:
        if not isinstance(self.bounds, Schema) and self.target_bounds is None:
            raise PlanError(
                "target_bounds are required without a schema: two public bounds of y; give "
                f"target_bounds=(low, high){choosing('bounds')}."
            )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R²; exact for these records, so its publication is another release.

        X is one table, or a list of these as for a fit, so that silos can be cross-validated.
        Records that a fit leaves out are left out with a warning. `y` may be None if X has the
        column `target`.
        """
        from sklearn.metrics import r2_score  # a fit needs none

        return _score(r2_score, self, X, y, sample_weight)


def _score(measure: Callable[..., float], model: Any, X: Any, y: Any, weight: Any) -> float:
    """Return a measure of the predictions of one table, or of all silos of a list together."""
    X, y = unpaired(X, y)
    if not is_list_of_tables(X):
        X, y, weight = scored_rows(model, X, y, weight)
        if y is None:
            raise DataError("y is required, because X has no column of the target; give y.")
        return float(measure(y, model.predict(X), sample_weight=weight))
    of_silos = ([None] * len(X) if one is None else one for one in (y, weight))
    silos = [scored_rows(model, *silo) for silo in zip(X, *of_silos, strict=True)]
    if any(truth is None for _, truth, _ in silos):
        raise DataError("y is required: give a list with the truth of each silo.")
    truths, weights = (
        None if silos[0][i] is None else np.concatenate([list(silo[i]) for silo in silos])
        for i in (1, 2)
    )
    found = np.concatenate([model.predict(table) for table, *_ in silos])
    return float(measure(truths, found, sample_weight=weights))


def _loaded_classes(classes: Any, categories: Sequence[str]) -> NDArray[Any]:
    """Return the labels in the order of a model's categories."""
    if classes is None:
        return np.array(as_labels(categories).tolist())
    labels = np.unique(np.asarray(classes))
    by_category = {str(label).strip(): label for label in labels.tolist()}
    # Wrong labels would silently rename classes.
    if by_category.keys() != set(categories):
        raise PlanError(
            f"classes must be the labels of the model, {list(categories)}, got {classes!r}."
        )
    return np.array([by_category[name] for name in categories], dtype=labels.dtype)
