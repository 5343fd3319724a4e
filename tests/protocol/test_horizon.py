"""A horizon over a network: one job with a round for each period, at one price, through crashes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloister.app.arrivals import Arrivals
from cloister.app.forecast import size_warnings
from cloister.app.horizon import Horizon, HorizonFolder
from cloister.app.horizon_check import check_horizon
from cloister.app.in_process import InProcess, handlers
from cloister.app.job import Job, Trust, derive_plan
from cloister.app.question import differences, facts_of
from cloister.core.errors import (
    LedgerError,
    LocalProtocolError,
    PlanError,
    ProtocolError,
    RemoteProtocolError,
)
from cloister.data import read_source
from cloister.data.schema import Schema
from cloister.federation.release_signatures import Attestation
from cloister.federation.silo.periods import Periods, freeze
from cloister.federation.verification import verify_horizon
from cloister.hazmat.ring import Integers, to_bytes, to_integers, to_words
from cloister.hazmat.signing import Identity
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.chain import SignedStatement
from cloister.privacy.events import HorizonEvent
from cloister.privacy.horizon import Encoding
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import SILOS_NOISE, NoiseSource, ShareNoise
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.lifecycle import SiloState
from cloister.protocol.messages import (
    BEGUN_LABEL,
    Begin,
    Begun,
    Open,
    Upload,
    begun_signed,
    decode,
    encode,
    kind_of,
)
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise

SILOS = ("north", "east", "south")
KINDS = ["burn", "cut", "fall"]
SCHEMA = Schema(
    dataset="visits",
    unit="patient",
    max_rows=1,
    columns=[{"name": "kind", "type": "category", "categories": KINDS}],
)
BUDGET = Budget(1.0, 1e-6)
PERIODS = 3


def job_of(identities: Mapping[str, Identity], **trust: Any) -> Job:
    prints = tuple(identity.fingerprint for identity in identities.values())
    return Job(
        task=TASKS["tabulate"],
        schema=SCHEMA,
        silos=tuple(identities),
        options={"tables": [["kind"]]},
        epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        nominal_n=300,
        horizon=Encoding.of(PERIODS),
        trust=Trust(**{"fingerprints": prints, "profile": "pairwise", **trust}),
    )


@pytest.fixture(scope="module")
def identities() -> dict[str, Identity]:
    return {silo: Identity.new() for silo in SILOS}


# The plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_a_plan_with_a_horizon_has_its_noise_and_its_one_price(
    profile: str, identities: dict[str, Identity]
) -> None:
    plan = job_of(identities, profile=profile).plan
    local = Horizon.of(
        replace(job_of(identities), horizon=None, trust=Trust()).plan, PERIODS
    )  # over files
    assert plan.rounds == PERIODS
    assert plan.min_silos == len(SILOS)
    assert not size_warnings(plan)  # of 300 records, and noise of a few
    assert plan.noise_scale(plan.blocks(2)[0]) == local.scale(local.plan.blocks(0)[0])
    event = plan.events()
    assert isinstance(event, HorizonEvent)
    assert all(plan.event(t) == event for t in range(PERIODS))
    assert event.noise_multiplier == local.event.noise_multiplier
    assert event.digest == plan.digest.hex()
    assert accounting.epsilon(event, BUDGET.delta) <= BUDGET.epsilon


def test_a_silo_derives_the_same_plan_and_the_question_says_what_is_stored(
    identities: dict[str, Identity],
) -> None:
    plan = job_of(identities).plan
    read = Plan.from_dict(plan.to_dict(), TASKS)
    assert read == plan
    assert differences(plan, derive_plan(read, SCHEMA, TASKS)) == []
    other = replace(plan, horizon=Encoding.of(PERIODS, workload="totals"))
    assert other.digest != plan.digest
    assert differences(other, derive_plan(plan, SCHEMA, TASKS)) != []
    asked = dict(facts_of(plan, SCHEMA))
    assert asked["periods"].startswith("3; epsilon is the price of all")
    assert asked["periods of a unit in a silo, at most"] == "1"
    assert asked["matrix"] != dict(facts_of(other, SCHEMA))["matrix"]
    assert {"stored at a silo", "if a person's data are erased"} <= asked.keys()
    assert "horizon" not in replace(plan, horizon=None).to_dict()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"min_silos": 2}, "min_silos must be 3, all silos of a horizon"),
        ({"fingerprints": (), "profile": "group"}, "requires a network"),
        ({"unit": "row", "max_rows": 1}, "unit of privacy must be a column"),
    ],
)
def test_a_plan_that_cannot_be_renewed_is_refused(
    changed: dict[str, Any], sentence: str, identities: dict[str, Identity]
) -> None:
    plan = job_of(identities).plan
    changed = {**changed, **({"collusion": 0} if changed.get("profile") == "group" else {})}
    with pytest.raises(PlanError, match=sentence):
        replace(plan, **changed)


def test_every_plan_with_a_horizon_shows_its_periods() -> None:
    many = {f"silo-{i}": Identity.new() for i in range(12)}
    rows = tuple((1 << 10,) * (t + 1) for t in range(104))
    plan = replace(job_of(many), horizon=Encoding(rows)).plan
    assert plan.horizon is not None
    Horizon(plan, plan.horizon)


# The protocol ----------------------------------------------------------------------------------


class Crash(Exception):
    """The process of a silo or of the aggregator ends."""


class Stopped(Exception):
    """The coordinator stops, with all that it has received."""


@dataclass
class Fuse:
    """Ends the process at the n-th durable write: before it, or after it."""

    left: int = -1
    after: bool = False

    def around(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Crash
            made = write(*args, **options)
            if self.left == 0:
                raise Crash
            return made

        return wrapped


_WRITES = ("commit", "record", "record_all", "remember")


class Fused:
    """A journal whose writes may be the last of a process."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._fuse.around(found) if name in _WRITES else found


