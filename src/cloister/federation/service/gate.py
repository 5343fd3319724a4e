"""The gate before an application: it admits callers, bounds bodies and formats refusals.

A refusal is one sentence, as JSON, ``{"error": "..."}``, or as a page to a browser. Browsers only
read: they show a certificate on behalf of any page, whatever site it is from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cloister.core.errors import (
    BudgetExceeded,
    CloisterError,
    LedgerError,
    PlanError,
    RemoteProtocolError,
    TransportError,
)
from cloister.federation.pki import KeyFolder, Peer, peer_of, revoked_serials, version_of
from cloister.federation.service.audit import Audit
from cloister.federation.service.logs import RateLimitedLog, place_of
from cloister.federation.service.server import peer_certificate
from cloister.federation.service.web import said

MAX_BODY = 8 * 2**20  # bytes of a request's body
BODY_SECONDS = 30.0  # for a body to arrive
MOST_VALUES = 100_000  # of JSON; parsing takes microseconds for each, and streams wait meanwhile

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger(__name__)


class NotEnrolled(TransportError):
    """A genuine certificate no longer counts.

    Parameters
    ----------
    peer : Peer
        Whom it names.
    why : str
        As in "was revoked".
    """

    def __init__(self, peer: Peer, why: str) -> None:
        super().__init__(f"the certificate of {peer.name!r} {why}; enrol again.")
        self.peer = peer


class Enrolled:
    """A check of connections: it returns the peer of a certificate that is still accepted.

    Parameters
    ----------
    keys : KeyFolder
        Of the coordinator; a new revocation list in it applies from the next check.

    Notes
    -----
    It is asked of every open stream each second: a file that did not change is not read again.
    """

    def __init__(self, keys: KeyFolder) -> None:
        self._keys = keys
        self._files = (keys.path / "crl.pem", keys.path / "ca.pem")
        self._read: tuple[object, frozenset[int]] | None = None

    def __call__(self, scope: Scope) -> Peer:
        """Return the peer of a connection, or raise :class:`TransportError`."""
        certificate = peer_certificate(scope)
        if certificate is None:
            raise TransportError("a client certificate of this federation is needed; enrol first.")
        peer = _peer(certificate)
        if peer.serial in self._revoked():
            raise NotEnrolled(peer, "was revoked")
        if peer.not_after < datetime.now(UTC):
            raise NotEnrolled(peer, "has expired")
        return peer

    def _revoked(self) -> frozenset[int]:
        files = tuple(map(version_of, self._files))
        if self._read is None or self._read[0] != files:
            self._read = files, revoked_serials(self._keys)
        return self._read[1]


# Open streams are checked each second, so a certificate is parsed once.
_peer = lru_cache(maxsize=1024)(peer_of)


# Errors --------------------------------------------------------------------------------------


async def _refused(request: Request, error: HTTPException) -> Response:
    return refusal(request, error.status_code, str(error.detail), error.headers)


async def _not_acceptable(request: Request, error: CloisterError) -> Response:
    return refusal(request, 429 if isinstance(error, BudgetExceeded) else 422, str(error))


async def _no_store(request: Request, error: LedgerError) -> Response:
    _LOG.error("%s", error)
    return refusal(request, 503, "this party's database cannot be used; see its log.")


async def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("unexpected error: %s", place_of(error))
    return refusal(request, 500, f"unexpected {type(error).__name__}; see this party's log.")


ERRORS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: _refused,
    **dict.fromkeys((PlanError, RemoteProtocolError, BudgetExceeded), _not_acceptable),
    LedgerError: _no_store,
    Exception: _unexpected,
}
"""Handlers of an application: errors of this package are their sentence with a fitting status."""


def refusal(
    asked: Mapping[str, Any], code: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a sentence as a page for a browser, which accepts HTML, and as JSON otherwise."""
    if b"text/html" not in dict(asked["headers"]).get(b"accept", b""):
        return JSONResponse({"error": sentence}, status_code=code, headers=headers)
    answer = said(sentence, code)
    answer.headers.update(headers or {})
    return answer


