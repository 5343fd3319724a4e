"""The coordinator's pages: who may read what, nothing of a result, and nothing but reading."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cloister.core.html import page_headers
from cloister.federation.pki import client_context
from cloister.federation.service.app import make_app
from cloister.protocol.lifecycle import MEANING

from .federation import IDENTITIES, Caller, Coordinator, network_plan
from .test_app import CALLERS, identify
from .test_standing import Real, real

__all__ = ["real"]  # a fixture

ATTACK = "<script>alert(1)</script>"
SENTINEL = "86421357"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
Browser = Callable[[str], TestClient]


@pytest.fixture
def coordinator(sqlite_url: str, tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(sqlite_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def browser(coordinator: Coordinator) -> Browser:
    """A function that returns the browser of somebody; of a stranger, if the name is not known."""
    app = make_app(coordinator.jobs, coordinator.streams, identify)

    def of(name: str) -> TestClient:
        headers = {**BROWSER, "x-certificate": name}
        return TestClient(app, headers=headers, raise_server_exceptions=False)

    return of


# Who reads what --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/jobs/JOB", "/jobs/x", "/icon.svg", "/htmx.js", "/x"])
def test_a_stranger_gets_nothing(coordinator: Coordinator, browser: Browser, path: str) -> None:
    job = coordinator.submit()
    answer = browser("nobody").get(path.replace("JOB", job))
    assert answer.status_code == 401
    assert "enrol first" in answer.text
    assert job[:12] not in answer.text
    assert "hx-get" not in answer.text


@pytest.mark.parametrize("name", ["ana", "op"])
def test_a_proposer_and_the_coordinator_read_a_job_and_all_silos(
    coordinator: Coordinator, browser: Browser, name: str
) -> None:
    job = coordinator.submit(by="ana")
    reader = browser(name)
    coordinator.store.seen("d", IDENTITIES["d"].fingerprint, CALLERS["d"].not_after)
    page = reader.get("/").text
    assert f'<a href="/jobs/{job}">{job[:12]}</a>' in page
    assert "<td>d</td>" in page
    assert f"Job {job[:12]}" in reader.get(f"/jobs/{job}").text


def test_another_analyst_reads_the_outline_of_a_job(
    coordinator: Coordinator, browser: Browser
) -> None:
    refused = coordinator.submit(network_plan(study="secret"))
    coordinator.decide(refused, a=SENTINEL, b="no", c=True)
    asked = coordinator.submit()
    coordinator.decide(asked, a=True)
    price = "epsilon 1"
    for name, knows in (("ana", True), ("bob", False)):
        page = browser(name).get("/").text
        assert refused[:12] in page
        assert MEANING["declined"] in page
        assert (SENTINEL in page) == (price in page) == ("approved: a" in page) == knows
        for job in (refused, asked):
            assert (f'href="/jobs/{job}"' in page) == knows
            assert (browser(name).get(f"/jobs/{job}").status_code == 200) == knows
    assert "its readers and its silos" in browser("bob").get(f"/jobs/{asked}").text


def test_a_silo_reads_its_own_jobs_only(coordinator: Coordinator, browser: Browser) -> None:
    coordinator.store.seen("b", IDENTITIES["b"].fingerprint, CALLERS["ana"].not_after)
    job = coordinator.submit()
    ended = coordinator.submit()
    coordinator.jobs.cancel(ended, "ana")
    for known in (job, ended):
        assert known in browser("a").get("/").text
        assert browser("a").get(f"/jobs/{known}").status_code == 200
        assert known not in browser("d").get("/").text
        refused = browser("d").get(f"/jobs/{known}")
        assert refused.status_code == 404
        assert "there is no job" in refused.text
        assert "Noisy sums" not in refused.text
    assert "certificate until" not in browser("a").get("/").text


def test_the_reason_of_an_end_is_named_as_such(coordinator: Coordinator, browser: Browser) -> None:
    coordinator.jobs.cancel(coordinator.submit(by="ana"), "ana")
    said = f"{MEANING['cancelled']} Reason: cancelled by ana."
    assert said in unescape(browser("ana").get("/").text)


def test_a_scorer_has_no_page(
    coordinator: Coordinator, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CALLERS, "bob", Caller("scorer", "bob"))
    job = coordinator.submit()
    for path in ("/", f"/jobs/{job}"):
        answer = browser("bob").get(path)
        assert answer.status_code == 403
        assert job[:12] not in answer.text


def test_over_tls_a_page_needs_the_host_name_of_its_server_and_a_certificate(real: Real) -> None:
    """So a site that gives its own name our address (DNS rebinding) reads nothing."""

    def asked(context: ssl.SSLContext, host: str) -> bytes:
        port = int(real.address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname=host) as tls,
        ):
            tls.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            return tls.makefile("rb").readline()

    ana = client_context(real.keys("ana"))
    stranger = ssl.create_default_context(cafile=real.keys("ana").path / "ca.pem")
    assert asked(ana, "127.0.0.1") == b"HTTP/1.1 200 OK\r\n"
    with pytest.raises(ssl.SSLCertVerificationError):
        asked(ana, "evil.example")
    with suppress(OSError):  # or the connection ends without a word
        assert asked(stranger, "127.0.0.1") == b""
    real.revoke("ana")
    assert asked(ana, "127.0.0.1") == b"HTTP/1.1 401 Unauthorized\r\n"


# Reading, and nothing else ---------------------------------------------------------------------


def test_every_page_has_all_headers_and_no_script_but_htmx(
    coordinator: Coordinator, browser: Browser
) -> None:
    job = coordinator.submit()
    paths = ("/", f"/jobs/{job}", "/jobs/x", "/nowhere", "/v1/jobs/x", "/icon.svg", "/htmx.js")
    answers = [*map(browser("op").get, paths), browser("nobody").get("/"), browser("op").put("/")]
    assert [one.status_code for one in answers] == [200, 200, 404, 404, 422, 200, 200, 401, 405]
    for answer in answers:
        assert {name: answer.headers[name] for name in page_headers()} == page_headers()
    for answer in (*answers[:5], *answers[7:]):
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.text.count("<script") == answer.text.count('<script src="/htmx.js" defer>')
        assert answer.text.count("<h1>") == answer.text.count("<main>") == 1
        assert not re.search(r"<form|<button|<input| style=| on\w+=|https?://", answer.text)


def test_who_does_not_ask_for_a_page_gets_json(browser: Browser) -> None:
    answer = browser("op").get("/nowhere", headers={"accept": "*/*"})
    assert answer.json() == {"error": "Not Found"}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_pages_take_no_other_method(
    coordinator: Coordinator, browser: Browser, method: str
) -> None:
    job = coordinator.submit()
    for path in ("/", f"/jobs/{job}"):
        assert browser("op").request(method, path).status_code == 405


# What is shown ---------------------------------------------------------------------------------


def test_what_others_wrote_is_text(coordinator: Coordinator, browser: Browser) -> None:
    plan = network_plan(silos=("a", "b", "c"), study=ATTACK)
    job = coordinator.submit(plan)
    coordinator.decide(job, a=f"{ATTACK} \u202e", b=ATTACK, c=True)
    coordinator.store.refuse(job, "c", ATTACK)
    assert coordinator.job(job).state == "declined"
    coordinator.store.seen(ATTACK, "", CALLERS["ana"].not_after)
    for path in ("/", f"/jobs/{job}", "/jobs/<script>"):
        page = browser("op").get(path).text
        assert ATTACK not in page
        assert "&lt;script&gt;" in page
        assert "\u202e" not in page


def test_decisions_refusals_and_failures_are_in_words(
    coordinator: Coordinator, browser: Browser
) -> None:
    coordinator.streams.refusing = {"c": "the policy has changed"}
    job = coordinator.submit(network_plan(min_silos=3))
    coordinator.decide(job, a=True)
    for path in ("/", f"/jobs/{job}"):
        page = browser("ana").get(path).text
        assert "undecided" in page
        assert "approved" in page
        assert f'hx-get="{path}"' in page
    assert "approved: a; undecided: b, c" in browser("ana").get("/").text
    assert "decisions of b, c, for" in browser("ana").get(f"/jobs/{job}").text
    coordinator.decide(job, b=True, c=True)
    failed = coordinator.ended(job)
    assert failed.state == "failed"
    page = browser("ana").get(f"/jobs/{job}").text
    assert "the policy has changed" in page
    assert coordinator.job(job).reason.split(";")[0] in page
    assert "Only silos, analyst and readers know what they mean" in page
    assert "hx-get" not in page, "nothing changes any more"
    for path in ("/", f"/jobs/{job}"):
        assert MEANING["failed"] in browser("ana").get(path).text


def test_the_page_of_a_running_job_shows_its_progress(
    coordinator: Coordinator, browser: Browser
) -> None:
    coordinator.streams.dies = lambda number: number == 0
    job = coordinator.submit()
    coordinator.decide(job, a=True, b=True, c=True)
    assert coordinator.streams.dying.wait(60)
    for done in (0, 1):
        coordinator.store.progress(job, done, ("a", "b", "c"))
        shown = f'Rounds done: {done} of 2 <progress value="{done}" max="2">'
        assert shown in browser("op").get(f"/jobs/{job}").text
        assert f"<td>running, {done} of 2 rounds</td>" in browser("op").get("/").text


def test_a_silo_is_connected_since_its_stream_opened(
    coordinator: Coordinator, browser: Browser
) -> None:
    with browser("a").websocket_connect("/v1/stream", subprotocols=["cloister.1"]):
        pass
    until = f"{CALLERS['a'].not_after:%Y-%m-%d %H:%M:%SZ}"
    for up, word in (({"a"}, "since"), (set(), "no; last opened")):
        coordinator.streams.up = up
        row = rf"<td>a</td><td>{word} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\dZ</td><td>{until}</td>"
        assert re.search(row, browser("op").get("/").text)
    coordinator.jobs.shut_out("a", reason := "the certificate of 'a' was revoked; enrol again.")
    assert reason in unescape(browser("op").get("/").text)
