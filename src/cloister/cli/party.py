"""``cloister coordinator``, ``silo`` and ``scorer``: parties that serve until they are stopped."""

from __future__ import annotations

import argparse
from importlib import import_module

from cloister.cli.output import Output
from cloister.cli.parsers import actions, add_config
from cloister.federation.service.logs import configure
from cloister.federation.service.process import stopped_by_signals
from cloister.federation.settings import ROLES, AnalystSettings, load_role

_MAIN = {
    "coordinator": "cloister.federation.service.main",
    "silo": "cloister.federation.silo.main",
    "scorer": "cloister.federation.service.scoring",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    start = actions(parser)("run", "serve until SIGTERM or Ctrl-C", _serve)
    add_config(start, "the party's configuration file")
    start.set_defaults(flags=False)


def _serve(args: argparse.Namespace, _: Output) -> None:
    """Serve in the role that the command names."""
    settings = load_role(args.config, ROLES[args.command])
    assert not isinstance(settings, AnalystSettings)  # which has no command here
    configure(settings.log_level)
    import_module(_MAIN[args.command]).run(settings, stop=stopped_by_signals())
