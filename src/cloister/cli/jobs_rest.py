"""``cloister jobs`` for analysts and operators: over the coordinator's REST interface."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloister.cli.evaluate import about_model
from cloister.cli.options import (
    add_kmeans_arguments,
    add_plan_arguments,
    kmeans_task,
    plan_of,
    target_of,
)
from cloister.cli.output import Output
from cloister.cli.plan_warnings import doubts, doubts_of_categories
from cloister.cli.release import show_federated
from cloister.cli.run import add_task_arguments, allowed_task, task_options
from cloister.display import Table
from cloister.enrolment import KeyFolder, client_context
from cloister.errors import DataError, PlanError
from cloister.jobs import JobResult
from cloister.protocol.plan import Plan
from cloister.report import listed, write_report
from cloister.schema import Schema
from cloister.service.client import Rest, proposal
from cloister.settings import AnalystSettings, CoordinatorSettings
from cloister.task import Task
from cloister.tasks import TASKS

Settings = AnalystSettings | CoordinatorSettings


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a proposal needs."""
    add_plan_arguments(parser, nominal_n=True)
    add_kmeans_arguments(parser, required=False)
    add_task_arguments(parser, required=False)
    parser.add_argument(
        "--model", type=Path, metavar="MODEL", help="what a task such as evaluation is to measure"
    )
    group = parser.add_argument_group("federation")
    group.add_argument(
        "--silos",
        required=True,
        type=lambda text: tuple(text.split(",")),
        metavar="NAME[=FINGERPRINT],...",
        help="members; a fingerprint that is not given is the one the coordinator has seen, which "
        "each silo compares with its own list",
    )
    group.add_argument(
        "--profile",
        choices=("pairwise", "group"),
        help="default: pairwise for three or more silos, group for two",
    )
    group.add_argument(
        "--collusion",
        type=int,
        default=0,
        metavar="T",
        help="pairwise: how many silos may collude with the coordinator (default: 1)",
    )
    group.add_argument(
        "--publish", action="store_true", help="the result is for the analyst too (pairwise only)"
    )
    group.add_argument(
        "--upload-slot",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="silos send at multiples of this, so that their computing time is not seen",
    )


