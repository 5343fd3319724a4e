"""What estimators share: from a user's table to records on a grid, and from centres to labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.utils.validation import validate_data

from cloister.data import array_records, as_silos, header, read_rows, read_source
from cloister.errors import DataError, PlanError, UncountedWarning
from cloister.hazmat.fixedpoint import Grid
from cloister.jobs import Account
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import Plan
from cloister.schema import Column, Schema

Floats = NDArray[np.float64]

FIT = {"ensure_all_finite": False, "ensure_min_samples": 0}
"""No record stops a fit, nor does their number: one without a value is left out, as in files.

A fit that fails tells whoever sees it fail something of a record.
"""


def read_silos(
    model: Any, X: Any, *, frac_bits: int
) -> tuple[Schema, dict[str, Any], Floats | None]:
    """Return the contract, the silos' records on the grid, and the table if there is one.

    Parameters
    ----------
    model : estimator
        With `bounds` and `dataset`; what scikit-learn learns of a table is set on it.
    X : table, path, or list of these
    frac_bits : int

    Returns
    -------
    schema : Schema
    records : dict of str to iterable of int32 arrays
    local : ndarray of shape (n_samples, n_features) or None
        The table in data units, if there is just one and it is in memory; NaN where a schema
        drops the record.
    """
    for old in ("labels_", "feature_names_in_"):
        model.__dict__.pop(old, None)
    silos = as_silos(X)
    table = len(silos) == 1 and not isinstance(silos[0], str | Path)
    local = None
    if isinstance(model.bounds, Schema):
        schema = model.bounds
        if table:  # read now: what cannot be labelled is refused before it costs anything
            local = read_rows(silos[0], schema)
    elif table:
        local = checked_numbers(model, silos[0], **FIT)
        silos = [local]
        names = getattr(model, "feature_names_in_", header(local))
        schema = plain_schema(model.bounds, names, model.dataset)
    else:
        names, *others = {header(silo) for silo in silos}
        if others:
            raise DataError(
                "silos must have the same columns in the same order; give a schema as bounds "
                "to match them by name."
            )
        schema = plain_schema(model.bounds, names, model.dataset)
    records = {
        f"silo-{index}": read_source(silo, schema, frac_bits=frac_bits)
        if isinstance(model.bounds, Schema)
        else array_records(silo, schema.grid(frac_bits))
        for index, silo in enumerate(silos)
    }
    return schema, records, local


def plain_schema(bounds: Any, names: Sequence[str], dataset: str | None) -> Schema:
    """Return the contract that plain bounds make."""
    try:
        low, high = (np.broadcast_to(np.asarray(b, float), len(names)) for b in bounds)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"bounds must be (low, high), each a number or {len(names)} numbers, got {bounds!r}."
        ) from error
    columns = tuple(
        Column(name=str(name), type="number", min=float(a), max=float(b))
        for name, a, b in zip(names, low, high, strict=True)
    )
    return Schema(dataset=dataset or "unnamed", unit="row", columns=columns)


def check_bounds(bounds: Any) -> None:
    """Refuse bounds that are not given, or are to be read from the records."""
    if bounds is None or isinstance(bounds, str):
        raise PlanError(
            f"bounds must be public numbers or a schema, got {bounds!r}; bounds read from "
            "the records would leak their extremes."
        )


def check_schema(schema: Any, plan: Plan) -> None:
    """Refuse a contract that is not the one a plan was made of."""
    if not isinstance(schema, Schema) or schema.digest() != plan.schema_digest:
        raise PlanError("bounds must be the schema of the model: digests differ; give that one.")


def check_whole(**numbers: Any) -> None:
    """Refuse a number that is not an integer of at least 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise PlanError(f"{name} must be an integer >= 1, got {value!r}.")


def open_account(model: Any, schema: Schema) -> Account | None:
    """Return where an estimator is charged, or None without a ledger."""
    named = schema.dataset if isinstance(model.bounds, Schema) else None
    return account_of(model.ledger, model.dataset or named)


def account_of(ledger: Ledger | str | Path | None, dataset: str | None) -> Account | None:
    """Return where a release is charged, or None without a ledger, which is said once a process.

    Raises
    ------
    PlanError
        If there is a ledger and no data set.
    """
    if ledger is None:
        say_uncounted()
        return None
    if dataset is None:
        raise PlanError("dataset must be given with a ledger; it is charged under that name.")
    return Account(ledger if isinstance(ledger, Ledger) else Ledger(ledger), dataset)


@cache
def say_uncounted() -> None:
    """Warn that a release is in no ledger; once a process, whatever the warning filters are."""
    warnings.warn(
        "no ledger was given, so what this release costs is not added to any other; give ledger "
        "and dataset, and the whole cost of the records is known and limited.",
        UncountedWarning,
        stacklevel=2,
    )


def checked_numbers(model: Any, X: Any, **options: Any) -> Floats:
    """Let scikit-learn check a table; where it would quote cells, say so in our words."""
    try:
        checked: Floats = validate_data(model, X, dtype=[np.float64, np.float32], **options)
        return checked
    except ValueError as error:
        if "array=" not in str(error) and "could not convert" not in str(error):
            raise
    raise DataError(
        "records must be a table of numbers with 2 dimensions, got text or another shape. "
        "Reshape your data, or give a schema as bounds, which says what text becomes."
    )


def new_rows(model: Any, X: Any) -> Floats:
    """Return records that a fitted model is asked about, data units; none may be dropped.

    Parameters
    ----------
    model : estimator
        Fitted.
    X : array_like, table or path
        Read like the records of the fit: with a schema as `bounds`, columns are found by name and
        the schema fills what is missing.

    Raises
    ------
    DataError
        If the schema drops a record.
    """
    if isinstance(model.bounds, Schema):
        return kept_rows(known_columns(model), X)
    return checked_numbers(model, X, reset=False)


def known_columns(model: Any) -> Schema:
    """Return what the contract of a fitted model says of the columns that the model knows."""
    schema: Schema = model.bounds
    return schema.select(model.plan_.columns) if hasattr(model, "plan_") else schema


def kept_rows(schema: Schema, X: Any) -> Floats:
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


def nearest_centre(grid: Grid, X: Floats, centres: Floats) -> tuple[NDArray[np.int32], Floats]:
    """Return label and squared scaled distance of each record; `X` and `centres` in data units."""
    labels, distances = pairwise_distances_argmin_min(grid.normalise(X), grid.normalise(centres))
    return labels.astype(np.int32), distances**2


def local_labels(grid: Grid, local: Floats, centres: Floats) -> NDArray[np.int32]:
    """Return the nearest centre of each record, -1 for one that was left out; not private."""
    complete = np.isfinite(local).all(axis=1)
    labels = np.full(len(local), -1, dtype=np.int32)
    if complete.any():
        labels[complete] = nearest_centre(grid, local[complete], centres)[0]
    return labels
