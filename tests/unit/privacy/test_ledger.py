from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloister.errors import BudgetExceeded, LedgerError, PlanError
from cloister.privacy import ledger as ledger_module
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RepeatedEvent,
)
from cloister.privacy.ledger import Ledger

CAP = Budget(1.0, 1e-6)
SIGMA = gaussian_noise_multiplier(CAP.epsilon, CAP.delta)
ROUND = GaussianEvent(2 * SIGMA)
FULL = RepeatedEvent(ROUND, 4)  # exactly the cap
ONE_ENTRY = 1  # the entry that names the format


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(None if request.param == "memory" else tmp_path / "owner.ledger")
    made.open_dataset("adult", cap=CAP)
    yield made
    made.dispose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one data set, one open job and two of its rounds."""
    path = tmp_path / "owner.ledger"
    ledger = Ledger(path)
    ledger.open_dataset("adult", cap=CAP)
    ledger.reserve(dataset="adult", study="s", job="j", events=FULL, content=b"records")
    for t in range(2):
        ledger.commit(job="j", round=t, event=ROUND, frame=bytes([t]) * 100)
    ledger.dispose()
    return path


def reserve(ledger: Ledger, job: str, count: int = 4, **other: str) -> None:
    where = {"dataset": "adult", "study": "s", **other}
    ledger.reserve(job=job, events=RepeatedEvent(ROUND, count), **where)  # type: ignore[arg-type]


# Caps -----------------------------------------------------------------------------------------


def test_a_data_set_needs_a_lifetime_cap_before_anything_is_spent() -> None:
    with pytest.raises(LedgerError, match="open it with a cap"):
        reserve(Ledger(None), "j")
    with pytest.raises(TypeError):
        Ledger(None).open_dataset("adult")  # type: ignore[call-arg]


def test_opening_again_with_the_same_values_adds_nothing(ledger: Ledger) -> None:
    head = ledger.head()
    ledger.open_dataset("adult", cap=Budget(1.0, 1e-6), unit="row")
    assert ledger.head() == head


def test_opening_again_with_other_values_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="use change_cap"):
        ledger.open_dataset("adult", cap=Budget(2.0, 1e-6))
    with pytest.raises(LedgerError, match="a unit cannot change"):
        ledger.open_dataset("adult", cap=CAP, unit="patient_id")


def test_changing_a_cap_is_an_entry_and_counts_from_then_on(ledger: Ledger) -> None:
    reserve(ledger, "a")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "b", 1)
    before = ledger.head()
    ledger.change_cap("adult", Budget(3.0, 1e-6))
    ledger.change_cap("adult", Budget(3.0, 1e-6))
    assert len(ledger.entries()) == ONE_ENTRY + 3
    ledger.check_head(before)
    reserve(ledger, "b", 1)
    ledger.open_dataset("adult", cap=Budget(3.0, 1e-6))


def test_lowering_a_cap_below_what_is_spent_leaves_nothing(ledger: Ledger) -> None:
    reserve(ledger, "a")
    ledger.change_cap("adult", Budget(0.5, 1e-6))
    assert ledger.remaining("adult") == 0
    with pytest.raises(BudgetExceeded, match="0 is left"):
        reserve(ledger, "b", 1)


def test_caps_hold_per_data_set(ledger: Ledger) -> None:
    ledger.open_dataset("birch", cap=Budget(2.0, 1e-7), unit="site")
    reserve(ledger, "a")
    reserve(ledger, "b", dataset="birch")
    assert ledger.datasets() == ("adult", "birch")
    assert ledger.unit("birch") == "site"
    assert ledger.cap("birch") == Budget(2.0, 1e-7)
    assert ledger.spent("birch") == epsilon(FULL, 1e-7)


def test_a_study_cap_divides_the_lifetime_cap_and_never_adds_to_it(ledger: Ledger) -> None:
    half = Budget(0.5, 1e-6)
    for study in ("s", "t", "u"):
        ledger.study_cap("adult", study, half)
        ledger.study_cap("adult", study, half)
    assert len(ledger.entries()) == ONE_ENTRY + 1 + 3
    assert ledger.cap("adult", "s") == half
    assert ledger.cap("adult", "other") == CAP
    one = GaussianEvent(gaussian_noise_multiplier(0.5, 1e-6))
    assert ledger.remaining("adult", "s") == pytest.approx(0.5)
    ledger.reserve(dataset="adult", study="s", job="a", events=one)
    with pytest.raises(BudgetExceeded, match="study 's'"):
        reserve(ledger, "b", 1)
    ledger.reserve(dataset="adult", study="t", job="c", events=one)
    assert ledger.spent("adult", "t") == pytest.approx(0.5, rel=1e-4)
    assert 0.5 < ledger.spent("adult") < 1.0  # composed, not added
    # Three studies at their caps make more than the lifetime allows.
    ledger.reserve(dataset="adult", study="u", job="d", events=one)
    with pytest.raises(BudgetExceeded, match="data set 'adult'"):
        reserve(ledger, "e", 2, study="v")


@pytest.mark.parametrize("cap", [Budget(2.0, 1e-6), Budget(0.5, 1e-7)])
def test_a_study_cap_must_be_part_of_the_lifetime_cap(ledger: Ledger, cap: Budget) -> None:
    with pytest.raises(PlanError, match="study 's'"):
        ledger.study_cap("adult", "s", cap)


# Reserving ------------------------------------------------------------------------------------


def test_a_reservation_counts_as_spent_until_it_is_closed(ledger: Ledger) -> None:
    reserve(ledger, "a", 3)
    assert ledger.spent("adult") == epsilon(RepeatedEvent(ROUND, 3), 1e-6)
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "b", 2)
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    assert ledger.spent("adult") == epsilon(RepeatedEvent(ROUND, 3), 1e-6)
    ledger.close("a")
    assert ledger.spent("adult") == epsilon(ROUND, 1e-6)
    reserve(ledger, "b", 3)
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "c", 1)


def test_the_whole_cap_can_be_spent_and_not_a_round_more(ledger: Ledger) -> None:
    for job in "abcd":
        reserve(ledger, job, 1)
    assert ledger.spent("adult") == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(dataset="adult", study="s", job="e", events=GaussianEvent(500 * SIGMA))


def test_totals_are_composed_never_added(ledger: Ledger) -> None:
    one = epsilon(ROUND, 1e-6)
    reserve(ledger, "a")
    assert ledger.spent("adult") < 2.5 * one < 4 * one


def test_what_remains_can_be_reserved(ledger: Ledger) -> None:
    reserve(ledger, "a", 2)
    left = ledger.remaining("adult")
    assert left > 1 - ledger.spent("adult")
    one = GaussianEvent(gaussian_noise_multiplier(left, 1e-6))
    ledger.reserve(dataset="adult", study="s", job="b", events=one)


def test_equal_shares_of_a_pure_budget_fit_exactly() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("adult", cap=Budget(0.7, 0.0))
    for i in range(7):
        event = LaplaceEvent(7 / 0.7)
        ledger.reserve(dataset="adult", study="s", job=f"j{i}", events=event)
    assert ledger.remaining("adult") == pytest.approx(0, abs=1e-9)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(dataset="adult", study="s", job="more", events=LaplaceEvent(1e6))


def test_mixed_schedules_are_composed_by_their_loss_distribution(ledger: Ledger) -> None:
    mixed = ComposedEvent((RepeatedEvent(LaplaceEvent(40.0), 9), RepeatedEvent(ROUND, 2)))
    ledger.reserve(dataset="adult", study="s", job="a", events=mixed)
    assert ledger.spent("adult") == epsilon(mixed, 1e-6)
    assert 0 < ledger.remaining("adult") < 1
    with pytest.raises(BudgetExceeded, match="is left for one more job"):
        reserve(ledger, "b", 3)


def test_the_refusal_says_what_is_left(ledger: Ledger) -> None:
    reserve(ledger, "a", 3)
    with pytest.raises(BudgetExceeded) as caught:
        reserve(ledger, "b", 4)
    message = str(caught.value)
    assert "job 'b'" in message
    assert "lifetime cap of 1" in message
    assert f"{ledger.remaining('adult'):.4g} is left" in message
    assert message.count(". ") == 0


def test_a_refused_reservation_leaves_no_trace(ledger: Ledger) -> None:
    head = ledger.head()
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "a", 5)
    assert ledger.head() == head
    assert ledger.jobs() == ()


def test_a_release_without_noise_is_always_refused(ledger: Ledger) -> None:
    ledger.change_cap("adult", Budget(1e300, 0.5))
    hidden = ComposedEvent((ROUND, RepeatedEvent(NonPrivateEvent(), 1)))
    with pytest.raises(BudgetExceeded, match="without noise"):
        ledger.reserve(dataset="adult", study="s", job="a", events=hidden)


def test_reserving_the_same_job_again_resumes_it(ledger: Ledger) -> None:
    reserve(ledger, "a", 4)
    head = ledger.head()
    reserve(ledger, "a", 4)
    assert ledger.head() == head


def test_resuming_with_other_values_is_refused(ledger: Ledger) -> None:
    ledger.open_dataset("birch", cap=CAP)
    ledger.reserve(dataset="adult", study="s", job="a", events=ROUND, content=b"records")
    same = {"dataset": "adult", "study": "s", "events": ROUND, "content": b"records"}
    for name, value in [
        ("dataset", "birch"),
        ("study", "t"),
        ("events", GaussianEvent(3 * SIGMA)),
        ("content", b"other records"),
        ("content", None),
    ]:
        with pytest.raises(LedgerError, match="job 'a' was reserved with another"):
            ledger.reserve(job="a", **{**same, name: value}, confirm_same_content=True)


def test_a_closed_job_cannot_be_resumed(ledger: Ledger) -> None:
    reserve(ledger, "a", 4)
    ledger.close("a")
    with pytest.raises(LedgerError, match="closed"):
        reserve(ledger, "a", 4)
    with pytest.raises(LedgerError, match="closed"):
        ledger.commit(job="a", round=0, event=ROUND, frame=b"x")


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_must_be_texts(ledger: Ledger, name: str) -> None:
    with pytest.raises(LedgerError, match="must be a text"):
        ledger.open_dataset(name, cap=CAP)
    with pytest.raises(LedgerError, match="must be a text"):
        reserve(ledger, name)


# Content --------------------------------------------------------------------------------------


def test_the_same_content_under_another_name_needs_the_owners_word(ledger: Ledger) -> None:
    ledger.open_dataset("adult again", cap=CAP)

    def use(dataset: str, job: str, confirmed: bool = False) -> None:
        ledger.reserve(
            dataset=dataset,
            study="s",
            job=job,
            events=ROUND,
            content=b"the same records",
            confirm_same_content=confirmed,
        )

    use("adult", "a")
    use("adult", "b")
    with pytest.raises(LedgerError, match="same content as 'adult'"):
        use("adult again", "c")
    use("adult again", "c", confirmed=True)
    use("adult again", "d")
    assert [e.fields["confirmed"] for e in ledger.entries()[3:]] == [False, False, True, False]


def test_content_tags_are_keyed_by_the_ledger(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "a"), Ledger(tmp_path / "b")
    tag = first.content_tag(b"records")
    assert len(tag) == 32
    assert tag != second.content_tag(b"records")
    assert tag != first.content_tag(b"record")
    assert tag == Ledger(tmp_path / "a").content_tag(b"records")
    assert tag not in (hashlib.sha256(b"records").digest(), hashlib.sha512(b"records").digest())


def test_entries_and_export_hold_no_content_no_frame_and_no_unkeyed_hash_of_them(
    ledger: Ledger,
) -> None:
    secrets = [b"planted record 4711", b"planted frame 0815"]
    ledger.reserve(dataset="adult", study="s", job="a", events=FULL, content=secrets[0])
    ledger.commit(job="a", round=0, event=ROUND, frame=secrets[1])
    text = json.dumps(ledger.export()) + repr(ledger) + repr(ledger.entries()) + repr(ledger.jobs())
    for secret in secrets:
        for trace in (secret.decode(), secret.hex(), hashlib.sha256(secret).hexdigest()):
            assert trace not in text


# Committing -----------------------------------------------------------------------------------


def test_commit_charges_once_and_answers_again_with_the_first_frame(ledger: Ledger) -> None:
    reserve(ledger, "a", 4)
    assert ledger.frame("a", 0) is None
    assert ledger.frame("unknown", 0) is None
    assert ledger.commit(job="a", round=0, event=ROUND, frame=b"first") == b"first"
    head = ledger.head()
    assert ledger.commit(job="a", round=0, event=ROUND, frame=b"second") == b"first"
    assert ledger.frame("a", 0) == b"first"
    assert ledger.head() == head


def test_a_round_has_one_meaning(ledger: Ledger) -> None:
    events = ComposedEvent((ROUND, GaussianEvent(9 * SIGMA)))
    ledger.reserve(dataset="adult", study="s", job="a", events=events)
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    with pytest.raises(LedgerError, match="another event"):
        ledger.commit(job="a", round=0, event=GaussianEvent(9 * SIGMA), frame=b"x")


@pytest.mark.parametrize(
    "event", [GaussianEvent(SIGMA), LaplaceEvent(1e9), RepeatedEvent(ROUND, 4), NonPrivateEvent()]
)
def test_a_charge_outside_the_reservation_is_refused(
    ledger: Ledger, event: GaussianEvent | LaplaceEvent | RepeatedEvent | NonPrivateEvent
) -> None:
    reserve(ledger, "a", 4)
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    with pytest.raises(BudgetExceeded, match="not covered"):
        ledger.commit(job="a", round=1, event=event, frame=b"x")
    assert ledger.frame("a", 1) is None


def test_a_job_cannot_have_more_rounds_than_it_reserved(ledger: Ledger) -> None:
    reserve(ledger, "a", 2)
    for t in range(2):
        ledger.commit(job="a", round=t, event=ROUND, frame=b"x")
    with pytest.raises(BudgetExceeded, match="not covered"):
        ledger.commit(job="a", round=2, event=ROUND, frame=b"x")


def test_a_round_that_costs_nothing_is_covered_and_kept(ledger: Ledger) -> None:
    ledger.reserve(dataset="adult", study="s", job="a", events=ComposedEvent(()))
    ledger.commit(job="a", round=0, event=ComposedEvent(()), frame=b"public")
    assert ledger.frame("a", 0) == b"public"
    assert ledger.spent("adult") == 0


@pytest.mark.parametrize("round", [-1, 1.0, True, "0"])
def test_rounds_are_counted_from_zero(ledger: Ledger, round: int) -> None:
    reserve(ledger, "a")
    with pytest.raises(LedgerError, match="round must be"):
        ledger.commit(job="a", round=round, event=ROUND, frame=b"x")


def test_commit_needs_a_reservation(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="reserve its budget first"):
        ledger.commit(job="a", round=0, event=ROUND, frame=b"x")


def test_a_failed_commit_stores_neither_charge_nor_frame(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(ledger, "a")
    head = ledger.head()
    monkeypatch.setattr(ledger_module, "_INSERT_FRAME", ledger_module.sa.text("INSERT INTO no"))
    with pytest.raises(LedgerError, match="nothing may be released"):
        ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    monkeypatch.undo()
    assert ledger.head() == head
    assert ledger.commit(job="a", round=0, event=ROUND, frame=b"y") == b"y"
    ledger.verify()


def test_closing_twice_is_closing_once(ledger: Ledger) -> None:
    reserve(ledger, "a")
    ledger.close("a")
    head = ledger.head()
    ledger.close("a")
    assert ledger.head() == head


def test_a_closed_job_still_answers_until_its_frames_are_forgotten(ledger: Ledger) -> None:
    reserve(ledger, "a")
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    with pytest.raises(LedgerError, match="is open"):
        ledger.forget_frames("a")
    ledger.close("a")
    assert ledger.commit(job="a", round=0, event=ROUND, frame=b"y") == b"x"
    spent = ledger.spent("adult")
    ledger.forget_frames("a")
    ledger.forget_frames("a")
    ledger.verify()
    assert ledger.spent("adult") == spent
    for again in (
        lambda: ledger.frame("a", 0),
        lambda: ledger.commit(job="a", round=0, event=ROUND, frame=b"x"),
    ):
        with pytest.raises(LedgerError, match="is gone"):
            again()


def test_forgotten_frames_leave_the_file(path: Path) -> None:
    ledger = Ledger(path)
    planted = b"PLANTED-FRAME-" * 3000
    ledger.commit(job="j", round=2, event=ROUND, frame=planted)

    def found() -> bool:
        return any(b"PLANTED-FRAME" in file.read_bytes() for file in path.parent.iterdir())

    assert found()
    ledger.close("j")
    ledger.forget_frames("j")
    assert not found()


def test_jobs_tell_what_was_done(ledger: Ledger) -> None:
    reserve(ledger, "a", 3)
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    (job,) = ledger.jobs("adult")
    assert (job.job, job.study, job.rounds, job.is_open) == ("a", "s", (0,), True)
    assert job.events == RepeatedEvent(ROUND, 3)
    assert job.charged == ledger.charged("adult") == ComposedEvent((RepeatedEvent(ROUND, 3),))
    ledger.close("a")
    (job,) = ledger.jobs()
    assert not job.is_open
    assert job.charged == ComposedEvent((RepeatedEvent(ROUND, 1),))
    assert ledger.jobs("elsewhere") == ()


# The file -------------------------------------------------------------------------------------


def test_everything_is_there_after_reopening(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.jobs()[0].rounds == (0, 1)
    assert ledger.frame("j", 1) == b"\x01" * 100
    assert ledger.spent("adult") == epsilon(FULL, 1e-6)
    ledger.verify()


def test_the_file_is_the_owners_alone_and_durable(path: Path) -> None:
    ledger = Ledger(path)
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    with ledger._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_ledger_in_memory_says_so_and_one_in_a_file_names_it(path: Path) -> None:
    assert "not kept" in repr(Ledger(None))
    assert str(path) in repr(Ledger(path))


def test_a_ledger_is_never_copied_only_shared(path: Path) -> None:
    ledger = Ledger(path)
    assert copy.copy(ledger) is copy.deepcopy(ledger) is ledger
    assert pickle.loads(pickle.dumps(ledger)).head() == ledger.head()  # noqa: S301
    with pytest.raises(LedgerError, match="in-memory"):
        pickle.dumps(Ledger(None))


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to be read as one" * 9])
def test_a_file_that_is_no_ledger_is_never_taken_for_a_new_one(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger(path)
    assert path.read_bytes() == content


def test_other_databases_and_other_formats_are_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    sqlite3.connect(other).execute("CREATE TABLE t (x)")
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(other)
    tamper(path, "DROP TRIGGER owner_update", "UPDATE owner SET format = 2")
    with pytest.raises(LedgerError, match="has format 2"):
        Ledger(path)


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger(tmp_path / "no" / "ledger")
    with pytest.raises(LedgerError):
        Ledger(tmp_path)


def test_a_locked_file_is_an_error_and_then_works_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "BUSY_SECONDS", 0.05)
    ledger = Ledger(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked"):
        ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    other.execute("ROLLBACK")
    assert ledger.commit(job="j", round=2, event=ROUND, frame=b"x") == b"x"


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    refused = []

    def work(name: str) -> None:
        try:
            reserve(ledger, name, 1)
        except BudgetExceeded:
            refused.append(name)

    threads = [threading.Thread(target=work, args=(f"j{i}",)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 6
    assert ledger.spent("adult") <= 1
    ledger.verify()


def test_a_forked_child_must_open_the_file_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="opened in another process"):
        ledger.head()


WORKER = """
import sys
from cloister.errors import BudgetExceeded
from cloister.privacy.budget import Budget
from cloister.privacy.events import GaussianEvent
from cloister.privacy.ledger import Ledger