def run(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    """Run an action at the coordinator; return the exit code."""
    if args.action not in _ACTIONS:
        raise PlanError(
            f"jobs {args.action} is for the role 'silo', got {settings.role!r}; the owner of the "
            "data decides, with the silo's configuration."
        )
    keys = KeyFolder(settings.keys)
    url, proxy = _address(settings)
    with Rest(url, client_context(keys), proxy) as rest:
        _ACTIONS[args.action](args, rest, keys, out)
    return 0


def _address(settings: Settings) -> tuple[str, str | None]:
    if isinstance(settings, AnalystSettings):
        return settings.coordinator, settings.proxy
    host, _, port = settings.listen.rpartition(":")
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # any address is no address
    return f"https://{own.get(host, host)}:{port}", None


def _submit(args: argparse.Namespace, rest: Rest, keys: KeyFolder, out: Output) -> None:
    plan = _planned(args, rest)
    for doubt in (*doubts(plan), *doubts_of_categories(plan, Schema.load(args.schema))):
        out.warn(doubt)
    job = rest.submit(proposal(plan, keys.identity(), keys.peer().name))
    out.say(f"proposed  {job['id']}")
    out.paragraph(plan.describe())
    out.pairs(
        [
            ("columns", listed(plan.columns)),
            *target_of(plan),
            ("silos", ", ".join(plan.silos)),
            ("profile", plan.profile),
            ("plan digest", plan.digest.hex()),
        ]
    )
    out.say(f"It waits for the silos to decide; see cloister jobs show {job['id']}.")
    out.document(
        {
            "command": "jobs submit",
            "job": job["id"],
            "state": job["state"],
            "plan": plan.to_dict(),
            "plan_digest": plan.digest.hex(),
        }
    )


def _planned(args: argparse.Namespace, rest: Rest) -> Plan:
    if bool(args.task) == (args.k is not None):
        raise PlanError(
            "either k for k-means or a task must be given; with --task, its options go to --set."
        )
    if args.task:
        task = allowed_task(args.task, not_private=args.not_private)
        options = {**task_options(task, args.set), **_about(args, task)}
    else:
        task, options = kmeans_task(args)
    if TASKS.get(task.name) is not task:
        raise PlanError(
            f"task {task.name!r} is not one that every silo has; see cloister tasks for those."
        )
    members = _members(args.silos, rest)
    network = {
        "profile": args.profile or ("pairwise" if len(members) > 2 else "group"),
        "collusion": args.collusion,
        "publish": args.publish,
        "upload_slot": args.upload_slot,
        "fingerprints": tuple(members.values()),
    }
    return plan_of(args, task, Schema.load(args.schema), members, {**options, **network})


def _about(args: argparse.Namespace, task: type[Task]) -> dict[str, Any]:
    """Return what the plan says of the model that is to be measured, if there is one."""
    if args.model is None:
        return {}
    measure, about = about_model(args)
    if task is not measure:
        raise PlanError(f"this model is measured by task {measure.name!r}, got {task.name!r}.")
    return about


def _members(given: tuple[str, ...], rest: Rest) -> dict[str, str]:
    """Return the fingerprint of each member, in their order."""
    pairs = [text.partition("=") for text in given]
    seen: Mapping[str, str] = {}
    if any(not fingerprint for _, _, fingerprint in pairs):
        seen = {silo["name"]: silo["fingerprint"] for silo in rest.silos()}
    members = {}
    for name, _, fingerprint in pairs:
        if not (fingerprint or name in seen):
            raise PlanError(
                f"silo {name!r} was never connected to the coordinator; give its fingerprint as "
                f"{name}=ed25519:..., or check the name."
            )
        members[name] = fingerprint or seen[name]
    if len(members) != len(given):
        raise PlanError(f"silos must be different, got {', '.join(given)}.")
    return members


def _list(args: argparse.Namespace, rest: Rest, _: KeyFolder, out: Output) -> None:
    jobs = rest.jobs()[::-1]
    rows = tuple(
        (
            job["id"],
            job["state"],
            job["proposer"],
            _priced(job),
            f"{job['rounds_done']} of {job['rounds']}",
            _time(job["proposed_at"]),
        )
        for job in jobs
    )
    headings = ("job", "state", "asked by", "task and epsilon", "rounds", "proposed")
    out.table(Table("Jobs at the coordinator", headings, rows))
    out.document({"command": "jobs list", "jobs": jobs})


def _show(args: argparse.Namespace, rest: Rest, _: KeyFolder, out: Output) -> None:
    job = rest.job(rest.find(args.job))
    lines = [
        ("job", job["id"]),
        ("state", job["state"]),
        ("because", job["reason"]),
        ("waits for", job["waiting_for"]),
        ("asked by", job["proposer"]),
        ("study", job["study"]),
        ("plan digest", job["digest"]),
        ("rounds", f"{job['rounds_done']} of {job['rounds']}"),
        ("survivors", ", ".join(job["survivors"])),
        ("proposed", _time(job["proposed_at"])),
        ("started", _time(job["started_at"])),
        ("ended", _time(job["ended_at"])),
    ]
    out.pairs([(name, value) for name, value in lines if value])
    out.say()
    out.paragraph(job["describe"])
    out.say()
    said = {d["silo"]: d for d in job["decisions"]}
    rows = []
    for silo in job["silos"]:
        decision = said.get(silo)
        what = "undecided" if decision is None else _decided(decision)
        rows.append((silo, what, job["refusals"].get(silo, "")))
    out.table(Table("Silos", ("silo", "decision", "refused later"), tuple(rows)))
    out.document({"command": "jobs show", **job})


def _cancel(args: argparse.Namespace, rest: Rest, _: KeyFolder, out: Output) -> None:
    job = rest.cancel(rest.find(args.job))
    out.say(f"cancelled  {job['id']}")
    out.say("Nothing more is asked for; what left a silo stays charged there.")
    out.document({"command": "jobs cancel", "job": job["id"], "state": job["state"]})


def _result(args: argparse.Namespace, rest: Rest, _: KeyFolder, out: Output) -> None:
    result = JobResult.from_dict(rest.result(rest.find(args.job)))
    plan = result.plan
    show_federated(result, out)
    if args.report:
        _write(args.report, result)
        out.say(f"written  {args.report}")
    out.document({"command": "jobs result", "job": plan.run_id, **result.to_dict()})


def _write(path: Path, result: JobResult) -> None:
    try:
        write_report(result, path, in_process=False)
    except OSError as error:
        raise DataError(f"report {str(path)!r} cannot be written: {error.strerror}.") from error


def _decided(decision: Mapping[str, Any]) -> str:
    return "approved" if decision["approved"] else f"declined: {decision['reason']}"


def _priced(job: Mapping[str, Any]) -> str:
    budget = job["budget"]
    return f"{job['task']}, {budget['epsilon']:g}" if budget else f"{job['task']}"


def _time(seconds: float | None) -> str:
    """Return a time for people, in UTC."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


_ACTIONS: dict[str, Callable[[argparse.Namespace, Rest, KeyFolder, Output], None]] = {
    "submit": _submit,
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "result": _result,
}