@dataclass
class World:
    """The files of all parties; every call of :meth:`live` is a process of its own for each."""

    folder: Path
    plan: Plan
    identities: Mapping[str, Identity]
    fuse: Fuse = field(default_factory=Fuse)
    uploads: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    answers: MemoryJournal = field(default_factory=MemoryJournal)
    noise: NoiseSource | None = field(default_factory=ZeroNoise)  # None: that of the silos
    stop: Kind | None = None  # the coordinator ends when it has answers of this kind
    refused: dict[str, str] = field(default_factory=dict)
    asked: dict[Kind, bytes] = field(default_factory=dict)  # the last frame of each kind

    def __post_init__(self) -> None:
        for silo in SILOS:
            self.periods(silo).create()
            with self.ledger(silo) as ledger:
                ledger.open_dataset("visits", cap=BUDGET, unit="patient")
                ledger.reserve(
                    dataset="visits",
                    study="default",
                    job=self.plan.run_id,
                    events=self.plan.events(),
                )

    def periods(self, silo: str) -> Periods:
        return Periods(self.folder / silo / "state.db", self.plan)

    def ledger(self, silo: str) -> Any:
        (self.folder / silo).mkdir(exist_ok=True)
        ledger = Ledger(self.folder / silo / "ledger.db")
        return _disposed(ledger)

    def sent(self, silo: str) -> int:
        with self.ledger(silo) as ledger:
            return len(ledger.jobs()[0].rounds)

    def copy(self, silo: str) -> Path:
        """Copy all files of a silo, as they are on its disk."""
        copied = self.folder / f"copy-of-{silo}"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.folder / silo, copied)
        return copied

    def restore(self, silo: str, copied: Path) -> None:
        shutil.rmtree(self.folder / silo)
        shutil.copytree(copied, self.folder / silo)

    def freeze(self, silo: str, period: int, counts: list[int], start: int = 0) -> None:
        path = self.folder / f"{silo}-{period}.csv"
        rows = [f"{silo}-{period}-{start + i},{k}" for i, k in enumerate(np.repeat(KINDS, counts))]
        self.freeze_file(silo, period, rows, path)

    def freeze_file(
        self,
        silo: str,
        period: int,
        rows: list[str],
        path: Path,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        path.write_text("patient,kind\n" + "".join(f"{row}\n" for row in rows))

        def read(admits: Any) -> Any:
            return read_source(path, SCHEMA, columns=["kind"], admits=admits)

        self.periods(silo).freeze(period, silo, read, self.sent(silo), warn)

    def client(self, silo: str, ledger: Ledger) -> Client:
        journal, identity = Fused(ledger, self.fuse), self.identities[silo]
        rest = {"identity": identity, "noise": self.noise}
        return Client(self.plan, silo, self.periods(silo), None, journal, **rest)  # type: ignore[arg-type]

    def live(self) -> int:
        """Run until the next period waits, or the end; return the periods that all have noted."""
        with ExitStack() as stack:
            clients = {
                silo: self.client(silo, stack.enter_context(self.ledger(silo))) for silo in SILOS
            }
            aggregator = Aggregator(self.plan, ZeroNoise(), Fused(self.answers, self.fuse))
            carrier = Watching(InProcess(handlers(clients)), self)
            try:
                for _ in run_rounds(aggregator, carrier, attempts=1):
                    pass
            except RemoteProtocolError as error:
                # The coordinator asks again later.
                if not re.search("cannot begin|cannot be released|confirmations", str(error)):
                    raise
            except Stopped:
                return len(next(iter(clients.values())).sums)
            for silo, client in clients.items():
                frames = [to_bytes(released.words) for released in client.sums]
                note = self.fuse.around(self.periods(silo).note)
                note(frames, self.sent(silo))
            done = {len(client.sums) for client in clients.values()}
            self.sums = {silo: client.sums for silo, client in clients.items()}
        assert len(done) == 1
        return done.pop()

    def totals(self) -> np.ndarray:
        """Return the answer for all periods so far, from the words of one silo."""
        assert self.plan.horizon is not None
        horizon = Horizon(self.plan, self.plan.horizon)
        words = [one.words.view(np.int64) for one in self.sums["north"]]
        released = np.array(words, dtype=np.int64)
        return horizon.latest(released, "so far").results["table_1.counts"]


@dataclass
class Watching:
    """A transport that keeps every upload, and whose party that fails is silent."""

    inner: InProcess
    world: World

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for silo, frame in frames.items():
            self.world.asked[kind_of(frame)] = frame
            try:
                answers |= self.inner.exchange({silo: frame})
            except PlanError as error:
                if "not frozen" not in str(error):
                    raise
                continue
            except ProtocolError as error:
                self.world.refused[silo] = str(error)
                continue
            if kind_of(answers[silo]) == Kind.UPLOAD:
                t = self.world.sent(silo) - 1
                self.world.uploads.setdefault((silo, t), set()).add(answers[silo])
        if self.world.stop in map(kind_of, answers.values()):
            raise Stopped
        return answers


class _disposed:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __enter__(self) -> Ledger:
        return self._ledger

    def __exit__(self, *_: object) -> None:
        self._ledger.dispose()


@pytest.fixture
def world(tmp_path: Path, identities: dict[str, Identity]) -> World:
    return made(tmp_path, identities)


def made(folder: Path, identities: dict[str, Identity], profile: str = "pairwise") -> World:
    return World(folder, job_of(identities, profile=profile).plan, identities)


def counts(period: int) -> list[int]:
    return [10 * period, 3, 1]


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_a_period_waits_for_every_silo_and_is_opened_at_its_end(
    profile: str, tmp_path: Path, identities: dict[str, Identity]
) -> None:
    world = made(tmp_path, identities, profile)
    total = np.zeros(3)
    for period in range(1, PERIODS + 1):
        for silo in SILOS:
            assert world.live() == period - 1  # it is asked for, and somebody has not frozen it
            world.freeze(silo, period, counts(period))
            total += counts(period)
        assert world.live() == period
        np.testing.assert_allclose(world.totals(), total, atol=1e-6)
        words = {one[-1].words.tobytes() for one in world.sums.values()}
        assert len(words) == 1
        # A silo that was asked again and again sent the same bytes.
        assert {len(each) for each in world.uploads.values()} == {1}
    for silo in SILOS:
        with world.ledger(silo) as ledger:
            assert ledger.spent("visits") == pytest.approx(1, abs=1e-3)
            assert ledger.jobs()[0].rounds == (0, 1, 2)


@pytest.mark.parametrize(
    ("n", "after"), [(1, True), (8, False), (20, True), (33, False), (40, True)]
)
def test_a_crash_at_a_write_leads_to_the_same_release_and_one_charge(
    n: int, after: bool, world: World
) -> None:
    assert survives_a_crash(world, 2, n, after)


@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["pairwise", "group"])
@pytest.mark.parametrize("period", range(1, PERIODS + 1))
def test_a_crash_at_any_write_of_any_period(
    period: int, profile: str, tmp_path: Path, identities: dict[str, Identity]
) -> None:
    n, crashed = 0, True
    while crashed:
        n += 1
        for after in (False, True):
            (folder := tmp_path / f"{n}-{after}").mkdir()
            crashed = survives_a_crash(made(folder, identities, profile), period, n, after)
    assert n > 41 if profile == "group" else n > 45


