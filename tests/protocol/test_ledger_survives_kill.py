"""SIGKILL at every statement of a job's life: nothing forgotten, nothing charged twice.

Run as a script, this file is a nursery: it has everything imported, and forks a child for each
line ``<path> <n>`` on its standard input. The child lives a job and kills itself at the n-th
statement, commit or change of a file name. What it released before that, it has written to
``<path>.sent``.
"""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloister.core.errors import LedgerError
from cloister.privacy.budget import Budget
from cloister.privacy.events import GaussianEvent, RepeatedEvent
from cloister.privacy.ledger import Ledger

CAP = Budget(1.0, 1e-6)
ROUND = GaussianEvent(10.0)
ROUNDS = 3
SECRET, CONFIRM = -1, 100  # numbers of what is released beside the frames of rounds

Release = Callable[[int, bytes], None]


def asked(number: int) -> bytes:
    return f"request {number}".encode()


def live(path: str, release: Release) -> None:
    """One job from a missing file to forgotten frames; run again, it goes on where it was."""
    ledger = Ledger(path)
    ledger.open_dataset("adult", cap=CAP)
    ledger.study_cap("adult", "study", Budget(0.95, CAP.delta))
    if not any(job.is_open for job in ledger.jobs()) and ledger.jobs():
        ledger.forget_frames("job")
        return
    ledger.reserve(
        dataset="adult",
        study="study",
        job="job",
        events=RepeatedEvent(ROUND, ROUNDS + 1),  # one round is never used
        content=b"records",
    )
    release(SECRET, ledger.secret("job"))
    for t in range(ROUNDS):
        # Fresh bytes in every life, as fresh noise would be: only the first may ever leave.
        frame = ledger.commit(
            job="job", round=t, event=ROUND, frame=os.urandom(16), request=asked(t)
        )
        release(t, frame)
        release(CONFIRM + t, ledger.record("job", asked(CONFIRM + t), os.urandom(16)))
        ledger.countersigned(ledger.head(), {"ed25519:aa": b"signature"})
    ledger.close("job")
    ledger.forget_frames("job")


def child(path: str, n: int) -> None:
    left = n

    def step(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, values: tuple[Any, ...]) -> None:
        writes = event == "open" and str(values[0]).endswith(".head") and values[1] == "r+b"
        if writes or event in ("os.link", "os.remove", "os.rename", "sqlite3.connect"):
            step()

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(step)  # before each statement, BEGIN and COMMIT too
        return connection

    connect, sqlite3.connect = sqlite3.connect, traced
    sys.addaudithook(audit)
    sent = os.open(f"{path}.sent", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def release(t: int, frame: bytes) -> None:
        step()  # committed, and not sent yet
        os.write(sent, f"{t} {frame.hex()}\n".encode())
        step()

    live(path, release)


def nursery() -> None:
    with tempfile.TemporaryDirectory() as folder:  # load once what is loaded on first use
        live(f"{folder}/warm", lambda _round, _frame: None)
    gc.freeze()  # a collection in a child would copy all that it shares with us
    for line in sys.stdin:
        path, n = line.split()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(path, int(n))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Path, int], int]]:
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run_child(path: Path, n: int) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path} {n}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield run_child
    process.communicate(timeout=120)
    assert process.returncode == 0


def sent(path: Path) -> dict[int, bytes]:
    """Return what has left, after checking that a round never left as two different frames."""
    frames: dict[int, bytes] = {}
    file = Path(f"{path}.sent")
    for line in file.read_text().splitlines() if file.exists() else ():
        t, frame = line.split()
        assert frames.setdefault(int(t), bytes.fromhex(frame)) == bytes.fromhex(frame)
    return frames


def charges(ledger: Ledger) -> list[int]:
    fields = [entry.fields for entry in ledger.entries()]
    return [entry["round"] for entry in fields if entry["kind"] == "charge"]


def check_after_kill(path: Path) -> None:
    released = sent(path)
    if not path.exists():
        assert not released
        return
    ledger = Ledger(path)
    ledger.verify()
    charged = charges(ledger)
    assert len(charged) == len(set(charged))
    assert {t for t in released if 0 <= t < CONFIRM} <= set(charged)
    for job in ledger.jobs():
        kept = dict(ledger.recorded("job"))
        for t, frame in released.items():
            try:
                assert (ledger.secret("job") if t == SECRET else kept[asked(t)]) == frame
                assert not 0 <= t < CONFIRM or ledger.frame("job", t) == frame
            except (LedgerError, KeyError):
                assert not job.is_open
        if job.is_open:
            assert job.charged.events == (RepeatedEvent(ROUND, ROUNDS + 1),)
    ledger.dispose()


def check_released(before: dict[int, bytes], t: int, frame: bytes) -> None:
    assert before.get(t, frame) == frame


def check_at_the_end(path: Path) -> None:
    ledger = Ledger(path)
    ledger.verify()
    assert charges(ledger) == list(range(ROUNDS))
    assert ledger.charged("adult").events == (RepeatedEvent(ROUND, ROUNDS),)
    assert len(ledger.entries()) == 1 + 1 + 1 + 1 + ROUNDS + 1
    ledger.dispose()


def test_a_kill_at_any_point_loses_no_charge_and_resuming_charges_nothing_twice(
    run: Callable[[Path, int], int], tmp_path: Path
) -> None:
    n, code = 0, -signal.SIGKILL
    while code != 0:
        n += 1
        path = tmp_path / f"{n}.ledger"
        code = run(path, n)
        assert code in (0, -signal.SIGKILL)
        check_after_kill(path)
        if n % 4 == 0:  # the second life ends by a kill as well, somewhere else
            run(path, 1 + 7 * n % 60)
            check_after_kill(path)
        live(str(path), partial(check_released, sent(path)))
        check_at_the_end(path)
    assert n > 100  # every statement really was a place to die
    assert sorted(sent(path)) == [SECRET, *range(ROUNDS), *range(CONFIRM, CONFIRM + ROUNDS)]


if __name__ == "__main__":
    nursery()
