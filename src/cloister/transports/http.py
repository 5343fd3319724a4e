"""The service's wire: one WebSocket per silo over mutual TLS, and the silo's end of it.

A silo dials out and keeps its stream open; the coordinator offers jobs and asks over it. Every
message is binary: a header of 21 bytes and a body, a frame of the protocol or JSON. Who the other
party is follows from its certificate alone, never from what it says.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from cloister.errors import TransportError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PATH = "/v1/stream"
VERSION = "cloister.1"  # the WebSocket subprotocol; a change of the wire changes the number
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_WORDS = 64 * 2**10  # bytes of a JSON body that a silo sends

_HEADER = struct.Struct(">BI16s")
_LONGEST_REASON = 500
_CLOSING = 1.0  # seconds for the other party to hang up as well


class Kind(IntEnum):
    """What a message is; below 16 from the coordinator, else from a silo."""

    OFFER = 1  # JSON: plan, proposer
    ASK = 2  # a frame
    END = 3  # JSON: status, reason
    DECISION = 17  # JSON: decision, reason
    ANSWER = 18  # a frame, under the number of its ASK
    REFUSE = 19  # JSON: reason, under the number of its ASK


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream.

    Parameters
    ----------
    kind : Kind
    number : int
        Of the question, below 2^32; an answer repeats it.
    job : str
        The plan's run id, 32 hexadecimal digits.
    body : bytes
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
        """Read a message.

        Raises
        ------
        TransportError
            If it is text, is shorter than a header, or of a kind that we do not know.
        """
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

    def words(self) -> dict[str, Any]:
        """Return a JSON body.

        Raises
        ------
        TransportError
            If it is not a JSON object.
        """
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise TransportError(f"the body of a message of kind {self.kind:d} must be JSON.")
        return document


def in_json(**words: Any) -> bytes:
    """Return the JSON body of a message."""
    return json.dumps(words, sort_keys=True).encode()


def printable(text: object) -> str:
    """Return what may be shown and kept of a text that another party wrote."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_LONGEST_REASON])


def check_size(data: bytes, limit: int) -> None:
    """Refuse a message over the size limit.

    Raises
    ------
    TransportError
        If it is larger.
    """
    if len(data) > limit:
        raise TransportError(
            f"messages must have at most {limit} bytes, got {len(data)}; raise max_message_bytes "
            "at every party or make the plan's vectors smaller."
        )


