"""The parties of a simulated federation: real agents and a real coordinator, without sockets.

A silo is an :class:`~cloister.federation.silo.agent.Agent` with its ledger and its file of jobs.
The coordinator is :class:`~cloister.federation.service.jobs.Jobs` with its database; it runs the
rounds of a job in the thread of the world, and a job that starts meanwhile runs inside of that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cloister.core.errors import CloisterError, LedgerError
from cloister.data import Records
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.store import Store, StoredJob
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.agent import Agent
from cloister.federation.silo.store import Store as SiloStore
from cloister.federation.transports.http import Kind, Message
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.chain import SignedStatement
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import NoiseSource
from cloister.protocol import lifecycle
from cloister.protocol.client import Client
from cloister.protocol.messages import kind_of
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.tasks import TASKS

from .laws import Laws
from .world import COORDINATOR, Crash, Image, World, image_of, put, torn

PATIENCE = 120.0  # seconds that the coordinator waits for an answer
DATABASES = ("ledger.db", "ledger.db-wal")
DELTA = 1e-6
_SILENT = SimpleNamespace(write=lambda *about, **fields: None)  # an audit file
_STANDING = PolicySettings(standing=True)


class WatchedAgent(Agent):
    """An agent whose local errors the laws see."""

    on_error: Callable[[Exception], None]

    def _tell_locally(self, what: str, job: str, error: Exception) -> None:
        self.on_error(error)


@dataclass
class Silo:
    """A silo: what lies in its folder, and the process that may run."""

    world: World
    laws: Laws
    folder: Path
    name: str
    identity: Identity
    records: Records
    cap: float
    federation: Federation
    agent: WatchedAgent | None = None
    on_answer: Callable[[], None] = lambda: None
    backups: list[Image] = field(default_factory=list)

    @property
    def ledger_path(self) -> Path:
        """The file of the ledger."""
        return self.folder / "ledger.db"

    @property
    def up(self) -> bool:
        """True while its process runs."""
        return self.agent is not None

    # Its process -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, and connect."""
        if self.up:
            return
        opened: list[Any] = []
        try:
            with self.world.as_party(self.name):
                opened.append(ledger := Ledger(self.ledger_path))
                ledger.open_dataset("toy", cap=Budget(self.cap, DELTA))
                opened.append(store := SiloStore(self.folder / "jobs.db"))
                self.agent = self._agent(ledger, store)
        except Crash:
            self._died(opened)
        except LedgerError as error:
            _dispose(opened)
            self._cure(error)
        else:
            self.laws.started(self)
            self.world.note(f"{self.name} starts")
            self.connect()

    def _agent(self, ledger: Ledger, store: SiloStore) -> WatchedAgent:
        def join(plan: Plan, records: Any) -> Client:
            try:
                return Client(plan, self.name, records, None, ledger, identity=self.identity)
            except CloisterError as error:
                self.laws.resumed(self, plan.run_id, error)
                raise

        site: Any = SimpleNamespace(
            settings=SimpleNamespace(
                name=self.name,
                results=self.folder / "out",
                kept_jobs=1000,
                ledger=self.ledger_path,
            ),
            schema=SimpleNamespace(dataset="toy"),
            policy=SimpleNamespace(rules=_STANDING, cap_study=lambda *study: None),
            refusal=lambda plan, proposer: None,
            records=lambda plan: self.records,
            tasks=TASKS,
            identity=self.identity,
        )
        agent = WatchedAgent.__new__(WatchedAgent)
        agent.on_error = self._trouble
        agent.__init__(  # type: ignore[misc]  # it may meet an error while it starts
            site,
            store=store,
            ledger=ledger,
            audit=_SILENT,
            join=join,
            noise_label="",
            wait=lambda seconds: False,
        )
        return agent

    def connect(self) -> None:
        """Open a new stream to the coordinator."""
        if self.agent is not None and self.federation.coordinator.up:
            self.agent.connected()
            self.federation.coordinator.connected(self.name)

    def do(self, work: Callable[[Agent], list[Message]]) -> list[Message]:
        """Let the process do something; it may die of it."""
        if self.agent is None:
            return []
        try:
            with self.world.as_party(self.name):
                return work(self.agent)
        except Crash:
            self.die()
        except CloisterError as error:
            self._trouble(error)
        except Exception as error:
            self.laws.raised(self.name, error)
        return []

    def take(self, message: Message) -> None:
        """Take a message of the coordinator, and send what it answers."""
        if message.kind == Kind.ASK and self.up:
            self.laws.heard(self, message)
        answers = self.do(lambda agent: agent.on_message(message))
        for answer in answers:
            if answer.kind == Kind.ANSWER:
                self.laws.answered(self, message, answer)
            self.federation.to_coordinator(self.name, answer)
        if message.kind == Kind.ASK and self.agent is not None:
            self.do(lambda agent: agent.prepare(message.job) or [])  # type: ignore[func-returns-value]  # nothing
        self.laws.looked(self)
        if any(answer.kind == Kind.ANSWER for answer in answers):
            self.on_answer()

    def look(self) -> None:
        """Look for decisions of the owner."""
        for answer in self.do(lambda agent: agent.look()):
            self.federation.to_coordinator(self.name, answer)

    # Its owner -------------------------------------------------------------------------------

    def _trouble(self, error: Exception) -> None:
        """Let the owner read the log, and do what it says after a while."""
        self.laws.raised(self.name, error)
        if isinstance(error, LedgerError):
            # Some owners read the log late, and jobs go on meanwhile.
            late = self.world.rng(f"owner of {self.name}").choice([20.0, 20.0, 300.0])
            self.world.after(late, lambda: self._mend(error), f"owner of {self.name}")

    def _cure(self, error: LedgerError) -> None:
        """Do what a refusal to start says, and start again."""
        self.world.note(f"{self.name} does not start: {error}")
        self._mend(error)
        self.world.after(5.0, self.start, f"owner of {self.name}")

    def _mend(self, error: LedgerError) -> None:
        try:
            with self.world.as_party(self.name):
                if "clock" in str(error):
                    self._set_clock()
                elif "budget recover" in str(error) or "rolled back" in str(error):
                    self._recover()
        except Crash:
            self.die()

    def _set_clock(self) -> None:
        self.world.skew[self.name] = 0
        with _closing(Ledger(self.ledger_path, behind=True)) as ledger:
            self.world.note(f"{self.name} sets its clock")
            ledger.confirm_clock()

    def _recover(self) -> None:
        """Run 'cloister budget recover', with what the peers hold; give up the head if need be."""
        held = [
            statement
            for peer in self.federation.silos.values()
            if peer is not self
            for statement in peer.remembered(self.identity.fingerprint)
        ]
        with _closing(Ledger(self.ledger_path, behind=True)) as ledger:
            try:
                taken = ledger.recover(self.identity.public, held)
                self.world.note(f"{self.name} recovers {len(taken)} jobs")
            except LedgerError as error:
                self.world.note(f"{self.name} gives up the head beside its ledger: {error}")
                self.ledger_path.with_name("ledger.db.head").unlink(missing_ok=True)
                ledger.recover(self.identity.public, held)
        self.laws.mended(self)

    def remembered(self, fingerprint: str) -> tuple[SignedStatement, ...]:
        """Return what this silo keeps of a peer's ledger, as its owner would send it."""
        if self.agent is None:
            return ()
        return self.agent._ledger.remembered(fingerprint)

    def withdraw(self, job: str) -> None:
        """Leave a job for good."""
        self.do(lambda agent: (agent._store.move(job, lifecycle.WITHDRAW) and []) or [])
        self.look()

    # Its disk --------------------------------------------------------------------------------

    def die(self, again: float | None = None) -> None:
        """Lose the memory; start again after a while."""
        if self.agent is not None:
            self._died([self.agent._ledger, self.agent._store], again)

    def _died(self, opened: list[Any], again: float | None = None) -> None:
        rng = self.world.rng(f"deaths of {self.name}")
        fuse = self.world.fuses.pop(self.name, None)
        self.world.dead.discard(self.name)
        image = torn(image_of(self.folder), fuse.tear if fuse else None, rng)
        _dispose(opened)
        self.agent = None
        put(self.folder, image)
        seconds = rng.choice([5, 30, 30, 200]) * rng.random() if again is None else again
        self.world.after(seconds, self.start, f"owner of {self.name}")

    def restore(self, image: Image, what: str) -> None:
        """Put an old backup in the place of the newest files, and start.

        Parameters
        ----------
        what : {"all", "ledger", "jobs", "copy"}
            The whole folder, the ledger without the head beside it, or the file of jobs. A "copy"
            is a folder whose ledger was written by the ledger itself.
        """

        def among(file: str) -> bool:
            ledger = file in DATABASES
            return what in ("all", "copy") or (ledger == (what == "ledger") and "head" not in file)

        self.die(again=1.0)
        put(self.folder, image, among=among)
        self.laws.restored(self, ledger=what != "jobs", alone=what == "ledger")
        if what == "copy":
            self.laws.copied(self)

    def back_up(self, what: str) -> None:
        """Keep the files; for a "copy" with a ledger from 'cloister budget backup'."""
        image, copy = image_of(self.folder), self.folder / "copy.db"
        if what == "copy":
            try:
                with self.world.as_party(self.name), _closing(Ledger(self.ledger_path)) as ledger:
                    ledger.backup(copy)
            except LedgerError:  # it is behind
                return
            except Crash:
                self.die()
                return
            image = {name: file for name, file in image.items() if "ledger.db" not in name}
            image["ledger.db"] = copy.read_bytes()
            copy.unlink()
        self.backups.append(image)


