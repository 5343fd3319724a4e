"""``cloister federation demo`` as a newcomer types it: to its end, and through a SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.app.release import Release
from cloister.cli import main
from cloister.data.samples import HOSPITALS

ROUNDS = 10


def said(log: Path) -> list[str]:
    return [json.loads(line)["message"] for line in log.read_text().splitlines()]


def rounds(messages: list[str]) -> list[int]:
    return [int(message.split()[1]) for message in messages if message.startswith("round ")]


def test_the_demonstration_ends_with_one_result_at_all_silos() -> None:
    command = [sys.executable, "-m", "cloister", "federation", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert f"job done in {ROUNDS} rounds; the three silos have the same result: True" in shown
    assert "cluster 2" in shown
    assert "epsilon 1 at delta 1e-06, at each silo" in " ".join(shown.split())


@pytest.mark.nightly
@pytest.mark.usefixtures("forked_parties")  # the first test starts them as a newcomer does
def test_the_demonstration_goes_on_in_the_round_in_which_its_coordinator_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds before the kill are not done again, those after it are done by another process."""
    # in the third, so that the first was certainly logged
    options = ["--kill-coordinator-in-round", "3", "--keep", str(tmp_path), "--json"]
    assert main(["federation", "demo", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["same_result"] is True
    log = said(tmp_path / "coordinator" / "log.jsonl")
    first, second = (i for i, message in enumerate(log) if message.startswith("listening"))
    assert "disconnected" not in log[first:second]  # SIGKILL leaves no time to say goodbye
    before, after = rounds(log[first:second]), rounds(log[second:])
    assert before
    assert after
    assert len({*before, *after}) == len(before) + len(after), "a round was done twice"
    results = [
        Release.load(tmp_path / name / "results" / document["job"] / "model.json")
        for name in HOSPITALS
    ]
    assert all(len(result.survivors) == ROUNDS for result in results)
    assert len({result.results["centres"].tobytes() for result in results}) == 1