# The gate ------------------------------------------------------------------------------------


@dataclass
class Gate:
    """A gate that admits enrolled callers, bounds the size of a body, and counts requests.

    A body is read whole before anything is parsed. A caller that is refused repeatedly gets one
    line a minute in the audit file, with the number of refusals since the line before.
    """

    app: Application
    identify: Callable[[Scope], Peer]
    audit: Audit
    max_body: int
    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    shut_out: Callable[[str, str], None] | None = None
    turned_away: RateLimitedLog = field(default_factory=RateLimitedLog)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            scope["caller"] = await run_in_threadpool(self.identify, scope)
            _check_only_reads(scope)
        except CloisterError as error:  # also if the list of revoked certificates is not sound
            await self._turn_away(scope, receive, send, error)
            return
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
        else:
            await self._request(scope, receive, send)

    async def _turn_away(
        self, scope: Scope, receive: Receive, send: Send, error: CloisterError
    ) -> None:
        client = scope.get("client") or ("?", 0)
        _LOG.warning("turned away: %s", error)
        if (more := self.turned_away.since(str(error))) is not None:
            line = partial(self.audit.write, "turned away", more=more)
            await run_in_threadpool(line, address=str(client[0]), reason=str(error))
        if self.shut_out and isinstance(error, NotEnrolled) and error.peer.role == "silo":
            await run_in_threadpool(self.shut_out, error.peer.name, str(error))
        if scope["type"] == "websocket":
            # ASGI delivers "websocket.connect" before it takes a close.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not enrolled"})
        else:
            # 401 asks for a valid certificate; this caller may already have shown one.
            code = 403 if "caller" in scope else 401
            self.counts[_known_method(scope), "", code] += 1
            await refusal(scope, code, str(error))(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "")
                self.counts[_known_method(scope), route, message["status"]] += 1
            await send(message)

        await read_whole(self.app, self.max_body, scope, receive, counted)


async def read_whole(
    app: Application, max_body: int, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a request whose body has arrived, or refuse it if that takes too long or too much."""
    if {b"content-length", b"transfer-encoding"} <= dict(scope["headers"]).keys():
        # where the request ends is anybody's guess: RFC 9112, section 6.1
        twice = "a request must have Content-Length or Transfer-Encoding, and not both."
        await refusal(scope, 400, twice, {"connection": "close"})(scope, receive, send)
        return
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _body(scope, receive, max_body)
    except TimeoutError:
        late = f"the request's body did not arrive within {BODY_SECONDS:g} seconds."
        await refusal(scope, 408, late)(scope, receive, send)
        return
    if body is None:
        large = f"the request's body must have at most {max_body} bytes."
        await refusal(scope, 413, large, {"connection": "close"})(scope, receive, send)
        return
    if body.count(b",") + body.count(b":") > MOST_VALUES:
        large = f"the request's body must have at most {MOST_VALUES} values."
        await refusal(scope, 413, large)(scope, receive, send)
        return
    unread = [body]

    async def replay() -> MutableMapping[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    await app(scope, replay, send)


def _check_only_reads(scope: Scope) -> None:
    """Refuse what a web page sends; browsers name the page's site, and nobody else does."""
    reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    if not reads and b"origin" in dict(scope["headers"]):
        raise TransportError(
            "browsers have read access only; use the command 'cloister' for changes."
        )


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """Read the whole body, or return None as soon as it is known to be too large."""
    stated = dict(scope["headers"]).get(b"content-length", b"0")
    # 20 digits exceed any size in 64 bits, and int() of very long texts is slow.
    if not stated.isdigit() or len(stated) > 20 or int(stated) > most:
        return None
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)


def _known_method(scope: Scope) -> str:
    """Return the method, or "other": labels of metrics must not be the caller's to choose."""
    method: str = scope["method"]
    return method if method in ("GET", "POST", "HEAD", "OPTIONS") else "other"
