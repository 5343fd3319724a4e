"""The process of the coordinator: whom it lets in, how it ends, and that SIGKILL loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.cli import main as command_line
from cloister.core.errors import CloisterError, LedgerError, TransportError
from cloister.federation.local import kept_port
from cloister.federation.pki import Authority, KeyFolder, Peer, client_context, local_federation
from cloister.federation.service import gate, server
from cloister.federation.service.audit import verify
from cloister.federation.service.client import Rest
from cloister.federation.service.gate import Enrolled
from cloister.federation.service.server import serve
from cloister.federation.service.store import Store
from cloister.protocol.proposal import proposal

from .federation import SILOS, network_plan
from .test_network import Silo, ended


@dataclass
class Federation:
    """An authority, the coordinator's folder, and what a client presents."""

    keys: KeyFolder
    authority: Authority
    presented: bytes | None

    def identify(self) -> Peer:
        return Enrolled(self.keys)({"state": {"peer_certificate": self.presented}})


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    folders = local_federation(tmp_path, silos=("a",))
    pem = KeyFolder(folders["a"]).file("tls.pem").read_bytes()
    certificate = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    return Federation(KeyFolder(folders["coordinator"]), Authority(tmp_path / "ca"), certificate)


def test_who_is_enrolled_is_let_in(federation: Federation) -> None:
    peer = federation.identify()
    assert (peer.role, peer.name) == ("silo", "a")


def test_nobody_is_let_in_without_a_certificate(federation: Federation) -> None:
    federation.presented = None
    with pytest.raises(TransportError, match="certificate of this federation is needed"):
        federation.identify()


