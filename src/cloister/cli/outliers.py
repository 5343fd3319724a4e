"""``cloister outliers``: statistics that tell unusual records; flags stay where the records are."""

from __future__ import annotations

import argparse

from cloister.cli.options import add_job_arguments
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.tasks import TASKS

METHODS = ("robust", "zscore", "mahalanobis", "density")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    group = parser.add_argument_group("outliers")
    group.add_argument("--method", choices=METHODS, default=METHODS[0])
    group.add_argument(
        "--threshold",
        type=float,
        default=2.0,
        help="deviations of a normal law beyond which a record is an outlier",
    )
    group.add_argument(
        "--count-share",
        type=float,
        default=0.0,
        metavar="S",
        help="part of the budget that buys the noisy number of outliers",
    )
    group.add_argument("--group", metavar="COLUMN", help="count them by its categories")
    group.add_argument(
        "--min-group", type=float, default=0.0, metavar="G", help="do not show smaller counts"
    )
    group.add_argument(
        "--public-seed", type=int, default=0, help="of the pictures of density, known to all"
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release statistics; return the exit code."""
    out = Output.of(args)
    names = ("method", "threshold", "count_share", "group", "min_group", "public_seed")
    options = {name: getattr(args, name) for name in names}
    result, charge = release(args, TASKS["outliers"], options, out)
    out.say("cloister predict flags the records of a file by this model, locally.")
    return finish(result, charge, args.out, out, command="outliers")
