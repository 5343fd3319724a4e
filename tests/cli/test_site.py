"""Where a party's files lie, and what is refused without root."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from pathlib import Path

import pytest

from cloister.cli import main
from cloister.cli.output import Output
from cloister.cli.site import Site
from cloister.core.errors import PlanError


@pytest.mark.skipif(sys.platform == "win32", reason="there is no root")
def test_a_service_needs_root_or_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(PlanError, match="--root DIR"):
        Site.of(None, "silo")
    assert Site.of(None, "analyst").etc == Path.home() / "cloister"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert Site.of(None, "silo").config == Path("/etc/cloister/silo.toml")


def test_a_file_that_its_owner_changed_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site.of(tmp_path, "silo")
    site.etc.mkdir(parents=True)
    site.write({"name": "a"}, Output())
    before = site.config.read_text()
    site.write({"name": "b"}, Output())
    assert site.config.read_text() == before
    assert 'name = "b"' in (site.etc / "silo.new.toml").read_text()
    assert "exists and was not changed" in capsys.readouterr().err


def test_with_a_folder_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("something was run"))
    site = Site.of(tmp_path, "silo")
    site.etc.mkdir(parents=True)
    site.start(Output())
    assert "no service was started" in capsys.readouterr().out
    unit = (tmp_path / "etc/systemd/system/cloister-silo.service").read_text()
    assert f"{sys.executable} -m cloister silo run --config {site.config}" in unit
    for line in ("User=cloister", "MemoryDenyWriteExecute=yes", "SystemCallFilter=@system-service"):
        assert line in unit.splitlines()
    assert "{" not in unit


def test_a_unit_and_a_printed_command_hold_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site.of(tmp_path / "fö ö 50%", "silo")
    site.etc.mkdir(parents=True)
    site.start(Output())
    (said,) = re.findall("To start it: (.+)", capsys.readouterr().out)
    unit = (site.root / "etc/systemd/system/cloister-silo.service").read_text()
    (started,) = re.findall("^ExecStart=(.+)$", unit, re.MULTILINE)
    words = ["silo", "run", "--config", str(site.config)]
    assert shlex.split(said) == ["cloister", *words]
    assert shlex.split(started.replace("%%", "%")) == [sys.executable, "-m", "cloister", *words]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")
@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_modes_of_a_founded_federation_are_right_under_any_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        found(tmp_path, "localhost", "auto")
        hub = ["--root", str(tmp_path / "hub"), "--out", str(tmp_path), "--quiet"]
        assert main(["federation", "invite", *hub]) == 0
        Site.of(tmp_path / "hub", "coordinator").start(Output(quiet=True))
    finally:
        os.umask(before)
    modes = {
        file.relative_to(tmp_path).name: stat.S_IMODE(file.stat().st_mode)
        for file in tmp_path.rglob("*")
        if file.name not in ("schema.toml",)
    }
    assert not [name for name, mode in modes.items() if mode & 0o022]
    for name in ("ca.key", "identity.key", "tls.key", "a.invitation", "federation.json"):
        assert modes[name] == 0o600
    for name in ("cloister-ca", "coordinator-keys"):
        assert modes[name] == 0o700
    for name in ("coordinator.toml", "ca.pem", "tls.pem", "crl.pem"):
        assert modes[name] == 0o644


def found(folder: Path, host: str, tasks: str, code: int = 0) -> None:
    schema = folder / "schema.toml"
    column = '[[columns]]\nname = "age"\ntype = "number"\nmin = 0\nmax = 100\n'
    schema.write_text(f'dataset = "t"\nunit = "row"\n{column}')
    limits = ["--tasks", tasks, "--cap-epsilon", "8", "--max-epsilon-per-job", "1"]
    where = ["--host", host, "--root", str(folder / "hub"), "--schema", str(schema)]
    command = ["federation", "init", "--name", "t", "--silos", "a,b"]
    assert main([*command, *where, *limits]) == code


@pytest.mark.parametrize(
    ("host", "url", "listen"),
    [
        ("::1", "https://[::1]:8443", "[::]:8443"),
        ("[::1]", "https://[::1]:8443", "[::]:8443"),
        ("127.0.0.1", "https://127.0.0.1:8443", "0.0.0.0:8443"),
        ("hub.example.org", "https://hub.example.org:8443", "[::]:8443"),
    ],
)
def test_a_federation_is_founded_on_an_address_of_either_version(
    tmp_path: Path, host: str, url: str, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found(tmp_path, host, "auto")
    said = " ".join(capsys.readouterr().out.split())
    assert f"Then: cloister federation invite --root {tmp_path / 'hub'}" in said
    [settings] = (tmp_path / "hub").rglob("coordinator.toml")
    assert f'listen = "{listen}"' in settings.read_text()
    files = [file.read_text() for file in (tmp_path / "hub").rglob("*.json")]
    assert any(url in text for text in files)


def test_a_slip_in_the_name_of_a_task_founds_no_federation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found(tmp_path, "localhost", "auto,tabulat", code=3)
    said = " ".join(capsys.readouterr().err.split())
    assert "no task 'tabulat' is installed here; did you mean 'tabulate'?" in said
    found(tmp_path, "localhost", "auto,xyz")
    written = " ".join(capsys.readouterr().err.split())
    assert "no task 'xyz' is installed here; each silo must name its file" in written
    assert "'auto'" not in written
    found(tmp_path, "localhost", "auto", code=3)
    assert "has a federation already" in " ".join(capsys.readouterr().err.split())
