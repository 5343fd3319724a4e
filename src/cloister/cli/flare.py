"""``cloister flare``: make a NVIDIA FLARE site safe, and write jobs for one."""

from __future__ import annotations

import argparse
from pathlib import Path

from cloister.cli import jobs_rest
from cloister.cli.output import Output, add_flags
from cloister.enrolment import KeyFolder
from cloister.errors import DataError, PlanError
from cloister.flare.kit import open_doors, secure, write_job
from cloister.protocol.proposal import proposal
from cloister.settings import AnalystSettings, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in (
        ("secure", "write the files of a kit that take away code, shell and logs"),
        ("check", "say what a kit still lets others do"),
        ("job", "write the folder of a FLARE job for a plan, signed by an analyst"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary}.")
        if name == "job":
            action.add_argument(
                "--config", type=Path, required=True, metavar="FILE", help="of the analyst"
            )
            action.add_argument("--out", type=Path, required=True, metavar="FOLDER")
            jobs_rest.add_submit_arguments(action)
        else:
            action.add_argument("kit", type=Path, metavar="KIT", help="a site's or server's folder")
        add_flags(action)


def run(args: argparse.Namespace) -> int:
    """Run the action; return the exit code."""
    out = Output.of(args)
    {"secure": _secure, "check": _check, "job": _job}[args.action](args, out)
    return 0


def _secure(args: argparse.Namespace, out: Output) -> None:
    party = secure(args.kit)
    out.say(f"{party} {args.kit}: nobody brings code, runs commands or is sent logs.")
    out.say("Restart FLARE there for it to count.")
    out.document({"command": "flare secure", "kit": str(args.kit), "party": party})


def _check(args: argparse.Namespace, out: Output) -> None:
    doors = open_doors(args.kit)
    if doors:
        raise DataError(f"kit {str(args.kit)!r} is open: {' '.join(doors)} Run flare secure.")
    out.say(f"{args.kit}: closed.")
    out.document({"command": "flare check", "kit": str(args.kit), "open": doors})


def _job(args: argparse.Namespace, out: Output) -> None:
    settings = load_settings(args.config)
    if not isinstance(settings, AnalystSettings):
        raise PlanError(f"role must be 'analyst' to propose a job, got {settings.role!r}.")
    if bare := [member for member in args.silos if "=" not in member]:
        raise PlanError(
            f"silo {bare[0]!r} must have its fingerprint, {bare[0]}=ed25519:..., since nobody can "
            "be asked for it."
        )
    plan = jobs_rest._planned(args, None)  # type: ignore[arg-type]  # nobody to ask
    keys = KeyFolder(settings.keys)
    write_job(proposal(plan, keys.identity(), keys.peer().name), args.out)
    out.paragraph(plan.describe())
    out.say(f"Submit it to FLARE: nvflare job submit -j {args.out}")
    out.document({"command": "flare job", "job": plan.run_id, "folder": str(args.out)})
