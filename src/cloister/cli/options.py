"""Options of several commands, and the task, job and payment that they define."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cloister.app.files import MODEL, SiloFiles, name_silos
from cloister.app.job import Job, Trust, columns_used
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
# Options without a meaning for a release of exact values.
_COSTS = ("epsilon", "delta", "ledger", "cap_epsilon")


# Declarations -------------------------------------------------------------------------------------


def add_job_arguments(parser: argparse.ArgumentParser, *, catalogue: bool = False) -> None:
    """Declare the options of every job over files; `catalogue` allows one instead of a schema."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet; each file is a silo with the name of the file",
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
        help="store unencrypted records there during the job, and read each file once; for files "
        "larger than memory",
    )
    group = parser.add_argument_group("budget")
    group.add_argument(
        "--ledger",
        type=Path,
        metavar="PATH",
        help=f"ledger to charge (default: {LEDGER_VARIABLE}, or one ledger for all your jobs)",
    )
    group.add_argument(
        "--cap-epsilon",
        type=float,
        metavar="E",
        help="lifetime cap of a data set that is new in the ledger; prompted for at a terminal",
    )
    add_confirm_argument(group)


def add_confirm_argument(parser: argparse._ActionsContainer) -> None:
    """Declare the confirmation of a second budget for the same records."""
    parser.add_argument(
        "--confirm-same-content",
        action="store_true",
        help="confirm, as the owner, a separate budget for records that the ledger has under "
        "another name",
    )


def add_baskets_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the layout of market baskets, which is never guessed."""
    parser.add_argument(
        "--baskets",
        action="append",
        default=[],
        metavar="[FILE=]lines[:DELIMITER]|long:BASKET,ITEM",
        help="read market baskets, one per line or one item per row; the schema is a catalogue "
        "of items; FILE= limits it to that file; may be repeated",
    )


def add_max_loss_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the limit on rows that are left out."""
    parser.add_argument(
        "--max-loss",
        type=float,
        metavar="SHARE",
        help="share of the rows of each file that may be left out (default: 0.05, and each value "
        "of a target, event or group keeps at least one row)",
    )


def add_reading_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the file of reading settings, for files in different formats."""
    parser.add_argument(
        "--reading",
        type=Path,
        metavar="FILE.toml",
        help="format of each file: a table with its name, with decimal, thousands, encoding, "
        "delimiter, multiline, unit_header, and format, spellings, absent or header of columns",
    )


def add_model_task(parser: argparse.ArgumentParser) -> None:
    """Declare the class of a model's task, if it is not installed."""
    parser.add_argument(
        "--task", metavar="FILE.py:CLASS", help="the task of the model, if it is your own class"
    )


def load_model(args: argparse.Namespace) -> Release:
    """Return the model of a command line, of an installed task or of the user's class."""
    path = Path(args.model)  # the file, or the folder of a release
    refuse_page(path)
    return Release.load(path / MODEL if path.is_dir() else path, task_of_model(args))


def refuse_page(path: Path) -> None:
    """Raise if a report is given in place of its model."""
    if path.suffix in (".html", ".md"):
        beside = path.with_name(MODEL)
        raise PlanError(f"{path.name!r} is a report for people; give {str(beside)!r}.")


def task_of_model(args: argparse.Namespace) -> dict[str, type[Task]]:
    """Return the user's class of a model's task by its name, or nothing."""
    task = from_file(args.task) if args.task else None
    return {task.name: task} if task else {}


