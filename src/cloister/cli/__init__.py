"""The program ``cloister``: it parses the command line, calls the library and prints the results.

A command is a module, or a value in one, imported only if it runs. It has
``add_arguments(parser)``. The command, or each of its actions, has ``run(args, out)``, which
returns the document of ``--json``. The laboratory adds commands by the entry-point group
``cloister.commands``. Results go to standard output, warnings and errors to standard error.

Exit codes
----------
====  ==============================================================================
0     done
1     unexpected error, a target that ``compare --check-reference`` missed, an alarm of ``audit``,
      or a difference that ``schema diff`` found
2     the command line is wrong
3     plan, schema or options are invalid; no budget was spent
4     a data or model file cannot be used, or ``check`` found too many unusable rows; no budget was
      spent, unless a file changed during the run
5     the budget does not allow the job
6     the ledger cannot be used, or its verification failed
7     a party or the network violated the protocol; sent values stay charged
8     an audit refuted nothing and has no power: its runs would not have shown a violation
9     ``verify`` refuted a release: a field does not follow from its released words
10    ``verify`` can neither refute nor verify a release: no signatures, words or code
130   interrupted; sent values stay charged
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
from cloister.core.hooks import COMPUTE, LINK, Command, Hook

GROUPS: dict[str, dict[str, str]] = {
    "begin": {
        "demo": "run three simulated hospitals that find groups of real patients, in seconds",
        "console": "analyse files, or decide on a silo's jobs, in a browser on this machine",
    },
    "ask": {
        "ask": "answer a question on files: propose columns, show the price, run",
        "cluster": "run private k-means over files, each file a silo",
        "classify": "train a classifier: naive Bayes, logistic regression or a forest",
        "regress": "train a linear regression",
        "rules": "find frequent itemsets and association rules in files of baskets",
        **capability.COMMANDS,
        "evaluate": "measure the quality of a released model, on new files",
        "outliers": "release statistics that flag unusual records; flags stay local",
        "run": "run any task over files, including your own",
        "horizon": "renew an answer as records arrive, period by period, under one budget",
    },
    "prepare": {
        "schema": "draft, validate, hash or compare the data contract",
        "check": "count the cells of a file that break a schema's rules; local",
        "tasks": "list the built-in tasks and their options",
        "plan": "show cost, rounds, bytes and expected error without spending budget",
    },
    "use": {
        "predict": "predict each record of a file, with a local model or a scorer's",
        "export": "write a release for R, SAS and Stata, or a model for scikit-learn or ONNX",
        "verify": "check a release and its signatures, a horizon, or an audit file, offline",
    },
    "budget": {
        "budget": "show, change, export, back up, verify and migrate a ledger",
    },
    "site": {
        "federation": "create a federation, invite and certify its parties, or run a local one",
        "join": "join a federation with an invitation file",
        "config": "draft or check the configuration file of a party",
        "doctor": "check a party's machine: clock, names, certificates, disk, versions",
        "coordinator": "run the coordinator's service",
        "silo": "run a silo's agent",
        "scorer": "answer encrypted queries with a local model",
        "jobs": "submit, list, show, approve, deny, withdraw and cancel federated jobs",
        "flare": "secure an NVIDIA FLARE site, and write jobs for one",
        "compute": "run one party of a computation on secret shares",
        "link": "plan, check or run an analysis of persons whose columns are at several owners",
    },
    "laboratory": {
        "audit": "try to refute the privacy claim of a method, on generated records",
        "compare": "compare methods, epsilons and data sets, on public data",
        "experiments": "run, list and draw the experiments, on public data",
    },
    "shell": {
        "completion": "print a shell script that completes commands and options",
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
"""Commands of the previous version and their new names; they work for one version."""
_PLACES: dict[str, Hook[Command]] = {
    **dict.fromkeys(("coordinator", "silo", "scorer"), Hook("cloister.cli.party")),
    **{
        name: Hook(f"cloister.cli.over_files:{name}")
        for name in ("cluster", "classify", "regress", "rules", "evaluate", "outliers", "run")
    },
    "compute": COMPUTE,
    "link": LINK,
}
"""Places of commands that have no separate module in this package."""
# Scripts distinguish errors by these codes.
EXIT_CODES: dict[type[CloisterError], int] = {
    PlanError: 3,
    DataError: 4,
    BudgetExceeded: 5,
    LedgerError: 6,
    ProtocolError: 7,
    TransportError: 7,
}
LABORATORY = ("compare", "experiments")
"""Commands of the package ``cloister-lab`` that the help lists."""
GROUP = "cloister.commands"
USAGE, UNEXPECTED, INTERRUPTED = 2, 1, 130
CHARGED = "the budget is charged"
"""Begin of the note in an error that came after the charge."""
# Without the extra, these commands are listed but name the packages to install.
NETWORKED = (
    *("doctor", "coordinator", "silo", "scorer", "console", "jobs", "flare", "federation", "join"),
)
PARTIES = ("coordinator", "silo", "scorer", "federation", "join")
"""Commands that run or create a party, which needs file locks and rights that Windows lacks."""
# Packages of the extra "service".
_SERVICE = ("fastapi", "uvicorn", "websockets", "httpx", "prometheus_client")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose usage line has only required arguments, and which lists these first."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        either = [action for group in groups if group.required for action in group._group_actions]
        actions = list(actions)
        # A usage line of all options would hide the required ones.
        shown = [a for a in actions if a.required or not a.option_strings or a in either]
        if prefix is None and len(shown) < len(actions):
            shown.insert(0, argparse.Action([], "", metavar="[options]"))
        super().add_usage(usage, shown, groups, prefix)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        super().add_arguments(sorted(actions, key=lambda action: not action.required))


class _Front(_Help):
    """Help of the program itself, whose description lists the commands by group."""

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        # argparse would list all commands a second time, without groups.
        super().add_arguments(
            action for action in actions if not isinstance(action, argparse._SubParsersAction)
        )


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one sentence, without the usage."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:  # argparse would refer to the help of all commands
            message = f"unrecognized arguments: {' '.join(unknown)}"
            option = unknown[0].lstrip("-").partition("=")[0]
            # What a task says about an option that another task has. A command of one task has its
            # options, one of any task has --set for them.
            of_any = "an option of the task is --set NAME=VALUE" if hasattr(found, "set") else ""
            own = getattr(found, "absent", {}).get(option)
            hints = (
                [message, own] if own else [self._with_suggestion(message, found.invoked), of_any]
            )
            self._refuse("; ".join(filter(None, hints)), f" {found.invoked}")
        return found

    def error(self, message: str) -> NoReturn:
        self._refuse(self._with_suggestion(message))

    def _refuse(self, sentence: str, invoked: str = "") -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {sentence}; see {self.prog}{invoked} --help\n")

    def _with_suggestion(self, message: str, invoked: str = "") -> str:
        """Return the message with the most similar command or option, if one is unknown."""
        if match := _CHOICE.match(message):
            place, word, known = match[1], match[2], re.findall(r"[\w.:-]+", match[3])
            if place == "COMMAND":
                message = f"there is no command {word!r}"
                from cloister.tasks import installed

                if word in installed():
                    return f"{message}, but a task: cloister run --task {word}"
        elif match := _OPTION.match(message):
            word = match[1]
            if word == "--formula":
                from cloister.cli.options import BY_FORMULA

                return f"{message}; {BY_FORMULA}"
            if any(
                a.dest == word[2:]
                for leaf in leaves(self)
                for a in leaf._get_positional_actions()
                # An argument of another action is no help here.
                if leaf.get_default("invoked") == invoked or not invoked
            ):
                return f"{message}; give the {word[2:]} without {word!r}"
            known = [option for leaf in leaves(self) for option in leaf._option_string_actions]
            # An option of another action is no answer to itself.
            known = [option for option in known if option != word]
        else:
            return message
        similar = get_close_matches(word, known, 1, 0.7)
        return f"{message}; did you mean {similar[0]!r}?" if similar else message


# argparse gives its errors only as text, so the words of its messages are matched.
_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)")
_OPTION = re.compile(r"unrecognized arguments: (--[^\s=]+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of this process by default.
    """
    # Parsed from a list, so that tests and other programs can call main.
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a "±" must not stop a job after its charge
    if not arguments:
        # The first contact of a new user: argparse would only report a missing command.
        sys.stdout.write(FRONT)
        return 0
    arguments = _moved(arguments)
    try:
        args = _parser(arguments).parse_args(arguments)
        if args.command in PARTIES and sys.platform == "win32" and not _certifies(arguments):
            raise PlanError(
                f"{args.command!r} needs the file locks, signals and file rights of Linux or "
                "macOS; run it there, in a container or under WSL."
            )
        if args.command in PARTIES:
            os.umask(os.umask(0o077) | 0o022)  # of a new party no other account may change a file
        from cloister.cli.output import Output  # here, because it loads numpy and --help is fast

        out = Output.of(args)
        # Services and exports to standard output return no document.
        if (document := args.run(args, out)) is not None:
            out.document({"command": args.invoked, **document})
        return out.code
    except SystemExit as stop:  # argparse: help, version, or a wrong command line
        return stop.code if isinstance(stop.code, int) else USAGE
    except CloisterError as error:
        _complain(str(error))
        # Subclasses have the code of their base class.
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        _complain("interrupted; values that a silo sent stay charged.")
        return INTERRUPTED
    except BrokenPipeError:  # as in `cloister tasks | head`
        # Python flushes standard output at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except Exception as error:
        return _unexpected(error, arguments)


