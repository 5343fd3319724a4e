"""Declarations of actions and of the options that all commands have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.cli.output import Output

Run = Callable[[argparse.Namespace, "Output"], Mapping[str, Any] | None]
"""The function of a command or an action; it returns the JSON document."""


def actions(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """Return a function of (name, help, run) that adds an action to a command."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, summary: str, run: Run | None) -> argparse.ArgumentParser:
        # The summary serves twice: in the list of actions and as their description.
        description = f"{summary[0].upper()}{summary[1:]}."
        action = parsers.add_parser(name, help=summary, description=description)
        action.set_defaults(run=run)
        return action

    return add


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each action of a command, or the command's parser if it has none."""
    # argparse has no public way to list its subparsers.
    subparsers = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not subparsers:
        yield parser
    for action in subparsers:
        for child in action.choices.values():
            yield from leaves(child)


def add_config(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare the required configuration file of a party."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help=meaning)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the output options of all commands except services."""
    if parser.get_default("flags") is False:  # a service writes logs instead of a document
        return
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print only one JSON document, and warnings"
    )
    group.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    group.add_argument(
        "--traceback",
        action="store_true",
        help="show the traceback of an unexpected error, which may quote records",
    )
