"""A small case of every task: for listings, audits and tests of laws that all tasks obey.

A task has its own as ``example``, unless any columns of numbers, and at most a number of clusters,
will do.
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
from cloister.protocol.task import NoisyBlock, PublicColumn, Task
from cloister.tasks.options import options_of

NUMBER = PublicColumn("age", 0.0, 100.0)
OTHER_NUMBER = PublicColumn("weight", 0.0, 200.0)
BOOLEAN = PublicColumn("smokes", 0.0, 1.0, ("0", "1"))
CATEGORY = PublicColumn("work", 0.0, 2.0, ("private", "state", "none"))


@dataclass(frozen=True)
class Example:
    """Public columns that fit a task, and options that have no default or are worth a look."""

    columns: tuple[PublicColumn, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


MIXED = (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN)


def numbers(n_features: int) -> tuple[PublicColumn, ...]:
    """Return columns ``x0, x1, ...`` in ``[-1, 1]``."""
    return tuple(PublicColumn(f"x{j}", -1.0, 1.0) for j in range(n_features))


def example_of(task: type[Task], n_features: int = 2, n_clusters: int = 2) -> Example:
    """Return the case of a task: its own, or so many columns of numbers and clusters."""
    own: Example | None = getattr(task, "example", None)
    if own is not None:
        return own
    least = max(2, n_clusters)
    fitting = {"n_clusters": n_clusters, "min_clusters": least, "max_clusters": least + 1}
    names = {one.name for one in options_of(task)}
    chosen = {name: value for name, value in fitting.items() if name in names}
    return Example(numbers(n_features), chosen)


def hostile_rounds(task: Task) -> Iterator[tuple[int, GridState]]:
    """Yield rounds and public states before them that follow from invented answers.

    A dishonest aggregator may answer with any elements. The next sum of a silo must keep its
    bounds even so. A task may refuse such answers with one of our errors.
    """
    rng = public_generator("hostile states")
    most = np.iinfo(np.int64).max // 4
    makes: tuple[Callable[[tuple[int, ...]], Integers], ...] = (
        lambda shape: np.zeros(shape, dtype=np.int64),
        lambda shape: np.full(shape, most),
        lambda shape: np.full(shape, -most),
        lambda shape: rng.integers(-most, most, shape),
        lambda shape: rng.integers(-(1 << 30), 1 << 30, shape),
    )
    for make in makes:
        state = _on_grid(task, task.start())
        for t in range(task.rounds - 1):
            answer = {b.name: NoisyBlock(make(b.shape), 1.0) for b in task.blocks(t)}
            try:
                state = _on_grid(task, task.update(t, state, answer))
            except CloisterError:
                break
            yield t + 1, state


def _on_grid(task: Task, state: State) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}
