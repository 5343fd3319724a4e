"""Renewed answers at a desk: opened from a question, released period by period, shown again."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import numpy as np
import pytest
from httpx import Response
from starlette.testclient import TestClient

from cloister.app.horizon import HorizonFolder
from cloister.console.desk import desk_app
from cloister.console.guard import Guard
from cloister.console.horizons import likely
from cloister.privacy.ledger import Ledger
from cloister.tasks import TASKS

HERE = "http://127.0.0.1:8765"
SILOS = ("north", "south")
SCHEMA = """dataset = "visits"
unit = "patient"
max_rows = 1

[[columns]]
name = "kind"
type = "category"
categories = ["burn", "cut", "fall"]
"""
ASKED = {
    **{"schema": "visits.toml", "of": "tabulate", "column": "0"},
    **{"nominal_n": "1600", "epsilon": "1", "cap_epsilon": "1", "periods": "2"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "clinic"
    made.mkdir()
    (made / "visits.toml").write_text(SCHEMA)
    for week in (1, 2):
        for silo in SILOS:
            kinds = np.random.default_rng([week, len(silo)]).choice(["burn", "cut", "fall"], 400)
            rows = "".join(f"{silo}{week}{i},{kind}\n" for i, kind in enumerate(kinds))
            (made / f"{silo}-{week}.csv").write_text(f"patient,kind\n{rows}")
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def desk(folder: Path, ledger: Path) -> TestClient:
    guard = Guard(desk_app(folder, ledger), 8765)
    client = TestClient(guard, base_url=HERE + guard.root, headers={"origin": HERE})
    assert client.get(guard.link).status_code == 200
    return client


def asked(**changed: str) -> str:
    files = [("file", f"{silo}-1.csv") for silo in SILOS]
    return urlencode([*files, *{**ASKED, **changed}.items()])


def token(desk: TestClient) -> str:
    page = desk.get(f"/question?{asked()}").text
    found = re.search('name="csrf" value="([0-9a-f]{64})"', page)
    assert found
    return found[1]


def press(desk: TestClient, query: str, **changed: str) -> Response:
    """Press the button of a page with a price."""
    form = {**parse_qs(query), "csrf": token(desk), **changed}
    return desk.post(f"/horizons?{query}&out=tabulate", data=form)


def release(desk: TestClient, week: int, **changed: str) -> str:
    files = {f"file-{i}": f"{silo}-{week}.csv" for i, silo in enumerate(SILOS)}
    form = {"csrf": token(desk), "period": str(week), **files, **changed}
    answer = desk.post("/horizons/tabulate/release", data=form)
    return " ".join(unescape(re.sub("<[^>]+>", " ", answer.text)).split())


def test_an_answer_is_opened_released_and_listed(
    desk: TestClient, folder: Path, ledger: Path
) -> None:
    page = desk.get(f"/question?{asked()}").text
    assert "Expected noise of a count" in page
    assert "for all 2 periods together" in page
    assert "Spend epsilon 1 on 2 periods" in page
    opened = press(desk, asked())
    assert "Nothing is released yet" in opened.text
    assert '<option value="north-1.csv" selected>' in opened.text  # the file of the question
    assert press(desk, asked()).status_code == 200  # a second press has no effect
    with_ledger = Ledger(ledger)
    assert len(with_ledger.jobs()) == 1
    with_ledger.dispose()
    said = release(desk, 1)
    assert "1 of 2 periods are released" in said
    assert "Release period 2" in said
    assert '.csv" selected' not in desk.get("/horizons/tabulate").text  # all were there before
    assert "A change is tested from period 8 on" in said
    assert "800" not in said  # no exact count
    said = release(desk, 2)
    assert "Period 2 alone" in said
    assert "north-2.csv" not in said  # nothing is left to release
    assert "Over time" in said
    assert "All periods are released" in said
    for part in ("running", "latest", "course"):
        assert desk.get(f"/horizons/tabulate/{part}.svg").text.startswith("<svg")
    assert "2 of 2" in desk.get("/").text
    assert "Reports of commands" not in desk.get("/").text
    assert "each period alone" in desk.get("/reports/tabulate").text


def noises(desk: TestClient, **changed: str) -> dict[str, float]:
    """Return the expected noise of each answer on the page with a price."""
    page = desk.get(f"/question?{asked(periods='12', **changed)}").text
    table = page[page.index("Expected noise of a count") :]
    cells = [unescape(cell) for cell in re.findall("<t[dh][^>]*>([^<]*)</t[dh]>", table)][2:]
    return {name: float(noise) for name, noise in zip(cells[::2], cells[1::2], strict=True)}


def test_the_price_page_follows_the_workload_and_the_share_that_is_kept(desk: TestClient) -> None:
    every, totals = noises(desk), noises(desk, workload="totals")
    assert totals["all periods so far"] < every["all periods so far"]
    assert totals["one period"] > every["one period"]
    assert noises(desk, keep="80 %") == noises(desk, keep="0,8") == noises(desk, keep="0.8")
    assert set(noises(desk, keep="0.8")) == {"sums that are kept", "all periods, by a job in each"}


def test_a_horizon_that_keeps_a_share_shows_one_answer(desk: TestClient) -> None:
    query = asked(keep="0.5")
    press(desk, query, keep="0.5")
    release(desk, 1)
    said = release(desk, 2)
    assert "Sums of which each period keeps 50 %" in said
    assert "Period 2 alone" not in said
    assert "All records so far" not in said
    assert "Over time" in said


def test_what_is_wrong_is_said_before_a_period_is_frozen(desk: TestClient, folder: Path) -> None:
    press(desk, asked())
    assert "each organisation needs its own file" in release(desk, 1, **{"file-1": "north-1.csv"})
    assert "there is no file" in release(desk, 1, **{"file-1": ""})
    assert "there is no file" in release(desk, 1, **{"file-1": "../ledger.db"})
    assert "names no period" in release(desk, 1, period="x")
    assert "period must be in [1, 1], got 2" in release(desk, 2)
    (folder / "south-1.csv").write_text("patient,kind\n" + "".join(f"{i},none\n" for i in range(9)))
    said = release(desk, 1)
    assert "9 of 9 rows" in said
    assert "Use the files as they are" in said
    assert "0 of 2 periods are released" in said
    (folder / "south-1.csv").write_text("patient,kind\n")  # nothing arrived
    assert "1 of 2 periods are released" in release(desk, 1)


def test_an_interrupted_release_is_shown_without_its_files(
    desk: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press(desk, asked())
    release(desk, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", _fails)  # after the draw, before the numbers are shown
        assert "cannot be used" in release(desk, 2)
    assert "was interrupted after the noise was drawn" in desk.get("/horizons/tabulate").text
    form = {"csrf": token(desk), "period": "2"}
    assert "2 of 2 periods" in desk.post("/horizons/tabulate/release", data=form).text
    assert len(HorizonFolder.load(folder / "tabulate", TASKS).released()) == 2


def _fails(*_: object) -> None:
    raise OSError("disk")


def test_a_question_without_a_horizon_is_refused_with_its_price(desk: TestClient) -> None:
    for changed, sentence in (
        ({"periods": "x"}, "the number of periods must be a whole number"),
        ({"max_periods": "3"}, "max_periods must be in [1, 2]"),
        ({"want": "5", "cap_epsilon": "9"}, "a wanted precision is that of one answer"),
        ({"of": "auto"}, "requires 1 column"),
        ({"keep": "x"}, "the share that is kept must be a number"),
        ({"keep": "80"}, "keep must be between 0 and 1"),
        ({"keep": "0.8", "workload": "totals"}, "workload must be 'all' with keep"),
        ({"workload": "some"}, "workload must be one of"),
    ):
        page = unescape(desk.get(f"/question?{asked(**changed)}").text)
        assert sentence in page
        assert "Spend epsilon" not in page
    # The price that was shown is that of two periods, and of all answers.
    for changed in ({"periods": "9"}, {"workload": "totals"}, {"keep": "0.8"}):
        assert "has changed since its price was shown" in press(desk, asked(), **changed).text
    assert desk.post(f"/horizons?{asked()}&out=..", data={"csrf": token(desk)}).status_code == 409


def test_damaged_folders_stop_no_page(desk: TestClient, folder: Path, ledger: Path) -> None:
    press(desk, asked())
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"format": "cloister-horizon/1"}')):
        (folder / name).mkdir()
        (folder / name / "horizon.json").write_text(text)
        assert desk.get(f"/horizons/{name}").status_code == 409
    assert "0 of 2" in desk.get("/").text
    assert "there is no horizon" in unescape(desk.get("/horizons/none").text)
    assert "has no picture" in desk.get("/horizons/tabulate/running.svg").text
    ledger.rename(ledger.with_suffix(".away"))
    page = unescape(desk.get("/horizons/tabulate").text)
    assert "is missing; restore it" in page
    assert "<h2>Release period" not in page


def test_the_likely_file_of_a_silo_is_its_last() -> None:
    names = ["north-9.csv", "north-10.csv", "south.csv"]
    assert likely("north", names) == likely("north-2026-01", names) == "north-10.csv"
    assert likely("east", names) == ""
    assert likely("north-9", names, first=True) == "north-9.csv"
    assert likely("north", names, first=True) == "north-10.csv"
