"""The server while parties join: invitations in place of certificates, one kind of request."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cloister.core.errors import PlanError
from cloister.federation.joining import Board
from cloister.federation.pki import KeyFolder
from cloister.federation.service.client import JOIN
from cloister.federation.service.gate import ERRORS, Application, read_whole
from cloister.federation.service.server import Server, serve

_MOST_BYTES = 1 << 16  # of what a party sends


def make_app(board: Board, on_change: Callable[[], None]) -> Application:
    """Return the application that serves a board, and calls `on_change` after each answer."""

    async def join(request: Request) -> JSONResponse:
        try:
            message = dict(await request.json())
            name, token = str(message.pop("name")), str(message.pop("token"))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise PlanError("message must be a JSON object with a name and a token.") from None
        shown = await run_in_threadpool(board.post, name, token, message)

        def after() -> None:
            board.sent(name, shown)
            on_change()

        # a party that waits for others must not keep its connection from them
        headers = {"connection": "close"}
        return JSONResponse(shown, headers=headers, background=BackgroundTask(after))

    app = Starlette(routes=[Route(JOIN, join, methods=["POST"])], exception_handlers=ERRORS)
    return partial(read_whole, app, _MOST_BYTES)


def serve_board(board: Board, listen: str, keys: KeyFolder, on_change: Callable[[], None]) -> None:
    """Serve a board until everybody has seen everybody's nonce.

    Parameters
    ----------
    listen : str
        ``HOST:PORT`` of the coordinator, which must not run meanwhile.
    keys : KeyFolder
        Of the coordinator.
    on_change : function
        Called when the port is open, and after each answer; never twice at a time.
    """
    stop, one_at_a_time = threading.Event(), threading.Lock()

    def changed() -> None:
        with one_at_a_time:
            on_change()
        if not board.missing("seen"):
            stop.set()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(keys.file("tls.pem"), keys.file("tls.key"))
    server = Server(make_app(board, changed), listen, context, strangers=True)
    serve(server, stop, lambda _: changed())
