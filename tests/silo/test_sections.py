"""An owner reads the whole question in sections, and what is new since a job approved before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloister import Budget, Schema
from cloister.app.job import make_plan
from cloister.app.question import facts_of, question_of
from cloister.cli import main
from cloister.federation.settings import SiloSettings, load_role
from cloister.federation.silo.decisions import Question, question, who_decided
from cloister.federation.silo.sections import job_before, lines_before, sections_of, since
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Job
from cloister.protocol import lifecycle
from cloister.protocol.lifecycle import SiloState as State
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS

from .test_commands import Home, home, keys

__all__ = ["home", "keys"]  # fixtures


def planned(home: Home, *, epsilon: float = 1.0, **about: Any) -> Plan:
    schema = Schema.load(home.folder / "schema.toml")
    fixed: dict[str, Any] = {
        "budget": Budget(epsilon, 1e-6),
        "nominal_n": 300,
        "profile": "pairwise",
    }
    return make_plan(TASKS["linear"], schema, home.plan().silos, target="x1", **fixed, **about)


def approved(home: Home, plan: Plan) -> str:
    job: str = home.receive(plan)
    home.store.move(job, lifecycle.ACCEPT, by="owner")
    return job


def read(home: Home, job: str) -> Question:
    found = home.store.get(job)
    assert found is not None
    return question(found, Site.of(load_role(home.config, SiloSettings)))


def news(asked: Question) -> dict[str, str]:
    return {line.name: line.news for one in asked.sections for line in one.lines if line.news}


def test_sections_hold_every_line_of_the_signed_text_in_its_order(home: Home) -> None:
    plan = planned(home)
    schema = Schema.load(home.folder / "schema.toml")
    lines = [line for one in sections_of(tuple(facts_of(plan, schema))) for line in one.lines]
    text = "".join(f"{line.name}: {line.value}\n" for line in lines)
    assert text == question_of(plan, schema)
    titles = [one.title for one in read(home, home.receive(plan)).sections]
    assert titles[0] == "What is asked"
    assert titles[-1] == "Contract and code"
    assert len(set(titles)) == 8


def test_a_job_without_a_predecessor_says_so(home: Home) -> None:
    asked = read(home, home.receive(planned(home)))
    assert asked.since is not None
    assert asked.since.sentence.startswith("No approved job of this study and task")
    assert not news(asked)


def test_what_is_new_is_marked_and_what_is_gone_is_listed(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    first = approved(home, planned(home, min_silos=3))
    home.receive(planned(home, study="another"))
    asked = read(home, job := home.receive(planned(home, epsilon=0.5, columns=("x1", "x0"))))
    assert asked.since is not None
    assert first[:12] in asked.since.sentence
    assert news(asked)["epsilon"] == "was 1.0"
    assert "column" not in news(asked)
    assert main(["jobs", "show", "--config", home.config, job]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^epsilon +0\.5$", text, re.MULTILINE)  # as it was signed
    assert re.search(r"^epsilon +0\.5 \(was 1\.0\)$", text, re.MULTILINE)
    same = read(home, home.receive(planned(home, min_silos=3)))
    assert same.since is not None
    assert "the same as that of" in same.since.sentence


def test_repeated_lines_are_new_or_gone_and_others_have_a_value_before() -> None:
    job = Job("a" * 32, "{}", {}, "2026-01-01", State.DONE, decided_by="owner")
    before = (("column", "a: number"), ("column", "b: number"), ("epsilon", "1.0"), ("old", "x"))
    now = (("column", "a: number"), ("column", "c: number"), ("epsilon", "2.0"), ("young", "y"))
    found = {(line.name, line.value): line.news for line in sections_of(now, before)[0].lines}
    assert found == {("column", "a: number"): "", ("column", "c: number"): "new"}
    assert sections_of(now, before)[1].lines[0].news == "was 1.0"
    compared = since(now, before, job)
    assert compared.gone == (("column", "b: number"), ("old", "x"))
    assert "3 lines are new, 2 lines are gone" in compared.sentence


@pytest.mark.parametrize(
    ("state", "by", "counts"),
    [
        (State.DONE, "owner", True),
        (State.CANCELLED, "standing rule", True),
        (State.CANCELLED, "coordinator", False),
        (State.DECLINED, "owner", False),
        (State.WITHDRAWN, "owner", False),
        (State.WAITING, "", False),
    ],
)
def test_only_an_approved_job_comes_before(state: State, by: str, counts: bool) -> None:
    def job(name: str, study: str = "s", state: State = state) -> Job:
        plan = f'{{"study": "{study}", "task": {{"name": "t"}}}}'
        return Job(name, plan, {}, "2026-01-01", state, decided_by=by)

    now = job("now")
    jobs = [job("first"), job("last"), job("other", study="o"), now, job("later")]
    found = job_before(now, jobs)
    assert (found.id if found else None) == ("last" if counts else None)


def test_under_another_schema_nothing_is_compared(home: Home) -> None:
    approved(home, plan := planned(home))
    path = Path(home.folder / "schema.toml")
    schema = Schema.load(path)
    assert lines_before(plan, schema) == tuple(facts_of(plan, schema))
    path.write_text(path.read_text().replace("max = 1.0", "max = 2.0"))
    assert lines_before(plan, Schema.load(path)) is None
    asked = read(home, home.receive(planned(home)))
    assert asked.since is not None
    assert asked.since.sentence.startswith("Schema or code changed")
    assert not news(asked)


def test_the_policy_of_today_is_not_applied_to_a_job_that_has_ended(home: Home) -> None:
    job = home.receive(planned(home))
    assert dict(read(home, job).facts).keys() >= {"policy", "ledger"}
    home.store.move(
        job, lifecycle.CLOSES[State.CANCELLED], reason="silo-1: not now", by="coordinator"
    )
    facts = dict(read(home, job).facts)
    assert facts["because"] == "silo-1: not now"
    assert not {"policy", "ledger", "standing rule"} & facts.keys()


@pytest.mark.parametrize(
    ("state", "by", "said"),
    [
        ("waiting", "", ""),
        ("declined", "owner", "decided by owner"),
        ("approved", "standing rule", "decided by standing rule"),
        ("cancelled", "owner", "approved by owner; ended by coordinator"),
        ("declined elsewhere", "owner", "approved by owner; ended by coordinator"),
        ("failed", "coordinator", "ended by coordinator"),
    ],
)
def test_it_is_said_who_approved_and_who_ended_a_job(state: str, by: str, said: str) -> None:
    job = Job("a", "{}", {}, "2026-01-01", State(state), decided_by=by)
    assert who_decided(job) == said
