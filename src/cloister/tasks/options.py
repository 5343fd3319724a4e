"""The options of each task by name: for listings, and for those who gave another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any

from cloister.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.task import Task
from cloister.tasks.examples import example_of

_TOLD = {  # to every task that takes it, not by the user
    "n_features": 0,
    "nominal_n": 10_000,
    "budget": None,
    "frac_bits": 16,
    "columns": (),
    "silos": ("a", "b", "c"),
    "unit": "row",
}
_ALWAYS = ("n_features", "nominal_n", "budget", "frac_bits")


def options_of(task: type[Task]) -> tuple[str, ...]:
    """Return what a design names, and then the fields that it hands on to the task, if it does."""
    parameters = signature(task.design).parameters.values()
    named = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    handed: list[str] = []
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        others = [field.name for field in fields(task)]  # type: ignore[arg-type]  # a protocol cannot say that tasks are dataclasses
        handed = _handed_on(task, [name for name in others if name not in named])
    return tuple(name for name in (*named, *handed) if name not in _TOLD)


def misfit(task: type[Task], given: Iterable[str], error: TypeError) -> str:
    """Say in one sentence why a design does not take the options that it was given."""
    own, given = options_of(task), tuple(given)
    parameters = signature(task.design).parameters
    absent = [
        name for name in own if name in parameters and parameters[name].default is Parameter.empty
    ]
    reasons = [f"it has no option {name!r}" for name in given if name not in own]
    reasons += [f"{name!r} must be given" for name in absent if name not in given]
    return (
        f"options of task {task.name!r} do not fit: {reasons[0] if reasons else error}; "
        f"its options are {', '.join(own) or 'none'}."
    )


def _handed_on(task: type[Task], names: list[str]) -> list[str]:
    """Find by a try with a small example which fields a design takes, too."""
    try:
        example = _designed(task)
    except (PlanError, LookupError, TypeError, ValueError):
        return names  # a task of somebody's own, of which there is no example
    return [name for name in names if _takes(task, name, getattr(example, name))]


def _takes(task: type[Task], name: str, value: Any) -> bool:
    try:
        _designed(task, **{name: value})
    except (PlanError, KeyError, TypeError):  # a name given twice may be a KeyError, too
        return False
    return True


def _designed(task: type[Task], **options: Any) -> Task:
    case = example_of(task, n_features=2, n_clusters=3)
    told = {
        **_TOLD,
        "n_features": len(case.columns),
        "budget": Budget(1.0, 1e-6) if task.private else None,
        "columns": case.columns,
    }
    taken = signature(task.design).parameters
    told = {name: value for name, value in told.items() if name in taken or name in _ALWAYS}
    return task.design(**{**told, **case.options, **options})
