"""What our estimators have in common: how they pay, run, save, and read labelled tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from cloister.data import Records, array_records, as_silos, header, read_floats, read_source
from cloister.errors import DataError, PlanError
from cloister.estimators.tables import (
    Floats,
    check_bounds,
    check_whole,
    checked_numbers,
    open_ledger,
    plain_schema,
)
from cloister.hazmat.fixedpoint import Grid
from cloister.jobs import Account, JobResult, run_job
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.schema import Column, Schema
from cloister.tasks.base import Classifier, Task
from cloister.tasks.pipeline import Pipeline

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

    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise

    def _release(
        self, task: type[Task], schema: Schema, records: dict[str, Records], **options: Any
    ) -> JobResult:
        """Run the job over the silos' records and keep what it released."""
        found = open_ledger(self, schema)
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
            account=Account(*found) if found else None,
            frac_bits=int(self.frac_bits),
            **options,
        )
        self.result_ = result
        self.plan_: Plan = result.plan
        self.spent_: float = result.epsilon()
        self.delta_: float = result.plan.budget.delta if result.plan.budget else 0.0
        return result

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.non_deterministic = True  # fresh noise in every fit
        return tags


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
    if y is None:
        raise DataError(
            "requires y to be passed, but the target y is None; give y, or a schema as bounds and "
            "the name of its column as target."
        )
    silos, labels = _silos_with_labels(model, X, y)
    if target_bounds is None:
        column = _class_column(model, labels, classes)
        numbers = [_class_numbers(part, model.classes_) for part in labels]
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
    X : array_like of shape (n_samples, n_features) or DataFrame
        With a schema as `bounds`, a table with its columns; a cell for which the schema would drop
        the record counts as the middle of its column.
    """
    check_is_fitted(model)
    target: int = model.plan_.task.target
    if isinstance(model.bounds, Schema):
        return schema_rows(model.bounds, target, X, model.plan_.grid)
    values = checked_numbers(model, X, reset=False)
    return _with_target(values, target, model.plan_.grid)


def schema_rows(schema: Schema, target: int | None, X: Any, grid: Grid) -> NDArray[np.int32]:
    """Return the grid records of a table or file that need not hold the target.

    Parameters
    ----------
    schema : Schema
    target : int or None
        The column that is to be told, which X need not have.
    X : table or path
    grid : Grid
        Of the schema.

    Returns
    -------
    ndarray of shape (n_samples, n_columns), int32
        A row for each of X: a cell for which the schema drops the record counts as the middle of
        its column.
    """
    columns = [column for j, column in enumerate(schema.columns) if j != target]
    part = schema.model_copy(update={"columns": tuple(columns)})
    values = read_floats(X, part.names, part)
    fill = [(c.min + c.max) / 2 if np.isnan(c.fill_value) else c.fill_value for c in columns]
    return _with_target(np.where(np.isfinite(values), values, fill), target, grid)


def _with_target(values: Floats, target: int | None, grid: Grid) -> NDArray[np.int32]:
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
        parts = [y] if len(silos) == 1 and not _is_list_of_arrays(y) else list(y)
        silos = [
            _with_column(table, model.target, part)
            for table, part in zip(silos, parts, strict=True)
        ]
    words = column.public.categories
    if words:
        model.classes_ = _as_labels(words)
    model.n_features_in_ = len(schema.columns) - 1
    records = {
        f"silo-{i}": read_source(silo, schema, frac_bits=int(model.frac_bits))
        for i, silo in enumerate(silos)
    }
    return schema, records, model.target


def _as_labels(words: Sequence[str]) -> NDArray[Any]:
    """Return classes as users know them: whole numbers where all words are such."""
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        return np.array(words, dtype=object)
    same = [str(number) for number in numbers] == list(words)
    return np.array(numbers) if same else np.array(words, dtype=object)


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
        checked_numbers(model, X)  # says in our words what is not a number
        table, labels = validate_data(model, X, y, dtype=np.float64, y_numeric=False)
        return [table], [column_or_1d(labels, warn=True)]
    if not _is_list_of_arrays(y) or len(y) != len(silos):
        raise DataError(f"y must be a list of {len(silos)} arrays, one for each silo.")
    tables = [np.asarray(check_array(silo, dtype=np.float64), dtype=np.float64) for silo in silos]
    validate_data(model, silos[0], dtype=np.float64)
    parts = [column_or_1d(part, warn=True) for part in y]
    for table, part in zip(tables, parts, strict=True):
        if len(table) != len(part) or table.shape[1] != tables[0].shape[1]:
            raise DataError("every silo must have one label for each record and the same columns.")
    return tables, parts


def _is_list_of_arrays(y: Any) -> bool:
    return isinstance(y, list | tuple) and bool(y) and all(np.ndim(part) >= 1 for part in y)


def _class_column(model: Any, labels: Sequence[NDArray[Any]], classes: Any) -> Column:
    """Return the column of a classifier's target, and set the model's ``classes_``."""
    for part in labels:
        check_classification_targets(part)
    if classes is None:
        raise PlanError(
            "classes must be given: the public list of labels, or 'in_y' to state that the set of "
            "labels in y is public."
        )
    if isinstance(classes, str):
        if classes != IN_Y:
            raise PlanError(f"classes must be a list of labels or {IN_Y!r}, got {classes!r}.")
        model.classes_ = np.unique(np.concatenate(labels))
    else:
        model.classes_ = np.unique(np.asarray(classes))
    if len(model.classes_) < 2:
        raise PlanError(f"classes must be at least 2, got {len(model.classes_)} class.")
    words = tuple(str(label) for label in model.classes_)
    plain = len(set(words)) == len(words) and all(w and w == w.strip() for w in words)
    names = words if plain else tuple(f"class {i}" for i in range(len(words)))
    last = len(names) - 1.0
    return Column(name="y", type="category", categories=names, min=0.0, max=last)


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
