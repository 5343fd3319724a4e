from __future__ import annotations

import copy
import hashlib
import hmac
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
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloister.core import sqlite
from cloister.core.errors import BudgetExceeded, LedgerError, PlanError
from cloister.hazmat.signing import Identity
from cloister.privacy import ledger_file
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RepeatedEvent,
    mechanism_counts,
)
from cloister.privacy.filter import Limits, Split
from cloister.privacy.ledger import Ledger, SignedStatement, Statement
from cloister.privacy.ledger_file import migrate
from cloister_lab.events import CoverEvent

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


def test_a_cap_is_a_budget(ledger: Ledger) -> None:
    with pytest.raises(PlanError, match=r"cap must be a Budget such as .*, got 2.0"):
        ledger.open_dataset("ward", cap=2.0)  # type: ignore[arg-type]


def test_the_jobs_as_a_table_have_the_epsilon_of_each(ledger: Ledger) -> None:
    assert ledger.to_frame().empty
    from cloister import DPKMeans

    ledger.open_dataset("w", cap=Budget(3.0, 1e-6))
    model = DPKMeans(1, epsilon=1.0, bounds=(0, 1), nominal_n=100, ledger=ledger, dataset="w")
    model.fit([[0.5]] * 100)
    (job,) = ledger.to_frame("w").itertuples()
    assert job.epsilon == pytest.approx(1.0, rel=1e-3)
    assert (job.dataset, job.rounds, job.is_open) == ("w", model.plan_.rounds, False)


def test_the_task_of_a_job_is_noted_once(ledger: Ledger) -> None:
    assert ledger.tasks() == {}
    reserve(ledger, "i", 1, task="tabulate")
    reserve(ledger, "i", 1, task="survival")  # a repetition of the same reservation
    reserve(ledger, "j", 1)
    assert ledger.tasks() == {"i": "tabulate"}
    ledger.verify()


def test_a_file_of_an_earlier_version_has_no_tasks_and_takes_them(
    path: Path, tmp_path: Path
) -> None:
    tamper(path, "DROP TABLE tasks")
    ledger = Ledger(path)
    assert ledger.tasks() == {}
    ledger.close("j")  # frees a part of the cap
    reserve(ledger, "k", 1, task="tabulate")
    assert ledger.tasks() == {"k": "tabulate"}
    ledger.backup(tmp_path / "copy")
    ledger.dispose()
    copy = Ledger(tmp_path / "copy")
    assert copy.tasks() == {"k": "tabulate"}
    copy.dispose()


def test_opening_again_with_the_same_values_adds_nothing(ledger: Ledger) -> None:
    head = ledger.head()
    ledger.open_dataset("adult", cap=Budget(1.0, 1e-6), unit="row")
    assert ledger.head() == head


def test_opening_again_with_other_values_is_refused(ledger: Ledger) -> None:
    with pytest.raises(
        LedgerError, match=r"set cap_epsilon = 1 and cap_delta = 1e-06 in .*budget cap"
    ):
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


def test_mixed_schedules_are_charged_to_the_limits_and_what_is_left_follows(
    ledger: Ledger,
) -> None:
    mixed = ComposedEvent((RepeatedEvent(LaplaceEvent(40.0), 9), RepeatedEvent(ROUND, 2)))
    ledger.reserve(dataset="adult", study="s", job="a", events=mixed)
    assert epsilon(mixed, 1e-6) < ledger.spent("adult") < 1.1 * epsilon(mixed, 1e-6)
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


def test_a_job_prints_as_a_line(ledger: Ledger) -> None:
    reserve(ledger, "a", 4)
    (job,) = ledger.jobs()
    assert "job='a'" in repr(job)
    assert "Event" not in repr(job)


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
    with pytest.raises(LedgerError, match=r"same content as 'adult'.*--confirm-same-content"):
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
    with pytest.raises(BudgetExceeded, match="exceeds the rest"):
        ledger.commit(job="a", round=1, event=event, frame=b"x")
    assert ledger.frame("a", 1) is None


def test_a_job_cannot_have_more_rounds_than_it_reserved(ledger: Ledger) -> None:
    reserve(ledger, "a", 2)
    for t in range(2):
        ledger.commit(job="a", round=t, event=ROUND, frame=b"x")
    with pytest.raises(BudgetExceeded, match="exceeds the rest"):
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
    monkeypatch.setattr(ledger_file, "INSERT_FRAME", "INSERT INTO no")
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
        with pytest.raises(LedgerError, match="is missing"):
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


def asked(ledger: Ledger, pragma: str) -> object:
    """Return what the ledger's own connection says."""
    with ledger._guarded() as connection:
        return connection.execute(pragma).fetchone()[0]


def test_the_file_is_the_owners_alone_and_durable(path: Path) -> None:
    ledger = Ledger(path)
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert asked(ledger, "PRAGMA journal_mode") == "wal"
    assert asked(ledger, "PRAGMA synchronous") == 2


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
    tamper(path, "DROP TRIGGER owner_update", "UPDATE owner SET format = 9")
    with pytest.raises(LedgerError, match="has format 9"):
        Ledger(path)


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger(tmp_path / "no" / "ledger")
    with pytest.raises(LedgerError):
        Ledger(tmp_path)


def test_a_locked_file_is_an_error_and_then_works_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
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
from cloister.core.errors import BudgetExceeded
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
        out, _ = worker.communicate(timeout=600)
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
    with pytest.raises(LedgerError, match="is missing"):
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
    backup, beside = tmp_path / "backup", path.with_name("owner.ledger.head")
    shutil.copy(path, backup)
    shutil.copy(beside, tmp_path / "backup.head")
    ledger = Ledger(path)
    old = ledger.head()
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    signed = ledger.head()
    ledger.check_head(old)
    ledger.check_head(signed)
    ledger.dispose()
    shutil.copy(backup, path)
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        Ledger(path)
    shutil.copy(tmp_path / "backup.head", beside)  # put back, too
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
    with pytest.raises(LedgerError, match=r"ledger '/.*' was removed or replaced"):
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


