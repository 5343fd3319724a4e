"""Logs for machines: JSON lines on standard error, never a value that depends on records."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime

_IDS = ("job", "round", "silo")  # given as `extra`
_STRANGERS = (
    "asyncio",
    "uvicorn.error",
    "cloister.federation.service.listener",
    "cloister.federation.service.app",
    "cloister.federation.service.gate",
)
_KEPT = 1000  # different sentences whose repetitions are counted


class JsonLines(logging.Formatter):
    """A formatter of one JSON object per line: time, level, logger, message, and ids.

    An exception is shown by class and place only, since its message could contain a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a log record."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _IDS:
            if (value := getattr(record, name, None)) is not None:
                line[name] = value
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = place_of(record.exc_info[1])
        return json.dumps(line, allow_nan=False)


class RateLimitedLog:
    """A rate limit for repeated events: of each kind the first is due, then one a minute.

    Parameters
    ----------
    seconds : float
        Time between two events of a kind that are due.
    clock : function
        Returns monotonic seconds.
    """

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}  # when it was due, and how often since
        self._lock = threading.Lock()

    def since(self, kind: str) -> int | None:
        """Return the number of events omitted since the last due one; None if not due.

        Parameters
        ----------
        kind : str
            Key of the events that count together; the number of stored kinds is bounded.
        """
        now = self._clock()
        with self._lock:
            at, left_out = self._last.pop(kind, (-float("inf"), 0))
            if now - at < self._seconds:
                self._last[kind] = (at, left_out + 1)
                return None
            if len(self._last) >= _KEPT:
                del self._last[next(iter(self._last))]
            self._last[kind] = (now, 0)
            return left_out


class _Seldom(logging.Filter):
    """A filter that passes a sentence once a minute if strangers could repeat it forever."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = RateLimitedLog()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in _STRANGERS:
            return True
        message = record.getMessage()
        left_out = self._seldom.since(f"{record.name} {message.partition(chr(10))[0]}")
        if left_out:
            record.msg, record.args = f"{message} (and {left_out} times more since)", None
        return left_out is not None


def place_of(error: BaseException) -> str:
    """Return the class of an exception and the line that raised it, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return type(error).__name__ + where


def configure(level: str = "info") -> None:
    """Send everything that this process logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(_Seldom())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
