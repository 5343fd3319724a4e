"""``cloister tasks``: what can be run."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from cloister.cli.output import Output, add_flags
from cloister.errors import PlanError
from cloister.jobs import make_plan
from cloister.privacy.budget import Budget
from cloister.schema import schema_of
from cloister.tasks import TASKS
from cloister.tasks.base import Task
from cloister.tasks.examples import example_of

_GIVEN = ("n_features", "nominal_n", "budget", "frac_bits", "columns", "silos", "unit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """List the tasks; return the exit code."""
    out = Output.of(args)
    entries = [_entry(task) for task in TASKS.values()]
    for entry in entries:
        out.say(f"{entry['task']}  ({'private' if entry['private'] else 'NOT PRIVATE'})")
        out.paragraph(f"  Example: {entry['example']}")
        if entry["options"]:
            out.paragraph(f"  Options: {', '.join(entry['options'])}")
        out.say()
    out.say("A task of your own: cloister run ... --task path/to/file.py:ClassName")
    out.document({"command": "tasks", "tasks": entries})
    return 0


def _entry(task: type[Task]) -> dict[str, Any]:
    """Describe a task by what it says of itself for a small example."""
    case = example_of(task, n_features=2, n_clusters=3)

    def designed(**options: Any) -> Task:
        return make_plan(
            task,
            schema_of(case.columns),
            ("a", "b", "c"),
            budget=Budget(1.0, 1e-6) if task.private else None,
            nominal_n=10_000,
            **{**case.options, **options},
        ).task

    example = designed()
    return {
        "task": task.name,
        "private": task.private,
        "profiles": sorted(task.profiles),
        "mechanism": example.mechanism,
        "example": example.describe(),
        "options": [name for name in _options(task, example, designed) if name not in _GIVEN],
    }


def _options(task: type[Task], example: Task, designed: Callable[..., Task]) -> list[str]:
    """Return what a design names, and then the fields that it hands on to the task, if it does."""
    parameters = inspect.signature(task.design).parameters.values()
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        return named
    others = [field.name for field in fields(task) if field.name not in named]  # type: ignore[arg-type]  # as in Plan.to_dict
    return named + [name for name in others if _takes(designed, name, getattr(example, name))]


def _takes(designed: Callable[..., Task], name: str, value: Any) -> bool:
    try:
        designed(**{name: value})
    except PlanError:
        return False
    return True
