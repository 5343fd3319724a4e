"""The plan that an analyst proposes, for ``jobs submit`` and ``flare job``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloister.cli.options import (
    add_kmeans_arguments,
    add_plan_arguments,
    add_task_arguments,
    add_trust_arguments,
    chosen_task,
    job_of,
)
from cloister.cli.over_files import about_model
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.privacy.horizon import Encoding
from cloister.protocol.plan import Plan
from cloister.protocol.releases import UNTOLD


def add_proposal_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a proposal."""
    add_plan_arguments(parser, nominal_n=True)
    add_kmeans_arguments(parser, required=False)
    add_task_arguments(parser, required=False)
    parser.add_argument(
        "--model", type=Path, metavar="MODEL", help="model to evaluate, for example by evaluation"
    )
    group = parser.add_argument_group("federation")
    group.add_argument(
        "--silos",
        required=True,
        type=lambda text: tuple(text.split(",")),
        metavar="NAME[=FINGERPRINT],...",
        help="members; a missing fingerprint is taken from the coordinator, and each silo "
        "compares it with its pins",
    )
    add_trust_arguments(group, "pairwise for three or more silos, group for two")
    group.add_argument(
        "--publish", action="store_true", help="seal the result to you, too (pairwise only)"
    )
    group.add_argument(
        "--reader",
        type=Path,
        action="append",
        default=[],
        metavar="CARD",
        help="seal the result to the owner of this card, too; see cloister jobs reader-card",
    )
    group.add_argument(
        "--upload-slot",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="silos send only at multiples of this time, which hides their computing time",
    )


def proposed_plan(
    args: argparse.Namespace, seen: Callable[[], list[dict[str, Any]]] | None = None
) -> Plan:
    """Return the plan of a command line; `seen` requests the silos that a coordinator knows."""
    task, options = chosen_task(args)
    if args.model is not None:
        evaluation, model_options = about_model(args)
        if task is not evaluation:
            raise PlanError(
                f"this model needs --task {evaluation.name}, got {task.name!r}; change --task."
            )
        options |= model_options
    known = {silo["name"]: silo for silo in seen()} if seen else {}
    members = _members(args.silos, known if seen else None)
    names, args.fingerprints = zip(*members, strict=True)
    args.profile = args.profile or ("pairwise" if len(members) > 2 else "group")
    # A coordinator before 0.3.0 does not know releases, and its silos may be older, too.
    releases = [known[name].get("release", UNTOLD) for name in names if name in known]
    connected = [release for release in releases if release is not None]
    job = job_of(args, task, Schema.load(args.schema), names, options, connected)
    if (periods := getattr(args, "periods", None)) is not None:
        job = replace(job, horizon=Encoding.of(periods, args.max_periods, args.workload))
    elif getattr(args, "max_periods", 1) != 1 or getattr(args, "workload", "all") != "all":
        raise PlanError("--max-periods and --workload require --periods; give it, or omit them.")
    return job.plan


def _members(
    silos: tuple[str, ...], known: Mapping[str, Mapping[str, Any]] | None
) -> list[tuple[str, str]]:
    """Return the name and the fingerprint of each member."""
    members = [(name, pin) for name, _, pin in (text.partition("=") for text in silos)]
    # A fingerprint from the coordinator is safe to use, since each silo checks it before a job.
    if known is not None:
        members = [(n, pin or known.get(n, {}).get("fingerprint", "")) for n, pin in members]
    for name, pin in members:
        if not pin:
            reason = (
                "was never connected to the coordinator"
                if known is not None
                else "has no fingerprint"
            )
            raise PlanError(
                f"silo {name!r} {reason}; give its fingerprint as {name}=ed25519:..., or check "
                "the name."
            )
    return members
