"""``cloister jobs`` at a silo: the owner reviews proposed jobs and decides on them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from cloister.app.release import Release
from cloister.app.report.page import About
from cloister.app.text import warnings_of
from cloister.app.unknown import results_with_reasons
from cloister.cli.options import task_of_model
from cloister.cli.output import Output
from cloister.cli.release import show_federated
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError
from cloister.federation.silo.agent import MODEL, close_job
from cloister.federation.silo.decisions import (
    CONSENT,
    asker,
    check_approval,
    cost_lines,
    cost_of,
    decide,
    priced,
    question,
)
from cloister.federation.silo.site import Site
from cloister.federation.verification import verify_release
from cloister.privacy.noise import AGGREGATOR_NOISE
from cloister.protocol.lifecycle import ACCEPT, DENY, WITHDRAW, SiloState, Step


def _list(_: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    jobs = site.store().jobs()
    rows = tuple((job.id, job.state, asker(job), priced(job), job.received_at) for job in jobs)
    headings = ("job", "state", "proposed by", "task and epsilon", "received")
    out.table(Table(f"Jobs at {site.settings.name}", headings, rows))
    # A job without a decision delays all its silos.
    if waiting := sum(job.state == SiloState.WAITING for job in jobs):
        out.say(
            f"jobs that wait for your decision: {waiting}; cloister jobs show JOB, then approve "
            "or deny"
        )
    keys = ("state", "received_at")
    described = [{"job": job.id, **{key: getattr(job, key) for key in keys}} for job in jobs]
    return {"silo": site.settings.name, "jobs": described}


def _show(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    request = question(job, site)
    out.pairs(*request.facts)
    # Of a job that the policy declined on arrival only the digest is kept.
    if request.members:
        out.say()
        out.pairs(*request.asked)
        out.say()
        for sentence in request.sentences:
            out.paragraph(sentence)
        out.say()
        out.table(request.members)
        out.pairs(*request.prices)
        if job.state == SiloState.WAITING:
            flag = " --accept-aggregator-noise" if request.needs_consent else ""
            out.say()
            out.say(
                f"to decide: cloister jobs approve {job.id}{flag}, or cloister jobs deny {job.id}"
            )
    keys = ("state", "reason", "decided_by", "received_at", "proposer")
    return {"job": job.id, **{key: getattr(job, key) for key in keys}, **request.document}


def _approve(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    if job.state == SiloState.WAITING:
        check_approval(site, job, accepts_aggregator_noise=args.accept_aggregator_noise)
    # Only the decision is recorded here; the agent reserves the cost.
    document = _decide(args, site, out, ACCEPT)
    out.say("The agent now reserves its cost and informs the coordinator; see 'jobs show'.")
    return document


def _deny(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    return _decide(args, site, out, DENY, args.reason or "the owner declined.")


def _withdraw(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    document = _decide(args, site, out, WITHDRAW, args.reason)
    rest = "the rest is free again."
    if document["job"] in site.store().ran():  # only the agent knows the last round that it sent
        rest = "the agent frees the rest."
    # The agent closes only jobs that it ran.
    elif site.settings.ledger.exists():
        ledger = site.ledger()
        close_job(ledger, document["job"])
        ledger.dispose()
    out.say(f"The silo sends no more values for it; sent values stay charged, {rest}")
    return document


def _reinstate(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    store = site.store()
    try:
        if not store.reinstate(args.silo):
            raise PlanError(f"silo {args.silo!r} has no conviction here; check the name.")
    finally:
        store.dispose()
    out.say(f"The standing rule covers jobs with {args.silo!r} again.")
    return {"silo": args.silo}


def _decide(
    args: argparse.Namespace, site: Site, out: Output, step: Step[SiloState], reason: str = ""
) -> dict[str, Any]:
    """Take a step of a job, if its state allows the step."""
    job = decide(site, args.job, step, reason)
    out.say(f"{step.target}  {job}")
    return {"job": job, "state": step.target}


def _result(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    # The silo's own copy, which does not depend on the coordinator.
    path = site.settings.results / job.id / MODEL
    if not path.is_file():
        raise DataError(
            f"job {job.id} is {job.state} and has no result here; only a finished job has one."
        )
    result = Release.load(path, task_of_model(args) or site.tasks)
    # Only the aggregator can know whether it added this noise.
    group = result.noise == AGGREGATOR_NOISE
    for warning in (CONSENT,) if group else warnings_of(result):
        out.warn(warning)
    plan = result.plan
    about: About = {}
    if args.report:
        found = verify_release(path, tasks=task_of_model(args) or site.tasks)
        about = {
            "budget_lines": cost_lines(cost_of(plan, site, job)),
            "schema": site.schema,
            "verification": (found.outcome, found.sentence),
        }
    show_federated(result, out, args.report, **about)
    out.say(f"model    {path}")
    return {
        "job": job.id,
        "noise": result.noise,
        "epsilon": result.epsilon(),
        "columns": plan.columns,
        "results": results_with_reasons(result),
        "survivors": result.survivors,
        "plan_digest": plan.digest.hex(),
        "files": {"model": path, "report": args.report},
    }


ACTIONS: dict[str, Callable[[argparse.Namespace, Site, Output], dict[str, Any]]] = {
    "list": _list,
    "show": _show,
    "approve": _approve,
    "deny": _deny,
    "withdraw": _withdraw,
    "reinstate": _reinstate,
    "result": _result,
}
