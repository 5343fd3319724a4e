"""What must be agreed before a job goes over a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.cli import _parser, main
from cloister.cli.proposals import proposed_plan
from cloister.core.errors import PlanError
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.testing import toy_federation, toy_schema

VISITS = """dataset = "visits"
unit = "patient"
max_rows = 1

[[columns]]
name = "kind"
type = "category"
categories = ["burn", "cut"]
"""


def test_a_job_over_a_network_has_an_agreed_nominal_n_and_buys_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schema.toml").write_text(toy_schema().to_toml())
    config = tmp_path / "analyst.toml"
    config.write_text('role = "analyst"\nname = "ana"\ncoordinator = "https://h:1"\nkeys = "k"\n')
    command = ["jobs", "submit", "--config", str(config), "--silos", "a,b,c", "--epsilon", "1"]
    assert main([*command, "--schema", str(tmp_path / "schema.toml"), "--k", "2"]) == 2
    assert "--nominal-n" in capsys.readouterr().err


@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_a_plan_over_a_network_without_nominal_n_is_none(profile: str) -> None:
    plan, _ = toy_federation(3, profile)
    document = plan.to_dict()
    del document["nominal_n"]
    with pytest.raises(PlanError):
        Plan.from_dict(document, TASKS)
    with pytest.raises(PlanError):
        Plan.from_dict({**document, "nominal_n": None}, TASKS)


@pytest.mark.parametrize("given", [["--max-periods", "3"], ["--workload", "totals"]])
def test_what_only_periods_have_requires_them(tmp_path: Path, given: list[str]) -> None:
    (tmp_path / "schema.toml").write_text(toy_schema().to_toml())
    pins = ",".join(f"{name}=ed25519:{name * 64}" for name in "abc")
    words = ["jobs", "submit", "--config", "none.toml", "--silos", pins, "--epsilon", "1"]
    words += ["--schema", str(tmp_path / "schema.toml"), "--nominal-n", "300", "--k", "2"]
    assert proposed_plan(_parser(words).parse_args(words)).horizon is None
    words += given
    with pytest.raises(PlanError, match="require --periods"):
        proposed_plan(_parser(words).parse_args(words))


def test_the_limit_of_rows_of_a_person_is_said_to_be_that_of_a_period(tmp_path: Path) -> None:
    (tmp_path / "visits.toml").write_text(VISITS)
    pins = ",".join(f"{name}=ed25519:{name * 64}" for name in "abc")
    words = ["jobs", "submit", "--config", "none.toml", "--silos", pins, "--epsilon", "1"]
    words += ["--schema", str(tmp_path / "visits.toml"), "--nominal-n", "300"]
    words += ["--task", "tabulate", "--set", 'tables=[["kind"]]', "--periods", "4"]
    for most in ("1", "3"):
        plan = proposed_plan(_parser(words).parse_args([*words, "--max-periods", most]))
        limit = f"one patient is for each period, and its rows count in at most {most} of"
        assert limit in plan.describe()
