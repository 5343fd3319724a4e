"""``cloister rules``: frequent itemsets and association rules over files of baskets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.cli.options import add_job_arguments
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, prepare_folder, release
from cloister.errors import PlanError
from cloister.schema import Schema, catalogue_schema
from cloister.tasks import TASKS

_LIMITS = ("weight", "truncate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser, catalogue=True)
    group = parser.add_argument_group("rules")
    group.add_argument(
        "--min-support",
        type=float,
        default=0.01,
        metavar="S",
        help="part of all baskets in which a set must be (default: 0.01)",
    )
    group.add_argument("--max-size", type=int, default=2, help="of a set, 1 to 3 (default: 2)")
    group.add_argument("--min-confidence", type=float, default=0.0, metavar="C")
    group.add_argument("--min-lift", type=float, default=1.0, metavar="L")
    group.add_argument(
        "--min-count",
        type=float,
        default=0.0,
        metavar="N",
        help="sets with a smaller noisy count are not released",
    )
    group.add_argument(
        "--sensitive",
        action="append",
        nargs="+",
        default=[],
        metavar="ITEM",
        help="sets with all these items are not released; may be repeated",
    )
    group.add_argument(
        "--limit",
        choices=_LIMITS,
        default=_LIMITS[0],
        help="what is done with a large basket: all of it counts for less, or some of it in full",
    )
    group.add_argument(
        "--basket-size",
        type=int,
        metavar="N",
        help="a basket of up to so many items counts in full in the first round (default: 2 to "
        "12, by the budget)",
    )
    group.add_argument(
        "--most-candidates",
        type=int,
        default=1000,
        metavar="N",
        help="sets of one size that are counted, at most (default: 1000)",
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release itemsets and rules; return the exit code."""
    out = Output.of(args)
    if args.catalogue:
        args.schema = _written_schema(args)
    elif args.dataset:
        raise PlanError("dataset goes with a catalogue; a schema has its own.")
    names = ("min_support", "max_size", "min_confidence", "min_lift", "min_count", "sensitive")
    more = ("limit", "basket_size", "most_candidates")
    options: dict[str, Any] = {name: getattr(args, name) for name in (*names, *more)}
    result, charge = release(args, TASKS["apriori"], options, out)
    written = {"schema": args.schema} if args.catalogue else {}
    return finish(result, charge, args.out, out, command="rules", written=written)


def _written_schema(args: argparse.Namespace) -> Path:
    """Write the contract that a catalogue makes beside the results, and return its path."""
    schema = catalogue_schema(args.catalogue, dataset=args.dataset or "baskets")
    prepare_folder(args.out)
    path: Path = args.out / "schema.toml"
    if path.exists() and Schema.load(path) != schema:
        raise PlanError(f"file {str(path)!r} is another schema; give another --out, or --schema.")
    path.write_text(schema.to_toml(), encoding="utf-8")
    return path
