"""``cloister jobs`` of an analyst, against a coordinator on a port."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.job import run_job
from cloister.app.release import Release
from cloister.cli import jobs_rest, main
from cloister.data import read_source
from cloister.federation.service.client import Rest
from cloister.hazmat.signing import Identity
from cloister.protocol.readers import Reader, Vouched
from cloister.tasks import from_file
from cloister.testing import toy_schema

from .federation import IDENTITIES, SILOS, Caller

# the fixtures of a service with three silos
from .test_network import (  # noqa: F401
    Authority,
    Service,
    Silo,
    authority,
    ended,
    rest,
    service,
    silos,
)

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Keys:
    """The analyst's folder of keys."""

    folder: Path

    def identity(self) -> Identity:
        return IDENTITIES["ana"]

    def peer(self) -> Caller:
        return Caller("analyst", "ana")


@pytest.fixture
def run(
    service: Service,  # noqa: F811
    authority: Authority,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """A function that runs ``cloister jobs`` with an analyst's configuration."""
    context = authority.context("ana", ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(jobs_rest, "KeyFolder", Keys)
    monkeypatch.setattr(jobs_rest, "client_context", lambda _: context)
    (tmp_path / "keys").mkdir()
    config = tmp_path / "analyst.toml"
    config.write_text(
        f'role = "analyst"\nname = "ana"\ncoordinator = "{service.address}"\nkeys = "keys"\n'
    )
    (tmp_path / "schema.toml").write_text(toy_schema().to_toml())

    def command(action: str, *options: str) -> tuple[int, str, str]:
        code = main(["jobs", action, "--config", str(config), *options])
        out, err = capsys.readouterr()
        return code, out, err

    return command


def options(tmp_path: Path, *more: str, silos: str = "a,b,c") -> list[str]:  # noqa: F811
    fixed = ["--epsilon", "1", "--nominal-n", "300", "--json"]
    method = ["--k", "2", "--algorithm", "fastlloyd", "--rounds", "2"]
    return ["--schema", str(tmp_path / "schema.toml"), "--silos", silos, *fixed, *method, *more]


def submitted(run: Run, tmp_path: Path, *more: str) -> dict[str, Any]:
    code, out, err = run("submit", *options(tmp_path, *more))
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_job_is_proposed_listed_shown_and_read(
    run: Run,
    silos: dict[str, Silo],  # noqa: F811
    rest: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    document = submitted(run, tmp_path, "--publish")
    job = document["job"]
    assert document["plan"]["profile"] == "pairwise", "the default for three silos"
    assert document["plan"]["fingerprints"] == [IDENTITIES[name].fingerprint for name in SILOS]
    assert ended(rest, job)["state"] == "done"
    code, out, _ = run("list")
    assert code == 0
    assert job in out
    assert "2 of 2" in out
    code, out, _ = run("show", job[:8])
    assert code == 0
    assert "approved" in out
    assert "done" in out
    code, out, _ = run("result", job[:8], "--json", "--report", str(tmp_path / "report.html"))
    assert code == 0
    result = json.loads(out)
    silo = silos["a"].clients[job]
    expected = silo.plan.task.results(silo.state, silo.plan.grid)
    assert result["results"]["centres"] == expected["centres"].tolist()
    assert result["vouched"] == list(SILOS)
    assert result["dissenting"] == {}
    folder = tmp_path / "kept"
    code, out, _ = run("result", job[:8], "--out", str(folder))
    assert Release.load(folder / "model.json").plan.digest.hex() == document["plan_digest"]
    code, _, err = run("result", job[:8], "--out", str(folder))
    assert (code, "is not replaced" in err) == (3, True)
    code, out, _ = run("result", job[:8])
    assert code == 0
    assert all(f"{name} {IDENTITIES[name].fingerprint}" in out for name in ("ana", *SILOS))
    for extra in ("command", "job", "warnings", "vouched", "dissenting"):
        del result[extra]
    assert Release.from_dict(result).plan.digest.hex() == document["plan_digest"]
    assert job in (tmp_path / "report.html").read_text()


def test_a_further_reader_hands_in_a_card(
    run: Run,
    silos: dict[str, Silo],  # noqa: F811
    rest: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, out, _ = run("reader-card")
    assert code == 0
    assert Reader(**{k: v for k, v in json.loads(out).items() if k != "format"}).genuine
    card = tmp_path / "bob.reader"
    card.write_text(json.dumps(Reader.of(IDENTITIES["bob"], "bob").card()))
    document = submitted(run, tmp_path, "--publish", "--reader", str(card))
    job = document["job"]
    assert [one["name"] for one in document["plan"]["readers"]] == ["ana", "bob"]
    assert ended(rest, job)["state"] == "done"
    code, out, _ = run("show", job)
    assert "ana, bob" in out
    assert IDENTITIES["bob"].fingerprint in "".join(out.split())
    monkeypatch.setitem(IDENTITIES, "ana", IDENTITIES["bob"])  # from here on, bob runs commands
    code, out, err = run("result", job, "--json")
    assert code == 0, err
    assert json.loads(out)["vouched"] == list(SILOS)
    monkeypatch.setitem(IDENTITIES, "ana", Identity.new())  # and now a third analyst
    code, out, _ = run("list")
    assert code == 0
    assert job in out
    assert "epsilon" not in out.partition(job)[2]
    code, _, err = run("show", job)
    assert code == 3
    assert "its readers and its silos" in err
    card.write_text("{}")
    code, _, err = run("submit", *options(tmp_path, "--reader", str(card)))
    assert code == 3
    assert "is no card of a reader" in err


def test_a_plan_that_the_proposer_did_not_sign_is_no_result(
    run: Run,
    silos: dict[str, Silo],  # noqa: F811
    rest: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = submitted(run, tmp_path, "--publish")["job"]
    assert ended(rest, job)["state"] == "done"
    honest = Rest.job

    def lying(self: Rest, job: str) -> dict[str, Any]:
        shown = honest(self, job)
        shown["plan"]["study"] = "other"
        return shown

    monkeypatch.setattr(Rest, "job", lying)
    code, _, err = run("result", job)
    assert code == 3
    assert "'ana' did not sign the plan" in err


def test_a_result_of_an_own_task_is_read_with_its_file(
    run: Run,
    silos: dict[str, Silo],  # noqa: F811
    rest: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = submitted(run, tmp_path, "--publish")["job"]
    assert ended(rest, job)["state"] == "done"
    file = Path(__file__).parents[1] / "cli/toy_task.py"
    schema = toy_schema(1)
    tables = {"a": read_source(np.zeros((9, 1)), schema)}
    made = run_job(from_file(f"{file}:Histogram"), schema, tables, epsilon=1.0, nominal_n=9)
    # What the silos sealed, as if they had run the task of that file.
    vouched = Vouched(json.loads(json.dumps(made.to_dict())), SILOS, {})
    monkeypatch.setattr(jobs_rest, "open_boxes", lambda *_: vouched)
    code, _, err = run("result", job)
    assert (code, "give its file" in err) == (4, True)
    code, out, err = run("result", job, "--task", f"{file}:Histogram", "--json")
    assert code == 0, err
    assert json.loads(out)["plan_digest"] == made.plan.digest.hex()


def test_a_job_is_cancelled_once(run: Run, tmp_path: Path) -> None:
    fingerprints = ",".join(f"{name}={IDENTITIES[name].fingerprint}" for name in SILOS)
    code, out, err = run("submit", *options(tmp_path, silos=fingerprints))
    assert code == 0, err
    job = json.loads(out)["job"]
    assert run("cancel", job)[0] == 0
    code, _, err = run("cancel", job)
    assert code == 3
    assert "ended already" in err
    code, out, _ = run("show", job, "--json")
    assert json.loads(out)["reason"] == "cancelled by ana."


def test_a_silo_that_nobody_has_seen_needs_its_fingerprint(run: Run, tmp_path: Path) -> None:
    code, _, err = run("submit", *options(tmp_path))
    assert code == 3
    assert "silo 'a' was never connected" in err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--profile", "group", "--publish"], "readers require profile 'pairwise'"),
        (["--task", "count"], "give either --k for k-means or --task"),
        (["--min-silos", "1"], "min_silos must be in [2, 3]"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_it_is_sent(
    run: Run, tmp_path: Path, more: list[str], sentence: str
) -> None:
    members = ",".join(f"{name}={IDENTITIES[name].fingerprint}" for name in SILOS)
    code, _, err = run("submit", *options(tmp_path, *more, silos=members))
    assert code == 3
    assert sentence in err


@pytest.mark.parametrize("action", ["approve", "deny", "withdraw"])
def test_only_the_owner_of_the_data_decides(run: Run, action: str) -> None:
    code, _, err = run(action, "0" * 32)
    assert code == 3
    assert "needs the configuration of a silo" in err


def test_without_a_result_the_analyst_is_told_where_it_is(
    run: Run,
    silos: dict[str, Silo],  # noqa: F811
    rest: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    job = submitted(run, tmp_path, "--profile", "group")["job"]
    assert ended(rest, job)["state"] == "done"
    code, _, err = run("result", job)
    assert code == 3
    assert "its readers are its silos alone" in err
