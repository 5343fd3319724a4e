"""The HTTP interface of the coordinator: routes, permissions and limits.

Every request, also for health and metrics, requires a certificate that this federation issued and
did not revoke. A refusal is one sentence, as JSON, ``{"error": "..."}``, or as a page to a browser.
Browsers may only read, since they send a certificate on behalf of pages of any site.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from cloister.core.errors import (
    BudgetExceeded,
    CloisterError,
    LedgerError,
    PlanError,
    RemoteProtocolError,
    TransportError,
)
from cloister.federation.pki import Peer
from cloister.federation.service import pages
from cloister.federation.service.audit import Audit
from cloister.federation.service.hub import Hub
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.logs import Seldom, place_of
from cloister.federation.service.relay import Relays
from cloister.federation.service.store import StoredJob
from cloister.federation.service.web import STATIC, said

MAX_BODY = 8 * 2**20  # bytes of a request's body
BODY_SECONDS = 30.0  # for a body to arrive
EXPIRY_WARNING = timedelta(days=30)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LOG = logging.getLogger(__name__)


class NotEnrolled(TransportError):
    """A genuine certificate is no longer valid.

    Parameters
    ----------
    peer : Peer
        The party that it names.
    why : str
        The reason, for example "was revoked".
    """

    def __init__(self, peer: Peer, why: str) -> None:
        super().__init__(f"the certificate of {peer.name!r} {why}; enrol again.")
        self.peer = peer


class Proposer(BaseModel):
    """The proposer of a job, with a signature over the plan's digest."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=255)
    fingerprint: str = Field(max_length=80)
    public: str = Field(max_length=64)
    signature: str = Field(max_length=128)


class Proposal(BaseModel):
    """A job as an analyst or the operator proposes it."""

    model_config = ConfigDict(extra="forbid")
    plan: dict[str, Any]
    proposer: Proposer


class Refusal(BaseModel):
    """The reason of a refusal, in one sentence."""

    error: str


_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal} for code in (400, 401, 403, 404, 408, 409, 413, 422, 429, 503)
}
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
RelayPeer = Annotated[str, Path(pattern="^[A-Za-z0-9._-]{1,64}$")]


