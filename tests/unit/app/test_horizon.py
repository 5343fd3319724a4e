"""A horizon over files: exact answers, one charge, and the same bytes after every crash."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.app.arrivals import Arrivals
from cloister.app.horizon import Horizon, HorizonFolder
from cloister.app.horizon_report import horizon_document, noise_table, present_horizon
from cloister.app.job import Job
from cloister.app.payment import Account
from cloister.core.arrays import Integers
from cloister.core.errors import DataError, LedgerError, PlanError
from cloister.data import read_source
from cloister.data.records import Records
from cloister.data.schema import Column, Schema
from cloister.data.units import Admits
from cloister.privacy.budget import Budget
from cloister.privacy.horizon import Encoding, answers, kept
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.progress import Progress
from cloister.protocol.task import PublicFacts
from cloister.tasks import TASKS, installed
from cloister.tasks.options import design
from cloister.testing import SimulatedNoise, ZeroNoise, toy_plan

KINDS = ("burn", "cut", "fall")
SCHEMA = Schema(
    dataset="visits",
    unit="patient",
    max_rows=1,
    columns=(Column(name="kind", type="category", categories=KINDS),),
)
SILOS = ("north", "south")
Frames = Mapping[str, pd.DataFrame]


def horizon_of(periods: int, max_periods: int = 1, **options: Any) -> Horizon:
    given = {"task": TASKS["tabulate"], "options": {"tables": [["kind"]]}, "schema": SCHEMA}
    job = Job(silos=SILOS, epsilon=1.0, nominal_n=10**4, **{**given, **options})
    return Horizon(job.plan, Encoding.of(periods, max_periods))


def arrivals(period: int, silo: str) -> pd.DataFrame:
    draw = np.random.default_rng([period, SILOS.index(silo)])
    kinds = draw.choice(KINDS, size=draw.integers(5, 20))
    return pd.DataFrame(
        {"patient": [f"{silo}-{period}-{i}" for i in range(len(kinds))], "kind": kinds}
    )


def reader(
    frames: Frames, schema: Schema = SCHEMA
) -> Callable[[Mapping[str, Admits]], dict[str, Records]]:
    return lambda admits: {
        silo: read_source(frame, schema, admits=admits.get(silo)) for silo, frame in frames.items()
    }


def of_period(period: int) -> Callable[[Mapping[str, Admits]], dict[str, Records]]:
    return reader({silo: arrivals(period, silo) for silo in SILOS})


class Desk:
    """A horizon in a folder, with its ledger."""

    def __init__(self, path: Path, horizon: Horizon, schema: Schema = SCHEMA) -> None:
        path.mkdir(exist_ok=True)
        self.path, self.file = path / "horizon", path / "owner.ledger"
        ledger = Ledger(self.file)
        ledger.open_dataset("visits", cap=Budget(1.0, 1e-6), unit="patient")
        HorizonFolder.create(self.path, horizon, schema, Account(ledger, "visits"))
        ledger.dispose()

    @property
    def folder(self) -> HorizonFolder:
        return HorizonFolder.load(self.path, TASKS)

    def release(self, period: int, read: Any = None, noise: NoiseSource | None = None) -> Integers:
        ledger = Ledger(self.file)
        try:
            source = noise or SimulatedNoise(period)
            return self.folder.release(period, read or of_period(period), ledger, noise=source)
        finally:
            ledger.dispose()

    def charges(self) -> tuple[int, float]:
        """Return the charged periods, and the cost of the data set."""
        ledger = Ledger(self.file)
        (job,) = ledger.jobs("visits")
        cost = ledger.cost("visits").mu_squared
        ledger.dispose()
        return len(job.rounds), cost


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk", horizon_of(4))


def counts(*periods: int) -> list[int]:
    kinds = pd.concat([arrivals(t, silo) for t in periods for silo in SILOS])["kind"]
    return [int((kinds == kind).sum()) for kind in KINDS]


def test_answers_are_those_of_the_records_of_their_periods(desk: Desk) -> None:
    for period in (1, 2, 3):
        released = desk.release(period, noise=ZeroNoise())
    horizon = desk.folder.horizon
    for name, periods in (("so far", (1, 2, 3)), ("latest", (3,)), ("last 4", (1, 2, 3))):
        found = horizon.latest(released, name).results["table_1.counts"]
        assert found == pytest.approx(counts(*periods), abs=1e-3)
    middle = horizon.answer(released, np.array([0.0, 1.0, 0.0]))
    assert middle.results["table_1.counts"] == pytest.approx(counts(2), abs=1e-3)


def test_the_interval_of_an_answer_has_the_noise_of_its_weights(desk: Desk) -> None:
    horizon = desk.folder.horizon
    (block,) = horizon.plan.blocks(0)
    change = (block.l2_squared * horizon.encoding.sensitivity_squared) ** 0.5
    unit = horizon.scale(block) / change  # noise for a change of one record
    released = np.zeros((3, block.size), dtype=np.int64)
    for name in ("so far", "latest"):
        noise = horizon.latest(released, name).results["table_1.noise"][0]
        expected = unit * horizon.encoding.noises(answers(4, name))[2]
        assert noise == pytest.approx(expected, rel=1e-3)


def test_all_periods_have_one_price_and_end_with_nothing_kept(desk: Desk) -> None:
    _, before = desk.charges()
    for period in (1, 2, 3, 4):
        released = desk.release(period)
        assert desk.charges() == (period, before)
    assert desk.folder.horizon.latest(released, "so far").epsilon() == pytest.approx(1.0, abs=1e-3)
    for silo in SILOS:
        state = Arrivals(desk.folder._state(silo), desk.folder.horizon.digest, 1)
        assert (state.frozen, state.key) == (0, bytes(32))
    assert (desk.release(4) == released).all()
    with pytest.raises(PlanError, match=r"period must be in \[1, 4\], got 5; 4 of 4"):
        desk.release(5)


def test_a_report_of_simulated_noise_has_no_guarantee(desk: Desk) -> None:
    desk.release(1)
    released = desk.release(2, noise=DiscreteNoise())
    _, shown = present_horizon(desk.folder.horizon, released, desk.folder.noise)
    assert shown.warnings
    _, shown = present_horizon(desk.folder.horizon, released)
    assert not shown.warnings


def test_a_period_is_released_once_and_in_order(desk: Desk) -> None:
    first = desk.release(1)
    assert (desk.release(1, noise=SimulatedNoise(99)) == first).all()
    with pytest.raises(PlanError, match="each follows the one before"):
        desk.release(3)


# Units ----------------------------------------------------------------------------------------


def same_person(periods: int) -> list[Frames]:
    """Return arrivals in which one person comes in every period."""
    returning = pd.DataFrame({"patient": ["Meyer"], "kind": ["fall"]})
    return [
        {"north": pd.concat([returning, arrivals(t, "north")]), "south": arrivals(t, "south")}
        for t in range(1, periods + 1)
    ]


@pytest.mark.parametrize("max_periods", [1, 2, 3])
def test_arrivals_beyond_the_public_number_are_left_out(tmp_path: Path, max_periods: int) -> None:
    desk = Desk(tmp_path, horizon_of(4, max_periods))
    for period, frames in enumerate(same_person(4), start=1):
        if period == 4:
            break  # the last period deletes the states
        released = desk.release(period, reader(frames), ZeroNoise())
    falls = desk.folder.horizon.latest(released, "so far").results["table_1.counts"][2]
    assert falls == pytest.approx(counts(1, 2, 3)[2] + min(max_periods, 3), abs=1e-3)


def squared_change(tmp_path: Path, horizon: Horizon) -> int:
    """Return the squared change of all releases by a person who comes in every period."""
    with_person, without = (Desk(tmp_path / name, horizon) for name in ("with", "without"))
    for period, frames in enumerate(same_person(4), start=1):
        one = with_person.release(period, reader(frames), ZeroNoise())
        other = without.release(period, noise=ZeroNoise())
    return int(((one - other) ** 2).sum())


@pytest.mark.parametrize("max_periods", [1, 2])
def test_a_person_in_every_period_changes_all_releases_by_the_bound(
    tmp_path: Path, max_periods: int
) -> None:
    horizon = horizon_of(4, max_periods)
    (block,) = horizon.plan.blocks(0)
    bound = block.l2_squared * horizon.encoding.sensitivity_squared
    assert 0 < squared_change(tmp_path, horizon) <= bound


def forgets_counts(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Arrivals, "admits", lambda state, unit: True)


def counts_periods_of_the_past_alone(patched: pytest.MonkeyPatch) -> None:
    freeze = Arrivals.freeze

    def late(state: Arrivals, period: int, content: bytes, sums: Integers) -> None:
        state._arrived.clear()
        freeze(state, period, content, sums)

    patched.setattr(Arrivals, "freeze", late)


def sends_every_sum_whole(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Encoding, "payload", lambda encoding, sums: sums.sum(axis=0) << 10)


@pytest.mark.parametrize(
    "mutant", [forgets_counts, counts_periods_of_the_past_alone, sends_every_sum_whole]
)
def test_a_mutant_that_exceeds_the_bound_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[Any], None]
) -> None:
    horizon = horizon_of(4)
    (block,) = horizon.plan.blocks(0)
    mutant(monkeypatch)
    bound = block.l2_squared * horizon.encoding.sensitivity_squared
    assert squared_change(tmp_path, horizon) > bound


def test_every_period_draws_noise_of_the_whole_scale(desk: Desk) -> None:
    drawn: list[tuple[str, int, int]] = []

    class Seen(SimulatedNoise):
        def draw(self, kind: Any, scale: int, size: int) -> Integers:
            drawn.append((kind, scale, size))
            return super().draw(kind, scale, size)

    horizon, source = desk.folder.horizon, Seen(7)
    for period in (1, 2, 3):
        released = desk.release(period, noise=source)
    (block,) = horizon.plan.blocks(0)
    assert drawn == [("gaussian", horizon.scale(block), block.size)] * 3
    exact = [horizon.encoding.payload(sums_of(t)) for t in (1, 2, 3)]
    fresh = SimulatedNoise(7)
    for t in range(3):
        assert (released[t] - exact[t] == fresh.draw("gaussian", *drawn[t][1:])).all()


def sums_of(periods: int) -> Integers:
    return np.array([counts(t) for t in range(1, periods + 1)]) << 16


def test_a_state_names_nobody(desk: Desk) -> None:
    desk.release(1, reader(same_person(1)[0]))
    for file in desk.path.rglob("*"):
        if file.is_file():
            assert b"Meyer" not in file.read_bytes()


# Crashes --------------------------------------------------------------------------------------


def kill_at(number: int) -> None:
    """End this process at a write, counted from 0; each write has a point before and after it."""
    seen = iter(range(10**6))

    def point() -> None:
        if next(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(holder: type, name: str) -> None:
        write = getattr(holder, name)

        def written(*args: Any, **kwargs: Any) -> Any:
            point()
            result = write(*args, **kwargs)
            point()
            return result

        setattr(holder, name, written)

    for holder, name in (
        (Arrivals, "freeze"),
        (Arrivals, "_link"),  # inside the transaction of `freeze`
        (Ledger, "commit"),
        (Ledger, "_record_frame"),  # inside the transaction of `commit`
        (Ledger, "close"),
        (Ledger, "forget_frames"),
        (Arrivals, "note"),
        (Arrivals, "forget"),
        (HorizonFolder, "_write"),
    ):
        around(holder, name)


def crash(desk: Desk, period: int, number: int) -> bool:
    """Release a period in a process that is killed at a write; False if it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            kill_at(number)
            desk.release(period)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def crashes(tmp_path: Path, periods: int, crashing: tuple[int, ...]) -> Iterator[int]:
    """Kill every write of some periods; yield the number of kills of each of them."""
    horizon = horizon_of(periods)
    calm, desk = Desk(tmp_path / "calm", horizon), Desk(tmp_path / "desk", horizon)
    for period in range(1, periods + 1):
        expected = calm.release(period)
        if period not in crashing:
            desk.release(period)
            continue
        before, number = tmp_path / "before", 0
        shutil.rmtree(before, ignore_errors=True)
        shutil.copytree(tmp_path / "desk", before)
        while crash(desk, period, number):
            # Once a frame is durable, other noise must not change it.
            done = desk.charges()[0] == period
            noise = SimulatedNoise(-1 % 2**32) if done else None
            assert (desk.release(period, noise=noise) == expected).all(), number
            assert desk.charges() == calm.charges()
            shutil.rmtree(tmp_path / "desk")
            shutil.copytree(before, tmp_path / "desk")
            number += 1
        desk.release(period)
        yield number


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_kill_at_every_write_of_a_period_changes_nothing(tmp_path: Path) -> None:
    (kills,) = crashes(tmp_path, 3, (2,))
    assert kills >= 16


