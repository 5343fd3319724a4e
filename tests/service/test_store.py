"""What the coordinator keeps survives it, and a round has one answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloister.core.errors import LedgerError, LocalProtocolError
from cloister.federation.service.store import Store
from cloister.privacy.events import GaussianEvent
from cloister.protocol.journal import AnswerJournal, HeadBook, Journal
from cloister.testing import toy_plan

EVENT = GaussianEvent(10.0)
FRAME = bytes(range(256)) * 40


def running(store: Store) -> str:
    """Return the id of a new running job."""
    plan = toy_plan()
    assert store.propose(plan.run_id, plan.to_dict(), {"name": "ana"})
    assert store.start(plan.run_id, plan.silos)
    return plan.run_id


def test_a_repeated_round_is_answered_with_the_first_bytes(database_url: str) -> None:
    store = Store(database_url)
    job = running(store)
    assert store.frame(job, 0) is None
    assert store.commit(job=job, round=0, event=EVENT, frame=FRAME, request=b"q") == FRAME
    assert store.commit(job=job, round=0, event=EVENT, frame=b"other noise") == FRAME
    assert store.frame(job, 0) == FRAME
    assert store.recorded(job) == ((b"q", FRAME),)
    assert store.counts()[1] == 1
    store.close()
    again = Store(database_url)
    assert again.commit(job=job, round=0, event=EVENT, frame=b"third") == FRAME
    again.close()


def test_a_round_has_one_event(database_url: str) -> None:
    store = Store(database_url)
    job = running(store)
    store.commit(job=job, round=0, event=EVENT, frame=FRAME)
    with pytest.raises(LedgerError, match="one meaning"):
        store.commit(job=job, round=0, event=GaussianEvent(9.0), frame=FRAME)
    store.close()


def test_a_job_that_does_not_run_releases_nothing(database_url: str) -> None:
    store = Store(database_url)
    with pytest.raises(LocalProtocolError, match="unknown"):
        store.commit(job="0" * 32, round=0, event=EVENT, frame=FRAME)
    plan = toy_plan()
    store.propose(plan.run_id, plan.to_dict(), {"name": "ana"})
    for state in ("proposed", "cancelled"):
        if state == "cancelled":
            assert store.end(plan.run_id, "cancelled", "enough")
        with pytest.raises(LocalProtocolError, match=state):
            store.commit(job=plan.run_id, round=0, event=EVENT, frame=FRAME)
    assert store.frame(plan.run_id, 0) is None
    store.close()


def test_answers_are_kept_in_order_and_the_first_one_stays(database_url: str) -> None:
    store = Store(database_url)
    asked = [f"request {i}".encode() for i in (3, 1, 2)]
    for request in asked:
        assert store.record("a", request, request[::-1]) == request[::-1]
    assert store.record("a", asked[0], b"another answer") == asked[0][::-1]
    store.record("b", asked[0], b"of another job")
    store.close()
    again = Store(database_url)
    assert again.recorded("a") == tuple((request, request[::-1]) for request in asked)
    assert again.recorded("b") == ((asked[0], b"of another job"),)
    again.close()


def test_an_id_is_used_once_and_states_only_go_forward(database_url: str) -> None:
    store = Store(database_url)
    job = running(store)
    again = replace(toy_plan(), run_id=job)
    assert not store.propose(job, again.to_dict(), {"name": "eve"})
    assert not store.start(job, ("silo-0",)), "a running job cannot start again"
    assert not store.decide(job, "silo-0", False, "too late")
    assert store.end(job, "done")
    for state in ("failed", "cancelled", "declined", "done"):
        assert not store.end(job, state, "again")  # type: ignore[arg-type]
    store.progress(job, 9, ("silo-0",))
    known = store.job(job)
    assert known is not None
    assert (known.state, known.reason, known.rounds_done) == ("done", "", 0)
    assert known.approved == ("silo-0", "silo-1", "silo-2")
    assert store.job("f" * 32) is None
    store.close()


def test_the_last_decision_before_the_start_counts(database_url: str) -> None:
    store = Store(database_url)
    plan = toy_plan()
    store.propose(plan.run_id, plan.to_dict(), {"name": "ana"})
    assert store.decide(plan.run_id, "silo-0", True, "")
    assert store.decide(plan.run_id, "silo-0", False, "changed my mind")
    assert [(d.silo, d.approved, d.reason) for d in store.decisions(plan.run_id)] == [
        ("silo-0", False, "changed my mind")
    ]
    store.close()


def test_lists_are_newest_first_and_of_one_silo(database_url: str) -> None:
    store = Store(database_url)
    plans = [toy_plan(), toy_plan(silos=5), toy_plan()]
    for plan in plans:
        store.propose(plan.run_id, plan.to_dict(), {"name": "ana"})
    ids = [plan.run_id for plan in plans]
    assert [job.id for job in store.jobs()] == ids[::-1]
    assert [job.id for job in store.jobs(silo="silo-4")] == ids[1:2]
    assert [job.id for job in store.jobs(limit=1)] == ids[2:]
    store.end(ids[0], "cancelled")
    assert [job.id for job in store.jobs(states=("proposed",))] == ids[:0:-1]
    assert store.counts()[0]["cancelled"] == 1
    store.close()


def test_text_from_outside_is_only_ever_a_value(database_url: str) -> None:
    store = Store(database_url)
    evil = "x'); DROP TABLE jobs; --\"$1 :of_job %s"
    plan = replace(toy_plan(silos=2), silos=(evil, "b"), study=evil)
    store.propose(plan.run_id, plan.to_dict(), {"name": evil})
    store.decide(plan.run_id, evil, True, evil)
    store.refuse(plan.run_id, evil, evil)
    store.seen(evil, evil, datetime(2030, 1, 1, tzinfo=UTC))
    assert store.decisions(plan.run_id)[0].silo == evil
    assert store.refusals(plan.run_id) == {evil: evil}
    assert [job.proposer["name"] for job in store.jobs(silo=evil)] == [evil]
    assert store.silos()[0].name == evil
    store.close()


def test_a_silo_is_seen_with_its_last_certificate(database_url: str) -> None:
    store = Store(database_url)
    until = datetime(2030, 1, 1, tzinfo=UTC)
    store.seen("b", "old", until)
    store.seen("b", "new", until)
    store.seen("a", "other", until)
    assert [(s.name, s.fingerprint, s.not_after) for s in store.silos()] == [
        ("a", "other", until),
        ("b", "new", until),
    ]
    store.close()


def test_one_answer_is_found_by_its_request(database_url: str) -> None:
    store = Store(database_url)
    job = running(store)
    store.record(job, b"result/ana/a", b"sealed")
    assert store.answer_to(job, b"result/ana/a") == b"sealed"
    assert store.answer_to(job, b"result/ana/b") is None
    assert store.answer_to("0" * 32, b"result/ana/a") is None
    store.end(job, "done")
    store.forget([job])
    assert store.answer_to(job, b"result/ana/a") is None
    store.close()


def test_the_coordinator_has_neither_secrets_nor_heads() -> None:
    """It could not keep one if it were asked to: an aggregator's journal has no place for them."""
    answers = {name for name in vars(AnswerJournal) if not name.startswith("_")}
    assert answers <= set(dir(Store))
    kept = {name for name in vars(Journal) | vars(HeadBook) if not name.startswith("_")} - answers
    assert {"secret", "head", "statement", "remember", "countersigned"} <= kept
    assert not kept & set(dir(Store))
    assert "peer_statements" in signature(Journal.commit).parameters
    assert "peer_statements" not in signature(Store.commit).parameters


