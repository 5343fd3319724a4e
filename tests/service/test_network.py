"""The whole service over real sockets: TLS, streams, jobs; silos in threads that may come back."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cloister.core.errors import CloisterError, PlanError, TransportError
from cloister.federation.local import kept_port
from cloister.federation.service.app import make_app
from cloister.federation.service.audit import Audit
from cloister.federation.service.client import Rest
from cloister.federation.service.hub import Hub, _Stream
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.server import Server, peer_certificate, serve
from cloister.federation.service.store import Store
from cloister.federation.transports.http import Kind, Message, StreamClient, in_json
from cloister.hazmat.signing import Identity
from cloister.protocol.client import Client
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import proposal
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise, toy_records

from .federation import IDENTITIES, SILOS, Caller, network_plan
from .test_jobs import wait_for

ROLES = {"a": "silo", "b": "silo", "c": "silo", "ana": "analyst", "op": "coordinator"}


class Authority:
    """A certificate authority of one test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._issue("ca", self._key, None)
        (folder / "ca.pem").write_bytes(_pem(self.certificate))

    def _issue(
        self, name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name | None
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=365))
            .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
        )
        return builder.sign(self._key, hashes.SHA256())

    def context(self, name: str, side: int) -> ssl.SSLContext:
        """Return the TLS context of a party."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._issue(name, key, self.certificate.subject)
        file = self._folder / f"{name}-{side}.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_bytes(secret + _pem(certificate))
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(file)
        context.load_verify_locations(self._folder / "ca.pem")
        return context


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def identify(scope: MutableMapping[str, Any]) -> Caller:
    """Take the name in the certificate of the connection."""
    der = peer_certificate(scope)
    assert der is not None
    subject = x509.load_der_x509_certificate(der).subject
    name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    if name not in ROLES:
        raise TransportError(f"{name!r} is not enrolled.")
    return Caller(ROLES[name], name)


class Service:
    """A coordinator on a port, that can be ended and started again."""

    def __init__(self, url: str, folder: Path, authority: Authority) -> None:
        self._url, self._folder = url, folder
        self._context = authority.context("op", ssl.PROTOCOL_TLS_SERVER)
        port, self.kept = kept_port()
        self._listen = f"127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        self.store = Store(self._url)
        self.audit = Audit(self._folder / "audit.jsonl")
        self.hub = Hub(
            on_connect=lambda silo: self.jobs.connected(silo),
            on_decision=lambda *said: self.jobs.decided(*said),
        )
        self.jobs = Jobs(
            self.store,
            self.hub,
            self.audit,
            round_timeout=60.0,
            grace=60.0,
            new_noise=ZeroNoise,
        )
        app = make_app(self.jobs, self.hub, identify)
        server = Server(app, self._listen, self._context)
        self.address = f"https://{self._listen}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=serve, args=(server, self._stop, None, self.jobs))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.jobs.close()
        self.store.close()
        self.audit.close()


class Silo:
    """A silo in a thread: approves everything, answers frames, and dials again when it must."""

    def __init__(
        self, name: str, address: str, context: ssl.SSLContext, identity: Identity | None = None
    ) -> None:
        self.name = name
        self.before_answer: Callable[[bytes], None] = lambda frame: None
        self._identity = identity or IDENTITIES[name]
        self.ends: list[tuple[str, str]] = []
        self.clients: dict[str, Client] = {}
        self.handled = 0
        self.hang_up_at: int | None = None
        self._journal = MemoryJournal()
        self._dial = StreamClient(address, context)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(60)

    def _live(self) -> None:
        while not self._over.is_set():
            with suppress(TransportError):
                stream = self._dial.connect()
                try:
                    while not self._over.is_set():
                        if (message := stream.receive(0.1)) is not None:
                            self._take(stream, message)
                finally:
                    stream.close()
            self._over.wait(0.05)

    def _take(self, stream: Any, message: Message) -> None:
        match message.kind:
            case Kind.OFFER:
                plan = Plan.from_dict(message.fields()["plan"], TASKS)
                if message.job not in self.clients:
                    self.clients[message.job] = Client(
                        plan,
                        self.name,
                        [toy_records(plan)[self.name]],
                        None,
                        self._journal,
                        identity=self._identity,
                    )
                said = in_json(decision="approved", reason="")
                stream.send(Message(Kind.DECISION, 0, message.job, said))
            case Kind.ASK:
                self.handled += 1
                if self.handled == self.hang_up_at:
                    raise TransportError("the cable was pulled.")
                try:
                    answer = self.clients[message.job].handle(message.body)
                except CloisterError as error:
                    refusal = in_json(reason=str(error))
                    stream.send(Message(Kind.REFUSE, message.number, message.job, refusal))
                else:
                    self.before_answer(message.body)
                    stream.send(Message(Kind.ANSWER, message.number, message.job, answer))
            case Kind.END:
                self.ends.append((message.job, message.fields()["status"]))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def service(database_url: str, tmp_path: Path, authority: Authority) -> Iterator[Service]:
    running = Service(database_url, tmp_path, authority)
    yield running
    running.stop()
    running.kept.close()


@pytest.fixture
def silos(service: Service, authority: Authority) -> Iterator[dict[str, Silo]]:
    running = {
        name: Silo(name, service.address, authority.context(name, ssl.PROTOCOL_TLS_CLIENT))
        for name in SILOS
    }
    wait_for(lambda: service.hub.connected() == SILOS)
    yield running
    for silo in running.values():
        silo.close()


@pytest.fixture
def rest(service: Service, authority: Authority) -> Iterator[Rest]:
    context = authority.context("ana", ssl.PROTOCOL_TLS_CLIENT)
    with Rest(service.address, context) as connection:
        yield connection


def propose(rest: Rest, **changes: Any) -> str:
    plan = network_plan(**changes)
    return str(rest.submit(proposal(plan, IDENTITIES["ana"], "ana"))["id"])


def ended(rest: Rest, job: str, seconds: float = 300.0) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(TransportError):  # while the coordinator is down
            shown = rest.job(job)
            if shown["state"] not in ("proposed", "running"):
                return shown
        time.sleep(0.02)
    raise AssertionError(f"job is still {shown}")


@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_a_job_runs_over_mutual_tls(rest: Rest, silos: dict[str, Silo], profile: str) -> None:
    fields = {"profile": profile, "collusion": int(profile == "pairwise"), "min_silos": 3}
    job = propose(rest, **fields)
    done = ended(rest, job)
    assert (done["state"], done["reason"], done["rounds_done"]) == ("done", "", 2)
    states = [silos[name].clients[job].history[-1]["centres"] for name in SILOS]
    assert all((state == states[0]).all() for state in states)
    wait_for(lambda: all(silo.ends == [(job, "done")] for silo in silos.values()))
    assert {silo["name"] for silo in rest.silos() if silo["connected"]} == set(SILOS)


def test_a_silo_that_hangs_up_in_any_exchange_and_returns_changes_nothing(
    rest: Rest, silos: dict[str, Silo]
) -> None:
    before = propose(rest)
    ended(rest, before)
    expected = silos["a"].clients[before].history[-1]["centres"]
    exchanges = silos["b"].handled
    for exchange in range(1, exchanges + 1):
        silos["b"].hang_up_at = silos["b"].handled + exchange
        job = propose(rest)
        done = ended(rest, job)
        assert (done["state"], done["survivors"]) == ("done", ["a", "b", "c"]), exchange
        assert (silos["a"].clients[job].history[-1]["centres"] == expected).all()


def test_a_coordinator_stopped_in_a_job_takes_it_up_again(
    rest: Rest, service: Service, silos: dict[str, Silo]
) -> None:
    expected_job = propose(rest)
    ended(rest, expected_job)
    expected = silos["a"].clients[expected_job].history[-1]["centres"]
    exchanges = silos["c"].handled
    for exchange in range(1, exchanges + 1, 3):
        job = network_plan()
        at = silos["c"].handled + exchange
        rest.submit(proposal(job, IDENTITIES["ana"], "ana"))
        deadline = time.monotonic() + 60
        while silos["c"].handled < at and time.monotonic() < deadline:
            time.sleep(0.0005)
        service.stop()
        service.start()
        done = ended(rest, job.run_id)
        assert (done["state"], done["reason"]) == ("done", ""), exchange
        assert (silos["a"].clients[job.run_id].history[-1]["centres"] == expected).all()


def test_a_refusal_over_rest_is_an_error_with_the_coordinators_sentence(
    rest: Rest, service: Service
) -> None:
    plan = network_plan()
    document = proposal(plan, IDENTITIES["ana"], "ana")
    document["proposer"]["signature"] = "00" * 64
    with pytest.raises(PlanError, match="signature does not match"):
        rest.submit(document)
    with pytest.raises(PlanError, match="no job"):
        rest.job("0" * 32)
    rest.submit(proposal(plan, IDENTITIES["ana"], "ana"))
    assert rest.find(plan.run_id[:6]) == plan.run_id
    with pytest.raises(PlanError, match="got 0 jobs"):
        rest.find("x")
    assert rest.cancel(plan.run_id)["state"] == "cancelled"
    with pytest.raises(PlanError, match="is not a reader of job"):
        rest.box(plan.run_id, 0)


def test_a_stranger_is_told_so(service: Service, authority: Authority, tmp_path: Path) -> None:
    known = authority.context("mallory", ssl.PROTOCOL_TLS_CLIENT)
    with Rest(service.address, known) as rest, pytest.raises(TransportError, match="not enrolled"):
        rest.jobs()
    (tmp_path / "other").mkdir()
    forger = Authority(tmp_path / "other").context("ana", ssl.PROTOCOL_TLS_CLIENT)
    forger.load_verify_locations(tmp_path / "ca.pem")
    with Rest(service.address, forger) as rest, pytest.raises(TransportError, match="reached"):
        rest.jobs()
    with (
        Rest("https://127.0.0.1:1", known) as rest,
        pytest.raises(TransportError, match="cannot be reached"),
    ):
        rest.jobs()


def test_a_loop_that_ends_at_this_moment_takes_no_work_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To ask whether it has ended is not enough: it may end right after."""
    hub, loop = (
        Hub(on_connect=lambda _: None, on_decision=lambda *_: None),
        asyncio.new_event_loop(),
    )
    loop.close()
    monkeypatch.setattr(loop, "is_closed", lambda: False)
    hub._loop = loop
    with pytest.raises(TransportError, match="was stopped; no more requests are sent"):
        hub.exchange("0" * 32, {"a": b""}, patience=1.0, grace=1.0, on_sent=lambda: None)


def test_an_exchange_that_cannot_begin_ends_with_the_error() -> None:
    """The job's thread waits for it, and nobody else would hear of it."""

    def identify(_: object) -> None:
        raise ZeroDivisionError

    async def asked() -> None:
        hub = Hub(on_connect=lambda _: None, on_decision=lambda *_: None, identify=identify)
        hub._loop = asyncio.get_running_loop()
        hub._streams["b"] = _Stream(SimpleNamespace(scope={}, headers={}), 1)  # type: ignore[arg-type]
        frames = {"a": b"", "b": b""}  # one is absent and waited for already
        exchange = hub.exchange("0" * 32, frames, patience=60.0, grace=60.0, on_sent=lambda: None)
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            exchange.outcome.result(0)
        assert not hub._exchanges

    asyncio.run(asked())


def test_a_kept_port_is_ours_alone_and_can_be_listened_at() -> None:
    port, kept = kept_port()
    with kept:
        if sys.platform == "linux":
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
        for _ in range(2):  # a server of ours comes and goes
            with socket.create_server(("127.0.0.1", port)):
                pass
