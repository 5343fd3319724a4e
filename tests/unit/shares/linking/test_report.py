"""The report of linked answers: every analysis, its cost, and who saw what."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.shares.linking import (
    Column,
    Correlation,
    Found,
    KMeans,
    Linear,
    LinkedTable,
    Logistic,
    Means,
    Table,
)
from cloister.shares.linking.plan import precision
from cloister.shares.mpc.parties import Account

from .people import PARTS, frames, sides

ALL = (
    Means(number="z", by="group"),
    Table(of=("group", "shop")),
    Table(of=("group", "shop", "y")),
    Linear(of=("x", "group"), target="z"),
    Correlation(of=("x", "z", "y")),
    Logistic(of=("x", "z"), target="y", steps=2),
    KMeans(of=("x", "z"), n_clusters=3, iterations=1),
)


def asked(analyses: Any = ALL, **more: Any) -> LinkedTable:
    own = sides(310, 300)
    given = {"epsilon": 100.0, "keys_per_person": 1, **more}
    tables = {"crm": own[0], "cards": own[1]}
    return LinkedTable(key="national_id", parts=PARTS, sides=tables, analyses=analyses, **given)


def records() -> dict[str, Any]:
    return dict(zip(("crm", "cards"), frames(300, 290, 0.5), strict=True))


@pytest.fixture(scope="module")
def found() -> Found:
    return asked().run_here(records())


@pytest.fixture(scope="module")
def page(found: Found, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "linked.html"
    found.report(path)
    return path.read_text(encoding="utf-8")


def text_of(page: str) -> str:
    plain = re.sub(r"<[^>]+>", " ", page.partition("<body>")[2])
    return " ".join(html.unescape(plain).split())


def test_the_report_has_the_verdict_the_numbers_and_the_cost(page: str, found: Found) -> None:
    text = text_of(page)
    for words in (
        "Linked persons of crm and cards",
        f"The join has {found.size.text} persons of all tables.",
        "Means of z, group:",
        "If group, shop were independent, p is",
        "5 more answers follow.",
        "not the maximum of the likelihood",
        "unit of privacy person by national_id",
        "This run was not charged to a ledger",
        "Every person with at most 1 of these keys",
    ):
        assert words in text, words
    # Each analysis is named; those of counts have no effects.
    assert re.search(r"follow\. means of z, group: [^:]* linear of x, group, z: [^:]* differ", text)
    # Each pair once, and no column with itself.
    assert re.search(r"correlation of x, z, y: (All 3|\d of 3) estimates", text)
    for shown in found.displays():
        assert html.escape(shown.title) in page


def test_the_report_says_who_saw_what(page: str) -> None:
    text = text_of(page)
    for words in (
        "crm, owner of crm its own table",
        "desk-server-0, server random words",
        "desk-dealer, dealer public sizes",
        "desk-dealer together with desk-server-0 or with desk-server-1 could see all rows",
        "all parties were parts of one process on one machine",
    ):
        assert words in text, words


def test_each_table_is_a_csv_inside_the_file(page: str, found: Found) -> None:
    links = re.findall(r'href="data:text/csv;charset=utf-8,([^"]*)"', page)
    files = [unquote(link) for link in links]
    assert len(files) == len(found.displays())
    # The last of the table of three columns: two groups and a label in each row.
    assert any(file.startswith("group,shop,y,counts") and "c,t,true," in file for file in files)


def test_nothing_of_the_report_is_fetched(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)


def test_a_report_is_markdown_by_its_name(found: Found, tmp_path: Path) -> None:
    found.report(tmp_path / "linked.md")
    text = (tmp_path / "linked.md").read_text(encoding="utf-8")
    assert text.startswith("# Linked persons of crm and cards")
    assert "### Who saw what" in text


def test_a_charged_run_says_so_and_a_withheld_answer_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("people", cap=Budget(100.0, 1e-6), unit="national_id")
    few = asked(ALL[:1], least_matches=5000)
    few.run_here(records(), {"crm": Account(ledger, "people")}).report(tmp_path / "few.html")
    text = text_of((tmp_path / "few.html").read_text(encoding="utf-8"))
    assert "Each ledger that was given to this run was charged its cost once" in text
    assert "All answers are withheld, since fewer than 5000 were counted." in text
    assert "means of z, group: means" not in text


def test_answers_print_as_a_line_each_and_their_frame_has_the_remarks(found: Found) -> None:
    lines = repr(found).splitlines()
    assert lines[0] == f"Persons in the join: {found.size}."
    assert len(lines) == 1 + len(ALL) + len([*found.remarks()])
    assert "array" not in repr(found.answers)
    remarks = found.to_frame().attrs["remarks"]
    assert any(
        "not the maximum of the likelihood: do not read its coefficients as effects" in remark
        for remark in remarks
    )


def test_a_report_of_counts_alone_knows_their_intervals(tmp_path: Path) -> None:
    few = asked(ALL[1:2]).run_here(records())
    for name in ("counts.html", "counts.md"):
        few.report(tmp_path / name)
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "No number of this result has an interval" not in text
        assert "from 0 beyond sampling and noise" in text
        assert "is not in the join" in text


def test_means_are_not_compared_with_0(tmp_path: Path) -> None:
    asked(ALL[:1]).run_here(records()).report(tmp_path / "means.md")
    text = (tmp_path / "means.md").read_text(encoding="utf-8")
    assert "numbers are exact to a tenth of their value (95 %, with noise and sampling)" in text
    assert "from 0" not in text


def test_coefficients_without_intervals_have_no_verdict(tmp_path: Path) -> None:
    """That of the number of persons would be read as theirs."""
    asked(ALL[5:6]).run_here(records()).report(tmp_path / "one.md")
    text = (tmp_path / "one.md").read_text(encoding="utf-8")
    assert "2 coefficients without intervals" in text
    assert "that of the persons alone has an interval" in text
    assert "differs from 0" not in text


def test_an_odds_ratio_without_an_effect_is_1(tmp_path: Path) -> None:
    """The interval of independent categories holds 1, and never 0."""
    crm, cards = frames(300, 300, 1.0)
    crm["group"] = np.where(crm["id"] % 2 == 0, "a", "b")
    plain = Column(name="group", categories=("a", "b"))
    own = {"crm": replace(sides(310)[0], columns=(plain,)), "cards": sides(310, 310)[1]}
    two = (Table(of=("group", "y")),)
    table = LinkedTable(
        key="national_id", parts=PARTS, sides=own, analyses=two, epsilon=100.0, keys_per_person=1
    )
    run = table.run_here({"crm": crm, "cards": cards})
    assert not run.answers[0].estimates["odds_ratio"].is_distinct
    run.report(tmp_path / "odds.md")
    text = (tmp_path / "odds.md").read_text(encoding="utf-8")
    assert "1 of 1 estimates do not differ from 0, or 1 of a ratio, beyond sampling" in text


def test_numbers_that_are_not_known_say_what_makes_them_known(found: Found) -> None:
    linear = found.answers[3]
    one = linear.estimates["coefficients"]
    unknown = replace(one, values=np.full_like(one.values, np.nan))
    hidden = replace(linear, estimates={"coefficients": unknown})
    text = repr(Found(found.size, (hidden,)))
    assert "Linear of x, group, z: no coefficients are known at this noise. A larger" in text


def test_a_constant_is_no_effect(found: Found) -> None:
    (line,) = (line for line in repr(found).splitlines() if line.startswith("Linear of"))
    terms = len(found.answers[3].estimates["coefficients"].values) - 1
    assert f"of {terms} coefficients" in line


def test_answers_without_a_session_have_no_report(found: Found, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="without a session have no report"):
        Found(found.size, found.answers).report(tmp_path / "linked.html")


def test_tables_without_their_owners_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"tables must name their owners, such as \{'crm': \.\.\., "
    ):
        asked().run_here([*records().values()])  # type: ignore[arg-type]


def test_a_plan_tells_the_widths_that_are_released() -> None:
    found = asked((ALL[0], ALL[4]), epsilon=2.0).run_here(records())
    assert found.ran is not None
    of_means, of_correlation = [*precision(found.ran.session.program)][1:]
    sizes, means = (found.answers[0].estimates[name] for name in ("counts", "means"))
    width = float((sizes.high - sizes.values)[0])
    assert f"a count about +-{width:.0f}, " in of_means
    most = float(re.search(r"about \+-([\d,.]+)/n", of_means)[1].replace(",", ""))  # type: ignore[index]
    known = sizes.values > 3 * width  # else the end of an interval is that of the column
    assert known.any()
    # The interval allows for an unknown size, so it is a little wider than the noise at its centre.
    assert ((means.high - means.low)[known] / 2 < 1.5 * most / sizes.values[known]).all()
    assert "is not known" in of_correlation


def test_a_question_for_the_size_alone_withholds_nothing(tmp_path: Path) -> None:
    found = asked((), least_matches=300).run_here(records())
    assert found.answers == ()
    assert not found.withheld
    assert not [*found.remarks()]
    found.report(tmp_path / "size.md")
    assert "withheld" not in (tmp_path / "size.md").read_text(encoding="utf-8")
