"""A federation of real processes on this machine, for trials, demonstrations and tests.

It uses the same components as a network: certificates, mutual TLS, a coordinator that listens on
loopback, and silos that dial out. Each party has separate files; only the machine is shared.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import tomli_w

from cloister.core.errors import TransportError
from cloister.data.schema import Schema
from cloister.federation.pki import KeyFolder, client_context, local_federation
from cloister.federation.service.client import Rest
from cloister.protocol.lifecycle import ENDED
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import proposal

COORDINATOR, ANALYST = "coordinator", "analyst"

Command = Callable[[str, Path], Sequence[str]]


def product_command(role: str, config: Path) -> Sequence[str]:
    """Return the command line that runs a party as its operator would."""
    return (sys.executable, "-m", "cloister", role, "run", "--config", str(config))


@dataclass
class LocalFederation:
    """A coordinator and silos, each a process with a folder.

    Parameters
    ----------
    folder : Path
        Must be empty or absent; everything is written there.
    tables : mapping of str to Path
        A file of records for each silo.
    cap_epsilon, cap_delta : float
        Lifetime cap in each silo's ledger.
    policies : mapping of str to mapping
        Settings of a silo's policy, in addition to the default, which allows `auto`, FastLloyd and
        counts.
    accept_loss : float, optional
        Share of the rows that every silo may exclude, 5 % by default.
    tasks : mapping of name to ``FILE.py:CLASS``
        Your own tasks, as every silo's settings name them.
    coordinator : mapping
        Settings of the coordinator, such as ``{"grace": 5.0}``.
    command : function of (role, configuration file)
        The command line of a party.
    poll_seconds : float
        Time between two requests to the coordinator; each request costs it time.
    """

    folder: Path
    schema: Schema
    tables: Mapping[str, Path]
    cap_epsilon: float = 10.0
    cap_delta: float = 1e-6
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    accept_loss: float | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)
    coordinator: Mapping[str, Any] = field(default_factory=dict)
    command: Command = product_command
    poll_seconds: float = 0.05

    popen: ClassVar[Callable[..., Any]] = subprocess.Popen
    """The function that starts a process. Tests replace it by a fork of a warm process."""

    def __post_init__(self) -> None:
        self.folder = Path(os.path.abspath(self.folder))
        self.keys = local_federation(self.folder, self.tables, (ANALYST,))
        # Reserved until the end: the coordinator may be killed and started again.
        self.port, self._kept_port = kept_port()
        self.fingerprints = {
            name: KeyFolder(keys).identity().fingerprint for name, keys in self.keys.items()
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write_settings()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Address at which the coordinator listens."""
        return f"https://localhost:{self.port}"

    def config(self, name: str) -> Path:
        """Return the configuration file of a party."""
        return self.folder / name / "cloister.toml"

    def log(self, name: str) -> Path:
        """Return the file of a party's standard streams."""
        return self.folder / name / "log.jsonl"

    def start(self, *names: str) -> None:
        """Start parties; all of them by default."""
        for name in names or (COORDINATOR, *self.tables):
            role = COORDINATOR if name == COORDINATOR else "silo"
            with self.log(name).open("ab") as log:
                self.processes[name] = self.popen(
                    list(self.command(role, self.config(name))),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder / name,
                    start_new_session=True,
                )

    def kill(self, name: str, number: int = 9) -> None:
        """Send a signal (SIGKILL) to a party's process and wait until it ended."""
        process = self.processes.pop(name)
        # The whole group, including processes that the party started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(120)

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        # All parties stop in parallel, with one time limit for all of them.
        deadline = time.monotonic() + 5
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.processes.clear()
        self._kept_port.close()

    def rest(self) -> Rest:
        """Return the analyst's connection to the coordinator."""
        return Rest(self.url, client_context(KeyFolder(self.keys[ANALYST])))

    def wait_connected(self, *names: str, seconds: float = 300.0) -> None:
        """Wait until the coordinator listens and these silos (or all) have a stream."""
        wanted = set(names or self.tables)

        with self.rest() as rest:  # one connection: a handshake costs more than a question
            self._wait(
                lambda: wanted <= {silo["name"] for silo in rest.silos() if silo["connected"]},
                seconds,
                f"connection of {sorted(wanted)}",
            )

    def propose(self, plan: Plan) -> str:
        """Propose a job as the analyst; return its id."""
        identity = KeyFolder(self.keys[ANALYST]).identity()
        with self.rest() as rest:
            return str(rest.submit(proposal(plan, identity, ANALYST))["id"])

    def job(self, job: str) -> dict[str, Any]:
        """Return the coordinator's view of a job."""
        with self.rest() as rest:
            return rest.job(job)

    def wait_job(
        self, job: str, states: Sequence[str] = ENDED, seconds: float = 300.0
    ) -> dict[str, Any]:
        """Wait until a job is in one of `states`; return the coordinator's view of it."""
        shown: dict[str, Any] = {}

        def there() -> bool:
            shown.update(rest.job(job))
            return shown["state"] in states

        with self.rest() as rest:
            self._wait(there, seconds, f"job {job} in one of {tuple(states)}")
        return shown

    def results(self, silo: str, job: str) -> Path:
        """Return the path of a job's result at a silo."""
        return self.folder / silo / "results" / job / "model.json"

    def wait_results(self, job: str, *silos: str, seconds: float = 60.0) -> None:
        """Wait until silos (or all) have written the result of a job."""
        wanted = silos or tuple(self.tables)
        self._wait(
            lambda: all(self.results(silo, job).is_file() for silo in wanted),
            seconds,
            f"results at {wanted}",
        )

    def _wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            # A party that ended would let every wait run into its time limit.
            for name, process in self.processes.items():
                if process.poll() is not None:
                    last = self.log(name).read_text(errors="replace")[-400:].strip()
                    raise TransportError(f"{name!r} ended unexpectedly; its last output: {last}")
            # The coordinator may be starting, or restarting, while a test waits.
            with suppress(TransportError):
                if ready():
                    return
            if time.monotonic() > deadline:
                raise TransportError(f"{what} did not happen within {seconds:g} s.")
            time.sleep(self.poll_seconds)

    def _write_settings(self) -> None:
        values = {"role": COORDINATOR, "listen": f"127.0.0.1:{self.port}", **self.coordinator}
        _write(self.config(COORDINATOR), values)
        accepted = {} if self.accept_loss is None else {"accept_loss": self.accept_loss}
        for name, table in self.tables.items():
            folder = self.folder / name
            (folder / "schema.toml").write_text(self.schema.to_toml(), encoding="utf-8")
            policy = {
                "tasks": ["auto", "fastlloyd", "count"],
                "max_epsilon_per_job": self.cap_epsilon,
                "min_other_silos": min(2, len(self.tables) - 1),
                "profiles": ["pairwise", "group"],
                "standing": True,
                **self.policies.get(name, {}),
            }
            _write(
                self.config(name),
                {
                    "role": "silo",
                    "name": name,
                    "coordinator": self.url,
                    "cap_epsilon": self.cap_epsilon,
                    "cap_delta": self.cap_delta,
                    "data": {"file": str(Path(table).resolve()), **accepted},
                    "policy": policy,
                    "tasks": dict(self.tasks),
                    "peers": {p: self.fingerprints[p] for p in self.tables if p != name},
                    "analysts": {ANALYST: self.fingerprints[ANALYST]},
                },
            )
        _write(self.config(ANALYST), {"role": ANALYST, "name": ANALYST, "coordinator": self.url})


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(tomli_w.dumps(values), encoding="utf-8")


def kept_port() -> tuple[int, socket.socket]:
    """Return a free port of loopback, and a socket that is bound to it and never listens.

    While the socket is open, Linux assigns the port to no process that requests any free port. The
    coordinator can still listen there, also after a restart, as both may reuse the address.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    if sys.platform != "linux":  # elsewhere it would keep our server out as well
        kept.close()
    return port, kept
