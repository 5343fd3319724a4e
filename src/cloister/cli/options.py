"""Options that several commands share, and the plan they describe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloister.errors import PlanError
from cloister.jobs import make_plan
from cloister.privacy.budget import Budget, default_delta
from cloister.protocol.plan import Plan
from cloister.schema import Schema
from cloister.task import Task
from cloister.tasks import TASKS
from cloister.tasks.clustering import kmeans_tasks
from cloister.tasks.clustering.select_k import SelectK
from cloister.tasks.options import check_known, options_of

LEDGER_VARIABLE = "CLOISTER_LEDGER"


def default_ledger() -> Path:
    """Return where commands charge unless told otherwise: one file for everything a user runs.

    A ledger for each run would promise nothing: what was spent before would not be in it.
    """
    if given := os.environ.get(LEDGER_VARIABLE):
        return Path(given)
    folder = os.environ.get("XDG_DATA_HOME") or Path.home() / (
        "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    )
    return Path(folder) / "cloister" / "ledger.db"


def add_job_arguments(parser: argparse.ArgumentParser, *, catalogue: bool = False) -> None:
    """Declare what every job over files takes; `catalogue` allows one in place of a schema."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet; each file is a silo, named like the file",
    )
    add_baskets_argument(parser)
    add_plan_arguments(parser, catalogue=catalogue)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for all results")
    group = parser.add_argument_group("budget")
    group.add_argument(
        "--ledger",
        type=Path,
        metavar="PATH",
        help=f"where to charge (default: {LEDGER_VARIABLE}, or one ledger for all you run)",
    )
    group.add_argument(
        "--cap-epsilon",
        type=float,
        metavar="E",
        help="lifetime cap of a data set that is new in the ledger; asked for at a terminal",
    )
    for name, of in (("pure", "epsilon"), ("failure", "delta")):
        group.add_argument(
            f"--{name}-share",
            type=float,
            metavar="PART",
            help=f"part of a new cap's {of} for jobs without Gaussian noise, fixed from then on "
            "(default: what suits this run if the cap is its budget, else 0)",
        )
    group.add_argument(
        "--confirm-same-content",
        action="store_true",
        help="the owner confirms that records which the ledger knows under another name get a "
        "budget of their own",
    )


def add_baskets_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how market baskets stand in a file; it is never guessed."""
    parser.add_argument(
        "--baskets",
        metavar="lines[:DELIMITER]|long:BASKET,ITEM",
        help="files of market baskets, one on each line or one item on each row; the schema is a "
        "catalogue of items",
    )


def source_of(path: Path, baskets: str | None) -> Any:
    """Return what is to be read: a file, or the baskets in it."""
    from cloister.data import Baskets

    return path if baskets is None else Baskets.parse(path, baskets)


def add_plan_arguments(
    parser: argparse.ArgumentParser, *, nominal_n: bool = False, catalogue: bool = False
) -> None:
    """Declare what a plan needs; `nominal_n` says whether that must be given."""
    contract = parser.add_mutually_exclusive_group(required=True) if catalogue else parser
    contract.add_argument(
        "--schema", type=Path, required=not catalogue, help="the agreed data contract"
    )
    if catalogue:
        contract.add_argument(
            "--catalogue",
            type=Path,
            metavar="ITEMS.txt",
            help="or the public items, one on each line; the schema is written beside the results",
        )
        parser.add_argument(
            "--dataset", metavar="NAME", help="name of the data in the ledger, with --catalogue"
        )
    parser.add_argument(
        "--columns",
        type=_names,
        metavar="NAME,NAME,...",
        help="of the schema, those that the job uses (default: all)",
    )
    parser.add_argument("--epsilon", type=float, metavar="E", help="budget; there is no default")
    parser.add_argument(
        "--delta", type=float, metavar="D", help="default: min(1e-6, 1 / (100 nominal-n))"
    )
    parser.add_argument(
        "--nominal-n",
        type=int,
        required=nominal_n,
        metavar="N",
        help="public contract value for the number of records in all silos"
        + ("" if nominal_n else "; without it, 2%% of the budget buy a noisy count"),
    )
    parser.add_argument("--study", default="default", help="whose spending this is")
    parser.add_argument(
        "--min-silos", type=int, default=0, metavar="M", help="default: a majority of the silos"
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
    group.add_argument("--algorithm", choices=tuple(kmeans_tasks()), default="auto")
    group.add_argument("--alpha", type=float, help="fastlloyd: radius as a part of the box")
    group.add_argument(
        "--rounds",
        type=int,
        help="default: by the method's error model; fixed by the plan for auto",
    )
    group.add_argument(
        "--keep-empty",
        action="store_true",
        help="leave empty clusters where they are, as the published methods do (default: move "
        "them where an average cluster stands well out of the noise)",
    )
    group.add_argument(
        "--public-seed", type=int, default=0, help="of the starting centres, known to all"
    )


def add_target_arguments(
    parser: argparse.ArgumentParser, methods: Sequence[str], meaning: str
) -> None:
    """Declare what the commands take that learn to tell a column."""
    group = parser.add_argument_group("learning")
    group.add_argument("--target", required=True, metavar="COLUMN", help=meaning)
    group.add_argument("--method", choices=methods, default=methods[0])
    group.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="COLUMN=CATEGORY",
        help="linear and logistic: category that others of its column are compared with, by "
        "default the first; may be repeated",
    )
    add_prepare_arguments(group)


def reference_options(args: argparse.Namespace, task: type[Task]) -> dict[str, dict[str, str]]:
    """Return the option that gives columns their reference categories, if the user has any.

    Raises
    ------
    PlanError
        If the method compares no categories, or one is not ``COLUMN=CATEGORY``, each column once.
    """
    if not args.reference:
        return {}
    check_known(task, ["reference"])
    found: dict[str, str] = {}
    for text in args.reference:
        column, _, category = text.partition("=")
        if not (column and category):
            raise PlanError(f"reference must be COLUMN=CATEGORY, got {text!r}.")
        if column in found:
            raise PlanError(f"reference of column {column!r} is given twice; give one category.")
        found[column] = category
    return {"reference": found}


def add_prepare_arguments(group: argparse._ActionsContainer) -> None:
    """Declare the steps before the last one."""
    group.add_argument(
        "--prepare",
        action="append",
        default=[],
        metavar="STEP[:NAME=VALUE,...]",
        help="a step before, such as bounds, standardise or pca:n_components=5; may be repeated; "
        "all steps are one plan with one cost",
    )
    group.add_argument(
        "--shares",
        type=_shares,
        metavar="S,S,...",
        help="parts of the budget, one for each step, the last included",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the method's own; may be repeated",
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names with commas between, got {text!r}")
    return names


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers such as 0.2,0.8, got {text!r}") from None


def prepared(
    args: argparse.Namespace, task: type[Task], options: Mapping[str, Any]
) -> tuple[type[Task], dict[str, Any]]:
    """Return the task of a command line, behind the steps that prepare its records, if any."""
    if not args.prepare:
        if args.shares:
            raise PlanError("shares go with --prepare; leave them out.")
        return task, dict(options)
    steps = [_step(text) for text in args.prepare]
    given = {"shares": args.shares} if args.shares else {}
    return TASKS["pipeline"], {"steps": [*steps, (task.name, dict(options))], **given}


def _step(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``pca:n_components=5,...``."""
    name, _, rest = text.partition(":")
    return name, named_values(rest.split(",") if rest else ())


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


