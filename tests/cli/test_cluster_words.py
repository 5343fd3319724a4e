"""What ``cloister cluster`` says of a clustering as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cloister.cli import main

MIDDLES = [[-0.6, -0.6], [0.6, -0.6], [0.0, 0.6]]
COLUMN = '\n[[columns]]\nname = "{}"\ntype = "number"\nmin = {}\nmax = {}\n'


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(1).normal(MIDDLES, 0.1, (2000, 3, 2)).reshape(-1, 2)
    np.savetxt("ward.csv", X, delimiter=",", header="a,b", comments="")
    columns = COLUMN.format("a", -1.0, 1.0) + COLUMN.format("b", -1.0, 1.0)
    Path("ward.toml").write_text('dataset = "ward"\nunit = "row"\n' + columns)
    return tmp_path


def cluster(*options: str) -> list[str]:
    given = ["--schema", "ward.toml", "--out", "out", "--nominal-n", "6000"]
    cap = [] if "--cap-epsilon" in options else ["--cap-epsilon", "9"]
    return ["cluster", "ward.csv", *given, *cap, *options]


def test_a_run_of_noise_says_so(ward: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """60 clusters of 6,000 records at epsilon 0.1: a size is 100, as large as its noise."""
    assert main(cluster("--k", "60", "--epsilon", "0.1", "--algorithm", "fastlloyd")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of 60 clusters are distinct" in said
    assert "60 of 60 clusters" not in said
    assert "of 60 clusters are distinct" in Path("out/report.html").read_text()


def test_records_left_out_are_warned_of_on_standard_error(
    ward: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third of the records is beyond every radius of this start; see tests/unit/test_clusters."""
    start = ["--public-seed", "13", "--rounds", "5", "--keep-empty", "--no-estimate"]
    command = cluster("--k", "3", "--epsilon", "1", "--algorithm", "fastlloyd", *start)
    assert main([*command, "--json"]) == 0
    said = capsys.readouterr()
    assert "warning: the noisy sizes sum to" in said.err
    assert any("in no cluster" in warning for warning in json.loads(said.out)["warnings"])
    assert "of the records are in no cluster" in Path("out/report.html").read_text()


def test_the_demo_finds_three_groups_that_stand_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "Three groups of patients, of about" in shown
    # Over 150 runs the density between neighbours is 1.05 ± .04 of that at the centres (a gap: .6).
    assert "No group is set apart: the table cuts a cloud." in shown
