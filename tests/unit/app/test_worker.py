"""A worker runs a request that it reads, and says what happens in lines of JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cloister.app import worker
from cloister.app.release import Release
from cloister.app.request import Request
from cloister.testing import toy_schema

Said = pytest.CaptureFixture[str]
SCHEMA = toy_schema(2)


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).uniform(-0.9, 0.9, (300, 2))
    for name in "ab":
        np.savetxt(f"{name}.csv", rows, delimiter=",", header="x0,x1", comments="")
    Path("schema.toml").write_text(SCHEMA.to_toml())
    Path("out").mkdir()
    return Request(
        task="auto",
        options={"n_clusters": 2},
        files={name: Path(f"{name}.csv") for name in "ab"},
        schema_file=Path("schema.toml"),
        columns=SCHEMA.names,
        epsilon=2.0,
        nominal_n=600,
        ledger=Path("l.db"),
        cap_epsilon=5.0,
        out=Path("out"),
    )


def run(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> tuple[int, list[Mapping[str, Any]]]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    code = worker.main()
    written = capsys.readouterr()
    assert written.err == ""
    return code, worker.events_in(written.out)


def test_a_request_leaves_a_report_and_events(
    request_: Request, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    code, events = run(request_.model_dump_json(), monkeypatch, capsys)
    assert code == 0
    rounds = [event for event in events if event["event"] == "round"]
    plan = Release.load("out/model.json").plan
    assert [(event["done"], event["of"]) for event in rounds] == [
        (n, plan.rounds) for n in range(1, plan.rounds + 1)
    ]
    assert events[-1]["event"] == "done"
    assert events[-1]["result"] in Path("out/report.html").read_text()
    assert plan.silos == ("a", "b")


def test_an_error_of_ours_is_an_event_and_nothing_is_spent(
    request_: Request, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    Path("b.csv").write_text("x0\n0.5\n")
    code, events = run(request_.model_dump_json(), monkeypatch, capsys)
    assert (code, events[-1]["event"]) == (1, "failed")
    assert "has no column" in events[-1]["text"]
    assert not Path("l.db").exists()


@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyboardInterrupt(), "interrupted"), (ValueError("37.625"), "unexpected ValueError")],
)
def test_no_event_quotes_an_unexpected_error(
    request_: Request,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Said,
    error: BaseException,
    text: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("cloister.app.job.Job.run", fail)
    code, events = run(request_.model_dump_json(), monkeypatch, capsys)
    assert code == 1
    assert text in events[-1]["text"]
    assert "37.625" not in json.dumps(events)


def test_a_request_that_is_none_is_refused_without_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    code, events = run('{"task": "37.625"}', monkeypatch, capsys)
    assert code == 1
    assert events == [
        {"event": "failed", "text": "unexpected ValidationError; run the command in a terminal."}
    ]


def test_a_request_is_the_same_after_its_journey(request_: Request) -> None:
    assert Request.model_validate_json(request_.model_dump_json()) == request_
    with pytest.raises(ValidationError):
        Request(**{**request_.model_dump(), "seed": 1})


def test_a_line_that_is_not_whole_yet_is_no_event() -> None:
    assert worker.events_in('{"event": "done"}\n{"event": "rou') == [{"event": "done"}]
    assert worker.events_in("") == []
