"""Two jobs on the same ledgers, one inside the other, and old copies of one ledger after each step.

Three silos have reserved two jobs. The second one runs between two exchanges of the first and is
lost at one of its own. So the rounds and the signed statements of both meet in each ledger in all
orders, also two statements on one head.

After each exchange, every old copy of one silo's ledger is put back on the side: a folder as it
was, and a copy that the ledger wrote itself. It meets what its peers hold by then. A copy that is
behind must refuse all that spends, and once its owner has recovered it, it charges everything that
left in a job of which a peer can tell.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cloister.core.errors import LedgerError
from cloister.federation.transports.http import Kind, Message
from cloister.privacy.budget import Budget
from cloister.privacy.chain import SignedStatement
from cloister.privacy.ledger import Ledger
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds

from .laws import Laws, RecordedNoise, book_of
from .simulate import MEMORY, Failed, identity, plan_of, records
from .world import COORDINATOR, Broken, Image, World, image_of, patched, put

SILOS, CAP, DELTA = 3, 10.0, 1e-6
EXCHANGES = 6  # of a job of one round under the group mask
VICTIM = "silo-1"
LOST = 90  # number of a job that is only ever refused


class Lost(Exception):
    """The coordinator lost a job."""


@dataclass
class BusySilo:
    """A silo without an agent: its clients of all jobs, and its ledger."""

    name: str
    folder: Path
    plans: tuple[Plan, ...]
    cap: float = CAP

    def __post_init__(self) -> None:
        self.identity = identity(self.name)
        self.ledger_path = self.folder / "ledger.db"
        self.ledger = Ledger(self.ledger_path)
        self.ledger.open_dataset("toy", cap=Budget(CAP, DELTA))
        self.clients: dict[str, Client] = {}

    def reserve(self) -> None:
        """Reserve all jobs, before one of them runs."""
        for plan in self.plans:
            _reserve(self.ledger, plan)
            of = (plan, self.name, records(self.name), None, self.ledger)
            self.clients[plan.run_id] = Client(*of, identity=self.identity)

    @property
    def agent(self) -> Any:
        """What the laws look at."""
        return SimpleNamespace(_clients=self.clients)

    def remembered(self, fingerprint: str) -> tuple[SignedStatement, ...]:
        """Return what this silo keeps of a peer's ledger."""
        return self.ledger.remembered(fingerprint)


@dataclass
class Copy:
    """An old copy of the victim's ledger."""

    image: Image
    written: bool  # by the ledger itself, so that no job goes on in it


