"""What a newcomer meets: the command alone, a typo, the examples at the end of each help."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess

import pytest

from cloister.cli import COMMANDS, _parser, main
from cloister.cli.examples import EXAMPLES


def test_the_command_alone_shows_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("  ")] == [
        "demo",
        "schema",
        "check",
        "plan",
        "cluster",
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["clutser"], "there is no command 'clutser'; did you mean 'cluster'?"),
        (["schema", "validat", "x.toml"], "did you mean 'validate'?"),
        (["check", "a.csv", "--schema", "s.toml", "--quite"], "did you mean '--quiet'?"),
    ],
)
def test_a_typo_is_met_with_what_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert meant in shown
    assert "choose from 'demo'" not in shown  # thirty commands are no answer


def test_a_word_like_no_other_gets_no_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzzz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_every_command_has_examples() -> None:
    assert COMMANDS.keys() - EXAMPLES.keys() == {"flare"}  # whose actions need a FLARE site


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_a_command_line_that_is_understood(line: str) -> None:
    words = shlex.split(line)
    parsed = _parser(words).parse_args(words)
    assert isinstance(parsed, argparse.Namespace)
    assert callable(parsed.run)


def test_help_of_an_action_has_its_own_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "diff", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "cloister schema diff patients.toml theirs.toml" in shown
    assert "schema init" not in shown


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
