"""``cloister coordinator``, ``silo`` and ``scorer``: services that run until they are stopped."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from cloister.cli.output import Output
from cloister.cli.parsers import actions, add_config
from cloister.core.hooks import SCORER, Hook, Service
from cloister.federation.service.logs import configure
from cloister.federation.service.process import stopped_by_signals
from cloister.federation.settings import ROLES, AnalystSettings, load_role

_SERVICES: Mapping[str, Hook[Service]] = {
    "coordinator": Hook("cloister.federation.service.main"),
    "silo": Hook("cloister.federation.silo.main"),
    "scorer": SCORER,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    start = actions(parser)("run", "run the service until SIGTERM or Ctrl-C", _serve)
    add_config(start, "the party's configuration file")
    start.set_defaults(flags=False)


def _serve(args: argparse.Namespace, _: Output) -> None:
    """Run the service of the role that the command names."""
    settings = load_role(args.config, ROLES[args.command])
    assert not isinstance(settings, AnalystSettings)  # an analyst has no service
    os.umask(0o077)  # also the names of results say what was asked
    configure(settings.log_level)
    _SERVICES[args.command].load().run(settings, stop=stopped_by_signals())
