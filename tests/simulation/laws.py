"""The laws of a simulated federation, each a sentence of PROTOCOL.md, checked from outside.

A law sees what crosses the network, what lies in the files, and what silos hold after an opening.
It reads the files by itself and prices them by itself: a ledger that forgets cannot vouch for
itself.
"""

from __future__ import annotations

import json
import math
import sqlite3
from base64 import b64decode
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.arrays import GridState, Integers, Records
from cloister.core.errors import CloisterError
from cloister.federation.service.store import Store
from cloister.federation.transports.http import Message as Packet
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.prg import Usage, derive, join
from cloister.hazmat.ring import from_bytes
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import GaussianEvent, mechanism_counts
from cloister.privacy.noise import NoiseKind, ShareNoise
from cloister.privacy.packages import read_event
from cloister.protocol.aggregator import box_name
from cloister.protocol.client import Client
from cloister.protocol.messages import (
    BEFORE,
    Adopted,
    Close,
    Confirm,
    Done,
    Keys,
    Open,
    Ready,
    Reply,
    Roster,
    Secrets,
    Shares,
    Unmask,
    Upload,
    decode,
    is_confirmed,
)
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress
from cloister.protocol.readers import open_boxes

from .world import Broken, World

if TYPE_CHECKING:
    from .parties import Federation, Silo

Round = tuple[str, int]  # job and round
_ONE_SUM = "a silo confirms one cohort, and one sum of a round"


# What lies in a ledger's file ----------------------------------------------------------------


@dataclass
class Account:
    """A job in a ledger's file."""

    events: float  # squared GDP parameter of all that is reserved
    rounds: dict[int, float] = field(default_factory=dict)
    is_open: bool = True
    whole: bool = False  # ended, and all of it counts

    @property
    def charged(self) -> float:
        """What counts as spent, as a squared GDP parameter."""
        return self.events if self.is_open or self.whole else sum(self.rounds.values())


@dataclass
class Book:
    """A ledger's file, read and priced without the ledger's code."""

    accounts: dict[str, Account] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    secrets: dict[str, bytes] = field(default_factory=dict)
    statements: set[tuple[str, str]] = field(default_factory=set)  # whose, and of which job
    claims: set[str] = field(default_factory=set)  # jobs of which peers showed it statements
    charges: dict[Round, int] = field(default_factory=dict)  # numbers of their entries
    head: int = 0  # number of the entry whose hash lies beside the ledger

    def covers(self, of: Round) -> bool:
        """Return True if a round that left counts as spent."""
        account = self.accounts.get(of[0])
        return account is not None and (account.is_open or account.whole or of[1] in account.rounds)

    @property
    def charged(self) -> float:
        """The sum of all jobs."""
        return sum(account.charged for account in self.accounts.values())

    @property
    def rounds(self) -> frozenset[Round]:
        """All rounds that were charged one by one."""
        return frozenset((j, t) for j, account in self.accounts.items() for t in account.rounds)


def book_of(path: Path, cap: float, delta: float) -> Book:
    """Read a ledger's file."""
    book, limit = Book(), gdp_mu_for(cap, delta) ** 2 * (1 + 1e-9)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT body, hash FROM entries ORDER BY seq").fetchall()
        book.secrets = dict(connection.execute("SELECT job, secret FROM secrets"))
        book.statements = set(connection.execute("SELECT fingerprint, job FROM statements"))
        book.claims = {job for (job,) in connection.execute("SELECT job FROM claims")}
    beside = path.with_name(f"{path.name}.head")
    head = beside.read_text().split()[0] if beside.exists() else ""
    for number, (body, digest) in enumerate(rows, start=1):
        entry = json.loads(body)
        job = entry.get("job", "")
        if digest == head:
            book.head = number
        match entry["kind"]:
            case "reserve":
                book.accounts[job] = Account(_price(entry["events"]))
                if book.charged > limit:
                    book.faults.append(f"job {job} was reserved beyond the cap")
            case "charge":
                account = book.accounts[job]
                if not account.is_open:
                    book.faults.append(f"job {job} is charged after its end")
                if entry["round"] in account.rounds:
                    book.faults.append(f"round {entry['round']} of job {job} is charged twice")
                account.rounds[entry["round"]] = _price(entry["event"])
                book.charges[job, entry["round"]] = number
            case "close":
                book.accounts[job].is_open = False
                book.accounts[job].whole = bool(entry.get("whole", False))
            case "recover":
                said = json.loads(entry["statement"])
                account = book.accounts.setdefault(said["job"], Account(_price(said["events"])))
                account.is_open, account.whole = False, True
            case "copied":  # no job goes on in a copy
                for account in book.accounts.values():
                    account.whole = account.whole or account.is_open
                    account.is_open = False
    return book


