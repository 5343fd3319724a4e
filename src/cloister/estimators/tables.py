"""From a user's tables to the silos' records on the grid, by a schema or by plain bounds.

A fit reads by :func:`read_silos` or :func:`read_labelled`, which look at no estimator. Plain bounds
make a schema of numbers, so that all tables come in by one door, `cloister.data.read_source`. What
a fitted model is asked about is read as its fit was: :func:`new_rows`, :func:`grid_rows`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from cloister.core.arrays import Flags, Floats
from cloister.core.errors import DataError, PlanError
from cloister.data import (
    Labelled,
    Records,
    as_silos,
    header,
    is_frame,
    read_floats,
    read_rows,
    read_source,
)
from cloister.data.cells import CellType
from cloister.data.records import default_rows, open_by_schema
from cloister.data.rules import Rules
from cloister.data.schema import Column, Schema
from cloister.data.units import UnitLimit
from cloister.estimators.release import BudgetParameters
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.plan import Plan
from cloister.tasks.columns import position

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
        Of the columns of X, if they are those of a frame, which scikit-learn takes note of.
    target, classes : str, ndarray of shape (n_classes,), optional
        The column that a supervised task predicts, and its labels as the user knows them.
    """

    schema: Schema
    records: Mapping[str, Records]
    table: Any = None
    names: tuple[str, ...] = ()
    target: str | None = None
    classes: NDArray[Any] | None = None


def read_silos(
    X: Any, spending: BudgetParameters, *, names: Sequence[str] | None = None
) -> SiloData:
    """Read a table, a path, or a list of these, one for each silo.

    Parameters
    ----------
    names : sequence of str, optional
        Without a schema: of the columns that silos with names must have, in the order of the fit.
    """
    silos = as_silos(X)
    alone = silos[0] if len(silos) == 1 and hasattr(silos[0], "__len__") else None
    table = None if isinstance(alone, str | Path) else alone
    if spending.schema:
        return SiloData(spending.schema, by_schema(silos, spending.schema, spending), table)
    silos, names, known = matched(silos, names)
    schema = plain_schema(spending.bounds, names, spending.dataset)
    table = silos[0] if table is not None else None
    return SiloData(schema, by_schema(silos, schema, spending), table, known)


def read_labelled(
    X: Any,
    y: Any,
    spending: BudgetParameters,
    *,
    target: str | None = None,
    classes: Any = None,
    target_bounds: Any = None,
    names: Sequence[str] | None = None,
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
    names : sequence of str, optional
        As in :func:`read_silos`, but for the target.
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
    silos, names, known = matched(as_silos(X), names)
    parts = label_parts(y, len(silos))
    features = plain_schema(spending.bounds, names, spending.dataset)
    name = next(free for free in ("y", "target", "the target") if free not in features.names)
    public = None if target_bounds is not None else public_classes(parts, classes)
    column = (
        plain_schema(target_bounds, (name,), None, "target_bounds").columns[0]
        if public is None
        else category_column(name, class_categories(public))
    )
    schema = features.model_copy(update={"columns": (*features.columns, column)})
    tables = [labelled(table, name, part) for table, part in zip(silos, parts, strict=True)]
    return SiloData(schema, by_schema(tables, schema, spending), None, known, name, public)


def labelled(table: Any, name: str, cells: Any) -> Labelled:
    """Return a table in memory with a column of labels."""
    found = Labelled(table, name, cells)
    shape: tuple[int, ...] = tuple(np.shape(cells)) if hasattr(cells, "shape") else ()
    if len(shape) == 2 and shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; give y of shape (n,).",
            DataConversionWarning,
            stacklevel=2,
        )
    elif len(shape) > 1:
        raise DataError(f"y should be a 1d array, got an array of shape {shape} instead.")
    if not hasattr(table, "__len__") or isinstance(table, str | Path):
        raise DataError(
            f"y must be None where X is no table in memory; add the labels to X as column {name!r}."
        )
    if len(table) != len(found.column):
        raise DataError(
            f"y must have one label for each record, got {len(table)} records and "
            f"{len(found.column)} labels."
        )
    return found