def kmeans_task(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the k-means task of a command line, and its options."""
    if isinstance(args.k, range) and args.algorithm != "auto":
        raise PlanError(f"k is chosen by algorithm auto only, got {args.algorithm}; give k.")
    if isinstance(args.k, range):
        task: type[Task] = SelectK
        options = {"min_clusters": args.k.start, "max_clusters": args.k.stop - 1}
    else:
        task = kmeans_tasks()[args.algorithm]
        options = {"n_clusters": args.k}
    keep = False if args.keep_empty else None
    given = {"alpha": args.alpha, "rounds": args.rounds, "relocate_empty": keep}
    asked = {name: value for name, value in given.items() if value is not None}
    check_known(task, asked)
    if any(one.name == "relocate_empty" for one in options_of(task)):
        asked["relocate_empty"] = keep
    return task, {**options, "public_seed": args.public_seed, **asked}


def schema_of_model(path: Path, plan: Plan) -> Schema:
    """Return what the contract that a model was made with says of the model's columns."""
    schema = Schema.load(path)
    if schema.digest() != plan.schema_digest:
        raise PlanError("schema is not that of the model: their digests differ; give the original.")
    return schema.select(plan.columns)


def plan_of(
    args: argparse.Namespace,
    task: type[Task],
    schema: Schema,
    silos: Iterable[str],
    options: Mapping[str, Any],
) -> Plan:
    """Return the plan that a command line describes, so that its mistakes cost nothing.

    Without a nominal number of records it is the plan for the fewest that make sense.
    """
    return make_plan(
        task,
        schema,
        silos,
        budget=_budget(args, task),
        nominal_n=args.nominal_n or max(1, int(options.get("n_clusters", 1))),
        study=args.study,
        min_silos=args.min_silos,
        columns=args.columns,
        **options,
    )


def target_of(plan: Plan) -> list[tuple[str, str]]:
    """Name the column that a job learns to tell, or measures another against."""
    at = getattr(plan.task, "target", getattr(plan.task, "truth", None))
    return [] if at is None else [("target", plan.columns[at])]


def _budget(args: argparse.Namespace, task: type[Task]) -> Budget | None:
    if not task.private:
        if args.epsilon is not None or args.delta is not None:
            raise PlanError(
                f"epsilon and delta mean nothing for task {task.name!r}, which is not private; "
                "leave them out."
            )
        return None
    if args.epsilon is None:
        raise PlanError(f"epsilon must be given for task {task.name!r}; there is no default.")
    delta = default_delta(args.nominal_n) if args.delta is None else args.delta
    return Budget(args.epsilon, delta)
