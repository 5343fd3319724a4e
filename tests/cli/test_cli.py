"""The command line: exit codes, nothing spent by mistakes, nothing of a record in its output."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import DPCoxApproximate, cli
from cloister.app.files import name_silos
from cloister.app.release import Release
from cloister.cli import COMMANDS, EXIT_CODES, GROUPS, MOVED, main, output
from cloister.cli.options import task_options
from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.core.errors import PlanError, RemoteProtocolError, TransportError
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import LaplaceEvent
from cloister.privacy.filter import Cost, Limits, Split, total
from cloister.privacy.ledger import Ledger
from cloister.tasks import TASKS

# Unmistakable records: no coordinate, no noise and no digest has these digits by chance. Digests
# have 3,500 places, where 7 digits would stand between letters once in 600,000 runs.
REAL, IDENTIFIER, NAME = 123.456789123, 765_432_198_765, "Planted Patient"
SCHEMA = """\
dataset = "ward"
unit = "row"
[[columns]]
name = "pressure"
type = "number"
min = 60
max = 220
measure = "mmHg"
[[columns]]
name = "code"
type = "integer"
min = 0
max = 1000000000000
"""
CLUSTER = ["--k", "2", "--epsilon", "2", "--nominal-n", "1500"]
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three silos of 500 records, each with the planted one, and a schema."""
    folder = tmp_path_factory.mktemp("ward")
    rng = np.random.default_rng(0)
    for index, name in enumerate(("north.csv", "east.parquet", "south.csv")):
        frame = pd.DataFrame(
            {
                "code": rng.integers(0, 10**12, 500),
                "patient": f"{NAME} {index}",
                "pressure": rng.normal(130, 15, 500).round(1),
            }
        )
        frame.loc[7, ["code", "pressure"]] = [IDENTIFIER, REAL]
        frame["code"] = frame["code"].astype(int)
        if name.endswith("csv"):
            frame.to_csv(folder / name, index=False)
        else:
            frame.to_parquet(folder / name)
    (folder / "ward.toml").write_text(SCHEMA)
    return folder


