"""The report: self-contained, accessible, escaped, and made from the numbers."""

from __future__ import annotations

import csv
import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from cloister import DPKMeans
from cloister.app.answer import answer_of
from cloister.app.job import run_job
from cloister.app.present import present
from cloister.app.question import facts_of
from cloister.app.release import Release
from cloister.app.report import plots
from cloister.app.report.notebook import release_axes
from cloister.app.report.page import _as_csv, render_markdown, render_report, write_report
from cloister.app.text import (
    BRACKETS_NOTE,
    UNCLEAR_NOTE,
    as_table,
    attacker_sentence,
    cell_text,
    legend_of,
    listed,
    privacy_statement,
    strength_sentence,
    who_saw_what,
)
from cloister.core.display import (
    Bars,
    Curve,
    Display,
    Estimate,
    Graph,
    Heatmap,
    Scatter,
    Table,
    around,
    bare,
)
from cloister.core.display import between as interval
from cloister.core.errors import PlanError
from cloister.core.html import clean
from cloister.core.numerals import between, number, plus_minus
from cloister.data import read_source
from cloister.data.schema import Column, Schema, schema_of
from cloister.privacy.budget import Budget
from cloister.privacy.events import NonPrivateEvent
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.tasks.interval_tables import bars_of
from cloister.testing import SimulatedNoise, ZeroNoise

VOID = {"meta", "br", "link", "img", "input"}
NASTY = (
    '<script>alert("1")</script>',
    '"><img src=x onerror=y>',
    "cost $x_1$ & more",
    "a]]>b\x1b",
    "{{ 7 * 191000000000 }}{% raw %}' onclick='z",
)


def schema(*names: str) -> Schema:
    columns = tuple(Column(name=name, type="number", min=-1.0, max=1.0) for name in names)
    return Schema(dataset="d", unit="row", columns=columns)


def job(
    n_clusters: int = 3,
    names: tuple[str, ...] = ("age", "bmi"),
    silos: tuple[str, ...] = ("north", "south"),
    task: str = "fastlloyd",
    epsilon: float | None = 1.0,
    **options: object,
) -> Release:
    rng = np.random.default_rng(0)
    contract = schema(*names)
    records = {name: read_source(rng.uniform(-1, 1, (60, len(names))), contract) for name in silos}
    return run_job(
        TASKS[task],
        contract,
        records,
        epsilon=epsilon,
        nominal_n=1000,
        n_clusters=n_clusters,
        **options,  # type: ignore[arg-type]
    )


