"""Files of a federation that were damaged, or that others may read."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.core.errors import LedgerError, PlanError
from cloister.data.schema import Column, Schema
from cloister.federation.local import LocalFederation
from cloister.federation.service.store import Store as Coordinator
from cloister.federation.settings import load_settings
from cloister.federation.silo.main import open_agent
from cloister.federation.silo.store import Store as Jobs
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.events import GaussianEvent
from cloister.privacy.ledger import Ledger, SignedStatement, Statement
from cloister.protocol.lifecycle import SiloState as State
from cloister.testing import toy_plan

ROUND = GaussianEvent(20.0)
PAGE = 4096


def made_ledger(path: Path) -> None:
    peer = Identity.new()
    ledger = Ledger(path)
    ledger.open_dataset("d", cap=Budget(5.0, 1e-6))
    for i in range(15):
        job = f"j{i}"
        ledger.reserve(dataset="d", study="s", job=job, events=ROUND)
        ledger.commit(job=job, round=0, event=ROUND, frame=bytes(200), request=b"ask")
        ledger.secret(job)
        said = Statement("d", "s", job, "a" * 64, ROUND, "b" * 64, i)
        ledger.remember([SignedStatement.of(said, peer)])
        ledger.countersigned(ledger.head(), {peer.fingerprint: b"x" * 64})
        if i % 2:
            ledger.close(job)
    ledger._empty_log()
    ledger.dispose()
    path.with_name(f"{path.name}.head").unlink()


def read_ledger(path: Path) -> float:
    ledger = Ledger(path, behind=True)  # a copy without the file of its head
    try:
        spent = ledger.spent("d")
        ledger.jobs()
        ledger.export()
        ledger.shown_above("ed25519:aa")
        ledger.recorded("j0")
        return spent
    finally:
        ledger.dispose()


def made_jobs(path: Path) -> None:
    store = Jobs(path)
    for _ in range(15):
        plan = toy_plan()
        store.add(plan.run_id, plan.canonical_json(), {"name": "ann"}, State.WAITING)
    store.dispose()


def read_jobs(path: Path) -> int:
    store = Jobs(path)
    try:
        store.states()
        store.ran()
        store.unreported()
        return len(store.jobs())
    finally:
        store.dispose()


def made_coordinator(path: Path) -> None:
    store = Coordinator(f"sqlite:///{path}")
    for _ in range(15):
        plan = toy_plan()
        store.propose(plan.run_id, plan.to_dict(), {"name": "ann"})
    store.close()


def read_coordinator(path: Path) -> int:
    store = Coordinator(f"sqlite:///{path}")
    try:
        return len(store.jobs())
    finally:
        store.close()


def damaged(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    pages = len(changed) // PAGE
    first, second = (PAGE * rng.randrange(pages) for _ in range(2))
    match rng.choice(["bits", "bits", "zeros", "noise", "cut", "swap"]):
        case "bits":
            for _ in range(rng.choice([1, 4, 40])):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case "zeros":
            changed[first : first + PAGE] = bytes(PAGE)
        case "noise":
            changed[first : first + PAGE] = rng.randbytes(PAGE)
        case "cut":
            changed = changed[: rng.randrange(len(changed))]
        case "swap":
            one, other = changed[first : first + PAGE], changed[second : second + PAGE]
            changed[first : first + PAGE], changed[second : second + PAGE] = other, one
    return bytes(changed)


FILES: dict[str, tuple[Callable[[Path], None], Callable[[Path], float]]] = {
    "ledger": (made_ledger, read_ledger),
    "jobs": (made_jobs, read_jobs),
    "coordinator": (made_coordinator, read_coordinator),
}


@pytest.mark.parametrize("kind", FILES)
def test_whatever_damages_a_file_it_is_a_ledger_error_or_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    make, read = FILES[kind]
    path, rng = tmp_path / "file.db", random.Random(5)
    make(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    good, whole = path.read_bytes(), read(path)
    refused = 0
    for number in range(100):
        other = tmp_path / f"{number}.db"
        other.write_bytes(damaged(good, rng))
        try:
            found = read(other)
        except LedgerError:  # and nothing else
            refused += 1
            continue
        assert kind != "ledger" or found == whole, "a damaged ledger forgets nothing"
    assert refused > 50


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_page_is_found_when_the_file_is_opened(kind: str, tmp_path: Path) -> None:
    make, read = FILES[kind]
    path = tmp_path / "file.db"
    make(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE rootpage > 1 ORDER BY rootpage DESC LIMIT 1"
    ).fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    content[PAGE * (root - 1) : PAGE * root] = b"\xa5" * PAGE
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"damaged|malformed"):
        read(path)


# --- Modes ----------------------------------------------------------------------------------------

SCHEMA = Schema(dataset="d", unit="row", columns=(Column(name="x", type="number", min=0, max=1),))


def test_the_coordinators_files_are_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    before = os.umask(0o000)
    try:
        for _ in range(2):
            store = Coordinator(f"sqlite:///{path}")
            plan = toy_plan()
            store.propose(plan.run_id, plan.to_dict(), {"name": "ann"})
            found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
            assert set(found.values()) == {0o600}, found
            assert "coordinator.db-wal" in found
            store.close()
            path.chmod(0o644)  # as an earlier version made it
    finally:
        os.umask(before)


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    """The settings of a silo that was just set up."""
    table = tmp_path / "a.csv"
    table.write_text("x\n0.5\n")
    tables = dict.fromkeys(("a", "b"), table)
    made = LocalFederation(tmp_path / "federation", SCHEMA, tables, cap_epsilon=1.0)
    return made.config("a")


@pytest.mark.parametrize(
    ("name", "mode", "error"),
    [
        ("keys/identity.key", 0o644, PlanError),
        ("keys/identity.key", 0o640, PlanError),
        ("keys/tls.key", 0o604, PlanError),
        ("keys", 0o777, PlanError),
        ("ledger.db", 0o666, LedgerError),
        ("ledger.db", 0o640, LedgerError),
        ("ledger.jobs.db", 0o644, LedgerError),
    ],
)
def test_an_agent_does_not_start_with_keys_or_a_ledger_that_others_may_read(
    silo: Path, name: str, mode: int, error: type[Exception]
) -> None:
    agent = open_agent(load_settings(silo), wait=lambda _: True)  # type: ignore[arg-type]
    agent._ledger.dispose()
    agent._store.dispose()
    agent._audit.close()
    path = silo.parent / name
    path.chmod(mode)
    with pytest.raises(error, match=r"others may.*chmod"):
        open_agent(load_settings(silo), wait=lambda _: True)  # type: ignore[arg-type]