def survives_a_crash(world: World, period: int, n: int, after: bool) -> bool:
    """Let a process end at a write of a period; return False if the period has fewer writes."""
    total, crashed = np.zeros(3), False
    for each in range(1, PERIODS + 1):
        for silo in SILOS:
            world.freeze(silo, each, counts(each))
            total += counts(each)
        if each == period:
            world.fuse = Fuse(n, after)
            try:
                world.live()
            except Crash:
                crashed = True
            world.fuse = Fuse()
        assert world.live() == each
        np.testing.assert_allclose(world.totals(), total, atol=1e-6)
    assert {len(each) for each in world.uploads.values()} == {1}
    for silo in SILOS:
        with world.ledger(silo) as ledger:
            assert ledger.spent("visits") == pytest.approx(1, abs=1e-3)
    return crashed


def test_the_files_of_a_silo_show_the_charge_and_no_more_periods_than_were_sent(
    world: World,
) -> None:
    for silo in SILOS:
        world.freeze(silo, 1, counts(1))
    assert world.live() == 1
    assert world.plan.horizon is not None
    horizon = Horizon(world.plan, world.plan.horizon)
    folder = HorizonFolder(world.folder / "results", horizon, SCHEMA)
    frame = to_bytes(world.sums["north"][0].words)
    for frames, outcome in (([frame], "not verifiable"), ([frame, frame], "refuted")):
        folder.publish(frames, SILOS_NOISE)
        with world.ledger("north") as ledger:
            found = check_horizon(folder.path, TASKS, ledger)
            with pytest.raises(PlanError, match="agents release the periods of a job"):
                folder.release(2, lambda admits: {}, ledger)
        assert found.outcome == outcome
    assert found.reason == "the ledger has sent 1 period, and more are released."


