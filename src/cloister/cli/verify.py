"""``cloister verify``: check a release, a horizon, or an audit file, offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.app.files import MODEL
from cloister.app.horizon import RELEASES
from cloister.app.release import Release
from cloister.app.replay import TOLERANCE
from cloister.app.report.page import write_report
from cloister.cli.options import add_model_task, refuse_given, refuse_page, task_of_model
from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.core.errors import LedgerError, PlanError
from cloister.core.numerals import counted, number
from cloister.federation.release_signatures import SUFFIX
from cloister.federation.service import audit
from cloister.federation.verification import Finding, pins_of, verify_horizon, verify_release
from cloister.privacy.accounting import epsilon
from cloister.tasks import installed

CODES = {"verified": 0, "refuted": 9, "not verifiable": 10}
"""Exit code of each outcome."""
_LIMITS = (
    "This cannot show that silos summed their true records, nor, under the group mask, that the "
    "aggregator added its noise."
)
_SIGNED = " Compare the fingerprints with those from the silos."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="FILE",
        help="model.json of a job or its folder, the folder of a horizon, or the audit file "
        "(.jsonl) of a coordinator or silo",
    )
    parser.add_argument(
        "--head",
        metavar="HASH",
        help="for an audit file: head from an earlier check; finds lines removed at the end",
    )
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="PATH",
        help="for a horizon: the ledger that it was charged to",
    )
    parser.add_argument(
        "--signed",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        help=f"signatures of other silos, added to FILE{SUFFIX}",
    )
    parser.add_argument(
        "--signers",
        type=int,
        metavar="N",
        help="silos that must have signed (default: min_silos of the plan)",
    )
    parser.add_argument(
        "--pins",
        type=Path,
        metavar="SILO.toml",
        help="settings of a silo; only the fingerprints that they pin count "
        "(default: those of the plan)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="also write the report with this outcome, as HTML or .md",
    )
    add_model_task(parser)
    parser.epilog = "exit codes: " + ", ".join(f"{code} {name}" for name, code in CODES.items())


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Replay a release and count its signatures, or check the chain of an audit file."""
    if args.model.suffix == ".jsonl":
        return _audit_file(args, out)
    refuse_given(args.head, "--head is valid only for an audit file")
    if args.model.suffix == ".db":
        raise PlanError(f"{args.model.name!r} is no model; a ledger has 'cloister budget verify'.")
    if args.model.is_dir():
        if not (args.model / MODEL).is_file():
            return _horizon(args, out)
        args.model /= MODEL  # the folder of a release
    refuse_given(args.ledger, "--ledger is valid only for the folder of a horizon")
    refuse_page(args.model)
    found = verify_release(args.model, tasks=task_of_model(args), **_signatures(args, MODEL))
    rows = tuple(_checks(found).items())
    out.table(Table(f"Release of job {found.plan.run_id}", ("check", "found"), rows))
    out.paragraph(f"{found.outcome.upper()}: {found.sentence}")
    out.paragraph(_LIMITS + _SIGNED * bool(found.signers))
    if args.report and found.outcome == "refuted":
        # A page would carry the wrong numbers further than a terminal.
        out.warn("no report of a refuted release is written.")
    elif args.report:
        release = Release.load(args.model, task_of_model(args))
        write_report(
            release,
            args.report,
            in_process=not found.plan.fingerprints,
            verification=(found.outcome, found.sentence),
        )
        out.say(f"written  {args.report}")
    return {
        **_outcome(found, out),
        "reason": found.reason,
        "field": found.field,
        "replayed": found.replayed,
        "plan_digest": found.plan.digest.hex(),
    }


def _signatures(args: argparse.Namespace, name: str) -> dict[str, Any]:
    return {
        # As the release, each may be given by the folder of a silo's result.
        "signatures": [one / (name + SUFFIX) if one.is_dir() else one for one in args.signed or ()],
        "signers": args.signers,
        "pins": pins_of(args.pins) if args.pins else None,
    }


def _outcome(found: Finding, out: Output) -> dict[str, Any]:
    """Set the exit code of an outcome; return it with the signatures."""
    out.code = CODES[found.outcome]
    signatures = {
        "valid": len(found.signers),
        "needed": found.needed,
        "silos": len(found.plan.silos),
        "signers": found.signers,
        "others": found.others,
    }
    return {
        "verified": found.outcome == "verified",
        "outcome": found.outcome,
        "signatures": signatures if found.replayed else None,  # they are counted last
    }


def _horizon(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Check the files of a horizon, its charge and its signatures."""
    refuse_given(args.report, "--report is valid only for a model")
    ledger = None
    if args.ledger is not None:
        # Imported here: other checks do not load SQLAlchemy.
        from cloister.privacy.ledger import Ledger

        if not args.ledger.is_file():  # opening it would create an empty ledger
            raise LedgerError(f"ledger {str(args.ledger)!r} is missing; give that of the horizon.")
        ledger = Ledger(args.ledger)
    tasks = {**installed(), **(task_of_model(args) or {})}
    checked, found = verify_horizon(args.model, ledger, tasks=tasks, **_signatures(args, RELEASES))
    if found.plan.horizon is None:
        for name in ("signed", "signers", "pins"):
            refuse_given(getattr(args, name), f"--{name} is not valid for a horizon over files")
    if ledger is not None:
        ledger.dispose()
    title = f"Horizon with {counted(len(checked.frames), 'released period')}"
    rows = tuple({**checked.checks, **_signed(found)}.items())
    out.table(Table(title, ("check", "found"), rows))
    out.paragraph(f"{found.outcome.upper()}: {found.sentence}")
    out.paragraph("Answers are computed from the released words when they are shown.")
    if found.replayed:
        out.paragraph(_LIMITS + _SIGNED * bool(found.signers))
    return {
        **_outcome(found, out),
        "reason": found.sentence,
        "horizon": checked.horizon.digest,
        "periods": len(checked.frames),
        "checks": dict(checked.checks),
    }


def _checks(found: Finding) -> dict[str, str]:
    """Return the findings by the name of their check."""
    plan, budget = found.plan, found.plan.budget
    rounds = (
        f"{counted(plan.rounds, 'round')} lead to every number of the model, within {TOLERANCE:g}"
    )
    cost = "no guarantee: the released values are exact and NOT PRIVATE"
    if budget:
        paid = epsilon(plan.events(), budget.delta)
        cost = f"epsilon {number(paid)} at delta {budget.delta:.2g}"
    return {
        "plan": plan.digest.hex(),
        "unit of privacy": plan.unit_in_words(),
        "cost of the plan": cost,
        "replay": rounds if found.replayed else found.reason,
        **_signed(found),
    }


def _signed(found: Finding) -> dict[str, str]:
    """Return the keys of the signatures that count, and why others do not."""
    keys = dict(zip(found.plan.silos, found.plan.fingerprints, strict=False))
    return {
        **{f"signed by {silo}": keys[silo] for silo in found.signers},
        **{f"does not count: {name}": reason for name, reason in (found.others or {}).items()},
    }


def _audit_file(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Raise if lines of an audit file were changed, removed or moved; show its head."""
    for name in ("signed", "signers", "pins", "report"):
        refuse_given(getattr(args, name), f"--{name} is valid only for a model")
    lines, head = audit.verify(args.model, args.head)
    out.say(f"{args.model}: {counted(lines, 'line')}, none changed, removed or moved")
    out.say(f"head {head}")
    if args.head is None:  # a file that ends earlier is still a valid chain
        out.say(
            "Store the head elsewhere; with --head, the next check finds lines removed at the end."
        )
    return {"file": args.model, "lines": lines, "head": head}