def matched(
    silos: Sequence[Any], names: Sequence[str] | None = None
) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
    """Return silos whose columns are those of one table: by their names or, without, their places.

    Parameters
    ----------
    names : sequence of str, optional
        That named tables must have, in the order of the columns; by default those of the first.

    Returns
    -------
    silos : list
    names : tuple of str
        Of the columns; ``x0, x1, ...`` where silos have none.
    known : tuple of str
        The names, if the first silo is a frame, as scikit-learn takes note of them.

    Raises
    ------
    DataError
        If a silo lacks a column, has one more, or only some silos have names.
    """
    for silo in silos:
        refuse_no_table(silo)
    found = [_names_of(silo) for silo in silos]
    if any(found) and not all(found):
        at = found.index(())
        raise DataError(
            f"silo {at} has no names of columns, but others have; give all silos as tables with "
            "names, or all as arrays."
        )
    if not all(found):
        widths = [len(header(silo)) for silo in silos]
        if len(set(widths)) > 1:
            raise DataError(f"silos must have the same number of columns, got {widths}.")
        nameless = tuple(f"x{j}" for j in range(widths[0]))
        return [_without_names(silo, nameless) for silo in silos], nameless, ()
    wanted = tuple(found[0] if names is None else map(str, names))
    for i, have in enumerate(found):
        _refuse_other_names(f"silo {i}" if len(silos) > 1 else "X", have, wanted)
    return list(silos), wanted, wanted if is_frame(silos[0]) else ()


def _names_of(silo: Any) -> tuple[str, ...]:
    """Return the names by which a silo's columns are matched; none of an array or a list."""
    if is_frame(silo):
        kept = "column_names" if hasattr(type(silo), "column_names") else "columns"
        names = tuple(getattr(silo, kept))
        return tuple(map(str.strip, names)) if all(isinstance(n, str) for n in names) else ()
    is_array = isinstance(silo, list | tuple) or hasattr(silo, "__array__")
    return () if is_array else header(silo)


def _without_names(silo: Any, names: tuple[str, ...]) -> Any:
    """Return an array, or a frame whose columns pandas has numbered with names of ours."""
    if is_frame(silo):
        return silo.set_axis(list(names), axis=1)
    return silo if isinstance(silo, list | tuple) or hasattr(silo, "shape") else np.asarray(silo)


def _refuse_other_names(who: str, have: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in have]
    extra = [name for name in have if name not in wanted]
    if missing or extra:
        differences = [
            f"{what} {', '.join(map(repr, names[:5]))}{', ...' if names[5:] else ''}"
            for what, names in (("lacks", missing), ("has besides", extra))
            if names
        ]
        raise DataError(
            f"silos must have the same columns: {who} {' and '.join(differences)}. Feature names "
            "must be the same in every table; rename or drop columns, or give a schema as bounds."
        )


def unpaired(X: Any, y: Any) -> tuple[Any, Any]:
    """Return lists of tables and of labels for a list of pairs (X, y), one pair for each silo."""
    if y is not None or not isinstance(X, list | tuple) or not X or not all(map(_is_pair, X)):
        return X, y
    return [row_table(table) for table, _ in X], [labels for _, labels in X]


