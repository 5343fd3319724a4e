"""``cloister federation``: create one and invite its parties, or run one on this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import tempfile
import time
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.job import make_plan
from cloister.app.present import present
from cloister.app.release import Release
from cloister.cli import ca, enroll
from cloister.cli.demo import CLUSTERS, COLUMNS, DELTA, EPSILON, NOMINAL_N
from cloister.cli.options import comma_separated
from cloister.cli.output import Output
from cloister.cli.parsers import actions
from cloister.cli.release import show_displays
from cloister.cli.site import Site
from cloister.core.errors import PlanError, ProtocolError
from cloister.core.numerals import counted
from cloister.data.samples import ACCEPTED_LOSS, HOSPITALS, SCHEMA, write_patients
from cloister.data.schema import Schema
from cloister.federation.joining import DAYS, Board, Federation
from cloister.federation.pki import Authority, KeyFolder, install, make_request, write_secret
from cloister.federation.settings import CoordinatorSettings, load_role
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks import installed
from cloister.tasks.clustering.auto import Auto

STORY = (
    "Four processes on this machine: a coordinator, and three hospitals that connect to it over "
    "mutual TLS with new certificates. Each hospital has its own records, keys, policy and "
    "ledger. Together they compute three groups of patients."
)
DELTA_CAP = 1e-6  # lifetime delta of each silo
_ROUNDS = 10  # number of rounds that `auto` plans for three columns and groups
_SECONDS = 300.0  # limit on each wait of the demonstration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    init = add("init", "create the authority, the coordinator and the federation's terms", _init)
    init.add_argument("--name", required=True, metavar="NAME", help="name of the federation")
    init.add_argument(
        "--host", required=True, metavar="HOST", help="the coordinator's address for the others"
    )
    init.add_argument("--port", type=int, default=8443, metavar="N", help="default: %(default)s")
    init.add_argument(
        "--schema", type=Path, required=True, metavar="FILE", help="the data contract"
    )
    init.add_argument("--silos", type=comma_separated, required=True, metavar="A,B,C")
    init.add_argument("--analysts", type=comma_separated, default=(), metavar="X,Y")
    init.add_argument(
        "--tasks", type=comma_separated, required=True, metavar="T,U", help="allowed tasks"
    )
    init.add_argument(
        "--cap-epsilon", type=float, required=True, metavar="E", help="lifetime cap of each silo"
    )
    init.add_argument("--max-epsilon-per-job", type=float, required=True, metavar="E")
    init.add_argument(
        "--publish",
        action="store_true",
        help="allow jobs to name analysts as readers of their results",
    )
    invite = add("invite", "write one file for each party (default: all)", _invite)
    invite.add_argument("names", nargs="*", metavar="NAME")
    invite.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="default: here")
    invite.add_argument(
        "--days", type=int, default=DAYS, metavar="N", help="validity (default: %(default)s)"
    )
    opened = add("open", "let the invited parties join, then start the coordinator", _open)
    opened.add_argument(
        "--again",
        action="store_true",
        help="restart the joining of all parties with new words; revokes the certificates issued",
    )
    for action in (init, invite, opened):
        action.add_argument("--root", type=Path, metavar="DIR", help="folder for all files")
    ca.add_arguments(add("ca", "create and renew the certificate authority", None))
    enroll.add_arguments(add("enroll", "request, approve, install and revoke certificates", None))
    demo = add("demo", "start everything, run a job end to end, tear down", _demo)
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
        "--keep", type=Path, metavar="DIR", help="keep keys, settings, ledgers and logs in DIR"
    )


def _init(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Create the files of a coordinator and of the federation's authority."""
    schema = Schema.load(args.schema)
    for name in sorted(set(args.tasks) - set(installed())):
        # The terms cannot be changed afterwards, so a slip of the pen is refused.
        if similar := get_close_matches(name, installed(), 1):
            raise PlanError(
                f"no task {name!r} is installed here; did you mean {similar[0]!r}? Give a task of "
                "your own a name that is less similar."
            )
        out.warn(
            f"no task {name!r} is installed here; each silo must name its file under [tasks] in "
            "its settings."
        )
    site = Site.of(args.root, "coordinator")
    if (_authority(site) / "ca.pem").is_file():
        raise PlanError(
            f"{str(_authority(site))!r} has a federation already, and its terms stay as they are. "
            f"If no invitation was sent, move it and {str(site.keys)!r} away, and repeat this."
        )
    authority = Authority.create(_authority(site), args.name)
    policy = {
        "tasks": list(args.tasks),
        "max_epsilon_per_job": args.max_epsilon_per_job,
        "allow_publish": args.publish,
        # The policy's default of 2, unless the federation is smaller.
        "min_other_silos": max(1, min(2, len(args.silos) - 1)),
    }
    settings = {"cap_epsilon": args.cap_epsilon, "cap_delta": DELTA_CAP, "policy": policy}
    host = args.host.removeprefix("[").removesuffix("]")
    six = ":" in host  # an IPv6 address, which has brackets in a URL
    # One socket for both versions of IP, since a name may have addresses of either.
    both = six or (socket.has_dualstack_ipv6() and not _is_number(host))
    url = f"https://{f'[{host}]' if six else host}:{args.port}"
    ca = (authority.path / "ca.pem").read_text()
    # The words that the sites compare cover these terms, so all agree to the same.
    federation = Federation(
        args.name, url, ca, schema.to_toml(), args.silos, args.analysts, settings
    )
    Board.found(
        authority.path,
        Federation.of(json.loads(json.dumps(federation.document(), allow_nan=False))),
    )
    install(
        site.keys,
        authority.approve(make_request(site.keys, "coordinator", "coordinator", (host,))),
    )
    values = {
        "role": "coordinator",
        # On all addresses, because the others connect from their own machines.
        "listen": f"{'[::]' if both else '0.0.0.0'}:{args.port}",
        "keys": site.keys.name,
        "database": f"sqlite:///{site.state / 'coordinator.db'}",
        "audit_log": str(site.state / "coordinator-audit.jsonl"),
    }
    site.write(values, out)
    out.say(f"created  {authority.path}: keep ca.key there, and a copy of it offline")
    out.say(f"Then: cloister federation invite{_root(args)}")
    return {"authority": authority.path, "config": site.config, "coordinator": url}


