"""Options that several commands share, and the task, job and payment that they describe."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cloister.app.files import SiloFiles, name_silos
from cloister.app.job import Job, Trust
from cloister.app.payment import LEDGER_VARIABLE, Payment
from cloister.app.release import Release
from cloister.cli.output import Output, ask
from cloister.core.declared import Declaration
from cloister.core.deprecated import INSTALL_LAB_HINT
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task
from cloister.tasks import TASKS, from_file, installed
from cloister.tasks.options import check_known, options_of

_METAVARS = {int: "N", float: "X", str: "NAME"}
_COSTS = ("epsilon", "delta", "ledger", "cap_epsilon")


# What is declared ---------------------------------------------------------------------------------


def add_job_arguments(parser: argparse.ArgumentParser, *, catalogue: bool = False) -> None:
    """Declare what every job over files takes; `catalogue` allows one in place of a schema."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet; each file is a silo, named like the file",
    )
    add_plan_arguments(parser, catalogue=catalogue)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for all results"
    )
    add_baskets_argument(parser)
    add_reading_argument(parser)
    add_max_loss_argument(parser)
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="keep plain records there while the job runs, and read each file once; for files "
        "larger than memory",
    )
    group = parser.add_argument_group("budget")
    group.add_argument(
        "--ledger",
        type=Path,
        metavar="PATH",
        help=f"ledger to charge (default: {LEDGER_VARIABLE}, or one ledger for all you run)",
    )
    group.add_argument(
        "--cap-epsilon",
        type=float,
        metavar="E",
        help="lifetime cap of a data set that is new in the ledger; asked for at a terminal",
    )
    group.add_argument(
        "--confirm-same-content",
        action="store_true",
        help="confirm, as the owner, that records which the ledger knows under another name get "
        "a budget of their own",
    )


def add_baskets_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how a file holds market baskets; it is never guessed."""
    parser.add_argument(
        "--baskets",
        action="append",
        default=[],
        metavar="[FILE=]lines[:DELIMITER]|long:BASKET,ITEM",
        help="read market baskets, one per line or one item per row; the schema is a catalogue "
        "of items; with FILE= of that file alone, and may be repeated",
    )


def add_max_loss_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how many rows may be left out."""
    parser.add_argument(
        "--max-loss",
        type=float,
        metavar="SHARE",
        help="share of the rows of each file that may be left out (default: 0.05, and no value of "
        "a target, event or group with all of its rows)",
    )


def add_reading_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how each file is written, where files differ."""
    parser.add_argument(
        "--reading",
        type=Path,
        metavar="FILE.toml",
        help="how each file is written: a table of its name with decimal, thousands, encoding, "
        "delimiter, multiline, and format or spellings of columns",
    )


def add_model_task(parser: argparse.ArgumentParser) -> None:
    """Declare whose task a model may be of."""
    parser.add_argument(
        "--task", metavar="FILE.py:CLASS", help="the task of the model, if it is one of your own"
    )


def load_model(args: argparse.Namespace) -> Release:
    """Return the model that a command names, of a task that ships or of one's own."""
    own = from_file(args.task) if args.task else None
    return Release.load(args.model, {own.name: own} if own else None)


def add_plan_arguments(
    parser: argparse.ArgumentParser, *, nominal_n: bool = False, catalogue: bool = False
) -> None:
    """Declare what a plan needs; `nominal_n` says whether that must be given."""
    contract = parser.add_mutually_exclusive_group(required=True) if catalogue else parser
    contract.add_argument("--schema", type=Path, required=not catalogue, help="the data contract")
    if catalogue:
        contract.add_argument(
            "--catalogue",
            type=Path,
            metavar="ITEMS.txt",
            help="the public items, one per line; their schema is written beside the results",
        )
        parser.add_argument(
            "--dataset", metavar="NAME", help="name of the data in the ledger, with --catalogue"
        )
    parser.add_argument(
        "--columns",
        type=comma_separated,
        metavar="NAME,NAME,...",
        help="columns of the schema that the job uses (default: all)",
    )
    parser.add_argument(
        "--epsilon", type=float, metavar="E", help="privacy budget; there is no default"
    )
    parser.add_argument(
        "--delta", type=float, metavar="D", help="default: min(1e-6, 1 / (100 nominal-n))"
    )
    parser.add_argument(
        "--nominal-n",
        type=int,
        required=nominal_n,
        metavar="N",
        help="public number of records in all silos, as agreed in a contract"
        + ("" if nominal_n else "; without it, 2%% of the budget buy a noisy count"),
    )
    parser.add_argument("--study", default="default", help="study whose budget is spent")
    parser.add_argument(
        "--min-silos",
        type=int,
        default=0,
        metavar="M",
        help="fewest silos in a round (default: a majority)",
    )


def add_trust_arguments(group: argparse._ActionsContainer, default: str) -> None:
    """Declare whom silos have to trust."""
    group.add_argument(
        "--profile", choices=("pairwise", "group"), help=f"trust model (default: {default})"
    )
    group.add_argument(
        "--collusion",
        type=int,
        default=0,
        metavar="T",
        help="pairwise: how many silos may collude with the coordinator (default: 1)",
    )