@dataclass
class Exchange:
    """Requests of a job that wait for answers."""

    number: int
    job: str
    frames: Mapping[str, bytes]
    due: set[str]
    answers: dict[str, bytes] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)


class SteppedJobs(Jobs):
    """Jobs that run when the world says so, and not in threads."""

    launch: Callable[[StoredJob], None]

    def _launch(self, job: StoredJob) -> None:
        if job.id not in self._running and self._known(job.id, brief=True).state == "running":
            self._running[job.id] = SimpleNamespace(stop=SimpleNamespace(set=lambda: None))  # type: ignore[assignment]  # no thread
            self.launch(job)


@dataclass
class Coordinator:
    """The coordinator: its database, its process, and the hub that it believes to have."""

    world: World
    laws: Laws
    folder: Path
    federation: Federation
    noise: Callable[[], NoiseSource]
    analyst: Identity
    numbered: bool = True  # an answer counts for the request of its number, as at the hub
    jobs: SteppedJobs | None = None
    backups: list[Image] = field(default_factory=list)
    put_back: Image | None = None  # the old backup with which it starts after its next death

    def __post_init__(self) -> None:
        self._exchanges: list[Exchange] = []
        self._numbers = 0

    @property
    def up(self) -> bool:
        """True while its process runs."""
        return self.jobs is not None

    def start(self) -> None:
        """Start the process; all silos connect."""
        if self.up:
            return
        store: Store | None = None
        try:
            with self.world.as_party(COORDINATOR):
                store = Store(f"sqlite:///{self.folder / 'coordinator.db'}")
                jobs = SteppedJobs(
                    store,
                    self,  # type: ignore[arg-type]  # in the place of the hub
                    _SILENT,  # type: ignore[arg-type]
                    new_noise=self.noise,
                )
                jobs.launch = self._launch
                self.jobs = jobs
                self.world.note("coordinator starts")
                jobs.look()  # launches what was running
        except Crash:
            self.die(store)
            return
        for silo in self.federation.silos.values():
            silo.connect()

    def do(self, work: Callable[[SteppedJobs], object]) -> None:
        """Let the process do something; a death ends all rounds under way, so it goes on up."""
        if self.jobs is None:
            return
        try:
            with self.world.as_party(COORDINATOR):
                work(self.jobs)
        except CloisterError as error:
            self.laws.raised(COORDINATOR, error)
        except Exception as error:
            self.laws.raised(COORDINATOR, error)

    def die(self, store: Store | None = None) -> None:
        """Lose the memory; start again after a while."""
        store = self.jobs.store if self.jobs else store
        rng = self.world.rng("deaths of the coordinator")
        fuse = self.world.fuses.pop(COORDINATOR, None)
        self.world.dead.discard(COORDINATOR)
        image = torn(image_of(self.folder), fuse.tear if fuse else None, rng)
        if store is not None:
            store.close()
        if self.put_back is not None:
            image, self.put_back = self.put_back, None
            self.laws.coordinator_restored()
        put(self.folder, image)
        self.jobs, self._exchanges = None, []
        self.world.after(rng.choice([5, 30]) * rng.random(), self.start, "operator")

    def propose(self, plan: Plan) -> None:
        """Submit a job, as its analyst does, who looks a while later whether it is there."""
        if self.jobs is not None and self.jobs.store.job(plan.run_id, brief=True) is not None:
            return
        self.world.after(90.0, lambda: self.propose(plan), "analyst")
        signed = asdict(Proposer.of(plan, self.analyst, "ann"))
        of = {"name": "ann", "fingerprint": self.analyst.fingerprint}
        self.world.note(f"job {plan.run_id[-4:]} is proposed")
        self.do(lambda jobs: jobs.submit(plan.to_dict(), signed, **of))

    # Its jobs --------------------------------------------------------------------------------

    def _launch(self, job: StoredJob) -> None:
        jobs = self.jobs
        self.world.after(0.5, lambda: self._work(job, jobs), f"job {job.id}")

    def _work(self, job: StoredJob, of_life: SteppedJobs | None) -> None:
        if self.jobs is not of_life:
            return
        if len(self._exchanges) >= 2:
            self.world.after(30.0, lambda: self._work(job, of_life), f"job {job.id}")
            return
        self.world.note(f"job {job.id[-4:]} runs")
        stop: Any = SimpleNamespace(is_set=lambda: False)
        self.do(lambda jobs: jobs._work(job, stop))

    # In the place of the hub -----------------------------------------------------------------

    def connected(self, silo: str | None = None) -> Any:
        """Return the silos that are connected; or take a silo that connects."""
        if silo is None:
            return tuple(name for name, one in self.federation.silos.items() if one.up)
        for exchange in self._exchanges:  # asked again, as by the hub
            if silo in exchange.due:
                self._ask(exchange, silo)
        self.do(lambda jobs: jobs.connected(silo))
        return None

    def offer(self, silo: str, job: str, document: dict[str, Any]) -> None:
        """Offer a job to a silo."""
        body = json.dumps(document).encode()
        self.federation.to_silo(silo, Message(Kind.OFFER, 0, job, body))

    def end(
        self, silo: str, job: str, status: str, reason: str, convictions: Sequence[Any] = ()
    ) -> None:
        """Tell a silo that a job has ended."""
        said = {"status": status, "reason": reason, "convictions": convictions}
        body = json.dumps(said).encode()
        self.federation.to_silo(silo, Message(Kind.END, 0, job, body))

    def transport(self, job: str, **about: Any) -> Any:
        """Return the carrier of a job's frames."""
        return SimpleNamespace(exchange=lambda frames: self._exchange(job, frames, **about))

    def _ask(self, exchange: Exchange, silo: str) -> None:
        frame = exchange.frames[silo]
        self.federation.to_silo(silo, Message(Kind.ASK, exchange.number, exchange.job, frame))

    def _exchange(
        self,
        job: str,
        frames: Mapping[str, bytes],
        on_refusal: Callable[[str, str], None],
        on_sent: Callable[[], None],
        **about: Any,
    ) -> Mapping[str, bytes]:
        self._numbers += 1
        exchange = Exchange(self._numbers, job, frames, set(frames))
        self._exchanges.append(exchange)
        self.laws.asked(job, frames)
        for silo in sorted(frames):
            self._ask(exchange, silo)
        on_sent()
        until = self.world.now + PATIENCE
        while exchange.due and self.world.step(until):
            pass
        self._exchanges.remove(exchange)
        self.laws.gave_up(job, frames, exchange.due, dict(exchange.refusals))
        for silo, reason in exchange.refusals:
            on_refusal(silo, reason)
        return exchange.answers

    def take(self, silo: str, message: Message) -> None:
        """Take a message of a silo."""
        if message.kind == Kind.DECISION:
            told = json.loads(message.body)
            approved = told["decision"] == "approved"
            self.do(lambda jobs: jobs.decided(silo, message.job, approved, told["reason"]))
            return
        for exchange in self._exchanges:
            right = not self.numbered or message.number == exchange.number
            if exchange.job == message.job and silo in exchange.due and right:
                exchange.due.discard(silo)
                if message.kind == Kind.ANSWER:
                    exchange.answers[silo] = message.body
                else:
                    told = json.loads(message.body)
                    exchange.refusals.append((silo, told["reason"]))
                    self.world.note(f"{silo} refuses: {told['reason']}")


