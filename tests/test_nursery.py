"""What our tests fork is as apart as what the operating system starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WHAT = """
import json, os, sys, threading
from cloister.hazmat.signing import Identity
from cloister.privacy.noise import DiscreteNoise
noise = DiscreteNoise().draw("gaussian", 2**40, 8).tolist()
print(json.dumps({
    "seen": [sys.argv, os.getcwd(), os.environ["OF_THIS_TEST"], sys.stdin.read(), __name__],
    "leads": os.getsid(0) == os.getpid(),
    "threads": threading.active_count(),
    "drawn": [Identity.new().fingerprint, noise],
}))
sys.exit(3)
"""


def test_a_forked_process_is_what_its_command_line_says_and_draws_afresh(
    nursery: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THIS_TEST", "yes")
    said = []
    for number, popen in enumerate((subprocess.Popen, nursery, nursery)):
        with (tmp_path / str(number)).open("wb") as told:
            process = popen(
                [sys.executable, "-c", WHAT, "one", "two"],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                cwd=tmp_path,
                start_new_session=True,
            )
        assert process.wait(60) == 3, (tmp_path / str(number)).read_text()
        said.append(json.loads((tmp_path / str(number)).read_text()))
    drawn = [json.dumps(part) for one in said for part in one.pop("drawn")]
    assert len(set(drawn)) == len(drawn), "keys or noise of two processes are alike"
    assert said[0] == said[1] == said[2]


def test_a_killed_process_is_gone_when_it_was_waited_for(
    nursery: Callable[..., Any], tmp_path: Path
) -> None:
    with (tmp_path / "told").open("wb") as told:
        process = nursery(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            stdout=told,
            start_new_session=True,
        )
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == process.poll() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