# Answers and secrets --------------------------------------------------------------------------


def test_the_first_answer_to_a_request_is_the_only_one(ledger: Ledger) -> None:
    reserve(ledger, "a")
    reserve(ledger, "b", 0)
    head = ledger.head()
    assert ledger.record("a", b"who are you", b"first") == b"first"
    assert ledger.record("a", b"who are you", b"second") == b"first"
    assert ledger.record("b", b"who are you", b"of b") == b"of b"
    assert ledger.record("a", b"", b"") == b""
    assert ledger.recorded("a") == ((b"who are you", b"first"), (b"", b""))
    assert ledger.recorded("unknown") == ()
    assert ledger.head() == head  # an answer costs nothing
    ledger.verify()


def test_what_follows_an_answer_that_differs_from_the_first_one_is_not_kept(ledger: Ledger) -> None:
    reserve(ledger, "a")
    ledger.record("a", b"bound", b"one")
    assert ledger.record_all("a", [(b"bound", b"other"), (b"reply", b"of other")]) == (b"one",)
    assert ledger.recorded("a") == ((b"bound", b"one"),)
    assert ledger.record_all("a", [(b"bound", b"one"), (b"reply", b"x")]) == (b"one", b"x")
    assert ledger.recorded("a") == ((b"bound", b"one"), (b"reply", b"x"))


def test_answers_come_back_in_the_order_of_writing(path: Path) -> None:
    ledger = Ledger(path)
    kept = [(os.urandom(9), bytes([t])) for t in range(20)]
    for request, answer in kept[:10]:
        ledger.record("j", request, answer)
    ledger.dispose()
    ledger = Ledger(path)
    for request, answer in kept[10:]:
        ledger.record("j", request, answer)
    assert ledger.recorded("j") == tuple(kept)


def test_a_commit_keeps_the_request_with_the_charge_and_the_frame_once(path: Path) -> None:
    ledger, frame = Ledger(path), os.urandom(100_000)
    ledger.record("j", b"before", b"x")
    for _ in range(2):
        again = ledger.commit(job="j", round=2, event=ROUND, frame=frame, request=b"ask")
        assert again == frame
    assert ledger.record("j", b"ask", b"other bytes") == frame
    assert ledger.recorded("j") == ((b"before", b"x"), (b"ask", frame))
    ledger.verify()
    ledger.dispose()
    assert path.read_bytes().count(frame[:64]) == 1


def test_a_request_cannot_be_answered_with_another_round(ledger: Ledger) -> None:
    reserve(ledger, "a")
    ledger.record("a", b"ask", b"an answer")
    head = ledger.head()
    with pytest.raises(LedgerError, match="has another answer"):
        ledger.commit(job="a", round=0, event=ROUND, frame=b"x", request=b"ask")
    assert ledger.head() == head
    assert ledger.frame("a", 0) is None


def test_a_failed_commit_keeps_no_request_either(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(ledger, "a")
    monkeypatch.setattr(ledger_file, "INSERT_ANSWER", "INSERT INTO no")
    with pytest.raises(LedgerError, match="nothing may be released"):
        ledger.commit(job="a", round=0, event=ROUND, frame=b"x", request=b"ask")
    monkeypatch.undo()
    assert ledger.frame("a", 0) is None
    assert ledger.recorded("a") == ()


def test_a_secret_is_made_once_and_is_the_jobs_own(path: Path) -> None:
    ledger = Ledger(path)
    reserve(ledger, "k", 0)
    secret = ledger.secret("j")
    assert len(secret) == 32
    assert Ledger(path).secret("j") == ledger.secret("j") == secret != ledger.secret("k")
    ledger.verify()


@pytest.mark.parametrize("use", ["record", "secret"])
def test_answers_and_secrets_need_a_reserved_job(ledger: Ledger, use: str) -> None:
    call = {"record": lambda: ledger.record("a", b"x", b"y"), "secret": lambda: ledger.secret("a")}
    with pytest.raises(LedgerError, match="reserve its budget first"):
        call[use]()


def test_a_closed_job_gives_what_it_gave_and_nothing_new(ledger: Ledger) -> None:
    reserve(ledger, "a")
    reserve(ledger, "b", 0)
    ledger.record("a", b"old", b"answer")
    secret = ledger.secret("a")
    ledger.close("a")
    ledger.close("b")
    assert ledger.record("a", b"old", b"late") == b"answer"
    assert ledger.secret("a") == secret
    with pytest.raises(LedgerError, match="answers no new request"):
        ledger.record("a", b"new", b"answer")
    with pytest.raises(LedgerError, match="has no secret"):
        ledger.secret("b")
    ledger.forget_frames("a")
    assert ledger.recorded("a") == ()
    with pytest.raises(LedgerError, match="has no secret"):
        ledger.secret("a")


def test_forgotten_answers_and_secrets_leave_the_file(path: Path) -> None:
    ledger = Ledger(path)
    planted = [b"PLANTED-REQUEST", b"PLANTED-ANSWER", ledger.secret("j")]
    ledger.record("j", planted[0] * 500, planted[1] * 500)

    def found() -> list[bool]:
        files = [file.read_bytes() for file in path.parent.iterdir()]
        return [any(trace in content for content in files) for trace in planted]

    assert found() == [True, True, True]
    ledger.close("j")
    ledger.forget_frames("j")
    assert found() == [False, False, False]


def test_no_secret_and_no_answer_is_shown_or_exported(ledger: Ledger) -> None:
    reserve(ledger, "a")
    planted = [ledger.secret("a"), ledger.record("a", b"planted request", b"planted answer")]
    shown = repr(ledger) + repr(ledger.jobs()) + json.dumps(ledger.export())
    for trace in [*planted, b"planted request"]:
        assert trace.hex() not in shown
        assert repr(trace) not in shown


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TRIGGER answers_update", "UPDATE answers SET answer = x'00' WHERE number = 1"),
        ("DROP TRIGGER answers_update", "UPDATE answers SET request = x'00' WHERE number = 1"),
        ("DROP TRIGGER answers_update", "UPDATE answers SET round = 0 WHERE round = 2"),
        ("DROP TRIGGER answers_update", "UPDATE answers SET round = NULL WHERE round = 2"),
        ("DELETE FROM answers WHERE number = 1",),
        ("DELETE FROM frames WHERE round = 2",),
    ],
)
def test_a_changed_or_lost_answer_is_never_sent(path: Path, statements: tuple[str, ...]) -> None:
    ledger = Ledger(path)
    ledger.record("j", b"first", b"answer")
    ledger.record("j", b"second", b"answer")
    ledger.commit(job="j", round=2, event=ROUND, frame=b"frame", request=b"third")
    ledger.verify()
    ledger.dispose()
    tamper(path, *statements)
    restored = Ledger(path)
    with pytest.raises(LedgerError, match=r"is missing|was changed"):
        restored.recorded("j")
    with pytest.raises(LedgerError):
        restored.verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE answers SET answer = x'00'",
        "UPDATE secrets SET secret = x'00'",
        "UPDATE own_heads SET head = ''",
        "DELETE FROM own_heads",
        "REPLACE INTO own_heads SELECT seq, fingerprint, '', signature FROM own_heads",
    ],
)
def test_what_was_promised_cannot_be_rewritten(path: Path, statement: str) -> None:
    ledger = Ledger(path)
    ledger.record("j", b"ask", b"answer")
    ledger.secret("j")
    ledger.countersigned(ledger.head(), {"ed25519:aa": b"signature"})
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA recursive_triggers = ON")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    ledger.verify()


