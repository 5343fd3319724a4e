"""Conversion of a public state between typed fields and arrays in grid coordinates.

A task's state consists of named arrays in grid coordinates, which all parties round to the grid.
Real fields are such coordinates. Integer fields are counts or indices and are restored exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, State
from cloister.hazmat.fixedpoint import from_grid

_State = TypeVar("_State")
_Array = TypeVar("_Array")


def encode_state(fit_state: Any) -> State:
    """Return a dataclass of numbers and arrays as a state with one array per field.

    A field that is such a dataclass itself contributes its fields.
    """
    state: dict[str, Floats] = {}
    for field in fields(fit_state):
        value = getattr(fit_state, field.name)
        if is_dataclass(value):
            state |= encode_state(value)
        else:
            state[field.name] = np.atleast_1d(np.asarray(value, dtype=np.float64))
    return state


def decode_state(kind: type[_State], state: GridState, frac_bits: int) -> _State:
    """Return the dataclass that :func:`encode_state` encoded, from a state rounded to the grid.

    Its fields have type ``float``, ``int``, ``Floats``, ``Integers`` or such a dataclass.
    """
    return kind(**{name: _value(of, name, state, frac_bits) for name, of in _fields(kind)})  # type: ignore[arg-type]  # classes are hashable


def prefixed(prefix: str, values: Mapping[str, _Array]) -> dict[str, _Array]:
    """Return named arrays with a prefix added to each name."""
    return {prefix + name: value for name, value in values.items()}


def part_of(values: Mapping[str, _Array], prefix: str) -> dict[str, _Array]:
    """Return the named arrays with a prefix, which is removed from each name."""
    names = [name for name in values if name.startswith(prefix)]
    return {name.removeprefix(prefix): values[name] for name in names}


def _value(kind: Any, name: str, state: GridState, frac_bits: int) -> Any:
    nested, whole, single = _form(kind)
    if nested:
        return decode_state(kind, state, frac_bits)
    # Integers are shifted rather than divided, so that values beyond 2**53 stay exact.
    values = state[name] >> frac_bits if whole else from_grid(state[name], frac_bits)
    return values[0].item() if single else values


@cache
def _form(kind: Any) -> tuple[bool, bool, bool]:
    """Return three flags of a type: it is a dataclass, has integers, is a single number."""
    # Cached: the state is decoded for every chunk of records.
    return is_dataclass(kind), kind in (int, Integers), kind in (int, float)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(kind).items())
