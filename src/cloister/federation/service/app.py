"""The HTTP interface of the coordinator: routes, and who may use them.

Every request, for health and metrics too, needs a certificate that this federation issued and has
not revoked; see :mod:`cloister.federation.service.gate`.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from cloister.federation.pki import Peer
from cloister.federation.service import pages
from cloister.federation.service.gate import ERRORS, MAX_BODY, Application, Gate, Scope, refusal
from cloister.federation.service.hub import Hub
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.relay import Relays
from cloister.federation.service.store import StoredJob, concerns
from cloister.federation.service.web import STATIC

_DIGEST = re.compile("[0-9a-f]{64}")

EXPIRY_WARNING = timedelta(days=30)

_LOG = logging.getLogger(__name__)


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
Place = Annotated[int, Path(ge=0, le=1 << 16)]  # of a silo in the plan
RelayPeer = Annotated[str, Path(pattern="^[A-Za-z0-9._-]{1,64}$")]


def make_app(jobs: Jobs, streams: Hub, identify: Callable[[Scope], Peer]) -> Application:
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
    schemas: dict[str, str] = {}  # digest by name, of silos that connected to this process
    app = FastAPI(
        title="cloister coordinator",
        version="1",
        docs_url=None,  # the page loads its scripts from elsewhere; the document is enough
        redoc_url=None,
        responses=_REFUSALS,
        exception_handlers={**ERRORS, RequestValidationError: _malformed},
    )
    _add_jobs(app, jobs)
    _add_operations(app, jobs, streams, counts, schemas)
    _add_pages(app, jobs, streams)

    @app.websocket("/v1/stream")
    async def stream(websocket: WebSocket) -> None:
        caller: Peer = websocket.scope["caller"]
        if caller.role != "silo":
            await websocket.close(1008, f"only silos have streams, not a {caller.role}.")
            return
        await run_in_threadpool(jobs.store.seen, caller.name, caller.fingerprint, caller.not_after)
        schema = websocket.query_params.get("schema", "")
        schemas[caller.name] = schema if _DIGEST.fullmatch(schema) else ""
        left = caller.not_after - datetime.now(UTC)
        if left < EXPIRY_WARNING:
            _LOG.warning(
                "certificate of %s expires in %d days; renew it",
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


async def _malformed(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])[:200]
    return refusal(request, 422, f"{where}: {first['msg'][:300]}.")


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
        shown = [jobs.view(job) if concerns(job, caller) else jobs.outline(job) for job in newest]
        return {"jobs": shown}

    @app.get("/v1/jobs/{job_id}", summary="A job, its decisions, refusals and progress")
    def show(request: Request, job_id: JobId) -> dict[str, Any]:
        return jobs.details(_job(jobs, job_id, _caller(request)))

    @app.post("/v1/jobs/{job_id}/cancel", summary="End a job permanently")
    def cancel(request: Request, job_id: JobId) -> dict[str, Any]:
        caller = _caller(request, "analyst", "coordinator")
        job = _job(jobs, job_id, caller)
        # By fingerprint: a name can be enrolled again with another key.
        if caller.role == "analyst" and job.proposer["fingerprint"] != caller.fingerprint:
            raise HTTPException(403, f"job {job_id!r} was proposed by another analyst.")
        if not jobs.cancel(job_id, caller.name):
            state = _job(jobs, job_id, caller).state
            raise HTTPException(409, f"job {job_id!r} has ended already: it is {state}.")
        return jobs.view(_job(jobs, job_id, caller))

    @app.get("/v1/jobs/{job_id}/result/{place}", summary="A silo's box for a reader, as bytes")
    def result(request: Request, job_id: JobId, place: Place) -> Response:
        caller = _caller(request)
        job = _job(jobs, job_id, caller)
        # Nobody else could open the box; a refusal keeps its length and its bytes from others.
        if caller.fingerprint not in job.readers:
            raise HTTPException(
                403, f"{caller.name!r} is not a reader of job {job_id!r}; its result is elsewhere."
            )
        if job.state != "done":
            raise HTTPException(409, f"job {job_id!r} has no result: it is {job.state}.")
        silo = job.silos[place] if place < len(job.silos) else ""
        box = jobs.box(job, silo, caller.fingerprint)
        if box is None:
            raise HTTPException(404, f"silo {place} of job {job_id!r} sealed no result.")
        return Response(box, media_type="application/octet-stream")


def _add_operations(
    app: FastAPI,
    jobs: Jobs,
    streams: Hub,
    counts: Counter[tuple[str, str, int]],
    schemas: Mapping[str, str],
) -> None:
    numbers = CollectorRegistry()
    numbers.register(Numbers(jobs, streams, counts))

    @app.get("/v1/silos", summary="Silos that ever connected")
    def silos(request: Request) -> dict[str, Any]:
        _caller(request, "analyst", "coordinator", "silo")
        releases = streams.releases()
        return {
            "silos": [
                {
                    "name": silo.name,
                    "fingerprint": silo.fingerprint,
                    "connected": silo.name in releases,
                    "release": releases.get(silo.name),
                    "not_after": silo.not_after.isoformat(),
                    "seen_at": silo.seen_at,
                    "schema": schemas.get(silo.name, ""),  # its digest, as the silo states it
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
    everybody = ("analyst", "coordinator", "silo")

    @app.get("/", include_in_schema=False)
    def overview(request: Request) -> HTMLResponse:
        return pages.overview(jobs, streams.connected(), _caller(request, *everybody))

    @app.get("/jobs/{job_id}", include_in_schema=False)
    def page_of_job(request: Request, job_id: str) -> HTMLResponse:
        return pages.one_job(jobs, _job(jobs, job_id, _caller(request, *everybody)))


def _caller(request: Request, *roles: str) -> Peer:
    """Return the caller if its role is permitted."""
    caller: Peer = request.scope["caller"]
    if roles and caller.role not in roles:
        raise HTTPException(
            403,
            f"caller must have a role of {list(roles)}, but {caller.name!r} is a {caller.role}.",
        )
    return caller


def _job(jobs: Jobs, job_id: str, caller: Peer) -> StoredJob:
    """Return a job that the caller may see completely."""
    # One answer for missing and foreign jobs, so that ids of others cannot be probed.
    job = jobs.store.job(job_id)
    if job is None or (caller.role == "silo" and not concerns(job, caller)):
        raise HTTPException(404, f"there is no job {job_id!r} for {caller.name!r}.")
    if not concerns(job, caller):
        raise HTTPException(
            403,
            f"job {job_id!r} is for its proposer, its readers and its silos; {caller.name!r} sees "
            "it in the list of jobs only.",
        )
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
