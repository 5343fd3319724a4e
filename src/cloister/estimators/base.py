"""What our estimators have in common: how they pay, run, save, and read labelled tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from cloister.data import Records, array_records, as_silos, header, read_source
from cloister.errors import DataError, PlanError
from cloister.estimators.tables import (
    FIT,
    Floats,
    check_bounds,
    check_schema,
    check_whole,
    checked_numbers,
    kept_rows,
    known_columns,
    open_account,
    plain_schema,
)
from cloister.hazmat.fixedpoint import Grid
from cloister.jobs import JobResult, run_job
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.schema import Column, Schema
from cloister.task import Classifier, Task
from cloister.tasks.preparation.pipeline import Pipeline

_TRUTH = {"False": False, "True": True}

IN_Y = "in_y"
"""What `classes` may be: the caller states that the set of labels in y is public."""


class PrivateEstimator(BaseEstimator):
    """The part of an estimator that runs one private job.

    A subclass has the parameters `epsilon`, `bounds`, `nominal_n`, `delta`, `ledger`, `dataset`
    and `frac_bits`, as :class:`~cloister.DPKMeans` describes them. One that has `prepare`, a list
    of (name, options) of steps such as ``[("standardise", {})]``, runs them before its own task, in
    one plan with one cost.

    Attributes
    ----------
    result_ : JobResult
    plan_ : Plan
    spent_ : float
        Epsilon spent, at ``delta_``.
    delta_ : float
    """

    _task: ClassVar[type[Task]]  # of which a model is
    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise

    def _release(
        self, task: type[Task], schema: Schema, records: dict[str, Records], **options: Any
    ) -> JobResult:
        """Run the job over the silos' records and keep what it released."""
        account = open_account(self, schema)
        if steps := getattr(self, "prepare", None):
            task, options = Pipeline, {"steps": [*steps, (task.name, options)]}
        result = run_job(
            task,
            schema,
            records,
            epsilon=self.epsilon,
            delta=self.delta,
            nominal_n=None if self.nominal_n is None else int(self.nominal_n),
            noise=type(self)._new_noise(),
            account=account,
            frac_bits=int(self.frac_bits),
            **options,
        )
        self._keep(result)
        return result

    def _keep(self, result: JobResult) -> None:
        """Set the fitted attributes, functions of a released result alone."""
        plan = result.plan
        self.result_ = result
        self.plan_: Plan = plan
        self.spent_: float = result.epsilon()
        self.delta_: float = plan.budget.delta if plan.budget else 0.0
        target = getattr(plan.task, "target", None)
        names = [name for j, name in enumerate(plan.columns) if j != target]
        self.n_features_in_: int = len(names)
        if names != [f"x{j}" for j in range(len(names))]:
            self.feature_names_in_ = np.array(names, dtype=object)

    @property
    def _own_task(self) -> Task:
        """The fitted task itself, without the steps before it."""
        check_is_fitted(self)
        task: Task = self.plan_.task
        return task.steps[-1] if isinstance(task, Pipeline) else task

    @property
    def _own_columns(self) -> tuple[str, ...]:
        """Names of the columns that reach the task itself."""
        task = self.plan_.task
        return task.reaching if isinstance(task, Pipeline) else self.plan_.columns

    def _check_parameters(self) -> None:
        """Refuse what is wrong before a record is read."""
        check_bounds(self.bounds)
        given = {} if self.nominal_n is None else {"nominal_n": self.nominal_n}
        check_whole(frac_bits=self.frac_bits, **given)

    def save(self, path: str | Path) -> None:
        """Write the released model as JSON with the digest of its plan."""
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
            The contract of the fit, required if the fit had one; a file does not hold it.
        parameters
            Of the estimator, where the file does not tell them, such as `costs`. To fit again,
            make a new estimator: what is neither here nor in the file has its default. A file
            holds words: labels that are words of digits, or ``"True"`` and ``"False"``, become
            numbers or truth values unless they are given as `classes`.

        Returns
        -------
        estimator
            Its attributes and answers are those of the one that was saved.

        Raises
        ------
        DataError
            If the file is not a model of this estimator.
        PlanError
            If the schema is missing, or is not that of the model.
        """
        result, names = JobResult.load(path), set(cls._get_param_names())
        plan = result.plan
        own = plan.task
        if isinstance(own, Pipeline) and "prepare" in names:
            own = own.steps[-1]
        if type(own) is not cls._task or plan.budget is None:
            raise DataError(
                f"model holds the task {own.name!r}, not {cls._task.name!r}; load it with the "
                "estimator that saved it."
            )
        given = {
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta,
            "nominal_n": plan.nominal_n,
            "frac_bits": plan.grid.frac_bits,
            **_public_numbers(own, names),
            **_contract(plan, names, bounds),
            **parameters,
        }
        model = cls(**given)
        if "classes" in names:
            words: tuple[str, ...] = plan.task.classes  # type: ignore[attr-defined]  # a classifier's
            if bounds is None:
                model.classes_ = _loaded_classes(parameters.get("classes"), words)
                model.classes = model.classes_.tolist()
            else:
                model.classes_ = _as_labels(words)
        model._keep(result)
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.non_deterministic = True  # fresh noise in every fit
        return tags


def _public_numbers(task: Task, names: set[str]) -> dict[str, Any]:
    """Return the parameters of an estimator that are plain numbers and words of its task."""
    found = {name: getattr(task, name, None) for name in names - {"target", "group"}}
    return {k: v for k, v in found.items() if isinstance(v, bool | int | float | str)}


def _contract(plan: Plan, names: set[str], schema: Schema | None) -> dict[str, Any]:
    """Return the parameters that say what the columns are: of a schema, or of plain bounds."""
    target: int | None = getattr(plan.task, "target", None)
    features = [j for j in range(len(plan.columns)) if j != target]
    if schema is not None:
        check_schema(schema, plan)
        at = {"target": target, "group": getattr(plan.task, "group", None)}
        told = {k: plan.columns[j] for k, j in at.items() if k in names and j is not None}
        return {"bounds": schema, **told}
    low, high = plan.grid.low, plan.grid.high
    columns = list(plain_schema((low, high), plan.columns, None).columns)
    found: dict[str, Any] = {"bounds": tuple([end[j] for j in features] for end in (low, high))}
    if target is not None and "classes" in names:
        words: tuple[str, ...] = plan.task.classes  # type: ignore[attr-defined]  # a classifier's
        columns[target] = _words_column(plan.columns[target], words)
    elif target is not None:
        found["target_bounds"] = (low[target], high[target])
    plain = Schema(dataset="unnamed", unit="row", columns=tuple(columns))
    if plain.digest() != plan.schema_digest:
        raise PlanError(
            "bounds must be given: the schema that the model was fitted with, which a file of a "
            "model does not hold."
        )
    return found


def _loaded_classes(given: Any, words: Sequence[str]) -> NDArray[Any]:
    """Return labels in the order of a model's words for them."""
    numbered = tuple(words) == _numbered(len(words))
    if given is None:
        if numbered:
            raise PlanError("classes must be given: the file does not hold the labels of the fit.")
        return np.array(_as_labels(words).tolist())
    labels = np.unique(np.asarray(given))
    if numbered and len(labels) == len(words):
        return labels
    by_word = {str(label): label for label in labels.tolist()}
    if by_word.keys() != set(words):
        raise PlanError(f"classes must be the labels of the model, {list(words)}, got {given!r}.")
    return np.array([by_word[word] for word in words], dtype=labels.dtype)


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """What every classifier of ours says of records, from what its task released.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    """

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class; local, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features) or table

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        rows = grid_rows(self, X)
        task = self.plan_.task
        assert isinstance(task, Classifier)
        return task.probabilities(self.result_.results, rows)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of :meth:`predict_proba`."""
        logs: Floats = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
        return logs

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each record; shape (n_samples,)."""
        best = self.predict_proba(X).argmax(axis=1)  # first: it says if nothing was fitted
        labels: NDArray[Any] = self.classes_[best]
        return labels


