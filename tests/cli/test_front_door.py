"""What a newcomer meets: the command alone, a typo, the examples at the end of each help."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

import pytest

from cloister.cli import COMMANDS, _parser, main
from cloister.cli.examples import EXAMPLES, example_over_files
from cloister.cli.options import options_from
from cloister.core import capability
from cloister.core.declared import declared
from cloister.tasks import TASKS


def test_the_command_alone_shows_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("  ")] == [
        "demo",
        "ask",
        "schema",
        "check",
        "plan",
        "describe",
        "cluster",
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["clutser"], "there is no command 'clutser'; did you mean 'cluster'?"),
        (["schema", "validat", "x.toml"], "did you mean 'validate'?"),
        (["check", "a.csv", "--schema", "s.toml", "--quite"], "did you mean '--quiet'?"),
        (["budget", "show", "--ledger", "l.db"], "--ledger; give the ledger without '--ledger'"),
    ],
)
def test_a_typo_is_met_with_what_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert meant in shown
    assert "choose from 'demo'" not in shown  # thirty commands are no answer


def test_an_option_of_another_action_is_not_its_own_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # `jobs submit` has this option.
    assert main(["jobs", "list", "--config", "x.toml", "--task", "y.py:Y"]) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments: --task" in said
    assert "see cloister jobs list --help" in said  # not the list of all commands
    assert "did you mean '--task'" not in said


def test_an_argument_of_another_action_is_no_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    # `budget cap` has this argument.
    assert main(["budget", "show", "--dataset", "ward"]) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments: --dataset; see cloister budget show --help" in said


def test_an_option_of_a_task_is_pointed_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    # `cloister table1` has this option, `jobs submit` runs any task.
    submit = ["jobs", "submit", "--config", "a", "--schema", "s", "--silos", "a,b"]
    assert main([*submit, "--nominal-n", "7", "--task", "table1", "--by", "sex"]) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments: --by sex; an option of the task is --set NAME=VALUE" in said
    assert main([*submit, "--nominal-n", "7", "--epsilom", "1"]) == 2
    assert "did you mean '--epsilon'?; an option of the task" in capsys.readouterr().err
    # An option of the task can resemble one of the command.
    assert main([*submit, "--nominal-n", "7", "--tables", "age*sex"]) == 2
    assert "an option of the task is --set NAME=VALUE" in capsys.readouterr().err


def test_a_word_like_no_other_gets_no_guess(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in (["zzzz"], ["check", "a.csv", "--schema", "s.toml", "--strata", "site"]):
        assert main(typed) == 2
        assert "did you mean" not in capsys.readouterr().err


def test_every_command_has_examples() -> None:
    alone = COMMANDS.keys() - EXAMPLES.keys() - capability.COMMANDS.keys()
    assert alone == {"flare"}  # whose actions need a FLARE site


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_a_command_line_that_is_understood(line: str) -> None:
    words = shlex.split(line)
    parsed = _parser(words).parse_args(words)
    assert isinstance(parsed, argparse.Namespace)
    assert callable(parsed.run)


@pytest.mark.parametrize("name", capability.COMMANDS)
def test_the_example_of_a_task_is_a_command_line_that_is_understood(name: str) -> None:
    words = shlex.split(example_over_files(name, TASKS[name].usage).split("cloister ")[1])
    assert callable(_parser(words).parse_args(words).run)


class Asking:
    """A task with an option of each kind."""

    name = "asking"
    usage = "--title t"

    @declared
    class Options:
        title: Annotated[str, "what it is called"]
        tables: Annotated[tuple[tuple[str, ...], ...], "of columns"] = ()
        keep: Annotated[tuple[str, ...], "columns"] = ()
        shares: Annotated[tuple[float, ...], "parts"] = ()
        edges: Annotated[Mapping[str, tuple[float, ...]], "of bins"] = field(default_factory=dict)
        exact: Annotated[bool, "or not"] = True
        kind: Annotated[Literal["one", "two"], "of both"] = "one"
        times: Annotated[int | None, "how often"] = None


def test_options_of_every_kind_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(capability.COMMANDS, "asking", "ask")
    monkeypatch.setattr("cloister.cli.over_files.TASKS", {"asking": Asking})
    monkeypatch.setitem(COMMANDS, "asking", "ask")

    def asked(*words: str) -> dict[str, object]:
        line = ["asking", "a.csv", "--schema", "s.toml", "--out", "o", "--title", "t", *words]
        return options_from(_parser(line).parse_args(line), Asking)  # type: ignore[arg-type]

    assert asked() == {"title": "t"}  # what is not said has the default of the task
    said = asked(
        *("--tables", "sex,age", "--tables", 'work,"a,b"', "--keep", "id", "--shares", "0.5,2"),
        *("--edges", "age=40,60.5", "--edges", "b=c=1", "--no-exact", "--kind", "two"),
        *("--times", "3"),
    )
    assert said == {
        "title": "t",
        "tables": [("sex", "age"), ("work", "a,b")],
        "keep": ("id",),
        "shares": (0.5, 2),
        "edges": {"age": (40, 60.5), "b=c": (1,)},
        "exact": False,
        "kind": "two",
        "times": 3,
    }


@pytest.mark.parametrize("words", [["--edges", "age"], ["--edges", "a=x"], ["--shares", "1,,2"]])
def test_an_option_that_is_not_what_it_should_be_is_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(capability.COMMANDS, "asking", "ask")
    monkeypatch.setattr("cloister.cli.over_files.TASKS", {"asking": Asking})
    monkeypatch.setitem(COMMANDS, "asking", "ask")
    assert main(["asking", "a.csv", "--schema", "s", "--out", "o", "--title", "t", *words]) == 2
    assert "must be N" in capsys.readouterr().err.replace("numbers", "N")


def test_help_of_an_action_has_its_own_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "diff", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "cloister schema diff patients.toml theirs.toml" in shown
    assert "schema init" not in shown


def test_help_lists_the_words_of_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tabulate", "--help"]) == 0
    assert "--tests chi2,trend,odds_ratio,relative_risk\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["describe", "a.csv", "--by", "site"], "task table1 (dp_table1) compares groups"),
        (["verify", "school.db"], "a ledger has 'cloister budget verify'"),
        (["export", "t/report.html", "--out", "o"], "for people; give 't/model.json'"),
        (["glm", "a.csv"], "there is no command 'glm', but a task: cloister run --task glm"),
    ],
)
def test_another_command_is_named_where_it_has_the_answer(
    typed: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--schema", "s", "--epsilon", "1", "--nominal-n", "9", "--out", "o"]
    assert main([*typed, *(options if typed[0] == "describe" else [])]) in (2, 3)
    assert says in capsys.readouterr().err


def test_a_shell_can_complete_every_command_and_its_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", script), name
    assert "--cap-epsilon" in script
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
