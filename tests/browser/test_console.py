"""The console in Chromium: for everybody to use, and nothing beyond its policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.silo.test_commands import Home, home, keys

from cloister.core.capability import QUESTIONS
from cloister.data.samples import write_patients
from cloister.federation.settings import SiloSettings, load_role
from cloister.federation.silo.site import Site
from cloister.protocol.lifecycle import SiloState

from .conftest import Visit

__all__ = ["home", "keys"]  # fixtures

Open = Callable[..., Visit]
COLUMNS = ("age", "bmi", "systolic")
VISITS = """dataset = "visits"
unit = "patient"
max_rows = 1

[[columns]]
name = "kind"
type = "category"
categories = ["burn", "cut", "fall", "poisoning"]
"""


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    write_patients(folder)
    return folder


def choose(desk: Visit) -> None:
    """Keep the files, which are chosen, and say what their columns mean."""
    desk.page.select_option("[name=meaning]", "patients.toml")
    desk.page.click("button:text('Next')")
    desk.arrive("What do the columns mean?")


def keep_what_is_lost(desk: Visit) -> None:
    """Go on from the columns: one in twelve rows of the sample lacks a measurement."""
    desk.page.click("button:text('Next')")
    desk.page.wait_for_selector("text=are left out")
    desk.page.click("button:text('Use the files as they are')")
    desk.arrive("What do you want to know?")


def hostile(route: Any) -> None:
    """Put scripts into a report, as markup in a name would if nothing escaped it."""
    answer = route.fetch()
    markup = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    text = answer.text().replace("</h1>", f"</h1>{markup}", 1)
    assert markup in text
    route.fulfill(response=answer, body=text)


def test_a_person_gets_from_files_to_a_report_at_a_desk(visit: Open, hospitals: Path) -> None:
    desk = visit("--folder", str(hospitals))
    page = desk.page
    desk.check("files")
    choose(desk)
    desk.check("columns")
    keep_what_is_lost(desk)
    desk.check()
    page.click("button:text('Which groups are there?')")
    page.wait_for_selector("text=Number of clusters")
    for label in page.locator("[aria-label='Columns to use'] label.choice").all():
        label.locator("input").set_checked(label.inner_text().strip() in COLUMNS)
    page.fill("[name=nominal_n]", "15000")
    page.fill("[name=cap_epsilon]", "10")
    page.wait_for_selector("button:text('Spend epsilon 1 and')")
    page.focus("[name=epsilon]")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("button:text('Spend epsilon 1.1 and')")  # nothing else was pressed
    desk.check("question")
    page.click("text=Show the form of the answer")
    desk.arrive("The form of the answer")
    desk.check()
    page.click("text=Back to the question")
    page.click("button:text('Spend epsilon 1.1 and')")
    desk.arrive("Here is the answer")  # the page renews itself
    desk.check("answer")
    assert "Three groups" in page.inner_text(".verdict")
    assert page.evaluate("document.querySelector('.picture img').naturalWidth > 0")
    page.click("text=Read the report")
    desk.arrive("Three groups of patients")
    assert page.title() == "Three groups of patients"
    desk.check()
    assert page.evaluate("origin") == "null"  # so that nothing of the console can be reached
    with page.expect_download() as saved:
        page.locator("a:text('Download as CSV')").first.click()
    assert saved.value.suggested_filename.endswith(".csv")
    assert page.evaluate("levels.length > 1")  # its own script has run
    page.route("**/reports/*", hostile)
    page.reload()
    assert page.evaluate("levels.length > 1 && window.ran === undefined")
    assert sum("script-src" in fault for fault in desk.faults) >= 2
    desk.faults.clear()
    desk.go("/columns?file=missing.csv")
    assert "there is no file" in page.inner_text("[role=alert]")
    desk.check()


def test_names_of_columns_stand_on_one_line(visit: Open, tmp_path: Path) -> None:
    (tmp_path / "lifts.csv").write_text("modernised,entrapment,inspected\nno,yes,2024-01-01\n")
    (tmp_path / "book.csv").write_text(
        "name,type,min,max\nmodernised,boolean,,\nentrapment,boolean,,\n"
        "inspected,date,2024-01-01,2025-12-31\n"
    )
    desk = visit("--folder", str(tmp_path))
    desk.page.set_viewport_size({"width": 1280, "height": 900})
    desk.go("/columns?file=lifts.csv&meaning=book.csv")
    lines = """names => names.map(name => {
        const text = document.createRange();
        text.selectNodeContents(name);
        return new Set([...text.getClientRects()].map(line => line.top)).size;
    })"""
    assert desk.page.eval_on_selector_all("tr.column th", lines) == [1, 1, 1]


def test_the_desk_works_without_scripts(visit: Open, hospitals: Path) -> None:
    desk = visit("--folder", str(hospitals), scripts=False)
    page = desk.page
    choose(desk)
    keep_what_is_lost(desk)
    page.click("button:text('Which groups are there?')")
    page.wait_for_selector("text=Number of clusters")
    page.fill("[name=nominal_n]", "15000")
    page.fill("[name=cap_epsilon]", "10")
    page.click("button:text('Show cost and precision'):visible >> nth=-1")
    page.wait_for_selector("text=Expected error of a centre")
    assert page.input_value("[name=nominal_n]") == "15000"
    page.click("button:text('Spend')")
    page.wait_for_selector("h1:text-matches('At work|Here is the answer')")


CODES = (
    ("sex", "category", "", "", "f|m"),
    ("age", "integer", "18", "100", ""),
    ("bmi", "number", "10", "60", ""),
    ("treated", "boolean", "", "", ""),
    ("days", "integer", "0", "1000", ""),
    ("dead", "boolean", "", "", ""),
    ("risk_score", "number", "0", "1", ""),
    ("seen", "date", "2015-01-01", "2025-01-01", ""),
)


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    """Files of three organisations, each with other signs, words, dates and encodings."""
    folder = tmp_path / "dirty"
    folder.mkdir()
    rng = np.random.default_rng(3)
    names = [name for name, *_ in CODES]
    for file, sign, words, code, is_german in (
        ("north.csv", ";", ("N", "J"), "utf-8-sig", True),
        ("east.csv", "\t", ("nein", "ja"), "utf-16", True),
        ("south.csv", ",", ("no", "yes"), "latin-1", False),
    ):
        lines = [sign.join(names)]
        for _ in range(400):
            day = f"{rng.integers(1, 28):02d}"
            numbers = f"{rng.uniform(16, 40):.1f}", f"{rng.uniform():.3f}"
            bmi, score = (n.replace(".", ",") if is_german else n for n in numbers)
            cells = (
                *("fm"[rng.integers(2)], str(rng.integers(20, 90)), bmi, words[rng.integers(2)]),
                *(str(rng.integers(1, 1000)), words[rng.integers(2)], score),
                f"{day}.03.2019" if is_german else f"2019-03-{day}",
            )
            lines.append(sign.join(cells))
        (folder / file).write_text("\n".join(lines) + "\n", encoding=code)
    book = ["name,type,min,max,categories", *(",".join(row) for row in CODES)]
    (folder / "codebook.csv").write_text("\n".join(book))
    return folder


MOST_CLICKS = 12


def test_every_kind_of_report_is_at_most_twelve_clicks_from_dirty_files(
    visit: Open, dirty: Path
) -> None:
    desk = visit("--folder", str(dirty))
    page, clicks = desk.page, {}

    def click(what: str) -> None:
        clicks[name] = clicks.get(name, 0) + 1
        page.click(what)

    def enter(field: str, text: str) -> None:
        click(f"[name={field}]")
        page.fill(f"[name={field}]", text)

    for name, question in QUESTIONS.items():
        desk.go("/")
        click("[name=meaning]")
        page.select_option("[name=meaning]", "codebook.csv")
        click("button:text('Next')")
        desk.arrive("What do the columns mean?")
        click("#columns button:text('Next')")
        page.wait_for_selector("text=are left out")
        if len(clicks) == 1:
            desk.check("losses")
        click("button:text('Read each file in its own format')")
        desk.arrive("What do you want to know?")
        click(f"button[name=ask][value={name}]")
        page.wait_for_selector(f"[name=of][value={name}]", state="attached")
        # Two models of all columns are refused for few records, with the number that is enough.
        two = name in ("treatment-effect", "imputed-regression")
        enter("nominal_n", "90000" if two else "5000")
        if page.locator("[name=complete]").count():
            click("[name=complete] >> nth=0")
        if page.locator("[name=cap_epsilon]").count():
            enter("cap_epsilon", "50")
        click("button:text('Spend')")
        desk.arrive("Here is the answer")
        assert page.inner_text(".verdict"), question.title
        click("text=Read the report")
        page.wait_for_selector("main")
    assert clicks.keys() == QUESTIONS.keys()
    assert max(clicks.values()) <= MOST_CLICKS
    desk.go("/")
    assert page.locator("tbody tr").count() == len(QUESTIONS)
    desk.check("answers")


def test_missing_cells_are_completed_from_files_to_a_report(visit: Open, tmp_path: Path) -> None:
    folder = tmp_path / "clinic"
    folder.mkdir()
    rng = np.random.default_rng(4)
    for name in ("north", "south"):
        weight = rng.normal(75, 12, 8000)
        pressure = 90 + 0.5 * weight + rng.normal(0, 10, 8000)
        cells = np.where(pressure + rng.normal(0, 8, 8000) > 135, "", weight.round(1).astype(str))
        rows = "".join(f"{one},{other:.0f}\n" for one, other in zip(cells, pressure, strict=True))
        (folder / f"{name}.csv").write_text(f"weight,pressure\n{rows}")
    book = "name,type,min,max,categories\nweight,number,20,150,\npressure,number,50,220,\n"
    (folder / "codebook.csv").write_text(book)
    desk = visit("--folder", str(folder))
    page = desk.page
    page.select_option("[name=meaning]", "codebook.csv")
    page.click("button:text('Next')")
    desk.arrive("What do the columns mean?")
    page.click("#columns button:text('Next')")
    page.wait_for_selector("text=A question of the next page completes missing cells")
    page.click("button:text('Use the files as they are')")
    desk.arrive("What do you want to know?")
    page.click("button[name=ask][value=linear]")
    page.wait_for_selector("[name=of][value=linear]", state="attached")
    assert not page.locator("[name=complete]").count()
    page.click("button:text('What if cells are missing?')")
    page.wait_for_selector("legend:text('What if cells are missing?')")
    page.wait_for_load_state()  # of the script, too, which renews the columns
    page.select_option("[name=target]", "pressure")
    page.wait_for_selector("text=Complete missing cells of weight", state="attached")
    page.check("[name=column]")
    page.fill("[name=nominal_n]", "16000")
    page.fill("[name=cap_epsilon]", "4")
    page.fill("[name=epsilon]", "2")
    page.wait_for_selector("text=choose one or two columns whose missing cells")
    desk.check()
    page.focus("[name=complete]")
    page.keyboard.press("Space")
    page.wait_for_selector("button:text('Spend epsilon 2 and answer')")
    page.wait_for_selector("text=What is known before the run")
    curve = page.locator("figure img")
    curve.scroll_into_view_if_needed()
    assert curve.evaluate("image => image.decode().then(() => image.naturalWidth > 0)")
    desk.check()
    page.click("text=Show the form of the answer")
    desk.arrive("The form of the answer")
    desk.check()
    page.click("text=Back to the question")
    page.click("button:text('Spend epsilon 2 and answer')")
    desk.arrive("Here is the answer")
    desk.check()
    assert "weight" in page.inner_text(".verdict")
    page.click("text=Read the report")
    page.wait_for_selector("text=Missing information")
    desk.check()


def test_a_silo_decides_by_the_keyboard_alone(visit: Open, home: Home) -> None:
    first, second = home.plan(), home.plan(profile="group")
    for plan in (first, second):
        home.receive(plan)
    (home.folder / "audit.jsonl").write_text('{"event": "offered"}\n')
    spend(home, home.plan())
    silo = visit("--config", home.config)
    silo.check("silo")
    silo.press_to(second.run_id[:12])
    silo.page.keyboard.press("Enter")
    silo.arrive(second.run_id[:12])
    silo.check("job")
    silo.press_to("Read my file now")
    silo.page.keyboard.press("Enter")
    silo.page.wait_for_selector("text=rows used")
    silo.check()
    silo.press_to("Decline")
    silo.page.keyboard.press("Enter")
    silo.page.wait_for_selector("text=because")
    silo.go(f"/jobs/{first.run_id}")
    silo.press_to("Approve")
    silo.page.keyboard.press("Enter")
    silo.page.wait_for_selector("text=accepted")
    silo.check()
    assert home.store.state(first.run_id) == SiloState.ACCEPTED
    assert home.store.state(second.run_id) == SiloState.DECLINED
    silo.go("/audit")
    silo.check()
    silo.go("/")
    silo.page.click("summary")
    silo.check()
    assert silo.page.locator("details tbody tr").count() == 1


def spend(home: Home, plan: Any) -> None:
    """Reserve a job as the agent does, so that the budget has a history."""
    ledger = Site.of(load_role(home.config, SiloSettings)).ledger()
    dataset, study = ledger.datasets()[0], plan.study
    ledger.reserve(dataset=dataset, study=study, job=plan.run_id, events=plan.events())
    ledger.dispose()


def test_a_new_job_is_seen_without_loading_the_page_again(visit: Open, home: Home) -> None:
    silo = visit("--config", home.config)
    assert "No job is waiting" in silo.page.inner_text("main")
    job = home.receive(home.plan())
    silo.page.wait_for_selector(f"text={job[:12]}", timeout=60_000)
    assert not silo.faults


BROKEN = (
    '<img src="/icon.svg">',
    "<input name='nameless'>",
    '<p style="color: red">loud</p>',
    "<script>1</script>",
    '<img src="https://elsewhere.example/x.png" alt="elsewhere">',
    '<img src="/icon.svg" alt="wide" width="2000">',
    "<p><button>&nbsp;</button></p>",
)


def spoil(broken: str, route: Any) -> None:
    """Put something wrong at the end of a page."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace("</main>", f"{broken}</main>"))


