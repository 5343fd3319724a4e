"""The information on a job for a silo's owner, and the owner's decisions.

The command line and the console show the same texts and take the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.app.job import derive_plan
from cloister.app.payment import left_for_one_more
from cloister.app.question import facts_of
from cloister.app.text import attacker_sentence
from cloister.core.display import Table
from cloister.core.errors import BudgetExceeded, CloisterError, PlanError
from cloister.core.numerals import number
from cloister.data.loss import completed_by
from cloister.data.reading import ReadingReport
from cloister.federation.service import render
from cloister.federation.silo.periods import Periods, sent_of
from cloister.federation.silo.sections import (
    CODE,
    COST,
    PARTIES,
    Pairs,
    Section,
    Since,
    job_before,
    lines_before,
    sections_of,
    since,
)
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Job
from cloister.privacy import accounting
from cloister.privacy.filter import Cost, cheapest_pricing, tariffs
from cloister.protocol.code import code_mismatch
from cloister.protocol.lifecycle import DENY, GRANTED, MOST_REASON, OPEN, SiloState, Step
from cloister.protocol.plan import Plan

CONSENT = (
    "Profile 'group': the guarantee depends on the noise of the aggregator, which no silo can "
    "check."
)
OWNERS_EYES = (
    "Only you see these counts: they are stored nowhere and sent to nobody. If you decline because "
    "of them, the decline tells others something about your records, and so would its reason."
)
_ENDED_THERE = (SiloState.DONE, SiloState.CANCELLED, SiloState.DECLINED_ELSEWHERE, SiloState.FAILED)
_BEYOND = "beyond the lifetime cap, or its limits for each noise distribution"


@dataclass(frozen=True)
class Question:
    """The description of a job for a silo's owner.

    Parameters
    ----------
    facts : pairs of text
        State and origin of the job, and the answers of policy and ledger.
    sections : tuple of Section
        The whole text of the question, derived from this silo's own schema, with cost, members and
        code here. It is empty for a job that the policy declined on arrival.
    since : Since
        What is new against the job before.
    """

    facts: Pairs
    sentences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    since: Since | None = None
    sections: tuple[Section, ...] = ()
    prices: Pairs = ()
    needs_consent: bool = False
    document: Mapping[str, Any] = field(default_factory=dict)


def who_decided(job: Job) -> str:
    """Return the party that approved, declined or ended a job; "" for nobody."""
    if job.state not in _ENDED_THERE:
        return f"decided by {job.decided_by}" if job.decided_by else ""
    approved = "" if job.decided_by in ("", "coordinator") else f"approved by {job.decided_by}; "
    return f"{approved}ended by coordinator"


def next_period(job: Job, site: Site) -> str:
    """Return whose turn it is in the next period of a horizon; "" for any other job."""
    if job.state not in GRANTED or "horizon" not in json.loads(job.plan):
        return ""
    try:
        plan, sent = plan_of(site, job), _sent(job, site)
        frozen = Periods.of(site, plan).count
    except CloisterError as error:  # a list of jobs shows the others
        return str(error)
    if sent == plan.rounds:
        return ""
    if frozen > sent:
        return f"period {sent + 1} is frozen here and waits for other silos"
    return f"period {sent + 1} waits for you: cloister horizon freeze {job.id[:8]} {sent + 1} FILE"


def _sent(job: Job, site: Site) -> int:
    if not site.settings.ledger.exists():  # opening the ledger would create it
        return 0
    ledger = site.ledger()
    try:
        return sent_of(ledger, job.id)
    finally:
        ledger.dispose()


def question(job: Job, site: Site) -> Question:
    """Return the description of a job on which the owner decides."""
    facts = (
        ("job", job.id),
        ("state", job.state + (f", {decided}" if (decided := who_decided(job)) else "")),
        *([("because", job.reason)] if job.reason else []),
        *([("horizon", due)] if (due := next_period(job, site)) else []),
        ("received", job.received_at),
        ("requested by", f"{asker(job)}  {_pinned(job.proposer, site.settings.analysts)}"),
        ("task and epsilon", priced(job)),
    )
    stored = json.loads(job.plan)
    if "digest" in stored:  # all that is left of a job that the policy declined when it came
        brief = (("study", stored["study"]), ("plan digest", stored["digest"]))
        return Question((*facts, *brief), document={"plan_digest": stored["digest"]})
    plan = plan_of(site, job)
    refusal = site.refusal(plan, job.proposer)
    cost = cost_of(plan, site, job)
    consent = plan.profile == "group"
    standing = site.policy.rules.standing_limits(site.settings.cap_epsilon)
    verdicts = (
        ("policy", "allows it" if refusal is None else f"refuses it: {refusal}"),
        ("ledger", "allows it" if cost.get("fits", True) else f"refuses it: {_BEYOND}"),
        *([("standing rule", standing)] if standing else []),
    )
    # The policy of today says nothing about a job that has ended.
    rest = (("study", plan.study), *(verdicts if job.state in OPEN else ()))
    asked, question_hash = _asked(plan, site)
    earlier = _before(job, site)
    before, compared = _since(asked, *earlier, site)
    convicted = site.convicted()
    warnings = tuple(
        f"A member was convicted by its own signature: {convicted[fingerprint]}."
        for fingerprint in plan.fingerprints
        if fingerprint in convicted
    )
    odds = (attacker_sentence(plan.events(), plan.unit),) if plan.budget else ()
    members = _members(plan, site)
    rows = tuple(tuple(member.values()) for member in members)
    prices = tuple(cost_lines(cost))
    codes = (
        *_code(plan, earlier[1]),
        ("plan digest", plan.digest.hex()),
        ("question", question_hash),
    )
    return Question(
        (*facts, *rest),
        (plan.describe(), *odds),
        (*warnings, *((CONSENT,) if consent else ())),
        compared,
        sections_of(
            asked,
            before,
            {COST: prices, CODE: codes},
            {PARTIES: Table("Members", ("silo", "fingerprint", "pinned here"), rows)},
        ),
        prices,
        consent,
        {
            "refusal": refusal,
            "needs_consent": consent,
            "description": plan.describe(),
            "question": "".join(f"{name}: {value}\n" for name, value in asked),
            "question_hash": question_hash,
            "members": members,
            "cost": cost,
            "plan": plan.to_dict(),
            "plan_digest": plan.digest.hex(),
        },
    )


def _asked(plan: Plan, site: Site) -> tuple[Pairs, str]:
    """Return the facts of the question and the hash of its text, both by this silo's schema."""
    try:
        derived = derive_plan(plan, site.schema, site.tasks)
    except PlanError as error:
        return (("question", f"cannot be derived from this silo's schema: {error}"),), "none"
    return tuple(facts_of(derived, site.schema)), derived.question


