"""``cloister run``: any task over files, one of ours or one from a file of the user's."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from cloister.cli.options import add_job_arguments, named_values
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.errors import PlanError
from cloister.task import Task
from cloister.tasks import from_file, installed
from cloister.tasks.options import check_known


def add_task_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare how a task is named and what it is told."""
    parser.add_argument(
        "--task",
        required=required,
        metavar="NAME|FILE.py:CLASS",
        help="a task of 'cloister tasks', or a class in a file of yours, which is executed",
    )
    add_set_argument(parser)
    parser.add_argument(
        "--not-private", action="store_true", help="allow a task whose release is not private"
    )


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how a task is given options of its own."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the task's own, such as n_clusters=3; may be repeated",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    add_task_arguments(parser)
    parser.add_argument(
        "--mpi",
        action="store_true",
        help="under mpirun: rank 0 is the aggregator, rank i reads the i-th FILE only",
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run a task; return the exit code."""
    if args.mpi:
        from cloister.cli.mpi import run_rank

        return run_rank(args)
    out = Output.of(args)
    task = allowed_task(args.task, not_private=args.not_private)
    result, charge = release(args, task, task_options(task, args.set), out)
    return finish(result, charge, args.out, out, command="run")


def allowed_task(name: str, *, not_private: bool) -> type[Task]:
    """Return a task, if it is private or the user accepts that it is not."""
    task = load_task(name)
    if not task.private and not not_private:
        raise PlanError(
            f"task {task.name!r} is NOT PRIVATE: it releases exact values; give --not-private if "
            "the records may be seen by everybody."
        )
    return task


def load_task(name: str) -> type[Task]:
    """Return a task that is installed, or the class that ``path/to/file.py:ClassName`` names."""
    known = installed()
    if name in known:
        return known[name]
    if not name.rpartition(":")[0].endswith(".py"):
        raise PlanError(
            f"task must be one of {sorted(known)} or path/to/file.py:ClassName, got {name!r}."
        )
    return from_file(name)


def task_options(task: type[Task], pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs of a task's own options; a value is JSON, or else text."""
    options = named_values(pairs)
    check_known(task, options)
    return options
