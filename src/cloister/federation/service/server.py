"""One TLS port for streams, REST, health and metrics, with client certificates."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from cloister.core.errors import TransportError
from cloister.federation.service.listener import BACKLOG, TlsListener, descriptors, room
from cloister.federation.service.logs import place_of
from cloister.federation.transports.http import MAX_MESSAGE_BYTES

_PEER = "peer_certificate"
_STOPPING = 2  # seconds for open connections to end
_IDLE = (
    10  # seconds for a connection to send the head of a request, after TLS and after each answer
)
_MOST_OF_ONE = 64  # open connections of one certificate, or of one address without one
_MOST_STRANGERS = 256  # open connections without a certificate
_LOG = logging.getLogger(__name__)


def peer_certificate(scope: Mapping[str, Any]) -> bytes | None:
    """Return the client's certificate of an HTTP or WebSocket connection as DER."""
    certificate: bytes | None = scope.get("state", {}).get(_PEER)
    return certificate


class Server:
    """An application behind mutual TLS.

    Parameters
    ----------
    listen : str
        ``HOST:PORT``; port 0 lets the system choose one.
    ssl_context : SSLContext
        Asks every client for a certificate, unless `strangers` may come.
    strangers : bool
        Whether clients without a certificate are served.
    max_message_bytes : int
        Limit of a WebSocket message; a larger one ends its stream before it is read.
    ping_interval, ping_timeout : float, seconds
        A peer that is silent for the sum of both counts as lost.

    Raises
    ------
    TransportError
        If the port cannot be opened.

    Notes
    -----
    The port is open from here on; early connections wait until :meth:`run`.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        listen: str,
        ssl_context: ssl.SSLContext,
        *,
        strangers: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ping_interval: float = 10.0,
        ping_timeout: float = 10.0,
    ) -> None:
        if ssl_context.verify_mode != ssl.CERT_REQUIRED and not strangers:
            raise TransportError("the server's TLS context must ask for client certificates.")
        config = uvicorn.Config(
            app,
            http=_Http,
            ws=_WebSocket,
            interface="asgi3",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="warning",  # a level of the process; what strangers repeat is rate-limited
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws_max_size=max_message_bytes,
            ws_ping_interval=ping_interval,
            ws_ping_timeout=ping_timeout,
            ws_per_message_deflate=False,  # masked vectors do not compress
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=_STOPPING,
        )
        config.load()
        self._socket = _listening(listen)
        self._uvicorn = _Uvicorn(config, self._socket, ssl_context)

    @property
    def port(self) -> int:
        """Number of the open port."""
        port: int = self._socket.getsockname()[1]
        return port

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        loop = asyncio.SelectorEventLoop  # the door needs one that watches sockets
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(self._uvicorn._serve())

    def stop(self) -> None:
        """Let :meth:`run` return soon; may be called from any thread."""
        self._uvicorn.should_exit = True


class Work(Protocol):
    """Background work of a server."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End; a second call does nothing."""


def serve(
    server: Server,
    stop: threading.Event | None = None,
    ready: Callable[[int], None] | None = None,
    work: Work | None = None,
) -> None:
    """Serve in a thread until `stop` is set; end the work before the streams under it.

    Parameters
    ----------
    ready : function, optional
        Called with the port once the server serves.
    """
    stop = stop or threading.Event()
    descriptors(raised=True)
    with ThreadPoolExecutor(1, "server") as threads:
        serving = threads.submit(server.run)
        serving.add_done_callback(lambda _: stop.set())
        try:
            if work:
                work.start()
            _LOG.info("listening at port %d", server.port)
            if ready:
                ready(server.port)
            stop.wait()
            if serving.done():
                serving.result()
        finally:
            if work:
                work.close()
            server.stop()
        if error := serving.exception():
            _LOG.warning("error while closing: %s", place_of(error))


class _Uvicorn(uvicorn.Server):
    """A server whose connections come from :class:`TlsListener` in place of asyncio's listener."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, context: ssl.SSLContext
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        http: Callable[..., Any] = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        protocol = partial(http, config=self.config, **state)
        silent, shaking = room(descriptors())
        self._door = TlsListener(
            self._listener, self._context, protocol, silent=silent, shaking=shaking
        )
        self._door.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._door.close()
        await super().shutdown([])


class _Http(H11Protocol):
    """A protocol that adds the client's certificate to every scope of the connection.

    It closes a connection that does not send the complete head of a request in time. Beyond the
    limit of a certificate it closes the new connection, since the oldest one is a silo's stream.
    Beyond a limit of strangers it closes the oldest one: nobody can hold all places.
    """

    certificate: bytes | None = None
    number = 0
    _numbers = count()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        self.certificate = tls.getpeercert(True) if tls is not None else None
        self.app_state = {**self.app_state, _PEER: self.certificate}
        self.number = next(self._numbers)
        if (leaves := self._beyond_limits()) is not None:
            leaves.transport.abort()
            if leaves is self:
                return
        self.timeout_keep_alive_task = self.loop.call_later(_IDLE, self.timeout_keep_alive_handler)

    def _beyond_limits(self) -> _Http | None:
        """Return the connection that must leave, or None."""
        alike = [
            one
            for one in self.connections
            if isinstance(one, _Http) and one.certificate == self.certificate
        ]
        if self.certificate is not None:
            return self if len(alike) > _MOST_OF_ONE else None
        alike.sort(key=lambda one: one.number)
        neighbours = [one for one in alike if one._address == self._address]
        if len(neighbours) > _MOST_OF_ONE:
            return neighbours[0]
        return alike[0] if len(alike) > _MOST_STRANGERS else None

    @property
    def _address(self) -> str | None:
        """The address of the peer, without its port."""
        return self.client[0] if self.client else None

    def data_received(self, data: bytes) -> None:
        # uvicorn stops the clock at the first byte; here it stops at the end of the head.
        self.conn.receive_data(data)
        self.handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


class _WebSocket(WebSocketsSansIOProtocol):
    """A protocol that drops peers that do not answer, and all peers at the end."""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # asyncio would wait 30 s more for the end of TLS

    def shutdown(self) -> None:
        if self.transport.is_closing():  # it was refused already; uvicorn fails on a second answer
            self.transport.abort()
        else:
            super().shutdown()


def bound(listen: str) -> socket.socket:
    """Listen at HOST:PORT; ``[::]`` stands for all addresses of both versions of IP."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    return socket.create_server(
        (host, int(port)),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=BACKLOG,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )


def _listening(listen: str) -> socket.socket:
    """Open the port."""
    try:
        return bound(listen)
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "it is not HOST:PORT"
        raise TransportError(
            f"cannot listen at {listen!r}: {why}; choose another, or stop what listens there."
        ) from None
