"""``cloister budget``: the caps and charges in a ledger, and actions on its file."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from cloister.app.payment import NOT_COUNTED, default_ledger, left_for_one_more
from cloister.cli.ledger import Document, add_ledger_actions, on_ledger
from cloister.cli.output import Output
from cloister.cli.parsers import actions
from cloister.core.declared import Range
from cloister.core.display import Table
from cloister.core.numerals import number
from cloister.privacy import accounting
from cloister.privacy.budget import Budget, checked
from cloister.privacy.calibration import gdp_mu_for, gdp_part
from cloister.privacy.events import GaussianEvent
from cloister.privacy.filter import Cost, Limits
from cloister.privacy.ledger import Ledger
from cloister.tasks.options import two_digits

# The ledger's names of pricing rules, in words for its owner.
_CHARGED = {"apart": "by each noise", "covered": "as Gaussian", "whole": "as a whole"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    show = add("show", "show caps, spent and remaining budgets of each data set", on_ledger(_show))
    export = add_ledger_actions(add)
    # Only actions that change nothing have a default ledger.
    for action in (show, export):
        action.add_argument(
            "ledger",
            type=Path,
            nargs="?",
            metavar="LEDGER",
            default=default_ledger(),
            help="default: the ledger that commands charge",
        )
    advise = add("advise", "show the cap that planned jobs need, before the first job", _advise)
    advise.add_argument("--epsilon", type=float, required=True, metavar="E", help="of each job")
    advise.add_argument("--delta", type=float, default=1e-6, metavar="D", help="default: 1e-6")
    advise.add_argument("--jobs", type=int, default=10, metavar="N", help="default: 10")
    advise.add_argument(
        "--analysts",
        type=int,
        default=1,
        metavar="N",
        help="number that share the cap (default: 1)",
    )
    cap = add("cap", "change the lifetime cap of a data set, or of a study", on_ledger(_cap))
    close = add("close", "end a job that crashed; sent values stay charged", on_ledger(_close))
    for action in (cap, close):
        action.add_argument("ledger", type=Path, metavar="LEDGER")
    close.add_argument("job", metavar="JOB", help="id of the job in 'budget show'")
    cap.add_argument("dataset", metavar="DATASET")
    cap.add_argument("--epsilon", type=float, required=True, metavar="E")
    cap.add_argument("--delta", type=float, metavar="D", help="default: unchanged")
    cap.add_argument("--study", metavar="STUDY", help="change the cap of this study instead")


def _show(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    ledger.verify()
    out.say(f"ledger {args.ledger}: every entry verified, head {ledger.head()}")
    # The remaining budget does not cover all releases of the data.
    out.say(NOT_COUNTED)
    tasks = ledger.tasks()
    for dataset in ledger.datasets():
        cap, limits = ledger.cap(dataset), ledger.limits(dataset)
        # Per noise distribution: a single epsilon would hide that one of them is used up.
        left = limits.left(ledger.cost(dataset))
        out.say()
        out.pairs(
            ("data set", dataset),
            ("unit of privacy", ledger.unit(dataset)),
            ("lifetime cap", str(cap)),
            ("its limits", _by_law(limits, limits.room)),
            ("spent", f"epsilon {number(ledger.spent(dataset))}, all jobs composed"),
            ("left for one more job", left_for_one_more(ledger.remaining(dataset))),
            ("left of its limits", _by_law(limits, left)),
            *(
                (f"cap of study {study!r}", _of_study(ledger, dataset, study))
                for study in ledger.study_caps(dataset)
            ),
        )
        rows = tuple(
            (
                job.job,
                tasks.get(job.job, ""),
                job.study,
                job.reserved_at[:10],
                "open: all reserved" if job.is_open else "closed",
                len(job.rounds),
                _CHARGED[job.tariff.kind],
                accounting.epsilon(job.charged, cap.delta),
            )
            for job in ledger.jobs(dataset)
            if job.counts
        )
        headings = (
            "job",
            "task",
            "study",
            "reserved on",
            "state",
            "rounds",
            "charged",
            "epsilon of the job alone",
        )
        out.table(Table("Jobs; costs compose, so they do not add up", headings, rows))
    totals = {name: value for name, value in ledger.export().items() if name != "entries"}
    return {"ledger": args.ledger, **totals, "tasks": tasks}


def _of_study(ledger: Ledger, dataset: str, study: str) -> str:
    left = left_for_one_more(ledger.remaining(dataset, study))
    spent = number(ledger.spent(dataset, study))
    return f"{ledger.cap(dataset, study)}; spent {spent}; left for one more job {left}"


def _by_law(limits: Limits, cost: Cost) -> str:
    """Return a cost within the limits as the budget of jobs with each noise distribution."""
    budgets = []
    if limits.room.mu_squared:
        gaussian = accounting.gdp_epsilon(math.sqrt(cost.mu_squared), limits.cap.delta)
        budgets.append(f"epsilon {number(gaussian)} for Gaussian noise")
    if limits.room.pure_epsilon:
        budgets.append(f"epsilon {number(cost.pure_epsilon)} for other noise")
    if limits.room.failure_delta:
        budgets.append(f"delta {cost.failure_delta:.2g} for jobs charged as a whole")
    return ", ".join(budgets)


def _advise(args: argparse.Namespace, out: Output) -> Document:
    counts = Range(1, 10_000)
    jobs = int(checked("--jobs", args.jobs, counts))
    total = jobs * int(checked("--analysts", args.analysts, counts))
    each = Budget(args.epsilon, args.delta)
    # Rounded up to two digits: a cap that is rounded down would refuse the last job.
    caps = {n: two_digits(gdp_part(each, n).epsilon) for n in {1, 2, 5, 10, 20, 50, jobs, total}}
    rows = tuple(
        (f"{n:,}", number(cap), number(n * each.epsilon), _odds(Budget(cap, each.delta)))
        for n, cap in sorted(caps.items())
    )
    headings = ("jobs", "lifetime cap", "sum of epsilons", "attacker right at most")
    out.table(Table(f"Jobs of epsilon {number(each.epsilon)}, Gaussian noise", headings, rows))
    out.paragraph(
        "The cap is the guarantee for every person in the data, for all jobs together. Set it "
        "before the first job, to the largest value that you can justify to them; "
        f"{total:,} such jobs need {number(caps[total])}."
    )
    if total > jobs:
        out.paragraph(
            "Give each analyst a separate study with studies_of in the policy of each silo, and "
            f"set max_epsilon_per_study = {number(caps[jobs])}."
        )
    return {"cap": caps[total], "delta": each.delta, "max_epsilon_per_study": caps[jobs]}


def _odds(cap: Budget) -> str:
    """Return an attacker's highest rate of success after Gaussian jobs have used up a cap."""
    # A rate of success is easier to judge than an epsilon.
    mu = gdp_mu_for(cap.epsilon, cap.delta)
    return f"{math.ceil(100 * accounting.attacker_odds(GaussianEvent(1 / mu)))} in 100"


