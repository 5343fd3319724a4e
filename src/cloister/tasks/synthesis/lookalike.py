"""Synthetic records from a release, in the categories and units of a schema."""

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
    """Return synthetic records in the categories and units of a schema.

    Parameters are as for `DPSynthesiser.sample`.
    """
    task, task_results = synthesis_of(plan, results)
    levels = task.draw(task_results, rows, seed)
    return in_words(plan, results, schema, range(task.n_features), levels, seed)


def in_words(
    plan: Plan,
    results: Results,
    schema: Schema,
    columns: Sequence[int],
    levels: Integers,
    seed: int | None = None,
) -> pd.DataFrame:
    """Return records of some columns, given as levels, in the categories and units of a schema."""
    import pandas as pd

    task, _ = synthesis_of(plan, results)
    # A public seed: every party that holds the release can draw the same values.
    rng = public_generator("synthesise", "values", task.public_seed if seed is None else seed)
    edges, every = _edges_of(plan, results), schema.select(plan.columns).columns
    steps = plan.grid.half_range / plan.grid.one
    data: dict[str, Any] = {}
    for j, level in zip(columns, levels.T, strict=True):
        column = every[j]
        if column.public.levels:
            values = (False, True) if column.type == "boolean" else column.categories
            kind = bool if column.type == "boolean" else object
            data[column.name] = np.array(values, dtype=kind)[level]
        else:
            data[column.name] = _inside(column, edges[j], level, float(steps[j]), rng)
    return pd.DataFrame(data)


def synthesis_of(plan: Plan, results: Results) -> tuple[Synthesise, Results]:
    """Return the plan's synthesis task and its results."""
    task: Any = plan.task
    if not hasattr(task, "steps"):
        return cast(Synthesise, task), results
    # In a pipeline the synthesis is the last step: earlier ones only prepare its columns.
    last = len(task.steps) - 1
    return cast(Synthesise, task.steps[last]), task.results_of(last, results)


def _edges_of(plan: Plan, results: Results) -> dict[int, Floats]:
    """Return the edges of the bins of each numeric column, both ends included; data units."""
    edges = {}
    task, _ = synthesis_of(plan, results)
    low, half, one = plan.grid.low, plan.grid.half_range, plan.grid.one
    for j, walls in enumerate(task.walls):
        if walls:
            inner = np.array(walls) / one * half[j] + plan.grid.centre[j]
            edges[j] = np.array([low[j], *inner, plan.grid.high[j]])
    # Private edges are results of an earlier step, since the plan cannot hold them.
    for step in getattr(plan.task, "steps", ()):
        if isinstance(step, Discretise):
            edges |= dict(zip(step.used, results["discretise.edges"], strict=True))
    return edges


def _inside(
    column: Column, edges: Floats, bins: Integers, step: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Draw a value for each record uniformly in its bin; an integer for an integer column."""
    # Uniform, as the distribution of values inside a bin was not measured.
    low, high, fraction = edges[bins], edges[bins + 1], rng.random(len(bins))
    values = low + fraction * (high - low)
    # Records are rounded to the grid, so an edge may be up to half a step from its integer.
    if column.type == "integer":
        first, last = np.ceil(low - step / 2), np.ceil(high - step / 2) - 1
        last = np.where(bins == len(edges) - 2, np.floor(column.max), last)
        drawn = first + np.floor(fraction * (last - first + 1))
        # A bin without an integer takes the nearest one to its middle.
        values = np.where(last >= first, drawn, np.rint((low + high) / 2))
        return np.clip(values, np.ceil(column.min), np.floor(column.max)).astype(np.int64)
    if column.type == "date":
        years = np.floor(values)  # a date is a year with a fraction on the grid
        first_day = (years.astype(np.int64) - 1970).astype("M8[Y]")
        begin, end = first_day.astype("M8[D]"), (first_day + 1).astype("M8[D]")
        days = (values - years) * (end - begin).astype(np.int64)
        return np.asarray(begin + np.floor(days).astype(np.int64))
    return np.asarray(values)