def read_labelled(
    model: Any, X: Any, y: Any, *, classes: Any = None, target_bounds: Any = None
) -> tuple[Schema, dict[str, Records], str]:
    """Return the contract with the target in it, the silos' records, and the target's name.

    Parameters
    ----------
    model : PrivateEstimator
        With `bounds`, `dataset`, `frac_bits`, and `target`: the column of a schema that is to be
        told. What scikit-learn learns of a table is set on it; so is ``classes_``.
    X : table, path, or list of these, one for each silo
    y : array_like of shape (n_samples,), a list of these, or None
        None where `bounds` is a schema and the target is a column of X.
    classes : sequence, "in_y" or None
        Public labels of a classifier, where `bounds` is not a schema.
    target_bounds : (low, high) or None
        Public bounds of a regressor's target, where `bounds` is not a schema.

    Raises
    ------
    PlanError, DataError
    """
    model.__dict__.pop("feature_names_in_", None)
    if isinstance(model.bounds, Schema):
        return _by_schema(model, X, y)
    if getattr(model, "target", None) is not None:
        raise PlanError("target goes with a schema as bounds; leave it out and give y.")
    if y is None:
        raise DataError(
            "requires y to be passed, but the target y is None; give y, or a schema as bounds and "
            "the name of its column as target."
        )
    silos, labels = _silos_with_labels(model, X, y)
    if target_bounds is None:
        column = _class_column(model, labels, classes)
        numbers = [_class_numbers(part, model.classes_) for part in labels]
        if all(np.isnan(part).all() for part in numbers):
            warnings.warn(
                "no label in y is one of classes, so every record is left out and the model is "
                "noise alone; give the labels as they stand in y.",
                UserWarning,
                stacklevel=3,
            )
    else:
        column = _number_column(target_bounds)
        numbers = [np.asarray(part, dtype=np.float64) for part in labels]
    names = getattr(model, "feature_names_in_", header(silos[0]))
    features = plain_schema(model.bounds, names, model.dataset)
    taken = {c.name for c in features.columns}
    name = next(word for word in ("y", "target", "the target") if word not in taken)
    schema = Schema(
        dataset=features.dataset,
        unit="row",
        columns=(*features.columns, column.model_copy(update={"name": name})),
    )
    grid = schema.grid(int(model.frac_bits))
    records = {
        f"silo-{i}": array_records(np.column_stack([table, part]), grid)
        for i, (table, part) in enumerate(zip(silos, numbers, strict=True))
    }
    return schema, records, name


