"""Public state as typed fields: written to arrays of the grid, and read back, in one place.

A task's state is named arrays in grid coordinates, which all parties round to the grid. Real
numbers are such coordinates; whole ones are counts or indices, and come back as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import numpy as np

from cloister.arrays import Floats, GridState, Integers, State
from cloister.hazmat.fixedpoint import from_grid

_Known = TypeVar("_Known")
_Array = TypeVar("_Array")


def written(known: Any) -> State:
    """Return a dataclass of numbers and arrays as a state: an array for each field.

    A field that is such a dataclass itself stands for its own fields.
    """
    state: dict[str, Floats] = {}
    for field in fields(known):
        value = getattr(known, field.name)
        if is_dataclass(value):
            state |= written(value)
        else:
            state[field.name] = np.atleast_1d(np.asarray(value, dtype=np.float64))
    return state


def read(kind: type[_Known], state: GridState, frac_bits: int) -> _Known:
    """Return what :func:`written` wrote, after it was rounded to the grid.

    Fields of the dataclass are of ``float``, ``int``, ``Floats``, ``Integers`` or such a dataclass.
    """
    arrays = [state[name] for name in _names(kind)]  # type: ignore[arg-type]  # classes are hashable
    if any(array.flags.writeable for array in arrays):
        made: _Known = _made(kind, state, frac_bits)
        return made
    key = kind, frac_bits, *map(id, arrays)
    if key not in _FROZEN:
        if len(_FROZEN) >= _KEPT:
            _FROZEN.clear()
        # An array that is kept shares its number with no other.
        _FROZEN[key] = arrays, _made(kind, state, frac_bits)
    known: _Known = _FROZEN[key][1]
    return known


def frozen(state: GridState) -> GridState:
    """Return a view of a state that nobody can change; :func:`read` works it out once for all.

    What is read from it cannot be changed either.
    """
    views = {name: array.view() for name, array in state.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


_KEPT = 8
_FROZEN: dict[tuple[Any, ...], tuple[list[Integers], Any]] = {}
"""Arrays of frozen states, and what was read from them."""


def prefixed(prefix: str, values: Mapping[str, _Array]) -> dict[str, _Array]:
    """Return named arrays of a part under names of the whole."""
    return {prefix + name: value for name, value in values.items()}


def part_of(values: Mapping[str, _Array], prefix: str) -> dict[str, _Array]:
    """Return the named arrays of a part under its own names."""
    names = [name for name in values if name.startswith(prefix)]
    return {name.removeprefix(prefix): values[name] for name in names}


def _made(kind: Any, state: GridState, frac_bits: int) -> Any:
    values: dict[str, Any] = {}
    for name, of, inner in _fields(kind):
        if inner:
            values[name] = _made(of, state, frac_bits)
            continue
        steps = state[name]
        array = steps >> frac_bits if of in (int, Integers) else from_grid(steps, frac_bits)
        array.flags.writeable = steps.flags.writeable
        values[name] = array[0].item() if of in (int, float) else array
    return kind(**values)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    return tuple((name, of, is_dataclass(of)) for name, of in get_type_hints(kind).items())


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the names of all arrays that such a dataclass is written to."""
    parts = (_names(of) if inner else (name,) for name, of, inner in _fields(kind))
    return tuple(name for part in parts for name in part)
