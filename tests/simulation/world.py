"""A deterministic world: one clock, one network, disks and randomness, all from one seed.

Nothing here runs by itself. A *world* is a heap of events in the order of a simulated time; a step
takes the first and runs it to its end in this thread. Parties are the real classes of the product.
They meet the world in four places only, which :func:`patched` replaces: the time, the randomness of
the operating system, the commit of a transaction, and the replacement of a small file.

- **Crash.** Every commit is two *points*: before it (what is in flight is lost whole) and after it
  (it is kept, and what was to be sent is not). A party may die at either; its memory is lost. Its
  disk is then what lies in its folder at this moment, the write-ahead log of SQLite included. A
  *torn* write cuts that log at any byte of the last transaction.
- **Old backup.** An *image* of a folder, taken earlier, is put in its place.
- **Network.** Each message has its own delay, may be lost with the connection, or come twice.

Delays are drawn from a generator of their own for each link, and random bytes from one for each
party, so that no order of a Python set changes a schedule, and a seed replays in any process.

Why a scheduler of our own: simloom and seedloop schedule coroutines of asyncio and need Python
3.12, while these classes are synchronous, run on 3.11, and want crashes between two commits, which
neither knows.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from sqlite3 import Connection
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cloister.core.arrays import GridState, State
from cloister.federation.service import store as coordinator_store
from cloister.federation.silo import agent
from cloister.privacy import ledger_file
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress
from cloister.tasks import TASKS

_DRIFT = 0.9e-6  # of a machine that rounds differently; silos adopt what is below 1e-6
EPOCH = 1_800_000_000.0  # of the simulated time, in seconds
COORDINATOR = "coordinator"

Image = dict[str, bytes]
"""The files of a party, by name."""


class Crash(BaseException):
    """A party dies; no `except Exception` of the product may catch it."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self.party = party


class Broken(BaseException):
    """A law does not hold."""


@dataclass
class Fuse:
    """Kills a party at a point of its disk that is still to come."""

    points: int  # to pass before
    torn: bool = False
    tear: tuple[Path, int] | None = None  # the file, and the size of its log before the commit


