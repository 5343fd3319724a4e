"""``cloister classify``: learn to tell a column of categories, over files."""

from __future__ import annotations

import argparse

from cloister.cli.options import (
    add_job_arguments,
    add_target_arguments,
    prepared,
    reference_options,
)
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.cli.run import task_options
from cloister.tasks import TASKS

METHODS = ("naive-bayes", "logistic", "forest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    add_target_arguments(parser, METHODS, "column of categories that is to be told")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release a classifier; return the exit code."""
    out = Output.of(args)
    task = TASKS[args.method]
    options = {
        "target": args.target,
        **task_options(task, args.set),
        **reference_options(args, task),
    }
    result, charge = release(args, *prepared(args, task, options), out)
    return finish(result, charge, args.out, out, command="classify")
