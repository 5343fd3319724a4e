"""Logs for machines: JSON lines on standard error, never a value that depends on records."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

_IDS = ("job", "round", "silo")  # given as `extra`


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the ids of job, round and silo.

    Of an exception only its class and place are shown, since its message could hold anything.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a log record."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
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


def place_of(error: BaseException) -> str:
    """Return the class of an exception and the line that raised it, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return type(error).__name__ + where


def configure(level: str = "info") -> None:
    """Send everything that this process logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