@dataclass
class World:
    """Clock, network, disks and randomness.

    Parameters
    ----------
    seed : int
        Everything follows from it.
    delay : function of a link's generator, returning seconds
        By default a constant: messages arrive in the order in which they were sent.
    """

    seed: int
    delay: Callable[[random.Random], float] = lambda rng: 1.0
    now: float = EPOCH
    acting: str = COORDINATOR
    skew: Counter[str] = field(default_factory=Counter)  # seconds ahead, by party
    askew: set[str] = field(default_factory=set)  # parties whose machines round differently
    fuses: dict[str, Fuse] = field(default_factory=dict)
    on_point: Callable[[str, str], None] = lambda party, moment: None
    trace: list[str] = field(default_factory=list)
    points: int = 0  # of all disks, passed so far
    dead: set[str] = field(default_factory=set)  # and not yet noticed

    def __post_init__(self) -> None:
        self._events: list[tuple[float, str, int, Callable[[], object]]] = []
        self._sent: Counter[str] = Counter()  # by link
        self._drawn: Counter[tuple[str, int]] = Counter()  # by party and size
        self._streams: dict[str, random.Random] = {}

    # Time and events -------------------------------------------------------------------------

    def rng(self, name: str) -> random.Random:
        """Return the generator of one name, independent of all others."""
        return self._streams.setdefault(name, random.Random(f"{self.seed}/{name}"))

    def time(self) -> float:
        """Return what the clock of the acting party shows."""
        return self.now + self.skew[self.acting]

    def after(self, seconds: float, action: Callable[[], object], link: str = "") -> None:
        """Let something happen later; events of one time happen in the order of links."""
        self._sent[link] += 1
        heapq.heappush(self._events, (self.now + seconds, link, self._sent[link], action))

    def send(self, link: str, action: Callable[[], object], *, slowly: bool = False) -> None:
        """Let a message arrive; slowly, when much else has happened."""
        self.after(self.delay(self.rng(link)) * (5 if slowly else 1), action, link)

    def step(self, before: float = float("inf")) -> bool:
        """Run the next event; return False, with the time at `before`, if none comes earlier."""
        if not self._events or self._events[0][0] > before:
            self.now = before if before < float("inf") else self.now
            return False
        at, _, _, action = heapq.heappop(self._events)
        self.now = max(self.now, at)
        action()
        return True

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now - EPOCH:9.2f}  {text}")

    @contextmanager
    def as_party(self, name: str) -> Iterator[None]:
        """Let a party act: its clock, its randomness and its disk."""
        before, self.acting = self.acting, name
        try:
            yield
        finally:
            self.acting = before

    # Randomness and disks --------------------------------------------------------------------

    def urandom(self, size: int) -> bytes:
        """Return the next random bytes of the acting party; no old disk rewinds them."""
        about = (self.acting, size)
        self._drawn[about] += 1
        text = f"{self.seed}/{self.acting}/{size}/{self._drawn[about]}"
        return hashlib.shake_128(text.encode()).digest(size)

    def point(self, moment: str, connection: Connection | None = None) -> None:
        """Pass a point of the acting party's disk, or die there."""
        party = self.acting
        if party in self.dead:  # what a `finally` does after the death never happened
            raise Crash(party)
        self.points += 1
        self.on_point(party, moment)
        fuse = self.fuses.get(party)
        if fuse is None:
            return
        if fuse.points == 0 and fuse.torn and moment == "before" and connection is not None:
            file = _file_of(connection)
            fuse.tear = file, _size(file)
            return  # it dies after the commit, and a part of it is lost
        if fuse.points == 0:
            self.note(f"{party} dies {moment} a commit{', which is torn' if fuse.tear else ''}")
            self.dead.add(party)
            raise Crash(party)
        fuse.points -= 1

    @contextmanager
    def commit(self, connection: Connection) -> Iterator[None]:
        """Put a point before and one after the commit of what is written inside."""
        written = connection.total_changes
        yield
        if connection.total_changes != written:
            self.point("before", connection)

    def committed(self, connection: Connection, written: int) -> None:
        """Pass the point after a commit."""
        if connection.total_changes != written:
            self.point("after", connection)


def _size(database: Path) -> int:
    log = database.with_name(database.name + "-wal")
    return log.stat().st_size if log.exists() else 0


def _file_of(connection: Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])


# Disks ---------------------------------------------------------------------------------------


def image_of(folder: Path) -> Image:
    """Return the files of a party as they lie there, also in the middle of its work."""
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.endswith("-shm") and not file.name.startswith(".")
    }


def put(folder: Path, image: Image, *, among: Callable[[str], bool] = lambda name: True) -> None:
    """Put the files of an image in the place of those that are there."""
    for file in list(folder.iterdir()):
        if file.is_file() and (file.name.endswith("-shm") or among(file.name)):
            file.unlink()
    for name, content in image.items():
        if among(name):
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)


def torn(image: Image, tear: tuple[Path, int] | None, rng: random.Random) -> Image:
    """Return an image whose last transaction reached the disk in part."""
    if tear is None:
        return image
    log = tear[0].name + "-wal"
    content = image.get(log, b"")
    if len(content) <= tear[1]:  # the log began again from its start
        return image
    return image | {log: content[: rng.randrange(tear[1], len(content))]}


# The four places -----------------------------------------------------------------------------


