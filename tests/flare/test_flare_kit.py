"""What a kit lets others do, before and after it is made safe. No FLARE is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloister.app.job import Job, Trust
from cloister.cli import COMMANDS, main
from cloister.core.errors import DataError, PlanError
from cloister.data.schema import Schema
from cloister.federation.flare.kit import SERVER_CLASS, SITE_CLASS, open_doors, secure, write_job
from cloister.federation.pki import KeyFolder, local_federation
from cloister.federation.silo.policy import Proposer
from cloister.hazmat.signing import Identity
from cloister.privacy.horizon import Encoding
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import proposal
from cloister.protocol.readers import Reader
from cloister.tasks import TASKS
from cloister.testing import toy_federation, toy_plan, toy_schema

AUTHORIZATION = {  # as FLARE 2.9 provisions it
    "format_version": "1.0",
    "permissions": {
        "project_admin": "any",
        "org_admin": {"manage_job": "o:submitter", "shell_commands": "o:site", "byoc": "none"},
        "lead": {"submit_job": "any", "operate": "o:site", "byoc": "any"},
        "member": {"view": "any"},
    },
}
RESOURCES = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": ["nvflare.app_common.np.np_trainer.NPTrainer"],
    "allow_log_streaming": True,
    "client": {"retry_timeout": 30},
    "components": [
        {"id": "process_launcher", "path": "nvflare.app_common.job_launcher.X", "args": {}},
        {"id": "logs", "path": "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer"},
    ],
}


@pytest.fixture(params=["fed_client.json", "fed_server.json"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()
    (tmp_path / "startup" / request.param).write_text("{}")
    for name, document in (("authorization", AUTHORIZATION), ("resources", RESOURCES)):
        (tmp_path / "local" / f"{name}.json.default").write_text(json.dumps(document))
    return tmp_path


def read(kit: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((kit / "local" / f"{name}.json").read_text())
    return document


def test_a_provisioned_kit_is_open(kit: Path) -> None:
    doors = " ".join(open_doors(kit))
    for word in (
        "'project_admin' has the right 'byoc'",
        "'lead' has the right 'byoc'",
        "NPTrainer",
    ):
        assert word in doors
    assert "carries logs" in doors


def test_a_kit_made_safe_is_closed_and_stays_so(kit: Path) -> None:
    party = secure(kit)
    assert open_doors(kit) == []
    before = read(kit, "authorization"), read(kit, "resources")
    assert secure(kit) == party
    assert (read(kit, "authorization"), read(kit, "resources")) == before


def test_no_role_may_bring_code_or_use_a_shell(kit: Path) -> None:
    secure(kit)
    roles = read(kit, "authorization")["permissions"]
    assert set(roles) == set(AUTHORIZATION["permissions"])
    for rights in roles.values():
        assert rights["byoc"] == rights["shell_commands"] == "none"
        assert rights["server-predeployed-flwr"] == "none"


def test_jobs_may_name_our_one_class_and_no_log_leaves(kit: Path) -> None:
    party = secure(kit)
    resources = read(kit, "resources")
    assert resources["class_allow_list"] == [SITE_CLASS if party == "site" else SERVER_CLASS]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert [part["id"] for part in resources["components"]] == ["process_launcher"]
    assert resources["client"] == {"retry_timeout": 30}
    if party == "site":
        assert resources["allow_log_streaming"] is False


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("authorization", {"permissions": {"lead": {"byoc": "o:site"}}}),
        ("authorization", {"permissions": {"project_admin": "any"}}),
        ("resources", {"class_allow_list": ["*"]}),
        ("resources", {"class_allow_list": ["cloister"]}),
        ("resources", {"class_list_enforcement_mode": "warn"}),
        ("resources", {"components": RESOURCES["components"]}),
    ],
)
def test_a_door_opened_later_is_seen(kit: Path, name: str, change: dict[str, Any]) -> None:
    secure(kit)
    path = kit / "local" / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert len(open_doors(kit)) >= 1


def test_another_folder_is_not_a_kit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="kit must be a FLARE folder"):
        secure(tmp_path)


def test_a_job_has_four_json_files_and_no_code(tmp_path: Path) -> None:
    plan = toy_plan(silos=3)
    write_job({"plan": plan.to_dict(), "proposer": {}}, tmp_path / "job", round_timeout=5.0)
    files = {str(p.relative_to(tmp_path / "job")) for p in tmp_path.rglob("*") if p.is_file()}
    config = "app/config"
    assert files == {
        "meta.json",
        f"{config}/config_fed_server.json",
        f"{config}/config_fed_client.json",
        f"{config}/proposal.json",
    }
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", *plan.silos]}
    assert meta["min_clients"] == plan.min_silos


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    monkeypatch.setitem(COMMANDS, "flare", "make a NVIDIA FLARE site safe, and write jobs for one")
    return lambda line: main(line.split())


def test_the_command_closes_a_kit_and_says_what_is_open(
    kit: Path, command: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(f"flare check {kit}") == 4
    assert "byoc" in capsys.readouterr().err
    assert command(f"flare secure {kit}") == 0
    assert command(f"flare check {kit}") == 0


def test_a_server_of_flare_runs_no_job_with_readers(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from cloister.federation.flare.controller import _read

    identity = Identity.new()
    plan, _ = toy_federation(3, readers=(Reader.of(identity, "ana"),))
    for one, refused in ((plan, True), (replace(plan, readers=()), False)):
        (tmp_path / "x").write_text(json.dumps(proposal(one, identity, "ana")))
        if refused:
            with pytest.raises(PlanError, match="a job over FLARE has no readers"):
                _read(tmp_path / "x")
        else:
            assert _read(tmp_path / "x")["plan"]["readers"] == []


def test_a_server_of_flare_runs_no_job_with_periods(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from cloister.federation.flare.controller import _read

    identities = {silo: Identity.new() for silo in ("a", "b", "c")}
    job = Job(
        task=TASKS["tabulate"],
        schema=Schema(
            dataset="visits",
            unit="patient",
            max_rows=1,
            columns=[{"name": "kind", "type": "category", "categories": ["burn", "cut"]}],
        ),
        silos=tuple(identities),
        options={"tables": [["kind"]]},
        epsilon=1.0,
        delta=1e-6,
        nominal_n=300,
        horizon=Encoding.of(2),
        trust=Trust(fingerprints=tuple(one.fingerprint for one in identities.values())),
    )
    document = proposal(job.plan, identities["a"], "ana")
    (tmp_path / "x").write_text(json.dumps(document))
    with pytest.raises(PlanError, match="a job over FLARE has no periods"):
        _read(tmp_path / "x")


def test_a_job_written_by_the_command_is_the_analysts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[str], int]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = local_federation(tmp_path / "keys", ("a", "b", "c"))
    pins = {name: KeyFolder(keys[name]).identity().fingerprint for name in "abc"}
    Path("schema.toml").write_text(toy_schema().to_toml())
    Path("analyst.toml").write_text(
        'role = "analyst"\nname = "analyst"\ncoordinator = "https://not-used"\n'
        f'keys = "{keys["analyst"]}"\n'
    )
    line = "flare job --config analyst.toml --out job --schema schema.toml --k 3 --epsilon 1"
    line += " --nominal-n 600 --silos "
    assert command(line + ",".join("abc")) == 3, "fingerprints must be given"
    members = ",".join(f"{name}={pin}" for name, pin in pins.items())
    assert command(f"{line}{members} --publish") == 3, "nothing under FLARE keeps boxes"
    assert command(f"{line}{members} --reader ana.reader") == 3
    assert command(line + members) == 0
    document = json.loads(Path("job/app/config/proposal.json").read_text())
    plan = Plan.from_dict(document["plan"], TASKS)
    assert plan.fingerprints == tuple(pins.values())
    assert plan.profile == "pairwise"
    assert Proposer(**document["proposer"]).signed(plan)
