"""``cloister budget``: a file is copied, exported, checked and migrated from the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from cloister.cli import main
from cloister.federation.pki import KeyFolder
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.events import GaussianEvent, RepeatedEvent
from cloister.privacy.ledger import Ledger, SignedStatement

Said = pytest.CaptureFixture[str]
ROUND = GaussianEvent(20.0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with an open job, a secret and an answer."""
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("ledger.db")
    ledger.open_dataset("ward", cap=Budget(1.0, 1e-6))
    ledger.reserve(dataset="ward", study="s", job="j", events=RepeatedEvent(ROUND, 2), task="t1")
    ledger.commit(job="j", round=0, event=ROUND, frame=b"frame", request=b"ask")
    ledger.secret("j")
    ledger.countersigned(ledger.head(), {"ed25519:aa": b"signature"})
    ledger.dispose()
    return tmp_path / "ledger.db"


def test_the_cap_of_a_study_is_changed_and_shown(file: Path, capsys: Said) -> None:
    assert main(["budget", "cap", "ledger.db", "ward", "--study", "s", "--epsilon", "0.8"]) == 0
    assert "max_epsilon_per_study" in capsys.readouterr().out
    assert main(["budget", "cap", "ledger.db", "ward", "--study", "s", "--epsilon", "2"]) != 0
    capsys.readouterr()
    assert main(["budget", "show", "ledger.db"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cap of study 's' epsilon=0.8" in said
    assert " j t1 s " in said
    assert main(["budget", "show", "ledger.db", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["datasets"]["ward"]["study_epsilons"] == {"s": 0.8}
    assert shown["tasks"] == {"j": "t1"}


def test_a_changed_lifetime_cap_says_what_to_set_at_the_silo(file: Path, capsys: Said) -> None:
    assert main(["budget", "cap", "ledger.db", "ward", "--epsilon", "2"]) == 0
    assert "cap_epsilon = 2, cap_delta = 1e-06" in capsys.readouterr().out


def test_a_backup_says_what_restoring_it_means(file: Path, capsys: Said) -> None:
    assert main(["budget", "backup", "ledger.db", "--out", "copy.db"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "leaves its running jobs" in said
    assert "its peers notice" in said
    assert stat.S_IMODE(Path("copy.db").stat().st_mode) == 0o600
    assert main(["budget", "verify", "copy.db"]) == 0
    assert main(["budget", "backup", "ledger.db", "--out", "other.db", "--json"]) == 0
    assert main(["budget", "backup", "ledger.db", "--out", "copy.db"]) == 6
    assert "is not replaced" in capsys.readouterr().err


def test_a_restored_backup_that_is_behind_is_refused(file: Path, capsys: Said) -> None:
    assert main(["budget", "backup", "ledger.db", "--out", "copy.db"]) == 0
    ledger = Ledger(file)
    ledger.commit(job="j", round=1, event=ROUND, frame=b"frame")
    ledger.countersigned(ledger.head(), {"ed25519:aa": b"signature"})
    ledger.dispose()
    file.unlink()
    Path("copy.db").rename(file)
    assert main(["budget", "verify", "ledger.db"]) == 6
    assert "is behind the head" in capsys.readouterr().err
    Path("ledger.db.head").unlink()
    assert main(["budget", "verify", "ledger.db"]) == 0


def test_a_backup_restored_after_a_lowered_cap_is_refused(file: Path, capsys: Said) -> None:
    assert main(["budget", "backup", "ledger.db", "--out", "copy.db"]) == 0
    assert main(["budget", "cap", "ledger.db", "ward", "--epsilon", "2"]) == 0
    assert not Path("ledger.db-wal").exists()  # it would be applied to the copy
    file.unlink()
    Path("copy.db").rename(file)
    capsys.readouterr()
    assert main(["budget", "show", "ledger.db"]) == 6
    assert "is behind the head" in capsys.readouterr().err


def test_an_export_is_the_same_under_the_old_name(file: Path, capsys: Said) -> None:
    documents = []
    for command in ("ledger", "budget"):
        assert main([command, "export", "ledger.db"]) == 0
        told = capsys.readouterr()
        documents.append(json.loads(told.out))
        assert ("'ledger' is now 'budget'" in told.err) == (command == "ledger")
    assert documents[0] == documents[1]
    assert documents[0]["countersigned"][0]["fingerprint"] == "ed25519:aa"
    assert main(["budget", "export", "ledger.db", "--out", "chain.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "budget export"
    assert json.loads(Path("chain.json").read_text()) == documents[0]


def test_verify_says_the_head_and_finds_a_change(file: Path, capsys: Said) -> None:
    assert main(["budget", "verify", "ledger.db", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["entries"], told["head"]) == (4, Ledger(file).head())
    sqlite3.connect(file, isolation_level=None).execute("DELETE FROM frames")
    assert main(["budget", "verify", "ledger.db"]) == 6
    assert "is missing" in capsys.readouterr().err


def test_migrating_twice_is_migrating_once(file: Path, capsys: Said) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    (trigger,) = connection.execute(
        "SELECT sql FROM sqlite_master WHERE name = 'owner_update'"
    ).fetchone()
    for table in ("answers", "secrets", "statements", "claims", "own_heads"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("DROP TRIGGER owner_update")
    connection.execute("UPDATE owner SET format = 1")
    connection.execute(trigger)
    connection.close()
    assert main(["budget", "verify", "ledger.db"]) == 6
    assert "cloister budget migrate" in capsys.readouterr().err
    assert main(["budget", "migrate", "ledger.db"]) == 0
    assert "migrated" in capsys.readouterr().out
    assert main(["budget", "migrate", "ledger.db"]) == 0
    assert "already" in capsys.readouterr().out
    assert main(["budget", "verify", "ledger.db"]) == 0


@pytest.mark.parametrize("action", ["export", "verify", "migrate", "backup"])
def test_a_missing_ledger_is_an_error_and_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, action: str
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--out", "copy.db"] if action == "backup" else []
    assert main(["budget", action, "absent.db", *more]) == 6
    assert "does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# A copy that was put back -------------------------------------------------------------------------


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A silo's ledger that is an older copy, its keys, and the ledger of its peer."""
    monkeypatch.chdir(tmp_path)
    asked = ["federation", "enroll", "request", "--role", "silo", "--name", "a"]
    assert main([*asked, "--keys", "keys", "--out", "a.json"]) == 0
    me = KeyFolder(Path("keys")).identity()
    ledger, peer = Ledger("ledger.db"), Ledger("peer.db")
    ledger.open_dataset("ward", cap=Budget(1.0, 1e-6))
    ledger.reserve(dataset="ward", study="s", job="kept", events=ROUND)
    ledger.close("kept")
    ledger.backup("copy.db")
    ledger.reserve(dataset="ward", study="s", job="gone", events=RepeatedEvent(ROUND, 2))
    ledger.commit(job="gone", round=0, event=ROUND, frame=b"frame")
    said = ledger.statement("gone", "a" * 64, RepeatedEvent(ROUND, 2))
    peer.remember([SignedStatement.of(said, me)])
    for book in (ledger, peer):
        book.dispose()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        Path(name).unlink(missing_ok=True)
    Path("copy.db").rename("ledger.db")
    Path("fingerprint").write_text(me.fingerprint)
    return tmp_path


def test_an_older_copy_takes_in_what_its_peers_wrote_for_it(lost: Path, capsys: Said) -> None:
    assert main(["budget", "verify", "ledger.db"]) == 6
    assert "budget recover" in capsys.readouterr().err
    recover = ["budget", "recover", "ledger.db", "--keys", "keys"]
    assert main(recover) == 6
    assert "is behind the head" in capsys.readouterr().err
    print_of = Path("fingerprint").read_text()
    written = ["budget", "statements", "peer.db", "--of", print_of, "--out", "for-a.json"]
    assert main(written) == 0
    assert main(written) == 3  # nothing is written over
    assert main(["budget", "statements", "peer.db", "--of", "ed25519:aa", "--out", "no.json"]) == 6
    capsys.readouterr()
    assert main([*recover, "--from", "for-a.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == ["gone"]
    assert main([*recover, "--from", "for-a.json"]) == 0
    assert "missing jobs added: 0" in capsys.readouterr().out
    ledger = Ledger("ledger.db")
    assert ledger.spent("ward") == epsilon(RepeatedEvent(ROUND, 2), 1e-6)
    assert [job.is_open for job in ledger.jobs()] == [False, False]
    ledger.dispose()
    assert main(["budget", "verify", "ledger.db"]) == 0
    capsys.readouterr()
    assert main(["budget", "show", "ledger.db"]) == 0
    assert "gone" in capsys.readouterr().out  # its charge is in what is spent


def test_recovery_says_what_to_do_when_the_newest_job_was_charged_after_its_statement(
    lost: Path, capsys: Said
) -> None:
    """A statement precedes the rounds of its job, so the head of the last round is newer."""
    me, peer = KeyFolder(Path("keys")).identity(), Ledger("peer.db")
    Path("ledger.db").rename("copy.db")
    Path("ledger.db.head").unlink()
    shutil.copy("copy.db", "ledger.db")
    ledger = Ledger("ledger.db")
    ledger.reserve(dataset="ward", study="s", job="last", events=ROUND)
    said = ledger.statement("last", "a" * 64, ROUND)
    peer.remember([SignedStatement.of(said, me)])
    ledger.commit(job="last", round=0, event=ROUND, frame=b"frame")
    for book in (ledger, peer):
        book.dispose()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        Path(name).unlink(missing_ok=True)
    Path("copy.db").rename("ledger.db")
    asked = ["budget", "statements", "peer.db", "--of", me.fingerprint, "--out", "for-a.json"]
    assert main(asked) == 0
    recover = ["budget", "recover", "ledger.db", "--keys", "keys", "--from", "for-a.json"]
    capsys.readouterr()
    assert main(recover) == 6
    message = " ".join(capsys.readouterr().err.split())
    assert "2 of them added now" in message
    assert "ledger.db.head' is newer" in message
    assert "remove that file" in message
    assert "budget recover" not in message  # it does not ask for itself
    Path("ledger.db.head").unlink()
    restored = Ledger("ledger.db")
    assert {job.job for job in restored.jobs()} == {"kept", "gone", "last"}
    assert restored.spent("ward") == pytest.approx(epsilon(RepeatedEvent(ROUND, 3), 1e-6))
    restored.dispose()


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": "cloister-statements/1", "statements": [1]}', "\xff"]
)
def test_what_is_no_file_of_statements_is_said(lost: Path, capsys: Said, content: str) -> None:
    Path("for-a.json").write_text(content, encoding="latin-1")
    recover = ["budget", "recover", "ledger.db", "--keys", "keys", "--from", "for-a.json"]
    assert main(recover) == 6
    assert "is not a file of 'cloister budget statements'" in capsys.readouterr().err


def test_the_owner_notes_that_the_clock_is_right(file: Path, capsys: Said) -> None:
    assert main(["budget", "clock", "ledger.db", "--json"]) == 0
    at = json.loads(capsys.readouterr().out)["at"]
    ledger = Ledger(file)
    assert ledger.entries()[-1].fields == {"kind": "clock", "at": at}


def test_a_plain_copy_is_refused_until_its_owner_recovers_it(file: Path, capsys: Said) -> None:
    Path("alone.db").write_bytes(file.read_bytes())
    assert main(["budget", "show", "alone.db"]) == 6
    assert "is a plain copy" in " ".join(capsys.readouterr().err.split())
    assert main(["budget", "recover", "alone.db"]) == 0
    assert main(["budget", "show", "alone.db"]) == 0
    assert not any(job.is_open for job in Ledger("alone.db").jobs())
