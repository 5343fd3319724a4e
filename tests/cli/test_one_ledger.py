"""One ledger for all a user runs, a word about files that hold next to nothing, and extras."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, DPKMeans, DPLogisticRegression, Ledger, mine_rules
from cloister.app.payment import default_ledger
from cloister.cli import main
from cloister.core.errors import UncountedWarning
from cloister.data.schema import Schema
from cloister.estimators.release import say_uncounted

Said = pytest.CaptureFixture[str]
SCHEMA = """dataset = "ward"
unit = "row"

[[columns]]
name = "bmi"
type = "number"
min = 10
max = 60

[[columns]]
name = "sex"
type = "category"
categories = ["männlich", "weiblich"]
"""


@pytest.fixture(autouse=True)
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We stand in a folder of silos, as a user who has a folder for data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOISTER_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "ward.toml").write_text(SCHEMA)
    write(Path("a.csv"))
    return tmp_path


def write(path: Path, line: str = "{:.2f},weiblich\n", encoding: str = "utf-8") -> None:
    values = np.random.default_rng(0).normal(25, 3, 300)
    lines = "bmi,sex\n" + "".join(line.format(value) for value in values)
    path.write_bytes(lines.encode(encoding))


def cluster(out: str, *more: str, files: tuple[str, ...] = ("a.csv",)) -> int:
    words = ["--schema", "ward.toml", "--columns", "bmi", "--k", "2", "--nominal-n", "300"]
    return main(["cluster", *files, *words, "--epsilon", "1", "--quiet", "--out", out, *more])


# --- one ledger ---


def test_runs_into_several_folders_are_added_up_in_the_users_one_ledger(capsys: Said) -> None:
    assert cluster("one", "--cap-epsilon", "1.2") == 0
    path = Path("data/cloister/ledger.db")
    assert default_ledger() == path.resolve()
    first = Ledger(path).spent("ward")
    assert cluster("two") == 5  # the same records, elsewhere
    assert "above its lifetime cap of 1.2" in capsys.readouterr().err
    assert Ledger(path).spent("ward") == first == pytest.approx(1, abs=1e-3)
    assert path.parent.stat().st_mode & 0o077 == 0
    assert not list(Path("one").glob("*.db"))
    assert main(["budget", "show"]) == 0
    said = capsys.readouterr().out
    assert "ward" in said
    assert "Not counted there: spending of another user, another machine or another ledger" in said


def test_a_variable_or_an_option_names_another_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_LEDGER", "by-variable.db")
    assert cluster("one", "--cap-epsilon", "1") == 0
    assert cluster("two", "--cap-epsilon", "1", "--ledger", "by-option.db") == 0
    for name in ("by-variable.db", "by-option.db"):
        assert Ledger(name).datasets() == ("ward",)
    assert not Path("data/cloister/ledger.db").exists()


def test_without_a_terminal_a_missing_cap_is_an_error_that_names_the_flag(capsys: Said) -> None:
    assert cluster("one") == 3
    said = capsys.readouterr().err
    assert "cap_epsilon must be given" in said
    assert "--cap-epsilon" in said
    assert not Path("data/cloister/ledger.db").exists()


class Terminal(io.StringIO):
    """What a person types, or sees."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code"), [("2.5\n", 0), ("plenty\n", 3), ("\n", 3)])
def test_at_a_terminal_the_cap_is_asked_for_once(
    typed: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    assert cluster("one") == code
    assert "Lifetime cap, epsilon: " in seen.getvalue()
    if code:
        assert not Path("data/cloister/ledger.db").exists()
        return
    assert Ledger("data/cloister/ledger.db").cap("ward").epsilon == 2.5
    monkeypatch.setattr(sys, "stderr", again := Terminal())
    assert cluster("two", "--epsilon", "0.5") == 0
    assert "Lifetime cap" not in again.getvalue()


def test_schema_init_asks_what_each_column_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["ward", "who", "2", "n", "18", "110", "b", "c", "m, f", "x", "1", "2", "d"]
    said += ["1900-01-01", "2030-01-01", "%d.%m.%Y", ""]
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(said) + "\n"))
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    columns = "who,age,smoker,sex,born,note"
    assert main(["schema", "init", columns, "--out", "asked.toml"]) == 0
    assert "type must be 'number'" in seen.getvalue()  # to "x", and the column is asked for again
    made = Schema.load("asked.toml")
    assert (made.dataset, made.unit, made.max_rows) == ("ward", "who", 2)
    assert [(one.name, one.type) for one in made.columns] == [
        ("age", "number"),
        ("smoker", "boolean"),
        ("sex", "category"),
        ("born", "date"),
    ]
    born = made.columns[3]
    assert (born.min, born.max, born.format) == (1900.0, 2030.0, "%d.%m.%Y")
    monkeypatch.setattr(sys, "stdin", Terminal("\n" * 9))
    assert main(["schema", "init", columns]) == 3
    assert "describe at least one" in seen.getvalue()


