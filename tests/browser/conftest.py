"""A browser without a screen, consoles to look at, and what every page must hold.

With ``CLOISTER_SCREENSHOTS=docs/img`` in the environment the tests draw the manual's pictures.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")

_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_RUN = "import sys; from cloister.cli import main; sys.exit(main(sys.argv[1:]))"
WIDE, PHONE = {"width": 1000, "height": 700}, {"width": 400, "height": 800}
LOOKS = tuple(product((WIDE, PHONE), ("light", "dark")))


@dataclass
class Visit:
    """A browser's page, and all that went wrong on it."""

    page: Any
    origin: str
    root: str = ""  # of the console's pages
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Note what a page asks of elsewhere, and what its policy or a script complains of."""
        self.page.on("request", self._request)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda m: m.type in ("error", "warning") and self._complaint(m))

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.faults.append(f"a request to {request.url}")

    def _complaint(self, message: Any) -> None:
        left = message.text.startswith(("htmx:sendAbort", "htmx:afterRequest"))  # as it renewed
        if not left and "status of 409" not in message.text:  # a page that says what is wrong
            self.faults.append(message.text)

    def go(self, path: str) -> None:
        self.page.goto(self.origin + self.root + path)

    def arrive(self, heading: str) -> None:
        """Wait for a page after a press that leads to it: the one before is still there a while."""
        self.page.wait_for_selector(f"h1:has-text('{heading}')")

    def check(self, picture: str = "") -> None:
        """Hold a page to the rules of all pages, wide and on a phone, light and dark."""
        for size, scheme in LOOKS:
            self.page.set_viewport_size(size)
            self.page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(self.page)
            assert not found.violations_count, f"{size}, {scheme}: {found.generate_report()}"
            assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
            drawn = picture and (size, scheme) == LOOKS[0]
            if drawn and (folder := os.environ.get("CLOISTER_SCREENSHOTS")):
                self._draw(Path(folder) / f"console-{picture}.png")
        assert not self.faults

    def _draw(self, path: Path) -> None:
        shot = Image.open(io.BytesIO(self.page.screenshot(full_page=True)))
        shot.convert("RGB").quantize(48, dither=Image.Dither.NONE).save(path, optimize=True)

    def press_to(self, name: str) -> None:
        """Move to what is called so by the keyboard alone."""
        for _ in range(80):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.textContent").strip().startswith(name):
                return
        pytest.fail(f"the keyboard does not reach {name!r}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        required = os.environ.get("CLOISTER_REQUIRE_ORACLES", "0") not in {"", "0"}
        (pytest.fail if required else pytest.skip)("no Chromium or Chrome is on this machine")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=program, args=_FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def visit(
    browser: Any, nursery: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Visit]]:
    """Start a console and open the link that it prints."""
    monkeypatch.setenv("CLOISTER_LEDGER", str(tmp_path / "ledger.db"))
    with ExitStack() as stack:

        def opened(*arguments: str, scripts: bool = True) -> Visit:
            log = tmp_path / "console.log"
            with log.open("w") as stream:
                command = [sys.executable, "-c", _RUN, "console", *arguments]
                process = nursery(command, stdout=stream, stderr=stream)
            stack.callback(process.wait, 60)
            stack.callback(os.kill, process.pid, 15)
            due = time.monotonic() + 60
            while not (found := re.search(r"(http://\S+)/enter\?\S+", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < due
                time.sleep(0.05)
            context = browser.new_context(java_script_enabled=scripts)
            stack.callback(context.close)
            context.set_default_timeout(60_000)
            made = Visit(context.new_page(), found[1])
            made.watch()
            made.page.goto(found[0])
            made.root = made.page.url.removeprefix(found[1]).rstrip("/")
            return made

        yield opened
