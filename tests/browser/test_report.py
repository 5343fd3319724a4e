"""The report of each task in Chromium: wide, on a tablet and on a phone, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden.faces import FixedNoise, write_tables
from tests.unit.shares.linking.test_report import asked, records

from cloister.app.job import run_job
from cloister.app.report.page import render_report
from cloister.core.numerals import plus_minus
from cloister.data import read_source
from cloister.data.schema import schema_of
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of

from .conftest import Visit

_CUT = """() => [...document.querySelectorAll(".scroll:not(.long)")]
  .filter(part => part.scrollHeight > part.clientHeight + 1).map(part => part.ariaLabel)"""
_TEXTS = "all => all.map(one => one.textContent)"
_WIDER = "document.documentElement.scrollWidth > innerWidth"


@pytest.mark.parametrize("name", TASKS)
def test_no_report_loses_a_row_or_leaves_its_page(browser: Any, tmp_path: Path, name: str) -> None:
    task, case = TASKS[name], example_of(TASKS[name])
    schema = schema_of(case.columns)
    records = {f.stem: read_source(f, schema) for f in write_tables(tmp_path, case.columns)}
    budget = {"epsilon": 2.0, "delta": 1e-6} if task.private else {"epsilon": None}
    options = dict(case.options)
    release = run_job(task, schema, records, nominal_n=600, noise=FixedNoise(), **budget, **options)
    context = browser.new_context()
    visit = Visit(context.new_page(), "about:blank")
    visit.watch()
    html = render_report(release, schema=schema)
    assert len(html) < 1_000_000
    visit.page.set_content(html)
    for width in (400, 800, 1280):
        visit.page.set_viewport_size({"width": width, "height": 800})
        assert visit.page.evaluate(_CUT) == [], width
        assert not visit.page.evaluate(_WIDER), width
    visit.check()
    context.close()


def test_the_report_of_linked_tables_fits_each_width(browser: Any, tmp_path: Path) -> None:
    """The answers of every analysis, from one run of all parties."""
    asked().run_here(records()).report(tmp_path / "linked.html")
    html = (tmp_path / "linked.html").read_text(encoding="utf-8")
    assert len(html) < 1_000_000
    context = browser.new_context()
    visit = Visit(context.new_page(), "about:blank")
    visit.watch()
    visit.page.set_content(html)
    for width in (400, 800, 1280):
        visit.page.set_viewport_size({"width": width, "height": 800})
        assert visit.page.evaluate(_CUT) == [], width
        assert not visit.page.evaluate(_WIDER), width
    visit.check()
    context.close()


def test_a_level_is_chosen_by_the_keyboard_and_seen_without_scripts(
    browser: Any, tmp_path: Path
) -> None:
    task, case = TASKS["naive-bayes"], example_of(TASKS["naive-bayes"])
    schema = schema_of(case.columns)
    records = {f.stem: read_source(f, schema) for f in write_tables(tmp_path, case.columns)}
    budget = {"epsilon": 2.0, "delta": 1e-6}
    release = run_job(task, schema, records, nominal_n=600, **budget, **dict(case.options))
    html = render_report(release, schema=schema)
    assert len(html) < 1_000_000
    still = browser.new_context(java_script_enabled=False)
    page = still.new_page()
    page.set_content(html)
    assert not page.is_visible("#level")
    first = page.eval_on_selector_all("td[data-normal]", _TEXTS)
    still.close()
    context = browser.new_context()
    visit = Visit(context.new_page(), "about:blank")
    visit.watch()
    page = visit.page
    page.set_content(html)
    assert page.eval_on_selector_all("td[data-normal]", _TEXTS) == first
    page.focus("#level input")
    page.keyboard.press("End")
    assert page.inner_text("#level output") == "99.9 %"
    pairs = zip(
        release.results["class_counts"], release.results["class_count_half_width"], strict=True
    )
    wide = [plus_minus(value, margin * 3.290527 / 1.96) for value, margin in pairs]
    assert page.eval_on_selector_all("td[data-normal]", _TEXTS) == wide
    visit.check()
    page.focus("#level input")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert page.eval_on_selector_all("td[data-normal]", _TEXTS) == first
    context.close()
