"""What a silo loses is shown to its owner, once it starts, and to no job."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloister.app.job import make_plan
from cloister.core.errors import DataError
from cloister.data import Records, check_file, read_source
from cloister.data.schema import Column, Schema
from cloister.federation.settings import DataSettings
from cloister.federation.silo import main
from cloister.federation.silo.site import Site as RealSite
from cloister.federation.silo.site import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise

from .kit import KEY, Site, ask, offer, said

SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="age", type="number", min=0.0, max=100.0),
        Column(name="days", type="number", min=0.0, max=60.0),
        Column(name="dead", type="boolean"),
    ),
)
JOBS: Mapping[str, Mapping[str, Any]] = {
    "count": {},
    "describe": {},
    "auto": {"n_clusters": 2, "columns": ["age", "days"]},
    "tabulate": {"tables": [["dead"]]},
    "logistic": {"target": "dead"},
    "linear": {"target": "age"},
    "survival": {"time": "days", "event": "dead"},
    "outliers": {},
}
ROWS = [f"{20 + i},{i % 60},{'yn'[i % 2]}" for i in range(60)]
BAD = {"wrong": "4o,0,y", "missing": ",0,y", "another event": "20,0,J", "no field": "20"}


def settings(folder: Path, rows: list[str], **data: Any) -> Any:
    file = folder / "records.csv"
    file.write_text("\n".join(["age,days,dead", *rows]))
    return SimpleNamespace(data=DataSettings(file=file, **data), ordered_records=False)


def site_of(folder: Path, rows: list[str], **data: Any) -> RealSite:
    given: Any = None
    return RealSite(settings(folder, rows, **data), SCHEMA, given, given)


def life(folder: Path, rows: list[str], plan: Plan) -> tuple[list[object], list[str], list[str]]:
    """Run an agent through a job; return what left without its masks, audit and log lines."""
    folder.mkdir()
    real, site = site_of(folder, rows), Site(folder, standing=True)
    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, handler = logging.getLogger(), Keeping()
    log.addHandler(handler)
    agent = site.agent(read=real.records)
    left: list[object] = [*said(agent.on_message(offer(plan)))]
    (folder / "other.csv").write_text("\n".join(["age,days,dead", *ROWS]))
    part = {"columns": plan.columns, "frac_bits": plan.grid.frac_bits}
    other: Records = read_source(folder / "other.csv", SCHEMA, **part)
    others = {name: Client(plan, name, other, GroupMask(KEY)) for name in plan.silos[1:]}

    class Line:
        def exchange(self, frames: dict[str, bytes]) -> dict[str, bytes]:
            answers = {}
            for silo, frame in frames.items():
                if silo in others:
                    answers[silo] = others[silo].handle(frame)
                    continue
                (message,) = agent.on_message(ask(plan, frame))
                left.append((message.kind, message.number, message.job, len(message.body)))
                answers[silo] = message.body
            return answers

    for done in run_rounds(Aggregator(plan, ZeroNoise()), Line(), attempts=1):
        assert site.name in done.survivors
    log.removeHandler(handler)
    audit = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    events = [str({k: v for k, v in e.items() if k in ("event", "by", "reason")}) for e in audit]
    return left, events, lines


@pytest.mark.parametrize("name", JOBS)
def test_one_bad_cell_changes_no_frame_no_code_and_no_decision(tmp_path: Path, name: str) -> None:
    plan = make_plan(
        TASKS[name],
        SCHEMA,
        ["silo-0", "silo-1", "silo-2"],
        budget=Budget(1.0, 1e-6),
        nominal_n=200,
        min_silos=3,
        **JOBS[name],
    )
    expected = life(tmp_path / "sound", ROWS, plan)
    assert not any("left out" in line for line in expected[2])
    for bad, row in BAD.items():
        assert life(tmp_path / bad, [row, *ROWS[1:]], plan) == expected
    every = [row.replace("y", "J") for row in ROWS]  # even of half of the rows
    assert life(tmp_path / "half", every, plan) == expected


def test_kept_missing_cells_are_lost_rows_unless_the_job_completes_them(tmp_path: Path) -> None:
    kept = Column(name="age", type="number", min=0.0, max=100.0, missing="keep")
    schema = Schema(dataset="toy", unit="row", columns=(kept, *SCHEMA.columns[1:]))
    given: Any = None
    held = settings(tmp_path, [",5,y"] * 10 + ROWS[10:])
    site = RealSite(held, schema, given, given)
    assert site.loses_too_much(site.reading())
    assert site.reading(["age", "dead"]).lost == 10
    assert site.reading(["age", "dead"], ["age"]).lost == 0
    assert site.reading(["days", "dead"]).lost == 0


@pytest.mark.parametrize(
    ("bad", "accepted", "starts"),
    [(0, None, True), (3, None, True), (4, None, False), (4, 0.07, True), (60, 1.0, True)],
)
def test_an_agent_refuses_to_start_above_what_its_owner_accepts(
    tmp_path: Path, bad: int, accepted: float | None, starts: bool
) -> None:
    rows = [*(f"{i},5,Jawohl" for i in range(bad)), *ROWS[bad:]]
    site = site_of(tmp_path, rows, accept_loss=accepted)
    assert site.loses_too_much(site.reading()) != starts
    if starts:
        site.check_loss()
        return
    with pytest.raises(DataError) as refusal:
        site.check_loss()
    text = str(refusal.value)
    assert "cloister check" in text
    assert "accept_loss" in text
    assert not any(sign.isdecimal() for sign in text)
    assert not any(word in text for word in ("Jawohl", "dead", "age"))


def test_cells_that_cannot_be_read_are_told_at_the_start_without_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        site_of(tmp_path, ["20,5,Jawohl", *ROWS[1:]]).check_loss()
    (text,) = caplog.messages
    assert "are left out" in text
    assert "cloister check" in text
    assert not any(sign.isdecimal() for sign in text)
    assert not any(word in text for word in ("Jawohl", "dead", "age"))


def test_an_agent_stops_where_the_header_lacks_columns(tmp_path: Path) -> None:
    site = site_of(tmp_path, ROWS)
    file = tmp_path / "records.csv"
    file.write_text(file.read_text().replace("age", "Alter", 1))
    with pytest.raises(DataError, match="has no column 'age'") as refusal:
        site.check_loss()
    assert "Alter" not in str(refusal.value)


def test_reading_settings_of_several_files_read_the_silos_file(tmp_path: Path) -> None:
    given = settings(tmp_path, [row.replace("y", "J") for row in ROWS])
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    written = '["other.csv"]\n["records.csv".columns.dead]\nspellings = { true = ["J"] }\n'
    (tmp_path / "reading.toml").write_text(written)
    given.data = given.data.model_copy(update={"reading": tmp_path / "reading.toml"})
    given.schema_file = tmp_path / "schema.toml"
    schema = schema_of(given)
    assert schema.digest() == SCHEMA.digest()
    report = check_file(given.data.source(), schema)
    assert (report.lost, report.causes) == (0, ())


DOUBTFUL = [f"{20 + i},{i % 60},{'yn'[i % 2]}" for i in range(50)] + ["999,5,y"] * 10


def test_doubts_warn_the_owner_at_the_start_and_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = site_of(tmp_path, DOUBTFUL)
    assert "'999'" in site.reading().doubts[0]
    with caplog.at_level(logging.WARNING):
        site.check_loss()
    (text,) = caplog.messages
    assert "cloister check" in text
    assert not any(sign.isdecimal() for sign in text)
    assert "age" not in text
    caplog.clear()
    site_of(tmp_path, ROWS).check_loss()
    assert not caplog.messages


def test_a_standing_approval_reads_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(
        TASKS["tabulate"],
        SCHEMA,
        ["silo-0", "silo-1", "silo-2"],
        budget=Budget(1.0, 1e-6),
        nominal_n=200,
        min_silos=3,
        **JOBS["tabulate"],
    )
    expected = life(tmp_path / "sound", ROWS, plan)
    monkeypatch.setattr(RealSite, "reading", lambda *args: pytest.fail("it was read"))
    assert life(tmp_path / "doubtful", DOUBTFUL, plan) == expected


def test_records_that_cannot_be_read_are_for_the_jobs_to_find(tmp_path: Path) -> None:
    site = site_of(tmp_path, ROWS)
    (tmp_path / "records.csv").unlink()
    site.check_loss()


def test_run_looks_once_before_it_dials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = site_of(tmp_path, [row.replace("y", "J") for row in ROWS])
    monkeypatch.setattr(main, "prepare", lambda keys: None)
    monkeypatch.setattr(main.Site, "of", lambda given: bad)
    monkeypatch.setattr(main, "open_agent", lambda *args, **more: pytest.fail("it went on"))
    with pytest.raises(DataError, match="more rows of this silo's data are excluded"):
        main.run(SimpleNamespace(keys=tmp_path))  # type: ignore[arg-type]
