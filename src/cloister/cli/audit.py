"""``cloister audit``: try to refute what a method claims, on records that are made up."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from cloister.audit import Audit, audit_task
from cloister.audit.checks import case_of
from cloister.audit.report import summary, verdict, write_report
from cloister.cli.output import Output, add_flags
from cloister.cli.run import add_set_argument, load_task, task_options
from cloister.display import Table
from cloister.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.schema import Schema
from cloister.tasks import TASKS
from cloister_lab.audit.curators import audit_method
from cloister_lab.audit.twins import TWINS
from cloister_lab.curator import METHODS

ALARM, NO_POWER = 1, 8
"""Exit codes if a claim is refuted, or a broken twin is not; and if nothing could be seen where
something should have been."""

_METHODS = (*(name for name, task in TASKS.items() if task.private), *METHODS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        f"exit code {ALARM} if a claim is refuted, {NO_POWER} if none is but runs showed nothing "
        "where they could have"
    )
    add = parser.add_argument
    shipped = ", ".join(_METHODS)
    add(
        "method", nargs="?", metavar="METHOD", help=f"{shipped}, or a class of yours: FILE.py:CLASS"
    )
    add("--all", action="store_true", help="all methods that say they are private")
    add("--twins", action="store_true", help="what is broken on purpose, and must be caught")
    add("--epsilon", type=float, default=4.0, metavar="E", help="what is claimed; default: 4")
    add("--delta", type=float, default=1e-6, metavar="D", help="default: 1e-6")
    add("--runs", type=int, default=2000, metavar="N", help="in each world; default: 2000")
    add("--columns", type=int, default=2, metavar="D", help="default: 2")
    add("--k", type=int, default=2, help="clusters; default: 2")
    add("--nominal-n", type=int, default=200, metavar="N", help="default: 200")
    add("--schema", type=Path, help="columns and unit of privacy, instead of made-up ones")
    add_set_argument(parser)
    add("--out", type=Path, metavar="DIR", help="for audit.md and a picture of each method")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Audit, say what was found, and return the exit code.

    Raises
    ------
    PlanError
        If nothing or too much is asked for, or no plan can be made.
    """
    if bool(args.method) + args.all != 1 and not (args.twins and not args.method and not args.all):
        raise PlanError(
            "one METHOD, --all or --twins must be given; `cloister audit --help` helps."
        )
    if args.runs < 20 or min(args.columns, args.k, args.nominal_n) < 1:
        raise PlanError("runs must be at least 20, columns, k and nominal-n at least 1.")
    if (args.set or args.schema) and (args.all or args.method in METHODS):
        raise PlanError("--set and --schema go with one METHOD that is a task.")
    out, audits = Output.of(args), []
    for audit in _audited(args):
        audits.append(audit)
        _say(audit, out)
    caught = {twin: twin.caught for twin in (TWINS if args.twins else ())}
    if audits:
        out.table(summary(audits))
    if caught:
        rows = tuple((t.name, f.check if f else "NOT CAUGHT") for t, f in caught.items())
        out.table(Table("Broken twins", ("twin", "caught by"), rows))
    files = []
    if args.out:
        files = write_report(audits, args.out, _command(args), caught)
        out.say(f"{len(files)} files are in {args.out}")
    refuted = [audit.method for audit in audits if audit.alarms]
    missed = [twin.name for twin, finding in caught.items() if finding is None]
    powerless = [audit.method for audit in audits if audit.no_power and not audit.alarms]
    for method in powerless:
        out.warn(f"the audit of {method} has no power: runs show under a tenth of its claim")
    for method in refuted:
        out.warn(f"the claim of {method} is refuted")
    for name in missed:
        out.warn(f"a broken twin was not caught: {name}")
    out.document(
        {
            "command": "audit",
            "audits": [_described(audit) for audit in audits],
            "twins": {twin.name: found.check if found else None for twin, found in caught.items()},
            "files": [str(file) for file in files],
        }
    )
    if refuted or missed:
        return ALARM
    return NO_POWER if powerless else 0


def _audited(args: argparse.Namespace) -> Iterator[Audit]:
    """Yield the audits that are asked for, as they are done."""
    names = [args.method] if args.method else []
    if args.all:
        names = [name for name in _METHODS if name not in METHODS or METHODS[name].private]
    sizes = {
        "n_features": args.columns,
        "n_clusters": args.k,
        "nominal_n": args.nominal_n,
        "runs": args.runs,
    }
    for name in names:
        if name in METHODS:
            yield audit_method(METHODS[name], Budget(args.epsilon, args.delta), **sizes)
        else:
            task = load_task(name)
            schema = Schema.load(args.schema) if args.schema else None
            options = None
            if args.set:  # on top of those of the task's own example
                example = case_of(task, args.columns, args.k, None, schema)
                options = {**example.options, **task_options(task, args.set)}
            budget = Budget(args.epsilon, args.delta)
            yield audit_task(task, budget, options=options, schema=schema, **sizes)


def _say(audit: Audit, out: Output) -> None:
    """Say what one audit found, a line for each check."""
    out.say(f"{audit.method}: {audit.details}")
    for finding in audit.findings:
        out.say(f"  {'ALARM' if finding.alarms else 'ok':5}  {finding.check}: {finding.evidence}")


def _described(audit: Audit) -> dict[str, object]:
    """Return an audit as JSON-able values."""
    return {
        "method": audit.method,
        "verdict": verdict(audit),
        "epsilon": audit.budget.epsilon,
        "delta": audit.budget.delta,
        "details": audit.details,
        "pair": audit.pair,
        "reach": audit.reach,
        "epsilon_seen": audit.epsilon_seen,
        "false_alarm": audit.false_alarm,
        "findings": [
            {"check": f.check, "alarms": f.alarms, "evidence": f.evidence} for f in audit.findings
        ],
        "bounds": [
            {"epsilon": c.epsilon, "delta": c.delta, "seen": c.seen, "least_delta": c.least_delta}
            for c in audit.checks
        ],
    }


def _command(args: argparse.Namespace) -> str:
    """Return what was called, but for where files go."""
    words = ["cloister", "audit", *filter(None, [args.method])]
    words += [f"--{flag}" for flag in ("all", "twins") if getattr(args, flag)]
    claim = f"--epsilon {args.epsilon:g} --delta {args.delta:g}"
    size = f"--columns {args.columns} --k {args.k} --nominal-n {args.nominal_n} --runs {args.runs}"
    own = [f"--schema {args.schema.name}"] if args.schema else []
    return " ".join([*words, claim, size, *own, *(f"--set {shlex.quote(s)}" for s in args.set)])
