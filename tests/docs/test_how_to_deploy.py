"""The commands of the page on deploying run as they are written, from nothing to a result.

A folder stands for each machine: commands get ``--root``, and no user is made. Where the page
starts a service, the test starts what the unit file says.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from cloister.cli import _parser, main
from cloister.core.errors import TransportError
from cloister.data.samples import SCHEMA, write_patients
from cloister.federation.local import LocalFederation, kept_port
from cloister.federation.pki import KeyFolder, client_context
from cloister.federation.service.client import Rest
from cloister.federation.settings import SiloSettings, load_settings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
SILOS = ("hospital-a", "hospital-b", "hospital-c")
PARTIES = (*SILOS, "ana")


def commands(section: str) -> list[list[str]]:
    """Return the calls of cloister in the consoles of a section."""
    text = PAGE.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {section}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    lines = "".join(re.findall(r"^```console\n(.*?)^```", body, re.MULTILINE | re.DOTALL))
    return [shlex.split(line) for line in re.findall(r"^(?:sudo .*/)?cloister (.+)$", lines, re.M)]


def here(words: list[str], **places: str) -> list[str]:
    """Return a command with the page's places replaced by those of the test."""
    return [places.get(word, word) for word in words]


def said(capsys: pytest.CaptureFixture[str], words: list[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0, words
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cloister.cli.join._PAUSE", 0.05)
    tables = write_patients(tmp_path)
    (tmp_path / SCHEMA).rename(tmp_path / "schema.toml")
    for name, table in zip(SILOS, tables.values(), strict=True):
        table.rename(tmp_path / f"{name}.csv")
    return tmp_path


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with suppress(TransportError):
            if true():
                return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def unit_command(root: Path, role: str) -> list[str]:
    text = (root / f"etc/systemd/system/cloister-{role}.service").read_text(encoding="utf-8")
    (started,) = re.findall("^ExecStart=(.+)$", text, re.MULTILINE)
    return shlex.split(started)


@pytest.mark.skipif(not PAGE.is_file(), reason="docs are not beside the tests")
@pytest.mark.parametrize(
    ("host", "authority"),
    [("localhost", "localhost"), pytest.param("::1", "[::1]", marks=pytest.mark.nightly)],
)
def test_the_page_runs_as_written(
    machines: Path, capsys: pytest.CaptureFixture[str], host: str, authority: str
) -> None:
    port, kept = kept_port()
    init, invite, opened = commands("1. The coordinator invites")
    at_coordinator = ["--root", str(machines / "coordinator")]
    words = here(init, **{"fed.example.org": host})
    assert main([*words, "--port", str(port), *at_coordinator]) == 0
    assert main([*invite, *at_coordinator]) == 0
    serving = threading.Thread(target=main, args=([*opened, *at_coordinator],))

    at_silo, at_analyst = commands("2. Each site joins")
    joins = {}
    for name in SILOS:
        places = {"hospital-a.invitation": f"{name}.invitation"}
        places["/srv/data/patients.parquet"] = f"{name}.csv"
        joins[name] = [*here(at_silo, **places), "--root", name]
    joins["ana"] = [*at_analyst, "--root", "ana"]
    joining = [threading.Thread(target=main, args=(join,)) for join in joins.values()]
    for thread in joining:
        thread.start()
    serving.start()  # last: sites may be early, and wait for it
    for thread in (*joining, serving):
        thread.join(300)
        assert not thread.is_alive()

    (read,) = {said(capsys, join)["words"] for join in joins.values()}
    wrong = " ".join(reversed(read.split()))
    assert main([*joins["ana"], "--confirm", wrong]) == 3
    assert not (machines / "ana" / "analyst.toml").exists()
    for join in joins.values():
        assert said(capsys, [*join, "--confirm", read])["confirmed"]
    files = {name: machines / name / "etc/cloister/silo.toml" for name in SILOS}
    for name, file in files.items():
        # one in twelve rows of the sample lacks a measurement
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("[data]\n", "[data]\naccept_loss = 0.1\n"), encoding="utf-8")
        settings = load_settings(file)
        assert isinstance(settings, SiloSettings)
        peers, analysts = settings.pins()
        assert {*peers} == {*SILOS} - {name}
        pins = {**peers, **analysts}
        for other, pin in pins.items():
            keys = (
                machines / other / ("analyst-keys" if other == "ana" else "etc/cloister/silo-keys")
            )
            assert KeyFolder(keys).identity().fingerprint == pin

    with ExitStack() as stack:
        stack.callback(kept.close)
        for root, role in (("coordinator", "coordinator"), *((name, "silo") for name in SILOS)):
            log = stack.enter_context((machines / f"{root}.log").open("wb"))
            process = LocalFederation.popen(
                unit_command(machines / root, role),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=machines / root,
                start_new_session=True,
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        url, context = f"https://{authority}:{port}", client_context(KeyFolder("ana/analyst-keys"))
        rest = stack.enter_context(Rest(url, context))
        until(lambda: sum(silo["connected"] for silo in rest.silos()) == len(SILOS))

        submit, show, approve, at_silo, at_analyst, budget = commands("3. A job")
        places = {"analyst.toml": "ana/analyst.toml", "schema.toml": "ana/schema.toml"}
        job = said(capsys, here(submit, **places))["job"]
        at = [{"3f2a": job[:8], "/etc/cloister/silo.toml": str(file)} for file in files.values()]
        for places in at:
            until(lambda places=places: main(here(show, **places)) == 0)  # type: ignore[misc]
            assert main(here(approve, **places)) == 0
        until(lambda: rest.job(job)["state"] == "done")
        for places in at:
            until(lambda places=places: main(here(at_silo, **places)) == 0)  # type: ignore[misc]
        places = {"3f2a": job[:8], "analyst.toml": "ana/analyst.toml"}
        assert main(here(at_analyst, **places)) == 0
        assert (machines / "result.html").is_file()
    ledger = {
        "/var/lib/cloister/ledger.db": str(machines / SILOS[0] / "var/lib/cloister/ledger.db")
    }
    assert main(here(budget, **ledger)) == 0


def test_the_compose_file_runs_what_the_command_line_knows() -> None:
    file = PAGE.parents[2] / "deploy" / "compose.yaml"
    if not file.is_file():
        pytest.skip("the folder 'deploy' is not beside the tests")
    services = pytest.importorskip("yaml").safe_load(file.read_text(encoding="utf-8"))["services"]
    for name, service in services.items():
        assert service["profiles"] == [name]
        assert _parser(service["command"]).parse_args(service["command"]).command == name
        assert service["read_only"]
        assert service["logging"]["options"]["max-size"]
