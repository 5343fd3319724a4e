"""``cloister jobs`` at a silo, and the agent as a process beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister import Budget, Ledger, Schema
from cloister.app.job import make_plan
from cloister.app.question import hash_of, question_of
from cloister.app.release import Release
from cloister.cli import jobs_silo, main
from cloister.federation.pki import KeyFolder, local_federation
from cloister.federation.settings import load_settings
from cloister.federation.silo.agent import AGGREGATOR_NOISE
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Store
from cloister.hazmat.signing import Identity
from cloister.privacy.filter import Split
from cloister.protocol import lifecycle
from cloister.protocol.lifecycle import SiloState as State
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import PROPOSE, Proposer
from cloister.tasks import TASKS
from cloister.testing import toy_plan, toy_task

SILOS = ("silo-0", "silo-1", "silo-2")


@dataclass
class Home:
    """A silo's folder as its owner sets it up, and an analyst who may ask."""

    folder: Path
    identities: dict[str, Identity]
    analyst: Identity

    @property
    def config(self) -> str:
        return str(self.folder / "silo.toml")

    @property
    def store(self) -> Store:
        return Store(self.folder / "ledger.jobs.db")

    def plan(self, **changes: Any) -> Plan:
        prints = tuple(self.identities[name].fingerprint for name in SILOS)
        schema = Schema.load(self.folder / "schema.toml")
        fields = {
            "fingerprints": prints,
            "schema_digest": schema.digest(),
            "profile": "pairwise",
            "min_silos": 3,
        }
        return toy_plan(**{**fields, **changes})

    def receive(self, plan: Plan) -> str:
        """Put a job where the agent puts it; return its id."""
        proposer = Proposer(
            "ann",
            self.analyst.fingerprint,
            self.analyst.public.hex(),
            self.analyst.sign(PROPOSE, plan.digest).hex(),
        )
        self.store.add(plan.run_id, plan.canonical_json(), asdict(proposer), State.WAITING)
        return plan.run_id


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return local_federation(tmp_path_factory.mktemp("federation"), SILOS, ("ann",))


@pytest.fixture
def home(tmp_path: Path, keys: dict[str, Path]) -> Home:
    identities = {name: KeyFolder(path).identity() for name, path in keys.items()}
    columns = "".join(
        f'[[columns]]\nname = "x{i}"\ntype = "number"\nmin = -1.0\nmax = 1.0\n' for i in range(2)
    )
    (tmp_path / "schema.toml").write_text(
        f'dataset = "toy"\nunit = "row"\nmax_silos_per_person = 1\n{columns}'
    )
    rows = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    np.savetxt(tmp_path / "data.csv", rows, delimiter=",", header="x0,x1", comments="")
    (tmp_path / "silo.toml").write_text(
        f"""
role = "silo"
name = "silo-0"
coordinator = "https://127.0.0.1:9"
keys = {str(keys["silo-0"])!r}
cap_epsilon = 2.0
data = {{ file = "data.csv" }}

[policy]
tasks = ["fastlloyd"]
max_epsilon_per_job = 1.0
profiles = ["pairwise", "group"]

[peers]
silo-1 = "{identities["silo-1"].fingerprint}"
silo-2 = "{identities["silo-2"].fingerprint}"

[analysts]
ann = "{identities["ann"].fingerprint}"
"""
    )
    return Home(tmp_path, identities, identities["ann"])


Shown = Callable[..., dict[str, Any]]


