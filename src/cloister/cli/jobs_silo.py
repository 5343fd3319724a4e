"""``cloister jobs`` at a silo: its owner sees what is asked of the records, and decides."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from cloister.cli.options import target_of
from cloister.cli.output import Output
from cloister.cli.release import priced, show_federated
from cloister.display import Table
from cloister.errors import BudgetExceeded, DataError, PlanError
from cloister.jobs import JobResult
from cloister.privacy import accounting
from cloister.privacy.filter import Cost, cheapest, tariffs
from cloister.privacy.noise import AGGREGATOR_NOISE
from cloister.protocol.lifecycle import ACCEPT, DENY, GRANTED, WITHDRAW, SiloState, Step
from cloister.protocol.plan import Plan
from cloister.report import listed, number, odds_sentence
from cloister.report.text import warnings_of
from cloister.silo.agent import MODEL, close_job
from cloister.silo.site import Site
from cloister.silo.store import Job

CONSENT = (
    "Profile 'group': the guarantee rests on the aggregator really adding the noise, which no silo "
    "can check."
)
_BEYOND = "beyond the lifetime cap, or the limits it is cut into for each law of noise"


def _list(_: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    jobs = site.store().jobs()
    rows = tuple((job.id, job.state, _asker(job), _priced(job), job.received_at) for job in jobs)
    headings = ("job", "state", "asked by", "task and epsilon", "received")
    out.table(Table(f"Jobs at {site.settings.name}", headings, rows))
    if waiting := sum(job.state == SiloState.WAITING for job in jobs):
        out.say(f"{waiting} wait for your decision: cloister jobs show JOB, then approve or deny")
    keys = ("state", "received_at")
    described = [{"job": job.id, **{key: getattr(job, key) for key in keys}} for job in jobs]
    return {"silo": site.settings.name, "jobs": described}


def _show(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    out.pairs(
        ("job", job.id),
        ("state", job.state + (f", decided by {job.decided_by}" if job.decided_by else "")),
        *([("because", job.reason)] if job.reason else []),
        ("received", job.received_at),
        ("asked by", f"{_asker(job)}  {_pinned(job.proposer, site.settings.analysts)}"),
        ("task and epsilon", _priced(job)),
    )
    in_brief = "digest" in json.loads(job.plan)
    details = _show_in_brief(job, out) if in_brief else _show_plan(job, site, out)
    keys = ("state", "reason", "decided_by", "received_at", "proposer")
    return {"job": job.id, **{key: getattr(job, key) for key in keys}, **details}


def _show_in_brief(job: Job, out: Output) -> dict[str, Any]:
    """Show what is left of the plan of a job that the policy declined when it came."""
    plan = json.loads(job.plan)
    out.pairs(("study", plan["study"]), ("plan digest", plan["digest"]))
    return {"plan_digest": plan["digest"]}


def _show_plan(job: Job, site: Site, out: Output) -> dict[str, Any]:
    """Show a plan, who takes part, what it costs here and what the owner can do."""
    plan = _plan(site, job)
    refusal = site.refusal(plan, job.proposer)
    cost = _cost(plan, site, job)
    consent = plan.profile == "group"
    out.pairs(
        ("study", plan.study),
        ("plan digest", plan.digest.hex()),
        ("columns", listed(plan.columns)),
        *target_of(plan),
        ("policy", "allows it" if refusal is None else f"refuses it: {refusal}"),
        ("ledger", "allows it" if cost.get("fits", True) else f"refuses it: {_BEYOND}"),
    )
    out.say()
    out.paragraph(plan.describe())
    if plan.budget:
        out.paragraph(odds_sentence(plan.events(), plan.unit))
    if consent:
        out.paragraph(CONSENT)
    out.say()
    members = _members(plan, site)
    headings = ("silo", "fingerprint", "pinned here")
    out.table(Table("Members", headings, tuple(tuple(member.values()) for member in members)))
    out.pairs(*_cost_lines(cost))
    if job.state == SiloState.WAITING:
        flag = " --accept-aggregator-noise" if consent else ""
        out.say()
        out.say(f"to decide: cloister jobs approve {job.id}{flag}, or cloister jobs deny {job.id}")
    return {
        "refusal": refusal,
        "needs_consent": consent,
        "description": plan.describe(),
        "members": members,
        "cost": cost,
        "plan": plan.to_dict(),
        "plan_digest": plan.digest.hex(),
    }


def _approve(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    if job.state == SiloState.WAITING:
        _check_approval(args, site, job, _plan(site, job))
    document = _decide(args, site, out, ACCEPT)
    out.say("The agent reserves its cost now and then tells the coordinator; see 'jobs show'.")
    return document


def _check_approval(args: argparse.Namespace, site: Site, job: Job, plan: Plan) -> None:
    """Say at once what would stop the agent; it looks again itself."""
    refusal = site.refusal(plan, job.proposer)
    if refusal is not None:
        raise PlanError(f"the policy refuses job {job.id}: {refusal}")
    if plan.profile == "group" and not args.accept_aggregator_noise:
        raise PlanError(f"{CONSENT} Give --accept-aggregator-noise to accept that.")
    cost = _cost(plan, site, job)
    if not cost.get("fits", True):
        raise BudgetExceeded(
            f"job {job.id} would bring the data set to epsilon={cost['after']:.4g}, above its "
            f"lifetime cap of {cost['cap']:.6g}, or beyond its limits; deny it."
        )


def _deny(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    return _decide(args, site, out, DENY, args.reason or "the owner declined.")


def _withdraw(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    document = _decide(args, site, out, WITHDRAW, args.reason)
    rest = "the rest is free again."
    if document["job"] in site.store().ran():  # only the agent knows whether it has seen all of it
        rest = "the agent frees the rest."
    elif site.settings.ledger.exists():
        ledger = site.ledger()
        close_job(ledger, document["job"])
        ledger.dispose()
    out.say(f"Nothing more leaves for it; what left stays charged, {rest}")
    return document


def _decide(
    args: argparse.Namespace, site: Site, out: Output, step: Step[SiloState], reason: str = ""
) -> dict[str, Any]:
    """Take a step of a job, if its state has that step."""
    store = site.store()
    job = store.find(args.job)
    if not store.move(job.id, step, reason=reason, by="owner"):
        hint = "; use 'cloister jobs withdraw'" if step is DENY and job.state in GRANTED else ""
        now = store.state(job.id)
        raise PlanError(f"job {job.id} is {now} already and cannot be {step.target}{hint}.")
    out.say(f"{step.target}  {job.id}")
    return {"job": job.id, "state": step.target}


def _result(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    path = site.settings.results / job.id / MODEL
    if not path.is_file():
        raise DataError(f"job {job.id} is {job.state} and has no result here.")
    result = JobResult.load(path, site.tasks)
    group = result.noise == AGGREGATOR_NOISE
    for warning in (CONSENT,) if group else warnings_of(result):
        out.warn(warning)
    plan = result.plan
    cost = _cost_lines(_cost(plan, site, job)) if args.report else ()
    show_federated(result, out, args.report, cost)
    out.say(f"model    {path}")
    return {
        "job": job.id,
        "noise": result.noise,
        "epsilon": result.epsilon(),
        "columns": plan.columns,
        "results": result.results,
        "survivors": result.survivors,
        "plan_digest": plan.digest.hex(),
        "files": {"model": path, "report": args.report},
    }


def _plan(site: Site, job: Job) -> Plan:
    return Plan.from_dict(json.loads(job.plan), site.tasks)


def _asker(job: Job) -> str:
    return str(job.proposer.get("name", "nobody"))


def _pinned(party: Mapping[str, Any], pins: Mapping[str, str]) -> str:
    fingerprint = str(party.get("fingerprint", ""))
    known = fingerprint and pins.get(str(party.get("name"))) == fingerprint
    return f"{fingerprint or 'without a fingerprint'}, {'pinned' if known else 'NOT PINNED'}"


def _priced(job: Job) -> str:
    plan = json.loads(job.plan)
    return priced(plan["task"]["name"], plan["budget"])


def _members(plan: Plan, site: Site) -> list[dict[str, str]]:
    """Return each member with its fingerprint and what this silo has pinned for it."""
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


def _cost(plan: Plan, site: Site, job: Job) -> dict[str, Any]:
    """Return what a job costs here: alone, and with all that was spent or reserved before."""
    events, limits, so_far, booked = plan.events(), site.limits, Cost(), False
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
    after = so_far
    if not booked:  # else its cost is in what was spent
        cost["before"] = limits.epsilon(so_far)
        cost["left_before"] = limits.epsilon_left(so_far)
        after = so_far + tariffs(events, [limits])[0].cost(events)
        cost["fits"] = cheapest(events, [(limits, so_far)]) is not None
    return {**cost, "after": limits.epsilon(after), "left_after": limits.epsilon_left(after)}


def _cost_lines(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
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


ACTIONS: dict[str, Callable[[argparse.Namespace, Site, Output], dict[str, Any]]] = {
    "list": _list,
    "show": _show,
    "approve": _approve,
    "deny": _deny,
    "withdraw": _withdraw,
    "result": _result,
}
