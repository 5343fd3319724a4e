"""What commands that release something share: pay, run, write, show."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.app.jobs import Account, JobResult, run_job
from cloister.app.report import as_table, number, render_report, write_report
from cloister.app.report.forecast import plan_warnings
from cloister.app.report.summary import summarise
from cloister.app.report.text import warnings_of
from cloister.app.stability import stability
from cloister.app.watching import PROGRESS
from cloister.cli.options import (
    check_layouts,
    default_ledger,
    job_options,
    plan_of,
    schemas_of,
    source_of,
)
from cloister.cli.output import Output, ask
from cloister.core.display import Bars, Curve, Display, Heatmap, Table
from cloister.core.errors import BudgetExceeded, DataError, DataLossWarning, PlanError
from cloister.core.files import write_text
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Cost, Limits, Split, cheapest
from cloister.protocol.task import Task, steps_of
from cloister.tasks.clustering.clusters import records_left_out

if TYPE_CHECKING:
    import pandas as pd

    from cloister.data import Records
    from cloister.protocol.plan import Plan

NOT_COUNTED = (
    "Not counted there: what another user, another machine or another ledger spends, and what "
    "Python code releases without this ledger."
)
_LONG_CURVE = 15  # places; more are for the report's picture
_PACKED = (".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class Charge:
    """Where a job is paid; `path` is the ledger's file."""

    account: Account
    path: Path
    study: str

    def lines(self) -> list[tuple[str, str]]:
        """Return what the ledger says of the data set, for people."""
        ledger, dataset = self.account.ledger, self.account.dataset
        cap, spent = ledger.cap(dataset), ledger.spent(dataset)
        lines = [
            ("data set", dataset),
            ("study", self.study),
            ("ledger", self.path.name),
            ("lifetime cap", f"epsilon {number(cap.epsilon)} at delta {cap.delta:.2g}"),
            ("spent by all jobs together", f"epsilon {number(spent)}"),
            ("left for one more job", left_for_one_more(ledger.remaining(dataset))),
        ]
        if (limit := ledger.cap(dataset, self.study)) != cap:
            lines.append(("cap of this study", f"epsilon {number(limit.epsilon)}"))
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return what the ledger says of the data set, for programs."""
        ledger, dataset = self.account.ledger, self.account.dataset
        cap = ledger.cap(dataset)
        return {
            "ledger": str(self.path),
            "dataset": dataset,
            "study": self.study,
            "cap_epsilon": cap.epsilon,
            "delta": cap.delta,
            "spent_epsilon": ledger.spent(dataset),
            "remaining_epsilon": ledger.remaining(dataset),
        }


def release(
    args: argparse.Namespace, task: type[Task], options: Mapping[str, Any], out: Output
) -> tuple[JobResult, Charge | None]:
    """Run a job over files: every check first, then the ledger, then the records."""
    schema = Schema.load(args.schema)
    files = name_silos(args.files)
    plan = plan_of(args, task, schema, files, options)
    # without a number it is a plan for the fewest records
    for warning in plan_warnings(plan, schema, sized=args.nominal_n is not None):
        out.warn(warning)
    records = _read(args, files, schema, options, out)
    prepare_folder(args.out)
    charge = open_charge(args, schema, plan, out)
    with out.progress() as on_round, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)  # printed above
        result = run_job(
            task,
            schema,
            records,
            epsilon=args.epsilon,
            delta=args.delta,
            nominal_n=args.nominal_n,
            account=charge.account if charge else None,
            on_round=on_round,
            max_loss=args.max_loss,
            **job_options(args),
            **options,
        )
    return result, charge


def name_silos(files: Iterable[Path]) -> dict[str, Path]:
    """Name each file's silo like the file; files of one name get a number."""
    silos: dict[str, Path] = {}
    for path in files:
        if path.resolve() in {other.resolve() for other in silos.values()}:
            raise PlanError(f"file {str(path)!r} is given twice; its records would count twice.")
        stem = Path(path.stem).stem if path.suffix.lower() in _PACKED else path.stem
        name, number_of = stem or path.name, 2
        while name in silos:
            name, number_of = f"{stem}-{number_of}", number_of + 1
        silos[name] = path
    return silos


