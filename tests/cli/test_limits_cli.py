"""The limits of a ledger as a user meets them: opened for a job, told beforehand, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.cli import main
from cloister.cli.plan import _limits
from cloister.core.errors import BudgetExceeded
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event
from cloister.privacy.filter import Split
from cloister.privacy.ledger import Ledger
from cloister.tasks import installed
from cloister.tasks.examples import example_of
from cloister_lab.curator import METHODS

TASKS = installed()  # the laboratory's, too

Said = pytest.CaptureFixture[str]
CAP = Budget(1.0, 1e-6)
PRIVATE = [name for name, task in TASKS.items() if task.private]
SCHEMA = """
dataset = "ward"
unit = "row"
[[columns]]
name = "a"
type = "number"
min = 0
max = 10
"""


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).uniform(0, 10, 400)
    Path("ward.csv").write_text("a\n" + "".join(f"{value:.3f}\n" for value in values))
    Path("ward.toml").write_text(SCHEMA)
    return tmp_path


def cluster(algorithm: str, *more: str) -> list[str]:
    job = ["--schema", "ward.toml", "--k", "2", "--epsilon", "1", "--algorithm", algorithm]
    job += [] if "--cap-epsilon" in more else ["--cap-epsilon", "1"]
    return ["cluster", "ward.csv", *job, "--out", "out", *more]


def reserved(events: Event, split: Split | None) -> bool:
    ledger = Ledger(None)
    ledger.open_dataset("d", cap=CAP, split=split)
    try:
        ledger.reserve(dataset="d", study="s", job="j", events=events)
    except BudgetExceeded:
        return False
    return True


@pytest.mark.parametrize("name", PRIVATE)
def test_a_plan_as_dear_as_the_cap_is_accepted_or_plan_says_before_that_it_is_not(
    name: str,
) -> None:
    case = example_of(TASKS[name])
    schema = schema_of(case.columns)
    options: dict[str, Any] = {"budget": CAP, "nominal_n": 100, **case.options}
    plan = make_plan(TASKS[name], schema, ["one", "two"], **options)
    told = _limits(plan)
    assert reserved(plan.events(), None) is (told is None)
    assert reserved(plan.events(), Split.split_for(plan.events(), CAP))
    if told is not None:
        assert reserved(plan.events(), Split(told["pure_share"], told["failure_share"]))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.private])
def test_a_method_of_a_curator_is_accepted_by_a_ledger_opened_for_it(name: str) -> None:
    method = METHODS[name]
    public = {"n_features": 2, "frac_bits": 16, "n_clusters": 3}
    events = method.design(nominal_n=500, budget=CAP, **public).events()
    assert reserved(events, Split.split_for(events, CAP))


@pytest.mark.parametrize("algorithm", ["sulloyd", "glloyd", "eugkm", "hybrid"])
def test_a_run_whose_budget_is_the_cap_is_accepted_with_its_noisy_count(
    ward: Path, algorithm: str
) -> None:
    assert main(cluster(algorithm, "--quiet")) == 0
    ledger = Ledger("out/ledger.db")
    assert 0.99 < ledger.spent("ward") <= 1
    assert main([*cluster(algorithm, "--quiet"), "--out", "again"]) == 5


def test_a_new_data_set_is_opened_with_limits_that_hold_its_first_job(
    ward: Path, capsys: Said
) -> None:
    """Gaussian limits do not hold pure noise, so that the data set gets pure ones, and says so."""
    new = ["--nominal-n", "400", "--ledger", "all.db", "--cap-epsilon", "1.5"]
    assert main(cluster("sulloyd", *new)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "and the limits pure share 1, failure share 0." in said
    assert str(Ledger("all.db").limits("ward").split) == "pure share 1, failure share 0"
    # The cap is in the ledger.
    assert main(cluster("sulloyd", *new[:-1], "2", "--quiet", "--out", "capped")) == 3
    gaussian = [*new[:3], "gaussian.db", *new[4:], "--quiet", "--out", "other"]
    assert main(cluster("fastlloyd", *gaussian)) == 0
    assert str(Ledger("gaussian.db").limits("ward").split) == "pure share 0, failure share 0"
    # Limits never change.
    assert main(cluster("sulloyd", *gaussian[:-1], "third")) == 5


def test_plan_says_which_limits_a_plan_needs_and_the_cap_without_them(
    ward: Path, capsys: Said
) -> None:
    command = ["plan", "--schema", "ward.toml", "--k", "2", "--epsilon", "1", "--nominal-n", "400"]
    assert main([*command, "--algorithm", "sulloyd"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "gets limits for this plan: pure share 1, failure share 0." in said
    assert main([*command, "--algorithm", "sulloyd", "--json"]) == 0
    least = json.loads(capsys.readouterr().out)["limits"]["default_cap"]
    enough = ["--nominal-n", "400", "--quiet", "--ledger"]
    for path, cap, code in (("less.db", 0.999 * least, 5), ("more.db", 1.001 * least, 0)):
        ledger = Ledger(path)
        ledger.open_dataset("ward", cap=Budget(cap, 1e-6))
        ledger.dispose()
        assert main(cluster("sulloyd", *enough, path, "--cap-epsilon", repr(cap))) == code
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"] is None


def test_show_and_export_tell_the_limits_and_what_is_left_of_them(ward: Path, capsys: Said) -> None:
    ledger = Ledger("l.db")
    ledger.open_dataset("ward", cap=Budget(2.0, 1e-6), split=Split(0.25, 0.5))
    ledger.dispose()
    assert main(["budget", "show", "l.db"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("for Gaussian noise, epsilon 0.5 for other noise, delta 5e-07") == 2
    assert main(["budget", "export", "l.db"]) == 0
    told = json.loads(capsys.readouterr().out)["datasets"]["ward"]
    assert told["split"] == {"pure": 0.25, "failure": 0.5}
    assert told["limits"]["pure_epsilon"] == 0.5
    assert told["charged"] == {"pure_epsilon": 0, "mu_squared": 0, "failure_delta": 0}
