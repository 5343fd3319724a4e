"""``cloister completion``: a script for bash, zsh or tcsh, which the shell evaluates once."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from cloister.cli.output import Output
from cloister.core.errors import PlanError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a shell script that completes commands and options. "
        "Add to the start file of your shell: source <(cloister completion bash)"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(args: argparse.Namespace, out: Output) -> None:
    if find_spec("shtab") is None:
        raise PlanError("completion needs shtab; run pip install 'cloister[shell]'.")
    import shtab

    from cloister.cli import _parser  # here, because cloister.cli imports this module

    out.raw(shtab.complete(_parser((), whole=True), shell=args.shell) + "\n")
