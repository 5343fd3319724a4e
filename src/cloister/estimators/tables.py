"""From a user's tables to the silos' records on the grid, by a schema or by plain bounds.

A fit reads by :func:`read_silos` or :func:`read_labelled`, which look at no estimator. What a
fitted model is asked about is read as its fit was: :func:`new_rows`, :func:`grid_rows`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from cloister.arrays import Flags, Floats
from cloister.data import Records, array_records, as_silos, header, read_rows, read_source
from cloister.data.records import default_rows, open_by_schema
from cloister.data.rules import Rules
from cloister.data.units import UnitLimit
from cloister.errors import DataError, PlanError
from cloister.estimators.release import Spending
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.plan import Plan
from cloister.schema import Column, Schema
from cloister.tasks.columns import position

_DTYPES = (np.float64, np.float32)
_FIT = {"ensure_all_finite": False, "ensure_min_samples": 0}
"""No record stops a fit, nor does their number: one without a value is left out, as in files.

A fit that fails tells whoever sees it fail something of a record.
"""
_TRUTH = {"False": False, "True": True}
IN_Y = "in_y"
"""What `classes` may be: the caller states that the set of labels in y is public."""


@dataclass(frozen=True, eq=False)
class SiloData:
    """What silos hold, on the grid of one contract.

    Parameters
    ----------
    table : optional
        The table itself, if there is just one and it is in memory.
    names : tuple of str
        Of the columns of X, if they have names that scikit-learn takes note of.
    target, classes : str, ndarray of shape (n_classes,), optional
        The column that a supervised task predicts, and its labels as the user knows them.
    """

    schema: Schema
    records: Mapping[str, Records]
    table: Any = None
    names: tuple[str, ...] = ()
    target: str | None = None
    classes: NDArray[Any] | None = None


def read_silos(X: Any, spending: Spending) -> SiloData:
    """Read a table, a path, or a list of these, one for each silo."""
    silos = as_silos(X)
    alone = len(silos) == 1 and not isinstance(silos[0], str | Path)
    known: tuple[str, ...] = ()
    table = None
    if spending.schema:
        if alone and hasattr(silos[0], "__len__"):  # not what comes from a file or a database
            table = silos[0]
        return SiloData(spending.schema, by_schema(silos, spending.schema, spending), table)
    if alone:
        known, table = _known_names(silos[0]), _checked(check_array, silos[0], **_FIT)
        silos = [table]
    names, *others = {known} if known else {header(silo) for silo in silos}
    if others:
        raise DataError(
            "silos must have the same columns in the same order; give a schema as bounds "
            "to match them by name."
        )
    schema = plain_schema(spending.bounds, names, spending.dataset)
    return SiloData(schema, _on_grid(silos, schema, spending), table, known)


def read_labelled(
    X: Any,
    y: Any,
    spending: Spending,
    *,
    target: str | None = None,
    classes: Any = None,
    target_bounds: Any = None,
) -> SiloData:
    """Read records with the target that is to be predicted, which becomes a column.

    Parameters
    ----------
    X : table, path, or list of these, one for each silo; or list of pairs (X, y)
    y : array_like of shape (n_samples,), a list of these, or None
        None where the target is a column of X, or X is a list of pairs.
    target : str, optional
        The column of a schema that is to be predicted.
    classes : sequence, "in_y" or None
        Public labels of a classifier, without a schema.
    target_bounds : (low, high) or None
        Public bounds of a regressor's target, without a schema.
    """
    X, y = unpaired(X, y)
    if spending.schema:
        return _labelled_by_schema(X, y, spending.schema, spending, target)
    if target is not None:
        raise PlanError("target goes with a schema as bounds; leave it out and give y.")
    if y is None:
        raise DataError(
            "requires y to be passed, but the target y is None; give y, or a schema as bounds and "
            "the name of its column as target."
        )
    silos, labels = _silos_with_labels(X, y)
    known_classes = None if target_bounds is not None else _public_classes(labels, classes)
    column = (
        plain_schema(target_bounds, ("y",), None, "target_bounds").columns[0]
        if known_classes is None
        else category_column("y", class_categories(known_classes))
    )
    numbers = _target_numbers(labels, known_classes)
    known = _known_names(as_silos(X)[0])
    features = plain_schema(spending.bounds, known or header(silos[0]), spending.dataset)
    name = next(free for free in ("y", "target", "the target") if free not in features.names)
    column = column.model_copy(update={"name": name})
    schema = features.model_copy(update={"columns": (*features.columns, column)})
    tables = [np.column_stack(pair) for pair in zip(silos, numbers, strict=True)]
    records = _on_grid(tables, schema, spending)
    return SiloData(schema, records, None, known, name, known_classes)


def unpaired(X: Any, y: Any) -> tuple[Any, Any]:
    """Return lists of tables and of labels for a list of pairs (X, y), one pair for each silo."""
    if y is not None or not isinstance(X, list | tuple) or not X or not all(map(_is_pair, X)):
        return X, y
    tables = [np.asarray(table) if isinstance(table, list) else table for table, _ in X]
    return tables, [labels for _, labels in X]


def _is_pair(part: Any) -> bool:
    """Return whether this is (table, labels), and not a row of cells or a table of two rows."""
    return isinstance(part, tuple) and len(part) == 2 and _is_table(part[0])


def _is_table(part: Any) -> bool:
    if isinstance(part, list):
        return bool(part) and isinstance(part[0], list | tuple)
    return len(getattr(part, "shape", ())) == 2


def plain_schema(
    bounds: Any, names: Sequence[str], dataset: str | None, called: str = "bounds"
) -> Schema:
    """Return the contract that plain bounds make; never from the records."""
    try:
        pair = () if isinstance(bounds, str) else bounds
        low, high = (np.broadcast_to(np.asarray(b, float), len(names)) for b in pair)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"{called} must be public numbers (low, high), each a number or {len(names)} numbers, "
            f"or a schema, got {bounds!r}; bounds read from the records would leak their extremes."
        ) from error
    columns = tuple(
        Column(name=str(name), type="number", min=float(a), max=float(b))
        for name, a, b in zip(names, low, high, strict=True)
    )
    return Schema(dataset=dataset or "unnamed", unit="row", columns=columns)


def check_schema(schema: Any, plan: Plan) -> None:
    """Refuse a contract that is not the one a plan was made of."""
    if not isinstance(schema, Schema) or schema.digest() != plan.schema_digest:
        raise PlanError(
            "bounds must be the schema that the model was fitted with: its file does not hold it."
        )


def by_schema(silos: Sequence[Any], schema: Schema, spending: Spending) -> dict[str, Records]:
    """Read silos by the rules of a schema."""
    return {
        f"silo-{i}": read_source(silo, schema, frac_bits=spending.frac_bits)
        for i, silo in enumerate(silos)
    }


def _on_grid(silos: Sequence[Any], schema: Schema, spending: Spending) -> dict[str, Records]:
    """Read tables of numbers by plain bounds."""
    grid = schema.grid(spending.frac_bits)
    return {f"silo-{i}": array_records(silo, grid) for i, silo in enumerate(silos)}


def _known_names(table: Any) -> tuple[str, ...]:
    """Return the names of columns that scikit-learn would keep: those of a frame, all of them text.

    A pandas or polars frame has them as `columns`, an Arrow table as `column_names`. They are asked
    of the class, since pandas takes the name of a column for an attribute, too.
    """
    kept = next((name for name in ("column_names", "columns") if hasattr(type(table), name)), None)
    names = getattr(table, kept) if kept else ()
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else ()


def _checked(check: Callable[..., Any], *args: Any, **options: Any) -> Floats:
    """Let scikit-learn check a table; where it would quote cells, say so in our words."""
    try:
        checked: Floats = check(*args, dtype=_DTYPES, **options)
        return checked
    except ValueError as error:
        if "contains NaN" in str(error) or "contains infinity" in str(error):
            raise DataError(
                "X has NaN or infinity in some cells; leave such rows out, or fit with a schema as "
                "bounds, whose rule 'missing' says for each column what stands for them."
            ) from None
        if "array=" not in str(error) and "could not convert" not in str(error):
            raise
    raise DataError(
        "records must be a table of numbers with 2 dimensions, got text or another shape. "
        "Reshape your data, or give a schema as bounds, which says what text becomes."
    )


# Targets ------------------------------------------------------------------------------------------


def _labelled_by_schema(
    X: Any, y: Any, schema: Schema, spending: Spending, target: str | None
) -> SiloData:
    """Read silos by a schema that has the target."""
    columns = [column.public for column in schema.columns]
    column = columns[position(columns, target)]
    target, categories = column.name, column.categories
    silos = as_silos(X)
    if y is not None:
        if any(target in header(silo) for silo in silos if hasattr(silo, "columns")):
            raise DataError(f"y must be None where X has the target {target!r}; give one.")
        parts = label_parts(y, len(silos))
        silos = [_with_column(silo, target, p) for silo, p in zip(silos, parts, strict=True)]
    classes = as_labels(categories) if categories else None
    records = by_schema(silos, schema, spending)
    return SiloData(schema, records, None, (), target, classes)


def as_labels(categories: Sequence[str]) -> NDArray[Any]:
    """Return classes as users know them: numbers or truth values where all categories are such."""
    if set(categories) <= _TRUTH.keys():
        return np.array([_TRUTH[category] for category in categories])
    for kind in (int, float):
        try:
            numbers = [kind(category) for category in categories]
        except ValueError:
            continue
        if [str(number) for number in numbers] == list(categories):
            return np.array(numbers)
    return np.array(categories, dtype=object)


def _with_column(table: Any, name: str, values: Any) -> Any:
    """Return a pandas table with one more column."""
    if not hasattr(table, "assign"):
        raise DataError(
            f"y beside a schema needs X as a DataFrame; put {name!r} into the table, or X into a "
            "DataFrame."
        )
    return table.assign(**{name: np.asarray(values)})


def label_parts(y: Any, n_silos: int) -> list[Any]:
    """Return the labels of each silo."""
    if n_silos == 1 and not _is_list_of_arrays(y):
        return [y]
    if not _is_list_of_arrays(y) or len(y) != n_silos:
        raise DataError(f"y must be a list of {n_silos} arrays, one for each silo.")
    return list(y)


def _is_list_of_arrays(y: Any) -> bool:
    return isinstance(y, list | tuple) and bool(y) and all(np.ndim(part) >= 1 for part in y)


def _silos_with_labels(X: Any, y: Any) -> tuple[list[Floats], list[NDArray[Any]]]:
    """Return each silo's table and labels, checked as scikit-learn does."""
    silos = as_silos(X)
    parts = label_parts(y, len(silos))
    tables = [_checked(check_array, silo, **_FIT) for silo in silos]
    labels = [column_or_1d(part, warn=True) for part in parts]
    for table, part in zip(tables, labels, strict=True):
        if len(table) != len(part) or table.shape[1] != tables[0].shape[1]:
            raise DataError(
                "every silo must have one label for each record and the same columns, got "
                f"{len(table)} records of {table.shape[1]} columns and {len(part)} labels."
            )
    return tables, labels


