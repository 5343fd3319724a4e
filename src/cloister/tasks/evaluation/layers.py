"""What evaluations share: where predictions come from, a layer for each silo, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from cloister.display import Between, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid, round_to_grid
from cloister.task import FINE, Block, Floats, Integers, PublicColumn, Released, State, Task
from cloister.tasks.columns import position
from cloister.tasks.population import ENDS, POPULATION_NOTE

NOTE = f"[ , ] are 95 % of the noise, about these records. {POPULATION_NOTE}"
COLUMNS = (
    "Predictions and scores are columns that each silo made; the guarantee assumes that it made "
    "each from its own record alone. "
)
"""What a plan without a model says."""
Numbers = Mapping[str, Any]
"""Released results as plain numbers: arrays, or tuples of tuples of numbers."""


def plain(released: Numbers) -> dict[str, Any]:
    """Return released results as numbers and tuples, as a plan holds them."""
    return {name: _tuples(np.asarray(value).tolist()) for name, value in sorted(released.items())}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


SINGLE = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "kappa",
    "macro_auc",
    "auc",
    "log_loss",
    "brier",
    "mae",
    "rmse",
    "bias",
    "r2",
)
"""Measures of a whole model; one number each, but for the area of each of several classes."""


def named(model: Any) -> str:
    """Return what a refused model is called."""
    return f"the task {model.name!r}" if isinstance(model, Task) else f"a {type(model).__name__}"


def truth_of(model: Any, columns: Sequence[PublicColumn], truth: str | None) -> int:
    """Return the column of the truth: that of the model, unless it is named."""
    if truth is not None:
        return position(columns, truth, "truth")
    if model is None:
        raise PlanError("truth must name the column of the truth where there is no model.")
    return int(model.target)


def check_source(
    model: Task | None, released: Numbers, given: Sequence[int | None], n_features: int
) -> None:
    """Refuse a plan that does not say where predictions come from."""
    columns = [at for at in given if at is not None]
    if (model is None) != bool(columns):
        raise PlanError(
            "either a model with what it released, or columns of predictions or scores must be "
            "given, and not both."
        )
    if model is not None and not released:
        raise PlanError("released must be the results of the model; train it first.")
    if not all(_finite(value) for value in released.values()):
        raise PlanError("released must hold finite numbers only; train the model again.")
    if model is not None:
        box = Grid((-1.0,) * model.n_features, (1.0,) * model.n_features, model.frac_bits)
        state = {k: round_to_grid(v, model.frac_bits) for k, v in model.start().items()}
        wanted = {k: np.shape(v) for k, v in model.results(state, box).items()}
        if {name: np.shape(value) for name, value in released.items()} != wanted:
            raise PlanError(
                "released must have the names and shapes of the model's results; train the model "
                "again."
            )
    if model is not None and model.n_features != n_features:
        raise PlanError(
            f"model has {model.n_features} columns, the schema {n_features}; evaluate with the "
            "schema of the model."
        )


def _finite(value: Any) -> bool:
    return all(map(_finite, value)) if isinstance(value, tuple) else isfinite(value)


def first_layer(words: Integers, blocks: Sequence[Block]) -> Integers:
    """Return a vector of all layers of each block, of which the first holds the words."""
    parts, at = [], 0
    for block in blocks:
        size = block.size // block.shape[0]
        parts.append(np.pad(words[at : at + size], (0, block.size - size)))
        at += size
    return np.concatenate(parts)


def moved(total: Integers, blocks: Sequence[Block], layer: int) -> Integers:
    """Return a vector whose first layers are in place of others, which are empty."""
    parts, at = [], 0
    for block in blocks:
        part = total[at : at + block.size]
        parts.append(np.roll(part, layer * (block.size // block.shape[0])))
        at += block.size
    return np.concatenate(parts)


def noted(released: Mapping[str, Released]) -> State:
    """Return released blocks in records, and the deviation of the noise in each."""
    noise = [block.noise_std / (1 << FINE) for block in released.values()]
    tables = {name: from_grid(block.values, FINE) for name, block in released.items()}
    return {**tables, "noise": np.array(noise)}


def _spoken(name: str) -> str:
    return {"auc": "ROC AUC", "macro_auc": "macro ROC AUC", "r2": "R²"}.get(
        name, name.replace("_", " ")
    )


def between(results: Mapping[str, Floats], name: str, i: int) -> Between:
    """Return the i-th value of a measure with both ends of its interval."""
    ends = (results[key].ravel()[i] for key in (name, f"{name}_low", f"{name}_high"))
    wide = [float(results[name + end].ravel()[i]) for end in ENDS if name + end in results]
    return Between(*map(float, ends), population=(wide[0], wide[1]) if wide else None)


def table_of(
    title: str,
    rows: tuple[str, ...],
    names: tuple[str, ...],
    prefix: str,
    results: Mapping[str, Floats],
    note: str,
) -> Table:
    """Return a table with a column for each measure."""
    cells: tuple[tuple[str | Between, ...], ...] = tuple(
        (row, *(between(results, prefix + name, i) for name in names)) for i, row in enumerate(rows)
    )
    return Table(title, ("", *map(_spoken, names)), cells, note)


def table_of_silos(results: Mapping[str, Floats], silos: tuple[str, ...], note: str) -> Table:
    """Return the measures of each silo's own records."""
    names = tuple(
        name
        for name in SINGLE
        if f"silo_{name}" in results and results[f"silo_{name}"].size == len(silos)
    )
    return table_of("Each silo", silos, names, "silo_", results, note)


def table_of_measures(results: Mapping[str, Floats]) -> Table:
    """Return all measures of the whole model."""
    rows = tuple(
        (_spoken(name), between(results, name, 0))
        for name in SINGLE
        if name in results and results[name].size == 1
    )
    return Table("How good the model is", ("measure", "value"), rows, NOTE)
