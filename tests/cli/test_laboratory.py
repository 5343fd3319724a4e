"""Commands of the laboratory are listed with and without it, and say how to get it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from cloister.cli import COMMANDS, LABORATORY, main
from cloister.core.deprecated import INSTALL_LAB_HINT

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def without_the_lab(without_lab: Run) -> Run:
    """A function that runs a command in a process that has no laboratory."""
    code = "from cloister.cli import main; sys.exit(main(sys.argv[1:]))"
    return lambda *argv: without_lab(code, *argv)


def plain(text: str) -> str:
    """Return text without the line breaks that fit it to a terminal."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", LABORATORY)
def test_help_lists_a_command_of_the_laboratory_without_it(name: str, without_the_lab: Run) -> None:
    done = without_the_lab("--help")
    assert done.returncode == 0
    assert COMMANDS[name] in plain(done.stdout)
    done = without_the_lab(name, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert f"{name!r} is a command of the laboratory: {INSTALL_LAB_HINT}." in plain(done.stdout)


@pytest.mark.parametrize("argv", [["compare", "--epsilons", "1"], ["experiments", "list"]])
def test_running_one_without_the_laboratory_is_refused_in_one_sentence(
    argv: list[str], without_the_lab: Run
) -> None:
    done = without_the_lab(*argv)
    assert done.returncode == 3
    assert (
        done.stderr
        == f"cloister: {argv[0]!r} is a command of the laboratory: {INSTALL_LAB_HINT}.\n"
    )


@pytest.mark.parametrize("name", LABORATORY)
def test_with_the_laboratory_help_is_of_the_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--out" in shown or "run" in shown
    assert INSTALL_LAB_HINT not in plain(shown)


@pytest.mark.parametrize(("argv", "said"), [(["--mutants"], "mutants"), (["subcluster"], "'subcl")])
def test_an_audit_that_needs_the_laboratory_says_so(
    argv: list[str], said: str, without_the_lab: Run
) -> None:
    done = without_the_lab("audit", *argv)
    assert done.returncode == 3
    assert said in done.stderr
    assert INSTALL_LAB_HINT in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_audit_of_a_task_needs_no_laboratory(without_lab: Run) -> None:
    # Of little noise, since one import of the laboratory would stop any audit.
    code = """
from functools import partial
from cloister.cli import audit, main
audit.audit_task = partial(audit.audit_task, words=500)
sys.exit(main(sys.argv[1:]))
"""
    done = without_lab(code, "audit", "count", "--runs", "20", "--nominal-n", "40")
    assert done.returncode == 0, done.stderr


def test_the_old_word_for_mutants_is_still_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--help"]) == 0
    assert "twins" not in capsys.readouterr().out
    assert main(["audit", "count", "--all", "--twins"]) == 3
