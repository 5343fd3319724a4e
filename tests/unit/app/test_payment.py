"""A job is paid from one ledger, and nothing is opened for a job that cannot be paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloister.app.job import Job
from cloister.app.payment import LEDGER_VARIABLE, Payment, default_ledger
from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Split
from cloister.tasks import TASKS
from cloister.testing import toy_schema

SCHEMA = toy_schema(2)


def job(task: str = "fastlloyd", **changes: Any) -> Job:
    options = {"n_clusters": 2}
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "nominal_n": 300, **changes}
    return Job(task=TASKS[task], schema=SCHEMA, silos=("a", "b"), options=options, **given)


def test_a_new_data_set_gets_its_cap_once_and_a_later_job_finds_it(tmp_path: Path) -> None:
    said: list[str] = []
    first = Payment(ledger=tmp_path / "l.db", cap_epsilon=3.0, say=said.append)
    charge = first.open(SCHEMA, job().plan)
    assert charge
    assert charge.account.ledger.cap(SCHEMA.dataset) == Budget(3.0, 1e-6)
    charge.close()
    assert len(said) == 1
    assert "lifetime cap epsilon 3" in said[0].replace("=", " ")
    again = Payment(ledger=tmp_path / "l.db", say=said.append).open(SCHEMA, job().plan)
    assert again
    again.close()
    assert len(said) == 1
    with pytest.raises(PlanError, match="is 3 in the ledger, got 4"):
        Payment(ledger=tmp_path / "l.db", cap_epsilon=4.0).open(SCHEMA, job().plan)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, "must be given"), ("much", "must be given"), ("0.5", "at least epsilon=1, got 0.5")],
)
def test_a_cap_that_nobody_gives_opens_no_file(
    tmp_path: Path, answer: str | None, error: str
) -> None:
    with pytest.raises(PlanError, match=error):
        Payment(ledger=tmp_path / "l.db", ask=lambda _: answer).open(SCHEMA, job().plan)
    assert not list(tmp_path.iterdir())


def test_a_person_is_asked_with_the_cost_of_this_run(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return "5"

    charge = Payment(ledger=tmp_path / "l.db", ask=ask).open(SCHEMA, job().plan)
    assert charge
    assert charge.to_dict()["cap_epsilon"] == 5
    charge.close()
    assert len(asked) == 1
    assert "This run costs epsilon 1." in asked[0]


@pytest.mark.parametrize(("task", "split"), [("fastlloyd", Split()), ("sulloyd", Split(1.0))])
@pytest.mark.parametrize("cap", [1.0, 2.0])
def test_limits_of_a_new_data_set_hold_its_first_job(
    tmp_path: Path, task: str, split: Split, cap: float
) -> None:
    charge = Payment(ledger=tmp_path / "l.db", cap_epsilon=cap).open(SCHEMA, job(task).plan)
    assert charge
    assert charge.account.ledger.limits(SCHEMA.dataset).split == split
    charge.account.reserve(job(task).plan, None)
    charge.close()


def test_a_cap_below_what_any_limits_hold_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    plan = job("sulloyd", epsilon=2.0).plan_for(Budget(2.0, 1e-6), 300)
    cheaper = Payment(ledger=tmp_path / "l.db", cap_epsilon=1.9)
    with pytest.raises(PlanError, match=r"at least epsilon=2, got 1\.9"):
        cheaper.open(SCHEMA, plan)
    assert not list(tmp_path.iterdir())


def test_a_job_without_a_budget_needs_no_ledger(tmp_path: Path) -> None:
    exact = job("lloyd", epsilon=None)
    assert Payment(ledger=tmp_path / "l.db").open(SCHEMA, exact.plan) is None
    assert not list(tmp_path.iterdir())


def test_only_the_folder_of_the_default_ledger_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEDGER_VARIABLE, str(tmp_path / "mine" / "l.db"))
    charge = Payment(cap_epsilon=1.0).open(SCHEMA, job().plan)
    assert charge
    assert charge.path == default_ledger()
    charge.close()
    with pytest.raises(Exception, match="other"):
        Payment(ledger=tmp_path / "other" / "l.db", cap_epsilon=1.0).open(SCHEMA, job().plan)
    assert not (tmp_path / "other").exists()
