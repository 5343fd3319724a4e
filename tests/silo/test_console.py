"""``cloister console`` at a silo: who gets in, and what the owner sees and decides there."""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from cloister.app.release import Release
from cloister.console.guard import IDLE_SECONDS, LINK_SECONDS, Guard
from cloister.console.silo import silo_app
from cloister.core.errors import PlanError
from cloister.federation.settings import SiloSettings, load_role
from cloister.federation.silo.site import Site
from cloister.privacy.noise import SILOS_NOISE
from cloister.protocol.lifecycle import SiloState as State

from .test_commands import Home, home, keys

__all__ = ["home", "keys"]  # fixtures

PORT = 8765
HERE = f"http://127.0.0.1:{PORT}"
SENTINEL = "0.8642135"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(home: Home, clock: Clock) -> Guard:
    rows = np.full((30, 2), float(SENTINEL))
    np.savetxt(home.folder / "data.csv", rows, delimiter=",", header="x0,x1", comments="")
    return Guard(silo_app(Site.of(load_role(home.config, SiloSettings))), PORT, clock)


@pytest.fixture
def stranger(guard: Guard) -> TestClient:
    return TestClient(guard, base_url=HERE)


@pytest.fixture
def owner(guard: Guard) -> TestClient:
    client = TestClient(guard, base_url=HERE + guard.root, headers={"origin": HERE})
    assert client.get(guard.link).status_code == 200
    return client


