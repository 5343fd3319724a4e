"""What an agent answers, and what it never does, without a network."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloister import Budget
from cloister.app.release import Release
from cloister.core.errors import LedgerError, RemoteProtocolError
from cloister.federation.service.audit import verify
from cloister.federation.silo.agent import AGGREGATOR_NOISE, LOCAL_PROBLEM, Agent
from cloister.federation.transports.http import Kind, Message
from cloister.privacy import ledger_file
from cloister.privacy.chain import composed
from cloister.privacy.events import mechanism_counts
from cloister.protocol import lifecycle
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.lifecycle import SiloState as State
from cloister.protocol.messages import Open, Upload, decode, encode
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.secagg.masks import GroupMask
from cloister.testing import ZeroNoise, toy_plan, toy_records

from .kit import KEY, SENTINEL, Site, ask, end, offer, said


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def plan() -> Plan:
    return toy_plan()


def approve(site: Site, plan: Plan) -> bool:
    """Approve as the owner does, from another connection to the file."""
    store = site.store()
    return store.move(plan.run_id, lifecycle.ACCEPT, by="owner")


def state(site: Site, plan: Plan) -> State | None:
    return site.store().state(plan.run_id)


def approved(site: Site, plan: Plan) -> Agent:
    """Return an agent that was offered a job and approved it."""
    agent = site.agent()
    agent.on_message(offer(plan))
    approve(site, plan)
    assert said(agent.look()) == [("approved", "")]
    return agent


def opened(plan: Plan, t: int = 0) -> Message:
    return ask(plan, encode(plan, Open(t)))


class Carrier:
    """A transport between an aggregator, one agent under test, and the clients of the others."""

    def __init__(self, site: Site, agent: Agent, plan: Plan) -> None:
        self.site, self.agent, self.plan = site, agent, plan
        records = toy_records(plan)
        self.others = {
            name: Client(plan, name, [records[name]], GroupMask(KEY))
            for name in plan.silos
            if name != site.name
        }
        self.answers: list[Message] = []

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        answers = {}
        for name, frame in frames.items():
            if name in self.others:
                answers[name] = self.others[name].handle(frame)
                continue
            (answer,) = self.agent.on_message(ask(self.plan, frame))
            self.answers.append(answer)
            if answer.kind == Kind.ANSWER:
                answers[name] = answer.body
        return answers

    def run(self) -> None:
        for _ in run_rounds(Aggregator(self.plan, ZeroNoise()), self):
            pass


# --- Offers ---------------------------------------------------------------------------------------


def test_nothing_is_said_or_sent_before_the_owner_decides(site: Site, plan: Plan) -> None:
    agent = site.agent()
    assert agent.on_message(offer(plan)) == []
    assert agent.look() == []
    assert state(site, plan) == State.WAITING
    (refused,) = agent.on_message(opened(plan))
    assert refused.kind == Kind.REFUSE
    assert site.ledger().jobs() == ()


def test_a_frame_of_a_job_that_was_never_offered_is_refused(site: Site, plan: Plan) -> None:
    (refused,) = site.agent().on_message(opened(plan))
    assert refused.kind == Kind.REFUSE
    assert "not known" in said([refused])[0][1]


def test_what_the_policy_refuses_is_declined_with_its_reason(site: Site, plan: Plan) -> None:
    site.refused = "task 'fastlloyd' is not allowed here."
    site.standing = True
    assert said(site.agent().on_message(offer(plan))) == [("declined", site.refused)]
    assert state(site, plan) == State.DECLINED
    assert site.ledger().jobs() == ()


def test_a_flood_of_refused_offers_is_declined_and_not_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.federation.silo.agent._MOST_DECLINED", 2)
    site.refused = "no such task."
    agent = site.agent()
    for plan in (plans := [toy_plan() for _ in range(4)]):
        assert said(agent.on_message(offer(plan))) == [("declined", "no such task.")]
    assert set(site.store().states()) == {plan.run_id for plan in plans[:2]}
    assert verify(site.folder / "audit.jsonl")[0] == 2
    site.refused = None
    assert agent.on_message(offer(plans[3])) == []
    assert state(site, plans[3]) == State.WAITING, "what fits is kept, whatever came before"


def test_a_standing_rule_approves_what_the_policy_does_not_refuse(site: Site, plan: Plan) -> None:
    site.standing = True
    assert said(site.agent().on_message(offer(plan))) == [("approved", "")]
    assert site.ledger().jobs()[0].is_open


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"standing_tasks": ["count"]}, "does not cover task"),
        ({"standing_epsilon_per_job": 0.01}, "covers an epsilon of at most 0.01 a job"),
    ],
)
def test_a_standing_rule_can_be_narrower_than_the_policy(
    site: Site, plan: Plan, rules: dict[str, Any], why: str
) -> None:
    site.standing, site.rules = True, rules
    assert site.agent().on_message(offer(plan)) == []
    waiting = site.store().get(plan.run_id)
    assert waiting is not None
    assert waiting.state == State.WAITING
    assert why in waiting.reason
    wide = {"standing_tasks": [plan.task.name], "standing_epsilon_per_job": 99.0}
    site.rules = wide
    again = replace(plan, run_id="1" * 32)
    assert said(site.agent().on_message(offer(again))) == [("approved", "")]


def test_approved_is_said_after_the_whole_cost_is_reserved(site: Site, plan: Plan) -> None:
    agent = site.agent()
    agent.on_message(offer(plan))
    assert approve(site, plan)  # by another process, while the agent runs
    assert said(agent.look()) == [("approved", "")]
    assert agent.look() == []  # once
    assert site.ledger().spent("toy") == pytest.approx(1.0, rel=1e-3)
    # and is said again when the coordinator asks again
    agent.connected()
    assert said(agent.on_message(offer(plan))) == [("approved", "")]
    assert site.ledger().spent("toy") == pytest.approx(1.0, rel=1e-3)


def test_a_decision_made_without_a_connection_is_told_at_the_next_offer(
    site: Site, plan: Plan
) -> None:
    agent = site.agent()
    agent.on_message(offer(plan))
    agent.connected()
    approve(site, plan)
    assert agent.look() == []  # nobody has asked on this connection
    assert said(agent.on_message(offer(plan))) == [("approved", "")]


def test_denied_by_the_owner_is_declined(site: Site, plan: Plan) -> None:
    agent = site.agent()
    agent.on_message(offer(plan))
    site.store().move(plan.run_id, lifecycle.DENY, reason="not this year.", by="owner")
    assert said(agent.look()) == [("declined", "not this year.")]
    assert not approve(site, plan)  # a decision is one


def test_a_changed_plan_under_the_same_id_is_refused(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    changed = replace(plan, nominal_n=301)
    assert changed.run_id == plan.run_id
    ((decision, reason),) = said(agent.on_message(offer(changed)))
    assert decision == "declined"
    assert "changed" in reason
    assert site.store().get(plan.run_id).plan == plan.canonical_json()
    (refused,) = agent.on_message(opened(changed))
    assert refused.kind == Kind.REFUSE


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"plan": 3}',
        b"\xff",
        b'{"plan": {}, "proposer": {}}',
        b"[" * 100_000,
        json.dumps({"plan": {**toy_plan().to_dict(), "protocol": 99}}).encode(),
        json.dumps({"plan": toy_plan().to_dict(), "proposer": "ann"}).encode(),
    ],
)
def test_an_offer_that_cannot_be_read_is_declined(site: Site, body: bytes) -> None:
    ((decision, reason),) = said(site.agent().on_message(Message(Kind.OFFER, 0, "0" * 32, body)))
    assert decision == "declined"
    assert reason.startswith("the plan cannot be read")
    assert site.store().jobs() == ()


def test_a_plan_under_the_id_of_another_job_is_declined(site: Site, plan: Plan) -> None:
    message = replace(offer(plan), job="0" * 32)
    ((decision, _),) = said(site.agent().on_message(message))
    assert decision == "declined"
    assert site.store().jobs() == ()


# --- Budget and data ------------------------------------------------------------------------------


def test_a_job_beyond_the_budget_is_declined_with_the_reason(site: Site, plan: Plan) -> None:
    site.cap, site.standing = 1.2, True
    agent = site.agent()
    assert said(agent.on_message(offer(plan))) == [("approved", "")]
    ((decision, reason),) = said(agent.on_message(offer(toy_plan())))
    assert decision == "declined"
    assert "lifetime cap of 1.2" in reason
    assert len(site.ledger().jobs()) == 1


def test_a_study_has_its_own_cap(site: Site) -> None:
    site.standing, site.study_epsilon = True, 1.2
    agent = site.agent()
    assert said(agent.on_message(offer(toy_plan(study="a")))) == [("approved", "")]
    assert said(agent.on_message(offer(toy_plan(study="b")))) == [("approved", "")]
    ((decision, reason),) = said(agent.on_message(offer(toy_plan(study="a"))))
    assert decision == "declined"
    assert "study 'a'" in reason


def test_a_changed_cap_of_a_study_holds_from_the_next_start(site: Site) -> None:
    site.standing, site.study_epsilon = True, 1.2
    assert said(site.agent().on_message(offer(toy_plan()))) == [("approved", "")]
    # Deleted, the ledger's cap stays, and the reason names the command that changes it.
    site.study_epsilon = None
    ((decision, reason),) = said(site.agent().on_message(offer(toy_plan())))
    assert (decision, "cloister budget cap --study" in reason) == ("declined", True)
    site.study_epsilon = 1.4
    ((decision, reason),) = said(site.agent().on_message(offer(toy_plan())))
    assert (decision, "cap of 1.4" in reason) == ("declined", True)
    # One above the lifetime cap replaces the smaller one too.
    site.study_epsilon = site.cap + 1
    assert said(site.agent().on_message(offer(toy_plan()))) == [("approved", "")]
    assert site.ledger().study_caps("toy") == {"default": Budget(site.cap, 1e-6)}


def test_a_year_has_its_own_cap_over_all_studies(site: Site) -> None:
    site.standing = True
    agent = site.agent(year_epsilon=1.2)
    assert said(agent.on_message(offer(toy_plan(study="a")))) == [("approved", "")]
    ((decision, reason),) = said(agent.on_message(offer(toy_plan(study="b"))))
    assert decision == "declined"
    assert "year" in reason


def test_of_a_data_problem_nothing_is_told(site: Site, plan: Plan) -> None:
    site.standing = True

    def read(_: Plan) -> None:
        raise ValueError(f"row 7 holds {SENTINEL}")

    assert said(site.agent(read=read).on_message(offer(plan))) == [("declined", LOCAL_PROBLEM)]
    assert site.ledger().jobs() == ()


def test_records_that_change_after_approval_leave_nothing(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    site.values = site.values / 2
    (refused,) = agent.on_message(opened(plan))
    assert said([refused]) == [("refused", LOCAL_PROBLEM)]
    assert len(site.ledger().jobs()[0].rounds) == 0
    # The owner reads with the job what only the log had.
    agent.on_message(end(plan, "failed", "too few silos."))
    job = site.store().get(plan.run_id)
    assert job is not None
    assert job.reason.startswith("too few silos. At this silo: ")


# --- Rounds ---------------------------------------------------------------------------------------


def test_a_job_runs_to_its_result(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    carrier = Carrier(site, agent, plan)
    carrier.run()
    assert {answer.kind for answer in carrier.answers} == {Kind.ANSWER}
    result = Release.load(site.folder / "results" / plan.run_id / "model.json")
    assert result.plan == plan
    assert result.noise == AGGREGATOR_NOISE
    other = carrier.others["silo-1"].state
    for name, value in plan.task.results(other, plan.grid).items():
        assert np.array_equal(result.results[name], value)
    assert state(site, plan) == State.FINISHED
    assert site.ledger().jobs()[0].is_open  # repeats are still answered

    repeated = agent.on_message(replace(opened(plan, plan.rounds - 1), number=9))
    assert repeated[0].kind == Kind.ANSWER
    agent.on_message(end(plan))
    assert state(site, plan) == State.DONE
    (job,) = site.ledger().jobs()
    assert not job.is_open
    assert len(job.rounds) == plan.rounds
    (refused,) = agent.on_message(opened(plan))
    assert "done" in said([refused])[0][1]


def test_a_bad_frame_is_refused_with_a_reason_and_the_job_goes_on(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    (refused,) = agent.on_message(ask(plan, b"not a frame"))
    assert refused.kind == Kind.REFUSE
    assert said([refused])[0][1] != LOCAL_PROBLEM
    (answer,) = agent.on_message(opened(plan))
    assert answer.kind == Kind.ANSWER


def test_the_policy_is_asked_once_more_at_the_first_frame_and_not_later(
    site: Site, plan: Plan
) -> None:
    agent = approved(site, plan)
    site.refused = "silo 'silo-1' is not pinned."
    (refused,) = agent.on_message(opened(plan))
    assert said([refused]) == [("refused", site.refused)]
    assert state(site, plan) == State.DECLINED
    assert not site.ledger().jobs()[0].is_open

    site.refused, later = None, toy_plan()
    agent = approved(site, later)
    Carrier(site, agent, later).agent.on_message(opened(later))
    site.refused = "a change of policy counts from the next job on."
    again = site.agent().on_message(opened(later))  # also after a restart
    assert again[0].kind == Kind.ANSWER


def test_the_policy_is_asked_once_more_when_the_owner_approves(site: Site, plan: Plan) -> None:
    agent = site.agent()
    agent.on_message(offer(plan))
    site.refused = "silo 'silo-1' is not pinned."
    approve(site, plan)
    assert said(agent.look()) == [("declined", site.refused)]
    assert site.ledger().jobs() == ()


def test_two_jobs_at_once_do_not_mix(site: Site) -> None:
    plans = [toy_plan(), toy_plan(study="other")]
    site.standing = True
    agent = site.agent()
    for plan in plans:
        assert said(agent.on_message(offer(plan))) == [("approved", "")]
    runs = [run_rounds(Aggregator(plan, ZeroNoise()), Carrier(site, agent, plan)) for plan in plans]
    for _ in range(plans[0].rounds):
        for run in runs:
            next(run)
    for run in runs:
        assert next(run, None) is None
    for plan in plans:
        agent.on_message(end(plan))
        assert state(site, plan) == State.DONE


def test_an_upload_waits_for_its_slot_and_other_answers_do_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan(upload_slot=10.0)
    agent = approved(site, plan)
    clock = iter([103.0, 104.0, 117.0, 131.0])  # asked, made; asked, made too late for 120
    # for the agent only: another thread that asks for the time would take one away
    monkeypatch.setattr(
        "cloister.federation.silo.agent.time", SimpleNamespace(time=lambda: next(clock))
    )
    agent.on_message(opened(plan))
    agent.on_message(opened(plan))
    assert site.waits == [6.0, 9.0]


def test_an_agent_that_stops_before_the_slot_sends_nothing(site: Site) -> None:
    plan = toy_plan(upload_slot=10.0)
    site.standing = True
    agent = site.agent(wait=lambda _: True)
    agent.on_message(offer(plan))
    assert agent.on_message(opened(plan)) == []


# --- Ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "final"),
    [
        ("failed", State.FAILED),
        ("cancelled", State.CANCELLED),
        ("declined", State.DECLINED_ELSEWHERE),
    ],
)
def test_a_job_that_ends_early_keeps_what_left_and_frees_the_rest(
    site: Site, plan: Plan, status: str, final: State
) -> None:
    agent = approved(site, plan)
    agent.on_message(opened(plan))
    whole = site.ledger().spent("toy")
    agent.on_message(end(plan, status, "too few silos."))
    assert state(site, plan) == final
    (job,) = site.ledger().jobs()
    assert not job.is_open
    assert len(job.rounds) == 1
    assert 0 < site.ledger().spent("toy") < whole
    (refused,) = agent.on_message(opened(plan, 1))
    assert refused.kind == Kind.REFUSE


def test_a_job_that_is_done_elsewhere_is_not_done_here(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    agent.on_message(opened(plan))
    agent.on_message(end(plan))
    assert state(site, plan) == State.FAILED
    assert not (site.folder / "results" / plan.run_id).exists()


def test_an_end_that_cannot_be_read_is_an_end(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    agent.on_message(Message(Kind.END, 0, plan.run_id, b"{"))
    assert state(site, plan) == State.FAILED


def test_withdrawn_means_no_frame_any_more(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    agent.on_message(opened(plan))
    charged = site.ledger().jobs()[0].rounds
    site.store().move(plan.run_id, lifecycle.WITHDRAW, by="owner")
    (refused,) = agent.on_message(opened(plan))  # not even what left once
    assert "withdrawn" in said([refused])[0][1]
    assert said(agent.look()) == [("declined", "withdrawn by its owner.")]
    (job,) = site.ledger().jobs()
    assert not job.is_open
    assert job.rounds == charged


def test_withdrawn_while_the_vector_is_made_sends_nothing(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    read = site.read

    class Slow(type(read(plan))):  # type: ignore[misc]
        def __iter__(self):  # type: ignore[no-untyped-def]
            site.store().move(plan.run_id, lifecycle.WITHDRAW, by="owner")
            return super().__iter__()

    agent._site.records = lambda p: Slow(**vars(read(p)))
    (refused,) = agent.on_message(opened(plan))
    assert refused.kind == Kind.REFUSE
    assert not site.ledger().jobs()[0].is_open


# --- Crashes --------------------------------------------------------------------------------------


def test_a_crash_between_reservation_and_decision_reserves_once(site: Site, plan: Plan) -> None:
    agent = site.agent()
    agent.on_message(offer(plan))
    approve(site, plan)
    agent._book(plan)  # and then the process dies
    again = site.agent()
    assert said(again.on_message(offer(plan))) == [("approved", "")]
    assert len(site.ledger().jobs()) == 1


def test_a_result_that_a_crash_kept_from_the_disk_is_there_after_the_end(
    site: Site, plan: Plan
) -> None:
    agent = approved(site, plan)
    agent._finish = lambda client: None  # type: ignore[method-assign]
    Carrier(site, agent, plan).run()  # the last answer left, and then the process dies
    assert state(site, plan) == State.RUNNING
    site.agent().on_message(end(plan))
    assert state(site, plan) == State.DONE
    assert (site.folder / "results" / plan.run_id / "model.json").is_file()


def test_after_a_restart_exactly_the_same_bytes_are_sent(site: Site, plan: Plan) -> None:
    (first,) = approved(site, plan).on_message(opened(plan))  # committed, and never sent
    (again,) = site.agent().on_message(opened(plan))
    assert first.kind == again.kind == Kind.ANSWER
    assert first.body == again.body
    assert len(site.ledger().jobs()[0].rounds) == 1


def test_a_reservation_left_behind_by_a_crash_is_closed_at_the_next_start(
    site: Site, plan: Plan
) -> None:
    approved(site, plan)
    site.store().move(plan.run_id, lifecycle.WITHDRAW, by="owner")  # and then all dies
    site.agent()
    assert not site.ledger().jobs()[0].is_open


_KILLED = """
    import os, sys
    from pathlib import Path
    sys.path[:0] = {path!r}
    from kit import Site, ask, offer
    from cloister.protocol.messages import Open, encode
    from cloister.protocol.plan import Plan
    from cloister.tasks import TASKS
    import json
    plan = Plan.from_dict(json.loads(sys.argv[2]), TASKS)
    site = Site(Path(sys.argv[1]), standing=True)
    agent = site.agent()
    where = sys.argv[3]
    die = lambda *_: os.kill(os.getpid(), 9)
    if where == "after reserve":
        agent._store.move = die
    agent.on_message(offer(plan))
    (answer,) = agent.on_message(ask(plan, encode(plan, Open(0))))
    sys.stdout.write(answer.body.hex())
    sys.stdout.flush()
    die()
