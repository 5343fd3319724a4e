"""``cloister jobs`` at a silo: its owner sees what is asked of the records, and decides."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from cloister.app.release import Release
from cloister.app.text import warnings_of
from cloister.cli.output import Output
from cloister.cli.release import show_federated
from cloister.core.display import Table
from cloister.core.errors import DataError
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
from cloister.privacy.noise import AGGREGATOR_NOISE
from cloister.protocol.lifecycle import ACCEPT, DENY, WITHDRAW, SiloState, Step


def _list(_: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    jobs = site.store().jobs()
    rows = tuple((job.id, job.state, asker(job), priced(job), job.received_at) for job in jobs)
    headings = ("job", "state", "asked by", "task and epsilon", "received")
    out.table(Table(f"Jobs at {site.settings.name}", headings, rows))
    if waiting := sum(job.state == SiloState.WAITING for job in jobs):
        out.say(f"{waiting} wait for your decision: cloister jobs show JOB, then approve or deny")
    keys = ("state", "received_at")
    described = [{"job": job.id, **{key: getattr(job, key) for key in keys}} for job in jobs]
    return {"silo": site.settings.name, "jobs": described}


def _show(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    asked = question(job, site)
    out.pairs(*asked.facts)
    if asked.members:
        out.say()
        out.pairs(*asked.asked)
        out.say()
        for sentence in asked.sentences:
            out.paragraph(sentence)
        out.say()
        out.table(asked.members)
        out.pairs(*asked.prices)
        if job.state == SiloState.WAITING:
            flag = " --accept-aggregator-noise" if asked.needs_consent else ""
            out.say()
            out.say(
                f"to decide: cloister jobs approve {job.id}{flag}, or cloister jobs deny {job.id}"
            )
    keys = ("state", "reason", "decided_by", "received_at", "proposer")
    return {"job": job.id, **{key: getattr(job, key) for key in keys}, **asked.document}


def _approve(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    if job.state == SiloState.WAITING:
        check_approval(site, job, accepts_aggregator_noise=args.accept_aggregator_noise)
    document = _decide(args, site, out, ACCEPT)
    out.say("The agent reserves its cost now and then tells the coordinator; see 'jobs show'.")
    return document


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
    job = decide(site, args.job, step, reason)
    out.say(f"{step.target}  {job}")
    return {"job": job, "state": step.target}


def _result(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    path = site.settings.results / job.id / MODEL
    if not path.is_file():
        raise DataError(f"job {job.id} is {job.state} and has no result here.")
    result = Release.load(path, site.tasks)
    group = result.noise == AGGREGATOR_NOISE
    for warning in (CONSENT,) if group else warnings_of(result):
        out.warn(warning)
    plan = result.plan
    cost = cost_lines(cost_of(plan, site, job)) if args.report else ()
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


ACTIONS: dict[str, Callable[[argparse.Namespace, Site, Output], dict[str, Any]]] = {
    "list": _list,
    "show": _show,
    "approve": _approve,
    "deny": _deny,
    "withdraw": _withdraw,
    "result": _result,
}