@pytest.mark.nightly
def test_a_kill_at_every_write_of_a_year_changes_nothing(tmp_path: Path) -> None:
    kills = list(crashes(tmp_path, 52, (1, 26, 52)))
    assert len(kills) == 3
    assert min(kills) >= 16


def interrupted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze the first period, and stop before its draw."""

    def stop(*args: object, **kwargs: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            desk.release(1)


def test_a_frozen_period_keeps_its_records(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(desk, monkeypatch)
    with pytest.raises(DataError, match="frozen with other records"):
        desk.release(1, of_period(2))
    assert desk.charges()[0] == 0
    # The state that a sum was computed from may differ by now; the sum is the stored one.
    monkeypatch.setattr(TASKS["tabulate"], "contribute", lambda *args: 1 / 0)
    desk.release(1)


def test_a_sum_is_never_computed_again(desk: Desk) -> None:
    desk.release(1)
    state = Arrivals(desk.folder._state("north"), desk.folder.horizon.digest, 1)
    with pytest.raises(LedgerError, match="never computed again"):
        state.freeze(0, b"other", np.zeros(3, dtype=np.int64))


# Copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "restored", ["horizon/silos/north.db", "owner.ledger", "owner.ledger.head"]
)
def test_a_restored_copy_ends_the_horizon(tmp_path: Path, restored: str) -> None:
    """The ledger is restored with its head, so that it finds nothing by itself."""
    desk = Desk(tmp_path / "desk", horizon_of(4))
    desk.release(1)
    shutil.copytree(tmp_path / "desk", tmp_path / "copy")
    desk.release(2)
    for end in ("", "-wal", "-shm", *([".head"] * restored.endswith("ledger"))):
        old = tmp_path / "copy" / f"{restored}{end}"
        (tmp_path / "desk" / f"{restored}{end}").unlink(missing_ok=True)
        if old.exists():
            shutil.copy(old, tmp_path / "desk" / f"{restored}{end}")
    if restored.endswith("head"):
        desk.release(2)  # an older head is in the chain, so nothing is lost
        return
    with pytest.raises(LedgerError, match="restored from a copy"):
        desk.release(2, noise=SimulatedNoise(99))
    with pytest.raises((LedgerError, PlanError), match=r"restored from a copy|each follows"):
        desk.release(3)


def test_releases_show_that_all_states_and_the_ledger_were_restored(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk", horizon_of(4))
    desk.release(1)
    shutil.copytree(tmp_path / "desk", tmp_path / "copy")
    desk.release(2)
    shown = (desk.path / "released.json").read_bytes()
    shutil.rmtree(tmp_path / "desk")
    shutil.copytree(tmp_path / "copy", tmp_path / "desk")
    (desk.path / "released.json").write_bytes(shown)
    with pytest.raises(LedgerError, match=r"ledger has 1 periods, and 'released.json' has more"):
        desk.release(2, noise=SimulatedNoise(99))
    assert (desk.path / "released.json").read_bytes() == shown
    assert desk.charges()[0] == 1


def test_a_changed_or_strange_state_is_refused(desk: Desk, tmp_path: Path) -> None:
    desk.release(1)
    other = Desk(tmp_path / "other", horizon_of(5))
    state = desk.folder._state("north")
    shutil.copy(other.folder._state("north"), tmp_path / "strange.db")
    with pytest.raises(LedgerError, match="belongs to another horizon"):
        Arrivals(tmp_path / "strange.db", desk.folder.horizon.digest, 1)
    with Arrivals(state, desk.folder.horizon.digest, 1)._open() as connection:
        connection.execute("UPDATE periods SET sums = zeroblob(24)")
    with pytest.raises(LedgerError, match=r"sum of period 1 .* was changed"):
        desk.release(2)
    state.unlink()
    with pytest.raises(LedgerError, match=r"state .* is missing"):
        desk.release(2)


def test_a_ledger_without_the_horizon_is_refused(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not in this ledger"):
        desk.folder.release(1, of_period(1), Ledger(tmp_path / "empty"))


# Plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": TASKS["count"], "options": {"mechanism": "laplace"}}, "must have Gaussian noise"),
        (
            {"schema": Schema(dataset="v", unit="row", columns=SCHEMA.columns)},
            "unit of privacy must be a column",
        ),
        (
            {
                "task": TASKS["fastlloyd"],
                "options": {"n_clusters": 2, "rounds": 3, "estimate": False},
                "schema": Schema(
                    dataset="v",
                    unit="patient",
                    max_rows=1,
                    columns=(Column(name="x", type="number", min=0.0, max=1.0),),
                ),
            },
            "has 3 rounds",
        ),
    ],
)
def test_a_job_that_is_no_horizon_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        horizon_of(4, **options)


@pytest.mark.parametrize("name", ["fastlloyd", "glloyd"])
def test_centres_move_only_where_sums_do_not_depend_on_them(name: str) -> None:
    column = Column(name="x", type="number", min=0.0, max=1.0)
    options = {"n_clusters": 2, "rounds": 1} | ({"estimate": False} if name[0] == "f" else {})
    still = horizon_of(
        4,
        task=TASKS[name],
        options=options,
        schema=Schema(dataset="v", unit="patient", max_rows=1, columns=(column,)),
    )
    if name == "glloyd":
        assert replace(still, keep=0.8).keep == 0.8
        return
    with pytest.raises(PlanError, match="do not add up over periods; use 'glloyd'"):
        replace(still, keep=0.8)


@pytest.mark.parametrize("name", ["describe", "naive-bayes", "scorecard", "survival", "table1"])
def test_a_task_of_one_round_has_a_horizon(name: str) -> None:
    kind, budget = installed()[name], Budget(4.0, 1e-6)
    columns = kind.example.columns
    facts = PublicFacts(n_features=len(columns), nominal_n=2000, budget=budget, columns=columns)
    task = design(kind, facts, kind.example.options)
    plan = toy_plan(task, silos=1, budget=budget, unit="patient", nominal_n=2000)
    horizon, start = Horizon(plan, Encoding.of(2)), Progress(plan).state
    draw, sums = np.random.default_rng(1), []
    for _ in range(2):
        records = draw.integers(-(1 << 16), 1 << 16, (500, len(columns)), dtype=np.int32)
        sums.append(task.contribute(0, start, records))
    released = np.array([horizon.encoding.payload(np.array(sums[:t])) for t in (1, 2)])
    blocks, _ = horizon._blocks(released, np.ones(2))
    assert (np.concatenate([block.values.ravel() for block in blocks.values()]) == sum(sums)).all()
    assert horizon.latest(released, "so far").results


def test_persons_who_return_widen_population_intervals_and_are_not_tested() -> None:
    """Two records of a person may be alike, as several rows of a person in one job."""
    once, twice = horizon_of(12), horizon_of(12, 2)

    def released(horizon: Horizon) -> Integers:
        sums = np.full((12, 3), 400 << 16)
        return np.array([horizon.encoding.payload(sums[: t + 1]) for t in range(12)])

    def width(horizon: Horizon, name: str) -> float:
        results = horizon.latest(released(horizon), name).results
        low, high = (results[f"table_1.counts_population_{end}"][0] for end in ("low", "high"))
        return float(high - low)

    assert width(twice, "so far") > 1.2 * width(once, "so far")
    assert once.changes(released(once))
    assert not twice.changes(released(twice))
    _, shown = present_horizon(twice, released(twice))
    assert any("may have 2 records" in remark for remark in shown.remarks)


def test_centres_move_with_sums_that_are_partly_kept(tmp_path: Path) -> None:
    """Each period sums by the centres before it, and divides sums and counts that fade."""
    schema = Schema(
        dataset="visits",
        unit="patient",
        max_rows=1,
        columns=(Column(name="x", type="number", min=-1.0, max=1.0),),
    )
    options = {"n_clusters": 2, "rounds": 1}
    plan = horizon_of(4, task=TASKS["glloyd"], options=options, schema=schema).plan
    horizon = Horizon(plan, Encoding.best(kept(4, 0.5)), 0.5)
    desk = Desk(tmp_path, horizon, schema)
    places = [(-0.8, 0.2), (-0.6, 0.4), (-0.4, 0.6)]
    for period, centres in enumerate(places, start=1):
        frames = {
            silo: pd.DataFrame(
                {"patient": [f"{period}{silo}{i}" for i in range(40)], "x": centres * 20}
            )
            for silo in SILOS
        }
        read = reader(frames, schema)
        released = desk.release(period, read, ZeroNoise())
    weights = np.array([0.25, 0.5, 1.0])
    found = horizon.latest(released, "now").results["centres"]
    expected = weights @ np.array(places) / weights.sum()
    assert np.sort(found, axis=None) == pytest.approx(expected, abs=0.01)
    sizes = horizon.latest(released, "now").results["sizes"]
    assert sizes == pytest.approx([40 * weights.sum()] * 2, rel=0.01)
    release, shown = present_horizon(horizon, released)
    assert len(release.history) == 4
    assert shown.displays
    assert set(horizon_document(horizon, released)["results"]) == {"now"}


def test_a_report_has_the_course_and_warns_of_a_change(tmp_path: Path) -> None:
    horizon = horizon_of(12)
    draw, size = np.random.default_rng(3), horizon.plan.length(0)
    shares = [(0.4, 0.4, 0.2)] * 8 + [(0.2, 0.4, 0.4)] * 4
    sums = np.array([draw.multinomial(400, p) for p in shares]) << 16
    released = np.array(
        [
            horizon.encoding.payload(sums[: t + 1]) + horizon.noise(SimulatedNoise(t))
            for t in range(12)
        ]
    )
    assert released.shape == (12, size)
    _, shown = present_horizon(horizon, released)
    assert [curve.title for curve in shown.course] == [
        "Records by kind, all records so far",
        "Records by kind, each period alone",
    ]
    assert any("Table 1 changed" in remark for remark in shown.remarks)
    _, before = present_horizon(horizon, released[:8])
    assert not before.remarks


def test_a_window_as_long_as_the_horizon_is_not_named_beside_all_records() -> None:
    assert [*horizon_of(4).expected()] == ["so far", "latest", "recounts"]
    assert [*horizon_of(5).expected()] == ["so far", "latest", "last 4", "recounts"]
    assert noise_table(horizon_of(4)).headings == ("records of", "standard deviation")


WEIGHED = Schema(
    dataset="visits",
    unit="patient",
    max_rows=1,
    columns=(*SCHEMA.columns, Column(name="weight", type="number", min=0.0, max=200.0)),
)


@pytest.mark.parametrize("weights", [[], [1.0, 3.0]])
def test_the_expected_noise_is_that_of_the_released_counts(weights: list[float]) -> None:
    """Also of a task that divides its budget: a table and the means of its groups."""
    options = {"tables": [["kind"]], "means": ["weight"], "by": ["kind"], "weights": weights}
    horizon = horizon_of(4, schema=WEIGHED, options=options)
    nothing = np.zeros((4, horizon.plan.length(0)), dtype=np.int64)
    for name in ("so far", "latest"):
        noises = [
            horizon.latest(nothing[:t], name).results["table_1.noise"][0] for t in range(1, 5)
        ]
        assert horizon.expected()[name] == pytest.approx(np.sqrt(np.mean(np.square(noises))))


def test_noise_of_unequal_sums_is_not_called_that_of_a_count() -> None:
    task, options = TASKS["naive-bayes"], {"target": "kind", "numbers": "gaussian"}
    horizon = horizon_of(4, task=task, schema=WEIGHED, options=options)
    assert not horizon.counts
    assert "relative to the most that a record adds" in noise_table(horizon).title
    assert "of a count in records" in noise_table(horizon_of(4)).title