class Stream:
    """A silo's open stream to the coordinator."""

    def __init__(self, connection: ClientConnection, where: str, max_message_bytes: int) -> None:
        self._connection = connection
        self._where = where
        self._max = max_message_bytes

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if none came in `timeout` seconds.

        Raises
        ------
        TransportError
            If the stream has ended, or what came breaks its rules, which ends it.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            data = self._connection.recv(timeout)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            self._ended(error)
        try:
            message = Message.decode(data)
            if message.kind >= Kind.DECISION:
                raise TransportError(f"a silo does not take messages of kind {message.kind:d}.")
        except TransportError as error:
            self.close(1002, str(error))
            raise
        return message

    def send(self, message: Message) -> None:
        """Send a message; any thread may.

        Raises
        ------
        TransportError
            If it is too large or the stream has ended.
        """
        from websockets.exceptions import ConnectionClosed

        data = message.encode()
        check_size(data, self._max)
        try:
            self._connection.send(data)
        except ConnectionClosed as error:
            self._ended(error)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Hang up; what waits to be received is lost."""
        self._connection.close(code, _shortened(reason))

    def _ended(self, error: Any) -> NoReturn:
        first = error.rcvd if error.rcvd_then_sent or error.sent is None else error.sent
        why = _CLOSED.get(first.code, first.reason) if first else ""
        raise TransportError(
            f"the stream to {self._where} has ended: {printable(why) or 'the connection was lost'}."
        ) from None


@dataclass(frozen=True)
class StreamClient:
    """Dials a coordinator.

    Parameters
    ----------
    url : str
        Such as ``https://coordinator.example.org:8443``.
    ssl_context : SSLContext
        With the silo's certificate, and the CA of the federation only.
    proxy : str, optional
        Such as ``http://proxy.example.org:3128``; it carries the encrypted stream and cannot read
        it.
    max_message_bytes : int
    open_timeout, ping_interval, ping_timeout : float, seconds
        A coordinator that is silent for the sum of the last two is taken for lost.
    """

    url: str
    ssl_context: ssl.SSLContext = field(repr=False)
    proxy: str | None = field(default=None, repr=False)  # it may hold a password
    max_message_bytes: int = MAX_MESSAGE_BYTES
    open_timeout: float = 10.0
    ping_interval: float = 10.0
    ping_timeout: float = 10.0

    def connect(self) -> Stream:
        """Open a stream.

        Raises
        ------
        TransportError
            If there is none to be had, with the reason and the way out.
        """
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        address = urlsplit(self.url)
        if address.scheme != "https" or not address.hostname:
            raise TransportError(f"coordinator must be https://HOST:PORT, got {self.url!r}.")
        where = address.netloc
        attempts: list[ClientConnection] = []
        try:
            connection = connect(
                f"wss://{where}{PATH}",
                ssl=self.ssl_context,
                proxy=self.proxy,
                subprotocols=[VERSION],  # type: ignore[list-item]
                compression=None,  # masked vectors do not compress
                max_size=self.max_message_bytes,
                open_timeout=self.open_timeout,
                ping_interval=self.ping_interval,
                ping_timeout=self.ping_timeout,
                close_timeout=_CLOSING,
                create_connection=self._kept(attempts),
            ).__enter__()
        except (OSError, EOFError, WebSocketException) as error:
            late = getattr(attempts[-1], "connection_exc", None) if attempts else None
            raise TransportError(self._sentence(error, late, where, bool(attempts))) from None
        if connection.subprotocol != VERSION:
            connection.close(1002, f"we speak {VERSION}")
            raise TransportError(f"{where} speaks no {VERSION}; {_SAME_VERSION}")
        return Stream(connection, where, self.max_message_bytes)

    def _kept(self, attempts: list[ClientConnection]) -> Any:
        """Return a maker of connections that notes them: a late TLS alert is found there only."""
        from websockets.sync.client import ClientConnection

        def make(sock: socket.socket, *args: Any, **options: Any) -> ClientConnection:
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a ping cannot overtake a send that hangs
                patience = round(1000 * (self.ping_interval + self.ping_timeout))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
            attempts.append(ClientConnection(sock, *args, **options))
            return attempts[-1]

        return make

    def _sentence(
        self, error: Exception, late: BaseException | None, where: str, dialled: bool
    ) -> str:
        """Say why there is no connection, and what to do."""
        from websockets.exceptions import InvalidProxy, InvalidStatus, NegotiationError, ProxyError

        nearest, setting = where, "the coordinator's address"
        if self.proxy is not None:
            nearest, setting = urlsplit(self.proxy).netloc.rpartition("@")[2], "proxy"
        match error:
            case socket.gaierror():
                return f"the name in {nearest!r} does not resolve; check {setting} and DNS."
            case ConnectionRefusedError():
                return f"nobody listens at {nearest!r}; check {setting} and that it runs."
            case TimeoutError():
                return (
                    f"no answer from {where!r} in {self.open_timeout:g} seconds; check {setting} "
                    "and firewalls."
                )
            case ssl.SSLCertVerificationError():
                return _verification(error, where)
            case InvalidStatus():
                return _status(error.response, where)
            case NegotiationError():
                return f"{where} speaks no {VERSION}; {_SAME_VERSION}"
            case InvalidProxy() | ProxyError():
                return f"proxy {nearest!r} does not lead to {where!r}: {printable(error)}."
        refusal = late if isinstance(late, ssl.SSLError) else error
        if isinstance(refusal, ssl.SSLError) and "ALERT_" in (refusal.reason or ""):
            return _alert(refusal, where)
        if isinstance(error, OSError) and not dialled:
            return f"no connection to {nearest!r}: {error.strerror or type(error).__name__}."
        return (  # an alert can be lost on its way
            f"{where} hung up right after TLS; if it is the coordinator, it does not take this "
            "party's certificate: see that it was enrolled, has not expired and was not revoked."
        )


_SAME_VERSION = "install the same version at every party."
_CLOSED = {1009: "a message was larger than it takes; compare max_message_bytes"}
_VERIFY = {
    9: "its certificate is not valid yet; compare the clocks",
    10: "its certificate has expired; it must be issued anew",
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
    """Say why we do not accept the coordinator's certificate."""
    why = _VERIFY.get(error.verify_code, f"its certificate is refused: {error.verify_message}")
    return f"{where} is not accepted as the coordinator: {why}."


def _alert(error: Any, where: str) -> str:
    """Say what TLS said when it failed."""
    alert = (error.reason or "").rpartition("ALERT_")[2]
    if "CERTIFICATE" in alert or alert in _ALERTS:
        why = _ALERTS.get(alert, f"{alert.lower().replace('_', ' ')}; enrol again")
        return f"{where} does not take this party's certificate: {why}."
    return f"TLS with {where} failed: {alert.lower().replace('_', ' ')}."


def _status(response: Any, where: str) -> str:
    """Say what the coordinator said when it refused the stream."""
    try:
        why = printable(json.loads(response.body or b"")["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        why = "this certificate is not enrolled as a silo, or was revoked; ask the operator."
        if response.status_code not in (401, 403):
            why = f"it answered with HTTP status {response.status_code}; check the address."
    return f"{where} refuses the stream: {why}"


def _shortened(reason: str) -> str:
    """Return a reason that fits into a closing message, which has 123 bytes for it."""
    return reason.encode()[:120].decode(errors="ignore")