# Heads ----------------------------------------------------------------------------------------


ALICE, BOB = Identity.new(), Identity.new()


def test_two_jobs_that_were_signed_at_one_head_are_both_recovered(tmp_path: Path) -> None:
    event, names = GaussianEvent(5.0), ("one", "two")
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("toy", cap=Budget(10.0, 1e-6))
    ledger.backup(tmp_path / "old.db")
    for job in names:
        ledger.reserve(dataset="toy", study="s", job=job, events=event)
    shown = [SignedStatement.of(ledger.statement(j, "0" * 64, event), ALICE) for j in names]
    assert len({statement.said.head for statement in shown}) == 1
    for job in names:
        ledger.commit(job=job, round=0, event=event, frame=b"sum")
    spent = ledger.spent("toy")
    ledger.dispose()
    for order in (shown, shown[::-1]):
        copied = tmp_path / f"{order[0].said.job}.db"
        shutil.copy(tmp_path / "old.db", copied)
        old = Ledger(copied)
        assert {said.job for said in old.recover(ALICE.public, order)} == set(names)
        assert old.recover(ALICE.public, order) == ()
        assert old.spent("toy") == pytest.approx(spent)
        old.dispose()


def closed_copy(tmp_path: Path, *, answered: bool) -> tuple[Ledger, SignedStatement]:
    """Return a copy from before the first round of a job, closed, and what its peers hold."""
    event, path, copied = GaussianEvent(5.0), tmp_path / "ledger.db", tmp_path / "copy.db"
    ledger = Ledger(path)
    ledger.open_dataset("toy", cap=Budget(10.0, 1e-6))
    ledger.reserve(dataset="toy", study="s", job="one", events=event)
    if answered:
        ledger.record("one", b"boxes", b"ready")
    ledger.dispose()
    shutil.copy(path, copied)
    ledger = Ledger(path)
    shown = SignedStatement.of(ledger.statement("one", "0" * 64, event), ALICE)
    ledger.commit(job="one", round=0, event=event, frame=b"sum")
    ledger.dispose()
    copy = Ledger(copied)
    copy.close("one")
    copy.forget_frames("one")
    assert copy.spent("toy") == 0
    return copy, shown


def test_a_statement_on_a_job_that_was_closed_unanswered_is_missing(tmp_path: Path) -> None:
    copy, shown = closed_copy(tmp_path, answered=False)
    other = replace(shown.said, job="two")
    copy.check_statements([SignedStatement.of(other, ALICE)])  # signed at a head that it has
    with pytest.raises(LedgerError, match="behind 1 statements"):
        copy.check_statements([shown])
    with pytest.raises(LedgerError, match="behind 1 statements"):
        copy.reserve(dataset="toy", study="s", job="three", events=ROUND)
    assert [said.job for said in copy.recover(ALICE.public, [shown])] == ["one"]
    assert copy.recover(ALICE.public, [shown]) == ()
    copy.check_statements([shown])
    copy.reserve(dataset="toy", study="s", job="three", events=ROUND)
    copy.close("three")
    copy.verify()
    assert copy.spent("toy") == pytest.approx(Ledger(tmp_path / "ledger.db").spent("toy"))


def test_peers_show_statements_on_a_job_that_was_closed_unanswered_since_they_signed(
    ledger: Ledger,
) -> None:
    """They may have learnt of it after they signed a head above the reservation."""
    ledger.reserve(dataset="adult", study="s", job="one", events=ROUND)
    ledger.reserve(dataset="adult", study="s", job="two", events=ROUND)
    reserved, (first, second) = ledger.head(), (ALICE.fingerprint, BOB.fingerprint)
    ledger.countersigned(reserved, {first: b"a" * 64, second: b"b" * 64})
    height = ledger.shown_above(first)
    assert height == ledger.shown_above(second) > 0
    ledger.close("one")
    statement_height = 3  # of the reservation: ledger, data set, job
    assert ledger.shown_above(first) == ledger.shown_above(second) == statement_height - 1
    # A peer signs a head with the close in it only after it showed what it knew of the job.
    ledger.countersigned(ledger.head(), {first: b"a" * 64})
    assert ledger.shown_above(first) == height + 1
    assert ledger.shown_above(second) == statement_height - 1