def begun_in(folder: Path, book: Book) -> set[str]:
    """Return the jobs in a ledger of which the file of jobs beside it says that they ran."""
    path, unbegun = folder / "jobs.db", "('waiting', 'accepted', 'approved', 'declined')"
    if not path.exists():
        return set()
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"SELECT id FROM jobs WHERE state NOT IN {unbegun}")
        return {job for (job,) in rows} & set(book.accounts)


def _price(event: Mapping[str, Any]) -> float:
    counts = mechanism_counts(read_event(dict(event)))
    price = 0.0
    for one, n in counts.items():
        assert isinstance(one, GaussianEvent)
        price += n / one.noise_multiplier**2
    return price


# Noise that is known afterwards --------------------------------------------------------------


class RecordedNoise:
    """Noise of a coordinator from the world's seed, which the laws may subtract again."""

    label = "SIMULATED NOISE (seeded): not private"

    def __init__(self, world: World, drawn: list[list[Integers]]) -> None:
        self._rng = np.random.default_rng(int.from_bytes(world.urandom(8), "big"))
        self._drawn: list[Integers] = []
        drawn.append(self._drawn)

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return noise of about the right size."""
        noise = np.rint(self._rng.normal(0, scale, size)).astype(np.int64)
        self._drawn.append(noise)
        return np.asarray(noise)


# The laws ------------------------------------------------------------------------------------


@dataclass
class Laws:
    """What must hold, and what happened so far."""

    world: World
    federation: Federation = field(init=False)
    excuses: set[str] = field(default_factory=set)
    """Why a job may fail although enough silos answered: "restored", "forged", "clock", ..."""
    old: set[str] = field(default_factory=set)  # silos with a disk that was put back
    cheater: str = ""  # the silo whose answers are changed on their way, if any
    drawn: list[list[Integers]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._first: dict[Any, bytes] = {}  # what was said once, and may be said no other way
        self._left: dict[str, set[Round]] = defaultdict(set)  # uploads, by silo
        self._agreed: dict[Any, set[tuple[str, bytes]]] = defaultdict(set)
        self._kinds: dict[Any, set[str]] = defaultdict(set)
        self._given: dict[Any, set[str]] = defaultdict(set)
        self._charged: dict[str, frozenset[Round]] = {}
        self._secrets: dict[tuple[str, str], bytes] = {}
        self._rosters: dict[str, tuple[str, ...]] = {}
        self._cohorts: dict[str, tuple[str, ...]] = {}
        self._held: dict[tuple[str, str, str], set[str]] = {}
        self._done: dict[Round, Any] = {}
        self._plain: set[tuple[str, Round]] = set()
        self._lost: dict[str, set[str]] = defaultdict(set)  # silos given up, by job
        self._tags: dict[Round, dict[str, bytes]] = defaultdict(dict)
        self._states: dict[tuple[str, Round], GridState] = {}  # of which an upload is a function
        self._frozen: dict[tuple[str, str], Records] = {}  # the records of a silo in a job
        self._keys: dict[tuple[str, str], list[Keys]] = defaultdict(list)  # by job and silo
        self._known: dict[str, set[str]] = {}  # jobs that ran, as a disk that was put back knows
        self._alone: set[str] = set()  # silos whose ledger was put back below a newer head
        self._behind: dict[str, set[str]] = {}  # jobs of statements that a ledger lacks

    def broken(self, law: str, about: str) -> None:
        """Stop the world."""
        raise Broken(f"{law}: {about}")

    def _once(self, law: str, about: Any, said: bytes) -> None:
        if self._first.setdefault((law, about), said) != said:
            self.broken(law, str(about))

    # What happens ----------------------------------------------------------------------------

    def restored(self, silo: Silo, *, ledger: bool = True, alone: bool = False) -> None:
        """Know that a silo's disk was put back, with its ledger, or its ledger alone."""
        self.old.add(silo.name)
        self.excuses.add("restored")
        self._charged.pop(silo.name, None)
        if ledger:
            self._known[silo.name] = begun_in(silo.folder, self._read_book(silo))
        if alone:
            self._alone.add(silo.name)

    def copied(self, silo: Silo) -> None:
        """Know that a copy that the ledger itself made is in its place: no job in it goes on."""
        book = self._read_book(silo)
        self._known[silo.name] = set(book.accounts)
        if any(account.is_open for account in book.accounts.values()) or book.secrets:
            self.broken("a copy of a ledger ends all its jobs", silo.name)

    def mended(self, silo: Silo) -> None:
        """Know that an owner took in what peers hold, or gave up the head beside the ledger."""
        self._alone.discard(silo.name)
        self._behind.pop(silo.name, None)

    def started(self, silo: Silo) -> None:
        """A ledger that was put back alone is refused by the head beside it."""
        if silo.name in self._alone:
            self._alone.discard(silo.name)
            book = self._read_book(silo)
            if lost := [of for of in sorted(self._left[silo.name]) if not book.covers(of)]:
                self.broken("a ledger behind the head beside it is refused", f"{silo.name} {lost}")

    def resumed(self, silo: Silo, job: str, error: Exception) -> None:
        """What a silo recorded is enough to go on after it lost its memory."""
        if silo.name not in self.old:
            self.broken("a silo that lost its memory goes on", f"{silo.name} {job}: {error}")

    def coordinator_restored(self) -> None:
        """Know that the coordinator's database was put back."""
        self.excuses.update(("restored", "coordinator restored"))

    def gave_up(
        self, job: str, asked: Collection[str], silent: set[str], refused: Mapping[str, str]
    ) -> None:
        """Know which silos did not answer a request of a job; none refuses an honest one."""
        honest = set(asked) - {self.cheater}
        enough = len(honest) >= self._quorum(job)  # with fewer the job cannot go on
        for silo in honest & set(refused):
            reason = refused[silo]
            if enough and not self.excuses and silo not in self._lost[job]:
                self.broken("an honest request is answered", f"{silo} {job}: {reason}")
        self._lost[job].update(silent, refused)

    def raised(self, party: str, error: Exception) -> None:
        """Only errors of the package leave a party."""
        self.world.note(f"{party}: {type(error).__name__}: {error}")
        if not isinstance(error, CloisterError):
            self.broken("only errors of the package leave a party", f"{party}: {error!r}")

    # What the coordinator sends --------------------------------------------------------------

    def asked(self, job: str, frames: Mapping[str, bytes]) -> None:
        """Check what the coordinator asks."""
        plan = self.federation.plans[job]
        for frame in sorted(set(frames.values())):
            message = decode(plan, frame)
            if isinstance(message, Roster):
                self._rosters[job] = tuple(keys.sender for keys in message.keys)
            if not isinstance(message, Reply):
                continue
            of = (job, message.round)
            if "coordinator restored" not in self.excuses:
                self._once("a round has one answer", of, frame)
            unpaid = [s for s in message.survivors if of not in self._left[s]]
            if unpaid:
                self.broken("a sum holds what its silos sent", f"{of} of {unpaid}")
            if len(message.survivors) < self._quorum(job):
                self.broken("a sum has at least the quorum of survivors", str(of))
            if len({self._tags[of][silo] for silo in message.survivors}) > 1:
                self.broken("silos in a sum hold one public state", str(of))

    def _quorum(self, job: str) -> int:
        """Return the smallest survivor set, by PROTOCOL.md and not by the code of a plan."""
        plan = self.federation.plans[job]
        if plan.profile != "pairwise":
            return plan.min_silos
        silos = len(self._rosters.get(job, plan.silos))
        return max(plan.min_silos, (silos + plan.collusion) // 2 + 1)

    # What a silo answers ---------------------------------------------------------------------

    def answered(self, silo: Silo, ask: Packet, answer: Packet) -> None:
        """Check an answer at the moment it leaves a silo."""
        job, name = ask.job, silo.name
        plan = self.federation.plans[job]
        request, said = decode(plan, ask.body), decode(plan, answer.body)
        if name not in self.old:
            self._once("a request has one answer", (name, job, ask.body), answer.body)
        match said:
            case Keys():
                self._keys[job, name].append(said)
            case Secrets():
                assert isinstance(request, Roster)
                strange = [k.sender for k in request.keys if k not in self._keys[job, k.sender]]
                if strange:
                    self.broken("a silo seals to keys that their silos made", f"{name} {strange}")
                if name not in self.old:  # one that forgot the job has other keys
                    self._once("a silo seals to one roster", (name, job), ask.body)
                self._keep_held(silo, plan)
            case Ready():
                self._once(_ONE_SUM, (name, job, BEFORE), said.result_hash)
            case Upload():
                self._uploaded(silo, plan, said, answer.body)
            case Confirm():
                assert isinstance(request, Reply)
                self._confirmed(silo, plan, request, said)
            case Shares():
                self._enough(silo, plan, request.round)
                self._shared(silo, plan, said)
            case Done():
                if name not in self.old:
                    self._once("a silo seals one result", (name, job), answer.body)
        if isinstance(request, Close):
            self._enough(silo, plan, request.round)

    def sent(self, name: str, plan: Plan, frame: bytes) -> None:
        """Record an answer of a silo as the coordinator receives it, honest or not."""
        said = decode(plan, frame)
        if isinstance(said, Upload):
            self._tags[plan.run_id, said.round].setdefault(name, said.state_tag)
        if isinstance(said, Adopted):
            self._tags[plan.run_id, said.round][name] = said.state_tag

    def _uploaded(self, silo: Silo, plan: Plan, upload: Upload, frame: bytes) -> None:
        of = (plan.run_id, upload.round)
        self._once("a pad is used once", (silo.name, *of), frame)
        book = self.book(silo)
        is_new = of not in self._left[silo.name]
        self._left[silo.name].add(of)
        if not book.covers(of):
            self.broken("charge and bytes are durable before they leave", f"{silo.name} {of}")
        if silo.name not in self.old and book.head < book.charges[of]:
            self.broken("the head file has the head of each frame that left", f"{silo.name} {of}")
        client = self._client(silo, plan.run_id)
        assert client is not None
        if is_new:
            self._states[silo.name, of] = client.state
            kept = self._frozen.setdefault((silo.name, plan.run_id), client._records)  # type: ignore[arg-type]  # no function
            if kept is not client._records:
                self.broken("records are frozen when a job starts", f"{silo.name} {of}")
            state = join(v.tobytes() for _, v in sorted(client.state.items()))
            self._once("a tag stands for one public state", (*of, upload.state_tag), state)
            if told := {of for of in self._left[silo.name] if of[0] in book.claims}:
                self._covers(silo, book, told)
        self._secrets[silo.name, plan.run_id] = book.secrets.get(plan.run_id, b"")
        if is_new and upload.round == 0:
            self._knows_its_past(silo, plan, book)
        self._enough(silo, plan, upload.round - 1)

    def _read_book(self, silo: Silo) -> Book:
        return book_of(silo.ledger_path, silo.cap, 1e-6)

    def book(self, silo: Silo) -> Book:
        """Read a silo's ledger, and check what can be seen in it alone."""
        book = self._read_book(silo)
        if book.faults:
            self.broken("the cap holds, and a round is charged once", f"{silo.name}: {book.faults}")
        before = self._charged.get(silo.name, frozenset())
        if not before <= book.rounds:
            self.broken("what was charged stays charged", f"{silo.name} {before - book.rounds}")
        self._charged[silo.name] = book.rounds
        known = self._known.get(silo.name)
        left = {of for of in self._left[silo.name] if known is None or of[0] in known}
        if unpaid := {of for of in left if not book.covers(of)}:
            self.broken("what left is charged", f"{silo.name} {unpaid}")
        self._takes_nothing_new(silo, book)
        return book

    def _takes_nothing_new(self, silo: Silo, book: Book) -> None:
        """A ledger that is behind its peers' statements reserves nothing before it recovers."""
        if all(book.covers(of) for of in self._left[silo.name] if of[0] in book.claims):
            self._behind.pop(silo.name, None)
            return
        before = self._behind.setdefault(silo.name, set(book.accounts))
        if new := set(book.accounts) - before - book.claims:
            self.broken("a ledger behind its statements takes no job", f"{silo.name} {new}")

    def _covers(self, silo: Silo, book: Book, told: set[Round]) -> None:
        if unpaid := {of for of in told if not book.covers(of)}:
            self.broken("a ledger behind its statements is refused", f"{silo.name} {unpaid}")

    def _keep_held(self, silo: Silo, plan: Plan) -> None:
        """Remember of which jobs this silo can tell each peer, when it seals its boxes."""
        for peer in plan.silos:
            public = self.federation.silos[peer].identity
            held = {one.said.job for one in silo.remembered(public.fingerprint)}
            self._held.setdefault((plan.run_id, silo.name, peer), held)

    def _knows_its_past(self, silo: Silo, plan: Plan, book: Book) -> None:
        """A silo that was put back sends nothing before it took in what its peers can tell."""
        told = {
            job
            for peer in self._cohort(silo, plan)
            for job in self._held.get((plan.run_id, peer, silo.name), set())
        }
        self._covers(silo, book, {of for of in self._left[silo.name] if of[0] in told})

    def _cohort(self, silo: Silo, plan: Plan) -> tuple[str, ...]:
        client = self._client(silo, plan.run_id)
        cohort: tuple[str, ...] = client._agreement.cohort if client and client._agreement else ()
        return cohort

    def _client(self, silo: Silo, job: str) -> Client | None:
        return silo.agent._clients.get(job) if silo.agent is not None else None

    def _confirmed(self, silo: Silo, plan: Plan, reply: Reply, confirm: Confirm) -> None:
        of = (plan.run_id, reply.round)
        self._once(_ONE_SUM, (silo.name, *of), confirm.result_hash)
        members = [name for name in plan.silos if name in reply.survivors]
        if list(reply.survivors) != members or silo.name not in members:
            self.broken("survivors are members in order, this silo among them", str(of))
        cohort = self._cohort(silo, plan)
        if cohort and not set(members) <= set(cohort):
            self.broken("survivors are members in order, this silo among them", str(of))
        if len(members) < self._quorum(plan.run_id):
            self.broken("a silo confirms no sum below the quorum", f"{silo.name} {of}")

    def heard(self, silo: Silo, ask: Packet) -> None:
        """Record the confirmations of other silos that a silo received."""
        plan = self.federation.plans[ask.job]
        request = decode(plan, ask.body)
        if not isinstance(request, Open | Unmask | Close):
            return
        t = request.round - isinstance(request, Open)
        for one in request.confirmations:
            public = self.federation.silos[one.silo].identity.public
            if is_confirmed(plan, t, one, public):
                self._agreed[silo.name, plan.run_id, t].add((one.silo, one.result_hash))

    def _enough(self, silo: Silo, plan: Plan, t: int) -> None:
        """Nothing is opened before a quorum of silos signed the sum that this silo confirmed."""
        about = (silo.name, plan.run_id, t)
        told = self._agreed[about]
        own = self._first.get((_ONE_SUM, about))  # unknown if that answer was lost
        agree = {one for one, digest in told if own in (None, digest)} | {silo.name}
        if len(agree) < self._quorum(plan.run_id):
            self.broken("a quorum confirms before a sum is opened", str(about))
        kept = self.book(silo).statements
        prints = {self.federation.silos[one].identity.fingerprint for one in agree - {silo.name}}
        if sum((one, plan.run_id) in kept for one in prints) + 1 < self._quorum(plan.run_id):
            self.broken("what peers sign of their ledgers is durable", str(about))

    def _shared(self, silo: Silo, plan: Plan, said: Shares) -> None:
        """For each member and round a silo gives a share of the seed or of the key, never both."""
        client = self._client(silo, plan.run_id)
        assert client is not None
        held: Mapping[str, Any] = client._masker.held  # type: ignore[attr-defined]  # pairwise
        known = {
            share: (member, which)
            for member, rounds in held.items()
            for which, share in zip(("seed", "key"), rounds[said.round], strict=True)
        }
        for share in said.shares.values():
            member, which = known[share]
            about = (plan.run_id, said.round, member)
            self._kinds[silo.name, *about].add(which)
            self._given[about, which].add(silo.name)
            if len(self._kinds[silo.name, *about]) > 1:
                self.broken("a share of seed or key, never both", f"{silo.name} {about}")

    # What a silo holds -----------------------------------------------------------------------

    def looked(self, silo: Silo) -> None:
        """Check what the clients of a silo unmasked."""
        if silo.agent is None:
            return
        for job, client in silo.agent._clients.items():
            for t, survivors in enumerate(client.survivors):
                self._unmasked(silo, client, (job, t), survivors)

    def _unmasked(self, silo: Silo, client: Client, of: Round, survivors: tuple[str, ...]) -> None:
        if (silo.name, of) in self._plain:
            return
        self._plain.add((silo.name, of))
        t, plan = of[1], client.plan
        after = client.history[t + 1]
        first, state_of_first = self._done.setdefault(of, (survivors, after))
        if first != survivors or not self._same(state_of_first, after):
            self.broken("silos that unmask a round hold one sum", f"{silo.name} {of}")
        if len(survivors) < self._quorum(plan.run_id):
            self.broken("no sum below the quorum is unmasked", f"{silo.name} {of}")
        for name in survivors:
            if of not in self._left[name]:
                self.broken("a sum holds what its silos sent", f"{of} of {name}")
        state = client.history[t]
        total = np.zeros(plan.length(t), dtype=np.int64)
        for name in survivors:
            for chunk in self._frozen[name, of[0]]:  # type: ignore[arg-type]  # chunks of records
                total += plan.task.contribute(t, self._states[name, of], chunk)
        for noise in self._noise(plan, t, survivors):
            released = plan.decode(t, total + noise, len(survivors))
            update = plan.task.update(t, state, released)
            grid = {k: round_to_grid(v, plan.grid.frac_bits) for k, v in update.items()}
            if self._same(grid, after):
                return
        self.broken("the result is the sum of the survivors' records and its noise", f"{of}")

    def _same(self, one: GridState, other: GridState, rounds: int = 1) -> bool:
        """Return True if states are equal.

        Machines that round differently differ by a step in each round without an adopted state.
        """
        steps = rounds if self.world.askew else 0
        return all(np.abs(value - other[name]).max() <= steps for name, value in one.items())

    def _noise(self, plan: Plan, t: int, survivors: Iterable[str]) -> Iterable[Integers]:
        """Return the noise that may be in a sum: of the silos, or a draw of the coordinator."""
        blocks = plan.blocks(t)
        if plan.profile == "pairwise":
            about = join((plan.digest, str(t).encode()))
            total = np.zeros(plan.length(t), dtype=np.int64)
            for name in survivors:
                secret = self._secrets[name, plan.run_id]
                source = ShareNoise(derive(secret, Usage.NOISE, about))
                total += np.concatenate(
                    [source.draw("gaussian", plan.share_scale(b), b.size) for b in blocks]
                )
            yield total
            return
        sizes = [block.size for block in blocks]
        for drawn in self.drawn:
            for first in range(len(drawn) - len(sizes) + 1):
                window = drawn[first : first + len(sizes)]
                if [noise.size for noise in window] == sizes:
                    yield np.concatenate(window)

    # At the end ------------------------------------------------------------------------------

    def ended(self) -> None:
        """Check what must hold when nothing happens any more."""
        coordinator = self.federation.coordinator
        assert coordinator.jobs is not None
        for job, plan in self.federation.plans.items():
            known = coordinator.jobs.store.job(job)
            if known is None:
                if "coordinator restored" not in self.excuses:
                    self.broken("a job is kept", job)
                continue
            self.world.note(f"job {job[-4:]} is {known.state}: {known.reason}")
            if not known.ended:
                self.broken("every job ends", f"{job} is {known.state}")
            loyal = set(known.approved) - self._lost[job] - {self.cheater}
            enough = len(loyal) >= self._quorum(job)
            if known.state == "failed" and enough and not self.excuses:
                self.broken("a job with enough silos completes", f"{job}: {known.reason}")
            if (
                known.state == "done"
                and plan.readers
                and "coordinator restored" not in self.excuses
            ):
                self._read(plan, coordinator.jobs.store)
        for silo in self.federation.silos.values():
            self._silo_ended(silo)
        self._not_both()

    def _read(self, plan: Plan, store: Store) -> None:
        """Read the result of a job as its reader does, and compare it with that of its silos."""
        boxes = (
            (s, store.answer_to(plan.run_id, box_name(s, plan.readers[0]))) for s in plan.silos
        )
        sealed = [(silo, box) for silo, box in boxes if box is not None]
        try:
            vouched = open_boxes(plan, self.federation.coordinator.analyst, sealed)
        except CloisterError as error:
            self.broken("a reader of a job that is done has its result", f"{plan.run_id}: {error}")
        if vouched.others:
            self.broken("honest silos seal one result", f"{plan.run_id}: {vouched.others}")
        progress = Progress(plan)
        for t, one in enumerate(vouched.sums["rounds"]):
            words = from_bytes(b64decode(one["words"]), plan.length(t))
            progress.receive(words, one["survivors"])
            survivors, after = self._done.get((plan.run_id, t), (tuple(one["survivors"]), None))
            if progress.survivors[t] != survivors:
                self.broken("a reader has the sums of the silos", f"{plan.run_id} {t}")
            # A reader adopts no state, so its differences add up.
            if after is not None and not self._same(progress.state, after, rounds=t + 1):
                self.broken("a reader has the result of the silos", f"{plan.run_id} {t}")

    def _silo_ended(self, silo: Silo) -> None:
        book = self.book(silo)
        if silo.agent is None:
            self.broken("every silo starts again", silo.name)
            return
        prints = {one.identity.fingerprint: name for name, one in self.federation.silos.items()}
        if innocent := {prints[one] for one in silo.agent._store.convicted()} - {self.cheater}:
            self.broken("no honest silo is convicted", f"{innocent} at {silo.name}")
        own = silo.agent._ledger.cost("toy").mu_squared
        if not math.isclose(own, book.charged, rel_tol=1e-6, abs_tol=1e-9):
            self.broken("a ledger charges what its file holds", f"{silo.name} {own} {book.charged}")
        try:
            silo.agent._ledger.verify()
        except CloisterError as error:
            if silo.name not in self.old:
                self.broken("a ledger verifies", f"{silo.name}: {error}")
        if self.excuses:
            return
        left_open = [job for job, account in book.accounts.items() if account.is_open]
        if left_open:
            self.broken("no ended job keeps a reservation", f"{silo.name} {left_open}")

    def _not_both(self) -> None:
        """No member's seed and key can both be put together from the shares that were given."""
        for (about, which), givers in self._given.items():
            others = self._given.get((about, _OTHER[which]), set())
            if min(len(givers), len(others)) >= self._quorum(about[0]):
                self.broken("seed and key of no member are both opened", str(about))


_OTHER = {"seed": "key", "key": "seed"}
