"""A bar over rounds is for people who watch, and for nobody else."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloister import DPKMeans
from cloister.app.progress import PROGRESS, is_watched, round_bar, watched
from cloister.protocol.session import RoundDone


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv(PROGRESS, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)  # type: ignore[arg-type]  # not there
    return Terminal()


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook cell showed, one state after the other."""
    monkeypatch.delenv(PROGRESS, raising=False)
    shown: list[str] = []

    def display(page: str, display_id: bool) -> Any:
        shown.append(page)
        return SimpleNamespace(update=shown.append)

    ipython, inner = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    inner.HTML, inner.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return shown


def test_a_fit_shows_its_rounds_on_a_terminal_and_leaves_nothing(terminal: Terminal) -> None:
    model = DPKMeans(2, epsilon=1e4, bounds=(-1, 1), nominal_n=100)
    with redirect_stderr(terminal):
        model.fit(np.repeat([[-0.5], [0.5]], 50, axis=0))
    assert f"{model.plan_.rounds}/{model.plan_.rounds}" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is cleared


def test_records_that_are_asked_one_by_one_show_their_share_and_not_their_number(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirect_stderr(terminal):
        assert list(watched(range(7531), "records")) == list(range(7531))
        assert list(watched(iter("abc"), "records", 3)) == ["a", "b", "c"]
        monkeypatch.setenv(PROGRESS, "0")
        assert isinstance(watched(range(2), "records"), range)
    assert "100%" in terminal.getvalue()
    assert "7531" not in terminal.getvalue()


def test_a_bar_is_there_before_the_first_round(terminal: Terminal) -> None:
    with redirect_stderr(terminal), round_bar():
        assert "rounds" in terminal.getvalue()


def test_the_last_line_stays_where_it_is_asked_to(terminal: Terminal) -> None:
    with redirect_stderr(terminal), round_bar(stays=True, rows=lambda: 10**6) as on_round:
        assert on_round
        on_round(RoundDone(1, 2, ("a", "b", "c")))
    assert "2/2" in terminal.getvalue()
    assert "3 silos" in terminal.getvalue()
    assert "million rows a second" in terminal.getvalue()


def test_a_notebook_shows_a_bar_and_takes_it_away(cell: list[str]) -> None:
    with round_bar() as on_round:
        assert on_round
        on_round(RoundDone(0, 4, ("a",)))
    begun, first, gone = cell
    assert begun.startswith("<progress></progress>")
    assert "1 of 4 rounds" in first
    assert gone == ""


def test_a_fit_that_fails_takes_its_bar_away(cell: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), round_bar():
        raise ZeroDivisionError
    assert cell[-1] == ""


def test_nobody_who_does_not_watch_or_want_sees_a_bar(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirect_stderr(terminal):
        with round_bar(wanted=False) as on_round:
            assert on_round is None
        assert is_watched()
        with monkeypatch.context() as worker:
            worker.setattr(
                "cloister.app.progress.current_process", lambda: SimpleNamespace(name="W")
            )
            assert not is_watched()
        monkeypatch.setenv(PROGRESS, "0")
        with round_bar() as on_round:
            assert on_round is None
    with redirect_stderr(io.StringIO()), round_bar() as on_round:
        assert on_round is None
    assert terminal.getvalue() == ""
