"""The FLARE app on a real federation: frames, a job, and what sites refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.protocol.plan import Plan
from cloister.tasks.base import GridState
from cloister.testing import Faults, Wire, toy_plan
from cloister.transports.flare_kit import write_job
from cloister.transports.inprocess import InProcess

from .conftest import SILOS, Federation

PROPOSER = {"name": "", "fingerprint": "", "public": "", "signature": ""}


def write(folder: Path, plan: Plan, **options: float) -> Path:
    """Write a job for sites that have the toy records, and return its folder."""
    write_job(
        {"plan": plan.to_dict(), "proposer": PROPOSER},
        folder,
        site_class="flare_doubles.ToySite",
        server_class="flare_doubles.ZeroNoiseRounds",
        **options,
    )
    return folder


def kept(federation: Federation, silo: str, plan: Plan) -> Path:
    """Return where a site keeps the public states of a job."""
    return federation.kits / silo / "local" / f"{plan.run_id}.json"


def same(there: Path, here: Sequence[GridState]) -> bool:
    states = json.loads(there.read_text())
    return len(states) == len(here) and all(
        (np.array(a[name]) == b[name]).all()
        for a, b in zip(states, here, strict=True)
        for name in b
    )


def test_a_job_gives_bit_for_bit_the_centres_of_one_process(
    federation: Federation, tmp_path: Path
) -> None:
    plan = toy_plan(silos=3)
    ended = federation.submit(write(tmp_path, plan))
    assert ended.get("status") == "FINISHED:COMPLETED", federation.log("localhost")[-5000:]
    local = Wire(plan)
    local.run()
    for silo in SILOS:
        assert same(kept(federation, silo, plan), local.clients[silo].history)


def test_the_transport_obeys_the_laws_of_transports(federation: Federation, tmp_path: Path):
    plan = toy_plan(silos=3)
    proposal = {"plan": plan.to_dict(), "proposer": PROPOSER}
    write_job(
        proposal,
        tmp_path,
        site_class="flare_doubles.MirrorSite",
        server_class="flare_doubles.Conformance",
    )
    ended = federation.submit(tmp_path)
    assert ended.get("status") == "FINISHED:COMPLETED", (ended, federation.log("localhost")[-9000:])
    laws = (federation.kits / "localhost" / "local" / "laws.txt").read_text().splitlines()
    assert len(laws) == 5, laws
    assert not any("BROKEN" in law for law in laws), laws


def test_a_job_that_ships_code_is_refused_by_every_site(federation: Federation, tmp_path: Path):
    plan = toy_plan(silos=3)
    write_job({"plan": plan.to_dict(), "proposer": PROPOSER}, tmp_path, site_class="evil.Evil")
    trace = tmp_path / "it-ran"
    custom = tmp_path / "app" / "custom"
    custom.mkdir()
    (custom / "evil.py").write_text(
        "from pathlib import Path\n"
        "from nvflare.apis.executor import Executor\n"
        f"Path({str(trace)!r}).touch()\n"
        "class Evil(Executor): pass\n"
    )
    ended = federation.submit(tmp_path)
    assert "COMPLETED" not in str(ended.get("status")), ended
    refused = json.dumps(ended) + federation.log("localhost")
    assert set(re.findall(r"(silo-\d): [^,]*BYOC not permitted", refused)) == set(SILOS), refused
    assert not trace.exists()


def test_a_class_that_is_not_on_the_list_is_not_built(federation: Federation, tmp_path: Path):
    plan = toy_plan(silos=3)
    proposal = {"plan": plan.to_dict(), "proposer": PROPOSER}
    write_job(proposal, tmp_path, site_class="flare_doubles.Evil")
    ended = federation.submit(tmp_path)
    assert "COMPLETED" not in str(ended.get("status")), ended
    assert "ComponentNotAuthorized" in "".join(federation.log(silo) for silo in SILOS)


def test_the_job_goes_on_without_a_site_that_is_lost(
    federation: Federation, tmp_path: Path
) -> None:
    plan = toy_plan(silos=3, study="one dies")
    others = [kept(federation, silo, plan) for silo in SILOS[:2]]
    job = write(tmp_path, plan, round_timeout=2.5)
    federation.submit(job, until=others)  # FLARE itself would wait long for the lost site
    federation.start_site("silo-2")
    local = Wire(plan, make_transport=lambda h: Faults(InProcess(h), dead_from={"silo-2": 3}))
    local.run()
    for silo, path in zip(SILOS[:2], others, strict=True):
        assert path.exists(), federation.log("localhost")[-5000:]
        assert same(path, local.clients[silo].history)
