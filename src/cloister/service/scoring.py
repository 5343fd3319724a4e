"""A scorer's service: encrypted rows in, encrypted scores out, for pinned callers and so many rows.

The owner of the model sees ciphertexts of a public batch shape and nothing else; how many rows a
caller had scored is durable before an answer leaves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from cloister.enrolment import Peer, server_context
from cloister.inference.encrypted import ScoringServer
from cloister.inference.limits import QueryLimit
from cloister.inference.linear import read_scorer
from cloister.service.app import Gate, add_errors
from cloister.service.audit import Audit
from cloister.service.main import Enrolled
from cloister.service.process import prepare
from cloister.service.server import Server

if TYPE_CHECKING:
    from cloister.settings import ScorerSettings

MEDIA_TYPE = "application/octet-stream"
_LOG = logging.getLogger(__name__)


def make_app(
    server: ScoringServer, callers: Mapping[str, str], left: Callable[[str], int], audit: Audit
) -> FastAPI:
    """Return the application, to be served behind a :class:`Gate`.

    Parameters
    ----------
    callers : mapping of name to fingerprint
        Who may ask: what a certificate says must be what the model's owner pinned.
    left : function
        From a caller's name to the rows that it may still have scored.
    """
    app = FastAPI(title="cloister scorer", version="1", docs_url=None, redoc_url=None)
    add_errors(app)

    def allowed(request: Request) -> str:
        caller: Peer = request.scope["caller"]
        if callers.get(caller.name) != caller.fingerprint:
            raise HTTPException(
                403, f"{caller.name!r} is not among the callers that the model's owner pinned."
            )
        return caller.name

    @app.get("/healthz", summary="The process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/model", summary="What a caller must know to encrypt rows; no weight")
    def model(request: Request) -> dict[str, Any]:
        return {"offer": server.offer.document(), "rows_left": left(allowed(request))}

    @app.put("/v1/key", summary="Take the caller's public key in place of the one before")
    async def key(request: Request) -> dict[str, str]:
        caller, body = allowed(request), await request.body()
        return {"key": await run_in_threadpool(server.admit, caller, body)}

    @app.post("/v1/score", summary="Scores of encrypted rows, encrypted")
    async def score(request: Request) -> Response:
        caller, body = allowed(request), await request.body()
        reply = await run_in_threadpool(server.predict, caller, body)
        await run_in_threadpool(audit.write, "scored", caller=caller, rows=server.offer.rows)
        return Response(reply, media_type=MEDIA_TYPE)

    return app


def run(
    settings: ScorerSettings,
    *,
    ready: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a scorer until it is told to stop; see :func:`cloister.service.main.run`."""
    stop = stop or threading.Event()
    keys = prepare(settings.keys)
    scorer = read_scorer(settings.model)
    limit = QueryLimit(settings.max_rows_per_caller, settings.queries)
    scoring = ScoringServer(scorer, limit, rows=settings.rows, hides="features")
    audit = Audit(settings.audit_log)
    try:
        left = partial(limit.left, model=scorer.digest)
        app = make_app(scoring, settings.callers, left, audit)
        gate = Gate(app, Enrolled(keys), audit, settings.max_message_bytes)
        server = Server(gate, settings.listen, server_context(keys))
        with ThreadPoolExecutor(1, "server") as threads:
            serving = threads.submit(server.run)
            serving.add_done_callback(lambda _: stop.set())
            _LOG.info("listening at port %d", server.port)
            if ready:
                ready(server.port)
            stop.wait()
            server.stop()
            serving.result()
    finally:
        audit.close()