def add_plan_arguments(
    parser: argparse.ArgumentParser, *, nominal_n: bool = False, catalogue: bool = False
) -> None:
    """Declare the options of a plan; `nominal_n` makes --nominal-n required."""
    # A catalogue is a schema: with both, one of them would be ignored.
    contract = parser.add_mutually_exclusive_group(required=True) if catalogue else parser
    contract.add_argument("--schema", type=Path, required=not catalogue, help="the data contract")
    if catalogue:
        contract.add_argument(
            "--catalogue",
            type=Path,
            metavar="ITEMS.txt",
            help="the public items, one per line; their schema is written to the results folder",
        )
        parser.add_argument(
            "--dataset", metavar="NAME", help="name of the data in the ledger, with --catalogue"
        )
    parser.add_argument(
        "--columns",
        type=comma_separated,
        metavar="NAME,NAME,...",
        help="columns of the schema that the job uses (default: those that the options name, if "
        "the task needs no others, else all)",
    )
    parser.add_argument(
        # A default would be a decision that the data's owner has to make.
        "--epsilon",
        type=float,
        metavar="E",
        help="privacy budget; there is no default",
    )
    parser.add_argument(
        "--delta", type=float, metavar="D", help="default: min(1e-6, 1 / (100 nominal-n))"
    )
    parser.add_argument(
        "--nominal-n",
        type=int,
        required=nominal_n,
        metavar="N",
        help="public number of records in all silos, for example from a contract"
        + ("" if nominal_n else "; if omitted, 2%% of the budget is spent on a noisy count"),
    )
    parser.add_argument("--study", default="default", help="study whose budget is charged")
    parser.add_argument(
        "--min-silos",
        type=int,
        default=0,
        metavar="M",
        help="fewest silos in a round (default: a majority, or the threshold of pairwise masks)",
    )


def add_period_arguments(group: argparse._ActionsContainer, *, required: bool = False) -> None:
    """Declare the periods in which an answer is renewed."""
    group.add_argument(
        "--periods", type=int, required=required, metavar="T", help="renew in 2 to 104 periods"
    )
    group.add_argument(
        "--max-periods",
        type=int,
        default=1,
        metavar="P",
        help="periods in which a person may arrive; rows beyond are left out (default: 1)",
    )
    group.add_argument(
        "--workload",
        choices=("all", "totals"),
        default="all",
        help="answers with little noise: totals, single periods and windows, or totals alone",
    )


def add_trust_arguments(group: argparse._ActionsContainer, default: str) -> None:
    """Declare the trust model of the silos."""
    group.add_argument(
        "--profile", choices=("pairwise", "group"), help=f"trust model (default: {default})"
    )
    group.add_argument(
        "--collusion",
        type=int,
        default=0,
        metavar="T",
        help="pairwise: number of silos that may collude with the coordinator (default: 1)",
    )


def add_kmeans_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare the options of the k-means tasks."""
    group = parser.add_argument_group("k-means")
    group.add_argument(
        "--k",
        type=_clusters,
        required=required,
        metavar="K|auto:LOW..HIGH",
        help="number of clusters; 'auto:2..12' selects it from released counts",
    )
    group.add_argument(
        "--algorithm",
        choices=_Algorithms(),
        default="auto",
        metavar="NAME",
        help="one of %(choices)s (default: auto)",
    )
    group.add_argument(
        "--alpha", type=float, help="fastlloyd: radius as a fraction of the column ranges"
    )
    group.add_argument(
        "--rounds",
        type=int,
        help="number of rounds (default: from the method's error model); not for auto",
    )
    group.add_argument(
        "--keep-empty",
        action="store_true",
        help="keep the centres of empty clusters, as in the published methods (default: relocate "
        "them if an average cluster is much larger than the noise)",
    )
    group.add_argument(
        "--no-estimate",
        action="store_const",
        const=False,
        dest="estimate",
        help="fastlloyd: the published method, without rounds for intervals and verdicts",
    )
    group.add_argument(
        # Noise never has a seed.
        "--public-seed",
        type=int,
        default=0,
        help="public seed of the starting centres",
    )


class _Algorithms(Collection[str]):
    """Names of installed k-means tasks; iteration imports all tasks, a look-up only one."""

    # argparse calls this for a given name, and iterates only for help and errors.
    def __contains__(self, name: object) -> bool:
        from cloister.tasks.clustering.algorithms import is_kmeans

        return name in installed() and is_kmeans(installed()[str(name)])

    def __iter__(self) -> Iterator[str]:
        from cloister.tasks.clustering.algorithms import kmeans_tasks

        return iter(kmeans_tasks())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def add_task_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare the name of a task and its options."""
    parser.add_argument(
        "--task",
        required=required,
        metavar="NAME|FILE.py:CLASS",
        help="a task of 'cloister tasks', or a class in your own file, which is executed",
    )
    add_set_argument(parser)
    parser.add_argument(
        # Explicit, so that exact values are never released by mistake.
        "--not-private",
        action="store_true",
        help="allow a task whose release is not private",
    )


