"""``cloister``: parse, call the library, print.

A command is a module, or a value in one, imported when it is asked for. It has
``add_arguments(parser)``; it, or each of its actions, has ``run(args, out)``, which returns the
document of ``--json``. Those of the laboratory come by the entry-point group ``cloister.commands``.
Results go to standard output, warnings and errors to standard error.

Exit codes
----------
====  ==============================================================================
0     done
1     unexpected error, a bar that ``compare --check-reference`` missed, an alarm of ``audit``, a
      difference that ``schema diff`` found, or a check of ``verify`` that failed
2     the command line is wrong
3     plan, schema or options refused; nothing was spent
4     a data or model file cannot be used, or few of its rows can, as ``check`` found; nothing was
      spent, unless a file changed meanwhile
5     the budget does not allow it
6     the ledger cannot be used, or does not verify
7     a party or the network broke the protocol; what left stays charged
8     an audit refuted nothing, but could not have: its runs showed nothing
130   interrupted; what left stays charged
====  ==============================================================================
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from typing import Any, NoReturn

from cloister.cli.examples import FRONT, examples_of
from cloister.cli.parsers import add_flags, leaves
from cloister.core import capability
from cloister.core.deprecated import INSTALL_LAB_HINT
from cloister.core.errors import (
    BudgetExceeded,
    CloisterError,
    DataError,
    LedgerError,
    PlanError,
    ProtocolError,
    TransportError,
)
from cloister.core.hooks import COMPUTE, Command, Hook

GROUPS: dict[str, dict[str, str]] = {
    "begin": {
        "demo": "let three simulated hospitals find groups of real patients, in seconds",
        "console": "ask questions of files, or decide on a silo's jobs, in a browser on this "
        "machine",
    },
    "ask": {
        "cluster": "run private k-means over files, each file a silo",
        "classify": "train a classifier: naive Bayes, logistic regression or a forest",
        "regress": "train a linear regression",
        "rules": "find frequent itemsets and association rules in files of baskets",
        **capability.COMMANDS,
        "evaluate": "measure how good a released model is, on files it has not seen",
        "outliers": "release statistics that flag unusual records; flags stay local",
        "run": "run any task over files, including your own",
    },
    "prepare": {
        "schema": "draft, validate, hash or compare the data contract",
        "check": "count what a schema's rules find in a file; local",
        "tasks": "list the tasks that ship",
        "plan": "show cost, rounds, bytes and expected error before anything is spent",
    },
    "use": {
        "predict": "make a prediction for each record, with a model here or a scorer's",
        "export": "write a release for R, SAS and Stata, or a model for scikit-learn or ONNX",
        "verify": "check a release and its signatures, or an audit file, from files alone",
    },
    "budget": {
        "budget": "show, change, export, back up, verify and migrate a ledger",
    },
    "site": {
        "federation": "found a federation, invite its parties, certify them, or try one here",
        "join": "join a federation with the file you were sent",
        "config": "draft or check the configuration file of a party",
        "doctor": "check what a party needs: clock, names, certificates, disk, versions",
        "coordinator": "run the coordinator's service",
        "silo": "run a silo's agent",
        "scorer": "answer encrypted queries with a model that stays here",
        "jobs": "submit, list, show, approve, deny, withdraw and cancel federated jobs",
        "flare": "secure an NVIDIA FLARE site, and write jobs for one",
        "compute": "do one party's part of a computation on secret shares",
    },
    "laboratory": {
        "audit": "try to refute what a method claims, on made-up records",
        "compare": "compare methods, epsilons and data sets, on public data",
        "experiments": "run, list and draw the experiments, on public data",
    },
    "shell": {
        "completion": "print a script that lets a shell complete commands and options",
    },
}
"""Commands by purpose, in the groups of the help."""
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
MOVED = {
    "ca": ("federation", "ca"),
    "enroll": ("federation", "enroll"),
    "ledger": ("budget",),
    "audit-log": ("verify",),
}
"""Commands of the version before, and where they are now; they work for one version."""
_PLACES: dict[str, Hook[Command]] = {
    **dict.fromkeys(("coordinator", "silo", "scorer"), Hook("cloister.cli.party")),
    **{
        name: Hook(f"cloister.cli.over_files:{name}")
        for name in ("cluster", "classify", "regress", "rules", "evaluate", "outliers", "run")
    },
    "compute": COMPUTE,
}
"""Where a command is if it has no module of its own here."""
EXIT_CODES: dict[type[CloisterError], int] = {
    PlanError: 3,
    DataError: 4,
    BudgetExceeded: 5,
    LedgerError: 6,
    ProtocolError: 7,
    TransportError: 7,
}
LABORATORY = ("compare", "experiments")
"""Commands that are listed here and come with the package ``cloister-lab``."""
GROUP = "cloister.commands"
USAGE, UNEXPECTED, INTERRUPTED = 2, 1, 130
NETWORKED = (
    *("doctor", "coordinator", "silo", "scorer", "console", "jobs", "flare", "federation", "join"),
)
PARTIES = ("coordinator", "silo", "scorer", "federation", "join")
"""Those that run or make a party, which is guarded by what Windows has not."""
# what the extra brings
_SERVICE = ("fastapi", "uvicorn", "websockets", "httpx", "prometheus_client")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose first line has only what must be given, and which lists that first."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        either = [action for group in groups if group.required for action in group._group_actions]
        actions = list(actions)
        shown = [a for a in actions if a.required or not a.option_strings or a in either]
        if prefix is None and len(shown) < len(actions):
            shown.insert(0, argparse.Action([], "", metavar="[options]"))
        super().add_usage(usage, shown, groups, prefix)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        super().add_arguments(sorted(actions, key=lambda action: not action.required))


class _Front(_Help):
    """Help of the program itself, whose description lists the commands by group."""

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        super().add_arguments(
            action for action in actions if not isinstance(action, argparse._SubParsersAction)
        )


class _Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {self._in_words(message)}; see {self.prog} --help\n")

    def _in_words(self, message: str) -> str:
        """Add what was probably meant where a word is not known."""
        if found := _CHOICE.match(message):
            place, word, known = found[1], found[2], re.findall(r"[\w.:-]+", found[3])
            if place == "COMMAND":
                message = f"there is no command {word!r}"
        elif found := _OPTION.match(message):
            word = found[1]
            known = [option for leaf in leaves(self) for option in leaf._option_string_actions]
        else:
            return message
        meant = get_close_matches(word, known, 1)
        return f"{message}; did you mean {meant[0]!r}?" if meant else message


_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)")
_OPTION = re.compile(r"unrecognized arguments: (--[^\s=]+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of this process by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a "±" must not end a job that was paid for
    if not arguments:
        sys.stdout.write(FRONT)
        return 0
    arguments = _moved(arguments)
    try:
        args = _parser(arguments).parse_args(arguments)
        if args.command in PARTIES and sys.platform == "win32" and not _certifies(arguments):
            raise PlanError(
                f"{args.command!r} is of a federation's parties, which need the file locks, "
                "signals and rights of Linux or macOS; run it there, in a container or under WSL."
            )
        from cloister.cli.output import Output  # which loads numpy, and --help does not need it

        out = Output.of(args)
        if (document := args.run(args, out)) is not None:
            out.document({"command": args.invoked, **document})
        return out.code
    except SystemExit as stop:  # argparse: help, version, or a wrong command line
        return stop.code if isinstance(stop.code, int) else USAGE
    except CloisterError as error:
        _complain(str(error))
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        _complain("interrupted; what left a silo stays charged.")
        return INTERRUPTED
    except BrokenPipeError:  # as in `cloister tasks | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to flush to
        return UNEXPECTED
    except Exception as error:
        return _unexpected(error, arguments)


def _moved(arguments: list[str]) -> list[str]:
    """Return the arguments with today's name of a command, and say it where it moved."""
    if not arguments or arguments[0] not in MOVED:
        return arguments
    now = MOVED[arguments[0]]
    _complain(
        f"{arguments[0]!r} is {' '.join(now)!r} now; the old name goes with the next release."
    )
    rest = arguments[1:]
    if arguments[0] == "audit-log" and rest[:1] == ["verify"]:
        rest = rest[1:]
    return [*now, *rest]