def token(client: TestClient, path: str) -> str:
    found = re.search('name="csrf" value="([0-9a-f]{64})"', client.get(path).text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", ["/", "/audit", "/jobs/ab", "/jobs/ab/report", "/icon.svg"])
def test_without_the_cookie_nothing_is_shown(guard: Guard, stranger: TestClient, path: str) -> None:
    for cookie in ({}, {"cookie": f"cloister-{PORT}={'0' * 64}"}, {"cookie": f"cloister-{PORT}="}):
        for root in ("", guard.root):
            answer = stranger.get(root + path, headers=cookie)
            assert answer.status_code == 401
            assert "silo-0" not in answer.text


def test_the_link_works_once_and_becomes_a_strict_cookie(guard: Guard) -> None:
    link = guard.link
    first, second = (TestClient(guard, base_url=HERE, follow_redirects=False) for _ in range(2))
    answer = first.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{guard.root}/")
    cookie = answer.headers["set-cookie"].lower()
    assert f"path={guard.root};" in cookie
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert link.partition("key=")[2] not in cookie
    assert second.get(link).status_code == 401
    assert second.get("/enter?key=None").status_code == 401


def test_an_expired_or_wrong_link_opens_nothing(
    guard: Guard, stranger: TestClient, clock: Clock
) -> None:
    assert stranger.get("/enter").status_code == 401
    assert stranger.get("/enter?key=00").status_code == 401
    clock.now = LINK_SECONDS
    assert stranger.get(guard.link).status_code == 401
    assert stranger.get("/").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", ""])
def test_another_host_name_is_refused_even_with_the_cookie(owner: TestClient, host: str) -> None:
    assert owner.get("/", headers={"host": host}).status_code == 421


def test_a_form_needs_its_token_and_its_origin(home: Home, owner: TestClient) -> None:
    plan = home.plan()
    path = f"/jobs/{home.receive(plan)}"
    csrf = token(owner, path)
    for form, origin in (
        ({}, HERE),
        ({"csrf": "0" * 64}, HERE),
        ({"csrf": csrf}, "http://evil.example"),
        ({"csrf": csrf}, ""),
        ({"csrf": csrf}, "null"),
    ):
        answer = owner.post(f"{path}/approve", data=form, headers={"origin": origin})
        assert answer.status_code == 403
    assert owner.post(f"{path}/approve", data={"csrf": csrf, "x": "y" * 300_000}).status_code == 413
    assert home.store.state(plan.run_id) == State.WAITING


def test_another_server_of_this_machine_gets_no_cookie_and_needs_the_path(
    home: Home, guard: Guard, owner: TestClient
) -> None:
    """A cookie knows no ports: a page of another account's server is loaded from 127.0.0.1."""
    job = home.receive(home.plan())
    csrf = token(owner, f"/jobs/{job}")
    (cookie,) = (f"{one.name}={one.value}" for one in owner.cookies.jar)
    for path in ("/", "/2", "/enter", f"/jobs/{job}", f"{guard.root}x/", guard.root[:-1]):
        address = f"http://127.0.0.1:{PORT + 1}{path}"
        assert "cookie" not in owner.build_request("GET", address).headers
    # Even with the cookie and the token, in whatever way it got them:
    thief = TestClient(guard, base_url=HERE, headers={"origin": HERE, "cookie": cookie})
    for root in ("", f"/{'0' * 64}", guard.root[:-1], f"{guard.root}0"):
        assert thief.get(f"{root}/").status_code == 401
        assert thief.get(f"{root}/jobs/{job}").status_code == 401
        answer = thief.post(f"{root}/jobs/{job}/approve", data={"csrf": csrf})
        assert answer.status_code == 401
    assert home.store.state(job) == State.WAITING


def test_a_session_ends_when_nobody_uses_it(owner: TestClient, clock: Clock) -> None:
    for _ in range(3):
        clock.now += IDLE_SECONDS - 1
        assert owner.get("/").status_code == 200
    clock.now += IDLE_SECONDS - 1
    assert owner.get("/", headers={"hx-request": "true"}).status_code == 200  # it renews itself
    clock.now += 1
    for _ in range(2):
        assert owner.get("/").status_code == 401
        clock.now -= 1  # what has ended stays so


def test_a_person_ends_the_session(home: Home, guard: Guard, owner: TestClient) -> None:
    assert f'action="{guard.root}/leave"' in owner.get("/").text
    csrf = token(owner, "/")
    assert owner.post("/leave", data={"csrf": "0" * 64}).status_code == 403
    assert owner.get("/leave").status_code == 404
    answer = owner.post("/leave", data={"csrf": csrf})
    assert answer.status_code == 200
    assert "The session has ended" in answer.text
    assert owner.get("/").status_code == 401
    assert owner.post("/leave", data={"csrf": csrf}).status_code == 401


def test_every_answer_is_hardened_and_holds_no_record(
    home: Home, owner: TestClient, stranger: TestClient
) -> None:
    (home.folder / "audit.jsonl").write_text('{"event": "offered <script>"}\n')
    job = home.receive(home.plan())
    paths = ("/", "/audit", f"/jobs/{job}", f"/jobs/{job}/report", "/nothing")
    for answer in [*map(owner.get, paths), stranger.get("/"), owner.post("/", data={})]:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert SENTINEL[:6] not in answer.text
        assert answer.text.count("<script") == answer.text.count('/htmx.js" defer>')
        assert " style=" not in answer.text
        assert "http://" not in answer.text
        assert "https://" not in answer.text


def test_the_style_is_in_the_page_and_the_policy_allows_it_alone(owner: TestClient) -> None:
    answer = owner.get("/")
    (style,) = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in answer.headers["content-security-policy"]
    assert "stylesheet" not in answer.text


def test_the_owner_reads_what_is_asked_and_approves(home: Home, owner: TestClient) -> None:
    plan = home.plan()
    job = home.receive(plan)
    assert f"/jobs/{job}" in owner.get("/").text
    page = owner.get(f"/jobs/{job}").text
    for said in (plan.digest.hex(), "lifetime cap", "pinned", "times in 100", "silo-2"):
        assert said in page
    answer = owner.post(f"/jobs/{job}/approve", data={"csrf": token(owner, f"/jobs/{job}")})
    assert answer.status_code == 200
    assert home.store.state(job) == State.ACCEPTED
    assert "/approve" not in answer.text


def test_the_owner_reads_the_rows_of_the_file_on_request_alone(
    home: Home, owner: TestClient
) -> None:
    (home.folder / "data.csv").write_text("x0,x1\n" + "0.5,0.5\n" * 9 + "0.5,999\n" * 4 + "?,0\n")
    path = f"/jobs/{home.receive(home.plan())}"
    page = owner.get(path).text
    assert "Read my file now" in page
    assert "rows used" not in page
    assert owner.get(f"{path}/rows").status_code == 405
    before = {file: file.read_bytes() for file in home.folder.rglob("*.jsonl")}
    answer = owner.post(f"{path}/rows", data={"csrf": token(owner, path)})
    for words in ("rows used", "<dd>14</dd>", "1 (7.1%)", "&#39;999&#39;", "stored nowhere"):
        assert words in answer.text
    assert "Approve" in answer.text
    assert "rows used" not in owner.get(path).text
    assert before == {file: file.read_bytes() for file in home.folder.rglob("*.jsonl")}
    assert home.store.state(home.plan().run_id) != State.ACCEPTED


def test_the_owner_declines_with_a_reason(home: Home, owner: TestClient) -> None:
    path = f"/jobs/{home.receive(home.plan())}"
    form = {"csrf": token(owner, path), "reason": "not <b>this</b> year"}
    assert "not &lt;b&gt;this&lt;/b&gt; year" in owner.post(f"{path}/deny", data=form).text
    assert "not &lt;b&gt;this&lt;/b&gt; year" in owner.get("/").text  # the list has it, too
    again = owner.post(f"{path}/deny", data=form)
    assert again.status_code == 409
    assert "cannot be" in again.text


def test_the_aggregators_noise_must_be_accepted(home: Home, owner: TestClient) -> None:
    job = home.receive(home.plan(profile="group"))
    form = {"csrf": token(owner, f"/jobs/{job}")}
    assert owner.post(f"/jobs/{job}/approve", data=form).status_code == 409
    assert home.store.state(job) == State.WAITING
    owner.post(f"/jobs/{job}/approve", data={**form, "accept": "on"})
    assert home.store.state(job) == State.ACCEPTED


def test_a_report_may_recompute_itself_and_nothing_more(home: Home, owner: TestClient) -> None:
    plan = home.plan()
    job = home.receive(plan)
    assert owner.get(f"/jobs/{job}/report").status_code == 409
    zeros = {name: np.zeros(start.shape, int) for name, start in plan.task.start().items()}
    history = (plan.task.results(zeros, plan.grid),)
    result = Release(plan, history[0], history, plan.events(), SILOS_NOISE, (plan.silos,))
    folder = home.folder / "results" / job
    folder.mkdir(parents=True)
    result.save(folder / "model.json")
    assert f"/jobs/{job}/report" in owner.get(f"/jobs/{job}").text
    answer = owner.get(f"/jobs/{job}/report")
    assert "lifetime cap" in answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none';")
    assert re.search(r"; script-src 'sha256-[^' ]+'; ", policy)  # its own script and no other
    assert "This is the text that approvers read" in answer.text
    assert answer.headers["cache-control"] == "no-store"


def test_the_newest_entries_of_the_audit_file_come_first(home: Home, owner: TestClient) -> None:
    lines = "".join(f'{{"event": "e{i}"}}\n' for i in range(300))
    (home.folder / "audit.jsonl").write_text(lines)
    entries = re.findall(r"e(\d+)&#34;", owner.get("/audit").text)
    assert entries == [str(i) for i in range(299, 99, -1)]


def test_the_console_listens_on_loopback_only(tmp_path: Path) -> None:
    from cloister.console.server import listening

    with listening(0) as one:
        host, port = one.getsockname()
        assert host == "127.0.0.1"
        assert one.family == socket.AF_INET
        with pytest.raises(PlanError, match="port must be free"):
            listening(port)