@dataclass
class Federation:
    """All parties, and the network between them."""

    world: World
    laws: Laws
    silos: dict[str, Silo] = field(default_factory=dict)
    coordinator: Coordinator = field(init=False)
    plans: dict[str, Plan] = field(default_factory=dict)
    told: dict[tuple[str, str], bytes] = field(default_factory=dict)  # last answer, by job and silo
    copies: Callable[[str, Message], int] = lambda link, message: 1  # 0: connects again; -1: not
    forge: Callable[[str, Message], Sequence[tuple[str, Message]]] = lambda silo, message: ()
    cheat: Callable[[str, Message], Message | None] = lambda silo, message: message

    def to_silo(self, silo: str, message: Message) -> None:
        """Carry a message to a silo, or several copies of it."""
        link = f"to {silo}"
        for copy in range(self._copies(silo, link, message)):
            self.world.send(link, lambda: self._deliver(silo, message), slowly=copy > 0)
        for receiver, forged in self.forge(silo, message):
            self.world.send(
                f"to {receiver}",
                lambda receiver=receiver, forged=forged: self._deliver(receiver, forged),
            )

    def to_coordinator(self, silo: str, message: Message) -> None:
        """Carry a message to the coordinator."""
        link = f"from {silo}"
        changed = self.cheat(silo, message)
        if changed is None:
            return
        message = changed
        if message.kind == Kind.ANSWER:
            self.laws.sent(silo, self.plans[message.job], message.body)
            self.told[message.job, silo] = message.body
        for copy in range(self._copies(silo, link, message)):
            self.world.send(link, lambda: self.coordinator.take(silo, message), slowly=copy > 0)

    def _copies(self, silo: str, link: str, message: Message) -> int:
        copies = self.copies(link, message)
        if copies < 1:
            self.world.note(f"{link}: {message.kind.name} is lost")
        if copies == 0:
            self.world.after(40.0, self.silos[silo].connect, f"owner of {silo}")
        return copies

    def _deliver(self, silo: str, message: Message) -> None:
        self.world.note(f"{silo} gets {describe(message)}")
        self.silos[silo].take(message)

    def run(self) -> None:
        """Run until nothing happens any more."""
        while True:
            try:
                while self.world.step():
                    pass
            except Crash:  # of a silo it ends where the silo works
                self.coordinator.die()
            else:
                return

    def close(self) -> None:
        """Let go of all files."""
        for silo in self.silos.values():
            if silo.agent is not None:
                _dispose([silo.agent._ledger, silo.agent._store])
        if self.coordinator.jobs is not None:
            self.coordinator.jobs.store.close()


def describe(message: Message) -> str:
    """Return a message in a few words."""
    what = message.kind.name
    with suppress(Exception):
        if message.kind in (Kind.ASK, Kind.ANSWER):
            what = f"{message.kind.name} {kind_of(message.body).name}"
    return f"{what} of job {message.job[-4:]}"


class _closing:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __enter__(self) -> Ledger:
        return self._ledger

    def __exit__(self, *about: object) -> None:
        self._ledger.dispose()


def _dispose(opened: list[Any]) -> None:
    for one in opened:
        one.dispose()
