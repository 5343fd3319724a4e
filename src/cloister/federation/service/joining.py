"""The server while parties join: invitations in place of certificates, one kind of request."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from cloister.core.errors import CloisterError, PlanError, TransportError
from cloister.federation.joining import Board, Invitation
from cloister.federation.pki import KeyFolder
from cloister.federation.service.client import Connection

_PATH = "/v1/join"
_SECONDS, _MOST_BYTES, _MOST_AT_ONCE = 10.0, 1 << 16, 64  # for whoever connects, invited or not


class Joining(Connection):
    """A party's connection to the coordinator while it joins.

    Parameters
    ----------
    invitation : Invitation
        Its authority is the only trusted one.
    """

    _whom = "coordinator"

    def __init__(self, invitation: Invitation, proxy: str | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(cadata=invitation.federation.ca)
        except (ssl.SSLError, ValueError):
            raise PlanError("invitation holds no certificate of an authority; ask again.") from None
        super().__init__(invitation.federation.coordinator, context, proxy)
        self._sender = {"name": invitation.name, "token": invitation.token}

    def post(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send this party's message; return the board."""
        return self._call("POST", _PATH, json={**self._sender, **message})


class JoiningServer(ThreadingHTTPServer):
    """The server of a board until all parties received all nonces.

    Parameters
    ----------
    listen : str
        ``HOST:PORT`` of the coordinator, which must not run meanwhile.
    keys : KeyFolder
        Keys of the coordinator.
    """

    daemon_threads = True

    def __init__(self, board: Board, listen: str, keys: KeyFolder) -> None:
        self.board = board
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_cert_chain(keys.file("tls.pem"), keys.file("tls.key"))
        self.changed = threading.Event()
        self._places = threading.Semaphore(_MOST_AT_ONCE)  # other threads of the process count not
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, int(port)), _Answer)
        except OSError as error:
            raise TransportError(
                f"cannot listen at {listen!r}: {error.strerror}; if the coordinator runs, stop it "
                "while parties join."
            ) from None

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return False, which closes the connection, if too many are open."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing, since strangers may close connections or send no TLS."""


class _Answer(BaseHTTPRequestHandler):
    server: JoiningServer
    timeout: ClassVar[float] = _SECONDS

    def setup(self) -> None:
        # Before the handshake, in which a silent stranger would hold a thread.
        self.request.settimeout(_SECONDS)
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if self.path != _PATH or not 0 < size <= _MOST_BYTES:
                raise ValueError
            message = json.loads(self.rfile.read(size))
            name, token = str(message.pop("name")), str(message.pop("token"))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            self._send(HTTPStatus.BAD_REQUEST, {"error": "this is not what a party sends."})
            return
        try:
            shown = self.server.board.post(name, token, message)
        except CloisterError as error:
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
            return
        self._send(HTTPStatus.OK, shown)
        self.server.board.sent(name, shown)
        self.server.changed.set()

    def _send(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, since the command reports the parties that joined."""
