"""What is shown of a task that says nothing about it: all that its results hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloister.core.arrays import Floats, Results
from cloister.core.display import Bars, Cell, Display, Heatmap, Table
from cloister.core.estimate import ENDS, Estimate, around, bare

MARGIN = "half_width"
"""The result that is the margin of error of all others, or ends the name of that of one."""
_ENDS = ("_low", "_high", *ENDS, f"_{MARGIN}")


def displays_of(task: Any, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
    """Return the displays of a task, or those that are derived from its results."""
    own = getattr(task, "displays", None)
    shown: tuple[Display, ...] = own(results, columns) if own else derived(results, columns)
    return shown


def derived(results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
    """Return all numbers as one table, vectors as bars and matrices as heat maps.

    A result has an interval where there are ``NAME_low`` and ``NAME_high``, or a margin of error,
    ``NAME_half_width`` or ``half_width``. An axis as long as `columns` has their names.
    """
    found = {name: _estimate(results, name) for name in results if _stands_alone(results, name)}
    numbers: tuple[tuple[Cell, ...], ...] = tuple(
        (_title(n), *e.cells()) for n, e in found.items() if e.values.size == 1
    )
    table = (Table("Results", ("", "value"), numbers),) if numbers else ()
    pictures = (_picture(_title(n), e, columns) for n, e in found.items() if e.values.size > 1)
    return (*table, *pictures)


def _stands_alone(results: Results, name: str) -> bool:
    """Return whether a result is no end and no margin of another one."""
    if name == MARGIN:
        return len(results) == 1
    return not any(name.endswith(end) and name.removesuffix(end) in results for end in _ENDS)


def _estimate(results: Results, name: str) -> Estimate:
    margin = results.get(f"{name}_{MARGIN}", results.get(MARGIN))
    if f"{name}_low" in results and f"{name}_high" in results:
        return Estimate.of(results, name)
    fits = margin is not None and margin.shape in (results[name].shape, (1,), ())
    if name == MARGIN or margin is None or not fits:
        return bare(results[name])
    return around(results[name], margin)


def _picture(title: str, estimate: Estimate, columns: tuple[str, ...]) -> Bars | Heatmap:
    """Return bars of one axis, or a heat map of the last axis and all others."""
    shape = estimate.values.shape
    if len(shape) == 1:
        return Bars(title, replace(estimate, labels=(_places(shape[0], columns),)))

    def flat(part: Floats) -> Floats:
        return part.reshape(-1, shape[-1])

    matrix = estimate.mapped(flat)
    margin = None if estimate.margin is None else flat(estimate.margin)
    labels = (_places(len(matrix.values), columns), _places(shape[-1], columns))
    return Heatmap(title, replace(matrix, margin=margin, labels=labels))


def _places(n: int, columns: tuple[str, ...]) -> tuple[str, ...]:
    return columns if n == len(columns) else tuple(map(str, range(n)))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
