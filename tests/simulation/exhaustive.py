"""Every crash point times every duplicated message times every order, for one small job.

Three silos and an aggregator run one job of two rounds over a transport without time. Each exchange
delivers its requests in the order of the silos, and then their answers. A schedule is a canonical
run with up to three changes:

- one message comes *twice*: a request at once, and again after the next one of its silo; an answer
  in place of the next one;
- two answers that follow each other are *swapped* (only answers meet at one party: to swap the
  requests of two silos, which share nothing, changes nothing that anybody could see);
- one party *dies* at one point of its disk, and starts again: a silo is asked again, and an
  aggregator continues from its journal.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.protocol.cheats import CHEATS, Cheat

from cloister.core.errors import CloisterError, RemoteProtocolError
from cloister.federation.transports.http import Kind, Message
from cloister.privacy.budget import Budget
from cloister.privacy.chain import SignedStatement
from cloister.privacy.events import Event
from cloister.privacy.ledger import Ledger
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind as FrameKind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import decode, encode, kind_of
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds

from .laws import Laws, RecordedNoise
from .simulate import MEMORY, Failed, identity, plan_of, records
from .world import COORDINATOR, Broken, Crash, Fuse, Image, World, image_of, patched, put

SILOS, CAP, DELTA = 3, 10.0, 1e-6
_OF_ROUNDS = (FrameKind.OPEN, FrameKind.REPLY, FrameKind.UNMASK, FrameKind.CLOSE)


@dataclass(frozen=True)
class Schedule:
    """The changes of a run, by their numbers in the canonical one; None is no change.

    Parameters
    ----------
    twice : int or None
        Messages are numbered in the order of their first delivery, requests and answers alike.
    swapped : int or None
        Pairs of answers that follow each other, in the order of exchanges.
    dies : int or None
        Points of all disks.
    silent : str
        A silo that answers no request of a round.
    lies : function or None
        What the first silo answers in place of the truth.
    """

    twice: int | None = None
    swapped: int | None = None
    dies: int | None = None
    silent: str = ""
    lies: Cheat | None = None


class Journal(MemoryJournal):
    """The disk of an aggregator, which outlives it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def record_all(self, job: str, answers: Any) -> tuple[bytes, ...]:
        """Store answers, between two points."""
        self._world.point("before")
        kept = super().record_all(job, answers)
        self._world.point("after")
        return kept

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        """Store an answer, between two points."""
        self._world.point("before")
        kept = super().record(job, request, answer)
        self._world.point("after")
        return kept

    def commit(
        self,
        *,
        job: str,
        round: int,
        event: Event,
        frame: bytes,
        request: bytes = b"",
        peer_statements: Iterable[SignedStatement] = (),
    ) -> bytes:
        """Store the first answer of a round, between two points; it counts."""
        self._world.point("before")
        kept = self._frames.setdefault((job, round), frame)
        self._world.point("after")
        return kept


@dataclass
class SmallSilo:
    """A silo without an agent: its client, and its ledger on a disk."""

    world: World
    plan: Plan
    folder: Path
    name: str
    cap: float = CAP
    client: Client | None = None
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        self.identity, self.records = identity(self.name), records(self.name)

    @property
    def ledger_path(self) -> Path:
        """The file of the ledger."""
        return self.folder / "ledger.db"

    @property
    def agent(self) -> Any:
        """What the laws look at."""
        return SimpleNamespace(_clients={self.plan.run_id: self.client} if self.client else {})

    def remembered(self, fingerprint: str) -> tuple[SignedStatement, ...]:
        """Return what this silo keeps of a peer's ledger."""
        return self.ledger.remembered(fingerprint) if self.ledger else ()

    def start(self) -> Client:
        """Start the process, if it does not run."""
        if self.client is None or self.ledger is None:
            self.ledger = Ledger(self.ledger_path)
            self.client = Client(
                self.plan, self.name, self.records, None, self.ledger, identity=self.identity
            )
        return self.client

    def die(self) -> None:
        """Lose the memory, and keep the disk as it is now."""
        self.world.fuses.pop(self.name, None)
        self.world.dead.discard(self.name)
        image = image_of(self.folder)
        self.close()
        put(self.folder, image)

    def close(self) -> None:
        """Let go of the ledger."""
        if self.ledger is not None:
            self.ledger.dispose()
        self.client = self.ledger = None


