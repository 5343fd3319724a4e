"""``cloister verify``: check a release, or an audit file, offline."""

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
"""Name of the check; "ok", "FAILED" or "not shown"; and the finding."""


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
        help="for an audit file: head from an earlier check; finds lines removed at the end",
    )
    parser.add_argument(
        "--signed",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"signatures of silos (default: FILE{SUFFIX}, if it exists)",
    )
    add_model_task(parser)
    parser.epilog = f"exit code {NOT_VERIFIED} if a check failed"


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Check plan, price, noise and signatures, or the chain of an audit file."""
    if args.model.suffix == ".jsonl":
        return _audit_file(args, out)
    refuse_given(args.head, "--head is valid only for an audit file")
    result = load_model(args)
    default = args.model.with_name(args.model.name + SUFFIX)
    files = args.signed or [file for file in [default] if file.is_file()]
    # All checks are shown, because one failure does not imply the others.
    checks = [*_checks(result), *_signed(args.model, result.plan, files)]
    out.table(Table(f"Release of job {result.plan.run_id}", ("check", "", "found"), tuple(checks)))
    out.paragraph(
        "These checks cannot show that silos summed their true records, nor, under the group "
        "mask, that the aggregator added its noise. Compare the fingerprints with those from the "
        "silos."
    )
    failed = [name for name, verdict, _ in checks if verdict == "FAILED"]
    out.code = NOT_VERIFIED if failed else 0
    keys = ("check", "verdict", "found")
    described = [dict(zip(keys, check, strict=True)) for check in checks]
    return {"verified": not failed, "checks": described}


def _audit_file(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Raise if lines of an audit file were changed, removed or moved; show its head."""
    refuse_given(args.signed, "--signed is valid only for a model")
    lines, head = audit.verify(args.model, args.head)
    out.say(f"{args.model}: {lines} lines, none changed, removed or moved")
    out.say(f"head {head}")
    if args.head is None:  # a file that ends earlier is still a valid chain
        out.say(
            "Store the head elsewhere; with --head, the next check finds lines removed at the end."
        )
    return {"file": args.model, "lines": lines, "head": head}


def _checks(result: Release) -> Iterator[Check]:
    """Check the contents of a model; its plan's digest was compared when it was read."""
    plan = result.plan
    yield "plan", "ok", f"its digest is {plan.digest.hex()}"
    yield "unit of privacy", "ok", plan.unit_in_words()
    if plan.budget is None:
        yield "price", "FAILED", "none: the released values are exact and NOT PRIVATE"
    else:
        spent, planned = mechanism_counts(result.spent), mechanism_counts(plan.events())
        # The tolerance allows only for rounding.
        within = epsilon(plan.events(), plan.budget.delta) <= plan.budget.epsilon * (1 + 1e-9)
        # Only a job on one machine, whose plan names no keys, may include a noisy count.
        more = all(spent.get(event, 0) >= times for event, times in planned.items())
        bought = not plan.fingerprints and spent != planned and more
        right = within and (spent == planned or bought)
        found = f"epsilon {number(result.epsilon())} at delta {plan.budget.delta:.2g}"
        found += ", including the noisy count of records" if bought else ""
        yield "price of the noise", "ok" if right else "FAILED", found
    real = result.noise in REAL_NOISE
    yield "noise from", "ok" if real else "FAILED", result.noise
    short = [t for t, names in enumerate(result.survivors) if len(names) < plan.min_silos]
    complete = len(result.survivors) == plan.rounds and not short
    yield "rounds", "ok" if complete else "FAILED", f"{len(result.survivors)} of {plan.rounds}"


def _signed(model: Path, plan: Plan, files: list[Path]) -> Iterator[Check]:
    """Check the signatures of the plan's silos over the model's bytes."""
    # The bytes of the file, since a signature covers no parsed form.
    content = model.read_bytes()
    members = dict(zip(plan.silos, plan.fingerprints, strict=False))
    if not files:
        yield "signatures", "not shown", f"no file {model.name}{SUFFIX}; request it from the silos"
    for file in files:
        signed = Attestation.load(file)
        name, key = f"signed by {signed.silo}", signed.ledger.fingerprint
        ledger = signed.ledger.said
        if not signed.genuine(content):
            yield name, "FAILED", "the signature is not valid for this file"
        elif members.get(signed.silo) != key:
            yield name, "FAILED", f"the plan has another key for it than {key}"
        elif (ledger.job, ledger.plan) != (plan.run_id, plan.digest.hex()):
            yield name, "FAILED", "its ledger was charged for another job"
        # A silo with a smaller charge would have exceeded the budget that its ledger protects.
        elif ledger.events != plan.events():
            yield name, "FAILED", "its ledger was not charged for the plan's noise"
        else:
            yield name, "ok", f"{key}; the head of its ledger was {ledger.head}"