path, name, sigma = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger(path)
ledger.open_dataset("adult", cap=Budget(1.0, 1e-6))
done = 0
for i in range(20):
    event, job = GaussianEvent(float(sigma)), f"{name}-{i}"
    try:
        ledger.reserve(dataset="adult", study=name, job=job, events=event)
    except BudgetExceeded:
        continue
    ledger.commit(job=job, round=0, event=event, frame=job.encode())
    done += 1
print(done)
"""


def test_processes_at_once_cannot_overspend(tmp_path: Path) -> None:
    path, count = tmp_path / "owner.ledger", 3
    command = [sys.executable, "-c", WORKER, str(path)]
    sigma = repr(SIGMA * 30**0.5)  # thirty of them are the cap, sixty are asked for
    workers = [
        subprocess.Popen(
            [*command, f"w{i}", sigma], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for i in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    answers = []
    for worker in workers:  # they also race to make the file
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        out, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        answers.append(int(out))
    ledger = Ledger(path)
    assert sum(answers) == len(ledger.jobs()) == 30
    assert ledger.spent("adult") <= 1
    assert list(tmp_path.glob(".*.new")) == []
    ledger.verify()


def test_two_handles_see_each_other(path: Path) -> None:
    first, second = Ledger(path), Ledger(path)
    first.commit(job="j", round=2, event=ROUND, frame=b"from the first")
    assert second.commit(job="j", round=2, event=ROUND, frame=b"late") == b"from the first"
    second.close("j")
    with pytest.raises(LedgerError, match="closed"):
        first.commit(job="j", round=3, event=ROUND, frame=b"x")


# Tampering ------------------------------------------------------------------------------------


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = '{}' WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 5",
        "INSERT INTO entries VALUES (9, '{}', '')",
        "INSERT OR REPLACE INTO entries VALUES (2, '{}', '')",
        "REPLACE INTO entries SELECT seq, '{}', hash FROM entries WHERE seq = 5",
        "UPDATE owner SET key = x'00'",
        "DELETE FROM owner",
        "UPDATE frames SET frame = x'00'",
    ],
)
def test_the_database_itself_refuses_to_rewrite(path: Path, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        tamper(path, statement)
    Ledger(path).verify()


def rehash_last(path: Path) -> None:
    """Change the last entry and give it the right hash: a forger who knows the format."""
    connection = sqlite3.connect(path, isolation_level=None)
    (previous,) = connection.execute("SELECT hash FROM entries WHERE seq = 4").fetchone()
    (body,) = connection.execute("SELECT body FROM entries WHERE seq = 5").fetchone()
    body = body.replace('"round":1', '"round":0')
    digest = hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()
    connection.execute("DROP TRIGGER entries_update")
    connection.execute("UPDATE entries SET body = ?, hash = ? WHERE seq = 5", (body, digest))
    connection.close()


EDITS: dict[str, Callable[[Path], None]] = {
    "a charge is made cheaper": lambda path: tamper(
        path,
        "DROP TRIGGER entries_update",
        "UPDATE entries SET body = replace(body, 'gaussian', 'laplace') WHERE seq = 5",
    ),
    "a cap is raised": lambda path: tamper(
        path,
        "DROP TRIGGER entries_update",
        """UPDATE entries SET body = replace(body, '"epsilon":1.0', '"epsilon":9.0')""",
    ),
    "one letter of white space": lambda path: tamper(
        path, "DROP TRIGGER entries_update", "UPDATE entries SET body = body || ' ' WHERE seq = 3"
    ),
    "a text becomes a blob": lambda path: tamper(
        path, "DROP TRIGGER entries_update", "UPDATE entries SET body = x'ff' WHERE seq = 3"
    ),
    "an entry in the middle is removed": lambda path: tamper(
        path, "DROP TRIGGER entries_delete", "DELETE FROM entries WHERE seq = 3"
    ),
    "all entries are removed": lambda path: tamper(
        path, "DROP TRIGGER entries_delete", "DELETE FROM entries"
    ),
    "a foreign entry is added": lambda path: tamper(
        path, "INSERT INTO entries SELECT 6, body, hash FROM entries WHERE seq = 5"
    ),
    "an impossible entry with the right hash": rehash_last,
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_chain_is_found_when_opened_and_by_verify(
    path: Path, edit: Callable[[Path], None]
) -> None:
    ledger = Ledger(path)
    edit(path)
    with pytest.raises(LedgerError):
        ledger.verify()
    with pytest.raises(LedgerError):
        Ledger(path)


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TRIGGER entries_update",),
        ("DROP TRIGGER frames_update", "UPDATE frames SET frame = x'00' WHERE round = 1"),
        ("DELETE FROM frames WHERE round = 1",),
        ("INSERT INTO frames VALUES ('j', 3, x'00')",),
        ("DROP TRIGGER owner_update", "UPDATE owner SET key = zeroblob(32)"),
    ],
    ids=["trigger removed", "frame changed", "frame lost", "frame uncharged", "key changed"],
)
def test_changes_beside_the_chain_are_found_by_verify(
    path: Path, statements: tuple[str, ...]
) -> None:
    tamper(path, *statements)
    with pytest.raises(LedgerError):
        Ledger(path).verify()


def test_a_changed_or_lost_frame_is_never_sent(path: Path) -> None:
    tamper(
        path,
        "DROP TRIGGER frames_update",
        "UPDATE frames SET frame = x'00' WHERE round = 0",
        "DELETE FROM frames WHERE round = 1",
    )
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match="was changed"):
        ledger.frame("j", 0)
    with pytest.raises(LedgerError, match="is gone"):
        ledger.commit(job="j", round=1, event=ROUND, frame=b"anew")


def test_a_frame_cannot_stand_in_for_another_round(path: Path) -> None:
    tamper(
        path,
        "DROP TRIGGER frames_update",
        "UPDATE frames SET frame = (SELECT frame FROM frames WHERE round = 0)",
    )
    with pytest.raises(LedgerError, match="was changed"):
        Ledger(path).frame("j", 1)


def test_a_rolled_back_file_is_found_by_its_signed_head(path: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copy(path, backup)
    ledger = Ledger(path)
    old = ledger.head()
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    signed = ledger.head()
    ledger.check_head(old)
    ledger.check_head(signed)
    ledger.dispose()
    shutil.copy(backup, path)
    restored = Ledger(path)
    restored.verify()  # a copy is a valid ledger, only an old one
    restored.check_head(old)
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        restored.check_head(signed)
    restored.commit(job="j", round=2, event=ROUND, frame=b"other noise")
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        restored.check_head(signed)


def test_a_truncated_chain_is_found_by_its_signed_head(path: Path) -> None:
    signed = Ledger(path).head()
    tamper(path, "DROP TRIGGER entries_delete", "DELETE FROM entries WHERE seq = 5")
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        Ledger(path).check_head(signed)


def test_a_file_replaced_while_open_is_noticed_at_once(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    ledger.head()
    other = Ledger(tmp_path / "other")
    other.dispose()
    os.replace(tmp_path / "other", path)
    with pytest.raises(LedgerError, match="removed or replaced"):
        ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    path.unlink()
    with pytest.raises(LedgerError, match="removed or replaced"):
        ledger.head()


def test_a_chain_cut_while_open_is_noticed_at_once(path: Path) -> None:
    ledger = Ledger(path)
    tamper(path, "DROP TRIGGER entries_delete", "DELETE FROM entries WHERE seq = 5")
    with pytest.raises(LedgerError, match="rolled back"):
        ledger.commit(job="j", round=2, event=ROUND, frame=b"x")


def test_heads_of_equal_histories_differ() -> None:
    assert Ledger(None).head() != Ledger(None).head()


def test_an_export_can_be_checked_without_our_code(path: Path) -> None:
    document = json.loads(json.dumps(Ledger(path).export()))
    link = "00" * 32
    for number, item in enumerate(document["entries"], start=1):
        body = json.dumps(item["entry"], sort_keys=True, separators=(",", ":"))
        link = hashlib.sha256(bytes.fromhex(link) + body.encode()).hexdigest()
        assert (item["seq"], item["hash"]) == (number, link)
    assert document["head"] == link
    assert document["datasets"]["adult"]["spent_epsilon"] == pytest.approx(1.0, rel=1e-5)
    assert document["datasets"]["adult"]["cap"] == {"epsilon": 1.0, "delta": 1e-6}
    kinds = [item["entry"]["kind"] for item in document["entries"]]
    assert kinds == ["ledger", "dataset", "reserve", "charge", "charge"]
