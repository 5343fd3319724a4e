"""What all pages of the console share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from cloister.errors import CloisterError
from cloister.html import page, static
from cloister.privacy.filter import Cost, Limits
from cloister.report import number

Pages = Sequence[tuple[str, str]]
"""Paths of the pages that every page leads to, and their names."""
# A report is one file with its styles in it: it may look, and do nothing.
_REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)


def _file(name: str, kind: str) -> Route:
    def send(_: Request) -> Response:
        return Response(static(name), media_type=kind)

    return Route(f"/{name}", send)


STATIC = (
    _file("console.css", "text/css"),
    _file("htmx.js", "text/javascript"),
    _file("icon.svg", "image/svg+xml"),
)
"""What every page loads; htmx 2.0.11 (0BSD) renews parts of pages."""


def console_app(pages: Pages, *routes: Route) -> Starlette:
    """Return an application whose mistakes are pages, too."""

    def explain(_: Request, error: Exception) -> Response:
        return said(str(error), 409, pages)

    def missing(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return said("There is no such page here.", status, pages)

    return Starlette(
        routes=[*routes, *STATIC],
        exception_handlers={CloisterError: explain, HTTPException: missing},
    )


def said(sentence: str, status: int, pages: Pages = ()) -> HTMLResponse:
    """Return a page with one sentence."""
    return HTMLResponse(page("layout.html", sentence=sentence, pages=pages), status)


def a_report(text: str) -> HTMLResponse:
    """Return a report as a page."""
    return HTMLResponse(text, headers={"Content-Security-Policy": _REPORT_POLICY})


def gauge(dataset: str, limits: Limits, spent: Cost) -> Mapping[str, object]:
    """Return what was spent or reserved of a lifetime cap, and what is left for one job."""
    epsilon = limits.epsilon(spent)
    return {
        "dataset": dataset,
        "share": min(1.0, epsilon / limits.cap.epsilon),
        "spent": number(epsilon),
        "cap": number(limits.cap.epsilon),
        "left": number(limits.epsilon_left(spent)),
    }
