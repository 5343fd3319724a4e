"""``cloister cluster``: private k-means over files."""

from __future__ import annotations

import argparse

from cloister.cli.options import add_job_arguments, add_kmeans_arguments, kmeans_task
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.stability import N_RUNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    add_kmeans_arguments(parser)
    parser.add_argument(
        "--stability",
        type=_reruns,
        nargs="?",
        const=N_RUNS,
        metavar="RUNS",
        help="also simulate so many reruns from the released values, which costs nothing, and say "
        f"how often each cluster is found again and how far it moves ({N_RUNS} if not given)",
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release private centres; return the exit code."""
    out = Output.of(args)
    result, charge = release(args, *kmeans_task(args), out)
    return finish(result, charge, args.out, out, command="cluster", reruns=args.stability)


def _reruns(text: str) -> int:
    """Read a number of reruns, before anything is spent."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be an integer >= 2, got {text!r}")
    return int(text)
