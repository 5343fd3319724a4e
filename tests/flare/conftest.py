"""A real FLARE federation on loopback: provisioned, mutual TLS, a server and three sites."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from cloister.core.randomness import new_key
from cloister.federation.flare import kit as flare_kit
from cloister.federation.pki import KeyFolder, local_federation
from cloister.testing import toy_schema

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SILOS = ("silo-0", "silo-1", "silo-2")
ADMIN = "admin@hub.org"
DOUBLES = tuple(f"flare_doubles.{name}" for name in ("ZeroNoiseSilo", "ToySite", "MirrorSite"))
SERVER_DOUBLES = ("flare_doubles.ZeroNoiseRounds", "flare_doubles.Conformance")
PROJECT = """
api_version: 3
name: cloister
participants:
  - {{name: localhost, type: server, org: hub, fed_learn_port: {port}}}
  - {{name: silo-0, type: client, org: org0}}
  - {{name: silo-1, type: client, org: org1}}
  - {{name: silo-2, type: client, org: org2}}
  - {{name: admin@hub.org, type: admin, org: hub, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


SILO = """
role = "silo"
name = "{}"
coordinator = "https://not-used-under-flare"
keys = "{}"
cap_epsilon = 10.0
data.file = "records.csv"

[policy]
tasks = ["fastlloyd"]
max_epsilon_per_job = 2.0
standing = true

[peers]
{}

[analysts]
analyst = "{}"
"""


class Federation:
    """The processes of a federation; all end with it, whatever they do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self.keys: dict[str, Path] = {}
        (folder / "home").mkdir()
        self._port = _free_port()
        (folder / "project.yml").write_text(PROJECT.format(port=self._port))
        command = [
            Path(sys.executable).parent / "nvflare",
            "provision",
            "--force",
            "-p",
            "project.yml",
            "-w",
            ".",
        ]
        subprocess.run(
            command, cwd=folder, env=self._env(), check=True, capture_output=True, timeout=600
        )
        self.kits = folder / "cloister" / "prod_00"
        server = self.kits / "localhost" / "local" / "resources.json.default"
        # FLARE keeps jobs and snapshots in /tmp unless told otherwise
        server.write_text(server.read_text().replace("/tmp/nvflare", str(folder / "server")))

    def start(self) -> None:
        """Start the server, the sites and the operator's console; return when all are there."""
        server = ["-m", "nvflare.private.fed.app.server.server_train", "-s", "fed_server.json"]
        self._start("localhost", [*server, "org=hub"])
        for silo in SILOS:
            self.start_site(silo)
        script = HERE / "operator_console.py"
        self._console = subprocess.Popen(
            [sys.executable, script, self.kits / ADMIN, ADMIN, str(len(SILOS))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log("console"),
            env=self._env(),
            cwd=self._folder,
            start_new_session=True,
        )
        self._processes.append(self._console)
        assert self._answer(600.0) == {"ready": True}

    def start_site(self, silo: str) -> None:
        """Start a site, for the first time or again."""
        client = ["-m", "nvflare.private.fed.app.client.client_train", "-s", "fed_client.json"]
        self._start(silo, [*client, f"uid={silo}", f"org={silo.replace('silo-', 'org')}"])

    def submit(
        self, job: Path, seconds: float = 600.0, until: Iterable[Path] = ()
    ) -> dict[str, Any]:
        """Submit a job and return how it ended, as the operator sees it.

        With `until`, the operator aborts what is left of the job once all those files are there.
        """
        assert self._console.stdin is not None
        files = [str(path) for path in until]
        request = {"job": str(job), "seconds": seconds, "until": files}
        self._console.stdin.write(json.dumps(request).encode() + b"\n")
        self._console.stdin.flush()
        return self._answer(seconds + 120.0)

    def log(self, party: str) -> str:
        """Return everything that a party wrote."""
        text = (self._folder / f"{party}.out").read_text(errors="replace")
        for path in sorted((self.kits / party).rglob("*.txt")):
            with suppress(FileNotFoundError):  # FLARE clears away what a job left
                text += path.read_text(errors="replace")
        return text

    def stop(self) -> None:
        """End every process of the federation, jobs included."""
        for process in self._processes:
            with_children = _descendants(process.pid)
            for pid in (process.pid, *with_children):
                _kill(pid)
            process.wait(60)
        for log in self._logs:
            log.close()

    def _start(self, party: str, arguments: list[str]) -> None:
        kit = self.kits / party
        options = ["-m", str(kit), "--set", "secure_train=true", "config_folder=config"]
        module, name, *rest = arguments[1], *arguments[2:]
        command = [sys.executable, "-m", module, *options[:2], name, *rest[:1], *options[2:]]
        process = subprocess.Popen(
            [*command, *rest[1:]],
            stdout=self._log(party),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=self._env(),
            cwd=kit,
            start_new_session=True,
        )
        self._processes.append(process)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._console.stdout is not None
        ready, _, _ = select.select([self._console.stdout], [], [], seconds)
        line = self._console.stdout.readline() if ready else b""
        assert line, f"the operator's console says nothing: {self.log('console')[-2000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _log(self, party: str) -> IO[bytes]:
        self._logs.append((self._folder / f"{party}.out").open("ab"))
        return self._logs[-1]

    def _env(self) -> dict[str, str]:
        home = {"HOME": str(self._folder / "home"), "PYTHONUNBUFFERED": "1"}
        paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {**os.environ, **home, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _free_port() -> int:
    """Return a port below those that the system gives away, so that nobody gets it before us."""
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs; FLARE gives its jobs sessions of their own."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def furnish(kits: Path, folder: Path) -> dict[str, Path]:
    """Give every site keys, records and a configuration; return all key folders."""
    keys = local_federation(folder / "keys", SILOS)
    pins = {name: KeyFolder(path).identity().fingerprint for name, path in keys.items()}
    rng = np.random.default_rng(7)
    for silo in SILOS:
        local = kits / silo / "local"
        (local / "schema.toml").write_text(toy_schema().to_toml())
        rows = rng.uniform(-1, 1, (200, 2))
        np.savetxt(local / "records.csv", rows, "%.6f", ",", header="x0,x1", comments="")
        lines = "\n".join(f'{name} = "{pins[name]}"' for name in SILOS if name != silo)
        (local / "silo.toml").write_text(SILO.format(silo, keys[silo], lines, pins["analyst"]))
    return keys


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three sites made safe with our kit; a server that lets anybody ship code."""
    if importlib.util.find_spec("nvflare") is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("FLARE is not installed; install the extra 'flare'")
    folder = tmp_path_factory.mktemp("flare")
    made = Federation(folder)
    made.keys = furnish(made.kits, folder)
    key = new_key().hex()
    for silo in SILOS:
        flare_kit.secure(made.kits / silo, (flare_kit.SITE_CLASS, *DOUBLES))
        (made.kits / silo / "local" / "group.key").write_text(key)
    server = made.kits / "localhost"
    flare_kit.secure(server, (flare_kit.SERVER_CLASS, *SERVER_DOUBLES))
    (server / "local" / "authorization.json").unlink()
    try:
        made.start()
        yield made
    finally:
        made.stop()