def test_released_periods_are_verified_by_the_signatures_of_all_silos(world: World) -> None:
    for silo in SILOS:
        world.freeze(silo, 1, counts(1))
    assert world.live() == 1
    assert world.plan.horizon is not None
    horizon = Horizon(world.plan, world.plan.horizon)
    folder = HorizonFolder(world.folder / "results", horizon, SCHEMA)
    frames = [to_bytes(world.sums["north"][0].words)]
    folder.publish(frames, SILOS_NOISE)

    def outcome(*silos: str, words: list[bytes] = frames) -> tuple[str, str]:
        files = []
        for silo in silos:
            with world.ledger(silo) as ledger:
                said = ledger.statement(world.plan.run_id, horizon.digest, world.plan.events())
            identity = world.identities[silo]
            signed = SignedStatement.of(said, identity)
            files.append(world.folder / f"{silo}.signed")
            Attestation.of(*horizon.signed_parts(words), silo, signed, identity).save(files[-1])
        found = verify_horizon(folder.path, signatures=files, tasks=TASKS)[1]
        return found.outcome, found.sentence

    assert outcome(*SILOS)[0] == "verified"
    assert outcome()[1].startswith("unsigned; request the files '.signed' of the silos")
    why = "3 silos must have signed it; give their files with --signed. 2 of 3 silos signed: "
    assert outcome("north", "east") == ("not verifiable", f"{why}north, east.")
    assert outcome(*SILOS, words=[*frames, *frames])[0] == "not verifiable"
    folder.publish([to_bytes(world.sums["north"][0].words + np.uint64(1))], SILOS_NOISE)
    assert outcome(*SILOS)[0] == "not verifiable"


def test_a_client_refuses_records_for_a_horizon_and_frozen_sums_for_other_plans(
    world: World,
) -> None:
    rest = {"identity": world.identities["north"]}
    for plan, records in (
        (world.plan, [np.zeros((4, 1), dtype=np.int32)]),
        (world.plan, lambda t, state: []),
        (replace(world.plan, horizon=None), world.periods("north")),
    ):
        with pytest.raises(LocalProtocolError, match="must have frozen sums for a plan with"):
            Client(plan, "north", records, None, MemoryJournal(), **rest)  # type: ignore[arg-type]


