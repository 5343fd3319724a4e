"""``cloister horizon`` over files: opened once, released period by period, shown at any time."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from pathlib import Path

import numpy as np
import pytest

from cloister import Horizon
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
    assert "Expected noise of a count in records, a mean over all periods" in said
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


def test_other_files_for_a_closed_period_are_refused(capsys: Said) -> None:
    open_horizon("--quiet")
    assert release(1, "--quiet") == 0
    shown = Path("weeks/released.json").read_bytes()
    late = ["week2/north.csv", "week2/south.csv", "--ledger", "ledger.db"]
    assert main(["horizon", "release", "weeks", "1", *late]) == 4
    assert "period 1 is closed" in (said := capsys.readouterr().err)
    assert "these were not counted" in said
    assert Path("weeks/released.json").read_bytes() == shown
    assert release(1, "--quiet") == 0  # the same files
    assert release(2, "--quiet") == 0
    assert "neither counted" not in capsys.readouterr().err
    assert main(["horizon", "release", "weeks", "1", *late]) == 0
    assert "neither counted nor compared" in capsys.readouterr().err


def test_opening_says_what_returning_persons_cost(capsys: Said) -> None:
    assert open_horizon("--max-periods", "2", "--json") == 0
    noise = json.loads(capsys.readouterr().out)["expected_noise"]
    assert noise["so far"] < noise["recounts"]
    assert main(["horizon", "release", "weeks", "3", "week1/north.csv", "week1/south.csv"]) == 6


def test_files_that_are_not_named_after_the_silos_are_listed(capsys: Said) -> None:
    assert open_horizon() == 0
    for silo in SILOS:
        Path(f"week1/{silo}.csv").rename(f"week1/{silo}-1.csv")
    capsys.readouterr()
    assert release(1, silos=("north-1", "south-1")) == 3
    said = capsys.readouterr().err
    assert "named as they are, such as north.csv; got north-1.csv, south-1.csv" in said


def test_records_that_are_given_in_two_periods_are_named(capsys: Said) -> None:
    assert open_horizon("--max-periods", "2", "--quiet") == 0
    assert release(1, "--quiet") == 0
    assert "in an earlier period" not in capsys.readouterr().err
    shutil.copy("week1/south.csv", "week2/south.csv")
    assert release(2, "--quiet") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "silo 'south' gave the same records, with the same 'patient'" in said
    assert "silo 'north' gave" not in said


def test_an_opening_that_was_refused_is_repeated_in_its_folder(capsys: Said) -> None:
    """The whole cap is spent, so that a second horizon does not fit."""
    open_horizon("--quiet")
    Path("weeks").rename("first")
    assert open_horizon("--quiet") == 5
    assert not Path("weeks/horizon.json").exists()
    job = json.loads(Path("first/horizon.json").read_text())["plan"]["run_id"]
    assert main(["budget", "close", "ledger.db", job]) == 0
    assert open_horizon("--quiet") == 0
    assert release(1, "--quiet") == 0


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
    assert "has a horizon already" in capsys.readouterr().err
    assert release(2) == 3
    assert "period must be in [1, 1], got 2" in capsys.readouterr().err
    Path("ledger.db").rename("other.db")
    assert release(1) == 6
    assert "ledger 'ledger.db' is missing" in capsys.readouterr().err
    Path("other.db").rename("ledger.db")
    Path("weeks/schema.toml").write_text(SCHEMA.replace("cut", "cuts"))
    assert release(1) == 3
    assert "was changed" in capsys.readouterr().err


def verify(*more: str) -> int:
    return main(["verify", "weeks", "--json", *more])


def test_verify_says_what_follows_from_the_files_and_what_nobody_can_check(capsys: Said) -> None:
    open_horizon("--quiet")
    release(1, "--quiet")
    capsys.readouterr()
    assert verify("--ledger", "ledger.db") == 10
    found = json.loads(capsys.readouterr().out)
    assert "No silo signed" in found["reason"]
    checks = found["checks"]
    assert checks["released words"] == "of 1 period, 3 in each"
    assert checks["noted by north"] == "the same words of 1 of 1 periods"
    assert checks["charge"].startswith("reserved whole on ")
    assert checks["cost of all periods"].startswith("epsilon 1 at")
    assert verify() == 10
    assert "--ledger" in json.loads(capsys.readouterr().out)["checks"]["charge"]
    release(2, "--quiet")  # after which frames and sums are deleted
    capsys.readouterr()
    assert verify("--ledger", "ledger.db") == 10
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks["noted by south"] == "nothing is kept after the last period"
    assert checks["charge"].endswith("the words of each period are those drawn")
    shutil.rmtree("weeks/silos")
    assert verify("--ledger", "ledger.db") == 10
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks["states of the silos"] == "not checked: they are not in this folder"


@pytest.mark.parametrize("kept", [True, False], ids=["with states", "without states"])
def test_verify_refutes_words_that_were_changed(capsys: Said, kept: bool) -> None:
    open_horizon("--quiet")
    release(1, "--quiet")
    file = Path("weeks/released.json")
    written = json.loads(file.read_text())
    if not kept:
        shutil.rmtree("weeks/silos")
    changed = [words_like(written["words"][0])]
    for fields, reason in (
        ({"words": changed}, "other words of period 1" if kept else "no charge of these words"),
        ({"words": written["words"] * 3}, "more periods than the horizon"),
        ({"words": ["AAAA"]}, "differ in length from the plan"),
        ({"words": 3}, "differ in length from the plan"),
        ({"horizon": "0" * 64}, "are not of this horizon"),
        ({"noise": "none"}, "is not private: none"),
    ):
        file.write_text(json.dumps({**written, **fields}))
        capsys.readouterr()
        assert verify("--ledger", "ledger.db") == 9
        assert reason in json.loads(capsys.readouterr().out)["reason"]


def words_like(text: str) -> str:
    words = bytearray(b64decode(text))
    words[0] ^= 1
    return b64encode(words).decode()


def test_verify_knows_the_ledger_and_the_answers_of_a_horizon(capsys: Said) -> None:
    open_horizon("--quiet")
    release(1, "--quiet")
    Horizon.load("weeks").so_far_.save("answer.json")
    capsys.readouterr()
    assert main(["verify", "answer.json", "--json"]) == 10
    assert "verify the folder of the horizon" in json.loads(capsys.readouterr().out)["reason"]
    Path("weeks").rename("first")
    job = json.loads(Path("first/horizon.json").read_text())["plan"]["run_id"]
    assert main(["budget", "close", "ledger.db", job, "--quiet"]) == 0
    other = ["--cap-epsilon", "2", "--ledger", "other.db"]
    assert open_horizon("--quiet", *other) == 0
    capsys.readouterr()
    assert verify("--ledger", "ledger.db") == 10
    assert "no such job" in json.loads(capsys.readouterr().out)["checks"]["charge"]
    assert verify("--ledger", "none.db") == 6
    assert main(["verify", "answer.json", "--ledger", "ledger.db"]) == 3
    # A matrix with less noise is another horizon than the one that was paid.
    file = Path("weeks/horizon.json")
    document = json.loads(file.read_text())
    document["encoding"]["max_periods"] = 2
    file.write_text(json.dumps(document))
    assert verify("--ledger", "other.db") == 9
    assert "another event" in capsys.readouterr().out