def _moved(arguments: list[str]) -> list[str]:
    """Return the arguments with the new name of a command; warn if the old name was used."""
    if not arguments or arguments[0] not in MOVED:
        return arguments
    now = MOVED[arguments[0]]
    _complain(f"{arguments[0]!r} is now {' '.join(now)!r}; the next release removes the old name.")
    rest = arguments[1:]
    # The old command had an action, which the new one does not have.
    if arguments[0] == "audit-log" and rest[:1] == ["verify"]:
        rest = rest[1:]
    return [*now, *rest]


def _certifies(arguments: Sequence[str]) -> bool:
    """Return True for the commands of a certificate authority, which run on Windows too."""
    return arguments[0] == "federation" and arguments[1:2] in (["ca"], ["enroll"])


def _parser(arguments: Sequence[str], *, whole: bool = False) -> argparse.ArgumentParser:
    """Return the parser with the options of the command in `arguments`, or of all commands."""
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
    # Only this command is imported, because imports take most of the start-up time.
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
            continue  # its summary is enough, so its module is not imported
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
        # Help must work without the laboratory; only a run fails.
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
    """Return the module of a command; None for a laboratory command without the laboratory."""
    # Found by entry point, since this package must not import the laboratory.
    if name in LABORATORY:
        return next((entry.load() for entry in entry_points(group=GROUP, name=name)), None)
    if not _is_here(name):
        raise PlanError(
            f"{name!r} needs the network packages; run pip install 'cloister[service]'."
        )
    if name in capability.COMMANDS:
        return import_module("cloister.cli.over_files").command_of(name)
    return _PLACES.get(name, Hook(f"cloister.cli.{name.replace('-', '_')}")).load()


def _is_here(name: str) -> bool:
    """Return True if the extra that a command may need is installed."""
    return name not in NETWORKED or all(map(find_spec, _SERVICE))


def _from_lab(name: str) -> str:
    return f"{name!r} is a command of the laboratory: {INSTALL_LAB_HINT}."


def _exit_codes() -> str:
    """Return the table of exit codes in this module's docstring."""
    return (__doc__ or "").split("====\n", 1)[-1].rsplit("\n====", 1)[0].replace("``", "'")


def _complain(sentence: str) -> None:
    # One line, because names of files and columns in the message may contain any characters.
    shown = "".join(c if c.isprintable() else " " for c in sentence)
    sys.stderr.write(f"cloister: {shown}\n")


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """Report the place of an unexpected error, without its message, which may quote a record."""
    if "--traceback" in arguments:
        traceback.print_exception(error)
        return UNEXPECTED
    place = traceback.extract_tb(error.__traceback__)[-1]
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(CHARGED))
    advice = next(notes, "repeat with --traceback for its text, which may quote records.")
    _complain(
        f"unexpected {type(error).__name__} in {place.name} ({place.filename}:{place.lineno}); "
        f"{advice}"
    )
    return UNEXPECTED
