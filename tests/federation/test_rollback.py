"""A silo's whole folder is put back from a raw copy: real processes, real commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.cli import main
from cloister.core.errors import LedgerError
from cloister.federation.local import LocalFederation
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.events import ComposedEvent
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import Plan
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import toy_schema, zero_noise_command

pytestmark = pytest.mark.usefixtures("forked_parties")

SILOS = ("north", "east", "south")
SCHEMA = toy_schema()


def tables(folder: Path) -> dict[str, Path]:
    rng, found = np.random.default_rng(0), {}
    for name in SILOS:
        found[name] = folder / f"{name}.csv"
        values = rng.uniform(-1, 1, (60, 2))
        np.savetxt(found[name], values, "%.4f", delimiter=",", header="x0,x1", comments="")
    return found


def plan(federation: LocalFederation) -> Plan:
    return make_plan(
        FastLloyd,
        SCHEMA,
        SILOS,
        budget=Budget(1.0, 1e-6),
        nominal_n=180,
        fingerprints=[federation.fingerprints[name] for name in SILOS],
        profile="pairwise",
        min_silos=3,
        n_clusters=2,
        rounds=2,
    )


def test_a_silo_that_was_put_back_leaves_the_next_job_and_returns_after_its_recovery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalFederation(
        tmp_path / "f", SCHEMA, tables(tmp_path), cap_epsilon=10.0, command=zero_noise_command
    ) as federation:
        home, spent = federation.folder / "north", []

        def done(*silos: str) -> None:
            proposed = plan(federation)
            shown = federation.wait_job(federation.propose(proposed))
            assert shown["state"] == "done", shown
            federation.wait_results(proposed.run_id, *silos)
            spent.append(proposed.events())

        federation.start()
        federation.wait_connected()
        done(*SILOS)
        federation.kill("north")
        shutil.copytree(home, tmp_path / "copy")
        federation.start("north")
        federation.wait_connected("north")
        done(*SILOS)
        federation.kill("north")
        shutil.rmtree(home)
        shutil.copytree(tmp_path / "copy", home)
        federation.start("north")
        federation.wait_connected("north")
        refused = plan(federation)
        shown = federation.wait_job(federation.propose(refused))
        assert shown["state"] == "failed" or "north" not in shown["survivors"]
        assert not federation.results("north", refused.run_id).exists()
        assert "rolled back" in federation.log("north").read_text()
        federation.kill("north")
        path = home / "ledger.db"
        with pytest.raises(LedgerError, match="budget recover"):
            Ledger(path)
        assert main(["budget", "recover", str(path), "--keys", str(home / "keys")]) == 0
        assert "missing jobs added: 1" in " ".join(capsys.readouterr().out.split())
        ledger = Ledger(path)
        true = epsilon(ComposedEvent(tuple(spent)), 1e-6)
        assert ledger.spent("toy") >= true * (1 - 1e-9)
        ledger.dispose()
        federation.start("north")
        federation.wait_connected("north")
        done(*SILOS)
