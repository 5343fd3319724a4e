"""What records hold never shows: not in a decision, not in a frame, not in a file for others."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from cloister.data import Records, read_source
from cloister.data.schema import Column, Schema
from cloister.federation.transports.http import Kind
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.lifecycle import SiloState as State
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.secagg.masks import GroupMask
from cloister.testing import ZeroNoise, toy_plan, toy_records

from .kit import KEY, Site, ask, offer, said

SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=(
        Column(name="x0", type="number", min=-1.0, max=1.0),
        Column(name="x1", type="number", min=-1.0, max=1.0, missing="midpoint"),
    ),
)
CONTENTS = {
    "ordinary": "0.1,0.2\n-0.5,0.3\n0.7,-0.1\n",
    "not a number": "nan,nan\n0.1,NaN\n0.2,\n",
    "unknown category": "blue,0.2\n0.1,green\n0.3,0.4\n",
    "out of bounds": "1e300,-1e300\ninf,-inf\n7,0\n",
    "empty": "",
    "one class": "0.5,0.5\n0.5,0.5\n0.5,0.5\n",
    "too few fields": "0.1\n0.1,0.2,0.3\n0.5,0.5\n",
    "no text": "\x00\x00,\x00\n\xff,0.1\n",
}


def life(folder: Path, content: str, plan: Plan) -> tuple[list[object], list[str], list[str]]:
    """Run a silo's agent through a whole job on a file; return what left, audit and log lines."""
    folder.mkdir()
    (folder / "records.csv").write_bytes(b"x0,x1\n" + content.encode("latin1"))
    site = Site(folder, standing=True)

    def read(of: Plan) -> Records:
        return read_source(folder / "records.csv", SCHEMA, frac_bits=of.grid.frac_bits)

    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log = logging.getLogger("cloister")
    handler = Keeping()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    agent = site.agent(read=read)
    left: list[object] = [*said(agent.on_message(offer(plan)))]
    records = toy_records(plan)
    others = {s: Client(plan, s, [records[s]], GroupMask(KEY)) for s in plan.silos[1:]}

    class Line:
        def exchange(self, frames: dict[str, bytes]) -> dict[str, bytes]:
            answers = {}
            for silo, frame in frames.items():
                if silo in others:
                    answers[silo] = others[silo].handle(frame)
                    continue
                (message,) = agent.on_message(ask(plan, frame))
                left.append((message.kind, len(message.body)))
                if message.kind == Kind.ANSWER:
                    answers[silo] = message.body
            return answers

    for done in run_rounds(Aggregator(plan, ZeroNoise()), Line(), attempts=1):
        assert site.name in done.survivors
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    assert site.store().state(plan.run_id) == State.FINISHED
    audit = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    events = [str({k: v for k, v in e.items() if k in ("event", "by", "reason")}) for e in audit]
    return left, events, lines


@pytest.mark.parametrize("name", CONTENTS)
def test_what_records_hold_never_stops_a_federated_job_nor_shows(name: str, tmp_path: Path) -> None:
    plan = toy_plan(schema_digest="")
    expected = life(tmp_path / "ordinary", CONTENTS["ordinary"], plan)
    assert expected[0][0] == ("approved", "")
    assert len(expected[0]) == 1 + 2 * plan.rounds + 1, "a decision, two answers a round, the end"
    assert life(tmp_path / "other", CONTENTS[name], plan) == expected
