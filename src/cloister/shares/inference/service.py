"""A scorer's service: encrypted rows in, encrypted scores out, for pinned callers with quotas.

The owner of the model sees ciphertexts of a public batch shape and nothing else. The number of rows
that a caller had scored is durable before an answer is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from cloister.core.errors import TransportError
from cloister.federation.pki import Peer, server_context
from cloister.federation.service.audit import Audit
from cloister.federation.service.gate import ERRORS, Enrolled, Gate, Scope
from cloister.federation.service.process import prepare
from cloister.federation.service.server import Server, serve
from cloister.shares.inference.encrypted import ScoringServer
from cloister.shares.inference.limits import QueryLimit
from cloister.shares.inference.linear import LinearScorer

if TYPE_CHECKING:
    from cloister.federation.settings import ScorerSettings


def make_app(
    scoring: ScoringServer,
    identify: Callable[[Scope], Peer],
    callers: Mapping[str, str],
    audit: Audit,
) -> Gate:
    """Return the application.

    Parameters
    ----------
    identify : function
        Returns the party that a connection's certificate names.
    callers : mapping of name to fingerprint
        Permitted callers, as the model's owner pinned them. Bodies of other parties are not read.
    """
    app = FastAPI(
        title="cloister scorer",
        version="1",
        docs_url=None,
        redoc_url=None,
        exception_handlers=ERRORS,
    )

    # The authority alone admits no caller: the owner of the model pins each of them.
    def pinned(scope: Scope) -> Peer:
        caller = identify(scope)
        if callers.get(caller.name) != caller.fingerprint:
            raise TransportError(
                f"{caller.name!r} is not among the callers that the model's owner pinned."
            )
        return caller

    @app.get(
        "/v1/model", summary="Public parameters that a caller needs to encrypt rows; no weights"
    )
    def model(request: Request) -> dict[str, Any]:
        left = scoring.left(request.scope["caller"].name)
        return {"offer": scoring.offer.document(), "rows_left": left}

    @app.put("/v1/key", summary="Replace the caller's public key")
    async def key(request: Request) -> dict[str, str]:
        caller, body = request.scope["caller"].name, await request.body()
        return {"key": await run_in_threadpool(scoring.admit, caller, body)}

    @app.post("/v1/score", summary="Scores of encrypted rows, encrypted")
    async def score(request: Request) -> Response:
        caller, body = request.scope["caller"].name, await request.body()
        # Arithmetic on ciphertexts would block the event loop for all callers.
        reply = await run_in_threadpool(scoring.predict, caller, body)
        await run_in_threadpool(audit.write, "scored", caller=caller, rows=scoring.offer.rows)
        return Response(reply, media_type="application/octet-stream")

    return Gate(app, pinned, audit, scoring.most_bytes)


def run(
    settings: ScorerSettings,
    *,
    ready: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a scorer until a signal stops it; see :func:`cloister.federation.service.main.run`."""
    keys = prepare(settings.keys)
    scorer = LinearScorer.load(settings.model)
    limit = QueryLimit(settings.max_rows_per_caller, settings.queries)
    scoring = ScoringServer(scorer, limit, rows=settings.rows, hides="features")
    audit = Audit(settings.audit_log)
    try:
        app = make_app(scoring, Enrolled(keys), settings.callers, audit)
        serve(Server(app, settings.listen, server_context(keys)), stop, ready)
    finally:
        audit.close()