def _certifies(arguments: Sequence[str]) -> bool:
    """Return True for the commands of a certificate authority, which run on Windows too."""
    return arguments[0] == "federation" and arguments[1:2] in (["ca"], ["enroll"])


def _parser(arguments: Sequence[str], *, whole: bool = False) -> argparse.ArgumentParser:
    """Return the parser, with the options of the command that `arguments` name or of all."""
    parser = _Parser(
        prog="cloister",
        description="Private data mining for organisations that may not pool their records.\n\n"
        + _listed(),
        epilog="exit codes:\n" + _exit_codes(),
        formatter_class=_Front,
    )
    shown = f"cloister {version('cloister')}"
    parser.add_argument(
        "--version", action="version", version=shown, help="show the version and exit"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=examples_of(name, name),
            formatter_class=_Help,
        )
        if name != wanted and not whole:
            continue
        module = None if whole and not _is_here(name) else _module(name)
        if module:
            command.set_defaults(run=getattr(module, "run", None))
            module.add_arguments(command)
            for leaf in leaves(command):
                add_flags(leaf)
                prog = leaf.prog.removeprefix("cloister ")
                leaf.set_defaults(invoked=prog)
                leaf.epilog = leaf.epilog or examples_of(name, prog)
                leaf.formatter_class = _Help
        elif whole or {"-h", "--help"} & set(arguments):
            command.epilog = _from_lab(name)
        else:
            raise PlanError(_from_lab(name))
    return parser


