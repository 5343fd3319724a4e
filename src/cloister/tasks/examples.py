"""A small case of every task: for listings, audits and tests of laws that all tasks obey.

A task that takes any columns of numbers, and at most a number of clusters, needs no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cloister.task import PublicColumn, Task

NUMBER = PublicColumn("age", 0.0, 100.0)
OTHER_NUMBER = PublicColumn("weight", 0.0, 200.0)
BOOLEAN = PublicColumn("smokes", 0.0, 1.0, ("0", "1"))
CATEGORY = PublicColumn("work", 0.0, 2.0, ("private", "state", "none"))


@dataclass(frozen=True)
class Example:
    """Public columns and options that fit a task.

    Parameters
    ----------
    columns : tuple of PublicColumn
    options : mapping
        What ``design`` is told beyond what every task is told.
    """

    columns: tuple[PublicColumn, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


EXAMPLES: dict[str, Example] = {}
"""By the name of the task."""

EXAMPLES["naive-bayes"] = Example(
    (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN),
    {"target": "smokes", "numbers": {"weight": "gaussian"}},
)

EXAMPLES["logistic"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN), {"target": "smokes"})
EXAMPLES["linear"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN), {"target": "weight"})

EXAMPLES["evaluation"] = Example(
    (BOOLEAN, PublicColumn("score", 0.0, 1.0)), {"truth": "smokes", "score": "score"}
)
EXAMPLES["regression-evaluation"] = Example(
    (OTHER_NUMBER, PublicColumn("told", 0.0, 200.0)), {"truth": "weight", "prediction": "told"}
)
EXAMPLES["cluster-quality"] = Example(
    (NUMBER, OTHER_NUMBER), {"centres": ((25.0, 50.0), (75.0, 150.0))}
)
EXAMPLES["outliers"] = Example(
    (NUMBER, OTHER_NUMBER, CATEGORY), {"count_share": 0.2, "group": "work"}
)
EXAMPLES["quantiles"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN))
EXAMPLES["bounds"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN))
EXAMPLES["pca"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN), {"n_components": 2})
EXAMPLES["standardise"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN))
EXAMPLES["statistics"] = Example((NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN), {"covariance": True})
EXAMPLES["pipeline"] = Example(
    (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN),
    {
        "steps": [["standardise", {}], ["naive-bayes", {"target": "smokes"}]],
        "least_signal": 0.0,
    },
)

EXAMPLES["forest"] = Example(
    (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN),
    {"target": "smokes", "kind": "boosted", "n_trees": 3, "depth": 3},
)

EXAMPLES["fedavg"] = Example(
    (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN), {"target": "smokes", "rounds": 3}
)
EXAMPLES["fedavg-regression"] = Example(
    (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN),
    {"target": "weight", "rounds": 2, "hidden": 2, "growth": 2.0},
)

EXAMPLES["apriori"] = Example(
    tuple(PublicColumn(item, 0.0, 1.0, ("0", "1")) for item in ("bread", "butter", "milk", "tea")),
    {"max_size": 3, "basket_size": 2, "min_support": 0.1},
)


def numbers(n_features: int) -> tuple[PublicColumn, ...]:
    """Return columns ``x0, x1, ...`` in ``[-1, 1]``."""
    return tuple(PublicColumn(f"x{j}", -1.0, 1.0) for j in range(n_features))


def example_of(task: type[Task], n_features: int = 2, n_clusters: int = 2) -> Example:
    """Return the case of a task: its own, or so many columns of numbers and clusters."""
    if task.name in EXAMPLES:
        return EXAMPLES[task.name]
    names = {f.name for f in fields(task)}  # type: ignore[arg-type]  # tasks are dataclasses
    columns = numbers(n_features)
    if "n_clusters" in names:
        return Example(columns, {"n_clusters": n_clusters})
    if {"min_clusters", "max_clusters"} <= names:
        least = max(2, n_clusters)
        return Example(columns, {"min_clusters": least, "max_clusters": least + 1})
    return Example(columns)
