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

from cloister.core.arrays import Floats, GridState, Integers, State
from cloister.hazmat.fixedpoint import from_grid

_Known = TypeVar("_Known")
_Array = TypeVar("_Array")


def encode_state(known: Any) -> State:
    """Return a dataclass of numbers and arrays as a state: an array for each field.

    A field that is such a dataclass itself stands for its own fields.
    """
    state: dict[str, Floats] = {}
    for field in fields(known):
        value = getattr(known, field.name)
        if is_dataclass(value):
            state |= encode_state(value)
        else:
            state[field.name] = np.atleast_1d(np.asarray(value, dtype=np.float64))
    return state


def decode_state(kind: type[_Known], state: GridState, frac_bits: int) -> _Known:
    """Return what :func:`encode_state` wrote, after it was rounded to the grid.

    Fields of the dataclass are of ``float``, ``int``, ``Floats``, ``Integers`` or such a dataclass.
    """
    return kind(**{name: _value(of, name, state, frac_bits) for name, of in _fields(kind)})  # type: ignore[arg-type]  # classes are hashable


def prefixed(prefix: str, values: Mapping[str, _Array]) -> dict[str, _Array]:
    """Return named arrays of a part under names of the whole."""
    return {prefix + name: value for name, value in values.items()}


def part_of(values: Mapping[str, _Array], prefix: str) -> dict[str, _Array]:
    """Return the named arrays of a part under its own names."""
    names = [name for name in values if name.startswith(prefix)]
    return {name.removeprefix(prefix): values[name] for name in names}


def _value(kind: Any, name: str, state: GridState, frac_bits: int) -> Any:
    nested, whole, single = _form(kind)
    if nested:
        return decode_state(kind, state, frac_bits)
    values = state[name] >> frac_bits if whole else from_grid(state[name], frac_bits)
    return values[0].item() if single else values


@cache
def _form(kind: Any) -> tuple[bool, bool, bool]:
    """Return whether a kind is a dataclass, is whole, and is one number."""
    return is_dataclass(kind), kind in (int, Integers), kind in (int, float)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(kind).items())
