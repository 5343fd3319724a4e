"""``cloister console`` at a desk: from files to a report, without a value of theirs on any page."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import tomllib
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import numpy as np
import pandas as pd
import pytest
from httpx import Response
from starlette.datastructures import ImmutableMultiDict, QueryParams
from starlette.testclient import TestClient

from cloister.app.answer import Answer
from cloister.app.files import schemas_of
from cloister.app.worker import ANSWER, events_in
from cloister.cli import _parser
from cloister.console.desk import _on_page, _rows_used, _together, desk_app, warm_up
from cloister.console.guard import Guard
from cloister.console.jobs import EVENTS, LOG, Run
from cloister.console.preview import preview_of
from cloister.console.questions import FormState
from cloister.core.capability import CAPABILITIES, COMMANDS, QUESTION_GROUPS, QUESTIONS
from cloister.data import check_file, read_rows
from cloister.data.remedies import Remedy
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.tasks import TASKS
from cloister.tasks.options import options_of

HERE = "http://127.0.0.1:8765"
SENTINEL = "37.625"  # the weight of every record
SAID = {
    **{"min-0": "18", "max-0": "100", "min-1": "10", "max-1": "200", "categories-2": "no | yes"},
    **{"unit": "row", "max_rows": "", "dataset": "ward"},
    **{"decimal": ".", "thousands": "", "encoding": "", "meaning": ""},
}
FILES = ("north.csv", "south.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ward"
    made.mkdir()
    ages = np.random.default_rng(1).integers(20, 90, 300)
    for name in FILES:
        lines = [f"{age},{SENTINEL},{'yes' if age > 50 else 'no'},no" for age in ages]
        (made / name).write_text("\n".join(["age,weight,smoker,asthma", *lines]))
    (tmp_path / "secret.csv").write_text("age\n1\n")
    return made


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger.db"
    monkeypatch.setenv("CLOISTER_LEDGER", str(path))
    return path


@pytest.fixture
def desk(folder: Path, ledger: Path) -> TestClient:
    return enter(folder, ledger)


def enter(folder: Path, ledger: Path) -> TestClient:
    guard = Guard(desk_app(folder, ledger), 8765)
    client = TestClient(guard, base_url=HERE + guard.root, headers={"origin": HERE})
    assert client.get(guard.link).status_code == 200
    return client


def token(desk: TestClient) -> str:
    page = desk.get(f"/columns?{urlencode([('file', name) for name in FILES])}").text
    found = re.search('name="csrf" value="([0-9a-f]{64})"', page)
    assert found
    return found[1]


def say(desk: TestClient, **said: str) -> tuple[str, str]:
    """Send the page of columns; return the path that follows and its text."""
    form = {**SAID, "file": list(FILES), "csrf": token(desk), **said}
    answer = desk.post("/columns", data=form)
    return f"{path_of(desk, answer)}?{answer.url.query.decode()}", unescape(answer.text)


def path_of(desk: TestClient, answer: Response) -> str:
    """Return the path of a page below the secret one."""
    return answer.url.path.removeprefix(desk.base_url.path.rstrip("/"))


def spend(desk: TestClient, shown: str, out: str = "auto", **changed: str) -> Response:
    """Press the button of a page with a question."""
    form = {**parse_qs(shown), "csrf": token(desk), **changed}
    return desk.post(f"/run?{shown}&out={out}", data=form)


def ask(desk: TestClient, **form: str) -> str:
    where, _ = say(desk)
    return unescape(desk.get(f"{where}&{urlencode(form)}").text)


def test_no_file_of_the_folder_stops_a_page(desk: TestClient, folder: Path) -> None:
    """A file that cannot be used is a sentence, or it is not shown."""
    deep = "[" * 100_000
    bad = {
        "deep.toml": f"a={deep}".encode(),
        "text.toml": b"\xff\xfe\x00",
        "odd.toml": b"columns = 3\n",
        "list.toml": b"columns = [3]\ndataset = [1]\nunit = {a = 1}\n",
        "codes.csv": b"name,type,min,max,categories\na,number,-1,1,\n",
        "codes2.csv": b"name,type,min,max\n\xff\xfe,x,y\n",
        "cells.csv": b"name,type\n" + b"a" * 200_000 + b",number\n",
        "empty.csv": b"",
        "nothing.csv": b"\n\n\n",
        "nul.csv": b"a,b\x00c\n1,2\n",
        "long.csv": b"x," * 200_000 + b"\n",
        "quote.csv": b'"a,b\n1,2\n',
        "latin.csv": "größe\n1\n".encode("latin-1"),
        "broken.parquet": b"PAR1nothing",
        "broken.xlsx": b"PK\x03\x04",
        "broken.json": deep.encode(),
        "repeat.csv": b"a,a\n1,2\n",
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    (folder / "gone.toml").symlink_to("nowhere")
    with suppress(OSError):
        (folder / os.fsdecode(b"name-\xff.csv")).write_bytes(b"a\n1\n")
    for path in (
        "/",
        *(f"/columns?{urlencode({'file': name})}" for name in (*bad, "pipe.csv", "loop.csv")),
        *(f"/columns?{urlencode({'file': 'north.csv', 'meaning': name})}" for name in bad),
        *(f"/question?{urlencode({'file': 'north.csv', 'schema': name})}" for name in bad),
        *(f"/columns?{urlencode({'file': 'north.csv', 'encoding': word})}" for word in ("x", "\0")),
    ):
        answer = desk.get(path)
        assert answer.status_code in (200, 409), (path, answer.text)
        assert "Unexpected" not in answer.text


def test_a_link_does_not_lead_out_of_the_folder(desk: TestClient, folder: Path) -> None:
    (folder / "link.csv").symlink_to(folder.parent / "secret.csv")
    (folder / "alias.csv").symlink_to("north.csv")
    (folder / "link.toml").symlink_to(folder.parent / "secret.csv")
    (folder / "etc").symlink_to(folder.parent)
    (folder.parent / "report.html").write_text("secret")
    (folder / "evil").mkdir()
    (folder / "evil" / "report.html").symlink_to(folder.parent / "secret.csv")
    start = desk.get("/").text
    assert "alias.csv" in start
    for name in ("link.csv", "link.toml", "evil", "etc"):
        assert name not in start
    for path in ("/columns?file=link.csv", "/reports/evil", "/reports/etc"):
        answer = desk.get(path)
        assert answer.status_code == 409
        assert "there is no" in answer.text


def problem(page: str) -> str:
    found = re.search(r'role="alert".*?>(.*?)</(div|p)>\n', page, re.S)
    assert found, page
    return found[1]


def test_a_person_gets_from_files_to_a_report(desk: TestClient, folder: Path, ledger: Path) -> None:
    start = desk.get("/").text
    assert all(f'value="{name}"' in start for name in FILES)
    where, page = say(desk)
    assert where.startswith("/question?")
    pages = [start, page]
    asked = f"{where.partition('?')[2]}&ask=auto&nominal_n=600&epsilon=3&cap_epsilon=3"
    priced = desk.get(f"/question?{asked}").text
    assert "Expected error of a centre" in priced
    assert "times in 100" in priced
    for _ in range(2):  # a button that is pressed twice starts one job
        assert path_of(desk, spend(desk, asked)) == "/runs/auto"
    assert spend(desk, asked.replace("epsilon=3", "epsilon=2")).status_code == 409
    end = time.monotonic() + 120
    desk = enter(folder, ledger)  # a console that is started again finds the job
    while "Read the report" not in (page := desk.get("/runs/auto").text):
        assert "At work" in page
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "cloister run north.csv south.csv --schema ward.toml --columns" in unescape(page)
    assert 'class="verdict"' in page
    assert re.search(r'<img src="\S+/runs/auto/picture.svg" width="\d+".* alt="\w', page)
    title = json.loads((folder / "auto" / "answer.json").read_text())["title"]
    assert f'<p class="note">{title}</p>' in page
    picture = desk.get("/runs/auto/picture.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert picture.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert picture.text.startswith("<svg ")
    another = re.search(r'href="[^"]*(/question\?[^"]*)">Ask another', page)
    assert another
    next_page = desk.get(unescape(another[1])).text
    assert 'value="600"' in next_page
    assert 'name="file" value="south.csv"' in next_page
    assert "What is in these files?</legend>" in next_page
    report = desk.get("/reports/auto")
    policy = report.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none'")
    assert "Three groups" in report.text
    assert "The model and the report are in folder <code>auto</code>." in page
    assert {"model.json", "report.html"} <= {path.name for path in (folder / "auto").iterdir()}
    assert "The report offers its tables as CSV." in page
    assert re.search(r'download="result-\d+.csv"', report.text)
    again = desk.get(f"/question?{asked}").text
    assert "epsilon 3 of 3 is spent" in again
    start = desk.get("/").text
    assert re.search(r'/runs/auto">auto</a>.*groups are there\?.*done</td><td>3</td>', start)
    for shown in (*pages, priced, page, again):
        assert SENTINEL not in shown
    events = events_in((folder / "auto" / EVENTS).read_text())
    rounds = [event["done"] for event in events if event["event"] == "round"]
    assert rounds == list(range(1, len(rounds) + 1))
    assert events[-1]["event"] == "done"
    assert events[-1]["result"] in unescape(report.text)
    assert SENTINEL not in (folder / "auto" / EVENTS).read_text()
    answer = Answer.load(folder / "auto" / ANSWER)
    assert answer.lines[0][1] in unescape(page)
    (folder / "auto" / ANSWER).write_text("{}")  # as after another version
    assert "Read the report" in desk.get("/runs/auto").text
    assert "has no picture" in desk.get("/runs/auto/picture.svg").text
    assert (folder / "auto" / LOG).read_text() == ""
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["auto"]
    kept = Ledger(ledger)
    assert kept.spent("ward") == pytest.approx(3, rel=1e-3)
    kept.dispose()


def test_a_job_that_is_refused_says_why_and_costs_nothing(
    desk: TestClient, folder: Path, ledger: Path
) -> None:
    where, _ = say(desk)
    asked = f"{where.partition('?')[2]}&ask=auto&nominal_n=600&epsilon=3&cap_epsilon=5"
    for out in ("", "../x", "ward", "auto/x"):
        assert spend(desk, asked, out).status_code == 409
    for changed in (
        {"nominal_n": "900"},
        {"epsilon": "2"},
        {"n_clusters": "4", "of": "auto", "column": "0"},
    ):
        assert "has changed since" in spend(desk, asked, **changed).text
    assert "lifetime cap must be at least" in spend(desk, asked, cap_epsilon="2").text
    (folder / "north.csv").write_text("age,smoker\n50,no\n")
    (folder / "json.py").write_text("raise SystemExit('code of the folder was run')\n")
    page = spend(desk, asked).text
    end = time.monotonic() + 120
    while "At work" in page:
        assert time.monotonic() < end
        time.sleep(0.2)
        page = desk.get("/runs/auto").text
    assert "That did not work" in page
    assert "has no column" in unescape(page)
    assert not ledger.exists()
    assert "/reports/" not in desk.get("/").text


def test_a_job_that_left_no_result_has_failed_and_odd_files_are_no_jobs(
    desk: TestClient, folder: Path, tmp_path: Path
) -> None:
    for name, text in {
        "killed": '{"event": "started", "pid": 1, "command": "c", "form": "of=auto"}\n',
        "list": "[1]\n",
        "text": "not a job\n",
        "event": '{"event": 3}\n',
    }.items():
        (folder / name).mkdir()
        (folder / name / EVENTS).write_text(text)
    (folder / "out").symlink_to(tmp_path)
    (tmp_path / EVENTS).write_text('{"event": "done"}\n')
    page = desk.get("/runs/killed").text
    assert "The job ended without a result" in page
    desk.post("/runs/killed/stop", data={"csrf": token(desk)})  # its process is another's by now
    start = desk.get("/").text
    assert re.search(r"killed</a></td><td>Which groups are there\?</td><td>failed", start)
    for name in ("list", "text", "event", "out", "north.csv", "%2e%2e"):
        assert f"/runs/{name}" not in start
        assert desk.get(f"/runs/{name}").status_code in (404, 409)


def test_a_job_that_is_stopped_gives_back_what_has_not_left(
    desk: TestClient, folder: Path, ledger: Path
) -> None:
    lines = ["age,weight,smoker,asthma", *["50,70,no,no"] * 400_000]
    (folder / "south.csv").write_text("\n".join(lines))
    where, _ = say(desk)
    spend(desk, f"{where.partition('?')[2]}&ask=auto&nominal_n=600&epsilon=1&cap_epsilon=5")
    log, end = folder / "auto" / EVENTS, time.monotonic() + 120
    while '"round"' not in log.read_text():
        assert time.monotonic() < end
    desk = enter(folder, ledger)  # a console that is started again
    desk.post("/runs/auto/stop", data={"csrf": token(desk)})
    while "At work" in (page := desk.get("/runs/auto").text):
        assert time.monotonic() < end
        time.sleep(0.1)
    kept = Ledger(ledger)
    assert "interrupted; what left a silo stays charged" in page or "Here is the answer" in page
    if log.read_text().count('"round"') < 5:  # of ten: else the job was too fast to be stopped
        assert kept.spent("ward") < 0.9
    kept.dispose()


def test_bounds_alone_make_a_number_and_words_alone_a_category(
    desk: TestClient, folder: Path
) -> None:
    say(desk, **{"min-1": "", "max-1": ""})
    schema = Schema.load(folder / "ward.toml")
    assert [(c.name, c.type) for c in schema.columns] == [("age", "number"), ("smoker", "category")]
    assert schema.columns[1].categories == ("no", "yes")
    say(desk, **{"min-1": "", "max-1": ""})
    assert not (folder / "ward-2.toml").exists()  # the same contract is not written twice
    say(desk)
    assert Schema.load(folder / "ward-2.toml").names == ("age", "weight", "smoker")


def test_wrong_columns_are_named_at_once_and_what_was_said_is_kept(
    desk: TestClient, folder: Path
) -> None:
    where, page = say(desk, **{"max-0": "1", "min-1": "low", "dataset": "<b>mine</b>"})
    assert where.startswith("/columns")
    assert "'age'" in problem(page)
    assert "'weight'" in problem(page)
    assert 'name="min-1" value="low"' in page
    assert not list(folder.glob("*.toml"))
    assert "choose a type for at least one column" in problem(
        say(desk, **{name: "" for name in SAID if name[-2] == "-"})[1]
    )
    assert "most rows of one" in problem(say(desk, unit="smoker", max_rows="9" * 5000)[1])
    assert "without signs between thousands" in problem(
        say(desk, decimal=",", **{"max-1": "50.000"})[1]
    )


def test_bounds_and_words_are_read_as_a_person_writes_them(desk: TestClient, folder: Path) -> None:
    for name in FILES:
        (folder / name).write_text("seen;weight;smoker\n31.12.2024;37,5;ja\n")
    dates = {"type-0": "date", "format-0": "%d.%m.%Y", "min-0": "01.01.2000", "max-0": "01.01.2030"}
    say(desk, decimal=",", **dates, **{"max-1": "120,5", "categories-2": "nein, ja"})
    columns = Schema.load(folder / "ward.toml").columns
    assert (columns[0].min, columns[0].max) == (2000.0, 2030.0)
    assert columns[1].max == 120.5
    assert columns[2].categories == ("nein", "ja")


def test_a_header_in_another_encoding_is_read_again(desk: TestClient, folder: Path) -> None:
    for name in FILES:
        (folder / name).write_bytes("cost \u20ac,weight\n5,6\n".encode("cp1252"))
    page = say(desk, encoding="cp1252", **{"categories-2": ""})[0]
    assert page.startswith("/question")
    assert Schema.load(folder / "ward.toml").names == ("cost \u20ac", "weight")
    assert "encoding must be one" in say(desk, encoding="nonsense")[1]


def test_no_mistake_shows_more_than_a_sentence(desk: TestClient, folder: Path) -> None:
    (folder / "ward.toml").mkdir()
    (folder / "ward-2.toml").write_bytes(b"\xff\xfe")
    assert say(desk)[0].startswith("/question")
    assert say(desk, dataset="x" * 500)[0].startswith("/question")
    assert "holds records" in desk.get("/columns?file=north.csv&meaning=north.csv").text
    for name in (*FILES, "ward-2.toml"):
        (folder / name).unlink()
    gone = desk.get("/question?" + urlencode({"file": FILES[0], "schema": "ward-3.toml"}))
    assert gone.status_code == 409
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert "cannot be used: No such file" in desk.get("/").text


def test_the_unit_of_privacy_is_no_column(desk: TestClient, folder: Path) -> None:
    say(desk, unit="smoker", max_rows="500")  # fewer would leave out most rows
    schema = Schema.load(folder / "ward.toml")
    assert (schema.unit, schema.max_rows, schema.names) == ("smoker", 500, ("age", "weight"))


def buttons(page: str) -> list[tuple[str, str]]:
    """Return what each button of the page proposes, and what it sends."""
    return re.findall(r'name="apply" value="(.*?)" class="second" aria-label="Apply: (.*?)"', page)


def test_a_loss_is_shown_with_a_button_that_mends_it(desk: TestClient, folder: Path) -> None:
    lines = [f"{age};37,625;no;no" for age in range(20, 80)]
    (folder / "south.csv").write_text("\n".join(["age;weight;smoker;asthma", *lines]))
    where, page = say(desk)
    assert where.startswith("/columns")
    assert "south.csv: 60 of 60 rows (100.0%) are left out." in page
    assert "they have a decimal comma" in page
    assert "decimal =" not in page  # a field of the page, not a key of a file
    assert not list(folder.glob("*.toml"))
    ((_, words),) = buttons(page)
    assert words == "Set 'Decimal sign' to '1,5' for south.csv."
    value = '["decimal", "", ",", ["south.csv"]]'
    assert f'value="{value}"' in page or value in page
    assert say(desk, apply=value)[0].startswith("/question")
    assert Schema.load(folder / "ward.toml").decimal == "."
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())
    assert settings == {"north.csv": {}, "south.csv": {"decimal": ","}}


def test_a_proposal_is_for_the_files_that_need_it(desk: TestClient, folder: Path) -> None:
    """Of two files, 1 means yes in the first and no in the second."""
    ages = np.random.default_rng(2).integers(20, 90, 300).tolist()
    for name, (yes, no) in zip(FILES, ((1, 0), (2, 1)), strict=True):
        rows = [f"{age},70,{yes if age > 75 else no},no" for age in ages]
        (folder / name).write_text("\n".join(["age,weight,smoker,asthma", *rows]))
    said = {"type-2": "boolean", "categories-2": ""}
    where, page = say(desk, **said, **{"as-is": "1"})
    assert where.startswith("/columns")
    assert "Words without a meaning would bias an answer" in page
    assert "Use the files as they are" not in page
    ((apply, words),) = buttons(page)
    assert words == "Set 'Other words' of 'smoker' to '2 = true; 1 = false' for south.csv."
    where, page = say(desk, apply=apply, **said)
    assert where.startswith("/question"), problem(page)
    agreed, reading = Schema.load(folder / "ward.toml"), folder / "ward-reading.toml"
    paths = [folder / name for name in FILES]
    for path, schema in schemas_of(agreed, paths, reading).items():
        np.testing.assert_array_equal(read_rows(path, schema)[:, 2], np.array(ages) > 75)
    for_all = {**said, "spellings-2": "2 = true; 1 = false"}
    where, page = say(desk, **for_all, **{"as-is": "1"})
    assert where.startswith("/columns")
    assert "north.csv: column 'smoker': '1' and '0' are both read as false" in page
    assert "north.csv: column 'smoker' has the same value in all rows." in page
    assert "south.csv: column 'smoker' has" not in page
    for wrong in ("[]", "x", '{"north.csv": 1}', '{"north.csv": {"columns": 1}}'):
        form = {**SAID, **said, "file": list(FILES), "csrf": token(desk), "settings": wrong}
        page = unescape(desk.post("/columns", data=form).text)
        assert "this button names no setting" in page, wrong


@pytest.mark.parametrize(
    ("proposals", "head", "possible"),
    [
        ([["decimal", "", ","], ["spellings", "smoker", "J = true"]], {}, True),
        ([["spellings", "a", "J = true"], ["spellings", "a", "Ja = true"]], {}, True),
        ([["decimal", "", ","], ["thousands", "", ","]], {}, False),
        ([["thousands", "", ","], ["absent", "a", "9"]], {"decimal": ","}, False),
        ([["format", "d", "%d.%m.%Y"], ["format", "d", "%m/%d/%Y"]], {}, False),
        ([["decimal", "", ","]], {}, False),
    ],
)
def test_proposals_that_conflict_are_not_offered_together(
    proposals: list[list[str]], head: dict[str, str], possible: bool
) -> None:
    of_file = [json.dumps([*one, ["a.csv"]]) for one in proposals]
    assert _together(of_file, head) == possible
    # Proposals for different files never conflict.
    apart = [json.dumps([*one, [f"{i}.csv"]]) for i, one in enumerate(proposals)]
    assert _together(apart, {}) == (len(proposals) > 1)


def test_signs_are_shown_as_on_the_page() -> None:
    for key, text, shown in (("thousands", ",", "1,000"), ("thousands", ".", "1.000")):
        assert _on_page(Remedy(key, text))[0].endswith(f"to {shown!r}.")


def test_words_of_the_field_are_added_to_those_of_a_file(desk: TestClient, folder: Path) -> None:
    rows = [f"{age},70,{'JN'[age % 2]},no" for age in range(20, 80)]
    (folder / "south.csv").write_text("\n".join(["age,weight,smoker,asthma", *rows]))
    kept = '{"south.csv": {"columns": {"smoker": {"spellings": {"yes": ["J"]}}}}}'
    where, page = say(desk, settings=kept, **{"spellings-2": "N = no"})
    assert where.startswith("/question"), page
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())["south.csv"]
    assert settings["columns"]["smoker"]["spellings"] == {"yes": ["J"], "no": ["N"]}


def test_all_proposals_are_applied_at_once(desk: TestClient, folder: Path) -> None:
    for name, yes in zip(FILES, ("J", "Ja"), strict=True):
        rows = [f"50;70,5;{yes};no", "40;70,5;nein;no"] * 60
        (folder / name).write_text("\n".join(["age;weight;smoker;asthma", *rows]))
    said = {"type-2": "boolean", "categories-2": ""}
    _, page = say(desk, **said)
    assert "The same remedy suits 1 other column of these files." in page
    proposals = re.findall('name="proposal" value="(.*?)">', page)
    assert f"Apply all {len(proposals)} proposals" in page
    assert len(proposals) == len(buttons(page)) == len({*proposals})
    sent = {"apply-all": "1", "proposal": [unescape(one) for one in proposals]}
    where, page = say(desk, **said, **sent)  # type: ignore[arg-type]  # a field with several texts
    assert where.startswith("/question"), problem(page)
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())
    assert [one["decimal"] for one in settings.values()] == [",", ","]
    assert [one["columns"]["smoker"]["spellings"]["true"] for one in settings.values()] == [
        ["J"],
        ["Ja"],
    ]


def test_each_file_can_have_its_own_format(desk: TestClient, folder: Path, ledger: Path) -> None:
    german = ["50;70,5;J;no", "40;1.070,5;N;no"] * 60
    (folder / "north.csv").write_text("\n".join(["age;weight;smoker;asthma", *german]))
    english = ["50,70.5,yes,no", "40,60.125,no,no"] * 60
    (folder / "south.csv").write_text("\n".join(["age,weight,smoker,asthma", *english]))
    said = {"type-2": "boolean", "categories-2": "", "max-1": "2000"}
    assert "Read each file in its own format" in say(desk, **said)[1]
    where, page = say(desk, **said, **{"own-formats": "1"})
    assert where.startswith("/question"), problem(page)
    assert 'name="reading" value="ward-reading.toml"' in page
    assert Schema.load(folder / "ward.toml").decimal == "."
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())
    assert settings["north.csv"]["decimal"] == ","
    assert settings["south.csv"].get("decimal", ".") == "."
    assert "ward-reading" not in desk.get("/").text  # it is no codebook
    asked = f"{where.partition('?')[2]}&ask=describe&nominal_n=2000&epsilon=3&cap_epsilon=3"
    assert path_of(desk, spend(desk, asked, "describe")) == "/runs/describe"
    end = time.monotonic() + 120
    while "At work" in (page := unescape(desk.get("/runs/describe").text)):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "--reading ward-reading.toml" in page
    assert "Here is the answer" in page


def test_each_file_can_have_its_own_names(desk: TestClient, folder: Path) -> None:
    rows = ["Alter,weight,smoker,asthma", *["50,70.5,no,no"] * 60]
    (folder / "south.csv").write_text("\n".join(rows))
    for more in ({}, {"own-formats": "1"}):
        where, page = say(desk, **more)
        assert where.startswith("/columns")
        assert ("No setting for the format" in page) == bool(more)
        assert "Names in south.csv" in page
        assert offered(page, "header-1-0") == ["not in this file", "Alter"]
    # Any name of the file may be chosen, and the choice is kept.
    assert (
        '<option value="Alter" selected>' in say(desk, **{"header-1-0": "Alter", "min-0": "x"})[1]
    )
    where, page = say(desk, **{"header-1-0": "Alter"})
    assert where.startswith("/question"), problem(page)
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())
    assert settings["south.csv"]["columns"]["age"]["header"] == "Alter"


def test_yes_and_no_of_another_language_are_mended_on_the_page(
    desk: TestClient, folder: Path, ledger: Path
) -> None:
    for name in FILES:
        rows = ["50,70,J,no"] * 60 + ["40,70,N,no"] * 340
        (folder / name).write_text("\n".join(["age,weight,smoker,asthma", *rows]))
    said = {"type-2": "boolean", "categories-2": ""}
    where, page = say(desk, **said)
    assert where.startswith("/columns")
    assert "north.csv: 60 of 400 rows (15.0%) are left out." in page
    assert "'J' not understood; they look like a boolean (60 rows)" in page
    words = "Set 'Other words' of 'smoker' to 'J = true' for north.csv, south.csv."
    ((apply, shown),) = buttons(page)
    assert shown == words
    assert apply == '["spellings", "smoker", {"true": ["J"]}, ["north.csv", "south.csv"]]'
    where, _ = say(desk, apply=apply, **said)
    assert where.startswith("/question")
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())
    assert settings["south.csv"]["columns"]["smoker"]["spellings"] == {"true": ["J"]}
    assert say(desk, **said, **{"spellings-2": "J = true; nope = false"})[0].startswith("/question")
    for wrong in ("J", "J = ", "= true", "J = maybe"):
        where, page = say(desk, **said, **{"spellings-2": wrong})
        assert where.startswith("/columns"), wrong
    for wrong in ("", "x", "[1]", '["decimal", "", ","]', "[[]]", '["a", "b", "c", "d"]'):
        assert "this button names no setting" in problem(say(desk, apply=wrong, **said)[1])


def test_codes_of_missing_cells_are_mended_on_the_page(desk: TestClient, folder: Path) -> None:
    for name, code in zip(FILES, ("999", "9999"), strict=True):
        rows = ["50,70,no,no"] * 300 + [f"{code},70,no,no"] * 9
        (folder / name).write_text("\n".join(["age,weight,smoker,asthma", *rows]))
    where, page = say(desk)
    assert where.startswith("/columns")
    assert "column 'age': '999' out of range and may mark missing cells." in page
    assert [words for _, words in buttons(page)] == [
        f"Set 'Missing cells' of 'age' to '{code}' for {name}."
        for name, code in zip(FILES, ("999", "9999"), strict=True)
    ]
    assert "absent =" not in page
    proposals = [unescape(one) for one in re.findall('name="proposal" value="(.*?)">', page)]
    where, page = say(desk, **{"apply-all": "1", "proposal": proposals})  # type: ignore[arg-type]
    assert where.startswith("/question"), problem(page)
    settings = tomllib.loads((folder / "ward-reading.toml").read_text())
    assert settings["south.csv"]["columns"]["age"]["absent"] == ["9999"]
    assert say(desk, **{"absent-0": "999,5 | 9999 |999"})[0].startswith("/question")
    assert Schema.load(folder / "ward-2.toml").columns[0].absent == ("999,5", "9999", "999")
    assert say(desk, **{"as-is": "1"})[0].startswith("/question")


def test_baskets_lead_to_rules(desk: TestClient, folder: Path, ledger: Path) -> None:
    (folder / "goods.csv").write_text("name,type\nmilk,boolean\nbread,boolean\nbeer,boolean\n")
    (folder / "north.csv").write_text("milk,bread\nbeer\nmilk,bread,beer\n" * 200)
    lines = "".join(f"{i},milk\n{i},bread\n" for i in range(300))
    (folder / "south.csv").write_text(f"receipt,item\n{lines}")
    said = {"meaning": "goods.csv", "unit": "row", "dataset": "shop", "csrf": token(desk)}
    assert "need a catalogue" in desk.get("/columns?file=north.csv&baskets=lines").text
    page = desk.get("/columns?file=south.csv&baskets=long&meaning=goods.csv").text
    assert 'name="baskets" value="long:receipt,item"' in page
    assert "Items of the catalogue" in page
    types = {f"type-{i}": "boolean" for i in range(3)}
    wrong = {**said, **types, "file": "north.csv", "baskets": "lines:;"}
    assert "are outside the catalogue" in (page := desk.post("/columns", data=wrong).text)
    assert "another layout" in unescape(page)
    for file, layout in (("north.csv", "lines"), ("south.csv", "long:receipt,item")):
        answer = desk.post("/columns", data={**said, **types, "file": file, "baskets": layout})
        assert path_of(desk, answer) == "/question", problem(answer.text)
        query = dict(parse_qs(answer.url.query.decode()))
        assert query["baskets"] == [layout]
    asked = f"{answer.url.query.decode()}&ask=apriori&of=&nominal_n=300&epsilon=5&cap_epsilon=9"
    assert path_of(desk, spend(desk, asked, "apriori")) == "/runs/apriori"
    end = time.monotonic() + 120
    while "Read the report" not in (page := unescape(desk.get("/runs/apriori").text)):
        assert "At work" in page, page
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "--baskets long:receipt,item" in page
    assert "bread" in page


def test_files_are_used_as_they_are_only_where_a_person_says_so(
    desk: TestClient, folder: Path, ledger: Path
) -> None:
    for name in FILES:
        rows = ["50,70,,no"] * 60 + ["40,70,N,no", "40,70,Y,no"] * 170
        (folder / name).write_text("\n".join(["age,weight,smoker,asthma", *rows]))
    said = {"type-2": "boolean", "categories-2": ""}
    where, page = say(desk, **said, **{"as-is": "1"})
    assert where.startswith("/question")
    assert 'name="as-is" value="1"' in page
    asked = f"{where.partition('?')[2]}&ask=tabulate&nominal_n=800&epsilon=1&cap_epsilon=3"
    without = asked.replace("&as-is=1", "")
    answer = spend(desk, without, "tabulate")
    assert answer.status_code == 409
    assert "60 of 400 rows" in unescape(answer.text)
    assert not (folder / "tabulate").exists()
    assert not ledger.exists()
    assert path_of(desk, spend(desk, asked, "tabulate")) == "/runs/tabulate"
    end = time.monotonic() + 120
    while "Read the report" not in (page := unescape(desk.get("/runs/tabulate").text)):
        assert "At work" in page
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "--max-loss 1" in page
    assert "north.csv: 340 of 400 rows are used. north.csv: column 'age' has" not in page
    assert "north.csv: 340 of 400 rows are used. south.csv: 340 of 400 rows are used." in page
    kept = [path.read_bytes() for path in (folder / "tabulate").iterdir()]
    assert not any(b"340" in text and b"rows are used" in text for text in kept)


def test_a_few_empty_cells_stop_nobody(desk: TestClient, folder: Path) -> None:
    rows = [",70,no,no", *["50,70,no,no"] * 99]
    (folder / "north.csv").write_text("\n".join(["age,weight,smoker,asthma", *rows]))
    assert say(desk)[0].startswith("/question")


def test_cells_that_are_kept_filled_or_clipped_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("age,weight\n" + ",70\n" * 5 + "30,500\n" * 5)
    age = {"name": "age", "type": "number", "min": 0, "max": 100, "missing": "keep"}
    weight = {"name": "weight", "type": "number", "min": 0, "max": 200}
    schema = Schema(dataset="w", unit="row", columns=[age, weight])
    said = " ".join(_rows_used([file], [check_file(file, schema)]))
    assert "50.0% of its cells are missing or not understood, and are kept" in said
    assert "column 'weight'" in said.lower()


def test_a_file_that_lacks_a_column_is_refused_with_its_name(
    desk: TestClient, folder: Path
) -> None:
    (folder / "south.csv").write_text("age,smoker\n50,no\n")
    assert "weight" in problem(say(desk)[1])


def test_a_codebook_a_schema_and_parquet_fill_the_page_and_the_file_does_not(
    desk: TestClient, folder: Path
) -> None:
    def page(meaning: str, file: str = "north.csv") -> str:
        chosen = urlencode({"file": file, "meaning": meaning})
        return unescape(desk.get(f"/columns?{chosen}").text)

    assert not re.search(r'name="(min|max|categories)-\d" value="[^"]', page(""))
    book = "name,type,min,max,categories\nage,integer,0,99,\nsmoker,category,,,no|yes\n"
    (folder / "book.csv").write_text(book)
    assert 'name="max-0" value="99"' in page("book.csv")
    assert 'name="min-0" value="0"' in page("book.csv")
    assert 'name="categories-2" value="no | yes"' in page("book.csv")
    say(desk, dataset="other")
    assert 'name="dataset" value="other"' in page("other.toml")
    assert 'name="max-1" value="200"' in page("other.toml")
    pd.read_csv(folder / "north.csv").to_parquet(folder / "north.parquet")
    declared = page("", "north.parquet")
    assert declared.count(" selected>number") == 1
    assert declared.count(" selected>integer") == 1


def test_what_a_schema_says_beyond_the_page_is_kept(desk: TestClient, folder: Path) -> None:
    say(desk)
    text = (folder / "ward.toml").read_text().replace('measure = ""', 'measure = "kg"', 2)
    (folder / "mine.toml").write_text(text.replace('missing = "drop"', 'missing = "midpoint"', 1))
    say(desk, dataset="mine", meaning="mine.toml")
    kept = Schema.load(folder / "mine-2.toml")
    assert [column.missing for column in kept.columns] == ["midpoint", "drop", "drop"]
    assert kept.columns[1].measure == "kg"


@pytest.mark.parametrize("name", ["../secret.csv", "secret.csv", "/etc/passwd", ""])
def test_only_files_of_the_folder_can_be_named(desk: TestClient, name: str) -> None:
    for path in ("/columns?", "/question?schema=ward.toml&"):
        answer = desk.get(path + urlencode({"file": name}))
        assert answer.status_code == 409
        assert "there is no file" in answer.text
    assert desk.get("/columns?" + urlencode({"file": FILES[0], "meaning": "../x.toml"})).is_error
    for path in ("/reports/%2e%2e", "/reports/ward", "/runs/other"):
        assert desk.get(path).status_code in (404, 409)
    assert "no file was chosen" in desk.get("/columns").text


def test_every_command_over_files_is_a_question() -> None:
    asked = {name for name, row in CAPABILITIES.items() if row.question}
    assert sorted(name for names in QUESTION_GROUPS.values() for name in names) == sorted(asked)
    assert COMMANDS.keys() <= asked


TYPED = {"type-2": "boolean", "categories-2": "", "type-3": "boolean"}
STEPS = {
    *("bounds", "discretise", "pca", "pipeline", "quantiles", "standardise", "statistics"),
    *("fastlloyd", "glloyd", "lloyd", "sulloyd", "cluster-quality"),  # of `auto`
    *("fedavg", "fedavg-regression", "naive-bayes"),  # models for programs
    "count",
}
"""Tasks of the catalogue that the console does not ask for."""


def test_every_task_is_asked_on_the_page_or_named_as_a_step(desk: TestClient) -> None:
    _, page = say(desk, **TYPED)
    shown = re.findall('<button name="ask" value="(.+?)"', page)
    assert len(shown) == len({*shown})
    assert {*shown} == {name for name, row in CAPABILITIES.items() if row.question}
    assert {*shown} | STEPS == CAPABILITIES.keys()
    assert not {*shown} & STEPS


def asked_for(name: str, **form: str) -> str:
    """Return the query of a question, with what it cannot suggest."""
    chosen: dict[str, Any] = {"ask": name, **form}
    if name == "imputed-regression":  # nobody knows in advance where cells are missing
        chosen |= {"of": name, "column": ["2", "3"], "complete": "2", "nominal_n": "20000"}
    return urlencode(chosen, doseq=True)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_is_a_job_whose_page_and_command_agree(
    desk: TestClient, folder: Path, name: str
) -> None:
    where, _ = say(desk, **TYPED)
    query = asked_for(name, nominal_n="5,000", epsilon="2", cap_epsilon="4")
    page = unescape(desk.get(f"{where}&{query}").text)
    question = QUESTIONS[name]
    assert "Spend epsilon 2 and answer" in page
    assert question.title in page
    assert {*question.start, *question.roles} <= {one.name for one in options_of(TASKS[name])}
    assert {*question.optional, *question.hints} <= question.roles.keys()
    assert question.forecast == ("Expected error: not known" not in page)
    assert question.forecast == ("Expected error of" in page or "Expected error (" in page)
    schema = Schema.load(folder / "ward.toml")
    asked = FormState(QueryParams(query), (Path("-a.csv"),), Path("ward.toml"), schema)
    command = asked.request(Path("l.db"), "out").command(schema)
    assert command[:2] == ["run", "./-a.csv"]
    assert command[command.index("--task") + 1] == asked.job().plan.task.name
    options = _parser(command).parse_args(command)
    assert options.columns in (None, asked.job().plan.columns)
    assert (options.epsilon, options.nominal_n) == (2.0, asked.nominal_n)


def offered(page: str, name: str) -> list[str]:
    """Return the choices of a field of the page."""
    found = re.search(f'<select name="{name}".*?</select>', page, re.S)
    assert found, page
    return re.findall("<option.*?>(.+?)</option>", found[0])


def test_a_field_offers_the_columns_that_fit_it(desk: TestClient) -> None:
    where, _ = say(desk, **TYPED)

    def shown(name: str, **form: str) -> tuple[str, list[str]]:
        page = unescape(desk.get(f"{where}&ask={name}&{urlencode(form)}").text)
        return page, re.findall(r'name="column" value="(\d)"', page)

    page, others = shown("survival")
    assert offered(page, "time") == ["age", "weight"]
    assert offered(page, "event") == ["smoker", "asthma"]
    assert offered(page, "by") == ["none", "smoker", "asthma"]
    assert others == []
    assert shown("apriori")[1] == ["2", "3"]
    page, others = shown("linear")
    assert offered(page, "target") == ["age", "weight"]
    assert others == ["1", "2", "3"]  # the target predicts nothing
    assert shown("linear", of="linear", target="weight")[1] == ["0", "2", "3"]
    assert "gamma" in offered(shown("glm")[0], "family")


def test_a_column_that_loses_its_role_is_used_if_all_others_are(desk: TestClient) -> None:
    """The target was age (0); the page showed all other columns."""
    others = [("shown", str(at)) for at in (1, 2)]
    form = [("of", "linear"), ("target", "weight"), *others]
    where, _ = say(desk)
    for columns, used in (("12", ["0", "2"]), ("1", [])):
        asked = urlencode([*form, *(("column", at) for at in columns)])
        page = desk.get(f"{where}&{asked}").text
        assert re.findall(r'name="column" value="(\d)" checked', page) == used


def test_numbers_have_public_bins_that_a_person_can_change(desk: TestClient, folder: Path) -> None:
    where, _ = say(desk, **TYPED)
    page = desk.get(f"{where}&ask=scorecard").text
    assert 'name="edges-0" value="34.4, 50.8, 67.2, 83.6"' in page
    form = {"of": "tabulate", "column": "0", "edges-0": "40; 65", "nominal_n": "900"}
    schema = Schema.load(folder / "ward.toml")
    asked = FormState(ImmutableMultiDict(form), (Path("a.csv"),), Path("ward.toml"), schema)
    assert asked.request(Path(), "").options["edges"] == {"age": [40, 65]}
    assert asked.job().plan.columns == ("age",)
    said = {"of": "tabulate", "column": "0", "nominal_n": "900"}
    for wrong, why in (("forty", "an edge of 'age' must be a number"), ("65, 40", "lower first")):
        assert why in problem(ask(desk, **said, **{"edges-0": wrong}))


def imputed(desk: TestClient, where: str, **form: Any) -> tuple[str, str]:
    """Return the query of the question of missing cells, and its page."""
    start = {"of": "imputed-regression", "column": ["1", "2"], "nominal_n": "20000"}
    query = urlencode({**start, "epsilon": "2", "cap_epsilon": "4", **form}, doseq=True)
    return query, unescape(desk.get(f"{where}&{query}").text)


def test_missing_cells_are_completed_where_the_question_uses_them(
    desk: TestClient, folder: Path
) -> None:
    where, _ = say(desk, **TYPED)
    first = unescape(desk.get(f"{where}&ask=imputed-regression&nominal_n=20000").text)
    assert "choose one or two columns whose missing cells" in problem(first)
    assert re.findall('name="complete" value="(.)"', first) == ["1", "2", "3"]  # not the target
    assert 'name="complete"' not in desk.get(f"{where}&ask=linear").text
    _, page = imputed(desk, where, complete="1")
    assert "Spend epsilon 2 and answer" in page
    assert page.count('name="complete" value="1" checked') == 1
    schema = Schema.load(folder / "ward.toml")
    assert not any(column.keeps_missing for column in schema.columns)
    for chosen in ({"complete": "3"}, {"complete": ["1", "2", "3"], "column": ["1", "2", "3"]}):
        # A column that is not used is not completed, and three are too many.
        assert "one or two columns" in problem(imputed(desk, where, **chosen)[1])
    # A schema of the user may say it already.
    text = (folder / "ward.toml").read_text().replace('missing = "drop"', 'missing = "keep"')
    (folder / "kept.toml").write_text(text)
    kept = desk.get(f"{where.replace('ward.toml', 'kept.toml')}&ask=imputed-regression").text
    assert re.findall('name="complete" value="(.)" checked', kept) == ["1", "2", "3"]


def test_the_question_of_missing_cells_ends_in_a_report(desk: TestClient, folder: Path) -> None:
    rng = np.random.default_rng(5)
    for name in FILES:
        age, smoker = rng.uniform(20, 90, 6000), rng.integers(0, 2, 6000)
        weight = 40 + 0.3 * age + rng.normal(0, 10, 6000)
        cells = np.where(rng.random(6000) < 0.3, "", weight.round(1).astype(str))
        rows = zip(age.astype(int), cells, smoker, smoker, strict=True)
        lines = [",".join(map(str, row)) for row in rows]
        (folder / name).write_text("\n".join(["age,weight,smoker,asthma", *lines]))
    where, _ = say(desk, **TYPED, **{"as-is": "1"})
    query, page = imputed(desk, where, complete="1", epsilon="4", **{"as-is": "1"})
    out = re.search(r"out=(imputed-regression)", page)
    assert out
    shown = f"{where.partition('?')[2]}&{query}"
    assert spend(desk, shown, out[1], complete="2").is_error  # changed since its price was shown
    assert not (folder / "ward-2.toml").exists()
    done = spend(desk, shown, out[1])
    assert spend(desk, shown, out[1]).url == done.url  # a second press has no effect
    end = time.monotonic() + 120
    while "Read the report" not in (page := unescape(desk.get(path_of(desk, done)).text)):
        assert "At work" in page, page
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "--schema ward-2.toml" in page
    kept = Schema.load(folder / "ward-2.toml")
    assert [column.name for column in kept.columns if column.keeps_missing] == ["weight"]
    assert not (folder / "ward-3.toml").exists()
    report = desk.get(f"/reports/{out[1]}").text
    assert "Missing cells" in report
    assert "Missing information" in report


def test_the_curve_of_missing_cells_has_what_is_known_before(desk: TestClient) -> None:
    where, _ = say(desk, **TYPED)

    def least(epsilon: str) -> int:
        _, page = imputed(desk, where, complete="1", epsilon=epsilon)
        assert "it depends on the spread of the columns, the model and the missing cells" in page
        found = re.search(r"at least ([\d,]+)", page)
        assert found
        return int(found[1].replace(",", ""))

    assert 1.8 < least("1") / least("2") < 2.2
    _, page = imputed(desk, where, complete="1", epsilon="1")
    address = re.search(r'src="[^"]*(/errors.svg[^"]*)"', page)
    assert address
    picture = desk.get(address[1]).text
    assert "\u00b1" not in picture
    labels = re.findall(r'y="[\d.]+">([\d,]+)</text>', picture)
    assert f"{round(least('1'), -2):,}" in labels


def test_names_with_commas_and_dashes_reach_the_command() -> None:
    columns = tuple(
        Column(name=name, type="number", min=0, max=1)
        for name in ("-age", "weight, kg", 'a"b', "c")
    )
    schema = Schema(dataset="odd", unit="row", columns=columns)
    fields = {"of": "auto", "n_clusters": "2", "nominal_n": "900", "epsilon": "1.23456789"}
    form = ImmutableMultiDict(fields)
    for places in ("012", "13"):
        chosen = ImmutableMultiDict([*form.multi_items(), *(("column", at) for at in places)])
        asked = FormState(chosen, (Path("a.csv"),), Path("odd.toml"), schema)
        command = asked.request(Path("l.db"), "out").command(schema)
        options = _parser(command).parse_args(command)
        assert options.columns == asked.columns
        assert options.epsilon == asked.job().plan.budget.epsilon == 1.23456789
        assert len(asked.columns) == len(places)


def test_a_wanted_precision_finds_its_epsilon_and_is_drawn(desk: TestClient) -> None:
    def shown(**form: str) -> str:
        return ask(desk, of="tabulate", column="2", nominal_n="5000", cap_epsilon="50", **form)

    def spent(page: str) -> float:
        return float(re.search(r"Spend epsilon ([\d.]+) and", page)[1])  # type: ignore[index]

    assert '<option value="count" selected>' in shown(epsilon="1")
    narrow, wide = spent(shown(want="2")), spent(shown(want="20"))
    assert narrow > 5 * wide
    assert spent(shown(want="200 %")) == narrow  # a share of one
    assert "needs more than epsilon 100" in problem(refused := shown(want="0.00001"))
    assert '<option value="share" selected>' in refused  # another choice is still possible
    # Nobody wants a number of records to less than one: this is a share.
    assert '<option value="share" selected>' in shown(want="1 %", want_of="count")
    assert spent(shown(want="1 %", want_of="count")) == spent(shown(want="0.01", want_of="share"))
    assert "the wanted precision must be a number" in problem(shown(want="small"))
    assert "want must name forecasts" in problem(shown(want="2", want_of="nothing"))
    address = re.search(r'src="[^"]*(/errors.svg[^"]*)"', shown(want="2"))
    assert address
    picture = desk.get(address[1])
    assert picture.headers["content-type"] == "image/svg+xml"
    widths = [float(text) for text in re.findall("\u00b1 ([\\d.]+)", picture.text)]
    assert widths == sorted(widths, reverse=True)
    assert 'class="chosen"' in picture.text
    assert f">{narrow:g}</text>" in picture.text


def test_names_of_columns_suggest_their_role() -> None:
    columns = tuple(Column(name=name, type="number", min=0, max=9) for name in ("age", "Follow-up"))
    events = tuple(Column(name=name, type="boolean", min=0, max=1) for name in ("old", "has_died"))
    schema = Schema(dataset="d", unit="row", columns=(*columns, *events))
    form = ImmutableMultiDict({"ask": "survival"})
    asked = FormState(form, (Path("a.csv"),), Path("d.toml"), schema)
    assert asked.roles == {"time": "Follow-up", "event": "has_died", "by": ""}


def test_the_form_of_an_answer_is_drawn_without_the_files(
    desk: TestClient, folder: Path, ledger: Path
) -> None:
    where, _ = say(desk, unit="asthma", max_rows="500")
    query = f"{where.partition('?')[2]}&ask=describe&nominal_n=100000&epsilon=1"
    assert f"/preview?{query}" in unescape(desk.get(f"/question?{query}").text)
    for name in FILES:
        (folder / name).write_text("no,table\n")
    page = desk.get(f"/preview?{query}").text
    assert "Made-up numbers" in page
    assert "not read" in page
    assert SENTINEL not in page
    assert desk.get(f"/preview.svg?{query}").text.startswith("<svg")
    assert not ledger.exists()
    assert "must be a whole number" in desk.get(f"/preview?{query}&nominal_n=x").text


@pytest.mark.nightly
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_a_form_of_its_answer(name: str) -> None:
    columns = (
        Column(name="sex", type="category", categories=("f", "m")),
        Column(name="age", type="integer", min=18, max=100),
        Column(name="days", type="number", min=0, max=1000),
        *(Column(name=word, type="boolean") for word in ("dead", "treated", "asthma")),
        Column(name="score", type="number", min=0, max=1),
        Column(name="seen", type="date", min="2015-01-01", max="2025-01-01"),
    )
    form = asked_for(name, nominal_n="300", epsilon="30")
    schema = Schema(dataset="ward", unit="row", columns=columns)
    entered = FormState(QueryParams(form), (Path("a"), Path("b")), Path("s"), schema)
    answer = preview_of(entered.job(), entered.nominal_n)
    assert answer.lines[0][1]
    assert answer.rows
    assert answer.picture.startswith("<svg") or name == "regression-evaluation"


def test_what_a_first_price_needs_is_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[str] = []
    monkeypatch.setattr(
        "cloister.console.desk.preload_digests", lambda _, names: warmed.extend(names)
    )
    warm_up()
    assert warmed == [*QUESTIONS]
    assert {"scipy.signal", "scipy.special"} <= sys.modules.keys()


def test_less_epsilon_is_shown_to_give_less(desk: TestClient) -> None:
    def error(epsilon: str) -> float:
        page = ask(desk, ask="auto", nominal_n="5000", epsilon=epsilon)
        return float(re.search(r"± ([\d.]+)", page)[1])  # type: ignore[index]

    assert error("0.5") > 1.5 * error("1")


def test_a_plan_that_cannot_be_is_explained(desk: TestClient) -> None:
    assert "number of clusters must be a number" in problem(
        ask(desk, nominal_n="500", epsilon="1", n_clusters="many", of="auto", column="0")
    )
    assert "records must be a whole number" in problem(ask(desk, nominal_n="many", epsilon="1"))
    assert "choose 1 or more columns" in problem(ask(desk, nominal_n="500", of="auto"))
    assert "requires 2 column(s) of yes and no" in problem(
        ask(desk, nominal_n="500", ask="apriori")
    )
    assert "requires a column of yes and no" in problem(ask(desk, nominal_n="500", ask="survival"))
    assert "lifetime cap must be a number" in problem(ask(desk, nominal_n="500", cap_epsilon="5,0"))
    assert "at least epsilon" in problem(ask(desk, nominal_n="500", cap_epsilon=".5"))
    assert "too small" in ask(desk, ask="auto", nominal_n="50", epsilon="0.1", cap_epsilon="1")
    assert "Enter the lifetime cap" in ask(desk, nominal_n="5000", epsilon="1")
    assert ask(desk, ask="nothing").count("ask must be one of") == 1


def test_a_known_data_set_shows_its_gauge_and_asks_for_no_cap(
    desk: TestClient, ledger: Path
) -> None:
    kept = Ledger(ledger)
    kept.open_dataset("ward", cap=Budget(4.0, 1e-6), unit="row")
    kept.dispose()
    page = ask(desk, nominal_n="5000", epsilon="1")
    assert "epsilon 0 of 4 is spent" in page
    assert "cap_epsilon" not in page
    assert "Spend epsilon 1 and answer" in page
    assert "which is left" in problem(ask(desk, nominal_n="5000", epsilon="4.9"))


def test_a_warning_of_a_job_begins_as_a_sentence_and_a_name_stays_as_it_is() -> None:
    events = (
        {"event": "warning", "text": "the model has no term for the silo."},
        {"event": "failed", "text": "north.csv: no rows are left."},
    )
    said = Run("a", events, is_alive=False).sentences
    assert said == ["The model has no term for the silo.", "north.csv: no rows are left."]