def test_a_statement_on_a_job_that_was_answered_and_sent_nothing_is_known(tmp_path: Path) -> None:
    copy, shown = closed_copy(tmp_path, answered=True)
    copy.check_statements([shown])
    assert copy.recover(ALICE.public, [shown]) == ()
    assert copy.spent("toy") == 0


def stated(
    who: Identity, job: str, height: int, *, head: str = "", dataset: str = "adult", count: int = 4
) -> SignedStatement:
    """Return what somebody says of a ledger."""
    head = head or hashlib.sha256(f"{job} {height}".encode()).hexdigest()
    events = RepeatedEvent(ROUND, count)
    return SignedStatement.of(Statement(dataset, "s", job, "a" * 64, events, head, height), who)


def test_the_newest_statement_of_each_peer_in_each_job_is_remembered(path: Path) -> None:
    ledger = Ledger(path)
    for job, height in (("a", 3), ("a", 7), ("b", 5), ("a", 6), ("a", 7), ("b", 4)):
        ledger.remember([stated(ALICE, job, height)])  # two jobs at once, in any order
    ledger.remember([stated(BOB, "a", 2)])
    again = Ledger(path)
    heights = [(one.said.job, one.said.height) for one in again.remembered(ALICE.fingerprint)]
    assert heights == [("b", 5), ("a", 7)]
    assert [one.said.job for one in again.remembered(ALICE.fingerprint, 5)] == ["a"]
    assert again.remembered(ALICE.fingerprint, 7) == ()
    assert again.remembered(BOB.fingerprint) == (stated(BOB, "a", 2),)
    assert [peer["fingerprint"] for peer in again.export()["peers"]] == sorted(
        [ALICE.fingerprint] * 2 + [BOB.fingerprint]
    )
    again.verify()
    tamper(path, "UPDATE statements SET text = replace(text, 'adult', 'other')")
    with pytest.raises(LedgerError, match=r"statement in .* was changed"):
        Ledger(path).verify()


def countersign(path: Path) -> str:
    ledger = Ledger(path)
    head = ledger.head()
    ledger.countersigned(head, {"ed25519:aa": b"a", "ed25519:bb": b"b"})
    ledger.dispose()
    return head


def test_what_peers_signed_is_kept_and_exported(path: Path) -> None:
    first = countersign(path)
    assert countersign(path) == first  # saying it again adds nothing
    ledger = Ledger(path)
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    ledger.countersigned(ledger.head(), {"ed25519:aa": b"c"})
    ledger.countersigned(ledger.head(), {})
    kept = [(row["head"], row["signature"]) for row in ledger.export()["countersigned"]]
    assert kept == [(first, "61"), (first, "62"), (ledger.head(), "63")]
    ledger.verify()