def test_threads_share_a_store(database_url: str) -> None:
    store = Store(database_url)
    job = running(store)
    answers: list[bytes] = []

    def commit(number: int) -> None:
        answers.append(store.commit(job=job, round=0, event=EVENT, frame=bytes([number])))
        store.record(job, bytes([number]), b"a")

    threads = [threading.Thread(target=commit, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    assert len(store.recorded(job)) == 8
    store.close()


# Which databases are taken -------------------------------------------------------------------


def test_a_newer_database_is_refused(
    database_url: str, execute: Callable[[str, str], None]
) -> None:
    Store(database_url).close()
    execute(database_url, "UPDATE schema_version SET version = 2")
    with pytest.raises(LedgerError, match=r"has version 2 .* use a newer cloister"):
        Store(database_url)


def test_a_second_coordinator_is_refused_within_seconds(database_url: str) -> None:
    first = Store(database_url)
    begun = time.monotonic()
    with pytest.raises(LedgerError, match="in use by another coordinator; stop that one"):
        Store(database_url)
    assert time.monotonic() - begun < 5
    first.close()
    Store(database_url).close()


def test_a_server_that_forgets_for_one_session_is_refused(new_database: Callable[[], str]) -> None:
    with pytest.raises(LedgerError, match="synchronous_commit off"):
        Store(new_database() + "?options=-csynchronous_commit%3Doff")


def test_a_server_without_fsync_is_refused(new_database: Callable[[], str]) -> None:
    url = new_database()
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("ALTER SYSTEM SET fsync = off")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        wait_until_fsync_is(engine, "off")
        with pytest.raises(LedgerError, match="fsync off"):
            Store(url)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql("ALTER SYSTEM RESET fsync")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        wait_until_fsync_is(engine, "on")  # or the next test would be refused
        engine.dispose()


def wait_until_fsync_is(engine: sa.Engine, wanted: str) -> None:
    """Wait until the server has read its settings, which it does when it comes to it."""
    deadline = time.monotonic() + 60
    with engine.connect() as connection:
        while connection.exec_driver_sql("SHOW fsync").scalar_one() != wanted:
            assert time.monotonic() < deadline, "the server does not read its settings"
            time.sleep(0.05)


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "nonsense", "sqlite:///:memory:"])
def test_a_database_that_would_forget_or_is_unknown_is_refused(url: str) -> None:
    with pytest.raises(LedgerError, match=r"database must be sqlite:///FILE or postgresql"):
        Store(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary\n" * 200)
    with pytest.raises(LedgerError, match="not a database"):
        Store(f"sqlite:///{tmp_path / 'notes.txt'}")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(LedgerError) as refused:
        Store("postgresql+psycopg://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(refused.value)


def test_a_full_disk_releases_nothing(sqlite_url: str, execute: Callable[[str, str], None]) -> None:
    store = Store(sqlite_url)
    job = running(store)
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(LedgerError, match="full"):
        store.commit(job=job, round=0, event=EVENT, frame=bytes(100_000))
    assert store.frame(job, 0) is None
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert store.commit(job=job, round=0, event=EVENT, frame=FRAME) == FRAME
    store.close()


# Kill -9 between any two statements ----------------------------------------------------------


def killed_at(url: str, statement: int, work: Callable[[Store], None]) -> bool:
    """Do `work` in a child that kills itself before its n-th statement; return whether it did."""
    child = os.fork()
    if child == 0:
        try:
            store = Store(url)
            left = [statement]

            def count(*_: object) -> None:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            sa.event.listen(store._engine, "before_cursor_execute", count)
            sa.event.listen(store._engine, "commit", count)
            work(store)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_kill_between_any_two_statements_leaves_all_of_a_round_or_nothing(
    database_url: str,
) -> None:
    store = Store(database_url)
    job = running(store)
    store.close()
    kills = 0
    for statement in range(100):

        def commit(store: Store, number: int = statement) -> None:
            frame = number.to_bytes(2, "big")
            store.commit(job=job, round=0, event=EVENT, frame=frame, request=b"q")

        if not killed_at(database_url, statement, commit):
            break
        kills += 1
        store = Store(database_url)
        assert store.frame(job, 0) is None, "nothing left before the commit was durable"
        assert store.recorded(job) == ()
        store.close()
    assert kills >= 6, "read, state, insert, two look-ups, insert, commit"
    store = Store(database_url)
    assert store.frame(job, 0) == kills.to_bytes(2, "big")
    assert store.recorded(job) == ((b"q", kills.to_bytes(2, "big")),)
    assert store.counts()[1] == 1
    store.close()


def test_a_kill_right_after_a_commit_loses_nothing(database_url: str) -> None:
    store = Store(database_url)
    job = running(store)
    store.close()

    def commit_and_die(store: Store) -> None:
        store.commit(job=job, round=0, event=EVENT, frame=FRAME)
        os.kill(os.getpid(), signal.SIGKILL)

    assert killed_at(database_url, 1000, commit_and_die)
    store = Store(database_url)
    assert store.frame(job, 0) == FRAME
    assert store.commit(job=job, round=0, event=EVENT, frame=b"fresh noise") == FRAME
    store.close()


def test_a_kill_while_the_tables_are_made_leaves_a_database_that_opens(database_url: str) -> None:
    for statement in range(0, 40, 3):
        child = os.fork()
        if child == 0:
            left = [statement]

            def count(*_: object, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            sa.event.listen(sa.Engine, "before_cursor_execute", count)
            try:
                Store(database_url)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    store = Store(database_url)
    running(store)
    store.close()
