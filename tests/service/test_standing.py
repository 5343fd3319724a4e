"""A certificate that was revoked or has expired ends its open stream, over mutual TLS."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from cloister.core.errors import TransportError
from cloister.data.schema import Column, Schema
from cloister.federation.local import LocalFederation
from cloister.federation.pki import Authority, KeyFolder, client_context, local_federation
from cloister.federation.service import gate, main
from cloister.federation.service import hub as hub_module
from cloister.federation.service.client import Rest
from cloister.federation.settings import CoordinatorSettings, SiloSettings, load_settings
from cloister.federation.silo.site import Site
from cloister.federation.transports.http import Stream, StreamClient
from cloister.protocol.proposal import proposal
from cloister.testing import ZeroNoise

from .federation import SILOS, network_plan, signed_by
from .test_jobs import wait_for
from .test_network import Silo, ended

FOREVER = 3600.0  # seconds; whoever waits for as long as this fails the test


class Real:
    """A coordinator in a thread, as the command runs it, and the folders of its federation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        local_federation(folder, silos=SILOS, analysts=("ana",))
        settings = CoordinatorSettings(
            listen="127.0.0.1:0",
            keys=folder / "coordinator" / "keys",
            database=f"sqlite:///{folder / 'coordinator.db'}",
            round_timeout=FOREVER,
            grace=FOREVER,
            approval_timeout=FOREVER,
            max_message_bytes=2**20,
            audit_log=folder / "audit.jsonl",
        )
        there, self._stop, ports = threading.Event(), threading.Event(), []

        def ready(port: int) -> None:
            ports.append(port)
            there.set()

        self._thread = threading.Thread(
            target=main.run,
            args=(settings,),
            kwargs={"noise": ZeroNoise(), "ready": ready, "stop": self._stop},
            daemon=True,
        )
        self._thread.start()
        assert there.wait(60)
        self.address = f"https://127.0.0.1:{ports[0]}"
        self._silos: list[Silo] = []

    def close(self) -> None:
        for silo in self._silos:
            silo.close()
        self._stop.set()
        self._thread.join(60)

    def keys(self, name: str) -> KeyFolder:
        return KeyFolder(self.folder / name / "keys")

    def rest(self) -> Rest:
        return Rest(self.address, client_context(self.keys("ana")))

    def stream(self, name: str) -> Stream:
        """Return an open stream of a silo, with the certificate that its folder has now."""
        return StreamClient(self.address, client_context(self.keys(name))).connect()

    def silo(self, name: str) -> Silo:
        keys = self.keys(name)
        self._silos.append(Silo(name, self.address, client_context(keys), keys.identity()))
        return self._silos[-1]

    def connected(self) -> set[str]:
        with self.rest() as rest:
            return {silo["name"] for silo in rest.silos() if silo["connected"]}

    def revoke(self, name: str) -> None:
        Authority(self.folder / "ca").revoke(name)
        shutil.copy(self.folder / "ca" / "crl.pem", self.folder / "coordinator/keys/crl.pem")

    def propose(self, **changes: Any) -> str:
        pins = tuple(self.keys(name).identity().fingerprint for name in SILOS)
        plan = network_plan(fingerprints=pins, **changes)
        with self.rest() as rest:
            return str(rest.submit(proposal(plan, self.keys("ana").identity(), "ana"))["id"])


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    federation = Real(tmp_path)
    yield federation
    federation.close()


def why_it_ends(stream: Stream) -> str:
    """Wait until a stream ends; return the reason that it was told."""
    try:
        for _ in range(600):
            stream.receive(0.1)
    except TransportError as error:
        return str(error)
    raise AssertionError("the stream is still open")


def test_a_revoked_certificate_ends_its_open_stream_at_once_and_no_other(real: Real) -> None:
    streams = {name: real.stream(name) for name in SILOS}
    wait_for(lambda: real.connected() == set(SILOS))
    real.revoke("c")
    assert "the certificate of 'c' was revoked" in why_it_ends(streams["c"])
    assert real.connected() == {"a", "b"}
    with pytest.raises(TransportError, match="revoked"):
        real.stream("c")
    for name in ("a", "b"):
        assert streams[name].receive(0.1) is None, "it is open, and nothing was said"
        streams[name].close()