def test_a_head_that_is_not_ours_cannot_be_countersigned(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        ledger.countersigned("0" * 64, {"ed25519:aa": b"a"})


def test_a_ledger_without_its_last_countersigned_entry_is_refused(path: Path) -> None:
    countersign(path)
    path.with_name("owner.ledger.head").unlink()
    tamper(path, "DROP TRIGGER entries_delete", "DELETE FROM entries WHERE seq = 5")
    with pytest.raises(LedgerError, match="lost entries that peers counter-signed"):
        Ledger(path)


def test_a_ledger_restored_alone_is_refused_by_the_head_beside_it(
    path: Path, tmp_path: Path
) -> None:
    shutil.copy(path, tmp_path / "copy")
    ledger = Ledger(path)
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    ledger.dispose()
    signed = countersign(path)
    beside = tmp_path / "owner.ledger.head"
    assert beside.read_text() == f"{signed} 6\n"
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    newest = path.read_bytes()
    shutil.copy(tmp_path / "copy", path)
    with pytest.raises(LedgerError, match="is behind the head that was written last"):
        Ledger(path)
    path.write_bytes(newest)
    Ledger(path).check_head(signed)


def test_a_plain_copy_of_a_ledger_in_use_is_refused_and_lacks_no_cost(tmp_path: Path) -> None:
    """Its write-ahead log has the newest charges, and a copy of the file alone lacks them."""
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("adult", cap=Budget(9.0, 1e-6))
    for job in ("first", "second"):
        reserve(ledger, job, 3)
        for t in range(3):
            ledger.commit(job=job, round=t, event=ROUND, frame=b"x" * 100)  # and it leaves
            copy = tmp_path / f"{job}{t}"
            shutil.copy(tmp_path / "ledger.db", copy)
            with pytest.raises(LedgerError, match=r"is a plain copy.*'cloister budget recover'"):
                Ledger(copy)
            alone = Ledger(copy, behind=True)
            assert alone.spent("adult") >= ledger.spent("adult")
            with pytest.raises(LedgerError, match="is a plain copy"):
                alone.commit(job=job, round=2, event=ROUND, frame=b"other noise")
        ledger.close(job)
    shutil.copy(tmp_path / "ledger.db.head", f"{copy}.head")
    with pytest.raises(LedgerError, match="is behind the head that was written last"):
        Ledger(copy)


def lower_cap(ledger: Ledger) -> None:
    ledger.change_cap("adult", Budget(CAP.epsilon / 2, CAP.delta))


KEPT: dict[str, Callable[[Ledger], None]] = {
    "cap": lower_cap,
    "study": lambda ledger: ledger.study_cap("adult", "s", Budget(0.5, CAP.delta)),
    "data set": lambda ledger: ledger.open_dataset("second", cap=CAP),
    "whole": lambda ledger: ledger.close("j", whole=True),
    "clock": Ledger.confirm_clock,
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", KEPT)
def test_a_copy_without_a_permanent_entry_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, killed: bool
) -> None:
    """Else a restored copy would undo a lowered cap, also if a crash came before its head."""
    shutil.copy(path, tmp_path / "copy")
    ledger = Ledger(path)

    def die(ledger: Ledger) -> None:
        raise SystemExit

    with monkeypatch.context() as patch, suppress(SystemExit):
        if killed:
            patch.setattr(Ledger, "_note_head", die)
        KEPT[kind](ledger)
    ledger.dispose()
    Ledger(path).dispose()  # with the entry, it opens
    shutil.copy(tmp_path / "copy", path)
    with pytest.raises(LedgerError, match="is behind the head that was written last"):
        Ledger(path)
    with pytest.raises(LedgerError, match="is behind the head"):
        lower_cap(Ledger(path, behind=True))


def test_a_copy_without_a_reservation_or_its_close_is_accepted(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "copy")
    ledger = Ledger(path)
    ledger.reserve(dataset="adult", study="s", job="other", events=GaussianEvent(1e6))
    ledger.close("other")
    ledger.dispose()
    Ledger(path).dispose()
    shutil.copy(tmp_path / "copy", path)
    assert [job.job for job in Ledger(path).jobs()] == ["j"]


def test_a_cap_that_was_lowered_before_any_charge_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    ledger.open_dataset("adult", cap=CAP)
    ledger.backup(tmp_path / "copy")
    assert not path.with_name("ledger.db.head").exists()  # nothing could be lost yet
    lower_cap(ledger)
    ledger.dispose()
    os.replace(tmp_path / "copy", path)
    with pytest.raises(LedgerError, match=r"is behind the head .* set the caps again"):
        Ledger(path)


def test_a_plain_copy_that_its_owner_recovers_is_a_backup(path: Path, tmp_path: Path) -> None:
    spent = Ledger(path).spent("adult")
    shutil.copy(path, tmp_path / "copy")
    Ledger(tmp_path / "copy", behind=True).recover(b"")
    copy = Ledger(tmp_path / "copy")
    copy.verify()
    assert copy.spent("adult") == spent
    assert not any(job.is_open for job in copy.jobs())
    copy.change_cap("adult", Budget(9.0, 1e-6))
    reserve(copy, "next", 1)
    copy.commit(job="next", round=0, event=ROUND, frame=b"x")
    Ledger(tmp_path / "copy").verify()


def test_a_charge_waits_for_the_disk_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the head is not flushed: an older head after a power loss is a true one."""
    ledger = Ledger(path)

    def flush(*_: object) -> None:
        raise AssertionError("SQLite alone flushes")

    for name in ("fsync", "fdatasync", "replace"):
        monkeypatch.setattr(os, name, flush)
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    beside = path.with_name("owner.ledger.head").read_text()
    assert beside == f"{ledger.head()} {ledger.statement('j', '', FULL).height}\n"


def test_a_frame_that_leaves_again_after_a_crash_leaves_its_head_beside_the_ledger(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an older copy of the file alone would open, and forget a round that left."""
    shutil.copy(path, tmp_path / "copy")
    ledger = Ledger(path)

    def die(ledger: Ledger, job: str) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_note_charge", die)  # between the charge and its head
        with pytest.raises(SystemExit):
            ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    assert ledger.frame("j", 2) == b"x"
    ledger.dispose()
    shutil.copy(tmp_path / "copy", path)
    with pytest.raises(LedgerError, match="is behind the head that was written last"):
        Ledger(path)


def test_the_head_beside_the_ledger_never_goes_back(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    old = ledger.head()
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    new = ledger.head()
    for head in (new, old):
        ledger.countersigned(head, {"ed25519:aa": b"a"})
        assert (tmp_path / "owner.ledger.head").read_text() == f"{new} 6\n"


def test_a_head_that_cannot_be_written_beside_is_not_countersigned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path.with_name("new"))  # later writes are in place and need no room
    ledger.open_dataset("adult", cap=CAP)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LedgerError, match="No space left"):
        ledger.countersigned(ledger.head(), {"ed25519:aa": b"a"})
    assert ledger.export()["countersigned"] == []
    assert list(path.parent.glob(".*.new")) == []


# Clocks ---------------------------------------------------------------------------------------


