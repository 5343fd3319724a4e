"""What the version before wrote, this one reads, or says in one sentence which version does."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cloister import DPKMeans, DPNaiveBayes, Ledger, Schema
from cloister.app.release import Release
from cloister.core.errors import PlanError
from cloister.federation.pki import local_federation
from cloister.federation.service.audit import verify
from cloister.federation.service.store import Store as CoordinatorStore
from cloister.federation.settings import load_settings
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Store
from cloister.protocol.lifecycle import SiloState
from cloister.protocol.plan import WITHOUT_LAYOUT, Plan
from cloister.tasks import TASKS

VERSIONS = sorted((Path(__file__).parent / "fixtures").glob("v*"))


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a version wrote, since a ledger that is opened may be migrated."""
    copy = tmp_path / "kept"
    shutil.copytree(request.param, copy)
    for file in copy.rglob("*"):
        if file.is_file():
            file.chmod(0o600)  # version control keeps no more of a mode than "executable"
    return copy


def test_a_version_is_kept() -> None:
    assert VERSIONS


def test_models_are_read_and_predict(kept: Path) -> None:
    schema = Schema.load(kept / "a" / "schema.toml")
    rows = pd.DataFrame({"x": [-0.5, 0.25], "y": [0.5, -0.75], "ill": [0, 1]})
    clusters = DPKMeans.load(kept / "kmeans.json", bounds=schema)
    assert clusters.predict(rows).shape == (2,)
    classifier = DPNaiveBayes.load(kept / "naive-bayes.json", bounds=schema)
    assert classifier.predict_proba(rows[["x", "y"]]).shape == (2, 2)


def test_a_ledger_is_opened_whole_and_goes_on(kept: Path) -> None:
    ledger = Ledger(kept / "ledger.db")
    ledger.verify()
    before = ledger.spent("toy")
    assert 1.0 < before < 2.0
    schema = Schema.load(kept / "a" / "schema.toml")
    rows = np.zeros((20, 3))
    DPKMeans(2, epsilon=1.0, bounds=schema, nominal_n=20, ledger=ledger).fit(rows)
    assert ledger.spent("toy") > before


def test_a_ledger_with_a_frame_of_an_open_job_is_whole(kept: Path) -> None:
    if not (kept / "open.db").exists():
        pytest.skip("that version's fixtures have none")
    ledger = Ledger(kept / "open.db")
    ledger.verify()
    assert ledger.frame("1" * 32, 0) == b"a frame"


def test_settings_and_schemas_of_all_parties_are_read(kept: Path) -> None:
    for role in ("coordinator", "a", "analyst"):
        load_settings(kept / role / "cloister.toml")
    assert Schema.load(kept / "a" / "schema.toml").names == ("x", "y", "ill")


def test_a_silo_knows_its_jobs_its_ledger_and_its_results(kept: Path) -> None:
    local_federation(kept, ["a"])  # keys of its own, which the fixture has not
    site = Site.of(load_settings(kept / "a" / "cloister.toml"))
    jobs = json.loads((kept / "jobs.json").read_text())
    done = site.store().get(jobs["done"])
    assert done is not None
    assert done.state == SiloState.DONE
    plan = Plan.from_dict(json.loads(done.plan), TASKS)
    assert {record.job for record in site.ledger().jobs()} == set(jobs.values())
    result = Release.load(site.settings.results / jobs["done"] / "model.json")
    assert result.plan == plan
    assert result.results["centres"].shape == (2, 3)
    verify(site.settings.audit_log)


def test_a_silos_file_of_jobs_is_made_as_it_was(kept: Path, tmp_path: Path) -> None:
    Store(tmp_path / "jobs.db").dispose()

    def layout(file: Path) -> list[object]:
        with closing(sqlite3.connect(file)) as database:
            rows = ("table_info(jobs)", "index_list(jobs)", "index_info(ix_jobs_state)")
            return [database.execute(f"PRAGMA {what}").fetchall() for what in rows]

    assert layout(tmp_path / "jobs.db") == layout(kept / "a" / "ledger.jobs.db")


def test_an_agent_opens_its_files_without_an_engine(kept: Path) -> None:
    local_federation(kept, ["a"])
    code = (
        "import sys; from cloister.federation.settings import load_settings; "
        "from cloister.federation.silo.main import open_agent; "
        "agent = open_agent(load_settings(sys.argv[1]), wait=lambda seconds: True); "
        "assert agent._store.jobs() and agent._ledger.jobs(); "
        "print('sqlalchemy' in sys.modules)"
    )
    file = str(kept / "a" / "cloister.toml")
    done = subprocess.run(
        [sys.executable, "-c", code, file], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_coordinator_lists_its_jobs_and_says_who_can_run_an_old_one(kept: Path) -> None:
    store = CoordinatorStore(f"sqlite:///{kept / 'coordinator' / 'coordinator.db'}")
    jobs = json.loads((kept / "jobs.json").read_text())
    done, waits = store.job(jobs["done"]), store.job(jobs["waits"])
    assert done is not None
    assert waits is not None
    assert (done.state, waits.state) == ("done", "proposed")
    if waits.plan["protocol"] == WITHOUT_LAYOUT:
        with pytest.raises(PlanError, match=r"run it to its end with cloister 0\.1"):
            Plan.from_dict(waits.plan)
    verify(kept / "coordinator" / "audit.jsonl")
