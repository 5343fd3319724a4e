"""``cloister coordinator``: run the service that carries rounds between silos."""

from __future__ import annotations

import argparse
from pathlib import Path

from cloister.errors import PlanError
from cloister.service.logs import configure
from cloister.service.main import run as run_service
from cloister.service.signals import stopped_by_signals
from cloister.settings import CoordinatorSettings, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    start = actions.add_parser("run", help="open the port and serve, until SIGTERM or Ctrl-C")
    start.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="coordinator.toml"
    )


def run(args: argparse.Namespace) -> int:
    """Run the service until it is told to stop; return the exit code."""
    settings = load_settings(args.config)
    if not isinstance(settings, CoordinatorSettings):
        raise PlanError(
            f"role must be 'coordinator' to run the service, got {settings.role!r}; give the "
            "coordinator's file."
        )
    configure(settings.log_level)
    stop = stopped_by_signals()
    run_service(settings, stop=stop)
    return 0
