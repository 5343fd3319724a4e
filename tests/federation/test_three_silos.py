"""Three silos as real processes: policies that differ, approvals by hand, an enrolled impostor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.cli import main
from cloister.core.randomness import new_nonce
from cloister.data import read_source
from cloister.federation.local import ANALYST, LocalFederation
from cloister.federation.pki import Authority, KeyFolder, install, make_request
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import Plan
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import ZeroNoise, toy_schema, zero_noise_command

pytestmark = pytest.mark.usefixtures("forked_parties")

SILOS = ("north", "east", "south")
SCHEMA = toy_schema()


def tables(folder: Path) -> dict[str, Path]:
    rng, found = np.random.default_rng(0), {}
    for name in SILOS:
        found[name] = folder / f"{name}.csv"
        values = rng.normal([[-0.5, -0.5], [0.5, 0.5]], 0.1, (60, 2, 2)).reshape(-1, 2)
        np.savetxt(found[name], values, "%.4f", delimiter=",", header="x0,x1", comments="")
    return found


def plan(federation: LocalFederation, epsilon: float = 1.0, **changes: object) -> Plan:
    options = {"profile": "pairwise", "min_silos": 2, "n_clusters": 2, "rounds": 3, **changes}
    return make_plan(
        FastLloyd,
        SCHEMA,
        SILOS,
        budget=Budget(epsilon, 1e-6),
        nominal_n=360,
        fingerprints=[federation.fingerprints[name] for name in SILOS],
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_one_silo_refuses_with_a_reason_on_both_sides_and_two_finish(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = {name: {"min_other_silos": 1} for name in SILOS}
    policies["north"] |= {"max_epsilon_per_job": 0.5}
    with LocalFederation(
        tmp_path / "f", SCHEMA, tables(tmp_path), policies=policies, command=zero_noise_command
    ) as federation:
        federation.start()
        federation.wait_connected()
        job = federation.propose(plan(federation, profile=profile))
        shown = federation.wait_job(job)
        assert shown["state"] == "done", shown
        federation.wait_results(job, "east", "south")
        reason = "epsilon must be at most 0.5, the cap of a job here, got 1."
        assert reason in json.dumps(shown["decisions"])
        assert main(["jobs", "show", job, "--config", str(federation.config("north"))]) == 0
        assert reason in " ".join(capsys.readouterr().out.split())
        results = [Release.load(federation.results(name, job)) for name in ("east", "south")]
    assert results[0].survivors == (("east", "south"),) * 3
    assert (results[0].results["centres"] == results[1].results["centres"]).all()
    assert not federation.results("north", job).exists()
    spent = {name: Ledger(federation.folder / name / "ledger.db").spent("toy") for name in SILOS}
    assert spent["north"] == 0
    assert spent["east"] == spent["south"] == pytest.approx(1, abs=1e-3)


def test_a_job_waits_for_each_owner_and_runs_when_all_said_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = {name: {"standing": False} for name in SILOS}
    with LocalFederation(
        tmp_path / "f", SCHEMA, tables(tmp_path), policies=policies, command=zero_noise_command
    ) as federation:
        federation.start()
        federation.wait_connected()
        words = (
            "jobs submit --schema north/schema.toml --silos north,east,south --k 2 --epsilon 1 "
            "--delta 1e-6 --nominal-n 360 --profile pairwise --json"
        ).replace("north/schema", str(federation.folder / "north/schema"))
        assert main([*words.split(), "--config", str(federation.config(ANALYST))]) == 0
        job = json.loads(capsys.readouterr().out)["job"]
        for name in SILOS:
            assert federation.job(job)["state"] == "proposed"
            config = str(federation.config(name))
            while main(["jobs", "show", job, "--config", config]) != 0:  # not offered yet
                capsys.readouterr()
            text = " ".join(capsys.readouterr().out.split())
            assert "silos each add a share of the noise" in text
            assert "epsilon" in text
            assert main(["jobs", "approve", job, "--config", config, "--quiet"]) == 0
        shown = federation.wait_job(job)
        assert shown["state"] == "done", shown
        federation.wait_results(job)
        assert main(["jobs", "result", job, "--config", str(federation.config("east"))]) == 0
        assert "cluster 0" in capsys.readouterr().out


def test_a_job_uses_the_columns_that_it_names_and_no_silo_gives_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = {name: {"columns": ["x1"], "tasks": ["statistics"]} for name in SILOS}
    files = tables(tmp_path)
    with LocalFederation(
        tmp_path / "f", SCHEMA, files, policies=policies, command=zero_noise_command
    ) as federation:
        federation.start()
        federation.wait_connected()
        words = (
            f"jobs submit --schema {federation.folder}/north/schema.toml --task statistics "
            "--silos north,east,south --epsilon 1 --nominal-n 360 --json --config"
        )
        asked = [*words.split(), str(federation.config(ANALYST))]

        def submit(*more: str) -> str:
            assert main([*asked, *more]) == 0
            job: str = json.loads(capsys.readouterr().out)["job"]
            return job

        job = submit("--columns", "x1")
        assert federation.wait_job(job)["state"] == "done"
        federation.wait_results(job)
        result = Release.load(federation.results("north", job))
        # The first decline ends a job, so each silo is asked alone.
        refused = []
        for silo in SILOS:
            federation.kill(silo)
        for silo in SILOS:
            federation.start(silo)
            federation.wait_connected(silo)
            refused += federation.wait_job(submit())["decisions"]
            federation.kill(silo)
    records = {name: read_source(path, SCHEMA, columns=["x1"]) for name, path in files.items()}
    local = run_plan(result.plan, records, noise=ZeroNoise())
    assert result.plan.columns == ("x1",)
    for name, value in local.results.items():
        np.testing.assert_array_equal(result.results[name], value, err_msg=name)
    reason = "column 'x0' is not among those allowed here: 'x1'."
    assert [(one["silo"], one["reason"]) for one in refused] == [(silo, reason) for silo in SILOS]


def test_a_coordinator_that_runs_the_authority_and_enrols_a_silo_of_its_own_gets_nothing(
    tmp_path: Path,
) -> None:
    """The certificate is genuine and admits to the port; no silo pinned its fingerprint."""
    with LocalFederation(
        tmp_path / "f", SCHEMA, tables(tmp_path), command=zero_noise_command
    ) as federation:
        authority = Authority(federation.folder / "ca")
        authority.revoke("south")
        impostor = federation.folder / "impostor"
        install(impostor, authority.approve(make_request(impostor, "silo", "south")))
        theirs = KeyFolder(impostor).identity().fingerprint
        assert theirs != federation.fingerprints["south"]
        federation.start("coordinator")
        prints = [federation.fingerprints["north"], federation.fingerprints["east"], theirs]
        forged = make_plan(
            FastLloyd,
            SCHEMA,
            SILOS,
            budget=Budget(1.0, 1e-6),
            nominal_n=360,
            profile="pairwise",
            fingerprints=prints,
            n_clusters=2,
            rounds=3,
        )
        # The first decline ends a job, so each silo is asked alone.
        for silo in ("north", "east"):
            federation.start(silo)
            federation.wait_connected(silo)
            shown = federation.wait_job(federation.propose(replace(forged, run_id=new_nonce())))
            federation.kill(silo)
            (decision,) = shown["decisions"]
            assert decision["silo"] == silo
            assert "in the plan, but " in decision["reason"]
    for name in ("north", "east"):
        assert Ledger(federation.folder / name / "ledger.db").spent("toy") == 0
