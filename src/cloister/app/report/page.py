"""The report as one self-contained HTML file, from ``cloister/core/html/report.html``."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from urllib.parse import quote

from cloister.app.present import Presentation, present
from cloister.app.release import Release
from cloister.app.report import plots
from cloister.app.text import (
    UNCLEAR,
    UNCLEAR_NOTE,
    as_table,
    cell_text,
    listed,
    number,
    privacy_statement,
    warnings_of,
    who_saw_what,
)
from cloister.core.display import Display, Table
from cloister.core.html import page
from cloister.privacy.events import GaussianEvent, SampledGaussianEvent, mechanism_counts
from cloister.protocol.plan import Plan, noun_of

_INTERVALS = (
    " The small line in a cell places the value between the lowest and the highest of its column, "
    "with its interval."
)
_FORMULA = ("=", "+", "@", "\t", "\r")  # first characters of a formula in a spreadsheet


def write_report(
    release: Release,
    path: str | PathLike[str],
    *,
    shown: Presentation | None = None,
    budget_lines: Sequence[tuple[str, str]] = (),
    in_process: bool = True,
) -> None:
    """Write the report of a job as one HTML file.

    Parameters
    ----------
    path : path-like
        Replaced if it exists.
    shown : Presentation, optional
        :func:`~cloister.app.present.present` of the release by default.
    budget_lines : sequence of (name, value), optional
        The state of the data set in the ledger, such as its cap and the remaining budget.
    in_process : bool
        If True, the report states that all parties ran in one process.
    """
    text = render_report(release, shown=shown, budget_lines=budget_lines, in_process=in_process)
    Path(path).write_text(text, encoding="utf-8")


def render_report(
    release: Release,
    *,
    shown: Presentation | None = None,
    budget_lines: Sequence[tuple[str, str]] = (),
    in_process: bool = True,
) -> str:
    """Return the report of a job as HTML; parameters are those of :func:`write_report`."""
    plan, shown = release.plan, shown or present(release)
    # All numbers come from the release and the plan, so that the report discloses nothing more.
    sights, sight_remarks = who_saw_what(plan, in_process=in_process)
    displays = [_shown(display, f"x{i}") for i, display in enumerate(shown.everything)]
    # A reader sees one picture of the answer before any table.
    picture = next((one for one in displays if one.picture), None)
    displays.sort(key=lambda one: one is not picture)
    cells = (cell_text(cell) for item in displays for row in item.table.rows for cell in row)
    # A legend without a mark to explain would confuse.
    unclear = any(text.endswith(UNCLEAR) for text in cells)
    return page(
        "report.html",
        title=shown.title,
        summary=shown.lines,
        unclear=UNCLEAR,
        unclear_note=UNCLEAR_NOTE if unclear else "",
        plan=plan,
        today=datetime.now(UTC).date().isoformat(),
        version=version("cloister"),
        warnings=shown.warnings,
        cards=_cards(release),
        answers=privacy_statement(release),
        sights=sights,
        sight_remarks=sight_remarks,
        remarks=[_capitalised(remark) for remark in shown.remarks],
        displays=displays,
        cost=_cost(release),
        budget_lines=budget_lines,
        facts=_facts(plan),
        document=json.dumps(
            plan.to_dict(), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False
        ),
        cell_text=cell_text,
        as_csv=_as_csv,
        comparison=shown.comparison,
    )


def _as_csv(table: Table) -> str:
    """Return the cells of a table as a link that a browser saves as a file."""
    text = io.StringIO()
    csv.writer(text).writerows(
        [_unevaluated(cell_text(cell)) for cell in row] for row in (table.headings, *table.rows)
    )
    return "data:text/csv;charset=utf-8," + quote(text.getvalue())


def _unevaluated(text: str) -> str:
    """Return text that a spreadsheet does not take for a formula; a negative number stays."""
    begins = text.startswith(_FORMULA) or (text.startswith("-") and not text[1:2].isdigit())
    return f"'{text}" if begins else text


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cards(result: Release) -> list[tuple[str, str]]:
    plan, budget = result.plan, result.plan.budget
    # A number here would be quoted as a guarantee, also of a run without real noise.
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


@dataclass(frozen=True)
class _Shown:
    """A display for the template: a table, or an SVG with a description and its numbers."""

    table: Table
    picture: str = ""
    label: str = ""
    note: str = ""


def _shown(display: Display, prefix: str) -> _Shown:
    table = as_table(display)
    if isinstance(display, Table):
        return _Shown(table)
    note = display.note + (_INTERVALS if plots.has_intervals(display) else "")
    # The note is shown at the picture, so the table of its numbers has none.
    numbers, label = replace(table, note=""), plots.alt_text(display)
    return _Shown(numbers, plots.draw(display, prefix), label, note.strip())


def _cost(result: Release) -> list[tuple[str, str]]:
    if result.plan.budget is None:
        return []
    return [
        ("epsilon, all rounds composed", number(result.epsilon())),
        ("delta", f"{result.plan.budget.delta:.3g}"),
        ("noise", "; ".join(_mechanisms(result))),
    ]


def _mechanisms(result: Release) -> list[str]:
    """Return each kind of noise with its number of uses and its scales."""
    # Grouped by kind: the rounds of one job may have many scales.
    times: Counter[str] = Counter()
    scales: dict[str, list[float]] = {}
    for event, count in mechanism_counts(result.spent).items():
        gaussian = isinstance(event, GaussianEvent | SampledGaussianEvent)
        name = "Gaussian" if gaussian else type(event).__name__.removesuffix("Event")
        kind = f"{name} noise of {'standard deviation' if gaussian else 'scale'}"
        if isinstance(event, SampledGaussianEvent):
            kind = f"each {noun_of(result.plan.unit)} with probability {number(event.rate)}, {kind}"
        times[kind] += count
        scales.setdefault(kind, []).append(getattr(event, "noise_multiplier", 0.0))
    return [
        f"{count} × {kind} {' to '.join(map(number, sorted({min(each), max(each)})))} × sensitivity"
        for (kind, count), each in zip(times.items(), scales.values(), strict=True)
    ]


def _facts(plan: Plan) -> list[tuple[str, str]]:
    return [
        # With the digest and the versions, another person can verify and repeat the job.
        ("plan digest (SHA-256)", plan.digest.hex()),
        ("schema digest (SHA-256)", plan.schema_digest or "none"),
        ("columns", listed(plan.columns)),
        ("nominal number of records (public)", f"{plan.nominal_n:,}"),
        ("bytes each silo sends", f"{plan.upload_bytes():,}"),
        ("cloister", version("cloister")),
        ("numpy", version("numpy")),
        ("Python", platform.python_version()),
    ]
