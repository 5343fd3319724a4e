"""The coordinator's pages in Chromium, sent by its application without a network in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from tests.service.test_app import CALLERS, IDENTITIES, identify
from tests.service.test_pages import BROWSER, Coordinator

from cloister.federation.service.app import make_app

from .conftest import Visit

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
    for job in (waiting, cancelled):
        visit.go(f"/jobs/{job}")
        assert job[:12] in visit.page.inner_text("h1")
        visit.check()
    context.close()
    coordinator.close()
