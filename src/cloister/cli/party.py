"""``cloister coordinator``, ``silo`` and ``scorer``: parties that serve until they are stopped."""

from __future__ import annotations

import argparse
from importlib import import_module

from cloister.cli.output import Output
from cloister.cli.parsers import actions, add_config
from cloister.service.logs import configure
from cloister.service.process import stopped_by_signals
from cloister.settings import ROLES, AnalystSettings, load_role

_MAIN = {
    "coordinator": "cloister.service.main",
    "silo": "cloister.silo.main",
    "scorer": "cloister.service.scoring",
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
