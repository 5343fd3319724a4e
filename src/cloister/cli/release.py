"""The steps of every command over files: plan, read, charge, run, write and show."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from cloister.app.coefficients import coefficients_of
from cloister.app.files import prepare_folder, refuse_results, write_release
from cloister.app.forecast import plan_warnings
from cloister.app.payment import Charge
from cloister.app.present import Presentation, present
from cloister.app.progress import warnings_to
from cloister.app.release import Release
from cloister.app.report.notebook import without_repeats
from cloister.app.report.page import About, write_report
from cloister.app.text import as_table, legend_of, noise_of
from cloister.app.unknown import results_with_reasons
from cloister.cli import CHARGED
from cloister.cli.options import files_of, job_of, payment_of
from cloister.cli.output import Output
from cloister.core.display import Bars, Curve, Display, Heatmap, Table
from cloister.data.schema import Schema
from cloister.protocol.task import Task

_LONG_CURVE = 15  # points; longer curves are only in the report's picture


def run_over_files(
    args: argparse.Namespace, task: type[Task], options: Mapping[str, Any], out: Output
) -> tuple[Release, Charge | None]:
    """Run a job over files: first all checks, then the records, then the ledger."""
    refuse_results(args.out)  # a paid release is not replaced
    files, payment = files_of(args), payment_of(args, out)
    job = job_of(args, task, Schema.load(args.schema), files.paths, options)
    # Before the records are read: the user may stop a plan that cannot give a useful result.
    for warning in plan_warnings(job.plan, job.schema, sized=job.nominal_n is not None):
        out.warn(warning)
    # Reading large files takes minutes.
    with out.reading() as counter:
        records = files.read(job.schema, job.columns, counter=counter)
    for notice in job.loss_notices(records):
        # It counts rows exactly, so it must not be in a document that may be shared.
        out.warn_locally(notice)
    prepare_folder(args.out)  # before the charge, since results must have a place
    charge = payment.open(job.schema, job.plan)
    with out.progress() as on_round, warnings_to(out.warn_locally):
        account = charge.account if charge else None
        with after_charge(charge):
            return job.run(records, account=account, on_round=on_round), charge


@contextmanager
def after_charge(charge: Charge | None, model: Path | None = None) -> Iterator[None]:
    """Note in an unexpected error that the budget is charged, which a repeat would do again."""
    before = charge and charge.to_dict()["spent_epsilon"]
    try:
        yield
    except Exception as error:
        # A job may also fail before its first charge.
        if charge and (model or charge.to_dict()["spent_epsilon"] > before):
            found = model and model.is_file()
            kept = f"the model is {str(model)!r}" if found else "no model was written"
            error.add_note(f"{CHARGED} and {kept}; correct the task with check_task first.")
        raise


def write_results(
    release: Release,
    charge: Charge | None,
    folder: Path,
    out: Output,
    *,
    schema: Schema | None = None,
    written: Mapping[str, Path] | None = None,
    comparison: Table | None = None,
) -> dict[str, Any]:
    """Write model, tables and report, show the release and its cost; return the document.

    With a schema, tables have its categories and units. The list of files includes those in
    `written`.
    """
    files = write_release(release, folder, schema)  # first, because the release is already charged
    shown = present(release, comparison=comparison)
    for warning in shown.warnings:
        out.warn(warning)
    files["report"] = folder / "report.html"
    write_report(
        release,
        files["report"],
        shown=shown,
        budget_lines=charge.lines() if charge else (),
        share=charge.share if charge else None,
        schema=schema,
    )
    files |= written or {}
    show_presentation(shown, out)
    out.pairs(*_facts(release, charge))
    out.say()
    # Last, so that the paths stay visible on the terminal.
    for path in files.values():
        out.say(f"written  {path}")
    document = _document(release, shown, charge, files)
    if charge:
        charge.close()
    return document


def show_federated(
    release: Release,
    out: Output,
    report: Path | None = None,
    folder: Path | None = None,
    **about: Unpack[About],
) -> None:
    """Show the release of a federated job, and write its report with what is known about it.

    Its model is written to a `folder`.
    """
    if folder:
        prepare_folder(folder)
        refuse_results(folder)
    plan, shown = release.plan, present(release)
    show_presentation(shown, out)
    out.pairs(
        ("job", plan.run_id),
        ("silos", ", ".join(plan.silos)),
        ("rounds", f"{plan.rounds}, each with at least {plan.min_silos} silos"),
        ("noise from", noise_of(release, in_process=False)),
        ("unit of privacy", plan.unit),
    )
    if report:
        # A report must not claim that all silos ran in one process.
        about |= {"shown": shown, "in_process": False}
        write_report(release, report, **about)
        out.say(f"written  {report}")
    for path in write_release(release, folder).values() if folder else ():
        out.say(f"written  {path}")


def show_presentation(shown: Presentation, out: Output) -> None:
    """Show the three summary sentences, then the tables and short charts."""
    for name, sentence in shown.lines:
        out.paragraph(f"{name:<9} {sentence}")
    out.say()
    show_displays(shown, out)


def show_displays(shown: Presentation, out: Output) -> None:
    """Show the tables and short charts of a release; warn with the remarks on its quality."""
    for remark in shown.remarks:
        out.warn(remark)
    displays = shown.displays
    # A matrix is wide, so it is shown only if no other display is short.
    matrices = [display for display in displays if isinstance(display, Heatmap)]
    named = {row[0] for table in displays if isinstance(table, Table) for row in table.rows}
    new = {id(display) for display in without_repeats(displays)}
    # A picture without a known number repeats none, and its rows say so.
    new |= {id(one) for one in displays if isinstance(one, Bars) and not _is_known(one)}
    tables = [
        as_table(display)
        for display in [display for display in displays if _is_short(display)] or matrices
        if not isinstance(display, Bars)
        or (id(display) in new and not named.issuperset(display.names))
    ]
    for table in tables:
        out.table(table)
    if legend := legend_of(tables):
        out.paragraph(legend)
        out.say()
    if shown.comparison:
        out.table(shown.comparison)


def _is_known(display: Bars) -> bool:
    return bool(np.isfinite(display.estimate.values).any())


def _is_short(display: Display) -> bool:
    if isinstance(display, Curve):
        return len(display.places) <= _LONG_CURVE
    return isinstance(display, Table | Bars)


def _facts(release: Release, charge: Charge | None) -> list[tuple[str, str]]:
    """Return the participants of a job and its charge."""
    plan = release.plan
    lines = [
        ("silos", ", ".join(plan.silos)),
        (
            "rounds",
            f"{plan.rounds}, each with {_present_silos(release)} of {len(plan.silos)} silos",
        ),
        ("noise from", release.noise),
        ("unit of privacy", plan.unit),
    ]
    if charge:
        lines += [("charged to", f"{charge.path}"), ("  job", plan.run_id)]
        lines += [(f"  {name}", value) for name, value in charge.lines() if name != "ledger"]
    return lines


def _present_silos(release: Release) -> str:
    """Return the number of silos in the rounds, or its range."""
    fewest, most = min(map(len, release.survivors)), max(map(len, release.survivors))
    return str(most) if fewest == most else f"{fewest} to {most}"


def _document(
    release: Release, shown: Presentation, charge: Charge | None, files: Mapping[str, Path]
) -> dict[str, Any]:
    plan, budget = release.plan, release.plan.budget
    return {
        "task": plan.task.name,
        "private": not shown.warnings,
        "silos": plan.silos,
        "survivors": release.survivors,
        "rounds": plan.rounds,
        "unit": plan.unit,
        "budget": {"epsilon": release.epsilon(), "delta": budget.delta} if budget else None,
        "charged": charge.to_dict() if charge else None,
        "noise": release.noise,
        "columns": plan.columns,
        "results": results_with_reasons(release),
        **coefficients_of(release),
        "plan_digest": plan.digest.hex(),
        "files": files,
    }
