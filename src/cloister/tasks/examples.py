"""A small example of every task, for listings, audits and tests of the laws of all tasks.

A task defines it as ``example``. It may omit it if it accepts any columns of numbers and requires
no option except a number of clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloister.core.arrays import GridState, Integers, State
from cloister.core.errors import CloisterError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.task import BOOLEAN as TRUTHS
from cloister.protocol.task import NoisyBlock, PublicColumn, Task
from cloister.tasks.options import options_of

NUMBER = PublicColumn("age", 0.0, 100.0)
OTHER_NUMBER = PublicColumn("weight", 0.0, 200.0)
BOOLEAN = PublicColumn("smokes", 0.0, 1.0, TRUTHS)
CATEGORY = PublicColumn("work", 0.0, 2.0, ("private", "state", "none"))


@dataclass(frozen=True)
class Example:
    """Public columns that fit a task, and its required or instructive options."""

    columns: tuple[PublicColumn, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


MIXED = (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN)


def numbers(n_features: int) -> tuple[PublicColumn, ...]:
    """Return columns ``x0, x1, ...`` in ``[-1, 1]``."""
    return tuple(PublicColumn(f"x{j}", -1.0, 1.0) for j in range(n_features))


def example_of(task: type[Task], n_features: int = 2, n_clusters: int = 2) -> Example:
    """Return the example of a task, by default with columns of numbers and clusters."""
    defined: Example | None = getattr(task, "example", None)
    if defined is not None:
        return defined
    minimum = max(2, n_clusters)
    sizes = {"n_clusters": n_clusters, "min_clusters": minimum, "max_clusters": minimum + 1}
    names = {option.name for option in options_of(task)}
    chosen = {name: value for name, value in sizes.items() if name in names}
    return Example(numbers(n_features), chosen)


def hostile_rounds(task: Task) -> Iterator[tuple[int, GridState]]:
    """Yield rounds and the public states before them that follow from invented answers.

    A dishonest aggregator may answer with any elements. The next sum of a silo must still keep
    its bounds. A task may reject such answers with a :class:`CloisterError`.
    """
    rng = public_generator("hostile states")
    largest = np.iinfo(np.int64).max // 4  # extreme, but a sum of a few does not overflow
    makes: tuple[Callable[[tuple[int, ...]], Integers], ...] = (
        lambda shape: np.zeros(shape, dtype=np.int64),
        lambda shape: np.full(shape, largest),
        lambda shape: np.full(shape, -largest),
        lambda shape: rng.integers(-largest, largest, shape),
        lambda shape: rng.integers(-(1 << 30), 1 << 30, shape),
    )
    for make in makes:
        state = _on_grid(task, task.start())
        for t in range(task.rounds - 1):
            answer = {b.name: NoisyBlock(make(b.shape), 1.0) for b in task.blocks(t)}
            try:
                # All parties round the state; an audit must test the rounded one.
                state = _on_grid(task, task.update(t, state, answer))
            except CloisterError:
                break
            yield t + 1, state


def _on_grid(task: Task, state: State) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}