@pytest.fixture
def shown(home: Home, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run a command of ``cloister jobs`` with --json; return its document."""

    def run(action: str, *arguments: str) -> dict[str, Any]:
        code = main(["jobs", action, "--config", home.config, "--json", *arguments])
        told = capsys.readouterr()
        assert code == 0, told.err
        document: dict[str, Any] = json.loads(told.out)
        return document

    return run


def refused(home: Home, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    action, *rest = arguments
    code = main(["jobs", action, "--config", home.config, *rest])
    return code, capsys.readouterr().err


def test_a_job_is_shown_in_plain_words_with_its_cost(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    job = home.receive(plan := home.plan())
    document = shown("show", job[:8])
    assert document["refusal"] is None
    assert document["description"] == plan.describe()
    assert [member["pinned"] for member in document["members"]] == ["this silo", "yes", "yes"]
    cost = document["cost"]
    assert cost["alone"] == pytest.approx(1.0, rel=0.01)
    assert (cost["before"], cost["cap"]) == (0, 2.0)
    assert cost["left_after"] < cost["left_before"] == pytest.approx(2.0, rel=0.01)

    assert main(["jobs", "show", "--config", home.config, job]) == 0
    text = capsys.readouterr().out
    for words in ("ann", "pinned", "allows it", home.identities["silo-1"].fingerprint, "approve"):
        assert words in text


def test_the_owner_reads_the_whole_question(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema.load(home.folder / "schema.toml")
    about = {"budget": Budget(1.0, 1e-6), "nominal_n": 300, "profile": "pairwise"}
    plan = make_plan(TASKS["linear"], schema, home.plan().silos, target="x1", **about)
    job = home.receive(plan)
    assert main(["jobs", "show", "--config", home.config, job]) == 0
    page = capsys.readouterr().out
    for line in question_of(plan, schema).splitlines():
        name, _, value = line.partition(": ")
        assert re.search(rf"^{re.escape(name)} +{re.escape(value)}$", page, re.MULTILINE)
    assert re.search("^option target +x1$", page, re.MULTILINE)
    document = shown("show", job)
    assert document["question"] == question_of(plan, schema)
    assert document["question_hash"] == plan.question == hash_of(document["question"])


def test_what_was_spent_before_is_in_the_price(home: Home, shown: Shown) -> None:
    ledger = Ledger(home.folder / "ledger.db")
    ledger.open_dataset("toy", cap=Budget(2.0, 1e-6))
    earlier = toy_plan()
    ledger.reserve(dataset="toy", study="other", job=earlier.run_id, events=earlier.events())
    cost = shown("show", home.receive(home.plan()))["cost"]
    assert cost["before"] == pytest.approx(1.0, rel=0.01)
    assert 1.0 < cost["after"] < 2.0


def test_rows_are_counted_for_the_owner_and_no_document(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.folder / "data.csv").write_text("x0,x1\n" + "0.5,0.5\n" * 9 + "0.5,999\n" * 4 + "?,0\n")
    job = home.receive(home.plan())
    assert shown("rows", job).keys() == {"command", "job", "warnings"}
    assert main(["jobs", "rows", "--config", home.config, job]) == 0
    told = capsys.readouterr()
    assert re.search(r"^rows used +13$", told.out, re.MULTILINE)
    assert "may mark missing cells" in told.err
    assert home.store.state(job) == State.WAITING


def test_approval_waits_for_the_agent(home: Home, shown: Shown) -> None:
    job = home.receive(home.plan())
    assert shown("approve", job)["state"] == "accepted"
    assert home.store.state(job) == State.ACCEPTED
    assert shown("list")["jobs"][0]["state"] == "accepted"


def test_the_list_says_why_a_job_waits_or_ended(home: Home, shown: Shown) -> None:
    job = home.receive(home.plan())
    end = lifecycle.CLOSES[State.DECLINED_ELSEWHERE]
    home.store.move(job, end, reason="silo-1: not now")
    (listed,) = shown("list")["jobs"]
    assert (listed["state"], listed["reason"]) == ("declined elsewhere", "silo-1: not now")


def test_under_the_group_mask_approval_needs_a_word_on_the_noise(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    job = home.receive(home.plan(profile="group"))
    assert shown("show", job)["needs_consent"]
    code, error = refused(home, capsys, "approve", job)
    assert code == 3
    assert "the noise of the aggregator" in error
    assert "--accept-aggregator-noise" in error
    assert home.store.state(job) == State.WAITING
    shown("approve", job, "--accept-aggregator-noise")
    assert home.store.state(job) == State.ACCEPTED


def test_what_the_policy_refuses_cannot_be_approved(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = Identity.new().fingerprint
    prints = (home.identities["silo-0"].fingerprint, stranger, Identity.new().fingerprint)
    job = home.receive(home.plan(fingerprints=prints))
    code, error = refused(home, capsys, "approve", job)
    assert code == 3
    assert "pinned" in error
    assert home.store.state(job) == State.WAITING
    assert main(["jobs", "show", "--config", home.config, job]) == 0
    assert "ANOTHER ONE" in capsys.readouterr().out


def test_what_the_budget_does_not_allow_cannot_be_approved(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(home.config)
    path.write_text(path.read_text().replace("cap_epsilon = 2.0", "cap_epsilon = 0.5"))
    job = home.receive(home.plan())
    code, error = refused(home, capsys, "approve", job)
    assert code == 5
    assert "lifetime cap of 0.5" in error
    assert home.store.state(job) == State.WAITING


def test_the_limits_of_the_settings_decide_and_are_those_of_the_ledger(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(home.config)
    path.write_text(path.read_text().replace("cap_epsilon = 2.0", "cap_epsilon = 1.0"))
    settings = path.read_text()
    design = {"n_features": 2, "nominal_n": 300, "budget": Budget(1.0, 1e-6), "n_clusters": 2}
    job = home.receive(home.plan(task=toy_task(TASKS["sulloyd"], **design), profile="group"))
    assert shown("show", job)["cost"]["fits"] is False
    assert main(["jobs", "show", "--config", home.config, job]) == 0
    assert "refuses it: beyond the lifetime cap, or its limits" in capsys.readouterr().out
    path.write_text(settings.replace("cap_epsilon", "pure_share = 1\ncap_epsilon"))
    assert shown("show", job)["cost"]["fits"] is True
    ledger = Site.of(load_settings(path)).ledger()  # type: ignore[arg-type]
    assert ledger.limits("toy").split == Split(1.0)
    assert shown("show", job)["cost"]["fits"] is True
    path.write_text(settings.replace("cap_epsilon", "pure_share = 0.5\ncap_epsilon"))
    assert refused(home, capsys, "show", job)[0] == 6
    path.write_text(settings)  # what is left out is as it is in the ledger
    assert shown("show", job)["cost"]["fits"] is True


def test_denied_once_is_denied(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    job = home.receive(home.plan())
    shown("deny", job, "--reason", "not this year")
    known = home.store.get(job)
    assert known is not None
    assert (known.state, known.reason, known.decided_by) == (
        State.DECLINED,
        "not this year",
        "owner",
    )
    for action in ("approve", "deny", "withdraw"):
        code, error = refused(home, capsys, action, job)
        assert code == 3
        assert "declined" in error
        assert "use 'cloister jobs withdraw'" not in error  # there is nothing left to withdraw


def test_a_reason_that_others_could_not_read_whole_is_refused(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    job = home.receive(home.plan())
    code, error = refused(home, capsys, "deny", job, "--reason", "x" * 501)
    assert code == 3
    assert "reason must have at most 500 characters, got 501" in error
    assert home.store.state(job) == State.WAITING
    shown("deny", job, "--reason", "x" * 500)
    assert home.store.state(job) == State.DECLINED


@pytest.mark.parametrize("standing", [True, False])
def test_the_limits_of_a_standing_rule_are_shown_where_its_owner_looks(
    home: Home, capsys: pytest.CaptureFixture[str], standing: bool
) -> None:
    path = Path(home.config)
    rules = '[policy]\nmax_epsilon_per_year = 1.5\nstudies = ["stroke"]\n'
    path.write_text(path.read_text().replace("[policy]\n", rules + "standing = true\n" * standing))
    job = home.receive(home.plan())
    for command in (["jobs", "list"], ["jobs", "show", job], ["config", "check"]):
        given = [home.config] if command[0] == "config" else ["--config", home.config]
        main([*command, *given])
        told = " ".join(capsys.readouterr().out.split())
        for limit in (
            "approves without you every job within the policy and these limits",
            "tasks fastlloyd; columns all; studies stroke; epsilon at most 1 a job",
            "no limit a study, at most 1.5 a year, and 2 in all. It has no end date",
        ):
            assert (limit in told) == standing


def test_a_person_at_a_terminal_is_asked_for_the_reason(
    home: Home, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    for typed, reason in (("too early", "too early"), ("", "the owner declined.")):
        monkeypatch.setattr(jobs_silo, "ask", lambda question, typed=typed: typed)
        job = home.receive(home.plan())
        shown("deny", job)
        known = home.store.get(job)
        assert known is not None
        assert known.reason == reason


def test_withdrawing_returns_what_did_not_leave_even_without_an_agent(
    home: Home, shown: Shown
) -> None:
    plan = home.plan()
    job = home.receive(plan)
    ledger = Ledger(home.folder / "ledger.db")
    ledger.open_dataset("toy", cap=Budget(2.0, 1e-6))
    ledger.reserve(dataset="toy", study=plan.study, job=job, events=plan.events())
    home.store.move(job, lifecycle.ACCEPT)
    home.store.move(job, lifecycle.RESERVE)
    shown("withdraw", job)
    assert home.store.state(job) == State.WITHDRAWN
    assert ledger.spent("toy") == 0


def test_a_result_is_shown_and_reported_with_where_its_noise_came_from(
    home: Home, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = home.plan(profile="group")
    job = home.receive(plan)
    code, error = refused(home, capsys, "result", job)
    assert code == 4
    assert "no result" in error
    history = tuple(
        plan.task.results({k: np.zeros(v.shape, int) for k, v in plan.task.start().items()}, grid)
        for grid in [plan.grid]
    )
    result = Release(plan, history[0], history, plan.events(), AGGREGATOR_NOISE, (plan.silos,))
    folder = home.folder / "results" / job
    folder.mkdir(parents=True)
    result.save(folder / "model.json")
    report = home.folder / "report.html"
    (folder / "model.json.signed").write_text("{}")
    kept = home.folder / "kept"
    document = shown("result", job, "--report", str(report), "--out", str(kept))
    for name in ("model.json", "model.json.signed"):
        assert (kept / name).read_bytes() == (folder / name).read_bytes()
    assert document["noise"] == AGGREGATOR_NOISE
    assert document["results"].keys() == result.results.keys()
    page = report.read_text(encoding="utf-8")
    assert "<strong>Not verifiable.</strong> the model names no released words" in page
    assert f"<code>{plan.question}</code>" in page  # by this silo's own schema
    assert any("the noise of the aggregator" in warning for warning in document["warnings"])


def test_what_is_for_an_analyst_is_not_for_a_silo(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = refused(home, capsys, "cancel", "0" * 32)
    assert code == 3
    assert "analyst" in error


def test_a_job_that_is_not_known_is_said_to_be_so(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = refused(home, capsys, "show", "f" * 32)
    assert code == 3
    assert "not known" in error


# --- The agent as a process -----------------------------------------------------------------------


def test_the_agent_ends_within_two_seconds_of_sigterm_and_is_small(home: Home) -> None:
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "cloister", "silo", "run", "--config", home.config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = json.loads(process.stderr.readline())
    assert "no connection to https://127.0.0.1:9" in first["message"]
    to_start = time.monotonic() - begun  # well below a second, unless the machine is busy
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        (resident,) = (line for line in status.read_text().splitlines() if "VmRSS" in line)
        assert int(resident.split()[1]) < 160 * 1024  # it has looked at its data once
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert time.monotonic() - since < 2 + to_start
    assert process.returncode == 0
    assert out == ""


def test_an_agent_whose_data_lose_too_much_does_not_start_and_tells_nothing(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["x0,x1", *["0.5,0.5"] * 1700, *["Jawohl,0.5"] * 300]
    (home.folder / "data.csv").write_text("\n".join(lines))
    assert main(["silo", "run", "--config", home.config]) == 4
    told = capsys.readouterr()
    assert "run 'cloister check FILE --schema SCHEMA'" in told.err
    assert not re.search(r"\d|Jawohl|x0|data.csv", told.err + told.out)
    main(["doctor", "--config", home.config])
    assert "rows left out" in capsys.readouterr().out


def test_the_agent_loads_no_library_for_tables_before_data_are_read(home: Home) -> None:
    code = """
import sys, threading
from cloister.federation.settings import load_settings
from cloister.federation.silo.main import open_agent
open_agent(load_settings(sys.argv[1]), wait=threading.Event().wait).look()
heavy = "sklearn pandas pyarrow polars scipy matplotlib fastapi".split()
print(*(name for name in heavy if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, home.config], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_an_agent_does_not_run_with_the_file_of_another_role(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    other = home.folder / "analyst.toml"
    other.write_text('role = "analyst"\nname = "ann"\ncoordinator = "https://127.0.0.1:9"\n')
    assert main(["silo", "run", "--config", os.fspath(other)]) == 3
    assert "'silo'" in capsys.readouterr().err
