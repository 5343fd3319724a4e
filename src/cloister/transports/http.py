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
import threading
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import unquote, urlsplit

from cloister.errors import TransportError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PATH = "/v1/stream"
VERSION = "cloister.1"  # the WebSocket subprotocol; a change of the wire changes the number
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_WORDS = 64 * 2**10  # bytes of a JSON body that a silo sends

_HEADER = struct.Struct(">BI16s")
_LONGEST_REASON = 500
_CHUNK = 65536
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
        from websockets.exceptions import InvalidStatus, NegotiationError, WebSocketException
        from websockets.sync.client import connect

        host, where = self._address()
        plain = self._dial(host, where)
        tls = self._secured(plain, host, where)
        try:
            connection = connect(
                f"ws://{where}{PATH}",
                sock=cast(socket.socket, tls),
                subprotocols=[VERSION],  # type: ignore[list-item]
                compression=None,  # masked vectors do not compress
                max_size=self.max_message_bytes,
                open_timeout=self.open_timeout,
                ping_interval=self.ping_interval,
                ping_timeout=self.ping_timeout,
                close_timeout=_CLOSING,
            ).__enter__()
        except TimeoutError:
            raise TransportError(self._silence(where)) from None
        except InvalidStatus as error:
            raise TransportError(_status(error.response, where)) from None
        except NegotiationError:
            raise TransportError(f"{where} speaks no {VERSION}; {_SAME_VERSION}") from None
        except (OSError, EOFError, WebSocketException) as error:
            raise TransportError(_hung_up(tls.error or error, where)) from None
        if connection.subprotocol != VERSION:
            connection.close(1002, f"we speak {VERSION}")
            raise TransportError(f"{where} speaks no {VERSION}; {_SAME_VERSION}")
        return Stream(connection, where, self.max_message_bytes)

    def _address(self) -> tuple[str, str]:
        """Return the coordinator's host, and host and port as they are shown."""
        try:
            address = urlsplit(self.url)
            host, _ = address.hostname, address.port
        except ValueError:
            host = None
        if not host or address.scheme != "https":
            raise TransportError(f"coordinator must be https://HOST:PORT, got {self.url!r}.")
        return host, address.netloc.rpartition("@")[2]

    def _dial(self, host: str, where: str) -> socket.socket:
        """Return a connection to the coordinator's port, through the proxy if there is one."""
        port = urlsplit(self.url).port or 443
        nearest, setting = where, "the coordinator's address"
        try:
            if self.proxy is None:
                dialled = socket.create_connection((host, port), self.open_timeout)
            else:
                nearest, setting = urlsplit(self.proxy).netloc.rpartition("@")[2], "proxy"
                dialled = _through(self.proxy, host, port, self.open_timeout)
        except socket.gaierror:
            why = f"the name in {nearest!r} does not resolve; check {setting} and DNS."
        except ConnectionRefusedError:
            why = f"nobody listens at {nearest!r}; check {setting} and that it runs."
        except TimeoutError:
            why = self._silence(nearest)
        except (OSError, ValueError, HTTPException) as error:
            what = printable(getattr(error, "strerror", None) or error)
            why = f"no connection to {where!r}: {what}; check {setting}."
        else:
            return dialled
        raise TransportError(why)

    def _secured(self, plain: socket.socket, host: str, where: str) -> _Tls:
        """Return the connection under TLS."""
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a ping cannot overtake a send that hangs
                patience = round(1000 * (self.ping_interval + self.ping_timeout))
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
            plain.settimeout(self.open_timeout)
            tls = _Tls(plain, self.ssl_context, host)
            plain.settimeout(None)
        except TimeoutError:
            why = self._silence(where)
        except ssl.SSLCertVerificationError as error:
            why = _verification(error, where)
        except OSError as error:
            why = _hung_up(error, where)
        else:
            return tls
        plain.close()
        raise TransportError(why)

    def _silence(self, who: str) -> str:
        return (
            f"no answer from {who!r} in {self.open_timeout:g} seconds; check the address and "
            "firewalls."
        )


class _Tls:
    """A socket under TLS that one thread may read while another writes.

    OpenSSL's connections are not made for two threads: a read that meets a session ticket while
    another thread writes can lose the write. Here they take turns, and nobody waits for the network
    in his turn.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self.error: ssl.SSLError | None = None
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._turn = threading.Lock()
        self._sending = threading.Lock()
        self._ended = False
        self._shake_hands()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed(self._plain.recv(_CHUNK))
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # so that the other party hears why
                raise
            else:
                self._flush()
                return

    def recv(self, size: int) -> bytes:
        """Return all that has come, waiting for some; nothing at the end."""
        data = b""
        while not data and not self._ended:
            chunk = self._plain.recv(size)
            with self._turn:
                self._feed(chunk)
                data = self._read()
            if self._outgoing.pending:
                self._flush()
        return data

    def sendall(self, data: bytes) -> None:
        """Send all."""
        with self._sending:
            with self._turn, memoryview(data) as view:
                sent = 0
                while sent < len(view):
                    sent += self._tls.write(view[sent:])
                ready = self._outgoing.read()
            self._plain.sendall(ready)

    def close(self) -> None:
        """Close, and wake a thread that waits for the rest of a record."""
        with suppress(OSError):
            self._plain.shutdown(socket.SHUT_RDWR)
        self._plain.close()

    def _feed(self, chunk: bytes) -> None:
        if chunk:
            self._incoming.write(chunk)
        else:
            self._incoming.write_eof()

    def _read(self) -> bytes:
        parts = []
        try:
            while part := self._tls.read(_CHUNK):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts)
        except ssl.SSLError as error:
            self.error = error
        self._ended = True
        with suppress(OSError):  # so that who waits for more sees the end too
            self._plain.shutdown(socket.SHUT_RD)
        return b"".join(parts)

    def _flush(self) -> None:
        with self._sending:
            with self._turn:
                ready = self._outgoing.read()
            if ready:
                self._plain.sendall(ready)


def _through(proxy: str, host: str, port: int, seconds: float) -> socket.socket:
    """Return a connection that an HTTP proxy carries."""
    address = urlsplit(proxy)
    if address.scheme != "http" or not address.hostname:
        raise ValueError("proxy must be http://HOST:PORT")
    headers = {}
    if address.username is not None:
        login = f"{unquote(address.username)}:{unquote(address.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + b64encode(login.encode()).decode()
    connection = HTTPConnection(address.hostname, address.port or 3128, timeout=seconds)
    connection.set_tunnel(host, port, headers)
    connection.connect()
    carried: socket.socket = connection.sock
    return carried


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


def _hung_up(error: Any, where: str) -> str:
    """Say why the coordinator hung up before the stream was open."""
    alert = (getattr(error, "reason", "") or "").rpartition("ALERT_")[2]
    if why := _ALERTS.get(alert):
        return f"{where} does not take this party's certificate: {why}."
    if "VERSION" in alert:
        return f"{where} takes no version of TLS that we speak; TLS 1.3 is needed."
    return (  # an alert can be lost on its way
        f"{where} hung up during the greeting; if it is the coordinator, it does not take this "
        "party's certificate: see that it was enrolled, has not expired and was not revoked."
    )


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
