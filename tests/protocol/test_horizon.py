"""A horizon over a network: one job with a round for each period, at one price, through crashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloister.app.arrivals import Arrivals
from cloister.app.horizon import Horizon, HorizonFolder
from cloister.app.horizon_check import check_horizon
from cloister.app.in_process import InProcess, handlers
from cloister.app.job import Job, Trust, derive_plan
from cloister.app.question import differences, facts_of
from cloister.core.errors import (
    LedgerError,
    LocalProtocolError,
    PlanError,
    RemoteProtocolError,
)
from cloister.data import read_source
from cloister.data.schema import Schema
from cloister.federation.silo.periods import Periods, freeze
from cloister.hazmat.ring import to_bytes
from cloister.hazmat.signing import Identity
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.events import HorizonEvent
from cloister.privacy.horizon import Encoding
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import SILOS_NOISE
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.lifecycle import SiloState
from cloister.protocol.messages import kind_of
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

    def live(self) -> int:
        """Run until the next period waits, or the end; return the periods that all have noted."""
        with ExitStack() as stack:
            clients = {}
            for silo in SILOS:
                ledger = stack.enter_context(self.ledger(silo))
                clients[silo] = Client(
                    self.plan,
                    silo,
                    self.periods(silo),
                    None,
                    Fused(ledger, self.fuse),
                    identity=self.identities[silo],
                    noise=ZeroNoise(),
                )
            aggregator = Aggregator(self.plan, ZeroNoise(), Fused(self.answers, self.fuse))
            carrier = Watching(InProcess(handlers(clients)), self)
            try:
                for _ in run_rounds(aggregator, carrier, attempts=1):
                    pass
            except RemoteProtocolError as error:
                if "cannot be released" not in str(error):
                    raise
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
            try:
                answers |= self.inner.exchange({silo: frame})
            except PlanError as error:
                if "not frozen" not in str(error):
                    raise
                continue
            if kind_of(answers[silo]) == Kind.UPLOAD:
                t = self.world.sent(silo) - 1
                self.world.uploads.setdefault((silo, t), set()).add(answers[silo])
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


@pytest.mark.parametrize(("n", "after"), [(1, True), (8, False), (20, True), (33, False)])
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
    assert n > 34 if profile == "group" else n > 38


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
    assert found.reason == "the ledger has sent 1 periods, and more are released."


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
    assert world.live() == 0
    # Its upload may have left, but the release did not come.
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
