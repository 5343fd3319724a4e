"""What a plan says before anything is spent: a budget too small for the sums it asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloister.cli import main
from cloister.cli.doubts import doubts
from cloister.jobs import make_plan
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.schema import schema_of
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of

DELTA = 1e-6


def plan_of(task: str, epsilon: float, nominal_n: int) -> Plan:
    example = example_of(TASKS[task])
    schema, budget = schema_of(example.columns), Budget(epsilon, DELTA)
    return make_plan(
        TASKS[task], schema, ["here"], budget=budget, nominal_n=nominal_n, **example.options
    )


def numbers(said: str) -> tuple[float, int]:
    """Return the epsilon and the number of records that would fit."""
    found = re.search(r"about epsilon ([\d.e+]+) or ([\d,]+) records would fit", said)
    assert found, said
    return float(found[1]), int(found[2].replace(",", ""))


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.private])
def test_a_budget_too_small_is_said_of_every_task_and_what_would_fit_does(task: str) -> None:
    (said, *_) = doubts(plan_of(task, 0.02, 300))
    assert "too small" in said
    if "would fit" in said:  # of clusters it says how many records each should have
        epsilon, records = numbers(said)
        assert doubts(plan_of(task, 1.2 * epsilon, 300)) == ()
        assert doubts(plan_of(task, 0.02, 2 * records)) == ()
    assert doubts(plan_of(task, 8.0, 100_000)) == ()


def test_the_doubt_is_told_before_anything_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ill.toml").write_text(
        'dataset = "ward"\nunit = "row"\n'
        '[[columns]]\nname = "age"\ntype = "number"\nmin = 0\nmax = 100\n'
        '[[columns]]\nname = "ill"\ntype = "boolean"\n'
    )
    Path("a.csv").write_text("age,ill\n" + "50,1\n20,0\n" * 20)
    asked = ["--schema", "ill.toml", "--epsilon", "0.05", "--nominal-n", "40"]
    assert main(["plan", *asked, "--task", "logistic", "--set", "target=ill", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "epsilon 0.05 is too small for 40 records" in said
    classify = ["classify", "a.csv", *asked, "--target", "ill", "--out", "out"]
    assert main([*classify, "--quiet"]) == 0
    assert "epsilon 0.05 is too small for 40 records" in capsys.readouterr().err