def prepare_folder(folder: Path) -> None:
    """Make the folder for results and try to write there, before anything is spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"folder {os.fspath(folder)!r} cannot be written: {error.strerror}; give another --out."
        ) from None


def finish(
    result: JobResult,
    charge: Charge | None,
    folder: Path,
    out: Output,
    *,
    schema: Schema | None = None,
    written: Mapping[str, Path] | None = None,
    reruns: int | None = None,
    beside: Table | None = None,
) -> dict[str, Any]:
    """Write model, tables and report, show what was released and its cost; return the document.

    Tables in the words and units of a schema are written if it is given. Files that were `written`
    before are listed, too. The stability of a clustering is worked out from so many `reruns`, if
    any. A table that is no release of private records stands `beside`.
    """
    for warning in warnings_of(result):
        out.warn(warning)
    files = _write(result, schema, folder)
    again = None if reruns is None else stability(result, reruns)
    files["report"] = folder / "report.html"
    lines = charge.lines() if charge else ()
    write_report(result, files["report"], budget_lines=lines, stability=again, beside=beside)
    files |= written or {}
    more = () if again is None else (again.table(result.results["centres"], result.plan.columns),)
    _show(result, charge, out, (*more, beside) if beside else more)
    out.say()
    for path in files.values():
        out.say(f"written  {path}")
    document = _document(result, charge, files)
    if charge:
        charge.account.ledger.dispose()
    return document | ({"stability": asdict(again)} if again else {})


def _read(
    args: argparse.Namespace,
    files: Mapping[str, Path],
    schema: Schema,
    options: Mapping[str, Any],
    out: Output,
) -> dict[str, Records]:
    """Read every silo's file; refuse to lose too much, and tell the owner what is lost."""
    from cloister.data import read_source
    from cloister.data.loss import check_max_loss

    check_max_loss(args.max_loss)
    check_layouts(files.values(), args.baskets)
    sources = {name: source_of(path, args.baskets) for name, path in files.items()}
    schemas = schemas_of(schema, files.values(), args.reading)
    given = {"columns": args.columns, "cache_dir": args.cache_dir}
    with out.reading() as counter:
        found = {
            name: read_source(source, schemas[files[name]], on_rows=counter(name), **given)
            for name, source in sources.items()
        }
    check_loss(args, found, schema, options, out)
    return found


def check_loss(
    args: argparse.Namespace,
    records: Mapping[str, Records],
    schema: Schema,
    options: Mapping[str, Any],
    out: Output,
) -> None:
    """Raise a DataError where too much is left out, before a ledger is opened; tell of the rest."""
    from cloister.data import loss_notice, refuse_loss, reports_of, roles_of

    names = schema.names if args.columns is None else schema.select(args.columns).names
    reports = reports_of(records)
    refuse_loss(reports, roles_of(options, names), args.max_loss)
    if os.environ.get(PROGRESS) == "lines":
        return  # a console has shown it, and keeps what is said here in a file
    for notice in filter(None, map(loss_notice, reports)):
        out.tell_owner(notice)


def open_charge(
    args: argparse.Namespace,
    schema: Schema,
    plan: Plan,
    out: Output,
    *,
    silo: str | None = None,
) -> Charge | None:
    """Open the ledger, and the data set in it if that is new; refuses before it changes a file.

    The ledger of one `silo` has its name in the file's name.
    """
    from cloister.privacy.ledger import Ledger

    if plan.budget is None:
        return None
    path: Path = args.ledger or default_ledger()
    if silo is not None:
        path = path.with_stem(f"{path.stem}.{silo}")
    ledger = Ledger(path) if path.exists() else None
    if ledger is not None and schema.dataset in ledger.datasets():
        _check_limits(args, ledger.limits(schema.dataset), schema.dataset)
    else:
        whole = Budget(_new_cap(args, schema, plan.budget, path), plan.budget.delta)
        split = _new_split(args, plan, whole)
        if not args.ledger:
            with suppress(OSError):  # that the file cannot be made is the ledger's to say
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        ledger = ledger or Ledger(path)
        ledger.open_dataset(schema.dataset, cap=whole, unit=schema.unit, split=split)
        out.say(
            f"Data set {schema.dataset!r} is new in ledger {path}, with the lifetime cap {whole}. "
            f"{NOT_COUNTED}"
        )
    return Charge(Account(ledger, schema.dataset, args.confirm_same_content), path, args.study)


