"""``cloister federation``: a coordinator and three silos as real processes, on this machine."""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cloister.cli.demo import CLUSTERS, COLUMNS, DELTA, EPSILON, NOMINAL_N
from cloister.cli.output import Output
from cloister.cli.parsers import actions
from cloister.cli.release import show_displays
from cloister.errors import PlanError, ProtocolError
from cloister.jobs import JobResult, make_plan
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.samples import HOSPITALS, SCHEMA, write_patients
from cloister.schema import Schema
from cloister.tasks.clustering.auto import Auto

STORY = (
    "Four processes on this machine: a coordinator, and three hospitals that dial out to it over "
    "mutual TLS with certificates made a moment ago. Each hospital has its own records, keys, "
    "policy and ledger. Together they compute three groups of patients."
)
_ROUNDS = 10  # that `auto` plans for three columns and groups
_SECONDS = 300.0  # after which the demonstration gives up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    demo = actions(parser)("demo", "start everything, run a job end to end, tear down", _demo)
    demo.add_argument(
        "--profile",
        choices=("pairwise", "group"),
        default="pairwise",
        help="trust model (default: %(default)s)",
    )
    demo.add_argument(
        "--kill-coordinator-in-round",
        type=int,
        choices=range(1, _ROUNDS + 1),
        metavar="T",
        help=f"kill the coordinator with SIGKILL in round T (1 to {_ROUNDS}) and restart it",
    )
    demo.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep keys, settings, ledgers and logs there"
    )


def _demo(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Run the demonstration, in a folder that is kept or not."""
    if args.keep:
        if args.keep.exists() and any(args.keep.iterdir()):
            raise PlanError(f"folder {str(args.keep)!r} must be empty or new.")
        args.keep.mkdir(parents=True, exist_ok=True)
        return _demonstrate(args, args.keep, out)
    with tempfile.TemporaryDirectory(prefix="cloister-federation-") as folder:
        return _demonstrate(args, Path(folder), out)


def _demonstrate(args: argparse.Namespace, folder: Path, out: Output) -> dict[str, Any]:
    from cloister.local import LocalFederation

    begun = time.monotonic()

    def say(text: str) -> None:
        out.say(f"{time.monotonic() - begun:6.2f} s  {text}")

    out.paragraph(STORY)
    out.say()
    tables = write_patients(folder)
    schema = Schema.load(folder / SCHEMA)
    with LocalFederation(folder, schema, tables) as federation:
        federation.start()
        say("keys and certificates made; coordinator and three silos started")
        federation.wait_connected(seconds=_SECONDS)
        say(f"all silos connected to {federation.url}")
        victim = args.kill_coordinator_in_round
        plan = _plan(
            schema, federation.fingerprints, args.profile, slot=0.0 if victim is None else 1.0
        )
        job = federation.propose(plan)
        say(f"job {job[:8]} proposed; each silo's policy decides")
        if victim is not None:
            while federation.job(job)["rounds_done"] < victim - 1:
                time.sleep(0.05)
            time.sleep(0.2)  # uploads leave a second after the round opens: it is open now
            federation.kill("coordinator", signal.SIGKILL)
            say(f"coordinator killed (SIGKILL) in round {victim} of {plan.rounds}")
            federation.start("coordinator")
            federation.wait_connected(seconds=_SECONDS)
            say("coordinator restarted; silos are back; the job goes on in the same round")
        shown = federation.wait_job(job, seconds=_SECONDS)
        if shown["state"] != "done":
            raise ProtocolError(f"job ended as {shown['state']}: {shown['reason']}")
        federation.wait_results(job, seconds=_SECONDS)
        results = [JobResult.load(federation.results(name, job)) for name in tables]
        same = all(
            np.array_equal(r.results["centres"], results[0].results["centres"]) for r in results
        )
        say(f"job done in {plan.rounds} rounds; the three silos hold the same result: {same}")
    say("torn down")
    out.say()
    show_displays(results[0], out)
    out.pairs(
        ("profile", plan.profile),
        ("spent", f"epsilon {results[0].epsilon():.4g} at delta {DELTA:.2g}, at each silo"),
        ("noise from", results[0].noise),
    )
    if args.keep:
        out.say(f"kept  {args.keep}")
    out.code = 0 if same else 7
    seconds = round(time.monotonic() - begun, 2)
    return {"profile": plan.profile, "job": job, "same_result": same, "seconds": seconds}


def _plan(schema: Schema, fingerprints: dict[str, str], profile: str, slot: float) -> Plan:
    return make_plan(
        Auto,
        schema,
        HOSPITALS,
        budget=Budget(EPSILON, DELTA),
        nominal_n=NOMINAL_N,
        profile=profile,  # type: ignore[arg-type]  # argparse allows these two
        min_silos=3,
        fingerprints=[fingerprints[name] for name in HOSPITALS],
        upload_slot=slot,
        columns=COLUMNS,
        n_clusters=CLUSTERS,
        public_seed=1,
    )
