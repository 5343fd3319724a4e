"""The reader of a user's tables as the silos' grid records, by a schema or by plain bounds.

A fit uses :func:`read_silos` or :func:`read_labelled`, which depend on no estimator. Plain bounds
become a schema of numbers, so that `cloister.data.read_source` reads all tables. New records for a
fitted model are read like those of its fit: :func:`new_rows`, :func:`grid_rows`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from cloister.core.arrays import Flags, Floats
from cloister.core.errors import DataError, PlanError, choosing
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
from cloister.data.loss import warn_owner
from cloister.data.records import default_rows, kind_named, open_by_schema
from cloister.data.rules import Rules
from cloister.data.schema import Column, Schema
from cloister.data.sources import is_path
from cloister.data.units import UnitLimit
from cloister.estimators.release import BudgetParameters
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.plan import Plan
from cloister.tasks.columns import position

_TRUTH = {"False": False, "True": True, "false": False, "true": True}
IN_Y = "in_y"
"""Value of `classes` by which the caller states that the set of labels in y is public."""


@dataclass(frozen=True, eq=False)
class SiloData:
    """The records of silos on the grid of one contract.

    Parameters
    ----------
    table : optional
        The original table, if there is only one and it is in memory.
    names : tuple of str
        Names of the columns of X, if it is a frame, whose names scikit-learn stores.
    target, classes : str, ndarray of shape (n_classes,), optional
        The column that a supervised task predicts, and its labels in the user's types.
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
        Without a schema: names that silos with column names must have, in the order of the fit.
    """
    silos = as_silos(X)
    single = silos[0] if len(silos) == 1 and hasattr(silos[0], "__len__") else None
    # Labels after the fit need the table itself, and a file would be read again.
    table = None if isinstance(single, str | Path) else single
    if spending.schema:
        return SiloData(spending.schema, by_schema(silos, spending.schema, spending), table)
    silos, names, frame_names = matched(silos, names)
    schema = plain_schema(spending.bounds, names, spending.dataset)
    table = silos[0] if table is not None else None
    return SiloData(schema, by_schema(silos, schema, spending), table, frame_names)


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
    """Read records with the target to predict as one of their columns.

    Parameters
    ----------
    X : table, path, or list of these, one for each silo; or list of pairs (X, y)
    y : array_like of shape (n_samples,), a list of these, or None
        None if the target is a column of X, or X is a list of pairs.
    target : str, optional
        The column of a schema to predict.
    classes : sequence, "in_y" or None
        Public labels of a classifier, without a schema.
    target_bounds : (low, high) or None
        Public bounds of a regressor's target, without a schema.
    names : sequence of str, optional
        As in :func:`read_silos`, without the target.
    """
    X, y = unpaired(X, y)
    if spending.schema:
        return _labelled_by_schema(X, y, spending.schema, spending, target)
    if target is not None:
        raise PlanError("target is valid only with a schema as bounds; omit it and give y.")
    if y is None:
        raise DataError(
            "requires y to be passed, but the target y is None; give y, or a schema as bounds and "
            "the name of its column as target."
        )
    silos, names, frame_names = matched(as_silos(X), names)
    labels = label_parts(y, len(silos))
    features = plain_schema(spending.bounds, names, spending.dataset)
    # X may have a column with the usual name.
    name = next(free for free in ("y", "target", "the target") if free not in features.names)
    public = None if target_bounds is not None else public_classes(labels, classes)
    column = (
        plain_schema(target_bounds, (name,), None, "target_bounds").columns[0]
        if public is None
        else category_column(name, class_categories(public))
    )
    schema = features.model_copy(update={"columns": (*features.columns, column)})
    tables = [labelled(table, name, cells) for table, cells in zip(silos, labels, strict=True)]
    records = by_schema(tables, schema, spending)
    if public is not None:
        _refuse_other_labels(records.values(), public)
    return SiloData(schema, records, None, frame_names, name, public)


def _refuse_other_labels(silos: Iterable[Records], classes: NDArray[Any]) -> None:
    """Raise if no label of a silo is one of the classes; the data are the caller's."""
    for report in (report for records in silos for report in records.reports):
        if report.rows and report.columns[-1].unknown == report.rows:
            raise DataError(
                f"y has no label of the classes {classes.tolist()}; give the labels of y as "
                f"classes, or classes={IN_Y!r} if they are public."
            )