def expiring(real: Real, name: str, seconds: int) -> None:
    """Give a party a certificate like its own that ends soon."""
    keys, ca = real.keys(name), real.folder / "ca"
    own = x509.load_pem_x509_certificate(keys.file("tls.pem").read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(own.issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(datetime.now(UTC) + timedelta(seconds=seconds))
    )
    for extension in own.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    key: Any = serialization.load_pem_private_key((ca / "ca.key").read_bytes(), None)
    keys.file("tls.pem").write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )


def test_a_certificate_that_expires_ends_its_open_stream(real: Real) -> None:
    for seconds in (2, 4, 8, 16, 32, 64):  # a slow machine may not be connected in two
        expiring(real, "b", seconds)
        try:
            stream = real.stream("b")
        except TransportError:
            continue
        assert "the certificate of 'b' has expired" in why_it_ends(stream)
        assert real.connected() == set()
        return
    raise AssertionError("nobody could connect in a minute")


def test_a_silo_that_is_revoked_in_a_running_job_counts_as_dropped(real: Real) -> None:
    """Nobody waits for it, though an absent silo would be waited for an hour here."""
    silos = {name: real.silo(name) for name in SILOS}
    wait_for(lambda: real.connected() == set(SILOS))
    seen: list[bytes] = []

    def revoked_meanwhile(frame: bytes) -> None:
        seen.append(frame)
        if len(seen) == 2:
            real.revoke("c")

    silos["c"].before_answer = revoked_meanwhile
    job = real.propose(min_silos=2)
    with real.rest() as rest:
        done = ended(rest, job)
    assert (done["state"], done["survivors"]) == ("done", ["a", "b"]), done["reason"]
    assert done["approved"] == ["a", "b", "c"]
    assert len(seen) == 2, "it was asked for nothing more"


def test_the_next_job_starts_at_once_without_a_revoked_silo(real: Real) -> None:
    silos = {name: real.silo(name) for name in SILOS}
    wait_for(lambda: real.connected() == set(SILOS))
    real.revoke("c")
    wait_for(lambda: real.connected() == {"a", "b"})
    job = real.propose(min_silos=2)
    with real.rest() as rest:
        done = ended(rest, job)
    assert (done["state"], done["approved"]) == ("done", ["a", "b"]), done["reason"]
    assert any(said["silo"] == "c" and "revoked" in said["reason"] for said in done["decisions"])
    assert job not in silos["c"].clients


def test_no_job_is_shown_to_a_revoked_silo_between_two_looks(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_LOOK", FOREVER)
    silos = {name: real.silo(name) for name in SILOS}
    wait_for(lambda: real.connected() == set(SILOS))
    real.revoke("c")
    job = real.propose(min_silos=2)
    with real.rest() as rest:
        assert ended(rest, job)["approved"] == ["a", "b"]
    assert job not in silos["c"].clients


def test_a_revocation_list_that_cannot_be_read_ends_no_open_stream_and_opens_none(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_LOOK", 0.02)
    stream = real.stream("a")
    wait_for(lambda: real.connected() == {"a"})
    looks: list[object] = []
    original: Callable[..., Any] = gate.Enrolled.__call__

    def counted(self: gate.Enrolled, scope: Any) -> Any:
        looks.append(scope)
        return original(self, scope)

    (real.folder / "coordinator/keys/crl.pem").write_text("half a list")
    monkeypatch.setattr(gate.Enrolled, "__call__", counted)
    wait_for(lambda: len(looks) > 20)
    assert stream.receive(0.1) is None
    with pytest.raises(TransportError):
        real.stream("b")
    stream.close()


def test_a_removed_pin_counts_from_the_next_job_without_a_restart(tmp_path: Path) -> None:
    number = Column(name="x", type="number", min=0, max=1)
    schema = Schema(dataset="data", unit="row", columns=(number,))
    (tmp_path / "t.csv").write_text("x\n0.5\n")
    federation = LocalFederation(tmp_path / "f", schema, dict.fromkeys(SILOS, tmp_path / "t.csv"))
    config = federation.config("a")
    settings = load_settings(config)
    assert isinstance(settings, SiloSettings)
    site = Site.of(settings)
    plan = network_plan(fingerprints=tuple(federation.fingerprints[name] for name in SILOS))

    def refusal() -> str:
        return site.refusal(plan, signed_by("ana", plan)) or ""

    assert "pinned" not in refusal().partition("analyst")[0]
    (pin,) = [line for line in config.read_text().splitlines() if line.startswith("c = ")]
    config.write_text(config.read_text().replace(pin, ""))
    assert "silo 'c' is not pinned here" in refusal()
    config.write_text("role = ")
    assert "pins of this silo cannot be read" in refusal()
    federation.stop()
