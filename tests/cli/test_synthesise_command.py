"""``cloister synthesise``: from files to look-alike records; a mistake costs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from cloister import DPSynthesiser, Schema
from cloister.cli import main
from cloister.data.samples import write_patients

Said = pytest.CaptureFixture[str]
FILES = ["north.csv", "east.csv", "south.csv"]
COLUMNS = "age,bmi,systolic,diabetes"


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_patients(tmp_path)
    return tmp_path


def command(*more: str) -> list[str]:
    common = ["--schema", "patients.toml", "--epsilon", "1", "--nominal-n", "15000"]
    common += ["--max-loss", "0.1"]
    return ["synthesise", *FILES, *common, "--cap-epsilon", "1", "--out", "out", *more]


def test_files_become_records_that_any_silo_can_draw_again(ward: Path, capsys: Said) -> None:
    assert main(command("--columns", COLUMNS, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "synthesise"
    assert document["task"] == "pipeline"
    assert set(document["files"]) == {"model", "sums", "synthetic", "report"}
    schema = Schema.load("patients.toml")
    table = pd.read_csv("out/synthetic.csv")
    assert list(table) == [name for name in schema.names if name in COLUMNS.split(",")]
    assert len(table) == 15_000, "of the contract; nobody's number of rows is told"
    again = DPSynthesiser.load("out/model.json", bounds=schema).sample()
    assert (again["age"].to_numpy() == table["age"].to_numpy()).all()
    report = Path("out/report.html").read_text()
    assert "These are not records of people." in report
    assert "Dependence of pairs" in report
    assert main(command("--columns", COLUMNS, "--out", "again")) == 5, "the lifetime cap is spent"


def test_public_edges_need_no_bins_first(ward: Path, capsys: Said) -> None:
    edges = ["--edges", "age=40,60", "--edges", "systolic=120,140"]
    more = ["--columns", "age,systolic,diabetes", "--structure", "star", "--target", "diabetes"]
    assert main(command(*edges, *more)) == 0
    said = capsys.readouterr().out
    assert "written  out/synthetic.csv" in said
    assert "age × diabetes" in said


def test_a_mistake_costs_nothing(ward: Path, capsys: Said) -> None:
    assert main(command("--columns", COLUMNS, "--structure", "star")) != 0
    assert "target must be given with structure" in capsys.readouterr().err
    assert not Path("out/model.json").exists()
    assert main(command("--columns", COLUMNS)) == 0
