"""``cloister audit``: what it says, writes and returns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.audit.checks import check_noise
from cloister.audit.findings import Finding
from cloister.audit.packages import Mutant
from cloister.cli import audit as command
from cloister.cli import main
from cloister.hazmat.ring import Integers
from cloister.privacy.noise import DiscreteNoise, NoiseKind
from cloister.testing import toy_plan

SMALL = ["--runs", "40", "--nominal-n", "40"]
TOY = Path(__file__).parent / "toy_task.py"
OWN = Path(__file__).parent / "own_tasks.py"


@pytest.fixture(autouse=True)
def little_noise_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a tenth of the elements of noise: what audits find has tests of its own."""
    monkeypatch.setattr(command, "audit_task", partial(command.audit_task, words=2000))


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


def audited(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["audit", *argv, "--json"])
    (audit,) = json.loads(capsys.readouterr().out)["audits"]
    return code, audit


def test_a_task_whose_fields_have_no_default_is_audited_with_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, audit = audited([f"{OWN}:OwnLloyd", *SMALL, "--set", "rounds=2"], capsys)
    assert code == 0
    assert audit["verdict"] == "passes"
    assert "2 rounds" in audit["details"]


def test_a_task_that_needs_an_option_of_the_schemas_columns_is_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    age = {"name": "age", "type": "integer", "min": 0, "max": 100, "measure": "years"}
    smokes = {"name": "smokes", "type": "boolean"}
    schema.write_text(json.dumps({"dataset": "clinic", "unit": "row", "columns": [age, smokes]}))
    chosen = ["--schema", str(schema), "--set", "row=smokes", "--set", "rounds=1"]
    code, audit = audited([f"{OWN}:Needy", *SMALL, *chosen], capsys)
    assert code == 0
    assert "row smokes" in audit["details"]


def test_runs_that_show_nothing_of_a_claim_are_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [f"{OWN}:Silent", "--runs", "200", "--set", "rounds=1"]
    code, audit = audited(argv, capsys)
    assert audit["verdict"] == "no power"
    assert code == 8, "neither the code of a pass nor that of a refuted claim"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--all", "--set", "rounds=2"],
        ["maxcover", "--set", "n_clusters=2"],
        ["count", "--set", "epsilon=2"],
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


def test_a_mutant_that_breaks_its_check_is_not_caught_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caught = Mutant("loud", "too much noise", lambda: (Finding("noise", True, "seen"),))
    broken = Mutant("odd", "noise of another shape", lambda: [Finding("", bool(1 // 0), "")])
    monkeypatch.setattr(command, "mutants", lambda: (broken, caught))
    assert main(["audit", "--mutants", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "not caught: odd" in shown.err
    assert "loud" not in shown.err
    report = (tmp_path / "audit.md").read_text()
    assert "1 of 2 mutants are caught" in report
    assert "| odd | noise of another shape | COULD NOT JUDGE | ZeroDivisionError" in report


class Short(DiscreteNoise):
    """Draws one element less than is asked for."""

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        return np.asarray(super().draw(kind, scale, size)[1:])


def test_noise_of_another_size_than_the_plans_is_an_alarm() -> None:
    (finding,) = check_noise(toy_plan(), words=30, make_noise=Short)
    assert finding.alarms
    assert "elements of noise" in finding.evidence