def grid_rows(model: Any, X: Any) -> NDArray[np.int32]:
    """Return the grid records of a table whose target is to be told; that column is a constant.

    Parameters
    ----------
    model : PrivateEstimator
        Fitted; ``plan_.task`` has a `target`.
    X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema
        With a schema as `bounds`, a table with its columns, of which the target may be absent.

    Raises
    ------
    DataError
        If the schema drops a record.
    """
    check_is_fitted(model)
    target: int = model.plan_.task.target
    if isinstance(model.bounds, Schema):
        values = kept_rows(without_target(known_columns(model), target), X)
    else:
        values = checked_numbers(model, X, reset=False)
    return with_target(values, target, model.plan_.grid)


def without_target(schema: Schema, target: int | None) -> Schema:
    """Return the contract of a table that need not hold the target."""
    columns = tuple(column for j, column in enumerate(schema.columns) if j != target)
    return schema.model_copy(update={"columns": columns})


def with_target(values: Floats, target: int | None, grid: Grid) -> NDArray[np.int32]:
    """Return data units without the target as grid records in which it is a constant."""
    if target is not None:
        values = np.insert(values, target, grid.low[target], axis=1)
    rows: NDArray[np.int32] = grid.encode(values)
    return rows


def _by_schema(model: Any, X: Any, y: Any) -> tuple[Schema, dict[str, Records], str]:
    """Read silos by a schema that has the target."""
    schema: Schema = model.bounds
    if model.target is None:
        raise PlanError("target must be given with a schema; name the column that is to be told.")
    column = next((c for c in schema.columns if c.name == model.target), None)
    if column is None:
        raise PlanError(
            f"target must be a column of the schema, {list(schema.names)}, got {model.target!r}."
        )
    silos = as_silos(X)
    if y is not None:
        if any(model.target in header(silo) for silo in silos if hasattr(silo, "columns")):
            raise DataError(f"y must be None where X has the target {model.target!r}; give one.")
        parts = [y] if len(silos) == 1 and not _is_list_of_arrays(y) else list(y)
        silos = [
            _with_column(table, model.target, part)
            for table, part in zip(silos, parts, strict=True)
        ]
    words = column.public.categories
    if words:
        model.classes_ = _as_labels(words)
    records = {
        f"silo-{i}": read_source(silo, schema, frac_bits=int(model.frac_bits))
        for i, silo in enumerate(silos)
    }
    return schema, records, model.target


