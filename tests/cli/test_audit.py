"""``cloister audit``: what it says, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister.cli import main

SMALL = ["--runs", "40", "--nominal-n", "40"]
TOY = Path(__file__).parent / "toy_task.py"


def test_a_sound_method_passes_and_its_report_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "count", *SMALL, "--out", str(tmp_path / "audit")]) == 0
    shown = capsys.readouterr()
    assert "two worlds" in shown.out
    assert "ALARM" not in shown.out
    assert shown.err == ""
    report = (tmp_path / "audit" / "audit.md").read_text()
    assert "cloister audit count" in report
    assert (tmp_path / "audit" / "audit-count.png").read_bytes().startswith(b"\x89PNG")


def test_a_method_that_is_not_private_is_refuted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "subcluster", "--epsilon", "1", "--runs", "400"]) == 1
    shown = capsys.readouterr()
    assert "ALARM" in shown.out
    assert "subcluster" in shown.err


def test_a_task_of_your_own_is_audited_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", f"{TOY}:Histogram", *SMALL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (audit,) = document["audits"]
    assert audit["findings"]
    assert not any(finding["alarms"] for finding in audit["findings"])


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["count", "--all"],
        ["nothing-of-the-kind"],
        ["lloyd"],
        ["count", "--runs", "0"],
        ["count", "--epsilon", "0"],
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_sentence(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *argv]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
