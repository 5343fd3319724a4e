"""One seed, one history: the parties of a seed, the faults that befall them, and the run.

Each seed chooses which kinds of faults there are at all and how often ("swarm testing"): a world
with all of them at once soon stands still, and shows less than many worlds with a few.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.protocol.cheats import CHEATS, Cheat

from cloister.core.errors import RemoteProtocolError
from cloister.data import Records, array_records
from cloister.federation.transports.http import Kind, Message
from cloister.hazmat import kex
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.protocol.convictions import OF_SHARES, OF_SUM, Conviction
from cloister.protocol.keys import _KEYS as KEYS_LABEL
from cloister.protocol.keys import cohort_hash
from cloister.protocol.messages import (
    BEFORE,
    SUM_LABEL,
    Close,
    Deal,
    Open,
    Reply,
    Roster,
    Unmask,
    decode,
    encode,
    keys_signed,
    result_hash,
    sent,
)
from cloister.protocol.plan import Plan, majority
from cloister.protocol.readers import Reader
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.count import Count
from cloister.testing import toy_plan

from .laws import Laws, RecordedNoise
from .parties import DELTA, PATIENCE, Coordinator, Federation, Silo, describe
from .world import COORDINATOR, Broken, Crash, Fuse, World, image_of, patched

MEMORY = Path("/dev/shm")  # where there is one: a disk that keeps its promises costs time only


# Plans and records -----------------------------------------------------------------------------


@lru_cache
def identity(name: str) -> Identity:
    """Return the key of a party, the same in all worlds."""
    return Identity(random.Random(name).randbytes(32))


@lru_cache
def model(silos: int, profile: str, rounds: int) -> Plan:
    """Return a plan that others are made from: a count, or k-means of a few rounds."""
    task: Any = (
        Count(n_features=2)
        if rounds == 1
        else FastLloyd(
            n_clusters=2,
            n_features=2,
            rounds=rounds,
            first_radius=1.4,
            radius=0.8,
            public_seed=1,
        )
    )
    names = tuple(f"silo-{i}" for i in range(silos))
    prints = tuple(identity(name).fingerprint for name in names)
    readers = (Reader.of(identity("ann"), "ann"),) if profile == "pairwise" else ()
    parties = {"profile": profile, "fingerprints": prints, "readers": readers}
    return toy_plan(task, silos, run_id="0" * 32, **parties)


@lru_cache
def records(name: str, version: int = 0) -> Records:
    """Return the records of a silo, the same in all worlds."""
    rng = np.random.default_rng(int(name[-1]) + 1 + 100 * version)
    return array_records(rng.uniform(-1, 1, (20, 2)), model(2, "group", 1).grid)


def plan_of(seed: int, number: int, silos: int, profile: str, rounds: int, **changes: Any) -> Plan:
    """Return the plan of a job of a world."""
    run = f"{seed:024x}{number:08x}"
    return replace(model(silos, profile, rounds), run_id=run, **changes)


@contextmanager
def federation(
    world: World, silos: int, cap: float = 10.0, *, numbered: bool = True
) -> Iterator[Federation]:
    """Make all parties with empty disks, and start them."""
    laws = Laws(world)
    place = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=place))
    parties = Federation(world, laws)
    laws.federation = parties
    parties.coordinator = Coordinator(
        world,
        laws,
        _made(folder / COORDINATOR),
        parties,
        lambda: RecordedNoise(world, laws.drawn),
        identity("ann"),
        numbered,
    )
    for name in (f"silo-{i}" for i in range(silos)):
        home = _made(folder / name)
        of = (home, name, identity(name), records(name), cap, parties)
        parties.silos[name] = Silo(world, laws, *of)
    try:
        with patched(world):
            parties.coordinator.start()
            for silo in parties.silos.values():
                silo.start()
            yield parties
    finally:
        parties.close()
        shutil.rmtree(folder)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


# Faults ----------------------------------------------------------------------------------------


@dataclass
class Weather:
    """What befalls the world of a seed."""

    rng: random.Random
    parties: Federation
    horizon: float

    def __post_init__(self) -> None:
        self.loss = self._some(0.4, 0.06)
        self.gone = self.rng.choice([0.0, 0.3])  # of lost connections, that nobody opens again
        self.twice = self._some(0.6, 0.3)
        self.forging = self._some(0.25, 0.3)
        self.world = self.parties.world
        self.laws = self.parties.laws
        self.names = list(self.parties.silos)

    def _some(self, chance: float, most: float) -> float:
        """Return a rate: none at all in most worlds."""
        return self.rng.random() * most if self.rng.random() < chance else 0.0

    def set_in(self) -> None:
        """Let all faults happen at their times."""
        self.parties.copies = self._copies
        if self.rng.random() < 0.3:
            self.world.askew.add(self.rng.choice(self.names))
        if self.forging:
            self.laws.excuses.add("forged")
            self.parties.forge = self._forge
        for chance, most, fault in (
            (0.7, 4, self._kill_silo),
            (0.5, 3, self._kill_coordinator),
            (0.2, 2, self._turn_clock),
            (0.15, 1, self._withdraw),
            (0.4, 2, self._leave_alone),
        ):
            for _ in range(self.rng.randint(1, most) if self.rng.random() < chance else 0):
                self._sometime(fault)
        rng = self.world.rng("a dishonest silo")  # its draws change no other fault of the seed
        if rng.random() < 0.3:
            self._let_cheat(rng.choice(self.names), rng.choice(CHEATS))
        if self.rng.random() < 0.25:
            self._put_back(self.rng.choice(self.names))
        if self.rng.random() < 0.1:
            self._put_coordinator_back()
        rng = self.world.rng("faults of a running job")  # likewise
        for chance, fault in (
            (0.12, self._put_back_amid),
            (0.06, self._edit_amid),
            (0.08, self._run_twice),
            (0.08, self._cancel),
        ):
            if rng.random() < chance:
                fault(rng)

    def _sometime(self, fault: Any, after: float = 0.0) -> float:
        at = self.rng.uniform(after, self.horizon)
        self.world.after(at, fault, "weather")
        return at

    # The network

    def _copies(self, link: str, message: Message) -> int:
        rng = self.world.rng(f"{link}, copies")
        drawn = rng.random()
        if drawn < self.loss:
            return -1 if drawn < self.loss * self.gone else 0
        return 2 if drawn < self.loss + self.twice else 1

    def _forge(self, silo: str, message: Message) -> Iterator[tuple[str, Message]]:
        """Yield messages that no honest coordinator sends, made from one that it sends."""
        rng = self.world.rng(f"misled with that of {silo}")
        packet = self._forged(silo, message)
        if packet is not None:
            yield silo, packet
        if rng.random() > self.forging:
            return
        others = [name for name in self.parties.plans[message.job].silos if name != silo]
        if message.kind == Kind.ASK:  # what one silo is asked another one is asked
            yield rng.choice(others), message
        if message.kind == Kind.END:
            yield silo, self._accusing(message, rng.choice(others), rng)

    def _accusing(self, message: Message, name: str, rng: random.Random) -> Message:
        """Return the end of a job with an accusation that a silo's own frame does not prove."""
        evidence = (self.parties.told.get((message.job, name), b""),)
        offence = rng.choice([OF_SUM, OF_SHARES])
        claim = Conviction(name, 0, offence, evidence * (1 if offence == OF_SUM else 3))
        said = {**json.loads(message.body), "status": "failed", "convictions": [claim.to_dict()]}
        return replace(message, body=json.dumps(said).encode())

    def _forged(self, silo: str, message: Message) -> Message | None:
        """Return a request that breaks a rule, or None."""
        rng = self.world.rng(f"forged for {silo}")
        if message.kind != Kind.ASK or rng.random() > self.forging:
            return None
        plan = self.parties.plans[message.job]
        request = decode(plan, message.body)
        forged = forged_from(plan, request, silo, rng)
        others = self.world.rng(f"forged keys for {silo}")
        if isinstance(request, Roster) and others.random() < 0.5:
            forged = with_other_keys(plan, request, silo, others)
        if forged is None:
            return None
        forged = self._signed(plan, forged)
        packet = Message(Kind.ASK, 0, message.job, encode(plan, forged))
        self.world.note(f"forged for {silo}: {describe(packet)}")
        return packet

    def _let_cheat(self, name: str, cheat: Cheat) -> None:
        """Let one silo answer falsely, as its owner might, with its keys."""
        self.laws.cheater = name
        self.world.note(f"{name} cheats: {cheat.__name__}")
        parties = self.parties

        def changed(silo: str, message: Message) -> Message | None:
            agent = parties.silos[silo].agent
            client = agent._clients.get(message.job) if agent else None
            if silo != name or message.kind != Kind.ANSWER or client is None:
                return message
            plan = parties.plans[message.job]
            try:
                told = cheat(decode(plan, message.body), client, parties.silos[silo].identity)
            except RemoteProtocolError:  # it has no keys yet to sign with
                return message
            return None if told is None else replace(message, body=encode(plan, told))

        parties.cheat = changed

    def _signed(self, plan: Plan, forged: Any) -> Any:
        """Return a sum or a cohort with the coordinator's signature, which is not honest here."""
        jobs = self.parties.coordinator.jobs
        seed = jobs.store.answer_to(plan.run_id, b"identity") if jobs else None
        if seed is None or not isinstance(forged, Reply | Deal):
            return forged
        t, digest = BEFORE, b""
        if isinstance(forged, Reply):
            t, digest = forged.round, result_hash(plan, forged)
        else:
            roster = decode(plan, jobs.store.answer_to(plan.run_id, b"roster") or b"")
            assert isinstance(roster, Roster)
            digest = cohort_hash(plan, roster, forged.cohort)
        signature = Identity.from_bytes(seed).sign(SUM_LABEL, *sent(plan, t, digest))
        return replace(forged, signature=signature)

    # Deaths, disks and clocks

    def _kill_silo(self) -> None:
        silo = self.parties.silos[self.rng.choice(self.names)]
        if self.rng.random() < 0.2:
            self.world.note(f"{silo.name} dies")
            silo.die()
            return
        self.world.fuses[silo.name] = Fuse(self.rng.randint(0, 5), self.rng.random() < 0.3)

    def _leave_alone(self) -> None:
        """A silo dies, and its owner notices late: its jobs go on without it, where they can."""
        name = self.rng.choice(self.names)
        self.world.note(f"{name} dies for long")
        self.parties.silos[name].die(again=4 * PATIENCE)

    def _kill_coordinator(self) -> None:
        if self.rng.random() < 0.2 and self.parties.coordinator.up:
            self.world.note("coordinator dies")
            raise Crash(COORDINATOR)
        self.world.fuses[COORDINATOR] = Fuse(self.rng.randint(0, 5), self.rng.random() < 0.3)

    def _turn_clock(self) -> None:
        name = self.rng.choice([*self.names, COORDINATOR])
        self.laws.excuses.add("clock")
        self.world.skew[name] += self.rng.choice([-86400, -700, -30, 30, 700, 86400])
        self.world.note(f"the clock of {name} is {self.world.skew[name]:+} s off")

    def _withdraw(self) -> None:
        if self.parties.plans:
            self.laws.excuses.add("withdrawn")
            job = self.rng.choice(list(self.parties.plans))
            self.parties.silos[self.rng.choice(self.names)].withdraw(job)

    def _put_back(self, name: str) -> None:
        silo = self.parties.silos[name]
        what = self.rng.choice(["all", "all", "ledger", "jobs"])

        def restore() -> None:
            if silo.backups:
                self.world.note(f"{name} is put back: {what}")
                silo.restore(silo.backups[0], what)

        at = self._sometime(lambda: silo.backups.append(image_of(silo.folder)))
        self._sometime(restore, after=at)

    def _put_back_amid(self, rng: random.Random) -> None:
        """A silo is put back to a backup from a few of its answers ago."""
        silo, what = self._any_silo(rng), rng.choice(["all", "all", "ledger", "copy"])
        late, cancelled = rng.choice([0.0, 5.0, 60.0]), rng.random() < 0.5

        def restore() -> None:
            if silo.backups:
                self.world.note(f"{silo.name} is put back after a few answers: {what}")
                silo.restore(silo.backups[-1], what)
                if cancelled:
                    self.world.after(late + 2.0, lambda: self._cancel_all(), "weather")

        def back_up() -> None:
            self.world.after(0.0, lambda: silo.back_up(what), "weather")
            self._after_answers(silo, rng.randint(1, 8), restore)

        self._after_answers(silo, rng.randint(1, 12), back_up)

    def _edit_amid(self, rng: random.Random) -> None:
        """The file of a silo changes in a running job, and its process starts again."""
        silo = self._any_silo(rng)

        def edit() -> None:
            self.world.note(f"the records of {silo.name} change")
            self.laws.excuses.add("records")
            silo.records = records(silo.name, 1)
            silo.die()

        self._after_answers(silo, rng.randint(1, 12), edit)

    def _run_twice(self, rng: random.Random) -> None:
        """A second aggregator of a job takes over from one that is not dead."""
        coordinator, number = self.parties.coordinator, rng.random()

        def again() -> None:
            jobs = coordinator.jobs
            if jobs is None or not jobs._running:
                return
            running = sorted(jobs._running)
            job = jobs.store.job(running[int(number * len(running))])
            assert job is not None
            self.world.note(f"job {job.id[-4:]} has a second aggregator")
            self.laws.excuses.add("two aggregators")
            coordinator._work(job, jobs)

        self._after_answers(self._any_silo(rng), rng.randint(3, 10), again)

    def _cancel(self, rng: random.Random) -> None:
        self._after_answers(self._any_silo(rng), rng.randint(1, 10), self._cancel_all)

    def _cancel_all(self) -> None:
        self.laws.excuses.add("cancelled")
        for job in self.parties.plans:
            self.parties.coordinator.do(lambda jobs, job=job: jobs.cancel(job, "an operator"))

    def _any_silo(self, rng: random.Random) -> Silo:
        return self.parties.silos[rng.choice(self.names)]

    def _after_answers(self, silo: Silo, number: int, fault: Callable[[], object]) -> None:
        """Let a fault happen after so many more answers of a silo."""
        left = [number]
        before = silo.on_answer

        def on_answer() -> None:
            before()
            left[0] -= 1
            if left[0] == 0:
                self.world.after(0.0, fault, "weather")

        silo.on_answer = on_answer

    def _put_coordinator_back(self) -> None:
        coordinator = self.parties.coordinator

        def restore() -> None:
            if coordinator.backups and coordinator.up:
                self.world.note("coordinator is put back")
                coordinator.put_back = coordinator.backups[0]
                raise Crash(COORDINATOR)

        at = self._sometime(lambda: coordinator.backups.append(image_of(coordinator.folder)))
        self._sometime(restore, after=at)

    def clear(self) -> None:
        """Let there be no faults any more."""
        self.world.fuses.clear()
        self.world.skew.clear()
        self.parties.copies = lambda link, message: 1
        self.parties.forge = lambda silo, message: ()
        self.parties.cheat = lambda silo, message: message
        for silo in self.parties.silos.values():
            silo.on_answer = lambda: None
        self.parties.coordinator.numbered = True


