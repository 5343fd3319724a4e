"""What must be agreed before a job goes over a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.cli import main
from cloister.core.errors import PlanError
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.testing import toy_federation, toy_schema


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