# The state of a silo -----------------------------------------------------------------------------


def test_periods_are_frozen_in_order_and_once(world: World) -> None:
    with pytest.raises(PlanError, match="period must be 1, the next one, got 2"):
        world.freeze("north", 2, counts(1))
    world.freeze("north", 1, counts(1))
    world.freeze("north", 1, counts(1))
    with pytest.raises(PlanError, match="period must be 1, the next one, got 2"):
        world.freeze("north", 2, counts(2))
    with pytest.raises(Exception, match="was frozen with other records"):
        world.freeze("north", 1, counts(2))
    for silo in SILOS:
        world.freeze(silo, 1, counts(1))
    world.stop = Kind.UPLOAD
    world.live()
    with pytest.raises(PlanError, match="period 1 is sent and not released yet"):
        world.freeze("north", 2, counts(2))


def test_an_owner_hears_of_records_that_an_earlier_period_has(
    tmp_path: Path, identities: dict[str, Identity]
) -> None:
    plan = replace(job_of(identities), horizon=Encoding.of(PERIODS, 2)).plan
    world, said = World(tmp_path, plan, identities), list[str]()
    path = world.folder / "again.csv"
    for period in (1, 2):
        for silo in SILOS:
            world.freeze_file(silo, period, ["anna,burn"], path, said.append)
        assert world.live() == period
        assert len(said) == (0 if period == 1 else len(SILOS))
    assert "gave the same records, with the same 'patient', in an earlier period" in said[0]


def test_a_period_is_not_frozen_by_other_code_than_that_of_the_plan(world: World) -> None:
    assert world.plan.code is not None
    plan = replace(world.plan, code=replace(world.plan.code, digest="0" * 64))
    job: Any = SimpleNamespace(id=plan.run_id, state=SiloState.RUNNING)
    site: Any = None  # is not looked at
    with pytest.raises(PlanError, match="use the same code at every party"):
        freeze(site, job, plan, 1, lambda admits: pytest.fail("records were read"), said_to_none)


def test_a_period_that_comes_with_other_words_is_an_error(world: World) -> None:
    for silo in SILOS:
        world.freeze(silo, 1, counts(1))
    assert world.live() == 1
    words = world.sums["north"][0].words
    world.periods("north").note([to_bytes(words)], 1)
    with pytest.raises(LedgerError, match="was released with other noise than the ledger has"):
        world.periods("north").note([to_bytes(words + np.uint64(1))], 1)


def said_to_none(sentence: str) -> None:
    raise AssertionError(sentence)


def test_a_person_counts_in_no_more_periods_than_were_priced(world: World) -> None:
    for period in (1, 2):
        for silo in SILOS:
            rows = ["anna,burn", f"{silo}-{period},cut"]
            world.freeze_file(silo, period, rows, world.folder / f"{silo}-{period}.csv")
        assert world.live() == period
    np.testing.assert_allclose(world.totals(), [3, 6, 0], atol=1e-6)


def test_a_copy_of_a_state_or_of_a_ledger_ends_the_horizon(world: World) -> None:
    for silo in SILOS:
        world.freeze(silo, 1, counts(1))
    path = world.folder / "north" / "state.db"
    with closing(Arrivals(path, world.plan.digest.hex(), 1)) as state:
        assert state.frozen == 1
    assert world.live() == 1
    path.unlink()
    with pytest.raises(LedgerError, match="is missing, and earlier releases hold its sums"):
        world.freeze("north", 2, counts(2))
    world.periods("north").create()
    with pytest.raises(LedgerError, match="0 periods, and its ledger 1: the state was restored"):
        world.freeze("north", 2, counts(2))
    with pytest.raises(LedgerError, match="the ledger was restored from a copy"):
        world.periods("east").freeze(2, "east", lambda admits: None, sent=0)  # type: ignore[arg-type,return-value]


# Copies of all files of a silo ------------------------------------------------------------------


def until_sent(world: World, restored_at: str) -> Path:
    """Let all silos send their first period; return a copy of a silo from an earlier time."""
    assert world.live() == 0  # they agree on keys
    copied = world.copy("north")
    for silo in SILOS:
        world.freeze(silo, 1, counts(1))
    if restored_at == "frozen":
        copied = world.copy("north")
    world.stop = Kind.UPLOAD
    world.live()
    world.stop = None
    return world.copy("north") if restored_at == "sent" else copied