def _public_classes(labels: Sequence[NDArray[Any]], classes: Any) -> NDArray[Any]:
    """Return the classes, as far as they are public."""
    for part in labels:
        check_classification_targets(_known(part))
    if classes is None or (isinstance(classes, str) and classes != IN_Y):
        raise PlanError(
            f"classes must be given: the public list of labels, or {IN_Y!r} to state that the set "
            f"of labels in y is public, got {classes!r}."
        )
    given = _known(np.concatenate(labels)) if isinstance(classes, str) else np.asarray(classes)
    if len(found := np.unique(given)) < 2:
        raise PlanError(f"classes must be at least 2, got {len(found)} class.")
    return found


def _known(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the labels that are there; a record without one is left out later."""
    return labels[np.isfinite(labels)] if labels.dtype.kind == "f" else labels


def class_categories(labels: NDArray[Any]) -> tuple[str, ...]:
    """Return the category of a schema that stands for each label."""
    names = tuple(str(label) for label in labels)
    plain = len(set(names)) == len(names) and all(name and name == name.strip() for name in names)
    return names if plain else numbered(len(names))


def numbered(n_classes: int) -> tuple[str, ...]:
    """Return categories for labels that cannot be categories themselves."""
    return tuple(f"class {i}" for i in range(n_classes))


def category_column(name: str, categories: tuple[str, ...]) -> Column:
    """Return a column of categories."""
    most = len(categories) - 1.0
    return Column(name=name, type="category", categories=categories, min=0.0, max=most)


def _target_numbers(labels: Sequence[NDArray[Any]], classes: NDArray[Any] | None) -> list[Floats]:
    """Return targets as numbers, of a class its place; NaN drops any other label."""
    if classes is None:
        return [np.asarray(part, dtype=np.float64) for part in labels]
    numbers = []
    for part in labels:
        at = np.clip(np.searchsorted(classes, part), 0, len(classes) - 1)
        numbers.append(np.where(classes[at] == part, at.astype(np.float64), np.nan))
    if all(np.isnan(part).all() for part in numbers):
        warnings.warn(
            "no label in y is one of classes, so every record is left out and the model is "
            "noise alone; give the labels as they stand in y.",
            UserWarning,
            stacklevel=7,
        )
    return numbers


def kept_rows(table: Any, schema: Schema) -> Flags:
    """Return which rows of a table have a record; shape (n_rows,)."""
    rules = Rules.of(schema)
    limit = UnitLimit(rules.max_rows)
    raws = open_by_schema(table, schema).chunks(default_rows(len(schema.columns)))
    return np.concatenate([limit.keep(raw.units, rules.judge(raw).usable) for raw in raws])


# What a fitted model is asked about ---------------------------------------------------------------


def new_rows(model: Any, X: Any, *, without: int | None = None) -> Floats:
    """Return records that a fitted model is asked about, data units; none may be dropped.

    X is read like the records of the fit: with a schema as `bounds`, columns are found by name and
    the schema fills what is missing. It need not have the column `without`, which is predicted.
    """
    check_is_fitted(model)
    if not isinstance(model.bounds, Schema):
        return _checked(validate_data, model, X, reset=False)
    schema = model.bounds
    if hasattr(model, "plan_"):
        schema = without_target(schema.select(model.plan_.columns), without)
    return _kept_rows(schema, X)


def grid_rows(model: Any, X: Any) -> NDArray[np.int32]:
    """Return the grid records of a table; the column of the target is a constant.

    With a schema as `bounds`, X is a table with its columns, of which the target may be absent.
    """
    check_is_fitted(model)
    target: int = model.plan_.task.target
    return with_target(new_rows(model, X, without=target), target, model.plan_.grid)


def without_target(schema: Schema, target: int | None) -> Schema:
    """Return the contract of a table that may lack the target."""
    columns = tuple(column for j, column in enumerate(schema.columns) if j != target)
    return schema.model_copy(update={"columns": columns})


def with_target(values: Floats, target: int | None, grid: Grid) -> NDArray[np.int32]:
    """Return data units without the target as grid records in which it is a constant."""
    if target is not None:
        values = np.insert(values, target, grid.low[target], axis=1)
    return grid.encode(values)


def _kept_rows(schema: Schema, X: Any) -> Floats:
    """Return the rows of a table by the rules of a schema; refuse one that the schema drops."""
    values = read_rows(X, schema)
    if (dropped := np.isnan(values)).any():
        at = np.flatnonzero(dropped.any(axis=1)).tolist()
        names = [schema.names[j] for j in np.flatnonzero(dropped.any(axis=0))]
        rows = ", ".join(map(str, at[:5])) + (", ..." if at[5:] else "")
        raise DataError(
            f"rows {rows} (from 0) have a value in {names[:5]} that is missing, unknown or out of "
            "range, and the schema drops such records; leave them out, or let the schema say what "
            "stands for missing."
        )
    return values
