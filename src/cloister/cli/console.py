"""``cloister console``: a silo's jobs and budget in a browser on this machine."""

from __future__ import annotations

import argparse
import sys

from cloister.cli.output import Output
from cloister.cli.parsers import add_config
from cloister.settings import SiloSettings, load_role
from cloister.silo.site import Site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser, "the silo's configuration file")
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port of loopback (default: a free one)"
    )
    parser.set_defaults(flags=False)


def run(args: argparse.Namespace, out: Output) -> None:
    """Serve until Ctrl-C."""
    from cloister.console.guard import Guard
    from cloister.console.server import listening, serve
    from cloister.console.silo import silo_app

    site = Site.of(load_role(args.config, SiloSettings))
    with listening(args.port) as socket:
        guard = Guard(silo_app(site), socket.getsockname()[1])
        out.say("Open this link in a browser on this machine. It works once, for 15 minutes:")
        out.say(f"  {guard.link}")
        out.say("Ctrl-C ends the console and everybody's access to it.")
        sys.stdout.flush()  # the link must be seen, in a pipe too
        serve(guard, socket)
