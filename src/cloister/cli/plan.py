"""``cloister plan``: the cost and expected error of a job, without spending budget."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from math import isfinite
from typing import Any

from cloister.app.forecast import (
    error_bounds,
    expected,
    forecast_of,
    plan_warnings,
    unknown_error,
)
from cloister.app.release import target_of
from cloister.app.text import attacker_sentence, listed
from cloister.cli.options import (
    add_kmeans_arguments,
    add_plan_arguments,
    add_task_arguments,
    add_trust_arguments,
    chosen_task,
    job_of,
    refuse_given,
)
from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.core.numerals import number
from cloister.data.schema import Schema
from cloister.privacy import accounting
from cloister.privacy.filter import Limits, PricingRule, Split
from cloister.protocol.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_arguments(parser, nominal_n=True)
    parser.add_argument(
        "--silos", type=_silo_names, default="3", metavar="N|A,B,C", help="number or names of silos"
    )
    parser.add_argument(
        "--want",
        type=_margin,
        action="append",
        metavar="NAME=MARGIN",
        help="wanted margin of error of a forecast, in place of --epsilon; repeatable",
    )
    add_trust_arguments(parser, "local for one silo, else group; jobs submit prefers pairwise")
    add_kmeans_arguments(parser, required=False)
    add_task_arguments(parser, required=False)


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    schema = Schema.load(args.schema)
    task, options = chosen_task(args)
    # From public facts only, so it costs nothing.
    job = job_of(args, task, schema, args.silos, options)
    if args.want:
        refuse_given(args.epsilon is not None, "--epsilon is what --want finds")
    plan = job.wanted(dict(args.want), args.nominal_n) if args.want else job.plan
    if not plan.budget:
        out.warn(f"NOT PRIVATE: task {plan.task.name!r} releases exact values.")
    for warning in plan_warnings(plan, schema):
        out.warn(warning)
    _show(plan, out)
    return _document(plan)


def _margin(text: str) -> tuple[str, float]:
    """Return a forecast's name and its wanted margin of error."""
    name, _, margin = text.partition("=")
    try:
        return name, float(margin)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a name and a number, such as share=0.02 for two percent, got {text!r}"
        ) from None


def _silo_names(text: str) -> tuple[str, ...]:
    """Return names of silos from a list of names, or from their number."""
    if text.isdecimal():
        return tuple(f"silo-{index + 1}" for index in range(int(text)))
    return tuple(text.split(","))


def _show(plan: Plan, out: Output) -> None:
    out.paragraph(plan.describe())
    out.say()
    lines = [
        ("columns", listed(plan.columns)),
        *target_of(plan),
        ("silos", ", ".join(plan.silos)),
        ("rounds", str(plan.rounds)),
        (
            "each silo sends",
            # The answer of a round has the length of an upload.
            f"{plan.upload_bytes():,} bytes of masked numbers, and receives as many",
        ),
        ("all silos send", f"{len(plan.silos) * plan.upload_bytes():,} bytes"),
        ("plan digest", f"{plan.digest.hex()} (of this plan: every run has a fresh nonce)"),
    ]
    if plan.budget:
        # First, because the cost is the user's main decision.
        lines.insert(0, ("cost", f"{plan.budget} for all rounds, unit of privacy: {plan.unit}"))
    out.pairs(*lines)
    if plan.budget:
        out.say()
        out.paragraph(attacker_sentence(plan.events(), plan.unit))
        if limits := _limits(plan):
            out.say()
            out.paragraph(_limits_sentence(plan, limits))
        rows = tuple(
            (f"round {cost['round']}", cost["words"], cost["epsilon_alone"])
            for cost in _round_costs(plan)
        )
        # Readers tend to add these numbers.
        note = "Cost of each round; costs compose, so they do not add up"
        out.table(Table(note, ("", "numbers", "epsilon of the round alone"), rows))
    for table in (*expected(plan), *error_bounds(plan)):
        out.table(table)
        if table.note:
            out.paragraph(table.note)
    if unknown := unknown_error(plan):
        out.paragraph(unknown)


def _limits(plan: Plan) -> dict[str, Any] | None:
    """Return the limits that a ledger needs for the plan; None if the default limits suffice."""
    if plan.budget is None:
        return None
    events, cap = plan.events(), plan.budget
    default, split = Split.default(cap), Split.split_for(events, cap)
    if split == default:
        return None
    minimum = Limits(cap, default).epsilon(PricingRule("covered").cost(events))
    return {"pure_share": split.pure, "failure_share": split.failure, "default_cap": minimum}


def _limits_sentence(plan: Plan, limits: Mapping[str, float]) -> str:
    minimum = limits["default_cap"]
    # Infinite if the default limits cannot pay for the noise at any cap.
    finite = isfinite(minimum)
    needed = f"a cap of at least epsilon {number(minimum)}" if finite else "another ledger"
    return (
        f"A new data set with a lifetime cap of exactly {plan.budget} gets limits for this plan: "
        f"pure share {limits['pure_share']:g}, failure share {limits['failure_share']:g}. A data "
        f"set with the default limits, which are for Gaussian noise, needs {needed}."
    )


def _round_costs(plan: Plan) -> list[dict[str, Any]]:
    if plan.budget is None:
        return []
    return [
        {
            "round": t + 1,
            "words": plan.length(t),
            "epsilon_alone": accounting.epsilon(plan.event(t), plan.budget.delta),
        }
        for t in range(plan.rounds)
    ]


def _document(plan: Plan) -> dict[str, Any]:
    return {
        "plan": plan.to_dict(),
        "plan_digest": plan.digest.hex(),
        "describe": plan.describe(),
        "rounds": plan.rounds,
        "round_costs": _round_costs(plan),
        "upload_bytes_per_silo": plan.upload_bytes(),
        "forecast": forecast_of(plan),
        "limits": _limits(plan),
        "attacker_odds": accounting.attacker_odds(plan.events()) if plan.budget else 1.0,
    }
