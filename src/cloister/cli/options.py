"""Options that several commands share, and the plan they describe."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cloister.errors import PlanError
from cloister.jobs import make_plan
from cloister.privacy.budget import Budget, default_delta
from cloister.protocol.plan import Plan
from cloister.schema import Schema
from cloister.tasks.base import Task


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what every job over files takes."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet; each file is a silo, named like the file",
    )
    add_plan_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for all results")
    group = parser.add_argument_group("budget")
    group.add_argument(
        "--ledger", type=Path, metavar="PATH", help="where to charge (default: DIR/ledger.db)"
    )
    group.add_argument(
        "--cap-epsilon",
        type=float,
        metavar="E",
        help="lifetime cap of a data set that is new in the ledger; without --ledger, this run's "
        "budget if not given",
    )
    group.add_argument(
        "--confirm-same-content",
        action="store_true",
        help="the owner confirms that records which the ledger knows under another name get a "
        "budget of their own",
    )


def add_plan_arguments(parser: argparse.ArgumentParser, *, nominal_n: bool = False) -> None:
    """Declare what a plan needs; `nominal_n` says whether that must be given."""
    parser.add_argument("--schema", type=Path, required=True, help="the agreed data contract")
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
    group.add_argument("--k", type=int, required=required, help="number of clusters")
    group.add_argument(
        "--algorithm", choices=("fastlloyd", "glloyd", "sulloyd"), default="fastlloyd"
    )
    group.add_argument("--alpha", type=float, help="fastlloyd: radius as a part of the box")
    group.add_argument("--rounds", type=int, help="default: 2 to 7, by the method's error model")
    group.add_argument(
        "--keep-empty",
        action="store_true",
        help="leave empty clusters where they are, as the published methods do",
    )
    group.add_argument(
        "--public-seed", type=int, default=0, help="of the starting centres, known to all"
    )


def kmeans_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a k-means task."""
    if args.alpha is not None and args.algorithm != "fastlloyd":
        raise PlanError(f"alpha belongs to fastlloyd, got it with {args.algorithm}; leave it out.")
    given = {"alpha": args.alpha, "rounds": args.rounds}
    return {
        "n_clusters": args.k,
        "public_seed": args.public_seed,
        "relocate_empty": not args.keep_empty,
        **{name: value for name, value in given.items() if value is not None},
    }


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
        **options,
    )


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
