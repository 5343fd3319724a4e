"""``cloister console``: analyses of files, or a silo's jobs and budget, in a local browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from threading import Timer

from cloister.app.payment import default_ledger
from cloister.cli.output import Output
from cloister.core.errors import DataError
from cloister.federation.settings import SiloSettings, load_role
from cloister.federation.silo.site import Site

_AFTER_FIRST_PAGE = 2.0  # seconds, in which no loading slows the page of files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    # A console is for one role: a desk has no silo's settings, and a silo no folder.
    role = parser.add_mutually_exclusive_group()
    role.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="at a desk: folder of the files to analyse (default: this folder)",
    )
    role.add_argument(
        "--config", type=Path, metavar="FILE", help="at a silo: its configuration file"
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="loopback port (default: a free one)"
    )
    parser.set_defaults(flags=False)  # a service prints no document


def run(args: argparse.Namespace, out: Output) -> None:
    """Serve until Ctrl-C."""
    from cloister.console.desk import desk_app, warm_up
    from cloister.console.guard import Guard
    from cloister.console.server import listening, serve
    from cloister.console.silo import silo_app

    if args.config:
        app = silo_app(Site.of(load_role(args.config, SiloSettings)))
    elif args.folder.is_dir():
        # The same ledger as that of commands, so that a budget is not doubled.
        app = desk_app(args.folder.resolve(), default_ledger())
    else:
        raise DataError(f"folder {str(args.folder)!r} does not exist; give another --folder.")
    with listening(args.port) as socket:
        guard = Guard(app, socket.getsockname()[1])
        out.say("Open this link in a browser on this machine. It works once, for 15 minutes:")
        out.say(f"  {guard.link}")
        out.say("Ctrl-C stops the console and ends all access to it.")
        if not args.config:
            ahead = Timer(_AFTER_FIRST_PAGE, warm_up)
            ahead.daemon = True
            ahead.start()
        sys.stdout.flush()  # a pipe would hold the link back until the end
        serve(guard, socket)
