"""``cloister regress``: learn to tell a column of numbers, over files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cloister.cli.options import add_job_arguments, add_target_arguments, prepared
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.cli.run import task_options
from cloister.errors import PlanError
from cloister.tasks import TASKS

METHODS = ("linear",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    add_target_arguments(parser, METHODS, "column of numbers that is to be told")
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="COLUMN=CATEGORY",
        help="category that others of its column are compared with, by default the first",
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release a linear model; return the exit code."""
    out = Output.of(args)
    options = {"target": args.target, **task_options(args.set)}
    if args.reference:
        options["reference"] = references(args.reference)
    result, charge = release(args, *prepared(args, TASKS[args.method], options), out)
    return finish(result, charge, args.out, out, command="regress")


def references(given: Sequence[str]) -> dict[str, str]:
    """Return columns with their reference categories.

    Raises
    ------
    PlanError
        If one is not ``COLUMN=CATEGORY``.
    """
    found = {}
    for text in given:
        column, equals, category = text.partition("=")
        if not (column and equals and category):
            raise PlanError(f"--reference must be COLUMN=CATEGORY, got {text!r}.")
        found[column] = category
    return found
