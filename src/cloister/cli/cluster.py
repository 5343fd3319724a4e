"""``cloister cluster``: private k-means over files."""

from __future__ import annotations

import argparse

from cloister.cli.options import add_job_arguments, add_kmeans_arguments, kmeans_task
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    add_kmeans_arguments(parser)
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release private centres; return the exit code."""
    out = Output.of(args)
    result, charge = release(args, *kmeans_task(args), out)
    return finish(result, charge, args.out, out, command="cluster")
