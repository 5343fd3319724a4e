"""``cloister silo``: run the agent of one silo."""

from __future__ import annotations

import argparse
from pathlib import Path

from cloister.errors import PlanError
from cloister.service.logs import configure
from cloister.service.signals import stopped_by_signals
from cloister.settings import SiloSettings, load_settings
from cloister.silo.main import run as run_agent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    start = actions.add_parser(
        "run", help="dial the coordinator and answer it, until SIGTERM or Ctrl-C"
    )
    start.add_argument("--config", type=Path, required=True, metavar="FILE", help="silo.toml")


def run(args: argparse.Namespace) -> int:
    """Run the agent until it is told to stop; return the exit code."""
    settings = load_settings(args.config)
    if not isinstance(settings, SiloSettings):
        raise PlanError(
            f"role must be 'silo' to run an agent, got {settings.role!r}; give the silo's file."
        )
    configure(settings.log_level)
    stop = stopped_by_signals()
    run_agent(settings, stop=stop)
    return 0
