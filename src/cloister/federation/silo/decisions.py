"""The information on a job for a silo's owner, and the owner's decisions.

The command line and the console show the same texts and take the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.app.job import derive_plan
from cloister.app.question import facts_of
from cloister.app.text import attacker_sentence, number
from cloister.core.display import Table
from cloister.core.errors import BudgetExceeded, PlanError
from cloister.federation.service import render
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Job
from cloister.privacy import accounting
from cloister.privacy.filter import Cost, cheapest_pricing, tariffs
from cloister.protocol.lifecycle import DENY, GRANTED, SiloState, Step
from cloister.protocol.plan import Plan

Pairs = tuple[tuple[str, str], ...]

CONSENT = (
    "Profile 'group': the guarantee depends on the noise of the aggregator, which no silo can "
    "check."
)
_BEYOND = "beyond the lifetime cap, or its limits for each noise distribution"


@dataclass(frozen=True)
class Question:
    """The description of a job for a silo's owner.

    Parameters
    ----------
    facts : pairs of text
        State and origin of the job, and the answers of policy and ledger.
    asked : pairs of text
        The whole text of the question, derived from this silo's own schema; see
        :mod:`cloister.app.question`.
    """

    facts: Pairs
    asked: Pairs = ()
    sentences: tuple[str, ...] = ()
    members: Table | None = None
    prices: Pairs = ()
    needs_consent: bool = False
    document: Mapping[str, Any] = field(default_factory=dict)


def question(job: Job, site: Site) -> Question:
    """Return the description of a job on which the owner decides."""
    facts = (
        ("job", job.id),
        ("state", job.state + (f", decided by {job.decided_by}" if job.decided_by else "")),
        *([("because", job.reason)] if job.reason else []),
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
    rest = (
        ("study", plan.study),
        ("plan digest", plan.digest.hex()),
        ("policy", "allows it" if refusal is None else f"refuses it: {refusal}"),
        ("ledger", "allows it" if cost.get("fits", True) else f"refuses it: {_BEYOND}"),
    )
    asked, question_hash = _asked(plan, site)
    convicted = site.convicted()
    warnings = tuple(
        f"A member was convicted by its own signature: {convicted[fingerprint]}."
        for fingerprint in plan.fingerprints
        if fingerprint in convicted
    )
    odds = (attacker_sentence(plan.events(), plan.unit),) if plan.budget else ()
    members = _members(plan, site)
    rows = tuple(tuple(member.values()) for member in members)
    return Question(
        (*facts, *rest, ("question", question_hash)),
        asked,
        (plan.describe(), *warnings, *odds, *((CONSENT,) if consent else ())),
        Table("Members", ("silo", "fingerprint", "pinned here"), rows),
        tuple(cost_lines(cost)),
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


def decide(site: Site, start: str, step: Step[SiloState], reason: str = "") -> str:
    """Apply a step to a job, if its state permits it; return the job's id."""
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
        (text, f"epsilon {number(cost[key])}") for key, text in meanings.items() if key in cost
    ]
    return [*lines, ("all at delta", f"{cost['delta']:.2g}")]