def _check_limits(args: argparse.Namespace, limits: Limits, dataset: str) -> None:
    """Refuse a cap, or a split of it, that is not the one in the ledger."""
    split = Split.given(limits.cap, args.pure_share, args.failure_share) or limits.split
    cap = limits.cap.epsilon if args.cap_epsilon is None else args.cap_epsilon
    if (cap, split) != (limits.cap.epsilon, limits.split):
        raise PlanError(
            f"cap_epsilon of data set {dataset!r} is {limits.cap.epsilon:g} in the ledger, with "
            f"{limits.split}, got {cap:g} with {split}; leave cap_epsilon, pure_share and "
            "failure_share out, or change the cap with 'cloister budget cap'."
        )


def _new_split(args: argparse.Namespace, plan: Plan, cap: Budget) -> Split:
    """Return the limits of a new data set, fixed from then on; they must hold its first job.

    If its cap is the budget of this job, they are those that suit the job.
    """
    events, fitting = plan.events(), Split.fitting(plan.events(), cap)
    default = fitting if cap == plan.budget else Split.default(cap)
    split = Split.given(cap, args.pure_share, args.failure_share) or default
    if cheapest(events, [(Limits(cap, split), Cost())]) is None:
        raise BudgetExceeded(
            f"the limits of a cap of {cap} with {split} do not hold this job; give --pure-share "
            f"{fitting.pure:g} --failure-share {fitting.failure:g}, or a larger cap."
        )
    return split


def _new_cap(args: argparse.Namespace, schema: Schema, budget: Budget, path: Path) -> float:
    """Return the lifetime cap of a data set that the ledger does not know yet."""
    cap: float | None = args.cap_epsilon
    if cap is None and sys.stderr.isatty():
        # once: later runs find the cap in the ledger
        answer = ask(
            f"Data set {schema.dataset!r} is new here. How much may everything that is ever "
            f"released from it cost together? This run costs epsilon {budget.epsilon:g}.\n"
            "Lifetime cap, epsilon: "
        )
        with suppress(ValueError):
            cap = None if answer is None else float(answer)
    if cap is None:
        raise PlanError(
            f"cap_epsilon must be given: data set {schema.dataset!r} is new in ledger "
            f"{os.fspath(path)!r}, and every data set has a lifetime cap; add --cap-epsilon."
        )
    if cap < budget.epsilon:
        raise PlanError(
            f"cap_epsilon must be at least epsilon={budget.epsilon:g}, got {cap:g}; lower one or "
            "raise the other."
        )
    return cap


def _write(result: JobResult, schema: Schema | None, folder: Path) -> dict[str, Path]:
    """Write the model first, so that what was paid for is safe whatever happens later."""
    files = {"model": folder / "model.json"}
    result.save(files["model"])
    if result.results.keys() >= {"centres", "low", "high", "sizes"}:
        files["centres"] = folder / "centres.csv"
        _write_centres(result, files["centres"])
    last = (*steps_of(result.plan.task),)[-1].name
    if last in _TABLES and schema is not None:
        for name, table in _TABLES[last](result, schema).items():
            files[name] = folder / f"{name}.csv"
            table.to_csv(files[name], index=False, lineterminator="\n")
    return files


def _write_centres(result: JobResult, path: Path) -> None:
    """Write one row per centre: its noisy size and its columns, each with its interval."""
    results, task = result.results, result.plan.task
    columns = getattr(task, "reaching", result.plan.columns)  # of a pipeline, the last step's
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        heading = (cell for name in columns for cell in (name, f"{name} low", f"{name} high"))
        writer.writerow(("cluster", "noisy size", "noisy size ±", *heading))
        cells = np.stack([results["centres"], results["low"], results["high"]], axis=2)
        for j, centre in enumerate(cells):
            row = (results["sizes"][j], results["size_half_width"][j], *centre.ravel())
            writer.writerow((j, *(repr(float(cell)) for cell in row)))


def _rules(result: JobResult, _: Schema) -> dict[str, pd.DataFrame]:
    """Return frequent itemsets and rules; the items of a set have " + " between them."""
    from cloister.estimators.association import RuleSet

    found = RuleSet(result)
    tables = {"itemsets": found.itemsets_frame(), "rules": found.to_frame()}
    for table in tables.values():
        for column in table.columns.intersection(["items", "antecedent", "consequent"]):
            table[column] = table[column].map(" + ".join)
    return tables


