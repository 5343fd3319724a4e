"""``cloister compare``: the experiments' own command, with the options that every command has."""

from __future__ import annotations

import argparse

from cloister.cli.output import add_flags
from cloister_lab.experiments import compare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    compare.add_arguments(parser)
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, and return the exit code."""
    return compare.run(args)
