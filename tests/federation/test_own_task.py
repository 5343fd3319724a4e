"""A task of one's own, one file, from a desk to a federation: only silos have its code."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cloister import Schema
from cloister.app.in_process import run_plan
from cloister.app.release import Release
from cloister.cli import audit as audits
from cloister.cli import main
from cloister.data import read_source
from cloister.data.schema import Column
from cloister.federation.local import ANALYST, LocalFederation
from cloister.tasks import TASKS, from_file
from cloister.testing import ZeroNoise, zero_noise_command

SILOS = ("north", "east", "south")
SCHEMA = Schema(
    dataset="ward",
    unit="row",
    columns=(Column(name="age", type="number", min=0, max=100), Column(name="ill", type="boolean")),
)

pytestmark = pytest.mark.usefixtures("forked_parties")
FILE = Path(__file__).with_name("bin_rates.py")
TASK = f"{FILE}:BinRates"
NAME = "bin-rates"


def tables(folder: Path) -> dict[str, Path]:
    rng, found = np.random.default_rng(0), {}
    for name in SILOS:
        age = rng.uniform(0, 100, 200)
        ill = rng.random(200) < age / 100
        found[name] = folder / f"{name}.csv"
        rows = "".join(f"{a:.3f},{int(i)}\n" for a, i in zip(age, ill, strict=True))
        found[name].write_text("age,ill\n" + rows)
    return found


def federation(folder: Path, files: dict[str, Path], **tasks: str) -> LocalFederation:
    return LocalFederation(
        folder / "f",
        SCHEMA,
        files,
        policies={name: {"tasks": [NAME] if tasks else []} for name in SILOS},
        tasks={key.replace("_", "-"): value for key, value in tasks.items()},
        command=zero_noise_command,
    )


def submit(federated: LocalFederation) -> list[str]:
    words = "jobs submit --silos north,east,south --epsilon 4 --nominal-n 600 --json"
    schema = str(federated.folder / "north/schema.toml")
    config = str(federated.config(ANALYST))
    return [*words.split(), "--task", TASK, "--schema", schema, "--config", config]


def test_one_file_runs_from_a_desk_to_a_federation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tables(tmp_path)
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA.to_toml())

    # at a desk: run, report, predict, audit
    rows = [str(file) for file in files.values()]
    given = ["--schema", str(schema), "--epsilon", "4", "--nominal-n", "600"]
    paid = ["--ledger", str(tmp_path / "ledger.db"), "--cap-epsilon", "4"]
    desk = ["--task", TASK, *given, *paid, "--out", str(tmp_path / "desk")]
    assert main(["run", *rows, *desk]) == 0
    shown = capsys.readouterr().out
    assert "Records of each class" in shown
    assert "Records of each class" in (tmp_path / "desk/report.html").read_text()
    told = tmp_path / "told.csv"
    model = str(tmp_path / "desk/model.json")
    predict = ["predict", model, rows[0], "--schema", str(schema), "--out", str(told)]
    assert main([*predict, "--task", TASK]) == 0
    answers = list(csv.DictReader(told.open()))
    assert len(answers) == 200
    assert {answer["ill"] for answer in answers} == {"false", "true"}
    capsys.readouterr()
    assert main(predict) == 4
    assert "not installed" in capsys.readouterr().err
    # The laws of the noise are those of every task, and need no more of it here.
    monkeypatch.setattr(audits, "audit_task", partial(audits.audit_task, words=2000))
    # fewer than one audit in 10^15 of so many runs shows under a tenth of the claim: no power
    audit = ["audit", TASK, "--schema", str(schema), "--runs", "800", "--quiet"]
    assert main(audit) == 0

    # over three agents, whose coordinator has never seen the file
    with federation(tmp_path, files, bin_rates=TASK) as federated:
        federated.start()
        federated.wait_connected()
        assert main(submit(federated)) == 0
        job = json.loads(capsys.readouterr().out)["job"]
        done = federated.wait_job(job)
        assert done["state"] == "done", done
        assert "Only silos, analyst and readers know" in done["describe"]
        federated.wait_results(job)
        config, report = str(federated.config("east")), tmp_path / "report.html"
        assert main(["jobs", "result", job, "--config", config, "--report", str(report)]) == 0
        assert "Records of each class" in report.read_text()
        tasks = {NAME: from_file(TASK)}
        result = Release.load(federated.results("east", job), tasks)
    records = {name: read_source(file, SCHEMA) for name, file in files.items()}
    local = run_plan(result.plan, records, noise=ZeroNoise())
    for name, value in local.results.items():
        np.testing.assert_array_equal(result.results[name], value, err_msg=name)
    assert NAME not in TASKS


def test_a_silo_without_the_code_or_with_other_code_declines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "bin_rates.py"
    other.write_text(FILE.read_text().replace("0.5", "0.25"))
    with federation(tmp_path, tables(tmp_path), bin_rates=f"{other}:BinRates") as federated:
        federated.start()
        federated.wait_connected()
        # The first decline ends a job, so each silo is asked alone.
        for silo in SILOS:
            federated.kill(silo)
        for silo in SILOS:
            federated.start(silo)
            federated.wait_connected(silo)
            assert main(submit(federated)) == 0
            job = json.loads(capsys.readouterr().out)["job"]
            done = federated.wait_job(job)
            federated.kill(silo)
            assert done["state"] == "declined"
            assert [said["silo"] for said in done["decisions"]] == [silo]
            assert "at most 2 of 3 silos can still approve" in done["reason"]
            assert "use the same code at every party" in done["reason"]