def forged_from(plan: Plan, message: Any, silo: str, rng: random.Random) -> Any:
    """Return a message that breaks a rule, made from one that breaks none."""
    match message:
        case Roster(keys):
            kept = tuple(k for k in keys if k.sender == silo or rng.random() < 0.6)
            return replace(message, keys=kept) if len(kept) < len(keys) else None
        case Reply(t, survivors, elements):
            fewer = tuple(name for name in survivors if name == silo or rng.random() < 0.5)
            words = elements + np.uint64(1 << 20)
            return rng.choice(
                [
                    Reply(t, fewer, elements),
                    Reply(t, survivors, words),
                    Reply(t, survivors[::-1], elements),
                    Reply(t, tuple(name for name in survivors if name != silo), elements),
                ]
            )
        case Deal(cohort, boxes):
            pairs = zip(cohort, boxes, strict=True)
            some = [pair for pair in pairs if pair[0] == silo or rng.random() < 0.6]
            names, boxes = tuple(name for name, _ in some), tuple(box for _, box in some)
            return Deal(names, boxes) if len(names) < len(cohort) else None
        case Open() | Unmask() | Close() if message.confirmations:
            told = list(message.confirmations)
            known = rng.randrange(len(told))
            rest = [replace(one, mac=one.mac[::-1]) for one in told[known:]]
            if rng.random() < 0.5:
                rest = [replace(one, signature=one.signature[::-1]) for one in told[known:]]
            rest = rest if rng.random() < 0.5 else []
            return replace(message, confirmations=(*told[:known], *rest))
    return None


