"""``cloister completion``: a script for bash, zsh or tcsh, to be evaluated once by the shell."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from cloister.cli.output import Output
from cloister.core.errors import PlanError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a script that lets a shell complete commands and options. "
        "Put it into your start file: source <(cloister completion bash)"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(args: argparse.Namespace, out: Output) -> None:
    if find_spec("shtab") is None:
        raise PlanError("completion is written by shtab: pip install 'cloister[shell]'.")
    import shtab

    from cloister.cli import _parser

    out.raw(shtab.complete(_parser((), whole=True), shell=args.shell) + "\n")
