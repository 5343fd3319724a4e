"""Options of a task as JSON-able values: a plan carries them, and silos design the task again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from cloister.core.errors import PlanError
from cloister.protocol.plan import task_from_json, task_to_json
from cloister.protocol.task import Task
from cloister.tasks.options import checked_options, options_of

TASK, NUMBER, PAIRS = "$task", "$number", "$pairs"
"""Keys of mappings that stand for values that JSON does not have."""


def encode_options(task: type[Task], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a task as JSON-able values, defaults included.

    Every party designs the same task from them; see :func:`decode_options`.
    """
    options = checked_options(task, given)
    return {o.name: _encoded(getattr(options, o.name)) for o in options_of(task)}


def decode_options(encoded: Mapping[str, Any], tasks: Mapping[str, type[Task]]) -> dict[str, Any]:
    """Return options written by :func:`encode_options`; `tasks` holds the classes of models."""
    return {name: _decoded(value, tasks) for name, value in encoded.items()}


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _encoded(value.tolist())
    if isinstance(value, float) and not isfinite(value):
        return {NUMBER: repr(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        entries = {key: _encoded(entry) for key, entry in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in entries):
            return entries
        return {PAIRS: [[_encoded(key), entry] for key, entry in entries.items()]}
    if isinstance(value, Task):
        return {TASK: task_to_json(value)}
    if isinstance(value, Iterable):
        return [_encoded(entry) for entry in value]
    raise PlanError(f"an option must be made of numbers, text, lists and mappings, got {value!r}.")


def _decoded(value: Any, tasks: Mapping[str, type[Task]]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_decoded(entry, tasks) for entry in value)
    if not isinstance(value, Mapping):
        return value
    if NUMBER in value:
        return float(value[NUMBER])
    if PAIRS in value:
        return {_decoded(key, tasks): _decoded(entry, tasks) for key, entry in value[PAIRS]}
    if TASK in value:
        return task_from_json(value[TASK], tasks)
    return {key: _decoded(entry, tasks) for key, entry in value.items()}
