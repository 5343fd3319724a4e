"""``cloister tasks``: what can be run."""

from __future__ import annotations

import argparse
from typing import Any

from cloister.cli.output import Output, add_flags
from cloister.jobs import make_plan
from cloister.privacy.budget import Budget
from cloister.schema import schema_of
from cloister.task import Task
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.tasks.options import options_of


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
        for one in options_of(TASKS[entry["task"]]):
            out.paragraph(f"  {one.name}: {one.rule}. {one.help[:1].upper()}{one.help[1:]}.")
        out.say()
    out.say("A task of your own: cloister run ... --task path/to/file.py:ClassName")
    out.document({"command": "tasks", "tasks": entries})
    return 0


def _entry(task: type[Task]) -> dict[str, Any]:
    """Describe a task by what it says of itself for a small example."""
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
        "options": [one.name for one in options_of(task)],
    }
