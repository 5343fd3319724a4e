"""The file of jobs: one decision each, whoever makes it, and nothing forgotten."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloister.core.errors import LedgerError, PlanError
from cloister.federation.silo.store import Store
from cloister.protocol import lifecycle
from cloister.protocol.lifecycle import OPEN
from cloister.protocol.lifecycle import SiloState as State

JOB = "0123456789abcdef" * 2


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "jobs.db")
    store.add(JOB, "{}", {"name": "ann"}, State.WAITING)
    return store


def test_a_job_is_kept_as_it_came_first(store: Store) -> None:
    assert not store.add(JOB, '{"other": 1}', {}, State.ACCEPTED)
    job = store.get(JOB)
    assert job is not None
    assert (job.plan, job.proposer, job.state) == ("{}", {"name": "ann"}, State.WAITING)


def test_only_one_of_many_decisions_counts(store: Store) -> None:
    made: list[State] = []
    ends = [lifecycle.DENY, lifecycle.WITHDRAW, lifecycle.CLOSES[State.CANCELLED]]

    def decide(step: lifecycle.Step[State]) -> None:
        if Store(store.path).move(JOB, step):
            made.append(step.target)

    threads = [threading.Thread(target=decide, args=(step,)) for step in ends * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert store.state(JOB) == made[0]


def test_of_many_steps_from_one_state_one_is_taken(store: Store) -> None:
    assert [store.move(JOB, lifecycle.ACCEPT) for _ in range(3)] == [True, False, False]


def test_a_change_by_another_process_is_seen_at_the_next_look(store: Store) -> None:
    assert store.states(OPEN) == {JOB: State.WAITING}
    code = (
        "import sys; from cloister.protocol import lifecycle; "
        "from cloister.federation.silo.store import Store; "
        f"assert Store(sys.argv[1]).move({JOB!r}, lifecycle.ACCEPT, by='owner')"
    )
    subprocess.run([sys.executable, "-c", code, str(store.path)], check=True)
    assert store.states(OPEN) == {JOB: State.ACCEPTED}
    assert store.state(JOB) == State.ACCEPTED


def test_a_change_of_our_own_is_seen_at_once(store: Store) -> None:
    way = (lifecycle.ACCEPT, lifecycle.RESERVE, lifecycle.BEGIN, lifecycle.FINISH)
    for step in (*way, lifecycle.CLOSES[State.DONE]):
        assert store.move(JOB, step)
        assert store.state(JOB) == step.target
        assert store.states() == {JOB: step.target}


def test_a_change_of_state_stays_unnoted_until_it_is_noted(store: Store) -> None:
    (job,) = store.unreported()
    store.note(job)
    assert store.unreported() == ()
    store.move(JOB, lifecycle.WITHDRAW)
    assert [job.state for job in Store(store.path).unreported()] == [State.WITHDRAWN]


def test_a_job_is_found_by_how_its_id_begins(store: Store) -> None:
    assert store.find("0123").id == JOB
    store.add("0" * 32, "{}", {}, State.WAITING)
    for start in ("0", "f", ""):
        with pytest.raises(PlanError, match="jobs list"):
            store.find(start)


def test_the_file_is_for_its_owner_alone(store: Store) -> None:
    for path in store.path.parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path.name


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("not a database, and long enough to be taken for something else" * 20)
    with pytest.raises(LedgerError, match="file of jobs"):
        Store(path)
    with pytest.raises(LedgerError, match="file of jobs"):
        Store(tmp_path / "missing" / "jobs.db")
