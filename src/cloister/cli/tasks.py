"""``cloister tasks``: the built-in tasks and their options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from cloister.app.job import make_plan
from cloister.cli.options import load_task, set_text
from cloister.cli.output import Output
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import Task
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.tasks.options import options_of

_JSON = "a mapping as JSON, such as '{\"NAME\": VALUE}',"
_FORMULA = "a text, --set 'formula=y ~ age * treatment + site' (in a plan, a mapping)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the tasks to show."""
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="show these (default: all)")


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    tasks = [load_task(name) for name in args.tasks or TASKS]
    entries = [_entry(task) for task in tasks]
    for task, entry in zip(tasks, entries, strict=True):
        out.say(f"{entry['task']}  ({'private' if entry['private'] else 'NOT PRIVATE'})")
        out.paragraph(f"  Example: {entry['example']}")
        if entry["set"]:
            out.paragraph(f"  Its options: {' '.join(entry['set'])}")
        for option in options_of(task):
            text = f"{option.help[:1].upper()}{option.help[1:]}"
            rule = option.rule.replace("a mapping to anything", _JSON)
            if option.name == "formula":
                rule = _FORMULA
            out.paragraph(f"  {option.name}: {rule}. {text}.")
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
        "set": list(_set(case.options)),
        "options": [option.name for option in options_of(task)],
    }


def _set(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the --set of each option that JSON holds; others need Python."""
    for name, value in options.items():
        with suppress(TypeError, ValueError):
            yield set_text(name, value)