def with_other_keys(plan: Plan, roster: Roster, silo: str, rng: random.Random) -> Roster:
    """Return a roster in which another silo's keys are not its own.

    A fellow silo signs them in its name, or nobody does.
    """
    place = rng.choice([i for i, keys in enumerate(roster.keys) if keys.sender != silo])
    fellow = identity(rng.choice([*(keys.sender for keys in roster.keys), "a stranger"]))
    box = kex.public_of(rng.randbytes(32))
    keys = replace(roster.keys[place], identity=fellow.public, box=box)
    if fellow.fingerprint != plan.fingerprints[plan.silos.index(keys.sender)]:
        keys = replace(keys, signature=fellow.sign(KEYS_LABEL, *keys_signed(plan, keys)))
    return replace(roster, keys=(*roster.keys[:place], keys, *roster.keys[place + 1 :]))


# A seed ----------------------------------------------------------------------------------------


class Failed(AssertionError):
    """A seed under which a law does not hold."""


def jobs_of(seed: int) -> int:
    """Return the number of jobs in the world of a seed."""
    return random.Random(f"{seed}/jobs").randint(2, 5)


def simulate(seed: int) -> World:
    """Run the world of a seed; raise Failed with its history if a law does not hold."""
    rng = random.Random(f"{seed}/world")
    mean = rng.choice([0.2, 2.0, 10.0])
    world = World(seed, delay=lambda of_link: of_link.expovariate(1 / mean))
    silos, profile = rng.choice([2, 2, 3, 3, 3, 4, 4, 5]), rng.choice(["group", "pairwise"])
    cap = rng.choice([2.0, 10.0])
    try:
        with federation(world, silos, cap, numbered=rng.random() < 0.8) as parties:
            jobs = jobs_of(seed)
            weather = Weather(rng, parties, horizon=jobs * (15 + 25 * mean))
            weather.set_in()
            if not parties.coordinator.numbered:
                parties.laws.excuses.add("answers of other requests")
            for number in range(jobs):
                _propose(parties, number, silos, profile, rng)
            parties.run()
            _end(parties, weather)
            if "restored" in parties.laws.excuses:
                _goes_on(parties, silos, profile)
    except Broken as broken:
        raise Failed(_story(seed, world, str(broken))) from None
    except Exception as error:
        raise Failed(_story(seed, world, repr(error))) from error
    return world


