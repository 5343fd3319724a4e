"""The service's wire protocol: one WebSocket per silo over mutual TLS, and the silo's end of it.

A silo dials out and keeps its stream open, over which the coordinator offers jobs and sends
requests. Every message is binary: a header of 21 bytes and a body, a frame of the protocol or JSON.
The certificate alone identifies the other party, never the content of a message.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from cloister.core.errors import TransportError
from cloister.federation.transports.parts import Incoming, Outgoing, whole
from cloister.protocol.releases import UNTOLD

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PATH = "/v1/stream"
VERSION = "cloister.2"  # the WebSocket subprotocol; a change of the wire changes the number
VERSIONS = (VERSION, "cloister.1")  # supported, best first; the older has no parts of messages
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_WORDS = 64 * 2**10  # bytes of a JSON body that a silo sends

# Kind, number, and the 16 bytes of the run id.
_HEADER = struct.Struct(">BI16s")
_AGENT = "cloister/"  # with the release, the name of a silo's program in its request for a stream
_RELEASE = re.compile(rf"{_AGENT}([0-9][0-9A-Za-z.+]{{,39}})")
_LONGEST_REASON = 500
_Answer = TypeVar("_Answer")
_CLOSING = 1.0  # seconds for the other party to hang up as well


class Kind(IntEnum):
    """The kinds of messages: below 16 from the coordinator, else from a silo."""

    OFFER = 1  # JSON: plan, proposer
    ASK = 2  # a frame
    END = 3  # JSON: status, reason
    DECISION = 17  # JSON: decision, reason
    ANSWER = 18  # a frame, under the number of its ASK
    REFUSE = 19  # JSON: reason, under the number of its ASK


_KINDS = {int(kind): kind for kind in Kind}


def release_of(agent: str) -> str:
    """Return the release in the name of a silo's program, or `UNTOLD`."""
    found = _RELEASE.fullmatch(agent)
    return found[1] if found else UNTOLD


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream.

    Parameters
    ----------
    number : int
        Number of the request, below 2^32; an answer repeats it.
    job : str
        The plan's run id, 32 hexadecimal digits.
    """

    kind: Kind
    number: int
    job: str
    body: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the message as bytes."""
        return _HEADER.pack(self.kind, self.number, bytes.fromhex(self.job)) + self.body

    @classmethod
    def decode(cls, data: object) -> Message:
        """Decode a message."""
        if not isinstance(data, bytes):
            raise TransportError("messages must be binary, got text.")
        if len(data) < _HEADER.size:
            raise TransportError(
                f"messages must have at least {_HEADER.size} bytes, got {len(data)}."
            )
        number_of_kind, number, job = _HEADER.unpack_from(data)
        kind = _KINDS.get(number_of_kind)
        if kind is None:
            raise TransportError(f"messages of kind {number_of_kind} are unknown to {VERSION}.")
        return cls(kind, number, job.hex(), data[_HEADER.size :])

    def fields(self) -> dict[str, Any]:
        """Return the fields of a JSON body."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise TransportError(f"the body of a message of kind {self.kind:d} must be JSON.")
        return document


def in_json(**fields: Any) -> bytes:
    """Return the JSON body of a message."""
    return json.dumps(fields, sort_keys=True, allow_nan=False).encode()


def printable(text: object) -> str:
    """Return another party's text with printable characters only, and bounded."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_LONGEST_REASON])


def check_size(data: bytes, limit: int) -> None:
    """Raise TransportError for a message over the size limit."""
    if len(data) > limit:
        raise TransportError(
            f"messages must have at most {limit} bytes, got {len(data)}; raise max_message_bytes "
            "at every party or make the plan's vectors smaller."
        )


class _Loop:
    """An event loop in a separate thread, for callers without one."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        threading.Thread(target=self._live, name="stream", daemon=True).start()

    def _live(self) -> None:
        with self._runner:
            self._runner.run(self._over.wait())

    def ask(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        """Start a coroutine; cancel it if the loop is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            late: Future[_Answer] = Future()
            late.cancel()
            return late

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """Call `last` in the loop and end it; pending work is cancelled."""
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(last)
            self._loop.call_soon_threadsafe(self._over.set)