@contextmanager
def patched(world: World) -> Iterator[None]:
    """Let the product's classes meet the world, and not the operating system."""
    clock = SimpleNamespace(time=world.time, monotonic=lambda: world.now)
    system = SimpleNamespace(urandom=world.urandom, getpid=os.getpid)
    overwrite, save = ledger_file.overwrite, agent._save
    engine_of, on_grid = coordinator_store._engine, Progress._on_grid
    transaction_of_store = coordinator_store.Store._transaction

    @contextmanager
    def transaction(connection: Connection) -> Iterator[Connection]:
        connection.execute("BEGIN IMMEDIATE")
        written = connection.total_changes
        with connection, world.commit(connection):
            yield connection
        world.committed(connection, written)

    @contextmanager
    def at_coordinator(store: coordinator_store.Store) -> Iterator[Any]:
        with transaction_of_store(store) as connection:
            raw: Any = connection.connection.driver_connection
            written = raw.total_changes
            with world.commit(raw):
                yield connection
        world.committed(raw, written)

    def overwritten(path: Path, content: bytes) -> None:
        world.point("before")
        overwrite(path, content)
        world.point("after")

    def saved(*about: Any) -> None:
        world.point("before")
        save(*about)
        world.point("after")

    def rounded(progress: Progress, state: State) -> GridState:
        drift = _DRIFT if world.acting in world.askew else 0.0
        return on_grid(progress, {name: value + drift for name, value in state.items()})

    def engine(url: str) -> Any:
        made: Any = engine_of(url)
        # What is compiled belongs to its dialect, so that engines share both.
        made.dialect = _DIALECTS.setdefault(made.name, made.dialect)
        made._compiled_cache = _COMPILED
        return made

    with pytest.MonkeyPatch.context() as patch:
        for place, replacement in {
            "cloister.protocol.keys.time": clock,
            "cloister.federation.silo.agent.time": clock,
            "cloister.federation.service.jobs.time": clock,
            "cloister.federation.service.store._now": world.time,
            "cloister.privacy.ledger_file.utc_now": lambda: datetime.fromtimestamp(
                world.time(), UTC
            ),
            "cloister.core.randomness.os": system,
            "cloister.privacy.ledger.transaction": transaction,
            "cloister.privacy.ledger_file.transaction": transaction,
            "cloister.federation.silo.store.transaction": transaction,
            "cloister.federation.service.store.Store._transaction": at_coordinator,
            "cloister.privacy.ledger_file.overwrite": overwritten,
            "cloister.federation.silo.agent._save": saved,
            "cloister.federation.service.jobs.ThreadPoolExecutor": Inline,
            "cloister.protocol.progress.Progress._on_grid": rounded,
            # Pure functions, asked for the same very often.
            "cloister.federation.service.store._engine": engine,
            "cloister.hazmat.signing.Ed25519PublicKey": QuickKey,
            "cloister.federation.silo.agent.Plan.from_dict": _plan_of,
        }.items():
            patch.setattr(place, replacement)
        yield


class Inline:
    """An executor that works at once, in this thread."""

    def __init__(self, *about: object) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *about: object) -> None:
        pass

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Work, and return the outcome."""
        done: Future[None] = Future()
        try:
            work()
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)
        return done


_COMPILED: dict[Any, Any] = {}  # statements of the coordinator's database
_DIALECTS: dict[str, Any] = {}
_read_plan = Plan.from_dict


def _plan_of(document: Any, tasks: Any = TASKS) -> Plan:
    return _plan_of_text(json.dumps(document))


@lru_cache(maxsize=200)
def _plan_of_text(text: str) -> Plan:
    return _read_plan(json.loads(text), TASKS)


@dataclass(frozen=True)
class QuickKey:
    """An Ed25519 public key that remembers what it verified: a pure function, asked very often."""

    raw: bytes

    @classmethod
    def from_public_bytes(cls, raw: bytes) -> QuickKey:
        """Return the key of 32 bytes."""
        return cls(bytes(raw))

    def verify(self, signature: bytes, text: bytes) -> None:
        """Raise what the real key raises."""
        error = _refusal(self.raw, bytes(signature), text)
        if error is not None:
            raise error


@lru_cache(maxsize=2000)
def _refusal(raw: bytes, signature: bytes, text: bytes) -> Exception | None:
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, text)
    except (InvalidSignature, ValueError) as error:
        return error
    return None
