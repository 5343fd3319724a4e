"""Where a party's files lie, and what is refused without root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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
    assert "User=cloister" in unit
    assert "{" not in unit