def test_an_expired_certificate_is_turned_away_on_an_old_connection_too(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2100, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(gate, "datetime", Later)
    with pytest.raises(TransportError, match="has expired"):
        federation.identify()


def test_a_revocation_counts_at_once(federation: Federation) -> None:
    federation.identify()
    federation.authority.revoke("a")
    shutil.copy(federation.authority.path / "crl.pem", federation.keys.path / "crl.pem")
    with pytest.raises(TransportError, match="was revoked"):
        federation.identify()


def test_a_revocation_list_of_somebody_else_lets_nobody_in(
    federation: Federation, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", "another federation")
    shutil.copy(other.path / "crl.pem", federation.keys.path / "crl.pem")
    with pytest.raises(CloisterError):
        federation.identify()


class Spy:
    """A server and jobs that write down in which order they are used."""

    port = 8443

    def __init__(self, fails: Exception | None = None) -> None:
        self.order: list[str] = []
        self._fails = fails
        self._ended = threading.Event()

    def run(self) -> None:
        if self._fails:
            raise self._fails
        self._ended.wait(60)

    def stop(self) -> None:
        self.order.append("stop server")
        self._ended.set()

    def start(self) -> None:
        self.order.append("start jobs")

    def close(self) -> None:
        self.order.append("stop jobs")


def test_jobs_are_stopped_before_the_streams_close_under_them() -> None:
    spy, stop = Spy(), threading.Event()
    serve(spy, stop, lambda port: stop.set() if port == 8443 else None, spy)  # type: ignore[arg-type]
    assert spy.order == ["start jobs", "stop jobs", "stop server"]


def test_whoever_serves_raises_how_much_it_may_have_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As doctor says of a coordinator and of a scorer; a scorer has no jobs."""
    asked: list[bool] = []
    monkeypatch.setattr(server, "descriptors", lambda *, raised: asked.append(raised))
    spy, stop = Spy(), threading.Event()
    stop.set()
    serve(spy, stop)  # type: ignore[arg-type]
    assert (asked, spy.order) == ([True], ["stop server"])


def test_a_server_that_breaks_ends_the_process_with_its_error() -> None:
    spy = Spy(TransportError("the port is gone."))
    with pytest.raises(TransportError, match="the port is gone"):
        serve(spy, work=spy)  # type: ignore[arg-type]
    assert spy.order[-2:] == ["stop jobs", "stop server"]


def test_jobs_that_cannot_start_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy()

    def broken() -> None:
        raise LedgerError("the audit file was changed.")

    monkeypatch.setattr(spy, "start", broken)
    with pytest.raises(LedgerError):
        serve(spy, work=spy)  # type: ignore[arg-type]
    assert spy.order == ["stop jobs", "stop server"]


# SIGKILL -------------------------------------------------------------------------------------

PROCESS = """
import sys
from pathlib import Path
from cloister.federation.service.main import run
from cloister.federation.settings import CoordinatorSettings
from cloister.testing import SimulatedNoise
folder, database, listen, life = sys.argv[1:]
settings = CoordinatorSettings(
    listen=listen, keys=Path(folder) / "coordinator" / "keys", database=database,
    round_timeout=120.0, grace=120.0, approval_timeout=600.0, max_message_bytes=2**20,
    audit_log=Path(folder) / "audit.jsonl",
)
run(settings, noise=SimulatedNoise(int(life)), ready=lambda port: print(port, flush=True))
"""


class Killable:
    """The service in a process of its own; every life draws other noise."""

    def __init__(self, folder: Path, database: str, popen: Callable[..., Any]) -> None:
        self._folder, self._database, self._popen = folder, database, popen
        port, self.kept = kept_port()
        self._listen, self.lives = f"127.0.0.1:{port}", 0
        self.address = f"https://{self._listen}"
        self.start()

    def start(self) -> None:
        self.lives += 1
        arguments = [str(self._folder), self._database, self._listen, str(self.lives)]
        told, tells = os.pipe()
        self._process = self._popen([sys.executable, "-c", PROCESS, *arguments], stdout=tells)
        os.close(tells)
        with os.fdopen(told) as said:
            assert self._listen.endswith(f":{said.readline().strip()}")

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


@pytest.fixture
def killable(tmp_path: Path, database_url: str, nursery: Callable[..., Any]) -> Iterator[Killable]:
    local_federation(tmp_path, silos=SILOS, analysts=("ana",))
    process = Killable(tmp_path, database_url, nursery)
    yield process
    process.kill()
    process.kept.close()


def test_a_coordinator_killed_again_and_again_in_a_job_goes_on_with_its_first_answers(
    killable: Killable, tmp_path: Path, database_url: str
) -> None:
    keys = {name: KeyFolder(tmp_path / name / "keys") for name in (*SILOS, "ana")}
    silos = {
        name: Silo(name, killable.address, client_context(keys[name]), keys[name].identity())
        for name in SILOS
    }
    seen: list[bytes] = []

    def kill(frame: bytes) -> None:
        if frame not in seen:
            seen.append(frame)
            if len(seen) % 2:
                killable.kill()
                killable.start()

    plan = network_plan(fingerprints=tuple(keys[name].identity().fingerprint for name in SILOS))
    silos["c"].before_answer = kill
    with Rest(killable.address, client_context(keys["ana"])) as rest:
        rest.submit(proposal(plan, keys["ana"].identity(), "ana"))
        done = ended(rest, plan.run_id)
    assert (done["state"], done["reason"], done["rounds_done"]) == ("done", "", 2)
    assert killable.lives >= 4
    for silo in silos.values():
        silo.close()
    killable.kill()
    states = [silo.clients[plan.run_id].history[-1]["centres"] for silo in silos.values()]
    assert all((state == states[0]).all() for state in states)
    store = Store(database_url)
    assert store.counts()[1] == 2
    assert all(store.frame(plan.run_id, t) in seen for t in range(2)), "as the silos were told"
    store.close()
    verify(tmp_path / "audit.jsonl")
    killable.start()


def test_the_command_serves_until_sigterm_and_logs_json(tmp_path: Path) -> None:
    local_federation(tmp_path, silos=(), analysts=("ana",))
    config = tmp_path / "coordinator.toml"
    config.write_text(
        'role = "coordinator"\nlisten = "127.0.0.1:0"\nkeys = "coordinator/keys"\n'
        'database = "sqlite:///jobs.db"\naudit_log = "audit.jsonl"\n'
    )
    command = [sys.executable, "-m", "cloister", "coordinator", "run", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    port = json.loads(process.stderr.readline())["message"].rpartition(" ")[2]
    context = client_context(KeyFolder(tmp_path / "ana" / "keys"))
    with Rest(f"https://localhost:{port}", context) as rest:
        assert rest.jobs() == []
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert all(json.loads(line) for line in err.splitlines())
    assert (tmp_path / "jobs.db").exists()
    verify(tmp_path / "audit.jsonl")


def test_the_command_refuses_the_file_of_another_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "analyst.toml"
    config.write_text(
        'role = "analyst"\nname = "ana"\ncoordinator = "https://localhost:1"\nkeys = "keys"\n'
    )
    assert command_line(["coordinator", "run", "--config", str(config)]) == 3
    assert "role must be 'coordinator'" in capsys.readouterr().err