@dataclass
class Small:
    """One job of three silos under one schedule; also the transport between them."""

    plan: Plan
    schedule: Schedule
    folder: Path
    world: World
    laws: Laws
    silos: dict[str, SmallSilo] = field(default_factory=dict)
    messages: int = 0  # delivered so far
    pairs: int = 0  # of answers that follow each other, so far

    def __post_init__(self) -> None:
        self.plans = {self.plan.run_id: self.plan}
        self.laws.federation = self  # type: ignore[assignment]  # all that laws ask for
        self.laws.cheater = self.plan.silos[0] if self.schedule.lies else ""
        self.world.on_point = self._point
        self._late: dict[str, bytes] = {}  # answers and requests that come again, by silo
        self._again: dict[str, bytes] = {}
        for name in self.plan.silos:
            silo = SmallSilo(self.world, self.plan, self.folder / name, name)
            silo.folder.mkdir()
            put(silo.folder, _reserved(self.plan, name))
            self.silos[name] = silo

    def _point(self, party: str, moment: str) -> None:
        if self.world.points - 1 == self.schedule.dies:
            self.world.fuses[party] = Fuse(0)

    def run(self) -> None:
        """Run the job to its end, with a new aggregator after each death of one."""
        journal = Journal(self.world)
        while True:
            try:
                with self.world.as_party(COORDINATOR):
                    noise = RecordedNoise(self.world, self.laws.drawn)
                    for _ in run_rounds(Aggregator(self.plan, noise, journal), self):
                        pass
                return
            except Crash:
                self.world.fuses.clear()
                self.world.dead.clear()

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Carry requests in order, and then the answers."""
        self.laws.asked(self.plan.run_id, frames)
        answers = {}
        again, self._again = self._again, {}
        for name, frame in frames.items():
            copies = self._copies()
            if name == self.schedule.silent and kind_of(frame) in _OF_ROUNDS:
                answers[name] = b""
                continue
            for _ in range(copies):
                answers[name] = self._deliver(self.silos[name], frame)
            if name in again:
                self._deliver(self.silos[name], again[name])
            if copies == 2:
                self._again[name] = frame
        names = [name for name in frames if answers[name]]
        for place in range(len(names) - 1):
            if self._is_now(self.schedule.swapped, "pairs"):
                names[place : place + 2] = names[place + 1], names[place]
        late, self._late = self._late, {}
        for name in names:
            if self._copies() == 2:
                self._late[name] = answers[name]
        return {name: late.get(name, answers[name]) for name in names}

    def _copies(self) -> int:
        return 2 if self._is_now(self.schedule.twice, "messages") else 1

    def _is_now(self, wanted: int | None, count: str) -> bool:
        number: int = getattr(self, count)
        setattr(self, count, number + 1)
        return number == wanted

    def _deliver(self, silo: SmallSilo, frame: bytes) -> bytes:
        """Return a silo's answer; one that dies is asked again when it is back."""
        job = self.plan.run_id
        ask = Message(Kind.ASK, 0, job, frame)
        self.laws.heard(silo, ask)  # type: ignore[arg-type]  # all that laws ask for
        for _ in range(2):
            try:
                with self.world.as_party(silo.name):
                    answer = silo.start().handle(frame)
            except Crash:
                silo.die()
                continue
            except CloisterError as error:
                self.laws.raised(silo.name, error)
                return b""
            said = Message(Kind.ANSWER, 0, job, answer)
            self.laws.answered(silo, ask, said)  # type: ignore[arg-type]
            self.laws.looked(silo)  # type: ignore[arg-type]
            return self._told(silo, answer)
        raise Broken("a silo that starts again answers")

    def _told(self, silo: SmallSilo, answer: bytes) -> bytes:
        """Return what a silo tells: its answer, or a lie; empty if it is silent."""
        if silo.name == self.laws.cheater and self.schedule.lies and silo.client:
            with suppress(RemoteProtocolError):  # it has no keys yet to sign with
                of = (decode(self.plan, answer), silo.client, silo.identity)
                told = self.schedule.lies(*of)
                answer = encode(self.plan, told) if told else b""
        if answer:
            self.laws.sent(silo.name, self.plan, answer)
        return answer

    def check(self) -> None:
        """A job that only loses memory is done at all silos, charged once."""
        for silo in self.silos.values():
            done = silo.client is not None and silo.client.finished
            if silo.name in (self.schedule.silent, self.laws.cheater):
                continue
            if not done:
                self.laws.broken("a job with enough silos completes", silo.name)
            book = self.laws.book(silo)  # type: ignore[arg-type]
            if len(book.rounds) != self.plan.rounds:
                self.laws.broken("each round is charged once", silo.name)

    def close(self) -> None:
        """Let go of all files."""
        for silo in self.silos.values():
            silo.close()


