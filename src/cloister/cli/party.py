"""``cloister coordinator`` and ``cloister silo``: the processes of a federation."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from cloister.errors import PlanError
from cloister.service.logs import configure
from cloister.service.process import stopped_by_signals
from cloister.settings import AnalystSettings, load_settings

_MAIN = {"coordinator": "cloister.service.main", "silo": "cloister.silo.main"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    start = actions.add_parser("run", help="serve, until SIGTERM or Ctrl-C")
    start.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the party's own file"
    )


def run(args: argparse.Namespace) -> int:
    """Serve in the role that the command names; return the exit code."""
    settings = load_settings(args.config)
    if isinstance(settings, AnalystSettings) or settings.role != args.command:
        raise PlanError(
            f"role must be {args.command!r} to run one, got {settings.role!r}; give the file of a "
            f"{args.command}."
        )
    configure(settings.log_level)
    import_module(_MAIN[args.command]).run(settings, stop=stopped_by_signals())
    return 0
