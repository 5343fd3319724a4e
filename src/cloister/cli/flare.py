"""``cloister flare``: secure an NVIDIA FLARE site, and write jobs for one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.cli.output import Output
from cloister.cli.parsers import actions, add_config
from cloister.cli.proposals import add_proposal_arguments, proposed_plan
from cloister.core.errors import DataError, PlanError
from cloister.federation.flare.kit import open_doors, secure, write_job
from cloister.federation.pki import KeyFolder
from cloister.federation.settings import AnalystSettings, load_role
from cloister.protocol.proposal import proposal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    for action in (
        add("secure", "configure a kit to refuse code and commands and to send no logs", _secure),
        add("check", "list the rights that a kit still gives to others", _check),
    ):
        action.add_argument("kit", type=Path, metavar="KIT", help="folder of a site or server")
    job = add("job", "write the folder of a FLARE job for a plan, signed by an analyst", _job)
    add_config(job, "the analyst's configuration file")
    # FLARE takes a job as a folder.
    job.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    add_proposal_arguments(job)


def _secure(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    party = secure(args.kit)
    out.say(f"{party} {args.kit}: other parties cannot send code, run commands or receive logs.")
    out.say("Restart FLARE there to apply this.")
    return {"kit": args.kit, "party": party}


def _check(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    # An error, so that a script can check a kit before it starts FLARE.
    if doors := open_doors(args.kit):
        raise DataError(
            f"kit {str(args.kit)!r} is open: {' '.join(doors)} Run cloister flare secure."
        )
    out.say(f"{args.kit}: closed.")
    return {"kit": args.kit, "open": doors}


def _job(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    if args.publish or args.reader:
        raise PlanError(
            "a job over FLARE has no readers, as FLARE has nowhere to keep their boxes; leave out "
            "--publish and --reader, or submit it to a coordinator."
        )
    keys = KeyFolder(load_role(args.config, AnalystSettings).keys)
    # Without a coordinator, so every fingerprint must be on the command line.
    plan = proposed_plan(args)
    write_job(proposal(plan, keys.identity(), keys.peer().name), args.out)
    out.paragraph(plan.describe())
    out.say(f"Submit it to FLARE: nvflare job submit -j {args.out}")
    return {"job": plan.run_id, "folder": args.out}