def test_nothing_is_reserved_by_a_clock_that_is_before_the_last_entry(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year would else come again; what is reserved already may go on, and be closed."""
    reserve(ledger, "a", 1)
    head, now = ledger.head(), datetime.now(UTC)
    for back in (timedelta(seconds=2), timedelta(days=400)):
        monkeypatch.setattr(ledger_file, "utc_now", lambda back=back: now - back)
        with pytest.raises(LedgerError, match="set the clock"):
            reserve(ledger, "b", 1)
    assert ledger.head() == head
    reserve(ledger, "a", 1)  # to resume costs nothing
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    ledger.close("a")
    monkeypatch.setattr(ledger_file, "utc_now", lambda: now - timedelta(days=300))
    with pytest.raises(LedgerError, match="set the clock"):
        reserve(ledger, "b", 1)  # what was written meanwhile does not make the past the present
    monkeypatch.setattr(ledger_file, "utc_now", lambda: now + timedelta(seconds=2))
    reserve(ledger, "b", 1)


def test_an_owner_may_say_that_the_clock_was_ahead(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr(ledger_file, "utc_now", lambda: now + timedelta(days=4000))
    reserve(ledger, "a", 1)
    monkeypatch.setattr(ledger_file, "utc_now", lambda: now)
    spent = ledger.spent("adult")
    with pytest.raises(LedgerError, match="budget clock"):
        reserve(ledger, "b", 1)
    ledger.confirm_clock()
    assert ledger.spent("adult") == spent
    reserve(ledger, "b", 1)
    monkeypatch.setattr(ledger_file, "utc_now", lambda: now - timedelta(days=1))
    with pytest.raises(LedgerError, match="set the clock"):
        reserve(ledger, "c", 1)
    ledger.verify()


# The cap of a year ----------------------------------------------------------------------------


def test_a_year_has_its_own_cap_by_the_utc_calendar(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = epsilon(RepeatedEvent(ROUND, 2), 1e-6)

    def one(job: str, at: datetime) -> None:
        monkeypatch.setattr(ledger_file, "utc_now", lambda: at)
        ledger.reserve(dataset="adult", study="s", job=job, events=ROUND, year_epsilon=two)

    december = datetime(2125, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    one("a", december)
    one("b", december)
    head = ledger.head()
    with pytest.raises(BudgetExceeded, match=r"data set 'adult' in 2125.*cap for a year of"):
        one("c", december)
    assert ledger.head() == head
    one("a", december)  # to resume costs nothing
    one("c", datetime(2126, 1, 1, tzinfo=UTC))
    assert [job.reserved_at[:10] for job in ledger.jobs()] == ["2125-12-31"] * 2 + ["2126-01-01"]
    assert ledger.jobs()[2].reserved_at == "2126-01-01T00:00:00+00:00"
    assert ledger.spent("adult") == epsilon(RepeatedEvent(ROUND, 3), 1e-6)


def test_a_year_counts_what_closed_jobs_committed_and_every_study(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime(2125, 6, 30, tzinfo=UTC)  # no year ends while this runs
    monkeypatch.setattr(ledger_file, "utc_now", lambda: at)
    ledger.open_dataset("birch", cap=CAP)
    reserve(ledger, "elsewhere", dataset="birch")
    reserve(ledger, "a", 3)
    ledger.commit(job="a", round=0, event=ROUND, frame=b"x")
    ledger.close("a")
    two = epsilon(RepeatedEvent(ROUND, 2), 1e-6)
    other = {"dataset": "adult", "study": "another", "events": ROUND, "year_epsilon": two}
    ledger.reserve(job="b", **other)  # type: ignore[arg-type]
    with pytest.raises(BudgetExceeded, match="cap for a year"):
        ledger.reserve(job="c", **other)  # type: ignore[arg-type]


def test_a_year_never_adds_to_the_lifetime_cap(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded, match="lifetime cap"):
        ledger.reserve(
            dataset="adult", study="s", job="a", events=RepeatedEvent(ROUND, 5), year_epsilon=99.0
        )


# Copies ---------------------------------------------------------------------------------------


def test_a_job_that_sent_nothing_ends_in_a_backup_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("adult", cap=CAP)
    reserve(ledger, "unstarted", 1)
    ledger.backup(tmp_path / "copy.db")
    restored = Ledger(tmp_path / "copy.db")
    assert not any(job.is_open for job in restored.jobs())
    assert restored.spent("adult") == ledger.spent("adult")
    with pytest.raises(LedgerError, match="is closed"):
        reserve(restored, "unstarted", 1)


def test_a_backup_is_a_verified_ledger_that_leaves_running_jobs(path: Path, tmp_path: Path) -> None:
    ledger, copy_path = Ledger(path), tmp_path / "copy.db"
    reserve(ledger, "done", 0)
    ledger.close("done")
    planted = [ledger.secret("j"), ledger.record("j", b"ask", b"PLANTED-ANSWER"), b"\x01" * 100]
    head = ledger.head()
    ledger.backup(copy_path)
    assert ledger.head() == head  # the original goes on
    ledger.commit(job="j", round=2, event=ROUND, frame=b"x")
    signed = ledger.head()

    assert stat.S_IMODE(copy_path.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir() if "copy" in file.name) == ["copy.db"]
    content = copy_path.read_bytes()
    assert not any(trace in content for trace in planted)
    restored = Ledger(copy_path)
    restored.verify()
    restored.check_head(head)
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        restored.check_head(signed)
    assert restored.spent("adult") == ledger.spent("adult") == epsilon(FULL, 1e-6)
    job = restored.jobs()[0]
    assert (job.is_open, job.rounds) == (False, (0, 1))
    assert mechanism_counts(job.charged) == mechanism_counts(FULL)
    for use in (
        lambda: restored.commit(job="j", round=2, event=ROUND, frame=b"y"),
        lambda: restored.frame("j", 1),
        lambda: restored.secret("j"),
        lambda: restored.record("j", b"ask", b"anew"),
        lambda: restored.reserve(dataset="adult", study="s", job="j", events=FULL),
    ):
        with pytest.raises(LedgerError):
            use()
    restored.open_dataset("birch", cap=CAP)  # and it is a ledger like any other
    assert asked(restored, "PRAGMA journal_mode") == "wal"


def test_a_backup_replaces_nothing_and_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    (tmp_path / "there").write_text("precious")
    with pytest.raises(LedgerError, match="is not replaced"):
        ledger.backup(tmp_path / "there")
    assert (tmp_path / "there").read_text() == "precious"
    with pytest.raises(LedgerError, match="cannot be made"):
        ledger.backup(tmp_path / "no" / "folder")
    with pytest.raises(LedgerError, match="in-memory"):
        Ledger(None).backup(tmp_path / "copy")
    assert list(tmp_path.glob(".*")) == []


def test_a_backup_made_while_others_write_is_one_moment(path: Path, tmp_path: Path) -> None:
    ledger, writer = Ledger(path), Ledger(path)
    ledger.change_cap("adult", Budget(50.0, 1e-6))
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            reserve(writer, f"w{number}", 1)
            writer.commit(job=f"w{number}", round=0, event=ROUND, frame=b"x" * 5000, request=b"r")
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(5):
            ledger.backup(tmp_path / f"copy{number}")
    finally:
        stop.set()
        thread.join()
    chain = [entry.hash for entry in ledger.entries()]
    for number in range(5):
        restored = Ledger(tmp_path / f"copy{number}")
        hashes = [entry.hash for entry in restored.entries()]
        assert hashes[:-1] == chain[: len(hashes) - 1]
        restored.verify()


# Migration ------------------------------------------------------------------------------------

OLD_TABLES = """
CREATE TABLE entries (seq INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE frames (job TEXT NOT NULL, round INTEGER NOT NULL, frame BLOB NOT NULL,
    PRIMARY KEY (job, round));
CREATE TABLE owner (format INTEGER NOT NULL, key BLOB NOT NULL);
PRAGMA journal_mode = WAL;
"""
OLD_TRIGGERS = {
    "entries_update": "UPDATE ON entries",
    "entries_delete": "DELETE ON entries",
    "entries_insert": "INSERT ON entries WHEN NEW.seq <> 1 + "
    "(SELECT COALESCE(MAX(seq), 0) FROM entries)",
    "owner_update": "UPDATE ON owner",
    "owner_delete": "DELETE ON owner",
    "frames_update": "UPDATE ON frames",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file as the first version wrote it: one open job with one committed round."""
    path, key, frame = tmp_path / "old.ledger", bytes(range(32)), b"an old frame"
    message = b'cloister ledger ["frame","j",0]\0' + hashlib.sha256(frame).digest()
    tag = hmac.digest(key, message, "sha256").hex()
    at, full, once = "2025-03-04T05:06:07+00:00", FULL.to_dict(), ROUND.to_dict()
    entries = [
        {"kind": "ledger", "at": at, "format": 1, "nonce": "ab" * 16},
        {
            "kind": "dataset",
            "at": at,
            "dataset": "adult",
            "unit": "row",
            "cap": {"epsilon": 1.0, "delta": 1e-6},
        },
        {
            "kind": "reserve",
            "at": at,
            "dataset": "adult",
            "study": "s",
            "job": "j",
            "events": full,
            "content": None,
            "confirmed": False,
        },
        {"kind": "charge", "at": at, "job": "j", "round": 0, "event": once, "frame": tag},
    ]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(OLD_TABLES)
    for name, when in OLD_TRIGGERS.items():
        connection.execute(
            f"CREATE TRIGGER {name} BEFORE {when} "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )
    link = "00" * 32
    for seq, entry in enumerate(entries, start=1):
        body = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        link = hashlib.sha256(bytes.fromhex(link) + body.encode()).hexdigest()
        connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, body, link))
    connection.execute("INSERT INTO frames VALUES ('j', 0, ?)", (frame,))
    connection.execute("INSERT INTO owner VALUES (1, ?)", (key,))
    connection.close()
    return path


