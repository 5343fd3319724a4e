"""The start and the stop of every process that serves."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from cloister.federation.pki import KeyFolder

_LOG = logging.getLogger(__name__)


def prepare(keys: Path) -> KeyFolder:
    """Prepare this process to serve with a folder of keys that only its owner can read."""
    sys.setswitchinterval(2e-4)  # a waiting thread gets its turn long before Python's usual 5 ms
    folder = KeyFolder(keys)
    folder.check_private()
    for warning in folder.expiry_warnings(datetime.now(UTC)):
        _LOG.warning("%s", warning)
    return folder


def stopped_by_signals() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set from now on; for the main thread."""
    stop = threading.Event()
    # The system may deliver a signal to any thread, but handlers run when the main thread wakes.
    # A handler must not set the event, as the interrupted thread may hold its lock. Python writes
    # to this descriptor immediately, from the thread that receives the signal.
    heard, told = socket.socketpair()
    told.setblocking(False)

    def listen() -> None:
        while heard.recv(1):
            stop.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return stop
