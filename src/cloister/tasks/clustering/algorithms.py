"""The private k-means tasks that are installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from cloister.protocol.task import Task
from cloister.tasks import installed
from cloister.tasks.options import options_of


@cache
def kmeans_tasks() -> Mapping[str, type[Task]]:
    """Return the installed private k-means tasks, the values of ``algorithm``; ``auto`` first."""
    # Cached and read-only, because the look-up imports every installed task.
    tasks = {name: task for name, task in installed().items() if is_kmeans(task)}
    return MappingProxyType({"auto": tasks.pop("auto"), **tasks})


def is_kmeans(task: type[Task]) -> bool:
    """Return True if a task is private and finds a given number of clusters."""
    return task.private and "n_clusters" in {option.name for option in options_of(task)}