def _look_alike(result: JobResult, schema: Schema) -> dict[str, pd.DataFrame]:
    """Return records that are drawn here from what was released; no party sends any."""
    from cloister.estimators.synthesiser import records_of

    return {"synthetic": records_of(result, schema)}


_TABLES: Mapping[str, Callable[[JobResult, Schema], dict[str, pd.DataFrame]]] = {
    "apriori": _rules,
    "synthesise": _look_alike,
}
"""What else a job leaves, by its last step: tables for people, by the names of their files."""


def _show(result: JobResult, charge: Charge | None, out: Output, more: Sequence[Table]) -> None:
    plan = result.plan
    _show_summary(result, out)
    show_displays(result, out)
    for table in more:
        out.table(table)
    lines = [
        ("silos", ", ".join(plan.silos)),
        ("rounds", f"{plan.rounds}, each with {_present(result)} of {len(plan.silos)} silos"),
        ("noise from", result.noise),
        ("unit of privacy", plan.unit),
    ]
    if charge:
        lines.append(("charged to", f"{charge.path}"))
        lines += [(f"  {name}", value) for name, value in charge.lines() if name != "ledger"]
    out.pairs(*lines)


def show_federated(
    result: JobResult,
    out: Output,
    report: Path | None = None,
    cost: Sequence[tuple[str, str]] = (),
) -> None:
    """Show what a job over a network released, and write its report with what it cost here."""
    plan = result.plan
    _show_summary(result, out)
    show_displays(result, out)
    out.pairs(
        ("job", plan.run_id),
        ("silos", ", ".join(plan.silos)),
        ("rounds", f"{plan.rounds}, each with at least {plan.min_silos} silos"),
        ("noise from", result.noise),
        ("unit of privacy", plan.unit),
    )
    if report:
        write_text(report, render_report(result, budget_lines=cost, in_process=False))
        out.say(f"written  {report}")


def left_for_one_more(epsilon: float) -> str:
    """Return how much one more job may cost, which is more than cap and spending seem to leave."""
    return f"epsilon {number(epsilon)} (jobs together cost less than the sum of their epsilons)"


def _show_summary(result: JobResult, out: Output) -> None:
    """Show what a reader wants to know first, in three lines."""
    for name, sentence in summarise(result).lines:
        out.paragraph(f"{name:<9} {sentence}")
    out.say()


def show_displays(result: JobResult, out: Output) -> None:
    """Show the tables and short pictures of a result, and warn of records that are left out."""
    if left_out := records_left_out(result.results, result.plan.nominal_n):
        out.warn(left_out)
    displays = result.plan.task.displays(result.results, result.plan.columns)
    # a matrix is wide: it is shown where nothing else says the same numbers
    matrices = [display for display in displays if isinstance(display, Heatmap)]
    named = {row[0] for one in displays if isinstance(one, Table) for row in one.rows}
    for display in [display for display in displays if _is_short(display)] or matrices:
        if not (isinstance(display, Bars) and named.issuperset(display.names)):
            out.table(as_table(display))


def _is_short(display: Display) -> bool:
    if isinstance(display, Curve):
        return len(display.places) <= _LONG_CURVE
    return isinstance(display, Table | Bars)


def _present(result: JobResult) -> str:
    """Say how many silos the rounds had."""
    fewest, most = min(map(len, result.survivors)), max(map(len, result.survivors))
    return str(most) if fewest == most else f"{fewest} to {most}"


def _document(
    result: JobResult, charge: Charge | None, files: Mapping[str, Path]
) -> dict[str, Any]:
    plan = result.plan
    budget = plan.budget
    return {
        "task": plan.task.name,
        "private": not warnings_of(result),
        "silos": plan.silos,
        "survivors": result.survivors,
        "rounds": plan.rounds,
        "unit": plan.unit,
        "budget": {"epsilon": result.epsilon(), "delta": budget.delta} if budget else None,
        "charged": charge.to_dict() if charge else None,
        "noise": result.noise,
        "columns": plan.columns,
        "results": result.results,
        "plan_digest": plan.digest.hex(),
        "files": files,
    }
