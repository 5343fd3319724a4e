"""Look-alike records of a release, in the categories and units of a schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, Integers, Results
from cloister.core.randomness import public_generator
from cloister.tasks.preparation.discretise import Discretise
from cloister.tasks.synthesis.synthesise import Synthesise

if TYPE_CHECKING:
    import pandas as pd

    from cloister.data.schema import Column, Schema
    from cloister.protocol.plan import Plan


def records_of(
    plan: Plan,
    results: Results,
    schema: Schema,
    rows: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """Return look-alike records in the words and units of a schema; see `DPSynthesiser.sample`."""
    task, own = synthesis_of(plan, results)
    levels = task.draw(own, rows, seed)
    return in_words(plan, results, schema, range(task.n_features), levels, seed)


def in_words(
    plan: Plan,
    results: Results,
    schema: Schema,
    columns: Sequence[int],
    levels: Integers,
    seed: int | None = None,
) -> pd.DataFrame:
    """Return records of some columns, given by levels, in the words and units of a schema."""
    import pandas as pd

    task, _ = synthesis_of(plan, results)
    rng = public_generator("synthesise", "values", task.public_seed if seed is None else seed)
    edges, every = _edges_of(plan, results), schema.select(plan.columns).columns
    steps = plan.grid.half_range / plan.grid.one
    found: dict[str, Any] = {}
    for j, own in zip(columns, levels.T, strict=True):
        column = every[j]
        if column.public.levels:
            words = (False, True) if column.type == "boolean" else column.categories
            kind = bool if column.type == "boolean" else object
            found[column.name] = np.array(words, dtype=kind)[own]
        else:
            found[column.name] = _inside(column, edges[j], own, float(steps[j]), rng)
    return pd.DataFrame(found)


def synthesis_of(plan: Plan, results: Results) -> tuple[Synthesise, Results]:
    """Return the task of look-alike records, and what it released."""
    task: Any = plan.task
    if not hasattr(task, "steps"):
        return cast(Synthesise, task), results
    last = len(task.steps) - 1
    return cast(Synthesise, task.steps[last]), task.results_of(last, results)


def _edges_of(plan: Plan, results: Results) -> dict[int, Floats]:
    """Return where the bins of each column of numbers begin, and the last one ends; data units."""
    found = {}
    task, _ = synthesis_of(plan, results)
    low, half, one = plan.grid.low, plan.grid.half_range, plan.grid.one
    for j, walls in enumerate(task.walls):
        if walls:
            inner = np.array(walls) / one * half[j] + plan.grid.centre[j]
            found[j] = np.array([low[j], *inner, plan.grid.high[j]])
    for step in getattr(plan.task, "steps", ()):
        if isinstance(step, Discretise):
            found |= dict(zip(step.used, results["discretise.edges"], strict=True))
    return found


def _inside(
    column: Column, edges: Floats, bins: Integers, step: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Return a value for each record from inside its bin: of integers, one of them."""
    low, high, part = edges[bins], edges[bins + 1], rng.random(len(bins))
    values = low + part * (high - low)
    if column.type == "integer":  # records are rounded to the grid, so an edge may lie beside one
        first, last = np.ceil(low - step / 2), np.ceil(high - step / 2) - 1
        last = np.where(bins == len(edges) - 2, np.floor(column.max), last)
        among = first + np.floor(part * (last - first + 1))
        values = np.where(last >= first, among, np.rint((low + high) / 2))
        return np.clip(values, np.ceil(column.min), np.floor(column.max)).astype(np.int64)
    if column.type == "date":
        years = np.floor(values)
        first_day = (years.astype(np.int64) - 1970).astype("M8[Y]")
        begin, end = first_day.astype("M8[D]"), (first_day + 1).astype("M8[D]")
        days = (values - years) * (end - begin).astype(np.int64)
        return np.asarray(begin + np.floor(days).astype(np.int64))
    return np.asarray(values)