def labelled(table: Any, name: str, cells: Any) -> Labelled:
    """Return a table in memory with a column of labels."""
    result = Labelled(table, name, cells)
    shape: tuple[int, ...] = tuple(np.shape(cells)) if hasattr(cells, "shape") else ()
    # As in scikit-learn, which warns and continues.
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
            f"y must be None if X is not a table in memory; add the labels to X as column {name!r}."
        )
    if len(table) != len(result.column):
        raise DataError(
            f"y must have one label for each record, got {len(table)} records and "
            f"{len(result.column)} labels."
        )
    return result


def matched(
    silos: Sequence[Any], names: Sequence[str] | None = None
) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
    """Return silos with the same columns, matched by name or, without names, by position.

    Parameters
    ----------
    names : sequence of str, optional
        Names that named tables must have, in the order of the columns; by default those of the
        first table.

    Returns
    -------
    silos : list
    names : tuple of str
        Names of the columns; ``x0, x1, ...`` if silos have no names.
    frame_names : tuple of str
        The names if the first silo is a frame, whose names scikit-learn stores; else empty.

    Raises
    ------
    DataError
        If a silo lacks a column, has one more, or only some silos have names.
    """
    for silo in silos:
        refuse_no_table(silo)
    by_silo = [_names_of(silo) for silo in silos]
    if any(by_silo) and not all(by_silo):
        at = by_silo.index(())
        raise DataError(
            f"silo {at} has no column names, but other silos have; give all silos as tables with "
            "names, or all as arrays."
        )
    if not all(by_silo):
        widths = [len(header(silo)) for silo in silos]
        if len(set(widths)) > 1:
            raise DataError(f"silos must have the same number of columns, got {widths}.")
        generated = tuple(f"x{j}" for j in range(widths[0]))
        return [_without_names(silo, generated) for silo in silos], generated, ()
    wanted = tuple(by_silo[0] if names is None else map(str, names))
    for i, available in enumerate(by_silo):
        _refuse_other_names(f"silo {i}" if len(silos) > 1 else "X", available, wanted)
    return list(silos), wanted, wanted if is_frame(silos[0]) else ()


def _names_of(silo: Any) -> tuple[str, ...]:
    """Return the names that match a silo's columns; empty for an array or a list."""
    if is_frame(silo):
        attribute = "column_names" if hasattr(type(silo), "column_names") else "columns"
        names = tuple(getattr(silo, attribute))
        # pandas numbers the columns of a table without names.
        return tuple(map(str.strip, names)) if all(isinstance(n, str) for n in names) else ()
    is_array = isinstance(silo, list | tuple) or hasattr(silo, "__array__")
    return () if is_array else header(silo)


def _without_names(silo: Any, names: tuple[str, ...]) -> Any:
    """Return an array, or a frame of numbered columns with generated names."""
    if is_frame(silo):
        return silo.set_axis(list(names), axis=1)
    return silo if isinstance(silo, list | tuple) or hasattr(silo, "shape") else np.asarray(silo)


def _refuse_other_names(label: str, available: Sequence[str], wanted: Sequence[str]) -> None:
    if differences := _differences(available, wanted):
        # scikit-learn's tests of estimators expect the words "Feature names must be".
        raise DataError(
            f"silos must have the same columns: {label} {differences}. Feature names "
            "must be the same in every table; rename or drop columns, or give a schema as bounds."
        )