def uploaded(world: World) -> list[Integers]:
    """Return the vectors that the coordinator has of the first period of the copied silo."""
    frames = sorted(world.uploads["north", 0])
    messages = [decode(world.plan, frame) for frame in frames]
    return [to_integers(one.elements) for one in messages if isinstance(one, Upload)]


def sums_of(world: World, silo: str) -> Integers:
    """Return what a silo sends of its frozen first period, before noise and masks."""
    assert world.plan.horizon is not None
    stored = world.periods(silo)
    return world.plan.horizon.payload(stored.frozen(0, world.plan.length(0), stored.nonce(0)))


def unbound(plan: Plan, nonces: object = ()) -> str:
    """Return the name of pads as it was before they depended on nonces."""
    return plan.digest.hex()


def shared_noise(client: Client, t: int) -> Integers:
    """Return a share of noise that does not depend on the nonce of the frozen sums."""
    key = client._journal.secret(client.plan.run_id)
    block = client.plan.blocks(t)[0]
    return ShareNoise(key).draw("gaussian", client.plan.share_scale(block), client.plan.length(t))


def frozen_again(world: World) -> Integers:
    """Send other sums of a period from a restored silo; return the exact difference of the sums."""
    copied = until_sent(world, "before")
    first = sums_of(world, "north")
    world.restore("north", copied)
    world.freeze("north", 1, [1, 0, 30])
    # Forgets the nonces, as a coordinator may that wants a second vector.
    recorded = world.answers._answers[world.plan.run_id]
    assert recorded.pop(b"begun/0")
    assert world.live() == 0
    return sums_of(world, "north") - first


def differences_seen(world: World, exact: Integers) -> tuple[bool, ...]:
    """Return for each word whether the difference of two vectors is that of the sums."""
    one, other = uploaded(world)
    return tuple(abs(one - other) == abs(exact))


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_sums_that_are_frozen_again_leave_under_other_masks_and_are_not_released(
    profile: str, tmp_path: Path, identities: dict[str, Identity]
) -> None:
    world = made(tmp_path, identities, profile)
    exact = frozen_again(world)
    assert exact.any()
    assert not any(differences_seen(world, exact))  # false with probability 2^-60
    for silo in ("east", "south"):
        assert "period 1 was begun with other nonces of ['north'] before" in world.refused[silo]
        assert "Cancel the job" in world.refused[silo]
    with world.ledger("east") as ledger:
        assert ledger.jobs()[0].rounds == (0,)


def test_without_the_nonces_their_exact_difference_could_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.noise = None
    monkeypatch.setattr("cloister.protocol.client.session_of", unbound)
    monkeypatch.setattr(Client, "_share_of_noise", shared_noise)
    exact = frozen_again(world)
    assert all(differences_seen(world, exact))


def test_sums_that_are_frozen_again_have_other_noise_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.noise = None
    monkeypatch.setattr("cloister.protocol.client.session_of", unbound)
    exact = frozen_again(world)
    # Two shares are equal in a word with probability below 1 / (2 sigma).
    scale = world.plan.share_scale(world.plan.blocks(0)[0])
    assert (1 / (2 * scale)) ** exact.size < 1e-9
    assert not all(differences_seen(world, exact))


def test_a_coordinator_that_keeps_the_nonces_tells_a_restored_silo(world: World) -> None:
    copied = until_sent(world, "before")
    world.restore("north", copied)
    assert world.live() == 0
    world.freeze("north", 1, [1, 0, 30])
    assert world.live() == 0
    assert "'north' began period 1 with other sums before" in world.refused["north"]
    assert "restored from a copy" in world.refused["north"]
    assert len(world.uploads["north", 0]) == 1


def test_a_restored_silo_confirms_no_sum_that_it_did_not_send(world: World) -> None:
    copied = until_sent(world, "before")
    world.stop = Kind.SHARES
    world.live()
    world.stop = None
    world.restore("north", copied)
    world.freeze("north", 1, [1, 0, 30])
    assert world.live() == 0
    assert "'north' is in the sum of period 1 and has not sent it" in world.refused["north"]


