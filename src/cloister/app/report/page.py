"""The report as one self-contained HTML file, from ``cloister/core/html/report.html``, or text."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from cloister.app.headline import KeyNumber
from cloister.app.present import Presentation, present
from cloister.app.question import facts_of, hash_of, question_of
from cloister.app.release import Release
from cloister.app.report import plots
from cloister.app.report.contents import Contents, Pairs, Shown
from cloister.app.report.markdown import as_markdown
from cloister.app.text import (
    UNCLEAR,
    UNCLEAR_NOTE,
    as_table,
    cell_text,
    listed,
    noise_of,
    privacy_statement,
    warnings_of,
    who_saw_what,
)
from cloister.core.display import Bars, Cell, Display, Estimate, Table
from cloister.core.errors import PlanError
from cloister.core.files import write_text
from cloister.core.html import page, report_policy, static
from cloister.core.numerals import counted, number
from cloister.data.schema import Schema
from cloister.privacy.events import Event, GaussianEvent, SampledGaussianEvent, mechanism_counts
from cloister.protocol.plan import Plan, noun_of
from cloister.protocol.task import INTERVAL_95

_INTERVALS = (
    " The small line in a cell places the value between the lowest and the highest of its column, "
    "with its interval."
)
_LINES = "95 %: thick lines are privacy noise, thin lines and numbers noise and sampling."
NOT_VERIFIED = "not verified"
_APPROVED = "This is the text that approvers read. Its hash is part of the plan:"
_APPROVED_WITH_SCHEMA = (
    "Approvers read this text with the contract of each column, which is in the schema."
)
_UNSIGNED = (
    "Nobody signed this release: all parties ran in one process. 'cloister verify' computes it "
    "again from its released words."
)
_UNCHECKED = (
    "No signature was looked at for this page; 'cloister verify' counts those of the silos."
)
_UNCHARGED = (
    "This report shows no ledger: one that was given to the job was charged this cost. Without "
    "one, later jobs do not add it."
)
_CHARGED_THERE = "Each silo charged this job in its own ledger, which this report does not show."
_LEVELS = tuple(
    (f"{percent:g} %", NormalDist().inv_cdf(0.5 + percent / 200) / INTERVAL_95["gaussian"])
    for percent in (50, 68, 80, 90, 95, 99, 99.9)
)
"""Confidence levels, and the margin of each as a multiple of that of 95 %."""
_SMALLEST, _LARGEST = 1e-3, 1e6
_FORMULA = ("=", "+", "@", "\t", "\r")  # first characters of a formula in a spreadsheet


class About(TypedDict, total=False):
    """Options of :func:`render_report`."""

    shown: Presentation | None
    budget_lines: Sequence[tuple[str, str]]
    share: float | None
    in_process: bool
    schema: Schema | None
    verification: tuple[str, str] | None


def write_report(release: Release, path: str | PathLike[str], **about: Unpack[About]) -> None:
    """Write the report of a job to a file, which is replaced if it exists.

    The text is Markdown if the name ends in ``.md``, and HTML if it ends in ``.html``. Parameters
    are those of :func:`render_report`.
    """
    write_contents(_contents(release, **about), path)


def write_contents(contents: Contents, path: str | PathLike[str]) -> None:
    """Write a report to a file, as HTML or Markdown by the end of its name.

    Raises
    ------
    PlanError
        If the name ends in neither ``.html`` nor ``.md``.
    """
    render = {".md": as_markdown, ".html": as_page, ".htm": as_page}.get(Path(path).suffix.lower())
    if render is None:  # a page named report.docx opens nowhere
        raise PlanError(
            f"a report is a file .html or .md, got {Path(path).name!r}; 'pandoc report.md -o "
            "report.docx' turns the second into a document of Word."
        )
    write_text(Path(path), render(contents))


def render_report(release: Release, **about: Unpack[About]) -> str:
    """Return the report of a job as HTML.

    Parameters
    ----------
    shown : Presentation, optional
        :func:`~cloister.app.present.present` of the release by default.
    budget_lines : sequence of (name, value), optional
        The state of the data set in the ledger, such as its cap and the remaining budget.
    share : float in [0, 1], optional
        The spent part of the data set's lifetime cap.
    in_process : bool
        If True, the default, the report states that all parties ran in one process.
    schema : Schema, optional
        The agreed data contract. With it, the question has its canonical text.
    verification : (outcome, reason), optional
        Of :func:`~cloister.federation.verification.verify_release`; without it, the report states
        that nobody verified the release for it.
    """
    return as_page(_contents(release, **about))


def as_page(contents: Contents) -> str:
    """Return a report as HTML."""
    return page(
        "report.html",
        **vars(contents),
        unclear=UNCLEAR,
        cell_text=cell_text,
        as_csv=_as_csv,
        normal_of=partial(_normal_of, gaussian=contents.gaussian),
        levels=_LEVELS,
        policy=report_policy(),
        script=static("report.js"),
        markdown=_as_link("text/markdown", as_markdown(contents)),
    )


def _normal_of(cell: Cell, *, gaussian: bool) -> str:
    """Return value and margin of a number whose intervals of other levels are known, or ""."""
    if not (isinstance(cell, Estimate) and gaussian and cell.normal and cell.margin is not None):
        return ""
    value, margin = cell.value, float(cell.margin)
    # Beyond these, text has an exponent at some level.
    if not (abs(value) < _LARGEST and _SMALLEST < margin < _LARGEST):
        return ""
    return f"{value!r} {margin!r}"


def render_markdown(release: Release, **about: Unpack[About]) -> str:
    """Return the report of a job as Markdown without pictures, for other word processors."""
    return as_markdown(_contents(release, **about))


def _contents(
    release: Release,
    *,
    shown: Presentation | None = None,
    budget_lines: Sequence[tuple[str, str]] = (),
    share: float | None = None,
    in_process: bool = True,
    schema: Schema | None = None,
    verification: tuple[str, str] | None = None,
) -> Contents:
    plan, shown = release.plan, shown or present(release)
    # All numbers come from the release and the plan, so that the report discloses nothing more.
    sights, sight_remarks = who_saw_what(plan, in_process=in_process)
    asked, whole = _asked(plan, schema)
    verified = verification or (NOT_VERIFIED, _UNSIGNED if in_process else _UNCHECKED)
    silos = counted(len(plan.silos), "silo")
    return Contents(
        title=shown.title,
        about=(f"{plan.task.name} over {silos}", f"study {plan.study}"),
        budget=plan.budget,
        gaussian=plan.layout.mechanism == "gaussian",
        lines=shown.lines,
        numbers=shown.numbers,
        **shown_of(shown.everything, shown.numbers, shown.remarks),
        warnings=shown.warnings,
        epsilon=_epsilon(release),
        share=share,
        cards=_cards(release, in_process),
        answers=privacy_statement(release),
        sights=sights,
        sight_remarks=sight_remarks,
        cost=_cost(release),
        budget_lines=tuple(budget_lines),
        uncharged=_UNCHARGED if in_process else _CHARGED_THERE,
        asked=asked,
        asked_caption="The question" if whole else "The question, with columns by their names only",
        asked_note=_APPROVED if whole else _APPROVED_WITH_SCHEMA,
        question=plan.question if whole else "",
        verified=verified,
        facts=_facts(plan),
        **stamp_of(plan.to_dict()),
        document_name="The whole plan",
        comparison=shown.comparison,
    )


class Stamp(TypedDict):
    """The date, version and agreement of :class:`Contents`."""

    today: str
    version: str
    document: str


def stamp_of(agreed: Mapping[str, Any]) -> Stamp:
    """Return the date, this version, and the agreement of all parties as JSON."""
    return Stamp(
        today=datetime.now(UTC).date().isoformat(),
        version=version("cloister"),
        document=json.dumps(agreed, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False),
    )


class Results(TypedDict):
    """The parts of :class:`Contents` that follow from its displays."""

    unclear_note: str
    remarks: tuple[str, ...]
    first: Shown | None
    displays: tuple[Shown, ...]


def shown_of(
    displays: Sequence[Display], numbers: Sequence[KeyNumber], remarks: Sequence[str]
) -> Results:
    """Return the first picture, the other displays, and the remarks and marks that they need."""
    parts = [_shown(display, f"x{i}") for i, display in enumerate(displays)]
    has_pictures = any(not isinstance(display, Table) for display in displays)
    undrawn = (plots.NO_PICTURES,) if has_pictures and not plots.can_draw() else ()
    # A reader sees one picture of the answer before any table.
    first = next((one for one in parts if one.picture), None)
    cells = (cell_text(cell) for item in parts for row in item.table.rows for cell in row)
    # A legend without a mark to explain would confuse.
    unclear = any(text.endswith(UNCLEAR) for text in cells) or any(one.unclear for one in numbers)
    return Results(
        unclear_note=UNCLEAR_NOTE if unclear else "",
        remarks=tuple(_capitalised(remark) for remark in (*remarks, *undrawn)),
        first=first,
        displays=tuple(one for one in parts if one is not first),
    )


def _asked(plan: Plan, schema: Schema | None) -> tuple[Pairs, bool]:
    """Return the facts of the question, and whether they are the text whose hash the plan has."""
    agreed = schema is not None and schema.digest() == plan.schema_digest
    # Another version may word it differently, and only the text of this hash was approved.
    if agreed and schema and hash_of(question_of(plan, schema)) == plan.question:
        return tuple(facts_of(plan, schema)), True
    return tuple(facts_of(plan, None)), False


def _as_csv(table: Table) -> str:
    """Return the cells of a table as a link that a browser saves as a file."""
    text = io.StringIO()
    csv.writer(text).writerows(
        [_unevaluated(cell_text(cell)) for cell in row] for row in (table.headings, *table.rows)
    )
    return _as_link("text/csv", text.getvalue())


def _as_link(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8,{quote(text)}"


def _unevaluated(text: str) -> str:
    """Return text that a spreadsheet does not take for a formula; a negative number stays."""
    begins = text.startswith(_FORMULA) or (text.startswith("-") and not text[1:2].isdigit())
    return f"'{text}" if begins else text


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _epsilon(release: Release) -> str:
    """Return the spent epsilon; "" if the run had no guarantee."""
    # A number here would be quoted as a guarantee, also of a run without real noise.
    return "" if warnings_of(release) else number(release.epsilon())


def _cards(release: Release, in_process: bool) -> Pairs:
    plan = release.plan
    return (
        ("unit of privacy", plan.unit),
        ("silos", str(len(plan.silos))),
        ("rounds", str(plan.rounds)),
        ("noise from", noise_of(release, in_process=in_process)),
    )


def _shown(display: Display, prefix: str) -> Shown:
    table = as_table(display)
    if isinstance(display, Table) or not plots.can_draw():
        return Shown(table)
    note = display.note + (_INTERVALS if plots.has_intervals(display) else "")
    # The numbers beside bars are of the population, those of the table are not.
    if isinstance(display, Bars) and display.estimate.population:
        note = f"{_LINES} {note}"
    return Shown(table, plots.draw(display, prefix), plots.alt_text(display), note.strip())


def _cost(result: Release) -> Pairs:
    if result.plan.budget is None:
        return ()
    return (
        ("epsilon, all rounds composed", number(result.epsilon())),
        ("delta", f"{result.plan.budget.delta:.3g}"),
        ("noise", "; ".join(mechanisms(result.spent, result.plan.unit))),
    )


def mechanisms(spent: Event, unit: str) -> list[str]:
    """Return each kind of noise with its number of uses and its scales."""
    # Grouped by kind: the rounds of one job may have many scales.
    times: Counter[str] = Counter()
    scales: dict[str, list[float]] = {}
    for event, count in mechanism_counts(spent).items():
        gaussian = isinstance(event, GaussianEvent | SampledGaussianEvent)
        name = "Gaussian" if gaussian else type(event).__name__.removesuffix("Event")
        kind = f"{name} noise of {'standard deviation' if gaussian else 'scale'}"
        if isinstance(event, SampledGaussianEvent):
            kind = f"each {noun_of(unit)} with probability {number(event.rate)}, {kind}"
        times[kind] += count
        scales.setdefault(kind, []).append(getattr(event, "noise_multiplier", 0.0))
    return [
        f"{count} × {kind} {' to '.join(map(number, sorted({min(each), max(each)})))} × sensitivity"
        for (kind, count), each in zip(times.items(), scales.values(), strict=True)
    ]


def _facts(plan: Plan) -> Pairs:
    return (
        # With the digest and the versions, another person can verify and repeat the job.
        ("plan digest (SHA-256)", plan.digest.hex()),
        ("schema digest (SHA-256)", plan.schema_digest or "none"),
        ("columns", listed(plan.columns)),
        ("nominal number of records (public)", f"{plan.nominal_n:,}"),
        ("bytes each silo sends", f"{plan.upload_bytes():,}"),
        *software(),
    )


def software() -> Pairs:
    """Return the versions with which another person can repeat a job."""
    return (
        ("cloister", version("cloister")),
        ("numpy", version("numpy")),
        ("Python", platform.python_version()),
    )
