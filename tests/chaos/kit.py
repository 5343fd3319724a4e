"""A federation that is beaten: who is struck, how and when, and what must hold afterwards.

All parties are real processes with zero noise, so that results can be compared bit for bit. Each
silo reaches the coordinator through a cable of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from cloister.app.job import make_plan
from cloister.core.errors import LedgerError, TransportError
from cloister.data import read_source
from cloister.federation.local import COORDINATOR, LocalFederation
from cloister.federation.service.audit import verify as verify_audit
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.protocol.lifecycle import ENDED
from cloister.protocol.messages import Reply, decode
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.testing import toy_schema

from .cable import Cable

PARTY = Path(__file__).with_name("party.py")
SILOS = ("north", "east", "south", "west")
ROUNDS = 4
PROFILES = ("pairwise", "group")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
CABLES = ("cut", "hold", "swallow")
SIDES = ((COORDINATOR, "asks"), ("west", "asked"), (COORDINATOR, "heard"), ("west", "answers"))
PATIENCE = 600.0  # seconds for a job to end, on a busy machine


def steps(profile: str, rounds: int = ROUNDS) -> list[tuple[str, int]]:
    """Return every leg of a job with its round, in order."""
    legs = [("keys", 0), ("secrets", 0), ("ready", 0)]
    for t in range(rounds):
        legs += [("upload", t), ("confirm", t)]
        legs += [("shares", t)] if profile == "pairwise" else []
    return [*legs, ("close", rounds - 1)]


@dataclass(frozen=True)
class Moment:
    """When a party is struck: at a step of some party, or some seconds after the proposal."""

    party: str = ""
    when: str = ""  # a silo: "asked", "answers"; the coordinator: "asks", "heard"
    leg: str = ""
    round: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.party:
            return f"{self.seconds:.2f} s after the proposal"
        return f"when {self.party} {self.when} {self.leg} {self.round}"


@dataclass(frozen=True)
class Blow:
    """Who is struck, how, when, and how long it is away."""

    victim: str
    how: str
    moment: Moment
    away: float = 0.5
    after: int = 0  # bytes that still pass through a cable

    def __str__(self) -> str:
        return f"{self.victim}: {self.how} {self.moment}, away {self.away:.2f} s"


@dataclass
class Outcome:
    """What came of a job."""

    suite: str
    profile: str
    blows: tuple[Blow, ...]  # that fell; a job may be over before the moment of one
    job: str
    state: str = ""
    seconds: float = 0.0  # from the first blow to the end of the job
    survivors: list[tuple[str, ...]] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)  # of the job, when each blow fell


class Beaten:
    """A federation of four silos behind cables; it lives through many jobs."""

    def __init__(self, folder: Path, script: Path = PARTY, **coordinator: float) -> None:
        rng = np.random.default_rng(0)
        tables = {}
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(SILOS):
            centres = rng.uniform(-0.8, 0.8, (3, 2))
            rows = centres[rng.integers(0, 3, 60 + 10 * number)]
            values = np.clip(rows + rng.normal(0, 0.1, rows.shape), -1, 1)
            tables[name] = folder / f"{name}.csv"
            np.savetxt(tables[name], values, delimiter=",", header="x0,x1", comments="")
        self.schema = toy_schema(2)
        self.fed = LocalFederation(
            folder / "parties",
            self.schema,
            tables,
            cap_epsilon=1e5,
            coordinator={"grace": 120.0, "round_timeout": 120.0, **coordinator},
            command=lambda role, config: (sys.executable, str(script), role, str(config)),
        )
        self.cables = {name: Cable(self.fed.port) for name in SILOS}
        for name, cable in self.cables.items():
            config = self.fed.config(name)
            address = self.fed.url.rpartition(":")[0]
            text = config.read_text().replace(self.fed.url, f"{address}:{cable.port}")
            config.write_text(text)
        self.stopped: set[str] = set()
        self.baseline: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.fed.start()
        self.fed.wait_connected(seconds=PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.stopped):
            self._signal(name, signal.SIGCONT)
        self.fed.stop()
        for cable in self.cables.values():
            cable.__exit__()

    # Jobs ------------------------------------------------------------------------------------

    def plan(self, profile: str, **changes: Any) -> Plan:
        options: dict[str, Any] = {
            "budget": Budget(1.0, 1e-6),
            "nominal_n": 300,
            "profile": profile,
            "fingerprints": [self.fed.fingerprints[name] for name in SILOS],
            "n_clusters": 3,
            "rounds": ROUNDS,
            "public_seed": 1,
            **changes,
        }
        return make_plan(TASKS["fastlloyd"], self.schema, SILOS, **options)

    def model(self, silo: str, job: str) -> dict[str, Any] | None:
        path = self.fed.results(silo, job)
        return json.loads(path.read_text()) if path.is_file() else None

    def undisturbed(self, profile: str) -> Any:
        """Return the history of centres that a job has to which nothing happens."""
        if profile not in self.baseline:
            job = self.fed.propose(self.plan(profile))
            assert self.fed.wait_job(job, seconds=PATIENCE)["state"] == "done"
            self.fed.wait_results(job, seconds=PATIENCE)
            shown = {json.dumps(self.model(silo, job)["history"]) for silo in SILOS}
            assert len(shown) == 1
            self.baseline[profile] = json.loads(shown.pop())
        return self.baseline[profile]

    def pooled(self, plan: Plan, survivors: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Run the task centrally on the records of each round's survivors."""
        tables = {name: list(read_source(self.fed.tables[name], self.schema)) for name in SILOS}
        one = plan.grid.one
        state = {k: np.rint(v * one).astype(np.int64) for k, v in plan.task.start().items()}
        states = [state]
        for t, silos in enumerate(survivors):
            parts = [
                plan.task.contribute(t, state, chunk) for silo in silos for chunk in tables[silo]
            ]
            released = plan.decode(t, sum(parts), len(silos))
            update = plan.task.update(t, state, released)
            state = {k: np.rint(v * one).astype(np.int64) for k, v in update.items()}
            states.append(state)
        return [
            {k: v.tolist() for k, v in plan.task.results(state, plan.grid).items()}
            for state in states
        ]

    def committed(self, job: str) -> list[tuple[str, ...]]:
        """Return the survivors of each round that the coordinator answered, in all its lives."""
        log = self.fed.folder / COORDINATOR / "committed.log"
        said: dict[int, tuple[str, ...]] = {}
        for line in log.read_text().splitlines() if log.is_file() else []:
            entry = json.loads(line)
            if entry["job"] == job:
                survivors = tuple(entry["survivors"])
                assert said.setdefault(entry["round"], survivors) == survivors, "two answers"
        assert sorted(said) == list(range(len(said)))
        return [said[t] for t in sorted(said)]

    def check_store(self, outcomes: Iterable[Outcome]) -> None:
        """Stop the coordinator and check that its database has each round once, as it was said."""
        if COORDINATOR in self.fed.processes:
            self.fed.kill(COORDINATOR, signal.SIGTERM)
        path = self.fed.folder / COORDINATOR / "coordinator.db"
        with closing(sqlite3.connect(path)) as database:
            for outcome in outcomes:
                ((document,),) = database.execute(
                    "SELECT plan FROM jobs WHERE id = ?", (outcome.job,)
                ).fetchall()
                plan = Plan.from_dict(json.loads(document), TASKS)
                rows = database.execute(
                    "SELECT round, frame FROM rounds WHERE job = ? ORDER BY round", (outcome.job,)
                ).fetchall()
                assert [t for t, _ in rows] == list(range(len(outcome.survivors)))
                replies = [decode(plan, frame) for _, frame in rows]
                stored = [reply.survivors for reply in replies if isinstance(reply, Reply)]
                assert stored == outcome.survivors

    def charged(self, silo: str, job: str) -> tuple[tuple[int, ...], bool]:
        """Return which rounds a silo's sound ledger charged for a job, and if it is still open."""
        ledger = Ledger(self.fed.folder / silo / "ledger.db")
        try:
            ledger.verify()
            records = [record for record in ledger.jobs() if record.job == job]
            return (records[0].rounds, records[0].is_open) if records else ((), False)
        finally:
            ledger.dispose()

    def steps(self, party: str, job: str) -> list[str]:
        """Return what steps a party has gone through in a job, in all its lives."""
        log = self.fed.folder / party / "steps.log"
        lines = log.read_text().splitlines() if log.is_file() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(job)]

    def phase(self, job: str) -> str:
        """Return the leg that the coordinator is in."""
        *_, last = ["before keys", *self.steps(COORDINATOR, job)]
        when, leg = last.split()[:2]
        return "after the end" if (when, leg) == ("heard", "close") else f"{when} {leg}"

    # Blows -----------------------------------------------------------------------------------

    def set_trap(self, moment: Moment) -> None:
        if moment.party:
            path = self.fed.folder / moment.party / "trap"
            fresh = path.with_name("trap.new")
            fresh.write_text(f"{moment.when} {moment.leg} {moment.round}")
            fresh.rename(path)

    def wait_for(self, moment: Moment, since: float, job: str) -> bool:
        """Wait for a moment; return whether it came before the job was over."""
        if not moment.party:
            time.sleep(max(0.0, since + moment.seconds - time.monotonic()))
            return True
        trapped = self.fed.folder / moment.party / "trapped"
        look = time.monotonic() + 1.0
        while not trapped.exists():
            if moment.party not in self.fed.processes:
                return False
            if time.monotonic() > look:
                with suppress(TransportError):
                    if self.fed.job(job)["state"] in ENDED:
                        return trapped.exists()
                look = time.monotonic() + 1.0
            assert time.monotonic() < since + PATIENCE, f"no step in {PATIENCE} s: {moment}"
            time.sleep(0.005)
        return True

    def untrap(self, moment: Moment) -> None:
        for name in ("trap", "trapped"):
            (self.fed.folder / moment.party / name).unlink(missing_ok=True)

    def strike(self, blow: Blow) -> None:
        if blow.how in CABLES:
            for cable in self._cables_of(blow.victim):
                cable.fault(blow.how, blow.after)
            self.untrap(blow.moment)
        elif blow.how == "stop":
            self._signal(blow.victim, signal.SIGSTOP)
            self.stopped.add(blow.victim)
            self.untrap(blow.moment)
        elif blow.how == "term":  # a party that is asked to end goes on until it has seen it
            self._signal(blow.victim, signal.SIGTERM)
            self.untrap(blow.moment)
            self.fed.kill(blow.victim, signal.SIGTERM)
        else:
            self.fed.kill(blow.victim, signal.SIGKILL)
            self.untrap(blow.moment)

    def heal(self, blow: Blow) -> None:
        if blow.how in CABLES:
            for cable in self._cables_of(blow.victim):
                cable.mend()
        elif blow.how == "stop":
            self._signal(blow.victim, signal.SIGCONT)
            self.stopped.discard(blow.victim)
        else:
            self.fed.start(blow.victim)

    def _cables_of(self, victim: str) -> list[Cable]:
        return list(self.cables.values()) if victim == COORDINATOR else [self.cables[victim]]

    def _signal(self, name: str, number: int) -> None:
        os.killpg(self.fed.processes[name].pid, number)

    # Trials ----------------------------------------------------------------------------------

    def recover(self, profile: str, blows: Sequence[Blow], **changes: Any) -> Outcome:
        """Strike parties in a job, let them return, and check that nothing else has changed."""
        expected = self.undisturbed(profile)
        plan = self.plan(profile, **changes)
        for blow in blows:
            self.set_trap(blow.moment)
        job = self.fed.propose(plan)
        since = time.monotonic()
        outcome = Outcome("recovery", profile, tuple(blows), job)
        first = 0.0
        for blow in blows:
            came = self.wait_for(blow.moment, since, job)
            assert came or len(blows) > 1, f"the step never came: {blow}"
            first = first or time.monotonic()
            outcome.phases.append(self.phase(job))
            self.strike(blow)
            time.sleep(blow.away)
            self.heal(blow)
        shown = self.fed.wait_job(job, seconds=PATIENCE)
        outcome.state, outcome.seconds = shown["state"], time.monotonic() - first
        assert shown["state"] == "done", f"{job} {shown['state']}: {shown['reason']}"
        self.fed.wait_results(job, seconds=PATIENCE)
        for silo in SILOS:
            model = self.model(silo, job)
            assert model is not None
            assert model["history"] == expected, f"{silo} has another result than undisturbed"
            assert [sorted(s) for s in model["survivors"]] == [sorted(SILOS)] * plan.rounds
        outcome.survivors = self.committed(job)
        assert outcome.survivors == [SILOS] * plan.rounds
        self.check_books(job, {silo: [tuple(range(plan.rounds))] for silo in SILOS})
        return outcome

    def lose(self, profile: str, blows: Sequence[Blow], **changes: Any) -> Outcome:
        """Strike silos for good; what is released is the survivors', or nothing is."""
        plan = self.plan(profile, **changes)
        for blow in blows:
            self.set_trap(blow.moment)
        job = self.fed.propose(plan)
        since = time.monotonic()
        outcome = Outcome("loss", profile, tuple(blows), job)
        first = 0.0
        struck = []
        for blow in blows:
            if not self.wait_for(blow.moment, since, job):
                self.untrap(blow.moment)  # a party that an earlier blow took out of the job
                continue
            first = first or time.monotonic()
            outcome.phases.append(self.phase(job))
            self.strike(blow)
            struck.append(blow)
        shown = self.fed.wait_job(job, seconds=PATIENCE)
        outcome.state, outcome.seconds = shown["state"], time.monotonic() - first
        outcome.survivors = self.committed(job)
        dead = {blow.victim for blow in struck}
        alive = [silo for silo in shown["approved"] if silo not in dead]
        expected = self.pooled(plan, outcome.survivors)
        if shown["state"] == "done":
            assert len(outcome.survivors) == plan.rounds
            assert all(len(set(s)) >= plan.min_silos for s in outcome.survivors)
            self.fed.wait_results(job, *alive, seconds=PATIENCE)
        else:
            assert shown["state"] in ("failed", "declined")
            assert shown["reason"]
            lost = len(SILOS) - len(alive)
            assert lost > len(SILOS) - plan.quorum(len(SILOS)), f"ended early: {shown['reason']}"
        for silo in SILOS:
            model = self.model(silo, job)
            if model is not None:
                assert len(outcome.survivors) == plan.rounds
                assert model["history"] == expected, f"{silo} has not the survivors' result"
                assert [tuple(s) for s in model["survivors"]] == outcome.survivors
        outcome.blows = tuple(struck)
        for blow in struck:
            self.heal(blow)
        self.fed.wait_connected(seconds=PATIENCE)
        # What was in a sum, or left and was dropped, is charged; nothing that was never asked is.
        allowed = {}
        for silo in SILOS:
            summed = sum(silo in survivors for survivors in outcome.survivors)
            most = min(plan.rounds, len(outcome.survivors) + 1)
            allowed[silo] = [tuple(range(n)) for n in range(summed, most + 1)]
        self.check_books(job, allowed)
        return outcome

    def check_books(self, job: str, allowed: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
        """Check that every party's books are sound and agree on what left."""
        for silo in SILOS:
            rounds, is_open = self.eventually(
                lambda silo=silo: self.charged(silo, job), lambda charged: not charged[1]
            )
            assert not is_open, f"{silo} still holds a reservation of a job that is over"
            assert rounds in allowed[silo], f"{silo} was charged {rounds}"
            left = {line for line in self.steps(silo, job) if line.startswith("answers upload")}
            assert len(left) <= len(rounds), f"{silo} sent what it was not charged for"
        for party in (COORDINATOR, *SILOS):
            self.check_audit(self.fed.folder / party / "audit.jsonl")

    @staticmethod
    def check_audit(path: Path) -> None:
        """Check an audit file, once more if its last line might just have been half written."""
        try:
            verify_audit(path)
        except LedgerError:
            time.sleep(1.0)
            verify_audit(path)

    @staticmethod
    def eventually(
        look: Callable[[], Any], good: Callable[[Any], bool], seconds: float = 120
    ) -> Any:
        """Look until what is seen is good, or it took too long; return what was seen last."""
        due = time.monotonic() + seconds
        while not good(seen := look()) and time.monotonic() < due:
            time.sleep(0.1)
        return seen


# Random trials ------------------------------------------------------------------------------------


def random_moment(rng: random.Random, profile: str, parties: Sequence[str], span: float) -> Moment:
    """Return a random time, or a random step of one of some parties."""
    if rng.random() < 0.4:
        return Moment(seconds=rng.uniform(0.0, span))
    party = rng.choice(parties)
    leg, t = rng.choice(steps(profile))
    when = rng.choice(("asks", "heard") if party == COORDINATOR else ("asked", "answers"))
    return Moment(party, when, leg, t)


def random_recovery(rng: random.Random, profile: str, span: float = 0.8) -> Blow:
    """Return a blow from which a party returns."""
    victim = rng.choice((COORDINATOR, *SILOS))
    how = rng.choice(("kill", "kill", "kill", "term", "stop", *CABLES))
    moment = random_moment(rng, profile, (victim,), span)
    return Blow(victim, how, moment, rng.uniform(0.0, 1.5))


def random_loss(rng: random.Random, profile: str, span: float = 0.8) -> list[Blow]:
    """Return blows after which some silos never return."""
    number = rng.choice((1, 1, 1, 2, 2, 3))
    victims = rng.sample(SILOS, number)
    blows = []
    for victim in victims:
        how = rng.choice(("kill", "kill", "kill", "term", "stop", "cut", "hold"))
        blows.append(Blow(victim, how, random_moment(rng, profile, (victim,), span)))
    order = {step: place for place, step in enumerate(steps(profile))}

    def place(blow: Blow) -> float:
        m = blow.moment
        return order[(m.leg, m.round)] + (m.when == "answers") / 2 if m.party else m.seconds - 9

    return sorted(blows, key=place)


def words(error: BaseException) -> str:
    """Return one line that says what went wrong."""
    kind = "hang" if isinstance(error, TransportError) else type(error).__name__
    return f"{kind}: {' '.join(str(error).split())[:300]}"