def test_a_demo_has_a_ledger_of_its_own() -> None:
    assert main(["demo", "--quiet", "--out", "shown"]) == 0
    assert Path("shown/ledger.db").exists()
    assert not Path("data").exists()


def test_python_says_once_a_process_that_nothing_is_counted(ward: Path) -> None:
    code = """
import numpy as np
from cloister import Budget, DPKMeans, DPStandardScaler
X = np.random.default_rng(0).uniform(size=(50, 2))
for _ in range(3):
    DPKMeans(2, epsilon=1, bounds=(0, 1), nominal_n=50).fit(X)
    DPStandardScaler(epsilon=1, bounds=(0, 1), nominal_n=50).fit(X)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ward
    )
    assert done.stderr.count("UncountedWarning: no ledger was given") == 1


def test_every_release_in_python_without_a_ledger_is_said_to_be_uncounted() -> None:
    X = np.random.default_rng(0).uniform(size=(60, 2))
    shared = {"epsilon": 1.0, "nominal_n": 60}
    baskets = pd.DataFrame({"bread": [1, 0] * 30, "milk": [0, 1] * 30})
    for release in (
        lambda: DPKMeans(2, bounds=(0, 1), **shared).fit(X),
        lambda: DPLogisticRegression(bounds=(0, 1), classes=[0, 1], **shared).fit(X, X[:, 0] > 0.5),
        lambda: mine_rules(baskets, min_support=0.3, **shared),
    ):
        say_uncounted.cache_clear()
        with pytest.warns(UncountedWarning, match="give ledger and dataset"):
            release()
    say_uncounted.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncountedWarning)
        ledger = Ledger(None)
        ledger.open_dataset("toy", cap=Budget(5.0, 1e-6))
        DPKMeans(2, bounds=(0, 1), ledger=ledger, dataset="toy", **shared).fit(X)


# --- a file that holds next to nothing ---

SPOILT = [
    ("{:.2f},weiblich\n", "utf-8", None),
    ("decimal comma", "utf-8", 'they have a decimal comma: decimal = ","'),
    ("{:.2f},männlich\n", "cp437", "set the encoding of the file: encoding = ..."),
    ("{:.2f},a,b,c\n", "utf-8", "300 lines have too many fields"),
    ("unknown,weiblich\n", "utf-8", "Column 'bmi': 'unknown' not understood as number"),
]


@pytest.mark.parametrize(("line", "encoding", "cause"), SPOILT)
def test_a_file_of_which_few_rows_can_be_used_is_said_to_its_owner_with_the_cause(
    line: str, encoding: str, cause: str | None, capsys: Said
) -> None:
    if line == "decimal comma":
        write(Path("b.csv"))
        text = Path("b.csv").read_text().replace(",", ";").replace(".", ",")
        Path("b.csv").write_text(text)
    else:
        write(Path("b.csv"), line, encoding)
    assert main(["check", "b.csv", "--schema", "ward.toml", "--json"]) == (4 if cause else 0)
    said = capsys.readouterr()
    assert (cause or "") in said.err
    assert json.loads(said.out)["used"] == (0 if cause else 300)
    options = ("--cap-epsilon", "2", "--json")
    words = ["--schema", "ward.toml", "--k", "2", "--nominal-n", "300", "--epsilon", "1"]
    job = ["cluster", "a.csv", "b.csv", *words, *options, "--out", "out"]
    assert main(job) == (4 if cause else 0)
    said = capsys.readouterr()
    if cause is None:
        assert "are left out" not in said.err
        return
    assert cause in said.err
    assert not Path("out").exists()
    assert main([*job, "--max-loss", "1"]) == 0
    said = capsys.readouterr()
    assert cause in said.err
    for written in (said.out, *(p.read_text() for p in Path("out").glob("*.[hj]*"))):
        assert "are left out" not in written  # only the owner sees it


def test_an_empty_file_is_said_and_most_rows_are_not_enough(capsys: Said) -> None:
    Path("none.csv").write_text("bmi,sex\n")
    assert main(["check", "none.csv", "--schema", "ward.toml"]) == 4
    assert "File 'none.csv' has no rows" in capsys.readouterr().err
    for bad, code in ((1, 0), (2, 4)):
        Path("some.csv").write_text("bmi,sex\n" + "20,weiblich\n" * 20 + "x,weiblich\n" * bad)
        assert main(["check", "some.csv", "--schema", "ward.toml"]) == code
        assert "are left out" in capsys.readouterr().err


# --- extras ---


@pytest.mark.parametrize("action", [["--help"], ["run", "--config", "x.toml"], ["demo"]])
@pytest.mark.parametrize("command", ["coordinator", "silo", "jobs", "flare", "federation"])
def test_without_the_extra_a_networked_command_says_what_to_install(
    command: str, action: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    for name in ("fastapi", "uvicorn", "websockets", "httpx"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main([command, *action]) == 3
    assert (
        capsys.readouterr().err == f"cloister: '{command}' needs the network packages; "
        "run pip install 'cloister[service]'.\n"
    )
