"""``cloister run``: any task over files, one of ours or one from a file of the user's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from cloister.cli.options import add_job_arguments, named_values
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.errors import CloisterError, PlanError
from cloister.task import Task
from cloister.tasks import TASKS
from cloister.tasks.options import check_known

_MEMBERS = (
    *("name", "private", "profiles", "rounds", "design", "describe", "start", "blocks"),
    *("contribute", "update", "forecast", "results", "exhibits"),
)


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
    """Return a task that ships, or the class that ``path/to/file.py:ClassName`` names."""
    if name in TASKS:
        return TASKS[name]
    path, colon, cls = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise PlanError(
            f"task must be one of {sorted(TASKS)} or path/to/file.py:ClassName, got {name!r}."
        )
    task = getattr(_execute(Path(path)), cls, None)
    if not isinstance(task, type):
        raise PlanError(f"task {name!r} is not there: the file has no class {cls!r}.")
    public = getattr(task, "__dataclass_fields__", {})  # those without default are no attributes
    if missing := [m for m in _MEMBERS if not hasattr(task, m) and m not in public]:
        raise PlanError(
            f"task {cls!r} does not follow the protocol of tasks: it has no {missing[0]!r}."
        )
    return task


def task_options(task: type[Task], pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs of a task's own options; a value is JSON, or else text."""
    options = named_values(pairs)
    check_known(task, options)
    return options


def _execute(path: Path) -> object:
    """Execute a file of the user's as a module."""
    spec = spec_from_file_location(f"cloister_task_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PlanError(f"task file {str(path)!r} cannot be read; check its path.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    try:
        spec.loader.exec_module(module)
    except CloisterError:
        raise
    except Exception as error:  # whatever the user's file does
        raise PlanError(
            f"task file {str(path)!r} cannot be executed: {type(error).__name__}: {error}."
        ) from error
    return module
