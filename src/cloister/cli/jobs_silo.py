"""``cloister jobs`` at a silo: the owner reviews proposed jobs and decides on them."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from textwrap import shorten
from typing import Any

from cloister.app.coefficients import coefficients_of
from cloister.app.horizon import HORIZON
from cloister.app.release import Release
from cloister.app.report.page import About
from cloister.app.text import warnings_of
from cloister.app.unknown import results_with_reasons
from cloister.cli.options import task_of_model
from cloister.cli.output import Output, ask
from cloister.cli.release import show_federated
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError
from cloister.federation.silo.agent import MODEL, close_job
from cloister.federation.silo.decisions import (
    CONSENT,
    OWNERS_EYES,
    Question,
    asker,
    check_approval,
    cost_lines,
    cost_of,
    decide,
    next_period,
    priced,
    question,
    rows_of,
)
from cloister.federation.silo.sections import Section
from cloister.federation.silo.site import Site
from cloister.federation.verification import verify_release
from cloister.privacy.noise import AGGREGATOR_NOISE
from cloister.protocol.lifecycle import ACCEPT, DENY, WITHDRAW, SiloState, Step

_WHY = 72  # characters of a reason in the list; 'jobs show' has all of it


def _list(_: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    jobs = site.store().jobs()
    rows = tuple(
        (
            job.id,
            job.state,
            asker(job),
            priced(job),
            job.received_at,
            shorten(job.reason or next_period(job, site), _WHY, placeholder=" …"),
        )
        for job in jobs
    )
    headings = ("job", "state", "proposed by", "task and epsilon", "received", "because")
    out.table(Table(f"Jobs at {site.settings.name}", headings, rows))
    # A job without a decision delays all its silos.
    if waiting := sum(job.state == SiloState.WAITING for job in jobs):
        out.say(
            f"jobs that wait for your decision: {waiting}; cloister jobs show JOB, then approve "
            "or deny"
        )
    if limits := site.policy.rules.standing_limits(site.settings.cap_epsilon):
        out.paragraph(limits)
    keys = ("state", "reason", "received_at")
    described = [{"job": job.id, **{key: getattr(job, key) for key in keys}} for job in jobs]
    return {"silo": site.settings.name, "jobs": described}


def _show(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    request = question(job, site)
    out.pairs(*request.facts)
    # Of a job that the policy declined on arrival only the digest is kept.
    if request.sections:
        out.say()
        for sentence in (*request.sentences, *request.warnings):
            out.paragraph(sentence)
        for section in request.sections:
            _show_section(section, out)
        _show_news(request, out)
        if job.state == SiloState.WAITING:
            flag = " --accept-aggregator-noise" if request.needs_consent else ""
            of = f"{job.id} --config {args.config}"
            out.say()
            out.say(f"to decide: cloister jobs approve {of}{flag}, or cloister jobs deny {of}")
    keys = ("state", "reason", "decided_by", "received_at", "proposer")
    return {"job": job.id, **{key: getattr(job, key) for key in keys}, **request.document}


def _rows(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    report = rows_of(job, site)
    out.pairs(*report.described())
    out.table(report.table())
    out.paragraph(OWNERS_EYES)
    for sentence in (*report.sentences(), *report.clips):
        out.warn_locally(sentence)
    # No counts in the document, so that no script decides by them.
    return {"job": job.id}


def _show_section(section: Section, out: Output) -> None:
    out.say()
    out.say(section.title.upper())
    out.pairs(*((line.name, line.value) for line in section.lines), *section.here)
    if section.table:
        out.table(section.table)


def _show_news(request: Question, out: Output) -> None:
    """Write the differences from the job before; the lines of the question stay as signed."""
    if request.since is None:
        return
    lines = [line for section in request.sections for line in section.lines if line.news]
    out.say()
    out.say("WHAT IS NEW")
    out.paragraph(request.since.sentence)
    out.pairs(*((line.name, f"{line.value} ({line.news})") for line in lines))
    out.pairs(*((name, f"gone: {value}") for name, value in request.since.gone))


def _approve(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    job = site.store().find(args.job)
    if job.state == SiloState.WAITING:
        check_approval(site, job, accepts_aggregator_noise=args.accept_aggregator_noise)
    # Only the decision is recorded here; the agent reserves the cost.
    document = _decide(args, site, out, ACCEPT)
    out.say("The agent now reserves its cost and informs the coordinator; see 'jobs show'.")
    return document


def _deny(args: argparse.Namespace, site: Site, out: Output) -> dict[str, Any]:
    # A decline is final, and the analyst reads its reason. At no terminal there is no question.
    reason = args.reason or ask("Reason, which all parties of the job read (Enter: none): ")
    return _decide(args, site, out, DENY, reason or "the owner declined.")


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
        if (path.parent / HORIZON).is_file():
            raise DataError(f"job {job.id} has periods; use 'cloister horizon show {path.parent}'.")
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
    show_federated(result, out, args.report, args.out, **about)
    if args.out:
        for signed in path.parent.glob(f"{MODEL}*"):  # its bytes, and the signature over them
            shutil.copyfile(signed, args.out / signed.name)
    out.say(f"model    {path}")
    return {
        "job": job.id,
        "noise": result.noise,
        "epsilon": result.epsilon(),
        "columns": plan.columns,
        "results": results_with_reasons(result),
        **coefficients_of(result),
        "survivors": result.survivors,
        "plan_digest": plan.digest.hex(),
        "files": {"model": path, "report": args.report},
    }


ACTIONS: dict[str, Callable[[argparse.Namespace, Site, Output], dict[str, Any]]] = {
    "list": _list,
    "show": _show,
    "rows": _rows,
    "approve": _approve,
    "deny": _deny,
    "withdraw": _withdraw,
    "reinstate": _reinstate,
    "result": _result,
}
