"""The audit file: decisions and releases, one JSON line each, chained by SHA-256.

Every line contains the hash of the previous line and its own. A line that is changed, removed or
moved breaks the chain. A comparison with a head that was noted elsewhere reveals lines cut off the
end, and a replaced chain. No line holds a value that depends on records.

A full file is renamed, ``audit.jsonl`` to ``audit.000000012345.jsonl`` by its last number, and the
chain goes on in a new one. Without the oldest files, the rest still verifies.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloister.core.errors import LedgerError
from cloister.core.files import sync_folder
from cloister.privacy.chain import BEFORE_FIRST, canonical, link

if sys.platform != "win32":
    import fcntl


MOST_BYTES = 1 << 24  # of a file before it is renamed; a start checks one file
_CONTINUED = "continued"  # the event of the first line after a renamed file


class Audit:
    """An audit file that is open for writing.

    Parameters
    ----------
    path : path-like
        Created with mode 0600 if it does not exist.

    Raises
    ------
    LedgerError
        If the file cannot be written, another process (or another `Audit`) writes it, or its chain
        does not verify. A last line that a crash left incomplete is cut off, and an entry records
        the cut.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        try:
            torn = self._open()
        except BlockingIOError:
            raise LedgerError(
                f"audit file {os.fspath(path)!r} is written by another process; stop that "
                "process, or set audit_log to another file."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"audit file {os.fspath(path)!r} cannot be used: {error.strerror}; choose a "
                "writable folder."
            ) from error
        if torn:
            self.write("repaired", bytes_cut=torn)

    def _open(self) -> int:
        """Lock the file and check the chain; return the number of bytes cut off a torn line."""
        fresh = not self._path.exists()
        self._file = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        try:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two would fork the chain
            torn = _cut_torn_line(self._path, self._file)
            self._lines, self._head = _end_of([self._path])
            if fresh:
                sync_folder(self._path.parent)
            if not self._lines and (earlier := _earlier(self._path)):
                self._lines, self._head = _end_of(earlier[-1:])
                self._append(_CONTINUED, {})
        except BaseException:
            os.close(self._file)
            raise
        return torn

    def _rename_when_full(self) -> None:
        """Continue in a new file, or in the same one where that cannot be made."""
        if os.fstat(self._file).st_size < MOST_BYTES:
            return
        full = self._file
        with suppress(OSError):
            self._path.rename(_named(self._path, self._lines))
            try:
                self._open()
            except (OSError, LedgerError):
                self._file = full
            else:
                os.close(full)

    @property
    def head(self) -> str:
        """The hash of the last line; note it elsewhere to detect lines cut off later."""
        return self._head

    def write(self, event: str, **fields: Any) -> None:
        """Append a line and wait until it is on disk.

        Parameters
        ----------
        event : str
            The event, for example "round".
        **fields
            Names, ids and reasons; never a value that depends on records.
        """
        with self._lock:
            self._append(event, fields)
            self._rename_when_full()

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        body = {
            **fields,
            "seq": self._lines + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "previous": self._head,
        }
        head = link(canonical(body))
        line = _line({**body, "hash": head})
        # The size before the line, to undo a partial write.
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(None, "the line was cut short")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)  # half a line would break the chain
            raise LedgerError(
                f"audit file {str(self._path)!r} cannot be written: {error.strerror}; check "
                "its disk."
            ) from error
        self._lines, self._head = self._lines + 1, head

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def __repr__(self) -> str:
        return f"Audit({str(self._path)!r}, {self._lines} lines)"


def verify(path: str | os.PathLike[str], head: str | None = None) -> tuple[int, str]:
    """Check every line of an audit file, and of the renamed files before it that are there.

    Parameters
    ----------
    head : str, optional
        A hash that was noted earlier; the chain must contain it.

    Returns
    -------
    int
        Number of lines.
    str
        The hash of the last line, or 64 zeros for an empty file.
    """
    path = Path(path)
    return _end_of([*_earlier(path), path], head)


def _earlier(path: Path) -> list[Path]:
    """Return the renamed files of an audit file, oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}\.[0-9]{{12}}{re.escape(path.suffix)}")
    return sorted(one for one in path.parent.glob("*") if name.fullmatch(one.name))


def _named(path: Path, lines: int) -> Path:
    return path.with_name(f"{path.stem}.{lines:012}{path.suffix}")


def _end_of(files: Sequence[Path], head: str | None = None) -> tuple[int, str]:
    """Return number and hash of the last line of a chain in files."""
    # The head may be any earlier line: the chain has grown since it was noted.
    previous, number, found = BEFORE_FIRST, 0, head in (None, BEFORE_FIRST)
    try:
        for file in files:
            with file.open("rb") as lines:
                for line in lines:
                    if not number:
                        number, previous = _before(line)
                        found = found or previous == head
                    number += 1
                    previous = _check_line(line, number, previous)
                    found = found or previous == head
    except OSError as error:
        raise LedgerError(
            f"audit file {str(files[-1])!r} cannot be read: {error.strerror}; check its path."
        ) from error
    if not found:
        raise LedgerError(
            f"the audit file does not contain the head {head}: its last lines were removed, or "
            "the chain was made again."
        )
    return number, previous


def _before(first: bytes) -> tuple[int, str]:
    """Return number and hash of the line before a chain's first, whose file may be deleted."""
    with suppress(ValueError, KeyError, TypeError):
        entry = json.loads(first)
        if entry["event"] == _CONTINUED:
            return int(entry["seq"]) - 1, str(entry["previous"])
    return 0, BEFORE_FIRST


def _check_line(line: bytes, number: int, previous: str) -> str:
    """Return the hash of a line that follows `previous`."""
    try:
        entry = json.loads(line)
        stated = entry.pop("hash")
        # The bytes must be canonical, too, or one entry would have several valid lines.
        intact = line == _line({**entry, "hash": stated}) and stated == link(canonical(entry))
    except (ValueError, KeyError, AttributeError, TypeError):
        intact = False
    if not intact:
        raise LedgerError(f"line {number} of the audit file was changed; keep a copy as evidence.")
    if entry.get("seq") != number or entry.get("previous") != previous:
        raise LedgerError(
            f"line {number} of the audit file does not follow the line before; a line was removed, "
            "added or moved."
        )
    return str(stated)


def _line(entry: dict[str, Any]) -> bytes:
    return canonical(entry).encode() + b"\n"


def _cut_torn_line(path: Path, file: int) -> int:
    """Cut off an incomplete last line, which a crash left; return its number of bytes."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if torn := len(content) - whole:
        os.ftruncate(file, whole)
        os.fsync(file)
    return torn
