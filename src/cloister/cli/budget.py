"""``cloister budget``: what a ledger knows."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from cloister.cli.options import default_ledger
from cloister.cli.output import Output, add_flags
from cloister.cli.release import NOT_COUNTED
from cloister.display import Table
from cloister.errors import LedgerError
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Cost, Limits
from cloister.privacy.ledger import Ledger
from cloister.report import number

_CHARGED = {"apart": "by each noise", "covered": "as Gaussian", "whole": "as a whole"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="caps, what is spent and what is left, by data set")
    show.set_defaults(action=_show)
    exported = add_export(actions)
    cap = actions.add_parser("cap", help="give a data set another lifetime cap")
    cap.set_defaults(action=_cap)
    close = actions.add_parser("close", help="end a job that crashed; what left stays charged")
    close.set_defaults(action=_close)
    for action in (show, exported, cap, close):
        optional = action in (show, exported)
        action.add_argument(
            "ledger",
            type=Path,
            metavar="LEDGER",
            nargs="?" if optional else None,
            default=default_ledger() if optional else None,
            help="default: the one that commands charge" if optional else None,
        )
        add_flags(action)
    close.add_argument("job", metavar="JOB", help="as 'budget show' names it")
    cap.add_argument("dataset", metavar="DATASET")
    cap.add_argument("--epsilon", type=float, required=True, metavar="E")
    cap.add_argument("--delta", type=float, metavar="D", help="default: as before")


def add_export(actions: Any) -> argparse.ArgumentParser:
    """Declare the action ``export``, which ``cloister ledger`` has too."""
    exported: argparse.ArgumentParser = actions.add_parser(
        "export", help="every entry of the ledger as JSON"
    )
    exported.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    exported.set_defaults(action=_export)
    return exported


def run(args: argparse.Namespace) -> int:
    """Open the ledger, which must exist, and run the action; return the exit code."""
    if not args.ledger.is_file():
        raise LedgerError(f"ledger {os.fspath(args.ledger)!r} does not exist; check its path.")
    ledger = Ledger(args.ledger, behind=getattr(args, "behind", False))
    try:
        code: int = args.action(args, ledger, Output.of(args))
    finally:
        ledger.dispose()
    return code


def _show(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    ledger.verify()
    out.say(f"ledger {args.ledger}: every entry verified, head {ledger.head()}")
    out.say(NOT_COUNTED)
    for dataset in ledger.datasets():
        cap, limits = ledger.cap(dataset), ledger.limits(dataset)
        left = limits.left(ledger.cost(dataset))
        out.say()
        out.pairs(
            [
                ("data set", dataset),
                ("unit of privacy", ledger.unit(dataset)),
                ("lifetime cap", str(cap)),
                ("its limits", _by_law(limits, limits.room)),
                ("spent", f"epsilon {number(ledger.spent(dataset))}, all jobs composed"),
                ("left for one more job", f"epsilon {number(ledger.remaining(dataset))}"),
                ("left of its limits", _by_law(limits, left)),
            ]
        )
        rows = tuple(
            (
                job.job,
                job.study,
                "open: all reserved" if job.is_open else "closed",
                len(job.rounds),
                _CHARGED[job.tariff.kind],
                accounting.epsilon(job.charged, cap.delta),
            )
            for job in ledger.jobs(dataset)
            if job.is_open or job.rounds  # else it held a place while a count was bought
        )
        headings = ("job", "study", "state", "rounds", "charged", "epsilon if it were alone")
        out.table(Table("Jobs; costs compose, so they do not add up", headings, rows))
    totals = {name: value for name, value in ledger.export().items() if name != "entries"}
    out.document({"command": "budget show", "ledger": args.ledger, **totals})
    return 0


def _by_law(limits: Limits, cost: Cost) -> str:
    """Return a part of the limits as what it is worth to jobs of each law."""
    words = []
    if limits.room.mu_squared:
        gaussian = accounting.gdp_epsilon(math.sqrt(cost.mu_squared), limits.cap.delta)
        words.append(f"epsilon {number(gaussian)} for Gaussian noise")
    if limits.room.pure_epsilon:
        words.append(f"epsilon {number(cost.pure_epsilon)} for other noise")
    if limits.room.failure_delta:
        words.append(f"delta {cost.failure_delta:.2g} for jobs charged as a whole")
    return ", ".join(words)


def _export(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    ledger.verify()
    document = ledger.export()
    if args.out:
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        out.say(f"written  {args.out}")
        out.document({"command": f"{args.command} export", "file": args.out})
    elif not args.quiet:
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 0


def _cap(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    before = ledger.cap(args.dataset)
    after = Budget(args.epsilon, before.delta if args.delta is None else args.delta)
    ledger.change_cap(args.dataset, after)
    out.say(f"lifetime cap of {args.dataset}: {before} -> {after}")
    if after.epsilon > before.epsilon or after.delta > before.delta:
        out.say("What is promised is the larger one now, also for all that was released before.")
    out.document(
        {
            "command": "budget cap",
            "dataset": args.dataset,
            "before": {"epsilon": before.epsilon, "delta": before.delta},
            "after": {"epsilon": after.epsilon, "delta": after.delta},
        }
    )
    return 0


def _close(args: argparse.Namespace, ledger: Ledger, out: Output) -> int:
    ledger.close(args.job)
    ledger.forget_frames(args.job)
    out.say(f"closed  {args.job}: what left stays charged, the rest is free again")
    out.document({"command": "budget close", "job": args.job})
    return 0
