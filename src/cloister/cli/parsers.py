"""How commands declare actions and the options that all have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.cli.output import Output

Run = Callable[[argparse.Namespace, "Output"], Mapping[str, Any] | None]
"""What a command or an action does; it returns its JSON document."""


def actions(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """Return a function of (name, help, run) that adds an action to a command."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, summary: str, run: Run | None) -> argparse.ArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}."
        action = parsers.add_parser(name, help=summary, description=description)
        action.set_defaults(run=run)
        return action

    return add


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each action of a command, or its own if it has none."""
    subparsers = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not subparsers:
        yield parser
    for action in subparsers:
        for below in action.choices.values():
            yield from leaves(below)


def add_config(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare the configuration file of a party."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help=meaning)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has, but for services."""
    if parser.get_default("flags") is False:
        return
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    group.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    group.add_argument(
        "--traceback",
        action="store_true",
        help="show all of an unexpected error; it may hold records",
    )