def _differences(available: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a text on missing and unexpected names; empty if there are none."""
    missing = [name for name in wanted if name not in available]
    extra = [name for name in available if name not in wanted]
    return " and ".join(
        f"{verb} {', '.join(map(repr, names[:5]))}{', ...' if names[5:] else ''}"
        for verb, names in (("lacks", missing), ("also has", extra))
        if names
    )


def unpaired(X: Any, y: Any) -> tuple[Any, Any]:
    """Return lists of tables and of labels for a list of pairs (X, y), one pair for each silo."""
    # A list of pairs is the form of FederatedLearner and of several silos.
    if y is not None or not isinstance(X, list | tuple) or not X or not all(map(_is_pair, X)):
        return X, y
    return [row_table(table) for table, _ in X], [labels for _, labels in X]


def row_table(table: Any) -> Any:
    """Return a list of rows as an array of objects with unchanged cells.

    A row that is too short has missing last cells; a row that is too long has only missing cells.
    """
    if not isinstance(table, list | tuple):
        return table
    n_columns = len(header(table))
    array = np.full((len(table), n_columns), None, dtype=object)
    for i, row in enumerate(table):
        cells = list(row) if isinstance(row, list | tuple | np.ndarray) else []
        for j, cell in enumerate(cells if len(cells) <= n_columns else []):
            array[i, j] = cell
    return array


def _is_pair(value: Any) -> bool:
    """Return True for (table, labels), but not for a row of cells or a table of two rows."""
    return isinstance(value, tuple) and len(value) == 2 and _is_table(value[0])


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], list | tuple)
    return len(getattr(value, "shape", ())) == 2


def plain_schema(
    bounds: Any, names: Sequence[str], dataset: str | None, called: str = "bounds"
) -> Schema:
    """Return the schema for plain bounds, which never come from the records.

    Parameters
    ----------
    bounds : (low, high), list of (low, high), or mapping
        A tuple of two numbers or sequences is (low, high); a list of tuples has one pair per
        column; a mapping has one pair per name. Numbers apply to all columns. For two columns, two
        sequences that could also be pairs are refused, unless they are arrays in a tuple.
    names : sequence of str
        Names of the columns.
    called : str
        Name of the parameter in messages.
    """
    low, high = _ends_of(bounds, names, called)
    columns = tuple(
        Column(name=name, type="number", min=low[j], max=high[j]) for j, name in enumerate(names)
    )
    return Schema(dataset=dataset or "unnamed", unit="row", columns=columns)


def _ends_of(bounds: Any, names: Sequence[str], called: str) -> list[list[float]]:
    """Return the lower and the upper bounds of the columns."""
    n, columns = len(names), ", ".join(map(repr, names[:5])) + (", ..." if names[5:] else "")
    pairs = bounds if isinstance(bounds, list) else None
    low: Any
    high: Any
    if isinstance(bounds, Mapping):
        named = {str(name): pair for name, pair in bounds.items()}
        if differences := _differences(list(named), names):
            ways = []
            if any(name not in named for name in names):
                ways.append(
                    f"add them to {called}, or select the columns {list(named)} of the table"
                )
            if any(name not in names for name in named):
                ways.append(f"remove from {called} what is no column")
            raise PlanError(
                f"{called} {differences}; the columns are {columns}; {', and '.join(ways)}."
            )
        pairs = [tuple(named[name]) if np.iterable(named[name]) else () for name in names]
    try:
        if pairs and all(isinstance(pair, tuple) for pair in pairs):
            low, high = zip(*pairs, strict=True)
        elif isinstance(bounds, str | Mapping):
            raise TypeError
        else:
            low, high = bounds
            pairs = None
        ends = [
            [float(end)] * n if np.ndim(end) == 0 else [*map(float, end)] for end in (low, high)
        ]
    except (TypeError, ValueError):
        if wordy := _wordy(bounds):
            facts = {name: "yes-no" if fact is bool else fact for name, fact in bounds.items()}
            raise PlanError(
                f"{called} of {wordy!r} are no numbers; for categories and dates give a schema, "
                "with the target if there is one, for example "
                f"Schema.propose(table, {facts!r}){choosing('bounds')}."
            ) from None
        raise PlanError(
            f"{called} must be public numbers: a tuple (low, high), each a number or {n} numbers, "
            f"a list of {n} tuples (low, high), a mapping of names to these, or a schema, got "
            f"{bounds!r}; bounds read from the records would leak their "
            f"extremes{choosing('bounds')}."
        ) from None
    if any(len(end) != n for end in ends):
        raise PlanError(
            f"{called} must be for {n} columns ({columns}), got {len(ends[0])} lower and "
            f"{len(ends[1])} upper bounds."
        )
    is_clear = isinstance(bounds, tuple) and all(isinstance(end, np.ndarray) for end in bounds)
    if n == 2 and not pairs and np.ndim(low) == np.ndim(high) == 1 and not is_clear:
        # All lower bounds before all upper ones, or one pair for each column?
        first, second = ends
        if first[0] < first[1] and second[0] < second[1]:
            raise PlanError(
                f"{called} have two meanings, got {bounds!r}; write [{tuple(first)}, "
                f"{tuple(second)}] for one pair (low, high) per column, a mapping of names to "
                "pairs, or a tuple of two arrays, all lower and all upper bounds."
            )
    return ends


def _wordy(bounds: Any) -> Any:
    """Return the first name in a mapping whose entry is `bool` or has words or dates, or ""."""
    if not isinstance(bounds, Mapping):
        return ""

    def has_words(given: Any) -> bool:
        cells = given if np.iterable(given) else ()
        return given is bool or any(isinstance(cell, str | date | np.datetime64) for cell in cells)

    return next((name for name, given in bounds.items() if has_words(given)), "")


def check_schema(schema: Any, plan: Plan) -> None:
    """Raise unless a schema is the one of a plan."""
    if not isinstance(schema, Schema) or schema.digest() != plan.schema_digest:
        raise PlanError(
            "bounds must be the schema of the model's fit, which its file does not contain; give "
            "the original schema."
        )


def by_schema(
    silos: Sequence[Any], schema: Schema, spending: BudgetParameters
) -> dict[str, Records]:
    """Read silos by the rules of a schema; only a cell of a used column excludes a record."""
    how: Any = {"columns": spending.columns, "frac_bits": spending.frac_bits}
    return {f"silo-{i}": read_source(silo, schema, **how) for i, silo in enumerate(silos)}


# Targets ------------------------------------------------------------------------------------------


def _labelled_by_schema(
    X: Any, y: Any, schema: Schema, spending: BudgetParameters, target: str | None
) -> SiloData:
    """Read silos by a schema that has the target."""
    if target is None:
        raise PlanError(
            "target must name the column of the schema to predict, got None; with a schema as "
            "bounds, declare this column in the schema, also if its values are given as y."
        )
    columns = [column.public for column in schema.columns]
    column = columns[position(columns, target)]
    target, categories = column.name, column.categories
    silos = as_silos(X)
    if y is not None:
        if any(target in header(silo) for silo in silos if is_frame(silo)):
            raise DataError(
                f"y must be None if X has the target {target!r}; give only one of them."
            )
        labels = label_parts(y, len(silos))
        silos = [labelled(silo, target, cells) for silo, cells in zip(silos, labels, strict=True)]
    classes = as_labels(categories) if categories else None
    records = by_schema(silos, schema, spending)
    return SiloData(schema, records, None, (), target, classes)


def as_labels(categories: Sequence[str]) -> NDArray[Any]:
    """Return classes in the user's types: numbers or truth values if all categories are such."""
    if set(categories) <= _TRUTH.keys():
        return np.array([_TRUTH[category] for category in categories])
    for kind in (int, float):
        try:
            numbers = [kind(category) for category in categories]
        except ValueError:
            continue
        if [str(number) for number in numbers] == list(categories):  # not for "01", which is text
            return np.array(numbers)
    return np.array(categories, dtype=object)


def label_parts(y: Any, n_silos: int) -> list[Any]:
    """Return the labels of each silo."""
    if isinstance(y, str):
        raise DataError(
            f"y must be the labels, got the text {y!r}; give the column of the table, or a schema "
            f"as bounds with target={y!r}."
        )
    # One silo needs no list.
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
        The labels of each silo.
    classes : sequence, "in_y" or None
        As for :func:`declared_classes`.
    """
    labels = declared_classes(parts, classes)
    if labels is None or isinstance(labels, str):
        raise PlanError(
            f"classes must be the public list of labels, or {IN_Y!r} to state that the set of "
            f"labels in y is public, got {classes!r}{choosing('classes')}."
        )
    labels = np.unique(np.asarray(labels))
    if isinstance(classes, str) and not len(labels):
        raise PlanError(f"classes={IN_Y!r} needs y; give y, or the public list of labels.")
    if len(labels) < 2:
        raise PlanError(f"classes must be at least 2, got {len(labels)} class.")
    return labels


def declared_classes(parts: Sequence[Any], classes: Any) -> Any:
    """Return the labels that `classes` or the type of y states to be public; else `classes`.

    Labels are read only if `classes` is "in_y". Those of a boolean type are False and True,
    whatever their values are.
    """
    if isinstance(classes, str) and classes == IN_Y:
        return label_set(parts)
    if classes is None and all(map(_is_boolean, parts)):
        return np.array([False, True])
    return classes


def _is_boolean(labels: Any) -> bool:
    """Return True if labels have the type of truth values."""
    declared = getattr(labels, "dtype", getattr(labels, "type", None))
    if declared is not None:
        return kind_named(str(declared)) == "boolean"
    # A list declares no type.
    return bool(isinstance(labels, list | tuple) and labels) and (
        {*map(type, labels)} <= {bool, np.bool_}
    )


def label_set(parts: Iterable[Any]) -> NDArray[Any]:
    """Return the distinct labels of all silos, without missing ones, in ascending order."""
    cells = [cell for part in parts for cell in _objects_of(Labelled(None, "y", part).column)]
    values = [cell for cell, kept in zip(cells, _present(cells).tolist(), strict=True) if kept]
    is_text = [isinstance(value, str) for value in values]
    if not all(is_text) and any(is_text):
        values = [str(value) for value in values]  # texts and numbers have no common order
    labels = np.unique(np.array(values))
    # scikit-learn's error for continuous labels.
    check_classification_targets(labels)
    return labels


def _objects_of(column: Any) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def class_categories(labels: NDArray[Any]) -> tuple[str, ...]:
    """Return the category of a schema for each label.

    Raises
    ------
    PlanError
        If the reader could not distinguish two labels, or a label from a missing cell.
    """
    names = tuple(str(label).strip() for label in np.asarray(labels).tolist())
    codes = CellType("category", tuple((name, i) for i, name in enumerate(names))).read([*names])
    if not np.array_equal(codes.values, np.arange(len(names))):
        raise PlanError(
            f"classes must be different words or numbers, and not empty, got {list(names)}; rename "
            "them."
        )
    return names


def category_column(name: str, categories: tuple[str, ...]) -> Column:
    """Return a column of categories."""
    last = len(categories) - 1.0
    return Column(name=name, type="category", categories=categories, min=0.0, max=last)


def kept_rows(table: Any, schema: Schema) -> Flags:
    """Return flags of the rows of a table that have a record; shape (n_rows,)."""
    rules = Rules.of(schema)
    limit = UnitLimit(rules.max_rows)
    # The same rules as the reader, so that each label gets its row.
    raws = open_by_schema(table, schema).chunks(default_rows(len(schema.columns)))
    return np.concatenate([limit.keep(raw.units, rules.judge(raw).usable) for raw in raws])


# New records for a fitted model -------------------------------------------------------------------


def new_rows(model: Any, X: Any, *, without: int | None = None) -> Floats:
    """Return new records for a fitted model, data units; raise if one would be dropped.

    X is read like the records of the fit: with a schema as `bounds`, columns are found by name, and
    the schema's rules fill missing cells. The column `without`, which is predicted, may be absent.
    """
    values, names = read_new(model, X, without)
    lacking = ~np.isfinite(values)
    if not lacking.any():
        return values
    scored = " (`score` does)" if hasattr(model, "score") else ""  # in a cross-validation
    if not isinstance(model.bounds, Schema):
        raise DataError(
            f"X has NaN, infinity or no number in some cells; remove such rows{scored}, or fit "
            "with a schema as bounds, whose rule 'missing' fills them."
        )
    at = np.flatnonzero(lacking.any(axis=1)).tolist()
    dropping = [names[j] for j in np.flatnonzero(lacking.any(axis=0)).tolist()]
    rows = ", ".join(map(str, at[:5])) + (", ..." if at[5:] else "")
    raise DataError(
        f"rows {rows} (from 0) have a value in {dropping[:5]} that is missing, unknown or out of "
        f"range, and the schema has no value for it; remove them{scored}, or fill these cells."
    )


def scored_rows(model: Any, X: Any, y: Any = None, weight: Any = None) -> tuple[Any, Any, Any]:
    """Return X, y and weights without the records that a fit leaves out; warn of their number.

    X is read as by :func:`new_rows`. If y is None and X has the target of the schema,
    y is this column.
    """
    check_is_fitted(model)
    # A model of a curator has no plan, and no target.
    task = model.plan_.task if hasattr(model, "plan_") else None
    values, names = read_new(model, X, getattr(task, "target", None))
    target = getattr(model, "_scored_target", getattr(model, "target", None))
    if y is None and target is not None and is_frame(X) and target in header(X):
        y = X[target]
    lacking = ~np.isfinite(values)
    kept = np.asarray(~lacking.any(axis=1))
    columns = [repr(names[j]) for j in np.flatnonzero(lacking.any(axis=0)).tolist()][:5]
    if y is not None:
        present = _present(_objects_of(Labelled(None, "y", y).column))
        columns += ["the target"] * (not present.all())
        kept &= present
    if kept.all():
        return X, y, weight
    cells = ", ".join(columns)
    sentence = (
        f"{len(kept) - kept.sum():,} of {len(kept):,} rows are left out of the score, as by a fit: "
        f"a cell of {cells} is missing, unknown or out of range."
    )
    if not kept.any():
        raise DataError(sentence)
    warn_owner(sentence)
    at = np.flatnonzero(kept)
    x, y, weight = (None if one is None else _safe_indexing(one, at) for one in (X, y, weight))
    return x, y, weight


def _present(cells: list[Any]) -> Flags:
    """Return flags of the cells that are not missing."""
    # No word is a category here, so the reader marks every cell that is not missing as wrong.
    read = CellType("category").read(cells)
    return np.zeros(len(cells), dtype=np.bool_) if read.wrong is None else read.wrong


def refuse_silos(X: Any, what: str) -> None:
    """Raise if X is a list or a mapping of tables; `what` names the methods that take one table."""
    if is_list_of_tables(X) or (isinstance(X, Mapping) and not hasattr(X, "shape")):
        raise DataError(
            f"X must be one table for {what}, got a {type(X).__name__} of {len(X)}; give one table "
            "at a time, or join them, for example with pandas.concat."
        )


def is_list_of_tables(X: Any) -> bool:
    """Return True for a list of the tables or paths of silos."""
    return isinstance(X, list | tuple) and any(
        is_path(one) or is_frame(one) or len(getattr(one, "shape", ())) == 2 for one in X
    )


def read_new(model: Any, X: Any, without: int | None = None) -> tuple[Floats, Sequence[str]]:
    """Return new records, not finite in the cells for which a fit drops a record, and names."""
    check_is_fitted(model)
    refuse_silos(X, "predictions, scores and transform")
    if not isinstance(model.bounds, Schema):
        values = _numbers(model, X)
        names = getattr(model, "feature_names_in_", None)
        return values, [f"x{j}" for j in range(values.shape[1])] if names is None else list(names)
    schema = model.bounds
    if hasattr(model, "plan_"):
        schema = without_target(schema.select(model.plan_.columns), without)
    return read_rows(X, schema), schema.names


def _numbers(model: Any, X: Any) -> Floats:
    """Return a table of numbers with the columns of a fit without a schema, in their order."""
    refuse_no_table(X)
    names = getattr(model, "feature_names_in_", ())
    # Bounds by name select columns by name, as a schema does.
    if isinstance(model.bounds, Mapping) and is_frame(X) and set(names) <= set(_names_of(X)):
        X = _safe_indexing(X, list(names), axis=1) if len(names) else X
    validate_data(model, X, reset=False, skip_check_array=True)  # checks names and their number
    is_floats = type(X) is np.ndarray and X.dtype in (np.float32, np.float64)
    return X if is_floats else read_floats(X)  # an array of floats is not copied


def refuse_no_table(X: Any) -> None:
    """Raise for arrays other than a table of real numbers, with the messages of scikit-learn."""
    dtype = getattr(X, "dtype", None)
    # The message that scikit-learn's checks expect.
    if getattr(dtype, "kind", "") == "c":
        raise DataError("Complex data not supported: records must be real numbers.")
    if getattr(X, "ndim", 2) != 2 or hasattr(X, "toarray"):
        header(X)  # raises with the reason


def grid_rows(model: Any, X: Any) -> NDArray[np.int32]:
    """Return the grid records of a table; the column of the target is a constant.

    With a schema as `bounds`, X is a table with its columns; the target may be absent.
    """
    check_is_fitted(model)
    target: int = model.plan_.task.target
    return with_target(new_rows(model, X, without=target), target, model.plan_.grid)


def without_target(schema: Schema, target: int | None) -> Schema:
    """Return the schema without the target, for a table that may lack it."""
    columns = tuple(column for j, column in enumerate(schema.columns) if j != target)
    return schema.model_copy(update={"columns": columns})


def with_target(values: Floats, target: int | None, grid: Grid) -> NDArray[np.int32]:
    """Return rows without the target, data units, as grid records with a constant target."""
    if target is not None:
        # A model ignores it, but the grid has a column for it.
        values = np.insert(values, target, grid.low[target], axis=1)
    return grid.encode(values)