def _before(job: Job, site: Site) -> tuple[Job | None, Plan | None]:
    """Return the last approved job of the same study and task, and its plan if it can be read."""
    store = site.store()
    try:
        earlier = job_before(job, store.jobs())
    finally:
        store.dispose()
    if earlier is None:
        return None, None
    try:
        return earlier, plan_of(site, earlier)
    except (CloisterError, ValueError):  # from a version that wrote other plans
        return earlier, None


def _since(
    asked: Pairs, earlier: Job | None, plan: Plan | None, site: Site
) -> tuple[Pairs | None, Since]:
    """Return the question of the job before, if there is one, and the comparison with it."""
    if earlier is None:
        return None, Since("No approved job of this study and task is stored here: all is new.")
    lines = None if plan is None else lines_before(plan, site.schema)
    if lines is None:
        name = earlier.id[:12]
        return None, Since(f"Schema or code changed since job {name} was approved: all is new.")
    return lines, since(asked, lines, earlier)


def _code(plan: Plan, before: Plan | None) -> Pairs:
    """Return the version of the code of a task, and whether this silo has the same."""
    if plan.code is None:
        return ()
    here = code_mismatch(plan) or "the same here"
    # The digest is no line of the question, but the signed plan has it.
    changed = before is not None and before.code != plan.code
    version = f"{plan.code.distribution} {plan.code.version}".rstrip()
    return (
        ("code version", version + ", another than in the job before" * changed),
        ("code digest", plan.code.digest),
        ("code", here),
    )


def check_approval(site: Site, job: Job, *, accepts_aggregator_noise: bool) -> None:
    """Raise the errors that the agent would find later; the agent checks again.

    Raises
    ------
    PlanError, BudgetExceeded
        If the policy or the ledger refuses the job, or consent is missing.
    """
    plan = plan_of(site, job)
    refusal = site.refusal(plan, job.proposer)
    if refusal is not None:
        raise PlanError(f"the policy refuses job {job.id}: {refusal}")
    if plan.profile == "group" and not accepts_aggregator_noise:
        raise PlanError(f"{CONSENT} Add --accept-aggregator-noise to accept this.")
    cost = cost_of(plan, site, job)
    if not cost.get("fits", True):
        raise BudgetExceeded(
            f"job {job.id} would bring the data set to epsilon={cost['after']:.4g}, above its "
            f"lifetime cap of {cost['cap']:.6g}, or beyond its limits; deny it."
        )