class Stream:
    """A silo's open stream to the coordinator, for threads.

    One thread receives; any thread may send. With `incoming`, large messages travel in parts.
    """

    def __init__(
        self,
        connection: ClientConnection,
        loop: _Loop,
        where: str,
        max_message_bytes: int,
        incoming: Incoming | None = None,
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._where = where
        self._max = max_message_bytes
        self._incoming, self._outgoing = incoming, Outgoing(connection.send, max_message_bytes)
        # Requested ahead and kept after a time-out, so that no message is lost.
        self._next: Future[Any] = loop.ask(self._recv())

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if none arrived in `timeout` seconds."""
        data = self._received(timeout)
        if data is None:
            return None
        try:
            message = Message.decode(data)
            if message.kind >= Kind.DECISION:
                raise TransportError(f"a silo does not accept messages of kind {message.kind:d}.")
        except TransportError as error:
            self.close(1002, str(error))
            raise
        return message

    def send(self, message: Message) -> None:
        """Send a message.

        Raises
        ------
        TransportError
            If it is too large or the stream has ended.
        """
        data = message.encode()
        check_size(data, self._max)
        send = self._connection.send if self._incoming is None else self._outgoing.send
        self._result(self._loop.ask(send(data)))

    def receive_bytes(self, timeout: float) -> bytes | None:
        """Return the next binary frame unchanged, or None if none arrived in `timeout` seconds."""
        data = self._received(timeout)
        if data is not None and not isinstance(data, bytes):
            raise TransportError("messages must be binary, got text.")
        return data

    def begin(self, data: bytes) -> Future[None]:
        """Queue a frame unchanged; pass the returned future to :meth:`outcome`."""
        return self._loop.ask(self._connection.send(data))

    def outcome(self, sending: Future[None], timeout: float | None = None) -> None:
        """Wait until a frame was sent; raise TransportError or TimeoutError on failure."""
        self._result(sending, timeout)

    def _received(self, timeout: float | None) -> Any:
        try:
            data = self._result(self._next, timeout)
        except TimeoutError:
            return None
        self._next = self._loop.ask(self._recv())
        return data

    async def _recv(self) -> Any:
        """Return the next message; without parts, the next frame."""
        message = None
        try:
            while message is None:
                message = await self._connection.recv()
                if self._incoming is not None and isinstance(message, bytes):
                    message = await whole(
                        message, self._incoming, self._outgoing, self._connection.send
                    )
        except Exception as error:
            self._outgoing.end(error)
            raise
        return message

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the stream; messages not yet received are lost."""
        farewell = self._loop.ask(self._connection.close(code, _shortened(reason)))
        with suppress(TimeoutError, CancelledError):
            farewell.result(2 * _CLOSING)
        self._loop.close(self._connection.transport.abort)

    def _result(self, answer: Future[_Answer], timeout: float | None = None) -> _Answer:
        from websockets.exceptions import ConnectionClosed

        try:
            return answer.result(timeout)
        except ConnectionClosed as error:
            # Use the close frame that was sent first; the other one echoes it.
            first = error.rcvd if error.rcvd_then_sent or error.sent is None else error.sent
            why = _CLOSED.get(first.code, first.reason) if first else ""
        except CancelledError:
            why = "it was closed here"
        cause = printable(why).rstrip(".") or "the connection was lost"
        raise TransportError(f"the stream to {self._where} has ended: {cause}.")


@dataclass(frozen=True)
class StreamClient:
    """A client that dials a coordinator.

    Parameters
    ----------
    url : str
        Such as ``https://coordinator.example.org:8443``.
    ssl_context : SSLContext
        Has the silo's certificate, and trusts the CA of the federation only.
    proxy : str, optional
        Such as ``http://proxy.example.org:3128``; it carries the encrypted stream and cannot read
        it.
    open_timeout, ping_interval, ping_timeout : float, seconds
        A coordinator that is silent for the sum of the last two counts as lost.
    """

    url: str
    ssl_context: ssl.SSLContext = field(repr=False)
    proxy: str | None = field(default=None, repr=False)  # it may hold a password
    max_message_bytes: int = MAX_MESSAGE_BYTES
    open_timeout: float = 10.0
    ping_interval: float = 10.0
    ping_timeout: float = 10.0
    # The beginning of a message outlives the stream that carried it.
    _incoming: Incoming = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_incoming", Incoming(self.max_message_bytes))

    def connect(self, path: str = PATH, version: str | None = None) -> Stream:
        """Open a stream; other paths than a silo's stream use another wire version."""
        host, port, where = self._address()
        plain = None if self.proxy else self._dial(host, port, where)
        loop, versions = _Loop(), VERSIONS if version is None else (version,)
        try:
            connection = loop.ask(self._open(where, plain, path, versions)).result()
        except BaseException as error:
            loop.close()
            if isinstance(error, Exception):
                raise TransportError(self._why(error, where)) from None
            raise
        incoming = self._incoming if connection.subprotocol == VERSION else None
        return Stream(connection, loop, where, self.max_message_bytes, incoming)

    def _address(self) -> tuple[str, int, str]:
        """Return the coordinator's host and port, and the text of both for messages."""
        try:
            address = urlsplit(self.url)
            host, port = address.hostname, address.port or 443
        except ValueError:
            host = None
        if not host or address.scheme != "https":
            raise TransportError(f"coordinator must be https://HOST:PORT, got {self.url!r}.")
        # A password precedes the @, so the shown part has none.
        return host, port, address.netloc.rpartition("@")[2]

    def _dial(self, host: str, port: int, where: str) -> socket.socket:
        """Return a connection to the coordinator's port.

        It is opened in this thread, because a loop resolves names in threads of a pool. On a silent
        network these would delay the end of the process.
        """
        try:
            return socket.create_connection((host, port), self.open_timeout)
        except OSError as error:
            why = self._unreachable(error, where)
        raise TransportError(why)

    async def _open(
        self, where: str, plain: socket.socket | None, path: str, versions: Sequence[str]
    ) -> ClientConnection:
        """Perform the handshakes of proxy, TLS and stream."""
        from websockets.asyncio.client import ClientConnection, connect
        from websockets.exceptions import InvalidMessage

        alerts: list[Exception] = []

        class Connection(ClientConnection):  # which forgets the alert of TLS that ended it
            def connection_lost(self, exc: Exception | None) -> None:
                alerts.extend([exc] if exc else [])
                super().connection_lost(exc)

        try:
            connection = await connect(
                f"wss://{where}{path}",
                create_connection=Connection,
                ssl=self.ssl_context,
                proxy=self.proxy,
                sock=plain,
                subprotocols=versions,  # type: ignore[arg-type]
                user_agent_header=f"{_AGENT}{version_of('cloister')}",
                compression=None,  # masked vectors do not compress
                max_size=self.max_message_bytes,
                open_timeout=self.open_timeout,
                ping_interval=self.ping_interval,
                ping_timeout=self.ping_timeout,
                close_timeout=_CLOSING,
            )
        except InvalidMessage as error:
            raise next(iter(alerts), error) from None
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a ping cannot overtake a send that hangs
            carrier = connection.transport.get_extra_info("socket")
            patience = round(1000 * (self.ping_interval + self.ping_timeout))
            carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        if connection.subprotocol not in versions:
            known = " or ".join(versions)
            await connection.close(1002, f"this party uses {known}")
            raise TransportError(f"{where} does not support {known}; {_SAME_VERSION}")
        return connection

    def _why(self, error: Exception, where: str) -> str:
        """Return the message for a stream that could not be opened."""
        from websockets.exceptions import InvalidProxy, InvalidStatus, NegotiationError, ProxyError

        match error:
            case TransportError():
                return str(error)
            case InvalidProxy():  # whose text has the password
                return "proxy must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT."
            case ProxyError():
                return f"no connection to {where!r}: {printable(error)}; check proxy."
            case InvalidStatus():
                return _status(error.response, where)
            case NegotiationError():
                return f"{where} does not support {' or '.join(VERSIONS)}; {_SAME_VERSION}"
            case ssl.SSLCertVerificationError():
                return _verification(error, where)
            case ssl.SSLError() | ConnectionResetError():
                return _hung_up(error, where)
            case OSError():
                return self._unreachable(error, where)
        return _hung_up(error, where)

    def _unreachable(self, error: OSError, where: str) -> str:
        """Return the message for a nearest hop that does not answer."""
        nearest, setting = where, "the coordinator's address"
        if self.proxy:
            nearest, setting = urlsplit(self.proxy).netloc.rpartition("@")[2], "proxy"
        match error:
            case TimeoutError():
                return (
                    f"no answer from {nearest!r} within {self.open_timeout:g} seconds; check the "
                    "address and firewalls."
                )
            case socket.gaierror():
                return f"the name in {nearest!r} does not resolve; check {setting} and DNS."
            case ConnectionRefusedError():
                return (
                    f"no server listens at {nearest!r}; check {setting} and that the server runs."
                )
        what = printable(error.strerror or error)
        return f"no connection to {where!r}: {what}; check {setting}."


_SAME_VERSION = "install the same version at every party."
_CLOSED = {1009: "a message exceeded its limit; compare max_message_bytes"}
# By OpenSSL's numbers, X509_V_ERR_*.
_VERIFY = {
    9: "its certificate is not valid yet; compare the clocks",
    10: "its certificate has expired; it must be renewed",
    18: "its certificate was not issued by this federation's CA; compare ca.pem",
    19: "its certificate was not issued by this federation's CA; compare ca.pem",
    20: "its certificate was not issued by this federation's CA; compare ca.pem",
    23: "its certificate was revoked",
    62: "its certificate is for another name; use the name it was enrolled with",
    64: "its certificate is for another address; use the name it was enrolled with",
}
_ALERTS = {
    "CERTIFICATE_EXPIRED": "it has expired; enrol again",
    "CERTIFICATE_REVOKED": "it was revoked; ask the operator",
    "UNKNOWN_CA": "it was not issued by the federation's CA; enrol",
    "CERTIFICATE_REQUIRED": "there is none; set keys to the folder of an enrolled party",
}


def _verification(error: ssl.SSLCertVerificationError, where: str) -> str:
    """Return the message for a refused certificate of the coordinator."""
    why = _VERIFY.get(error.verify_code, f"its certificate is refused: {error.verify_message}")
    return f"{where} is not accepted as the coordinator: {why}."


def _hung_up(error: Any, where: str) -> str:
    """Return the message for a connection that ended before the stream was open."""
    alert = (getattr(error, "reason", "") or "").rpartition("ALERT_")[2]
    if why := _ALERTS.get(alert):
        return f"{where} rejects this party's certificate: {why}."
    if "VERSION" in alert:
        return f"{where} supports no TLS version of this party; TLS 1.3 is needed."
    return (  # an alert can be lost on its way
        f"{where} closed the connection during the handshake; if it is the coordinator, it "
        "rejects this party's certificate: check that it was enrolled, has not expired and was "
        "not revoked."
    )


def _status(response: Any, where: str) -> str:
    """Return the message for a stream that the coordinator refused."""
    # Another server, such as a proxy, may have sent the body.
    try:
        why = printable(json.loads(response.body or b"")["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        why = "this certificate is not enrolled as a silo, or was revoked; ask the operator."
        if response.status_code not in (401, 403):
            why = f"it answered with HTTP status {response.status_code}; check the address."
    return f"{where} refuses the stream: {why}"


def _shortened(reason: str) -> str:
    """Return a reason cut to the 123 bytes of a close frame."""
    return reason.encode()[:120].decode(errors="ignore")
