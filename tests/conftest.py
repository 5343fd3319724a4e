"""Shared by all tests of processes: on Linux, parties that begin in a tenth of the time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest

from cloister.core import compiled

if compiled.instruction_sets() == [compiled.NUMPY]:
    os.environ.setdefault(compiled.CHOICE, compiled.NUMPY)  # as asked: no fit warns of it


class Nursery:
    """Starts Python programs as `subprocess.Popen` does, each forked from one process.

    That one has imported what parties import and does nothing else (``nursery.py``).
    """

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._one_at_a_time = threading.Lock()
        with theirs:
            script = Path(__file__).with_name("nursery.py")
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for us
            )

    def ask(self, asked: dict[str, Any], streams: Sequence[int] = ()) -> Any:
        with self._one_at_a_time:
            socket.send_fds(self._line, [json.dumps(asked).encode()], streams)
            return json.loads(self._line.recv(64))

    def __call__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[Any] | int,
        stderr: IO[Any] | int = 2,
        cwd: Path | str = ".",
        start_new_session: bool = True,
    ) -> Forked:
        assert command[0] == sys.executable
        assert stdin == subprocess.DEVNULL
        assert start_new_session
        streams = [
            stream if isinstance(stream, int) else stream.fileno() for stream in (stdout, stderr)
        ]
        what = {"cwd": os.path.abspath(cwd), "environ": dict(os.environ)}
        return Forked(self, self.ask({"command": command[1:], **what}, streams))

    def close(self) -> None:
        self._line.close()
        self._process.wait(60)


class Forked:
    """A process of a nursery, with what our tests use of a `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        due = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > due:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        return code


@pytest.fixture(scope="session")
def nursery() -> Iterator[Callable[..., Any]]:
    """Starts processes of parties in a tenth of the time that they need to import what they use.

    On Linux: elsewhere numeric libraries may not survive a fork, and parties begin as ever.
    """
    if sys.platform != "linux":
        yield subprocess.Popen
        return
    with closing(Nursery()) as made:
        yield made


@pytest.fixture(scope="module")
def forked_parties(nursery: Callable[..., Any]) -> Iterator[None]:
    """Every party of a `LocalFederation` is forked from the nursery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.federation.local.LocalFederation.popen", nursery)
        yield


@pytest.fixture(scope="module", params=compiled.instruction_sets())
def each_instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the loops over records on each instruction set of this machine in turn, and in NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.CHOICE, request.param)
        compiled.instruction_set.cache_clear()
        yield request.param
    compiled.instruction_set.cache_clear()
