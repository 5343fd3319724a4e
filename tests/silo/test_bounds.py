"""What a stranger's offers may cost a silo, and how often one study may be named anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloister import Ledger
from cloister.app.in_process import CONTENT_KEY
from cloister.core.errors import PlanError
from cloister.federation.transports.http import Kind, Message
from cloister.protocol import plan as plan_module
from cloister.protocol.lifecycle import SiloState as State
from cloister.protocol.plan import MAX_PLAN_MODEL, MAX_STUDY, MAX_TEXT, Plan, study_name
from cloister.tasks import TASKS
from cloister.tasks.evaluation.classification import Evaluation
from cloister.testing import toy_plan

from .kit import Site, end, offer, said


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# What is kept --------------------------------------------------------------------------------


def test_of_a_plan_that_the_policy_declines_a_digest_is_kept_and_a_changed_one_refused(
    site: Site,
) -> None:
    site.refused = "no such task."
    plan = toy_plan(schema_digest="s" * 1000)
    agent = site.agent()
    for _ in range(2):
        assert said(agent.on_message(offer(plan))) == [("declined", "no such task.")]
    kept = site.store().find(plan.run_id)
    assert len(kept.plan) < 300
    assert json.loads(kept.plan)["digest"] == plan.digest.hex()
    changed = replace(plan, nominal_n=plan.nominal_n + 1)
    assert "was changed" in said(agent.on_message(offer(changed)))[0][1]


def test_the_newest_ended_jobs_are_kept_and_whatever_is_open(site: Site) -> None:
    site.standing = True
    agent = site.agent(kept=3)
    plans = [toy_plan(budget=replace(toy_plan().budget, epsilon=0.1)) for _ in range(5)]
    waits, plans = plans[0], plans[1:]
    for plan in [waits, *plans]:
        assert said(agent.on_message(offer(plan))) == [("approved", "")]
    for plan in plans:
        agent.on_message(end(plan, "cancelled"))
    site.refused = "no."
    declined = [toy_plan() for _ in range(5)]
    for plan in declined:
        agent.on_message(offer(plan))
    states = site.agent(kept=3)._store.states()
    assert [job for job, state in states.items() if state == State.DECLINED] == [
        plan.run_id for plan in declined[-3:]
    ]
    assert [job for job, state in states.items() if state == State.CANCELLED] == [
        plan.run_id for plan in plans[-3:]
    ]
    assert states[waits.run_id] == State.APPROVED
    assert len(site.ledger().jobs()) == 5, "the ledger forgets nothing"


def test_a_job_that_was_forgotten_cannot_be_run_again(site: Site) -> None:
    site.standing = True
    agent = site.agent(kept=1)
    plans = [toy_plan() for _ in range(3)]
    for plan in plans:
        agent.on_message(offer(plan))
        agent.on_message(end(plan, "cancelled"))
    agent = site.agent(kept=1)
    assert set(site.store().states()) == {plans[-1].run_id}
    assert said(agent.on_message(offer(plans[0])))[0][0] == "declined"


def test_what_was_told_and_has_ended_is_not_looked_at_again(site: Site) -> None:
    site.refused = "no such task."
    agent = site.agent()
    for _ in range(20):
        agent.on_message(offer(toy_plan()))
    assert agent._reported == {}


# How long a plan may be ----------------------------------------------------------------------

PLAN = toy_plan()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"study": "x" * (MAX_STUDY + 1)}, "study must be a text of at most 200 bytes"),
        ({"study": "é" * 101}, "of 202"),
        ({"study": 7}, "study must be text"),
        ({"columns": ("a", "b" * (MAX_TEXT + 1))}, "columns must have texts of at most 1000"),
        ({"unit": "u" * (MAX_TEXT + 1)}, "unit must have texts of at most 1000"),
        ({"schema_digest": "d" * (MAX_TEXT + 1)}, "schema_digest must have texts"),
        ({"silos": ("a", "b", "c" * 300)}, "silo name must have 1 to 255 bytes"),
    ],
)
def test_no_text_in_a_plan_is_longer_than_it_may_be(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        replace(PLAN, **changes)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=sentence):
        Plan.from_dict({**PLAN.to_dict(), **changes}, TASKS)


def test_no_text_in_a_task_is_longer_than_it_may_be() -> None:
    task = Evaluation(n_features=2, classes=("a", "b" * 1001), truth=0, prediction=1)
    with pytest.raises(PlanError, match="task must have texts of at most 1000 bytes"):
        toy_plan(task)


def test_a_plan_over_a_network_is_as_long_as_its_columns_and_its_model_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    length = len(PLAN.canonical_json())
    monkeypatch.setattr(plan_module, "MAX_PLAN", length - 2 * 512)
    PLAN.check_network()
    monkeypatch.setattr(plan_module, "MAX_PLAN", length - 2 * 512 - 1)
    with pytest.raises(PlanError, match=f"at most {length - 1} bytes with 2 columns and no model"):
        PLAN.check_network()
    monkeypatch.setattr(plan_module, "MAX_PLAN_MODEL", 10)
    with pytest.raises(PlanError, match="at most 10 bytes"):
        PLAN.check_network()


def test_an_offer_that_is_too_long_is_declined_unread(site: Site) -> None:
    message = Message(Kind.OFFER, 0, "0" * 32, b"{" * (MAX_PLAN_MODEL + 10_000))
    assert said(site.agent().on_message(message))[0][0] == "declined"
    assert site.store().states() == {}


# One study, one name -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        "default",
        "Default",
        " default ",
        "DEFAULT\t",
        "ｄefault",
    ],
)
def test_spellings_of_one_study_are_one_study(spelling: str) -> None:
    assert study_name(spelling) == "default"


@pytest.mark.parametrize(
    "name", ["", "  ", "a\u200bb", "a\u202eb", "a\x00b", "a\nb\x7f", "a;b", "🙂"]
)
def test_a_study_is_named_by_letters_and_digits(name: str) -> None:
    with pytest.raises(PlanError, match="study must be a name of letters"):
        study_name(name)


def test_a_study_name_is_its_own_name() -> None:
    for name in ("Étude 7 (Straße)", "İstanbul", "अध्ययन-2", "a  b"):
        assert study_name(study_name(name)) == study_name(name)


def spent_by(site: Site, study: str) -> float:
    return Ledger(site.ledger_path).spent("toy", study)


def test_the_cap_of_a_study_holds_for_every_spelling_of_it(site: Site) -> None:
    site.standing, site.study_epsilon = True, 1.2
    agent = site.agent()
    assert said(agent.on_message(offer(toy_plan(study="Trial A")))) == [("approved", "")]
    for spelling in ("trial a", "TRIAL  A ", "Trial A"):
        ((decision, reason),) = said(agent.on_message(offer(toy_plan(study=spelling))))
        assert decision == "declined"
        assert "trial a" in reason
    assert spent_by(site, "trial a") == pytest.approx(1, abs=1e-3)


def test_a_ledger_from_before_there_was_a_rule_goes_on_under_its_own_name(site: Site) -> None:
    old = toy_plan(study="Trial A")
    ledger = site.ledger()
    content = site.read(old).fingerprint(CONTENT_KEY)
    known = {"dataset": "toy", "study": "Trial A", "job": old.run_id}
    ledger.reserve(**known, events=old.events(), content=content)
    ledger.dispose()
    site.standing, site.study_epsilon = True, 1.2
    agent = site.agent()
    ((decision, reason),) = said(agent.on_message(offer(toy_plan(study="trial a"))))
    assert (decision, "Trial A" in reason) == ("declined", True)
    assert said(agent.on_message(offer(old))) == [("approved", "")], "a job goes on as it began"
