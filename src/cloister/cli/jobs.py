"""``cloister jobs``: the jobs of a federation, for the role in the configuration file.

With a silo's file, the owner of the data decides on jobs, see `jobs_silo`. With an analyst's or the
coordinator's file, the user proposes and monitors jobs, see `jobs_rest`.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cloister.cli import jobs_rest, jobs_silo
from cloister.cli.options import add_model_task, add_period_arguments
from cloister.cli.output import Output
from cloister.cli.parsers import actions, add_config
from cloister.cli.proposals import add_proposal_arguments
from cloister.core.errors import PlanError
from cloister.federation.settings import ScorerSettings, SiloSettings, load_settings
from cloister.federation.silo.site import Site

_SUMMARIES = {
    "list": "list all jobs",
    "show": "show one job: a description of its plan, its members and its cost",
    "rows": "silo: count the rows of this silo's file that a job would use, for its owner alone",
    "approve": "silo: let a job use these records; the agent reserves its whole cost",
    "deny": "silo: decline a job",
    "withdraw": "silo: leave a job; sent values stay charged",
    "reinstate": "silo: let the standing rule cover jobs with a convicted silo again",
    "result": "show the result of a finished job",
    "submit": "analyst: propose a job",
    "cancel": "analyst: cancel a job",
    "reader-card": "analyst: write the card by which others name you as a reader of results",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    declared = {name: add(name, summary, _run) for name, summary in _SUMMARIES.items()}
    for name, action in declared.items():
        add_config(action, "configuration file of the silo or analyst")
        # These concern no existing job.
        if name == "reinstate":
            action.add_argument("silo", metavar="SILO", help="name of the convicted silo")
        elif name not in ("list", "submit", "reader-card"):
            action.add_argument("job", metavar="JOB", help="id of the job, or its first digits")
    add_proposal_arguments(declared["submit"])
    add_period_arguments(
        declared["submit"].add_argument_group("answers that are renewed, see cloister horizon")
    )
    declared["approve"].add_argument(
        "--accept-aggregator-noise",
        action="store_true",
        help="for profile 'group': accept that only the aggregator can verify that the noise was "
        "added",
    )
    for name, use in (
        ("deny", "which the coordinator, the analyst and all silos of the job read"),
        ("withdraw", "kept with the job here"),
    ):
        declared[name].add_argument("--reason", default="", help=f"reason, {use}")
    declared["result"].add_argument(
        "--report", type=Path, metavar="FILE", help="also write the report, as HTML or .md"
    )
    declared["result"].add_argument(
        "--out", type=Path, metavar="DIR", help="also write model and words, to export or predict"
    )
    add_model_task(declared["result"])


def _run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Run the action as the role of the configuration."""
    settings = load_settings(args.config)
    at_silo = isinstance(settings, SiloSettings)
    by_name: dict[str, Any] = jobs_silo.ACTIONS if at_silo else jobs_rest.ACTIONS
    # Owners decide at the silo only: the coordinator must not be able to approve for them.
    if args.action not in by_name or isinstance(settings, ScorerSettings):
        role = "an analyst" if at_silo else "a silo, whose owner decides"
        raise PlanError(
            f"jobs {args.action} needs the configuration of {role}, got the role {settings.role!r}."
        )
    if isinstance(settings, SiloSettings):
        context: Any = nullcontext(Site.of(settings))
    else:
        context = jobs_rest.connected(settings)
    with context as target:  # a silo's site, or a connection to the coordinator
        document: dict[str, Any] = by_name[args.action](args, target, out)
        return document
