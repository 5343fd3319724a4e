"""The emissions of a call other than its result: logs, text, warnings, exceptions, effects.

A silo may emit its frames and nothing else that depends on its records. The one exception is the
owner's channel, a named sink: warnings of :data:`OWNER_CHANNEL`. This module collects them
separately, and they must not reach any other channel.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryFile
from typing import Any, NoReturn, TypeVar

from cloister.core.errors import DataLossWarning

T = TypeVar("T")

OWNER_CHANNEL: tuple[type[Warning], ...] = (DataLossWarning,)
"""Warnings that only the owner of the records sees, in a terminal, notebook or console."""

_THREAD_SECONDS = 2.0  # longest wait for threads that a call started
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # address of an object, which differs between runs
_ALWAYS = {"name", "msg", "args", "levelname", "message"}  # fields of a log record in its text
_OF_THE_RUN = {  # fields of a log record with its time and place, which differ between runs
    *("created", "msecs", "relativeCreated", "thread", "threadName", "process", "processName"),
    *("taskName", "pathname", "filename", "module", "lineno", "funcName", "levelno", "stack_info"),
    *("exc_text",),
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
# Prefixes of audit events of the interpreter (PEP 578).
_EFFECTS = (
    *("os.exec", "os.fork", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.putenv"),
    *("os.remove", "os.rename", "os.rmdir", "os.spawn", "os.startfile", "os.symlink"),
    *("os.system", "os.truncate", "os.unsetenv", "os.utime", "os.chmod", "os.chown", "shutil."),
    *("socket.", "sqlite3.connect", "subprocess.Popen", "syslog.", "time.sleep", "winreg."),
    *("ftplib.", "imaplib.", "poplib.", "smtplib.", "urllib.Request"),
)


@dataclass(frozen=True)
class Emitted:
    """The emissions of a call.

    Parameters
    ----------
    lines : tuple of str
        Sorted, since threads emit in any order. Each begins with its channel: "effect", "log",
        "prints", "raises", "thread" or "warning".
    owner : tuple of str
        Warnings in the owner's channel.
    """

    lines: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()


def observe(call: Callable[[], T]) -> tuple[T | None, Emitted]:
    """Run a call and return its result and its emissions.

    Returns
    -------
    tuple
        The result, None if the call raised an exception; and an `Emitted`.

    Notes
    -----
    Observed are logs of any level and logger, output to streams and file descriptors, warnings,
    exceptions and exits. Also observed are written files, processes, threads, connections,
    environment variables and sleeps. Not observed are files that a library writes without Python,
    the time of a computation, and the contents of memory.
    """
    lines: list[str] = []
    owner: list[str] = []
    result: T | None = None
    with ExitStack() as stack:
        for observer in (_printed, _logged, _exits, _affected):  # effects last, to skip our own
            stack.enter_context(observer(lines))
        stack.enter_context(_warned(lines, owner))
        stack.enter_context(_threads(lines))
        try:
            result = call()
        except KeyboardInterrupt:  # the user's Ctrl-C, not an emission
            raise
        except BaseException as error:
            lines.append(f"raises {_described(error)}")
    cleaned = sorted(_ADDRESS.sub("0x", line) for line in lines)
    return result, Emitted(tuple(cleaned), tuple(owner))


def _described(error: BaseException) -> str:
    """Return the text of an exception with its causes and notes, as in a traceback."""
    texts: list[str] = []
    chain: BaseException | None = error
    while chain is not None:
        notes = getattr(chain, "__notes__", [])
        texts.append(" ".join([f"{type(chain).__name__}: {chain}", *map(str, notes)]))
        chain = chain.__cause__ or chain.__context__
    return ", from ".join(texts)


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _logged(lines: list[str]) -> Iterator[None]:
    """Collect every log record of every logger and level; no handler receives it."""
    records: list[logging.LogRecord] = []

    def enabled(logger: logging.Logger, level: int) -> bool:
        return True

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        records.append(record)

    with (
        _replaced(logging.Logger, "isEnabledFor", enabled),
        _replaced(logging.Logger, "handle", handle),
    ):
        yield
    for record in records:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = f"{record.msg} {record.args}"
        more = {k: v for k, v in vars(record).items() if k not in _ALWAYS | _OF_THE_RUN and v}
        lines.append(f"log {record.name} {record.levelname} {text}{more or ''}")


@contextmanager
def _printed(lines: list[str]) -> Iterator[None]:
    """Collect standard output and error, from Python and from file descriptors."""
    with TemporaryFile() as file:
        originals = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream]
        for stream in {sys.stdout, sys.stderr, *originals}:
            stream.flush()
        kept = {}
        # Compiled code writes to the descriptors, past the streams of Python.
        for descriptor in (1, 2):
            with suppress(OSError):  # a process without a terminal may have none
                kept[descriptor] = os.dup(descriptor)
                os.dup2(file.fileno(), descriptor)
        taken = io.TextIOWrapper(
            os.fdopen(os.dup(file.fileno()), "wb", buffering=0), "utf-8", write_through=True
        )
        try:
            with taken, redirect_stdout(taken), redirect_stderr(taken):
                yield
        finally:
            for stream in originals:
                stream.flush()
            for descriptor, copy in kept.items():
                os.dup2(copy, descriptor)
                os.close(copy)
            file.seek(0)
            text = file.read().decode(errors="replace")
    lines += [f"prints {line}" for line in text.splitlines()]


@contextmanager
def _warned(lines: list[str], owner: list[str]) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = f"{warning.category.__name__}: {warning.message}"
        if issubclass(warning.category, OWNER_CHANNEL):
            owner.append(text)
        else:
            lines.append(f"warning {text}")


@contextmanager
def _exits(lines: list[str]) -> Iterator[None]:
    """Turn os._exit, which skips all handlers, into SystemExit, which ends the call."""

    def leave(code: int) -> NoReturn:
        lines.append(f"raises os._exit({code})")
        raise SystemExit(code)

    with _replaced(os, "_exit", leave):
        yield


@contextmanager
def _threads(lines: list[str]) -> Iterator[None]:
    """Wait for the threads that a call starts, as their emissions count as the call's."""
    before = set(threading.enumerate())
    try:
        yield
    finally:
        end = time.monotonic() + _THREAD_SECONDS
        for thread in set(threading.enumerate()) - before:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                lines.append(f"thread {type(thread).__name__} still runs")


# Effects -----------------------------------------------------------------------------------------

_observers: list[list[str]] = []


@contextmanager
def _affected(lines: list[str]) -> Iterator[None]:
    """Collect effects outside the process: files written, processes, connections, variables."""
    _install()
    # Bytecode of modules that are imported meanwhile is no effect of the records.
    with _replaced(sys, "dont_write_bytecode", True):
        _observers.append(lines)
        try:
            yield
        finally:
            _observers.remove(lines)


@cache
def _install() -> None:
    sys.addaudithook(_note)  # hooks cannot be removed; without observers it returns immediately


def _note(event: str, args: tuple[Any, ...]) -> None:
    if not _observers:
        return
    if event == "open":
        path, mode, flags = args
        writes = bool(flags & _WRITES) if mode is None else bool(set(mode) & set("wax+"))
        # An integer is the descriptor of a file that is open already.
        if not writes or isinstance(path, int):
            return
        event, args = "writes", (path,)
    elif not event.startswith(_EFFECTS):
        return
    for lines in _observers:
        lines.append(f"effect {event} {args}")