@pytest.mark.parametrize("profile", ["pairwise", "group"])
@pytest.mark.parametrize("restored_at", ["frozen", "sent"])
def test_a_silo_restored_after_it_froze_sends_the_same_bytes(
    restored_at: str, profile: str, tmp_path: Path, identities: dict[str, Identity]
) -> None:
    world = made(tmp_path, identities, profile)
    copied = until_sent(world, restored_at)
    world.restore("north", copied)
    assert world.live() == 1
    assert not world.refused
    assert {len(each) for each in world.uploads.values()} == {1}
    np.testing.assert_allclose(world.totals(), 3 * np.array(counts(1)), atol=1e-6)


def test_one_frozen_sum_has_one_noise_whatever_other_silos_say(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.noise = None
    monkeypatch.setattr("cloister.protocol.client.session_of", unbound)  # equal masks show it
    world.restore("north", until_sent(world, "frozen"))
    # A silo that signs a second nonce makes north, which forgot the first, send a second vector.
    (first,) = uploaded(world)
    (second,) = (to_integers(one.elements) for one in [north_opened(world, another(world))])
    np.testing.assert_array_equal(first, second)


def another(world: World) -> tuple[Begun, ...]:
    """Return the nonces of the first period, but another one of the silo east."""
    unsigned = Begun(0, "east", bytes(32))
    signature = world.identities["east"].sign(BEGUN_LABEL, *begun_signed(world.plan, unsigned))
    lied = replace(unsigned, signature=signature)
    return tuple(lied if one.sender == "east" else one for one in opening(world).begun)


def opening(world: World) -> Open:
    message = decode(world.plan, world.asked[Kind.OPEN])
    assert isinstance(message, Open)
    return message


def north_opened(world: World, begun: tuple[Begun, ...]) -> Upload:
    """Return the upload of a new process of the silo north for these nonces."""
    with world.ledger("north") as ledger:
        frame = encode(world.plan, replace(opening(world), begun=begun))
        upload = decode(world.plan, world.client("north", ledger).handle(frame))
    assert isinstance(upload, Upload)
    return upload


def test_a_silo_is_bound_to_the_first_nonces_of_a_period(world: World) -> None:
    until_sent(world, "sent")
    with pytest.raises(RemoteProtocolError, match=r"with other nonces of \['east'\] before"):
        north_opened(world, another(world))
    assert to_bytes(north_opened(world, opening(world).begun).elements) == to_bytes(
        to_words(uploaded(world)[0])
    )


def test_a_silo_refuses_nonces_that_are_not_signed(world: World) -> None:
    copied = until_sent(world, "frozen")
    world.restore("north", copied)
    begun = opening(world).begun
    forged = replace(begun[1], nonce=bytes(32))
    moved = replace(begun[2], sender="east")
    for one in (forged, moved):
        with pytest.raises(RemoteProtocolError, match="nonce of 'east' in period 1 is not signed"):
            north_opened(world, (begun[0], one, begun[2]))
    with pytest.raises(RemoteProtocolError, match="nonce of 'north' in period 1 is not signed"):
        north_opened(world, (begun[1], begun[0], begun[2]))
    assert not world.sent("north")


def test_the_nonces_are_part_of_the_frame_that_opens_a_period(world: World) -> None:
    until_sent(world, "sent")
    plan, message = world.plan, opening(world)
    begin = decode(plan, world.asked[Kind.BEGIN])
    assert begin == Begin(0)
    assert decode(plan, encode(plan, message)) == message
    for changed in ((), message.begun[:2], message.begun * 2):
        with pytest.raises(RemoteProtocolError):
            decode(plan, encode(plan, replace(message, begun=changed, confirmations=())))
    # Without a horizon the frame is what it was.
    other = replace(plan, horizon=None)
    assert decode(other, encode(other, Open(0))) == Open(0)


def test_a_state_restored_alone_leaves_the_job(world: World) -> None:
    assert world.live() == 0
    copied = world.copy("north")
    world.freeze("north", 1, counts(1))
    assert world.live() == 0  # the nonce is sent, and nothing else
    shutil.copy(copied / "state.db", world.folder / "north" / "state.db")
    world.freeze("north", 1, [1, 0, 30])
    for silo in ("east", "south"):
        world.freeze(silo, 1, counts(1))
    assert world.live() == 0
    assert "'north' began period 1 with other sums before" in world.refused["north"]
    assert ("north", 0) not in world.uploads
