"""The guard of all console pages: it authenticates requests and restricts browsers.

The terminal shows one link. It works once, within 15 minutes. It leads to a secret path, below
which all pages are, and sets a cookie for this path that no script can read. The cookie alone does
not suffice: a browser also sends it to other servers of this machine, as cookies ignore ports.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloister.core.html import page_headers
from cloister.core.randomness import new_key
from cloister.federation.service.web import said

LINK_SECONDS = 900.0
IDLE_SECONDS = 1800.0  # without a page that a person opened
_MOST_BODY = 1 << 18  # bytes of a form; bounds the memory of one request
Form = ImmutableMultiDict[str, str]
"""The text of each field of a page, or of its address."""
_NO_SESSION = "Open the link that 'cloister console' printed; start it again for a new link."
_LEFT = "The session has ended. Jobs go on; start 'cloister console' again for a new link."


class Guard:
    """An application that only the person with the link can use.

    Parameters
    ----------
    app : ASGI application
        Reads the fields of a checked form from ``request.state.form``, and the token for its forms
        from ``request.state.csrf``.
    port : int
        The port on loopback.
    clock : function
        Returns monotonic seconds.

    Attributes
    ----------
    root : str
        The secret path below which all pages are.
    """

    def __init__(
        self, app: ASGIApp, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._port = port
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._clock = clock
        self._until = clock() + LINK_SECONDS
        self._link: str | None = new_key().hex()
        self._session: str | None = None
        self._csrf = new_key().hex()
        self._ends = 0.0
        self.root = f"/{new_key().hex()}"
        self._cookie = f"cloister-{port}"  # a browser shares cookies between ports

    @property
    def link(self) -> str:
        """The link for the terminal."""
        return f"http://127.0.0.1:{self._port}/enter?key={self._link}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application with its checked form."""
        if scope["type"] != "http":  # a WebSocket carries no CSRF token
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in page_headers().items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        answer: ASGIApp = await self._refusal(request) or self._app
        with suppress(Exception):  # a page reported it; a log of it could contain a record
            await answer(scope, receive, hardened)

    async def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request; None if it may pass, with its form in its state."""
        # A page of another site can point its own name at loopback (DNS rebinding).
        if request.headers.getlist("host") not in [[host] for host in self._hosts]:
            return said("This address is not the console's.", 421)
        path = request.scope["path"]
        if path == "/enter":
            return self._enter(request)
        if not self._is_known(request):
            return said(_NO_SESSION, 401)
        request.scope["root_path"] = self.root
        if "hx-request" not in request.headers:  # a page that renews itself is not a person
            self._ends = self._clock() + IDLE_SECONDS
        form: Form = ImmutableMultiDict()
        if request.method not in ("GET", "HEAD"):
            sent = await _form(request)
            origin = f"http://{request.headers['host']}"
            if sent is None:
                return said("This form is too long.", 413)
            if request.headers.get("origin") != origin or not _same(sent.get("csrf"), self._csrf):
                return said("This form is not the console's; load its page again.", 403)
            form = sent
            if path == f"{self.root}/leave":
                self._session = None
                return said(_LEFT, 200)
        request.state.form, request.state.csrf = form, self._csrf
        return None

    def _is_known(self, request: Request) -> bool:
        """Return True for a request below the secret path, with the cookie, before the end."""
        if self._clock() >= self._ends:
            self._session = None
        root = "/" + request.scope["path"][1:].partition("/")[0]
        cookie = request.cookies.get(self._cookie)
        return _same(root, self.root) and _same(cookie, self._session)

    def _enter(self, request: Request) -> Response:
        usable = self._link is not None and self._clock() < self._until
        if request.method != "GET" or not usable:
            return said(_NO_SESSION, 401)
        if not _same(request.query_params.get("key"), self._link):
            return said(_NO_SESSION, 401)
        self._link = None  # used up: the link may stay in the history of the browser
        self._session, self._ends = new_key().hex(), self._clock() + IDLE_SECONDS
        answer = RedirectResponse(f"{self.root}/", 303)
        answer.set_cookie(
            self._cookie, self._session, path=self.root, httponly=True, samesite="strict"
        )
        return answer


def _same(sent: str | None, secret: str | None) -> bool:
    if sent is None or secret is None:
        return False
    # In constant time, as any process of this machine can send guesses.
    return hmac.compare_digest(sent.encode("utf-8", "replace"), secret.encode())


async def _form(request: Request) -> Form | None:
    """Return the fields of a form, or None if it is longer than all forms of the console."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY:
            return None
    return ImmutableMultiDict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