"""


@pytest.mark.parametrize("where", ["after reserve", "before send"])
def test_sigkill_costs_nothing_twice(site: Site, plan: Plan, where: str) -> None:
    here = str(Path(__file__).parent)
    code = textwrap.dedent(_KILLED).format(path=[here, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(site.folder), plan.canonical_json(), where],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -9, done.stderr
    site.standing = True
    agent = site.agent()
    assert said(agent.on_message(offer(plan))) == [("approved", "")]
    (answer,) = agent.on_message(opened(plan))
    if where == "before send":
        assert answer.body.hex() == done.stdout
    (job,) = site.ledger().jobs()
    assert len(job.rounds) == 1


# --- What is kept and told ------------------------------------------------------------------------


def test_every_change_of_state_is_in_the_audit_file_once(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    Carrier(site, agent, plan).run()
    agent.on_message(end(plan))
    agent.look()
    site.agent().look()
    path = site.folder / "audit.jsonl"
    verify(path)
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["waiting", "approved", "running", "finished", "done"]


def test_no_record_is_in_any_message_log_or_file(
    site: Site, plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    site.values = np.full((50, 2), SENTINEL)
    planted = plan.grid.encode(np.full((1, 2), SENTINEL))[0] if hasattr(plan.grid, "encode") else []
    agent = approved(site, plan)
    carrier = Carrier(site, agent, plan)
    carrier.others = {
        name: Client(plan, name, [records], GroupMask(KEY))
        for name, records in toy_records(plan).items()
        if name != site.name
    }
    carrier.run()
    site.values = "broken"
    agent.on_message(offer(other := toy_plan()))
    approve(site, other)
    declined = agent.look()
    needles = [f"{SENTINEL:.6f}"[:8].encode(), np.float64(SENTINEL).tobytes()]
    needles += [np.asarray([p, p], dtype="<i4").tobytes() for p in planted[:1]]
    haystack = {"log": caplog.text.encode()}
    for number, message in enumerate([*carrier.answers, *declined]):
        haystack[f"message {number}"] = message.body
    for folder, _, files in os.walk(site.folder):
        for name in files:
            haystack[name] = (Path(folder) / name).read_bytes()
    assert {"ledger.db", "ledger.jobs.db", "audit.jsonl", "model.json"} <= haystack.keys()
    assert [(n, where) for n in needles for where, hay in haystack.items() if n in hay] == []


def test_files_are_for_the_owner_alone(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    Carrier(site, agent, plan).run()
    for folder, _, files in os.walk(site.folder):
        for name in files:
            path = Path(folder) / name
            hidden = path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0
            assert hidden, name


def test_a_client_error_is_told_and_any_other_is_not(site: Site, plan: Plan) -> None:
    for error, reason in (
        (RemoteProtocolError("round 3 was opened."), "round 3 was opened."),
        (ZeroDivisionError("7 records"), LOCAL_PROBLEM),
    ):
        job = toy_plan()
        site.standing = True

        def join(*_: object, error: Exception = error) -> None:
            raise error

        agent = site.agent(join=join)
        agent.on_message(offer(job))
        assert said(agent.on_message(opened(job))) == [("refused", reason)]


def test_the_upload_is_what_the_client_made(site: Site, plan: Plan) -> None:
    (answer,) = approved(site, plan).on_message(opened(plan))
    upload = decode(plan, answer.body)
    assert isinstance(upload, Upload)
    assert upload.sender == site.name
    assert site.ledger().frame(plan.run_id, 0) == answer.body
    assert Budget(1.0, 1e-6) == plan.budget


# --- Older copies that were put back --------------------------------------------------------------


def spent_whole(site: Site) -> bool:
    (job,) = site.ledger().jobs()
    return not job.is_open and job.charged == composed(Counter(mechanism_counts(job.events)))


def copied(site: Site, *names: str) -> dict[str, bytes]:
    """Return files as they are now, with the logs of databases and the head of a ledger."""
    for name in names:
        connection = sqlite3.connect(site.folder / name)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    files = [site.folder / name for name in (*names, *(f"{name}.head" for name in names))]
    return {file.name: file.read_bytes() for file in files if file.exists()}


def put_back(site: Site, copy: Mapping[str, bytes]) -> Site:
    """Return the silo on a machine where the ledger and maybe other files are older copies."""
    there = replace(site, folder=site.folder / "restored", audit=None)
    there.folder.mkdir()
    if (site.folder / "results").exists():
        shutil.copytree(site.folder / "results", there.folder / "results")
    for name, content in {**copied(site, "ledger.jobs.db"), **copy}.items():
        (there.folder / name).write_bytes(content)
        (there.folder / name).chmod(0o600)
    return there


def test_of_a_job_that_is_done_by_its_own_file_nothing_is_returned(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    copy = copied(site, "ledger.db")  # the reservation, and no round
    Carrier(site, agent, plan).run()
    agent.on_message(end(plan))
    true = site.ledger().spent("toy")
    site = put_back(site, copy)
    site.agent()
    assert state(site, plan) == State.DONE
    assert site.ledger().spent("toy") >= true
    assert spent_whole(site)


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_of_a_job_that_ran_before_a_restart_nothing_is_returned(
    site: Site, plan: Plan, status: str
) -> None:
    agent = approved(site, plan)
    agent.on_message(opened(plan))
    copy = copied(site, "ledger.db", "ledger.jobs.db")
    site = put_back(site, copy)
    site.agent().on_message(end(plan, status))
    assert spent_whole(site)


def test_of_a_job_copied_while_its_first_frame_is_answered_nothing_is_returned(
    site: Site, plan: Plan
) -> None:
    agent = approved(site, plan)
    copies, join = [], agent._join

    def copying(*about: Any) -> Client:
        copies.append(copied(site, "ledger.db", "ledger.jobs.db"))
        return join(*about)

    agent._join = copying
    assert [answer.kind for answer in agent.on_message(opened(plan))] == [Kind.ANSWER]
    site = put_back(site, copies[0])
    site.agent().on_message(end(plan, "failed"))
    assert spent_whole(site)


def test_of_a_job_that_the_coordinator_calls_done_nothing_is_returned(
    site: Site, plan: Plan
) -> None:
    agent = approved(site, plan)
    copy = copied(site, "ledger.db", "ledger.jobs.db")  # approved, and never asked for a frame
    Carrier(site, agent, plan).run()
    site = put_back(site, copy)
    again = site.agent()
    assert state(site, plan) == State.APPROVED
    again.on_message(end(plan))
    assert spent_whole(site)


def test_of_a_job_whose_result_lies_there_nothing_is_returned(site: Site, plan: Plan) -> None:
    agent = approved(site, plan)
    copy = copied(site, "ledger.db", "ledger.jobs.db")
    Carrier(site, agent, plan).run()
    site = put_back(site, copy)
    site.agent().on_message(end(plan, "failed"))
    assert spent_whole(site)


def test_a_job_that_never_ran_here_is_returned_whole(site: Site, plan: Plan) -> None:
    """So a silo that was away while the others went on keeps its budget."""
    approved(site, plan).on_message(end(plan))
    assert site.ledger().spent("toy") == 0
    other = toy_plan()
    agent = site.agent()
    agent.on_message(offer(other))
    approve(site, other)
    agent.look()
    site.agent().on_message(end(other, "cancelled", "the job started without it."))
    assert site.ledger().spent("toy") == 0


# --- Disks that are full for a while --------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("end_first", [False, True])
def test_a_result_that_cannot_be_written_is_kept_until_it_can(
    site: Site, plan: Plan, monkeypatch: pytest.MonkeyPatch, restarted: bool, end_first: bool
) -> None:
    agent = approved(site, plan)
    model = site.folder / "results" / plan.run_id / "model.json"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_for(site.folder / "results"))
        Carrier(site, agent, plan).run()  # nobody else is held up
        assert state(site, plan) == State.RUNNING
        if end_first:
            agent.on_message(end(plan))
            agent.look()
            assert state(site, plan) == State.RUNNING
            assert site.ledger().frame(plan.run_id, 0) is not None, "nothing is forgotten"
        assert not model.is_file()
        if restarted:
            agent = site.agent()
            agent.look()
            assert not model.is_file()
    agent.look()
    assert model.is_file()
    if restarted or not end_first:
        agent.on_message(end(plan))  # which the coordinator says again on a new connection
    assert state(site, plan) == State.DONE
    assert not site.ledger().jobs()[0].is_open


def full_for(folder: Path) -> Callable[[int], None]:
    """Return an ``fsync`` that finds no space for files of one folder."""
    true = os.fsync

    def fsync(descriptor: int) -> None:
        if str(folder) in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        true(descriptor)

    return fsync


@pytest.mark.parametrize("where", ["_store", "_ledger", "_audit"])
@pytest.mark.parametrize("status", ["done", "failed"])
def test_no_reservation_stays_open_after_a_full_disk_has_space_again(
    site: Site, plan: Plan, monkeypatch: pytest.MonkeyPatch, where: str, status: str
) -> None:
    agent = approved(site, plan)
    if status == "done":
        Carrier(site, agent, plan).run()
    else:
        agent.on_message(opened(plan))

    def full(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full.")

    names = {"_store": ("move",), "_ledger": ("close", "forget_frames"), "_audit": ("write",)}
    for name in names[where]:
        with monkeypatch.context() as patched:
            patched.setattr(getattr(agent, where), name, full)
            with pytest.raises(LedgerError, match="full"):
                agent.on_message(end(plan, status))
            with pytest.raises(LedgerError, match="full"):
                agent.look()
        agent.look()
        assert not site.ledger().jobs()[0].is_open
        assert state(site, plan) == (State.DONE if status == "done" else State.FAILED)
        break


# --- Clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-86_400.0, -601.0, 601.0, 60 * 86_400.0])
def test_nothing_is_booked_by_a_clock_far_from_the_coordinators(
    site: Site, plan: Plan, ahead: float
) -> None:
    site.standing = True
    agent = site.agent()
    (answer,) = agent.on_message(offer(plan, time=time.time() - ahead))
    ((decision, reason),) = said([answer])
    assert decision == "declined"
    assert "the clock of 'silo-0' is" in reason
    assert site.ledger().jobs() == ()
    agent.connected()
    other = toy_plan()
    assert said(agent.on_message(offer(other, time=time.time() - 550))) == [("approved", "")]


def test_nothing_is_booked_by_a_clock_that_went_back(
    site: Site, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.standing = True
    agent = site.agent()
    then = datetime.now(UTC) - timedelta(hours=1)
    monkeypatch.setattr(ledger_file, "utc_now", lambda: then)
    assert said(agent.on_message(offer(plan))) == [("declined", LOCAL_PROBLEM)]
    assert site.ledger().jobs() == ()