def dump(path: Path, table: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT * FROM {table}").fetchall()
    finally:
        connection.close()


def test_a_file_of_the_first_format_is_refused_until_it_is_migrated(old: Path) -> None:
    before = {name: dump(old, name) for name in ("entries", "frames")}
    with pytest.raises(LedgerError, match=r"has format 1.*'cloister budget migrate'"):
        Ledger(old)
    assert migrate(old)
    assert not migrate(old)
    assert {name: dump(old, name) for name in before} == before
    ledger = Ledger(old)
    ledger.verify()
    assert ledger.commit(job="j", round=0, event=ROUND, frame=b"new") == b"an old frame"
    assert ledger.jobs()[0].reserved_at == "2025-03-04T05:06:07+00:00"
    ledger.commit(job="j", round=1, event=ROUND, frame=b"x", request=b"ask")
    assert len(ledger.secret("j")) == 32
    assert ledger.recorded("j") == ((b"ask", b"x"),)
    ledger.backup(old.with_name("copy"))
    ledger.verify()


def test_a_file_of_the_second_format_is_migrated_and_takes_statements(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        "DROP TABLE statements; DROP TABLE claims; DROP TRIGGER owner_update;"
        "CREATE TABLE peers (fingerprint TEXT NOT NULL PRIMARY KEY, head TEXT NOT NULL,"
        " signature BLOB NOT NULL, public BLOB NOT NULL);"
        "UPDATE owner SET format = 2;"
    )
    connection.execute(ledger_file.TRIGGERS["owner_update"])
    connection.close()
    with pytest.raises(LedgerError, match=r"has format 2.*'cloister budget migrate'"):
        Ledger(path)
    assert migrate(path)
    ledger = Ledger(path)
    ledger.remember([stated(ALICE, "j", 3)])
    assert len(ledger.remembered(ALICE.fingerprint)) == 1
    ledger.verify()


def test_a_migrated_file_has_the_triggers_of_a_new_one(old: Path, path: Path) -> None:
    migrate(old)
    wanted = "sqlite_master WHERE type = 'trigger' ORDER BY name"
    drop_page = [row[:3] + row[4:] for row in dump(path, wanted)]
    assert [row[:3] + row[4:] for row in dump(old, wanted)] == drop_page


def test_a_failed_migration_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(old, "sqlite_master")
    monkeypatch.setitem(ledger_file.TRIGGERS, "own_heads_update", "CREATE nonsense")
    with pytest.raises(LedgerError, match="cannot be read or written"):
        migrate(old)
    assert dump(old, "sqlite_master") == before
    assert dump(old, "owner")[0][0] == 1


def test_only_a_sound_ledger_is_migrated(old: Path, path: Path, tmp_path: Path) -> None:
    tamper(old, "DROP TRIGGER entries_update", "UPDATE entries SET body = '{}' WHERE seq = 2")
    with pytest.raises(LedgerError, match="entry 2 was changed"):
        migrate(old)
    assert dump(old, "owner")[0][0] == 1
    with pytest.raises(LedgerError, match="does not exist"):
        migrate(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    tamper(path, "DROP TRIGGER owner_update", "UPDATE owner SET format = 9")
    with pytest.raises(LedgerError, match="use a newer version"):
        migrate(path)


# Disks and locks ------------------------------------------------------------------------------


def uses(ledger: Ledger) -> dict[str, Callable[[], object]]:
    """Everything that writes, with more bytes than a page or two can hold."""
    big = b"x" * 100_000
    return {
        "commit": lambda: ledger.commit(job="j", round=2, event=ROUND, frame=big, request=b"ask"),
        "record": lambda: ledger.record("j", b"ask", big),
        "reserve": lambda: ledger.reserve(
            dataset="adult", study="s" * 100_000, job="more", events=ComposedEvent(())
        ),
        "statement": lambda: ledger.remember([stated(ALICE, "j" * 100_000, 1)]),
    }


def check_untouched_and_working(ledger: Ledger, head: str) -> None:
    assert ledger.head() == head
    assert ledger.frame("j", 2) is None
    assert ledger.frame("j", 1) == b"\x01" * 100
    assert ledger.recorded("j") == ()
    assert ledger.remembered(ALICE.fingerprint) == ()
    ledger.verify()
    assert ledger.commit(job="j", round=2, event=ROUND, frame=b"y", request=b"ask") == b"y"
    assert ledger.recorded("j") == ((b"ask", b"y"),)
    ledger.verify()


def test_a_full_database_loses_nothing_and_charges_nothing(path: Path) -> None:
    ledger = Ledger(path)
    head = ledger.head()
    asked(ledger, f"PRAGMA max_page_count = {asked(ledger, 'PRAGMA page_count')}")
    for use in uses(ledger).values():
        with pytest.raises(LedgerError, match=r"full.*nothing may be released"):
            use()
    assert ledger.head() == head
    asked(ledger, "PRAGMA max_page_count = 1000000")
    check_untouched_and_working(ledger, head)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(4096))


def test_a_full_disk_loses_nothing_and_charges_nothing(path: Path, tiny: Path) -> None:
    small = tiny / "owner.ledger"
    for end in ("", ".head"):
        shutil.copy(f"{path}{end}", f"{small}{end}")
    ledger = Ledger(small)
    head = ledger.head()
    with pytest.raises(OSError, match="No space"):
        fill(tiny / "filler")
    for use in uses(ledger).values():
        with pytest.raises(LedgerError, match="nothing may be released"):
            use()
    with pytest.raises(LedgerError, match="nothing may be released"):
        ledger.countersigned(head, {"ed25519:aa": b"a"})
    with pytest.raises(LedgerError):
        ledger.backup(tiny / "copy")
    (tiny / "filler").unlink()
    assert ledger.export()["countersigned"] == []
    check_untouched_and_working(ledger, head)
    ledger.dispose()
    assert sorted(file.name for file in tiny.iterdir()) == ["owner.ledger", "owner.ledger.head"]


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


def test_who_only_looks_waits_for_no_writer_and_sees_what_all_have_written(path: Path) -> None:
    ledger, other = Ledger(path), Ledger(path)
    before = ledger.head()
    other.commit(job="j", round=2, event=ROUND, frame=b"x")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert ledger.head() == other.head() != before
        assert ledger.statement("j", "a" * 64, FULL).head == other.head()
        assert ledger.jobs()[0].rounds == (0, 1, 2)
        writer.execute("ROLLBACK")
    ledger.verify()


def test_a_lock_held_too_long_by_another_process_charges_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    ledger = Ledger(path)
    head = ledger.head()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    for use in uses(ledger).values():
        with pytest.raises(LedgerError, match=r"locked.*nothing may be released"):
            use()
    holder.kill()
    holder.wait()
    holder.communicate()
    check_untouched_and_working(ledger, head)


def test_charging_a_round_loads_no_numerical_library(path: Path) -> None:
    code = f"""
import sys
from cloister.privacy.events import GaussianEvent
from cloister.privacy.ledger import Ledger
ledger = Ledger({str(path)!r})
ledger.commit(job="j", round=2, event=GaussianEvent({2 * SIGMA!r}), frame=b"x", request=b"ask")
print(*sorted({{"scipy", "dp_accounting", "pandas"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_an_old_ledger_holds_is_kept_and_above_the_limits_it_accepts_nothing_more(
    tmp_path: Path,
) -> None:
    """An entry without limits has the default ones; a reservation without a tariff is covered."""
    pure = RepeatedEvent(LaplaceEvent(8.0), 4)  # 0.5 by itself, and was accepted beside others
    for name, events, fits in (
        ("gaussian", RepeatedEvent(ROUND, 2), True),
        ("laplace", pure, False),
        ("cover", CoverEvent(0.02), False),
    ):
        ledger = Ledger(tmp_path / name)
        with ledger._transaction() as connection:
            ledger._append(
                connection,
                "dataset",
                dataset="adult",
                unit="row",
                cap={"epsilon": 1.0, "delta": 1e-6},
            )
        with ledger._transaction() as connection:
            ledger._append(
                connection,
                "reserve",
                dataset="adult",
                study="s",
                job="old",
                events=events.to_dict(),
                content=None,
                confirmed=False,
            )
        ledger.verify()
        assert ledger.limits("adult") == Limits(CAP, Split())
        assert mechanism_counts(ledger.jobs()[0].charged) == mechanism_counts(events)
        assert ledger.spent("adult") >= epsilon(events, 1e-6) * (1 - 1e-9)
        if fits:
            reserve(ledger, "new", 2)
            continue
        assert ledger.remaining("adult") == 0
        json.dumps(ledger.export(), allow_nan=False)
        for more in (GaussianEvent(1e6), LaplaceEvent(1e6)):
            with pytest.raises(BudgetExceeded):
                ledger.reserve(dataset="adult", study="s", job="new", events=more)
        ledger.open_dataset("adult", cap=CAP)  # nothing else about it has changed
        ledger.dispose()