def row_table(table: Any) -> Any:
    """Return a list of rows as an array of objects, in which each cell stays as it is.

    A row that is too short lacks its last cells; one that is too long has none.
    """
    if not isinstance(table, list | tuple):
        return table
    n_columns = len(header(table))
    found = np.full((len(table), n_columns), None, dtype=object)
    for i, row in enumerate(table):
        cells = list(row) if isinstance(row, list | tuple | np.ndarray) else []
        for j, cell in enumerate(cells if len(cells) <= n_columns else []):
            found[i, j] = cell
    return found


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
    """Return the contract that plain bounds make; never from the records.

    Parameters
    ----------
    bounds : (low, high), list of (low, high), or mapping
        A tuple of two numbers or sequences is (low, high); a list of tuples has one pair a column;
        a mapping goes by name. Numbers are of all columns.
    names : sequence of str
        Of the columns.
    called : str
        The parameter that messages name.
    """
    pairs = None if isinstance(bounds, str) else _bound_pairs(bounds, names)
    if pairs is None:
        raise PlanError(
            f"{called} must be public numbers: a tuple (low, high), each a number or "
            f"{len(names)} numbers, a list of {len(names)} tuples (low, high), a mapping of names "
            f"to these, or a schema, got {bounds!r}; bounds read from the records would leak their "
            "extremes."
        )
    columns = tuple(
        Column(name=name, type="number", min=low, max=high)
        for name, (low, high) in zip(names, pairs, strict=True)
    )
    return Schema(dataset=dataset or "unnamed", unit="row", columns=columns)


def _bound_pairs(bounds: Any, names: Sequence[str]) -> list[tuple[float, float]] | None:
    """Return the pair of each column, or None if bounds are none of the forms that are taken."""
    n = len(names)
    try:
        if isinstance(bounds, Mapping):
            named = {str(name): pair for name, pair in bounds.items()}
            if named.keys() != set(names):
                return None
            return [(float(low), float(high)) for low, high in (named[name] for name in names)]
        if isinstance(bounds, list) and bounds and all(isinstance(p, tuple) for p in bounds):
            pairs = [(float(low), float(high)) for low, high in bounds]
            return pairs if len(pairs) == n else None
        low, high = bounds
        sizes = {np.ndim(low), np.ndim(high)}
        if sizes == {1} and n == 2 and not isinstance(bounds, tuple):
            return None  # whether a row is a column's pair or all low ends, nobody can say
        ends = [
            [float(end)] * n if np.ndim(end) == 0 else [*map(float, end)] for end in (low, high)
        ]
    except (TypeError, ValueError):
        return None
    return list(zip(*ends, strict=True)) if {len(end) for end in ends} == {n} else None


def check_schema(schema: Any, plan: Plan) -> None:
    """Refuse a contract that is not the one a plan was made of."""
    if not isinstance(schema, Schema) or schema.digest() != plan.schema_digest:
        raise PlanError(
            "bounds must be the schema that the model was fitted with: its file does not hold it."
        )


def by_schema(
    silos: Sequence[Any], schema: Schema, spending: BudgetParameters
) -> dict[str, Records]:
    """Read silos by the rules of a schema."""
    return {
        f"silo-{i}": read_source(silo, schema, frac_bits=spending.frac_bits)
        for i, silo in enumerate(silos)
    }


# Targets ------------------------------------------------------------------------------------------


def _labelled_by_schema(
    X: Any, y: Any, schema: Schema, spending: BudgetParameters, target: str | None
) -> SiloData:
    """Read silos by a schema that has the target."""
    columns = [column.public for column in schema.columns]
    column = columns[position(columns, target)]
    target, categories = column.name, column.categories
    silos = as_silos(X)
    if y is not None:
        if any(target in header(silo) for silo in silos if is_frame(silo)):
            raise DataError(f"y must be None where X has the target {target!r}; give one.")
        parts = label_parts(y, len(silos))
        silos = [labelled(silo, target, part) for silo, part in zip(silos, parts, strict=True)]
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


def label_parts(y: Any, n_silos: int) -> list[Any]:
    """Return the labels of each silo."""
    if n_silos == 1 and not _is_list_of_arrays(y):
        return [y]
    if not _is_list_of_arrays(y) or len(y) != n_silos:
        raise DataError(f"y must be a list of {n_silos} arrays, one for each silo.")
    return list(y)


