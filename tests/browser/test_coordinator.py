"""The coordinator's pages in Chromium: from its application, and over TLS with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.service.test_app import CALLERS, IDENTITIES, identify
from tests.service.test_pages import BROWSER, Coordinator
from tests.service.test_standing import Real, real

from cloister.federation.service.app import make_app

from .conftest import PHONE, Visit, playwright

__all__ = ["real"]  # a fixture

ORIGIN = "https://coordinator.example"


def test_the_coordinators_pages_hold_what_every_page_must(browser: Any, tmp_path: Path) -> None:
    coordinator = Coordinator(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path)
    app = make_app(coordinator.jobs, coordinator.streams, identify)
    client = TestClient(app, headers={**BROWSER, "x-certificate": "ana"})
    coordinator.store.seen("d", IDENTITIES["d"].fingerprint, CALLERS["d"].not_after)
    waiting, cancelled = coordinator.submit(by="ana"), coordinator.submit(by="ana")
    coordinator.jobs.cancel(cancelled, "ana")

    def answer(route: Any) -> None:
        sent = client.get(route.request.url.removeprefix(ORIGIN))
        route.fulfill(status=sent.status_code, headers=dict(sent.headers), body=sent.content)

    context = browser.new_context()
    visit = Visit(context.new_page(), ORIGIN)
    visit.watch()
    visit.page.route("**/*", answer)
    visit.go("/")
    visit.check("coordinator")
    visit.page.set_viewport_size(PHONE)
    heights = "[...document.querySelectorAll('.reasons tbody tr')].map(row => row.clientHeight)"
    assert max(visit.page.evaluate(heights)) < PHONE["height"] / 4
    for job in (waiting, cancelled):
        visit.go(f"/jobs/{job}")
        assert job[:12] in visit.page.inner_text("h1")
        visit.check()
    context.close()
    coordinator.close()


def test_a_certificate_of_the_federation_opens_the_pages_until_it_is_revoked(
    browser: Any, real: Real
) -> None:
    job, keys = real.propose(), real.keys("ana")
    own = {
        "origin": real.address,
        "certPath": keys.file("tls.pem"),
        "keyPath": keys.file("tls.key"),
    }
    # The driver takes no authority; that the server's name counts is tested with the pages.
    stranger = browser.new_context(ignore_https_errors=True)
    with pytest.raises(playwright.Error):
        stranger.new_page().goto(real.address)
    stranger.close()
    context = browser.new_context(client_certificates=[own], ignore_https_errors=True)
    visit = Visit(context.new_page(), real.address)
    visit.watch()
    visit.go("/")
    visit.check()
    visit.press_to(job[:12])
    visit.page.keyboard.press("Enter")
    visit.arrive(job[:12])
    visit.check()
    real.revoke("ana")
    assert visit.page.goto(real.address).status == 401
    assert job[:12] not in visit.page.inner_text("body")
    context.close()
