"""``cloister audit``: try to refute the privacy claim of a method, on generated records."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cloister.audit import Audit, audit_task
from cloister.audit.checks import case_of
from cloister.audit.packages import Method, methods, mutants
from cloister.audit.report import summary, verdict, write_report
from cloister.cli.options import add_set_argument, load_task, refuse_given, task_options
from cloister.cli.output import Output
from cloister.core.declared import Range, Whole, declared
from cloister.core.deprecated import INSTALL_LAB_HINT
from cloister.core.display import Table
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.protocol.task import Task
from cloister.tasks import installed

ALARM, NO_POWER = 1, 8
"""Exit codes if a claim is refuted or a mutant is not, and if the audit has no power."""


@declared
class _Sizes:
    """The size of an audit."""

    # Declared, so that a wrong size is one sentence before the first run.
    n_features: Whole
    n_clusters: Whole
    nominal_n: Whole
    runs: Annotated[int, Range(20)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"exit code {ALARM} if a claim is refuted, {NO_POWER} if no claim is refuted but the "
        "audit has no power"
    )
    add = parser.add_argument
    add(
        "method",
        nargs="?",
        metavar="METHOD",
        help=", ".join(["a private task of 'cloister tasks'", *methods()])
        + ", or your own class: FILE.py:CLASS",
    )
    add("--all", action="store_true", help="audit all methods that claim to be private")
    add("--mutants", action="store_true", help="check that methods with planted errors are caught")
    # The name in the version before.
    add("--twins", dest="mutants", action="store_true", help=argparse.SUPPRESS)
    add("--epsilon", type=float, default=4.0, metavar="E", help="claimed epsilon (default: 4)")
    add("--delta", type=float, default=1e-6, metavar="D", help="claimed delta (default: 1e-6)")
    add(
        "--runs",
        type=int,
        default=2000,
        metavar="N",
        help="runs on each of two data sets (default: 2000)",
    )
    add("--columns", type=int, default=2, metavar="D", help="number of columns (default: 2)")
    add("--k", type=int, default=2, help="number of clusters (default: 2)")
    add("--nominal-n", type=int, default=200, metavar="N", help="number of records (default: 200)")
    add("--schema", type=Path, help="columns and unit of privacy, instead of the example's")
    add_set_argument(parser)
    add("--out", type=Path, metavar="DIR", help="folder for audit.md and a picture of each method")


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Run the audits and show their findings."""
    chosen = bool(args.method) + args.all
    if chosen > 1 or not (chosen or args.mutants):
        raise PlanError(
            "give one METHOD, --all or --mutants; `cloister audit --help` lists the methods."
        )
    # Mutants come with the laboratory, so they are loaded only on request.
    others, broken = methods(), mutants() if args.mutants else ()
    if args.mutants and not broken:
        raise PlanError(f"mutants are part of the laboratory: {INSTALL_LAB_HINT}.")
    if args.all or args.method in others:
        refuse_given(
            args.set or args.schema, "--set and --schema are valid only for one METHOD, a task"
        )
    sizes = _Sizes(
        n_features=args.columns, n_clusters=args.k, nominal_n=args.nominal_n, runs=args.runs
    )
    audits = []
    for audit in _audited(args, others, asdict(sizes)):
        audits.append(audit)
        out.say(f"{audit.method}: {audit.details}")
        for finding in audit.findings:
            state = "ALARM" if finding.alarms else "ok"
            out.say(f"  {state:5}  {finding.check}: {finding.evidence}")
    # An audit that does not catch mutants proves nothing, so both can run together.
    caught = {mutant: mutant.caught for mutant in broken}
    if audits:
        out.table(summary(audits))
    if caught:
        rows = tuple((t.name, f.check if f else "NOT CAUGHT") for t, f in caught.items())
        out.table(Table("Mutants", ("mutant", "caught by"), rows))
    files = []
    if args.out:
        files = write_report(audits, args.out, _command(args), caught)
        out.say(f"written  {counted(len(files), 'file')} in {args.out}")
    refuted = [audit.method for audit in audits if audit.alarms]
    missed = [mutant.name for mutant, finding in caught.items() if not (finding and finding.alarms)]
    powerless = [audit.method for audit in audits if audit.no_power and not audit.alarms]
    for method in powerless:
        out.warn(f"the audit of {method} has no power: its runs show less than 10 % of the claim")
    for method in refuted:
        out.warn(f"the claim of {method} is refuted")
    for name in missed:
        out.warn(f"a mutant was not caught: {name}")
    if refuted or missed:  # takes precedence over an audit without power
        out.code = ALARM
    elif powerless:
        out.code = NO_POWER
    return {
        "audits": [_described(audit) for audit in audits],
        "mutants": {
            mutant.name: finding.check if finding else None for mutant, finding in caught.items()
        },
        "files": files,
    }


def _tasks() -> dict[str, type[Task]]:
    """Return the installed tasks that claim to be private."""
    return {name: task for name, task in installed().items() if task.private}


def _audited(
    args: argparse.Namespace, others: Mapping[str, Method], sizes: Mapping[str, Any]
) -> Iterator[Audit]:
    """Yield the requested audits as they finish."""
    names = [args.method] if args.method else []
    # Only methods that claim to be private have a claim to refute.
    if args.all:
        names = [*_tasks(), *(name for name, other in others.items() if other.private)]
    budget = Budget(args.epsilon, args.delta)
    for name in names:
        if name in others:
            yield others[name].audit(budget, **sizes)
        else:
            # A task is audited from the record to the release; other methods bring their own audit.
            task = load_task(name)
            schema = Schema.load(args.schema) if args.schema else None
            options = None
            if args.set:  # an option not given keeps the value of the task's example
                example = case_of(task, args.columns, args.k, None, schema)
                options = {**example.options, **task_options(task, args.set)}
            yield audit_task(task, budget, options=options, schema=schema, **sizes)


def _described(audit: Audit) -> dict[str, Any]:
    """Return an audit as values for JSON."""
    keys = ("method", "details", "pair", "reach", "epsilon_seen", "false_alarm")
    return {
        **{key: getattr(audit, key) for key in keys},
        "verdict": verdict(audit),
        "epsilon": audit.budget.epsilon,
        "delta": audit.budget.delta,
        "findings": [asdict(finding) for finding in audit.findings],
        "bounds": [asdict(check) for check in audit.checks],
    }


def _command(args: argparse.Namespace) -> str:
    """Return the command line for the report, without its output folder."""
    words = ["cloister", "audit", *filter(None, [args.method])]
    words += [f"--{flag}" for flag in ("all", "mutants") if getattr(args, flag)]
    claim = f"--epsilon {args.epsilon:g} --delta {args.delta:g}"
    size = f"--columns {args.columns} --k {args.k} --nominal-n {args.nominal_n} --runs {args.runs}"
    # Only the file's name: a published report should not show folders of this machine.
    schema = [f"--schema {args.schema.name}"] if args.schema else []
    return " ".join([*words, claim, size, *schema, *(f"--set {shlex.quote(s)}" for s in args.set)])
