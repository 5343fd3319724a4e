"""The parts that all pages of the console share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from cloister.core.errors import CloisterError
from cloister.core.html import report_policy
from cloister.core.numerals import number
from cloister.federation.service.logs import place_of
from cloister.federation.service.web import STATIC, Pages, said
from cloister.privacy.filter import Cost, Limits

# In a sandbox of no origin: no cookie, page or form of the console can be reached from it.
_POLICY = f"{report_policy()}; frame-ancestors 'none'"
# Only the report's own script, by its digest, may run, and its links may be saved.
_REPORT_POLICY = f"sandbox allow-scripts allow-downloads; {_POLICY}"


def console_app(pages: Pages, *routes: Route) -> Starlette:
    """Return an application that shows errors as pages."""

    def answer(request: Request, sentence: str, status: int) -> Response:
        return said(sentence, status, pages, request.scope["root_path"])

    def explain(request: Request, error: Exception) -> Response:
        return answer(request, str(error), 409)

    def missing(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return answer(request, "There is no such page here.", status)

    def unusable(request: Request, error: Exception) -> Response:
        # Without the path, which may name a person.
        why = getattr(error, "strerror", None) or "it cannot be read"
        return answer(request, f"A file or a folder cannot be used: {why}.", 409)

    def unexpected(request: Request, error: Exception) -> Response:
        # Type and place only: the message of a foreign exception may quote a cell.
        return answer(request, f"Unexpected {type(error).__name__} in {place_of(error)}.", 500)

    return Starlette(
        routes=[*routes, *STATIC],
        exception_handlers={
            CloisterError: explain,
            HTTPException: missing,
            OSError: unusable,
            Exception: unexpected,
        },
    )


def to_page(request: Request, path: str) -> RedirectResponse:
    """Send the browser to another page of the console."""
    return RedirectResponse(request.scope["root_path"] + path, 303)


def a_report(text: str) -> HTMLResponse:
    """Return a report as a page."""
    return HTMLResponse(text, headers={"Content-Security-Policy": _REPORT_POLICY})


def a_picture(svg: str) -> Response:
    """Return an SVG for the image of a page; it may style itself, and nothing else."""
    headers = {"Content-Security-Policy": f"sandbox; {_POLICY}"}
    return Response(svg, media_type="image/svg+xml", headers=headers)


def budget_gauge(dataset: str, limits: Limits, spent: Cost) -> Mapping[str, Any]:
    """Return the spent or reserved part of a lifetime cap, and the rest for one more job."""
    epsilon = limits.epsilon(spent)
    return {
        "dataset": dataset,
        "share": min(1.0, epsilon / limits.cap.epsilon),
        "spent": number(epsilon),
        "cap": number(limits.cap.epsilon),
        "left": number(room := limits.epsilon_left(spent)),
        "room": room,
    }
