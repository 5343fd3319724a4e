"""``cloister tasks``: the built-in tasks and their options."""

from __future__ import annotations

import argparse
from typing import Any

from cloister.app.job import make_plan
from cloister.cli.output import Output
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import Task
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.tasks.options import options_of


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Declare no options."""


def run(_: argparse.Namespace, out: Output) -> dict[str, Any]:
    entries = [_entry(task) for task in TASKS.values()]
    for entry in entries:
        out.say(f"{entry['task']}  ({'private' if entry['private'] else 'NOT PRIVATE'})")
        out.paragraph(f"  Example: {entry['example']}")
        for option in options_of(TASKS[entry["task"]]):
            text = f"{option.help[:1].upper()}{option.help[1:]}"
            out.paragraph(f"  {option.name}: {option.rule}. {text}.")
        out.say()
    out.say("To run your own task: cloister run ... --task path/to/file.py:ClassName")
    return {"tasks": entries}


def _entry(task: type[Task]) -> dict[str, Any]:
    """Return the description of a task, from the plan of a small example."""
    # A task describes only an instance, and an instance needs a plan.
    case = example_of(task, n_features=2, n_clusters=3)
    example = make_plan(
        task,
        schema_of(case.columns),
        ("a", "b", "c"),
        budget=Budget(1.0, 1e-6) if task.private else None,
        nominal_n=10_000,
        **case.options,
    ).task
    return {
        "task": task.name,
        "private": task.private,
        "profiles": sorted(task.profiles),
        "mechanism": example.mechanism,
        "example": example.describe(),
        "options": [option.name for option in options_of(task)],
    }
