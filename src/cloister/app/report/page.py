"""One self-contained HTML file, made of the template ``cloister/core/html/report.html``."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from os import PathLike
from pathlib import Path

from cloister.app.jobs import JobResult
from cloister.app.report import plots
from cloister.app.report.summary import summarise
from cloister.app.report.text import (
    UNCLEAR,
    UNCLEAR_NOTE,
    as_table,
    cell_text,
    listed,
    number,
    privacy_statement,
    remarks_of,
    warnings_of,
    who_saw_what,
)
from cloister.app.stability import Stability
from cloister.core.display import Display, Table
from cloister.core.html import page
from cloister.privacy.events import GaussianEvent, SampledGaussianEvent, mechanism_counts
from cloister.protocol.plan import Plan, noun_of
from cloister.tasks.clustering.clusters import movement
from cloister.tasks.preparation.pipeline import Pipeline

_INTERVALS = (
    " The small line in a cell places the value between the lowest and the highest of its column, "
    "with its interval."
)


def write_report(
    result: JobResult,
    path: str | PathLike[str],
    *,
    budget_lines: Sequence[tuple[str, str]] = (),
    in_process: bool = True,
    stability: Stability | None = None,
    beside: Table | None = None,
) -> None:
    """Write the report of a job as one HTML file.

    Parameters
    ----------
    path : path-like
        Replaced if it exists.
    budget_lines : sequence of (name, value), optional
        What the ledger says of the data set, such as its cap and what is left.
    in_process : bool
        Whether all parties ran in one process, which the report then says.
    stability : Stability, optional
        Of a clustering, if the report is to show it.
    beside : Table, optional
        What is no release of private records, such as the same answer on public ones.
    """
    text = render_report(
        result,
        budget_lines=budget_lines,
        in_process=in_process,
        stability=stability,
        beside=beside,
    )
    Path(path).write_text(text, encoding="utf-8")


def render_report(
    result: JobResult,
    *,
    budget_lines: Sequence[tuple[str, str]] = (),
    in_process: bool = True,
    stability: Stability | None = None,
    beside: Table | None = None,
) -> str:
    """Return the report of a job as HTML; parameters are those of :func:`write_report`."""
    plan = result.plan
    sights, sight_remarks = who_saw_what(plan, in_process=in_process)
    more = () if beside is None else (beside,)
    displays = enumerate((*_displays(result, stability), *more))
    shown = [_shown(display, f"x{index}") for index, display in displays]
    cells = (cell_text(cell) for one in shown for row in one.table.rows for cell in row)
    unclear = any(text.endswith(UNCLEAR) for text in cells)
    summary = summarise(result)
    return page(
        "report.html",
        title=summary.title,
        summary=summary.lines,
        unclear=UNCLEAR,
        unclear_note=UNCLEAR_NOTE if unclear else "",
        plan=plan,
        today=datetime.now(UTC).date().isoformat(),
        version=version("cloister"),
        warnings=warnings_of(result),
        cards=_cards(result),
        answers=privacy_statement(result),
        sights=sights,
        sight_remarks=sight_remarks,
        remarks=remarks_of(result),
        displays=shown,
        cost=_cost(result),
        budget_lines=budget_lines,
        facts=_facts(plan),
        document=json.dumps(plan.to_dict(), indent=1, sort_keys=True, ensure_ascii=False),
        cell_text=cell_text,
        beside=beside,
    )


def _cards(result: JobResult) -> list[tuple[str, str]]:
    plan, budget = result.plan, result.plan.budget
    epsilon = delta = "no guarantee"
    if budget and not warnings_of(result):
        epsilon, delta = number(result.epsilon()), f"{budget.delta:.2g}"
    return [
        ("epsilon spent", epsilon),
        ("delta", delta),
        ("unit of privacy", plan.unit),
        ("silos", str(len(plan.silos))),
        ("rounds", str(plan.rounds)),
        ("noise from", result.noise),
    ]


def _displays(result: JobResult, again: Stability | None) -> tuple[Display, ...]:
    """Return what the task shows, and what is said of a clustering beside it."""
    plan, task = result.plan, result.plan.task
    grid = task.last_grid if isinstance(task, Pipeline) else plan.grid
    stable = () if again is None else (again.table(result.results["centres"], plan.columns),)
    moved = movement(result.history, 2 * grid.half_range)
    return (*task.displays(result.results, plan.columns), *moved, *stable)


@dataclass(frozen=True)
class _Shown:
    """A display as the template shows it: a table, or an SVG with a description and its numbers."""

    table: Table
    picture: str = ""
    label: str = ""
    note: str = ""


def _shown(display: Display, prefix: str) -> _Shown:
    table = as_table(display)
    if isinstance(display, Table):
        return _Shown(table)
    note = display.note + (_INTERVALS if plots.has_intervals(display) else "")
    numbers, label = replace(table, note=""), plots.alt_text(display)
    return _Shown(numbers, plots.draw(display, prefix), label, note.strip())


def _cost(result: JobResult) -> list[tuple[str, str]]:
    if result.plan.budget is None:
        return []
    return [
        ("epsilon, all rounds composed", number(result.epsilon())),
        ("delta", f"{result.plan.budget.delta:.3g}"),
        ("noise", "; ".join(_mechanisms(result))),
    ]


def _mechanisms(result: JobResult) -> list[str]:
    """Return each kind of noise with how often it was added, and how much of it."""
    times: Counter[str] = Counter()
    scales: dict[str, list[float]] = {}
    for event, count in mechanism_counts(result.spent).items():
        gaussian = isinstance(event, GaussianEvent | SampledGaussianEvent)
        law = "Gaussian" if gaussian else type(event).__name__.removesuffix("Event")
        kind = f"{law} noise of {'standard deviation' if gaussian else 'scale'}"
        if isinstance(event, SampledGaussianEvent):
            kind = f"each {noun_of(result.plan.unit)} with probability {number(event.rate)}, {kind}"
        times[kind] += count
        scales.setdefault(kind, []).append(getattr(event, "noise_multiplier", 0.0))
    return [
        f"{count} × {kind} {' to '.join(map(number, sorted({min(of), max(of)})))} × sensitivity"
        for (kind, count), of in zip(times.items(), scales.values(), strict=True)
    ]


def _facts(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("plan digest (SHA-256)", plan.digest.hex()),
        ("schema digest (SHA-256)", plan.schema_digest or "none"),
        ("columns", listed(plan.columns)),
        ("nominal number of records (public)", f"{plan.nominal_n:,}"),
        ("bytes each silo sends", f"{plan.upload_bytes():,}"),
        ("cloister", version("cloister")),
        ("numpy", version("numpy")),
        ("Python", platform.python_version()),
    ]
