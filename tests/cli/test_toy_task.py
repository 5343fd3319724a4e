"""A new task is one new file: in process, from the command line, and in the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cloister.app.job import run_job
from cloister.app.release import Release
from cloister.app.report.page import render_report
from cloister.cli import main
from cloister.cli.options import load_task
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.testing import ZeroNoise, check_task

FILE = Path(__file__).with_name("toy_task.py")
SPEC = f"{FILE}:Histogram"
SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(Column(name="age", type="number", min=0.0, max=80.0),),
)
AGES = np.array([[5.0], [10.0], [30.0], [50.0], [50.0], [79.0]])


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    paths = [tmp_path / "north.csv", tmp_path / "south.csv"]
    for path, part in zip(paths, (AGES[:3], AGES[3:]), strict=True):
        np.savetxt(path, part, header="age", comments="", fmt="%g")
    return [*map(str, paths), "--schema", str(tmp_path / "s.toml")]


def test_the_toy_is_one_file_of_less_than_a_hundred_lines() -> None:
    assert len(FILE.read_text().splitlines()) < 100


def test_a_toy_task_keeps_the_laws_of_tasks() -> None:
    task = load_task(SPEC)(n_features=1)  # type: ignore[call-arg]
    one = 1 << 16
    check_task(task, [np.array([[-one], [one], [0], [7]], dtype=np.int32)])


def test_a_toy_task_runs_in_process() -> None:
    silos = {"north": read_source(AGES[:3], SCHEMA), "south": read_source(AGES[3:], SCHEMA)}
    result = run_job(
        load_task(SPEC), SCHEMA, silos, epsilon=1.0, nominal_n=10, noise=ZeroNoise(), bins=4
    )
    np.testing.assert_array_equal(result.results["counts"], [2, 1, 2, 1])
    report = render_report(result)
    assert "Toy histogram of age" in report
    assert "in each of 4 bins of the first column" in report


def test_a_toy_task_runs_from_the_command_line_and_shows_in_the_report(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["run", *files, "--task", SPEC, "--set", "bins=3", "--epsilon", "8", "--json"]
    command += ["--ledger", str(out.with_name("ledger.db")), "--cap-epsilon", "8"]
    assert main([*command, "--nominal-n", "10", "--out", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["task"] == "toy-histogram"
    assert len(document["results"]["counts"]) == 3
    assert document["charged"]["spent_epsilon"] == pytest.approx(8.0, rel=1e-3)
    report = (out / "report.html").read_text()
    assert "Toy histogram of age" in report
    assert "bin 2" in report
    model = Release.from_dict(
        json.loads((out / "model.json").read_text()), {"toy-histogram": load_task(SPEC)}
    )
    assert render_report(model).count("Toy histogram of age") >= 1


def test_a_toy_task_is_planned_from_the_command_line(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", *files[2:], "--task", SPEC, "--epsilon", "1", "--nominal-n", "10", "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["forecast"]["half_width"]) == 4
    assert main(command[:-1]) == 0
    assert "bins of the first column" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("missing.py:Histogram", "cannot be read"),
        (f"{FILE}:Absent", "no class 'Absent'"),
        (f"{FILE}:Mapping", "no 'name'"),
        ("histogram", "must be one of"),
    ],
)
def test_a_task_that_is_not_there_is_one_sentence_and_code_3(
    spec: str, words: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["run", *files, "--task", spec, "--epsilon", "1", "--out", str(out)]) == 3
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("member", "model"), [("displays", "the model is"), ("results", "no model was written")]
)
def test_an_error_after_the_charge_says_so_and_invites_to_no_repeat(
    member: str, model: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.py"
    failing = f"class Bad(Histogram):\n    def {member}(self, *_): raise KeyError\n"
    bad.write_text(f"{FILE.read_text()}\n\n{failing}")
    out = tmp_path / "out"
    command = ["run", *files, "--task", f"{bad}:Bad", "--epsilon", "8", "--nominal-n", "10"]
    paid = ["--ledger", str(tmp_path / "ledger.db"), "--cap-epsilon", "8", "--out", str(out)]
    assert main([*command, *paid]) == 1
    said = capsys.readouterr().err
    assert f"the budget is charged and {model}" in said
    assert "repeat" not in said
    assert (out / "model.json").is_file() == (member == "displays")


def test_a_task_file_that_fails_says_so_without_a_traceback(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import no_such_module\n")
    command = ["run", *files, "--task", f"{bad}:X", "--epsilon", "1", "--out", str(tmp_path)]
    assert main(command) == 3
    said = capsys.readouterr().err
    assert "ModuleNotFoundError" in said
    assert "Traceback" not in said