def _is_list_of_arrays(y: Any) -> bool:
    return isinstance(y, list | tuple) and bool(y) and all(np.ndim(part) >= 1 for part in y)


def public_classes(parts: Sequence[Any], classes: Any) -> NDArray[Any]:
    """Return the labels of a classifier in ascending order, as far as they are public.

    Parameters
    ----------
    parts : sequence of array_like
        The labels of each silo. They are looked at only where `classes` says that they are public.
    classes : sequence or "in_y"
    """
    if classes is None or (isinstance(classes, str) and classes != IN_Y):
        raise PlanError(
            f"classes must be given: the public list of labels, or {IN_Y!r} to state that the set "
            f"of labels in y is public, got {classes!r}."
        )
    found = label_set(parts) if isinstance(classes, str) else np.unique(np.asarray(classes))
    if len(found) < 2:
        raise PlanError(f"classes must be at least 2, got {len(found)} class.")
    return found


def label_set(parts: Iterable[Any]) -> NDArray[Any]:
    """Return the different labels of all silos, without missing ones, in ascending order."""
    cells = [cell for part in parts for cell in _objects_of(Labelled(None, "y", part).column)]
    # no word is a category here, so a cell that is not missing is wrong
    read = CellType("category").read(cells)
    is_there = np.zeros(len(cells), dtype=np.bool_) if read.wrong is None else read.wrong
    there = [cell for cell, kept in zip(cells, is_there.tolist(), strict=True) if kept]
    if not all(isinstance(cell, str) for cell in there) and any(isinstance(c, str) for c in there):
        there = [str(cell) for cell in there]  # texts and numbers have no common order
    labels = np.unique(np.array(there))
    check_classification_targets(labels)
    return labels


def _objects_of(column: Any) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def class_categories(labels: NDArray[Any]) -> tuple[str, ...]:
    """Return the category of a schema that stands for each label.

    Raises
    ------
    PlanError
        If the reader could not tell two labels apart, or a label from a missing cell.
    """
    names = tuple(str(label).strip() for label in np.asarray(labels).tolist())
    codes = CellType("category", tuple((name, i) for i, name in enumerate(names))).read([*names])
    if not np.array_equal(codes.values, np.arange(len(names))):
        raise PlanError(
            f"classes must be different words or numbers, and not empty, got {list(names)}; write "
            "them in another way."
        )
    return names


def category_column(name: str, categories: tuple[str, ...]) -> Column:
    """Return a column of categories."""
    most = len(categories) - 1.0
    return Column(name=name, type="category", categories=categories, min=0.0, max=most)


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
        return _numbers(model, X)
    schema = model.bounds
    if hasattr(model, "plan_"):
        schema = without_target(schema.select(model.plan_.columns), without)
    return _kept_rows(schema, X)


def _numbers(model: Any, X: Any) -> Floats:
    """Return a table of numbers with the columns of a fit without a schema, in their order."""
    refuse_no_table(X)
    validate_data(model, X, reset=False, skip_check_array=True)  # names, and how many
    is_floats = type(X) is np.ndarray and X.dtype in (np.float32, np.float64)
    values = X if is_floats else read_floats(X)  # no copy of what is read already
    if not np.isfinite(values).all():
        raise DataError(
            "X has NaN, infinity or no number in some cells; leave such rows out, or fit with a "
            "schema as bounds, whose rule 'missing' says for each column what stands for them."
        )
    return values


def refuse_no_table(X: Any) -> None:
    """Refuse arrays that hold no table of real numbers, in the words of scikit-learn."""
    dtype = getattr(X, "dtype", None)
    if getattr(dtype, "kind", "") == "c":
        raise DataError("Complex data not supported: records must be real numbers.")
    if getattr(X, "ndim", 2) != 2 or hasattr(X, "toarray"):
        header(X)  # which says what is wrong


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
