"""The jobs of a desk: worker processes, and the files of events that they leave in the folder.

A job runs in its own process and continues if the console exits. Its state is read from its file of
events, so that a console that was started later shows it, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import IO, Any, Self
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import ImmutableMultiDict

from cloister.app.answer import Answer
from cloister.app.request import Request
from cloister.app.worker import ANSWER, events_in
from cloister.console.guard import Form
from cloister.core.errors import CloisterError, DataError
from cloister.data.reading import capital

if sys.platform != "win32":
    import fcntl

_KEPT = (
    "file",
    "schema",
    "reading",
    "baskets",
    "as-is",
    "nominal_n",
    "epsilon",
)  # fields that suit all questions
EVENTS, LOG = "events.jsonl", "log.txt"
"""Files of a job: its events, and all other output of its process."""


@dataclass(frozen=True)
class Run:
    """A job that a console started, by its events.

    Parameters
    ----------
    name : str
        Name of the folder for its results.
    events : tuple of mapping
        Those of :mod:`cloister.app.worker`, and the console's event ``started``. It has the `pid`
        of the worker, the `command` of the same job in a terminal, the `form` and the time.
    is_alive : bool
        Whether the worker may still write events.
    """

    name: str
    events: tuple[Mapping[str, Any], ...]
    is_alive: bool

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the job with its results in a folder; raise DataError if it has no such file."""
        try:
            is_alive = _is_held(folder / EVENTS)  # first: a dead worker wrote all of its events
            events = tuple(events_in((folder / EVENTS).read_text("utf-8")))
            if all(isinstance(event["event"], str) for event in events):
                return cls(folder.name, events, is_alive)
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            pass
        raise DataError(f"no job {folder.name!r} was started here; see the page of files.")

    def last(self, kind: str) -> Mapping[str, Any]:
        """Return the last event of a kind; empty if there is none."""
        return next((event for event in reversed(self.events) if event["event"] == kind), {})

    @property
    def state(self) -> str:
        """``"running"``, ``"done"`` or ``"failed"``."""
        if self.last("done"):
            return "done"
        return "running" if self.is_alive and not self.last("failed") else "failed"

    @property
    def command(self) -> str:
        """The command that runs the same job in a terminal; empty if it is not known."""
        return str(self.last("started").get("command", ""))

    @property
    def form(self) -> Form:
        """The fields of the page that asked the question."""
        return ImmutableMultiDict(parse_qsl(str(self.last("started").get("form", ""))))

    @property
    def query(self) -> str:
        """The query of the page that asked the question."""
        return urlencode(self.form.multi_items())

    @property
    def query_of_another(self) -> str:
        """The query of a page that asks another question of the same files and columns."""
        return urlencode([pair for pair in self.form.multi_items() if pair[0] in _KEPT])

    @property
    def question(self) -> str:
        """The key of the question; empty if it is not known."""
        return self.form.get("ask") or self.form.get("of", "")

    @property
    def day(self) -> str:
        """The day of the start."""
        return str(self.last("started").get("at", ""))[:10]

    @property
    def rounds(self) -> tuple[int, int] | None:
        """Numbers of finished rounds and of all rounds; None before the first event."""
        event = self.last("round")
        return (event["done"], event["of"]) if event else None

    @property
    def sentences(self) -> list[str]:
        """The warnings of the job, and the reason of a failure."""
        # The reason of a failure may begin with the name of a file.
        texts: list[str] = [
            capital(event["text"]) if event["event"] == "warning" else event["text"]
            for event in self.events
            if "text" in event
        ]
        # A killed process writes no event.
        if self.state == "failed" and not self.last("failed"):
            texts.append(f"The job ended without a result; {LOG} may contain the reason.")
        return texts


class Runs:
    """The jobs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._workers: list[subprocess.Popen[bytes]] = []  # else Python warns of their processes

    def start(self, job: Request, command: str, form: str) -> None:
        """Start a job with its results in a new folder; a second call has no effect."""
        name, out = job.out.name, self._folder / job.out
        with self._lock:  # requests run in threads
            if self.has(name, command):
                return
            try:
                out.mkdir()  # fails if it exists, so that no job overwrites another's results
            except OSError as error:
                raise DataError(
                    f"folder {name!r} cannot be made: {error.strerror}; load the page again."
                ) from None
            self._start(job, out, command=command, form=form)

    def has(self, name: str, command: str) -> bool:
        """Return True if this job was started with its results in the folder `name`."""
        with suppress(CloisterError):
            return self.find(name).command == command
        return False

    def _start(self, job: Request, out: Path, **about: str) -> None:
        with (out / EVENTS).open("ab") as events, (out / LOG).open("wb") as log:
            _hold(events)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cloister.app.worker"],  # -P: no code from the folder
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=events,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the console's terminal must not stop jobs
            )
            at = datetime.now(UTC).isoformat(timespec="seconds")
            started = {"event": "started", "pid": process.pid, "at": at, **about}
            events.write(f"{json.dumps(started, allow_nan=False)}\n".encode())
        self._workers.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stream:  # its events report it
            stream.write(job.model_dump_json().encode())

    def find(self, name: str) -> Run:
        """Return a job by its name."""
        return Run.read(self._folder / name)

    def answer(self, name: str) -> Answer | None:
        """Return the answer of a job; None if there is none, as after an earlier version."""
        with suppress(CloisterError):
            return Answer.load(self._folder / name / ANSWER)
        return None

    def stop(self, name: str) -> None:
        """Interrupt a job, like Ctrl-C: unused budget is returned."""
        run = self.find(name)
        # While its file is held, the number of its process belongs to no other.
        if run.state == "running" and isinstance(pid := run.last("started").get("pid"), int):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def read(self, names: Iterable[str]) -> Iterator[Run]:
        """Yield the jobs among folders of these names."""
        for name in names:
            with suppress(CloisterError):
                yield self.find(name)


def _hold(events: IO[bytes]) -> None:
    """Lock a file as long as this process or its child has it open."""
    if sys.platform != "win32":
        fcntl.flock(events, fcntl.LOCK_EX)


def _is_held(path: Path) -> bool:
    """Return True if a worker may have a file open."""
    if sys.platform == "win32":
        return True  # then only the last event ends a job
    with path.open("rb") as events:
        try:
            fcntl.flock(events, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