def make_app(
    jobs: Jobs, streams: Hub, identify: Callable[[Scope], Peer]
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return the ASGI application of the coordinator.

    Parameters
    ----------
    streams : Hub
        Serves the streams of silos at ``/v1/stream``.
    identify : function
        Returns the party that a connection's certificate names; raises
        :class:`~cloister.core.errors.TransportError` with the reason if it is not enrolled.
    """
    counts: Counter[tuple[str, str, int]] = Counter()
    app = FastAPI(
        title="cloister coordinator",
        version="1",
        docs_url=None,  # the page loads its scripts from elsewhere; the document is enough
        redoc_url=None,
        responses=_REFUSALS,
    )
    add_errors(app)
    _add_jobs(app, jobs)
    _add_operations(app, jobs, streams, counts)
    _add_pages(app, jobs, streams)

    @app.websocket("/v1/stream")
    async def stream(websocket: WebSocket) -> None:
        caller: Peer = websocket.scope["caller"]
        if caller.role != "silo":
            await websocket.close(1008, f"only silos have streams, not a {caller.role}.")
            return
        await run_in_threadpool(jobs.store.seen, caller.name, caller.fingerprint, caller.not_after)
        left = caller.not_after - datetime.now(UTC)
        if left < EXPIRY_WARNING:
            _LOG.warning(
                "certificate of %s expires in %d days; enrol it again",
                caller.name,
                left.days,
                extra={"silo": caller.name},
            )
        await streams.serve(websocket, caller.name)

    relays = Relays(identify)

    @app.websocket("/v1/relay/{session}/{peer}")
    async def relay(websocket: WebSocket, session: JobId, peer: RelayPeer) -> None:
        caller: Peer = websocket.scope["caller"]
        await relays.serve(websocket, caller.name, session, peer)

    # Outermost, so that no route runs for a party without a valid certificate.
    return Gate(app, identify, jobs.audit, MAX_BODY, counts, shut_out=jobs.shut_out)


# Routes --------------------------------------------------------------------------------------


def _add_jobs(app: FastAPI, jobs: Jobs) -> None:
    @app.post("/v1/jobs", status_code=201, summary="Propose a job to its silos")
    def submit(request: Request, proposal: Proposal) -> dict[str, Any]:
        caller = _caller(request, "analyst", "coordinator")
        job = jobs.submit(
            proposal.plan,
            proposal.proposer.model_dump(),
            name=caller.name,
            fingerprint=caller.fingerprint,
        )
        return jobs.view(job)

    @app.get("/v1/jobs", summary="The newest jobs, newest first")
    def index(
        request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> dict[str, Any]:
        caller = _caller(request)
        silo = caller.name if caller.role == "silo" else None
        newest = jobs.store.jobs(silo=silo, limit=limit, brief=True)
        return {"jobs": [jobs.view(job) for job in newest]}

    @app.get("/v1/jobs/{job_id}", summary="A job, its decisions, refusals and progress")
    def show(request: Request, job_id: JobId) -> dict[str, Any]:
        return jobs.details(_job(jobs, job_id, _caller(request)))

    @app.post("/v1/jobs/{job_id}/cancel", summary="End a job for good")
    def cancel(request: Request, job_id: JobId) -> dict[str, Any]:
        caller = _caller(request, "analyst", "coordinator")
        job = _job(jobs, job_id, caller)
        # By fingerprint: a name can be enrolled again with another key.
        if caller.role == "analyst" and job.proposer["fingerprint"] != caller.fingerprint:
            raise HTTPException(403, f"job {job_id!r} was proposed by somebody else.")
        if not jobs.cancel(job_id, caller.name):
            state = _job(jobs, job_id, caller).state
            raise HTTPException(409, f"job {job_id!r} has ended already: it is {state}.")
        return jobs.view(_job(jobs, job_id, caller))

    @app.get("/v1/jobs/{job_id}/result", summary="The noised sums, where the plan publishes them")
    def result(request: Request, job_id: JobId) -> dict[str, Any]:
        job = _job(jobs, job_id, _caller(request))
        if not job.plan["publish"]:
            raise HTTPException(
                403, f"the plan of job {job_id!r} does not publish; its result is at the silos."
            )
        if job.result is None:
            raise HTTPException(409, f"job {job_id!r} has no result: it is {job.state}.")
        return dict(job.result)


def _add_operations(
    app: FastAPI, jobs: Jobs, streams: Hub, counts: Counter[tuple[str, str, int]]
) -> None:
    numbers = CollectorRegistry()
    numbers.register(Numbers(jobs, streams, counts))

    @app.get("/v1/silos", summary="Silos that ever connected")
    def silos(request: Request) -> dict[str, Any]:
        _caller(request, "analyst", "coordinator")
        connected = streams.connected()
        return {
            "silos": [
                {
                    "name": silo.name,
                    "fingerprint": silo.fingerprint,
                    "connected": silo.name in connected,
                    "not_after": silo.not_after.isoformat(),
                    "seen_at": silo.seen_at,
                }
                for silo in jobs.store.silos()
            ]
        }

    @app.get("/healthz", summary="The process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="The database answers")
    def readyz() -> dict[str, str]:
        jobs.store.check()
        return {"status": "ready"}

    @app.get("/metrics", summary="Numbers for Prometheus", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        text = generate_latest(numbers)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_pages(app: FastAPI, jobs: Jobs, streams: Hub) -> None:
    app.router.routes.extend(STATIC)
    readers = ("analyst", "coordinator", "silo")

    @app.get("/", include_in_schema=False)
    def overview(request: Request) -> HTMLResponse:
        return pages.overview(jobs, streams.connected(), _caller(request, *readers))

    @app.get("/jobs/{job_id}", include_in_schema=False)
    def page_of_job(request: Request, job_id: str) -> HTMLResponse:
        return pages.one_job(jobs, _job(jobs, job_id, _caller(request, *readers)))


def _caller(request: Request, *roles: str) -> Peer:
    """Return the caller if its role is permitted."""
    caller: Peer = request.scope["caller"]
    if roles and caller.role not in roles:
        raise HTTPException(
            403, f"this is for the roles {list(roles)}, and {caller.name!r} is a {caller.role}."
        )
    return caller


def _job(jobs: Jobs, job_id: str, caller: Peer) -> StoredJob:
    """Return a job that the caller may see."""
    # One answer for missing and foreign jobs, so that ids of others cannot be probed.
    job = jobs.store.job(job_id)
    if job is None or (caller.role == "silo" and caller.name not in job.silos):
        raise HTTPException(404, f"there is no job {job_id!r} for {caller.name!r}.")
    return job


@dataclass(frozen=True, eq=False)
class Numbers(Collector):
    """Metrics for Prometheus: jobs, answered rounds, open streams, and requests since the start.

    Parameters
    ----------
    requests : mapping of (str, str, int) to int
        By method, route and status code.
    """

    jobs: Jobs
    streams: Hub
    requests: Mapping[tuple[str, str, int], int]

    def collect(self) -> Iterator[Metric]:
        """Yield the current numbers."""
        by_state, rounds = self.jobs.store.counts()
        states = GaugeMetricFamily("cloister_jobs", "Jobs by state.", labels=["state"])
        for state, count in by_state.items():
            states.add_metric([state], count)
        yield states
        yield CounterMetricFamily("cloister_rounds", "Rounds answered.", rounds)
        connected = len(self.streams.connected())
        yield GaugeMetricFamily("cloister_connected_silos", "Open streams.", connected)
        labels = ["method", "route", "code"]
        requests = CounterMetricFamily("cloister_requests", "Requests since start.", labels=labels)
        for (method, route, code), count in sorted(self.requests.items()):
            requests.add_metric([method, route, str(code)], count)
        yield requests


# Errors --------------------------------------------------------------------------------------


def add_errors(app: FastAPI) -> None:
    """Answer errors of this package with their sentence and a matching status."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        return _refusal(request, error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        return _refusal(request, 422, f"{where}: {first['msg'][:300]}.")

    for kind, code in ((PlanError, 422), (RemoteProtocolError, 422), (BudgetExceeded, 429)):

        @app.exception_handler(kind)
        async def ours(request: Request, error: CloisterError, code: int = code) -> Response:
            return _refusal(request, code, str(error))

    @app.exception_handler(LedgerError)
    async def no_store(request: Request, error: LedgerError) -> Response:
        _LOG.error("%s", error)
        return _refusal(request, 503, "this party's database cannot be used; see its log.")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _LOG.error("unexpected error: %s", place_of(error))
        return _refusal(request, 500, f"unexpected {type(error).__name__}; see this party's log.")


def _refusal(
    asked: Mapping[str, Any], code: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a sentence as HTML if the client accepts it, else as JSON."""
    if b"text/html" not in dict(asked["headers"]).get(b"accept", b""):
        return JSONResponse({"error": sentence}, status_code=code, headers=headers)
    answer = said(sentence, code)
    answer.headers.update(headers or {})
    return answer


# The gate ------------------------------------------------------------------------------------


@dataclass
class Gate:
    """The middleware that admits enrolled parties, bounds request bodies, and counts requests.

    A body is read completely before it is parsed. Repeated refusals of one party give one line a
    minute in the audit file, with the number of refusals since the previous line.
    """

    app: Callable[[Scope, Receive, Send], Awaitable[None]]
    identify: Callable[[Scope], Peer]
    audit: Audit
    max_body: int
    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    shut_out: Callable[[str, str], None] | None = None
    turned_away: Seldom = field(default_factory=Seldom)

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
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not enrolled"})
        else:
            code = 403 if "caller" in scope else 401
            self.counts[_known_method(scope), "", code] += 1
            await _refusal(scope, code, str(error))(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "")
                self.counts[_known_method(scope), route, message["status"]] += 1
            await send(message)

        if {b"content-length", b"transfer-encoding"} <= dict(scope["headers"]).keys():
            # The end of the request is ambiguous: RFC 9112, section 6.1.
            twice = "a request must have Content-Length or Transfer-Encoding, and not both."
            await _refusal(scope, 400, twice, {"connection": "close"})(scope, receive, counted)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(scope, receive, self.max_body)
        except TimeoutError:
            late = f"the request's body did not arrive within {BODY_SECONDS:g} seconds."
            await _refusal(scope, 408, late)(scope, receive, counted)
            return
        if body is None:
            large = f"the request's body must have at most {self.max_body} bytes."
            await _refusal(scope, 413, large, {"connection": "close"})(scope, receive, counted)
            return
        # The application reads the body from here, once, instead of from the connection.
        unread = [body]

        async def replay() -> MutableMapping[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        await self.app(scope, replay, counted)


def _check_only_reads(scope: Scope) -> None:
    """Raise TransportError for requests of web pages, which carry the Origin header."""
    reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    if not reads and b"origin" in dict(scope["headers"]):
        raise TransportError("a browser only reads here; use the command 'cloister' for the rest.")


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """Return the whole body, or None as soon as it is too large."""
    # A declared length is checked before the first byte; chunked bodies are checked as they grow.
    stated = dict(scope["headers"]).get(b"content-length", b"0")
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
    """Return the method, or "other", so that callers cannot create labels of metrics."""
    method: str = scope["method"]
    return method if method in ("GET", "POST", "HEAD", "OPTIONS") else "other"