def add_kmeans_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare what the k-means tasks take."""
    group = parser.add_argument_group("k-means")
    group.add_argument(
        "--k",
        type=_clusters,
        required=required,
        metavar="K|auto:LOW..HIGH",
        help="number of clusters; 'auto:2..12' chooses one from released counts",
    )
    group.add_argument(
        "--algorithm",
        choices=_Algorithms(),
        default="auto",
        metavar="NAME",
        help="one of %(choices)s (default: auto)",
    )
    group.add_argument("--alpha", type=float, help="fastlloyd: radius as a part of the box")
    group.add_argument(
        "--rounds", type=int, help="default: by the method's error model; auto fixes its own"
    )
    group.add_argument(
        "--keep-empty",
        action="store_true",
        help="leave empty clusters where they are, as the published methods do (default: move "
        "them where an average cluster stands well out of the noise)",
    )
    group.add_argument(
        "--public-seed", type=int, default=0, help="seed of the starting centres, known to all"
    )


class _Algorithms(Collection[str]):
    """Names of the k-means that are installed; listing them imports all tasks, a look-up one."""

    def __contains__(self, name: object) -> bool:
        from cloister.tasks.clustering.algorithms import is_kmeans

        return name in installed() and is_kmeans(installed()[str(name)])

    def __iter__(self) -> Iterator[str]:
        from cloister.tasks.clustering.algorithms import kmeans_tasks

        return iter(kmeans_tasks())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def add_task_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare how a task is named, and given its options."""
    parser.add_argument(
        "--task",
        required=required,
        metavar="NAME|FILE.py:CLASS",
        help="a task of 'cloister tasks', or a class in a file of yours, which is executed",
    )
    add_set_argument(parser)
    parser.add_argument(
        "--not-private", action="store_true", help="allow a task whose release is not private"
    )


def add_set_argument(group: argparse._ActionsContainer) -> None:
    """Declare how a task is given its own options."""
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the task, NAME=VALUE, see 'cloister tasks'; may be repeated",
    )


def add_options(
    group: argparse._ActionsContainer, task: type[Task], special: Mapping[str, Mapping[str, Any]]
) -> None:
    """Declare every option of a task by what the task says of it; some in a `special` way."""
    for one in options_of(task):
        arguments = {**_argument(one), **special.get(one.name, {})}
        group.add_argument(f"--{one.name.replace('_', '-')}", **arguments)