@dataclass
class Interleaved:
    """Two jobs of which the second runs after an exchange of the first, and is lost at its own."""

    plans: tuple[Plan, Plan]
    begins: int
    ends: int
    folder: Path
    world: World
    laws: Laws
    silos: dict[str, BusySilo] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by_job = {plan.run_id: plan for plan in self.plans}
        self.laws.federation = SimpleNamespace(plans=self.by_job, silos=self.silos)  # type: ignore[assignment]  # all that laws ask for

    def run(self) -> None:
        """Run both jobs, and check all copies on the way."""
        for name in self.plans[0].silos:
            (home := self.folder / name).mkdir()
            with self.world.as_party(name):
                self.silos[name] = BusySilo(name, home, self.plans)
        self._copy()
        for silo in self.silos.values():
            with self.world.as_party(silo.name):
                silo.reserve()
        self._copy()
        self._play(self.plans[0], at=self.begins, then=self._second)

    def _second(self) -> None:
        def lose() -> None:
            raise Lost

        with suppress(Lost):
            self._play(self.plans[1], at=self.ends, then=lose)
        self._copy()

    def _play(self, plan: Plan, at: int, then: Any) -> None:
        """Run a job; after one exchange something else happens."""
        exchanges = 0

        def exchange(frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
            nonlocal exchanges
            self.laws.asked(plan.run_id, frames)
            answers = {name: self._deliver(plan, name, frame) for name, frame in frames.items()}
            self._check_copies()
            exchanges += 1
            if exchanges == at:
                then()
            return answers

        with self.world.as_party(COORDINATOR):
            noise = RecordedNoise(self.world, self.laws.drawn)
            for _ in run_rounds(Aggregator(plan, noise), SimpleNamespace(exchange=exchange)):
                pass

    def _deliver(self, plan: Plan, name: str, frame: bytes) -> bytes:
        silo: Any = self.silos[name]
        ask = Message(Kind.ASK, 0, plan.run_id, frame)
        self.laws.heard(silo, ask)
        with self.world.as_party(name):
            answer = silo.clients[plan.run_id].handle(frame)
        self.laws.answered(silo, ask, Message(Kind.ANSWER, 0, plan.run_id, answer))
        self.laws.sent(name, plan, answer)
        self.laws.looked(silo)
        return answer

    # Old copies ------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Keep the folder of the victim, and a copy of its ledger written by itself."""
        silo, written = self.silos[VICTIM], self.folder / "copy.db"
        self.copies.append(Copy(image_of(silo.folder), written=False))
        with self.world.as_party(VICTIM):
            silo.ledger.backup(written)
        self.copies.append(Copy({"ledger.db": written.read_bytes()}, written=True))
        written.unlink()

    def _check_copies(self) -> None:
        silo = self.silos[VICTIM]
        shown = [
            statement
            for peer in self.silos.values()
            if peer is not silo
            for statement in peer.remembered(silo.identity.fingerprint)
        ]
        for number, copy in enumerate(self.copies):
            place = self.folder / "put back"
            place.mkdir()
            put(place, copy.image)
            try:
                with self.world.as_party(VICTIM):
                    self._check_copy(place / "ledger.db", copy, shown)
            except (Broken, LedgerError) as error:
                raise Broken(f"copy {number}: {error}") from error
            finally:
                shutil.rmtree(place)

    def _check_copy(self, path: Path, copy: Copy, shown: list[SignedStatement]) -> None:
        ledger = Ledger(path)
        try:
            if copy.written and any(job.is_open for job in ledger.jobs()):
                self.laws.broken("a copy of a ledger ends all its jobs", "")
            try:
                ledger.check_statements(shown)
            except LedgerError:
                self._refuses_all(ledger, path)
            # As a silo does whose process is another one than that which began a job.
            for job in ledger.jobs():
                ledger.close(job.job, whole=bool(ledger.recorded(job.job)))
            ledger.recover(self.silos[VICTIM].identity.public, shown)
            ledger.check_statements(shown)
            cost = ledger.cost("toy").mu_squared
        finally:
            ledger.dispose()
        book = book_of(path, CAP, DELTA)
        if not math.isclose(cost, book.charged, rel_tol=1e-6, abs_tol=1e-9):
            self.laws.broken("a ledger charges what its file holds", f"{cost} {book.charged}")
        told = {statement.said.job for statement in shown}
        if copy.written:
            told |= {job for job, account in book.accounts.items() if account.whole}
        lost = [of for of in sorted(self.laws._left[VICTIM]) if of[0] in told]
        if unpaid := [of for of in lost if not book.covers(of)]:
            self.laws.broken("a ledger that was put back takes in what peers hold", str(unpaid))
        Ledger(path).dispose()

    def _refuses_all(self, ledger: Ledger, path: Path) -> None:
        """A ledger that is behind its peers' statements does not reserve, charge or open."""
        other = plan_of(7, LOST, SILOS, "group", 1)

        def charge() -> None:
            free = [one.job for one in ledger.jobs() if one.is_open and not one.rounds]
            if not free:
                raise LedgerError("it has no open round")
            plan = next(plan for plan in self.plans if plan.run_id in free)
            ledger.commit(job=plan.run_id, round=0, event=plan.event(0), frame=b"a frame")

        for use in (lambda: _reserve(ledger, other), charge, lambda: Ledger(path), ledger.verify):
            try:
                use()
            except LedgerError:
                continue
            self.laws.broken("a ledger behind its statements is refused", "")

    def close(self) -> None:
        """Let go of all files."""
        for silo in self.silos.values():
            silo.ledger.dispose()


def _reserve(ledger: Ledger, plan: Plan) -> None:
    ledger.reserve(dataset="toy", study="s", job=plan.run_id, events=plan.events())


def run(begins: int, ends: int) -> None:
    """Run two jobs, one inside the other; raise Failed if a law does not hold."""
    world = World(7)
    folder = Path(tempfile.mkdtemp(prefix="two-jobs-", dir=MEMORY if MEMORY.is_dir() else None))
    first, second = (plan_of(7, number, SILOS, "group", 1) for number in (70, 71))
    two = Interleaved((first, second), begins, ends, folder, world, Laws(world))
    try:
        with patched(world):
            two.run()
    except Broken as broken:
        raise Failed(f"the second job from {begins} to {ends}: {broken}") from broken
    finally:
        two.close()
        shutil.rmtree(folder)


def some() -> None:
    """Run the second job after each exchange of the first, to another end each time."""
    for begins in range(1, EXCHANGES + 1):
        run(begins, EXCHANGES - (begins - 1) % 3)


def every() -> None:
    """Run the second job after each exchange of the first, to each of its own."""
    for begins in range(1, EXCHANGES + 1):
        for ends in range(1, EXCHANGES + 1):
            run(begins, ends)
