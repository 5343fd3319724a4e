"""Default displays of a task without `displays`: all numbers of its results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloister.core.arrays import Floats, Results
from cloister.core.display import ENDS, Bars, Cell, Display, Estimate, Heatmap, Table, around, bare

MARGIN = "half_width"
"""Name of the margin of error of all results, or suffix of the margin of one result."""
_ENDS = ("_low", "_high", *ENDS, f"_{MARGIN}")


def displays_of(task: Any, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
    """Return the displays of a task, or those that are derived from its results."""
    displays_of_task = getattr(task, "displays", None) or derived
    displays: tuple[Display, ...] = displays_of_task(results, columns)
    return displays


def derived(results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
    """Return all numbers as one table, vectors as bars and matrices as heat maps.

    A result has an interval where there are ``NAME_low`` and ``NAME_high``, or a margin of error,
    ``NAME_half_width`` or ``half_width``. An axis as long as `columns` has their names.
    """
    estimates = {name: _estimate(results, name) for name in results if _is_value(results, name)}
    # Single numbers share a table, since one table for each would fill the page.
    numbers: tuple[tuple[Cell, ...], ...] = tuple(
        (_title(n), *e.cells()) for n, e in estimates.items() if e.values.size == 1
    )
    table = (Table("Results", ("", "value"), numbers),) if numbers else ()
    pictures = (_picture(_title(n), e, columns) for n, e in estimates.items() if e.values.size > 1)
    return (*table, *pictures)


def _is_value(results: Results, name: str) -> bool:
    """Return True if a result is neither an interval end nor a margin of another result."""
    if name == MARGIN:
        return len(results) == 1  # alone it is the margin of nothing
    return not any(name.endswith(end) and name.removesuffix(end) in results for end in _ENDS)


def _estimate(results: Results, name: str) -> Estimate:
    margin = results.get(f"{name}_{MARGIN}", results.get(MARGIN))
    if f"{name}_low" in results and f"{name}_high" in results:
        return Estimate.of(results, name)
    # A margin of another shape belongs to another result.
    fits = margin is not None and margin.shape in (results[name].shape, (1,), ())
    if name == MARGIN or margin is None or not fits:
        return bare(results[name])
    return around(results[name], margin)


def _picture(title: str, estimate: Estimate, columns: tuple[str, ...]) -> Bars | Heatmap:
    """Return bars of one axis, or a heat map of the last axis and all others."""
    shape = estimate.values.shape
    if len(shape) == 1:
        return Bars(title, replace(estimate, labels=(_places(shape[0], columns),)))

    def flat(array: Floats) -> Floats:
        return array.reshape(-1, shape[-1])

    matrix = estimate.mapped(flat)
    # `mapped` drops the margin, since most functions are not linear; a new shape is.
    margin = None if estimate.margin is None else flat(estimate.margin)
    labels = (_places(len(matrix.values), columns), _places(shape[-1], columns))
    return Heatmap(title, replace(matrix, margin=margin, labels=labels))


def _places(n: int, columns: tuple[str, ...]) -> tuple[str, ...]:
    return columns if n == len(columns) else tuple(map(str, range(n)))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
