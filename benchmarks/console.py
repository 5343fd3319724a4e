"""How soon the console's first page is seen in Chromium, over loopback.

    python benchmarks/console.py [--repeats 10]

prints the time to the first contentful paint of the desk's first page, of fresh tabs, and the part
until the server's answer is there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from playwright.sync_api import sync_playwright

_PAINT = "performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)"

_ANSWER = "performance.getEntriesByType('navigation').map(entry => entry.responseEnd)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        command = [sys.executable, "-m", "cloister", "console", "--folder", folder]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert console.stdout is not None
        link = next(filter(None, (re.search(r"http\S+", line) for line in console.stdout)))[0]
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context()
        first = context.new_page()
        first.goto(link)
        address, times, answers = first.url, [], []
        for _ in range(repeats):
            page = context.new_page()
            page.goto(address)
            assert "Which files" in page.content()
            page.wait_for_timeout(300)
            times += page.evaluate(_PAINT)
            answers += page.evaluate(_ANSWER)
            page.close()
        browser.close()
        console.terminate()
    for name, found in (("first paint", times), ("of which the answer", answers)):
        least, middle = min(found), statistics.median(found)
        print(f"{name}: median {middle:.0f} ms, least {least:.0f} ms of {len(found)} tabs")


if __name__ == "__main__":
    main()