_DISKS: dict[tuple[str, str], Image] = {}


def _reserved(plan: Plan, name: str) -> Image:
    """Return the disk of a silo that has reserved the job, made once."""
    if (plan.run_id, name) not in _DISKS:
        with tempfile.TemporaryDirectory() as made, patched(World(0, acting=name)):
            ledger = Ledger(Path(made) / "ledger.db")
            ledger.open_dataset("toy", cap=Budget(CAP, DELTA))
            ledger.reserve(dataset="toy", study="s", job=plan.run_id, events=plan.events())
            ledger.dispose()
            _DISKS[plan.run_id, name] = image_of(Path(made))
    return _DISKS[plan.run_id, name]


def run(plan: Plan, schedule: Schedule) -> Small:
    """Run a schedule; raise Failed if a law does not hold."""
    world = World(7)
    folder = Path(tempfile.mkdtemp(prefix="schedule-", dir=MEMORY if MEMORY.is_dir() else None))
    small = Small(plan, schedule, folder, world, Laws(world))
    try:
        with patched(world):
            small.run()
            small.check()
    except (Broken, CloisterError) as broken:
        story = "\n".join(world.trace[-20:])
        raise Failed(f"{story}\n{plan.profile} {schedule}: {broken}") from broken
    finally:
        small.close()
        shutil.rmtree(folder)
    return small


def small_plan(profile: str, silos: int = SILOS) -> Plan:
    """Return the job of all schedules: three silos, two rounds."""
    return plan_of(7, silos, silos, profile, 2)


def schedules(plan: Plan, *, orders: bool) -> Iterator[Schedule]:
    """Yield every message twice times every point of death, in canonical order or in every one.

    The points of a disk are counted anew for each message and order, without a death.
    """
    canonical = run(plan, Schedule())
    for swapped in (None, *(range(canonical.pairs) if orders else ())):
        for twice in (None, *range(canonical.messages)):
            points = run(plan, Schedule(twice, swapped)).world.points
            for dies in (None, *range(points)):
                yield Schedule(twice, swapped, dies)


def lies(profile: str = "pairwise") -> None:
    """Run a job of four silos that goes on although one of them lies, with each lie."""
    for lie in CHEATS:
        run(small_plan(profile, 4), Schedule(lies=lie))


def drop_outs(some: slice = slice(None)) -> None:
    """Run a job of four silos that goes on without one, every message of some twice."""
    plan = small_plan("pairwise", 4)
    messages = run(plan, Schedule(silent="silo-3")).messages
    order = sorted(range(messages), key=lambda number: number % 20)  # all of a job soon
    for twice in order[some]:
        run(plan, Schedule(twice, silent="silo-3"))
