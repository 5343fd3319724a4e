"""One self-contained HTML file: inline style, inline pictures, nothing fetched, no script."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from itertools import pairwise
from os import PathLike
from pathlib import Path

import numpy as np

from cloister.display import Between, Display, Measured, Table
from cloister.jobs import JobResult
from cloister.privacy.events import GaussianEvent, SampledGaussianEvent, mechanism_counts
from cloister.protocol.plan import Plan
from cloister.report import plots
from cloister.report.text import (
    as_table,
    cell_text,
    clean,
    listed,
    number,
    privacy_statement,
    remarks_of,
    warnings_of,
    who_saw_what,
)
from cloister.stability import Stability
from cloister.tasks.preparation.pipeline import Pipeline

_INTERVALS = (
    " The small line in a cell places the value between the lowest and the highest of its column, "
    "with its noise interval."
)
_MANY = 8  # columns that fit on paper without broken cells
_STYLE = """
:root{color-scheme:light;--ink:#1b2733;--muted:#5b6b7a;--line:#dbe3ea;--blue:#0b62a4;--pale:#f4f8fc}
*{box-sizing:border-box}
body{margin:0;color:var(--ink);background:#fff;line-height:1.5;font-size:16px;
 font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:62rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.2rem}
h1{font-size:1.8rem;line-height:1.2;margin:0 0 .3rem}
h2{font-size:1.3rem;margin:2.6rem 0 .8rem;padding-bottom:.3rem;border-bottom:2px solid var(--line)}
h3{font-size:1.05rem;margin:1.8rem 0 .5rem}
p{margin:.5rem 0;max-width:46rem}
.lead,.note,caption,figcaption{color:var(--muted)}
.note,figcaption{font-size:.9rem}
.alert{margin:1.2rem 0;padding:.8rem 1rem;border:2px solid #b3261e;border-left-width:10px;
 background:#fdf0ef;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.2rem,1fr));gap:.7rem;
 margin:1.4rem 0 0;padding:0}
.cards div{background:var(--pale);border:1px solid var(--line);border-radius:.5rem;
 padding:.6rem .8rem}
.cards dt{font-size:.82rem;color:var(--muted)}
.cards dd{margin:0;font-size:1.15rem;font-weight:600;overflow-wrap:anywhere}
.answers{margin:0}
.answers dt{font-weight:600;margin-top:.8rem}
.answers dd{margin:.1rem 0 0;max-width:46rem;overflow-wrap:anywhere}
.scroll{overflow:auto;max-height:34rem;margin:.4rem 0}
figure .scroll{max-height:none}
table{border-collapse:collapse;font-size:.92rem}
caption{text-align:left;font-size:.9rem;padding-bottom:.35rem}
th,td{padding:.38rem .8rem;border-bottom:1px solid var(--line);text-align:left;
 vertical-align:top}
tr>:first-child{padding-left:0}
thead th{border-bottom:2px solid var(--muted);white-space:nowrap}
.data td,.data thead th:not(:first-child){text-align:right;white-space:nowrap;
 font-variant-numeric:tabular-nums}
.data thead th{position:sticky;top:0;background:#fff;z-index:1}
.data tbody th{font-weight:600;white-space:nowrap;position:sticky;left:0;background:#fff}
.pairs th{font-weight:400;color:var(--muted);width:19rem}
.pairs td{overflow-wrap:anywhere}
.wide{width:100%}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
figure{margin:0}
svg{display:block;height:auto}
svg text{font-family:inherit!important}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--blue)}
pre{background:var(--pale);border:1px solid var(--line);border-radius:.5rem;padding:.8rem;
 font-size:.8rem;white-space:pre-wrap;overflow-wrap:anywhere}
code{font-size:.88em;overflow-wrap:anywhere}
footer{margin-top:3rem;padding-bottom:2.5rem;color:var(--muted);font-size:.88rem}
:focus-visible{outline:3px solid var(--blue);outline-offset:2px}
@media(max-width:40rem){body{font-size:15px}h1{font-size:1.45rem}
 .pairs th{width:40%}}
@media print{body{font-size:10.5pt}main,header,footer{max-width:none;padding:0}
 figure,tr,.cards,.answers div{break-inside:avoid}h2,h3{break-after:avoid}
 .scroll{overflow:visible;max-height:none}svg{min-width:0!important;max-width:100%!important}
 .data{font-size:8pt}
 .data th,.data td{padding-left:.4em;padding-right:.4em;position:static!important}
 .many td,.many th{white-space:normal!important}@page{margin:16mm}}
""".strip()


def write_report(
    result: JobResult,
    path: str | PathLike[str],
    *,
    budget_lines: Sequence[tuple[str, str]] = (),
    in_process: bool = True,
    stability: Stability | None = None,
) -> None:
    """Write the report of a job as one HTML file.

    Parameters
    ----------
    result : JobResult
    path : path-like
        Replaced if it exists.
    budget_lines : sequence of (name, value), optional
        What the ledger says of the data set, such as its cap and what is left.
    in_process : bool
        Whether all parties ran in one process, which the report then says.
    stability : Stability, optional
        Of a clustering, if the report is to show it.
    """
    text = render_report(
        result, budget_lines=budget_lines, in_process=in_process, stability=stability
    )
    Path(path).write_text(text, encoding="utf-8")


def render_report(
    result: JobResult,
    *,
    budget_lines: Sequence[tuple[str, str]] = (),
    in_process: bool = True,
    stability: Stability | None = None,
) -> str:
    """Return the report of a job as HTML; parameters are those of :func:`write_report`."""
    plan = result.plan
    title = f"{plan.task.name} over {_several(len(plan.silos), 'silo')}"
    body = "\n".join(
        (
            _head(result, title),
            "<main>",
            _privacy(result, in_process),
            _results(result, stability),
            _budget(result, budget_lines),
            _plan(plan),
            "</main>",
            f"<footer>{_text(_origin(plan))}</footer>",
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _head(result: JobResult, title: str) -> str:
    plan = result.plan
    budget = plan.budget
    warnings = warnings_of(result)
    cards = {
        "epsilon spent": number(result.epsilon()) if budget and not warnings else "no guarantee",
        "delta": f"{budget.delta:.2g}" if budget and not warnings else "no guarantee",
        "unit of privacy": plan.unit,
        "silos": str(len(plan.silos)),
        "rounds": str(plan.rounds),
        "noise from": result.noise,
    }
    shown = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in cards.items()
    )
    alerts = "".join(f'<p class="alert">{_text(warning)}</p>' for warning in warnings)
    today = datetime.now(UTC).date().isoformat()
    return (
        f"<header><h1>{_text(title)}</h1>"
        f'<p class="lead">Report of a cloister job · study {_text(plan.study)} · {today}</p>'
        f'{alerts}<dl class="cards">{shown}</dl></header>'
    )


def _privacy(result: JobResult, in_process: bool) -> str:
    answers = "".join(
        f"<div><dt>{_text(question)}</dt><dd>{_text(answer)}</dd></div>"
        for question, answer in privacy_statement(result)
    )
    sights, remarks = who_saw_what(result.plan, in_process=in_process)
    table = Table(
        "Who saw what",
        ("party", "sees", "does not see"),
        tuple((sight.party, sight.sees, sight.never) for sight in sights),
    )
    notes = "".join(f"<p>{_text(remark)}</p>" for remark in remarks)
    return _section(
        "Privacy in plain words",
        f'<dl class="answers">{answers}</dl><h3>Who saw what</h3>{_table(table, "wide")}{notes}',
    )


def _results(result: JobResult, again: Stability | None) -> str:
    displays: list[Display] = list(result.plan.task.displays(result.results, result.plan.columns))
    if moved := _movement(result):
        displays.append(moved)
    if again is not None:
        displays.append(again.table(result.results["centres"], result.plan.columns))
    parts = [f"<p>{_text(remark)}</p>" for remark in remarks_of(result)]
    parts += [_display(display, f"x{index}") for index, display in enumerate(displays)]
    return _section("Results", "".join(parts) or "<p>This task shows nothing.</p>")


def _movement(result: JobResult) -> Table | None:
    """Return how far released centres moved in each round, if the task has centres."""
    states = result.history
    if len(states) < 2 or any(not {"centres", "half_width"} <= state.keys() for state in states):
        return None
    task = result.plan.task
    grid = task.last_grid if isinstance(task, Pipeline) else result.plan.grid
    ranges = 2 * grid.half_range
    rows = tuple(
        (
            f"round {t + 1}",
            f"{np.abs((after['centres'] - before['centres']) / ranges).mean():.2%}",
            f"{(after['half_width'] / ranges).mean():.2%}",
        )
        for t, (before, after) in enumerate(pairwise(states))
    )
    return Table(
        "How far the centres moved",
        ("", "moved", "95 % of the noise"),
        rows,
        "Part of a column's range, mean over centres and columns. A last round that moved much "
        "further than its noise had not settled.",
    )


def _display(display: Display, prefix: str) -> str:
    heading = f"<h3>{_text(display.title)}</h3>"
    table = as_table(display)
    if isinstance(display, Table):
        return heading + _table(table, "data")
    picture = plots.draw(display, prefix)
    label = _text(plots.alt_text(display))
    picture = picture.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    said = display.note + (_INTERVALS if plots.has_intervals(display) else "")
    note = f"<figcaption>{_text(said.strip())}</figcaption>" if said else ""
    numbers = _table(Table(display.title, table.headings, table.rows), "data")
    return (
        f'{heading}<figure><div class="scroll">{picture}</div>{note}</figure>'
        f"<details><summary>Numbers of this picture</summary>{numbers}</details>"
    )


def _budget(result: JobResult, budget_lines: Sequence[tuple[str, str]]) -> str:
    plan = result.plan
    if plan.budget is None:
        return _section(
            "Budget", "<p>Nothing was charged: no budget covers a release of this kind.</p>"
        )
    job = [
        ("epsilon, all rounds composed", number(result.epsilon())),
        ("delta", f"{plan.budget.delta:.3g}"),
        ("mechanisms", "; ".join(_mechanisms(result))),
    ]
    shown = _pairs("This job", job)
    if budget_lines:
        shown += _pairs("The data set, over all jobs", budget_lines)
    else:
        shown += '<p class="note">This job was not charged to a ledger: nothing remembers it.</p>'
    return _section("Budget", shown)


def _origin(plan: Plan) -> str:
    made = f"Made by cloister {version('cloister')}"
    if plan.budget is None:
        return f"{made}. NOT PRIVATE."
    return f"{made} from released values only: no record, no exact count and no duration is in it."


def _mechanisms(result: JobResult) -> list[str]:
    """Return each kind of noise with how often it was added."""
    times: Counter[str] = Counter()
    for event, count in mechanism_counts(result.spent).items():
        law = type(event).__name__.removesuffix("Event")
        scale = number(getattr(event, "noise_multiplier", 0.0))
        gaussian = isinstance(event, GaussianEvent | SampledGaussianEvent)
        word = "standard deviation" if gaussian else "scale"
        kind = f"{'Gaussian' if gaussian else law} noise of {word} {scale} × sensitivity"
        if isinstance(event, SampledGaussianEvent):
            kind += f", each client in it with probability {number(event.rate)}"
        times[kind] += count
    return [f"{count} × {kind}" for kind, count in times.items()]


def _plan(plan: Plan) -> str:
    facts = [
        ("plan digest (SHA-256)", plan.digest.hex()),
        ("schema digest (SHA-256)", plan.schema_digest or "none"),
        ("columns", listed(plan.columns)),
        ("nominal number of records (public)", f"{plan.nominal_n:,}"),
        ("bytes each silo sends", f"{plan.upload_bytes():,}"),
        ("cloister", version("cloister")),
        ("numpy", version("numpy")),
        ("Python", platform.python_version()),
    ]
    document = json.dumps(plan.to_dict(), indent=1, sort_keys=True, ensure_ascii=False)
    return _section(
        "Plan and versions",
        f"{_pairs('What every party agreed on', facts)}"
        f"<details><summary>The whole plan as JSON</summary><pre>{_text(document)}</pre></details>",
    )


def _section(title: str, content: str) -> str:
    name = title.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{_text(title)}</h2>{content}</section>'
    )


def _table(table: Table, kind: str) -> str:
    """Return a table that scrolls by itself; the first cell of a row names the row."""
    head = "".join(f'<th scope="col">{_text(heading)}</th>' for heading in table.headings)
    rows = "".join(_row(row) for row in table.rows)
    if len(table.headings) > _MANY:
        kind += " many"
    caption = f'<span class="unseen">{_text(table.title)}. </span>{_text(table.note)}'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.title)}">'
        f'<table class="{kind}"><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(cells: Iterable[str | float | Measured | Between]) -> str:
    first, *rest = map(cell_text, cells)
    return (
        f'<tr><th scope="row">{_text(first)}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        + "</tr>"
    )


def _pairs(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
        for name, value in pairs
    )
    return (
        f'<div class="scroll"><table class="pairs wide"><caption>{_text(title)}</caption>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text(value: str) -> str:
    """Return text that is safe in HTML, in attributes too."""
    return escape(clean(value), quote=True)
