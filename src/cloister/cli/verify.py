"""``cloister verify``: check a release, or an audit file, from its files alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloister.app.release import Release
from cloister.app.text import REAL_NOISE, number
from cloister.cli.options import add_model_task, load_model, refuse_given
from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.federation.release_signatures import SUFFIX, Attestation
from cloister.federation.service import audit
from cloister.privacy.accounting import epsilon
from cloister.privacy.events import mechanism_counts
from cloister.protocol.plan import Plan

NOT_VERIFIED = 1
Check = tuple[str, str, str]
"""What was checked; "ok", "FAILED" or "not shown"; and what was found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="FILE",
        help="model.json of a job, or the audit file (.jsonl) of a coordinator or silo",
    )
    parser.add_argument(
        "--head",
        metavar="HASH",
        help="of an audit file: head shown by an earlier check; finds lines cut off since then",
    )
    parser.add_argument(
        "--signed",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"signatures of silos (default: FILE{SUFFIX}, if it is there)",
    )
    add_model_task(parser)
    parser.epilog = f"exit code {NOT_VERIFIED} if a check failed"


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Check plan, price, noise and signatures, or the chain of an audit file."""
    if args.model.suffix == ".jsonl":
        return _audit_file(args, out)
    refuse_given(args.head, "head goes with an audit file")
    result = load_model(args)
    beside = args.model.with_name(args.model.name + SUFFIX)
    files = args.signed or [file for file in [beside] if file.is_file()]
    checks = [*_checks(result), *_signed(args.model, result.plan, files)]
    out.table(Table(f"Release of job {result.plan.run_id}", ("check", "", "found"), tuple(checks)))
    out.paragraph(
        "Nobody can check from here that silos summed their true records, nor, under the group "
        "mask, that the aggregator added its noise. Compare the fingerprints with the silos' own."
    )
    failed = [name for name, verdict, _ in checks if verdict == "FAILED"]
    out.code = NOT_VERIFIED if failed else 0
    keys = ("check", "verdict", "found")
    told = [dict(zip(keys, one, strict=True)) for one in checks]
    return {"verified": not failed, "checks": told}


def _audit_file(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Find lines that were changed, removed or moved."""
    refuse_given(args.signed, "signed goes with a model")
    lines, head = audit.verify(args.model, args.head)
    out.say(f"{args.model}: {lines} lines, none changed, removed or moved")
    out.say(f"head {head}")
    if args.head is None:
        out.say("Keep the head elsewhere: with --head, the next check finds lines cut off the end.")
    return {"file": args.model, "lines": lines, "head": head}


def _checks(result: Release) -> Iterator[Check]:
    """Check what the model says of itself; its plan's digest was compared when it was read."""
    plan = result.plan
    yield "plan", "ok", f"its digest is {plan.digest.hex()}"
    yield "unit of privacy", "ok", plan.unit_in_words()
    if plan.budget is None:
        yield "price", "FAILED", "none: what was released is exact and NOT PRIVATE"
    else:
        spent, planned = mechanism_counts(result.spent), mechanism_counts(plan.events())
        within = epsilon(plan.events(), plan.budget.delta) <= plan.budget.epsilon * (1 + 1e-9)
        # only a job on one machine, whose plan names no keys, buys a count
        more = all(spent.get(event, 0) >= times for event, times in planned.items())
        bought = not plan.fingerprints and spent != planned and more
        right = within and (spent == planned or bought)
        found = f"epsilon {number(result.epsilon())} at delta {plan.budget.delta:.2g}"
        found += ", with the count of records that was bought first" if bought else ""
        yield "price of the noise", "ok" if right else "FAILED", found
    real = result.noise in REAL_NOISE
    yield "noise from", "ok" if real else "FAILED", result.noise
    few = [t for t, names in enumerate(result.survivors) if len(names) < plan.min_silos]
    whole = len(result.survivors) == plan.rounds and not few
    yield "rounds", "ok" if whole else "FAILED", f"{len(result.survivors)} of {plan.rounds}"


def _signed(model: Path, plan: Plan, files: list[Path]) -> Iterator[Check]:
    """Check signatures over the model's bytes by those whose keys the plan names."""
    content = model.read_bytes()
    members = dict(zip(plan.silos, plan.fingerprints, strict=False))
    if not files:
        yield "signatures", "not shown", f"no file {model.name}{SUFFIX}; ask the silos for theirs"
    for file in files:
        said = Attestation.load(file)
        name, key, ledger = f"signed by {said.silo}", said.ledger.fingerprint, said.ledger.said
        if not said.genuine(content):
            yield name, "FAILED", "the signature is not over this file"
        elif members.get(said.silo) != key:
            yield name, "FAILED", f"the plan names another key for it than {key}"
        elif (ledger.job, ledger.plan) != (plan.run_id, plan.digest.hex()):
            yield name, "FAILED", "its ledger was charged for another job"
        elif ledger.events != plan.events():
            yield name, "FAILED", "its ledger was charged something else than the plan's noise"
        else:
            yield name, "ok", f"{key}; its ledger stood at {ledger.head}"