def rows_of(job: Job, site: Site) -> ReadingReport:
    """Read the silo's file and count the rows that a job would use, for the owner's eyes alone.

    Raises
    ------
    PlanError
        If the job was declined on arrival, so its columns are not stored.
    """
    if "digest" in json.loads(job.plan):
        raise PlanError(f"job {job.id} was declined when it came; its columns are not stored.")
    plan = plan_of(site, job)
    return site.reading(plan.columns, completed_by(plan.task, plan.columns))


def decide(site: Site, start: str, step: Step[SiloState], reason: str = "") -> str:
    """Apply a step to a job, if its state permits it; return the job's id."""
    if len(reason) > MOST_REASON:  # its end would be cut, and a decline is final
        raise PlanError(
            f"reason must have at most {MOST_REASON} characters, got {len(reason)}; shorten it."
        )
    store = site.store()
    try:
        job = store.find(start)
        if not store.move(job.id, step, reason=reason, by="owner"):
            hint = "; use 'cloister jobs withdraw'" if step is DENY and job.state in GRANTED else ""
            now = store.state(job.id)
            raise PlanError(f"job {job.id} is already {now} and cannot be {step.target}{hint}.")
        return job.id
    finally:
        store.dispose()


def priced(job: Job) -> str:
    """Return a job's task and its price, for lists of jobs."""
    plan = json.loads(job.plan)
    return render.priced(plan["task"]["name"], plan["budget"])


def plan_of(site: Site, job: Job) -> Plan:
    """Read the plan of a job."""
    return Plan.from_dict(json.loads(job.plan), site.tasks)


def asker(job: Job) -> str:
    """Return the name of a job's proposer."""
    return str(job.proposer.get("name", "nobody"))


def _pinned(party: Mapping[str, Any], pins: Mapping[str, str]) -> str:
    fingerprint = str(party.get("fingerprint", ""))
    known = fingerprint and pins.get(str(party.get("name"))) == fingerprint
    return f"{fingerprint or 'without a fingerprint'}, {'pinned' if known else 'NOT PINNED'}"


def _members(plan: Plan, site: Site) -> list[dict[str, str]]:
    """Return each member with its fingerprint and this silo's pin for it."""
    own = {site.settings.name: site.identity.fingerprint}
    members = []
    fingerprints = plan.fingerprints or ("",) * len(plan.silos)
    for name, fingerprint in zip(plan.silos, fingerprints, strict=True):
        pinned = {**site.settings.peers, **own}.get(name)
        verdict = "NO" if pinned is None else "yes" if pinned == fingerprint else "ANOTHER ONE"
        if name in own and pinned == fingerprint:
            verdict = "this silo"
        members.append({"silo": name, "fingerprint": fingerprint, "pinned": verdict})
    return members


def cost_of(plan: Plan, site: Site, job: Job) -> dict[str, Any]:
    """Return the cost of a job here: alone, and in addition to earlier costs."""
    events, limits, so_far, booked = plan.events(), site.limits, Cost(), False
    # Opening the ledger would create it.
    if site.settings.ledger.exists():
        ledger = site.ledger()
        booked = any(record.job == job.id for record in ledger.jobs())
        limits, so_far = ledger.limits(site.schema.dataset), ledger.cost(site.schema.dataset)
        ledger.dispose()
    cost: dict[str, Any] = {
        "alone": accounting.epsilon(events, limits.cap.delta),
        "cap": limits.cap.epsilon,
        "delta": limits.cap.delta,
    }
    # Composition is not additive in epsilon, so the job is priced together with earlier costs.
    after = so_far
    if not booked:  # else its cost is in what was spent
        cost["before"] = limits.epsilon(so_far)
        cost["left_before"] = limits.epsilon_left(so_far)
        after = so_far + tariffs(events, [limits])[0].cost(events)
        cost["fits"] = cheapest_pricing(events, [(limits, so_far)]) is not None
    return {**cost, "after": limits.epsilon(after), "left_after": limits.epsilon_left(after)}


def _epsilon(value: float) -> str:
    return f"epsilon {number(value)}"


def cost_lines(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that describe a cost."""
    meanings = {
        "alone": "this job alone",
        "before": "spent before it",
        "left_before": "left before it, for one job",
        "after": "spent with it",
        "left_after": "left with it, for one more job",
        "cap": "lifetime cap",
    }
    lines = [
        (text, (left_for_one_more if key == "left_after" else _epsilon)(cost[key]))
        for key, text in meanings.items()
        if key in cost
    ]
    return [*lines, ("all at delta", f"{cost['delta']:.2g}")]