def _listed() -> str:
    """Return the commands and their summaries, by group."""
    width = max(map(len, COMMANDS)) + 2
    return "\n\n".join(
        "\n".join([f"{group}:", *(f"  {name:<{width}}{text}" for name, text in named.items())])
        for group, named in GROUPS.items()
    )


def _module(name: str) -> Any:
    """Return the module of a command; None if it is one of the laboratory, which is absent."""
    if name in LABORATORY:
        return next((entry.load() for entry in entry_points(group=GROUP, name=name)), None)
    if not _is_here(name):
        raise PlanError(f"{name!r} works over a network: pip install 'cloister[service]'.")
    if name in capability.COMMANDS:
        return import_module("cloister.cli.over_files").command_of(name)
    return _PLACES.get(name, Hook(f"cloister.cli.{name.replace('-', '_')}")).load()


def _is_here(name: str) -> bool:
    """Return whether the extra is installed that a command needs, if it needs one."""
    return name not in NETWORKED or all(map(find_spec, _SERVICE))


def _from_lab(name: str) -> str:
    return f"{name!r} comes with the laboratory: {INSTALL_LAB_HINT}."


def _exit_codes() -> str:
    """Return the table of exit codes of this module's description."""
    return (__doc__ or "").split("====\n", 1)[-1].rsplit("\n====", 1)[0].replace("``", "'")


def _complain(sentence: str) -> None:
    # A message of ours is one sentence; names of files and columns in it may hold anything.
    shown = "".join(c if c.isprintable() else " " for c in sentence)
    sys.stderr.write(f"cloister: {shown}\n")


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """Say where an unexpected error arose; its message could hold a record, so it is not shown."""
    if "--traceback" in arguments:
        traceback.print_exception(error)
        return UNEXPECTED
    place = traceback.extract_tb(error.__traceback__)[-1]
    _complain(
        f"unexpected {type(error).__name__} in {place.name} ({place.filename}:{place.lineno}); "
        "repeat with --traceback to see all of it, which may show records."
    )
    return UNEXPECTED
