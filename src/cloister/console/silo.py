"""Pages for the owner of a silo: proposed jobs, the spent budget, and past decisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from cloister.app.release import Release
from cloister.app.report.page import render_report
from cloister.console.history import History, history_of
from cloister.console.parts import a_report, budget_gauge, console_app, to_page
from cloister.core.errors import DataError
from cloister.core.html import compile_ahead, page
from cloister.data.reading import ReadingReport
from cloister.federation.silo.agent import MODEL
from cloister.federation.silo.decisions import (
    OWNERS_EYES,
    asker,
    check_approval,
    decide,
    next_period,
    priced,
    question,
    rows_of,
)
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Job
from cloister.privacy.filter import Cost
from cloister.protocol.lifecycle import ACCEPT, DENY, SiloState

_SHOWN = 200  # entries of the audit file on the page
_TAIL = 1 << 18  # bytes read from its end, as the file grows without limit
_PAGES = (("/", "Jobs and budget"), ("/audit", "Audit log"))


def silo_app(site: Site) -> Starlette:
    """Return the pages of a silo, to be wrapped in :class:`~cloister.console.guard.Guard`."""
    compile_ahead("silo.html")

    def shown(request: Request, view: str, **values: object) -> Response:
        common = {"silo": site.settings.name, "csrf": request.state.csrf, "pages": _PAGES}
        root = request.scope["root_path"]
        return HTMLResponse(page("silo.html", root=root, view=view, **common, **values))

    def overview(request: Request) -> Response:
        jobs = [
            (job, asker(job), priced(job), job.reason or next_period(job, site))
            for job in reversed(_jobs(site))
        ]
        waiting = [row for row in jobs if row[0].state == SiloState.WAITING]
        rest = [row for row in jobs if row[0].state != SiloState.WAITING]
        gauge, history = _budget(site)
        values = {
            "gauge": gauge,
            "history": history,
            "known": {job.id: price for job, _, price, _ in jobs},
        }
        standing = site.policy.rules.standing_limits(site.settings.cap_epsilon)
        return shown(request, "overview", waiting=waiting, rest=rest, standing=standing, **values)

    def show_job(request: Request, reading: ReadingReport | None = None) -> Response:
        job = _job(site, request)
        return shown(
            request,
            "job",
            job=job,
            question=question(job, site),
            waits=job.state == SiloState.WAITING,
            has_report=_result(site, job).is_file(),
            reading=reading,
            eyes=OWNERS_EYES,
        )

    def read_rows(request: Request) -> Response:
        # Only on the owner's press, and only for this answer: nothing of it is stored.
        return show_job(request, rows_of(_job(site, request), site))

    def approve(request: Request) -> Response:
        job, form = _job(site, request), request.state.form
        # In another state `decide` refuses, with a sentence on the present state.
        if job.state == SiloState.WAITING:
            check_approval(site, job, accepts_aggregator_noise="accept" in form)
        decide(site, job.id, ACCEPT)
        return to_page(request, f"/jobs/{job.id}")

    def deny(request: Request) -> Response:
        reason = request.state.form.get("reason", "").strip()
        job = decide(site, _job(site, request).id, DENY, reason or "the owner declined.")
        return to_page(request, f"/jobs/{job}")

    def report(request: Request) -> Response:
        job = _job(site, request)
        if not _result(site, job).is_file():
            raise DataError(f"job {job.id} is {job.state} and has no result here.")
        result = Release.load(_result(site, job), site.tasks)
        # The silo stores the result, not its page.
        prices = question(job, site).prices
        text = render_report(result, in_process=False, budget_lines=prices, schema=site.schema)
        return a_report(text)

    def audit(request: Request) -> Response:
        return shown(request, "audit", entries=_last_entries(site.settings.audit_log))

    return console_app(
        _PAGES,
        Route("/", overview),
        Route("/jobs/{job}", show_job),
        Route("/jobs/{job}/rows", read_rows, methods=["POST"]),
        Route("/jobs/{job}/approve", approve, methods=["POST"]),
        Route("/jobs/{job}/deny", deny, methods=["POST"]),
        Route("/jobs/{job}/report", report),
        Route("/audit", audit),
    )


def _jobs(site: Site) -> tuple[Job, ...]:
    store = site.store()
    try:
        return store.jobs()
    finally:
        store.dispose()


def _job(site: Site, request: Request) -> Job:
    store = site.store()
    try:
        return store.find(request.path_params["job"])
    finally:
        store.dispose()


def _result(site: Site, job: Job) -> Path:
    return site.settings.results / job.id / MODEL


def _budget(site: Site) -> tuple[Mapping[str, object], History | None]:
    """Return the spent or reserved part of the lifetime cap with the rest, and the history."""
    name, limits, spent, history = site.schema.dataset, site.limits, Cost(), None
    if site.settings.ledger.exists():  # opening it would create an empty ledger
        ledger = site.ledger()
        limits, spent = ledger.limits(name), ledger.cost(name)
        history = history_of(ledger.jobs(name), limits, datetime.now(UTC))
        ledger.dispose()
    return budget_gauge(name, limits, spent), history


def _last_entries(path: Path) -> list[str]:
    """Return the last entries of an audit file, newest first."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - _TAIL)
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[1 if start else 0 :][: -_SHOWN - 1 : -1]  # the first line may be cut
