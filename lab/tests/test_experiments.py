"""``cloister experiments``: list, run, go on, draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister.cli import main
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.records import load_tidy

RUN = ["experiments", "run", "fastlloyd-fig2", "--repeats", "1", "--datasets", "iris"]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def ran(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Return the rows of each experiment that a run says it has."""
    entries = document(capsys)["experiments"]
    assert isinstance(entries, list)
    return {entry["name"]: entry["rows"] for entry in entries}


def test_list_names_every_experiment_and_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiments", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)
    assert main(["experiments", "list", "--json"]) == 0
    listed = document(capsys)["experiments"]
    assert isinstance(listed, list)
    assert [entry["name"] for entry in listed] == list(EXPERIMENTS)


def test_a_repeated_run_adds_only_what_is_missing_and_figures_draw_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path)]
    assert main([*RUN, *out]) == 0
    captured = capsys.readouterr()
    assert "not a release" in captured.out
    assert captured.err == ""  # no bar where nobody watches
    stored = tmp_path / "fastlloyd-fig2-small" / "runs.csv"
    first = stored.read_bytes()
    assert main([*RUN, *out, "--repeats", "2", "--json"]) == 0
    # the reference centres are measured once
    assert ran(capsys) == {"fastlloyd-fig2": 2 * len(first.splitlines()[1:]) - 1}
    assert stored.read_bytes().startswith(first)
    rows = load_tidy(stored)
    assert {row["dataset"] for row in rows} == {"iris"}
    assert all(row["version"] and row["machine"] for row in rows)
    assert [row["method"] for row in rows if not row["plan_digest"]] == ["best of ten"]

    (tmp_path / "fastlloyd-fig2-small" / "fastlloyd-fig2.png").unlink()
    assert main(["experiments", "figures", *out]) == 0
    assert "fastlloyd-fig2.png" in capsys.readouterr().out
    assert (tmp_path / "fastlloyd-fig2-small" / "fastlloyd-fig2.png").exists()


def test_one_command_runs_several_experiments_each_once_into_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["evaluate", "select-k"]
    command = ["experiments", "run", *names, names[0], "--repeats", "1", "--out", str(tmp_path)]
    assert main([*command, "--json"]) == 0
    rows = ran(capsys)
    assert list(rows) == names
    for name in names:
        assert len(load_tidy(tmp_path / f"{name}-small" / "runs.csv")) == rows[name] > 0


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["run", "nothing"], 2, "invalid choice: 'nothing'"),
        (["run", "fastlloyd-fig2", "--jobs", "0"], 3, "jobs must be >= 1, got 0."),
        (["run", "fastlloyd-fig2", "--datasets", "venus"], 3, "nothing to run"),
        (["run", "rules", "gap", "--datasets", "iris"], 3, "datasets belong to one experiment"),
        (["run", "fastlloyd-fig2", "--data", "/no/such/folder"], 3, "data must be a folder"),
        (["figures"], 4, "no experiment has rows"),
        (["figures", "fastlloyd-fig4"], 4, "run it first"),
    ],
)
def test_mistakes_are_one_sentence_and_a_code(
    words: list[str],
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["experiments", *words]) == code
    assert sentence in capsys.readouterr().err