def add_set_argument(group: argparse._ActionsContainer) -> None:
    """Declare the option that sets the options of a task."""
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an option of the task, see 'cloister tasks'; may be repeated",
    )


def add_options(
    group: argparse._ActionsContainer, task: type[Task], special: Mapping[str, Mapping[str, Any]]
) -> None:
    """Declare every option of a task from its declarations; `special` overrides arguments."""
    for option in options_of(task):
        arguments = {**_argument(option), **special.get(option.name, {})}
        group.add_argument(f"--{option.name.replace('_', '-')}", **arguments)


def _argument(option: Declaration) -> dict[str, Any]:
    """Return the arguments of add_argument for an option."""
    kind = _plain(option.kind)
    has_default = option.default not in (None, "", ()) and not option.required
    default = f" (default: {option.default})" if has_default else ""
    # argparse formats the text with %, so a percent sign must be doubled.
    common = {"help": f"{option.help}{default}".replace("%", "%%"), "required": option.required}
    if get_origin(kind) is Literal:
        return common | {"choices": get_args(kind)}
    # Gives --name and --no-name, so that a default of True can be changed.
    if kind is bool:
        return common | {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Mapping:
        words = get_args(kind)[1] is Any
        named = (_word, "COLUMN=CATEGORY") if words else (_named, "NAME=X,X,...")
        return common | {"action": "append", "type": named[0], "metavar": named[1]}
    if get_origin(kind) is tuple:
        element = _plain(get_args(kind)[0])
        several = {"action": "append"} if get_origin(element) is tuple else {}
        numbers = element in (int, float)
        names = get_args(element) if get_origin(element) is Literal else ("NAME", "NAME", "...")
        return (
            common
            | several
            | {
                "type": _numbers if numbers else comma_separated,
                "metavar": "X,X,..." if numbers else ",".join(names),
            }
        )
    return common | {"type": kind, "metavar": _METAVARS.get(kind)}


def _plain(kind: Any) -> Any:
    """Return the type in an annotation, without its constraints and without None."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return next(_plain(member) for member in get_args(kind) if member is not NoneType)
    return kind


def options_from(args: argparse.Namespace, task: type[Task]) -> dict[str, Any]:
    """Return the options of a task from a command line that declares all of them."""
    options: dict[str, Any] = {}
    for option in options_of(task):
        value = getattr(args, option.name)
        if value is not None or option.required:
            is_mapping = get_origin(_plain(option.kind)) is Mapping
            options[option.name] = dict(value) if is_mapping else value
    return options


# Values -------------------------------------------------------------------------------------------


def comma_separated(text: str) -> tuple[str, ...]:
    """Read names separated by commas; a name with a comma must be in double quotes."""
    # Names of columns may contain commas, which CSV can quote.
    names = tuple(name.strip() for row in csv.reader([text]) for name in row)
    if not (names and all(names)):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, got {text!r}")
    return names


def _numbers(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas."""
    try:
        # An option of integers refuses floats, so whole numbers stay integers.
        return tuple(int(item) if item.isdecimal() else float(item) for item in text.split(","))
    except ValueError:
        message = f"must be numbers separated by commas, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def _named(text: str) -> tuple[str, tuple[float, ...]]:
    """Read a name and its numbers."""
    name, equals, rest = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=X,X,..., got {text!r}")
    return name, _numbers(rest)


def _word(text: str) -> tuple[str, str]:
    """Read a name and one word."""
    name, _, word = text.partition("=")
    if not (name and word):
        raise argparse.ArgumentTypeError(f"must be COLUMN=CATEGORY, got {text!r}")
    return name, word


def _clusters(text: str) -> int | range:
    """Read a number of clusters, or a range of them."""
    low, dots, high = text.removeprefix("auto:").partition("..")
    try:
        if not (text.startswith("auto:") and dots):
            return int(text)
        return range(int(low), int(high) + 1)
    except ValueError:
        message = f"must be a number or a range such as auto:2..12, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; a value that is not JSON is text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise PlanError(f"an option must be NAME=VALUE, got {pair!r}.")
        if name in options:  # the last one alone would count
            raise PlanError(
                f"{name} must be given once, with all values together, got {pair!r}, too; write "
                'several lists as JSON, such as tables=[["a", "b"], ["c"]].'
            )
        options[name] = _read(value)
    return options


def _read(value: str) -> Any:
    """Return a value from JSON, or the text itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value  # names of columns and words need no quotes then


# The task and the plan ----------------------------------------------------------------------------


def kmeans_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the k-means task of a command line and its options."""
    options: dict[str, Any] = {"public_seed": args.public_seed}
    if not isinstance(args.k, range):
        task = installed()[args.algorithm]
        options["n_clusters"] = args.k
    elif args.algorithm == "auto":
        task = TASKS["selectk"]
        options |= {"min_clusters": args.k.start, "max_clusters": args.k.stop - 1}
    else:
        raise PlanError(
            f"only algorithm auto selects k, got {args.algorithm}; give a number as --k."
        )
    relocate = False if args.keep_empty else None
    arguments = {
        "alpha": args.alpha,
        "rounds": args.rounds,
        "estimate": args.estimate,
        "relocate_empty": relocate,
    }
    explicit = {name: value for name, value in arguments.items() if value is not None}
    # Only explicit options: a default must not raise for a task without it.
    check_known(task, explicit)
    if any(option.name == "relocate_empty" for option in options_of(task)):
        explicit["relocate_empty"] = relocate
    return task, {**options, **explicit}


def chosen_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the task of --task, or the k-means task of --k, and its options."""
    if bool(args.task) == (args.k is not None):
        raise PlanError(
            "give either --k for k-means or --task; set the options of a task with --set, for "
            "example --set n_clusters=3."
        )
    return named_task(args) if args.task else kmeans_task(args)


def named_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the task of --task and its options.

    Raises
    ------
    PlanError
        If the task or option does not exist, or it is not private and --not-private is missing.
    """
    task = load_task(args.task)
    if not task.private and not args.not_private:
        raise PlanError(
            f"task {task.name!r} is NOT PRIVATE: it releases exact values; give --not-private only "
            "if the records are public."
        )
    return task, task_options(task, args.set)


def load_task(name: str) -> type[Task]:
    """Return an installed task, or the class at ``path/to/file.py:ClassName``."""
    tasks = installed()
    if name in tasks:
        return tasks[name]
    # Only a path ending in .py is executed, never a module name that was mistyped.
    if not name.rpartition(":")[0].endswith(".py"):
        raise PlanError(
            f"task must be one of {sorted(tasks)} or path/to/file.py:ClassName, got {name!r}; "
            f"published methods are part of the laboratory: {INSTALL_LAB_HINT}."
        )
    return from_file(name)


def set_text(name: str, value: Any) -> str:
    """Return the --set of an option, quoted for a shell; an error if no JSON holds the value."""
    return f"--set {shlex.quote(f'{name}={json.dumps(value, allow_nan=False)}')}"


BY_FORMULA = (
    "use: cloister run --task glm --set family=binomial --set 'formula=y ~ age + site', "
    "or family=gaussian for a number"
)
"""The remedy of a formula for another command or task."""


def task_options(task: type[Task], pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs of a task's options; a value that is not JSON is text, or a list.

    A list may be written as ``a,b``, and edges as ``a=1,2``, as the commands of tasks take them.
    """
    options = named_values(pairs)
    if "formula" in options and not any(one.name == "formula" for one in options_of(task)):
        raise PlanError(f"task {task.name!r} takes no formula; {BY_FORMULA}.")
    check_known(task, options)
    for option in options_of(task):
        # A list without brackets is not JSON, so it was read as one text.
        value, is_list = options.get(option.name), option.rule.startswith("a sequence")
        if isinstance(value, str) and is_list and " or " not in option.rule:
            read = _read if ", each a number" in option.rule else str  # a name may be a number
            parts = [read(one.strip()) for one in value.split(",")]
            options[option.name] = [parts] if ", each a sequence" in option.rule else parts
        elif isinstance(value, str) and option.rule.startswith("a mapping to a sequence"):
            with suppress(argparse.ArgumentTypeError):  # the rule of the option refuses the text
                options[option.name] = dict([_named(value)])
    if isinstance(text := options.get("formula"), str):
        from cloister.tasks.regression.expressions import names_in
        from cloister.tasks.regression.parse import parse_formula

        # Here, so that a plan has terms: no party that receives it reads the text.
        formula = parse_formula(text)
        target = min(names_in(formula.target), default="")
        options = {"target": target, **options, "formula": formula.to_dict()}
    return options


def schema_of_model(path: Path, plan: Plan) -> Schema:
    """Return the model's columns of its original schema, which must have the plan's digest."""
    schema = Schema.load(path)
    # Other bounds or categories would shift every value.
    if schema.digest() != plan.schema_digest:
        raise PlanError(
            f"schema {str(path)!r} is not that of the model: their digests differ; give the "
            "original schema."
        )
    return schema.select(plan.columns)


def refuse_given(given: object, rule: str) -> None:
    """Raise a PlanError with a rule if an option is given that the rule forbids."""
    if given:
        raise PlanError(f"{rule}; omit it.")


def no_predictions(task: Task) -> PlanError:
    """Return the error for a model without predictions."""
    return PlanError(
        f"model has task {task.name!r}, which predicts no value of a record; give a model that "
        "classifies, regresses or clusters, or, to predict, one that finds outliers."
    )


def trust_of(args: argparse.Namespace) -> Trust:
    """Return the fields of a plan that do not depend on its task, from a command line."""
    return Trust.taken_from(dict(vars(args)))


def files_of(args: argparse.Namespace) -> SiloFiles:
    """Return the files of a command line, one for each silo."""
    return SiloFiles(
        paths=name_silos(args.files),
        baskets=args.baskets,
        reading=args.reading,
        cache_dir=args.cache_dir,
    )


def payment_of(args: argparse.Namespace, out: Output) -> Payment:
    """Return the ledger settings that pay for the job of a command line."""
    return Payment(
        ledger=args.ledger,
        cap_epsilon=args.cap_epsilon,
        confirm_same_content=args.confirm_same_content,
        # A script must fail instead of waiting for an answer.
        ask=ask if sys.stderr.isatty() else lambda _: None,
        say=out.say,
    )


def job_of(
    args: argparse.Namespace,
    task: type[Task],
    schema: Schema,
    silos: Iterable[str],
    options: Mapping[str, Any],
    releases: Iterable[str] = (),
) -> Job:
    """Return the job of a command line; its plan raises for invalid values."""
    arguments = vars(args)
    unused = [name for name in _COSTS if arguments.get(name) is not None and not task.private]
    refuse_given(
        unused, f"{', '.join(unused)} cannot be used with task {task.name!r}, which is not private"
    )
    return Job(
        task=task,
        schema=schema,
        silos=tuple(silos),
        options=options,
        epsilon=args.epsilon,
        delta=args.delta,
        nominal_n=args.nominal_n,
        # In the schema's order, which all silos share.
        columns=columns_used(task, options, schema)
        if args.columns is None
        else schema.select(args.columns).names,
        max_loss=arguments.get("max_loss"),
        releases=tuple(releases),
        trust=trust_of(args),
    )
