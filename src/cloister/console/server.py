"""The console's server, which listens on loopback only."""

from __future__ import annotations

import socket
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from cloister.core.errors import PlanError


def listening(port: int) -> socket.socket:
    """Return a socket that listens on loopback; port 0 selects any free port."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise PlanError(
            f"port must be free on 127.0.0.1, got {port}; give another --port."
        ) from error


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # a log would contain the link
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after it stopped
        uvicorn.Server(config).run(sockets=[listener])
