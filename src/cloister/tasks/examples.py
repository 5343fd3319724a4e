"""A small case of every task: for listings, audits and tests of laws that all tasks obey.

A task has its own as ``example``, unless any columns of numbers, and at most a number of clusters,
will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.task import PublicColumn, Task
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
