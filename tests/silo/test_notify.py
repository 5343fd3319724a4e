"""A silo's owner hears that a job waits: once, by a command or an address, and never by a crash."""

from __future__ import annotations

import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cloister.core.errors import PlanError
from cloister.federation.settings import NotifySettings, SiloSettings, load_role
from cloister.federation.silo.notify import _tell, notice_of
from cloister.federation.silo.store import Job
from cloister.protocol.lifecycle import SiloState
from cloister.protocol.plan import Plan
from cloister.testing import toy_plan

from .kit import Site, offer

NOTICE = {"silo": "north", "job": "3f2a", "task": "count", "epsilon": 1.0}


@pytest.fixture
def plan() -> Plan:
    return toy_plan(study="free text of an analyst")


def told(site: Site, plan: Plan) -> list[Job]:
    heard: list[Job] = []
    site.agent(on_waiting=heard.append).on_message(offer(plan))
    site.agent(on_waiting=heard.append).look()  # another life of the agent says it no second time
    return heard


def test_a_job_that_waits_is_told_once_with_what_a_list_of_jobs_shows(
    tmp_path: Path, plan: Plan
) -> None:
    (job,) = told(Site(tmp_path), plan)
    notice = notice_of("north", job)
    text = notice.pop("text")
    short = plan.run_id[:12]
    for words in (
        "at silo north",
        "ann asks",
        plan.task.name,
        f"jobs approve {short}",
        "jobs deny",
    ):
        assert words in text
    assert "Why it waits" not in text
    assert plan.study not in text  # an analyst writes it freely
    assert notice == {
        "silo": "north",
        "job": plan.run_id,
        "task": plan.task.name,
        "epsilon": plan.budget.epsilon if plan.budget else None,
    }


def test_the_notice_gives_the_reason_of_a_job_that_a_standing_rule_does_not_cover() -> None:
    plan = '{"budget": null, "study": "s", "task": {"name": "count"}}'
    job = Job("3f2a" * 8, plan, {"name": "ann"}, "2026-01-01", SiloState.WAITING, "convicted.")
    assert notice_of("north", job)["text"].endswith("Why it waits: convicted.")


def test_what_a_standing_policy_approves_waits_for_nobody(tmp_path: Path, plan: Plan) -> None:
    assert told(Site(tmp_path, standing=True), plan) == []


def test_a_command_gets_the_notice_on_its_input_and_no_shell(tmp_path: Path) -> None:
    file = tmp_path / "$(heard)"
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    _tell(NotifySettings(command=(sys.executable, "-c", code, str(file))), NOTICE)
    assert json.loads(file.read_text()) == NOTICE


def test_an_address_gets_the_notice_by_post() -> None:
    heard: list[bytes] = []

    class Owner(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Owner) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        _tell(NotifySettings(webhook=f"http://127.0.0.1:{server.server_port}/"), NOTICE)
        thread.join()
    assert json.loads(heard[0]) == NOTICE


@pytest.mark.parametrize(
    "settings",
    [{"command": ("/nowhere/at-all",)}, {"webhook": "http://127.0.0.1:1/secret-of-the-owner"}],
)
def test_an_owner_who_cannot_be_told_stops_nothing_and_no_address_is_logged(
    settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _tell(NotifySettings(**settings), NOTICE)
    assert "could not be notified" in caplog.text
    assert "secret-of-the-owner" not in caplog.text


def test_settings_hold_the_address_apart_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
role = "silo"
name = "north"
coordinator = "https://h:8443"
cap_epsilon = 3.0
[data]
file = "north.csv"
[notify]
command = ["mail", "owner@example.org"]
"""
    (tmp_path / "silo.toml").write_text(text)
    settings = load_role(tmp_path / "silo.toml", SiloSettings)
    assert settings.notify.command == ("mail", "owner@example.org")
    assert settings.notify.webhook is None
    monkeypatch.setenv("CLOISTER_NOTIFY_WEBHOOK", "https://hooks.example.org/k3y")
    settings = load_role(tmp_path / "silo.toml", SiloSettings)
    assert settings.notify.webhook is not None
    assert "k3y" not in repr(settings)
    monkeypatch.setenv("CLOISTER_NOTIFY_WEBHOOK", "file:///etc/passwd")
    with pytest.raises(PlanError, match="begins with https://"):
        load_role(tmp_path / "silo.toml", SiloSettings)
