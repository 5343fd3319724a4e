"""What every party that serves does as a process: how it begins, and how it is told to stop."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from cloister.enrolment import KeyFolder

_LOG = logging.getLogger(__name__)


def prepare(keys: Path) -> KeyFolder:
    """Make this process ready to serve with a folder of keys, which must be its owner's alone."""
    sys.setswitchinterval(2e-4)  # a waiting thread gets its turn long before Python's usual 5 ms
    folder = KeyFolder(keys)
    folder.check_private()
    for warning in folder.expiry_warnings(datetime.now(UTC)):
        _LOG.warning("%s", warning)
    return folder


def stopped_by_signals() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set from now on; for the main thread."""
    stop = threading.Event()

    def stop_now(*_: object) -> None:
        # Not here: a handler interrupts the main thread, which may hold the event's own lock.
        threading.Thread(target=stop.set, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_now)
    return stop