def _cap(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    before = ledger.cap(args.dataset, args.study)
    after = Budget(args.epsilon, before.delta if args.delta is None else args.delta)
    if args.study is not None:
        ledger.study_cap(args.dataset, args.study, after)
        out.say(f"cap of study {args.study!r} of {args.dataset}: {before} -> {after}")
        # An agent writes the cap of its settings before each job.
        out.say("Set max_epsilon_per_study in silo.toml too, if it is there: it replaces this cap.")
    else:
        ledger.change_cap(args.dataset, after)
        out.say(f"lifetime cap of {args.dataset}: {before} -> {after}")
        out.say(
            "A silo starts only with the same cap in silo.toml: "
            f"cap_epsilon = {after.epsilon:g}, cap_delta = {after.delta:g}."
        )
        # A larger cap weakens a guarantee that was given to persons before.
        if after.epsilon > before.epsilon or after.delta > before.delta:
            out.say("The larger cap is the guarantee from now on, also for all earlier releases.")
    budgets = {"before": before, "after": after}
    values = {key: {"epsilon": b.epsilon, "delta": b.delta} for key, b in budgets.items()}
    return {"dataset": args.dataset, **values}


def _close(args: argparse.Namespace, ledger: Ledger, out: Output) -> Document:
    ledger.close(args.job)
    ledger.forget_frames(args.job)  # a closed job never answers again
    out.say(f"closed  {args.job}: sent values stay charged, the rest is free again")
    return {"job": args.job}