def _is_number(host: str) -> bool:
    return host.replace(".", "").isdecimal()


def _root(args: argparse.Namespace) -> str:
    """Return the option of the given root, for the next command."""
    return "" if args.root is None else f" --root {shlex.quote(str(args.root))}"


def _invite(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Write invitations, each of which admits one party."""
    board = Board(_authority(Site.of(args.root, "coordinator")))
    files = {}
    for name in args.names or board.federation.roles:
        files[name] = args.out / f"{name}.invitation"
        text = board.invite(name, days=args.days).text()
        # Only its owner may read it: an invitation admits its bearer, and a new one voids the old.
        write_secret(files[name], text.encode(), in_place_of_one_that_waits=True)
        out.say(f"written  {files[name]}")
    out.paragraph(
        f"Send each party its file over a channel that is safe for a password; it is valid for "
        f"{args.days} days. Another person with the file could join in its place, which the "
        f"comparison of the words would reveal. Then: cloister federation open{_root(args)}"
    )
    return {"files": files}


def _open(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Serve the board until every party has read all entries, then start the coordinator."""
    from cloister.federation.service.joining import serve_board

    site = Site.of(args.root, "coordinator")
    board = Board(_authority(site))
    settings = load_role(site.config, CoordinatorSettings)
    # The nonces of all parties must be new, else the words would not prove a fresh exchange.
    if args.again:
        board.begin_again()
        Authority(_authority(site)).share_list(settings.keys)
    shown: list[str] | None = None  # missing parties; None until the port is open

    def show_missing() -> None:
        nonlocal shown
        if shown is None:
            out.say(f"open at {settings.listen}; Ctrl-C closes it, and all entries are kept")
        if (missing := board.missing("entries")) != shown and missing:
            out.say(f"waiting for {', '.join(missing)}")
        shown = missing

    serve_board(board, settings.listen, KeyFolder(settings.keys), show_missing)
    out.say("All have joined. They now compare the words in a call that you do not host.")
    site.start(out)
    return {"joined": list(board.federation.roles), "config": site.config}


def _authority(site: Site) -> Path:
    return site.root / "etc/cloister-ca"


def _demo(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Run the demonstration in the folder of --keep or in a temporary one."""
    if args.keep:
        if args.keep.exists() and any(args.keep.iterdir()):
            raise PlanError(f"folder {str(args.keep)!r} is not empty; give an empty or new one.")
        args.keep.mkdir(parents=True, exist_ok=True)
        return _demonstrate(args, args.keep, out)
    with tempfile.TemporaryDirectory(prefix="cloister-federation-") as folder:
        return _demonstrate(args, Path(folder), out)


def _demonstrate(args: argparse.Namespace, folder: Path, out: Output) -> dict[str, Any]:
    from cloister.federation.local import LocalFederation

    begun = time.monotonic()

    def say(text: str) -> None:
        out.say(f"{time.monotonic() - begun:6.2f} s  {text}")

    out.paragraph(STORY)
    out.say()
    tables = write_patients(folder)
    schema = Schema.load(folder / SCHEMA)
    with LocalFederation(folder, schema, tables, accept_loss=ACCEPTED_LOSS) as federation:
        federation.start()
        say("keys and certificates created; coordinator and three silos started")
        federation.wait_connected(seconds=_SECONDS)
        say(f"all silos connected to {federation.url}")
        victim = args.kill_coordinator_in_round
        plan = _plan(
            schema, federation.fingerprints, args.profile, slot=0.0 if victim is None else 1.0
        )
        job = federation.propose(plan)
        say(f"job {job[:8]} proposed; each silo's policy decides")
        # SIGKILL leaves no time for a clean end, as in a power cut.
        if victim is not None:
            while federation.job(job)["rounds_done"] < victim - 1:
                time.sleep(0.05)
            time.sleep(0.2)  # uploads start a second after the round opens, so it is open now
            federation.kill("coordinator", signal.SIGKILL)
            say(f"coordinator killed (SIGKILL) in round {victim} of {plan.rounds}")
            federation.start("coordinator")
            federation.wait_connected(seconds=_SECONDS)
            say("coordinator restarted; silos reconnected; the job continues in the same round")
        shown = federation.wait_job(job, seconds=_SECONDS)
        if shown["state"] != "done":
            raise ProtocolError(
                f"job ended as {shown['state']}: {shown['reason']}; run it again with --keep DIR "
                "and read the logs there."
            )
        federation.wait_results(job, seconds=_SECONDS)
        results = [Release.load(federation.results(name, job)) for name in tables]
        same = all(
            np.array_equal(r.results["centres"], results[0].results["centres"]) for r in results
        )
        say(
            f"job done in {counted(plan.rounds, 'round')}; the three silos have the same result: "
            f"{same}"
        )
    say("all processes stopped")
    out.say()
    # One result is enough, because all were compared above.
    show_displays(present(results[0]), out)
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
        profile=profile,
        min_silos=3,
        fingerprints=[fingerprints[name] for name in HOSPITALS],
        upload_slot=slot,
        columns=COLUMNS,
        n_clusters=CLUSTERS,
        public_seed=1,
    )
