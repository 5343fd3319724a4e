"""How a service is told to stop."""

from __future__ import annotations

import signal
import threading


def stopped_by_signals() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set from now on; for the main thread."""
    stop = threading.Event()

    def told(*_: object) -> None:
        # Not here: a handler interrupts the main thread, which may hold the event's own lock.
        threading.Thread(target=stop.set, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    return stop