@pytest.fixture(scope="module")
def paid_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after one run, whose budget is the lifetime cap."""
    folder = tmp_path_factory.mktemp("paid") / "ward"
    shutil.copytree(template, folder)
    with contextlib.chdir(folder):
        assert main(cluster("--quiet")) == 0
    return folder


@pytest.fixture
def ward(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We stand in a folder of silos."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def paid(paid_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We stand in a folder of silos, whose budget is spent."""
    shutil.copytree(paid_template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = ["north.csv", "east.parquet", "south.csv", "--schema", "ward.toml"]


def cluster(*more: str) -> list[str]:
    cap = [] if {"--ledger", "--cap-epsilon"} & {*more} else ["--cap-epsilon", "2"]
    return ["cluster", *FILES, *CLUSTER, *cap, "--out", "out", *more]


def again(*more: str) -> list[str]:
    """The same job with another folder, since a paid release is not replaced."""
    return [*cluster(*more), "--out", "again"]


def document(said: Said) -> dict[str, Any]:
    """Return the one JSON document on standard output."""
    text = said.readouterr().out
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def one_sentence(said: Said) -> str:
    text = said.readouterr()
    assert text.out == ""
    assert text.err.startswith("cloister")
    assert text.err.count("\n") == 1
    assert "Traceback" not in text.err
    return text.err


# --- What a run leaves ----------------------------------------------------------------------------


def test_cluster_writes_model_report_and_centres_and_says_what_it_cost(
    ward: Path, capsys: Said
) -> None:
    assert main(cluster("--json")) == 0
    told = document(capsys)
    assert told["silos"] == ["north", "east", "south"]
    assert told["budget"]["epsilon"] == pytest.approx(2, rel=1e-3)
    assert told["charged"]["cap_epsilon"] == 2
    assert told["private"] is True
    assert told["warnings"] == []
    model = Release.load("out/model.json")
    np.testing.assert_array_equal(told["results"]["centres"], model.results["centres"])
    assert model.plan.digest.hex() == told["plan_digest"]
    rows = list(csv.DictReader(Path("out/centres.csv").read_text(encoding="utf-8").splitlines()))
    assert [float(row["pressure"]) for row in rows] == list(model.results["centres"][:, 0])
    for end in ("low", "high"):
        assert [float(row[f"code {end}"]) for row in rows] == list(model.results[end][:, 1])
    assert [float(row["noisy size"]) for row in rows] == list(model.results["sizes"])
    report = Path("out/report.html").read_text(encoding="utf-8")
    assert '<th scope="row">lifetime cap</th>' in report
    assert "% of the lifetime cap is spent, with this job" in report
    assert "This is the text that approvers read." in report


def test_cluster_tells_people_silos_rounds_budget_and_centres(ward: Path, capsys: Said) -> None:
    assert main(cluster()) == 0
    said = capsys.readouterr()
    for word in (
        *("north, east, south", "of 3 silos", "operating system", "spent", "lifetime cap"),
        *("with the lifetime cap epsilon=2", "Not counted there", "times in 100", "±", "pressure"),
    ):
        assert word in said.out
    assert said.err == ""  # no bar where nobody watches
    # The ledger lists jobs by this identifier alone.
    assert re.search(rf"^ +job +{Release.load('out/model.json').plan.run_id}$", said.out, re.M)


def test_the_folder_of_a_job_is_verified_and_numbers_need_a_folder(
    paid: Path, capsys: Said
) -> None:
    assert main(["verify", "out", "--json"]) == 10
    assert document(capsys)["replayed"]
    assert main(["export", "out/model.json", "--out", "numbers.csv"]) == 3
    assert "--out must be a folder" in one_sentence(capsys)
    assert not Path("numbers.csv").exists()
    assert main(["verify", "out", "--report", "report.docx"]) == 3
    assert "pandoc report.md" in capsys.readouterr().err
    assert not Path("report.docx").exists()


def test_the_result_of_a_session_on_shares_is_not_verified(ward: Path, capsys: Said) -> None:
    Path("result.json").write_text('{"session": "s", "opening": "private", "results": {}}')
    assert main(["verify", "result.json"]) == 4
    assert "nobody can verify" in one_sentence(capsys)


def test_a_cache_leaves_nothing_and_an_absent_one_stops_before_anything_is_charged(
    ward: Path, capsys: Said
) -> None:
    before = {*ward.rglob("*")}
    assert main(cluster("--cache-dir", "absent")) != 0
    assert "cache_dir 'absent' cannot store the records" in one_sentence(capsys)
    assert {*ward.rglob("*")} == before
    (ward / "fast").mkdir()
    assert main(cluster("--cache-dir", "fast", "--quiet")) == 0
    assert not any((ward / "fast").iterdir())


def test_at_a_terminal_reading_and_rounds_show_rows_a_second(
    ward: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    assert main(cluster()) == 0
    assert re.search(r"reading north: \d+ rows, [\d,]+ a second", seen.getvalue())
    assert re.search(r"3 silos, [\d.e-]+ million rows a second", seen.getvalue())


def test_quiet_says_nothing_and_json_nothing_else(ward: Path, capsys: Said) -> None:
    assert main(cluster("--quiet")) == 0
    assert capsys.readouterr() == ("", "")
    for command in (
        ["plan", "--schema", "ward.toml", *CLUSTER],
        ["tasks"],
        ["check", "north.csv", "--schema", "ward.toml"],
        ["schema", "validate", "ward.toml"],
        ["schema", "init", "age,bmi"],
        ["budget", "show", "out/ledger.db"],
        ["predict", "out/model.json", "north.csv", "--out", "labels.csv"],
    ):
        assert main([*command, "--quiet"]) == 0
        assert capsys.readouterr().out == ""
        assert main([*command, "--json"]) == 0
        assert isinstance(document(capsys), dict)


def test_no_record_is_in_anything_that_is_written_or_said(ward: Path, capsys: Said) -> None:
    needles = [
        rb"(?<![0-9.])%d(?![0-9])" % IDENTIFIER,  # a number of its own, not digits of another
        *(re.escape(text.encode()) for text in (str(REAL), NAME)),
        *(re.escape(struct.pack("<d", number)) for number in (REAL, IDENTIFIER)),
        re.escape(struct.pack("<q", IDENTIFIER)),
    ]
    planted = Path("north.csv").read_bytes()
    assert all(re.search(needle, planted) for needle in needles[:3])  # they would be found
    assert main(cluster()) == 0
    assert main(again("--json")) == 5
    assert (
        main(
            [
                "run",
                *FILES,
                "--task",
                "count",
                "--epsilon",
                "1",
                "--ledger",
                "counted.db",
                "--cap-epsilon",
                "1",
                "--out",
                "counted",
            ]
        )
        == 0
    )
    assert main(["plan", "--schema", "ward.toml", *CLUSTER]) == 0
    assert main(["schema", "init", "north.csv"]) == 0
    assert main(["check", "north.csv", "--schema", "ward.toml"]) == 0
    assert main(["budget", "show", "out/ledger.db"]) == 0
    assert main(["budget", "export", "out/ledger.db"]) == 0
    said = capsys.readouterr()
    artefacts = {"said": (said.out + said.err).encode()}
    for folder in ("out", "counted"):
        artefacts |= {str(path): path.read_bytes() for path in Path(folder).iterdir()}
    assert {Path(name).name for name in artefacts} >= {
        *("model.json", "report.html", "centres.csv", "ledger.db")
    }
    for name, content in artefacts.items():
        for needle in needles:
            assert not re.search(needle, content), name


def test_nothing_that_is_written_names_counts_or_durations(ward: Path, capsys: Said) -> None:
    assert main(cluster("--json")) == 0
    words = set(
        re.findall(r'"(\w+)":', capsys.readouterr().out + Path("out/model.json").read_text())
    )
    forbidden = re.compile(r"^(n_rows|rows|n_samples|clipped|share|seconds|duration|time)$")
    assert not [word for word in words if forbidden.match(word)]


# --- Refusals -------------------------------------------------------------------------------------


def test_a_second_run_beyond_the_cap_is_refused_and_changes_nothing(
    paid: Path, capsys: Said
) -> None:
    before, model = Ledger("out/ledger.db").head(), Path("out/model.json").read_bytes()
    assert main(again("--quiet")) == 5
    assert "above its lifetime cap of 2" in one_sentence(capsys)
    assert Ledger("out/ledger.db").head() == before
    assert Path("out/model.json").read_bytes() == model


@pytest.mark.parametrize("command", ["cluster", "ask"])
def test_a_paid_release_is_not_replaced_and_nothing_is_spent(
    command: str, paid: Path, capsys: Said
) -> None:
    kept = {path: path.read_bytes() for path in Path("out").iterdir()}
    other = ["ask", *FILES[:3], "--question", "auto", "--yes", "--out", "out"]
    assert main(cluster("--cap-epsilon", "9") if command == "cluster" else other) == 3
    assert "exists already and is not replaced; give another --out" in one_sentence(capsys)
    assert {path: path.read_bytes() for path in Path("out").iterdir()} == kept


def test_a_job_that_stopped_before_its_release_runs_again_in_the_same_folder(
    ward: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise RemoteProtocolError("round 0 was answered twice.")

    with monkeypatch.context() as patch:
        patch.setattr("cloister.app.job.Job.run", stop)
        assert main(cluster("--quiet")) == 7
    assert main(cluster("--quiet")) == 0


def test_an_overspend_is_refused_before_the_noisy_count_is_bought(ward: Path, capsys: Said) -> None:
    assert main(cluster("--quiet", "--cap-epsilon", "2.5")) == 0
    before = Ledger("out/ledger.db").head()
    bare = ["cluster", *FILES, "--k", "2", "--epsilon", "2", "--out", "again", "--quiet"]
    assert main(bare) == 5
    assert Ledger("out/ledger.db").head() == before


def test_one_ledger_serves_runs_in_several_folders(ward: Path, capsys: Said) -> None:
    ledger = ["--ledger", "all.db", "--json"]
    assert main(cluster(*ledger)) == 3
    assert "every data set has a lifetime cap" in one_sentence(capsys)
    assert not Path("all.db").exists()
    assert main(cluster(*ledger, "--cap-epsilon", "3")) == 0
    first = document(capsys)["charged"]
    other = [word if word != "out" else "out2" for word in cluster(*ledger, "--study", "second")]
    assert main(other) == 0
    second = document(capsys)["charged"]
    assert first["spent_epsilon"] < second["spent_epsilon"] < 3
    assert second["study"] == "second"
    assert main(again(*ledger, "--cap-epsilon", "4")) == 3
    assert "cloister budget cap" in one_sentence(capsys)


def _no_bounds() -> None:
    Path("ward.toml").write_text(SCHEMA.replace("max = 220\n", ""))


def _bounds_from_data() -> None:
    Path("ward.toml").write_text(SCHEMA.replace("max = 220", 'max = "data"'))


def _other_column() -> None:
    Path("ward.toml").write_text(SCHEMA.replace('"pressure"', '"pulse"'))


def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "change", "code", "words"),
    [
        (_other_column, {}, 4, "no column 'pulse'"),
        (_no_bounds, {}, 3, "must be a public number"),
        (_bounds_from_data, {}, 3, "must be a public number"),
        (_nothing, {"--epsilon": "0"}, 3, "epsilon must be a number > 0"),
        (_nothing, {"--epsilon": "-1"}, 3, "epsilon must be a number > 0"),
        (_nothing, {"--epsilon": "nan"}, 3, "epsilon"),
        (_nothing, {"--epsilon": "one"}, 2, "invalid float"),
        (_nothing, {"--delta": "1"}, 3, "delta"),
        (_nothing, {"--k": "1501"}, 3, "n_clusters must be at most nominal_n=1500"),
        (_nothing, {"--k": "0"}, 3, "n_clusters"),
        (_nothing, {"--k": "auto:5"}, 2, "must be a number or a range such as auto:2..12"),
        (_nothing, {"--nominal-n": "0"}, 3, "nominal_n"),
        (_nothing, {"--rounds": "0"}, 3, "rounds"),
        (_nothing, {"--alpha": "-1"}, 3, "alpha"),
        (_nothing, {"--alpha": "1", "--algorithm": "glloyd"}, 3, "it has no option 'alpha'"),
        (_nothing, {"--algorithm": "lloyd"}, 2, "invalid choice"),
        (_nothing, {"--min-silos": "9"}, 3, "min_silos"),
        (_nothing, {"--schema": "absent.toml"}, 3, "cannot be read"),
        (_nothing, {"--cap-epsilon": "5"}, 3, "cap_epsilon of data set 'ward' is 2"),
        (_nothing, {"--out": "north.csv"}, 4, "cannot be written"),
        (lambda: Path("south.csv").unlink(), {}, 4, "does not exist"),
    ],
)
def test_mistakes_are_one_sentence_and_spend_nothing(
    prepare: Callable[[], None],
    change: dict[str, str],
    code: int,
    words: str,
    paid: Path,
    capsys: Said,
) -> None:
    before = Ledger("out/ledger.db").head()
    Path("out/model.json").unlink()  # which is not replaced, and refused first
    prepare()
    command = cluster(*(word for pair in change.items() for word in pair))
    assert main(command) == code
    assert words in one_sentence(capsys)
    assert Ledger("out/ledger.db").head() == before


def test_a_mistake_in_the_first_run_makes_no_ledger(ward: Path, capsys: Said) -> None:
    _other_column()
    assert main(cluster()) == 4
    assert not Path("out").exists()
    Path("ward.toml").write_text(SCHEMA)
    assert main(cluster("--cap-epsilon", "1")) == 3
    assert "cap_epsilon must be at least epsilon=2" in capsys.readouterr().err
    assert not Path("out/ledger.db").exists()


def test_what_records_hold_never_stops_a_run(ward: Path) -> None:
    frame = pd.read_csv("north.csv")
    frame["pressure"] = frame["pressure"].astype(object)
    frame.loc[0, "pressure"] = "high"
    frame.loc[1, "pressure"] = None
    frame.loc[2, "pressure"] = 1e9
    frame.to_csv("north.csv", index=False)
    frame.iloc[:0].to_csv("south.csv", index=False)
    assert main(cluster("--quiet")) == 0


def test_a_file_that_is_no_ledger_is_code_6(ward: Path, capsys: Said) -> None:
    Path("out").mkdir()
    Path("out/ledger.db").write_bytes(b"not a ledger" * 100)
    assert main(cluster()) == 6
    one_sentence(capsys)
    assert main(["budget", "show", "absent.db"]) == 6
    one_sentence(capsys)
    assert not Path("absent.db").exists()


@pytest.mark.parametrize("error", [RemoteProtocolError, TransportError])
def test_a_broken_protocol_is_code_7(
    error: type[Exception], ward: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("round 0 was answered twice.")

    monkeypatch.setattr("cloister.app.job.Job.run", fail)
    assert main(cluster("--cap-epsilon", "9", "--quiet")) == 7
    assert "answered twice" in one_sentence(capsys)


def test_an_unexpected_error_is_code_1_and_its_message_is_kept_back(
    ward: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(f"cannot convert {REAL}")

    monkeypatch.setattr("cloister.app.job.Job.run", fail)
    assert main(cluster("--quiet")) == 1
    sentence = one_sentence(capsys)
    assert "unexpected ValueError" in sentence
    assert "repeat with --traceback" in sentence  # nothing was charged
    assert str(REAL) not in sentence
    assert main(cluster("--quiet", "--traceback")) == 1
    assert str(REAL) in capsys.readouterr().err


def test_exit_codes_are_documented_where_people_look(capsys: Said) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for code in {0, *EXIT_CODES.values(), cli.USAGE, cli.UNEXPECTED, cli.INTERRUPTED}:
        assert re.search(rf"^{code}  +\w", text, re.MULTILINE)


def test_help_keeps_names_as_they_are_written(capsys: Said) -> None:
    assert main(["classify", "--help"]) == 0
    assert "naive Bayes" in " ".join(capsys.readouterr().out.split())
    assert main(["--help"]) == 0
    assert "`" not in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_json_and_quiet(command: str, capsys: Said) -> None:
    actions = {
        "schema": ["init", "catalogue", "validate", "hash", "diff"],
        "budget": [
            *("advise", "show", "export", "cap", "close", "backup", "verify", "migrate"),
            *("statements", "recover", "clock"),
        ],
        "horizon": ["open", "release", "show"],
        "config": ["check", "init"],
        "jobs": [
            "submit",
            "list",
            "show",
            "rows",
            "approve",
            "deny",
            "withdraw",
            "cancel",
            "result",
        ],
        "flare": ["secure", "check", "job"],
        "federation": ["init", "invite", "open", "demo", "ca", "enroll"],
        "experiments": ["list", "run", "figures"],
        "coordinator": ["run"],
        "silo": ["run"],
        "link": ["plan", "check", "run"],
    }
    services = ("coordinator", "silo", "scorer", "console")  # they serve, and have no document
    for action in actions.get(command, [""]):
        assert main([word for word in (command, action, "--help") if word]) == 0
        text = capsys.readouterr().out
        if action in ("ca", "enroll"):  # actions of their own
            continue
        assert ("--json" in text) == (command not in services)
        assert ("--quiet" in text) == (command not in services)


def test_help_lists_every_command_in_one_group(capsys: Said) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for group, named in GROUPS.items():
        start = lines.index(f"{group}:")
        listed = [line.split()[0] for line in lines[start + 1 : start + 1 + len(named)]]
        assert listed == list(named)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_command_names_the_new_one(old: str, capsys: Said) -> None:
    action = {"ca": "init", "enroll": "request", "ledger": "verify", "audit-log": "verify"}[old]
    assert main([old, action, "--help"]) == 0
    told = capsys.readouterr()
    assert f"{old!r} is now {' '.join(MOVED[old])!r}" in told.err
    assert told.out.startswith(f"usage: cloister {' '.join(MOVED[old])}")


@pytest.mark.parametrize(
    "command",
    [["--quiet"], ["unknown"], ["cluster"], ["budget"], ["plan", "--k"], ["plan", "--columns=a,"]],
)
def test_a_wrong_command_line_is_code_2(command: list[str], capsys: Said) -> None:
    assert main(command) == 2
    assert "--help" in one_sentence(capsys)


def test_version_is_shown(capsys: Said) -> None:
    assert main(["--version"]) == 0
    assert re.match(r"cloister \d+\.\d+", capsys.readouterr().out)


# --- The other commands ---------------------------------------------------------------------------


def test_a_task_that_is_not_private_needs_consent_and_is_flagged(ward: Path, capsys: Said) -> None:
    command = ["run", *FILES, "--task", "lloyd", "--set", "n_clusters=2", "--out", "out"]
    assert main(command) == 3
    assert "--not-private" in one_sentence(capsys)
    assert main([*command, "--not-private", "--epsilon", "1"]) == 3
    assert "cannot be used with task" in one_sentence(capsys)
    assert main([*command, "--not-private", "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert "NOT PRIVATE" in said.err
    assert told["private"] is False
    assert told["budget"] is None
    assert told["charged"] is None
    assert not Path("out/ledger.db").exists()
    assert 'class="alert"' in Path("out/report.html").read_text()


def test_run_needs_epsilon_and_takes_only_the_tasks_own_options(ward: Path, capsys: Said) -> None:
    command = ["run", *FILES, "--task", "glloyd", "--out", "out"]
    assert main([*command, "--set", "n_clusters=2"]) == 3
    assert "epsilon must be given" in one_sentence(capsys)
    for option in ("noise=null", "account=1", "frac_bits=8", "epsilon=9", "nominal_n=1", "x"):
        assert main([*command, "--epsilon", "1", "--set", option]) == 3
        one_sentence(capsys)
    assert main([*command, "--epsilon", "1", "--set", "colour=red"]) == 3
    sentence = one_sentence(capsys)
    assert "it has no option 'colour'; its options are n_clusters, rounds, post" in sentence
    more = ["--set", "n_clusters=2", "--set", "post=fold", "--epsilon", "1", "--quiet"]
    more += ["--cap-epsilon", "1"]
    assert main([*command, *more]) == 0
    assert Release.load("out/model.json").plan.to_dict()["task"]["post"] == "fold"


def test_the_help_of_a_task_shows_how_a_formula_is_written(capsys: Said) -> None:
    assert main(["tasks", "glm"]) == 0
    said = capsys.readouterr().out
    assert "--set 'formula=y ~ age * treatment + site'" in said
    assert "mapping to anything" not in said


def test_tasks_are_listed_with_what_they_promise(capsys: Said) -> None:
    assert main(["tasks"]) == 0
    text = capsys.readouterr().out
    assert "fastlloyd  (private)" in text
    assert "lloyd  (NOT PRIVATE)" in text
    assert main(["tasks", "--json"]) == 0
    tasks = {task["task"]: task for task in document(capsys)["tasks"]}
    assert tasks["sulloyd"]["mechanism"] == "laplace"
    assert {"n_clusters", "public_seed"} <= set(tasks["fastlloyd"]["options"])
    assert {"sensitive", "min_support", "max_size"} <= set(tasks["apriori"]["options"])


def test_one_task_is_shown_with_its_options_and_an_example(capsys: Said) -> None:
    assert main(["tasks", "tabulate"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--set 'tables=[[" in text
    assert "fastlloyd" not in text
    assert main(["tasks", "absent"]) == 3


def test_a_list_may_be_written_without_brackets() -> None:
    given = task_options(TASKS["tabulate"], ['tables=[["group", "member"]]'])
    assert given == {"tables": [["group", "member"]]}
    assert task_options(TASKS["tabulate"], ["tables=group, member"]) == given
    assert task_options(TASKS["cox"], ["covariates=age,1"]) == {"covariates": ["age", "1"]}
    assert task_options(TASKS["survival"], ["at=12,24.5"]) == {"at": [12, 24.5]}
    edges = task_options(TASKS["tabulate"], ["edges=age=40,65.5"])
    assert edges == {"edges": {"age": (40, 65.5)}}


def test_an_option_that_is_set_twice_is_refused_since_only_the_last_would_count() -> None:
    with pytest.raises(PlanError, match="tables must be given once, with all values together"):
        task_options(TASKS["tabulate"], ["tables=age,sex", "tables=sex"])


def test_plan_finds_the_epsilon_of_a_wanted_margin(capsys: Said, ward: Path) -> None:
    asked = ["plan", "--schema", "ward.toml", "--nominal-n", "120", "--task", "count"]
    assert main([*asked, "--want", "result=20", "--json"]) == 0
    told = document(capsys)
    assert told["forecast"]["half_width"][0] <= 20
    assert 0.1 < told["plan"]["budget"]["epsilon"] < 1
    assert main([*asked, "--want", "result=20", "--epsilon", "1"]) != 0
    assert "--epsilon is what --want finds" in capsys.readouterr().err


def test_plan_shows_cost_rounds_bytes_error_and_odds_without_a_record(
    capsys: Said, ward: Path
) -> None:
    command = ["plan", "--schema", "ward.toml", *CLUSTER, "--silos", "3"]
    command += ["--algorithm", "fastlloyd", "--no-estimate"]
    assert main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("epsilon=2", "rounds", "bytes", "times in 100", "in its unit", "silo-3"):
        assert words in text
    assert main([*command, "--json"]) == 0
    told = document(capsys)
    assert told["upload_bytes_per_silo"] == told["rounds"] * 2 * 3 * 8
    assert 0.5 < told["attacker_odds"] < 1
    assert len(told["forecast"]["half_width"]) == 2
    together = sum(cost["epsilon_alone"] ** 2 for cost in told["round_costs"]) ** 0.5
    assert 0.5 < together < 3  # each round is a part of the whole
    assert sorted(path.name for path in ward.iterdir()) == sorted(
        ["north.csv", "east.parquet", "south.csv", "ward.toml"]
    )


@pytest.mark.parametrize(
    ("algorithm", "within"), [("fastlloyd", 0.3), ("glloyd", 1e-3), ("auto", 0.3)]
)
def test_plan_forecasts_the_error_that_the_run_reports(
    ward: Path, capsys: Said, algorithm: str, within: float
) -> None:
    """With verdicts it also depends on the noisy size, of 750 records less or more."""
    method = ["--algorithm", algorithm]
    assert main(["plan", "--schema", "ward.toml", *CLUSTER, *method, "--json"]) == 0
    forecast = document(capsys)["forecast"]
    assert main(cluster("--json", *method)) == 0
    results = document(capsys)["results"]
    # The noise of all clusters; an interval is of those that are determined.
    released = results.get("size_noise", results["size_half_width"])[0]
    assert released == pytest.approx(forecast["size_half_width"][0], rel=within)


def test_plan_warns_when_there_are_too_few_records(ward: Path, capsys: Said) -> None:
    base = ["plan", "--schema", "ward.toml", "--quiet"]
    assert main([*base, "--k", "2", "--epsilon", "1", "--nominal-n", "100000"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*base, "--k", "50", "--epsilon", "0.5", "--nominal-n", "2000"]) == 0
    said = capsys.readouterr().err
    assert "nominal_n=2,000 is too small for 50 clusters of 2 columns at epsilon 0.5" in said
    enough = int(re.search(r"about ([\d,]+) records", said)[1].replace(",", ""))  # type: ignore[index]
    assert main([*base, "--k", "50", "--epsilon", "0.5", "--nominal-n", str(2 * enough)]) == 0
    assert "too small" not in capsys.readouterr().err


def test_plan_needs_k_or_a_task(ward: Path, capsys: Said) -> None:
    base = ["plan", "--schema", "ward.toml", "--epsilon", "1", "--nominal-n", "100"]
    assert main(base) == 3
    assert "give either --k for k-means or --task" in one_sentence(capsys)
    assert main([*base, "--task", "count", "--k", "3"]) == 3
    assert "--set n_clusters" in one_sentence(capsys)
    assert main([*base, "--task", "count", "--quiet"]) == 0


def test_predict_labels_every_row_and_says_that_labels_are_not_private(
    paid: Path, capsys: Said
) -> None:
    frame = pd.read_csv("north.csv")
    frame.loc[3, "pressure"] = np.nan
    frame.to_csv("with-gap.csv", index=False)
    assert main(["predict", "out/model.json", "with-gap.csv", "--out", "labels.csv"]) == 0
    assert "NOT private" in capsys.readouterr().err
    labels = pd.read_csv("labels.csv")
    assert list(labels["row"]) == list(range(1, 501))
    assert np.isnan(labels["cluster"][3])
    model = Release.load("out/model.json")
    grid, columns = model.plan.grid, list(model.plan.columns)
    kept = np.arange(500) != 3
    points = grid.encode(frame[columns].to_numpy()[kept])
    centres = np.rint(grid.normalise(model.results["centres"]) * grid.one).astype(np.int64)
    nearest = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(labels["cluster"][kept], nearest)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predict_keeps_what_rows_are_joined_by(paid: Path, capsys: Said, suffix: str) -> None:
    """As it is written: "007" is no number, and a key may be missing."""
    frame = pd.read_csv("north.csv")
    frame["patient id"] = [f"{i:03}" for i in range(len(frame))]
    frame["ward"] = "A, left"
    frame.loc[5, "patient id"] = None
    frame.loc[7, "pressure"] = np.nan
    getattr(frame, f"to_{suffix}")(f"keyed.{suffix}", index=False)
    command = ["predict", "out/model.json", f"keyed.{suffix}", "--out", "labels.csv"]
    assert main([*command, "--keep", "patient id,ward"]) == 0
    labels = pd.read_csv("labels.csv", dtype=str, keep_default_na=False)
    assert list(labels.columns) == ["row", "patient id", "ward", "cluster"]
    assert labels["patient id"].tolist() == frame["patient id"].fillna("").tolist()
    assert set(labels["ward"]) == {"A, left"}
    assert labels["cluster"][7] == ""
    capsys.readouterr()
    assert main([*command[:-1], "other.csv", "--keep", "nobody"]) == 4
    assert "no column 'nobody'" in one_sentence(capsys)
    assert not Path("other.csv").exists()


def test_predict_refuses_what_is_no_model_and_what_lacks_columns(ward: Path, capsys: Said) -> None:
    assert main(["predict", "ward.toml", "north.csv", "--out", "labels.csv"]) == 4
    one_sentence(capsys)
    assert main(cluster("--quiet")) == 0
    Path("other.csv").write_text("a,b\n1,2\n")
    assert main(["predict", "out/model.json", "other.csv", "--out", "labels.csv"]) == 4
    assert "no column" in one_sentence(capsys)
    assert not Path("labels.csv").exists()


def test_check_counts_locally_and_says_so(ward: Path, capsys: Said) -> None:
    frame = pd.read_csv("north.csv")
    frame.loc[:4, "pressure"] = 500.0
    frame.to_csv("north.csv", index=False)
    assert main(["check", "north.csv", "--schema", "ward.toml"]) == 0
    text = capsys.readouterr().out
    assert "not a release" in text
    assert "1.00%" in text
    assert main(["check", "north.csv", "--schema", "ward.toml", "--json"]) == 0
    told = document(capsys)
    assert "not a release" in told["note"]
    assert told["columns"][0]["out_of_range"] == 5


def test_check_takes_as_many_files_as_a_run(ward: Path, capsys: Said) -> None:
    files = ["north.csv", "south.csv"]
    frame = pd.read_csv("south.csv")
    frame.loc[: len(frame) // 2, "pressure"] = np.nan
    frame.to_csv("south.csv", index=False)
    check = ["check", *files, "--schema", "ward.toml"]
    assert main([*check, "--json"]) == 4
    told = document(capsys)["files"]
    assert [told[file]["too_much_lost"] for file in files] == [False, True]
    assert main(check) == 4
    assert re.findall(r"source +file '(.*)'", capsys.readouterr().out) == files


def test_check_counts_the_columns_of_a_job(ward: Path, capsys: Said) -> None:
    frame = pd.read_csv("north.csv")
    frame.loc[: len(frame) // 2, "pressure"] = np.nan
    frame.to_csv("north.csv", index=False)
    check = ["check", "north.csv", "--schema", "ward.toml"]
    assert main(check) == 4
    assert main([*check, "--columns", "code"]) == 0
    assert "pressure" not in capsys.readouterr().out.rpartition("Columns")[2]
    assert main([*check, "--columns", "absent"]) == 3
    assert "'absent'" in one_sentence(capsys)


def test_schema_is_drafted_from_a_header_and_a_codebook_never_from_values(
    ward: Path, capsys: Said
) -> None:
    Path("book.csv").write_text("name,type,min,max,measure\npressure,number,60,220,mmHg\n")
    command = ["schema", "init", "north.csv", "--codebook", "book.csv", "--out", "draft.toml"]
    assert main([*command, "--dataset", "ward"]) == 0
    said = capsys.readouterr()
    draft = Path("draft.toml").read_text()
    assert "FILL IN" in said.err
    assert str(IDENTIFIER) not in draft
    assert main(command) == 3
    assert "exists already" in one_sentence(capsys)
    assert main(["schema", "validate", "draft.toml"]) == 3
    one_sentence(capsys)
    names = ["schema", "init", "pressure", "--codebook", "book.csv", "--dataset", "ward"]
    assert main([*names, "--out", "good.toml"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["schema", "validate", "good.toml"]) == 0
    assert re.search(r"digest +[0-9a-f]{64}", capsys.readouterr().out)
    assert main(["schema", "init", "absent.csv"]) == 4
    one_sentence(capsys)


def test_bounds_of_a_date_are_days(ward: Path, capsys: Said) -> None:
    dated = '[[columns]]\nname = "start"\ntype = "date"\nmin = 2018\nmax = 2021.5\n'
    Path("dated.toml").write_text(SCHEMA + dated)
    assert main(["schema", "validate", "dated.toml"]) == 0
    assert re.search("start +date +2018-01-01 +2021-07-02 ", capsys.readouterr().out)


def test_budget_is_shown_exported_and_its_cap_changed(paid: Path, capsys: Said) -> None:
    assert main(["budget", "show", "out/ledger.db"]) == 0
    text = capsys.readouterr().out
    for words in ("every entry verified", "ward", "epsilon=2", "closed"):
        assert words in text
    assert main(["budget", "show", "out/ledger.db", "--json"]) == 0
    assert document(capsys)["datasets"]["ward"]["spent_epsilon"] == pytest.approx(2, rel=1e-3)
    assert main(["budget", "export", "out/ledger.db", "--out", "chain.json"]) == 0
    assert len(json.loads(Path("chain.json").read_text())["entries"]) > 3
    capsys.readouterr()
    assert main(again("--quiet")) == 5
    assert main(["budget", "cap", "out/ledger.db", "ward", "--epsilon", "4"]) == 0
    assert main(again("--quiet", "--cap-epsilon", "4")) == 0
    assert main(["budget", "cap", "out/ledger.db", "absent", "--epsilon", "4"]) == 6


def test_an_advised_cap_admits_the_jobs_and_the_shares_of_analysts(capsys: Said) -> None:
    asked = ["--epsilon", "0.5", "--jobs", "12", "--analysts", "3"]
    assert main(["budget", "advise", *asked]) == 0
    assert "studies_of" in capsys.readouterr().out
    assert main(["budget", "advise", *asked, "--json"]) == 0
    told = document(capsys)
    job = Cost(mu_squared=gdp_mu_for(0.5, told["delta"]) ** 2)
    for cap, n in ((told["max_epsilon_per_study"], 12), (told["cap"], 36)):
        limits = Limits(Budget(cap, told["delta"]), Split())
        assert limits.admits(total([job] * (n - 1)), job)
        assert not limits.admits(total([job] * (2 * n)), job)
    for epsilon in ("0.1", "0.33", "2.4"):  # one job needs no more than its own
        assert main(["budget", "advise", "--epsilon", epsilon, "--jobs", "1", "--json"]) == 0
        assert document(capsys)["cap"] == pytest.approx(float(epsilon), rel=1e-9)
    assert main(["budget", "advise", "--epsilon", "1", "--jobs", "0"]) == 3
    assert "--jobs must be a number in [1, 10000]" in one_sentence(capsys)


def test_silos_are_named_like_their_files_and_never_twice() -> None:
    paths = [Path(name) for name in ("a/x.csv", "b/x.csv.gz", "x.parquet", "y.v2.csv", "folder")]
    assert list(name_silos(paths)) == ["x", "x-2", "x-3", "y.v2", "folder"]


def test_names_cannot_steer_the_terminal(capsys: Said) -> None:
    out = Output()
    out.say("a\x1b[31m")
    out.table(Table("t\x1b", ("[bold]x\x1b[0m",), (("[red]y",),)))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "[bold]x" in text
    assert "[red]y" in text


def test_wide_tables_fit_the_screen(capsys: Said) -> None:
    headings = tuple(f"c{j}" for j in range(40))
    Output().table(Table("wide", headings, (tuple(float(j) for j in range(40)),)))
    text = capsys.readouterr().out
    assert "and 31 more columns" in text
    assert max(map(len, text.splitlines())) <= 100
    Output().paragraph("word " * 100)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_a_narrow_terminal_cuts_no_cell(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_WIDEST", 80)
    headings = ("", "all records", "treatment=old", "treatment=new", "p after Holm", "x" * 90)
    cells = tuple(f"134.{j} [133.8, 134.1]" for j in range(5))
    Output().table(Table("Table 1", headings, (("sbp, mean (SD)", *cells), ("records", *cells))))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert all(text.count(one) == 2 for one in cells)
    assert all(one in text for one in headings[:5])
    assert text.count("x") >= 90
    assert text.count("sbp, mean (SD)") == 3


def test_strata_of_cox_approximate_name_the_task_that_has_them(capsys: Said) -> None:
    with pytest.raises(PlanError, match="no option 'strata', but task cox"):
        task_options(TASKS["cox-approximate"], ["strata=place"])
    with pytest.raises(TypeError, match="has no parameter 'strata': task cox"):
        # The option is not there, which the types know, too.
        DPCoxApproximate(epsilon=1.0, strata="place")  # type: ignore[call-arg]
    words = "cox-approximate a.csv --schema s.toml --time t --event e --nominal-events 9"
    assert main([*words.split(), "--strata", "place", "--epsilon", "1", "--out", "o"]) == 2
    assert "unrecognized arguments: --strata place; task cox" in capsys.readouterr().err


def test_a_formula_elsewhere_names_glm(capsys: Said) -> None:
    with pytest.raises(PlanError, match="takes no formula; use: cloister run --task glm"):
        task_options(TASKS["logistic"], ["formula=y ~ x"])
    assert (
        main(
            [
                "classify",
                "a.csv",
                "--schema",
                "s",
                "--target",
                "y",
                "--out",
                "o",
                "--nominal-n",
                "9",
                "--epsilon",
                "1",
                "--formula",
                "y ~ x",
            ]
        )
        == 2
    )
    assert "--task glm --set family=binomial" in capsys.readouterr().err


def test_a_wanted_margin_is_a_number(capsys: Said) -> None:
    assert main(["plan", "--want", "share=2%"]) == 2
    assert "such as share=0.02 for two percent, got 'share=2%'" in capsys.readouterr().err


# --- As a program ---------------------------------------------------------------------------------


def cloister(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cloister", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


def test_demo_runs_from_the_shell_and_its_budget_can_be_shown(tmp_path: Path) -> None:
    done = cloister("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for words in ("north, east, south", "systolic", "±", "lifetime cap", "report.html"):
        assert words in done.stdout
    folder = tmp_path / "cloister-demo"
    assert {path.name for path in folder.iterdir()} >= {"report.html", "model.json", "ledger.db"}
    shown = cloister("budget", "show", "cloister-demo/ledger.db", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["datasets"]["patients"]["spent_epsilon"] == pytest.approx(
        1.0, rel=1e-3
    )


def test_demo_can_be_repeated_and_its_cost_composes(tmp_path: Path, capsys: Said) -> None:
    spent = []
    for _ in range(3):
        assert main(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
        spent.append(document(capsys)["charged"]["spent_epsilon"])
    assert spent[0] < spent[1] < spent[2] < 3 * spent[0]


def test_demo_does_not_import_what_it_does_not_need(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom cloister.cli import main\n"
        "main(['demo', '--quiet', '--out', sys.argv[1]])\n"
        "heavy = {'sklearn', 'dp_accounting', 'matplotlib.pyplot'}\n"
        "sys.exit(', '.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_crash(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m cloister tasks | true",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="given twice"):
        name_silos([tmp_path / "a.csv", tmp_path / "." / "a.csv"])


def test_budget_close_frees_what_a_crashed_job_reserved(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    ledger.open_dataset("d", cap=Budget(1.0, 0.0))
    ledger.reserve(dataset="d", study="s", job="j", events=LaplaceEvent(1.0))
    assert ledger.remaining("d") < 1e-6
    assert main(["budget", "close", str(tmp_path / "l.db"), "j", "--quiet"]) == 0
    assert ledger.remaining("d") == pytest.approx(1.0)
