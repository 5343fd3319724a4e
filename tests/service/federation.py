"""Silos and streams in this process, in place of the hub and its WebSockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cloister.core.errors import CloisterError, TransportError
from cloister.federation.service.audit import Audit
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.store import Store, StoredJob
from cloister.hazmat.signing import Identity
from cloister.protocol.client import Client
from cloister.protocol.journal import Journal, MemoryJournal
from cloister.protocol.lifecycle import ENDED
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.protocol.session import Transport
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise, toy_plan, toy_records

SILOS = ("a", "b", "c")
IDENTITIES = {name: Identity.new() for name in (*SILOS, "d", "ana", "bob", "op")}


@dataclass(frozen=True)
class Caller:
    """What a certificate would name."""

    role: str
    name: str
    not_after: datetime = field(default_factory=lambda: datetime.now(UTC) + timedelta(days=365))

    @property
    def fingerprint(self) -> str:
        return IDENTITIES[self.name].fingerprint


def network_plan(**changes: Any) -> Plan:
    """Return a small plan of the silos a, b and c with their fingerprints."""
    silos = changes.pop("silos", SILOS)
    fingerprints = tuple(IDENTITIES[name].fingerprint for name in silos)
    plan = toy_plan(silos=len(silos))
    return replace(plan, **{"silos": silos, "fingerprints": fingerprints, **changes})


def signed_by(name: str, plan: Plan) -> dict[str, str]:
    """Return the proposer of a plan."""
    return asdict(Proposer.of(plan, IDENTITIES[name], name))


@dataclass
class Streams:
    """A hub without a network: silos are clients in this process.

    `before` is called with each exchange's number and frames, before they are carried. Where `dies`
    says so, the process is gone before the frames leave: it waits until the job is told to stop.
    """

    up: set[str] = field(default_factory=lambda: set(SILOS))
    journals: dict[str, Journal] = field(
        default_factory=lambda: {name: MemoryJournal() for name in (*SILOS, "d")}
    )
    refusing: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[int, Mapping[str, bytes]], None] | None = None
    dies: Callable[[int], bool] = lambda number: False
    dying: threading.Event = field(default_factory=threading.Event)
    offers: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    ends: list[tuple[str, str, str, str]] = field(default_factory=list)
    proofs: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    changed: Callable[[str, bytes], bytes] = lambda silo, answer: answer
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    clients: dict[tuple[str, str], Client] = field(default_factory=dict)
    exchanges: int = 0

    def connected(self) -> tuple[str, ...]:
        return tuple(sorted(self.up))

    def releases(self) -> dict[str, str]:
        return dict.fromkeys(self.connected(), "0.3.0")

    def offer(self, silo: str, job: str, document: dict[str, Any]) -> None:
        self.offers.append((silo, job, document))
        if (silo, job) not in self.clients:
            self.clients[silo, job] = self.client(silo, Plan.from_dict(document["plan"], TASKS))

    def client(self, silo: str, plan: Plan) -> Client:
        records = toy_records(plan)[silo]
        identity = IDENTITIES[silo]
        return Client(plan, silo, [records], None, self.journals[silo], identity=identity)

    def end(
        self, silo: str, job: str, status: str, reason: str, convictions: Sequence[Any] = ()
    ) -> None:
        self.ends.append((silo, job, status, reason))
        self.proofs.append((silo, convictions))

    async def serve(self, websocket: Any, silo: str) -> None:
        await websocket.accept("cloister.1")
        await websocket.close()

    def transport(
        self,
        job: str,
        *,
        round_timeout: float,
        grace: float,
        stop: threading.Event,
        on_refusal: Callable[[str, str], None],
        on_sent: Callable[[], None],
    ) -> Transport:
        return _Wire(self, job, stop, on_refusal, on_sent)


@dataclass
class _Wire:
    streams: Streams
    job: str
    stop: threading.Event
    on_refusal: Callable[[str, str], None]
    on_sent: Callable[[], None]

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if self.stop.is_set():
            raise TransportError("stopped.")
        number = self.streams.exchanges
        self.streams.exchanges += 1
        if self.streams.before:
            self.streams.before(number, frames)
        if self.streams.dies(number):
            self.streams.dying.set()
            assert self.stop.wait(60), "nobody stopped the job"
        self.on_sent()
        if self.stop.is_set():
            raise TransportError("stopped.")
        answers = {}
        for silo in set(frames) & self.streams.up:
            self.streams.asked.append((silo, frames[silo]))
            if silo in self.streams.refusing:
                self.on_refusal(silo, self.streams.refusing[silo])
                continue
            try:
                answer = self.streams.clients[silo, self.job].handle(frames[silo])
                answers[silo] = self.streams.changed(silo, answer)
            except CloisterError as error:
                self.on_refusal(silo, str(error))
        return answers


@dataclass
class Coordinator:
    """A coordinator over fake streams, that may be killed and started again."""

    url: str
    folder: Path
    streams: Streams = field(default_factory=Streams)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = Store(self.url)
        self.audit = Audit(self.folder / "audit.jsonl")
        self.jobs = Jobs(
            self.store,
            self.streams,
            self.audit,
            **{"new_noise": ZeroNoise, "approval_timeout": 60.0, **self.options},
        )

    def close(self) -> None:
        self.jobs.close()
        self.store.close()
        self.audit.close()

    def submit(self, plan: Plan | None = None, by: str = "ana") -> str:
        plan = plan or network_plan()
        fingerprint = IDENTITIES[by].fingerprint
        self.jobs.submit(plan.to_dict(), signed_by(by, plan), name=by, fingerprint=fingerprint)
        return plan.run_id

    def decide(self, job: str, **decisions: bool | str) -> None:
        """Take decisions: True approves, a text declines with that reason."""
        for silo, said in decisions.items():
            approved = said is True
            self.jobs.decided(silo, job, approved, "" if approved else str(said))

    def job(self, job: str) -> StoredJob:
        known = self.store.job(job)
        assert known is not None
        return known

    def ended(self, job: str, seconds: float = 120.0) -> StoredJob:
        """Wait until a job has ended and everybody was told."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            known = self.job(job)
            if known.state in ENDED and job not in self.jobs._running:
                return known
            time.sleep(0.01)
        raise AssertionError(f"job is still {self.job(job)}")
