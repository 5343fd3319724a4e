"""How soon the console's first page is seen in Chromium, over loopback.

    python benchmarks/console.py [--repeats 10]

prints the median time to the first contentful paint of the desk's first page, of fresh tabs.
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
        context.new_page().goto(link)
        times = []
        for _ in range(repeats):
            page = context.new_page()
            page.goto(link.partition("/enter")[0])
            page.wait_for_timeout(300)
            times += page.evaluate(_PAINT)
            page.close()
        browser.close()
        console.terminate()
    print(f"first paint: median {statistics.median(times):.0f} ms of {len(times)} tabs")


if __name__ == "__main__":
    main()
