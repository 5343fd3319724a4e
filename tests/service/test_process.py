"""A signal that comes at the worst moment still stops a service."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cloister.federation.service.process import stopped_by_signals

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = [signal.getsignal(number) for number in NUMBERS]
    descriptor = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(descriptor)
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_sets_the_event(number: int) -> None:
    stop = stopped_by_signals()
    assert not stop.is_set()
    signal.raise_signal(number)
    assert stop.wait(60)


def test_a_signal_while_the_main_thread_holds_the_events_lock_does_not_hang() -> None:
    """As when it comes in the middle of ``stop.wait()``; setting the event here would deadlock."""
    stop = stopped_by_signals()
    watchdog = threading.Timer(60, signal.raise_signal, [signal.SIGKILL])
    watchdog.start()
    with stop._cond:  # type: ignore[attr-defined]
        signal.raise_signal(signal.SIGTERM)
    watchdog.cancel()
    assert stop.wait(60)


_SLEEPER = """
import os, signal, threading, time
from pathlib import Path
from cloister.federation.service.process import stopped_by_signals

stop = stopped_by_signals()
main = Path(f"/proc/self/task/{os.getpid()}/stat")

def signalled():
    while main.exists() and main.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

threading.Thread(target=signalled, daemon=True).start()
stop.wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a signal is sent to a thread")
def test_a_signal_that_another_thread_is_given_stops_a_main_thread_that_sleeps() -> None:
    """The system chooses the thread; Python's handlers run in the main thread, when it wakes."""
    child = subprocess.run([sys.executable, "-c", _SLEEPER], timeout=60)
    assert child.returncode == 0
