"""State as typed fields: what is read is what was written; a frozen state is read once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest

from cloister.hazmat.fixedpoint import round_to_grid
from cloister.task import Floats, GridState, Integers
from cloister.tasks.state import frozen, part_of, prefixed, read, written

BITS = 16


@dataclass(frozen=True)
class Inner:
    centre: Floats
    counts: Integers


@dataclass(frozen=True)
class Known:
    inner: Inner
    length: float
    cut: int


def on_grid(length: float = 0.5) -> GridState:
    known = Known(Inner(np.array([0.25, -1.0]), np.array([3, 40_000])), length, 7)
    return {name: round_to_grid(value, BITS) for name, value in written(known).items()}


def plain(known: Known) -> list[object]:
    return [known.inner.centre.tolist(), known.inner.counts.tolist(), known.length, known.cut]


def test_what_is_read_is_what_was_written() -> None:
    found = read(Known, on_grid(), BITS)
    assert plain(found) == [[0.25, -1.0], [3, 40_000], 0.5, 7]
    assert {field.name for field in fields(found)} == {"inner", "length", "cut"}


def test_a_frozen_state_is_read_once_and_to_the_same_values() -> None:
    state = on_grid()
    fixed = frozen(state)
    assert read(Known, fixed, BITS) is read(Known, fixed, BITS)
    assert plain(read(Known, fixed, BITS)) == plain(read(Known, state, BITS))
    assert read(Known, part_of(prefixed("a_", fixed), "a_"), BITS) is read(Known, fixed, BITS)
    assert read(Inner, fixed, BITS).counts.tolist() == [3, 40_000]


def test_a_frozen_state_is_never_taken_for_another_however_many_there_are() -> None:
    for number in range(100):
        state = frozen(on_grid(number / 4))
        assert read(Known, state, BITS).length == number / 4
        assert read(Known, {**state, "cut": np.array([1 << BITS])}, BITS).cut == 1
        assert read(Known, state, BITS - 1).length == number / 2


def test_neither_a_frozen_state_nor_what_is_read_from_it_can_be_changed() -> None:
    state = on_grid()
    found = read(Known, frozen(state), BITS)
    for array in (found.inner.centre, found.inner.counts, *frozen(state).values()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    state["cut"][0] = 0  # the state itself stays its owner's, and so does what is read from it
    read(Known, state, BITS).inner.counts[0] = 0