class Page(HTMLParser):
    """Collects the tags of a page and checks that they are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def result() -> Release:
    return job()


@pytest.fixture(scope="module")
def html(result: Release) -> str:
    return render_report(result, budget_lines=[("lifetime cap", "epsilon 10")])


def test_report_fetches_nothing(html: str) -> None:
    page = Page(html)
    assert not {"link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attrs in page.tags:
        links = ("#", "data:text/csv", "data:text/markdown")
        inside = links if tag == "a" else ("#", "data:image/png")
        for name, value in attrs.items():
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert (value or "").startswith(inside)
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_one_script_runs_and_the_policy_forbids_all_others(html: str) -> None:
    page = Page(html)
    assert page.all("script") == [{}]
    _, _, script = html.partition("<script>")
    digest = b64encode(sha256(script.partition("</script>")[0].encode()).digest()).decode()
    policy = page.all("meta")[2]["content"] or ""
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src")
    # A policy holds for what follows it.
    assert html.index("Content-Security-Policy") < min(html.index("<style"), html.index("<title"))
    for gate in ("fetch", "XMLHttpRequest", "import", "innerHTML", "eval", "localStorage"):
        assert gate not in script


def test_ids_are_unique_and_every_reference_has_its_target(html: str) -> None:
    page = Page(html)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = {attrs["aria-labelledby"] for _, attrs in page.tags if "aria-labelledby" in attrs}
    wanted |= set(re.findall(r"url\(#([^)]*)\)", html))
    wanted |= set(re.findall(r'href="#([^"]*)"', html))
    wanted |= {attrs["xlink:href"][1:] for attrs in page.all("use") if attrs["xlink:href"]}
    assert wanted <= set(ids)


def test_pictures_have_words_tables_have_captions_and_headings_go_down_in_steps(html: str) -> None:
    page = Page(html)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("svg")) == 3
    for picture in page.all("svg"):
        assert picture["role"] == "img"
        assert len(picture["aria-label"] or "") > 20
    assert len(page.all("table")) == len(page.all("caption"))
    assert all("scope" in attrs for attrs in page.all("th"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_without_matplotlib_tables_stand_for_pictures(
    result: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "can_draw", lambda: False)
    html = render_report(result)
    assert not Page(html).all("svg")
    assert "cloister[pictures]" in html
    shown = present(result)
    for display in shown.everything:
        # Numbers that a picture would show, and its note, are not lost.
        for row in as_table(display).rows:
            assert all(cell_text(cell) in unescape(html) for cell in row)
    assert not answer_of(shown).picture
    with pytest.raises(PlanError, match="cloister"):
        release_axes(shown.displays)


def test_each_table_is_saved_whole_for_a_spreadsheet(result: Release, html: str) -> None:
    files = [attrs["href"] or "" for attrs in Page(html).all("a") if "download" in attrs]
    files = [file for file in files if file.startswith("data:text/csv")]
    titles = re.findall(r'<h[23] id="(?:picture|result-\d+)">(.*?)</h[23]>', html)
    links = dict(zip(titles, files, strict=True))
    for display in present(result).everything:
        link = links[display.title]
        saved = list(csv.reader(StringIO(unquote(link.partition(",")[2]))))
        table = as_table(display)
        assert saved[0] == list(table.headings)
        assert saved[1:] == [[cell_text(cell) for cell in row] for row in table.rows]


def test_no_cell_is_a_formula_in_a_spreadsheet() -> None:
    cells = ("=1+1", "+1", "@SUM(A1)", "-A1", "-0.5 [-1, 0]", "plain")
    link = _as_csv(Table("words", tuple("abcdef"), (cells,)))
    _, saved = csv.reader(StringIO(unquote(link.partition(",")[2])))
    assert saved == ["'=1+1", "'+1", "'@SUM(A1)", "'-A1", "-0.5 [-1, 0]", "plain"]


@pytest.mark.parametrize(("rows", "scrolls"), [(30, False), (31, True)])
def test_only_a_long_table_scrolls_and_says_so(result: Release, rows: int, scrolls: bool) -> None:
    table = Table("many", ("a", "b"), tuple(("name", i) for i in range(rows)))
    shown = replace(present(result), displays=(table,), course=(), numbers=())
    html = render_report(result, shown=shown)
    assert (f"{rows} rows; this table scrolls" in html) is scrolls
    assert ('class="scroll long"' in html) is scrolls


def test_statement_is_made_from_the_numbers(result: Release, html: str) -> None:
    assert "(epsilon 1, delta 1e-06)" in html
    assert attacker_sentence(result.spent, "row").replace("'", "&#39;") in html
    assert "The unit of privacy is one row, in one silo only." in html
    assert "2 silos: north, south." in html
    assert result.plan.digest.hex() in html
    assert result.plan.task.describe().replace("'", "&#39;") in html
    dearer = render_report(job(epsilon=3.0))
    assert "(epsilon 3, delta 1e-06)" in dearer
    assert "(epsilon 1, delta 1e-06)" not in dearer


def test_unit_of_a_person_is_named_with_its_limits() -> None:
    columns = (Column(name="age", type="number", min=-1.0, max=1.0),)
    contract = Schema(
        dataset="d", unit="patient", max_rows=3, max_silos_per_person=2, columns=columns
    )
    records = {"a": read_source(pd.DataFrame({"age": [0.1, 0.2], "patient": ["p", "q"]}), contract)}
    done = run_job(TASKS["count"], contract, records, epsilon=1.0, nominal_n=10)
    html = render_report(done)
    assert "all rows of one patient, at most 3 in a silo" in html
    assert "in at most 2 silos" in html


def test_a_bought_count_is_part_of_the_cost() -> None:
    rng = np.random.default_rng(0)
    records = {"a": read_source(rng.uniform(-1, 1, (50, 2)), schema("x", "y"))}
    done = run_job(TASKS["fastlloyd"], schema("x", "y"), records, epsilon=1.0, n_clusters=2)
    html = render_report(done)
    assert "(epsilon 1, delta 1e-06)" in html
    assert "noisy count of all records that was bought first" in html


@pytest.mark.parametrize("noise", [ZeroNoise(), SimulatedNoise(1)])
def test_test_doubles_are_flagged(noise: ZeroNoise | SimulatedNoise) -> None:
    html = render_report(job(noise=noise))
    assert '<p class="alert">NOT PRIVATE: noise from: ' in html
    assert html.count("<b>no guarantee</b>") == 1
    assert "<b>ε" not in html
    assert "Not at all in this run" in html


def test_a_task_without_privacy_is_flagged() -> None:
    html = render_report(job(task="lloyd", epsilon=None))
    assert '<p class="alert">NOT PRIVATE: the task &#39;lloyd&#39;' in html
    assert "Nothing was charged" in html
    assert "no record, no exact count" not in html


def test_real_noise_is_not_flagged(html: str) -> None:
    assert 'class="alert"' not in html
    assert "operating system" in html


def test_laplace_is_named() -> None:
    html = render_report(job(task="sulloyd"))
    assert re.search(r"\d × Laplace noise of scale", html)


def test_names_from_outside_are_escaped_everywhere(tmp_path: Path) -> None:
    done = job(names=(*NASTY[:3], NASTY[4]), silos=(*NASTY[:2], NASTY[4]))
    done = replace(done, plan=replace(done.plan, study=NASTY[0]))
    path = tmp_path / "report.html"
    write_report(done, path, budget_lines=[(NASTY[0], NASTY[3]), (NASTY[4], NASTY[1])])
    html = path.read_text(encoding="utf-8")
    assert "cost $x_1$ &amp; more" in html
    check_harmless(html)


def check_harmless(html: str) -> None:
    page = Page(html)
    assert "img" not in {tag for tag, _ in page.tags}
    assert len(page.all("script")) == html.count("data-levels")  # that of a report alone
    assert not {name for _, attrs in page.tags for name in attrs if name.startswith("on")}
    assert "\x1b" not in html
    assert "1337000000000" not in html  # what it makes; so many digits are in no digest
    assert "{{ 7 * 191000000000 }}{% raw %}&#39; onclick=&#39;z" in html


def test_categories_cannot_inject_anything() -> None:
    categories = tuple(text for text in NASTY if text.isprintable())
    columns = (
        Column(name=NASTY[0], type="number", min=-1.0, max=1.0),
        Column(name=NASTY[4], type="category", categories=categories),
    )
    contract = Schema(dataset=NASTY[0], unit="row", columns=columns)
    table = pd.DataFrame({NASTY[0]: 0.1, NASTY[4]: list(categories)})
    records = {"a": read_source(table, contract)}
    task = TASKS["naive-bayes"]
    done = run_job(task, contract, records, epsilon=9.0, nominal_n=9, target=NASTY[4])
    check_harmless(render_report(done))


def test_what_a_task_shows_cannot_inject_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    one, names = np.ones(len(NASTY)), NASTY
    nasty, axes = NASTY[4] + NASTY[0], (NASTY[4], NASTY[1])
    shown = (
        Table(nasty, names, (names,), note=nasty),
        Heatmap(nasty, bare(np.outer(one, one), labels=(names, names)), nasty),
        Bars(nasty, bare(one, labels=(names,), unit=nasty), nasty),
        Scatter(nasty, names, np.outer(one, one)[:, :2], axes=axes, note=nasty),
        Curve(nasty, one, bare(one, axes=axes[:1], unit=axes[1]), nasty),
        Graph(nasty, names, one, ((0, 1, 1.0, nasty),), note=nasty),
    )
    done = job()
    monkeypatch.setattr(type(done.plan.task), "displays", lambda *_: shown)
    monkeypatch.setattr(type(done.plan.task), "describe", lambda _: nasty)
    check_harmless(render_report(done))


def test_a_model_in_a_notebook_cannot_inject_anything() -> None:
    model = DPKMeans(3, epsilon=1.0, bounds=(-1, 1))
    model._keep(job(names=(*NASTY[:3], NASTY[4])))
    check_harmless(model._repr_mimebundle_()["text/html"])


def test_budget_lines_or_their_absence_are_shown(result: Release, html: str) -> None:
    assert "lifetime cap" in html
    assert "This report shows no ledger" not in html
    # The model of a job does not tell whether a ledger was charged.
    assert "one that was given to the job was charged this cost" in render_report(result)
    federated = render_report(result, in_process=False)
    assert "This report shows no ledger" not in federated
    assert "Each silo charged this job in its own ledger" in federated


def test_who_saw_what_follows_the_profile_and_the_place(result: Release) -> None:
    parties, remarks = who_saw_what(result.plan, in_process=True)
    assert parties.rows[1][0] == "The aggregator"
    assert any("one process on one machine" in remark for remark in remarks)
    _, remarks = who_saw_what(result.plan, in_process=False)
    assert any("Do not give this report to the operator" in remark for remark in remarks)
    three = job(silos=("a", "b", "c")).plan
    pairwise = replace(three, profile="pairwise", collusion=1, min_silos=3)
    parties, _ = who_saw_what(pairwise, in_process=False)
    assert "noisy sum" not in parties.rows[1][1]
    assert parties.rows[1][2] == "records, sums, results"
    alone = job(silos=("only",))
    parties, _ = who_saw_what(alone.plan, in_process=True)
    assert len(parties.rows) == 2
    assert "Nothing was sent to anybody." in render_report(alone)


@pytest.mark.parametrize(("n_clusters", "n_features"), [(1, 1), (1, 100), (100, 1), (60, 60)])
def test_any_shape_gives_a_page_of_bounded_pictures(n_clusters: int, n_features: int) -> None:
    names = tuple(f"column {j}" for j in range(n_features))
    html = render_report(job(n_clusters, names, epsilon=50.0))
    Page(html)
    for width, height in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', html):
        assert float(width) < 26 * 72
        assert float(height) < 26 * 72
    assert len(html) < 3_000_000
    assert f"column {n_features - 1}" in html


def test_every_display_has_its_numbers_as_a_table() -> None:
    values, labels = np.array([[1.0, 2.0]]), (("r",), ("a", "b"))
    heat = as_table(Heatmap("t", around(values, np.array([[0.5, 0.0]]), labels=labels)))
    assert heat.headings == ("", "a", "b")
    assert heat.rows == (("r", "1.00 ± 0.50", "2"),)
    bars = as_table(Bars("t", bare(np.array([3.0, -4.25]), labels=(("r", "s"),))))
    assert bars.rows == (("r", "3"), ("s", "-4.25"))
    three, ends = np.array([1.0, np.nan, 2.0]), (np.array([0.9, 0, 1]), np.array([1.6, 1, np.inf]))
    found = Estimate(three, *ends, labels=(("r", "s", "u"),))
    bars = as_table(Bars("t", found, absent="<5"))
    assert bars.rows == (("r", "1.00 [0.90, 1.60]"), ("s", "<5"), ("u", "2 [1, no upper bound]"))
    low, high = np.array([[0.9, -3.0]]), np.array([[1.6, 1.0]])
    heat = as_table(Heatmap("t", Estimate(values, low, high, labels=labels)))
    assert heat.rows == (("r", "1.00 [0.90, 1.60]", "2.0 [-3.0, 1.0]"),)
    line = Estimate(values[0], low[0], high[0], axes=("k",), unit="y")
    curve = as_table(Curve("t", np.array([2.0, 3.0]), line, chosen=3.0))
    assert curve.headings == ("k", "y")
    assert curve.rows == (("2", "1.00 [0.90, 1.60]"), ("3 (chosen)", "2.0 [-3.0, 1.0]"))
    dots = as_table(Scatter("t", ("r",), values, sizes=np.array([9.0]), axes=("x", "")))
    assert dots.headings == ("", "x", "y", "size")
    assert dots.rows == (("r", 1.0, 2.0, 9.0),)


PLACES, TALL = np.array([2.0, 3.0]), np.eye(2)[:, :1]


@pytest.mark.parametrize(
    "display",
    [
        Heatmap("t", bare(np.array([[np.nan, 1e300]]), labels=(("r",), ("a", "b")))),
        Heatmap("t", around(np.zeros((2, 1)), 0.0, labels=(("r", "s"), ("a",)))),
        Heatmap("t", Estimate(TALL, -np.ones((2, 1)), TALL, labels=(("r", "s"), ("a",)))),
        Curve("t", PLACES, Estimate(np.zeros(2), np.array([-1.0, np.nan]), np.ones(2)), chosen=3.0),
        Bars("t", around(np.array([-5.0]), np.inf, labels=(("r",),))),
        Bars("t", bare(np.array([0.0]), labels=(("r",),))),
        Bars(
            "t",
            Estimate(
                np.array([np.nan, 2.0]),
                np.zeros(2),
                np.array([1, np.inf]),
                labels=(("r", "s"),),
            ),
        ),
        Scatter("t", ("r",), np.zeros((1, 2))),
        Graph("t", (), np.zeros(0), ()),
        Graph("t", ("r",), np.zeros(1), ((0, 0, 1.0, ""),)),
        Graph("t", ("a$b", "s", "alone"), np.ones(3), ((0, 1, np.inf, "$"), (1, 0, 1.0, "1 %"))),
    ],
)
def test_odd_values_are_still_drawn(display: Display) -> None:
    assert not isinstance(display, Table)
    assert plots.draw(display, "p").startswith("<svg")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (123.456, "123.5"),
        (1234567.0, "1,234,567"),
        (0.00123456, "0.001235"),
        (1e-9, "1e-09"),
        (1e12, "1e+12"),
        (-0.5, "-0.5"),
        (float("inf"), "∞"),
        (float("nan"), "not known"),
    ],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (141.234, 29.9, "141 ± 30"),
        (52.91, 4.26, "52.9 ± 4.3"),
        (0.12345, 0.0431, "0.123 ± 0.043"),
        (-0.001, 4.0, "0.0 ± 4.0"),
        (5.0, 0.0, "5"),
        (1e9, 12.0, "1e+09 ± 12"),
        (1.0, float("nan"), "1"),
    ],
)
def test_values_are_rounded_to_two_digits_of_their_noise(
    value: float, spread: float, text: str
) -> None:
    assert plus_minus(value, spread) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (52.91, 50.1, 60.2, "52.9 [50.1, 60.2]"),
        (0.12345, 0.2, 0.9, "0.12 [0.20, 0.90]"),  # a centre that was shrunk
        (-0.001, -5.0, 3.0, "0.0 [-5.0, 3.0]"),
        (5.0, 5.0, 5.0, "5"),
        (1e9, -12.0, 12.0, "1e+09 [-12, 12]"),
        (1.0, float("nan"), 2.0, "1"),
    ],
)
def test_both_ends_are_rounded_like_the_value(
    value: float, low: float, high: float, text: str
) -> None:
    assert between(value, low, high) == text


def test_an_interval_is_drawn_as_it_is_not_around_its_value() -> None:
    values = np.array([[0.0], [1.0]])
    labels = (("r", "s"), ("a",))
    drawn = Heatmap("t", Estimate(values, values - 0.1, values + 0.3, labels=labels))
    centred = Heatmap("t", around(values, 0.2, labels=labels))
    assert plots.has_intervals(drawn)
    for exact in (Estimate(values, values, values, labels=labels), bare(values, labels=labels)):
        assert not plots.has_intervals(Heatmap("t", exact))

    def lines(display: Heatmap) -> set[float]:
        """Lengths of the thick lines, in points."""
        svg = plots.draw(display, "p")
        paths = re.findall(
            r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) \2 ?\n?"[^>]*stroke-width: 1.6', svg
        )
        return {round(float(a), 1) for a, _, _ in paths}

    assert lines(drawn)
    assert lines(drawn) != lines(centred)


@pytest.mark.parametrize(
    ("unit", "who"),
    [
        ("row", "whether one row was used"),
        ("patient", "whether the rows of one patient were used"),
        ("silo", "whether one silo's records were used"),
    ],
)
def test_the_sentence_on_odds_names_the_unit_of_privacy_and_nobody_else(
    unit: str, who: str
) -> None:
    said = attacker_sentence(Budget(1.0, 1e-6), unit)
    assert who in said
    assert "person" not in said


def test_odds_are_rounded_against_us_and_said_in_hundreds() -> None:
    one = attacker_sentence(Budget(1.0, 1e-6), "row")
    assert "at most 74 times in 100" in one  # (e + delta) / (e + 1)
    assert "hardly anything is protected" in attacker_sentence(Budget(8.0, 1e-6), "row")
    assert "hardly anything is protected" in attacker_sentence(NonPrivateEvent(), "row")


def test_strength_says_factor_epsilon_and_delta() -> None:
    sentence = strength_sentence(1.0, 1e-6, "patient")
    assert "at most 2.72 times as likely" in sentence
    assert "as likely if the rows of one patient were used as if not" in sentence
    assert "and the other way round" in sentence
    assert "(epsilon 1, delta 1e-06), apart from a probability of at most 1e-06" in sentence
    assert "apart from" not in strength_sentence(1.0, 0.0, "row")
    assert "e^50" in strength_sentence(50.0, 0.0, "row")


def test_unprintable_characters_cannot_steer_a_terminal() -> None:
    assert clean("a\x1b[31mb\x07") == "a�[31mb�"


def test_the_names_of_a_catalogue_do_not_fill_the_screen() -> None:
    names = [f"x{i}" for i in range(10_000)]
    assert listed(names[:30]) == ", ".join(names[:30])
    assert listed(names).endswith("x29 and 9,970 more")
    assert listed(()) == ""


def test_three_lines_come_before_any_table(result: Release, html: str) -> None:
    summary = present(result)
    assert summary.title == "Three groups of records"
    assert re.fullmatch(
        r"Three groups of records, (of about .*|not determined)\.", summary.result
    )  # the noise is fresh
    assert "Epsilon 1 at delta 1e-06." in summary.cost
    assert re.search(r"[Cc]lusters? .*determined", summary.reliability)  # the noise is fresh
    begun = html.index("<table")
    for _, sentence in summary.lines:
        assert html.index(sentence.replace("'", "&#39;")) < begun
    assert html.index("<h2") < html.index('id="privacy-in-plain-words"')


@pytest.mark.parametrize(
    ("unit", "name"), [("patient", "patients"), ("person", "people"), ("customer_id", "customers")]
)
def test_records_are_called_what_the_schema_calls_a_row(unit: str, name: str) -> None:
    contract = schema("age", "bmi").model_copy(update={"unit": unit, "max_rows": 1})
    table = pd.DataFrame({unit: range(60), "age": 0.1, "bmi": 0.2})
    answer = run_job(
        TASKS["fastlloyd"],
        contract,
        {"north": read_source(table, contract)},
        epsilon=1.0,
        nominal_n=1000,
        n_clusters=2,
    )
    assert present(answer).title == f"Two groups of {name}"


def test_a_number_that_noise_could_have_made_has_a_question_mark() -> None:
    rows = (("a", around(1.0, 2.0)), ("b", around(3.0, 2.0)), ("c", interval(1.0, 0.5, 2.0)))
    noise = interval(5.0, 4.0, 6.0, distinct=False)
    shown = as_table(Table("T", ("", "value"), (*rows, ("d", noise))))
    texts = [cell_text(row[1]) for row in shown.rows]
    assert [text.endswith(" ?") for text in texts] == [True, False, False, True]


def test_one_sentence_says_what_every_interval_covers() -> None:
    wide = interval(1.0, 0.9, 1.1, population=(0.5, 1.5))
    tables = [as_table(Table("T", ("", "value"), (("a", wide), ("b", around(1.0, 2.0)))))]
    assert legend_of(tables) == f"{BRACKETS_NOTE} {UNCLEAR_NOTE}"
    assert legend_of([Table("T", ("", "value"), (("a", 1.0), ("b", "c")))]) == ""
    for value, said in (("not known", "T, not known: few records."), (1.0, "")):
        table = Table("T", ("", "value"), (("a", value),), "Exact. not known: few records.")
        assert legend_of([table]) == said
    (covered,) = (answer for question, answer in privacy_statement(job()) if "covered" in question)
    assert covered.startswith(BRACKETS_NOTE)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: job(noise=SimulatedNoise(0)),
        lambda: job(task="lloyd", epsilon=None),
    ],
)
def test_no_line_promises_what_the_run_does_not_keep(answer: Callable[[], Release]) -> None:
    summary = present(answer())
    assert summary.cost == "This result has no privacy guarantee: it is NOT PRIVATE."


def test_a_centre_at_zero_is_known_and_one_of_noise_is_not() -> None:
    """0 means nothing to a centre: the size of its cluster says whether it is there."""
    at_zero, of_noise = (interval(0.0, -0.1, 0.1, distinct=known) for known in (True, False))
    assert (at_zero.is_distinct, of_noise.is_distinct) == (True, False)
    assert not interval(0.0, -0.1, 0.1).is_distinct


@pytest.mark.parametrize(("name", "says"), [("fedavg", "A model that predicts"), ("count", "All")])
def test_found_names_the_model_or_the_number(name: str, says: str) -> None:
    case = example_of(TASKS[name], n_features=3, n_clusters=2)
    contract = schema_of(case.columns)
    table = np.random.default_rng(0).uniform(
        [c.low for c in case.columns], [c.high for c in case.columns], (50, len(case.columns))
    )
    answer = run_job(
        TASKS[name],
        contract,
        {"north": read_source(pd.DataFrame(table, columns=contract.names), contract)},
        epsilon=1.0,
        nominal_n=50,
        max_loss=1.0,  # few of these numbers are categories
        **case.options,
    )
    assert present(answer).result.startswith(says)


def test_the_question_is_that_of_the_approvers_or_says_that_it_is_not(result: Release) -> None:
    contract = schema("age", "bmi")
    html = unescape(render_report(result, schema=contract))
    for name, value in facts_of(result.plan, contract):
        assert f'<th scope="row">{name}</th><td>{value}</td>' in html
    assert "number -1.0 to 1.0" in html
    assert f"<code>{result.plan.question}</code>" in html
    # Another schema, or none, does not give the text that was approved.
    for other in (None, schema("age", "bmi", "more")):
        html = unescape(render_report(result, schema=other))
        assert "The question, with columns by their names only" in html
        assert '<th scope="row">column</th><td>bmi</td>' in html
        assert f"<code>{result.plan.question}" not in html


def test_a_report_tells_whether_its_release_was_verified(result: Release) -> None:
    assert "Nobody signed this release: all parties ran in one process." in render_report(result)
    apart = render_report(result, in_process=False)
    assert "No signature was looked at for this page" in apart
    assert '<a href="#provenance">not verified</a>' in apart
    signed = render_report(result, verification=("verified", "2 of 2 silos signed: a, b."))
    assert "<strong>Verified.</strong> 2 of 2 silos signed: a, b." in signed
    assert "not verified" not in signed
    refuted = render_report(result, verification=("refuted", "'results' does not follow."))
    assert '<p class="alert">REFUTED: &#39;results&#39; does not follow.' in refuted


@pytest.mark.parametrize("ending", [".docx", ".PDF"])
def test_a_report_of_another_format_is_refused(
    result: Release, ending: str, tmp_path: Path
) -> None:
    """HTML in a file of that name opens in no program."""
    with pytest.raises(PlanError, match=r"pandoc report\.md -o report\.docx"):
        write_report(result, tmp_path / f"report{ending}")
    assert not list(tmp_path.iterdir())


def test_the_text_is_inside_as_markdown(result: Release, html: str, tmp_path: Path) -> None:
    lines = [("lifetime cap", "epsilon 10")]
    links = [attrs["href"] or "" for attrs in Page(html).all("a") if "download" in attrs]
    inside = unquote(next(x for x in links if x.startswith("data:text/markdown")).partition(",")[2])
    write_report(result, tmp_path / "report.md", budget_lines=lines)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text == inside
    assert text.startswith("# Three groups of records\n\nfastlloyd over 2 silos")
    assert "## What was asked\n" in text
    assert "| lifetime cap | epsilon 10 |" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) > 6
    for rows in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert set(tables[0][1]) == {"|", "-"}


def test_no_name_is_a_mark_of_markdown() -> None:
    names = ("a|b", "*bold* _i_", "[x](http://e.vil)", "<b>", "`c`", "# h", "1. one", "- x", "$y$")
    shown = replace(
        present(job()), displays=(Table("T", ("",) * 9, (names,)),), remarks=names, course=()
    )
    text = render_markdown(job(), shown=shown)
    said = [
        r"a\|b",
        r"\*bold\* \_i\_",
        r"[x]\(http://e.vil)",
        r"\<b>",
        r"\`c\`",
        "# h",
        "1. one",
        "- x",
        r"\$y\$",
    ]
    assert f"| {' | '.join(said)} |" in text
    for line in (r"\# h", r"1\. one", r"\- x"):
        assert f"\n\n{line}\n\n" in text


def test_a_table_in_place_of_a_picture_has_no_note_of_lines() -> None:
    one = interval(1.6, 1.55, 1.7, population=(1.5, 1.8))
    bars = bars_of("Ratios", ("r",), [one], "For a year.")
    shown = replace(present(job()), displays=(bars,), course=())
    assert as_table(bars).note == f"{BRACKETS_NOTE} For a year."
    text = render_markdown(job(), shown=shown)
    assert f"### Ratios\n\n{as_table(bars).note}\n\n" in text
    assert "thick lines" not in text
    html = unescape(render_report(job(), shown=shown))
    assert "thin lines and numbers noise and sampling. For a year.</figcaption>" in html
    assert f'<p class="note">{as_table(bars).note}</p>' in html


def test_long_tables_follow_the_short_ones_in_markdown() -> None:
    long, short = (Table(f"T{n}", ("", "v"), (("x", 1.0),) * n) for n in (300, 3))
    text = render_markdown(job(), shown=replace(present(job()), displays=(long, short), course=()))
    assert text.index("### T3\n") < text.index("### T300\n")


def test_only_normal_intervals_follow_the_level() -> None:
    cells = {
        "normal": around(5.0, 1.5, normal=True),
        "symmetric": around(6.0, 1.5),
        "declared": replace(interval(7.0, 6.0, 8.0), normal=True),
        "tiny": around(8.0, 1e-9, normal=True),
        "exact": around(9.0, 0.0, normal=True),
    }
    table = Table("T", ("", "value"), tuple(cells.items()))
    gaussian, laplace = job(), job(task="sulloyd")
    shown = replace(present(gaussian), displays=(table,), course=(), numbers=())
    moved = [
        attrs["data-normal"]
        for _, attrs in Page(render_report(gaussian, shown=shown)).tags
        if "data-normal" in attrs
    ]
    assert moved == ["5.0 1.5"]
    assert "data-normal=" not in render_report(laplace, shown=shown)
    (levels,) = (a["data-levels"] or "" for a in Page(render_report(gaussian)).all("input"))
    times = dict(json.loads(levels))
    assert times["95 %"] == pytest.approx(1, rel=1e-4)
    assert times["99.9 %"] * 1.96 == pytest.approx(3.2905, rel=1e-4)
    assert times["50 %"] * 1.96 == pytest.approx(0.6745, rel=1e-4)
    assert list(times.values()) == sorted(times.values())


@pytest.mark.parametrize("values", [[-4.5, -3.2], [-0.3, 0.2], [0.02, 0.01], [3.0, 4.0]])
def test_numbers_of_bars_are_inside_the_picture(values: list[float]) -> None:
    found = around(np.array(values), 0.1, labels=(("r", "s"),))
    figure = plots.figure_of(Bars("t", found, points=True, marks=(-0.1, 0.1)))
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low <= -0.1 < 0.1 <= high
    figure.draw_without_rendering()
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in axes.texts)


@pytest.mark.parametrize(("low", "high"), [(0.6, 3.5), (0.98, 1.01), (1e-9, 1e12), (0.06, 80.0)])
def test_ratios_have_an_axis_of_logarithms_and_both_intervals(low: float, high: float) -> None:
    one = replace(interval(1.0, 0.99, 1.005, population=(low, high)), null=1.0)
    bars = bars_of("t", ("r", "s"), [one, "reference"])
    (axes,) = plots.figure_of(bars).axes
    places, texts = axes.get_xticks(), [tick.get_text() for tick in axes.get_xticklabels()]
    assert np.log([float(text) for text in texts]) == pytest.approx(places, abs=1e-4)
    assert "1" in texts
    assert len(texts) <= 7
    assert [text.get_text() for text in axes.texts][1] == "reference"
    noise, population = (line.get_segments() for line in axes.collections)
    assert (len(noise), len(population)) == (1, 1)
    (start, _), (end, _) = population[0]
    assert np.exp([start, end]) == pytest.approx([low, high])


def test_a_number_without_an_interval_of_noise_has_one_thin_line() -> None:
    cells = [interval(3.0, 2.0, 4.0, population=(1.5, 4.5))]
    cells.append(interval(2.5, np.nan, np.nan, population=(1.0, 4.0)))
    bars = replace(bars_of("t", ("a", "mean"), cells), points=True)
    noise, population = (line.get_segments() for line in plots.figure_of(bars).axes[0].collections)
    assert (len(noise), len(population)) == (1, 2)
    assert as_table(bars).rows[1] == ("mean", "2.5", "[1.0, 4.0]")