def _as_labels(words: Sequence[str]) -> NDArray[Any]:
    """Return classes as users know them: numbers or truth values where all words are such."""
    if set(words) <= _TRUTH.keys():
        return np.array([_TRUTH[word] for word in words])
    for kind in (int, float):
        try:
            numbers = [kind(word) for word in words]
        except ValueError:
            continue
        if [str(number) for number in numbers] == list(words):
            return np.array(numbers)
    return np.array(words, dtype=object)


def _with_column(table: Any, name: str, values: Any) -> Any:
    """Return a pandas table with one more column."""
    if not hasattr(table, "assign"):
        raise DataError(
            f"y beside a schema needs X as a DataFrame; put {name!r} into the table, or X into a "
            "DataFrame."
        )
    return table.assign(**{name: np.asarray(values)})


def _silos_with_labels(model: Any, X: Any, y: Any) -> tuple[list[Floats], list[NDArray[Any]]]:
    """Return each silo's table and labels, checked as scikit-learn does."""
    silos = as_silos(X)
    if len(silos) == 1 and not _is_list_of_arrays(y):
        tables, parts = [checked_numbers(model, X, **FIT)], [column_or_1d(y, warn=True)]
    else:
        if not _is_list_of_arrays(y) or len(y) != len(silos):
            raise DataError(f"y must be a list of {len(silos)} arrays, one for each silo.")
        tables = [np.asarray(check_array(silo, dtype=np.float64, **FIT)) for silo in silos]
        validate_data(model, silos[0], dtype=np.float64, **FIT)
        parts = [column_or_1d(part, warn=True) for part in y]
    for table, part in zip(tables, parts, strict=True):
        if len(table) != len(part) or table.shape[1] != tables[0].shape[1]:
            raise DataError(
                "every silo must have one label for each record and the same columns, got "
                f"{len(table)} records of {table.shape[1]} columns and {len(part)} labels."
            )
    return tables, parts


def _is_list_of_arrays(y: Any) -> bool:
    return isinstance(y, list | tuple) and bool(y) and all(np.ndim(part) >= 1 for part in y)


def _class_column(model: Any, labels: Sequence[NDArray[Any]], classes: Any) -> Column:
    """Return the column of a classifier's target, and set the model's ``classes_``."""
    for part in labels:
        check_classification_targets(_known(part))
    if classes is None:
        raise PlanError(
            "classes must be given: the public list of labels, or 'in_y' to state that the set of "
            "labels in y is public."
        )
    if isinstance(classes, str):
        if classes != IN_Y:
            raise PlanError(f"classes must be a list of labels or {IN_Y!r}, got {classes!r}.")
        model.classes_ = np.unique(_known(np.concatenate(labels)))
    else:
        model.classes_ = np.unique(np.asarray(classes))
    if len(model.classes_) < 2:
        raise PlanError(f"classes must be at least 2, got {len(model.classes_)} class.")
    words = tuple(str(label) for label in model.classes_)
    plain = len(set(words)) == len(words) and all(w and w == w.strip() for w in words)
    return _words_column("y", words if plain else _numbered(len(words)))


def _known(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the labels that are there; a record without one is left out later."""
    return labels[np.isfinite(labels)] if labels.dtype.kind == "f" else labels


def _numbered(n_classes: int) -> tuple[str, ...]:
    """Return words for labels of which a schema could not make categories."""
    return tuple(f"class {i}" for i in range(n_classes))


def _words_column(name: str, words: tuple[str, ...]) -> Column:
    return Column(name=name, type="category", categories=words, min=0.0, max=len(words) - 1.0)


def _class_numbers(labels: NDArray[Any], classes: NDArray[Any]) -> Floats:
    """Return the number of each label's class; NaN for an unknown one, so that it is dropped."""
    at = np.clip(np.searchsorted(classes, labels), 0, len(classes) - 1)
    return np.where(classes[at] == labels, at.astype(np.float64), np.nan)


def _number_column(bounds: Any) -> Column:
    """Return the column of a regressor's target."""
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise PlanError(
            f"target_bounds must be two public numbers (low, high), got {bounds!r}."
        ) from None
    return Column(name="y", type="number", min=low, max=high)
