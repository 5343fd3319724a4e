"""``cloister horizon`` over files: opened once, released period by period, shown at any time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cloister.cli import main

Said = pytest.CaptureFixture[str]
SCHEMA = """dataset = "visits"
unit = "patient"
max_rows = 1

[[columns]]
name = "kind"
type = "category"
categories = ["burn", "cut", "fall"]
"""
SILOS = ("north", "south")


@pytest.fixture(autouse=True)
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cloister.app.report.plots.can_draw", lambda: False)  # pictures are slow
    Path("visits.toml").write_text(SCHEMA)
    for week in (1, 2):
        folder = Path(f"week{week}")
        folder.mkdir()
        for silo in SILOS:
            kinds = np.random.default_rng([week, len(silo)]).choice(["burn", "cut", "fall"], 400)
            rows = "".join(f"{silo}{week}{i},{kind}\n" for i, kind in enumerate(kinds))
            (folder / f"{silo}.csv").write_text(f"patient,kind\n{rows}")
    return tmp_path


def open_horizon(*more: str) -> int:
    task = ["--task", "tabulate", "--set", 'tables=[["kind"]]']
    words = ["--silos", "north,south", "--periods", "2", "--schema", "visits.toml", *task]
    cost = ["--epsilon", "1", "--nominal-n", "1600", "--cap-epsilon", "1", "--ledger", "ledger.db"]
    return main(["horizon", "open", "weeks", *words, *cost, *more])


def release(week: int, *more: str, silos: tuple[str, ...] = SILOS) -> int:
    files = [f"week{week}/{silo}.csv" for silo in silos]
    return main(["horizon", "release", "weeks", str(week), *files, "--ledger", "ledger.db", *more])


def test_a_horizon_from_its_opening_to_its_end(capsys: Said) -> None:
    assert open_horizon() == 0
    said = capsys.readouterr().out
    assert "Expected noise of a count, in records" in said
    assert main(["horizon", "show", "weeks"]) == 4
    assert "no release yet" in capsys.readouterr().err
    assert release(1) == 0
    assert "price of all 2 periods together" in " ".join(capsys.readouterr().out.split())
    assert release(2, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["periods"] == {"released": 2, "of": 2}
    assert document["budget"]["epsilon"] == pytest.approx(1.0, abs=1e-3)
    so_far, latest = (document["results"][name] for name in ("so far", "latest"))
    assert sum(so_far["table_1.counts"]) == pytest.approx(1600, abs=120)
    assert sum(latest["table_1.counts"]) == pytest.approx(800, abs=120)
    report = Path("weeks/report.html").read_text()
    assert "each period alone" in report
    assert main(["budget", "verify", "ledger.db"]) == 0


def test_a_silo_that_leaves_ends_the_horizon(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.app.report.plots.can_draw", lambda: False)  # it is slow
    open_horizon("--quiet")
    assert release(1, silos=("north",)) == 3
    assert "If it leaves, the horizon ends." in capsys.readouterr().err
    Path("week1/south.csv").rename("week1/east.csv")
    assert release(1, silos=("north", "east")) == 3
    Path("week1/east.csv").rename("week1/south.csv")
    assert release(1, "--quiet") == 0


def test_what_is_given_must_be_that_of_the_horizon(capsys: Said) -> None:
    open_horizon("--quiet")
    assert open_horizon("--quiet") == 3
    assert "exists already" in capsys.readouterr().err
    assert release(2) == 3
    assert "period must be in [1, 1], got 2" in capsys.readouterr().err
    Path("ledger.db").rename("other.db")
    assert release(1) == 6
    assert "ledger 'ledger.db' is missing" in capsys.readouterr().err
    Path("other.db").rename("ledger.db")
    Path("weeks/schema.toml").write_text(SCHEMA.replace("cut", "cuts"))
    assert release(1) == 3
    assert "was changed" in capsys.readouterr().err