def test_a_broken_page_is_noticed(visit: Open, home: Home) -> None:
    silo = visit("--config", home.config)
    for broken in BROKEN:
        silo.page.route("**/audit", partial(spoil, broken))
        silo.go("/audit")
        with pytest.raises(AssertionError):
            silo.check()
        silo.page.unroute_all()
        silo.faults.clear()
    silo.go("/audit")
    silo.check()  # without any of them


def test_an_answer_is_renewed_period_by_period(visit: Open, tmp_path: Path) -> None:
    folder = tmp_path / "clinic"
    folder.mkdir()
    (folder / "visits.toml").write_text(VISITS)
    kinds = ("burn", "cut", "fall", "poisoning")
    for week in (1, 2):
        for silo in ("north", "south"):
            drawn = np.random.default_rng([week, len(silo)]).choice(kinds, 900)
            rows = "".join(f"{silo}{week}{i},{kind}\n" for i, kind in enumerate(drawn))
            (folder / f"{silo}-{week}.csv").write_text(f"patient,kind\n{rows}")
    desk = visit("--folder", str(folder))
    page = desk.page
    for silo in ("north", "south"):
        page.uncheck(f"[value='{silo}-2.csv']")
    page.select_option("[name=meaning]", "visits.toml")
    page.click("button:text('Next')")
    desk.arrive("What do the columns mean?")
    page.click("button:text('Next')")
    desk.arrive("What do you want to know?")
    page.click("button:text('How many in each category?')")
    page.wait_for_selector("legend:text('How many in each category?')")
    page.fill("[name=nominal_n]", "8000")
    page.fill("[name=cap_epsilon]", "2")
    page.fill("[name=periods]", "4")
    page.wait_for_selector("button:text('Spend epsilon 1 on 4 periods')")
    page.fill("[name=keep]", "80 %")
    page.wait_for_selector("text=sums that are kept")
    desk.check()
    page.fill("[name=keep]", "")
    page.select_option("[name=workload]", "totals")
    page.wait_for_selector("text=all periods so far")
    desk.check("renewed-question")
    page.click("button:text('Spend epsilon 1 on 4 periods')")
    desk.arrive("Nothing is released yet")
    desk.check()
    for week in (1, 2):
        for i, silo in enumerate(("north", "south")):
            page.select_option(f"[name=file-{i}]", f"{silo}-{week}.csv")
        page.click(f"button:text('Release period {week}')")
        page.wait_for_selector(f"text={week} of 4 periods are released")
    assert page.locator(".picture img").count() == 3
    page.wait_for_load_state()  # with its pictures
    assert page.evaluate(
        "[...document.querySelectorAll('.picture img')].every(img => img.naturalWidth > 0)"
    )
    desk.check("renewed")
    page.click("text=Files and answers")
    page.wait_for_selector("text=2 of 4")
    desk.check()
