"""The hospital over real agents: as a term or looked at, and an owner may forbid both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.cli import main
from cloister.data import read_source
from cloister.data.schema import schema_of
from cloister.federation.local import LocalFederation
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import PublicColumn
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.parse import parse_formula
from cloister.testing import ZeroNoise, zero_noise_command

pytestmark = [pytest.mark.usefixtures("forked_parties"), pytest.mark.nightly]

SILOS = ("north", "east", "south")
SCHEMA = schema_of((PublicColumn("treated", 0.0, 1.0), PublicColumn("y", 100.0, 200.0)))


def tables(folder: Path) -> dict[str, Path]:
    """Write tables of silos: the effect is -5, and sicker silos treat more often."""
    found = {}
    for sick, silo in enumerate(SILOS):
        rng = np.random.default_rng(sick)
        treated = (rng.random(400) < 0.2 + 0.3 * sick) * 1.0
        y = (rng.normal(140, 5, 400) + 8 * sick - 5 * treated).clip(100, 200)
        found[silo] = folder / f"{silo}.csv"
        rows = np.column_stack([treated, y])
        np.savetxt(found[silo], rows, "%.3f", delimiter=",", header="treated,y", comments="")
    return found


def plan_of(federation: LocalFederation, terms: str) -> Plan:
    formula = parse_formula(f"y ~ {terms}").to_dict()
    return make_plan(
        GeneralizedLinear,
        SCHEMA,
        SILOS,
        budget=Budget(20.0, 1e-6),
        nominal_n=1200,
        profile="pairwise",
        min_silos=2,
        fingerprints=[federation.fingerprints[silo] for silo in SILOS],
        target="y",
        formula=formula,
        by_silo=True,
    )


@pytest.mark.parametrize("terms", ["treated + site", "treated"], ids=["a term", "a look"])
@pytest.mark.parametrize("forbids", [(), ("south",)], ids=["all allow", "one forbids"])
def test_a_job_with_the_hospital(
    forbids: tuple[str, ...], terms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tables(tmp_path)
    policies: dict[str, dict[str, Any]] = {
        silo: {"tasks": ["glm"], "allow_breakdown": silo not in forbids, "min_other_silos": 1}
        for silo in SILOS
    }
    with LocalFederation(
        tmp_path / "f",
        SCHEMA,
        files,
        policies=policies,
        command=zero_noise_command,
        cap_epsilon=100.0,
    ) as federation:
        federation.start()
        federation.wait_connected()
        plan = plan_of(federation, terms)
        job = federation.propose(plan)
        shown = federation.wait_job(job, seconds=300)
        decisions = {said["silo"]: said["reason"] or "" for said in shown["decisions"]}
        assert ["breakdown" in decisions.get(silo, "") for silo in SILOS] == [
            silo in forbids for silo in SILOS
        ]
        if forbids:
            return
        assert shown["state"] == "done", shown
        federation.wait_results(job)
        found = Release.load(federation.results("east", job)).results
        capsys.readouterr()
        config = str(federation.config("east"))
        assert main(["jobs", "result", job, "--config", config, "--json"]) == 0
        read = json.loads(capsys.readouterr().out)["coefficients"]
        assert read["coef"] == [*found["coef"], *found["intercept"]]
        assert ("random_intercept" in read) == ("site" in terms)
    records = {silo: read_source(path, SCHEMA) for silo, path in files.items()}
    local = run_plan(plan, records, noise=ZeroNoise()).results
    assert found.keys() == local.keys()
    for key, value in local.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    effect = found["coef"][0] + (0.0 if "site" in terms else found["site_change"][0])
    assert effect == pytest.approx(-5, abs=1.0)  # seeded
    assert ("mixed_coef" in found) == ("site" in terms)