def _argument(one: Declaration) -> dict[str, Any]:
    """Return what argparse has to know of an option."""
    kind = _plain(one.kind)
    shown = "" if one.default in (None, "", ()) or one.required else f" (default: {one.default})"
    about = {"help": f"{one.help}{shown}".replace("%", "%%"), "required": one.required}
    if get_origin(kind) is Literal:
        return about | {"choices": get_args(kind)}
    if kind is bool:
        return about | {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Mapping:
        return about | {"action": "append", "type": _named, "metavar": "NAME=X,X,..."}
    if get_origin(kind) is tuple:
        part = _plain(get_args(kind)[0])
        several = {"action": "append"} if get_origin(part) is tuple else {}
        numbers = part in (int, float)
        return (
            about
            | several
            | {
                "type": _numbers if numbers else comma_separated,
                "metavar": "X,X,..." if numbers else "NAME,NAME,...",
            }
        )
    return about | {"type": kind, "metavar": _METAVARS.get(kind)}


def _plain(kind: Any) -> Any:
    """Return the type in an annotation, which may allow None beside it."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return next(_plain(part) for part in get_args(kind) if part is not NoneType)
    return kind


def options_from(args: argparse.Namespace, task: type[Task]) -> dict[str, Any]:
    """Return the options of a task whose command line has all of them."""
    found: dict[str, Any] = {}
    for one in options_of(task):
        given = getattr(args, one.name)
        if given is not None or one.required:
            repeated = get_origin(_plain(one.kind)) is Mapping
            found[one.name] = dict(given) if repeated else given
    return found


# How values are read ------------------------------------------------------------------------------


def comma_separated(text: str) -> tuple[str, ...]:
    """Read names separated by commas; one that has a comma stands in double quotes."""
    names = tuple(name.strip() for row in csv.reader([text]) for name in row)
    if not (names and all(names)):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, got {text!r}")
    return names


def _numbers(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas."""
    try:
        return tuple(int(part) if part.isdecimal() else float(part) for part in text.split(","))
    except ValueError:
        message = f"must be numbers separated by commas, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def _named(text: str) -> tuple[str, tuple[float, ...]]:
    """Read a name and its numbers."""
    name, equals, rest = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=X,X,..., got {text!r}")
    return name, _numbers(rest)


def _clusters(text: str) -> int | range:
    """Read a number of clusters, or the numbers to choose from."""
    low, dots, high = text.removeprefix("auto:").partition("..")
    try:
        if not (text.startswith("auto:") and dots):
            return int(text)
        return range(int(low), int(high) + 1)
    except ValueError:
        message = f"must be a number or a choice such as auto:2..12, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; a value is JSON, or else text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise PlanError(f"an option must be NAME=VALUE, got {pair!r}.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


# The task and the plan ----------------------------------------------------------------------------


def kmeans_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the k-means task of a command line, and its options."""
    options: dict[str, Any] = {"public_seed": args.public_seed}
    if not isinstance(args.k, range):
        task = installed()[args.algorithm]
        options["n_clusters"] = args.k
    elif args.algorithm == "auto":
        task = TASKS["selectk"]
        options |= {"min_clusters": args.k.start, "max_clusters": args.k.stop - 1}
    else:
        raise PlanError(f"k is chosen by algorithm auto only, got {args.algorithm}; give k.")
    keep = False if args.keep_empty else None
    given = {"alpha": args.alpha, "rounds": args.rounds, "relocate_empty": keep}
    asked = {name: value for name, value in given.items() if value is not None}
    check_known(task, asked)
    if any(one.name == "relocate_empty" for one in options_of(task)):
        asked["relocate_empty"] = keep
    return task, {**options, **asked}


def chosen_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the task that --task names, or the k-means that --k asks for, and its options."""
    if bool(args.task) == (args.k is not None):
        raise PlanError(
            "either k for k-means or a task must be given; a task has its options from --set, such "
            "as --set n_clusters=3."
        )
    return named_task(args) if args.task else kmeans_task(args)


def named_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the task that a command line names, and its options.

    Raises
    ------
    PlanError
        If there is no such task or option, or it is not private and the user does not accept that.
    """
    task = load_task(args.task)
    if not task.private and not args.not_private:
        raise PlanError(
            f"task {task.name!r} is NOT PRIVATE: it releases exact values; give --not-private if "
            "the records may be seen by everybody."
        )
    return task, task_options(task, args.set)


def load_task(name: str) -> type[Task]:
    """Return a task that is installed, or the class that ``path/to/file.py:ClassName`` names."""
    known = installed()
    if name in known:
        return known[name]
    if not name.rpartition(":")[0].endswith(".py"):
        raise PlanError(
            f"task must be one of {sorted(known)} or path/to/file.py:ClassName, got {name!r}; "
            f"published methods come with the laboratory: {INSTALL_LAB_HINT}."
        )
    return from_file(name)


def task_options(task: type[Task], pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs of a task's own options; a value is JSON, or else text."""
    options = named_values(pairs)
    check_known(task, options)
    return options


def schema_of_model(path: Path, plan: Plan) -> Schema:
    """Return what the contract that a model was made with says of the model's columns."""
    schema = Schema.load(path)
    if schema.digest() != plan.schema_digest:
        raise PlanError("schema is not that of the model: their digests differ; give the original.")
    return schema.select(plan.columns)


def refuse_given(given: object, rule: str) -> None:
    """Raise a PlanError if an option is given, though a rule says that it has no place here."""
    if given:
        raise PlanError(f"{rule}; leave it out.")


def no_predictions(task: Task) -> PlanError:
    """Return the refusal of a model that predicts nothing."""
    return PlanError(
        f"model is of task {task.name!r}, which predicts nothing for a record; give one that "
        "classifies, regresses or clusters, or, to predict, one that finds outliers."
    )


def trust_of(args: argparse.Namespace) -> Trust:
    """Return the fields of a plan that do not depend on its task, as a command line has them."""
    return Trust.taken_from(dict(vars(args)))


def files_of(args: argparse.Namespace) -> SiloFiles:
    """Return the files of a command line, each of which is a silo."""
    return SiloFiles(
        paths=name_silos(args.files),
        baskets=args.baskets,
        reading=args.reading,
        cache_dir=args.cache_dir,
    )


def payment_of(args: argparse.Namespace, out: Output) -> Payment:
    """Return how the job of a command line is paid."""
    return Payment(
        ledger=args.ledger,
        cap_epsilon=args.cap_epsilon,
        confirm_same_content=args.confirm_same_content,
        ask=ask if sys.stderr.isatty() else lambda _: None,
        say=out.say,
    )


def job_of(
    args: argparse.Namespace,
    task: type[Task],
    schema: Schema,
    silos: Iterable[str],
    options: Mapping[str, Any],
) -> Job:
    """Return the job that a command line describes; its plan raises what is wrong with it."""
    given = vars(args)
    unused = [name for name in _COSTS if given.get(name) is not None and not task.private]
    refuse_given(
        unused, f"{', '.join(unused)} mean nothing for task {task.name!r}, which is not private"
    )
    return Job(
        task=task,
        schema=schema,
        silos=tuple(silos),
        options=options,
        epsilon=args.epsilon,
        delta=args.delta,
        nominal_n=args.nominal_n,
        columns=None if args.columns is None else schema.select(args.columns).names,
        max_loss=given.get("max_loss"),
        trust=trust_of(args),
    )