def _propose(
    parties: Federation, number: int, silos: int, profile: str, rng: random.Random
) -> None:
    rounds = rng.choice([1, 2, 2, 3])
    changes: dict[str, Any] = {}
    if profile == "pairwise" and parties.world.rng("plans").random() < 0.3:
        changes["min_silos"] = majority(silos)  # fewer than open the masks
    plan = plan_of(parties.world.seed, number, silos, profile, rounds, **changes)
    parties.plans[plan.run_id] = plan
    at = rng.uniform(0, 30.0 * number + 1)
    parties.world.after(at, lambda: parties.coordinator.propose(plan), "analyst")


def _end(parties: Federation, weather: Weather) -> None:
    """Let all faults cease, and look at what is left."""
    weather.clear()
    for silo in parties.silos.values():
        silo.connect()
    for _ in range(2):
        for silo in parties.silos.values():
            silo.start()
            silo.look()
        parties.coordinator.start()
        parties.world.now += 700_000.0  # past the time to approve
        parties.coordinator.do(lambda jobs: jobs.look())
        parties.run()
    parties.laws.ended()


def _goes_on(parties: Federation, silos: int, profile: str) -> None:
    """When all faults have ceased, and owners did what the log said, jobs complete again."""
    for silo in parties.silos.values():
        if silo.agent is not None:
            silo.agent._store.reinstate(parties.laws.cheater)
    budget = Budget(0.05, DELTA)
    for number in (98, 99):  # the first one may be refused by a ledger that was put back
        plan = plan_of(parties.world.seed, number, silos, profile, 1, budget=budget)
        parties.plans[plan.run_id] = plan
        parties.coordinator.propose(plan)
        parties.run()
    jobs = parties.coordinator.jobs
    last = jobs.store.job(plan.run_id) if jobs else None
    if last is None or (last.state != "done" and "above its lifetime cap" not in last.reason):
        parties.laws.broken("jobs complete when faults have ceased", repr(last and last.reason))


def _story(seed: int, world: World, what: str) -> str:
    last = "\n".join(world.trace[-60:])
    command = (
        f"SIMULATION_SEED={seed} .venv/bin/python -m pytest -n 0 -q tests/simulation -k replay"
    )
    return f"{last}\n\nseed={seed}: {what}\nreplay it: {command}"
