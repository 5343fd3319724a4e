"""The static files and security headers of all pages."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from cloister.core.html import page, page_headers, static

Pages = Sequence[tuple[str, str]]
"""Paths and names of the pages in the navigation."""


def _file(name: str, kind: str) -> Route:
    def send(_: Request) -> Response:
        return Response(static(name), media_type=kind, headers=page_headers())

    return Route(f"/{name}", send)


STATIC = (
    _file("htmx.js", "text/javascript"),
    _file("icon.svg", "image/svg+xml"),
)
"""Files that every page loads; htmx 2.0.11 (0BSD) refreshes parts of pages."""


def sent(text: str, status: int = 200) -> HTMLResponse:
    """Return a page with the security headers."""
    return HTMLResponse(text, status, page_headers())


def said(sentence: str, status: int, pages: Pages = (), root: str = "") -> HTMLResponse:
    """Return a page with one sentence, whose links begin at root."""
    return sent(page("layout.html", sentence=sentence, pages=pages, root=root), status)
