"""A hub behind mutual TLS on loopback, with certificates made on the spot, and silos in threads."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from starlette.websockets import WebSocket

from cloister.core.errors import CloisterError, TransportError
from cloister.federation.service.hub import Hub
from cloister.federation.service.server import Server, peer_certificate
from cloister.federation.transports.http import Kind, Message, Stream, StreamClient, in_json
from cloister.protocol.session import Transport

JOB = "0123456789abcdef" * 2
Handler = Callable[[bytes], bytes]
DAY = timedelta(days=1)
PATIENCE = 60.0  # seconds, only against hanging: no law is about how fast a machine is


def until(true: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until something is true."""
    due = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < due, "it did not become true in time"
        time.sleep(0.005)


@dataclass
class Authority:
    """A CA and the certificates that it issued, in a folder."""

    folder: Path
    name: str = "ca"
    _key: Any = field(init=False, repr=False)
    _own: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        ca = x509.BasicConstraints(ca=True, path_length=0)
        self._own = (
            _certificate(name, name, self._key.public_key(), -DAY, 10 * DAY)
            .add_extension(ca, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(_pem(self._own))

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def issue(
        self,
        party: str,
        *,
        hosts: tuple[str, ...] = (),
        begin: timedelta = -DAY,
        end: timedelta = 5 * DAY,
    ) -> Path:
        """Write certificate and key of a party into one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
        names: list[x509.GeneralName] = [
            x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts
        ]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _certificate(self._own.subject, subject, key.public_key(), begin, end)
            .add_extension(x509.SubjectAlternativeName(names or [x509.DNSName(party)]), False)
            .add_extension(x509.ExtendedKeyUsage(uses), False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = self.folder / f"{self.name}-{party}.pem"
        path.write_bytes(_pem(certificate) + private)
        return path

    def context(self, purpose: int, party: Path | None) -> ssl.SSLContext:
        """Return a context of TLS 1.3 that trusts this CA only."""
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.path)
        context.verify_mode = ssl.CERT_REQUIRED
        if party is not None:
            context.load_cert_chain(party)
        return context


def _certificate(
    issuer: x509.Name, subject: x509.Name, public: Any, begin: timedelta, end: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begin)
        .not_valid_after(now + end)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass
class Federation:
    """A hub and its server in a thread, and silos that are threads too.

    Parameters
    ----------
    folder : Path
        For keys and certificates.
    enrolled : tuple of str
        Whom the application takes for silos.
    """

    folder: Path
    enrolled: tuple[str, ...] = ("a", "b", "c", *(f"silo-{i}" for i in range(32)))
    max_message_bytes: int = 2**20
    ping: float = PATIENCE
    server_party: Path | None = None
    decisions: list[tuple[str, str, bool, str]] = field(default_factory=list)
    came: list[str] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    peers: list[bytes | None] = field(default_factory=list)
    on_connect: Callable[[str], None] = lambda silo: None
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.ca = Authority(self.folder)
        party = self.server_party or self.ca.issue("coordinator", hosts=("localhost", "127.0.0.1"))

        def connected(silo: str) -> None:
            self.came.append(silo)
            self.on_connect(silo)

        self.hub = Hub(
            on_connect=connected,
            on_decision=lambda *decision: self.decisions.append(decision),
            max_message_bytes=self.max_message_bytes,
        )
        self.server = Server(
            self._app,
            "127.0.0.1:0",
            self.ca.context(ssl.PROTOCOL_TLS_SERVER, party),
            max_message_bytes=self.max_message_bytes,
            ping_interval=self.ping,
            ping_timeout=self.ping,
        )
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()
        self._leaving: list[Silo] = []
        return self

    def hang(self, frame: bytes) -> bytes:
        """Answer nothing until the end."""
        self.over.wait(PATIENCE)
        return b""

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for silo in self._leaving:
            silo.close()
        self.server.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server must stop when it is told to"

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve streams of the enrolled; say to a request who asked."""
        der = peer_certificate(scope)
        self.peers.append(der)
        common = x509.load_der_x509_certificate(der or b"").subject
        name = str(common.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        if scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            if name in self.enrolled:
                await self.hub.serve(websocket, name)
            else:
                await websocket.close(1008, "not enrolled")
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name.encode()})

    def url(self, host: str = "localhost") -> str:
        return f"https://{host}:{self.server.port}"

    def client(self, silo: str, **changes: Any) -> StreamClient:
        """Return what dials for a silo."""
        party = changes.pop("party", None) or self.ca.issue(silo)
        trusted = changes.pop("trusted", self.ca)
        options = {
            "url": self.url(),
            "ssl_context": trusted.context(ssl.PROTOCOL_TLS_CLIENT, party),
            "max_message_bytes": self.max_message_bytes,
            "open_timeout": PATIENCE,
            "ping_interval": PATIENCE,
            **changes,
        }
        return StreamClient(**options)

    def silo(self, name: str, handle: Handler, **changes: Any) -> Silo:
        """Start a silo in a thread and wait until it is connected."""
        before = self.came.count(name)
        silo = Silo(self.client(name, **changes), handle)
        self._leaving.append(silo)
        until(lambda: self.came.count(name) > before)
        return silo

    def transport(
        self,
        job: str = JOB,
        *,
        round_timeout: float = PATIENCE,
        grace: float = PATIENCE,
        stop: threading.Event | None = None,
    ) -> Transport:
        return self.hub.transport(
            job,
            round_timeout=round_timeout,
            grace=grace,
            stop=stop or threading.Event(),
            on_refusal=lambda *refusal: self.refusals.append(refusal),
        )

    def carry(self, handlers: Mapping[str, Handler]) -> Transport:
        """Return a transport to handlers, each behind a stream of its own."""
        for name, handle in handlers.items():
            self.silo(name, handle)
        return self.transport()


class Silo:
    """A thread that answers on a stream until it is closed; it does not come back by itself."""

    def __init__(self, client: StreamClient, handle: Handler) -> None:
        self.stream: Stream = client.connect()
        self.heard: list[Message] = []
        self.error: TransportError | None = None
        self._handle = handle
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        try:
            while True:
                message = self.stream.receive()
                assert message is not None
                self.heard.append(message)
                if message.kind == Kind.ASK:
                    self.stream.send(self._reply(message))
        except TransportError as error:
            self.error = error

    def _reply(self, message: Message) -> Message:
        try:
            answer = self._handle(message.body)
        except CloisterError as error:
            return Message(Kind.REFUSE, message.number, message.job, in_json(reason=str(error)))
        return Message(Kind.ANSWER, message.number, message.job, answer)

    def kill(self) -> None:
        """End like a process that was killed: no good-bye of TLS or WebSocket."""
        self.stream._loop.close(self.stream._connection.transport.abort)

    def close(self) -> None:
        self.stream.close()
        self._thread.join(PATIENCE)

    def wait(self) -> TransportError:
        """Wait until the stream has ended; return why."""
        self._thread.join(PATIENCE)
        assert self.error is not None
        return self.error


@contextmanager
def carried(folder: Path) -> Iterator[Callable[[Mapping[str, Handler]], Transport]]:
    """Yield what makes a transport over real TLS from handlers, for the conformance suite."""
    with Federation(folder) as federation:
        yield federation.carry
